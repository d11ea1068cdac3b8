"""The built site in a real browser: every page, light and dark, wide and narrow, and what moves.

They need a Chromium (`chromium`, `chromium-browser` or `google-chrome` on the path, or named by
UNROLLED_CHROMIUM) and a built site (`make quick` or `make book`; UNROLLED_BUILD names its folder).
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SITE = ROOT / os.environ.get("UNROLLED_BUILD", "_build") / "html"
CHROMIUM = os.environ.get("UNROLLED_CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WIDE, NARROW = {"width": 1300, "height": 900}, {"width": 390, "height": 844}

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        CHROMIUM is None,
        reason="the tests of the site in a browser need Chromium: install it (Debian: apt install "
        "chromium), or name it in UNROLLED_CHROMIUM",
    ),
    pytest.mark.skipif(
        not (SITE / "index.html").exists(),
        reason=f"the tests of the site need the built site: run `make quick` (no {SITE})",
    ),
]


def site_pages() -> list[str]:
    """Every page but the root's redirect and the templates of themes."""
    pages = (path.relative_to(SITE) for path in SITE.rglob("*.html"))
    return sorted(p.as_posix() for p in pages if p.parts[0] not in ("_static", "index.html"))


def notebook_pages() -> list[str]:
    return [page for page in site_pages() if page.startswith("notebooks/")]


def source_pages() -> list[str]:
    """The pages that show the code of a module: one template, and nothing but code."""
    return [page for page in site_pages() if page.startswith("_modules/unrolled/")]


def other_pages() -> list[str]:
    return sorted({*site_pages()} - {*notebook_pages(), *source_pages()})


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *args) -> None:
        pass


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(SITE)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


@pytest.fixture(scope="session")
def browser() -> Iterator:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield running
        running.close()


class Tab:
    """A browser page that notes whatever goes wrong in it."""

    def __init__(self, browser, home: str) -> None:
        self.home, self.problems, self.source = home, [], ""
        self.page = browser.new_page(viewport=WIDE)
        self.page.set_default_timeout(60_000)
        self.page.on("console", self.note_console)
        self.page.on("pageerror", lambda error: self.problems.append(f"page error: {error}"))
        self.page.on("request", self.note_request)
        self.page.on("requestfailed", self.note_failure)

    def note_console(self, message) -> None:
        if message.type == "error":
            self.problems.append(f"console: {message.text}")

    def note_failure(self, request) -> None:
        if request.failure != "net::ERR_ABORTED":  # what a click on a link leaves behind
            self.problems.append(f"failed: {request.url}, {request.failure}")

    def note_request(self, request) -> None:
        if not request.url.startswith((self.home, "data:", "blob:")):
            self.problems.append(f"request off the site: {request.url}")

    def open(self, path: str):
        """Open a page of the site and wait until its formulas are set."""
        self.problems.clear()
        self.page.goto(f"{self.home}/{path}")
        self.page.evaluate("window.MathJax?.startup?.promise")
        return self.page


@pytest.fixture(scope="session")
def shared_tab(browser, address: str) -> Iterator[Tab]:
    tab = Tab(browser, address)
    yield tab
    tab.page.close()


@pytest.fixture
def tab(shared_tab: Tab) -> Tab:
    """One tab for all tests, which saves its start; light and wide at first."""
    shared_tab.page.set_viewport_size(WIDE)
    shared_tab.page.emulate_media(color_scheme="light")
    return shared_tab


# --- every page -------------------------------------------------------------------------------

WRONG_MATH = """() => {
  const wrong = [];
  for (const math of document.querySelectorAll("span.math, div.math"))
    if (!math.querySelector("mjx-container")) wrong.push("not set: " + math.textContent.trim());
  for (const error of document.querySelectorAll("mjx-merror, [data-mjx-error]"))
    wrong.push("TeX error: " + (error.dataset.mjxError || error.textContent));
  for (const macro of document.querySelectorAll('mjx-mtext[style*="red"]'))
    wrong.push("unknown macro: " + macro.textContent);  // drawn in red by the engine
  const walker = document.createTreeWalker(document.querySelector("article, main"), 4);
  while (walker.nextNode()) {
    const text = walker.currentNode;
    const quiet = "pre, code, script, style, mjx-container, .math, svg, dl.py > dt";
    if (!text.parentElement.closest(quiet) && /\\$\\$|\\\\\\(|\\\\\\[/.test(text.data))
      wrong.push("raw TeX: " + text.data.trim().slice(0, 80));
  }
  return wrong;
}"""

BROKEN_IMAGES = """() => [...document.images]
  .filter((image) => image.loading !== "lazy" && !(image.complete && image.naturalWidth > 0))
  .map((image) => image.src)"""

# Formulas in tables whose end is cut off.
CUT_FORMULAS = """() => [...document.querySelectorAll("td span.math")]
  .filter((e) => getComputedStyle(e).overflowX !== "visible" && e.scrollWidth > e.clientWidth + 1)
  .map((e) => e.textContent.slice(0, 60))"""

# What sticks out to the right of the window, unless a box of its own scrolls it.
STICKING_OUT = """() => {
  if (document.documentElement.scrollWidth <= innerWidth + 1) return [];
  return ["page is " + document.documentElement.scrollWidth + " wide", ...[...document
    .querySelectorAll("main *")].filter((e) => e.getBoundingClientRect().right > innerWidth + 1)
    .slice(0, 5).map((e) => e.tagName + "." + e.className)];
}"""

# The contrast of the text of an article with the page behind it (WCAG), at least 4.5.
POOR_CONTRAST = """() => {
  const rgb = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (colour) => rgb(colour).slice(0, 3).map((v) => v / 255)
    .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor;
      if ((rgb(colour)[3] ?? 1) > 0.9) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const poor = new Set();
  const texts = "article p, article li, article td, article th, article h1, article h2, figcaption";
  for (const element of document.querySelectorAll(`${texts}, article a, article dt`)) {
    if (!element.innerText?.trim() || element.closest("svg, .headerlink")) continue;
    const [a, b] = [light(getComputedStyle(element).color), light(behind(element))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) poor.add(`${element.tagName} ${element.className} ${contrast.toFixed(1)}`);
  }
  return [...poor].slice(0, 8);
}"""


SHOW_MAIN_OF = """async (path) => {
  const text = await (await fetch(path)).text();
  const main = new DOMParser().parseFromString(text, "text/html").querySelector("main");
  document.querySelector("main").replaceWith(document.adoptNode(main));
  return main.querySelectorAll("article pre").length;
}"""


def assert_page_is_whole(tab: Tab) -> None:
    """Look at the open page: formulas set, images there, no problem in the console or before."""
    assert tab.page.evaluate(WRONG_MATH) == []
    assert tab.page.evaluate(BROKEN_IMAGES) == []
    assert tab.problems == []


def assert_page_fits(tab: Tab, path: str) -> None:
    """Look at the open page in light and dark, wide and narrow."""
    for size in (WIDE, NARROW):
        tab.page.set_viewport_size(size)
        for theme in ("light", "dark"):
            tab.page.emulate_media(color_scheme=theme)
            tab.page.wait_for_function(f"document.documentElement.dataset.theme === '{theme}'")
            where = f"{path}, {theme}, {size['width']} px"
            assert tab.page.evaluate(STICKING_OUT) == [], where
            assert tab.page.evaluate(CUT_FORMULAS) == [], where
            if size is WIDE:
                assert tab.page.evaluate(POOR_CONTRAST) == [], where
    assert tab.problems == []


@pytest.mark.parametrize("path", other_pages())
def test_page_is_sound(tab: Tab, path: str) -> None:
    tab.open(path)
    assert_page_is_whole(tab)
    assert_page_fits(tab, path)


@pytest.fixture(scope="module")
def source_tab(browser, address: str) -> Iterator[Tab]:
    """A tab with the first source page: most of the time for a page is that of its scripts."""
    tab = Tab(browser, address)
    tab.open(source_pages()[0])
    assert_page_is_whole(tab)
    yield tab
    tab.page.close()


@pytest.mark.parametrize("path", source_pages())
def test_source_page_is_sound(source_tab: Tab, path: str) -> None:
    """Show the content of each source page in the place of the first one's, with its scripts."""
    assert source_tab.page.evaluate(SHOW_MAIN_OF, f"{source_tab.home}/{path}") > 0
    assert_page_fits(source_tab, path)


def test_formula_engine_is_ours_and_screen_readers_find_every_formula(tab: Tab) -> None:
    page = tab.open("book/notation.html")
    assert page.evaluate("MathJax.version") == "3.2.2"
    formulas = page.locator("mjx-container").count()
    assert page.locator("mjx-container mjx-assistive-mml math").count() == formulas > 20


def test_menu_of_a_formula_offers_only_what_is_on_board(tab: Tab) -> None:
    page = tab.open("book/notation.html")
    page.locator("mjx-container").first.click(button="right")
    page.get_by_text("Math Settings").hover()
    page.get_by_text("Zoom Trigger").wait_for()
    entries = " ".join(page.locator(".CtxtMenu_MenuItem").all_inner_texts())
    assert "Copy to Clipboard" in entries
    assert not re.search("Accessibility|Language|Renderer", entries)
    page.keyboard.press("Escape")
    assert tab.problems == []


# --- what moves -------------------------------------------------------------------------------


def test_root_leads_to_the_landing_page(tab: Tab) -> None:
    page = tab.page
    page.goto(f"{tab.home}/index.html")
    page.wait_for_url("**/book/index.html")
    tab.problems.clear()
    assert page.locator("svg.un-picture").count() == 3


def test_search_finds_a_word_and_shows_clean_excerpts(tab: Tab) -> None:
    page = tab.open("search.html?q=loop")
    page.wait_for_function("document.querySelectorAll('#search-results li p.context').length > 1")
    results = page.locator("#search-results li a")
    assert results.count() > 3
    text = page.locator("#search-results").inner_text()
    assert "loop" in text.lower()
    assert "\\(" not in text
    assert ".pdf" not in text
    results.first.click()
    page.wait_for_load_state()
    assert "search.html" not in page.url
    assert tab.problems == []


def test_search_button_asks_for_a_word(tab: Tab) -> None:
    page = tab.open("book/how_to_read.html")
    page.locator(".search-button-field").first.click()
    page.locator("dialog[open] input[type=search]").fill("glossary")
    page.keyboard.press("Enter")
    page.wait_for_url("**/search.html?q=glossary*")
    page.wait_for_selector("#search-results li a")


def sidebar_is_shown(page) -> bool:
    return page.evaluate(
        """() => {
          const dialog = document.querySelector("dialog[open] .bd-sidebar-primary, dialog[open]");
          const bar = dialog || document.querySelector(".bd-sidebar-primary");
          const box = bar.getBoundingClientRect();
          return getComputedStyle(bar).visibility !== "hidden" && box.width > 0 && box.right > 1;
        }"""
    )


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_sidebar_toggles(tab: Tab, size: dict) -> None:
    tab.page.set_viewport_size(size)
    page = tab.open("book/how_to_read.html")
    shown_at_first = sidebar_is_shown(page)
    assert shown_at_first == (size is WIDE)
    page.locator(".bd-header-article .primary-toggle").first.click()
    page.wait_for_timeout(600)  # the bar slides
    assert sidebar_is_shown(page) != shown_at_first


def test_theme_button_switches_the_theme(tab: Tab) -> None:
    page = tab.open("book/how_to_read.html")
    seen = set()
    for _ in range(3):
        page.locator(".theme-switch-button").first.click()
        seen.add(page.evaluate("document.documentElement.dataset.theme"))
    assert seen == {"light", "dark"}
    page.evaluate("localStorage.clear()")


# --- notebook pages ---------------------------------------------------------------------------


@pytest.fixture(scope="module", params=notebook_pages())
def open_notebook(request, shared_tab: Tab) -> Tab:
    """A notebook page, opened once for the tests below."""
    shared_tab.page.set_viewport_size(WIDE)
    shared_tab.open(request.param)
    shared_tab.source = request.param.removesuffix(".html")
    return shared_tab


@pytest.fixture
def notebook(open_notebook: Tab) -> Tab:
    """The page, wide and dark whatever the test before has left."""
    open_notebook.page.set_viewport_size(WIDE)
    open_notebook.page.emulate_media(color_scheme="dark")
    return open_notebook


def test_notebook_page_is_sound(notebook: Tab) -> None:
    assert_page_is_whole(notebook)
    assert_page_fits(notebook, notebook.source)


def shown(locator) -> bool:
    return locator.evaluate("(e) => e.getBoundingClientRect().height > 0")


BUTTON_IS_INSIDE = """(solution) => {
  const box = solution.getBoundingClientRect();
  const button = solution.querySelector(".toggle-button").getBoundingClientRect();
  return button.top >= box.top && button.bottom <= box.bottom + 1 && button.right <= box.right + 1;
}"""


def test_solutions_are_folded_and_unfold(notebook: Tab) -> None:
    solutions = notebook.page.locator("div.solution")
    assert solutions.count() == notebook.page.locator("div.exercise").count() > 0
    for i in range(solutions.count()):
        solution = solutions.nth(i)
        content = solution.locator("> .solution-content, > section").first
        assert not shown(content), f"solution {i} is open from the start"
        assert solution.evaluate(BUTTON_IS_INSIDE), f"the button of solution {i} is cut off"
        solution.locator(".toggle-button").first.click()
        notebook.page.wait_for_timeout(50)
        assert shown(content), f"solution {i} does not open"
        solution.locator(".toggle-button").first.click()


def test_hidden_code_opens(notebook: Tab) -> None:
    hidden = notebook.page.locator("details.hide")
    assert hidden.count() > 0
    assert not hidden.first.evaluate("(e) => e.open")
    hidden.first.locator("summary").click()
    assert hidden.first.evaluate("(e) => e.open")
    assert hidden.first.locator("pre").first.is_visible()


def test_page_shows_no_warnings_of_the_code(notebook: Tab) -> None:
    warnings = notebook.page.locator("div.output.stderr").all_inner_texts()
    assert warnings == []


def test_plots_lie_on_white_paper_in_the_dark(notebook: Tab) -> None:
    assert notebook.page.evaluate("document.documentElement.dataset.theme") == "dark"
    papers = notebook.page.evaluate(
        """() => [...document.querySelectorAll("div.cell_output img, div.cell_output svg")]
          .map((e) => getComputedStyle(e).backgroundColor + getComputedStyle(e).filter)"""
    )
    assert set(papers) <= {"rgb(255, 255, 255)none"}


def test_buttons_lead_to_files_of_the_repository(notebook: Tab) -> None:
    hrefs = notebook.page.evaluate("[...document.querySelectorAll('a[href]')].map((a) => a.href)")
    colab = {h for h in hrefs if h.startswith("https://colab.research.google.com/github/")}
    assert {re.sub(r".*/blob/main/", "", h) for h in colab} == {f"{notebook.source}.ipynb"}
    edit = {h for h in hrefs if "/edit/main/" in h}
    assert {h.split("/edit/main/")[1] for h in edit} == {f"{notebook.source}.py"}
    for suffix in (".ipynb", ".py"):
        assert (ROOT / f"{notebook.source}{suffix}").is_file()
    download = SITE / "_sources" / f"{notebook.source}.ipynb"
    assert download.read_bytes() == (ROOT / f"{notebook.source}.ipynb").read_bytes()


# --- without a server -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def file_tab(browser) -> Iterator[Tab]:
    tab = Tab(browser, SITE.as_uri())
    yield tab
    tab.page.close()


@pytest.mark.parametrize("path", ["book/index.html", "book/notation.html", *notebook_pages()[:1]])
def test_page_is_whole_from_a_file(file_tab: Tab, path: str) -> None:
    file_tab.open(path)
    assert_page_is_whole(file_tab)


def test_search_works_from_a_file(file_tab: Tab) -> None:
    page = file_tab.open("search.html?q=loop")
    page.wait_for_selector("#search-results li a")
    assert page.locator("#search-results li a").count() > 3
    assert file_tab.problems == []

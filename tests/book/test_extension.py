"""The book's Sphinx extensions, on a book of two pages."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
import pytest
from docutils import nodes
from docutils.utils import new_document
from nbformat import v4
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import docutils_namespace, patch_docutils

import unrolled.results.rows

EXTENSION = Path(__file__).parents[2] / "book" / "_ext"
sys.path.insert(0, str(EXTENSION))

import package_pages  # noqa: E402
import typography  # noqa: E402

BIBLIOGRAPHY = """
@misc{one2020, author = {One, Ann}, title = {First}, year = {2020}, url = {https://one.example}}
@misc{two2021, author = {Two, Bob}, title = {Second}, year = {2021}, url = {https://two.example}}
"""
PAGE = """(page)=
# A page

(part)=
## A part

See {numref}`page`, {numref}`part`, {cite:t}`one2020` and {cite:p}`one2020,two2021`.

The mean is {result}`toy_runs | mean loss | variant=a preset=laptop | .2f`.
Formulas ($x$) keep their marks: $y$, and $z$.
"""
ROWS = [
    {"experiment": "toy.runs", "variant": "a", "preset": "laptop", "seed": seed, "loss": loss}
    for seed, loss in enumerate((1.0, 2.0))
]


def write_rows(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def notebook(output: str | None) -> str:
    outputs = [v4.new_output("stream", text=output)] if output else []
    cells = [
        v4.new_markdown_cell("# A notebook\n\nSome words.", id="title"),
        v4.new_code_cell("print('hello')", id="code", outputs=outputs, execution_count=1),
    ]
    metadata = {
        "kernelspec": {"name": "python3", "display_name": "Python 3"},
        "language_info": {"name": "python"},
    }
    return nbformat.writes(v4.new_notebook(cells=cells, metadata=metadata))


class Book:
    """A small book in a temporary folder."""

    def __init__(self, root: Path) -> None:
        self.root, self.warnings = root, ""
        (root / "notebooks").mkdir()
        contents = "```{toctree}\n:numbered:\npage\nnotebooks/first\n```"
        self.write("index.md", f"# Home\n\n{contents}\n\n```{{bibliography}}\n```\n")
        self.write("all.bib", BIBLIOGRAPHY)
        self.write("page.md", PAGE)
        self.write("notebooks/first.ipynb", notebook(None))
        self.address("https://github.com/someone/somewhere", "https://somewhere.example/book")

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf8")
        return path

    def address(self, repository: str, book: str) -> None:
        urls = f'[project.urls]\nRepository = "{repository}"\nBook = "{book}"\n'
        self.write("pyproject.toml", f'[project]\nname = "toy"\n{urls}')

    def build(self) -> Sphinx:
        warnings = io.StringIO()
        with patch_docutils(), docutils_namespace():
            app = Sphinx(
                srcdir=self.root,
                confdir=None,
                outdir=self.root / "_build/html",
                doctreedir=self.root / "_build/doctrees",
                buildername="html",
                confoverrides={
                    "extensions": [
                        "myst_nb",
                        "sphinx_book_theme",
                        "sphinxcontrib.bibtex",
                        "unrolled_book",
                    ],
                    "bibtex_bibfiles": ["all.bib"],
                    "bibtex_reference_style": "author_year_round",
                    "numfig": True,
                    "html_theme": "sphinx_book_theme",
                    "html_theme_options": {"use_edit_page_button": True, "use_issues_button": True},
                    "exclude_patterns": ["_build"],
                    "nb_execution_mode": "off",
                    "myst_enable_extensions": ["dollarmath"],
                    "project": "toy",
                },
                status=None,
                warning=warnings,
            )
            app.build()
        self.warnings = warnings.getvalue()
        return app

    def html(self, page: str) -> str:
        return (self.root / "_build/html" / f"{page}.html").read_text("utf8")


@contextmanager
def new_book(root: Path) -> Iterator[Book]:
    """Make the book, and let its folder be the one that results are read from."""
    book = Book(root)
    book.write("_build/executed/notebooks/first.ipynb", notebook("hello\n"))
    write_rows(book.write("rows/toy_runs.jsonl", ""), ROWS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unrolled.results.rows, "folder", lambda: root / "rows")
        yield book


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Book]:
    """A book that a test may change."""
    with new_book(tmp_path) as book:
        yield book


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Book]:
    """The book as it is, built once."""
    with new_book(tmp_path_factory.mktemp("book")) as book:
        book.build()
        yield book


def later(path: Path) -> None:
    """Give a file a time stamp that a rebuild notices."""
    stamp = path.stat().st_mtime + 10
    os.utime(path, (stamp, stamp))


def test_clean_book_builds_without_a_warning(built: Book) -> None:
    assert built.warnings == ""


# --- addresses --------------------------------------------------------------------------------


def test_every_address_follows_pyproject(book: Book) -> None:
    book.address("https://github.com/fork/elsewhere", "https://fork.example/elsewhere/")
    app = book.build()
    assert app.config.html_baseurl == "https://fork.example/elsewhere/"
    assert app.config.ogp_site_url == "https://fork.example/elsewhere/"
    html = book.html("notebooks/first")
    hrefs = set(re.findall(r'href="(https://[^"]+)"', html))
    assert "https://github.com/fork/elsewhere/blob/main/notebooks/first.py" in hrefs
    ours = [h for h in hrefs if "github" in h or "example" in h]
    assert len(ours) >= 6
    assert all("fork" in h and "elsewhere" in h for h in ours)


def test_missing_address_stops_the_build(book: Book) -> None:
    book.write("pyproject.toml", '[project]\nname = "toy"\n')
    with pytest.raises(ExtensionError, match="lacks book, repository"):
        book.build()


def test_notebook_page_leads_to_colab_notebook_and_source(built: Book) -> None:
    html = built.html("notebooks/first")
    row = re.search(r'<p class="[^"]*ways-out[^"]*">(.*?)</p>', html).group(1)
    assert re.findall(r'href="([^"]+)"', row) == [
        "https://colab.research.google.com/github/someone/somewhere/blob/main/notebooks/first.ipynb",
        "https://github.com/someone/somewhere/blob/main/notebooks/first.ipynb",
        "https://github.com/someone/somewhere/blob/main/notebooks/first.py",
    ]
    assert "ways-out" not in built.html("page")


def test_edit_button_leads_to_the_source(built: Book) -> None:
    assert "/edit/main/notebooks/first.py" in built.html("notebooks/first")
    assert "/edit/main/notebooks/first.ipynb" not in built.html("notebooks/first")
    assert "/edit/main/page.md" in built.html("page")


# --- executed copies --------------------------------------------------------------------------


def test_page_shows_the_executed_copy_and_downloads_the_clean_one(built: Book) -> None:
    assert "hello\n</pre>" in built.html("notebooks/first")
    download = built.root / "_build/html/_sources/notebooks/first.ipynb"
    assert download.read_text("utf8") == notebook(None)


def test_missing_executed_copy_is_a_warning_and_its_arrival_rebuilds(book: Book) -> None:
    copy = book.root / "_build/executed/notebooks/first.ipynb"
    copy.unlink()
    book.build()
    assert "no executed copy of this notebook" in book.warnings
    assert str(Path("_build", "executed", "notebooks", "first.ipynb")) in book.warnings
    book.write("_build/executed/notebooks/first.ipynb", notebook("it arrived\n"))
    book.build()
    assert book.warnings == ""
    assert "it arrived" in book.html("notebooks/first")


def test_changed_executed_copy_rebuilds_the_page(book: Book) -> None:
    book.build()
    later(book.write("_build/executed/notebooks/first.ipynb", notebook("another run\n")))
    book.build()
    assert "another run" in book.html("notebooks/first")


# --- results ----------------------------------------------------------------------------------


def test_result_prints_the_number_and_says_where_it_comes_from(built: Book) -> None:
    number = re.search(r'<abbr class="result" title="([^"]+)">([^<]+)</abbr>', built.html("page"))
    assert number.group(2) == "1.50"
    assert number.group(1) == "mean loss | variant=a preset=laptop (toy_runs.jsonl)"


def test_changed_rows_rebuild_the_page(book: Book) -> None:
    book.build()
    write_rows(book.root / "rows/toy_runs.jsonl", [row | {"loss": 4.0} for row in ROWS])
    later(book.root / "rows/toy_runs.jsonl")
    book.build()
    assert ">4.00</abbr>" in book.html("page")


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("toy_runs | mean loss | variant=b preset=laptop | .2f", "variant"),
        ("toy_runs | mean accuracy | variant=a preset=laptop | .2f", "accuracy"),
        ("no_such_rows | mean loss | variant=a | .2f", "no_such_rows"),
        ("../toy_runs | mean loss | variant=a | .2f", "toy_runs"),
        ("toy_runs | mean loss", "FILE | STAT METRIC"),
    ],
)
def test_missing_result_fails_the_build(book: Book, query: str, reason: str) -> None:
    book.write("page.md", f"# A page\n\nThe mean is {{result}}`{query}`.\n")
    app = book.build()
    assert "ERROR" in book.warnings
    assert reason in book.warnings
    assert app._warncount > 0  # what -W turns into a failure


# --- formulas and their marks -----------------------------------------------------------------


def test_marks_stay_with_their_formulas(built: Book) -> None:
    text = re.sub(r"\\[()]", "", built.html("page"))
    kept = re.findall(r'<span class="un-nowrap">(.*?</span>.*?)</span>', text)
    plain = [re.sub(r"<[^>]+>", "", piece) for piece in kept]
    assert plain == ["(x)", "y,", "z."]
    assert "Formulas " in text
    assert " keep their marks: " in text


def test_chapters_and_citations_read_well(built: Book) -> None:
    text = re.sub(r"<[^>]+>", "", built.html("page"))
    assert "See Chapter 1, Section 1.1, One (2020) and (One, 2020; Two, 2021)." in text


# --- names of the package ---------------------------------------------------------------------

DOCUMENTED = {
    "unrolled.results": None,
    "unrolled.results.quotes.quote": None,
    "unrolled.results.rows.Row": None,
    "unrolled.looped.model.LoopedTransformer": None,
    "unrolled.looped.model.LoopedTransformer.loss": None,
    "unrolled.transformer.Transformer.loss": None,
}


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("unrolled.results.quote", "unrolled.results.quotes.quote"),
        ("unrolled.looped.LoopedTransformer", "unrolled.looped.model.LoopedTransformer"),
        (
            "unrolled.looped.LoopedTransformer.loss",
            "unrolled.looped.model.LoopedTransformer.loss",
        ),
        ("Row", "unrolled.results.rows.Row"),
        ("loss", None),  # two of that name
        ("unrolled.results.qoute", None),
        ("unrolled.training.quote", None),
    ],
)
def test_public_path_means_one_documented_name(target: str, found: str | None) -> None:
    assert package_pages.documented_as(target, DOCUMENTED) == found


# --- the whole site ---------------------------------------------------------------------------


def test_sitemap_lists_every_page_also_after_a_small_change(book: Book) -> None:
    book.build()
    first = (book.root / "_build/html/sitemap.xml").read_text("utf8")
    later(book.write("page.md", "# Another title\n"))
    book.build()
    assert (book.root / "_build/html/sitemap.xml").read_text("utf8") == first
    assert re.findall("<loc>(.*?)</loc>", first) == [
        "https://somewhere.example/book/index.html",
        "https://somewhere.example/book/notebooks/first.html",
        "https://somewhere.example/book/page.html",
    ]


def test_the_name_of_a_chapter_is_changed_beside_a_link_that_the_theme_has_shortened():
    """The theme puts a shorter text into a link by hand, and that text has no parent."""
    shortened = nodes.reference("", "https://github.com/a/b", refuri="https://github.com/a/b")
    shortened.children[0] = nodes.Text("a/b")
    chapter = nodes.reference("", "", nodes.inline("", "Section 2"), refuri="page.html")
    page = new_document("page")
    page += nodes.paragraph("", "", shortened, nodes.Text(", Section 3, "), chapter)
    typography.call_chapters_chapters(None, page, "page")
    assert page.astext() == "a/b, Section 3, Chapter 2"

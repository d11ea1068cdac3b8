"""The check of the site without a browser: it finds what is broken, and our site is whole."""

from __future__ import annotations

import os
from pathlib import Path

import check_site
import pytest

ROOT = Path(__file__).parents[2]
SITE = ROOT / os.environ.get("UNROLLED_BUILD", "_build") / "html"

HEAD = '<link rel="canonical" href="https://far.example/"><link rel="stylesheet" href="book.css">'
SOUND = {
    "index.html": f'{HEAD}<a href="sub/page.html#here">in</a><a href="https://far.example">out</a>',
    "sub/page.html": '<h1 id="here">Here</h1><img src="../dot.png"><a href="../index.html">up</a>',
    "book.css": '@font-face { src: url("dot.png") } p { background: url(data:image/png;base64,) }',
    "dot.png": "",
}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    for name, text in SOUND.items():
        write(tmp_path, name, text)
    return tmp_path


def write(site: Path, name: str, text: str) -> None:
    (site / name).parent.mkdir(parents=True, exist_ok=True)
    (site / name).write_text(text, encoding="utf8")


def test_sound_site_has_no_problems(site: Path) -> None:
    assert check_site.site_problems(site) == []


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.html", '<a href="none.html">', "a.html: no none.html"),
        ("a.html", '<a href="sub/page.html#there">', "a.html: no anchor #there in sub/page.html"),
        ("a.html", '<a href="#nowhere">', "a.html: no anchor #nowhere in a.html"),
        ("a.html", '<a href="../outside.html">', "a.html: no ../outside.html"),
        ("a.html", '<a href="sub">', "a.html: no sub"),
        ("a.html", '<img src="none.png">', "a.html: no none.png"),
        ("a.html", '<img srcset="dot.png 1x, none.png 2x">', "a.html: no none.png"),
        ("a.html", '<script src="https://far.example/x.js">', "loads https://far.example/x.js"),
        ("a.html", '<script src="//far.example/x.js">', "loads //far.example/x.js"),
        ("a.html", '<img src="http://far.example/x.png">', "loads http://far.example/x.png"),
        ("a.html", '<link rel="stylesheet" href="https://far.example/x.css">', "loads https"),
        ("a.html", '<link rel="preload icon" href="https://far.example/x">', "loads https"),
        ("a.html", '<iframe src="https://far.example/">', "loads https://far.example/"),
        ("a.html", '<p style="background: url(https://far.example/x)">', "loads https"),
        ("a.html", "<style>@import 'https://far.example/x.css';</style>", "loads https"),
        ("more.css", "p { background: url('none.png') }", "more.css: no none.png"),
        ("more.css", "@import 'https://far.example/x.css';", "more.css: loads https"),
    ],
)
def test_each_fault_is_found(site: Path, name: str, text: str, problem: str) -> None:
    write(site, name, text)
    problems = check_site.site_problems(site)
    assert len(problems) == 1
    assert problem in problems[0]


def test_links_to_other_hosts_are_no_loads(site: Path) -> None:
    write(site, "a.html", '<a href="https://far.example/">x</a><a href="mailto:a@b.example">y</a>')
    assert check_site.site_problems(site) == []


def test_escaped_addresses_are_understood(site: Path) -> None:
    write(site, "a page.html", '<p id="größe">')
    write(site, "a.html", '<a href="a%20page.html#gr%C3%B6%C3%9Fe">')
    assert check_site.site_problems(site) == []


def test_empty_folder_is_a_problem(tmp_path: Path) -> None:
    assert check_site.site_problems(tmp_path) == [f"no pages in {tmp_path}"]


def test_command_fails_on_a_broken_site(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_site.main([str(site)]) == 0
    write(site, "a.html", '<a href="none.html">')
    assert check_site.main([str(site)]) == 1
    assert "a.html: no none.html" in capsys.readouterr().out


@pytest.mark.skipif(
    not (SITE / "index.html").exists(),
    reason=f"the check of the site needs the built site: run `make quick` (no {SITE})",
)
def test_our_site_is_whole() -> None:
    assert check_site.site_problems(SITE) == []

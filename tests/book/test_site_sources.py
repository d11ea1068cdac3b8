"""The sources of the site: every module has its page, every entry of the bibliography its facts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from pybtex.database import parse_file

ROOT = Path(__file__).parents[2]
API = ROOT / "book" / "api"
VENDORED = ROOT / "book" / "vendor" / "mathjax"


def modules() -> set[str]:
    """Every public module of the package."""
    source = ROOT / "src"
    paths = (path.relative_to(source).with_suffix("") for path in source.rglob("*.py"))
    names = {".".join(p.parts).removesuffix(".__init__") for p in paths}
    return {name for name in names if not re.search(r"\._", name)} - {"unrolled"}


def documented() -> list[str]:
    return re.findall(
        r"\.\. automodule:: (\S+)", "\n".join(p.read_text("utf8") for p in API.glob("*.md"))
    )


def toc_files() -> set[str]:
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text("utf8"))
    entries, files = [*toc["parts"]], {toc["root"]}
    while entries:
        entry = entries.pop()
        entries += entry.get("chapters", []) + entry.get("sections", [])
        files |= {entry["file"]} if "file" in entry else set()
    return files


def test_every_module_has_one_place_in_the_pages_of_the_package() -> None:
    assert sorted(documented()) == sorted(modules())


def test_every_page_is_in_the_table_of_contents() -> None:
    pages = {p.relative_to(ROOT).with_suffix("").as_posix() for p in (ROOT / "book").glob("*.md")}
    pages |= {p.relative_to(ROOT).with_suffix("").as_posix() for p in API.glob("*.md")}
    assert pages <= toc_files()


def test_pages_of_the_package_are_listed_on_its_first_page() -> None:
    listed = re.findall(r"\{doc\}`(\w+)`", (API / "index.md").read_text("utf8"))
    assert sorted(listed) == sorted(p.stem for p in API.glob("*.md") if p.stem != "index")


# --- bibliography -----------------------------------------------------------------------------

ENTRIES = parse_file(str(ROOT / "book" / "references.bib")).entries


@pytest.mark.parametrize("key", list(ENTRIES))
def test_entry_says_who_what_when_and_where(key: str) -> None:
    entry = ENTRIES[key]
    assert entry.persons["author"]
    assert {"title", "year"} <= set(entry.fields)
    assert {"journal", "booktitle", "publisher", "eprint", "url"} & set(entry.fields)
    assert entry.fields["year"] in key


def test_the_three_papers_are_there() -> None:
    addresses = {entry.fields.get("eprint", entry.fields.get("url")) for entry in ENTRIES.values()}
    assert {"2605.18797", "2605.21104", "https://arxiv.org/abs/2601.17257"} <= addresses


# --- configuration ----------------------------------------------------------------------------


def test_addresses_stand_in_one_place() -> None:
    for name in ("_config.yml", "_toc.yml", "book/_ext/unrolled_book.py"):
        assert "github.com" not in (ROOT / name).read_text("utf8")
        assert "github.io" not in (ROOT / name).read_text("utf8")


def test_formula_engine_is_on_board_with_fonts_and_licence() -> None:
    assert (VENDORED / "tex-mml-chtml.js").stat().st_size > 1_000_000
    assert len(list(VENDORED.glob("output/chtml/fonts/woff-v2/*.woff"))) == 23
    assert "Apache License" in (VENDORED / "LICENSE").read_text("utf8")
    assert sum(p.stat().st_size for p in VENDORED.rglob("*") if p.is_file()) < 3_000_000

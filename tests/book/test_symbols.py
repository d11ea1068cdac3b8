"""The notation table: whole, without doubles, and reached from the first use of each symbol."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
from docutils import nodes
from docutils.utils import new_document

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "book" / "_ext"))

import symbols  # noqa: E402

TEXT = r"""# Notation

## Loops

% pages: notebooks/looped

| symbol | shape | meaning | name in the code |
|---|---|---|---|
| $x, \mathcal{L}(x, \lambda)$ | $d$ | stream of $\theta$; loss | `x` |
| $K$ | | loops | |

### Depth

% pages: notebooks/looped/depth

| symbol | meaning | name in the code |
|---|---|---|
| $K$ | keys | `keys` |

% elsewhere: notebooks/looped/other x
"""


def doctree(*formulas: str) -> nodes.document:
    tree = new_document("page")
    tree += nodes.title("", "", nodes.math("", "K"))
    tree += nodes.paragraph("", "", *(nodes.math("", formula) for formula in formulas))
    return tree


def known(page: str, elsewhere: frozenset[str] = frozenset()) -> dict[str, symbols.Symbol]:
    return symbols.symbols_of(symbols.read_symbols(TEXT), page, elsewhere)


def test_a_row_is_read_with_its_formulas_and_its_name_in_the_code():
    row = symbols.read_symbols(TEXT)[0]
    assert row.forms == ("x", r"\mathcal{L}(x,\lambda)", r"x,\mathcal{L}(x,\lambda)")
    assert row.hint == "stream of θ; loss; in the code: x"
    assert row.anchor == "symbol-loops-0"


def test_the_closest_section_gives_the_meaning():
    assert known("notebooks/looped/depth")["K"].meaning == "keys"
    assert known("notebooks/looped/equations")["K"].meaning == "loops"
    assert known("notebooks/horst/vision") == {}


def test_letters_that_a_page_uses_for_something_else_have_no_meaning_there():
    page = "notebooks/looped/other"
    assert symbols.read_elsewhere(TEXT, page) == {"x"}
    assert "x" not in known(page, symbols.read_elsewhere(TEXT, page))


def test_only_the_first_use_in_running_text_is_linked():
    tree = doctree("y", "K = 6", "K", r"x \in \mathbb{R}", "xK")
    found = symbols.first_uses(tree, known("notebooks/looped/equations"))
    assert [(use.astext(), symbol.meaning) for use, symbol in found] == [
        ("K = 6", "loops"),
        (r"x \in \mathbb{R}", "stream of θ; loss"),
    ]


@pytest.fixture(scope="module")
def text() -> str:
    return (ROOT / f"{symbols.PAGE}.md").read_text("utf8")


def test_every_table_of_the_book_says_where_its_letters_hold(text):
    chapters = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("notebooks/*/*.py")]
    for symbol in symbols.read_symbols(text):
        assert symbol.pages, symbol
        assert symbol.meaning, symbol
        for page in symbol.pages:
            assert any(chapter.startswith(page) for chapter in chapters), (page, symbol)


def test_no_section_gives_a_letter_two_meanings(text):
    rows = symbols.read_symbols(text)
    forms = [(row.anchor.rpartition("-")[0], form) for row in rows for form in row.forms]
    assert [pair for pair, count in Counter(forms).items() if count > 1] == []

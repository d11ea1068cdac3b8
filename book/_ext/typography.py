"""Small things that make a page read well: citations, names of chapters, marks beside formulas."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinxcontrib.bibtex.plugin import register_plugin
from sphinxcontrib.bibtex.style.referencing import BracketStyle
from sphinxcontrib.bibtex.style.referencing.author_year import AuthorYearReferenceStyle

if TYPE_CHECKING:
    from sphinx.application import Sphinx


def keep_marks_with_formulas(app: Sphinx, doctree: nodes.document) -> None:
    """Keep the bracket before and the mark after an inline formula on the formula's line."""
    for formula in list(doctree.findall(nodes.math)):
        parent, place = formula.parent, formula.parent.index(formula)
        opening = take_mark(parent, place - 1, r"[(\[“‘]$")
        closing = take_mark(parent, place + 1, r"^[.,;:!?)\]’”]+")
        if opening or closing:
            kept = nodes.inline(classes=["un-nowrap"])
            parent.replace(formula, kept)
            kept += [nodes.Text(opening), formula, nodes.Text(closing)]


def take_mark(parent: nodes.Element, place: int, pattern: str) -> str:
    """Cut what the pattern matches from the text at a place among siblings, and return it."""
    text = parent[place] if 0 <= place < len(parent) else None
    mark = re.search(pattern, text) if isinstance(text, nodes.Text) else None
    if mark is None:
        return ""
    parent.replace(text, nodes.Text(text[: mark.start()] + text[mark.end() :]))
    return mark.group()


def call_chapters_chapters(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Let ``{numref}`` to a chapter say "Chapter 2", and to a part of one "Section 2.1"."""
    for link in list(doctree.findall(nodes.reference)):
        for text in list(link.findall(nodes.Text)):
            if re.fullmatch(r"Section \d+", text):
                text.parent.replace(text, nodes.Text(text.replace("Section", "Chapter")))


def round_brackets() -> BracketStyle:
    """Return the brackets around a year."""
    return BracketStyle(left="(", right=")", sep="; ")


@dataclass
class RoundAuthorYear(AuthorYearReferenceStyle):
    """Citations as "Fu et al. (2026)" and "(Fu et al., 2026)"."""

    bracket_parenthetical: BracketStyle = field(default_factory=round_brackets)
    bracket_textual: BracketStyle = field(default_factory=round_brackets)
    bracket_author: BracketStyle = field(default_factory=round_brackets)
    bracket_label: BracketStyle = field(default_factory=round_brackets)
    bracket_year: BracketStyle = field(default_factory=round_brackets)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the above to Sphinx."""
    app.connect("doctree-read", keep_marks_with_formulas)
    app.connect("doctree-resolved", call_chapters_chapters)
    register_plugin(
        "sphinxcontrib.bibtex.style.referencing", "author_year_round", RoundAuthorYear, force=True
    )
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}

r"""The way from the first use of a symbol in a chapter to its row of the notation table.

Each section of ``book/notation.md`` names the pages whose letters it defines::

    ## Loops

    % pages: notebooks/looped notebooks/together

On such a page the first formula in a line that is a symbol, or begins with one and a relation
(``$K = 6$``), becomes a link to the symbol's row; pointing at it shows the meaning and the name in
the code. Of two sections that define a letter for a page the one with the longer name of the page
counts, and of equal ones the later. Letters that a chapter uses in passing for something else have
no link there; the notation page lists them::

    % elsewhere: notebooks/looped/equations n G
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sphinx.application import Sphinx

PAGE = "book/notation"
RELATION = re.compile(r"(?:=|<|>|\\(?:in|ge|geq|le|leq|ne|sim|approx|to|propto|gg|ll)\b)")
NO_LINK = (nodes.title, nodes.reference, nodes.caption, nodes.term, nodes.rubric)


@dataclass(frozen=True)
class Symbol:
    """A row of the notation table.

    Parameters
    ----------
    forms
        The formulas that stand for it, without spaces.
    meaning, code
        Its meaning in plain text, and its name in the code (or nothing).
    pages
        Prefixes of the pages on which it has this meaning.
    anchor
        Of its row.
    """

    forms: tuple[str, ...]
    meaning: str
    code: str
    pages: tuple[str, ...]
    anchor: str

    @property
    def hint(self) -> str:
        """What is shown when you point at it."""
        return f"{self.meaning}; in the code: {self.code}" if self.code else self.meaning


# --- The table ------------------------------------------------------------------------------


def read_symbols(text: str) -> list[Symbol]:
    """Return the rows of all tables of the notation page, from its Markdown."""
    return [symbol for part in re.split(r"^#+ ", text, flags=re.M)[1:] for symbol in _rows(part)]


def _rows(section: str) -> Iterator[Symbol]:
    title = section.partition("\n")[0]
    pages = re.search(r"^% pages: (.+)$", section, flags=re.M)
    table = [cells_of(line) for line in section.splitlines() if line.startswith("|")]
    for place, cells in enumerate(table[2:]):
        row = dict(zip(table[0], cells, strict=True))
        yield Symbol(
            forms=forms_of(row["symbol"]),
            meaning=plain(row["meaning"]),
            code=plain(row["name in the code"]),
            pages=tuple(pages.group(1).split()) if pages else (),
            anchor=anchor(title, place),
        )


def read_elsewhere(text: str, page: str) -> frozenset[str]:
    """Return the formulas that a page uses for something that no table holds."""
    lists = re.findall(rf"^% elsewhere: {re.escape(page)} (.+)$", text, flags=re.M)
    return frozenset(form for letters in lists for form in letters.split())


def cells_of(line: str) -> list[str]:
    """Return the cells of a line of a Markdown table."""
    return [cell.strip() for cell in line.strip().strip("|").split(" |")]


def anchor(title: str, place: int) -> str:
    """Return the anchor of a row of a section's table."""
    return f"symbol-{nodes.make_id(title)}-{place}"


def forms_of(cell: str) -> tuple[str, ...]:
    r"""Return the formulas of a cell: ``$f, \mathcal{L}(x, y)$`` has two, and is itself one."""
    whole = squeeze(cell.strip("$"))
    parts, depth = [""], 0
    for mark in whole:
        depth += (mark in "({[") - (mark in ")}]")
        if mark == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += mark
    return tuple(dict.fromkeys((*parts, whole)))


def squeeze(formula: str) -> str:
    """Return a formula without spaces."""
    return re.sub(r"\\[,;:! ]|\s", "", formula)


def plain(markdown: str) -> str:
    """Return a cell as plain text."""
    return re.sub(r"\$([^$]+)\$", lambda found: plain_formula(found[1]), markdown).replace("`", "")


def plain_formula(formula: str) -> str:
    """Return a formula in plain text: Greek letters as such, other commands by their name."""
    letters = re.sub(r"\\([A-Za-z]+) ?", lambda found: _letter(found[1]), formula)
    return re.sub(r"[{}\\]", "", letters)


def _letter(name: str) -> str:
    size = "CAPITAL" if name[0].isupper() else "SMALL"
    try:
        return unicodedata.lookup(f"GREEK {size} LETTER {name.upper().removeprefix('VAR')}")
    except KeyError:
        signs = {"partial": "∂", "times": "×", "nabla": "∇", "dots": "…", "mathrm": "", "bar": ""}
        return signs.get(name, name)


def symbols_of(
    symbols: Iterable[Symbol], page: str, elsewhere: frozenset[str] = frozenset()
) -> dict[str, Symbol]:
    """Return the symbols of a page by their formulas, but for some."""

    def closeness(symbol: Symbol) -> int:
        return max((len(p) for p in symbol.pages if f"{page}/".startswith(f"{p}/")), default=0)

    near = sorted((s for s in symbols if closeness(s)), key=closeness)
    return {form: symbol for symbol in near for form in symbol.forms if form not in elsewhere}


# --- The pages ------------------------------------------------------------------------------


def first_uses(doctree: nodes.document, known: dict[str, Symbol]) -> Iterator[tuple[Any, Symbol]]:
    """Return the first formula of each symbol in running text, with the symbol."""
    seen = set()
    for formula in list(doctree.findall(nodes.math)):
        symbol = known.get(RELATION.split(squeeze(formula.astext()), maxsplit=1)[0])
        if symbol and symbol.anchor not in seen and not _inside(formula, NO_LINK):
            seen.add(symbol.anchor)
            yield formula, symbol


def _inside(node: nodes.Node, kinds: tuple[type, ...]) -> bool:
    while node.parent is not None:
        node = node.parent
        if isinstance(node, kinds):
            return True
    return False


def depend_on_notation(app: Sphinx, docname: str, source: list[str]) -> None:
    """Let a change of the notation page build the chapters again."""
    if docname.startswith("notebooks/"):
        app.env.note_dependency(str(app.env.doc2path(PAGE)))


def link_symbols(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Lead from first uses to the notation page, and give its rows their anchors."""
    if app.builder.format != "html" or PAGE not in app.env.found_docs:
        return
    if docname == PAGE:
        add_anchors(doctree)
        return
    text = Path(app.env.doc2path(PAGE)).read_text("utf8")
    known = symbols_of(read_symbols(text), docname, read_elsewhere(text, docname))
    address = app.builder.get_relative_uri(docname, PAGE)
    for formula, symbol in first_uses(doctree, known):
        link = nodes.reference(
            "",
            "",
            internal=True,
            refuri=f"{address}#{symbol.anchor}",
            reftitle=symbol.hint,
            classes=["un-symbol"],
        )
        formula.replace_self(link)
        link += formula


def add_anchors(doctree: nodes.document) -> None:
    """Give each row of the notation tables its anchor."""
    for section in doctree.findall(nodes.section):
        title = section.next_node(nodes.title).astext()
        rows = [
            row
            for table in section.children
            if isinstance(table, nodes.table)
            for row in table.findall(nodes.row)
            if isinstance(row.parent, nodes.tbody)
        ]
        for place, row in enumerate(rows):
            row["ids"].append(anchor(title, place))


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the above to Sphinx."""
    app.connect("source-read", depend_on_notation)
    app.connect("doctree-resolved", link_symbols)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

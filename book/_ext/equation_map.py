"""The directive ``equation-map``, and the way from each equation of a page to its row there.

Both read ``equations`` of the book's tools, so that the map, the pages and the test agree.
"""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

if TYPE_CHECKING:
    from sphinx.application import Sphinx

sys.path.append(str(Path(__file__).resolve().parents[1] / "tools"))
import equations
import project

PAGE = "book/equations"
HEAD = ["| equation | section | code | test | figure |", "|---|---|---|---|---|"]


def anchor(label: str) -> str:
    """Return the anchor of an equation's row."""
    return f"map-{label}"


def cells(row: equations.Row, root: Path) -> list[str]:
    """Return the cells of an equation's row, in Markdown."""
    code = " <br> ".join(f"{{py:obj}}`~{name}`" for name in row.code) or "*a step*"
    tests = " <br> ".join(
        f"[{test.name.removeprefix('test_').replace('_', ' ')}]"
        f"({project.blob_url(test.path, root)}#L{test.line})"
        for test in row.tests
    )
    figure = f"{{numref}}`{row.figure}`" if row.figure else ""
    return [f"[]{{#{anchor(row.label)}}}{{eq}}`{row.label}`", row.section, code, tests, figure]


def lines_of(rows: list[equations.Row], root: Path) -> list[str]:
    """Return a table for each chapter, in Markdown."""
    lines = []
    for docname, group in groupby(rows, key=lambda row: row.docname):
        lines += ["", f"**{{doc}}`/{docname}`**", "", *HEAD]
        lines += [f"| {' | '.join(cells(row, root))} |" for row in group]
    return lines


class EquationMap(SphinxDirective):
    """Show every labelled equation with its code, its test and its figure."""

    def run(self) -> list[nodes.Node]:
        """Parse the tables in place."""
        root = Path(self.env.srcdir)
        for folder in ("src", "tests", "notebooks"):
            for path in (root / folder).rglob("*.py"):
                self.env.note_dependency(str(path))
        lines = lines_of(equations.equation_map(root), root)
        node = nodes.container(classes=["equation-map"])
        self.state.nested_parse(StringList(lines, source=self.env.docname), 0, node)
        return [node]


def add_ways_to_map(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Put below each labelled equation of a page a link to its row."""
    if app.builder.format != "html" or PAGE not in app.env.found_docs:
        return
    for block in list(doctree.findall(nodes.math_block)):
        label = block.get("label") or ""
        if label.startswith("eq-"):
            address = app.builder.get_relative_uri(docname, PAGE)
            link = nodes.reference("", "code and test", refuri=f"{address}#{anchor(label)}")
            way = nodes.paragraph("", "", link, classes=["way-to-map", "noprint"])
            block.parent.insert(block.parent.index(block) + 1, way)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("equation-map", EquationMap)
    app.connect("doctree-resolved", add_ways_to_map)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

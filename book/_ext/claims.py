"""The directive ``claims``: an experiment's claims, what our rows say, and the verdicts.

``{claims} looped.instability`` draws the table that `unrolled.results.comparison_table` computes
from the committed rows. Nothing in it is typed, so a page cannot disagree with its evidence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

if TYPE_CHECKING:
    from sphinx.application import Sphinx

HEAD = "| claim | verdict | evidence | ours |"


def table_lines(experiment: str, preset: str) -> list[str]:
    """Return the table of an experiment's claims in Markdown.

    Raises
    ------
    ValueError
        If there is no such experiment, or it has no rows of this preset.
    """
    from unrolled import results
    from unrolled.catalog import load_experiment

    rows = results.select(results.read(experiment), preset=preset)
    claims = results.comparison_table(
        experiment, load_experiment(experiment).claims, preset=preset, rows=rows
    )
    cells = (
        (c["claim"], f"*{c['verdict']}*", c["evidence"].replace("_", " "), c["ours"])
        for c in claims
    )
    return [HEAD, "|---|---|---|---|", *(f"| {' | '.join(row)} |" for row in cells)]


class Claims(SphinxDirective):
    """Show the claims that an experiment tests."""

    required_arguments = 1
    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Read the rows and parse the table in place."""
        from unrolled.results import file_of

        experiment, *preset = self.arguments
        self.env.note_dependency(str(file_of(experiment)))
        try:
            lines = table_lines(experiment, *(preset or ["laptop"]))
        except ValueError as error:
            return [self.state.document.reporter.error(str(error), line=self.lineno)]
        node = nodes.container(classes=["claims"])
        self.state.nested_parse(StringList(lines, source=self.env.docname), 0, node)
        return [node]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("claims", Claims)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

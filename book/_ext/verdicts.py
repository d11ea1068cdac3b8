"""The directive ``verdicts``: every claim of the book in one table; and ``results.json``.

``{verdicts}`` takes the kinds of verdicts to show, all by default. ``results.json``, beside the
front page, holds the same for programs.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sphinx.application import Sphinx

KINDS = ("reproduced", "trend", "not seen", "not attempted")
HEAD = ["| experiment | claim | paper | ours | scale | verdict |", "|---|---|---|---|---|---|"]


def count_lines(claims: Iterable[dict[str, Any]]) -> list[str]:
    """Return a table in Markdown: how many claims of each part have which verdict."""
    counts = Counter((claim["experiment"].partition(".")[0], claim["verdict"]) for claim in claims)
    parts = dict.fromkeys(part for part, _ in counts)
    lines = [f"| part | {' | '.join(KINDS)} |", "|---" * (len(KINDS) + 1) + "|"]
    return lines + [
        f"| {part} | {' | '.join(str(counts[part, kind]) for kind in KINDS)} |" for part in parts
    ]


def table_lines(claims: Iterable[dict[str, Any]], kinds: Iterable[str]) -> list[str]:
    """Return the table of the claims with one of these verdicts, in Markdown."""
    return HEAD + [
        f"| {claim['experiment']} | {claim['claim']} | {claim['paper_value'] or '–'} | "
        f"{claim['ours'] or '–'} | {claim['scale']} | *{claim['verdict']}* |"
        for claim in claims
        if claim["verdict"] in kinds
    ]


def kinds_of(text: str | None) -> list[str]:
    """Return the kinds of verdicts that a comma separates; all of them for None."""
    found = [kind.strip() for kind in text.split(",")] if text else list(KINDS)
    if unknown := [kind for kind in found if kind not in KINDS]:
        raise ValueError(f"verdicts {unknown[0]!r}; allowed: {', '.join(KINDS)}")
    return found


class Verdicts(SphinxDirective):
    """Show the claims of all experiments, or with ``:count:`` how many have which verdict."""

    optional_arguments = 1
    final_argument_whitespace = True
    option_spec = {"count": directives.flag}  # noqa: RUF012 - docutils reads it so

    def run(self) -> list[nodes.Node]:
        """Read all rows and parse the table in place."""
        from unrolled.catalog import all_claims
        from unrolled.results import folder

        for path in folder().glob("*.jsonl"):
            self.env.note_dependency(str(path))
        try:
            kinds = kinds_of(next(iter(self.arguments), None))
        except ValueError as error:
            return [self.state.document.reporter.error(str(error), line=self.lineno)]
        claims = all_claims()
        lines = count_lines(claims) if "count" in self.options else table_lines(claims, kinds)
        node = nodes.container(classes=["claims", "verdicts"])
        self.state.nested_parse(StringList(lines, source=self.env.docname), 0, node)
        return [node]


def write_results(app: Sphinx, exception: Exception | None) -> None:
    """Write all claims and verdicts as ``results.json``."""
    if exception or app.builder.name != "html":
        return
    from unrolled.catalog import all_claims

    text = json.dumps({"claims": all_claims()}, indent=1, ensure_ascii=False)
    Path(app.outdir, "results.json").write_text(text + "\n", encoding="utf8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive, and the file."""
    app.add_directive("verdicts", Verdicts)
    app.connect("build-finished", write_results)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

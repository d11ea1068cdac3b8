"""The directive ``plan``: what an experiment costs at a preset, counted when the page is built.

``{plan} looped.pretraining paper`` shows the table of ``python -m unrolled plan``; the options
``:cases:`` (``variant=flt; num_loops=12``) and ``:utilization:`` are those of the command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sphinx.application import Sphinx

HEAD = ["case", "runs", "parameters", "tokens", "operations", "GB fixed", "GB a row"]


def plan_lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return a plan as a table in Markdown; the last line is the sum."""
    machines = [key.partition(":")[0] for key in rows[0] if key.endswith(": hours")]
    head = [*HEAD, *(f"{name}: hours (rows at a time)" for name in machines)]
    lines = [_line(head), "|---" * len(head) + "|"]
    return lines + [
        _line([*_counts(row), *(_cost(row, name) for name in machines)]) for row in rows
    ]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _counts(row: dict[str, Any]) -> list[str]:
    sizes = [_short(row.get(key)) for key in ("parameters", "tokens", "training FLOPs")]
    bytes_ = [_plain(row.get(key)) for key in ("fixed GB", "GB per sequence")]
    return [str(row["case"]), str(row["units"]), *sizes, *bytes_]


def _cost(row: dict[str, Any], machine: str) -> str:
    hours = _plain(row[f"{machine}: hours"])
    rows = row.get(f"{machine}: micro-batch")
    return hours if rows is None else f"{hours} ({rows})".strip()


def _short(value: float | None) -> str:
    """Return a count in words.

    Examples
    --------
    >>> _short(127_107_072), _short(3.69e18), _short(None)
    ('127 M', '3.69e+18', '')
    """
    if value is None:
        return ""
    for size, name in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if size <= value < 1e15:
            return f"{value / size:.3g} {name}"
    return f"{value:.3g}"


def _plain(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


class Plan(SphinxDirective):
    """Show what a preset of an experiment costs."""

    required_arguments = 2
    option_spec = {  # noqa: RUF012 - docutils reads it so
        "cases": directives.unchanged,
        "utilization": float,
    }

    def run(self) -> list[nodes.Node]:
        """Count the costs and parse the table in place."""
        from unrolled.catalog import load_experiment
        from unrolled.plan import plan

        name, preset = self.arguments
        wanted = [part.strip().split("=") for part in self.options.get("cases", "").split(";")]
        cases = {key: values.split(",") for key, values in filter(lambda pair: pair[0], wanted)}
        try:
            experiment = load_experiment(name)
            units = experiment.units(preset, experiment.default_seeds(preset), cases or None)
            rows = plan(experiment, units, self.options.get("utilization", 0.3))
        except ValueError as error:
            return [self.state.document.reporter.error(str(error), line=self.lineno)]
        node = nodes.container(classes=["claims", "plan"])
        self.state.nested_parse(StringList(plan_lines(rows), source=self.env.docname), 0, node)
        return [node]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("plan", Plan)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

"""Cell metadata as nbgrader 0.9 reads it: version 3 of its schema.

A *solution* cell is what the student writes; a *test* cell below it is locked and carries the
points, which nbgrader gives when the cell raises nothing.
"""

from __future__ import annotations

import re
from typing import Any

import nbformat
from index import BookError

SCHEMA_VERSION = 3
POINTS = {"Predict": 1, "Derive": 2, "Implement": 3, "Extend": 4}
GRADE_ID = re.compile(r"[a-zA-Z0-9_\-]+")
FIELDS = {
    **{"schema_version": int, "grade": bool, "locked": bool, "solution": bool},
    **{"task": bool, "grade_id": str, "points": (int, float)},
}
REQUIRED = ("schema_version", "grade", "locked", "solution")


def solution_metadata(label: str) -> dict[str, Any]:
    """Return the metadata of the cell that a student fills."""
    return metadata(label, solution=True)


def check_metadata(label: str, title: str) -> dict[str, Any]:
    """Return the metadata of the cell that checks the answer; the exercise's kind sets the points.

    >>> check_metadata("ex-descent-price", "Predict: a price")["points"]
    1
    """
    points = POINTS[title.partition(":")[0]]
    return metadata(f"{label}-check", grade=True, locked=True) | {"points": points}


def metadata(grade_id: str, **true: bool) -> dict[str, Any]:
    """Return all fields; those not named are false."""
    flags = dict.fromkeys(("grade", "locked", "solution", "task"), False) | true
    return {"schema_version": SCHEMA_VERSION, "grade_id": grade_id, **flags}


def problems(notebook: nbformat.NotebookNode) -> list[str]:
    """Return what nbgrader's validator for version 3 would reject."""
    found, seen = [], set()
    for number, cell in enumerate(notebook.cells, start=1):
        if "nbgrader" not in cell.metadata:
            continue
        fields = dict(cell.metadata["nbgrader"])
        found += [f"cell {number}: {problem}" for problem in cell_problems(cell.cell_type, fields)]
        name = fields.get("grade_id")
        if name in seen:
            found.append(f"cell {number}: duplicate grade_id {name}")
        seen.add(name)
    return found


def cell_problems(cell_type: str, fields: dict[str, Any]) -> list[str]:
    """Return what is wrong with the metadata of one cell."""
    found = [f"{name} is missing" for name in REQUIRED if name not in fields]
    found += [f"{name} is unknown" for name in fields if name not in FIELDS]
    found += [
        f"{name} is of the wrong type"
        for name, kind in FIELDS.items()
        if name in fields and not is_a(fields[name], kind)
    ]
    return found or rule_problems(cell_type, fields)


def is_a(value: Any, kind: type | tuple[type, ...]) -> bool:
    """Tell whether a value has a type of JSON, where true is no number."""
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def rule_problems(cell_type: str, fields: dict[str, Any]) -> list[str]:
    """Return the rules that well-formed metadata breaks."""
    grade, solution, task = fields["grade"], fields["solution"], fields.get("task", False)
    named = grade or solution or fields["locked"]
    wrong_markdown = cell_type == "markdown" and grade != solution
    rules = {
        f"schema_version is not {SCHEMA_VERSION}": fields["schema_version"] != SCHEMA_VERSION,
        "grade_id": bool(named and not GRADE_ID.fullmatch(fields.get("grade_id", ""))),
        "points are missing": grade and "points" not in fields,
        "points are negative": fields.get("points", 0) < 0,
        "a Markdown cell is both graded and a solution, or neither": wrong_markdown and not task,
        "a task is a Markdown cell": task and cell_type != "markdown",
    }
    return [rule for rule, broken in rules.items() if broken]


def with_metadata(cell: nbformat.NotebookNode, fields: dict[str, Any]) -> nbformat.NotebookNode:
    """Add nbgrader's metadata to a cell, or raise if nbgrader would reject it."""
    if found := cell_problems(cell.cell_type, fields):
        raise BookError(f"nbgrader: {', '.join(found)}")
    cell.metadata["nbgrader"] = fields
    return cell

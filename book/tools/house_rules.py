"""The rules every notebook keeps, so that a reader finds the same things in the same places."""

from __future__ import annotations

import re

import nbformat
from index import tags_of
from myst import blocks
from parameters import NotebookError, check_reads, code_cells, declared, parse

MAX_CELL_LINES = 15
MAX_CODE_LINES = 250
MAX_SETUP_LINES = 25
LONG_CELLS_ALLOWED = ("setup", "hide-input", "hide-cell", "remove-cell")
KNOWN_TAGS = {
    *("setup", "parameters", "exercise", "hide-input", "hide-output", "hide-cell"),
    *("remove-cell", "remove-input", "remove-output", "raises-exception"),
}
MIN_EXERCISES = 5
KINDS = ("Predict", "Derive", "Implement", "Extend")
SOLUTION_CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)


def problems(notebook: nbformat.NotebookNode) -> list[str]:
    """Return every rule that a notebook breaks."""
    rules = (title_problems, cell_problems, parameter_problems, exercise_problems)
    return [problem for rule in rules for problem in rule(notebook)]


def title_problems(notebook: nbformat.NotebookNode) -> list[str]:
    """Check that the notebook opens with a label and one title, and has one set-up cell."""
    found = []
    first = blocks(notebook.cells[0].source) if notebook.cells else []
    if [block.kind for block in first[:2]] != ["target", "heading"]:
        found.append("the first cell must start with (label)= and # Title")
    setups = code_cells(notebook, "setup")
    if len(setups) != 1:
        found.append(f"{len(setups)} cells are tagged setup; there must be one")
    elif setups[0] is not code_cells(notebook)[0]:
        found.append("the set-up cell must be the first code cell")
    return found


def cell_problems(notebook: nbformat.NotebookNode) -> list[str]:
    """Check the length of cells, their tags, and that nothing was left over from a run."""
    found, total = [], 0
    for position, cell in enumerate(notebook.cells, start=1):
        if unknown := set(tags_of(cell)) - KNOWN_TAGS:
            found.append(f"cell {position}: unknown tag {', '.join(sorted(unknown))}")
        if cell.cell_type != "code":
            continue
        lines = code_lines(cell.source)
        total += lines
        if lines > cell_limit(cell):
            found.append(f"cell {position}: {lines} lines of code, at most {cell_limit(cell)}")
        if cell.get("outputs") or cell.get("execution_count"):
            found.append(f"cell {position}: has outputs")
    if total > MAX_CODE_LINES:
        found.append(f"{total} lines of code in all, at most {MAX_CODE_LINES}")
    return found


def cell_limit(cell: nbformat.NotebookNode) -> int:
    """Return how many lines a cell may have; folded cells may be longer."""
    folded = set(LONG_CELLS_ALLOWED) & set(tags_of(cell))
    return MAX_SETUP_LINES if folded else MAX_CELL_LINES


def code_lines(source: str) -> int:
    """Count the lines which are neither blank nor comments."""
    lines = (line.strip() for line in source.split("\n"))
    return sum(bool(line) and not line.startswith("#") for line in lines)


def parameter_problems(notebook: nbformat.NotebookNode) -> list[str]:
    """Check the parameters cell."""
    try:
        defaults = declared(notebook)
        check_reads(notebook, defaults)
    except NotebookError as error:
        return [str(error)]
    wanted = {"PRESET": "live", "SEED": 0}
    return [
        f"the parameters cell must set {name} = {value!r}"
        for name, value in wanted.items()
        if defaults.get(name) != value
    ]


# --- Exercises ------------------------------------------------------------------------------


def exercises(notebook: nbformat.NotebookNode) -> list[dict]:
    """Return the exercises: label, title, position of the stub, and the solution's code.

    An exercise is a Markdown cell with ``:::{exercise}``, then a code cell tagged ``exercise``,
    then a Markdown cell with ``:::{solution}`` whose first Python block takes the stub's place.
    """
    found: list[dict] = []
    for position, cell in enumerate(notebook.cells):
        if cell.cell_type == "code" and "exercise" in tags_of(cell) and found:
            found[-1].setdefault("stub", position)
        for block in blocks(cell.source) if cell.cell_type == "markdown" else []:
            directive = block.directive
            if directive and directive.name == "exercise":
                label = directive.options.get("label", "")
                found.append({"label": label, "title": directive.argument})
            elif directive and directive.name == "solution":
                note_solution(found, directive)
    return found


def note_solution(found: list[dict], directive) -> None:
    """Add the code of a solution to its exercise."""
    for exercise in found:
        if exercise["label"] == directive.argument:
            code = SOLUTION_CODE.search(directive.body)
            exercise["solution"] = code[1] if code else ""
            exercise["hidden"] = "dropdown" in directive.options.get("class", "").split()


def exercise_problems(notebook: nbformat.NotebookNode) -> list[str]:
    """Check that there are enough exercises, of all kinds, each with stub and hidden solution."""
    items = exercises(notebook)
    found = [problem for item in items for problem in one_exercise(notebook, item)]
    kinds = {item["title"].partition(":")[0] for item in items}
    if len(items) < MIN_EXERCISES:
        found.append(f"{len(items)} exercises, at least {MIN_EXERCISES}")
    if missing := [kind for kind in KINDS if kind not in kinds]:
        found.append(f'no exercise with a title that starts with "{missing[0]}:"')
    return found


def one_exercise(notebook: nbformat.NotebookNode, item: dict) -> list[str]:
    """Check one exercise."""
    name, found = f"exercise {item['label'] or item['title']!r}", []
    if not item["label"]:
        found.append(f"{name} has no :label:")
    if item["title"].partition(":")[0] not in KINDS:
        found.append(f"{name}: the title must start with one of {', '.join(KINDS)}, and a colon")
    if "stub" not in item:
        found.append(f"{name}: no code cell tagged exercise below it")
    elif not ends_with_check(notebook.cells[item["stub"]].source):
        found.append(f"{name}: the stub's last line must call a function of `checks`")
    if not item.get("solution"):
        found.append(f"{name}: no solution with a ```python block")
    elif not item["hidden"]:
        found.append(f"{name}: the solution needs :class: dropdown")
    return found


def ends_with_check(source: str) -> bool:
    """Tell whether a cell's last line is ``checks.NAME(...)``."""
    last = parse(source).body[-1:]
    return bool(last) and bool(re.match(r"checks\.\w+\(", source.strip().split("\n")[-1]))

"""The exercises of all chapters, and how to run an answer as a student does."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest
from editions import Exercise, read_exercises
from index import read_notebook
from parameters import code_cells, parse
from toc import docname_of, notebook_sources, read_toc

ROOT = Path(__file__).parents[2]
PAGES = {entry.docname for entry in read_toc(ROOT).walk()}
SOURCES = [source for source in notebook_sources(ROOT) if docname_of(source, ROOT) in PAGES]
NAMES = [docname_of(source, ROOT).removeprefix("notebooks/") for source in SOURCES]
EXERCISES = [
    pytest.param(source, exercise, id=exercise.label)
    for source in SOURCES
    for exercise in read_exercises(read_notebook(source)).values()
]
each_source = pytest.mark.parametrize("source", SOURCES, ids=NAMES)
each_exercise = pytest.mark.parametrize(("source", "exercise"), EXERCISES)


@cache
def imports(source: Path) -> dict:
    """Return what a chapter imports: all that its solutions need."""
    names: dict = {}
    for cell in code_cells(read_notebook(source)):
        for statement in parse(cell.source).body:
            if isinstance(statement, (ast.Import, ast.ImportFrom)):
                exec(compile(ast.Module([statement], []), source.name, "exec"), names)
    return names


def names_after(source: Path, answer: str) -> dict:
    """Return what is defined after the cell of an answer has run."""
    names = dict(imports(source))
    exec(answer, names)
    return names


def verdict(exercise: Exercise, names: dict):
    """Return what the checker says."""
    return eval(exercise.check, names)

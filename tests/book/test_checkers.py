"""Checkers as students meet them: no network, little work, and no shown value passes."""

from __future__ import annotations

import ast
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from answers import wanted
from editions import Exercise, solution_of
from exercise_cells import EXERCISES, ROOT, each_exercise, names_after, verdict
from index import read_notebook
from packaging.requirements import Requirement
from project import pyproject
from torch.utils._python_dispatch import TorchDispatchMode

CHECKS = ROOT / "src/unrolled/checks"
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,_]*(?:\.\d+)?(?:e-?\d+)?")
# A number that stands in an exercise and is its answer, too: one of six, by chance.
GIVEN = {"ex-descent-price": {1.0}}
FUNCTIONS = [param for param in EXERCISES if param.values[1].stub.startswith("def ")]
VALUES = [param for param in EXERCISES if param not in FUNCTIONS]
MOST_OPERATIONS = 100_000  # of PyTorch, ten microseconds each and seldom more: about a second


def with_answer(exercise: Exercise, names: dict, change: Callable[[str, Any], Any]) -> dict:
    """Return a student's names with each answer replaced."""
    return names | {name: change(name, names[name]) for name in wanted(exercise.stub)}


def constant(value: Any) -> Callable:
    return lambda *arguments, **options: value


def numbers_in(text: str) -> set[float]:
    found = (number.replace(",", "").replace("_", "") for number in NUMBER.findall(text))
    return {float(number) for number in found}


def shown_numbers(source: Path) -> set[float]:
    """Return every number that a chapter shows in its text, its code and its parameters."""
    cells = (cell for cell in read_notebook(source).cells if solution_of(cell) is None)
    return set().union(*(numbers_in(cell.source) for cell in cells))


def statement_of(source: Path, exercise: Exercise) -> str:
    cells = read_notebook(source).cells
    return next(c.source for c in cells if f":label: {exercise.label}\n" in c.source)


# --- Nothing that is shown passes -----------------------------------------------------------


def recorded(exercise: Exercise, names: dict) -> list[tuple[str, Any]]:
    """Return what the functions of a right answer return on the hidden cases."""
    seen: list[tuple[str, Any]] = []

    def spy(name: str, function: Callable) -> Callable:
        def call(*arguments: Any) -> Any:
            seen.append((name, function(*arguments)))
            return seen[-1][1]

        return call

    assert verdict(exercise, with_answer(exercise, names, spy)).passed
    return seen


def nearest(shown: set[float], results: list[Any], count: int = 20) -> list[float]:
    """Return the shown numbers that come nearest to an entry of a right result."""
    entries = [entry for result in results for entry in numbers_of(result)]
    return sorted(shown, key=lambda n: min((abs(n - e) for e in entries), default=0))[:count]


def numbers_of(result: Any) -> list[float]:
    try:
        return torch.as_tensor(result, dtype=torch.float64).flatten().tolist()
    except (TypeError, ValueError, RuntimeError):  # a model, a tuple, ...
        return []


@pytest.mark.parametrize(("source", "exercise"), FUNCTIONS)
def test_no_shown_number_and_no_single_right_result_passes(source: Path, exercise: Exercise):
    """Whoever copies a number, or one result of a right answer, fails on other hidden cases."""
    names = names_after(source, exercise.answer("instructor"))
    results = recorded(exercise, names)
    assert len(results) >= 2
    for number in nearest(shown_numbers(source), [result for _, result in results]):
        tried = with_answer(exercise, names, lambda _, __, number=number: constant(number))
        assert not verdict(exercise, tried).passed, number
    for name, result in islice(results, 12):
        assert not verdict(exercise, names | {name: constant(result)}).passed, (name, result)


@pytest.mark.parametrize(("source", "exercise"), VALUES)
def test_no_number_of_the_exercise_passes_as_its_answer(source: Path, exercise: Exercise):
    names = names_after(source, exercise.answer("instructor"))
    numbers = numbers_in(statement_of(source, exercise) + exercise.stub)
    passing = {n for n in numbers if verdict(exercise, with_answer(exercise, names, constant(n)))}
    assert passing == GIVEN.get(exercise.label, set())


# --- No network, little work ----------------------------------------------------------------


class Operations(TorchDispatchMode):
    """Counts what PyTorch is asked to compute."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


@each_exercise
def test_checker_needs_no_network_and_little_work(
    source: Path, exercise: Exercise, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    names = names_after(source, exercise.answer("instructor"))

    def refuse(*_: Any, **__: Any):
        raise AssertionError("a checker asked for the network, or for another process")

    monkeypatch.setenv("UNROLLED_OFFLINE", "1")
    monkeypatch.setenv("UNROLLED_CACHE", str(tmp_path))  # empty: a data set would be missed
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(subprocess, "Popen", refuse)
    with Operations() as work:
        assert verdict(exercise, names).passed
    assert work.count <= MOST_OPERATIONS


def modules_of(path: Path) -> Iterator[str]:
    """Yield what a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text("utf8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module.split(".")[0]


def test_checkers_import_what_the_wheel_requires():
    needed = {Requirement(line).name for line in pyproject(ROOT)["project"]["dependencies"]}
    allowed = needed | set(sys.stdlib_module_names) | {"unrolled"}
    for path in sorted(CHECKS.glob("*.py")):
        assert set(modules_of(path)) <= allowed, path.name


def test_importing_the_checkers_loads_nothing_that_fetches():
    code = (
        "import socket, sys\n"
        "def refuse(*_, **__): raise AssertionError('network')\n"
        "socket.socket.connect = refuse\n"
        "import unrolled.checks\n"
        "loaded = {'pooch', 'requests', 'huggingface_hub', 'datasets', 'transformers'}\n"
        "print(sorted(loaded & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- The tests themselves -------------------------------------------------------------------


def test_numbers_are_found_as_they_are_written():
    text = "10,000 steps, x_1, 0.5, -0.9, 1e-4, 12_000 and v2 of p. 3"
    assert numbers_in(text) == {10_000, 0.5, -0.9, 1e-4, 12_000, 3}


def test_operations_are_counted():
    with Operations() as work:
        torch.ones(2) + 1
    assert work.count >= 2

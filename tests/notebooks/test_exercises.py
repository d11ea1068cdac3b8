"""Every exercise: the untouched stub is not accepted, the hidden solution is."""

from __future__ import annotations

import ast
import linecache
import sys
import types
from functools import cache
from pathlib import Path

import matplotlib
import nbformat
import pytest
from house_rules import KINDS, MIN_EXERCISES, exercises
from index import read_notebook
from parameters import declared, parse
from toc import docname_of, notebook_sources

ROOT = Path(__file__).parents[2]
SOURCES = notebook_sources(ROOT)
EXERCISES = [
    (source, item["label"]) for source in SOURCES for item in exercises(read_notebook(source))
]


class Reader:
    """Runs a notebook's cells one after another, as a kernel does, at preset smoke."""

    def __init__(self, source: Path):
        self.notebook = read_notebook(source)
        self.module = types.ModuleType(f"notebook_{source.stem}")
        self.position = 0
        sys.modules[self.module.__name__] = self.module

    def run_before(self, stop: int) -> None:
        """Run all cells before a position which have not run yet."""
        for position in range(self.position, stop):
            cell = self.notebook.cells[position]
            if cell.cell_type == "code":
                self.run(cell.source, f"cell {position + 1}")
            if "parameters" in cell.metadata.get("tags", []):
                assert "PRESET" in declared(self.notebook)
                self.module.PRESET = "smoke"
        self.position = max(self.position, stop)

    def run(self, source: str, name: str, names: dict | None = None) -> object:
        """Run code and return the value of its last expression."""
        file = f"<{self.module.__name__} {name}>"
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        body, names = parse(source).body, self.module.__dict__ if names is None else names
        last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), file, "exec"), names)
        return eval(compile(ast.Expression(last.value), file, "eval"), names) if last else None


@cache
def outcomes(source: Path) -> dict[str, tuple[object, object]]:
    """Return for each exercise what the checker says to the stub and to the solution."""
    reader, found = Reader(source), {}
    for item in exercises(reader.notebook):
        stub = reader.notebook.cells[item["stub"]].source
        reader.run_before(item["stub"])
        names = dict(reader.module.__dict__)
        refused = reader.run(stub, f"stub of {item['label']}")
        reader.position = item["stub"] + 1
        reader.run(item["solution"], f"solution of {item['label']}", names)
        last_line = stub.strip().split("\n")[-1]
        found[item["label"]] = refused, reader.run(last_line, f"check of {item['label']}", names)
    return found


@pytest.fixture(autouse=True)
def quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Draw nothing on a screen, write nothing here, use one thread."""
    import torch

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TQDM_DISABLE", "1")
    backend, threads = matplotlib.get_backend(), torch.get_num_threads()
    matplotlib.use("Agg")
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    matplotlib.pyplot.close("all")
    matplotlib.use(backend)


@pytest.mark.parametrize("source", SOURCES, ids=[docname_of(source, ROOT) for source in SOURCES])
def test_there_are_exercises_of_every_kind(source: Path):
    found = exercises(read_notebook(source))
    assert len(found) >= MIN_EXERCISES
    assert {item["title"].partition(":")[0] for item in found} == set(KINDS)


@pytest.mark.notebooks
@pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive")
@pytest.mark.parametrize(("source", "label"), EXERCISES, ids=[label for _, label in EXERCISES])
def test_stub_fails_and_solution_passes(source: Path, label: str):
    stub, solution = outcomes(source)[label]
    assert stub.passed is False
    assert stub.message.strip()
    assert solution.passed is True, solution.message


def test_reader_runs_stub_and_solution_apart(tmp_path: Path):
    """Try the above on a notebook whose checker is part of it."""
    cells = [
        ("PRESET = 'live'", ["parameters"]),
        ("def check(x):\n    return x == 2, PRESET", ["setup"]),
        ("answer = None\ncheck(answer)", ["exercise"]),
    ]
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(text, metadata={"tags": tags}) for text, tags in cells]
    )
    for position, text in (
        (2, ":::{exercise} Predict: x\n:label: ex\nGo.\n:::"),
        (4, ":::{solution} ex\n```python\nanswer = 2\n```\n:::"),
    ):
        notebook.cells.insert(position, nbformat.v4.new_markdown_cell(text))
    import jupytext

    jupytext.write(notebook, tmp_path / "n.py", fmt="py:percent")
    assert outcomes(tmp_path / "n.py") == {"ex": ((False, "smoke"), (True, "smoke"))}

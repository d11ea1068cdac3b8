"""Executes one notebook, strictly, in a process of its own.

``python book/tools/execute.py JOB`` runs the job that a JSON file describes; :mod:`batch` starts
several. The notebook's source is executed with its MyST kept, because the page is made from the
result. Anything short of "every cell ran" is an error.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import re
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
from index import read_notebook, tags_of
from parameters import (
    NotebookError,
    check_reads,
    check_values,
    code_cells,
    declared,
    injected_source,
)

START_TIMEOUT = 180
CELL_TIMEOUT = 900
ADDRESS = re.compile(r"\bat 0x[0-9a-f]{6,}")
STYLE_ID = re.compile(r"T_[0-9a-f]{5}(?![0-9a-f])")
VOLATILE = ("papermill", "execution", "ExecuteTime", "execution_info")

# One thread each, no progress bars, no network, nothing from the user's own configuration.
ENVIRONMENT = {
    **dict.fromkeys(
        ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
    ),
    "TQDM_DISABLE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "PYTHONHASHSEED": "0",
    # tqdm would like widgets for the bars that are off here.
    "PYTHONWARNINGS": "ignore:IProgress not found",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    "JUPYTER_PREFER_ENV_PATH": "1",
    "JUPYTER_PLATFORM_DIRS": "1",
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    "SOURCE_DATE_EPOCH": "0",
}


OnCell = Callable[[int, int], None]


class CellError(NotebookError):
    """A cell raised an error; the message shows the cell and the trace."""


# --- Before ---------------------------------------------------------------------------------


def prepare(source: Path, values: dict[str, Any]) -> nbformat.NotebookNode:
    """Read a notebook, check the parameters, and put those that differ below the defaults."""
    notebook = read_notebook(source)
    defaults = declared(notebook)
    check_values(values, defaults)
    check_reads(notebook, defaults)
    changed = {name: value for name, value in values.items() if value != defaults[name]}
    if changed:
        position = notebook.cells.index(code_cells(notebook, "parameters")[0])
        injected = nbformat.v4.new_code_cell(
            injected_source(changed), metadata={"tags": ["injected-parameters"]}
        )
        notebook.cells.insert(position + 1, injected)
    return with_positions_as_ids(notebook)


def with_positions_as_ids(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Give each cell an id that is the same at every run."""
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for position, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{position}"
    return notebook


# --- The run --------------------------------------------------------------------------------


def execute(
    source: Path, values: dict[str, Any], output: Path, on_cell: OnCell | None = None
) -> None:
    """Run a notebook in an empty folder and write the result, which has every output.

    Parameters
    ----------
    source
        The ``.py`` in the percent format.
    values
        Parameters to override, by name.
    output
        Where the executed notebook goes; it appears there only when all went well. After a
        failure ``*.failed.ipynb`` beside it shows how far it came.
    on_cell
        Called with the position of each cell that starts, and the number of cells.
    """
    notebook = prepare(source, values)
    output.parent.mkdir(parents=True, exist_ok=True)
    failed = output.with_suffix(".failed.ipynb")
    failed.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="unrolled-notebook-") as folder:
        try:
            executed = run_papermill(notebook, Path(folder), on_cell)
        except NotebookError:
            save_partial(Path(folder), failed)
            raise
    check_ran(executed)
    write_atomically(output, normalise(executed))


def run_papermill(
    notebook: nbformat.NotebookNode, folder: Path, on_cell: OnCell | None
) -> nbformat.NotebookNode:
    """Run with papermill; a cell's error becomes :class:`CellError`."""
    import papermill  # late: it is slow to import, and `sync` does without it

    def on_start(cell: nbformat.NotebookNode, cell_index: int) -> None:
        on_cell(cell_index, len(notebook.cells))

    work = folder / "work"
    work.mkdir()
    logging.getLogger("papermill").setLevel(logging.ERROR)
    nbformat.write(notebook, folder / "input.ipynb")
    try:
        return papermill.execute_notebook(
            folder / "input.ipynb",
            folder / "output.ipynb",
            kernel_name="python3",
            cwd=work,
            progress_bar=False,
            start_timeout=START_TIMEOUT,
            execution_timeout=CELL_TIMEOUT,
            on_cell_start=on_start if on_cell else None,
        )
    except papermill.PapermillExecutionError as error:
        raise CellError(describe(error)) from None
    except Exception as error:  # a dead kernel, a cell that took too long, ...
        raise NotebookError(f"{type(error).__name__}: {error}") from error


def describe(error) -> str:
    """Return the cell that failed and its trace."""
    source = "\n".join(f"    {line}" for line in error.source.split("\n"))
    trace = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error.traceback))
    return f"cell In [{error.exec_count}] raised {error.ename}:\n\n{source}\n\n{trace}"


def check_ran(notebook: nbformat.NotebookNode) -> None:
    """Raise unless every code cell has run."""
    for position, cell in enumerate(notebook.cells):
        if cell.cell_type == "code" and cell.source.strip() and cell.execution_count is None:
            raise NotebookError(f"cell {position + 1} never ran:\n\n{cell.source}")


# --- After ----------------------------------------------------------------------------------


def normalise(notebook: nbformat.NotebookNode) -> str:
    """Return the notebook's file without what changes from run to run."""
    notebook = copy.deepcopy(notebook)
    for key in (*VOLATILE, "widgets", "jupytext"):
        notebook.metadata.pop(key, None)
    notebook.metadata["language_info"] = {"name": "python"}
    for cell in notebook.cells:
        for key in VOLATILE:
            cell.metadata.pop(key, None)
        if not tags_of(cell):
            cell.metadata.pop("tags", None)
        for output in cell.get("outputs", []):
            normalise_output(output)
    return nbformat.writes(with_positions_as_ids(notebook)).rstrip("\n") + "\n"


def normalise_output(output: nbformat.NotebookNode) -> None:
    """Replace memory addresses and the random ids of styled tables."""
    if "text" in output:
        output.text = ADDRESS.sub("at 0x...", output.text)
    for mime, data in output.get("data", {}).items():
        if isinstance(data, str) and mime.startswith("text/"):
            output.data[mime] = STYLE_ID.sub("T_table", ADDRESS.sub("at 0x...", data))


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that it is never seen half written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.write_text(text, "utf8")
    partial.replace(path)


def save_partial(folder: Path, target: Path) -> None:
    """Keep what a failed run has written."""
    if (folder / "output.ipynb").is_file():
        write_atomically(target, (folder / "output.ipynb").read_text("utf8"))


# --- The process ----------------------------------------------------------------------------


def kill_descendants(pid: int) -> None:
    """Kill every process below one: kernels run in sessions of their own."""
    import psutil

    try:
        children = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return
    for child in children:
        try:
            child.kill()
        except psutil.NoSuchProcess:
            continue


def die_with(parent: int) -> None:
    """End this process and its kernel as soon as the process that started it is gone."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.3)
        kill_descendants(os.getpid())
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def own_configuration(folder: Path) -> dict[str, str]:
    """Keep the user's IPython and Matplotlib settings out; let SVG figures have fixed ids."""
    matplotlibrc = folder / "matplotlibrc"
    matplotlibrc.write_text("svg.hashsalt: unrolled\n")
    return {"IPYTHONDIR": str(folder / "ipython"), "MATPLOTLIBRC": str(matplotlibrc)}


def main(job_file: str) -> int:
    """Run the job of a file; report cells, then the error if there is one, as lines of JSON."""
    job = json.loads(Path(job_file).read_text("utf8"))
    die_with(job["parent"])
    os.environ.update(ENVIRONMENT | own_configuration(Path(job_file).parent))
    channel = os.fdopen(job["channel"], "w", buffering=1)

    def on_cell(position: int, cells: int) -> None:
        channel.write(json.dumps({"cell": position + 1, "cells": cells}) + "\n")

    try:
        execute(Path(job["source"]), job["values"], Path(job["output"]), on_cell)
    except NotebookError as error:
        channel.write(json.dumps({"error": str(error)}) + "\n")
        return 1
    channel.write(json.dumps({"cpu_seconds": cpu_seconds()}) + "\n")
    return 0


def cpu_seconds() -> float:
    """Return the processor time of this process and of its kernel, which has ended."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

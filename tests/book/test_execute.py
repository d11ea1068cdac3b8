"""Execution of notebooks: strict about parameters and cells, repeatable, interruptible."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import batch
import nbformat
import psutil
import pytest
from board import State, progress_line, summary
from execute import ENVIRONMENT, check_ran, normalise, prepare, write_atomically
from index import tags_of
from jobs import Job, check_jobs, key_of, make_jobs
from parameters import NotebookError, check_reads, check_values, declared

TOOLS = Path(__file__).parents[2] / "book" / "tools"
HEAD = """\
# %% [markdown]
# (label)=
# # Title

# %% tags=["setup"]
import os

# %% tags=["parameters"]
PRESET = "live"
SEED = 0
RATE = 0.5

# %%
print(PRESET, SEED, RATE)
"""


def write_source(path: Path, *cells: str, head: str = HEAD) -> Path:
    """Write a notebook's source whose last cells are given."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([head, *(f"# %%\n{cell}\n" for cell in cells)]))
    return path


def notebook(*cells: tuple[str, list[str]]) -> nbformat.NotebookNode:
    """Return a notebook of code cells with tags."""
    made = [nbformat.v4.new_code_cell(text, metadata={"tags": tags}) for text, tags in cells]
    return nbformat.v4.new_notebook(cells=made)


# --- Parameters -----------------------------------------------------------------------------


def test_parameters_are_read_from_their_cell():
    found = declared(notebook(("A = 1\n# why\nB = -0.5\nC = ['x', None]", ["parameters"])))
    assert found == {"A": 1, "B": -0.5, "C": ["x", None]}


@pytest.mark.parametrize(
    "line", ["A = f(1)", "A: int = 1", "A = B = 1", "import os", "A, B = 1, 2"]
)
def test_parameters_are_plain_literals(line: str):
    with pytest.raises(NotebookError, match="is not NAME = literal"):
        declared(notebook((line, ["parameters"])))


@pytest.mark.parametrize("count", [0, 2])
def test_there_is_one_parameters_cell(count: int):
    with pytest.raises(NotebookError, match="there must be one"):
        declared(notebook(*[("A = 1", ["parameters"])] * count))


DEFAULTS = {"PRESET": "live", "SEED": 0, "RATE": 0.5, "FLAG": True, "LIMIT": None}


@pytest.mark.parametrize("values", [{}, {"SEED": 3}, {"RATE": 0.1, "FLAG": False}, {"LIMIT": 3}])
def test_values_of_the_right_type_pass(values: dict):
    check_values(values, DEFAULTS)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"SEEDS": 1}, "unknown parameter 'SEEDS'"),
        ({"SEED": "1"}, r"SEED is a int, not '1' \(str\)"),
        ({"SEED": True}, "SEED is a int, not True"),
        ({"SEED": 1.0}, "SEED is a int"),
        ({"RATE": 1}, "RATE is a float"),
        ({"FLAG": 1}, "FLAG is a bool"),
        ({"PRESET": None}, "PRESET is a str"),
    ],
)
def test_other_values_are_refused(values: dict, message: str):
    with pytest.raises(NotebookError, match=message):
        check_values(values, DEFAULTS)


@pytest.mark.parametrize(
    "code", ["A", "f(A)", "print(f'{A}')", "def f():\n    return A", "x[A:]", "%pip x\nA"]
)
def test_parameter_that_is_read_passes(code: str):
    check_reads(notebook(("A = 1", ["parameters"]), (code, [])), ["A"])


@pytest.mark.parametrize("code", ["1", "'A'", "x.A", "f(A=1)", "# A", "def f(x):\n    A = x"])
def test_parameter_that_is_never_read_is_an_error(code: str):
    with pytest.raises(NotebookError, match="A is declared, but no cell reads it"):
        check_reads(notebook(("A = 1", ["parameters"]), (code, [])), ["A"])


@pytest.mark.parametrize("code", ["A = 2", "A += 1", "for A in x:\n    pass", "if x:\n    A = 3"])
def test_parameter_that_is_overwritten_is_an_error(code: str):
    with pytest.raises(NotebookError, match="A is assigned again"):
        check_reads(notebook(("A = 1", ["parameters"]), (f"{code}\nprint(A)", [])), ["A"])


def test_local_names_do_not_overwrite_a_parameter():
    code = "def f(x):\n    A = x\n    return A\n[A for A in range(3)]"
    check_reads(notebook(("A = 1", ["parameters"]), (code, [])), ["A"])


# --- Before and after a run -----------------------------------------------------------------


def test_changed_parameters_get_a_cell_of_their_own(tmp_path: Path):
    source = write_source(tmp_path / "n.py")
    prepared = prepare(source, {"PRESET": "smoke", "SEED": 0})
    position = next(i for i, c in enumerate(prepared.cells) if "parameters" in tags_of(c))
    assert tags_of(prepared.cells[position + 1]) == ["injected-parameters"]
    assert prepared.cells[position + 1].source == '# This page was run with:\nPRESET = "smoke"'


def test_defaults_get_no_extra_cell(tmp_path: Path):
    prepared = prepare(write_source(tmp_path / "n.py"), {"PRESET": "live"})
    assert not any("injected-parameters" in tags_of(cell) for cell in prepared.cells)


def test_markdown_keeps_its_myst(mini: Path):
    prepared = prepare(mini / "notebooks/part/everything.py", {})
    assert "$$ (eq-everything)" in prepared.cells[0].source


def test_cell_without_execution_count_is_an_error():
    ran = notebook(("1", []), ("2", []))
    ran.cells[0].execution_count = 1
    with pytest.raises(NotebookError, match="cell 2 never ran"):
        check_ran(ran)
    ran.cells[1].execution_count = 2
    check_ran(ran)


def test_normalised_notebook_has_nothing_of_the_moment():
    def executed(stamp: str, address: str, style: str) -> nbformat.NotebookNode:
        made = notebook(("f", ["x"]))
        made.cells[0].metadata["execution"] = {"iopub.status.busy": stamp}
        made.cells[0].metadata["papermill"] = {"start_time": stamp}
        made.metadata["papermill"] = {"duration": stamp}
        made.cells[0].outputs = [
            nbformat.v4.new_output("stream", text=f"<f at {address}>"),
            nbformat.v4.new_output(
                "display_data", {"text/html": f"<style>#T_{style}_row0</style>"}
            ),
        ]
        return made

    one, two = executed("1", "0x7f00aa11bb", "0a1b2"), executed("2", "0x7f99cc22dd", "f9e8d")
    assert normalise(one) == normalise(two)
    assert json.loads(normalise(one))["cells"][0]["outputs"][0]["text"] == ["<f at 0x...>"]


def test_file_is_replaced_whole(tmp_path: Path):
    target = tmp_path / "folder" / "file"
    write_atomically(target, "one")
    write_atomically(target, "two")
    assert target.read_text() == "two"
    assert list(target.parent.iterdir()) == [target]


# --- Keys -----------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a folder with a package, rows, a lock and one notebook."""
    root = tmp_path / "with a space"
    for name in ("src/unrolled/a.py", "src/unrolled/data.xz", "book/results/r.jsonl"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("1\n")
    (root / "requirements.lock").write_text("x==1\n")
    (root / "_toc.yml").write_text("format: jb-book\nroot: book/index\nchapters: []\n")
    write_source(root / "notebooks/part/n.py")
    return root


def one_job(root: Path, **values: object) -> Job:
    return make_jobs([root / "notebooks/part/n.py"], values, root / "out", root)[0]


@pytest.mark.parametrize(
    "name",
    [
        *("src/unrolled/a.py", "src/unrolled/data.xz", "src/unrolled/new.py"),
        *("book/results/r.jsonl", "requirements.lock", "notebooks/part/n.py"),
    ],
)
def test_key_follows_content(project: Path, name: str):
    before = key_of(one_job(project))
    assert key_of(one_job(project)) == before
    with (project / name).open("a") as file:
        file.write("# more\n")
    assert key_of(one_job(project)) != before


def test_key_follows_parameters_and_nothing_else(project: Path):
    before = key_of(one_job(project))
    assert key_of(one_job(project, SEED=1)) != before
    (project / "README.md").write_text("x")
    (project / "src/unrolled/__pycache__").mkdir()
    (project / "src/unrolled/__pycache__/a.pyc").write_text("x")
    assert key_of(one_job(project)) == before


def test_jobs_are_checked_before_any_kernel_starts(project: Path):
    with pytest.raises(NotebookError, match="notebooks/part/n: unknown parameter 'STEPS'"):
        check_jobs([one_job(project, STEPS=1)])


# --- Reports --------------------------------------------------------------------------------


def ended(name: str, seconds: float, status: str = "done") -> State:
    job = Job(Path(f"/r/notebooks/{name}.py"), {}, Path("/r/out"), Path("/r"))
    return State(job, status, cell=2, cells=5, seconds=seconds, cpu_seconds=40)


def test_summary_names_the_slowest_and_warns_beyond_the_budget():
    text = summary([ended("p/a", 3), ended("p/b", 91), ended("p/c", 0, "fresh")])
    lines = text.split("\n")
    assert lines[1].split() == ["91", "s", "40", "s", "notebooks/p/b"]
    assert "p/c" not in text
    assert lines[-1] == "warning: notebooks/p/b took 91 s; the budget is 90 s"


def test_progress_line_shows_what_runs():
    running = ended("p/a", 0, "running")
    running.started = time.monotonic()
    assert progress_line([running, ended("p/b", 1)]) == "1 of 2 done | p/a cell 2/5 (0 s)"


def test_installed_copy_keeps_its_time_stamp(project: Path):
    job = one_job(project)
    write_atomically(job.output, "text")
    target = project / "executed" / "notebooks" / "part" / "n.ipynb"
    batch.install([State(job, "done")], project / "executed")
    os.utime(target, (1, 1))
    batch.install([State(job, "fresh")], project / "executed")
    assert target.stat().st_mtime == 1
    batch.install([State(job, "failed")], project / "executed")
    assert not target.exists()


# --- Kernels --------------------------------------------------------------------------------


def run(
    root: Path, *names: str, workers: int = 2, **values: object
) -> tuple[dict[str, State], str]:
    """Run notebooks; return their states by name, and what was written."""
    sources = [root / f"notebooks/part/{name}.py" for name in names]
    log = io.StringIO()
    states = batch.Batch(make_jobs(sources, values, root / "out", root), workers, log).run()
    return {state.job.source.stem: state for state in states}, log.getvalue()


@pytest.mark.notebooks
def test_run(project: Path):
    folder = project / "notebooks/part"
    write_source(
        folder / "good.py",
        "import json\nprint(json.dumps([os.getcwd(), os.listdir(), dict(os.environ)]))",
        "open('file', 'w').write('a notebook may write where it runs')",
    )
    write_source(folder / "bad.py", "x = 1 / 0", "print('not reached')")
    write_source(folder / "early.py", "import sys\nsys.exit(0)", "print('not reached')")
    states, log = run(project, "good", "bad", "early", PRESET="smoke")
    assert {name: state.status for name, state in states.items()} == {
        "good": "done",
        "bad": "failed",
        "early": "failed",
    }
    assert "x = 1 / 0" in log
    assert "ZeroDivisionError" in log
    assert "never ran" in states["early"].error
    assert states["bad"].job.output.with_suffix(".failed.ipynb").is_file()
    assert not states["bad"].job.output.exists()
    assert states["good"].cpu_seconds > 0
    check_good(project, nbformat.read(states["good"].job.output, 4))


def check_good(root: Path, done: nbformat.NotebookNode) -> None:
    """Check where and how the good notebook ran, and that its page says so."""
    code = [cell for cell in done.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)
    assert code[3].outputs[0].text == "smoke 0 0.5\n"
    folder, files, environment = json.loads(code[4].outputs[0].text)
    assert files == []
    assert not Path(folder).is_relative_to(root)
    assert not Path(folder).exists()
    assert {name: environment.get(name) for name in ENVIRONMENT} == ENVIRONMENT


@pytest.mark.notebooks
def test_second_run_does_nothing_and_a_forced_one_gives_the_same_file(project: Path):
    write_source(project / "notebooks/part/n.py", "object()", "{3: [1]}")
    states, _ = run(project, "n")
    output = states["n"].job.output
    first = output.read_bytes()
    states, _ = run(project, "n")
    assert states["n"].status == "fresh"
    states["n"].job.key_file.unlink()
    states, _ = run(project, "n")
    assert states["n"].status == "done"
    assert output.read_bytes() == first


RUN = "import sys; sys.path.insert(0, sys.argv[1]); import notebooks, pathlib; " + (
    "sys.exit(notebooks.main(['run'], pathlib.Path(sys.argv[2])))"
)


def heed_interrupts() -> None:
    """Let Ctrl-C through in a new process, also where the tests run in the background."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(root: Path) -> subprocess.Popen:
    """Start the command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", RUN, str(TOOLS), str(root)],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
    )


def wait_for(condition, seconds: float = 60.0):
    """Return the first true value."""
    for _ in range(int(seconds * 20)):
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError("it did not happen")


@pytest.fixture
def slow_project(project: Path) -> Path:
    """Return a project whose second notebook stays until the file `go` is there."""
    code = f"""\
import pathlib, subprocess, time
root = pathlib.Path({str(project)!r})
child = subprocess.Popen(["sleep", "600"]) if not (root / "go").exists() else None
pid = root / "pid.new"
pid.write_text(f"{{os.getpid()}} {{child.pid if child else 0}}")
pid.rename(root / "pid")
while not (root / "go").exists():
    time.sleep(0.1)"""
    write_source(project / "notebooks/part/z_slow.py", code)
    return project


def pids(root: Path) -> list[int]:
    file = root / "pid"
    return [int(word) for word in file.read_text().split()] if file.is_file() else []


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def stopped(root: Path, sign: signal.Signals) -> subprocess.Popen:
    """Start a run, send a signal while the second notebook runs, and check that it is gone."""
    process = start(root)
    kernel, child = wait_for(lambda: pids(root))
    wait_for((root / batch.RUNS / "live/notebooks/part/n.key").is_file)
    process.send_signal(sign)
    process.wait(timeout=30)
    wait_for(lambda: gone(kernel) and gone(child), seconds=20)
    return process


@pytest.mark.notebooks
def test_interrupted_run_goes_on_later(slow_project: Path):
    process = stopped(slow_project, signal.SIGINT)
    assert process.returncode == batch.INTERRUPTED
    assert "Finished notebooks are kept" in process.stdout.read()
    (slow_project / "go").touch()
    out, _ = start(slow_project).communicate(timeout=100)
    assert "notebooks/part/n: unchanged" in out
    assert "notebooks/part/z_slow: ran in" in out
    executed = slow_project / "_build/executed/notebooks/part"
    assert sorted(path.name for path in executed.iterdir()) == ["n.ipynb", "z_slow.ipynb"]


@pytest.mark.notebooks
@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGKILL])
def test_ended_run_leaves_no_kernel(slow_project: Path, sign: signal.Signals):
    stopped(slow_project, sign)

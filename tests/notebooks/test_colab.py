"""Every committed copy runs as on Colab: from an empty folder, with the package from its wheel.

Nothing is downloaded. A fresh environment sees the installed libraries, but not this checkout;
`pip` in it only writes down what it is asked to install. A process of this environment imports the
libraries once, and runs each copy in a fork of its own, which imports the package.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import nbformat
import pytest
from execute import ENVIRONMENT, prepare
from parameters import code_cells, injected_source
from project import project_urls
from toc import docname_of, notebook_sources

ROOT = Path(__file__).parents[2]
SOURCES = notebook_sources(ROOT)
INLINE = "module://matplotlib_inline.backend_inline"  # as a kernel draws
pytestmark = [pytest.mark.notebooks, pytest.mark.slow]

FAKE_PIP = """\
import json, pathlib, sys
with pathlib.Path(sys.prefix, "pip.jsonl").open("a") as log:
    log.write(json.dumps(sys.argv[1:]) + "\\n")
"""
RUN = """\
import os, sys, traceback
import nbformat
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config
import accelerate, matplotlib.pyplot, pandas, scipy.stats, torch

torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))])  # imports what every copy would import
assert not any(name.partition(".")[0] == "unrolled" for name in sys.modules)
answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)


def run(folder):
    os.environ["HOME"] = folder
    os.chdir(os.path.join(folder, "content"))
    notebook = nbformat.read(os.path.join(folder, "given.ipynb"), 4)
    shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    for position, cell in enumerate(notebook.cells):
        if cell.cell_type == "code":
            with capture_output() as seen:
                result = shell.run_cell(cell.source)
            result.raise_error()
            cell.execution_count = position + 1
            cell.outputs = [nbformat.v4.new_output("stream", text=seen.stdout)]
    nbformat.write(notebook, os.path.join(folder, "done.ipynb"))


for line in sys.stdin:
    child, folder = os.fork(), line.strip()
    if child == 0:
        try:
            run(folder)
        except BaseException:
            with open(os.path.join(folder, "error"), "w") as file:
                traceback.print_exc(file=file)
            os._exit(1)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=answers)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel with what is installed here."""
    pytest.importorskip("hatchling", reason="hatchling builds the wheel; it is not installed")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return next(folder.glob("unrolled-*.whl"))


@pytest.fixture(scope="module")
def colab(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an environment like Colab's, and return its folder."""
    folder = tmp_path_factory.mktemp("colab")
    venv.create(folder, with_pip=False)
    site = next(folder.glob("lib/python*/site-packages"))
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*install, "--target", str(site), str(wheel)], check=True)
    # A folder named in a .pth file is searched, but .pth files in it (such as that of the
    # editable install of this checkout) are not read.
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site / "libraries.pth").write_text("\n".join(sorted(paths)) + "\n")
    for package in ("google/colab", "pip"):
        (site / package).mkdir(parents=True)
        (site / package / "__init__.py").touch()
    (site / "sitecustomize.py").write_text("import google.colab  # as in Colab's kernels\n")
    (site / "pip/__main__.py").write_text(FAKE_PIP)
    return folder


@pytest.fixture(scope="module")
def runner(colab: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen]:
    """Start the process that runs notebooks in the environment, at home in a folder of its own."""
    home = tmp_path_factory.mktemp("home")
    own = {"HOME": str(home), "PYTHONPATH": "", "MPLBACKEND": INLINE}
    with subprocess.Popen(
        [str(colab / "bin/python"), "-c", RUN],
        cwd=home,
        env=os.environ | ENVIRONMENT | own,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        process.kill()


def with_preset_smoke(path: Path) -> nbformat.NotebookNode:
    """Return a copy with the smallest preset, which tells at its end where the package is."""
    notebook = nbformat.read(path, 4)
    position = notebook.cells.index(code_cells(notebook, "parameters")[0])
    preset = nbformat.v4.new_code_cell(injected_source({"PRESET": "smoke"}))
    notebook.cells.insert(position + 1, preset)
    where = "import unrolled\nprint(unrolled.__file__)"
    notebook.cells.append(nbformat.v4.new_code_cell(where))
    return notebook


def run_like_colab(notebook: nbformat.NotebookNode, runner: subprocess.Popen, folder: Path):
    """Execute a notebook in the environment, in an empty folder."""
    (folder / "content").mkdir()
    nbformat.write(notebook, folder / "given.ipynb")
    print(folder, file=runner.stdin, flush=True)
    ended = select.select([runner.stdout], [], [], 280)[0] and runner.stdout.readline().strip()
    error = folder / "error"
    assert ended == "0", error.read_text()[-3000:] if error.exists() else f"no answer: {ended}"
    return nbformat.read(folder / "done.ipynb", 4)


@pytest.mark.parametrize("source", SOURCES, ids=[docname_of(source, ROOT) for source in SOURCES])
def test_copy_runs_from_an_empty_folder(
    source: Path, colab: Path, runner: subprocess.Popen, tmp_path: Path
):
    (colab / "pip.jsonl").unlink(missing_ok=True)
    done = run_like_colab(with_preset_smoke(source.with_suffix(".ipynb")), runner, tmp_path)
    cells = code_cells(done)
    assert all(cell.execution_count for cell in cells)
    assert Path(cells[-1].outputs[0].text.strip()).is_relative_to(colab)
    assert "unrolled " in "".join(out.get("text", "") for out in cells[0].outputs)
    check_installs((colab / "pip.jsonl").read_text())


def check_installs(log: str) -> None:
    """Check that the package came alone, and that torch and numpy stayed as they are."""
    package, others = (json.loads(line) for line in log.splitlines())
    assert package[0] == others[0] == "install"
    assert "--no-deps" in package
    assert package[-1] == f"unrolled @ git+{project_urls(ROOT)['repository']}"
    assert f"torch=={version('torch')}" in others
    assert f"numpy=={version('numpy')}" in others


@pytest.mark.parametrize("source", SOURCES, ids=[docname_of(source, ROOT) for source in SOURCES])
def test_copy_has_the_code_that_the_book_runs(source: Path):
    ours = [cell.source for cell in code_cells(prepare(source, {}))]
    copy = nbformat.read(source.with_suffix(".ipynb"), 4)
    assert [cell.source for cell in code_cells(copy)][1:] == ours

"""Executes many notebooks: some at a time, each only when something it depends on has changed.

The executed notebooks of a preset are kept under ``_build/runs/<preset>/`` with the key they were
made from, and those of the latest run are put under ``_build/executed/``, where the book takes
them from. What is finished stays when a run is interrupted.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TextIO

from execute import ENVIRONMENT, kill_descendants, write_atomically
from index import read_notebook
from parameters import NotebookError, check_values, declared
from project import ROOT
from toc import docname_of

EXECUTED = "_build/executed"
RUNS = "_build/runs"
SLOW_SECONDS = 90
TOOLS = Path(__file__).resolve().parent
INTERRUPTED = 130


@dataclass(frozen=True)
class Job:
    """A notebook to run, with the parameters to override."""

    source: Path
    values: dict[str, Any]
    output: Path
    root: Path = ROOT

    @property
    def docname(self) -> str:
        """The name of the notebook's page."""
        return docname_of(self.source, self.root)

    @property
    def key_file(self) -> Path:
        """Where the key of the finished run is kept."""
        return self.output.with_suffix(".key")


@dataclass
class State:
    """How far a job is."""

    job: Job
    status: str = "waiting"  # then running, and in the end fresh, done, failed or stopped
    cell: int = 0
    cells: int = 0
    started: float = 0.0
    seconds: float = 0.0
    error: str = ""


# --- What a run depends on ------------------------------------------------------------------


def key_of(job: Job) -> str:
    """Return a hash of all that decides what a notebook prints."""
    facts = [job.source.read_text("utf8"), json.dumps(job.values, sort_keys=True, default=repr)]
    return hashlib.sha256("\n".join([*facts, surroundings(job.root)]).encode()).hexdigest()


def surroundings(root: Path) -> str:
    """Return a hash of the package with its data, the results, the tools and the environment."""
    digest = hashlib.sha256()
    for path in dependencies(root):
        digest.update(f"{path.relative_to(root)}\n".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    digest.update(json.dumps(environment()).encode())
    return digest.hexdigest()


def dependencies(root: Path) -> Iterator[Path]:
    """Yield every file that a notebook's output may depend on."""
    for folder in ("src/unrolled", "book/results"):
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path
    names = ("requirements.lock", "book/tools/execute.py", "book/tools/parameters.py")
    yield from filter(Path.is_file, (root / name for name in names))


def environment() -> dict[str, str]:
    """Return the versions that change outputs."""
    facts = {"python": sys.version.split()[0]}
    for name in ("torch", "numpy", "matplotlib", "pandas", "papermill", "ipykernel", "unrolled"):
        with contextlib.suppress(PackageNotFoundError):
            facts[name] = version(name)
    return facts


def is_fresh(job: Job, key: str) -> bool:
    """Tell whether a finished run of the same content is there."""
    return job.output.is_file() and job.key_file.is_file() and job.key_file.read_text() == key


# --- Running --------------------------------------------------------------------------------


def make_jobs(
    sources: Iterable[Path], values: dict[str, Any], folder: Path, root: Path = ROOT
) -> list[Job]:
    """Return the jobs; their outputs lie in a folder that mirrors the notebooks'."""
    return [
        Job(source, values, folder / f"{docname_of(source, root)}.ipynb", root)
        for source in sources
    ]


def check_jobs(jobs: list[Job]) -> None:
    """Raise before any kernel starts if a notebook lacks a parameter or has another type for it."""
    for job in jobs:
        try:
            check_values(job.values, declared(read_notebook(job.source)))
        except NotebookError as error:
            raise NotebookError(f"{job.docname}: {error}") from None


class Batch:
    """Runs jobs in worker processes and reports on them."""

    def __init__(self, jobs: list[Job], workers: int = 2, log: TextIO | None = None):
        self.states = [State(job) for job in jobs]
        self.workers = workers
        self.log = log or sys.stdout
        self.processes: set[subprocess.Popen] = set()
        self.lock = threading.Lock()
        self.stopping = False
        self.board = Board(self.log)

    def run(self) -> list[State]:
        """Run all jobs; after Ctrl-C or SIGTERM nothing is left running."""
        with ThreadPoolExecutor(self.workers) as pool, terminated_as_interrupt():
            futures = [pool.submit(self.run_job, state) for state in self.states]
            try:
                self.watch(futures)
            except KeyboardInterrupt:
                self.stop()
                raise
            finally:
                for future in futures:
                    future.cancel()
                self.board.clear()
        return self.states

    def watch(self, futures: list[Future]) -> None:
        """Show progress until all futures are done; an error in the tools themselves surfaces."""
        waiting = set(futures)
        while waiting:
            done, waiting = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
            for future in done:
                future.result()
            self.board.show(self.states)

    def run_job(self, state: State) -> None:
        """Run one job unless it is fresh."""
        key = key_of(state.job)
        if is_fresh(state.job, key):
            state.status = "fresh"
        else:
            self.start(state)
            if state.status == "done":
                write_atomically(state.job.key_file, key)
        if state.status != "stopped":
            self.board.report(state)

    def start(self, state: State) -> None:
        """Run one job in a worker process."""
        job = state.job
        for path in (job.key_file, job.output):  # whatever is there is out of date
            path.unlink(missing_ok=True)
        state.status, state.started = "running", time.monotonic()
        with tempfile.TemporaryDirectory(prefix="unrolled-job-") as folder:
            code, stderr = self.follow(state, Path(folder))
        state.seconds = time.monotonic() - state.started
        if self.stopping:
            state.status = "stopped"
        elif code == 0 and job.output.is_file():
            state.status = "done"
        else:
            state.status = "failed"
            state.error = state.error or f"the worker ended with status {code}\n{stderr}"

    def follow(self, state: State, folder: Path) -> tuple[int, str]:
        """Start the worker, read its reports, and return its exit status and what it printed."""
        receive, send = os.pipe()
        job_file = folder / "job.json"
        job = {"source": str(state.job.source), "output": str(state.job.output)}
        job_file.write_text(json.dumps(job | {"values": state.job.values, "channel": send}))
        with (folder / "stderr").open("w+") as stderr, os.fdopen(receive) as channel:
            process = self.spawn(
                [sys.executable, str(TOOLS / "execute.py"), job_file], send, stderr
            )
            os.close(send)
            for line in channel if process else ():
                self.note(state, json.loads(line))
            code = process.wait() if process else INTERRUPTED
            self.processes.discard(process)
            stderr.seek(0)
            return code, stderr.read()[-4000:]

    def spawn(self, command: list, send: int, stderr: TextIO) -> subprocess.Popen | None:
        """Start a process that Ctrl-C at the terminal does not reach, unless we are stopping."""
        with self.lock:
            if self.stopping:
                return None
            process = subprocess.Popen(
                command,
                pass_fds=(send,),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                env=os.environ | ENVIRONMENT,
                start_new_session=True,
            )
            self.processes.add(process)
            return process

    @staticmethod
    def note(state: State, report: dict) -> None:
        """Take in what a worker reports."""
        state.cells = report.get("cells", state.cells)
        state.cell = report.get("cell", state.cell)
        state.error = report.get("error", state.error)

    def stop(self) -> None:
        """Kill the workers with their kernels."""
        with self.lock:
            self.stopping = True
            for process in list(self.processes):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGSTOP)  # so that it starts no kernel meanwhile
                kill_descendants(process.pid)
                process.kill()


@contextlib.contextmanager
def terminated_as_interrupt() -> Iterator[None]:
    """Let SIGTERM end a run as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# --- Reporting ------------------------------------------------------------------------------


@dataclass
class Board:
    """Writes a line for each job that ends, and on a terminal one line about those that run."""

    log: TextIO
    shown: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def report(self, state: State) -> None:
        """Say how a job ended."""
        words = {
            "fresh": "unchanged",
            "done": f"ran in {state.seconds:.0f} s",
            "failed": f"FAILED after {state.seconds:.0f} s",
        }
        with self.lock:
            self.erase()
            print(f"  {state.job.docname}: {words[state.status]}", file=self.log)
            if state.error:
                print(f"\n{state.job.docname}: {state.error}\n", file=self.log)
            self.log.flush()

    def show(self, states: list[State]) -> None:
        """Rewrite the line about the jobs that run."""
        if not self.log.isatty():
            return
        with self.lock:
            self.erase()
            self.shown = progress_line(states)[: shutil.get_terminal_size().columns - 1]
            self.log.write(self.shown)
            self.log.flush()

    def clear(self) -> None:
        """Remove the line."""
        with self.lock:
            self.erase()

    def erase(self) -> None:
        """Remove the line; the lock is held."""
        if self.shown:
            self.log.write("\r" + " " * len(self.shown) + "\r")
            self.shown = ""


def progress_line(states: list[State]) -> str:
    """Return "2 of 5 done | looped/equations cell 5/31 (12 s) | ...".

    >>> progress_line([])
    '0 of 0 done'
    """
    ended = sum(state.status in ("fresh", "done", "failed") for state in states)
    parts = [f"{ended} of {len(states)} done"]
    for state in states:
        if state.status == "running":
            name = state.job.docname.removeprefix("notebooks/")
            seconds = time.monotonic() - state.started
            parts.append(f"{name} cell {state.cell}/{state.cells} ({seconds:.0f} s)")
    return " | ".join(parts)


def summary(states: list[State]) -> str:
    """Return the slowest notebooks, with a warning for those beyond the budget."""
    ran = sorted((s for s in states if s.status == "done"), key=lambda s: -s.seconds)
    lines = [f"  {s.seconds:5.0f} s  {s.job.docname}" for s in ran[:5]]
    if lines:
        lines.insert(0, "Slowest:")
    for state in ran:
        if state.seconds > SLOW_SECONDS:
            lines.append(
                f"warning: {state.job.docname} took {state.seconds:.0f} s; "
                f"the budget is {SLOW_SECONDS} s"
            )
    return "\n".join(lines)


# --- Where the book takes them from ---------------------------------------------------------


def install(states: list[State], folder: Path) -> None:
    """Put finished notebooks where the book looks; what has not changed keeps its time stamp."""
    for state in states:
        target = folder / f"{state.job.docname}.ipynb"
        if state.status in ("done", "fresh"):
            text = state.job.output.read_text("utf8")
            if not target.is_file() or target.read_text("utf8") != text:
                write_atomically(target, text)
        else:
            target.unlink(missing_ok=True)

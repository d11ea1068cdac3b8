"""Executes many notebooks: some at a time, each only when something it depends on has changed.

The executed notebooks of a preset are kept under ``_build/runs/<preset>/`` with the key they were
made from, and those of the latest run are put under ``_build/executed/``, where the book takes
them from (or in another folder, for a book that is built elsewhere). What is finished stays when
a run is interrupted.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, TextIO

from board import Board, State
from execute import ENVIRONMENT, kill_descendants, write_atomically
from jobs import TOOLS, Job, is_fresh, key_of

RUNS = "_build/runs"
INTERRUPTED = 130


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
        self.board.announce(state)
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
        job |= {"values": state.job.values, "channel": send, "parent": os.getpid()}
        job_file.write_text(json.dumps(job))
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
        state.cpu_seconds = report.get("cpu_seconds", state.cpu_seconds)

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

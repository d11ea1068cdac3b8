"""Runner: the units of an experiment in parallel processes, one row written as each is done.

Only the parent writes. A worker that loses its parent ends itself, so a run that was killed
leaves no process behind that could measure a unit a second time.
"""

from __future__ import annotations

import functools
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from unrolled.catalog import load_experiment
from unrolled.execution import PREEMPTED, Execution, fits_run_with
from unrolled.experiment import ONE_THREAD, Experiment, Report, Unit
from unrolled.progress import ProgressLine
from unrolled.provenance import commit
from unrolled.results import Row

__all__ = ["Failure", "Stopped", "measured", "run_here", "run_in_processes", "stop_on_signals"]

# Seconds that a worker has to end: at once, or after a step and a checkpoint. A cluster that asks
# to stop gives about half a minute; a longer wait is cut off by it, and costs nothing else.
ENDING, SAVING = 3, 300
REASONS = {
    -9: "killed, perhaps for want of memory",
    PREEMPTED: "asked to stop; its checkpoint is kept, and the same command goes on",
}
CONTEXT = multiprocessing.get_context("spawn")  # a forked torch may hang in its thread pool


@dataclass(frozen=True)
class Failure:
    """A unit that gave no row, and why."""

    unit: Unit
    error: str


class Stopped(BaseException):
    """The run was asked to stop by a signal; what is finished is kept."""

    def __init__(self, number: int):
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.number = number


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Turn Ctrl-C and SIGTERM into `Stopped` inside."""

    def stop(number: int, frame: Any) -> None:
        raise Stopped(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def measured(
    experiment: Experiment, unit: Unit, report: Report, execution: Execution | None
) -> Row:
    """Measure a unit as the machine wants it, with checkpoints in a folder of its own.

    Raises
    ------
    Preempted
        If there are checkpoints and SIGTERM came in a training.
    """
    if execution is not None:
        execution = execution.of_unit(experiment.name, unit.config_hash, unit.seed)
        if execution.checkpoint_folder is not None:
            logging.basicConfig(level=logging.INFO, format="%(message)s")
    with fits_run_with(execution):
        return experiment.measure_unit(unit, report)


# --- in this process --------------------------------------------------------------------------


def run_here(
    experiment: Experiment,
    units: Sequence[Unit],
    keep: Callable[[Row], object],
    progress: ProgressLine,
    execution: Execution | None = None,
) -> list[Failure]:
    """Measure the units one after the other in this process.

    This is the way under ``accelerate launch``, where the processes share each unit.
    """
    failures = []
    for i, unit in enumerate(units):
        try:
            keep(measured(experiment, unit, functools.partial(progress.report, i), execution))
        except Exception:
            failures.append(_failed(unit, traceback.format_exc(), progress))
        progress.finish(i, unit.label)
    return failures


def _failed(unit: Unit, error: str, progress: ProgressLine) -> Failure:
    progress.write(f"FAILED {unit.label}\n{error}")
    return Failure(unit, error)


# --- in other processes -----------------------------------------------------------------------


class Worker:
    """A process that measures one unit at a time."""

    def __init__(self, reference: str, execution: Execution | None):
        self.pipe, self.there = CONTEXT.Pipe()
        arguments = (self.there, reference, execution)
        self.process = CONTEXT.Process(target=_work, args=arguments)
        self.index: int | None = None
        keeps = execution is not None and execution.checkpoint_folder is not None
        self.patience = SAVING if keeps else ENDING

    def start(self) -> None:
        """Start the process."""
        self.process.start()
        self.there.close()  # so that the end of the process ends the pipe

    def give(self, index: int, unit: Unit) -> None:
        """Send a unit to measure."""
        self.index = index
        with suppress(ConnectionError):  # a dead process is noticed by `receive`
            self.pipe.send(unit)

    def receive(self) -> tuple[str, Any]:
        """Return the next message; the end of the process is a message too."""
        try:
            return self.pipe.recv()
        except (EOFError, ConnectionError):
            self.process.join()
            code = self.process.exitcode
            reason = REASONS.get(code, "see above")
            return "dead", f"the worker process ended with exit code {code} ({reason})"

    def ask_to_end(self) -> None:
        """Tell the process to end, in the midst of its unit if it has one."""
        if self.index is None:
            with suppress(ConnectionError):
                self.pipe.send(None)
        elif self.process.pid is not None:
            self.process.terminate()

    def end(self) -> None:
        """Wait a moment for the process to end, then end it."""
        if self.process.pid is not None:
            self.process.join(self.patience)
            self.process.kill()
            self.process.join()
        self.pipe.close()


def run_in_processes(
    reference: str,
    units: Sequence[Unit],
    keep: Callable[[Row], object],
    progress: ProgressLine,
    jobs: int,
    execution: Execution | None = None,
) -> list[Failure]:
    """Measure the units in ``jobs`` processes; each row goes to ``keep`` as it is done.

    Parameters
    ----------
    reference
        How `unrolled.catalog.load_experiment` finds the experiment.
    units
        All of one preset.
    keep
        Called in this process with each finished row.
    progress
        Told how far each unit is.
    jobs
        Number of processes, at least 1; there are never more than units.
    execution
        Where the checkpoints of the units go, if there are to be any.

    Returns
    -------
    list of Failure
        The units that raised an error or whose process died; the others went on.
    """
    if jobs < 1:
        raise ValueError(f"jobs = {jobs} must be at least 1")
    if not units:
        return []
    with _environment(units[0].preset, jobs):
        pool = _Pool(reference, units, keep, progress, execution)
        return pool.run(min(jobs, len(units)))


class _Pool:
    """The units still to give out, the workers, and what has failed."""

    def __init__(self, reference, units, keep, progress, execution):
        self.reference, self.units, self.keep, self.progress = reference, units, keep, progress
        self.execution = execution
        self.waiting = deque(range(len(units)))
        self.workers: list[Worker] = []
        self.failures: list[Failure] = []

    def run(self, jobs: int) -> list[Failure]:
        try:
            for _ in range(jobs):
                self._start_worker()
            while busy := {w.pipe: w for w in self.workers if w.index is not None}:
                for pipe in wait(list(busy)):
                    self._handle(busy[pipe])
            return self.failures
        finally:
            for worker in self.workers:
                worker.ask_to_end()
            for worker in self.workers:
                worker.end()

    def _start_worker(self) -> None:
        if self.waiting:
            worker = Worker(self.reference, self.execution)
            self.workers.append(worker)  # before its start: a signal may come in between
            worker.start()
            self._give_next(worker)

    def _give_next(self, worker: Worker) -> None:
        worker.index = None
        if self.waiting:
            index = self.waiting.popleft()
            worker.give(index, self.units[index])

    def _handle(self, worker: Worker) -> None:
        kind, content = worker.receive()
        if kind == "progress":
            self.progress.report(worker.index, *content)
            return
        unit = self.units[worker.index]
        if kind == "row":
            self.keep(content)
        else:
            self.failures.append(_failed(unit, content, self.progress))
        self.progress.finish(worker.index, unit.label)
        if kind == "dead":
            self.workers.remove(worker)
            worker.end()
            self._start_worker()
        else:
            self._give_next(worker)


@contextmanager
def _environment(preset: str, jobs: int) -> Iterator[None]:
    """Set what the libraries of a worker read when they are imported."""
    number = 1 if preset in ONE_THREAD else max(1, (os.cpu_count() or 1) // jobs)
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    wanted = dict.fromkeys(names, str(number)) | {"TQDM_DISABLE": "1"}
    if preset in ONE_THREAD:
        wanted["CUDA_VISIBLE_DEVICES"] = ""  # these rows come from a CPU
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _work(pipe: Connection, reference: str, execution: Execution | None) -> None:
    """Measure units until the parent sends None; the main function of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends us
    signal.signal(signal.SIGTERM, _exit)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    commit()  # before the code is imported: the commit of the code that runs
    while (unit := pipe.recv()) is not None:
        pipe.send(_answer(reference, unit, _Reporter(pipe), execution))


def _exit(number: int, frame: Any) -> None:
    signal.signal(number, signal.SIG_IGN)  # a second one would disturb the cleaning up
    sys.exit(128 + number)


def _end_with_parent() -> None:
    wait([multiprocessing.parent_process().sentinel])
    os._exit(1)


def _answer(
    reference: str, unit: Unit, report: _Reporter, execution: Execution | None
) -> tuple[str, Any]:
    try:
        return "row", measured(load_experiment(reference), unit, report, execution)
    except Exception:
        return "error", traceback.format_exc()


class _Reporter:
    """Send progress to the parent, a few times a second at most."""

    def __init__(self, pipe: Connection, seconds: float = 0.25):
        self.pipe, self.seconds, self.last = pipe, seconds, 0.0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self.last >= self.seconds:
            self.last = now
            self.pipe.send(("progress", (done, total)))

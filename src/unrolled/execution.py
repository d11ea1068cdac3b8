"""Execution: how a run lives on a machine, without a word about what it computes.

A cluster or a Colab takes its machine back when it likes. Where the checkpoints of a run go, how
often, and how much of a batch is held at a time belong to the machine and not to the experiment,
so they are no settings of it: `fits_run_with` says them for every `unrolled.training.fit` inside,
and rows are the same up to rounding. `StopRequest` listens for the signal that a machine sends
before it goes (SIGTERM), and `Preempted` is how a run ends that has answered it.
"""

from __future__ import annotations

import dataclasses
import math
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["PREEMPTED", "Execution", "Preempted", "StopRequest", "fits_run_with"]

#: Exit code of a run that was asked to stop and has kept its state: the same command goes on. It
#: is EX_TEMPFAIL of ``sysexits.h``, "try again later", which no error of Python or a signal gives.
PREEMPTED = 75


class Preempted(SystemExit):
    """A run was asked to stop by SIGTERM, has finished its step, and has written a checkpoint.

    Left alone it ends the process with the exit code `PREEMPTED`.

    Attributes
    ----------
    step : int
        How many steps the newest checkpoint holds; 0 if none could be written (a full disk).
    folder : Path
        Where it is.
    """

    def __init__(self, step: int, folder: str | Path):
        super().__init__(PREEMPTED)
        self.step, self.folder = step, Path(folder)

    def __reduce__(self):
        return type(self), (self.step, self.folder)

    def __str__(self) -> str:
        kept = f"the state after {self.step} steps is" if self.step else "no checkpoint is"
        return f"asked to stop by SIGTERM: {kept} in {self.folder}"


class StopRequest:
    """Listen for SIGTERM inside a ``with`` block; `asked` says whether one came.

    The handler that was there before is back afterwards, and has the signal that came too late for
    anyone in the block to heed. Outside the main thread of a process Python allows no handlers, so
    nothing is heard there.

    Parameters
    ----------
    wanted
        False listens to nothing: without a checkpoint there is no use in a late end.

    Examples
    --------
    >>> from contextlib import suppress
    >>> with suppress(Preempted), StopRequest() as stop:
    ...     signal.raise_signal(signal.SIGTERM)
    ...     if stop.asked:
    ...         raise Preempted(3, "runs")
    """

    def __init__(self, wanted: bool = True):
        self.listening = wanted and threading.current_thread() is threading.main_thread()
        self.asked = False

    def __enter__(self) -> StopRequest:
        if self.listening:
            self.before = signal.signal(signal.SIGTERM, self._note)
        return self

    def _note(self, number: int, frame: Any) -> None:
        self.asked = True

    def __exit__(self, kind: type | None, *error: object) -> None:
        if self.listening:
            signal.signal(signal.SIGTERM, self.before)
            if self.asked and kind is None:
                signal.raise_signal(signal.SIGTERM)


@dataclass(frozen=True)
class Execution:
    """What a machine decides about a run.

    Parameters
    ----------
    checkpoint_folder
        Where checkpoints go; None keeps none. Choose one that outlives the machine, such as a
        mounted drive; several processes must all see it.
    checkpoint_minutes
        Minutes between checkpoints: what a kill can cost.
    resume
        ``"auto"``: continue from the newest whole checkpoint. ``"never"``: refuse a folder that
        has one.
    micro_batch_size
        Sequences that one process holds at a time; None for its whole share of a batch. A fit
        that has chosen for itself keeps its choice.

    Raises
    ------
    ValueError
        If a value is outside its range.

    Examples
    --------
    >>> Execution("/drive/runs").of_unit("looped.depth", "0123456789ab", 3).checkpoint_folder
    '/drive/runs/looped.depth/0123456789ab_seed3'
    >>> Execution(resume="maybe")
    Traceback (most recent call last):
    ...
    ValueError: resume must be 'auto' or 'never', got 'maybe'
    """

    checkpoint_folder: str | None = None
    checkpoint_minutes: float = 10.0
    resume: str = "auto"
    micro_batch_size: int | None = None

    def __post_init__(self) -> None:
        minutes, micro = self.checkpoint_minutes, self.micro_batch_size
        _require(0 < minutes < math.inf, "checkpoint_minutes", minutes, "positive and finite")
        _require(self.resume in ("auto", "never"), "resume", self.resume, "'auto' or 'never'")
        _require(micro is None or micro >= 1, "micro_batch_size", micro, "None or at least 1")

    def of_unit(self, experiment: str, config_hash: str, seed: int) -> Execution:
        """Return the execution of one case and seed, with a folder of its own."""
        return self._in(f"{experiment}/{config_hash}_seed{seed}")

    def _in(self, name: str) -> Execution:
        if self.checkpoint_folder is None:
            return self
        folder = str(Path(self.checkpoint_folder, name))
        return dataclasses.replace(self, checkpoint_folder=folder)


def _require(condition: bool, name: str, value: object, allowed: str) -> None:
    if not condition:
        raise ValueError(f"{name} must be {allowed}, got {value!r}")


class _Fits:
    """The fits of a block, counted: each has its checkpoints in a folder of its own."""

    def __init__(self, execution: Execution):
        self.execution, self.count = execution, 0

    def next(self) -> Execution:
        self.count += 1
        return self.execution._in(f"fit_{self.count - 1:02d}")


# A context variable, since a fit is called deep in experiments whose settings are the science.
_FITS: ContextVar[_Fits | None] = ContextVar("fits", default=None)


@contextmanager
def fits_run_with(execution: Execution | None) -> Iterator[None]:
    """Run every `unrolled.training.fit` inside under an execution; None for none.

    The first fit keeps its checkpoints in the folder ``fit_00``, the next in ``fit_01``: so what is
    called inside must call its fits in the same order each time. After a kill the finished ones
    return at once what they had, and the one that was cut off goes on.

    Examples
    --------
    >>> with fits_run_with(Execution("runs")):
    ...     next_fit().checkpoint_folder, next_fit().checkpoint_folder
    ('runs/fit_00', 'runs/fit_01')
    """
    token = _FITS.set(None if execution is None else _Fits(execution))
    try:
        yield
    finally:
        _FITS.reset(token)


def next_fit() -> Execution | None:
    """Return the execution of the fit that begins now, or None."""
    fits = _FITS.get()
    return None if fits is None else fits.next()

"""What a batch of notebooks tells about itself while it runs and at the end."""

from __future__ import annotations

import shutil
import threading
import time
from dataclasses import dataclass, field
from typing import TextIO

from jobs import Job

SLOW_SECONDS = 90


@dataclass
class State:
    """How far a job is."""

    job: Job
    status: str = "waiting"  # then running, and in the end fresh, done, failed or stopped
    cell: int = 0
    cells: int = 0
    started: float = 0.0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    error: str = ""


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
            "done": f"ran in {state.seconds:.0f} s ({state.cpu_seconds:.0f} s of one core)",
            "failed": f"FAILED after {state.seconds:.0f} s",
        }
        with self.lock:
            self.erase()
            print(f"  {state.job.docname}: {words[state.status]}", file=self.log)
            if state.error:
                print(f"\n{state.job.docname}: {state.error}\n", file=self.log)
            self.log.flush()

    def announce(self, state: State) -> None:
        """Say that a job starts, where there is no line to rewrite."""
        if not self.log.isatty():
            print(f"  {state.job.docname}: started", file=self.log, flush=True)

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
    lines = [f"{s.seconds:6.0f} s {s.cpu_seconds:6.0f} s  {s.job.docname}" for s in ran[:5]]
    if lines:
        lines.insert(0, "Slowest (by the clock, on one core):")
    for state in ran:
        if state.seconds > SLOW_SECONDS:
            lines.append(
                f"warning: {state.job.docname} took {state.seconds:.0f} s; "
                f"the budget is {SLOW_SECONDS} s"
            )
    return "\n".join(lines)

"""Progress: one line over all units of a run, with the estimated time left."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

__all__ = ["ProgressLine", "duration"]


class ProgressLine:
    """How far a run is: a bar on a terminal or in a notebook, a line per unit in a log, or silent.

    The time left is estimated from the units and the parts of units that were done since the
    start, so it is right for units that run side by side.

    Parameters
    ----------
    total
        Number of units to do.
    shown
        True or False; None shows a bar on a terminal or in a notebook, and none if
        ``TQDM_DISABLE`` is set.
    plain
        Where there is no terminal, print a line per finished unit (for the log of a long run).
    clock
        Seconds; the tests bring their own.
    """

    def __init__(
        self,
        total: int,
        shown: bool | None = None,
        *,
        plain: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ):
        terminal = _is_watched()
        self.total = total
        self.plain = plain and not terminal and shown is not False
        self.clock = clock
        self.start = clock()
        self.parts: dict[int, float] = {}
        self.bar = _bar(total, shown=not self.plain and (terminal if shown is None else shown))

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.close()

    def report(self, index: int, done: int, total: int) -> None:
        """Note that the unit with this index has done ``done`` of ``total`` steps."""
        part = min(1.0, done / max(1, total))
        self.parts[index] = max(part, self.parts.get(index, 0.0))
        self._refresh()

    def finish(self, index: int, label: str) -> None:
        """Note that a unit is finished; without a terminal, say so on a line of its own."""
        self.parts[index] = 1.0
        self._refresh()
        if self.plain:
            self.write(f"[{self.finished}/{self.total}] {label}, {self.status()}")

    def write(self, text: str) -> None:
        """Print a line above the bar."""
        self.bar.write(text, file=sys.stderr)
        sys.stderr.flush()

    @property
    def finished(self) -> int:
        """Number of finished units."""
        return sum(part == 1.0 for part in self.parts.values())

    def seconds_left(self) -> float | None:
        """Return the estimated seconds left, or None while nothing is done."""
        done = sum(self.parts.values())
        if done == 0:
            return None
        return (self.clock() - self.start) / done * (self.total - done)

    def status(self) -> str:
        """Return the time gone and the time left in words."""
        left = self.seconds_left()
        ahead = "" if left is None else f", about {duration(left)} left"
        return f"{duration(self.clock() - self.start)} gone{ahead}"

    def _refresh(self) -> None:
        text = f"{self.finished}/{self.total} done, {self.status()}"
        self.bar.set_description_str(text, refresh=False)
        self.bar.update(sum(self.parts.values()) - self.bar.n)


def _is_watched() -> bool:
    """Return whether someone sees a bar grow: a terminal or a notebook, unless it is disabled."""
    disabled = os.environ.get("TQDM_DISABLE", "0") not in ("", "0")
    return (sys.stderr.isatty() or "ipykernel" in sys.modules) and not disabled


def _bar(total: int, shown: bool):
    from tqdm import tqdm

    form = "{percentage:3.0f}% |{bar:30}| {desc}"
    return tqdm(
        total=total, disable=not shown, bar_format=form, dynamic_ncols=True, mininterval=0.2
    )


def duration(seconds: float) -> str:
    """Return a time in words.

    Examples
    --------
    >>> duration(8), duration(95), duration(4000)
    ('8 s', '1 min 35 s', '1 h 6 min')
    """
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"

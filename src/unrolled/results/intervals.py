"""Intervals: means over seeds and paired differences, with Student's t.

A difference between variants is judged from runs that share their seeds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from unrolled.results.rows import ResultError, Row, metric_of

__all__ = ["Interval", "mean_ci", "paired_difference"]


@dataclass(frozen=True)
class Interval:
    """A mean over seeds with its confidence interval: ``mean ± half_width``."""

    mean: float
    half_width: float
    n: int
    level: float = 0.95

    @property
    def low(self) -> float:
        """The lower end."""
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        """The upper end."""
        return self.mean + self.half_width

    @property
    def standard_error(self) -> float:
        """The standard error of the mean; NaN for one value."""
        return self.half_width / _quantile(self.level, self.n) if self.n > 1 else math.nan

    def __format__(self, spec: str) -> str:
        spec = spec or ".3g"
        if self.n == 1:
            return f"{self.mean:{spec}} (n = 1)"
        return f"{self.mean:{spec}} ± {self.half_width:{spec}} (n = {self.n})"

    def __str__(self) -> str:
        return format(self, "")


def mean_ci(values: Iterable[float], level: float = 0.95) -> Interval:
    r"""Return the mean of independent values with its Student-t confidence interval.

    .. math:: \bar x \pm t_{n-1,(1+\text{level})/2}\; s / \sqrt{n}

    Parameters
    ----------
    values
        One finite number per seed, at least one. With one value the half width is NaN: one run
        says nothing about the spread.
    level
        Between 0 and 1.

    Returns
    -------
    Interval
        With ``mean``, ``half_width``, ``n`` and ``level``; formatting it shows n.

    Examples
    --------
    >>> f"{mean_ci([1.0, 2.0, 3.0]):.2f}"
    '2.00 ± 2.48 (n = 3)'
    >>> f"{mean_ci([1.5]):.2f}"
    '1.50 (n = 1)'
    """
    if not 0 < level < 1:
        raise ValueError(f"level = {level} must lie between 0 and 1")
    numbers = [float(value) for value in values]
    if not numbers:
        raise ValueError("values is empty; a mean needs at least one value")
    if not all(math.isfinite(number) for number in numbers):
        raise ValueError(f"values {numbers} must be finite")
    n = len(numbers)
    return Interval(statistics.fmean(numbers), _half_width(numbers, level), n, level)


def _half_width(numbers: Sequence[float], level: float) -> float:
    n = len(numbers)
    if n == 1:
        return math.nan
    return _quantile(level, n) * statistics.stdev(numbers) / math.sqrt(n)


def _quantile(level: float, n: int) -> float:
    from scipy.stats import t as student

    return float(student.ppf((1 + level) / 2, df=n - 1))


def paired_difference(
    first: Iterable[Row],
    second: Iterable[Row],
    metric: str,
    *,
    by: str = "seed",
    level: float = 0.95,
) -> Interval:
    r"""Return the mean of ``first - second``, paired by seed, with its confidence interval.

    Two runs of the same seed share data order and initial weights, so their difference varies
    less than either; the interval is Student's t of the differences :math:`a_s - b_s`.

    Parameters
    ----------
    first, second
        Rows of the two sides; each side has one row per seed, and both have the same seeds.
    metric
        The column to subtract; ``name[i]`` takes one entry of a list.
    by
        The column that pairs the rows.
    level
        Between 0 and 1.

    Raises
    ------
    ResultError
        If the seeds of the sides differ, a side has a seed twice, or a value is missing.

    Examples
    --------
    >>> a = [{"seed": 0, "loss": 2.0}, {"seed": 1, "loss": 3.0}]
    >>> b = [{"seed": 0, "loss": 1.0}, {"seed": 1, "loss": 2.5}]
    >>> f"{paired_difference(a, b, 'loss'):.2f}"
    '0.75 ± 3.18 (n = 2)'
    """
    left, right = _by_key(first, metric, by, "first"), _by_key(second, metric, by, "second")
    if left.keys() != right.keys():
        raise ResultError(
            f"paired_difference of {metric}: the {by}s of the sides differ: first has "
            f"{sorted(left)}, second has {sorted(right)}"
        )
    return mean_ci([left[key] - right[key] for key in left], level)


def _by_key(rows: Iterable[Row], metric: str, by: str, side: str) -> dict[Any, float]:
    values: dict[Any, float] = {}
    for row in rows:
        if row.get(by) in values:
            raise ResultError(f"the {side} side has {by} {row.get(by)!r} twice")
        values[row.get(by)] = metric_of(row, metric)
    if not values:
        raise ResultError(f"the {side} side has no rows")
    return values

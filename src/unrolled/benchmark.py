"""Benchmark: how much longer one piece of work takes than another, measured side by side.

Times on a shared machine drift, so two pieces of work are timed in turn, in changing order, and
compared round by round. The result is a ratio with its interval, not a time.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from unrolled.results import Row, mean_ci

__all__ = ["compare_times", "side_by_side"]

Work = Callable[[], Any]


def side_by_side(
    first: Work,
    second: Work,
    *,
    rounds: int = 16,
    warm_up: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> list[tuple[float, float]]:
    """Return the seconds of both pieces of work in each round; the order alternates.

    Parameters
    ----------
    first, second
        Called without arguments.
    rounds
        At least 2; with an even number a steady drift cancels.
    warm_up
        Rounds that are not counted (caches, compilation).
    clock
        Seconds; the tests bring their own.
    """
    if rounds < 2:
        raise ValueError(f"rounds = {rounds} must be at least 2")
    if warm_up < 0:
        raise ValueError(f"warm_up = {warm_up} must be >= 0")
    pairs = []
    for i in range(warm_up + rounds):
        if i % 2:
            b, a = _seconds(second, clock), _seconds(first, clock)
        else:
            a, b = _seconds(first, clock), _seconds(second, clock)
        pairs.append((a, b))
    return pairs[warm_up:]


def _seconds(work: Work, clock: Callable[[], float]) -> float:
    _wait_for_gpu()
    start = clock()
    work()
    _wait_for_gpu()
    return clock() - start


def _wait_for_gpu() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def compare_times(comparison: str, first: Work, second: Work, **options: Any) -> Row:
    r"""Return a row with the ratio of the times of ``first`` and ``second``.

    The ratio is the geometric mean over the rounds, with Student's t interval of its logarithm:

    .. math:: r = \exp\Bigl(\frac1n \sum_i \log \frac{a_i}{b_i}\Bigr)

    Parameters
    ----------
    comparison
        What is compared, in words: ``"FLT / LT, training step"``.
    first, second
        The two pieces of work.
    options
        ``rounds``, ``warm_up`` and ``clock`` of `side_by_side`.

    Examples
    --------
    >>> row = compare_times("sum / sum", lambda: sum(range(9)), lambda: sum(range(9)), rounds=2)
    >>> sorted(row)
    ['comparison', 'milliseconds', 'ratio', 'ratio_high', 'ratio_low', 'reference_milliseconds', 'rounds']
    """  # noqa: E501
    pairs = side_by_side(first, second, **options)
    interval = mean_ci([math.log(a / b) for a, b in pairs])
    times = [1e3 * statistics.median(side) for side in zip(*pairs, strict=True)]
    return {
        "comparison": comparison,
        "ratio": math.exp(interval.mean),
        "ratio_low": math.exp(interval.low),
        "ratio_high": math.exp(interval.high),
        "milliseconds": times[0],
        "reference_milliseconds": times[1],
        "rounds": len(pairs),
    }

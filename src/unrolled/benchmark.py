"""Benchmark: how much more time or memory one piece of work takes than another.

Times on a shared machine drift, so two pieces of work are timed in turn, in changing order, and
compared round by round. The result is a ratio with its interval, not a time. Memory is counted,
not sampled, so its ratio has no interval.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from unrolled.provenance import threads
from unrolled.results import Row, mean_ci

__all__ = ["compare_memory", "compare_times", "peak_memory", "prepared", "side_by_side"]

Work = Callable[[], Any]


@contextmanager
def prepared(presets: Mapping[str, Any], preset: str) -> Iterator[Any]:
    """Give the settings of a preset; inside, torch has one thread, but for the preset ``colab``.

    Raises
    ------
    ValueError
        If there is no such preset.

    Examples
    --------
    >>> with prepared({"smoke": 3}, "smoke") as settings:
    ...     settings, torch.get_num_threads()
    (3, 1)
    """
    if preset not in presets:
        raise ValueError(f"unknown preset {preset!r}; allowed: {', '.join(presets)}")
    with threads(None if preset == "colab" else 1):
        yield presets[preset]


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
    if torch.cuda.is_initialized():
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


# --- memory -----------------------------------------------------------------------------------


def peak_memory(work: Work) -> int:
    """Return the most bytes of tensors that ``work`` makes and that live at the same time.

    On a GPU torch's allocator counts them. On a CPU each operation's results are followed until
    they are freed: what an operation uses while it runs is not seen, and the number is the same
    each time. Tensors that were there before do not count.

    Examples
    --------
    >>> def work():
    ...     x = torch.ones(1_000)  # 4 bytes each
    ...     y = x + 1
    ...     del x
    ...     return y * 2
    >>> peak_memory(work)
    8000
    """
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        return torch.cuda.max_memory_allocated() - before
    with LiveTensors() as live:
        work()
    return live.peak


class LiveTensors(TorchDispatchMode):
    """Follows the storages that operations make; ``peak`` is the most bytes alive at once."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run an operation and count what it made: results that share no storage with an input."""
        given = {storage._cdata for storage in _storages((args, kwargs))}
        out = func(*args, **(kwargs or {}))
        self._alive = {key: kept for key, kept in self._alive.items() if not kept[0].expired()}
        for storage in _storages(out):
            if storage._cdata not in given:
                self._alive[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self.peak = max(self.peak, sum(size for _, size in self._alive.values()))
        return out


def _storages(tree: Any) -> list[torch.UntypedStorage]:
    leaves = (leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))
    return [tensor.untyped_storage() for tensor in leaves]


def compare_memory(comparison: str, first: Work, second: Work) -> Row:
    """Return a row with the ratio of the peak memory of ``first`` and ``second``.

    Examples
    --------
    >>> row = compare_memory("two / one", lambda: torch.ones(2), lambda: torch.ones(1))
    >>> row["ratio"], row["megabytes"]
    (2.0, 8e-06)
    """
    most, reference = peak_memory(first), peak_memory(second)
    return {
        "comparison": comparison,
        "ratio": most / reference,
        "megabytes": most / 1e6,
        "reference_megabytes": reference / 1e6,
    }

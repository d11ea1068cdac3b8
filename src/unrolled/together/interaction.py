r"""Interaction: whether one ingredient gains more, or less, in the presence of another.

With four runs of each seed, with and without each of two ingredients A and B, the interaction is
the gain of A beside B less its gain alone,

.. math:: I = (m_{AB} - m_{B}) - (m_{A} - m_{0}),

``eq-together-interaction``. It is 0 if the gains add up, whatever they are. Of two ingredients
that both raise m, one undoes the other's gain where I is negative. All four runs share the data
and the initial weights of the seed, so I has a spread of its own, and an interval.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from unrolled.results import (
    Interval,
    Row,
    Verdict,
    judge_pairs,
    metric_of,
    paired_difference,
    select,
)

__all__ = ["gains", "interaction", "judge_interaction"]

Conditions = Mapping[str, Any]
Sides = tuple[Conditions, Conditions, Conditions, Conditions]


def gains(rows: Iterable[Row], metric: str, side: Conditions, reference: Conditions) -> list[Row]:
    """Return the metric of one side less that of the other for each seed, as rows.

    Parameters
    ----------
    rows
        The evidence.
    metric
        The column; ``name[i]`` takes one entry of a list.
    side, reference
        Conditions that select one row per seed each.

    Returns
    -------
    list of dict
        With ``seed`` and ``gain``, for the seeds that both sides have.

    Examples
    --------
    >>> rows = [{"seed": s, "K": K, "loss": 2.0 * K + s} for s in (0, 1) for K in (1, 3)]
    >>> gains(rows, "loss", {"K": 3}, {"K": 1})
    [{'seed': 0, 'gain': 4.0}, {'seed': 1, 'gain': 4.0}]
    """
    rows = list(rows)
    one, other = ({row["seed"]: row for row in select(rows, **c)} for c in (side, reference))
    return [
        {"seed": seed, "gain": metric_of(one[seed], metric) - metric_of(other[seed], metric)}
        for seed in sorted(one.keys() & other.keys())
    ]


def _both(rows: Iterable[Row], metric: str, sides: Sides) -> tuple[list[Row], list[Row]]:
    rows = list(rows)
    both, second, first, neither = sides
    return gains(rows, metric, both, second), gains(rows, metric, first, neither)


def interaction(rows: Iterable[Row], metric: str, sides: Sides) -> Interval:
    """Return the interaction of two ingredients over the seeds, with its interval.

    Parameters
    ----------
    rows, metric
        As in `gains`.
    sides
        Conditions for the runs with A and B, with B alone, with A alone, and with neither.

    Returns
    -------
    unrolled.results.Interval

    Examples
    --------
    >>> rows = [{"seed": s, "a": a, "b": b, "m": a + b - 0.5 * a * b + s}
    ...         for s in range(3) for a in (0, 1) for b in (0, 1)]
    >>> sides = tuple({"a": a, "b": b} for a, b in ((1, 1), (0, 1), (1, 0), (0, 0)))
    >>> f"{interaction(rows, 'm', sides):.2f}"
    '-0.50 ± 0.00 (n = 3)'
    """
    return paired_difference(*_both(rows, metric, sides), "gain")


def judge_interaction(
    metric: str, sides: Sides, *, expect: Literal["lower", "higher"], by: float = 0.0
) -> Callable[[list[Row]], Verdict]:
    """Return a judge of: the interaction is below (above) zero.

    Parameters
    ----------
    metric, sides
        As in `interaction`.
    expect, by
        As in `unrolled.results.judge_difference`.

    Examples
    --------
    >>> rows = [{"seed": s, "a": a, "b": b, "m": a + b - 0.5 * a * b + s}
    ...         for s in range(3) for a in (0, 1) for b in (0, 1)]
    >>> sides = tuple({"a": a, "b": b} for a, b in ((1, 1), (0, 1), (1, 0), (0, 0)))
    >>> judge_interaction("m", sides, expect="lower")(rows)
    Verdict(kind='reproduced', evidence='gain in m differs by -0.5 ± 0 (n = 3)')
    """

    def judge(rows: list[Row]) -> Verdict:
        found = judge_pairs("gain", *_both(rows, metric, sides), expect=expect, by=by)
        return Verdict(found.kind, found.evidence.replace("gain", f"gain in {metric}"))

    return judge

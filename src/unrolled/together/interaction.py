r"""Interaction: whether one ingredient gains more, or less, in the presence of another.

With four runs of each seed, with and without each of two ingredients A and B, the interaction is
the gain of A beside B less its gain alone,

.. math:: I = (m_{AB} - m_{B}) - (m_{A} - m_{0}),

:eq:`eq-together-interaction`. It is 0 if the gains add up, whatever they are. Of two ingredients
that both raise m, one undoes the other's gain where I is negative. All four runs share the data
and the initial weights of the seed, so I has a spread of its own, and an interval.

Two cautions have functions of their own. An interaction is harder to see than a gain
(`chance_to_see`). And accuracy has a ceiling: gains that add up in the margin of a classifier do
not add up in its accuracy (`margin`, `interaction_of_margins`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from scipy import stats

from unrolled.optimization import require
from unrolled.results import (
    Interval,
    Row,
    Verdict,
    judge_pairs,
    metric_of,
    paired_difference,
    select,
)
from unrolled.transformer import require_count

__all__ = [
    "chance_to_see",
    "gains",
    "interaction",
    "interaction_of_margins",
    "judge_interaction",
    "margin",
]

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
    r"""Return the interaction of two ingredients over the seeds, with its interval.

    .. math:: I = (m_{AB} - m_{B}) - (m_{A} - m_{0})

    :eq:`eq-together-interaction`.

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


# --- what can be seen, and on which scale ---------------------------------------------------------


def chance_to_see(effect: float, spread: float, n: int, level: float = 0.95) -> float:
    r"""Return how probably the interval of an interaction lies on its side of zero.

    .. math:: \Pr\bigl( T > t_{n-1} \bigr), \qquad
              T \sim t_{n-1}\!\left( \frac{\delta \sqrt n}{2 \sigma} \right)

    :eq:`eq-together-chance`: T has the noncentral t distribution.

    Parameters
    ----------
    effect
        The interaction, as a size.
    spread
        Standard deviation of one run around what its seed and its ingredients make of it; positive.
    n
        Seeds, at least 2.
    level
        Of the interval, between 0 and 1.

    Examples
    --------
    >>> round(chance_to_see(0.0, 1.0, n=5), 3)
    0.025
    >>> chance_to_see(3.0, 1.0, n=5) < chance_to_see(3.0, 1.0, n=6)
    True
    """
    require(spread > 0, "spread", spread, "positive")
    require_count(n, "n", least=2)
    require(0 < level < 1, "level", level, "between 0 and 1")
    edge = stats.t.ppf((1 + level) / 2, df=n - 1)
    return float(stats.nct.sf(edge, df=n - 1, nc=effect * math.sqrt(n) / (2 * spread)))


def margin(accuracy: float, count: int) -> float:
    r"""Return the margin that an accuracy stands for: the quantile of the normal distribution.

    .. math:: x = \Phi^{-1}(m), \qquad \tfrac1{2n} \le m \le 1 - \tfrac1{2n}

    :eq:`eq-together-margin`.

    Parameters
    ----------
    accuracy
        m, from 0 to 1; moved off 0 and 1 by half of one example.
    count
        n, how many examples it was measured on.

    Examples
    --------
    >>> [round(margin(accuracy, 200), 2) for accuracy in (0.5, 0.84, 1.0)]
    [0.0, 0.99, 2.81]
    """
    require(0 <= accuracy <= 1, "accuracy", accuracy, "from 0 to 1")
    require_count(count, "count")
    edge = 1 / (2 * count)
    return float(stats.norm.ppf(min(max(accuracy, edge), 1 - edge)))


def interaction_of_margins(base: float, first: float, second: float) -> float:
    r"""Return the interaction in accuracy of two gains that add up in the margin.

    .. math:: I = \Phi(x + a + b) - \Phi(x + b) - \Phi(x + a) + \Phi(x)
                = -\int_0^a \!\! \int_0^b t\, \varphi(t) \Big|_{t = x + u + v} dv\, du

    :eq:`eq-together-ceiling`. For positive gains above chance it is negative.

    Parameters
    ----------
    base
        x, the margin with neither.
    first, second
        a and b, what each adds to it.

    Examples
    --------
    >>> round(interaction_of_margins(1.0, 0.5, 0.5), 3), interaction_of_margins(1.0, 0.0, 0.5)
    (-0.048, 0.0)
    """
    cdf = stats.norm.cdf
    alone, both = cdf(base + first) + cdf(base + second), cdf(base + first + second)
    return float(both - alone + cdf(base))

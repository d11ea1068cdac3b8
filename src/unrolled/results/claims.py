"""Claims: what a paper says, what our rows say, and the verdict that follows from the rows.

A claim is declared beside the experiment that tests it. Its verdict is computed, never typed:

- *reproduced*: the whole confidence interval lies on the claimed side;
- *trend*: the mean lies there by more than its standard error, but not the whole interval (or
  there is one seed only);
- *not seen*: the mean lies on the other side, or so near that the seeds cannot tell;
- *not attempted*: there are no rows that could tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from unrolled.results.intervals import Interval, paired_difference
from unrolled.results.quotes import quote
from unrolled.results.rows import ResultError, Row, metric_of, read, select

__all__ = [
    "Claim",
    "Verdict",
    "comparison_table",
    "judge_difference",
    "judge_pairs",
    "judge_share",
]

Kind = Literal["reproduced", "trend", "not seen", "not attempted"]


@dataclass(frozen=True)
class Verdict:
    """A verdict with its evidence in words, which name n and the confidence interval."""

    kind: Kind
    evidence: str

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"kind {self.kind!r} must be one of {', '.join(get_args(Kind))}")


@dataclass(frozen=True)
class Claim:
    """One sentence of a paper that our rows can support or contradict.

    Parameters
    ----------
    paper
        Citation key (``looped``).
    statement
        The claim in our own words.
    paper_value
        The paper's number as text, or None if it gives none.
    query
        What `quote` shows for our value, or None.
    judge
        ``judge(rows)`` returns the verdict; it may use the rows alone.
    """

    paper: str
    statement: str
    paper_value: str | None
    query: str | None
    judge: Callable[[list[Row]], Verdict]


def comparison_table(
    experiment: str,
    claims: Iterable[Claim],
    *,
    preset: str = "laptop",
    rows: Iterable[Row] | None = None,
) -> list[Row]:
    """Return the table paper | ours | verdict of an experiment, one row per claim.

    Parameters
    ----------
    experiment
        Its name, which also names its results file.
    claims
        The experiment's claims.
    preset
        The scale whose rows are judged.
    rows
        The evidence; None reads the committed file.

    Returns
    -------
    list of dict
        With the keys paper, claim, paper_value, ours, scale, verdict and evidence.
    """
    evidence = _committed(experiment) if rows is None else list(rows)
    evidence = [row for row in evidence if row.get("preset") == preset]
    return [_compare(claim, preset, evidence) for claim in claims]


def _committed(experiment: str) -> list[Row]:
    try:
        return read(experiment)
    except ResultError:
        return []


def _compare(claim: Claim, preset: str, rows: list[Row]) -> Row:
    verdict = _judge(claim, rows)
    seeds = len({row.get("seed") for row in rows})
    return {
        "paper": claim.paper,
        "claim": claim.statement,
        "paper_value": claim.paper_value or "",
        "ours": _ours(claim) if rows else "",
        "scale": f"{preset}, {seeds} seeds" if rows else preset,
        "verdict": verdict.kind,
        "evidence": verdict.evidence,
    }


def _judge(claim: Claim, rows: list[Row]) -> Verdict:
    if not rows:
        return Verdict("not attempted", "there are no rows")
    try:
        return claim.judge(rows)
    except ResultError as error:
        return Verdict("not attempted", str(error))


def _ours(claim: Claim) -> str:
    if claim.query is None:
        return ""
    try:
        return quote(claim.query)
    except ResultError:
        return ""


# --- judges -----------------------------------------------------------------------------------


def judge_difference(
    metric: str,
    side: Mapping[str, Any],
    reference: Mapping[str, Any],
    *,
    expect: Literal["lower", "higher"],
    by: float = 0.0,
) -> Callable[[list[Row]], Verdict]:
    """Return a judge of: the metric of one side is lower (higher) than that of the reference.

    Parameters
    ----------
    metric
        The column; ``name[i]`` takes one entry of a list.
    side, reference
        Conditions that select each side's rows, one per seed.
    expect
        The claimed direction of ``side - reference``.
    by
        By how much at least, in units of the metric.

    Examples
    --------
    >>> rows = [{"seed": s, "variant": v, "loss": loss + 0.25 * s}
    ...         for v, loss in (("flt", 1.0), ("original", 2.0)) for s in range(3)]
    >>> judge = judge_difference("loss", {"variant": "flt"}, {"variant": "original"},
    ...                          expect="lower")
    >>> judge(rows)
    Verdict(kind='reproduced', evidence='loss differs by -1 ± 0 (n = 3)')
    """
    _check_direction(expect, by)

    def judge(rows: list[Row]) -> Verdict:
        pair = select(rows, **side), select(rows, **reference)
        return judge_pairs(metric, *pair, expect=expect, by=by)

    return judge


def judge_cost(
    metric: str,
    side: Mapping[str, Any],
    reference: Mapping[str, Any],
    *,
    expect: Literal["lower", "higher"],
    allowance: float,
) -> Callable[[list[Row]], Verdict]:
    """Return a judge of: the metric of one side is worse than the reference's by little, if at all.

    Parameters
    ----------
    metric, side, reference
        As in `judge_difference`.
    expect
        The better direction of the metric.
    allowance
        How much worse counts as little, in units of the metric; above 0.

    Examples
    --------
    >>> rows = [{"seed": s, "variant": v, "accuracy": 0.9 - loss + 0.01 * s}
    ...         for v, loss in (("sparse", 0.001), ("dense", 0.0)) for s in range(3)]
    >>> judge = judge_cost("accuracy", {"variant": "sparse"}, {"variant": "dense"},
    ...                    expect="higher", allowance=0.003)
    >>> judge(rows)
    Verdict(kind='reproduced', evidence='accuracy differs by -0.001 ± 0 (n = 3), 0.003 allowed')
    """
    _check_direction(expect, allowance)
    if allowance == 0:
        raise ValueError("allowance = 0 must be > 0; see judge_difference")

    def judge(rows: list[Row]) -> Verdict:
        pair = select(rows, **side), select(rows, **reference)
        return judge_pairs(metric, *pair, expect=expect, by=-allowance)

    return judge


def judge_pairs(
    metric: str,
    side: list[Row],
    reference: list[Row],
    *,
    expect: Literal["lower", "higher"],
    by: float = 0.0,
) -> Verdict:
    """Judge two lists of rows that are paired by seed; the arguments are as in `judge_difference`.

    A negative ``by`` is an allowance, as in `judge_cost`.

    Examples
    --------
    >>> one, other = ([{"seed": s, "loss": loss + s} for s in range(3)] for loss in (1.0, 2.0))
    >>> judge_pairs("loss", one, other, expect="higher").kind
    'not seen'
    """
    _check_direction(expect, abs(by))
    if not (side and reference):
        return Verdict("not attempted", "a side of the comparison has no rows")
    interval = paired_difference(side, reference, metric)
    allowed = f", {-by:g} allowed" if by < 0 else ""
    return Verdict(_direction(interval, expect, by), f"{metric} differs by {interval:.3g}{allowed}")


def _check_direction(expect: str, by: float) -> None:
    if expect not in ("lower", "higher"):
        raise ValueError(f"expect = {expect!r} must be 'lower' or 'higher'")
    if by < 0:
        raise ValueError(f"by = {by} must be >= 0")


def _direction(interval: Interval, expect: str, by: float) -> Kind:
    sign = -1 if expect == "lower" else 1
    mean = sign * interval.mean
    # with one seed both widths are NaN, and no comparison with NaN holds
    if mean <= by or mean - interval.standard_error <= by:
        return "not seen"
    return "reproduced" if mean - interval.half_width > by else "trend"


def judge_share(
    metric: str, conditions: Mapping[str, Any], *, expect: bool = True
) -> Callable[[list[Row]], Verdict]:
    """Return a judge of: a yes/no column is ``expect`` for every seed.

    All of at least three seeds reproduce the claim; more than half of them are a trend.

    Examples
    --------
    >>> rows = [{"seed": s, "collapsed": s < 2} for s in range(3)]
    >>> judge_share("collapsed", {})(rows)
    Verdict(kind='trend', evidence='collapsed in 2 of 3 seeds')
    """

    def judge(rows: list[Row]) -> Verdict:
        values = [bool(metric_of(row, metric)) for row in select(rows, **conditions)]
        if not values:
            return Verdict("not attempted", "there are no such rows")
        agreeing, n = sum(value == expect for value in values), len(values)
        text = f"{metric} in {sum(values)} of {n} seeds"
        if agreeing == n and n >= 3:
            return Verdict("reproduced", text)
        return Verdict("trend" if 2 * agreeing > n else "not seen", text)

    return judge

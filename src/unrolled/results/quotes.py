"""Quotes: the numbers of the prose, looked up in the committed rows.

No number of the book is typed by hand: the ``{result}`` role holds a query, and `quote` answers
it when the page is built. A row that is not there stops the build.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Mapping
from typing import Any

from unrolled.results.intervals import Interval, mean_ci, paired_difference
from unrolled.results.rows import (
    ResultError,
    Row,
    check_one_configuration,
    metric_of,
    read,
    select,
)

__all__ = ["quote"]

#: Statistics over the seeds of one configuration.
STATISTICS: dict[str, Callable[[list[float]], Any]] = {
    "mean": statistics.fmean,
    "std": statistics.stdev,
    "min": min,
    "max": max,
    "median": statistics.median,
    "sum": sum,
    "count": len,
    "ci": lambda values: mean_ci(values).half_width,
    "mean_ci": mean_ci,
}

#: Statistics of two configurations, told apart by one condition ``key=first~second``.
COMPARISONS: dict[str, Callable[[list[Row], list[Row], str], Any]] = {
    "difference": lambda first, second, metric: paired_difference(first, second, metric).mean,
    "difference_ci": paired_difference,
    "ratio": lambda first, second, metric: _mean(first, metric) / _mean(second, metric),
}


def quote(query: str) -> str:
    """Return one number from the committed rows, formatted for prose.

    Parameters
    ----------
    query
        ``FILE | STAT METRIC | key=value key=value | FORMAT``.

        FILE is a results name (``looped_instability``). STAT is one of mean, std, min, max,
        median, sum (of a yes/no column: how many are yes), count (of seeds), ci (half width of
        the 95 % interval) or mean_ci (``1.23 ± 0.04``). METRIC is a column; ``name[-1]`` takes
        the last entry of a list. The conditions must leave rows of one configuration, which
        differ in the seed alone. FORMAT is a Python format such as ``.2f`` or ``.0%``.

        Two configurations are compared by the STATs difference, difference_ci (``first -
        second``, paired by seed) and ratio (of the means), with one condition of the form
        ``key=first~second``.

    Returns
    -------
    str
        The number; the interval of a single seed is shown as ``(n = 1)``.

    Raises
    ------
    ResultError
        For a malformed query, a missing file, row or metric, or mixed configurations.

    Notes
    -----
    Queries of this kind stand in the book's prose:

    - ``looped_instability | mean_ci val_loss | variant=flt num_loops=12 preset=laptop | .2f``
    - ``looped_instability | ratio residual_norm | variant=original~flt num_loops=12 | .0f``
    """
    query = " ".join(query.split())
    file, stat, metric, conditions, spec = _parse(query)
    try:
        rows = read(file)
        if stat in COMPARISONS:
            return _format(_compare(stat, metric, rows, conditions), spec)
        return _format(_summarize(stat, metric, rows, conditions), spec)
    except ResultError as error:
        raise ResultError(f"result {query!r}: {error}") from None


def _parse(query: str) -> tuple[str, str, str, dict[str, Any], str]:
    parts = [part.strip() for part in query.split("|")]
    if len(parts) != 4:
        raise ResultError(
            f"result {query!r} has {len(parts)} parts, not 4: "
            "FILE | STAT METRIC | key=value key=value | FORMAT"
        )
    file, what, where, spec = parts
    if not re.fullmatch(r"\w+(\.\w+)*", file):
        raise ResultError(f"result {query!r}: {file!r} is not the name of a results file")
    return file, *_parse_what(query, what), _parse_conditions(query, where), spec


def _parse_what(query: str, what: str) -> tuple[str, str]:
    allowed = [*STATISTICS, *COMPARISONS]
    words = what.split()
    if len(words) != 2 or words[0] not in allowed:
        raise ResultError(
            f"result {query!r}: {what!r} must be STAT METRIC, with STAT one of {', '.join(allowed)}"
        )
    return words[0], words[1]


def _parse_conditions(query: str, where: str) -> dict[str, Any]:
    conditions: dict[str, Any] = {}
    for word in where.split():
        key, equals, value = word.partition("=")
        if not (equals and key and value):
            raise ResultError(f"result {query!r}: {word!r} must have the form key=value")
        if key in conditions:
            raise ResultError(f"result {query!r}: the condition {key!r} stands there twice")
        conditions[key] = literal(value)
    return conditions


def literal(text: str) -> Any:
    """Return the value that text stands for: a number, true, false, null, else the text itself.

    Text that looks like a number is put in double quotes.

    Examples
    --------
    >>> literal("12"), literal("flt"), literal("true"), literal('"12"')
    (12, 'flt', True, '12')
    """
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return text if isinstance(value, (list, dict)) else value


def _summarize(stat: str, metric: str, rows: list[Row], conditions: Mapping[str, Any]) -> Any:
    values = [metric_of(row, metric) for row in _one_configuration(rows, conditions)]
    if stat in ("std", "ci") and len(values) < 2:
        raise ResultError(f"{stat} needs at least two seeds; there is one")
    return STATISTICS[stat](values)


def _compare(stat: str, metric: str, rows: list[Row], conditions: Mapping[str, Any]) -> Any:
    keys = [key for key, value in conditions.items() if "~" in str(value)]
    if len(keys) != 1 or str(conditions[keys[0]]).count("~") != 1:
        raise ResultError(f"{stat} needs one condition of the form key=first~second")
    sides = [literal(text) for text in conditions[keys[0]].split("~")]
    chosen = [_one_configuration(rows, {**conditions, keys[0]: side}) for side in sides]
    return COMPARISONS[stat](*chosen, metric)


def _mean(rows: list[Row], metric: str) -> float:
    mean = statistics.fmean(metric_of(row, metric) for row in rows)
    if mean == 0:
        raise ResultError(f"the mean of {metric} is zero, so a ratio has no meaning")
    return mean


def _one_configuration(rows: list[Row], conditions: Mapping[str, Any]) -> list[Row]:
    """Return the selected rows, which must differ in their seed alone."""
    chosen = select(rows, **conditions)
    if not chosen:
        raise ResultError(f"no row has {_as_text(conditions)}")
    check_one_configuration(chosen)
    seeds = [row.get("seed") for row in chosen]
    if len(set(seeds)) < len(seeds):
        raise ResultError(f"a seed appears twice among the rows: {seeds}")
    return chosen


def _as_text(conditions: Mapping[str, Any]) -> str:
    return " and ".join(f"{key}={value}" for key, value in conditions.items()) or "any content"


def _format(value: Any, spec: str) -> str:
    try:
        if not isinstance(value, Interval):
            return format(value, spec)
        if value.n == 1:
            return f"{value.mean:{spec}} (n = 1)"
        return f"{value.mean:{spec}} ± {value.half_width:{spec}}"
    except ValueError as error:
        raise ResultError(f"the format {spec!r} does not fit {value}: {error}") from None

"""Results: rows of evidence, their statistics, and the numbers that prose quotes from them.

One *row* is one unit of work: an experiment, a case and a seed, with its metrics and its
provenance, as one JSON object on one line with flat keys. Rows are only ever appended. Every
table, figure and number of the book is read from rows through this module.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas

__all__ = [
    "Interval",
    "ResultError",
    "Row",
    "append",
    "folder",
    "frame",
    "mean_ci",
    "paired_difference",
    "quote",
    "read",
    "select",
]

Row = dict[str, Any]

#: Columns that identify one unit of work within a file.
UNIT_KEY = ("experiment", "preset", "config_hash", "seed")


class ResultError(ValueError):
    """A number was asked for that the committed rows do not give."""


# --- where rows live --------------------------------------------------------------------------


def checkout() -> Path | None:
    """Return the root of the source checkout that holds this package, or None."""
    root = Path(__file__).resolve().parents[2]
    is_checkout = (root / "pyproject.toml").is_file() and (root / "book").is_dir()
    return root if is_checkout else None


def folder() -> Path:
    """Return the folder of the committed rows: ``book/results``, or the wheel's own copy."""
    root = checkout()
    return root / "book" / "results" if root else Path(__file__).resolve().parent / "_results"


def file_of(name: str) -> Path:
    """Return the committed file of an experiment or results name.

    Examples
    --------
    >>> file_of("looped.instability").name
    'looped_instability.jsonl'
    """
    if not re.fullmatch(r"\w+(\.\w+)*", name):
        raise ValueError(f"name {name!r} must be words joined by dots or underscores")
    return folder() / f"{name.replace('.', '_')}.jsonl"


# --- reading and appending --------------------------------------------------------------------


def read(name: str | Path) -> list[Row]:
    """Read all rows of a results file.

    Parameters
    ----------
    name
        An experiment (``looped.instability``), a results name (``looped_instability``), or the
        path of a ``.jsonl`` file.

    Returns
    -------
    list of dict
        In the order in which they were appended.

    Raises
    ------
    ResultError
        If there is no such file, or a line is not a JSON object. A torn *last* line (the rest
        of a crash) is skipped with a note; `append` repairs it.
    """
    path = _path(name)
    if not path.is_file():
        raise ResultError(f"there is no results file {path.name} in {path.parent}")
    whole, torn = _split_torn(path.read_bytes())
    if torn:
        print(f"note: {path.name} ends with a torn line, which is skipped", file=sys.stderr)
    return [_parse_line(line, path, i) for i, line in enumerate(whole.splitlines(), 1)]


def _path(name: str | Path) -> Path:
    is_path = isinstance(name, Path) or name.endswith(".jsonl")
    return Path(name) if is_path else file_of(name)


def _parse_line(line: bytes, path: Path, number: int) -> Row:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ResultError(f"{path.name}, line {number}: not JSON ({error})") from None
    if not isinstance(row, dict):
        raise ResultError(f"{path.name}, line {number}: not a JSON object")
    return row


def _split_torn(content: bytes) -> tuple[bytes, bytes]:
    """Split the content of a file into whole lines and the rest of an interrupted write."""
    end = content.rfind(b"\n") + 1
    return content[:end], content[end:]


def append(path: str | Path, row: Mapping[str, Any], *, once: bool = False) -> bool:
    """Append one row: one write under a lock, then fsync, so that a file never has half a row.

    Parameters
    ----------
    path
        The file; it and its folder are made if needed. If a crash left a torn last line, that
        line is cut off first, and this is said.
    row
        Flat: numbers, text, booleans, None, and flat lists of numbers. A number that is not
        finite is written as ``null``.
    once
        Append nothing if a row with the same experiment, preset, config_hash and seed exists.

    Returns
    -------
    bool
        Whether the row was appended.

    Raises
    ------
    TypeError
        If the row is not flat.
    OSError
        If the write failed; the file is then as it was.
    """
    path = Path(path)
    line = (json.dumps(plain_row(row), ensure_ascii=False, allow_nan=False) + "\n").encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path) as handle:
        _repair(handle, path)
        if once and unit_key(row) in {unit_key(other) for other in read(path)}:
            return False
        _write_whole(handle, line)
    return True


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle
    finally:
        os.close(handle)  # gives the lock back


def _repair(handle: int, path: Path) -> None:
    whole, torn = _split_torn(path.read_bytes())
    if torn:
        os.ftruncate(handle, len(whole))
        print(
            f"note: {path.name} ended with a torn line of {len(torn)} bytes "
            "(an interrupted write); it was cut off",
            file=sys.stderr,
        )


def _write_whole(handle: int, line: bytes) -> None:
    size = os.fstat(handle).st_size
    try:
        written = os.write(handle, line)
        if written != len(line):
            raise OSError(f"only {written} of {len(line)} bytes of a row could be written")
        os.fsync(handle)
    except OSError:
        os.ftruncate(handle, size)
        raise


def remove(path: str | Path, unwanted: Callable[[Row], bool]) -> int:
    """Remove the rows for which ``unwanted(row)`` holds; return how many there were.

    The file is rewritten in place under the lock: first the new content beside it, then a rename.
    """
    path = Path(path)
    if not path.is_file():
        return 0
    with _locked(path):
        rows = read(path)
        kept = [row for row in rows if not unwanted(row)]
        if len(kept) < len(rows):
            lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in kept)
            _write_beside(path, lines)
    return len(rows) - len(kept)


def _write_beside(path: Path, text: str) -> None:
    beside = path.with_name(path.name + ".partial")
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def unit_key(row: Mapping[str, Any]) -> tuple:
    """Return what identifies the unit of work of a row."""
    return tuple(row.get(key) for key in UNIT_KEY)


def plain_row(row: Mapping[str, Any]) -> Row:
    """Return the row with plain Python values; raise TypeError if it is not flat.

    Examples
    --------
    >>> import numpy
    >>> plain_row({"loss": numpy.float32(0.5), "norm": float("inf"), "curve": (1, 2.0)})
    {'loss': 0.5, 'norm': None, 'curve': [1, 2.0]}
    """
    return {_plain_key(key): _plain_value(key, value) for key, value in row.items()}


def _plain_key(key: Any) -> str:
    if not isinstance(key, str) or not re.fullmatch(r"\w+", key):
        raise TypeError(f"the name {key!r} of a row's column must be one word")
    return key


def _plain_value(key: str, value: Any) -> Any:
    if hasattr(value, "tolist"):  # numpy arrays and scalars, torch tensors
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain_scalar(key, item) for item in value]
    return _plain_scalar(key, value)


def _plain_scalar(key: str, value: Any) -> Any:
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, bool, int)):
        return value
    raise TypeError(
        f"{key} = {value!r} cannot stand in a row; allowed: numbers, text, booleans, None and "
        "flat lists of these"
    )


def frame(rows: Iterable[Row]) -> pandas.DataFrame:
    """Return rows as a table, one column per key."""
    import pandas

    return pandas.DataFrame(list(rows))


def select(rows: Iterable[Row], **conditions: Any) -> list[Row]:
    """Return the rows whose columns have the given values; a list of values means any of them.

    Raises
    ------
    ResultError
        If a column appears in no row.

    Examples
    --------
    >>> rows = [{"num_loops": 6, "loss": 2.0}, {"num_loops": 12, "loss": 1.0}]
    >>> select(rows, num_loops=12)
    [{'num_loops': 12, 'loss': 1.0}]
    """
    rows = list(rows)
    known = {key for row in rows for key in row}
    for key in conditions:
        if rows and key not in known:
            raise ResultError(f"no row has the column {key!r}; there are: {_names(known)}")
    return [row for row in rows if all(_matches(row, k, v) for k, v in conditions.items())]


def _matches(row: Row, key: str, wanted: Any) -> bool:
    values = wanted if isinstance(wanted, (list, tuple, set)) else [wanted]
    return any(_same(row.get(key), value) for value in values)


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, bool) != isinstance(right, bool):
        return False  # otherwise True == 1
    return left == right


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


# --- statistics over seeds --------------------------------------------------------------------


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
    from scipy.stats import t as student

    quantile = float(student.ppf((1 + level) / 2, df=n - 1))
    return quantile * statistics.stdev(numbers) / math.sqrt(n)


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


def metric_of(row: Row, metric: str) -> float:
    """Return a number of a row; ``name[i]`` takes entry i of a list.

    Raises
    ------
    ResultError
        If the column is missing, not a number, or was not finite.

    Examples
    --------
    >>> metric_of({"norm_by_loop": [1.0, 7.5]}, "norm_by_loop[-1]")
    7.5
    """
    match = re.fullmatch(r"(\w+)(?:\[(-?\d+)\])?", metric)
    if not match:
        raise ResultError(f"metric {metric!r} must be NAME or NAME[INDEX]")
    name, index = match.groups()
    if name not in row:
        raise ResultError(f"a row has no column {name!r}; it has: {_names(row)}")
    value = row[name] if index is None else _entry(row[name], int(index), metric)
    if value is None:
        raise ResultError(f"{metric} of seed {row.get('seed')} is missing or was not finite")
    if not isinstance(value, (int, float)):
        raise ResultError(f"{metric} = {value!r} is not a number")
    return value


def _entry(value: Any, index: int, metric: str) -> Any:
    if not isinstance(value, list):
        raise ResultError(f"{metric}: the column is not a list")
    if not -len(value) <= index < len(value):
        raise ResultError(f"{metric}: the list has only {len(value)} entries")
    return value[index]


# --- numbers in prose -------------------------------------------------------------------------

STATISTICS: dict[str, Callable[[list], Any]] = {
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


def quote(query: str) -> str:
    """Return one number from the committed rows, formatted for prose.

    Parameters
    ----------
    query
        ``FILE | STAT METRIC | key=value key=value | FORMAT``. STAT is one of mean, std, min,
        max, median, sum (of a yes/no column: how many yes), count, ci (half width of the 95 %
        interval), mean_ci (``1.23 ± 0.04``). METRIC is a column, ``name[i]`` one entry of a
        list. The conditions must leave rows of one configuration that differ in the seed
        alone. FORMAT is a Python format such as ``.2f`` or ``.0%``.

    Raises
    ------
    ResultError
        For a malformed query, a missing file, row or metric, or mixed configurations.
    """
    file, stat, metric, conditions, spec = _parse_query(query)
    try:
        rows = _one_configuration(select(read(file), **conditions), conditions)
        return _format(_statistic(stat, [metric_of(row, metric) for row in rows]), spec)
    except ResultError as error:
        raise ResultError(f"{query!r}: {error}") from None


def _parse_query(query: str) -> tuple[str, str, str, dict[str, Any], str]:
    parts = [part.strip() for part in query.split("|")]
    if len(parts) != 4:
        raise ResultError(
            f"{query!r} has {len(parts)} parts; it needs 4: "
            "FILE | STAT METRIC | key=value key=value | FORMAT"
        )
    file, what, where, spec = parts
    words = what.split()
    if len(words) != 2 or words[0] not in STATISTICS:
        raise ResultError(
            f"{query!r}: the second part {what!r} must be STAT METRIC, "
            f"with STAT one of {', '.join(STATISTICS)}"
        )
    return file, words[0], words[1], _parse_conditions(query, where), spec


def _parse_conditions(query: str, where: str) -> dict[str, Any]:
    conditions = {}
    for word in where.split():
        key, equals, value = word.partition("=")
        if not equals or not key or not value:
            raise ResultError(f"{query!r}: {word!r} must have the form key=value")
        conditions[key] = literal(value)
    return conditions


def literal(text: str) -> Any:
    """Return the value that text stands for: a number, true, false, null, else the text.

    Examples
    --------
    >>> literal("12"), literal("flt"), literal("true")
    (12, 'flt', True)
    """
    try:
        return json.loads(text)
    except ValueError:
        return text


def _one_configuration(rows: list[Row], conditions: Mapping[str, Any]) -> list[Row]:
    if not rows:
        raise ResultError(f"no row has {_conditions_text(conditions)}")
    if len({(row.get("config_hash"), row.get("preset")) for row in rows}) > 1:
        raise ResultError(
            f"rows of different configurations are mixed; they differ in {_differing(rows)}"
        )
    seeds = [row.get("seed") for row in rows]
    if len(set(seeds)) < len(seeds):
        raise ResultError(f"a seed appears twice among the rows: {sorted(seeds)}")
    return rows


def _conditions_text(conditions: Mapping[str, Any]) -> str:
    return " and ".join(f"{key}={value}" for key, value in conditions.items()) or "any content"


_PROVENANCE = {"seed", "seconds", "command", "commit", "config_hash", "torch", "version", "device"}


def _differing(rows: list[Row]) -> str:
    """Name the columns (not lists, not floats) that tell the mixed rows apart."""
    columns = {key for row in rows for key in row} - _PROVENANCE
    different = [
        key
        for key in columns
        if len({str(row.get(key)) for row in rows}) > 1
        and all(isinstance(row.get(key), (str, int, type(None))) for row in rows)
    ]
    return _names(different) or "settings that are no column"


def _statistic(stat: str, values: list) -> Any:
    if stat in ("std", "ci") and len(values) < 2:
        raise ResultError(f"{stat} needs at least two seeds, there is one")
    return STATISTICS[stat](values)


def _format(value: Any, spec: str) -> str:
    try:
        if not isinstance(value, Interval):
            return format(value, spec)
        if value.n == 1:
            return f"{value.mean:{spec}} (n = 1)"
        return f"{value.mean:{spec}} ± {value.half_width:{spec}}"
    except ValueError as error:
        raise ResultError(f"the format {spec!r} does not fit {value}: {error}") from None

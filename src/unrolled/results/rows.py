"""Rows: one unit of work each, appended to a file that never holds half a row.

A file has one JSON object a line. A row is appended by one write under a lock; what a crash may
leave, a torn last line, is found and cut off by the next append.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas

try:
    import fcntl
except ImportError:  # no file locks on this system: run one process per file there
    fcntl = None

__all__ = [
    "PROVENANCE",
    "ResultError",
    "Row",
    "append",
    "check_one_configuration",
    "checkout",
    "committed",
    "file_of",
    "folder",
    "frame",
    "metric_of",
    "plain_row",
    "read",
    "remove",
    "select",
    "thin",
    "unit_key",
]

Row = dict[str, Any]

#: Columns that say where a row comes from, not what was measured.
PROVENANCE = ("seconds", "device", "torch", "version", "commit", "config_hash", "command")

#: Columns that identify one unit of work within a file.
UNIT_KEY = ("experiment", "preset", "config_hash", "seed")


class ResultError(ValueError):
    """A number was asked for that the committed rows do not give."""


# --- where rows live --------------------------------------------------------------------------


def checkout() -> Path | None:
    """Return the root of the source checkout that holds this package, or None."""
    root = Path(__file__).resolve().parents[3]
    is_checkout = (root / "pyproject.toml").is_file() and (root / "book").is_dir()
    return root if is_checkout else None


def folder() -> Path:
    """Return the folder of the committed rows: ``book/results``, or the wheel's own copy."""
    root = checkout()
    return root / "book" / "results" if root else Path(__file__).resolve().parents[1] / "_results"


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


def committed(name: str, command: str = "run {} --preset laptop") -> list[Row]:
    """Return the committed laptop rows of an experiment; print how they are made if none are.

    Parameters
    ----------
    name
        Of the experiment.
    command
        What makes them, after ``python -m unrolled``; ``{}`` stands for the name.

    Examples
    --------
    >>> committed("demo.nothing")
    No laptop rows of demo.nothing yet. This makes them:
        python -m unrolled run demo.nothing --preset laptop
    []
    """
    rows = read(name) if file_of(name).is_file() else []
    if not rows:
        print(f"No laptop rows of {name} yet. This makes them:")
        print("    python -m unrolled " + command.format(name))
    return select(rows, preset="laptop")


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
    return [_parse_line(line, path, i) for i, line in enumerate(whole.split(b"\n"), 1) if line]


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
    """Split the content of a file into whole lines and the rest of an interrupted write.

    A last line that lacks nothing but its line end is whole.
    """
    end = content.rfind(b"\n") + 1
    if _is_object(content[end:]):
        return content, b""
    return content[:end], content[end:]


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


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
    """Open the file and hold its lock; `remove` may swap the file while we wait for it."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            if fcntl is not None:
                fcntl.flock(handle, fcntl.LOCK_EX)
            if _is_current(handle, path):
                yield handle
                return
        finally:
            os.close(handle)  # gives the lock back


def _is_current(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _repair(handle: int, path: Path) -> None:
    content = path.read_bytes()
    whole, torn = _split_torn(content)
    if torn:
        os.ftruncate(handle, len(whole))
        print(
            f"note: {path.name} ended with a torn line of {len(torn)} bytes "
            "(an interrupted write); it was cut off",
            file=sys.stderr,
        )
    elif whole and not whole.endswith(b"\n"):
        os.write(handle, b"\n")


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

    Under the lock the new content is written beside the file, then renamed over it.
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


def thin(values: Sequence[float], points: int = 60) -> list[float]:
    """Keep at most so many values, evenly spaced and with five digits, for a curve in a row.

    Examples
    --------
    >>> thin(range(1, 301), points=4)
    [1.0, 101.0, 200.0, 300.0]
    """
    import numpy as np

    array = np.asarray(values, dtype=float)
    index = np.linspace(0, len(array) - 1, min(points, len(array))).round().astype(int)
    return [float(f"{value:.5g}") for value in array[index]]


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


def check_one_configuration(rows: list[Row]) -> None:
    """Raise ResultError if the rows differ in more than their seed: their mean has no meaning.

    Examples
    --------
    >>> check_one_configuration([{"config_hash": "a", "k": 6}, {"config_hash": "b", "k": 9}])
    Traceback (most recent call last):
    ...
    unrolled.results.rows.ResultError: rows of different configurations are mixed; they differ in k
    """
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault((row.get("config_hash"), row.get("preset")), []).append(row)
    if len(groups) > 1:
        names = _differing_columns(list(groups.values())) or ["settings that are no column"]
        raise ResultError(
            f"rows of different configurations are mixed; they differ in {', '.join(names)}"
        )


def _differing_columns(groups: list[list[Row]]) -> list[str]:
    """Name the columns that are fixed within each configuration and differ between them."""
    columns = {key for group in groups for row in group for key in row} - {"seed", *PROVENANCE}
    return [key for key in sorted(columns) if _tells_apart(groups, key)]


def _tells_apart(groups: list[list[Row]], key: str) -> bool:
    if any(isinstance(row.get(key), list) for group in groups for row in group):
        return False  # a curve is measured, never set
    values = [{str(row.get(key)) for row in group} for group in groups]
    return all(len(v) == 1 for v in values) and len(set.union(*values)) > 1


# --- numbers of a row


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

"""Data sets from the command line: ``python -m unrolled data list | get | check``.

The scripts in ``data_scripts/`` are thin: each calls `script` with the name of its data set.
"""

from __future__ import annotations

import argparse
import inspect
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from unrolled.data.catalog import DATA_SETS, DataSet, find
from unrolled.data.fetch import FetchError, cache_folder
from unrolled.data.hub import lock_file, recorded

__all__ = ["app", "describe", "get", "script"]

app = typer.Typer(
    name="data",
    help="List, fetch and check the data sets.",
    no_args_is_help=True,
    add_completion=False,
)

Names = Annotated[list[str], typer.Argument(help="data sets, as `list` names them")]
Root = Annotated[
    Path | None, typer.Option(help="the folder that keeps them; UNROLLED_CACHE by default")
]
Subset = Annotated[
    int | None,
    typer.Option(min=1, help="only so many examples, clips, articles or tokens of each split"),
]
Mirror = Annotated[
    Path | None, typer.Option(help="a folder with the files of the hub's repository")
]
Tokenizer = Annotated[
    str | None, typer.Option(help="bytes, or the name or folder of a tokenizer of transformers")
]
TOLD = (FetchError, OSError, ValueError, ModuleNotFoundError)


@app.command("list")
def list_data_sets() -> None:
    """List the data sets: what each is, where it comes from, and under which terms."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    shown = ("name", "part", "how", "title", "source", "size", "licence")
    table = Table(title="Data sets", title_justify="left", box=SIMPLE)
    for column in shown:
        table.add_column(column, overflow="fold", no_wrap=column == "name")
    for found in DATA_SETS:
        table.add_row(*(getattr(found, column) for column in shown))
    Console(width=None if sys.stdout.isatty() else 160, markup=False).print(table)


@app.command("get")
def get_data_sets(
    names: Names,
    root: Root = None,
    subset: Subset = None,
    mirror: Mirror = None,
    tokenizer: Tokenizer = None,
) -> None:
    """Fetch data sets, or what is missing of them, and say what they are."""
    options = {"subset": subset, "mirror": mirror, "tokenizer": tokenizer}
    raise typer.Exit(_run(names, root, options))


@app.command("check")
def check_data_sets(
    names: Names,
    root: Root = None,
    subset: Subset = None,
    mirror: Mirror = None,
    tokenizer: Tokenizer = None,
) -> None:
    """Verify data sets that are here, without the network."""
    options = {"subset": subset, "mirror": mirror, "tokenizer": tokenizer}
    raise typer.Exit(_run(names, root, options, check=True))


def script(name: str, arguments: list[str] | None = None) -> int:
    """Run the script of a data set: ``NAME.py [--root DIR] [--subset N] [--check]``.

    Parameters
    ----------
    name : str
        The data set.
    arguments : list of str, optional
        Those of the command line by default.

    Returns
    -------
    int
        The exit status: 0, or 1 if the data set could not be had.
    """
    found = find(name)
    parser = argparse.ArgumentParser(description=f"Fetch {found.title}, or check it.")
    parser.add_argument("--root", type=Path, help="the folder that keeps it")
    parser.add_argument("--subset", type=int, metavar="N", help="only so many of each split")
    parser.add_argument("--check", action="store_true", help="use what is here, and no network")
    for option, about in (("mirror", "a copy of the files"), ("tokenizer", "bytes, or a name")):
        if option in _options_of(found):
            parser.add_argument(f"--{option}", help=about)
    chosen = vars(parser.parse_args(arguments))
    root, check = chosen.pop("root"), chosen.pop("check")
    return _run([name], root, chosen, check=check)


def get(name: str, options: Mapping[str, Any]) -> Any:
    """Return a data set; options that are None are left out.

    Raises
    ------
    ValueError
        The name is unknown, or the data set does not have an option.
    """
    found = find(name)
    given = {key: value for key, value in options.items() if value is not None}
    unknown = sorted(given.keys() - _options_of(found))
    if unknown:
        raise ValueError(f"{unknown[0]} is given, but {name} has no such option")
    if "mirror" in given:
        given["mirror"] = Path(given["mirror"])
    return found.load(**given)


def describe(loaded: Any) -> list[str]:
    """Return what a data set has, a line for each split."""
    counts = loaded.counts() if hasattr(loaded, "counts") else _sizes(loaded)
    return [
        f"  {split}: " + ", ".join(f"{count:,} {what}" for what, count in found.items())
        for split, found in counts.items()
    ]


def _sizes(loaded: Any) -> dict[str, dict[str, int]]:
    if isinstance(loaded, dict):  # tasks by name
        return {name: {"questions": count} for name, count in loaded.items()}
    if hasattr(loaded, "tokens"):
        return {split: {"tokens": len(loaded.tokens[split])} for split in loaded.splits}
    if hasattr(loaded, "clips"):
        return {
            split: {"clips": len(clips), "frames": len(loaded.parts[split])}
            for split, clips in loaded.clips.items()
        }
    if hasattr(loaded, "labels"):
        return {split: {"images": len(loaded.labels(split))} for split in loaded.splits}
    parts = loaded.parts  # frames of one clip, or images in folders
    return {split: {"items": len(parts[split])} for split in loaded.splits}


def _options_of(found: DataSet) -> set[str]:
    module, _, function = found.loader.partition(":")
    return set(inspect.signature(getattr(import_module(module), function)).parameters)


def _run(
    names: Iterable[str], root: Path | None, options: Mapping[str, Any], *, check: bool = False
) -> int:
    """Get data sets one after the other; print what each is, or why it failed."""
    changed = {"UNROLLED_CACHE": root and str(root), "UNROLLED_OFFLINE": "1" if check else None}
    with _environment(changed):
        failures = 0
        print(f"cache: {cache_folder()}")
        for name in names:
            failures += not _succeeds(name, options, check)
    return 1 if failures else 0


def _succeeds(name: str, options: Mapping[str, Any], check: bool) -> bool:
    try:
        loaded = get(name, options)
        lines = describe(loaded) + _commit(name) + (_verified(loaded) if check else [])
    except TOLD as error:
        print(f"{name}: {error}", file=sys.stderr)
        return False
    print(f"{name}: {find(name).title}", *lines, sep="\n", flush=True)
    return True


def _commit(name: str) -> list[str]:
    """Say which commit of the hub is recorded, and where: what must be equal to be compared."""
    kind, _, repository = find(name).source.partition(":")
    revision = recorded(repository).get("revision") if kind == "hub" else None
    return [f"  commit {revision} of {repository}, in {lock_file()}"] if revision else []


def _verified(loaded: Any) -> list[str]:
    """Verify what is not verified at each use: the full files of tokens."""
    if not hasattr(loaded, "tokens"):
        return []
    count = sum(files.check_sums() for files in loaded.tokens.values())
    return [f"  {count} files of tokens are as they were written"]


@contextmanager
def _environment(changed: Mapping[str, str | None]) -> Iterator[None]:
    """Set variables for a while; those that are None stay as they are."""
    old = {name: os.environ.get(name) for name in changed}
    os.environ.update({name: value for name, value in changed.items() if value is not None})
    try:
        yield
    finally:
        for name, value in old.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value

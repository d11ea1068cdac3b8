"""Tables of the Hugging Face hub: loaded by `datasets`, pinned on first use, then kept.

A `HubTable` names a repository and what is wanted from it. `table` loads a split into the cache
and returns it; `stream` reads a split without keeping it. Both take a *mirror* in place of the
hub: a folder with a copy of the repository's files.

Nobody has published checksums of these tables, so they are trusted on first use: the commit of
the repository, the number of rows and a SHA-256 of their content go into ``data.lock.json`` in the
cache folder. From then on that commit is loaded and nothing else, and a table with another content
is refused. Copy the file to another machine, and that one loads the same. To begin anew, remove
the entry of the repository.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unrolled.data._extra import need
from unrolled.data.fetch import (
    FetchError,
    OfflineError,
    cache_folder,
    derive,
    locked,
    offline,
    require_space,
)

if TYPE_CHECKING:
    import datasets

__all__ = ["HubTable", "lock_file", "recorded", "resolve", "stream", "table"]

PURPOSE = "loading from the hub"
MIRROR = "mirror"


@dataclass(frozen=True)
class HubTable:
    """What is wanted from a repository of the hub.

    Parameters
    ----------
    repository : str
        ``OWNER/NAME``.
    config : str or None
        Which of its configurations.
    columns : tuple of str
        The columns that are used; the others are left out.
    rows : dict of str to int
        Published number of rows of each split, compared where it is known.
    num_bytes : int
        Room on the disk that loading may take, roughly.
    data_files : str or None
        The file to read, where the repository is no set of tables.
    revision : str or None
        A commit to be loaded whatever was recorded.

    Examples
    --------
    >>> HubTable("stanfordnlp/imdb", "plain_text", ("text", "label")).repository
    'stanfordnlp/imdb'
    >>> HubTable("imdb", None, ("text",))
    Traceback (most recent call last):
    ValueError: repository is 'imdb', but must have the form OWNER/NAME
    """

    repository: str
    config: str | None
    columns: tuple[str, ...]
    rows: dict[str, int] = field(default_factory=dict)
    num_bytes: int = 0
    data_files: str | None = None
    revision: str | None = None

    def __post_init__(self):
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", self.repository):
            found = repr(self.repository)
            raise ValueError(f"repository is {found}, but must have the form OWNER/NAME")
        if not self.columns:
            raise ValueError("columns is empty, but at least one is needed")
        _check_revision(self.revision)


def table(
    source: HubTable, split: str, *, revision: str | None = None, mirror: Path | None = None
) -> datasets.Dataset:
    """Return a split as a table: loaded and recorded the first time, then read from the cache.

    Parameters
    ----------
    source : HubTable
    split : str
        As the repository calls it.
    revision : str, optional
        A commit (40 hexadecimal digits); the recorded one by default, and the newest where none
        is recorded yet.
    mirror : Path, optional
        A folder with the repository's files, in place of the hub.

    Returns
    -------
    datasets.Dataset
        With the columns of ``source``, memory-mapped.

    Raises
    ------
    unrolled.data.fetch.OfflineError
        It is not in the cache, and the network is forbidden.
    unrolled.data.fetch.FetchError
        It could not be loaded, or is not what was recorded.
    """
    datasets = need("datasets", PURPOSE)
    revision = resolve(source, revision, mirror)
    what = f"{source.config or 'default'}-{split}"
    name = f"hub/{source.repository.replace('/', '--')}/{what}-{revision[:16]}"
    folder = derive(name, lambda folder: _load(source, split, revision, mirror, folder))
    return datasets.load_from_disk(str(folder))


def stream(
    source: HubTable, split: str, *, revision: str | None = None, mirror: Path | None = None
) -> tuple[datasets.IterableDataset, str]:
    """Return a split that is read as it comes, and the commit that it is read from.

    Parameters
    ----------
    source : HubTable
    split : str
        As the repository calls it.
    revision, mirror
        As in `table`.

    Raises
    ------
    unrolled.data.fetch.OfflineError
        The network is forbidden, and there is no mirror.
    unrolled.data.fetch.FetchError
        It could not be opened.
    """
    datasets = need("datasets", PURPOSE)
    revision = resolve(source, revision, mirror)
    if offline() and mirror is None:
        raise OfflineError(_offline_message(source))
    with _failure_told(source, mirror):
        opened = datasets.load_dataset(
            **_place(source, revision, mirror), split=split, streaming=True
        ).select_columns(list(source.columns))
    if mirror is None:
        _record(source.repository, revision)
    return opened, revision


def lock_file() -> Path:
    """Return where the commits and checksums of the first use are recorded."""
    return cache_folder() / "data.lock.json"


def recorded(repository: str) -> dict[str, Any]:
    """Return what is recorded of a repository: ``revision`` and ``tables``; empty if nothing is.

    Raises
    ------
    ValueError
        The file is damaged.
    """
    path = lock_file()
    if not path.exists():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8")).get(repository, {})
    except (ValueError, AttributeError) as error:
        raise ValueError(
            f"{path} is damaged: {error}. What you can do: restore it, or remove it, and what is "
            "loaded next is trusted"
        ) from error


def resolve(source: HubTable, revision: str | None, mirror: Path | None) -> str:
    """Return the commit to load: the one asked for, pinned, recorded, or else the newest.

    Parameters
    ----------
    source : HubTable
    revision, mirror
        As in `table`. Of a mirror, a hash of its list of files takes the place of the commit.

    Raises
    ------
    unrolled.data.fetch.OfflineError
        None is known, and the network is forbidden.
    unrolled.data.fetch.FetchError
        The hub could not be asked.
    """
    _check_revision(revision)
    if mirror is not None:
        return f"{MIRROR}-{_listing_hash(mirror)}"
    known = revision or source.revision or recorded(source.repository).get("revision")
    if known:
        return known
    if offline():
        raise OfflineError(_offline_message(source))
    hub = need("huggingface_hub", PURPOSE)
    with _failure_told(source, None):
        return hub.HfApi().dataset_info(source.repository).sha


def _listing_hash(mirror: Path) -> str:
    """Return a hash of names, sizes and times: another copy is another table."""
    if not mirror.is_dir():
        raise ValueError(f"mirror is {str(mirror)!r}, but must be a folder")
    files = sorted(path for path in mirror.rglob("*") if path.is_file())
    facts = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _load(source: HubTable, split: str, revision: str, mirror: Path | None, folder: Path) -> None:
    import datasets

    if offline() and mirror is None:
        raise OfflineError(_offline_message(source))
    require_space(folder, source.num_bytes)
    building = folder / "building"
    with _failure_told(source, mirror):
        found = datasets.load_dataset(
            **_place(source, revision, mirror), split=split, cache_dir=str(building)
        )
        found = found.select_columns(list(source.columns))
        found.save_to_disk(str(folder))
    if mirror is None:  # whoever has the files knows what they are
        _compare(source, split, revision, found)
    del found  # it maps the files below
    shutil.rmtree(building)


def _place(source: HubTable, revision: str, mirror: Path | None) -> dict[str, Any]:
    """Return the arguments of `datasets.load_dataset` that say where to load from."""
    if mirror is not None:
        place = {"path": str(mirror), "name": source.config}
    else:
        place = {"path": source.repository, "name": source.config, "revision": revision}
    return place if source.data_files is None else {**place, "data_files": source.data_files}


def _compare(source: HubTable, split: str, revision: str, found: datasets.Dataset) -> None:
    """Compare a table with what was recorded of this commit, and record it if nothing was."""
    published = source.rows.get(split, len(found))
    if len(found) != published:
        raise FetchError(
            f"{source.repository}, {split}, has {len(found):,} rows at {revision}, but "
            f"{published:,} were published.\nWhat you can do: load another revision."
        )
    name = f"{source.config or 'default'}/{split}"
    facts = {"rows": len(found), "sha256": _content_hash(found)}
    entry = recorded(source.repository)
    known = entry.get("tables", {}).get(name) if entry.get("revision") == revision else None
    if known is None:
        _record(source.repository, revision, {name: facts})
    elif known != facts:
        raise FetchError(
            f"{source.repository}, {name}, is not what was loaded first from {revision}.\n"
            f"What you can do: compare the two, and remove the entry of {source.repository} from "
            f"{lock_file()} to trust what is there now."
        )


def _content_hash(found: datasets.Dataset) -> str:
    """Return the SHA-256 of all rows as JSON: the same for each version of the libraries."""
    digest = hashlib.sha256()
    for row in found:
        digest.update(json.dumps(row, sort_keys=True).encode() + b"\n")
    return digest.hexdigest()


def _record(repository: str, revision: str, tables: dict[str, Any] | None = None) -> None:
    """Write into the lock file; the commit that was recorded first stays."""
    path = lock_file()
    with locked(path):
        entry = recorded(repository)
        if entry.get("revision", revision) != revision:
            return  # a commit that was asked for by name is not the one to be trusted
        old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        merged = {**entry.get("tables", {}), **(tables or {})}
        new = {**old, repository: {"revision": revision, "tables": merged}}
        part = path.with_name(path.name + ".part")
        part.write_text(json.dumps(new, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        part.replace(path)


def _check_revision(revision: str | None) -> None:
    if revision is not None and not re.fullmatch("[0-9a-f]{40}", revision):
        raise ValueError(f"revision is {revision!r}, but must be a commit of 40 hexadecimal digits")


@contextmanager
def _failure_told(source: HubTable, mirror: Path | None) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # clients raise those of their HTTP library, which changes
        place = mirror or os.environ.get("HF_ENDPOINT", "https://huggingface.co")
        reason = f"{type(error).__name__}: {error}"
        raise FetchError(
            f"{source.repository} could not be loaded from {place}:\n    "
            + reason.replace("\n", "\n    ")
            + f"\nWhat you can do: {_hint(source, mirror, reason)}.",
            {source.repository: error},
        ) from error


def _hint(source: HubTable, mirror: Path | None, reason: str) -> str:
    page = f"https://huggingface.co/datasets/{source.repository}"
    if mirror is not None:
        return "copy all files of the repository into the folder, its README.md too"
    if re.search("GatedRepo|gated dataset|40[13] ", reason):
        return f"accept the terms at {page} with a browser, and run `hf auth login`"
    if re.search("NotFound|404", reason):
        return f"look at {page} whether it has moved; --mirror takes a copy of its files"
    if "No space left" in reason:
        return "make room on the disk, or set UNROLLED_CACHE to a folder on a larger one"
    return (
        "check the network and run the same again: files that are here are not loaded twice; "
        "HF_ENDPOINT names a mirror of the hub"
    )


def _offline_message(source: HubTable) -> str:
    return (
        f"{source.repository} is not in the cache and UNROLLED_OFFLINE is set, so it cannot be "
        "loaded.\nWhat you can do: run once with the network and UNROLLED_OFFLINE unset, copy the "
        f"folder {cache_folder()} from a machine that has it, or name a copy of the repository's "
        "files with --mirror."
    )

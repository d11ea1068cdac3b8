"""Corpora that do not fit into memory: tokenised once, kept in files that are mapped.

`tokenise` reads documents one after the other, and writes their token ids into files of equal
length. It may be stopped at any moment, or ask for more tokens later: it goes on at the token
where it stopped, and the files are those of a run without a stop. `TokenFiles` makes one row of
tokens of the files; `unrolled.data.text.TokenBatches` and `evaluation_windows` take it in place of
a tensor.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from unrolled.data.fetch import FetchError, locked, require_space

__all__ = ["Documents", "TokenFiles", "existing", "tokenise"]

STATE = "state.json"
BATCH = 256  # documents that are tokenised together


class Documents(Protocol):
    """What `tokenise` reads: a stream that knows where it is, such as `datasets` has them."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield documents, each with its text under ``text``."""

    def state_dict(self) -> dict[str, Any]:
        """Return where the stream is, as what JSON can write."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there at the next iteration."""


@dataclass
class _State:
    """What is in the files, and how to go on: ``skip`` tokens of the next batch are there."""

    recipe: str
    vocab_size: int
    shard_tokens: int
    num_tokens: int = 0
    skip: int = 0
    documents: int = 0
    ended: bool = False
    stream: dict[str, Any] | None = None
    sums: dict[str, str] = field(default_factory=dict)

    @property
    def dtype(self) -> str:
        return "uint16" if self.vocab_size <= 2**16 else "uint32"


def tokenise(
    documents: Documents,
    encode: Callable[[Sequence[str]], Iterable[Sequence[int]]],
    folder: Path,
    *,
    vocab_size: int,
    end: int,
    num_tokens: int,
    recipe: str,
    shard_tokens: int = 100_000_000,
) -> TokenFiles:
    """Write the first tokens of a stream of documents into files, or go on writing them.

    Parameters
    ----------
    documents : Documents
        Read in batches of 256. It must yield the same documents in the same order each time.
    encode : callable
        Maps texts to their token ids.
    folder : Path
        Where the files are. What is there already is kept.
    vocab_size : int
        All ids are below it; up to 65,536 they take two bytes each, else four.
    end : int
        The id that follows each document.
    num_tokens : int
        How many tokens there are to be in all. If the stream ends before, there are fewer.
    recipe : str
        What the tokens depend on: data set, commit, tokenizer. Files of another recipe are refused.
    shard_tokens : int
        Tokens per file, but for the last one.

    Returns
    -------
    TokenFiles
        At least ``num_tokens`` tokens, or all there are.

    Raises
    ------
    ValueError
        The files there have another recipe or another length, or an id is out of range.
    OSError
        The disk is full or cannot be written; what is there can be used to go on.
    """
    _check_positive(num_tokens=num_tokens, shard_tokens=shard_tokens, vocab_size=vocab_size)
    if not 0 <= end < vocab_size:
        raise ValueError(f"end is {end}, but must be in 0..{vocab_size - 1}")
    wanted = _State(recipe, vocab_size, shard_tokens)
    with locked(folder):
        state = _read_state(folder) or wanted
        _check_same(folder, state, wanted)
        if state.num_tokens < num_tokens and not state.ended:
            missing = (num_tokens - state.num_tokens) * np.dtype(state.dtype).itemsize
            require_space(folder, missing)
            _go_on(documents, _checked(encode, vocab_size, end), folder, state, num_tokens)
    return TokenFiles.open(folder)


def _checked(encode: Callable, vocab_size: int, end: int) -> Callable[[list[str]], np.ndarray]:
    """Return a function from texts to one row of ids, with the end after each text."""

    def encode_all(texts: list[str]) -> np.ndarray:
        rows = [[*ids, end] for ids in encode(texts)]
        ids = np.fromiter((i for row in rows for i in row), np.int64)
        if len(ids) and not 0 <= ids.min() <= ids.max() < vocab_size:
            raise ValueError(f"ids are {ids.min()} to {ids.max()}, but vocab_size is {vocab_size}")
        return ids

    return encode_all


def _go_on(
    documents: Documents,
    encode: Callable[[list[str]], np.ndarray],
    folder: Path,
    state: _State,
    num_tokens: int,
) -> None:
    _cut(folder, state)
    if state.stream is not None:
        documents.load_state_dict(state.stream)
    source = iter(documents)
    while state.num_tokens < num_tokens:
        texts = [document["text"] for document in islice(source, BATCH)]
        if not texts:
            state.ended = True
            return _write_state(folder, state)
        ids = encode(texts)
        left = ids[state.skip :][: num_tokens - state.num_tokens]
        _append(folder, state, left)
        if state.skip + len(left) == len(ids):
            state.stream, state.skip = documents.state_dict(), 0
            state.documents += len(texts)
        else:  # the next call reads this batch again, and leaves out what is written
            state.skip += len(left)
        _write_state(folder, state)
    return None


def _append(folder: Path, state: _State, ids: np.ndarray) -> None:
    """Write ids behind those that are there, into as many files as it takes."""
    while len(ids):
        number, place = divmod(state.num_tokens, state.shard_tokens)
        part, ids = np.split(ids, [state.shard_tokens - place])
        path = folder / _name(number)
        with path.open("ab") as stream:
            stream.write(part.astype(state.dtype).tobytes())
            stream.flush()
            os.fsync(stream.fileno())
        state.num_tokens += len(part)
        if state.num_tokens % state.shard_tokens == 0:
            state.sums[path.name] = _sha256(path)


def _cut(folder: Path, state: _State) -> None:
    """Take away what was written after the state was: it will be written again."""
    size = np.dtype(state.dtype).itemsize
    full, place = divmod(state.num_tokens, state.shard_tokens)
    for path in folder.glob("tokens-*.bin"):
        number = int(path.stem.removeprefix("tokens-"))
        if number > full or (number == full and not place):
            path.unlink()
        elif number == full:
            os.truncate(path, place * size)


def _name(number: int) -> str:
    return f"tokens-{number:05d}.bin"


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _write_state(folder: Path, state: _State) -> None:
    part = folder / f"{STATE}.part"
    with part.open("w", encoding="utf-8") as stream:
        json.dump(asdict(state), stream)
        stream.flush()
        os.fsync(stream.fileno())
    part.replace(folder / STATE)


def _read_state(folder: Path) -> _State | None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / STATE
    if not path.exists():
        return None
    try:
        return _State(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {error}. Remove {folder} to begin anew") from error


def _check_same(folder: Path, found: _State, wanted: _State) -> None:
    for name in ("recipe", "vocab_size", "shard_tokens"):
        old, new = getattr(found, name), getattr(wanted, name)
        if old != new:
            raise ValueError(
                f"{name} is {new!r}, but the tokens in {folder} were made with {old!r}: "
                "choose another folder, or remove this one"
            )


@dataclass(frozen=True, eq=False)
class TokenFiles:
    """One long row of token ids in several files, read as it is asked for.

    Parameters
    ----------
    shards : tuple of ndarray
        Mapped files, (S,) each, all as long but the last.
    recipe : str
        What the tokens depend on, for result rows.
    vocab_size : int
        All ids are below it.
    documents : int
        How many whole documents there are.
    sums : dict of Path to str
        SHA-256 of the full files.

    Examples
    --------
    >>> files = TokenFiles((np.arange(4, dtype=np.uint16), np.arange(4, 6, dtype=np.uint16)))
    >>> len(files), files[2:5], files[torch.tensor([[0, 5]])]
    (6, tensor([2, 3, 4]), tensor([[0, 5]]))
    """

    shards: tuple[np.ndarray, ...]
    recipe: str = ""
    vocab_size: int = 0
    documents: int = 0
    sums: dict[Path, str] = field(default_factory=dict)

    ndim = 1

    @classmethod
    def open(cls, folder: Path) -> TokenFiles:
        """Map the files of a folder that `tokenise` wrote.

        Raises
        ------
        unrolled.data.fetch.FetchError
            There are none, or one is missing or has another length than was recorded.
        """
        state = _read_state(folder)
        if state is None or not state.num_tokens:
            raise FetchError(f"there are no tokens in {folder}. What you can do: run `tokenise`")
        count = -(-state.num_tokens // state.shard_tokens)
        lengths = [state.shard_tokens] * (count - 1)
        lengths.append(state.num_tokens - sum(lengths))
        shards = [_map(folder / _name(i), state.dtype, n) for i, n in enumerate(lengths)]
        sums = {folder / name: sha256 for name, sha256 in state.sums.items()}
        return cls(tuple(shards), state.recipe, state.vocab_size, state.documents, sums)

    def check_sums(self) -> int:
        """Compare the SHA-256 of each full file with what was recorded; return how many there are.

        Raises
        ------
        unrolled.data.fetch.FetchError
            A file was changed.
        """
        for path, sha256 in self.sums.items():
            if _sha256(path) != sha256:
                raise FetchError(f"{path} was changed. Remove {path.parent} to begin anew")
        return len(self.sums)

    @property
    def shape(self) -> tuple[int]:
        """Number of tokens, as the shape of a tensor, (T,)."""
        return (len(self),)

    def __len__(self) -> int:
        return sum(len(shard) for shard in self.shards)

    def __getitem__(self, places: slice | Tensor) -> Tensor:
        """Return the tokens at places of any shape, or of a slice, int64 of the same shape."""
        if isinstance(places, slice):
            return self._slice(*places.indices(len(self)))
        flat = np.asarray(places).reshape(-1)
        if len(flat) and not 0 <= flat.min() <= flat.max() < len(self):
            raise IndexError(f"places are {flat.min()} to {flat.max()} of {len(self)} tokens")
        numbers, rest = np.divmod(flat, len(self.shards[0]))
        found = np.empty(len(flat), np.int64)
        for number in np.unique(numbers):
            here = numbers == number
            found[here] = self.shards[number][rest[here]]
        return torch.from_numpy(found).reshape(np.shape(places))

    def _slice(self, start: int, stop: int, step: int) -> Tensor:
        if step != 1:
            raise IndexError(f"step is {step}, but must be 1")
        parts, first = [], 0
        for shard in self.shards:
            part = shard[max(start - first, 0) : max(stop - first, 0)]
            parts.append(part.astype(np.int64))
            first += len(shard)
        return torch.from_numpy(np.concatenate(parts))


def existing(folder: Path, num_tokens: int) -> TokenFiles | None:
    """Return the files of a folder if so many tokens are there, or all there are; else None."""
    state = _read_state(folder) if folder.is_dir() else None
    if state is None or not (state.ended or state.num_tokens >= num_tokens):
        return None
    return TokenFiles.open(folder)


def _map(path: Path, dtype: str, count: int) -> np.ndarray:
    size = count * np.dtype(dtype).itemsize
    found = path.stat().st_size if path.exists() else None
    if found is None or found < size:
        state = "is missing" if found is None else f"has {found:,} bytes instead of {size:,}"
        raise FetchError(f"{path} {state}. Remove {path.parent} to begin anew")
    return np.memmap(path, dtype=dtype, mode="r", shape=(count,))


def _check_positive(**counts: int) -> None:
    for name, value in counts.items():
        if value < 1:
            raise ValueError(f"{name} is {value}, but must be at least 1")

"""The data sets of the papers as an experiment takes them: from the cache, never from the network.

Some are large, some slow to tokenise, some gated, and under ``accelerate launch`` every process
would ask for them. So an experiment fetches none: `present` returns what is in the cache, or says
with which command to get it, before any work has begun. Nothing else is taken in its place.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from torch import Tensor

from unrolled.data._extra import need
from unrolled.data.catalog import find
from unrolled.data.fetch import FetchError
from unrolled.data.text import BpeTokenizer, ByteTokenizer, evaluation_windows
from unrolled.data.tokens import TokenFiles

__all__ = ["bytes_of", "corpus_tokenizer", "present", "present_tokens", "pretrained_part"]

OFFLINE = "UNROLLED_OFFLINE"


def present(name: str, **options: Any) -> Any:
    """Return a data set of `unrolled.data.catalog` that is in the cache.

    Parameters
    ----------
    name : str
        As ``python -m unrolled data list`` has it.
    options
        Those of its loader, such as ``subset`` and ``tokenizer``. None is left out.

    Raises
    ------
    unrolled.data.fetch.FetchError
        It is not in the cache, or not whole; the message says which command gets it, and for a
        gated set whom to ask.
    """
    given = {key: value for key, value in options.items() if value is not None}
    with _without_network():
        try:
            return find(name).load(**given)
        except FetchError as error:
            words = [f"--{key} {value}" for key, value in given.items()]
            command = " ".join(["python -m unrolled data get", name, *words])
            raise FetchError(
                f"{name} is not in the cache, and an experiment fetches none of the papers' data. "
                f"Get it first:\n    {command}\nWhy it cannot be used as it is: {error}"
            ) from error


def present_tokens(
    name: str, tokenizer: str, num_tokens: int, vocab_size: int, length: int, windows: int
) -> tuple[TokenFiles, tuple[Tensor, Tensor], int]:
    """Return a corpus of tokens to train on, windows to validate on, and the bytes of these.

    Parameters
    ----------
    name : str
        Of the corpus, as for `present`.
    tokenizer : str
        As for `corpus_tokenizer`.
    num_tokens : int
        Of the subset; 0 is the whole corpus.
    vocab_size : int
        Rows of the model's embedding.
    length, windows : int
        Tokens of a window, N; windows to validate on, W. They are (W, N) both, inputs and targets.

    Raises
    ------
    unrolled.data.fetch.FetchError
        It is not in the cache; the message says how to get it.
    ValueError
        If the tokenizer has more than `vocab_size` tokens.
    """
    corpus = present(name, subset=num_tokens or None, tokenizer=tokenizer)
    if vocab_size < corpus.vocab_size:
        allowed = f"at least {corpus.vocab_size}, as many as {tokenizer} has"
        raise ValueError(f"vocab_size must be {allowed}, got {vocab_size!r}")
    validation = evaluation_windows(corpus.tokens["validation"], length, windows)
    return corpus.tokens["train"], validation, bytes_of(validation[1], tokenizer)


@contextmanager
def _without_network() -> Iterator[None]:
    before = os.environ.get(OFFLINE)
    os.environ[OFFLINE] = "1"
    try:
        yield
    finally:
        del os.environ[OFFLINE]
        if before is not None:
            os.environ[OFFLINE] = before


def corpus_tokenizer(name: str) -> ByteTokenizer | BpeTokenizer:
    """Return the tokenizer of a corpus: the bytes, or a byte-level one of `transformers`.

    Parameters
    ----------
    name : str
        ``"bytes"``, or the name or folder of a tokenizer whose tokens are pieces of bytes, such as
        those of GPT-2 and Qwen3.

    Raises
    ------
    unrolled.data.fetch.FetchError
        It is not in the cache of `transformers`.

    Examples
    --------
    >>> corpus_tokenizer("bytes").vocab_size
    256
    """
    return _with_end(name)[0]


def bytes_of(tokens: Tensor, name: str) -> int:
    """Return how many bytes of text tokens of a corpus stand for; its ends of documents are none.

    Parameters
    ----------
    tokens : Tensor
        Of any shape.
    name : str
        Of the tokenizer, as in `corpus_tokenizer`.

    Examples
    --------
    >>> import torch
    >>> bytes_of(torch.tensor([72, 105, 0]), "bytes")
    2
    """
    tokenizer, end = _with_end(name)
    return tokenizer.num_bytes(tokens[tokens != end])


@lru_cache(maxsize=2)
def _with_end(name: str) -> tuple[ByteTokenizer | BpeTokenizer, int]:
    """Return a tokenizer, and the token that `unrolled.data.corpora` puts behind a document."""
    if name == "bytes":
        return ByteTokenizer(), 0
    auto = need("transformers", "the tokenizer of a corpus").AutoTokenizer
    found = pretrained_part(auto, name)
    return BpeTokenizer(found.backend_tokenizer.to_str()), found.eos_token_id


def pretrained_part(kind: Any, place: str, **options: Any) -> Any:
    """Return a model or a tokenizer of `transformers` that is here: ``kind.from_pretrained``.

    Parameters
    ----------
    kind : type
        A class of `transformers` with ``from_pretrained``.
    place : str
        A folder, or a name of the hub, of which the files must be in the cache.
    options
        Those of ``from_pretrained``.

    Raises
    ------
    unrolled.data.fetch.FetchError
        It is not here, or not whole; the message says how to get it.
    """
    try:
        return kind.from_pretrained(place, local_files_only=True, **options)
    except (OSError, ValueError) as error:
        raise FetchError(
            f"{place} is not here, and an experiment fetches no models. Get it first:\n"
            f"    hf download {place} --include '*.json' '*.txt' 'model.safetensors'\n"
            f"or name a folder that has it. Why it cannot be used as it is: {error}"
        ) from error

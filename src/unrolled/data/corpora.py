"""The corpora of the papers at full size: FineWeb-Edu, SlimPajama-6B and WikiText-2.

The first two are streamed from the hub and tokenised once (see `unrolled.data.tokens`); the last
is small, and comes as the `unrolled.data.text.TextCorpus` that the shipped texts are.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from unrolled.data._extra import need
from unrolled.data.classification import spread
from unrolled.data.fetch import FetchError, cache_folder, offline
from unrolled.data.hub import HubTable, resolve, stream, table
from unrolled.data.text import ByteTokenizer, Document, TextCorpus
from unrolled.data.tokens import Documents, TokenFiles, existing, tokenise

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = [
    "FINEWEB_EDU",
    "SLIMPAJAMA",
    "WIKITEXT2",
    "TokenisedCorpus",
    "fineweb_edu",
    "slimpajama",
    "wikitext2",
]

FINEWEB_EDU = HubTable("HuggingFaceFW/fineweb-edu", "sample-100BT", columns=("text",))
"""Pages of the web that teach something: a sample of 100 billion tokens."""

SLIMPAJAMA = HubTable("DKYoon/SlimPajama-6B", None, columns=("text",))
"""A sample of 6 billion tokens of SlimPajama: web, code, books, articles."""

WIKITEXT2 = HubTable(
    "Salesforce/wikitext",
    "wikitext-2-raw-v1",
    columns=("text",),
    rows={"train": 36_718, "validation": 3_760, "test": 4_358},
    num_bytes=60_000_000,
    revision="b08601e04326c79dfdd32d625aee71d232d685c3",
)
"""Good and featured articles of Wikipedia, line by line."""

FINEWEB_TOKENS = 12_127 * 524_288  # the steps and the batch of the paper's larger model
SLIMPAJAMA_TOKENS = 6_000_000_000
VALIDATION_TOKENS = 5_000_000
VALIDATION_DOCUMENTS = 10_000  # of a stream without a validation split, its first
QWEN3, GPT2 = "Qwen/Qwen3-0.6B-Base", "openai-community/gpt2"
HEADING = re.compile(r" = [^=].*[^=] = \n")


@dataclass(frozen=True, eq=False)
class TokenisedCorpus:
    """A corpus as token ids, with its provenance.

    Parameters
    ----------
    name : str
        Short name, used in result rows.
    tokens : dict of str to TokenFiles
        Of each split.
    tokenizer : str
        ``"bytes"``, or the name or folder of a tokenizer of the library `transformers`.
    licence, source, attribution : str
        Under which terms, from where, and whom to name.
    """

    name: str
    tokens: dict[str, TokenFiles]
    tokenizer: str
    licence: str = ""
    source: str = ""
    attribution: str = ""

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that there are."""
        return tuple(self.tokens)

    @property
    def vocab_size(self) -> int:
        """Number of ids, V."""
        return self.tokens["train"].vocab_size


def fineweb_edu(
    subset: int | None = None,
    *,
    tokenizer: str = QWEN3,
    revision: str | None = None,
    mirror: Path | None = None,
) -> TokenisedCorpus:
    """Return FineWeb-Edu as tokens: read from the hub, tokenised, kept, and read once only.

    The first 10,000 documents are held out for validation, of which at most 5 million tokens are
    kept; training has those after them. Nothing is kept of the text. An interrupted call, and one
    that asks for more tokens, goes on at the token where the last one stopped.

    Parameters
    ----------
    subset : int, optional
        Tokens for training; 6.36 billion by default, as many as the paper's larger model saw.
    tokenizer : str
        ``"bytes"``, or the name or folder of a tokenizer of `transformers`.
    revision, mirror
        As in `unrolled.data.hub.table`.

    Returns
    -------
    TokenisedCorpus
        With the splits "train" and "validation".

    Raises
    ------
    unrolled.data.fetch.FetchError
        The hub or the tokenizer could not be had; the message says why and what to do.
    """
    return _tokenised(
        "fineweb_edu",
        FINEWEB_EDU,
        {
            "train": ("train", lambda rows: rows.skip(VALIDATION_DOCUMENTS)),
            "validation": ("train", lambda rows: rows.take(VALIDATION_DOCUMENTS)),
        },
        _sizes(subset, FINEWEB_TOKENS),
        tokenizer,
        _Where(revision, mirror),
        licence="ODC-By 1.0, and the terms of use of Common Crawl",
        attribution="G. Penedo et al., The FineWeb Datasets, NeurIPS 2024.",
    )


def slimpajama(
    subset: int | None = None,
    *,
    tokenizer: str = GPT2,
    revision: str | None = None,
    mirror: Path | None = None,
) -> TokenisedCorpus:
    """Return SlimPajama-6B as tokens: read from the hub, tokenised, kept, and read once only.

    Parameters
    ----------
    subset : int, optional
        Tokens for training; at most 6 billion by default, which is all there are.
    tokenizer, revision, mirror
        As in `fineweb_edu`.

    Returns
    -------
    TokenisedCorpus
        With the published splits; "validation" and "test" have at most 5 million tokens.

    Raises
    ------
    unrolled.data.fetch.FetchError
        The hub or the tokenizer could not be had; the message says why and what to do.
    """
    return _tokenised(
        "slimpajama",
        SLIMPAJAMA,
        {split: (split, lambda rows: rows) for split in ("train", "validation", "test")},
        _sizes(subset, SLIMPAJAMA_TOKENS),
        tokenizer,
        _Where(revision, mirror),
        licence="That of each part: see the card of cerebras/SlimPajama-627B",
        attribution="D. Soboleva et al., SlimPajama, 2023; sampled by D. Yoon.",
    )


def wikitext2(
    subset: int | None = None, *, revision: str | None = None, mirror: Path | None = None
) -> TextCorpus:
    r"""Return WikiText-2, one document per article, with its published splits.

    The bytes are those of the published files: ``text(split) + "\n"`` is the file of a split, but
    for the lines before its first heading.

    Parameters
    ----------
    subset : int, optional
        Keep only so many articles of each split, spread evenly; all by default.
    revision, mirror
        As in `unrolled.data.hub.table`.

    Raises
    ------
    unrolled.data.fetch.FetchError
        It is not cached and cannot be loaded; the message says why and what to do.
    """
    documents = []
    for split in WIKITEXT2.rows:
        rows = table(WIKITEXT2, split, revision=revision, mirror=mirror)["text"]
        articles = list(_articles(rows, split))
        documents += [articles[place] for place in spread(len(articles), subset)]
    return TextCorpus(
        name="wikitext2",
        documents=tuple(documents),
        licence="CC BY-SA 3.0 and GFDL",
        source=f"hub:{WIKITEXT2.repository}",
        attribution="S. Merity, C. Xiong, J. Bradbury and R. Socher, Pointer Sentinel Mixture "
        "Models, ICLR 2017; text by contributors to Wikipedia.",
    )


def _articles(lines: Iterable[str], split: str) -> Iterator[Document]:
    """Cut lines into articles: each begins with a heading of the first level."""
    article: list[str] = []
    for line in [*lines, None]:
        is_heading = line is not None and HEADING.fullmatch(line) is not None
        if article and (is_heading or line is None):
            title = article[0].strip(" =\n")
            text = "".join(article).removesuffix("\n")
            yield Document(title, None, text, split, "Wikipedia contributors")
            article = []
        if is_heading or (article and line is not None):
            article.append(line or " \n")  # the hub leaves out the space of an empty line


@dataclass(frozen=True)
class _Where:
    revision: str | None
    mirror: Path | None


def _sizes(subset: int | None, default: int) -> dict[str, int]:
    if subset is not None and subset < 1:
        raise ValueError(f"subset is {subset}, but must be at least 1")
    train = subset or default
    held_out = min(VALIDATION_TOKENS, max(train // 10, 1))
    return {"train": train, "validation": held_out, "test": held_out}


def _tokenised(
    name: str,
    source: HubTable,
    splits: dict[str, tuple[str, Callable]],
    sizes: dict[str, int],
    tokenizer: str,
    where: _Where,
    **facts: str,
) -> TokenisedCorpus:
    revision = resolve(source, where.revision, where.mirror)
    tokens = {}
    for split, (published, select) in splits.items():
        recipe = f"{source.repository} {revision} {published} {tokenizer}"
        key = hashlib.sha256(recipe.encode()).hexdigest()[:16]
        folder = cache_folder() / "tokens" / name / f"{split}-{key}"
        tokens[split] = existing(folder, sizes[split]) or _tokenise(
            select(stream(source, published, revision=where.revision, mirror=where.mirror)[0]),
            tokenizer,
            folder,
            sizes[split],
            recipe,
        )
    return TokenisedCorpus(name, tokens, tokenizer, source=f"hub:{source.repository}", **facts)


def _tokenise(
    documents: Documents, tokenizer: str, folder: Path, num_tokens: int, recipe: str
) -> TokenFiles:
    encode, vocab_size, end = _encoder(tokenizer)
    return tokenise(
        documents,
        encode,
        folder,
        vocab_size=vocab_size,
        end=end,
        num_tokens=num_tokens,
        recipe=recipe,
    )


def _encoder(tokenizer: str) -> tuple[Callable, int, int]:
    """Return what maps texts to ids, how many ids there are, and the one that ends a document."""
    if tokenizer == "bytes":  # no text has a zero byte
        return lambda texts: [text.encode() for text in texts], ByteTokenizer.vocab_size, 0
    transformers = need("transformers", "tokenising")
    try:
        found = transformers.AutoTokenizer.from_pretrained(tokenizer, local_files_only=offline())
    except (OSError, ValueError) as error:
        raise FetchError(
            f"the tokenizer {tokenizer} could not be loaded: {error}\nWhat you can do: check the "
            "network, or name a folder that has it, or 'bytes', with --tokenizer"
        ) from error
    if found.eos_token_id is None:
        raise ValueError(f"tokenizer is {tokenizer!r}, but must have a token that ends a text")
    return lambda texts: _encode(found, texts), len(found), found.eos_token_id


def _encode(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[int]]:
    # A text longer than the model's context is meant to be: the warning would say nothing.
    return tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]

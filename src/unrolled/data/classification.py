"""The labelled texts of the papers at full size: IMDb and MNLI, from the hub.

Both come as the `unrolled.data.reviews.LabelledTexts` that the small sets are, with a validation
split held out of what was published for training: by a hash of the text, so it depends on no order
and copies stay together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unrolled.data.hub import HubTable, table
from unrolled.data.reviews import Example, LabelledTexts

if TYPE_CHECKING:
    import datasets

__all__ = ["IMDB", "MNLI", "imdb", "mnli", "mnli_mismatched", "spread"]

IMDB = HubTable(
    "stanfordnlp/imdb",
    "plain_text",
    columns=("text", "label"),
    rows={"train": 25_000, "test": 25_000},
    num_bytes=400_000_000,
    revision="e6281661ce1c48d982bc483cf8a173c1bbeb5d31",
)
"""50,000 film reviews, as many positive as negative."""

MNLI = HubTable(
    "nyu-mll/glue",
    "mnli",
    columns=("premise", "hypothesis", "label"),
    rows={"train": 392_702, "validation_matched": 9_815, "validation_mismatched": 9_832},
    num_bytes=500_000_000,
    revision="bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c",
)
"""Pairs of sentences: does the second follow from the first?"""

SENTIMENTS = ("negative", "positive")
RELATIONS = ("entailment", "neutral", "contradiction")
EVALUATIONS = ("matched", "mismatched")
IMDB_LICENCE = "Not stated; the authors ask to be cited, so it is fetched and never passed on"
MNLI_LICENCE = (
    "Mostly the licence of the Open American National Corpus, which allows all use; parts of the "
    "fiction under CC BY 3.0 and CC BY-SA 3.0"
)
IMDB_ATTRIBUTION = (
    "A. L. Maas, R. E. Daly, P. T. Pham, D. Huang, A. Y. Ng and C. Potts, Learning Word Vectors "
    "for Sentiment Analysis, ACL 2011."
)
MNLI_ATTRIBUTION = (
    "A. Williams, N. Nangia and S. R. Bowman, A Broad-Coverage Challenge Corpus for Sentence "
    "Understanding through Inference, NAACL 2018; as in GLUE (A. Wang et al., ICLR 2019)."
)


def imdb(
    subset: int | None = None, *, revision: str | None = None, mirror: Path | None = None
) -> LabelledTexts:
    """Return IMDb: 50,000 film reviews, negative (label 0) or positive (1).

    The published test split is the one for testing. About a tenth of the published training split
    is held out for validation.

    Parameters
    ----------
    subset : int, optional
        Keep only so many reviews of each split, spread evenly; all by default.
    revision, mirror
        As in `unrolled.data.hub.table`.

    Returns
    -------
    LabelledTexts
        About 230 words each. What belongs to one film is not known, so groups are single reviews.

    Raises
    ------
    unrolled.data.fetch.FetchError
        It is not cached and cannot be loaded; the message says why and what to do.
    """
    parts = {part: table(IMDB, part, revision=revision, mirror=mirror) for part in IMDB.rows}
    held_out = {"train": 0.1, "test": None}
    examples = [
        Example(row["text"], row["label"], f"{part} review {number}", split)
        for part, rows in parts.items()
        for number, split, row in _split(rows, "text", held_out[part], subset)
    ]
    return LabelledTexts(
        name="imdb",
        classes=SENTIMENTS,
        examples=tuple(examples),
        licence=IMDB_LICENCE,
        source=f"hub:{IMDB.repository}",
        attribution=IMDB_ATTRIBUTION,
    )


def mnli(
    evaluation: str = "matched",
    subset: int | None = None,
    *,
    revision: str | None = None,
    mirror: Path | None = None,
) -> LabelledTexts:
    """Return MNLI: does a hypothesis follow from a premise? Entailment, neutral, contradiction.

    The labels of the published test splits are secret, so testing is done, as everywhere, on the
    published validation split: *matched* has the genres of training, *mismatched* others. About
    2.5 % of the published training split is held out for validation, whole premises at a time.

    Parameters
    ----------
    evaluation : {"matched", "mismatched"}
        Which split is for testing.
    subset : int, optional
        Keep only so many pairs of each split, spread evenly; all by default.
    revision, mirror
        As in `unrolled.data.hub.table`.

    Returns
    -------
    LabelledTexts
        ``text`` is the premise, ``second`` the hypothesis. Groups are premises.

    Raises
    ------
    unrolled.data.fetch.FetchError
        It is not cached and cannot be loaded; the message says why and what to do.
    """
    if evaluation not in EVALUATIONS:
        raise ValueError(f"evaluation is {evaluation!r}, but must be one of {EVALUATIONS}")
    published = {"train": 0.025, f"validation_{evaluation}": None}
    examples = [
        Example(row["premise"], row["label"], f"{part} {row['premise']}", split, row["hypothesis"])
        for part, held_out in published.items()
        for _, split, row in _split(
            table(MNLI, part, revision=revision, mirror=mirror), "premise", held_out, subset
        )
        if row["label"] >= 0
    ]
    return LabelledTexts(
        name="mnli" if evaluation == "matched" else "mnli_mismatched",
        classes=RELATIONS,
        examples=tuple(examples),
        licence=MNLI_LICENCE,
        source=f"hub:{MNLI.repository}",
        attribution=MNLI_ATTRIBUTION,
    )


def mnli_mismatched(
    subset: int | None = None, *, revision: str | None = None, mirror: Path | None = None
) -> LabelledTexts:
    """Return `mnli` with the genres for testing that are not in training."""
    return mnli("mismatched", subset, revision=revision, mirror=mirror)


def spread(count: int, subset: int | None) -> list[int]:
    """Return at most ``subset`` of ``count`` positions, spread evenly from first to last.

    Raises
    ------
    ValueError
        If ``subset`` is below 1.

    Examples
    --------
    >>> spread(9, 3), spread(2, 5), spread(3, None)
    ([0, 4, 8], [0, 1], [0, 1, 2])
    """
    if subset is not None and subset < 1:
        raise ValueError(f"subset is {subset}, but must be at least 1")
    chosen = count if subset is None else min(count, subset)
    return np.linspace(0, count - 1, chosen).round().astype(int).tolist()


def _split(
    rows: datasets.Dataset, key: str, held_out: float | None, subset: int | None
) -> Iterator[tuple[int, str, Mapping[str, Any]]]:
    """Yield position, split and row; all of a part are for testing if nothing is held out."""
    if held_out is None:
        places = {"test": list(range(len(rows)))}
    else:
        places = _by_place(rows[key], held_out)
    for split, numbers in places.items():
        chosen = [numbers[i] for i in spread(len(numbers), subset)]
        yield from ((n, split, row) for n, row in zip(chosen, rows.select(chosen), strict=True))


def _by_place(texts: Iterable[str], held_out: float) -> dict[str, list[int]]:
    places: dict[str, list[int]] = {"train": [], "validation": []}
    for number, text in enumerate(texts):
        digest = hashlib.sha256(" ".join(text.split()).encode()).digest()
        is_held_out = int.from_bytes(digest[:8], "big") / 2**64 < held_out
        places["validation" if is_held_out else "train"].append(number)
    return places

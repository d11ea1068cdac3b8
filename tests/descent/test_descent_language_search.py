"""The experiment `descent.language_search`: equal grids, and every point reaches the training."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from unrolled.catalog import load_experiment
from unrolled.descent import language, language_search
from unrolled.descent.search import SEEDS_APART, best_trial

pytest.importorskip("transformers")

EXPERIMENT = language_search.EXPERIMENT


@pytest.fixture(scope="module")
def rows():
    return EXPERIMENT.run("smoke", 0, progress=False)


def test_the_search_can_be_run_by_name():
    assert load_experiment("descent.language_search") is EXPERIMENT


def test_every_method_of_the_evidence_gets_as_many_trials():
    for preset in EXPERIMENT.presets.values():
        trials = EXPERIMENT.cases(preset)
        counts = Counter(case["method"] for case in trials)
        assert len(set(counts.values())) == 1
        assert len({tuple(case.values()) for case in trials}) == len(trials) <= 20
    assert counts.keys() == set(language.METHODS) - {"none"}


def test_each_trial_has_its_own_loss(rows):
    for method in ("erm", "deep", "exact"):
        losses = [row["val_loss"] for row in rows if row["method"] == method]
        assert len(set(losses)) == len(losses) == 2  # the point has reached the training
    losses = {row["val_loss"]: row for row in rows if row["method"] == "deep"}
    best = best_trial(rows, "toy", "deep")
    assert best["learning_rate"] == losses[min(losses)]["learning_rate"]


def test_a_trial_is_the_run_of_the_experiment_on_validation_texts(rows):
    row = next(row for row in rows if row["method"] == "exact")
    settings = replace(
        EXPERIMENT.presets["smoke"].language,
        constrained_learning_rate=row["learning_rate"],
        alpha=row["alpha"],
        exact_dual_step=row["dual_step"],
    )
    model, _ = language.trained(settings, {"method": "exact"}, SEEDS_APART)
    texts = language.load_texts(settings)["validation"]
    inner, last = language.read_texts(model, texts, settings, settings.layers)
    assert row["val_loss_by_layer"] == pytest.approx(inner.mean(dim=1).tolist(), rel=1e-5)
    assert row["val_loss"] == pytest.approx(last.mean().item(), rel=1e-5)
    assert row["val_ascents"] == sum(b > a for a, b in pairwise(inner.mean(1)))


def test_a_run_that_diverges_says_so():
    settings = replace(EXPERIMENT.presets["smoke"], rates=(1e30,), methods=("erm",))
    (case,) = EXPERIMENT.cases(settings)
    assert EXPERIMENT.measure(settings, case, 0, lambda done, total: None)["diverged"]

"""The experiments `descent.search` and `descent.text_ablation`: equal grids, one change each."""

from collections import Counter
from dataclasses import asdict

import pytest

from unrolled.descent import search, text_ablation
from unrolled.descent.search import best_trial
from unrolled.descent.text import TextSettings

pytest.importorskip("transformers")


def test_every_method_gets_as_many_trials():
    for preset in search.EXPERIMENT.presets.values():
        trials = search.EXPERIMENT.cases(preset)
        counts = Counter((case["network"], case["method"]) for case in trials)
        assert len(set(counts.values())) == 1
        assert len({tuple(case.values()) for case in trials}) == len(trials)


def test_search_gives_each_trial_a_loss_and_its_ascents():
    rows = search.EXPERIMENT.run("smoke", 0, progress=False)
    for row in rows:
        assert row["val_loss"] > 0
        assert row["val_ascents"] >= 0
    for network, method in (("encoder", "exact"), ("dust", "deep")):
        assert best_trial(rows, network, method) in rows
    losses = [row["val_loss"] for row in rows if row["method"] == "deep"]
    assert best_trial(rows, "dust", "deep")["val_loss"] == min(losses)
    assert len(set(losses)) == len(losses)  # the rate has reached the training


def test_a_diverged_trial_is_never_the_best():
    good = {"network": "dust", "method": "erm", "val_loss": 2.0, "val_ascents": 0}
    bad = {"network": "dust", "method": "erm", "diverged": True}
    assert best_trial([bad, good], "dust", "erm") is good
    with pytest.raises(ValueError, match="no rows"):
        best_trial([bad], "dust", "erm")


def test_an_ablation_changes_one_thing():
    settings = text_ablation.EXPERIMENT.presets["laptop"]
    base = asdict(TextSettings())
    for case in text_ablation.EXPERIMENT.cases(settings):
        chosen, run = text_ablation.changed(settings, case)
        different = [name for name, value in asdict(chosen).items() if value != base[name]]
        plain = case["change"] in ("none", "form")
        assert different == ([] if plain else [case["change"]])
        assert run["readout"] == ("cls" if case["change"] == "head" else "mean")


def test_ablation_rows_are_rows_of_the_text():
    rows = text_ablation.EXPERIMENT.run("smoke", 0, progress=False)
    assert {row["change"] for row in rows} == {
        "none", "alpha", "relaxation_cost", "dropout", "head", "form"
    }  # fmt: skip
    for row in rows:
        assert 0 <= row["area_gaussian"] <= 1
        assert ("multiplier_by_layer" in row) == (row["method"] != "erm")

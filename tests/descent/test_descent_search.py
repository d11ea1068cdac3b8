"""The experiments that search, ablate and pair texts: equal grids, one change each."""

from collections import Counter
from dataclasses import asdict

import pytest

from unrolled.descent import pairs, search, text_ablation
from unrolled.descent.search import best_trial

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
    assert best_trial(rows, "encoder", "exact")["alpha"] == 0.05
    losses = [row["val_loss"] for row in rows if row["method"] == "deep"]
    assert best_trial(rows, "dust", "deep")["val_loss"] == min(losses)
    assert len(set(losses)) == len(losses)  # the rate has reached the training


def trial(rate, loss, ascents=0, **columns):
    point = {"learning_rate": rate, "alpha": 0.0, "dual_step": 0.0}
    losses = {"val_loss": loss, "val_ascents": ascents}
    return {"network": "dust", "method": "erm", **point, **losses, **columns}


def test_a_point_with_a_diverged_run_is_never_the_best():
    good, bad = trial(0.1, 2.0), [trial(0.2, 1.0), trial(0.2, None, diverged=True)]
    assert best_trial([*bad, good], "dust", "erm")["learning_rate"] == 0.1
    with pytest.raises(ValueError, match="no rows"):
        best_trial(bad, "dust", "erm")


def test_the_best_point_has_the_lowest_mean_over_the_seeds():
    rows = [trial(0.1, 1.0, 2), trial(0.2, 1.5), trial(0.1, 3.0, 1), trial(0.2, 1.7)]
    found = best_trial(rows, "dust", "erm")
    assert (found["learning_rate"], found["val_loss"], found["seeds"]) == (0.2, 1.6, 2)
    assert best_trial(rows[::2], "dust", "erm")["val_ascents"] == 1.5


def test_an_ablation_changes_one_thing():
    settings = text_ablation.EXPERIMENT.presets["laptop"]
    base = asdict(settings.text)
    for case in text_ablation.EXPERIMENT.cases(settings):
        chosen, run = text_ablation.changed(settings, case)
        different = [name for name, value in asdict(chosen).items() if value != base[name]]
        assert different == ([] if case["change"] == "form" else [case["change"]])
        assert run["readout"] == ("cls" if case["change"] == "head" else "mean")


def test_ablation_rows_are_rows_of_the_text():
    rows = text_ablation.EXPERIMENT.run("smoke", 0, progress=False)
    changes = {"alpha", "relaxation_cost", "dropout", "head", "form"}
    assert {row["change"] for row in rows} == changes
    for row in rows:
        assert 0 <= row["area_gaussian"] <= 1
        assert ("multiplier_by_layer" in row) == (row["method"] != "erm")


def test_pairs_give_each_method_the_same_rate_and_steps():
    settings = pairs.EXPERIMENT.presets["laptop"]
    assert (settings.task, settings.learning_rate) == ("plots", settings.deep_learning_rate)
    methods = [case["method"] for case in pairs.EXPERIMENT.cases(settings)]
    assert methods == ["erm", "deep", "exact", "proxy"]
    rows = pairs.EXPERIMENT.run("smoke", 0, progress=False)
    assert len({row["learning_rate"] for row in rows}) == len({row["steps"] for row in rows}) == 1


def test_claims_about_pairs_are_judged_on_the_side_that_they_name():
    good = {"test_ascents": 0, "test_monotone": True, "test_loss": 0.6}
    good |= {"area_gaussian": 0.7, "test_accuracy": 0.7, "test_loss_by_layer": [0.8, 0.6]}
    bad = {"test_ascents": 3, "test_monotone": False, "test_loss": 0.7}
    bad |= {"area_gaussian": 0.6, "test_accuracy": 0.6, "test_loss_by_layer": [0.7, 0.7]}
    sides = {"erm": bad, "deep": bad, "exact": good, "proxy": good}
    rows = [{"method": m, "seed": s} | side for m, side in sides.items() for s in range(3)]
    claims = pairs.EXPERIMENT.claims
    assert {claim.judge(rows).kind for claim in claims} == {"reproduced"}
    for method in ("exact", "proxy"):
        worst = bad | {"test_accuracy": 0.5}
        worse = [row | worst if row["method"] == method else row for row in rows]
        name = {"exact": "Constrained", "proxy": "The proxy form"}[method]
        failing = {c.statement for c in claims if c.judge(worse).kind == "not seen"}
        assert failing == {c.statement for c in claims if c.statement.startswith(name)}

"""The experiments `looped.pretraining` and `looped.search`: cases, evaluation, rule, scale."""

from dataclasses import replace

import pytest
import torch

from unrolled.looped import instability, pretraining, search
from unrolled.looped.model import build
from unrolled.looped.pretraining import EXPERIMENT
from unrolled.results import thin

SMOKE = EXPERIMENT.presets["smoke"]
LAPTOP = EXPERIMENT.presets["laptop"]


def test_the_plain_transformer_stands_for_every_variant_with_one_loop():
    for optimizer in ("adamw", "muon"):
        cases = [case for case in EXPERIMENT.cases(LAPTOP) if case["optimizer"] == optimizer]
        assert [case["variant"] for case in cases if case["num_loops"] == 1] == ["plain"]
        twelve = [case["variant"] for case in cases if case["num_loops"] == 12]
        assert twelve == [*LAPTOP.variants, "plain"]
        assert len({case["learning_rate"] for case in cases}) == 1  # no variant has its own


def test_muon_is_tried_at_every_k_of_the_paper():
    cases = [case for case in EXPERIMENT.cases(LAPTOP) if case["optimizer"] == "muon"]
    assert {case["num_loops"] for case in cases} == {1, 3, 6, 9, 12}


def test_the_search_gives_every_variant_the_same_grid():
    cases = search.EXPERIMENT.cases(search.EXPERIMENT.presets["laptop"])
    points = {}
    for case in cases:
        point = case["optimizer"], case["learning_rate"], case["hidden_size"]
        points.setdefault(case["variant"], []).append(point)
    assert set(points) == set(LAPTOP.variants)
    assert len({tuple(of_variant) for of_variant in points.values()}) == 1


def test_the_search_uses_seeds_apart_from_the_evidence():
    settings = search.EXPERIMENT.presets["smoke"]
    case = search.EXPERIMENT.cases(settings)[0]
    found = search.measure(settings, case, 0, lambda done, total: None)
    same = replace(settings, optimizer=case["optimizer"], hidden_size=case["hidden_size"])
    _, run = instability.trained(same, case, search.SEEDS_APART)
    assert found["loss_curve"] == thin(run.losses)


def test_the_rule_takes_the_rate_that_is_best_for_the_median_variant():
    losses = {0.01: (2.0, 2.5, 9.0), 0.02: (1.0, 2.6, 2.7)}  # the best single loss is at .02
    rows = [
        {"optimizer": "muon", "hidden_size": 64, "learning_rate": rate, "val_loss": loss}
        for rate in losses
        for loss in losses[rate]
    ]
    assert search.best_rate(rows, "muon") == 0.01
    rows.append({**rows[0], "learning_rate": 0.005})
    del rows[-1]["val_loss"]  # diverged
    assert search.median_losses(rows, "muon", 64)[0.005] == float("inf")
    with pytest.raises(ValueError, match="no rows with optimizer='adamw'"):
        search.best_rate(rows, "adamw")


def test_a_row_has_the_trained_loops_among_its_inference_loops():
    wanted = {"variant": "flt", "optimizer": "muon"}
    row = EXPERIMENT.run("smoke", 0, cases=wanted, progress=False)[0]
    losses = dict(zip(row["inference_loops"], row["val_loss_by_inference_loops"], strict=True))
    assert losses[row["num_loops"]] == pytest.approx(row["val_loss"], rel=1e-6)
    assert len(set(losses.values())) == len(losses)  # more loops are another function
    assert row["sample"].startswith(pretraining.PROMPT)


def test_evaluation_at_other_loops_leaves_the_model_as_it_was():
    case = {"variant": "flt", "num_loops": 2, "learning_rate": 1e-3}
    settings = replace(SMOKE, steps=10, optimizer="adamw")
    model, _ = instability.trained(settings, case, seed=0)
    text = instability.text_of(settings)
    found = pretraining.measured_at(model, text, (1, 3), settings.batch_size)
    assert model.num_loops == 2
    with torch.no_grad():
        three = model.loss(*text.validation, num_loops=3).item()
    assert found["val_loss_by_inference_loops"][1] == pytest.approx(three, rel=1e-5)


def test_a_plain_model_has_no_loops_to_choose_from():
    model, text = build(SMOKE.config, "plain", 2), instability.text_of(SMOKE)
    assert pretraining.measured_at(model, text, (1, 2), 2) == {}


def test_other_texts_are_measured_in_bits_per_byte():
    settings = replace(SMOKE, other_texts=("moby_dick",))
    found = pretraining.out_of_domain(build(SMOKE.config, "flt", 2), settings)
    assert found == {"moby_dick_bits_per_byte": pytest.approx(8.0, abs=0.05)}  # a uniform guess


@pytest.mark.parametrize(
    ("changes", "millions", "billions"),
    [
        ({}, 127.1, 2.54),
        ({"num_layers": 12, "hidden_size": 768, "num_heads": 6, "steps": 12_127}, 317.9, 6.36),
    ],
    ids=["Small", "Base"],
)
def test_scale_of_the_paper(changes, millions, billions):
    facts = EXPERIMENT.describe(EXPERIMENT.settings("paper", changes))
    assert facts["parameters"] / 1e6 == pytest.approx(millions, abs=0.05)
    assert facts["tokens per run"] / 1e9 == pytest.approx(billions, abs=0.005)
    assert facts["tokens per parameter"] == pytest.approx(20, abs=0.05)

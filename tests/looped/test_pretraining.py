"""The experiment `looped.pretraining`: its cases, its evaluation at other loops, its scale."""

from dataclasses import replace

import pytest
import torch

from unrolled.looped import instability, pretraining
from unrolled.looped.pretraining import EXPERIMENT

SMOKE = EXPERIMENT.presets["smoke"]


def test_the_plain_transformer_is_trained_once():
    cases = EXPERIMENT.cases(EXPERIMENT.presets["laptop"])
    assert sum(case["num_loops"] == 1 for case in cases) == 1
    assert sum(case["num_loops"] == 12 for case in cases) == 5


def test_a_row_has_the_trained_loops_among_its_inference_loops():
    row = EXPERIMENT.run("smoke", 0, cases={"variant": "flt"}, progress=False)[0]
    losses = dict(zip(row["inference_loops"], row["val_loss_by_inference_loops"], strict=True))
    assert losses[row["num_loops"]] == pytest.approx(row["val_loss"], rel=1e-6)
    assert len(set(losses.values())) == len(losses)  # more loops are another function


def test_evaluation_at_other_loops_leaves_the_model_as_it_was():
    case = {"variant": "flt", "num_loops": 2, "learning_rate": 1e-3}
    model, _ = instability.trained(replace(SMOKE, steps=10), case, seed=0)
    text = instability.text_of(SMOKE)
    losses = pretraining.losses_by_loops(model, text, SMOKE)
    assert model.num_loops == 2
    with torch.no_grad():
        three = model.loss(*text.validation, num_loops=3).item()
    assert losses[2] == pytest.approx(three, rel=1e-5)


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

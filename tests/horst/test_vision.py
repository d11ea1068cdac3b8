"""The experiment `horst.vision`: equal budgets, the right optimizers, and what its columns say."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from unrolled.experiment import no_report
from unrolled.horst import vision
from unrolled.horst.compositions import COMPOSITIONS, OPTIMIZERS, Tuned
from unrolled.horst.sparsity import AcdcSchedule, prunable_weights, sparsity_report
from unrolled.horst.vision import EXPERIMENT, VisionSettings
from unrolled.results import ResultError, comparison_table

pytest.importorskip("torchvision")

SMOKE = EXPERIMENT.presets["smoke"]
CASE = {"model": "vit", "optimizer": "horst", "sparsity": 0.9}


@pytest.fixture(scope="module")
def rows():
    return EXPERIMENT.run("smoke", 0, progress=False)


def test_all_have_the_same_budget_and_end_as_sparse_as_asked(rows):
    for row in rows:
        assert row["steps"] == SMOKE.steps
        assert not row["diverged"]
        model = vision.build_model(SMOKE, row["model"])
        total = sum(weight.numel() for weight in prunable_weights(model).values())
        assert row["kept"] == pytest.approx(1 - round(row["sparsity"] * total) / total)
        assert len(row["kept_by_layer"]) == len(prunable_weights(model))


def test_all_start_from_the_same_weights_and_see_the_same_images():
    firsts = []
    for name in (*OPTIMIZERS, *COMPOSITIONS):
        case = {**CASE, "optimizer": name}
        _, run, _ = vision.trained(replace(SMOKE, steps=20), case, seed=3)
        firsts.append(run.losses[0])
    assert len(set(firsts)) == 1
    one, two = (vision.batches_at(SMOKE, seed) for seed in (0, 1))
    assert torch.equal(one(5)[0], vision.batches_at(SMOKE, 0)(5)[0])
    assert not torch.equal(one(5)[0], two(5)[0])


def test_without_mirror_the_optimizers_are_one():
    settings = replace(SMOKE, adamw=Tuned(rate=1e-2), horst=Tuned(rate=1e-2), ham=Tuned(rate=1e-2))
    losses = []
    for name in OPTIMIZERS:
        _, run, _ = vision.trained(settings, {**CASE, "optimizer": name}, seed=0)
        losses.append(run.losses)
    assert losses[0] == losses[1] == losses[2]


def test_a_composition_with_adam_inside_is_horst():
    """mirror_first with a mirror that is the identity is AdamW, too."""
    settings = replace(SMOKE, mirror_first=Tuned(rate=1e-2), adamw=Tuned(rate=1e-2))
    found = [
        vision.trained(settings, {**CASE, "optimizer": name}, seed=0)[1].losses
        for name in ("adamw", "mirror_first")
    ]
    np.testing.assert_allclose(*found, rtol=1e-4)


def test_masks_follow_the_schedule():
    settings, seen = replace(SMOKE, steps=40), []

    def watch(done, steps):
        seen.append(done)

    model, run, _ = vision.trained(settings, CASE, seed=0, report=watch)
    assert seen == list(range(1, 41))
    assert sparsity_report(prunable_weights(model))[-1].sparsity == pytest.approx(0.9, abs=0.01)
    schedule = AcdcSchedule(40)
    sparse = {s: schedule.is_sparse(s) for s in range(40)}
    # a network with a tenth of its weights has a small ratio of norms
    ratios = dict(zip(run.diagnostics["looked_step"], run.diagnostics["norm_ratio"], strict=True))
    limit = math.sqrt(0.1) + 0.02  # ||x||_1 <= sqrt(k) ||x||_2 for k weights; layers differ
    held = [ratios[s + 1] for s in range(40) if sparse[s]]
    assert np.mean(held) < limit + 0.1 < np.mean([ratios[s + 1] for s in range(4)])


def test_the_dense_network_is_looked_at_before_the_last_sparse_phase(monkeypatch):
    shares = []
    original = vision.dense_columns

    def spy(model, images):
        shares.append(sparsity_report(prunable_weights(model))[-1].sparsity)
        return original(model, images)

    monkeypatch.setattr(vision, "dense_columns", spy)
    vision.trained(replace(SMOKE, steps=40), CASE, seed=0)
    assert shares == [0.0]


def test_accuracy_leaves_the_mode_of_the_network():
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.9), nn.Linear(4, 2)).train()
    found = vision.accuracy(model, torch.randn(10, 1, 2, 2), torch.zeros(10, dtype=torch.int64))
    assert 0 <= found <= 1
    assert model.training


def test_a_run_that_diverges_is_a_row():
    settings = replace(SMOKE, sgd=Tuned(rate=1e20))
    found = vision.measure(settings, {**CASE, "optimizer": "sgd"}, 0, no_report)
    assert found["diverged"]
    assert found["diverged_at_step"] >= 1


def test_claims_compare_with_adamw_and_ham(rows):
    table = comparison_table("horst.vision", EXPERIMENT.claims, preset="smoke", rows=rows)
    judged = [row for row in table if row["verdict"] != "not attempted"]
    assert len(table) == 22
    assert len(judged) == 2 + 1 + 2 + 4 + 2 + 3  # the smoke preset has 0 and 90 % only


def test_the_lead_is_larger_when_sparsity_costs_less():
    accuracy = {("horst", 0.0): 0.8, ("horst", 0.9): 0.7, ("adamw", 0.0): 0.8, ("adamw", 0.9): 0.6}
    rows = [
        {"model": "vit", "optimizer": name, "sparsity": s, "seed": seed, "test_accuracy": a}
        for (name, s), a in accuracy.items()
        for seed in range(3)
    ]
    found = {
        line["claim"]: line["verdict"]
        for line in comparison_table("horst.vision", EXPERIMENT.claims, preset=None, rows=rows)
    }
    assert found["HORST's lead over AdamW is larger at 90% than dense"] == "reproduced"
    assert found["HORST's lead over HAM is larger at 90% than dense"] == "not attempted"
    assert found["HORST loses nothing when dense"] == "reproduced"
    with pytest.raises(ResultError, match="seeds"):
        vision.price_of_sparsity(rows[:4], "vit", "horst", 0.9)


def test_laptop_compares_at_five_sparsities():
    units = vision.cases(VisionSettings())
    assert len(units) == 5 * 3 + 4 + 3 * 3
    assert len({tuple(unit.items()) for unit in units}) == len(units)

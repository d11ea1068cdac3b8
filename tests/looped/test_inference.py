"""The experiment `looped.inference`: three recipes of equal budget, evaluated on the last loop."""

from dataclasses import replace

import pytest
import torch

from unrolled.looped import inference, instability
from unrolled.looped.inference import EXPERIMENT, RandomLoops

SMOKE = EXPERIMENT.presets["smoke"]
CASE = {"data": "text", "variant": "flt", "num_loops": 2, "recipe": "fixed"}


def no_batch(step):
    return torch.zeros(2, 4, dtype=torch.long), torch.zeros(2, 4, dtype=torch.long)


def test_random_loops_have_the_mean_of_the_fixed_ones():
    batches = RandomLoops(no_batch, num_loops=4, seed=3)
    loops = torch.stack([batches(step)[2] for step in range(4_000)])
    assert torch.equal(loops[:, 0], loops[:, 1])
    assert sorted(set(loops[:, 0].tolist())) == list(range(1, 8))
    # The mean of n draws has the standard error 2 / sqrt(n) = .032.
    assert loops[:, 0].double().mean() == pytest.approx(4, abs=0.13)


def test_random_loops_are_a_pure_function_of_seed_and_step():
    first, second = RandomLoops(no_batch, 6, seed=0), RandomLoops(no_batch, 6, seed=0)
    second(3)
    assert [int(first(s)[2][0]) for s in range(9)] == [int(second(s)[2][0]) for s in range(9)]


def test_recipes_differ_in_what_they_train_on_only():
    models = {}
    for recipe in inference.RECIPES:
        model, batch_at, schedule = inference.prepared(SMOKE, {**CASE, "recipe": recipe}, seed=5)
        models[recipe] = model
        assert torch.equal(model.embedding.weight, models["fixed"].embedding.weight)
        assert torch.equal(batch_at(3)[0], inference.prepared(SMOKE, CASE, seed=5)[1](3)[0])
        assert schedule.steps == SMOKE.steps
    assert models["mean"].loss_loops == "mean"
    assert models["fixed"].loss_loops == models["random"].loss_loops == "last"


def test_random_recipe_runs_the_loops_that_it_draws():
    settings = replace(SMOKE, steps=4)
    case = {**CASE, "recipe": "random"}
    _, run = inference.trained(settings, case, seed=0)
    model, batch_at, _ = inference.prepared(settings, case, seed=0)
    inputs, targets, loops = RandomLoops(batch_at, 2, seed=0)(0)
    with torch.no_grad():
        loss = model.loss(inputs, targets, num_loops=int(loops[0])).item()
    assert run.losses[0] == pytest.approx(loss, rel=1e-6)


def test_whatever_the_recipe_the_last_loop_is_evaluated():
    model, _ = inference.trained(SMOKE, {**CASE, "recipe": "mean"}, seed=0)
    inputs, targets = instability.text_of(SMOKE).validation
    found = inference.on_text(model, SMOKE)["val_loss_by_inference_loops"]
    with torch.no_grad():
        logits = model(inputs, num_loops=3).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).item()
    assert found[SMOKE.inference_loops.index(3)] == pytest.approx(loss, rel=1e-5)


def test_rows_hold_one_value_for_each_number_of_loops():
    for row in EXPERIMENT.run("smoke", 0, cases={"recipe": "random"}, progress=False):
        count = len(row["inference_loops"])
        assert len(row["residual_norm_by_inference_loops"]) == count
        key = "val_loss" if row["data"] == "text" else "accuracy_of_depth_1"
        assert len(row[f"{key}_by_inference_loops"]) == count

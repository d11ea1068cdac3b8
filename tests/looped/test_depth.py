"""The experiment `looped.depth`: what is compared, what is measured, what is equal for all."""

from dataclasses import replace

import pytest
import torch

from unrolled.data.tasks import NO_ANSWER, Questions
from unrolled.looped import depth
from unrolled.looped.depth import EXPERIMENT, TASKS
from unrolled.looped.model import build
from unrolled.transformer import count_parameters, flops_per_token

LAPTOP = EXPERIMENT.presets["laptop"]


@pytest.fixture(scope="module")
def rows():
    return EXPERIMENT.run("smoke", 0, progress=False)


def test_looped_and_plain_are_compared_at_the_same_depths():
    cases = [case for case in EXPERIMENT.cases(LAPTOP) if case["task"] == "pointer_chasing"]
    plain = {case["num_loops"] for case in cases if case["variant"] == "plain"}
    for variant in LAPTOP.variants:
        blocks = {c["num_layers"] * c["num_loops"] for c in cases if c["variant"] == variant}
        assert blocks <= plain == {1, 2, 4}


def test_plain_has_the_flops_of_the_loop_and_k_times_its_core():
    config = depth.config_of(LAPTOP, TASKS["addition"], 1)
    plain, looped = build(config, "plain", 4), build(config, "flt", 4)
    assert flops_per_token(plain.config) == flops_per_token(config, num_loops=4)
    assert count_parameters(plain.blocks) == 4 * count_parameters(looped.blocks)


def test_rows_hold_an_accuracy_for_each_depth_and_each_number_of_loops(rows):
    for row in rows:
        depths = TASKS[row["task"]].depths
        assert len(row["accuracy_by_depth"]) == len(depths)
        looped = row["variant"] != "plain"
        assert ("inference_loops" in row) == looped
        if looped:
            at = row["inference_loops"].index(row["num_loops"])
            found = [row[f"accuracy_of_depth_{d}_by_inference_loops"][at] for d in depths]
            assert found == pytest.approx(row["accuracy_by_depth"], nan_ok=True)


def test_a_model_is_asked_after_each_loop_as_if_it_had_stopped_there():
    config = replace(depth.config_of(LAPTOP, TASKS["addition"], 1), zero_output=False)
    model, questions = build(config, "flt", 2), depth.held_out("addition", 300)
    predictions = depth.predict(model, questions, 3)
    with torch.no_grad():
        for K in (1, 3):
            logits = model(questions.inputs, num_loops=K).logits
            assert torch.equal(predictions[K], logits.argmax(-1))


def test_accuracy_of_a_model_that_knows_is_one():
    class Knows(torch.nn.Module):
        num_loops = 1

    questions = Questions(
        torch.zeros(1, 2, dtype=torch.long), torch.tensor([[NO_ANSWER, 3]]), torch.tensor([[-1, 2]])
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(depth, "predict", lambda model, questions: {1: torch.tensor([[0, 3]])})
        found = depth.by_depth(Knows(), questions, (1, 2))
    assert found["accuracy"] == found["accuracy_by_depth"][1] == 1


def test_one_block_learns_one_hop_and_no_more():
    settings = replace(EXPERIMENT.presets["live"], steps=150)
    case = {"task": "pointer_chasing", "num_layers": 1, "num_loops": 1, "variant": "plain"}
    model, _ = depth.trained(settings, case, seed=0)
    questions = depth.held_out("pointer_chasing", 256)
    one, *more = depth.by_depth(model, questions, (1, 2, 3, 4))["accuracy_by_depth"]
    assert one > 0.7
    assert max(more) < 0.4


def test_with_one_block_flt_is_attention_injection():
    config = replace(depth.config_of(LAPTOP, TASKS["addition"], 1), zero_output=False)
    flt, attention = build(config, "flt", 3), build(config, "attention", 3)
    attention.load_state_dict(flt.state_dict())
    tokens = depth.held_out("addition", 4).inputs
    assert torch.equal(flt(tokens).logits, attention(tokens).logits)

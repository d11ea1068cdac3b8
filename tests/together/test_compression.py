"""Compression inside a training, and interactions: by property and by hand."""

import statistics

import pytest
import torch
from torch import nn

from unrolled.horst.sparsity import Acdc, AcdcSchedule
from unrolled.looped.model import build
from unrolled.results import ResultError
from unrolled.together.compression import Compression, count_weights, dense_steps
from unrolled.together.interaction import gains, interaction, judge_interaction
from unrolled.training import TrainingConfig, fit
from unrolled.transformer import TransformerConfig

SIDES = tuple({"a": a, "b": b} for a, b in ((1, 1), (0, 1), (1, 0), (0, 0)))


def compress(sparsity: float, schedule: AcdcSchedule) -> tuple[nn.Module, list, dict]:
    torch.manual_seed(0)
    model, seen = nn.Linear(10, 2, bias=False), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    acdc = Acdc(model, optimizer, schedule, sparsity)
    compression = Compression(acdc, lambda: {"zeros": int((model.weight == 0).sum())})
    x = torch.randn(4, 10)

    def loss_fn(model, batch):
        seen.append(int((model.weight == 0).sum()))  # as the step sees it
        return (model(batch) - 1).square().mean()

    training = TrainingConfig(steps=schedule.steps, batch_size=4, progress=False)
    fit(model, lambda step: x, loss_fn, training, [optimizer], on_step=compression.after_step)
    return model, seen, compression.dense


@pytest.mark.parametrize(
    "schedule",
    [AcdcSchedule(20), AcdcSchedule(20, 0.4, 0.4, 0.4, 0.1), AcdcSchedule(20, 0.0, 0.0, 0.0, 0.1)],
    ids=["alternating", "one shot", "from the start"],
)
def test_every_step_sees_the_masks_of_its_phase(schedule):
    model, seen, dense = compress(0.5, schedule)
    sparse = [schedule.is_sparse(step) for step in range(20)]
    # a weight that comes back leaves zero with the first step that may move it
    starts = [sparse[i] or (i > 0 and sparse[i - 1]) for i in range(20)]
    assert [zeros == 10 for zeros in seen] == starts
    assert int((model.weight == 0).sum()) == 10
    assert dense == ({"zeros": 0} if dense_steps(schedule) else {})


def test_without_sparsity_the_training_is_dense_and_is_looked_at_all_the_same():
    _model, seen, dense = compress(0.0, AcdcSchedule(20))
    assert set(seen) == {0}
    assert dense == {"zeros": 0}


def test_the_last_dense_step_is_that_of_the_schedule():
    for schedule in (AcdcSchedule(20), AcdcSchedule(37), AcdcSchedule(20, 0.4, 0.4, 0.4, 0.1)):
        last = dense_steps(schedule)
        assert not schedule.is_sparse(last - 1)
        assert all(schedule.is_sparse(step) for step in range(last, schedule.steps))
    assert dense_steps(AcdcSchedule(20, 0.0, 0.0, 0.0, 0.1)) == 0


def test_a_weight_that_is_used_in_every_loop_is_counted_once():
    config = TransformerConfig(vocab_size=11, num_layers=2, hidden_size=16, num_heads=2)
    counts = [count_weights(build(config, "flt", K), ("head",)) for K in (1, 6)]
    assert counts[0]["weights"] == counts[1]["weights"] == 2 * 12 * 16 * 16
    assert count_weights(build(config, "plain", 6), ("head",))["weights"] == 6 * 2 * 12 * 16 * 16


# --- interactions ---------------------------------------------------------------------------------


def square(extra: float = 0.0) -> list[dict]:
    noise = (0.3, -0.2, 0.5, 0.1, -0.4)
    return [
        {"seed": seed, "a": a, "b": b, "m": a + 2 * b + extra * a * b + shift + 0.1 * shift * a * b}
        for seed, shift in enumerate(noise)
        for a in (0, 1)
        for b in (0, 1)
    ]


def test_gains_that_add_up_have_no_interaction():
    found = interaction(square(), "m", SIDES)
    assert found.mean == pytest.approx(statistics.fmean((0.03, -0.02, 0.05, 0.01, -0.04)))
    assert judge_interaction("m", SIDES, expect="lower")(square()).kind == "not seen"


@pytest.mark.equation("eq-together-interaction")
def test_an_interaction_is_seen_and_its_two_ingredients_are_alike():
    rows = square(-0.5)
    found = interaction(rows, "m", SIDES)
    both, second, first, neither = SIDES
    swapped = interaction(rows, "m", (both, first, second, neither))
    assert found.mean == pytest.approx(swapped.mean)
    assert judge_interaction("m", SIDES, expect="lower")(rows).kind == "reproduced"
    assert judge_interaction("m", SIDES, expect="higher")(rows).kind == "not seen"
    assert judge_interaction("m", SIDES, expect="lower")([]).kind == "not attempted"


@pytest.mark.equation("eq-together-interaction")
def test_gains_are_paired_by_seed():
    rows = square()
    expected = [
        next(row["m"] for row in rows if row["seed"] == s and row["a"] == 1 and row["b"] == 0)
        - next(row["m"] for row in rows if row["seed"] == s and row["a"] == 0 and row["b"] == 0)
        for s in range(5)
    ]
    assert [row["gain"] for row in gains(rows, "m", SIDES[2], SIDES[3])] == pytest.approx(expected)
    with pytest.raises(ResultError, match="missing"):
        gains([{**row, "m": None} for row in rows], "m", SIDES[2], SIDES[3])

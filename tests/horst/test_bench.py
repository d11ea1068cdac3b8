"""The benchmark of the optimizers: what is compared, and that each side does its work."""

from dataclasses import replace

import pytest
import torch

from unrolled.horst import bench
from unrolled.horst.bench import PRESETS

SMOKE = PRESETS["smoke"]


def test_every_size_is_compared_with_every_reference_eager_and_compiled(monkeypatch):
    compiled = []
    # no compiler here: what is handed to it is noted
    monkeypatch.setattr(torch, "compile", lambda step: compiled.append(step) or step)
    rows = [
        row
        for size in (500, 1_000)
        for row in bench._steps(replace(SMOKE, compiled=True), size)
        if row["comparison"].startswith("time")
    ]
    words = [f"time: HORST / {name}" for name in ("AdamW foreach", "AdamW fused", "HAM")]
    floor = "time: the exponential alone / AdamW foreach"
    expected = [words[0], floor, *words[1:], *(f"{name}, compiled" for name in words)]
    assert [row["comparison"] for row in rows] == 2 * expected
    assert [row["parameters"] for row in rows] == [*[500] * 7, *[1_000] * 7]
    assert all(row["ratio_low"] <= row["ratio"] <= row["ratio_high"] for row in rows)
    steppers = [step.__self__ for step in compiled]
    assert [type(one).__name__ for one in steppers] == 2 * ["Horst", "AdamW", "Ham"]
    assert not any(one.defaults.get("fused") for one in steppers)


def test_the_sizes_are_those_that_were_asked_for():
    assert PRESETS["laptop"].sizes == (1_000_000, 10_000_000, 100_000_000)
    for size in PRESETS["laptop"].sizes:
        count, side = bench._matrices(PRESETS["laptop"], size)
        assert count <= bench.MOST
        assert count * side**2 == pytest.approx(size, rel=0.06)
    assert [bench._rounds(PRESETS["laptop"], size) for size in (10**7, 10**8)] == [16, 8]


def test_the_exponential_takes_every_number_once(monkeypatch):
    monkeypatch.setitem(bench.CHUNK, "cpu", 300)
    exp, seen = torch.exp, []

    def counted(x, out):
        seen.append(x.numel())
        return exp(x, out=out)

    monkeypatch.setattr(torch, "exp", counted)
    bench._exponential(SMOKE, 1_000)()
    assert seen == [300, 300, 300, 124]  # four matrices of 16 rows and columns


def test_the_state_is_no_larger_than_that_of_adamw():
    settings = replace(SMOKE, side=64)
    whole, beside = bench._memories(settings, 160 * 64**2)
    state = 2 * 4 * 160 * 64**2 / 1e6  # two moments in float32, in megabytes
    for side in ("megabytes", "reference_megabytes"):
        assert whole[side] >= state
        assert whole[side] - beside[side] == pytest.approx(state, rel=0.1)
    # in pieces, HORST needs less beside it than a whole copy of the weights
    assert whole["ratio"] < 1
    assert beside["ratio"] < 0.7


@pytest.mark.parametrize("loss_of", [bench._vit_loss, bench._gpt_loss])
@pytest.mark.parametrize("name", ["horst", "adamw"])
def test_a_training_step_moves_every_weight(loss_of, name):
    model, loss = loss_of(SMOKE)
    before = [weight.clone() for weight in model.parameters()]
    bench._training_step(model, loss, name)()
    moved = [not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
    assert sum(moved) > 0.9 * len(moved)

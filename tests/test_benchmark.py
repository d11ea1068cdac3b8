"""Benchmark: ratios that a drifting machine does not bend."""

import math

import pytest
import torch

from unrolled.benchmark import compare_times, peak_memory, side_by_side
from unrolled.looped.model import LoopedTransformer
from unrolled.transformer import TransformerConfig


class Machine:
    """A clock; each piece of work takes its time, and more of it as the machine grows hot."""

    def __init__(self, drift=0.0):
        self.now, self.speed, self.drift, self.order = 0.0, 1.0, drift, []

    def __call__(self):
        return self.now

    def work(self, name, seconds):
        def work():
            self.order.append(name)
            self.now += seconds * self.speed
            self.speed *= 1 + self.drift

        return work


@pytest.mark.parametrize("drift", [0.0, 0.05])
def test_the_ratio_survives_drift(drift):
    machine = Machine(drift)
    slow, fast = machine.work("slow", 3.0), machine.work("fast", 2.0)
    row = compare_times("slow / fast", slow, fast, rounds=10, clock=machine)
    assert row["ratio"] == pytest.approx(1.5)
    assert row["ratio_low"] <= 1.5 + 1e-9
    assert row["ratio_high"] >= 1.5 - 1e-9
    assert row["comparison"] == "slow / fast"
    if not drift:
        assert (row["milliseconds"], row["reference_milliseconds"]) == pytest.approx((3e3, 2e3))


def test_the_order_alternates_and_warm_up_does_not_count():
    machine = Machine()
    pairs = side_by_side(
        machine.work("a", 1.0), machine.work("b", 2.0), rounds=2, warm_up=1, clock=machine
    )
    assert machine.order == ["a", "b", "b", "a", "a", "b"]
    assert pairs == [(1.0, 2.0)] * 2


@pytest.mark.parametrize("options", [{"rounds": 1}, {"warm_up": -1}])
def test_refuses(options):
    with pytest.raises(ValueError, match="must be"):
        side_by_side(int, int, **options)


def test_the_looped_benchmark_gives_a_ratio_per_comparison():
    from unrolled.looped.bench import BENCHMARK

    rows = BENCHMARK("smoke")
    assert len({row["comparison"] for row in rows}) == 5
    for row in rows:
        assert math.isfinite(row["ratio"])
        if row["comparison"].startswith("time"):
            assert 0 < row["ratio_low"] <= row["ratio"] <= row["ratio_high"]
        else:
            assert row["megabytes"] > 0
    with pytest.raises(ValueError, match="allowed: smoke, laptop, colab"):
        BENCHMARK("huge")


def test_the_descent_benchmark_gives_a_ratio_per_comparison():
    pytest.importorskip("transformers")
    from unrolled.descent.bench import BENCHMARK

    rows = BENCHMARK("smoke")
    assert len({row["comparison"] for row in rows}) == len(rows) == 7
    for row in rows:
        assert row["ratio"] > 0
    with pytest.raises(ValueError, match="allowed: smoke, laptop, colab"):
        BENCHMARK("huge")


def test_the_horst_benchmark_gives_a_ratio_per_comparison():
    from unrolled.horst.bench import BENCHMARK

    rows = BENCHMARK("smoke")
    assert len({row["comparison"] for row in rows}) == len(rows) == 8
    assert all(row["ratio"] > 0 for row in rows)
    assert [row.get("parameters") for row in rows] == [*[1_000] * 6, None, None]
    with pytest.raises(ValueError, match="allowed: smoke, laptop, colab"):
        BENCHMARK("huge")


def test_a_constrained_step_moves_the_multipliers_and_has_gradients_of_the_lagrangian():
    pytest.importorskip("transformers")
    from unrolled.descent import bench, text, video

    steps = bench.video_steps(video.EXPERIMENT.presets["smoke"], "dust")
    assert steps.keys() == bench.text_steps(text.SMOKE).keys() == {"erm", "deep", "exact"}
    model = torch.nn.Linear(1, 1, bias=False)
    model.weight.data.fill_(1.0)
    dual = bench.PrimalDual(text.build_constraint("exact", 0.5, 1), step_size=1.0)

    def losses():
        return torch.stack([torch.ones(()), model(torch.ones(1)).square().sum()])

    made = bench._steps(model, losses, lambda: losses()[-1], dual)
    made["exact"]()  # the slack is 1 - .5, so the next price is .5
    assert (dual.multipliers.item(), model.weight.grad.item()) == (0.5, 2.0)
    made["exact"]()
    assert (dual.multipliers.item(), model.weight.grad.item()) == (1.0, 3.0)
    made["erm"]()
    assert model.weight.grad.item() == 2.0
    made["deep"]()
    assert model.weight.grad.item() == 1.0


def test_peak_memory_counts_what_lives_at_once():
    weights = torch.ones(1_000, requires_grad=True)

    def one_after_the_other():
        for _ in range(5):
            torch.ones(1_000).sum()

    def kept_for_the_gradient():
        x = weights
        for _ in range(5):
            x = x.exp()  # each result is kept until the gradient has passed it
        return x

    assert peak_memory(one_after_the_other) == 4_000 + 4
    assert peak_memory(kept_for_the_gradient) == 5 * 4_000
    with torch.no_grad():
        assert peak_memory(kept_for_the_gradient) == 2 * 4_000


def test_views_and_results_in_place_take_no_memory():
    x = torch.ones(1_000)
    assert peak_memory(lambda: x.view(10, 100).t().mul_(2)) == 0


def test_loop_checkpointing_keeps_one_state_a_loop():
    config = TransformerConfig(num_layers=2, hidden_size=32, num_heads=2, max_length=32)
    tokens = torch.zeros(2, 32, dtype=torch.long)

    def peak(num_loops, checkpoint_loops):
        model = LoopedTransformer(config, num_loops, "flt", checkpoint_loops=checkpoint_loops)
        return peak_memory(lambda: model.loss(tokens, tokens).backward())

    state = 4 * tokens.numel() * config.hidden_size
    # Four loops more: four states and their norms' by-products, against four whole graphs.
    assert peak(8, True) - peak(4, True) < 4 * 3 * state
    assert peak(8, False) - peak(4, False) > 4 * 20 * state

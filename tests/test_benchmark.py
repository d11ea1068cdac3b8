"""Benchmark: ratios that a drifting machine does not bend."""

import math

import pytest

from unrolled.benchmark import compare_times, side_by_side


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
    assert len({row["comparison"] for row in rows}) == 3
    for row in rows:
        assert math.isfinite(row["ratio"])
        assert 0 < row["ratio_low"] <= row["ratio"] <= row["ratio_high"]
    with pytest.raises(ValueError, match="allowed: smoke, laptop, colab"):
        BENCHMARK("huge")

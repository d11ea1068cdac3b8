"""The checkers of the chapter *What the theorems say*: right answers pass, mistakes are named."""

import math

import pytest
import torch

from unrolled import checks
from unrolled.descent.theory import corridor, layer_bounds, sampling_error


def passes(result):
    assert result.passed, result


def fails(result, words):
    assert not result.passed, result
    assert words in result.message, result


def test_depth_needed():
    bounds = layer_bounds(1.0, [0.2] * 60, 0.01)
    right = next(layer for layer, bound in enumerate(bounds) if bound <= 0.08)
    passes(checks.descent_depth_needed(right))
    fails(checks.descent_depth_needed(right - 1), "round down")
    fails(checks.descent_depth_needed(15.48), "round down")
    fails(checks.descent_depth_needed(12), "floor")
    fails(checks.descent_depth_needed(5), "subtract")
    fails(checks.descent_depth_needed(40), "0.95 * 0.8")


def test_deepest():
    def fits(layers):
        lower, upper = corridor(math.log(2), 0.44, [0.05] * layers)
        return lower[0] <= upper[0]

    right = max(layers for layers in range(1, 50) if fits(layers))
    passes(checks.descent_deepest(right))
    fails(checks.descent_deepest(right + 1), "round up")
    fails(checks.descent_deepest(8.86), "whole")
    fails(checks.descent_deepest((math.log(2) - 0.44) / (0.05 * math.log(2))), "subtract")
    fails(checks.descent_deepest(math.inf), "without an end")
    fails(checks.descent_deepest(3), "0.95 to the power")


def step_share(c, curvature):
    steps = torch.linspace(0, 3 / float(curvature.min()), 200_001, dtype=torch.float64)
    left = (c * (1 - steps[:, None] * curvature) ** 2).sum(1) / c.sum()
    return 1 - left.min()


def test_step_share():
    passes(checks.descent_step_share(step_share))
    fails(checks.descent_step_share(lambda c, x: 1 - step_share(c, x)), "left")
    fails(checks.descent_step_share(lambda c, x: step_share(torch.ones_like(c), x)), "weights")
    fails(checks.descent_step_share(lambda c, x: step_share(c, x) ** 0.5), "square")
    fails(checks.descent_step_share(lambda c, x: (c * x).sum() / (c * x * x).sum()), "best step")

    def worst(c, x):
        return 4 * x.min() * x.max() / (x.min() + x.max()) ** 2

    fails(checks.descent_step_share(worst), "worst case")


def samples(layers, top, alpha, wanted, failure, factor=None, count=None, square=2):
    zeta = wanted / (2 - alpha if factor is None else factor)
    one = sampling_error(1, count or layers, 1.0, failure)  # falls with the root of m
    return top**square * (one / zeta) ** 2


def test_samples_needed():
    check = checks.descent_samples_needed
    passes(check(samples))
    passes(check(lambda *a: math.ceil(samples(*a))))
    fails(check(lambda *a: samples(*a, factor=1)), "two losses")
    fails(check(lambda *a: samples(*a, factor=2)), "not twice")
    fails(check(lambda n, *a: samples(n, *a, count=n - 1)), "L + 1 losses")
    fails(check(lambda *a: samples(*a, square=1)), "squared")
    fails(check(lambda n, f, a, w, d: samples(n, f, a, w, 2 * d)), "both ways")


def kept(losses, shifts):
    worst_now, best_before = losses[1:] + shifts[1:], losses[:-1] - shifts[:-1]
    return worst_now <= best_before


def test_kept_layers():
    check = checks.descent_kept_layers
    passes(check(kept))
    passes(check(lambda f, s: kept(f, s).tolist()))
    fails(check(lambda f, s: ~kept(f, s)), "can turn")
    fails(check(lambda f, s: f[1:] + s[1:] <= f[:-1]), "stay where it is")
    fails(check(lambda f, s: f[1:] <= f[:-1]), "without any shift")
    fails(check(lambda f, s: f[0] - f[1:] >= s[1:] + s[0]), "f_0")
    fails(check(lambda f, s: f[:-1] - f[1:] >= (s[1:] - s[:-1]).abs()), "subtract the shifts")


def largest_shift(losses, top, twice=2.0, over=torch.min):
    drop = over(losses[:-1] - losses[1:])
    return max(float(drop) / (twice * top), 0.0)


def test_largest_shift():
    check = checks.descent_largest_shift
    passes(check(largest_shift))
    fails(check(lambda f, top: largest_shift(f, top, twice=1.0)), "apart")
    fails(check(lambda f, top: largest_shift(f, top, over=torch.mean)), "mean layer")
    fails(check(lambda f, top: largest_shift(f, top, over=torch.max)), "weakest")
    fails(check(lambda f, top: (f[0] - f[-1]) / (2 * top)), "Every layer is asked for")
    fails(check(lambda f, top: largest_shift(f, 1.0)), "largest loss")
    fails(check(lambda f, top: (f[:-1] - f[1:]).min() / (2 * top)), "not negative")


def shares(start, optimum, num_layers, power):
    parts = [layer**-power for layer in range(1, num_layers + 1)]
    return [1 - (optimum / start) ** (part / sum(parts)) for part in parts]


def test_decaying_shares():
    check = checks.descent_decaying_shares
    passes(check(shares))
    fails(check(lambda a, b, n, p: shares(a, b, n, 0)), "all equal")
    fails(check(lambda a, b, n, p: shares(a, b, n, -p)), "rise")
    fails(check(lambda *a: [-math.log(1 - s) for s in shares(*a)]), "logarithm for the share")

    def added(start, optimum, num_layers, power):
        parts = [layer**-power for layer in range(1, num_layers + 1)]
        return [(1 - optimum / start) * part / sum(parts) for part in parts]

    fails(check(added), "multiply")


NAMES = (
    *("depth_needed", "deepest", "step_share", "samples_needed"),
    *("kept_layers", "largest_shift", "decaying_shares"),
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("wrong", [math.nan, [1.0, 2.0], "text", lambda *_: "text", lambda: 1])
def test_nonsense_never_raises(name, wrong):
    assert not getattr(checks, f"descent_{name}")(wrong).passed


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stub", [None, ..., lambda *_: None])
def test_a_stub_is_told_so(name, stub):
    assert not getattr(checks, f"descent_{name}")(stub).passed

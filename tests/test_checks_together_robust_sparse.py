"""The checkers of the chapter *Robust and sparse*: right answers pass, mistakes are named."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import norm, t

from unrolled import checks
from unrolled.together.robust_sparse import averaged_accuracy


def passes(result):
    assert result.passed, result


def fails(result, words):
    assert not result.passed, result
    assert words in result.message, result


def test_both_gains():
    base, single = (brentq(lambda x, m=m: norm.cdf(x) - m, -5, 5) for m in (0.7, 0.8))
    passes(checks.together_both_gains(norm.cdf(base + 2 * (single - base))))
    fails(checks.together_both_gains(0.9), "ceiling")
    fails(checks.together_both_gains(2 * single - base), "is that the margin")
    fails(checks.together_both_gains(norm.cdf(2 * single)), "add two margins")
    fails(checks.together_both_gains(0.8), "go back")
    fails(checks.together_both_gains([1, 2]), "one number")


def square(runs):
    """Solve a linear model for each seed: its last coefficient is the interaction."""
    design = np.array([[1, a, b, a * b] for a, b in ((1, 1), (1, 0), (0, 1), (0, 0))])
    corners = [runs[name] for name in ("both", "first", "second", "neither")]
    return [
        float(np.linalg.solve(design, [corner[seed] for corner in corners])[3])
        for seed in sorted(runs["both"])
    ]


def in_order(runs):
    return [list(part.values()) for part in runs.values()]


def test_interactions_are_paired_by_seed():
    passes(checks.together_interactions(square))
    for wrong, words in (
        (lambda r: [b - f - s + n for b, f, s, n in zip(*in_order(r), strict=True)], "by place"),
        (lambda r: [r["both"][s] - r["neither"][s] for s in sorted(r["both"])], "over neither"),
        (lambda r: [-value for value in square(r)], "sign"),
        (lambda r: sum(square(r)) / len(r["both"]), "the mean"),
        (lambda r: square(r)[:1], "shape"),
        (lambda r: r["neither"], "a number or a tensor"),
    ):
        fails(checks.together_interactions(wrong), words)


def width(sigma, n):
    edge = -t.ppf(0.025, n - 1)
    return edge * math.sqrt(sum([sigma**2] * 4) / n)


def test_half_width():
    passes(checks.together_half_width(width))
    for factor, words in ((math.sqrt(0.5), "four"), (2, "Variances"), (0.5, "one mean")):
        fails(checks.together_half_width(lambda s, n, f=factor: f * width(s, n)), words)
    fails(checks.together_half_width(lambda s, n: width(s, n) * n**0.5), "root of n")
    fails(checks.together_half_width(lambda s, n: 1.96 * 2 * s / n**0.5), "normal quantile")
    fails(checks.together_half_width(lambda s, n: 2 * s / n**0.5 * t.ppf(0.975, n)), "freedom")


def bearable(accuracy, signal, spread, n, ratio):
    # a needle has the ratio 1 / sqrt(n): give the signal what is missing
    needle, stronger = torch.eye(n)[0], signal * math.sqrt(n) * ratio
    return brentq(lambda g: averaged_accuracy(needle, stronger, spread, g) - accuracy, 0, 100)


def test_bearable_noise():
    passes(checks.together_bearable_noise(bearable))
    total = lambda m, mu, s, n, R: math.hypot(bearable(m, mu, s, n, R), s)  # noqa: E731
    fails(checks.together_bearable_noise(total), "forget the spread")
    fails(
        checks.together_bearable_noise(lambda m, mu, s, n, R: total(m, mu, s, n, R) - s), "squares"
    )
    fails(checks.together_bearable_noise(lambda *a: bearable(*a) ** 2), "last root")


def left(kept):
    q = norm.ppf(1 - kept / 2)
    sizes = 2 * quad(lambda x: x * norm.pdf(x), q, 12)[0]
    squares = 2 * quad(lambda x: x**2 * norm.pdf(x), q, 12)[0]
    return sizes, squares, math.sqrt(2 / math.pi)


def test_signal_left():
    def right(kept):
        sizes, squares, whole = left(kept)
        return sizes / math.sqrt(squares) / whole

    passes(checks.together_signal_left(right))
    for wrong, words in (
        (math.sqrt, "one size"),
        (lambda kept: kept, "falls, too"),
        (lambda kept: left(kept)[0] / left(kept)[2], "forget the noise"),
        (lambda kept: math.sqrt(left(kept)[1]), "the norm alone"),
        (lambda kept: right(kept) * left(kept)[2], "the one before"),
    ):
        fails(checks.together_signal_left(wrong), words)


@pytest.mark.parametrize("n", [4, 10])
def test_pruning_may_help(n):
    w, mu = torch.ones(n), torch.ones(n)
    w[n // 2 :], mu[n // 2 :] = 0.9, 0.0
    passes(checks.together_helpful_pruning((w, 0.6 * mu)))
    fails(checks.together_helpful_pruning((w, 0.001 * mu)), "goes from")


def test_pruning_that_does_not_help_is_named():
    w = torch.tensor([4.0, 3.0, 2.0, 1.0])
    fails(checks.together_helpful_pruning((w, torch.ones(4))), "goes from")
    fails(checks.together_helpful_pruning(w), "a pair")
    fails(checks.together_helpful_pruning((w[:3], torch.ones(3))), "even n")
    fails(checks.together_helpful_pruning((torch.ones(4), torch.ones(4))), "the cut")
    fails(checks.together_helpful_pruning((w / 0, torch.ones(4))), "finite")
    fails(checks.together_helpful_pruning((torch.zeros(4), torch.ones(4))), "the cut")

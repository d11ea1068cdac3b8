"""The checkers of the chapter *Sparse language models*: right answers pass, mistakes are named."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import laplace

from unrolled import checks
from unrolled.horst import Horst
from unrolled.horst.sparsity import magnitude_masks
from unrolled.optimization import learning_rate_factor


def passes(result):
    assert result.passed, result


def fails(result, words):
    assert not result.passed, result
    assert words in result.message, result


def test_slower():
    check = checks.horst_slower
    rates = {T: [eta] * T for T, eta in ((10, 2e-3), (40, 1e-3))}
    spreads, ways = (
        [sum(x**power for x in rates[T]) ** (1 / power) for T in (10, 40)] for power in (2, 1)
    )
    passes(check((spreads[1] / spreads[0], ways[1] / ways[0])))
    passes(check(torch.tensor([1.0, 2.0])))
    fails(check((2.0, 2.0)), "add up in squares")
    fails(check((0.5, 2.0)), "four times as many")
    fails(check((4.0, 2.0)), "forget the rate")
    fails(check((1.0, 1.0)), "no root")
    fails(check((1.0, 4.0)), "half as large")
    fails(check((7.0, 7.0)), "half the rate")
    fails(check((1.0, 7.0)), "sum of rates")
    fails(check(1.0), "two factors")


# Per matrix the largest energy that can go, by the norm ratio.
def energy_ceiling(weights, sparsity, size=lambda w: w.square().sum(), cap=None):
    cap = cap or (lambda R: min(sparsity, R**2 / (4 * (1 - sparsity))))
    ratios = [(w.abs().mean() / w.square().mean().sqrt()).item() for w in weights]
    sizes = torch.stack([torch.as_tensor(size(w), dtype=torch.float64) for w in weights])
    return sizes @ torch.tensor([cap(R) for R in ratios], dtype=torch.float64) / sizes.sum()


def test_energy_ceiling():
    check = checks.horst_energy_ceiling
    passes(check(energy_ceiling))
    fails(check(lambda w, s: s), "what do the ratios add")
    fails(check(lambda w, s: energy_ceiling(w, s, size=lambda w: 1.0)), "plain mean")
    fails(check(lambda w, s: energy_ceiling(w, s, size=lambda w: w.numel())), "number of weights")
    fails(check(lambda w, s: energy_ceiling(w, s, size=lambda w: w.norm())), "*squared*")
    fails(check(lambda w, s: energy_ceiling(w, s, cap=lambda R: R**2 / (4 - 4 * s))), "exceed")
    late = lambda w, s: min(s, energy_ceiling(w, s, cap=lambda R: R**2 / (4 - 4 * s)))  # noqa: E731
    fails(check(late), "not at the end")
    fails(check(lambda w, s: energy_ceiling(w, s, cap=lambda R: min(s, R**2 / (4 * s)))), "1 - s")
    root = lambda w, s: energy_ceiling(w, s, cap=lambda R: min(s, R / (4 - 4 * s)))  # noqa: E731
    fails(check(root), "enters squared")
    four = lambda w, s: energy_ceiling(w, s, cap=lambda R: min(s, R**2 / (1 - s)))  # noqa: E731
    fails(check(four), "gives a 4")
    whole = lambda w, s: energy_ceiling([torch.cat([x.flatten() for x in w])], s)  # noqa: E731
    fails(check(whole), "one ratio for all")
    fails(check(measured), "energy itself")


def measured(weights, sparsity):
    masks = magnitude_masks({str(i): w for i, w in enumerate(weights)}, sparsity)
    gone = [w[~mask].square().sum() for w, mask in zip(weights, masks.values(), strict=True)]
    return sum(gone) / sum(w.square().sum() for w in weights)


# x^2 times the density, up to the quantile of the absolute value
def laplace_energy(sparsity):
    tau = laplace.ppf((1 + sparsity) / 2)
    return quad(lambda x: x**2 * laplace.pdf(x), -tau, tau)[0] / 2


def test_laplace_energy():
    check = checks.horst_laplace_energy
    passes(check(laplace_energy))
    drawn = torch.from_numpy(np.random.default_rng(0).laplace(size=400_000))
    assert measured([drawn], 0.8) == pytest.approx(laplace_energy(0.8), abs=0.003)
    fails(check(lambda s: s), "whatever they are")
    fails(check(lambda s: 1 - laplace_energy(s)), "what stays")
    fails(check(lambda s: 2 * laplace_energy(s)), "divide")
    fails(check(lambda s: laplace_energy(s) ** 0.5), "length")
    fails(check(lambda s: 1 - (1 - s) * (1 - math.log(1 - s))), "magnitudes")
    fails(check(lambda s: 1 - (1 - s) * (1 + s + s**2 / 2)), "for the threshold")
    log = lambda s: 1 - (1 - s) * (1 + math.log(1 - s) + math.log(1 - s) ** 2 / 2)  # noqa: E731
    fails(check(log), "sign of the threshold")


# With the saliency as its square, magnitude pruning prunes by saliency.
def saliency_mask(weight, curvature, sparsity):
    return magnitude_masks({"": weight * curvature.sqrt()}, sparsity)[""]


def test_saliency_mask():
    check = checks.horst_saliency_mask
    passes(check(saliency_mask))
    fails(check(lambda w, h, s: saliency_mask(w, torch.ones_like(h), s)), "magnitude pruning")
    fails(check(lambda w, h, s: saliency_mask(torch.ones_like(w), h, s)), "size of the weight")
    fails(check(lambda w, h, s: saliency_mask(w.abs().sqrt(), h, s)), "enters squared")
    fails(check(lambda w, h, s: saliency_mask(w, h**2, s)), "curvature once")
    fails(check(lambda w, h, s: saliency_mask(w, 1 / h, s)), "flat direction")
    fails(check(lambda w, h, s: ~saliency_mask(w, h, s)), "inverted")
    fails(check(lambda w, h, s: saliency_mask(w, h, 1 - s)), "goes; did you keep")
    fails(check(lambda w, h, s: saliency_mask(1 / w, 1 / h, s)), "not the highest")
    fails(check(lambda w, h, s: w * saliency_mask(w, h, s)), "not the pruned weight")


def alpha_for(sigma, rates):
    return sigma / np.linalg.norm(rates)


def test_alpha_for():
    check = checks.horst_alpha_for
    passes(check(alpha_for))
    fails(check(lambda c, e: c / sum(e)), "their squares do")
    fails(check(lambda c, e: c / sum(x**2 for x in e)), "take the root")
    fails(check(lambda c, e: alpha_for(c, e) ** 2), "square of alpha")
    fails(check(lambda c, e: 1 / alpha_for(c, e)), "one over")
    fails(check(lambda c, e: c / (max(e) * len(e) ** 0.5)), "largest one in every step")
    fails(check(lambda c, e: c / (np.mean(e) * len(e) ** 0.5)), "mean rate is not enough")
    fails(check(lambda c, e: c / max(e)), "one step")


# The optimizer itself: a huge weight under a steady gradient, through the schedule.
def recovery_factor(rate, steps, alpha):
    start = 1e6
    weight = torch.nn.Parameter(torch.tensor([start], dtype=torch.float64))
    optimizer = Horst([weight], lr=rate, alpha=alpha, clamp=1e3)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate / 10 * learning_rate_factor(step, steps, "linear")
        weight.grad = -torch.ones_like(weight)
        optimizer.step()
    return weight.item() / start


def test_recovery_factor():
    check = checks.horst_recovery_factor
    passes(check(recovery_factor))
    passes(check(lambda e, n, a: math.exp(a * e / 10 * (n + 1) / 2)))
    fails(check(lambda e, n, a: e / 10 * (n + 1) / 2), "mirror coordinates")
    fails(check(lambda e, n, a: a * e / 10 * (n + 1) / 2), "exponent")
    fails(check(lambda e, n, a: 1 + a * e / 10 * (n + 1) / 2), "first order")
    fails(check(lambda e, n, a: math.exp(a * e * (n + 1) / 2)), "tenth of the rate")
    fails(check(lambda e, n, a: math.exp(a * e / 10 * n / 2)), "(T + 1) / 2")
    fails(check(lambda e, n, a: math.exp(a * e / 10 * n)), "falls to zero")
    fails(check(lambda e, n, a: 1 / recovery_factor(e, n, a)), "shrink")
    fails(check(lambda e, n, a: recovery_factor(e, n, 1.0)), "strength of the mirror")


def test_end_to_end():
    check = checks.horst_end_to_end
    passes(check((0.96 + 0.04 * 1.25, 0.12)))
    passes(check([1.01, 0.12]))
    fails(check((1.25, 0.12)), "as long as before")
    fails(check((1.05, 0.12)), "already with AdamW")
    fails(check((0.01, 0.12)), "on top")
    fails(check((0.05, 0.12)), "the rest is missing")
    fails(check((2.0, 0.12)), "96 %")
    fails(check((1.01, 0.024)), "exceeds AdamW's own")
    fails(check((1.01, 12.0)), "percentage")
    fails(check((1.01, 0.5)), "solve")
    fails(check(1.01), "two numbers")


# On a fine grid: the first place that is above the level.
def matched_sparsity(sparsities, losses, level):
    fine = np.linspace(0, sparsities[-1], 400_001)
    above = np.interp(fine, sparsities, losses) > level
    return float(fine[above.argmax()]) if above.any() else sparsities[-1]


def test_matched_sparsity():
    check = checks.horst_matched_sparsity
    passes(check(matched_sparsity))

    def point(sparsities, losses, level, shift=0):
        above = np.array(losses) > level
        return sparsities[max(0, above.argmax() - shift)] if above.any() else sparsities[-1]

    fails(check(point), "first point that exceeds")
    fails(check(lambda s, f, level: point(s, f, level, shift=1)), "last point before")

    def last(sparsities, losses, level):
        if losses[0] > level:
            return 0.0
        turned = [losses[-1], *losses[::-1]]
        below = next(i for i, loss in enumerate(turned[1:]) if loss <= level)
        if below == 0:
            return sparsities[-1]
        i = len(losses) - 1 - below
        pair = slice(i, i + 2)
        return float(np.interp(level, losses[pair], sparsities[pair]))

    fails(check(last), "may come back")
    dense = lambda s, f, level: (  # noqa: E731
        matched_sparsity(s, f, level)
        if f[0] <= level
        else s[0] + (level - f[0]) / (f[1] - f[0]) * (s[1] - s[0])
    )
    fails(check(dense), "dense model is above")


NAMES = (
    *("slower", "energy_ceiling", "laplace_energy", "saliency_mask"),
    *("alpha_for", "recovery_factor", "end_to_end", "matched_sparsity"),
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("wrong", [math.nan, [1.0, 2.5], "text", lambda *_: "text", lambda: 1])
def test_nonsense_never_raises(name, wrong):
    assert not getattr(checks, f"horst_{name}")(wrong).passed


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stub", [None, ..., lambda *_: None])
def test_a_stub_is_told_so(name, stub):
    assert not getattr(checks, f"horst_{name}")(stub).passed

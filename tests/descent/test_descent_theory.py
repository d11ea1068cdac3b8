"""Bounds on layerwise descent: against their definitions, their limits and simulated samples."""

import math

import pytest
import torch

from unrolled.descent import ExactConstraint, constant_alphas
from unrolled.descent.theory import (
    corridor,
    largest_share,
    layer_bounds,
    sampling_error,
    statistical_tolerance,
)


def closed_form(start, alphas, tolerances, last):
    """The sum of the docstring, written out."""

    def kept(first, after):
        return math.prod(1 - a for a in alphas[first:after])

    floor = sum(tolerances[layer] * kept(layer + 1, last) for layer in range(last))
    return kept(0, last) * start + floor


@pytest.mark.equation("eq-descent-floor")
def test_layer_bounds_are_the_closed_form():
    alphas, tolerances = [0.5, 0.0, 0.2, 0.9], [0.1, 0.3, 0.0, 0.05]
    found = layer_bounds(2.0, alphas, tolerances)
    assert found[0] == 2.0
    for last in range(1, 5):
        assert found[last] == pytest.approx(closed_form(2.0, alphas, tolerances, last))


@pytest.mark.equation("eq-descent-floor")
def test_a_constant_tolerance_leads_to_its_floor():
    bounds = layer_bounds(1.0, constant_alphas(0.2, 200), 0.01)
    assert bounds[-1] == pytest.approx(0.01 / 0.2)
    assert list(bounds) == sorted(bounds, reverse=True)
    assert layer_bounds(0.0, constant_alphas(0.2, 200), 0.01)[-1] == pytest.approx(0.05)


@pytest.mark.equation("eq-descent-tolerance")
def test_every_feasible_sequence_stays_below_its_bound():
    generator = torch.Generator().manual_seed(3)
    for _ in range(20):
        losses = torch.rand(9, generator=generator, dtype=torch.float64)
        slacks = ExactConstraint(constant_alphas(0.3, 8)).slacks(losses)
        tolerances = slacks.clamp_min(0).tolist()
        bounds = layer_bounds(losses[0].item(), constant_alphas(0.3, 8), tolerances)
        assert all(f <= b + 1e-12 for f, b in zip(losses.tolist(), bounds, strict=True))


@pytest.mark.equation("eq-descent-statistical-slack")
def test_statistical_tolerance_is_the_worst_case_of_two_errors():
    alpha, zeta = 0.3, 0.1
    expected, share = torch.tensor([1.0, 0.6]), ExactConstraint((alpha,))
    signs = torch.tensor([[a, b] for a in (-1.0, 1.0) for b in (-1.0, 1.0)])
    off = [(share.slacks(expected) - share.slacks(expected + zeta * s)).item() for s in signs]
    assert max(off) == pytest.approx(statistical_tolerance(alpha, sampling=zeta))
    both = statistical_tolerance(alpha, relaxation=0.5, sampling=0.1)
    assert both == pytest.approx(0.5 + 1.7 * 0.1)


@pytest.mark.equation("eq-descent-corridor")
def test_the_corridor_closes_at_the_largest_share():
    start, optimum = 0.7, 0.4
    share = largest_share(start, optimum, 12)
    lower, upper = corridor(start, optimum, constant_alphas(share, 12))
    assert lower == pytest.approx(upper)
    lower, upper = corridor(start, optimum, constant_alphas(0.9 * share, 12))
    assert all(low < up for low, up in zip(lower, upper, strict=True))
    assert lower[-1] == pytest.approx(optimum)
    assert upper[0] == start
    lower, upper = corridor(start, optimum, constant_alphas(1.1 * share, 12))
    assert all(low > up for low, up in zip(lower, upper, strict=True))


@pytest.mark.equation("eq-descent-corridor")
def test_both_lines_of_the_corridor_are_reached():
    for line in corridor(1.0, 0.2, [0.1, 0.3, 0.5]):
        slacks = ExactConstraint((0.1, 0.3, 0.5)).slacks(list(line))
        assert slacks.abs().max() < 1e-6
        assert line[-1] >= 0.2


@pytest.mark.equation("eq-descent-largest-share")
def test_the_largest_share_falls_with_depth_and_is_one_for_an_optimum_of_zero():
    shares = [largest_share(1.0, 0.1, layers) for layers in (1, 2, 4, 8, 1000)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == pytest.approx(0.9)
    assert shares[-1] * 1000 == pytest.approx(math.log(10), rel=0.01)
    assert largest_share(1.0, 0.0, 6) == 1.0
    assert largest_share(1.0, 1.0, 6) == 0.0


@pytest.mark.equation("eq-descent-hoeffding")
def test_the_sampling_error_covers_at_least_as_often_as_it_says():
    generator = torch.Generator().manual_seed(4)
    samples = torch.rand(4000, 50, 3, generator=generator) < 0.5  # losses 0 or 1 of 3 layers
    off = (samples.double().mean(1) - 0.5).abs().amax(-1)
    for failure in (0.5, 0.2):
        missed = (off > sampling_error(50, 2, 1.0, failure)).double().mean().item()
        assert missed <= failure
    assert sampling_error(400, 6, 2.0) == pytest.approx(sampling_error(100, 6, 2.0) / 2)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: layer_bounds(1.0, [1.0]), "alphas"),
        (lambda: layer_bounds(1.0, [0.1], [0.1, 0.2]), "tolerances"),
        (lambda: layer_bounds(1.0, [0.1], -0.1), "tolerances"),
        (lambda: statistical_tolerance(1.5), "alpha"),
        (lambda: statistical_tolerance(0.1, sampling=-1.0), "sampling"),
        (lambda: corridor(1.0, 2.0, [0.1]), "optimum"),
        (lambda: largest_share(0.0, 0.0, 3), "start"),
        (lambda: largest_share(1.0, 0.1, 0), "num_layers"),
        (lambda: sampling_error(0, 6, 1.0), "num_samples"),
        (lambda: sampling_error(10, 6, 0.0), "largest_loss"),
        (lambda: sampling_error(10, 6, 1.0, 1.0), "failure"),
    ],
)
def test_errors_name_the_argument(call, name):
    with pytest.raises(ValueError, match=name):
        call()

"""The checkers of the chapter *Video*: right answers pass, mistakes are named."""

import copy
import math
from statistics import NormalDist

import pytest
import torch

from unrolled import checks
from unrolled.data.video import gaussian_noise
from unrolled.descent.networks import DUST, cooling
from unrolled.descent.video import WienerFilter, estimate_noise


def passes(result):
    assert result.passed, result


def fails(result, words):
    assert not result.passed, result
    assert words in result.message, result


def self_weight(trained, gamma_train, gamma, num_frames, scale, others=None, power=2):
    """By brute force: the softmax of a row with one logit 0 and the others alike."""
    others = num_frames - 1 if others is None else others
    logit = ((1 - trained) / trained / others).log() * scale * (gamma / gamma_train) ** power
    return 1 / (1 + others * logit.exp())


def test_collapse_level():
    def at(gamma):
        return float(self_weight(torch.tensor(0.2), 0.5, gamma, 8, 1.0))

    low, high = 0.5, 4.0
    for _ in range(60):  # bisection on the self-weight itself
        middle = (low + high) / 2
        low, high = (middle, high) if at(middle) < 0.5 else (low, middle)
    assert 0.9 < low < 0.95
    passes(checks.descent_collapse_level(low))
    passes(checks.descent_collapse_level(torch.tensor(low)))
    fails(checks.descent_collapse_level(low**2 / 0.5), "square")
    fails(checks.descent_collapse_level(0.5 * 3**0.5), "the frame itself")
    fails(checks.descent_collapse_level(1.25), "proportion to the level")
    fails(checks.descent_collapse_level(3.0), "take it at")


def test_self_weight():
    passes(checks.descent_self_weight(self_weight))
    fails(checks.descent_self_weight(lambda a, *_: a), "nothing change")
    fails(checks.descent_self_weight(lambda *c: self_weight(*c, power=1)), "square")
    fails(checks.descent_self_weight(lambda *c: self_weight(*c, power=-2)), "over")
    fails(checks.descent_self_weight(lambda a, g, h, T, s: self_weight(a, g, h, T, 1)), "logit")
    fails(checks.descent_self_weight(lambda a, g, h, T, s: self_weight(a, g, h, T, s**2)), "scale")
    fails(checks.descent_self_weight(lambda a, g, h, T, s: self_weight(a, g, h, T, s, T)), "itself")
    fails(
        checks.descent_self_weight(lambda a, g, h, T, s: self_weight(a, g, h, T, s, 1)), "ln(T - 1)"
    )


def phi_inverse(p):
    return NormalDist().inv_cdf(p)


def bias(share):
    return phi_inverse(0.5 + 1 / (4 * (1 - share))) / phi_inverse(0.75)


def test_estimate_bias_is_what_the_estimator_does():
    """A share of the pixels changes by far more than the noise."""
    share, gamma = 0.2, 0.7
    pixels = torch.arange(20_000) < share * 20_000
    still = 50.0 * torch.arange(2)[:, None] * pixels  # (2, 20000)
    found = estimate_noise(still + gaussian_noise((8, 2, 20_000), gamma, seed=1))
    assert found.mean().item() / gamma == pytest.approx(bias(share), rel=0.01)


def test_estimate_bias():
    passes(checks.descent_estimate_bias(bias))
    fails(checks.descent_estimate_bias(lambda share: 1), "not matter")
    fails(checks.descent_estimate_bias(lambda share: 1 / (1 - share)), "proportion")
    fails(checks.descent_estimate_bias(lambda s: phi_inverse(0.5 + 0.25 / (1 - s))), "divide")
    fails(
        checks.descent_estimate_bias(lambda s: phi_inverse(0.75 / (1 - s)) / phi_inverse(0.75)),
        "distribution function",
    )
    fails(
        checks.descent_estimate_bias(lambda s: phi_inverse(0.75 + s / 4) / phi_inverse(0.75)), "add"
    )
    fails(
        checks.descent_estimate_bias(
            lambda s: phi_inverse(0.5 + (0.5 - s) / (1 - s) / 2) / phi_inverse(0.75)
        ),
        "other side",
    )


def wiener_error(values, gamma_fit, gamma, lost=True, left=True, power=2):
    g = values / (values + gamma_fit**2)
    return (lost * (1 - g) ** power * values + left * g**power * gamma**2).mean().sqrt()


def test_wiener_error_is_that_of_the_filter():
    generator = torch.Generator().manual_seed(2)
    clean = torch.randn(40_000, 1, 4, generator=generator) * torch.tensor([3.0, 1.0, 0.5, 0.1])
    wiener = WienerFilter(clean)
    noisy = clean + gaussian_noise(clean.shape, 1.5, seed=3)
    measured = (wiener(noisy, 0.5) - clean).square().mean().sqrt()
    assert measured.item() == pytest.approx(wiener_error(wiener.values, 0.5, 1.5).item(), rel=0.02)


def test_wiener_error():
    passes(checks.descent_wiener_error(wiener_error))
    fails(checks.descent_wiener_error(lambda v, a, b: b), "noise itself")
    fails(checks.descent_wiener_error(lambda v, a, b: wiener_error(v, b, b)), "told")
    fails(checks.descent_wiener_error(lambda *c: wiener_error(*c) ** 2), "root")
    fails(checks.descent_wiener_error(lambda v, *c: wiener_error(v, *c) * len(v) ** 0.5), "sum")
    fails(checks.descent_wiener_error(lambda *c: wiener_error(*c, lost=False)), "lost")
    fails(checks.descent_wiener_error(lambda *c: wiener_error(*c, left=False)), "left")
    fails(checks.descent_wiener_error(lambda *c: wiener_error(*c, power=1)), "square")


def blind(model, frames, gamma_train):
    return model(frames, logit_scale=cooling(gamma_train, estimate_noise(frames))).readouts[-1]


def test_blind_cooling():
    passes(checks.descent_blind_cooling(blind))

    def scaled(scale):
        return lambda m, y, g: m(y, logit_scale=scale(estimate_noise(y), g)).readouts[-1]

    fails(checks.descent_blind_cooling(lambda m, y, g: y), "noisy frames")
    fails(checks.descent_blind_cooling(lambda m, y, g: m(y).readouts[-1]), "is the attention")
    fails(checks.descent_blind_cooling(scaled(lambda n, g: (g / n.mean()) ** 2)), "one level")
    fails(checks.descent_blind_cooling(scaled(lambda n, g: g / n)), "square")
    fails(checks.descent_blind_cooling(scaled(lambda n, g: (n / g) ** 2)), "over")


def rescaled(model, frames, gamma_train, gamma, power=1):
    scale = (gamma_train / gamma) ** power
    return model(scale * frames).readouts[-1] / scale


def test_rescaling():
    passes(checks.descent_rescaling(rescaled))
    fails(checks.descent_rescaling(lambda m, y, a, b: m(y).readouts[-1]), "trained")
    fails(checks.descent_rescaling(lambda m, y, a, b: m(a / b * y).readouts[-1]), "back")
    fails(checks.descent_rescaling(lambda *c: rescaled(*c, power=2)), "square")
    fails(checks.descent_rescaling(lambda *c: rescaled(*c, power=-1)), "over")
    fails(
        checks.descent_rescaling(
            lambda m, y, a, b: m(a / b * y, logit_scale=(a / b) ** 2).readouts[-1] * b / a
        ),
        "as well",
    )
    fails(
        checks.descent_rescaling(lambda m, y, a, b: m(y, logit_scale=(a / b) ** 2).readouts[-1]),
        "thresholds",
    )


def thresholds(model, factor, layers=None):
    copied = copy.deepcopy(model)
    for layer in copied.layers[:layers]:
        layer.threshold.data *= factor
    return copied


def test_thresholds_and_cooling_are_rescaling():
    torch.manual_seed(0)
    model = DUST(num_layers=3, num_pixels=16, num_atoms=25, projection_size=8, num_frames=4)
    y = torch.randn(5, 4, 16)
    raised = thresholds(model, 4.0)(y, logit_scale=cooling(0.5, 2.0)).readouts[-1]
    assert torch.allclose(raised, rescaled(model, y, 0.5, 2.0), atol=1e-5)
    assert not torch.allclose(raised, rescaled(model, y, 0.5, 1.9), atol=1e-5)


def test_thresholds():
    passes(checks.descent_thresholds(thresholds))
    fails(checks.descent_thresholds(lambda m, f: m), "network itself")

    def in_place(model, factor):
        for layer in model.layers:
            layer.threshold.data *= factor
        return copy.deepcopy(model)

    fails(checks.descent_thresholds(in_place), "network itself")
    fails(checks.descent_thresholds(lambda m, f: thresholds(m, f, layers=1)), "first layer")
    fails(checks.descent_thresholds(lambda m, f: thresholds(m, 1 / f)), "divide")
    fails(checks.descent_thresholds(lambda m, f: copy.deepcopy(m)), "every layer")
    fails(checks.descent_thresholds(lambda m, f: f), "DUST network")

    def too_much(model, factor):
        copied = thresholds(model, factor)
        copied.layers[1].coupling.data *= factor
        return copied

    fails(checks.descent_thresholds(too_much), "layers.1.coupling")


NAMES = (
    *("collapse_level", "self_weight", "estimate_bias", "wiener_error"),
    *("blind_cooling", "rescaling", "thresholds"),
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("wrong", [math.nan, [1.0, 2.0], "text", lambda *_: "text", lambda: 1])
def test_nonsense_never_raises(name, wrong):
    assert not getattr(checks, f"descent_{name}")(wrong).passed


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stub", [None, ..., lambda *_: None])
def test_a_stub_is_told_so(name, stub):
    assert not getattr(checks, f"descent_{name}")(stub).passed

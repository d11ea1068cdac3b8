"""The checkers of the chapter *Instability*: right answers pass, typical mistakes are named."""

import math

import pytest
import torch
import torch.nn.functional as F

from unrolled import checks


def passes(result):
    assert result.passed, result


def fails(result, words):
    assert not result.passed, result
    assert words in result.message, result


def test_identity_path():
    passes(checks.looped_identity_path((8 / 200) ** 5))
    fails(checks.looped_identity_path(8 / 200), "one norm")
    fails(checks.looped_identity_path((64 / 200) ** 5), "root")
    fails(checks.looped_identity_path((200 / 8) ** 5), "wrong way round")
    fails(checks.looped_identity_path(5 * 8 / 200), "multiplies")
    fails(checks.looped_identity_path(0.5), "sqrt(d) / 200")


def test_norm_gradient_accepts_autograd_and_names_the_missing_projection():
    def by_autograd(x, g):
        return torch.autograd.functional.vjp(lambda x: F.rms_norm(x, x.shape[-1:]), x, g)[1]

    passes(checks.looped_norm_gradient(by_autograd))
    fails(
        checks.looped_norm_gradient(
            lambda x, g: x.shape[-1] ** 0.5 / x.norm(dim=-1, keepdim=True) * g
        ),
        "part of g along x",
    )
    fails(
        checks.looped_norm_gradient(
            lambda x, g: torch.autograd.functional.vjp(lambda x: F.normalize(x, dim=-1), x, g)[1]
        ),
        "sqrt(d)",
    )


def test_unigram_names_bits_and_the_uniform_guess():
    def unigram(tokens):
        p = torch.unique(tokens, return_counts=True)[1] / tokens.numel()
        return -(p * p.log()).sum()

    passes(checks.looped_unigram(unigram))
    fails(checks.looped_unigram(lambda tokens: unigram(tokens) / math.log(2)), "nats")
    fails(checks.looped_unigram(lambda tokens: -unigram(tokens)), "minus")
    fails(checks.looped_unigram(lambda t: math.log(t.unique().numel())), "uniform guess")
    fails(checks.looped_unigram(lambda tokens: 3.01), "off by")


def test_oscillation_names_the_order_and_the_missing_scale():
    def oscillation(gradients):
        norms = gradients.norm(dim=1)
        c = F.cosine_similarity(gradients[1:], gradients[:-1], dim=1).mean()
        return norms.std(correction=0) / norms.mean(), c

    passes(checks.looped_oscillation(oscillation))
    fails(checks.looped_oscillation(lambda g: oscillation(g)[::-1]), "other order")
    fails(
        checks.looped_oscillation(
            lambda g: (g.norm(dim=1).std() / g.norm(dim=1).mean(), oscillation(g)[1])
        ),
        "correction=0",
    )
    fails(
        checks.looped_oscillation(
            lambda g: (oscillation(g)[0], (g[1:] * g[:-1]).sum(dim=1).mean())
        ),
        "cosine is at most 1",
    )


def detector(plateau=True, explosion=True, tail=10):
    def collapsed(losses, norms, unigram):
        flat = sum(losses[-tail:]) / tail > 0.95 * unigram
        rising = norms[-1] > 1.05 * norms[len(norms) // 2]
        return (flat or not plateau) and (rising or not explosion)

    return collapsed


def test_collapse_asks_for_both_symptoms_on_averages():
    passes(checks.looped_collapse(detector()))
    fails(checks.looped_collapse(detector(plateau=False)), "both symptoms")
    fails(checks.looped_collapse(detector(explosion=False)), "both symptoms")
    fails(checks.looped_collapse(detector(tail=100)), "last tenth")
    fails(checks.looped_collapse(lambda *_: True), "on a hidden run you said True")
    fails(checks.looped_collapse(lambda *_: "yes"), "True or False")


def bisect(mean, runs=7, keep_lower=False):
    def search(collapses, low, high):
        for _ in range(runs):
            middle = mean(low, high)
            if collapses(middle) != keep_lower:
                high = middle
            else:
                low = middle
        return mean(low, high)

    return search


def geometric(low, high):
    return (low * high) ** 0.5


def test_breaking_rate_needs_the_geometric_mean_and_few_runs():
    passes(checks.looped_breaking_rate(bisect(geometric)))
    fails(checks.looped_breaking_rate(bisect(lambda a, b: (a + b) / 2)), "geometric mean")
    fails(checks.looped_breaking_rate(bisect(geometric, runs=20)), "8 are enough")
    fails(checks.looped_breaking_rate(bisect(geometric, keep_lower=True)), "False to True")
    fails(checks.looped_breaking_rate(lambda collapses, low, high: low), "call `collapses`")
    fails(
        checks.looped_breaking_rate(lambda collapses, low, high: collapses(1.0) or low), "interval"
    )


@pytest.mark.parametrize("wrong", [math.nan, [1.0, 2.0], "text", lambda x: x])
def test_nonsense_never_raises(wrong):
    for name in ("identity_path", "norm_gradient", "unigram", "oscillation", "breaking_rate"):
        assert not getattr(checks, f"looped_{name}")(wrong).passed

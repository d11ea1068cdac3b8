"""The checkers of the chapter *Sparse loops*: right answers pass, mistakes are named."""

import math
import statistics

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.optimize import brentq

from unrolled import checks


def passes(result):
    assert result.passed, result


def fails(result, words):
    assert not result.passed, result
    assert words in result.message, result


def test_equal_weights():
    check = checks.together_equal_weights
    kept = 0.2 * 1  # of one block
    passes(check((1 - kept / 4, 4)))
    passes(check(torch.tensor([0.95, 4.0])))
    fails(check((0.8, 4)), "K times as many")
    fails(check((0.2, 4)), "what is *kept*")
    fails(check((0.05, 4)), "that it keeps")
    fails(check((95, 4)), "percentage")
    fails(check((0.5, 4)), "1 - s over K")
    fails(check((0.95, 1)), "in every loop")
    fails(check((0.95, 0.25)), "other way round")
    fails(check((0.95, 16)), "how often")
    fails(check(0.95), "two numbers")


# By the definition of a norm, in numpy.
def coherence(changes):
    parts = changes.numpy().reshape(len(changes), -1)
    return np.linalg.norm(parts.sum(axis=0)) ** 2 / np.linalg.norm(parts) ** 2


def test_coherence():
    check = checks.together_coherence
    passes(check(coherence))
    fails(check(lambda c: coherence(c) ** 0.5), "squared")
    fails(check(lambda c: 1 / coherence(c)), "on top")
    fails(check(lambda c: coherence(c) * len(c)), "not by their mean")
    fails(check(lambda c: coherence(c) / len(c)), "times K")
    lengths = lambda c: sum(part.norm() for part in c)  # noqa: E731
    fails(check(lambda c: c.sum(0).norm() ** 2 / lengths(c) ** 2), "not the square of the sum")
    fails(check(lambda c: c.sum(0).norm() ** 2), "divide by")
    fails(check(lambda c: c.sum() ** 2 / c.norm() ** 2), "first dimension")


# Vectors of length one with a given cosine, from the root of their Gram matrix.
def coherence_of_angle(K, c):
    gram = np.full((K, K), float(c)) + (1 - c) * np.eye(K)
    values, vectors = np.linalg.eigh(gram)
    found = vectors * np.sqrt(values.clip(0))
    return coherence(torch.from_numpy(found))


def test_coherence_of_angle():
    check = checks.together_coherence_of_angle
    passes(check(coherence_of_angle))
    fails(check(lambda K, c: 1 + K * c), "not itself")
    fails(check(lambda K, c: K * c), "themselves")
    fails(check(lambda K, c: K * coherence_of_angle(K, c)), "divide it by K")
    fails(check(lambda K, c: 1 + (K - 1) * c / 2), "twice")
    fails(check(lambda K, c: coherence_of_angle(K, c) ** 0.5), "squared")
    fails(check(lambda K, c: 1 + (K - 1) * c**2), "once")
    fails(check(lambda K, c: K), "c = 1")


# By autograd, with a weight for each loop.
def linear_uses(w, e, K):
    weights = torch.full((K,), w, dtype=torch.float64, requires_grad=True)
    h = torch.zeros((), dtype=torch.float64)
    for weight in weights:
        h = weight * (h + e)
    return torch.autograd.grad(h, weights)[0]


def test_linear_uses():
    check = checks.together_linear_uses
    passes(check(linear_uses))
    fails(check(lambda w, e, K: [w ** (K - k) * e for k in range(1, K + 1)]), "old state, too")
    states = lambda w, e, K: [sum(e * w**j for j in range(k + 1)) for k in range(K)]  # noqa: E731
    fails(check(states), "loops behind it")
    fails(check(lambda w, e, K: w * linear_uses(w, e, K)), "K - k")
    fails(check(lambda w, e, K: w * np.array(states(w, e, K))), "those are the states")
    fails(check(lambda w, e, K: linear_uses(w, e, K).flip(0)), "that of loop 1")
    fails(check(lambda w, e, K: linear_uses(w, e, K).sum()), "each loop")


def extra_damage(loop, loop_dense, plain, plain_dense):
    extra = np.subtract(loop, loop_dense) - np.subtract(plain, plain_dense)
    low, high = stats.t.interval(0.95, len(extra) - 1, extra.mean(), stats.sem(extra))
    return extra.mean(), (high - low) / 2


def with_width(width):
    def answer(a, b, c, d):
        extra = np.subtract(a, b) - np.subtract(c, d)
        return extra.mean(), width(extra)

    return answer


def test_extra_damage():
    check = checks.together_extra_damage
    passes(check(extra_damage))
    mean = statistics.fmean
    fails(check(lambda a, b, c, d: (mean(a) - mean(c), 0.1)), "dense model")
    fails(check(lambda a, b, c, d: (mean(c) - mean(d) - mean(a) + mean(b), 0.1)), "plain less")
    fails(check(lambda a, b, c, d: (mean(a) - mean(b), 0.1)), "looped model alone")
    fails(check(lambda a, b, c, d: mean(a)), "two numbers")
    fails(check(with_width(lambda x: x.std(ddof=1))), "one seed")
    fails(check(with_width(stats.sem)), "standard error")
    fails(check(with_width(lambda x: 1.96 * stats.sem(x))), "Student")
    one_sided = lambda x: stats.t.ppf(0.95, len(x) - 1) * stats.sem(x)  # noqa: E731
    fails(check(with_width(one_sided)), "each side")
    biased = lambda x: stats.t.ppf(0.975, len(x) - 1) * stats.sem(x, ddof=0)  # noqa: E731
    fails(check(with_width(biased)), "n - 1")

    def strangers(a, b, c, d):
        spread = math.sqrt(sum(np.var(x, ddof=1) for x in (a, b, c, d)) / len(a))
        return extra_damage(a, b, c, d)[0], stats.t.ppf(0.975, len(a) - 1) * spread

    fails(check(strangers), "pair by seed")


# The root of the difference of the bits of both models, of a thousand weights a block.
def mask_sparsity(s, K, bits):
    def surplus(share):
        looped = 1000 + 1000 * (1 - s) * bits
        return K * 1000 + K * 1000 * (1 - share) * bits - looped

    return 1.0 if surplus(1.0) > 0 else brentq(surplus, 0.0, 1.0)


def test_mask_bits():
    check = checks.together_mask_bits
    passes(check(mask_sparsity))
    assert {mask_sparsity(*case) == 1 for case in ((0.5, 2, 16), (0.9, 6, 32))} == {True, False}
    fails(check(lambda s, K, b: 1 - (1 - s) / K), "*every* weight")
    fails(check(lambda s, K, b: 1 - (1 + b * (1 - s)) / K / b), "mask, too")
    fails(check(lambda s, K, b: 1 - ((1 + b * (1 - s)) / K - 1) / b), "more than 1")
    fails(check(lambda s, K, b: 2 - (1 - s) / K - 1 / K), "1 bit")
    fails(check(lambda s, K, b: 1 - mask_sparsity(s, K, b)), "what stays")


NAMES = (
    *("equal_weights", "coherence", "coherence_of_angle"),
    *("linear_uses", "extra_damage", "mask_bits"),
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("wrong", [math.nan, [1.0, 2.5], "text", lambda *_: "text", lambda: 1])
def test_nonsense_never_raises(name, wrong):
    assert not getattr(checks, f"together_{name}")(wrong).passed


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stub", [None, ..., lambda *_: None])
def test_a_stub_is_told_so(name, stub):
    assert not getattr(checks, f"together_{name}")(stub).passed

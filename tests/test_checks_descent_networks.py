"""The checkers of the chapter *Unrolled networks*: right answers pass, mistakes are named."""

import math

import torch

from unrolled.checks import descent_networks as checks


def passes(result):
    assert result.passed, result


def fails(result, words):
    assert not result.passed, result
    assert words in result.message, result


def test_coupling_floor():
    passes(checks.descent_coupling_floor(-4 * math.log(4)))
    fails(checks.descent_coupling_floor(0), "four ones")
    fails(checks.descent_coupling_floor(-math.log(4)), "sum over t")
    fails(checks.descent_coupling_floor(4 * math.log(4)), "sign")
    fails(checks.descent_coupling_floor(-16), "kernel")
    fails(checks.descent_coupling_floor([1, 2]), "one number")


def test_safe_step():
    def step(d, v, mu, T):
        return 1 / (d**2 + mu * v**2 * (T - 1) * (T + 2) / T)

    passes(checks.descent_safe_step(step))
    fails(checks.descent_safe_step(lambda d, v, mu, T: 1 / d**2), "coupling")
    fails(checks.descent_safe_step(lambda *a: 2 * step(*a)), "edge")
    fails(checks.descent_safe_step(lambda d, v, mu, T: step(d**0.5, v**0.5, mu, T)), "square")
    fails(checks.descent_safe_step(lambda d, v, mu, T: 1.0), "off by")


def test_positive_threshold():
    passes(checks.descent_positive_threshold(lambda x, t: (x - t).clamp(min=0)))
    fails(checks.descent_positive_threshold(lambda x, t: x.relu()), "threshold")
    fails(checks.descent_positive_threshold(lambda x, t: x * (x > t)), "hard")
    fails(checks.descent_positive_threshold(lambda x, t: x - x.clamp(-t, t)), "negative entries")


def weights(H, V):
    u = H @ V.mT
    return (-(u[:, :, None] - u[:, None]).square().sum(-1) / 2).softmax(-1)


def test_attention():
    passes(checks.descent_attention(weights))
    fails(checks.descent_attention(lambda H, V: weights(H, V).mT), "rows should")
    fails(checks.descent_attention(lambda H, V: weights(2**0.5 * H, V)), "1/2")
    fails(checks.descent_attention(lambda H, V: (H @ V.mT @ V @ H.mT).softmax(-1)), "inner")


def test_pull():
    def pull(A, H):
        return torch.diag((A + A.mT).sum(1)) @ H - (A + A.mT) @ H

    passes(checks.descent_pull(pull))
    fails(checks.descent_pull(lambda A, H: H - A @ H), "common attention")
    fails(checks.descent_pull(lambda A, H: -pull(A, H)), "way down")
    fails(checks.descent_pull(lambda A, H: pull(A, H) / 2), "not the mean")


def test_rises():
    passes(checks.descent_rises(lambda E: (E[:, 1] - E[:, 0] > 0).double().mean(1)))
    fails(checks.descent_rises(lambda E: (E[:, 1] < E[:, 0]).double().mean(1)), "falls")
    fails(checks.descent_rises(lambda E: (E[:, 1] > E[:, 0]).double().sum(1)), "count")
    fails(checks.descent_rises(lambda E: (E.mean(2)[:, 1] > E.mean(2)[:, 0]).double()), "average")

"""The checkers of the chapter *Text*: right answers pass, mistakes are named."""

import math

import pytest
import torch

from unrolled import checks


def passes(result):
    assert result.passed, result


def fails(result, words):
    assert not result.passed, result
    assert words in result.message, result


def test_random_text():
    passes(checks.descent_random_text(2**0.5))
    fails(checks.descent_random_text(1), "twice the variance")
    fails(checks.descent_random_text(2), "twice the variance")
    fails(checks.descent_random_text(0.5), "solve")
    fails(checks.descent_random_text([1, 2]), "one number")
    fails(checks.descent_random_text(None), "no answer")


def test_uniform_width_is_where_the_noise_ends():
    passes(checks.descent_uniform_width(lambda gamma, scale: 3**0.5 * gamma * scale))
    fails(checks.descent_uniform_width(lambda gamma, scale: gamma * scale), "half width")
    fails(checks.descent_uniform_width(lambda gamma, scale: 12**0.5 * gamma * scale), "whole")
    fails(checks.descent_uniform_width(lambda gamma, scale: 3 * gamma * scale), "root")
    fails(checks.descent_uniform_width(lambda gamma, scale: 3**0.5 * gamma), "off by")


def masked_mean(x, mask):
    rows = [row[keep.bool()].mean(dim=0) for row, keep in zip(x, mask, strict=True)]
    return torch.stack(rows)


def masked_sum(x, mask):
    return (x * mask[..., None]).sum(dim=1)


def test_masked_mean():
    passes(checks.descent_masked_mean(masked_mean))
    fails(checks.descent_masked_mean(lambda x, m: x.mean(1)), "use the mask")
    fails(checks.descent_masked_mean(lambda x, m: (x * m[..., None]).mean(1)), "divide by N")
    fails(checks.descent_masked_mean(masked_sum), "a sum")
    fails(checks.descent_masked_mean(lambda x, m: masked_sum(x, m) / m.sum()), "whole batch")
    fails(checks.descent_masked_mean(lambda x, m: x[:, 0]), "off by")


def auc(z, y, tie=0.5):
    total = [1.0 if a > b else tie * (a == b) for a in z[y == 1] for b in z[y == 0]]
    return float(sum(total)) / len(total)


def test_roc_auc_counts_pairs():
    passes(checks.descent_roc_auc(auc))
    fails(checks.descent_roc_auc(lambda z, y: auc(z, y, 0)), "forget the ties")
    fails(checks.descent_roc_auc(lambda z, y: auc(z, y, 1)), "a half, not a whole")
    fails(checks.descent_roc_auc(lambda z, y: 1 - auc(z, y)), "class 1")
    fails(checks.descent_roc_auc(lambda z, y: ((z > 0) == y).double().mean()), "accuracy")


def test_privacy_shift():
    passes(checks.descent_privacy_shift(lambda gamma, d, N: 2 * math.sqrt(N * d) / gamma))
    fails(checks.descent_privacy_shift(lambda g, d, N: math.sqrt(N * d) / g), "factor 2")
    fails(checks.descent_privacy_shift(lambda g, d, N: 2 * N * math.sqrt(d) / g), "squares")
    fails(checks.descent_privacy_shift(lambda g, d, N: 2 * math.sqrt(d) / g), "forget N")
    fails(checks.descent_privacy_shift(lambda g, d, N: 2 * math.sqrt(N * d) / g**2), "variance")


def mean_only(L=4):
    f = torch.full((L + 1, 3), 0.01) + 1e-3 * torch.arange(L + 1)[:, None]
    f[:, 0] = 10 * 0.8 ** torch.arange(L + 1)
    return f


@pytest.mark.parametrize("L", [3, 6])
def test_mean_may_fall_while_most_texts_rise(L):
    passes(checks.descent_mean_only(mean_only(L)))


def test_mean_only_names_what_is_wrong():
    fails(checks.descent_mean_only(mean_only(2)), "(L + 1, B)")
    fails(checks.descent_mean_only(mean_only().flip(1) - 0.02), "positive")
    fails(checks.descent_mean_only(mean_only()[:, :2]), "1 of 2")
    fails(checks.descent_mean_only(mean_only() + 100), "the mean goes")

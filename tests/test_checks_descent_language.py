"""The checkers of the chapter *Language model*: right answers pass, mistakes are named."""

import math
import time

import numpy as np
import pytest
import torch

from unrolled import checks


def passes(result):
    assert result.passed, result


def fails(result, words):
    assert not result.passed, result
    assert words in result.message, result


def first_reading(norm=True, unit=False):
    table = 2 * torch.eye(64)
    x = table[3] / table[3].norm() if unit else table[3]
    x = x / x.square().mean().sqrt() if norm else x
    return -(table @ x).log_softmax(0)[4]


def test_first_reading():
    passes(checks.descent_first_reading(first_reading()))
    passes(checks.descent_first_reading(16))
    fails(checks.descent_first_reading(math.log(64)), "uniform guess")
    fails(checks.descent_first_reading(first_reading(norm=False)), "forget the norm")
    fails(checks.descent_first_reading(first_reading(norm=False, unit=True)), "length 1")
    fails(checks.descent_first_reading(0.0), "own token")
    fails(checks.descent_first_reading(110), "any other")


def adapter_gradients(A, B, x, dy):
    A, B = A.requires_grad_(), B.requires_grad_()
    y = x @ A.T @ B.T
    return torch.autograd.grad((y * dy).sum(), (A, B))


def test_adapter_gradients():
    passes(checks.descent_adapter_gradients(adapter_gradients))

    def changed(change):
        return checks.descent_adapter_gradients(lambda *case: change(*adapter_gradients(*case)))

    fails(changed(lambda dA, dB: (0 * dA, dB)), "not always")
    fails(changed(lambda dA, dB: (dA.T, dB)), "of A has shape")
    fails(changed(lambda dA, dB: (dA, dB.T)), "of B has shape")
    fails(changed(lambda dA, dB: dA), "two gradients")
    fails(changed(lambda dA, dB: (dA, -dB)), "off by")

    def mean(A, B, x, dy):
        return [g / len(x) for g in adapter_gradients(A, B, x, dy)]

    fails(checks.descent_adapter_gradients(mean), "mean over the rows")


def test_noise_cosine():
    def measured(gamma, d=4_000_000):
        generator = torch.Generator().manual_seed(0)
        e, z = torch.randn(2, d, generator=generator)
        return torch.cosine_similarity(e, e + gamma * z, dim=0)

    assert measured(1.5) == pytest.approx(1 / math.sqrt(1 + 1.5**2), abs=1e-3)
    passes(checks.descent_noise_cosine(lambda gamma: math.cos(math.atan(gamma))))
    fails(checks.descent_noise_cosine(lambda gamma: 1 / (1 + gamma)), "lengths")
    fails(checks.descent_noise_cosine(lambda gamma: math.sin(math.atan(gamma))), "sine")
    fails(checks.descent_noise_cosine(math.atan), "angle")
    fails(checks.descent_noise_cosine(lambda gamma: (1 + gamma) ** -0.5), "variance")


def test_win_rate_deviation():
    def counted(n, ties):
        k = np.arange(n - ties + 1)
        p = np.array([math.comb(n - ties, int(i)) for i in k], dtype=float) / 2.0 ** (n - ties)
        rates = (k + ties / 2) / n
        return math.sqrt((p * (rates - 0.5) ** 2).sum())

    assert counted(20, 4) == pytest.approx(math.sqrt(16) / 40)
    right = lambda n, ties: (n - ties) ** 0.5 / (2 * n)  # noqa: E731
    passes(checks.descent_win_rate_deviation(right))
    fails(checks.descent_win_rate_deviation(lambda n, ties: right(n, ties) ** 2), "variance")
    fails(checks.descent_win_rate_deviation(lambda n, ties: 2 * right(n, ties)), "1 / 4")
    fails(checks.descent_win_rate_deviation(lambda n, ties: n * right(n, ties)), "Divide by n")
    without = lambda n, ties: 0.5 / (n - ties) ** 0.5 if n > ties else 0  # noqa: E731
    fails(checks.descent_win_rate_deviation(without), "below the line")


def sign_test(losses, reference, inclusive=True, sides=2):
    d = losses[losses != reference] - reference[losses != reference]
    n, wins = len(d), int((d < 0).sum())
    most = max(wins, n - wins) if sides == 2 else wins
    tail = sum(math.comb(n, k) for k in range(most + (not inclusive), n + 1)) / 2**n
    return min(1.0, sides * tail)


def test_sign_test():
    passes(checks.descent_sign_test(sign_test))
    fails(checks.descent_sign_test(lambda f, r: sign_test(f, r, sides=1)), "one side")
    fails(checks.descent_sign_test(lambda f, r: sign_test(f, r, inclusive=False)), "itself")

    def split(f, r):
        ties = (f == r).nonzero().flatten()
        r = r.clone()
        r[ties[: len(ties) // 2]] += 1
        if len(ties) % 2:
            r[ties[-1]] -= 1
        r[ties[len(ties) // 2 :]] -= 1
        return sign_test(f, r)

    fails(checks.descent_sign_test(split), "leave them out")

    def normal(f, r):
        n, wins = int((f != r).sum()), int((f < r).sum())
        return math.erfc(abs(wins - n / 2) / math.sqrt(n / 4) / math.sqrt(2))

    fails(checks.descent_sign_test(normal), "normal approximation")


def nearest(noisy, table, factor=2):
    squares = table.square().sum(dim=1)
    return (squares - factor * noisy @ table.T).argmin(dim=1)


def test_nearest_token():
    passes(checks.descent_nearest_token(nearest))
    fails(checks.descent_nearest_token(lambda x, E: nearest(x, E, factor=1)), "factor 2")
    fails(checks.descent_nearest_token(lambda x, E: nearest(x, E, factor=-2)), "off by")
    fails(checks.descent_nearest_token(lambda x, E: nearest(x, E[1:])), "one too low")
    fails(checks.descent_nearest_token(lambda x, E: torch.cdist(x, E).argmax(1)), "farthest")
    unit = torch.nn.functional.normalize
    fails(checks.descent_nearest_token(lambda x, E: nearest(unit(x), unit(E))), "cosine")


def translated(states, last, new):
    middle, end = states.mean(0), last.mean(0)
    x = states - middle
    W = torch.linalg.solve(x.T @ x, x.T @ (last - end))
    return end + (new - middle) @ W


def test_translator():
    passes(checks.descent_translator(translated))
    fails(checks.descent_translator(lambda x, y, new: new), "plain lens")
    fails(checks.descent_translator(lambda x, y, new: new @ torch.linalg.pinv(x) @ y), "constant")
    fails(checks.descent_translator(lambda x, y, new: new + y.mean(0) - x.mean(0)), "shift")
    fails(checks.descent_translator(lambda x, y, new: translated(y, x, new)), "way back")


NAMES = (
    *("first_reading", "adapter_gradients", "noise_cosine", "win_rate_deviation"),
    *("sign_test", "nearest_token", "translator"),
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("wrong", [math.nan, [1.0, 2.0], "text", lambda *_: "text", lambda: 1])
def test_nonsense_never_raises(name, wrong):
    assert not getattr(checks, f"descent_{name}")(wrong).passed


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stub", [None, ..., lambda *_: None])
def test_a_stub_is_told_so(name, stub):
    assert "no answer yet" in getattr(checks, f"descent_{name}")(stub).message or name in (
        "first_reading",
    )


def test_no_checker_fetches_or_takes_long(monkeypatch):
    monkeypatch.setattr("unrolled.data.pretrained.smollm2_folder", None)
    start = time.process_time()
    for name in NAMES:
        getattr(checks, f"descent_{name}")(lambda *_: 1.0)
    assert time.process_time() - start < 10

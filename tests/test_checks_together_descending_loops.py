"""The checkers of the chapter *Descending loops*: right answers pass, mistakes are named."""

import math

import pytest
import torch
from scipy.optimize import linprog

from unrolled import checks


def passes(result):
    assert result.passed, result


def fails(result, words):
    assert not result.passed, result
    assert words in result.message, result


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (1 - 1.9 / 2.6, "together"),
        ((1 - 1.9 / 2.6) / 6, "multiply"),
        ((1.9 / 2.6) ** (1 / 6), "takes away"),
        (1 - (1.9 / 2.6) ** 0.2, "five loops"),
        (5.09, "per cent"),
        (0.9, "solve"),
    ],
)
def test_largest_share(answer, words):
    share = -math.expm1(math.log(1.9 / 2.6) / 6)
    passes(checks.together_largest_share(share))
    passes(checks.together_largest_share(torch.tensor(share)))
    fails(checks.together_largest_share(answer), words)


def nearest(phi, omega):
    turns = torch.arange(int(2 * math.pi / omega) + 1)
    return int((1 - torch.cos(phi - turns * omega)).argmin())


def test_turning_point():
    passes(checks.together_turning_point(nearest))
    fails(checks.together_turning_point(lambda a, b: a // b), "before the target")
    fails(checks.together_turning_point(lambda a, b: math.ceil(a / b)), "past the target")
    fails(checks.together_turning_point(lambda a, b: a / b), "whole number")
    fails(checks.together_turning_point(lambda a, b: nearest(a, b) + 1), "raises")
    fails(checks.together_turning_point(lambda a, b: nearest(math.pi, b)), "half a turn")


def embedding_push(prices, shares):
    """Return the ratio from the effective weights themselves."""
    weights = torch.zeros(len(prices) + 1, dtype=prices.dtype)
    weights[-1] = 1
    weights[1:] += prices
    weights[:-1] -= (1 - shares) * prices
    return -weights[0] / weights[1:].sum()


def test_embedding_push():
    passes(checks.together_embedding_push(embedding_push))
    for answer, words in (
        (lambda p, a: (1 - a[0]) * p[0], "forget to divide"),
        (lambda p, a: -embedding_push(p, a), "sign"),
        (lambda p, a: (1 - a[0]) * p[0] / (p[0] + (a * p)[1:].sum()), "objective"),
        (lambda p, a: (1 - a[0]) * p[0] / (1 + (a * p).sum()), "counts whole"),
        (lambda p, a: embedding_push(p, a) / (1 - a[0]), "share of the first"),
        (lambda p, a: (1 - a[0]) * p[0] / (1 + p.sum()), "cancels"),
    ):
        fails(checks.together_embedding_push(answer), words)


def exit_loops(logits, threshold, never=None):
    found = []
    for n in range(logits.shape[1]):
        tops = [max(loop[n].softmax(-1)) for loop in logits]
        loops = [k for k, top in enumerate(tops, start=1) if top > threshold]
        found.append(loops[0] if loops else never or len(logits))
    return torch.tensor(found)


def test_exit_loops():
    passes(checks.together_exit_loops(exit_loops))
    for answer, words in (
        (lambda u, t: torch.ones(u.shape[1]), "any token go on"),
        (lambda u, t: torch.full((u.shape[1],), len(u)), "stop early"),
        (lambda u, t: exit_loops(u, t) - 1, "count from 0"),
        (lambda u, t: exit_loops(u, t, never=1), "never confident"),
        (lambda u, t: exit_loops(u, 1 - t), "doubt"),
        (lambda u, t: 1 + u.softmax(-1).amax(-1).argmax(0), "most confident"),
    ):
        fails(checks.together_exit_loops(answer), words)


def best_fixed(losses, k):
    numbers = [list(range(1, len(losses) + 1))]
    sums = {"A_eq": [[1] * len(losses)], "b_eq": [1]}
    return linprog(losses.numpy(), A_ub=numbers, b_ub=[k], **sums).fun


def test_best_fixed():
    passes(checks.together_best_fixed(best_fixed))
    for answer, words in (
        (lambda f, k: f[: int(k)].min(), "one number for all"),
        (lambda f, k: f.min(), "forget the mean"),
    ):
        fails(checks.together_best_fixed(answer), words)

    def neighbours(losses, k):
        low, high = losses[math.floor(k) - 1], losses[math.ceil(k) - 1]
        return low + (k - math.floor(k)) * (high - low)

    fails(checks.together_best_fixed(neighbours), "next to k")


def oracle(losses, start=1):
    columns = losses.T.tolist()
    loops = [start + column.index(min(column)) for column in columns]
    return sum(loops) / len(loops), sum(map(min, columns)) / len(columns)


def test_oracle():
    passes(checks.together_oracle(oracle))
    for answer, words in (
        (lambda f: (1.0, f[0].mean()), "any token go on"),
        (lambda f: oracle(f, start=0), "count from 0"),
        (lambda f: oracle(f)[::-1], "swap"),
        (lambda f: (1.0 + f.mean(1).argmin(), f.mean(1).min()), "single number"),
    ):
        fails(checks.together_oracle(answer), words)
    fails(
        checks.together_oracle(lambda f: (len(f) + 1 - oracle(f.flip(0))[0], oracle(f)[1])),
        "equal losses",
    )

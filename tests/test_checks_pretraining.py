"""The checkers of *Pretraining and ablation*: right answers pass, typical mistakes are named."""

import math
import statistics

import pytest
import torch
from scipy.stats import t as student

from unrolled import checks
from unrolled.looped.model import LoopedTransformer
from unrolled.transformer import Transformer


def passes(result):
    assert result.passed, result


def fails(result, words):
    assert not result.passed, result
    assert words in result.message, result


def test_depth_price():
    core, ends = 12 * 12 * 768**2, 2 * 151_680 * 768
    right = (9 * core + ends) / (core + ends)
    passes(checks.looped_depth_price((right, 1)))
    fails(checks.looped_depth_price((9, 1)), "embedding and head")
    fails(checks.looped_depth_price((1, right)), "swap")
    fails(checks.looped_depth_price((right, 9)), "arithmetic")
    fails(checks.looped_depth_price((1, 1)), "its own in each block")
    fails(checks.looped_depth_price((1 / right, 1)), "wrong way round")
    fails(checks.looped_depth_price((2, 1)), "9 times")
    fails(checks.looped_depth_price(right), "two numbers")


def reach(shape=lambda m, n: max(1, m / n) ** 0.5, decayed=lambda D: (D + 1) / 2):
    def bound(m, n, rate, steps, decay):
        return shape(m, n) * rate * (steps - decay + decayed(decay))

    return bound


def test_muon_reach():
    passes(checks.looped_muon_reach(reach()))
    fails(checks.looped_muon_reach(reach(decayed=lambda D: D)), "forget the decay")
    fails(checks.looped_muon_reach(reach(decayed=lambda D: D / 2)), "Add them up")
    fails(checks.looped_muon_reach(reach(shape=lambda m, n: 1)), "tall matrix")
    fails(checks.looped_muon_reach(reach(shape=lambda m, n: (m / n) ** 0.5)), "never below 1")
    tall = reach(shape=lambda m, n: (max(1, m / n) * min(m, n)) ** 0.5)
    fails(checks.looped_muon_reach(tall), "Frobenius")
    fails(checks.looped_muon_reach(lambda *a: 1.2 * reach()(*a)), "exact orthogonal factors")


def iterate(coefficients=(1.5, -0.5, 0.0), steps=60, scale=lambda G: G.norm(), even=False):
    a, b, c = coefficients

    def polar(G):
        X = G / scale(G)
        for _ in range(steps):
            S = X @ X.T
            X = a * X + b * S @ X + c * S @ S @ X + (0.01 * X.flip(0) if even else 0)
        return X

    return polar


def test_polar():
    passes(checks.looped_polar(iterate()))
    passes(checks.looped_polar(iterate((1.875, -1.25, 0.375), 40)))
    fails(checks.looped_polar(iterate(scale=lambda G: 1.0)), "Frobenius")
    fails(checks.looped_polar(iterate(steps=6)), "more steps")
    fails(checks.looped_polar(iterate((3.4445, -4.775, 2.0315), 5)), "p(1) = 1")
    fails(checks.looped_polar(iterate(even=True)), "singular vectors")
    fails(checks.looped_polar(lambda G: -iterate()(G)), "sign")
    fails(checks.looped_polar(lambda G: iterate()(G).T), "shape")


def seeds(deviation=statistics.stdev, quantile=None, pair=True, level=0.975):
    def needed(first, second, target):
        keys = first if pair else range(len(first))
        other = second if pair else list(second.values())
        ours = first if pair else list(first.values())
        s, n = deviation([ours[key] - other[key] for key in keys]), 2
        q = quantile or (lambda n, pilot: student.ppf(level, n - 1))
        while q(n, len(first)) * s / n**0.5 > target:
            n += 1
        return n

    return needed


def strangers(first, second, target):
    s = math.hypot(statistics.stdev(first.values()), statistics.stdev(second.values()))
    return seeds(deviation=lambda _: s)(first, second, target)


def test_seeds_needed():
    passes(checks.looped_seeds_needed(seeds()))
    fails(checks.looped_seeds_needed(seeds(pair=False)), "position")
    fails(checks.looped_seeds_needed(strangers), "strangers")
    fails(checks.looped_seeds_needed(seeds(quantile=lambda n, pilot: 1.96)), "1.96")
    fails(checks.looped_seeds_needed(seeds(deviation=statistics.pstdev)), "n - 1")
    frozen = seeds(quantile=lambda n, pilot: student.ppf(0.975, pilot - 1))
    fails(checks.looped_seeds_needed(frozen), "pilot's quantile")
    fails(checks.looped_seeds_needed(seeds(level=0.95)), "one-sided")
    fails(checks.looped_seeds_needed(lambda *a: seeds()(*a) - 1), "too few")
    fails(checks.looped_seeds_needed(lambda *a: seeds()(*a) + 1), "more than needed")


def test_bits_per_byte():
    def bits(losses, tokens, lengths):
        return losses.sum() / lengths[tokens].sum() / math.log(2)

    passes(checks.looped_bits_per_byte(bits))
    check, ln2 = checks.looped_bits_per_byte, math.log(2)
    fails(check(lambda x, t, b: bits(x, t, b) * ln2), "nats")
    fails(check(lambda x, t, b: bits(x, t, b) * ln2**2), "divide by ln 2")
    fails(check(lambda x, t, b: x.mean() / ln2), "per token")
    fails(check(lambda x, t, b: (x / b[t]).mean() / ln2), "average ratios")
    fails(check(lambda x, t, b: x.mean() / b.double().mean() / ln2), "vocabulary")
    fails(check(lambda x, t, b: (x * b[t]).mean() / ln2), "multiply")


class Mine(LoopedTransformer):
    """LT_i and FLT at once: the old state is added at the start, and asks in every block."""

    def loop(self, e, state=None, mask=None, slots=None):
        h = None if state is None else self.norm(state)
        x, states = e if h is None else self.norm(e + h), []
        for block in self.blocks:
            states.append(x := block(x, query=h))
        return states


class Seer(Mine):
    """Looks at the whole text before it starts."""

    def loop(self, e, state=None, mask=None, slots=None):
        return super().loop(e + e.mean(dim=1, keepdim=True), state)


class Twice(Mine):
    """Runs its blocks twice in each loop."""

    def loop(self, e, state=None, mask=None, slots=None):
        return super().loop(e, super().loop(e, state)[-1])


class Deaf(Mine):
    """Forgets the old state."""

    def loop(self, e, state=None, mask=None, slots=None):
        return super().loop(e)


class Frozen(Mine):
    """No gradient reaches anything."""

    def loss(self, tokens_in, targets, *, num_loops=None):
        return super().loss(tokens_in, targets).detach().requires_grad_()


class Larger(Mine):
    """Has a weight of its own."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.scale = torch.nn.Parameter(torch.ones(()))


def variant(kind, injection="original"):
    return lambda config, num_loops: kind(config, num_loops, injection)


def test_own_variant():
    passes(checks.looped_own_variant(variant(Mine)))
    fails(checks.looped_own_variant(variant(LoopedTransformer, "fla")), "what FLA computes")
    fails(checks.looped_own_variant(variant(Larger)), "parameters")
    fails(checks.looped_own_variant(variant(Twice)), "FLOPs")
    fails(checks.looped_own_variant(variant(Seer)), "future")
    fails(checks.looped_own_variant(variant(Deaf)), "does your model loop")
    fails(checks.looped_own_variant(variant(Frozen)), "does the gradient reach")
    fails(checks.looped_own_variant(lambda config, num_loops: config), "a model is asked for")
    fails(checks.looped_own_variant(lambda config, num_loops: Transformer(config)), "loop at all")
    fails(checks.looped_own_variant(lambda config: config), "raised TypeError")


def test_own_variant_leaves_the_random_numbers_alone():
    torch.manual_seed(0)
    first = torch.rand(1)
    torch.manual_seed(0)
    checks.looped_own_variant(variant(Mine))
    assert torch.rand(1) == first


NAMES = ("depth_price", "muon_reach", "polar", "seeds_needed", "bits_per_byte", "own_variant")


@pytest.mark.parametrize("wrong", [math.nan, [1.0, 2.0], "text", lambda *x: x])
@pytest.mark.parametrize("name", NAMES)
def test_nonsense_never_raises(name, wrong):
    assert not getattr(checks, f"looped_{name}")(wrong).passed

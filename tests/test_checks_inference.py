"""The checkers of the chapter *Test-time compute*: right answers pass, mistakes are named."""

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


def test_loops_needed():
    k = next(k for k in range(1, 100) if 0.8 ** (k - 1) < 0.01)
    passes(checks.looped_loops_needed(k))
    passes(checks.looped_loops_needed(torch.tensor(k)))
    fails(checks.looped_loops_needed(k - 1), "loop 0")
    fails(checks.looped_loops_needed(math.log(0.01) / math.log(0.8)), "whole")
    fails(checks.looped_loops_needed(0.99 / 0.2), "subtract")
    fails(checks.looped_loops_needed(40), "power k - 1")


def test_best_loop_is_not_the_limit():
    states, h = [], 0.0
    for _ in range(40):
        states.append(h)
        h = 1 - 0.8 * (h - 1)
    losses = [(h - 1.2) ** 2 for h in states]
    best = 1 + losses.index(min(losses))
    passes(checks.looped_best_loop(best))
    fails(checks.looped_best_loop(1000), "0.04")
    fails(checks.looped_best_loop(best + 1), "sign")
    fails(checks.looped_best_loop(best + 2), "close")
    fails(checks.looped_best_loop(2), "after loop k")


def loop_weights(p):
    w = torch.zeros_like(p)
    for k in range(1, len(p) + 1):
        w[:k] += p[k - 1] / k
    return w


def test_loop_weights():
    passes(checks.looped_loop_weights(loop_weights))
    fails(checks.looped_loop_weights(lambda p: p), "last loop alone")
    fails(checks.looped_loop_weights(lambda p: 1 - p.cumsum(0) + p), "forget the mean")
    fails(checks.looped_loop_weights(lambda p: torch.ones_like(p) / len(p)), "all equal")
    k = torch.arange(1.0, 12)
    fails(checks.looped_loop_weights(lambda p: (p / k[: len(p)]).cumsum(0)), "wrong end")
    fails(checks.looped_loop_weights(lambda p: loop_weights(p) - p / k[: len(p)]), "k = j")


def limit_distance(states, power=1):
    a, b = (states[1] - states[0]).norm(), (states[2] - states[1]).norm()
    q = b / a
    return q**power / (1 - q) * b


def test_limit_distance():
    passes(checks.looped_limit_distance(limit_distance))
    fails(checks.looped_limit_distance(lambda s: limit_distance(s, power=0)), "factor q")
    fails(checks.looped_limit_distance(lambda s: limit_distance(s, power=-1)), "first state")
    fails(checks.looped_limit_distance(lambda s: (s[2] - s[1]).norm()), "1 / 2")
    fails(checks.looped_limit_distance(lambda s: limit_distance(s) ** 2), "root")


def sampler(shift=1, correct=True, rate=None, clamp=None):
    def sample(mean, sigma, count, generator):
        normal = torch.randn(count, generator=generator)
        log = math.log(mean - 1) + sigma * normal - (sigma**2 / 2 if correct else 0)
        rates = log.exp() if rate is None else torch.full((count,), mean - 1.0)
        draws = shift + torch.poisson(rates, generator=generator)
        return draws if clamp is None else draws.clamp(max=clamp)

    return sample


def test_loop_sampler_is_judged_by_its_moments_and_its_seeds():
    passes(checks.looped_loop_sampler(sampler()))
    passes(checks.looped_loop_sampler(lambda *a: sampler()(*a).long()))
    fails(checks.looped_loop_sampler(sampler(shift=0)), "1 in front")
    fails(checks.looped_loop_sampler(sampler(shift=2)), "too large by 1")
    fails(checks.looped_loop_sampler(sampler(correct=False)), "-sigma")
    fails(checks.looped_loop_sampler(sampler(rate="fixed")), "plain Poisson")
    fails(checks.looped_loop_sampler(sampler(clamp=9)), "your draws have the mean")

    def uniform(mean, sigma, count, generator):
        return torch.randint(1, 2 * mean, (count,), generator=generator)

    fails(checks.looped_loop_sampler(uniform), "uniform numbers")

    def own_seed(mean, sigma, count, generator):
        return sampler()(mean, sigma, count, torch.Generator().manual_seed(0))

    def no_seed(mean, sigma, count, generator):
        return sampler()(mean, sigma, count, None)

    fails(checks.looped_loop_sampler(own_seed), "seed of your own")
    fails(checks.looped_loop_sampler(no_seed), "generator for every draw")
    fails(checks.looped_loop_sampler(lambda m, s, n, g: sampler()(m, s, n - 1, g)), "shape")
    fails(checks.looped_loop_sampler(lambda m, s, n, g: sampler()(m, s, n, g) + 0.5), "whole")


def exits(logits, threshold, swap=False, unit=1.0, ahead=False, default=None):
    log_p, found = logits.log_softmax(-1), []
    for n in range(logits.shape[1]):
        changes = []
        for k in range(1, len(logits)):
            new, old = log_p[k, n], log_p[k - 1, n]
            new, old = (old, new) if swap else (new, old)
            changes.append(float((new.exp() * (new - old)).sum()) / unit)
        small = [c < threshold for c in changes]
        quiet = [all(small[i:]) for i in range(len(small))] if ahead else small
        k = quiet.index(True) + 2 if True in quiet else (default or len(logits))
        found.append(k)
    return torch.tensor(found)


def test_exit_loop():
    passes(checks.looped_exit_loop(exits))
    fails(checks.looped_exit_loop(lambda u, t: exits(u, t, swap=True)), "swap")
    fails(checks.looped_exit_loop(lambda u, t: exits(u, t, unit=math.log(2))), "nats")
    fails(checks.looped_exit_loop(lambda u, t: exits(u, t, ahead=True)), "ahead")
    fails(checks.looped_exit_loop(lambda u, t: exits(u, t, default=2)), "never settles")
    fails(checks.looped_exit_loop(lambda u, t: exits(u, t) - 1), "count from 0")
    fails(checks.looped_exit_loop(lambda u, t: torch.full((u.shape[1],), len(u))), "stop early")


def weighted_loss(model, inputs, targets, weights):
    total = 0.0
    for k, w in enumerate(weights, start=1):
        logits = model(inputs, num_loops=k).logits
        total = total + w * F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    return total / weights.sum()


def test_weighted_loss_checks_value_and_graph():
    passes(checks.looped_weighted_loss(weighted_loss))
    fails(
        checks.looped_weighted_loss(lambda m, x, y, w: weighted_loss(m, x, y, w).detach()), "graph"
    )
    fails(
        checks.looped_weighted_loss(lambda m, x, y, w: weighted_loss(m, x, y, w) * w.sum()),
        "sum of the weights",
    )
    fails(
        checks.looped_weighted_loss(lambda m, x, y, w: weighted_loss(m, x, y, w.flip(0))),
        "turn the weights",
    )
    fails(
        checks.looped_weighted_loss(lambda m, x, y, w: m.loss(x, y, num_loops=len(w))),
        "last loop alone",
    )
    fails(
        checks.looped_weighted_loss(lambda m, x, y, w: weighted_loss(m, x, y, torch.ones_like(w))),
        "plain mean",
    )
    fails(checks.looped_weighted_loss(lambda m, x, y, w: weighted_loss(m, x, y, w[:2])), "own")


NAMES = (
    *("loops_needed", "best_loop", "loop_weights", "limit_distance"),
    *("loop_sampler", "exit_loop", "weighted_loss"),
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("wrong", [math.nan, [1.0, 2.0], "text", lambda *_: "text", lambda: 1])
def test_nonsense_never_raises(name, wrong):
    assert not getattr(checks, f"looped_{name}")(wrong).passed


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stub", [None, ..., lambda *_: None])
def test_a_stub_is_told_so(name, stub):
    result = getattr(checks, f"looped_{name}")(stub)
    assert not result.passed

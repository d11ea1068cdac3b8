"""Checkers of the chapter *Test-time compute* of the part on loops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from unrolled.checks.result import (
    Mistake,
    WrongAnswerError,
    as_number,
    as_tensor,
    call,
    checker,
    close,
    compare,
)
from unrolled.looped.model import LoopedTransformer
from unrolled.transformer import TransformerConfig

# --------------------------------------------------------------------------------------------
# Predict: how many loops a contraction needs

FACTOR, WANTED = 0.8, 0.01


@checker
def looped_loops_needed(answer: int) -> str:
    """Check after which loop a contraction by 0.8 per loop is first closer than 1 %.

    Parameters
    ----------
    answer : int
        The number of loops, by :eq:`eq-looped-contraction`, from a distance of 1 after loop 1.

    Examples
    --------
    >>> looped_loops_needed(21)
    Not yet: did you count from loop 0? The distance 1 is the one after the first loop.
    """
    value = as_number(answer)
    exact = math.log(WANTED) / math.log(FACTOR)  # 20.6 more loops
    right = 1 + math.ceil(exact)
    if value == right:
        return f"One loop to get there, and {right - 1} factors of {FACTOR}."
    if value == right - 1:
        raise WrongAnswerError(
            "did you count from loop 0? The distance 1 is the one after the first loop."
        )
    if close(value, exact, 0.01) or close(value, 1 + exact, 0.01):
        raise WrongAnswerError("did you forget to round up? Loops come whole.")
    if close(value, WANTED / FACTOR, 0.05) or 4.5 <= value <= 6:
        raise WrongAnswerError(
            "did you subtract? Each loop takes 20 % of what is left, not of the whole."
        )
    raise WrongAnswerError("after loop k the distance is 0.8 to the power k - 1.")


# --------------------------------------------------------------------------------------------
# Predict: the best loop of an iteration that overshoots

OVERSHOOT, LIMIT, TARGET = -0.8, 1.0, 1.2


def _overshooting(k: int) -> float:
    return LIMIT - LIMIT * OVERSHOOT ** (k - 1)


@checker
def looped_best_loop(answer: int) -> str:
    """Check after which loop an iteration that overshoots its limit has the smallest loss.

    Parameters
    ----------
    answer : int
        k, for h(1) = 0, the limit 1, the factor -0.8 and the loss (h - 1.2)².

    Examples
    --------
    >>> looped_best_loop(7)
    Not yet: did you mind the sign? After an odd number of loops the state is below its limit...
    """
    value = as_number(answer)
    best = min(range(1, 200), key=lambda k: (_overshooting(k) - TARGET) ** 2)
    if value == best:
        return "More loops than that come closer to the limit, and further from the target."
    if value > 50:
        raise WrongAnswerError(
            "is the limit the best? It is 1, and the target is 1.2: the loss there is 0.04."
        )
    if value % 2 == 1:
        raise WrongAnswerError(
            "did you mind the sign? After an odd number of loops the state is below its limit, "
            "and the target is above."
        )
    if value in (best - 2, best + 2):
        raise WrongAnswerError("close: write down the states of loops 6, 8 and 10.")
    raise WrongAnswerError("after loop k the state is 1 - (-0.8)^(k - 1).")


# --------------------------------------------------------------------------------------------
# Derive: the weights of the loops


def _weights(probabilities: Tensor) -> Tensor:
    k = torch.arange(1, len(probabilities) + 1, dtype=probabilities.dtype)
    return (probabilities / k).flip(0).cumsum(0).flip(0)


def _not_shared(probabilities: Tensor) -> Tensor:
    return probabilities.flip(0).cumsum(0).flip(0)


def _from_below(probabilities: Tensor) -> Tensor:
    k = torch.arange(1, len(probabilities) + 1, dtype=probabilities.dtype)
    return (probabilities / k).cumsum(0)


def _without_itself(probabilities: Tensor) -> Tensor:
    k = torch.arange(1, len(probabilities) + 1, dtype=probabilities.dtype)
    return _weights(probabilities) - probabilities / k


def _divided_by_j(probabilities: Tensor) -> Tensor:
    k = torch.arange(1, len(probabilities) + 1, dtype=probabilities.dtype)
    return _not_shared(probabilities) / k


@checker
def looped_loop_weights(answer: Callable[[Tensor], Tensor]) -> str:
    r"""Check the weight of each loop's loss when both the mean and the number of loops are random.

    Parameters
    ----------
    answer : callable
        ``answer(probabilities)`` takes those of 1, 2, ... loops and returns as many weights w, with
        :math:`\sum_k \pi_k \frac1k \sum_{j \le k} \ell^{(j)} = \sum_j w_j \ell^{(j)}`.

    Examples
    --------
    >>> looped_loop_weights(lambda p: p)
    Not yet: is that the loss on the last loop alone? Here each of the loops before has a share...
    """
    generator = torch.Generator().manual_seed(41)
    cases = []
    for size in (3, 5, 11):
        p = torch.rand(size, generator=generator, dtype=torch.float64)
        cases.append((p / p.sum(),))
    mistakes = [
        Mistake(
            lambda p: p,
            "is that the loss on the last loop alone? Here each of the loops before has a share "
            "in the mean.",
        ),
        Mistake(
            _not_shared,
            "did you forget the mean? A training step with k loops gives each of them 1 / k.",
        ),
        Mistake(_divided_by_j, "did you divide by j? The mean of a step divides by its own k."),
        Mistake(
            _from_below,
            "did you add from the wrong end? Loop j is part of the steps with k >= j loops.",
        ),
        Mistake(_without_itself, "did you leave out k = j? A step with j loops has loop j too."),
        Mistake(
            lambda p: torch.full_like(p, 1 / len(p)),
            "are they all equal? Early loops are part of more steps than late ones.",
        ),
    ]
    compare(answer, cases, _weights, mistakes)
    return "The first loop is in every step, so it has the largest weight."


# --------------------------------------------------------------------------------------------
# Derive: how far the limit is


def _step_norms(states: Tensor) -> tuple[Tensor, Tensor]:
    first, second = (states[1:] - states[:-1]).flatten(1).norm(dim=1)
    return first, second


def _distance(states: Tensor) -> Tensor:
    first, second = _step_norms(states)
    q = second / first
    return q / (1 - q) * second


def _distance_before(states: Tensor) -> Tensor:
    first, second = _step_norms(states)
    return second / (1 - second / first)


def _distance_first(states: Tensor) -> Tensor:
    first, second = _step_norms(states)
    return first / (1 - second / first)


def _distance_inverted(states: Tensor) -> Tensor:
    first, second = _step_norms(states)
    q = second / first
    return (1 - q) / q * second


@checker
def looped_limit_distance(answer: Callable[[Tensor], float]) -> str:
    """Check the bound of :eq:`eq-looped-contraction` on the distance to the limit, from 3 states.

    Parameters
    ----------
    answer : callable
        ``answer(states)`` takes three successive states, (3, ...), and bounds the distance of the
        last from the limit, with the ratio of the two steps for q.

    Examples
    --------
    >>> looped_limit_distance(lambda states: (states[2] - states[1]).norm())
    Not yet: is that the last step? It bounds the distance only if q is at most 1 / 2.
    """
    generator = torch.Generator().manual_seed(53)
    cases = []
    for shape, q in (((4,), 0.5), ((3, 5), 0.9), ((2, 3, 4), 0.2)):
        limit, error = torch.randn(2, *shape, generator=generator, dtype=torch.float64)
        turned = torch.randn(shape, generator=generator, dtype=torch.float64)
        cases.append((torch.stack([limit + error, limit + q * turned, limit + q**2 * error]),))
    cases = [case for case in cases if float(_step_norms(case[0])[1] / _step_norms(case[0])[0]) < 1]
    mistakes = [
        Mistake(
            lambda states: _step_norms(states)[1],
            "is that the last step? It bounds the distance only if q is at most 1 / 2.",
        ),
        Mistake(
            _distance_before,
            "did you forget a factor q? That is how far the state before the last one is.",
        ),
        Mistake(_distance_first, "is that the distance of the first state? The last is closer."),
        Mistake(_distance_inverted, "did you invert the factor? It is q / (1 - q)."),
        Mistake(
            lambda states: _distance(states) ** 2, "did you forget a root? Distances are norms."
        ),
    ]
    compare(answer, cases, _distance, mistakes)
    return "Two steps tell how far there is to go, if the factor stays what it was."


# --------------------------------------------------------------------------------------------
# Implement: a sampler of the number of loops

MANY = 20_000


def _moments(mean: float, sigma: float) -> tuple[float, float]:
    """Mean and variance of 1 + Poisson(rate), the rate log-normal with mean ``mean - 1``."""
    rate = mean - 1
    return mean, rate + rate**2 * math.expm1(sigma**2)


def _drawn(answer: Any, mean: float, sigma: float, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = call(_reseeded(answer, generator), mean, sigma, MANY)
    return as_tensor(values)


def _reseeded(answer: Any, generator: torch.Generator) -> Any:
    """Bind the generator, which must not be copied: it is read and moved on."""
    if not callable(answer):
        return answer
    return lambda mean, sigma, count: answer(mean, sigma, count, generator)


@checker
def looped_loop_sampler(answer: Callable[[float, float, int, torch.Generator], Tensor]) -> str:
    """Check a sampler of the number of loops by its smallest value, its moments and its seeds.

    Parameters
    ----------
    answer : callable
        ``answer(mean, sigma, count, generator)`` draws 1 + Poisson(rate), with a log-normal rate
        of mean ``mean - 1`` whose logarithm has the deviation sigma; a tensor (count,).

    Examples
    --------
    >>> def uniform(mean, sigma, count, generator):
    ...     return torch.randint(1, 2 * mean, (count,), generator=generator)
    >>> looped_loop_sampler(uniform)
    Not yet: ...
    """
    for mean, sigma, seed in ((6, 0.5, 11), (4, 1.0, 12), (12, 0.25, 13)):
        values = _drawn(answer, mean, sigma, seed)
        _judge_draws(values, mean, sigma)
    again, other = _drawn(answer, 6, 0.5, 14), _drawn(answer, 6, 0.5, 15)
    if not torch.equal(again, _drawn(answer, 6, 0.5, 14)):
        raise WrongAnswerError("did you use the generator for every draw? A seed must repeat them.")
    if torch.equal(again, other):
        raise WrongAnswerError("did you fix a seed of your own? Another generator draws the same.")
    return "The right mean, a long tail to the right, and never a step without a loop."


def _judge_draws(values: Tensor, mean: float, sigma: float) -> None:
    if values.shape != (MANY,):
        shape = tuple(values.shape)
        raise WrongAnswerError(f"{MANY} draws were asked for, and the shape is {shape}.")
    if not torch.isfinite(values).all() or not torch.equal(values, values.round()):
        raise WrongAnswerError("a number of loops is whole.")
    if values.min() < 1:
        raise WrongAnswerError("did you forget the 1 in front? A step without a loop is no step.")
    found, spread = float(values.mean()), float(values.var())
    expected, variance = _moments(mean, sigma)
    off = 6 * (variance / MANY) ** 0.5  # six standard errors of the mean
    if abs(found - expected) > off:
        raise WrongAnswerError(_why_mean(found, mean, sigma, off))
    if abs(spread - variance) > 0.15 * variance:
        raise WrongAnswerError(_why_spread(spread, mean, variance))


def _why_mean(found: float, mean: float, sigma: float, off: float) -> str:
    inflated = 1 + (mean - 1) * math.exp(sigma**2 / 2)
    if abs(found - inflated) <= 2 * off:
        return (
            "the mean is too large. Did you forget -sigma²/2? A log-normal number has the mean "
            "exp(mu + sigma²/2)."
        )
    if abs(found - mean - 1) <= 2 * off:
        return (
            "the mean is too large by 1. The rate has the mean K - 1: the 1 in front adds the rest."
        )
    return f"at a mean of {mean} your draws have the mean {found:.2f}."


def _why_spread(spread: float, mean: float, variance: float) -> str:
    if close(spread, mean - 1, 0.1):
        return "the mean is right and the spread is that of a plain Poisson. Is the rate random?"
    uniform = ((2 * mean - 1) ** 2 - 1) / 12
    if close(spread, uniform, 0.1):
        return "the mean is right and the spread is that of the uniform numbers 1, ..., 2 K - 1."
    side = "small" if spread < variance else "large"
    return (
        f"the mean is right, and the spread is too {side}: sigma is the deviation of the logarithm."
    )


# --------------------------------------------------------------------------------------------
# Implement: when to stop

Exit = Callable[[Tensor, float], Tensor]


def _divergence(logits: Tensor, *, swapped: bool = False, summed: bool = False) -> Tensor:
    log_p = logits.log_softmax(dim=-1)
    new, old = (log_p[:-1], log_p[1:]) if swapped else (log_p[1:], log_p[:-1])
    kl = (new.exp() * (new - old)).sum(dim=-1)
    return kl.sum(dim=-1) if summed else kl


def _exit(logits: Tensor, threshold: float, **options: bool) -> Tensor:
    quiet = _divergence(logits, **options) < threshold  # (K - 1, N), the first is loop 2
    return _first(quiet)


def _first(quiet: Tensor) -> Tensor:
    last = torch.ones_like(quiet[:1])
    return 2 + torch.cat((quiet[:-1], last)).int().argmax(dim=0)


def _last_loud(logits: Tensor, threshold: float) -> Tensor:
    """Stop only when the distribution does not move again."""
    quiet = _divergence(logits) < threshold
    settled = quiet.flip(0).int().cumprod(0).flip(0).bool()
    return _first(settled)


def _zero_if_never(logits: Tensor, threshold: float) -> Tensor:
    return 2 + (_divergence(logits) < threshold).int().argmax(dim=0)


@checker
def looped_exit_loop(answer: Exit) -> str:
    r"""Check the loop after which each token stops, by the change of its prediction.

    Parameters
    ----------
    answer : callable
        ``answer(logits, threshold)`` takes logits (K, N, V) and returns (N,): the first loop k >= 2
        with :math:`\mathrm{KL}(p^{(k)} \,\|\, p^{(k-1)})` below the threshold, or K.

    Examples
    --------
    >>> looped_exit_loop(lambda logits, threshold: torch.full((logits.shape[1],), len(logits)))
    Not yet: does anything stop early? That answer is K for every token.
    """
    generator = torch.Generator().manual_seed(67)
    cases = []
    for loops, tokens, size, decay in ((6, 60, 5, 0.95), (9, 60, 12, 0.6), (12, 50, 3, 0.8)):
        path = torch.randn(loops, tokens, size, generator=generator, dtype=torch.float64)
        shrink = decay ** torch.arange(loops, dtype=torch.float64)
        pace = torch.rand(tokens, 1, generator=generator, dtype=torch.float64) * 3
        logits = 2 * torch.randn(tokens, size, generator=generator) + (
            shrink[:, None, None] * pace * path
        )
        cases.append((logits, 0.03))
    nats = math.log(2)
    mistakes = [
        Mistake(lambda u, t: torch.full((u.shape[1],), len(u)), "does anything stop early? That "
                "answer is K for every token."),
        Mistake(lambda u, t: _exit(u, t) - 1, "did you count from 0? The first change is that of "
                "loop 2 against loop 1."),
        Mistake(lambda u, t: _exit(u, t, swapped=True), "did you swap the two? The new "
                "distribution comes first, and the mean is taken under it."),
        Mistake(_zero_if_never, "what if a token never settles? argmax of all False is 0: it must "
                "run to loop K."),
        Mistake(_last_loud, "did you wait until it never moves again? The rule cannot look "
                "ahead: the first quiet loop stops it."),
        Mistake(lambda u, t: _exit(u, t * nats), "is your divergence in bits? The book's unit is "
                "nats."),
        Mistake(lambda u, t: _exit_by_probability(u, t), "is that the change of the logits, or of "
                "the probabilities? A divergence is asked for."),
    ]  # fmt: skip
    compare(answer, cases, _exit, mistakes, tolerance=1e-9)
    return "It looks one loop back and never ahead, so it can be run."


def _exit_by_probability(logits: Tensor, threshold: float) -> Tensor:
    p = logits.softmax(dim=-1)
    return _first((p[1:] - p[:-1]).abs().sum(dim=-1) < threshold)


# --------------------------------------------------------------------------------------------
# Extend: a weight for every loop


def _losses(model: LoopedTransformer, inputs: Tensor, targets: Tensor, loops: int) -> Tensor:
    states = model(inputs, num_loops=loops, loop_states=True).loop_states
    logits = [model.logits_from(x).flatten(0, 1) for x in states]
    return torch.stack([F.cross_entropy(u, targets.flatten()) for u in logits])


def _weighted(model: LoopedTransformer, inputs: Tensor, targets: Tensor, w: Tensor) -> Tensor:
    return (w * _losses(model, inputs, targets, len(w))).sum() / w.sum()


def _not_normed(model: LoopedTransformer, inputs: Tensor, targets: Tensor, w: Tensor) -> Tensor:
    return (w * _losses(model, inputs, targets, len(w))).sum()


def _over_count(model: LoopedTransformer, inputs: Tensor, targets: Tensor, w: Tensor) -> Tensor:
    return (w * _losses(model, inputs, targets, len(w))).mean()


def _backwards(model: LoopedTransformer, inputs: Tensor, targets: Tensor, w: Tensor) -> Tensor:
    return _weighted(model, inputs, targets, w.flip(0))


def _last_only(model: LoopedTransformer, inputs: Tensor, targets: Tensor, w: Tensor) -> Tensor:
    return _losses(model, inputs, targets, len(w))[-1]


def _own_loops(model: LoopedTransformer, inputs: Tensor, targets: Tensor, w: Tensor) -> Tensor:
    K = min(model.num_loops, len(w))
    return _weighted(model, inputs, targets, w[:K])


def _random_model(injection: str, seed: int) -> LoopedTransformer:
    config = TransformerConfig(
        vocab_size=13, num_layers=2, hidden_size=16, num_heads=2, max_length=8, zero_output=False
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LoopedTransformer(config, 2, injection)
        for weight in model.blocks.parameters():
            torch.nn.init.normal_(weight, std=0.4)
        torch.nn.init.normal_(model.head.weight, std=0.5)
    return model


@checker
def looped_weighted_loss(
    answer: Callable[[LoopedTransformer, Tensor, Tensor, Tensor], Tensor],
) -> str:
    r"""Check a loss with a weight for every loop, its value and its gradient.

    Parameters
    ----------
    answer : callable
        ``answer(model, inputs, targets, weights)`` runs as many loops as there are weights and
        returns :math:`\sum_k w_k \ell^{(k)} / \sum_k w_k`, a scalar with a graph.

    Examples
    --------
    >>> looped_weighted_loss(lambda model, inputs, targets, weights: model.loss(inputs, targets))
    Not yet: ...
    """
    generator = torch.Generator().manual_seed(71)
    cases = []
    for injection, loops, seed in (("flt", 4, 1), ("input", 6, 2), ("flt", 3, 3)):
        tokens = torch.randint(13, (2, 2, 7), generator=generator)
        weights = torch.rand(loops, generator=generator) * 3
        cases.append((_random_model(injection, seed), *tokens, weights))
    mistakes = [
        Mistake(_not_normed, "did you forget to divide by the sum of the weights?"),
        Mistake(
            _over_count, "did you divide by the number of loops? Divide by the sum of weights."
        ),
        Mistake(_backwards, "did you turn the weights round? The first belongs to loop 1."),
        Mistake(_last_only, "is that the loss of the last loop alone? Each loop has a weight."),
        Mistake(
            lambda m, x, y, w: _losses(m, x, y, len(w)).mean(),
            "is that the plain mean? Each loop has a weight of its own.",
        ),
        Mistake(
            _own_loops,
            "did you run the model's own number of loops? Run as many as there are weights.",
        ),
    ]
    compare(answer, cases, _weighted, mistakes, tolerance=1e-3)
    _check_graph(answer, cases[0])
    return "The three recipes are three choices of the weights; now you can make your own."


def _check_graph(answer: Any, case: tuple) -> None:
    """Reject a loss that cannot be trained on."""
    loss = call(answer, *case)
    if not (isinstance(loss, Tensor) and loss.requires_grad):
        raise WrongAnswerError(
            "the value is right, but it has no graph: did you detach it or call .item()?"
        )

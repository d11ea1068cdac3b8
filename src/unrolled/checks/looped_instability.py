"""Checkers of the chapter *Instability* of the part on loops."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from unrolled.checks.result import (
    STUB,
    Mistake,
    WrongAnswerError,
    as_number,
    as_tensor,
    call,
    checker,
    close,
    compare,
)

# --------------------------------------------------------------------------------------------
# Predict: what five norms leave of the identity path

WIDTH, NORM, LOOPS = 64, 200.0, 5


@checker
def looped_identity_path(answer: float) -> str:
    """Check what five inter-loop norms leave of the identity path at d = 64, norm 200."""
    value, right = as_number(answer), (WIDTH**0.5 / NORM) ** LOOPS
    if close(value, right, 0.05):
        return f"About {right:.0e}: what reaches the first loop along the identity is nothing."
    if close(value, WIDTH**0.5 / NORM, 0.05):
        raise WrongAnswerError("did you count one norm? The gradient passes five of them.")
    if close(value, (WIDTH / NORM) ** LOOPS, 0.05):
        raise WrongAnswerError("did you forget the root? The norm scales to length sqrt(d).")
    if close(value, 1 / right, 0.05):
        raise WrongAnswerError("did you divide the wrong way round? A long state is scaled down.")
    if close(value, LOOPS * WIDTH**0.5 / NORM, 0.05):
        raise WrongAnswerError("did you add the factors? A chain of Jacobians multiplies them.")
    raise WrongAnswerError("each norm scales by sqrt(d) / 200 with d = 64; five in a row multiply.")


# --------------------------------------------------------------------------------------------
# Derive: the gradient behind a norm


def _norm_gradient(x: Tensor, g: Tensor) -> Tensor:
    unit = x / x.norm(dim=-1, keepdim=True)
    tangent = g - unit * (unit * g).sum(dim=-1, keepdim=True)
    return x.shape[-1] ** 0.5 / x.norm(dim=-1, keepdim=True) * tangent


def _without_projection(x: Tensor, g: Tensor) -> Tensor:
    return x.shape[-1] ** 0.5 / x.norm(dim=-1, keepdim=True) * g


def _not_unit(x: Tensor, g: Tensor) -> Tensor:
    tangent = g - x * (x * g).sum(dim=-1, keepdim=True)
    return x.shape[-1] ** 0.5 / x.norm(dim=-1, keepdim=True) * tangent


@checker
def looped_norm_gradient(answer: Callable[[Tensor, Tensor], Tensor]) -> str:
    """Check the gradient at x, given the gradient g at norm(x), for x and g of shape (..., d)."""
    generator = torch.Generator().manual_seed(77)
    cases = [
        tuple(scale * part for part in torch.randn(2, *shape, generator=generator).double())
        for shape, scale in (((5,), 1.0), ((3, 8), 4.0), ((2, 3, 16), 0.3))
    ]
    mistakes = [
        Mistake(
            _without_projection,
            "did you forget that the length is divided out? A change along x has no effect, so "
            "the part of g along x must go.",
        ),
        Mistake(
            lambda x, g: _norm_gradient(x, g) / x.shape[-1] ** 0.5,
            "did you forget the length sqrt(d)? The normed vector does not have length 1.",
        ),
        Mistake(_not_unit, "did you project with x itself? The projection needs the unit vector."),
        Mistake(
            lambda x, g: _norm_gradient(x, g) / x.norm(dim=-1, keepdim=True),
            "did you divide by the length twice? Only the factor in front has 1 / length.",
        ),
    ]
    compare(answer, cases, _norm_gradient, mistakes)
    return "The longer the state, the weaker the gradient behind its norm."


# --------------------------------------------------------------------------------------------
# Implement: the loss of a model that cannot tell its tokens apart


def _unigram(tokens: Tensor) -> float:
    shares = torch.bincount(tokens.flatten()).double()
    shares = shares[shares > 0] / tokens.numel()
    return float(-(shares * shares.log()).sum())


def _kinds(tokens: Tensor) -> int:
    return int(torch.unique(tokens).numel())


@checker
def looped_unigram(answer: Callable[[Tensor], float]) -> str:
    """Check the loss, in nats per token, of the best prediction that ignores the context."""
    generator = torch.Generator().manual_seed(5)
    skewed = torch.rand(400, generator=generator).pow(3).mul(19).long()
    cases = [(torch.tensor([3, 3, 3, 9]),), (skewed,), (skewed.view(20, 20) + 100,)]
    mistakes = [
        Mistake(lambda t: _unigram(t) / math.log(2), "is that in bits? The book's unit is nats."),
        Mistake(
            lambda t: math.log(_kinds(t)),
            "is that the uniform guess? The frequencies are free to know: weigh by them.",
        ),
        Mistake(lambda t: -_unigram(t), "did you forget the minus sign?"),
        Mistake(
            lambda t: _unigram(t) / _kinds(t),
            "did you take a plain mean over the kinds of tokens? Weigh each by its share.",
        ),
    ]
    compare(answer, cases, _unigram, mistakes)
    return "This is the plateau: the entropy of the single tokens."


# --------------------------------------------------------------------------------------------
# Implement: the two measures of oscillation


def _oscillation(gradients: Tensor) -> tuple[float, float]:
    norms = gradients.norm(dim=1)
    cosines = torch.cosine_similarity(gradients[1:], gradients[:-1], dim=1)
    return float(norms.std(correction=0) / norms.mean()), float(cosines.mean())


def _swapped(gradients: Tensor) -> tuple[float, float]:
    omega, cosine = _oscillation(gradients)
    return cosine, omega


def _sample_spread(gradients: Tensor) -> tuple[float, float]:
    norms = gradients.norm(dim=1)
    return float(norms.std() / norms.mean()), _oscillation(gradients)[1]


def _spread_only(gradients: Tensor) -> tuple[float, float]:
    return float(gradients.norm(dim=1).std(correction=0)), _oscillation(gradients)[1]


def _products(gradients: Tensor) -> tuple[float, float]:
    products = (gradients[1:] * gradients[:-1]).sum(dim=1)
    return _oscillation(gradients)[0], float(products.mean())


@checker
def looped_oscillation(answer: Callable[[Tensor], tuple[float, float]]) -> str:
    """Check the pair (omega, mean cosine) of the gradients of T steps, shape (T, P)."""
    generator = torch.Generator().manual_seed(9)
    cases = [
        (
            torch.randn(steps, size, generator=generator).double()
            * (1 + torch.arange(steps)[:, None]),
        )
        for steps, size in ((3, 4), (12, 5), (40, 3))
    ]
    mistakes = [
        Mistake(_swapped, "did you return them in the other order? First omega, then the cosine."),
        Mistake(
            _sample_spread,
            "did you divide by T - 1? The spread is over the window itself: correction=0.",
        ),
        Mistake(_spread_only, "did you forget to divide by the mean norm? Omega has no unit."),
        Mistake(_products, "did you forget to divide by the two norms? A cosine is at most 1."),
    ]
    compare(answer, cases, _oscillation, mistakes)
    return "One number for the size of the swings, one for their direction."


# --------------------------------------------------------------------------------------------
# Implement: the collapse detector


def _runs() -> list[tuple[list[float], list[float], float, bool, str]]:
    """Hidden runs: losses, norms, unigram loss, whether it collapsed, and what it is."""
    steps = range(100)
    falling = [2.9 * 0.99**t + 0.5 for t in steps]
    flat, noisy = [3.0] * 100, [3.05 + 0.2 * (-1) ** t for t in steps]
    rising, bounded = [10 + 4.0 * t for t in steps], [40 - 25 * 0.9**t for t in steps]
    late = [3.0] * 88 + [2.2] * 12
    return [
        (flat, rising, 3.0, True, "a flat loss and a rising norm: that is a collapse"),
        (noisy, rising, 3.0, True, "a noisy plateau: average the loss over the last tenth"),
        (falling, rising, 3.0, False, "the norm rises, but the loss falls: ask for both symptoms"),
        (flat, bounded, 3.0, False, "a plateau, but the norm is bounded: ask for both symptoms"),
        (
            late,
            rising,
            3.0,
            False,
            "this run leaves the plateau at the end: look at the last tenth",
        ),
        (falling, bounded, 3.0, False, "a healthy run"),
        (flat, rising, 3.4, False, "3.0 is clearly below the unigram loss 3.4: no plateau"),
    ]


@checker
def looped_collapse(answer: Callable[[Sequence[float], Sequence[float], float], bool]) -> str:
    """Check a detector ``(losses, norms, unigram) -> bool`` on hidden runs."""
    for losses, norms, unigram, collapsed, what in _runs():
        said = call(answer, losses, norms, unigram)
        if not isinstance(said, (bool, int)) and getattr(said, "ndim", 1) != 0:
            raise WrongAnswerError(f"True or False is asked for, not {type(said).__name__}.")
        if bool(said) != collapsed:
            raise WrongAnswerError(f"on a hidden run you said {bool(said)}. It is this: {what}.")
    return "Both symptoms, on averages: one bad step is no collapse."


# --------------------------------------------------------------------------------------------
# Extend: the rate at which a run breaks

MOST_RUNS = 8


def _search(answer: Callable, threshold: float) -> tuple[float, list[float]]:
    tried: list[float] = []

    def collapses(rate: float) -> bool:
        tried.append(float(rate))
        if len(tried) > 100:
            raise RuntimeError("more than 100 training runs")
        return rate > threshold

    found = answer(collapses, 1e-4, 1e-2)
    if found is None or found is ...:
        raise WrongAnswerError(STUB)
    return float(as_tensor(found)), tried


@checker
def looped_breaking_rate(answer: Callable[[Callable[[float], bool], float, float], float]) -> str:
    """Check a search for the breaking rate, within 10 %, in at most eight training runs."""
    if not callable(answer):
        raise WrongAnswerError(f"a function is asked for, not {type(answer).__name__}.")
    for threshold in (1.12e-4, 7.7e-4, 2.2e-3, 8.9e-3):
        try:
            found, tried = _search(answer, threshold)
        except WrongAnswerError:
            raise
        except Exception as error:
            raise WrongAnswerError(
                f"your function raised {type(error).__name__}: {error}"
            ) from error
        _judge_search(found, tried, threshold)
    return "Halving the ratio, not the difference: rates live on a logarithmic scale."


def _judge_search(found: float, tried: list[float], threshold: float) -> None:
    if not tried:
        raise WrongAnswerError("did you call `collapses`? Without a run you know nothing.")
    if not all(1e-4 <= rate <= 1e-2 for rate in tried):
        raise WrongAnswerError("did you leave the interval? The rates lie between low and high.")
    if len(tried) > MOST_RUNS:
        raise WrongAnswerError(
            f"that took {len(tried)} runs, and {MOST_RUNS} are enough: halve the interval."
        )
    if close(found, threshold, 0.1):
        return
    middle = (1e-4 + 1e-2) / 2
    if abs(tried[0] - middle) < 1e-9:
        raise WrongAnswerError(
            f"{found:.2g} is not within 10 %. Did you halve the difference? Rates differ by "
            "factors: take the geometric mean sqrt(low * high)."
        )
    raise WrongAnswerError(
        f"{found:.2g} is not within 10 % of the breaking rate. Did you keep the half in which "
        "`collapses` changes from False to True?"
    )

"""Checkers of the chapter *Robust and sparse* of the part that joins the others."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from scipy import stats
from torch import Tensor

from unrolled.checks.result import (
    Mistake,
    WrongAnswerError,
    as_number,
    as_tensor,
    checker,
    close,
    compare,
)

# --------------------------------------------------------------------------------------------
# Predict: gains that add up below a ceiling


@checker
def together_both_gains(answer: float) -> str:
    """Check the accuracy with both ingredients if their gains add up in margins.

    Parameters
    ----------
    answer : float
        With neither .70, with each of the two alone .80; margins as in :eq:`eq-together-margin`.

    Examples
    --------
    >>> together_both_gains(0.9)
    Not yet: did you add the gains in accuracy? They add up in the margin, and accuracy has a...
    """
    value = as_number(answer)
    single, base = stats.norm.ppf((0.8, 0.7))
    if close(value, 0.9, 1e-3):
        raise WrongAnswerError(
            "did you add the gains in accuracy? They add up in the margin, and accuracy has a "
            "ceiling."
        )
    if close(value, 2 * single - base, 1e-3):
        raise WrongAnswerError("is that the margin? The accuracy is asked for: take its Phi.")
    if close(value, stats.norm.cdf(2 * single), 1e-3):
        raise WrongAnswerError("did you add two margins? Add two gains to the margin of neither.")
    if not close(value, stats.norm.cdf(2 * single - base), 1e-3):
        raise WrongAnswerError("take the three margins, add both gains to the first, and go back.")
    return "Nothing interacts here, and in accuracy the second gain looks smaller than the first."


# --------------------------------------------------------------------------------------------
# Implement: an interaction, paired by seed

Square = dict[str, dict[int, float]]
CORNERS = ("both", "first", "second", "neither")


def _interactions(runs: Square) -> list[float]:
    both, first, second, neither = (runs[name] for name in CORNERS)
    return [both[seed] - first[seed] - second[seed] + neither[seed] for seed in sorted(both)]


def _by_place(runs: Square) -> list[float]:
    both, first, second, neither = (list(runs[name].values()) for name in CORNERS)
    return [b - f - s + n for b, f, s, n in zip(both, first, second, neither, strict=True)]


def _gain_of_both(runs: Square) -> list[float]:
    return [runs["both"][seed] - runs["neither"][seed] for seed in sorted(runs["both"])]


def _squares() -> list[tuple[Square]]:
    generator, cases = torch.Generator().manual_seed(83), []
    for seeds in ((2, 0, 1), (4, 7, 3, 9)):
        runs = {}
        for name in CORNERS:
            drawn = torch.rand(len(seeds), generator=generator).tolist()
            runs[name] = dict(zip(seeds, drawn, strict=True))
            seeds = seeds[1:] + seeds[:1]  # as workers end, not in the order of the seeds
        cases.append((runs,))
    return cases


@checker
def together_interactions(answer: Callable[[Square], Any]) -> str:
    """Check the interaction of each seed, :eq:`eq-together-interaction`.

    Parameters
    ----------
    answer : callable
        Maps a dictionary with the keys "both", "first", "second" and "neither", each of which
        holds a dictionary from seed to result, to the interactions in the order of the seeds.

    Examples
    --------
    >>> def gain(runs):
    ...     return [runs["both"][seed] - runs["neither"][seed] for seed in sorted(runs["both"])]
    >>> together_interactions(gain)
    Not yet: that is the gain of both over neither. Take off the two gains alone.
    """
    mistakes = [
        Mistake(
            _by_place,
            "did you pair by place? The runs do not end in the order of their seeds.",
        ),
        Mistake(
            _gain_of_both,
            "that is the gain of both over neither. Take off the two gains alone.",
        ),
        Mistake(
            lambda runs: [-value for value in _interactions(runs)],
            "is the sign turned? It is positive if both together gain more than the sum.",
        ),
        Mistake(
            lambda runs: sum(_interactions(runs)) / len(runs["both"]),
            "is that the mean? One number for each seed is asked for: their spread is needed.",
        ),
    ]
    compare(answer, _squares(), _interactions, mistakes)
    return "From here on it is the mean of a few numbers, with an interval like any other."


# --------------------------------------------------------------------------------------------
# Derive: how wide the interval of an interaction is


def _half_width(sigma: float, n: int, factor: float = 2.0) -> float:
    return float(stats.t.ppf(0.975, df=n - 1)) * factor * sigma / math.sqrt(n)


@checker
def together_half_width(answer: Callable[[float, int], float]) -> str:
    """Check the half width of the 95 % interval of an interaction.

    Parameters
    ----------
    answer : callable
        Maps the standard deviation of one run and the number of seeds to the half width, with the
        standard deviation that the interactions have on average in squares.

    Examples
    --------
    >>> together_half_width(lambda sigma, n: 1.96 * 2 * sigma / n**0.5)
    Not yet: did you take the normal quantile? With so few seeds Student's is longer.
    """
    normal = float(stats.norm.ppf(0.975))
    mistakes = [
        Mistake(
            lambda s, n: _half_width(s, n, math.sqrt(2)),
            "is that of a gain? A gain has two runs in it, an interaction four.",
        ),
        Mistake(
            lambda s, n: _half_width(s, n, 4.0),
            "did you add four deviations? Variances add up.",
        ),
        Mistake(
            lambda s, n: _half_width(s, n, 2.0 * math.sqrt(n)),
            "did you forget the root of n? The mean over the seeds spreads less than one of them.",
        ),
        Mistake(
            lambda s, n: float(stats.t.ppf(0.975, df=n)) * 2 * s / math.sqrt(n),
            "n seeds leave n - 1 degrees of freedom.",
        ),
        Mistake(
            lambda s, n: normal * 2 * s / math.sqrt(n),
            "did you take the normal quantile? With so few seeds Student's is longer.",
        ),
        Mistake(
            lambda s, n: _half_width(s, n, 1.0),
            "is that of one mean? Four runs are added and subtracted for each seed.",
        ),
    ]
    compare(answer, [(0.01, 5), (0.3, 3), (2.0, 11)], _half_width, mistakes)
    return "For the same width as a gain you need about twice as many seeds."


# --------------------------------------------------------------------------------------------
# Derive: how much noise a classifier bears


def _bearable(accuracy: float, signal: float, spread: float, d: int, ratio: float) -> float:
    deviation = signal * math.sqrt(d) * ratio / float(stats.norm.ppf(accuracy))
    return math.sqrt(deviation**2 - spread**2)


@checker
def together_bearable_noise(answer: Callable[..., float]) -> str:
    """Check the noise level up to which a linear classifier keeps an accuracy.

    Parameters
    ----------
    answer : callable
        ``answer(accuracy, signal, spread, d, ratio)`` solves :eq:`eq-together-averaging` for gamma.

    Examples
    --------
    >>> def bearable(accuracy, signal, spread, d, ratio):
    ...     return signal * d**0.5 * ratio / stats.norm.ppf(accuracy)
    >>> together_bearable_noise(bearable)
    Not yet: did you forget the spread? It and the noise add up in squares.
    """

    def plain(accuracy: float, signal: float, spread: float, d: int, ratio: float) -> float:
        return signal * math.sqrt(d) * ratio / float(stats.norm.ppf(accuracy))

    cases = [(0.75, 0.2, 0.5, 100, 0.8), (0.6, 0.1, 1.0, 400, 0.9), (0.9, 0.5, 0.2, 64, 0.5)]
    mistakes = [
        Mistake(plain, "did you forget the spread? It and the noise add up in squares."),
        Mistake(
            lambda m, mu, s, d, R: plain(m, mu, s, d, R) - s,
            "did you subtract deviations? It is the squares that add up.",
        ),
        Mistake(
            lambda m, mu, s, d, R: _bearable(m, mu, s, d, R) ** 2,
            "did you forget the last root? That is the square of gamma.",
        ),
    ]
    compare(answer, cases, _bearable, mistakes)
    return "Where the spread is small, the bearable noise is proportional to the norm ratio."


# --------------------------------------------------------------------------------------------
# Derive: what magnitude pruning leaves of the averaging


def _signal_left(kept: float) -> float:
    q = float(stats.norm.ppf(1 - kept / 2))
    density = float(stats.norm.pdf(q))
    return 2 * density / math.sqrt(kept + 2 * q * density) / math.sqrt(2 / math.pi)


@checker
def together_signal_left(answer: Callable[[float], float]) -> str:
    """Check what is left of the margin of Gaussian weights after magnitude pruning.

    Parameters
    ----------
    answer : callable
        Maps the share of the weights that is kept, between 0 and 1, to the margin of
        :eq:`eq-together-averaging` after pruning over that before, for very many weights.

    Examples
    --------
    >>> together_signal_left(lambda kept: kept**0.5)
    Not yet: that would be so if all weights had one size, or if those that go were drawn by lot...
    """

    def first_norm(kept: float) -> float:
        q = float(stats.norm.ppf(1 - kept / 2))
        return 2 * float(stats.norm.pdf(q)) / math.sqrt(2 / math.pi)

    def second_norm(kept: float) -> float:
        q = float(stats.norm.ppf(1 - kept / 2))
        return math.sqrt(kept + 2 * q * float(stats.norm.pdf(q)))

    mistakes = [
        Mistake(
            math.sqrt,
            "that would be so if all weights had one size, or if those that go were drawn by "
            "lot. The largest stay.",
        ),
        Mistake(lambda kept: kept, "the noise that is left falls, too: by the norm of what stays."),
        Mistake(first_norm, "did you forget the noise? Divide by what is left of the norm."),
        Mistake(second_norm, "is that the norm alone? The margin has the sum of the sizes in it."),
        Mistake(
            lambda kept: _signal_left(kept) * math.sqrt(2 / math.pi),
            "is that the margin after pruning? Divide by the one before.",
        ),
    ]
    compare(answer, [(0.5,), (0.2,), (0.9,), (0.05,)], _signal_left, mistakes, tolerance=1e-3)
    return "Half of the weights carry nearly all of the margin; that is what makes pruning cheap."


# --------------------------------------------------------------------------------------------
# Extend: pruning that helps


def _accuracy(w: Tensor, mu: Tensor) -> float:
    return float(stats.norm.cdf(float((w * mu).sum() / w.norm())))


@checker
def together_helpful_pruning(answer: Any) -> str:
    """Check weights and means for which magnitude pruning makes a classifier better.

    Parameters
    ----------
    answer : pair of Tensor
        Weights w and means of the features, (n,) each with even n of at least 4: features with
        unit deviation, of which magnitude pruning drops half. No two sizes of the weights are equal
        where they are cut. The accuracy must rise by at least .05.

    Examples
    --------
    >>> together_helpful_pruning((torch.tensor([4.0, 3.0, 2.0, 1.0]), torch.ones(4)))
    Not yet: the accuracy goes from 0.966 to 0.919. Which weights may go without a loss...
    """
    if not isinstance(answer, (list, tuple)) or len(answer) != 2:
        raise WrongAnswerError("a pair is asked for: the weights, and the means of the features.")
    w, mu = (as_tensor(part) for part in answer)
    if w.ndim != 1 or w.shape != mu.shape or len(w) < 4 or len(w) % 2:
        raise WrongAnswerError("weights and means have one shape (n,), with even n of at least 4.")
    if not bool(w.isfinite().all() & mu.isfinite().all()):
        raise WrongAnswerError("all entries must be finite.")
    order = w.abs().argsort(descending=True)
    half = len(w) // 2
    if not w[order[half - 1]].abs() > w[order[half]].abs():
        raise WrongAnswerError("two weights at the cut have one size; say which of them goes.")
    pruned = w.clone()
    pruned[order[half:]] = 0
    before, after = _accuracy(w, mu), _accuracy(pruned, mu)
    if after - before < 0.05:
        raise WrongAnswerError(
            f"the accuracy goes from {before:.3f} to {after:.3f}. Which weights may go without a "
            "loss of signal? Those of features that say nothing; but they must add noise."
        )
    return "Small weights on features without signal add noise alone; so sparsity can help."

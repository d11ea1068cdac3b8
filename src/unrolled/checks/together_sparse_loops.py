"""Checkers of the chapter *Sparse loops* of the part that joins the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from scipy import stats
from torch import Tensor

from unrolled.checks.result import (
    Mistake,
    WrongAnswerError,
    as_tensor,
    call,
    checker,
    close,
    compare,
)

# --------------------------------------------------------------------------------------------
# Predict: as many weights


@checker
def together_equal_weights(answer: Sequence[float]) -> str:
    """Check a pair that keeps as many weights, :eq:`eq-together-pairing`.

    Parameters
    ----------
    answer : pair of float
        To which share the plain model must be pruned; and how many times its operations on weights
        the looped model then does.

    Examples
    --------
    >>> together_equal_weights((0.8, 4.0))
    Not yet: the share: at the same share the plain model keeps K times as many weights.
    """
    values = as_tensor(answer).flatten().tolist()
    if len(values) != 2:
        raise WrongAnswerError("two numbers are asked for: the share, and the factor.")
    share, factor = values
    if not close(share, 0.95, 1e-3):
        mistakes = [
            (0.8, "at the same share the plain model keeps K times as many weights."),
            (0.2, "divide what is *kept* by K, and not what goes."),
            (0.05, "that is the share that it keeps."),
            (95.0, "is that a percentage? A number between 0 and 1."),
        ]
        found = [text for wrong, text in mistakes if close(share, wrong, 1e-3)]
        raise WrongAnswerError("the share: " + (found or ["1 - s' is 1 - s over K."])[0])
    if not close(factor, 4.0, 1e-3):
        mistakes = [
            (1.0, "as many weights, but each is used in every loop."),
            (0.25, "that is the other way round."),
        ]
        found = [text for wrong, text in mistakes if close(factor, wrong, 1e-3)]
        raise WrongAnswerError("the factor: " + (found or ["how often is a weight used?"])[0])
    return "Equal memory gives the looped model K times the arithmetic: no pair is equal in all."


# --------------------------------------------------------------------------------------------
# Implement: coherence


def _coherence(changes: Tensor) -> Tensor:
    parts = changes.flatten(1)
    return parts.sum(dim=0).square().sum() / parts.square().sum()


def _sum_of_lengths(changes: Tensor) -> Tensor:
    parts = changes.flatten(1)
    return parts.sum(dim=0).square().sum() / parts.norm(dim=1).sum() ** 2


def _changes() -> list[tuple[Tensor]]:
    generator = torch.Generator().manual_seed(71)
    common = torch.randn(1, 3, 4, generator=generator, dtype=torch.float64)
    shapes = ((4, 3, 4, 0.0), (3, 3, 4, 1.5), (6, 3, 4, -0.7))
    cases = []
    for *shape, shared in shapes:
        own = torch.randn(*shape, generator=generator, dtype=torch.float64)
        sizes = torch.linspace(0.3, 2.0, shape[0], dtype=torch.float64).view(-1, 1, 1)
        cases.append((sizes * (own + shared * common),))
    return cases


@checker
def together_coherence(answer: Callable[[Tensor], float]) -> str:
    """Check the coherence of the uses of a weight, :eq:`eq-together-coherence`.

    Parameters
    ----------
    answer : callable
        ``answer(changes)`` returns a number, for changes (K, N, d).

    Examples
    --------
    >>> together_coherence(lambda changes: changes.sum(0).norm() / changes.norm())
    Not yet: both norms are squared.
    """
    mistakes = [
        Mistake(lambda c: _coherence(c).sqrt(), "both norms are squared."),
        Mistake(lambda c: 1 / _coherence(c), "that is one over it: the sum stands on top."),
        Mistake(
            lambda c: _coherence(c) * len(c),
            "divide by the sum of the squares, and not by their mean.",
        ),
        Mistake(lambda c: _coherence(c) / len(c), "that is a share of the most there is: times K."),
        Mistake(_sum_of_lengths, "below stands the sum of the squares, not the square of the sum."),
        Mistake(lambda c: c.sum(0).square().sum(), "divide by the sum of the squares."),
        Mistake(
            lambda c: c.sum().square() / c.square().sum(),
            "add the uses, not the entries of the stream: sum over the first dimension alone.",
        ),
    ]
    compare(answer, _changes(), _coherence, mistakes)
    return "Below 1 the uses undo each other's errors in part."


# --------------------------------------------------------------------------------------------
# Derive: uses of one length and one angle


def _from_angle(K: int, c: float) -> float:
    return 1 + (K - 1) * c


ANGLES = [(2, 0.5), (3, -0.2), (5, 0.35), (8, 1.0), (6, 0.0), (12, 0.08)]


@checker
def together_coherence_of_angle(answer: Callable[[int, float], float]) -> str:
    r"""Check :math:`\mathcal{C}` if all changes have one length and every pair one cosine.

    Parameters
    ----------
    answer : callable
        ``answer(K, c)`` returns the coherence of :eq:`eq-together-coherence`.

    Examples
    --------
    >>> together_coherence_of_angle(lambda K, c: 1 + K * c)
    Not yet: each change meets K - 1 others, and not itself.
    """
    mistakes = [
        Mistake(lambda K, c: 1 + K * c, "each change meets K - 1 others, and not itself."),
        Mistake(lambda K, c: K * c, "the changes themselves add 1, whatever the angle."),
        Mistake(lambda K, c: K + K * (K - 1) * c, "that is the square of the sum: divide it by K."),
        Mistake(
            lambda K, c: 1 + (K - 1) * c / 2,
            "each pair occurs twice in the square of a sum.",
        ),
        Mistake(lambda K, c: math.sqrt(max(0.0, 1 + (K - 1) * c)), "the norms are squared."),
        Mistake(lambda K, c: 1 + (K - 1) * c**2, "the cosine enters once."),
        Mistake(lambda K, c: float(K), "that is the case c = 1."),
    ]
    compare(answer, ANGLES, _from_angle, mistakes)
    return "A twelfth of agreement between twelve loops is enough to double the damage."


# --------------------------------------------------------------------------------------------
# Derive: the uses in a linear loop


def _linear_uses(w: float, e: float, K: int) -> Tensor:
    h, uses = 0.0, []
    for k in range(1, K + 1):
        uses.append(w ** (K - k) * (h + e))
        h = w * (h + e)
    return torch.tensor(uses, dtype=torch.float64)


def _without_state(w: float, e: float, K: int) -> Tensor:
    return torch.tensor([w ** (K - k) * e for k in range(1, K + 1)], dtype=torch.float64)


def _without_path(w: float, e: float, K: int) -> Tensor:
    h, uses = 0.0, []
    for _ in range(K):
        uses.append(h + e)
        h = w * (h + e)
    return torch.tensor(uses, dtype=torch.float64)


def _one_loop_more(w: float, e: float, K: int) -> Tensor:
    return w * _linear_uses(w, e, K)


def _states(w: float, e: float, K: int) -> Tensor:
    return w * _without_path(w, e, K)


LINEAR = [(0.8, 1.0, 4), (-0.6, 2.0, 5), (1.1, -0.7, 3), (0.4, 1.5, 6)]


@checker
def together_linear_uses(answer: Callable[[float, float, int], Sequence[float]]) -> str:
    r"""Check what each use of the weight of a linear loop does to its end.

    Parameters
    ----------
    answer : callable
        ``answer(w, e, K)`` returns the K derivatives of :math:`h_K` by the weight of loop 1 to K,
        for :math:`h_k = w (h_{k-1} + e)` and :math:`h_0 = 0`; see :eq:`eq-together-shared-error`.

    Examples
    --------
    >>> together_linear_uses(lambda w, e, K: [w ** (K - k) * e for k in range(1, K + 1)])
    Not yet: the weight of a loop multiplies the old state, too, and not the input alone.
    """
    mistakes = [
        Mistake(
            _without_state,
            "the weight of a loop multiplies the old state, too, and not the input alone.",
        ),
        Mistake(
            _without_path,
            "an error in loop k goes through the loops behind it, and each multiplies it by w.",
        ),
        Mistake(_one_loop_more, "loop k has K - k loops behind it."),
        Mistake(_states, "those are the states. By how much does the *end* change?"),
        Mistake(
            lambda w, e, K: _linear_uses(w, e, K).flip(0), "the first entry is that of loop 1."
        ),
        Mistake(
            lambda w, e, K: _linear_uses(w, e, K).sum(),
            "that is the derivative of all uses together. One number for each loop is asked for.",
        ),
    ]
    compare(answer, LINEAR, _linear_uses, mistakes)
    return "With 0 < w < 1 all have one sign and add up; but old ones fade, so less than K-fold."


# --------------------------------------------------------------------------------------------
# Implement: the difference of two damages, with its interval

Losses = Sequence[float]


def _differences(a: Losses, b: Losses, c: Losses, d: Losses) -> Tensor:
    loop, loop_dense, plain, plain_dense = (as_tensor(list(x)) for x in (a, b, c, d))
    return (loop - loop_dense) - (plain - plain_dense)


def _summary(values: Tensor, quantile: float | None = None, correction: int = 1) -> Tensor:
    n = len(values)
    quantile = float(stats.t.ppf(0.975, n - 1)) if quantile is None else quantile
    width = quantile * values.std(correction=correction) / math.sqrt(n)
    return torch.stack((values.mean(), width))


def _extra(a: Losses, b: Losses, c: Losses, d: Losses) -> Tensor:
    return _summary(_differences(a, b, c, d))


def _strangers(a: Losses, b: Losses, c: Losses, d: Losses) -> Tensor:
    variance = sum(as_tensor(list(x)).var() for x in (a, b, c, d))
    width = float(stats.t.ppf(0.975, len(a) - 1)) * (variance / len(a)).sqrt()
    return torch.stack((_differences(a, b, c, d).mean(), width))


def _deviation(a: Losses, b: Losses, c: Losses, d: Losses) -> Tensor:
    values = _differences(a, b, c, d)
    return torch.stack((values.mean(), values.std()))


def _seeds() -> list[tuple[list[float], ...]]:
    generator, cases = torch.Generator().manual_seed(37), []
    for n, (loop, plain) in ((5, (0.3, 0.1)), (4, (0.05, 0.2)), (7, (0.4, 0.38))):
        seed = 0.2 * torch.randn(n, generator=generator, dtype=torch.float64)  # luck of a seed
        own = 0.03 * torch.randn(4, n, generator=generator, dtype=torch.float64)
        levels = (2.0 + loop, 2.0, 1.9 + plain, 1.9)
        pairs = zip(levels, own, strict=True)
        cases.append(tuple((level + seed + noise).tolist() for level, noise in pairs))
    return cases


@checker
def together_extra_damage(answer: Callable[[Losses, Losses, Losses, Losses], Sequence]) -> str:
    """Check by how much more pruning costs a looped model, :eq:`eq-together-damage`.

    Parameters
    ----------
    answer : callable
        ``answer(loop, loop_dense, plain, plain_dense)``, lists of losses of which the same entry
        belongs to the same seed, returns the mean and the half width of its 95 % interval.

    Examples
    --------
    >>> import statistics
    >>> def sparse_alone(loop, loop_dense, plain, plain_dense):
    ...     return statistics.fmean(loop) - statistics.fmean(plain), 0.0
    >>> together_extra_damage(sparse_alone)
    Not yet: the mean: a damage is against the dense model, on each side.
    """
    cases = _seeds()
    values = [as_tensor(call(answer, *case)).flatten() for case in cases]
    if any(len(value) != 2 for value in values):
        raise WrongAnswerError("two numbers are asked for: the mean and the half width.")
    means = iter([value[0] for value in values])
    compare(lambda *_: next(means), cases, _first, MEANS)
    mistakes = [
        Mistake(_strangers, "the width: pair by seed first, and take the spread of that."),
        Mistake(_deviation, "the width: that is the deviation of one seed. What is the mean's?"),
        Mistake(
            lambda *x: _summary(_differences(*x), 1.0), "the width: that is the standard error."
        ),
        Mistake(
            lambda *x: _summary(_differences(*x), 1.96),
            "the width: with few seeds take Student's quantile, with n - 1 degrees of freedom.",
        ),
        Mistake(
            lambda *x: _summary(_differences(*x), float(stats.t.ppf(0.95, len(x[0]) - 1))),
            "the width: 95 % in the middle leave 2.5 % on each side.",
        ),
        Mistake(
            lambda *x: _summary(_differences(*x), correction=0),
            "the width: divide the sum of squares by n - 1.",
        ),
    ]
    compare(answer, cases, _extra, mistakes)
    return "The luck of a seed that all four runs share is gone."


def _first(*case: Losses) -> Tensor:
    return _extra(*case)[0]


MEANS = [
    Mistake(
        lambda a, b, c, d: (as_tensor(a) - as_tensor(c)).mean(),
        "the mean: a damage is against the dense model, on each side.",
    ),
    Mistake(lambda *x: -_first(*x), "the mean: that is plain less looped."),
    Mistake(
        lambda a, b, c, d: (as_tensor(a) - as_tensor(b)).mean(),
        "the mean: that is the damage of the looped model alone.",
    ),
]


# --------------------------------------------------------------------------------------------
# Extend: the mask is stored, too


def _with_mask(s: float, K: int, bits: int) -> float:
    stored = 1 + bits * (1 - s)  # of one weight of the looped model
    return min(1.0, 1 - (stored / K - 1) / bits)


def _plain_without_mask(s: float, K: int, bits: int) -> float:
    return 1 - (1 + bits * (1 - s)) / (K * bits)


MASKS = [(0.5, 2, 16), (0.7, 3, 32), (0.6, 2, 8), (0.9, 6, 32), (0.3, 4, 16)]


@checker
def together_mask_bits(answer: Callable[[float, int, int], float]) -> str:
    r"""Check the sparsity of equal memory if a weight also needs a bit of its mask.

    Parameters
    ----------
    answer : callable
        ``answer(s, K, bits)`` returns the s' at which the plain model takes as many bits as the
        looped one at s, for ``bits`` per kept weight; 1 if it takes more at any sparsity.

    Examples
    --------
    >>> together_mask_bits(lambda s, K, bits: 1 - (1 - s) / K)
    Not yet: that counts the kept weights alone. The mask has a bit for *every* weight.
    """
    mistakes = [
        Mistake(
            lambda s, K, b: 1 - (1 - s) / K,
            "that counts the kept weights alone. The mask has a bit for *every* weight.",
        ),
        Mistake(_plain_without_mask, "the plain model has a mask, too."),
        Mistake(
            lambda s, K, b: 1 - ((1 + b * (1 - s)) / K - 1) / b,
            "can a share be more than 1? Then no sparsity is enough: return 1.",
        ),
        Mistake(
            lambda s, K, b: 1 - (1 - s) / K + (1 - 1 / K),
            "the mask takes 1 bit for each weight, and not as many as a value.",
        ),
        Mistake(
            lambda s, K, b: 1 - _with_mask(s, K, b), "that is what stays; the share that goes."
        ),
    ]
    compare(answer, MASKS, _with_mask, mistakes)
    return "The mask of many weights costs more than the few that are left: sharing saves it, too."

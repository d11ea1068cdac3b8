"""Checkers of the chapter *Vision* of the part on optimizer geometry."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
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

# --------------------------------------------------------------------------------------------
# Predict: how long it is sparse

STEPS = 400


@checker
def horst_sparse_steps(answer: float) -> str:
    """Check how many of 400 steps AC/DC takes under masks.

    Parameters
    ----------
    answer : float
        The number of steps.

    Examples
    --------
    >>> horst_sparse_steps(60)
    Not yet: that is the last phase alone. What about the alternation before it?
    """
    value = as_number(answer)
    if value == STEPS / 2:
        return "Seven phases of 5 %, and the last 15 %: half of the run costs a sparse forward."
    mistakes = [
        (0.15, "that is the last phase alone. What about the alternation before it?"),
        (0.35, "did you forget the end? From 85 % on the masks stay."),
        (0.45, "the alternation begins sparse and ends sparse: thirteen phases, seven sparse."),
        (0.475, "the alternation has 65 % of the run, and more than half of it is sparse."),
        (0.55, "that is an eighth sparse phase. The last one of the alternation ends at 75 %."),
        (0.6, "is it sparse from 75 to 85 %? That is the last dense phase."),
        (0.8, "from 10 to 75 % the masks go and come. Count the phases."),
    ]
    for share, sentence in mistakes:
        if close(value, share * STEPS, 1e-6):
            raise WrongAnswerError(sentence)
    if close(value, 0.5, 1e-6) or close(value, 50.0, 1e-6):
        raise WrongAnswerError("is that a share? The number of steps is asked for.")
    raise WrongAnswerError("draw the phases in percent of the run, and add up the sparse ones.")


# --------------------------------------------------------------------------------------------
# Derive: how much of a ViT can go

Count = Callable[[int, int, int, int, int], float]


def _prunable(channels: int, patch: int, layers: int, width: int, classes: int) -> float:
    return channels * patch**2 * width + 12 * layers * width**2 + width * classes


def _blocks_alone(channels: int, patch: int, layers: int, width: int, classes: int) -> float:
    return 12 * layers * width**2


def _no_patches(channels: int, patch: int, layers: int, width: int, classes: int) -> float:
    return 12 * layers * width**2 + width * classes


def _no_head(channels: int, patch: int, layers: int, width: int, classes: int) -> float:
    return channels * patch**2 * width + 12 * layers * width**2


def _side(channels: int, patch: int, layers: int, width: int, classes: int) -> float:
    return channels * patch * width + 12 * layers * width**2 + width * classes


def _one_channel(channels: int, patch: int, layers: int, width: int, classes: int) -> float:
    return _prunable(1, patch, layers, width, classes)


def _no_output(channels: int, patch: int, layers: int, width: int, classes: int) -> float:
    return _prunable(channels, patch, layers, width, classes) - layers * width**2


def _narrow_mlp(channels: int, patch: int, layers: int, width: int, classes: int) -> float:
    return _prunable(channels, patch, layers, width, classes) - 6 * layers * width**2


def _with_biases(channels: int, patch: int, layers: int, width: int, classes: int) -> float:
    biases = width + 9 * layers * width + classes
    return _prunable(channels, patch, layers, width, classes) + biases


@checker
def horst_prunable(answer: Count) -> str:
    """Check the number of weights of the matrices of a ViT, :eq:`eq-horst-vit-count`.

    Parameters
    ----------
    answer : callable
        ``answer(channels, patch, layers, width, classes)`` returns the number.

    Examples
    --------
    >>> horst_prunable(lambda channels, patch, layers, width, classes: 12 * layers * width**2)
    Not yet: those are the blocks alone. Patches and head are matrices, too.
    """
    cases = [(3, 16, 12, 192, 1000), (1, 7, 4, 64, 10), (2, 5, 3, 6, 7), (4, 3, 1, 10, 2)]
    mistakes = [
        Mistake(_blocks_alone, "those are the blocks alone. Patches and head are matrices, too."),
        Mistake(_no_patches, "did you forget the patches? They are a linear map of their pixels."),
        Mistake(_no_head, "did you forget the head?"),
        Mistake(_side, "a patch has patch x patch pixels."),
        Mistake(
            _one_channel, "did you forget the channels? A patch has each pixel in all of them."
        ),
        Mistake(_no_output, "attention has four maps: query, key, value, and the output."),
        Mistake(_narrow_mlp, "the MLP has a hidden layer of four times the width."),
        Mistake(_with_biases, "did you count biases? Weights of matrices are asked for."),
    ]
    compare(answer, cases, _prunable, mistakes, tolerance=1e-9)
    return "With large widths the blocks are all that counts: 12 L d^2."


# --------------------------------------------------------------------------------------------
# Derive: the way back


def _grown(steps: int, lr: float, alpha: float) -> float:
    return math.expm1(alpha * lr * steps) / alpha if alpha else lr * steps


def _adamw(steps: int, lr: float, alpha: float) -> float:
    return lr * steps


def _coordinate(steps: int, lr: float, alpha: float) -> float:
    return math.log1p(alpha * lr * steps) / alpha if alpha else lr * steps


def _exponential_alone(steps: int, lr: float, alpha: float) -> float:
    return math.exp(alpha * lr * steps) / alpha if alpha else lr * steps


def _no_division(steps: int, lr: float, alpha: float) -> float:
    return math.expm1(alpha * lr * steps) if alpha else lr * steps


def _multiplied(steps: int, lr: float, alpha: float) -> float:
    return lr * steps * math.exp(alpha * lr * steps)


def _one_step(steps: int, lr: float, alpha: float) -> float:
    return lr * steps * (1 + alpha * lr * steps)


@checker
def horst_grown(answer: Callable[[int, float, float], float]) -> str:
    r"""Check how far a weight gets from zero in a dense phase, :eq:`eq-horst-return`.

    Parameters
    ----------
    answer : callable
        ``answer(steps, lr, alpha)`` returns the size of the weight after so many small steps of
        HORST with :math:`\lvert A \rvert = 1`.

    Examples
    --------
    >>> horst_grown(lambda steps, lr, alpha: lr * steps)
    Not yet: that is AdamW. Under the mirror the step grows with the weight.
    """
    cases = [(40, 1e-3, 20.0), (100, 3e-3, 10.0), (25, 2e-3, 0.0), (10, 0.01, 3.0)]
    mistakes = [
        Mistake(_adamw, "that is AdamW. Under the mirror the step grows with the weight."),
        Mistake(_coordinate, "that is z of eta t: you solved for the wrong side. Invert z."),
        Mistake(_exponential_alone, "did you forget the -1? After no step the weight is zero."),
        Mistake(_no_division, "did you forget to divide by alpha?"),
        Mistake(
            _multiplied,
            "does the last weight drive all factors? Each step multiplies what there is by then.",
        ),
        Mistake(_one_step, "that takes the mirror once, at the end. It acts in every step."),
    ]
    compare(answer, cases, _grown, mistakes)
    return "Linear while alpha eta t is small, exponential behind."


# --------------------------------------------------------------------------------------------
# Derive: what Gaussian weights lose


def _quantile(s: float) -> tuple[Tensor, Tensor]:
    q = torch.special.ndtri(torch.tensor((1 + s) / 2, dtype=torch.float64))
    return q, torch.exp(-(q**2) / 2) / math.sqrt(2 * math.pi)


def _gaussian_loss(s: float) -> Tensor:
    q, density = _quantile(s)
    return (s - 2 * q * density).sqrt()


def _squared(s: float) -> Tensor:
    return _gaussian_loss(s).square()


def _kept(s: float) -> Tensor:
    return (1 - _squared(s)).sqrt()


def _random_places(s: float) -> Tensor:
    return torch.tensor(math.sqrt(s))


def _one_sided(s: float) -> Tensor:
    q, density = _quantile(s)
    return (s - q * density).sqrt()


def _wrong_quantile(s: float) -> Tensor:
    q, density = _quantile(2 * s - 1)  # s lies below q
    return (s - 2 * q * density).sqrt()


@checker
def horst_gaussian_loss(answer: Callable[[float], float]) -> str:
    """Check the share of the norm that pruning removes from Gaussian weights.

    Parameters
    ----------
    answer : callable
        ``answer(s)`` returns e of :eq:`eq-horst-ratio-bounds` for the sparsity s.

    Examples
    --------
    >>> horst_gaussian_loss(lambda s: s**0.5)
    Not yet: that is pruning at random. The smallest weights hold less than their share.
    """
    cases = [(0.9,), (0.73,), (0.5,), (0.97,), (0.31,)]
    mistakes = [
        Mistake(_squared, "that is the share of the squared norm. Take the root."),
        Mistake(_kept, "is that what stays? What goes is asked for."),
        Mistake(
            _random_places,
            "that is pruning at random. The smallest weights hold less than their share.",
        ),
        Mistake(_one_sided, "both ends of the interval count when you integrate by parts."),
        Mistake(
            _wrong_quantile,
            "look at the quantile: the share s lies between -q and q, and (1 - s) / 2 above q.",
        ),
    ]
    compare(answer, cases, _gaussian_loss, mistakes)
    return "Three quarters of the norm at 90 %: Gaussian weights are not made to be pruned."


# --------------------------------------------------------------------------------------------
# Derive: the longest step


def _lengths(beta1: float, beta2: float) -> Tensor:
    j = torch.arange(1, 20_001, dtype=torch.float64)
    return (1 - beta1**j) / (1 - beta2**j).sqrt()


def _longest(beta1: float, beta2: float) -> Tensor:
    return _lengths(beta1, beta2).max()


def _first(beta1: float, beta2: float) -> Tensor:
    return _lengths(beta1, beta2)[0]


def _any_gradients(beta1: float, beta2: float) -> Tensor:
    r = beta1**2 / beta2
    return torch.tensor((1 - beta1) / math.sqrt((1 - beta2) * (1 - r)))


def _place(beta1: float, beta2: float) -> Tensor:
    return _lengths(beta1, beta2).argmax() + 1


def _no_root(beta1: float, beta2: float) -> Tensor:
    return torch.tensor((1 - beta1) / (1 - beta2))  # the ratio of the two only falls


@checker
def horst_longest_step(answer: Callable[[float, float], float]) -> str:
    """Check the longest step after moments were reset, :eq:`eq-horst-first-steps`.

    Parameters
    ----------
    answer : callable
        ``answer(beta1, beta2)`` returns the largest of the lengths for the rule "reset masked", in
        learning rates.

    Examples
    --------
    >>> horst_longest_step(lambda beta1, beta2: (1 - beta1) / (1 - beta2) ** 0.5)
    Not yet: that is the first step. It gets worse: m grows faster than the root of v.
    """
    cases = [(0.9, 0.999), (0.9, 0.95), (0.8, 0.98), (0.95, 0.9995)]
    mistakes = [
        Mistake(
            _first, "that is the first step. It gets worse: m grows faster than the root of v."
        ),
        Mistake(
            _any_gradients,
            "that is the bound for any gradients, with no end of steps. Here they are steady.",
        ),
        Mistake(_place, "that is the step at which it happens. Its length is asked for."),
        Mistake(_no_root, "did you forget the root of v?"),
    ]
    compare(answer, cases, _longest, mistakes, tolerance=1e-3)
    return "The weight is thrown before its second moment has learned how large gradients are."


# --------------------------------------------------------------------------------------------
# Implement: N of M


def _boolean(value: object) -> Tensor:
    mask = as_tensor(value)
    if not bool(((mask == 0) | (mask == 1)).all()):
        raise WrongAnswerError("a mask of True and False is asked for.")
    return mask.bool()


@checker
def horst_group_mask(answer: Callable[[Tensor, int, int], Tensor]) -> str:
    """Check masks that keep N of every M weights in a row, :eq:`eq-horst-group`.

    Parameters
    ----------
    answer : callable
        ``answer(weight, kept, group)`` returns booleans in the shape of the weight.

    Examples
    --------
    >>> horst_group_mask(lambda weight, kept, group: weight.abs() > weight.abs().median())
    Not yet: a group keeps 3 weights, and it should keep 2.
    """
    generator = torch.Generator().manual_seed(91)
    for shape, kept, group in (((6, 16), 2, 4), ((5, 12), 1, 4), ((4, 24), 4, 8), ((3, 9), 3, 3)):
        weight = torch.randn(shape, generator=generator)
        _check_groups(_boolean(call(answer, weight, kept, group)), weight, kept, group)
    equal = torch.ones(2, 8)
    mask = _boolean(call(answer, equal, 2, 4))
    if mask.shape != equal.shape or not bool((mask.reshape(-1, 4).sum(dim=1) == 2).all()):
        raise WrongAnswerError("look at equal weights: a threshold keeps all of them, or none.")
    return "The closest matrix of that pattern."


def _check_groups(mask: Tensor, weight: Tensor, kept: int, group: int) -> None:
    if mask.shape != weight.shape:
        shapes = tuple(mask.shape), tuple(weight.shape)
        raise WrongAnswerError(f"the shape is {shapes[0]}, and it should be {shapes[1]}.")
    groups, sizes = mask.reshape(-1, group), weight.abs().reshape(-1, group)
    if torch.equal(groups, sizes.argsort(dim=1).argsort(dim=1) < group - kept) and kept < group:
        raise WrongAnswerError("is True dropped? It should be kept.")
    wrong = groups.sum(dim=1) != kept
    if bool(wrong.any()):
        _check_columns(mask, kept, group)
        found = int(groups.sum(dim=1)[wrong][0])
        raise WrongAnswerError(f"a group keeps {found} weights, and it should keep {kept}.")
    smallest_kept = sizes.masked_fill(~groups, math.inf).amin(dim=1)
    if bool((sizes.masked_fill(groups, -1.0).amax(dim=1) > smallest_kept).any()):
        raise WrongAnswerError("a group drops a weight larger than one that it keeps: take sizes.")


def _check_columns(mask: Tensor, kept: int, group: int) -> None:
    columns = mask.mT
    if len(mask) % group == 0 and bool((columns.reshape(-1, group).sum(dim=1) == kept).all()):
        raise WrongAnswerError("are your groups down the columns? The inputs of a map are a row.")


# --------------------------------------------------------------------------------------------
# Extend: the worst weights


@checker
def horst_worst_weights(answer: Callable[[int, int], Tensor]) -> str:
    r"""Check weights that reach the upper bound of :eq:`eq-horst-ratio-bounds`.

    Parameters
    ----------
    answer : callable
        ``answer(n, k)`` returns n weights, of which pruning to k removes the share
        :math:`R / (2 \sqrt \kappa)` of the norm, with :math:`2k \le n`.

    Examples
    --------
    >>> horst_worst_weights(lambda n, k: torch.ones(n))
    Not yet: for n = 20 and k = 3 it removes 0.92 of the norm, and the bound is 1.29.
    """
    for n, k in ((20, 3), (100, 10), (64, 32), (31, 1)):
        theta = as_tensor(call(answer, n, k))
        if theta.shape != (n,):
            raise WrongAnswerError(f"the shape is {tuple(theta.shape)}, and it should be ({n},).")
        if not bool(theta.isfinite().all()) or not bool(theta.any()):
            raise WrongAnswerError("finite weights are asked for, and not all of them zero.")
        _check_reached(theta, n, k)
    return "2k weights of one size: pruning takes half of them, and nothing tells it which."


def _check_reached(theta: Tensor, n: int, k: int) -> None:
    sizes = (theta.abs() / theta.abs().max()).sort(descending=True).values
    removed = float(sizes[k:].norm() / sizes.norm())
    bound = float(sizes.sum() / (2 * math.sqrt(k) * sizes.norm()))
    if removed == 0:
        raise WrongAnswerError(f"for n = {n} and k = {k} it removes nothing: k weights or fewer.")
    if not close(removed, bound, 1e-6):
        raise WrongAnswerError(
            f"for n = {n} and k = {k} it removes {removed:.2f} of the norm, "
            f"and the bound is {bound:.2f}."
        )

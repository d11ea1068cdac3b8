"""Checkers of the chapter *Text* of the part on descent."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
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
from unrolled.descent.perturb import replacement_probability
from unrolled.descent.text import roc_auc

# --------------------------------------------------------------------------------------------
# Predict: a text of random tokens


@checker
def descent_random_text(answer: float) -> str:
    """Check the least level at which discrete noise leaves nothing of a text.

    Parameters
    ----------
    answer : float
        The least gamma at which every token is replaced, by :eq:`eq-descent-noise`.

    Examples
    --------
    >>> descent_random_text(2.0)
    Not yet: did you take gamma² for the probability? Two independent tokens differ by twice...
    """
    value = as_number(answer)
    if close(value, math.sqrt(2), 0.01):
        return f"There the probability is {replacement_probability(math.sqrt(2) + 1e-9):.0f}."
    if close(value, 1.0, 0.01) or close(value, 2.0, 0.01):
        raise WrongAnswerError(
            "did you take gamma² for the probability? Two independent tokens differ by twice the "
            "variance, and it is the mean square that must be gamma²."
        )
    raise WrongAnswerError("solve gamma² / 2 = 1.")


# --------------------------------------------------------------------------------------------
# Derive: how wide uniform noise is


@checker
def descent_uniform_width(answer: Callable[[float, float], float]) -> str:
    """Check the largest change that uniform noise makes in a channel.

    Parameters
    ----------
    answer : callable
        Maps gamma and the scale of the embeddings to the half width of the interval.

    Examples
    --------
    >>> descent_uniform_width(lambda gamma, scale: gamma * scale)
    Not yet: did you take the standard deviation for the half width? That of a uniform number on...
    """
    cases = [(0.5, 0.05), (1.0, 0.2), (2.0, 1.3)]
    mistakes = [
        Mistake(
            lambda gamma, scale: gamma * scale,
            "did you take the standard deviation for the half width? That of a uniform number on "
            "[-w, w] is w divided by the root of 3.",
        ),
        Mistake(
            lambda gamma, scale: math.sqrt(12) * gamma * scale,
            "did you give the whole width? Asked for is the half, from 0 to the edge.",
        ),
        Mistake(
            lambda gamma, scale: 3 * gamma * scale,
            "did you forget the root? The variance of a uniform number on [-w, w] is w² / 3.",
        ),
    ]
    compare(answer, cases, lambda gamma, scale: math.sqrt(3) * gamma * scale, mistakes)
    return "No channel ever moves further; Gaussian noise has no such edge."


# --------------------------------------------------------------------------------------------
# Implement: the mean over tokens that are no padding


def _masked_mean(states: Tensor, mask: Tensor) -> Tensor:
    weights = mask.to(states)[..., None]
    return (weights * states).sum(dim=1) / weights.sum(dim=1)


@checker
def descent_masked_mean(answer: Callable[[Tensor, Tensor], Tensor]) -> str:
    """Check a mean over the tokens of each text.

    Parameters
    ----------
    answer : callable
        Maps states (B, N, d) and a mask (B, N) of ones and zeros to (B, d).

    Examples
    --------
    >>> descent_masked_mean(lambda states, mask: states.mean(dim=1))
    Not yet: did you use the mask? Padding is no token.
    """
    generator = torch.Generator().manual_seed(71)
    cases = []
    for lengths in ([2, 5, 1], [4, 3]):
        mask = (torch.arange(5) < torch.tensor(lengths)[:, None]).long()
        cases.append((torch.randn(len(lengths), 5, 3, generator=generator), mask))
    mistakes = [
        Mistake(lambda x, mask: x.mean(dim=1), "did you use the mask? Padding is no token."),
        Mistake(
            lambda x, mask: (x * mask[..., None]).mean(dim=1),
            "did you divide by N? Divide by the number of tokens that are no padding.",
        ),
        Mistake(
            lambda x, mask: (x * mask[..., None]).sum(dim=1),
            "did you forget to divide? That is a sum.",
        ),
        Mistake(
            lambda x, mask: (x * mask[..., None]).sum(dim=1) / mask.sum(),
            "did you divide by the tokens of the whole batch? Each text has its own number.",
        ),
    ]
    compare(answer, cases, _masked_mean, mistakes)
    return "A text is read alike, however much padding it has."


# --------------------------------------------------------------------------------------------
# Implement: the area under the ROC curve


def _pairs(z: Tensor, y: Tensor, tie: float) -> float:
    d = z[y == 1][:, None] - z[y == 0]
    return float(((d > 0).double() + tie * (d == 0)).mean())


@checker
def descent_roc_auc(answer: Callable[[Tensor, Tensor], float]) -> str:
    """Check the area under the ROC curve, counted over pairs.

    Parameters
    ----------
    answer : callable
        Maps scores (n,) and labels (n,), 0 or 1, to a number; ties count a half.

    Examples
    --------
    >>> descent_roc_auc(lambda z, y: ((z > 0) == (y == 1)).double().mean())
    Not yet: is that the accuracy? No threshold enters here: compare the scores of two texts.
    """
    generator = torch.Generator().manual_seed(72)
    cases = []
    for count in (9, 14):
        z = torch.randint(-3, 6, (count,), generator=generator).double()
        cases.append((z, (torch.arange(count) % 3 == 0).long()))
    mistakes = [
        Mistake(
            lambda z, y: ((z > 0) == (y == 1)).double().mean(),
            "is that the accuracy? No threshold enters here: compare the scores of two texts.",
        ),
        Mistake(lambda z, y: _pairs(z, y, 0.0), "did you forget the ties? Each counts a half."),
        Mistake(lambda z, y: _pairs(z, y, 1.0), "a tie counts a half, not a whole."),
        Mistake(
            lambda z, y: 1 - _pairs(z, y, 0.5),
            "which text should be higher? That of class 1.",
        ),
    ]
    compare(answer, cases, roc_auc, mistakes)
    return "A shift of all scores changes nothing, so a biased classifier is not punished."


# --------------------------------------------------------------------------------------------
# Derive: how far two texts are apart, in units of the noise


@checker
def descent_privacy_shift(answer: Callable[[float, int, int], float]) -> str:
    """Check the distance of two texts over the deviation of the noise.

    Parameters
    ----------
    answer : callable
        Maps gamma, the number of channels d and of tokens N to the ratio of sensitivity to noise
        in :eq:`eq-descent-privacy`, for embeddings clipped at the scale times the root of d.

    Examples
    --------
    >>> descent_privacy_shift(lambda gamma, d, N: (N * d) ** 0.5 / gamma)
    Not yet: did you forget the factor 2? Two vectors of length C may point in opposite directions.
    """
    cases = [(0.5, 384, 1), (2.0, 768, 32), (1.0, 64, 8)]
    mistakes = [
        Mistake(
            lambda gamma, d, N: math.sqrt(N * d) / gamma,
            "did you forget the factor 2? Two vectors of length C may point in opposite "
            "directions.",
        ),
        Mistake(
            lambda gamma, d, N: 2 * N * math.sqrt(d) / gamma,
            "did you add the lengths of the tokens? Their squares add up.",
        ),
        Mistake(
            lambda gamma, d, N: 2 * math.sqrt(d) / gamma,
            "did you forget N? All tokens of a text may differ.",
        ),
        Mistake(
            lambda gamma, d, N: 2 * math.sqrt(N * d) / gamma**2,
            "did you divide by the variance? Divide by the standard deviation.",
        ),
    ]
    compare(answer, cases, lambda gamma, d, N: 2 * math.sqrt(N * d) / gamma, mistakes)
    return "The scale has gone: privacy depends on gamma and on how many numbers you send."


# --------------------------------------------------------------------------------------------
# Extend: descent in the mean alone


@checker
def descent_mean_only(answer: Any) -> str:
    """Check losses that descend in the mean although most texts ascend.

    Parameters
    ----------
    answer : Tensor
        Losses (L + 1, B), positive, L of at least 3: in the mean each layer is at most .95 of the
        one before, and at each layer more than half of the texts rise.

    Examples
    --------
    >>> descent_mean_only(torch.tensor([[4.0], [3.0], [2.0], [1.0]]))
    Not yet: at layer 1 the loss rises for 0 of 1 texts; more than half are asked for.
    """
    f = as_tensor(answer)
    if f.ndim != 2 or len(f) < 4:
        raise WrongAnswerError(f"the shape is {tuple(f.shape)}; it should be (L + 1, B), L >= 3.")
    if not bool((f > 0).all()) or not bool(f.isfinite().all()):
        raise WrongAnswerError("a loss must be a positive finite number.")
    mean, rising = f.mean(dim=1), (f[1:] > f[:-1]).sum(dim=1)
    for layer, count in enumerate(rising.tolist(), start=1):
        if not mean[layer] <= 0.95 * mean[layer - 1] + 1e-9:
            raise WrongAnswerError(
                f"at layer {layer} the mean goes from {mean[layer - 1]:.3g} to {mean[layer]:.3g}; "
                "at most .95 of the first is asked for."
            )
        if 2 * count <= f.shape[1]:
            raise WrongAnswerError(
                f"at layer {layer} the loss rises for {count} of {f.shape[1]} texts; more than "
                "half are asked for."
            )
    return "So a constraint on the mean promises nothing about the text in front of you."

"""Checkers of the chapter *Sparse language models* of the part on optimizer geometry."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from unrolled.checks.result import (
    Mistake,
    WrongAnswerError,
    as_tensor,
    checker,
    close,
    compare,
)

# --------------------------------------------------------------------------------------------
# Predict: slower and longer


@checker
def horst_slower(answer: Sequence[float]) -> str:
    """Check what half the rate and four times the steps do to the spread, :eq:`eq-horst-noise`.

    Parameters
    ----------
    answer : pair of float
        The factors by which the spread, and the exponent of :eq:`eq-horst-shrink`, change.

    Examples
    --------
    >>> horst_slower((2.0, 2.0))
    Not yet: the spread: independent steps add up in squares, so with the root of their number.
    """
    values = as_tensor(answer).flatten().tolist()
    if len(values) != 2:
        raise WrongAnswerError("two factors are asked for: of the spread, and of the exponent.")
    spread, exponent = values
    if not close(spread, 1.0, 0.01):
        sentences = {
            2.0: "independent steps add up in squares, so with the root of their number.",
            0.5: "did you forget that there are four times as many steps?",
            4.0: "did you forget the rate?",
            0.25: "it has the rate in it, and the root of the number of steps.",
        }
        found = [text for wrong, text in sentences.items() if close(spread, wrong, 0.01)]
        raise WrongAnswerError("the spread: " + (found or ["half the rate, twice the root."])[0])
    if not close(exponent, 2.0, 0.01):
        sentences = {
            1.0: "the shrinking of the steps adds up as it is: no root.",
            4.0: "did you forget that the rate is half as large?",
            0.5: "did you forget that there are four times as many steps?",
        }
        found = [text for wrong, text in sentences.items() if close(exponent, wrong, 0.01)]
        raise WrongAnswerError("the exponent: " + (found or ["it is a sum of rates."])[0])
    return "Noise spreads the weights as before, and the shrinking is twice as strong."


# --------------------------------------------------------------------------------------------
# Implement: the ceiling of a model


def _ratio(weight: Tensor) -> float:
    return float(weight.abs().sum() / math.sqrt(weight.numel()) / weight.norm())


def _cap(weight: Tensor, sparsity: float) -> float:
    return min(sparsity, _ratio(weight) ** 2 / (4 * (1 - sparsity)))


def _weighted(
    weights: list[Tensor], cap: Callable[[Tensor], float], size: Callable[[Tensor], float]
) -> float:
    sizes = [float(size(weight)) for weight in weights]
    return sum(c * cap(w) for c, w in zip(sizes, weights, strict=True)) / sum(sizes)


def _square(weight: Tensor) -> float:
    return float(weight.square().sum())


def _ceiling(weights: list[Tensor], sparsity: float) -> float:
    return _weighted(weights, lambda w: _cap(w, sparsity), _square)


def _together(weights: list[Tensor], sparsity: float) -> float:
    return _cap(torch.cat([weight.flatten() for weight in weights]), sparsity)


def _measured(weights: list[Tensor], sparsity: float) -> float:
    gone = 0.0
    for weight in weights:
        squares = weight.flatten().square().sort().values
        gone += float(squares[: round(sparsity * len(squares))].sum())
    return gone / sum(_square(weight) for weight in weights)


def _matrices() -> list[tuple[list[Tensor], float]]:
    generator, cases = torch.Generator().manual_seed(59), []
    # the last sparsity is low and its Gaussian matrix heavy: there the bounds change places
    for power, heavy, sparsity in ((5, 0.7, 0.8), (3, 1.0, 0.3), (7, 0.5, 0.9), (5, 2.0, 0.1)):
        weights = []
        for shape, size, exponent in (((8, 5), heavy, 1), ((20, 4), 1.0, power), ((5, 6), 0.6, 2)):
            drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
            drawn = drawn.abs() ** exponent * drawn.sign()
            weights.append(size * drawn / drawn.norm())
        cases.append((weights, sparsity))
    return cases


@checker
def horst_energy_ceiling(answer: Callable[[list[Tensor], float], float]) -> str:
    """Check the ceiling of the removed energy of several matrices, :eq:`eq-horst-energy-ceiling`.

    Parameters
    ----------
    answer : callable
        ``answer(weights, sparsity)`` returns the ceiling of all matrices together.

    Examples
    --------
    >>> horst_energy_ceiling(lambda weights, sparsity: sparsity)
    Not yet: what do the ratios add? They bound the energy, too.
    """
    mistakes = [
        Mistake(lambda ws, s: s, "what do the ratios add? They bound the energy, too."),
        Mistake(_measured, "that is the removed energy itself. Its ceiling is asked for."),
        Mistake(_together, "that is one ratio for all. Each matrix is pruned by itself."),
        Mistake(
            lambda ws, s: _weighted(ws, lambda w: _cap(w, s), lambda w: 1.0),
            "a matrix counts by its share of the squared norm; you take the plain mean.",
        ),
        Mistake(
            lambda ws, s: _weighted(ws, lambda w: _cap(w, s), Tensor.numel),
            "a matrix counts by its share of the squared norm, not by its number of weights.",
        ),
        Mistake(
            lambda ws, s: _weighted(ws, lambda w: _cap(w, s), Tensor.norm),
            "a matrix counts by its share of the *squared* norm.",
        ),
        Mistake(
            lambda ws, s: _weighted(ws, lambda w: _ratio(w) ** 2 / (4 * (1 - s)), _square),
            "a ceiling can exceed the sparsity. Take the smaller of both, for each matrix.",
        ),
        Mistake(
            lambda ws, s: min(s, _weighted(ws, lambda w: _ratio(w) ** 2 / (4 * (1 - s)), _square)),
            "take the smaller of both bounds for each matrix, not at the end.",
        ),
        Mistake(
            lambda ws, s: _weighted(ws, lambda w: min(s, _ratio(w) ** 2 / (4 * s)), _square),
            "k counts the weights that stay: the share 1 - s.",
        ),
        Mistake(
            lambda ws, s: _weighted(ws, lambda w: min(s, _ratio(w) / (4 * (1 - s))), _square),
            "the ratio enters squared.",
        ),
        Mistake(
            lambda ws, s: _weighted(ws, lambda w: min(s, _ratio(w) ** 2 / (1 - s)), _square),
            "the maximum over the threshold gives a 4.",
        ),
    ]
    compare(answer, _matrices(), _ceiling, mistakes)
    return "One matrix with a large norm can decide for all."


# --------------------------------------------------------------------------------------------
# Derive: the removed energy of Laplace weights


def _laplace(sparsity: float) -> float:
    tau = -math.log(1 - sparsity)
    return 1 - (1 - sparsity) * (1 + tau + tau**2 / 2)


def _laplace_one_norm(sparsity: float) -> float:
    return 1 - (1 - sparsity) * (1 - math.log(1 - sparsity))


def _gaussian(sparsity: float) -> float:
    q = float(torch.special.ndtri(torch.tensor((1 + sparsity) / 2, dtype=torch.float64)))
    return sparsity - 2 * q * math.exp(-(q**2) / 2) / math.sqrt(2 * math.pi)


SPARSITIES = [(0.15,), (0.42,), (0.8,), (0.93,)]


@checker
def horst_laplace_energy(answer: Callable[[float], float]) -> str:
    r"""Check the removed energy of weights with a Laplace distribution.

    Parameters
    ----------
    answer : callable
        ``answer(sparsity)`` returns :math:`\mathcal{E}(s)` of :eq:`eq-horst-three-factors`.

    Examples
    --------
    >>> horst_laplace_energy(lambda sparsity: sparsity)
    Not yet: that is the share of the weights, whatever they are.
    """
    mistakes = [
        Mistake(lambda s: s, "that is the share of the weights, whatever they are."),
        Mistake(lambda s: 1 - _laplace(s), "that is what stays."),
        Mistake(lambda s: 2 * _laplace(s), "did you forget to divide? All energy together is 2."),
        Mistake(lambda s: _laplace(s) / 2, "all energy together is 2, and 1 stands for it here."),
        Mistake(_laplace_one_norm, "that is the share of the sum of magnitudes."),
        Mistake(_gaussian, "that is a Gaussian matrix."),
        Mistake(lambda s: math.sqrt(_laplace(s)), "that is the share of the length."),
        Mistake(
            lambda s: 1 - (1 - s) * (1 + math.log(1 - s) + math.log(1 - s) ** 2 / 2),
            "look at the sign of the threshold: it is positive.",
        ),
        Mistake(
            lambda s: 1 - (1 - s) * (1 + s + s**2 / 2),
            "did you take the sparsity for the threshold? The threshold is -ln(1 - s).",
        ),
    ]
    compare(answer, SPARSITIES, _laplace, mistakes)
    return "At 80 % it is 22 %, and 35 % with Gaussian weights."


# --------------------------------------------------------------------------------------------
# Implement: pruning by saliency


def _drop_lowest(score: Tensor, sparsity: float) -> Tensor:
    mask = torch.ones(score.numel(), dtype=torch.bool)
    mask[score.flatten().argsort(stable=True)[: round(sparsity * score.numel())]] = False
    return mask.view_as(score)


def _saliency(weight: Tensor, curvature: Tensor, sparsity: float) -> Tensor:
    return _drop_lowest(curvature * weight.square(), sparsity)


def _by_row(weight: Tensor, curvature: Tensor, sparsity: float) -> Tensor:
    score = curvature * weight.square()
    return torch.stack([_drop_lowest(row, sparsity) for row in score])


def _saliency_cases() -> list[tuple[Tensor, Tensor, float]]:
    generator = torch.Generator().manual_seed(83)
    cases = []
    for shape, sparsity in (((5, 4), 0.5), ((8, 10), 0.85), ((3, 10), 0.3)):
        weight = torch.randn(shape, generator=generator, dtype=torch.float64)
        curvature = torch.rand(shape, generator=generator, dtype=torch.float64) ** 4 + 1e-3
        cases.append((weight, curvature, sparsity))
    return cases


@checker
def horst_saliency_mask(answer: Callable[[Tensor, Tensor, float], Tensor]) -> str:
    """Check a mask that drops the weights of the lowest saliency.

    Parameters
    ----------
    answer : callable
        ``answer(weight, curvature, sparsity)`` returns booleans in the shape of the weight; True
        is kept. Saliency is the quadratic term of :eq:`eq-horst-pruning-loss`, weight by weight.

    Examples
    --------
    >>> def largest(weight, curvature, sparsity):
    ...     return weight.abs() >= weight.abs().quantile(sparsity)
    >>> horst_saliency_mask(largest)
    Not yet: that is magnitude pruning. The curvature has a say, too.
    """
    mistakes = [
        Mistake(
            lambda w, h, s: _drop_lowest(w.abs(), s),
            "that is magnitude pruning. The curvature has a say, too.",
        ),
        Mistake(lambda w, h, s: _drop_lowest(h, s), "the size of the weight counts, too."),
        Mistake(
            lambda w, h, s: _drop_lowest(h * w.abs(), s),
            "the weight enters squared, and the curvature once.",
        ),
        Mistake(lambda w, h, s: _drop_lowest(w**2 / h, s), "is a flat direction dear? Multiply."),
        Mistake(
            lambda w, h, s: _drop_lowest(h * w, s),
            "a saliency has no sign: the weight enters squared.",
        ),
        Mistake(lambda w, h, s: ~_saliency(w, h, s), "True is kept: your mask is inverted."),
        Mistake(
            lambda w, h, s: _drop_lowest(h * w**2, 1 - s),
            "the share `sparsity` goes; did you keep so many?",
        ),
        Mistake(
            lambda w, h, s: _drop_lowest(-h * w**2, s),
            "the lowest saliencies go, not the highest.",
        ),
        Mistake(_by_row, "compare the weights of the whole matrix, not row by row."),
        Mistake(
            lambda w, h, s: w * _saliency(w, h, s), "a mask is asked for, not the pruned weight."
        ),
    ]
    compare(answer, _saliency_cases(), _saliency, mistakes)
    return "Magnitude pruning is the case of equal curvatures."


# --------------------------------------------------------------------------------------------
# Derive: the strength that gives a spread


def _alpha_for(sigma: float, rates: Sequence[float]) -> float:
    return sigma / math.sqrt(math.fsum(rate**2 for rate in rates))


RATE_CASES = [
    (1.3, [2e-3 * (1 - t / 40) for t in range(40)]),
    (0.6, [5e-4, 1e-3, 3e-3, 1e-3]),
    (2.4, [1e-3 * (0.5 + 0.5 * math.cos(0.05 * t)) for t in range(60)]),
]


@checker
def horst_alpha_for(answer: Callable[[float, Sequence[float]], float]) -> str:
    r"""Check which :math:`\alpha` gives weights that see only noise a spread, :eq:`eq-horst-noise`.

    Parameters
    ----------
    answer : callable
        ``answer(sigma, rates)``, with the learning rates of all steps; weights start at zero.

    Examples
    --------
    >>> horst_alpha_for(lambda sigma, rates: sigma / sum(rates))
    Not yet: independent steps do not add up: their squares do.
    """
    mistakes = [
        Mistake(lambda c, e: c / sum(e), "independent steps do not add up: their squares do."),
        Mistake(lambda c, e: c / sum(x**2 for x in e), "take the root of the sum of squares."),
        Mistake(lambda c, e: c**2 / sum(x**2 for x in e), "that is the square of alpha."),
        Mistake(lambda c, e: _alpha_for(c, e) ** -1, "that is one over alpha."),
        Mistake(
            lambda c, e: c / (max(e) * math.sqrt(len(e))),
            "the rate is not the largest one in every step. Sum the squares.",
        ),
        Mistake(
            lambda c, e: c / (sum(e) / len(e) * math.sqrt(len(e))),
            "the mean rate is not enough: the mean of squares is larger than the square of the "
            "mean.",
        ),
        Mistake(lambda c, e: c / max(e), "that is one step. The variances of all of them add up."),
        Mistake(
            lambda c, e: c * math.sqrt(sum(x**2 for x in e)),
            "the longer the training, the smaller alpha: divide.",
        ),
    ]
    compare(answer, RATE_CASES, _alpha_for, mistakes)
    return "Four times the steps, half the alpha."


# --------------------------------------------------------------------------------------------
# Derive: what a recovery can change


def _recovery(rate: float, steps: int, alpha: float) -> float:
    return math.exp(alpha * rate / 10 * (steps + 1) / 2)


RECOVERIES = [(3e-3, 12, 60.0), (1e-3, 5, 400.0), (8e-3, 20, 25.0)]


@checker
def horst_recovery_factor(answer: Callable[[float, int, float], float]) -> str:
    """Check by which factor a large weight can grow in a recovery, :eq:`eq-horst-recovery`.

    Parameters
    ----------
    answer : callable
        ``answer(rate, steps, alpha)``, with the rate of the training.

    Examples
    --------
    >>> horst_recovery_factor(lambda rate, steps, alpha: rate / 10 * (steps + 1) / 2)
    Not yet: that is the way in mirror coordinates. What does it do to a large weight?
    """
    mistakes = [
        Mistake(
            lambda e, n, a: e / 10 * (n + 1) / 2,
            "that is the way in mirror coordinates. What does it do to a large weight?",
        ),
        Mistake(
            lambda e, n, a: math.log(_recovery(e, n, a)),
            "that is the exponent. The weight is multiplied by the exponential.",
        ),
        Mistake(
            lambda e, n, a: 1 + math.log(_recovery(e, n, a)),
            "that is the first order only.",
        ),
        Mistake(
            lambda e, n, a: _recovery(10 * e, n, a),
            "the recovery starts at a tenth of the rate.",
        ),
        Mistake(
            lambda e, n, a: math.exp(a * e / 10 * n / 2),
            "add the rates up: the last one is not zero, so it is (T + 1) / 2 of the first.",
        ),
        Mistake(
            lambda e, n, a: math.exp(a * e / 10 * (n - 1) / 2),
            "add the rates up: the first step has the whole tenth.",
        ),
        Mistake(
            lambda e, n, a: math.exp(a * e / 10 * n),
            "the rate falls to zero. Add all rates up.",
        ),
        Mistake(
            lambda e, n, a: 1 / _recovery(e, n, a), "that is how far it can shrink. Can it grow?"
        ),
        Mistake(
            lambda e, n, a: math.exp(e / 10 * (n + 1) / 2),
            "did you forget the strength of the mirror?",
        ),
    ]
    compare(answer, RECOVERIES, _recovery, mistakes)
    return "With alpha = 0 the factor is 1: AdamW cannot do that to a large weight."


# --------------------------------------------------------------------------------------------
# Predict: what a slower step costs


@checker
def horst_end_to_end(answer: Sequence[float]) -> str:
    """Check what a slower optimizer step costs in the end, :eq:`eq-horst-end-to-end`.

    Parameters
    ----------
    answer : pair of float
        The time of a training step, relative to AdamW's; and the largest share of AdamW at which
        it stays within 1.03.

    Examples
    --------
    >>> horst_end_to_end((1.25, 0.12))
    Not yet: the ratio: the rest of the step takes as long as before.
    """
    values = as_tensor(answer).flatten().tolist()
    if len(values) != 2:
        raise WrongAnswerError("two numbers are asked for: the ratio, and the largest share.")
    ratio, share = values
    if not close(ratio, 1.01, 5e-4):
        mistakes = [
            (1.25, "the ratio: the rest of the step takes as long as before."),
            (1.05, "the ratio: 0.04 of it is there already with AdamW."),
            (0.01, "the ratio: that is what comes on top."),
            (0.05, "the ratio: that is the optimizer alone, and the rest is missing."),
        ]
        for wrong, sentence in mistakes:
            if close(ratio, wrong, 1e-3):
                raise WrongAnswerError(sentence)
        raise WrongAnswerError("the ratio: 96 % of the step as before, and 4 % times 1.25.")
    if close(share, 0.12, 5e-3):
        return "The more tokens in a batch, the less of the step is the optimizer's."
    if close(share, 0.03 / 1.25, 1e-2):
        raise WrongAnswerError("the share: only what exceeds AdamW's own time comes on top.")
    if close(share, 12.0, 5e-3):
        raise WrongAnswerError("the share: is that a percentage? A number between 0 and 1.")
    raise WrongAnswerError("the share: solve 1 + share (1.25 - 1) = 1.03.")


# --------------------------------------------------------------------------------------------
# Extend: sparser at the same loss


def _crossing(sparsities: Sequence[float], losses: Sequence[float], i: int, level: float) -> float:
    share = (level - losses[i - 1]) / (losses[i] - losses[i - 1])
    return sparsities[i - 1] + share * (sparsities[i] - sparsities[i - 1])


def _matched(sparsities: Sequence[float], losses: Sequence[float], level: float) -> float:
    if losses[0] > level:
        return 0.0
    above = [i for i in range(1, len(losses)) if losses[i] > level]
    return _crossing(sparsities, losses, above[0], level) if above else sparsities[-1]


def _last_crossing(sparsities: Sequence[float], losses: Sequence[float], level: float) -> float:
    if losses[0] > level:
        return 0.0
    pairs = [i for i in range(1, len(losses)) if losses[i] > level >= losses[i - 1]]
    return _crossing(sparsities, losses, pairs[-1], level) if pairs else sparsities[-1]


def _point_before(sparsities: Sequence[float], losses: Sequence[float], level: float) -> float:
    if losses[0] > level:
        return 0.0
    above = [i for i in range(1, len(losses)) if losses[i] > level]
    return sparsities[above[0] - 1] if above else sparsities[-1]


def _point_behind(sparsities: Sequence[float], losses: Sequence[float], level: float) -> float:
    if losses[0] > level:
        return 0.0
    return next((s for s, f in zip(sparsities, losses, strict=True) if f > level), sparsities[-1])


def _no_dense_check(sparsities: Sequence[float], losses: Sequence[float], level: float) -> float:
    above = [i for i in range(1, len(losses)) if losses[i] > level]
    return _crossing(sparsities, losses, above[0], level) if above else sparsities[-1]


GRID = [0.0, 0.4, 0.6, 0.75, 0.9]
CURVES = [
    (GRID, [1.8, 1.78, 1.9, 2.3, 3.4], 2.0),  # falls at first
    (GRID, [1.8, 2.1, 1.95, 2.2, 3.0], 2.0),  # exceeds the level twice
    (GRID, [2.2, 2.4, 2.6, 2.9, 3.5], 2.0),  # never within
    (GRID, [1.5, 1.5, 1.52, 1.55, 1.7], 2.0),  # always within
    (GRID, [1.0, 1.1, 1.3, 2.0, 4.0], 3.1),
]


@checker
def horst_matched_sparsity(answer: Callable[[list, list, float], float]) -> str:
    """Check up to which sparsity a model stays within a loss.

    Parameters
    ----------
    answer : callable
        ``answer(sparsities, losses, level)`` returns where the curve first exceeds the level.

    Examples
    --------
    >>> def behind(sparsities, losses, level):
    ...     pairs = zip(sparsities, losses)
    ...     return next((s for s, f in pairs if f > level), sparsities[-1])
    >>> horst_matched_sparsity(behind)
    Not yet: interpolate: you return the first point that exceeds the level.
    """
    mistakes = [
        Mistake(_point_behind, "interpolate: you return the first point that exceeds the level."),
        Mistake(_point_before, "interpolate: you return the last point before the level."),
        Mistake(_last_crossing, "where does the curve *first* exceed the level? It may come back."),
        Mistake(_no_dense_check, "what if the dense model is above the level already?"),
    ]
    compare(answer, CURVES, _matched, mistakes)
    return "At the same loss, one model can be so much sparser: that is what memory saves."

"""Checkers of the chapter *Operators* of the part on optimizer geometry."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

from unrolled.checks.result import (
    Mistake,
    WrongAnswerError,
    as_number,
    call,
    checker,
    close,
    compare,
)

# --------------------------------------------------------------------------------------------
# Predict: the first step of HORST

WEIGHT, GRADIENT, RATE, ALPHA = 0.5, -3.0, 0.01, 20.0


@checker
def horst_one_step(answer: float) -> str:
    """Check what the first step of HORST, :eq:`eq-horst-update`, makes of one weight.

    Parameters
    ----------
    answer : float
        The weight after the step, from 0.5 with the gradient -3, the rate 0.01 and alpha 20.

    Examples
    --------
    >>> horst_one_step(0.51)
    Not yet: did you forget the exponential? That is the step of AdamW.
    """
    value = as_number(answer)
    half, exponent = WEIGHT + RATE, ALPHA * RATE
    if close(value, half * math.exp(exponent), 0.0008):
        return "First the addition of the rate, then a factor of e^0.2: 22 % of the weight."
    raw = RATE * abs(GRADIENT)
    mistakes = [
        (half, "did you forget the exponential? That is the step of AdamW."),
        (
            half * math.exp(-exponent),
            "look at the sign: the gradient is negative, so both lines make the weight larger.",
        ),
        (
            WEIGHT * math.exp(exponent),
            "did you forget the addition? The exponential multiplies what it leaves.",
        ),
        (
            WEIGHT * math.exp(exponent) + RATE,
            "does the exponential multiply the old weight? It multiplies the weight behind the "
            "addition.",
        ),
        (
            WEIGHT + RATE * (1 + ALPHA * WEIGHT),
            "that is the first order only. The exponential is exact here.",
        ),
        (
            half * math.exp(ALPHA * raw),
            "does the raw gradient drive the exponent? That is HAM; HORST takes Adam's direction.",
        ),
        (
            (WEIGHT + raw) * math.exp(ALPHA * raw),
            "did you take the gradient for Adam's direction? At the first step Adam's is its sign.",
        ),
        (
            half * math.exp(ALPHA),
            "did you forget the rate? It stands in the exponent too.",
        ),
    ]
    for wrong, sentence in mistakes:
        if close(value, wrong, 0.0005):
            raise WrongAnswerError(sentence)
    raise WrongAnswerError(
        "at the first step A is the sign of the gradient. Put it into both lines."
    )


# --------------------------------------------------------------------------------------------
# Predict: who commutes

PAIRS = {
    "gradient, sign": True,
    "scale, metric": True,
    "metric 1, metric 2": True,
    "scale, sign": False,
    "decay, metric": False,
    "metric, sign": False,
    "steepest 2, sign": False,
}
WHY = {
    "gradient, sign": 'what about "gradient, sign"? The operator gradient is the identity.',
    "scale, metric": 'what about "scale, metric"? Both multiply, each coordinate by a number.',
    "metric 1, metric 2": (
        'what about "metric 1, metric 2"? Both are diagonal, and both see the same weights.'
    ),
    "scale, sign": (
        'look at "scale, sign": the sign of 0.1 g has the length of a sign, 0.1 sign(g) has not.'
    ),
    "decay, metric": (
        'look at "decay, metric": the metric behind the decay also multiplies the decay.'
    ),
    "metric, sign": 'look at "metric, sign": sign(D g) is sign(g), and D sign(g) is not.',
    "steepest 2, sign": (
        'look at "steepest 2, sign": one order ends with entries of 1, the other with a vector of '
        "length 1."
    ),
}


@checker
def horst_commuting(answer: Collection[str]) -> str:
    """Check which pairs of operators commute, :eq:`eq-horst-commutator`.

    Parameters
    ----------
    answer : collection of str
        Names of pairs, as the exercise has them.

    Examples
    --------
    >>> horst_commuting({"gradient, sign", "scale, metric", "scale, sign", "metric 1, metric 2"})
    Not yet: look at "scale, sign": the sign of 0.1 g has the length of a sign, 0.1 sign(g) has not.
    """
    if isinstance(answer, str):
        answer = {answer}
    if not isinstance(answer, (set, frozenset, list, tuple)):
        raise WrongAnswerError("a set of names is asked for.")
    # an answer may hold lists, which no dictionary can be asked for
    if unknown := [name for name in answer if name not in list(PAIRS)]:
        allowed = "; ".join(PAIRS)
        raise WrongAnswerError(f"there is no pair {unknown[0]!r}. The pairs are: {allowed}.")
    for name, commutes in PAIRS.items():
        if (name in answer) != commutes:
            raise WrongAnswerError(WHY[name])
    return "Diagonal linear operators commute; a sign commutes with next to nothing."


# --------------------------------------------------------------------------------------------
# Derive: the potential of the metric


def _potential(theta: Tensor, alpha: float) -> Tensor:
    x = alpha * theta.abs()
    return ((1 + x) * torch.log1p(x) - x) / alpha**2


def _coordinate(theta: Tensor, alpha: float) -> Tensor:
    return theta.sign() * torch.log1p(alpha * theta.abs()) / alpha


def _one_sided(theta: Tensor, alpha: float) -> Tensor:
    return _potential(theta, alpha) * theta.sign()


def _inverse(theta: Tensor, alpha: float) -> Tensor:
    return theta.square() / 2 + alpha * theta.abs() ** 3 / 6


def _not_zero_at_zero(theta: Tensor, alpha: float) -> Tensor:
    return _potential(theta, alpha) + 1 / alpha**2


def _slope_left(theta: Tensor, alpha: float) -> Tensor:
    return _potential(theta, alpha) + theta.abs() / alpha


def _one_alpha(theta: Tensor, alpha: float) -> Tensor:
    return alpha * _potential(theta, alpha)


def _entropy(theta: Tensor, alpha: float) -> Tensor:
    x = alpha * theta
    return (x * torch.asinh(x) - (x.square() + 1).sqrt() + 1) / alpha**2


def _summed(theta: Tensor, alpha: float) -> Tensor:
    return _potential(theta, alpha).sum()


@checker
def horst_potential(answer: Callable[[Tensor, float], Tensor]) -> str:
    r"""Check the potential whose metric is exactly :eq:`eq-horst-metric`.

    Parameters
    ----------
    answer : callable
        ``answer(theta, alpha)`` returns :math:`\phi` of each entry, with
        :math:`\phi'' = 1 / (1 + \alpha \lvert \theta \rvert)` and :math:`\phi(0) = \phi'(0) = 0`.

    Examples
    --------
    >>> horst_potential(lambda theta, alpha: theta**2 / 2 + alpha * theta.abs() ** 3 / 6)
    Not yet: did you integrate the metric? The curvature of the potential is one over it.
    """
    mistakes = [
        Mistake(
            _inverse,
            "did you integrate the metric? The curvature of the potential is one over it.",
        ),
        Mistake(_coordinate, "that is its derivative, the mirror map. Integrate once more."),
        Mistake(_one_sided, "look at negative weights: a convex potential is positive on both."),
        Mistake(_not_zero_at_zero, "it is not zero at zero: subtract the constant."),
        Mistake(
            _slope_left, "its derivative is not zero at zero: a term linear in |theta| is left."
        ),
        Mistake(_one_alpha, "did you lose an alpha? Each integration brings one into the divisor."),
        Mistake(
            _entropy,
            "that is the hyperbolic entropy. Its metric is the root of 1 + (alpha theta)^2.",
        ),
        Mistake(_summed, "did you sum? One value per entry is asked for."),
    ]
    compare(answer, _weights_and_alphas(71), _potential, mistakes)
    return "Near zero a parabola, far away |theta| times a logarithm."


def _weights_and_alphas(seed: int) -> list[tuple[Tensor, float]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(size, generator=generator, dtype=torch.float64), alpha)
        for size, alpha in ((5, 0.7), (8, 4.0), (6, 30.0))
    ]


# --------------------------------------------------------------------------------------------
# Implement: its exact mirror step


def _back(z: Tensor, alpha: float) -> Tensor:
    return z.sign() * torch.expm1(alpha * z.abs()) / alpha


def _mirror_step(theta: Tensor, u: Tensor, alpha: float) -> Tensor:
    return _back(_coordinate(theta, alpha) - u, alpha)


def _displacement(theta: Tensor, u: Tensor, alpha: float) -> Tensor:
    return theta - _mirror_step(theta, u, alpha)


def _in_mirror(theta: Tensor, u: Tensor, alpha: float) -> Tensor:
    return _coordinate(theta, alpha) - u


def _uphill(theta: Tensor, u: Tensor, alpha: float) -> Tensor:
    return _mirror_step(theta, -u, alpha)


def _first_order(theta: Tensor, u: Tensor, alpha: float) -> Tensor:
    return theta - (1 + alpha * theta.abs()) * u


def _exponential(theta: Tensor, u: Tensor, alpha: float) -> Tensor:
    half = theta - u
    return half * (-alpha * half.sign() * u).exp()


def _old_sign(theta: Tensor, u: Tensor, alpha: float) -> Tensor:
    z = _coordinate(theta, alpha) - u
    return theta.sign() * torch.expm1(alpha * z.abs()) / alpha


def _one_branch(theta: Tensor, u: Tensor, alpha: float) -> Tensor:
    sign = theta.sign()
    return (theta + sign / alpha) * (-alpha * sign * u).exp() - sign / alpha


def _not_minus_one(theta: Tensor, u: Tensor, alpha: float) -> Tensor:
    z = _coordinate(theta, alpha) - u
    return z.sign() * (alpha * z.abs()).exp() / alpha


@checker
def horst_mirror_step(answer: Callable[[Tensor, Tensor, float], Tensor]) -> str:
    r"""Check the exact mirror step of the metric :math:`1 + \alpha \lvert \theta \rvert`.

    Parameters
    ----------
    answer : callable
        ``answer(theta, u, alpha)`` returns the new weights by :eq:`eq-horst-mirrored`.

    Examples
    --------
    >>> horst_mirror_step(lambda theta, u, alpha: theta - (1 + alpha * theta.abs()) * u)
    Not yet: that is the first order only. Subtract u in mirror coordinates, and come back.
    """
    generator = torch.Generator().manual_seed(72)
    cases = [
        (theta, torch.randn(len(theta), generator=generator, dtype=torch.float64) / alpha, alpha)
        for theta, alpha in _weights_and_alphas(73)
    ]
    cases = [(torch.cat((theta, u / 3)), torch.cat((u, u)), alpha) for theta, u, alpha in cases]
    mistakes = [
        Mistake(
            _first_order,
            "that is the first order only. Subtract u in mirror coordinates, and come back.",
        ),
        Mistake(_displacement, "that is the difference of the weights. Return the new ones."),
        Mistake(_in_mirror, "did you stay in mirror coordinates? Come back to the weights."),
        Mistake(_uphill, "look at the sign of u: a step subtracts it."),
        Mistake(
            _exponential,
            "that is HORST's mirror: an addition and a multiplication. It agrees to first order.",
        ),
        Mistake(
            _old_sign,
            "look at weights that pass through zero: their sign is that of the new coordinate.",
        ),
        Mistake(
            _one_branch,
            "look at weights that pass through zero: behind it the other branch of the map holds.",
        ),
        Mistake(_not_minus_one, "did you forget the -1? A coordinate of 0 is a weight of 0."),
    ]
    compare(answer, cases, _mirror_step, mistakes)
    return "There, plain descent; back here, large weights have moved further."


# --------------------------------------------------------------------------------------------
# Derive: the decay that it comes to


def _total_decay(lr: float, weight_decay: float, beta: float) -> Tensor:
    return torch.tensor((1 - (1 - lr * weight_decay) * math.exp(-lr * beta)) / lr)


def _sum_of_decays(lr: float, weight_decay: float, beta: float) -> Tensor:
    return torch.tensor(weight_decay + beta)


def _factor_left(lr: float, weight_decay: float, beta: float) -> Tensor:
    return torch.tensor((1 - lr * weight_decay) * math.exp(-lr * beta))


def _factor_taken(lr: float, weight_decay: float, beta: float) -> Tensor:
    return 1 - _factor_left(lr, weight_decay, beta)


def _no_rate_in_exponent(lr: float, weight_decay: float, beta: float) -> Tensor:
    return torch.tensor((1 - (1 - lr * weight_decay) * math.exp(-beta)) / lr)


def _apart(lr: float, weight_decay: float, beta: float) -> Tensor:
    return torch.tensor(weight_decay - math.expm1(-lr * beta) / lr)


def _second_order(lr: float, weight_decay: float, beta: float) -> Tensor:
    return torch.tensor((1 - (1 - lr * weight_decay) * (1 - lr * beta)) / lr)


@checker
def horst_total_decay(answer: Callable[[float, float, float], float]) -> str:
    """Check AdamW's decay that equals HORST's two decays, :eq:`eq-horst-second-decay`.

    Parameters
    ----------
    answer : callable
        ``answer(lr, weight_decay, beta)`` returns the decay of AdamW that does the same to a weight
        without a gradient, for alpha 0.

    Examples
    --------
    >>> horst_total_decay(lambda lr, weight_decay, beta: weight_decay + beta)
    Not yet: that is the first order. Exactly is asked for: compare what is left after one step.
    """
    cases = [(0.1, 0.5, 2.0), (0.3, 0.0, 1.0), (0.05, 1.0, 6.0), (0.2, 2.0, 0.0)]
    mistakes = [
        Mistake(
            _sum_of_decays,
            "that is the first order. Exactly is asked for: compare what is left after one step.",
        ),
        Mistake(_factor_left, "that is what one step leaves. Which decay leaves it?"),
        Mistake(_factor_taken, "did you forget to divide by the rate? AdamW multiplies by it."),
        Mistake(_no_rate_in_exponent, "the exponent is lr * beta, not beta."),
        Mistake(_apart, "did you add the two? The second acts on what the first one left."),
        Mistake(_second_order, "close: e^-x is not 1 - x."),
    ]
    compare(answer, cases, _total_decay, mistakes)
    return "For small rates it is the sum of the two."


# --------------------------------------------------------------------------------------------
# Derive: the largest weight


def _largest_weight(alpha: float, beta: float, weight_decay: float) -> float:
    left = weight_decay + beta - alpha
    return 1 / left if left > 0 else math.inf


def _size(alpha: float, beta: float, weight_decay: float) -> Tensor:
    """Code the largest weight so that infinity can be compared: 0, or one over it."""
    return torch.tensor(1 / _largest_weight(alpha, beta, weight_decay))


def _unguarded(alpha: float, beta: float, weight_decay: float) -> Tensor:
    return torch.tensor(weight_decay + beta - alpha)


def _no_beta(alpha: float, beta: float, weight_decay: float) -> Tensor:
    return torch.tensor(max(weight_decay - alpha, 0.0))


def _no_alpha(alpha: float, beta: float, weight_decay: float) -> Tensor:
    return torch.tensor(weight_decay + beta)


def _only_decay(alpha: float, beta: float, weight_decay: float) -> Tensor:
    return torch.tensor(weight_decay)


def _added_alpha(alpha: float, beta: float, weight_decay: float) -> Tensor:
    return torch.tensor(weight_decay + beta + alpha)


@checker
def horst_largest_weight(answer: Callable[[float, float, float], float]) -> str:
    r"""Check where a weight stops that is pushed for ever, :eq:`eq-horst-displacement`.

    Parameters
    ----------
    answer : callable
        ``answer(alpha, beta, weight_decay)`` returns the absolute weight at which the step for
        :math:`\lvert A \rvert = 1` and the decay balance, or infinity.

    Examples
    --------
    >>> horst_largest_weight(lambda alpha, beta, weight_decay: 1 / (weight_decay + beta))
    Not yet: did you forget the mirror? The step grows with the weight: it is 1 + alpha |theta|.
    """
    cases = [(0.5, 0.2, 1.0), (0.0, 0.0, 0.1), (20.0, 0.0, 0.1), (2.0, 3.0, 0.5), (1.0, 0.5, 0.5)]
    values = [as_number(call(answer, *case)) for case in cases]
    if any(math.isnan(value) for value in values):
        raise WrongAnswerError("your answer is not a number (NaN) on a hidden case.")
    sizes = iter([1 / value if value else math.inf for value in values])
    mistakes = [
        Mistake(
            _unguarded,
            "it is negative where alpha is larger than the decays. There is no balance: infinity.",
        ),
        Mistake(_no_beta, "did you forget beta? It is a second decay."),
        Mistake(
            _no_alpha,
            "did you forget the mirror? The step grows with the weight: it is 1 + alpha |theta|.",
        ),
        Mistake(_only_decay, "that is AdamW's. HORST has a mirror and a second decay."),
        Mistake(_added_alpha, "look at the sign of alpha: the mirror drives the weight on."),
    ]
    compare(lambda *case: next(sizes), cases, _size, mistakes)
    return (
        "The mirror is a decay with the wrong sign: with alpha above the decays nothing stops it."
    )


# --------------------------------------------------------------------------------------------
# Extend: where the path ends


def _end_point(a: float, alpha: float) -> Tensor:
    second = 2 * (1 - a) / (3 + 2 * alpha * a)
    return torch.tensor([a + (1 + alpha * a) * second, second])


def _swapped(a: float, alpha: float) -> Tensor:
    return _end_point(a, alpha).flip(0)


def _mirror_first(a: float, alpha: float) -> Tensor:
    return _end_point(a, 0.0)


def _ratio_only(a: float, alpha: float) -> Tensor:
    second = 2 / (3 + 2 * alpha * a)
    return torch.tensor([(1 + alpha * a) * second, second])


def _sparse(a: float, alpha: float) -> Tensor:
    return torch.tensor([1.0, 0.0])


def _from_the_gradient(a: float, alpha: float) -> Tensor:
    # with g in place of its sign: 1 + alpha x = (1 + alpha a) (1 + alpha y)^2
    low, high = 0.0, 2.0
    for _ in range(100):
        y = (low + high) / 2
        x = ((1 + alpha * a) * (1 + alpha * y) ** 2 - 1) / alpha
        low, high = (y, high) if 2 * x + y < 2 else (low, y)
    return torch.tensor([x, y])


@checker
def horst_end_point(answer: Callable[[float, float], Sequence[float]]) -> str:
    r"""Check where a path of the mirror after the sign ends, :eq:`eq-horst-conserved`.

    Parameters
    ----------
    answer : callable
        ``answer(a, alpha)`` returns :math:`(\theta_1, \theta_2)` on the line
        :math:`2 \theta_1 + \theta_2 = 2`, for small steps from :math:`(a, 0)`.

    Examples
    --------
    >>> horst_end_point(lambda a, alpha: (a + 2 * (1 - a) / 3, 2 * (1 - a) / 3))
    Not yet: that is where sign descent ends. With the mirror the difference of z is constant...
    """
    mistakes = [
        Mistake(
            _mirror_first,
            "that is where sign descent ends. With the mirror the difference of z is constant, "
            "not that of theta.",
        ),
        Mistake(_swapped, "did you swap the two? The first weight is ahead."),
        Mistake(
            _ratio_only,
            "you kept theta_1 / theta_2. It is (1 + alpha theta_1) / (1 + alpha theta_2) that "
            "stays.",
        ),
        Mistake(_sparse, "that is the limit of a large alpha. Where does a finite one end?"),
        Mistake(
            _from_the_gradient,
            "did you let the gradient drive it? Behind a sign both coordinates move at one speed.",
        ),
    ]
    cases = [(0.3, 20.0), (0.1, 5.0), (0.6, 50.0), (0.05, 100.0)]
    compare(answer, cases, _end_point, mistakes)
    return "A lead of a few 1 / alpha decides; without a lead alpha does nothing."

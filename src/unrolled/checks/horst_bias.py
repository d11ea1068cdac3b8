"""Checkers of the chapter *Implicit bias* of the part on optimizer geometry."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from unrolled.checks.result import (
    Mistake,
    WrongAnswerError,
    agrees,
    as_number,
    as_tensor,
    call,
    checker,
    close,
    compare,
)
from unrolled.horst.margins import min_norm

# --------------------------------------------------------------------------------------------
# Predict: six limits

POINT = (2.0, 1.0)
LIMITS = {
    "gradient": 1 / 2,
    "l4": (1 / 2) ** (1 / 3),
    "sign": 1.0,
    "mirror, gradient": 0.0,
    "mirror, l4": 0.0,
    "mirror, sign": 1.0,
}
HINTS = {
    "gradient": "the gradient is along the point for ever.",
    "l4": "what are the entries of S_p(a)? Their ratio is the power 1 / (p - 1) of that of a.",
    "sign": "both entries of the sign are 1.",
    "mirror, gradient": "both z grow steadily, at different speeds, and theta is exponential in z.",
    "mirror, l4": (
        "the speeds of z still differ, and theta is exponential in z. A limit is asked for, not "
        "an early ratio."
    ),
    "mirror, sign": "both z have one speed. Nothing tells the two weights apart.",
}


@checker
def horst_limits(answer: Mapping[str, float]) -> str:
    r"""Check to what :math:`\theta_2 / \theta_1` tends for six flows, :eq:`eq-horst-power-flow`.

    Parameters
    ----------
    answer : mapping
        A number for each name that the exercise has.

    Examples
    --------
    >>> horst_limits({name: 0.5 for name in LIMITS})
    Not yet: look at "l4": what are the entries of S_p(a)? Their ratio is the power 1 / (p - 1)...
    """
    if not isinstance(answer, Mapping):
        raise WrongAnswerError("a dictionary is asked for, with a number for each name.")
    if missing := [name for name in LIMITS if name not in answer]:
        raise WrongAnswerError(f'there is no "{missing[0]}" in your dictionary.')
    for name, right in LIMITS.items():
        if not abs(as_number(answer[name]) - right) < 0.005:  # a NaN is wrong, too
            raise WrongAnswerError(f'look at "{name}": {HINTS[name]}')
    return "With the mirror on top any lead in speed decides; under the sign there is none."


# --------------------------------------------------------------------------------------------
# Derive: a certificate


def _dual(p: float) -> float:
    return {1: math.inf, math.inf: 1.0}.get(p) or p / (p - 1)


def _certificate(A: Tensor, w: Tensor, p: float) -> Tensor:
    return torch.linalg.vector_norm(A.T @ w, _dual(p)) / w.sum()


def _not_normalised(A: Tensor, w: Tensor, p: float) -> Tensor:
    return torch.linalg.vector_norm(A.T @ w, _dual(p))


def _same_norm(A: Tensor, w: Tensor, p: float) -> Tensor:
    return torch.linalg.vector_norm(A.T @ w, p) / w.sum()


def _divided_by_length(A: Tensor, w: Tensor, p: float) -> Tensor:
    return torch.linalg.vector_norm(A.T @ w, _dual(p)) / torch.linalg.vector_norm(w)


def _own_margin(A: Tensor, w: Tensor, p: float) -> Tensor:
    theta = A.T @ w
    return (A @ theta).min() / torch.linalg.vector_norm(theta, p)


def _mean_of_norms(A: Tensor, w: Tensor, p: float) -> Tensor:
    return w @ torch.linalg.vector_norm(A, _dual(p), dim=1) / w.sum()


@checker
def horst_certificate(answer: Callable[[Tensor, Tensor, float], float]) -> str:
    """Check an upper bound of the largest margin, :eq:`eq-horst-certificate`.

    Parameters
    ----------
    answer : callable
        ``answer(A, w, p)`` returns the bound for the points (n, d), times their labels, weights
        (n,) that are not negative, and a p of at least 1 (infinity among them).

    Examples
    --------
    >>> horst_certificate(lambda A, w, p: torch.linalg.vector_norm(A.T @ w, p) / w.sum())
    Not yet: that is the norm p itself. The bound needs the dual one, with 1/p + 1/q = 1.
    """
    random = torch.Generator().manual_seed(77)
    cases = [
        (
            torch.randn(5, 9, generator=random).double(),
            3 * torch.rand(5, generator=random).double(),
            p,
        )
        for p in (1, 1.5, 2, 4.0, math.inf)
    ]
    mistakes = [
        Mistake(
            _not_normalised,
            "the weights need not have the sum 1. Divide: the bound must not see their scale.",
        ),
        Mistake(
            _same_norm,
            "that is the norm p itself. The bound needs the dual one, with 1/p + 1/q = 1.",
        ),
        Mistake(_divided_by_length, "divide by the sum of the weights, not by their length."),
        Mistake(
            _own_margin, "that is the margin of one classifier, a bound of the largest from below."
        ),
        Mistake(
            _mean_of_norms,
            "that is a bound, but a loose one: take the norm of the mean, not the mean of norms.",
        ),
    ]
    compare(answer, cases, _certificate, mistakes)
    return "A bound from above and a margin from below: together they say how far off you are."


# --------------------------------------------------------------------------------------------
# Implement: the sparsest fit


def _hidden_problems() -> list[tuple[Tensor, Tensor]]:
    random = torch.Generator().manual_seed(78)
    problems = []
    for n, d in ((4, 9), (6, 15), (3, 5)):
        X = torch.randn(n, d, generator=random).double()
        problems.append((X, torch.randn(n, generator=random).double()))
    return problems


def _smallest(p: float) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda X, y: torch.from_numpy(min_norm(X.numpy(), y.numpy(), p))


FITS = (
    (2, "that is the smallest norm L_2, the one that a pseudo-inverse gives."),
    (math.inf, "that is the smallest norm L_infinity. Give every weight a bound of its own."),
)


@checker
def horst_sparsest_fit(answer: Callable[[Tensor, Tensor], Tensor]) -> str:
    """Check the fit of the smallest L_1 norm, :eq:`eq-horst-min-norm`.

    Parameters
    ----------
    answer : callable
        ``answer(X, y)`` returns (d,) weights with ``X @ theta = y``, for (n, d) and (n,) tensors
        of float64.

    Examples
    --------
    >>> horst_sparsest_fit(lambda X, y: torch.linalg.pinv(X) @ y)
    Not yet: that is the smallest norm L_2, the one that a pseudo-inverse gives.
    """
    problems = _hidden_problems()
    values = [as_tensor(call(answer, X, y)) for X, y in problems]
    for (X, y), value in zip(problems, values, strict=True):
        if value.shape != (X.shape[1],):
            shape = tuple(value.shape)
            raise WrongAnswerError(f"the shape is {shape}, and it should be {(X.shape[1],)}.")
        if not agrees(X @ value, y, 1e-5):
            raise WrongAnswerError(
                "the equations do not hold on a hidden case. May your weights be negative?"
            )
    for p, sentence in FITS:
        others = [_smallest(p)(X, y) for X, y in problems]
        if all(agrees(v, other, 1e-4) for v, other in zip(values, others, strict=True)):
            raise WrongAnswerError(sentence)
    for (X, y), value in zip(problems, values, strict=True):
        if not close(float(value.abs().sum()), float(_smallest(1)(X, y).abs().sum()), 1e-5):
            raise WrongAnswerError("the equations hold, but a smaller L_1 norm is possible.")
    return "It has no more weights than there are equations."


# --------------------------------------------------------------------------------------------
# Derive: where it stops


def _stopping_size(alpha: float, beta: float, weight_decay: float, s: float) -> float:
    left = weight_decay + beta - alpha * abs(s)
    return abs(s) / left if left > 0 else math.inf


def _stop_full(alpha: float, beta: float, weight_decay: float, s: float) -> float:
    return _stopping_size(alpha, beta, weight_decay, 1.0)


def _stop_no_decay(alpha: float, beta: float, weight_decay: float, s: float) -> float:
    return _stopping_size(alpha, beta, 0.0, s)


def _stop_no_mirror(alpha: float, beta: float, weight_decay: float, s: float) -> float:
    return _stopping_size(0.0, beta, weight_decay, s)


def _stop_alpha_full(alpha: float, beta: float, weight_decay: float, s: float) -> float:
    left = weight_decay + beta - alpha
    return abs(s) / left if left > 0 else math.inf


def _stop_numerator(alpha: float, beta: float, weight_decay: float, s: float) -> float:
    left = weight_decay + beta - alpha * abs(s)
    return 1 / left if left > 0 else math.inf


def _stop_unguarded(alpha: float, beta: float, weight_decay: float, s: float) -> float:
    return abs(s) / (weight_decay + beta - alpha * abs(s))


def _stop_signed(alpha: float, beta: float, weight_decay: float, s: float) -> float:
    return math.copysign(_stopping_size(alpha, beta, weight_decay, s), s)


def _angle(answer: Callable[..., float]) -> Callable[..., Tensor]:
    """Code a size so that infinity can be compared: as the angle with this tangent."""
    return lambda *case: torch.tensor(math.atan(answer(*case)), dtype=torch.float64)


@checker
def horst_stopping_size(answer: Callable[[float, float, float, float], float]) -> str:
    """Check where a weight stops whose mean direction is given, :eq:`eq-horst-threshold`.

    Parameters
    ----------
    answer : callable
        ``answer(alpha, beta, weight_decay, s)`` returns the absolute weight, or infinity.

    Examples
    --------
    >>> horst_stopping_size(lambda alpha, beta, weight_decay, s: abs(s) / (weight_decay + beta))
    Not yet: did you forget the mirror? The push grows with the weight: (1 + alpha |theta|) |s|.
    """
    cases = [
        *((10.0, 4.0, 0.5, 0.3), (10.0, 4.0, 0.5, 0.6), (2.0, 3.0, 0.1, -0.8)),
        *((0.0, 1.0, 0.2, 0.5), (5.0, 2.0, 0.0, -0.9), (7.0, 8.0, 1.0, 1.0)),
    ]
    values = [as_number(call(answer, *case)) for case in cases]
    if any(math.isnan(value) for value in values):
        raise WrongAnswerError("your answer is not a number (NaN) on a hidden case.")
    sizes = iter([math.atan(value) for value in values])
    mistakes = [
        Mistake(_angle(_stop_full), "the mean direction is s here, and not 1."),
        Mistake(_angle(_stop_no_decay), "did you forget the decay? It adds to beta."),
        Mistake(
            _angle(_stop_no_mirror),
            "did you forget the mirror? The push grows with the weight: (1 + alpha |theta|) |s|.",
        ),
        Mistake(_angle(_stop_alpha_full), "the mirror multiplies s: its part is alpha |s|."),
        Mistake(_angle(_stop_numerator), "the additive part of the push is |s|, and not 1."),
        Mistake(
            _angle(_stop_unguarded),
            "it is negative where alpha |s| is larger than the decays: no balance, infinity.",
        ),
        Mistake(_angle(_stop_signed), "an absolute weight is asked for; s may be negative."),
    ]
    compare(lambda *case: next(sizes), cases, _angle(_stopping_size), mistakes)
    return "beta / alpha is a threshold for the agreement of gradients."


# --------------------------------------------------------------------------------------------
# Derive: when it overflows


def _steps_to_reach(largest: float, alpha: float, lr: float) -> float:
    return math.log1p(alpha * largest) / (alpha * lr)


def _no_rate(largest: float, alpha: float, lr: float) -> float:
    return math.log1p(alpha * largest) / alpha


def _no_mirror(largest: float, alpha: float, lr: float) -> float:
    return largest / lr


def _without_alpha_below(largest: float, alpha: float, lr: float) -> float:
    return math.log1p(alpha * largest) / lr


def _without_alpha_inside(largest: float, alpha: float, lr: float) -> float:
    return math.log1p(largest) / (alpha * lr)


def _from_one(largest: float, alpha: float, lr: float) -> float:
    return math.log(largest) / (alpha * lr)


def _base_ten(largest: float, alpha: float, lr: float) -> float:
    return math.log10(1 + alpha * largest) / (alpha * lr)


@checker
def horst_steps_to_reach(answer: Callable[[float, float, float], float]) -> str:
    """Check after how many steps a weight has a given size, :eq:`eq-horst-overflow`.

    Parameters
    ----------
    answer : callable
        ``answer(largest, alpha, lr)`` returns the number of steps, a real number.

    Examples
    --------
    >>> horst_steps_to_reach(lambda largest, alpha, lr: largest / lr)
    Not yet: that is without the mirror. z grows by the rate at each step, and theta is...
    """
    cases = [(1e35, 10.0, 0.005), (0.5, 20.0, 0.01), (1e20, 100.0, 1e-3), (3.0, 0.5, 0.1)]
    mistakes = [
        Mistake(_no_rate, "that is the way. How many steps of the rate is it?"),
        Mistake(
            _no_mirror,
            "that is without the mirror. z grows by the rate at each step, and theta is "
            "exponential in z.",
        ),
        Mistake(_without_alpha_below, "did you lose an alpha? z = log(1 + alpha |theta|) / alpha."),
        Mistake(_without_alpha_inside, "the mirror coordinate has alpha |theta| inside."),
        Mistake(_from_one, "close for huge weights only: the weight starts at 0, not at 1."),
        Mistake(_base_ten, "the logarithm is the natural one."),
    ]
    compare(answer, cases, _steps_to_reach, mistakes)
    return "A size of 10 to the 38 sounds safe, and is a matter of a few thousand steps."


# --------------------------------------------------------------------------------------------
# Extend: how far to one percent


def _way(alpha: float, p: float, c: float, share: float) -> float:
    lag = 1 - c ** (1 / (p - 1))
    return math.log(1 / share) / (alpha * lag) if lag > 0 else math.inf


def _way_at_two(alpha: float, p: float, c: float, share: float) -> float:
    return math.log(1 / share) / (alpha * (1 - c))


def _way_full_power(alpha: float, p: float, c: float, share: float) -> float:
    return math.log(1 / share) / (alpha * (1 - c ** (p - 1)))


def _way_dual(alpha: float, p: float, c: float, share: float) -> float:
    lag = 1 - c ** (1 / p)
    return math.log(1 / share) / (alpha * lag) if lag > 0 else math.inf


def _way_no_alpha(alpha: float, p: float, c: float, share: float) -> float:
    return _way(1.0, p, c, share)


def _way_negative(alpha: float, p: float, c: float, share: float) -> float:
    return -_way(alpha, p, c, share)


@checker
def horst_way(answer: Callable[[float, float, float, float], float]) -> str:
    """Check how far it is until a weight has fallen behind, :eq:`eq-horst-share`.

    Parameters
    ----------
    answer : callable
        ``answer(alpha, p, c, share)`` returns the way of the fastest weight, or infinity.

    Examples
    --------
    >>> horst_way(lambda alpha, p, c, share: math.log(1 / share) / (alpha * (1 - c)))
    Not yet: that is p = 2. Below the mirror is S_p: its speeds are the powers 1 / (p - 1).
    """
    cases = [
        *((10.0, 2.0, 0.9, 0.01), (10.0, 4.0, 0.9, 0.01), (3.0, 3.0, 0.5, 0.1)),
        (20.0, math.inf, 0.9, 0.01),
    ]
    values = [as_number(call(answer, *case)) for case in cases]
    if any(math.isnan(value) for value in values):
        raise WrongAnswerError("your answer is not a number (NaN) on a hidden case.")
    ways = iter([math.atan(value) for value in values])
    mistakes = [
        Mistake(
            _angle(_way_at_two),
            "that is p = 2. Below the mirror is S_p: its speeds are the powers 1 / (p - 1).",
        ),
        Mistake(_angle(_way_full_power), "the power is 1 / (p - 1), not p - 1."),
        Mistake(_angle(_way_dual), "the power is 1 / (p - 1), which is q - 1 and not 1 / p."),
        Mistake(_angle(_way_no_alpha), "did you forget alpha? It shortens the way."),
        Mistake(_angle(_way_negative), "look at the sign: a way is positive."),
    ]
    compare(lambda *case: next(ways), cases, _angle(_way), mistakes)
    return "The larger p, the farther; under the sign it is never reached."

"""Checkers of the chapter *Dual ascent* of the part on descent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
# Predict: the price of a half plane, and Adam's first step

PRICE = 1.0


@checker
def descent_price(answer: float) -> str:
    """Check the multiplier of the half-plane problem with q = (3, 1), v = (2, 0), b = 2.

    Parameters
    ----------
    answer : float
        The multiplier at the solution of :eq:`eq-descent-half-plane`.

    Examples
    --------
    >>> descent_price(2.0)
    Not yet: did you divide by the norm of v? The multiplier has its square below...
    """
    value = as_number(answer)
    if close(value, PRICE, 1e-3):
        return "The violation at q, over the squared norm of v."
    for wrong, sentence in (
        (2.0, "did you divide by the norm of v? The multiplier has its square below the line."),
        (4.0, "did you forget to divide? That is the violation at q."),
        (-PRICE, "did you mind the sign? A multiplier of an inequality is never negative."),
        (0.0, "is q feasible? A price of 0 would say so."),
    ):
        if abs(value - wrong) < 1e-3:
            raise WrongAnswerError(sentence)
    raise WrongAnswerError("put x = q - lambda v into the slack and set it to 0.")


@checker
def descent_adam(answer: tuple[float, float]) -> str:
    """Check where Adam puts two multipliers with the slacks 0.02 and 2 in one step of rate 0.1.

    Parameters
    ----------
    answer : tuple of float
        The two multipliers.

    Examples
    --------
    >>> descent_adam((0.002, 0.2))
    Not yet: is that Adam? These are the steps of plain dual ascent...
    """
    values = as_tensor(answer).flatten()
    if values.numel() != 2:
        raise WrongAnswerError("two numbers are asked for.")
    if torch.allclose(values, torch.tensor([0.1, 0.1]).double(), rtol=1e-3):
        return "The size of the violation is gone."
    if torch.allclose(values, torch.tensor([0.002, 0.2]).double(), rtol=1e-3):
        raise WrongAnswerError(
            "is that Adam? These are the steps of plain dual ascent, rate times slack."
        )
    if bool((values < 0).any()):
        raise WrongAnswerError("did you mind the sign? A positive slack raises its price.")
    if close(float(values[0]), float(values[1]), 1e-3):
        raise WrongAnswerError("equal is right: how large is a gradient over its own size?")
    raise WrongAnswerError("Adam divides each gradient by the root of its own squared mean.")


# --------------------------------------------------------------------------------------------
# Derive: the calm step, the weights of the anchored form


@checker
def descent_calm_step(function: Callable[[float, float], float]) -> str:
    """Check the largest dual step without oscillation, by :eq:`eq-descent-oscillation`.

    Parameters
    ----------
    function : callable
        Maps the primal step and N to a number.

    Examples
    --------
    >>> descent_calm_step(lambda tau, N: 1 / N)
    Not yet: did you ask for convergence? From there on simultaneous updates diverge...
    """
    mistakes = (
        Mistake(
            lambda tau, N: 1 / N,
            "did you ask for convergence? From there on simultaneous updates diverge; they "
            "oscillate long before.",
        ),
        Mistake(
            lambda tau, N: tau / N,
            "did you forget the 4 of the discriminant, trace squared less four determinants?",
        ),
        Mistake(
            lambda tau, N: tau / (4 * N**0.5),
            "N is the squared norm of v: it enters once as it is.",
        ),
        Mistake(
            lambda tau, N: (1 - (1 - tau) ** 0.5) ** 2 / (tau * N),
            "did you take the alternating updates? The simultaneous ones are asked for.",
        ),
    )
    compare(function, [(0.1, 2.0), (0.3, 0.7), (0.05, 11.0)], lambda t, N: t / (4 * N), mistakes)
    return "Weights that are slow need prices that are slower."


def _anchored(prices: Tensor, shares: Tensor, first: bool = False, last: bool = True) -> Tensor:
    w = prices.new_zeros(len(prices) + 1)
    passed = (1 - shares) * prices
    w[1:] += prices
    w[:-1] -= passed if first else torch.cat((passed.new_zeros(1), passed[1:]))
    w[-1] += last
    return w


@checker
def descent_anchored_weights(function: Callable[[Tensor, Tensor], Tensor]) -> str:
    """Check the effective weights of the anchored form, :eq:`eq-descent-anchored`.

    Parameters
    ----------
    function : callable
        Maps the multipliers (L,) and the shares (L,) to the weights (L + 1,).

    Examples
    --------
    >>> descent_anchored_weights(lambda prices, shares: prices)
    Not yet: the shape is (3,), and it should be (4,).
    """
    generator = torch.Generator().manual_seed(11)
    draw = [torch.rand(2, size, generator=generator).double() for size in (3, 5, 2)]
    mistakes = (
        Mistake(
            lambda p, s: _anchored(p, s, first=True),
            "is that the exact form? Here f_0 is replaced by a constant, so its weight is 0.",
        ),
        Mistake(
            lambda p, s: _anchored(p, s, last=False),
            "did you forget the objective? The last loss has a weight of 1 beside its price.",
        ),
        Mistake(
            lambda p, s: _anchored(p, torch.cat((s[:1], s[:-1]))),
            "which share goes with which price? The next layer's, alpha of l + 1, with both.",
        ),
        Mistake(
            lambda p, s: _anchored(p, s * 0),
            "did you forget the shares? The loss before enters with 1 - alpha.",
        ),
    )
    compare(function, [tuple(pair) for pair in draw], _anchored, mistakes)
    return "Nothing pulls the start up; the layers between still can be."


# --------------------------------------------------------------------------------------------
# Implement: the leaky step, the cumulative slacks


@checker
def descent_leaky_step(function: Callable[..., Tensor]) -> str:
    """Check the resilient dual step, :eq:`eq-descent-resilient`.

    Parameters
    ----------
    function : callable
        Maps prices, slacks, step size and cost of relaxations to the new prices.

    Examples
    --------
    >>> descent_leaky_step(lambda prices, slacks, eta, c: prices + eta * (slacks - prices / c))
    Not yet: did you forget the projection? Prices are never negative.
    """
    prices, slacks = torch.tensor([0.5, 2.0, 0.1]), torch.tensor([0.3, -0.1, -4.0])
    cases = [(prices, slacks, 0.1, 3.0), (2 * prices, -slacks, 0.2, 0.7)]

    def right(p, g, eta, c):
        return (p + eta * (g - p / c)).clamp_min(0)

    mistakes = (
        Mistake(
            lambda p, g, eta, c: p + eta * (g - p / c),
            "did you forget the projection? Prices are never negative.",
        ),
        Mistake(
            lambda p, g, eta, c: (p + eta * g).clamp_min(0),
            "did you forget the leak? This is the plain step.",
        ),
        Mistake(
            lambda p, g, eta, c: (p + eta * (g - p * c)).clamp_min(0),
            "multiplied by c? A dear relaxation is a small leak: divide.",
        ),
        Mistake(
            lambda p, g, eta, c: (p + eta * g - p / c).clamp_min(0),
            "is the leak part of the gradient? Then the step size multiplies it too.",
        ),
        Mistake(
            lambda p, g, eta, c: (p + eta * (g + p / c)).clamp_min(0),
            "did you mind the sign? The leak lowers a price.",
        ),
    )
    compare(function, cases, right, mistakes)
    return "It rests where the slack is the price over c."


def _cumulative(losses: Tensor, shares: Tensor) -> Tensor:
    return losses[1:] - (1 - shares).cumprod(0) * losses[0].detach()


@checker
def descent_cumulative_slacks(function: Callable[[Tensor, Tensor], Tensor]) -> str:
    """Check the slacks of the cumulative form, :eq:`eq-descent-cumulative`, and their gradient.

    Parameters
    ----------
    function : callable
        Maps losses (L + 1,) and shares (L,) to slacks (L,).

    Examples
    --------
    >>> descent_cumulative_slacks(lambda f, s: f[1:] - (1 - s) * f[:-1])
    Not yet: is that the exact form? Here each layer is compared with the start.
    """
    generator = torch.Generator().manual_seed(5)
    cases = [
        (torch.rand(n + 1, generator=generator), torch.rand(n, generator=generator)) for n in (3, 6)
    ]
    mistakes = (
        Mistake(
            lambda f, s: f[1:] - (1 - s) * f[:-1],
            "is that the exact form? Here each layer is compared with the start.",
        ),
        Mistake(
            lambda f, s: f[1:] - (1 - s) * f[0],
            "did you forget the product? Layer l has to keep all shares up to its own.",
        ),
        Mistake(
            lambda f, s: f[1:] - s.cumprod(0) * f[0],
            "a product of the shares? It is the product of what they leave, 1 - alpha.",
        ),
        Mistake(
            lambda f, s: -_cumulative(f, s),
            "did you mind the sign? Positive is violated.",
        ),
    )
    compare(function, cases, _cumulative, mistakes)
    losses = cases[0][0].clone().requires_grad_()
    slacks = function(losses, cases[0][1])
    gradient = _gradient(slacks.sum(), losses)
    if float(gradient[0]) != 0:
        raise WrongAnswerError(
            "did you forget to detach? A gradient reaches f_0, and training would raise it."
        )
    if not torch.equal(gradient[1:], torch.ones(len(losses) - 1)):
        raise WrongAnswerError("no gradient reaches the later losses: detach f_0 alone.")
    return "No weight is ever negative."


def _gradient(value: Any, *inputs: Tensor) -> Tensor:
    if not isinstance(value, Tensor) or not value.requires_grad:
        raise WrongAnswerError("no gradient reaches the losses: was too much detached?")
    return torch.autograd.grad(value, inputs[0])[0]


# --------------------------------------------------------------------------------------------
# Extend: the augmented Lagrangian


@checker
def descent_augmented(function: Callable[..., Tensor]) -> str:
    """Check the augmented Lagrangian of inequality constraints, and its gradient in the slacks.

    Parameters
    ----------
    function : callable
        Maps objective, slacks, prices and beta to a scalar.

    Examples
    --------
    >>> descent_augmented(lambda f, g, prices, beta: f + (prices * g).sum())
    Not yet: is that the plain Lagrangian? The quadratic bill is missing.
    """
    prices, slacks = torch.tensor([0.5, 2.0, 0.1]), torch.tensor([0.3, -0.1, -4.0])
    cases = [(torch.tensor(1.3), slacks, prices, 0.4), (torch.tensor(0.2), -slacks, prices, 2.0)]

    def right(f, g, p, beta):
        return f + ((p + beta * g).clamp_min(0).square() - p.square()).sum() / (2 * beta)

    mistakes = (
        Mistake(
            lambda f, g, p, beta: f + (p * g).sum(),
            "is that the plain Lagrangian? The quadratic bill is missing.",
        ),
        Mistake(
            lambda f, g, p, beta: f + (p * g + beta / 2 * g.square()).sum(),
            "did you forget the projection? As written, a constraint that is kept well is fined.",
        ),
        Mistake(
            lambda f, g, p, beta: f + (p + beta * g).clamp_min(0).square().sum() / (2 * beta),
            "did you forget to subtract the squared prices?",
        ),
        Mistake(
            lambda f, g, p, beta: (
                f + ((p + beta * g).clamp_min(0).square() - p.square()).sum() / beta
            ),
            "did you forget the 2 below the line?",
        ),
    )
    compare(function, cases, right, mistakes)
    _check_prices_ahead(function, cases[0])
    return "Its gradient has the prices of the next dual step, of size beta."


def _check_prices_ahead(function: Callable[..., Tensor], case: tuple) -> None:
    objective, slacks, prices, beta = case
    slacks = slacks.clone().requires_grad_()
    gradient = _gradient(call(lambda: function(objective, slacks, prices, beta)), slacks)
    if not torch.allclose(gradient, (prices + beta * slacks.detach()).clamp_min(0), atol=1e-5):
        raise WrongAnswerError("the gradient in the slacks should be [lambda + beta g]_+.")

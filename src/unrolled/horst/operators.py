r"""Operators: the parts that an optimizer step is composed of, each a pure function.

An operator maps a direction :math:`u` at the parameter :math:`\theta` to another direction; a step
subtracts the last one from the parameter:

.. math:: \theta \leftarrow \theta - (O_2 \circ O_1)_\theta(u), \qquad u = \nabla f(\theta)

:eq:`eq-horst-composition`. In code an operator is a function ``(theta, u, state) -> (direction,
state)``; the state is what Adam remembers, and None at the start and for all that remember
nothing. Two kinds matter. *Steepest descent* (`sign`, `steepest`, `adam`) is bounded and does not
see the size of :math:`u`. A *mirror* (`metric`, `hyperbolic`, `exponential`) multiplies each
coordinate by a number that grows with :math:`\lvert \theta \rvert`. The two do not commute, and
HORST is one of the two orders: see `horst`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unrolled.optimization import require

__all__ = [
    "CLAMP",
    "AdamState",
    "Operator",
    "State",
    "adam",
    "commutator",
    "compose",
    "decay",
    "descend",
    "exponential",
    "gradient",
    "horst",
    "hyperbolic",
    "metric",
    "mirror_map",
    "scale",
    "sign",
    "steepest",
]

State = Any
"""What an operator remembers: None, an `AdamState`, or a pair of states of a composition."""

Operator = Callable[[Tensor, Tensor, State], tuple[Tensor, State]]
"""``(theta, u, state) -> (direction, state)``."""

CLAMP = 5.0
"""Largest absolute exponent of `exponential`: one step changes a weight by at most e^5 = 148."""


def descend(
    operator: Operator, theta: Tensor, u: Tensor, state: State = None
) -> tuple[Tensor, State]:
    r"""Take one step: subtract what the operator makes of a gradient.

    .. math:: \theta \leftarrow \theta - O_\theta(u)

    Parameters
    ----------
    operator
        For example `scale` of a rate, composed with `sign`.
    theta, u
        Parameter and gradient, of one shape; neither is changed.
    state
        What the operator returned at the step before; None at the first.

    Examples
    --------
    >>> theta, _ = descend(scale(0.1), torch.tensor([1.0, 2.0]), torch.tensor([10.0, 0.0]))
    >>> theta
    tensor([0., 2.])
    """
    direction, state = operator(theta, u, state)
    return theta - direction, state


def compose(outer: Operator, inner: Operator) -> Operator:
    r"""Return the operator that applies `inner` first and `outer` to its result.

    .. math:: (O_2 \circ O_1)_\theta(u) = O_{2,\theta}\bigl(O_{1,\theta}(u)\bigr)

    :eq:`eq-horst-composition`. Both see the same parameter. The state is the pair of both states.

    Examples
    --------
    >>> theta, u = torch.tensor([3.0, 0.0]), torch.tensor([0.5, -2.0])
    >>> compose(metric(1.0), sign())(theta, u, None)[0]    # M o S
    tensor([ 4., -1.])
    >>> compose(sign(), metric(1.0))(theta, u, None)[0]    # S o M
    tensor([ 1., -1.])
    """

    def composed(theta: Tensor, u: Tensor, state: State = None) -> tuple[Tensor, State]:
        outer_state, inner_state = (None, None) if state is None else state
        u, inner_state = inner(theta, u, inner_state)
        u, outer_state = outer(theta, u, outer_state)
        return u, (outer_state, inner_state)

    return composed


def commutator(first: Operator, second: Operator, theta: Tensor, u: Tensor) -> Tensor:
    r"""Return what the order of two operators changes: zero if they commute.

    .. math:: [S, M]_\theta(u) = (S \circ M)_\theta(u) - (M \circ S)_\theta(u)

    :eq:`eq-horst-commutator`. Both start without a state.

    Parameters
    ----------
    first, second
        S and M.
    theta, u
        Parameter and gradient, of one shape.

    Examples
    --------
    >>> theta, u = torch.tensor([3.0, 0.0]), torch.tensor([0.5, -2.0])
    >>> commutator(sign(), metric(1.0), theta, u)    # sign(D g) - D sign(g)
    tensor([-3., 0.])
    >>> commutator(scale(0.1), metric(1.0), theta, u)
    tensor([0., 0.])
    """
    one, _ = compose(first, second)(theta, u, None)
    other, _ = compose(second, first)(theta, u, None)
    return one - other


# --- linear operators ---------------------------------------------------------------------------


def gradient() -> Operator:
    """Return the identity: the direction of gradient descent.

    Examples
    --------
    >>> gradient()(torch.zeros(2), torch.tensor([3.0, -4.0]), None)[0]
    tensor([ 3., -4.])
    """
    return lambda theta, u, state=None: (u, state)


def scale(rate: float) -> Operator:
    r"""Return the multiplication by a learning rate, :math:`\eta u`.

    Examples
    --------
    >>> scale(0.1)(torch.zeros(2), torch.tensor([3.0, -4.0]), None)[0]
    tensor([ 0.30, -0.40])
    """
    require(0 <= rate < math.inf, "rate", rate, "a finite number >= 0")
    return lambda theta, u, state=None: (rate * u, state)


def decay(rate: float) -> Operator:
    r"""Return decoupled weight decay, :math:`u + \text{rate}\; \theta`.

    Examples
    --------
    >>> decay(0.1)(torch.tensor([10.0]), torch.tensor([3.0]), None)[0]
    tensor([4.])
    """
    require(0 <= rate < math.inf, "rate", rate, "a finite number >= 0")
    return lambda theta, u, state=None: (u + rate * theta, state)


def metric(alpha: float) -> Operator:
    r"""Return the linear mirror operator with the metric that HORST has for small steps.

    .. math:: M_\theta(u) = (1 + \alpha \lvert \theta \rvert)\, u

    :eq:`eq-horst-metric`. Coordinates that are large move faster.

    Parameters
    ----------
    alpha : float
        Not negative; 0 is the identity.

    Examples
    --------
    >>> metric(10.0)(torch.tensor([0.0, -1.0]), torch.tensor([1.0, 1.0]), None)[0]
    tensor([ 1., 11.])
    """
    require(0 <= alpha < math.inf, "alpha", alpha, "a finite number >= 0")
    return lambda theta, u, state=None: ((1 + alpha * theta.abs()) * u, state)


# --- steepest descent ---------------------------------------------------------------------------


def sign() -> Operator:
    r"""Return sign descent: steepest descent in the norm :math:`L_\infty`, without its size.

    Examples
    --------
    >>> sign()(torch.zeros(3), torch.tensor([3.0, -0.1, 0.0]), None)[0]
    tensor([ 1., -1., 0.])
    """
    return lambda theta, u, state=None: (u.sign(), state)


def steepest(p: float) -> Operator:
    r"""Return steepest descent in the norm :math:`L_p`: the best direction of unit length.

    .. math:: S_p(u) = \arg\max_{\lVert d \rVert_p \le 1} \langle u, d \rangle, \qquad
              d_i = \mathrm{sign}(u_i)
              \Bigl(\frac{\lvert u_i \rvert}{\lVert u \rVert_q}\Bigr)^{q-1},
              \quad \tfrac1p + \tfrac1q = 1

    :eq:`eq-horst-steepest`. p = 2 is the normalised gradient, p = infinity is `sign`, and p = 1
    moves one coordinate: the first of those with the largest gradient.

    Parameters
    ----------
    p : float
        At least 1; ``math.inf`` is allowed.

    Returns
    -------
    Operator
        A gradient of zeros stays zero.

    Examples
    --------
    >>> u = torch.tensor([3.0, -4.0])
    >>> [steepest(p)(u, u, None)[0].tolist() for p in (1, math.inf)]
    [[0.0, -1.0], [1.0, -1.0]]
    >>> steepest(2)(u, u, None)[0]
    tensor([ 0.60, -0.80])
    """
    require(p >= 1, "p", p, "at least 1")
    return lambda theta, u, state=None: (_steepest(u, p), state)


def _steepest(u: Tensor, p: float) -> Tensor:
    size = u.abs()
    largest = size.max()
    if largest == 0:
        return torch.zeros_like(u)
    if p == 1:
        chosen = torch.zeros_like(u).flatten()
        first = size.argmax()
        chosen[first] = u.flatten()[first].sign()
        return chosen.view_as(u)
    q = 1.0 if p == math.inf else p / (p - 1)
    size = size / largest  # no power of a gradient overflows
    # d_i = sign(u_i) (|u_i| / ||u||_q)^(q - 1)
    powers = size**q
    return u.sign() * (size / powers.sum() ** (1 / q)) ** (q - 1)


class AdamState(NamedTuple):
    """What Adam remembers: first and second moment (shape of the parameter), and the steps."""

    m: Tensor
    v: Tensor
    steps: int


def adam(betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8) -> Operator:
    r"""Return Adam's direction, which is near :math:`\pm 1` while the gradient keeps its sign.

    .. math:: m \leftarrow \beta_1 m + (1 - \beta_1) u, \quad
              v \leftarrow \beta_2 v + (1 - \beta_2) u^2, \quad
              A(u) = \frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + \epsilon}

    :eq:`eq-horst-adam`.

    Parameters
    ----------
    betas : tuple of float
        Each in [0, 1). With (0, 0) and eps 0 this is `sign`.
    eps : float
        Not negative.

    Examples
    --------
    >>> direction, state = adam()(torch.zeros(2), torch.tensor([5.0, -0.1]), None)
    >>> direction, state.steps
    (tensor([ 1., -1.]), 1)

    References
    ----------
    D. Kingma and J. Ba (2015), "Adam: A Method for Stochastic Optimization", ICLR.
    """
    require(len(betas) == 2 and all(0 <= b < 1 for b in betas), "betas", betas, "two in [0, 1)")
    require(0 <= eps < math.inf, "eps", eps, "a finite number >= 0")
    b1, b2 = betas

    def direction(theta: Tensor, u: Tensor, state: State = None) -> tuple[Tensor, State]:
        old = AdamState(*(state or (torch.zeros_like(u), torch.zeros_like(u), 0)))
        t = old.steps + 1
        m = old.m.lerp(u, 1 - b1)
        v = b2 * old.v + (1 - b2) * u.square()
        # A = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
        A = (m / (1 - b1**t)) / ((v / (1 - b2**t)).sqrt() + eps)
        # 0 / 0 where eps and all gradients are zero
        return torch.where(m == 0, 0.0, A), AdamState(m, v, t)

    return direction


# --- mirrors ------------------------------------------------------------------------------------


def mirror_map(theta: Tensor, b: float) -> Tensor:
    r"""Return the gradient of the hyperbolic entropy.

    .. math:: \nabla \phi(\theta) = \operatorname{arsinh}(\theta / b), \qquad
              \phi(\theta) = \sum_i \theta_i \operatorname{arsinh}(\theta_i / b)
              - \sqrt{\theta_i^2 + b^2}

    :eq:`eq-horst-hyperbolic-entropy`.

    Parameters
    ----------
    theta : Tensor
    b : float
        Positive. Below b the map is linear, far above it a logarithm that keeps the sign.

    Examples
    --------
    >>> mirror_map(torch.tensor([0.0, 1e-3, 100.0]), b=1.0)
    tensor([0.00, 0.00, 5.30])
    """
    require(0 < b < math.inf, "b", b, "a positive finite number")
    return torch.asinh(theta / b)


def hyperbolic(b: float) -> Operator:
    r"""Return mirror descent with the hyperbolic entropy, as the difference that one step makes.

    .. math:: \theta' = b \sinh\bigl(\operatorname{arsinh}(\theta / b) - u\bigr), \qquad
              M_\theta(u) = \theta - \theta' \approx \sqrt{\theta^2 + b^2}\; u

    :eq:`eq-horst-mirror-step`. The step is exact: it takes u from the `mirror_map` of the
    parameter. So the learning rate comes first, ``compose(hyperbolic(b), scale(rate))``.

    Parameters
    ----------
    b : float
        Positive.

    Examples
    --------
    >>> theta, u = torch.tensor([3.0, 0.0]), torch.tensor([0.01, 0.01])
    >>> hyperbolic(4.0)(theta, u, None)[0] / u    # about sqrt(theta^2 + b^2)
    tensor([4.98, 4.00])
    """
    require(0 < b < math.inf, "b", b, "a positive finite number")

    def direction(theta: Tensor, u: Tensor, state: State = None) -> tuple[Tensor, State]:
        return theta - b * torch.sinh(mirror_map(theta, b) - u), state

    return direction


def exponential(alpha: float, beta: float = 0.0, clamp: float = CLAMP) -> Operator:
    r"""Return the mirror in the form that HORST uses: an addition, then a multiplication.

    .. math:: \theta_{1/2} = \theta - u, \qquad
              \theta' = \theta_{1/2}
              \exp\bigl(-\alpha\, \mathrm{sign}(\theta_{1/2})\, u - \beta\bigr), \qquad
              M_\theta(u) = \theta - \theta' \approx (1 + \alpha \lvert \theta \rvert)\, u
              + \beta \theta

    :eq:`eq-horst-exponential`. To first order it is `metric`, and `decay` with the rate
    :math:`\beta`. The multiplication keeps signs and zeros, the addition does not.

    Parameters
    ----------
    alpha : float
        Not negative.
    beta : float
        Not negative; with a learning rate :math:`\eta` it is :math:`\eta \beta` of `horst`.
    clamp : float
        Positive; larger exponents, of either sign, are set to it.

    Examples
    --------
    >>> theta, u = torch.tensor([2.0, 0.0]), torch.tensor([0.001, 0.001])
    >>> exponential(50.0)(theta, u, None)[0] / u    # about 1 + 50 |theta|
    tensor([98.49,  1.05])
    """
    require(0 <= alpha < math.inf, "alpha", alpha, "a finite number >= 0")
    require(0 <= beta < math.inf, "beta", beta, "a finite number >= 0")
    require(0 < clamp < math.inf, "clamp", clamp, "a positive finite number")

    def direction(theta: Tensor, u: Tensor, state: State = None) -> tuple[Tensor, State]:
        half = theta - u
        exponent = (-alpha * half.sign() * u - beta).clamp(-clamp, clamp)
        return theta - half * exponent.exp(), state

    return direction


# --- the paper's optimizer ----------------------------------------------------------------------


def horst(
    theta: Tensor,
    u: Tensor,
    state: State = None,
    *,
    lr: float,
    alpha: float,
    beta: float = 0.0,
    weight_decay: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    clamp: float = CLAMP,
) -> tuple[Tensor, State]:
    r"""Take one step of HORST, written as the composition that it is.

    .. math:: \theta \leftarrow \theta - \eta \lambda \theta, \qquad
              \theta \leftarrow \theta - (M \circ S)_\theta(u), \qquad
              S = \eta A, \quad M = \text{exponential}(\alpha, \eta \beta)

    :eq:`eq-horst-update`: steepest descent first (`adam`, whose size is bounded), the mirror on top
    of it. Written out these are the two lines of the paper,

    .. math:: \theta_{1/2} = \theta - \eta A(u) - \eta \lambda \theta, \qquad
              \theta' = \theta_{1/2} \exp\bigl(-\alpha\, \mathrm{sign}(\theta_{1/2})\, \eta A(u)
              - \eta \beta\bigr).

    Parameters
    ----------
    theta, u
        Parameter and gradient, of one shape; neither is changed.
    state
        What the step before returned; None at the first.
    lr, alpha, beta, weight_decay
        :math:`\eta, \alpha, \beta, \lambda`; none is negative.
    betas, eps
        Of `adam`.
    clamp
        Of `exponential`.

    Returns
    -------
    tuple
        The new parameter, and the state.

    Examples
    --------
    >>> theta, u = torch.tensor([1.0, 0.0]), torch.tensor([1.0, 1.0])
    >>> horst(theta, u, lr=0.01, alpha=10.0)[0]    # .99 e^-.1, and -.01 e^.1
    tensor([ 0.90, -0.01])

    References
    ----------
    T. Jacobs, R. Jain and R. Burkholz (2026), "HORST: Composing Optimizer Geometries for Sparse
    Transformer Training", arXiv 2605.21104.
    """
    theta = theta - lr * weight_decay * theta
    steepest_step = compose(scale(lr), adam(betas, eps))
    return descend(compose(exponential(alpha, lr * beta, clamp), steepest_step), theta, u, state)

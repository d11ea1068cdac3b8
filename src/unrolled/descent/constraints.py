r"""Descent across layers as inequality constraints: slacks, five forms, weights, sabotage.

A network that unrolls an optimization has a loss after each of its layers: :math:`f_0` is that of
its start (the embedding, before the first layer), :math:`f_L` that of its output. *Descent* asks
each layer to shrink the loss of the one before by a share :math:`\alpha_l`. The **slack** says by
how much it fails to,

.. math:: g_l = f_l - (1 - \alpha_l)\, f_{l-1}, \qquad g_l \le 0 \text{ is feasible}, \qquad
          l = 1, \dots, L,

:eq:`eq-descent-slack`: positive is violated, everywhere in this package. In the Lagrangian
:math:`f_L + \sum_l \lambda_l g_l` each loss stands in two slacks, so that its *effective weight* is

.. math:: w_l = \lambda_l - (1 - \alpha_{l+1})\, \lambda_{l+1} \quad (+ 1 \text{ at } l = L),
          \qquad \lambda_0 = \lambda_{L+1} = 0,

:eq:`eq-descent-effective-weights`. It can be negative: then training *raises* the loss of layer l,
because the next layer descends more easily from a worse start. This is descent by sabotage, which
`detect_sabotage` looks for; four of the five forms here are remedies or relatives of the exact one.

.. list-table::
   :header-rows: 1

   * - form
     - what the loss of layer l must not exceed
     - share of :math:`f_{l-1}` in it, with gradient
   * - `ExactConstraint`
     - :math:`(1 - \alpha_l) f_{l-1}`
     - :math:`1 - \alpha_l`
   * - `AnchoredConstraint`
     - the same, with a constant for :math:`f_0`
     - :math:`1 - \alpha_l`, none of :math:`f_0`
   * - `CumulativeConstraint`
     - :math:`\rho_l f_{\text{ref}}`
     - none
   * - `ProxyConstraint`
     - :math:`(1 - \alpha_l) f_{l-1}`
     - none in the primal step
   * - `RatioConstraint`
     - mean of :math:`f_l / f_{l-1}` at most :math:`1 - \alpha_l`
     - differs by sample

Shapes: L layers, B samples. Losses are means, (L + 1,), or one loss per sample, (L + 1, B); slacks
are (L,). A model without a usable :math:`f_0` passes ``losses[1:]``, and its first layer is free.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unrolled.optimization import require
from unrolled.transformer import require_count

__all__ = [
    "FORMS",
    "AnchoredConstraint",
    "Constraint",
    "CumulativeConstraint",
    "ExactConstraint",
    "ProxyConstraint",
    "RatioConstraint",
    "SabotageReport",
    "ViolationReport",
    "constant_alphas",
    "cumulative_factors",
    "detect_sabotage",
    "geometric_alphas",
    "linear_alphas",
    "stack_losses",
    "violations",
]

LayerLosses = Tensor | Sequence[Tensor | float]


def stack_losses(losses: LayerLosses) -> Tensor:
    """Return the losses of all layers as one tensor, (L + 1,) or (L + 1, B).

    Parameters
    ----------
    losses : Tensor or sequence
        L + 1 scalars, or L + 1 tensors (B,), or either of them stacked. Numbers with less than
        single precision become float32, so that a small slack is not rounded away.

    Returns
    -------
    Tensor
        With the gradients of what came in.

    Raises
    ------
    ValueError
        If there are fewer than two layers or another shape.

    Examples
    --------
    >>> stack_losses([torch.tensor(0.7), torch.tensor(0.6)])
    tensor([0.7000, 0.6000])
    """
    if not isinstance(losses, Tensor):
        losses = torch.stack([torch.as_tensor(loss) for loss in losses])
    shape, fits = tuple(losses.shape), losses.ndim in (1, 2) and len(losses) >= 2
    require(fits, "losses", shape, "of shape (L + 1,) or (L + 1, B) with L >= 1")
    return losses.to(torch.promote_types(losses.dtype, torch.float32))


# --- schedules of alpha -----------------------------------------------------------------------


def constant_alphas(alpha: float, num_layers: int) -> tuple[float, ...]:
    """Return the same share for each of L layers.

    Examples
    --------
    >>> constant_alphas(0.05, 3)
    (0.05, 0.05, 0.05)
    """
    return linear_alphas(alpha, alpha, num_layers)


def linear_alphas(first: float, last: float, num_layers: int) -> tuple[float, ...]:
    r"""Return shares that go in equal steps from the first layer to the last.

    .. math:: \alpha_l = \alpha_1 + \frac{l - 1}{L - 1} (\alpha_L - \alpha_1)

    Examples
    --------
    >>> linear_alphas(0.3, 0.1, 3)
    (0.3, 0.2, 0.1)
    """
    require_count(num_layers, "num_layers")
    shares = torch.linspace(first, last, num_layers, dtype=torch.float64).tolist()
    return _checked_alphas(shares)


def geometric_alphas(total: float, num_layers: int) -> tuple[float, ...]:
    r"""Return the constant share with which the loss falls geometrically to a share of its start.

    .. math:: 1 - \alpha = \rho_L^{1/L}, \qquad f_L \le \rho_L f_0

    Parameters
    ----------
    total : float
        :math:`\rho_L`, in (0, 1].
    num_layers : int
        L.

    Examples
    --------
    >>> geometric_alphas(0.25, 2)
    (0.5, 0.5)
    """
    require(0 < total <= 1, "total", total, "in (0, 1]")
    require_count(num_layers, "num_layers")
    return constant_alphas(1 - total ** (1 / num_layers), num_layers)


def cumulative_factors(alphas: Sequence[float]) -> tuple[float, ...]:
    r"""Return what the shares ask of each layer in units of the start.

    .. math:: \rho_l = \prod_{j=1}^{l} (1 - \alpha_j), \qquad f_l \le \rho_l f_0

    Examples
    --------
    >>> cumulative_factors([0.5, 0.2])
    (0.5, 0.4)
    """
    kept = 1 - torch.tensor(_checked_alphas(alphas), dtype=torch.float64)
    return tuple(kept.cumprod(0).tolist())


def _checked_alphas(alphas: Sequence[float]) -> tuple[float, ...]:
    shares = tuple(float(alpha) for alpha in alphas)
    allowed = "at least one number, each in [0, 1)"
    require(shares and all(0 <= alpha < 1 for alpha in shares), "alphas", alphas, allowed)
    return shares


# --- the five forms ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Constraint:
    r"""What all forms share: one inequality per layer, and its weight on every loss.

    Parameters
    ----------
    alphas : sequence of float
        The shares :math:`\alpha_1, \dots, \alpha_L`, each in [0, 1). With 0 the loss may not rise.

    Raises
    ------
    ValueError
        If a share is outside its range; from the methods, if the losses have another number of
        layers than L + 1.

    Notes
    -----
    A form says which bound the losses must keep; `ExactConstraint` has the example. ``slacks`` is
    what the dual step sees, ``primal_slacks`` what the primal step descends: they differ in the
    gradient of `ProxyConstraint` only.
    """

    alphas: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "alphas", _checked_alphas(self.alphas))

    @property
    def num_constraints(self) -> int:
        """Number of constraints, L."""
        return len(self.alphas)

    def sample_slacks(self, losses: LayerLosses) -> Tensor:
        """Return the slacks of each sample, (L, B); for means (L + 1,), of one, (L, 1)."""
        f = self._rows(losses)
        return f[1:] - self._bounds(f)

    def slacks(self, losses: LayerLosses) -> Tensor:
        """Return the slacks (L,), the mean over samples of ``sample_slacks``; <= 0 is feasible."""
        return self.sample_slacks(losses).mean(dim=1)

    def primal_slacks(self, losses: LayerLosses) -> Tensor:
        """Return the slacks (L,) whose gradient the primal step uses; the values are the same."""
        return self.slacks(losses)

    def weights(self, multipliers: Tensor, losses: LayerLosses | None = None) -> Tensor:
        r"""Return the effective weight of each loss in the Lagrangian of the primal step.

        .. math:: w_l = \lambda_l - p_{l+1} \lambda_{l+1} + [l = L]

        where :math:`p_{l+1}` is the share of :math:`f_l` that bounds the next layer and carries a
        gradient: see the table of forms.

        Parameters
        ----------
        multipliers : Tensor
            (L,).
        losses : Tensor or sequence, optional
            Needed by `RatioConstraint` alone, whose weights depend on them.

        Returns
        -------
        Tensor
            (L + 1,): the gradient of the Lagrangian in the mean losses.
        """
        require_multipliers(multipliers, self.num_constraints)
        passed = multipliers.new_tensor(self._passed_shares())  # (L,)
        w = multipliers.new_zeros(self.num_constraints + 1)
        # w_l = lambda_l - p_{l+1} lambda_{l+1} + [l = L]
        w[1:] += multipliers
        w[:-1] -= passed * multipliers
        w[-1] += 1
        return w

    def _bounds(self, f: Tensor) -> Tensor:
        """Return what layers 1 to L must not exceed, (L, B), from the losses (L + 1, B)."""
        raise NotImplementedError

    def _passed_shares(self) -> list[float]:
        """Return the weights p_1 ... p_L with which f_0 ... f_{L-1} enter the bounds."""
        raise NotImplementedError

    def _kept(self, f: Tensor) -> Tensor:
        return 1 - f.new_tensor(self.alphas)[:, None]  # (L, 1)

    def _rows(self, losses: LayerLosses) -> Tensor:
        f = stack_losses(losses)
        expected = f"losses of {self.num_constraints + 1} layers, one more than alphas"
        require(len(f) == self.num_constraints + 1, "losses", tuple(f.shape), expected)
        return f[:, None] if f.ndim == 1 else f  # (L + 1, B)


def require_multipliers(multipliers: Tensor, count: int) -> None:
    """Raise `ValueError` unless there are ``count`` multipliers, none of them negative."""
    shape = tuple(multipliers.shape)
    require(shape == (count,), "multipliers", shape, f"of shape {(count,)}, one per constraint")
    require(bool((multipliers >= 0).all()), "multipliers", multipliers.tolist(), "all >= 0")


class ExactConstraint(Constraint):
    r"""The constraint of the paper: each layer against the one before it.

    .. math:: f_l - (1 - \alpha_l) f_{l-1} \le 0

    Both losses carry a gradient. That is the Lagrangian as it is written, and it is what permits
    sabotage. :eq:`eq-descent-slack`.

    Parameters
    ----------
    alphas : sequence of float
        As in `Constraint`.

    Examples
    --------
    >>> constraint = ExactConstraint((0.5, 0.5))
    >>> losses = torch.tensor([1.0, 0.25, 0.25])
    >>> constraint.slacks(losses)                       # layer 1 descends, layer 2 does not
    tensor([-0.2500,  0.1250])
    >>> constraint.weights(torch.tensor([0.0, 4.0]))    # layer 1 is pushed up
    tensor([ 0., -2.,  5.])
    """

    def _bounds(self, f: Tensor) -> Tensor:
        return self._kept(f) * f[:-1]

    def _passed_shares(self) -> list[float]:
        return [1 - alpha for alpha in self.alphas]


@dataclass(frozen=True)
class AnchoredConstraint(Constraint):
    r"""The exact constraint from a start that cannot be moved.

    .. math:: f_1 \le (1 - \alpha_1)\, a, \qquad
              f_l \le (1 - \alpha_l) f_{l-1} \quad (l \ge 2)

    With the constant a in place of :math:`f_0`, the start cannot be made worse; the layers between
    still can, as long as the first constraint holds. :eq:`eq-descent-anchored`.

    Parameters
    ----------
    alphas : sequence of float
        As in `Constraint`.
    anchor : float
        a, positive: for C classes :math:`\ln C`, the loss of the uniform prediction.

    Examples
    --------
    >>> constraint = AnchoredConstraint((0.1, 0.1), anchor=math.log(2))
    >>> constraint.weights(torch.tensor([1.0, 1.0]))
    tensor([0.0000, 0.1000, 2.0000])
    """

    anchor: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_positive(self.anchor, "anchor")

    def _bounds(self, f: Tensor) -> Tensor:
        anchored = torch.cat((torch.full_like(f[:1], self.anchor), f[1:-1]))
        return self._kept(f) * anchored

    def _passed_shares(self) -> list[float]:
        return [0.0, *(1 - alpha for alpha in self.alphas[1:])]


@dataclass(frozen=True)
class CumulativeConstraint(Constraint):
    r"""Each layer against one fixed reference: no weight is ever negative.

    .. math:: f_l \le \rho_l\, f_{\text{ref}}, \qquad \rho_l = \prod_{j \le l} (1 - \alpha_j)

    The exact constraints imply it (with :math:`f_{\text{ref}} = f_0`), it does not imply them: a
    layer may rise as long as it stays below its line. :eq:`eq-descent-cumulative`.

    Parameters
    ----------
    alphas : sequence of float
        As in `Constraint`.
    reference : float, optional
        A constant :math:`f_{\text{ref}} > 0`. By default the present :math:`f_0`, without gradient.

    Examples
    --------
    >>> constraint = CumulativeConstraint((0.5, 0.2), reference=1.0)
    >>> constraint.slacks([9.0, 0.75, 0.5])
    tensor([0.2500, 0.1000])
    >>> constraint.weights(torch.tensor([0.0, 4.0]))
    tensor([0., 0., 5.])
    """

    reference: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reference is not None:
            _require_positive(self.reference, "reference")

    def _bounds(self, f: Tensor) -> Tensor:
        reference = f[0].detach() if self.reference is None else f.new_tensor([self.reference])
        rho = f.new_tensor(cumulative_factors(self.alphas))  # (L,)
        return (rho[:, None] * reference).expand_as(f[1:])

    def _passed_shares(self) -> list[float]:
        return [0.0] * self.num_constraints


class ProxyConstraint(ExactConstraint):
    r"""The exact constraint with a stop-gradient on the layer before, in the primal step only.

    .. math::
        \text{primal: } f_l - (1 - \alpha_l)\, \mathrm{sg}(f_{l-1}), \qquad
        \text{dual: } f_l - (1 - \alpha_l) f_{l-1}

    Layer l is pulled down and layer l - 1 is not pushed up. What the primal step descends is then
    *not* the gradient of the Lagrangian: the literature calls this a proxy constraint, and the
    pair of steps a non-zero-sum game. :eq:`eq-descent-proxy`.

    Parameters
    ----------
    alphas : sequence of float
        As in `Constraint`.

    Examples
    --------
    >>> ProxyConstraint((0.5, 0.5)).weights(torch.tensor([0.0, 4.0]))
    tensor([0., 0., 5.])

    References
    ----------
    A. Cotter et al. (2019), "Optimization with Non-Differentiable Constraints", JMLR 20.
    """

    def primal_slacks(self, losses: LayerLosses) -> Tensor:
        """Return the slacks (L,) with a gradient in layer l and none in layer l - 1."""
        f = self._rows(losses)
        return (f[1:] - self._bounds(f).detach()).mean(dim=1)

    def _passed_shares(self) -> list[float]:
        return [0.0] * self.num_constraints


@dataclass(frozen=True)
class RatioConstraint(Constraint):
    r"""The mean over samples of the ratio of two layers' losses.

    .. math:: \frac1B \sum_i \frac{f_{l,i}}{f_{l-1,i}} - (1 - \alpha_l) \le 0

    The mean of ratios is not the ratio of means: each sample counts alike, whatever its loss, and
    a sample that is solved early (a tiny :math:`f_{l-1,i}`) can dominate. :eq:`eq-descent-ratio`.

    Parameters
    ----------
    alphas : sequence of float
        As in `Constraint`.
    floor : float
        Smaller denominators count as this; positive.

    Examples
    --------
    >>> constraint = RatioConstraint((0.5,))
    >>> constraint.slacks(torch.tensor([[1.0, 2.0], [1.0, 1.0]]))
    tensor([0.2500])
    >>> constraint.slacks([1.5, 1.0])
    Traceback (most recent call last):
        ...
    ValueError: losses must be per sample, (L + 1, B), for a mean of ratios, got (2,)

    Notes
    -----
    The form that the group's earlier code for unrolled LISTA uses (arXiv 2312.15788).
    """

    floor: float = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_positive(self.floor, "floor")

    def sample_slacks(self, losses: LayerLosses) -> Tensor:
        """Return the ratio of each sample less the share that it may keep, (L, B)."""
        f = self._sample_rows(losses)
        return f[1:] / f[:-1].clamp_min(self.floor) - self._kept(f)

    def weights(self, multipliers: Tensor, losses: LayerLosses | None = None) -> Tensor:
        r"""Return the effective weight of each sample's loss.

        .. math:: w_{l,i} = \frac{\lambda_l}{f_{l-1,i}}
                  - \lambda_{l+1} \frac{f_{l+1,i}}{f_{l,i}^2} + [l = L]

        Parameters
        ----------
        multipliers : Tensor
            (L,).
        losses : Tensor or sequence
            (L + 1, B).

        Returns
        -------
        Tensor
            (L + 1, B): B times the gradient of the Lagrangian in the losses of the samples.
        """
        require_multipliers(multipliers, self.num_constraints)
        require(losses is not None, "losses", losses, "given for a mean of ratios")
        f = self._sample_rows(losses).detach()
        lam, past = multipliers.to(f)[:, None], f[:-1].clamp_min(self.floor)
        w = torch.zeros_like(f)
        # w_{l,i} = lambda_l / f_{l-1,i} - lambda_{l+1} f_{l+1,i} / f_{l,i}^2 + [l = L]
        w[1:] += lam / past
        w[:-1] -= lam * f[1:] / past.square() * (f[:-1] >= self.floor)
        w[-1] += 1
        return w

    def _sample_rows(self, losses: LayerLosses) -> Tensor:
        f = stack_losses(losses)
        shape = tuple(f.shape)
        require(f.ndim == 2, "losses", shape, "per sample, (L + 1, B), for a mean of ratios")
        return self._rows(f)


def _require_positive(value: float, argument: str) -> None:
    require(0 < value < math.inf, argument, value, "a positive finite number")


FORMS: dict[str, type[Constraint]] = {
    "exact": ExactConstraint,
    "anchored": AnchoredConstraint,
    "cumulative": CumulativeConstraint,
    "proxy": ProxyConstraint,
    "ratio": RatioConstraint,
}


# --- what a trained network does --------------------------------------------------------------


@dataclass(frozen=True)
class ViolationReport:
    """How often the layers of a network fail to descend.

    Parameters
    ----------
    slacks : Tensor
        Mean slack of each layer, (L,).
    in_mean : Tensor
        Whether the mean violates the constraint, (L,) boolean: what training sees.
    per_layer : Tensor
        Share of the samples that violate it, (L,): what a mean can hide.
    per_sample : Tensor
        Share of the layers that a sample violates, (B,).
    """

    slacks: Tensor
    in_mean: Tensor
    per_layer: Tensor
    per_sample: Tensor

    @property
    def rate(self) -> float:
        """Share of all layers of all samples."""
        return self.per_layer.mean().item()


@torch.no_grad()
def violations(
    losses: LayerLosses, constraint: Constraint, *, tolerance: float = 0.0
) -> ViolationReport:
    r"""Return how often the constraint is violated: in the mean, per layer, per sample.

    .. math:: v_l = \frac1B \sum_i \bigl[g_{l,i} > \epsilon\bigr]

    :eq:`eq-descent-violation-rate`.

    Parameters
    ----------
    losses : Tensor or sequence
        One loss per sample, (L + 1, B).
    constraint : Constraint
        ``ExactConstraint(constant_alphas(0.0, L))`` counts the layers at which a loss rises.
    tolerance : float
        :math:`\epsilon`, not negative.

    Returns
    -------
    ViolationReport

    Examples
    --------
    The mean falls, and yet one sample of two gets worse:

    >>> report = violations(torch.tensor([[2.0, 0.5], [0.5, 1.0]]), ExactConstraint((0.0,)))
    >>> report.in_mean.tolist(), report.per_layer.tolist(), report.per_sample.tolist()
    ([False], [0.5], [0.0, 1.0])
    """
    f = stack_losses(losses)
    require(f.ndim == 2, "losses", tuple(f.shape), "one loss per sample, (L + 1, B)")
    require(tolerance >= 0, "tolerance", tolerance, "at least 0")
    g = constraint.sample_slacks(f)  # (L, B)
    violated = (g > tolerance).to(f)
    mean = g.mean(dim=1)
    return ViolationReport(mean, mean > tolerance, violated.mean(dim=1), violated.mean(dim=0))


@dataclass(frozen=True)
class SabotageReport:
    """What `detect_sabotage` found, and why.

    ``raised`` are the layers whose loss is above the reference, ``holding`` those after which the
    next layer descends as it must, ``pushed`` those with a negative effective weight (``weights``).
    ``sabotaged`` are the layers that show all three, and ``reasons`` says it in words. The report
    is true in a condition when there is one.
    """

    sabotaged: tuple[int, ...]
    raised: tuple[int, ...]
    holding: tuple[int, ...]
    pushed: tuple[int, ...]
    weights: tuple[float, ...]
    reasons: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.sabotaged)


@torch.no_grad()
def detect_sabotage(
    losses: LayerLosses,
    constraint: Constraint,
    multipliers: Tensor,
    *,
    reference: float | Sequence[float],
    margin: float = 0.1,
    tolerance: float = 0.01,
) -> SabotageReport:
    r"""Look for layers that were made worse so that the next one descends.

    Layer l < L is sabotaged if its loss lies above what it would be without the constraint, the
    next layer descends from it, and training has pushed it there:

    .. math:: f_l > (1 + \text{margin})\, r_l, \qquad
              \frac{f_{l+1}}{f_l} \le 1 - \alpha_{l+1} + \text{tolerance}, \qquad w_l < 0.

    Parameters
    ----------
    losses : Tensor or sequence
        (L + 1,) or (L + 1, B).
    constraint : Constraint
    multipliers : Tensor
        (L,): the present ones, or the largest of the run, since the pressure may have gone.
    reference : float or sequence of float
        :math:`r_l`: one number, such as :math:`\ln C` for C classes, or one per layer, such as
        the losses before training.
    margin, tolerance : float
        Not negative.

    Returns
    -------
    SabotageReport

    Examples
    --------
    >>> constraint = ExactConstraint(constant_alphas(0.1, 2))
    >>> losses, multipliers = [2.8, 1.9, 0.6], torch.tensor([0.8, 2.0])
    >>> report = detect_sabotage(losses, constraint, multipliers, reference=math.log(2))
    >>> report.sabotaged, report.pushed
    ((0, 1), (0, 1))
    >>> bool(detect_sabotage([0.7, 0.6, 0.5], constraint, multipliers, reference=math.log(2)))
    False

    Notes
    -----
    Our definition, :eq:`eq-descent-sabotage`. Without a constraint (all multipliers 0) a loss may
    rise in the early layers too; nothing has pushed it, and it is no sabotage.
    """
    for name, value in (("margin", margin), ("tolerance", tolerance)):
        require(0 <= value < math.inf, name, value, "finite and at least 0")
    f = constraint._rows(losses).mean(dim=1)  # (L + 1,)
    limits = (1 + margin) * _references(reference, f)
    w = constraint.weights(multipliers, losses)
    w = w.mean(dim=1) if w.ndim == 2 else w
    kept = 1 - f.new_tensor(constraint.alphas) + tolerance
    raised, holding, pushed = f[:-1] > limits[:-1], f[1:] <= kept * f[:-1], w[:-1] < 0
    sabotaged = _indices(raised & holding & pushed)
    reasons = tuple(
        f"layer {layer}: loss {f[layer]:.3g} is above {limits[layer]:.3g}, layer {layer + 1} "
        f"descends to {f[layer + 1]:.3g}, and the effective weight is {w[layer]:.3g}"
        for layer in sabotaged
    )
    found = (sabotaged, _indices(raised), _indices(holding), _indices(pushed))
    return SabotageReport(*found, tuple(w.tolist()), reasons)


def _references(reference: float | Sequence[float], f: Tensor) -> Tensor:
    levels = torch.as_tensor(reference, dtype=f.dtype, device=f.device)
    expected = f"one number or {len(f)}, one per layer"
    require(levels.shape in ((), f.shape), "reference", reference, expected)
    return levels.expand_as(f)


def _indices(mask: Tensor) -> tuple[int, ...]:
    return tuple(mask.nonzero().flatten().tolist())

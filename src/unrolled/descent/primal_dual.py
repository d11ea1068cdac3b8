r"""Primal-dual training: the Lagrangian goes down in the weights and up in the multipliers.

To minimise an objective f under constraints :math:`g_l \le 0`, give each constraint a price
:math:`\lambda_l \ge 0`. The weights descend the Lagrangian, the prices ascend it,

.. math::
    \mathcal{L}(\theta, \lambda) = f(\theta) + \sum_l \lambda_l\, g_l(\theta), \qquad
    \theta \leftarrow \theta - \tau\, \nabla_\theta \mathcal{L}, \qquad
    \lambda \leftarrow [\lambda + \eta\, g(\theta)]_+ ,

:eq:`eq-descent-dual-ascent`: a violated constraint gets dearer, a kept one cheaper. For layerwise
descent, f is the loss of the last layer and g are the slacks of a
`unrolled.descent.constraints.Constraint`.

`Multipliers` knows objectives and slacks alone, `PrimalDual` knows the losses of layers. By hand
the order of the lines is the order of the updates. Both at the present weights (*simultaneous*):

.. code-block:: python

    dual = PrimalDual(ExactConstraint(constant_alphas(0.05, 6)), step_size=0.1)
    for batch in batches:
        losses = layer_losses(model, batch)          # (L + 1,) or (L + 1, B)
        dual.lagrangian(losses).backward()
        optimizer.step()
        optimizer.zero_grad()
        report = dual.update(losses)

With ``dual.update(layer_losses(model, batch))`` in the last line the prices see the new weights
(*alternating*, at the cost of another forward pass); with ``dual.update(losses)`` before
``dual.lagrangian(losses)`` the weights see the new prices. Inside `unrolled.training.fit`, which
accumulates gradients, runs in several processes and resumes, `PrimalDual.hooks` does the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from unrolled.descent.constraints import (
    Constraint,
    LayerLosses,
    stack_losses,
)
from unrolled.optimization import require
from unrolled.training import FitResult, StepReport
from unrolled.transformer import require_count

__all__ = [
    "DualCurves",
    "DualReport",
    "Multipliers",
    "PrimalDual",
    "complementarity_gap",
    "dual_curves",
    "dual_gradient",
    "dual_step",
    "lagrangian",
]


# --- the formulas -----------------------------------------------------------------------------


def lagrangian(
    objective: Tensor, slacks: Tensor, multipliers: Tensor, relaxation_cost: float | None = None
) -> Tensor:
    r"""Return the Lagrangian, plain or resilient.

    .. math::
        \mathcal{L} = f + \sum_l \lambda_l g_l
        \qquad\text{or}\qquad
        \mathcal{L}_c = f + \sum_l \lambda_l g_l - \frac{1}{2c} \sum_l \lambda_l^2

    :eq:`eq-descent-lagrangian`, :eq:`eq-descent-resilient`. The second is derived at
    `dual_gradient`.

    Parameters
    ----------
    objective : Tensor
        f, a scalar.
    slacks, multipliers : Tensor
        (L,).
    relaxation_cost : float, optional
        c; None for the plain form.

    Returns
    -------
    Tensor
        A scalar. Its gradient in the weights is the same for both forms.

    Examples
    --------
    >>> f, g, lam = torch.tensor(1.0), torch.tensor([0.5, -0.5]), torch.tensor([2.0, 1.0])
    >>> lagrangian(f, g, lam)
    tensor(1.5000)
    >>> lagrangian(f, g, lam, relaxation_cost=10.0)
    tensor(1.2500)
    """
    value = objective + (multipliers * slacks).sum()
    if relaxation_cost is None:
        return value
    return value - multipliers.square().sum() / (2 * relaxation_cost)


def dual_gradient(
    slacks: Tensor, multipliers: Tensor, relaxation_cost: float | None = None
) -> Tensor:
    r"""Return the gradient of the Lagrangian in the multipliers: the slacks, or a leaky form.

    The resilient problem may relax each constraint by :math:`u_l \ge 0`, at a quadratic cost,

    .. math:: \min_{\theta,\, u \ge 0}\; f(\theta) + \frac c2 \lVert u \rVert^2
              \quad\text{subject to}\quad g_l(\theta) \le u_l .

    Its Lagrangian :math:`f + \frac c2 \lVert u \rVert^2 + \sum_l \lambda_l (g_l - u_l)` is least
    in u where :math:`c\, u_l = \lambda_l`. With :math:`u = \lambda / c` put in,

    .. math:: \mathcal{L}_c = f + \sum_l \lambda_l g_l - \frac{\lVert \lambda \rVert^2}{2 c},
              \qquad \frac{\partial \mathcal{L}_c}{\partial \lambda_l} = g_l - \frac{\lambda_l}{c}.

    The ascent leaks: it rests where :math:`g_l = \lambda_l / c = u_l`, so a constraint that cannot
    be kept has a finite price, and is violated by that price over c. :eq:`eq-descent-resilient`.

    Parameters
    ----------
    slacks, multipliers : Tensor
        (L,).
    relaxation_cost : float, optional
        c. Infinitely dear relaxations are the plain form, None.

    Returns
    -------
    Tensor
        (L,).

    Examples
    --------
    >>> dual_gradient(torch.tensor([0.5]), torch.tensor([2.0]), relaxation_cost=4.0)
    tensor([0.])

    References
    ----------
    I. Hounie, A. Ribeiro, L. Chamon (2023), "Resilient Constrained Learning", arXiv 2306.02426.
    """
    # dL/dlambda = g   or   g - lambda / c
    return slacks if relaxation_cost is None else slacks - multipliers / relaxation_cost


def dual_step(
    multipliers: Tensor, slacks: Tensor, step_size: float, relaxation_cost: float | None = None
) -> Tensor:
    r"""Return the multipliers after one step of projected ascent.

    .. math:: \lambda \leftarrow \Bigl[\lambda
              + \eta\, \Bigl(g - \frac{\lambda}{c}\Bigr)\Bigr]_+

    without :math:`\lambda / c` in the plain form. :eq:`eq-descent-dual-ascent`.

    Parameters
    ----------
    multipliers, slacks : Tensor
        (L,).
    step_size : float
        :math:`\eta`, positive.
    relaxation_cost : float, optional
        c, see `dual_gradient`.

    Returns
    -------
    Tensor
        (L,), none negative.

    Examples
    --------
    >>> dual_step(torch.tensor([0.1, 0.1]), torch.tensor([1.0, -2.0]), step_size=0.1)
    tensor([0.2000, 0.0000])
    """
    # [lambda + eta dL/dlambda]_+
    ascended = multipliers + step_size * dual_gradient(slacks, multipliers, relaxation_cost)
    return ascended.clamp_min(0)


def complementarity_gap(
    slacks: Tensor, multipliers: Tensor, relaxation_cost: float | None = None
) -> Tensor:
    r"""Return the objective less the Lagrangian: how far from complementary the prices are.

    .. math:: \Delta = -\sum_l \lambda_l \frac{\partial \mathcal{L}}{\partial \lambda_l}

    that is :math:`-\sum_l \lambda_l g_l`, or :math:`\sum_l \lambda_l (\lambda_l / c - g_l)`.
    If the weights minimise the Lagrangian and are feasible, it is the duality gap, and at the
    saddle point it is 0. During training neither is sure: it is negative where priced constraints
    are violated. :eq:`eq-descent-gap`.

    Examples
    --------
    >>> complementarity_gap(torch.tensor([0.0, -0.5]), torch.tensor([3.0, 2.0]))
    tensor(1.)
    """
    # - lambda . dL/dlambda
    return -(multipliers * dual_gradient(slacks, multipliers, relaxation_cost)).sum()


# --- multipliers with a memory ----------------------------------------------------------------


class Multipliers(nn.Module):
    r"""The multipliers of a constrained problem, and when and how far they move.

    Parameters
    ----------
    num_constraints : int
        L, one multiplier each.
    step_size : float
        :math:`\eta`, positive; with a relaxation at most `relaxation_cost`.
    relaxation_cost : float, optional
        c of the resilient form, see `dual_gradient`; None for the plain one.
    every : int
        The dual period k: `update` gathers k slacks and makes one step with their mean. The
        multipliers then move k times more slowly in primal steps; the mean is less noisy.
    initial : float
        Where all multipliers start, not negative.

    Raises
    ------
    ValueError
        If an argument is outside its range.

    Attributes
    ----------
    values : Tensor
        The multipliers, (L,), a buffer: never negative, without gradient.

    Examples
    --------
    Minimise :math:`x^2` where :math:`x \ge 1`: the solution is x = 1 with the price 2.

    >>> x, dual = torch.tensor([0.0], requires_grad=True), Multipliers(1, step_size=0.5)
    >>> for _ in range(100):
    ...     f, g = x.square().sum(), 1 - x
    ...     (gradient,) = torch.autograd.grad(dual.lagrangian(f, g), x)
    ...     x.data -= 0.2 * gradient
    ...     _ = dual.update(g)
    >>> x.item(), dual.values.item()
    (1.0000, 2.0000)

    Notes
    -----
    The state dict holds the multipliers, the open window and the settings, so that a run that
    resumes from a checkpoint continues exactly, and one with other settings is refused.
    """

    values: Tensor
    gathered: Tensor
    count: Tensor

    def __init__(
        self,
        num_constraints: int,
        step_size: float,
        *,
        relaxation_cost: float | None = None,
        every: int = 1,
        initial: float = 0.0,
    ) -> None:
        super().__init__()
        require_count(num_constraints, "num_constraints")
        require_count(every, "every")
        require(0 <= initial < math.inf, "initial", initial, "finite and at least 0")
        cost = math.inf if relaxation_cost is None else relaxation_cost
        require(cost > 0, "relaxation_cost", relaxation_cost, "None or positive")
        allowed = "positive, finite, and at most relaxation_cost"
        require(0 < step_size < math.inf and step_size <= cost, "step_size", step_size, allowed)
        self.step_size, self.relaxation_cost, self.every = step_size, relaxation_cost, every
        self.register_buffer("values", torch.full((num_constraints,), float(initial)))
        self.register_buffer("gathered", torch.zeros(num_constraints))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def lagrangian(self, objective: Tensor, slacks: Tensor) -> Tensor:
        """Return the Lagrangian at the present multipliers; see `lagrangian`."""
        self._check(slacks)
        return lagrangian(objective, slacks, self.values.to(slacks), self.relaxation_cost)

    def update(self, slacks: Tensor) -> bool:
        """Take note of the slacks (L,) of a primal step; return whether a dual step followed.

        Raises
        ------
        FloatingPointError
            If a slack is NaN or infinite; the multipliers are as before.
        """
        self._check(slacks)
        self.gathered += slacks.detach().to(self.gathered)
        self.count += 1
        if self.count < self.every:
            return False
        mean = self.gathered / self.count
        self.gathered.zero_()
        self.count.zero_()
        self.ascend(mean)
        return True

    @torch.no_grad()
    def ascend(self, slacks: Tensor) -> None:
        """Make a dual step with the slacks (L,) now, whatever the window holds."""
        self._check(slacks)
        if not slacks.isfinite().all():
            raise FloatingPointError(f"slacks are not finite: {slacks.tolist()}")
        g = slacks.to(self.values)
        self.values.copy_(dual_step(self.values, g, self.step_size, self.relaxation_cost))

    @property
    def relaxations(self) -> Tensor:
        r"""What the prices allow the slacks to be, :math:`u = \lambda / c`, (L,); 0 if plain."""
        if self.relaxation_cost is None:
            return torch.zeros_like(self.values)
        return self.values / self.relaxation_cost

    def get_extra_state(self) -> dict[str, Any]:
        """Return the settings, for the state dict."""
        names = ("step_size", "relaxation_cost", "every")
        return {name: getattr(self, name) for name in names}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Compare the settings of a state dict with the present ones."""
        _require_same(state, self.get_extra_state())

    def _check(self, slacks: Tensor) -> None:
        shape, expected = tuple(slacks.shape), tuple(self.values.shape)
        require(shape == expected, "slacks", shape, f"of shape {expected}, one per constraint")


def _require_same(saved: dict[str, Any], now: dict[str, Any]) -> None:
    for name, value in now.items():
        allowed = f"{saved[name]!r}, with which the state was saved"
        require(saved[name] == value, name, value, allowed)


# --- layerwise descent ------------------------------------------------------------------------


@dataclass(frozen=True)
class DualReport:
    r"""What one primal-dual step saw, at the weights and multipliers before it.

    Parameters
    ----------
    losses : Tensor
        Mean loss of each layer, (L + 1,).
    slacks, multipliers : Tensor
        (L,). The multipliers are those of `lagrangian`, before the dual step.
    lagrangian : float
        :math:`f_L + \sum_l \lambda_l g_l`, less :math:`\lVert\lambda\rVert^2 / 2c` if resilient.
    gap : float
        See `complementarity_gap`.
    ascended : bool
        Whether the multipliers have moved since.
    """

    losses: Tensor
    slacks: Tensor
    multipliers: Tensor
    lagrangian: float
    gap: float
    ascended: bool


class PrimalDual(nn.Module):
    r"""Layerwise descent by multipliers: one object for a loop by hand and for `fit`.

    Parameters
    ----------
    constraint : Constraint
        The form and its shares; see `unrolled.descent.constraints`.
    step_size, relaxation_cost, every, initial
        As in `Multipliers`.

    Attributes
    ----------
    dual : Multipliers

    Examples
    --------
    >>> from unrolled.descent.constraints import ExactConstraint
    >>> dual = PrimalDual(ExactConstraint((0.5, 0.5)), step_size=1.0)
    >>> losses = torch.tensor([1.0, 0.25, 0.25], requires_grad=True)
    >>> report = dual.update(losses)             # the second layer does not descend enough
    >>> dual.multipliers
    tensor([0.0000, 0.1250])
    >>> dual.lagrangian(losses).backward()
    >>> losses.grad                              # its effective weights
    tensor([ 0.0000, -0.0625,  1.1250])

    Notes
    -----
    The objective is the mean loss of the last layer. With all multipliers at 0 the gradient is
    that of empirical risk minimisation (ERM).
    """

    def __init__(
        self,
        constraint: Constraint,
        step_size: float,
        *,
        relaxation_cost: float | None = None,
        every: int = 1,
        initial: float = 0.0,
    ) -> None:
        super().__init__()
        if not isinstance(constraint, Constraint):
            raise TypeError(f"constraint must be a Constraint, got {type(constraint).__name__}")
        self.constraint = constraint
        self.dual = Multipliers(
            constraint.num_constraints,
            step_size,
            relaxation_cost=relaxation_cost,
            every=every,
            initial=initial,
        )

    @property
    def multipliers(self) -> Tensor:
        """The present multipliers, (L,)."""
        return self.dual.values

    def lagrangian(self, losses: LayerLosses) -> Tensor:
        """Return what the primal step descends, a scalar.

        Parameters
        ----------
        losses : Tensor or sequence
            (L + 1,) or (L + 1, B), with gradients.
        """
        f = stack_losses(losses)
        return self.dual.lagrangian(f[-1].mean(), self.constraint.primal_slacks(f))

    @torch.no_grad()
    def update(self, losses: LayerLosses) -> DualReport:
        """Take note of the losses of a step, move the multipliers if it is time, and report.

        Parameters
        ----------
        losses : Tensor or sequence
            (L + 1,) or (L + 1, B), of the whole batch. A batch that is accumulated by hand in k
            equal pieces may come piece by piece with ``every=k``, since a mean of their slacks
            is the slack of the batch.

        Notes
        -----
        With several processes under `torch.distributed` all of them call it, each with the losses
        of its own, equally many rows. Losses and slacks are averaged over all, so that every
        process reports the same and holds the same multipliers.
        """
        f = stack_losses(losses)
        means = f if f.ndim == 1 else f.mean(dim=1)
        seen = (f[-1].mean(), means, self.constraint.slacks(f))
        objective, means, slacks = map(_mean_over_processes, seen)
        multipliers = self.multipliers.clone()
        value = self.dual.lagrangian(objective, slacks).item()
        gap = self._gap(slacks)
        return DualReport(means, slacks, multipliers, value, gap, self.dual.update(slacks))

    def hooks(
        self,
        layer_losses: Callable[[nn.Module, Any], LayerLosses],
        *,
        measure: Callable[[int], LayerLosses] | None = None,
    ) -> dict[str, Any]:
        """Return the arguments with which `unrolled.training.fit` trains under the constraint.

        They are ``loss_fn``, ``on_step`` and ``stateful``:

        .. code-block:: python

            fit(model, batch_at, training=training, optimizer=optimizer,
                **dual.hooks(layer_losses))

        Parameters
        ----------
        layer_losses : callable
            Maps the model and some rows of a batch to the losses of their layers.
        measure : callable, optional
            Where the dual step takes its slacks from, if not from the batches of the primal steps:
            called with the step, after the update of the weights, when a dual step is due (after
            every `every` steps). It returns layer losses. With
            `unrolled.descent.readout.collect_losses`,

            ``lambda step: collect_losses(model, layer_losses, [batch_at(step)])`` is the
            alternating update, and ``lambda step: collect_losses(model, layer_losses, full_set)``
            with the batches of an epoch in `every` the dual step on the full training set. With
            several processes each calls it, and the slacks are averaged over all.

        Returns
        -------
        dict
            Combine its ``on_step`` and ``stateful`` with your own by hand.

        Notes
        -----
        Without `measure` the slacks are those of the whole batch also with accumulation and in
        several processes: every form's slack is a mean over samples, and ``fit`` averages the
        slacks of the parts as it averages their losses. Rows must have equal weight, as ``fit``
        says. The curves are in the result's diagnostics: `dual_curves` reads them.
        """

        def loss_fn(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
            f = stack_losses(layer_losses(model, batch))
            return self.lagrangian(f), self._metrics(f)

        def on_step(report: StepReport) -> dict[str, Any]:
            return self._after_step(report, measure)

        return {"loss_fn": loss_fn, "on_step": on_step, "stateful": {"primal_dual": self}}

    def get_extra_state(self) -> dict[str, Any]:
        """Return the constraint as text, for the state dict."""
        return {"constraint": repr(self.constraint)}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Compare the constraint of a state dict with the present one."""
        _require_same(state, self.get_extra_state())

    def _gap(self, slacks: Tensor) -> float:
        multipliers = self.multipliers.to(slacks)
        return complementarity_gap(slacks, multipliers, self.dual.relaxation_cost).item()

    @torch.no_grad()
    def _metrics(self, f: Tensor) -> dict[str, Tensor]:
        means = f if f.ndim == 1 else f.mean(dim=1)
        slacks = self.constraint.slacks(f)
        named = {f"loss_{layer}": value for layer, value in enumerate(means)}
        return named | {f"slack_{layer}": value for layer, value in enumerate(slacks, start=1)}

    def _after_step(
        self, report: StepReport, measure: Callable[[int], LayerLosses] | None
    ) -> dict[str, Any]:
        layers = range(1, self.constraint.num_constraints + 1)
        values = [report.metrics[f"slack_{layer}"] for layer in layers]
        slacks = torch.tensor(values, dtype=torch.float64)
        seen = {"multipliers": self.multipliers.tolist(), "gap": self._gap(slacks)}
        # A step that fp16 skipped for an overflow moves neither weights nor prices.
        if "skipped_step" in report.metrics:
            return seen
        if measure is None:
            self.dual.update(slacks)
        elif (report.step + 1) % self.dual.every == 0:
            measured = self.constraint.slacks(measure(report.step))
            self.dual.ascend(_mean_over_processes(measured))
        return seen


def _mean_over_processes(value: Tensor) -> Tensor:
    """Return the mean of a tensor that every process has one of; itself if there is one process."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return value
    processes = distributed.get_world_size()
    if processes == 1:
        return value
    total = value.detach().double()
    distributed.all_reduce(total)
    return (total / processes).to(value.dtype)


class DualCurves(NamedTuple):
    """The curves of a constrained run over its T steps, in float64.

    ``losses`` (T, L + 1) and ``slacks`` (T, L) of the batches, ``multipliers`` (T, L) and ``gap``
    (T,): what each primal step saw, before its updates.
    """

    losses: Tensor
    slacks: Tensor
    multipliers: Tensor
    gap: Tensor


def dual_curves(result: FitResult) -> DualCurves:
    """Return the curves that `PrimalDual.hooks` has left in the result of a `fit`.

    Raises
    ------
    ValueError
        If the run had no multipliers.
    """
    found = result.diagnostics
    require("multipliers" in found, "result", sorted(found), "of a run with PrimalDual.hooks")
    count = len(found["multipliers"][0])
    losses = [found[f"loss_{layer}"] for layer in range(count + 1)]
    slacks = [found[f"slack_{layer}"] for layer in range(1, count + 1)]
    columns = (_float64(losses).T, _float64(slacks).T)
    return DualCurves(*columns, _float64(found["multipliers"]), _float64(found["gap"]))


def _float64(values: list) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)

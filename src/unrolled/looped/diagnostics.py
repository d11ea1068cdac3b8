r"""What goes wrong in a loop, measured: residual norms, gradient norms, oscillation, collapse.

Nothing here prints or trains; each function takes states, gradients or curves and returns numbers.
The residual norm and the gradient norms per loop and block are those that Fu et al. (2026) log in
their diagnosis runs. They show oscillation and collapse as curves and define neither; the
definitions here, :eq:`eq-looped-oscillation` and :eq:`eq-looped-collapse`, are ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

from unrolled.transformer import require_choice

__all__ = [
    "CollapseReport",
    "GradientCosine",
    "GradientProbe",
    "gradient_oscillation",
    "has_collapsed",
    "layer_residual_norms",
    "residual_norms",
    "unigram_loss",
]


def residual_norms(loop_states: Sequence[Tensor]) -> Tensor:
    r"""Return the mean length of a token's state, for each loop.

    .. math:: r_k = \frac{1}{BN} \sum_{b, n} \bigl\lVert x^{(k)}_{bn} \bigr\rVert_2

    Parameters
    ----------
    loop_states : sequence of K tensors (B, N, d)
        The streams at the end of each loop, before the norm, as a `LoopedTransformer` returns them.

    Returns
    -------
    Tensor
        (K,), in float32, without gradient.

    Examples
    --------
    >>> residual_norms([torch.ones(1, 2, 4), 3 * torch.ones(1, 2, 4)])
    tensor([2., 6.])

    Notes
    -----
    Derived at :eq:`eq-looped-residual-norm`.
    """
    norms = [state.detach().float().norm(dim=-1).mean() for state in loop_states]
    return torch.stack(norms)


def layer_residual_norms(layer_states: Sequence[Sequence[Tensor]]) -> Tensor:
    """Return the mean length of a token's state after each block of each loop.

    Parameters
    ----------
    layer_states : K sequences of L tensors (B, N, d)
        As a `LoopedTransformer` returns them.

    Returns
    -------
    Tensor
        (K, L); its last column is `residual_norms`.

    Examples
    --------
    >>> layer_residual_norms([[torch.ones(1, 1, 4), 2 * torch.ones(1, 1, 4)]])
    tensor([[2., 4.]])
    """
    return torch.stack([residual_norms(states) for states in layer_states])


class GradientProbe:
    r"""Gradient norm per loop and block, by backward hooks.

    .. math:: g_{kl} = \Bigl\lVert \frac{\partial \mathcal{L}}{\partial x^{(k)}_l} \Bigr\rVert_F

    where :math:`x^{(k)}_l` is the whole stream (B, N, d) after block l in loop k; or, with
    ``at="input"``, before it. "output" counts every use of the stream: by the next block, as the
    state of the next loop, and by the loss. "input" counts its use by that block in that loop
    alone, which matters where all loops start from the same embedding.

    Parameters
    ----------
    model : LoopedTransformer or Transformer
        A plain model has one loop. Not a compiled one: its hooks do not run.
    at : {"output", "input"}

    Examples
    --------
    >>> from unrolled.looped import LoopedTransformer
    >>> from unrolled.transformer import TransformerConfig
    >>> config = TransformerConfig(num_layers=2, hidden_size=16, num_heads=2, zero_output=False)
    >>> model = LoopedTransformer(config, num_loops=3, injection="original")
    >>> tokens = torch.tensor([[1, 2, 3, 4]])
    >>> with GradientProbe(model) as probe:
    ...     model.loss(tokens, tokens).backward()
    >>> probe.norms().shape
    torch.Size([3, 2])

    Notes
    -----
    The probe remembers the last forward pass that built a graph; with gradient accumulation, the
    last micro-batch. It works with ``checkpoint_loops``.
    """

    def __init__(self, model: nn.Module, at: str = "output") -> None:
        require_choice(at, "at", ("output", "input"))
        self.model = model
        self.at = at
        self._norms: list[list[Tensor | None]] = []
        self._reading = False
        self._handles: list = []

    def __enter__(self) -> GradientProbe:
        self._handles = [
            self.model.register_forward_pre_hook(self._begin),
            self.model.register_forward_hook(self._end, always_call=True),
        ]
        for layer, block in enumerate(self.model.blocks):
            self._handles.append(self._watch(layer, block))
        return self

    def __exit__(self, *exception) -> None:
        for handle in self._handles:
            handle.remove()

    def norms(self) -> Tensor:
        """Return the gradient norms of the last backward pass, (K, L).

        Raises
        ------
        RuntimeError
            If no gradient has come by.
        """
        norms = [norm for row in self._norms for norm in row]
        if not norms or all(norm is None for norm in norms):
            raise RuntimeError("no gradient has come by: run a backward pass inside the probe")
        missing = torch.zeros(())  # the loss does not depend on that state
        return torch.stack([missing if norm is None else norm.cpu() for norm in norms]).view(
            len(self._norms), -1
        )

    def _begin(self, module: nn.Module, inputs: tuple) -> None:
        self._reading = torch.is_grad_enabled()
        if self._reading:
            self._norms = []

    def _end(self, module: nn.Module, inputs: tuple, output: object) -> None:
        # Blocks that run later, in a checkpoint's second forward, are not counted.
        self._reading = False

    def _watch(self, layer: int, block: nn.Module):
        if self.at == "output":
            return block.register_forward_hook(
                lambda module, inputs, output: self._record(layer, output)
            )

        def before(module: nn.Module, inputs: tuple) -> tuple:
            # A view of its own for each use: the embedding itself enters every loop.
            x = inputs[0].view_as(inputs[0])
            self._record(layer, x)
            return (x, *inputs[1:])

        return block.register_forward_pre_hook(before)

    def _record(self, layer: int, x: Tensor) -> None:
        if not (self._reading and x.requires_grad):
            return
        if layer == 0:
            self._norms.append([None] * len(self.model.blocks))
        row = self._norms[-1]

        def keep(grad: Tensor) -> None:
            row[layer] = grad.detach().float().norm()

        x.register_hook(keep)


def gradient_oscillation(norms: Iterable[float], window: int | None = None) -> float:
    r"""Return how much the gradient norm swings: its coefficient of variation.

    .. math:: \omega = \frac{\mathrm{std}(g_{t-w+1}, \dots, g_t)}
                            {\mathrm{mean}(g_{t-w+1}, \dots, g_t)}

    Parameters
    ----------
    norms : iterable of float
        Gradient norms by step, taken before clipping.
    window : int, optional
        w, the number of last steps that count; by default all.

    Returns
    -------
    float
        0 for a constant norm; infinite if a norm is not finite.

    Examples
    --------
    >>> gradient_oscillation([1.0, 3.0, 1.0, 3.0])
    0.5

    Notes
    -----
    Stated at :eq:`eq-looped-oscillation`. See `GradientCosine` for the direction.
    """
    values = np.asarray(list(norms), dtype=float)
    if window is not None and window < 2:
        raise ValueError(f"window must be None or at least 2, got {window!r}")
    if len(values) < 2:
        raise ValueError(f"norms must hold at least 2 steps, got {len(values)}")
    values = values if window is None else values[-window:]
    if not np.isfinite(values).all():
        return math.inf
    mean = values.mean()
    return float(values.std() / mean) if mean > 0 else 0.0


class GradientCosine:
    r"""Cosine between the gradients of successive steps.

    .. math:: c_t = \frac{\langle g_t, g_{t-1} \rangle}{\lVert g_t \rVert\, \lVert g_{t-1} \rVert}

    It is near 1 while the gradient keeps its direction, near 0 when successive gradients have
    nothing in common, and negative when they undo each other: oscillation.

    Parameters
    ----------
    model : Module
        The gradients of all its parameters, as one vector.

    Examples
    --------
    >>> weight = nn.Linear(2, 1, bias=False)
    >>> cosine = GradientCosine(weight)
    >>> for gradient in ([[1.0, 0.0]], [[1.0, 1.0]], [[-1.0, -1.0]]):
    ...     weight.weight.grad = torch.tensor(gradient)
    ...     _ = cosine.update()
    >>> [round(value, 2) for value in cosine.values]
    [0.71, -1.0]

    Notes
    -----
    Stated at :eq:`eq-looped-oscillation`. It keeps a copy of the gradient of the step before.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.values: list[float] = []
        self._previous: Tensor | None = None

    def update(self) -> float | None:
        """Read the present gradient; return its cosine with the last one, None at first."""
        gradient = torch.cat(
            [
                (torch.zeros_like(p) if p.grad is None else p.grad).detach().float().flatten()
                for p in self.model.parameters()
            ]
        )
        previous, self._previous = self._previous, gradient
        if previous is None:
            return None
        self.values.append(torch.cosine_similarity(gradient, previous, dim=0).item())
        return self.values[-1]

    def mean(self, window: int | None = None) -> float:
        """Return the mean cosine over the last ``window`` steps, by default over all."""
        if not self.values:
            raise ValueError("values must hold at least one cosine: update twice first")
        return float(np.mean(self.values if window is None else self.values[-window:]))

    def state_dict(self) -> dict[str, Any]:
        """Return what a run that goes on must know."""
        return {"values": self.values, "previous": self._previous}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the state of a run that was cut off."""
        self.values, previous = list(state["values"]), state["previous"]
        device = next(self.model.parameters()).device
        self._previous = None if previous is None else previous.to(device)


@dataclass(frozen=True)
class CollapseReport:
    """What `has_collapsed` found, and why.

    ``plateau`` and ``exploding`` are the two symptoms, ``collapsed`` is both together (or a loss or
    a norm that is not finite). ``final_loss`` and ``growth`` are the numbers behind them, and
    ``reasons`` says it in words. The report is true in a condition when ``collapsed``.
    """

    collapsed: bool
    plateau: bool
    exploding: bool
    final_loss: float
    reference_loss: float
    growth: float
    reasons: tuple[str, ...]

    def __bool__(self) -> bool:
        return self.collapsed


def has_collapsed(
    losses: Sequence[float],
    norms: Sequence[float],
    *,
    reference_loss: float,
    margin: float = 0.05,
    tail: float = 0.1,
    min_growth: float = 0.05,
) -> CollapseReport:
    r"""Decide whether a training run has collapsed, by two symptoms that must both hold.

    **Plateau**: the loss at the end, the mean over the last ``tail`` of the steps, is not clearly
    below that of a model without memory,

    .. math:: \bar{\mathcal{L}}_{\text{end}} > (1 - \text{margin})\, \mathcal{L}_{\text{unigram}} .

    **Explosion**: over the second half of the run the residual norm still rises,

    .. math:: \exp\bigl(s\, T/2\bigr) - 1 > \text{min\_growth},

    where s is the slope of log r over the steps: the median of the slopes between all pairs of
    points (Theil and Sen), which single spikes do not move.

    Parameters
    ----------
    losses : sequence of float
        Training losses by step, in nats; at least 10.
    norms : sequence of float
        Residual norms of the last loop, evenly spaced over the same run; at least 10.
    reference_loss : float
        Loss of the best prediction that ignores the context, in nats: `unigram_loss`.
    margin : float
        A model that reads its context beats the reference by more than this share. 5 % by default:
        a byte model of English gets far below it within a hundred steps.
    tail : float
        Share of the steps that make the end.
    min_growth : float
        Growth of the norm over the second half that counts as rising.

    Returns
    -------
    CollapseReport

    Examples
    --------
    >>> bool(has_collapsed([3.2] * 100, [1.05**t for t in range(100)], reference_loss=3.1))
    True
    >>> report = has_collapsed([3.2 * 0.99**t for t in range(100)], [10] * 100, reference_loss=3.1)
    >>> report.collapsed, report.plateau, report.exploding
    (False, False, False)

    Notes
    -----
    Our definition, :eq:`eq-looped-collapse`. Fu et al. (2026) describe a collapsed run as one whose
    loss stays on a high plateau while its residual norm still rises, and give no threshold.
    """
    loss, norm = _curve(losses, "losses"), _curve(norms, "norms")
    for name, value in (("margin", margin), ("tail", tail)):
        if not 0 < value < 1:
            raise ValueError(f"{name} must be between 0 and 1, got {value!r}")
    broken = [
        f"the {name} is not finite"
        for name, curve in (("loss", loss), ("residual norm", norm))
        if not np.isfinite(curve).all()
    ]
    if broken:
        return CollapseReport(True, True, True, math.nan, reference_loss, math.inf, tuple(broken))
    final = float(loss[-max(1, round(tail * len(loss))) :].mean())
    growth = _growth(norm)
    plateau, exploding = final > (1 - margin) * reference_loss, growth > min_growth
    reasons = (
        f"final loss {final:.3f} is {'not ' if plateau else ''}below "
        f"{1 - margin:.0%} of the unigram loss {reference_loss:.3f}",
        f"residual norm changes by {growth:+.1%} over the second half, "
        f"{'above' if exploding else 'not above'} {min_growth:+.1%}",
    )
    return CollapseReport(
        plateau and exploding, plateau, exploding, final, reference_loss, growth, reasons
    )


def _curve(values: Sequence[float], argument: str) -> np.ndarray:
    curve = np.asarray(values, dtype=float)
    if curve.ndim != 1 or len(curve) < 10:
        raise ValueError(f"{argument} must be one curve of at least 10 steps, got {curve.shape}")
    return curve


def _growth(norms: np.ndarray) -> float:
    # exp(slope of log r · length of the second half) - 1
    second = np.log(np.maximum(norms[len(norms) // 2 :], np.finfo(float).tiny))
    thinned = second[np.linspace(0, len(second) - 1, min(len(second), 200)).astype(int)]
    slope = stats.theilslopes(thinned).slope
    return float(np.expm1(slope * (len(thinned) - 1)))


def unigram_loss(tokens: Tensor) -> float:
    r"""Return the loss of the best prediction that ignores the context.

    .. math:: \mathcal{L}_{\text{unigram}} = - \sum_v p_v \ln p_v

    with :math:`p_v` the share of token v.

    Parameters
    ----------
    tokens : Tensor
        Integers, any shape.

    Returns
    -------
    float
        Nats per token.

    Examples
    --------
    >>> round(unigram_loss(torch.tensor([0, 1, 0, 1])), 4)
    0.6931
    """
    counts = torch.unique(tokens, return_counts=True)[1].double()
    shares = counts / counts.sum()
    return -(shares * shares.log()).sum().item()

r"""Exits: each token stops looping when its prediction is confident enough.

After loop k a token n has a distribution :math:`p^{(k)}_n`. It stops at the first loop at which the
likeliest continuation has a probability above a threshold,

.. math:: k_n = \min \Bigl\{ k \le K :\; \max_v p^{(k)}_n(v) > \tau \;\text{ or }\; k = K \Bigr\},

:eq:`eq-together-exit`. With :math:`\tau = 0` all tokens stop after the first loop, with
:math:`\tau = 1` none before the last. Other tokens go on and still read of it: they find the keys
and values of the last loop that it ran, as a cache would hold them.

The rival at the same compute is the best *fixed* number of loops, or a lot between two of them
that decides for each text: :func:`fixed_losses`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unrolled.looped.model import LoopedTransformer
from unrolled.optimization import require
from unrolled.transformer import require_count

__all__ = ["ExitReading", "Frontier", "fixed_losses", "frontier", "read_with_exits"]


class ExitReading(NamedTuple):
    """What a model says when its tokens stop by themselves.

    ``logits`` (B, N, V) of each token at the loop where it stopped, and ``loops`` (B, N): which
    that was, from 1 to K.
    """

    logits: Tensor
    loops: Tensor


class _Held:
    """Let stopped tokens enter every block as in the last loop that they ran."""

    def __init__(self, model: LoopedTransformer) -> None:
        self.stopped: Tensor | None = None  # (B, N) booleans
        self._inputs: dict[nn.Module, Tensor] = {}
        self._handles = [block.register_forward_pre_hook(self._replace) for block in model.blocks]

    def _replace(self, block: nn.Module, inputs: tuple) -> tuple:
        x = inputs[0]
        if block in self._inputs:
            x = torch.where(self.stopped[..., None], self._inputs[block], x)
        self._inputs[block] = x
        return (x, *inputs[1:])

    def __enter__(self) -> _Held:
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()


@torch.no_grad()
def read_with_exits(
    model: LoopedTransformer, tokens: Tensor, threshold: float, num_loops: int | None = None
) -> ExitReading:
    """Run a model whose tokens stop when they are confident.

    Parameters
    ----------
    model : LoopedTransformer
    tokens : Tensor
        Integers (B, N).
    threshold : float
        In [0, 1].
    num_loops : int, optional
        K, the last loop at the latest; by default that of the model.

    Returns
    -------
    ExitReading

    Raises
    ------
    ValueError
        If an argument is outside its range.

    Examples
    --------
    >>> from unrolled.transformer import TransformerConfig
    >>> config = TransformerConfig(num_layers=1, hidden_size=16, num_heads=2)
    >>> model = LoopedTransformer(config, num_loops=3, injection="flt")
    >>> tokens = torch.tensor([[72, 105]])
    >>> [read_with_exits(model, tokens, tau).loops.tolist() for tau in (0.0, 1.0)]
    [[[1, 1]], [[3, 3]]]

    Notes
    -----
    :eq:`eq-together-exit`. Nothing is saved here: stopped tokens are computed and thrown away. What
    the rule would save is the number of loops that it returns.
    """
    require(0 <= threshold <= 1, "threshold", threshold, "in [0, 1]")
    K = model.num_loops if num_loops is None else num_loops
    require_count(K, "num_loops")
    e = model.embed(tokens)
    state, loops = None, torch.zeros_like(tokens)
    stopped = torch.zeros_like(tokens, dtype=torch.bool)
    with _Held(model) as held:
        for k in range(1, K + 1):
            held.stopped = stopped
            after = model.loop(e, state)[-1]
            state = after if state is None else torch.where(stopped[..., None], state, after)
            logits = model.logits_from(state)
            loops = torch.where(stopped, loops, k)
            stopped = stopped | (logits.softmax(-1).amax(-1) > threshold)
            if bool(stopped.all()):
                break
    return ExitReading(logits, loops)


class Frontier(NamedTuple):
    """Quality against compute: at each threshold the mean number of loops, and the mean loss."""

    thresholds: list[float]
    loops: list[float]
    losses: list[float]


def frontier(
    model: LoopedTransformer,
    inputs: Tensor,
    targets: Tensor,
    thresholds: Sequence[float],
    num_loops: int | None = None,
    rows: int = 32,
) -> Frontier:
    """Return what each threshold costs and what it is worth, on texts (W, N).

    Examples
    --------
    >>> from unrolled.transformer import TransformerConfig
    >>> config = TransformerConfig(num_layers=1, hidden_size=16, num_heads=2)
    >>> model = LoopedTransformer(config, num_loops=3, injection="flt")
    >>> tokens = torch.randint(256, (3, 9))
    >>> frontier(model, tokens[:, :-1], tokens[:, 1:], (0.0, 1.0)).loops
    [1.0, 3.0]
    """
    found = [_point(model, inputs, targets, tau, num_loops, rows) for tau in thresholds]
    loops, losses = zip(*found, strict=True)
    return Frontier(list(thresholds), list(loops), list(losses))


def _point(
    model: LoopedTransformer,
    inputs: Tensor,
    targets: Tensor,
    threshold: float,
    num_loops: int | None,
    rows: int,
) -> tuple[float, float]:
    device, loops, loss = next(model.parameters()).device, 0.0, 0.0
    for x, y in zip(inputs.split(rows), targets.split(rows), strict=True):
        found = read_with_exits(model, x.to(device), threshold, num_loops)
        loops += found.loops.sum().item()
        z = found.logits.flatten(0, 1)
        loss += F.cross_entropy(z, y.to(device).flatten(), reduction="sum").item()
    return loops / inputs.numel(), loss / inputs.numel()


def fixed_losses(loss_by_loop: Sequence[float], loops: Sequence[float]) -> list[float]:
    r"""Return the lowest loss of fixed numbers of loops whose mean is at most that of a rule.

    .. math:: f_{\text{fix}}(k) = \min \bigl\{ (1 - r) f_i + r f_j \;:\;
              (1 - r)\, i + r\, j \le k, \; 0 \le r \le 1 \bigr\}

    :eq:`eq-together-exit-rival`: a share r of the texts, drawn by lot, gets j loops, the others i.

    Parameters
    ----------
    loss_by_loop : sequence of float
        :math:`f_1, \dots, f_K`.
    loops : sequence of float
        Mean numbers of loops, in [1, K].

    Examples
    --------
    >>> fixed_losses([3.0, 2.0, 1.0], [1.0, 1.5, 3.0])
    [3.0, 2.5, 1.0]
    >>> fixed_losses([3.0, 2.9, 1.0, 2.0], [2.0, 4.0])  # a lot of 1 and 3; then 3 for all
    [2.0, 1.0]
    """
    K = len(loss_by_loop)
    good = all(1 <= k <= K for k in loops)
    require(good, "loops", list(loops), f"between 1 and {K}")
    best = np.minimum.accumulate(loss_by_loop)  # whoever may run k loops may run fewer
    return [_best_lot(best, k) for k in loops]


def _best_lot(best: np.ndarray, k: float) -> float:
    numbers = range(1, len(best) + 1)
    pairs = [(i, j) for i in numbers for j in numbers if i <= k <= j]
    return min(float(np.interp(k, pair, best[[pair[0] - 1, pair[1] - 1]])) for pair in pairs)

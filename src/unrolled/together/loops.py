r"""Loops as layers: the loss after every loop, and the states behind it.

A looped model reads its text K times with the same blocks. Seen from the part on descent each loop
is a layer, and the readout that the model has, its norm and its head, reads them all,

.. math:: f_k = \mathbb{E}\, \ell\bigl(\mathrm{head}(\mathrm{norm}(x^{(k)})),\, y\bigr),
          \qquad k = 0, 1, \dots, K, \qquad x^{(0)} = e,

:eq:`eq-together-loop-losses`. So the loss at k is that of the model with k loops, and
:math:`f_0` is that of its embedding alone. The readout divides each state by its length; a loss
cannot see whether lengths grow from loop to loop. So the states come with it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from unrolled.descent.readout import Readout, state_losses
from unrolled.looped.diagnostics import residual_norms
from unrolled.looped.model import LoopedTransformer
from unrolled.transformer import require_count

__all__ = ["LoopReading", "loop_losses", "loop_readouts", "read_loops"]


def loop_readouts(
    model: LoopedTransformer, tokens: Tensor, num_loops: int | None = None
) -> list[Readout]:
    """Return the embedding and the state after each loop, each with what reads it.

    Parameters
    ----------
    model : LoopedTransformer
    tokens : Tensor
        Integers (B, N).
    num_loops : int, optional
        K, by default that of the model.

    Returns
    -------
    list of K + 1 pairs
        A state (B, N, d), and a function that maps it to logits (B, N, V): what
        `unrolled.descent.readout.state_losses` takes.

    Examples
    --------
    >>> from unrolled.transformer import TransformerConfig
    >>> config = TransformerConfig(num_layers=1, hidden_size=16, num_heads=2)
    >>> model = LoopedTransformer(config, num_loops=3, injection="flt")
    >>> len(loop_readouts(model, torch.tensor([[72, 105]])))
    4
    """
    output = model(tokens, num_loops=num_loops, loop_states=True)
    return [(state, model.logits_from) for state in (model.embed(tokens), *output.loop_states)]


def loop_losses(
    model: LoopedTransformer, tokens: Tensor, targets: Tensor, num_loops: int | None = None
) -> Tensor:
    """Return the cross-entropy of each text after every loop: the losses of layers.

    Parameters
    ----------
    model, tokens, num_loops
        As in `loop_readouts`.
    targets : Tensor
        Integers (B, N).

    Returns
    -------
    Tensor
        (K + 1, B), in nats per token, with gradients; :eq:`eq-together-loop-losses`.

    Examples
    --------
    >>> from unrolled.transformer import TransformerConfig
    >>> config = TransformerConfig(num_layers=1, hidden_size=16, num_heads=2)
    >>> model = LoopedTransformer(config, num_loops=3, injection="flt")
    >>> tokens = torch.tensor([[72, 101, 108, 108, 111]])
    >>> f = loop_losses(model, tokens[:, :-1], tokens[:, 1:])
    >>> f.shape, torch.isclose(f[-1].mean(), model.loss(tokens[:, :-1], tokens[:, 1:])).item()
    (torch.Size([4, 1]), True)
    """
    return state_losses(loop_readouts(model, tokens, num_loops), targets)


class LoopReading(NamedTuple):
    """What a model says of n tokens after every loop.

    ``losses`` (k + 1, n): the cross-entropy of each token after 0 to k loops, in nats. ``norms``
    (k + 1,): the mean length of a token's state. ``agreement`` (k + 1,): the share of tokens whose
    likeliest continuation is that after k loops.
    """

    losses: Tensor
    norms: Tensor
    agreement: Tensor


@torch.no_grad()
def read_loops(
    model: LoopedTransformer, inputs: Tensor, targets: Tensor, num_loops: int, rows: int = 32
) -> LoopReading:
    """Read a model after every loop, also beyond the loops of its training.

    Parameters
    ----------
    model : LoopedTransformer
    inputs, targets : Tensor
        Integers (W, N).
    num_loops : int
        k, how many loops are run.
    rows : int
        Texts that are read at a time.

    Returns
    -------
    LoopReading
        On the CPU; n is W N.

    Examples
    --------
    >>> from unrolled.transformer import TransformerConfig
    >>> config = TransformerConfig(num_layers=1, hidden_size=16, num_heads=2)
    >>> model = LoopedTransformer(config, num_loops=2, injection="flt")
    >>> tokens = torch.randint(256, (3, 9))
    >>> read_loops(model, tokens[:, :-1], tokens[:, 1:], num_loops=5).losses.shape
    torch.Size([6, 24])
    """
    require_count(num_loops, "num_loops")
    require_count(rows, "rows")
    device = next(model.parameters()).device
    parts = [
        _read(model, x.to(device), y.to(device), num_loops)
        for x, y in zip(inputs.split(rows), targets.split(rows), strict=True)
    ]
    losses, norms, agreement = (torch.cat(columns, dim=1) for columns in zip(*parts, strict=True))
    return LoopReading(losses, norms.mean(dim=1), agreement.mean(dim=1))


def _read(model: LoopedTransformer, x: Tensor, y: Tensor, num_loops: int) -> tuple[Tensor, ...]:
    readouts = loop_readouts(model, x, num_loops)
    logits = [read(state) for state, read in readouts]  # k + 1 times (B, N, V)
    losses = [F.cross_entropy(z.flatten(0, 1), y.flatten(), reduction="none") for z in logits]
    # of one row each, so that the mean over all parts weighs every text alike
    norms = [torch.stack([residual_norms([row])[0] for row in state]) for state, _ in readouts]
    last = logits[-1].argmax(-1)
    same = [(z.argmax(-1) == last).float().mean(dim=1) for z in logits]
    return tuple(torch.stack(column).cpu() for column in (losses, norms, same))

r"""The looped Transformer: the same L blocks, K times over.

.. math:: h^{(k)} = F_\theta(h^{(k-1)}, e), \qquad k = 1, \dots, K

:eq:`eq-looped-recurrence`. Here e is the normalised embedding, a loop runs the stream x through
all blocks, and h = norm(x) is what it hands to the next loop. The variants have the same
parameters and cost the same; they differ only in how h enters the loops after the first:

===================  =========================  ==============================================
injection            a loop starts from         where h enters
===================  =========================  ==============================================
"original"           h                          it is the state
"input"              norm(e + h)                added once, at the start
"attention"          e                          the query of the first block
"fla"                e                          every block first does x <- norm(x + h)
"flt"                e                          the query of every block
"original_no_norm"   x, not normalised          it is the state
===================  =========================  ==============================================

Source: R. Fu et al. (2026), "Simply Stabilizing the Loop via Fully Looped Transformer", and its
public implementation. "original_no_norm" is ours, a weaker baseline.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from unrolled.transformer import (
    CacheSlot,
    KeyValueCache,
    Transformer,
    TransformerConfig,
    require_choice,
    require_count,
    token_loss,
)

__all__ = [
    "BASE",
    "INJECTIONS",
    "LABELS",
    "LOSS_LOOPS",
    "SMALL",
    "LoopedOutput",
    "LoopedTransformer",
    "build",
]

INJECTIONS = ("original", "input", "attention", "fla", "flt", "original_no_norm")
"""The six ways in which the state of the loop before enters the next one."""

LABELS = {
    "original": "LT",
    "input": "LT_i",
    "attention": "LT_ia",
    "fla": "FLA",
    "flt": "FLT",
    "original_no_norm": "LT, no norm",
    "plain": "plain Transformer",
}
"""Short names of the injections and of the plain Transformer, for figures and tables."""

LOSS_LOOPS = ("last", "mean", "last_third")
"""The loops on which the loss can be taken."""

SMALL = TransformerConfig(vocab_size=151_680, num_layers=6, hidden_size=384, num_heads=3)
"""The paper's small size: 127.1 M parameters, 10.6 M of them in the looped blocks."""

BASE = TransformerConfig(vocab_size=151_680, num_layers=12, hidden_size=768, num_heads=6)
"""The paper's base size: 317.9 M parameters, 84.9 M of them in the looped blocks."""


class LoopedOutput(NamedTuple):
    """What a `LoopedTransformer` returns.

    ``logits`` (B, N, V) after the last loop. On request ``loop_states``, K tensors (B, N, d): the
    residual stream at the end of each loop, before the norm; and ``layer_states``, K lists of L of
    them: the stream after each block. ``loss`` when targets were given.
    """

    logits: Tensor
    loop_states: list[Tensor] | None = None
    layer_states: list[list[Tensor]] | None = None
    loss: Tensor | None = None


class LoopedTransformer(Transformer):
    r"""Embedding, K loops through the same L blocks, norm, head.

    .. math::

       x_0 &= e \;\text{(first loop, "attention", "fla", "flt")}, \quad h \;\text{("original")},
              \quad \mathrm{norm}(e + h) \;\text{("input")} \\
       x_l &= \mathrm{Block}_l(x_{l-1},\; q = h \;\text{or}\; x_{l-1}), \qquad l = 1, \dots, L \\
       h &\leftarrow \mathrm{norm}(x_L)

    It has the parameters of a `Transformer` of the same config, under the same names, and with
    ``num_loops=1`` it computes the same.

    Parameters
    ----------
    config : TransformerConfig
    num_loops : int
        K, at least 1.
    injection : str
        One of `INJECTIONS`; see the table of this module.
    loss_loops : {"last", "mean", "last_third"}
        Which loops the loss is averaged over: the last (as in the paper), all, or the last
        ceil(K / 3).
    checkpoint_loops : bool
        Keep only the state of each loop for the backward pass, and run the loop again there.
        Memory then grows by one state per loop, not by the graph of L blocks; the gradient is the
        same, and a training step costs a third more.

    Examples
    --------
    >>> config = TransformerConfig(num_layers=2, hidden_size=16, num_heads=2)
    >>> model = LoopedTransformer(config, num_loops=3, injection="flt")
    >>> tokens = torch.tensor([[72, 101, 108, 108, 111]])
    >>> output = model(tokens, loop_states=True)
    >>> output.logits.shape, len(output.loop_states)
    (torch.Size([1, 5, 256]), 3)
    >>> len(model(tokens, num_loops=8, loop_states=True).loop_states)   # more at inference
    8

    Notes
    -----
    Equations :eq:`eq-looped-input`, :eq:`eq-looped-attention`, :eq:`eq-looped-fla` and
    :eq:`eq-looped-flt`. In FLT the state enters only through attention weights. A position that
    can see but one token, the first, has but one weight, which is 1 whatever the query: so its
    output is the same after any number of loops.

    One detail differs from the public implementation, which adds h in "input" to the embedding as
    it is in the table, not yet normalised. The two start alike, since the table starts with rows
    of length :math:`\sqrt d` on average.
    """

    def __init__(
        self,
        config: TransformerConfig,
        num_loops: int,
        injection: str,
        *,
        loss_loops: str = "last",
        checkpoint_loops: bool = False,
    ) -> None:
        require_count(num_loops, "num_loops")
        require_choice(injection, "injection", INJECTIONS)
        require_choice(loss_loops, "loss_loops", LOSS_LOOPS)
        super().__init__(config)
        self.num_loops = num_loops
        self.injection = injection
        self.loss_loops = loss_loops
        self.checkpoint_loops = checkpoint_loops

    def extra_repr(self) -> str:
        """Show what the modules do not."""
        return f"num_loops={self.num_loops}, injection={self.injection!r}"

    def forward(
        self,
        tokens: Tensor,
        *,
        num_loops: int | None = None,
        loop_states: bool = False,
        layer_states: bool = False,
        cache: KeyValueCache | None = None,
        attention_mask: Tensor | None = None,
        targets: Tensor | None = None,
    ) -> LoopedOutput:
        """Read ``tokens``.

        Parameters
        ----------
        tokens : Tensor
            Integers (B, N).
        num_loops : int, optional
            K for this call, by default the model's own.
        loop_states, layer_states : bool
            Also return the state after every loop; after every block of every loop.
        cache, attention_mask, targets
            As in `Transformer.forward`; ``loss`` averages the loops of ``loss_loops``.

        Returns
        -------
        LoopedOutput
        """
        K = self.num_loops if num_loops is None else num_loops
        require_count(K, "num_loops")
        mask = self._check(tokens, cache, attention_mask)
        e = self.embed(tokens, 0 if cache is None else cache.length)
        layers: list[list[Tensor]] = []
        for k in range(K):
            slots = None if cache is None else self._slots(cache, k, K)
            state = layers[-1][-1] if layers else None
            layers.append(self._keep(self.loop, e, state, mask, slots, keep_all=layer_states))
        if cache is not None:
            cache.advance(tokens.shape[1])
        states = [blocks[-1] for blocks in layers]
        logits = self.logits_from(states[-1])
        loss = None if targets is None else self._loss(states, logits, targets)
        return LoopedOutput(
            logits, states if loop_states else None, layers if layer_states else None, loss
        )

    def loss(self, tokens_in: Tensor, targets: Tensor, *, num_loops: int | None = None) -> Tensor:
        r"""Return the mean cross-entropy, in nats per token, over the loops of ``loss_loops``.

        .. math:: \frac{1}{|S|} \sum_{k \in S} \mathcal{L}^{(k)}, \qquad S = \{K\},\;
                  \{1, \dots, K\} \text{ or } \{K - \lceil K/3 \rceil + 1, \dots, K\}

        :eq:`eq-looped-loss`.

        Parameters
        ----------
        tokens_in, targets : Tensor
            Integers (B, N); targets of -100 do not count.
        num_loops : int, optional
            K for this call, by default the model's own.

        Returns
        -------
        Tensor
            A scalar.
        """
        return self(tokens_in, num_loops=num_loops, targets=targets).loss

    def loop(
        self,
        e: Tensor,
        state: Tensor | None = None,
        mask: Tensor | None = None,
        slots: list[CacheSlot] | None = None,
    ) -> list[Tensor]:
        """Run the stream through all blocks once: F of the recurrence.

        Parameters
        ----------
        e : Tensor
            The normalised embedding (B, N, d), from ``embed``.
        state : Tensor, optional
            The stream (B, N, d) at the end of the loop before, not normalised; None in the first
            loop.
        mask, slots
            As in `Attention`; one slot of the cache for each block.

        Returns
        -------
        list of Tensor
            The stream (B, N, d) after each of the L blocks; the last is the state of this loop.
        """
        h = None if state is None else self._handed_on(state)
        x, states = self._start(e, h), []
        # h has been through the norm; without gains a second time would change nothing.
        normed = self.config.norm == "rms"
        for layer, block in enumerate(self.blocks):
            if self.injection == "fla" and h is not None:
                # x <- norm(x + h)
                x = self.norm(x + h)
            cache = None if slots is None else slots[layer]
            x = block(x, self._query(layer, h), normed=normed, mask=mask, cache=cache)
            states.append(x)
        return states

    def _handed_on(self, state: Tensor) -> Tensor:
        return state if self.injection == "original_no_norm" else self.norm(state)

    def _start(self, e: Tensor, h: Tensor | None) -> Tensor:
        if h is None or self.injection in ("attention", "fla", "flt"):
            return e
        return self.norm(e + h) if self.injection == "input" else h

    def _query(self, layer: int, h: Tensor | None) -> Tensor | None:
        asks = self.injection == "flt" or (self.injection == "attention" and layer == 0)
        return h if asks else None

    def _slots(self, cache: KeyValueCache, loop: int, num_loops: int) -> list[CacheSlot]:
        return [cache.slot(layer, loop, num_loops) for layer in range(len(self.blocks))]

    def _keep(self, run: Callable[..., list[Tensor]], *inputs, keep_all: bool) -> list[Tensor]:
        def kept(*inputs) -> list[Tensor]:
            states = run(*inputs)
            return states if keep_all else states[-1:]

        if not (self.checkpoint_loops and torch.is_grad_enabled()):
            return kept(*inputs)
        # Nothing in a loop is random, so there is no state of the generator to restore.
        return checkpoint(kept, *inputs, use_reentrant=False, preserve_rng_state=False)

    def _loss(self, states: list[Tensor], logits: Tensor, targets: Tensor) -> Tensor:
        K = len(states)
        count = {"last": 1, "mean": K, "last_third": math.ceil(K / 3)}[self.loss_loops]
        last = token_loss(logits, targets)
        earlier = states[K - count : K - 1]
        losses = [*(self._loss_from(state, targets) for state in earlier), last]
        return torch.stack(losses).mean()

    def _loss_from(self, state: Tensor, targets: Tensor) -> Tensor:
        def loss(state: Tensor, targets: Tensor) -> list[Tensor]:
            return [token_loss(self.logits_from(state), targets)]

        # The logits are the widest tensors of the model: with checkpointing, keep none of them.
        return self._keep(loss, state, targets, keep_all=False)[0]


def build(
    config: TransformerConfig, variant: str, num_loops: int, *, loss_loops: str = "last"
) -> LoopedTransformer:
    """Return a looped model, or the plain Transformer that applies as many blocks.

    Parameters
    ----------
    config
        The blocks that are looped.
    variant
        An injection, or ``"plain"``: one loop through ``num_loops`` times as many blocks, each with
        weights of its own. That costs the same operations, and K times the parameters of the core.
    num_loops
        K.
    loss_loops
        As in `LoopedTransformer`.

    Examples
    --------
    >>> config = TransformerConfig(num_layers=2, hidden_size=16, num_heads=2)
    >>> [len(build(config, variant, num_loops=3).blocks) for variant in ("flt", "plain")]
    [2, 6]
    """
    require_choice(variant, "variant", (*INJECTIONS, "plain"))
    require_count(num_loops, "num_loops")
    if variant != "plain":
        return LoopedTransformer(config, num_loops, variant, loss_loops=loss_loops)
    deep = replace(config, num_layers=num_loops * config.num_layers)
    return LoopedTransformer(deep, 1, "original", loss_loops=loss_loops)

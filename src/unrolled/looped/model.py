r"""The looped Transformer: the same L blocks, K times over.

.. math:: h^{(k)} = F_\theta(h^{(k-1)}, e)

:eq:`eq-looped-recurrence`. One class holds every variant of the paper; they differ only in how
the state of the previous loop enters the next one, and have the same parameters.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from unrolled.transformer import (
    KeyValueCache,
    Transformer,
    TransformerConfig,
    token_loss,
)

INJECTIONS = ("original", "input", "attention", "fla", "flt", "original_no_norm")

LABELS = {
    "original": "LT",
    "input": "LT_i",
    "attention": "LT_ia",
    "fla": "FLA",
    "flt": "FLT",
    "original_no_norm": "LT, no norm",
}

LOSS_LOOPS = ("last", "mean", "last_third")

SMALL = TransformerConfig(vocab_size=151_680, num_layers=6, hidden_size=384, num_heads=3)
BASE = TransformerConfig(vocab_size=151_680, num_layers=12, hidden_size=768, num_heads=6)


class LoopedOutput(NamedTuple):
    """What a `LoopedTransformer` returns."""

    logits: Tensor
    loop_states: list[Tensor] | None = None
    layer_states: list[list[Tensor]] | None = None
    loss: Tensor | None = None


class LoopedTransformer(Transformer):
    """Embedding, K loops through the same L blocks, norm, head."""

    def __init__(
        self,
        config: TransformerConfig,
        num_loops: int,
        injection: str,
        *,
        loss_loops: str = "last",
        checkpoint_loops: bool = False,
    ) -> None:
        _check_loops(num_loops)
        if injection not in INJECTIONS:
            raise ValueError(f"injection must be one of {INJECTIONS}, got {injection!r}")
        if loss_loops not in LOSS_LOOPS:
            raise ValueError(f"loss_loops must be one of {LOSS_LOOPS}, got {loss_loops!r}")
        super().__init__(config)
        self.num_loops = num_loops
        self.injection = injection
        self.loss_loops = loss_loops
        self.checkpoint_loops = checkpoint_loops

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
        """Return the logits after the last loop, and on request the state after every loop."""
        K = self.num_loops if num_loops is None else num_loops
        _check_loops(K)
        self._check_tokens(tokens, cache)
        mask = self._mask(attention_mask)
        e = self.embed(tokens, 0 if cache is None else cache.length)
        state, states, layers = None, [], []
        for loop in range(K):
            layers.append(self._run_loop(e, state, mask, cache, loop, layer_states))
            state = layers[-1][-1]
            states.append(state)
        if cache is not None:
            cache.advance(tokens.shape[1])
        logits = self.logits_from(state)
        loss = None if targets is None else self._loss(states, logits, targets)
        return LoopedOutput(
            logits, states if loop_states else None, layers if layer_states else None, loss
        )

    def loss(self, tokens_in: Tensor, targets: Tensor, *, num_loops: int | None = None) -> Tensor:
        """Mean cross-entropy in nats per token over the loops that ``loss_loops`` names."""
        return self(tokens_in, num_loops=num_loops, targets=targets).loss

    def loop(self, e: Tensor, state: Tensor | None, *, mask=None, cache=None, loop: int = 0):
        """Run the L blocks once; return the state after every block."""
        h = None if state is None else self._hand_over(state)
        x = self._start(e, h)
        states = []
        for layer, block in enumerate(self.blocks):
            if self.injection == "fla" and h is not None:
                x = self.norm(x + h)
            slot = None if cache is None else cache.slot(layer, loop)
            x = block(x, self._query(layer, h), mask=mask, cache=slot)
            states.append(x)
        return states

    def _hand_over(self, state: Tensor) -> Tensor:
        return state if self.injection == "original_no_norm" else self.norm(state)

    def _start(self, e: Tensor, h: Tensor | None) -> Tensor:
        if h is None or self.injection in ("attention", "fla", "flt"):
            return e
        return self.norm(e + h) if self.injection == "input" else h

    def _query(self, layer: int, h: Tensor | None) -> Tensor | None:
        asks = self.injection == "flt" or (self.injection == "attention" and layer == 0)
        return h if asks else None

    def _run_loop(self, e, state, mask, cache, loop, layer_states) -> list[Tensor]:
        def run(e: Tensor, state: Tensor | None) -> list[Tensor]:
            states = self.loop(e, state, mask=mask, cache=cache, loop=loop)
            return states if layer_states else states[-1:]

        if self.checkpoint_loops and torch.is_grad_enabled():
            return checkpoint(run, e, state, use_reentrant=False)
        return run(e, state)

    def _loss(self, states: list[Tensor], logits: Tensor, targets: Tensor) -> Tensor:
        last = token_loss(logits, targets)
        count = {"last": 1, "mean": len(states), "last_third": math.ceil(len(states) / 3)}
        earlier = states[-count[self.loss_loops] : -1]
        losses = [token_loss(self.logits_from(state), targets) for state in earlier]
        return torch.stack([*losses, last]).mean()


def _check_loops(num_loops: int) -> None:
    if not isinstance(num_loops, int) or isinstance(num_loops, bool) or num_loops < 1:
        raise ValueError(f"num_loops must be an integer >= 1, got {num_loops!r}")

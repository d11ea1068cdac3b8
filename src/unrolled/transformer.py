r"""The one reference Transformer of the book: configuration, attention, block, decoder, encoder.

A block reads the residual stream :math:`x` and writes to it twice,

.. math::

   x \leftarrow x + \mathrm{Attn}\bigl(q = \mathrm{norm}(h \text{ or } x),\;
                                       k = v = \mathrm{norm}(x)\bigr), \qquad
   x \leftarrow x + \mathrm{MLP}\bigl(\mathrm{norm}(x)\bigr),

:eq:`eq-looped-block`. The optional :math:`h` lets another state ask the questions; the looped
models of `unrolled.looped` use it. The defaults are the block of the Fully Looped Transformer
(parameter-free RMSNorm, rotary positions, QK-norm after the rotation, squared ReLU, soft-capped
logits, output projections that start at zero); every one of them is an option.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = [
    "MLP",
    "Attention",
    "Block",
    "KeyValueCache",
    "RotaryPositions",
    "Transformer",
    "TransformerConfig",
    "TransformerOutput",
    "count_parameters",
    "flops_per_token",
    "generate",
]

NORMS = ("rms", "layer")
POSITIONS = ("rope", "learned")
ACTIVATIONS = ("relu2", "gelu")


def _require(condition: bool, argument: str, value: object, allowed: str) -> None:
    if not condition:
        raise ValueError(f"{argument} must be {allowed}, got {value!r}")


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """Shape and options of a `Transformer`; checked when it is made.

    Parameters
    ----------
    vocab_size : int
        Number of tokens V; 256 reads bytes.
    num_layers, hidden_size, num_heads : int
        L, d and the number of heads; the head size d / num_heads must be whole, and even with
        rotary positions.
    max_length : int
        Longest sequence N, prompt and generated tokens together.
    causal : bool
        True: decoder, a token sees itself and what is before it. False: encoder.
    norm : {"rms", "layer"}
        Parameter-free RMSNorm and no biases, or LayerNorm with gain and bias and biases
        everywhere but in the head.
    position : {"rope", "learned"}
        Rotary positions, or a learned vector per position added to the embedding.
    rope_base : float
        Base of the rotation frequencies.
    qk_norm : bool
        RMS-normalise each head's queries and keys, after the rotation.
    activation : {"relu2", "gelu"}
        Squared ReLU, or the exact GELU.
    mlp_ratio : int
        Hidden size of the MLP in units of d.
    logit_cap : float or None
        Logits are c tanh(z / c); None leaves them alone.
    zero_output : bool
        Output projections of attention and MLP start at zero, so that a block starts as the
        identity.
    embedding_norm : bool
        Normalise the embedding before the first block.

    Raises
    ------
    ValueError
        If a value is outside what is allowed; the message names it.

    Examples
    --------
    >>> config = TransformerConfig(num_layers=2, hidden_size=64, num_heads=4)
    >>> config.head_size
    16
    """

    vocab_size: int = 256
    num_layers: int = 6
    hidden_size: int = 384
    num_heads: int = 3
    max_length: int = 1024
    causal: bool = True
    norm: str = "rms"
    position: str = "rope"
    rope_base: float = 10_000.0
    qk_norm: bool = True
    activation: str = "relu2"
    mlp_ratio: int = 4
    logit_cap: float | None = 15.0
    zero_output: bool = True
    embedding_norm: bool = True

    def __post_init__(self) -> None:
        for name in ("vocab_size", "num_layers", "hidden_size", "num_heads", "max_length"):
            _require(_is_count(getattr(self, name)), name, getattr(self, name), "an integer >= 1")
        _require(_is_count(self.mlp_ratio), "mlp_ratio", self.mlp_ratio, "an integer >= 1")
        _require(self.norm in NORMS, "norm", self.norm, f"one of {NORMS}")
        _require(self.position in POSITIONS, "position", self.position, f"one of {POSITIONS}")
        _require(
            self.activation in ACTIVATIONS, "activation", self.activation, f"one of {ACTIVATIONS}"
        )
        _require(self.rope_base > 1, "rope_base", self.rope_base, "> 1")
        cap = self.logit_cap
        _require(cap is None or cap > 0, "logit_cap", cap, "None or > 0")
        _require(
            self.hidden_size % self.num_heads == 0,
            "num_heads",
            self.num_heads,
            f"a divisor of hidden_size = {self.hidden_size}",
        )
        _require(
            self.position != "rope" or self.head_size % 2 == 0,
            "hidden_size / num_heads",
            self.head_size,
            "even with position='rope'",
        )

    @property
    def head_size(self) -> int:
        """Size of one attention head, d / num_heads."""
        return self.hidden_size // self.num_heads

    @property
    def biases(self) -> bool:
        """Whether the linear maps of the blocks have biases."""
        return self.norm == "layer"


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


class KeyValueCache:
    """Keys and values of the tokens that a model has already read, for generation.

    Parameters
    ----------
    loops : {"all", "last"}
        What a looped model keeps. "all" has one entry per loop and layer and is exact. "last" has
        one entry per layer, which each loop overwrites, so that only the last loop's keys and
        values stay: K times less memory, but in loops before the last a new token then
        meets last-loop keys that it would not have met in a full pass. A plain Transformer has one
        loop, and both are the same.
    """

    def __init__(self, loops: str = "all") -> None:
        _require(loops in ("all", "last"), "loops", loops, "'all' or 'last'")
        self.loops = loops
        self.length = 0
        self._entries: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def slot(self, layer: int, loop: int = 0) -> _Slot:
        """Return the place where one attention layer of one loop keeps its keys and values."""
        return _Slot(self, (layer, loop if self.loops == "all" else 0))

    def advance(self, num_tokens: int) -> None:
        """Count the tokens of a finished forward pass as read."""
        self.length += num_tokens

    def num_bytes(self) -> int:
        """Memory of all keys and values."""
        return sum(t.nbytes for entry in self._entries.values() for t in entry)


class _Slot(NamedTuple):
    cache: KeyValueCache
    index: tuple[int, int]

    @property
    def length(self) -> int:
        return self.cache.length

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        entries, length = self.cache._entries, self.cache.length
        if length:
            old_key, old_value = entries[self.index]
            key = torch.cat((old_key[:, :, :length], key), dim=2)
            value = torch.cat((old_value[:, :, :length], value), dim=2)
        entries[self.index] = (key, value)
        return key, value


class RotaryPositions(nn.Module):
    """Rotate pairs of channels by an angle that grows with the position.

    Channel i < D/2 is paired with channel i + D/2 and turned by n * base^(-2i/D) at position n.
    """

    def __init__(self, head_size: int, max_length: int, base: float = 10_000.0) -> None:
        super().__init__()
        exponents = torch.arange(0, head_size, 2, dtype=torch.float64) / head_size
        # angle[n, i] = n * base^(-2i/D)
        angles = torch.outer(torch.arange(max_length, dtype=torch.float64), base**-exponents)
        cos, sin = angles.cos().float(), angles.sin().float()
        self.register_buffer("cos", torch.cat((cos, cos), dim=-1), persistent=False)
        self.register_buffer("sin", torch.cat((-sin, sin), dim=-1), persistent=False)

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        """Rotate ``x`` of shape (..., N, D), whose first position is ``offset``."""
        stop = offset + x.shape[-2]
        cos, sin = self.cos[offset:stop].to(x.dtype), self.sin[offset:stop].to(x.dtype)
        # (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin); the table of sines carries the sign
        return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, dims=-1), sin)


def _make_norm(config: TransformerConfig) -> nn.Module:
    if config.norm == "rms":
        return nn.RMSNorm(config.hidden_size, elementwise_affine=False)
    return nn.LayerNorm(config.hidden_size)


class Attention(nn.Module):
    """Multi-head attention whose queries may come from another state than keys and values."""

    def __init__(self, config: TransformerConfig, rotary: RotaryPositions | None = None) -> None:
        super().__init__()
        d, bias = config.hidden_size, config.biases
        self.config = config
        self.query = nn.Linear(d, d, bias=bias)
        self.key = nn.Linear(d, d, bias=bias)
        self.value = nn.Linear(d, d, bias=bias)
        self.output = nn.Linear(d, d, bias=bias)
        self.rotary = rotary if rotary is not None else _make_rotary(config)

    def forward(
        self, query: Tensor, context: Tensor, *, mask: Tensor | None = None, cache=None
    ) -> Tensor:
        """Attend from ``query`` (B, N, D) to ``context`` (B, N, D)."""
        offset = 0 if cache is None else cache.length
        q = self._position(self._heads(self.query(query)), offset)  # (B, H, N, D/H)
        k = self._position(self._heads(self.key(context)), offset)
        v = self._heads(self.value(context))
        if cache is not None:
            k, v = cache.extend(k, v)  # (B, H, offset + N, D/H)
        causal = self.config.causal and mask is None and offset == 0
        if self.config.causal and mask is None and offset > 0 and q.shape[2] > 1:
            mask = _causal_mask(q.shape[2], k.shape[2], q.device)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        return self.output(y.transpose(1, 2).flatten(2))  # (B, N, D)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.config.num_heads, -1)).transpose(1, 2)

    def _position(self, x: Tensor, offset: int) -> Tensor:
        x = x if self.rotary is None else self.rotary(x, offset)
        return F.rms_norm(x, x.shape[-1:]) if self.config.qk_norm else x


def _make_rotary(config: TransformerConfig) -> RotaryPositions | None:
    if config.position == "learned":
        return None
    return RotaryPositions(config.head_size, config.max_length, config.rope_base)


def _causal_mask(num_queries: int, num_keys: int, device: torch.device) -> Tensor:
    # The last query sees every key, the one before it all but the last, and so on.
    mask = torch.ones(num_queries, num_keys, dtype=torch.bool, device=device)
    return mask.tril(num_keys - num_queries)


class MLP(nn.Module):
    """Two linear maps with a pointwise activation between them."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        d, hidden = config.hidden_size, config.mlp_ratio * config.hidden_size
        self.activation = config.activation
        self.hidden = nn.Linear(d, hidden, bias=config.biases)
        self.output = nn.Linear(hidden, d, bias=config.biases)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, N, D) to (B, N, D)."""
        z = self.hidden(x)  # (B, N, 4D)
        return self.output(F.relu(z).square() if self.activation == "relu2" else F.gelu(z))


class Block(nn.Module):
    """One Transformer block: attention, then MLP, each on a normalised input and added."""

    def __init__(self, config: TransformerConfig, rotary: RotaryPositions | None = None) -> None:
        super().__init__()
        self.attention_norm = _make_norm(config)
        self.attention = Attention(config, rotary)
        self.mlp_norm = _make_norm(config)
        self.mlp = MLP(config)

    def forward(
        self, x: Tensor, query: Tensor | None = None, *, mask: Tensor | None = None, cache=None
    ) -> Tensor:
        """Return the residual stream (B, N, D) after the block."""
        context = self.attention_norm(x)
        query = context if query is None else self.attention_norm(query)
        x = x + self.attention(query, context, mask=mask, cache=cache)
        return x + self.mlp(self.mlp_norm(x))


class TransformerOutput(NamedTuple):
    """What a `Transformer` returns."""

    logits: Tensor
    hidden_states: list[Tensor] | None = None
    loss: Tensor | None = None


class Transformer(nn.Module):
    """Embedding, L blocks, norm, head: decoder or encoder."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.positions = None
        if config.position == "learned":
            self.positions = nn.Embedding(config.max_length, config.hidden_size)
        self.embedding_norm = _make_norm(config) if config.embedding_norm else nn.Identity()
        rotary = _make_rotary(config)
        self.blocks = nn.ModuleList(Block(config, rotary) for _ in range(config.num_layers))
        self.norm = _make_norm(config)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the weights anew from torch's global generator."""
        bound = math.sqrt(3 / self.config.hidden_size)  # uniform with std 1/sqrt(d)
        for module in self.blocks.modules():
            if isinstance(module, nn.Linear):
                module.weight.uniform_(-bound, bound)
                if module.bias is not None:
                    module.bias.zero_()
        if self.config.zero_output:
            for block in self.blocks:
                block.attention.output.weight.zero_()
                block.mlp.output.weight.zero_()
        self.embedding.weight.normal_()
        if self.positions is not None:
            self.positions.weight.normal_(std=0.02)
        self.head.weight.normal_(std=0.001)

    def embed(self, tokens: Tensor, offset: int = 0) -> Tensor:
        """Return e, the (normalised) embedding (B, N, D) of ``tokens`` (B, N)."""
        e = self.embedding(tokens)
        if self.positions is not None:
            e = e + self.positions.weight[offset : offset + tokens.shape[1]]
        return self.embedding_norm(e)

    def logits_from(self, state: Tensor) -> Tensor:
        """Read logits (B, N, V) off a residual stream (B, N, D)."""
        z = self.head(self.norm(state))
        z = z.to(torch.promote_types(z.dtype, torch.float32))
        cap = self.config.logit_cap
        return z if cap is None else cap * torch.tanh(z / cap)

    def forward(
        self,
        tokens: Tensor,
        hidden_states: bool = False,
        cache: KeyValueCache | None = None,
        *,
        attention_mask: Tensor | None = None,
        targets: Tensor | None = None,
    ) -> TransformerOutput:
        """Return the logits, and on request the L + 1 states of the residual stream."""
        self._check_tokens(tokens, cache)
        mask = self._mask(attention_mask)
        x = self.embed(tokens, 0 if cache is None else cache.length)
        states = [x]
        for layer, block in enumerate(self.blocks):
            x = block(x, mask=mask, cache=None if cache is None else cache.slot(layer))
            states.append(x)
        if cache is not None:
            cache.advance(tokens.shape[1])
        logits = self.logits_from(x)
        loss = None if targets is None else token_loss(logits, targets)
        return TransformerOutput(logits, states if hidden_states else None, loss)

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy in nats per token."""
        return self(tokens, targets=targets).loss

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Sort the parameters by the rule that updates them."""
        groups = {"embedding": [self.embedding.weight], "head": [self.head.weight]}
        if self.positions is not None:
            groups["embedding"].append(self.positions.weight)
        groups["matrices"] = [p for p in self.blocks.parameters() if p.ndim == 2]
        seen = {id(p) for group in groups.values() for p in group}
        groups["other"] = [p for p in self.parameters() if id(p) not in seen]
        return groups

    def _check_tokens(self, tokens: Tensor, cache: KeyValueCache | None) -> None:
        if tokens.ndim != 2:
            raise ValueError(f"tokens must have shape (B, N), got {tuple(tokens.shape)}")
        length = tokens.shape[1] + (0 if cache is None else cache.length)
        limit = self.config.max_length
        if length > limit:
            raise ValueError(f"tokens has length {length}, max_length of the model is {limit}")

    def _mask(self, attention_mask: Tensor | None) -> Tensor | None:
        if attention_mask is None:
            return None
        mask = attention_mask.bool()[:, None, None, :]  # (B, 1, 1, N)
        if self.config.causal:
            n = attention_mask.shape[1]
            mask = mask & _causal_mask(n, n, mask.device)
        return mask


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in nats of logits (B, N, V) at targets (B, N)."""
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


def count_parameters(model: nn.Module) -> int:
    """Count the numbers in all parameters, shared ones once."""
    return sum(p.numel() for p in model.parameters())


def flops_per_token(
    config: TransformerConfig, num_loops: int = 1, length: int | None = None
) -> int:
    """FLOPs of a forward pass per token at sequence length N."""
    d, n = config.hidden_size, config.max_length if length is None else length
    block = 2 * (4 + 2 * config.mlp_ratio) * d * d + 4 * n * d
    return num_loops * config.num_layers * block + 2 * d * config.vocab_size


@torch.no_grad()
def generate(
    model: nn.Module,
    prompt: Tensor,
    num_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
    use_cache: bool = True,
    *,
    num_loops: int | None = None,
    cache: KeyValueCache | None = None,
) -> Tensor:
    """Continue ``prompt`` (B, N) or (N,) by ``num_tokens`` sampled tokens."""
    options = {} if num_loops is None else {"num_loops": num_loops}
    tokens = prompt.unsqueeze(0) if prompt.ndim == 1 else prompt
    limit = model.config.max_length
    if use_cache and tokens.shape[1] + num_tokens - 1 > limit:
        raise ValueError(f"prompt and num_tokens exceed max_length = {limit}: use_cache=False")
    cache = (KeyValueCache() if cache is None else cache) if use_cache else None
    unread = tokens
    for _ in range(num_tokens):
        unread = unread if use_cache else tokens[:, -limit:]
        logits = model(unread, cache=cache, **options).logits[:, -1]
        unread = _sample(logits, temperature, top_k, generator)
        tokens = torch.cat((tokens, unread), dim=1)
    return tokens[0] if prompt.ndim == 1 else tokens


def _sample(logits, temperature, top_k, generator) -> Tensor:
    if temperature == 0:
        return logits.argmax(dim=-1, keepdim=True)
    if top_k is not None:
        least = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    weights = torch.softmax(logits / temperature, dim=-1)
    return torch.multinomial(weights, 1, generator=generator)

r"""The one reference Transformer of the book: configuration, attention, block, decoder, encoder.

A block reads the residual stream :math:`x` and adds to it twice,

.. math::

   x \leftarrow x + \mathrm{Attn}\bigl(q = \mathrm{norm}(h \text{ or } x),\;
                                       k = v = \mathrm{norm}(x)\bigr), \qquad
   x \leftarrow x + \mathrm{MLP}\bigl(\mathrm{norm}(x)\bigr),

:eq:`eq-looped-block`. With :math:`h` another state asks the questions; only the looped models of
`unrolled.looped` use it. The defaults are the block of the Fully Looped Transformer
(parameter-free RMSNorm, rotary positions, QK-norm after the rotation, squared ReLU, soft-capped
logits, output projections that start at zero). Each of them is an option with the common
alternative beside it, so that GPT-2's block and a BERT-like encoder are settings, not classes.

Shapes: B sequences, N positions, d = ``hidden_size``, H heads, V tokens in the vocabulary.
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
    "CacheSlot",
    "KeyValueCache",
    "RMSNorm",
    "RotaryPositions",
    "Transformer",
    "TransformerConfig",
    "TransformerOutput",
    "count_parameters",
    "flops_per_token",
    "generate",
    "token_loss",
]

NORMS = ("rms", "layer")
POSITIONS = ("rope", "learned")
ACTIVATIONS = ("relu2", "gelu")
CACHED_LOOPS = ("all", "last")


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """Shape and options of a `Transformer`, checked when it is made.

    Parameters
    ----------
    vocab_size : int
        Number of tokens V; 256 reads bytes.
    num_layers, hidden_size, num_heads : int
        L, d and H. H must divide d; with rotary positions d / H must be even.
    num_kv_heads : int or None
        Grouped-query attention: so many heads of keys and values, a divisor of H, each of which
        serves H / num_kv_heads heads of queries. None: as many as queries, H.
    window : int or None
        Sliding-window attention: a token sees so many tokens, itself and those right before it.
        Decoders only. None: all that are before it.
    max_length : int
        Longest sequence, prompt and generated tokens together.
    causal : bool
        True: a decoder, each token sees itself and what is before it. False: an encoder.
    norm : {"rms", "layer"}
        "rms": RMSNorm without parameters, and no biases. "layer": LayerNorm with gain and bias,
        and a bias in every linear map but the head.
    position : {"rope", "learned"}
        Rotary positions, or a learned vector per position that is added to the embedding.
    rope_base : float
        Base of the rotation frequencies, above 1.
    qk_norm : bool
        RMS-normalise the queries and keys of each head, after the rotation.
    activation : {"relu2", "gelu"}
        Squared ReLU, or the exact GELU.
    mlp_ratio : int
        Hidden size of the MLP, in units of d.
    logit_cap : float or None
        The logits become c tanh(z / c), so that none exceeds c. None leaves them alone.
    zero_output : bool
        Start the output projections of attention and MLP at zero: a new block is the identity.
    embedding_norm : bool
        Normalise the embedding before the first block.

    Raises
    ------
    ValueError
        If a value is not allowed. The message names the argument, the value and what is allowed.

    Examples
    --------
    >>> TransformerConfig(num_layers=2, hidden_size=64, num_heads=4).head_size
    16
    >>> TransformerConfig(norm="batch")
    Traceback (most recent call last):
        ...
    ValueError: norm must be one of ('rms', 'layer'), got 'batch'

    Notes
    -----
    The defaults follow the public implementation of Fu et al. (2026), "Simply Stabilizing the Loop
    via Fully Looped Transformer", whose sizes are in `unrolled.looped.model`.
    """

    vocab_size: int = 256
    num_layers: int = 6
    hidden_size: int = 384
    num_heads: int = 3
    num_kv_heads: int | None = None
    window: int | None = None
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
        for name in (
            "vocab_size",
            "num_layers",
            "hidden_size",
            "num_heads",
            "max_length",
            "mlp_ratio",
        ):
            require_count(getattr(self, name), name)
        for name, allowed in (
            ("norm", NORMS),
            ("position", POSITIONS),
            ("activation", ACTIVATIONS),
        ):
            require_choice(getattr(self, name), name, allowed)
        _require(self.rope_base > 1, "rope_base", self.rope_base, "above 1")
        cap = self.logit_cap
        _require(cap is None or cap > 0, "logit_cap", cap, "None or above 0")
        divisor = f"a divisor of hidden_size = {self.hidden_size}"
        _require(self.hidden_size % self.num_heads == 0, "num_heads", self.num_heads, divisor)
        even = self.position != "rope" or self.head_size % 2 == 0
        _require(even, "hidden_size / num_heads", self.head_size, "even for position='rope'")
        self._check_attention()

    def _check_attention(self) -> None:
        if self.num_kv_heads is not None:
            require_count(self.num_kv_heads, "num_kv_heads")
            divisor = f"None or a divisor of num_heads = {self.num_heads}"
            fits = self.num_heads % self.num_kv_heads == 0
            _require(fits, "num_kv_heads", self.num_kv_heads, divisor)
        if self.window is not None:
            require_count(self.window, "window")
            _require(self.causal, "window", self.window, "None for an encoder")

    @property
    def head_size(self) -> int:
        """Size of one attention head, d / H."""
        return self.hidden_size // self.num_heads

    @property
    def kv_size(self) -> int:
        """Size of all keys of a token, and of all its values: d, or less if heads share them."""
        heads = self.num_heads if self.num_kv_heads is None else self.num_kv_heads
        return heads * self.head_size

    @property
    def biases(self) -> bool:
        """Whether the linear maps of the blocks have biases."""
        return self.norm == "layer"


def _require(condition: bool, argument: str, value: object, allowed: str) -> None:
    if not condition:
        raise ValueError(f"{argument} must be {allowed}, got {value!r}")


def require_count(value: object, argument: str, least: int = 1) -> None:
    """Raise `ValueError` unless ``value`` is an integer of at least ``least``."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    _require(whole and value >= least, argument, value, f"an integer >= {least}")


def require_choice(value: object, argument: str, allowed: tuple[str, ...]) -> None:
    """Raise `ValueError` unless ``value`` is one of ``allowed``."""
    _require(value in allowed, argument, value, f"one of {allowed}")


class RMSNorm(nn.Module):
    r"""Divide each vector by its root mean square; no parameters.

    .. math:: \mathrm{norm}(x) = \frac{x}{\sqrt{\frac1d \sum_i x_i^2 + \epsilon}}

    with :math:`\epsilon` the machine epsilon, so that every vector comes out with length
    :math:`\sqrt d`.

    Examples
    --------
    >>> RMSNorm()(torch.tensor([3.0, 4.0])).square().mean()
    tensor(1.0000)
    """

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension of ``x`` (..., d)."""
        return F.rms_norm(x, x.shape[-1:])


def _make_norm(config: TransformerConfig) -> nn.Module:
    return RMSNorm() if config.norm == "rms" else nn.LayerNorm(config.hidden_size)


class RotaryPositions(nn.Module):
    r"""Turn pairs of channels by an angle that grows with the position.

    .. math::

       (x_i + \mathrm i\, x_{i + D/2}) \;\mapsto\;
       (x_i + \mathrm i\, x_{i + D/2})\; e^{\mathrm i\, n\, b^{-2i/D}},
       \qquad i = 0, \dots, D/2 - 1

    at position n, so that the product of a turned query and a turned key depends on the distance
    of their positions alone.

    Parameters
    ----------
    head_size : int
        D, even.
    max_length : int
        Number of positions in the table.
    base : float
        b.

    Examples
    --------
    >>> rotary = RotaryPositions(head_size=4, max_length=8)
    >>> x = torch.randn(1, 8, 2, 4)                      # (B, N, H, D)
    >>> torch.equal(rotary(x)[:, 0], x[:, 0])            # position 0 is not turned
    True

    Notes
    -----
    J. Su et al. (2021), "RoFormer". The public implementation of Fu et al. (2026) turns the other
    way, which is the same model with the two halves of each head's queries and keys swapped.
    """

    def __init__(self, head_size: int, max_length: int, base: float = 10_000.0) -> None:
        super().__init__()
        require_count(head_size, "head_size")
        _require(head_size % 2 == 0, "head_size", head_size, "even")
        self.base = base
        for name in ("cos", "sin"):
            self.register_buffer(name, torch.empty(max_length, 1, head_size), persistent=False)
        self.reset_tables()

    def reset_tables(self) -> None:
        """Compute the tables anew, on their device (after ``to_empty`` they hold nothing)."""
        length, _, size = self.cos.shape
        exponents = torch.arange(0, size, 2, dtype=torch.float64, device=self.cos.device) / size
        positions = torch.arange(length, dtype=torch.float64, device=self.cos.device)
        # angle[n, i] = n b^(-2i/D)
        angles = torch.outer(positions, self.base**-exponents).unsqueeze(1)  # (N, 1, D/2)
        self.cos.copy_(torch.cat((angles.cos(), angles.cos()), dim=-1))
        self.sin.copy_(torch.cat((-angles.sin(), angles.sin()), dim=-1))

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        """Turn ``x`` (B, N, H, D), whose first position is ``offset``."""
        stop = offset + x.shape[1]
        cos, sin = self.cos[offset:stop].to(x.dtype), self.sin[offset:stop].to(x.dtype)
        # (a, b) -> (a cos - b sin, b cos + a sin): roll swaps a and b, the sine carries the sign
        return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, dims=-1), sin)


def _make_rotary(config: TransformerConfig) -> RotaryPositions | None:
    if config.position == "learned":
        return None
    return RotaryPositions(config.head_size, config.max_length, config.rope_base)


class KeyValueCache:
    """The keys and values of the tokens that a model has read, for generation.

    Parameters
    ----------
    loops : {"all", "last"}
        What is kept of a looped model; a plain Transformer has one loop, and both are the same.

        "all": every loop of every layer. With it, generation equals a full pass over the whole
        sequence. It holds 2 K L N d numbers a sequence; with grouped queries fewer by the share of
        the heads, and with a window at most as many tokens.

        "last": the last loop of every layer, 2 L N d numbers whatever K is. This is what the
        public implementation of the Fully Looped Transformer does. It is *not* a full pass: in the
        loops before the last, the new tokens of a call see each other and nothing earlier.

    Examples
    --------
    >>> model = Transformer(TransformerConfig(num_layers=1, hidden_size=8, num_heads=1))
    >>> cache = KeyValueCache()
    >>> _ = model(torch.tensor([[1, 2, 3]]), cache=cache)   # read three tokens
    >>> _ = model(torch.tensor([[4]]), cache=cache)         # and one more
    >>> cache.length
    4
    """

    def __init__(self, loops: str = "all") -> None:
        require_choice(loops, "loops", CACHED_LOOPS)
        self.loops = loops
        self.length = 0
        self._num_loops: int | None = None
        self._entries: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def slot(self, layer: int, loop: int = 0, num_loops: int = 1) -> CacheSlot:
        """Return the place of one layer in one of ``num_loops`` loops."""
        if self._num_loops not in (None, num_loops):
            raise ValueError(
                f"num_loops must be {self._num_loops}, with which the cache was filled, "
                f"got {num_loops}"
            )
        self._num_loops = num_loops
        keeps = self.loops == "all" or loop == num_loops - 1
        return CacheSlot(self, (loop, layer) if keeps else None)

    def advance(self, num_tokens: int) -> None:
        """Count the tokens of a finished pass as read."""
        self.length += num_tokens

    def num_bytes(self) -> int:
        """Memory of all kept keys and values."""
        return sum(tensor.nbytes for entry in self._entries.values() for tensor in entry)


class CacheSlot(NamedTuple):
    """The place of one layer, in one loop, in a `KeyValueCache`."""

    cache: KeyValueCache
    index: tuple[int, int] | None

    @property
    def length(self) -> int:
        """How many tokens were read before this pass."""
        return self.cache.length

    def extend(
        self, key: Tensor, value: Tensor, window: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Add new keys and values (B, H, n, D); return all that may be attended to.

        With a window, only so many are kept for the next call: what comes later sees no others.
        """
        if self.index is None:
            return key, value
        entries = self.cache._entries
        if self.index in entries:
            old_key, old_value = entries[self.index]
            key = torch.cat((old_key, key), dim=2)  # (B, H, N + new, D)
            value = torch.cat((old_value, value), dim=2)
        kept = slice(None) if window is None else slice(-window, None)
        entries[self.index] = (key[:, :, kept], value[:, :, kept])
        return key, value


class Attention(nn.Module):
    r"""Multi-head attention whose queries may come from another state than keys and values.

    .. math:: \mathrm{Attn}(q, k, v) = W_O\, \mathrm{softmax}\!\left(
              \frac{(W_Q q)(W_K k)^\top}{\sqrt{D}}\right) W_V v

    per head, with D = d / H; queries and keys are first turned by `RotaryPositions` and, with
    ``qk_norm``, RMS-normalised. With ``num_kv_heads`` several heads of queries share one of keys
    and values; with ``window`` a query sees the last so many keys only.

    Parameters
    ----------
    config : TransformerConfig
    rotary : RotaryPositions, optional
        Shared by the blocks of a model; made here when it is not given.

    Notes
    -----
    J. Ainslie et al. (2023), "GQA", EMNLP; A. Jiang et al. (2023), "Mistral 7B", arXiv 2310.06825.
    """

    def __init__(self, config: TransformerConfig, rotary: RotaryPositions | None = None) -> None:
        super().__init__()
        d, bias = config.hidden_size, config.biases
        self.config = config
        self.query = nn.Linear(d, d, bias=bias)
        self.key = nn.Linear(d, config.kv_size, bias=bias)
        self.value = nn.Linear(d, config.kv_size, bias=bias)
        self.output = nn.Linear(d, d, bias=bias)
        self.rotary = _make_rotary(config) if rotary is None else rotary

    def forward(
        self,
        query: Tensor,
        context: Tensor,
        *,
        mask: Tensor | None = None,
        cache: CacheSlot | None = None,
    ) -> Tensor:
        """Attend from ``query`` to ``context``.

        Parameters
        ----------
        query, context : Tensor
            (B, N, d); ``context`` gives the keys and the values.
        mask : Tensor, optional
            Boolean, True where a query may look, broadcast to (B, H, N, M). By default all keys,
            or with ``causal`` those that are not after the query, and not before its window.
        cache : CacheSlot, optional

        Returns
        -------
        Tensor
            (B, N, d), in the basis of the residual stream.
        """
        offset = 0 if cache is None else cache.length
        q = self._place(self._split(self.query(query)), offset).transpose(1, 2)  # (B, H, N, D)
        k = self._place(self._split(self.key(context)), offset).transpose(1, 2)
        v = self._split(self.value(context)).transpose(1, 2)
        if cache is not None:
            k, v = cache.extend(k, v, self.config.window)  # (B, H, M, D)
        y = self._attend(q, k, v, mask)
        return self.output(y.transpose(1, 2).flatten(2))  # (B, N, d)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.config.head_size))  # (B, N, H, D)

    def _place(self, x: Tensor, offset: int) -> Tensor:
        x = x if self.rotary is None else self.rotary(x, offset)
        return F.rms_norm(x, x.shape[-1:]) if self.config.qk_norm else x

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        num_queries, num_keys, window = q.shape[2], k.shape[2], self.config.window
        causal = self.config.causal and mask is None
        narrow = window is not None and window < num_keys
        if causal and (narrow or 1 < num_queries < num_keys):
            mask = _causal_mask(num_queries, num_keys, q.device, window)
        # torch's is_causal aligns the first query with the first key: right only for as many keys.
        whole = causal and mask is None and num_queries == num_keys
        shared = k.shape[1] < q.shape[1]
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=whole, enable_gqa=shared
        )


def _causal_mask(
    num_queries: int, num_keys: int, device: torch.device, window: int | None = None
) -> Tensor:
    # The last query sees every key, the one before it all but the last, and so on.
    mask = torch.ones(num_queries, num_keys, dtype=torch.bool, device=device)
    last = num_keys - num_queries
    seen = mask.tril(last)
    return seen if window is None else seen.triu(last - window + 1)


class MLP(nn.Module):
    r"""Two linear maps with a pointwise activation between them.

    .. math:: \mathrm{MLP}(x) = W_2\, \sigma(W_1 x), \qquad \sigma(z) = \max(z, 0)^2
              \text{ or } \mathrm{GELU}(z)
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        d, hidden = config.hidden_size, config.mlp_ratio * config.hidden_size
        self.activation = config.activation
        self.hidden = nn.Linear(d, hidden, bias=config.biases)
        self.output = nn.Linear(hidden, d, bias=config.biases)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x`` (B, N, d) to the same shape."""
        z = self.hidden(x)  # (B, N, mlp_ratio d)
        return self.output(F.relu(z).square() if self.activation == "relu2" else F.gelu(z))


class Block(nn.Module):
    r"""One Transformer block: attention, then an MLP, each on a normalised input, each added.

    .. math::

       x \leftarrow x + \mathrm{Attn}(q = \mathrm{norm}(h \text{ or } x), k = v = \mathrm{norm}(x)),
       \qquad x \leftarrow x + \mathrm{MLP}(\mathrm{norm}(x))

    Parameters
    ----------
    config : TransformerConfig
    rotary : RotaryPositions, optional
        Shared by the blocks of a model; made here when it is not given.

    Examples
    --------
    >>> block = Block(TransformerConfig(hidden_size=8, num_heads=2))
    >>> x, h = torch.randn(1, 5, 8), torch.randn(1, 5, 8)
    >>> block(x).shape, block(x, query=h).shape
    (torch.Size([1, 5, 8]), torch.Size([1, 5, 8]))

    Notes
    -----
    Fu et al. (2026); derived at :eq:`eq-looped-block`.
    """

    def __init__(self, config: TransformerConfig, rotary: RotaryPositions | None = None) -> None:
        super().__init__()
        self.attention_norm = _make_norm(config)
        self.attention = Attention(config, rotary)
        self.mlp_norm = _make_norm(config)
        self.mlp = MLP(config)

    def forward(
        self,
        x: Tensor,
        query: Tensor | None = None,
        *,
        normed: bool = False,
        mask: Tensor | None = None,
        cache: CacheSlot | None = None,
    ) -> Tensor:
        """Return the residual stream after the block.

        Parameters
        ----------
        x : Tensor
            The residual stream (B, N, d).
        query : Tensor, optional
            The state h (B, N, d) that asks in place of ``x``; it is normalised here like ``x``.
        normed : bool
            Whether ``query`` is normalised already: blocks with a parameter-free norm share it.
        mask, cache
            As in `Attention`.

        Returns
        -------
        Tensor
            (B, N, d).
        """
        asking = context = self.attention_norm(x)
        if query is not None:
            asking = query if normed else self.attention_norm(query)
        x = x + self.attention(asking, context, mask=mask, cache=cache)
        return x + self.mlp(self.mlp_norm(x))


class TransformerOutput(NamedTuple):
    """What a `Transformer` returns.

    ``logits`` (B, N, V); on request ``hidden_states``, the L + 1 states (B, N, d) of the residual
    stream, embedding first and without the final norm; and ``loss`` when targets were given.
    """

    logits: Tensor
    hidden_states: list[Tensor] | None = None
    loss: Tensor | None = None


class Transformer(nn.Module):
    """Embedding, L blocks, norm, head: a decoder, or with ``causal=False`` an encoder.

    Parameters
    ----------
    config : TransformerConfig

    Examples
    --------
    >>> model = Transformer(TransformerConfig(num_layers=2, hidden_size=16, num_heads=2))
    >>> tokens = torch.tensor([[72, 101, 108, 108, 111]])
    >>> output = model(tokens, hidden_states=True)
    >>> output.logits.shape, len(output.hidden_states)
    (torch.Size([1, 5, 256]), 3)

    Notes
    -----
    The embedding and the head are two matrices, as in the public implementation of Fu et al.
    (2026); assign ``model.head.weight = model.embedding.weight`` to tie them.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.positions = None
        if config.position == "learned":
            self.positions = nn.Embedding(config.max_length, config.hidden_size)
        self.embedding_norm = _make_norm(config) if config.embedding_norm else nn.Identity()
        self.rotary = _make_rotary(config)
        self.blocks = nn.ModuleList(Block(config, self.rotary) for _ in range(config.num_layers))
        self.norm = _make_norm(config)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        r"""Draw all weights anew from torch's global generator.

        Embedding N(0, 1), head N(0, 0.001²), learned positions N(0, 0.02²), output projections zero
        (with ``zero_output``), every other matrix uniform with standard deviation
        :math:`1 / \sqrt d`, biases zero.
        """
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                module.reset_parameters()
            elif isinstance(module, RotaryPositions):
                module.reset_tables()
        self.embedding.weight.normal_()
        self.head.weight.normal_(std=0.001)
        if self.positions is not None:
            self.positions.weight.normal_(std=0.02)
        for block in self.blocks:
            self._reset_block(block)

    def _reset_block(self, block: Block) -> None:
        # A uniform variable on [-b, b] has standard deviation b / sqrt(3).
        bound = math.sqrt(3 / self.config.hidden_size)
        for linear in (m for m in block.modules() if isinstance(m, nn.Linear)):
            linear.weight.uniform_(-bound, bound)
            if linear.bias is not None:
                linear.bias.zero_()
        if self.config.zero_output:
            block.attention.output.weight.zero_()
            block.mlp.output.weight.zero_()

    def token_embedding(self, tokens: Tensor, offset: int = 0) -> Tensor:
        """Look up ``tokens`` (B, N), the first of which has position ``offset``; no norm yet."""
        e = self.embedding(tokens)  # (B, N, d)
        if self.positions is None:
            return e
        return e + self.positions.weight[offset : offset + tokens.shape[1]]

    def embed(self, tokens: Tensor, offset: int = 0) -> Tensor:
        """Return what enters the first block: the embedding (B, N, d), normalised."""
        return self.embedding_norm(self.token_embedding(tokens, offset))

    def logits_from(self, state: Tensor) -> Tensor:
        """Read the logits (B, N, V) off a state (B, N, d) of the residual stream."""
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
        """Read ``tokens``.

        Parameters
        ----------
        tokens : Tensor
            Integers (B, N).
        hidden_states : bool
            Also return the L + 1 states of the residual stream.
        cache : KeyValueCache, optional
            Tokens read before these; these are added to it. Decoders only.
        attention_mask : Tensor, optional
            (B, N), nonzero for tokens, zero for padding, which nobody attends to. What comes out
            at a padding position means nothing.
        targets : Tensor, optional
            Integers (B, N); the mean cross-entropy is returned as ``loss``. Targets of -100 do not
            count.

        Returns
        -------
        TransformerOutput

        Raises
        ------
        TypeError, ValueError
            If ``tokens`` are not integers (B, N), or longer, with those in the cache, than
            ``max_length``; if the mask does not fit.
        """
        mask = self._check(tokens, cache, attention_mask)
        x = self.embed(tokens, _length(cache))
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
        """Return the mean cross-entropy, in nats per token, of ``targets`` (B, N)."""
        return self(tokens, targets=targets).loss

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Sort the parameters by the update rule that suits them.

        Returns
        -------
        dict
            "embedding" and "head" (tables of V rows, learned positions with them), "matrices" (the
            linear maps of the blocks, which Muon takes) and "other" (gains and biases).
        """
        tables = [self.embedding] + ([] if self.positions is None else [self.positions])
        groups = {"embedding": [table.weight for table in tables], "head": [self.head.weight]}
        if self.head.weight is self.embedding.weight:
            groups["head"] = []
        groups["matrices"] = [p for p in self.blocks.parameters() if p.ndim == 2]
        sorted_ids = {id(p) for group in groups.values() for p in group}
        groups["other"] = [p for p in self.parameters() if id(p) not in sorted_ids]
        return groups

    def _check(
        self, tokens: Tensor, cache: KeyValueCache | None, attention_mask: Tensor | None
    ) -> Tensor | None:
        if tokens.is_floating_point() or tokens.dtype == torch.bool:
            raise TypeError(f"tokens must be integers, got {tokens.dtype}")
        _require(tokens.ndim == 2, "tokens", tuple(tokens.shape), "of shape (B, N)")
        _require(cache is None or self.config.causal, "cache", cache, "None for an encoder")
        length, limit = _length(cache) + tokens.shape[1], self.config.max_length
        _require(length <= limit, "length of tokens and cache", length, f"at most {limit}")
        return self._mask(tokens, cache, attention_mask)

    def _mask(
        self, tokens: Tensor, cache: KeyValueCache | None, attention_mask: Tensor | None
    ) -> Tensor | None:
        if attention_mask is None:
            return None
        _require(cache is None, "attention_mask", "a mask", "None with a cache")
        shape, n = tuple(attention_mask.shape), tokens.shape[1]
        fits = attention_mask.shape == tokens.shape
        _require(fits, "attention_mask", shape, f"of the shape of tokens, {tuple(tokens.shape)}")
        mask = attention_mask.bool()[:, None, None, :]  # (B, 1, 1, N)
        if not self.config.causal:
            return mask
        return mask & _causal_mask(n, n, mask.device, self.config.window)


def _length(cache: KeyValueCache | None) -> int:
    return 0 if cache is None else cache.length


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy, in nats per token, of logits (B, N, V) and targets (B, N).

    Targets of -100 do not count.
    """
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


def count_parameters(model: nn.Module) -> int:
    """Count the numbers in all parameters, shared ones once.

    Examples
    --------
    >>> count_parameters(nn.Linear(3, 2))
    8
    """
    return sum(parameter.numel() for parameter in model.parameters())


def flops_per_token(
    config: TransformerConfig, num_loops: int = 1, length: int | None = None
) -> int:
    r"""Count the floating-point operations of a forward pass, per token.

    .. math:: \underbrace{K L \bigl( 2 (4 + 2 r) d^2 + 4 N d \bigr)}_{\text{blocks}}
              + \underbrace{2 d V}_{\text{head}}

    with r = ``mlp_ratio``: a multiplication and an addition for each weight, and twice N d of them
    in the attention of each token to N keys. A causal kernel may skip half of the attention part;
    it is counted in full, with a window to its width. Where heads share keys and values, 4 becomes
    2 + 2 ``kv_size`` / d. Norms and activations are not counted. A training step costs three times
    as much, four times with ``checkpoint_loops``.

    Parameters
    ----------
    config : TransformerConfig
    num_loops : int
        K; 1 for the plain Transformer. All injections cost the same.
    length : int, optional
        N, by default ``config.max_length``.

    Returns
    -------
    int

    Examples
    --------
    >>> config = TransformerConfig(num_layers=2, hidden_size=64, num_heads=2)
    >>> flops_per_token(config, num_loops=12, length=64)
    2785280

    Notes
    -----
    Derived at :eq:`eq-looped-flops`.
    """
    require_count(num_loops, "num_loops")
    d, n = config.hidden_size, config.max_length if length is None else length
    require_count(n, "length")
    keys = n if config.window is None else min(n, config.window)
    # 2 (4 + 2r) d² + 4 N d, where keys and values are as wide as queries
    block = 2 * ((2 + 2 * config.mlp_ratio) * d + 2 * config.kv_size) * d + 4 * keys * d
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
    """Continue a prompt by sampling one token after the other.

    Parameters
    ----------
    model : Transformer or LoopedTransformer
    prompt : Tensor
        Integers (N,) or (B, N), N at least 1.
    num_tokens : int
        How many tokens to add.
    temperature : float
        The logits are divided by it; 0 takes the likeliest token.
    top_k : int, optional
        Sample from the k likeliest tokens only.
    generator : torch.Generator, optional
        Source of randomness, by default torch's global one.
    use_cache : bool
        Read each token once and keep its keys and values. Without it the sequence is read anew for
        each token, and only its last ``max_length`` tokens, so that it may grow without end.
    num_loops : int, optional
        Loops at inference, for a looped model; by default those of the model.
    cache : KeyValueCache, optional
        An empty cache to fill, by default a new ``KeyValueCache("all")``.

    Returns
    -------
    Tensor
        Prompt and continuation, (N + num_tokens,) or (B, N + num_tokens).

    Raises
    ------
    ValueError
        If an argument is not allowed, or if prompt and continuation are longer than the model's
        ``max_length`` while the cache is used.

    Examples
    --------
    >>> model = Transformer(TransformerConfig(num_layers=1, hidden_size=8, num_heads=1))
    >>> generate(model, torch.tensor([1, 2, 3]), num_tokens=4).shape
    torch.Size([7])
    """
    _check_generation(model, prompt, num_tokens, temperature, top_k, use_cache, num_loops, cache)
    options = {} if num_loops is None else {"num_loops": num_loops}
    tokens = prompt.unsqueeze(0) if prompt.ndim == 1 else prompt  # (B, N)
    if use_cache:
        options["cache"] = KeyValueCache() if cache is None else cache
    unread = tokens
    for _ in range(num_tokens):
        if not use_cache:
            unread = tokens[:, -model.config.max_length :]
        logits = model(unread, **options).logits[:, -1]  # (B, V)
        unread = _sample(logits, temperature, top_k, generator)  # (B, 1)
        tokens = torch.cat((tokens, unread), dim=1)
    return tokens[0] if prompt.ndim == 1 else tokens


def _check_generation(
    model, prompt, num_tokens, temperature, top_k, use_cache, num_loops, cache
) -> None:
    shape = tuple(prompt.shape)
    _require(
        prompt.ndim in (1, 2) and prompt.shape[-1] > 0, "prompt", shape, "(N,) or (B, N), N >= 1"
    )
    require_count(num_tokens, "num_tokens", least=0)
    _require(temperature >= 0, "temperature", temperature, "at least 0")
    if top_k is not None:
        require_count(top_k, "top_k")
    loops = num_loops is None or hasattr(model, "num_loops")
    _require(loops, "num_loops", num_loops, "None for a model without loops")
    unused = cache is None or (use_cache and cache.length == 0)
    _require(unused, "cache", cache, "an empty cache, and None with use_cache=False")
    # The last token is sampled but never read.
    length, limit = shape[-1] + num_tokens - 1, model.config.max_length
    allowed = f"at most max_length = {limit}, or use_cache=False"
    _require(not use_cache or length <= limit, "length of prompt and tokens", length, allowed)


def _sample(
    logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator | None
) -> Tensor:
    if temperature == 0:
        return logits.argmax(dim=-1, keepdim=True)
    if top_k is not None and top_k < logits.shape[-1]:
        least = logits.topk(top_k).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    probabilities = torch.softmax(logits / temperature, dim=-1)
    return torch.multinomial(probabilities, 1, generator=generator)

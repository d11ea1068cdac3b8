r"""What can be said about a loop without training it: growth, directions, gradients, memory.

.. math::

   h^{(K)} = M^K e, \qquad
   \frac{d\mathcal{L}}{d\theta}
   = \sum_{k=1}^{K} \Bigl(\frac{\partial h^{(k)}}{\partial\theta_k}\Bigr)^{\!\top}
     J_{k+1}^\top \cdots J_K^\top\, g^{(K)}

:eq:`eq-looped-growth`, :eq:`eq-looped-bptt`. The functions on a `LoopedTransformer` measure; the
others are the closed forms that the chapter *Equations* derives.
"""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from unrolled.looped.model import INJECTIONS, LoopedTransformer
from unrolled.transformer import Block, token_loss

__all__ = [
    "alikeness",
    "block_bound",
    "gradient_count",
    "linear_states",
    "linear_walk",
    "loop_gradients",
    "path_sum",
    "query_jacobian",
    "saved_bytes",
    "scalar_sharpness",
]


# --- growth in the linear model -------------------------------------------------------------


def linear_states(matrix: Tensor, e: Tensor, num_loops: int, *, normed: bool = False) -> Tensor:
    r"""Return the states of the linear loop, with or without a norm between the loops.

    .. math:: h^{(k)} = M h^{(k-1)}, \qquad h^{(0)} = e

    With ``normed`` each state is scaled to length :math:`\sqrt d` (:eq:`eq-looped-norm`), and the
    loop is the power iteration. Source: :eq:`eq-looped-growth`, :eq:`eq-looped-power`.

    Parameters
    ----------
    matrix : Tensor
        M, of shape (d, d).
    e : Tensor
        The embedding, of shape (d,).
    num_loops : int
        K, at least 1.
    normed : bool
        Whether to norm each state.

    Returns
    -------
    Tensor
        The states, of shape (K, d).

    Examples
    --------
    >>> linear_states(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.ones(2), 3)[-1]
    tensor([8., 1.])
    """
    _at_least_one("num_loops", num_loops)
    states, h = [], e
    for _ in range(num_loops):
        h = matrix @ h
        h = F.rms_norm(h, h.shape) if normed else h
        states.append(h)
    return torch.stack(states)  # (K, d)


def linear_walk(
    strength: float,
    num_blocks: int,
    *,
    shared: bool,
    size: int = 256,
    generator: torch.Generator | None = None,
) -> list[float]:
    r"""Return the norms of :math:`(I + A_n) \cdots (I + A_1) e` for n = 0, 1, ..., num_blocks.

    .. math:: A = s\, G / \sqrt d, \qquad G_{ij} \sim \mathcal{N}(0, 1)

    Source: :eq:`eq-looped-paths`.

    Parameters
    ----------
    strength : float
        s.
    num_blocks : int
        Number of blocks, at least 1.
    shared : bool
        One A for all blocks, or a fresh one in each.
    size : int
        d.
    generator : torch.Generator or None
        Source of randomness; None takes torch's global one.

    Returns
    -------
    list of float
        num_blocks + 1 norms; the first is 1.

    Examples
    --------
    >>> linear_walk(0.0, 3, shared=True)
    [1.0, 1.0, 1.0, 1.0]
    """
    _at_least_one("num_blocks", num_blocks)

    def draw() -> Tensor:
        return strength * torch.randn(size, size, generator=generator) / math.sqrt(size)

    x, A, norms = torch.eye(size)[0], draw(), [1.0]
    for block in range(num_blocks):
        A = A if shared or block == 0 else draw()
        x = x + A @ x
        norms.append(x.norm().item())
    return norms


def path_sum(strength: float, num_blocks: int, *, shared: bool) -> float:
    r"""Return the expected norm (root of the mean square) after num_blocks blocks, for large d.

    .. math::

       \Bigl(\sum_j \tbinom{n}{j}^2 s^{2j}\Bigr)^{1/2} \text{(shared)}, \qquad
       \Bigl(\sum_j \tbinom{n}{j} s^{2j}\Bigr)^{1/2} = (1 + s^2)^{n/2} \text{(fresh)}

    Source: :eq:`eq-looped-paths`.

    Examples
    --------
    >>> path_sum(1.0, 2, shared=True) ** 2, path_sum(1.0, 2, shared=False) ** 2
    (6.0, 4.0)
    """
    power = 2 if shared else 1
    terms = (math.comb(num_blocks, j) ** power * strength ** (2 * j) for j in range(num_blocks + 1))
    return math.sqrt(math.fsum(terms))


# --- what a block can add, and what a query lets through --------------------------------------


def block_bound(block: Block) -> float:
    r"""Return a number that the block's addition to a token's stream never exceeds.

    .. math::

       c = \sqrt{H d}\, \lVert W_O\rVert \lVert W_V\rVert
           + d\, \lVert W_\downarrow\rVert \lVert W_\uparrow\rVert^2

    in spectral norms. Source: :eq:`eq-looped-bound`.

    Parameters
    ----------
    block : Block
        With parameter-free RMSNorm and squared ReLU.

    Returns
    -------
    float
        c.

    Raises
    ------
    ValueError
        If the block has another norm or activation: the bound is not theirs.
    """
    config = block.attention.config
    if (config.norm, config.activation) != ("rms", "relu2"):
        raise ValueError(
            f"block must have norm='rms' and activation='relu2', got {config.norm!r} and "
            f"{config.activation!r}"
        )

    def size(linear: torch.nn.Linear) -> float:
        return torch.linalg.matrix_norm(linear.weight.detach(), ord=2).item()

    d, attention, mlp = config.hidden_size, block.attention, block.mlp
    mixing = math.sqrt(config.num_heads * d) * size(attention.output) * size(attention.value)
    return mixing + d * size(mlp.output) * size(mlp.hidden) ** 2


def query_jacobian(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    r"""Return the Jacobian of one head's output in its query.

    .. math::

       \frac{\partial o}{\partial q}
       = \frac{1}{\sqrt D} \sum_m a_m (v_m - o)(k_m - \bar k)^\top

    Source: :eq:`eq-looped-covariance`, with the weights a of :eq:`eq-looped-softmax`.

    Parameters
    ----------
    q : Tensor
        Query, of shape (D,).
    k, v : Tensor
        Keys and values, of shape (M, D).

    Returns
    -------
    Tensor
        Of shape (D, D).

    Examples
    --------
    >>> query_jacobian(torch.ones(2), torch.ones(1, 2), torch.ones(1, 2)).abs().max()
    tensor(0.)
    """
    scale = math.sqrt(q.shape[-1])
    a = torch.softmax(k @ q / scale, dim=-1)  # (M,)
    return (v - a @ v).T @ (a[:, None] * (k - a @ k)) / scale


# --- measurements on a looped model ---------------------------------------------------------


@torch.no_grad()
def alikeness(model: LoopedTransformer, tokens: Tensor) -> tuple[list[float], list[float]]:
    r"""Return, per loop, how alike the tokens' states are and how like its embedding each is.

    .. math::

       \frac{1}{T^2} \sum_{i,j} u_i^\top u_j = \Bigl\lVert \frac1T \sum_i u_i \Bigr\rVert^2,
       \qquad \frac1T \sum_i u_i^\top \hat e_i

    for the unit vectors u of all T tokens. Source: :eq:`eq-looped-alikeness`.

    Parameters
    ----------
    model : LoopedTransformer
        Any variant.
    tokens : Tensor
        Of shape (B, N).

    Returns
    -------
    tuple of two lists of float
        Mean cosine between tokens, and mean cosine with the embedding, for each of the K loops.
    """
    e = F.normalize(model.embed(tokens).flatten(0, 1), dim=-1)  # (T, d)
    states = model(tokens, loop_states=True).loop_states
    units = [F.normalize(x.flatten(0, 1), dim=-1) for x in states]
    between = [u.mean(0).square().sum().item() for u in units]
    return between, [(u * e).sum(-1).mean().item() for u in units]


def loop_gradients(model: LoopedTransformer, inputs: Tensor, targets: Tensor) -> Tensor:
    r"""Return the contribution of each loop to the gradient of the shared blocks.

    Each loop gets its own copy of the blocks; the gradient of copy k is the k-th term of

    .. math::

       \frac{d\mathcal{L}}{d\theta}
       = \sum_{k=1}^{K} \Bigl(\frac{\partial h^{(k)}}{\partial\theta_k}\Bigr)^{\!\top} g^{(k)}

    for the loss of the last loop. Source: :eq:`eq-looped-bptt`.

    Parameters
    ----------
    model : LoopedTransformer
        Any variant; it is left as it was.
    inputs, targets : Tensor
        Of shape (B, N).

    Returns
    -------
    Tensor
        Of shape (K, number of weights of the blocks), first loop first.
    """
    shared, state = model.blocks, None
    copies = [copy.deepcopy(shared) for _ in range(model.num_loops)]
    e = model.embed(inputs).detach()
    try:
        for blocks in copies:
            model.blocks = blocks
            state = model.loop(e, state)[-1]
    finally:
        model.blocks = shared
    loss = token_loss(model.logits_from(state), targets)
    weights = [weight for blocks in copies for weight in blocks.parameters()]
    gradients = torch.autograd.grad(loss, weights)
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    return flat.view(model.num_loops, -1)  # (K, P)


def saved_bytes(model: LoopedTransformer, inputs: Tensor, targets: Tensor) -> int:
    """Return how many bytes autograd keeps between the forward and the backward pass.

    Each storage is counted once, weights not at all. Source: :eq:`eq-looped-memory`.

    Parameters
    ----------
    model : LoopedTransformer
        With or without checkpointing of its loops.
    inputs, targets : Tensor
        Of shape (B, N).

    Returns
    -------
    int
        Bytes.
    """
    kept: dict[int, int] = {}
    ours = {weight.untyped_storage().data_ptr() for weight in model.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in ours:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model.loss(inputs, targets)
    del loss  # it held the graph, and with it every storage, until here
    return sum(kept.values())


# --- the gradient in closed form --------------------------------------------------------------


def gradient_count(injection: str, num_loops: int, num_layers: int) -> float:
    r"""Return how many times the first step counts the gradient of the last block.

    With zero output projections every state is e, and the gradient of the last block's output
    projections is that of one loop times

    .. math:: \sum_{k=0}^{K-1} r^k

    with the ratio r = 1 for LT, 1/2 for LT_i, :math:`1 - 2^{-L}` for FLA and 0 for LT_ia and FLT.
    Source: :eq:`eq-looped-count`.

    Parameters
    ----------
    injection : str
        One of ``unrolled.looped.model.INJECTIONS``.
    num_loops, num_layers : int
        K and L, at least 1.

    Returns
    -------
    float
        Between 1 and K.

    Raises
    ------
    ValueError
        If a value is outside what is allowed.

    Examples
    --------
    >>> [gradient_count(name, 3, 1) for name in ("original", "input", "fla", "flt")]
    [3.0, 1.75, 1.75, 1.0]
    """
    if injection not in INJECTIONS:
        raise ValueError(f"injection must be one of {INJECTIONS}, got {injection!r}")
    _at_least_one("num_loops", num_loops)
    _at_least_one("num_layers", num_layers)
    ratios = {"attention": 0.0, "flt": 0.0, "input": 0.5, "fla": 1 - 0.5**num_layers}
    ratio = ratios.get(injection, 1.0)
    return math.fsum(ratio**k for k in range(num_loops))


def scalar_sharpness(num_loops: int, *, shared: bool = True) -> float:
    r"""Return the largest curvature of the scalar loop at its minimum w = 1.

    .. math::

       \mathcal{L}(w) = \tfrac12 (w^K - 1)^2, \qquad \mathcal{L}''(1) = K^2

    with K separate weights it is K. Gradient descent is stable below 2 over the curvature.
    Source: :eq:`eq-looped-sharpness`.

    Examples
    --------
    >>> scalar_sharpness(12), scalar_sharpness(12, shared=False)
    (144.0, 12.0)
    """
    _at_least_one("num_loops", num_loops)
    return float(num_loops**2 if shared else num_loops)


def _at_least_one(name: str, value: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be an integer >= 1, got {value!r}")

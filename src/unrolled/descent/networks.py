r"""Networks whose layers are steps on an objective: ISTA, LISTA, UT and DUST.

A sequence is T frames of one patch, each of P pixels: ``frames`` (B, T, P). An iteration becomes a
network when its first L steps are the layers and its matrices are learned:

====================  ==============================================  ===========================
layer                 objective                                       step
====================  ==============================================  ===========================
`gradient_layer`      least squares                                   gradient
`ista_layer`          least squares + l1                              proximal gradient
`LISTALayer`          none: two free matrices                         looks like ISTA's
`DUSTLayer`           least squares + l1 + coupling of the frames     proximal gradient
`UTLayer`             coupling of the frames; then a quadratic        majorise-minimise; then
                      energy on the orthant                           proximal gradient
====================  ==============================================  ===========================

**Attention** comes from the coupling of the frames, :eq:`eq-descent-coupling`,

.. math::

   E_V(H) = -\sum_t \log \sum_s \exp\bigl(-\tfrac12 \lVert V(h_t - h_s)\rVert^2\bigr).

A log-sum-exp is convex in the exponents, so the energy is concave in the squared distances and
lies below its tangent, whose slopes are the attention weights
:math:`a_{ts} = \mathrm{softmax}_s(-\frac12\lVert V(h_t - h_s)\rVert^2)`. The tangent,
:math:`\frac12\sum_{ts} a_{ts} \lVert V(h_t - h_s)\rVert^2` and a constant, is quadratic in H: a
majoriser that one step can lower.

Every network returns the states after 0, 1, ..., L layers, a readout of each, and on request the
energy before and after each layer. The first readout :math:`\Phi_0` is fixed by default, so that
no training can raise its loss.

Sources: K. Gregor and Y. LeCun (2010); Y. Yang, Z. Huang and D. Wipf (2022), "Transformers from an
Optimization Perspective"; B. De Weerdt, Y. C. Eldar and N. Deligiannis (2024), "Deep Unfolding
Transformers for Sparse Recovery of Video", without the sensing matrix. Neither paper's code was
used. Sizes, starting values, the fixed :math:`\Phi_0` and the cooling are our choices.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from unrolled.optimization import require
from unrolled.transformer import require_choice, require_count

__all__ = [
    "DUST",
    "INITIALISATIONS",
    "LISTA",
    "UT",
    "DUSTLayer",
    "LISTALayer",
    "UTLayer",
    "UnrolledNetwork",
    "UnrolledOutput",
    "attention_weights",
    "clip_eigenvalues",
    "cooling",
    "cosine_dictionary",
    "coupling_bound",
    "coupling_energy",
    "coupling_gradient",
    "coupling_majoriser",
    "descent_margin",
    "gradient_layer",
    "ista_layer",
    "kernel_energy",
    "lasso_objective",
    "orthant_energy",
    "safe_step",
    "sequence_objective",
    "soft_threshold",
    "unroll",
]

INITIALISATIONS = ("cosine", "random")
"""How a `UT` can start: as a smoother of cosine coefficients over the frames, or at random."""


# --- the plain iterations ---------------------------------------------------------------------


def unroll(layer: Callable[[Tensor], Tensor], start: Tensor, num_layers: int) -> list[Tensor]:
    r"""Return the states of an iteration: its start, and what follows after each layer.

    .. math:: h_l = F(h_{l-1}), \qquad l = 1, \dots, L

    Parameters
    ----------
    layer : callable
        F, from a state to the next.
    start : Tensor
        :math:`h_0`.
    num_layers : int
        L, at least 1.

    Returns
    -------
    list of Tensor
        L + 1 states.

    Raises
    ------
    ValueError
        If ``num_layers`` is not an integer of at least 1.

    Examples
    --------
    >>> unroll(lambda h: h / 2, torch.tensor(8.0), 3)
    [tensor(8.), tensor(4.), tensor(2.), tensor(1.)]
    """
    require_count(num_layers, "num_layers")
    states = [start]
    for _ in range(num_layers):
        states.append(layer(states[-1]))
    return states


def soft_threshold(x: Tensor, threshold: Tensor | float) -> Tensor:
    r"""Shrink every entry towards 0: the proximal operator of the l1 norm.

    .. math::

       S_\kappa(x) = \operatorname{sign}(x)\, \max(|x| - \kappa, 0)
       = \arg\min_h \tfrac12 \lVert h - x \rVert^2 + \kappa \lVert h \rVert_1

    :eq:`eq-descent-soft-threshold`.

    Parameters
    ----------
    x : Tensor
        Any shape.
    threshold : Tensor or float
        :math:`\kappa`, at least 0; one number, or one for each entry of the last dimension.

    Examples
    --------
    >>> soft_threshold(torch.tensor([-3.0, 0.5, 2.0]), 1.0)
    tensor([-2., 0., 1.])
    """
    return x.sign() * (x.abs() - threshold).clamp(min=0)


def lasso_objective(
    h: Tensor, frames: Tensor, dictionary: Tensor, threshold: Tensor | float
) -> Tensor:
    r"""Return the objective of sparse coding, summed over the frames of each sequence.

    .. math:: \sum_t \tfrac12 \lVert y_t - D h_t \rVert^2 + \kappa \lVert h_t \rVert_1

    :eq:`eq-descent-lasso`. With a threshold of 0 it is that of least squares.

    Parameters
    ----------
    h : Tensor
        Codes (B, T, N).
    frames : Tensor
        y, (B, T, P).
    dictionary : Tensor
        D, (P, N).
    threshold : Tensor or float
        :math:`\kappa`; one number, or one for each atom (N,).

    Returns
    -------
    Tensor
        (B,).

    Examples
    --------
    >>> lasso_objective(torch.ones(1, 1, 2), torch.zeros(1, 1, 2), torch.eye(2), 0.5)
    tensor([2.])
    """
    misfit = 0.5 * (frames - h @ dictionary.mT).square().sum((-2, -1))
    return misfit + (threshold * h.abs()).sum((-2, -1))


def gradient_layer(h: Tensor, frames: Tensor, dictionary: Tensor, step: float) -> Tensor:
    r"""Take one step of gradient descent on least squares.

    .. math:: h_t^+ = h_t - \tau\, D^\top (D h_t - y_t)

    :eq:`eq-descent-gradient-layer`. Every step below :math:`2 / \lVert D \rVert^2` descends.

    Parameters
    ----------
    h, frames, dictionary
        As in `lasso_objective`.
    step : float
        :math:`\tau`, above 0.

    Returns
    -------
    Tensor
        The next codes (B, T, N).

    Examples
    --------
    >>> gradient_layer(torch.zeros(1, 1, 2), torch.ones(1, 1, 2), torch.eye(2), 0.5)
    tensor([[[0.5000, 0.5000]]])
    """
    return h - step * (h @ dictionary.mT - frames) @ dictionary


def ista_layer(
    h: Tensor, frames: Tensor, dictionary: Tensor, step: float, threshold: Tensor | float
) -> Tensor:
    r"""Take one step of ISTA: a gradient step on the misfit, a proximal step on the l1 norm.

    .. math:: h_t^+ = S_{\tau\kappa}\bigl(h_t - \tau\, D^\top (D h_t - y_t)\bigr)

    :eq:`eq-descent-ista`. The misfit lies below its quadratic model of curvature :math:`1 / \tau`
    when :math:`\tau \le 1 / \lVert D \rVert^2`; the step minimises that model and the l1 norm
    together, so the objective never rises.

    Parameters
    ----------
    h, frames, dictionary, threshold
        As in `lasso_objective`.
    step : float
        :math:`\tau`, above 0.

    Returns
    -------
    Tensor
        The next codes (B, T, N).

    Examples
    --------
    >>> y = torch.tensor([[[3.0, 0.5]]])
    >>> ista_layer(torch.zeros(1, 1, 2), y, torch.eye(2), step=1.0, threshold=1.0)
    tensor([[[2., 0.]]])
    """
    return soft_threshold(gradient_layer(h, frames, dictionary, step), step * threshold)


# --- the coupling of the frames: attention ------------------------------------------------------


def attention_weights(
    states: Tensor, projection: Tensor, logit_scale: Tensor | float = 1.0
) -> Tensor:
    r"""Return the attention weights between the frames of each sequence.

    .. math::

       a_{ts} = \mathrm{softmax}_s\bigl(-\tfrac{\beta}{2} \lVert V(h_t - h_s)\rVert^2\bigr)

    :eq:`eq-descent-attention-weights`. No frame has a larger weight in a row than the row's own, so
    that :math:`a_{tt} \ge 1/T`.

    Parameters
    ----------
    states : Tensor
        H, (B, T, N).
    projection : Tensor
        V, (R, N).
    logit_scale : float or Tensor
        The inverse temperature :math:`\beta`, above 0; one number, or one for each sequence (B,).

    Returns
    -------
    Tensor
        (B, T, T); rows sum to 1.

    Raises
    ------
    ValueError
        If ``logit_scale`` is not positive, or not of one of the two shapes.

    Examples
    --------
    >>> attention_weights(torch.tensor([[[0.0], [2.0]]]), torch.eye(1))
    tensor([[[0.8808, 0.1192], [0.1192, 0.8808]]])
    """
    scale = _per_sequence(logit_scale, states)
    u = _project(states, projection)
    return torch.softmax(_logits(u, scale), dim=-1)


def coupling_energy(
    states: Tensor, projection: Tensor, logit_scale: Tensor | float = 1.0
) -> Tensor:
    r"""Return the energy that couples the frames of each sequence, in its logarithmic form.

    .. math::

       E_V(H) = -\frac1\beta \sum_t \log \sum_s
                \exp\bigl(-\tfrac{\beta}{2} \lVert V(h_t - h_s)\rVert^2\bigr)

    :eq:`eq-descent-coupling`; at :math:`\beta = 1` the energy of this module's head. It lies
    between :math:`-T \log T / \beta`, all frames equal, and 0, all far apart.

    Parameters
    ----------
    states, projection, logit_scale
        As in `attention_weights`.

    Returns
    -------
    Tensor
        (B,).

    Examples
    --------
    >>> coupling_energy(torch.zeros(1, 2, 1), torch.eye(1))
    tensor([-1.3863])
    """
    scale = _per_sequence(logit_scale, states)
    u = _project(states, projection)
    own = scale.squeeze(-1) / 2 * u.square().sum(-1)  # (B, T)
    logs = torch.logsumexp(_logits(u, scale), dim=-1) - own
    return -logs.sum(-1) / scale.flatten()


def kernel_energy(states: Tensor, projection: Tensor, logit_scale: Tensor | float = 1.0) -> Tensor:
    r"""Return the energy that couples the frames in the form of Yang, Huang and Wipf.

    .. math::

       K_V(H) = -\frac1\beta \sum_{ts}
                \exp\bigl(-\tfrac{\beta}{2} \lVert V(h_t - h_s)\rVert^2\bigr)

    :eq:`eq-descent-kernel`. It has the attention weights of `coupling_energy`, and one thing more:
    replacing every frame at once by its average, :math:`H \leftarrow A H`, never raises it.

    *Why.* With :math:`\Gamma` the matrix of exponentials and :math:`\bar\Gamma` the diagonal one
    of its row sums, :math:`A = \bar\Gamma^{-1}\Gamma`. The tangent in the squared distances is
    :math:`\operatorname{tr} V H^\top (\bar\Gamma - \Gamma) H V^\top` and a constant, and
    :math:`H - AH = \bar\Gamma^{-1}(\bar\Gamma - \Gamma)H` is a gradient step on it,
    preconditioned by :math:`\bar\Gamma`. The step descends if
    :math:`\bar\Gamma - \Gamma \preceq 2\bar\Gamma`; and :math:`\bar\Gamma + \Gamma` is positive
    semidefinite, since it is diagonally dominant.

    Parameters
    ----------
    states, projection, logit_scale
        As in `attention_weights`.

    Returns
    -------
    Tensor
        (B,).

    Examples
    --------
    >>> kernel_energy(torch.zeros(1, 2, 1), torch.eye(1))
    tensor([-4.])
    """
    scale = _per_sequence(logit_scale, states)
    u = _project(states, projection)
    own = scale / 2 * u.square().sum(-1, keepdim=True)  # (B, T, 1)
    return -torch.exp(_logits(u, scale) - own).sum((-2, -1)) / scale.flatten()


def coupling_majoriser(
    states: Tensor, anchor: Tensor, projection: Tensor, logit_scale: Tensor | float = 1.0
) -> Tensor:
    r"""Return the quadratic that touches `coupling_energy` at the anchor and lies above it.

    .. math::

       Q(H \mid \bar H) = E_V(\bar H) + \tfrac12 \sum_{ts} a_{ts}(\bar H)
       \bigl( \lVert V(h_t - h_s)\rVert^2 - \lVert V(\bar h_t - \bar h_s)\rVert^2 \bigr)

    :eq:`eq-descent-majoriser`: the tangent in the squared distances.

    Parameters
    ----------
    states, anchor : Tensor
        H and :math:`\bar H`, (B, T, N).
    projection, logit_scale
        As in `attention_weights`.

    Returns
    -------
    Tensor
        (B,).

    Examples
    --------
    >>> H = torch.tensor([[[0.0], [2.0]]])
    >>> coupling_majoriser(H, H, torch.eye(1)) == coupling_energy(H, torch.eye(1))
    tensor([True])
    """
    a = attention_weights(anchor, projection, logit_scale)
    change = _squared_distances(states, projection) - _squared_distances(anchor, projection)
    return coupling_energy(anchor, projection, logit_scale) + 0.5 * (a * change).sum((-2, -1))


def coupling_gradient(
    states: Tensor, projection: Tensor, logit_scale: Tensor | float = 1.0
) -> Tensor:
    r"""Return the gradient of `coupling_energy`: every frame is pulled towards the others.

    .. math::

       \nabla E_V(H) = \mathcal{G} H\, V^\top V, \qquad
       \mathcal{G} = \operatorname{diag}\bigl((A + A^\top) \mathbf 1\bigr) - A - A^\top

    with the frames as rows, :eq:`eq-descent-coupling-gradient`. Common attention keeps A and drops
    its transpose: how much others look at frame t.

    Parameters
    ----------
    states, projection, logit_scale
        As in `attention_weights`.

    Returns
    -------
    Tensor
        (B, T, N).

    Examples
    --------
    >>> coupling_gradient(torch.tensor([[[0.0], [2.0]]]), torch.eye(1)).flatten()
    tensor([-0.4768, 0.4768])
    """
    scale = _per_sequence(logit_scale, states)
    u = _project(states, projection)
    return _laplacian(torch.softmax(_logits(u, scale), dim=-1)) @ u @ projection


def coupling_bound(num_frames: int) -> float:
    r"""Return a number that the curvature of the coupling never exceeds, at :math:`V^\top V = I`.

    .. math::

       \lambda_{\max}(\mathcal{G}) \le \frac{(T-1)(T+2)}{T}

    :eq:`eq-descent-coupling-bound`. The matrix :math:`\mathcal{G}` of `coupling_gradient` is a
    graph Laplacian, so its largest eigenvalue is at most twice the largest degree without the
    self-weights. A row of A holds at most :math:`1 - 1/T` of them, since the self-weight is the
    row's largest; for the same reason no weight on another frame exceeds 1/2, and a column holds
    at most :math:`(T-1)/2`.

    Parameters
    ----------
    num_frames : int
        T, at least 1.

    Examples
    --------
    >>> coupling_bound(1), coupling_bound(2), coupling_bound(8)
    (0.0, 2.0, 8.75)
    """
    require_count(num_frames, "num_frames")
    return (num_frames - 1) * (num_frames + 2) / num_frames


def cooling(gamma_train: float, gamma: Tensor | float) -> Tensor | float:
    r"""Return the scale of the attention logits that undoes a change of the noise level.

    .. math:: \beta = (\gamma_{\text{train}} / \gamma)^2

    :eq:`eq-descent-cooling`. White noise of level :math:`\gamma` adds
    :math:`2\gamma^2 \lVert V \rVert_F^2` to the expected squared distance of two different frames
    and nothing to that of a frame to itself. At a higher level every frame therefore attends to
    itself alone. Scaled by :math:`\beta`, the noise's part of the logits is that of training.

    Parameters
    ----------
    gamma_train : float
        Noise level of the training, above 0.
    gamma : float or Tensor
        Noise level now, above 0; or one for each sequence (B,).

    Returns
    -------
    float or Tensor
        The ``logit_scale`` for `UT` and `DUST`.

    Raises
    ------
    ValueError
        If a level is not a positive finite number.

    Examples
    --------
    >>> cooling(0.5, 2.0), cooling(0.5, 0.5)
    (0.0625, 1.0)
    """
    _require_positive(gamma_train, "gamma_train")
    _require_positive(gamma, "gamma")
    return (gamma_train / gamma) ** 2


def _require_positive(value: Tensor | float, argument: str) -> None:
    if not isinstance(value, int | float | Tensor):
        raise TypeError(f"{argument} must be a number or a tensor, got {type(value).__name__}")
    numbers = torch.as_tensor(value)
    fine = bool((numbers > 0).all()) and bool(numbers.isfinite().all())
    require(fine, argument, value, "above 0 and finite")


def _per_sequence(logit_scale: Tensor | float, states: Tensor) -> Tensor:
    _require_positive(logit_scale, "logit_scale")
    scale = torch.as_tensor(logit_scale, dtype=states.dtype, device=states.device)
    shapes = ((), states.shape[:1])
    allowed = f"one number or of shape {tuple(states.shape[:1])}"
    require(scale.shape in shapes, "shape of logit_scale", tuple(scale.shape), allowed)
    return scale.reshape(-1, 1, 1)  # (B or 1, 1, 1)


def _project(states: Tensor, projection: Tensor) -> Tensor:
    u = states @ projection.mT  # (B, T, R)
    # Distances stay as they are, and rounding no longer sees what all frames share.
    return u - u.mean(-2, keepdim=True)


def _logits(u: Tensor, scale: Tensor) -> Tensor:
    # -beta/2 |u_t - u_s|^2 + beta/2 |u_t|^2: what a row has in common leaves its softmax alone
    return scale * (u @ u.mT - 0.5 * u.square().sum(-1).unsqueeze(-2))  # (B, T, T)


def _squared_distances(states: Tensor, projection: Tensor) -> Tensor:
    u = _project(states, projection)
    return (u.unsqueeze(-2) - u.unsqueeze(-3)).square().sum(-1)  # (B, T, T)


def _laplacian(a: Tensor) -> Tensor:
    # diag((A + A') 1) - A - A'
    w = a + a.mT
    return torch.diag_embed(w.sum(-1)) - w


# --- what the networks share ----------------------------------------------------------------------


class UnrolledOutput(NamedTuple):
    r"""What an unrolled network returns.

    ``readouts``: L + 1 tensors (B, T, P), :math:`\Phi_0, \dots, \Phi_L`. ``states``: L + 1 tensors
    (B, T, N). On request, and without gradient, ``energies`` (L, 2, B): the energy of each layer
    before and after it; and ``self_weights`` (L, B, T): the weight :math:`a_{tt}` with which each
    frame attends to itself, in each layer. Tied layers share their energy, so that the end of one
    is the start of the next.
    """

    readouts: list[Tensor]
    states: list[Tensor]
    energies: Tensor | None = None
    self_weights: Tensor | None = None


class UnrolledNetwork(nn.Module):
    r"""The loop that `UT` and `DUST` share.

    .. math:: H_0 = \text{start}, \qquad H_l = F_l(H_{l-1}), \qquad \Phi_l = \mathrm{readout}(H_l)

    A subclass gives ``layers`` (one if tied, else L) and the five methods at the end.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_pixels: int,
        num_frames: int,
        tied: bool,
        trainable_start: bool,
    ) -> None:
        super().__init__()
        for value, argument in (
            (num_layers, "num_layers"),
            (num_pixels, "num_pixels"),
            (num_frames, "num_frames"),
        ):
            require_count(value, argument)
        self.num_layers, self.num_pixels, self.num_frames = num_layers, num_pixels, num_frames
        self.tied, self.trainable_start = tied, trainable_start

    def extra_repr(self) -> str:
        """Show what the modules do not."""
        return f"num_layers={self.num_layers}, tied={self.tied}"

    def forward(
        self,
        frames: Tensor,
        *,
        logit_scale: Tensor | float = 1.0,
        energies: bool = False,
        self_weights: bool = False,
    ) -> UnrolledOutput:
        """Read ``frames``.

        Parameters
        ----------
        frames : Tensor
            Noisy frames (B, T, P), T at most ``num_frames``.
        logit_scale : float or Tensor
            Multiplies the attention logits of every layer; above 0, one number or one for each
            sequence (B,). See `cooling`.
        energies, self_weights : bool
            Also return them.

        Returns
        -------
        UnrolledOutput

        Raises
        ------
        TypeError, ValueError
            If ``frames`` or ``logit_scale`` is not of that kind or shape.
        """
        _require_frames(frames, self.num_frames, self.num_pixels)
        context = self.context(frames)
        states = [self.start(context)]
        for layer in self.steps():
            states.append(self.step(layer, states[-1], context, logit_scale))
        first = self.readout(states[0]) if self.trainable_start else self.fixed_readout(frames)
        return UnrolledOutput(
            [first, *map(self.readout, states[1:])],
            states,
            self._energies(states, context, logit_scale) if energies else None,
            self._self_weights(states, logit_scale) if self_weights else None,
        )

    def steps(self) -> list[nn.Module]:
        """Return the L layers in their order; tied, the same one L times."""
        return [self.layers[0]] * self.num_layers if self.tied else list(self.layers)

    @torch.no_grad()
    def _energies(self, states: list[Tensor], context: Tensor, scale: Tensor | float) -> Tensor:
        pairs = [
            torch.stack([self.energy(layer, state, context, scale) for state in states[l : l + 2]])
            for l, layer in enumerate(self.steps())  # noqa: E741
        ]
        return torch.stack(pairs)  # (L, 2, B)

    @torch.no_grad()
    def _self_weights(self, states: list[Tensor], scale: Tensor | float) -> Tensor:
        weights = [
            attention_weights(state, layer.projection, scale).diagonal(dim1=-2, dim2=-1)
            for state, layer in zip(states[:-1], self.steps(), strict=True)
        ]
        return torch.stack(weights)  # (L, B, T)

    def context(self, frames: Tensor) -> Tensor:
        """Return what every layer reads of the frames."""
        raise NotImplementedError

    def start(self, context: Tensor) -> Tensor:
        """Return the state before the first layer."""
        raise NotImplementedError

    def fixed_readout(self, frames: Tensor) -> Tensor:
        r"""Return :math:`\Phi_0` as no training can change it."""
        raise NotImplementedError

    def step(
        self, layer: nn.Module, states: Tensor, context: Tensor, logit_scale: Tensor | float
    ) -> Tensor:
        """Return the states after one layer."""
        raise NotImplementedError

    def readout(self, states: Tensor) -> Tensor:
        """Return frames (B, T, P) from states."""
        raise NotImplementedError

    def energy(
        self, layer: nn.Module, states: Tensor, context: Tensor, logit_scale: Tensor | float = 1.0
    ) -> Tensor:
        """Return what a layer means to lower, (B,)."""
        raise NotImplementedError


def _require_frames(frames: Tensor, num_frames: int | None, num_pixels: int) -> None:
    if not isinstance(frames, Tensor):
        raise TypeError(f"frames must be a tensor, got {type(frames).__name__}")
    require(frames.is_floating_point(), "dtype of frames", frames.dtype, "a floating type")
    shape = tuple(frames.shape)
    known = frames.ndim == 3 and shape[2] == num_pixels and shape[1] >= 1
    fits = known and (num_frames is None or shape[1] <= num_frames)
    most = "" if num_frames is None else f" and T at most {num_frames}"
    require(fits, "shape of frames", shape, f"(B, T, {num_pixels}) with T at least 1{most}")


def cosine_dictionary(num_pixels: int, num_atoms: int) -> Tensor:
    r"""Return cosine waves on a square patch, the slow ones first.

    .. math::

       D_{(ij),(kl)} \propto \cos\frac{\pi (i + \frac12) k}{n} \cos\frac{\pi (j + \frac12) l}{n},
       \qquad n = \max\bigl(\sqrt P, \lceil \sqrt N \rceil\bigr)

    Parameters
    ----------
    num_pixels : int
        P, a square.
    num_atoms : int
        N, at least 1.

    Returns
    -------
    Tensor
        (P, N); columns have length 1. With N = P it is orthogonal: the cosine transform.

    Raises
    ------
    ValueError
        If a number is not of that kind.

    Examples
    --------
    >>> D = cosine_dictionary(4, 4)
    >>> torch.allclose(D.T @ D, torch.eye(4), atol=1e-6)
    True
    """
    require_count(num_pixels, "num_pixels")
    require_count(num_atoms, "num_atoms")
    side = math.isqrt(num_pixels)
    require(side**2 == num_pixels, "num_pixels", num_pixels, "a square")
    n = max(side, math.isqrt(num_atoms - 1) + 1)
    k = torch.arange(n, dtype=torch.float64)
    i = torch.arange(side, dtype=torch.float64) + 0.5
    waves = torch.cos(math.pi * i[:, None] * k / n)  # (side, n)
    order = torch.argsort((k[:, None] + k).flatten(), stable=True)[:num_atoms]
    atoms = torch.kron(waves, waves)[:, order]
    return (atoms / atoms.norm(dim=0)).to(torch.get_default_dtype())


# --- LISTA ----------------------------------------------------------------------------------------


class LISTALayer(nn.Module):
    r"""ISTA with free matrices.

    .. math::

       h^+ = S_{\tau\kappa}(W_e\, y + W_r\, h), \qquad
       W_e = \tau D^\top,\; W_r = I - \tau D^\top D \quad\text{at the start}

    :eq:`eq-descent-lista`. With its starting values it is `ista_layer`; once trained, it descends
    no objective that we could name.

    Parameters
    ----------
    dictionary : Tensor
        D, (P, N).
    threshold : float
        :math:`\kappa`, at least 0.

    Examples
    --------
    >>> layer = LISTALayer(torch.eye(4), threshold=0.5)
    >>> layer(torch.zeros(1, 1, 4), torch.ones(1, 1, 4)).detach()
    tensor([[[0.5000, 0.5000, 0.5000, 0.5000]]])
    """

    def __init__(self, dictionary: Tensor, threshold: float) -> None:
        super().__init__()
        _require_matrix(dictionary, "dictionary")
        require(threshold >= 0, "threshold", threshold, "at least 0")
        step = 1 / _norm(dictionary) ** 2
        num_atoms = dictionary.shape[1]
        identity = torch.eye(num_atoms).to(dictionary)
        self.encoder = nn.Parameter(step * dictionary.mT.clone())
        self.recurrence = nn.Parameter(identity - step * dictionary.mT @ dictionary)
        self.threshold = nn.Parameter((step * threshold).expand(num_atoms).clone())

    def forward(self, h: Tensor, frames: Tensor) -> Tensor:
        """Return the next codes (B, T, N)."""
        mixed = frames @ self.encoder.mT + h @ self.recurrence.mT
        return soft_threshold(mixed, self.threshold.clamp(min=0))


class LISTA(nn.Module):
    r"""Learned ISTA: L layers from :math:`h_0 = 0`, each frame by itself, readout D h.

    Parameters
    ----------
    dictionary : Tensor
        D, (P, N); it is learned too.
    num_layers : int
        L, at least 1.
    threshold : float
        :math:`\kappa` of `lasso_objective`, at least 0.
    tied : bool
        One layer L times, or L layers.

    Examples
    --------
    >>> output = LISTA(torch.eye(4), num_layers=3, threshold=0.1)(torch.ones(2, 5, 4))
    >>> len(output.states), output.readouts[-1].shape
    (4, torch.Size([2, 5, 4]))

    Notes
    -----
    :eq:`eq-descent-lista`. Source: K. Gregor and Y. LeCun (2010), "Learning Fast Approximations of
    Sparse Coding".
    """

    def __init__(
        self, dictionary: Tensor, num_layers: int, *, threshold: float, tied: bool = True
    ) -> None:
        require_count(num_layers, "num_layers")
        super().__init__()
        count = 1 if tied else num_layers
        self.layers = nn.ModuleList(LISTALayer(dictionary, threshold) for _ in range(count))
        self.dictionary = nn.Parameter(dictionary.clone())
        self.num_layers, self.tied = num_layers, tied

    def forward(self, frames: Tensor) -> UnrolledOutput:
        """Read ``frames`` (B, T, P)."""
        _require_frames(frames, None, self.dictionary.shape[0])
        h = frames.new_zeros(*frames.shape[:2], self.dictionary.shape[1])
        states = [h]
        for l in range(self.num_layers):  # noqa: E741
            states.append(self.layers[0 if self.tied else l](states[-1], frames))
        return UnrolledOutput([h @ self.dictionary.mT for h in states], states)


def _require_matrix(matrix: Tensor, argument: str) -> None:
    if not isinstance(matrix, Tensor):
        raise TypeError(f"{argument} must be a tensor, got {type(matrix).__name__}")
    require(matrix.ndim == 2, f"shape of {argument}", tuple(matrix.shape), "(P, N)")


def _norm(matrix: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(matrix.detach(), ord=2)


# --- DUST -----------------------------------------------------------------------------------------


def sequence_objective(
    h: Tensor,
    frames: Tensor,
    dictionary: Tensor,
    threshold: Tensor | float,
    coupling: Tensor | float,
    projection: Tensor,
    logit_scale: Tensor | float = 1.0,
) -> Tensor:
    r"""Return the objective of sequential sparse recovery, which `DUST` unrolls.

    .. math::

       F(H) = \sum_t \tfrac12 \lVert y_t - D h_t \rVert^2 + \kappa \lVert h_t \rVert_1
              + \mu\, E_V(H)

    :eq:`eq-descent-dust-objective`, with `coupling_energy` as the last term.

    Parameters
    ----------
    h, frames, dictionary, threshold
        As in `lasso_objective`.
    coupling : Tensor or float
        :math:`\mu`, at least 0.
    projection, logit_scale
        As in `attention_weights`.

    Returns
    -------
    Tensor
        (B,).

    Examples
    --------
    >>> h, y = torch.zeros(1, 2, 3), torch.ones(1, 2, 3)
    >>> sequence_objective(h, y, torch.eye(3), 0.1, 0.0, torch.eye(3))
    tensor([3.])
    """
    sparse = lasso_objective(h, frames, dictionary, threshold)
    return sparse + coupling * coupling_energy(h, projection, logit_scale)


def safe_step(
    dictionary: Tensor, projection: Tensor, coupling: Tensor | float, num_frames: int
) -> float:
    r"""Return a step with which a layer of `DUST` lowers its objective for every input.

    .. math::

       \tau = \Bigl(\lVert D \rVert^2 + \mu \lVert V \rVert^2\, \frac{(T-1)(T+2)}{T}\Bigr)^{-1}

    :eq:`eq-descent-safe-step`: one over the curvature of the misfit and of the majoriser of the
    coupling, by `coupling_bound`.

    Parameters
    ----------
    dictionary, projection, coupling
        As in `sequence_objective`.
    num_frames : int
        T, at least 1.

    Examples
    --------
    >>> safe_step(torch.eye(2), torch.eye(2), coupling=0.5, num_frames=2)
    0.5
    """
    curvature = coupling * _norm(projection) ** 2 * coupling_bound(num_frames)
    return 1 / float(_norm(dictionary) ** 2 + curvature)


class DUSTLayer(nn.Module):
    r"""One proximal-gradient step on `sequence_objective`.

    .. math::

       h^+ = S_{\tau\kappa}\bigl(h - \tau\,[\,W_e(Dh - y) + \mu\, \nabla E_V(H)\,]\bigr)

    :eq:`eq-descent-dust-layer`. *Derivation.* At H the coupling lies below its majoriser
    (`coupling_majoriser`), and misfit and majoriser below a quadratic of curvature
    :math:`1/\tau` (`safe_step`). The three touch at H with one gradient,
    :math:`D^\top(Dh - y) + \mu\nabla E_V(H)`. The step minimises that quadratic and the l1 norm
    exactly; hence F cannot rise. :math:`W_e` starts as :math:`D^\top`; once trained it may be
    anything, and F is then only a yardstick.

    Parameters
    ----------
    dictionary : Tensor
        D, (P, N), from which :math:`W_e` and the step are made. The layer is given D at each call.
    projection : Tensor
        V at the start, (R, N).
    threshold, coupling : float
        :math:`\kappa` and :math:`\mu` at the start, at least 0. Values below 0 count as 0.
    num_frames : int
        Most frames for which the first step is safe.

    Notes
    -----
    :math:`\tau` is a constant of the layer. Learned are :math:`W_e`, V, :math:`\mu` and one
    threshold for each atom.
    """

    def __init__(
        self,
        dictionary: Tensor,
        projection: Tensor,
        *,
        threshold: float,
        coupling: float,
        num_frames: int,
    ) -> None:
        super().__init__()
        step = safe_step(dictionary, projection, coupling, num_frames)
        self.register_buffer("step", torch.tensor(step))
        self.encoder = nn.Parameter(dictionary.detach().mT.clone())
        self.projection = nn.Parameter(projection.clone())
        self.coupling = nn.Parameter(torch.tensor(float(coupling)))
        self.threshold = nn.Parameter(torch.full((dictionary.shape[1],), float(threshold)))

    def forward(
        self, h: Tensor, frames: Tensor, dictionary: Tensor, logit_scale: Tensor | float = 1.0
    ) -> Tensor:
        """Return the next codes (B, T, N)."""
        misfit = (h @ dictionary.mT - frames) @ self.encoder.mT
        pull = self.coupling.clamp(min=0) * coupling_gradient(h, self.projection, logit_scale)
        threshold = self.threshold.clamp(min=0)
        return soft_threshold(h - self.step * (misfit + pull), self.step * threshold)

    def objective(
        self, h: Tensor, frames: Tensor, dictionary: Tensor, logit_scale: Tensor | float = 1.0
    ) -> Tensor:
        """Return `sequence_objective` with the layer's parameters, (B,)."""
        threshold, coupling = self.threshold.clamp(min=0), self.coupling.clamp(min=0)
        return sequence_objective(
            h, frames, dictionary, threshold, coupling, self.projection, logit_scale
        )


class DUST(UnrolledNetwork):
    r"""Deep unfolded sparse recovery of a sequence, with attention over its frames.

    .. math:: H_0 = 0, \qquad H_l = \mathrm{DUSTLayer}_l(H_{l-1}, y), \qquad \Phi_l = D H_l

    :eq:`eq-descent-dust`. The dictionary D is one for all layers and the readout. Untrained, every
    layer lowers the objective of every sequence. :math:`\Phi_0 = 0` whatever the weights.

    Parameters
    ----------
    num_layers : int
        L, at least 1.
    num_pixels : int
        P, a square.
    num_atoms : int
        N, at least 1.
    projection_size : int
        R, rows of V, at most P. At the start V h is half of the R slowest cosine coefficients of
        the patch D h.
    num_frames : int
        Most frames T of a sequence.
    threshold, coupling : float
        :math:`\kappa` and :math:`\mu` at the start, at least 0.
    tied : bool
        One layer L times, or L layers.
    trainable_start : bool
        Start from :math:`H_0 = D^\top y` instead, so that :math:`\Phi_0 = D D^\top y` depends on
        the weights: only to show what training can do to it.

    Raises
    ------
    ValueError
        If a value is outside what is allowed.

    Examples
    --------
    >>> model = DUST(num_layers=3, num_pixels=16, num_atoms=25, num_frames=4)
    >>> output = model(torch.randn(2, 4, 16), energies=True, self_weights=True)
    >>> len(output.readouts), output.readouts[-1].shape, output.energies.shape
    (4, torch.Size([2, 4, 16]), torch.Size([3, 2, 2]))
    >>> bool((output.energies[:, 1] < output.energies[:, 0]).all())
    True
    """

    def __init__(
        self,
        *,
        num_layers: int = 8,
        num_pixels: int = 64,
        num_atoms: int = 128,
        projection_size: int = 16,
        num_frames: int = 8,
        threshold: float = 0.1,
        coupling: float = 1.0,
        tied: bool = False,
        trainable_start: bool = False,
    ) -> None:
        super().__init__(
            num_layers=num_layers,
            num_pixels=num_pixels,
            num_frames=num_frames,
            tied=tied,
            trainable_start=trainable_start,
        )
        require_count(projection_size, "projection_size")
        fits = projection_size <= num_pixels
        require(fits, "projection_size", projection_size, f"at most num_pixels = {num_pixels}")
        require(0 <= threshold < math.inf, "threshold", threshold, "at least 0 and finite")
        require(0 <= coupling < math.inf, "coupling", coupling, "at least 0 and finite")
        self.dictionary = nn.Parameter(cosine_dictionary(num_pixels, num_atoms))
        slow = cosine_dictionary(num_pixels, num_pixels)[:, :projection_size]  # (P, R)
        self.layers = nn.ModuleList(
            DUSTLayer(
                self.dictionary,
                0.5 * slow.mT @ self.dictionary.detach(),
                threshold=threshold,
                coupling=coupling,
                num_frames=num_frames,
            )
            for _ in range(1 if tied else num_layers)
        )

    def context(self, frames: Tensor) -> Tensor:
        """Return the frames themselves."""
        return frames

    def start(self, context: Tensor) -> Tensor:
        r"""Return :math:`H_0` (B, T, N)."""
        if self.trainable_start:
            return context @ self.dictionary
        return context.new_zeros(*context.shape[:2], self.dictionary.shape[1])

    def fixed_readout(self, frames: Tensor) -> Tensor:
        r"""Return :math:`\Phi_0 = D\, 0`."""
        return torch.zeros_like(frames)

    def step(
        self, layer: nn.Module, states: Tensor, context: Tensor, logit_scale: Tensor | float
    ) -> Tensor:
        """Return the codes after one layer."""
        return layer(states, context, self.dictionary, logit_scale)

    def readout(self, states: Tensor) -> Tensor:
        """Return D h, (B, T, P)."""
        return states @ self.dictionary.mT

    def energy(
        self, layer: nn.Module, states: Tensor, context: Tensor, logit_scale: Tensor | float = 1.0
    ) -> Tensor:
        """Return `sequence_objective` with the parameters of ``layer``, (B,)."""
        return layer.objective(states, context, self.dictionary, logit_scale)


def _random(rows: int, columns: int) -> Tensor:
    # rows of length 1 on average
    return torch.randn(rows, columns) / math.sqrt(columns)


# --- UT -------------------------------------------------------------------------------------------


def orthant_energy(states: Tensor, inputs: Tensor, feedforward: Tensor) -> Tensor:
    r"""Return the energy whose proximal-gradient step is the feed-forward part of `UT`.

    .. math::

       E_2(Y) = \tfrac12 \lVert Y - B \rVert^2 + \tfrac12 \operatorname{tr}(Y W Y^\top)
                + \iota(Y \ge 0)

    :eq:`eq-descent-orthant`, with :math:`\iota` infinite where an entry is negative.

    Parameters
    ----------
    states : Tensor
        Y, (B, T, d).
    inputs : Tensor
        B, (B, T, d): what every layer reads of the frames.
    feedforward : Tensor
        W, (d, d), symmetric.

    Returns
    -------
    Tensor
        (B,).

    Examples
    --------
    >>> orthant_energy(torch.ones(1, 1, 2), torch.zeros(1, 1, 2), -0.5 * torch.eye(2))
    tensor([0.5000])
    """
    quadratic = (states - inputs).square() + states * (states @ feedforward)
    negative = (states < 0).flatten(1).any(1)
    return (0.5 * quadratic.sum((-2, -1))).masked_fill(negative, math.inf)


def clip_eigenvalues(matrix: Tensor, limit: float = 0.95) -> Tensor:
    r"""Return the symmetric part of a matrix with its eigenvalues clipped.

    .. math::

       \tfrac12 (F + F^\top) = U \Lambda U^\top \;\longmapsto\;
       U \min(\max(\Lambda, -c), c)\, U^\top

    the nearest symmetric matrix of spectral norm at most c.

    Parameters
    ----------
    matrix : Tensor
        F, (d, d).
    limit : float
        c, above 0.

    Returns
    -------
    Tensor
        (d, d).

    Raises
    ------
    ValueError
        If ``limit`` is not positive.

    Examples
    --------
    >>> clip_eigenvalues(torch.tensor([[2.0, 0.0], [0.0, -0.5]]))
    tensor([[ 0.9500, 0.0000], [ 0.0000, -0.5000]])
    """
    _require_positive(limit, "limit")
    values, vectors = torch.linalg.eigh(0.5 * (matrix + matrix.mT))
    return (vectors * values.clamp(-limit, limit)) @ vectors.mT


class UTLayer(nn.Module):
    r"""One layer of the unrolled Transformer: attention, then a proximal step.

    .. math:: Z = A(Y)\, Y, \qquad Y^+ = \mathrm{ReLU}(B - Z W)

    :eq:`eq-descent-ut-layer`. *Derivation.* The energy is :math:`E = E_V + E_2`, of
    `coupling_energy` and `orthant_energy`.

    1. Majorise :math:`E_V` at Y, and minimise over each :math:`y_t` with the other frames held:
       the terms :math:`\frac12 \sum_s a_{ts} \lVert V(y_t - y_s)\rVert^2` have their minimum at
       :math:`z_t = \sum_s a_{ts} y_s`. That is attention with the states as values.
    2. Take a proximal-gradient step on :math:`E_2` from Z, of size 1: the gradient of its smooth
       part is :math:`Z - B + ZW`, the projection on the orthant is the ReLU, and
       :math:`Z - (Z - B + ZW) = B - ZW`.

    *When the energy falls.* Step 2 never raises :math:`E_2` if the eigenvalues of W are at most 1.
    Step 1 never raises `kernel_energy`. But 1 may raise :math:`E_2`, 2 may raise :math:`E_V`, and
    E need not fall. Together they are :math:`Y^+ = \mathrm{ReLU}(Y - \hat\nabla)`, a proximal step
    on E with a wrong gradient: with M = :math:`V^\top V`, and :math:`\mathcal{G}` of
    `coupling_gradient`,

    .. math:: e = \nabla - \hat\nabla = (Y - Z)\, W + \mathcal{G}\, Y M .

    `descent_margin` shows that E falls where :math:`\lVert e \rVert` is small next to the move:
    far from the fixed point, not at it. The error vanishes, and E never rises, when there is one
    frame (and W has eigenvalues of at most 1); and when :math:`M = -\frac12 W` and A is symmetric,
    as it always is for two frames. ``symmetric_attention`` replaces A by what the whole gradient
    asks for, :math:`Z = Y - \frac12 \mathcal{G}\,Y`. Then :math:`M = -\frac12 W` suffices as long
    as :math:`\lVert W \rVert\, (\frac12 b_T - 1) \le 1`, with :math:`b_T` the `coupling_bound`:
    for up to 3 frames at any W with eigenvalues in [-1, 0].

    Parameters
    ----------
    projection : Tensor
        V at the start, (R, d).
    feedforward : Tensor
        W at the start, (d, d); only its symmetric part is used.
    symmetric_attention : bool
        As above.
    """

    def __init__(
        self, projection: Tensor, feedforward: Tensor, *, symmetric_attention: bool = False
    ) -> None:
        super().__init__()
        self.projection = nn.Parameter(projection.clone())
        self.feedforward = nn.Parameter(feedforward.clone())
        self.symmetric_attention = symmetric_attention

    def symmetric(self) -> Tensor:
        """Return W, (d, d): the symmetric part of the parameter."""
        return 0.5 * (self.feedforward + self.feedforward.mT)

    def mix(self, states: Tensor, logit_scale: Tensor | float = 1.0) -> Tensor:
        """Return Z, (B, T, d)."""
        a = attention_weights(states, self.projection, logit_scale)
        if self.symmetric_attention:
            return states - 0.5 * _laplacian(a) @ states
        return a @ states

    def forward(self, states: Tensor, inputs: Tensor, logit_scale: Tensor | float = 1.0) -> Tensor:
        """Return the next states (B, T, d)."""
        return torch.relu(inputs - self.mix(states, logit_scale) @ self.symmetric())

    def energy(self, states: Tensor, inputs: Tensor, logit_scale: Tensor | float = 1.0) -> Tensor:
        """Return E, (B,)."""
        coupling = coupling_energy(states, self.projection, logit_scale)
        return coupling + orthant_energy(states, inputs, self.symmetric())


def descent_margin(
    layer: UTLayer, before: Tensor, after: Tensor, logit_scale: Tensor | float = 1.0
) -> Tensor:
    r"""Return how far a layer of `UT` is inside the regime in which its energy cannot rise.

    .. math::

       m_E = \bigl(1 - \tfrac12 \Lambda\bigr) \lVert Y^+ - Y \rVert - \lVert e \rVert, \qquad
       \Lambda = 1 + \lambda_{\max}(W) + \lVert V \rVert^2\, \lambda_{\max}(\mathcal{G})

    :eq:`eq-descent-ut-regime`: where :math:`m_E \ge 0`, :math:`E(Y^+) \le E(Y)`.

    *Derivation.* The majoriser of E at Y has curvature at most :math:`\Lambda`, so that
    :math:`E(Y^+) \le E(Y) + \langle \nabla, X \rangle + \frac{\Lambda}{2} \lVert X \rVert^2`
    with :math:`X = Y^+ - Y`. The ReLU is a projection, hence
    :math:`\langle \hat\nabla, X \rangle \le -\lVert X \rVert^2`. With
    :math:`e = \nabla - \hat\nabla`, as in `UTLayer`, the rise is at most
    :math:`-m_E \lVert X \rVert`.

    Parameters
    ----------
    layer : UTLayer
    before, after : Tensor
        Y and :math:`Y^+`, (B, T, d): states of the network around that layer.
    logit_scale
        As in `attention_weights`.

    Returns
    -------
    Tensor
        (B,). A negative margin promises nothing.

    Examples
    --------
    >>> layer = UTLayer(torch.eye(2), -0.5 * torch.eye(2))
    >>> Y, B = torch.zeros(1, 1, 2), torch.ones(1, 1, 2)
    >>> bool(descent_margin(layer, Y, layer(Y, B)) > 0)   # one frame: no error
    True

    Notes
    -----
    It makes precise, for this energy, what Yang, Huang and Wipf (2022) prove for theirs: two
    alternating steps descend outside a region around the minimum.
    """
    laplacian = _laplacian(attention_weights(before, layer.projection, logit_scale))
    W = layer.symmetric()
    error = (before - layer.mix(before, logit_scale)) @ W
    error = error + coupling_gradient(before, layer.projection, logit_scale)
    attention = _norm(layer.projection) ** 2 * torch.linalg.eigvalsh(laplacian)[:, -1]
    curvature = torch.linalg.eigvalsh(W)[-1] + 1 + attention  # (B,)
    move = (after - before).flatten(1).norm(dim=1)
    return (1 - curvature / 2) * move - error.flatten(1).norm(dim=1)


class UT(UnrolledNetwork):
    r"""The unrolled Transformer of Yang, Huang and Wipf on the frames of a patch.

    .. math::

       B = x W_{\text{in}} + p, \qquad Y_0 = \mathrm{ReLU}(B), \qquad
       Y_l = \mathrm{UTLayer}_l(Y_{l-1}, B), \qquad \Phi_l = Y_l W_{\text{out}}

    :eq:`eq-descent-ut`, with p a vector for each frame. B enters every layer; there is no residual
    stream and no norm. :math:`\Phi_0 = x`, the noisy frames.

    Parameters
    ----------
    num_layers : int
        L, at least 1.
    num_pixels : int
        P; a square for the cosine start.
    hidden_size : int
        d; for the cosine start even and at most 2 P.
    projection_size : int
        Rows of V.
    num_frames : int
        Most frames T of a sequence.
    tied : bool
        One layer L times, as in the paper, or L layers.
    symmetric_attention : bool
        See `UTLayer`.
    initialisation : {"cosine", "random"}
        "cosine": :math:`W_{\text{in}} = \frac12[C, -C]`, :math:`W_{\text{out}} = [C, -C]^\top` and
        :math:`W = -\frac12 I`, with C the (slowest d / 2) waves of `cosine_dictionary`. The two
        halves hold the positive and the negative part of each coefficient, and the network starts
        as a smoother over the graph of attention. "random": normal matrices of variance one over
        their input size, W halved.
    trainable_start : bool
        Take :math:`\Phi_0 = Y_0 W_{\text{out}}` instead: only to show what training can do to it.

    Raises
    ------
    ValueError
        If a value is outside what is allowed.

    Examples
    --------
    >>> model = UT(num_layers=3, num_pixels=16, hidden_size=32, num_frames=4)
    >>> frames = torch.randn(2, 4, 16)
    >>> output = model(frames, energies=True, self_weights=True)
    >>> len(output.readouts), output.energies.shape, output.self_weights.shape
    (4, torch.Size([3, 2, 2]), torch.Size([3, 2, 4]))
    >>> bool((output.readouts[0] == frames).all())
    True
    """

    def __init__(
        self,
        *,
        num_layers: int = 8,
        num_pixels: int = 64,
        hidden_size: int = 128,
        projection_size: int = 32,
        num_frames: int = 8,
        tied: bool = True,
        symmetric_attention: bool = False,
        initialisation: str = "cosine",
        trainable_start: bool = False,
    ) -> None:
        super().__init__(
            num_layers=num_layers,
            num_pixels=num_pixels,
            num_frames=num_frames,
            tied=tied,
            trainable_start=trainable_start,
        )
        require_count(hidden_size, "hidden_size")
        require_count(projection_size, "projection_size")
        require_choice(initialisation, "initialisation", INITIALISATIONS)
        start = _cosine_start if initialisation == "cosine" else _random_start
        embedding, feedforward, readout = start(num_pixels, hidden_size)
        self.embedding = nn.Parameter(embedding)
        self.positions = nn.Parameter(torch.zeros(num_frames, hidden_size))
        self.output = nn.Parameter(readout)
        self.layers = nn.ModuleList(
            UTLayer(
                _random(projection_size, hidden_size),
                feedforward,
                symmetric_attention=symmetric_attention,
            )
            for _ in range(1 if tied else num_layers)
        )

    @torch.no_grad()
    def clip(self, limit: float = 0.95) -> None:
        r"""Clip the eigenvalues of W of every layer, in place; call it every few steps.

        Parameters
        ----------
        limit : float
            Largest absolute eigenvalue. Below 1 the energy of every layer has a minimum, and the
            feed-forward step never raises `orthant_energy`.
        """
        for layer in self.layers:
            layer.feedforward.copy_(clip_eigenvalues(layer.feedforward, limit))

    def context(self, frames: Tensor) -> Tensor:
        """Return B, (B, T, d)."""
        return frames @ self.embedding + self.positions[: frames.shape[1]]

    def start(self, context: Tensor) -> Tensor:
        """Return ReLU(B)."""
        return torch.relu(context)

    def fixed_readout(self, frames: Tensor) -> Tensor:
        """Return the noisy frames."""
        return frames

    def step(
        self, layer: nn.Module, states: Tensor, context: Tensor, logit_scale: Tensor | float
    ) -> Tensor:
        """Return the states after one layer."""
        return layer(states, context, logit_scale)

    def readout(self, states: Tensor) -> Tensor:
        """Return the readout of each frame, (B, T, P)."""
        return states @ self.output

    def energy(
        self, layer: nn.Module, states: Tensor, context: Tensor, logit_scale: Tensor | float = 1.0
    ) -> Tensor:
        """Return the energy of ``layer``, (B,)."""
        return layer.energy(states, context, logit_scale)


def _cosine_start(num_pixels: int, hidden_size: int) -> tuple[Tensor, Tensor, Tensor]:
    waves = cosine_dictionary(num_pixels, num_pixels)
    fits = hidden_size % 2 == 0 and hidden_size <= 2 * num_pixels
    require(fits, "hidden_size", hidden_size, f"even and at most {2 * num_pixels}")
    waves = waves[:, : hidden_size // 2]
    both = torch.cat([waves, -waves], dim=1)  # (P, d)
    return 0.5 * both, -0.5 * torch.eye(hidden_size), both.mT.clone()


def _random_start(num_pixels: int, hidden_size: int) -> tuple[Tensor, Tensor, Tensor]:
    embedding = torch.randn(num_pixels, hidden_size) / math.sqrt(num_pixels)
    feedforward = 0.5 * _random(hidden_size, hidden_size)
    return embedding, feedforward, _random(num_pixels, hidden_size).mT.clone()

r"""Noise on embeddings at a level gamma: Gaussian, uniform, discrete; and how private it is.

The level :math:`\gamma` is in units of :math:`\sigma_e`, the standard deviation of the entries of
the embeddings. Three kinds of noise have the same mean square,
:math:`\mathbb{E} \lVert \tilde e - e \rVert^2 = \gamma^2 \sigma_e^2 d` for d channels:

.. math::
    \text{gaussian: } \tilde e = e + \gamma \sigma_e z,\; z \sim \mathcal{N}(0, I), \qquad
    \text{uniform: } z_i \sim \mathcal{U}\bigl[-\sqrt3, \sqrt3\bigr], \qquad
    \text{discrete: a random token with probability } \tfrac12 \gamma^2,

:eq:`eq-descent-noise`. The last follows because two independent tokens differ by
:math:`2 \sigma_e^2` in each channel; it reaches 1, a text of random tokens, at
:math:`\gamma = \sqrt2`. That discrete noise means random tokens, and this level of it, are our
choices.

Adding Gaussian noise to clipped embeddings before they leave a device is also a mechanism of local
differential privacy: `gaussian_epsilon` says how private a level is, and `noise_level` what level a
promise of privacy needs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from scipy import optimize, special
from torch import Tensor, nn

from unrolled.optimization import require
from unrolled.transformer import require_choice, require_count

__all__ = [
    "NOISES",
    "Perturbation",
    "PrivacyReport",
    "classical_epsilon",
    "clip_embeddings",
    "embedding_layer",
    "embedding_privacy",
    "embedding_scale",
    "gaussian_delta",
    "gaussian_epsilon",
    "noise_level",
    "perturb_embeddings",
    "perturb_tokens",
    "replacement_probability",
]

NOISES = ("gaussian", "uniform", "discrete")
PHASES = ("always", "training", "evaluation")
PART = 1 << 24  # entries that are held in single precision at a time: tables can have 10^9


# --- noise as functions -----------------------------------------------------------------------


def embedding_scale(embeddings: Tensor) -> float:
    r"""Return the standard deviation of all entries, :math:`\sigma_e`.

    Parameters
    ----------
    embeddings : Tensor
        (..., d): a table of tokens, or the embeddings of a text.

    Examples
    --------
    >>> embedding_scale(torch.tensor([[1.0, -1.0], [3.0, -3.0]]))
    2.236
    """
    parts = embeddings.detach().flatten().split(PART)
    moments = [torch.var_mean(part.float(), correction=0) for part in parts]
    shares = [len(part) / embeddings.numel() for part in parts]
    var, mean = torch.tensor(moments, dtype=torch.float64).T
    shares = torch.tensor(shares, dtype=torch.float64)
    # variance within the parts and between them
    return (shares @ (var + (mean - shares @ mean).square())).sqrt().item()


def perturb_embeddings(
    embeddings: Tensor,
    gamma: float,
    *,
    kind: str = "gaussian",
    scale: float | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""Add Gaussian or uniform noise of the same standard deviation.

    .. math:: \tilde e = e + \gamma\, \sigma_e\, z, \qquad \mathbb{E} z = 0,\;
              \operatorname{Var} z = 1

    :eq:`eq-descent-noise`.

    Parameters
    ----------
    embeddings : Tensor
        (..., d).
    gamma : float
        :math:`\gamma`, at least 0.
    kind : {"gaussian", "uniform"}
    scale : float, optional
        :math:`\sigma_e`; by default that of these embeddings. Give that of the whole table, so
        that the level does not vary from batch to batch.
    generator : torch.Generator, optional
        Source of randomness, by default torch's global one. The noise is drawn on its device, so
        that a CPU generator gives the same noise wherever the model is.

    Returns
    -------
    Tensor
        Like `embeddings`, with their gradient.

    Examples
    --------
    >>> e, seeded = torch.zeros(2, 3), torch.Generator().manual_seed(0)
    >>> perturb_embeddings(e, 0.5, scale=2.0, generator=seeded).shape
    torch.Size([2, 3])
    """
    require_choice(kind, "kind", ("gaussian", "uniform"))
    _require_level(gamma)
    device = embeddings.device if generator is None else generator.device
    options = {"generator": generator, "device": device}
    if kind == "gaussian":
        z = torch.randn(embeddings.shape, **options)
    else:
        z = math.sqrt(12) * (torch.rand(embeddings.shape, **options) - 0.5)
    sigma = embedding_scale(embeddings) if scale is None else scale
    # e + gamma sigma_e z
    return embeddings + gamma * sigma * z.to(embeddings)


def replacement_probability(gamma: float) -> float:
    r"""Return how often a token is replaced at level gamma.

    .. math:: p = \min\bigl(1, \tfrac12 \gamma^2\bigr)

    :eq:`eq-descent-noise`.

    Examples
    --------
    >>> [replacement_probability(gamma) for gamma in (0.0, 0.5, 1.0, 2.0)]
    [0.0, 0.125, 0.5, 1.0]
    """
    _require_level(gamma)
    return min(1.0, gamma**2 / 2)


def perturb_tokens(
    tokens: Tensor,
    gamma: float,
    vocab_size: int,
    *,
    keep: tuple[int, ...] = (),
    generator: torch.Generator | None = None,
) -> Tensor:
    """Replace tokens by uniformly random ones, each with `replacement_probability`.

    Parameters
    ----------
    tokens : Tensor
        Integers, any shape.
    gamma : float
        At least 0.
    vocab_size : int
        V; random tokens are in 0 ... V - 1.
    keep : tuple of int
        Tokens that are neither replaced nor drawn: padding, [CLS], [SEP].
    generator : torch.Generator, optional
        As in `perturb_embeddings`.

    Returns
    -------
    Tensor
        New tokens of the same shape.

    Examples
    --------
    >>> perturb_tokens(torch.tensor([0, 7, 7, 0]), 2.0, 3, keep=(0, 1))
    tensor([0, 2, 2, 0])
    """
    require_count(vocab_size, "vocab_size")
    kept = torch.tensor(keep, dtype=torch.long)
    allowed = torch.ones(vocab_size, dtype=torch.bool)
    allowed[kept] = False
    require(bool(allowed.any()), "keep", keep, f"fewer tokens than vocab_size = {vocab_size}")
    device = tokens.device if generator is None else generator.device
    options = {"generator": generator, "device": device}
    chosen = torch.rand(tokens.shape, **options) < replacement_probability(gamma)
    choices = allowed.nonzero().flatten().to(device)
    random = choices[torch.randint(len(choices), tokens.shape, **options)]
    replaced = chosen.to(tokens.device) & ~torch.isin(tokens, kept.to(tokens.device))
    return torch.where(replaced, random.to(tokens), tokens)


def _require_level(gamma: float) -> None:
    require(0 <= gamma < math.inf, "gamma", gamma, "finite and at least 0")


# --- noise in a model -------------------------------------------------------------------------


def embedding_layer(model: nn.Module) -> nn.Embedding:
    """Return the token embedding of a model.

    Parameters
    ----------
    model : Module
        An `torch.nn.Embedding` itself, a Hugging Face model (``get_input_embeddings()``), or a
        model with an attribute ``embedding``, such as `unrolled.transformer.Transformer`.

    Raises
    ------
    TypeError
        If it has none.
    """
    if hasattr(model, "get_input_embeddings"):
        model = model.get_input_embeddings()
    layer = getattr(model, "embedding", model)
    if not isinstance(layer, nn.Embedding):
        raise TypeError(
            f"model must be a torch.nn.Embedding or have one as get_input_embeddings() or "
            f".embedding, got {type(model).__name__}"
        )
    return layer


class Perturbation:
    r"""Noise on the token embeddings of a model, for as long as the context is open.

    Parameters
    ----------
    model : Module
        See `embedding_layer`. What comes after the embedding (positions, norms) is not disturbed.
    gamma : float
        The level; it may be changed while the context is open.
    kind : {"gaussian", "uniform", "discrete"}
    scale : float, optional
        :math:`\sigma_e`; by default that of the whole table as it is now.
    keep : tuple of int
        Tokens that discrete noise leaves alone; see `perturb_tokens`.
    when : {"always", "training", "evaluation"}
        In which mode of the model there is noise.
    generator : torch.Generator, optional
        By default torch's global one, which `unrolled.training.fit` saves with a run. With one of
        your own, give the perturbation to ``fit`` as ``stateful``.

    Examples
    --------
    >>> table = nn.Embedding(10, 4)
    >>> tokens = torch.tensor([[1, 2, 3]])
    >>> with Perturbation(table, 0.5, generator=torch.Generator().manual_seed(0)):
    ...     noisy = table(tokens)
    >>> torch.equal(noisy, table(tokens))
    False

    Notes
    -----
    It hangs on the embedding layer, so a call with ready embeddings (``inputs_embeds``) passes it
    by; a head that shares the table is not disturbed.
    """

    def __init__(
        self,
        model: nn.Module,
        gamma: float,
        *,
        kind: str = "gaussian",
        scale: float | None = None,
        keep: tuple[int, ...] = (),
        when: str = "always",
        generator: torch.Generator | None = None,
    ) -> None:
        require_choice(kind, "kind", NOISES)
        require_choice(when, "when", PHASES)
        _require_level(gamma)
        self.layer = embedding_layer(model)
        self.gamma, self.kind, self.keep, self.when = gamma, kind, keep, when
        self.scale = embedding_scale(self.layer.weight) if scale is None else scale
        self.generator = generator
        self._handle: Any = None

    def __enter__(self) -> Perturbation:
        if self._handle is not None:
            raise RuntimeError("this perturbation is already open")
        if self.kind == "discrete":
            self._handle = self.layer.register_forward_pre_hook(self._replace)
        else:
            self._handle = self.layer.register_forward_hook(self._add)
        return self

    def __exit__(self, *exception: object) -> None:
        self._handle.remove()
        self._handle = None

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state of the generator, if there is one."""
        return {} if self.generator is None else {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take over the state of a generator."""
        if self.generator is not None:
            self.generator.set_state(state["generator"])

    def _active(self) -> bool:
        return self.when == "always" or self.layer.training == (self.when == "training")

    def _replace(self, layer: nn.Embedding, inputs: tuple) -> tuple | None:
        if not self._active():
            return None
        size, options = layer.num_embeddings, {"keep": self.keep, "generator": self.generator}
        return (perturb_tokens(inputs[0], self.gamma, size, **options), *inputs[1:])

    def _add(self, layer: nn.Embedding, inputs: tuple, output: Tensor) -> Tensor | None:
        if not self._active():
            return None
        options = {"kind": self.kind, "scale": self.scale, "generator": self.generator}
        return perturb_embeddings(output, self.gamma, **options)


# --- the reading as local differential privacy ------------------------------------------------


def clip_embeddings(embeddings: Tensor, clip_norm: float) -> Tensor:
    r"""Shorten vectors to a length of at most :math:`C_e`.

    .. math:: e \leftarrow e\, \min\bigl(1, C_e / \lVert e \rVert\bigr)

    :eq:`eq-descent-clip`.

    Parameters
    ----------
    embeddings : Tensor
        (..., d).
    clip_norm : float
        :math:`C_e`, positive.

    Examples
    --------
    >>> clip_embeddings(torch.tensor([[3.0, 4.0], [0.3, 0.4]]), 1.0)
    tensor([[0.6000, 0.8000],
            [0.3000, 0.4000]])
    """
    require(0 < clip_norm < math.inf, "clip_norm", clip_norm, "a positive finite number")
    norms = embeddings.norm(dim=-1, keepdim=True)
    return embeddings * (clip_norm / norms.clamp_min(clip_norm))


def gaussian_delta(epsilon: float, noise_std: float, sensitivity: float) -> float:
    r"""Return the least delta of the Gaussian mechanism at a given epsilon, exactly.

    .. math:: \delta(\varepsilon) = \Phi\Bigl(\frac{\Delta_e}{2 \sigma}
              - \frac{\varepsilon \sigma}{\Delta_e}\Bigr)
              - e^{\varepsilon}\, \Phi\Bigl(-\frac{\Delta_e}{2 \sigma}
              - \frac{\varepsilon \sigma}{\Delta_e}\Bigr)

    A mechanism is :math:`(\varepsilon, \delta)`-private if for any two inputs and any set of
    outputs :math:`P(S) \le e^\varepsilon P'(S) + \delta`. For :math:`\mathcal{N}(e, \sigma^2 I)`
    with inputs at most :math:`\Delta_e` apart, the worst set lies behind a plane across the line
    between them, which gives the formula. :eq:`eq-descent-privacy`.

    Parameters
    ----------
    epsilon : float
        :math:`\varepsilon`, at least 0.
    noise_std : float
        :math:`\sigma`, per channel, positive.
    sensitivity : float
        :math:`\Delta_e`, the largest distance between two inputs, positive.

    Examples
    --------
    >>> gaussian_delta(0.0, noise_std=1.0, sensitivity=2.0)
    0.6827

    References
    ----------
    B. Balle and Y.-X. Wang (2018), "Improving the Gaussian Mechanism for Differential Privacy:
    Analytical Calibration and Optimal Denoising", ICML, Theorem 8.
    """
    require(0 <= epsilon < math.inf, "epsilon", epsilon, "finite and at least 0")
    mu = _shift(noise_std, sensitivity)
    # Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu), the second as one exponential: e^eps overflows
    upper = special.ndtr(mu / 2 - epsilon / mu)
    return float(upper - math.exp(epsilon + special.log_ndtr(-mu / 2 - epsilon / mu)))


def gaussian_epsilon(noise_std: float, sensitivity: float, delta: float) -> float:
    r"""Return the least epsilon of the Gaussian mechanism at a given delta.

    It solves :math:`\delta(\varepsilon) = \delta`, see `gaussian_delta`; smaller is more private.

    Parameters
    ----------
    noise_std, sensitivity : float
        :math:`\sigma` and :math:`\Delta_e`, positive.
    delta : float
        In (0, 1).

    Returns
    -------
    float
        :math:`\varepsilon`; 0 if the noise hides everything but a share `delta` of cases.

    Examples
    --------
    >>> round(gaussian_epsilon(1.0, 1.0, 1e-5), 2), round(gaussian_epsilon(10.0, 1.0, 1e-5), 3)
    (4.38, 0.35)
    """
    require(0 < delta < 1, "delta", delta, "in (0, 1)")
    if gaussian_delta(0.0, noise_std, sensitivity) <= delta:
        return 0.0
    mu = _shift(noise_std, sensitivity)
    # delta(eps) <= Phi(mu/2 - eps/mu) <= exp(-(eps/mu - mu/2)^2 / 2), which is delta here:
    highest = mu**2 / 2 + mu * math.sqrt(2 * math.log(1 / delta))

    def excess(epsilon: float) -> float:
        return gaussian_delta(epsilon, noise_std, sensitivity) - delta

    return float(optimize.brentq(excess, 0.0, highest, xtol=1e-12, rtol=1e-12))


def classical_epsilon(noise_std: float, sensitivity: float, delta: float) -> float:
    r"""Return the epsilon of the textbook bound, infinite where it proves nothing.

    .. math:: \varepsilon = \frac{\Delta_e}{\sigma} \sqrt{2 \ln \frac{1.25}{\delta}}
              \qquad \text{if that is below } 1

    :eq:`eq-descent-privacy`.

    Examples
    --------
    >>> round(classical_epsilon(10.0, 1.0, 1e-5), 3), classical_epsilon(1.0, 1.0, 1e-5)
    (0.484, inf)

    References
    ----------
    C. Dwork and A. Roth (2014), "The Algorithmic Foundations of Differential Privacy", Theorem A.1.
    """
    require(0 < delta < 1, "delta", delta, "in (0, 1)")
    epsilon = _shift(noise_std, sensitivity) * math.sqrt(2 * math.log(1.25 / delta))
    return epsilon if epsilon < 1 else math.inf


def _shift(noise_std: float, sensitivity: float) -> float:
    for name, value in (("noise_std", noise_std), ("sensitivity", sensitivity)):
        require(0 < value < math.inf, name, value, "a positive finite number")
    return sensitivity / noise_std


@dataclass(frozen=True)
class PrivacyReport:
    """How private Gaussian noise on clipped embeddings is.

    ``noise_std`` is gamma times the scale; ``sensitivity`` the largest distance between two texts;
    ``epsilon`` the exact value of `gaussian_epsilon` and ``classical`` that of `classical_epsilon`,
    both at ``delta``.
    """

    noise_std: float
    sensitivity: float
    delta: float
    epsilon: float
    classical: float


def embedding_privacy(
    gamma: float, scale: float, clip_norm: float, *, num_tokens: int = 1, delta: float = 1e-5
) -> PrivacyReport:
    r"""Read a noise level as local differential privacy.

    Two texts of N tokens whose embeddings are no longer than :math:`C_e` are at most

    .. math:: \Delta_e = 2 C_e \sqrt N, \qquad \sigma = \gamma \sigma_e

    apart; with N = 1 the promise covers one token, with the length of the text all of it. At the
    usual length :math:`C_e \approx \sigma_e \sqrt d` this is
    :math:`\Delta_e / \sigma = 2 \sqrt{N d} / \gamma`: for hundreds of channels a level that a
    classifier survives is far from private in the strict sense. :eq:`eq-descent-privacy`.

    Parameters
    ----------
    gamma : float
        Level of the Gaussian noise, positive.
    scale : float
        :math:`\sigma_e`, see `embedding_scale`.
    clip_norm : float
        :math:`C_e`, see `clip_embeddings`.
    num_tokens : int
        N.
    delta : float
        In (0, 1).

    Returns
    -------
    PrivacyReport

    Examples
    --------
    One token with 384 channels, at the level 1:

    >>> report = embedding_privacy(1.0, scale=0.05, clip_norm=0.05 * math.sqrt(384))
    >>> round(report.epsilon), report.classical
    (934, inf)
    """
    require_count(num_tokens, "num_tokens")
    for name, value in (("gamma", gamma), ("scale", scale), ("clip_norm", clip_norm)):
        require(0 < value < math.inf, name, value, "a positive finite number")
    noise_std, sensitivity = gamma * scale, 2 * clip_norm * math.sqrt(num_tokens)
    pair = (noise_std, sensitivity, delta)
    return PrivacyReport(*pair, gaussian_epsilon(*pair), classical_epsilon(*pair))


def noise_level(
    epsilon: float, scale: float, clip_norm: float, *, num_tokens: int = 1, delta: float = 1e-5
) -> float:
    r"""Return the least gamma that keeps a promise of privacy, the inverse of `embedding_privacy`.

    Parameters
    ----------
    epsilon : float
        :math:`\varepsilon`, positive.
    scale, clip_norm, num_tokens, delta
        As in `embedding_privacy`.

    Returns
    -------
    float
        :math:`\gamma`.

    Examples
    --------
    >>> gamma = noise_level(8.0, scale=0.05, clip_norm=0.05 * math.sqrt(384))
    >>> round(gamma, 1)
    23.5
    """
    require_count(num_tokens, "num_tokens")
    require(0 < delta < 1, "delta", delta, "in (0, 1)")
    for name, value in (("epsilon", epsilon), ("scale", scale), ("clip_norm", clip_norm)):
        require(0 < value < math.inf, name, value, "a positive finite number")

    def excess(log_shift: float) -> float:
        return gaussian_delta(epsilon, 1.0, math.exp(log_shift)) - delta

    # Delta_e / sigma = 2 C_e sqrt(N) / (gamma sigma_e)
    shift = math.exp(optimize.brentq(excess, -20, 20, xtol=1e-12))
    return 2 * clip_norm * math.sqrt(num_tokens) / (shift * scale)

r"""What layerwise descent implies without any training: bounds, corridors, tolerances.

Let :math:`\bar f_l` be the expected loss after layer l. If every layer descends up to a tolerance,

.. math:: \bar f_l \le (1 - \alpha_l)\, \bar f_{l-1} + \varepsilon_l ,

:eq:`eq-descent-tolerance`, then the loss of the last one falls geometrically to a floor,
:prf:ref:`thm-descent-convergence`, and descent survives small shifts of the data,
:prf:ref:`thm-descent-out-of-distribution`. The chapter *What the theorems say* derives the bounds.
The theorems of the paper are known to us in outline only; the statements and proofs are the book's
own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from unrolled.descent.constraints import cumulative_factors
from unrolled.optimization import require
from unrolled.transformer import require_count

__all__ = [
    "corridor",
    "largest_share",
    "layer_bounds",
    "sampling_error",
    "statistical_tolerance",
]


def layer_bounds(
    start: float, alphas: Sequence[float], tolerances: Sequence[float] | float = 0.0
) -> tuple[float, ...]:
    r"""Return what the loss of each layer cannot exceed.

    .. math:: \bar f_L \le \rho_L \bar f_0 + \sum_{l=1}^{L} \frac{\rho_L}{\rho_l}\, \varepsilon_l ,
              \qquad \rho_l = \prod_{j \le l} (1 - \alpha_j)

    With a constant share and tolerance it falls to :math:`\varepsilon / \alpha`.
    :eq:`eq-descent-floor`.

    Parameters
    ----------
    start : float
        :math:`\bar f_0`.
    alphas : sequence of float
        The shares :math:`\alpha_1, \dots, \alpha_L`, each in [0, 1).
    tolerances : float or sequence of float
        :math:`\varepsilon_l`, at least 0: one for all layers or one for each.

    Returns
    -------
    tuple of float
        L + 1 numbers, the first of them `start`.

    Raises
    ------
    ValueError
        If an argument is outside its range, or the numbers of shares and tolerances differ.

    Examples
    --------
    >>> layer_bounds(1.0, [0.5, 0.5], 0.1)
    (1.0, 0.6, 0.4)
    """
    cumulative_factors(alphas)  # checks the shares
    if not isinstance(tolerances, Sequence):
        tolerances = [tolerances] * len(alphas)
    fits = len(tolerances) == len(alphas) and all(e >= 0 for e in tolerances)
    require(fits, "tolerances", tolerances, f"one number >= 0, or {len(alphas)} of them")
    bounds = [float(start)]
    for alpha, epsilon in zip(alphas, tolerances, strict=True):
        bounds.append((1 - alpha) * bounds[-1] + epsilon)
    return tuple(bounds)


def statistical_tolerance(alpha: float, *, relaxation: float = 0.0, sampling: float = 0.0) -> float:
    r"""Return the tolerance that relaxation and samples leave, for the true distribution.

    .. math:: \varepsilon = u + (2 - \alpha)\, \zeta

    A slack holds one loss with weight 1 and one with weight :math:`1 - \alpha`; an error of each
    counts :math:`2 - \alpha` times. :eq:`eq-descent-statistical-slack`.

    Parameters
    ----------
    alpha : float
        The share, in [0, 1).
    relaxation : float
        u, what the slacks on the training samples may be.
    sampling : float
        :math:`\zeta`, between the mean loss of the samples and the expected one.

    Examples
    --------
    >>> statistical_tolerance(0.5, relaxation=0.1, sampling=0.2)
    0.4
    """
    require(0 <= alpha < 1, "alpha", alpha, "in [0, 1)")
    for name, value in (("relaxation", relaxation), ("sampling", sampling)):
        require(value >= 0, name, value, "at least 0")
    return relaxation + (2 - alpha) * sampling


def corridor(
    start: float, optimum: float, alphas: Sequence[float]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    r"""Return between which losses a network that keeps every exact constraint must stay.

    .. math:: \frac{\rho_l}{\rho_L}\, f^* \le \bar f_l \le \rho_l \bar f_0

    :eq:`eq-descent-corridor`. Where the lower line is above the upper one, no network keeps the
    constraints.

    Parameters
    ----------
    start, optimum : float
        :math:`\bar f_0` and :math:`f^*`, the smallest expected loss, with
        :math:`0 \le f^* \le \bar f_0`.
    alphas : sequence of float
        The shares, each in [0, 1).

    Returns
    -------
    lower, upper : tuple of float
        L + 1 numbers each.

    Examples
    --------
    >>> corridor(1.0, 0.2, [0.5, 0.5])
    ((0.8, 0.4, 0.2), (1.0, 0.5, 0.25))
    """
    _require_optimum(start, optimum)
    rho = (1.0, *cumulative_factors(alphas))
    return tuple(optimum * r / rho[-1] for r in rho), tuple(start * r for r in rho)


def largest_share(start: float, optimum: float, num_layers: int) -> float:
    r"""Return the largest constant share that L layers can keep.

    .. math:: \alpha_{\max} = 1 - \Bigl(\frac{f^*}{\bar f_0}\Bigr)^{1/L}

    It falls to 0 as L grows, unless the optimum is 0. :eq:`eq-descent-largest-share`.

    Parameters
    ----------
    start, optimum : float
        As in `corridor`; the start is positive.
    num_layers : int
        L.

    Examples
    --------
    >>> largest_share(1.0, 0.25, 2)
    0.5
    """
    _require_optimum(start, optimum)
    require(start > 0, "start", start, "positive")
    require_count(num_layers, "num_layers")
    return 1 - (optimum / start) ** (1 / num_layers)


def sampling_error(
    num_samples: int, num_layers: int, largest_loss: float, failure: float = 0.05
) -> float:
    r"""Return how far the mean losses of S fresh samples can be from the expected ones.

    .. math:: \zeta = f_{\max} \sqrt{\frac{\ln\bigl(2 (L + 1) / \delta\bigr)}{2 S}}

    With probability :math:`1 - \delta` no layer of *one fixed network* is further off: Hoeffding's
    inequality and a union bound. The samples must be others than those of training.
    :eq:`eq-descent-hoeffding`.

    Parameters
    ----------
    num_samples, num_layers : int
        S and L.
    largest_loss : float
        :math:`f_{\max}`: all losses lie in :math:`[0, f_{\max}]`.
    failure : float
        :math:`\delta`, in (0, 1).

    Examples
    --------
    >>> round(sampling_error(1000, 6, 1.0), 3)
    0.053
    """
    require_count(num_samples, "num_samples")
    require_count(num_layers, "num_layers")
    require(0 < failure < 1, "failure", failure, "in (0, 1)")
    require(0 < largest_loss < math.inf, "largest_loss", largest_loss, "positive and finite")
    return largest_loss * math.sqrt(math.log(2 * (num_layers + 1) / failure) / (2 * num_samples))


def _require_optimum(start: float, optimum: float) -> None:
    require(0 <= optimum <= start, "optimum", optimum, f"between 0 and start, {start}")

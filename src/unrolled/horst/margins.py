r"""Margins and norms: what the geometry of an optimizer chooses among solutions that are all right.

Where the data do not decide, an optimizer does. `max_margin` and `min_norm` are the solutions that
a geometry is said to choose, by convex programs; `normalised_margin` says how near another is.
Shapes: n points with d features, ``X`` (n, d); labels ``y`` (n,) are -1 or 1, or real numbers.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import optimize

from unrolled.optimization import require

__all__ = ["max_margin", "min_norm", "normalised_margin"]


def normalised_margin(theta: np.ndarray, X: np.ndarray, y: np.ndarray, p: float) -> float:
    r"""Return how far the nearest point is from being misclassified, for weights of norm 1.

    .. math:: \gamma_p(\theta) = \frac{\min_i y_i \langle x_i, \theta \rangle}
              {\lVert \theta \rVert_p}

    :eq:`eq-horst-margin`. Positive if and only if all points are classified; the length of
    :math:`\theta` does not matter.

    Parameters
    ----------
    theta : ndarray
        (d,), not zero.
    X, y : ndarray
        (n, d); (n,) of -1 and 1.
    p : float
        At least 1; ``math.inf`` is allowed.

    Examples
    --------
    >>> X, y = np.array([[3.0, 4.0]]), np.array([1.0])
    >>> [normalised_margin(np.array([1.0, 1.0]), X, y, p) for p in (1, math.inf)]
    [3.5, 7.0]
    """
    require(p >= 1, "p", p, "at least 1")
    size = np.abs(theta).max()
    require(size > 0, "theta", theta, "not zero")
    theta = theta / size  # no norm of large weights overflows
    return float((y * (X @ theta)).min() / np.linalg.norm(theta, p))


def max_margin(X: np.ndarray, y: np.ndarray, p: float) -> np.ndarray:
    r"""Return the weights of the largest normalised margin, scaled so that the margin is 1.

    .. math:: \arg\min_\theta \lVert \theta \rVert_p
              \quad \text{subject to} \quad y_i \langle x_i, \theta \rangle \ge 1

    :eq:`eq-horst-max-margin`. A linear program for p = 1 and infinity, a least-distance problem for
    p = 2, sequential quadratic programming between.

    Parameters
    ----------
    X, y : ndarray
        (n, d); (n,) of -1 and 1.
    p : float
        At least 1; ``math.inf`` is allowed.

    Returns
    -------
    ndarray
        (d,); :math:`\gamma_p` of it is one over its norm.

    Raises
    ------
    ValueError
        If no weights classify all points.

    Examples
    --------
    >>> X, y = np.array([[3.0, 4.0]]), np.array([1.0])
    >>> [max_margin(X, y, p).round(3).tolist() for p in (1, 2, math.inf)]
    [[0.0, 0.25], [0.12, 0.16], [0.143, 0.143]]
    """
    require(p >= 1, "p", p, "at least 1")
    G = y[:, None] * X
    separable = optimize.linprog(np.zeros(X.shape[1]), -G, -np.ones(len(G)), bounds=(None, None))
    require(separable.status == 0, "X, y", X.shape, "points that a plane through 0 separates")
    return _smallest(G, np.ones(len(G)), p, equal=False)


def min_norm(X: np.ndarray, y: np.ndarray, p: float) -> np.ndarray:
    r"""Return the weights of the smallest norm among those that fit all points.

    .. math:: \arg\min_\theta \lVert \theta \rVert_p
              \quad \text{subject to} \quad X \theta = y

    :eq:`eq-horst-min-norm`.

    Parameters
    ----------
    X, y : ndarray
        (n, d) with n at most d and rows that are independent; (n,).
    p : float
        At least 1; ``math.inf`` is allowed.

    Raises
    ------
    ValueError
        If no weights fit all points.

    Examples
    --------
    >>> X, y = np.array([[3.0, 4.0]]), np.array([1.0])
    >>> [min_norm(X, y, p).round(3).tolist() for p in (1, 2, math.inf)]
    [[0.0, 0.25], [0.12, 0.16], [0.143, 0.143]]
    """
    require(p >= 1, "p", p, "at least 1")
    found = np.linalg.lstsq(X, y, rcond=None)[0]
    require(np.allclose(X @ found, y), "X, y", X.shape, "points that some weights fit")
    return _smallest(X, y, p, equal=True)


def _smallest(G: np.ndarray, h: np.ndarray, p: float, equal: bool) -> np.ndarray:
    """Minimise the norm subject to G theta = h, or to G theta >= h."""
    if p in (1, math.inf):
        return _linear_program(G, h, p, equal)
    shortest = np.linalg.pinv(G) @ h if equal else _least_distance(G, h)
    return shortest if p == 2 else _between(G, h, p, equal, shortest)


def _linear_program(G: np.ndarray, h: np.ndarray, p: float, equal: bool) -> np.ndarray:
    """Solve with the variables theta and t: |theta_i| <= t_i (p = 1), or <= t (p = infinity)."""
    d = G.shape[1]
    bounds = np.eye(d) if p == 1 else np.ones((d, 1))
    m = bounds.shape[1]
    # theta - t <= 0,  -theta - t <= 0
    sizes = np.block([[np.eye(d), -bounds], [-np.eye(d), -bounds]])
    rows = np.hstack([G, np.zeros((len(G), m))])
    cost = np.concatenate([np.zeros(d), np.ones(m)])
    kind = {"A_eq": rows, "b_eq": h} if equal else {}
    above = (sizes,) if equal else (sizes, -rows)
    limits = (np.zeros(2 * d),) if equal else (np.zeros(2 * d), -h)
    found = optimize.linprog(
        cost, np.vstack(above), np.concatenate(limits), bounds=(None, None), **kind
    )
    return found.x[:d]


def _least_distance(G: np.ndarray, h: np.ndarray) -> np.ndarray:
    """Solve for the smallest Euclidean norm with G theta >= h, by non-negative least squares."""
    # Lawson and Hanson: r = E u - f of min ||E u - f|| over u >= 0 gives theta = -r_1..d / r_d+1
    E = np.vstack([G.T, h])
    f = np.append(np.zeros(G.shape[1]), 1.0)
    u, _ = optimize.nnls(E, f, maxiter=30 * G.size)
    r = E @ u - f
    return -r[:-1] / r[-1]


def _between(G: np.ndarray, h: np.ndarray, p: float, equal: bool, start: np.ndarray) -> np.ndarray:
    """Minimise sum |theta_i|^p / p by sequential quadratic programming, in units of the start."""
    size = np.abs(start).max()

    def cost(theta: np.ndarray) -> tuple[float, np.ndarray]:
        power = np.abs(theta) ** (p - 1)
        return float((power * np.abs(theta)).sum() / p), np.sign(theta) * power

    limits = {
        "type": "eq" if equal else "ineq",
        "fun": lambda theta: G @ theta - h / size,
        "jac": lambda theta: G,
    }
    options = {"maxiter": 1_000, "ftol": 1e-12}
    found = optimize.minimize(
        cost, start / size, jac=True, method="SLSQP", constraints=[limits], options=options
    )
    return size * found.x

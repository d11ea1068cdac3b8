"""Exact margins and norms against CVXPY and against their definition."""

import math

import cvxpy
import numpy as np
import pytest

from unrolled.horst.margins import max_margin, min_norm, normalised_margin

NORMS = [1, 1.5, 2, 3, 4, math.inf]


def problem(seed, n=12, d=25):
    random = np.random.default_rng(seed)
    X = random.standard_normal((n, d))
    return X, np.sign(random.standard_normal(n)), random.standard_normal(n)


def reference(X, y, p, equal):
    theta = cvxpy.Variable(X.shape[1])
    limits = [X @ theta == y] if equal else [cvxpy.multiply(y, X @ theta) >= 1]
    norm = cvxpy.norm(theta, "inf" if p == math.inf else p)
    return cvxpy.Problem(cvxpy.Minimize(norm), limits).solve(solver="CLARABEL")


@pytest.mark.equation("eq-horst-max-margin")
@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_largest_margin_is_that_of_cvxpy(p, seed):
    X, y, _ = problem(seed)
    theta = max_margin(X, y, p)
    assert (y * (X @ theta)).min() == pytest.approx(1, abs=1e-6)
    assert np.linalg.norm(theta, p) == pytest.approx(reference(X, y, p, equal=False), rel=1e-5)
    assert normalised_margin(theta, X, y, p) == pytest.approx(1 / np.linalg.norm(theta, p))


@pytest.mark.equation("eq-horst-min-norm")
@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_smallest_norm_is_that_of_cvxpy(p, seed):
    X, _, y = problem(seed)
    theta = min_norm(X, y, p)
    assert X @ theta == pytest.approx(y, abs=1e-6)
    assert np.linalg.norm(theta, p) == pytest.approx(reference(X, y, p, equal=True), rel=1e-5)


def test_no_direction_has_a_larger_margin():
    X, y, _ = problem(0)
    random = np.random.default_rng(1)
    for p in NORMS:
        best = normalised_margin(max_margin(X, y, p), X, y, p)
        others = max_margin(X, y, 2) + 0.05 * random.standard_normal((200, X.shape[1]))
        assert all(normalised_margin(theta, X, y, p) <= best + 1e-8 for theta in others)


@pytest.mark.equation("eq-horst-margin")
def test_the_margin_does_not_see_the_length_even_of_huge_weights():
    X, y, _ = problem(0)
    theta = max_margin(X, y, 2)
    for factor in (1e-200, 1e250):
        found = normalised_margin(factor * theta, X, y, 3)
        assert found == pytest.approx(normalised_margin(theta, X, y, 3))


@pytest.mark.equation("eq-horst-certificate")
@pytest.mark.parametrize(("p", "q"), [(1, math.inf), (1.5, 3), (2, 2), (4, 4 / 3), (math.inf, 1)])
def test_every_mean_of_points_bounds_the_largest_margin(p, q):
    X, y, _ = problem(0)
    best = normalised_margin(max_margin(X, y, p), X, y, p)
    means = np.random.default_rng(1).dirichlet(np.full(len(y), 0.3), size=200) @ (y[:, None] * X)
    assert all(np.linalg.norm(mean, q) >= best - 1e-8 for mean in means)


def test_smallest_l1_norm_has_at_most_as_many_weights_as_points():
    X, _, y = problem(2)
    assert (np.abs(min_norm(X, y, 1)) > 1e-9).sum() <= len(y)


def test_points_without_a_solution_are_refused():
    X = np.array([[1.0], [1.0]])
    with pytest.raises(ValueError, match="points that a plane through 0 separates"):
        max_margin(X, np.array([1.0, -1.0]), 2)
    with pytest.raises(ValueError, match="points that some weights fit"):
        min_norm(X, np.array([1.0, 2.0]), 2)
    with pytest.raises(ValueError, match="p must be at least 1"):
        min_norm(X, np.ones(2), 0.5)
    with pytest.raises(ValueError, match="theta must be not zero"):
        normalised_margin(np.zeros(1), X, np.ones(2), 2)

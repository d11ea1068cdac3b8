"""The experiment `horst.bias`: what is compared, special cases, and the theorem's direction."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from unrolled.experiment import no_report
from unrolled.horst import bias, operators
from unrolled.horst.bias import EXPERIMENT, BiasSettings, problem_of, solve, step_of
from unrolled.horst.margins import max_margin, normalised_margin
from unrolled.results import comparison_table

SMALL = BiasSettings(num_points=8, num_features=16, num_relevant=2)
PLAIN = {"alpha": 10.0, "beta": 0.0, "learning_rate": 1e-2}


@pytest.fixture(scope="module")
def rows():
    return EXPERIMENT.run("smoke", 0, progress=False)


def solution(steepest, mirror, task="classification", steps=3_000, **changes):
    problem = problem_of(SMALL, task, seed=0)
    case = {"task": task, "steepest": steepest, "mirror": mirror, **PLAIN, **changes}
    theta, _ = solve(problem, case, steps, no_report)
    return problem, theta


def test_all_run_the_same_number_of_steps_on_the_same_problem(rows):
    assert {row["steps"] for row in rows} == {60}
    keys = [tuple(case.items()) for case in bias.cases(EXPERIMENT.presets["laptop"])]
    assert len(set(keys)) == len(keys)
    one, two = (problem_of(SMALL, "regression", seed=3) for _ in range(2))
    assert np.array_equal(one.X, two.X)
    assert not np.array_equal(one.X, problem_of(SMALL, "regression", seed=4).X)


@pytest.mark.parametrize("task", bias.TASKS)
def test_no_solution_is_better_than_the_best(task):
    for steepest in ("l1", "l2", "sign"):
        problem, theta = solution(steepest, "none", task)
        found = problem.ratios(theta)
        slack = 1e-3 if task == "regression" else 1e-9  # it does not fit to the last bit
        assert all(0 < ratio <= 1 + slack for ratio in found.values())


@pytest.mark.equation("eq-horst-soft-margin")
def test_the_gradient_is_that_of_the_loss():
    for task in bias.TASKS:
        problem = problem_of(SMALL, task, seed=1)
        X, y = torch.from_numpy(problem.X), torch.from_numpy(problem.y)
        theta = torch.randn(16, dtype=torch.float64, requires_grad=True)
        if task == "regression":
            loss = (X @ theta - y).square().mean() / 2
        else:
            loss = (-y * (X @ theta)).exp().mean().log()
        expected = torch.autograd.grad(loss, theta)[0]
        torch.testing.assert_close(problem.gradient(theta.detach()), expected)


@pytest.mark.parametrize(
    ("name", "ratio"), [("l1", "1"), ("l2", "2"), ("l4", "4"), ("sign", "inf")]
)
def test_steepest_descent_finds_the_largest_margin_of_its_norm(name, ratio):
    problem, theta = solution(name, "none", steps=6_000)
    assert problem.ratios(theta)[f"ratio_{ratio}"] > 0.93


@pytest.mark.equation("eq-horst-steepest-margin")
@pytest.mark.parametrize(
    ("name", "p", "q"), [("l1", 1, math.inf), ("l2", 2, 2), ("sign", math.inf, 1)]
)
def test_the_margin_of_steepest_descent_keeps_its_bound(name, p, q):
    problem, theta = solution(name, "none", steps=8_000, learning_rate=2e-3)
    rates = 2e-3 * (1 - np.arange(8_000) / 8_000)
    size = np.linalg.norm(problem.X, q, axis=1).max()
    best, found = (problem.best[str(p)], normalised_margin(theta, problem.X, problem.y, p))
    bound = best - (math.log(8) + size**2 * (rates**2).sum() / 2) / rates.sum()
    assert 0 < bound <= found <= best


# The mirror on top of steepest descent in mirror coordinates, by steps that are small.
def mirror_flow(p, steps=3_000, eta=1e-3, alpha=10.0):
    problem = problem_of(SMALL, "classification", seed=0)
    theta, soft = torch.zeros(16, dtype=torch.float64), []
    A = torch.from_numpy(problem.y[:, None] * problem.X)
    for _ in range(steps):
        direction, _ = operators.steepest(p)(theta, -problem.gradient(theta), None)
        z = theta.sign() * torch.log1p(alpha * theta.abs()) / alpha + eta * direction
        theta = z.sign() * torch.expm1(alpha * z.abs()) / alpha
        F = math.log(8) - torch.logsumexp(-(A @ theta), 0)
        soft.append((F.item(), theta.abs().sum().item()))
    return problem, theta, np.array(soft)


@pytest.mark.equation("eq-horst-smoothed-margin", "eq-horst-power-flow")
@pytest.mark.parametrize("p", [2, 3, 5])
def test_the_smoothed_l1_margin_does_not_fall_under_the_mirror(p):
    problem, theta, soft = mirror_flow(p, steps=1_500, eta=5e-4)
    smoothed = (soft[:, 0] - math.log(8)) / (soft[:, 1] + 16 / 10.0)
    smoothed = smoothed[soft[:, 0] >= math.log(8)]
    assert len(smoothed) > 300
    assert (np.diff(smoothed) >= -1e-4 * problem.best["1"]).all()
    assert smoothed[-1] <= normalised_margin(theta.numpy(), problem.X, problem.y, 1)


@pytest.mark.equation("eq-horst-growth")
def test_the_soft_margin_grows_as_fast_as_the_proof_says():
    problem, _, soft = mirror_flow(2, steps=2_000)
    X, y = torch.from_numpy(problem.X), torch.from_numpy(problem.y)
    # the clock of the proof: dz = u dt, and a step of length eta takes eta / |u|
    theta, time = torch.zeros(16, dtype=torch.float64), 0.0
    for _ in range(2_000):
        u = -problem.gradient(theta)
        time += 1e-3 / u.norm().item()
        z = theta.sign() * torch.log1p(10 * theta.abs()) / 10 + 1e-3 * u / u.norm()
        theta = z.sign() * torch.expm1(10 * z.abs()) / 10
    F = (math.log(8) - torch.logsumexp(-y * (X @ theta), 0)).item()
    bounds = [
        c * (problem.best["1"] - math.log1p(10 * c) / (10 * time)) for c in np.logspace(-3, 6)
    ]
    assert 0 < max(bounds) <= F
    assert pytest.approx(soft[-1, 0]) == F


@pytest.mark.equation("eq-horst-potential", "eq-horst-potential-norm")
def test_mirror_flow_fits_with_the_smallest_potential():
    problem, alpha = problem_of(SMALL, "regression", seed=0), 10.0
    z = torch.zeros(16, dtype=torch.float64)
    for _ in range(4_000):
        theta = z.sign() * torch.expm1(alpha * z.abs()) / alpha
        z = z - 0.02 * problem.gradient(theta)

    def potential(theta):
        x = alpha * np.abs(theta)
        return ((1 + x) * np.log1p(x) - x).sum() / alpha**2

    theta, random = theta.numpy(), np.random.default_rng(0)
    assert problem.X @ theta == pytest.approx(problem.y, abs=1e-6)
    free = np.linalg.svd(problem.X)[2][8:]  # directions that leave the fit as it is
    for move in random.standard_normal((50, 8)) @ free:
        assert potential(theta + 0.1 * move) > potential(theta)
    dual = (np.abs(theta).sum() - z.abs().sum().item()) / alpha
    assert dual == pytest.approx(z.numpy() @ theta - potential(theta))


def test_gradient_descent_fits_with_the_smallest_euclidean_norm():
    problem, theta = solution("gradient", "none", "regression", steps=6_000, learning_rate=0.05)
    assert problem.ratios(theta)["ratio_2"] == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("name", ["l2", "l3", "sign", "adam"])
def test_the_mirror_on_top_turns_the_margin_towards_l1(name):
    problem, alone = solution(name, "none")
    _, last = solution(name, "last")
    assert problem.ratios(last)["ratio_1"] > problem.ratios(alone)["ratio_1"] + 0.1


def test_below_sign_the_mirror_does_nothing():
    _, alone = solution("sign", "none")
    _, first = solution("sign", "first")
    assert np.array_equal(alone, first)


def test_one_step_of_each_mirror_is_its_formula():
    theta = torch.tensor([2.0, -1.0, 0.5], dtype=torch.float64)
    u = torch.tensor([0.3, 0.2, -4.0], dtype=torch.float64)
    case = {"steepest": "adam", "mirror": "last", "alpha": 3.0, "beta": 0.5}
    found, _ = step_of(case, 0.01, theta, u, None)
    expected, _ = operators.horst(theta, u, lr=0.01, alpha=3.0, beta=0.5)
    torch.testing.assert_close(found, expected)
    found, _ = step_of({**case, "mirror": "ham"}, 0.01, theta, u, None)
    half, _ = operators.horst(theta, u, lr=0.01, alpha=0.0)
    torch.testing.assert_close(found, half * torch.exp(-0.01 * (3.0 * half.sign() * u + 0.5)))


def test_columns_say_what_a_solution_is_like():
    problem = problem_of(SMALL, "classification", seed=0)
    theta = max_margin(problem.X, problem.y, 1)
    found = bias.solution_columns(problem, 100 * theta)
    assert found["ratio_1"] == pytest.approx(1)
    assert found["near_zero"] >= 0.5
    assert found["misfit"] == 0
    assert found["log10_largest"] == pytest.approx(math.log10(100 * np.abs(theta).max()))
    assert bias.solution_columns(problem, -theta)["misfit"] == 1


def test_weights_that_overflow_are_told():
    settings = replace(SMALL, steps=2_000)
    case = {"task": "classification", "steepest": "sign", "mirror": "last"}
    values = {"alpha": 1e3, "beta": 0.0, "learning_rate": 1.0}
    found = bias.measure(settings, {**case, **values}, 0, no_report)
    assert found == {"diverged": True}


def test_claims_are_judged(rows):
    values = {"alpha": 10.0, "beta": 0.0, "learning_rate": 5e-3}
    assert all(row[name] == values[name] for row in rows[:6] for name in values)
    table = comparison_table("horst.bias", EXPERIMENT.claims, preset="smoke", rows=rows)
    assert len(table) == 16
    missing = [row["claim"] for row in table if row["verdict"] == "not attempted"]
    assert all(" l" in claim or "HAM" in claim for claim in missing)  # not in the smoke preset

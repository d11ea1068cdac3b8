r"""Implicit bias: which of many right solutions each composition of operators chooses.

Two problems on random features where the data do not decide. *Separable classification*: the
logarithm of the mean exponential loss, whose gradient has the direction of the exponential loss and
does not vanish as the margins grow; compared is the margin in every norm with the largest one.
*Underdetermined regression*: the squared error; compared is every norm with the smallest one among
the solutions. The teacher has three weights that are not zero.

Each unit runs one composition in float64 with a learning rate that falls to zero:

- `steepest`: "gradient", "l1" (coordinate descent), "l2", "l3", "l4", "sign", "adam";
- `mirror`: "none"; "last", the mirror on top of it (:math:`M \circ S`); "first", below it
  (:math:`S \circ M`); "ham", the mirror with the raw gradient behind the step.

A run takes one or two seconds of one core.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unrolled.experiment import Case, Experiment, Report
from unrolled.horst.margins import max_margin, min_norm, normalised_margin
from unrolled.horst.operators import (
    CLAMP,
    Operator,
    State,
    adam,
    compose,
    descend,
    exponential,
    gradient,
    metric,
    scale,
    sign,
    steepest,
)
from unrolled.results import Claim, judge_difference
from unrolled.transformer import require_choice

__all__ = [
    "EXPERIMENT",
    "MIRRORS",
    "NORMS",
    "STEEPEST",
    "TASKS",
    "BiasSettings",
    "Problem",
    "operator_at",
    "problem_of",
    "solve",
    "step_of",
]

TASKS = ("classification", "regression")
"""The problems."""

STEEPEST: dict[str, Operator] = {
    "gradient": gradient(),
    "l1": steepest(1),
    "l2": steepest(2),
    "l3": steepest(3),
    "l4": steepest(4),
    "sign": sign(),
    "adam": adam(),
}
"""What makes a direction of the gradient."""

MIRRORS = ("none", "last", "first", "ham")
"""Where the mirror is."""

NORMS = {"1": 1.0, "2": 2.0, "3": 3.0, "4": 4.0, "inf": math.inf}
"""The norms in which solutions are compared, by the ending of their columns."""


@dataclass(frozen=True)
class BiasSettings:
    """The size of the problems, the steps, and what is compared.

    Parameters
    ----------
    tasks
        Names of `TASKS`.
    num_points, num_features, num_relevant
        Points, features, and weights of the teacher that are 1 and not 0.
    steps, learning_rate
        Steps, and the rate at the first of them.
    alpha, beta
        Strength of the mirror, and of its shrinkage.
    steepest
        Names of `STEEPEST`; each is run alone and with the mirror last.
    first
        Those that are run with the mirror first.
    ham
        Those that are run with HAM's mirror.
    alphas, betas, learning_rates
        Values in place of those above, one at a time, for "sign" and "adam" with the mirror last.
    """

    tasks: tuple[str, ...] = TASKS
    num_points: int = 30
    num_features: int = 60
    num_relevant: int = 3
    steps: int = 4_000
    learning_rate: float = 5e-3
    alpha: float = 10.0
    beta: float = 0.0
    steepest: tuple[str, ...] = tuple(STEEPEST)
    first: tuple[str, ...] = ("l2", "sign", "adam")
    ham: tuple[str, ...] = ("adam",)
    alphas: tuple[float, ...] = (1.0, 100.0)
    betas: tuple[float, ...] = (0.1, 1.0, 10.0)
    learning_rates: tuple[float, ...] = (5e-4, 5e-2)


def cases(settings: BiasSettings) -> list[Case]:
    """Return every composition at the settings' values, and two of them at others."""
    s = settings
    plain = {"alpha": s.alpha, "beta": s.beta, "learning_rate": s.learning_rate}
    pairs = [(name, mirror) for name in s.steepest for mirror in ("none", "last")]
    pairs += [(name, "first") for name in s.first] + [(name, "ham") for name in s.ham]
    runs = [(name, mirror, plain) for name, mirror in pairs]
    changes = [("alpha", s.alphas), ("beta", s.betas), ("learning_rate", s.learning_rates)]
    for name in ("sign", "adam"):
        runs += [(name, "last", plain | {key: v}) for key, values in changes for v in values]
    return [
        {"task": task, "steepest": name, "mirror": mirror, **values}
        for task in s.tasks
        for name, mirror, values in runs
    ]


def measure(settings: BiasSettings, case: Case, seed: int, report: Report) -> dict[str, Any]:
    """Solve one problem by one composition; compare the solution with the best of each norm."""
    problem = problem_of(settings, case["task"], seed)
    theta, curve = solve(problem, case, settings.steps, report)
    if not np.isfinite(theta).all():
        return {"diverged": True}
    return {
        "diverged": False,
        **solution_columns(problem, theta),
        "ratio_1_curve": [problem.ratios(at)["ratio_1"] for at in curve],
        "steps": settings.steps,
    }


@dataclass(frozen=True, eq=False)
class Problem:
    """Points with labels, and the best solution of each norm.

    Parameters
    ----------
    task : str
        One of `TASKS`.
    X, y : ndarray
        (n, d) and (n,).
    best : dict of str to float
        For each of `NORMS` the largest margin, or the smallest norm.
    """

    task: str
    X: np.ndarray
    y: np.ndarray
    best: dict[str, float]

    def ratios(self, theta: np.ndarray) -> dict[str, float]:
        """Return, for each norm, how good a solution is; 1 is the best there is.

        The margin over the largest, or the smallest norm over the norm.
        """
        if self.task == "classification":
            found = {n: normalised_margin(theta, self.X, self.y, p) for n, p in NORMS.items()}
            return {f"ratio_{name}": found[name] / self.best[name] for name in NORMS}
        norms = {name: np.linalg.norm(theta, p) for name, p in NORMS.items()}
        return {f"ratio_{name}": float(self.best[name] / norms[name]) for name in NORMS}

    def gradient(self, theta: Tensor) -> Tensor:
        """Return the gradient of the loss at theta, (d,), :eq:`eq-horst-soft-margin`."""
        X, y = torch.from_numpy(self.X), torch.from_numpy(self.y)
        if self.task == "regression":
            return X.T @ (X @ theta - y) / len(y)
        # d ln sum_i exp(-m_i) = -sum_i softmax(-m)_i y_i x_i
        return -X.T @ (torch.softmax(-y * (X @ theta), dim=0) * y)


def problem_of(settings: BiasSettings, task: str, seed: int) -> Problem:
    """Return the problem of a seed, with its exact solutions.

    Examples
    --------
    >>> problem = problem_of(BiasSettings(num_points=4, num_features=9), "regression", seed=0)
    >>> problem.X.shape, sorted(problem.best)
    ((4, 9), ['1', '2', '3', '4', 'inf'])
    """
    require_choice(task, "task", TASKS)
    random = np.random.default_rng(seed)
    X = random.standard_normal((settings.num_points, settings.num_features))
    y = X[:, : settings.num_relevant].sum(axis=1)
    if task == "regression":
        best = {name: np.linalg.norm(min_norm(X, y, p), p) for name, p in NORMS.items()}
    else:
        y = np.sign(y)
        best = {name: 1 / np.linalg.norm(max_margin(X, y, p), p) for name, p in NORMS.items()}
    return Problem(task, X, y, {name: float(value) for name, value in best.items()})


def operator_at(case: Case, rate: float) -> Operator:
    """Return the composition of a case at a learning rate.

    Examples
    --------
    >>> case = {"steepest": "sign", "mirror": "last", "alpha": 1.0, "beta": 0.0}
    >>> theta, u = torch.tensor([3.0]), torch.tensor([-7.0])
    >>> operator_at(case, 0.001)(theta, u, None)[0] / 0.001    # about -(1 + 3)
    tensor([-4.00])
    """
    S, alpha = STEEPEST[case["steepest"]], case["alpha"]
    if case["mirror"] == "first":
        return compose(scale(rate), compose(S, metric(alpha)))
    step = compose(scale(rate), S)
    if case["mirror"] == "last":
        return compose(exponential(alpha, rate * case["beta"]), step)
    return step


def step_of(
    case: Case, rate: float, theta: Tensor, u: Tensor, state: State
) -> tuple[Tensor, State]:
    """Take one step of a case; HAM has a second part, with the raw gradient."""
    half, state = descend(operator_at(case, rate), theta, u, state)
    if case["mirror"] != "ham":
        return half, state
    exponent = -rate * (case["alpha"] * half.sign() * u + case["beta"])
    return half * exponent.clamp(-CLAMP, CLAMP).exp(), state


def solve(
    problem: Problem, case: Case, steps: int, report: Report
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Run a case from zero; return the weights at the end, and at every twentieth of the run."""
    theta, state, curve = torch.zeros(problem.X.shape[1], dtype=torch.float64), None, []
    marks = set(np.linspace(0, steps - 1, 21)[1:].round().astype(int).tolist())
    for step in range(steps):
        rate = case["learning_rate"] * (1 - step / steps)
        theta, state = step_of(case, rate, theta, problem.gradient(theta), state)
        if step in marks:
            curve.append(theta.numpy().copy())
            report(step + 1, steps)
    return theta.numpy(), curve


def solution_columns(problem: Problem, theta: np.ndarray) -> dict[str, Any]:
    """Return what a solution is like: its ratios, its zeros, its size, and how well it fits."""
    size = np.abs(theta)
    fit = problem.X @ theta
    if problem.task == "regression":
        miss = float(np.abs(fit - problem.y).max())
    else:
        miss = float((problem.y * fit <= 0).mean())
    return {
        **problem.ratios(theta),
        "near_zero": float((size < 0.01 * size.max()).mean()),
        "log10_largest": float(np.log10(size.max())),
        "misfit": miss,
    }


def describe(settings: BiasSettings) -> dict[str, Any]:
    """Return the scale of the settings."""
    return {"weights": settings.num_features, "points": settings.num_points}


# --- what the paper claims, and how the rows judge it -------------------------------------------


def _query(side: dict[str, Any], ratio: str) -> str:
    shown = " ".join(f"{key}={value}" for key, value in side.items())
    return f"horst_bias | mean_ci {ratio} | preset=laptop {shown} | .3f"


def _higher(
    statement: str, ratio: str, side: dict[str, Any], reference: dict[str, Any]
) -> Iterator[Claim]:
    values = {"alpha": 10.0, "beta": 0.0, "learning_rate": 5e-3}
    for task in TASKS:
        at = {"task": task, **side, **values}
        other = {"task": task, **reference, **values}
        judge = judge_difference(ratio, at, other, expect="higher")
        yield Claim("horst", f"{statement} ({task})", None, _query(at, ratio), judge)


def _claims() -> Iterator[Claim]:
    for name in ("l2", "l3", "l4", "sign", "adam"):
        alone, last = ({"steepest": name, "mirror": m} for m in ("none", "last"))
        statement = f"The mirror on top of {name} turns its solution towards L_1"
        yield from _higher(statement, "ratio_1", last, alone)
    last, first = ({"steepest": "sign", "mirror": m} for m in ("last", "first"))
    yield from _higher("M o S is nearer to L_1 than S o M", "ratio_1", last, first)
    yield from _higher("S o M is nearer to L_inf than M o S", "ratio_inf", first, last)
    horst, ham = ({"steepest": "adam", "mirror": m} for m in ("last", "ham"))
    yield from _higher("HORST is nearer to L_1 than HAM", "ratio_1", horst, ham)


EXPERIMENT = Experiment(
    name="horst.bias",
    summary="Find which solution each composition chooses where the data do not decide.",
    presets={
        # All code paths in a second; no claim.
        "smoke": BiasSettings(
            num_points=6,
            num_features=10,
            steps=60,
            steepest=("gradient", "sign", "adam"),
            first=("sign",),
            alphas=(),
            betas=(0.1,),
            learning_rates=(),
        ),
        # What a notebook runs while it is read: one problem, the compositions of the theorem.
        "live": BiasSettings(
            tasks=("classification",),
            steps=1_500,
            learning_rate=2e-2,
            first=("sign",),
            alphas=(),
            betas=(),
            learning_rates=(),
        ),
        # The committed evidence: a second or two a run.
        "laptop": BiasSettings(),
    },
    cases=cases,
    measure=measure,
    describe=describe,
    seeds={"laptop": 10},
    claims=tuple(_claims()),
)

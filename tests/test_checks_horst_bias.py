"""The checkers of the chapter *Implicit bias*: right answers pass, mistakes are named."""

import math

import cvxpy
import pytest
import torch

from unrolled import checks
from unrolled.horst import operators as op
from unrolled.horst.margins import max_margin, min_norm, normalised_margin


def passes(result):
    assert result.passed, result


def fails(result, words):
    assert not result.passed, result
    assert words in result.message, result


# The ratio of two weights at the end of a flow that is driven by one point, (2, 1).
def limit(steepest, mirror):
    theta, point = torch.zeros(2).double(), torch.tensor([2.0, 1.0]).double()
    for _ in range(40_000 if mirror else 400):
        step = 2e-3 * steepest(theta, point, None)[0]
        theta = theta + (op.metric(1.0)(theta, step, None)[0] if mirror else step)
    return (theta[1] / theta[0]).item()


def limits():
    kinds = {"gradient": op.steepest(2), "l4": op.steepest(4), "sign": op.sign()}
    alone = {name: limit(kind, False) for name, kind in kinds.items()}
    return alone | {f"mirror, {name}": limit(kind, True) for name, kind in kinds.items()}


@pytest.mark.equation("eq-horst-power-flow")
def test_limits_are_those_of_the_flows():
    right = limits()
    passes(checks.horst_limits(right))
    for name in right:
        fails(checks.horst_limits(right | {name: 0.7}), f'"{name}"')
    fails(checks.horst_limits({"sign": 1.0}), "no")
    fails(checks.horst_limits(right | {"sign": math.nan}), '"sign"')
    fails(checks.horst_limits(right | {"sign": "one"}), "number")
    fails(checks.horst_limits([1, 2]), "dictionary")


def certificate(A, w, p):
    q = {1: math.inf, math.inf: 1}.get(p) or p / (p - 1)
    return (
        (A.T @ w).abs().pow(q).sum() ** (1 / q) / w.sum()
        if q < 99
        else (A.T @ w / w.sum()).abs().max()
    )


def test_certificate():
    check = checks.horst_certificate
    passes(check(certificate))
    fails(check(lambda A, w, p: certificate(A, w, p) * w.sum()), "sum 1")
    fails(
        check(lambda A, w, p: certificate(A, w, {1: math.inf, math.inf: 1}.get(p) or p / (p - 1))),
        "dual",
    )
    fails(check(lambda A, w, p: certificate(A, w, p) * w.sum() / w.norm()), "length")
    fails(check(lambda A, w, p: certificate(A, w, p) * 1.1), "10%")

    def margin(A, w, p):
        theta = (A.T @ w).numpy()
        return normalised_margin(theta, A.numpy(), torch.ones(len(A)).numpy(), p)

    def loose(A, w, p):
        rows = [certificate(row[None], torch.ones(1).double(), p) for row in A]
        return w @ torch.stack(rows) / w.sum()

    fails(check(margin), "one classifier")
    fails(check(loose), "norm of the mean")


@pytest.mark.equation("eq-horst-certificate")
def test_the_certificate_is_above_the_largest_margin():
    random = torch.Generator().manual_seed(1)
    A = torch.randn(5, 9, generator=random).double()
    for p in (1, 2, 4, math.inf):
        best = 1 / torch.linalg.vector_norm(
            torch.from_numpy(max_margin(A.numpy(), torch.ones(5).numpy(), p)), p
        )
        for _ in range(20):
            assert certificate(A, torch.rand(5, generator=random).double(), p) >= best - 1e-6


def sparsest_fit(X, y):
    theta = cvxpy.Variable(X.shape[1])
    limits = [X.numpy() @ theta == y.numpy()]
    cvxpy.Problem(cvxpy.Minimize(cvxpy.norm1(theta)), limits).solve(solver="CLARABEL")
    return torch.from_numpy(theta.value)


@pytest.mark.equation("eq-horst-min-norm")
def test_sparsest_fit():
    check = checks.horst_sparsest_fit
    passes(check(sparsest_fit))
    passes(check(lambda X, y: min_norm(X.numpy(), y.numpy(), 1)))
    fails(check(lambda X, y: torch.linalg.pinv(X) @ y), "L_2")
    fails(check(lambda X, y: min_norm(X.numpy(), y.numpy(), math.inf)), "L_infinity")
    fails(check(lambda X, y: min_norm(X.numpy(), y.numpy(), 3)), "smaller L_1")
    fails(check(lambda X, y: sparsest_fit(X, y).clamp(min=0)), "negative")
    fails(check(lambda X, y: sparsest_fit(X, y)[:-1]), "shape")


# Follow the flow in mirror coordinates until it rests, or is beyond any bound.
def stopping_size(alpha, beta, weight_decay, s):
    theta = 0.0
    for _ in range(40_000):
        theta += 0.01 * ((1 + alpha * theta) * abs(s) - (weight_decay + beta) * theta)
        if theta > 1e3:
            return math.inf
    return theta


def guarded(top, left):
    return top / left if left > 0 else math.inf


@pytest.mark.equation("eq-horst-threshold")
def test_stopping_size():
    check = checks.horst_stopping_size
    passes(check(stopping_size))
    fails(check(lambda a, b, w, s: stopping_size(a, b, w, 1.0)), "not 1")
    fails(check(lambda a, b, w, s: stopping_size(a, b, 0.0, s)), "decay")
    fails(check(lambda a, b, w, s: stopping_size(0.0, b, w, s)), "forget the mirror")
    fails(check(lambda a, b, w, s: guarded(abs(s), w + b - a)), "alpha |s|")
    fails(check(lambda a, b, w, s: guarded(1, w + b - a * abs(s))), "additive")
    fails(check(lambda a, b, w, s: abs(s) / (w + b - a * abs(s))), "infinity")
    fails(check(lambda a, b, w, s: math.copysign(stopping_size(a, b, w, s), s)), "absolute")
    fails(check(lambda a, b, w, s: math.nan), "NaN")


# z grows by the rate at each step: find the step at which theta(z) has the size.
def steps_to_reach(largest, alpha, lr):
    low, high = 0.0, 800 / (alpha * lr)
    for _ in range(200):
        middle = (low + high) / 2
        z = alpha * lr * middle
        reached = z > 700 and z >= math.log(alpha) + math.log(largest)
        reached = reached or (z <= 700 and math.expm1(z) / alpha >= largest)
        low, high = (low, middle) if reached else (middle, high)
    return high


@pytest.mark.equation("eq-horst-overflow")
def test_steps_to_reach():
    check = checks.horst_steps_to_reach
    passes(check(steps_to_reach))
    fails(check(lambda m, a, lr: steps_to_reach(m, a, 1.0)), "How many steps")
    fails(check(lambda m, a, lr: m / lr), "without the mirror")
    fails(check(lambda m, a, lr: a * steps_to_reach(m, a, lr)), "lose an alpha")
    fails(check(lambda m, a, lr: math.log1p(m) / (a * lr)), "inside")
    fails(check(lambda m, a, lr: math.log(m) / (a * lr)), "huge")
    fails(check(lambda m, a, lr: steps_to_reach(m, a, lr) / math.log(10)), "natural")


# Two weights in mirror coordinates, driven by gradients 1 and c under S_p: bisect the way.
def way(alpha, p, c, share):
    def left(H):
        return math.exp(alpha * H * (c ** (1 / (p - 1)) - 1))

    low, high = 0.0, 1e6
    if left(high) > share:
        return math.inf
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (low, middle) if left(middle) <= share else (middle, high)
    return high


@pytest.mark.equation("eq-horst-share")
def test_way():
    check = checks.horst_way
    passes(check(way))
    fails(check(lambda a, p, c, share: way(a, 2.0, c, share)), "p = 2")
    powers = lambda a, p, c, share: math.log(1 / share) / (a * (1 - c ** (p - 1)))  # noqa: E731
    fails(check(powers), "not p - 1")
    fails(check(lambda a, p, c, share: way(a, p + 1, c, share)), "1 / p")
    fails(check(lambda a, p, c, share: way(1.0, p, c, share)), "forget alpha")
    fails(check(lambda a, p, c, share: -way(a, p, c, share)), "sign")
    fails(check(lambda a, p, c, share: math.nan), "NaN")


NAMES = ("limits", "certificate", "sparsest_fit", "stopping_size", "steps_to_reach", "way")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("wrong", [math.nan, [1.0, 2.0], "text", lambda *_: "text", lambda: 1])
def test_nonsense_never_raises(name, wrong):
    assert not getattr(checks, f"horst_{name}")(wrong).passed


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stub", [None, ..., lambda *_: None])
def test_a_stub_is_told_so(name, stub):
    assert not getattr(checks, f"horst_{name}")(stub).passed

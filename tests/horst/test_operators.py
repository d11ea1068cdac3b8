"""Operators: each against its definition, the two orders, and HORST as a composition."""

import math

import pytest
import torch
from scipy import optimize

from unrolled.horst import operators as op


@pytest.fixture
def point():
    torch.manual_seed(0)
    return torch.randn(6, 4, dtype=torch.float64), torch.randn(6, 4, dtype=torch.float64)


# --- steepest descent ---------------------------------------------------------------------------


@pytest.mark.equation("eq-horst-steepest")
@pytest.mark.parametrize("p", [1, 1.5, 2, 3, 4, math.inf])
def test_steepest_direction_has_unit_length_and_reaches_the_dual_norm(point, p):
    theta, u = point
    d, _ = op.steepest(p)(theta, u, None)
    assert torch.linalg.vector_norm(d, p).item() == pytest.approx(1)
    q = {1: math.inf, math.inf: 1}.get(p) or p / (p - 1)
    # max of <u, d> over the unit ball is the dual norm
    assert (u * d).sum().item() == pytest.approx(torch.linalg.vector_norm(u, q).item())


@pytest.mark.equation("eq-horst-steepest")
@pytest.mark.parametrize("p", [1.5, 3])
def test_no_direction_on_the_unit_sphere_beats_the_steepest(p):
    u = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)

    def negative(d):
        d = torch.from_numpy(d)
        return -(u @ d / torch.linalg.vector_norm(d, p)).item()

    found = optimize.minimize(negative, [0.1, 0.2, 0.3], method="Nelder-Mead", tol=1e-10)
    best = op.steepest(p)(u, u, None)[0]
    assert -found.fun == pytest.approx((u @ best).item(), rel=1e-6)


@pytest.mark.parametrize("p", [1, 2, 3, math.inf])
@pytest.mark.parametrize("factor", [1e-200, 1e150])
def test_steepest_descent_does_not_see_the_size_of_a_gradient(point, p, factor):
    theta, u = point
    here, there = (op.steepest(p)(theta, v, None)[0] for v in (u, factor * u))
    torch.testing.assert_close(here, there)


def test_no_gradient_is_no_direction():
    zero = torch.zeros(3)
    for operator in (op.steepest(1), op.steepest(3), op.sign(), op.adam(), op.adam(eps=0.0)):
        assert torch.equal(operator(zero, zero, None)[0], zero)


def test_adam_without_memory_is_sign(point):
    theta, u = point
    assert torch.allclose(op.adam((0.0, 0.0), eps=0.0)(theta, u, None)[0], u.sign())


def test_adam_does_not_hide_a_gradient_that_is_not_a_number():
    direction, _ = op.adam()(torch.zeros(2), torch.tensor([math.nan, 1.0]), None)
    assert direction.isnan().tolist() == [True, False]


@pytest.mark.equation("eq-horst-adam")
def test_adam_is_the_adam_of_torch(point):
    theta, u = point
    weight = torch.nn.Parameter(theta.clone())
    reference, state = torch.optim.Adam([weight], lr=0.1), None
    for step in range(20):
        weight.grad = u.roll(step) * (1 + step)
        reference.step()
        theta, state = op.descend(op.compose(op.scale(0.1), op.adam()), theta, weight.grad, state)
    torch.testing.assert_close(theta, weight.data)


# --- mirrors ------------------------------------------------------------------------------------


@pytest.mark.equation("eq-horst-mirror-step")
def test_mirror_step_moves_the_mirror_map_by_the_direction(point):
    theta, u = point
    moved = theta - op.hyperbolic(0.3)(theta, u, None)[0]
    torch.testing.assert_close(op.mirror_map(moved, 0.3), op.mirror_map(theta, 0.3) - u)


@pytest.mark.equation("eq-horst-hyperbolic-entropy")
def test_mirror_map_is_the_gradient_of_the_entropy(point):
    theta = point[0].requires_grad_()
    b = 0.7
    phi = (theta * torch.asinh(theta / b) - (theta**2 + b**2).sqrt()).sum()
    torch.testing.assert_close(torch.autograd.grad(phi, theta)[0], op.mirror_map(theta, b))


@pytest.mark.equation("eq-horst-exponential", "eq-horst-metric")
@pytest.mark.parametrize(
    ("operator", "slope"),
    [
        (op.hyperbolic(0.5), lambda theta: (theta**2 + 0.25).sqrt()),
        (op.exponential(3.0), lambda theta: 1 + 3 * theta.abs()),
        (op.metric(3.0), lambda theta: 1 + 3 * theta.abs()),
    ],
    ids=["hyperbolic", "exponential", "metric"],
)
def test_a_mirror_is_linear_for_small_steps(point, operator, slope):
    theta, u = point
    moved = operator(theta, 1e-7 * u, None)[0] / 1e-7
    torch.testing.assert_close(moved, slope(theta) * u, rtol=1e-5, atol=1e-5)


@pytest.mark.equation("eq-horst-exponential")
def test_the_exponential_keeps_zeros_and_signs_of_what_the_addition_leaves():
    theta, u = torch.tensor([1.0, -1.0, 0.5, 0.0]), torch.tensor([0.2, 0.2, 0.5, 0.0])
    moved = theta - op.exponential(30.0, 0.1)(theta, u, None)[0]
    assert torch.equal(moved.sign(), (theta - u).sign())
    assert moved[2] == moved[3] == 0


def test_the_exponent_is_clamped():
    theta, u = torch.tensor([1.0]), torch.tensor([-0.5])
    moved = theta - op.exponential(1e6, clamp=2.0)(theta, u, None)[0]
    assert moved.item() == pytest.approx(1.5 * math.e**2)


# --- composition --------------------------------------------------------------------------------


@pytest.mark.parametrize("mirror", [op.metric(4.0), op.hyperbolic(0.2)], ids=["metric", "entropy"])
def test_sign_after_a_mirror_is_sign(point, mirror):
    theta, u = point
    assert torch.equal(op.compose(op.sign(), mirror)(theta, u, None)[0], u.sign())
    other = op.compose(mirror, op.sign())(theta, u, None)[0]
    assert not torch.allclose(other, u.sign())


@pytest.mark.equation("eq-horst-commutator")
def test_linear_operators_commute(point):
    assert op.commutator(op.scale(0.3), op.metric(2.0), *point).abs().max() < 1e-15
    assert op.commutator(op.gradient(), op.metric(2.0), *point).abs().max() == 0


@pytest.mark.equation("eq-horst-commutator")
def test_the_commutator_of_sign_and_metric_is_minus_what_the_mirror_adds(point):
    theta, u = point
    # sign(D g) - D sign(g) = -alpha |theta| sign(g)
    expected = -2 * theta.abs() * u.sign()
    torch.testing.assert_close(op.commutator(op.sign(), op.metric(2.0), theta, u), expected)


@pytest.mark.equation("eq-horst-composition")
def test_composition_is_associative_and_carries_the_states(point):
    theta, u = point
    a, b, c = op.metric(2.0), op.adam(), op.scale(0.1)
    left, right = op.compose(a, op.compose(b, c)), op.compose(op.compose(a, b), c)
    states = [None, None]
    for step in range(3):
        one, states[0] = left(theta, u * (step + 1), states[0])
        two, states[1] = right(theta, u * (step + 1), states[1])
        assert torch.equal(one, two)
    assert states[0][1][0].steps == 3


@pytest.mark.equation("eq-horst-update")
def test_horst_is_the_rule_of_two_lines(point):
    theta, u = point
    lr, alpha, beta, decay, b1, b2, eps = 0.01, 7.0, 0.3, 0.2, 0.8, 0.95, 1e-8
    found, state = theta, None
    m, v = torch.zeros_like(theta), torch.zeros_like(theta)
    for t in range(1, 6):
        g = u.roll(t)
        options = {"alpha": alpha, "beta": beta, "weight_decay": decay, "betas": (b1, b2)}
        found, state = op.horst(found, g, state, lr=lr, eps=eps, **options)
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        step = lr * (m / (1 - b1**t)) / ((v / (1 - b2**t)).sqrt() + eps)
        half = theta - step - lr * decay * theta
        theta = half * torch.exp(-alpha * half.sign() * step - lr * beta)
        torch.testing.assert_close(found, theta)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: op.steepest(0.5), "p must be at least 1, got 0.5"),
        (lambda: op.scale(-1.0), "rate must be a finite number >= 0, got -1.0"),
        (lambda: op.metric(math.nan), "alpha must be"),
        (lambda: op.hyperbolic(0.0), "b must be a positive"),
        (lambda: op.mirror_map(torch.ones(1), -1.0), "b must be a positive"),
        (lambda: op.exponential(1.0, clamp=0.0), "clamp must be"),
        (lambda: op.adam((0.9, 1.0)), "betas must be two in"),
    ],
)
def test_bad_values_are_named(call, name):
    with pytest.raises(ValueError, match=name.replace("(", r"\(")):
        call()

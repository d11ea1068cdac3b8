"""Dual ascent against exact solutions, hand-written steps and another library; and in `fit`."""

import copy

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from unrolled.descent.constraints import (
    FORMS,
    CumulativeConstraint,
    ExactConstraint,
    ProxyConstraint,
    RatioConstraint,
)
from unrolled.descent.primal_dual import (
    Multipliers,
    PrimalDual,
    complementarity_gap,
    dual_curves,
    dual_gradient,
    dual_step,
    lagrangian,
)
from unrolled.descent.readout import collect_losses, squared_losses
from unrolled.training import StepReport, TrainingConfig, fit


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


# --- the formulas -----------------------------------------------------------------------------


@pytest.mark.equation("eq-descent-lagrangian")
@pytest.mark.parametrize("cost", [None, 5.0])
def test_the_gradient_in_the_multipliers_is_the_slack_or_its_leaky_form(cost):
    lam = torch.rand(4, generator=rng()).requires_grad_()
    g = torch.randn(4, generator=rng(1))
    (gradient,) = torch.autograd.grad(lagrangian(torch.tensor(3.0), g, lam, cost), lam)
    assert_close(gradient, g if cost is None else g - lam.detach() / cost)
    assert_close(dual_gradient(g, lam.detach(), cost), gradient)


@pytest.mark.equation("eq-descent-resilient")
def test_the_resilient_lagrangian_is_the_least_over_the_relaxations():
    lam, g, cost = torch.tensor([0.6, 2.0]), torch.tensor([0.3, -0.1]), 4.0
    u = torch.rand(1000, 2, generator=rng())  # any relaxation, and the best one
    best = lam / cost
    values = [1.0 + (cost / 2 * v**2 + lam * (g - v)).sum(dim=-1) for v in (u, best)]
    assert_close(values[1], lagrangian(torch.tensor(1.0), g, lam, cost))
    assert (values[0] >= values[1]).all()


@pytest.mark.parametrize("cost", [None, 5.0])
def test_multipliers_stay_at_or_above_zero(cost):
    dual = Multipliers(6, step_size=2.0, relaxation_cost=cost)
    for seed in range(50):
        dual.update(3 * torch.randn(6, generator=rng(seed)) - 0.5)
        assert (dual.values >= 0).all()
    assert (dual.values > 0).any()


@pytest.mark.equation("eq-descent-resilient")
def test_leaky_ascent_rests_where_the_slack_is_the_price_over_the_cost():
    dual = Multipliers(2, step_size=0.5, relaxation_cost=2.0).double()
    g = torch.tensor([0.3, -0.3], dtype=torch.float64)
    for _ in range(100):
        dual.update(g)
    assert_close(dual.values, torch.tensor([0.6, 0.0], dtype=torch.float64))
    assert_close(dual.relaxations, g.clamp_min(0))
    assert complementarity_gap(g, dual.values, 2.0).abs() < 1e-12
    # The plain form never rests on a slack that stays positive.
    plain = Multipliers(1, step_size=0.5)
    for _ in range(200):
        plain.update(torch.tensor([0.3]))
    assert plain.values.item() == pytest.approx(30, rel=1e-4)
    assert plain.relaxations.item() == 0


def test_an_endless_cost_of_relaxation_is_the_plain_form():
    lam, g = torch.rand(3, generator=rng()), torch.randn(3, generator=rng(1))
    assert_close(dual_step(lam, g, 0.1, relaxation_cost=1e12), dual_step(lam, g, 0.1))


@pytest.mark.equation("eq-descent-gap")
def test_the_gap_is_the_objective_less_the_lagrangian():
    f, g, lam = torch.tensor(2.0), torch.tensor([0.5, -1.0]), torch.tensor([1.0, 3.0])
    assert_close(complementarity_gap(g, lam), f - lagrangian(f, g, lam))


# --- convex programs, solved exactly by CVXPY -------------------------------------------------


def solve(objective, constraint_of, dual, start, step_size, steps):
    """Run gradient descent-ascent by hand; return the weights."""
    x = start.clone().requires_grad_()
    for _ in range(steps):
        slacks = constraint_of(x)
        (gradient,) = torch.autograd.grad(dual.lagrangian(objective(x), slacks), x)
        x.data -= step_size * gradient
        dual.update(slacks)
    return x.detach()


def exact(x, objective, constraints):
    """Solve with an interior-point method; return the minimiser and the multipliers."""
    cp.Problem(cp.Minimize(objective), constraints).solve(solver=cp.CLARABEL)
    return x.value, np.concatenate([np.atleast_1d(c.dual_value) for c in constraints])


def quadratic(count, seed=0):
    random = np.random.default_rng(seed)
    root = random.normal(size=(4, 4)) / 4
    P, q = np.eye(4) + root @ root.T, random.normal(size=4)
    A = random.normal(size=(count, 4))
    A /= np.linalg.norm(A, axis=1, keepdims=True)
    return P, q, A, -0.3 * np.ones(count)


@pytest.mark.equation("eq-descent-dual-ascent")
@pytest.mark.parametrize(("count", "cost"), [(1, None), (3, None), (3, 2.0)])
def test_quadratic_program_reaches_the_exact_primal_and_dual_solution(count, cost):
    P, q, A, b = quadratic(count)
    x, u = cp.Variable(4), cp.Variable(count, nonneg=True)
    f = 0.5 * cp.quad_form(x, P) + q @ x
    if cost is None:
        solution, prices = exact(x, f, [A @ x <= b])
    else:
        solution, prices = exact(x, f + cost / 2 * cp.sum_squares(u), [A @ x <= b + u])
    Pt, qt, At, bt = map(torch.from_numpy, (P, q, A, b))
    dual = Multipliers(count, step_size=0.4, relaxation_cost=cost).double()
    found = solve(
        lambda z: 0.5 * z @ Pt @ z + qt @ z,
        lambda z: At @ z - bt,
        dual,
        torch.zeros(4, dtype=torch.float64),
        step_size=0.4,
        steps=600,
    )
    np.testing.assert_allclose(found, solution, atol=1e-6)
    np.testing.assert_allclose(dual.values, prices, atol=1e-6)
    assert prices.max() > 0.1
    if cost is not None:
        np.testing.assert_allclose(dual.relaxations, u.value, atol=1e-6)


def test_a_regularised_linear_program_has_the_solution_of_the_linear_program():
    # min - x - 2 y  with  x + y <= 1,  x <= .6,  -x <= 0,  -y <= 0:  the vertex (0, 1)
    c, b = np.array([-1.0, -2.0]), np.array([1.0, 0.6, 0.0, 0.0])
    A = np.array([[1.0, 1.0], [1.0, 0.0], [-1.0, 0.0], [0.0, -1.0]])
    x, weight = cp.Variable(2), 0.8
    vertex, _ = exact(x, c @ x, [A @ x <= b])
    solution, prices = exact(x, c @ x + weight / 2 * cp.sum_squares(x), [A @ x <= b])
    ct, At, bt = map(torch.from_numpy, (c, A, b))
    dual = Multipliers(4, step_size=0.2).double()
    found = solve(
        lambda z: ct @ z + weight / 2 * z @ z,
        lambda z: At @ z - bt,
        dual,
        torch.zeros(2, dtype=torch.float64),
        step_size=0.5,
        steps=250,
    )
    np.testing.assert_allclose(found, vertex, atol=1e-6)
    np.testing.assert_allclose(found, solution, atol=1e-6)
    np.testing.assert_allclose(dual.values, prices, atol=1e-5)


def test_constrained_logistic_regression_reaches_the_exact_solution():
    random = np.random.default_rng(1)
    X = random.normal(size=(40, 3))
    y = np.sign(X @ [1.5, -1.0, 0.5] + random.normal(size=40))
    w = cp.Variable(3)
    f = cp.sum(cp.logistic(-cp.multiply(y, X @ w))) / 40
    solution, prices = exact(w, f, [cp.sum_squares(w) <= 0.5])
    assert prices > 0.1
    margin, dual = torch.from_numpy(y[:, None] * X), Multipliers(1, step_size=0.1).double()
    found = solve(
        lambda z: nn.functional.softplus(-margin @ z).mean(),
        lambda z: (z @ z - 0.5)[None],
        dual,
        torch.zeros(3, dtype=torch.float64),
        step_size=1.0,
        steps=200,
    )
    np.testing.assert_allclose(found, solution, atol=1e-5)
    np.testing.assert_allclose(dual.values, prices, atol=1e-5)


# Each point is the target of one layer. With the last at 0 the objective pulls to 0, away from the
# targets of layers 1 and 2, so that two constraints are active.
POINTS = np.array([[0.2, 1.4], [-1.7, 0.0], [0.0, -1.2], [0.0, 0.0]])
ALPHAS, KEPT = (0.55, 0.5, 0.3), (0.45, 0.5, 0.7)


def exact_bounds(x, a):
    # f_l = |x - a_l|^2. With alpha > 0 even the difference of two of them is convex:
    # f_l - k f_(l-1) = (1 - k) |x|^2 - 2 (a_l - k a_(l-1)) x + |a_l|^2 - k |a_(l-1)|^2
    return [
        (1 - k) * cp.sum_squares(x) - 2 * (a[i + 1] - k * a[i]) @ x
        <= k * (a[i] @ a[i]) - a[i + 1] @ a[i + 1]
        for i, k in enumerate(KEPT)
    ]


def cumulative_bounds(x, a):
    rho = np.cumprod(KEPT)
    return [cp.sum_squares(x - a[i + 1]) <= 4.0 * rho[i] for i in range(3)]


@pytest.mark.parametrize(
    ("constraint", "bounds"),
    [
        (ExactConstraint(ALPHAS), exact_bounds),
        (CumulativeConstraint(ALPHAS, reference=4.0), cumulative_bounds),
    ],
    ids=["exact", "cumulative"],
)
def test_layerwise_descent_reaches_the_exact_solution_of_a_convex_case(constraint, bounds):
    x = cp.Variable(2)
    solution, prices = exact(x, cp.sum_squares(x - POINTS[3]), bounds(x, POINTS))
    assert (prices > 0.05).sum() == 2
    dual, points = PrimalDual(constraint, step_size=0.1).double(), torch.from_numpy(POINTS)
    theta = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    for _ in range(300):
        losses = (theta - points).square().sum(dim=1)
        (gradient,) = torch.autograd.grad(dual.lagrangian(losses), theta)
        theta.data -= 0.2 * gradient
        report = dual.update(losses)
    np.testing.assert_allclose(theta.detach(), solution, atol=1e-5)
    np.testing.assert_allclose(dual.multipliers, prices, atol=1e-5)
    assert abs(report.gap) < 1e-5
    assert report.lagrangian == pytest.approx(losses[-1].item(), abs=1e-5)


# --- two steps, by hand and by another library ------------------------------------------------


def toy(x):
    """Two weights, two constraints, nothing linear."""
    f = (x[0] - 2) ** 2 + torch.exp(x[1])
    return f, torch.stack((x[0] * x[1] - 0.1, x.square().sum() - 0.5))


START = torch.tensor([0.9, -0.4], dtype=torch.float64)


def two_steps(alternating):
    x, dual = START.clone().requires_grad_(), Multipliers(2, step_size=0.3).double()
    for _ in range(2):
        f, g = toy(x)
        (gradient,) = torch.autograd.grad(dual.lagrangian(f, g), x)
        x.data -= 0.1 * gradient
        dual.update(toy(x)[1] if alternating else g)
    return x.detach(), dual.values


def two_steps_on_paper(alternating):
    x, lam = START.numpy().copy(), np.zeros(2)

    def slack(x):
        return np.array([x[0] * x[1] - 0.1, x @ x - 0.5])

    for _ in range(2):
        g = slack(x)
        of_f = np.array([2 * (x[0] - 2), np.exp(x[1])])
        of_g = np.array([[x[1], x[0]], 2 * x])
        x = x - 0.1 * (of_f + lam @ of_g)
        lam = np.maximum(lam + 0.3 * (slack(x) if alternating else g), 0)
    return x, lam


@pytest.mark.equation("eq-descent-dual-ascent")
@pytest.mark.parametrize("alternating", [False, True])
def test_two_steps_equal_those_on_paper(alternating):
    for mine, theirs in zip(two_steps(alternating), two_steps_on_paper(alternating), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12)


@pytest.mark.parametrize("alternating", [False, True])
def test_two_steps_equal_those_of_cooper(alternating):
    import cooper

    class Problem(cooper.ConstrainedMinimizationProblem):
        def __init__(self):
            super().__init__()
            self.constraint = cooper.Constraint(
                constraint_type=cooper.ConstraintType.INEQUALITY,
                formulation_type=cooper.formulations.Lagrangian,
                multiplier=cooper.multipliers.DenseMultiplier(
                    num_constraints=2, dtype=torch.float64
                ),
            )

        def compute_cmp_state(self):
            f, g = toy(x)
            state = {self.constraint: cooper.ConstraintState(violation=g)}
            return cooper.CMPState(loss=f, observed_constraints=state)

    x, problem = nn.Parameter(START.clone()), Problem()
    kind = "AlternatingPrimalDualOptimizer" if alternating else "SimultaneousOptimizer"
    optimizer = getattr(cooper.optim, kind)(
        cmp=problem,
        primal_optimizers=torch.optim.SGD([x], lr=0.1),
        dual_optimizers=torch.optim.SGD(problem.dual_parameters(), lr=0.3, maximize=True),
    )
    for _ in range(2):
        optimizer.roll()
    weights, multipliers = two_steps(alternating)
    assert_close(weights, x.detach())
    assert_close(multipliers, problem.constraint.multiplier().detach())
    assert (multipliers > 0).any()


# --- periods, reports and refusals ------------------------------------------------------------


def test_every_k_steps_the_mean_of_the_window_enters():
    slacks = [torch.tensor([0.3, -1.0]), torch.tensor([0.6, 2.0]), torch.tensor([0.9, 2.0])]
    dual = Multipliers(2, step_size=0.5, every=3)
    assert [dual.update(g) for g in slacks] == [False, False, True]
    assert_close(dual.values, torch.tensor([0.3, 0.5]))
    dual.update(slacks[0])
    assert_close(dual.values, torch.tensor([0.3, 0.5]))


def test_pieces_of_a_batch_may_come_one_by_one():
    losses = torch.rand(4, 6, generator=rng())
    whole = PrimalDual(RatioConstraint((0.5, 0.5, 0.5)), step_size=0.5)
    pieces = PrimalDual(RatioConstraint((0.5, 0.5, 0.5)), step_size=0.5, every=3)
    whole.update(losses)
    for piece in losses.split(2, dim=1):
        pieces.update(piece)
    assert_close(pieces.multipliers, whole.multipliers)


def test_a_report_is_of_the_state_before_the_dual_step():
    dual = PrimalDual(ExactConstraint((0.5, 0.5)), step_size=1.0, initial=2.0)
    report = dual.update(torch.tensor([[1.0, 1.0], [0.4, 0.8], [0.3, 0.7]]))
    assert_close(report.losses, torch.tensor([1.0, 0.6, 0.5]))
    assert_close(report.slacks, torch.tensor([0.1, 0.2]))
    assert_close(report.multipliers, torch.tensor([2.0, 2.0]))
    assert report.lagrangian == pytest.approx(0.5 + 2 * 0.1 + 2 * 0.2)
    assert report.gap == pytest.approx(-0.6)
    assert report.ascended
    assert_close(dual.multipliers, torch.tensor([2.1, 2.2]))


def test_a_slack_that_is_not_finite_is_refused_and_moves_nothing():
    dual = Multipliers(2, step_size=1.0, initial=0.5)
    with pytest.raises(FloatingPointError, match="slacks are not finite"):
        dual.update(torch.tensor([1.0, float("nan")]))
    assert dual.values.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"num_constraints": 0}, "num_constraints"),
        ({"step_size": 0.0}, "step_size"),
        ({"step_size": 3.0, "relaxation_cost": 2.0}, "step_size"),
        ({"relaxation_cost": -1.0}, "relaxation_cost"),
        ({"every": 0}, "every"),
        ({"initial": -0.1}, "initial"),
    ],
)
def test_arguments_outside_their_range_are_named(options, name):
    with pytest.raises(ValueError, match=f"{name} must be"):
        Multipliers(**({"num_constraints": 2, "step_size": 0.1} | options))


def test_other_shapes_and_types_are_refused():
    with pytest.raises(ValueError, match=r"slacks must be of shape \(2,\)"):
        Multipliers(2, 0.1).update(torch.zeros(3))
    with pytest.raises(TypeError, match="constraint must be a Constraint, got str"):
        PrimalDual("exact", 0.1)


def test_multipliers_are_buffers_and_no_parameters():
    dual = PrimalDual(ExactConstraint((0.1, 0.1)), 0.1)
    assert not list(dual.parameters())
    assert dict(dual.named_buffers())["dual.values"] is dual.multipliers


@pytest.mark.parametrize(
    ("other", "name"),
    [
        (PrimalDual(ExactConstraint((0.1, 0.2)), 0.1), "constraint"),
        (PrimalDual(ProxyConstraint((0.1, 0.1)), 0.1), "constraint"),
        (PrimalDual(ExactConstraint((0.1, 0.1)), 0.2), "step_size"),
        (PrimalDual(ExactConstraint((0.1, 0.1)), 0.1, every=2), "every"),
    ],
)
def test_a_state_of_other_settings_is_refused(other, name):
    state = PrimalDual(ExactConstraint((0.1, 0.1)), 0.1).state_dict()
    with pytest.raises(ValueError, match=f"{name} must be .* with which the state was saved"):
        other.load_state_dict(state)


# --- in fit -----------------------------------------------------------------------------------

LAYERS, ROWS, STEPS = 3, 8, 12


class Unrolled(nn.Module):
    """Three layers and one readout; dropout, so that random states matter."""

    def __init__(self, dropout=0.1):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(LAYERS))
            self.head = nn.Linear(4, 1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        states = [x]
        for layer in self.layers:
            states.append(states[-1] + self.dropout(torch.tanh(layer(states[-1]))))
        return [self.head(state) for state in states]


def layer_losses(model, batch):
    x, y = batch
    return squared_losses(model(x), y)


def batch_at(step):
    x = torch.randn(ROWS, 4, generator=rng(step % 4))
    return x, x.prod(dim=1, keepdim=True).tanh()


def make_dual(form="exact", every=1, **options):
    alphas = (0.2,) * LAYERS
    extra = {"anchored": {"anchor": 0.5}, "ratio": {"floor": 0.1}}.get(form, {})
    return PrimalDual(FORMS[form](alphas, **extra), 0.5, every=every, **options)


def train(dual, batches=batch_at, dropout=0.1, measure=None, **settings):
    model = Unrolled(dropout)
    training = TrainingConfig(**({"steps": STEPS, "batch_size": ROWS, "seed": 0} | settings))
    optimizer = [torch.optim.SGD(model.parameters(), lr=0.05)]
    hooks = dual.hooks(layer_losses, measure=measure and measure(model))
    return model, fit(model, batches, training=training, optimizer=optimizer, **hooks)


def by_hand(dual, alternating=False):
    model = Unrolled(dropout=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    reports = []
    for step in range(STEPS):
        losses = layer_losses(model, batch_at(step))
        dual.lagrangian(losses).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        reports.append(dual.update(layer_losses(model, batch_at(step)) if alternating else losses))
    return model, reports


def assert_same_weights(one, two, **tolerance):
    for first, second in zip(one.parameters(), two.parameters(), strict=True):
        assert_close(first, second, **tolerance)


BITS = {"rtol": 0, "atol": 0}


@pytest.mark.parametrize("form", FORMS)
def test_fit_takes_the_steps_of_a_loop_by_hand(form):
    hand, dual = make_dual(form, every=2), make_dual(form, every=2)
    looped, reports = by_hand(hand)
    model, result = train(dual, dropout=0.0)
    assert (dual.multipliers > 0).any()
    assert_close(dual.multipliers, hand.multipliers)
    assert_same_weights(model, looped)
    curves = dual_curves(result)
    shapes = [tuple(curve.shape) for curve in curves]
    assert shapes == [(STEPS, LAYERS + 1), (STEPS, LAYERS), (STEPS, LAYERS), (STEPS,)]
    for name in ("losses", "slacks", "multipliers"):
        expected = torch.stack([getattr(report, name).double() for report in reports])
        assert_close(getattr(curves, name), expected, rtol=1e-5, atol=1e-6)
    gaps = torch.tensor([report.gap for report in reports], dtype=torch.float64)
    assert_close(curves.gap, gaps, rtol=1e-4, atol=1e-6)
    # The loss of fit is the Lagrangian, of which the curves hold every term.
    value = curves.losses[:, -1] + (curves.multipliers * curves.slacks).sum(dim=1)
    assert_close(value, torch.tensor(result.losses, dtype=torch.float64), rtol=1e-5, atol=1e-6)


def test_alternating_updates_in_fit_are_those_by_hand():
    hand, dual = make_dual(), make_dual()
    looped, _ = by_hand(hand, alternating=True)

    def measure(model):
        return lambda step: collect_losses(model, layer_losses, [batch_at(step)])

    model, _ = train(dual, dropout=0.0, measure=measure)
    assert_close(dual.multipliers, hand.multipliers)
    assert_same_weights(model, looped)
    assert not torch.equal(dual.multipliers, train_simultaneously())


def train_simultaneously():
    dual = make_dual()
    train(dual, dropout=0.0)
    return dual.multipliers


def test_once_per_epoch_the_full_set_is_measured_without_gradient_and_dropout():
    dual, epoch, seen = make_dual(every=4), [batch_at(step) for step in range(4)], []

    def measure(model):
        def full_set(step):
            losses = collect_losses(model, layer_losses, epoch)
            seen.append((step, losses, copy.deepcopy(model)))
            return losses

        return full_set

    model, _ = train(dual, measure=measure)
    assert [step for step, _, _ in seen] == [3, 7, 11]
    assert model.training
    lam = torch.zeros(LAYERS)
    for _, losses, then in seen:
        assert losses.shape == (LAYERS + 1, 4 * ROWS)
        assert not losses.requires_grad
        whole = tuple(torch.cat(parts) for parts in zip(*epoch, strict=True))
        assert_close(losses, layer_losses(then.eval(), whole).detach())
        lam = dual_step(lam, dual.constraint.slacks(losses), 0.5)
    assert_close(dual.multipliers, lam)


@pytest.mark.parametrize("form", FORMS)
def test_zero_multipliers_give_exactly_the_gradients_of_erm(form):
    model, batch = Unrolled(dropout=0.0), batch_at(0)
    losses = layer_losses(model, batch)
    constrained = torch.autograd.grad(make_dual(form).lagrangian(losses), model.parameters())
    erm = torch.autograd.grad(layer_losses(model, batch)[-1].mean(), model.parameters())
    for one, two in zip(constrained, erm, strict=True):
        assert_close(one, two, **BITS)


@pytest.mark.parametrize("form", FORMS)
def test_accumulated_pieces_move_the_multipliers_as_the_whole_batch_does(form):
    whole, pieces = make_dual(form), make_dual(form)
    one, _ = train(whole, dropout=0.0)
    two, _ = train(pieces, dropout=0.0, micro_batch_size=2)
    assert_close(pieces.multipliers, whole.multipliers)
    assert_same_weights(one, two)
    assert (whole.multipliers > 0).any()


class KilledError(Exception):
    pass


@pytest.mark.parametrize("cost", [None, 5.0])
def test_a_killed_run_resumes_to_the_bit_in_the_middle_of_a_window(cost, tmp_path):
    options = {"every": 3, "relaxation_cost": cost}
    settings = {"checkpoint_folder": tmp_path, "checkpoint_every": 4, "progress": False}
    whole = make_dual(**options)
    expected, curves = train(whole)

    def killed_at_7(step):
        if step == 7:
            raise KilledError
        return batch_at(step)

    with pytest.raises(KilledError):
        train(make_dual(**options), killed_at_7, **settings)
    resumed = make_dual(**options)
    model, result = train(resumed, **settings)
    assert result.resumed_from == 4
    assert_close(resumed.multipliers, whole.multipliers, **BITS)
    assert (whole.multipliers > 0).any()
    assert_same_weights(model, expected, **BITS)
    assert result.losses == curves.losses
    assert result.diagnostics == curves.diagnostics


def test_a_checkpoint_of_another_constraint_is_refused(tmp_path):
    settings = {"checkpoint_folder": tmp_path, "steps": 2}
    train(make_dual(), **settings)
    with pytest.raises(ValueError, match="constraint must be"):
        train(make_dual("proxy"), **settings)


def test_a_step_that_was_skipped_moves_no_price():
    dual = make_dual()
    metrics = {f"slack_{layer}": 1.0 for layer in range(1, LAYERS + 1)} | {"skipped_step": 0}
    seen = dual.hooks(layer_losses)["on_step"](StepReport(0, 1, 1.0, 1.0, 0.1, metrics))
    assert dual.multipliers.tolist() == [0.0] * LAYERS
    assert set(seen) == {"multipliers", "gap"}


def test_curves_of_a_run_without_multipliers_are_refused():
    model = Unrolled()
    result = fit(
        model,
        batch_at,
        lambda model, batch: layer_losses(model, batch)[-1].mean(),
        TrainingConfig(steps=1, batch_size=ROWS),
        [torch.optim.SGD(model.parameters(), lr=0.1)],
    )
    with pytest.raises(ValueError, match="result must be of a run with"):
        dual_curves(result)

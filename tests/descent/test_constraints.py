"""Slacks, effective weights and violation rates against autograd, sum rules and hand counts."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from unrolled.descent.constraints import (
    FORMS,
    AnchoredConstraint,
    CumulativeConstraint,
    ExactConstraint,
    ProxyConstraint,
    RatioConstraint,
    constant_alphas,
    cumulative_factors,
    detect_sabotage,
    geometric_alphas,
    linear_alphas,
    stack_losses,
    violations,
)

ALPHAS = (0.1, 0.3, 0.0, 0.2)
LAYERS, SAMPLES = len(ALPHAS), 7
ALL = {
    "exact": ExactConstraint(ALPHAS),
    "anchored": AnchoredConstraint(ALPHAS, anchor=math.log(2)),
    "cumulative": CumulativeConstraint(ALPHAS),
    "cumulative, constant": CumulativeConstraint(ALPHAS, reference=0.7),
    "proxy": ProxyConstraint(ALPHAS),
    "ratio": RatioConstraint(ALPHAS),
}
each_form = pytest.mark.parametrize("constraint", ALL.values(), ids=ALL)
of_means = [c for name, c in ALL.items() if name != "ratio"]
each_mean_form = pytest.mark.parametrize("constraint", of_means, ids=lambda c: type(c).__name__)


def draw(seed=0, samples=SAMPLES):
    random = torch.Generator().manual_seed(seed)
    losses = 0.1 + torch.rand(LAYERS + 1, samples, generator=random, dtype=torch.float64)
    return losses, 3 * torch.rand(LAYERS, generator=random, dtype=torch.float64)


def gradient(constraint, losses, multipliers):
    """Autograd's gradient of the primal Lagrangian in the losses."""
    f = losses.clone().requires_grad_()
    slacks = constraint.primal_slacks(f)
    last = f[-1].mean()
    return torch.autograd.grad(last + multipliers @ slacks, f)[0]


# --- losses and schedules ---------------------------------------------------------------------


def test_losses_are_stacked_with_their_gradients():
    parts = [torch.rand(3, requires_grad=True) for _ in range(4)]
    stacked = stack_losses(parts)
    assert stacked.shape == (4, 3)
    stacked.sum().backward()
    assert all(torch.equal(part.grad, torch.ones(3)) for part in parts)
    assert_close(stack_losses([0.5, torch.tensor(0.25)]), torch.tensor([0.5, 0.25]))


def test_half_precision_does_not_round_a_slack_away():
    losses = torch.tensor([1.0, 0.95], dtype=torch.bfloat16)
    assert stack_losses(losses).dtype == torch.float32
    assert ExactConstraint((0.05,)).slacks(losses).dtype == torch.float32


@pytest.mark.parametrize("shape", [(), (1,), (1, 5), (3, 4, 5)])
def test_losses_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match=r"losses must be of shape \(L \+ 1,\)"):
        stack_losses(torch.zeros(shape))


@each_form
@pytest.mark.parametrize("layers", [LAYERS, LAYERS + 2])
def test_losses_of_another_number_of_layers_are_refused(constraint, layers):
    with pytest.raises(ValueError, match="losses must be losses of 5 layers"):
        constraint.slacks(torch.ones(layers, 2))


def test_geometric_shares_reach_their_total_and_are_all_alike():
    alphas = geometric_alphas(0.2, 6)
    assert cumulative_factors(alphas)[-1] == pytest.approx(0.2)
    assert len(set(alphas)) == 1


def test_linear_shares_go_in_equal_steps_and_constant_ones_are_a_special_case():
    assert linear_alphas(0.4, 0.1, 4) == pytest.approx((0.4, 0.3, 0.2, 0.1))
    assert constant_alphas(0.05, 3) == linear_alphas(0.05, 0.05, 3)
    assert linear_alphas(0.3, 0.1, 1) == (0.3,)


@pytest.mark.parametrize("alphas", [(), (1.0,), (-0.1,), (0.1, math.nan)])
def test_shares_outside_their_range_are_refused(alphas):
    for make in (ExactConstraint, CumulativeConstraint, RatioConstraint, cumulative_factors):
        with pytest.raises(ValueError, match="alphas must be"):
            make(alphas)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: AnchoredConstraint(ALPHAS, anchor=0.0), "anchor"),
        (lambda: CumulativeConstraint(ALPHAS, reference=-1.0), "reference"),
        (lambda: RatioConstraint(ALPHAS, floor=0.0), "floor"),
        (lambda: geometric_alphas(0.0, 3), "total"),
        (lambda: constant_alphas(0.1, 0), "num_layers"),
    ],
)
def test_arguments_outside_their_range_are_named(make, name):
    with pytest.raises(ValueError, match=f"{name} must be"):
        make()


# --- slacks -----------------------------------------------------------------------------------


@pytest.mark.equation("eq-descent-slack")
def test_exact_slacks_are_those_of_the_formula():
    losses = torch.tensor([1.0, 0.95, 0.5, 0.6, 0.3])
    expected = [0.95 - 0.9 * 1.0, 0.5 - 0.7 * 0.95, 0.6 - 0.5, 0.3 - 0.8 * 0.6]
    assert_close(ExactConstraint(ALPHAS).slacks(losses), torch.tensor(expected))


@pytest.mark.equation("eq-descent-anchored")
def test_anchored_slacks_do_not_see_the_start_and_equal_the_exact_ones_at_the_anchor():
    losses, _ = draw()
    anchored = AnchoredConstraint(ALPHAS, anchor=0.6)
    start, other = losses.clone(), losses.clone()
    start[0], other[0] = 0.6, 99.0
    assert_close(anchored.slacks(other), ExactConstraint(ALPHAS).slacks(start))


@pytest.mark.equation("eq-descent-cumulative")
def test_cumulative_slacks_compare_each_layer_with_the_reference():
    losses = torch.tensor([2.0, 1.0, 1.0, 1.0, 1.0])
    rho = torch.tensor([0.9, 0.63, 0.63, 0.504])
    assert_close(CumulativeConstraint(ALPHAS, reference=0.7).slacks(losses), 1 - 0.7 * rho)
    assert_close(CumulativeConstraint(ALPHAS).slacks(losses), 1 - 2 * rho)


@pytest.mark.equation("eq-descent-proxy")
def test_proxy_has_the_values_of_the_exact_slack_in_both_steps():
    losses, _ = draw()
    exact, proxy = ExactConstraint(ALPHAS), ProxyConstraint(ALPHAS)
    assert_close(proxy.slacks(losses), exact.slacks(losses))
    assert_close(proxy.primal_slacks(losses), exact.slacks(losses))


@pytest.mark.equation("eq-descent-proxy")
def test_proxy_keeps_the_true_gradient_in_the_dual_step():
    losses = draw()[0].requires_grad_()
    (in_dual,) = torch.autograd.grad(ProxyConstraint(ALPHAS).slacks(losses).sum(), losses)
    (exact,) = torch.autograd.grad(ExactConstraint(ALPHAS).slacks(losses).sum(), losses)
    assert_close(in_dual, exact)


@pytest.mark.equation("eq-descent-ratio")
def test_the_mean_of_ratios_is_not_the_ratio_of_means():
    losses = torch.tensor([[1.0, 3.0], [2.0, 1.0]])
    assert_close(RatioConstraint((0.5,)).slacks(losses), torch.tensor([(2 + 1 / 3) / 2 - 0.5]))


def test_a_tiny_denominator_counts_as_the_floor():
    losses = torch.tensor([[0.0], [1.0]])
    assert_close(RatioConstraint((0.5,), floor=0.1).slacks(losses), torch.tensor([10 - 0.5]))


@each_mean_form
def test_slacks_of_means_are_the_mean_of_the_slacks_of_samples(constraint):
    losses, _ = draw()
    assert_close(constraint.slacks(losses), constraint.slacks(losses.mean(dim=1)))
    assert_close(constraint.slacks(losses), constraint.sample_slacks(losses).mean(dim=1))


@each_form
def test_slacks_of_equal_parts_average_to_the_slack_of_the_whole(constraint):
    losses, _ = draw(samples=8)
    halves = [constraint.slacks(part) for part in losses.split(4, dim=1)]
    assert_close(torch.stack(halves).mean(dim=0), constraint.slacks(losses))


@pytest.mark.equation("eq-descent-cumulative")
def test_exact_feasibility_implies_cumulative_feasibility():
    losses = torch.tensor([1.0, 0.85, 0.5, 0.5, 0.35])
    assert (ExactConstraint(ALPHAS).slacks(losses) <= 0).all()
    assert (CumulativeConstraint(ALPHAS).slacks(losses) <= 0).all()


def test_ratio_refuses_means_and_says_why():
    with pytest.raises(ValueError, match=r"losses must be per sample, \(L \+ 1, B\)"):
        RatioConstraint(ALPHAS).slacks(torch.ones(LAYERS + 1))
    with pytest.raises(ValueError, match="losses must be given"):
        RatioConstraint(ALPHAS).weights(torch.ones(LAYERS))


# --- effective weights ------------------------------------------------------------------------


@pytest.mark.equation("eq-descent-effective-weights")
@each_form
@pytest.mark.parametrize("seed", range(3))
def test_effective_weights_are_the_gradient_of_the_lagrangian(constraint, seed):
    losses, multipliers = draw(seed)
    w = constraint.weights(multipliers, losses)
    by_autograd = SAMPLES * gradient(constraint, losses, multipliers)
    assert_close(w if w.ndim == 2 else w[:, None].expand_as(losses), by_autograd)


@each_mean_form
def test_effective_weights_are_the_gradient_in_the_means(constraint):
    losses, multipliers = draw()
    expected = gradient(constraint, losses.mean(dim=1), multipliers)
    assert_close(constraint.weights(multipliers), expected)


def test_effective_weights_of_the_ratio_stop_at_the_floor():
    losses, multipliers = draw()
    constraint = RatioConstraint(ALPHAS, floor=0.5)
    assert (losses < 0.5).any()
    expected = SAMPLES * gradient(constraint, losses, multipliers)
    assert_close(constraint.weights(multipliers, losses), expected)


@pytest.mark.equation("eq-descent-effective-weights")
def test_the_telescoping_table_is_the_one_of_the_formula():
    lam = torch.tensor([1.0, 2.0, 3.0, 4.0])
    table = [-0.9 * 1, 1 - 0.7 * 2, 2 - 1.0 * 3, 3 - 0.8 * 4, 4 + 1]
    assert_close(ExactConstraint(ALPHAS).weights(lam), torch.tensor(table))


multipliers = st.lists(st.floats(0, 100), min_size=LAYERS, max_size=LAYERS)


@given(multipliers)
@settings(max_examples=30, deadline=None)
def test_sum_rules_of_the_effective_weights(values):
    lam, alphas = torch.tensor(values, dtype=torch.float64), torch.tensor(ALPHAS).double()
    leaked = 1 + (alphas * lam).sum()
    assert_close(ALL["exact"].weights(lam).sum(), leaked)
    # The anchor carries no gradient: what f_0 had is gone from the sum.
    assert_close(ALL["anchored"].weights(lam).sum(), leaked + (1 - alphas[0]) * lam[0])
    assert_close(ALL["cumulative"].weights(lam).sum(), 1 + lam.sum())
    assert_close(ALL["proxy"].weights(lam).sum(), 1 + lam.sum())


def test_weighted_losses_sum_to_the_lagrangian_or_for_ratios_to_the_objective():
    losses, lam = draw()
    exact, ratio = ALL["exact"], ALL["ratio"]
    value = losses[-1].mean() + lam @ exact.slacks(losses)
    assert_close(exact.weights(lam) @ losses.mean(dim=1), value)
    # A ratio does not change when all losses of a sample are scaled, so its part sums to zero.
    assert_close((ratio.weights(lam, losses) * losses).mean(dim=1).sum(), losses[-1].mean())


@pytest.mark.parametrize("name", ["cumulative", "cumulative, constant", "proxy"])
@given(values=multipliers)
@settings(max_examples=20, deadline=None)
def test_two_forms_have_no_negative_weight_whatever_the_multipliers(name, values):
    w = ALL[name].weights(torch.tensor(values))
    assert (w >= 0).all()
    assert w[0] == 0


@each_form
def test_zero_multipliers_leave_the_last_loss_alone(constraint):
    w = constraint.weights(torch.zeros(LAYERS), draw()[0])
    w = w.mean(dim=1) if w.ndim == 2 else w
    assert_close(w, torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0]).to(w))


@each_form
@pytest.mark.parametrize("bad", [torch.ones(3), torch.tensor([1.0, -0.1, 0.0, 0.0])])
def test_multipliers_of_another_shape_or_sign_are_refused(constraint, bad):
    with pytest.raises(ValueError, match="multipliers must be"):
        constraint.weights(bad, draw()[0])


def test_every_form_of_the_book_has_its_name():
    assert list(FORMS) == ["exact", "anchored", "cumulative", "proxy", "ratio"]
    assert {type(constraint) for constraint in ALL.values()} == set(FORMS.values())


# --- violations -------------------------------------------------------------------------------


@pytest.mark.equation("eq-descent-violation-rate")
def test_violation_rates_are_the_counts():
    losses = torch.tensor([[1.0, 1.0, 1.0], [0.8, 1.2, 0.8], [0.9, 0.6, 0.9]])
    report = violations(losses, ExactConstraint((0.0, 0.0)))
    assert_close(report.per_layer, torch.tensor([1 / 3, 2 / 3]))
    assert_close(report.per_sample, torch.tensor([0.5, 0.5, 0.5]))
    assert report.in_mean.tolist() == [False, False]
    assert report.rate == pytest.approx(0.5)
    assert_close(report.slacks, torch.tensor([-0.2 / 3, (2.4 - 2.8) / 3]))


def test_a_tolerance_forgives_small_violations():
    losses = torch.tensor([[1.0, 1.0], [1.05, 1.5]])
    assert violations(losses, ExactConstraint((0.0,)), tolerance=0.1).rate == 0.5


def test_violations_need_samples():
    with pytest.raises(ValueError, match="losses must be one loss per sample"):
        violations(torch.ones(3), ExactConstraint((0.0, 0.0)))


# --- sabotage ---------------------------------------------------------------------------------

# Layers 0 to 2 were pushed far above ln 2, and every ratio holds: a run of ours.
SABOTAGED = [2.83, 1.92, 1.63, 1.23, 0.89]
PRESSURE = torch.tensor([0.5, 1.0, 2.0, 3.0])


def look(losses=SABOTAGED, constraint=None, multipliers=PRESSURE, **options):
    constraint = constraint or ExactConstraint(constant_alphas(0.1, 4))
    options = {"reference": math.log(2)} | options
    return detect_sabotage(losses, constraint, multipliers, **options)


@pytest.mark.equation("eq-descent-sabotage")
def test_sabotage_is_found_with_its_layers_and_in_words():
    report = look()
    assert report
    assert report.sabotaged == (0, 1, 2, 3)
    assert report.weights[0] == pytest.approx(-0.45)
    assert "layer 0: loss 2.83 is above 0.762" in report.reasons[0]


@pytest.mark.equation("eq-descent-sabotage")
def test_each_symptom_alone_is_no_sabotage():
    raised_only = look(losses=[1.0, 1.0, 1.0, 1.0, 1.0])
    assert raised_only.raised == (0, 1, 2, 3)
    assert raised_only.holding == ()
    assert not raised_only
    assert not look(losses=[0.69, 0.6, 0.5, 0.4, 0.3])  # descends from where it was
    assert not look(multipliers=torch.zeros(4))  # nobody has pushed


def test_remedies_cannot_sabotage_where_they_leave_no_negative_weight():
    for form in (CumulativeConstraint, ProxyConstraint):
        assert look(constraint=form(constant_alphas(0.1, 4))).pushed == ()
    anchored = look(constraint=AnchoredConstraint(constant_alphas(0.1, 4), anchor=math.log(2)))
    assert 0 not in anchored.pushed
    assert 1 in anchored.pushed


def test_the_reference_may_be_the_losses_before_training():
    assert not look(reference=SABOTAGED)
    assert look(reference=[0.7] * 5).raised == (0, 1, 2, 3)
    with pytest.raises(ValueError, match="reference must be one number or 5"):
        look(reference=[0.7] * 4)


def test_sabotage_is_read_off_samples_too():
    losses = torch.tensor(SABOTAGED)[:, None] * torch.tensor([0.9, 1.1])
    assert look(losses=losses).sabotaged == (0, 1, 2, 3)
    assert look(losses=losses, constraint=RatioConstraint(constant_alphas(0.1, 4))).pushed

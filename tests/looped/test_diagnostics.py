"""The diagnostics of a loop, on cases with a known answer."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from unrolled.looped.diagnostics import (
    GradientCosine,
    GradientProbe,
    gradient_oscillation,
    has_collapsed,
    layer_residual_norms,
    residual_norms,
    unigram_loss,
)
from unrolled.looped.model import INJECTIONS, LoopedTransformer
from unrolled.transformer import Transformer, TransformerConfig

each = pytest.mark.parametrize("injection", INJECTIONS)
CONFIG = TransformerConfig(
    vocab_size=50, num_layers=2, hidden_size=32, num_heads=2, max_length=16, zero_output=False
)


def make(injection, num_loops=3, **options):
    torch.manual_seed(0)
    model = LoopedTransformer(CONFIG, num_loops, injection, **options)
    nn.init.normal_(model.head.weight)
    return model


@pytest.fixture
def batch():
    tokens = torch.randint(0, 50, (2, 9), generator=torch.Generator().manual_seed(1))
    return tokens[:, :-1], tokens[:, 1:]


# --- residual norms -------------------------------------------------------------------------


@pytest.mark.equation("eq-looped-residual-norm")
def test_residual_norm_is_the_mean_length_of_a_token():
    states = [torch.zeros(2, 3, 4), torch.zeros(2, 3, 4)]
    states[1][0, 0] = torch.tensor([3.0, 4.0, 0.0, 0.0])
    states[1][1, 2] = torch.tensor([0.0, 0.0, 0.0, -7.0])
    assert_close(residual_norms(states), torch.tensor([0.0, (5 + 7) / 6]))


def test_layer_norms_end_in_the_norm_of_the_loop(batch):
    model = make("original")
    output = model(batch[0], loop_states=True, layer_states=True)
    by_layer = layer_residual_norms(output.layer_states)
    assert by_layer.shape == (3, 2)
    assert not by_layer.requires_grad
    assert_close(by_layer[:, -1], residual_norms(output.loop_states))
    assert (by_layer[:, 0] != by_layer[:, 1]).all()


def test_residual_norm_does_not_overflow_in_half_precision():
    state = torch.full((1, 1, 64), 10_000.0, dtype=torch.float16)
    assert_close(residual_norms([state]), torch.tensor([80_000.0]))  # float16 ends at 65,504


# --- gradient probe -------------------------------------------------------------------------


@each
@pytest.mark.parametrize("checkpoint_loops", [False, True])
def test_probe_reads_the_gradient_at_every_block_of_every_loop(injection, checkpoint_loops, batch):
    model = make(injection, checkpoint_loops=checkpoint_loops)
    with GradientProbe(model) as probe:
        model.loss(*batch).backward()
    output = make(injection)(batch[0], targets=batch[1], layer_states=True)
    states = [state for layers in output.layer_states for state in layers]
    gradients = torch.autograd.grad(output.loss, states)
    assert_close(probe.norms().flatten(), torch.stack([g.norm() for g in gradients]))
    assert (probe.norms() > 0).all()


@each
def test_probe_before_a_block_counts_that_use_alone(injection, batch):
    model = make(injection)
    with GradientProbe(model, at="input") as probe:
        model.loss(*batch).backward()
    assert_close(probe.norms(), gradients_by_perturbing(make(injection), batch), rtol=1e-4, atol=0)


def gradients_by_perturbing(model, batch):
    """Add zeros to the input of each block in each loop, and take the gradient of the zeros."""
    zeros = [[torch.zeros(2, 8, 32, requires_grad=True) for _ in range(2)] for _ in range(3)]
    calls = [iter(column) for column in zip(*zeros, strict=True)]
    for block, shifts in zip(model.blocks, calls, strict=True):
        block.register_forward_pre_hook(
            lambda module, inputs, shifts=shifts: (inputs[0] + next(shifts), *inputs[1:])
        )
    flat = [zero for row in zeros for zero in row]
    gradients = torch.autograd.grad(model.loss(*batch), flat)
    return torch.stack([gradient.norm() for gradient in gradients]).view(3, 2)


def test_probe_leaves_the_gradient_and_the_model_as_they_were(batch):
    plain, watched = make("flt"), make("flt")
    plain.loss(*batch).backward()
    for at in ("input", "output"):
        watched.zero_grad()
        with GradientProbe(watched, at):
            watched.loss(*batch).backward()
        assert_close([p.grad for p in watched.parameters()], [p.grad for p in plain.parameters()])
    hooks = [m._forward_hooks or m._forward_pre_hooks for m in watched.modules()]
    assert not any(hooks)


def test_probe_shows_the_last_graph_and_ignores_evaluation(batch):
    model = make("flt")
    with GradientProbe(model) as probe:
        with pytest.raises(RuntimeError, match="no gradient has come by"):
            probe.norms()
        model.loss(*batch, num_loops=5).backward()
        assert probe.norms().shape == (5, 2)
        model.loss(*batch).backward()
        norms = probe.norms()
        with torch.no_grad():
            model.loss(*batch, num_loops=4)
        assert_close(probe.norms(), norms)
    assert norms.shape == (3, 2)


def test_probe_reads_a_plain_transformer(batch):
    looped = make("original", num_loops=1)
    plain = Transformer(CONFIG)
    plain.load_state_dict(looped.state_dict())
    norms = []
    for model in (looped, plain):
        with GradientProbe(model) as probe:
            model.loss(*batch).backward()
        norms.append(probe.norms())
    assert norms[0].shape == (1, 2)
    assert_close(norms[0], norms[1])


def test_probe_takes_only_known_places():
    with pytest.raises(ValueError, match="at must be one of"):
        GradientProbe(make("flt"), at="middle")


# --- oscillation ----------------------------------------------------------------------------


@pytest.mark.equation("eq-looped-oscillation")
def test_oscillation_is_the_coefficient_of_variation():
    assert gradient_oscillation([2.0] * 5) == 0
    assert gradient_oscillation([1, 3]) == gradient_oscillation([10, 30]) == 0.5
    assert gradient_oscillation([100, 1, 3, 1, 3], window=4) == 0.5
    assert gradient_oscillation([0.0, 0.0]) == 0
    assert gradient_oscillation([1.0, math.nan]) == math.inf
    values = np.random.default_rng(0).exponential(size=100_000)
    assert gradient_oscillation(values) == pytest.approx(1, abs=0.02)  # std = mean


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(([1.0],), "norms must hold at least 2 steps, got 1"), (([1, 2], 1), "window must be None")],
)
def test_oscillation_names_what_is_wrong(arguments, message):
    with pytest.raises(ValueError, match=message):
        gradient_oscillation(*arguments)


def test_cosine_follows_the_angle_between_gradients():
    layer = nn.Linear(2, 1, bias=False)
    cosine = GradientCosine(layer)
    for degrees in (0, 60, 60, 240):
        angle = math.radians(degrees)
        layer.weight.grad = (degrees + 1) * torch.tensor([[math.cos(angle), math.sin(angle)]])
        first = cosine.update()
        assert (first is None) == (degrees == 0)
    assert cosine.values == pytest.approx([0.5, 1, -1], abs=1e-5)
    assert cosine.mean() == pytest.approx(0.5 / 3, abs=1e-5)
    assert cosine.mean(window=2) == pytest.approx(0, abs=1e-5)


def test_cosine_is_one_on_the_same_batch_and_minus_one_over_a_valley(batch):
    model = make("flt")
    cosine = GradientCosine(model)
    for _ in range(2):
        model.zero_grad()
        model.loss(*batch).backward()
        cosine.update()
    assert cosine.values == pytest.approx([1], abs=1e-4)
    # Gradient descent on x²/2 with a rate above 1 jumps over the minimum at every step.
    valley = nn.Linear(1, 1, bias=False)
    cosine, optimizer = GradientCosine(valley), torch.optim.SGD(valley.parameters(), lr=1.5)
    for _ in range(5):
        optimizer.zero_grad()
        (valley.weight.square().sum() / 2).backward()
        cosine.update()
        optimizer.step()
    assert cosine.mean() == pytest.approx(-1)


def test_cosine_takes_a_parameter_without_gradient_as_zero():
    layer = nn.Linear(2, 1)
    cosine = GradientCosine(layer)
    layer.weight.grad, layer.bias.grad = torch.tensor([[1.0, 0.0]]), None
    cosine.update()
    layer.bias.grad = torch.tensor([1.0])
    assert cosine.update() == pytest.approx(0.5**0.5)
    with pytest.raises(ValueError, match="at least one cosine"):
        GradientCosine(layer).mean()


def test_cosine_goes_on_from_its_state():
    layer, gradients = nn.Linear(2, 1, bias=False), torch.randn(6, 1, 2)
    whole, first, second = (GradientCosine(layer) for _ in range(3))
    second.load_state_dict(first.state_dict())  # before the first step there is nothing to know
    for gradient in gradients[:3]:
        layer.weight.grad = gradient
        whole.update()
        first.update()
    second.load_state_dict(first.state_dict())
    for gradient in gradients[3:]:
        layer.weight.grad = gradient
        assert whole.update() == second.update()
    assert whole.values == second.values


# --- collapse -------------------------------------------------------------------------------

STEPS = np.arange(300)
NOISE = np.random.default_rng(0).normal(size=300)
PLATEAU = 3.1 + 2.4 * np.exp(-STEPS / 15) + 0.05 * NOISE
LEARNS = 2.0 + 3.5 * np.exp(-STEPS / 60) + 0.05 * NOISE
RISES = 10 + 2.0 * STEPS + 10 * np.abs(NOISE)
BOUNDED = 25 - 15 * np.exp(-STEPS / 20) + 0.5 * NOISE


@pytest.mark.equation("eq-looped-collapse")
@pytest.mark.parametrize(
    ("losses", "norms", "plateau", "exploding"),
    [
        (PLATEAU, RISES, True, True),
        (PLATEAU, BOUNDED, True, False),
        (LEARNS, RISES, False, True),
        (LEARNS, BOUNDED, False, False),
    ],
)
def test_collapse_needs_both_symptoms(losses, norms, plateau, exploding):
    report = has_collapsed(losses, norms, reference_loss=3.1)
    assert (report.plateau, report.exploding) == (plateau, exploding)
    assert bool(report) == report.collapsed == (plateau and exploding)
    assert len(report.reasons) == 2
    assert f"{report.final_loss:.3f}" in report.reasons[0]


def test_single_spikes_do_not_decide():
    losses, norms = LEARNS.copy(), BOUNDED.copy()
    losses[150], norms[290:293] = 50, 1000
    assert not has_collapsed(losses, norms, reference_loss=3.1).exploding
    falling = RISES.copy()
    falling[-2:] = 1
    assert has_collapsed(PLATEAU, falling, reference_loss=3.1).collapsed


def test_growth_is_that_of_the_second_half():
    norms = np.concatenate((np.full(100, 1.0), 1.01 ** np.arange(100)))
    report = has_collapsed([3.0] * 200, norms, reference_loss=3.0)
    assert report.growth == pytest.approx(1.01**99 - 1)
    early = np.concatenate((1.05 ** np.arange(100), np.full(100, 1.05**100)))
    assert has_collapsed([3.0] * 200, early, reference_loss=3.0).growth == pytest.approx(0)


def test_thresholds_are_arguments():
    common = {"losses": [2.9] * 100, "norms": 1.001 ** np.arange(100), "reference_loss": 3.0}
    assert not has_collapsed(**common, min_growth=0.06).exploding
    assert has_collapsed(**common, min_growth=0.04).exploding
    assert has_collapsed(**common, margin=0.05).plateau
    assert not has_collapsed(**common, margin=0.02).plateau
    steep = {"losses": [4.0] * 90 + [1.0] * 10, "norms": [1.0] * 100, "reference_loss": 3.0}
    assert has_collapsed(**steep).final_loss == 1
    assert has_collapsed(**steep, tail=0.2).final_loss == 2.5


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_has_collapsed(bad):
    report = has_collapsed([*LEARNS, bad], BOUNDED, reference_loss=3.1)
    assert report.collapsed
    assert report.reasons == ("the loss is not finite",)
    report = has_collapsed(LEARNS, [*BOUNDED, bad], reference_loss=3.1)
    assert report.reasons == ("the residual norm is not finite",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"losses": [1.0] * 9}, r"losses must be one curve of at least 10 steps, got \(9,\)"),
        ({"norms": np.ones((20, 2))}, "norms must be one curve"),
        ({"margin": 1.5}, "margin must be between 0 and 1, got 1.5"),
        ({"tail": 0}, "tail must be between 0 and 1, got 0"),
    ],
)
def test_collapse_names_what_is_wrong(change, message):
    with pytest.raises(ValueError, match=message):
        has_collapsed(**({"losses": LEARNS, "norms": BOUNDED, "reference_loss": 3.1} | change))


def test_unigram_loss_is_the_entropy_and_the_best_constant_prediction():
    assert unigram_loss(torch.arange(8).view(2, 4)) == pytest.approx(math.log(8))
    assert unigram_loss(torch.zeros(5, dtype=torch.long)) == 0
    tokens = torch.tensor([0, 0, 0, 1, 2, 2])
    logits = torch.tensor([3.0, 1.0, 2.0]).log().expand(6, 3)
    assert unigram_loss(tokens) == pytest.approx(nn.functional.cross_entropy(logits, tokens).item())

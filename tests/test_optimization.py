"""Optimizers and schedules against closed forms and hand-written steps."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from unrolled.optimization import (
    FLT_OPTIMIZER,
    OptimizerConfig,
    build_optimizers,
    learning_rate_factor,
    momentum_at,
)
from unrolled.transformer import Transformer, TransformerConfig


def tiny_transformer(**settings):
    return Transformer(
        TransformerConfig(
            vocab_size=16, num_layers=2, hidden_size=12, num_heads=3, max_length=8, **settings
        )
    )


class Grouped(nn.Module):
    """An embedding, a wide and a tall matrix, a gain and a head."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(5, 48)
        self.wide, self.tall = nn.Linear(48, 12, bias=False), nn.Linear(12, 48, bias=False)
        self.gain = nn.Parameter(torch.ones(48))
        self.head = nn.Linear(48, 5, bias=False)

    def parameter_groups(self):
        return {
            "embedding": [self.embedding.weight],
            "head": [self.head.weight],
            "matrices": [self.wide.weight, self.tall.weight],
            "other": [self.gain],
        }


# Schedules -------------------------------------------------------------------------------------


def test_constant_schedule_is_one_after_warm_up():
    factors = [learning_rate_factor(t, 10, "constant", warmup_steps=4) for t in range(10)]
    assert factors == [0.25, 0.5, 0.75, 1, 1, 1, 1, 1, 1, 1]


def test_linear_schedule_falls_by_equal_parts_and_would_reach_zero():
    factors = [learning_rate_factor(t, 12, "linear", warmup_steps=2) for t in range(2, 12)]
    assert factors == pytest.approx([1 - k / 10 for k in range(10)])


def test_cosine_schedule_equals_its_closed_form():
    factors = [learning_rate_factor(t, 20, "cosine", warmup_steps=4) for t in range(4, 20)]
    assert factors == pytest.approx([math.cos(math.pi * k / 32) ** 2 for k in range(16)])


def test_trapezoid_is_constant_then_linear_over_the_last_fraction():
    factors = [learning_rate_factor(t, 10, "trapezoid", decay_fraction=0.4) for t in range(10)]
    assert factors == pytest.approx([1, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25])


@settings(deadline=None)
@given(
    steps=st.integers(1, 200),
    share=st.floats(0, 1),
    schedule=st.sampled_from(("constant", "linear", "cosine", "trapezoid")),
)
def test_factors_stay_in_the_unit_interval_and_fall_after_warm_up(steps, share, schedule):
    warmup = int(share * 0.8 * steps)
    factors = [learning_rate_factor(t, steps, schedule, warmup_steps=warmup) for t in range(steps)]
    assert all(0 < factor <= 1 for factor in factors)
    assert factors[:warmup] == sorted(factors[:warmup])
    assert factors[warmup:] == sorted(factors[warmup:], reverse=True)
    assert factors[warmup] == 1 or steps == 1 or schedule == "trapezoid"


def test_momentum_rises_linearly_and_stays():
    assert [momentum_at(t, 0.85, 0.95, 4) for t in (0, 1, 2, 4, 9)] == pytest.approx(
        [0.85, 0.875, 0.9, 0.95, 0.95]
    )
    assert momentum_at(0, 0.85, 0.95, 0) == 0.95


def test_unknown_schedule_is_named():
    with pytest.raises(ValueError, match=r"schedule must be one of .* got 'step'"):
        learning_rate_factor(0, 1, "step")


# Configuration ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "sgd"),
        ("learning_rate", 0.0),
        ("learning_rate", math.nan),
        ("embedding_learning_rate", -1.0),
        ("betas", (0.9, 1.0)),
        ("betas", 0.9),
        ("eps", 0.0),
        ("weight_decay", -0.1),
        ("momentum", 1.0),
        ("momentum_warmup", -1),
        ("newton_schulz_steps", 0),
    ],
)
def test_config_names_the_bad_value(field, value):
    with pytest.raises(ValueError, match=rf"^{field} must be .* got"):
        OptimizerConfig(**{field: value})


def test_the_papers_optimizer_has_the_papers_values():
    assert (FLT_OPTIMIZER.name, FLT_OPTIMIZER.learning_rate) == ("muon", 0.02)
    assert (FLT_OPTIMIZER.embedding_learning_rate, FLT_OPTIMIZER.head_learning_rate) == (0.2, 0.004)
    assert (FLT_OPTIMIZER.betas, FLT_OPTIMIZER.eps) == ((0.8, 0.95), 1e-10)
    assert (FLT_OPTIMIZER.momentum_start, FLT_OPTIMIZER.momentum) == (0.85, 0.95)
    assert (FLT_OPTIMIZER.momentum_warmup, FLT_OPTIMIZER.weight_decay) == (300, 0)


# Groups ----------------------------------------------------------------------------------------


def held_by(optimizer, model):
    names = {p: name for name, p in model.named_parameters()}
    return {names[p] for group in optimizer.param_groups for p in group["params"]}


def test_muon_holds_the_matrices_and_adamw_the_rest():
    model = Grouped()
    muon, adamw = build_optimizers(model, FLT_OPTIMIZER)
    assert held_by(muon, model) == {"wide.weight", "tall.weight"}
    assert held_by(adamw, model) == {"embedding.weight", "head.weight", "gain"}


@pytest.mark.parametrize("settings", [{}, {"norm": "layer", "position": "learned"}])
def test_every_parameter_of_the_transformer_is_held_once(settings):
    model = tiny_transformer(**settings)
    optimizers = build_optimizers(model, FLT_OPTIMIZER)
    held = [p for o in optimizers for group in o.param_groups for p in group["params"]]
    assert sorted(map(id, held)) == sorted(map(id, model.parameters()))
    assert isinstance(optimizers[0], torch.optim.Muon)
    assert "blocks.0" in min(held_by(optimizers[0], model))


def test_embedding_and_head_rates_scale_with_the_root_of_the_width():
    _, adamw = build_optimizers(Grouped(), FLT_OPTIMIZER)
    rates = {group["group"]: group["lr"] for group in adamw.param_groups}
    scale = math.sqrt(768 / 48)
    assert rates == pytest.approx(
        {"embedding": 0.2 * scale, "head": 0.004 * scale, "other": 0.004 * scale}
    )


def test_adamw_uses_one_rate_unless_told_otherwise():
    (adamw,) = build_optimizers(Grouped(), OptimizerConfig(learning_rate=0.5))
    assert {group["lr"] for group in adamw.param_groups} == {0.5}
    config = OptimizerConfig(learning_rate=0.5, embedding_learning_rate=0.1)
    (adamw,) = build_optimizers(Grouped(), config)
    rates = {group["group"]: group["lr"] for group in adamw.param_groups}
    assert rates == {"embedding": 0.1, "head": 0.5, "matrices": 0.5, "other": 0.5}


def test_gains_and_biases_do_not_decay():
    (adamw,) = build_optimizers(nn.Linear(3, 3), OptimizerConfig(weight_decay=0.1))
    decays = {group["params"][0].ndim: group["weight_decay"] for group in adamw.param_groups}
    assert decays == {2: 0.1, 1: 0.0}


def test_frozen_parameters_are_left_out():
    model = Grouped()
    model.embedding.requires_grad_(False)
    assert "embedding.weight" not in held_by(build_optimizers(model, FLT_OPTIMIZER)[1], model)


def test_a_lost_or_doubled_parameter_is_named():
    model = Grouped()
    groups = model.parameter_groups()
    model.parameter_groups = lambda: groups | {"other": []}
    with pytest.raises(ValueError, match=r"misses the trainable parameters \['gain'\]"):
        build_optimizers(model, FLT_OPTIMIZER)
    model.parameter_groups = lambda: groups | {"other": [model.gain, model.head.weight]}
    with pytest.raises(ValueError, match=r"holds \['head.weight'\] more than once"):
        build_optimizers(model, FLT_OPTIMIZER)
    model.parameter_groups = lambda: groups | {"gains": []}
    with pytest.raises(ValueError, match=r"got \['gains'\]"):
        build_optimizers(model, FLT_OPTIMIZER)


def test_muon_needs_a_model_that_names_its_matrices():
    with pytest.raises(TypeError, match="parameter_groups"):
        build_optimizers(nn.Linear(2, 2), FLT_OPTIMIZER)


# Muon by hand ----------------------------------------------------------------------------------


def newton_schulz(matrix, steps=5):
    """The quintic iteration of Jordan's Muon, in bfloat16 as there."""
    x = matrix.bfloat16()
    if matrix.shape[0] > matrix.shape[1]:
        x = x.T
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(steps):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


def test_two_steps_of_muon_equal_hand_written_ones():
    model, gradients = Grouped(), [torch.randn(12, 48), torch.randn(12, 48)]
    weight = model.wide.weight
    expected, buffer = weight.detach().clone(), torch.zeros(12, 48)
    muon, _ = build_optimizers(model, FLT_OPTIMIZER)
    for step, gradient in enumerate(gradients):
        momentum = 0.85 + 0.1 * step / 300
        muon.param_groups[0]["momentum"] = momentum
        weight.grad = gradient.clone()
        muon.step()
        # B <- mu B + (1 - mu) G; the look-ahead mixes G in once more
        buffer = momentum * buffer + (1 - momentum) * gradient
        direction = newton_schulz(momentum * buffer + (1 - momentum) * gradient)
        expected = expected - 0.02 * direction  # max(1, 12 / 48) = 1
        # bfloat16 rounds to 1 part in 256, and the iteration adds that up
        assert (weight - expected).norm() < 0.1 * (0.02 * direction).norm()


def test_muon_moves_along_a_nearly_orthogonal_matrix():
    model = Grouped()
    muon, _ = build_optimizers(model, FLT_OPTIMIZER)
    before = model.tall.weight.detach().clone()
    model.tall.weight.grad = torch.randn(48, 12)
    muon.step()
    # a tall matrix moves by sqrt(rows / columns) more
    update = (before - model.tall.weight.detach()) / (0.02 * 2)
    singular = torch.linalg.svdvals(update)
    assert 0.5 < singular.min() <= singular.max() < 1.5

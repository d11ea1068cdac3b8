"""The experiment `descent.language`: adapters that start at zero, equal budgets, win rates."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from unrolled.data.text import state_of_the_union
from unrolled.descent import language
from unrolled.descent.constraints import FORMS
from unrolled.descent.language import EXPERIMENT, LowRank, win_rate, win_rates
from unrolled.descent.perturb import Perturbation
from unrolled.descent.readout import layer_readouts, state_losses, token_losses
from unrolled.results import ResultError, comparison_table

pytest.importorskip("transformers")

SMOKE = EXPERIMENT.presets["smoke"]
ERM = {"method": "erm"}
DUAL_STEPS_OF = {
    "exact": "exact_dual_step",
    "proxy": "dual_step",
    "cumulative": "cumulative_dual_step",
}
DUAL_STEPS = DUAL_STEPS_OF.values()


@pytest.fixture(scope="module")
def rows():
    return EXPERIMENT.run("smoke", 0, progress=False)


def adapters(model):
    return torch.cat([p.detach().flatten() for p in model.parameters() if p.requires_grad])


# --- adapters -------------------------------------------------------------------------------------


@pytest.mark.equation("eq-descent-adapter")
def test_an_adapter_starts_as_the_map_it_adapts_and_trains_alone():
    linear, x = nn.Linear(5, 3), torch.randn(2, 5)
    expected = linear(x)
    adapted = LowRank(linear, rank=2)
    assert torch.equal(adapted(x), expected)
    trainable = {name: tuple(p.shape) for name, p in adapted.named_parameters() if p.requires_grad}
    assert trainable == {"A": (2, 5), "B": (3, 2)}


@pytest.mark.equation("eq-descent-adapter")
def test_a_merged_adapter_does_the_same_and_leaves_the_shared_weights_alone():
    linear, x = nn.Linear(5, 3).double(), torch.randn(2, 5).double()
    before, adapted = linear.weight.clone(), LowRank(linear, rank=2)
    adapted.B.data.normal_()
    assert not torch.allclose(adapted(x), linear(x))
    assert torch.allclose(adapted.merged()(x), adapted(x), atol=1e-12)
    assert torch.equal(linear.weight, before)


def test_models_share_their_frozen_weights_and_nothing_else():
    one, other = language.build_model(SMOKE), language.build_model(SMOKE)
    with torch.no_grad():
        for parameter in one.parameters():
            if parameter.requires_grad:
                parameter += 1
    frozen, trainable = [], []
    for (name, p), q in zip(one.named_parameters(), other.parameters(), strict=True):
        (trainable if p.requires_grad else frozen).append((name, p is q))
    assert all(shared for _, shared in frozen)
    assert not any(shared for _, shared in trainable)
    assert len(trainable) == 2 * 3 * 4  # A and B of three maps in four layers
    assert one.lm_head.weight is one.model.embed_tokens.weight


def test_adapters_refuse_what_they_cannot_adapt():
    with pytest.raises(ValueError, match="targets"):
        language.add_adapters(nn.Linear(2, 2), 1, ("v_proj",))
    with pytest.raises(ValueError, match="rank"):
        LowRank(nn.Linear(2, 2), 0)
    with pytest.raises(ValueError, match="folder"):
        language.build_model(EXPERIMENT.presets["paper"])


# --- texts ----------------------------------------------------------------------------------------


def test_texts_of_an_address_stay_in_its_split():
    document = state_of_the_union().select("test")[3]
    parts = language.passages(document, count=3, size=200)
    assert all(part in document.text and len(part) == 200 for part in parts)
    assert len(set(parts)) == 3
    for part in parts[1:]:
        start = document.text.index(part)
        assert document.text[start - 2 : start] == ". "


def test_toy_texts_can_be_predicted():
    tokens = language.load_texts(SMOKE)["train"]
    told = (5 * tokens[:, :-1] + 3) % 32 == tokens[:, 1:]
    assert 0.7 < told.double().mean() < 0.85


# --- training -------------------------------------------------------------------------------------


def test_layer_losses_are_those_of_the_layers_and_tokens_that_are_read():
    model, tokens = language.build_model(SMOKE), language.load_texts(SMOKE)["test"][:3]
    found = language.layer_losses(model, tokens, SMOKE)
    targets = tokens[:, 1:].clone()
    targets[:, ::2] = -100  # every second token counts, from the second on
    expected = token_losses(model, tokens[:, :-1], targets)[[0, 2, 4]]
    assert torch.allclose(found, expected, atol=1e-6)


def test_states_can_be_read_one_layer_at_a_time():
    model, tokens = language.build_model(SMOKE), language.load_texts(SMOKE)["test"][:3]
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data += 0.1
    gradients = []
    for recompute in (False, True):
        readouts = layer_readouts(model, tokens[:, :-1])[1:]
        model.zero_grad()
        state_losses(readouts, tokens[:, 1:], recompute=recompute).sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.requires_grad])
    for one, other in zip(*gradients, strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_methods_start_from_the_same_weights_and_see_the_same_texts():
    first = [
        language.trained(replace(SMOKE, steps=1), {"method": method}, seed=4)[1].losses[0]
        for method in ("erm", *language.CONSTRAINED)
    ]
    assert len(set(first)) == 1


def test_constraints_without_a_price_are_erm():
    # A dual step so small that no multiplier moves the weights.
    settings = replace(SMOKE, alpha=0.0, **dict.fromkeys(DUAL_STEPS, 1e-12))
    erm = adapters(language.trained(settings, ERM, seed=1)[0])
    for method in language.CONSTRAINED:
        case = {"method": method}
        constrained = adapters(language.trained(settings, case, seed=1)[0])
        assert torch.allclose(constrained, erm, atol=1e-6)
    for method, name in DUAL_STEPS_OF.items():
        priced = replace(settings, alpha=0.3, **{name: 10.0})
        moved = adapters(language.trained(priced, {"method": method}, seed=1)[0])
        assert not torch.allclose(moved, erm, atol=1e-3)


def test_training_learns_and_leaves_everything_but_the_adapters_alone():
    settings = replace(SMOKE, steps=150, learning_rate=0.03)
    fresh, texts = language.build_model(settings), language.load_texts(settings)["test"]
    before = {n: p.clone() for n, p in fresh.named_parameters()}
    model, _ = language.trained(settings, ERM, seed=0)
    start, end = (language.read_texts(m, texts, settings, [4])[1].mean() for m in (fresh, model))
    assert end < start - 0.02
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            assert torch.equal(parameter, before[name])


def test_a_fixed_weight_of_zero_is_erm_at_the_rate_of_the_constrained_forms():
    settings = replace(SMOKE, steps=3, learning_rate=0.02, constrained_learning_rate=0.02)
    erm = adapters(language.trained(settings, ERM, seed=1)[0])
    for weight, same in ((0.0, True), (0.5, False)):
        case = {"method": "deep_weighted", "weight": weight}
        assert torch.equal(adapters(language.trained(settings, case, seed=1)[0]), erm) == same
    assert language.rate_of(replace(SMOKE, constrained_learning_rate=0.5), "deep_weighted") == 0.5


def test_a_fixed_weight_is_one_for_each_reading_between_the_first_and_the_last():
    settings = replace(SMOKE, layers=(0, 1, 3, 4))
    model, tokens = language.build_model(settings), language.load_texts(settings)["test"][:3]
    case = {"method": "deep_weighted", "weight": 0.25}
    loss = language.training_hooks(settings, case)["loss_fn"](model, tokens)
    f = language.layer_losses(model, tokens, settings).mean(dim=1)
    assert torch.allclose(loss, f[3] + 0.25 * f[1] + 0.25 * f[2])


def test_deep_supervision_has_a_rate_of_its_own():
    start, changed = replace(SMOKE, steps=2), replace(SMOKE, steps=2, deep_learning_rate=0.05)
    for method, same in (("erm", True), ("deep", False)):
        sides = [adapters(language.trained(s, {"method": method}, 0)[0]) for s in (start, changed)]
        assert torch.equal(*sides) == same


@pytest.mark.parametrize(
    ("field", "methods"),
    [
        ("learning_rate", {"none", "erm"}),
        ("deep_learning_rate", {"deep"}),
        ("constrained_learning_rate", {"exact", "proxy", "cumulative"}),
        ("cumulative_learning_rate", {"cumulative"}),
    ],
)
def test_a_rate_reaches_its_methods_alone(field, methods):
    changed = replace(SMOKE, **{field: 0.5})
    assert {m for m in language.METHODS if language.rate_of(changed, m) == 0.5} == methods


def test_the_cumulative_line_starts_from_a_uniform_guess():
    constraint = language.constraint_of(SMOKE, "cumulative")
    assert constraint.reference == pytest.approx(math.log(32))
    assert constraint.num_constraints == 2


# --- rows -----------------------------------------------------------------------------------------


def test_rows_hold_a_loss_per_text_and_level(rows):
    count = len(language.load_texts(SMOKE)["test"])
    for row in rows:
        losses = np.reshape(row["loss_by_gamma_and_text"], (len(row["gammas"]), count))
        assert losses.mean(axis=1) == pytest.approx(row["loss_by_gamma"], rel=1e-4)
        assert len(row["loss_by_every_layer"]) == 5
        rises = [b > a for a, b in pairwise(row["test_loss_by_layer"])]
        assert row["test_ascents"] == sum(rises) == row["ascents_by_gamma"][0]
        assert ("multiplier_by_layer" in row) == (row["method"] in FORMS)
    erm, none = (next(row for row in rows if row["method"] == m) for m in ("erm", "none"))
    model, _ = language.trained(SMOKE, ERM, seed=0)
    tokens = language.load_texts(SMOKE)["test"][:: language.LENS_EVERY]
    every = language.read_texts(model, tokens, SMOKE, range(5))[0].mean(dim=1)
    assert erm["loss_by_every_layer"] == pytest.approx(every.tolist(), rel=1e-4)
    assert none["steps"] == 0
    assert none["trainable_parameters"] == rows[1]["trainable_parameters"] > 0


def test_losses_of_whole_texts_are_their_negative_log_likelihood():
    model, tokens = language.build_model(SMOKE), language.load_texts(SMOKE)["test"][:3]
    _, last = language.read_texts(model, tokens, SMOKE, SMOKE.layers)
    log_p = model(tokens[:, :-1]).logits.log_softmax(-1)
    expected = -log_p.gather(2, tokens[:, 1:, None])[..., 0].mean(dim=1)
    assert torch.allclose(last, expected, atol=1e-5)


def test_models_of_a_seed_are_tested_with_the_same_noise(monkeypatch):
    seen, original = [], Perturbation._add

    def spy(self, layer, inputs, output):
        noisy = original(self, layer, inputs, output)
        seen.append((noisy - output) / self.gamma)
        return noisy

    monkeypatch.setattr(Perturbation, "_add", spy)
    tokens = language.load_texts(SMOKE)["test"][:4]
    for draws, gamma, seed in ((0, 1.0, 0), (1, 1.0, 0), (2, 2.0, 0), (3, 1.0, 1)):
        torch.manual_seed(draws)
        language.noisy_losses(language.build_model(SMOKE), tokens, SMOKE, gamma, seed)
    assert torch.equal(seen[0], seen[1])
    assert torch.allclose(seen[0], seen[2], atol=1e-5)
    assert not torch.allclose(seen[0], seen[3], atol=1e-3)


# --- win rates and claims -------------------------------------------------------------------------


@pytest.mark.equation("eq-descent-win-rate")
def test_the_win_rate_counts_ties_as_one_half():
    assert win_rate([1.0, 5.0, 3.0], [2.0, 4.0, 3.0]) == 0.5
    assert win_rate([1.0, 1.0], [2.0, 2.0]) == 1.0
    with pytest.raises(ValueError, match="reference"):
        win_rate([1.0], [1.0, 2.0])


def test_win_rates_of_two_sides_add_up_to_one(rows):
    erm, exact = (next(row for row in rows if row["method"] == m) for m in ("erm", "exact"))
    for one, other in zip(win_rates(erm, exact), win_rates(exact, erm), strict=True):
        assert one + other == pytest.approx(1)
    with pytest.raises(ResultError, match="seed"):
        win_rates(erm, exact | {"seed": 1})


def made(method, losses):
    gammas = [0.0, 1.0, 1.5]
    return [
        {
            "preset": "laptop",
            "diverged": False,
            "method": method,
            "seed": seed,
            "gammas": gammas,
            "loss_by_gamma_and_text": [f + 0.01 * (i + seed) for f in losses for i in range(4)],
            "test_monotone": method != "erm",
        }
        for seed in range(5)
    ]


def test_claims_are_judged_by_win_rates():
    def verdicts(exact):
        rows = made("erm", [4.0, 7.0, 9.0]) + made("exact", exact)
        lines = comparison_table("descent.language", EXPERIMENT.claims, rows=rows)
        return {line["claim"]: line["verdict"] for line in lines}

    found = verdicts([4.0, 6.0, 8.0])
    assert found["exact: wins against ERM at gamma >= 1"] == "reproduced"
    assert found["exact: about as likely as ERM without noise"] == "reproduced"
    assert found["exact: wins against deep supervision at gamma >= 1"] == "not attempted"
    assert found["erm: does not descend over the layers that are read"] == "reproduced"
    found = verdicts([5.0, 8.0, 10.0])
    assert found["exact: wins against ERM at gamma >= 1"] == "not seen"
    assert found["exact: about as likely as ERM without noise"] == "not seen"


def test_each_fixed_weight_is_a_rival_of_its_own():
    rows = made("exact", [4.0, 6.0, 8.0])
    for weight, losses in ((0.03, [4.0, 7.0, 9.0]), (0.1, [4.0, 5.0, 7.0])):
        rows += [row | {"weight": weight} for row in made("deep_weighted", losses)]
    lines = comparison_table("descent.language", EXPERIMENT.claims, rows=rows)
    found = {line["claim"]: line["verdict"] for line in lines}
    assert found["exact: wins against a fixed weight of 0.03 at gamma >= 1"] == "reproduced"
    assert found["exact: wins against a fixed weight of 0.1 at gamma >= 1"] == "not seen"
    assert found["proxy: wins against a fixed weight of 0.1 at gamma >= 1"] == "not attempted"


def test_shapes_of_the_presets():
    scale = {name: EXPERIMENT.describe(preset) for name, preset in EXPERIMENT.presets.items()}
    assert scale["laptop"]["parameters"] == 134_515_008
    assert scale["paper"]["parameters"] == 8_030_261_248
    small = replace(EXPERIMENT.presets["paper"], size="1b", layers=(0, 8, 16))
    assert EXPERIMENT.describe(small)["parameters"] == 1_235_814_400
    # r (d_in + d_out) for v (576 to 192), o (576 to 576) and down (1,536 to 576) in 30 layers
    assert scale["laptop"]["trainable parameters"] == 8 * 30 * (768 + 1_152 + 2_112)
    for preset in EXPERIMENT.presets.values():
        last = language.shape_of(preset)["num_hidden_layers"]
        assert preset.layers[0] == 0
        assert preset.layers[-1] == last

"""Masks: exact counts, what keeps them in force, the phases of AC/DC, and the export."""

import math
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize, prune

from unrolled.horst import Ham, Horst
from unrolled.horst import sparsity as sp


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.LayerNorm(12), nn.Linear(12, 4))


def train(model, optimizer, steps, before=lambda step: None):
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        before(step)
        optimizer.zero_grad()
        x = torch.randn(16, 8, generator=generator)
        (model(x) - x[:, :4]).square().mean().backward()
        optimizer.step()


# --- which weights go ---------------------------------------------------------------------------


@pytest.mark.equation("eq-horst-magnitude")
@pytest.mark.parametrize("sparsity", [0.0, 0.3, 0.5, 0.9, 0.99, 1.0])
@pytest.mark.parametrize("ties", [False, True], ids=["distinct", "all equal"])
def test_the_asked_number_of_weights_goes(sparsity, ties):
    weights = {"a": torch.randn(7, 9), "b": torch.randn(33), "c": torch.randn(2, 3, 4)}
    if ties:
        weights = {name: torch.ones_like(weight) for name, weight in weights.items()}
    total = sum(weight.numel() for weight in weights.values())
    masks = sp.magnitude_masks(weights, sparsity, "global")
    assert sum(int((~mask).sum()) for mask in masks.values()) == round(sparsity * total)
    for name, mask in sp.magnitude_masks(weights, sparsity).items():
        assert int((~mask).sum()) == round(sparsity * weights[name].numel())


def test_what_goes_is_smaller_than_what_stays():
    weights = {"a": torch.randn(50), "b": 0.1 * torch.randn(50)}
    masks = sp.magnitude_masks(weights, 0.4, "global")
    kept = torch.cat([weights[n].abs()[masks[n]] for n in weights])
    gone = torch.cat([weights[n].abs()[~masks[n]] for n in weights])
    assert gone.max() < kept.min()
    assert masks["b"].sum() < masks["a"].sum()
    for name, mask in sp.magnitude_masks(weights, 0.4).items():
        assert weights[name].abs()[~mask].max() < weights[name].abs()[mask].min()


def test_uniform_leaves_some_layers_whole_and_meets_the_share_of_all():
    weights = {"first": torch.randn(100), "a": torch.randn(600), "b": torch.randn(300)}
    masks = sp.magnitude_masks(weights, 0.72, "uniform", dense=["first"])
    assert masks["first"].all()
    dropped = {name: 1 - mask.double().mean().item() for name, mask in masks.items()}
    assert dropped["a"] == pytest.approx(0.8)
    assert dropped["b"] == pytest.approx(0.8)
    with pytest.raises(ValueError, match=r"sparsity must be at most 0\.900"):
        sp.magnitude_masks(weights, 0.95, "uniform", dense=["first"])


def test_of_equal_weights_the_first_ones_go():
    mask = sp.mask_of(torch.tensor([[2.0, 1.0], [1.0, 1.0]]), num_pruned=2)
    assert mask.tolist() == [[True, False], [False, True]]


@pytest.mark.equation("eq-horst-group")
@pytest.mark.parametrize(("kept", "group"), [(2, 4), (1, 4), (4, 8), (4, 4)])
def test_every_group_keeps_its_largest(kept, group):
    weights = {"linear": torch.randn(6, 16), "conv": torch.randn(4, 8, 3, 3)}
    for name, mask in sp.group_masks(weights, kept, group).items():
        groups = mask.reshape(-1, group)
        assert (groups.sum(dim=1) == kept).all()
        sizes = weights[name].abs().reshape(-1, group)
        smallest_kept = sizes.masked_fill(~groups, math.inf).min(dim=1).values
        assert (sizes.masked_fill(groups, -1).max(dim=1).values <= smallest_kept).all()
    equal = sp.group_masks({"a": torch.ones(1, 4)})["a"]
    assert equal.tolist() == [[False, False, True, True]]


def test_two_of_four_is_what_torch_calls_semi_structured():
    weight = torch.randn(64, 64)
    masked = weight * sp.group_masks({"a": weight})["a"]
    assert (masked.reshape(-1, 4).count_nonzero(dim=1) == 2).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda w: sp.magnitude_masks(w, 1.5), "sparsity must be in"),
        (lambda w: sp.magnitude_masks(w, float("nan")), "sparsity must be in"),
        (lambda w: sp.magnitude_masks(w, 0.5, "local"), "scope"),
        (lambda w: sp.magnitude_masks(w, 0.5, "uniform", ["b"]), "dense must be names"),
        (lambda w: sp.magnitude_masks(w, 0.5, "global", ["a"]), "dense must be empty"),
        (lambda w: sp.magnitude_masks({"a": torch.tensor([math.nan])}, 0.5), "scores must be num"),
        (lambda w: sp.mask_of(w["a"], 99), "num_pruned must be from 0 to 9"),
        (lambda w: sp.group_masks(w), "group must be a divisor of 3, the inputs of a, got 4"),
        (lambda w: sp.group_masks(w, 5, 4), "kept must be from 1 to 4"),
        (lambda w: sp.AcdcSchedule(100, warm_up=0.9), "warm_up, alternate_until, final_sparse"),
        (lambda w: sp.AcdcSchedule(10), "phase must be at least"),
        (lambda w: sp.AcdcSchedule(100).is_sparse(100), "step must be from 0 to 99"),
        (lambda w: sp.prunable_weights(network(), ["head"]), "exclude must be names"),
        (lambda w: sp.Masks(network(), {"9.weight": w["a"] > 0}), "masks must be named"),
        (lambda w: sp.Masks(network(), {"0.weight": w["a"] > 0}), "in the shape"),
        (lambda w: sp.Masks(network(), {"0.weight": torch.ones(12, 8)}), "booleans"),
    ],
)
def test_bad_values_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call({"a": torch.ones(3, 3)})


def test_shared_weights_are_named_once_and_embeddings_never():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(5, 4)
            self.head = nn.Linear(4, 5)
            self.head.weight = self.embed.weight
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
            self.two.weight = self.one.weight

    assert list(sp.prunable_weights(Tied())) == ["one.weight"]


# --- masks that hold ----------------------------------------------------------------------------


@pytest.mark.parametrize("build", [torch.optim.AdamW, Horst, Ham, torch.optim.SGD])
def test_masks_hold_through_training_and_let_go(build):
    model = network()
    optimizer = build(model.parameters(), lr=0.01)
    train(model, optimizer, 3)  # so that there are moments that would move a zero
    masks = sp.Masks(model, sp.magnitude_masks(sp.prunable_weights(model), 0.75))
    masks.apply()
    handles = masks.attach(optimizer)
    dense = model[0].bias.detach().clone()
    train(model, optimizer, 5)
    assert masks.sparsity == pytest.approx(0.75)
    for name, mask in masks.masks.items():
        weight = masks.parameters[name]
        assert torch.equal(weight == 0, ~mask)
    assert not torch.equal(model[0].bias, dense)
    for handle in handles:
        handle.remove()
    train(model, optimizer, 1)
    assert (model[0].weight != 0).all()


def test_moments_of_dropped_weights_fade():
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.9, 0.99))
    train(model, optimizer, 3)
    before = optimizer.state[model[0].weight]["exp_avg"].clone()
    masks = sp.Masks(model, sp.magnitude_masks(sp.prunable_weights(model), 0.5))
    masks.apply()
    masks.attach(optimizer)
    train(model, optimizer, 4)
    gone = ~masks.masks["0.weight"]
    after = optimizer.state[model[0].weight]["exp_avg"]
    torch.testing.assert_close(after[gone], 0.9**4 * before[gone])


# --- AC/DC ----------------------------------------------------------------------------------------


def test_the_phases_of_a_hundred_epochs_are_the_published_ones():
    schedule = sp.AcdcSchedule(steps=1_000)
    sparse = [schedule.is_sparse(10 * epoch + 5) for epoch in range(100)]
    assert not any(sparse[:10])
    assert [sparse[i] for i in range(10, 75, 5)] == [True, False] * 6 + [True]
    assert not any(sparse[75:85])
    assert all(sparse[85:])


@pytest.mark.parametrize("steps", [20, 37, 300, 999])
def test_every_phase_of_the_alternation_is_as_long_up_to_a_step(steps):
    schedule = sp.AcdcSchedule(steps)
    flags = [schedule.is_sparse(step) for step in range(steps)]
    turns = [step for step in range(1, steps) if flags[step] != flags[step - 1]]
    lengths = [b - a for a, b in pairwise(turns[:-1])]
    assert all(abs(length - 0.05 * steps) <= 1 for length in lengths)
    assert turns[-1] == round(0.85 * steps)


def test_acdc_alternates_and_ends_sparse():
    model = network()
    optimizer = Horst(model.parameters(), lr=0.01, alpha=2.0)
    schedule = sp.AcdcSchedule(60)
    acdc = sp.Acdc(model, optimizer, schedule, sparsity=0.8)
    weights, seen = sp.prunable_weights(model), []

    def before(step):
        if step:
            seen.append(sp.sparsity_report(weights)[-1].sparsity)
        acdc.before(step)

    train(model, optimizer, 60, before)
    seen.append(sp.sparsity_report(weights)[-1].sparsity)
    total = 8 * 12 + 12 * 4
    for step, share in enumerate(seen):
        assert share == (round(0.8 * total) / total if schedule.is_sparse(step) else 0)


@pytest.mark.parametrize("moments", sp.MOMENT_RULES)
def test_what_happens_to_the_moments_when_the_masks_go(moments):
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    acdc = sp.Acdc(model, optimizer, sp.AcdcSchedule(100), 0.5, moments=moments)
    train(model, optimizer, 3)
    acdc.compress(acdc.choose())
    gone = ~acdc.masks.masks["0.weight"]
    train(model, optimizer, 3)
    kept = optimizer.state[model[0].weight]["exp_avg_sq"].clone()
    acdc.decompress()
    state = optimizer.state[model[0].weight]
    if moments == "reset_all":
        assert not state
        assert optimizer.state[model[0].bias]
        return
    expected = kept.masked_fill(gone, 0.0) if moments == "reset_masked" else kept
    assert torch.equal(state["exp_avg_sq"], expected)
    assert state["step"] == 6


@pytest.mark.parametrize("build", [torch.optim.AdamW, Horst])
def test_the_first_step_of_a_weight_that_comes_back(build):
    def first_step(moments):
        weight = nn.Linear(1, 1, bias=False)
        optimizer = build(weight.parameters(), lr=0.01, weight_decay=0.0)
        acdc = sp.Acdc(weight, optimizer, sp.AcdcSchedule(100), 1.0, moments=moments)
        for phase in (None, acdc.compress, acdc.decompress):
            if phase:
                phase(*([acdc.choose()] if phase == acdc.compress else []))
            for _ in range(2_000 if phase != acdc.decompress else 1):
                weight.weight.grad = torch.ones_like(weight.weight)
                optimizer.step()
        return -weight.weight.item() / 0.01

    mirror = 1.0 if build is torch.optim.AdamW else None
    # (1 - b1) / sqrt((1 - b2) / (1 - b2^t)) at the step t = 4001
    lifted = 0.1 / math.sqrt(0.001 / (1 - 0.999**4_001))
    for moments, rates in (("reset_all", 1.0), ("reset_masked", lifted)):
        expected = rates * (mirror or math.exp(20 * 0.01 * rates))
        assert first_step(moments) == pytest.approx(expected, rel=1e-3)
    assert first_step("keep") < first_step("reset_masked")


@pytest.mark.equation("eq-horst-first-steps")
def test_the_first_steps_after_a_mask_of_forty_steps():
    j = torch.arange(1, 31, dtype=torch.float64)
    formulas = {
        "keep": (1 - 0.9**j + 0.9 ** (40 + j)) / (1 - 0.999**j + 0.999 ** (40 + j)).sqrt(),
        "reset_masked": (1 - 0.9**j) / (1 - 0.999**j).sqrt(),
        "reset_all": torch.ones(30, dtype=torch.float64),
    }
    for rule, formula in formulas.items():
        torch.testing.assert_close(lengths_after_a_mask(rule), formula, rtol=1e-4, atol=0)


def lengths_after_a_mask(rule):
    layer = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.01, eps=0.0, weight_decay=0.0)
    acdc = sp.Acdc(layer, optimizer, sp.AcdcSchedule(100), sparsity=1.0, moments=rule)

    def step():
        before = layer.weight.item()
        layer.weight.grad = torch.ones_like(layer.weight)
        optimizer.step()
        return (before - layer.weight.item()) / 0.01

    step()
    state = optimizer.state[layer.weight]
    for name, value in (("exp_avg", 1.0), ("exp_avg_sq", 1.0), ("step", 1e6)):
        state[name].fill_(value)  # as after a long training with this gradient
    acdc.compress(acdc.choose())
    for _ in range(40):
        step()
    acdc.decompress()
    return torch.tensor([step() for _ in range(30)], dtype=torch.float64)


def test_a_checkpoint_in_a_sparse_phase_goes_on_sparse():
    model = network()
    optimizer = Horst(model.parameters(), lr=0.01)
    acdc = sp.Acdc(model, optimizer, sp.AcdcSchedule(60), 0.8)
    train(model, optimizer, 8, acdc.before)
    other = network()
    other.load_state_dict(model.state_dict())
    other_optimizer = Horst(other.parameters(), lr=0.01)
    other_optimizer.load_state_dict(optimizer.state_dict())
    resumed = sp.Acdc(other, other_optimizer, sp.AcdcSchedule(60), 0.8)
    resumed.load_state_dict(acdc.state_dict())
    for m, o, a in ((model, optimizer, acdc), (other, other_optimizer, resumed)):
        train(m, o, 12, lambda step, a=a: a.before(step + 8))
    assert torch.equal(model[0].weight, other[0].weight)


def test_bad_rules_and_shares_are_refused_before_any_work():
    model = network()
    optimizer = Horst(model.parameters())
    with pytest.raises(ValueError, match="moments"):
        sp.Acdc(model, optimizer, sp.AcdcSchedule(60), 0.8, moments="forget")
    with pytest.raises(ValueError, match="sparsity must be in"):
        sp.Acdc(model, optimizer, sp.AcdcSchedule(60), 1.8)


# --- what others can use --------------------------------------------------------------------------


def test_torch_prune_takes_the_masks():
    model = network()
    before = model[0].weight.detach().clone()
    masks = sp.magnitude_masks(sp.prunable_weights(model), 0.5)
    sp.prune_model(model, masks)
    assert not prune.is_pruned(model)
    assert torch.equal(model[0].weight, before * masks["0.weight"])
    again = sp.prune_model(network(), masks, permanent=False)
    train(again, torch.optim.AdamW(again.parameters(), lr=0.01), 3)
    assert torch.equal(again[0].weight == 0, ~masks["0.weight"])


def test_parametrized_masks_keep_through_any_training_and_can_be_written_in():
    model = network()
    masks = sp.magnitude_masks(sp.prunable_weights(model), 0.5)
    sp.parametrize_masks(model, masks)
    train(model, torch.optim.AdamW(model.parameters(), lr=0.01), 3)
    assert torch.equal(model[0].weight == 0, ~masks["0.weight"])
    parametrize.remove_parametrizations(model[0], "weight")
    assert torch.equal(model[0].weight == 0, ~masks["0.weight"])


def test_the_report_counts_zeros():
    model = network()
    sp.prune_model(model, sp.magnitude_masks(sp.prunable_weights(model), 0.25))
    report = {layer.name: layer for layer in sp.sparsity_report(sp.prunable_weights(model))}
    assert report["0.weight"].zeros == 24
    assert report["0.weight"].shape == (12, 8)
    assert report["total"].sparsity == pytest.approx(0.25)


@pytest.mark.equation("eq-horst-norm-ratio")
@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        (torch.ones(5, 5), 1.0),
        (torch.eye(4), 0.5),
        (1e-30 * torch.eye(4), 0.5),
        (torch.zeros(3), 1.0),
        (torch.randn(100_000, generator=torch.Generator().manual_seed(0)), math.sqrt(2 / math.pi)),
    ],
    ids=["flat", "eye", "tiny", "zero", "gaussian"],
)
def test_norm_ratio(weight, expected):
    assert sp.norm_ratio(weight) == pytest.approx(expected, rel=1e-2)
    assert sp.norm_ratio(-7 * weight) == pytest.approx(sp.norm_ratio(weight))


@pytest.mark.equation("eq-horst-ratio-bounds")
@pytest.mark.parametrize("kept", [5, 50, 300, 900])
def test_the_norm_ratio_bounds_what_pruning_removes(kept):
    generator = torch.Generator().manual_seed(kept)
    normal, n = torch.randn(1_000, generator=generator, dtype=torch.float64), 1_000
    two_sizes = torch.where(torch.arange(n) < kept, 3.0, 1.0).double()
    worst = (torch.arange(n) < 2 * kept).double()
    for theta in (normal, normal**3, torch.ones(n).double(), two_sizes, worst, normal.exp()):
        mask = sp.mask_of(theta.abs(), n - kept)
        removed = ((theta * ~mask).norm() / theta.norm()).item()
        share, ratio = kept / n, sp.norm_ratio(theta)
        below = max(math.acos(share**0.5) - math.acos(min(ratio, 1.0)), 0.0)
        above = min((1 - share) ** 0.5, ratio / (2 * share**0.5))
        assert math.sin(below) - 1e-9 <= removed <= above + 1e-9
        if theta is two_sizes:
            assert removed == pytest.approx(math.sin(below))
        if theta is worst and 2 * kept <= n:
            assert removed == pytest.approx(ratio / (2 * share**0.5))


def test_histogram_counts_in_deviations_of_each_layer():
    generator = torch.Generator().manual_seed(0)
    layers = [scale * torch.randn(50_000, generator=generator) for scale in (1.0, 100.0)]
    found = sp.histogram(dict(zip("ab", layers, strict=True)))
    assert sum(found) == pytest.approx(math.erf(3 / math.sqrt(2)), abs=1e-3)
    assert found[30] == pytest.approx(0.1 / math.sqrt(2 * math.pi), rel=0.1)

"""The experiment `together.sparse_loops`: exact pairs, exact sparsity, equal budgets."""

import math
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import nn

from unrolled.data.text import TokenBatches
from unrolled.experiment import no_report
from unrolled.horst.compositions import OPTIMIZERS, Tuned, build_optimizer
from unrolled.horst.search import SEEDS_APART, points
from unrolled.horst.sparsity import prunable_weights
from unrolled.looped.model import build
from unrolled.results import committed, comparison_table
from unrolled.together import sparse_loops, sparse_search
from unrolled.together.sparse_loops import (
    EXPERIMENT,
    NOT_PRUNED,
    coherence,
    damages,
    equal_weights_sparsity,
    mixed_state,
    operations,
    use_errors,
)
from unrolled.training import NonFiniteError, fit

SMOKE = EXPERIMENT.presets["smoke"]
LAPTOP = EXPERIMENT.presets["laptop"]
CASE = {"variant": "flt", "num_loops": 2, "optimizer": "horst", "sparsity": 0.9}


@pytest.fixture(scope="module")
def rows():
    return EXPERIMENT.run("smoke", 0, progress=False)


def counted_operations(model: nn.Module, length: int) -> int:
    """Count a multiplication and an addition for every weight that is used and not zero."""
    found = {"linear": 0, "blocks": 0}

    def linear(module, inputs, output):
        found["linear"] += 2 * int(module.weight.count_nonzero())

    def block(module, inputs, output):
        found["blocks"] += 1

    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(linear)
    for module in model.blocks:
        module.register_forward_hook(block)
    model(torch.zeros(1, length, dtype=torch.long))
    return found["linear"] + found["blocks"] * 4 * length * model.config.hidden_size


@pytest.mark.equation("eq-together-pairing")
@pytest.mark.parametrize("K", [2, 3, 6])
def test_the_pair_does_the_same_operations_dense_and_sparse(K):
    costs = []
    for variant in ("flt", "plain"):
        model = build(SMOKE.config, variant, K)
        nn.init.normal_(model.blocks[0].attention.output.weight)  # zero at the start
        for block in model.blocks:
            nn.init.normal_(block.attention.output.weight)
            nn.init.normal_(block.mlp.output.weight)
        case = {**CASE, "variant": variant, "num_loops": K}
        assert operations(SMOKE, case)["flops"] == counted_operations(model, SMOKE.length)
        zeros = 0
        for weight in prunable_weights(model, NOT_PRUNED).values():
            weight.data.flatten()[: weight.numel() // 2] = 0  # half of each matrix
            zeros += weight.numel() // 2
        found = operations(SMOKE, case, zeros)
        assert found["sparse_flops"] == counted_operations(model, SMOKE.length)
        costs.append((found["flops"], found["sparse_flops"]))
    assert costs[0] == costs[1]


def test_rows_are_as_sparse_as_asked_and_shared_weights_count_once(rows):
    matrices = {"flt": 6 * SMOKE.num_layers, "plain": 6 * SMOKE.num_layers}
    for row in rows:
        blocks = SMOKE.num_layers * (row["num_loops"] if row["variant"] == "plain" else 1)
        assert row["weights"] == blocks * 12 * SMOKE.hidden_size**2
        assert len(row["kept_by_layer"]) == matrices[row["variant"]] * blocks // SMOKE.num_layers
        small, large = SMOKE.hidden_size**2, 4 * SMOKE.hidden_size**2
        kept = blocks * (4 * (small - round(row["sparsity"] * small)))
        kept += blocks * (2 * (large - round(row["sparsity"] * large)))
        assert row["kept_weights"] == kept
        uses = row["num_loops"] if row["variant"] == "flt" else 1
        assert row["flops"] - row["sparse_flops"] == 2 * uses * (row["weights"] - kept)


def pair_of_models(injection: str, K: int, scale: float) -> tuple[nn.Module, nn.Module]:
    """Return a looped model with random weights and one whose blocks are off by a little."""
    torch.manual_seed(3)
    model, other = (build(SMOKE.config, injection, K).double() for _ in range(2))
    for weight in prunable_weights(model, NOT_PRUNED).values():
        nn.init.normal_(weight, std=0.3)
    other.load_state_dict(model.state_dict())
    for weight in prunable_weights(other, NOT_PRUNED).values():
        weight.data += scale * torch.randn_like(weight)
    return model, other


@pytest.mark.equation("eq-together-untied")
@pytest.mark.parametrize("injection", ["flt", "input", "original"])
def test_loops_with_weights_of_their_own_are_the_model_if_they_share_them(injection):
    tokens = torch.randint(256, (2, 7))
    model, other = pair_of_models(injection, 3, 0.1)
    states = model(tokens, loop_states=True).loop_states
    assert torch.equal(mixed_state([model] * 3, tokens), states[-1])
    # the last loop alone is off: as if the other model went on from the second state
    expected = other.loop(model.embed(tokens), states[1])[-1]
    assert torch.equal(mixed_state([model, model, other], tokens), expected)


@pytest.mark.equation("eq-together-shared-error")
@pytest.mark.parametrize("injection", ["flt", "input"])
def test_errors_of_all_uses_add_up_to_first_order(injection):
    tokens, rests = torch.randint(256, (2, 7), generator=torch.Generator().manual_seed(0)), []
    for scale in (1e-3, 1e-4):
        model, other = pair_of_models(injection, 4, scale)
        alone, together = use_errors(model, other, tokens)
        rests.append(((together - alone.sum(dim=0)).norm() / together.norm()).item())
    assert rests[1] < rests[0] / 5  # the rest is of second order
    slopes = slopes_of_uses(model, other, tokens)
    assert torch.allclose(alone.detach().sum(dim=(1, 2, 3)), slopes, rtol=0.02, atol=1e-6)


def slopes_of_uses(model: nn.Module, other: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Return how the sum over the state changes with the weights of each loop, by autograd."""
    K, e, state = model.num_loops, model.embed(tokens).detach(), None
    copies = [{n: p.detach().clone().requires_grad_() for n, p in model.named_parameters()}
              for _ in range(K)]  # fmt: skip
    for values in copies:
        state = torch.func.functional_call(OneLoop(model), values, (e, state))
    state.sum().backward()
    moved = dict(other.named_parameters())
    slopes = [
        sum(((moved[n] - p) * p.grad).sum() for n, p in values.items() if p.grad is not None)
        for values in copies
    ]
    return torch.stack(slopes).detach()


class OneLoop(nn.Module):
    """One loop of a model, with its parameters under their own names."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.embedding, self.blocks, self.head = model.embedding, model.blocks, model.head
        self.run = model.loop

    def forward(self, e: torch.Tensor, state: torch.Tensor | None) -> torch.Tensor:
        return self.run(e, state)[-1]


@pytest.mark.equation("eq-together-coherence")
def test_coherence_of_uses_is_between_none_and_all():
    parts = torch.randn(5, 3, 4)
    assert 0 <= coherence(parts) <= 5
    assert coherence(parts[:1]) == pytest.approx(1)
    assert coherence(parts[:1].expand(5, -1, -1)) == pytest.approx(5)
    assert coherence(torch.stack((parts[0], -parts[0]))) == 0
    many = torch.randn(4, 100_000)  # independent errors: as if each use had weights of its own
    assert coherence(many) == pytest.approx(1, abs=0.05)
    with pytest.raises(ValueError, match="changes"):
        coherence(torch.zeros(2, 3))


@pytest.mark.equation("eq-together-damage")
def test_damage_is_against_the_same_model_optimizer_and_seed(rows):
    found = damages([*rows, {**rows[0], "val_loss": None}, {**rows[-1], "optimizer": "alone"}])
    assert len(found) == len(rows)
    for row in found:
        (dense,) = [
            other["val_loss"]
            for other in rows
            if other["sparsity"] == 0
            and all(row[key] == other[key] for key in ("variant", "num_loops", "optimizer", "seed"))
        ]
        assert row["damage"] == row["val_loss"] - dense
    assert all(row["damage"] == 0 for row in found if row["sparsity"] == 0)
    assert any(row["damage"] != 0 for row in found)


def test_embedding_and_head_stay_dense():
    model, _, _ = sparse_loops.trained(SMOKE, CASE, seed=0)
    assert bool((model.head.weight != 0).all())
    assert bool((model.embedding.weight != 0).all())


@pytest.mark.equation("eq-together-pairing")
def test_pairs_of_equal_weights_are_among_the_sparsities():
    for K in (3, 6):
        share = equal_weights_sparsity(0.7, K)
        assert any(share == pytest.approx(s) for s in LAPTOP.sparsities)
        looped, plain = 0.3 * 12, (1 - share) * K * 12
        assert looped == pytest.approx(plain)


def test_all_optimizers_start_alike_and_without_a_mirror_they_are_one():
    values = Tuned(1e-2)
    settings = replace(SMOKE, adamw=values, ham=values, horst=values)
    cases = [{**CASE, "optimizer": name} for name in ("adamw", "ham", "horst")]
    curves = [sparse_loops.trained(settings, case, seed=1)[1].losses for case in cases]
    assert curves[0] == curves[1] == curves[2]
    other = [sparse_loops.trained(SMOKE, case, seed=1)[1].losses for case in cases]
    assert other[0][0] == other[2][0]
    assert other[0][-1] != other[2][-1]


def test_sparsity_zero_is_training_without_masks():
    case = {**CASE, "sparsity": 0.0}
    _model, run, dense = sparse_loops.trained(SMOKE, case, seed=2)
    torch.manual_seed(2)
    plain = build(SMOKE.config, "flt", 2)
    optimizer = build_optimizer("horst", SMOKE.horst, plain, SMOKE.rest_rate, NOT_PRUNED)
    tokens = sparse_loops.text_of(SMOKE).train
    again = fit(
        plain,
        TokenBatches(tokens, SMOKE.batch_size, SMOKE.length, 2),
        sparse_loops.batch_loss,
        sparse_loops.training_config(SMOKE),
        [optimizer],
    )
    assert run.losses == again.losses
    assert dense["dense_val_loss"] > 0


def test_the_search_gives_every_optimizer_as_many_trials_and_seeds_of_its_own(monkeypatch):
    cases = sparse_search.EXPERIMENT.cases(sparse_search.EXPERIMENT.presets["laptop"])
    counts = {name: sum(case["optimizer"] == name for case in cases) for name in OPTIMIZERS}
    assert set(counts.values()) == {16}
    seen = {}

    def spy(settings, case, seed, report):
        seen.update(settings=settings, case=case, seed=seed)
        raise NonFiniteError(0, "loss", "nan", None)

    monkeypatch.setattr(sparse_search.sparse_loops, "trained", spy)
    settings = sparse_search.EXPERIMENT.presets["smoke"]
    found = sparse_search.measure(settings, cases[2], 0, no_report)
    assert found["diverged"]
    assert seen["seed"] == SEEDS_APART
    assert seen["case"]["optimizer"] == cases[2]["optimizer"]
    tuned = getattr(seen["settings"], cases[2]["optimizer"])
    assert (tuned.rate, tuned.alpha) == (cases[2]["rate"], cases[2]["alpha"])
    assert (seen["case"]["num_loops"], seen["case"]["sparsity"]) == (1, 0.9)


def test_the_moved_ranges_keep_what_decides_a_step_of_horst():
    for old, new in zip(points("horst", 16), sparse_search.moved_points("horst", 16), strict=True):
        assert new["rate"] == pytest.approx(4 * old["rate"], rel=5e-3)
        strength = old["rate"] * old["alpha"]
        assert new["rate"] * new["alpha"] == pytest.approx(strength, rel=1e-2)
        assert (new["weight_decay"], new["beta"]) == (old["weight_decay"], old["beta"])


def test_one_loop_is_measured_once_and_every_cell_is_there():
    cases = EXPERIMENT.cases(LAPTOP)
    models = {(case["variant"], case["num_loops"]) for case in cases}
    assert models == {("plain", 1), ("flt", 3), ("plain", 3), ("flt", 6), ("plain", 6)}
    for model in models:
        for name in LAPTOP.optimizers:
            shares = [
                (case.get("rate_factor", 1.0), case["sparsity"])
                for case in cases
                if (case["variant"], case["num_loops"]) == model and case["optimizer"] == name
            ]
            there = name not in LAPTOP.looped_only or model in {("plain", 1), ("flt", 6)}
            assert shares == (
                list(product(LAPTOP.rate_factors, LAPTOP.sparsities)) if there else []
            )


def test_the_laptop_preset_has_the_values_that_the_committed_search_chose():
    trials = committed("together.sparse_search")
    for name in LAPTOP.optimizers:
        assert getattr(LAPTOP, name) == sparse_search.best_values(trials, name)


def test_a_rate_factor_scales_the_rate_of_the_blocks_alone(monkeypatch):
    seen = []

    def spy(name, tuned, model, rest_rate, exclude):
        seen.append((tuned, rest_rate))
        raise NonFiniteError(0, "loss", math.nan, None)

    monkeypatch.setattr(sparse_loops, "build_optimizer", spy)
    for factor in ({}, {"rate_factor": 0.25}):
        sparse_loops.measure(SMOKE, CASE | factor, 0, no_report)
    (whole, rest), (quarter, same_rest) = seen
    assert replace(quarter, rate=4 * quarter.rate) == whole == SMOKE.horst
    assert rest == same_rest == SMOKE.rest_rate


def test_the_picked_rate_is_the_best_of_each_cell_and_never_one_that_diverged():
    cell = {"variant": "flt", "num_loops": 6, "optimizer": "adamw"}
    losses = {(0.0, 1.0): (2.0, 2.4), (0.0, 0.5): (2.1, 2.1), (0.9, 1.0): (2.2, 2.2)}
    rows = [
        cell | {"sparsity": s, "rate_factor": f, "seed": seed, "val_loss": loss}
        for (s, f), pair in losses.items()
        for seed, loss in enumerate(pair)
    ]
    rows += [cell | {"sparsity": 0.9, "rate_factor": 0.5, "seed": 0, "diverged": True}]
    found = {(row["sparsity"], row["rate_factor"]) for row in sparse_loops.picked(rows)}
    assert found == {(0.0, 0.5), (0.9, 1.0)}
    assert [row["damage"] for row in damages(sparse_loops.picked(rows)) if row["sparsity"]] == [
        pytest.approx(2.2 - 2.1)
    ] * 2


def test_a_run_that_diverges_is_a_row():
    found = sparse_loops.measure(replace(SMOKE, horst=Tuned(rate=1e20)), CASE, 0, no_report)
    assert found["diverged"]


def test_claims_ask_for_cells_that_exist():
    rows = [
        {**case, "seed": seed, "preset": "laptop", "val_loss": 2 + case["sparsity"] + 0.1 * seed}
        for case in EXPERIMENT.cases(LAPTOP)
        for seed in range(3)
    ]
    table = comparison_table(EXPERIMENT.name, EXPERIMENT.claims, rows=rows)
    assert {line["verdict"] for line in table} <= {"reproduced", "trend", "not seen"}
    assert len(table) == 10

"""The experiment `horst.language`: equal budgets, exact pruning, and a recovery that keeps it."""

import math
from dataclasses import replace

import pytest
import torch

from unrolled.experiment import no_report
from unrolled.horst import language
from unrolled.horst.compositions import OPTIMIZERS, Tuned
from unrolled.horst.language import EXPERIMENT, GPT2_SMALL, build_model, gpt, pruned
from unrolled.horst.sparsity import prunable_weights, sparsity_report
from unrolled.results import comparison_table
from unrolled.transformer import count_parameters

SMOKE = EXPERIMENT.presets["smoke"]
CASE = {"optimizer": "horst"}


@pytest.fixture(scope="module")
def rows():
    return EXPERIMENT.run("smoke", 0, progress=False)


def test_gpt2_small_has_the_published_number_of_parameters():
    with torch.device("meta"):
        model = build_model(gpt(**GPT2_SMALL, vocab_size=50_257))
    assert count_parameters(model) == 124_439_808


def test_it_computes_what_transformers_does_with_the_same_weights():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    ours = build_model(gpt(2, 16, 2, 12, vocab_size=31)).eval()
    for parameter in ours.parameters():
        parameter.data.normal_(std=0.3)
    config = transformers.GPT2Config(
        vocab_size=31, n_positions=12, n_embd=16, n_layer=2, n_head=2, activation_function="gelu"
    )
    theirs = transformers.GPT2LMHeadModel(config).eval()
    theirs.load_state_dict(as_gpt2(ours, theirs.state_dict()))
    tokens = torch.randint(31, (3, 12))
    torch.testing.assert_close(ours(tokens).logits, theirs(tokens).logits, rtol=1e-4, atol=1e-4)


def as_gpt2(model, like):
    state, found = model.state_dict(), dict(like)
    found |= {
        "transformer.wte.weight": state["embedding.weight"],
        "lm_head.weight": state["embedding.weight"],
        "transformer.wpe.weight": state["positions.weight"],
    }
    norms = {"ln_1": "attention_norm", "ln_2": "mlp_norm"}
    maps = {"attn.c_proj": "attention.output", "mlp.c_fc": "mlp.hidden", "mlp.c_proj": "mlp.output"}
    for n in ("weight", "bias"):
        found[f"transformer.ln_f.{n}"] = state[f"norm.{n}"]
        for i in range(2):
            theirs, ours = f"transformer.h.{i}", f"blocks.{i}"
            parts = [state[f"{ours}.attention.{part}.{n}"] for part in ("query", "key", "value")]
            found[f"{theirs}.attn.c_attn.{n}"] = (
                torch.cat(parts).T if n == "weight" else torch.cat(parts)
            )
            found |= {f"{theirs}.{a}.{n}": state[f"{ours}.{b}.{n}"] for a, b in norms.items()}
            for a, b in maps.items():
                value = state[f"{ours}.{b}.{n}"]
                found[f"{theirs}.{a}.{n}"] = value.T if n == "weight" else value
    return found


def test_matrices_are_drawn_as_in_gpt2():
    torch.manual_seed(0)
    model = build_model(gpt(8, 64, 2, 32))
    assert model.embedding.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert model.blocks[0].mlp.hidden.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert model.blocks[0].mlp.output.weight.std().item() == pytest.approx(
        0.02 / math.sqrt(16), rel=0.05
    )


def test_every_matrix_loses_the_asked_share_and_the_dense_model_stays():
    model = build_model(SMOKE.config)
    before = [weight.clone() for weight in model.parameters()]
    small, masks = pruned(model, 0.7)
    for layer in sparsity_report(prunable_weights(small))[:-1]:
        assert layer.zeros == round(0.7 * math.prod(layer.shape))
    assert "embedding.weight" not in masks.masks
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert small.head.weight is small.embedding.weight


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_recovery_keeps_the_zeros_and_moves_the_rest(name):
    model = build_model(SMOKE.config)
    small, masks = pruned(model, 0.5)
    back = language.recovered(model, 0.5, SMOKE, {"optimizer": name}, seed=0)
    moved = dict(back.named_parameters())
    for key, mask in masks.masks.items():
        assert torch.equal(moved[key] == 0, ~mask)
        assert not torch.equal(moved[key], dict(small.named_parameters())[key])


def test_the_recovery_goes_on_behind_the_training(monkeypatch):
    seen = []
    original = language.fit

    def spy(model, batch_at, *arguments, **options):
        seen.append([batch_at(step)[0] for step in range(2)])
        return original(model, batch_at, *arguments, **options)

    monkeypatch.setattr(language, "fit", spy)
    model, _ = language.trained(SMOKE, CASE, seed=5)
    language.recovered(model, 0.5, SMOKE, CASE, seed=5)
    batches = language.TokenBatches(language.text_of(SMOKE)[0], 2, 16, 5)
    assert torch.equal(seen[0][0], batches(0)[0])
    assert torch.equal(seen[1][1], batches(SMOKE.steps + 1)[0])


def test_all_start_alike_and_without_a_mirror_they_are_one():
    settings = replace(SMOKE, adamw=Tuned(1e-2), horst=Tuned(1e-2), ham=Tuned(1e-2))
    curves = [language.trained(settings, {"optimizer": n}, seed=1)[1].losses for n in OPTIMIZERS]
    assert curves[0] == curves[1] == curves[2]
    other = [language.trained(SMOKE, {"optimizer": n}, seed=1)[1].losses for n in OPTIMIZERS]
    assert other[0][0] == other[1][0] == other[2][0]
    assert other[0][-1] != other[2][-1]


def test_the_loss_is_that_of_all_windows_whatever_the_batch():
    model = build_model(SMOKE.config)
    inputs, targets = language.text_of(SMOKE)[1]
    expected = model(inputs, targets=targets).loss.item()
    for size in (1, 3, 50):
        found = language.validation_loss(model, replace(SMOKE, batch_size=size))
        assert found == pytest.approx(expected, rel=1e-5)


def test_rows_are_consistent(rows):
    for row in rows:
        assert row["perplexity_by_sparsity"] == pytest.approx(
            [math.exp(loss) for loss in row["loss_by_sparsity"]]
        )
        assert len(row["recovered_loss_by_sparsity"]) == len(row["recovered_sparsities"])
        assert row["steps"] == SMOKE.steps


def test_a_run_that_diverges_is_a_row():
    settings = replace(SMOKE, horst=Tuned(rate=1e20))
    found = language.measure(settings, CASE, 0, no_report)
    assert found["diverged"]


def test_claims_ask_for_the_sparsity_that_they_name():
    settings = EXPERIMENT.presets["laptop"]
    assert settings.recovered_sparsities[1] == 0.8
    for claim in EXPERIMENT.claims:
        for share in (0.5, 0.7, 0.8, 0.9):
            if f"Pruned by {share:.0%}, " in claim.statement:
                assert f"loss_by_sparsity[{settings.sparsities.index(share)}]" in claim.query
    assert len(comparison_table("horst.language", EXPERIMENT.claims, rows=[])) == 16


@pytest.mark.parametrize(("last", "verdict"), [(3.0, "reproduced"), (3.6, "not seen")])
def test_the_lead_is_larger_when_pruning_adds_less(last, verdict):
    losses = {"horst": [2.0] * 6 + [last], "adamw": [2.5] * 6 + [4.0]}
    rows = [
        {"optimizer": name, "seed": s, "diverged": False, "preset": "laptop"}
        | {"loss_by_sparsity": by_sparsity}
        for name, by_sparsity in losses.items()
        for s in range(3)
    ]
    table = comparison_table("horst.language", EXPERIMENT.claims, rows=rows)
    grows = "HORST's lead over AdamW is larger pruned by 90% than dense"
    assert {line["claim"]: line["verdict"] for line in table}[grows] == verdict


@pytest.mark.equation("eq-horst-three-factors")
def test_the_removed_energy_is_what_goes_over_all_there_is():
    weights = {"a": torch.tensor([[4.0, -1.0], [2.0, -2.0]]), "b": torch.tensor([0.0, 3.0])}
    assert language.removed_energy(weights, 0.5) == pytest.approx((1 + 4 + 0) / (25 + 9))
    assert language.removed_energy(weights, 0.0) == 0
    assert language.removed_energy(weights, 1.0) == 1


@pytest.mark.equation("eq-horst-pruning-loss")
def test_the_line_leads_from_the_dense_model_to_the_pruned_one():
    model = build_model(SMOKE.config)
    before = [weight.clone() for weight in model.parameters()]
    losses = language.loss_along(model, 0.5, (0.0, 0.5, 1.0), SMOKE)
    assert losses[0] == pytest.approx(language.validation_loss(model, SMOKE), rel=1e-5)
    end = language.validation_loss(pruned(model, 0.5)[0], SMOKE)
    assert losses[2] == pytest.approx(end, rel=1e-5)
    middle, (small, _) = model, pruned(model, 0.5)
    for a, b in zip(middle.parameters(), small.parameters(), strict=True):
        assert torch.equal(a, before.pop(0))  # the model stays as it was
        a.data.lerp_(b.data, 0.5)
    assert losses[1] == pytest.approx(language.validation_loss(middle, SMOKE), rel=1e-5)


def test_rows_at_a_sparsity(rows):
    (row,) = language.at_sparsity(rows[:1], 0.5)
    assert row["val_loss"] == rows[0]["loss_by_sparsity"][1]
    assert row["val_perplexity"] == pytest.approx(math.exp(row["val_loss"]))
    (row,) = language.at_sparsity(rows[:1], 0.5, recovered=True)
    assert row["val_loss"] == rows[0]["recovered_loss_by_sparsity"][0]
    for lost in ({"diverged": True}, {"sparsities": [0.5], "loss_by_sparsity": [None]}):
        assert language.at_sparsity([lost], 0.5)[0]["val_perplexity"] is None

"""The experiment `looped.instability`: paired seeds, repeatable rows, and what it writes down."""

import math
from dataclasses import replace

import pytest
import torch

from unrolled import results
from unrolled.looped import instability
from unrolled.looped.instability import EXPERIMENT
from unrolled.looped.model import INJECTIONS

SMOKE = EXPERIMENT.presets["smoke"]
CASE = {"variant": "flt", "num_loops": 2, "learning_rate": 1e-3}


@pytest.fixture(scope="module")
def row():
    return EXPERIMENT.run("smoke", 0, cases={"variant": "flt"}, progress=False)[0]


def test_laptop_compares_all_variants_at_three_depths_and_a_higher_rate():
    cases = EXPERIMENT.cases(EXPERIMENT.presets["laptop"])
    assert len(cases) == len(INJECTIONS) * 4
    assert {case["num_loops"] for case in cases} == {6, 9, 12}
    high = [case for case in cases if case["learning_rate"] == 3e-3]
    assert {case["num_loops"] for case in high} == {12}
    assert {case["variant"] for case in high} == set(INJECTIONS)


def test_variants_of_one_seed_start_from_equal_weights_and_see_equal_text():
    settings = replace(SMOKE, steps=10)
    runs = {
        variant: instability.trained(settings, {**CASE, "variant": variant}, seed=3)[1]
        for variant in INJECTIONS
    }
    # Zero output projections: at step 0 all variants are the same function.
    first = {run.losses[0] for run in runs.values()}
    assert len(first) == 1
    assert first.pop() == pytest.approx(math.log(256), abs=0.01)


def test_seeds_change_the_run_and_equal_seeds_repeat_it(row):
    again = EXPERIMENT.run("smoke", 0, cases={"variant": "flt"}, progress=False)[0]
    other = EXPERIMENT.run("smoke", 1, cases={"variant": "flt"}, progress=False)[0]
    free = [key for key in row if key not in results.PROVENANCE]
    assert [again[key] for key in free] == [row[key] for key in free]
    assert other["loss_curve"] != row["loss_curve"]


def test_row_holds_outcome_symptoms_and_curves(row):
    assert row["val_bits_per_byte"] == pytest.approx(row["val_loss"] / math.log(2))
    assert len(row["loss_curve"]) == len(row["step_curve"]) == SMOKE.steps
    for column in ("residual_norm", "gradient_norm", "weight_gradient", "token_cosine"):
        column = "weight_gradient_by_loop" if column == "weight_gradient" else f"{column}_by_loop"
        assert len(row[column]) == row["num_loops"]
    assert row["residual_norm"] == row["residual_norm_by_loop"][-1]
    assert -1 <= row["gradient_cosine"] <= 1
    assert row["collapsed"] == (row["plateau"] and row["exploding"])


def test_gradients_by_loop_are_those_of_autograd(row):
    model, _ = instability.trained(SMOKE, CASE, seed=0)
    inputs, targets = (part[:2] for part in instability.text_of(SMOKE).validation)
    output = model(inputs, targets=targets, loop_states=True)
    gradients = torch.autograd.grad(output.loss, output.loop_states)
    measured = instability.by_loop(model, inputs, targets)["gradient_norm_by_loop"]
    torch.testing.assert_close(
        torch.tensor(measured), torch.stack([g.norm() for g in gradients]), rtol=1e-4, atol=1e-8
    )


def test_validation_loss_is_the_mean_over_all_tokens():
    model, _ = instability.trained(SMOKE, CASE, seed=0)
    inputs, targets = instability.text_of(SMOKE).validation
    with torch.no_grad():
        whole = model.loss(inputs, targets).item()
    # 4 windows in pieces of 3: the last piece is smaller, and must not weigh as much
    assert instability.validation_loss(model, inputs, targets, 3) == pytest.approx(whole, rel=1e-5)


def test_a_run_that_is_not_finite_becomes_a_row(monkeypatch):
    def explode(*arguments):
        raise instability.NonFiniteError(7, "loss", math.nan, None)

    monkeypatch.setattr(instability, "train", explode)
    row = EXPERIMENT.run("smoke", 0, cases={"variant": "flt"}, progress=False)[0]
    assert row["diverged"] is True
    assert row["collapsed"] is True
    assert row["diverged_at_step"] == 7


def test_scale_of_the_paper_is_counted_without_building_it():
    facts = EXPERIMENT.describe(EXPERIMENT.presets["paper"])
    assert round(facts["parameters"] / 1e6, 1) == 127.1
    assert facts["tokens per run"] == 2_000 * 524_288


def test_a_corpus_that_is_not_on_board_is_an_error_and_never_replaced():
    with pytest.raises(ValueError, match=r"'the_pile'.*state_of_the_union"):
        instability.load_text("the_pile", 256, 32, 4)


def test_byte_pairs_are_another_vocabulary_for_the_same_text(tmp_path, monkeypatch):
    monkeypatch.setenv("UNROLLED_CACHE", str(tmp_path))
    text = instability.load_text("state_of_the_union", 512, 32, 4)
    assert text.train.max() < 512
    assert text.validation_bytes > text.validation[1].numel()  # a token is more than a byte
    instability.load_text.cache_clear()


def test_muon_keeps_the_rates_of_the_paper_for_embedding_and_head():
    config = instability.optimizer_config(replace(SMOKE, optimizer="muon"), 0.05)
    assert (config.name, config.learning_rate) == ("muon", 0.05)
    assert (config.embedding_learning_rate, config.head_learning_rate) == (0.2, 0.004)


def test_committed_rows_are_complete_and_paired():
    rows = results.select(results.read("looped.instability"), preset="laptop")
    settings = EXPERIMENT.presets["laptop"]
    expected = {tuple(case.values()) for case in EXPERIMENT.cases(settings)}
    for seed in range(3):
        found = {
            (row["variant"], row["num_loops"], row["learning_rate"])
            for row in rows
            if row["seed"] == seed
        }
        assert found == expected, f"seed {seed}"
    hashes = {unit.config_hash for unit in EXPERIMENT.units("laptop", [0])}
    assert {row["config_hash"] for row in rows} == hashes, "rows of other settings"

"""The experiment `together.descending_loops`: special cases, constraints, trials, verdicts."""

import math
from dataclasses import replace

import pytest
import torch

from unrolled.experiment import no_report
from unrolled.looped import inference
from unrolled.results import ResultError, comparison_table
from unrolled.together import descending_loops
from unrolled.together.descending_loops import (
    BASELINES,
    CONSTRAINED,
    EXPERIMENT,
    FLT,
    LT,
    METHODS,
    build_constraint,
    loop_columns,
    picked,
    trials,
)
from unrolled.together.exits import Frontier
from unrolled.together.loops import LoopReading, loop_losses
from unrolled.training import NonFiniteError

SMOKE = EXPERIMENT.presets["smoke"]
LAPTOP = EXPERIMENT.presets["laptop"]


def case_of(method: str, alpha: float = 0.1, num_loops: int = 2) -> dict:
    return {
        "variant": "flt",
        "num_loops": num_loops,
        "method": method,
        "learning_rate": 0.02,
        "alpha": alpha,
    }


@pytest.fixture(scope="module")
def rows():
    return EXPERIMENT.run("smoke", 0, progress=False)


def test_every_method_has_as_many_trials():
    assert len({len(trials(LAPTOP, method)) for method in METHODS}) == 1
    cases = EXPERIMENT.cases(LAPTOP)
    assert len({tuple(case.items()) for case in cases}) == len(cases)
    methods = {name: {c["method"] for c in cases if c["variant"] == name} for name in (LT, FLT)}
    assert methods == {LT: set(METHODS), FLT: set(LAPTOP.other_methods)}
    assert len(cases) == 4 * (len(METHODS) + len(LAPTOP.other_methods))


@pytest.mark.parametrize("method", BASELINES)
def test_without_constraints_training_is_that_of_the_part_on_loops(method):
    _, run = descending_loops.trained(SMOKE, case_of(method), seed=3)
    settings = inference.InferenceSettings(
        **{
            name: getattr(SMOKE, name)
            for name in (
                *("steps", "batch_size", "length", "num_layers", "hidden_size", "num_heads"),
                *("learning_rate", "optimizer", "validation_windows"),
            )
        }
    )
    case = {"data": "text", "variant": "flt", "num_loops": 2, "recipe": BASELINES[method]}
    _, theirs = inference.trained(settings, case, seed=3)
    assert run.losses == theirs.losses


def test_with_one_loop_and_no_multipliers_all_fixed_methods_descend_the_plain_loss():
    # the first step has no multipliers yet, and with one loop nothing else differs
    losses = {
        method: descending_loops.trained(SMOKE, case_of(method, 0.0, 1), seed=0)[1].losses[0]
        for method in METHODS
    }
    assert losses == {method: pytest.approx(losses["last"], rel=1e-6) for method in METHODS}
    settings = replace(SMOKE, dual_step=1e-12)
    plain = descending_loops.trained(settings, case_of("last", 0.0, 1), seed=0)[1].losses
    for method in CONSTRAINED:
        run = descending_loops.trained(settings, case_of(method, 0.0, 1), seed=0)[1]
        assert run.losses == pytest.approx(plain, rel=1e-5)


@pytest.mark.parametrize("method", CONSTRAINED)
def test_effective_weights_are_the_gradient_of_the_lagrangian(method):
    hooks = descending_loops.training_hooks(SMOKE, case_of(method))
    dual = hooks["stateful"]["primal_dual"]
    dual.multipliers.copy_(torch.tensor([0.7, 1.9]))
    f = torch.tensor([5.0, 4.0, 3.0], requires_grad=True)
    dual.lagrangian(f).backward()
    expected = build_constraint(SMOKE, case_of(method)).weights(dual.multipliers)
    torch.testing.assert_close(f.grad, expected)


@pytest.mark.equation("eq-together-descending-loops")
def test_the_constraints_are_those_of_the_docstring():
    f, uniform = torch.tensor([6.0, 4.0, 4.5]), math.log(256)
    slack = {m: build_constraint(SMOKE, case_of(m)).slacks(f).tolist() for m in CONSTRAINED}
    for method in ("exact", "proxy", "resilient"):
        assert slack[method] == pytest.approx([4 - 0.9 * 6, 4.5 - 0.9 * 4])
    assert slack["anchored"] == pytest.approx([4 - 0.9 * uniform, 4.5 - 0.9 * 4])
    assert slack["cumulative"] == pytest.approx([4 - 0.9 * uniform, 4.5 - 0.81 * uniform], abs=1e-5)


def test_multipliers_follow_the_slacks_of_the_loops():
    settings, case = replace(SMOKE, steps=1), case_of("exact", 0.1)
    model, batches, _ = inference.prepared(
        settings, {"data": "text", "variant": "flt", "num_loops": 2, "recipe": "fixed"}, 0
    )
    slacks = build_constraint(settings, case).slacks(loop_losses(model, *batches(0)))
    hooks = descending_loops.training_hooks(settings, case)
    dual = hooks["stateful"]["primal_dual"]
    dual.update(loop_losses(model, *batches(0)))
    torch.testing.assert_close(dual.multipliers, 0.1 * slacks.clamp_min(0).float())


def test_ascents_are_counted_up_to_k_and_beyond():
    losses = torch.tensor([[9.0], [3.0], [2.0], [2.5], [2.5], [2.4], [2.6]])
    reading = LoopReading(losses, losses[:, 0], losses[:, 0])
    found = loop_columns(reading, num_loops=3, tolerance=0.01)
    assert found["loss_by_loop"] == pytest.approx([3.0, 2.0, 2.5, 2.5, 2.4, 2.6])
    assert (found["ascents"], found["ascents_beyond"]) == (1, 1)
    assert not found["monotone"]
    assert found["drift"] == pytest.approx(0.0)
    assert found["ascent_rate"] == 0.5
    assert loop_columns(reading, 2, 0.6)["monotone_beyond"]


def test_rows_hold_every_loop_and_the_whole_frontier(rows):
    assert len(rows) == len(METHODS)
    for row in rows:
        for split in ("val", "test"):
            losses = row[f"{split}_loss_by_loop"]
            assert len(losses) == SMOKE.inference_loops
            assert row[f"{split}_loss"] == losses[1]
            line = row[f"{split}_loss_by_threshold"]
            assert len(line) == len(row["exit_thresholds"])
            assert (line[0], line[-1]) == (losses[0], losses[1])
            assert row[f"{split}_loops_by_threshold"] == sorted(row[f"{split}_loops_by_threshold"])
        assert row["exit_gain_by_threshold"][0] == 0
        assert row["exit_gain_by_threshold"][-1] == min(losses[:2]) - losses[1]
        assert len(row["state_norm_by_loop"]) == SMOKE.inference_loops
        assert ("multiplier_by_loop" in row) == (row["method"] in CONSTRAINED)


def test_the_validation_text_picks_the_exit_and_not_the_test_text(monkeypatch):
    lines = iter((Frontier([0.5], [1.5], [2.0]), Frontier([0.5], [1.4], [3.0])))
    monkeypatch.setattr(descending_loops, "frontier", lambda *_: next(lines))
    losses = {"val": [9.0, 2.0], "test": [9.0, 2.0]}
    windows = {"val": (), "test": ()}
    found = descending_loops.exit_columns(None, windows, replace(SMOKE, tolerance=0.0), losses)
    assert (found["exit_threshold"], found["exit_mean_loops"]) == (0.5, 1.4)
    assert found["exit_cost"] == 1.0
    assert found["exit_gain"] == pytest.approx(9.0 - 0.4 * 7.0 - 3.0)


def test_the_trial_is_picked_on_validation_and_a_diverged_one_never():
    one = {"variant": "flt", "method": "exact", "learning_rate": 0.02}
    rows = [
        {**one, "alpha": alpha, "seed": seed, "val_area": area, "test_area": -area}
        for alpha, area in ((0.0, 2.0), (0.1, 1.0))
        for seed in (0, 1)
    ]
    assert {row["alpha"] for row in picked(rows, "flt", "exact")} == {0.1}
    rows[-1] = {**one, "alpha": 0.1, "seed": 1, "diverged": True}
    assert {row["alpha"] for row in picked(rows, "flt", "exact")} == {0.0}
    with pytest.raises(ResultError, match="no trial"):
        picked(rows[-1:], "flt", "exact")


def test_a_run_that_diverges_is_a_row(monkeypatch):
    def broken(*_):
        raise NonFiniteError(7, "loss", "nan", None)

    monkeypatch.setattr(descending_loops, "trained", broken)
    found = descending_loops.measure(SMOKE, case_of("last"), 0, no_report)
    assert found == {"diverged": True, "diverged_at_step": 7}


def test_claims_are_judged_from_rows(rows):
    both = [
        {**row, "variant": variant, "preset": "laptop", "seed": seed}
        for row in rows
        for variant in ("flt", "original")
        for seed in range(3)
    ]
    table = comparison_table(EXPERIMENT.name, EXPERIMENT.claims, rows=both)
    assert {line["verdict"] for line in table} <= {"reproduced", "trend", "not seen"}
    empty = comparison_table(EXPERIMENT.name, EXPERIMENT.claims, rows=[])
    assert {line["verdict"] for line in empty} == {"not attempted"}


def as_claimed(seed: int) -> list[dict]:
    """Return one seed of rows in which everything is as the claims say."""
    usual = {"seed": seed, "preset": "laptop", "learning_rate": 0.02, "alpha": 0.0}
    usual |= {"val_area": 2.0, "val_loss": 2.0, "test_loss": 2.0 + 0.1 * seed, "test_drift": 0.001}
    usual |= {"sabotaged": False, "test_monotone": True, "exit_mean_loops": 6.0}
    usual |= {"test_area": 2.0 + 0.1 * seed, "exit_gain": 0.002 + 0.0001 * seed}
    rows = [usual | {"variant": v, "method": m} for v in (LT, FLT) for m in METHODS]
    better = {"exit_mean_loops": 4.0, "test_area": 1.9 + 0.1 * seed}
    special = {
        (LT, "last"): {"test_drift": 0.1},
        (LT, "exact"): {"sabotaged": True},
        (LT, "proxy"): {"test_loss": 2.009 + 0.1 * seed, **better},
    }
    return [row | special.get((row["variant"], row["method"]), {}) for row in rows]


def verdicts(rows: list[dict]) -> dict[str, str]:
    table = comparison_table(EXPERIMENT.name, EXPERIMENT.claims, rows=rows)
    return {line["claim"]: line["verdict"] for line in table}


def test_claims_follow_rows_that_agree_and_fail_on_rows_that_do_not():
    rows = [row for seed in range(3) for row in as_claimed(seed)]
    assert set(verdicts(rows).values()) == {"reproduced"}
    assert len(EXPERIMENT.claims) <= 12
    swapped = [
        row | {"method": {"last": "proxy", "proxy": "last"}.get(row["method"], row["method"])}
        for row in rows
    ]
    found = verdicts(swapped)
    wrong = {claim for claim, verdict in found.items() if verdict == "not seen"}
    assert {claim for claim in found if claim.startswith("LT, last")} < wrong
    assert "LT: tokens that stop by themselves need fewer loops with proxy than with last" in wrong
    assert "LT: beyond K the loss rises less with proxy than with last" in wrong


def test_a_cost_is_judged_against_what_would_be_noticed():
    def cost(extra: float) -> str:
        rows = [row for seed in range(3) for row in as_claimed(seed)]
        for row in rows:
            if (row["variant"], row["method"]) == (FLT, "proxy"):
                row["test_loss"] = 2.0 + 0.1 * row["seed"] + extra
        return verdicts(rows)["FLT: at K proxy costs less than 0.01 against last"]

    assert [cost(extra) for extra in (-0.1, 0.009, 0.011)] == [
        *("reproduced", "reproduced", "not seen")
    ]


def test_one_seed_of_one_form_is_enough_to_make_a_trend():
    rows = [row for seed in range(3) for row in as_claimed(seed)]
    sabotaged = next(row for row in rows if row["method"] == "anchored")
    sabotaged["sabotaged"] = True
    assert verdicts(rows)["LT: under no other form are loops sabotaged"] == "trend"

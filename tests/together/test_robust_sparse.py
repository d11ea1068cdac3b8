"""The experiment `together.robust_sparse`: whole heat maps, held masks, and one interaction."""

import math
from dataclasses import replace

import pytest
import torch

from unrolled.experiment import no_report
from unrolled.horst.compositions import Tuned
from unrolled.horst.sparsity import prunable_weights
from unrolled.results import committed, comparison_table
from unrolled.together import robust_search, robust_sparse
from unrolled.together.compression import dense_steps
from unrolled.together.interaction import margin
from unrolled.together.robust_sparse import EXPERIMENT

pytest.importorskip("transformers")

SMOKE = EXPERIMENT.presets["smoke"]
LAPTOP = EXPERIMENT.presets["laptop"]
CASE = {"method": "exact", "optimizer": "horst", "sparsity": 0.5}


@pytest.fixture(scope="module")
def rows():
    return EXPERIMENT.run("smoke", 0, progress=False)


def test_the_heat_map_is_whole(rows):
    cells = {(row["method"], row["optimizer"], row["sparsity"]) for row in rows}
    assert cells == {
        (method, name, share)
        for method in SMOKE.methods
        for name in SMOKE.optimizers
        for share in SMOKE.sparsities
    }
    assert len(rows) == len(cells)
    for row in rows:
        assert row["gammas"] == list(SMOKE.text.gammas)
        line = row["accuracy_by_gamma"]
        assert len(line) == len(row["roc_auc_by_gamma"]) == len(row["gammas"])
        assert all(0 <= accuracy <= 1 for accuracy in line)
        assert line[0] == row["test_accuracy"]
        assert row["area"] == pytest.approx(sum(line) / len(line))
        margins = [margin(accuracy, SMOKE.text.test_texts) for accuracy in line]
        assert row["area_margin"] == pytest.approx(sum(margins) / len(margins))
        assert ("multiplier_by_layer" in row) == (row["method"] == "exact")
        assert len(row["test_loss_by_layer"]) == 3


def test_only_the_matrices_of_the_encoder_are_pruned_and_all_by_the_same_share(rows):
    for row in rows:
        assert row["kept_by_layer"] == pytest.approx([1 - row["sparsity"]] * 12)
    model, _, _ = robust_sparse.trained(SMOKE, CASE, seed=0)
    matrices = prunable_weights(model, ("classifier",))
    assert all(name.startswith("bert.encoder") for name in matrices)
    assert len(matrices) == 12
    assert bool((model.classifier.weight != 0).all())


def test_masks_come_once_after_the_dense_steps():
    schedule = LAPTOP.schedule
    dense = round(0.4 * LAPTOP.text.steps)
    assert dense_steps(schedule) == dense
    assert [schedule.is_sparse(step) for step in (0, dense - 1, dense)] == [False, False, True]


def test_without_a_mirror_the_optimizers_are_one_and_all_start_alike():
    settings = replace(SMOKE, horst=Tuned(1e-3, 0.0), adamw=Tuned(1e-3, 0.0))
    curves = [
        robust_sparse.trained(settings, {**CASE, "optimizer": name}, seed=1)[1].losses
        for name in ("adamw", "horst")
    ]
    assert curves[0] == curves[1]
    # before any price has risen the Lagrangian is the loss of the last layer
    erm = robust_sparse.trained(settings, {**CASE, "method": "erm"}, seed=1)[1].losses
    assert erm[0] == pytest.approx(curves[0][0], rel=1e-6)
    assert erm != curves[0]


@pytest.mark.parametrize("name", ["adamw", "horst"])
def test_the_head_can_have_a_rate_of_its_own(name):
    case, settings = {**CASE, "optimizer": name}, replace(SMOKE, head_rate=0.5)
    model = robust_sparse.text.build_classifier("toy", "linear", 0.0)
    optimizer, _ = robust_sparse.compressed(settings, case, model)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    found = {key: rates.pop(id(p)) for key, p in model.named_parameters() if p.requires_grad}
    assert not rates
    assert {key for key, rate in found.items() if rate == 0.5} == {
        "classifier.weight",
        "classifier.bias",
    }
    assert found["bert.encoder.layer.0.attention.self.query.bias"] == SMOKE.rest_rate
    # a group of its own changes nothing by itself
    one, two = (
        robust_sparse.trained(replace(SMOKE, head_rate=rate), case, seed=1)[1].losses
        for rate in (None, SMOKE.rest_rate)
    )
    assert one == two
    with pytest.raises(ValueError, match="rate"):
        robust_sparse.trained(replace(SMOKE, head_rate=0.0), case, seed=1)


def test_noise_is_the_same_for_all_models():
    batch = robust_sparse.text.batches_of(SMOKE.text)["test"]
    model, _, _ = robust_sparse.trained(SMOKE, CASE, seed=0)
    clean = {"accuracy": 0.25, "roc_auc": 0.5}
    how = robust_sparse.reading(CASE)
    one, two = (robust_sparse.noise_columns(model, batch, how, SMOKE.text, clean) for _ in range(2))
    assert one == two
    assert one["accuracy_by_gamma"][0] == 0.25
    assert one["high"] == one["accuracy_by_gamma"][1]


def test_a_run_that_diverges_is_a_row():
    settings = replace(SMOKE, horst=Tuned(rate=1e20))
    assert robust_sparse.measure(settings, CASE, 0, no_report)["diverged"]


def test_names_are_checked_before_any_work():
    with pytest.raises(ValueError, match="methods"):
        EXPERIMENT.cases(replace(SMOKE, methods=("erm", "exakt")))
    with pytest.raises(ValueError, match="optimizers"):
        EXPERIMENT.cases(replace(SMOKE, optimizers=("adam",)))


def verdicts_of(undone: float) -> dict[str, str]:
    def area(case: dict, seed: int) -> float:
        exact, horst = case["method"] == "exact", case["optimizer"] == "horst"
        return 0.7 + 0.02 * exact + 0.03 * horst - undone * exact * horst + 0.01 * math.sin(seed)

    names = ("area", "high", "area_margin")
    rows = [
        {**case, "seed": seed, "preset": "laptop", "test_monotone": True, "test_ascents": 0}
        | dict.fromkeys(names, area(case, seed))
        for case in EXPERIMENT.cases(LAPTOP)
        for seed in range(5)
    ]
    table = comparison_table(EXPERIMENT.name, EXPERIMENT.claims, rows=rows)
    return {line["claim"]: line["verdict"] for line in table}


@pytest.mark.equation("eq-together-robust-interaction")
def test_a_gain_that_is_undone_is_seen_as_such():
    assert set(verdicts_of(0.02).values()) == {"reproduced"}
    seen = verdicts_of(-0.02)
    undone = {claim: verdict for claim, verdict in seen.items() if "undoes" in claim}
    assert len(undone) == 2
    assert {v for c, v in seen.items() if "undoes" in c or "the same" in c} == {"not seen"}
    assert len(seen) == 8


@pytest.mark.equation("eq-together-averaging")
def test_features_that_all_say_the_same_are_averaged():
    generator = torch.Generator().manual_seed(0)
    signal, spread, gamma, w = 0.3, 0.5, 1.0, torch.randn(20, generator=generator)
    y = torch.randint(2, (20_000,), generator=generator) * 2 - 1
    noise = torch.randn(2, len(y), len(w), generator=generator)
    x = signal * y[:, None] * w.sign() + spread * noise[0] + gamma * noise[1]
    found = ((x @ w > 0) == (y > 0)).float().mean().item()
    expected = robust_sparse.averaged_accuracy(w, signal, spread, gamma)
    assert found == pytest.approx(expected, abs=0.012)
    # a scale of all weights changes nothing, and the bounds are those of the norm ratio
    assert robust_sparse.averaged_accuracy(5 * w, signal, spread, gamma) == pytest.approx(expected)
    flat, needle = (
        robust_sparse.averaged_accuracy(v, signal, spread, gamma)
        for v in (torch.ones(20), torch.eye(20)[3])
    )
    assert needle < expected < flat
    with pytest.raises(ValueError, match="weights"):
        robust_sparse.averaged_accuracy(torch.zeros(3), signal, spread, gamma)


def test_the_laptop_preset_has_the_values_that_the_committed_search_chose():
    trials = committed("together.robust_search")
    laptop = EXPERIMENT.presets["laptop"]
    for name in laptop.optimizers:
        assert getattr(laptop, name) == robust_search.best_values(trials, name)


def test_the_search_gives_each_optimizer_as_many_trials_and_looks_at_no_noise():
    cases = robust_search.EXPERIMENT.cases(robust_search.EXPERIMENT.presets["laptop"])
    names = [case["optimizer"] for case in cases]
    assert names.count("adamw") == names.count("horst") == 8
    assert all(case["alpha"] == case["beta"] == 0 for case in cases[::2])
    assert all(2e-5 < case["rate"] < 2e-3 for case in cases)
    settings = robust_search.EXPERIMENT.presets["smoke"]
    row = robust_search.measure(settings, cases[1], 0, no_report)
    assert row["cost"] == row["val_loss"] > 0
    assert not any("gamma" in name for name in row)
    wild = robust_search.measure(settings, {**cases[1], "rate": 1e20}, 0, no_report)
    assert wild["diverged"]

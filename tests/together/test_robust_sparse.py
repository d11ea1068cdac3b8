"""The experiment `together.robust_sparse`: whole heat maps, held masks, and one interaction."""

import math
from dataclasses import replace

import pytest

from unrolled.experiment import no_report
from unrolled.horst.compositions import Tuned
from unrolled.horst.sparsity import prunable_weights
from unrolled.results import comparison_table
from unrolled.together import robust_sparse
from unrolled.together.compression import dense_steps
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


def test_a_gain_that_is_undone_is_seen_as_such():
    def area(case: dict, seed: int) -> float:
        exact, horst = case["method"] == "exact", case["optimizer"] == "horst"
        return 0.7 + 0.02 * exact + 0.03 * horst - 0.02 * exact * horst + 0.01 * math.sin(seed)

    rows = [
        {**case, "seed": seed, "preset": "laptop", "area": area(case, seed), "high": area(case, 0)}
        for case in EXPERIMENT.cases(LAPTOP)
        for seed in range(5)
    ]
    table = comparison_table(EXPERIMENT.name, EXPERIMENT.claims, rows=rows)
    verdicts = {line["claim"]: line["verdict"] for line in table}
    undone = [verdict for claim, verdict in verdicts.items() if "gains less over gamma" in claim]
    assert undone == ["reproduced"] * 4
    assert {v for c, v in verdicts.items() if "than neither" in c} == {"reproduced"}

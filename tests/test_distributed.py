"""Several processes: the trajectory of one, the same state in all, and a run that moves."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

WORKER = Path(__file__).with_name("distributed_worker.py")
SETTINGS = ("float32", "float64", "accumulated", "measured")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def run(command, **environment):
    settings = os.environ | {"OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"} | environment
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, env=settings, timeout=850
    )


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Run all scenarios in one tree of processes, which imports torch once."""
    done = run([sys.executable, WORKER, tmp_path_factory.mktemp("runs")])
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def assert_same_course(found, expected, rtol, atol=0.0):
    for key in ("losses", "multipliers", "weights"):
        for one, two in zip(found[key], expected[key], strict=True):
            one, two = (torch.tensor(value, dtype=torch.float64) for value in (one, two))
            torch.testing.assert_close(one, two, rtol=rtol, atol=atol, msg=key)


# Dual variables --------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("name", SETTINGS)
def test_losses_multipliers_and_weights_are_those_of_one_process(report, name, world):
    (alone,) = report[f"{name} 1"]
    tolerance = (2e-4, 1e-5) if name == "float32" else (1e-9, 1e-12)
    assert_same_course(report[f"{name} {world}"][0], alone, *tolerance)
    prices = torch.tensor(alone["multipliers"])
    assert (prices[-1] > 0).any(), "a run without prices says nothing"


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("name", SETTINGS)
def test_every_process_holds_the_same_weights_and_multipliers(report, name, world):
    assert len({each["same"] for each in report[f"{name} {world}"]}) == 1


@pytest.mark.parametrize("world", [2, 4])
def test_multipliers_in_a_loop_of_ones_own_are_global_too(report, world):
    (alone,) = report["by hand 1"]
    for each in report[f"by hand {world}"]:
        assert each["ascended"] == alone["ascended"] == [False, True, False, True]
        for key in ("multipliers", "lagrangian", "gap", "losses"):
            assert each[key] == pytest.approx(alone[key], rel=1e-12)


# Sparsity --------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [2, 4])
def test_masks_of_acdc_and_moments_of_horst_are_the_same_in_all_processes(report, world):
    (alone,) = report["sparse 1"]
    first, *others = report[f"sparse {world}"]
    assert first["masks"] == alone["masks"]
    assert len(set(first["masks"])) >= 3  # none while dense, and several that are in force
    assert first["zeros"] == alone["zeros"] > 0
    assert first["losses"] == pytest.approx(alone["losses"], rel=1e-9)
    for other in others:
        assert (other["masks"], other["state"]) == (first["masks"], first["state"])


# A run that moves ------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["4 to 2", "1 to 4"])
def test_a_run_goes_on_with_another_number_of_processes(report, way):
    found = report["moved"][way]
    # one process was asked, all have stopped behind the same step
    assert set(found["codes"]) == {75}
    for each in found["ended"]:
        assert_same_course(each, report["whole"][0], 1e-9, 1e-12)
        assert 9 <= each["resumed_from"] < 40
    first, _, second = way.split()
    told = f"the run had {first} process(es) up to step {found['ended'][0]['resumed_from']}"
    assert any(told in text and f"goes on with {second}" in text for text in warned(found))


def warned(found):
    return [text for each in found["ended"] for text in each["warned"]]


def test_when_one_of_two_is_killed_the_other_ends_and_both_go_on_bit_for_bit(report):
    found = report["one killed"]
    assert found["codes"][1] == -9
    assert found["codes"][0] not in (0, -9), "it went on alone, or had to be killed"
    for again, whole in zip(found["again"], found["whole"], strict=True):
        assert again["resumed_from"] >= 10
        assert again["same"] == whole["same"]


def test_no_process_of_a_run_starts_in_a_folder_that_another_run_holds(report):
    first, second = report["shared"]
    assert first == second
    assert first.startswith("another run keeps its checkpoints in ")


# A sharded model -------------------------------------------------------------------------------


def test_a_sharded_model_learns_what_a_whole_one_learns(report):
    (alone,), each = report["sharded"]["alone"], report["sharded"]["whole"]
    assert [found["divided"] for found in each] == [True, True]
    assert not alone["divided"]
    assert each[0]["same"] == each[1]["same"]
    assert each[0]["losses"] == pytest.approx(alone["losses"], rel=2e-4)
    assert flat(each[0]) == pytest.approx(flat(alone), rel=2e-4, abs=1e-5)


def test_a_sharded_run_goes_on_bit_for_bit_and_also_in_one_process(report):
    found = report["sharded"]
    for again, whole in zip(found["two"], found["whole"], strict=True):
        assert again["resumed_from"] == 5
        assert again["same"] == whole["same"]
    (one,) = found["one"]
    assert (one["resumed_from"], one["divided"]) == (5, False)
    assert flat(one) == pytest.approx(flat(found["whole"][0]), rel=2e-4, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "tolerance"),
    [("horst", 1e-5), ("multipliers", 1e-5), ("muon", 5e-3)],  # Muon multiplies in bfloat16
)
def test_a_sharded_model_takes_horst_muon_and_multipliers_as_a_whole_one_does(
    report, name, tolerance
):
    alone, *each = report["sharded"]["with"][name]
    assert [found["divided"] for found in each] == [True, True]
    assert each[0]["same"] == each[1]["same"]
    for found in each:
        assert flat(found) == pytest.approx(flat(alone), rel=0, abs=tolerance)
        for key in ("losses", "norms", "multipliers"):
            assert found[key] == pytest.approx(alone[key], rel=4 * tolerance, abs=tolerance), key
    assert max(alone["norms"]) > 0.1, "nothing was clipped"
    assert (max(alone["multipliers"]) > 0.1) == (name == "multipliers")


def test_a_gradient_that_is_not_finite_in_one_part_ends_all_processes(report):
    alone, *each = report["sharded"]["with"]["infinite"]
    told = "step 0: gradient of head.weight is not finite (6 of 18 entries)"
    assert [found["refused"] for found in (alone, *each)] == [told] * 3


def test_masks_on_a_sharded_model_are_refused_before_the_first_step(report):
    alone, *each = report["sharded"]["with"]["masks"]
    assert "refused" not in alone
    for found in each:
        assert found["refused"].startswith("stateful['acdc'], Acdc, works on the model")
        assert found["refused"].endswith("Allowed with it: AdamW, Muon, HORST, and multipliers")


def test_an_error_of_a_hook_that_runs_a_sharded_model_says_what_a_hook_may_do(report):
    alone, *each = report["sharded"]["with"]["outside"]
    assert "refused" not in alone
    for found in each:
        assert "The model itself runs in loss_fn only" in found["refused"]


def flat(found):
    return torch.cat([torch.tensor(weight).flatten() for weight in found["weights"]]).tolist()


def test_other_kinds_of_sharding_are_refused(report):
    for each in report["sharded"]["old"]:
        assert "(--use_fsdp --fsdp_version 2), not FSDP of version 1" in each["refused"]


# The command -----------------------------------------------------------------------------------


def test_accelerate_launches_an_experiment_and_hands_on_a_request_to_stop(tmp_path):
    """As the book says it, with the smoke preset in place of the paper's, and CPUs of GPUs."""
    command = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu"]
    command += ["--num_processes=2", "--num_machines=1", "--main_process_port=0"]
    command += ["--dynamo_backend=no", "--mixed_precision=no"]
    command += ["-m", "unrolled", "run", "looped.pretraining", "--preset", "smoke"]
    command += ["--cases", "variant=flt", "--cases", "optimizer=muon", "--set", "steps=60"]
    command += ["--micro-batch", "1", "--output", tmp_path / "rows.jsonl"]
    command += ["--checkpoints", tmp_path / "kept", "--checkpoint-minutes", "0.005"]
    done = stopped_at_a_checkpoint(command, tmp_path / "kept")
    assert "asked to stop by SIGTERM: the state after" in done
    assert not (tmp_path / "rows.jsonl").exists()
    done = run(command, ACCELERATE_USE_CPU="true")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "2 processes share each" in done.stdout
    assert "resumed from step" in done.stderr
    (row,) = map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines())
    case = {"variant": "flt", "optimizer": "muon"}
    (alone,) = experiment().run("smoke", 0, cases=case, overrides={"steps": 60})
    assert row["val_bits_per_byte"] == pytest.approx(alone["val_bits_per_byte"], rel=1e-3)
    assert row["config_hash"] == alone["config_hash"]
    kept = [path.name for path in (tmp_path / "kept").rglob("*") if path.is_file()]
    assert kept == ["model.safetensors"]


def stopped_at_a_checkpoint(command, folder):
    """Start a command, send SIGTERM when there is a checkpoint, and return what was said."""
    running = subprocess.Popen(
        list(map(str, command)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"},
    )
    while running.poll() is None and not list(folder.glob("*/*/fit_00/step_*[0-9]")):
        time.sleep(0.05)
    running.terminate()
    return running.communicate(timeout=280)[0]


def experiment():
    from unrolled.looped.pretraining import EXPERIMENT

    return EXPERIMENT

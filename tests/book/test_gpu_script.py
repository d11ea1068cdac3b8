"""The script behind `make gpu`: at its smallest size on a CPU, and what it does on failure."""

import json
import time

import gpu
import pytest
import torch

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU, run make gpu")


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_all_checks_pass_on_this_machine_and_are_not_written_twice(tmp_path, capsys):
    path = tmp_path / "rows.jsonl"
    names = [word for check in gpu.CHECKS for word in ("--only", f"check {check}")]
    for _ in range(2):
        assert gpu.main([*names, "--output", str(path)]) == 0
    rows = rows_of(path)
    assert [row["what"] for row in rows] == list(gpu.CHECKS)
    for row in rows:
        assert row["passed"]
        assert {"part", "experiment", "preset", "device", "torch", "version"} <= row.keys()
    assert "nothing failed" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("piece", gpu.SLICES, ids=lambda piece: piece.experiment)
def test_a_slice_gives_a_row_with_its_rate(piece):
    row = gpu.run_slice(piece, small=True, minutes=5)
    assert row["steps_per_second"] is None or row["steps_per_second"] > 0
    assert "config_hash" not in row
    assert row["preset"] == "smoke"


def test_the_cases_of_the_slices_are_there_at_the_size_for_a_gpu():
    for piece in gpu.SLICES:
        experiment = gpu.load_experiment(piece.experiment)
        units = experiment.units("colab", [0], overrides={"steps": piece.steps})
        unit = gpu.nearest(units, piece.case)
        assert piece.case.items() <= unit.case.items()


@pytest.mark.slow
def test_ratios_come_from_the_benchmarks(tmp_path):
    path = tmp_path / "rows.jsonl"
    assert gpu.main(["--only", "ratios horst", "--output", str(path)]) == 0
    assert all(row["ratio"] > 0 for row in rows_of(path))


def test_what_fails_is_a_row_and_the_next_thing_is_done(tmp_path, monkeypatch, capsys):
    def fails(device, small):
        gpu.require(False, "a wrong sum")

    def breaks(device, small):
        raise RuntimeError("no kernel")

    monkeypatch.setattr(gpu, "CHECKS", {"one": fails, "two": breaks, "three": lambda *_: {}})
    path = tmp_path / "rows.jsonl"
    names = [word for check in gpu.CHECKS for word in ("--only", f"check {check}")]
    assert gpu.main([*names, "--output", str(path)]) == 2
    first, second, third = rows_of(path)
    assert (first["passed"], first["problem"]) == (False, "CheckError: a wrong sum")
    assert (second["passed"], second["problem"]) == (False, "RuntimeError: no kernel")
    assert third["passed"]
    assert "FAILED check one: CheckError: a wrong sum" in capsys.readouterr().out


def test_an_unknown_name_is_refused_before_any_work(tmp_path):
    with pytest.raises(SystemExit, match="unknown: check gravity; allowed: check bfloat16"):
        gpu.main(["--only", "check gravity", "--output", str(tmp_path / "rows.jsonl")])


def test_a_slice_whose_time_is_up_says_how_far_it_came(monkeypatch):
    class Slow:
        def measure_unit(self, unit, report):
            for step in range(1000):
                time.sleep(0.001)
                report(step + 1, 1000)

        def suited(self, preset, overrides):
            return overrides | {"mixed_precision": "fp16"}

        def units(self, *arguments, overrides):
            assert overrides == {"mixed_precision": "fp16"}
            return [Unit()]

    class Unit:
        case, seed = {"variant": "x"}, 0

    monkeypatch.setattr(gpu, "load_experiment", lambda name: Slow())
    row = gpu.run_slice(gpu.Slice("slow.thing", {"variant": "x"}), small=True, minutes=0.05 / 60)
    assert 0 < row["steps"] < 1000
    assert row["variant"] == "x"


def test_a_scaler_that_skips_no_step_is_seen(monkeypatch):
    class Careless(torch.amp.GradScaler):
        def step(self, optimizer):
            self.unscale_(optimizer)
            optimizer.step()

    monkeypatch.setattr(gpu.torch.amp, "GradScaler", Careless)
    with pytest.raises(gpu.CheckError, match="step 20 moved"):
        gpu.check_loss_scale("cpu", small=True)

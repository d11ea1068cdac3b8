"""Faults: runs that are killed, stopped, starved of disk and damaged lose nothing."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from unrolled.catalog import EXPERIMENTS, load_experiment
from unrolled.execution import PREEMPTED, Execution, Preempted, StopRequest, fits_run_with
from unrolled.runner import measured
from unrolled.training import OptimizerConfig, TrainingConfig, fit

WORKER = Path(__file__).with_name("faults_worker.py")

pytestmark = pytest.mark.timeout(900)  # seconds suffice, unless the machine is busy


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Run all campaigns in one tree of processes, which imports torch once."""
    settings = os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(
        [sys.executable, WORKER, tmp_path_factory.mktemp("runs"), "2"],
        capture_output=True,
        text=True,
        env=settings,
        timeout=850,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.slow
def test_faults_at_random_moments_change_no_bit_of_the_end(report, capsys):
    counts = {}
    for campaign in report["campaigns"]:
        for kind, count in campaign["faults"].items():
            counts[kind] = counts.get(kind, 0) + count
    total, lost = sum(counts.values()), sum(c["end"] != c["expected"] for c in report["campaigns"])
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    with capsys.disabled():
        print(
            f"\nfaults injected: {total} ({kinds}); runs: {len(report['campaigns'])}; lost: {lost}"
        )
    assert lost == 0
    assert total >= 20
    assert counts.keys() == {"SIGKILL", "SIGTERM", "full disk", "damage"}


@pytest.mark.slow
def test_a_stop_ends_with_the_code_and_everything_else_by_its_signal(report):
    codes = {tuple(code) for campaign in report["campaigns"] for code in campaign["codes"]}
    assert codes >= {("SIGKILL", -9), ("SIGTERM", PREEMPTED)}
    # A stop may also come before the run listens, while it still builds its model.
    assert {code for kind, code in codes if kind == "SIGTERM"} <= {PREEMPTED, -15}


@pytest.mark.slow
def test_a_run_that_is_asked_to_stop_finishes_its_step_and_goes_on_from_there(report):
    found = report["stopped"]
    assert found["code"] == PREEMPTED
    assert found["newest"] == f"step_{found['steps']:08d}"
    assert found["again"]["resumed_from"] == found["steps"] >= 7
    assert found["again"]["end"] == report["whole"][0]["end"]


@pytest.mark.slow
def test_a_stop_on_a_full_disk_ends_too(report):
    assert report["full"]["code"] == PREEMPTED
    assert report["full"]["again"]["resumed_from"] is None
    assert report["full"]["again"]["end"] == report["whole"][0]["end"]


# The command -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_stops_with_code_75_and_goes_on(tmp_path):
    command = [sys.executable, "-m", "unrolled", "run", "looped.pretraining", "--preset", "smoke"]
    command += ["--cases", "variant=flt", "--cases", "optimizer=muon", "--set", "steps=200"]
    command += ["--output", tmp_path / "rows.jsonl", "--checkpoints", tmp_path / "kept"]
    command = [*map(str, command), "--checkpoint-minutes", "0.01", "--jobs", "1"]
    settings = os.environ | {"OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=settings
    )
    limit = time.monotonic() + 200
    while not list(tmp_path.glob("kept/*/*/fit_00/step_*[0-9]")) and time.monotonic() < limit:
        time.sleep(0.05)
    running.send_signal(signal.SIGTERM)
    told = running.communicate(timeout=100)[0]
    assert running.returncode == PREEMPTED, told
    assert "stopped by SIGTERM: 0 of 1 rows" in told
    assert "the same command goes on" in told
    again = subprocess.run(command, capture_output=True, text=True, env=settings, timeout=200)
    assert again.returncode == 0, again.stderr
    assert "resumed from step" in again.stderr
    (row,) = map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines())
    assert row["steps"] == 200


# Rows ------------------------------------------------------------------------------------------

TRAINED = sorted(EXPERIMENTS.keys() - {"horst.bias"})  # that one has loops of its own, in seconds


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_the_row_of_a_run_that_was_stopped_is_that_of_one_that_was_not(name, tmp_path, deaf):
    experiment, calls = load_experiment(name), []
    unit = [unit for unit in experiment.units("smoke", [0]) if trains(unit.case)][-1]
    whole = measured(experiment, unit, lambda done, total: calls.append(done), None)
    execution = Execution(str(tmp_path), checkpoint_minutes=1e-5)
    stop = max(1, round(0.7 * len(calls)))
    calls.clear()

    def asked(done, total):
        calls.append(done)
        if len(calls) == stop:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Preempted):
        measured(experiment, unit, asked, execution)
    row = measured(experiment, unit, lambda done, total: None, execution)
    unlike = {"seconds", "commit"}
    assert {k: v for k, v in row.items() if k not in unlike} == {
        k: v for k, v in whole.items() if k not in unlike
    }


@pytest.fixture
def deaf():
    """Outside a training, let SIGTERM do nothing: it would end the tests."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGTERM, before)


def trains(case):
    """Whether a case trains anything: not a filter, a bag of words, or the model as it is."""
    return case.get("network") != "none" and case.get("method") not in ("tfidf", "none")


# What the machine decides ----------------------------------------------------------------------


def fit_line(steps=3, on_step=None, **changes):
    import torch

    line = torch.nn.Linear(1, 1)
    training = TrainingConfig(**({"steps": steps, "batch_size": 4} | changes))
    x = torch.linspace(-1, 1, 4)[:, None]
    return fit(
        line,
        lambda step: x,
        lambda model, x: model(x).square().mean(),
        training,
        OptimizerConfig(),
        on_step=on_step,
    )


def test_fits_of_a_block_keep_their_checkpoints_apart_and_nested_ones_none(tmp_path):
    def nested(report):
        fit_line()

    with fits_run_with(Execution(str(tmp_path))):
        fit_line(on_step=nested)
        fit_line(steps=4)
    fit_line()
    names = {str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/step_*")}
    assert names == {"fit_00/step_00000003", "fit_01/step_00000004"}


def test_a_fit_that_has_chosen_keeps_its_choice(tmp_path):
    with fits_run_with(Execution(str(tmp_path / "a"), micro_batch_size=3)):
        fit_line(checkpoint_folder=tmp_path / "b", micro_batch_size=2)
        with pytest.raises(ValueError, match="micro_batch_size must be None or a divisor"):
            fit_line()
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_without_checkpoints_a_signal_does_what_it_did(monkeypatch):
    heard = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        fit_line(on_step=lambda report: signal.raise_signal(signal.SIGTERM))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM] * 3


def test_the_handler_of_the_caller_is_back_after_a_run(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Preempted, match="the state after 2 steps is in") as stopped:
        fit_line(
            checkpoint_folder=tmp_path,
            on_step=lambda report: (
                signal.raise_signal(signal.SIGTERM) if report.step == 1 else None
            ),
        )
    assert signal.getsignal(signal.SIGTERM) is before
    assert (stopped.value.code, stopped.value.step, stopped.value.folder) == (75, 2, tmp_path)


def test_a_request_that_nobody_heeds_goes_to_the_handler_before():
    heard = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        with StopRequest() as stop:
            signal.raise_signal(signal.SIGTERM)
            assert (stop.asked, heard) == (True, [])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]


def test_a_thread_hears_no_signals_and_does_not_fail(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(fit_line, checkpoint_folder=tmp_path).result().steps == 3
        assert not pool.submit(lambda: StopRequest().listening).result()


@pytest.mark.parametrize(
    ("field", "value"),
    [("checkpoint_minutes", 0.0), ("resume", "always"), ("micro_batch_size", 0)],
)
def test_an_execution_names_the_bad_value(field, value):
    with pytest.raises(ValueError, match=f"^{field} must be .* got"):
        Execution(**{field: value})


def test_minutes_are_counted_from_checkpoint_to_checkpoint(tmp_path, monkeypatch):
    clock = iter(range(0, 10_000, 40))
    monkeypatch.setattr("unrolled.engine.time.perf_counter", lambda: float(next(clock)))
    kept = []
    monkeypatch.setattr(
        "unrolled.engine.save_checkpoint", lambda folder, state, keep: kept.append(state.step)
    )
    fit_line(steps=9, checkpoint_folder=tmp_path, checkpoint_minutes=2.0)
    gaps = [later - earlier for earlier, later in itertools.pairwise([0, *kept[:-1]])]
    assert len(gaps) >= 2
    assert set(gaps) <= {2, 3, 4}  # a step looks at the clock once, a checkpoint twice
    assert kept[-1] == 9

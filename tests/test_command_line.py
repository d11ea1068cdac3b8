"""The command line: what it prints, what it writes, and that no crash costs or doubles a row."""

import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from unrolled import __main__ as command_line
from unrolled import catalog, results

# An experiment as a reader would write it for coursework, in a file of their own.
TOY = """
import os, pathlib, random, time
from dataclasses import dataclass
from tqdm import tqdm
from unrolled.experiment import Experiment
from unrolled.results import Claim, judge_difference

@dataclass(frozen=True)
class Settings:
    steps: int = 3
    pause: float = 0.0
    trouble: str = "none"

def cases(settings):
    return [{"variant": v, "num_loops": k} for v in ("original", "flt") for k in (6, 12)]

def measure(settings, case, seed, report):
    with open("pids.txt", "a") as file:
        file.write(f"{os.getpid()}\\n")
    here = case == {"variant": "flt", "num_loops": 6} and seed == 0
    if here and settings.trouble == "error":
        raise RuntimeError("the weights are gone")
    if here and settings.trouble == "death":
        os._exit(7)
    for step in range(settings.steps):
        report(step, settings.steps)
        time.sleep(settings.pause)
    list(tqdm(range(3), disable=True))  # its lock must not be left behind
    numbers = random.Random(f"{case}{seed}")
    return {
        "loss": numbers.random() + (case["variant"] == "original"),
        "loss_curve": [numbers.random() for _ in range(500)],
        "threads": os.environ["OMP_NUM_THREADS"],
    }

def describe(settings):
    return {"parameters": 127_101_312, "loops": [6, 12], "memory (GB)": 0.5}

EXPERIMENT = Experiment(
    "demo.toy", "A toy experiment.",
    presets={
        "smoke": Settings(), "live": Settings(), "laptop": Settings(), "colab": Settings(),
    },
    cases=cases, measure=measure, describe=describe, seeds={"laptop": 3},
    claims=(Claim("looped", "FLT is better.", "38.44",
                  "demo_toy | mean_ci loss | variant=flt num_loops=12 | .2f",
                  judge_difference("loss", {"variant": "flt", "num_loops": 12},
                                   {"variant": "original", "num_loops": 12}, expect="lower")),),
)

def BENCHMARK(preset):
    return [{"comparison": "FLT / LT", "ratio": 1.05, "seconds": 0.1}]
"""


@pytest.fixture
def home(tmp_path):
    """A folder of a reader with an experiment in it."""
    (tmp_path / "toy.py").write_text(TOY)
    return tmp_path


def start(home: Path, *words: str, **more) -> subprocess.Popen:
    environment = {**os.environ, "TQDM_DISABLE": "1", "COLUMNS": "100"}
    return subprocess.Popen(
        [sys.executable, "-m", "unrolled", *words],
        cwd=home,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )


def unrolled(home: Path, *words: str) -> subprocess.CompletedProcess:
    process = start(home, *words)
    out, err = process.communicate(timeout=240)
    return subprocess.CompletedProcess(words, process.returncode, out, err)


RUN = ("run", "toy:EXPERIMENT", "--output", "rows.jsonl", "--jobs", "2")


def measured(rows):
    """The rows by unit, without what may differ between two runs."""
    by_unit = {}
    for row in rows:
        key = row["preset"], row["variant"], row["num_loops"], row["seed"]
        assert key not in by_unit, f"{key} stands there twice"
        by_unit[key] = {k: v for k, v in row.items() if k not in ("seconds", "commit")}
    return by_unit


def read(home: Path):
    return results.read(home / "rows.jsonl")


# --- run --------------------------------------------------------------------------------------


def test_run_writes_a_row_per_unit_and_continues(home):
    first = unrolled(home, *RUN, "--seeds", "0,2")
    assert first.returncode == 0, first.stderr
    assert "demo.toy, preset laptop: 8 units\n" in first.stdout
    assert "8 rows added to rows.jsonl" in first.stdout
    assert "[8/8] variant=" in first.stderr
    assert len(first.stderr.splitlines()) == 8, "nothing else is said"
    rows = read(home)
    assert {key[1:] for key in measured(rows)} == {
        (v, k, s) for v in ("original", "flt") for k in (6, 12) for s in (0, 2)
    }
    assert {row["threads"] for row in rows} == {"1"}

    second = unrolled(home, *RUN)
    assert "12 units, 8 of them done before and skipped" in second.stdout
    assert "4 rows added" in second.stdout
    assert read(home)[:8] == rows
    assert len(measured(read(home))) == 12

    third = unrolled(home, *RUN)
    assert third.returncode == 0
    assert "12 of them done before" in third.stdout
    assert "0 rows added" in third.stdout


def test_the_command_of_a_row_makes_it_again(home):
    unrolled(home, *RUN, "--seeds", "1", "--set", "steps=2", "--cases", "variant=flt")
    row = read(home)[0]
    words = shlex.split(row["command"])
    assert words[:4] == ["python", "-m", "unrolled", "run"]
    again = unrolled(home, *words[3:], "--output", "again.jsonl")
    assert again.returncode == 0, again.stderr
    assert measured(results.read(home / "again.jsonl")) == measured([row])


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[-1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition, seconds=90.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def worker_pids(home: Path) -> set[int]:
    """The workers seen so far; they outlive this test only if the runner is wrong."""
    pids = home / "pids.txt"
    return {int(line) for line in pids.read_text().split()} if pids.exists() else set()


def row_count(home: Path) -> int:
    path = home / "rows.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def kill_after_a_row(home: Path, delay: float) -> None:
    """Start the run, wait for its first new row, then kill the parent and watch the workers go."""
    before = row_count(home)
    process = start(home, *RUN, "--set", "pause=0.03")
    wait_until(lambda: row_count(home) > before or process.poll() is not None)
    time.sleep(delay)
    process.kill()
    process.communicate()
    wait_until(lambda: not any(map(alive, worker_pids(home))))


@pytest.mark.skipif(not Path("/proc").exists(), reason="needs /proc to see the workers")
def test_kills_at_random_moments_cost_and_double_no_row(home):
    """SIGKILL the parent four times, tear the file's end too, go on: all rows, each once."""
    moments = random.Random(0)
    for i in range(4):
        kill_after_a_row(home, moments.random() * 0.2)
        if i % 2:
            path = home / "rows.jsonl"
            os.truncate(path, path.stat().st_size - moments.randrange(1, 200))
    final = unrolled(home, *RUN, "--set", "pause=0.03")
    assert final.returncode == 0, final.stderr
    assert "done before and skipped" in final.stdout
    continued = measured(read(home))

    (home / "rows.jsonl").unlink()
    unrolled(home, *RUN, "--set", "pause=0.03")
    assert continued == measured(read(home))
    assert len(continued) == 12


@pytest.mark.skipif(not Path("/proc").exists(), reason="needs /proc to see the workers")
def test_workers_end_with_their_parent_in_the_midst_of_a_unit(home):
    """Else they would go on for hours, unseen, beside the run that continues."""
    process = start(home, *RUN, "--set", "pause=300")
    wait_until(lambda: len(worker_pids(home)) == 2)
    process.kill()
    process.communicate()
    wait_until(lambda: not any(map(alive, worker_pids(home))))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_run_at_once_and_keeps_the_rows(home, number):
    process = start(home, *RUN, "--set", "pause=0.1", start_new_session=True)
    wait_until(lambda: (home / "rows.jsonl").exists() and read(home))
    os.killpg(process.pid, number)  # as a terminal does: parent and workers
    out, err = process.communicate(timeout=90)
    assert process.returncode == 128 + number
    assert f"stopped by {number.name}: " in out
    assert "of 12 rows are in rows.jsonl; the same command goes on" in out
    assert "Traceback" not in err
    assert "leaked" not in err
    assert not any(map(alive, worker_pids(home)))
    assert 0 < len(measured(read(home))) < 12
    assert unrolled(home, *RUN, "--set", "pause=0.1").returncode == 0
    assert len(measured(read(home))) == 12


@pytest.mark.parametrize(
    ("trouble", "message"),
    [("error", "RuntimeError: the weights are gone"), ("death", "ended with exit code 7")],
)
def test_a_unit_that_fails_is_named_and_the_others_go_on(home, trouble, message):
    only_one = (*RUN[:-1], "1")  # so that a worker which died must be replaced
    done = unrolled(home, *only_one, "--seeds", "0-1", "--set", f"trouble={trouble}")
    assert done.returncode == 1
    assert "FAILED variant=flt num_loops=6 seed=0\n" in done.stderr
    (summary,) = [line for line in done.stderr.splitlines() if line.startswith("failed: ")]
    assert "variant=flt num_loops=6 seed=0: " in summary
    assert message in summary
    assert "try it alone: python -m unrolled run toy:EXPERIMENT --preset laptop" in done.stderr
    assert "7 rows added" in done.stdout
    assert ("laptop", "flt", 6, 0) not in measured(read(home))
    assert len(read(home)) == 7


def test_two_runs_side_by_side_write_each_unit_once(home):
    both = [start(home, *RUN, "--set", "pause=0.05") for _ in range(2)]
    for process in both:
        process.communicate(timeout=240)
        assert process.returncode == 0
    assert len(measured(read(home))) == 12


def test_again_and_prune_remove_what_they_say(home):
    unrolled(home, *RUN, "--seeds", "0")
    unrolled(home, *RUN, "--seeds", "0", "--set", "steps=2", "--cases", "num_loops=6")
    assert len(read(home)) == 6
    pruned = unrolled(home, *RUN, "--seeds", "0", "--prune")
    assert "removed 2 rows of other settings" in pruned.stdout
    assert len(measured(read(home))) == 4
    again = unrolled(home, *RUN, "--seeds", "0", "--again", "--cases", "variant=flt")
    assert "removed 2 finished rows" in again.stdout
    assert "2 rows added" in again.stdout
    assert len(measured(read(home))) == 4


def test_under_accelerate_launch_the_main_process_alone_writes(home, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    outputs = []
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        outputs.append(unrolled(home, "run", "toy:EXPERIMENT", "--preset", "colab",
                                "--seeds", "0", "--output", f"rows{rank}.jsonl"))  # fmt: skip
    assert [o.returncode for o in outputs] == [0, 0]
    assert len(results.read(home / "rows0.jsonl")) == 4
    assert not (home / "rows1.jsonl").exists()
    assert (outputs[1].stdout, outputs[1].stderr) == ("", "")


# --- where rows go ----------------------------------------------------------------------------


def test_only_evidence_goes_to_the_books_results(home):
    class Toy:
        name = "looped.instability"

    book = results.folder() / "looped_instability.jsonl"
    trial = results.checkout() / "_build" / "trials" / "looped_instability.jsonl"

    def where(preset, overrides=None, reference="looped.instability"):
        return command_line.default_output(Toy(), reference, preset, overrides or {})

    assert [where(p) for p in ("laptop", "colab", "paper")] == [book] * 3
    assert [where(p) for p in ("smoke", "live")] == [trial] * 2
    assert where("laptop", {"steps": "3"}) == trial
    assert where("laptop", reference="toy:EXPERIMENT") == trial


def test_without_a_checkout_rows_go_to_a_local_folder(monkeypatch):
    monkeypatch.setattr(results, "checkout", lambda: None)
    path = command_line.default_output(
        catalog.Experiment("demo.toy", "", {}, list, dict), "demo.toy", "laptop", {}
    )
    assert path == Path("unrolled_results") / "demo_toy.jsonl"


def test_smoke_and_live_never_write_into_the_book(home):
    target = results.folder() / "demo_toy.jsonl"
    done = unrolled(home, "run", "toy:EXPERIMENT", "--preset", "live", "--output", str(target))
    assert done.returncode == 2
    assert "never writes to the book's results" in done.stderr
    assert not target.exists()


# --- wrong input ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "looped.nothing"], "unknown experiment 'looped.nothing'; allowed: looped.inst"),
        (["run", "nowhere:EXPERIMENT"], "there is no module 'nowhere'"),
        (["run", "toy:cases"], "not an unrolled.experiment.Experiment"),
        (["run", "toy:EXPERIMENT", "--preset", "paper"], "'paper'; allowed: smoke, live, laptop"),
        (["run", "toy:EXPERIMENT", "--seeds", "4-"], "seeds '4-' must have the form 0-4"),
        (["run", "toy:EXPERIMENT", "--seeds", "1,1"], "must name each seed once"),
        (["run", "toy:EXPERIMENT", "--seeds", "3-1"], "at least one"),
        (["run", "toy:EXPERIMENT", "--set", "stepz=1"], "allowed: steps, pause, trouble"),
        (["run", "toy:EXPERIMENT", "--set", "steps"], "--set 'steps' must have the form KEY=VAL"),
        (["run", "toy:EXPERIMENT", "--cases", "num_loops=6,9"], "'9'; allowed: 6, 12"),
        (["run", "toy:EXPERIMENT", "--cases", "k=6"], "case key: 'k'; allowed: variant, num_loops"),
        (["info", "toy:EXPERIMENT", "--preset", "big"], "'big'; allowed: smoke"),
        (["bench", "nothing"], "unknown benchmark 'nothing'; allowed: looped, descent, horst"),
    ],
)
def test_wrong_input_is_one_line_that_names_what_is_allowed(
    home, monkeypatch, capsys, words, message
):
    monkeypatch.chdir(home)
    monkeypatch.setattr(sys, "path", [str(home), *sys.path])
    monkeypatch.setattr(sys, "argv", ["unrolled", *words, *_output(words)])
    sys.modules.pop("toy", None)
    with pytest.raises(SystemExit) as ended:
        command_line.main()
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1
    assert not (home / "rows.jsonl").exists()


def test_jobs_must_be_positive(home):
    done = unrolled(home, *RUN[:-1], "0")
    assert done.returncode == 2
    assert "--jobs" in done.stderr
    assert not (home / "rows.jsonl").exists()


def _output(words):
    return ["--output", "rows.jsonl"] if words[0] == "run" else []


def test_a_missing_import_inside_an_experiment_is_not_hidden(home, monkeypatch):
    (home / "needs.py").write_text("import nowhere_to_be_found")
    monkeypatch.syspath_prepend(home)
    with pytest.raises(ModuleNotFoundError, match="nowhere_to_be_found"):
        catalog.load_experiment("needs:EXPERIMENT")


# --- the other commands -----------------------------------------------------------------------


@pytest.fixture
def here(home, monkeypatch):
    """This process stands in the reader's folder, with the toy in place of the book's own."""
    monkeypatch.syspath_prepend(home)
    sys.modules.pop("toy", None)
    monkeypatch.setattr(catalog, "EXPERIMENTS", {"demo.toy": "toy"})
    monkeypatch.setattr(catalog, "BENCHMARKS", {"demo": "toy"})
    monkeypatch.setattr("unrolled.results.rows.folder", lambda: home)
    monkeypatch.setenv("COLUMNS", "200")
    yield home
    sys.modules.pop("toy", None)


def call(monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", ["unrolled", *words])
    with pytest.raises(SystemExit) as ended:
        command_line.main()
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_list_shows_presets_with_their_units(here, monkeypatch, capsys):
    out = call(monkeypatch, capsys, "list")
    assert "demo.toy" in out
    assert "A toy experiment." in out
    assert "live (4), laptop (12), colab (12)" in out


def test_info_shows_settings_and_scale(here, monkeypatch, capsys):
    out = call(monkeypatch, capsys, "info", "demo.toy", "--preset", "laptop", "--set", "steps=7")
    assert "4 cases x 3 seeds = 12 units" in out
    assert "127,101,312 (127.1 M)" in out
    assert ["steps", "7"] in [line.split() for line in out.splitlines()]


def test_compare_shows_paper_ours_and_verdict(here, monkeypatch, capsys):
    assert "not attempted" in call(monkeypatch, capsys, "compare")
    for seed in range(3):
        for variant, loss in (("original", 3.0), ("flt", 2.0)):
            row = {"experiment": "demo.toy", "preset": "laptop", "seed": seed, "num_loops": 12}
            row |= {"variant": variant, "loss": loss + 0.1 * seed, "config_hash": variant}
            results.append(here / "demo_toy.jsonl", row)
    out = call(monkeypatch, capsys, "compare")
    for text in ("FLT is better.", "38.44", "2.10 ± 0.25", "laptop, 3 seeds", "reproduced"):
        assert text in out


def test_bench_prints_ratios_and_keeps_the_newest(here, monkeypatch, capsys):
    for _ in range(2):
        out = call(monkeypatch, capsys, "bench", "demo", "--output", str(here / "bench.jsonl"))
        assert "FLT / LT" in out
        assert "1.05" in out
    (row,) = results.read(here / "bench.jsonl")
    assert row["command"] == "python -m unrolled bench demo --preset laptop"
    assert {"part": "demo", "experiment": "demo.bench", "ratio": 1.05}.items() <= row.items()


def test_the_catalogue_names_modules_that_exist():
    for module in [*catalog.EXPERIMENTS.values(), *catalog.BENCHMARKS.values()]:
        assert (results.checkout() / "src" / Path(*module.split("."))).with_suffix(".py").exists()


def test_help_names_the_commands_and_imports_no_torch():
    code = (
        "import sys; sys.argv = ['unrolled', '--help']\n"
        "from unrolled.__main__ import main\n"
        "try: main()\n"
        "finally: print(json.dumps([m for m in ('torch', 'pandas') if m in sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", "import json\n" + code], capture_output=True, text=True, check=True
    )
    for command in ("list", "info", "run", "compare", "bench"):
        assert f" {command} " in done.stdout
    assert json.loads(done.stdout.splitlines()[-1]) == []

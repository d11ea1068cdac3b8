"""Experiment: one path from settings to rows, whoever calls it."""

import subprocess
import sys
from dataclasses import dataclass, replace

import pytest
import torch

from unrolled import provenance, results
from unrolled.experiment import Experiment, select_cases
from unrolled.results import Claim, Verdict


@dataclass(frozen=True)
class Settings:
    steps: int = 4
    rate: float = 0.5
    data: str = "nothing"


def make(measure=None, **more):
    """A toy whose metrics say what was passed to it."""

    def default(settings, case, seed, report):
        report(settings.steps, settings.steps)
        noise = torch.randn(3, generator=torch.Generator().manual_seed(seed))
        return {"loss": settings.rate * case["num_loops"], "noise_curve": noise}

    def cases(settings):
        variants = ("original", "flt")
        return [{"variant": v, "num_loops": k} for v in variants for k in (6, 12)]

    return Experiment(
        "demo.toy",
        "A toy.",
        presets={"smoke": Settings(1), "live": Settings(), "laptop": Settings(8)},
        cases=cases,
        measure=measure or default,
        **more,
    )


def test_a_row_per_case_with_all_columns(capsys):
    rows = make().run("live", 3)
    assert [(r["variant"], r["num_loops"]) for r in rows] == [
        ("original", 6),
        ("original", 12),
        ("flt", 6),
        ("flt", 12),
    ]
    row = rows[1]
    expected = {
        "part": "demo",
        "experiment": "demo.toy",
        "preset": "live",
        "seed": 3,
        "loss": 6.0,
        "steps": 4,
        "device": "cpu",
        "torch": torch.__version__,
        "commit": provenance.commit(),
    }
    assert {key: row[key] for key in expected} == expected
    assert row["seconds"] >= 0
    assert results.plain_row(row) == row
    line = "demo.toy: preset live, seed 3, 4 cases, data nothing, steps 4, on cpu\n"
    assert capsys.readouterr().out == line


def test_rows_are_functions_of_settings_case_and_seed():
    def measured(rows):
        return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]

    toy = make()
    assert measured(toy.run("live", 0)) == measured(toy.run("live", 0))
    one, other = toy.run("live", 0), toy.run("live", 1)
    assert [r["config_hash"] for r in one] == [r["config_hash"] for r in other]
    assert one[0]["noise_curve"] != other[0]["noise_curve"]
    assert len({row["config_hash"] for row in one}) == 4


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"variant": "flt"}, [("flt", 6), ("flt", 12)]),
        ({"num_loops": 12, "variant": ["flt", "original"]}, [("original", 12), ("flt", 12)]),
        ({"num_loops": "12", "variant": "flt"}, [("flt", 12)]),
        (
            [{"variant": "flt", "num_loops": 6}, {"variant": "original"}],
            [("original", 6), ("original", 12), ("flt", 6)],
        ),
        (None, [("original", 6), ("original", 12), ("flt", 6), ("flt", 12)]),
    ],
)
def test_cases_select(wanted, expected):
    toy = make()
    chosen = select_cases(toy.cases(Settings()), wanted)
    assert [(case["variant"], case["num_loops"]) for case in chosen] == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"preset": "paper"}, "preset of demo.toy: 'paper'; allowed: smoke, live, laptop"),
        ({"overrides": {"step": 1}}, "unknown setting 'step' of Settings; allowed: steps, rate"),
        ({"overrides": {"steps": "x"}}, "steps = 'x' is not a whole number"),
        ({"cases": {"loops": 6}}, "unknown case key: 'loops'; allowed: variant, num_loops"),
        ({"cases": {"num_loops": 9}}, "num_loops: '9'; allowed: 6, 12"),
        ({"cases": []}, "select nothing"),
        ({"seed": -1}, "seed -1 must be a whole number >= 0"),
        ({"seed": 1.0}, "seed 1.0 must be a whole number"),
        ({"seed": True}, "seed True must be a whole number"),
    ],
)
def test_wrong_input_is_refused_before_any_work(arguments, message):
    def never(*_):
        raise AssertionError("work was done")

    with pytest.raises(ValueError, match=message):
        make(never).run(**arguments)


def test_overrides_change_settings_hash_row_and_command():
    toy = make()
    (plain,) = toy.run("live", cases={"variant": "flt", "num_loops": 6})
    (row,) = toy.run("live", cases={"variant": "flt", "num_loops": 6}, overrides={"rate": "2"})
    assert (row["loss"], row["rate"]) == (12.0, 2.0)
    assert row["config_hash"] != plain["config_hash"]
    assert row["command"] == plain["command"] + " --set rate=2.0"
    assert plain["command"] == (
        "python -m unrolled run demo.toy --preset live --seeds 0 "
        "--cases variant=flt --cases num_loops=6"
    )


def test_steps_and_device_may_be_measured():
    toy = make(lambda *_: {"steps": 2, "device": "a GPU", "loss": 0.0})
    row = toy.run("live")[0]
    assert (row["steps"], row["device"]) == (2, "a GPU")


@pytest.mark.parametrize("key", ["seed", "num_loops", "config_hash", "preset"])
def test_a_metric_may_not_hide_another_column(key):
    with pytest.raises(ValueError, match=key):
        make(lambda *_: {key: 1}).run("live")


def test_a_measurement_that_diverges_gives_a_row():
    row = make(lambda *_: {"loss": float("nan"), "loss_curve": [1.0, float("inf")]}).run()[0]
    assert (row["loss"], row["loss_curve"]) == (None, [1.0, None])


def test_a_results_file_is_written_once_and_read_back(tmp_path):
    calls = []

    def measure(settings, case, seed, report):
        calls.append((case["variant"], case["num_loops"]))
        return {"loss": 1.0}

    toy, path = make(measure), tmp_path / "mine.jsonl"
    first = toy.run("live", cases={"variant": "flt"}, results_file=path)
    assert results.read(path) == first
    second = toy.run("live", results_file=path)
    assert calls == [("flt", 6), ("flt", 12), ("original", 6), ("original", 12)]
    assert [row for row in second if row["variant"] == "flt"] == first
    assert len(results.read(path)) == 4
    toy.run("live", seed=1, results_file=path)
    toy.run("live", overrides={"rate": 1.0}, results_file=path)
    assert len(calls) == 12


@pytest.mark.parametrize(("preset", "wanted"), [("live", 1), ("laptop", 1), ("colab", 2)])
def test_deterministic_presets_use_one_thread_and_give_the_others_back(preset, wanted):
    seen = []
    toy = make(lambda *_: {"threads": seen.append(torch.get_num_threads()) or 0})
    toy = replace(toy, presets={preset: Settings()})
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        toy.run(preset)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert set(seen) == {wanted}


def test_the_number_of_seeds_is_the_presets_or_the_experiments_own():
    toy = make(seeds={"laptop": 3})
    assert toy.default_seeds("laptop") == [0, 1, 2]
    assert toy.default_seeds("live") == [0]
    assert make().default_seeds("laptop") == [0, 1, 2, 3, 4]
    assert [u.seed for u in toy.units("laptop", [0, 1])] == [0] * 4 + [1] * 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "toy"}, "form part.experiment"),
        ({"presets": {"tiny": Settings()}}, "unknown preset: 'tiny'; allowed: smoke"),
        ({"seeds": {"paper": 1}}, "unknown preset: 'paper'; allowed: smoke, live, laptop"),
    ],
)
def test_an_experiment_is_checked_when_it_is_declared(change, message):
    with pytest.raises(ValueError, match=message):
        replace(make(), **change)


def test_settings_of_presets_must_be_dataclasses():
    with pytest.raises(TypeError, match="dataclass"):
        replace(make(), presets={"live": {"steps": 1}})


def test_claims_travel_with_the_experiment():
    claim = Claim("demo", "It runs.", None, None, lambda rows: Verdict("trend", f"{len(rows)}"))
    toy = make(claims=(claim,))
    rows = [{**row, "preset": "laptop"} for row in toy.run("live")]
    (line,) = results.comparison_table(toy.name, toy.claims, rows=rows)
    assert (line["verdict"], line["evidence"]) == ("trend", "4")


def test_commit_names_head_and_unsaved_changes(tmp_path, monkeypatch):
    def git(*words):
        options = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *options, *words], cwd=tmp_path, check=True, capture_output=True)

    def commit():
        provenance.commit.cache_clear()
        return provenance.commit()

    monkeypatch.setattr("unrolled.provenance.checkout", lambda: tmp_path)
    try:
        assert commit() is None
        (tmp_path / "src").mkdir()
        (tmp_path / "src" / "code.py").write_text("1")
        git("init", "-q")
        git("add", ".")
        git("commit", "-qm", "first")
        clean = commit()
        assert len(clean) >= 7
        assert int(clean, 16) >= 0
        (tmp_path / "notes.txt").write_text("not code")
        assert commit() == clean
        (tmp_path / "src" / "code.py").write_text("2")
        assert commit() == f"{clean}-dirty"
        monkeypatch.setattr("unrolled.provenance.checkout", lambda: None)
        assert commit() is None
    finally:
        provenance.commit.cache_clear()


def test_the_shared_rooms_import_no_torch():
    """The command line, quotations and rows must not wait for torch."""
    code = (
        "import sys, unrolled.__main__, unrolled.experiment, unrolled.results, unrolled.runner, "
        "unrolled.figures; print([m for m in ('torch', 'pandas', 'scipy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

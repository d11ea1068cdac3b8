"""Hardware: which preset and precision suit it, and that a change of precision is said and kept."""

import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Literal

import pytest

from unrolled import engine, hardware
from unrolled.__main__ import main
from unrolled.catalog import EXPERIMENTS, load_experiment
from unrolled.experiment import Experiment
from unrolled.hardware import CPU, Hardware, found, recommended, suited
from unrolled.settings import replace

T4 = Hardware("Tesla T4", (7, 5), 15.8e9)
L4 = Hardware("NVIDIA L4", (8, 9), 23.8e9)
A100 = Hardware("NVIDIA A100-SXM4-40GB", (8, 0), 42.4e9)
H100 = Hardware("NVIDIA H100 80GB HBM3", (9, 0), 85e9)
P100 = Hardware("Tesla P100-PCIE-16GB", (6, 0), 17e9)
SMALL = Hardware("GeForce GTX 1650", (7, 5), 4.1e9)


@dataclass(frozen=True)
class Inner:
    mixed_precision: Literal["no", "bf16"] = "bf16"


@dataclass(frozen=True)
class Settings:
    mixed_precision: Literal["no", "bf16", "fp16"] = "bf16"
    inner: Inner = field(default_factory=Inner)
    steps: int = 3


def measure(settings, case, seed, report):
    return {"used": f"{settings.mixed_precision} {settings.inner.mixed_precision}"}


TOY = Experiment(
    "demo.precise",
    "Say which precision is used.",
    presets={"live": Settings("no", Inner("no")), "colab": Settings()},
    cases=lambda settings: [{"shift": 1}],
    measure=measure,
)


@pytest.mark.parametrize(
    ("device", "preset", "precision"),
    [
        (CPU, "live", "no"),
        (T4, "colab", "fp16"),
        (L4, "colab", "bf16"),
        (A100, "colab", "bf16"),
        (H100, "colab", "bf16"),
        (P100, "colab", "no"),
        (SMALL, "live", "no"),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_each_device_gets_its_preset_and_precision(device, preset, precision):
    advice = recommended(device)
    assert (advice.preset, advice.mixed_precision) == (preset, precision)
    assert f'PRESET = "{preset}"' in str(advice)
    assert (f"mixed_precision {precision}:" in str(advice)) == (preset == "colab")


@pytest.mark.parametrize("there", [False, True])
def test_torch_is_asked_for_the_device(monkeypatch, there):
    import torch

    facts = SimpleNamespace(name="Tesla T4", major=7, minor=5, total_memory=15.8e9)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: facts)
    assert found() == (T4 if there else CPU)


@pytest.mark.parametrize("device", [CPU, L4, A100, H100])
def test_a_preset_in_bfloat16_stays_as_it_is_where_that_is_native(device):
    assert suited(Settings(), device=device) == {}


def test_a_device_without_bfloat16_takes_the_next_best_that_the_experiment_has():
    assert suited(Settings(), device=T4) == {
        "mixed_precision": "fp16",
        "inner.mixed_precision": "no",
    }
    assert set(suited(Settings(), device=P100).values()) == {"no"}
    assert suited(Settings(), ["inner.mixed_precision"], T4) == {"mixed_precision": "fp16"}
    assert suited(Settings("no", Inner("no")), device=T4) == {}


def test_settings_in_float32_ask_for_no_device(monkeypatch):
    monkeypatch.setattr(hardware, "found", lambda: pytest.fail("asked"))
    assert suited(Settings("no", Inner("no"))) == {}


def test_a_run_says_what_it_changed_and_its_row_carries_it(monkeypatch, capsys):
    (usual,) = TOY.run("colab")
    monkeypatch.setattr(hardware, "found", lambda: T4)
    (row,) = TOY.run("colab")
    said = capsys.readouterr().out
    assert "Tesla T4 (15.8 GB) has no bfloat16: colab runs with --set mixed_precision=fp16" in said
    assert row["used"] == "fp16 no"
    assert (row["mixed_precision"], row["inner_mixed_precision"]) == ("fp16", "no")
    assert "--set mixed_precision=fp16 --set inner.mixed_precision=no" in row["command"]
    assert row["config_hash"] != usual["config_hash"]
    (by_hand,) = TOY.run("colab", overrides=suited(Settings(), device=T4))
    assert by_hand["config_hash"] == row["config_hash"]
    (chosen,) = TOY.run("colab", overrides={"mixed_precision": "bf16"})
    assert chosen["used"] == "bf16 no"


def test_the_command_line_does_the_same_and_keeps_the_rows_apart(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(hardware, "found", lambda: T4)
    monkeypatch.setattr(Experiment, "units", lambda self, *args, **more: called.append(args) or [])
    monkeypatch.setattr("unrolled.__main__._run_missing", lambda *args: 0)
    monkeypatch.setattr("unrolled.__main__._clear", lambda *args, **more: None)
    called = []
    words = ["run", "looped.pretraining", "--preset", "colab", "--output", str(tmp_path / "rows")]
    monkeypatch.setattr(sys, "argv", ["unrolled", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    overrides = called[0][3]
    assert overrides == {"mixed_precision": "fp16"}
    assert "colab runs with --set mixed_precision=fp16" in capsys.readouterr().out


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_no_preset_of_the_book_is_left_in_bfloat16_on_a_t4(name):
    experiment = load_experiment(name)
    for settings in experiment.presets.values():
        changed = replace(settings, suited(settings, device=T4))
        assert suited(changed, device=T4) == {}


def test_the_engine_refuses_to_emulate_and_names_what_is_allowed():
    with pytest.raises(ValueError, match=r"emulated on Tesla T4 \(15.8 GB\): use 'fp16', or 'no'"):
        engine._refuse_emulation("bf16", T4)
    for precision, device in (("fp16", T4), ("no", T4), ("bf16", L4), ("bf16", CPU)):
        engine._refuse_emulation(precision, device)

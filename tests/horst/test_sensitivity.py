"""The experiment `horst.sensitivity`: every pair once, and nothing else changed."""

from dataclasses import asdict

from unrolled.horst import sensitivity
from unrolled.horst.sensitivity import EXPERIMENT, SensitivitySettings, at_point


def test_every_pair_is_a_run_that_changes_two_values():
    settings = SensitivitySettings()
    units = sensitivity.cases(settings)
    assert len({tuple(unit.items()) for unit in units}) == len(units) == 24
    base = asdict(settings.language)
    for unit in units:
        changed = asdict(at_point(settings, unit))
        assert {name for name in base if base[name] != changed[name]} <= {
            "horst",
            "recovered_sparsities",
        }
        assert changed["horst"] == base["horst"] | unit


def test_the_values_reach_the_training():
    rows = EXPERIMENT.run("smoke", 0, progress=False)
    assert [row["alpha"] for row in rows] == [0.0, 20.0]
    assert rows[0]["loss_curve"] != rows[1]["loss_curve"]
    assert rows[0]["recovered_loss_by_sparsity"] == []

"""The experiment `horst.search`: equal budgets, points inside their ranges, and the rule."""

import math
from collections import Counter

import pytest

from unrolled.horst import search
from unrolled.horst.compositions import COMPOSITIONS, OPTIMIZERS
from unrolled.horst.search import EXPERIMENT, SPACES, best_point, points

pytest.importorskip("torchvision")


def test_every_optimizer_gets_as_many_trials():
    for preset in EXPERIMENT.presets.values():
        units = search.cases(preset)
        counts = Counter((unit["data"], unit["optimizer"]) for unit in units)
        assert {counts[data, n] for data in ("images", "text") for n in preset.optimizers} == {
            preset.trials
        }
        assert {counts["images", name] for name in preset.compositions} == {
            preset.composition_trials
        }
        assert len({tuple(unit.items()) for unit in units}) == len(units)


def test_points_fill_their_ranges_on_a_logarithmic_scale():
    assert SPACES.keys() == {*OPTIMIZERS, *COMPOSITIONS}
    for name, space in SPACES.items():
        found = points(name, 16)
        assert found == points(name, 16)
        for key, (low, high) in space.items():
            values = [point[key] for point in found]
            assert all(low * 0.99 <= value <= high * 1.01 for value in values)
            middle = math.sqrt(low * high)
            assert sum(value < middle for value in values) == 8  # what makes it a Sobol sequence
        assert all(point[key] == 0 for point in found for key in {"alpha", "beta"} - space.keys())


def test_the_point_reaches_the_training():
    rows = EXPERIMENT.run("smoke", 0, progress=False)
    for data in ("images", "text"):
        for name in ("adamw", "horst"):
            costs = [r["cost"] for r in rows if (r["data"], r["optimizer"]) == (data, name)]
            assert len(costs) == 2
            chosen = best_point(rows, data, name)
            assert any(
                row["cost"] == min(costs) and all(row[key] == chosen[key] for key in chosen)
                for row in rows
            )
    text = [row["cost"] for row in rows if row["data"] == "text"]
    assert len(set(text)) == len(text)


def test_a_diverged_trial_is_never_the_best():
    point = {"weight_decay": 0.1, "alpha": 1.0, "beta": 0.0, "data": "text", "optimizer": "horst"}
    good = {**point, "rate": 0.1, "cost": 2.0, "diverged": False}
    bad = {**point, "rate": 0.2, "cost": None, "diverged": True}
    assert best_point([bad, good], "text", "horst")["rate"] == 0.1
    with pytest.raises(ValueError, match="no rows"):
        best_point([bad], "text", "horst")

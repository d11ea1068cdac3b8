r"""Search: rate, decay, alpha and beta of every optimizer, with as many trials for each.

Each unit trains one optimizer at one point of its space and looks at the validation split alone: on
images a ViT under AC/DC at one sparsity, as `unrolled.horst.vision` does, on text a GPT that is
pruned in one shot, as `unrolled.horst.language` does, both with fewer steps. The seeds are apart
from those of the evidence.

The points are a Sobol sequence on the logarithms of the ranges of `SPACES`, the same number for
each optimizer, however many dimensions its space has. The rule takes the point with the lowest
`cost`: on images the error of the sparse network, on text the mean loss over the sparsities.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from scipy.stats import qmc

from unrolled.experiment import Case, Experiment, Report
from unrolled.horst import language, vision
from unrolled.horst.compositions import COMPOSITIONS, OPTIMIZERS, Tuned
from unrolled.horst.language import LanguageSettings
from unrolled.horst.vision import VisionSettings
from unrolled.results import Row, select
from unrolled.training import NonFiniteError

__all__ = ["EXPERIMENT", "SPACES", "SearchSettings", "best_point", "points"]

SEEDS_APART = 1_000  # added to the seed of a row: no unit of the evidence has such a seed
RATES, DECAYS = (3e-4, 1e-2), (1e-3, 0.3)

SPACES: dict[str, dict[str, tuple[float, float]]] = {
    "adamw": {"rate": RATES, "weight_decay": DECAYS},
    "ham": {"rate": RATES, "weight_decay": DECAYS, "alpha": (10.0, 1e3), "beta": (1e-3, 1.0)},
    "horst": {"rate": RATES, "weight_decay": DECAYS, "alpha": (2.0, 200.0), "beta": (1e-2, 3.0)},
    "mirror": {"rate": (3e-2, 3.0), "weight_decay": DECAYS, "alpha": (1e-2, 1.0)},
    "sgd": {"rate": (1e-2, 1.0), "weight_decay": DECAYS, "alpha": (2.0, 200.0)},
    "sign": {"rate": (1e-4, 3e-3), "weight_decay": DECAYS, "alpha": (2.0, 200.0)},
    "mirror_first": {"rate": RATES, "weight_decay": DECAYS, "alpha": (2.0, 200.0)},
}
"""The range of every value that is searched, by optimizer; what is not named is 0."""


@dataclass(frozen=True)
class SearchSettings:
    """How many trials there are, and of what.

    Parameters
    ----------
    vision, language
        Settings of the experiments; their steps are those of the search.
    optimizers
        Searched on images and on text.
    compositions
        Searched on images.
    trials
        Points for each optimizer, a power of two; one point is a run.
    composition_trials
        Points for each composition.
    sparsity
        At which the ViT is trained.
    """

    vision: VisionSettings = field(
        default_factory=lambda: VisionSettings(steps=400, test_images=2_000)
    )
    language: LanguageSettings = field(default_factory=lambda: LanguageSettings(steps=300))
    optimizers: tuple[str, ...] = OPTIMIZERS
    compositions: tuple[str, ...] = COMPOSITIONS
    trials: int = 16
    composition_trials: int = 8
    sparsity: float = 0.9


def points(name: str, trials: int) -> list[dict[str, float]]:
    """Return the points of an optimizer: a scrambled Sobol sequence with a fixed seed.

    Examples
    --------
    >>> len(points("horst", 8)), sorted(points("adamw", 1)[0])
    (8, ['alpha', 'beta', 'rate', 'weight_decay'])
    """
    space = SPACES[name]
    drawn = qmc.Sobol(len(space), scramble=True, rng=0).random(trials)
    found = []
    for place in drawn:
        # on a logarithmic scale, to three digits
        values = {
            key: float(f"{low * (high / low) ** share:.3g}")
            for (key, (low, high)), share in zip(space.items(), place, strict=True)
        }
        found.append({"rate": 0.0, "weight_decay": 0.0, "alpha": 0.0, "beta": 0.0} | values)
    return found


def cases(settings: SearchSettings) -> list[Case]:
    """Return every optimizer at each of its points."""
    runs = [(data, name, settings.trials) for data in ("images", "text")
            for name in settings.optimizers]  # fmt: skip
    runs += [("images", name, settings.composition_trials) for name in settings.compositions]
    return [
        {"data": data, "optimizer": name, **point}
        for data, name, trials in runs
        for point in points(name, trials)
    ]


def measure(settings: SearchSettings, case: Case, seed: int, report: Report) -> dict[str, Any]:
    """Train one optimizer at one point; return what the rule looks at, on validation data."""
    judge = on_images if case["data"] == "images" else on_text
    values = {key: case[key] for key in ("rate", "weight_decay", "alpha", "beta")}
    try:
        return {"diverged": False, **judge(settings, case, values, seed + SEEDS_APART, report)}
    except NonFiniteError as error:
        return {"diverged": True, "diverged_at_step": error.step}


def on_images(
    settings: SearchSettings, case: Case, values: dict[str, float], seed: int, report: Report
) -> dict[str, Any]:
    """Return the error of the sparse network on the validation images."""
    chosen = replace(settings.vision, **{case["optimizer"]: Tuned(**values)})
    trial = {"model": "vit", "optimizer": case["optimizer"], "sparsity": settings.sparsity}
    model, run, dense = vision.trained(chosen, trial, seed, report)
    images = vision.images_of(chosen.data, chosen.test_images)["val"]
    found = vision.accuracy(model, *images)
    ratio = {"dense_norm_ratio": dense["dense_norm_ratio"]}
    return {"cost": 1 - found, "val_accuracy": found, **ratio, "steps": run.steps}


def on_text(
    settings: SearchSettings, case: Case, values: dict[str, float], seed: int, report: Report
) -> dict[str, Any]:
    """Return the mean loss over the sparsities on the validation text."""
    chosen = replace(settings.language, **{case["optimizer"]: Tuned(**values)})
    model, run = language.trained(chosen, {"optimizer": case["optimizer"]}, seed, report)
    found = language.pruning_columns(model, chosen)
    losses = found["loss_by_sparsity"]
    if not all(math.isfinite(loss) for loss in losses):
        return {"cost": None, "steps": run.steps}
    kept = {key: found[key] for key in ("sparsities", "loss_by_sparsity")}
    return {"cost": statistics.fmean(losses), **kept, "steps": run.steps}


def best_point(rows: Iterable[Row], data: str, optimizer: str) -> dict[str, float]:
    """Return the values that the rule chooses; a run that diverged is never chosen.

    Parameters
    ----------
    rows
        Rows of this experiment, of one seed.
    data
        "images" or "text".
    optimizer
        A name that was searched.

    Raises
    ------
    ValueError
        If no run of that kind ended well.

    Examples
    --------
    >>> row = {"data": "text", "optimizer": "adamw", "weight_decay": 0.1, "alpha": 0.0, "beta": 0.0}
    >>> rows = [row | {"rate": rate, "cost": cost} for rate, cost in ((1e-3, 2.0), (3e-3, 1.9))]
    >>> best_point(rows, "text", "adamw")["rate"]
    0.003
    """
    found = select(rows, data=data, optimizer=optimizer)
    found = [row for row in found if not row.get("diverged") and row["cost"] is not None]
    if not found:
        raise ValueError(f"no rows with data={data!r} and optimizer={optimizer!r}")
    best = min(found, key=lambda row: row["cost"])
    return {key: best[key] for key in ("rate", "weight_decay", "alpha", "beta")}


EXPERIMENT = Experiment(
    name="horst.search",
    summary="Search rate, decay, alpha and beta: as many trials for each optimizer.",
    presets={
        # All code paths in seconds, on toy data; no claim.
        "smoke": SearchSettings(
            vision=vision.EXPERIMENT.presets["smoke"],
            language=language.EXPERIMENT.presets["smoke"],
            optimizers=("adamw", "horst"),
            compositions=("sign",),
            trials=2,
            composition_trials=1,
        ),
        # The committed grid: 128 runs of about 40 seconds of one core.
        "laptop": SearchSettings(),
    },
    cases=cases,
    measure=measure,
    seeds={"laptop": 1},
)

r"""Robust search: rate, decay, alpha and beta on the text classifier, as many trials for each.

A pretrained encoder wants smaller steps than a network that starts from noise, and its weights have
another size, so the values of `unrolled.horst.search` do not carry over. Each trial is a run of
`unrolled.together.robust_sparse` without constraint (ERM) at one sparsity, at a point of
`unrolled.horst.search.points` with its rate divided by ten, and with fewer steps than the evidence.

The seeds are apart from those of the evidence. The rule takes the point with the lowest validation
loss of the sparse classifier *without* noise: what is to be compared has no say in what is chosen.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from unrolled.descent import text
from unrolled.experiment import Case, Experiment, Report
from unrolled.horst.compositions import Tuned
from unrolled.horst.search import SEEDS_APART, points
from unrolled.together import robust_sparse
from unrolled.together.robust_sparse import RobustSparseSettings
from unrolled.together.sparse_search import VALUES, best_values
from unrolled.training import NonFiniteError

__all__ = ["EXPERIMENT", "RobustSearchSettings", "best_values"]


@dataclass(frozen=True)
class RobustSearchSettings:
    """How many trials there are, and of what.

    Parameters
    ----------
    classifier
        Settings of the experiment whose values are searched; its steps are those of the search.
    optimizers
        Names of `unrolled.horst.compositions.OPTIMIZERS`.
    trials
        Points for each optimizer, a power of two; one point is a run.
    sparsity
        At which the classifier is trained.
    rate_factor
        What the rates of `unrolled.horst.search.SPACES` are multiplied with.
    """

    classifier: RobustSparseSettings = field(
        default_factory=lambda: RobustSparseSettings(
            text=replace(RobustSparseSettings().text, steps=48, validation_texts=200),
            # where the search began; each trial puts its point in the place of one of them
            adamw=Tuned(2e-4, 0.0),
            horst=Tuned(2e-4, 0.0, 20.0, 0.0),
        )
    )
    optimizers: tuple[str, ...] = ("adamw", "horst")
    trials: int = 8
    sparsity: float = 0.5
    rate_factor: float = 0.1


def cases(settings: RobustSearchSettings) -> list[Case]:
    """Return every optimizer at each of its points."""
    found = {name: points(name, settings.trials) for name in settings.optimizers}
    return [
        {"optimizer": name, **point, "rate": float(f"{settings.rate_factor * point['rate']:.3g}")}
        for trial in zip(*found.values(), strict=True)
        for name, point in zip(found, trial, strict=True)
    ]


def measure(
    settings: RobustSearchSettings, case: Case, seed: int, report: Report
) -> dict[str, Any]:
    """Train at one point; return what the rule looks at, on validation texts."""
    tuned = Tuned(**{name: case[name] for name in VALUES})
    chosen = replace(settings.classifier, **{case["optimizer"]: tuned})
    trial = {"method": "erm", "optimizer": case["optimizer"], "sparsity": settings.sparsity}
    try:
        model, run, dense = robust_sparse.trained(chosen, trial, seed + SEEDS_APART, report)
    except NonFiniteError as error:
        return {"diverged": True, "diverged_at_step": error.step}
    batch, how = text.batches_of(chosen.text)["validation"], robust_sparse.reading(trial)
    found = text.layer_columns(model, batch, how, chosen.text, "val")
    kept = {name: found[name] for name in ("val_loss", "val_accuracy")}
    return {"diverged": False, "cost": found["val_loss"], **kept, **dense, "steps": run.steps}


EXPERIMENT = Experiment(
    name="together.robust_search",
    summary="Search the optimizers' values on the text classifier: as many trials for each.",
    presets={
        # All code paths in seconds; no claim.
        "smoke": RobustSearchSettings(classifier=robust_sparse.SMOKE, trials=1),
        # The committed grid: 16 runs of about 25 seconds of one core.
        "laptop": RobustSearchSettings(),
    },
    cases=cases,
    measure=measure,
    seeds={"laptop": 1},
)

r"""Search: the optimizer, rate and width at which to compare the variants, chosen beforehand.

Each unit trains one variant at the largest number of loops with one optimizer, rate and width, for
as long as `unrolled.looped.pretraining` does. Every variant gets the same grid. The seeds are apart
from those of the evidence: what was used to choose is not used to judge.

The rule, for each optimizer: take the rate at which the *median* variant has the lowest validation
loss, so that no single variant decides, neither one that collapses nor the one that is best.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from unrolled.experiment import Case, Experiment, Report
from unrolled.looped import instability, pretraining
from unrolled.looped.pretraining import PretrainingSettings
from unrolled.results import Row, select
from unrolled.training import NonFiniteError

__all__ = ["EXPERIMENT", "SearchSettings", "best_rate", "median_losses"]

SEEDS_APART = 1_000  # added to the seed of a row: no unit of the evidence has such a seed


@dataclass(frozen=True)
class SearchSettings(PretrainingSettings):
    """The grid of the search; the other fields are those of the pretraining.

    Parameters
    ----------
    adamw_learning_rates, muon_learning_rates
        Rates tried with each optimizer, for every variant.
    widths
        Hidden sizes tried; the first with every rate, the others with the rates of
        ``learning_rate`` and ``muon_learning_rate`` only.
    """

    num_loops: tuple[int, ...] = (12,)
    learning_rate: float = 3e-3
    adamw_learning_rates: tuple[float, ...] = (3e-4, 1e-3, 3e-3, 1e-2)
    muon_learning_rates: tuple[float, ...] = (0.01, 0.02, 0.05)
    widths: tuple[int, ...] = (64, 128)


def cases(settings: SearchSettings) -> list[Case]:
    """Return every variant at every point of the grid."""
    first, *others = settings.widths
    rates = {"adamw": settings.adamw_learning_rates, "muon": settings.muon_learning_rates}
    middle = {"adamw": settings.learning_rate, "muon": settings.muon_learning_rate}
    points = [(first, optimizer, rate) for optimizer in rates for rate in rates[optimizer]]
    points += [(width, optimizer, middle[optimizer]) for width in others for optimizer in rates]
    return [
        {
            "optimizer": optimizer,
            "learning_rate": rate,
            "hidden_size": width,
            "variant": variant,
            "num_loops": max(settings.num_loops),
        }
        for width, optimizer, rate in points
        for variant in settings.variants
    ]


def measure(settings: SearchSettings, case: Case, seed: int, report: Report) -> dict[str, Any]:
    """Train one variant at one point of the grid; return its outcome and its symptoms."""
    settings = replace(settings, optimizer=case["optimizer"], hidden_size=case["hidden_size"])
    try:
        model, run = instability.trained(settings, case, seed + SEEDS_APART, report)
    except NonFiniteError as error:
        return {"diverged": True, "collapsed": True, "diverged_at_step": error.step}
    text = instability.text_of(settings)
    return {
        **instability.symptoms(run, text),
        **instability.outcome(model, text, settings.batch_size),
    }


def median_losses(rows: Iterable[Row], optimizer: str, hidden_size: int) -> dict[float, float]:
    """Return the median of the variants' validation losses, by rate; a diverged run counts as inf.

    Examples
    --------
    >>> rows = [{"optimizer": "muon", "hidden_size": 64, "learning_rate": rate, "val_loss": loss}
    ...         for rate, loss in ((0.01, 2.0), (0.01, 2.2), (0.01, 3.0), (0.02, 2.1))]
    >>> median_losses(rows, "muon", 64)
    {0.01: 2.2, 0.02: 2.1}
    """
    found = select(rows, optimizer=optimizer, hidden_size=hidden_size)
    losses: dict[float, list[float]] = {}
    for row in found:
        losses.setdefault(row["learning_rate"], []).append(row.get("val_loss", float("inf")))
    return {rate: float(np.median(values)) for rate, values in sorted(losses.items())}


def best_rate(rows: Iterable[Row], optimizer: str, hidden_size: int = 64) -> float:
    """Return the rate that the rule chooses.

    Raises
    ------
    ValueError
        If no row has the optimizer and the width.

    Examples
    --------
    >>> rows = [{"optimizer": "muon", "hidden_size": 64, "learning_rate": rate, "val_loss": loss}
    ...         for rate, loss in ((0.01, 2.2), (0.02, 2.1), (0.05, 2.3))]
    >>> best_rate(rows, "muon")
    0.02
    """
    losses = median_losses(rows, optimizer, hidden_size)
    if not losses:
        raise ValueError(f"no rows with optimizer={optimizer!r} and hidden_size={hidden_size}")
    return min(losses, key=losses.get)


EXPERIMENT = Experiment(
    name="looped.search",
    summary="Search optimizer, rate and width, the same grid for every looped variant.",
    presets={
        # All code paths in seconds; no claim.
        "smoke": SearchSettings(
            variants=("original", "flt"),
            num_loops=(2,),
            adamw_learning_rates=(1e-3,),
            muon_learning_rates=(0.02,),
            widths=(16, 32),
            steps=12,
            batch_size=2,
            length=32,
            num_heads=1,
            validation_windows=4,
        ),
        # The committed grid: at most a minute and a half a run on one core.
        "laptop": SearchSettings(),
    },
    cases=cases,
    measure=measure,
    describe=pretraining.describe,
    seeds={"laptop": 1},
)

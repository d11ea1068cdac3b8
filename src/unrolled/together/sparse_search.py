r"""Sparse search: rate, decay, alpha and beta on looped blocks, as many trials for each optimizer.

The values that `unrolled.horst.search` finds on a GPT do not carry over. The blocks of the looped
models normalise queries and keys, so the loss does not change with the size of their matrices, and
nothing holds a multiplicative step back: with the alpha of the GPT (100) the largest weights pass a
thousand in a few hundred steps. And a first search with the ranges of the GPT chose rates at their
upper end. So `MOVED` moves the ranges: all rates up by one factor, and HORST's alpha down by the
same, so that the product of both, which decides how far a large weight moves in a step, keeps its
range.

Each trial is a run of `unrolled.together.sparse_loops` at K = 1, where the looped model and the
plain one are the same and neither is favoured, at one sparsity and with fewer steps than the
evidence. The seeds are apart from those of the evidence. The rule takes the point with the lowest
validation loss of the sparse model.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from unrolled.experiment import Case, Experiment, Report
from unrolled.horst.compositions import OPTIMIZERS, Tuned
from unrolled.horst.search import SEEDS_APART, points
from unrolled.results import ResultError, Row, select
from unrolled.together import sparse_loops
from unrolled.together.sparse_loops import SparseLoopSettings
from unrolled.training import NonFiniteError

__all__ = ["EXPERIMENT", "MOVED", "SparseSearchSettings", "best_values", "moved_points"]

VALUES = ("rate", "weight_decay", "alpha", "beta")

MOVED = {
    "adamw": {"rate": 4.0},
    "ham": {"rate": 4.0},
    "horst": {"rate": 4.0, "alpha": 0.25},
}
"""By which factor each range of `unrolled.horst.search.SPACES` is moved."""


@dataclass(frozen=True)
class SparseSearchSettings:
    """How many trials there are, and of what.

    Parameters
    ----------
    loops
        Settings of the experiment whose values are searched.
    optimizers
        Names of `unrolled.horst.compositions.OPTIMIZERS`.
    trials
        Points for each optimizer, a power of two; one point is a run.
    sparsity
        At which the plain model is trained.
    """

    loops: SparseLoopSettings = field(
        default_factory=lambda: SparseLoopSettings(
            steps=200,
            # where the search began; each trial puts its point in the place of one of them
            adamw=Tuned(3e-3, 0.1),
            ham=Tuned(3e-3, 0.1, 200.0, 1e-3),
            horst=Tuned(3e-3, 0.0, 20.0, 0.2),
        )
    )
    optimizers: tuple[str, ...] = OPTIMIZERS
    trials: int = 16
    sparsity: float = 0.9


def cases(settings: SparseSearchSettings) -> list[Case]:
    """Return every optimizer at each of its points."""
    found = {name: moved_points(name, settings.trials) for name in settings.optimizers}
    return [
        {"optimizer": name, **found[name][trial]}
        for trial in range(settings.trials)
        for name in settings.optimizers
    ]


def moved_points(name: str, trials: int) -> list[dict[str, float]]:
    """Return the points of `unrolled.horst.search.points` in the moved ranges, to three digits.

    Examples
    --------
    >>> points("horst", 1)[0]["rate"], moved_points("horst", 1)[0]["rate"]
    (0.00126, 0.00504)
    """
    factors = MOVED[name]
    return [
        {key: float(f"{factors.get(key, 1.0) * value:.3g}") for key, value in point.items()}
        for point in points(name, trials)
    ]


def measure(
    settings: SparseSearchSettings, case: Case, seed: int, report: Report
) -> dict[str, Any]:
    """Train at one point; return what the rule looks at, on validation text."""
    tuned = Tuned(**{name: case[name] for name in VALUES})
    loops = replace(settings.loops, **{case["optimizer"]: tuned})
    trial = {"variant": "plain", "num_loops": 1, "sparsity": settings.sparsity}
    trial["optimizer"] = case["optimizer"]
    try:
        model, run, dense = sparse_loops.trained(loops, trial, seed + SEEDS_APART, report)
    except NonFiniteError as error:
        return {"diverged": True, "diverged_at_step": error.step}
    kept = ("dense_val_loss", "dense_norm_ratio", "dense_largest")
    return {
        "diverged": False,
        "cost": sparse_loops.loss_of(model, loops),
        **{name: dense[name] for name in kept},
        "steps": run.steps,
    }


def best_values(rows: Iterable[Row], optimizer: str) -> Tuned:
    """Return the values that the rule chooses; a run that diverged is never chosen.

    Parameters
    ----------
    rows
        Rows of this experiment, of one preset and seed.
    optimizer
        A name that was searched.

    Raises
    ------
    ResultError
        If no run with it ended well.

    Examples
    --------
    >>> row = {"optimizer": "adamw", "weight_decay": 0.1, "alpha": 0.0, "beta": 0.0}
    >>> rows = [row | {"rate": rate, "cost": cost} for rate, cost in ((1e-3, 2.0), (3e-3, 1.9))]
    >>> best_values(rows, "adamw").rate
    0.003
    """
    found = [row for row in select(rows, optimizer=optimizer) if row.get("cost") is not None]
    if not found:
        raise ResultError(f"no run with optimizer={optimizer!r} ended well")
    best = min(found, key=lambda row: row["cost"])
    return Tuned(**{name: best[name] for name in VALUES})


EXPERIMENT = Experiment(
    name="together.sparse_search",
    summary="Search the optimizers' values on looped blocks: as many trials for each.",
    presets={
        # All code paths in seconds; no claim.
        "smoke": SparseSearchSettings(
            loops=sparse_loops.EXPERIMENT.presets["smoke"], optimizers=("adamw", "horst"), trials=1
        ),
        # The committed grid: 48 runs of about 3 seconds of one core.
        "laptop": SparseSearchSettings(),
    },
    cases=cases,
    measure=measure,
    seeds={"laptop": 1},
)

r"""Search: rates, shares and dual steps for the experiments of this part, on validation data.

Each unit trains one method at one point of its grid, as long as `unrolled.descent.text` or
`unrolled.descent.video` does, and looks at the validation split alone. Every method gets the same
number of trials: without constraints over the learning rate, with constraints over
:math:`\alpha` and the dual step, at the rate that the experiment gives to training without them.
The seeds are apart from those of the evidence: what was used to choose is not used to judge.

The rule: without constraints, the lowest validation loss; with constraints, the fewest layers at
which the validation loss rises, since that is what they are for, and among these the lowest loss.
Both are means over the seeds. On text one seed did not separate the rates, so ERM and deep
supervision were given a second one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from unrolled.descent import text, video
from unrolled.descent.constraints import FORMS
from unrolled.descent.text import TextSettings
from unrolled.descent.video import VideoSettings
from unrolled.experiment import Case, Experiment, Report
from unrolled.results import Row, select
from unrolled.training import NonFiniteError

__all__ = ["EXPERIMENT", "SearchSettings", "best_trial"]

POINT = ("learning_rate", "alpha", "dual_step")
SEEDS_APART = 1_000  # added to the seed of a row: no unit of the evidence has such a seed


@dataclass(frozen=True)
class SearchSettings:
    """The grids; ``text`` and ``video`` are the settings of the experiments.

    Parameters
    ----------
    text, video
        Settings of the two experiments; what is searched is replaced in them.
    text_methods, video_methods
        Methods that are searched.
    networks
        Networks of the video that are searched.
    text_rates, video_rates
        Learning rates, for methods without constraints.
    text_alphas, video_alphas, text_dual_steps, video_dual_steps
        Shares and dual steps, every pair, for those with constraints.
    """

    text: TextSettings = field(default_factory=TextSettings)
    video: VideoSettings = field(default_factory=VideoSettings)
    text_methods: tuple[str, ...] = ("erm", "deep", "exact")
    video_methods: tuple[str, ...] = ("erm", "deep", "exact", "proxy")
    networks: tuple[str, ...] = ("ut_untied", "dust")
    text_rates: tuple[float, ...] = (5e-5, 1e-4, 2e-4, 3e-4)
    video_rates: tuple[float, ...] = (1e-3, 3e-3, 1.5e-2, 3e-2)
    text_alphas: tuple[float, ...] = (0.05, 0.1)
    video_alphas: tuple[float, ...] = (0.05, 0.25)
    text_dual_steps: tuple[float, ...] = (0.1, 0.5)
    video_dual_steps: tuple[float, ...] = (0.1, 0.5)


def cases(settings: SearchSettings) -> list[Case]:
    """Return every method at every point of its grid; 0 stands where there is no constraint."""
    s = settings
    on_text = (s.text_rates, s.text_alphas, s.text_dual_steps)
    on_video = (s.video_rates, s.video_alphas, s.video_dual_steps)
    learners = [
        ("text", "encoder", method, (*on_text, s.text.learning_rate)) for method in s.text_methods
    ]
    learners += [
        ("video", network, method, (*on_video, video.rate_of(s.video, network, method)))
        for network in s.networks
        for method in s.video_methods
    ]
    return [
        {"data": data, "network": network, "method": method, **point}
        for data, network, method, grid in learners
        for point in points(method, *grid)
    ]


def points(
    method: str,
    rates: tuple[float, ...],
    alphas: tuple[float, ...],
    dual_steps: tuple[float, ...],
    rate: float,
) -> list[dict[str, float]]:
    """Return the grid of one method."""
    if method in FORMS:
        pairs = [(rate, alpha, step) for alpha in alphas for step in dual_steps]
    else:
        pairs = [(tried, 0.0, 0.0) for tried in rates]
    return [{"learning_rate": r, "alpha": a, "dual_step": step} for r, a, step in pairs]


def measure(settings: SearchSettings, case: Case, seed: int, report: Report) -> dict[str, Any]:
    """Train one method at one point of its grid; return loss and ascents on validation data."""
    judge = on_text if case["data"] == "text" else on_video
    try:
        return {"diverged": False, **judge(settings, case, seed + SEEDS_APART, report)}
    except NonFiniteError as error:
        return {"diverged": True, "diverged_at_step": error.step}


def on_text(settings: SearchSettings, case: Case, seed: int, report: Report) -> dict[str, Any]:
    """Return what a method is worth on the validation snippets, with the mean readout."""
    rate = case["learning_rate"]
    chosen = replace(settings.text, learning_rate=rate, deep_learning_rate=rate)
    if case["method"] in FORMS:
        chosen = replace(chosen, alpha=case["alpha"], dual_step=case["dual_step"])
    trial = {"method": case["method"], "readout": "mean", "training_noise": 0.0}
    model, run = text.trained(chosen, trial, seed, report)
    batch = text.batches_of(chosen)["validation"]
    return {**text.layer_columns(model, batch, trial, chosen, "val"), "steps": run.steps}


def on_video(settings: SearchSettings, case: Case, seed: int, report: Report) -> dict[str, Any]:
    """Return what a method is worth on the validation frames, at the level of training."""
    rates = ("rate_ut", "rate_dust", "deep_rate_ut", "deep_rate_dust")
    chosen = replace(settings.video, **dict.fromkeys(rates, case["learning_rate"]))
    if case["method"] in FORMS:
        alpha, step = case["alpha"], case["dual_step"]
        chosen = replace(chosen, alpha_ut=alpha, alpha_dust=alpha)
        chosen = replace(chosen, dual_step=step, exact_dual_step=step)
    model, run = video.trained(chosen, case, seed, report)
    batch = video.noisy_patches(chosen, "validation", chosen.gamma_train)
    found = video.level_test(model, *batch)
    return {
        "val_loss": found.rmse[-1].item() ** 2,
        "val_ascents": found.ascents,
        "val_rmse_by_layer": found.rmse.tolist(),
        "steps": run.steps,
    }


def best_trial(rows: Iterable[Row], network: str, method: str) -> dict[str, float]:
    """Return the point that the rule chooses, with its mean loss and ascents over the seeds.

    A point at which a run diverged is never chosen.

    Parameters
    ----------
    rows
        Rows of this experiment.
    network
        "encoder" for text, or a network of the video.
    method
        A method that was searched.

    Returns
    -------
    dict
        ``learning_rate``, ``alpha``, ``dual_step``, the means ``val_loss`` and ``val_ascents``, and
        ``seeds``, how many they are over.

    Raises
    ------
    ValueError
        If at no point all runs ended well.

    Examples
    --------
    >>> trial = {"network": "dust", "learning_rate": 0.1, "dual_step": 0.5}
    >>> rows = [trial | {"method": method, "alpha": a, "val_loss": f, "val_ascents": n}
    ...         for method in ("erm", "exact") for a, f, n in ((0.1, 1.0, 3), (0.2, 1.2, 0))]
    >>> [best_trial(rows, "dust", method)["alpha"] for method in ("erm", "exact")]
    [0.1, 0.2]
    """
    trials: dict[tuple, list[Row]] = {}
    for row in select(rows, network=network, method=method):
        trials.setdefault(tuple(row[name] for name in POINT), []).append(row)
    found = [
        dict(zip(POINT, point, strict=True)) | _means(runs)
        for point, runs in trials.items()
        if not any(row.get("diverged") for row in runs)
    ]
    if not found:
        raise ValueError(f"no rows with network={network!r} and method={method!r}")
    return min(
        found, key=lambda trial: (method in FORMS and trial["val_ascents"], trial["val_loss"])
    )


def _means(runs: list[Row]) -> dict[str, float]:
    means = {name: fmean(row[name] for row in runs) for name in ("val_loss", "val_ascents")}
    return means | {"seeds": len(runs)}


EXPERIMENT = Experiment(
    name="descent.search",
    summary="Search rates, shares and dual steps: as many trials for each method.",
    presets={
        # All code paths in seconds, on toy data; no claim.
        "smoke": SearchSettings(
            text=replace(text.SMOKE, steps=4),
            video=replace(video.EXPERIMENT.presets["smoke"], steps=2),
            text_methods=("erm", "exact"),
            video_methods=("deep", "proxy"),
            networks=("dust",),
            text_rates=(1e-3, 1e-2),
            video_rates=(1e-3, 1e-2),
            text_alphas=(0.05,),
            video_alphas=(0.05,),
        ),
        # The committed grid: 12 runs of two minutes of one core, and 32 of half a minute.
        "laptop": SearchSettings(),
    },
    cases=cases,
    measure=measure,
    seeds={"laptop": 1},
)

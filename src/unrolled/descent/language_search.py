r"""Search: rates and dual steps for `unrolled.descent.language`, on validation texts.

Each unit trains one method at one point of its grid, as long as the experiment does, and looks at
the validation texts alone, without noise. Every method gets the same number of trials: without
constraints over the learning rate, with constraints over the rate and the dual step, at one
:math:`\alpha`. Each method then has the point with its lowest loss. Rule and seeds are those of
`unrolled.descent.search`, and its `unrolled.descent.search.best_trial` reads the rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from unrolled.descent import language
from unrolled.descent.constraints import FORMS
from unrolled.descent.language import CONSTRAINED, LanguageSettings
from unrolled.descent.search import SEEDS_APART, points
from unrolled.descent.text import descent_columns
from unrolled.experiment import Case, Experiment, Report
from unrolled.training import NonFiniteError

__all__ = ["EXPERIMENT", "LanguageSearchSettings"]


@dataclass(frozen=True)
class LanguageSearchSettings:
    """The grids; ``language`` are the settings of the experiment.

    Parameters
    ----------
    language
        What is searched is replaced in them.
    methods
        Methods that are searched.
    rates, constrained_rates
        Learning rates, for methods without and with constraints.
    alphas, dual_steps
        Shares and dual steps, every pair at every rate, for those with constraints.
    """

    language: LanguageSettings = field(default_factory=LanguageSettings)
    methods: tuple[str, ...] = ("erm", "deep", *CONSTRAINED)
    rates: tuple[float, ...] = (3e-4, 1e-3, 3e-3, 1e-2)
    constrained_rates: tuple[float, ...] = (1e-3, 3e-3)
    alphas: tuple[float, ...] = (0.05,)
    dual_steps: tuple[float, ...] = (0.005, 0.02)


def cases(settings: LanguageSearchSettings) -> list[Case]:
    """Return every method at every point of its grid; 0 stands where there is no constraint."""
    grid = (settings.rates, settings.alphas, settings.dual_steps)
    return [
        {"network": settings.language.model, "method": method, **point}
        for method in settings.methods
        for rate in (settings.constrained_rates if method in FORMS else (0.0,))
        for point in points(method, *grid, rate)
    ]


def measure(
    settings: LanguageSearchSettings, case: Case, seed: int, report: Report
) -> dict[str, Any]:
    """Train one method at one point of its grid; return loss and ascents on validation texts."""
    chosen = at_point(settings.language, case)
    try:
        model, run = language.trained(chosen, case, seed + SEEDS_APART, report)
    except NonFiniteError as error:
        return {"diverged": True, "diverged_at_step": error.step}
    texts = language.load_texts(chosen)["validation"]
    inner, last = language.read_texts(model, texts, chosen, chosen.layers)
    found = {**descent_columns(inner, chosen.alpha), "loss": last.mean().item()}
    columns = {f"val_{name}": value for name, value in found.items()}
    return {"diverged": False, **columns, "steps": run.steps}


def at_point(settings: LanguageSettings, case: Case) -> LanguageSettings:
    """Return the settings with the rate of a point, and with its share and dual step if any.

    Examples
    --------
    >>> case = {"method": "exact", "learning_rate": 0.1, "alpha": 0.2, "dual_step": 0.3}
    >>> found = at_point(LanguageSettings(), case)
    >>> found.learning_rate, found.alpha, found.exact_dual_step
    (0.1, 0.2, 0.3)
    """
    rates = ("learning_rate", "deep_learning_rate", "constrained_learning_rate")
    chosen = replace(settings, **dict.fromkeys(rates, case["learning_rate"]))
    if case["method"] not in FORMS:
        return chosen
    steps = ("dual_step", "exact_dual_step", "cumulative_dual_step")
    return replace(chosen, alpha=case["alpha"], **dict.fromkeys(steps, case["dual_step"]))


EXPERIMENT = Experiment(
    name="descent.language_search",
    summary="Search rates and dual steps for the language model: as many trials for each method.",
    presets={
        # All code paths in seconds, on the toy model; no claim.
        "smoke": LanguageSearchSettings(
            language=replace(language.EXPERIMENT.presets["smoke"], steps=2),
            methods=("erm", "deep", "exact"),
            rates=(1e-3, 1e-2),
            constrained_rates=(1e-2,),
        ),
        # 20 runs of two minutes of one core.
        "laptop": LanguageSearchSettings(),
    },
    cases=cases,
    measure=measure,
    seeds={"laptop": 1},
)

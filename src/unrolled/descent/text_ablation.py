r"""Text, one change at a time: what the constrained run of `unrolled.descent.text` depends on.

Each unit is a run of that experiment with the exact constraint (:eq:`eq-descent-slack`), mean
readout and no noise at training, and with one thing changed: the share :math:`\alpha`, the dual
step, the cost of the resilient form, the form, the readout with a head that has a norm, or the
dropout (for ERM too). The run without a change, and the forms, readouts and noise at training that
the experiment itself compares, are rows of `unrolled.descent.text`, seed by seed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from unrolled.descent import text
from unrolled.descent.text import TextSettings
from unrolled.experiment import Case, Experiment, Report

__all__ = ["EXPERIMENT", "AblationSettings", "changed"]


@dataclass(frozen=True)
class AblationSettings:
    """What is changed, and the settings in which it is.

    Parameters
    ----------
    text
        Settings of the run that is changed.
    alphas, dual_steps, relaxation_costs, forms
        Values in place of those of the run.
    dropouts
        Values for the exact form and for ERM.
    heads
        Heads for the readout of the first token.
    """

    text: TextSettings = field(default_factory=TextSettings)
    alphas: tuple[float, ...] = (0.0, 0.02, 0.1)
    dual_steps: tuple[float, ...] = (0.02, 0.5)
    relaxation_costs: tuple[float, ...] = (2.0, 20.0)
    forms: tuple[str, ...] = ("anchored", "ratio")
    dropouts: tuple[float, ...] = (0.0, 0.3)
    heads: tuple[str, ...] = ("norm",)


def cases(settings: AblationSettings) -> list[Case]:
    """Return the changes: a name and a value each, with the method that is changed."""
    values = {
        "alpha": settings.alphas,
        "dual_step": settings.dual_steps,
        "relaxation_cost": settings.relaxation_costs,
        "dropout": settings.dropouts,
        "head": settings.heads,
    }
    changes = [("exact", name, value) for name in values for value in values[name]]
    changes += [("erm", "dropout", value) for value in settings.dropouts]
    changes += [(form, "form", form) for form in settings.forms]
    return [
        {"method": method, "change": name, "value": str(value)} for method, name, value in changes
    ]


def changed(settings: AblationSettings, case: Case) -> tuple[TextSettings, Case]:
    """Return the settings and the case of `unrolled.descent.text` that belong to a change.

    Examples
    --------
    >>> case = {"method": "exact", "change": "alpha", "value": "0.1"}
    >>> settings, run = changed(AblationSettings(), case)
    >>> settings.alpha, run
    (0.1, {'method': 'exact', 'readout': 'mean', 'training_noise': 0.0})
    """
    name, value = case["change"], case["value"]
    readout = "cls" if name == "head" else "mean"
    run = {"method": case["method"], "readout": readout, "training_noise": 0.0}
    if name == "form":
        return settings.text, run
    return replace(settings.text, **{name: value if name == "head" else float(value)}), run


def measure(settings: AblationSettings, case: Case, seed: int, report: Report) -> dict[str, Any]:
    """Train with one thing changed; return the columns of `unrolled.descent.text`."""
    chosen, run = changed(settings, case)
    return {"readout": run["readout"], **text.measure(chosen, run, seed, report)}


EXPERIMENT = Experiment(
    name="descent.text_ablation",
    summary="Change one thing at a time in the constrained run on reviews.",
    presets={
        # All code paths in seconds, on random tokens; no claim.
        "smoke": AblationSettings(
            text=replace(text.SMOKE, steps=3),
            alphas=(0.1,),
            dual_steps=(),
            relaxation_costs=(2.0,),
            forms=("ratio",),
            dropouts=(0.0,),
        ),
        # The committed evidence: 10 runs of 2.7 minutes of one core for each seed.
        "laptop": AblationSettings(
            text=text.EXPERIMENT.presets["laptop"],
            alphas=(0.0, 0.1),
            dual_steps=(0.02, 0.5),
            relaxation_costs=(2.0,),
            dropouts=(0.0,),
        ),
    },
    cases=cases,
    measure=measure,
    seeds={"laptop": 3},
)

r"""Sensitivity: what HORST's alpha and beta do to a language model, and where it diverges.

Each unit is a run of `unrolled.horst.language` with HORST at one :math:`\alpha` and one
:math:`\beta`, at the rate and the decay of that experiment, and without the recovery.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from unrolled.experiment import Case, Experiment, Report
from unrolled.horst import language
from unrolled.horst.language import LanguageSettings

__all__ = ["EXPERIMENT", "SensitivitySettings", "at_point"]


@dataclass(frozen=True)
class SensitivitySettings:
    """The grid, and the settings in which HORST's values are replaced.

    Parameters
    ----------
    language
        Settings of the run.
    alphas, betas
        Every pair is a run.
    """

    language: LanguageSettings = field(default_factory=LanguageSettings)
    alphas: tuple[float, ...] = (0.0, 5.0, 20.0, 50.0, 100.0, 200.0)
    betas: tuple[float, ...] = (0.0, 0.1, 0.5, 2.0)


def cases(settings: SensitivitySettings) -> list[Case]:
    """Return every pair of values."""
    return [{"alpha": a, "beta": b} for a in settings.alphas for b in settings.betas]


def at_point(settings: SensitivitySettings, case: Case) -> LanguageSettings:
    """Return the settings of the run of a pair.

    Examples
    --------
    >>> at_point(SensitivitySettings(), {"alpha": 7.0, "beta": 0.5}).horst.alpha
    7.0
    """
    tuned = replace(settings.language.horst, alpha=case["alpha"], beta=case["beta"])
    return replace(settings.language, horst=tuned, recovered_sparsities=())


def measure(settings: SensitivitySettings, case: Case, seed: int, report: Report) -> dict[str, Any]:
    """Train with a pair of values; return the columns of `unrolled.horst.language`."""
    return language.measure(at_point(settings, case), {"optimizer": "horst"}, seed, report)


EXPERIMENT = Experiment(
    name="horst.sensitivity",
    summary="Vary HORST's alpha and beta on a language model.",
    presets={
        # All code paths in seconds; no claim.
        "smoke": SensitivitySettings(
            language=language.EXPERIMENT.presets["smoke"], alphas=(0.0, 20.0), betas=(0.5,)
        ),
        # The committed evidence: 24 runs of a minute of one core for each seed.
        "laptop": SensitivitySettings(),
    },
    cases=cases,
    measure=measure,
    seeds={"laptop": 2},
)

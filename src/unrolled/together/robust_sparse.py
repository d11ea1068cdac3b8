r"""Robust and sparse: whether descent across layers and HORST undo what the other gains.

Each unit fine-tunes all-MiniLM-L6-v2 on film reviews, as `unrolled.descent.text` does, by one
method ("erm" or the Lagrangian "exact", :eq:`eq-descent-slack`) and one optimizer ("adamw" or
"horst", :eq:`eq-horst-update`), loses a share of the matrices of its encoder on the way, and is
tested under Gaussian noise on the token embeddings. So a row is one line of a heat map: the
accuracy at every noise level :math:`\gamma` (:eq:`eq-descent-noise`) at one sparsity.

The encoder is dense for the first two fifths of the steps. Then each of its matrices loses the
weights of smallest magnitude, in one shot, and the masks hold to the end. Alternating compression
would be closer to the paper on HORST; but its phases of a twentieth would be a few steps long
here, shorter than Adam's memory, and choosing masks before the training would leave the optimizer
no say in which weights are small. ``warm_up``, ``alternate_until``, ``final_sparse`` and ``phase``
are those of `unrolled.horst.sparsity.AcdcSchedule`, so that both can be had.

Token embeddings are frozen; head, norms, biases and positions are neither mirrored nor pruned. All
runs of a seed see the same batches and are tested with the same noise. The values of AdamW and of
HORST are those that `unrolled.together.robust_search` chose, with as many trials for each; share
and dual step of the constraint are those of `unrolled.descent.search`.

:eq:`eq-together-robust-interaction` is the interaction (`unrolled.together.interaction`) of the two
ingredients in the mean accuracy over :math:`\gamma`, at one sparsity.

A run of the preset laptop takes about 45 seconds of one core; a seed has 12 runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

from unrolled.descent import text
from unrolled.descent.constraints import FORMS
from unrolled.descent.primal_dual import dual_curves
from unrolled.descent.text import TextSettings
from unrolled.experiment import Case, Experiment, Report, no_report
from unrolled.horst.compositions import OPTIMIZERS, Tuned, build_optimizer
from unrolled.horst.sparsity import Acdc, AcdcSchedule, norm_ratio, prunable_weights
from unrolled.optimization import require
from unrolled.results import Claim, judge_difference, judge_share, thin
from unrolled.settings import added
from unrolled.together.compression import Compression, count_weights
from unrolled.together.interaction import judge_interaction, margin
from unrolled.training import FitResult, NonFiniteError, after_step, fit
from unrolled.transformer import require_choice

__all__ = [
    "EXPERIMENT",
    "SIDES",
    "RobustSparseSettings",
    "averaged_accuracy",
    "noise_columns",
    "sides_at",
    "trained",
]

NOT_PRUNED = ("classifier",)
NOISE = "gaussian"

SIDES = (("exact", "horst"), ("erm", "horst"), ("exact", "adamw"), ("erm", "adamw"))
"""Method and optimizer of the square: both ingredients, HORST, the constraint, neither."""


@dataclass(frozen=True)
class RobustSparseSettings:
    """The scale of a run: what is fine-tuned and how, compression, and what is compared.

    Parameters
    ----------
    text
        Data, training, constraint and noise levels, as in `unrolled.descent.text`; all test texts
        are read with noise, and its methods and learning rates are not used.
    methods
        "erm", "deep", or a form of ``unrolled.descent.constraints.FORMS``.
    optimizers
        Names of `unrolled.horst.compositions.OPTIMIZERS`.
    sparsities
        Shares of each matrix of the encoder that are pruned.
    warm_up, alternate_until, final_sparse, phase
        When masks hold; see `unrolled.horst.sparsity.AcdcSchedule`.
    scope
        Of the masks; see `unrolled.horst.sparsity.magnitude_masks`.
    rest_rate
        Peak rate of Adam for what is no matrix of the encoder.
    head_rate
        That for the head, which starts from nothing; None is `rest_rate`.
    adamw, ham, horst
        Values of each; `unrolled.together.robust_search` chose those of AdamW and HORST. HAM is in
        no preset and was not searched here.
    """

    text: TextSettings = field(
        default_factory=lambda: TextSettings(
            steps=80,
            batch_size=12,
            length=24,
            validation_texts=100,
            test_texts=200,
            shift_texts=1,
        )
    )
    methods: tuple[str, ...] = ("erm", "exact")
    optimizers: tuple[str, ...] = ("adamw", "horst")
    sparsities: tuple[float, ...] = (0.0, 0.5, 0.8)
    warm_up: float = 0.4
    alternate_until: float = 0.4
    final_sparse: float = 0.4
    phase: float = 0.1
    scope: Literal["global", "layerwise"] = "layerwise"
    rest_rate: float = 2e-4
    adamw: Tuned = field(default_factory=lambda: Tuned(1.26e-4, 0.244))
    ham: Tuned = field(default_factory=lambda: Tuned(2e-4, 0.0, 200.0, 0.0))
    horst: Tuned = field(default_factory=lambda: Tuned(5.82e-5, 2.26e-2, 7.35, 1.42e-2))
    head_rate: float | None = added(None)

    @property
    def schedule(self) -> AcdcSchedule:
        """When the masks hold."""
        shares = (self.warm_up, self.alternate_until, self.final_sparse, self.phase)
        return AcdcSchedule(self.text.steps, *shares)


def cases(settings: RobustSparseSettings) -> list[Case]:
    """Return every method with every optimizer at every sparsity."""
    for method in settings.methods:
        require_choice(method, "methods", ("erm", "deep", *FORMS))
    for name in settings.optimizers:
        require_choice(name, "optimizers", OPTIMIZERS)
    return [
        {"method": method, "optimizer": name, "sparsity": sparsity}
        for method in settings.methods
        for name in settings.optimizers
        for sparsity in settings.sparsities
    ]


def measure(
    settings: RobustSparseSettings, case: Case, seed: int, report: Report
) -> dict[str, Any]:
    """Fine-tune by one method and one optimizer at one sparsity; return one line of the map."""
    try:
        model, run, dense = trained(settings, case, seed, report)
    except NonFiniteError as error:
        return {"diverged": True, "diverged_at_step": error.step}
    batches, how = text.batches_of(settings.text), reading(case)
    layers = text.layer_columns(model, batches["test"], how, settings.text, "test")
    clean = {name: layers[f"test_{name}"] for name in ("accuracy", "roc_auc")}
    return {
        "diverged": False,
        **layers,
        **noise_columns(model, batches["test"], how, settings.text, clean),
        **dense,
        **count_weights(model, NOT_PRUNED),
        **training_columns(run, constrained=case["method"] in FORMS),
        "steps": run.steps,
    }


def reading(case: Case) -> Case:
    """Return the case of `unrolled.descent.text` that a case belongs to: mean readout, no noise."""
    return {"method": case["method"], "readout": "mean", "training_noise": 0.0}


# --- training -----------------------------------------------------------------------------------


def trained(
    settings: RobustSparseSettings, case: Case, seed: int, report: Report = no_report
) -> tuple[nn.Module, FitResult, dict[str, Any]]:
    """Return the sparse classifier of a case, its curves, and what it was like while dense.

    Raises
    ------
    NonFiniteError
        If the loss or a gradient stops being finite.
    """
    torch.manual_seed(seed)  # the head, then dropout; the batches have the seed themselves
    model = text.build_classifier(settings.text.task, settings.text.head, settings.text.dropout)
    optimizer, compression = compressed(settings, case, model)
    losses_of = partial(text.layer_losses, readout=reading(case)["readout"])
    layers = model.config.num_hidden_layers
    hooks = text.training_hooks(settings.text, case["method"], layers, losses_of)
    train, places = text.batches_of(settings.text)["train"], text.batches_at(settings.text, seed)
    torch.manual_seed(seed)
    run = fit(
        model,
        lambda step: {name: values[places(step)] for name, values in train.items()},
        training=text.training_config(settings.text),
        optimizer=[optimizer],
        on_step=after_step(report, hooks.pop("on_step", None), compression.after_step),
        stateful={**hooks.pop("stateful", {}), "compression": compression},
        **hooks,
    )
    return model.eval(), run, compression.dense


def compressed(
    settings: RobustSparseSettings, case: Case, model: nn.Module
) -> tuple[torch.optim.Optimizer, Compression]:
    """Return the optimizer of a case, and the compression that it works under."""
    name = case["optimizer"]
    tuned = getattr(settings, name)
    optimizer = build_optimizer(name, tuned, model, settings.rest_rate, NOT_PRUNED)
    if settings.head_rate is not None:
        give_own_rate(optimizer, model.classifier, settings.head_rate)
    acdc = Acdc(
        model,
        optimizer,
        settings.schedule,
        case["sparsity"],
        scope=settings.scope,
        exclude=NOT_PRUNED,
    )
    return optimizer, Compression(acdc, lambda: dense_columns(model, settings))


def give_own_rate(optimizer: torch.optim.Optimizer, module: nn.Module, rate: float) -> None:
    """Move the parameters of a module from the last group of an optimizer to one of their own."""
    require(rate > 0, "rate", rate, "positive")
    *_, rest = optimizer.param_groups
    own = {id(param) for param in module.parameters()}
    params = rest["params"]
    rest["params"] = [param for param in params if id(param) not in own]
    moved = [param for param in params if id(param) in own]
    optimizer.add_param_group({**rest, "params": moved, "lr": rate})


# --- columns of a row -----------------------------------------------------------------------------


def noise_columns(
    model: nn.Module,
    batch: dict[str, Tensor],
    how: Case,
    settings: TextSettings,
    clean: dict[str, float],
) -> dict[str, Any]:
    """Return the accuracy at each noise level: one line of the heat map.

    ``area`` is the mean over the levels, ``high`` that over the levels of at least 1, and
    ``area_margin`` the mean of the margins (`unrolled.together.interaction.margin`). The draws are
    those of `unrolled.descent.text`: the same for all models.

    Parameters
    ----------
    model, batch, how, settings
        What is read, and how.
    clean : dict
        Its ``accuracy`` and ``roc_auc`` without noise, which are not computed again.
    """
    found = [
        clean if gamma == 0 else text.noisy_scores(model, batch, how, settings, NOISE, gamma)
        for gamma in settings.gammas
    ]
    accuracies, texts = [scores["accuracy"] for scores in found], len(batch["labels"])
    pairs = zip(settings.gammas, accuracies, strict=True)
    return {
        "gammas": list(settings.gammas),
        "accuracy_by_gamma": accuracies,
        "roc_auc_by_gamma": [scores["roc_auc"] for scores in found],
        "area": float(np.mean(accuracies)),
        "area_margin": float(np.mean([margin(accuracy, texts) for accuracy in accuracies])),
        "high": float(np.mean([accuracy for gamma, accuracy in pairs if gamma >= 1])),
    }


def dense_columns(model: nn.Module, settings: RobustSparseSettings) -> dict[str, Any]:
    """Return what the classifier is like before it is made sparse for good."""
    batch = text.batches_of(settings.text)["validation"]
    training = model.training
    scores = text.scores(text.predictions(model, batch, "mean")[-1], batch["labels"])
    model.train(training)
    ratios = [norm_ratio(weight) for weight in prunable_weights(model, NOT_PRUNED).values()]
    return {
        "dense_val_accuracy": scores["accuracy"],
        "dense_norm_ratio": float(np.mean(ratios)),
    }


def training_columns(run: FitResult, *, constrained: bool) -> dict[str, Any]:
    """Return the curve of what was descended, and the multipliers if there are any."""
    found: dict[str, Any] = {
        "step_curve": thin(range(1, run.steps + 1)),
        "loss_curve": thin(run.losses),
    }
    if constrained:
        multipliers = dual_curves(run).multipliers  # (T, L)
        found["multiplier_by_layer"] = multipliers[-1].tolist()
        found["largest_multiplier_by_layer"] = multipliers.max(dim=0).values.tolist()
    return found


def describe(settings: RobustSparseSettings) -> dict[str, Any]:
    """Return the scale of the settings, counted without running anything."""
    s = settings.text
    return {
        "runs per seed": len(cases(settings)),
        "texts per run": s.steps * s.batch_size,
        "dense steps": round(settings.final_sparse * s.steps),
        "texts read with noise": (len(s.gammas) - 1) * s.noise_draws * s.test_texts,
        "weights that can be pruned (6 layers, 384 wide)": 6 * 12 * 384**2,
    }


# --- a case that can be computed ------------------------------------------------------------------


def averaged_accuracy(weights: Tensor, signal: float, spread: float, gamma: float) -> float:
    r"""Return the accuracy of a linear classifier whose features all say the same.

    .. math:: \Phi\!\left( \frac{\kappa\, \lVert w \rVert_1}
              {\sqrt{\sigma_h^2 + \gamma^2}\, \lVert w \rVert_2} \right)
              = \Phi\!\left( \frac{\kappa \sqrt d\, R(w)}{\sqrt{\sigma_h^2 + \gamma^2}} \right)

    :eq:`eq-together-averaging`, with the norm ratio R (:eq:`eq-horst-norm-ratio`): feature i of a
    text with the label y = ±1 is normal with mean :math:`\kappa y` times the sign of its weight.

    Parameters
    ----------
    weights : Tensor
        w, (d,), not all zero.
    signal, spread
        :math:`\kappa`, and the standard deviation :math:`\sigma_h` of a feature without noise.
    gamma
        Level of the noise on every feature. It and the spread are not both 0.

    Examples
    --------
    >>> flat, needle = torch.ones(100), torch.eye(100)[0]
    >>> [round(averaged_accuracy(w, 0.2, 1.0, gamma=1.0), 2) for w in (flat, needle)]
    [0.92, 0.56]
    """
    require(bool(weights.any()), "weights", "all zero", "not all zero")
    deviation = math.hypot(spread, gamma)
    require(deviation > 0, "spread, gamma", (spread, gamma), "not both 0")
    return float(stats.norm.cdf(signal * float(weights.abs().sum() / weights.norm()) / deviation))


# --- what is asked, and how the rows judge it -----------------------------------------------------


def _at(method: str, optimizer: str, sparsity: float) -> dict[str, Any]:
    return {"method": method, "optimizer": optimizer, "sparsity": sparsity}


def sides_at(sparsity: float) -> tuple[dict[str, Any], ...]:
    r"""Return the four conditions of the square at one sparsity, for `interaction`.

    .. math:: I_s = \bigl( \bar m^{\text{exact}}_{\text{HORST}}
              - \bar m^{\text{ERM}}_{\text{HORST}} \bigr)
              - \bigl( \bar m^{\text{exact}}_{\text{AdamW}}
              - \bar m^{\text{ERM}}_{\text{AdamW}} \bigr)

    :eq:`eq-together-robust-interaction`.

    Examples
    --------
    >>> sides_at(0.5)[3]
    {'method': 'erm', 'optimizer': 'adamw', 'sparsity': 0.5}
    """
    return tuple(_at(*side, sparsity) for side in SIDES)


def _query(metric: str, side: dict[str, Any]) -> str:
    shown = " ".join(f"{key}={value}" for key, value in side.items())
    return f"together_robust_sparse | mean_ci {metric} | preset=laptop {shown} | .3f"


def _higher(statement: str, side: dict[str, Any], reference: dict[str, Any]) -> Claim:
    judge = judge_difference("area", side, reference, expect="higher")
    return Claim("together", statement, None, _query("area", side), judge)


def _undone(statement: str, metric: str, sparsity: float) -> Claim:
    sides = sides_at(sparsity)
    judge = judge_interaction(metric, sides, expect="lower")
    return Claim("together", statement, None, _query(metric, sides[0]), judge)


def _claims() -> Iterator[Claim]:
    dense, *_, most = RobustSparseSettings().sparsities
    both, horst, _, neither = sides_at(most)
    where = f"{most:.0%} pruned"
    yield _higher("Dense: the constraint is more accurate over gamma (AdamW)", *sides_at(dense)[2:])
    yield _higher(f"{where}: HORST is more accurate over gamma (ERM)", horst, neither)
    yield _higher(f"{where}: both are more accurate over gamma than neither", both, neither)
    yield _undone("Dense: HORST undoes gain of the constraint over gamma", "area", dense)
    yield _undone(f"{where}: HORST undoes gain of the constraint over gamma", "area", most)
    yield _undone(f"{where}: the same at gamma >= 1", "high", most)
    yield _undone(f"{where}: the same over gamma, in margins", "area_margin", most)
    statement = f"{where}: the constraint still makes every layer descend (HORST)"
    judge = judge_share("test_monotone", both)
    yield Claim("together", statement, None, _query("test_ascents", both), judge)


SMOKE = RobustSparseSettings(
    text=replace(text.SMOKE, steps=10), sparsities=(0.0, 0.5), adamw=Tuned(1e-3), horst=Tuned(1e-3)
)

EXPERIMENT = Experiment(
    name="together.robust_sparse",
    summary="Fine-tune an encoder with and without constraints and HORST; prune it, add noise.",
    presets={
        # All code paths in seconds, on random tokens; no claim.
        "smoke": SMOKE,
        # What a notebook trains while it is read: the four corners, at one sparsity. So few steps
        # leave chance behind only if the head is faster than the encoder: of 1e-3, 3e-3, 1e-2 and
        # 3e-2 its rate has the least validation loss under ERM, mean of both optimizers, one other
        # seed. They leave the prices no time, so the dual step is ten times the searched one.
        "live": RobustSparseSettings(
            text=TextSettings(
                steps=20,
                batch_size=12,
                length=24,
                dropout=0.0,
                dual_step=1.0,
                gammas=(0.0, 1.0, 2.0),
                validation_texts=40,
                test_texts=80,
                shift_texts=1,
            ),
            sparsities=(0.5,),
            warm_up=0.5,
            alternate_until=0.5,
            final_sparse=0.5,
            adamw=Tuned(1e-4, 0.0),
            horst=Tuned(1e-4, 0.0, 20.0, 0.0),
            head_rate=3e-3,
        ),
        # The evidence: about 45 seconds a run on one core. The sparsities are such that pruning
        # hurts and does not kill.
        "laptop": RobustSparseSettings(),
        # One 16 GB GPU: three epochs.
        "colab": RobustSparseSettings(
            text=TextSettings(
                steps=900,
                batch_size=32,
                noise_draws=3,
                validation_texts=1_081,
                shift_texts=1,
                mixed_precision="bf16",
            ),
            sparsities=(0.0, 0.5, 0.7, 0.8, 0.9),
        ),
    },
    cases=cases,
    measure=measure,
    describe=describe,
    seeds={"colab": 3},
    claims=tuple(_claims()),
)

r"""Descending loops: each loop is a layer, and must lower the loss of the one before it.

Each unit trains one looped model with K loops by one method and reads it after 0 to 12 loops. The
constraints are those of the part on descent, with loops in the place of layers,

.. math:: f_k \le (1 - \alpha)\, f_{k-1}, \qquad k = 1, \dots, K,

``eq-together-descending-loops``, :math:`f_0` being the loss of the embedding, read by the same
head. The methods have the same steps, batches and initial weights, and compute as many loops (on
average):

- "last": the loss after the last loop, as in the paper on loops;
- "mean": the mean of the losses after all K loops;
- "random": the last loop of a number of loops that is uniform on 1, ..., 2 K - 1;
- "exact": the Lagrangian of the constraints above (:eq:`eq-descent-lagrangian`);
- "anchored": with :math:`\ln V` in place of :math:`f_0`, which cannot be made worse;
- "cumulative": :math:`f_k \le (1 - \alpha)^k \ln V`;
- "proxy": with a stop-gradient on :math:`f_{k-1}`, so that it is not the gradient of a Lagrangian;
- "resilient": the exact form with relaxations at a quadratic cost.

Every method has two trials: the methods without a constraint two learning rates, the others two
shares. The validation text picks, the test text reports: `picked`. The constrained methods, "mean"
and the readings of all loops cost K more readouts a step, which at this size is a seventh of it.

A run of the preset laptop takes about 25 seconds of one core; a seed has 32 runs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from torch import Tensor, nn

from unrolled.data.text import evaluation_windows, state_of_the_union
from unrolled.descent.constraints import FORMS, Constraint, constant_alphas, detect_sabotage
from unrolled.descent.primal_dual import PrimalDual, dual_curves
from unrolled.experiment import Case, Experiment, Report, no_report
from unrolled.looped import inference, instability
from unrolled.looped.inference import RandomLoops
from unrolled.looped.instability import InstabilitySettings
from unrolled.looped.model import LABELS, LoopedTransformer
from unrolled.results import Claim, ResultError, Row, Verdict, judge_pairs, metric_of, select, thin
from unrolled.together.exits import Frontier, fixed_losses, frontier
from unrolled.together.loops import LoopReading, loop_losses, read_loops
from unrolled.training import FitResult, NonFiniteError, StepReport, fit
from unrolled.transformer import count_parameters, flops_per_token, require_choice

__all__ = [
    "BASELINES",
    "CONSTRAINED",
    "EXPERIMENT",
    "METHODS",
    "DescendingSettings",
    "build_constraint",
    "loop_columns",
    "picked",
    "trained",
]

BASELINES = {"last": "fixed", "mean": "mean", "random": "random"}
"""The methods without a constraint, and their recipe in `unrolled.looped.inference`."""

CONSTRAINED = ("exact", "anchored", "cumulative", "proxy", "resilient")
"""The methods with one multiplier for each loop."""

METHODS = (*BASELINES, *CONSTRAINED)
"""All methods."""

Windows = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class DescendingSettings(InstabilitySettings):
    r"""The scale of a run; the fields are those of the diagnosis of loops, and these.

    Parameters
    ----------
    methods
        Names of `METHODS`.
    learning_rates
        Trials of the methods without a constraint; the others have the first.
    alphas
        Trials of the constrained methods: the share :math:`\alpha` of each loop.
    cumulative_alphas
        The same for "cumulative", whose line starts at :math:`\ln V` and not at the loop before.
    dual_step, relaxation_cost
        :math:`\eta`, and the cost c of "resilient".
    inference_loops
        The largest number of loops at which a model is read.
    exit_thresholds
        Confidences at which a token stops, rising, between 0 (the first loop) and 1 (loop K).
    tolerance
        Nats: what counts as an ascent, and what an exit may cost.
    """

    variants: tuple[str, ...] = ("flt", "original")
    num_loops: tuple[int, ...] = (6,)
    learning_rate: float = 0.02
    high_learning_rate: None = None
    optimizer: Literal["adamw", "muon"] = "muon"
    batch_size: int = 4
    validation_windows: int = 64
    methods: tuple[str, ...] = METHODS
    learning_rates: tuple[float, ...] = (0.02, 0.01)
    alphas: tuple[float, ...] = (0.0, 0.02)
    cumulative_alphas: tuple[float, ...] = (0.2, 0.3)
    dual_step: float = 0.1
    relaxation_cost: float = 2.0
    inference_loops: int = 12
    exit_thresholds: tuple[float, ...] = (0.5, 0.7, 0.8, 0.9, 0.97)
    tolerance: float = 0.002


def cases(settings: DescendingSettings) -> list[Case]:
    """Return every method on every variant, with its trials."""
    return [
        {
            "variant": variant,
            "num_loops": K,
            "method": method,
            "learning_rate": rate,
            "alpha": alpha,
        }
        for variant in settings.variants
        for K in settings.num_loops
        for method in settings.methods
        for rate, alpha in trials(settings, method)
    ]


def trials(settings: DescendingSettings, method: str) -> list[tuple[float, float]]:
    """Return what is tried of a method: learning rate and share.

    Examples
    --------
    >>> trials(DescendingSettings(), "mean"), trials(DescendingSettings(), "exact")
    ([(0.02, 0.0), (0.01, 0.0)], [(0.02, 0.0), (0.02, 0.02)])
    """
    require_choice(method, "method", METHODS)
    if method in BASELINES:
        return [(rate, 0.0) for rate in settings.learning_rates]
    shares = settings.cumulative_alphas if method == "cumulative" else settings.alphas
    return [(settings.learning_rates[0], share) for share in shares]


def measure(settings: DescendingSettings, case: Case, seed: int, report: Report) -> dict[str, Any]:
    """Train one model by one method; return what it is worth after every loop."""
    try:
        model, run = trained(settings, case, seed, report)
    except NonFiniteError as error:
        return {"diverged": True, "diverged_at_step": error.step}
    K, most = case["num_loops"], settings.inference_loops
    windows = {"val": instability.text_of(settings).validation, "test": reported_windows(settings)}
    readings = {name: read_loops(model, *pair, most) for name, pair in windows.items()}
    found: dict[str, Any] = {"diverged": False}
    for name, reading in readings.items():
        columns = loop_columns(reading, K, settings.tolerance)
        found |= {f"{name}_{key}": value for key, value in columns.items()}
    by_loop = {name: found[f"{name}_loss_by_loop"][:K] for name in windows}
    return {
        **found,
        **state_columns(readings["test"], K),
        **exit_columns(model, windows, settings, by_loop),
        **training_columns(run),
        **dual_columns(settings, case, run, readings["val"]),
        "parameters": count_parameters(model),
        "steps": run.steps,
    }


@lru_cache(maxsize=4)
def load_test(corpus: str, vocab_size: int, length: int, windows: int) -> Windows:
    """Return windows of the test split, (W, N) both, in the tokens of a corpus."""
    tokenizer = instability.tokenizer_of(corpus, vocab_size)
    return evaluation_windows(tokenizer.encode(state_of_the_union().text("test")), length, windows)


def reported_windows(settings: DescendingSettings) -> Windows:
    """Return the windows on which the models are reported."""
    s = settings
    return load_test(s.corpus, s.vocab_size, s.length, s.validation_windows)


# --- training -----------------------------------------------------------------------------------


def trained(
    settings: DescendingSettings, case: Case, seed: int, report: Report = no_report
) -> tuple[LoopedTransformer, FitResult]:
    """Return the model of a case after its training, and the curves of that training.

    Raises
    ------
    NonFiniteError
        If the loss or a gradient stops being finite.
    """
    method, K = case["method"], case["num_loops"]
    recipe = BASELINES.get(method, "fixed")
    start = {"data": "text", "variant": case["variant"], "num_loops": K, "recipe": recipe}
    model, batch_at, _ = inference.prepared(settings, start, seed)
    if method == "random":
        batch_at = RandomLoops(batch_at, K, seed)
    hooks = training_hooks(settings, case)
    after = hooks.pop("on_step", None)

    def on_step(step: StepReport) -> dict[str, Any]:
        report(step.step + 1, step.steps)
        return after(step) if after else {}

    run = fit(
        model,
        batch_at,
        training=instability.training_config(settings),
        optimizer=instability.optimizer_config(settings, case["learning_rate"]),
        on_step=on_step,
        **hooks,
    )
    model.loss_loops = "last"
    return model.eval(), run


def training_hooks(settings: DescendingSettings, case: Case) -> dict[str, Any]:
    """Return what `fit` descends by a method: its loss, and the multipliers if there are any."""
    if case["method"] in BASELINES:
        return {"loss_fn": _loss}
    dual = PrimalDual(
        build_constraint(settings, case),
        settings.dual_step,
        relaxation_cost=settings.relaxation_cost if case["method"] == "resilient" else None,
    )
    return dual.hooks(lambda model, batch: loop_losses(model, *batch))


def _loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    inputs, targets, *loops = batch
    return model.loss(inputs, targets, num_loops=int(loops[0][0]) if loops else None)


def build_constraint(settings: DescendingSettings, case: Case) -> Constraint:
    r"""Return the constraints of a case, one for each loop.

    Examples
    --------
    >>> case = {"method": "anchored", "num_loops": 2, "alpha": 0.1}
    >>> build_constraint(DescendingSettings(), case)
    AnchoredConstraint(alphas=(0.1, 0.1), anchor=5.5...)
    """
    method, uniform = case["method"], math.log(settings.vocab_size)
    require_choice(method, "method", CONSTRAINED)
    alphas = constant_alphas(case["alpha"], case["num_loops"])
    if method == "anchored":
        return FORMS[method](alphas, anchor=uniform)
    if method == "cumulative":
        return FORMS[method](alphas, reference=uniform)
    return FORMS["exact" if method == "resilient" else method](alphas)


# --- columns of a row -----------------------------------------------------------------------------


def loop_columns(reading: LoopReading, num_loops: int, tolerance: float) -> dict[str, Any]:
    r"""Return the loss after every loop, and whether it falls.

    ``loss_by_loop`` starts at loop 1, ``start_loss`` is that of the embedding. ``loss`` is that
    after the K loops of training, ``area`` the mean over all loops that were read. ``ascents``
    counts the loops 2 to K whose loss is above that of the loop before by more than the tolerance,
    ``ascents_beyond`` those after K; ``drift`` is the mean loss beyond K less that at K.
    ``ascent_rate`` is the share of the tokens, over loops 2 to K, whose own loss rises.

    Parameters
    ----------
    reading : LoopReading
    num_loops : int
        K.
    tolerance : float
        In nats.

    Examples
    --------
    >>> import torch
    >>> losses = torch.tensor([[3.0], [2.0], [2.5], [1.0], [1.5]])
    >>> found = loop_columns(LoopReading(losses, losses[:, 0], losses[:, 0]), 3, tolerance=0.1)
    >>> [found[key] for key in ("loss", "ascents", "monotone", "ascents_beyond", "drift")]
    [1.0, 1, False, 1, 0.5]
    """
    f = reading.losses.double().mean(dim=1)  # (k + 1,)
    rises = (f[2:] - f[1:-1]) > tolerance  # of loops 2 to k
    within, beyond = int(rises[: num_loops - 1].sum()), int(rises[num_loops - 1 :].sum())
    after = f[num_loops + 1 :]
    own = reading.losses[2 : num_loops + 1] > reading.losses[1:num_loops]
    return {
        "start_loss": f[0].item(),
        "loss_by_loop": f[1:].tolist(),
        "loss": f[num_loops].item(),
        "area": f[1:].mean().item(),
        "ascents": within,
        "monotone": within == 0,
        "ascents_beyond": beyond,
        "monotone_beyond": within + beyond == 0,
        "drift": (after.mean() - f[num_loops]).item() if len(after) else 0.0,
        "ascent_rate": own.double().mean().item() if own.numel() else 0.0,
    }


def state_columns(reading: LoopReading, num_loops: int) -> dict[str, Any]:
    """Return the lengths of the states, which no loss can see, and how settled the answers are."""
    norms = reading.norms[1:].tolist()
    return {
        "state_norm_by_loop": norms,
        "state_growth": norms[-1] / norms[num_loops - 1],
        "agreement_by_loop": reading.agreement[1:].tolist(),
    }


def exit_columns(
    model: LoopedTransformer,
    windows: dict[str, Windows],
    settings: DescendingSettings,
    loss_by_loop: dict[str, list[float]],
) -> dict[str, Any]:
    """Return the frontier of early exits on both texts, and what the validation text picks.

    ``exit_gain_by_threshold`` is how far the loss lies below that of a fixed number of loops with
    the same mean, on the test text. The threshold with the fewest loops whose validation loss is
    within the tolerance of that at loop K is picked: ``exit_mean_loops`` and ``exit_cost`` (loss
    less that at loop K) are what it does on the test text.

    Parameters
    ----------
    model, windows, settings
        What is read, and at which thresholds.
    loss_by_loop : dict
        For each text the losses after loops 1 to K: the frontier's two ends, and its rival.
    """
    lines = {
        name: _whole(frontier(model, *pair, settings.exit_thresholds), loss_by_loop[name])
        for name, pair in windows.items()
    }
    val, test = lines["val"], lines["test"]
    fixed = fixed_losses(loss_by_loop["test"], test.loops)
    gain = [rival - loss for rival, loss in zip(fixed, test.losses, strict=True)]
    choice = picked_exit(val, settings.tolerance)
    found = {
        f"{name}_{column}_by_threshold": values
        for name, line in lines.items()
        for column, values in (("loops", line.loops), ("loss", line.losses))
    }
    return {
        "exit_thresholds": val.thresholds,
        **found,
        "exit_gain_by_threshold": gain,
        "exit_threshold": val.thresholds[choice],
        "exit_mean_loops": test.loops[choice],
        "exit_cost": test.losses[choice] - test.losses[-1],
        "exit_gain": gain[choice],
    }


def _whole(line: Frontier, losses: list[float]) -> Frontier:
    """Return a frontier with its two ends: at threshold 0 one loop, at 1 all K."""
    return Frontier(
        [0.0, *line.thresholds, 1.0],
        [1.0, *line.loops, float(len(losses))],
        [losses[0], *line.losses, losses[-1]],
    )


def picked_exit(line: Frontier, tolerance: float) -> int:
    """Return the place of the threshold with the fewest loops that costs at most the tolerance.

    Examples
    --------
    >>> picked_exit(Frontier([0.0, 0.5, 1.0], [1.0, 1.5, 2.0], [9.0, 2.05, 2.0]), tolerance=0.1)
    1
    """
    allowed = line.losses[-1] + tolerance
    places = [place for place, loss in enumerate(line.losses) if loss <= allowed]
    return min(places, key=lambda place: line.loops[place])


def training_columns(run: FitResult) -> dict[str, Any]:
    """Return the curve of what was descended."""
    return {"step_curve": thin(range(1, len(run.losses) + 1)), "loss_curve": thin(run.losses)}


def dual_columns(
    settings: DescendingSettings, case: Case, run: FitResult, reading: LoopReading
) -> dict[str, Any]:
    """Return the multipliers, the effective weights, and whether loops were sabotaged.

    A loop counts as sabotaged that is worse than the best prediction without any context.
    """
    if case["method"] in BASELINES:
        return {}
    constraint, K = build_constraint(settings, case), case["num_loops"]
    multipliers = dual_curves(run).multipliers.float()  # (T, K)
    largest = multipliers.max(dim=0).values
    losses = reading.losses[: K + 1].mean(dim=1)
    unigram = instability.text_of(settings).unigram_loss
    sabotage = detect_sabotage(losses, constraint, largest, reference=unigram, margin=0.0)
    found: dict[str, Any] = {
        "multiplier_by_loop": multipliers[-1].tolist(),
        "largest_multiplier_by_loop": largest.tolist(),
        "effective_weight_by_loop": constraint.weights(multipliers[-1]).tolist(),
        "val_slack_by_loop": constraint.slacks(losses).tolist(),
        "sabotaged": bool(sabotage),
        "sabotaged_loops": list(sabotage.sabotaged),
        "sabotage_report": "; ".join(sabotage.reasons),
    }
    for loop, curve in enumerate(multipliers.T, start=1):
        found[f"multiplier_{loop}_curve"] = thin(curve.tolist())
    return found


def describe(settings: DescendingSettings) -> dict[str, Any]:
    """Return the scale of the settings, counted without running anything."""
    K = max(settings.num_loops)
    flops = flops_per_token(settings.config, K, settings.length)
    readouts = K * 2 * settings.hidden_size * settings.vocab_size
    return {
        **instability.describe(settings),
        "runs per seed": len(cases(settings)),
        "cost of a step with a readout of every loop, over that with one": 1 + readouts / flops,
    }


# --- what is asked, and how the rows judge it -----------------------------------------------------


def picked(rows: Iterable[Row], variant: str, method: str, by: str = "val_area") -> list[Row]:
    """Return the rows of a method's better trial, picked by its mean on the validation text.

    Parameters
    ----------
    rows
        Of one preset.
    variant, method
        What is picked from.
    by
        The column that is lowest: ``val_area`` for a model of any number of loops, ``val_loss``
        for one of K loops. A trial with a run that diverged is not picked.

    Raises
    ------
    ResultError
        If there is no such trial.

    Examples
    --------
    >>> rows = [{"variant": "flt", "method": "exact", "learning_rate": 0.02, "alpha": alpha,
    ...          "seed": seed, "val_area": 2 - alpha} for alpha in (0.0, 0.1) for seed in (0, 1)]
    >>> [row["alpha"] for row in picked(rows, "flt", "exact")]
    [0.1, 0.1]
    """
    found: dict[tuple, list[Row]] = {}
    for row in select(rows, variant=variant, method=method):
        found.setdefault((row["learning_rate"], row["alpha"]), []).append(row)
    whole = [trial for trial in found.values() if not any(row.get("diverged") for row in trial)]
    if not whole:
        raise ResultError(f"no trial with variant={variant!r} and method={method!r} ended well")
    return min(whole, key=lambda trial: statistics.fmean(metric_of(row, by) for row in trial))


def _compared(
    statement: str,
    metric: str,
    sides: tuple[tuple[str, str], tuple[str, str]],
    expect: Literal["lower", "higher"],
    *,
    by: float = 0.0,
    pick: str = "val_area",
) -> Claim:
    def judge(rows: list[Row]) -> Verdict:
        pair = [picked(rows, *side, pick) for side in sides]
        return judge_pairs(metric, *pair, expect=expect, by=by)

    return Claim("together", statement, None, None, judge)


def _always(statement: str, metric: str, side: tuple[str, str], expect: bool = True) -> Claim:
    def judge(rows: list[Row]) -> Verdict:
        values = [bool(row[metric]) for row in picked(rows, *side)]
        agreeing, n = sum(value == expect for value in values), len(values)
        kind = "trend" if 2 * agreeing > n else "not seen"
        kind = "reproduced" if agreeing == n >= 3 else kind
        return Verdict(kind, f"{metric} in {sum(values)} of {n} seeds")

    return Claim("together", statement, None, None, judge)


NOTICED = 0.01  # nats per byte: less is nothing that a reader would notice


def _costs_little(variant: str, method: str) -> Claim:
    """State that a method's loss at K is below that of "last" plus what nobody notices."""

    def judge(rows: list[Row]) -> Verdict:
        sides = [picked(rows, variant, name, "val_loss") for name in (method, "last")]
        shifted = [
            [
                {"seed": row["seed"], "test_loss": metric_of(row, "test_loss") + extra}
                for row in side
            ]
            for side, extra in zip(sides, (0.0, NOTICED), strict=True)
        ]
        found = judge_pairs("test_loss", *shifted, expect="lower")
        return Verdict(found.kind, f"{found.evidence}, {NOTICED} allowed and added")

    name = LABELS[variant]
    return Claim(
        "together",
        f"{name}: {method} costs less than {NOTICED} at K against last",
        None,
        None,
        judge,
    )


def _claims() -> Iterator[Claim]:
    for variant in ("flt", "original"):
        name = LABELS[variant]
        for method in ("last", *CONSTRAINED):
            text = f"{name}: the loss never rises up to K ({method})"
            yield _always(text, "test_monotone", (variant, method))
        for method in ("mean", "random", *CONSTRAINED):
            text = f"{name}: beyond K the loss drifts up less than with last ({method})"
            sides = (variant, method), (variant, "last")
            yield _compared(text, "test_drift", sides, "lower")
            yield _costs_little(variant, method)
        for method in CONSTRAINED:
            text = f"{name}: over 1 to 12 loops {method} is better than mean"
            sides = (variant, method), (variant, "mean")
            yield _compared(text, "test_area", sides, "lower")
        text = f"{name}: exact makes the first loop worse than mean does"
        sides = (variant, "exact"), (variant, "mean")
        yield _compared(text, "test_loss_by_loop[0]", sides, "higher", by=NOTICED)
        text = f"{name}: states still grow beyond K, more under exact than under last"
        sides = (variant, "exact"), (variant, "last")
        yield _compared(text, "state_growth", sides, "higher")
        for method in ("mean", "proxy"):
            text = (
                f"{name}: tokens that stop by themselves need fewer loops than with last ({method})"
            )
            sides = (variant, method), (variant, "last")
            yield _compared(text, "exit_mean_loops", sides, "lower")


EXPERIMENT = Experiment(
    name="together.descending_loops",
    summary="Train loops that must each lower the loss; read them at 1 to 12, with early exits.",
    presets={
        # All code paths in seconds; no claim.
        "smoke": DescendingSettings(
            variants=("flt",),
            num_loops=(2,),
            learning_rates=(0.02,),
            alphas=(0.02,),
            cumulative_alphas=(0.3,),
            inference_loops=4,
            exit_thresholds=(0.1,),
            steps=4,
            batch_size=2,
            length=16,
            num_layers=1,
            hidden_size=16,
            num_heads=1,
            validation_windows=4,
        ),
        # What a notebook trains while it is read: LT, whose loss rises again beyond K.
        "live": DescendingSettings(
            variants=("original",),
            num_loops=(4,),
            methods=("last", "exact", "proxy"),
            learning_rates=(0.02,),
            alphas=(0.02,),
            steps=100,
            validation_windows=32,
        ),
        # The committed evidence: about 25 seconds a run on one core.
        "laptop": DescendingSettings(),
        # One 16 GB GPU: the paper's core size, 6 loops, our corpus.
        "colab": DescendingSettings(
            variants=("flt",),
            methods=("last", "mean", "exact", "proxy"),
            learning_rates=(0.02,),
            alphas=(0.0, 0.02),
            steps=1_500,
            batch_size=16,
            length=256,
            num_layers=6,
            hidden_size=384,
            num_heads=3,
            vocab_size=4_096,
            mixed_precision="bf16",
        ),
    },
    cases=cases,
    measure=measure,
    describe=describe,
    seeds={"colab": 1},
    claims=tuple(_claims()),
)

r"""Descending loops: each loop is a layer, and must lower the loss of the one before it.

Each unit trains one looped model with K loops by one method and reads it after 0 to 12 loops. The
constraints are those of the part on descent, with loops in the place of layers,

.. math:: f_k \le (1 - \alpha)\, f_{k-1}, \qquad k = 1, \dots, K,

:eq:`eq-together-descending-loops`, :math:`f_0` being the loss of the embedding, read by the same
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

Every method has four trials: the methods without a constraint four learning rates, the others
three rates with one share, and one share more (`trials`). The validation text picks, the test text
reports: `picked`. The constrained methods and "mean" read every loop, K - 1 readouts more in a
step, which at this size is a seventh of it.

LT is trained by all methods, since its loss rises again beyond K. FLT, which stays where it is, is
trained by two of them: the question there is only what constraints cost. So a seed has 40 runs; a
run of the preset laptop takes about 20 seconds of one core.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
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
from unrolled.looped.model import LoopedTransformer
from unrolled.results import (
    Claim,
    ResultError,
    Row,
    Verdict,
    judge_pairs,
    mean_ci,
    metric_of,
    select,
    thin,
)
from unrolled.together.exits import Frontier, fixed_losses, frontier
from unrolled.together.loops import LoopReading, loop_losses, read_loops
from unrolled.training import FitResult, NonFiniteError, after_step, fit
from unrolled.transformer import count_parameters, flops_per_token, require_choice

__all__ = [
    "BASELINES",
    "CONSTRAINED",
    "EXPERIMENT",
    "METHODS",
    "DescendingSettings",
    "build_constraint",
    "columns_of",
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
    methods, other_methods
        Names of `METHODS`: for the first variant, and for the others.
    learning_rates
        Trials of the methods without a constraint.
    alphas
        Shares :math:`\alpha` of each loop, for the constrained methods. The first is tried at the
        first learning rates, every other at the first one alone, so that all methods have as many
        trials; see `trials`.
    proxy_alphas
        The same for "proxy".
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

    variants: tuple[str, ...] = ("original", "flt")
    num_loops: tuple[int, ...] = (6,)
    learning_rate: float = 0.02
    high_learning_rate: None = None
    optimizer: Literal["adamw", "muon"] = "muon"
    batch_size: int = 4
    validation_windows: int = 64
    methods: tuple[str, ...] = METHODS
    other_methods: tuple[str, ...] = ("last", "proxy")
    learning_rates: tuple[float, ...] = (0.02, 0.01, 0.005, 0.0025)
    alphas: tuple[float, ...] = (0.0, 0.02)
    proxy_alphas: tuple[float, ...] = (0.02, 0.0)
    cumulative_alphas: tuple[float, ...] = (0.3, 0.2)
    dual_step: float = 0.1
    relaxation_cost: float = 2.0
    inference_loops: int = 12
    exit_thresholds: tuple[float, ...] = (0.2, 0.4, 0.6, 0.9)
    tolerance: float = 0.002


def cases(settings: DescendingSettings) -> list[Case]:
    """Return every variant with its methods, and their trials."""
    s = settings
    return [
        {
            "variant": variant,
            "num_loops": K,
            "method": method,
            "learning_rate": rate,
            "alpha": alpha,
        }
        for variant in s.variants
        for K in s.num_loops
        for method in (s.methods if variant == s.variants[0] else s.other_methods)
        for rate, alpha in trials(s, method)
    ]


def trials(settings: DescendingSettings, method: str) -> list[tuple[float, float]]:
    """Return what is tried of a method: learning rate and share.

    Examples
    --------
    >>> trials(DescendingSettings(), "mean")
    [(0.02, 0.0), (0.01, 0.0), (0.005, 0.0), (0.0025, 0.0)]
    >>> trials(DescendingSettings(), "proxy")
    [(0.02, 0.02), (0.01, 0.02), (0.005, 0.02), (0.02, 0.0)]
    """
    require_choice(method, "method", METHODS)
    rates = settings.learning_rates
    if method in BASELINES:
        return [(rate, 0.0) for rate in rates]
    first, *others = shares_of(settings, method)
    at_first = rates[: max(1, len(rates) - len(others))]
    return [(rate, first) for rate in at_first] + [(rates[0], share) for share in others]


def shares_of(settings: DescendingSettings, method: str) -> tuple[float, ...]:
    """Return the shares that are tried of a constrained method."""
    own = {"proxy": settings.proxy_alphas, "cumulative": settings.cumulative_alphas}
    return own.get(method, settings.alphas)


def measure(settings: DescendingSettings, case: Case, seed: int, report: Report) -> dict[str, Any]:
    """Train one model by one method; return what it is worth after every loop."""
    try:
        model, run = trained(settings, case, seed, report)
    except NonFiniteError as error:
        return {"diverged": True, "diverged_at_step": error.step}
    return columns_of(settings, case, model, run)


def columns_of(
    settings: DescendingSettings, case: Case, model: LoopedTransformer, run: FitResult
) -> dict[str, Any]:
    """Return the columns of a row, read from a trained model and the curves of its training."""
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
    run = fit(
        model,
        batch_at,
        training=instability.training_config(settings),
        optimizer=instability.optimizer_config(settings, case["learning_rate"]),
        on_step=after_step(report, hooks.pop("on_step", None)),
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


NOTICED = 0.01
"""Nats per byte that a reader would notice: what a method may cost, and what counts as a rise."""

Side = tuple[str, str]  # variant and method


def _claim(statement: str, judge: Callable[[list[Row]], Verdict]) -> Claim:
    return Claim("together", statement, None, None, judge)


def _verdict(
    what: str, values: list[float], expect: Literal["lower", "higher"], limit: float
) -> Verdict:
    """Judge whether numbers, one for each seed, lie on one side of a limit."""
    sides = [
        [{"seed": place, "value": value} for place, value in enumerate(numbers)]
        for numbers in (values, [limit] * len(values))
    ]
    found = judge_pairs("value", *sides, expect=expect)
    return Verdict(found.kind, f"{what} {mean_ci(values):.3g}")


def _level(
    statement: str, metric: str, side: Side, expect: Literal["lower", "higher"], limit: float
) -> Claim:
    """Claim that a column of a method lies on one side of a limit."""

    def judge(rows: list[Row]) -> Verdict:
        values = [metric_of(row, metric) for row in picked(rows, *side)]
        return _verdict(metric, values, expect, limit)

    return _claim(statement, judge)


def _lower(
    statement: str, metric: str, side: Side, rival: Side, *, pick: str, allowed: float = 0.0
) -> Claim:
    """Claim that a column of a method is lower than that of a rival, or higher by little.

    The rival's trial is picked by what it is judged by, ours always by the loss over all loops.
    """

    def judge(rows: list[Row]) -> Verdict:
        theirs = {row["seed"]: metric_of(row, metric) for row in picked(rows, *rival, pick)}
        ours = {row["seed"]: metric_of(row, metric) for row in picked(rows, *side)}
        differences = [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]
        return _verdict(f"{metric} differs by", differences, "lower", allowed)

    return _claim(statement, judge)


def _in_all(
    statement: str, metric: str, variant: str, methods: tuple[str, ...], *, expect: bool
) -> Claim:
    """Claim that a yes/no column is ``expect`` for every seed of every one of some methods."""

    def judge(rows: list[Row]) -> Verdict:
        found = {
            name: [bool(row[metric]) for row in picked(rows, variant, name)] for name in methods
        }
        words = ", ".join(f"{name} {sum(seeds)} of {len(seeds)}" for name, seeds in found.items())
        agreeing = [value == expect for seeds in found.values() for value in seeds]
        kind = "trend" if 2 * sum(agreeing) > len(agreeing) else "not seen"
        if all(agreeing) and min(map(len, found.values())) >= 3:
            kind = "reproduced"
        return Verdict(kind, f"{metric}: {words}")

    return _claim(statement, judge)


LT, FLT = "original", "flt"

CLAIMS = (
    _level(
        f"LT, last: beyond K the mean loss is more than {NOTICED} above that at K",
        "test_drift", (LT, "last"), "higher", NOTICED,
    ),
    _in_all("LT, exact: loops are sabotaged", "sabotaged", LT, ("exact",), expect=True),
    _in_all(
        "LT: under no other form are loops sabotaged",
        "sabotaged", LT, CONSTRAINED[1:], expect=False,
    ),
    _in_all(
        "LT: under every form the loss never rises up to K",
        "test_monotone", LT, CONSTRAINED, expect=True,
    ),
    _level(
        f"LT, proxy: beyond K the mean loss is less than {NOTICED} above that at K",
        "test_drift", (LT, "proxy"), "lower", NOTICED,
    ),
    _lower(
        "LT: beyond K the loss rises less with proxy than with last",
        "test_drift", (LT, "proxy"), (LT, "last"), pick="val_area",
    ),
    _lower(
        f"LT: at K proxy costs less than {NOTICED} against last",
        "test_loss", (LT, "proxy"), (LT, "last"), pick="val_loss", allowed=NOTICED,
    ),
    _lower(
        "LT: over 1 to 12 loops the loss is lower with proxy than with random",
        "test_area", (LT, "proxy"), (LT, "random"), pick="val_area",
    ),
    _level(
        f"FLT, last: beyond K the mean loss is less than {NOTICED} above that at K",
        "test_drift", (FLT, "last"), "lower", NOTICED,
    ),
    _lower(
        f"FLT: at K proxy costs less than {NOTICED} against last",
        "test_loss", (FLT, "proxy"), (FLT, "last"), pick="val_loss", allowed=NOTICED,
    ),
    _lower(
        "LT: tokens that stop by themselves need fewer loops with proxy than with last",
        "exit_mean_loops", (LT, "proxy"), (LT, "last"), pick="val_loss",
    ),
    _level(
        "LT, proxy: exits are better than fixed numbers of loops at no higher mean",
        "exit_gain", (LT, "proxy"), "higher", 0.0,
    ),
)  # fmt: skip
"""What is asked. Where one form speaks for all it is the proxy, named before there were rows: it
compares neighbours and has no negative weight."""


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
            proxy_alphas=(0.02,),
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
            proxy_alphas=(0.02,),
            steps=100,
            validation_windows=32,
        ),
        # The committed evidence: 40 runs a seed, under half a minute each on one core. In a first
        # round of two trials each, rates or shares, a smaller rate mattered more than any method,
        # so all methods got it. The share that comes first is the one that the validation text
        # picked in that round.
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
    claims=CLAIMS,
)

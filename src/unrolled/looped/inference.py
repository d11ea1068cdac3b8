r"""Test-time compute: more or fewer loops at inference than in training.

Each unit trains one looped model by one recipe and evaluates it at many numbers of loops, on text
and on pointer chasing. The recipes have the same number of blocks to compute, on average:

- "fixed": K loops, loss on the last, as in the paper (:eq:`eq-looped-loss`);
- "mean": K loops, loss averaged over all of them;
- "random": at each step a number of loops that is uniform on 1, ..., 2 K - 1, loss on the last.

Source: Fu et al. 2026 (arXiv 2605.18797) leave open what happens beyond the trained number of
loops. Training with a random number of loops follows Geiping et al. 2025 (arXiv 2502.05171), with
a distribution of our choice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from unrolled.data.tasks import TaskBatches
from unrolled.data.text import TokenBatches
from unrolled.experiment import Case, Experiment, Report, no_report
from unrolled.looped import depth, instability
from unrolled.looped.instability import InstabilitySettings
from unrolled.looped.model import LoopedTransformer, build
from unrolled.results import Claim, Row, Verdict, judge_pairs, metric_of, select
from unrolled.training import FitResult, NonFiniteError
from unrolled.transformer import count_parameters

__all__ = ["EXPERIMENT", "RECIPES", "InferenceSettings", "RandomLoops", "trained"]

RECIPES = ("fixed", "mean", "random")
"""The ways of training that are compared."""

TASK = "pointer_chasing"


@dataclass(frozen=True)
class InferenceSettings(InstabilitySettings):
    """The scale of a run; the fields are those of the diagnosis, for text, and these.

    Parameters
    ----------
    data
        ``"text"``, ``"pointer_chasing"``, or both.
    recipes
        Names of `RECIPES`.
    inference_loops
        Numbers of loops at which each trained model is evaluated.
    task_variants, task_loops, task_steps, task_batch_size
        Variants, K, steps and batch for pointer chasing, with one block in the loop.
    task_questions
        Sequences on which its accuracy is measured.
    """

    variants: tuple[str, ...] = ("original", "input", "flt")
    num_loops: tuple[int, ...] = (6,)
    learning_rate: float = 0.02
    high_learning_rate: None = None
    optimizer: Literal["adamw", "muon"] = "muon"
    batch_size: int = 4
    validation_windows: int = 128
    data: tuple[str, ...] = ("text", TASK)
    recipes: tuple[str, ...] = RECIPES
    inference_loops: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 16, 24)
    task_variants: tuple[str, ...] = ("original", "flt")
    task_loops: int = 4
    task_steps: int = 1_500
    task_batch_size: int = 32
    task_questions: int = 1_024


def cases(settings: InferenceSettings) -> list[Case]:
    """Return every variant with every recipe, on text and on the task."""
    text = [("text", variant, K) for variant in settings.variants for K in settings.num_loops]
    task = [(TASK, variant, settings.task_loops) for variant in settings.task_variants]
    return [
        {"data": data, "variant": variant, "num_loops": K, "recipe": recipe}
        for data, variant, K in text + task
        if data in settings.data
        for recipe in settings.recipes
    ]


def measure(settings: InferenceSettings, case: Case, seed: int, report: Report) -> dict[str, Any]:
    """Train one model by one recipe and return what it is worth at each number of loops."""
    try:
        model, run = trained(settings, case, seed, report)
    except NonFiniteError as error:
        return {"diverged": True, "diverged_at_step": error.step}
    evaluate = on_text if case["data"] == "text" else on_task
    return {
        "diverged": False,
        **depth.symptoms(run),
        **evaluate(model, settings),
        "inference_loops": list(settings.inference_loops),
        "parameters": count_parameters(model),
        "steps": run.steps,
    }


# --- training -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class RandomLoops:
    r"""Batches with a number of loops of their own: uniform on 1, ..., 2 K - 1, with mean K.

    Parameters
    ----------
    batch_at
        The batch of a step: inputs and targets (B, N).
    num_loops
        K.
    seed
        Not negative; with the step it decides the number of loops.

    Examples
    --------
    >>> tokens = torch.zeros(2, 4, dtype=torch.long)
    >>> batches = RandomLoops(lambda step: (tokens, tokens), num_loops=3, seed=0)
    >>> loops = [int(batches(step)[2][0]) for step in range(1_000)]
    >>> sorted(set(loops)), round(sum(loops) / 1_000)
    ([1, 2, 3, 4, 5], 3)
    """

    batch_at: Callable[[int], tuple[Tensor, Tensor]]
    num_loops: int
    seed: int

    def __call__(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return inputs, targets, and the number of loops, B times over."""
        inputs, targets = self.batch_at(step)
        # A counter of its own: the data of the step come from [0, step, 0, 0].
        bits = np.random.Philox(key=self.seed, counter=[0, step, 1, 0])
        loops = int(np.random.Generator(bits).integers(1, 2 * self.num_loops))
        return inputs, targets, torch.full((len(inputs),), loops)


def trained(
    settings: InferenceSettings, case: Case, seed: int, report: Report = no_report
) -> tuple[LoopedTransformer, FitResult]:
    """Return the model of a case after its training, and the curves of that training.

    The loss of the returned model is that of the last loop, whatever the recipe was.
    """
    model, batch_at, schedule = prepared(settings, case, seed)
    if case["recipe"] == "random":
        batch_at = RandomLoops(batch_at, case["num_loops"], seed)
    run = instability.train(model, batch_at, schedule, settings.learning_rate, report)
    model.loss_loops = "last"
    return model, run


def prepared(
    settings: InferenceSettings, case: Case, seed: int
) -> tuple[LoopedTransformer, Callable, InferenceSettings]:
    """Return the fresh model, the batches and the schedule of a case."""
    loss_loops = "mean" if case["recipe"] == "mean" else "last"
    torch.manual_seed(seed)  # the initial weights; the batches have the seed themselves
    if case["data"] == "text":
        tokens = instability.text_of(settings).train
        batches = TokenBatches(tokens, settings.batch_size, settings.length, seed)
        config, schedule = settings.config, settings
    else:
        task, B = depth.TASKS[TASK], settings.task_batch_size
        batches, config = TaskBatches(task, B, seed), depth.config_of(settings, task, 1)
        schedule = replace(settings, steps=settings.task_steps, batch_size=B)
    model = build(config, case["variant"], case["num_loops"], loss_loops=loss_loops)
    return model, batches, schedule


# --- evaluation ---------------------------------------------------------------------------------


def on_text(model: LoopedTransformer, settings: InferenceSettings) -> dict[str, Any]:
    """Return the validation loss and the norm of the state at each number of loops."""
    inputs, targets = instability.text_of(settings).validation
    losses = [
        instability.validation_loss(model, inputs, targets, settings.batch_size, K)
        for K in settings.inference_loops
    ]
    return {"val_loss_by_inference_loops": losses, **norms(model, inputs, settings)}


def on_task(model: LoopedTransformer, settings: InferenceSettings) -> dict[str, Any]:
    """Return the accuracy of each depth and the norm of the state at each number of loops."""
    questions = depth.held_out(TASK, settings.task_questions)
    depths, loops = depth.TASKS[TASK].depths, settings.inference_loops
    return {
        **depth.by_depth(model, questions, depths),
        **depth.answers(model, questions, depths, loops),
        **norms(model, questions.inputs, settings),
    }


def norms(model: LoopedTransformer, inputs: Tensor, settings: InferenceSettings) -> dict[str, Any]:
    """Return the mean norm of the state at each number of loops, on a few sequences."""
    device = next(model.parameters()).device
    by_loop = depth.norms_by_loop(model, inputs[:32].to(device), max(settings.inference_loops))
    found = [by_loop[K - 1] for K in settings.inference_loops]
    return {"residual_norm_by_inference_loops": found}


# --- what the paper claims, and how the rows judge it -------------------------------------------


def _between(
    statement: str, variant: str, at: int, reference: int, expect: str, by: float = 0.0
) -> Claim:
    """State that the loss at one number of loops is lower (higher) than at another."""
    loops = InferenceSettings().inference_loops
    one, other = (f"val_loss_by_inference_loops[{loops.index(K)}]" for K in (at, reference))
    where = {"data": "text", "variant": variant, "recipe": "fixed"}
    shown = " ".join(f"{key}={value}" for key, value in where.items())
    query = f"looped_inference | mean_ci {one} | preset=laptop {shown} | .3f"

    def judge(rows: list[Row]) -> Verdict:
        rows = select(rows, **where)
        pairs = [
            [{"seed": row["seed"], "val_loss": metric_of(row, metric)} for row in rows]
            for metric in (one, other)
        ]
        return judge_pairs("val_loss", *pairs, expect=expect, by=by)

    return Claim("looped", statement, None, query, judge)


WORSE = 0.01  # nats per byte: less is no harm that a reader would notice

CLAIMS = (
    _between("FLT, trained with 6 loops: 6 are better than 3", "flt", 6, 3, "lower"),
    _between("FLT, trained with 6 loops: 3 are better than 1", "flt", 3, 1, "lower"),
    _between("FLT, trained with 6 loops: 12 are worse than 6", "flt", 12, 6, "higher", WORSE),
    _between("FLT, trained with 6 loops: 24 are worse than 6", "flt", 24, 6, "higher", WORSE),
    _between("LT, trained with 6 loops: 12 are worse than 6", "original", 12, 6, "higher", WORSE),
)

EXPERIMENT = Experiment(
    name="looped.inference",
    summary="Train by three recipes and evaluate at fewer and at more loops than were trained.",
    presets={
        # All code paths in seconds; no claim.
        "smoke": InferenceSettings(
            variants=("flt",),
            num_loops=(2,),
            inference_loops=(1, 2, 3, 4),
            steps=12,
            batch_size=2,
            length=32,
            hidden_size=16,
            num_heads=1,
            validation_windows=4,
            task_variants=("flt",),
            task_loops=2,
            task_steps=12,
            task_batch_size=2,
            task_questions=8,
        ),
        # What a notebook trains while it is read.
        "live": InferenceSettings(
            variants=("flt",),
            num_loops=(3,),
            steps=100,
            validation_windows=32,
            data=("text",),
            recipes=("fixed", "random"),
            inference_loops=(1, 2, 3, 4, 5, 6, 8, 12),
        ),
        # The committed evidence: at most a minute and a half a run on one core.
        "laptop": InferenceSettings(),
        # One 16 GB GPU: the paper's core size, 6 loops, our corpus.
        "colab": InferenceSettings(
            variants=("input", "flt"),
            steps=1_500,
            batch_size=16,
            length=256,
            num_layers=6,
            hidden_size=384,
            num_heads=3,
            vocab_size=4_096,
            mixed_precision="bf16",
            data=("text",),
        ),
    },
    cases=cases,
    measure=measure,
    describe=instability.describe,
    seeds={"laptop": 3, "colab": 1},
    claims=CLAIMS,
)

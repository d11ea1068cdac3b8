r"""Depth: tasks whose answer takes a known number of steps, against the number of loops.

Each unit trains one model on `unrolled.data.tasks` and reads its accuracy by depth: by the number
of hops in pointer chasing, by the distance that a carry has travelled in addition. A block looks
up once; so a model of few blocks should fail at the deeper questions, and loops
(:eq:`eq-looped-recurrence`) should help where they hand on what has been found.

"plain" is the Transformer without loops with as many blocks, :math:`L K`, each with weights of its
own. With one block in the loop, "the query of every block" is the query of the first block: there
FLT is LT_ia.

Source: the tasks are our choice. Fu et al. 2026 (arXiv 2605.18797) measure language only; p-hop
induction as a test of depth is from Sanford, Hsu and Telgarsky 2024 (arXiv 2402.09268).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from unrolled.data.tasks import Addition, PointerChasing, Questions, Task, TaskBatches, accuracy
from unrolled.experiment import Case, Experiment, Report, no_report
from unrolled.looped import instability
from unrolled.looped.diagnostics import gradient_oscillation, residual_norms
from unrolled.looped.model import LoopedTransformer, build
from unrolled.results import thin
from unrolled.training import FitResult, NonFiniteError
from unrolled.transformer import TransformerConfig, count_parameters, flops_per_token

__all__ = ["EXPERIMENT", "TASKS", "DepthSettings", "answers", "by_depth", "config_of", "trained"]

TASKS: dict[str, Task] = {"pointer_chasing": PointerChasing(), "addition": Addition()}
"""The tasks by name: 8 nodes, 1 to 4 hops and 12 queries; 8 digits."""

HELD_OUT_SEED = 2**31  # the questions are the same for every model, and no seed trains on them


@dataclass(frozen=True)
class DepthSettings:
    """The scale of a depth run: model, task, training, and what is compared.

    Parameters
    ----------
    tasks
        Names of `TASKS`.
    variants
        Injections to compare; the plain Transformer is always among what is compared.
    num_loops
        Numbers of loops K through one block.
    num_loops_of_two
        Numbers of loops K through two blocks.
    inference_loops
        Numbers of loops at which each looped model answers.
    steps, addition_steps
        Optimizer steps for pointer chasing, and for addition, which is learned sooner.
    batch_size
        Sequences per step.
    hidden_size, num_heads
        Size of a block.
    optimizer, learning_rate, mixed_precision
        As in `unrolled.looped.instability.InstabilitySettings`; the same for all models.
    questions
        Sequences on which the accuracy is measured.
    """

    tasks: tuple[str, ...] = ("pointer_chasing", "addition")
    variants: tuple[str, ...] = ("original", "input", "flt")
    num_loops: tuple[int, ...] = (1, 2, 4)
    num_loops_of_two: tuple[int, ...] = (2,)
    inference_loops: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 8, 12)
    steps: int = 1_500
    addition_steps: int = 800
    batch_size: int = 32
    hidden_size: int = 64
    num_heads: int = 2
    optimizer: Literal["adamw", "muon"] = "muon"
    learning_rate: float = 0.02
    mixed_precision: Literal["no", "bf16"] = "no"
    questions: int = 1_024


def cases(settings: DepthSettings) -> list[Case]:
    """Return the plain Transformer at each depth, and each variant with the same depths."""
    one = [(1, K, variant) for K in settings.num_loops for variant in compared(settings, K)]
    two = [(2, K, variant) for K in settings.num_loops_of_two for variant in settings.variants]
    return [
        {"task": task, "num_layers": L, "num_loops": K, "variant": variant}
        for task in settings.tasks
        for L, K, variant in one + two
    ]


def compared(settings: DepthSettings, num_loops: int) -> tuple[str, ...]:
    """Return what is compared at a K: with one loop every variant is the plain Transformer."""
    return ("plain",) if num_loops == 1 else (*settings.variants, "plain")


def measure(settings: DepthSettings, case: Case, seed: int, report: Report) -> dict[str, Any]:
    """Train one model from one seed and return its accuracy by depth."""
    try:
        model, run = trained(settings, case, seed, report)
    except NonFiniteError as error:
        return {"diverged": True, "diverged_at_step": error.step}
    questions = held_out(case["task"], settings.questions)
    return {
        "diverged": False,
        **symptoms(run),
        **by_depth(model, questions, TASKS[case["task"]].depths),
        **answers(model, questions, TASKS[case["task"]].depths, settings.inference_loops),
        "parameters": count_parameters(model),
        "steps": run.steps,
    }


def trained(
    settings: DepthSettings, case: Case, seed: int, report: Report = no_report
) -> tuple[LoopedTransformer, FitResult]:
    """Return the model of a case after its training, and the curves of that training.

    Raises
    ------
    NonFiniteError
        If the loss or a gradient stops being finite.
    """
    task = TASKS[case["task"]]
    steps = settings.addition_steps if case["task"] == "addition" else settings.steps
    torch.manual_seed(seed)  # the initial weights; the batches have the seed themselves
    config = config_of(settings, task, case["num_layers"])
    model = build(config, case["variant"], case["num_loops"])
    batches = TaskBatches(task, settings.batch_size, seed)
    schedule = replace(settings, steps=steps)
    return model, instability.train(model, batches, schedule, settings.learning_rate, report)


def config_of(settings: DepthSettings, task: Task, num_layers: int) -> TransformerConfig:
    """Return the Transformer that is looped: as wide as the settings say, as long as the task."""
    return TransformerConfig(
        vocab_size=task.vocab_size,
        num_layers=num_layers,
        hidden_size=settings.hidden_size,
        num_heads=settings.num_heads,
        max_length=task.length,
    )


def held_out(task: str, count: int) -> Questions:
    """Return the questions on which every model is measured."""
    return TaskBatches(TASKS[task], 1, HELD_OUT_SEED).held_out(count)


def symptoms(run: FitResult) -> dict[str, Any]:
    """Return the curves of a run and the symptoms that they show."""
    norms = run.diagnostics["residual_norm"]
    return {
        "train_loss": sum(run.losses[-50:]) / len(run.losses[-50:]),
        "gradient_oscillation": gradient_oscillation(run.gradient_norms, run.steps // 2),
        "residual_norm": norms[-1],
        "step_curve": thin(range(1, run.steps + 1)),
        "loss_curve": thin(run.losses),
    }


def by_depth(
    model: LoopedTransformer, questions: Questions, depths: tuple[int, ...]
) -> dict[str, Any]:
    """Return the accuracy of a model as it was trained: in all, and for each depth."""
    predictions = predict(model, questions)[model.num_loops]
    return {
        "accuracy": accuracy(predictions, questions),
        "accuracy_by_depth": [accuracy(predictions, questions, depth) for depth in depths],
    }


def answers(
    model: LoopedTransformer,
    questions: Questions,
    depths: tuple[int, ...],
    inference_loops: tuple[int, ...],
) -> dict[str, Any]:
    """Return the accuracy at each number of loops, for each depth; nothing for a plain model."""
    if model.num_loops == 1:
        return {}
    predictions = predict(model, questions, max(inference_loops))
    found: dict[str, Any] = {"inference_loops": list(inference_loops)}
    for depth in depths:
        found[f"accuracy_of_depth_{depth}_by_inference_loops"] = [
            accuracy(predictions[K], questions, depth) for K in inference_loops
        ]
    return found


@torch.no_grad()
def predict(
    model: LoopedTransformer, questions: Questions, num_loops: int | None = None
) -> dict[int, Tensor]:
    """Return the likeliest token at each position (B, N), after each number of loops."""
    K = num_loops or model.num_loops
    device = next(model.parameters()).device
    states = [
        model(inputs.to(device), num_loops=K, loop_states=True).loop_states
        for inputs in questions.inputs.split(256)
    ]
    return {
        k + 1: torch.cat([model.logits_from(part[k]).argmax(-1).cpu() for part in states])
        for k in range(K)
    }


def norms_by_loop(model: LoopedTransformer, inputs: Tensor, num_loops: int) -> list[float]:
    """Return the mean norm of the state after each loop."""
    with torch.no_grad():
        output = model(inputs, num_loops=num_loops, loop_states=True)
    return residual_norms(output.loop_states).tolist()


def describe(settings: DepthSettings) -> dict[str, Any]:
    """Return the scale of the settings, counted without running anything."""
    facts: dict[str, Any] = {}
    K = max(settings.num_loops)
    for name in settings.tasks:
        config = config_of(settings, TASKS[name], 1)
        with torch.device("meta"):
            looped, plain = (build(config, variant, K) for variant in ("flt", "plain"))
        facts[f"{name}: parameters, looped"] = count_parameters(looped)
        facts[f"{name}: parameters, plain with {K} blocks"] = count_parameters(plain)
        facts[f"{name}: forward FLOPs per token at K = {K}"] = flops_per_token(config, K)
    return facts


CLAIMS = ()

EXPERIMENT = Experiment(
    name="looped.depth",
    summary="Train on pointer chasing and addition; read the accuracy by depth and by loops.",
    presets={
        # All code paths in seconds; no claim.
        "smoke": DepthSettings(
            variants=("original", "flt"),
            num_loops=(1, 2),
            num_loops_of_two=(),
            inference_loops=(1, 2, 3),
            steps=12,
            addition_steps=12,
            batch_size=2,
            hidden_size=16,
            num_heads=1,
            questions=8,
        ),
        # What a notebook trains while it is read.
        "live": DepthSettings(
            tasks=("pointer_chasing",),
            variants=("flt",),
            num_loops=(2,),
            num_loops_of_two=(),
            steps=400,
            questions=256,
        ),
        # The committed evidence: about a minute a run on one core.
        "laptop": DepthSettings(),
        # One 16 GB GPU: a wider block, longer.
        "colab": DepthSettings(
            num_loops=(1, 2, 4, 8),
            steps=6_000,
            addition_steps=3_000,
            batch_size=128,
            hidden_size=128,
        ),
    },
    cases=cases,
    measure=measure,
    describe=describe,
    seeds={"laptop": 3, "colab": 1},
    claims=CLAIMS,
)

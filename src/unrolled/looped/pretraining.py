r"""Pretraining: quality against the number of loops, at training and at inference.

Each unit trains one variant with one number of loops :math:`K` for longer than the diagnosis of
`unrolled.looped.instability`, on the same text and by the same rules, and evaluates it on held-out
text: at the trained number of loops, and at others (:eq:`eq-looped-recurrence` can be unrolled as
far as one likes). With :math:`K = 1` all variants are the plain Transformer, so it is trained once.

Source: Fu et al. 2026 (arXiv 2605.18797), its Small and Base models.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from unrolled.experiment import Case, Experiment, Report
from unrolled.looped import instability
from unrolled.looped.instability import InstabilitySettings
from unrolled.looped.model import LoopedTransformer
from unrolled.training import NonFiniteError
from unrolled.transformer import count_parameters, flops_per_token

__all__ = ["EXPERIMENT", "PretrainingSettings"]

FIVE = ("original", "input", "attention", "fla", "flt")  # the variants of the paper


@dataclass(frozen=True)
class PretrainingSettings(InstabilitySettings):
    """The scale of a pretraining run; the fields are those of the diagnosis, and one more.

    Parameters
    ----------
    inference_loops
        Numbers of loops at which each trained model is evaluated.
    """

    variants: tuple[str, ...] = FIVE
    num_loops: tuple[int, ...] = (1, 3, 6, 9, 12)
    high_learning_rate: float | None = None
    steps: int = 600
    inference_loops: tuple[int, ...] = (1, 3, 6, 9, 12)


def cases(settings: PretrainingSettings) -> list[Case]:
    """Return every variant at every K, and the plain Transformer (K = 1) once."""
    return [
        {"variant": variant, "num_loops": K, "learning_rate": settings.learning_rate}
        for K in settings.num_loops
        for variant in (settings.variants[:1] if K == 1 else settings.variants)
    ]


def measure(settings: PretrainingSettings, case: Case, seed: int, report: Report) -> dict[str, Any]:
    """Train one variant from one seed and return what it is worth at each number of loops."""
    try:
        model, run = instability.trained(settings, case, seed, report)
    except NonFiniteError as error:
        return {"diverged": True, "collapsed": True, "diverged_at_step": error.step}
    text = instability.text_of(settings)
    return {
        **instability.symptoms(run, text),
        **instability.outcome(model, text, settings.batch_size),
        "inference_loops": list(settings.inference_loops),
        "val_loss_by_inference_loops": losses_by_loops(model, text, settings),
    }


def losses_by_loops(
    model: LoopedTransformer, text: instability.Text, settings: PretrainingSettings
) -> list[float]:
    """Return the validation loss at each of the inference numbers of loops, in nats per token."""
    return [
        instability.validation_loss(model, *text.validation, settings.batch_size, K)
        for K in settings.inference_loops
    ]


def describe(settings: PretrainingSettings) -> dict[str, Any]:
    """Return the scale of the settings: parameters, FLOPs per token and memory, counted only."""
    K, config = max(settings.num_loops), settings.config
    with torch.device("meta"):
        model = LoopedTransformer(config, K, "flt")
    total, core = count_parameters(model), count_parameters(model.blocks)
    flops = flops_per_token(config, K, settings.length)
    tokens = settings.batch_size * settings.length
    state = tokens * config.hidden_size * (2 if settings.mixed_precision == "bf16" else 4)
    return {
        "parameters": total,
        "parameters of the looped core": core,
        "parameters of embedding and head": total - core,
        "tokens per step": tokens,
        "tokens per run": tokens * settings.steps,
        "tokens per parameter": round(tokens * settings.steps / total, 1),
        f"forward FLOPs per token at K = {K}": flops,
        "forward FLOPs per token at K = 1": flops_per_token(config, 1, settings.length),
        f"training FLOPs per run at K = {K}": 3 * flops * tokens * settings.steps,
        "weights, gradients and AdamW state, MB": 16 * total / 1e6,
        f"states that loop checkpointing keeps at K = {K}, MB over all GPUs": K * state / 1e6,
    }


SMALL = PretrainingSettings(
    steps=4_848,
    batch_size=512,
    length=1_024,
    num_layers=6,
    hidden_size=384,
    num_heads=3,
    vocab_size=151_680,
    learning_rate=0.02,
    corpus="fineweb_edu",
    optimizer="muon",
    mixed_precision="bf16",
)

EXPERIMENT = Experiment(
    name="looped.pretraining",
    summary="Train each looped variant for longer and evaluate it at many numbers of loops.",
    presets={
        # All code paths in seconds; no claim.
        "smoke": PretrainingSettings(
            variants=("original", "flt"),
            num_loops=(1, 2),
            inference_loops=(1, 2, 3),
            steps=12,
            batch_size=2,
            length=32,
            hidden_size=32,
            num_heads=1,
            validation_windows=4,
        ),
        "live": PretrainingSettings(
            variants=("flt",), num_loops=(1, 3), steps=100, validation_windows=32
        ),
        # At most two minutes a run on one core.
        "laptop": PretrainingSettings(),
        # One 16 GB GPU: the paper's core size on the corpus that the package ships.
        "colab": replace(
            SMALL,
            num_loops=(1, 6, 12),
            steps=1_500,
            batch_size=16,
            length=256,
            vocab_size=4_096,
            corpus="state_of_the_union",
        ),
        # The paper's Small model: 20 tokens per parameter. Its Base model is
        # --set num_layers=12 --set hidden_size=768 --set num_heads=6 --set steps=12127.
        "paper": SMALL,
    },
    cases=cases,
    measure=measure,
    describe=describe,
    seeds={"colab": 1},
)

r"""Instability: what a looped model does in its first steps of training, variant by variant.

Each unit trains one variant with one number of loops on real text, that of the State of the Union
addresses or FineWeb-Edu, and writes down the two symptoms that the paper diagnoses, the growth of
the residual state (:eq:`eq-looped-residual-norm`) and the oscillation of the gradient
(:eq:`eq-looped-oscillation`), with the outcome: the validation loss and whether the run collapsed
(:eq:`eq-looped-collapse`).

Source: Fu et al. 2026 (arXiv 2605.18797), its diagnosis of the first 2,000 steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from unrolled.data.corpora import QWEN3
from unrolled.data.original import present_tokens
from unrolled.data.text import (
    BpeTokenizer,
    ByteTokenizer,
    TokenBatches,
    bits_per_byte,
    evaluation_windows,
    state_of_the_union,
)
from unrolled.data.tokens import TokenFiles
from unrolled.experiment import Case, Experiment, Report, no_report
from unrolled.looped.diagnostics import (
    GradientCosine,
    GradientProbe,
    gradient_oscillation,
    has_collapsed,
    residual_norms,
    unigram_loss,
)
from unrolled.looped.model import INJECTIONS, LoopedTransformer, build
from unrolled.looped.theory import alikeness, loop_gradients
from unrolled.results import Claim, judge_difference, judge_share, thin
from unrolled.settings import added
from unrolled.training import (
    FLT_OPTIMIZER,
    FitResult,
    NonFiniteError,
    OptimizerConfig,
    RunSettings,
    TrainingConfig,
    fit,
    training_of,
)
from unrolled.transformer import TransformerConfig, count_parameters, flops_per_token

__all__ = [
    "EXPERIMENT",
    "InstabilitySettings",
    "Schedule",
    "Text",
    "by_loop",
    "load_original",
    "load_text",
    "outcome",
    "symptoms",
    "text_of",
    "tokenizer_of",
    "train",
    "trained",
    "validation_loss",
]

AT_ONCE = 8  # most windows that are evaluated at a time: the logits of one may take 600 MB


@dataclass(frozen=True)
class InstabilitySettings:
    """The scale of a diagnosis: model, text, training, and what is compared.

    Parameters
    ----------
    variants
        Injections to compare, among `unrolled.looped.model.INJECTIONS`.
    num_loops
        Numbers of loops K to compare.
    learning_rate
        Peak rate of every variant at every K. With ``optimizer="muon"`` the rates are those of
        the paper and this one is the rate of the block matrices.
    high_learning_rate
        A second rate, tried at the largest K only; None tries none.
    steps, batch_size, length
        Optimizer steps, sequences per step, tokens per sequence.
    num_layers, hidden_size, num_heads
        Size of the looped core.
    vocab_size
        256 reads bytes; more trains a byte-pair encoding on the training split.
    corpus
        The text to train on.
    optimizer
        ``"adamw"``, or ``"muon"`` as in the paper.
    mixed_precision
        ``"no"`` or ``"bf16"``.
    validation_windows
        Windows of the validation split on which the loss is measured.
    tokenizer
        Of "fineweb_edu", which must be in the cache; as in
        `unrolled.data.original.corpus_tokenizer`.
    corpus_tokens
        So many tokens of "fineweb_edu" to train on; 0 for as many as the paper's larger model saw.
    """

    variants: tuple[str, ...] = INJECTIONS
    num_loops: tuple[int, ...] = (6, 9, 12)
    learning_rate: float = 1e-3
    high_learning_rate: float | None = 3e-3
    steps: int = 300
    batch_size: int = 8
    length: int = 64
    num_layers: int = 2
    hidden_size: int = 64
    num_heads: int = 2
    vocab_size: int = 256
    corpus: Literal["state_of_the_union", "fineweb_edu"] = "state_of_the_union"
    optimizer: Literal["adamw", "muon"] = "adamw"
    mixed_precision: Literal["no", "bf16"] = "no"
    validation_windows: int = 256
    tokenizer: str = added(QWEN3)
    corpus_tokens: int = added(0)

    @property
    def config(self) -> TransformerConfig:
        """The Transformer that is looped."""
        return TransformerConfig(
            vocab_size=self.vocab_size,
            num_layers=self.num_layers,
            hidden_size=self.hidden_size,
            num_heads=self.num_heads,
            max_length=self.length,
        )


class Schedule(RunSettings, Protocol):
    """What a training run of looped models needs to know of its settings."""

    optimizer: str


@dataclass(frozen=True)
class Text:
    """Real text, tokenized: a training stream, and validation windows with their bytes."""

    train: Tensor | TokenFiles
    validation: tuple[Tensor, Tensor]
    validation_bytes: int
    unigram_loss: float


@lru_cache(maxsize=4)
def load_text(corpus: str, vocab_size: int, length: int, windows: int) -> Text:
    """Return a corpus that the package ships, as tokens.

    Parameters
    ----------
    corpus
        ``"state_of_the_union"``.
    vocab_size
        256 for bytes, more for byte-pair encoding.
    length, windows
        Tokens per validation window, and how many windows are kept.

    Raises
    ------
    ValueError
        For a corpus that the package does not ship.

    Examples
    --------
    >>> text = load_text("state_of_the_union", 256, 64, 8)
    >>> text.train.shape, text.validation[0].shape, text.validation_bytes
    (torch.Size([8715287]), torch.Size([8, 64]), 512)
    """
    if corpus != "state_of_the_union":
        raise ValueError(f"corpus {corpus!r} is not on board; allowed: state_of_the_union")
    source, tokenizer = state_of_the_union(), tokenizer_of(corpus, vocab_size)
    train = tokenizer.encode(source.text("train"))
    validation = evaluation_windows(tokenizer.encode(source.text("validation")), length, windows)
    size = tokenizer.num_bytes(validation[1])
    return Text(train, validation, size, unigram_loss(train))


@lru_cache(maxsize=2)
def load_original(
    tokenizer: str, num_tokens: int, vocab_size: int, length: int, windows: int
) -> Text:
    """Return FineWeb-Edu from the cache, its training split mapped from files.

    Parameters
    ----------
    tokenizer, num_tokens, vocab_size, length, windows
        As in `unrolled.data.original.present_tokens`, which says what it raises.
    """
    sizes = (num_tokens, vocab_size, length, windows)
    train, validation, num_bytes = present_tokens("fineweb_edu", tokenizer, *sizes)
    return Text(train, validation, num_bytes, unigram_loss_of_files(train))


def unigram_loss_of_files(tokens: TokenFiles) -> float:
    """Return the loss of the best prediction without context, of files that are read in turn.

    As `unrolled.looped.diagnostics.unigram_loss`, which wants all tokens in memory.
    """
    counts = sum(np.bincount(shard, minlength=tokens.vocab_size) for shard in tokens.shards)
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def tokenizer_of(corpus: str, vocab_size: int) -> ByteTokenizer | BpeTokenizer:
    """Return the bytes for 256 tokens, and for more a byte-pair encoding of the training split."""
    if vocab_size == 256:
        return ByteTokenizer()
    if corpus != "state_of_the_union":
        raise ValueError(f"corpus {corpus!r} is not on board; allowed: state_of_the_union")
    return BpeTokenizer.train(state_of_the_union(), vocab_size)


def cases(settings: InstabilitySettings) -> list[Case]:
    """Return what is compared: every variant at every K, and at a higher rate at the largest."""
    regimes = [(settings.learning_rate, K) for K in settings.num_loops]
    if settings.high_learning_rate is not None:
        regimes.append((settings.high_learning_rate, max(settings.num_loops)))
    return [
        {"variant": variant, "num_loops": K, "learning_rate": rate}
        for rate, K in regimes
        for variant in settings.variants
    ]


def measure(settings: InstabilitySettings, case: Case, seed: int, report: Report) -> dict[str, Any]:
    """Train one variant from one seed and return its outcome and its symptoms."""
    try:
        model, run = trained(settings, case, seed, report)
    except NonFiniteError as error:
        return {"diverged": True, "collapsed": True, "diverged_at_step": error.step}
    text = text_of(settings)
    return {**symptoms(run, text), **outcome(model, text, min(settings.batch_size, AT_ONCE))}


def text_of(settings: InstabilitySettings) -> Text:
    """Return the text that the settings ask for; see `load_text` and `load_original`."""
    sizes = (settings.vocab_size, settings.length, settings.validation_windows)
    if settings.corpus == "fineweb_edu":
        return load_original(settings.tokenizer, settings.corpus_tokens, *sizes)
    return load_text(settings.corpus, *sizes)


def trained(
    settings: InstabilitySettings, case: Case, seed: int, report: Report = no_report
) -> tuple[LoopedTransformer, FitResult]:
    """Return the model of a case after its training, and the curves of that training.

    Raises
    ------
    NonFiniteError
        If the loss or a gradient stops being finite.
    unrolled.data.fetch.FetchError
        FineWeb-Edu is not in the cache; the message says how to get it.
    """
    tokens = text_of(settings).train
    torch.manual_seed(seed)  # the initial weights; the batches have the seed themselves
    model = build(settings.config, case["variant"], case["num_loops"])
    batches = TokenBatches(tokens, settings.batch_size, settings.length, seed)
    return model, train(model, batches, settings, case["learning_rate"], report)


def train(
    model: LoopedTransformer,
    batch_at: Callable[[int], tuple[Tensor, ...]],
    settings: Schedule,
    learning_rate: float,
    report: Report = no_report,
) -> FitResult:
    """Train a model; write down the residual norm and the gradient's cosine at each step.

    Parameters
    ----------
    model
        The looped model, in place.
    batch_at
        Inputs and targets (B, N) of a step; and, where the number of loops changes from step to
        step, that number, B times over.
    settings
        Its ``steps``, ``batch_size``, ``optimizer`` and ``mixed_precision`` are used.
    learning_rate
        The peak rate.
    report
        Called after each step.
    """
    cosine = GradientCosine(model)

    def loss_fn(model: LoopedTransformer, batch: tuple[Tensor, ...]):
        inputs, targets, *loops = batch
        K = int(loops[0][0]) if loops else None
        output = model(inputs, targets=targets, num_loops=K, loop_states=True)
        return output.loss, {"residual_norm": residual_norms(output.loop_states)[-1].item()}

    def on_gradients(step: int, model: torch.nn.Module) -> dict[str, float]:
        report(step + 1, settings.steps)
        value = cosine.update()
        return {} if value is None else {"gradient_cosine": value}

    return fit(
        model,
        batch_at,
        loss_fn,
        training_config(settings),
        optimizer_config(settings, learning_rate),
        on_gradients=on_gradients,
        stateful={"gradient_cosine": cosine},
    )


def training_config(settings: Schedule) -> TrainingConfig:
    """Return the schedule of the paper: no warm-up, linear decay over the last fifth, clip 1."""
    return training_of(settings, "trapezoid", decay_fraction=0.2)


def optimizer_config(settings: Schedule, learning_rate: float) -> OptimizerConfig:
    """Return AdamW without decay (our choice), or the paper's Muon with AdamW."""
    if settings.optimizer == "adamw":
        return OptimizerConfig(name="adamw", learning_rate=learning_rate)
    return replace(FLT_OPTIMIZER, learning_rate=learning_rate)


def symptoms(run: FitResult, text: Text) -> dict[str, Any]:
    """Return the curves of a run, the two symptoms, and whether it collapsed."""
    norms = run.diagnostics["residual_norm"]
    half = run.steps // 2
    collapse = has_collapsed(run.losses, norms, reference_loss=text.unigram_loss)
    return {
        "diverged": False,
        "collapsed": collapse.collapsed,
        "plateau": collapse.plateau,
        "exploding": collapse.exploding,
        "residual_growth": collapse.growth,
        "unigram_loss": text.unigram_loss,
        "train_loss": collapse.final_loss,
        "gradient_oscillation": gradient_oscillation(run.gradient_norms, half),
        "gradient_cosine": float(np.mean(run.diagnostics["gradient_cosine"][-half:])),
        "step_curve": thin(range(1, run.steps + 1)),
        "loss_curve": thin(run.losses),
        "residual_norm_curve": thin(norms),
        "gradient_norm_curve": thin(run.gradient_norms),
    }


def outcome(model: LoopedTransformer, text: Text, batch_size: int) -> dict[str, Any]:
    """Return the validation loss, and what the loops look like on validation text."""
    inputs, targets = text.validation
    loss = validation_loss(model, inputs, targets, batch_size)
    device = next(model.parameters()).device
    loops = by_loop(model, inputs[:batch_size].to(device), targets[:batch_size].to(device))
    return {
        "val_loss": loss,
        "val_bits_per_byte": bits_per_byte(loss, targets.numel(), text.validation_bytes),
        "residual_norm": loops["residual_norm_by_loop"][-1],
        "token_cosine": loops["token_cosine_by_loop"][-1],
        **loops,
        "parameters": count_parameters(model),
    }


@torch.no_grad()
def validation_loss(
    model: LoopedTransformer,
    inputs: Tensor,
    targets: Tensor,
    batch_size: int,
    num_loops: int | None = None,
) -> float:
    """Return the mean loss over windows (W, N), in nats per token; at the trained K by default."""
    device = next(model.parameters()).device
    total = 0.0
    for x, y in zip(inputs.split(batch_size), targets.split(batch_size), strict=True):
        total += model.loss(x.to(device), y.to(device), num_loops=num_loops).item() * y.numel()
    return total / targets.numel()


def by_loop(model: LoopedTransformer, inputs: Tensor, targets: Tensor) -> dict[str, list[float]]:
    """Return four numbers for each loop of a model on one batch (B, N).

    The norm of the state; the norm of the loss's gradient at that state; the norm of the loop's own
    contribution to the gradient of the shared weights; and how alike the tokens' states are.
    """
    with GradientProbe(model) as probe:
        output = model(inputs, targets=targets, loop_states=True)
        output.loss.backward()
    model.zero_grad(set_to_none=True)
    with torch.no_grad():
        between, _ = alikeness(model, inputs)
    return {
        "residual_norm_by_loop": residual_norms(output.loop_states).tolist(),
        "gradient_norm_by_loop": probe.norms()[:, -1].tolist(),
        "weight_gradient_by_loop": loop_gradients(model, inputs, targets).norm(dim=1).tolist(),
        "token_cosine_by_loop": between,
    }


def describe(settings: InstabilitySettings) -> dict[str, Any]:
    """Return the scale of the settings, counted without running anything."""
    K = max(settings.num_loops)
    with torch.device("meta"):
        model = LoopedTransformer(settings.config, K, "flt")
    blocks = count_parameters(model.blocks)
    tokens = settings.steps * settings.batch_size * settings.length
    flops = flops_per_token(settings.config, K, settings.length)
    return {
        "parameters": count_parameters(model),
        "parameters of the looped core": blocks,
        "tokens per run": tokens,
        f"forward FLOPs per token at K = {K}": flops,
        f"training FLOPs per run at K = {K}": 3 * flops * tokens,
        "weights, gradients and AdamW state, MB": 16 * count_parameters(model) / 1e6,
    }


# --- what the paper claims, and how the rows judge it -------------------------------------------

LOW = {"learning_rate": 1e-3}
HIGH = {"learning_rate": 3e-3, "num_loops": 12}
FILE = "looped_instability"


def _share(statement: str, where: dict[str, Any], *, expect: bool, value: str | None = None):
    shown = " ".join(f"{key}={value}" for key, value in where.items())
    query = f"{FILE} | mean val_loss | preset=laptop {shown} | .3f"
    return Claim("looped", statement, value, query, judge_share("collapsed", where, expect=expect))


def _lower(statement: str, metric: str, side: dict[str, Any], reference: dict[str, Any]):
    shown = " ".join(f"{key}={value}" for key, value in side.items())
    query = f"{FILE} | mean {metric} | preset=laptop {shown} | .3g"
    judge = judge_difference(metric, side, reference, expect="lower")
    return Claim("looped", statement, None, query, judge)


def _at(variant: str, num_loops: int = 12, **regime: float) -> dict[str, Any]:
    return {"variant": variant, "num_loops": num_loops, **(regime or LOW)}


CLAIMS = (
    _share("The original loop collapses at 12 loops", _at("original"), expect=True),
    _share("The original loop trains at 6 loops", _at("original", 6), expect=False),
    _share("FLT does not collapse at 12 loops", _at("flt"), expect=False),
    _share("FLA alone collapses at 12 loops", _at("fla"), expect=True),
    _share("Input injection collapses at 12 loops", _at("input"), expect=True),
    _share("Attention injection in the first layer collapses", _at("attention"), expect=True),
    _lower(
        "At 12 loops FLT keeps the residual norm below that of the original loop",
        "residual_norm",
        _at("flt"),
        _at("original"),
    ),
    _lower(
        "At 12 loops FLT oscillates less than the original loop (spread of the gradient norm)",
        "gradient_oscillation",
        _at("flt"),
        _at("original"),
    ),
)

EXPERIMENT = Experiment(
    name="looped.instability",
    summary="Train each looped variant for a short while and measure its two symptoms.",
    presets={
        # All code paths in seconds; no claim.
        "smoke": InstabilitySettings(
            variants=("original", "flt"),
            num_loops=(2,),
            high_learning_rate=None,
            steps=20,
            batch_size=2,
            length=32,
            hidden_size=32,
            num_heads=1,
            validation_windows=4,
        ),
        # What a notebook trains while it is read: one K, one rate, three variants.
        "live": InstabilitySettings(
            variants=("original", "fla", "flt"),
            num_loops=(12,),
            learning_rate=3e-3,
            high_learning_rate=None,
            steps=80,
            validation_windows=32,
        ),
        # The committed evidence: about a minute a run on one core.
        "laptop": InstabilitySettings(),
        # Sized for an hour on one 16 GB GPU: the paper's core size and number of steps, our corpus.
        # `python -m unrolled run looped.instability --preset colab`.
        # Plan, the longest unit: 1 x T4 0.10 h, 1 x A100 0.021 h.
        "colab": InstabilitySettings(
            variants=("original", "input", "attention", "fla", "flt"),
            num_loops=(6, 12),
            learning_rate=0.02,
            high_learning_rate=None,
            steps=2_000,
            batch_size=16,
            length=256,
            num_layers=6,
            hidden_size=384,
            num_heads=3,
            vocab_size=4_096,
            optimizer="muon",
            mixed_precision="bf16",
        ),
        # As published: 6 layers, 2,000 steps of 524,288 tokens of FineWeb-Edu, Muon; the vocabulary
        # of Qwen3. `python -m unrolled data get fineweb_edu --tokenizer Qwen/Qwen3-0.6B-Base`,
        # then `accelerate launch --multi_gpu --num_processes 8 -m unrolled run looped.instability
        # --preset paper --micro-batch 16`. Our choice: the first documents of the sample of 100
        # billion tokens, and which of its documents are held out. The paper: FLT
        # does not collapse at any of the three K, and at 12 all other variants do.
        # Plan, the longest unit: 1 x A100 4.5 h, 8 x H100 0.18 h.
        "paper": InstabilitySettings(
            variants=("original", "input", "attention", "fla", "flt"),
            learning_rate=0.02,
            high_learning_rate=None,
            steps=2_000,
            batch_size=512,
            length=1_024,
            num_layers=6,
            hidden_size=384,
            num_heads=3,
            vocab_size=151_680,
            corpus="fineweb_edu",
            optimizer="muon",
            mixed_precision="bf16",
        ),
    },
    cases=cases,
    measure=measure,
    describe=describe,
    seeds={"laptop": 3, "colab": 1},
    claims=CLAIMS,
)

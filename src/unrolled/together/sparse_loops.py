r"""Sparse loops: whether pruning hurts weights that are used K times more than weights used once.

Each unit trains one language model on bytes of the State of the Union addresses with one optimizer
of `unrolled.horst.compositions` and alternating compression at one sparsity; sparsity 0 is dense
training. The models come in pairs. With L blocks, of n weights each,

==========================  ======  ====================  ===========================
model                       blocks  weights of the core   operations per token
==========================  ======  ====================  ===========================
looped, K loops (FLT)       L       L n                   of K L blocks
plain, K L blocks           K L     K L n                 of K L blocks
==========================  ======  ====================  ===========================

:eq:`eq-together-pairing`: at one sparsity s both do the same operations, to the last one, dense or
sparse, and the looped model stores a K-th of the weights. A plain model that is pruned to

.. math:: s' = 1 - \frac{1 - s}{K}

keeps as many weights as the looped one at s: .7 pairs with .9 at K = 3 and with .95 at K = 6.
What pruning costs is the *damage* (`damages`), the loss at s less the dense loss of the same model,
optimizer and seed; :eq:`eq-together-damage`. Whether loops suffer more is the difference of two
damages, an interaction (`unrolled.together.interaction`).

To first order an error in a shared weight is the sum of what it does in each use. Run the loops
with weights of their own (`mixed_state`), one of them with the error (`use_errors`), and
`coherence` says how much the uses amplify each other: 1 if they have nothing to do with each other,
K if all do the same.

Only the matrices of the blocks are mirrored, decayed and pruned, each matrix by the same share;
embedding and head follow Adam at one rate. All models of a seed see the same batches.

The searched rates are right for a sparse model with one loop, and may be too high for a dense one
or for six loops. So each cell is also run at a half and a quarter of its optimizer's rate, and
`picked` takes the best of the three by the mean over the seeds, for dense and sparse alike.

A run of the preset laptop takes from 3 (K = 1) to about 12 seconds of one core (K = 6); a seed has
108 runs, about 13 minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, Literal

import torch
from torch import Tensor, nn

from unrolled.data.text import TokenBatches
from unrolled.experiment import Case, Experiment, Report, no_report
from unrolled.horst.compositions import OPTIMIZERS, Tuned, build_optimizer
from unrolled.horst.sparsity import Acdc, AcdcSchedule, histogram, norm_ratio, prunable_weights
from unrolled.looped.instability import Text, load_text, validation_loss
from unrolled.looped.model import LoopedTransformer, build
from unrolled.optimization import require
from unrolled.results import Claim, Row, Verdict, judge_difference, select, thin
from unrolled.settings import added
from unrolled.together.compression import Compression, count_weights
from unrolled.together.interaction import judge_interaction
from unrolled.training import (
    FitResult,
    NonFiniteError,
    TrainingConfig,
    after_step,
    fit,
    training_of,
)
from unrolled.transformer import TransformerConfig, count_parameters, flops_per_token

__all__ = [
    "EXPERIMENT",
    "SparseLoopSettings",
    "coherence",
    "damages",
    "equal_weights_sparsity",
    "mixed_state",
    "operations",
    "picked",
    "trained",
    "use_errors",
]

NOT_PRUNED = ("head",)


@dataclass(frozen=True)
class SparseLoopSettings:
    """The scale of a run: models, training, compression, and what is compared.

    Parameters
    ----------
    optimizers
        Names of `unrolled.horst.compositions.OPTIMIZERS`.
    looped_only
        Optimizers that are measured on looped models alone, with one loop and with the most, to
        save time.
    sparsities
        Shares of each matrix that are pruned, by every optimizer.
    num_loops
        Numbers of loops K. At K = 1 the looped model is the plain one.
    injection
        Of the looped model, a name of `unrolled.looped.model.INJECTIONS`.
    num_layers, hidden_size, num_heads
        Size of the looped core.
    steps, batch_size, length
        Optimizer steps, sequences per step, tokens per sequence.
    rest_rate
        Peak rate of Adam for embedding and head, in all runs; by default the rate that
        `unrolled.looped.search` chose for AdamW.
    scope, moments
        Of the masks; see `unrolled.horst.sparsity.Acdc`.
    validation_windows
        Windows of the validation split on which losses are measured.
    vocab_size, corpus
        As in `unrolled.looped.instability.InstabilitySettings`.
    adamw, ham, horst
        Values of each, chosen by `unrolled.together.sparse_search`; those of
        `unrolled.horst.language` do not carry over to these blocks.
    mixed_precision
        ``"no"`` or ``"bf16"``.
    rate_factors
        What the rate of the optimizer is multiplied with: 1, and others that are tried as well.
    """

    optimizers: tuple[str, ...] = OPTIMIZERS
    looped_only: tuple[str, ...] = ("ham",)
    sparsities: tuple[float, ...] = (0.0, 0.7, 0.9, 0.95)
    num_loops: tuple[int, ...] = (1, 3, 6)
    injection: str = "flt"
    num_layers: int = 1
    hidden_size: int = 64
    num_heads: int = 2
    steps: int = 300
    batch_size: int = 8
    length: int = 64
    rest_rate: float = 1e-2
    scope: Literal["global", "layerwise"] = "layerwise"
    moments: Literal["keep", "reset_masked", "reset_all"] = "keep"
    validation_windows: int = 128
    vocab_size: int = 256
    corpus: Literal["state_of_the_union"] = "state_of_the_union"
    adamw: Tuned = field(default_factory=lambda: Tuned(2.39e-2, 0.149))
    ham: Tuned = field(default_factory=lambda: Tuned(3.24e-2, 4.04e-3, 746.0, 0.979))
    horst: Tuned = field(default_factory=lambda: Tuned(2.66e-2, 0.208, 2.39, 0.263))
    mixed_precision: Literal["no", "bf16"] = "no"
    rate_factors: tuple[float, ...] = added((1.0, 0.5, 0.25))

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


def cases(settings: SparseLoopSettings) -> list[Case]:
    """Return every optimizer at every sparsity and rate: looped and plain model at every K.

    A case without ``rate_factor`` has the optimizer's own rate.
    """
    models = [(v, K) for K in settings.num_loops for v in compared(settings, K)]
    most = max(settings.num_loops)
    return [
        {"variant": variant, "num_loops": K, "optimizer": optimizer, "sparsity": sparsity, **rate}
        for rate in [{} if f == 1 else {"rate_factor": f} for f in settings.rate_factors]
        for variant, K in models
        for optimizer in settings.optimizers
        if K == 1 or optimizer not in settings.looped_only or (variant != "plain" and most == K)
        for sparsity in settings.sparsities
    ]


def compared(settings: SparseLoopSettings, num_loops: int) -> tuple[str, ...]:
    """Return the models at a K: with one loop both are the plain Transformer."""
    return ("plain",) if num_loops == 1 else (settings.injection, "plain")


def measure(settings: SparseLoopSettings, case: Case, seed: int, report: Report) -> dict[str, Any]:
    """Train one model with one optimizer at one sparsity; return losses, weights and costs."""
    try:
        model, run, dense = trained(settings, case, seed, report)
    except NonFiniteError as error:
        return {"diverged": True, "diverged_at_step": error.step}
    counted = count_weights(model, NOT_PRUNED)
    zeros = counted["weights"] - counted["kept_weights"]
    return {
        "diverged": False,
        "val_loss": loss_of(model, settings),
        **dense,
        **counted,
        **operations(settings, case, zeros),
        "step_curve": thin(range(1, run.steps + 1)),
        "loss_curve": thin(run.losses),
        "parameters": count_parameters(model),
        "steps": run.steps,
    }


# --- what a model costs -------------------------------------------------------------------------


def equal_weights_sparsity(sparsity: float, num_loops: int) -> float:
    r"""Return the sparsity at which a plain model of K L blocks keeps as much as a looped one.

    .. math:: s' = 1 - \frac{1 - s}{K}

    :eq:`eq-together-pairing`.

    Examples
    --------
    >>> equal_weights_sparsity(0.7, 3), equal_weights_sparsity(0.7, 6)
    (0.9, 0.95)
    """
    return 1 - (1 - sparsity) / num_loops


def operations(settings: SparseLoopSettings, case: Case, zeros: int = 0) -> dict[str, int]:
    """Count the operations of a forward pass per token: dense, and without those on zeros.

    Parameters
    ----------
    settings, case
        Which model.
    zeros : int
        Weights of its blocks that are zero, each counted once.

    Examples
    --------
    >>> settings, pair = SparseLoopSettings(), ("flt", "plain")
    >>> [operations(settings, {"variant": name, "num_loops": 6}) for name in pair]
    [{'flops': 720896, 'sparse_flops': 720896}, {'flops': 720896, 'sparse_flops': 720896}]
    """
    K = case["num_loops"]
    with_loops = case["variant"] != "plain"
    # a weight that is zero saves one multiplication and one addition each time it is used
    flops = flops_per_token(settings.config, K, settings.length)
    return {"flops": flops, "sparse_flops": flops - 2 * zeros * (K if with_loops else 1)}


# --- an error that is used K times ----------------------------------------------------------------


def mixed_state(models: Sequence[LoopedTransformer], tokens: Tensor) -> Tensor:
    r"""Return the stream after K loops, each with the blocks of a model of its own.

    .. math:: g(\theta_1, \dots, \theta_K), \qquad \text{looped:}\quad
              \theta_1 = \dots = \theta_K

    :eq:`eq-together-untied`.

    Parameters
    ----------
    models : sequence of LoopedTransformer
        One for each loop; the first also embeds.
    tokens : Tensor
        Integers (B, N).

    Returns
    -------
    Tensor
        (B, N, d), before the last norm.

    Examples
    --------
    >>> config = TransformerConfig(num_layers=1, hidden_size=16, num_heads=2)
    >>> model, tokens = build(config, "flt", 3), torch.tensor([[72, 105]])
    >>> states = model(tokens, loop_states=True).loop_states
    >>> torch.equal(mixed_state([model] * 3, tokens), states[-1])
    True
    """
    e, state = models[0].embed(tokens), None
    for model in models:
        state = model.loop(e, state)[-1]
    return state


def use_errors(
    model: LoopedTransformer, other: LoopedTransformer, tokens: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Return how the stream changes if one loop has other weights, and if all have.

    .. math:: \Delta_k = g(\theta, \dots, \underbrace{\theta - \delta}_{k}, \dots, \theta)
              - g(\theta, \dots, \theta), \qquad
              \Delta = g(\theta - \delta, \dots, \theta - \delta) - g(\theta, \dots, \theta)
              = \sum_{k=1}^K \Delta_k + O(\lVert \delta \rVert^2)

    :eq:`eq-together-shared-error`.

    Parameters
    ----------
    model, other : LoopedTransformer
        With theta and with theta - delta, alike but for the weights of the blocks.
    tokens : Tensor
        Integers (B, N).

    Returns
    -------
    pair of Tensor
        The K changes (K, B, N, d), and the change of all at once (B, N, d).

    Examples
    --------
    >>> config = TransformerConfig(num_layers=1, hidden_size=16, num_heads=2)
    >>> model = build(config, "flt", 3)
    >>> alone, together = use_errors(model, model, torch.tensor([[72, 105]]))
    >>> alone.shape, together.abs().max().item()
    (torch.Size([3, 1, 2, 16]), 0.0)
    """
    K = model.num_loops
    clean = mixed_state([model] * K, tokens)
    rows = [[other if j == k else model for j in range(K)] for k in range(K)]
    alone = torch.stack([mixed_state(row, tokens) - clean for row in rows])
    return alone, mixed_state([other] * K, tokens) - clean


def coherence(changes: Tensor) -> float:
    r"""Return the square of the sum over the sum of the squares.

    .. math:: \mathcal{C} = \frac{\lVert \sum_k \Delta_k \rVert^2}{\sum_k \lVert \Delta_k \rVert^2}
              \in [0, K]

    :eq:`eq-together-coherence`. It is 1 if the changes are orthogonal, or all but one are zero, and
    K if all are equal.

    Parameters
    ----------
    changes : Tensor
        (K, ...), of which not all are zero.

    Raises
    ------
    ValueError
        If all changes are zero.

    Examples
    --------
    >>> coherence(torch.eye(3)), coherence(torch.ones(3, 2))
    (1.0, 3.0)
    """
    parts = changes.flatten(1).double()
    require(bool(parts.any()), "changes", "zeros", "not all zero")
    return (parts.sum(dim=0).square().sum() / parts.square().sum()).item()


# --- training -----------------------------------------------------------------------------------


def text_of(settings: SparseLoopSettings) -> Text:
    """Return the text of the settings."""
    s = settings
    return load_text(s.corpus, s.vocab_size, s.length, s.validation_windows)


def loss_of(model: LoopedTransformer, settings: SparseLoopSettings) -> float:
    """Return the mean cross-entropy of the validation windows, in nats per token."""
    return validation_loss(model, *text_of(settings).validation, 32)


def batch_loss(model: LoopedTransformer, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the mean cross-entropy of a batch after the last loop, in nats per token."""
    return model.loss(*batch)


def trained(
    settings: SparseLoopSettings, case: Case, seed: int, report: Report = no_report
) -> tuple[LoopedTransformer, FitResult, dict[str, Any]]:
    """Return the sparse model of a case, its curves, and what it was like while it was dense.

    Raises
    ------
    NonFiniteError
        If the loss or a gradient stops being finite.
    """
    torch.manual_seed(seed)  # the initial weights; the batches have the seed themselves
    model = build(settings.config, case["variant"], case["num_loops"])
    name = case["optimizer"]
    tuned = getattr(settings, name)
    tuned = replace(tuned, rate=case.get("rate_factor", 1.0) * tuned.rate)
    optimizer = build_optimizer(name, tuned, model, settings.rest_rate, NOT_PRUNED)
    acdc = Acdc(
        model,
        optimizer,
        AcdcSchedule(settings.steps),
        case["sparsity"],
        scope=settings.scope,
        exclude=NOT_PRUNED,
        moments=settings.moments,
    )
    compression = Compression(acdc, lambda: dense_columns(model, settings))

    run = fit(
        model,
        TokenBatches(text_of(settings).train, settings.batch_size, settings.length, seed),
        batch_loss,
        training_config(settings),
        [optimizer],
        on_step=after_step(report, compression.after_step),
        stateful={"compression": compression},
    )
    return model.eval(), run, compression.dense


def training_config(settings: SparseLoopSettings) -> TrainingConfig:
    """Return the schedule: warm-up over a twentieth, then a cosine."""
    return training_of(settings, "cosine", warmup_steps=settings.steps // 20)


def dense_columns(model: nn.Module, settings: SparseLoopSettings) -> dict[str, Any]:
    """Return what the model is like before it is made sparse for good."""
    weights = prunable_weights(model, NOT_PRUNED)
    ratios = [norm_ratio(weight) for weight in weights.values()]
    return {
        "dense_val_loss": loss_of(model, settings),
        "dense_norm_ratio": sum(ratios) / len(ratios),
        "dense_largest": max(weight.abs().max().item() for weight in weights.values()),
        "histogram_by_bin": histogram(weights),
    }


def describe(settings: SparseLoopSettings) -> dict[str, Any]:
    """Return the scale of the settings, counted without running anything."""
    facts: dict[str, Any] = {"runs per seed": len(cases(settings))}
    for K in settings.num_loops:
        for variant in compared(settings, K):
            with torch.device("meta"):
                model = build(settings.config, variant, K)
            name = f"{variant}, K = {K}"
            weights = prunable_weights(model, NOT_PRUNED).values()
            facts[f"{name}: weights that can be pruned"] = sum(w.numel() for w in weights)
            cost = operations(settings, {"variant": variant, "num_loops": K})
            facts[f"{name}: forward FLOPs per token"] = cost["flops"]
    facts["tokens per run"] = settings.steps * settings.batch_size * settings.length
    return facts


# --- what is asked, and how the rows judge it -----------------------------------------------------

SAME = ("variant", "num_loops", "optimizer", "seed")  # what a damage holds fixed


CELL = ("variant", "num_loops", "optimizer", "sparsity")


def picked(rows: Iterable[Row]) -> list[Row]:
    """Return the rows of each cell at its best rate, by the mean validation loss over the seeds.

    Parameters
    ----------
    rows
        Of this experiment and one preset. A rate at which a run diverged is not picked.

    Examples
    --------
    >>> cell = {"variant": "flt", "num_loops": 3, "optimizer": "adamw", "sparsity": 0.9}
    >>> rows = [cell | {"seed": 0, "val_loss": 2.3}]
    >>> rows += [cell | {"seed": 0, "rate_factor": 0.5, "val_loss": 2.1}]
    >>> [row["val_loss"] for row in picked(rows)]
    [2.1]
    """
    cells: dict[tuple, dict[float, list[Row]]] = {}
    for row in rows:
        rates = cells.setdefault(tuple(row[key] for key in CELL), {})
        rates.setdefault(row.get("rate_factor", 1.0), []).append(row)
    found = []
    for rates in cells.values():
        whole = [trial for trial in rates.values() if not any(row.get("diverged") for row in trial)]
        found += min(whole, key=lambda trial: fmean(r["val_loss"] for r in trial), default=[])
    return found


def damages(rows: Iterable[Row]) -> list[Row]:
    r"""Return the rows with a column ``damage``: what pruning costs, against the same run dense.

    .. math:: D(s) = f(s) - f(0)

    :eq:`eq-together-damage`, with f the validation loss of a model, an optimizer and a seed.

    Parameters
    ----------
    rows
        Of this experiment and one preset, each cell at one rate. Rows that diverged, and those
        without a dense partner, are left out.

    Examples
    --------
    >>> run = {"variant": "flt", "num_loops": 3, "optimizer": "adamw", "seed": 0}
    >>> rows = [run | {"sparsity": s, "val_loss": loss} for s, loss in ((0.0, 2.0), (0.9, 2.5))]
    >>> [row["damage"] for row in damages(rows)]
    [0.0, 0.5]
    """
    rows = [row for row in rows if row.get("val_loss") is not None]
    dense = {tuple(row[key] for key in SAME): row["val_loss"] for row in select(rows, sparsity=0.0)}
    found = []
    for row in rows:
        start = dense.get(tuple(row[key] for key in SAME))
        if start is not None:
            found.append({**row, "damage": row["val_loss"] - start})
    return found


def _at(variant: str, num_loops: int, optimizer: str, sparsity: float) -> dict[str, Any]:
    return {
        "variant": variant,
        "num_loops": num_loops,
        "optimizer": optimizer,
        "sparsity": sparsity,
    }


def _claim(statement: str, judge: Callable[[list[Row]], Verdict]) -> Claim:
    """State what is judged on the rows of each cell's best rate."""
    return Claim("together", statement, None, None, lambda rows: judge(picked(rows)))


def _lower(statement: str, side: dict[str, Any], reference: dict[str, Any]) -> Claim:
    return _claim(statement, judge_difference("val_loss", side, reference, expect="lower"))


def _more_damage(statement: str, one: dict[str, Any], other: dict[str, Any]) -> Claim:
    """State that pruning costs one side more than the other, both against their dense models."""
    sides = (one, {**one, "sparsity": 0.0}, other, {**other, "sparsity": 0.0})
    return _claim(statement, judge_interaction("val_loss", sides, expect="higher"))


NAMES = {"adamw": "AdamW", "ham": "HAM", "horst": "HORST"}


def _claims() -> Iterator[Claim]:
    for K in (3, 6):
        for s in (0.9, 0.95):
            yield _more_damage(
                f"Pruned by {s:.0%}, K = {K}: the looped model loses more than the plain one of "
                "equal FLOPs (AdamW)",
                _at("flt", K, "adamw", s),
                _at("plain", K, "adamw", s),
            )
    yield _more_damage(
        "Pruned by 95%, a model with 6 loops loses more than the same one with 1 (AdamW)",
        _at("flt", 6, "adamw", 0.95),
        _at("plain", 1, "adamw", 0.95),
    )
    for K, s in ((3, 0.9), (6, 0.95)):
        yield _lower(
            f"With as many weights left, K = {K}: looped at 70% is better than plain at {s:.0%} "
            "(AdamW)",
            _at("flt", K, "adamw", 0.7),
            _at("plain", K, "adamw", s),
        )
    for other in ("adamw", "ham"):
        yield _lower(
            f"Pruned by 90%, K = 6: HORST is better than {NAMES[other]} on the looped model",
            _at("flt", 6, "horst", 0.9),
            _at("flt", 6, other, 0.9),
        )
    yield _more_damage(
        "Pruned by 90%, K = 6: AdamW's looped model loses more than HORST's",
        _at("flt", 6, "adamw", 0.9),
        _at("flt", 6, "horst", 0.9),
    )


EXPERIMENT = Experiment(
    name="together.sparse_loops",
    summary="Train looped and plain models of equal FLOPs with alternating compression.",
    presets={
        # All code paths in seconds; no claim.
        "smoke": SparseLoopSettings(
            optimizers=("adamw", "horst"),
            sparsities=(0.0, 0.9),
            num_loops=(1, 2),
            num_layers=1,
            hidden_size=16,
            num_heads=1,
            steps=20,
            batch_size=2,
            length=16,
            validation_windows=4,
            rate_factors=(1.0,),
        ),
        # What a notebook trains while it is read: one optimizer, one pair, dense and sparse.
        "live": SparseLoopSettings(
            optimizers=("adamw",),
            sparsities=(0.0, 0.9),
            num_loops=(4,),
            steps=100,
            validation_windows=32,
            rate_factors=(1.0,),
        ),
        # The committed evidence: about 7 seconds a run on one core.
        "laptop": SparseLoopSettings(looped_only=("ham", "horst")),
        # One 16 GB GPU: the paper's core size, our corpus.
        "colab": SparseLoopSettings(
            optimizers=("adamw", "horst"),
            sparsities=(0.0, 0.9),
            num_loops=(1, 6),
            num_layers=6,
            hidden_size=384,
            num_heads=3,
            steps=2_000,
            batch_size=16,
            length=256,
            vocab_size=4_096,
            mixed_precision="bf16",
            rate_factors=(1.0,),
        ),
    },
    cases=cases,
    measure=measure,
    describe=describe,
    seeds={"colab": 1},
    claims=tuple(_claims()),
)

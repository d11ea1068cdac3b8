r"""Text: constraints of descent on a pretrained encoder, against equal training without them.

Each unit fine-tunes all-MiniLM-L6-v2 on snippets of film reviews (split by film), or an encoder of
`ENCODERS` on IMDb or MNLI, with one head for all layers, by one method:

- "erm": the loss of the last layer (empirical risk minimisation);
- "early": the same, with the weights of the step that had the lowest validation loss;
- "deep": the mean of the losses of all layers (deep supervision);
- "exact", "anchored", "cumulative", "proxy", "ratio": the Lagrangian of that form of
  `unrolled.descent.constraints`;
- "tfidf": no network; logistic regression on TF-IDF features, for reference.

The token embeddings are frozen, so that a noise level :math:`\gamma` (:eq:`eq-descent-noise`) means
the same for all models. All methods see the same batches, the same noise and as many steps; they
are tested with the same draws of noise. What is compared first was fixed beforehand: the mean
accuracy over :math:`\gamma` under Gaussian noise, ``area_gaussian``.

A run of the preset laptop takes about 2.7 minutes of one core: .7 s a step (24 snippets of 32
tokens), .7 s to read 100 snippets. That is less than half an epoch, so early stopping has little to
stop; the presets colab and paper run three epochs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import pairwise, product
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from scipy import optimize, sparse, stats
from torch import Tensor, nn

from unrolled.data.original import present, pretrained_part
from unrolled.data.pretrained import load_minilm, minilm_folder
from unrolled.data.reviews import (
    LabelledTexts,
    ShuffledBatches,
    amazon_reviews,
    movie_reviews,
    reviews_and_plots,
)
from unrolled.descent.constraints import (
    FORMS,
    Constraint,
    ExactConstraint,
    constant_alphas,
    detect_sabotage,
    violations,
)
from unrolled.descent.perturb import NOISES, Perturbation, embedding_layer, embedding_scale
from unrolled.descent.primal_dual import PrimalDual, dual_curves
from unrolled.descent.readout import classification_losses, collect_losses, layer_logits
from unrolled.experiment import Case, Experiment, Report, no_report
from unrolled.results import (
    Claim,
    judge_cost,
    judge_difference,
    judge_share,
    thin,
)
from unrolled.settings import added
from unrolled.training import (
    FitResult,
    NonFiniteError,
    OptimizerConfig,
    StepReport,
    TrainingConfig,
    after_step,
    fit,
    training_of,
)
from unrolled.transformer import require_choice

__all__ = [
    "ENCODERS",
    "EXPERIMENT",
    "HEADS",
    "METHODS",
    "BestWeights",
    "TextSettings",
    "batches_of",
    "build_classifier",
    "build_constraint",
    "descent_columns",
    "encoder_config",
    "layer_columns",
    "noise_columns",
    "roc_auc",
    "tfidf_scores",
    "trained",
    "training_columns",
]

METHODS = ("erm", "early", "deep", *FORMS)
"""The ways to train; "tfidf" is a case, too."""

HEADS = ("linear", "norm", "pooler")
"""What reads a state: a linear map, a LayerNorm before it, or the encoder's dense layer."""

ENCODERS = {
    "distilbert": "distilbert/distilbert-base-uncased",
    "roberta_base": "FacebookAI/roberta-base",
    "roberta_large": "FacebookAI/roberta-large",
}
"""The encoders of the paper, by their names on the hub."""

ORIGINAL_TASKS = ("imdb", "mnli", "mnli_mismatched")  # the names in `unrolled.data.catalog`
Batch = dict[str, Tensor]
NUM_CLASSES = 2
NOISE_SEED = 2**20  # the draws at test; no seed of a run is that large
TINY = {
    "vocab_size": 64,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
ROBERTA = {"vocab_size": 50_265, "max_position_embeddings": 514, "type_vocab_size": 1}
LARGE = {
    "hidden_size": 1_024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4_096,
}


@dataclass(frozen=True)
class TextSettings:
    """The scale of a run: data, model, training, constraint, and what is compared.

    Parameters
    ----------
    task
        "sentiment"; "plots": does this review belong to this plot?; "imdb", "mnli" or
        "mnli_mismatched", which must be in the cache; or "toy": random tokens of which some give
        the class away, with a tiny random encoder, so that nothing is fetched.
    methods
        Compared with the mean readout and without noise at training.
    cls_methods
        Compared with the readout of the first token.
    noisy_methods
        Compared with Gaussian noise of `training_gamma` on the embeddings at training.
    reference
        Whether the row of TF-IDF is made; there is none for three classes.
    steps, batch_size, length
        Optimizer steps, texts per step, tokens per text.
    learning_rate, deep_learning_rate
        Rate of AdamW, and that of deep supervision. It rises over the first tenth of the steps
        and falls over the second half.
    dropout
        Share of activations dropped at training, in the encoder and before the head.
    head
        Name of `HEADS`; an encoder of `ENCODERS` has "pooler" alone, the head of its own.
    alpha, dual_step, relaxation_cost
        The share of each layer, the dual step, and the cost of the resilient form; None is plain.
    training_gamma, gammas, noise_draws
        Levels at training and at test; draws of noise per level.
    validation_texts, test_texts, noise_texts, shift_texts
        Texts to validate on; to test on without noise; with noise; of another domain.
    validate_every
        Steps between two validations of early stopping.
    mixed_precision
        ``"no"`` or ``"bf16"``.
    encoder
        "minilm", or a name of `ENCODERS`.
    folder
        Where weights and tokenizer of an encoder of `ENCODERS` are; the cache of `transformers` if
        it is empty.
    """

    task: Literal["sentiment", "plots", "toy", "imdb", "mnli", "mnli_mismatched"] = "sentiment"
    methods: tuple[str, ...] = ("erm", "early", "deep", "exact", "cumulative", "proxy")
    cls_methods: tuple[str, ...] = ("erm", "deep", "exact")
    noisy_methods: tuple[str, ...] = ("erm", "deep", "exact")
    reference: bool = True
    steps: int = 160
    batch_size: int = 24
    length: int = 32
    learning_rate: float = 2e-4
    deep_learning_rate: float = 2e-4
    dropout: float = 0.1
    head: Literal["linear", "norm", "pooler"] = "linear"
    alpha: float = 0.05
    dual_step: float = 0.1
    relaxation_cost: float | None = None
    training_gamma: float = 1.0
    gammas: tuple[float, ...] = (0.0, 0.5, 1.0, 1.5, 2.0)
    noise_draws: int = 1
    validation_texts: int = 300
    test_texts: int = 1_916
    noise_texts: int = 300
    shift_texts: int = 300
    validate_every: int = 20
    mixed_precision: Literal["no", "bf16"] = "no"
    encoder: Literal["minilm", "distilbert", "roberta_base", "roberta_large"] = added("minilm")
    folder: str = added("")


def cases(settings: TextSettings) -> list[Case]:
    """Return the methods with either readout, and with and without noise at training."""
    groups = (
        (settings.methods, "mean", 0.0),
        (settings.cls_methods, "cls", 0.0),
        (settings.noisy_methods, "mean", settings.training_gamma),
        (("tfidf",) if has_reference(settings) else (), "words", 0.0),
    )
    return [
        {"method": method, "readout": readout, "training_noise": gamma}
        for methods, readout, gamma in groups
        for method in methods
    ]


def has_reference(settings: TextSettings) -> bool:
    """Return whether there is a row of TF-IDF, which tells two classes apart."""
    return settings.reference and num_classes(settings.task) == NUM_CLASSES


def num_classes(task: str) -> int:
    """Return the number of classes of a task.

    Examples
    --------
    >>> num_classes("imdb"), num_classes("mnli")
    (2, 3)
    """
    return 3 if task.startswith("mnli") else NUM_CLASSES


def measure(settings: TextSettings, case: Case, seed: int, report: Report) -> dict[str, Any]:
    """Train by one method from one seed; return the losses by layer, and what noise does."""
    if case["method"] == "tfidf":
        return reference_columns(settings)
    try:
        model, run = trained(settings, case, seed, report)
    except NonFiniteError as error:
        return {"diverged": True, "diverged_at_step": error.step}
    method = case["method"]
    batches = batches_of(settings)
    return {
        "diverged": False,
        "learning_rate": rate_of(settings, method),
        **training_columns(run, early=method == "early", constrained=method in FORMS),
        **layer_columns(model, batches["validation"], case, settings, "val"),
        **layer_columns(model, batches["test"], case, settings, "test"),
        **sabotage_columns(model, batches["validation"], case, settings, run),
        **noise_columns(model, sample(batches["test"], settings.noise_texts), case, settings),
        **shift_columns(model, batches, case),
        "steps": run.steps,
    }


# --- data -------------------------------------------------------------------------------------


def batches_of(settings: TextSettings) -> dict[str, Batch]:
    """Return tokens, mask and labels of each split, each as one batch of (n, length).

    Returns
    -------
    dict
        With the keys "train", "validation", "test"; for "sentiment" also "shift", sentences about
        products. All but "train" keep as many texts as the settings say, evenly spread.

    Raises
    ------
    unrolled.data.fetch.FetchError
        A set of the papers, or a tokenizer, is not in the cache; the message says how to get it.

    Examples
    --------
    >>> settings = TextSettings("toy", length=8, validation_texts=20, test_texts=30, shift_texts=10)
    >>> {split: tuple(batch["input_ids"].shape) for split, batch in batches_of(settings).items()}
    {'train': (200, 8), 'validation': (20, 8), 'test': (30, 8), 'shift': (10, 8)}
    """
    counts = (settings.validation_texts, settings.test_texts, settings.shift_texts)
    own = (settings.encoder, settings.folder)
    return _load_batches(settings.task, settings.length, *counts, *own)


@lru_cache(maxsize=4)
def _load_batches(
    task: str,
    length: int,
    validation_texts: int,
    test_texts: int,
    shift_texts: int,
    encoder: str,
    folder: str,
) -> dict[str, Batch]:
    kept = {"validation": validation_texts, "test": test_texts, "shift": shift_texts}
    if task == "toy":
        sizes = {"train": 200, **kept}
        return {split: _toy(count, length, i) for i, (split, count) in enumerate(sizes.items())}
    texts, encode = _texts(task), partial(_encode, _tokenizer(encoder, folder), length)
    found = {split: encode(texts, split) for split in ("train", "validation", "test")}
    if task == "sentiment":
        found["shift"] = encode(amazon_reviews(), "test")
    return {
        split: sample(batch, kept.get(split, len(batch["labels"])))
        for split, batch in found.items()
    }


def _texts(task: str) -> LabelledTexts:
    if task in ORIGINAL_TASKS:
        return present(task)
    return movie_reviews() if task == "sentiment" else reviews_and_plots()


def sample(batch: Batch, count: int) -> Batch:
    """Keep at most so many rows, evenly spread."""
    size = len(batch["labels"])
    index = torch.from_numpy(np.linspace(0, size - 1, min(count, size)).round().astype(np.int64))
    return {name: values[index] for name, values in batch.items()}


def _encode(tokenizer: Any, length: int, texts: LabelledTexts, split: str) -> Batch:
    options = {"padding": "max_length", "truncation": True, "max_length": length}
    encoded = tokenizer(texts.texts(split), texts.seconds(split), return_tensors="pt", **options)
    return {**encoded, "labels": texts.labels(split)}


@lru_cache(maxsize=2)
def _tokenizer(encoder: str, folder: str) -> Any:
    from transformers import AutoTokenizer

    if encoder in ENCODERS:
        return pretrained_part(AutoTokenizer, folder or ENCODERS[encoder])
    return AutoTokenizer.from_pretrained(minilm_folder(), local_files_only=True)


def _toy(count: int, length: int, seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % NUM_CLASSES
    tokens = torch.randint(3, 44, (count, length), generator=generator)
    # tokens 44 to 53 give class 0 away, 54 to 63 class 1
    telling = 44 + 10 * labels[:, None] + torch.randint(10, (count, length), generator=generator)
    tokens = torch.where(torch.rand(count, length, generator=generator) < 0.3, telling, tokens)
    tokens[:, 0] = 1
    return {
        "input_ids": tokens,
        "attention_mask": torch.ones_like(tokens),
        "labels": labels,
    }


def special_tokens(settings: TextSettings) -> tuple[int, ...]:
    """Return the tokens that discrete noise leaves alone."""
    if settings.task == "toy":
        return (0, 1, 2)
    return tuple(_tokenizer(settings.encoder, settings.folder).all_special_ids)


# --- model and training -------------------------------------------------------------------------


class FirstToken(nn.Module):
    """Hand on the state of the first token, with or without a LayerNorm: a plain pooler."""

    def __init__(self, size: int, normed: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size) if normed else nn.Identity()

    def forward(self, states: Tensor) -> Tensor:
        """Map states (B, N, d) to (B, d)."""
        return self.norm(states[:, 0])


def build_classifier(
    task: str, head: str, dropout: float, encoder: str = "minilm", folder: str = ""
) -> nn.Module:
    """Return the encoder of a task with a fresh head; the token embeddings are frozen.

    Parameters
    ----------
    task, head, dropout, encoder, folder
        As in `TextSettings`.

    Returns
    -------
    transformers.PreTrainedModel
        A ``...ForSequenceClassification``. Its head draws from torch's global generator.

    Raises
    ------
    ValueError
        If an encoder of `ENCODERS` is to have another head than its own.
    unrolled.data.fetch.FetchError
        Its weights are not here; the message says how to get them.
    """
    if encoder in ENCODERS:
        require_choice(head, "head", ("pooler",))
        model = _original_classifier(encoder, folder, num_classes(task))
    else:
        model = _small_classifier(task, head)
    for layer in model.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = dropout
    embedding_layer(model).requires_grad_(False)
    return model


def _original_classifier(encoder: str, folder: str, classes: int) -> nn.Module:
    from transformers import AutoModelForSequenceClassification

    return pretrained_part(
        AutoModelForSequenceClassification,
        folder or ENCODERS[encoder],
        num_labels=classes,
        dtype=torch.float32,
        use_safetensors=True,  # no pickle of somebody else
    )


def encoder_config(encoder: str, classes: int) -> Any:
    """Return the configuration of an encoder of `ENCODERS`, without any of its files.

    Parameters
    ----------
    encoder : str
    classes : int
        Of the head.

    Returns
    -------
    transformers.PreTrainedConfig

    Examples
    --------
    >>> encoder_config("roberta_large", 2).num_hidden_layers
    24
    """
    from transformers import DistilBertConfig, RobertaConfig

    require_choice(encoder, "encoder", tuple(ENCODERS))
    if encoder == "distilbert":
        return DistilBertConfig(num_labels=classes)
    size = LARGE if encoder == "roberta_large" else {}
    return RobertaConfig(**ROBERTA, **size, num_labels=classes)


def _small_classifier(task: str, head: str) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    if task == "toy":
        config, encoder = BertConfig(**TINY), None
    else:
        encoder, _ = load_minilm()
        config = encoder.config
    config.num_labels = num_classes(task)
    model = BertForSequenceClassification(config)
    if encoder is not None:
        model.bert = encoder
    if head != "pooler":
        model.bert.pooler = FirstToken(config.hidden_size, head == "norm")
    return model


def build_constraint(
    method: str, alpha: float, num_layers: int, classes: int = NUM_CLASSES
) -> Constraint:
    """Return the constraint of a form; the anchored one starts from the loss of a guess, ln C.

    Examples
    --------
    >>> build_constraint("exact", 0.1, 2).alphas
    (0.1, 0.1)
    """
    alphas = constant_alphas(alpha, num_layers)
    if method == "anchored":
        return FORMS[method](alphas, anchor=math.log(classes))
    return FORMS[method](alphas)


class BestWeights:
    """Early stopping: the weights at the lowest validation loss, looked for every few steps.

    Parameters
    ----------
    model : Module
    loss : callable
        Returns the validation loss of the model as it is.
    every : int
        Steps between two looks; there is one after the last step, too.

    Examples
    --------
    >>> line, losses = nn.Linear(1, 1), iter([2.0, 1.0, 3.0])
    >>> best = BestWeights(line, lambda: next(losses), every=1)
    >>> for step in range(3):
    ...     _ = line.weight.data.fill_(step)
    ...     _ = best.look(step, steps=3)
    >>> best.restore(), line.weight.item()
    (2, 1.0)
    """

    def __init__(self, model: nn.Module, loss: Callable[[], float], every: int) -> None:
        self.model, self.loss, self.every = model, loss, every
        self.lowest, self.weights, self.steps = math.inf, None, 0

    def look(self, step: int, steps: int) -> dict[str, float]:
        """Validate after a step of a run if it is time, and return what was found."""
        done = step + 1
        if done % self.every and done < steps:
            return {}
        loss = self.loss()
        if self.weights is None or loss < self.lowest:
            weights = self.model.state_dict()
            self.weights = {name: value.detach().clone() for name, value in weights.items()}
            self.lowest, self.steps = loss, done
        return {"validated_steps": done, "validation_loss": loss}

    def restore(self) -> int:
        """Put the best weights back and return after how many steps they were."""
        self.model.load_state_dict(self.weights)
        return self.steps

    def state_dict(self) -> dict[str, Any]:
        """Return what a run that goes on must know."""
        return {"lowest": self.lowest, "weights": self.weights, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the state of a run that was cut off."""
        self.lowest, self.weights, self.steps = (
            state[name] for name in ("lowest", "weights", "steps")
        )


def layer_losses(model: nn.Module, batch: Batch, readout: str) -> Tensor:
    """Return the cross-entropy of each text at every layer, (L + 1, B)."""
    inputs = {name: values for name, values in batch.items() if name != "labels"}
    return classification_losses(model, inputs, batch["labels"], pooling=readout)


def trained(
    settings: TextSettings, case: Case, seed: int, report: Report = no_report
) -> tuple[nn.Module, FitResult]:
    """Return the model of a case after its training, and the curves of that training.

    Raises
    ------
    NonFiniteError
        If the loss or a gradient stops being finite.
    """
    method, readout = case["method"], case["readout"]
    batches = batches_of(settings)  # what is not there is told before any work
    torch.manual_seed(seed)  # the head, then dropout; batches and noise have seeds themselves
    model = classifier_of(settings)
    train, places = batches["train"], batches_at(settings, seed)

    def losses_of(model: nn.Module, batch: Batch) -> Tensor:
        return layer_losses(model, batch, readout)

    def validation_loss() -> float:
        parts = split(batches["validation"])
        return collect_losses(model, losses_of, parts)[-1].mean().item()

    hooks = training_hooks(settings, method, model.config.num_hidden_layers, losses_of)
    best = BestWeights(model, validation_loss, settings.validate_every)

    def look(step: StepReport) -> dict[str, float]:
        return best.look(step.step, step.steps) if method == "early" else {}

    stateful = hooks.pop("stateful", {}) | ({"best": best} if method == "early" else {})
    torch.manual_seed(seed)
    with training_noise(model, case["training_noise"], seed) as noise:
        stateful |= {"noise": noise} if case["training_noise"] else {}
        run = fit(
            model,
            lambda step: {name: values[places(step)] for name, values in train.items()},
            training=training_config(settings),
            optimizer=OptimizerConfig(learning_rate=rate_of(settings, method)),
            on_step=after_step(report, hooks.pop("on_step", None), look),
            stateful=stateful,
            **hooks,
        )
    if method == "early":
        run = replace(run, steps=best.restore())
    return model.eval(), run


def classifier_of(settings: TextSettings) -> nn.Module:
    """Return a fresh classifier of the settings; see `build_classifier`."""
    how = (settings.dropout, settings.encoder, settings.folder)
    return build_classifier(settings.task, settings.head, *how)


def training_hooks(
    settings: TextSettings, method: str, num_layers: int, losses_of: Callable
) -> dict[str, Any]:
    """Return what `fit` descends by a method: its loss, and the multipliers if there are any."""
    if method in FORMS:
        return PrimalDual(
            build_constraint(method, settings.alpha, num_layers, num_classes(settings.task)),
            settings.dual_step,
            relaxation_cost=settings.relaxation_cost,
        ).hooks(losses_of)

    def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
        f = losses_of(model, batch).mean(dim=1)  # (L + 1,)
        return f.mean() if method == "deep" else f[-1]

    return {"loss_fn": loss_fn}


def batches_at(settings: TextSettings, seed: int) -> ShuffledBatches:
    """Return which texts make up the batch of each step; the method has no say in it."""
    count = len(batches_of(settings)["train"]["labels"])
    return ShuffledBatches(count, settings.batch_size, seed)


def training_noise(model: nn.Module, gamma: float, seed: int) -> Any:
    """Return the context of Gaussian noise at training; at level 0 there is none."""
    if not gamma:
        return ExitStack()
    generator = torch.Generator().manual_seed(seed)
    return Perturbation(model, gamma, when="training", generator=generator)


def rate_of(settings: TextSettings, method: str) -> float:
    """Return the learning rate of a method."""
    return settings.deep_learning_rate if method == "deep" else settings.learning_rate


def training_config(settings: TextSettings) -> TrainingConfig:
    """Return the schedule: warm-up over a tenth, linear decay over the second half."""
    return training_of(settings, "trapezoid", warmup_steps=settings.steps // 10, decay_fraction=0.5)


# --- columns of a row ---------------------------------------------------------------------------


def training_columns(run: FitResult, *, early: bool, constrained: bool) -> dict[str, Any]:
    """Return the curves of a run: its loss, the multipliers, the validations."""
    found: dict[str, Any] = {
        "step_curve": thin(range(1, len(run.losses) + 1)),
        "loss_curve": thin(run.losses),
    }
    if early:
        found["validated_steps_curve"] = run.diagnostics["validated_steps"]
        found["validation_loss_curve"] = run.diagnostics["validation_loss"]
    if constrained:
        multipliers = dual_curves(run).multipliers  # (T, L)
        found["multiplier_by_layer"] = multipliers[-1].tolist()
        found["largest_multiplier_by_layer"] = multipliers.max(dim=0).values.tolist()
        for layer, curve in enumerate(multipliers.T, start=1):
            found[f"multiplier_{layer}_curve"] = thin(curve)
    return found


def layer_columns(
    model: nn.Module, batch: Batch, case: Case, settings: TextSettings, name: str
) -> dict[str, Any]:
    """Return the columns of `descent_columns` on a split, and the last layer's accuracy."""
    logits = predictions(model, batch, case["readout"])  # (L + 1, n, C)
    labels = batch["labels"].expand(len(logits), -1)
    losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    losses = losses.unflatten(0, labels.shape)  # (L + 1, n)
    found = {
        **descent_columns(losses, settings.alpha),
        **scores(logits[-1], batch["labels"]),
    }
    return {f"{name}_{key}": value for key, value in found.items()}


def descent_columns(losses: Tensor, alpha: float) -> dict[str, Any]:
    """Return the mean loss of each layer, and where it rises.

    ``ascents`` counts the layers whose mean loss is above that of the layer before, ``violations``
    those that do not descend by the share alpha. ``ascent_rate_by_layer`` is the share of the texts
    whose own loss rises there.

    Parameters
    ----------
    losses : Tensor
        (L + 1, B).
    alpha : float
        The share of each layer.

    Examples
    --------
    >>> found = descent_columns(torch.tensor([[2.0, 2.0], [3.0, 2.0], [1.0, 1.0]]), alpha=0.1)
    >>> found["loss_by_layer"], found["ascents"], found["ascent_rate_by_layer"]
    ([2.0, 2.5, 1.0], 1, [0.5, 0.0])
    """
    L = len(losses) - 1
    rises = violations(losses, ExactConstraint(constant_alphas(0.0, L)))
    short = violations(losses, ExactConstraint(constant_alphas(alpha, L)))
    ascents = int(rises.in_mean.sum())
    return {
        "loss": losses[-1].mean().item(),
        "loss_by_layer": losses.mean(dim=1).tolist(),
        "ascents": ascents,
        "monotone": ascents == 0,
        "violations": int(short.in_mean.sum()),
        "ascent_rate": rises.rate,
        "ascent_rate_by_layer": rises.per_layer.tolist(),
        "violation_rate_by_layer": short.per_layer.tolist(),
    }


def sabotage_columns(
    model: nn.Module, batch: Batch, case: Case, settings: TextSettings, run: FitResult
) -> dict[str, Any]:
    """Return whether a layer was made worse than a coin so that the next one descends."""
    if case["method"] not in FORMS:
        return {}
    losses = collect_losses(
        model, lambda model, part: layer_losses(model, part, case["readout"]), split(batch)
    ).cpu()
    classes = num_classes(settings.task)
    constraint = build_constraint(case["method"], settings.alpha, len(losses) - 1, classes)
    largest = dual_curves(run).multipliers.max(dim=0).values.to(losses)
    found = detect_sabotage(losses, constraint, largest, reference=math.log(classes))
    return {
        "sabotaged": bool(found),
        "sabotaged_layers": list(found.sabotaged),
        "sabotage_report": "; ".join(found.reasons),
        "effective_weight_by_layer": list(found.weights),
    }


def noise_columns(
    model: nn.Module, batch: Batch, case: Case, settings: TextSettings
) -> dict[str, Any]:
    """Return accuracy and ROC-AUC at each level of each kind of noise.

    The draws depend on the kind and the number of the draw alone: all models and, but for the
    scale, all levels see the same noise. ``area_...`` is the mean accuracy over the levels,
    ``high_...`` that over the levels of at least 1.
    """
    found: dict[str, Any] = {"gammas": list(settings.gammas)}
    clean = scores(predictions(model, batch, case["readout"])[-1], batch["labels"])
    for kind in NOISES:
        at = [
            clean if gamma == 0 else noisy_scores(model, batch, case, settings, kind, gamma)
            for gamma in settings.gammas
        ]
        accuracies = [score["accuracy"] for score in at]
        pairs = zip(settings.gammas, accuracies, strict=True)
        found[f"accuracy_{kind}_by_gamma"] = accuracies
        found[f"roc_auc_{kind}_by_gamma"] = [score["roc_auc"] for score in at]
        found[f"area_{kind}"] = float(np.mean(accuracies))
        found[f"high_{kind}"] = float(np.mean([a for gamma, a in pairs if gamma >= 1]))
    return found


def noisy_scores(
    model: nn.Module, batch: Batch, case: Case, settings: TextSettings, kind: str, gamma: float
) -> dict[str, float]:
    """Return accuracy and ROC-AUC at one level of noise, the mean over its draws."""
    scale = embedding_scale(embedding_layer(model).weight)
    options = {"kind": kind, "scale": scale, "keep": special_tokens(settings)}
    draws = []
    for draw in range(settings.noise_draws):
        seed = NOISE_SEED + 10 * draw + NOISES.index(kind)
        generator = torch.Generator().manual_seed(seed)
        with Perturbation(model, gamma, generator=generator, **options):
            draws.append(scores(predictions(model, batch, case["readout"])[-1], batch["labels"]))
    return {name: float(np.mean([draw[name] for draw in draws])) for name in draws[0]}


def shift_columns(model: nn.Module, batches: dict[str, Batch], case: Case) -> dict[str, Any]:
    """Return accuracy and ROC-AUC on the other domain, if the task has one."""
    if "shift" not in batches:
        return {}
    batch = batches["shift"]
    found = scores(predictions(model, batch, case["readout"])[-1], batch["labels"])
    return {f"shift_{name}": value for name, value in found.items()}


@torch.no_grad()
def predictions(model: nn.Module, batch: Batch, readout: str) -> Tensor:
    """Return the logits of every layer, (L + 1, n, C), without dropout, on the CPU."""
    model.eval()
    device = next(model.parameters()).device
    parts = []
    for part in split(batch):
        inputs = {name: values.to(device) for name, values in part.items() if name != "labels"}
        parts.append(torch.stack(layer_logits(model, inputs, pooling=readout)).float().cpu())
    return torch.cat(parts, dim=1)


def split(batch: Batch, size: int = 100) -> Iterator[Batch]:
    """Yield a batch in parts of at most so many rows."""
    for start in range(0, len(batch["labels"]), size):
        yield {name: values[start : start + size] for name, values in batch.items()}


def scores(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """Return accuracy and ROC-AUC of logits (n, C); of more than two classes the mean of each."""
    if logits.shape[1] > NUM_CLASSES:
        return _scores_of_many(logits, labels)
    z = logits[:, 1] - logits[:, 0]
    accuracy = ((z > 0) == labels.bool()).double().mean().item()
    return {"accuracy": accuracy, "roc_auc": roc_auc(z, labels)}


def _scores_of_many(logits: Tensor, labels: Tensor) -> dict[str, float]:
    accuracy = (logits.argmax(dim=1) == labels).double().mean().item()
    shares = logits.log_softmax(dim=1)
    areas = [roc_auc(shares[:, c], labels == c) for c in range(logits.shape[1])]
    return {"accuracy": accuracy, "roc_auc": float(np.mean(areas))}


def roc_auc(values: Tensor, labels: Tensor) -> float:
    r"""Return how often a text of class 1 has a higher value than a text of class 0.

    .. math:: \Pr(z_1 > z_0) + \tfrac12 \Pr(z_1 = z_0)

    Parameters
    ----------
    values, labels : Tensor
        (n,); labels are 0 or 1, and both occur.

    Examples
    --------
    >>> roc_auc(torch.tensor([0.1, 0.4, 0.4, 0.9]), torch.tensor([0, 0, 1, 1]))
    0.875
    """
    ranks = stats.rankdata(values.double().numpy())
    one = labels.bool().numpy()
    n1, n0 = int(one.sum()), int((~one).sum())
    # (sum of the ranks of class 1 - what they are among themselves) / pairs
    return float((ranks[one].sum() - n1 * (n1 + 1) / 2) / (n1 * n0))


# --- reference: TF-IDF and logistic regression --------------------------------------------------


def reference_columns(settings: TextSettings) -> dict[str, Any]:
    """Return what logistic regression on TF-IDF features reaches on the same texts."""
    batches = batches_of(settings)
    words = {name: [_words(row) for row in _rows(batch)] for name, batch in batches.items()}
    train = words["train"], batches["train"]["labels"].numpy()
    found = {"diverged": False, "steps": 0}
    for name in batches.keys() - {"train"}:
        z = torch.from_numpy(tfidf_scores(*train, words[name]))
        both = scores(torch.stack([torch.zeros_like(z), z], dim=1), batches[name]["labels"])
        prefix = "val" if name == "validation" else name
        found |= {f"{prefix}_{key}": value for key, value in both.items()}
    return found


def _rows(batch: Batch) -> Iterator[list[int]]:
    for tokens, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True):
        yield tokens[mask.bool()].tolist()


def _words(tokens: list[int]) -> list:
    return tokens + list(pairwise(tokens))


def tfidf_scores(
    train: Sequence[Iterable], labels: np.ndarray, test: Sequence[Iterable], penalty: float = 1e-4
) -> np.ndarray:
    r"""Fit logistic regression on TF-IDF features; return the log-odds of other texts.

    .. math:: x_w = \frac{(1 + \ln n_w) \ln (N / N_w)}{\lVert \cdot \rVert}, \qquad
              \min_\beta \frac1N \sum_i \ln\bigl(1 + e^{-y_i \beta^\top x_i}\bigr)
              + \frac{\text{penalty}}{2} \lVert \beta \rVert^2

    Parameters
    ----------
    train, test : sequence of iterables
        The words of each text; those that are in one text only are left out.
    labels : ndarray
        0 or 1, of `train`.
    penalty : float
        Positive.

    Returns
    -------
    ndarray
        (number of texts in `test`,).

    Examples
    --------
    >>> texts, labels = [["good", "film"], ["bad", "film"]] * 3, np.array([1, 0] * 3)
    >>> tfidf_scores(texts, labels, [["good"], ["bad"]]) > 0
    array([ True, False])
    """
    counts = Counter(word for text in train for word in set(text))
    places = {word: i for i, word in enumerate(w for w, n in counts.items() if n > 1)}
    idf = np.array([math.log(len(train) / counts[word]) for word in places])
    X, y = _features(train, places, idf), 2.0 * labels - 1

    def objective(beta: np.ndarray) -> tuple[float, np.ndarray]:
        margins = y * (X @ beta[:-1] + beta[-1])
        slopes = -y / (1 + np.exp(margins)) / len(y)
        gradient = np.append(X.T @ slopes + penalty * beta[:-1], slopes.sum())
        value = np.logaddexp(0, -margins).mean() + penalty / 2 * (beta[:-1] ** 2).sum()
        return value, gradient

    start = np.zeros(len(places) + 1)
    beta = optimize.minimize(objective, start, jac=True, method="L-BFGS-B").x
    return _features(test, places, idf) @ beta[:-1] + beta[-1]


def _features(
    texts: Sequence[Iterable], places: dict[Any, int], idf: np.ndarray
) -> sparse.csr_matrix:
    entries = [
        (row, places[word], (1 + math.log(n)) * idf[places[word]])
        for row, text in enumerate(texts)
        for word, n in Counter(text).items()
        if word in places
    ]
    rows, columns, values = zip(*entries, strict=True) if entries else ((), (), ())
    X = sparse.csr_matrix((values, (rows, columns)), shape=(len(texts), len(places)))
    norms = np.sqrt(np.asarray(X.multiply(X).sum(axis=1)).ravel())
    return sparse.diags(1 / np.where(norms > 0, norms, 1)) @ X


def describe(settings: TextSettings) -> dict[str, Any]:
    """Return the scale of the settings, counted without running anything."""
    reads = 1 + (len(settings.gammas) - 1) * len(NOISES) * settings.noise_draws
    name = "trainable parameters (6 layers, 384 wide)"
    trained = {name: 10_845_698} if settings.encoder == "minilm" else _sizes(settings)
    return {
        "texts per run": settings.steps * settings.batch_size,
        "tokens per run": settings.steps * settings.batch_size * settings.length,
        "texts read with noise": reads * settings.noise_texts,
        **trained,
    }


def _sizes(settings: TextSettings) -> dict[str, int]:
    model = classifier_on_meta(settings)
    sizes = [(p.numel(), p.requires_grad) for p in model.parameters()]
    return {
        "parameters": sum(size for size, _ in sizes),
        "trainable parameters": sum(size for size, trained in sizes if trained),
    }


def classifier_on_meta(settings: TextSettings) -> nn.Module:
    """Return the classifier of an encoder of `ENCODERS` at full size, without memory or files."""
    from transformers import AutoModelForSequenceClassification

    config = encoder_config(settings.encoder, num_classes(settings.task))
    with torch.device("meta"):
        model = AutoModelForSequenceClassification.from_config(config)
    embedding_layer(model).requires_grad_(False)
    return model


# --- what the paper claims, and how the rows judge it -------------------------------------------

ALLOWANCE = 0.003  # the paper's cost in accuracy, .3 points
RIVALS = {"erm": "ERM", "deep": "deep supervision"}


def _at(method: str, readout: str = "mean", training_noise: float = 0.0) -> dict[str, Any]:
    return {"method": method, "readout": readout, "training_noise": training_noise}


def _query(metric: str, side: dict[str, Any]) -> str:
    shown = " ".join(f"{key}={value}" for key, value in side.items())
    return f"descent_text | mean_ci {metric} | preset=laptop {shown} | .3f"


def _monotone(statement: str, side: dict[str, Any], expect: bool) -> Claim:
    judge = judge_share("test_monotone", side, expect=expect)
    return Claim("descent", statement, None, _query("test_ascents", side), judge)


def _better(
    statement: str, metric: str, side: dict[str, Any], reference: dict[str, Any], expect: str
) -> Claim:
    judge = judge_difference(metric, side, reference, expect=expect)
    return Claim("descent", statement, None, _query(metric, side), judge)


def _costs_little(statement: str, side: dict[str, Any], reference: dict[str, Any]) -> Claim:
    """State that the accuracy of a side is above that of the reference less the allowance."""
    sides = {"side": side, "reference": reference}
    judge = judge_cost("test_accuracy", **sides, expect="higher", allowance=ALLOWANCE)
    return Claim("descent", statement, "below .3 points", _query("test_accuracy", side), judge)


def _robust(method: str, name: str) -> Iterator[Claim]:
    """Claim a larger area and a higher accuracy under noise, against each rival."""
    for reference, rival in RIVALS.items():
        sides = _at(method), _at(reference)
        area = f"{name} has a larger area over gamma than {rival} (Gaussian)"
        yield _better(area, "area_gaussian", *sides, "higher")
        for kind in NOISES:
            statement = f"{name} is more accurate than {rival} at gamma >= 1 ({kind} noise)"
            yield _better(statement, f"high_{kind}", *sides, "higher")


def _robust_with_training_noise() -> Iterator[Claim]:
    for (reference, rival), kind in product(RIVALS.items(), NOISES):
        sides = (_at(method, training_noise=1.0) for method in ("exact", reference))
        statement = f"Trained with noise, constrained beats {rival} at gamma >= 1 ({kind} noise)"
        yield _better(statement, f"high_{kind}", *sides, "higher")


CLAIMS = (
    _monotone("ERM does not descend at every layer (mean)", _at("erm"), expect=False),
    _monotone("ERM does not descend at every layer ([CLS])", _at("erm", "cls"), expect=False),
    _monotone("Constrained descends at every layer (mean)", _at("exact"), expect=True),
    _monotone("Constrained descends at every layer ([CLS])", _at("exact", "cls"), expect=True),
    _better(
        "Constrained ascends at fewer layers than ERM ([CLS])",
        "test_ascents",
        _at("exact", "cls"),
        _at("erm", "cls"),
        "lower",
    ),
    _better(
        "Constrained ascends at fewer layers than deep supervision ([CLS])",
        "test_ascents",
        _at("exact", "cls"),
        _at("deep", "cls"),
        "lower",
    ),
    _costs_little("Constrained costs less than .3 points against ERM", _at("exact"), _at("erm")),
    _costs_little(
        "Constrained costs less than .3 points against deep supervision", _at("exact"), _at("deep")
    ),
    *_robust("exact", "Constrained"),
    *_robust_with_training_noise(),
    *_robust("proxy", "The proxy form"),
    *_robust("cumulative", "The cumulative form"),
)

# The paper's: data sets, encoders, kinds of noise on the token embeddings, and accuracy against
# gamma. Our choice, since it states none of them: three epochs (2,109 steps of 32 of about 22,500
# reviews), 256 tokens, rates in the range of the encoders' authors, alpha and dual step, the levels
# gamma, frozen token embeddings, the readout, and what is held out for validation. Its number: less
# than .3 points of accuracy lost without noise, and unconstrained RoBERTa peaks at layer 19.
ORIGINAL = TextSettings(
    task="imdb",
    head="pooler",
    steps=2_109,
    batch_size=32,
    length=256,
    learning_rate=2e-5,
    deep_learning_rate=2e-5,
    noise_draws=3,
    validation_texts=2_500,
    test_texts=25_000,
    noise_texts=5_000,
    validate_every=200,
    mixed_precision="bf16",
)

SMOKE = TextSettings(
    task="toy",
    methods=("erm", "early", "deep", "exact"),
    cls_methods=(),
    noisy_methods=("exact",),
    steps=8,
    batch_size=8,
    length=8,
    learning_rate=1e-3,
    deep_learning_rate=1e-3,
    gammas=(0.0, 1.0),
    validation_texts=20,
    test_texts=20,
    noise_texts=10,
    shift_texts=10,
    validate_every=3,
)

EXPERIMENT = Experiment(
    name="descent.text",
    summary="Fine-tune an encoder on reviews by each method; read losses by layer, and add noise.",
    presets={
        # All code paths in seconds, on random tokens; no claim.
        "smoke": SMOKE,
        # What a notebook trains while it is read: two methods.
        "live": TextSettings(
            methods=("erm", "exact"),
            cls_methods=(),
            noisy_methods=(),
            reference=False,
            steps=20,
            batch_size=8,
            gammas=(0.0, 2.0),
            validation_texts=50,
            test_texts=50,
            noise_texts=10,
            shift_texts=10,
        ),
        # The committed evidence: about 2.7 minutes a run on one core. `descent.search` chose the
        # rates; for the constrained form it searched alpha and the dual step at ERM's rate.
        "laptop": TextSettings(
            learning_rate=2e-4,
            deep_learning_rate=1e-4,
            noise_texts=200,
            validate_every=40,
        ),
        # DistilBERT on IMDb, for one 16 GB GPU. `python -m unrolled data get imdb`,
        # `hf download distilbert/distilbert-base-uncased`, then
        # `python -m unrolled run descent.text --preset colab`.
        # Plan, the longest unit: 1 x T4 0.066 h, 1 x A100 0.014 h.
        "colab": replace(
            ORIGINAL,
            encoder="distilbert",
            noise_texts=1_000,
        ),
        # RoBERTa-large on IMDb. As above with `hf download FacebookAI/roberta-large`, then
        # `accelerate launch --multi_gpu --num_processes 8 -m unrolled run descent.text --preset
        # paper --micro-batch 4`. MNLI is `--set task=mnli --set length=128 --set steps=35_895`,
        # the base model `--set encoder=roberta_base`.
        # Plan, the longest unit: 1 x A100 0.20 h, 8 x H100 0.0079 h.
        "paper": replace(
            ORIGINAL,
            encoder="roberta_large",
            methods=METHODS,
            length=512,
            learning_rate=1e-5,
            deep_learning_rate=1e-5,
        ),
    },
    cases=cases,
    measure=measure,
    describe=describe,
    seeds={"colab": 5},
    claims=CLAIMS,
)

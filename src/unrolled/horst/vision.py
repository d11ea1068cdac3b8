r"""Vision: which optimizer leaves a network that can be sparse, under alternating compression.

Each unit trains one network on Fashion-MNIST with one optimizer and AC/DC (`AcdcSchedule`) at one
sparsity; sparsity 0 is dense training. A row has the accuracy of the sparse network at the end and
of the dense network just before it was made sparse for good, the ratio of norms
(:eq:`eq-horst-norm-ratio`) through training, a histogram of the dense weights, and how much each
layer keeps. The optimizers and the other compositions are those of `unrolled.horst.compositions`,
each with values of its own. All see the same images, augmented alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unrolled.data.images import ImageBatches, crop_and_flip, fashion_mnist
from unrolled.experiment import Case, Experiment, Report, no_report
from unrolled.horst.compositions import COMPOSITIONS, OPTIMIZERS, Tuned, build_optimizer
from unrolled.horst.sparsity import (
    Acdc,
    AcdcSchedule,
    histogram,
    norm_ratio,
    prunable_weights,
    sparsity_report,
)
from unrolled.horst.vit import SmallCNN, ViT, ViTConfig
from unrolled.results import Claim, judge_difference, thin
from unrolled.training import FitResult, NonFiniteError, StepReport, TrainingConfig, fit
from unrolled.transformer import count_parameters

__all__ = [
    "EXPERIMENT",
    "VisionSettings",
    "accuracy",
    "build_model",
    "trained",
]

NEAR_ZERO = 0.01  # of the largest weight of a layer

Images = dict[str, tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class VisionSettings:
    """The scale of a run: images, networks, training, and what is compared.

    Parameters
    ----------
    data
        "fashion_mnist", or "toy": bars in four directions, so that nothing is fetched.
    optimizers, sparsities
        Names of `OPTIMIZERS`, each at every sparsity, on the ViT.
    compositions, composition_sparsity
        Names of `COMPOSITIONS`, at this sparsity, on the ViT.
    cnn_sparsities
        Those at which the CNN is trained, with every optimizer.
    num_layers, hidden_size, num_heads, patch_size
        Of the ViT; a patch has so many pixels on each side.
    cnn_width
        Channels of the first convolution of the CNN.
    steps, batch_size
        Optimizer steps, and images per step.
    rest_rate
        Peak rate of Adam for norms, biases, class token and positions, in all runs.
    moments
        What happens to the moments when masks go; one of `unrolled.horst.sparsity.MOMENT_RULES`.
    scope
        Of the masks; see `unrolled.horst.sparsity.magnitude_masks`.
    test_images
        At most so many are tested on, and so many are validated on.
    adamw, ham, horst, mirror, sgd, sign, mirror_first
        Values of each, as `horst.search` chose them for the ViT on validation images at 90 % with a
        shorter training.
    mixed_precision
        ``"no"`` or ``"bf16"``.
    """

    data: Literal["fashion_mnist", "toy"] = "fashion_mnist"
    optimizers: tuple[str, ...] = OPTIMIZERS
    sparsities: tuple[float, ...] = (0.0, 0.7, 0.8, 0.9, 0.95)
    compositions: tuple[str, ...] = COMPOSITIONS
    composition_sparsity: float = 0.9
    cnn_sparsities: tuple[float, ...] = (0.0, 0.9, 0.95)
    num_layers: int = 4
    hidden_size: int = 64
    num_heads: int = 2
    patch_size: int = 7
    cnn_width: int = 16
    steps: int = 800
    batch_size: int = 64
    rest_rate: float = 1e-3
    moments: Literal["keep", "reset_masked", "reset_all"] = "keep"
    scope: Literal["global", "layerwise"] = "global"
    test_images: int = 10_000
    adamw: Tuned = field(default_factory=lambda: Tuned(0.00246, 0.0721))
    ham: Tuned = field(default_factory=lambda: Tuned(0.0081, 0.00404, 746.0, 0.979))
    horst: Tuned = field(default_factory=lambda: Tuned(0.000484, 0.00758, 153.0, 0.0895))
    mirror: Tuned = field(default_factory=lambda: Tuned(0.437, 0.00905, 0.771))
    sgd: Tuned = field(default_factory=lambda: Tuned(0.266, 0.0282, 37.7))
    sign: Tuned = field(default_factory=lambda: Tuned(0.00113, 0.0282, 37.7))
    mirror_first: Tuned = field(default_factory=lambda: Tuned(0.0074, 0.133, 3.24))
    mixed_precision: Literal["no", "bf16"] = "no"


def cases(settings: VisionSettings) -> list[Case]:
    """Return every optimizer at every sparsity on the ViT, the compositions, and the CNN."""
    s = settings
    units = [("vit", name, share) for share in s.sparsities for name in s.optimizers]
    units += [("vit", name, s.composition_sparsity) for name in s.compositions]
    units += [("cnn", name, share) for share in s.cnn_sparsities for name in s.optimizers]
    return [{"model": model, "optimizer": name, "sparsity": share} for model, name, share in units]


def measure(settings: VisionSettings, case: Case, seed: int, report: Report) -> dict[str, Any]:
    """Train one network with one optimizer at one sparsity; return accuracies and weights."""
    try:
        model, run, dense = trained(settings, case, seed, report)
    except NonFiniteError as error:
        return {"diverged": True, "diverged_at_step": error.step}
    images = images_of(settings.data, settings.test_images)
    return {
        "diverged": False,
        **{f"{split}_accuracy": accuracy(model, *images[split]) for split in ("val", "test")},
        **dense,
        **training_columns(run),
        **layer_columns(model),
        "parameters": count_parameters(model),
        "steps": run.steps,
    }


# --- images -------------------------------------------------------------------------------------


@lru_cache(maxsize=2)
def images_of(data: str, test_images: int) -> Images:
    """Return images and labels of "train", "val" and "test"; see `VisionSettings`.

    Examples
    --------
    >>> {name: tuple(x.shape) for name, (x, _) in images_of("toy", 50).items()}
    {'train': (200, 1, 8, 8), 'val': (50, 1, 8, 8), 'test': (50, 1, 8, 8)}
    """
    if data == "toy":
        return {
            name: _bars(count, seed)
            for seed, (name, count) in enumerate(
                {"train": 200, "val": test_images, "test": test_images}.items()
            )
        }
    source = fashion_mnist()
    splits = {"train": "train", "val": "validation", "test": "test"}
    found = {name: (source.images(split), source.labels(split)) for name, split in splits.items()}
    return {
        name: pair if name == "train" else tuple(part[:test_images] for part in pair)
        for name, pair in found.items()
    }


def _bars(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return noisy images of 8 x 8 with a row, a column or one of the diagonals."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 4
    bars = torch.zeros(4, 8, 8)
    bars[0, 4], bars[1, :, 4] = 1.0, 1.0
    bars[2], bars[3] = torch.eye(8), torch.eye(8).flip(0)
    return bars[labels, None] + 0.3 * torch.randn(count, 1, 8, 8, generator=generator), labels


# --- networks and optimizers ----------------------------------------------------------------------


def build_model(settings: VisionSettings, name: str) -> nn.Module:
    """Return a fresh network; it draws from torch's global generator.

    Examples
    --------
    >>> count_parameters(build_model(VisionSettings(), "vit"))
    205066
    """
    size, classes = (8, 4) if settings.data == "toy" else (28, 10)
    if name == "cnn":
        return SmallCNN(num_classes=classes, width=settings.cnn_width)
    config = ViTConfig(
        image_size=size,
        patch_size=settings.patch_size,
        num_classes=classes,
        num_layers=settings.num_layers,
        hidden_size=settings.hidden_size,
        num_heads=settings.num_heads,
    )
    return ViT(config)


# --- training -------------------------------------------------------------------------------------


def trained(
    settings: VisionSettings, case: Case, seed: int, report: Report = no_report
) -> tuple[nn.Module, FitResult, dict[str, Any]]:
    """Return the network of a case, its curves, and what the dense network was like.

    The dense network is the one in front of the last sparse phase; without sparsity it is the
    network at the same step.

    Raises
    ------
    NonFiniteError
        If the loss or a gradient stops being finite.
    """
    torch.manual_seed(seed)
    model = build_model(settings, case["model"])
    tuned = getattr(settings, case["optimizer"])
    optimizer = build_optimizer(case["optimizer"], tuned, model, settings.rest_rate)
    schedule = AcdcSchedule(settings.steps)
    acdc = Acdc(
        model,
        optimizer,
        schedule,
        case["sparsity"],
        scope=settings.scope,
        moments=settings.moments,
    )
    images = images_of(settings.data, settings.test_images)
    last = next(s for s in range(settings.steps, 0, -1) if not schedule.is_sparse(s - 1))

    def on_step(step: StepReport) -> dict[str, Any]:
        done = step.step + 1
        report(done, step.steps)
        found = looked_at(model, done, step.steps)
        if done == last:  # among the curves, so that a run that goes on still has it
            columns = dense_columns(model, images)
            found |= {f"dense network: {name}": value for name, value in columns.items()}
        if case["sparsity"] and done < step.steps:
            acdc.before(done)
        return found

    run = fit(
        model,
        batches_at(settings, seed),
        lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        training_config(settings),
        [optimizer],
        on_step=on_step,
        stateful={"acdc": acdc},
    )
    names = [name for name in run.diagnostics if name.startswith("dense network: ")]
    dense = {name.removeprefix("dense network: "): run.diagnostics[name][0] for name in names}
    return model.eval(), run, dense


def batches_at(settings: VisionSettings, seed: int) -> ImageBatches:
    """Return the batches; optimizer and sparsity have no say in them."""
    images, labels = images_of(settings.data, settings.test_images)["train"]
    transform = crop_and_flip() if settings.data == "fashion_mnist" else None
    return ImageBatches(images, labels, settings.batch_size, seed, transform)


def training_config(settings: VisionSettings) -> TrainingConfig:
    """Return the schedule: warm-up over a twentieth, then a cosine."""
    return TrainingConfig(
        steps=settings.steps,
        batch_size=settings.batch_size,
        schedule="cosine",
        warmup_steps=settings.steps // 20,
        mixed_precision=settings.mixed_precision,
        progress=False,
    )


# --- columns of a row -----------------------------------------------------------------------------


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the share of images that a network classifies; it stays in its mode.

    Examples
    --------
    >>> accuracy(nn.Flatten(), torch.eye(3).view(3, 1, 1, 3), torch.tensor([0, 1, 1]))
    0.666...
    """
    device = next(model.parameters(), images).device
    training = model.training
    model.eval()
    parts = zip(images.split(500), labels.split(500), strict=True)
    right = sum(int((model(x.to(device)).argmax(1).cpu() == y).sum()) for x, y in parts)
    model.train(training)
    return right / len(labels)


def looked_at(model: nn.Module, done: int, steps: int) -> dict[str, Any]:
    """Return the mean ratio of norms of the matrices, at every fortieth of a run."""
    if done % max(1, steps // 40):
        return {}
    ratios = [norm_ratio(weight) for weight in prunable_weights(model).values()]
    return {"looked_step": done, "norm_ratio": float(np.mean(ratios))}


def dense_columns(model: nn.Module, images: Images) -> dict[str, Any]:
    """Return what the network is like before it is made sparse for good."""
    weights = prunable_weights(model)
    sizes = [weight.detach().abs() for weight in weights.values()]
    few = [(size < NEAR_ZERO * size.max()).float().mean().item() for size in sizes]
    return {
        "dense_test_accuracy": accuracy(model, *images["test"]),
        "dense_norm_ratio": float(np.mean([norm_ratio(weight) for weight in weights.values()])),
        "dense_near_zero": float(np.mean(few)),
        "dense_largest": max(size.max().item() for size in sizes),
        "histogram_by_bin": histogram(weights),
    }


def layer_columns(model: nn.Module) -> dict[str, Any]:
    """Return the share of weights that are not zero, in all and in each layer of the model."""
    *layers, total = sparsity_report(prunable_weights(model))
    return {"kept": 1 - total.sparsity, "kept_by_layer": [1 - layer.sparsity for layer in layers]}


def training_columns(run: FitResult) -> dict[str, Any]:
    """Return the curves of a run: its loss, and the ratio of norms."""
    return {
        "step_curve": thin(range(1, len(run.losses) + 1)),
        "loss_curve": thin(run.losses),
        "looked_step_curve": run.diagnostics["looked_step"],
        "norm_ratio_curve": run.diagnostics["norm_ratio"],
    }


def describe(settings: VisionSettings) -> dict[str, Any]:
    """Return the scale of the settings, counted without running anything."""
    counts = {f"parameters of the {name}": count_parameters(build_model(settings, name))
              for name in ("vit", "cnn")}  # fmt: skip
    return {**counts, "images per run": settings.steps * settings.batch_size}


# --- what the paper claims, and how the rows judge it -------------------------------------------


def _at(name: str, sparsity: float, model: str = "vit") -> dict[str, Any]:
    return {"model": model, "optimizer": name, "sparsity": sparsity}


def _query(metric_name: str, side: dict[str, Any]) -> str:
    shown = " ".join(f"{key}={value}" for key, value in side.items())
    return f"horst_vision | mean_ci {metric_name} | preset=laptop {shown} | .3f"


def _compare(
    statement: str,
    column: str,
    side: dict[str, Any],
    reference: dict[str, Any],
    expect: str,
    paper: str | None = None,
) -> Claim:
    judge = judge_difference(column, side, reference, expect=expect)
    return Claim("horst", statement, paper, _query(column, side), judge)


def _claims() -> Iterator[Claim]:
    paper = {
        ("adamw", 0.9): "DeiT-Base: 76.83 against 68.86",
        ("ham", 0.9): "DeiT-Small: 70.5 against 60.06",
    }
    names = {"adamw": "AdamW", "ham": "HAM"}
    for sparsity in (0.7, 0.8, 0.9, 0.95):
        for other, name in names.items():
            yield _compare(
                f"HORST is more accurate than {name} at sparsity {sparsity:.0%}",
                "test_accuracy",
                _at("horst", sparsity),
                _at(other, sparsity),
                "higher",
                paper.get((other, sparsity)),
            )
    dense = _at("horst", 0.0), _at("adamw", 0.0)
    yield _compare("HORST loses nothing when dense", "test_accuracy", *dense, "higher")
    # at 90% all masks make the ratio small; without masks it is the optimizer's alone
    for other, name in names.items():
        for sparsity, where in ((0.0, "without masks"), (0.9, "after masks of 90%")):
            yield _compare(
                f"HORST leaves weights that few dominate, more than {name}, {where}",
                "dense_norm_ratio",
                _at("horst", sparsity),
                _at(other, sparsity),
                "lower",
            )
    order = _at("horst", 0.9), _at("mirror_first", 0.9)
    yield _compare("M o S is more accurate than S o M at 90%", "test_accuracy", *order, "higher")
    yield _compare("M o S has the smaller ratio of norms", "dense_norm_ratio", *order, "lower")


EXPERIMENT = Experiment(
    name="horst.vision",
    summary="Train a ViT with alternating compression by each optimizer; prune, and compare.",
    presets={
        # All code paths in seconds, on bars; no claim.
        "smoke": VisionSettings(
            data="toy",
            sparsities=(0.0, 0.9),
            compositions=COMPOSITIONS,
            cnn_sparsities=(0.9,),
            num_layers=1,
            hidden_size=16,
            patch_size=4,
            cnn_width=4,
            steps=24,
            batch_size=16,
            test_images=40,
        ),
        # What a notebook trains while it is read: two optimizers at one sparsity.
        "live": VisionSettings(
            optimizers=("adamw", "horst"),
            sparsities=(0.9,),
            compositions=(),
            cnn_sparsities=(),
            num_layers=2,
            hidden_size=48,
            steps=80,
            test_images=1_000,
        ),
        # The committed evidence: about 45 seconds a run on one core.
        "laptop": VisionSettings(),
        # One 16 GB GPU: larger, longer.
        "colab": VisionSettings(
            num_layers=6, hidden_size=192, num_heads=3, patch_size=4, steps=8_000, batch_size=128
        ),
    },
    cases=cases,
    measure=measure,
    describe=describe,
    seeds={"colab": 3},
    claims=tuple(_claims()),
)

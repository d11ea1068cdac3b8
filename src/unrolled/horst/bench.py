"""Benchmark of the optimizers: what a step costs in time and memory, as ratios."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import AdamW, Optimizer

from unrolled.benchmark import compare_memory, compare_times
from unrolled.horst.compositions import Tuned, build_optimizer
from unrolled.horst.optimizers import Ham, Horst
from unrolled.horst.vit import ViT, ViTConfig
from unrolled.provenance import threads
from unrolled.results import Row

__all__ = ["BENCHMARK", "PRESETS", "BenchmarkSettings", "run"]

Work = Callable[[], None]
SIDE = 1_024  # the matrices that are stepped have so many rows and columns
VALUES = {"lr": 1e-3, "weight_decay": 0.1}


@dataclass(frozen=True)
class BenchmarkSettings:
    """The size of the steps that are timed.

    Parameters
    ----------
    sizes
        Parameters of the optimizers that step alone, in matrices of `side` rows and columns.
    side
        Their rows and columns.
    vit, batch_size
        The network and the images of the end-to-end step.
    rounds
        How often the two sides are timed in turn.
    compiled
        Whether to compare compiled steps, too; on a CPU that takes a C++ compiler.
    """

    sizes: tuple[int, ...] = (1_000_000, 10_000_000, 100_000_000)
    side: int = SIDE
    vit: ViTConfig = field(default_factory=ViTConfig)
    batch_size: int = 64
    rounds: int = 16
    compiled: bool = True


PRESETS = {
    "smoke": BenchmarkSettings(
        (1_000,), 16, ViTConfig(num_layers=1, hidden_size=16), 2, rounds=2, compiled=False
    ),
    "laptop": BenchmarkSettings(),
    "colab": BenchmarkSettings(vit=ViTConfig(num_layers=12, hidden_size=192, num_heads=3)),
}


def run(preset: str = "laptop") -> list[Row]:
    """Return a row per comparison: ratio of times with its 95 % interval, or of peak memories.

    Compared is one step of `Horst`, for each size,

    - with `torch.optim.AdamW`, ``foreach`` and ``fused``, and with `Ham`, in time;
    - with AdamW ``foreach``, in the memory that the step needs beside its state;
    - compiled with AdamW ``foreach`` compiled, in time;

    and one training step of a ViT (forward, backward, step) with that under AdamW, in time.

    Parameters
    ----------
    preset
        A key of `PRESETS`; ``colab`` wants a GPU, the others run on one thread.

    Raises
    ------
    ValueError
        If there is no such preset.
    """
    if preset not in PRESETS:
        raise ValueError(f"unknown preset {preset!r}; allowed: {', '.join(PRESETS)}")
    settings = PRESETS[preset]
    with threads(None if preset == "colab" else 1):
        rows = [row for size in settings.sizes for row in _steps(settings, size)]
        return [*rows, _end_to_end(settings)]


def _steps(settings: BenchmarkSettings, size: int) -> list[Row]:
    rounds, horst = settings.rounds, _optimizer(settings, size, Horst, alpha=20.0).step
    others = {
        "AdamW foreach": _optimizer(settings, size, AdamW, foreach=True).step,
        "AdamW fused": _optimizer(settings, size, AdamW, fused=True).step,
        "HAM": _optimizer(settings, size, Ham).step,
    }
    rows = [
        compare_times(f"time: HORST / {name}", horst, step, rounds=rounds)
        for name, step in others.items()
    ]
    pair = horst, others["AdamW foreach"]
    rows.append(compare_memory("memory beside the state: HORST / AdamW foreach", *pair))
    if settings.compiled:
        compiled = [torch.compile(step) for step in pair]
        name = "time: HORST / AdamW foreach, both compiled"
        rows.append(compare_times(name, *compiled, rounds=rounds))
    return [{**row, "parameters": size} for row in rows]


def _optimizer(
    settings: BenchmarkSettings, size: int, build: type[Optimizer], **options: Any
) -> Optimizer:
    """Return an optimizer of matrices with gradients."""
    side = settings.side
    params = [
        nn.Parameter(0.05 * torch.randn(side, side, device=_device()))
        for _ in range(max(1, round(size / side**2)))
    ]
    for param in params:
        param.grad = 0.01 * torch.randn_like(param)
    return build(params, **VALUES, **options)


def _end_to_end(settings: BenchmarkSettings) -> Row:
    horst, adamw = (_training_step(settings, name) for name in ("horst", "adamw"))
    name = "time: training step of a ViT, HORST / AdamW"
    return compare_times(name, horst, adamw, rounds=settings.rounds)


def _training_step(settings: BenchmarkSettings, name: str) -> Work:
    model = ViT(settings.vit).to(_device())
    optimizer = build_optimizer(name, Tuned(alpha=20.0), model, rest_rate=1e-3)
    config, count = settings.vit, settings.batch_size
    shape = (count, config.num_channels, config.image_size, config.image_size)
    images = torch.randn(shape, device=_device())
    labels = torch.arange(count, device=_device()) % config.num_classes

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


BENCHMARK = run

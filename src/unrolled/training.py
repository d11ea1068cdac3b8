"""Training: one loop for every experiment of the book."""

import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import (
    GradientAccumulationPlugin,
    recursively_apply,
    send_to_device,
    set_seed,
    slice_tensors,
)
from torch import Tensor, nn
from torch.optim import Optimizer
from tqdm import tqdm

from unrolled.optimization import (
    FLT_OPTIMIZER,
    SCHEDULES,
    OptimizerConfig,
    _require,
    build_optimizers,
    check_coverage,
    learning_rate_factor,
    momentum_at,
)

__all__ = [
    "FLT_OPTIMIZER",
    "FitResult",
    "NonFiniteError",
    "OptimizerConfig",
    "StepReport",
    "TrainingConfig",
    "build_optimizers",
    "fit",
]


@dataclass(frozen=True)
class TrainingConfig:
    """How long and on what a model trains."""

    steps: int
    batch_size: int
    micro_batch_size: int | None = None
    schedule: str = "constant"
    warmup_steps: int = 0
    decay_fraction: float = 0.2
    clip_norm: float | None = 1.0
    mixed_precision: str = "no"
    checkpoint_folder: str | Path | None = None
    checkpoint_every: int = 0
    keep_checkpoints: int = 2
    resume: str = "auto"
    log_every: int = 0
    seed: int | None = None
    progress: bool | None = None

    def __post_init__(self):
        for name in ("steps", "batch_size"):
            _require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        _require(self.schedule in SCHEDULES, "schedule", self.schedule, f"one of {SCHEDULES}")


@dataclass(frozen=True)
class StepReport:
    """What one step did."""

    step: int
    loss: float
    gradient_norm: float
    learning_rate: float
    metrics: Mapping[str, Any]


@dataclass(frozen=True)
class FitResult:
    """What a run left behind."""

    losses: list[float] = field(default_factory=list)
    gradient_norms: list[float] = field(default_factory=list)
    diagnostics: dict[str, list] = field(default_factory=dict)
    steps: int = 0
    seconds: float = 0.0
    resumed_from: int | None = None


class NonFiniteError(FloatingPointError):
    """A loss or a gradient became NaN or infinite."""

    def __init__(self, step: int, tensor: str):
        super().__init__(f"step {step}: {tensor} is not finite")
        self.step, self.tensor = step, tensor


class Objective(nn.Module):
    """The loss of a model as a module."""

    def __init__(self, model: nn.Module, loss_fn: Callable):
        super().__init__()
        self.model = model
        self.__dict__["loss_fn"] = loss_fn

    def forward(self, batch) -> tuple[Tensor, dict]:
        """Return the loss and a dict of metrics."""
        loss = self.loss_fn(self.model, batch)
        return loss if isinstance(loss, tuple) else (loss, {})


def _accelerator(training: TrainingConfig) -> Accelerator:
    state = AcceleratorState._shared_state
    if state and state.get("_mixed_precision") != training.mixed_precision:
        AcceleratorState._reset_state()
    plugin = GradientAccumulationPlugin(num_steps=1, sync_with_dataloader=False)
    return Accelerator(
        mixed_precision=training.mixed_precision, gradient_accumulation_plugin=plugin
    )


def fit(
    model: nn.Module,
    batch_at: Callable[[int], Any],
    loss_fn: Callable,
    training: TrainingConfig,
    optimizer: OptimizerConfig | Sequence[Optimizer],
    *,
    on_gradients: Callable[[int, nn.Module], Mapping | None] | None = None,
    on_step: Callable[[StepReport], None] | None = None,
) -> FitResult:
    """Train a model and return its curves."""
    accelerator = _accelerator(training)
    if training.seed is not None:
        set_seed(training.seed)
    optimizers = (
        build_optimizers(model, optimizer)
        if isinstance(optimizer, OptimizerConfig)
        else list(optimizer)
    )
    held = [p for o in optimizers for g in o.param_groups for p in g["params"]]
    check_coverage(model, held, "optimizer")
    rates = [[g["lr"] for g in o.param_groups] for o in optimizers]
    objective, *prepared = accelerator.prepare(Objective(model, loss_fn), *optimizers)
    parameters = [p for p in objective.parameters() if p.requires_grad]
    micro = training.micro_batch_size or training.batch_size // accelerator.num_processes
    share = training.batch_size // accelerator.num_processes
    accumulation = share // micro
    if accelerator.num_processes * micro * accumulation != training.batch_size:
        raise ValueError(
            f"batch_size={training.batch_size} is not {accelerator.num_processes} processes x "
            f"micro_batch_size={micro} x a whole number of accumulation steps"
        )
    accelerator.gradient_accumulation_steps = accumulation
    bar = training.progress
    if bar is None:
        bar = sys.stderr.isatty() and not os.environ.get("TQDM_DISABLE")
    result = FitResult(steps=training.steps)
    began = time.perf_counter()
    model.train()
    model.zero_grad(set_to_none=True)
    for step in tqdm(range(training.steps), disable=not bar, leave=False):
        factor = learning_rate_factor(
            step,
            training.steps,
            training.schedule,
            warmup_steps=training.warmup_steps,
            decay_fraction=training.decay_fraction,
        )
        for o, base in zip(prepared, rates, strict=True):
            for g, rate in zip(o.param_groups, base, strict=True):
                g["lr"] = rate * factor
                if "momentum_start" in g:
                    g["momentum"] = momentum_at(
                        step, g["momentum_start"], g["momentum_end"], g["momentum_warmup"]
                    )
        batch = batch_at(step)
        rows = set()
        recursively_apply(lambda t, rows=rows: rows.add(len(t)), batch)
        if rows != {training.batch_size}:
            raise ValueError(
                f"batch_at({step}) has {sorted(rows)} rows, batch_size={training.batch_size}"
            )
        total, metrics = 0.0, {}
        for index in range(accumulation):
            first = accelerator.process_index * share + index * micro
            part = send_to_device(
                slice_tensors(batch, slice(first, first + micro)), accelerator.device
            )
            with accelerator.accumulate(objective):
                loss, extra = objective(part)
                accelerator.backward(loss)
            total = total + loss.detach() / accumulation
            for key, value in extra.items():
                metrics[key] = metrics.get(key, 0.0) + float(value) / accumulation
        total = float(accelerator.reduce(total, "mean"))
        if not math.isfinite(total):
            raise NonFiniteError(step, "loss")
        accelerator.unscale_gradients()
        if on_gradients is not None:
            metrics |= on_gradients(step, model) or {}
        clip = math.inf if training.clip_norm is None else training.clip_norm
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, clip))
        if not math.isfinite(norm) and accelerator.scaler is None:
            names = [
                n
                for n, p in model.named_parameters()
                if p.grad is not None and not p.grad.isfinite().all()
            ]
            raise NonFiniteError(step, f"gradient of {names[0] if names else 'the model'}")
        for o in prepared:
            o.step()
        model.zero_grad(set_to_none=True)
        result.losses.append(total)
        result.gradient_norms.append(norm)
        for key, value in metrics.items():
            result.diagnostics.setdefault(key, []).append(value)
        if on_step is not None:
            rate = prepared[0].param_groups[0]["lr"]
            on_step(StepReport(step, total, norm, rate, metrics))
    for o, base in zip(prepared, rates, strict=True):
        for g, rate in zip(o.param_groups, base, strict=True):
            g["lr"] = rate
    return FitResult(
        result.losses,
        result.gradient_norms,
        result.diagnostics,
        training.steps,
        time.perf_counter() - began,
    )

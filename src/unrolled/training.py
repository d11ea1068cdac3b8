r"""Training: the one loop that every experiment of the book runs through.

`fit` descends the mean loss of a batch with the optimizers of `unrolled.optimization`,

.. math::
    g_t = \nabla_\theta \frac1B \sum_{i=1}^B \ell(\theta_t; z_{t,i}), \qquad
    \theta_{t+1} = \text{update}\bigl(\theta_t, g_t \min(1, c / \lVert g_t \rVert)\bigr),

in one process, or in several under ``accelerate launch``. The batch of step t is a function of t,
the rates are functions of t, and a checkpoint holds all that is left: so a run that was killed
continues as if it had not been. The engine (devices, processes, mixed precision, accumulation)
is Hugging Face Accelerate.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from unrolled.checkpoint import CheckpointError, CheckpointWarning
from unrolled.engine import FitResult, NonFiniteError, Run, Stateful, StepReport
from unrolled.execution import Preempted, StopRequest, fits_run_with, next_fit
from unrolled.optimization import (
    FLT_OPTIMIZER,
    SCHEDULES,
    OptimizerConfig,
    build_optimizers,
    require,
)

__all__ = [
    "FLT_OPTIMIZER",
    "CheckpointError",
    "CheckpointWarning",
    "FitResult",
    "NonFiniteError",
    "OptimizerConfig",
    "Preempted",
    "RunSettings",
    "Stateful",
    "StepReport",
    "TrainingConfig",
    "after_step",
    "build_optimizers",
    "fit",
    "training_of",
]

PRECISIONS = ("no", "bf16", "fp16")


@dataclass(frozen=True)
class TrainingConfig:
    r"""How long a model trains, on how much at once, and what is kept on the way.

    Parameters
    ----------
    steps
        Number of optimizer steps T.
    batch_size
        The effective batch B: sequences per optimizer step, over all processes and all
        accumulation steps.
    micro_batch_size
        Sequences that one process holds at a time. The number of accumulation steps follows:
        :math:`B = P \cdot \text{micro} \cdot \text{accumulation}` for P processes, checked. None
        means no accumulation.
    schedule, warmup_steps, decay_fraction
        See `unrolled.optimization.learning_rate_factor`.
    clip_norm
        The largest norm c of the gradient; None clips nothing.
    mixed_precision
        ``"no"``, ``"bf16"``, or ``"fp16"`` (needs a GPU; losses are scaled).
    checkpoint_folder
        Where checkpoints go; None keeps none. Several processes must all see it.
    checkpoint_every, checkpoint_minutes
        Steps, and minutes, between checkpoints; 0 for none. One is written after the last step in
        any case, and one when the process is asked to stop.
    keep_checkpoints
        How many of the newest are kept.
    resume
        ``"auto"``: continue from the newest whole checkpoint if there is one. ``"never"``: start
        at step 0, and refuse a folder that has checkpoints.
    log_every
        Steps between lines in the log ``unrolled.training``; 0 logs nothing.
    seed
        Seeds Python, NumPy and torch at step 0 (process r gets seed + r). None leaves the global
        generators as they are. A resumed run takes their state from the checkpoint.
    progress
        True or False for a progress bar; None shows one in a terminal only. There is none when
        ``TQDM_DISABLE`` is set.

    Raises
    ------
    ValueError
        If a value is outside its range.

    Examples
    --------
    >>> TrainingConfig(steps=100, batch_size=8, micro_batch_size=2).schedule
    'constant'
    >>> TrainingConfig(steps=100, batch_size=8, micro_batch_size=3)
    Traceback (most recent call last):
    ...
    ValueError: micro_batch_size must be None or a divisor of batch_size=8, got 3
    """

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
    checkpoint_minutes: float = 0.0
    keep_checkpoints: int = 2
    resume: str = "auto"
    log_every: int = 0
    seed: int | None = None
    progress: bool | None = None

    def __post_init__(self):
        for name, least in (
            ("steps", 1),
            ("batch_size", 1),
            ("warmup_steps", 0),
            ("checkpoint_every", 0),
            ("keep_checkpoints", 1),
            ("log_every", 0),
        ):
            value = getattr(self, name)
            require(_is_whole(value) and value >= least, name, value, f"a whole number >= {least}")
        self._check_batch()
        self._check_schedule()
        self._check_choices()

    def _check_batch(self) -> None:
        micro = self.micro_batch_size
        fits = micro is None or (_is_whole(micro) and micro >= 1 and self.batch_size % micro == 0)
        allowed = f"None or a divisor of batch_size={self.batch_size}"
        require(fits, "micro_batch_size", micro, allowed)

    def _check_schedule(self) -> None:
        require(self.schedule in SCHEDULES, "schedule", self.schedule, f"one of {SCHEDULES}")
        require(0 < self.decay_fraction <= 1, "decay_fraction", self.decay_fraction, "in (0, 1]")
        falling = self.decay_fraction * self.steps if self.schedule == "trapezoid" else 0
        room = self.steps - round(falling)
        allowed = f"at most {room}: warm-up and decay must fit in steps={self.steps}"
        require(self.warmup_steps <= room, "warmup_steps", self.warmup_steps, allowed)

    def _check_choices(self) -> None:
        clip, folder = self.clip_norm, self.checkpoint_folder
        require(clip is None or clip > 0, "clip_norm", clip, "None or positive")
        precision = self.mixed_precision
        require(precision in PRECISIONS, "mixed_precision", precision, f"one of {PRECISIONS}")
        require(self.resume in ("auto", "never"), "resume", self.resume, "'auto' or 'never'")
        minutes = self.checkpoint_minutes
        require(0 <= minutes < math.inf, "checkpoint_minutes", minutes, "finite and at least 0")
        for name in ("checkpoint_every", "checkpoint_minutes"):
            value, need = getattr(self, name), "0 when there is no checkpoint_folder"
            require(folder is not None or value == 0, name, value, need)
        require(self.seed is None or _is_whole(self.seed), "seed", self.seed, "None or an integer")


def after_step(
    report: Callable[[int, int], None],
    *actions: Callable[[StepReport], Mapping[str, Any] | None] | None,
) -> Callable[[StepReport], dict[str, Any]]:
    """Return an ``on_step`` of `fit`: tell how far the run is, then take each action in turn.

    Parameters
    ----------
    report
        Called with the number of steps that are done, and that there are.
    actions
        What they return is put together; None is no action.
    """

    def on_step(step: StepReport) -> dict[str, Any]:
        report(step.step + 1, step.steps)
        found: dict[str, Any] = {}
        for action in filter(None, actions):
            found |= action(step) or {}
        return found

    return on_step


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class RunSettings(Protocol):
    """What the training of an experiment needs to know of its settings."""

    steps: int
    batch_size: int
    mixed_precision: str


def training_of(
    settings: RunSettings, schedule: str, *, warmup_steps: int = 0, decay_fraction: float = 0.2
) -> TrainingConfig:
    """Return the configuration of a run of an experiment, which shows its progress elsewhere.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> settings = SimpleNamespace(steps=100, batch_size=8, mixed_precision="no")
    >>> training_of(settings, "cosine", warmup_steps=5).warmup_steps
    5
    """
    return TrainingConfig(
        steps=settings.steps,
        batch_size=settings.batch_size,
        schedule=schedule,
        warmup_steps=warmup_steps,
        decay_fraction=decay_fraction,
        mixed_precision=settings.mixed_precision,
        progress=False,
    )


def fit(
    model: nn.Module,
    batch_at: Callable[[int], Any],
    loss_fn: Callable[[nn.Module, Any], Tensor | tuple[Tensor, Mapping[str, float]]],
    training: TrainingConfig,
    optimizer: OptimizerConfig | Sequence[Optimizer],
    *,
    on_gradients: Callable[[int, nn.Module], Mapping[str, Any] | None] | None = None,
    on_step: Callable[[StepReport], Mapping[str, Any] | None] | None = None,
    stateful: Mapping[str, Stateful] | None = None,
) -> FitResult:
    """Train a model, in place, and return its curves.

    Parameters
    ----------
    model
        Any module. It ends on Accelerate's device, in training mode.
    batch_at
        The batch of a step: a tensor, or a tuple, list or dict of tensors, each with
        `training.batch_size` rows. A pure function of the step, which is what lets a run resume
        at any place in the data. Every process calls it and takes its own rows.
    loss_fn
        Maps the model and some rows of a batch to their mean loss, or to the loss and a dict of
        numbers. Rows must have equal weight, otherwise the mean over micro-batches is not the
        mean over the batch.
    training
        Length, batch, schedule, precision, checkpoints.
    optimizer
        A config, or ready optimizers that together hold every trainable parameter once.
    on_gradients
        Called with the step and the model when the gradient of the whole batch is there
        (accumulated, averaged over processes, unscaled) and not yet clipped. It may read and
        change ``parameter.grad``; what it returns goes to the diagnostics.
    on_step
        Called after the update; what it returns goes to the diagnostics. After a kill, steps
        behind the last checkpoint are reported again.
    stateful
        Other objects that belong to the run (multipliers, masks, probes with a memory): saved in
        its checkpoints and restored from them.

    Returns
    -------
    FitResult
        Losses, gradient norms and diagnostics by step.

    Raises
    ------
    ValueError
        If the batch does not divide, has other rows than `training.batch_size`, the optimizers
        do not hold the model's parameters, or the checkpoints belong to another run.
    NonFiniteError
        If the loss or a gradient is NaN or infinite.
    CheckpointError
        If all checkpoints of the run are damaged, or another run holds their folder.
    Preempted
        If there is a checkpoint folder and SIGTERM came, to any of the processes: the step is
        finished and a checkpoint written. Uncaught, it ends the process with the exit code
        `unrolled.execution.PREEMPTED`; the same call goes on.

    Warns
    -----
    CheckpointWarning
        If a damaged checkpoint was passed over, or one could not be written (a full disk): the
        run goes on. If a run goes on with another number of processes.

    Notes
    -----
    With the same machine, threads and versions, a killed and resumed run gives the same weights
    bit for bit on a CPU. For that, hooks may keep no memory outside `stateful`. Nothing is seeded
    unless `training.seed` says so. Learning rates are back at their base values at the end.

    ``accelerate launch script.py`` starts one process per GPU; on CPUs
    ``ACCELERATE_USE_CPU=true torchrun --nproc-per-node 2 script.py`` does. The result is that of
    one process with the same `training.batch_size`, up to rounding (and dropout, whose random
    numbers each process draws for itself). A run may go on with another number of processes.

    Inside `unrolled.execution.fits_run_with` a fit that says nothing of checkpoints has them.

    Examples
    --------
    >>> import torch
    >>> line = nn.Linear(1, 1)
    >>> x = torch.linspace(-1, 1, 8)[:, None]
    >>> result = fit(
    ...     line,
    ...     batch_at=lambda step: (x, 2 * x),
    ...     loss_fn=lambda model, batch: ((model(batch[0]) - batch[1]) ** 2).mean(),
    ...     training=TrainingConfig(steps=50, batch_size=8),
    ...     optimizer=OptimizerConfig(learning_rate=0.1),
    ... )
    >>> len(result.losses), result.losses[-1] < result.losses[0]
    (50, True)
    """
    _check_arguments(model, training, optimizer)
    training = _executed(training)
    hooks = (on_gradients, on_step, stateful or {})
    # A fit in a hook is not counted: after a kill, those of the steps behind are not called again.
    with fits_run_with(None), StopRequest(training.checkpoint_folder is not None) as stop:
        run = Run(model, batch_at, loss_fn, training, optimizer, *hooks, stop)
        try:
            run.start()
            _take_steps(run)
            return run.result()
        finally:
            run.close()


def _executed(training: TrainingConfig) -> TrainingConfig:
    """Return the settings with what the machine decides, where they leave it open."""
    execution = next_fit()
    if execution is None:
        return training
    if training.micro_batch_size is None:
        training = replace(training, micro_batch_size=execution.micro_batch_size)
    if training.checkpoint_folder is not None or execution.checkpoint_folder is None:
        return training
    names = ("checkpoint_folder", "checkpoint_minutes", "resume")
    return replace(training, **{name: getattr(execution, name) for name in names})


def _take_steps(run: Run) -> None:
    with run.progress_bar() as bar:
        for step in range(run.done, run.training.steps):
            report = run.take_step(step)
            run.save_if_due()
            run.stop_if_asked()
            bar.set_postfix_str(f"loss {report.loss:.4g}", refresh=False)
            bar.update()


def _check_arguments(model: object, training: object, optimizer: object) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if not isinstance(training, TrainingConfig):
        raise TypeError(f"training must be a TrainingConfig, got {type(training).__name__}")
    listed = isinstance(optimizer, (list, tuple)) and len(optimizer) > 0
    if not isinstance(optimizer, OptimizerConfig) and not (
        listed and all(isinstance(item, Optimizer) for item in optimizer)
    ):
        raise TypeError(
            "optimizer must be an OptimizerConfig or a list of torch optimizers, "
            f"got {type(optimizer).__name__}"
        )

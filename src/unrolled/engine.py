"""The engine of a run: one optimizer step, what it reports, and how a run is saved and resumed.

`unrolled.training.fit` is the way in; `Run` holds what moves from step to step.
"""

import dataclasses
import functools
import logging
import math
import os
import sys
import time
import warnings
from collections.abc import Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from accelerate import Accelerator, DistributedType
from accelerate.state import AcceleratorState
from accelerate.utils import (
    GradientAccumulationPlugin,
    broadcast_object_list,
    gather_object,
    send_to_device,
    set_seed,
    slice_tensors,
)
from torch import Tensor, nn
from torch.optim import Optimizer
from tqdm import tqdm

from unrolled import hardware
from unrolled.checkpoint import (
    Checkpoint,
    CheckpointError,
    CheckpointWarning,
    check_same_settings,
    describe_model,
    describe_value,
    exclusive,
    load_latest_checkpoint,
    pack,
    random_state,
    save_checkpoint,
    set_random_state,
)
from unrolled.execution import Preempted
from unrolled.objective import Objective, Share, digest
from unrolled.optimization import (
    OptimizerConfig,
    build_optimizers,
    check_coverage,
    learning_rate_factor,
    momentum_at,
)
from unrolled.sharding import is_divided, load_optimizer, load_weights, whole

if TYPE_CHECKING:
    from unrolled.training import TrainingConfig

logger = logging.getLogger("unrolled.training")
# What may change between the parts of a run.
FREE = (
    "checkpoint_folder",
    "checkpoint_every",
    "checkpoint_minutes",
    "keep_checkpoints",
    "resume",
    "log_every",
    "progress",
)
SHARDED = (DistributedType.FSDP, DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM)
ASK_FOR_FSDP2 = "only FSDP of version 2 shards a model here (--use_fsdp --fsdp_version 2), not"
HOOKS_SEE_PARTS = (
    "The model is divided among the processes (FSDP 2), and a hook sees their parts. What it may "
    "do: read and scale gradients, and unrolled.sharding.whole(model.state_dict()) in all "
    "processes. The model itself runs in loss_fn only, so multipliers take their slacks from the "
    "batches of the steps (no `measure`)."
)


@dataclass(frozen=True)
class StepReport:
    """What one optimizer step did; `fit` hands it to ``on_step``.

    Parameters
    ----------
    step, steps
        The step, from 0, and how many the run has.
    loss
        Mean loss of the batch, before the update.
    gradient_norm
        Norm of the whole gradient, before clipping.
    learning_rate
        Rate of the first parameter group of the first optimizer.
    metrics
        What ``loss_fn`` and ``on_gradients`` returned beside the loss.
    """

    step: int
    steps: int
    loss: float
    gradient_norm: float
    learning_rate: float
    metrics: Mapping[str, Any]


@dataclass(frozen=True)
class FitResult:
    """The curves of a run, from its step 0 on also if it was resumed.

    Parameters
    ----------
    losses, gradient_norms
        One number per step: mean loss of the batch; norm of the gradient before clipping.
    diagnostics
        What ``loss_fn``, ``on_gradients`` and ``on_step`` returned, by key, in order. A key that
        comes only at some steps has a shorter list: return the step beside it. With fp16,
        ``skipped_step`` holds the steps whose gradient overflowed.
    steps
        Steps done.
    seconds
        Time spent in them, over all parts of a resumed run.
    resumed_from
        Step of the checkpoint that this call continued from, or None.
    """

    losses: list[float] = field(default_factory=list)
    gradient_norms: list[float] = field(default_factory=list)
    diagnostics: dict[str, list] = field(default_factory=dict)
    steps: int = 0
    seconds: float = 0.0
    resumed_from: int | None = None


class NonFiniteError(FloatingPointError):
    """A loss or a gradient is NaN or infinite; the weights are those before the step.

    Attributes
    ----------
    step : int
        The step at which it happened.
    tensor : str
        ``"loss"``, or ``"gradient of NAME"`` with the name of a parameter.
    result : FitResult
        The curves of the steps before.
    """

    def __init__(self, step: int, tensor: str, value: str, result: FitResult):
        super().__init__(f"step {step}: {tensor} is not finite ({value})")
        self.step, self.tensor, self.value, self.result = step, tensor, value, result

    def __reduce__(self):
        # So that the error crosses from a worker process to its parent.
        return type(self), (self.step, self.tensor, self.value, self.result)


class Stateful(Protocol):
    """Anything with a ``state_dict()`` of tensors and plain values, and its inverse."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""

    def load_state_dict(self, state: dict[str, Any]) -> Any:
        """Take over a state."""


class Run:
    """A run between its first and its last step: what moves, and how a step moves it."""

    def __init__(
        self, model, batch_at, loss_fn, training, optimizer, on_gradients, on_step, stateful, stop
    ):
        self.model, self.batch_at, self.training = model, batch_at, training
        self.on_gradients, self.on_step, self.stateful = on_gradients, on_step, stateful
        self.stop, self.stopping, self.late, self.kept = stop, False, False, 0
        self.held = ExitStack()
        self.accelerator = _accelerator(training)
        self.share = Share.of(
            training, self.accelerator.num_processes, self.accelerator.process_index
        )
        config = optimizer if isinstance(optimizer, OptimizerConfig) else None
        built = build_optimizers(model, config) if config else list(optimizer)
        held = [p for o in built for group in o.param_groups for p in group["params"]]
        check_coverage(model, held, "optimizer")
        self.rates = [[group["lr"] for group in o.param_groups] for o in built]
        self.settings = self._describe(built) if training.checkpoint_folder else {}
        self.objective, *self.optimizers = self.accelerator.prepare(
            Objective(model, loss_fn), *built
        )
        self.parameters = list(self.objective.parameters())
        if is_divided(model):
            _refuse_parts(self.stateful, model, built)
        self.curves = FitResult()
        self.done, self.resumed_from = 0, None

    def _describe(self, optimizers: list[Optimizer]) -> dict[str, Any]:
        """Return all that must be the same when a run is resumed."""
        training = dataclasses.asdict(self.training)
        training = {name: value for name, value in training.items() if name not in FREE}
        return {
            "training": training,
            "processes": self.share.processes,
            "optimizer": {str(i): _describe_optimizer(o) for i, o in enumerate(optimizers)},
            "model": describe_model(self.model),
            "data": {"first_batch": digest(self.batch_at(0))},
            "stateful": sorted(self.stateful),
        }

    # Start and end -------------------------------------------------------------------------------

    def start(self) -> None:
        """Restore the newest checkpoint, or begin at step 0."""
        self.began = self.saved = time.perf_counter()
        self.model.train()
        self.model.zero_grad(set_to_none=True)
        checkpoint = self._find_checkpoint()
        if checkpoint is not None:
            self._restore(checkpoint)
        elif self.training.seed is not None:
            set_seed(self.training.seed, device_specific=True)

    def close(self) -> None:
        """Give the checkpoint folder free, and put the learning rates back to their base values."""
        self.held.close()
        for optimizer, rates in zip(self.optimizers, self.rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate

    def result(self) -> FitResult:
        """Return the curves up to now."""
        return dataclasses.replace(
            self.curves,
            steps=self.done,
            seconds=self.curves.seconds + time.perf_counter() - self.began,
            resumed_from=self.resumed_from,
        )

    @contextmanager
    def progress_bar(self):
        """Show one line with the step, the loss and the time left, where that is wanted."""
        wanted = self.training.progress
        if wanted is None:
            wanted = sys.stderr.isatty()
        silent = os.environ.get("TQDM_DISABLE", "0") not in ("", "0")
        with tqdm(
            total=self.training.steps,
            initial=self.done,
            disable=silent or not wanted or not self.accelerator.is_main_process,
            leave=False,
            dynamic_ncols=True,
            unit="step",
        ) as bar:
            yield bar

    # One step ------------------------------------------------------------------------------------

    def take_step(self, step: int) -> StepReport:
        """Compute the gradient of a batch, check it, clip it, and update the weights."""
        self._set_rates(step)
        loss, metrics = self._gradient(step)
        if not math.isfinite(loss):
            raise NonFiniteError(step, "loss", str(loss), self.result())
        norm = self._clip(step, metrics)
        self._update(step, norm, metrics)
        return self._report(step, loss, norm, metrics)

    def _set_rates(self, step: int) -> None:
        training = self.training
        factor = learning_rate_factor(
            step,
            training.steps,
            training.schedule,
            warmup_steps=training.warmup_steps,
            decay_fraction=training.decay_fraction,
        )
        for optimizer, rates in zip(self.optimizers, self.rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor
                if "momentum_start" in group:
                    ramp = (
                        group["momentum_start"],
                        group["momentum_end"],
                        group["momentum_warmup"],
                    )
                    group["momentum"] = momentum_at(step, *ramp)

    def _gradient(self, step: int) -> tuple[float, dict[str, Any]]:
        """Leave the gradient of the whole batch in the parameters; return loss and metrics."""
        batch = self.batch_at(step)
        self.share.check(batch, step)
        accelerator, pieces = self.accelerator, self.share.accumulation
        # Accelerate keeps this number for the process, and a hook may have run a fit of its own.
        accelerator.gradient_accumulation_steps = pieces
        losses, outputs = [], []
        for rows in self.share.rows():
            part = send_to_device(slice_tensors(batch, rows), accelerator.device)
            with accelerator.accumulate(self.objective):
                loss, metrics = self.objective(part)
                accelerator.backward(loss)
            losses.append(loss.detach())
            outputs.append(metrics)
        # L = (1 / pieces) sum_j L_j, and the same for the metrics
        columns = [losses, *([output[key] for output in outputs] for key in metrics)]
        means = [sum(map(float, column)) / pieces for column in columns]
        loss, *means = self._agree(means)
        return loss, dict(zip(metrics, means, strict=True))

    def _agree(self, numbers: list[float]) -> list[float]:
        """Return the means over all processes, and learn if one was asked to stop or is late.

        One exchange for both, so that all processes save and stop behind the same step.
        """
        minutes = self.training.checkpoint_minutes
        late = minutes > 0 and time.perf_counter() - self.saved > 60 * minutes
        if self.share.processes > 1:
            flags = [float(self.stop.asked), float(late)]
            device = self.accelerator.device
            values = torch.tensor([*numbers, *flags], dtype=torch.float64, device=device)
            *numbers, stopping, late = self.accelerator.reduce(values, "mean").tolist()
        else:
            stopping = self.stop.asked
        self.stopping, self.late = stopping > 0, late > 0
        return numbers

    def _clip(self, step: int, metrics: dict[str, Any]) -> float:
        """Run the gradient hook, clip, and return the norm before clipping."""
        self.accelerator.unscale_gradients()
        if self.on_gradients is not None:
            with self._hook():
                metrics |= _plain_values(self.on_gradients(step, self.model), "on_gradients")
        limit = math.inf if self.training.clip_norm is None else self.training.clip_norm
        # In two steps, because clipping by a norm that is NaN would spoil every gradient, and the
        # first bad one could not be named. Accelerate's function would also unscale once more.
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        total = nn.utils.get_total_norm(gradients)
        norm = float(whole(total))
        self._check_finite(step, norm)
        nn.utils.clip_grads_with_norm_(self.parameters, limit, total)
        return norm

    def _check_finite(self, step: int, norm: float) -> None:
        # An overflow under a loss scale is no error: the scale falls and the step is skipped.
        scaler = self.accelerator.scaler
        if not math.isfinite(norm) and (scaler is None or scaler.get_scale() < 1):
            name, value = self._blame(norm)
            raise NonFiniteError(step, name, value, self.result())

    def _blame(self, norm: float) -> tuple[str, str]:
        """Name the first gradient that is not finite."""
        for name, parameter in self.model.named_parameters():
            gradient = whole(parameter.grad)
            if gradient is not None and not gradient.isfinite().all():
                bad = int((~gradient.isfinite()).sum())
                return f"gradient of {name}", f"{bad} of {gradient.numel()} entries"
        return "gradient norm", str(norm)

    def _update(self, step: int, norm: float, metrics: dict[str, Any]) -> None:
        scaler = self.accelerator.scaler
        if scaler is None:
            for optimizer in self.optimizers:
                optimizer.step()
        else:
            # One update of the scale after all optimizers, and all of them step or none. Accelerate
            # updates after each, and then the next optimizer's gradients are unscaled twice.
            if math.isfinite(norm):
                for optimizer in self.optimizers:
                    scaler.step(optimizer.optimizer)
            else:
                metrics["skipped_step"] = step
            scaler.update()
        self.model.zero_grad(set_to_none=True)
        self.done = step + 1

    def _report(self, step: int, loss: float, norm: float, metrics: dict[str, Any]) -> StepReport:
        self.curves.losses.append(loss)
        self.curves.gradient_norms.append(norm)
        self._record(metrics)
        rate = self.optimizers[0].param_groups[0]["lr"]
        report = StepReport(step, self.training.steps, loss, norm, rate, metrics)
        every = self.training.log_every
        if every and self.accelerator.is_main_process and (step + 1) % every == 0:
            logger.info("step %d loss %.6g norm %.4g rate %.3g", step, loss, norm, rate)
        if self.on_step is not None:
            with self._hook():
                self._record(_plain_values(self.on_step(report), "on_step"))
        return report

    @contextmanager
    def _hook(self):
        """Let an error of a hook say what a hook may do, if the model is divided."""
        try:
            yield
        except RuntimeError as error:
            if is_divided(self.model):
                error.add_note(HOOKS_SEE_PARTS)
            raise

    def _record(self, values: Mapping[str, Any]) -> None:
        for key, value in values.items():
            self.curves.diagnostics.setdefault(key, []).append(value)

    # Checkpoints ---------------------------------------------------------------------------------

    def save_if_due(self) -> None:
        """Write a checkpoint every so many steps or minutes, at the end, and before a stop."""
        folder, every = self.training.checkpoint_folder, self.training.checkpoint_every
        if self.share.processes == 1:  # nobody to agree with, so a request just now counts
            self.stopping = self.stop.asked
        last = self.done == self.training.steps or self.stopping
        if folder is None or not (last or self.late or (every and self.done % every == 0)):
            return
        # Each process has its own random state; the rest is the same in all of them.
        random_states = gather_object([random_state()])
        checkpoint = self._snapshot(random_states)  # by all, since parts of tensors are exchanged
        if self.accelerator.is_main_process:
            self._write(checkpoint)
        self.accelerator.wait_for_everyone()
        self.saved = time.perf_counter()

    def _write(self, checkpoint: Checkpoint) -> None:
        training = self.training
        try:
            save_checkpoint(training.checkpoint_folder, checkpoint, training.keep_checkpoints)
            self.kept = checkpoint.step
        except OSError as error:
            before = "the run goes on" if not self.stopping else "the run stops as it was asked to"
            warnings.warn(
                f"no checkpoint at step {checkpoint.step}: {error}. The checkpoints before are as "
                f"they were; {before}",
                CheckpointWarning,
                stacklevel=2,
            )

    def stop_if_asked(self) -> None:
        """Raise `Preempted` if any process was asked to stop; the checkpoint is written."""
        if self.stopping:
            stopped = Preempted(self.kept, self.training.checkpoint_folder)
            if self.accelerator.is_main_process:
                logger.warning("%s", stopped)
            raise stopped

    def _snapshot(self, random_states: list[dict]) -> Checkpoint:
        curves, scaler = self.result(), self.accelerator.scaler
        gather = functools.partial(whole, keep=self.accelerator.is_main_process)
        state = {
            "settings": self.settings,
            "versions": {"torch": str(torch.__version__)},
            "optimizers": gather([optimizer.state_dict() for optimizer in self.optimizers]),
            "scaler": scaler.state_dict() if scaler is not None else None,
            "stateful": gather({name: item.state_dict() for name, item in self.stateful.items()}),
            "random": random_states,
            "losses": curves.losses,
            "gradient_norms": curves.gradient_norms,
            "diagnostics": curves.diagnostics,
            "seconds": curves.seconds,
        }
        return Checkpoint(self.done, gather(self.model.state_dict()), state)

    def _find_checkpoint(self) -> Checkpoint | None:
        folder = self.training.checkpoint_folder
        if folder is None:
            return None
        Path(folder).mkdir(parents=True, exist_ok=True)
        self._hold(folder)
        # What cannot be saved shall be known now, and not after hours.
        pack({name: item.state_dict() for name, item in self.stateful.items()}, {}, "stateful")
        checkpoint = load_latest_checkpoint(folder)
        self._check_same_on_all_processes(checkpoint)
        if checkpoint is not None and self.training.resume == "never":
            raise ValueError(
                f"resume='never' but {folder} has checkpoints up to step {checkpoint.step}: "
                "remove them, choose another checkpoint_folder, or use resume='auto'"
            )
        return checkpoint

    def _hold(self, folder: str | Path) -> None:
        """Lock the folder in the main process; if that fails, no process waits for another."""
        problem = None
        if self.accelerator.is_main_process:
            try:
                self.held.enter_context(exclusive(folder))
            except CheckpointError as error:
                problem = str(error)
        (problem,) = broadcast_object_list([problem])
        if problem is not None:
            raise CheckpointError(problem)

    def _check_same_on_all_processes(self, checkpoint: Checkpoint | None) -> None:
        step = None if checkpoint is None else checkpoint.step
        main = broadcast_object_list([step])[0]
        if step != main:
            raise CheckpointError(
                f"process {self.share.process} sees step {step} in "
                f"{self.training.checkpoint_folder}, process 0 sees {main}: the folder must be "
                "one that all processes share"
            )

    def _restore(self, checkpoint: Checkpoint) -> None:
        state = checkpoint.state
        self._check_same_run(state["settings"], checkpoint.step)
        load_weights(self.model, checkpoint.weights)
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            load_optimizer(optimizer, saved)
        if self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(state["scaler"])
        for name, item in self.stateful.items():
            item.load_state_dict(state["stateful"][name])
        names = ("losses", "gradient_norms", "diagnostics", "seconds")
        self.curves = FitResult(**{name: state[name] for name in names})
        self.done = self.kept = self.resumed_from = checkpoint.step
        self._restore_random(state["random"])
        if self.accelerator.is_main_process:
            logger.info("resumed from step %d of %d", self.done, self.training.steps)

    def _check_same_run(self, saved: dict[str, Any], step: int) -> None:
        """Refuse the checkpoint of another run; another number of processes is a warning."""
        then, now = saved["processes"], self.share.processes
        if then != now:
            # The batch is the same, so how it was divided makes no difference beyond rounding.
            micro = self.settings["training"]["micro_batch_size"]
            training = {**saved["training"], "micro_batch_size": micro}
            saved = {**saved, "processes": now, "training": training}
        check_same_settings(saved, self.settings, self.training.checkpoint_folder)
        if then != now and self.accelerator.is_main_process:
            warnings.warn(
                f"the run had {then} process(es) up to step {step} and goes on with {now}: the "
                "batches are the same, but sums are rounded in another order, and where random "
                "numbers are drawn in training (dropout), they are others",
                CheckpointWarning,
                stacklevel=2,
            )

    def _restore_random(self, states: list[dict]) -> None:
        """Give each process its random state; one that is new draws a seed of its own."""
        process = self.share.process
        set_random_state(states[min(process, len(states) - 1)])
        if process >= len(states):
            set_seed(int(torch.randint(2**31, ())) + process)


def _accelerator(training: "TrainingConfig") -> Accelerator:
    """Return Accelerate's engine for this precision, also after a run with another one."""
    precision = training.mixed_precision
    if AcceleratorState._shared_state and AcceleratorState().mixed_precision != precision:
        # Accelerate fixes the precision at the first use in a process. This clears that choice
        # and keeps the processes and the device.
        AcceleratorState._reset_state()
    # A plugin, because a plain number is overruled by what `accelerate launch` has exported.
    plugin = GradientAccumulationPlugin(num_steps=1, sync_with_dataloader=False)
    accelerator = Accelerator(mixed_precision=precision, gradient_accumulation_plugin=plugin)
    kind = accelerator.distributed_type
    if kind in SHARDED and not accelerator.is_fsdp2:
        raise ValueError(f"{ASK_FOR_FSDP2} {kind.value}{' of version 1' if 'FSDP' in kind else ''}")
    if accelerator.device.type == "cuda":
        _refuse_emulation(precision, hardware.found())
    if precision == "fp16" and accelerator.scaler is None:
        raise ValueError(f"mixed_precision='fp16' needs a GPU, this is {accelerator.device}")
    if precision == "fp16" and kind in SHARDED:
        raise ValueError("mixed_precision='fp16' is not supported for sharded models: use 'bf16'")
    return accelerator


def _refuse_emulation(precision: str, device: hardware.Hardware) -> None:
    """Refuse bf16 where torch would emulate it, which is slower than float32."""
    if precision == "bf16" and device.emulates_bfloat16:
        raise ValueError(
            f"mixed_precision='bf16' is emulated on {device}: use {device.half!r}, or 'no' where "
            "an experiment has no 'fp16'. The command line does so where --set mixed_precision "
            "is left out, and a notebook with settings(PRESET, EXPERIMENT.suited(PRESET))"
        )


def _refuse_parts(
    stateful: Mapping[str, Stateful], model: nn.Module, optimizers: list[Optimizer]
) -> None:
    """Refuse objects that change the weights of a divided model by themselves, such as masks."""
    held = {id(item) for item in (model, *optimizers)}
    for name, item in stateful.items():
        if held & {id(value) for value in getattr(item, "__dict__", {}).values()}:
            raise ValueError(
                f"stateful[{name!r}], {type(item).__name__}, works on the model or its optimizer, "
                "and the model is divided among the processes (FSDP 2). Masks are for a model "
                "that each process holds whole: leave --use_fsdp out. Allowed with it: AdamW, "
                "Muon, HORST, and multipliers"
            )


def _describe_optimizer(optimizer: Optimizer) -> dict[str, Any]:
    groups = {
        str(index): describe_value({**group, "params": len(group["params"])})
        for index, group in enumerate(optimizer.param_groups)
    }
    return {"class": type(optimizer).__name__, "groups": groups}


def _plain_values(values: Mapping[str, Any] | None, source: str) -> dict[str, Any]:
    """Turn what a hook returned into plain Python values, or say what it cannot be."""
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise TypeError(f"{source} must return a dict or None, got {type(values).__name__}")
    return {str(key): _plain(value, f"{source}: {key}") for key, value in values.items()}


def _plain(value: Any, name: str) -> Any:
    if isinstance(value, (Tensor, np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(item, name) for item in value]
    if isinstance(value, (str, int, float, bool, type(None))):
        return value
    raise TypeError(f"{name} is a {type(value).__name__}, not a number, text, list or tensor")

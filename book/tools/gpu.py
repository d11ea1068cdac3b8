"""Try the package on the machine at hand, which should have a GPU and needs no network.

Three parts. *Checks*: what must hold on a GPU and can only be seen on one (bfloat16, fused
attention, compiled code, a loss scale with HORST, a resumed run). *Slices*: a few hundred steps of
the preset ``colab`` of each part on the data that the package ships, at most so many minutes each.
*Ratios*: the benchmarks of the parts, times and memory. Each gives rows with the device's name, in
place of earlier ones of the same device.

Without a GPU the same is done at the smallest size, on the CPU, so that this script is tested.

    python book/tools/gpu.py [--minutes 5] [--output book/results/gpu_bench.jsonl] [--only NAME]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from unrolled import hardware, results
from unrolled.catalog import BENCHMARKS, load_benchmark, load_experiment
from unrolled.horst.optimizers import Horst
from unrolled.looped.model import LoopedTransformer
from unrolled.provenance import device as device_name
from unrolled.provenance import provenance
from unrolled.training import OptimizerConfig, TrainingConfig, fit
from unrolled.transformer import TransformerConfig

Row = dict[str, Any]


@dataclass(frozen=True)
class Slice:
    """A piece of an experiment: one case, few steps, on data that the package ships."""

    experiment: str
    case: dict[str, Any]
    shipped: dict[str, Any] = field(default_factory=dict)
    steps: int = 300


#: One slice or two of each part, all on data that the package ships.
SLICES = (
    Slice(
        "looped.pretraining",
        {"variant": "flt", "num_loops": 12},
        {"corpus": "state_of_the_union", "vocab_size": 4096},
    ),
    Slice(
        "descent.text",
        {"method": "exact", "readout": "mean", "training_noise": 0.0},
        {"task": "sentiment", "encoder": "minilm", "head": "linear", "length": 32},
    ),
    Slice("descent.video", {"network": "dust", "method": "proxy"}, {"footage": "surveillance"}),
    Slice(
        "horst.vision",
        {"model": "vit", "optimizer": "horst", "sparsity": 0.9},
        {"data": "fashion_mnist"},
    ),
    Slice(
        "horst.language",
        {"optimizer": "horst"},
        {"corpus": "state_of_the_union", "vocab_size": 256},
    ),
)


# --- checks -------------------------------------------------------------------------------------


def check_bfloat16(device: str, small: bool) -> Row:
    """Compare a product of matrices in bfloat16 with float32."""
    size = 64 if small else 4096
    a, b = (torch.randn(size, size, device=device) for _ in range(2))
    exact, rounded = a @ b, (a.bfloat16() @ b.bfloat16()).float()
    error = ((rounded - exact).norm() / exact.norm()).item()
    require(error < 0.01, f"relative error {error:.2g} of a product in bfloat16")
    return {"relative_error": error}


def check_attention(device: str, small: bool) -> Row:
    """Compare fused attention with the plain form, forward and backward, in bfloat16."""
    length = 64 if small else 1024
    parts = torch.randn(3, 2, 4, length, 64, device=device).bfloat16()
    fused = attention(parts, SDPBackend.FLASH_ATTENTION)
    plain = attention(parts.float(), SDPBackend.MATH)
    error = max(
        ((one.float() - two).norm() / two.norm()).item()
        for one, two in zip(fused, plain, strict=True)
    )
    require(error < 0.02, f"relative error {error:.2g} of fused attention")
    return {"relative_error": error}


def attention(parts: Tensor, backend: SDPBackend) -> list[Tensor]:
    """Return the output of causal attention and the gradients of its inputs."""
    inputs = [part.clone().requires_grad_() for part in parts]
    with sdpa_kernel(backend):
        output = F.scaled_dot_product_attention(*inputs, is_causal=True)
    output.square().sum().backward()
    return [output.detach(), *(part.grad for part in inputs)]


def check_compile(device: str, small: bool) -> Row:
    """Compare the loss and the gradients of a compiled looped model with those of the plain one."""
    model, tokens = looped_model(device, small)
    plain = loss_and_gradient(model, tokens)
    for block in model.blocks:  # each is compiled once and used in every loop
        block.compile(backend="inductor" if device == "cuda" else "eager")
    compiled = loss_and_gradient(model, tokens)
    error = max(
        ((one - two).norm() / two.norm()).item() for one, two in zip(compiled, plain, strict=True)
    )
    require(error < 1e-3, f"relative error {error:.2g} of the compiled model")
    return {"relative_error": error}


def looped_model(device: str, small: bool) -> tuple[LoopedTransformer, Tensor]:
    """Return an FLT that is not at its start, where all loops would be the same, and tokens."""
    width, length = (32, 16) if small else (384, 256)
    config = TransformerConfig(
        num_layers=2, hidden_size=width, num_heads=2, max_length=length, zero_output=False
    )
    torch.manual_seed(0)
    model = LoopedTransformer(config, 3, "flt").to(device)
    return model, torch.randint(0, 256, (2, 4, length), device=device)


def loss_and_gradient(model: LoopedTransformer, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss and all gradients in one vector."""
    model.zero_grad(set_to_none=True)
    loss = model.loss(tokens[0], tokens[1])
    loss.backward()
    return loss.detach(), torch.cat([p.grad.flatten() for p in model.parameters()])


def check_loss_scale(device: str, small: bool) -> Row:
    """Train with HORST under a loss scale; an overflow must skip the step and lower the scale."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)
    optimizer = Horst(model.parameters(), lr=0.01, alpha=10.0)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x = torch.randn(64, 8, device=device)
    half = torch.float16 if device == "cuda" else torch.bfloat16
    losses = []
    for step in range(30):
        before = [p.detach().clone() for p in model.parameters()]
        with torch.autocast(device, half):
            loss = F.mse_loss(model(x).float(), x[:, :1])
        scaler.scale(loss * (torch.inf if step == 20 else 1)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
        moved = any(
            not torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True)
        )
        require(moved == (step != 20), f"step {step} {'moved' if moved else 'did not move'}")
    require(scaler.get_scale() == 2.0**9, f"a scale of {scaler.get_scale()} after an overflow")
    require(losses[-1] < 0.8 * losses[0], f"losses {losses[0]:.3g} to {losses[-1]:.3g}")
    return {"first_loss": losses[0], "last_loss": losses[-1]}


def check_resume(device: str, small: bool) -> Row:
    """Stop a run, go on from its checkpoint, and compare with a run that was not stopped."""
    precision = hardware.found().half
    with tempfile.TemporaryDirectory() as folder:
        kept = {"checkpoint_folder": folder, "checkpoint_every": 5}
        whole = short_run(device, small, precision)
        with suppress(KeyboardInterrupt):
            short_run(device, small, precision, stop=12, **kept)
        again = short_run(device, small, precision, **kept)
    worst = max(
        abs(one - two) / abs(two) for one, two in zip(again.losses, whole.losses, strict=True)
    )
    require(again.resumed_from == 10, f"resumed from step {again.resumed_from}, not 10")
    # On a GPU the order of a sum may change from run to run; on a CPU no bit may differ.
    require(worst <= (1e-2 if device == "cuda" else 0), f"losses differ by {worst:.2g}")
    return {"largest_difference": worst, "bit_for_bit": again.losses == whole.losses}


def short_run(device: str, small: bool, precision: str, stop: int | None = None, **kept: Any):
    """Train a looped model for twenty steps, or break off behind one."""
    model, tokens = looped_model(device, small)

    def on_step(report: Any) -> None:
        if report.step == stop:
            raise KeyboardInterrupt

    training = TrainingConfig(20, batch_size=4, mixed_precision=precision, seed=0, **kept)
    batch = (tokens[0].cpu(), tokens[1].cpu())
    optimizer = OptimizerConfig(name="muon", learning_rate=0.02)
    return fit(model, lambda step: batch, token_loss, training, optimizer, on_step=on_step)


def token_loss(model: LoopedTransformer, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the loss of a looped model."""
    return model.loss(*batch)


CHECKS: dict[str, Callable[[str, bool], Row]] = {
    "bfloat16": check_bfloat16,
    "attention": check_attention,
    "compile": check_compile,
    "loss_scale": check_loss_scale,
    "resume": check_resume,
}


class CheckError(Exception):
    """Something does not hold on this machine."""


def require(condition: bool, found: str) -> None:
    """Raise a CheckError that says what was found, unless the condition holds."""
    if not condition:
        raise CheckError(found)


# --- slices -------------------------------------------------------------------------------------


class TimeIsUpError(Exception):
    """A slice has had its minutes."""


class Watch:
    """Counts the steps of a slice, and ends it when its time is up."""

    WARM_UP = 5  # steps in which kernels are chosen and memory is found

    def __init__(self, seconds: float):
        self.end, self.steps = time.perf_counter() + seconds, 0
        self.first = self.last = 0.0

    def __call__(self, done: int, total: int) -> None:
        """Take note of a step."""
        now = time.perf_counter()
        self.steps += 1
        if self.steps <= self.WARM_UP:
            self.first = now
        self.last = now
        if now > self.end:
            raise TimeIsUpError

    @property
    def steps_per_second(self) -> float | None:
        """The rate behind the warm-up; None if there were too few steps."""
        counted = self.steps - self.WARM_UP
        return counted / (self.last - self.first) if counted > 0 else None


def run_slice(piece: Slice, small: bool, minutes: float) -> Row:
    """Run one case of an experiment for a few steps; return its row, or how far it came."""
    experiment = load_experiment(piece.experiment)
    changes = {} if small else {"steps": piece.steps, **piece.shipped}
    changes = experiment.suited(preset_of(small), changes)
    units = experiment.units(preset_of(small), [0], overrides=changes)
    unit = nearest(units, piece.case)
    watch = Watch(60 * minutes)
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    try:
        row = experiment.measure_unit(unit, watch)
    except TimeIsUpError:
        row = {**unit.case, "seed": unit.seed, "steps": watch.steps}
    # The hash names a unit that is there once; this one is there once for each device.
    row = {key: value for key, value in row.items() if key not in ("config_hash", "command")}
    row |= {"steps_per_second": watch.steps_per_second, "seconds_allowed": 60 * minutes}
    if torch.cuda.is_available():
        row["peak_megabytes"] = torch.cuda.max_memory_allocated() / 1e6
    return row


def preset_of(small: bool) -> str:
    """Return the preset that slices and ratios have."""
    return "smoke" if small else "colab"


def nearest(units: list[Any], case: dict[str, Any]) -> Any:
    """Return the unit that agrees with a case in most values: a small preset may lack the case."""
    return max(units, key=lambda unit: sum(unit.case.get(k) == v for k, v in case.items()))


# --- all of it ----------------------------------------------------------------------------------


def work(only: list[str], small: bool, minutes: float) -> Iterator[tuple[str, Callable[[], list]]]:
    """Yield what is to be done, by name."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    jobs: dict[str, Callable[[], list[Row]]] = {}
    for name, check in CHECKS.items():
        jobs[f"check {name}"] = lambda check=check: [check(device, small)]
    for piece in SLICES:
        jobs[f"slice {piece.experiment}"] = lambda piece=piece: [run_slice(piece, small, minutes)]
    for part in BENCHMARKS:
        jobs[f"ratios {part}"] = lambda part=part: load_benchmark(part)(preset_of(small))
    unknown = sorted(set(only) - jobs.keys())
    if unknown:
        raise SystemExit(f"unknown: {', '.join(unknown)}; allowed: {', '.join(jobs)}")
    yield from ((name, job) for name, job in jobs.items() if not only or name in only)


def run_job(name: str, job: Callable[[], list[Row]], small: bool) -> list[Row]:
    """Do one thing; what fails is a row too, so that one evening on a GPU shows all that fails."""
    start = time.perf_counter()
    try:
        found, state = job(), {"passed": True}
    except Exception as error:
        if not isinstance(error, CheckError):
            traceback.print_exc()
        found, state = [{}], {"passed": False, "problem": f"{type(error).__name__}: {error}"}
    kind, what = name.split()
    head = {"part": "gpu", "experiment": f"gpu.{kind}", "what": what, "preset": preset_of(small)}
    head |= state
    seconds = round(time.perf_counter() - start, 2)
    tail = {"device": used_device(), **provenance(), "job_seconds": seconds}
    return [results.plain_row({**row, **head, **tail}) for row in found]


def same(row: Row, found: Row) -> bool:
    """Return whether a row is of the same work on the same device."""
    return all(row.get(key) == found[key] for key in ("experiment", "what", "preset", "device"))


def used_device() -> str:
    """Return the name of the GPU, also before its first use, or ``cpu``."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else device_name()


def main(arguments: list[str] | None = None) -> int:
    """Do all, append the rows, and return how many things failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5.0, help="at most, for each slice")
    parser.add_argument("--output", type=Path, help="the file to which the rows are appended")
    parser.add_argument("--only", action="append", default=[], help="one name; may be given again")
    chosen = parser.parse_args(arguments)
    small = not torch.cuda.is_available()
    default = Path("_build/gpu_bench.jsonl") if small else results.folder() / "gpu_bench.jsonl"
    path = chosen.output or default
    print(f"on {used_device()}{', at the smallest size' if small else ''}; rows go to {path}")
    failed = 0
    for name, job in work(chosen.only, small, chosen.minutes):
        rows = run_job(name, job, small)
        results.remove(path, lambda row, found=rows[0]: same(row, found))
        failed += not rows[0]["passed"]
        for row in rows:
            results.append(path, row)
        print(f"{'ok    ' if rows[0]['passed'] else 'FAILED'} {name}: {summary(rows)}", flush=True)
    print("nothing failed" if failed == 0 else f"{failed} failed")
    return failed


def summary(rows: list[Row]) -> str:
    """Return what matters of some rows, in a line."""
    if "problem" in rows[0]:
        return rows[0]["problem"]
    if "comparison" in rows[0]:
        return "; ".join(f"{row['comparison']} = {row['ratio']:.2f}" for row in rows)
    names = ("relative_error", "last_loss", "largest_difference", "steps_per_second")
    shown = [f"{name} {rows[0][name]:.3g}" for name in names if rows[0].get(name) is not None]
    return ", ".join([*shown, f"{rows[0]['job_seconds']:.0f} s"])


if __name__ == "__main__":
    sys.exit(min(main(), 1))

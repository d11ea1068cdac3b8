"""Runs in 1, 2 and 4 processes of one machine: ``python distributed_worker.py FOLDER``.

Prints one JSON object: what each process has at the end of each scenario.
"""

import hashlib
import json
import signal
import sys
import warnings
from pathlib import Path

import torch
from accelerate import (
    Accelerator,
    DistributedType,
    FullyShardedDataParallelPlugin,
    PartialState,
)
from process_tree import end_all, fork_many, together
from torch import nn
from torch.distributed.tensor import DTensor

from unrolled import engine
from unrolled.checkpoint import CheckpointError, exclusive
from unrolled.descent.constraints import ExactConstraint
from unrolled.descent.primal_dual import PrimalDual
from unrolled.horst.optimizers import Horst
from unrolled.horst.sparsity import Acdc, AcdcSchedule
from unrolled.sharding import whole
from unrolled.training import OptimizerConfig, TrainingConfig, fit

LAYERS, WIDTH, CLASSES, BATCH, STEPS = 3, 6, 3, 8, 16
# A large eps: Adam divides by the gradient's size, which blows up differences in rounding.
SMOOTH = OptimizerConfig(learning_rate=0.05, eps=1e-3)


class Stack(nn.Module):
    """A few layers and one head that reads every state."""

    def __init__(self, dtype, dropout=0.0):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
            self.head = nn.Linear(WIDTH, CLASSES)
            self.dropout = nn.Dropout(dropout)
        self.to(dtype)

    def states(self, x):
        yield x
        for layer in self.layers:
            x = x + self.dropout(torch.tanh(layer(x)))
            yield x


def layer_losses(model, batch):
    x, y = batch
    losses = [
        nn.functional.cross_entropy(model.head(h), y, reduction="none") for h in model.states(x)
    ]
    return torch.stack(losses)  # (L + 1, B)


def last_loss(model, batch):
    return layer_losses(model, batch)[-1].mean()


def batches(dtype):
    def batch_at(step):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(BATCH, WIDTH, generator=generator, dtype=torch.float64)
        return x.to(dtype), (x[:, 0] > 0).long() + (x[:, 1] > 1).long()

    return batch_at


def primal_dual(every=1):
    # Shares that cannot all be kept, so that prices rise; a relaxation, so that they also leak.
    return PrimalDual(
        ExactConstraint((0.3,) * LAYERS), step_size=0.2, relaxation_cost=4.0, every=every
    )


def fingerprint(*trees):
    sha = hashlib.sha256()
    for tree in trees:
        for tensor in tree.values() if isinstance(tree, dict) else tree:
            sha.update(tensor.detach().contiguous().numpy().tobytes())
    return sha.hexdigest()


def settings(**changes):
    return TrainingConfig(**({"steps": STEPS, "batch_size": BATCH, "schedule": "linear"} | changes))


# Dual variables --------------------------------------------------------------------------------


def constrained(dtype=torch.float32, micro=None, every=1, measured=False, report=None, **changes):
    """Train under constraints and return the curves and a fingerprint of all that moved."""
    model, dual, batch_at = Stack(dtype), primal_dual(every), batches(dtype)

    def measure(step):
        return layer_losses(model, batch_at(step))

    hooks = dual.hooks(layer_losses, measure=measure if measured else None)
    after = hooks.pop("on_step")

    def on_step(seen):
        if report:
            report()
        return after(seen)

    training = settings(micro_batch_size=micro, **changes)
    result = fit(model, batch_at, training=training, optimizer=SMOOTH, on_step=on_step, **hooks)
    return {
        "losses": result.losses,
        "multipliers": result.diagnostics["multipliers"],
        "weights": [p.tolist() for p in model.parameters()],
        "same": fingerprint(model.parameters(), [dual.multipliers]),
        "resumed_from": result.resumed_from,
    }


def by_hand(report):
    """Update multipliers in a loop of one's own, each process with its rows."""
    state = PartialState(cpu=True)
    model, dual = Stack(torch.float64), primal_dual(every=2)
    x, y = batches(torch.float64)(0)
    rows = slice(state.process_index, None, state.num_processes)
    reports = [dual.update(layer_losses(model, (x[rows], y[rows]))) for _ in range(4)]
    last = reports[-1]
    return {
        "multipliers": dual.multipliers.tolist(),
        "lagrangian": last.lagrangian,
        "gap": last.gap,
        "losses": last.losses.tolist(),
        "ascended": [each.ascended for each in reports],
    }


# Sparsity --------------------------------------------------------------------------------------


def sparse(report):
    """Train with AC/DC and HORST; return the masks at each step and the state at the end."""
    model, steps = Stack(torch.float64), 40
    optimizer = Horst(model.parameters(), lr=0.02, alpha=5.0, weight_decay=0.01)
    acdc = Acdc(model, optimizer, AcdcSchedule(steps, phase=0.1), 0.5)
    masks = []

    def on_step(seen):
        if seen.step + 1 < steps:
            acdc.before(seen.step + 1)
        masks.append(fingerprint(acdc.state_dict()))

    result = fit(
        model,
        batches(torch.float64),
        last_loss,
        settings(steps=steps, micro_batch_size=2),
        [optimizer],
        on_step=on_step,
        stateful={"acdc": acdc},
    )
    moments = [value for p in model.parameters() for value in optimizer.state[p].values()]
    return {
        "losses": result.losses,
        "masks": masks,
        "state": fingerprint(moments, model.parameters()),
        "weights": [p.tolist() for p in model.parameters()],
        "zeros": sum(int((p == 0).sum()) for p in model.parameters()),
    }


# Another number of processes -------------------------------------------------------------------


def moved(folder, first, second):
    """Stop a run of `first` processes by a signal to one of them; go on with `second`."""

    def work(report):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            answer = constrained(torch.float64, report=report, steps=40, **kept)
        return answer | {"warned": [str(warning.message) for warning in caught]}

    kept = {"checkpoint_folder": folder}
    children = fork_many(first, work)
    children[-1].wait_for(9)
    children[-1].kill(signal.SIGTERM)
    codes = [code for code, _ in end_all(children)]
    return {"codes": codes, "ended": together(second, work)}


def dropped(report, folder=None, micro=None):
    """Train with dropout, where each process draws for itself."""
    model = Stack(torch.float32, dropout=0.5)
    kept = {"checkpoint_folder": folder, "checkpoint_every": 5} if folder else {}
    training = settings(steps=40, seed=3, **kept)
    hooks = {"on_step": lambda seen: report() and None}
    result = fit(model, batches(torch.float32), last_loss, training, SMOOTH, **hooks)
    return {"same": fingerprint(model.parameters()), "resumed_from": result.resumed_from}


def one_killed(folder):
    """Kill one of two processes; the other must not go on alone. Then run both again."""
    children = fork_many(2, lambda report: dropped(report, folder))
    children[1].wait_for(13)
    children[1].kill()
    codes = [code for code, _ in end_all(children)]
    again = together(2, lambda report: dropped(report, folder))
    return {"codes": codes, "again": again, "whole": together(2, dropped)}


def shared(folder):
    """Start two processes on a folder that another run holds."""

    def work(_):
        try:
            return constrained(torch.float64, checkpoint_folder=folder)
        except CheckpointError as error:
            return str(error)

    Path(folder).mkdir()
    with exclusive(folder):
        return together(2, work)


# A sharded model -------------------------------------------------------------------------------


def accelerator_that_shards(version):
    """Let Accelerate's own code shard a model on CPUs too, which it does on GPUs only."""

    def make(**settings):
        accelerator = Accelerator(**settings)
        accelerator.state.distributed_type = DistributedType.FSDP
        # Each new view of the state takes the kind from here.
        PartialState._shared_state["distributed_type"] = DistributedType.FSDP
        accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(
            fsdp_version=version,
            reshard_after_forward=True if version == 2 else "FULL_SHARD",
            auto_wrap_policy="no_wrap",
            cpu_ram_efficient_loading=False,
        )
        return accelerator

    return make


def shard(folder, version=2, stop=None):
    """Train a model that two processes share, up to a stop if there is one."""

    def on_step(seen):
        if seen.step == stop:
            raise KeyboardInterrupt

    if PartialState(cpu=True).num_processes > 1:
        engine.Accelerator = accelerator_that_shards(version)
    model, kept = Stack(torch.float32), {"checkpoint_folder": folder, "checkpoint_every": 5}
    training = settings(micro_batch_size=2, clip_norm=0.5, **kept if folder else {})
    try:
        result = fit(model, batches(torch.float32), last_loss, training, SMOOTH, on_step=on_step)
    except KeyboardInterrupt:
        return {}
    except ValueError as error:
        return {"refused": str(error)}
    weights = whole(model.state_dict())
    return {
        "divided": isinstance(next(model.parameters()), DTensor),
        "same": fingerprint(weights),
        "weights": [weight.tolist() for weight in weights.values()],
        "losses": result.losses,
        "resumed_from": result.resumed_from,
    }


def sharded(folder):
    """Stop runs of two processes that share a model; let two go on, and one alone."""

    def stopped(_):
        return [shard(f"{folder}/{name}", stop=7) for name in ("two", "one")]

    together(2, stopped)
    return {
        "alone": shard_apart(1, None),
        "whole": shard_apart(2, None),
        "two": shard_apart(2, f"{folder}/two"),
        "one": shard_apart(1, f"{folder}/one"),
        "old": together(2, lambda _: shard(None, version=1)),
        "with": shard_each(("horst", "muon", "multipliers", "masks", "outside", "infinite")),
    }


class Grouped(Stack):
    """The same, and it says which of its parameters are matrices, as Muon wants to know."""

    def parameter_groups(self):
        matrices = [layer.weight for layer in self.layers]
        biases = [layer.bias for layer in self.layers]
        return {"matrices": matrices, "other": biases, "head": list(self.head.parameters())}


def infinite_in_part(model, batch):
    """A loss that is finite, and whose gradient is not, in entries that one process holds."""
    spike = model.head.weight[-1:]
    return last_loss(model, batch) + (spike * 0).abs().sum().sqrt()


def sharded_with(model, dual):
    """Return what may move a sharded model, by name, as the last arguments of a fit."""
    acdc_optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    acdc = Acdc(model, acdc_optimizer, AcdcSchedule(STEPS, phase=0.1), 0.5)

    def run_outside(_):
        return {"loss": last_loss(model, batches(torch.float32)(0))}

    horst = {"lr": 0.02, "alpha": 5.0, "weight_decay": 0.01, "eps": 1e-3}
    muon = OptimizerConfig(name="muon", learning_rate=0.02, eps=1e-3)
    last = {"loss_fn": last_loss, "optimizer": SMOOTH}
    return {
        "horst": last | {"optimizer": [Horst(model.parameters(), **horst)]},
        "muon": last | {"optimizer": muon},
        "multipliers": {"optimizer": SMOOTH} | dual.hooks(layer_losses),
        "masks": last | {"optimizer": [acdc_optimizer], "stateful": {"acdc": acdc}},
        "outside": last | {"on_step": run_outside},
        "infinite": last | {"loss_fn": infinite_in_part},
    }


def shard_with(name):
    """Train a model with one of them, shared by the processes if there are several."""
    if PartialState(cpu=True).num_processes > 1:
        engine.Accelerator = accelerator_that_shards(2)
    model, dual = Grouped(torch.float32), primal_dual()
    training = settings(micro_batch_size=2, clip_norm=0.1)
    try:
        result = fit(
            model, batches(torch.float32), training=training, **sharded_with(model, dual)[name]
        )
    except (ValueError, RuntimeError, FloatingPointError) as error:
        return {"refused": "\n".join([str(error), *getattr(error, "__notes__", [])])}
    weights = whole(model.state_dict())
    return {
        "divided": isinstance(next(model.parameters()), DTensor),
        "same": fingerprint(weights, [dual.multipliers]),
        "weights": [weight.tolist() for weight in weights.values()],
        "losses": result.losses,
        "norms": result.gradient_norms,
        "multipliers": dual.multipliers.tolist(),
    }


def shard_each(names):
    """Return what each process has at the end, alone and of two."""
    alone, *two = (
        together(world, lambda _: {name: shard_with(name) for name in names}) for world in (1, 2)
    )
    return {name: [found[name] for found in (*alone, *two[0])] for name in names}


def shard_apart(world, folder):
    return together(world, lambda _: shard(folder))


def main(folder):
    f32, f64 = torch.float32, torch.float64
    report = {
        f"{name} {world}": together(world, work)
        for world in (1, 2, 4)
        for name, work in {
            "float32": lambda _: constrained(f32),
            "float64": lambda _: constrained(f64),
            "accumulated": lambda _: constrained(f64, micro=2, every=3),
            "measured": lambda _: constrained(f64, measured=True, every=2),
            "by hand": by_hand,
            "sparse": sparse,
        }.items()
    }
    report["whole"] = together(1, lambda _: constrained(f64, steps=40))
    report["moved"] = {
        f"{first} to {second}": moved(f"{folder}/{first}to{second}", first, second)
        for first, second in ((4, 2), (1, 4))
    }
    report["one killed"] = one_killed(f"{folder}/killed")
    report["shared"] = shared(f"{folder}/shared")
    report["sharded"] = sharded(f"{folder}/sharded")
    print(json.dumps(report))


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.optim.AdamW([nn.Parameter(torch.ones(1))])  # imports what every child would import
    main(sys.argv[1])

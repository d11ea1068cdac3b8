r"""Plan: what a run will cost, counted from its settings before anything is run.

A training step of a network with P trainable parameters on rows of N tokens costs a forward pass
and a backward pass of twice its operations; B rows a step for T steps on G devices take

.. math:: \text{hours} = \frac{(1 + 2)\, F\, B\, T}{3600\, u\, G\, p}

for F operations of a row's forward pass, peak rate p and utilisation u. F is a closed form of the
settings (`Blocks`), checked in the tests against ``torch.utils.flop_counter``. Parameters are those
of the real model, built without memory. The bytes of a device are counted too; what the backward
pass keeps of a row is an estimate, good to a factor of two.

The hours are training alone: no evaluation, no loading, no waiting for a checkpoint. The rates of
the devices are their makers' figures for dense matrices, and no network reaches them: that is what
the utilisation is for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from unrolled.experiment import Experiment, Unit

__all__ = ["MACHINES", "Blocks", "Machine", "Workload", "plan"]


@dataclass(frozen=True)
class Machine:
    """Devices that share the batch of a run.

    Parameters
    ----------
    name
        As the table shows it.
    count
        Number of devices.
    memory
        Bytes of one.
    peaks
        Floating-point operations per second of one device by precision: "no" (float32), "fp16",
        "bf16". A device without a precision takes "fp16" for "bf16".
    """

    name: str
    count: int
    memory: float
    peaks: dict[str, float]

    def peak(self, precision: str) -> float:
        """Return the peak rate of all devices together."""
        return self.count * self.peaks.get(precision, self.peaks["fp16"])


#: The machines of the table. Figures of NVIDIA's data sheets, for dense matrices: T4 (DS-09014),
#: A100 in its 40 GB form (2021), H100 SXM (2023). In float32 none uses tensor cores, since torch
#: leaves TF32 off.
MACHINES = (
    Machine("1 x T4", 1, 16e9, {"no": 8.1e12, "fp16": 65e12}),
    Machine("1 x A100", 1, 40e9, {"no": 19.5e12, "fp16": 312e12, "bf16": 312e12}),
    Machine("8 x H100", 8, 80e9, {"no": 67e12, "fp16": 989e12, "bf16": 989e12}),
)


# --- closed forms -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Blocks:
    r"""The blocks of a Transformer as a closed form counts them, for one row of N tokens.

    .. math:: F = K L N \bigl( 2 (2 d^2 + 2 d\, d_{kv} + g\, d\, m) + 4 n d \bigr)

    with g matrices between width d and the m hidden units of the MLP: 2, or 3 if it is gated; and
    n keys that a token attends to. A causal kernel may skip half of the attention
    (:math:`4 n d`); it is counted in full. Norms, activations and the softmax are not counted.

    Parameters
    ----------
    layers, width, length, hidden
        L, d, N and m.
    key_width
        :math:`d_{kv}` of all key heads together; d if None.
    window
        n; all N if None.
    matrices
        g.
    applications
        K, how often the blocks are applied.

    Examples
    --------
    >>> Blocks(layers=2, width=64, length=64, hidden=256, applications=12).flops
    176160768
    """

    layers: int
    width: int
    length: int
    hidden: int
    key_width: int | None = None
    window: int | None = None
    matrices: int = 2
    applications: int = 1

    @property
    def flops(self) -> int:
        """Floating-point operations of the forward pass."""
        d = self.width
        weights = 2 * d * d + 2 * d * self._key_width + self.matrices * d * self.hidden
        seen = self.length if self.window is None else min(self.window, self.length)
        return self.applications * self.layers * self.length * (2 * weights + 4 * seen * d)

    @property
    def kept(self) -> int:
        """Numbers that the backward pass keeps, with attention that stores no N x N matrix.

        Of each block: its input, both normed states and the state between them, the queries, keys
        and values, the attention's output, and the hidden units before and behind the activation.
        """
        hidden = (2 * self.matrices - 2) * self.hidden
        each = 6 * self.width + 2 * self._key_width + hidden
        return self.applications * self.layers * self.length * each

    @property
    def _key_width(self) -> int:
        return self.width if self.key_width is None else self.key_width


@dataclass(frozen=True)
class Workload:
    """One training in numbers that no machine enters.

    Parameters
    ----------
    parameters, trainable
        All, and those that are trained.
    flops
        Forward pass of one row.
    tokens
        Tokens (patches, frames) of one row.
    kept
        Bytes that one row keeps for the backward pass, an estimate.
    batch_size, steps, precision
        Of the training.
    backward
        Cost of the backward pass in forward passes: 2, or 1 where the weights are frozen; one more
        where the forward pass is computed again.
    weight_bytes
        Bytes of a parameter.
    state_bytes
        Bytes of the optimizer's state for all trained parameters: 8 each for the two moments of
        Adam, 4 for the momentum of Muon.
    """

    parameters: int
    trainable: int
    flops: float
    tokens: int
    kept: float
    batch_size: int
    steps: int
    precision: str
    state_bytes: float
    backward: float = 2.0
    weight_bytes: int = 4

    @property
    def rows(self) -> int:
        """Rows of the whole training."""
        return self.batch_size * self.steps

    @property
    def training_flops(self) -> float:
        """Operations of the whole training."""
        return (1 + self.backward) * self.flops * self.rows

    @property
    def fixed_bytes(self) -> float:
        """Bytes of weights, gradients and optimizer, and of the weights that autocast keeps."""
        cast = 0 if self.precision == "no" or self.weight_bytes == 2 else 2
        weights = (self.weight_bytes + cast) * self.parameters
        return weights + 4 * self.trainable + self.state_bytes

    def hours(self, machine: Machine, utilization: float) -> float:
        """Return the hours of the training at a share of the machine's peak."""
        return self.training_flops / (utilization * machine.peak(self.precision)) / 3600

    def micro_batch(self, machine: Machine) -> int | None:
        """Return the most rows that a device can hold at a time; None if not one fits.

        The number divides the share of a device, and a tenth of the memory is left free.
        """
        share = max(1, self.batch_size // machine.count)
        room = 0.9 * machine.memory - self.fixed_bytes
        fits = [n for n in range(1, share + 1) if share % n == 0 and n * self.kept <= room]
        return max(fits, default=None)


def adam_bytes(trainable: int) -> int:
    """Return the bytes of Adam's two moments."""
    return 8 * trainable


# --- the table ------------------------------------------------------------------------------------


def plan(
    experiment: Experiment,
    units: Sequence[Unit],
    utilization: float = 0.3,
    machines: Sequence[Machine] = MACHINES,
) -> list[dict[str, Any]]:
    """Return the cost of the units of a run, one row for all that cost the same.

    Parameters
    ----------
    experiment
        One that `unrolled.workloads.WORKLOADS` names.
    units
        What is to be run; see `Experiment.units`.
    utilization
        u, the share of the peak rate that is reached, in (0, 1]. A third is usual for a large
        Transformer on one device, and small ones reach less.
    machines
        Where it may run.

    Returns
    -------
    list of dict
        Counts of one unit, then for each machine the hours of one unit and the rows that a device
        can hold at a time (``--micro-batch``); no hours where one device is too small. The last
        row is the sum over all units.

    Raises
    ------
    ValueError
        If the experiment cannot be planned, or the utilization is out of its range.
    """
    from unrolled.workloads import workload_of

    if not 0 < utilization <= 1:
        raise ValueError(f"utilization must be in (0, 1], got {utilization!r}")
    groups: dict[Workload, list[Unit]] = {}
    for unit in units:
        load = workload_of(experiment, unit.settings, unit.case)
        if load is not None:
            groups.setdefault(load, []).append(unit)
    fixed = shared([unit.case for group in groups.values() for unit in group])
    rows = [
        {"case": named(group, fixed)} | _row(load, group, utilization, machines)
        for load, group in groups.items()
    ]
    return [*rows, _total(groups, utilization, machines)]


def _row(
    load: Workload, units: Sequence[Unit], utilization: float, machines: Sequence[Machine]
) -> dict[str, Any]:
    row = {
        "units": len(units),
        "parameters": load.parameters,
        "trainable": load.trainable,
        "FLOPs per token": round(load.flops / load.tokens),
        "tokens": load.tokens * load.rows,
        "training FLOPs": float(load.training_flops),
        "fixed GB": round(load.fixed_bytes / 1e9, 2),
        "GB per sequence": round(load.kept / 1e9, 4),
    }
    for machine in machines:
        rows, alone = load.micro_batch(machine), machine.count == 1
        hours = None if rows is None and alone else load.hours(machine, utilization)
        row[f"{machine.name}: hours"] = hours
        row[f"{machine.name}: micro-batch"] = rows or (
            "does not fit" if alone else "needs sharding"
        )
    return row


def _total(
    groups: dict[Workload, list[Unit]], utilization: float, machines: Sequence[Machine]
) -> dict[str, Any]:
    def total(of: Any) -> float:
        return sum(len(units) * of(load) for load, units in groups.items())

    row = {
        "case": "all",
        "units": sum(map(len, groups.values())),
        "tokens": total(lambda load: load.tokens * load.rows),
        "training FLOPs": float(total(lambda load: load.training_flops)),
    }
    for machine in machines:
        hours = total(lambda load, machine=machine: load.hours(machine, utilization))
        possible = machine.count > 1 or all(load.micro_batch(machine) for load in groups)
        row[f"{machine.name}: hours"] = hours if possible else None
    return row


def shared(cases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what cases have in common.

    Examples
    --------
    >>> shared([{"num_loops": 6, "variant": "flt"}, {"num_loops": 6, "variant": "fla"}])
    {'num_loops': 6}
    """
    first, *others = cases or [{}]
    return {key: value for key, value in first.items() if all(c[key] == value for c in others)}


def named(units: Sequence[Unit], fixed: dict[str, Any]) -> str:
    """Return what units have in common and not with all others, in words."""
    own = {k: v for k, v in shared([unit.case for unit in units]).items() if k not in fixed}
    return " ".join(f"{key}={value}" for key, value in own.items()) or "every case"

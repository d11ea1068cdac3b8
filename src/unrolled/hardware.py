"""Hardware: what this machine is, and which preset and which precision suit it.

Nothing is chosen in silence. `recommended` is what the set-up cell prints on Colab; the cell of
parameters has the last word. `suited` gives the changes of settings that let a preset made for
bfloat16 run on a GPU that has none, and they are then settings like those of ``--set``: in the
output, in the columns of the row, in its command and in the hash of its settings.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from unrolled.settings import field_types

__all__ = ["CPU", "Hardware", "Recommendation", "found", "recommended", "suited"]

#: The first compute capabilities whose tensor cores multiply in a format.
FORMATS = {"bf16": (8, 0), "fp16": (7, 0)}

#: Bytes that a GPU must have for the presets ``colab``: those of 16 GB show a little less.
COLAB_BYTES = 14e9


@dataclass(frozen=True)
class Hardware:
    """A device on which a run computes.

    Parameters
    ----------
    name
        As its maker calls it; ``CPU`` if there is no GPU.
    capability
        The compute capability of a GPU, such as (7, 5); None for a CPU.
    memory
        Bytes of a GPU.

    Examples
    --------
    >>> Hardware("Tesla T4", (7, 5), 15.8e9).half, Hardware("NVIDIA L4", (8, 9), 23.8e9).half
    ('fp16', 'bf16')
    >>> print(Hardware("Tesla T4", (7, 5), 15.8e9))
    Tesla T4 (15.8 GB)
    """

    name: str
    capability: tuple[int, int] | None = None
    memory: float = 0.0

    @property
    def half(self) -> str:
        """The mixed precision that it computes fast: ``"bf16"``, else ``"fp16"``, else ``"no"``."""
        capability = self.capability or (0, 0)
        return next((name for name, first in FORMATS.items() if capability >= first), "no")

    @property
    def emulates_bfloat16(self) -> bool:
        """Whether it is a GPU on which bfloat16 works, but slower than float32."""
        return self.capability is not None and self.capability < FORMATS["bf16"]

    def __str__(self) -> str:
        return f"{self.name} ({self.memory / 1e9:.1f} GB)" if self.memory else self.name


CPU = Hardware("CPU")


def found() -> Hardware:
    """Return the GPU that torch would use first, or `CPU`."""
    import torch

    if not torch.cuda.is_available():
        return CPU
    facts = torch.cuda.get_device_properties(torch.cuda.current_device())
    return Hardware(facts.name, (facts.major, facts.minor), facts.total_memory)


@dataclass(frozen=True)
class Recommendation:
    """The preset for a notebook on a device, and the mixed precision it would have there."""

    preset: str
    mixed_precision: str
    reason: str

    def __str__(self) -> str:
        precision = f", mixed_precision {self.mixed_precision}" if self.preset == "colab" else ""
        return f'PRESET = "{self.preset}" suits it{precision}: {self.reason}'


def recommended(device: Hardware | None = None) -> Recommendation:
    """Return the preset and the precision that suit a device, and why.

    Parameters
    ----------
    device
        What is `found` by default.

    Examples
    --------
    >>> print(recommended(CPU))
    PRESET = "live" suits it: there is no GPU
    >>> print(recommended(Hardware("Tesla T4", (7, 5), 15.8e9)))
    PRESET = "colab" suits it, mixed_precision fp16: it has no bfloat16 (no, if there is no fp16)
    """
    device = device or found()
    if device.memory == 0:
        return Recommendation("live", "no", "there is no GPU")
    if device.memory < COLAB_BYTES:
        return Recommendation("live", "no", "colab needs a GPU of 16 GB")
    reasons = {"bf16": "it has bfloat16", "fp16": "it has no bfloat16 (no, if there is no fp16)"}
    reason = reasons.get(device.half, "it has no fast half precision")
    return Recommendation("colab", device.half, reason)


def suited(
    settings: Any, chosen: Collection[str] = (), device: Hardware | None = None
) -> dict[str, str]:
    """Return the changes of settings with which a device need not emulate bfloat16.

    Parameters
    ----------
    settings
        Of an experiment; also the settings in its fields are looked at.
    chosen
        Names of settings, dotted where nested, that somebody has chosen: they are left alone.
    device
        What the run computes on; what is `found` by default.

    Returns
    -------
    dict
        By the names that ``--set`` takes: ``fp16`` where the device has it and the experiment
        allows it, else ``no``. Empty if the settings suit the device.

    Examples
    --------
    >>> import typing
    >>> @dataclass(frozen=True)
    ... class Toy:
    ...     mixed_precision: typing.Literal["no", "bf16", "fp16"] = "bf16"
    >>> t4 = Hardware("Tesla T4", (7, 5), 15.8e9)
    >>> suited(Toy(), device=t4), suited(Toy(), ["mixed_precision"], t4), suited(Toy(), device=CPU)
    ({'mixed_precision': 'fp16'}, {}, {})
    """
    names = [name for name in _in_bfloat16(settings) if name not in chosen]
    device = device or (found() if names else CPU)
    if not device.emulates_bfloat16:
        return {}
    return {name: _second_choice(settings, name, device) for name in names}


def _in_bfloat16(settings: Any, prefix: str = "") -> list[str]:
    """Return the dotted names of the precisions that are bf16."""
    names = []
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            names += _in_bfloat16(value, f"{prefix}{field.name}.")
        elif field.name == "mixed_precision" and value == "bf16":
            names.append(f"{prefix}{field.name}")
    return names


def _second_choice(settings: Any, name: str, device: Hardware) -> str:
    *path, last = name.split(".")
    for part in path:
        settings = getattr(settings, part)
    allowed = typing.get_args(field_types(settings)[last])
    return device.half if device.half in allowed else "no"

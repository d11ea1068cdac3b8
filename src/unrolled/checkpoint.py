"""Checkpoints: all that a run needs to continue as if it had never stopped.

A checkpoint is a folder ``step_00000120``:

- ``model.safetensors``: the weights alone, readable by anything that reads safetensors;
- ``state.json`` and ``state.safetensors``: optimizers, random states, curves, and the settings
  of the run; numbers in the first, tensors in the second;
- ``manifest.json``: size and SHA-256 of the three files above.

Nothing in it is a pickle, so reading one from a stranger runs no code of theirs. It is written
into a folder ``*.partial``, flushed to the disk and renamed: whenever a run is killed, the newest
``step_*`` folder is whole. If a disk has damaged it all the same, the sums show it, and the
checkpoint before it is used.

Two runs in one folder would remove each other's checkpoints: `exclusive` lets one in at a time.
"""

import dataclasses
import errno
import hashlib
import json
import os
import random
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "CheckpointWarning",
    "check_same_settings",
    "describe_model",
    "describe_value",
    "exclusive",
    "keep_weights_only",
    "load_latest_checkpoint",
    "pack",
    "random_state",
    "save_checkpoint",
    "set_random_state",
    "unpack",
]

FORMAT = "unrolled checkpoint 1"
LOCK = "in_use.lock"
SCALARS = (str, int, float, bool, type(None))


class CheckpointError(RuntimeError):
    """There are checkpoints but none is whole, or another run is writing them."""


class CheckpointWarning(UserWarning):
    """A checkpoint was damaged or could not be written; the run goes on without it."""


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after a step.

    Parameters
    ----------
    step
        Number of steps done; the run continues with the step of this number.
    weights
        The model's ``state_dict()``.
    state
        Everything else: nested dicts, lists and tuples of tensors and plain values.
    """

    step: int
    weights: dict[str, Tensor]
    state: dict[str, Any]


# Nested state <-> JSON and tensors ---------------------------------------------------------------


def pack(value: Any, tensors: dict[str, Tensor], path: str = "state") -> Any:
    """Turn nested state into what JSON can hold, and move its tensors into `tensors`.

    Dicts with any plain keys, lists, tuples and tensors may be nested in any way. `unpack` is
    the inverse, to the bit.

    Raises
    ------
    TypeError
        If a value is none of these; the message holds its path.

    Examples
    --------
    >>> tensors = {}
    >>> tree = pack({"betas": (0.9, 0.95), 0: torch.ones(2)}, tensors)
    >>> list(tensors)
    ['0:state.0']
    >>> unpack(tree, tensors)["betas"]
    (0.9, 0.95)
    """
    if isinstance(value, Tensor):
        # The count keeps names apart: {"a.b": x} and {"a": {"b": x}} have the same path.
        name = f"{len(tensors)}:{path}"
        tensors[name] = value
        return {"tensor": name}
    if type(value) in SCALARS:
        return value
    if isinstance(value, dict):
        # JSON keys are text, but optimizers number their parameters: keep keys as values.
        return {
            "dict": [
                [pack(key, {}, f"{path} key"), pack(item, tensors, f"{path}.{key}")]
                for key, item in value.items()
            ]
        }
    if isinstance(value, (list, tuple)):
        packed = [pack(item, tensors, f"{path}.{index}") for index, item in enumerate(value)]
        return packed if isinstance(value, list) else {"tuple": packed}
    raise TypeError(
        f"{path} is a {type(value).__name__}, which a checkpoint cannot hold: it may be a tensor, "
        "a number, a bool, a text, None, or a dict, list or tuple of these"
    )


def unpack(tree: Any, tensors: dict[str, Tensor]) -> Any:
    """Return the nested state that `pack` took apart."""
    if isinstance(tree, list):
        return [unpack(item, tensors) for item in tree]
    if not isinstance(tree, dict):
        return tree
    ((kind, content),) = tree.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "tuple":
        return tuple(unpack(item, tensors) for item in content)
    return {unpack(key, {}): unpack(item, tensors) for key, item in content}


# One run at a time -------------------------------------------------------------------------------


@contextmanager
def exclusive(folder: str | Path) -> Iterator[None]:
    """Keep other runs out of a folder of checkpoints while the block lasts.

    The lock is one of the operating system (``filelock`` on the file ``in_use.lock``): it ends with
    its process, also if that is killed. One process of a run holds it for all.

    Parameters
    ----------
    folder
        Where the ``step_*`` folders lie; it must be there.

    Raises
    ------
    CheckpointError
        If another run holds it, or the lock cannot be written; the message names the folder.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, exclusive(folder):
    ...     with exclusive(folder):
    ...         pass
    Traceback (most recent call last):
    ...
    unrolled.checkpoint.CheckpointError: another run keeps its checkpoints in ...
    """
    path = Path(folder, LOCK)
    try:
        lock = FileLock(path).acquire(timeout=0)
    except Timeout:
        raise CheckpointError(
            f"another run keeps its checkpoints in {folder}, and two would remove each other's: "
            "wait for its end or stop it, or choose another checkpoint_folder. If no run is alive "
            f"(a drive of the network can be slow to notice an end), remove {path}"
        ) from None
    except OSError as error:
        raise CheckpointError(f"{folder} cannot hold checkpoints: {error}") from error
    with lock:
        yield


# Writing -----------------------------------------------------------------------------------------


def save_checkpoint(folder: str | Path, checkpoint: Checkpoint, keep: int = 2) -> Path:
    """Write a checkpoint so that at every moment the newest one on the disk is whole.

    Parameters
    ----------
    folder
        Where the ``step_*`` folders lie; made if it is not there.
    checkpoint
        What to write.
    keep
        How many to keep, this one included. Older ones are removed once this one is safe.

    Returns
    -------
    pathlib.Path
        The folder of the checkpoint.

    Raises
    ------
    OSError
        If the disk is full or not writable. What was there before is still there.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = save_checkpoint(folder, Checkpoint(7, {"w": torch.ones(2)}, {"loss": 0.5}))
    ...     load_latest_checkpoint(folder).state
    {'loss': 0.5}
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"step_{checkpoint.step:08d}"
    partial = target.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir()
        _write_files(partial, checkpoint)
        shutil.rmtree(target, ignore_errors=True)  # it is there only if it was damaged
        partial.rename(target)
    except SafetensorError as error:  # how safetensors reports a full disk
        raise OSError(str(error)) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    _flush(folder)
    _prune(folder, checkpoint.step, keep)
    return target


def _write_files(folder: Path, checkpoint: Checkpoint) -> None:
    tensors: dict[str, Tensor] = {}
    tree = pack(checkpoint.state, tensors)
    save_file(_separate(checkpoint.weights), folder / "model.safetensors", {"format": "pt"})
    save_file(_separate(tensors), folder / "state.safetensors")
    state = {"format": FORMAT, "step": checkpoint.step, "state": tree}
    (folder / "state.json").write_text(json.dumps(state))
    names = ("model.safetensors", "state.safetensors", "state.json")
    manifest = {name: _fingerprint(folder / name) for name in names}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1))
    for name in (*names, "manifest.json"):
        _flush(folder / name)
    _flush(folder)


def _separate(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors on the CPU, each with memory of its own (safetensors refuses shared)."""
    seen: set[int] = set()
    separate = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        pointer = tensor.untyped_storage().data_ptr()
        separate[name] = tensor.clone() if pointer in seen else tensor
        seen.add(pointer)
    return separate


def _fingerprint(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}


def _flush(path: Path) -> None:
    """Wait until a file, or the list of names in a folder, is on the disk."""
    if path.is_dir() and os.name == "nt":
        return  # Windows opens no folder; its rename is durable without
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Drives mounted over a network often cannot flush a folder; their files are flushed.
        if not path.is_dir() or error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def _prune(folder: Path, step: int, keep: int) -> None:
    """Remove old checkpoints, and later ones: the run passed them by because of damage."""
    past = [path for path in _list(folder) if _step(path) <= step]
    future = [path for path in _list(folder) if _step(path) > step]
    for path in past[:-keep] + future + list(folder.glob("step_*.partial")):
        shutil.rmtree(path, ignore_errors=True)


def _list(folder: Path) -> list[Path]:
    """Return the checkpoints of a folder, oldest first."""
    paths = [p for p in folder.glob("step_*") if p.is_dir() and p.name[5:].isdigit()]
    return sorted(paths, key=_step)


def _step(path: Path) -> int:
    return int(path.name[5:])


def keep_weights_only(folder: str | Path) -> None:
    """Reduce the checkpoints of a run that is over to its last weights.

    Parameters
    ----------
    folder
        Where ``step_*`` folders lie, in it or below it. Each place that has some has
        ``model.safetensors`` instead afterwards.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = save_checkpoint(folder, Checkpoint(7, {"w": torch.ones(2)}, {"loss": 0.5}))
    ...     keep_weights_only(folder)
    ...     os.listdir(folder)
    ['model.safetensors']
    """
    for place in {path.parent for path in Path(folder).rglob("step_*") if path.is_dir()}:
        paths = _list(place)
        if paths:
            (paths[-1] / "model.safetensors").replace(place / "model.safetensors")
        (place / LOCK).unlink(missing_ok=True)
        for path in place.glob("step_*"):
            shutil.rmtree(path, ignore_errors=True)


# Reading -----------------------------------------------------------------------------------------


def load_latest_checkpoint(folder: str | Path) -> Checkpoint | None:
    """Read the newest checkpoint that is whole.

    Parameters
    ----------
    folder
        Where the ``step_*`` folders lie.

    Returns
    -------
    Checkpoint or None
        None if there is none at all. Tensors are on the CPU.

    Warns
    -----
    CheckpointWarning
        For each damaged checkpoint, with what is wrong, when an older one is used.

    Raises
    ------
    CheckpointError
        If there are checkpoints and all of them are damaged.
    """
    paths = _list(Path(folder))
    complaints = []
    for path in reversed(paths):
        problem = _damage(path)
        if problem is None:
            for complaint in complaints:
                message = f"{complaint}; falling back to {path.name}"
                warnings.warn(message, CheckpointWarning, stacklevel=2)
            return _read(path)
        complaints.append(f"checkpoint {path} is damaged: {problem}")
    if complaints:
        raise CheckpointError(
            "; ".join(complaints) + f"; no whole checkpoint is left: remove {folder} to start again"
        )
    return None


def _damage(path: Path) -> str | None:
    """Return what is wrong with a checkpoint, or None."""
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        for name in ("model.safetensors", "state.safetensors", "state.json"):
            if _fingerprint(path / name) != manifest[name]:
                return f"{name} differs from its checksum"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def _read(path: Path) -> Checkpoint:
    content = json.loads((path / "state.json").read_text())
    if content["format"] != FORMAT:
        raise CheckpointError(
            f"{path} has format {content['format']!r}, this code reads {FORMAT!r}"
        )
    state = unpack(content["state"], _read_tensors(path / "state.safetensors"))
    return Checkpoint(content["step"], _read_tensors(path / "model.safetensors"), state)


def _read_tensors(path: Path) -> dict[str, Tensor]:
    # Copies, because safetensors maps the file into memory and the file will be removed.
    return {name: tensor.clone() for name, tensor in load_file(path).items()}


# What belongs to a run ---------------------------------------------------------------------------


def random_state() -> dict[str, Any]:
    """Return the state of every global random generator: Python, NumPy, torch, the GPU in use."""
    kind, keys, *rest = np.random.get_state()
    numpy_state = (kind, torch.from_numpy(keys.astype(np.int64)), *rest)
    state = {"python": random.getstate(), "numpy": numpy_state, "torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """Set every global random generator to a state that `random_state` returned.

    Examples
    --------
    >>> state = random_state()
    >>> first = torch.rand(3)
    >>> set_random_state(state)
    >>> bool((torch.rand(3) == first).all())
    True
    """
    kind, keys, *rest = state["numpy"]
    random.setstate(state["python"])
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def describe_model(model: nn.Module) -> dict[str, Any]:
    """Return the settings, modules and tensor shapes that tell one model from another.

    Two variants can share all shapes, so plain attributes (``num_loops``, ``injection``), a
    dataclass ``config`` and what modules print of themselves count too.

    Examples
    --------
    >>> describe_model(nn.Linear(3, 2))["tensors"]["weight"]
    'float32 (2, 3)'
    """
    plain = {
        name: value
        for name, value in vars(model).items()
        if type(value) in SCALARS and not name.startswith("_") and name != "training"
    }
    config = getattr(model, "config", None)
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        plain["config"] = describe_value(dataclasses.asdict(config))
    tensors = {name: _describe_tensor(name, item) for name, item in model.state_dict().items()}
    modules = {
        name: f"{type(module).__name__}({module.extra_repr()})"
        for name, module in model.named_modules()
        if name
    }
    return {
        "class": type(model).__name__,
        "settings": plain,
        "modules": modules,
        "tensors": tensors,
    }


def describe_value(value: Any) -> Any:
    """Return a value as a checkpoint can hold it; what it cannot hold becomes its type's name."""
    if isinstance(value, dict):
        return {str(key): describe_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [describe_value(item) for item in value]
    if isinstance(value, torch.dtype):
        return str(value)
    return value if type(value) in SCALARS else type(value).__name__


def _describe_tensor(name: str, tensor: Any) -> str:
    if not isinstance(tensor, Tensor):
        raise TypeError(
            f"state_dict()[{name!r}] is a {type(tensor).__name__}: only tensors can be weights"
        )
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def check_same_settings(saved: dict[str, Any], now: dict[str, Any], folder: str | Path) -> None:
    """Raise a ValueError that names each setting in which a checkpoint and this run differ.

    Examples
    --------
    >>> check_same_settings({"training": {"steps": 9}}, {"training": {"steps": 8}}, "runs/a")
    Traceback (most recent call last):
    ...
    ValueError: the checkpoints in runs/a belong to another run: training.steps was 9 and is 8...
    """
    old, new = _flatten(saved), _flatten(now)
    absent = "absent"
    differing = [
        f"{name} was {old.get(name, absent)!r} and is {new.get(name, absent)!r}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name, absent) != new.get(name, absent)
    ]
    if differing:
        more = f" (and {len(differing) - 5} more)" if len(differing) > 5 else ""
        raise ValueError(
            f"the checkpoints in {folder} belong to another run: {'; '.join(differing[:5])}{more}. "
            "Use the settings of that run to continue it, or another checkpoint_folder"
        )


def _flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(tree, dict):
        parts = [
            _flatten(value, f"{prefix}.{key}" if prefix else str(key))
            for key, value in tree.items()
        ]
        return {name: value for part in parts for name, value in part.items()}
    return {prefix: list(tree) if isinstance(tree, tuple) else tree}

"""Weights and moments that Accelerate has divided among processes (FSDP 2): whole, and back.

A checkpoint holds whole tensors, so that a run goes on with another number of processes, or with
none sharded at all.
"""

from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

__all__ = ["is_divided", "load_optimizer", "load_weights", "whole"]


def is_divided(model: nn.Module) -> bool:
    """Return whether the processes hold parts of the model's weights.

    Examples
    --------
    >>> is_divided(nn.Linear(2, 2))
    False
    """
    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


def whole(tree: Any, *, keep: bool = True) -> Any:
    """Return nested state with every divided tensor in one piece, on the CPU.

    All processes must call it with the same state, since they exchange their parts.

    Parameters
    ----------
    tree
        Nested dicts, lists and tuples; what is in one piece already stays as it is.
    keep
        False takes part in the exchange and returns None in the place of what was divided, so
        that only one process needs the memory.

    Examples
    --------
    >>> whole({"steps": (3, None)})
    {'steps': (3, None)}
    """
    if isinstance(tree, DTensor):
        gathered = tree.full_tensor()
        return gathered.cpu() if keep else None
    if isinstance(tree, dict):
        return {key: whole(value, keep=keep) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(whole(value, keep=keep) for value in tree)
    return tree


def load_weights(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Load whole weights into a model, each divided as the model's own are.

    Raises
    ------
    RuntimeError
        If names or shapes are not those of the model.
    """
    own = model.state_dict()
    model.load_state_dict({name: _divided(w, own.get(name)) for name, w in weights.items()})


def load_optimizer(optimizer: Optimizer, saved: dict[str, Any]) -> None:
    """Load the whole state of an optimizer; moments are divided as their parameters are."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    state = {
        index: {name: _divided(value, parameters[index]) for name, value in values.items()}
        for index, values in saved["state"].items()
    }
    optimizer.load_state_dict({**saved, "state": state})


def _divided(value: Any, reference: Any) -> Any:
    """Return this process's part of a tensor if the reference is divided and of its shape."""
    if not isinstance(reference, DTensor) or getattr(value, "shape", None) != reference.shape:
        return value
    place = (reference.device_mesh, reference.placements)
    # Each process has read the whole tensor, so that nothing need be sent.
    return distribute_tensor(value.to(reference.device), *place, src_data_rank=None)

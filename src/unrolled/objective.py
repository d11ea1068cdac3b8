"""The objective of a step: the mean loss of a batch, and how the batch is divided.

`Objective` is the loss as a module; `Share` says which rows of the batch a process takes and in
how many pieces, so that the effective batch is what the settings say.
"""

import hashlib
import numbers
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import recursively_apply
from torch import Tensor, nn

if TYPE_CHECKING:
    from unrolled.training import TrainingConfig

__all__ = ["Objective", "Share", "digest"]


class Objective(nn.Module):
    r"""The loss :math:`\mathcal L(\theta; z)` of a model as a module of its own.

    Accelerate wraps this module and not the model. So ``loss_fn`` may call any method of the
    model (``model.loss(...)``) and gradients are still averaged over processes, and the model is
    as it was when the run ends: no wrapper, no patched ``forward``.
    """

    def __init__(self, model: nn.Module, loss_fn: Callable):
        super().__init__()
        self.model = model
        # Not as a submodule: a loss with parameters of its own is no part of the model.
        self.__dict__["loss_fn"] = loss_fn

    def forward(self, batch: Any) -> tuple[Tensor, dict[str, Any]]:
        """Return the loss and a dict of metrics."""
        output = self.loss_fn(self.model, batch)
        loss, metrics = output if isinstance(output, tuple) else (output, {})
        if not isinstance(loss, Tensor) or loss.ndim != 0 or not loss.requires_grad:
            what = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise TypeError(
                f"loss_fn must return a scalar tensor with a gradient, or it and a dict; got {what}"
            )
        return loss, {key: _number(key, value) for key, value in metrics.items()}


def _number(name: str, value: Any) -> Any:
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.detach()
    if isinstance(value, numbers.Real):
        return value
    raise TypeError(
        f"loss_fn: metric {name!r} must be one number, got {type(value).__name__}; "
        "return lists and curves from on_gradients or on_step"
    )


@dataclass(frozen=True)
class Share:
    r"""Which rows of the batch a process takes, and in how many pieces.

    .. math:: B = P \cdot \text{micro-batch} \cdot \text{accumulation steps}

    Examples
    --------
    >>> from unrolled.training import TrainingConfig
    >>> share = Share.of(TrainingConfig(steps=1, batch_size=8, micro_batch_size=2), 2, process=1)
    >>> share.accumulation, share.rows()
    (2, [slice(4, 6, None), slice(6, 8, None)])
    """

    batch_size: int
    processes: int
    process: int
    micro_batch_size: int
    accumulation: int

    @classmethod
    def of(cls, training: "TrainingConfig", processes: int, process: int) -> "Share":
        """Divide the batch, or raise a ValueError with the numbers that do not fit."""
        batch = training.batch_size
        micro = training.micro_batch_size or max(1, batch // processes)
        accumulation = max(1, batch // (processes * micro))
        if processes * micro * accumulation != batch:
            raise ValueError(
                f"batch_size={batch} cannot be made: {processes} process(es) x "
                f"micro_batch_size={micro} x {accumulation} accumulation step(s) = "
                f"{processes * micro * accumulation}"
            )
        return cls(batch, processes, process, micro, accumulation)

    def rows(self) -> list[slice]:
        """Return the rows of each micro-batch of this process."""
        first = self.process * self.micro_batch_size * self.accumulation
        starts = range(
            first, first + self.micro_batch_size * self.accumulation, self.micro_batch_size
        )
        return [slice(start, start + self.micro_batch_size) for start in starts]

    def check(self, batch: Any, step: int) -> None:
        """Raise a ValueError unless all tensors of a batch have the rows that were promised."""
        rows: list[int] = []
        recursively_apply(lambda tensor: rows.extend(tensor.shape[:1] or [0]), batch)
        if not rows or any(count != self.batch_size for count in rows):
            raise ValueError(
                f"batch_at({step}) must return tensors with batch_size={self.batch_size} rows, "
                f"got tensors with {rows} rows"
            )


def digest(batch: Any) -> str:
    """Return a fingerprint of the tensors of a batch."""
    digest = hashlib.sha256()

    def add(tensor: Tensor) -> Tensor:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        raw = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
        digest.update(raw.numpy().tobytes())
        return tensor

    recursively_apply(add, batch)
    return digest.hexdigest()[:16]

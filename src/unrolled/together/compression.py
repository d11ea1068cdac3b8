r"""Compression: the masks of a run as an argument of `unrolled.training.fit`.

`unrolled.horst.sparsity.Acdc` wants to be called between the steps of a training, and an
experiment wants to look at the dense network just before it is made sparse for good. `Compression`
is both, so that looped models, plain ones and a fine-tuned encoder are compressed by one code:

.. code-block:: python

    acdc = Acdc(model, optimizer, AcdcSchedule(steps), sparsity=0.9, scope="layerwise")
    compression = Compression(acdc, look=lambda: {"dense_loss": validate(model)})
    fit(..., [optimizer], on_step=compression.after_step, stateful={"compression": compression})
    compression.dense    # what was seen
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from unrolled.horst.sparsity import Acdc, AcdcSchedule, prunable_weights, sparsity_report
from unrolled.training import StepReport

__all__ = ["Compression", "count_weights", "dense_steps"]


def dense_steps(schedule: AcdcSchedule) -> int:
    """Return after how many steps the network is dense for the last time.

    Examples
    --------
    >>> dense_steps(AcdcSchedule(steps=100))
    85
    """
    return next(
        done
        for done in range(schedule.steps, -1, -1)
        if not (done and schedule.is_sparse(done - 1))
    )


class Compression:
    """Alternating compression inside `fit`, and one look at the network while it is dense.

    Parameters
    ----------
    acdc : Acdc
        With sparsity 0 no mask is ever chosen, and training is dense.
    look : callable
        Called once, after the last dense step; returns columns of a row.

    Attributes
    ----------
    dense : dict
        What `look` returned.

    Examples
    --------
    >>> import torch
    >>> layer = nn.Linear(8, 1)
    >>> optimizer = torch.optim.AdamW(layer.parameters())
    >>> acdc = Acdc(layer, optimizer, AcdcSchedule(20), sparsity=0.75)
    >>> compression = Compression(acdc, lambda: {"zeros": int((layer.weight == 0).sum())})
    >>> for step in range(20):
    ...     layer(torch.ones(1, 8)).sum().backward()
    ...     optimizer.step()
    ...     compression.after_step(StepReport(step, 20, 0.0, 0.0, 0.0, {}))
    >>> compression.dense, int((layer.weight == 0).sum())
    ({'zeros': 0}, 6)
    """

    def __init__(self, acdc: Acdc, look: Callable[[], dict[str, Any]]) -> None:
        self.acdc, self.look, self.dense = acdc, look, {}
        self._last = dense_steps(acdc.schedule)
        self._turn(0)

    def after_step(self, report: StepReport) -> None:
        """Look if it is time, then begin or end the phase of the next step."""
        done = report.step + 1
        if done == self._last:
            self.dense = self.look()
        if done < report.steps:
            self._turn(done)

    def state_dict(self) -> dict[str, Any]:
        """Return the masks and what was seen, for a checkpoint."""
        return {"acdc": self.acdc.state_dict(), "dense": self.dense}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the state of a run that was cut off."""
        self.acdc.load_state_dict(state["acdc"])
        self.dense = state["dense"]

    def _turn(self, step: int) -> None:
        if self.acdc.sparsity:
            self.acdc.before(step)


def count_weights(model: nn.Module, exclude: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return how many weights can be pruned, how many of them are not zero, and by layer.

    A weight that is used in every loop is stored once and counted once.

    Examples
    --------
    >>> layer = nn.Linear(2, 2)
    >>> layer.weight.data = nn.Parameter(layer.weight.new_tensor([[0.0, 1.0], [2.0, 3.0]]))
    >>> count_weights(layer)
    {'weights': 4, 'kept_weights': 3, 'kept': 0.75, 'kept_by_layer': [0.75]}
    """
    *layers, total = sparsity_report(prunable_weights(model, exclude))
    return {
        "weights": total.shape[0],
        "kept_weights": total.shape[0] - total.zeros,
        "kept": 1 - total.sparsity,
        "kept_by_layer": [1 - layer.sparsity for layer in layers],
    }

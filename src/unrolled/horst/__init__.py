"""Optimizer geometry: steps as operators, their composition, and what it does to sparsity.

`unrolled.horst.operators` has the parts as pure functions, `unrolled.horst.optimizers` the
optimizers for your own training, and `unrolled.horst.sparsity` masks and when they hold:

.. code-block:: python

    optimizer = Horst(parameter_groups(model), lr=1e-3, alpha=20.0, weight_decay=0.1)
    acdc = Acdc(model, optimizer, AcdcSchedule(steps), sparsity=0.9)
    for step in range(steps):
        acdc.before(step)
        ...
"""

from unrolled.horst.optimizers import Ham, Horst, parameter_groups
from unrolled.horst.sparsity import (
    Acdc,
    AcdcSchedule,
    Masks,
    group_masks,
    magnitude_masks,
    prunable_weights,
    sparsity_report,
)

__all__ = [
    "Acdc",
    "AcdcSchedule",
    "Ham",
    "Horst",
    "Masks",
    "group_masks",
    "magnitude_masks",
    "parameter_groups",
    "prunable_weights",
    "sparsity_report",
]

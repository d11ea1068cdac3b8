r"""Compositions: the optimizers that are compared, and how each is built for a network.

- "adamw", "ham", "horst": `torch.optim.AdamW`, `Ham` and `Horst`;
- "mirror": mirror descent alone, with the hyperbolic entropy;
- "sgd", "sign": the mirror on top of the gradient, and of its sign, in place of Adam;
- "mirror_first": Adam on top of the mirror, the other order.

Only matrices are mirrored and decayed. Norms, biases, embeddings and single parameters follow Adam
at one rate, the same for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer

from unrolled.horst.operators import (
    Operator,
    adam,
    compose,
    exponential,
    gradient,
    hyperbolic,
    metric,
    scale,
    sign,
)
from unrolled.horst.optimizers import Composition, Ham, Horst, parameter_groups
from unrolled.transformer import require_choice

__all__ = ["COMPOSITIONS", "OPTIMIZERS", "Tuned", "build_optimizer", "composition"]

OPTIMIZERS = ("adamw", "ham", "horst")
"""The optimizers that are compared."""

COMPOSITIONS = ("mirror", "sgd", "sign", "mirror_first")
"""Other compositions of the same parts."""

BETAS = (0.9, 0.999)
MIRROR_KEYS = ("alpha", "beta")


@dataclass(frozen=True)
class Tuned:
    r"""What a search chooses for one optimizer.

    Parameters
    ----------
    rate, weight_decay
        :math:`\eta` and :math:`\lambda` of the matrices.
    alpha, beta
        Of the mirror. "mirror" has the width b of its entropy in place of alpha.
    """

    rate: float = 1e-3
    weight_decay: float = 0.05
    alpha: float = 0.0
    beta: float = 0.0


def build_optimizer(
    name: str, tuned: Tuned, model: nn.Module, rest_rate: float, exclude: Iterable[str] = ()
) -> Optimizer:
    """Return an optimizer of `OPTIMIZERS` or `COMPOSITIONS` for a network.

    Parameters
    ----------
    name : str
    tuned : Tuned
        Its values, for the matrices.
    model : Module
    rest_rate : float
        Rate of Adam for all other parameters.
    exclude : iterable of str
        Names of modules whose weights are among the others; see `parameter_groups`.

    Examples
    --------
    >>> optimizer = build_optimizer("sign", Tuned(rate=0.1), nn.Linear(3, 2), rest_rate=0.01)
    >>> [group["lr"] for group in optimizer.param_groups]
    [0.1, 0.01]
    """
    require_choice(name, "name", (*OPTIMIZERS, *COMPOSITIONS))
    matrices, *rest = parameter_groups(model, exclude)
    values = {"lr": tuned.rate, "weight_decay": tuned.weight_decay}
    groups = [matrices, *({**group, "lr": rest_rate} for group in rest)]
    if name in ("ham", "horst"):
        build = Ham if name == "ham" else Horst
        return build(groups, betas=BETAS, alpha=tuned.alpha, beta=tuned.beta, **values)
    groups = [{k: v for k, v in group.items() if k not in MIRROR_KEYS} for group in groups]
    if name == "adamw":
        return torch.optim.AdamW(groups, betas=BETAS, **values)
    for group in groups[1:]:
        group["operator"] = _adam_step
    return Composition(groups, operator=composition(name, tuned), **values)


def composition(name: str, tuned: Tuned) -> Callable[[float], Operator]:
    """Return what maps a learning rate to the operator of a name of `COMPOSITIONS`.

    Examples
    --------
    >>> theta, u = torch.tensor([2.0]), torch.tensor([-0.5])
    >>> operator = composition("sign", Tuned(alpha=1.0))
    >>> operator(0.001)(theta, u, None)[0] / 0.001    # about -(1 + 2)
    tensor([-3.00])
    """
    require_choice(name, "name", COMPOSITIONS)
    if name == "mirror":
        return lambda lr: compose(hyperbolic(tuned.alpha), scale(lr))
    if name == "mirror_first":
        return lambda lr: compose(scale(lr), compose(adam(BETAS), metric(tuned.alpha)))
    inner = sign() if name == "sign" else gradient()
    return lambda lr: compose(exponential(tuned.alpha, lr * tuned.beta), compose(scale(lr), inner))


def _adam_step(lr: float) -> Operator:
    return compose(scale(lr), adam(BETAS))

"""Optimizers and their schedules: which rule moves which parameters, and how far at each step.

Two rules are built here, both from `torch.optim`. AdamW moves every tensor by its own adaptive
step. Muon moves each block matrix along the nearest orthogonal matrix of its momentum, while
AdamW keeps the embedding, the head and whatever is not a matrix: the split that the Fully Looped
Transformer is trained with. A schedule is a pure function of the step, so a run that resumes
needs nothing but the step to continue it.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

SCHEDULES = ("constant", "linear", "cosine", "trapezoid")
GROUPS = ("embedding", "head", "matrices", "other")
# The width at which the paper states the rates of embedding and head.
REFERENCE_WIDTH = 768


def require(condition: bool, name: str, value: object, allowed: str) -> None:
    """Raise a ValueError that names the argument, its value, and what is allowed."""
    if not condition:
        raise ValueError(f"{name} must be {allowed}, got {value!r}")


@dataclass(frozen=True)
class OptimizerConfig:
    r"""The optimizer of a run and its rates, before any schedule.

    Parameters
    ----------
    name
        ``"adamw"``: AdamW on every parameter. ``"muon"``: Muon on the block matrices, AdamW on
        the rest.
    learning_rate
        Rate of AdamW, or with ``"muon"`` of the matrices.
    betas, eps
        Decay rates of AdamW's moments and the term that keeps its denominator from zero.
    weight_decay
        Decoupled decay of tensors with two or more dimensions. Gains and biases never decay.
    embedding_learning_rate, head_learning_rate
        AdamW's rates there. None means `learning_rate` with ``"adamw"``, and the paper's .2 and
        .004 with ``"muon"``. With ``"muon"`` both are multiplied by
        :math:`(d / 768)^{-1/2}` for width d; gains and biases share the head's rate (our
        choice: the paper's model has none).
    momentum, momentum_start, momentum_warmup
        Muon's momentum rises linearly from `momentum_start` to `momentum` in so many steps.
    nesterov, newton_schulz_steps
        Muon's look-ahead, and its number of Newton-Schulz steps towards the orthogonal matrix.

    Raises
    ------
    ValueError
        If a value is outside its range.

    Examples
    --------
    >>> OptimizerConfig(learning_rate=1e-3).name
    'adamw'
    >>> OptimizerConfig(name="sgd")
    Traceback (most recent call last):
    ...
    ValueError: name must be 'adamw' or 'muon', got 'sgd'
    """

    name: str = "adamw"
    learning_rate: float = 3e-3
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.0
    embedding_learning_rate: float | None = None
    head_learning_rate: float | None = None
    momentum: float = 0.95
    momentum_start: float = 0.85
    momentum_warmup: int = 300
    nesterov: bool = True
    newton_schulz_steps: int = 5

    def __post_init__(self):
        require(self.name in ("adamw", "muon"), "name", self.name, "'adamw' or 'muon'")
        for field in ("learning_rate", "embedding_learning_rate", "head_learning_rate"):
            value = getattr(self, field)
            if value is None and field != "learning_rate":
                continue
            require(_positive(value), field, value, "a positive finite number")
        pair = isinstance(self.betas, tuple) and len(self.betas) == 2
        require(pair and all(0 <= b < 1 for b in self.betas), "betas", self.betas, "two in [0, 1)")
        require(_positive(self.eps), "eps", self.eps, "a positive finite number")
        require(0 <= self.weight_decay < math.inf, "weight_decay", self.weight_decay, ">= 0")
        for field in ("momentum", "momentum_start"):
            require(0 <= getattr(self, field) < 1, field, getattr(self, field), "in [0, 1)")
        require(self.momentum_warmup >= 0, "momentum_warmup", self.momentum_warmup, ">= 0")
        steps = self.newton_schulz_steps
        require(1 <= steps < 100, "newton_schulz_steps", steps, "from 1 to 99")


def _positive(value: float) -> bool:
    return 0 < value < math.inf


# The values of the Fully Looped Transformer's public code, for its Small and Base models: Muon with
# rate .02 on block matrices; AdamW with betas .8 and .95 and eps 1e-10 on embedding (.2) and head
# (.004); no weight decay, no warm-up of the rate.
FLT_OPTIMIZER = OptimizerConfig(
    name="muon",
    learning_rate=0.02,
    betas=(0.8, 0.95),
    eps=1e-10,
    embedding_learning_rate=0.2,
    head_learning_rate=0.004,
)


def build_optimizers(model: nn.Module, config: OptimizerConfig) -> list[Optimizer]:
    """Build the optimizers of a model: one AdamW, or Muon and AdamW.

    Parameters
    ----------
    model
        Any module. If it has ``parameter_groups()``, a dict with the lists ``embedding``,
        ``head``, ``matrices`` and ``other``, the groups get their own rates. Muon needs it.
    config
        Names and rates. Frozen parameters (``requires_grad=False``) are left out.

    Returns
    -------
    list of torch.optim.Optimizer
        Together they hold every trainable parameter once.

    Raises
    ------
    ValueError
        If the groups miss a trainable parameter or hold one twice.
    TypeError
        If Muon is asked for and the model does not name its groups.

    References
    ----------
    AdamW: Loshchilov and Hutter, arXiv 1711.05101. Muon: K. Jordan et al.,
    https://kellerjordan.github.io/posts/muon/. The split and its rates: the Fully Looped
    Transformer, arXiv 2605.18797, and its authors' public code.

    Examples
    --------
    >>> [type(o).__name__ for o in build_optimizers(nn.Linear(2, 2), OptimizerConfig())]
    ['AdamW']
    """
    groups = trainable_groups(model)
    if config.name == "adamw":
        return [_adamw(groups, _adamw_rates(config), config)]
    if not hasattr(model, "parameter_groups"):
        raise TypeError(
            f"Muon must know which parameters of {type(model).__name__} are block matrices: "
            "give the model a method parameter_groups(), or use OptimizerConfig(name='adamw')"
        )
    matrices = groups.pop("matrices", [])
    optimizers = [_muon(matrices, config)] if matrices else []
    rest = {name: tensors for name, tensors in groups.items() if tensors}
    return optimizers + ([_adamw(rest, _muon_rates(groups, config), config)] if rest else [])


def trainable_groups(model: nn.Module) -> dict[str, list[Tensor]]:
    """Return the trainable parameters of a model by group, and check that none is lost.

    A model without ``parameter_groups()`` is one group, ``other``.
    """
    if not hasattr(model, "parameter_groups"):
        return {"other": [p for p in model.parameters() if p.requires_grad]}
    groups = model.parameter_groups()
    unknown = sorted(set(groups) - set(GROUPS))
    require(not unknown, "parameter_groups()", unknown, f"a dict with keys among {GROUPS}")
    trainable = {name: [p for p in ps if p.requires_grad] for name, ps in groups.items()}
    check_coverage(model, [p for ps in trainable.values() for p in ps], "parameter_groups()")
    return trainable


def check_coverage(model: nn.Module, parameters: list[Tensor], source: str) -> None:
    """Raise a ValueError unless `parameters` are the model's trainable ones, each once."""
    names = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
    held = [id(p) for p in parameters]
    missing = [name for key, name in names.items() if key not in set(held)]
    twice = [names.get(key, "?") for key in set(held) if held.count(key) > 1]
    foreign = sum(key not in names for key in held)
    if missing:
        raise ValueError(
            f"{source} misses the trainable parameters {missing}: add them, or freeze them "
            "with requires_grad_(False)"
        )
    if twice or foreign:
        raise ValueError(
            f"{source} holds {twice or foreign} "
            + ("more than once" if twice else "tensors that are not trainable in the model")
        )


def _adamw_rates(config: OptimizerConfig) -> dict[str, float]:
    rates = dict.fromkeys(GROUPS, config.learning_rate)
    rates["embedding"] = config.embedding_learning_rate or config.learning_rate
    rates["head"] = config.head_learning_rate or config.learning_rate
    return rates


def _muon_rates(groups: dict[str, list[Tensor]], config: OptimizerConfig) -> dict[str, float]:
    # eta_d = eta_768 (d / 768)^(-1/2)
    width = groups["embedding"][0].shape[-1] if groups.get("embedding") else REFERENCE_WIDTH
    scale = (width / REFERENCE_WIDTH) ** -0.5
    head = scale * (config.head_learning_rate or FLT_OPTIMIZER.head_learning_rate)
    embedding = scale * (config.embedding_learning_rate or FLT_OPTIMIZER.embedding_learning_rate)
    return {"embedding": embedding, "head": head, "other": head}


def _adamw(
    groups: dict[str, list[Tensor]], rates: dict[str, float], config: OptimizerConfig
) -> Optimizer:
    decayed = [
        {"params": part, "lr": rates[name], "weight_decay": decay, "group": name}
        for name, tensors in groups.items()
        for part, decay in (
            ([p for p in tensors if p.ndim >= 2], config.weight_decay),
            ([p for p in tensors if p.ndim < 2], 0.0),
        )
        if part
    ]
    return torch.optim.AdamW(decayed, betas=config.betas, eps=config.eps)


def _muon(matrices: list[Tensor], config: OptimizerConfig) -> Optimizer:
    group = {
        "params": matrices,
        "group": "matrices",
        "momentum_start": config.momentum_start,
        "momentum_end": config.momentum,
        "momentum_warmup": config.momentum_warmup,
    }
    return torch.optim.Muon(
        [group],
        lr=config.learning_rate,
        weight_decay=config.weight_decay,
        momentum=config.momentum,
        nesterov=config.nesterov,
        ns_steps=config.newton_schulz_steps,
    )


def learning_rate_factor(
    step: int, steps: int, schedule: str, *, warmup_steps: int = 0, decay_fraction: float = 0.2
) -> float:
    r"""Return the number that multiplies every learning rate at a step.

    In warm-up the factor is :math:`(t + 1) / w`. After it, with :math:`T` steps in all and
    :math:`D` the last ones,

    .. math::
        \text{constant: } 1, \qquad
        \text{linear: } \frac{T - t}{T - w}, \qquad
        \text{cosine: } \tfrac12 \Bigl(1 + \cos \pi \frac{t - w}{T - w}\Bigr), \qquad
        \text{trapezoid: } \min\Bigl(1, \frac{T - t}{D}\Bigr).

    Parameters
    ----------
    step
        The step t, from 0 to `steps` - 1.
    steps
        The number of steps T. The factor would reach 0 at step T, which is never taken.
    schedule
        One of `SCHEDULES`.
    warmup_steps
        The number w of warm-up steps.
    decay_fraction
        The share of the run in which ``"trapezoid"`` falls: D is T times it, rounded.

    Examples
    --------
    >>> [learning_rate_factor(t, 10, "trapezoid", decay_fraction=0.4) for t in (0, 6, 7, 9)]
    [1.0, 1.0, 0.75, 0.25]
    >>> learning_rate_factor(0, 10, "linear", warmup_steps=4)
    0.25
    """
    require(schedule in SCHEDULES, "schedule", schedule, f"one of {SCHEDULES}")
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if schedule == "constant":
        return 1.0
    if schedule == "trapezoid":
        return min(1.0, (steps - step) / max(1, round(decay_fraction * steps)))
    left = (steps - step) / (steps - warmup_steps)
    return left if schedule == "linear" else 0.5 * (1 + math.cos(math.pi * (1 - left)))


def momentum_at(step: int, start: float, end: float, warmup: int) -> float:
    r"""Return Muon's momentum at a step: linear from `start` to `end` in `warmup` steps.

    .. math:: \mu_t = \mu_0 + \min(1, t / w) \, (\mu_1 - \mu_0)

    Examples
    --------
    >>> [round(momentum_at(t, 0.85, 0.95, 300), 3) for t in (0, 150, 300, 900)]
    [0.85, 0.9, 0.95, 0.95]
    """
    progress = min(1.0, step / warmup) if warmup else 1.0
    return (1 - progress) * start + progress * end

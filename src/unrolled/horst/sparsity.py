r"""Sparsity: masks of zeros, the schedule that puts them on and off, and what they leave.

A mask is a tensor of booleans, one for each weight: True is kept. `magnitude_masks` chooses the
weights of small magnitude to go, `group_masks` two of every four in a row (N:M), the pattern that
hardware runs faster. `Masks` holds them for a model, and `Acdc` lets training alternate between
phases with and without them.

.. code-block:: python

    masks = Masks(model, magnitude_masks(prunable_weights(model), sparsity=0.9))
    masks.apply()
    handles = masks.attach(optimizer)    # so that they hold through every step
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from unrolled.optimization import require
from unrolled.transformer import require_choice, require_count

__all__ = [
    "HISTOGRAM",
    "MOMENT_RULES",
    "PRUNABLE",
    "SCOPES",
    "Acdc",
    "AcdcSchedule",
    "LayerSparsity",
    "Masks",
    "group_masks",
    "histogram",
    "magnitude_masks",
    "mask_of",
    "norm_ratio",
    "parametrize_masks",
    "prunable_weights",
    "prune_model",
    "sparsity_report",
]

PRUNABLE = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""Modules whose ``weight`` may be pruned."""

SCOPES = ("global", "layerwise", "uniform")
"""What is compared with what when weights are chosen; see `magnitude_masks`."""

MOMENT_RULES = ("keep", "reset_masked", "reset_all")
"""What happens to the moments of the optimizer when the masks go; see `Acdc`."""


HISTOGRAM = np.linspace(-3, 3, 61)
"""Edges of the bins of `histogram`, in standard deviations of a layer's weights."""


def prunable_weights(model: nn.Module, exclude: Iterable[str] = ()) -> dict[str, Tensor]:
    """Return the weights of linear maps and convolutions by their names, in the model's order.

    A weight that two modules share is returned once, and one that an embedding shares not at all.

    Parameters
    ----------
    model : Module
    exclude : iterable of str
        Names of modules to leave out: ``["head"]``.

    Raises
    ------
    ValueError
        If the model has no module of a name in `exclude`.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2), nn.Linear(2, 1))
    >>> {name: tuple(weight.shape) for name, weight in prunable_weights(model).items()}
    {'0.weight': (2, 3), '2.weight': (1, 2)}
    """
    modules, excluded = dict(model.named_modules()), set(exclude)
    require(excluded <= modules.keys(), "exclude", sorted(excluded), "names of modules")
    seen = {id(m.weight) for m in modules.values() if isinstance(m, nn.Embedding)}
    found = {}
    for name, module in modules.items():
        if isinstance(module, PRUNABLE) and name not in excluded and id(module.weight) not in seen:
            seen.add(id(module.weight))
            found[f"{name}.weight" if name else "weight"] = module.weight
    return found


# --- which weights go ---------------------------------------------------------------------------


def mask_of(scores: Tensor, num_pruned: int) -> Tensor:
    """Return a mask that drops exactly so many entries, those with the lowest scores.

    Parameters
    ----------
    scores : Tensor
        Any shape. Among equal scores those that come first are dropped first.
    num_pruned : int
        From 0 to the number of entries.

    Returns
    -------
    Tensor
        Booleans in the shape of `scores`; True is kept.

    Raises
    ------
    ValueError
        If a score is NaN, or `num_pruned` is out of its range.

    Examples
    --------
    >>> mask_of(torch.tensor([3.0, 1.0, 1.0, 2.0]), num_pruned=1)
    tensor([ True, False,  True,  True])
    """
    allowed = f"from 0 to {scores.numel()}"
    require(0 <= num_pruned <= scores.numel(), "num_pruned", num_pruned, allowed)
    require(not bool(scores.isnan().any()), "scores", "NaN", "numbers")
    mask = torch.ones(scores.numel(), dtype=torch.bool, device=scores.device)
    mask[scores.flatten().argsort(stable=True)[:num_pruned]] = False
    return mask.view(scores.shape)


@torch.no_grad()
def magnitude_masks(
    weights: Mapping[str, Tensor],
    sparsity: float,
    scope: Literal["global", "layerwise", "uniform"] = "layerwise",
    dense: Iterable[str] = (),
) -> dict[str, Tensor]:
    r"""Choose masks that drop the weights of the smallest magnitude.

    .. math:: \text{drop } \{ i : \lvert \theta_i \rvert \text{ among the } \mathrm{round}(s n)
              \text{ smallest} \}

    :eq:`eq-horst-magnitude`. The asked number of weights goes, also if magnitudes are equal.

    Parameters
    ----------
    weights : mapping of str to Tensor
        For example of `prunable_weights`.
    sparsity : float
        s, the share that goes, in [0, 1].
    scope : str
        "global": the smallest of all weights together. "layerwise": the share s of each.
        "uniform": those named in `dense` keep all their weights, and the others all lose the same
        share, raised so that s of all weights goes.
    dense : iterable of str
        Names that "uniform" leaves whole; often the first and the last layer.

    Returns
    -------
    dict
        A mask of booleans for each name; True is kept.

    Raises
    ------
    ValueError
        If an argument is outside its range, or the layers in `dense` are too large for s.

    Examples
    --------
    >>> weights = {"a": torch.tensor([1.0, -2.0]), "b": torch.tensor([0.1, -0.2])}
    >>> {name: mask.tolist() for name, mask in magnitude_masks(weights, 0.5, "global").items()}
    {'a': [True, True], 'b': [False, False]}
    >>> {name: mask.tolist() for name, mask in magnitude_masks(weights, 0.5).items()}
    {'a': [False, True], 'b': [False, True]}
    """
    require(0 <= sparsity <= 1, "sparsity", sparsity, "in [0, 1]")
    require_choice(scope, "scope", SCOPES)
    whole = set(dense)
    require(whole <= weights.keys(), "dense", sorted(whole), "names of weights")
    require(scope == "uniform" or not whole, "dense", sorted(whole), f"empty with scope {scope!r}")
    if scope == "global":
        return _global_masks(weights, sparsity)
    share = _uniform_share(weights, sparsity, whole)
    counts = {n: 0 if n in whole else round(share * w.numel()) for n, w in weights.items()}
    return {name: mask_of(weight.abs(), counts[name]) for name, weight in weights.items()}


def _global_masks(weights: Mapping[str, Tensor], sparsity: float) -> dict[str, Tensor]:
    if not weights:
        return {}
    scores = torch.cat([weight.abs().flatten().float() for weight in weights.values()])
    mask = mask_of(scores, round(sparsity * scores.numel()))
    parts = mask.split([weight.numel() for weight in weights.values()])
    return {name: p.view(weights[name].shape) for name, p in zip(weights, parts, strict=True)}


def _uniform_share(weights: Mapping[str, Tensor], sparsity: float, dense: set[str]) -> float:
    total = sum(weight.numel() for weight in weights.values())
    open_ = total - sum(weights[name].numel() for name in dense)
    limit = open_ / total if total else 1.0
    require(sparsity <= limit, "sparsity", sparsity, f"at most {limit:.3f}, the share not in dense")
    return sparsity * total / open_ if open_ else 0.0


@torch.no_grad()
def group_masks(weights: Mapping[str, Tensor], kept: int = 2, group: int = 4) -> dict[str, Tensor]:
    """Choose N:M masks: of every M weights in a row the N of largest magnitude are kept.

    :eq:`eq-horst-group`.

    Parameters
    ----------
    weights : mapping of str to Tensor
        The inputs of a weight, all dimensions but the first, are read as one row, whose length M
        must divide.
    kept, group : int
        N and M; 2 and 4 is the pattern of sparse tensor cores.

    Raises
    ------
    ValueError
        If M does not divide a row, or N is not from 1 to M.

    Examples
    --------
    >>> group_masks({"a": torch.tensor([[4.0, -3.0, 2.0, 1.0, 0.0, 0.0, 5.0, -6.0]])})["a"].int()
    tensor([[1, 1, 0, 0, 0, 0, 1, 1]], dtype=torch.int32)
    """
    require_count(group, "group")
    require(1 <= kept <= group, "kept", kept, f"from 1 to {group}")
    return {name: _group_mask(name, weight, kept, group) for name, weight in weights.items()}


def _group_mask(name: str, weight: Tensor, kept: int, group: int) -> Tensor:
    row = weight[0].numel()
    require(row % group == 0, "group", group, f"a divisor of {row}, the inputs of {name}")
    scores = weight.abs().reshape(-1, group)  # (rows * groups, M)
    # stable, so that of equal weights the last ones are kept, as in mask_of
    order = scores.argsort(dim=1, stable=True)
    mask = torch.ones_like(scores, dtype=torch.bool)
    mask.scatter_(1, order[:, : group - kept], False)
    return mask.view(weight.shape)


# --- masks that hold ----------------------------------------------------------------------------


class Masks:
    """The masks of a model, and what keeps them in force.

    Parameters
    ----------
    model : Module
    masks : mapping of str to Tensor
        Booleans in the shape of the parameter of that name; True is kept.

    Raises
    ------
    ValueError
        If the model has no parameter of a name, or a mask has another shape or dtype.

    Examples
    --------
    >>> layer = nn.Linear(4, 1, bias=False)
    >>> masks = Masks(layer, {"weight": torch.tensor([[True, False, True, False]])})
    >>> masks.apply()
    >>> layer.weight.count_nonzero(), masks.sparsity
    (tensor(2), 0.5)
    """

    def __init__(self, model: nn.Module, masks: Mapping[str, Tensor]) -> None:
        self.parameters = dict(model.named_parameters())
        for name, mask in masks.items():
            require(name in self.parameters, "masks", name, "named as parameters of the model")
            shape = self.parameters[name].shape
            good = mask.dtype == torch.bool and mask.shape == shape
            require(good, f"masks[{name!r}]", mask, f"of booleans in the shape {tuple(shape)}")
        self.masks = {n: mask.to(self.parameters[n].device) for n, mask in masks.items()}

    @property
    def sparsity(self) -> float:
        """The share of the masked tensors that is dropped."""
        total = sum(mask.numel() for mask in self.masks.values())
        kept = sum(int(mask.sum()) for mask in self.masks.values())
        return 1 - kept / total if total else 0.0

    @torch.no_grad()
    def apply(self) -> None:
        """Set the dropped weights to zero."""
        for name, mask in self.masks.items():
            self.parameters[name].masked_fill_(~mask, 0.0)

    @torch.no_grad()
    def apply_to_gradients(self) -> None:
        """Set the gradients of the dropped weights to zero."""
        for name, mask in self.masks.items():
            if self.parameters[name].grad is not None:
                self.parameters[name].grad.masked_fill_(~mask, 0.0)

    def attach(self, optimizer: Optimizer) -> list[RemovableHandle]:
        """Keep the masks in force through every step of an optimizer, until the handles go.

        Gradients are masked before the step, so that the moments of dropped weights fade and do
        not follow gradients that can do nothing. Weights are masked after it: a step that adds
        (Adam's moments, or noise) would move a zero, and a step that multiplies would not.

        Returns
        -------
        list of RemovableHandle
            Call ``remove()`` on each to let the weights go.

        Examples
        --------
        >>> layer = nn.Linear(2, 1, bias=False)
        >>> optimizer = torch.optim.AdamW(layer.parameters(), lr=1.0)
        >>> masks = Masks(layer, {"weight": torch.tensor([[True, False]])})
        >>> masks.apply()
        >>> handles = masks.attach(optimizer)
        >>> layer(torch.ones(1, 2)).sum().backward()
        >>> optimizer.step()
        >>> layer.weight[0, 1].item(), optimizer.state[layer.weight]["exp_avg"][0, 1].item()
        (0.0, 0.0)
        """
        return [
            optimizer.register_step_pre_hook(lambda *_: self.apply_to_gradients()),
            optimizer.register_step_post_hook(lambda *_: self.apply()),
        ]

    def state_dict(self) -> dict[str, Tensor]:
        """Return the masks by name, for a checkpoint."""
        return dict(self.masks)


# --- when they hold: AC/DC ------------------------------------------------------------------------


@dataclass(frozen=True)
class AcdcSchedule:
    r"""The phases of AC/DC: dense, sparse and dense in turn, dense once more, sparse to the end.

    Parameters
    ----------
    steps
        Of the whole run.
    warm_up, alternate_until, final_sparse
        Shares of the run: where the first dense phase ends, where the alternation ends, and where
        the last sparse phase begins. Ours are those of the authors' hundred epochs: 10, 75, 85.
    phase
        Share of the run that one phase of the alternation takes; it begins sparse.

    Raises
    ------
    ValueError
        If the shares are not in order, or a phase would have no step.

    Examples
    --------
    >>> schedule = AcdcSchedule(steps=100)
    >>> [step for step in range(1, 100) if schedule.is_sparse(step) != schedule.is_sparse(step - 1)]
    [10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70, 75, 85]
    >>> schedule.is_sparse(0), schedule.is_sparse(99)
    (False, True)

    References
    ----------
    A. Peste, E. Iofinova, A. Vladu and D. Alistarh (2021), "AC/DC: Alternating
    Compressed/DeCompressed Training of Deep Neural Networks", NeurIPS.
    """

    steps: int
    warm_up: float = 0.1
    alternate_until: float = 0.75
    final_sparse: float = 0.85
    phase: float = 0.05

    def __post_init__(self) -> None:
        require_count(self.steps, "steps")
        ends = self.warm_up, self.alternate_until, self.final_sparse
        allowed = "0 <= warm_up <= alternate_until <= final_sparse < 1"
        good = 0 <= ends[0] <= ends[1] <= ends[2] < 1
        require(good, "warm_up, alternate_until, final_sparse", ends, allowed)
        require(self.phase * self.steps >= 1, "phase", self.phase, f"at least 1 / {self.steps}")

    def is_sparse(self, step: int) -> bool:
        """Return whether the masks hold at a step, counted from 0."""
        allowed = f"from 0 to {self.steps - 1}"
        require(0 <= step < self.steps, "step", step, allowed)
        bounds = (self.warm_up, self.alternate_until, self.final_sparse)
        start, stop, last = (round(share * self.steps) for share in bounds)
        if step >= last:
            return True
        if not start <= step < stop:
            return False
        # phase i begins at start + round(i * phase * steps)
        i = int((step - start + 0.5) / (self.phase * self.steps))
        return i % 2 == 0


class Acdc:
    r"""Alternate compressed and decompressed training of a model.

    Call `before` in front of every step of the training. When a sparse phase begins, masks are
    chosen and applied, and hold until it ends; then the weights that were dropped grow from zero.

    Adam remembers what it saw for about :math:`1 / (1 - \beta_2)` steps. The moments of dropped
    weights fade in a sparse phase, since their gradients are masked. When the masks go, `moments`
    says what happens (:eq:`eq-horst-first-steps`):

    - "keep": nothing. The first moment is gone and much of the second is left, so that a weight
      that comes back starts with short steps;
    - "reset_masked": the moments of the weights that come back are zero. Since the count of steps
      goes on, no bias correction belongs to them, and their first step is
      :math:`(1 - \beta_1) / \sqrt{1 - \beta_2}` rates long, 3.2 with the usual values, and the
      twelfth 6.6;
    - "reset_all": the state of all pruned tensors is forgotten, and Adam starts anew, with its bias
      correction, so that the first step is one rate long; weights that were kept lose their memory,
      too.

    Parameters
    ----------
    model : Module
    optimizer : torch.optim.Optimizer
    schedule : AcdcSchedule
    sparsity : float
        In [0, 1].
    scope, dense
        Of `magnitude_masks`.
    exclude : iterable of str
        Names of modules that are never pruned.
    moments : str
        One of `MOMENT_RULES`.

    Examples
    --------
    >>> layer = nn.Linear(8, 1)
    >>> optimizer = torch.optim.AdamW(layer.parameters())
    >>> acdc = Acdc(layer, optimizer, AcdcSchedule(20), sparsity=0.75)
    >>> for step in range(20):
    ...     acdc.before(step)
    ...     layer(torch.ones(1, 8)).sum().backward()
    ...     optimizer.step()
    >>> layer.weight.count_nonzero()
    tensor(2)
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        schedule: AcdcSchedule,
        sparsity: float,
        *,
        scope: Literal["global", "layerwise", "uniform"] = "global",
        dense: Iterable[str] = (),
        exclude: Iterable[str] = (),
        moments: Literal["keep", "reset_masked", "reset_all"] = "keep",
    ) -> None:
        require_choice(moments, "moments", MOMENT_RULES)
        self.model, self.optimizer, self.schedule = model, optimizer, schedule
        self.sparsity, self.scope, self.dense = sparsity, scope, tuple(dense)
        self.exclude, self.moments = tuple(exclude), moments
        self.choose()  # bad values are refused before any work
        self.masks: Masks | None = None
        self._handles: list[RemovableHandle] = []

    def choose(self) -> Masks:
        """Return the masks of the weights as they are now."""
        weights = prunable_weights(self.model, self.exclude)
        chosen = magnitude_masks(weights, self.sparsity, self.scope, self.dense)
        return Masks(self.model, chosen)

    def before(self, step: int) -> None:
        """Begin or end a phase if it is time; `step` counts from 0."""
        sparse = self.schedule.is_sparse(step)
        if sparse and self.masks is None:
            self.compress(self.choose())
        elif not sparse and self.masks is not None:
            self.decompress()

    def compress(self, masks: Masks) -> None:
        """Put masks on, and keep them in force."""
        self.masks = masks
        masks.apply()
        self._handles = masks.attach(self.optimizer)

    @torch.no_grad()
    def decompress(self) -> None:
        """Take the masks off, and deal with the moments."""
        for handle in self._handles:
            handle.remove()
        masks, self.masks, self._handles = self.masks, None, []
        for name, mask in masks.masks.items():
            state = self.optimizer.state.get(masks.parameters[name], {})
            if self.moments == "reset_all":
                state.clear()
            elif self.moments == "reset_masked":
                for moment in state.values():
                    if torch.is_tensor(moment) and moment.shape == mask.shape:
                        moment.masked_fill_(~mask, 0.0)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the masks that are in force by name: none in a dense phase."""
        return {} if self.masks is None else self.masks.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        """Put the masks of a checkpoint in force; the weights of it must be in the model."""
        for handle in self._handles:
            handle.remove()
        self.masks, self._handles = None, []
        if state_dict:
            self.compress(Masks(self.model, state_dict))


# --- what others can use --------------------------------------------------------------------------


def prune_model(model: nn.Module, masks: Mapping[str, Tensor], permanent: bool = True) -> nn.Module:
    """Hand masks over to `torch.nn.utils.prune`.

    Parameters
    ----------
    model : Module
        Changed in place, and returned.
    masks : mapping of str to Tensor
        By the names of parameters.
    permanent : bool
        If True, the zeros are written into the weights and nothing else remains. If False,
        ``weight_orig`` and ``weight_mask`` stay beside the weight, and training keeps the zeros.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(4, 1))
    >>> masks = magnitude_masks(prunable_weights(model), 0.5)
    >>> prune.is_pruned(prune_model(model, masks, permanent=False))
    True
    """
    for name, mask in Masks(model, masks).masks.items():
        module, leaf = _owner(model, name)
        prune.custom_from_mask(module, leaf, mask)
        if permanent:
            prune.remove(module, leaf)
    return model


class _Masked(nn.Module):
    """The parametrization w -> mask * w."""

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.register_buffer("mask", mask)

    def forward(self, weight: Tensor) -> Tensor:
        return torch.where(self.mask, weight, 0.0)


def parametrize_masks(model: nn.Module, masks: Mapping[str, Tensor]) -> nn.Module:
    """Hand masks over to `torch.nn.utils.parametrize`, which keeps them through any training.

    Parameters
    ----------
    model : Module
        Changed in place, and returned. `parametrize.remove_parametrizations` writes the zeros
        into the weights.
    masks : mapping of str to Tensor
        By the names of parameters.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(4, 1))
    >>> masks = magnitude_masks(prunable_weights(model), 0.5)
    >>> parametrize_masks(model, masks)[0].weight.count_nonzero()
    tensor(2)
    """
    for name, mask in Masks(model, masks).masks.items():
        module, leaf = _owner(model, name)
        parametrize.register_parametrization(module, leaf, _Masked(mask))
    return model


def _owner(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, leaf = name.rpartition(".")
    return model.get_submodule(path), leaf


class LayerSparsity(NamedTuple):
    """The zeros of one tensor."""

    name: str
    shape: tuple[int, ...]
    zeros: int
    sparsity: float


def sparsity_report(weights: Mapping[str, Tensor]) -> list[LayerSparsity]:
    """Count the zeros of each tensor, and of all together in the last entry, "total".

    Examples
    --------
    >>> report = sparsity_report({"a": torch.tensor([0.0, 1.0]), "b": torch.zeros(2)})
    >>> [(layer.name, layer.sparsity) for layer in report]
    [('a', 0.5), ('b', 1.0), ('total', 0.75)]
    """
    report = []
    for name, weight in weights.items():
        zeros = weight.numel() - int(weight.count_nonzero())
        report.append(LayerSparsity(name, tuple(weight.shape), zeros, zeros / weight.numel()))
    size = sum(weight.numel() for weight in weights.values())
    zeros = sum(layer.zeros for layer in report)
    return [*report, LayerSparsity("total", (size,), zeros, zeros / size if size else 0.0)]


def norm_ratio(weight: Tensor) -> float:
    r"""Return how evenly a tensor's weights are spread: 1 if all have one size, small if few count.

    .. math:: R(\theta) = \frac{\lVert \theta \rVert_1}{\sqrt{n}\, \lVert \theta \rVert_2}

    :eq:`eq-horst-norm-ratio`. Gaussian weights have :math:`\sqrt{2/\pi} = 0.80`. It bounds what
    magnitude pruning removes from both sides, :eq:`eq-horst-ratio-bounds`; a mask that keeps the
    share :math:`\kappa` makes it at most :math:`\sqrt\kappa` by itself.

    Examples
    --------
    >>> norm_ratio(torch.tensor([3.0, -3.0, 3.0, 3.0])), norm_ratio(torch.tensor([0.0, 2, 0, 0]))
    (1.0, 0.5)
    """
    largest = weight.abs().max()
    if largest == 0:
        return 1.0
    size = weight.detach().double() / largest
    return (size.abs().sum() / (math.sqrt(weight.numel()) * size.norm())).item()


def histogram(weights: Mapping[str, Tensor]) -> list[float]:
    """Return the share of all weights by bin of `HISTOGRAM`, each layer in its own deviations.

    Examples
    --------
    >>> sum(histogram({"a": torch.linspace(-1, 1, 1_000)}))
    1.0
    """
    scaled = [w.detach().flatten() / w.detach().std() for w in weights.values()]
    counts, _ = np.histogram(torch.cat(scaled).cpu().numpy(), HISTOGRAM)
    total = sum(len(part) for part in scaled)
    return [round(count / total, 6) for count in counts.tolist()]

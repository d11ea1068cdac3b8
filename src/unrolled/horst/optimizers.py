r"""Optimizers: HORST and HAM for your own training, as `torch.optim.Optimizer`.

Both are AdamW with a multiplication behind it, and differ in what drives the multiplication:

.. math:: \theta_{1/2} = (1 - \eta \lambda) \theta - \eta A, \qquad
          \theta' = \theta_{1/2} \exp\bigl(-\mathrm{sign}(\theta_{1/2})\, \eta \alpha d
          - \eta \beta\bigr), \qquad
          d = \begin{cases} A & \text{HORST} \\ g & \text{HAM} \end{cases}

with Adam's direction :math:`A` (`unrolled.horst.operators.adam`), which is bounded, and the
gradient :math:`g`, which is not. No gradient is evaluated a second time, and nothing is stored
beyond the two moments of AdamW.

.. code-block:: python

    optimizer = Horst(parameter_groups(model), lr=1e-3, alpha=20.0, weight_decay=0.1)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unrolled.horst.operators import CLAMP, Operator, descend
from unrolled.optimization import require

__all__ = ["Composition", "Ham", "Horst", "MirroredAdamW", "parameter_groups"]

MOMENTS = ("exp_avg", "exp_avg_sq")
HALF = (torch.float16, torch.bfloat16)
# Elements that are worked on at a time: on a CPU six arrays of them should fit its cache; on a GPU
# two arrays of them are all that a step needs beside the state.
CHUNK = {"cpu": 2**17}
LARGE_CHUNK = 2**25
MIRRORED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.MultiheadAttention)


class _Work(NamedTuple):
    """What one step does to one tensor: all are changed in place but the gradient.

    ``step`` is a number, and in compiled code a tensor, which no graph has to be broken for.
    """

    theta: Tensor
    grad: Tensor
    m: Tensor
    v: Tensor
    step: Any


class MirroredAdamW(Optimizer):
    """AdamW and a multiplication behind it: what `Horst` and `Ham` have in common.

    Subclasses say what drives the multiplication: ``driver`` is "update" or "gradient".
    """

    driver: str

    def __init__(
        self,
        params: Iterable,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        alpha: float,
        beta: float,
        *,
        clamp: float,
        maximize: bool,
        foreach: bool,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "alpha": alpha,
            "beta": beta,
            "clamp": clamp,
            "maximize": maximize,
            "foreach": foreach,
        }
        _check(defaults)
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; its own values are checked, and a name that is none is refused."""
        unknown = sorted(param_group.keys() - self.defaults.keys() - {"params", "param_names"})
        require(not unknown, "params", unknown, f"groups of {', '.join(self.defaults)}")
        _check(self.defaults | param_group)
        super().add_param_group(param_group)
        for param in self.param_groups[-1]["params"]:
            require(param.is_floating_point(), "params", param.dtype, "real floating-point tensors")

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Take one step; parameters without a gradient stay as they are.

        Parameters
        ----------
        closure
            Evaluates the model and returns its loss, with gradients.

        Raises
        ------
        RuntimeError
            If a gradient is sparse.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [param for param in group["params"] if param.grad is not None]
            work = [self._prepared(param, group) for param in params]
            if torch.compiler.is_compiling():
                _step_fused(work, group, self.driver)
            elif group["foreach"]:
                _step_many(work, group, self.driver)
            else:
                _step_each(work, group, self.driver)
            for param, done in zip(params, work, strict=True):
                if param.dtype in HALF:
                    param.copy_(done.theta)
        return loss

    def _prepared(self, param: Tensor, group: dict[str, Any]) -> _Work:
        if param.grad.is_sparse:
            raise RuntimeError(
                f"the gradient of a parameter of shape {tuple(param.shape)} is sparse; "
                "only dense gradients are allowed (nn.Embedding(..., sparse=False))"
            )
        state = self.state[param]
        if not state:
            state["step"] = torch.tensor(0.0)  # a tensor, as torch.optim.AdamW has it
            for name in MOMENTS:
                state[name] = torch.zeros_like(param, dtype=_state_dtype(param))
        state["step"] += 1
        dtype = _state_dtype(param)
        grad = param.grad.to(dtype)
        grad = -grad if group["maximize"] else grad
        moments = (state[name] for name in MOMENTS)
        step = state["step"] if torch.compiler.is_compiling() else int(state["step"])
        return _Work(param.detach().to(dtype), grad, *moments, step)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; it goes to the parameters' device, moments of half floats stay float32."""
        super().load_state_dict(state_dict)
        ids = [i for group in state_dict["param_groups"] for i in group["params"]]
        params = [p for group in self.param_groups for p in group["params"]]
        for i, param in zip(ids, params, strict=True):
            saved = state_dict["state"].get(i, {})
            for name in MOMENTS if saved else ():
                # torch casts states to the dtype of the parameter, and so would round them
                moment = saved[name].to(param.device, _state_dtype(param))
                self.state[param][name] = moment.clone(memory_format=torch.preserve_format)
            if saved:
                self.state[param]["step"] = torch.as_tensor(saved["step"]).clone()


class Horst(MirroredAdamW):
    r"""HORST: the hyperbolic mirror on top of Adam's bounded step.

    .. math:: \theta_{1/2} = \theta - \eta A - \eta \lambda \theta, \qquad
              \theta' = \theta_{1/2} \exp\bigl(-\alpha\, \mathrm{sign}(\theta_{1/2})\, \eta A
              - \eta \beta\bigr)

    :eq:`eq-horst-update`; `unrolled.horst.operators.horst` is the same step as a composition of
    operators. With small steps a weight moves by
    :math:`(1 + \alpha \lvert \theta \rvert)\, \eta A`, so :math:`\alpha` matters where
    :math:`\alpha \lvert \theta \rvert` is about one or more: weights of .02 to .1 want 10 to 50.

    With ``alpha=0`` and ``beta=0`` this is `torch.optim.AdamW`, to the last bit. With ``alpha=0``
    and ``beta > 0`` it is AdamW too, but not with the decay you gave: the factor
    :math:`e^{-\eta\beta}` is a second decoupled decay behind the step, so the decay is about
    ``weight_decay + beta``.

    Parameters
    ----------
    params
        Parameters or groups, see `parameter_groups`; each group may have values of its own.
    lr : float
        :math:`\eta`.
    betas, eps
        Of Adam's direction.
    weight_decay : float
        :math:`\lambda`.
    alpha, beta : float
        Strength of the mirror, and of the shrinkage that it brings along. The paper's values are
        not known to us; these are ours, and not tuned.
    clamp : float
        Exponents above it, of either sign, are set to it (our choice, as HAM's code has it).
    maximize : bool
        Ascend instead of descend.
    foreach : bool
        Work on many tensors in one call (default), or on one after the other.

    Raises
    ------
    ValueError
        If a value is outside its range, or a group names one that there is not.

    Examples
    --------
    >>> weight = torch.nn.Parameter(torch.tensor([1.0, 0.5]))
    >>> optimizer = Horst([weight], lr=0.01, alpha=10.0)
    >>> weight.sum().backward()
    >>> optimizer.step()
    >>> weight.data    # .99 e^-.1 and .49 e^-.1
    tensor([0.90, 0.44])

    References
    ----------
    T. Jacobs, R. Jain and R. Burkholz (2026), "HORST: Composing Optimizer Geometries for Sparse
    Transformer Training", arXiv 2605.21104.
    """

    driver = "update"

    def __init__(
        self,
        params: Iterable,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        alpha: float = 20.0,
        beta: float = 0.0,
        *,
        clamp: float = CLAMP,
        maximize: bool = False,
        foreach: bool = True,
    ) -> None:
        flags = {"clamp": clamp, "maximize": maximize, "foreach": foreach}
        super().__init__(params, lr, betas, eps, weight_decay, alpha, beta, **flags)


class Ham(MirroredAdamW):
    r"""HAM: a hyperbolic mirror step with the raw gradient, behind a step of AdamW.

    .. math:: \theta' = \theta_{1/2} \exp\bigl(-\eta (\alpha\, \mathrm{sign}(\theta_{1/2})\, g
              + \beta)\bigr)

    :eq:`eq-horst-ham`. The exponent grows with the gradient, hence the clamp, and an
    :math:`\alpha` that suits one network need not suit another.

    Parameters
    ----------
    params, lr, betas, eps, weight_decay, clamp, maximize, foreach
        As in `Horst`.
    alpha, beta : float
        200 and .001 are the authors' values for ImageNet.

    Raises
    ------
    ValueError
        If a value is outside its range, or a group names one that there is not.

    Examples
    --------
    >>> weight = torch.nn.Parameter(torch.tensor([1.0, 0.5]))
    >>> optimizer = Ham([weight], lr=0.01, alpha=10.0, beta=0.0)
    >>> (3 * weight).sum().backward()
    >>> optimizer.step()
    >>> weight.data    # .99 e^-.3 and .49 e^-.3
    tensor([0.73, 0.36])

    References
    ----------
    T. Jacobs, A. Gadhikar, C. Rubio-Madrigal and R. Burkholz (2026), "Hyperbolic Aware
    Minimization: Implicit Bias for Sparsity", ICLR, arXiv 2506.02630.
    """

    driver = "gradient"

    def __init__(
        self,
        params: Iterable,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        alpha: float = 200.0,
        beta: float = 1e-3,
        *,
        clamp: float = CLAMP,
        maximize: bool = False,
        foreach: bool = True,
    ) -> None:
        flags = {"clamp": clamp, "maximize": maximize, "foreach": foreach}
        super().__init__(params, lr, betas, eps, weight_decay, alpha, beta, **flags)


class Composition(Optimizer):
    r"""Any composition of operators as an optimizer: plain, slow, and made for comparisons.

    .. math:: \theta \leftarrow \theta - \eta \lambda \theta, \qquad
              \theta \leftarrow \theta - O_{\eta,\theta}(g)

    :eq:`eq-horst-composition`.

    Parameters
    ----------
    params
        Parameters or groups; each group may have an operator of its own.
    lr : float
        :math:`\eta`.
    operator : callable
        Maps a learning rate to an operator of `unrolled.horst.operators`. It is asked at every
        step, so that a schedule may change the rate.
    weight_decay : float
        :math:`\lambda`.

    Raises
    ------
    ValueError
        If a value is outside its range.

    Examples
    --------
    >>> from unrolled.horst.operators import compose, metric, scale, sign
    >>> weight = torch.nn.Parameter(torch.tensor([3.0, -1.0]))
    >>> optimizer = Composition([weight], 0.1, lambda lr: compose(metric(1.0), scale(lr)))
    >>> weight.sum().backward()
    >>> optimizer.step()
    >>> weight.data    # 3 - .1 (1 + 3), and -1 - .1 (1 + 1)
    tensor([ 2.60, -1.20])
    """

    def __init__(
        self,
        params: Iterable,
        lr: float,
        operator: Callable[[float], Operator],
        weight_decay: float = 0.0,
    ) -> None:
        for name, value in (("lr", lr), ("weight_decay", weight_decay)):
            require(0 <= value < math.inf, name, value, "a finite number >= 0")
        defaults = {"lr": lr, "operator": operator, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Take one step; parameters without a gradient stay as they are."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            operator = group["operator"](group["lr"])
            for param in (param for param in group["params"] if param.grad is not None):
                theta = param * (1 - group["lr"] * group["weight_decay"])
                memory = self.state[param].get("operator")
                theta, self.state[param]["operator"] = descend(operator, theta, param.grad, memory)
                param.copy_(theta)
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return rates and memories in plain tuples; the operators are code, and left out."""
        found = super().state_dict()
        groups = [
            {name: value for name, value in group.items() if name != "operator"}
            for group in found["param_groups"]
        ]
        state = {
            key: {"operator": _plain(item["operator"])} for key, item in found["state"].items()
        }
        return found | {"param_groups": groups, "state": state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; the operators stay those of this optimizer."""
        own = [group["operator"] for group in self.param_groups]
        super().load_state_dict(state_dict)
        for group, operator in zip(self.param_groups, own, strict=True):
            group["operator"] = operator


def _plain(memory: Any) -> Any:
    return tuple(map(_plain, memory)) if isinstance(memory, tuple) else memory


def parameter_groups(model: nn.Module, exclude: Iterable[str] = ()) -> list[dict[str, Any]]:
    """Split the trainable parameters: the weight matrices, and the rest without mirror and decay.

    A matrix is the weight of a linear map, a convolution or `torch.nn.MultiheadAttention`. Norms,
    biases, embeddings and single parameters (class tokens, positions) are the rest, and so is a
    weight that an embedding shares. For the rest ``alpha``, ``beta`` and ``weight_decay`` are 0.

    Parameters
    ----------
    model : Module
    exclude : iterable of str
        Names of modules whose weights belong to the rest, too: ``["head"]``.

    Returns
    -------
    list of dict
        Two groups, ``params`` of the first are the matrices; one that would be empty is left out.

    Raises
    ------
    ValueError
        If the model has no module of a name in `exclude`.

    Examples
    --------
    >>> model = nn.Sequential(nn.Embedding(9, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    >>> [len(group["params"]) for group in parameter_groups(model)]
    [1, 4]
    """
    modules, excluded = dict(model.named_modules()), set(exclude)
    require(excluded <= modules.keys(), "exclude", sorted(excluded), "names of modules")
    embedded = {id(m.weight) for m in modules.values() if isinstance(m, nn.Embedding)}
    chosen = {
        id(param)
        for name, module in modules.items()
        if isinstance(module, MIRRORED) and name not in excluded
        for param in module.parameters(recurse=False)
        if param.ndim >= 2 and id(param) not in embedded
    }
    trainable = [param for param in model.parameters() if param.requires_grad]
    groups = [
        {"params": [param for param in trainable if id(param) in chosen]},
        {
            "params": [param for param in trainable if id(param) not in chosen],
            "alpha": 0.0,
            "beta": 0.0,
            "weight_decay": 0.0,
        },
    ]
    return [group for group in groups if group["params"]]


def _check(values: dict[str, Any]) -> None:
    for name in ("lr", "eps", "weight_decay", "alpha", "beta"):
        value = values[name]
        good = isinstance(value, int | float) and 0 <= value < math.inf
        require(good, name, value, "a finite number >= 0")
    betas = values["betas"]
    pair = isinstance(betas, tuple | list) and len(betas) == 2
    require(pair and all(0 <= b < 1 for b in betas), "betas", betas, "two numbers in [0, 1)")
    clamp = values["clamp"]
    good = isinstance(clamp, int | float) and 0 < clamp < math.inf
    require(good, "clamp", clamp, "a positive finite number")
    for name in ("maximize", "foreach"):
        require(isinstance(values[name], bool), name, values[name], "True or False")


def _state_dtype(param: Tensor) -> torch.dtype:
    return torch.float32 if param.dtype in HALF else param.dtype


# --- the step, one tensor after the other -------------------------------------------------------


def _step_each(work: Iterable[_Work], group: dict[str, Any], driver: str) -> None:
    (b1, b2), lr, rooms = group["betas"], group["lr"], {}
    for theta, g, m, v, t in work:
        denominator, exponent = _rooms(rooms, v, theta)
        # theta <- (1 - eta lambda) theta
        if group["weight_decay"]:
            theta.mul_(1 - lr * group["weight_decay"])
        # m <- b1 m + (1 - b1) g,  v <- b2 v + (1 - b2) g^2
        m.lerp_(g, 1 - b1)
        v.mul_(b2).addcmul_(g, g, value=1 - b2)
        # theta <- theta - eta / (1 - b1^t) m / (sqrt(v / (1 - b2^t)) + eps)
        size = lr / (1 - b1**t)
        torch.sqrt(v, out=denominator).div_(math.sqrt(1 - b2**t)).add_(group["eps"])
        theta.addcdiv_(m, denominator, value=-size)
        if not _is_mirrored(group):
            continue
        # theta <- theta exp(-sign(theta) eta alpha d - eta beta)
        torch.sign(theta, out=exponent)
        if driver == "update":
            exponent.mul_(m).div_(denominator).mul_(-group["alpha"] * size)
        else:
            exponent.mul_(g).mul_(-group["alpha"] * lr)
        if group["beta"]:
            exponent.sub_(lr * group["beta"])
        theta.mul_(exponent.clamp_(-group["clamp"], group["clamp"]).exp_())


def _rooms(kept: dict[tuple, list[Tensor]], *tensors: Tensor) -> list[Tensor]:
    """Return memory like that of the tensors: the last one again, where it fits.

    Memory that was used a moment ago is still in the cache of a CPU; new memory is not.
    """
    key = tuple((x.shape, x.stride(), x.dtype, x.device) for x in tensors)
    if key not in kept:
        kept.clear()
        kept[key] = [torch.empty_like(x) for x in tensors]
    return kept[key]


def _step_fused(work: list[_Work], group: dict[str, Any], driver: str) -> None:
    """Take the same step in the form that a compiler turns into one pass over the memory."""
    if not work:
        return
    (b1, b2), lr, alpha, clamp = (group[name] for name in ("betas", "lr", "alpha", "clamp"))
    corrections = _bias_corrections([item.step for item in work], b1, b2)
    for i, (theta, g, m, v, _) in enumerate(work):
        c1, c2 = corrections[i].to(theta.device, theta.dtype).unbind()
        m.copy_(b1 * m + (1 - b1) * g)
        v.copy_(b2 * v + (1 - b2) * g * g)
        # eta A = eta (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
        update = lr * (m / c1) / ((v / c2).sqrt() + group["eps"])
        half = theta * (1 - lr * group["weight_decay"]) - update
        if _is_mirrored(group):
            d = update if driver == "update" else lr * g
            exponent = (-alpha * half.sign() * d - lr * group["beta"]).clamp(-clamp, clamp)
            half = half * exponent.exp()
        theta.copy_(half)


@torch.library.custom_op("unrolled::bias_corrections", mutates_args=())
def _bias_corrections(steps: list[Tensor], b1: float, b2: float) -> Tensor:
    """Return ``1 - b1^t`` and ``1 - b2^t`` for each number of steps, in float64.

    In float32, ``1 - b2^t`` would have three wrong digits. An operation of its own, because a
    compiler that sees into it takes both powers again and again, for each few weights.
    """
    t = torch.stack(steps).double()
    return torch.stack([1 - b1**t, 1 - b2**t], dim=1)  # (N, 2)


@_bias_corrections.register_fake
def _(steps: list[Tensor], b1: float, b2: float) -> Tensor:
    return torch.empty(len(steps), 2, dtype=torch.float64)


def _is_mirrored(group: dict[str, Any]) -> bool:
    return group["alpha"] > 0 or group["beta"] > 0


# --- the same, many tensors in one call -----------------------------------------------------------


def _step_many(work: list[_Work], group: dict[str, Any], driver: str) -> None:
    buckets = list(_buckets(work))
    # one call for many tensors pays where they are small; a large piece is alone, and faster so
    _step_each((bucket[0] for bucket in buckets if len(bucket) == 1), group, driver)
    for bucket in (bucket for bucket in buckets if len(bucket) > 1):
        thetas, grads, ms, vs, steps = map(list, zip(*bucket, strict=True))
        denominators, sizes = _adamw_many(thetas, grads, ms, vs, steps, group)
        if _is_mirrored(group):
            signs = torch._foreach_sign(thetas)
            if driver == "update":
                torch._foreach_mul_(signs, ms)
                torch._foreach_div_(signs, denominators)
                torch._foreach_mul_(signs, [-group["alpha"] * size for size in sizes])
            else:
                torch._foreach_mul_(signs, grads)
                torch._foreach_mul_(signs, -group["alpha"] * group["lr"])
            _multiply_many(thetas, signs, group)


def _adamw_many(
    thetas: list[Tensor],
    grads: list[Tensor],
    ms: list[Tensor],
    vs: list[Tensor],
    steps: list[int],
    group: dict[str, Any],
) -> tuple[list[Tensor], list[float]]:
    (b1, b2), lr = group["betas"], group["lr"]
    if group["weight_decay"]:
        torch._foreach_mul_(thetas, 1 - lr * group["weight_decay"])
    torch._foreach_lerp_(ms, grads, 1 - b1)
    torch._foreach_mul_(vs, b2)
    torch._foreach_addcmul_(vs, grads, grads, 1 - b2)
    denominators = torch._foreach_sqrt(vs)
    torch._foreach_div_(denominators, [math.sqrt(1 - b2**t) for t in steps])
    torch._foreach_add_(denominators, group["eps"])
    sizes = [lr / (1 - b1**t) for t in steps]
    torch._foreach_addcdiv_(thetas, ms, denominators, [-size for size in sizes])
    return denominators, sizes


def _multiply_many(thetas: list[Tensor], exponents: list[Tensor], group: dict[str, Any]) -> None:
    if group["beta"]:
        torch._foreach_sub_(exponents, group["lr"] * group["beta"])
    torch._foreach_clamp_min_(exponents, -group["clamp"])
    torch._foreach_clamp_max_(exponents, group["clamp"])
    torch._foreach_exp_(exponents)
    torch._foreach_mul_(thetas, exponents)


def _buckets(work: list[_Work]) -> Iterator[list[_Work]]:
    """Yield what is worked on in one call: tensors of one kind, so many elements at a time.

    Every operation of a step reads its arrays once. In pieces that fit the cache of a CPU only the
    first of them has to wait for the memory.
    """
    kinds: dict[tuple, list[_Work]] = {}
    for item in work:
        kinds.setdefault((item.theta.device, item.theta.dtype), []).append(item)
    for (device, _), items in kinds.items():
        limit = CHUNK.get(device.type, LARGE_CHUNK)
        bucket, size = [], 0
        for piece in (piece for item in items for piece in _pieces(item, limit)):
            if bucket and size + piece.theta.numel() > limit:
                yield bucket
                bucket, size = [], 0
            bucket.append(piece)
            size += piece.theta.numel()
        yield bucket


def _pieces(item: _Work, limit: int) -> Iterator[_Work]:
    """Cut a large tensor into views; one that is not contiguous stays whole."""
    tensors = item[:4]
    if item.theta.numel() <= limit or not all(tensor.is_contiguous() for tensor in tensors):
        yield item
        return
    parts = [tensor.view(-1).split(limit) for tensor in tensors]
    yield from (_Work(*part, item.step) for part in zip(*parts, strict=True))

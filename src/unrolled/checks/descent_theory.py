"""Checkers of the chapter *What the theorems say* of the part on descent."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from unrolled.checks.result import (
    Mistake,
    WrongAnswerError,
    as_number,
    checker,
    close,
    compare,
)

# --------------------------------------------------------------------------------------------
# Predict: how many layers to a given loss

SHARE, TOLERANCE, WANTED = 0.2, 0.01, 0.08


@checker
def descent_depth_needed(answer: int) -> str:
    """Check after how many layers the bound :eq:`eq-descent-floor` is first at most 0.08.

    Parameters
    ----------
    answer : int
        The number of layers, from a loss of 1, with the share 0.2 and the tolerance 0.01.

    Examples
    --------
    >>> descent_depth_needed(12)
    Not yet: did you forget the floor? The tolerance of each layer adds up to 0.01 / 0.2 = 0.05...
    """
    value, floor = as_number(answer), TOLERANCE / SHARE
    exact = math.log((WANTED - floor) / (1 - floor)) / math.log(1 - SHARE)  # 15.5
    right = math.ceil(exact)
    if value == right:
        return f"{1 - SHARE} to the power {right} brings the start down, and the floor stays."
    if value in (12, 11) or close(value, math.log(WANTED) / math.log(1 - SHARE), 0.01):
        raise WrongAnswerError(
            "did you forget the floor? The tolerance of each layer adds up to 0.01 / 0.2 = 0.05 "
            "in the end."
        )
    if value == right - 1 or (not value.is_integer() and close(value, exact, 0.03)):
        raise WrongAnswerError("did you round down? One layer less is not yet there.")
    if close(value, (1 - WANTED) / (SHARE - TOLERANCE), 0.1):
        raise WrongAnswerError("did you subtract? A layer takes 20 % of what is left.")
    raise WrongAnswerError("solve 0.05 + 0.95 * 0.8 ** L <= 0.08.")


# --------------------------------------------------------------------------------------------
# Predict: the depth at which a share cannot be kept

START, OPTIMUM, KEPT_SHARE = math.log(2), 0.44, 0.05


@checker
def descent_deepest(answer: int) -> str:
    """Check how many layers can keep a share of 0.05 between two losses.

    Parameters
    ----------
    answer : int
        The largest number of layers, with the start ln 2 and the optimum 0.44;
        :eq:`eq-descent-largest-share`.

    Examples
    --------
    >>> descent_deepest(9)
    Not yet: did you round up? With 9 layers the last would have to be better than the optimum.
    """
    value = as_number(answer)
    exact = math.log(START / OPTIMUM) / -math.log(1 - KEPT_SHARE)  # 8.9
    right = math.floor(exact)
    if value == right:
        return "A network of 12 layers cannot keep it, whatever its weights are."
    if value == right + 1:
        raise WrongAnswerError(
            f"did you round up? With {right + 1} layers the last would have to be better than "
            "the optimum."
        )
    if close(value, exact, 0.01):
        raise WrongAnswerError("layers come whole: round down.")
    if close(value, (START - OPTIMUM) / (KEPT_SHARE * START), 0.06):
        raise WrongAnswerError("did you subtract? The share is one of the loss before, not of f_0.")
    if value > 50 or math.isinf(value):
        raise WrongAnswerError("without an end? The losses cannot fall below the optimum 0.44.")
    raise WrongAnswerError("0.95 to the power L must not be below 0.44 / ln 2.")


# --------------------------------------------------------------------------------------------
# Derive: the largest share of one gradient step


def _moments(b: Tensor, curvature: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return b.sum(), (b * curvature).sum(), (b * curvature**2).sum()


def _step_share(b: Tensor, curvature: Tensor) -> Tensor:
    zeroth, first, second = _moments(b, curvature)
    return first**2 / (zeroth * second)


def _kept_share(b: Tensor, curvature: Tensor) -> Tensor:
    return 1 - _step_share(b, curvature)


def _best_step(b: Tensor, curvature: Tensor) -> Tensor:
    _, first, second = _moments(b, curvature)
    return first / second


def _unweighted(b: Tensor, curvature: Tensor) -> Tensor:
    return _step_share(torch.ones_like(b), curvature)


def _worst_case(b: Tensor, curvature: Tensor) -> Tensor:
    low, high = curvature.min(), curvature.max()
    return 4 * low * high / (low + high) ** 2


def _not_squared(b: Tensor, curvature: Tensor) -> Tensor:
    zeroth, first, second = _moments(b, curvature)
    return first / (zeroth * second).sqrt()


@checker
def descent_step_share(answer: Callable[[Tensor, Tensor], float]) -> str:
    r"""Check the largest share by which one gradient step can lower the excess loss.

    Parameters
    ----------
    answer : callable
        ``answer(b, curvature)`` takes two tensors (d,) and returns the largest
        :math:`\alpha` with :math:`\sum_i b_i (1 - \theta \chi_i)^2 \le (1 - \alpha) \sum_i b_i` for
        some step :math:`\theta`.

    Examples
    --------
    >>> descent_step_share(lambda b, curvature: (b * curvature).sum() / (b * curvature**2).sum())
    Not yet: is that the best step? Put it back into the loss, and compare with the loss before.
    """
    generator = torch.Generator().manual_seed(61)
    cases = [
        tuple(0.1 + torch.rand(2, size, generator=generator, dtype=torch.float64))
        for size in (2, 5, 9)
    ]
    mistakes = [
        Mistake(
            _best_step,
            "is that the best step? Put it back into the loss, and compare with the loss before.",
        ),
        Mistake(_kept_share, "is that the share that is left? alpha is the share that is taken."),
        Mistake(
            _unweighted,
            "did you forget the weights b? A direction counts by the error that is left in it.",
        ),
        Mistake(
            _worst_case,
            "is that the worst case over all b? Here b is known, and more can be had.",
        ),
        Mistake(_not_squared, "did you forget a square? The loss is quadratic in the step."),
    ]
    compare(answer, cases, _step_share, mistakes)
    return "It is 1 only if all curvatures are equal: then one step arrives."


# --------------------------------------------------------------------------------------------
# Derive: samples for a tolerance


def _samples(layers: int, largest: float, alpha: float, wanted: float, failure: float) -> Tensor:
    zeta = wanted / (2 - alpha)
    return torch.tensor(largest**2 * math.log(2 * (layers + 1) / failure) / (2 * zeta**2))


def _zeta_is_wanted(
    layers: int, largest: float, alpha: float, wanted: float, failure: float
) -> Tensor:
    return _samples(layers, largest, 1.0, wanted, failure)


def _doubled(layers: int, largest: float, alpha: float, wanted: float, failure: float) -> Tensor:
    return _samples(layers, largest, 0.0, wanted, failure)


def _no_union(layers: int, largest: float, alpha: float, wanted: float, failure: float) -> Tensor:
    return _samples(0, largest, alpha, wanted, failure)


def _without_f_0(
    layers: int, largest: float, alpha: float, wanted: float, failure: float
) -> Tensor:
    return _samples(layers - 1, largest, alpha, wanted, failure)


def _unit_loss(layers: int, largest: float, alpha: float, wanted: float, failure: float) -> Tensor:
    return _samples(layers, largest**0.5, alpha, wanted, failure)


def _one_sided(layers: int, largest: float, alpha: float, wanted: float, failure: float) -> Tensor:
    return _samples(layers, largest, alpha, wanted, 2 * failure)


@checker
def descent_samples_needed(
    answer: Callable[[int, float, float, float, float], float],
) -> str:
    r"""Check how many fresh samples it takes to know all slacks to a given tolerance.

    Parameters
    ----------
    answer : callable
        ``answer(num_layers, largest_loss, alpha, tolerance, failure)`` returns S such that by
        :eq:`eq-descent-hoeffding` and :eq:`eq-descent-statistical-slack` the slacks are off by at
        most the tolerance, with probability 1 - failure.

    Examples
    --------
    >>> import math
    >>> def one_layer(num_layers, largest_loss, alpha, tolerance, failure):
    ...     zeta = tolerance / (2 - alpha)
    ...     return largest_loss**2 * math.log(2 / failure) / (2 * zeta**2)
    >>> descent_samples_needed(one_layer)
    Not yet: did you forget the union bound? All L + 1 losses must be close at once.
    """
    cases = [(6, 1.0, 0.05, 0.02, 0.05), (12, 2.5, 0.3, 0.05, 0.01), (3, 4.0, 0.1, 0.1, 0.1)]
    mistakes = [
        Mistake(
            _zeta_is_wanted,
            "is that the tolerance of a loss? A slack holds two losses: zeta counts 2 - alpha "
            "times.",
        ),
        Mistake(_doubled, "close: the loss before has the weight 1 - alpha, so not twice zeta."),
        Mistake(
            _no_union, "did you forget the union bound? All L + 1 losses must be close at once."
        ),
        Mistake(_without_f_0, "did you forget f_0? There are L + 1 losses."),
        Mistake(_unit_loss, "the largest loss enters squared."),
        Mistake(_one_sided, "did you forget the 2 in the logarithm? A mean can be off both ways."),
    ]
    compare(answer, cases, _samples, mistakes, tolerance=1e-3)
    return "Half the tolerance takes four times the samples; a thousand layers hardly more."


# --------------------------------------------------------------------------------------------
# Implement: the layers that a shift cannot turn


def _kept(losses: Tensor, shifts: Tensor) -> Tensor:
    return losses[:-1] - losses[1:] >= shifts[1:] + shifts[:-1]


def _own_shift(losses: Tensor, shifts: Tensor) -> Tensor:
    return losses[:-1] - losses[1:] >= shifts[1:]


def _difference_of_shifts(losses: Tensor, shifts: Tensor) -> Tensor:
    return losses[:-1] - losses[1:] >= (shifts[1:] - shifts[:-1]).abs()


def _from_the_start(losses: Tensor, shifts: Tensor) -> Tensor:
    return losses[0] - losses[1:] >= shifts[1:] + shifts[0]


def _turned(losses: Tensor, shifts: Tensor) -> Tensor:
    return ~_kept(losses, shifts)


def _in_distribution(losses: Tensor, shifts: Tensor) -> Tensor:
    return losses[:-1] >= losses[1:]


@checker
def descent_kept_layers(answer: Callable[[Tensor, Tensor], Tensor]) -> str:
    """Check at which layers :eq:`eq-descent-kept` promises descent under a shift.

    Parameters
    ----------
    answer : callable
        ``answer(losses, shifts)`` takes expected losses and the bounds on their shifts, (L + 1,)
        each, and returns for the layers 1 to L whether the loss certainly does not rise, (L,)
        boolean.

    Examples
    --------
    >>> descent_kept_layers(lambda losses, shifts: losses[1:] + shifts[1:] <= losses[:-1])
    Not yet: did you let the loss before stay where it is? It may fall by its own shift.
    """
    generator = torch.Generator().manual_seed(67)
    cases = []
    for size in (5, 9, 30):
        losses, shifts = torch.rand(2, size, generator=generator, dtype=torch.float64)
        cases.append((losses.sort(descending=True).values.pow(2), 0.1 * shifts))
    cases.append((torch.tensor([1.0, 0.5, 0.75]), torch.tensor([0.25, 0.25, 0.0])))
    mistakes = [
        Mistake(
            _own_shift,
            "did you let the loss before stay where it is? It may fall by its own shift.",
        ),
        Mistake(
            _difference_of_shifts,
            "did you subtract the shifts? They bound sizes: one loss may rise and the other fall.",
        ),
        Mistake(_from_the_start, "did you compare with f_0? Each layer is compared with the last."),
        Mistake(_turned, "are those the layers that can turn? The others are asked for."),
        Mistake(_in_distribution, "is that without any shift?"),
    ]
    compare(answer, cases, _kept, mistakes)
    return "Late layers descend by little, and are the first that can turn."


# --------------------------------------------------------------------------------------------
# Derive: how large a shift descent survives


def _largest_shift(losses: Tensor, largest: float) -> Tensor:
    return (losses[:-1] - losses[1:]).min().clamp_min(0) / (2 * largest)


def _one_loss(losses: Tensor, largest: float) -> Tensor:
    return 2 * _largest_shift(losses, largest)


def _mean_drop(losses: Tensor, largest: float) -> Tensor:
    return (losses[:-1] - losses[1:]).mean().clamp_min(0) / (2 * largest)


def _largest_drop(losses: Tensor, largest: float) -> Tensor:
    return (losses[:-1] - losses[1:]).max() / (2 * largest)


def _in_total(losses: Tensor, largest: float) -> Tensor:
    return (losses[0] - losses[-1]) / (2 * largest)


def _negative(losses: Tensor, largest: float) -> Tensor:
    return (losses[:-1] - losses[1:]).min() / (2 * largest)


def _without_largest(losses: Tensor, largest: float) -> Tensor:
    return _largest_shift(losses, 1.0)


@checker
def descent_largest_shift(answer: Callable[[Tensor, float], float]) -> str:
    r"""Check up to which distance in total variation no layer can begin to rise.

    Parameters
    ----------
    answer : callable
        ``answer(losses, largest_loss)`` takes expected losses (L + 1,) and the bound of all
        losses, and returns the largest total variation with which
        :eq:`eq-descent-kept` and :eq:`eq-descent-total-variation` still promise
        :math:`\bar f'_l \le \bar f'_{l-1}` at every layer; 0 if a layer rises already.

    Examples
    --------
    >>> descent_largest_shift(lambda losses, top: (losses[:-1] - losses[1:]).min().clamp(0) / top)
    Not yet: two losses move, and they can move apart: by twice the bound of one.
    """
    f = torch.tensor([[1.0, 0.6, 0.5, 0.1], [0.7, 0.6, 0.55, 0.45], [0.9, 0.3, 0.4, 0.2]])
    cases = [(f[0].double(), 1.0), (f[1].double(), 2.5), (f[2].double(), 1.5)]
    mistakes = [
        Mistake(
            _one_loss, "two losses move, and they can move apart: by twice the bound of one."
        ),
        Mistake(_negative, "what if a layer rises already? A distance is not negative."),
        Mistake(_mean_drop, "is that the mean layer? Every layer must go on descending."),
        Mistake(_largest_drop, "is that the strongest layer? The weakest gives way first."),
        Mistake(_in_total, "is that the first layer against the last? Every layer is asked for."),
        Mistake(_without_largest, "did you forget the largest loss? A shift moves mass, not loss."),
    ]  # fmt: skip
    compare(answer, cases, _largest_shift, mistakes)
    return "The layer that descends least gives way first."


# --------------------------------------------------------------------------------------------
# Extend: a schedule that never runs out


def _schedule(start: float, optimum: float, num_layers: int, power: float) -> Tensor:
    weights = torch.arange(1, num_layers + 1, dtype=torch.float64) ** -power
    budget = math.log(start / optimum)
    return 1 - (-budget * weights / weights.sum()).exp()


def _linear_schedule(start: float, optimum: float, num_layers: int, power: float) -> Tensor:
    weights = torch.arange(1, num_layers + 1, dtype=torch.float64) ** -power
    return math.log(start / optimum) * weights / weights.sum()


def _difference_schedule(start: float, optimum: float, num_layers: int, power: float) -> Tensor:
    weights = torch.arange(1, num_layers + 1, dtype=torch.float64) ** -power
    return (1 - optimum / start) * weights / weights.sum()


def _constant_schedule(start: float, optimum: float, num_layers: int, power: float) -> Tensor:
    return _schedule(start, optimum, num_layers, 0.0)


def _rising_schedule(start: float, optimum: float, num_layers: int, power: float) -> Tensor:
    return _schedule(start, optimum, num_layers, -power)


@checker
def descent_decaying_shares(
    answer: Callable[[float, float, int, float], Sequence[float]],
) -> str:
    r"""Check shares that decay with the layer and lead exactly to the optimum.

    Parameters
    ----------
    answer : callable
        ``answer(start, optimum, num_layers, power)`` returns :math:`\alpha_1, \dots, \alpha_L`
        with :math:`-\ln(1 - \alpha_l)` in proportion to :math:`l^{-p}` and
        :math:`\rho_L \bar f_0 = f^*`.

    Examples
    --------
    >>> def constant(start, optimum, num_layers, power):
    ...     return [1 - (optimum / start) ** (1 / num_layers)] * num_layers
    >>> descent_decaying_shares(constant)
    Not yet: are they all equal? The shares are to fall with the layer.
    """
    cases = [(1.0, 0.1, 8, 1.0), (math.log(2), 0.4, 12, 2.0), (3.0, 0.5, 5, 0.5)]
    mistakes = [
        Mistake(_constant_schedule, "are they all equal? The shares are to fall with the layer."),
        Mistake(
            _linear_schedule,
            "did you take the logarithm for the share? -ln(1 - alpha) is in proportion, and alpha "
            "is less.",
        ),
        Mistake(
            _difference_schedule,
            "did you add the shares up? They multiply: it is their logarithms that add up.",
        ),
        Mistake(_rising_schedule, "the shares rise with the layer. Is the power negative?"),
    ]
    compare(answer, cases, _schedule, mistakes)
    return "The logarithms add up to ln(f_0 / f*), and no network can keep more."

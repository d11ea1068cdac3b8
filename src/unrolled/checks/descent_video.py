"""Checkers of the chapter *Video* of the part on descent."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from unrolled.checks.result import (
    Mistake,
    WrongAnswerError,
    as_number,
    call,
    checker,
    close,
    compare,
)
from unrolled.descent.networks import DUST, UT, cooling
from unrolled.descent.video import estimate_noise

NORMAL = torch.distributions.Normal(0.0, 1.0)

# --------------------------------------------------------------------------------------------
# Predict: where attention collapses

SELF_WEIGHT, LEVEL, FRAMES = 0.2, 0.5, 8


def _log_odds(self_weight: float, others: int) -> float:
    return math.log(others * self_weight / (1 - self_weight))


def _half_level(others: int, power: float = 0.5) -> float:
    wanted, trained = _log_odds(0.5, others), _log_odds(SELF_WEIGHT, others)
    return LEVEL * (wanted / trained) ** power


@checker
def descent_collapse_level(answer: float) -> str:
    """Check at which noise level a frame gives half of its attention to itself.

    Parameters
    ----------
    answer : float
        The level, to 1 %, by :eq:`eq-descent-self-weight`: 8 frames, a self-weight of .2 at the
        level .5.

    Examples
    --------
    >>> descent_collapse_level(1.74)
    Not yet: did you forget the square? The logits grow with the square of the level.
    """
    level = as_number(answer)
    if close(level, _half_level(FRAMES - 1), 0.01):
        return "Not even twice the level of training, and half of the averaging is gone."
    if close(level, _half_level(FRAMES - 1, power=1), 0.01):
        raise WrongAnswerError(
            "did you forget the square? The logits grow with the square of the level."
        )
    if close(level, _half_level(FRAMES), 0.01):
        raise WrongAnswerError("did you count the frame itself? There are T - 1 others.")
    if close(level, LEVEL * 0.5 / SELF_WEIGHT, 0.01):
        raise WrongAnswerError("is the self-weight in proportion to the level? Its log-odds are.")
    raise WrongAnswerError(
        "ln((T - 1) a / (1 - a)) is in proportion to the square of the level: take it at a = .2, "
        "then at a = 1/2."
    )


# --------------------------------------------------------------------------------------------
# Derive: the self-weight at another level


def _self_weight(
    trained: Tensor,
    gamma_train: float,
    gamma: float,
    num_frames: int,
    logit_scale: float,
    *,
    others: int = -1,
    power: float = 2,
    scale_power: float = 1,
) -> Tensor:
    count = math.log(num_frames + others)
    growth = logit_scale**scale_power * (gamma / gamma_train) ** power
    return torch.sigmoid(growth * (torch.logit(trained) + count) - count)


def _without_count(
    trained: Tensor, gamma_train: float, gamma: float, num_frames: int, logit_scale: float
) -> Tensor:
    return torch.sigmoid(logit_scale * (gamma / gamma_train) ** 2 * torch.logit(trained))


SelfWeight = Callable[[Tensor, float, float, int, float], Tensor]


@checker
def descent_self_weight(answer: SelfWeight) -> str:
    """Check the self-weight of a still scene at one level, from that at another.

    Parameters
    ----------
    answer : callable
        ``answer(trained, gamma_train, gamma, num_frames, logit_scale)`` takes a tensor of
        self-weights at ``gamma_train`` and returns those at ``gamma``, of the same shape, by
        :eq:`eq-descent-self-weight`.

    Examples
    --------
    >>> descent_self_weight(lambda trained, gamma_train, gamma, num_frames, logit_scale: trained)
    Not yet: does nothing change? That holds when the logits are cooled all the way.
    """
    weights = torch.tensor([0.15, 0.2, 0.3, 0.5], dtype=torch.float64)
    cases = [
        (weights, 0.5, 1.0, 8, 1.0),
        (weights + 0.11, 0.4, 0.7, 5, 0.6),
        (weights + 0.2, 1.0, 0.6, 4, 0.9),
    ]
    mistakes = [
        Mistake(
            lambda a, *_: a,
            "does nothing change? That holds when the logits are cooled all the way.",
        ),
        Mistake(
            partial(_self_weight, power=1),
            "did you forget a square? Squared distances grow with the square of the level.",
        ),
        Mistake(partial(_self_weight, power=-2), "did you turn the ratio of the levels over?"),
        Mistake(
            partial(_self_weight, scale_power=0),
            "did you forget the logit scale? It multiplies the squared distances.",
        ),
        Mistake(
            partial(_self_weight, scale_power=2),
            "did you square the logit scale? The levels are squared, the scale is not.",
        ),
        Mistake(
            partial(_self_weight, others=0),
            "did you count the frame itself? It competes with T - 1 others.",
        ),
        Mistake(
            _without_count,
            "did you scale the log-odds against all others? What grows is the log-odds against "
            "one of them: add ln(T - 1) first, and take it off again.",
        ),
    ]
    compare(answer, cases, _self_weight, mistakes)
    return "One number of the training says when attention will be gone."


# --------------------------------------------------------------------------------------------
# Derive: how far motion can mislead the estimate


def _quantile(p: float) -> float:
    return float(NORMAL.icdf(torch.tensor(p, dtype=torch.float64)))


def _bias(share: float) -> float:
    # the median of all changes is the quantile (1/2) / (1 - share) of those that are noise
    return _quantile(0.5 + 0.25 / (1 - share)) / _quantile(0.75)


def _bias_below(share: float) -> float:
    return _quantile(0.5 + 0.25 * (1 - 2 * share) / (1 - share)) / _quantile(0.75)


@checker
def descent_estimate_bias(answer: Callable[[float], float]) -> str:
    r"""Check by which factor the estimate :eq:`eq-descent-noise-estimate` is too large.

    Parameters
    ----------
    answer : callable
        ``answer(share)`` takes the share of the changes that is so large that noise does not
        matter, below 1/2, and returns the limit of :math:`\hat\gamma / \gamma`.

    Examples
    --------
    >>> descent_estimate_bias(lambda share: 1.0)
    Not yet: does motion not matter? It takes places above the median, so the median moves up.
    """
    cases = [(0.02,), (0.1,), (0.2,), (0.24,)]
    mistakes = [
        Mistake(
            lambda share: 1.0,
            "does motion not matter? It takes places above the median, so the median moves up.",
        ),
        Mistake(
            lambda share: 1 / (1 - share),
            "is the factor in proportion? The noise has the quantiles of a normal number.",
        ),
        Mistake(
            _bias_below,
            "is that the other side? Large changes stand above the median: it moves up among the "
            "rest.",
        ),
        Mistake(
            lambda share: _quantile(0.75 / (1 - share)) / _quantile(0.75),
            "the absolute value has the distribution function 2 Φ - 1: half of it is Φ = 3/4.",
        ),
        Mistake(
            lambda share: _quantile(0.5 + 0.25 / (1 - share)),
            "did you forget to divide by the 3/4 quantile, as the estimate does?",
        ),
        Mistake(
            lambda share: _quantile(0.75 + 0.25 * share) / _quantile(0.75),
            "did you add the share? The noise fills the places that are left: divide by 1 - share.",
        ),
    ]
    compare(answer, cases, _bias, mistakes)
    return "Ten of a hundred moving pixels cost an eighth; at a half the median is lost."


# --------------------------------------------------------------------------------------------
# Derive: a filter for the wrong level


def _wiener_error(values: Tensor, gamma_fit: float, gamma: float) -> Tensor:
    g = values / (values + gamma_fit**2)
    return ((1 - g) ** 2 * values + g**2 * gamma**2).mean().sqrt()


def _told(values: Tensor, gamma_fit: float, gamma: float) -> Tensor:
    return _wiener_error(values, gamma, gamma)


def _noise_left(values: Tensor, gamma_fit: float, gamma: float) -> Tensor:
    g = values / (values + gamma_fit**2)
    return (g**2 * gamma**2).mean().sqrt()


def _signal_lost(values: Tensor, gamma_fit: float, gamma: float) -> Tensor:
    g = values / (values + gamma_fit**2)
    return ((1 - g) ** 2 * values).mean().sqrt()


def _gain_once(values: Tensor, gamma_fit: float, gamma: float) -> Tensor:
    g = values / (values + gamma_fit**2)
    return ((1 - g) * values + g * gamma**2).mean().sqrt()


@checker
def descent_wiener_error(answer: Callable[[Tensor, float, float], Tensor]) -> str:
    r"""Check the error of a Wiener filter that was made for another level.

    Parameters
    ----------
    answer : callable
        ``answer(values, gamma_fit, gamma)`` takes the eigenvalues of :math:`\Sigma`, the level of
        the filter and that of the noise, and returns the root of :eq:`eq-descent-wiener-error`.

    Examples
    --------
    >>> descent_wiener_error(lambda values, gamma_fit, gamma: gamma)
    Not yet: is that the noise itself? A filter keeps a share of each component.
    """
    generator = torch.Generator().manual_seed(83)
    cases = []
    for size, fit, gamma in ((6, 0.5, 2.0), (20, 1.0, 0.3), (3, 0.2, 1.0)):
        values = torch.rand(size, generator=generator, dtype=torch.float64) ** 3 * 10
        cases.append((values, fit, gamma))
    mistakes = [
        Mistake(
            lambda values, fit, gamma: gamma,
            "is that the noise itself? A filter keeps a share of each component.",
        ),
        Mistake(_told, "was the filter told? Its gains belong to the level it was made for."),
        Mistake(
            lambda *case: _wiener_error(*case) ** 2,
            "did you forget the root? The error is in units of the frames.",
        ),
        Mistake(
            lambda values, *levels: _wiener_error(values, *levels) * len(values) ** 0.5,
            "did you take the sum? The error is a mean over the components.",
        ),
        Mistake(_noise_left, "did you forget the signal that is lost, (1 - gain)² of it?"),
        Mistake(_signal_lost, "did you forget the noise that is left, gain² of it?"),
        Mistake(_gain_once, "did you forget to square the gains? Errors are squared."),
    ]
    compare(answer, cases, _wiener_error, mistakes)
    return "Bias and noise: the gains of a low level lose little signal and keep much noise."


# --------------------------------------------------------------------------------------------
# Implement: cooling without being told

Denoiser = Callable[..., Tensor]


@torch.no_grad()
def _cooled(model: UT | DUST, frames: Tensor, scale: Tensor | float) -> Tensor:
    return model(frames, logit_scale=scale).readouts[-1]


def _blind(model: UT, frames: Tensor, gamma_train: float) -> Tensor:
    return _cooled(model, frames, cooling(gamma_train, estimate_noise(frames)))


def _one_level(model: UT, frames: Tensor, gamma_train: float) -> Tensor:
    return _cooled(model, frames, cooling(gamma_train, estimate_noise(frames).mean()))


def _not_squared(model: UT, frames: Tensor, gamma_train: float) -> Tensor:
    return _cooled(model, frames, gamma_train / estimate_noise(frames))


def _heated(model: UT, frames: Tensor, gamma_train: float) -> Tensor:
    return _cooled(model, frames, (estimate_noise(frames) / gamma_train) ** 2)


def _noisy_sequences(seed: int) -> Tensor:
    """Twelve still sequences, each with a noise level of its own, (12, 4, 16)."""
    generator = torch.Generator().manual_seed(seed)
    scene = torch.randn(12, 1, 16, generator=generator)
    levels = torch.linspace(0.3, 1.5, 12)[:, None, None]
    return scene + levels * torch.randn(12, 4, 16, generator=generator)


def _small(network: type, seed: int, **options: Any) -> UT | DUST:
    """Return a small network with weights of its own in every layer."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = network(num_layers=3, num_pixels=16, num_frames=4, tied=False, **options)
        for layer in model.layers:
            layer.projection.data += 0.1 * torch.randn_like(layer.projection)
    return model.eval().requires_grad_(False)


@checker
def descent_blind_cooling(answer: Denoiser) -> str:
    """Check a denoiser that reads the noise level of each sequence and cools by it.

    Parameters
    ----------
    answer : callable
        ``answer(model, frames, gamma_train)`` takes a network of
        :py:mod:`unrolled.descent.networks` and noisy frames (B, T, P), and returns the readout
        of the last layer (B, T, P).

    Examples
    --------
    >>> descent_blind_cooling(lambda model, frames, gamma_train: frames)
    Not yet: are those the noisy frames? Return what the network makes of them.
    """
    model = _small(UT, 5, hidden_size=32)
    cases = [(model, _noisy_sequences(6), 0.5), (model, _noisy_sequences(7), 1.0)]
    mistakes = [
        Mistake(
            lambda model, frames, gamma: frames,
            "are those the noisy frames? Return what the network makes of them.",
        ),
        Mistake(
            lambda model, frames, gamma: _cooled(model, frames, 1.0),
            "is the attention cooled? That is the network as it was trained.",
        ),
        Mistake(
            _one_level,
            "is it one level for all? Each sequence has its own, and logit_scale takes (B,).",
        ),
        Mistake(_not_squared, "did you forget the square? Logits are squared distances."),
        Mistake(_heated, "did you turn the ratio over? More noise needs smaller logits."),
    ]
    compare(answer, cases, _blind, mistakes)
    return "Nobody told it a level, and each sequence got its own."


# --------------------------------------------------------------------------------------------
# Implement: scaling the frames instead


def _rescaled(
    model: DUST, frames: Tensor, gamma_train: float, gamma: float, *, power: float = 1
) -> Tensor:
    scale = (gamma_train / gamma) ** power
    return _cooled(model, scale * frames, 1.0) / scale


def _not_scaled_back(model: DUST, frames: Tensor, gamma_train: float, gamma: float) -> Tensor:
    return _cooled(model, gamma_train / gamma * frames, 1.0)


def _scaled_and_cooled(model: DUST, frames: Tensor, gamma_train: float, gamma: float) -> Tensor:
    scale = gamma_train / gamma
    return _cooled(model, scale * frames, scale**2) / scale


@checker
def descent_rescaling(answer: Denoiser) -> str:
    """Check a denoiser that brings the noise to the level of training, and the result back.

    Parameters
    ----------
    answer : callable
        ``answer(model, frames, gamma_train, gamma)`` returns the left side of
        :eq:`eq-descent-rescaled` for the last layer, (B, T, P). The network is not changed.

    Examples
    --------
    >>> descent_rescaling(lambda model, frames, gamma_train, gamma: model(frames).readouts[-1])
    Not yet: is the scale of the frames changed? That is the network as it was trained.
    """
    model = _small(DUST, 8, num_atoms=25, projection_size=8)
    frames = _noisy_sequences(9)
    cases = [(model, frames, 0.5, 2.0), (model, frames, 0.5, 0.3), (model, frames, 1.0, 1.5)]
    mistakes = [
        Mistake(
            lambda model, frames, *levels: _cooled(model, frames, 1.0),
            "is the scale of the frames changed? That is the network as it was trained.",
        ),
        Mistake(
            _not_scaled_back,
            "did you forget to scale back? What comes out is as small as what went in.",
        ),
        Mistake(
            partial(_rescaled, power=2),
            "did you square the ratio? The square belongs to the logits; frames scale like noise.",
        ),
        Mistake(partial(_rescaled, power=-1), "did you turn the ratio of the levels over?"),
        Mistake(_scaled_and_cooled, "did you cool as well? Scaling has done that already."),
        Mistake(
            lambda model, frames, trained, now: _cooled(model, frames, (trained / now) ** 2),
            "is that cooling? It leaves the thresholds of the network where they were.",
        ),
    ]
    compare(answer, cases, _rescaled, mistakes)
    return "The network never learns that anything has changed."


# --------------------------------------------------------------------------------------------
# Extend: other thresholds


def _thresholds(model: DUST) -> Tensor:
    return torch.stack([layer.threshold for layer in model.layers])


def _raised(answer: Any, model: DUST, factor: float) -> DUST:
    """Call the answer on the model itself, so that we see whether it was changed."""
    if not callable(answer):
        raise WrongAnswerError(f"a function is asked for, not {type(answer).__name__}.")
    found = call(lambda: answer(model, factor))
    if not isinstance(found, DUST):
        raise WrongAnswerError(f"a DUST network is asked for, not {type(found).__name__}.")
    return found


@checker
def descent_thresholds(answer: Callable[[DUST, float], DUST]) -> str:
    """Check a copy of a DUST network with other thresholds.

    Parameters
    ----------
    answer : callable
        ``answer(model, factor)`` returns a network with the thresholds of ``model`` times
        ``factor``, and leaves ``model`` as it was.

    Examples
    --------
    >>> descent_thresholds(lambda model, factor: model)
    Not yet: is that the network itself? Make a copy (copy.deepcopy) and change that.
    """
    for seed, factor in ((11, 4.0), (12, 0.5)):
        model = _small(DUST, seed, num_atoms=25, projection_size=8)
        before = copy.deepcopy(model)
        found = _raised(answer, model, factor)
        if found is model or not torch.equal(_thresholds(model), _thresholds(before)):
            raise WrongAnswerError(
                "is that the network itself? Make a copy (copy.deepcopy) and change that."
            )
        _judge_thresholds(before, found, factor)
    return "At the factor γ / γ_train, cooled, this is what scaling the frames does."


def _judge_thresholds(before: DUST, found: DUST, factor: float) -> None:
    ratio = _thresholds(found).detach() / _thresholds(before)
    if not torch.allclose(ratio, torch.full_like(ratio, factor), rtol=1e-4):
        if bool((ratio[0] - factor).abs().max() < 1e-4):
            raise WrongAnswerError("did you change the first layer alone? Each has thresholds.")
        if torch.allclose(ratio, torch.full_like(ratio, 1 / factor), rtol=1e-4):
            raise WrongAnswerError("did you divide? The thresholds are multiplied by the factor.")
        raise WrongAnswerError("the thresholds of every layer are multiplied by the factor.")
    names = [name for name, _ in before.named_parameters() if not name.endswith("threshold")]
    old, new = dict(before.named_parameters()), dict(found.named_parameters())
    changed = [name for name in names if name not in new or not torch.equal(old[name], new[name])]
    if changed:
        raise WrongAnswerError(f"something else has changed, too: {changed[0]}.")

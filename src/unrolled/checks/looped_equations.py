"""Checkers of the chapter *Equations* of the part on loops."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from unrolled.checks.result import (
    Mistake,
    WrongAnswerError,
    as_number,
    as_tensor,
    call,
    checker,
    close,
    compare,
)
from unrolled.looped.model import INJECTIONS, SMALL
from unrolled.transformer import Block, TransformerConfig

# --------------------------------------------------------------------------------------------
# Predict: which injections leave position 0 unchanged

FROZEN = {"attention", "flt"}
MOVES = {
    "original": "in LT the old state is where the next loop starts, at position 0 too",
    "original_no_norm": "in LT the old state is where the next loop starts, normed or not",
    "input": "in LT_i the old state is added to the embedding, at position 0 too",
    "fla": "in FLA every block adds the old state to the stream, at position 0 too",
}


@checker
def looped_position_zero(answer: Iterable[str]) -> str:
    """Check which injections leave the output at position 0 unchanged by the number of loops.

    Parameters
    ----------
    answer : set of str
        Names from ``unrolled.looped.model.INJECTIONS``.

    Examples
    --------
    >>> looped_position_zero({"flt", "attention", "input"})
    Not yet: did you follow the stream? "input" does not belong: in LT_i the old state is added...
    """
    try:
        named = {answer} if isinstance(answer, str) else set(answer)
    except TypeError as error:
        raise WrongAnswerError("a set of names is asked for.") from error
    unknown = sorted(str(name) for name in named - set(INJECTIONS))
    if unknown:
        raise WrongAnswerError(f"{', '.join(unknown)} is no injection; the names are {INJECTIONS}.")
    for name in sorted(named - FROZEN):
        raise WrongAnswerError(
            f'did you follow the stream? "{name}" does not belong: {MOVES[name]}.'
        )
    if "flt" not in named:
        raise WrongAnswerError(
            'did you forget "flt"? A softmax over one key is 1, whatever the query.'
        )
    if "attention" not in named:
        raise WrongAnswerError(
            'did you forget "attention" (LT_ia)? There too the old state enters by a query alone, '
            "and position 0 has one key."
        )
    return "A query is the only way in, and with one key the query has no say."


# --------------------------------------------------------------------------------------------
# Predict: what twelve loops cost

NUM_LOOPS, LENGTH = 12, 1024


def forward_flops(config: TransformerConfig, num_loops: int, length: int) -> dict[str, float]:
    """FLOPs per token of a forward pass, by part (:eq:`eq-looped-flops`)."""
    matrices = 12 * config.hidden_size**2  # 4 of the attention, 8 of the MLP
    return {
        "matrices": 2 * num_loops * config.num_layers * matrices,
        "attention": 4 * num_loops * config.num_layers * length * config.hidden_size,
        "head": 2 * config.hidden_size * config.vocab_size,
    }


def _factor(*parts: str) -> float:
    many, one = (forward_flops(SMALL, loops, LENGTH) for loops in (NUM_LOOPS, 1))
    return sum(many[part] for part in parts) / sum(one[part] for part in parts)


@checker
def looped_flops_factor(answer: float) -> str:
    """Check by what factor twelve loops multiply the forward FLOPs of the Small model.

    Parameters
    ----------
    answer : float
        C(12) / C(1) of :eq:`eq-looped-flops` at N = 1024, within 3 %.

    Examples
    --------
    >>> looped_flops_factor(12)
    Not yet: did you forget the head? It is outside the loops and runs once.
    """
    value, right = as_number(answer), _factor("matrices", "attention", "head")
    if close(value, right, 0.03):
        return f"{right:.2f}: the head runs once, and in a small model the head is the larger part."
    if close(value, NUM_LOOPS, 0.03):
        raise WrongAnswerError("did you forget the head? It is outside the loops and runs once.")
    if close(value, 1.0, 0.03):
        raise WrongAnswerError(
            "did you count parameters? Those are free; the arithmetic of a loop is not."
        )
    if close(value, _factor("matrices", "head"), 0.03):
        raise WrongAnswerError("did you forget the attention itself, the term with the length N?")
    if close(value, 1 / right, 0.03):
        raise WrongAnswerError("did you divide the wrong way round? More loops cost more.")
    raise WrongAnswerError(
        "did you take d = 384, L = 6, V = 151,680 and N = 1024, and the loops on the blocks only?"
    )


# --------------------------------------------------------------------------------------------
# Derive: how many times FLA counts the gradient at the first step


def _first_gradient(num_layers: int, num_loops: int) -> float:
    ratio = 1 - 0.5**num_layers
    return math.fsum(ratio**k for k in range(num_loops))


@checker
def looped_first_gradient(answer: Callable[[int, int], float]) -> str:
    """Check how many times FLA counts the gradient of its last block at the first step.

    Parameters
    ----------
    answer : callable
        ``answer(num_layers, num_loops)`` returns the count of :eq:`eq-looped-count` for FLA.

    Examples
    --------
    >>> looped_first_gradient(lambda num_layers, num_loops: num_loops)
    Not yet: is that LT? There each loop passes the gradient on in full.
    """
    cases = [(1, 7), (2, 5), (3, 12), (6, 9), (4, 1)]
    mistakes = [
        Mistake(lambda L, K: K, "is that LT? There each loop passes the gradient on in full."),
        Mistake(
            lambda L, K: 2 - 2.0 ** (1 - K),
            "is that LT_i? FLA adds h in every block, so the paths through all L blocks count.",
        ),
        Mistake(lambda L, K: 1, "is that FLT? In FLA the old state is added to the stream."),
        Mistake(
            lambda L, K: math.fsum(0.5 ** (L * k) for k in range(K)),
            "did you follow the stream alone? h also enters at the later blocks: the halves of "
            "h's own share add up to 1 - 2^-L.",
        ),
        Mistake(lambda L, K: 2**L, "is that the limit of many loops? K is finite here."),
        Mistake(
            lambda L, K: math.fsum((1 - 0.5**L) ** k for k in range(K + 1)),
            "did you count one loop too many? There are K terms, and the last loop's is 1.",
        ),
        Mistake(
            lambda L, K: math.fsum((1 - 0.5**L) ** k for k in range(1, K + 1)),
            "did you pass the last loop's term through a loop? Its term is 1.",
        ),
    ]
    compare(answer, cases, _first_gradient, mistakes)
    return "With many blocks the ratio is close to 1, and FLA counts nearly as often as LT."


# --------------------------------------------------------------------------------------------
# Derive: the largest stable learning rate of the scalar loop


def _minimum(num_loops: int, target: float) -> float:
    return target ** (1 / num_loops)


def _stable_rate(num_loops: int, target: float) -> float:
    slope = num_loops * _minimum(num_loops, target) ** (num_loops - 1)
    return 2 / slope**2


@checker
def looped_stable_rate(answer: Callable[[int, float], float]) -> str:
    """Check the learning rate at which gradient descent on (w^K - y)^2 / 2 loses stability.

    Parameters
    ----------
    answer : callable
        ``answer(num_loops, target)`` returns the rate; for the target 1 it is 2 over the curvature
        of :eq:`eq-looped-sharpness`.

    Examples
    --------
    >>> looped_stable_rate(lambda num_loops, target: 2 / num_loops**2)
    Not yet: did you take w = 1? The minimum is at w = y^(1/K), which is 1 only for y = 1.
    """
    cases = [(3, 2.0), (7, 1.6), (12, 0.4), (5, 3.1)]

    def untied(K: int, y: float) -> float:
        return 2 / (K * _minimum(K, y) ** (2 * K - 2))

    mistakes = [
        Mistake(
            lambda K, y: 1 / 2 * _stable_rate(K, y),
            "did you stop at 1 / curvature? The error is multiplied by 1 - eta * curvature, "
            "which may go down to -1.",
        ),
        Mistake(lambda K, y: 2 / _stable_rate(K, y), "is that the curvature? The rate is 2 / it."),
        Mistake(untied, "did you treat the K uses of w as K weights? The shared slope is squared."),
        Mistake(
            lambda K, y: (2 * _stable_rate(K, y)) ** 0.5,
            "did you take the slope of w^K for the curvature of the loss? It enters squared.",
        ),
        Mistake(
            lambda K, y: 2 / K**2,
            "did you take w = 1? The minimum is at w = y^(1/K), which is 1 only for y = 1.",
        ),
    ]
    compare(answer, cases, _stable_rate, mistakes)
    return "The curvature grows as K squared: twice the loops, a quarter of the rate."


# --------------------------------------------------------------------------------------------
# Implement: backpropagation through the loops, by hand


def _bptt(W: Tensor, e: Tensor, y: Tensor, num_loops: int, mistake: str = "") -> Tensor:
    """Return the contribution of each loop to the gradient, with one mistake on request."""
    states = [torch.zeros_like(e)]
    for _ in range(num_loops):
        states.append(torch.tanh(W @ states[-1] + e))
    g, contributions = states[-1] - y, []
    for k in range(num_loops, 0, -1):
        delta = g if mistake == "no tanh" else g * (1 - states[k] ** 2)
        seen = states[k] if mistake == "same state" else states[k - 1]
        contributions.append(torch.outer(delta, seen))
        g = W @ delta if mistake == "no transpose" else W.T @ delta
        g = torch.zeros_like(g) if mistake == "truncated" else g
    order = contributions if mistake == "reversed" else contributions[::-1]
    order = [c.T for c in order] if mistake == "swapped" else order
    return torch.stack(order).sum(0) if mistake == "summed" else torch.stack(order)


BPTT_MISTAKES = {
    "summed": "did you sum over the loops? Return the K terms, stacked: shape (K, d, d).",
    "truncated": "did you forget to send the gradient back? Only the last loop has a term.",
    "no transpose": "did you forget a transpose? Going back, W acts as its transpose.",
    "no tanh": "did you forget the derivative of tanh, 1 - h^2?",
    "same state": "did you use the state after the loop? The weight multiplies the one before.",
    "reversed": "did you forget to turn the order round? Entry 0 belongs to the first loop.",
    "swapped": "did you swap the outer product? Row i belongs to output i.",
}


@checker
def looped_bptt(answer: Callable[[Tensor, Tensor, Tensor, int], Tensor]) -> str:
    """Check the terms of the gradient through the loop h = tanh(W h + e) from h = 0.

    Parameters
    ----------
    answer : callable
        ``answer(W, e, y, num_loops)`` returns the K terms of :eq:`eq-looped-bptt`, (K, d, d), for
        half the squared distance of the last state from y.

    Examples
    --------
    >>> looped_bptt(lambda W, e, y, num_loops: torch.zeros(num_loops))
    Not yet: the shape is (2,), and it should be (2, 3, 3).
    """
    generator = torch.Generator().manual_seed(4711)
    cases = []
    for size, num_loops in ((3, 2), (4, 5), (5, 9)):
        W = torch.randn(size, size, generator=generator, dtype=torch.float64) / size**0.5
        e, y = torch.randn(2, size, generator=generator, dtype=torch.float64)
        cases.append((W, e, y, num_loops))
    mistakes = [
        Mistake(lambda *case, name=name: _bptt(*case, name), sentence)
        for name, sentence in BPTT_MISTAKES.items()
    ]
    compare(answer, cases, _bptt, mistakes)
    return "The terms are those of autograd, loop by loop; their sum is the gradient."


# --------------------------------------------------------------------------------------------
# Implement: attention injection without the restart

Blocks = Sequence[Block]


def _norm(x: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:])


def _attention_only(blocks: Blocks, e: Tensor, h: Tensor | None) -> Tensor:
    x = e if h is None else h
    for block in blocks:
        x = block(x, query=h)
    return x


def _restarts(blocks: Blocks, e: Tensor, h: Tensor | None) -> Tensor:
    x = e
    for block in blocks:
        x = block(x, query=h)
    return x


def _no_query(blocks: Blocks, e: Tensor, h: Tensor | None) -> Tensor:
    x = e if h is None else h
    for block in blocks:
        x = block(x)
    return x


def _adds(blocks: Blocks, e: Tensor, h: Tensor | None) -> Tensor:
    x = e if h is None else _norm(e + h)
    for block in blocks:
        x = block(x, query=h)
    return x


def _embedding_query(blocks: Blocks, e: Tensor, h: Tensor | None) -> Tensor:
    x = e if h is None else h
    for block in blocks:
        x = block(x, query=e)
    return x


def _random_blocks(seed: int) -> tuple[list[Block], Tensor, Tensor]:
    """Blocks whose every matrix is at work, and two normed states of shape (2, 5, 16)."""
    config = TransformerConfig(
        vocab_size=11, num_layers=3, hidden_size=16, num_heads=2, max_length=8, zero_output=False
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        blocks = [Block(config) for _ in range(config.num_layers)]
        for block in blocks:
            for weight in block.parameters():
                torch.nn.init.normal_(weight, std=16**-0.5)
        e, h = _norm(torch.randn(2, 2, 5, 16))
    return blocks, e, h


@checker
def looped_attention_only(answer: Callable[[Blocks, Tensor, Tensor | None], Tensor]) -> str:
    """Check one loop of attention injection in every block, without the restart from e.

    Parameters
    ----------
    answer : callable
        ``answer(blocks, e, h)`` returns the stream (B, N, d) after one loop; ``h`` is None in the
        first. With a restart it would be :eq:`eq-looped-flt`.

    Examples
    --------
    >>> def restarts(blocks, e, h):
    ...     for block in blocks:
    ...         e = block(e, query=h)
    ...     return e
    >>> looped_attention_only(restarts)
    Not yet: did you restart from e? That is FLT; here the loop starts from h.
    """
    mistakes = [
        Mistake(_restarts, "did you restart from e? That is FLT; here the loop starts from h."),
        Mistake(
            _no_query,
            "did you give h to no block, or to the first only? There the stream is h anyway: as it "
            "stands, this is the original LT.",
        ),
        Mistake(_adds, "did you add h to the embedding? Here the loop starts from h alone."),
        Mistake(_embedding_query, "did you ask with e? The query comes from the old state h."),
    ]
    with torch.no_grad():
        (blocks, e, h), (others, f, g) = _random_blocks(1), _random_blocks(2)
        compare(answer, [(blocks, e, h), (others, f, g)], _attention_only, mistakes, 1e-3)
        try:
            compare(answer, [(blocks, e, None)], _attention_only, (), 1e-3)
        except WrongAnswerError as rejected:
            sentence = f"right from loop 2 on, but in loop 1 there is no h (h is None): {rejected}"
            raise WrongAnswerError(sentence) from rejected
    return "Same weights, same cost; only the restart is gone."


# --------------------------------------------------------------------------------------------
# Extend: the gain of a loop


def _jacobian(function: Callable[[Tensor], Tensor], h: Tensor) -> Tensor:
    jacobian = torch.autograd.functional.jacobian(function, h)
    return jacobian.reshape(jacobian[(0,) * h.ndim].numel(), h.numel())


def _gain(function: Callable[[Tensor], Tensor], h: Tensor) -> float:
    return float(torch.linalg.matrix_norm(_jacobian(function, h), ord=2))


def _spectral_radius(function: Callable[[Tensor], Tensor], h: Tensor) -> float:
    return float(torch.linalg.eigvals(_jacobian(function, h)).abs().max())


def _gain_cases() -> list[tuple[Callable[[Tensor], Tensor], Tensor]]:
    """Make maps whose largest singular value stands apart from their eigenvalues."""
    generator = torch.Generator().manual_seed(97)
    cases = []
    for shape, top in (((6,), 3.0), ((3, 4), 2.2)):  # two gains, so that no one number passes
        size = math.prod(shape)
        left, right = torch.randn(2, size, size, generator=generator)
        U, V = torch.linalg.qr(left)[0], torch.linalg.qr(right)[0]
        W = (U * torch.linspace(top, 0.1, size).pow(1.5)) @ V.T
        h = 0.1 * torch.randn(shape, generator=generator)
        cases.append((_Map(W), h))
    return cases


class _Map:
    """A map that bends: tanh of a linear one, of the shape of its argument."""

    def __init__(self, W: Tensor):
        self.W = W

    def __call__(self, h: Tensor) -> Tensor:
        return torch.tanh(self.W @ h.flatten()).reshape(h.shape) + 0.5 * h


@checker
def looped_gain(answer: Callable[[Callable[[Tensor], Tensor], Tensor], float]) -> str:
    """Check the largest singular value of the Jacobian of a function at a point.

    Parameters
    ----------
    answer : callable
        ``answer(F, h)`` returns the gain of F at h, within 1 %. F maps a tensor to one of the same
        shape.

    Examples
    --------
    >>> looped_gain(lambda F, h: F(h).norm() / h.norm())
    Not yet: ...
    """
    mistakes = [
        Mistake(lambda F, h: _gain(F, h) ** 2, "did you forget a square root? J^T J has sigma^2."),
        Mistake(
            _spectral_radius,
            "is that the largest eigenvalue? Apply J and then J^T: a gain is a singular value.",
        ),
        Mistake(
            lambda F, h: float(torch.linalg.matrix_norm(_jacobian(F, h))),
            "is that the Frobenius norm? It adds the gains of all directions.",
        ),
    ]
    try:
        compare(answer, _gain_cases(), _gain, mistakes, tolerance=0.01)
    except WrongAnswerError as rejected:
        raise _too_low(answer, rejected) from rejected
    return "No direction is stretched more, and one is stretched that much."


def _too_low(answer: Any, rejected: WrongAnswerError) -> WrongAnswerError:
    """Say so if every value is too low: the iteration has not reached the top direction."""
    if not callable(answer) or "hidden case" not in str(rejected):
        return rejected
    values = [as_tensor(call(answer, *case)) for case in _gain_cases()]
    ratios = [float(v) / _gain(*c) for v, c in zip(values, _gain_cases(), strict=True)]
    if all(0 < ratio < 1 for ratio in ratios):
        return WrongAnswerError(
            "your value is too low: did you iterate enough, and norm the direction each time?"
        )
    return rejected

"""What a checker says, and how it finds the likely mistake.

A checker compares an answer with the right one on hidden cases. When they differ, it compares the
answer with a list of typical wrong ones: the first that agrees on every case names the mistake.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

STUB = "there is no answer yet. Replace the `...` (or the `None`) by your own."


@dataclass(frozen=True)
class CheckResult:
    """The verdict on one answer.

    Parameters
    ----------
    passed : bool
        Whether the answer is right.
    message : str
        One or two sentences: why it is right, or which mistake is the likely one.

    Examples
    --------
    >>> CheckResult(True, "The head runs once.")
    Correct. The head runs once.
    >>> CheckResult(False, "did you forget the head?")
    Not yet: did you forget the head?
    """

    passed: bool
    message: str

    def __repr__(self) -> str:
        return f"{'Correct.' if self.passed else 'Not yet:'} {self.message}"

    def __bool__(self) -> bool:
        return self.passed


class WrongAnswerError(Exception):
    """Raised inside a checker to end it with a message; it never leaves the checker."""


@dataclass(frozen=True)
class Mistake:
    """A typical wrong answer: the same call as the right one, and the sentence that names it."""

    answer: Callable[..., Any]
    sentence: str


def checker(check: Callable[[Any], str]) -> Callable[[Any], CheckResult]:
    """Turn a function that returns praise or raises :py:class:`WrongAnswerError` into a checker."""

    @functools.wraps(check)
    def safe(answer: Any) -> CheckResult:
        if answer is None or answer is ...:
            return CheckResult(False, STUB)
        try:
            return CheckResult(True, check(answer))
        except WrongAnswerError as rejected:
            return CheckResult(False, str(rejected))

    return safe


def call(function: Any, *arguments: Any) -> Any:
    """Call a reader's function on copies of the arguments; reject stubs and errors in words."""
    if not callable(function):
        raise WrongAnswerError(f"a function is asked for, not {type(function).__name__}.")
    try:
        value = function(*copy.deepcopy(arguments))
    except Exception as error:
        raise WrongAnswerError(f"your function raised {type(error).__name__}: {error}") from error
    if value is None or value is ...:
        raise WrongAnswerError(STUB)
    return value


def as_tensor(value: Any) -> torch.Tensor:
    """Turn numbers, lists of numbers or tensors, or arrays into a detached float64 tensor."""
    try:
        if isinstance(value, (list, tuple)):
            return torch.stack([as_tensor(item) for item in value])
        tensor = torch.as_tensor(value).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        kind = type(value).__name__
        raise WrongAnswerError(f"a number or a tensor is asked for, not this {kind}.") from error
    if tensor.is_complex():
        raise WrongAnswerError("a real number or tensor is asked for, not a complex one.")
    return tensor.to(torch.float64)


def as_number(value: Any) -> float:
    """Turn a number, or a tensor that holds one, into a float."""
    number = as_tensor(value)
    if number.numel() != 1:
        raise WrongAnswerError("one number is asked for.")
    return float(number)


def agrees(value: torch.Tensor, expected: torch.Tensor, tolerance: float) -> bool:
    """Whether two tensors have one shape and differ by at most `tolerance`, relative in norm."""
    if value.shape != expected.shape or not torch.isfinite(value).all():
        return False
    scale = max(float(torch.linalg.vector_norm(expected)), 1e-12)
    return float(torch.linalg.vector_norm(value - expected)) <= tolerance * scale


def compare(
    function: Any,
    cases: Sequence[tuple],
    correct: Callable[..., Any],
    mistakes: Sequence[Mistake] = (),
    tolerance: float = 1e-4,
) -> None:
    """Reject `function` unless it equals `correct` on every case; name the mistake it equals.

    Parameters
    ----------
    function : callable
        The reader's answer.
    cases : sequence of tuple
        Arguments of each call.
    correct : callable
        The right answer.
    mistakes : sequence of Mistake
        Wrong answers with their sentences; the first one that agrees on every case is named.
    tolerance : float
        Largest relative error.

    Raises
    ------
    WrongAnswerError
        With the sentence of the mistake, or with the shape or the size of the error.
    """
    values = [as_tensor(call(function, *case)) for case in cases]
    expected = [as_tensor(correct(*copy.deepcopy(case))) for case in cases]
    if all(agrees(v, e, tolerance) for v, e in zip(values, expected, strict=True)):
        return
    for mistake in mistakes:
        wrong = [as_tensor(mistake.answer(*copy.deepcopy(case))) for case in cases]
        if all(agrees(v, w, tolerance) for v, w in zip(values, wrong, strict=True)):
            raise WrongAnswerError(mistake.sentence)
    raise WrongAnswerError(_difference(values, expected, tolerance))


def _difference(values: list, expected: list, tolerance: float) -> str:
    """Describe the first case that is wrong: its shape, a NaN, or the size of the error."""
    pairs = zip(values, expected, strict=True)
    value, right = next((v, e) for v, e in pairs if not agrees(v, e, tolerance))
    if value.shape != right.shape:
        return f"the shape is {tuple(value.shape)}, and it should be {tuple(right.shape)}."
    if not torch.isfinite(value).all():
        return "your answer is infinite or not a number (NaN) on a hidden case."
    error = float(torch.linalg.vector_norm(value - right))
    scale = float(torch.linalg.vector_norm(right))
    return f"on a hidden case your answer is off by {error / max(scale, 1e-12):.0%} of its size."


def close(value: float, target: float, tolerance: float) -> bool:
    """Whether a number lies within a relative tolerance of a target."""
    return math.isfinite(value) and abs(value - target) <= tolerance * abs(target)

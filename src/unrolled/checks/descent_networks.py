"""Checkers of the chapter *Unrolled networks*."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from unrolled.checks.result import Mistake, WrongAnswerError, as_number, checker, close, compare
from unrolled.descent.networks import attention_weights


@checker
def descent_coupling_floor(answer: float) -> str:
    """Check the coupling energy of four equal frames at inverse temperature 1.

    Parameters
    ----------
    answer : float
        The energy, by :eq:`eq-descent-coupling`.

    Examples
    --------
    >>> descent_coupling_floor(0.0)
    Not yet: the distances are 0, but a sum of four ones is not 1...
    """
    value = as_number(answer)
    if close(value, -4 * math.log(4), 1e-2):
        return "The lowest value that four frames can have."
    for wrong, sentence in (
        (0.0, "the distances are 0, but a sum of four ones is not 1."),
        (-math.log(4), "did you forget the sum over t?"),
        (4 * math.log(4), "did you mind the sign? The energy is lowest where frames agree."),
        (-16.0, "that is the kernel energy, which has no logarithm."),
    ):
        if abs(value - wrong) < 1e-2:
            raise WrongAnswerError(sentence)
    raise WrongAnswerError("every distance is 0: put that into the energy.")


@checker
def descent_safe_step(function: Callable[[float, float, float, int], float]) -> str:
    """Check a step that is safe for a layer of DUST, from the norms of D and V, mu and T.

    Parameters
    ----------
    function : callable
        Maps the spectral norms of D and V, the coupling and the number of frames to a step.

    Examples
    --------
    >>> descent_safe_step(lambda d, v, mu, T: 1 / d**2)
    Not yet: did you forget the coupling? Its curvature adds to that of the misfit...
    """
    bound = lambda T: (T - 1) * (T + 2) / T  # noqa: E731
    mistakes = (
        Mistake(
            lambda d, v, mu, T: 1 / d**2,
            "did you forget the coupling? Its curvature adds to that of the misfit.",
        ),
        Mistake(
            lambda d, v, mu, T: 1 / (d + mu * v * bound(T)),
            "did you square the norms? The curvature is that of a square.",
        ),
        Mistake(
            lambda d, v, mu, T: 2 / (d**2 + mu * v**2 * bound(T)),
            "twice that step is the edge for gradient descent; the majoriser needs one over L.",
        ),
    )
    cases = [(1.5, 0.5, 1.0, 4), (2.0, 0.7, 0.3, 8), (0.8, 2.0, 0.5, 2)]
    compare(function, cases, lambda d, v, mu, T: 1 / (d**2 + mu * v**2 * bound(T)), mistakes)
    return "One over the sum of the two curvatures."


@checker
def descent_positive_threshold(function: Callable[[Tensor, float], Tensor]) -> str:
    """Check the proximal operator of the l1 norm on codes that must not be negative.

    Parameters
    ----------
    function : callable
        Maps a tensor and a threshold to a tensor of the same shape.

    Examples
    --------
    >>> descent_positive_threshold(lambda x, theta: torch.relu(x))
    Not yet: did you forget the threshold? An entry also pays for its size...
    """
    mistakes = (
        Mistake(
            lambda x, theta: x.sign() * (x.abs() - theta).clamp(min=0),
            "negative entries survive: that is the operator without the constraint.",
        ),
        Mistake(
            lambda x, theta: torch.relu(x),
            "did you forget the threshold? An entry also pays for its size.",
        ),
        Mistake(
            lambda x, theta: x * (x > theta),
            "that keeps or kills (a hard threshold); what is kept must shrink too.",
        ),
    )
    generator = torch.Generator().manual_seed(11)
    cases = [(torch.randn(3, 5, generator=generator), theta) for theta in (0.2, 0.7)]
    compare(function, cases, lambda x, theta: torch.relu(x - theta), mistakes)
    return "A ReLU with a bias: a layer of a network is a proximal step."


@checker
def descent_attention(function: Callable[[Tensor, Tensor], Tensor]) -> str:
    """Check attention weights made from the distances of states (B, T, N) seen by V (R, N).

    Parameters
    ----------
    function : callable
        Maps states and V to (B, T, T).

    Examples
    --------
    >>> descent_attention(lambda H, V: torch.softmax((H @ V.mT) @ (H @ V.mT).mT, -1))
    Not yet: inner products are not distances: the squared length of each key is missing...
    """
    squares = lambda H, V: torch.cdist(H @ V.mT, H @ V.mT).square()  # noqa: E731
    mistakes = (
        Mistake(
            lambda H, V: torch.softmax((H @ V.mT) @ (H @ V.mT).mT, -1),
            "inner products are not distances: the squared length of each key is missing.",
        ),
        Mistake(
            lambda H, V: torch.softmax(-squares(H, V) / 2, -2),
            "columns sum to 1, and rows should: take the softmax over s.",
        ),
        Mistake(lambda H, V: torch.softmax(squares(H, V) / 2, -1), "near frames attract: a sign."),
        Mistake(lambda H, V: torch.softmax(-squares(H, V), -1), "did you forget the factor 1/2?"),
    )
    generator = torch.Generator().manual_seed(12)
    draw = lambda *size: torch.randn(*size, generator=generator)  # noqa: E731
    cases = [(draw(2, 4, 3), draw(2, 3) / 2), (draw(3, 5, 2), draw(4, 2) / 2)]
    compare(function, cases, attention_weights, mistakes)
    return "The slopes of the energy in the squared distances."


def _pull(A: Tensor, H: Tensor) -> Tensor:
    W = A + A.mT
    return W.sum(-1, keepdim=True) * H - W @ H


@checker
def descent_pull(function: Callable[[Tensor, Tensor], Tensor]) -> str:
    """Check the gradient of the coupling at V = I, from the attention weights and the states.

    Parameters
    ----------
    function : callable
        Maps A (T, T) and H (T, N) to (T, N).

    Examples
    --------
    >>> descent_pull(lambda A, H: H - A @ H)
    Not yet: that is common attention. How much the others look at a frame is missing...
    """
    mistakes = (
        Mistake(
            lambda A, H: H - A @ H,
            "that is common attention. How much the others look at a frame is missing.",
        ),
        Mistake(
            lambda A, H: _pull(A, H) / 2, "weigh by the sum of A and its transpose, not the mean."
        ),
        Mistake(lambda A, H: -_pull(A, H), "that is the way down; the gradient points up."),
    )
    generator = torch.Generator().manual_seed(13)
    draw = lambda *size: torch.randn(*size, generator=generator)  # noqa: E731
    cases = [(draw(T, T).softmax(-1), draw(T, N)) for T, N in ((5, 3), (4, 6))]
    compare(function, cases, _pull, mistakes)
    return "A graph Laplacian, applied to the frames."


@checker
def descent_rises(function: Callable[[Tensor], Tensor]) -> str:
    """Check the share of sequences whose energy a layer raises, from energies (L, 2, B).

    Parameters
    ----------
    function : callable
        Maps energies before and after each layer to (L,).

    Examples
    --------
    >>> descent_rises(lambda E: (E[:, 1].mean(-1) > E[:, 0].mean(-1)).float())
    Not yet: did you average first? A mean can fall while many sequences rise...
    """
    mistakes = (
        Mistake(
            lambda E: (E[:, 1].mean(-1) > E[:, 0].mean(-1)).float(),
            "did you average first? A mean can fall while many sequences rise.",
        ),
        Mistake(lambda E: (E[:, 1] < E[:, 0]).float().mean(-1), "that is the share that falls."),
        Mistake(lambda E: (E[:, 1] > E[:, 0]).float().sum(-1), "that is a count: divide it by B."),
    )
    generator = torch.Generator().manual_seed(14)
    cases = [(torch.randn(L, 2, B, generator=generator),) for L, B in ((4, 9), (3, 16))]
    compare(function, cases, lambda E: (E[:, 1] > E[:, 0]).float().mean(-1), mistakes)
    return "Descent on average is not descent for everyone."

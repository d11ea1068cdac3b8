"""Checkers of the chapter *Descending loops* of the part that joins the others."""

from __future__ import annotations

import math
from collections.abc import Callable

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
# Predict: the largest share that can be kept

START, LOWEST, LOOPS = 2.6, 1.9, 6


@checker
def together_largest_share(answer: float) -> str:
    """Check the largest constant share that six loops can keep between two losses.

    Parameters
    ----------
    answer : float
        The share, by :eq:`eq-together-largest-share`, from a loss of 2.6 down to 1.9.

    Examples
    --------
    >>> together_largest_share(0.27)
    Not yet: is that the share of all six loops together? Each of them takes its own.
    """
    value, ratio = as_number(answer), LOWEST / START
    right = 1 - ratio ** (1 / LOOPS)
    if close(value, right, 0.01):
        return "A twentieth of the loss per loop, and not one hundredth more."
    if close(value, 1 - ratio, 0.02):
        raise WrongAnswerError(
            "is that the share of all six loops together? Each of them takes its own."
        )
    if close(value, (1 - ratio) / LOOPS, 0.02):
        raise WrongAnswerError(
            "did you divide by six? Shares multiply: each is of the loss that is left."
        )
    if close(value, ratio ** (1 / LOOPS), 0.02):
        raise WrongAnswerError("is that what a loop may leave? The share is what it takes away.")
    if close(value, 1 - ratio ** (1 / (LOOPS - 1)), 0.02):
        raise WrongAnswerError(
            "did you count five loops? The first one is constrained too, against the embedding."
        )
    if close(value, 100 * right, 0.01):
        raise WrongAnswerError("is that in per cent? A share lies between 0 and 1.")
    raise WrongAnswerError("solve 2.6 * (1 - share) ** 6 = 1.9.")


# --------------------------------------------------------------------------------------------
# Derive: where a turning loop turns back


def _turning_point(phi: float, omega: float) -> int:
    return round(phi / omega)


@checker
def together_turning_point(answer: Callable[[float, float], int]) -> str:
    """Check after which loop a state that turns is nearest to its target.

    Parameters
    ----------
    answer : callable
        ``answer(phi, omega)`` returns the loop at which :eq:`eq-together-turn` is lowest.

    Examples
    --------
    >>> together_turning_point(lambda phi, omega: int(phi / omega))
    Not yet: did you stop before the target? One loop more may pass it and still be nearer.
    """
    cases = [(3.0, 0.32), (1.0, 0.27), (2.2, 0.6), (2.9, 0.17), (0.9, 0.35), (3.1, 0.071)]
    mistakes = [
        Mistake(
            lambda phi, omega: math.floor(phi / omega),
            "did you stop before the target? One loop more may pass it and still be nearer.",
        ),
        Mistake(
            lambda phi, omega: math.ceil(phi / omega),
            "did you go past the target? The loop before may be nearer.",
        ),
        Mistake(
            lambda phi, omega: phi / omega,
            "is that a whole number? There is no loop between two loops.",
        ),
        Mistake(
            lambda phi, omega: round(phi / omega) + 1,
            "did you count the loop that raises the loss? The one before it is the lowest.",
        ),
        Mistake(
            lambda phi, omega: round(math.pi / omega),
            "is that half a turn? The loss is lowest where the angle to the target is smallest.",
        ),
    ]
    compare(answer, cases, _turning_point, mistakes, tolerance=1e-9)
    return "A model that was trained at K has turned just as far as its target."


# --------------------------------------------------------------------------------------------
# Derive: the push on the embedding


def _push(prices: Tensor, shares: Tensor) -> Tensor:
    scale = 1 + prices[0] + (shares[1:] * prices[1:]).sum()
    return (1 - shares[0]) * prices[0] / scale


def _push_without_objective(prices: Tensor, shares: Tensor) -> Tensor:
    scale = prices[0] + (shares[1:] * prices[1:]).sum()
    return (1 - shares[0]) * prices[0] / scale


def _push_all_shares(prices: Tensor, shares: Tensor) -> Tensor:
    return (1 - shares[0]) * prices[0] / (1 + (shares * prices).sum())


def _push_without_share(prices: Tensor, shares: Tensor) -> Tensor:
    return prices[0] / (1 + prices[0] + (shares[1:] * prices[1:]).sum())


def _push_full_prices(prices: Tensor, shares: Tensor) -> Tensor:
    return (1 - shares[0]) * prices[0] / (1 + prices.sum())


@checker
def together_embedding_push(answer: Callable[[Tensor, Tensor], float]) -> str:
    """Check how much of the embedding's gradient a settled model is trained to climb.

    Parameters
    ----------
    answer : callable
        ``answer(prices, shares)`` takes K numbers each and returns the factor of the gradient of
        the embedding's loss in :eq:`eq-together-settled`, divided by that of the loops.

    Examples
    --------
    >>> together_embedding_push(lambda prices, shares: (1 - shares[0]) * prices[0])
    Not yet: did you forget to divide? The factor of the loops' gradient grows with prices too.
    """
    generator = torch.Generator().manual_seed(83)
    cases = []
    for K in (2, 4, 7):
        prices = 3 * torch.rand(K, generator=generator, dtype=torch.float64)
        cases.append((prices, 0.6 * torch.rand(K, generator=generator, dtype=torch.float64)))
    mistakes = [
        Mistake(
            lambda prices, shares: (1 - shares[0]) * prices[0],
            "did you forget to divide? The factor of the loops' gradient grows with prices too.",
        ),
        Mistake(
            lambda prices, shares: -_push(prices, shares),
            "did you keep the sign? The minus stands before it already.",
        ),
        Mistake(_push_without_objective, "did you forget the objective? Loop K has the weight 1."),
        Mistake(
            _push_all_shares,
            "did you give the first price its share alone? It counts whole, for the embedding has "
            "another gradient.",
        ),
        Mistake(_push_without_share, "did you forget the share of the first loop?"),
        Mistake(
            _push_full_prices,
            "did you add whole prices? From the second loop on all but a share of each cancels.",
        ),
    ]
    compare(answer, cases, _push, mistakes)
    return "It never reaches 1: the loops keep the upper hand, if only just."


# --------------------------------------------------------------------------------------------
# Implement: confident exits

Exit = Callable[[Tensor, float], Tensor]


def _confidence(logits: Tensor) -> Tensor:
    return logits.softmax(dim=-1).amax(dim=-1)


def _first(confident: Tensor) -> Tensor:
    last = torch.ones_like(confident[:1])
    return 1 + torch.cat((confident[:-1], last)).int().argmax(dim=0)


def _exit(logits: Tensor, threshold: float) -> Tensor:
    return _first(_confidence(logits) > threshold)


def _exit_of_logits(logits: Tensor, threshold: float) -> Tensor:
    return _first(logits.amax(dim=-1) > threshold)


def _one_if_never(logits: Tensor, threshold: float) -> Tensor:
    return 1 + (_confidence(logits) > threshold).int().argmax(dim=0)


def _exit_most(logits: Tensor, threshold: float) -> Tensor:
    return 1 + _confidence(logits).argmax(dim=0)


def _exit_for_good(logits: Tensor, threshold: float) -> Tensor:
    """Stop only where no later loop is in doubt again."""
    sure = (_confidence(logits) > threshold).flip(0).int().cumprod(0).flip(0).bool()
    return _first(sure)


@checker
def together_exit_loops(answer: Exit) -> str:
    """Check the loop at which each token is first confident, by :eq:`eq-together-exit`.

    Parameters
    ----------
    answer : callable
        ``answer(logits, threshold)`` takes logits (K, N, V) and returns (N,), from 1 to K.

    Examples
    --------
    >>> together_exit_loops(lambda logits, threshold: logits.new_ones(logits.shape[1]))
    Not yet: does any token go on? That answer is one loop for all of them.
    """
    generator = torch.Generator().manual_seed(89)
    cases = []
    for loops, tokens, size, threshold in ((6, 80, 7, 0.6), (9, 60, 20, 0.4), (4, 90, 3, 0.8)):
        growth = torch.linspace(0.5, 2.0, loops, dtype=torch.float64)[:, None, None]
        logits = torch.randn(loops, tokens, size, generator=generator, dtype=torch.float64)
        cases.append((growth * logits, threshold))
    mistakes = [
        Mistake(
            lambda u, t: torch.ones(u.shape[1]),
            "does any token go on? That answer is one loop for all of them.",
        ),
        Mistake(
            lambda u, t: torch.full((u.shape[1],), len(u)),
            "does any token stop early? That answer is K for all of them.",
        ),
        Mistake(lambda u, t: _exit(u, t) - 1, "did you count from 0? The first entry is loop 1."),
        Mistake(
            _one_if_never,
            "what if a token is never confident? argmax of all False is 0: it must run to loop K.",
        ),
        Mistake(_exit_of_logits, "are those probabilities? The threshold is not for logits."),
        Mistake(_exit_most, "is that the most confident loop? A rule cannot look ahead."),
        Mistake(
            _exit_for_good,
            "did you wait until it is never in doubt again? A rule cannot look ahead.",
        ),
        Mistake(
            lambda u, t: _exit(u, 1 - t), "did you ask for doubt below the threshold? Confidence "
            "above it is asked for.",
        ),
    ]  # fmt: skip
    compare(answer, cases, _exit, mistakes, tolerance=1e-9)
    return "It never looks ahead, so it can be run."


# --------------------------------------------------------------------------------------------
# Implement: the best lot of fixed numbers


def _running(losses: Tensor) -> Tensor:
    return losses.cummin(dim=0).values


def _hull(best: Tensor, k: float) -> Tensor:
    found = []
    for i in range(1, len(best) + 1):
        for j in range(i, len(best) + 1):
            if i <= k <= j:
                r = (k - i) / max(j - i, 1)
                found.append((1 - r) * best[i - 1] + r * best[j - 1])
    return torch.stack(found).min()


def _best_fixed(losses: Tensor, k: float) -> Tensor:
    return _hull(_running(losses), k)


def _neighbours(losses: Tensor, k: float) -> Tensor:
    low = min(int(k), len(losses) - 1)
    return losses[low - 1] + (k - low) * (losses[low] - losses[low - 1])


def _whole(losses: Tensor, k: float) -> Tensor:
    return losses[: int(k)].min()


@checker
def together_best_fixed(answer: Callable[[Tensor, float], float]) -> str:
    """Check the lowest loss of fixed numbers of loops at a mean: :eq:`eq-together-exit-rival`.

    Parameters
    ----------
    answer : callable
        ``answer(losses, k)`` takes the losses after 1 to K loops and a mean number in [1, K].

    Examples
    --------
    >>> together_best_fixed(lambda losses, k: losses[: int(k)].min())
    Not yet: is that one number for all texts? A lot between two of them may be lower.
    """
    generator = torch.Generator().manual_seed(97)
    cases = []
    for K, means in ((3, (1.0, 1.7, 3.0)), (6, (2.0, 3.4, 5.5)), (9, (4.5, 6.3, 9.0))):
        losses = 2 + torch.rand(K, generator=generator, dtype=torch.float64)
        losses[K // 2] = 1.8  # a valley: more loops than that are worse
        cases += [(losses, k) for k in means]
    mistakes = [
        Mistake(
            _whole, "is that one number for all texts? A lot between two of them may be lower."
        ),
        Mistake(
            _neighbours,
            "did you mix the two numbers next to k? Others may be better, such as the floor of a "
            "valley.",
        ),
        Mistake(
            _hull,
            "must the mean be k? It may be lower: whoever may run more loops may run fewer.",
        ),
        Mistake(lambda losses, k: losses.min(), "did you forget the mean? It is at most k."),
    ]
    compare(answer, cases, _best_fixed, mistakes)
    return "This is the line that a rule must lie below."


# --------------------------------------------------------------------------------------------
# Extend: the best rule there is


def _oracle(losses: Tensor) -> Tensor:
    lowest = losses.min(dim=0).values
    first = 1 + (losses == lowest).int().argmax(dim=0)
    return torch.stack((first.double().mean(), lowest.mean()))


def _oracle_last(losses: Tensor) -> Tensor:
    lowest = losses.min(dim=0).values
    last = len(losses) - (losses == lowest).flip(0).int().argmax(dim=0)
    return torch.stack((last.double().mean(), lowest.mean()))


def _oracle_of_all(losses: Tensor) -> Tensor:
    means = losses.mean(dim=1)
    return torch.stack((1.0 + means.argmin().double(), means.min()))


@checker
def together_oracle(answer: Callable[[Tensor], tuple[float, float]]) -> str:
    """Check the mean number of loops and the mean loss if each token stops at its best loop.

    Parameters
    ----------
    answer : callable
        ``answer(losses)`` takes the loss of every token after every loop, (K, N), and returns the
        mean number of loops, from 1 to K, and the mean loss; of equal losses the first counts.

    Examples
    --------
    >>> together_oracle(lambda losses: (1.0, losses[0].mean()))
    Not yet: does any token go on? That is one loop for all of them.
    """
    generator = torch.Generator().manual_seed(101)
    cases = []
    for K, N in ((3, 40), (6, 30), (8, 50)):
        losses = torch.rand(K, N, generator=generator, dtype=torch.float64)
        losses[1:, : N // 3] = losses[:1, : N // 3]  # tokens that have settled: the first counts
        cases.append((losses,))
    mistakes = [
        Mistake(
            lambda f: torch.stack((torch.ones(()).double(), f[0].mean())),
            "does any token go on? That is one loop for all of them.",
        ),
        Mistake(
            _oracle_of_all,
            "is that the best single number for all tokens? Each token has its own.",
        ),
        Mistake(
            lambda f: _oracle(f) - torch.tensor([1.0, 0.0]),
            "did you count from 0? The first row is loop 1.",
        ),
        Mistake(_oracle_last, "which of equal losses counts? The first: more loops bring nothing."),
        Mistake(
            lambda f: _oracle(f).flip(0), "did you swap the two? The number of loops comes first."
        ),
    ]
    compare(answer, cases, _oracle, mistakes)
    return "No rule does better; and none that cannot see the next byte does as well."

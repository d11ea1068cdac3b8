"""Checkers of the chapter *Language model* of the part on descent."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from scipy import stats
from torch import Tensor

from unrolled.checks.result import (
    Mistake,
    WrongAnswerError,
    as_number,
    checker,
    close,
    compare,
)
from unrolled.descent.language import win_rate

# --------------------------------------------------------------------------------------------
# Predict: the first reading of a tied embedding

WIDTH, LENGTH = 64, 2.0


@checker
def descent_first_reading(answer: float) -> str:
    """Check the loss of layer 0 for 64 orthogonal embeddings of length 2 and width 64.

    Parameters
    ----------
    answer : float
        The loss in nats of a next token that is not the present one, by
        :eq:`eq-descent-first-reading`, with a gain of 1.

    Examples
    --------
    >>> descent_first_reading(4.16)
    Not yet: is that ln V, the loss of a uniform guess? The state is an embedding, and far from...
    """
    value = as_number(answer)
    own = math.sqrt(WIDTH) * LENGTH  # the logit of the own token; the others have 0
    if close(value, math.log(math.exp(own) + WIDTH - 1), 1e-3):
        return "The loss is the logit of the own token: it leaves no doubt, and is wrong."
    for wrong, sentence in (
        (
            math.log(WIDTH),
            "is that ln V, the loss of a uniform guess? The state is an embedding, and far from "
            "uniform.",
        ),
        (
            math.log(math.exp(LENGTH**2) + WIDTH - 1),
            "did you forget the norm? It gives the state the length of the root of d.",
        ),
        (
            math.log(math.exp(LENGTH) + WIDTH - 1),
            "did you scale the state to length 1? The norm divides by the root mean square, not "
            "by the length.",
        ),
        (0.0, "is that the loss of the own token? The next token is another one."),
    ):
        if abs(value - wrong) < 2e-3 * max(1.0, wrong):
            raise WrongAnswerError(sentence)
    raise WrongAnswerError("write down the logit of the own token, and that of any other.")


# --------------------------------------------------------------------------------------------
# Derive: the gradients of an adapter


def _gradients(A: Tensor, B: Tensor, x: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
    return (dy @ B).mT @ x, dy.mT @ (x @ A.mT)


@checker
def descent_adapter_gradients(
    answer: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]],
) -> str:
    """Check the gradients of both factors of an adapter.

    Parameters
    ----------
    answer : callable
        Maps A (r, d_in), B (d_out, r), inputs x (n, d_in) and the gradient of the loss in the
        outputs (n, d_out) of :eq:`eq-descent-adapter` to the gradients in A and in B.

    Examples
    --------
    >>> descent_adapter_gradients(lambda A, B, x, dy: (torch.zeros_like(A), dy.T @ x @ A.T))
    Not yet: the gradient of B is right. That of A vanishes while B is zero, not always.
    """
    generator = torch.Generator().manual_seed(91)
    cases = []
    for d_in, d_out, rank, count in ((5, 4, 2, 3), (3, 6, 1, 4), (4, 4, 3, 5)):
        shapes = ((rank, d_in), (d_out, rank), (count, d_in), (count, d_out))
        cases.append(tuple(torch.randn(shape, generator=generator).double() for shape in shapes))
    mistakes = [
        Mistake(
            lambda A, B, x, dy: _flat(torch.zeros_like(A), _gradients(A, B, x, dy)[1]),
            "the gradient of B is right. That of A vanishes while B is zero, not always.",
        ),
        Mistake(
            lambda A, B, x, dy: _flat(*(g / len(x) for g in _gradients(A, B, x, dy))),
            "did you take the mean over the rows? A gradient is their sum.",
        ),
        Mistake(
            lambda A, B, x, dy: _flat(*_gradients(A, B, x, dy)[::-1]),
            "did you swap the two? A comes first.",
        ),
    ]
    compare(_flattened(answer), cases, lambda *case: _flat(*_gradients(*case)), mistakes)
    return "With B = 0 the first step moves B alone; with both at zero nothing would ever move."


def _flat(*parts: Tensor) -> Tensor:
    return torch.cat([torch.as_tensor(part).flatten().double() for part in parts])


def _flattened(answer: Callable) -> Callable:
    """Return the answer with both gradients in one vector, once their shapes are right."""
    if not callable(answer):
        raise WrongAnswerError(f"a function is asked for, not {type(answer).__name__}.")

    def flat(A: Tensor, B: Tensor, x: Tensor, dy: Tensor) -> Tensor | None:
        found = answer(A, B, x, dy)
        if found is None or found is ...:
            return None
        if not isinstance(found, (tuple, list)) or len(found) != 2:
            raise WrongAnswerError("two gradients are asked for: of A and of B.")
        for name, part, like in zip("AB", found, (A, B), strict=True):
            if not isinstance(part, Tensor) or part.shape != like.shape:
                shape = tuple(getattr(part, "shape", ()))
                wanted = tuple(like.shape)
                raise WrongAnswerError(f"the gradient of {name} has shape {shape}, not {wanted}.")
        return _flat(*found)

    return flat


# --------------------------------------------------------------------------------------------
# Derive: what noise leaves of a direction


@checker
def descent_noise_cosine(answer: Callable[[float], float]) -> str:
    """Check the cosine between an embedding and the same with noise.

    Parameters
    ----------
    answer : callable
        Maps gamma to the cosine in a space of many channels, for an embedding of the usual length.

    Examples
    --------
    >>> descent_noise_cosine(lambda gamma: 1 / (1 + gamma**2))
    Not yet: did you forget the root? The length of the noisy vector is a root.
    """
    mistakes = [
        Mistake(
            lambda gamma: 1 / (1 + gamma**2),
            "did you forget the root? The length of the noisy vector is a root.",
        ),
        Mistake(
            lambda gamma: 1 / (1 + gamma),
            "did you add the lengths? Noise is orthogonal to the embedding: squares add up.",
        ),
        Mistake(
            lambda gamma: gamma / math.sqrt(1 + gamma**2),
            "is that the sine? At gamma = 0 the cosine is 1.",
        ),
        Mistake(math.atan, "is that the angle? Its cosine is asked for."),
        Mistake(
            lambda gamma: 1 / math.sqrt(1 + gamma),
            "did you take gamma for the variance? It is a standard deviation.",
        ),
    ]
    cases = [(0.0,), (0.5,), (1.0,), (1.5,)]
    compare(answer, cases, lambda gamma: 1 / math.sqrt(1 + gamma**2), mistakes)
    return "At gamma = 1 every token points 45 degrees aside, and at 1.5 it is 56."


# --------------------------------------------------------------------------------------------
# Derive: how far a win rate strays by chance


@checker
def descent_win_rate_deviation(answer: Callable[[int, int], float]) -> str:
    """Check the standard deviation of a win rate between equals, with ties.

    Parameters
    ----------
    answer : callable
        Maps the number of texts and how many of them are ties to the deviation, by
        :eq:`eq-descent-win-rate-null`.

    Examples
    --------
    >>> descent_win_rate_deviation(lambda n, ties: 0.5 / n**0.5)
    Not yet: did you forget the ties? They count one half for certain, so they do not vary.
    """
    cases = [(46, 0), (100, 36), (805, 5), (12, 12)]
    mistakes = [
        Mistake(
            lambda n, ties: 0.5 / math.sqrt(n),
            "did you forget the ties? They count one half for certain, so they do not vary.",
        ),
        Mistake(
            lambda n, ties: 0.5 / math.sqrt(n - ties) if n > ties else 0.0,
            "did you leave the ties out of n? They stay below the line: they are texts, too.",
        ),
        Mistake(lambda n, ties: (n - ties) / (4 * n**2), "is that the variance? Take its root."),
        Mistake(
            lambda n, ties: math.sqrt(n - ties) / n,
            "what is the variance of a fair coin? A win counts 1 and a loss 0, so it is 1 / 4.",
        ),
        Mistake(
            lambda n, ties: math.sqrt(n - ties) / 2,
            "is that the deviation of the number of wins? Divide by n.",
        ),
    ]
    compare(answer, cases, lambda n, ties: math.sqrt(n - ties) / (2 * n), mistakes)
    return "Two equal models differ by that much on any set of texts."


# --------------------------------------------------------------------------------------------
# Implement: the sign test


def _sign_test(losses: Tensor, reference: Tensor, sides: int = 2, tie: float = 0.0) -> float:
    wins, ties = int((losses < reference).sum()), int((losses == reference).sum())
    count = len(losses) - ties + math.floor(2 * tie * ties)
    wins += math.floor(tie * ties)
    most = max(wins, count - wins) if sides == 2 else wins
    return min(1.0, sides * float(stats.binom.sf(most - 1, count, 0.5)))


def _normal_test(losses: Tensor, reference: Tensor) -> float:
    count = int((losses != reference).sum())
    z = abs(win_rate(losses.tolist(), reference.tolist()) - 0.5) * 2 * len(losses)
    return 2 * float(stats.norm.sf(z / math.sqrt(count)))


def _without_itself(losses: Tensor, reference: Tensor) -> float:
    wins, count = int((losses < reference).sum()), int((losses != reference).sum())
    return min(1.0, 2 * float(stats.binom.sf(max(wins, count - wins), count, 0.5)))


@checker
def descent_sign_test(answer: Callable[[Tensor, Tensor], float]) -> str:
    """Check the p-value of a win rate: how often equals are at least as far from one half.

    Parameters
    ----------
    answer : callable
        Maps the losses of n texts by two models to the exact p-value of both sides; ties are left
        out.

    Examples
    --------
    >>> descent_sign_test(lambda losses, reference: (losses < reference).double().mean())
    Not yet: is that the win rate? Asked for is how often equal models would do as well or better.
    """
    generator = torch.Generator().manual_seed(92)
    cases = []
    for count, shift, ties in ((20, 0.7, 4), (31, -0.5, 1), (46, 0.4, 6), (9, 0.0, 0)):
        losses = torch.randn(count, generator=generator).double()
        reference = losses + shift + torch.randn(count, generator=generator).double()
        reference[:ties] = losses[:ties]
        cases.append((losses, reference))
    mistakes = [
        Mistake(
            lambda f, r: (f < r).double().mean(),
            "is that the win rate? Asked for is how often equal models would do as well or better.",
        ),
        Mistake(
            lambda f, r: _sign_test(f, r, sides=1),
            "did you count one side only? A rate of 0.3 is as far from one half as 0.7.",
        ),
        Mistake(
            lambda f, r: _sign_test(f, r, tie=0.5),
            "did you split the ties? They say nothing about who is better: leave them out.",
        ),
        Mistake(_normal_test, "is that the normal approximation? Sum the binomial probabilities."),
        Mistake(
            _without_itself,
            "did you leave out the count itself? 'At least as far' includes what you saw.",
        ),
    ]
    compare(answer, cases, _sign_test, mistakes)
    return "Exact for any number of texts, and it needs no assumption on how losses are spread."


# --------------------------------------------------------------------------------------------
# Implement: the nearest token


def _nearest(noisy: Tensor, table: Tensor) -> Tensor:
    return torch.cdist(noisy, table).argmin(dim=-1)


def _unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


@checker
def descent_nearest_token(answer: Callable[[Tensor, Tensor], Tensor]) -> str:
    """Check the token whose embedding is nearest to each noisy one.

    Parameters
    ----------
    answer : callable
        Maps noisy embeddings (N, d) and a table (V, d) to tokens (N,).

    Examples
    --------
    >>> descent_nearest_token(lambda noisy, table: (noisy @ table.T).argmax(dim=-1))
    Not yet: is that the largest product? Long embeddings win it too often: their own length...
    """
    generator = torch.Generator().manual_seed(93)
    cases = []
    for size, width, count in ((40, 6, 60), (25, 4, 50)):
        table = torch.randn(size, width, generator=generator).double()
        table *= 0.5 + 2 * torch.rand(size, 1, generator=generator)
        noise = torch.randn(count, width, generator=generator).double()
        tokens = torch.randint(size, (count,), generator=generator)
        cases.append((table[tokens] + 0.8 * noise, table))
    mistakes = [
        Mistake(
            lambda noisy, table: (noisy @ table.mT).argmax(dim=-1),
            "is that the largest product? Long embeddings win it too often: their own length "
            "counts against them in a distance.",
        ),
        Mistake(
            lambda noisy, table: (_unit(noisy) @ _unit(table).mT).argmax(dim=-1),
            "is that the largest cosine? The noise is added, so distances decide.",
        ),
        Mistake(
            lambda noisy, table: (noisy @ table.mT - table.square().sum(-1)).argmax(dim=-1),
            "did you forget the factor 2 at the product when you expanded the square?",
        ),
        Mistake(
            lambda noisy, table: torch.cdist(noisy, table).argmax(dim=-1),
            "is that the farthest token?",
        ),
        Mistake(
            lambda noisy, table: _nearest(noisy, table[1:]),
            "are your tokens one too low?",
        ),
    ]
    compare(answer, cases, _nearest, mistakes)
    return "With Gaussian noise the nearest token is also the likeliest one."


# --------------------------------------------------------------------------------------------
# Extend: a lens that is fitted


def _translated(states: Tensor, last: Tensor, new: Tensor, bias: bool = True) -> Tensor:
    def extended(x: Tensor) -> Tensor:
        return torch.cat((x, torch.ones_like(x[:, :1])), dim=1) if bias else x

    return extended(new) @ torch.linalg.lstsq(extended(states), last).solution


@checker
def descent_translator(answer: Callable[[Tensor, Tensor, Tensor], Tensor]) -> str:
    """Check an affine map from the states of a layer to those of the last, by least squares.

    Parameters
    ----------
    answer : callable
        Maps the states (n, d) of a layer, those of the last layer (n, d) and new states (m, d) of
        the first to their translation (m, d).

    Examples
    --------
    >>> descent_translator(lambda states, last, new: new)
    Not yet: is that the plain lens? Fit a map on the first two arguments, then apply it.
    """
    generator = torch.Generator().manual_seed(94)
    cases = []
    for width, count in ((3, 40), (5, 60)):
        W = torch.randn(width, width, generator=generator).double()
        states = torch.randn(count, width, generator=generator).double() + 1.5
        noise = torch.randn(count, width, generator=generator).double()
        new = torch.randn(7, width, generator=generator).double() - 1
        cases.append((states, states @ W + 2 + 0.1 * noise, new))
    mistakes = [
        Mistake(
            lambda x, last, new: new,
            "is that the plain lens? Fit a map on the first two arguments, then apply it.",
        ),
        Mistake(
            lambda x, last, new: _translated(x, last, new, bias=False),
            "did you forget the constant? The map is affine: states of a layer have a mean.",
        ),
        Mistake(
            lambda x, last, new: new + (last - x).mean(dim=0),
            "is that a shift alone? A matrix can turn and scale the states, too.",
        ),
        Mistake(
            lambda x, last, new: _translated(last, x, new),
            "did you fit the way back? From the layer to the last one is asked for.",
        ),
    ]
    compare(answer, cases, _translated, mistakes)
    return "The tuned lens does that with the divergence of the predictions in place of squares."

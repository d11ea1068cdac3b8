"""Checkers of the chapter *Pretraining and ablation* of the part on loops."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from unrolled.checks.result import (
    Mistake,
    WrongAnswerError,
    agrees,
    as_tensor,
    call,
    checker,
    close,
    compare,
)
from unrolled.looped.model import BASE, INJECTIONS, LABELS, LoopedTransformer
from unrolled.transformer import TransformerConfig, count_parameters

# --------------------------------------------------------------------------------------------
# Predict: what depth costs without sharing

LOOPS = 9
CORE = 12 * BASE.num_layers * BASE.hidden_size**2
ENDS = 2 * BASE.vocab_size * BASE.hidden_size  # embedding and head
PARAMETERS = (LOOPS * CORE + ENDS) / (CORE + ENDS)


@checker
def looped_depth_price(answer: tuple[float, float]) -> str:
    """Check two ratios, plain Transformer of the same depth over looped one: Base, 9 loops.

    Parameters
    ----------
    answer : pair of float
        The ratio of the parameters and that of the FLOPs, each within 3 %.

    Examples
    --------
    >>> looped_depth_price((9, 1))
    Not yet: did you forget embedding and head? They are as large in both models.
    """
    pair = as_tensor(answer)
    if pair.shape != (2,):
        raise WrongAnswerError("two numbers are asked for: parameters, then FLOPs.")
    parameters, flops = pair.tolist()
    if close(parameters, PARAMETERS, 0.03) and close(flops, 1, 0.03):
        return f"{PARAMETERS:.2f} times the parameters, for the same arithmetic."
    raise WrongAnswerError(_price_mistake(parameters, flops))


def _price_mistake(parameters: float, flops: float) -> str:
    if close(parameters, 1, 0.03) and close(flops, PARAMETERS, 0.03):
        return "did you swap them? Parameters first, then FLOPs."
    if not close(flops, 1, 0.03):
        return (
            "look at the FLOPs: both models apply as many blocks, and whether a block's weights "
            "were used before makes no difference to the arithmetic."
        )
    if close(parameters, LOOPS, 0.03):
        return "did you forget embedding and head? They are as large in both models."
    if close(parameters, 1, 0.03):
        return "did you share the weights? The plain Transformer has its own in each block."
    if close(parameters, 1 / PARAMETERS, 0.03):
        return "did you divide the wrong way round? The plain Transformer stands above."
    return "the core is 12 L d^2 numbers and is there 9 times; embedding and head are 2 V d."


# --------------------------------------------------------------------------------------------
# Derive: how far Muon can carry a matrix


def _rates(rate: float, steps: int, decay: int) -> float:
    return math.fsum(rate * min(1.0, (steps - t) / decay) for t in range(steps))


def _reach(rows: int, columns: int, rate: float, steps: int, decay: int) -> float:
    return math.sqrt(max(1, rows / columns)) * _rates(rate, steps, decay)


def _reach_without_decay(rows: int, columns: int, rate: float, steps: int, decay: int) -> float:
    return math.sqrt(max(1, rows / columns)) * rate * steps


def _reach_without_shape(rows: int, columns: int, rate: float, steps: int, decay: int) -> float:
    return _rates(rate, steps, decay)


def _reach_frobenius(rows: int, columns: int, rate: float, steps: int, decay: int) -> float:
    return math.sqrt(min(rows, columns)) * _reach(rows, columns, rate, steps, decay)


def _reach_free_shape(rows: int, columns: int, rate: float, steps: int, decay: int) -> float:
    return math.sqrt(rows / columns) * _rates(rate, steps, decay)


def _reach_halved(rows: int, columns: int, rate: float, steps: int, decay: int) -> float:
    return math.sqrt(max(1, rows / columns)) * rate * (steps - decay / 2)


@checker
def looped_muon_reach(answer: Callable[[int, int, float, int, int], float]) -> str:
    """Check the largest spectral norm that Muon can give to a matrix that starts at zero.

    Parameters
    ----------
    answer : callable
        ``answer(rows, columns, rate, steps, decay)``: the sum of the lengths of all exact steps
        (:eq:`eq-looped-muon`), with the rate falling linearly over the last ``decay`` steps.
    """
    cases = [(48, 48, 0.02, 40, 8), (96, 24, 0.05, 25, 5), (24, 96, 0.01, 30, 3), (7, 5, 1.0, 9, 2)]
    mistakes = [
        Mistake(
            _reach_without_decay,
            "did you forget the decay? Over the last steps the rate falls.",
        ),
        Mistake(
            _reach_without_shape,
            "did you forget the factor sqrt(max(1, m / n)) of a tall matrix?",
        ),
        Mistake(
            _reach_frobenius,
            "is that the Frobenius norm? The spectral norm of an orthogonal factor is 1.",
        ),
        Mistake(_reach_free_shape, "the factor of the shape is never below 1: max(1, m / n)."),
        Mistake(
            _reach_halved,
            "nearly: the factors of the last D steps are 1, (D - 1) / D, ..., 1 / D. Add them up.",
        ),
        Mistake(
            lambda *case: 1.2 * _reach(*case),
            "exact orthogonal factors are asked for; 1.2 belongs to the approximate iteration.",
        ),
    ]
    compare(answer, cases, _reach, mistakes)
    return "No gradient, however large, takes the matrix further."


# --------------------------------------------------------------------------------------------
# Implement: an iteration that arrives at the polar factor


def _matrices() -> list[Tensor]:
    """Hidden matrices: tall, wide and square, large and small, one with a small singular value."""
    generator = torch.Generator().manual_seed(31)
    shapes = ((12, 5, 30.0), (4, 9, 1e-3), (8, 8, 1.0))
    found = [s * torch.randn(m, n, generator=generator).double() for m, n, s in shapes]
    left, _, right = torch.linalg.svd(found[-1])
    values = torch.logspace(-3, 0.5, 8, dtype=torch.float64)
    return [*found, left * values @ right]


@checker
def looped_polar(answer: Callable[[Tensor], Tensor]) -> str:
    """Check the polar factor of a matrix, within 1e-3, for any shape and any scale."""
    for matrix in _matrices():
        _judge_polar(as_tensor(call(answer, matrix)), matrix)
    return "Multiplications alone, and every singular value is 1."


def _judge_polar(value: Tensor, matrix: Tensor) -> None:
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    if value.shape != matrix.shape:
        raise WrongAnswerError(
            f"the shape is {tuple(value.shape)}, and it should be {tuple(matrix.shape)}."
        )
    if not torch.isfinite(value).all():
        raise WrongAnswerError(
            "your iteration runs away on a hidden matrix. Did you first divide by the Frobenius "
            "norm? That brings every singular value below 1."
        )
    if agrees(value, left @ right, 1e-3):
        return
    inner = left.T @ value @ right.T  # diagonal if the singular vectors are kept
    raise WrongAnswerError(_polar_mistake(inner))


def _polar_mistake(inner: Tensor) -> str:
    values = inner.diagonal()
    if float((inner - torch.diag(values)).norm()) > 1e-2 * float(inner.norm()):
        return "the singular vectors have changed. Use odd powers only: X, X X^T X, ..."
    if float(values.max()) > 1.01:
        return (
            f"a singular value is {float(values.max()):.2f} on a hidden matrix. Muon's own "
            "coefficients never settle at 1: choose p with p(1) = 1 and p'(1) = 0."
        )
    if float(values.min()) < -0.01:
        return "a singular value changed its sign: p must keep (0, 1] positive."
    return (
        f"a singular value is only {float(values.min()):.2g} on a hidden matrix. Near zero it "
        "grows by one factor per step: take more steps, until nothing changes."
    )


# --------------------------------------------------------------------------------------------
# Implement: how many seeds

Runs = Mapping[int, float]


def _differences(first: Runs, second: Runs) -> list[float]:
    return [first[seed] - second[seed] for seed in first]


def _needed(deviation: float, target: float, quantile: Callable[[int], float]) -> int:
    return next(n for n in count(2) if quantile(n) * deviation / math.sqrt(n) <= target)


def _student(n: int) -> float:
    from scipy.stats import t as student

    return float(student.ppf(0.975, df=n - 1))


def _seeds_needed(first: Runs, second: Runs, target: float) -> int:
    return _needed(statistics.stdev(_differences(first, second)), target, _student)


def _seeds_unpaired(first: Runs, second: Runs, target: float) -> int:
    spread = math.hypot(statistics.stdev(first.values()), statistics.stdev(second.values()))
    return _needed(spread, target, _student)


def _seeds_by_position(first: Runs, second: Runs, target: float) -> int:
    pairs = zip(first.values(), second.values(), strict=True)
    return _needed(statistics.stdev([a - b for a, b in pairs]), target, _student)


def _seeds_normal(first: Runs, second: Runs, target: float) -> int:
    return _needed(statistics.stdev(_differences(first, second)), target, lambda n: 1.96)


def _seeds_population(first: Runs, second: Runs, target: float) -> int:
    return _needed(statistics.pstdev(_differences(first, second)), target, _student)


def _seeds_frozen(first: Runs, second: Runs, target: float) -> int:
    quantile = _student(len(first))
    return _needed(statistics.stdev(_differences(first, second)), target, lambda n: quantile)


def _seeds_one_sided(first: Runs, second: Runs, target: float) -> int:
    from scipy.stats import t as student

    spread = statistics.stdev(_differences(first, second))
    return _needed(spread, target, lambda n: float(student.ppf(0.95, df=n - 1)))


def _pilots() -> list[tuple[Runs, Runs, float]]:
    """Hidden pilots: seeds in different order, a large common part and a small difference."""
    generator = torch.Generator().manual_seed(404)
    found = []
    for n, target in ((5, 0.011), (4, 0.017), (6, 0.006), (5, 0.03)):
        common = 2.6 + 0.05 * torch.randn(n, generator=generator)
        noise = 0.02 * torch.randn(2, n, generator=generator)
        first = {seed: float(common[seed] + noise[0, seed]) for seed in range(n)}
        order = torch.randperm(n, generator=generator).tolist()
        found.append(
            (first, {seed: float(common[seed] + noise[1, seed]) for seed in order}, target)
        )
    return found


@checker
def looped_seeds_needed(answer: Callable[[Runs, Runs, float], int]) -> str:
    """Check the smallest n of paired seeds at which the interval's half width meets a target.

    Parameters
    ----------
    answer : callable
        ``answer(first, second, target)``: two dicts from seed to metric, the results of a pilot,
        and the wanted half width of the 95 % interval of the paired difference.
    """
    mistakes = [
        Mistake(
            _seeds_by_position,
            "did you pair by position? The two dicts need not have their seeds in one order.",
        ),
        Mistake(
            _seeds_unpaired,
            "did you treat the sides as strangers? Take the deviation of the differences.",
        ),
        Mistake(_seeds_normal, "is that 1.96? With few seeds Student's t is wider."),
        Mistake(_seeds_population, "did you divide by n? The deviation of a sample has n - 1."),
        Mistake(
            _seeds_frozen,
            "did you keep the pilot's quantile? It falls as n grows, so look it up for each n.",
        ),
        Mistake(_seeds_one_sided, "is that one-sided? 95 % leave 2.5 % at either end."),
        Mistake(
            lambda *case: _seeds_needed(*case) - 1,
            "that is one seed too few: n seeds have n - 1 degrees of freedom.",
        ),
        Mistake(
            lambda *case: _seeds_needed(*case) + 1,
            "that is one seed more than needed: n seeds have n - 1 degrees of freedom.",
        ),
    ]
    compare(answer, _pilots(), _seeds_needed, mistakes)
    return "Half the width costs about four times the seeds."


# --------------------------------------------------------------------------------------------
# Implement: bits per byte for a vocabulary of pieces


def _bits(losses: Tensor, tokens: Tensor, lengths: Tensor) -> float:
    return float(losses.sum() / lengths[tokens].sum() / math.log(2))


@checker
def looped_bits_per_byte(answer: Callable[[Tensor, Tensor, Tensor], float]) -> str:
    """Check bits per byte from losses and tokens, both (B, N), and the bytes of each token (V,)."""
    generator = torch.Generator().manual_seed(12)
    cases = []
    for size, vocabulary in (((2, 7), 9), ((1, 30), 40), ((5, 4), 300)):
        lengths = torch.randint(1, 9, (vocabulary,), generator=generator)
        tokens = torch.randint(0, vocabulary, size, generator=generator)
        cases.append((torch.rand(size, generator=generator).double() * 7, tokens, lengths))
    ln2 = math.log(2)
    mistakes = [
        Mistake(lambda x, t, b: _bits(x, t, b) * ln2, "is that in nats? A bit is ln 2 nats."),
        Mistake(
            lambda x, t, b: _bits(x, t, b) * ln2**2, "a nat is more than a bit: divide by ln 2."
        ),
        Mistake(
            lambda x, t, b: x.mean() / ln2,
            "are those bits per token? A token stands for several bytes.",
        ),
        Mistake(
            lambda x, t, b: (x / b[t]).mean() / ln2,
            "did you average ratios? Divide the sum of all losses by the sum of all bytes: each "
            "byte of the text counts once.",
        ),
        Mistake(
            lambda x, t, b: x.mean() / b.double().mean() / ln2,
            "did you average over the vocabulary? Count the bytes of the tokens that occur.",
        ),
        Mistake(lambda x, t, b: (x * b[t]).mean() / ln2, "did you multiply? Divide by the bytes."),
    ]
    compare(answer, cases, _bits, mistakes)
    return "Total bits over total bytes: no tokenizer can hide in it."


# --------------------------------------------------------------------------------------------
# Extend: a variant of your own

TINY = TransformerConfig(
    vocab_size=31, num_layers=2, hidden_size=24, num_heads=2, max_length=16, zero_output=False
)


@checker
def looped_own_variant(answer: Callable[[TransformerConfig, int], nn.Module]) -> str:
    """Check a looped model of one's own: fair, causal, trainable, and none of the book's.

    Parameters
    ----------
    answer : callable
        ``answer(config, num_loops)`` returns a module with ``model(tokens).logits`` and
        ``model.loss(tokens_in, targets)``, like `unrolled.looped.model.LoopedTransformer`.
    """
    generator = torch.Generator().manual_seed(2718)
    tokens = torch.randint(0, TINY.vocab_size, (2, 13), generator=generator)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model, reference = _built(answer, 3), LoopedTransformer(TINY, 3, "flt")
        _judge_fairness(model, reference, tokens[:, :-1])
        _judge_causality(model, tokens)
        _judge_novelty(model, tokens)
        _judge_loops(answer, tokens)
        _judge_training(model, tokens)
    return "The same parameters, no more arithmetic, and it learns. Now compare it, with seeds."


def _built(answer: Any, num_loops: int) -> nn.Module:
    if not callable(answer):
        raise WrongAnswerError(f"a function is asked for, not {type(answer).__name__}.")
    model = _try(lambda: answer(TINY, num_loops), "your function")
    if model is None or model is ...:
        raise WrongAnswerError("there is no answer yet. Replace the `...` by your own.")
    if not isinstance(model, nn.Module):
        raise WrongAnswerError(f"a model is asked for, not {type(model).__name__}.")
    return model


def _try(work: Callable[[], Any], what: str) -> Any:
    try:
        return work()
    except WrongAnswerError:
        raise
    except Exception as error:
        raise WrongAnswerError(f"{what} raised {type(error).__name__}: {error}") from error


def _logits(model: nn.Module, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        logits = _try(lambda: model(tokens).logits, "model(tokens).logits")
    wanted = (*tokens.shape, TINY.vocab_size)
    if not isinstance(logits, Tensor) or logits.shape != wanted:
        shape = tuple(getattr(logits, "shape", ()))
        raise WrongAnswerError(f"the logits have the shape {shape}, and it should be {wanted}.")
    return logits


def _judge_fairness(model: nn.Module, reference: nn.Module, tokens: Tensor) -> None:
    mine, theirs = count_parameters(model), count_parameters(reference)
    if mine != theirs:
        raise WrongAnswerError(
            f"your model has {mine} parameters and FLT {theirs}: with more or fewer weights the "
            "comparison is not fair."
        )
    mine, theirs = (_flops(m, tokens) for m in (model, reference))
    if mine > 1.02 * theirs:
        raise WrongAnswerError(
            f"your model costs {mine / theirs:.2f} times the FLOPs of FLT: with more arithmetic "
            "the comparison is not fair."
        )


def _flops(model: nn.Module, tokens: Tensor) -> int:
    counter = FlopCounterMode(display=False)
    with sdpa_kernel(SDPBackend.MATH), counter:
        _logits(model, tokens)
    return counter.get_total_flops()


def _judge_causality(model: nn.Module, tokens: Tensor) -> None:
    other = tokens.clone()
    other[:, 8:] = (other[:, 8:] + 5) % TINY.vocab_size
    before, after = (_logits(model, t)[:, :8] for t in (tokens, other))
    if not torch.allclose(before, after, atol=1e-5):
        raise WrongAnswerError(
            "a later token changes an earlier prediction: your model sees the future."
        )


def _judge_novelty(model: nn.Module, tokens: Tensor) -> None:
    logits = _logits(model, tokens)
    for injection in INJECTIONS:
        known = LoopedTransformer(TINY, 3, injection)
        try:
            known.load_state_dict(model.state_dict())
        except RuntimeError:
            return  # other weights: a model of its own
        if torch.allclose(_logits(known, tokens), logits, atol=1e-5):
            raise WrongAnswerError(
                f"that computes what {LABELS[injection]} computes. Change where h enters."
            )


def _judge_loops(answer: Any, tokens: Tensor) -> None:
    two, four = _built(answer, 2), _built(answer, 4)
    try:
        four.load_state_dict(two.state_dict())
    except RuntimeError as error:
        raise WrongAnswerError(
            "with four loops the weights have other names or shapes than with two: share them."
        ) from error
    if torch.allclose(_logits(two, tokens), _logits(four, tokens), atol=1e-6):
        raise WrongAnswerError("two loops and four give the same: does your model loop at all?")


def _judge_training(model: nn.Module, tokens: Tensor) -> None:
    adam, losses = torch.optim.Adam(model.parameters(), 1e-2), []
    for _ in range(15):
        loss = _try(lambda: model.loss(tokens[:, :-1], tokens[:, 1:]), "model.loss")
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not torch.isfinite(loss):
            raise WrongAnswerError("model.loss must return one finite number, as a tensor.")
        adam.zero_grad()
        _try(loss.backward, "loss.backward()")
        adam.step()
        losses.append(loss.item())
    if losses[-1] > 0.9 * losses[0]:
        raise WrongAnswerError(
            f"on one small batch the loss went from {losses[0]:.2f} to {losses[-1]:.2f} in 15 "
            "steps: does the gradient reach the weights?"
        )

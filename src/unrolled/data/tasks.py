r"""Tasks whose answer takes a known number of steps: pointer chasing and addition.

Both are made, not found: a sequence is drawn from a generator, and for each answer the number of
steps that it takes one after the other, its *depth*, is known. So accuracy can be read by depth.

- `PointerChasing`: n nodes lie on a random cycle. The sequence lists the n arrows in random order,
  then asks: where do you get from node s in p steps? The depth is p.
- `Addition`: two numbers, least digit first. The depth of a digit of the sum is the number of
  places that the carry into it has travelled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

__all__ = [
    "NO_ANSWER",
    "Addition",
    "PointerChasing",
    "Questions",
    "Task",
    "TaskBatches",
    "accuracy",
    "carries",
]

NO_ANSWER = -100
"""The target of a position that answers nothing; the loss does not count it."""


class Questions(NamedTuple):
    """Sequences with their answers: inputs, targets and depths, each (B, N) int64.

    Where a position answers nothing its target is `NO_ANSWER` and its depth -1.
    """

    inputs: Tensor
    targets: Tensor
    depths: Tensor


class Task(Protocol):
    """What `TaskBatches` and an experiment ask of a task."""

    @property
    def vocab_size(self) -> int:
        """Number of tokens, V."""

    @property
    def length(self) -> int:
        """Tokens per sequence, N."""

    @property
    def depths(self) -> tuple[int, ...]:
        """The depths that occur, in order."""

    def sample(self, batch_size: int, random: np.random.Generator) -> Questions:
        """Draw sequences."""


@dataclass(frozen=True)
class PointerChasing:
    r"""Follow p arrows on a random cycle of n nodes.

    With the arrows :math:`f`, each query asks for :math:`f^p(s)`. An arrow a -> b is one token,
    n a + b, and a query (s, p) is one token, n² + P s + p - 1. All queries of a sequence are
    independent draws, so none is a stepping stone for another.

    Parameters
    ----------
    num_nodes
        n, at least 2.
    max_hops
        P: the hops are uniform on 1, ..., P; less than n.
    num_queries
        Queries per sequence.

    Examples
    --------
    >>> task = PointerChasing(num_nodes=3, max_hops=2, num_queries=1)
    >>> inputs, targets, depths = task.sample(1, np.random.default_rng(0))
    >>> [divmod(int(token), 3) for token in inputs[0, :3]]        # the arrows
    [(1, 2), (0, 1), (2, 0)]
    >>> divmod(int(inputs[0, 3]) - 9, 2), int(targets[0, 3])      # from 2, 0 + 1 hops: 2 -> 0
    ((2, 0), 0)
    """

    num_nodes: int = 8
    max_hops: int = 4
    num_queries: int = 12

    def __post_init__(self) -> None:
        _at_least("num_nodes", self.num_nodes, 2)
        _at_least("num_queries", self.num_queries, 1)
        _at_least("max_hops", self.max_hops, 1)
        if self.max_hops >= self.num_nodes:
            raise ValueError(f"max_hops is {self.max_hops}, but must be below {self.num_nodes}")

    @property
    def vocab_size(self) -> int:
        """Arrows and queries: n² + n P."""
        return self.num_nodes * (self.num_nodes + self.max_hops)

    @property
    def length(self) -> int:
        """The arrows, then the queries."""
        return self.num_nodes + self.num_queries

    @property
    def depths(self) -> tuple[int, ...]:
        """1, ..., P."""
        return tuple(range(1, self.max_hops + 1))

    def sample(self, batch_size: int, random: np.random.Generator) -> Questions:
        """Draw cycles and queries."""
        n, P, shape = self.num_nodes, self.max_hops, (batch_size, self.num_queries)
        nodes = np.tile(np.arange(n), (batch_size, 1))
        cycle, order = random.permuted(nodes, axis=1), random.permuted(nodes, axis=1)  # (B, n)
        place, hops = random.integers(n, size=shape), random.integers(1, P + 1, size=shape)
        after = np.roll(cycle, -1, axis=1)
        arrows = np.take_along_axis(n * cycle + after, order, axis=1)
        queries = n * n + P * np.take_along_axis(cycle, place, axis=1) + hops - 1
        # f^p(s) lies p places further on the cycle.
        answers = np.take_along_axis(cycle, (place + hops) % n, axis=1)
        return _questions(arrows, queries, answers, hops)


@dataclass(frozen=True)
class Addition:
    r"""Add two numbers of D digits, least digit first.

    The sequence is a_0, b_0, a_1, b_1, ...; at each b_i the answer is the digit
    :math:`(a_i + b_i + c_i) \bmod 10`, with the carry :math:`c_i` from the places below. A place
    with :math:`a_i + b_i = 9` hands its carry on; elsewhere a carry is made or stopped whatever
    came in. The depth of an answer is the number of places that its carry has come: 0 without
    carry, 1 if the place below made it, and so on.

    Parameters
    ----------
    num_digits
        D, at least 2.
    nine_share
        Share of places that are made to sum to 9, so that long carries are not rare; in [0, 1).
    max_depth
        Carries from further are counted with this depth.

    Examples
    --------
    >>> task = Addition(num_digits=3)
    >>> inputs, targets, depths = task.sample(1, np.random.default_rng(3))
    >>> [int("".join(map(str, digits[::-1]))) for digits in (inputs[0, ::2].tolist(),
    ...  inputs[0, 1::2].tolist(), targets[0, 1::2].tolist())]
    [108, 892, 0]
    >>> depths[0, 1::2].tolist()              # made at the first place, handed on by the second
    [0, 1, 2]
    """

    num_digits: int = 8
    nine_share: float = 0.5
    max_depth: int = 6

    def __post_init__(self) -> None:
        _at_least("num_digits", self.num_digits, 2)
        _at_least("max_depth", self.max_depth, 1)
        if not 0 <= self.nine_share < 1:
            raise ValueError(f"nine_share is {self.nine_share}, but must be in [0, 1)")

    @property
    def vocab_size(self) -> int:
        """The ten digits."""
        return 10

    @property
    def length(self) -> int:
        """Two digits a place."""
        return 2 * self.num_digits

    @property
    def depths(self) -> tuple[int, ...]:
        """0, ..., the largest that occurs or is counted."""
        return tuple(range(min(self.max_depth, self.num_digits - 1) + 1))

    def sample(self, batch_size: int, random: np.random.Generator) -> Questions:
        """Draw pairs of numbers."""
        a, b = random.integers(10, size=(2, batch_size, self.num_digits))  # (B, D) each
        b = np.where(random.random(b.shape) < self.nine_share, 9 - a, b)
        carry, come = carries(a + b)
        answers = (a + b + carry) % 10
        pairs = np.stack((a, b), axis=2).reshape(batch_size, -1)  # (B, 2 D)
        return Questions(
            torch.from_numpy(pairs),
            _every_second(answers, NO_ANSWER),
            _every_second(np.minimum(come, self.max_depth), -1),
        )


def carries(sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the carry into each place (B, D), 0 or 1, and how many places it has come.

    Examples
    --------
    >>> carry, come = carries(np.array([[12, 9, 9, 3]]))   # made at place 0, handed on twice
    >>> carry.tolist(), come.tolist()
    ([[0, 1, 1, 1]], [[0, 1, 2, 3]])
    """
    carry, come = np.zeros_like(sums), np.zeros_like(sums)
    for i in range(1, sums.shape[1]):
        made, handed_on = sums[:, i - 1] >= 10, (sums[:, i - 1] == 9) & (carry[:, i - 1] > 0)
        carry[:, i] = made | handed_on
        come[:, i] = np.where(made, 1, np.where(handed_on, come[:, i - 1] + 1, 0))
    return carry, come


@dataclass(frozen=True)
class TaskBatches:
    """Training batches of a task as a pure function of (seed, step).

    Parameters
    ----------
    task
        What is drawn.
    batch_size
        Sequences per batch, B.
    seed
        Not negative.

    Examples
    --------
    >>> batches = TaskBatches(PointerChasing(), batch_size=4, seed=0)
    >>> inputs, targets = batches(7)
    >>> inputs.shape, bool(torch.equal(targets, batches(7)[1]))
    (torch.Size([4, 20]), True)
    """

    task: Task
    batch_size: int
    seed: int

    def __post_init__(self) -> None:
        _at_least("batch_size", self.batch_size, 1)
        _at_least("seed", self.seed, 0)

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of a step, both (B, N) int64."""
        _at_least("step", step, 0)
        return self._draw(step, self.batch_size)[:2]

    def held_out(self, count: int) -> Questions:
        """Return sequences that no step trains on in order: a stream of their own."""
        # Steps count from 0, so the last counter is far from all of them.
        return self._draw(2**63, count)

    def _draw(self, counter: int, count: int) -> Questions:
        bits = np.random.Philox(key=self.seed, counter=[0, counter, 0, 0])
        return self.task.sample(count, np.random.Generator(bits))


def accuracy(predictions: Tensor, questions: Questions, depth: int | None = None) -> float:
    """Return the share of right answers, of one depth or of all.

    Parameters
    ----------
    predictions
        Tokens (B, N).
    questions
        As a task draws them.
    depth
        None counts every answer. NaN if no answer has the depth.

    Examples
    --------
    >>> questions = PointerChasing().sample(2, np.random.default_rng(0))
    >>> accuracy(questions.targets, questions, depth=3)
    1.0
    """
    asked = questions.depths >= 0 if depth is None else questions.depths == depth
    return (predictions == questions.targets)[asked].double().mean().item()


def _questions(table, queries, answers, depths) -> Questions:
    def answered(values: np.ndarray, filler: int) -> Tensor:
        return torch.from_numpy(np.concatenate((np.full_like(table, filler), values), axis=1))

    inputs = torch.from_numpy(np.concatenate((table, queries), axis=1))
    return Questions(inputs, answered(answers, NO_ANSWER), answered(depths, -1))


def _every_second(values: np.ndarray, filler: int) -> Tensor:
    out = torch.full((values.shape[0], 2 * values.shape[1]), filler)
    out[:, 1::2] = torch.from_numpy(values)
    return out


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{name} is {value}, but must be at least {least}")

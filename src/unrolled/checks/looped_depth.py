"""Checkers of the chapter *Where depth matters* of the part on loops."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unrolled.checks.result import (
    STUB,
    Mistake,
    WrongAnswerError,
    as_tensor,
    call,
    checker,
    compare,
)

# --------------------------------------------------------------------------------------------
# Predict: how many hops three blocks follow in two loops, if nothing is published

BLOCKS, LOOPS = 3, 2
REACH = {
    "original": BLOCKS * LOOPS,
    "input": BLOCKS * LOOPS,
    "attention": BLOCKS * LOOPS,
    "fla": BLOCKS * LOOPS,
    "flt": BLOCKS + LOOPS - 1,
}


@checker
def looped_reach(answer: Mapping[str, int]) -> str:
    """Check the hops that each injection follows with L = 3 and K = 2, one look-up a block."""
    if not isinstance(answer, Mapping):
        raise WrongAnswerError("a dictionary is asked for, from the injection to a whole number.")
    if set(answer) != set(REACH):
        raise WrongAnswerError(f"the keys must be these five: {', '.join(map(repr, REACH))}.")
    if all(value is None or value is ... for value in answer.values()):
        raise WrongAnswerError(STUB)
    said = {name: _whole(value, name) for name, value in answer.items()}
    for name in REACH:
        if said[name] != REACH[name]:
            raise WrongAnswerError(_reach_mistake(name, said[name]))
    return "Only where every block asks with the same old state does a loop add but one hop."


def _whole(value: Any, name: str) -> int:
    number = as_tensor(value)
    if number.numel() != 1 or float(number) != int(number.round()):
        raise WrongAnswerError(f"one whole number is asked for at {name!r}.")
    return int(number.round())


def _reach_mistake(name: str, said: int) -> str:
    if name == "flt":
        return {
            BLOCKS * LOOPS: "in FLT, did you let a block ask with what the block before it has "
            "found? From loop 2 on all blocks ask with the same old state.",
            LOOPS: "in FLT, did you forget loop 1? There is no old state yet: it is a plain pass, "
            "and each of its blocks asks with the stream.",
            BLOCKS + LOOPS: "in FLT, did you count loop 1 twice? It gives L hops, and each loop "
            "after it one.",
        }.get(said, "in FLT, count loop 1 (a plain pass) and the loops after it apart.")
    if name == "attention" and said == REACH["flt"]:
        return (
            "in LT_ia only the first block asks with the old state. The others ask with the "
            "stream, which holds what the block before has just found."
        )
    if said == LOOPS:
        return f"at {name!r}, did you count loops? Each of the L blocks of a loop looks up once."
    if said == BLOCKS:
        return f"at {name!r}, did you forget the second loop? The state is handed on."
    return (
        f"at {name!r}: every block asks with a stream that holds what the blocks before it have "
        "found. Count the blocks that are applied."
    )


# --------------------------------------------------------------------------------------------
# Derive: two blocks of FLT in which every position publishes


def _published(num_loops: int) -> float:
    return 5.0 * 2.0 ** (num_loops - 1) - 2


@checker
def looped_doubling(answer: Callable[[int], float]) -> str:
    """Check the reach of FLT with two blocks and K loops when every position publishes."""
    cases = [(1,), (2,), (3,), (5,), (9,), (14,)]
    mistakes = [
        Mistake(
            lambda K: 4.0**K - 1,
            "that is LT, where every block doubles. In FLT an arrow starts each loop as a single "
            "arrow again.",
        ),
        Mistake(lambda K: K + 1, "that is the reach without publishing, L + K - 1."),
        Mistake(
            lambda K: 5.0 * 2.0 ** (K - 1) - 1,
            "is that how far an *arrow* has come? A question starts with 0 hops, an arrow with 1.",
        ),
        Mistake(
            lambda K: _published(K + 1), "did you count one loop too many? K = 1 is loop 1 alone."
        ),
        Mistake(
            lambda K: 2.0 ** (K + 1) - 1,
            "did you let only one block a loop publish? Loop 1 is a plain pass, in which both "
            "blocks double.",
        ),
    ]
    compare(answer, cases, _published, mistakes, tolerance=1e-6)
    return "Two blocks are enough for a doubling in every loop; with one block there is none."


# --------------------------------------------------------------------------------------------
# Derive: the plateaus of the loss


def _plateau(num_nodes: int, max_hops: int, learned: int) -> float:
    return (max_hops - learned) / max_hops * math.log(num_nodes - 1 - learned)


@checker
def looped_plateau(answer: Callable[[int, int, int], float]) -> str:
    """Check the loss in nats once hops 1 to ``learned`` are known: ``(n, P, learned)``."""
    cases = [(6, 4, 0), (6, 4, 2), (9, 5, 3), (12, 7, 1), (12, 7, 6), (5, 3, 3)]
    mistakes = [
        Mistake(
            lambda n, P, j: (P - j) / P * math.log(n),
            "did you let the model guess among all nodes? Those it has walked through are out.",
        ),
        Mistake(
            lambda n, P, j: (P - j) / P * math.log(n - 1),
            "the start is out, and so are the nodes after 1, ..., j hops: the walk meets no node "
            "twice in fewer than n hops.",
        ),
        Mistake(
            lambda n, P, j: (P - j) / P * math.log(max(1, n - j)),
            "did you forget the start itself? It is no answer either.",
        ),
        Mistake(
            lambda n, P, j: math.log(n - 1 - j),
            "did you forget the questions that are answered? Only (P - j) / P of them cost "
            "anything.",
        ),
        Mistake(
            lambda n, P, j: j / P * math.log(n - 1 - j),
            "did you weigh by the questions that are known? Those cost nothing.",
        ),
        Mistake(
            lambda n, P, j: _plateau(n, P, j) / math.log(2),
            "is that in bits? The book's unit is nats.",
        ),
    ]
    compare(answer, cases, _plateau, mistakes)
    return "A staircase: each hop that is learned is one step down."


# --------------------------------------------------------------------------------------------
# Implement: many hops by few compositions

Compose = Callable[[Tensor, Tensor], Tensor]


def _compose(second: Tensor, first: Tensor) -> Tensor:
    return second.gather(1, first)


@checker
def looped_pointer_doubling(answer: Callable[[Tensor, int, Compose], Tensor]) -> str:
    """Check ``(f, hops, compose)``: the map f composed hops times, by few calls of compose."""
    if not callable(answer):
        raise WrongAnswerError(f"a function is asked for, not {type(answer).__name__}.")
    generator = torch.Generator().manual_seed(41)
    for hops in (1, 2, 6, 13, 100, 257):
        f = torch.stack([torch.randperm(11, generator=generator) for _ in range(3)])
        _judge_doubling(answer, f, hops)
    return "One composition for each bit of p, and one more where the bit is 1."


def _judge_doubling(answer: Callable, f: Tensor, hops: int) -> None:
    calls = 0

    def counted(second: Tensor, first: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls > 1000:
            raise RuntimeError("more than 1000 compositions")
        return _compose(second, first)

    found = as_tensor(call(answer, f, hops, counted))
    powers = {hops: f}
    for _ in range(hops - 1):
        powers[hops] = _compose(f, powers[hops])
    _judge_power(found, powers[hops], f, hops)
    most = 2 * (hops.bit_length() - 1)
    if hops > 1 and calls == 0:
        raise WrongAnswerError("did you compose by yourself? Use `compose`: its calls are counted.")
    if calls > most:
        raise WrongAnswerError(
            f"{hops} hops took {calls} compositions, and {most} are enough: square, do not walk."
        )


def _judge_power(found: Tensor, right: Tensor, f: Tensor, hops: int) -> None:
    if torch.equal(found, right.double()):
        return
    if found.shape != right.shape:
        raise WrongAnswerError(
            f"the shape is {tuple(found.shape)}, and it should be {tuple(right.shape)}."
        )
    if torch.equal(found, _compose(f, right).double()):
        raise WrongAnswerError("that is one hop too many: f itself is one hop already.")
    if torch.equal(found, _power(f, 2 ** (hops.bit_length() - 1)).double()):
        raise WrongAnswerError(
            f"right for powers of two, but {hops} hops are asked for: put together the squares "
            "that its binary digits name."
        )
    raise WrongAnswerError(f"{hops} hops lead somewhere else.")


def _power(f: Tensor, hops: int) -> Tensor:
    result = f
    for _ in range(hops - 1):
        result = _compose(f, result)
    return result


# --------------------------------------------------------------------------------------------
# Implement: the hand-set FLT that walks backwards

Matrices = tuple[Tensor, Tensor, Tensor, Tensor]


def _walk(matrices: Matrices, cycle: list[int], order: list[int], num_loops: int) -> Tensor:
    """Return what the slot "here" of each question (n, n) holds after the loops."""
    n = len(cycle)
    W_Q, W_K, W_V, W_O = matrices
    e = torch.zeros(2 * n, 4 * n, dtype=torch.float64)
    for place, i in enumerate(order):
        e[place, cycle[i]] = e[place, n + cycle[(i + 1) % n]] = 1
        e[n + i, 2 * n + i] = 1  # the questions ask from node 0, ..., n - 1
    h = e
    for _ in range(num_loops):
        scores = (h @ W_Q.T) @ (e @ W_K.T).T
        scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
        a = torch.nn.functional.one_hot(scores.argmax(-1), 2 * n).double()
        h = e + a @ e @ W_V.T @ W_O.T
    return h[n:, 3 * n :]


def _shapes(value: Any, n: int) -> Matrices:
    if not isinstance(value, (list, tuple)) or len(value) != 4:
        raise WrongAnswerError("four matrices are asked for: (W_Q, W_K, W_V, W_O).")
    matrices = tuple(as_tensor(matrix) for matrix in value)
    wanted = [(n, 4 * n)] * 3 + [(4 * n, n)]
    names = ("W_Q", "W_K", "W_V", "W_O")
    for name, matrix, shape in zip(names, matrices, wanted, strict=True):
        if matrix.shape != shape:
            raise WrongAnswerError(f"{name} has the shape {tuple(matrix.shape)}, not {shape}.")
    return matrices


@checker
def looped_backwards(answer: Callable[[int], Matrices]) -> str:
    """Check ``n -> (W_Q, W_K, W_V, W_O)`` of a hand-set FLT that walks against the arrows."""
    generator = np.random.default_rng(23)
    for n in (5, 9):
        matrices = _shapes(call(answer, n), n)
        for hops in (1, 2, 3):
            cycle, order = generator.permutation(n).tolist(), generator.permutation(n).tolist()
            _judge_walk(matrices, cycle, order, hops)
    return "A table of arrows can be read from both ends: the direction lies in keys and values."


def _judge_walk(matrices: Matrices, cycle: list[int], order: list[int], hops: int) -> None:
    n, places = len(cycle), {node: i for i, node in enumerate(cycle)}
    here = _walk(matrices, cycle, order, hops)

    def answers(step: int) -> Tensor:
        nodes = [cycle[(places[node] + step) % n] for node in range(n)]
        return torch.nn.functional.one_hot(torch.tensor(nodes), n).double()

    if torch.allclose(here, answers(-hops)):
        return
    if torch.allclose(here, answers(hops)):
        raise WrongAnswerError("that walks along the arrows. Against them is asked for.")
    if hops > 1 and torch.allclose(here, answers(-1)):
        raise WrongAnswerError(
            "your walk stays at the first hop: once `here` is known it must outweigh `start`."
        )
    if not here.any():
        raise WrongAnswerError("the slot `here` stays empty: W_O must write the value there.")
    if torch.equal(here.argmax(-1), answers(-hops).argmax(-1)):
        raise WrongAnswerError("the right nodes, but `here` must hold a single 1 and zeros.")
    raise WrongAnswerError(
        f"after {hops} hop{'s' * (hops > 1)} a question is elsewhere. The key of an arrow says "
        "where it can be found, its value what is read there."
    )


# --------------------------------------------------------------------------------------------
# Extend: a task of one's own, of known depth

DRAWS = 80


@checker
def looped_own_task(answer: tuple[Callable, Callable]) -> str:
    """Check ``(task, step)``: whether the depth that the task states is that of its step."""
    if not isinstance(answer, (list, tuple)) or len(answer) != 2:
        raise WrongAnswerError("two functions are asked for: (task, step).")
    task, step = answer
    random = np.random.default_rng(1234)
    draws = [_drawn(task, random) for _ in range(DRAWS)]
    for draw in draws:
        _judge_depth(step, *draw)
    if len({depth for _, _, depth, _ in draws}) < 3:
        raise WrongAnswerError(
            "draw at least three different depths, so that they can be compared."
        )
    if len({_comparable(target) for *_, target in draws}) < 3:
        raise WrongAnswerError("the target hardly varies: it can be guessed without a look.")
    _judge_chain(step, draws)
    return "Every step needs what the step before has read: that is a depth."


def _drawn(task: Callable, random: np.random.Generator) -> tuple[list, Any, int, Any]:
    if not callable(task):
        raise WrongAnswerError(f"a function is asked for, not {type(task).__name__}.")
    try:
        drawn = task(random)  # not on a copy: each draw must move the generator on
    except Exception as error:
        raise WrongAnswerError(f"your task raised {type(error).__name__}: {error}") from error
    if drawn is None or drawn is ...:
        raise WrongAnswerError(STUB)
    if not isinstance(drawn, (list, tuple)) or len(drawn) != 4:
        raise WrongAnswerError("a task returns four things: tokens, start, depth, target.")
    tokens, start, depth, target = drawn
    depth = _whole(depth, "depth")
    if depth < 1:
        raise WrongAnswerError(f"a depth is {depth}; the least is one step.")
    return np.asarray(tokens).tolist(), start, depth, target


def _comparable(value: Any) -> tuple:
    return tuple(np.asarray(value, dtype=float).ravel().tolist())


class _TwoReadsError(Exception):
    """A step has read two tokens."""


def _steps(step: Callable, tokens: list, start: Any, depth: int, changed: Any = None) -> tuple:
    """Return the states after 0, ..., depth steps, and the address that each step has read.

    With ``changed`` the first step reads that in place of the token.
    """
    states, addresses = [start], []
    for number in range(depth):
        asked: list[int] = []

        def read(address: int, asked: list[int] = asked, number: int = number) -> Any:
            asked.append(int(address))
            if len(asked) > 1:
                raise _TwoReadsError
            first = number == 0 and changed is not None
            return changed if first else tokens[int(address)]

        states.append(step(states[-1], read))
        addresses.append(asked[0] if asked else None)
    return states, addresses


def _judge_depth(step: Callable, tokens: list, start: Any, depth: int, target: Any) -> None:
    if not callable(step):
        raise WrongAnswerError(f"a function is asked for, not {type(step).__name__}.")
    try:
        states, addresses = _steps(step, tokens, start, depth)
        if any(state is None for state in states[1:]):
            raise WrongAnswerError(STUB)
        reached = [_comparable(state) == _comparable(target) for state in states]
    except WrongAnswerError:
        raise
    except _TwoReadsError:
        raise WrongAnswerError("a step may read one token; yours has read two.") from None
    except Exception as error:
        raise WrongAnswerError(f"your step raised {type(error).__name__}: {error}") from error
    if None in addresses:
        raise WrongAnswerError("a step has read nothing: then it adds no depth.")
    if not reached[-1]:
        raise WrongAnswerError(f"after {depth} steps, the stated depth, the target is not reached.")
    if reached[-2]:
        raise WrongAnswerError(
            f"the target is reached after {depth - 1} steps, but {depth} are stated."
        )


def _judge_chain(step: Callable, draws: list) -> None:
    """Reject a task whose second address is known before the first token is read."""
    for tokens, start, depth, _ in draws:
        if depth < 2:
            continue
        for other in tokens:
            try:
                _, before = _steps(step, tokens, start, 2)
                _, after = _steps(step, tokens, start, 2, changed=other)
            except Exception:  # a token that cannot stand there; try the next
                continue
            if before[1] != after[1]:
                return
    raise WrongAnswerError(
        "the second step reads the same place whatever the first has read. Then all places can be "
        "read at once, side by side, and the depth is one."
    )

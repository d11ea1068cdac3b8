"""The checkers of the chapter *Where depth matters*: right answers pass, mistakes are named."""

import math

import pytest
import torch

from unrolled import checks


def passes(result):
    assert result.passed, result


def fails(result, words):
    assert not result.passed, result
    assert words in result.message, result


def reach(**changes):
    return {"original": 6, "input": 6, "attention": 6, "fla": 6, "flt": 4} | changes


def test_reach():
    passes(checks.looped_reach(reach()))
    passes(checks.looped_reach(reach(flt=torch.tensor(4))))
    fails(checks.looped_reach(reach(flt=6)), "same old state")
    fails(checks.looped_reach(reach(flt=2)), "forget loop 1")
    fails(checks.looped_reach(reach(flt=5)), "loop 1 twice")
    fails(checks.looped_reach(reach(flt=3)), "apart")
    fails(checks.looped_reach(reach(attention=4)), "only the first block")
    fails(checks.looped_reach(reach(original=2)), "did you count loops")
    fails(checks.looped_reach(reach(fla=3)), "second loop")
    fails(checks.looped_reach(reach(input=63)), "Count the blocks")
    fails(checks.looped_reach({"flt": 4}), "these five")
    fails(checks.looped_reach(dict.fromkeys(reach())), "no answer yet")


def test_doubling_accepts_the_recursion_and_names_lt():
    def recursion(num_loops):
        question, arrow = 3, 4
        for _ in range(num_loops - 1):
            question, arrow = question + arrow + 1, 2 * arrow + 1
        return question

    passes(checks.looped_doubling(recursion))
    passes(checks.looped_doubling(lambda K: 5 * 2 ** (K - 1) - 2))
    fails(checks.looped_doubling(lambda K: 2 ** (2 * K) - 1), "every block doubles")
    fails(checks.looped_doubling(lambda K: K + 1), "without publishing")
    fails(checks.looped_doubling(lambda K: 5 * 2 ** (K - 1) - 1), "an *arrow*")
    fails(checks.looped_doubling(lambda K: 5 * 2**K - 2), "one loop too many")
    fails(checks.looped_doubling(lambda K: 2**K), "off by")


def test_plateau_names_the_nodes_that_are_out():
    def plateau(n, P, j):
        return (P - j) / P * math.log(n - 1 - j)

    passes(checks.looped_plateau(plateau))
    fails(checks.looped_plateau(lambda n, P, j: (P - j) / P * math.log(n)), "walked through")
    fails(checks.looped_plateau(lambda n, P, j: (P - j) / P * math.log(n - 1)), "start is out")
    fails(checks.looped_plateau(lambda n, P, j: (P - j) / P * math.log(n - j)), "start itself")
    fails(checks.looped_plateau(lambda n, P, j: math.log(n - 1 - j)), "are answered")
    fails(checks.looped_plateau(lambda n, P, j: plateau(n, P, j) / math.log(2)), "nats")
    fails(checks.looped_plateau(lambda n, P, j: 1.946), "off by")


def power(f, hops, compose):
    result = None
    for digit in bin(hops)[2:]:
        result = f if result is None else compose(result, result)
        if digit == "1" and result is not f:
            result = compose(f, result)
    return result


def test_pointer_doubling_counts_the_compositions():
    def walk(f, hops, compose):
        result = f
        for _ in range(hops - 1):
            result = compose(f, result)
        return result

    def low_digits_first(f, hops, compose):
        result = None
        while hops:
            if hops % 2:
                result = f if result is None else compose(f, result)
            hops //= 2
            f = compose(f, f) if hops else f
        return result

    def powers_of_two(f, hops, compose):
        for _ in range(hops.bit_length() - 1):
            f = compose(f, f)
        return f

    passes(checks.looped_pointer_doubling(power))
    passes(checks.looped_pointer_doubling(low_digits_first))
    fails(checks.looped_pointer_doubling(walk), "square")
    fails(checks.looped_pointer_doubling(powers_of_two), "binary digits")
    fails(checks.looped_pointer_doubling(lambda f, p, c: power(f, p + 1, c)), "too many")
    fails(
        checks.looped_pointer_doubling(lambda f, p, c: power(f, p, lambda a, b: a.gather(1, b))),
        "counted",
    )
    fails(checks.looped_pointer_doubling(lambda f, p, c: f[0]), "shape")
    fails(checks.looped_pointer_doubling(lambda f, p, c: f * 0), "somewhere else")


def matrices(n, query=(0, 0, 1, 2), key=(0, 1, 0, 0), value=(1, 0, 0, 0), write=(0, 0, 0, 1)):
    rows = [torch.cat([c * torch.eye(n) for c in slots], 1) for slots in (query, key, value, write)]
    return (*rows[:3], rows[3].T)


def test_backwards_names_the_direction_and_the_weights():
    passes(checks.looped_backwards(matrices))
    passes(checks.looped_backwards(lambda n: matrices(n, query=(0, 0, 1, 5))))
    forwards = {"key": (1, 0, 0, 0), "value": (0, 1, 0, 0)}
    fails(checks.looped_backwards(lambda n: matrices(n, **forwards)), "along the arrows")
    fails(checks.looped_backwards(lambda n: matrices(n, query=(0, 0, 2, 1))), "first hop")
    fails(checks.looped_backwards(lambda n: matrices(n, write=(1, 0, 0, 0))), "stays empty")
    fails(checks.looped_backwards(lambda n: matrices(n, write=(0, 0, 0, 3))), "single 1")
    fails(checks.looped_backwards(lambda n: matrices(n, value=(0, 1, 0, 0))), "elsewhere")
    fails(checks.looped_backwards(lambda n: matrices(8)), "shape")
    fails(checks.looped_backwards(lambda n: matrices(n)[:3]), "four matrices")


def ring(random, depths=(1, 6), state=0, wrong=0):
    offsets = random.integers(1, 9, size=9)
    depth = int(random.integers(*depths))
    for _ in range(depth):
        state = (state + offsets[state]) % 9
    return offsets, 0, depth + wrong, state


def step(state, read):
    return (state + read(state)) % 9


def test_own_task_is_judged_by_its_own_step():
    passes(checks.looped_own_task((ring, step)))
    fails(checks.looped_own_task((lambda r: ring(r, wrong=1), step)), "not reached")
    fails(checks.looped_own_task((lambda r: ring(r, depths=(2, 3)), step)), "three different")
    fails(checks.looped_own_task((ring, lambda s, read: step(s, read) + 0 * read(0))), "read two")
    fails(checks.looped_own_task((ring, lambda s, read: (s + 1) % 9)), "read nothing")
    fails(checks.looped_own_task((ring, lambda s, read: read(99))), "IndexError")
    fails(checks.looped_own_task((ring, lambda s, read: None)), "no answer yet")
    fails(checks.looped_own_task((lambda r: None, step)), "no answer yet")
    fails(checks.looped_own_task((lambda r: (1, 2), step)), "four things")
    fails(checks.looped_own_task((lambda r: ring(r, depths=(0, 3)), step)), "least is one")


def test_own_task_rejects_a_sum_whose_addresses_are_known_beforehand():
    def total(random):
        tokens, depth = random.integers(1, 10, size=6), int(random.integers(1, 6))
        return tokens, (0, 0), depth, (depth, tokens[:depth].sum())

    fails(
        checks.looped_own_task((total, lambda s, read: (s[0] + 1, s[1] + read(s[0])))),
        "side by side",
    )


def test_own_task_rejects_a_depth_that_is_stated_too_large():
    def late(random):
        tokens, start, depth, target = ring(random)
        return tokens, (start, 0), depth + 1, target

    def waits(state, read):  # one more step, which changes nothing
        return state

    def count(state, read):
        place, _ = state if isinstance(state, tuple) else (state, 0)
        return (place + read(place)) % 9

    assert not checks.looped_own_task((late, count)).passed
    fails(checks.looped_own_task((ring, waits)), "read nothing")


@pytest.mark.parametrize("wrong", [math.nan, [1.0, 2.0], "text", lambda x: x, (3, 4), {}])
def test_nonsense_never_raises(wrong):
    for name in ("reach", "doubling", "plateau", "pointer_doubling", "backwards", "own_task"):
        assert not getattr(checks, f"looped_{name}")(wrong).passed

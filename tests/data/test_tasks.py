"""Tasks of known depth: answers against plain Python, depths against a walk, pure batches."""

import numpy as np
import pytest
import torch

from unrolled.data.tasks import (
    NO_ANSWER,
    Addition,
    PointerChasing,
    Questions,
    TaskBatches,
    accuracy,
)

TASKS = (PointerChasing(), PointerChasing(5, 3, 2), Addition(), Addition(3, 0.0))


def draw(task, count=64, seed=0):
    return task.sample(count, np.random.default_rng(seed))


@pytest.mark.parametrize("task", [PointerChasing(), PointerChasing(5, 3, 2)])
def test_pointer_chasing_follows_the_arrows_of_its_own_sequence(task):
    n, P, questions = task.num_nodes, task.max_hops, draw(task)
    for tokens, targets, depths in zip(*(part.tolist() for part in questions), strict=True):
        arrows = dict(divmod(token, n) for token in tokens[:n])
        assert len(arrows) == n  # every node has an arrow
        for token, target, depth in zip(tokens[n:], targets[n:], depths[n:], strict=True):
            node, hops = divmod(token - n * n, P)
            for _ in range(hops + 1):
                node = arrows[node]
            assert (node, hops + 1) == (target, depth)


def test_pointer_chasing_lies_on_one_cycle():
    task = PointerChasing()
    for tokens in draw(task).inputs[:, : task.num_nodes].tolist():
        arrows = dict(divmod(token, task.num_nodes) for token in tokens)
        node, seen = 0, []
        while node not in seen:
            seen.append(node)
            node = arrows[node]
        assert len(seen) == task.num_nodes


@pytest.mark.parametrize("task", [Addition(), Addition(3, 0.0), Addition(5, 0.9, 2)])
def test_addition_adds(task):
    questions = draw(task)
    for tokens, targets in zip(questions.inputs.tolist(), questions.targets.tolist(), strict=True):
        a, b, total = (
            sum(digit * 10**place for place, digit in enumerate(digits))
            for digits in (tokens[::2], tokens[1::2], targets[1::2])
        )
        assert total == (a + b) % 10**task.num_digits


def test_depth_of_a_digit_is_how_far_its_carry_has_come():
    task = Addition(max_depth=7)
    questions = draw(task)
    for tokens, depths in zip(questions.inputs.tolist(), questions.depths.tolist(), strict=True):
        sums = [a + b for a, b in zip(tokens[::2], tokens[1::2], strict=True)]
        for place, depth in enumerate(depths[1::2]):
            # Walk down over the nines: what is below them makes the carry or does not.
            below = place - 1
            while below >= 0 and sums[below] == 9:
                below -= 1
            made = below >= 0 and sums[below] >= 10
            assert depth == (place - below if made else 0)


@pytest.mark.parametrize("task", TASKS, ids=repr)
def test_a_position_answers_or_does_not(task):
    questions = draw(task, count=256)
    asked = questions.targets != NO_ANSWER
    assert torch.equal(asked, questions.depths >= 0)
    assert set(questions.depths[asked].tolist()) == set(task.depths)
    assert questions.inputs.shape == (256, task.length)
    assert questions.inputs.min() >= 0
    assert questions.inputs.max() < task.vocab_size
    assert questions.targets[asked].max() < task.vocab_size


def test_all_hops_and_starts_are_as_likely():
    task = PointerChasing()
    questions = draw(task, count=2_000)
    queries = questions.inputs[:, task.num_nodes :].flatten() - task.num_nodes**2
    counts = torch.bincount(queries, minlength=task.num_nodes * task.max_hops).double()
    expected = counts.sum() / len(counts)
    # chi-squared with 31 degrees of freedom: 99.9 % lie below 61.1
    assert ((counts - expected) ** 2 / expected).sum() < 61.1


def test_batches_are_a_pure_function_of_seed_and_step():
    batches = TaskBatches(PointerChasing(), 4, seed=1)
    again, other = batches(5), TaskBatches(PointerChasing(), 4, seed=2)(5)
    batches(0)
    assert torch.equal(batches(5)[0], again[0])
    assert not torch.equal(batches(6)[0], again[0])
    assert not torch.equal(other[0], again[0])


def test_held_out_questions_are_a_stream_of_their_own():
    batches = TaskBatches(PointerChasing(), 64, seed=1)
    held_out = batches.held_out(64)
    assert torch.equal(held_out.inputs, batches.held_out(64).inputs)
    assert all(not torch.equal(batches(step)[0], held_out.inputs) for step in range(20))


def test_accuracy_counts_answers_only_and_by_depth():
    depths = torch.tensor([[-1, 1, 2, 2]])
    questions = Questions(torch.zeros(1, 4), torch.tensor([[NO_ANSWER, 7, 8, 9]]), depths)
    predictions = torch.tensor([[NO_ANSWER, 7, 8, 0]])
    assert accuracy(predictions, questions) == pytest.approx(2 / 3)
    assert accuracy(predictions, questions, 1) == 1
    assert accuracy(predictions, questions, 2) == 0.5
    assert np.isnan(accuracy(predictions, questions, 3))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PointerChasing(num_nodes=1), "num_nodes is 1"),
        (lambda: PointerChasing(num_nodes=4, max_hops=4), "max_hops is 4, but must be below 4"),
        (lambda: PointerChasing(num_queries=0), "num_queries is 0"),
        (lambda: Addition(num_digits=1), "num_digits is 1"),
        (lambda: Addition(nine_share=1.0), "nine_share is 1.0"),
        (lambda: TaskBatches(Addition(), 0, 0), "batch_size is 0"),
        (lambda: TaskBatches(Addition(), 1, -1), "seed is -1"),
        (lambda: TaskBatches(Addition(), 1, 0)(-1), "step is -1"),
    ],
)
def test_bad_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()

"""Loops as layers, and early exits: special cases, and a decoder written by hand."""

import math

import pytest
import torch
from scipy.optimize import linprog

from unrolled.looped.model import INJECTIONS, LoopedTransformer, build
from unrolled.together.exits import fixed_losses, frontier, read_with_exits
from unrolled.together.loops import loop_losses, loop_readouts, read_loops
from unrolled.transformer import TransformerConfig, token_loss

CONFIG = TransformerConfig(
    vocab_size=17, num_layers=2, hidden_size=16, num_heads=2, max_length=12, zero_output=False
)
TOKENS = torch.randint(17, (3, 9), generator=torch.Generator().manual_seed(0))
INPUTS, TARGETS = TOKENS[:, :-1], TOKENS[:, 1:]


def model_of(injection: str = "flt", num_loops: int = 4) -> LoopedTransformer:
    torch.manual_seed(1)
    model = build(CONFIG, injection, num_loops).eval()
    for parameter in model.parameters():
        parameter.data.normal_(std=0.4)
    return model


@pytest.mark.equation("eq-together-loop-losses")
@pytest.mark.parametrize("injection", INJECTIONS)
def test_the_loss_after_k_loops_is_that_of_the_model_with_k_loops(injection):
    model = model_of(injection)
    f = loop_losses(model, INPUTS, TARGETS)  # (K + 1, B)
    assert f.shape == (5, 3)
    assert torch.allclose(f[0].mean(), token_loss(model.logits_from(model.embed(INPUTS)), TARGETS))
    for k in range(1, 5):
        expected = model.loss(INPUTS, TARGETS, num_loops=k)
        torch.testing.assert_close(f[k].mean(), expected)


def test_one_loop_is_the_plain_transformer():
    model = model_of("original", 1)
    f = loop_losses(model, INPUTS, TARGETS)
    torch.testing.assert_close(f[-1].mean(), model.loss(INPUTS, TARGETS))
    assert len(f) == 2


def test_without_output_projections_all_loops_and_the_embedding_agree():
    model = build(TransformerConfig(num_layers=2, hidden_size=16, num_heads=2), "flt", 3)
    f = loop_losses(model, INPUTS, TARGETS)
    torch.testing.assert_close(f, f[:1].expand_as(f))
    assert f[0, 0].item() == pytest.approx(math.log(256), abs=0.1)


def test_a_reading_goes_beyond_the_loops_of_training_and_leaves_the_model_alone():
    model = model_of("original", 2)
    reading = read_loops(model, INPUTS, TARGETS, 5, rows=2)
    for k in range(1, 6):
        expected = model.loss(INPUTS, TARGETS, num_loops=k).item()
        assert reading.losses[k].mean().item() == pytest.approx(expected, rel=1e-5)
    states = [state for state, _ in loop_readouts(model, INPUTS, 5)]
    expected = torch.stack([state.norm(dim=-1).mean() for state in states])
    torch.testing.assert_close(reading.norms, expected)
    assert reading.agreement[-1] == 1
    assert model.num_loops == 2


def test_the_readout_is_blind_to_the_length_of_a_state():
    model = model_of()
    (_, read), (state, _) = loop_readouts(model, INPUTS)[:2]
    torch.testing.assert_close(read(100 * state), read(state), rtol=1e-4, atol=1e-4)


# --- exits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("injection", INJECTIONS)
def test_threshold_zero_is_one_loop_and_threshold_one_is_all_of_them(injection):
    model = model_of(injection)
    for threshold, k in ((0.0, 1), (1.0, 4)):
        found = read_with_exits(model, INPUTS, threshold)
        assert bool((found.loops == k).all())
        torch.testing.assert_close(found.logits, model(INPUTS, num_loops=k).logits)


@pytest.mark.equation("eq-together-exit")
@pytest.mark.parametrize("injection", ["flt", "original", "fla"])
def test_exits_are_those_of_a_decoder_written_by_hand(injection):
    model, threshold = model_of(injection), 0.35
    found = read_with_exits(model, INPUTS[:1], threshold)
    logits, loops = decode(model, INPUTS[0], threshold, 4)
    assert found.loops[0].tolist() == loops
    assert len(set(loops)) > 1  # the case is not a trivial one
    torch.testing.assert_close(found.logits[0], logits, rtol=1e-4, atol=1e-4)


def decode(model, tokens, threshold, K):
    """Read token by token; each keeps what entered every block in every loop that it ran."""
    seen, logits, loops = [], [], []  # seen[n][k][l]: (d,), loop k of token n
    for n in range(len(tokens)):
        e = model.embed(tokens[None])[0, n]
        mine, h = [], None
        for k in range(K):
            mine.append([])
            x = start(model, e, h)
            for layer, block in enumerate(model.blocks):
                if model.injection == "fla" and h is not None:
                    x = model.norm(x + h)
                mine[k].append(x)
                # earlier tokens: their loop k, or the last that they ran
                past = [other[min(k, len(other) - 1)][layer] for other in [*seen, mine]]
                asks = model.injection == "flt" and h is not None
                x = at_last(block, torch.stack(past), h if asks else None)
            h = model.norm(x)
            z = model.logits_from(x)
            if z.softmax(-1).max() > threshold:
                break
        seen.append(mine)
        logits.append(z)
        loops.append(k + 1)
    return torch.stack(logits), loops


def start(model, e, h):
    return h if model.injection == "original" and h is not None else e


def at_last(block, inputs, query):
    """Return what a block makes of the last of some tokens; `query` asks in its place."""
    asking = None
    if query is not None:
        asking = torch.cat((torch.zeros_like(inputs[:-1]), query[None]))[None]
    return block(inputs[None], asking, normed=True)[0, -1]


def test_a_token_is_not_changed_by_those_behind_it():
    model = model_of()
    whole = read_with_exits(model, INPUTS, 0.3)
    part = read_with_exits(model, INPUTS[:, :5], 0.3)
    assert torch.equal(whole.loops[:, :5], part.loops)
    torch.testing.assert_close(whole.logits[:, :5], part.logits)


def test_the_hooks_are_gone_afterwards():
    model = model_of()
    before = model(INPUTS).logits
    read_with_exits(model, INPUTS, 0.3)
    assert torch.equal(model(INPUTS).logits, before)
    assert not any(block._forward_pre_hooks for block in model.blocks)


def test_the_frontier_starts_and_ends_at_fixed_numbers_of_loops():
    model = model_of()
    line = frontier(model, INPUTS, TARGETS, (0.0, 0.3, 0.5, 1.0), rows=2)
    losses = [model.loss(INPUTS, TARGETS, num_loops=k).item() for k in range(1, 5)]
    assert line.loops == sorted(line.loops)
    assert (line.loops[0], line.loops[-1]) == (1.0, 4.0)
    assert line.losses[0] == pytest.approx(losses[0], rel=1e-5)
    assert line.losses[-1] == pytest.approx(losses[3], rel=1e-5)
    assert fixed_losses(losses, [1.0, 4.0]) == pytest.approx([losses[0], min(losses)])


@pytest.mark.equation("eq-together-exit-rival")
def test_the_rival_is_the_best_lot_that_a_linear_program_finds():
    generator = torch.Generator().manual_seed(2)
    for K in (1, 3, 6):
        losses = torch.rand(K, generator=generator).tolist()
        means = torch.linspace(1, K, 7).tolist()
        shares = {"A_eq": [[1] * K], "b_eq": [1], "A_ub": [list(range(1, K + 1))]}
        best = [linprog(losses, b_ub=[k], **shares).fun for k in means]
        assert fixed_losses(losses, means) == pytest.approx(best, abs=1e-6)


def test_arguments_are_checked():
    model = model_of()
    with pytest.raises(ValueError, match="threshold"):
        read_with_exits(model, INPUTS, 1.5)
    with pytest.raises(ValueError, match="num_loops"):
        read_with_exits(model, INPUTS, 0.5, 0)
    with pytest.raises(ValueError, match="loops"):
        fixed_losses([2.0, 1.0], [0.5])
    with pytest.raises(ValueError, match="rows"):
        read_loops(model, INPUTS, TARGETS, 2, rows=0)

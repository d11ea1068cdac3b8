"""The looped models with grouped queries and a window: the properties that hold without them."""

import pytest
import torch
from torch.testing import assert_close

from unrolled.looped.model import INJECTIONS, LoopedTransformer
from unrolled.transformer import KeyValueCache, Transformer, TransformerConfig, count_parameters

CONFIG = TransformerConfig(
    vocab_size=50,
    num_layers=2,
    hidden_size=32,
    num_heads=4,
    num_kv_heads=2,
    window=3,
    max_length=24,
    zero_output=False,
)
TOKENS = torch.randint(50, (2, 20), generator=torch.Generator().manual_seed(1))


def make(injection, num_loops=3):
    torch.manual_seed(0)
    model = LoopedTransformer(CONFIG, num_loops, injection)
    torch.nn.init.normal_(model.head.weight)
    return model


@pytest.mark.parametrize("injection", INJECTIONS)
def test_one_loop_is_the_plain_transformer(injection):
    model, plain = make(injection), Transformer(CONFIG)
    plain.load_state_dict(model.state_dict())
    assert torch.equal(model(TOKENS, num_loops=1).logits, plain(TOKENS).logits)
    assert count_parameters(model) == count_parameters(plain)


def test_the_first_position_of_flt_does_not_depend_on_the_loops():
    model = make("flt")
    assert_close(model(TOKENS, num_loops=8).logits[:, 0], model(TOKENS, num_loops=1).logits[:, 0])


def test_every_loop_of_lt_looks_further_back_and_none_of_flt_sees_too_far():
    """Two layers of window 3 reach 4 tokens back, three loops of a state that goes on 12."""
    changed = TOKENS.clone()
    changed[:, 0] = (changed[:, 0] + 1) % 50
    for injection in ("original", "flt"):
        model = make(injection)
        difference = (model(TOKENS).logits - model(changed).logits).abs().amax(dim=(0, 2))
        assert (difference[13:] == 0).all()
        assert (difference[:5] > 0).all()
        assert difference[5:13].max() > 0


@pytest.mark.parametrize("injection", INJECTIONS)
def test_reading_in_pieces_equals_reading_at_once(injection):
    model, cache = make(injection), KeyValueCache()
    pieces = TOKENS.split((7, 1, 1, 5, 6), dim=1)
    logits = torch.cat([model(piece, cache=cache).logits for piece in pieces], dim=1)
    assert_close(logits, model(TOKENS).logits, rtol=1e-4, atol=1e-4)
    assert cache.num_bytes() == 3 * 2 * 2 * 2 * 3 * 16 * 4  # K, L, k and v, B, window, d/2, float32

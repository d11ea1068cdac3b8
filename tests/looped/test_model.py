"""The looped Transformer: what all variants share, and what tells them apart."""

import math
import shutil

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from unrolled.looped.model import BASE, INJECTIONS, LABELS, SMALL, LoopedTransformer, build
from unrolled.transformer import (
    KeyValueCache,
    Transformer,
    TransformerConfig,
    count_parameters,
    flops_per_token,
    generate,
)

LAYER_STYLE = {"norm": "layer", "position": "learned", "activation": "gelu", "qk_norm": False}
RESTART = ("attention", "fla", "flt")


def small(**options):
    shape = {"vocab_size": 50, "num_layers": 2, "hidden_size": 32, "num_heads": 2, "max_length": 16}
    return TransformerConfig(**(shape | {"zero_output": False} | options))


def lively(model):
    """Give the head and the gains values large enough to matter."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        model.head.weight.copy_(torch.randn(model.head.weight.shape, generator=generator))
        for p in model.parameter_groups()["other"]:
            p.add_(0.3 * torch.randn(p.shape, generator=generator))
    return model


def make(injection, num_loops=4, seed=0, config=None, **options):
    torch.manual_seed(seed)
    return lively(LoopedTransformer(config or small(), num_loops, injection, **options))


@pytest.fixture
def tokens():
    return torch.randint(0, 50, (3, 12), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def targets(tokens):
    return tokens.roll(-1, dims=1)


each = pytest.mark.parametrize("injection", INJECTIONS)


# --- what all variants share ----------------------------------------------------------------


@pytest.mark.equation("eq-looped-recurrence")
@each
@pytest.mark.parametrize("style", [{}, LAYER_STYLE])
def test_one_loop_is_the_plain_transformer(injection, style, tokens, targets):
    looped = make(injection, num_loops=1, config=small(**style))
    plain = Transformer(small(**style))
    plain.load_state_dict(looped.state_dict())
    assert_close(looped(tokens).logits, plain(tokens).logits, rtol=0, atol=0)
    assert_close(looped.loss(tokens, targets), plain.loss(tokens, targets))
    layers = looped(tokens, layer_states=True).layer_states
    assert_close(layers[0], plain(tokens, hidden_states=True).hidden_states[1:])


def test_variants_have_the_same_parameters_and_cost(tokens):
    sizes, costs = set(), set()
    for injection in INJECTIONS:
        model = make(injection)
        sizes.add(tuple((name, p.shape, p.sum().item()) for name, p in model.named_parameters()))
        counter = FlopCounterMode(display=False)
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
            model(tokens)
        costs.add(counter.get_total_flops())
    assert len(sizes) == 1  # same names, shapes, and with the same seed the same values
    assert costs == {flops_per_token(small(), num_loops=4, length=12) * tokens.numel()}


@each
def test_no_token_sees_a_later_one_in_any_loop(injection, tokens):
    model = make(injection)
    changed = tokens.clone()
    changed[:, 8] = (changed[:, 8] + 1) % 50
    before = model(tokens, loop_states=True).loop_states
    after = model(changed, loop_states=True).loop_states
    for one, other in zip(before, after, strict=True):
        assert_close(one[:, :8], other[:, :8], rtol=0, atol=0)
        assert (one[:, 8:] != other[:, 8:]).any(dim=-1).all()


@each
def test_zero_output_projections_make_all_loops_alike(injection, tokens):
    model = make(injection, config=small(zero_output=True))
    e, output = model.embed(tokens), model(tokens, loop_states=True)
    for state in output.loop_states:
        assert_close(state, e, rtol=1e-4, atol=1e-5)
    assert_close(model(tokens, num_loops=1).logits, output.logits, rtol=1e-4, atol=1e-4)


def test_variants_are_different_models(tokens):
    logits = {injection: make(injection)(tokens).logits for injection in INJECTIONS}
    for one in INJECTIONS:
        for other in INJECTIONS:
            assert torch.allclose(logits[one], logits[other], atol=1e-2) == (one == other)
    assert set(LABELS) == {*INJECTIONS, "plain"}
    assert len(set(LABELS.values())) == len(LABELS)


# --- what tells them apart ------------------------------------------------------------------


def by_hand(model, tokens):
    """The table of the paper, written out variant by variant; return the states of the loops."""
    norm = nn.RMSNorm(32, elementwise_affine=False)
    e, h, states = norm(model.embedding(tokens)), None, []
    for _ in range(model.num_loops):
        first = h is None
        if model.injection == "input":
            x = e if first else norm(e + h)
        elif model.injection in RESTART:
            x = e
        else:
            x = e if first else h
        for layer, block in enumerate(model.blocks):
            if model.injection == "fla" and not first:
                x = norm(x + h)
            asks = model.injection == "flt" or (model.injection == "attention" and layer == 0)
            x = block(x, query=h if asks else None)
        states.append(x)
        h = x if model.injection == "original_no_norm" else norm(x)
    return states


@pytest.mark.equation(
    "eq-looped-attention",
    "eq-looped-fla",
    "eq-looped-flt",
    "eq-looped-input",
    "eq-looped-recurrence",
)
@each
def test_states_equal_the_recurrence_written_out(injection, tokens):
    model = make(injection, num_loops=3)
    states = model(tokens, loop_states=True).loop_states
    assert_close(states, by_hand(model, tokens), rtol=1e-4, atol=1e-4)


@each
def test_loop_by_loop_equals_the_forward_pass(injection, tokens):
    model = make(injection)
    output = model(tokens, loop_states=True, layer_states=True)
    e, state = model.embed(tokens), None
    for k in range(4):
        blocks = model.loop(e, state)
        assert_close(output.layer_states[k], blocks)
        state = blocks[-1]
        assert_close(output.loop_states[k], state)
    assert_close(model.logits_from(state), output.logits)


@each
def test_first_position_stands_still_only_where_the_state_is_but_a_query(injection, tokens):
    model = make(injection)
    states = model(tokens, loop_states=True).loop_states
    still = all(torch.allclose(s[:, 0], states[0][:, 0], atol=1e-5) for s in states)
    assert still == (injection in ("attention", "flt"))
    # Position 1 has a choice between two keys, and moves in every variant.
    assert not torch.allclose(states[1][:, 1], states[0][:, 1], atol=1e-3)


@pytest.mark.equation("eq-looped-flt")
def test_first_logits_of_flt_do_not_depend_on_the_number_of_loops(tokens):
    model = make("flt")
    one, many = model(tokens, num_loops=1).logits, model(tokens, num_loops=9).logits
    assert_close(one[:, 0], many[:, 0], rtol=1e-4, atol=1e-4)
    assert not torch.allclose(one[:, 1:], many[:, 1:], atol=0.1)


def test_norm_between_loops_hides_the_length_of_the_state(tokens):
    def second_state(injection, scale):
        model = make(injection, num_loops=2)
        e = model.embed(tokens)
        return model.loop(e, scale * model.loop(e)[-1])[-1]

    for injection in INJECTIONS:
        alike = torch.allclose(second_state(injection, 1), second_state(injection, 5), atol=1e-3)
        assert alike == (injection != "original_no_norm")


def test_layer_norm_between_loops_is_the_norm_before_the_head(tokens):
    model = make("original", num_loops=2, config=small(**LAYER_STYLE))
    e = model.embed(tokens)
    x = model.norm(model.loop(e)[-1])
    for block in model.blocks:
        x = block(x)
    assert_close(model(tokens).logits, model.logits_from(x))


# --- number of loops, loss ------------------------------------------------------------------


@each
def test_loops_at_inference_may_differ_from_training(injection, tokens):
    model, longer = make(injection, num_loops=3), make(injection, num_loops=7)
    assert_close(model(tokens, num_loops=7).logits, longer(tokens).logits, rtol=0, atol=0)
    states = model(tokens, num_loops=7, loop_states=True).loop_states
    assert_close(states[:3], model(tokens, loop_states=True).loop_states, rtol=0, atol=0)


@pytest.mark.equation("eq-looped-loss")
@pytest.mark.parametrize("K", [1, 2, 3, 4, 6, 7, 12])
def test_loss_averages_the_named_loops(K, tokens, targets):
    model = make("flt", num_loops=K)
    states = model(tokens, loop_states=True).loop_states
    losses = [
        nn.functional.cross_entropy(model.logits_from(x).reshape(-1, 50), targets.reshape(-1))
        for x in states
    ]
    for name, count in (("last", 1), ("mean", K), ("last_third", math.ceil(K / 3))):
        model.loss_loops = name
        assert_close(model.loss(tokens, targets), torch.stack(losses[-count:]).mean())
        with_fewer = model.loss(tokens, targets, num_loops=1)
        assert_close(with_fewer, losses[0])


# --- checkpointing and compilation ----------------------------------------------------------


@each
@pytest.mark.parametrize("loss_loops", ["last", "mean"])
def test_checkpointing_changes_no_gradient(injection, loss_loops, tokens, targets):
    gradients, losses = [], []
    for checkpoint_loops in (False, True):
        model = make(injection, loss_loops=loss_loops, checkpoint_loops=checkpoint_loops)
        loss = model.loss(tokens, targets)
        loss.backward()
        gradients.append([p.grad for p in model.parameters()])
        losses.append(loss)
    assert losses[0] == losses[1]
    assert all(g.abs().max() > 0 for g in gradients[0])
    assert_close(gradients[0], gradients[1], rtol=1e-5, atol=1e-7)


def kept_bytes(num_loops, tokens, targets, **options):
    """Bytes that autograd keeps for the backward pass, weights left out, storages once."""
    model = make("flt", num_loops=num_loops, **options)
    kept, weights = {}, {p.untyped_storage().data_ptr() for p in model.parameters()}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model.loss(tokens, targets)
    total = sum(kept.values())
    loss.backward()
    return total


@pytest.mark.parametrize("loss_loops", ["last", "mean"])
def test_checkpointing_keeps_one_state_per_loop(loss_loops, tokens, targets):
    state = tokens.numel() * 32 * 4
    with_it, without = (
        [kept_bytes(K, tokens, targets, checkpoint_loops=on, loss_loops=loss_loops) for K in (4, 7)]
        for on in (True, False)
    )
    assert with_it[1] - with_it[0] == 3 * state
    assert without[1] - without[0] > 3 * 20 * state


def test_checkpointing_does_not_touch_inference(tokens):
    model = make("flt", checkpoint_loops=True)
    with torch.no_grad():
        assert_close(model(tokens).logits, make("flt")(tokens).logits, rtol=0, atol=0)
    assert generate(model, tokens[0, :4], 3).shape == (7,)


@pytest.mark.parametrize("checkpoint_loops", [False, True])
@pytest.mark.parametrize("injection", ["fla", "flt"])
def test_compiles_to_one_graph(injection, checkpoint_loops, tokens, targets):
    model = make(injection, num_loops=2, checkpoint_loops=checkpoint_loops)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    output = compiled(tokens, targets=targets, loop_states=True)
    assert_close(output.loop_states, model(tokens, loop_states=True).loop_states)
    output.loss.backward()
    ours = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model.loss(tokens, targets).backward()
    assert_close(ours, [p.grad for p in model.parameters()])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile on a CPU needs g++")
def test_inductor_agrees(tokens, targets):
    model = make("flt", num_loops=2, config=small(num_layers=1))
    compiled = torch.compile(model, fullgraph=True)
    output = compiled(tokens, targets=targets)
    assert_close(output.logits, model(tokens).logits, rtol=1e-3, atol=1e-3)
    output.loss.backward()
    ours = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model.loss(tokens, targets).backward()
    assert_close(ours, [p.grad for p in model.parameters()], rtol=1e-3, atol=1e-5)


# --- cache and generation -------------------------------------------------------------------


@each
@pytest.mark.parametrize("style", [{}, LAYER_STYLE])
@pytest.mark.parametrize("pieces", [(1,) * 12, (5, 4, 1, 2)])
def test_reading_in_pieces_equals_reading_at_once(injection, style, pieces, tokens):
    model, cache = make(injection, config=small(**style)), KeyValueCache()
    outputs = [model(piece, cache=cache) for piece in tokens.split(pieces, dim=1)]
    logits = torch.cat([output.logits for output in outputs], dim=1)
    assert_close(logits, model(tokens).logits, rtol=1e-3, atol=1e-3)
    K, L, d = 4, 2, 32
    assert cache.num_bytes() == 2 * K * L * tokens.numel() * d * 4


@each
def test_generation_with_and_without_cache_agree(injection, tokens):
    model = make(injection)

    def sample(use_cache):
        generator = torch.Generator().manual_seed(5)
        return generate(
            model, tokens[:, :4], 9, generator=generator, use_cache=use_cache, num_loops=3
        )

    assert torch.equal(sample(True), sample(False))


def test_generation_takes_the_number_of_loops(tokens):
    model = make("original")
    drawn = {K: generate(model, tokens[0, :4], 1, temperature=0, num_loops=K) for K in (1, 5)}
    for K, text in drawn.items():
        assert text[-1] == model(tokens[:1, :4], num_loops=K).logits[0, -1].argmax()


def test_cache_of_the_last_loop_is_small_and_not_exact(tokens):
    model, cache = make("flt"), KeyValueCache("last")
    first = model(tokens[:, :6], cache=cache).logits
    assert_close(first, model(tokens[:, :6]).logits)  # the prompt is read in full
    assert cache.num_bytes() == 2 * 2 * tokens[:, :6].numel() * 32 * 4  # no factor K
    following = model(tokens[:, 6:7], cache=cache).logits
    assert not torch.allclose(following[:, 0], model(tokens).logits[:, 6], atol=1e-2)
    assert_close(following[:, 0], with_last_loop_cache(model, tokens), rtol=1e-3, atol=1e-3)
    # With one loop the last is the only one, and the cache is exact.
    cache = KeyValueCache("last")
    pieces = [model(piece, num_loops=1, cache=cache).logits for piece in tokens.split(6, dim=1)]
    expected = model(tokens, num_loops=1).logits
    assert_close(torch.cat(pieces, dim=1), expected, rtol=1e-4, atol=1e-4)


def with_last_loop_cache(model, tokens):
    """Token 6 alone in its first loops; in the last with the last loop's keys of the others."""
    e = model.embed(tokens[:, :7])
    state = alone = None
    for k in range(4):
        x, y = e, e[:, 6:]
        for block in model.blocks:
            if k == 3:
                # The keys of the prompt from x, and the query and key of the new token from y.
                both = torch.cat((x[:, :6], y), dim=1)
                asks = torch.cat((model.norm(state)[:, :6], model.norm(alone)), dim=1)
                y = block_at(block, both, asks)
            else:
                y = solo(block, y, None if alone is None else model.norm(alone))
            x = block(x, None if state is None else model.norm(state))
        state, alone = x, y
    return model.logits_from(alone)[:, 0]


def block_at(block, both, asks):
    return block(both, asks)[:, 6:]


def solo(block, y, asks):
    # One key: attention returns its value, at any position.
    return block(y, asks)


def test_cache_keeps_to_one_number_of_loops(tokens):
    model, cache = make("flt"), KeyValueCache()
    model(tokens[:, :4], cache=cache)
    with pytest.raises(ValueError, match="num_loops must be 4, with which the cache was filled"):
        model(tokens[:, 4:5], num_loops=2, cache=cache)


# --- encoder, sizes, bad input --------------------------------------------------------------


@each
def test_padding_changes_nothing_in_an_encoder(injection, tokens):
    model = make(injection, config=small(causal=False))
    padded = tokens.clone()
    padded[:, 7:] = 0
    mask = (torch.arange(12) < 7).expand_as(tokens)
    ours = model(padded, attention_mask=mask).logits[:, :7]
    assert_close(ours, model(tokens[:, :7]).logits, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("config", "total", "blocks"),
    [(SMALL, 127_107_072, 10_616_832), (BASE, 317_915_136, 84_934_656)],
)
def test_sizes_of_the_paper(config, total, blocks):
    with torch.device("meta"):
        model = LoopedTransformer(config, num_loops=12, injection="flt")
        output = model(torch.zeros(1, 8, dtype=torch.long), loop_states=True)
    assert count_parameters(model) == total
    assert count_parameters(model.blocks) == blocks
    assert output.logits.shape == (1, 8, config.vocab_size)
    assert output.loop_states[11].shape == (1, 8, config.hidden_size)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_loops": 0}, "num_loops must be an integer >= 1, got 0"),
        ({"num_loops": 2.0}, "num_loops must be an integer >= 1, got 2.0"),
        ({"injection": "FLT"}, "injection must be one of .*'flt'.* got 'FLT'"),
        ({"loss_loops": "all"}, "loss_loops must be one of .* got 'all'"),
    ],
)
def test_constructor_names_what_is_wrong(change, message):
    arguments = {"config": small(), "num_loops": 2, "injection": "flt"} | change
    with pytest.raises(ValueError, match=message):
        LoopedTransformer(**arguments)


def test_forward_names_what_is_wrong(tokens):
    model = make("flt")
    with pytest.raises(ValueError, match="num_loops must be an integer >= 1, got 0"):
        model(tokens, num_loops=0)
    with pytest.raises(TypeError, match="hidden_states"):
        model(tokens, hidden_states=True)


def test_a_query_that_is_normed_already_is_the_same_query(tokens):
    model = make("flt")
    x, h = model.embed(tokens), model.norm(torch.randn(*tokens.shape, model.config.hidden_size))
    for block in model.blocks:
        assert_close(block(x, h, normed=True), block(x, h))
        assert not torch.allclose(block(x, 3 * h, normed=True), block(x, h))


def test_learned_norms_are_applied_to_the_query_in_each_block(tokens):
    model = make("flt", config=small(norm="layer"))
    with torch.no_grad():
        model.blocks[0].attention_norm.weight.mul_(2)
    e, state = model.embed(tokens), torch.randn(*tokens.shape, model.config.hidden_size)
    x = e
    for block in model.blocks:
        x = block(x, model.norm(state))
    assert_close(model.loop(e, state)[-1], x)


def test_plain_is_one_loop_through_as_many_blocks():
    plain = build(small(), "plain", 3)
    assert (plain.num_loops, len(plain.blocks)) == (1, 3 * small().num_layers)
    assert build(small(), "flt", 3).num_loops == 3
    with pytest.raises(ValueError, match="variant"):
        build(small(), "deep", 3)

"""The reference Transformer, against independent implementations and by its properties."""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from unrolled.transformer import (
    MLP,
    Attention,
    Block,
    KeyValueCache,
    RotaryPositions,
    Transformer,
    TransformerConfig,
    count_parameters,
    flops_per_token,
    generate,
)

GPT2 = {
    "norm": "layer",
    "position": "learned",
    "qk_norm": False,
    "activation": "gelu",
    "logit_cap": None,
    "embedding_norm": False,
}
STYLES = {"flt": {}, "gpt2": GPT2, "mixed": {"norm": "layer", "qk_norm": False, "logit_cap": 5.0}}


def small(**options):
    shape = {"vocab_size": 50, "num_layers": 2, "hidden_size": 32, "num_heads": 2, "max_length": 16}
    return TransformerConfig(**(shape | {"zero_output": False} | options))


def lively(model, seed=0):
    """Give every parameter a random value large enough to matter."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * p.shape[-1] ** -0.5)
        model.embedding.weight.mul_(p.shape[-1] ** 0.5)
    return model


@pytest.fixture
def tokens():
    return torch.randint(0, 50, (3, 12), generator=torch.Generator().manual_seed(1))


@pytest.fixture(params=STYLES)
def model(request):
    return lively(Transformer(small(**STYLES[request.param])))


# --- against independent implementations ----------------------------------------------------


def rename(model, names):
    state = {}
    for name, value in model.state_dict().items():
        for ours, theirs in names:
            name = name.replace(ours, theirs)
        state[name] = value
    return state


@pytest.mark.equation("eq-looped-block")
def test_default_block_equals_nanochat_of_transformers(tokens):
    transformers = pytest.importorskip("transformers")
    model = lively(Transformer(small()))
    theirs = transformers.NanoChatForCausalLM(
        transformers.NanoChatConfig(
            vocab_size=50,
            hidden_size=32,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=16,
            rms_norm_eps=torch.finfo(torch.float32).eps,
            rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        )
    )
    names = [
        ("embedding.weight", "model.embed_tokens.weight"),
        ("head.weight", "lm_head.weight"),
        ("blocks.", "model.layers."),
        ("attention.query", "self_attn.q_proj"),
        ("attention.key", "self_attn.k_proj"),
        ("attention.value", "self_attn.v_proj"),
        ("attention.output", "self_attn.o_proj"),
        ("mlp.hidden", "mlp.fc1"),
        ("mlp.output", "mlp.fc2"),
    ]
    theirs.load_state_dict(turn_the_other_way(rename(model, names)))
    assert_close(model(tokens).logits, theirs.eval()(tokens).logits, rtol=1e-4, atol=1e-5)


def turn_the_other_way(state):
    # Nanochat turns clockwise. Swapping the two halves of each head's queries and keys undoes it.
    halves = torch.arange(32).view(2, 2, 8).flip(1).flatten()
    swapped = ("q_proj.weight", "k_proj.weight")
    return {k: v[halves] if k.endswith(swapped) else v for k, v in state.items()}


def test_gpt2_is_a_setting(tokens):
    transformers = pytest.importorskip("transformers")
    model = lively(Transformer(small(**GPT2)))
    config = transformers.GPT2Config(
        vocab_size=50,
        n_positions=16,
        n_embd=32,
        n_layer=2,
        n_head=2,
        activation_function="gelu",
        tie_word_embeddings=False,
    )
    theirs = transformers.GPT2LMHeadModel(config).eval()
    theirs.load_state_dict(gpt2_state(model), strict=False)
    ours = model(tokens, hidden_states=True)
    expected = theirs(tokens, output_hidden_states=True)
    assert_close(ours.logits, expected.logits, rtol=1e-4, atol=1e-5)
    # Their last hidden state is normed, ours is not.
    assert_close(ours.hidden_states[:-1], list(expected.hidden_states[:-1]), rtol=1e-4, atol=1e-5)


def gpt2_state(model):
    names = [
        ("embedding.weight", "transformer.wte.weight"),
        ("positions.weight", "transformer.wpe.weight"),
        ("head.weight", "lm_head.weight"),
        ("blocks.", "transformer.h."),
        ("attention_norm", "ln_1"),
        ("mlp_norm", "ln_2"),
        ("norm.weight", "transformer.ln_f.weight"),
        ("norm.bias", "transformer.ln_f.bias"),
        ("attention.output", "attn.c_proj"),
        ("mlp.hidden", "mlp.c_fc"),
        ("mlp.output", "mlp.c_proj"),
    ]
    state = rename(model, names)
    for layer, block in enumerate(model.blocks):
        parts = (block.attention.query, block.attention.key, block.attention.value)
        prefix = f"transformer.h.{layer}.attn.c_attn"
        state[f"{prefix}.weight"] = torch.cat([part.weight for part in parts])
        state[f"{prefix}.bias"] = torch.cat([part.bias for part in parts])
    # GPT-2 keeps its linear maps transposed.
    maps = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
    return {k: v.T if k.endswith(maps) else v for k, v in state.items()}


def test_encoder_equals_torch_encoder_with_padding(tokens):
    config = small(**(GPT2 | {"causal": False}))
    model = lively(Transformer(config))
    layers = [torch_layer(block) for block in model.blocks]
    mask = torch.ones_like(tokens)
    mask[0, 7:], mask[1, 3:] = 0, 0
    x = model.embed(tokens)
    for layer in layers:
        x = layer(x, src_key_padding_mask=mask == 0)
    ours = model(tokens, attention_mask=mask, hidden_states=True).hidden_states[-1]
    assert_close(ours[mask == 1], x[mask == 1], rtol=1e-4, atol=1e-5)


def torch_layer(block):
    layer = torch.nn.TransformerEncoderLayer(
        32, 2, 128, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
    a = block.attention
    parts = (a.query, a.key, a.value)
    layer.load_state_dict(
        {
            "self_attn.in_proj_weight": torch.cat([part.weight for part in parts]),
            "self_attn.in_proj_bias": torch.cat([part.bias for part in parts]),
            "self_attn.out_proj.weight": a.output.weight,
            "self_attn.out_proj.bias": a.output.bias,
            "linear1.weight": block.mlp.hidden.weight,
            "linear1.bias": block.mlp.hidden.bias,
            "linear2.weight": block.mlp.output.weight,
            "linear2.bias": block.mlp.output.bias,
            "norm1.weight": block.attention_norm.weight,
            "norm1.bias": block.attention_norm.bias,
            "norm2.weight": block.mlp_norm.weight,
            "norm2.bias": block.mlp_norm.bias,
        }
    )
    return layer.train()


# --- shared keys and values, and a window -----------------------------------------------------

NARROW = {"num_heads": 4, "num_kv_heads": 2, "window": 4}


@pytest.mark.parametrize(("family", "window"), [("Llama", None), ("Mistral", 4)])
def test_shared_keys_and_a_window_are_those_of_transformers(tokens, family, window):
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 8, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.3}
    sliding = {} if window is None else {"sliding_window": window}
    config = getattr(transformers, f"{family}Config")(**sizes, **heads, **sliding)
    theirs = getattr(transformers, f"{family}Model")(config).eval()
    attention, seen = theirs.layers[0].self_attn, {}

    def note(module, args, named, output):
        seen.update(x=named["hidden_states"], y=output[0])

    attention.register_forward_hook(note, with_kwargs=True)
    theirs(tokens)
    ours = Attention(small(num_heads=4, num_kv_heads=2, window=window, qk_norm=False))
    for mine, name in (("query", "q"), ("key", "k"), ("value", "v"), ("output", "o")):
        weight = getattr(attention, f"{name}_proj").weight
        getattr(ours, mine).weight.data.copy_(weight)
    assert_close(ours(seen["x"], seen["x"]), seen["y"], rtol=1e-4, atol=1e-5)


def test_shared_keys_equal_full_attention_with_repeated_ones(tokens):
    grouped, full = lively(Transformer(small(**NARROW))), Transformer(small(num_heads=4, window=4))
    shared = ("key.weight", "value.weight")
    state = {
        name: value.unflatten(0, (2, 8)).repeat_interleave(2, dim=0).flatten(0, 1)
        if name.endswith(shared)
        else value
        for name, value in grouped.state_dict().items()
    }
    full.load_state_dict(state)
    assert_close(grouped(tokens).logits, full(tokens).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{"num_kv_heads": 2}, {"window": 12}, {"window": 16}])
def test_as_many_heads_and_a_window_as_long_as_the_text_change_no_bit(tokens, options):
    plain, other = (lively(Transformer(small(**chosen))) for chosen in ({}, options))
    assert torch.equal(plain(tokens).logits, other(tokens).logits)


def test_a_window_ends_after_so_many_tokens_in_each_layer(tokens):
    model = lively(Transformer(small(window=3)))  # two layers: four tokens back
    changed = tokens.clone()
    changed[:, 0] = (changed[:, 0] + 1) % 50
    difference = (model(tokens).logits - model(changed).logits).abs().amax(dim=(0, 2))
    assert (difference[:5] > 1e-3).all()
    assert (difference[5:] == 0).all()


def test_padding_with_a_window_changes_nothing(tokens):
    model = lively(Transformer(small(**NARROW)))
    mask = torch.ones_like(tokens)
    mask[0, 7:] = 0
    padded = model(tokens, attention_mask=mask).logits
    assert_close(padded[0, :7], model(tokens[:1, :7]).logits[0], rtol=1e-4, atol=1e-5)
    assert_close(padded[1:], model(tokens[1:]).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pieces", [(1,) * 12, (5, 4, 1, 2), (2, 10)])
def test_a_window_is_all_that_a_cache_keeps(tokens, pieces):
    model, cache = lively(Transformer(small(**NARROW))), KeyValueCache()
    logits = [model(piece, cache=cache).logits for piece in tokens.split(pieces, dim=1)]
    assert_close(torch.cat(logits, dim=1), model(tokens).logits, rtol=1e-4, atol=1e-5)
    assert cache.length == 12
    assert cache.num_bytes() == 2 * 2 * 3 * 4 * 16 * 4  # k and v, L, B, window, d / 2, float32


# --- rotary positions -----------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0, 5])
def test_rotation_is_multiplication_by_a_complex_number(offset):
    D, base = 8, 100.0
    x = torch.randn(2, 6, 3, D)
    rotary = RotaryPositions(D, max_length=16, base=base)
    n = torch.arange(offset, offset + 6, dtype=torch.float64)
    angle = n[:, None] * base ** (-torch.arange(D // 2) * 2 / D)
    turned = torch.complex(x[..., : D // 2], x[..., D // 2 :]) * torch.polar(
        torch.ones(()), angle.float()
    ).unsqueeze(1)
    assert_close(rotary(x, offset), torch.cat((turned.real, turned.imag), dim=-1))


def test_rotated_products_depend_on_the_distance_alone():
    rotary = RotaryPositions(8, max_length=32)
    q, k = torch.randn(2, 8).unsqueeze(1).unbind()
    turned_q = rotary(q.expand(1, 32, 1, 8))[0, :, 0]
    turned_k = rotary(k.expand(1, 32, 1, 8))[0, :, 0]
    scores = turned_q @ turned_k.T
    for distance in (0, 3, -7):
        diagonal = scores.diagonal(distance)
        assert_close(diagonal, diagonal[:1].expand_as(diagonal))
    assert not torch.allclose(scores[0, 0], scores[5, 0])


# --- what sees what -------------------------------------------------------------------------


def test_no_token_sees_a_later_one(model, tokens):
    changed = tokens.clone()
    changed[:, 8] = (changed[:, 8] + 1) % 50
    before, after = model(tokens).logits, model(changed).logits
    assert_close(before[:, :8], after[:, :8], rtol=0, atol=0)
    assert (before[:, 8:] != after[:, 8:]).any(dim=-1).all()


def test_every_token_of_an_encoder_sees_a_later_one(tokens):
    model = lively(Transformer(small(causal=False)))
    changed = tokens.clone()
    changed[:, 8] = (changed[:, 8] + 1) % 50
    assert (model(tokens).logits != model(changed).logits).any(dim=-1).all()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("style", STYLES)
def test_padding_changes_nothing(tokens, style, causal):
    model = lively(Transformer(small(**(STYLES[style] | {"causal": causal}))))
    short = model(tokens[:, :7]).logits
    padded = tokens.clone()
    padded[:, 7:] = 0
    mask = (torch.arange(12) < 7).expand_as(tokens)
    assert_close(model(padded, attention_mask=mask).logits[:, :7], short, rtol=1e-4, atol=1e-5)


def test_query_asks_and_context_answers():
    block = lively_block()
    x, h = torch.randn(2, 1, 6, 32)
    assert_close(block(x, query=x), block(x))
    assert not torch.allclose(block(x, query=h), block(x))
    # Whatever asks, a first position has one answer.
    assert_close(block(x, query=h)[:, 0], block(x)[:, 0])


def test_query_is_normed_like_the_stream():
    block = lively_block(qk_norm=False)
    x, h = torch.randn(2, 1, 6, 32)
    assert_close(block(x, query=3 * h), block(x, query=h))


def lively_block(**options):
    torch.manual_seed(0)
    return Block(small(**options))


# --- options --------------------------------------------------------------------------------


def test_hidden_states_run_from_the_embedding_to_the_head(model, tokens):
    output = model(tokens, hidden_states=True)
    assert len(output.hidden_states) == 3
    assert_close(output.hidden_states[0], model.embed(tokens))
    assert_close(output.hidden_states[1], model.blocks[0](output.hidden_states[0]))
    assert_close(model.logits_from(output.hidden_states[-1]), output.logits)
    assert model(tokens).hidden_states is None


def test_fresh_block_is_the_identity(tokens):
    for style in STYLES.values():
        model = Transformer(small(**(style | {"zero_output": True})))
        states = model(tokens, hidden_states=True).hidden_states
        assert_close(states[-1], states[0])


def test_initial_spread_of_the_weights():
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(num_layers=1, hidden_size=128, num_heads=2))
    block = model.blocks[0]
    assert model.embedding.weight.std().item() == pytest.approx(1, rel=0.02)
    assert model.head.weight.std().item() == pytest.approx(0.001, rel=0.02)
    for linear in (block.attention.query, block.attention.key, block.mlp.hidden):
        assert linear.weight.std().item() == pytest.approx(128**-0.5, rel=0.02)
        assert linear.weight.abs().max().item() <= (3 / 128) ** 0.5


@pytest.mark.parametrize(
    ("activation", "expected"), [("relu2", [0.0, 4.0]), ("gelu", [-0.0455, 1.9545])]
)
def test_activation(activation, expected):
    mlp = MLP(small(activation=activation))
    with torch.no_grad():
        for linear in (mlp.hidden, mlp.output):
            linear.weight.copy_(torch.eye(*linear.weight.shape))
    x = torch.zeros(1, 1, 32)
    x[0, 0, :2] = torch.tensor([-2.0, 2.0])
    assert_close(mlp(x)[0, 0, :2], torch.tensor(expected), rtol=0, atol=1e-4)
    assert (mlp(x)[0, 0, 2:] == 0).all()


def test_logits_stay_below_the_cap(tokens):
    capped, free = (lively(Transformer(small(logit_cap=cap))) for cap in (0.5, None))
    z = free(tokens).logits
    assert z.abs().max() > 0.5
    assert_close(capped(tokens).logits, 0.5 * torch.tanh(z / 0.5))


def test_qk_norm_comes_after_the_rotation_and_frees_attention_of_scale(tokens):
    for qk_norm in (True, False):
        model = lively(Transformer(small(qk_norm=qk_norm, num_layers=1)))
        before = model(tokens).logits
        with torch.no_grad():
            model.blocks[0].attention.query.weight.mul_(3)
        assert torch.allclose(model(tokens).logits, before, atol=1e-4) == qk_norm


def test_loss_is_the_cross_entropy_and_skips_ignored_targets(model, tokens):
    targets = tokens.roll(-1, dims=1)
    logits = model(tokens).logits
    expected = F.cross_entropy(logits.reshape(-1, 50), targets.reshape(-1))
    assert_close(model.loss(tokens, targets), expected)
    targets[:, 6:] = -100
    expected = F.cross_entropy(logits[:, :6].reshape(-1, 50), targets[:, :6].reshape(-1))
    assert_close(model.loss(tokens, targets), expected)


def test_mixed_precision_gives_logits_in_float32(model, tokens):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(tokens).logits
    assert logits.dtype == torch.float32
    assert_close(logits, model(tokens).logits, rtol=0.1, atol=0.2)


def test_model_made_on_meta_works_after_reset(tokens):
    with torch.device("meta"):
        model = Transformer(small())
    model.to_empty(device="cpu")
    torch.manual_seed(3)
    model.reset_parameters()
    reference = Transformer(small())
    torch.manual_seed(3)
    reference.reset_parameters()
    assert_close(model(tokens).logits, reference(tokens).logits, rtol=0, atol=0)


def test_state_dict_holds_the_weights_only():
    names = set(Transformer(small()).state_dict())
    assert not any("rotary" in name or "cos" in name for name in names)
    assert len(names) == 2 + 2 * 6


@pytest.mark.parametrize("style", STYLES)
def test_parameter_groups_hold_every_parameter_once(style):
    model = Transformer(small(**STYLES[style]))
    for tied in (False, True):
        if tied:
            model.head.weight = model.embedding.weight
        groups = model.parameter_groups()
        assert list(groups) == ["embedding", "head", "matrices", "other"]
        ids = [id(p) for group in groups.values() for p in group]
        assert sorted(ids) == sorted(id(p) for p in model.parameters())
        assert len(groups["matrices"]) == 2 * 6
        assert all(p.ndim == 2 for p in groups["matrices"])


# --- counts ---------------------------------------------------------------------------------


def test_parameters_by_formula():
    d, V, L = 32, 50, 2
    assert count_parameters(Transformer(small())) == 2 * V * d + 12 * L * d * d
    biases = L * (4 * d + 4 * d + d) + (2 * L + 1) * 2 * d
    gpt2 = Transformer(small(**GPT2))
    assert count_parameters(gpt2) == 2 * V * d + 12 * L * d * d + 16 * d + biases
    shared = Transformer(small(num_heads=4, num_kv_heads=1))
    assert count_parameters(shared) == 2 * V * d + (12 - 2 * 3 / 4) * L * d * d


@pytest.mark.equation("eq-looped-flops")
@pytest.mark.parametrize("options", [{"mlp_ratio": 2}, {"mlp_ratio": 4}, {"num_kv_heads": 1}])
def test_flops_equal_those_that_torch_counts(tokens, options):
    config = small(**options)
    model = Transformer(config)
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        model(tokens)
    assert counter.get_total_flops() == flops_per_token(config, length=12) * tokens.numel()


def test_flops_of_a_window_are_those_of_a_text_of_its_width():
    assert flops_per_token(small(window=4), length=12) == flops_per_token(small(), length=4)


# --- cache and generation -------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [(12,), (1,) * 12, (5, 4, 1, 2)])
def test_reading_in_pieces_equals_reading_at_once(model, tokens, pieces):
    cache = KeyValueCache()
    logits = [model(piece, cache=cache).logits for piece in tokens.split(pieces, dim=1)]
    assert_close(torch.cat(logits, dim=1), model(tokens).logits, rtol=1e-4, atol=1e-5)
    assert cache.length == 12
    assert cache.num_bytes() == 2 * 2 * tokens.numel() * 32 * 4  # k and v, L, B N, d, float32


def test_generation_with_and_without_cache_agree(model, tokens):
    def sample(use_cache):
        generator = torch.Generator().manual_seed(5)
        return generate(model, tokens[:, :4], 9, generator=generator, use_cache=use_cache)

    assert torch.equal(sample(True), sample(False))
    assert torch.equal(sample(True)[:, :4], tokens[:, :4])


def test_generation_takes_the_likeliest_or_one_of_the_top(model, tokens):
    greedy = generate(model, tokens[:, :4], 6, temperature=0)
    assert torch.equal(greedy[:, 4], model(tokens[:, :4]).logits[:, -1].argmax(dim=-1))
    assert torch.equal(generate(model, tokens[:, :4], 6, top_k=1), greedy)
    top = model(tokens[:1, :4]).logits[0, -1].topk(3).indices
    draws = {generate(model, tokens[0, :4], 1, top_k=3)[-1].item() for _ in range(60)}
    assert draws == set(top.tolist())


def test_sampling_follows_the_probabilities():
    model = lively(Transformer(small(vocab_size=4)))
    prompt = torch.zeros(4000, 1, dtype=torch.long)
    generator = torch.Generator().manual_seed(0)
    drawn = generate(model, prompt, 1, temperature=2.0, generator=generator)[:, -1]
    expected = torch.softmax(model(prompt[:1]).logits[0, -1] / 2, dim=-1)
    assert_close(drawn.bincount(minlength=4) / 4000, expected, rtol=0, atol=0.03)


def test_window_slides_without_cache_and_stops_with_it(model, tokens):
    assert generate(model, tokens[0], 5).shape == (17,)  # the last token is never read
    with pytest.raises(ValueError, match="max_length = 16, or use_cache=False"):
        generate(model, tokens[0], 6)
    long = generate(model, tokens[0], 10, temperature=0, use_cache=False)
    assert long[-1] == model(long[None, -17:-1]).logits[0, -1].argmax()


# --- compilation ----------------------------------------------------------------------------


def test_compiles_to_one_graph(tokens):
    model = lively(Transformer(small()))
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    targets = tokens.roll(-1, dims=1)
    assert_close(compiled(tokens).logits, model(tokens).logits)
    compiled(tokens, targets=targets).loss.backward()
    assert all(p.grad is not None for p in model.parameters())


# --- bad input ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_layers": 0}, "num_layers must be an integer >= 1, got 0"),
        ({"hidden_size": 32.0}, "hidden_size must be an integer >= 1, got 32.0"),
        ({"max_length": True}, "max_length must be an integer >= 1, got True"),
        ({"num_heads": 3}, "num_heads must be a divisor of hidden_size = 32, got 3"),
        ({"hidden_size": 6, "num_heads": 2}, "even for position='rope', got 3"),
        ({"norm": "batch"}, "norm must be one of"),
        ({"position": "sinus"}, "position must be one of"),
        ({"activation": "relu"}, "activation must be one of"),
        ({"rope_base": 1.0}, "rope_base must be above 1, got 1.0"),
        ({"logit_cap": 0.0}, "logit_cap must be None or above 0, got 0.0"),
        ({"mlp_ratio": -1}, "mlp_ratio must be an integer >= 1, got -1"),
        ({"num_kv_heads": 0}, "num_kv_heads must be an integer >= 1, got 0"),
        (
            {"num_heads": 4, "num_kv_heads": 3},
            "num_kv_heads must be None or a divisor of num_heads",
        ),
        ({"window": 0}, "window must be an integer >= 1, got 0"),
        ({"window": 4, "causal": False}, "window must be None for an encoder, got 4"),
    ],
)
def test_config_names_what_is_wrong(options, message):
    with pytest.raises(ValueError, match=message):
        small(**options)


def test_config_takes_no_unknown_option():
    with pytest.raises(TypeError, match="dropuot"):
        TransformerConfig(dropuot=0.1)


def test_forward_names_what_is_wrong(tokens):
    model = Transformer(small())
    with pytest.raises(TypeError, match=r"tokens must be integers, got torch\.float32"):
        model(tokens.float())
    with pytest.raises(ValueError, match=r"tokens must be of shape \(B, N\), got \(12,\)"):
        model(tokens[0])
    with pytest.raises(ValueError, match="must be at most 16, got 24"):
        model(tokens.repeat(1, 2))
    with pytest.raises(ValueError, match=r"attention_mask must be of the shape of tokens"):
        model(tokens, attention_mask=torch.ones(3, 11))
    with pytest.raises(ValueError, match="attention_mask must be None with a cache"):
        model(tokens, attention_mask=torch.ones(3, 12), cache=KeyValueCache())
    with pytest.raises(ValueError, match="cache must be None for an encoder"):
        Transformer(small(causal=False))(tokens, cache=KeyValueCache())
    with pytest.raises(ValueError, match="loops must be one of"):
        KeyValueCache("first")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_tokens": -1}, "num_tokens must be an integer >= 0"),
        ({"temperature": -1.0}, "temperature must be at least 0"),
        ({"top_k": 0}, "top_k must be an integer >= 1"),
        ({"num_loops": 2}, "num_loops must be None for a model without loops"),
        ({"use_cache": False, "cache": KeyValueCache()}, "cache must be an empty cache"),
        ({"prompt": torch.zeros(2, 0, dtype=torch.long)}, "prompt must be"),
    ],
)
def test_generate_names_what_is_wrong(tokens, options, message):
    model = Transformer(small())
    with pytest.raises(ValueError, match=message):
        generate(model, **({"prompt": tokens, "num_tokens": 2} | options))

"""Readouts at every layer: the last is the model's own, the others are what hooks see."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from unrolled.descent.readout import (
    CLASSIFIERS,
    FINAL_NORMS,
    classification_losses,
    collect_losses,
    layer_logits,
    layer_readouts,
    squared_losses,
    state_readouts,
    token_losses,
)
from unrolled.transformer import Transformer, TransformerConfig

transformers = pytest.importorskip("transformers")

LAYERS, CLASSES, VOCAB = 3, 4, 50
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 40,
    "initializer_range": 0.3,
}
TOKENS = torch.randint(3, VOCAB, (3, 8), generator=torch.Generator().manual_seed(1))
MASK = torch.tensor([[1] * 8, [1] * 5 + [0] * 3, [1] * 2 + [0] * 6])
INPUTS = {"input_ids": TOKENS, "attention_mask": MASK}
LABELS = torch.tensor([0, 3, 1])


def make_config(family, **options):
    """A tiny configuration of a family, with weights that are not tiny."""
    sizes = dict(SIZES, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    if family in FINAL_NORMS and family not in ("gpt2", "gpt_neox"):
        sizes |= {"num_key_value_heads": 1, "head_dim": 8}
    if family == "gpt2":  # names the width of its MLP otherwise
        del sizes["intermediate_size"]
    if family == "electra":
        sizes["embedding_size"] = 16
    return transformers.AutoConfig.for_model(family, **sizes, **options)


def make_classifier(family):
    torch.manual_seed(0)
    config = make_config(family, num_labels=CLASSES)
    return transformers.AutoModelForSequenceClassification.from_config(config).eval()


def make_language_model(family):
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(make_config(family)).eval()


def make_own(causal=True, vocab=VOCAB, **options):
    torch.manual_seed(0)
    config = TransformerConfig(
        vocab_size=vocab,
        num_layers=LAYERS,
        hidden_size=16,
        num_heads=2,
        causal=causal,
        zero_output=False,
        **options,
    )
    model = Transformer(config)
    nn.init.normal_(model.head.weight)
    return model


def states_by_hooks(layers, run):
    """Return what enters the first layer and what leaves each, seen by hooks."""
    seen = []

    def first(states):
        return states[0] if isinstance(states, tuple) else states

    handles = [
        layers[0].register_forward_pre_hook(
            lambda module, inputs, named: seen.append(
                inputs[0] if inputs else named["hidden_states"]
            ),
            with_kwargs=True,
        ),
        *(
            layer.register_forward_hook(lambda module, inputs, output: seen.append(first(output)))
            for layer in layers
        ),
    ]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return seen


# --- classifiers ------------------------------------------------------------------------------


@pytest.mark.equation("eq-descent-readout")
@pytest.mark.parametrize("family", CLASSIFIERS)
def test_last_readout_of_a_classifier_is_its_own_prediction(family):
    model = make_classifier(family)
    logits = layer_logits(model, INPUTS)
    assert len(logits) == LAYERS + 1
    assert_close(logits[-1], model(**INPUTS).logits)
    assert all(z.shape == (3, CLASSES) for z in logits)
    assert not torch.allclose(logits[0], logits[1])


@pytest.mark.parametrize("family", CLASSIFIERS)
def test_every_layer_of_a_classifier_is_read_by_the_same_head(family):
    model = make_classifier(family)
    stack = model.distilbert.transformer.layer if family == "distilbert" else None
    layers = model.base_model.encoder.layer if stack is None else stack
    states = states_by_hooks(layers, lambda: model(**INPUTS))
    for z, state in zip(layer_logits(model, INPUTS), states, strict=True):
        assert_close(z, by_hand(model, family, state[:, 0]))
    # The masked mean goes through the same head, in the place of the first token.
    for z, state in zip(layer_logits(model, INPUTS, pooling="mean"), states, strict=True):
        means = [rows[: mask.sum()].mean(dim=0) for rows, mask in zip(state, MASK, strict=True)]
        assert_close(z, by_hand(model, family, torch.stack(means)))


def by_hand(model, family, pooled):
    """The head of each family without dropout, as its paper or library defines it."""
    if family == "bert":
        return model.classifier(torch.tanh(model.bert.pooler.dense(pooled)))
    if family == "distilbert":
        return model.classifier(F.relu(model.pre_classifier(pooled)))
    if family == "deberta-v2":
        return model.classifier(F.gelu(model.pooler.dense(pooled)))
    squash = F.gelu if family == "electra" else torch.tanh
    return model.classifier.out_proj(squash(model.classifier.dense(pooled)))


def test_segments_of_a_pair_reach_the_model():
    model = make_classifier("bert")
    inputs = INPUTS | {"token_type_ids": torch.tensor([[0] * 4 + [1] * 4] * 3)}
    assert_close(layer_logits(model, inputs)[-1], model(**inputs).logits)
    assert not torch.allclose(layer_logits(model, inputs)[-1], layer_logits(model, INPUTS)[-1])


def test_losses_of_a_classifier_are_those_of_its_samples():
    model = make_classifier("bert")
    losses = classification_losses(model, INPUTS, LABELS)
    assert losses.shape == (LAYERS + 1, 3)
    assert_close(losses[-1].mean(), model(**INPUTS, labels=LABELS).loss)
    losses[-1].mean().backward()
    readout = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    model(**INPUTS, labels=LABELS).loss.backward()
    own = [p.grad for p in model.parameters() if p.grad is not None]
    for one, two in zip(readout, own, strict=True):
        assert_close(one, two)


@pytest.mark.parametrize("family", FINAL_NORMS)
def test_a_decoder_classifies_by_its_last_token_after_its_norm(family):
    model, norm = make_classifier(family), FINAL_NORMS[family]
    nn.init.uniform_(getattr(model.base_model, norm).weight, 0.5, 2.0)
    inputs = INPUTS | {"input_ids": TOKENS * MASK}  # padded with the token that means padding
    logits = layer_logits(model, inputs)
    assert_close(logits[-1], model(**inputs).logits)
    states = model.base_model(**inputs, output_hidden_states=True).hidden_states
    last = torch.stack([rows[n - 1] for rows, n in zip(states[1], MASK.sum(1), strict=True)])
    assert_close(logits[1], model.score(getattr(model.base_model, norm)(last)))


def test_the_last_token_is_the_last_that_is_no_padding_on_either_side():
    model, flipped = make_classifier("roberta"), INPUTS | {"attention_mask": MASK.flip(1)}
    for inputs, place in ((INPUTS, 4), (flipped, 7)):  # of the second text, of five tokens
        state, read = layer_readouts(model, inputs, pooling="last")[1]
        assert_close(read(state)[1:2], by_hand(model, "roberta", state[1:2, place]))
    unmasked = layer_logits(model, TOKENS, pooling="last")[2]
    state = layer_readouts(model, TOKENS)[2][0]
    assert_close(unmasked, by_hand(model, "roberta", state[:, -1]))


def test_a_decoder_can_be_asked_for_the_mean_of_what_it_would_read():
    model = make_classifier("llama")
    states = model.model(**INPUTS, output_hidden_states=True).hidden_states
    for layer, z in enumerate(layer_logits(model, INPUTS, pooling="mean")):
        normed = states[layer] if layer == LAYERS else model.model.norm(states[layer])
        assert_close(z[1], model.score(normed[1, :5].mean(dim=0)))


# --- language models --------------------------------------------------------------------------


@pytest.mark.equation("eq-descent-readout")
@pytest.mark.parametrize("family", FINAL_NORMS)
def test_logit_lens_ends_in_the_model_and_norms_each_state_once(family):
    model = make_language_model(family)
    norm = getattr(model.base_model, FINAL_NORMS[family])
    nn.init.uniform_(norm.weight, 0.5, 2.0)  # so that norming twice is not norming once
    logits = layer_logits(model, INPUTS)
    assert_close(logits[-1], model(**INPUTS).logits)
    layers = model.transformer.h if family == "gpt2" else model.base_model.layers
    states = states_by_hooks(layers, lambda: model(**INPUTS, use_cache=False))
    for z, state in zip(logits, states, strict=True):
        assert_close(z, model.lm_head(norm(state)))


@pytest.mark.parametrize("make", [make_classifier, make_language_model])
def test_states_of_a_pass_that_was_made_are_read_alike(make):
    model = make("llama")
    states = model(**INPUTS, output_hidden_states=True).hidden_states
    pairs = zip(state_readouts(model, states, INPUTS), layer_logits(model, INPUTS), strict=True)
    for (state, read), z in pairs:
        assert torch.equal(read(state), z)


def test_token_losses_are_the_cross_entropy_per_text():
    model = make_language_model("llama")
    tokens, targets = TOKENS[:, :-1], TOKENS[:, 1:].clone()
    targets[MASK[:, 1:] == 0] = -100
    losses = token_losses(model, tokens, targets)
    assert losses.shape == (LAYERS + 1, 3)
    for layer, z in enumerate(layer_logits(model, tokens)):
        expected = [F.cross_entropy(*pair) for pair in zip(z, targets, strict=True)]
        assert_close(losses[layer], torch.stack(expected))
    whole = torch.full_like(targets[:1], -100)
    assert token_losses(model, tokens[:1], whole).tolist() == [[0.0]] * (LAYERS + 1)


def test_recomputed_logits_give_the_same_losses_and_gradients():
    model = make_language_model("gpt2")
    found = []
    for recompute in (False, True):
        model.zero_grad()
        losses = token_losses(model, TOKENS[:, :-1], TOKENS[:, 1:], recompute=recompute)
        (losses.mean(dim=1) * torch.arange(1.0, LAYERS + 2)).sum().backward()
        found.append([losses.detach(), *(p.grad.clone() for p in model.parameters())])
    for one, two in zip(*found, strict=True):
        assert_close(one, two)


# --- the book's own Transformer ---------------------------------------------------------------


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_readouts_of_the_own_transformer(causal, norm):
    model = make_own(causal, norm=norm)
    output = model(TOKENS, hidden_states=True)
    logits = layer_logits(model, TOKENS)
    assert torch.equal(logits[-1], output.logits)
    for z, state in zip(logits, output.hidden_states, strict=True):
        assert_close(z, 15 * torch.tanh(model.head(model.norm(state)) / 15))
    losses = token_losses(model, TOKENS[:, :-1], TOKENS[:, 1:])
    assert_close(losses[-1].mean(), model.loss(TOKENS[:, :-1], TOKENS[:, 1:]))


def test_an_own_encoder_classifies_after_pooling():
    model = make_own(causal=False, vocab=VOCAB)
    states = model(TOKENS, hidden_states=True, attention_mask=MASK).hidden_states
    for pooling in ("cls", "mean"):
        losses = classification_losses(model, INPUTS, LABELS, pooling=pooling)
        state = states[1][1]  # layer 1 of the second text, of five tokens
        pooled = state[0] if pooling == "cls" else state[:5].mean(dim=0)
        assert_close(losses[1, 1], F.cross_entropy(model.logits_from(pooled), LABELS[1]))


def test_without_a_mask_the_mean_is_over_all_tokens():
    model = make_own(causal=False)
    everything = {"input_ids": TOKENS, "attention_mask": torch.ones_like(TOKENS)}
    for one, two in zip(
        layer_logits(model, TOKENS, pooling="mean"),
        layer_logits(model, everything, pooling="mean"),
        strict=True,
    ):
        assert_close(one, two)


def test_a_uniform_prediction_costs_log_of_the_classes_at_every_layer():
    model = make_own(causal=False)
    nn.init.zeros_(model.head.weight)
    losses = classification_losses(model, INPUTS, LABELS, pooling="mean")
    assert_close(losses, torch.full((LAYERS + 1, 3), math.log(VOCAB)))


# --- what is refused --------------------------------------------------------------------------


def test_other_models_are_refused_with_what_is_supported():
    masked = transformers.BertForMaskedLM(transformers.BertConfig(**SIZES))
    tokens = transformers.BertForTokenClassification(transformers.BertConfig(**SIZES))
    opt = transformers.OPTConfig(
        vocab_size=VOCAB, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, ffn_dim=8
    )
    bare = transformers.LlamaModel(make_config("llama"))
    for model in (nn.Linear(2, 2), masked, tokens, bare, transformers.OPTForCausalLM(opt)):
        with pytest.raises(TypeError, match=r"model must be .*'bert'.*'llama'.*got"):
            layer_readouts(model, TOKENS)


@pytest.mark.parametrize("make", [make_own, lambda: make_language_model("llama")])
def test_a_language_model_is_not_pooled(make):
    with pytest.raises(ValueError, match="pooling must be None for a causal language model"):
        layer_logits(make(), TOKENS, pooling="mean")


def test_arguments_outside_their_range_are_named():
    with pytest.raises(ValueError, match="pooling must be one of"):
        layer_logits(make_own(), TOKENS, pooling="max")
    with pytest.raises(ValueError, match="pooling must be given"):
        classification_losses(make_own(causal=False), TOKENS, LABELS)
    with pytest.raises(ValueError, match="inputs must be a mapping of"):
        layer_logits(make_own(), {"input_ids": TOKENS, "token_type_ids": TOKENS})
    with pytest.raises(ValueError, match="predictions must be of the shape of target"):
        squared_losses([torch.zeros(2, 3)], torch.zeros(2, 4))


# --- losses of a whole set --------------------------------------------------------------------


class Doubling(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(2.0))
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        return [x, self.dropout(self.weight * x)]


def test_squared_losses_are_the_mean_squares_per_sample():
    target = torch.randn(5, 2, 3)
    losses = squared_losses([target + 1, target * 0], target)
    assert_close(losses[0], torch.ones(5))
    assert_close(losses[1], target.square().mean(dim=(1, 2)))


def test_a_set_is_collected_without_dropout_and_gradient_and_the_mode_is_kept():
    model, x = Doubling(), torch.randn(7, 3)

    def per_sample(model, batch):
        return squared_losses(model(batch), torch.zeros_like(batch))

    losses = collect_losses(model, per_sample, x.split(3))
    squares = x.square().mean(dim=1)
    assert_close(losses, torch.stack((squares, 4 * squares)))
    assert not losses.requires_grad
    assert model.training
    means = collect_losses(model, lambda m, b: per_sample(m, b).mean(dim=1), x.split(3))
    assert_close(means, losses.mean(dim=1))
    with pytest.raises(ValueError, match="batches must be at least one batch"):
        collect_losses(model, per_sample, [])


def test_the_mode_is_kept_also_after_an_error():
    model = Doubling()
    with pytest.raises(ZeroDivisionError):
        collect_losses(model, lambda m, b: 1 / 0, [torch.ones(1, 1)])
    assert model.training

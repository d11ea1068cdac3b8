r"""A loss at every layer: the model's own head, read off every state of its residual stream.

A model ends with a readout R of its last state, :math:`\hat y = R(x_L)`. Reading the states of the
other layers with the *same* R gives a prediction, and a loss, at every layer,

.. math:: f_l = \ell\bigl(R(x_l),\, y\bigr), \qquad l = 0, \dots, L,

:eq:`eq-descent-readout`, without new parameters; that of the last layer is the model's own. For a
language model this is the *logit lens*: its final norm and head on every state. For a model that
classifies, R pools the tokens: the first one ([CLS]) of an encoder and the last one of a decoder,
as the model does, or the mean over tokens that are no padding. The shared R is our choice: the
paper does not say how it reads its inner layers.

Supported are `unrolled.transformer.Transformer`, and Hugging Face's models of the families in
`CLASSIFIERS` (encoders that classify: BERT, MiniLM too, DistilBERT, RoBERTa and others) and in
`FINAL_NORMS` (decoders, as language models or to classify: Llama, SmolLM2 too, Mistral, Qwen2,
GPT-2 and others), with adapters of ``peft`` or without. Such a model brings its library
``transformers`` along; nothing here imports it. `unrolled.descent.trainer` trains them with the
``Trainer`` of that library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from accelerate.utils import find_batch_size, send_to_device
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from unrolled.descent.constraints import LayerLosses, stack_losses
from unrolled.optimization import require
from unrolled.transformer import Transformer, require_choice

__all__ = [
    "CLASSIFIERS",
    "FINAL_NORMS",
    "POOLINGS",
    "classification_losses",
    "collect_losses",
    "layer_logits",
    "layer_readouts",
    "squared_losses",
    "state_losses",
    "state_readouts",
    "token_losses",
]

POOLINGS = ("cls", "mean", "last")
Readout = tuple[Tensor, Callable[[Tensor], Tensor]]


def _bert_head(model: nn.Module, states: Tensor) -> Tensor:
    return model.classifier(model.dropout(model.bert.pooler(states)))


def _distilbert_head(model: nn.Module, states: Tensor) -> Tensor:
    hidden = F.relu(model.pre_classifier(states[:, 0]))
    return model.classifier(model.dropout(hidden))


def _roberta_head(model: nn.Module, states: Tensor) -> Tensor:
    return model.classifier(states)


def _deberta_head(model: nn.Module, states: Tensor) -> Tensor:
    return model.classifier(model.dropout(model.pooler(states)))


# How each family of classifiers reads its last state (B, N, d); all of them look at token 0 alone.
CLASSIFIERS: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "bert": _bert_head,
    "camembert": _roberta_head,
    "deberta-v2": _deberta_head,
    "distilbert": _distilbert_head,
    "electra": _roberta_head,
    "roberta": _roberta_head,
    "xlm-roberta": _roberta_head,
}
# Where each family of decoders keeps its final norm.
FINAL_NORMS = {
    "gemma": "norm",
    "gpt2": "ln_f",
    "gpt_neox": "final_layer_norm",
    "llama": "norm",
    "mistral": "norm",
    "olmo2": "norm",
    "phi": "final_layernorm",
    "qwen2": "norm",
    "qwen3": "norm",
    "smollm3": "norm",
}


def layer_readouts(
    model: nn.Module, inputs: Tensor | Mapping[str, Tensor], *, pooling: str | None = None
) -> list[Readout]:
    """Run a model and return each of its states with the readout that belongs to it.

    Parameters
    ----------
    model : Module
        One of those named in the head of this module.
    inputs : Tensor or mapping
        Token ids (B, N), or a mapping with ``input_ids`` and, if there is padding,
        ``attention_mask`` (and for Hugging Face models whatever else they take).
    pooling : {"cls", "mean", "last"}, optional
        What represents the text: its first token, the mean over its tokens, or its last token that
        is no padding. By default what the model itself does: an encoder that classifies looks at
        the first token, a decoder that does at the last, any other model predicts at every token.

    Returns
    -------
    list of L + 1 pairs
        A state, and a function that maps it to logits. So a caller can read one layer at a time.

    Raises
    ------
    TypeError
        If the model is not supported; the message says which are.
    ValueError
        If `pooling` is unknown, or asked of a causal language model; if the model has a prompt
        that ``peft`` learns, whose tokens have no inputs.

    Examples
    --------
    >>> from unrolled.transformer import TransformerConfig
    >>> model = Transformer(TransformerConfig(num_layers=2, hidden_size=16, num_heads=2))
    >>> state, read = layer_readouts(model, torch.tensor([[72, 105]]))[0]
    >>> state.shape, read(state).shape
    (torch.Size([1, 2, 16]), torch.Size([1, 2, 256]))
    """
    inputs = {"input_ids": inputs} if isinstance(inputs, Tensor) else dict(inputs)
    read = _reader_of(model, inputs, pooling)
    return read(_states(model, inputs))


def state_readouts(
    model: nn.Module,
    states: Sequence[Tensor],
    inputs: Mapping[str, Tensor],
    *,
    pooling: str | None = None,
) -> list[Readout]:
    """Return what `layer_readouts` does, from the states of a forward pass that was made already.

    Parameters
    ----------
    model : Module
        As in `layer_readouts`, without what wraps it for several processes.
    states : sequence of L + 1 tensors (B, N, d)
        The ``hidden_states`` that it returned.
    inputs : mapping
        Of that pass.
    pooling
        As in `layer_readouts`.

    Returns
    -------
    list of L + 1 pairs

    Examples
    --------
    >>> from unrolled.transformer import TransformerConfig
    >>> model = Transformer(TransformerConfig(num_layers=2, hidden_size=16, num_heads=2))
    >>> tokens = torch.tensor([[72, 105]])
    >>> output = model(tokens, hidden_states=True)
    >>> state, read = state_readouts(model, output.hidden_states, {"input_ids": tokens})[-1]
    >>> torch.equal(read(state), output.logits)
    True
    """
    return _reader_of(model, inputs, pooling)(states)


def _reader_of(
    model: nn.Module, inputs: Mapping[str, Tensor], pooling: str | None
) -> Callable[[Sequence[Tensor]], list[Readout]]:
    """Return what pairs the states of a model with their readouts."""
    if pooling is not None:
        require_choice(pooling, "pooling", POOLINGS)
    model = _without_adapters(model)
    if isinstance(model, Transformer):
        return _own_reader(model, inputs, pooling)
    family = getattr(getattr(model, "config", None), "model_type", None)
    classifies = type(model).__name__.endswith("ForSequenceClassification")
    if classifies and family in CLASSIFIERS:
        return _encoder_reader(model, inputs, pooling or "cls", CLASSIFIERS[family])
    if classifies and family in FINAL_NORMS:
        return _decoder_reader(model, inputs, pooling, FINAL_NORMS[family])
    if family in FINAL_NORMS and model.get_output_embeddings() is not None:
        _refuse_pooling(pooling, causal=True)
        return _language_reader(model, FINAL_NORMS[family])
    raise TypeError(
        f"model must be an unrolled Transformer, a Hugging Face ...ForSequenceClassification of "
        f"{sorted(CLASSIFIERS)} or of a decoder, or a causal language model of "
        f"{sorted(FINAL_NORMS)}, got {type(model).__name__}"
    )


def _without_adapters(model: nn.Module) -> nn.Module:
    """Return the model that ``peft`` has wrapped; its adapters stay in it."""
    if not hasattr(model, "get_base_model"):
        return model
    prompted = model.active_peft_config.is_prompt_learning
    require(not prompted, "model", type(model).__name__, "without a prompt that peft learns")
    return model.get_base_model()


def _states(model: nn.Module, inputs: dict[str, Tensor]) -> Sequence[Tensor]:
    """Run a model that is supported up to its last state."""
    model = _without_adapters(model)
    if isinstance(model, Transformer):
        mask = inputs.get("attention_mask")
        return model(inputs["input_ids"], hidden_states=True, attention_mask=mask).hidden_states
    options = {"use_cache": False} if model.config.model_type in FINAL_NORMS else {}
    output = model.base_model(**inputs, output_hidden_states=True, return_dict=True, **options)
    return output.hidden_states


def _own_reader(
    model: Transformer, inputs: Mapping[str, Tensor], pooling: str | None
) -> Callable[[Sequence[Tensor]], list[Readout]]:
    unknown = sorted(set(inputs) - {"input_ids", "attention_mask"})
    require(not unknown, "inputs", unknown, "a mapping of input_ids and attention_mask only")
    _refuse_pooling(pooling, model.config.causal)
    mask = inputs.get("attention_mask")

    def read(state: Tensor) -> Tensor:
        return model.logits_from(state if pooling is None else _pool(state, mask, pooling))

    return lambda states: [(state, read) for state in states]


def _encoder_reader(
    model: nn.Module, inputs: Mapping[str, Tensor], pooling: str, head: Callable
) -> Callable[[Sequence[Tensor]], list[Readout]]:
    mask = inputs.get("attention_mask")

    def read(state: Tensor) -> Tensor:
        return head(model, _pool(state, mask, pooling)[:, None])

    return lambda states: [(state, read) for state in states]


def _decoder_reader(
    model: nn.Module, inputs: Mapping[str, Tensor], pooling: str | None, norm_name: str
) -> Callable[[Sequence[Tensor]], list[Readout]]:
    mask = inputs.get("attention_mask")
    if pooling is None and model.config.pad_token_id is not None:
        # So these libraries find the last token, whatever the mask says.
        mask = inputs["input_ids"] != model.config.pad_token_id

    def head(normed: Tensor) -> Tensor:
        return model.score(_pool(normed, mask, pooling or "last"))

    return _after_norm(getattr(model.base_model, norm_name), head)


def _language_reader(
    model: nn.Module, norm_name: str
) -> Callable[[Sequence[Tensor]], list[Readout]]:
    return _after_norm(getattr(model.base_model, norm_name), model.get_output_embeddings())


def _after_norm(norm: nn.Module, head: Callable) -> Callable[[Sequence[Tensor]], list[Readout]]:
    """Read through a final norm; these libraries return the last state with it already applied."""

    def read(state: Tensor) -> Tensor:
        return head(norm(state))

    return lambda states: [*((state, read) for state in states[:-1]), (states[-1], head)]


def _refuse_pooling(pooling: str | None, causal: bool) -> None:
    allowed = "None for a causal language model, which predicts at every token"
    require(pooling is None or not causal, "pooling", pooling, allowed)


def _pool(state: Tensor, mask: Tensor | None, pooling: str) -> Tensor:
    if pooling == "cls":
        return state[:, 0]  # (B, d)
    if mask is None:
        return state.mean(dim=1) if pooling == "mean" else state[:, -1]
    if pooling == "last":
        places = torch.arange(mask.shape[1], device=mask.device)
        last = (places * mask.bool()).argmax(dim=1)  # (B,)
        return state[torch.arange(len(state), device=state.device), last]
    weights = mask.to(state)[..., None]  # (B, N, 1)
    return (weights * state).sum(dim=1) / weights.sum(dim=1)


# --- logits and losses ------------------------------------------------------------------------


def layer_logits(
    model: nn.Module, inputs: Tensor | Mapping[str, Tensor], *, pooling: str | None = None
) -> list[Tensor]:
    """Return the prediction of every layer; the last is the model's own.

    Parameters
    ----------
    model, inputs, pooling
        As in `layer_readouts`.

    Returns
    -------
    list of L + 1 tensors
        (B, C) for a classifier or with `pooling`, (B, N, V) otherwise.

    Examples
    --------
    >>> from unrolled.transformer import TransformerConfig
    >>> config = TransformerConfig(num_layers=2, hidden_size=16, num_heads=2, causal=False)
    >>> model, tokens = Transformer(config), torch.tensor([[72, 105]])
    >>> torch.equal(layer_logits(model, tokens)[-1], model(tokens).logits)
    True
    >>> layer_logits(model, tokens, pooling="mean")[0].shape
    torch.Size([1, 256])
    """
    return [read(state) for state, read in layer_readouts(model, inputs, pooling=pooling)]


def classification_losses(
    model: nn.Module,
    inputs: Tensor | Mapping[str, Tensor],
    labels: Tensor,
    *,
    pooling: str | None = None,
) -> Tensor:
    """Return the cross-entropy of each sample at every layer of a classifier.

    Parameters
    ----------
    model, inputs, pooling
        As in `layer_readouts`; a model of our own needs a `pooling`.
    labels : Tensor
        Integers (B,).

    Returns
    -------
    Tensor
        (L + 1, B), in nats.

    Examples
    --------
    >>> from unrolled.transformer import TransformerConfig
    >>> config = TransformerConfig(num_layers=3, hidden_size=16, num_heads=2, causal=False)
    >>> tokens, labels = torch.tensor([[72, 105], [104, 105]]), torch.tensor([0, 1])
    >>> classification_losses(Transformer(config), tokens, labels, pooling="mean").shape
    torch.Size([4, 2])
    """
    logits = layer_logits(model, inputs, pooling=pooling)
    shape = tuple(logits[0].shape)
    require(logits[0].ndim == 2, "pooling", pooling, f"given: the logits have shape {shape}")
    return torch.stack([F.cross_entropy(_full(z), labels, reduction="none") for z in logits])


def token_losses(
    model: nn.Module,
    inputs: Tensor | Mapping[str, Tensor],
    targets: Tensor,
    *,
    recompute: bool = False,
) -> Tensor:
    """Return the cross-entropy of each text at every layer, the mean over its tokens.

    Parameters
    ----------
    model, inputs
        As in `layer_readouts`.
    targets : Tensor
        Integers (B, N), the token after each one (already shifted). Targets of -100 do not count;
        a text without any other has the loss 0.
    recompute : bool
        Compute the logits of each layer anew in the backward pass. L + 1 times (B, N, V) is more
        than the rest of a small language model needs; so one layer's logits are held at a time.

    Returns
    -------
    Tensor
        (L + 1, B), in nats per token. Each text counts alike, however many tokens it has.

    Examples
    --------
    >>> from unrolled.transformer import TransformerConfig
    >>> model = Transformer(TransformerConfig(num_layers=2, hidden_size=16, num_heads=2))
    >>> tokens = torch.tensor([[72, 101, 108, 108, 111]])
    >>> token_losses(model, tokens[:, :-1], tokens[:, 1:]).shape
    torch.Size([3, 1])
    """
    return state_losses(layer_readouts(model, inputs), targets, recompute=recompute)


def state_losses(
    readouts: Sequence[Readout], targets: Tensor, *, recompute: bool = False
) -> Tensor:
    """Return the cross-entropy of each text for some states: a part of `token_losses`.

    A head with a large vocabulary is dear, so a caller may read some layers and some tokens only.

    Parameters
    ----------
    readouts : sequence of k pairs
        States (B, N, d) and what reads them, from `layer_readouts`.
    targets : Tensor
        Integers (B, N), as in `token_losses`; or (B,), as in `classification_losses`.
    recompute : bool
        As in `token_losses`.

    Returns
    -------
    Tensor
        (k, B), in nats per token or per text.

    Examples
    --------
    >>> from unrolled.transformer import TransformerConfig
    >>> model = Transformer(TransformerConfig(num_layers=4, hidden_size=16, num_heads=2))
    >>> tokens = torch.tensor([[72, 101, 108, 108, 111]])
    >>> readouts = layer_readouts(model, tokens[:, :-1])
    >>> second = [(state[:, 1::2], read) for state, read in readouts[::2]]
    >>> state_losses(second, tokens[:, 2::2]).shape        # layers 0, 2, 4; every second token
    torch.Size([3, 1])
    """

    def loss(state: Tensor, read: Callable[[Tensor], Tensor]) -> Tensor:
        z = _full(read(state))  # (B, C) or (B, N, V)
        if targets.ndim == 1:
            return F.cross_entropy(z, targets, reduction="none")
        losses = F.cross_entropy(z.transpose(1, 2), targets, reduction="none")  # (B, N)
        return losses.sum(dim=1) / (targets != -100).sum(dim=1).clamp_min(1)

    if not recompute:
        return torch.stack([loss(*pair) for pair in readouts])
    return torch.stack([checkpoint(loss, *pair, use_reentrant=False) for pair in readouts])


def _full(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def squared_losses(predictions: Sequence[Tensor], target: Tensor) -> Tensor:
    r"""Return the mean squared error of each sample at every layer.

    .. math:: f_{l,i} = \frac1D \bigl\lVert \Phi_l(x_i) - y_i \bigr\rVert^2

    Parameters
    ----------
    predictions : sequence of L + 1 tensors (B, ...)
    target : Tensor
        (B, ...), with D numbers a sample.

    Returns
    -------
    Tensor
        (L + 1, B).

    Examples
    --------
    >>> squared_losses([torch.zeros(1, 2), torch.ones(1, 2)], torch.ones(1, 2))
    tensor([[1.],
            [0.]])
    """
    for prediction in predictions:
        shape, expected = tuple(prediction.shape), tuple(target.shape)
        require(shape == expected, "predictions", shape, f"of the shape of target, {expected}")
    return torch.stack([(p - target).square().flatten(1).mean(dim=1) for p in predictions])


@torch.no_grad()
def collect_losses(
    model: nn.Module,
    layer_losses: Callable[[nn.Module, Any], LayerLosses],
    batches: Iterable[Any],
) -> Tensor:
    """Return the layer losses of a whole set, without gradients and without dropout.

    Parameters
    ----------
    model : Module
        It is put into evaluation mode, and back into its mode at the end.
    layer_losses : callable
        Maps the model and a batch to the losses of its layers, (L + 1,) or (L + 1, B).
    batches : iterable
        Batches of any sizes; they are moved to the device of the model.

    Returns
    -------
    Tensor
        (L + 1, n), the losses of all n samples; or if `layer_losses` returns means, their means
        over all samples, (L + 1,).

    Raises
    ------
    ValueError
        If there is no batch.

    Examples
    --------
    >>> line = nn.Linear(1, 1)
    >>> def layer_losses(model, x):
    ...     return squared_losses([x, model(x)], torch.zeros_like(x))
    >>> collect_losses(line, layer_losses, [torch.ones(3, 1), torch.ones(2, 1)]).shape
    torch.Size([2, 5])
    """
    parts, rows = [], []
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    training = model.training
    model.eval()
    try:
        for batch in batches:
            parts.append(stack_losses(layer_losses(model, send_to_device(batch, device))))
            rows.append(find_batch_size(batch))
    finally:
        model.train(training)
    require(bool(parts), "batches", batches, "at least one batch")
    if parts[0].ndim == 2:
        return torch.cat(parts, dim=1)
    shares = parts[0].new_tensor(rows) / sum(rows)
    return torch.stack(parts, dim=1) @ shares

"""Workloads: what a training of each experiment costs, for `unrolled.plan`.

One function for each kind of network. It reads the settings, builds the model without memory to
count its parameters, and counts the rest in closed form (`unrolled.plan.Blocks`), or, where a
network is small and no Transformer, with ``torch.utils.flop_counter``. Like the catalog this module
knows the experiments, so it imports them when they are asked for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from unrolled.experiment import Case, Experiment
from unrolled.plan import Blocks, Workload, adam_bytes

if TYPE_CHECKING:
    from torch import nn

    from unrolled.transformer import TransformerConfig

__all__ = ["WORKLOADS", "counted_flops", "workload_of"]

FOOTAGE = (8, 64)  # frames of a sequence, and pixels of its patch
LOGIT_BYTES = 12  # the logit, its log-probability and its gradient, each in float32


def workload_of(experiment: Experiment, settings: Any, case: Case) -> Workload | None:
    """Return what a case costs, or None if nothing is trained in it.

    Raises
    ------
    ValueError
        If the experiment has no workload; names those that have one.
    """
    if experiment.name not in WORKLOADS:
        raise ValueError(
            f"{experiment.name} cannot be planned; allowed: {', '.join(sorted(WORKLOADS))}"
        )
    return WORKLOADS[experiment.name](settings, case)


def number_bytes(precision: str) -> int:
    """Return the bytes of an activation."""
    return 4 if precision == "no" else 2


# --- looped -------------------------------------------------------------------------------------


def looped(settings: Any, case: Case) -> Workload:
    """Count a looped model, or the plain one that applies as many blocks, on text."""
    optimizer = case.get("optimizer", settings.optimizer)
    return _looped(settings.config, case["variant"], case["num_loops"], optimizer, settings)


def looped_inference(settings: Any, case: Case) -> Workload | None:
    """Count the models on text; those on the tasks are small change, and left out."""
    return looped(settings, case) if case["data"] == "text" else None


def looped_depth(settings: Any, case: Case) -> Workload:
    """Count a model on a task, whose questions have a length of their own."""
    from unrolled.looped.depth import TASKS, config_of

    config = config_of(settings, TASKS[case["task"]], case["num_layers"])
    steps = settings.addition_steps if case["task"] == "addition" else settings.steps
    schedule = dataclasses.replace(settings, steps=steps)
    return _looped(config, case["variant"], case["num_loops"], settings.optimizer, schedule)


def _looped(
    config: TransformerConfig, variant: str, num_loops: int, optimizer: str, settings: Any
) -> Workload:
    from unrolled.looped.model import build

    model = on_meta(lambda: build(config, variant, num_loops))
    return _text_model(model, config, num_loops, optimizer, settings, settings.steps)


def _text_model(
    model: nn.Module,
    config: TransformerConfig,
    num_loops: int,
    optimizer: str,
    settings: Any,
    steps: int,
) -> Workload:
    from unrolled.transformer import count_parameters

    blocks = blocks_of(config, num_loops)
    total = count_parameters(model)
    logits = config.max_length * config.vocab_size
    return Workload(
        parameters=total,
        trainable=total,
        flops=blocks.flops + 2 * config.hidden_size * logits,
        tokens=config.max_length,
        kept=number_bytes(settings.mixed_precision) * blocks.kept + LOGIT_BYTES * logits,
        batch_size=settings.batch_size,
        steps=steps,
        precision=settings.mixed_precision,
        state_bytes=_state_bytes(model, optimizer),
    )


def blocks_of(config: TransformerConfig, num_loops: int = 1, length: int | None = None) -> Blocks:
    """Return the blocks of our Transformer."""
    return Blocks(
        layers=config.num_layers,
        width=config.hidden_size,
        length=config.max_length if length is None else length,
        hidden=config.mlp_ratio * config.hidden_size,
        key_width=config.kv_size,
        window=config.window,
        applications=num_loops,
    )


def _state_bytes(model: nn.Module, optimizer: str) -> int:
    from unrolled.optimization import trainable_groups

    sizes = {name: sum(p.numel() for p in ps) for name, ps in trainable_groups(model).items()}
    matrices = sizes.get("matrices", 0) if optimizer == "muon" else 0
    return 4 * matrices + adam_bytes(sum(sizes.values()) - matrices)


def on_meta(build: Callable[[], nn.Module]) -> nn.Module:
    """Build a model without memory."""
    import torch

    with torch.device("meta"):
        return build()


# --- horst --------------------------------------------------------------------------------------


def horst_vision(settings: Any, case: Case) -> Workload:
    """Count a ViT in closed form, or a convolutional network with the counter."""
    import torch

    from unrolled.horst.vision import SHAPES, build_model
    from unrolled.transformer import count_parameters

    if case["model"] == "vit":
        model = on_meta(lambda: build_model(settings, "vit"))
        flops, kept, tokens = _vit(model, number_bytes(settings.mixed_precision))
    else:
        model = build_model(settings, "cnn")
        side, channels, _ = SHAPES[settings.data]
        image = torch.zeros(1, channels, side, side)
        flops, kept, tokens = counted_flops(model, image), kept_bytes(model, image), 1
    total = count_parameters(model)
    return Workload(
        parameters=total,
        trainable=total,
        flops=flops,
        tokens=tokens,
        kept=kept,
        batch_size=settings.batch_size,
        steps=settings.steps,
        precision=settings.mixed_precision,
        state_bytes=adam_bytes(total),
    )


def _vit(model: Any, number: int) -> tuple[int, int, int]:
    config = model.config
    tokens = config.num_patches + 1
    blocks = blocks_of(config.block, length=tokens)
    pixels = config.num_channels * config.patch_size**2
    patches = 2 * config.num_patches * pixels * config.hidden_size
    head = 2 * config.hidden_size * config.num_classes
    return blocks.flops + patches + head, number * blocks.kept, tokens


def horst_language(settings: Any, case: Case) -> Workload:
    """Count the training of a GPT and, behind it, the recoveries of its pruned copies."""
    from unrolled.horst.language import build_model

    steps = settings.steps + settings.recovery_steps * len(settings.recovered_sparsities)
    model = on_meta(lambda: build_model(settings.config))
    return _text_model(model, settings.config, 1, "adamw", settings, steps)


# --- descent ------------------------------------------------------------------------------------


def descent_language(settings: Any, case: Case) -> Workload | None:
    """Count a frozen decoder with adapters, whose head reads several layers."""
    from unrolled.descent.language import add_adapters, shape_of
    from unrolled.transformer import count_parameters

    if case["method"] == "none":
        return None
    shape = shape_of(settings)
    model = on_meta(lambda: _decoder(shape))
    total = count_parameters(model)
    add_adapters(model.requires_grad_(False), settings.rank)
    trainable = count_parameters(model) - total
    read = len(range(settings.read_every - 1, settings.length, settings.read_every))
    logits = read * len(settings.layers) * shape["vocab_size"]
    blocks = decoder_blocks(shape, settings.length)
    size = number_bytes(settings.mixed_precision)
    return Workload(
        parameters=total + trainable,
        trainable=trainable,
        flops=blocks.flops
        + 2 * shape["hidden_size"] * logits
        + 2 * settings.length * trainable,  # an adapter is a matrix like another
        tokens=settings.length,
        # Read once more in the backward pass, the logits of one layer are there at a time.
        kept=size * blocks.kept
        + LOGIT_BYTES * logits / (len(settings.layers) if settings.recompute else 1),
        batch_size=settings.batch_size,
        steps=settings.steps,
        precision=settings.mixed_precision,
        state_bytes=adam_bytes(trainable),
        backward=1.0,  # frozen weights have no gradient, but what they stand on has
        weight_bytes=2 if settings.model == "llama" else 4,
    )


def _decoder(shape: dict[str, Any]) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**shape))


def decoder_blocks(shape: dict[str, Any], length: int) -> Blocks:
    """Return the blocks of a Llama: keys and values have fewer heads, and the MLP is gated."""
    head = shape["hidden_size"] // shape["num_attention_heads"]
    return Blocks(
        layers=shape["num_hidden_layers"],
        width=shape["hidden_size"],
        length=length,
        hidden=shape["intermediate_size"],
        key_width=head * shape["num_key_value_heads"],
        matrices=3,
    )


def encoder_blocks(config: Any, length: int) -> Blocks:
    """Return the blocks of an encoder of `transformers` in the manner of BERT."""
    distilled = config.model_type == "distilbert"  # which has a name of its own for this
    return Blocks(
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        length=length,
        hidden=config.hidden_dim if distilled else config.intermediate_size,
    )


def descent_text(settings: Any, case: Case) -> Workload | None:
    """Count an encoder with a small head, which is read at every layer."""
    from unrolled.descent.text import METHODS

    return _text(settings) if case["method"] in METHODS else None


@lru_cache(maxsize=4)
def _text(settings: Any) -> Workload:
    from unrolled.descent.text import ENCODERS, classifier_of, classifier_on_meta

    build = classifier_on_meta if settings.encoder in ENCODERS else classifier_of
    return text_encoder(build(settings), settings)


def text_encoder(model: nn.Module, settings: Any) -> Workload:
    """Count an encoder of `transformers`, trained or frozen in part."""
    sizes = [(p.numel(), p.requires_grad) for p in model.parameters()]
    trainable = sum(size for size, trained in sizes if trained)
    blocks = encoder_blocks(model.config, settings.length)
    return Workload(
        parameters=sum(size for size, _ in sizes),
        trainable=trainable,
        flops=blocks.flops,
        tokens=settings.length,
        kept=number_bytes(settings.mixed_precision) * blocks.kept,
        batch_size=settings.batch_size,
        steps=settings.steps,
        precision=settings.mixed_precision,
        state_bytes=adam_bytes(trainable),
    )


def descent_video(settings: Any, case: Case) -> Workload | None:
    """Count UT and DUST, which are small, with the counter."""
    from unrolled.descent.video import NETWORKS, training_config

    if case["network"] not in NETWORKS:
        return None
    total, flops, kept = _video_counts(settings, case["network"])
    training = training_config(settings, case["method"])
    return Workload(
        parameters=total,
        trainable=total,
        flops=flops,
        tokens=FOOTAGE[0],
        kept=kept,
        batch_size=training.batch_size,
        steps=training.steps,
        precision=training.mixed_precision,
        state_bytes=adam_bytes(total),
    )


@lru_cache(maxsize=8)
def _video_counts(settings: Any, network: str) -> tuple[int, int, int]:
    """Return parameters, operations and kept bytes of a network: the same for every method."""
    import torch

    from unrolled.descent.video import build_network
    from unrolled.transformer import count_parameters

    model, row = build_network(settings, network), torch.zeros(1, *FOOTAGE)
    return count_parameters(model), counted_flops(model, row), kept_bytes(model, row)


# --- together -----------------------------------------------------------------------------------


def descending_loops(settings: Any, case: Case) -> Workload:
    """Count a looped model whose head reads every loop, where the method asks for it."""
    from unrolled.together.descending_loops import BASELINES

    load = looped(settings, case)
    more = 0 if case["method"] in BASELINES else case["num_loops"] - 1
    logits = more * settings.length * settings.vocab_size
    return dataclasses.replace(
        load,
        flops=load.flops + 2 * settings.hidden_size * logits,
        kept=load.kept + LOGIT_BYTES * logits,
    )


def sparse_loops(settings: Any, case: Case) -> Workload:
    """Count a looped or a plain model; a mask saves no operations."""
    return _looped(settings.config, case["variant"], case["num_loops"], "adamw", settings)


def robust_sparse(settings: Any, case: Case) -> Workload:
    """Count the encoder that is trained under constraints and masks."""
    from unrolled.descent.text import build_classifier

    text = settings.text
    return text_encoder(build_classifier(text.task, text.head, text.dropout), text)


# --- counters for what has no closed form -------------------------------------------------------


def counted_flops(model: nn.Module, row: Any) -> int:
    """Return the operations of a forward pass, as torch's counter has them."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    # The counter knows the fused kernels of GPUs only; the plain form of attention it counts.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(row)
    return counter.get_total_flops()


def kept_bytes(model: nn.Module, row: Any) -> int:
    """Return how many bytes a forward pass keeps for the backward pass, without the weights."""
    import torch

    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, Any] = {}  # by place in memory, so that views of one tensor count once

    def note(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        output = model(row)
    del output
    return sum(storage.nbytes() for storage in kept.values())


#: The function of each experiment that can be planned.
WORKLOADS: dict[str, Callable[[Any, Case], Workload | None]] = {
    "looped.instability": looped,
    "looped.pretraining": looped,
    "looped.inference": looped_inference,
    "looped.depth": looped_depth,
    "descent.text": descent_text,
    "descent.video": descent_video,
    "descent.language": descent_language,
    "horst.vision": horst_vision,
    "horst.language": horst_language,
    "together.descending_loops": descending_loops,
    "together.sparse_loops": sparse_loops,
    "together.robust_sparse": robust_sparse,
}

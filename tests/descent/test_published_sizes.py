"""The papers' models at full size, on the device meta: as many parameters as is published."""

import pytest
import torch

pytest.importorskip("transformers")

import transformers

from unrolled.descent.language import LLAMA_1B, LLAMA_8B, SMOLLM2
from unrolled.descent.networks import UT
from unrolled.horst.vit import DEIT_BASE, DEIT_SMALL, DEIT_TINY, ViT
from unrolled.looped.model import BASE, INJECTIONS, SMALL, LoopedTransformer
from unrolled.transformer import TransformerConfig, count_parameters

ROBERTA = {"vocab_size": 50_265, "max_position_embeddings": 514, "type_vocab_size": 1}
LARGE = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}
# name: (configuration, what is built of it, parameters, the same in millions as it is published)
HUGGING_FACE = {
    # V. Sanh et al. (2019), arXiv 1910.01108, Table 3: 66
    "DistilBERT": (transformers.DistilBertConfig(), "AutoModel", 66_362_880, 66),
    # Y. Liu et al. (2019), arXiv 1907.11692, and the README of fairseq's models: 125 and 355
    "RoBERTa-base": (transformers.RobertaConfig(**ROBERTA), "AutoModel", 124_645_632, 125),
    "RoBERTa-large": (
        transformers.RobertaConfig(**ROBERTA, **LARGE),
        "AutoModel",
        355_359_744,
        355,
    ),
    # The card of Llama 3.1 8B: 8.03 billion
    "Llama 3.1 8B": (
        transformers.LlamaConfig(**LLAMA_8B),
        "AutoModelForCausalLM",
        8_030_261_248,
        8_030,
    ),
    # The card of Llama 3.2 1B: 1.23 billion, which it cuts off and does not round
    "Llama 3.2 1B": (
        transformers.LlamaConfig(**LLAMA_1B),
        "AutoModelForCausalLM",
        1_235_814_400,
        1_236,
    ),
    # The card of SmolLM2-135M
    "SmolLM2-135M": (
        transformers.LlamaConfig(**SMOLLM2),
        "AutoModelForCausalLM",
        134_515_008,
        135,
    ),
    # The card of GPT-2: 124, where its paper says 117
    "GPT-2 small": (transformers.GPT2Config(), "AutoModelForCausalLM", 124_439_808, 124),
}


@pytest.mark.parametrize("name", HUGGING_FACE)
def test_models_of_transformers_have_their_published_size(name):
    config, kind, parameters, millions = HUGGING_FACE[name]
    with torch.device("meta"):
        model = getattr(transformers, kind).from_config(config)
    assert count_parameters(model) == parameters
    assert round(parameters / 1e6) == millions


# H. Touvron et al. (2021), arXiv 2012.12877, Table 1: 5, 22 and 86; to a tenth in the library timm
DEIT = [(DEIT_TINY, 5.7), (DEIT_SMALL, 22.1), (DEIT_BASE, 86.6)]


@pytest.mark.parametrize(("config", "millions"), DEIT, ids=["tiny", "small", "base"])
def test_deit_has_its_published_size_and_that_of_transformers(config, millions):
    theirs = transformers.ViTConfig(
        hidden_size=config.hidden_size,
        num_attention_heads=config.num_heads,
        intermediate_size=4 * config.hidden_size,
        num_labels=1_000,
    )
    with torch.device("meta"):
        ours, other = ViT(config), transformers.ViTForImageClassification(theirs)
    assert count_parameters(ours) == count_parameters(other)
    assert round(count_parameters(ours) / 1e6, 1) == millions


# R. Fu et al. (2026), arXiv 2605.18797: all parameters, and those of the blocks
FLT = [(SMALL, 127.1, 10.6), (BASE, 317.9, 84.9)]


@pytest.mark.parametrize(("config", "millions", "blocks"), FLT, ids=["small", "base"])
def test_looped_models_have_their_published_size(config, millions, blocks):
    for injection in INJECTIONS:
        with torch.device("meta"):
            model = LoopedTransformer(config, 12, injection)
        assert round(count_parameters(model) / 1e6, 1) == millions
        assert round(count_parameters(model.blocks) / 1e6, 1) == blocks


def test_grouped_queries_save_keys_and_values_alone():
    shape = {"vocab_size": 151_680, "num_layers": 12, "hidden_size": 768, "num_heads": 6}
    with torch.device("meta"):
        grouped = LoopedTransformer(TransformerConfig(**shape, num_kv_heads=2), 9, "flt")
        windowed = LoopedTransformer(TransformerConfig(**shape, window=256), 9, "flt")
        full = LoopedTransformer(BASE, 9, "flt")
    saved = 12 * 2 * 768 * (768 - 2 * 128)
    assert count_parameters(full) - count_parameters(grouped) == saved
    assert count_parameters(full) == count_parameters(windowed)


def test_the_tied_ut_has_one_size_at_any_depth():
    """No count is published for UT and DUST; that one layer serves all of UT is."""
    with torch.device("meta"):
        sizes = {count_parameters(UT(num_layers=L, tied=True)) for L in (1, 3, 12)}
    assert len(sizes) == 1

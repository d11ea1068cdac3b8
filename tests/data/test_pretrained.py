"""Pretrained models: the files, that nothing of theirs is run, and that the models work."""

import socket
import sys
from pathlib import Path

import pytest
import torch

from unrolled.data import pretrained
from unrolled.data.fetch import FetchError
from unrolled.data.pretrained import (
    MINILM,
    SMOLLM2,
    load_minilm,
    load_smollm2,
    minilm_folder,
    smollm2_folder,
)

transformers = pytest.importorskip("transformers")
# The first test that needs a file may have to fetch it.
pytestmark = pytest.mark.timeout(900)
README = (Path(__file__).parents[2] / "data_scripts" / "README.md").read_text(encoding="utf-8")


def fetched(load):
    """Return what needs the network at first; skip without one, but fail on wrong bytes."""
    try:
        return load()
    except FetchError as error:
        if any("SHA" in str(failure).upper() for failure in error.failures.values()):
            raise
        pytest.skip(f"not cached, and cannot be fetched: {error}")


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*_):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)


# all-MiniLM-L6-v2


@pytest.fixture(scope="module")
def minilm():
    fetched(minilm_folder)
    return load_minilm()


def test_minilm_is_loaded_without_a_network(minilm, no_network, monkeypatch):
    monkeypatch.setenv("UNROLLED_OFFLINE", "1")
    model, tokenizer = load_minilm()
    assert model.num_parameters() == minilm[0].num_parameters() == 22_713_216
    assert tokenizer("A slick, engrossing melodrama.").input_ids[0] == tokenizer.cls_token_id


def test_minilm_is_in_float32_and_in_evaluation_mode(minilm):
    model, _ = minilm
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert not model.training


def test_minilm_puts_like_beside_like(minilm):
    """The model was trained for this: the mean of the last states is near for like sentences."""
    model, tokenizer = minilm
    sentences = ["A film that bores.", "This movie is dull.", "The stock market fell."]
    batch = tokenizer(sentences, padding=True, return_tensors="pt")
    with torch.no_grad():
        output = model(**batch, output_hidden_states=True)
    assert len(output.hidden_states) == 7
    mask = batch["attention_mask"][..., None]
    means = torch.nn.functional.normalize((output.last_hidden_state * mask).sum(1), dim=-1)
    likeness = means @ means.T
    assert likeness[0, 1] > likeness[0, 2] + 0.3


def test_a_folder_with_pickled_weights_is_refused(tmp_path):
    """A pickle can run code when it is read."""
    config = transformers.BertConfig(
        vocab_size=8, hidden_size=4, num_hidden_layers=1, num_attention_heads=1
    )
    model = transformers.BertModel(config)
    config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(OSError, match="safetensors"):
        pretrained._load(transformers, transformers.AutoModel, tmp_path)


# SmolLM2-135M-Instruct


@pytest.fixture(scope="module")
def smollm2():
    fetched(smollm2_folder)
    return load_smollm2()


@pytest.mark.slow
def test_smollm2_goes_on_with_a_sentence(smollm2):
    model, tokenizer = smollm2
    prompt = tokenizer("The capital of France is", return_tensors="pt")
    with torch.no_grad():
        logits = model(**prompt).logits[0, -1]
    assert tokenizer.decode(logits.argmax()) == " Paris"


@pytest.mark.slow
def test_smollm2_has_all_layers_and_one_matrix_for_both_ends(smollm2):
    model, tokenizer = smollm2
    assert model.num_parameters() == 134_515_008
    assert model.config.num_hidden_layers == 30
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert len(tokenizer) == model.config.vocab_size == 49_152


@pytest.mark.slow
def test_smollm2_can_be_trained(smollm2):
    """As it comes out of its file it still counts as quantized, and is refused."""
    model, tokenizer = smollm2
    assert not getattr(model, "is_quantized", False)
    tokens = tokenizer("A joy.", return_tensors="pt").input_ids
    model(tokens, labels=tokens).loss.backward()
    assert model.model.layers[0].mlp.gate_proj.weight.grad.abs().sum() > 0
    model.zero_grad(set_to_none=True)


@pytest.mark.slow
@pytest.mark.parametrize("text", ["Hello  world!\n", "<|im_start|>user\nÜñí 123456<|im_end|>"])
def test_smollm2_reads_and_writes_any_text(smollm2, text):
    _, tokenizer = smollm2
    assert tokenizer.decode(tokenizer(text).input_ids) == text


# Unpacking, on a tiny model


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """Put a tiny model with random weights in place of what is read from the packed file."""
    from tokenizers import Tokenizer, models

    monkeypatch.setenv("UNROLLED_CACHE", str(tmp_path))
    monkeypatch.setattr(pretrained, "need", lambda name, purpose: transformers)
    monkeypatch.setattr(pretrained, "fetch", lambda file: tmp_path / file.name)
    config = transformers.LlamaConfig(
        vocab_size=3,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        tie_word_embeddings=True,
    )
    model = transformers.LlamaForCausalLM(config)
    model.config.quantization_config = {"quant_method": "gguf"}
    words = Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words)
    read = []
    monkeypatch.setattr(
        pretrained, "_packed", lambda _, path: read.append(path) or (model, tokenizer)
    )
    return model, read


def test_unpacked_weights_are_those_of_the_file(tiny, no_network):
    model, _ = tiny
    again, tokenizer = load_smollm2()
    weights = again.state_dict()
    assert weights.keys() == model.state_dict().keys()
    assert all(torch.equal(weight, weights[name]) for name, weight in model.state_dict().items())
    assert again.lm_head.weight is again.model.embed_tokens.weight
    assert not hasattr(again.config, "quantization_config")
    assert tokenizer("b").input_ids == [1]


def test_the_file_is_unpacked_once(tiny):
    _, read = tiny
    folder = smollm2_folder()
    assert smollm2_folder() == folder
    assert len(read) == 1
    (folder / "model.safetensors").write_bytes(b"damaged")
    load_smollm2()
    assert len(read) == 2


# What is missing is told


def test_a_missing_library_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    for load, name in ((load_minilm, "all-MiniLM-L6-v2"), (load_smollm2, "SmolLM2-135M-Instruct")):
        with pytest.raises(ModuleNotFoundError, match=f"{name} needs .* pip install transformers"):
            load()


def test_a_library_that_is_there_but_broken_is_not_called_missing(tmp_path, monkeypatch):
    (tmp_path / "broken_library.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_library") as caught:
        pretrained.need("broken_library", "a test")
    assert "pip install" not in str(caught.value)


def test_models_that_are_not_cached_need_the_network(tmp_path, monkeypatch):
    monkeypatch.setenv("UNROLLED_CACHE", str(tmp_path))
    monkeypatch.setenv("UNROLLED_OFFLINE", "1")
    for folder in (minilm_folder, smollm2_folder):
        with pytest.raises(FetchError, match="UNROLLED_OFFLINE is set"):
            folder()


@pytest.mark.parametrize("file", [*MINILM, SMOLLM2], ids=lambda file: file.name)
def test_the_readme_has_every_checksum(file):
    assert file.sha256 in README
    assert all(source.sha256 in README for source in file.sources)

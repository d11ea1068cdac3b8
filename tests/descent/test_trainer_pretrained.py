"""The Trainer under constraints on real pretrained models: MiniLM, and SmolLM2 with LoRA."""

import pytest
import torch
from torch.testing import assert_close

pytest.importorskip("transformers")
pytest.importorskip("peft")

from trainer_worker import arguments, make_dual
from transformers import BertForSequenceClassification, default_data_collator

from unrolled.data.fetch import FetchError
from unrolled.data.pretrained import load_minilm, load_smollm2, minilm_folder, smollm2_folder
from unrolled.descent.trainer import DescentTrainer, with_lora

# The first test that needs a file may have to fetch it.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
]
REVIEWS = ["A slick, engrossing melodrama.", "Dull.", "A joy from start to end.", "It bores me."]


def fetched(load):
    """Return what needs the network at first; skip without one, but fail on wrong bytes."""
    try:
        return load()
    except FetchError as error:
        if any("SHA" in str(failure).upper() for failure in error.failures.values()):
            raise
        pytest.skip(f"not cached, and cannot be fetched: {error}")


def rows_of(tokenizer, labels=None):
    options = {"padding": True, "return_tensors": "pt"}
    encoded = dict(tokenizer(REVIEWS, **options))
    own = encoded["input_ids"].masked_fill(encoded["attention_mask"] == 0, -100)
    encoded["labels"] = own if labels is None else torch.tensor(labels)
    return [{name: values[i] for name, values in encoded.items()} for i in range(len(REVIEWS))]


def test_minilm_learns_four_reviews_and_its_prices_react(tmp_path):
    fetched(minilm_folder)
    encoder, tokenizer = load_minilm()
    torch.manual_seed(0)
    model = BertForSequenceClassification(encoder.config)
    model.bert = encoder
    dual = make_dual(layers=6)
    options = {"optim": "adamw_torch", "learning_rate": 3e-4}
    trainer = DescentTrainer(
        model,
        arguments(tmp_path, steps=6, **options),
        train_dataset=rows_of(tokenizer, [1, 0, 1, 0]),
        dual=dual,
        pooling="mean",
    )
    trainer.train()
    rows = [row for row in trainer.state.log_history if "loss_6" in row]
    assert rows[-1]["loss_6"] < 0.7 * rows[0]["loss_6"]
    assert dual.multipliers.max() > 0


def test_smollm2_descends_through_adapters_and_its_weights_stay(tmp_path):
    fetched(smollm2_folder)
    model, tokenizer = load_smollm2()
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    texts, dual = rows_of(tokenizer), make_dual(layers=2)
    adapted, before = with_lora(model, rank=4), model.model.norm.weight.clone()
    trainer = DescentTrainer(
        adapted,
        arguments(tmp_path, steps=2, optim="adamw_torch", learning_rate=1e-3),
        train_dataset=texts,
        dual=dual,
        layers=(0, 15, 30),
        recompute=True,
    )
    batch = default_data_collator(texts)
    losses = trainer.layer_losses(adapted.eval(), batch)
    one = {name: values[1:2] for name, values in batch.items()}
    assert_close(losses[-1, 1], adapted(**one).loss, rtol=1e-4, atol=1e-5)
    trainer.train()
    rows = [row for row in trainer.state.log_history if "loss_2" in row]
    assert rows[1]["loss_2"] < rows[0]["loss_2"]
    assert torch.equal(model.model.norm.weight, before)
    assert {n.split(".")[-3] for n, p in adapted.named_parameters() if p.requires_grad} == {
        "lora_A",
        "lora_B",
    }

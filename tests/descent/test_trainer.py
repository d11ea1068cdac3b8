"""The Trainer under constraints: equal to steps by hand, to `fit`, and to a plain Trainer."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

pytest.importorskip("transformers")
pytest.importorskip("peft")

import peft
from trainer_worker import (
    LAYERS,
    RATE,
    arguments,
    make_dual,
    make_model,
    make_texts,
)
from transformers import Trainer, default_data_collator

from unrolled.descent import trainer as trainer_module
from unrolled.descent.constraints import CumulativeConstraint, constant_alphas
from unrolled.descent.language import add_adapters
from unrolled.descent.primal_dual import PrimalDual
from unrolled.descent.readout import (
    classification_losses,
    layer_logits,
    layer_readouts,
    state_losses,
)
from unrolled.descent.trainer import DescentTrainer, with_lora
from unrolled.training import TrainingConfig, fit
from unrolled.transformer import Transformer, TransformerConfig

WORKER = Path(__file__).with_name("trainer_worker.py")
MODELS = [
    ("bert", "classifier"),
    ("distilbert", "classifier"),
    ("roberta", "classifier"),
    ("llama", "classifier"),
    ("llama", "language"),
    ("gpt2", "language"),
    ("qwen2", "language"),
]


def losses_by_hand(model, batch, kind):
    """The loss of each text at each layer, from its logits alone."""
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    logits, labels = layer_logits(model, inputs), batch["labels"]
    if kind == "classifier":
        return torch.stack([cross_entropy(z, labels, reduction="none") for z in logits])
    rows = [[cross_entropy(z[i, :-1], labels[i, 1:]) for i in range(len(labels))] for z in logits]
    return torch.stack([torch.stack(row) for row in rows])


def steps_by_hand(model, batches, kind, pieces, alpha=0.2, dual_rate=0.5):
    """Gradient descent-ascent on the exact constraint, line by line; return the multipliers."""
    multipliers = torch.zeros(LAYERS)
    for first in range(0, len(batches), pieces):
        slacks = torch.zeros(LAYERS)
        for batch in batches[first : first + pieces]:
            f = losses_by_hand(model, batch, kind).mean(dim=1)
            g = f[1:] - (1 - alpha) * f[:-1]
            ((f[-1] + multipliers @ g) / pieces).backward()
            slacks += g.detach() / pieces
        for p in model.parameters():
            if p.grad is not None:
                p.data -= RATE * p.grad
        model.zero_grad()
        multipliers = (multipliers + dual_rate * slacks).clamp_min(0)
    return multipliers


def batches_of(texts, size=4):
    return [default_data_collator(texts[i : i + size]) for i in range(0, len(texts), size)]


def assert_same_weights(one, two, **tolerance):
    for (name, p), q in zip(one.named_parameters(), two.parameters(), strict=True):
        assert_close(p, q, msg=lambda text, name=name: f"{name}: {text}", **tolerance)


# --- the steps ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "kind"), MODELS, ids=[" ".join(m) for m in MODELS])
def test_two_steps_equal_two_by_hand(family, kind, tmp_path):
    model, other, texts = make_model(family, kind), make_model(family, kind), make_texts(kind)
    dual, plan = make_dual(), arguments(tmp_path, steps=2, gradient_accumulation_steps=2)
    DescentTrainer(model, plan, train_dataset=texts, dual=dual).train()
    multipliers = steps_by_hand(other.train(), batches_of(texts)[:4], kind, pieces=2)
    assert multipliers.max() > 0
    assert_close(dual.multipliers, multipliers)
    assert_same_weights(model, other)


def test_a_run_equals_that_of_fit(tmp_path):
    texts = make_texts("classifier")
    model, dual = make_model("bert", "classifier"), make_dual(every=2, relaxation_cost=3.0)
    options = {"max_grad_norm": 1.0, "gradient_accumulation_steps": 2}
    plan = arguments(tmp_path, steps=5, **options)
    run = DescentTrainer(model, plan, train_dataset=texts, dual=dual, pooling="mean")
    run.train()
    other, twin = make_model("bert", "classifier"), make_dual(every=2, relaxation_cost=3.0)

    def layer_losses(model, batch):
        inputs = {name: values for name, values in batch.items() if name != "labels"}
        return classification_losses(model, inputs, batch["labels"], pooling="mean")

    result = fit(
        other,
        lambda step: batches_of(texts, 8)[step],
        training=TrainingConfig(steps=5, batch_size=8, micro_batch_size=4, progress=False),
        optimizer=[torch.optim.SGD(other.parameters(), lr=RATE)],
        **twin.hooks(layer_losses),
    )
    assert_close(dual.multipliers, twin.multipliers)
    assert_same_weights(model, other)
    logged = [row["slack_2"] for row in run.state.log_history if "slack_2" in row]
    assert logged == pytest.approx(result.diagnostics["slack_2"], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("kind", ["classifier", "language"])
def test_without_a_price_it_is_a_plain_trainer(kind, tmp_path):
    """Constraints that are always kept: with texts of one length the losses are the same, too."""
    family = "roberta" if kind == "classifier" else "llama"
    texts, plan = make_texts(kind, padded=False), arguments(tmp_path, 4)
    model, plain = make_model(family, kind), make_model(family, kind)
    loose = CumulativeConstraint(constant_alphas(0.0, LAYERS), reference=100.0)
    dual = PrimalDual(loose, step_size=0.1)
    DescentTrainer(model, plan, train_dataset=texts, dual=dual).train()
    Trainer(plain, plan, train_dataset=texts).train()
    assert dual.multipliers.tolist() == [0.0] * LAYERS
    assert_same_weights(model, plain)


def test_multipliers_move_every_so_many_steps_by_the_mean_slack(tmp_path):
    dual = make_dual(every=3)
    plan = arguments(tmp_path, steps=4, gradient_accumulation_steps=2)
    texts = make_texts("classifier", 64)
    run = DescentTrainer(make_model("bert", "classifier"), plan, train_dataset=texts, dual=dual)
    run.train()
    rows = [row for row in run.state.log_history if "loss_0" in row]
    slacks = torch.tensor([[row["slack_1"], row["slack_2"]] for row in rows])
    seen = torch.tensor([[row["multiplier_1"], row["multiplier_2"]] for row in rows])
    moved = (0.5 * slacks[:3].mean(dim=0)).clamp_min(0)
    assert_close(seen, torch.stack([0 * moved, 0 * moved, moved, moved]))
    assert moved.max() > 0


def test_a_step_that_was_skipped_moves_no_price(tmp_path, monkeypatch):
    dual, plan = make_dual(), arguments(tmp_path)
    texts = make_texts("classifier")
    run = DescentTrainer(make_model("bert", "classifier"), plan, train_dataset=texts, dual=dual)
    skipped = property(lambda accelerator: True)
    monkeypatch.setattr(type(run.accelerator), "optimizer_step_was_skipped", skipped)
    run.train()
    assert dual.multipliers.tolist() == [0.0] * LAYERS


def test_some_layers_of_a_language_model_one_at_a_time(tmp_path):
    texts = make_texts("language")
    trainers = [
        DescentTrainer(
            make_model("gpt2", "language"),
            arguments(tmp_path),
            train_dataset=texts,
            dual=make_dual(1),
            layers=(0, LAYERS),
            recompute=recompute,
        )
        for recompute in (False, True)
    ]
    batch = batches_of(texts)[0]
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    readouts = layer_readouts(trainers[0].model, inputs)[::LAYERS]
    shifted = [(state[:, :-1], read) for state, read in readouts]
    expected = state_losses(shifted, batch["labels"][:, 1:])
    assert_close(trainers[0].layer_losses(trainers[0].model, batch), expected)
    for run in trainers:
        run.train()
    assert_same_weights(trainers[0].model, trainers[1].model)


# --- logs, evaluation, checkpoints ---------------------------------------------------------------


def test_a_log_holds_the_means_since_the_last(tmp_path):
    def logged(every):
        plan = arguments(tmp_path, steps=4, logging_steps=every)
        model, texts = make_model("bert", "classifier"), make_texts("classifier")
        run = DescentTrainer(model, plan, train_dataset=texts, dual=make_dual())
        run.train()
        return [row for row in run.state.log_history if "slack_1" in row]

    single, paired = logged(1), logged(2)
    names = ["loss", "loss_0", "loss_1", "loss_2", "slack_1", "slack_2"]
    for name in names:
        means = [(single[i][name] + single[i + 1][name]) / 2 for i in (0, 2)]
        assert [row[name] for row in paired] == pytest.approx(means, rel=1e-5)
    assert paired[1]["multiplier_1"] == single[3]["multiplier_1"]
    first = single[0]  # no price yet: the Lagrangian is the loss of the last layer
    assert first["loss"] == pytest.approx(first["loss_2"], rel=1e-6)


def test_evaluation_is_that_of_a_plain_trainer(tmp_path):
    model, texts = make_model("bert", "classifier"), make_texts("classifier")
    found = [
        trainer.evaluate()["eval_loss"]
        for trainer in (
            DescentTrainer(model, arguments(tmp_path), eval_dataset=texts, dual=make_dual()),
            Trainer(model, arguments(tmp_path), eval_dataset=texts),
        )
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("lora", [False, True], ids=["whole", "LoRA"])
def test_a_run_that_resumes_ends_as_if_it_had_not_stopped(lora, tmp_path):
    def trainer(folder, dual):
        model = make_model("llama", "language")
        model = with_lora(model, rank=2) if lora else model
        saving = {"save_strategy": "steps", "save_steps": 3, "optim": "adamw_torch"}
        plan = arguments(folder, steps=4, **saving)
        return DescentTrainer(model, plan, train_dataset=make_texts("language"), dual=dual)

    whole = trainer(tmp_path, make_dual(every=2))  # step 3 is in the middle of a window
    whole.train()
    resumed = trainer(tmp_path, make_dual(every=2))
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert whole.dual.multipliers.max() > 0
    assert torch.equal(whole.dual.multipliers, resumed.dual.multipliers)
    assert_same_weights(whole.model, resumed.model, rtol=0, atol=0)
    with pytest.raises(ValueError, match="every must be 2, with which the state was saved"):
        trainer(tmp_path, make_dual(every=3)).train(str(tmp_path / "checkpoint-3"))


def test_a_checkpoint_without_multipliers_is_refused(tmp_path):
    model, texts = make_model("bert", "classifier"), make_texts("classifier")
    plan = arguments(tmp_path, save_strategy="steps", save_steps=1)
    Trainer(model, plan, train_dataset=texts).train()
    run = DescentTrainer(model, plan, train_dataset=texts, dual=make_dual())
    with pytest.raises(ValueError, match="a checkpoint of a DescentTrainer"):
        run.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))


@pytest.mark.slow
def test_two_processes_equal_one_with_the_same_batch(tmp_path):
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    command = [*launch, str(WORKER), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (json.loads((tmp_path / f"process_{i}.json").read_text()) for i in (0, 1))
    assert first == second
    assert first["processes"] == 2
    model, dual = make_model("bert", "classifier"), make_dual(every=2)
    options = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    plan = arguments(tmp_path / "one", steps=5, **options)
    run = DescentTrainer(model, plan, train_dataset=make_texts("classifier"), dual=dual)
    run.train()
    assert first["multipliers"] == pytest.approx(dual.multipliers.tolist(), rel=1e-5, abs=1e-7)
    slacks = [row["slack_1"] for row in run.state.log_history if "slack_1" in row]
    assert first["slacks"] == pytest.approx(slacks, rel=1e-4, abs=1e-6)
    for name, parameter in model.named_parameters():
        assert_close(torch.tensor(first["weights"][name]), parameter.detach())


# --- LoRA ---------------------------------------------------------------------------------------


def test_adapters_of_peft_are_those_of_the_book():
    targets = ("v_proj", "o_proj", "down_proj")
    ours = add_adapters(make_model("llama", "language"), 2, targets)
    theirs = with_lora(make_model("llama", "language"), 2, targets=targets)
    pairs = [
        (mine, theirs.get_base_model().get_submodule(name))
        for name, mine in ours.named_modules()
        if hasattr(mine, "A")
    ]
    assert len(pairs) == 3 * LAYERS
    for mine, other in pairs:
        nn.init.normal_(mine.B)
        other.lora_A["default"].weight.data.copy_(mine.A)
        other.lora_B["default"].weight.data.copy_(mine.B)
    batch = batches_of(make_texts("language"))[0]
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    for model in (ours, theirs):
        losses_by_hand(model, batch, "language").sum().backward()
    for one, two in zip(layer_logits(ours, inputs), layer_logits(theirs, inputs), strict=True):
        assert_close(one, two)
    for mine, other in pairs:
        assert_close(mine.A.grad, other.lora_A["default"].weight.grad)
        assert_close(mine.B.grad, other.lora_B["default"].weight.grad)


def test_lora_starts_from_the_model_and_trains_the_adapters_and_a_fresh_head(tmp_path):
    texts, plan = make_texts("classifier"), arguments(tmp_path, steps=3)
    before, frozen = make_model("distilbert", "classifier"), make_model("distilbert", "classifier")
    model = with_lora(make_model("distilbert", "classifier"), rank=2, scale=2.0, dropout=0.1)
    batch = batches_of(texts)[0]
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    read = [layer_logits(m.eval(), inputs) for m in (model, before)]
    for one, two in zip(*read, strict=True):
        assert_close(one, two)
    DescentTrainer(model, plan, train_dataset=texts, dual=make_dual()).train()
    state = dict(model.get_base_model().named_parameters())
    for name, weight in frozen.distilbert.named_parameters():
        kept = state.get(f"distilbert.{name}")
        if kept is None:  # beside an adapter it has another name
            kept = state[f"distilbert.{name}".replace("_lin.", "_lin.base_layer.")]
        assert torch.equal(kept, weight)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert all("lora" in name or "classifier" in name for name in trained)
    assert any("pre_classifier" in name for name in trained)


def test_a_learned_prompt_is_refused():
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    model = peft.get_peft_model(make_model("llama", "language"), config)
    with pytest.raises(ValueError, match="model must be without a prompt that peft learns"):
        layer_logits(model, torch.tensor([[3, 4]]))


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "plan", "error", "match"),
    [
        ({"dual": 0.1}, {}, TypeError, "dual must be a PrimalDual, got float"),
        (
            {"dual": make_dual(3)},
            {},
            ValueError,
            "dual must be one of 2, got 'one of 3 constraints'",
        ),
        ({"layers": (0, 1)}, {}, ValueError, "layers must be at least two .* to the last layer, 2"),
        ({"layers": (2, 2)}, {}, ValueError, "layers must be at least two"),
        ({"layers": (-1, 2)}, {}, ValueError, "layers must be at least two"),
        ({"pooling": "max"}, {}, ValueError, "pooling must be one of"),
        ({"compute_loss_func": print}, {}, ValueError, "compute_loss_func must be None"),
        ({}, {"label_smoothing_factor": 0.1}, ValueError, "label_smoothing_factor must be 0"),
        ({"poolling": "cls"}, {}, TypeError, "poolling"),
    ],
)
def test_arguments_outside_their_range_are_named(options, plan, error, match, tmp_path):
    with pytest.raises(error, match=match):
        DescentTrainer(
            make_model("bert", "classifier"),
            arguments(tmp_path, **plan),
            **({"dual": make_dual()} | options),
        )


def test_models_that_cannot_be_read_are_refused(tmp_path):
    own = Transformer(TransformerConfig(num_layers=2, hidden_size=16, num_heads=2))
    with pytest.raises(TypeError, match=r"unrolled\.training\.fit trains ours"):
        DescentTrainer(own, arguments(tmp_path), dual=make_dual())
    bare = make_model("llama", "language").model
    with pytest.raises(TypeError, match="model must be an unrolled Transformer, a Hugging Face"):
        DescentTrainer(bare, arguments(tmp_path), dual=make_dual())
    regression = make_model("bert", "classifier")
    regression.config.num_labels = 1
    with pytest.raises(ValueError, match="num_labels must be at least 2"):
        DescentTrainer(regression, arguments(tmp_path), dual=make_dual())


@pytest.mark.parametrize(
    ("options", "name"),
    [({"rank": 0}, "rank"), ({"scale": 0.0}, "scale"), ({"dropout": 1.0}, "dropout")],
)
def test_lora_names_what_is_outside_its_range(options, name):
    with pytest.raises(ValueError, match=f"{name} must be"):
        with_lora(make_model("llama", "language"), **options)
    with pytest.raises(ValueError, match="no_such_map"):
        with_lora(make_model("llama", "language"), targets=["no_such_map"])


def test_a_library_that_is_missing_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ModuleNotFoundError, match=r"extra scale .* needs the library peft"):
        with_lora(make_model("llama", "language"))
    monkeypatch.setitem(sys.modules, "transformers", None)
    spec = importlib.util.spec_from_file_location("again", trainer_module.__file__)
    with pytest.raises(ModuleNotFoundError, match=r"extra data .* needs the library transformers"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))

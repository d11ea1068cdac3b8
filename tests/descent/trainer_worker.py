"""Tiny models and runs of `DescentTrainer`, in the process of a test or in several of their own.

``torchrun ... trainer_worker.py FOLDER``: one run in several processes, and what each has seen.
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from transformers import TrainingArguments

from unrolled.descent.constraints import ExactConstraint, constant_alphas
from unrolled.descent.primal_dual import PrimalDual
from unrolled.descent.trainer import DescentTrainer

LAYERS, CLASSES, VOCAB, LENGTH, RATE = 2, 3, 40, 8, 0.05
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 40,
    "initializer_range": 0.3,
    "num_labels": CLASSES,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
KINDS = {
    "classifier": transformers.AutoModelForSequenceClassification,
    "language": transformers.AutoModelForCausalLM,
}


def make_model(family, kind):
    """A tiny model with random weights and without dropout."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **SIZES)
    model = KINDS[kind].from_config(config)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name in ("attention_dropout", "dropout_prob"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model


def make_texts(kind, count=48, padded=True):
    """Texts of different lengths, padded; a class each, or their own tokens as labels."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(3, VOCAB, (count, LENGTH), generator=generator)
    lengths = torch.randint(3, LENGTH + 1, (count,), generator=generator)
    mask = (torch.arange(LENGTH) < lengths[:, None]).long() if padded else torch.ones_like(tokens)
    tokens = tokens * mask
    labels = tokens[:, 1] % CLASSES if kind == "classifier" else tokens.masked_fill(mask == 0, -100)
    columns = {"input_ids": tokens, "attention_mask": mask, "labels": labels}
    return [{name: values[i] for name, values in columns.items()} for i in range(count)]


def make_dual(layers=LAYERS, **options):
    return PrimalDual(ExactConstraint(constant_alphas(0.2, layers)), step_size=0.5, **options)


def arguments(folder, steps=2, **options):
    plain = {
        "per_device_train_batch_size": 4,
        "max_grad_norm": 0.0,
        "lr_scheduler_type": "constant",
        "learning_rate": RATE,
        "optim": "sgd",
        "train_sampling_strategy": "sequential",
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
    }
    return TrainingArguments(str(folder), max_steps=steps, **(plain | options))


def run_in_processes(folder):
    """Train one model in all processes; write what this one holds at the end."""
    model, dual = make_model("bert", "classifier"), make_dual(every=2)
    options = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "save_steps": 3}
    plan = arguments(folder / "run", steps=5, save_strategy="steps", **options)
    trainer = DescentTrainer(model, plan, train_dataset=make_texts("classifier"), dual=dual)
    trainer.train()
    report = {
        "processes": trainer.accelerator.num_processes,
        "multipliers": dual.multipliers.tolist(),
        "weights": {name: p.detach().tolist() for name, p in model.named_parameters()},
        "slacks": [row["slack_1"] for row in trainer.state.log_history if "slack_1" in row],
    }
    path = folder / f"process_{trainer.accelerator.process_index}.json"
    path.write_text(json.dumps(report), encoding="utf-8")


if __name__ == "__main__":
    run_in_processes(Path(sys.argv[1]))

"""Runs that tests start in processes of their own, to kill them or to run several at once.

``python training_worker.py killed FOLDER SEED``: one run, killed again and again, and resumed.
``python training_worker.py crashed FOLDER``: a checkpoint, with a crash at every disk flush.
``accelerate launch ... training_worker.py processes FOLDER``: runs in several processes.
"""

import hashlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn

from unrolled import checkpoint
from unrolled.training import OptimizerConfig, TrainingConfig, fit

STEPS, BATCH, VOCABULARY, WIDTH = 24, 8, 11, 8
MUON = OptimizerConfig(name="muon", learning_rate=0.02, momentum_warmup=10)
# A large eps: Adam divides by the gradient's size, which blows up differences in rounding.
SMOOTH = OptimizerConfig(learning_rate=0.02, eps=1e-3)


class TinyModel(nn.Module):
    """A language model of a few numbers, with dropout, so that random states matter."""

    def __init__(self, seed=0, dropout=0.2):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.embedding = nn.Embedding(VOCABULARY, WIDTH)
            self.hidden = nn.Linear(WIDTH, WIDTH)
            self.dropout = nn.Dropout(dropout)
            self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        return self.head(self.dropout(torch.tanh(self.hidden(self.embedding(tokens)))))

    def loss(self, tokens, targets):
        return nn.functional.cross_entropy(self(tokens).flatten(0, 1), targets.flatten())

    def parameter_groups(self):
        return {
            "embedding": [self.embedding.weight],
            "head": [self.head.weight],
            "matrices": [self.hidden.weight],
            "other": [self.hidden.bias],
        }


class Multiplier:
    """A dual variable: state of a run that is not in the model."""

    def __init__(self):
        self.value, self.history = torch.zeros(()), (0.0,)

    def update(self, norm):
        self.value = self.value + 0.1 * norm
        self.history = (*self.history[-2:], float(self.value))

    def state_dict(self):
        return {"value": self.value, "history": self.history}

    def load_state_dict(self, state):
        self.value, self.history = state["value"], state["history"]


def batch_at(step):
    generator = torch.Generator().manual_seed(1000 + step)
    tokens = torch.randint(VOCABULARY, (BATCH, 6), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def loss_fn(model, batch):
    loss = model.loss(*batch)
    return loss, {"perplexity": loss.exp()}


def train(model, on_step=None, optimizer=MUON, **settings):
    """Fit with a schedule and a multiplier that hooks feed."""
    multiplier = Multiplier()

    def on_gradients(step, model):
        multiplier.update(model.head.weight.grad.norm())
        return {"multiplier": multiplier.value, "step": step}

    training = {"steps": STEPS, "batch_size": BATCH, "schedule": "trapezoid"} | settings
    return fit(
        model,
        batch_at,
        loss_fn,
        TrainingConfig(**training),
        optimizer,
        on_gradients=on_gradients,
        on_step=on_step,
        stateful={"multiplier": multiplier},
    )


def digest(model, result):
    """A fingerprint of every bit of the weights and of the curves."""
    text = json.dumps([result.losses, result.gradient_norms, result.diagnostics])
    sha = hashlib.sha256(text.encode())
    for tensor in model.state_dict().values():
        sha.update(tensor.numpy().tobytes())
    sha.update(torch.get_rng_state().numpy().tobytes())
    return sha.hexdigest()


# Killed at random ------------------------------------------------------------------------------


def killed(folder, seed):
    """Print the fingerprint of a run never killed, and of one killed at random moments."""
    torch.optim.AdamW([nn.Parameter(torch.ones(1))])  # imports what every child would import
    settings = {"micro_batch_size": 4, "seed": 5}
    whole, _ = in_child(lambda report: finish(report, settings))
    settings |= {"checkpoint_folder": folder, "checkpoint_every": 2}
    chance, kills, broken, resumed_from = random.Random(seed), 0, None, []
    while broken is None:
        patience = (chance.randint(3, 6), chance.uniform(0, 0.03))
        broken, resumed = in_child(lambda report: finish(report, settings), patience)
        kills += broken is None
        resumed_from += [resumed] if broken else []
    print(json.dumps({"whole": whole, "broken": broken, "kills": kills, "from": resumed_from}))


def finish(report, settings):
    model = TinyModel()
    result = train(model, on_step=lambda _: report(".") and None, **settings)
    report(f"{digest(model, result)} {result.resumed_from}\n")


def in_child(work, patience=None):
    """Run `work` in a forked process; kill it some moment after so many reports.

    Returns what it reported at its end, or nothing if it was killed.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        work(lambda text: os.write(writing, text.encode()))
        os._exit(0)
    os.close(writing)
    report = b""
    if patience is not None:
        while report.count(b".") < patience[0] and b"\n" not in report:
            report += os.read(reading, 1)
        time.sleep(patience[1])
        os.kill(child, signal.SIGKILL)
    report += b"".join(iter(lambda: os.read(reading, 65536), b""))
    os.close(reading)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL), "the run failed"
    if not report.endswith(b"\n"):
        return None, None
    final, resumed_from = report.decode().strip(".\n").split()
    return final, resumed_from


# A crash at every flush ------------------------------------------------------------------------


def crashed(folder):
    """Print which checkpoint is found after a crash at the n-th flush, for every n."""
    found = []
    checkpoint.save_checkpoint(folder, checkpoint.Checkpoint(1, {"w": torch.ones(3)}, {"n": 1}))
    for count in range(1, 20):
        status = crash_at(folder, count)
        found.append(checkpoint.load_latest_checkpoint(folder).state["n"])
        if status == 0:
            break
    print(json.dumps({"found": found, "left": sorted(p.name for p in Path(folder).iterdir())}))


def crash_at(folder, count):
    child = os.fork()
    if child == 0:
        flush, calls = checkpoint._flush, []

        def failing_flush(path):
            calls.append(path)
            if len(calls) == count:
                os._exit(9)
            flush(path)

        checkpoint._flush = failing_flush
        checkpoint.save_checkpoint(folder, checkpoint.Checkpoint(2, {"w": torch.ones(3)}, {"n": 2}))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


# Several processes -----------------------------------------------------------------------------


def processes(folder):
    """Write what each process has after a run, and after one that was stopped and resumed."""
    model = TinyModel(dropout=0.0)
    result = train(model, optimizer=SMOOTH, micro_batch_size=2)
    resumed = TinyModel()
    kept = {"checkpoint_folder": folder + "/run", "checkpoint_every": 4, "seed": 3}
    whole = TinyModel()
    whole_result = train(whole, seed=3)
    try:
        train(resumed, on_step=stop_at(9), **kept)
    except KeyboardInterrupt:
        resumed = TinyModel(seed=1)
    resumed_result = train(resumed, **kept)
    report = {
        "losses": result.losses,
        "weights": {name: p.tolist() for name, p in model.state_dict().items()},
        "perplexity": result.diagnostics["perplexity"],
        "whole": digest(whole, whole_result),
        "resumed": digest(resumed, resumed_result),
        "resumed_from": resumed_result.resumed_from,
        "error": error_of(lambda: train(model, micro_batch_size=8)),
    }
    rank = os.environ.get("RANK", "0")
    Path(folder, f"rank_{rank}.json").write_text(json.dumps(report))


def stop_at(step):
    def on_step(report):
        if report.step == step:
            raise KeyboardInterrupt

    return on_step


def error_of(work):
    try:
        work()
    except ValueError as error:
        return str(error)
    return None


if __name__ == "__main__":
    torch.set_num_threads(1)
    mode, folder, *rest = sys.argv[1:]
    {"killed": killed, "crashed": crashed, "processes": processes}[mode](folder, *map(int, rest))

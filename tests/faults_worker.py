"""Runs that are killed, stopped, starved of disk and damaged: ``python faults_worker.py FOLDER``.

Each campaign is one run that meets faults at random moments until it ends. Prints one JSON object:
what was done to it, and whether it ended like a run that nothing happened to.
"""

import json
import random
import resource
import signal
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

import torch
from distributed_worker import (
    BATCH,
    Stack,
    batches,
    fingerprint,
    layer_losses,
    primal_dual,
)
from process_tree import fork
from torch import nn

from unrolled.execution import Execution, fits_run_with
from unrolled.horst.optimizers import Horst
from unrolled.horst.sparsity import Acdc, AcdcSchedule
from unrolled.training import TrainingConfig, fit

STEPS = 60


def train(report):
    """Train with all that a run can remember: dropout, moments, masks, multipliers."""
    model, dual = Stack(torch.float32, dropout=0.3), primal_dual(every=3)
    optimizer = Horst(model.parameters(), lr=0.02, alpha=5.0)
    acdc = Acdc(model, optimizer, AcdcSchedule(STEPS, phase=0.1), 0.5)
    hooks = dual.hooks(layer_losses)
    after, stateful = hooks.pop("on_step"), hooks.pop("stateful")

    def on_step(seen):
        report()
        if seen.step + 1 < STEPS:
            acdc.before(seen.step + 1)
        return after(seen)

    result = fit(
        model,
        batches(torch.float32),
        training=TrainingConfig(STEPS, BATCH, micro_batch_size=4, seed=1, clip_norm=0.5),
        optimizer=[optimizer],
        on_step=on_step,
        stateful=stateful | {"acdc": acdc},
        **hooks,
    )
    moments = [value for p in model.parameters() for value in optimizer.state[p].values()]
    curves = torch.tensor([result.losses, result.gradient_norms], dtype=torch.float64)
    tensors = [*model.parameters(), *moments, dual.multipliers, curves, torch.get_rng_state()]
    return {"end": fingerprint(tensors), "resumed_from": result.resumed_from}


def two_trainings(report):
    """Train twice, as an experiment does; the second training begins where chance has come to."""
    return {"end": [train(report)["end"], train(report)["end"]]}


# Faults ----------------------------------------------------------------------------------------


def campaign(folder, seed, work):
    """Run again and again, each time with a fault, until a run has come to its end."""
    chance, done, told, steps = random.Random(seed), Counter(), [], []
    for _ in range(100):
        fault = chance.choice(("SIGKILL", "SIGKILL", "SIGTERM", "full disk", "damage"))
        child = fork(lambda report, fault=fault: executed(folder, work, report, fault))
        child.wait_for(chance.randint(2, 9))
        time.sleep(chance.uniform(0, 0.02))
        child.kill(signal.SIGTERM if fault == "SIGTERM" else signal.SIGKILL)
        code, answer = child.end()
        if answer is not None:
            return {"faults": done, "codes": told, "steps": steps, "end": answer["end"]}
        done[fault] += 1
        told.append([fault, code])
        if fault == "damage":
            damage(folder, chance)
    raise RuntimeError("the run never came to its end")


def executed(folder, work, report, fault):
    """Work with a checkpoint after almost every step, and on a disk that is full if it is to be."""
    warnings.simplefilter("ignore")
    if fault == "full disk":
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, limit))
    with fits_run_with(Execution(folder, checkpoint_minutes=1e-5)):
        return work(report)


def damage(folder, chance):
    """Change, cut, empty or remove a file of the newest checkpoint of the newest training."""
    steps = sorted(Path(folder).glob("fit_*/step_*[0-9]"))
    if len(list(steps[-1].parent.glob("step_*[0-9]"))) < 2:
        return  # with the only checkpoint damaged, there is nothing to fall back to
    path = chance.choice(sorted(steps[-1].iterdir()))
    content = bytearray(path.read_bytes())
    if chance.random() < 0.3:
        path.unlink()
    elif chance.random() < 0.5:
        path.write_bytes(content[: chance.randrange(len(content))])
    else:
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        path.write_bytes(content)


# One fault at a time ---------------------------------------------------------------------------


def asked_to_stop(folder):
    """Stop a run by SIGTERM, and return what it said, what it left, and how it went on."""
    child = fork(lambda report: executed(folder, train, report, None))
    child.wait_for(7)
    child.kill(signal.SIGTERM)
    code, _ = child.end()
    steps = child.heard.count(b".")
    newest = max(path.name for path in Path(folder, "fit_00").iterdir())
    again = fork(lambda report: executed(folder, train, report, None)).end()[1]
    return {"code": code, "steps": steps, "newest": newest, "again": again}


def asked_on_a_full_disk(folder):
    """Stop a run by SIGTERM that has never been able to write a checkpoint."""
    child = fork(lambda report: executed(folder, train, report, "full disk"))
    child.wait_for(7)
    child.kill(signal.SIGTERM)
    code, _ = child.end()
    again = fork(lambda report: executed(folder, train, report, None)).end()[1]
    return {"code": code, "again": again}


def main(folder, seeds):
    report = {"whole": [answer_of(train), answer_of(two_trainings)], "campaigns": []}
    for seed in range(seeds):
        for index, work in enumerate((train, two_trainings)):
            found = campaign(f"{folder}/{seed}_{index}", seed, work)
            report["campaigns"].append(found | {"expected": report["whole"][index]["end"]})
    report["stopped"] = asked_to_stop(f"{folder}/stopped")
    report["full"] = asked_on_a_full_disk(f"{folder}/full")
    print(json.dumps(report))


def answer_of(work):
    """Return what an undisturbed run comes to."""
    code, answer = fork(work).end()
    assert code == 0, code
    return answer


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.optim.AdamW([nn.Parameter(torch.ones(1))])  # imports what every child would import
    main(sys.argv[1], int(sys.argv[2]))

r"""Win rates by a judge: answers to instructions in the format of AlpacaEval, and what it says.

The paper compares fine-tuned models by AlpacaEval: a judge, itself a language model, sees the
answers of two models to the same instruction and prefers one. The judge is a service with a price
and a key, so nothing here calls it. `respond` writes the answers of a model, with noise on its
embeddings at a level :math:`\gamma` (:eq:`eq-descent-noise`) or without; `write_outputs` puts them
into a file of the tool; `alpaca_command` is the line to run; `judged_win_rate` reads the verdicts:

.. code-block:: python

    for name, model in models.items():
        answers = respond(model, tokenizer, instructions, gamma=1.5)
        write_outputs(f"{name}.json", instructions, answers, generator=name)
    print(alpaca_command("exact.json", "erm.json", "judged"))
    # after that line has been run:
    judged_win_rate("judged/weighted_alpaca_eval_gpt4_turbo/annotations.json")

A win rate that needs no judge, by likelihood, is `unrolled.descent.language.win_rate`.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from unrolled.descent.perturb import Perturbation
from unrolled.optimization import require
from unrolled.transformer import require_count

__all__ = ["JUDGE", "alpaca_command", "judged_win_rate", "respond", "write_outputs"]

JUDGE = "weighted_alpaca_eval_gpt4_turbo"
"""The judge of AlpacaEval 2; the paper does not say which it used."""


@torch.no_grad()
def respond(
    model: nn.Module,
    tokenizer: Any,
    instructions: Sequence[str],
    *,
    gamma: float = 0.0,
    seed: int = 0,
    max_new_tokens: int = 512,
) -> list[str]:
    r"""Return the greedy answer of a chat model to each instruction.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A causal language model, with adapters of ``peft`` or without, in evaluation mode.
    tokenizer : transformers.PreTrainedTokenizerBase
        With the template of a chat.
    instructions : sequence of str
    gamma : float
        Level of Gaussian noise on the embedding of each token that is read, those of the answer
        too; at least 0.
    seed : int
        The noise of instruction i has the seed ``seed + i``: the same for every model.
    max_new_tokens : int
        Longest answer, in tokens.

    Returns
    -------
    list of str
        Without the tokens that end a turn.

    Raises
    ------
    ValueError
        If an argument is outside its range.
    """
    require_count(max_new_tokens, "max_new_tokens")
    require_count(seed, "seed", least=0)
    require(not model.training, "model", "in training mode", "in evaluation mode")
    device, answers = next(model.parameters()).device, []
    for i, instruction in enumerate(instructions):
        chat = [{"role": "user", "content": instruction}]
        prompt = tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
        ).to(device)
        generator = torch.Generator().manual_seed(seed + i)
        noise = Perturbation(model, gamma, generator=generator) if gamma else nullcontext()
        with noise:
            new = model.generate(**prompt, max_new_tokens=max_new_tokens, do_sample=False)
        answer = new[0, prompt["input_ids"].shape[1] :]
        answers.append(tokenizer.decode(answer, skip_special_tokens=True))
    return answers


def write_outputs(
    path: str | Path,
    instructions: Sequence[str],
    answers: Sequence[str],
    *,
    generator: str,
    dataset: str = "alpaca_eval",
) -> Path:
    """Write answers as AlpacaEval reads them: a JSON list, one object per instruction.

    Parameters
    ----------
    path : str or Path
        The file; its folder must exist.
    instructions, answers : sequence of n str
    generator : str
        Name of the model, the same for all: the tool reports by it.
    dataset : str
        Where the instructions are from.

    Returns
    -------
    Path

    Raises
    ------
    ValueError
        If there is not one answer per instruction, an instruction comes twice (the tool joins the
        files of two models by it), or the name is empty.
    """
    count, expected = len(answers), len(instructions)
    require(count == expected > 0, "answers", f"{count} answers", f"{expected}, at least one")
    require(len(set(instructions)) == expected, "instructions", "some twice", "all different")
    require(bool(generator), "generator", generator, "the name of the model")
    rows = [
        {"instruction": question, "output": answer, "generator": generator, "dataset": dataset}
        for question, answer in zip(instructions, answers, strict=True)
    ]
    text = json.dumps(rows, ensure_ascii=False, indent=2) + "\n"
    Path(path).write_text(text, encoding="utf-8")
    return Path(path)


def alpaca_command(
    model_outputs: str | Path,
    reference_outputs: str | Path,
    output_path: str | Path,
    *,
    judge: str = JUDGE,
) -> str:
    """Return the command with which AlpacaEval compares two files of `write_outputs`.

    Parameters
    ----------
    model_outputs, reference_outputs : str or Path
        The win rate is that of the first against the second.
    output_path : str or Path
        Folder of the verdicts.
    judge : str
        Name of a configuration of the tool, or a path to one.

    Returns
    -------
    str
        A line for a shell, in which ``alpaca-eval`` is installed and the key of the judge is set.

    Examples
    --------
    >>> print(alpaca_command("exact.json", "erm.json", "judged", judge="claude"))
    alpaca_eval --model_outputs exact.json --reference_outputs erm.json
        --annotators_config claude --output_path judged
    """
    return shlex.join(
        [
            "alpaca_eval",
            *("--model_outputs", str(model_outputs)),
            *("--reference_outputs", str(reference_outputs)),
            *("--annotators_config", judge),
            *("--output_path", str(output_path)),
        ]
    )


def judged_win_rate(path: str | Path) -> float:
    r"""Return the share of the verdicts that prefer the model, from the tool's annotations.

    .. math:: \frac1n \sum_i (p_i - 1)

    with a preference :math:`p_i` from 1, the reference, to 2, the model; 0 is a draw, 1.5, and
    instructions without a verdict do not count.

    Parameters
    ----------
    path : str or Path
        The ``annotations.json`` that the command has written.

    Raises
    ------
    ValueError
        If there is no verdict, or a preference is none of these.
    """
    rows = json.loads(Path(path).read_text(encoding="utf-8"))
    found = [row["preference"] for row in rows if row["preference"] is not None]
    require(bool(found), "path", str(path), "a file with at least one verdict")
    for p in found:
        require(p == 0 or 1 <= p <= 2, "preference", p, "0 or from 1 to 2")
    return sum((p or 1.5) - 1 for p in found) / len(found)

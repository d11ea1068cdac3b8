"""What language models are asked: the prompts of AlpacaEval, and the commonsense tasks.

The prompts come from the hub. The tasks are those of the library `lm-eval`, which also loads their
data and scores them: here they are only listed, and loaded ahead of a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from unrolled.data._extra import need
from unrolled.data.classification import spread
from unrolled.data.fetch import FetchError, offline
from unrolled.data.hub import HubTable, table

__all__ = ["ALPACA_EVAL", "COMMONSENSE", "Prompt", "Prompts", "alpaca_eval", "commonsense"]

ALPACA_EVAL = HubTable(
    "tatsu-lab/alpaca_eval",
    None,
    columns=("instruction", "output", "generator", "dataset"),
    rows={"train": 805},
    num_bytes=10_000_000,
    data_files="alpaca_eval.json",
)
"""805 instructions with the answers of text-davinci-003."""

COMMONSENSE = (
    "arc_challenge",
    "arc_easy",
    "hellaswag",
    "openbookqa",
    "piqa",
    "social_iqa",
    "winogrande",
)
"""Names of the tasks in lm-eval."""


@dataclass(frozen=True)
class Prompt:
    """An instruction, and the answer that another model gave.

    Parameters
    ----------
    instruction : str
        What is asked.
    reference : str
        The answer to compare with.
    generator : str
        Which model gave it.
    origin : str
        From which collection the instruction comes.
    """

    instruction: str
    reference: str
    generator: str
    origin: str


@dataclass(frozen=True)
class Prompts:
    """Prompts with their provenance; all are for testing.

    Parameters
    ----------
    name : str
        Short name, used in result rows.
    prompts : tuple of Prompt
        In the published order.
    licence, source, attribution : str
        Under which terms, from where, and whom to name.
    """

    name: str
    prompts: tuple[Prompt, ...]
    licence: str = ""
    source: str = ""
    attribution: str = ""

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the number of prompts."""
        return {"test": {"examples": len(self.prompts)}}


def alpaca_eval(
    subset: int | None = None, *, revision: str | None = None, mirror: Path | None = None
) -> Prompts:
    """Return the prompts of AlpacaEval.

    Parameters
    ----------
    subset : int, optional
        Keep only so many, spread evenly; all 805 by default.
    revision, mirror
        As in `unrolled.data.hub.table`.

    Raises
    ------
    unrolled.data.fetch.FetchError
        They are not cached and cannot be loaded; the message says why and what to do.
    """
    rows = table(ALPACA_EVAL, "train", revision=revision, mirror=mirror)
    chosen = rows.select(spread(len(rows), subset))
    return Prompts(
        name="alpaca_eval",
        prompts=tuple(
            Prompt(row["instruction"], row["output"], row["generator"], row["dataset"])
            for row in chosen
        ),
        licence="CC BY-NC 4.0",
        source=f"hub:{ALPACA_EVAL.repository}",
        attribution="X. Li et al., AlpacaEval: An Automatic Evaluator of Instruction-following "
        "Models, 2023.",
    )


def commonsense(
    names: Sequence[str] = COMMONSENSE, *, include_path: Path | None = None
) -> dict[str, int]:
    """Load the data of tasks through `lm-eval`; return how many questions each has.

    Parameters
    ----------
    names : sequence of str
        Names of tasks in lm-eval.
    include_path : Path, optional
        A folder with more tasks, as lm-eval takes it.

    Returns
    -------
    dict of str to int
        Questions that the task is scored on, by name.

    Raises
    ------
    ValueError
        lm-eval does not know a name.
    unrolled.data.fetch.FetchError
        Data of a task could not be loaded; the message says why and what to do.
    """
    library = need("lm_eval.tasks", "the commonsense tasks")
    manager = library.TaskManager(include_path=include_path and str(include_path))
    unknown = sorted(set(names) - set(manager.all_tasks))
    if unknown:
        raise ValueError(f"names has {unknown}, which lm-eval {_version()} does not know")
    return {name: _count(manager, name) for name in names}


def _count(manager: object, name: str) -> int:
    try:
        with _offline_if_asked():
            loaded = manager.load([name])["tasks"]
            return sum(len(task.eval_docs) for task in loaded.values())
    except Exception as error:  # whatever the loader of a task raises
        raise FetchError(
            f"the data of the task {name} could not be loaded: {type(error).__name__}: {error}\n"
            "What you can do: check the network (UNROLLED_OFFLINE and HF_HUB_OFFLINE forbid it) "
            "and run the same again.",
            {name: error},
        ) from error


@contextmanager
def _offline_if_asked() -> Iterator[None]:
    """Forbid the network to the libraries of the hub, which read their own switch when imported."""
    hub = need("huggingface_hub", "the commonsense tasks").constants
    config = need("datasets", "the commonsense tasks").config
    switches = [
        (hub, "HF_HUB_OFFLINE"),
        (config, "HF_HUB_OFFLINE"),
        (config, "HF_DATASETS_OFFLINE"),
    ]
    old = [getattr(module, name) for module, name in switches]
    try:
        for (module, name), value in zip(switches, old, strict=True):
            setattr(module, name, value or offline())
        yield
    finally:
        for (module, name), value in zip(switches, old, strict=True):
            setattr(module, name, value)


def _version() -> str:
    return getattr(need("lm_eval", "the commonsense tasks"), "__version__", "")

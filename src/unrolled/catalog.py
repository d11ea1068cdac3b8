"""Catalog: the names of all experiments and benchmarks, and where each of them lives.

Nothing is imported until it is asked for, so listing the names costs no import of torch.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from unrolled.experiment import Experiment

__all__ = ["BENCHMARKS", "EXPERIMENTS", "all_claims", "load_benchmark", "load_experiment"]

#: Module of each experiment; its attribute is ``EXPERIMENT``.
EXPERIMENTS = {
    "looped.instability": "unrolled.looped.instability",
    "looped.search": "unrolled.looped.search",
    "looped.pretraining": "unrolled.looped.pretraining",
    "looped.depth": "unrolled.looped.depth",
    "looped.inference": "unrolled.looped.inference",
    "descent.search": "unrolled.descent.search",
    "descent.text": "unrolled.descent.text",
    "descent.text_ablation": "unrolled.descent.text_ablation",
    "descent.pairs": "unrolled.descent.pairs",
    "descent.video": "unrolled.descent.video",
    "descent.language": "unrolled.descent.language",
    "descent.language_search": "unrolled.descent.language_search",
    "horst.bias": "unrolled.horst.bias",
    "horst.search": "unrolled.horst.search",
    "horst.vision": "unrolled.horst.vision",
    "horst.language": "unrolled.horst.language",
    "horst.sensitivity": "unrolled.horst.sensitivity",
    "together.descending_loops": "unrolled.together.descending_loops",
    "together.sparse_search": "unrolled.together.sparse_search",
    "together.sparse_loops": "unrolled.together.sparse_loops",
    "together.robust_search": "unrolled.together.robust_search",
    "together.robust_sparse": "unrolled.together.robust_sparse",
}

#: Module of each part's benchmark; its attribute is ``BENCHMARK``.
BENCHMARKS = {
    "looped": "unrolled.looped.bench",
    "descent": "unrolled.descent.bench",
    "horst": "unrolled.horst.bench",
}


def load_experiment(name: str) -> Experiment:
    """Import and return an experiment.

    Parameters
    ----------
    name
        A name of `EXPERIMENTS`, or ``package.module:ATTRIBUTE`` for an experiment of your own,
        found from the current folder.

    Raises
    ------
    ValueError
        If there is no such experiment; names those that exist.
    """
    if ":" in name:
        return _load_attribute(name)
    if name not in EXPERIMENTS:
        raise ValueError(
            f"unknown experiment {name!r}; allowed: {', '.join(EXPERIMENTS)}, "
            "or package.module:ATTRIBUTE"
        )
    return _load_attribute(f"{EXPERIMENTS[name]}:EXPERIMENT")


def _load_attribute(reference: str) -> Experiment:
    module_name, _, attribute = reference.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does, for the console script too
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and module_name.startswith(error.name):
            raise ValueError(f"there is no module {module_name!r}") from None
        raise
    found = getattr(module, attribute, None)
    if not isinstance(found, Experiment):
        raise ValueError(f"{reference!r} is {found!r}, not an unrolled.experiment.Experiment")
    return found


def all_claims(preset: str = "laptop") -> list[dict[str, Any]]:
    """Return every claim that an experiment of the catalog tests, with its verdict.

    Each is a row of `unrolled.results.comparison_table`, with three keys more: ``experiment``, the
    ``command`` that makes its rows, and the ``rows_file`` that has them ("" where there are none).
    """
    from unrolled.results import comparison_table, file_of

    found = []
    for name in EXPERIMENTS:
        command = f"python -m unrolled run {name} --preset {preset}"
        file = file_of(name).name if file_of(name).exists() else ""
        source = {"experiment": name, "command": command, "rows_file": file}
        table = comparison_table(name, load_experiment(name).claims, preset=preset)
        found += [source | row for row in table]
    return found


def load_benchmark(part: str) -> Callable[[str], list[dict[str, Any]]]:
    """Import and return the benchmark of a part: ``benchmark(preset)`` returns rows.

    Raises
    ------
    ValueError
        If the part has no benchmark; names those that have one.
    """
    if part not in BENCHMARKS:
        raise ValueError(f"unknown benchmark {part!r}; allowed: {', '.join(BENCHMARKS)}")
    return importlib.import_module(BENCHMARKS[part]).BENCHMARK

"""Experiment: one measurement, its presets and cases, and the rows that it yields.

The notebook, the command line and the tests call the same object, so there is one path from an
idea to its evidence. A *unit* of work is one case and one seed; it yields one row.
"""

from __future__ import annotations

import functools
import itertools
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unrolled import hardware, results
from unrolled import settings as settings_module
from unrolled.progress import ProgressLine
from unrolled.provenance import device, provenance, threads
from unrolled.results import Row

__all__ = ["PRESETS", "Experiment", "Report", "Unit"]

#: Presets from the smallest to the paper's own scale, with the seeds that each runs by default.
PRESETS = {"smoke": 1, "live": 1, "laptop": 5, "colab": 3, "paper": 1}

#: Presets whose rows come from one thread of a CPU, so that they can be made again exactly.
ONE_THREAD = ("smoke", "live", "laptop")

#: Called by a measurement as ``report(done, total)`` to show how far it is.
Report = Callable[[int, int], None]

Case = dict[str, Any]

#: Columns that `Experiment` writes itself; a measurement may add ``steps`` and ``device``.
RESERVED = {"part", "experiment", "variant", "preset", "seed", *results.PROVENANCE} - {"device"}


def no_report(done: int, total: int) -> None:
    """Report nothing."""


@dataclass(frozen=True)
class Unit:
    """One case and one seed of an experiment under fixed settings: the work behind one row."""

    preset: str
    settings: Any
    case: Case
    seed: int
    overrides: dict[str, Any] = field(default_factory=dict)
    reference: str = ""

    @property
    def config_hash(self) -> str:
        """The name of the settings and the case, without the seed."""
        return settings_module.config_hash(self.settings, self.case)

    @property
    def label(self) -> str:
        """The case and the seed in words."""
        return " ".join(f"{key}={value}" for key, value in {**self.case, "seed": self.seed}.items())

    @property
    def command(self) -> str:
        """The command that makes this unit's row again."""
        words = ["python", "-m", "unrolled", "run", self.reference, "--preset", self.preset]
        words += ["--seeds", str(self.seed)]
        for key, value in self.case.items():
            words += ["--cases", f"{key}={_as_word(value)}"]
        for key, value in self.overrides.items():
            words += ["--set", f"{key}={_as_word(value)}"]
        return shlex.join(words)


def _as_word(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(_as_word(item) for item in value)
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class Experiment:
    """One measurement with its presets and cases.

    Parameters
    ----------
    name
        ``part.experiment``, for example ``looped.instability``.
    summary
        One line for the reader of ``python -m unrolled list``.
    presets
        A settings dataclass per preset; the names are among `PRESETS`.
    cases
        ``cases(settings)`` gives what is compared: a list of flat dictionaries, as a rule with
        the same keys, each of which becomes a column of the rows.
    measure
        ``measure(settings, case, seed, report)`` does the work and returns the metrics:
        numbers, text, booleans, or flat lists of numbers. ``report(done, total)`` may be
        called at any time. ``steps`` and ``device`` may be among the metrics.
    describe
        ``describe(settings)`` gives facts about the scale (parameters, FLOPs per token,
        memory) without running anything.
    seeds
        Number of seeds by preset, where it differs from `PRESETS`.
    claims
        What the paper says, and how our rows judge it.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Toy:
    ...     steps: int = 3
    >>> def measure(settings, case, seed, report):
    ...     return {"loss": settings.steps + case["shift"] + seed}
    >>> toy = Experiment("demo.toy", "Add three numbers.", presets={"live": Toy()},
    ...                  cases=lambda settings: [{"shift": 0}, {"shift": 10}], measure=measure)
    >>> [row["loss"] for row in toy.run("live", 1)]
    demo.toy: preset live, seed 1, 2 cases, steps 3, on cpu
    [4, 14]
    """

    name: str
    summary: str
    presets: Mapping[str, Any]
    cases: Callable[[Any], list[Case]]
    measure: Callable[[Any, Case, int, Report], dict[str, Any]]
    describe: Callable[[Any], dict[str, Any]] | None = None
    seeds: Mapping[str, int] = field(default_factory=dict)
    claims: Sequence[Any] = ()

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z]\w*\.[a-z]\w*", self.name):
            raise ValueError(f"name {self.name!r} must have the form part.experiment")
        for preset, settings in self.presets.items():
            _check_member(preset, PRESETS, "preset")
            settings_module.as_dict(settings)
        for preset in self.seeds:
            _check_member(preset, self.presets, "preset")

    @property
    def part(self) -> str:
        """The part of the book to which the experiment belongs."""
        return self.name.split(".")[0]

    def settings(self, preset: str, overrides: Mapping[str, Any] | None = None) -> Any:
        """Return the settings of a preset with overrides; ValueError names what is allowed."""
        _check_member(preset, self.presets, f"preset of {self.name}")
        return settings_module.replace(self.presets[preset], overrides)

    def default_seeds(self, preset: str) -> list[int]:
        """Return the seeds that a preset runs when none are named."""
        return list(range(self.seeds.get(preset, PRESETS[preset])))

    def suited(
        self,
        preset: str,
        overrides: Mapping[str, Any] | None = None,
        say: Callable[[str], None] = print,
    ) -> dict[str, Any]:
        """Return overrides with which a preset suits this machine, and say what was added.

        What is added counts as if it had been given: see `unrolled.hardware.suited`.
        """
        given = dict(overrides or {})
        added = hardware.suited(self.settings(preset, given), given)
        for name, value in added.items():
            say(f"{hardware.found()} has no bfloat16: {preset} runs with --set {name}={value}")
        return given | added

    def units(
        self,
        preset: str,
        seeds: Sequence[int],
        cases: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        overrides: Mapping[str, Any] | None = None,
        reference: str | None = None,
    ) -> list[Unit]:
        """Return the work of a run, seed by seed, each case once.

        Parameters
        ----------
        preset
            A key of ``presets``.
        seeds
            Whole numbers >= 0.
        cases
            Which cases: None for all; ``{"num_loops": 12, "variant": ["flt", "original"]}``
            keeps those with these values; a list of such dictionaries keeps the union.
        overrides
            Settings to change.
        reference
            How the command line finds this experiment; its name by default.

        Raises
        ------
        ValueError
            For an unknown preset, setting, case key or value; names what is allowed.
        """
        settings = self.settings(preset, overrides)
        chosen = select_cases(self.cases(settings), cases)
        plain = {name: _get(settings, name) for name in overrides or {}}
        return [
            Unit(preset, settings, case, _check_seed(seed), plain, reference or self.name)
            for seed, case in itertools.product(seeds, chosen)
        ]

    def run(
        self,
        preset: str = "live",
        seed: int = 0,
        *,
        cases: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        overrides: Mapping[str, Any] | None = None,
        results_file: str | Path | None = None,
        progress: bool | None = None,
    ) -> list[Row]:
        """Measure the cases of one seed in this process and return their rows.

        Parameters
        ----------
        preset, cases, overrides
            As in `units`.
        seed
            A whole number >= 0.
        results_file
            Where to append the rows too. Cases which that file already has are not measured
            again.
        progress
            Show a progress line; None shows it on a terminal or in a notebook, unless
            ``TQDM_DISABLE`` is set.

        Returns
        -------
        list of dict
            One row per case, in the order of the cases.
        """
        overrides = self.suited(preset, overrides)
        units = self.units(preset, [seed], cases, overrides)
        print(self._headline(units))
        done = finished_rows(results_file, self, units)
        rows = []
        with ProgressLine(len(units), shown=progress) as line:
            for i, unit in enumerate(units):
                row = done.get(i) or self.measure_unit(unit, functools.partial(line.report, i))
                if results_file is not None and i not in done:
                    results.append(results_file, row, once=True)
                line.finish(i, unit.label)
                rows.append(row)
        return rows

    def _headline(self, units: Sequence[Unit]) -> str:
        """Say in one line what is used: preset, cases, seed, data, steps, device."""
        unit, count = units[0], len(units)
        words = [f"preset {unit.preset}", f"seed {unit.seed}", f"{count} case{'s' * (count > 1)}"]
        words += [
            f"{name} {getattr(unit.settings, name)}"
            for name in ("data", "corpus", "steps")
            if hasattr(unit.settings, name) and name not in unit.overrides
        ]
        words += [f"{name} {_as_word(value)}" for name, value in unit.overrides.items()]
        return f"{self.name}: {', '.join(words)}, on {device()}"

    def unit_key(self, unit: Unit) -> tuple:
        """Return what identifies the row of a unit, as `unrolled.results.unit_key` does."""
        return self.name, unit.preset, unit.config_hash, unit.seed

    def measure_unit(self, unit: Unit, report: Report = no_report) -> Row:
        """Measure one unit and return its complete row."""
        start = time.perf_counter()
        with threads(1 if unit.preset in ONE_THREAD else None):
            metrics = dict(self.measure(unit.settings, dict(unit.case), unit.seed, report))
        return self._row(unit, metrics, time.perf_counter() - start)

    def _row(self, unit: Unit, metrics: dict[str, Any], seconds: float) -> Row:
        clash = sorted(metrics.keys() & (RESERVED | unit.case.keys()))
        if clash:
            raise ValueError(f"{self.name}: measure returned {clash}, which name other columns")
        head = {"part": self.part, "experiment": self.name, "variant": None, "preset": unit.preset}
        tail = {
            "steps": metrics.pop("steps", getattr(unit.settings, "steps", None)),
            "seconds": round(seconds, 3),
            "device": metrics.pop("device", None) or device(),
            **provenance(),
            "config_hash": unit.config_hash,
            "command": unit.command,
        }
        overrides = {name.replace(".", "_"): value for name, value in unit.overrides.items()}
        row = {**head, **unit.case, "seed": unit.seed, **overrides, **metrics, **tail}
        return results.plain_row(row)


def select_cases(cases: Sequence[Case], wanted: Any) -> list[Case]:
    """Return the wanted cases; ValueError names the keys and values that exist.

    Examples
    --------
    >>> cases = [{"num_loops": k} for k in (6, 9, 12)]
    >>> select_cases(cases, {"num_loops": ["6", 12]})
    [{'num_loops': 6}, {'num_loops': 12}]
    >>> select_cases([{"method": "erm"}, {"method": "fixed", "weight": 0.1}], {"weight": 0.1})
    [{'method': 'fixed', 'weight': 0.1}]
    """
    if wanted is None:
        return [dict(case) for case in cases]
    filters = [wanted] if isinstance(wanted, Mapping) else list(wanted)
    checked = [_check_filter(cases, conditions) for conditions in filters]
    chosen = [dict(case) for case in cases if any(_passes(case, kept) for kept in checked)]
    if not chosen:
        raise ValueError(f"cases {wanted!r} select nothing")
    return chosen


def _passes(case: Case, kept: Mapping[str, list]) -> bool:
    return all(key in case and case[key] in values for key, values in kept.items())


def _check_filter(cases: Sequence[Case], conditions: Mapping[str, Any]) -> dict[str, list]:
    return {key: _check_values(cases, key, value) for key, value in conditions.items()}


def _check_values(cases: Sequence[Case], key: str, wanted: Any) -> list:
    _check_member(key, {name: None for case in cases for name in case}, "case key")
    allowed = {_as_word(case[key]): case[key] for case in cases if key in case}
    values = wanted if isinstance(wanted, (list, tuple)) else [wanted]
    for value in values:
        _check_member(_as_word(value), allowed, f"value of case key {key}")
    return [allowed[_as_word(value)] for value in values]


def _check_member(value: Any, allowed: Any, what: str) -> None:
    if value not in allowed:
        raise ValueError(f"unknown {what}: {value!r}; allowed: {', '.join(map(str, allowed))}")


def _check_seed(seed: Any) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ValueError(f"seed {seed!r} must be a whole number >= 0")
    return seed


def _get(settings: Any, dotted: str) -> Any:
    value = functools.reduce(getattr, dotted.split("."), settings)
    return list(value) if isinstance(value, tuple) else value


def finished_rows(
    path: str | Path | None, experiment: Experiment, units: Sequence[Unit]
) -> dict[int, Row]:
    """Return the rows that a file already has, by the index of their unit."""
    if path is None or not Path(path).is_file():
        return {}
    rows = {results.unit_key(row): row for row in results.read(Path(path))}
    keys = [experiment.unit_key(unit) for unit in units]
    return {i: rows[key] for i, key in enumerate(keys) if key in rows}

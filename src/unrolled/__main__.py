"""The command line: ``python -m unrolled list | info | plan | run | compare | bench | data``.

The commands import what they need when they are called, so that help costs no import of torch.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unrolled.data.command import app as data_app

if TYPE_CHECKING:
    from unrolled.execution import Execution
    from unrolled.experiment import Experiment, Unit
    from unrolled.runner import Failure

__all__ = ["app", "main"]

app = typer.Typer(
    name="unrolled",
    help="Run, inspect and compare the experiments of the book Unrolled.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(data_app)

Name = Annotated[str, typer.Argument(help="an experiment, or package.module:ATTRIBUTE")]
Preset = Annotated[str, typer.Option(help="smoke, live, laptop, colab or paper")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="change a setting; may be given again"),
]


@app.command("list")
def list_experiments() -> None:
    """List the experiments, their presets, and how many units (case x seed) each preset has."""
    from unrolled.catalog import EXPERIMENTS, load_experiment

    rows = [_listing(load_experiment(name)) for name in EXPERIMENTS]
    _print_table("Experiments", rows)


def _listing(experiment: Experiment) -> dict[str, str]:
    def units(preset: str) -> int:
        return len(experiment.units(preset, experiment.default_seeds(preset)))

    presets = ", ".join(f"{preset} ({units(preset)})" for preset in experiment.presets)
    return {"experiment": experiment.name, "summary": experiment.summary, "presets": presets}


@app.command()
def info(name: Name, preset: Preset = "laptop", overrides: Overrides = None) -> None:
    """Show the settings of an experiment and its scale, without running it."""
    from unrolled.catalog import load_experiment
    from unrolled.settings import as_dict, parse_assignments

    experiment = load_experiment(name)
    settings = experiment.settings(preset, parse_assignments(overrides or [], "--set"))
    print(f"{experiment.name}: {experiment.summary}")
    cases, seeds = len(experiment.cases(settings)), len(experiment.default_seeds(preset))
    print(f"{cases} cases x {seeds} seeds = {cases * seeds} units")
    _print_facts(f"Settings of {preset}", as_dict(settings))
    if experiment.describe is not None:
        _print_facts(f"Scale of {preset}", experiment.describe(settings))


@app.command()
def run(
    name: Name,
    preset: Preset = "laptop",
    seeds: Annotated[
        str | None, typer.Option(help="0-4, or 0,2,5; the preset's own by default")
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="processes side by side; all cores, or 1 for colab and paper"),
    ] = None,
    cases: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE[,VALUE]", help="only these cases; may be given again"),
    ] = None,
    overrides: Overrides = None,
    output: Annotated[
        Path | None, typer.Option(help="the file to append to; the book's results by default")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="remove the finished rows of these units first")
    ] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="remove this preset's rows of other settings first")
    ] = False,
    checkpoints: Annotated[
        Path | None,
        typer.Option(help="keep checkpoints there, on a drive that outlives the machine"),
    ] = None,
    checkpoint_minutes: Annotated[
        float, typer.Option(help="minutes between checkpoints: what a kill can cost")
    ] = 10.0,
    resume: Annotated[
        str, typer.Option(help="auto: go on from the newest checkpoint; never: refuse if there is")
    ] = "auto",
    micro_batch: Annotated[
        int | None, typer.Option(min=1, help="sequences that one process holds at a time")
    ] = None,
) -> None:
    """Measure the units (case x seed) of an experiment and append a row for each.

    Units whose row is already in the file are skipped, so an interrupted run goes on when the
    same command is given again. With --checkpoints, so does the training that was cut off; asked
    to stop by SIGTERM it finishes its step, writes a checkpoint and ends with exit code 75.
    """
    from unrolled.catalog import load_experiment
    from unrolled.execution import Execution
    from unrolled.settings import parse_assignments

    folder = None if checkpoints is None else str(checkpoints.resolve())
    execution = Execution(folder, checkpoint_minutes, resume, micro_batch)
    experiment = load_experiment(name)
    chosen = {
        key: text.split(",") for key, text in parse_assignments(cases or [], "--cases").items()
    }
    changed = experiment.suited(preset, parse_assignments(overrides or [], "--set"), _say)
    numbers = experiment.default_seeds(preset) if seeds is None else parse_seeds(seeds)
    units = experiment.units(preset, numbers, chosen or None, changed, reference=name)
    path = output or default_output(experiment, name, preset, changed)
    _check_output(path, preset)
    _clear(path, experiment, units, preset, again=again, prune=prune)
    raise typer.Exit(_run_missing(experiment, name, units, path, jobs, execution))


def parse_seeds(text: str) -> list[int]:
    """Return the seeds that ``0-4`` or ``0,2,5-7`` names.

    Examples
    --------
    >>> parse_seeds("0-2,7")
    [0, 1, 2, 7]
    """
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"seeds {text!r} must have the form 0-4 or 0,2,5")
        seeds += range(int(first), int(last or first) + 1)
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds {text!r} must name each seed once, and at least one")
    return seeds


def default_output(
    experiment: Experiment, reference: str, preset: str, overrides: dict[str, str]
) -> Path:
    """Return where rows go when no file is named.

    Evidence (laptop, colab and paper presets as they stand) goes to the book's results in a
    checkout. Trials go to a local folder, so that they never mix with it.
    """
    from unrolled.results import checkout, file_of

    root = checkout()
    evidence = preset not in ("smoke", "live") and not overrides and ":" not in reference
    if evidence and root:
        return file_of(experiment.name)
    local = root / "_build" / "trials" if root else Path("unrolled_results")
    return local / file_of(experiment.name).name


def _check_output(path: Path, preset: str) -> None:
    from unrolled.results import folder

    if preset in ("smoke", "live") and path.resolve().is_relative_to(folder().resolve()):
        raise ValueError(
            f"preset {preset} makes no evidence, so it never writes to the book's results; "
            "name another --output"
        )


def _clear(
    path: Path,
    experiment: Experiment,
    units: Sequence[Unit],
    preset: str,
    *,
    again: bool,
    prune: bool,
) -> None:
    """Remove the rows that ``--again`` and ``--prune`` ask to remove, and say how many."""
    from unrolled.results import remove, unit_key

    keys = {experiment.unit_key(unit) for unit in units}
    if again:
        count = remove(path, lambda row: unit_key(row) in keys)
        print(f"removed {count} finished rows from {path}")
    current = {unit.config_hash for unit in [*experiment.units(preset, [0]), *units]}
    old = _rows_of_other_settings(experiment.name, preset, current)
    if prune:
        print(f"removed {remove(path, old)} rows of other settings from {path}")


def _rows_of_other_settings(name: str, preset: str, current: set[str]) -> Callable[[dict], bool]:
    def is_old(row: dict[str, Any]) -> bool:
        return (row["experiment"], row["preset"]) == (name, preset) and (
            row["config_hash"] not in current
        )

    return is_old


def _run_missing(
    experiment: Experiment,
    reference: str,
    units: Sequence[Unit],
    path: Path,
    jobs: int | None,
    execution: Execution,
) -> int:
    """Run the units that the file does not have yet; return the exit code."""
    from unrolled.execution import Preempted
    from unrolled.experiment import finished_rows
    from unrolled.progress import duration
    from unrolled.runner import Stopped, stop_on_signals

    done = finished_rows(path, experiment, units)
    todo = [unit for i, unit in enumerate(units) if i not in done]
    skipped = f", {len(done)} of them done before and skipped" if done else ""
    shared = f"; {_world_size()} processes share each" if _world_size() > 1 else ""
    _say(f"{experiment.name}, preset {units[0].preset}: {len(units)} units{skipped}{shared}")
    start = time.monotonic()
    try:
        with stop_on_signals():
            failures = _run_units(experiment, reference, todo, path, jobs, execution)
    except (Stopped, Preempted) as stopped:
        rows = len(finished_rows(path, experiment, units))
        _say(f"{stopped}: {rows} of {len(units)} rows are in {path}; the same command goes on")
        return _exit_code(stopped, execution)
    made = len(todo) - len(failures)
    _say(f"{made} rows added to {path} in {duration(time.monotonic() - start)}")
    return _report_failures(failures)


def _exit_code(stopped: BaseException, execution: Execution) -> int:
    """Return the code of the signal; or, where what was begun is kept too, the one that says so."""
    import signal

    from unrolled.execution import PREEMPTED

    number = getattr(stopped, "number", signal.SIGTERM)
    kept = execution.checkpoint_folder is not None and number == signal.SIGTERM
    return PREEMPTED if kept else 128 + number


def _run_units(
    experiment: Experiment,
    reference: str,
    units: Sequence[Unit],
    path: Path,
    jobs: int | None,
    execution: Execution,
) -> list[Failure]:
    from unrolled.experiment import ONE_THREAD
    from unrolled.progress import ProgressLine
    from unrolled.results import append
    from unrolled.runner import run_here, run_in_processes

    def keep(row: dict[str, Any]) -> None:
        if _is_main_process():
            append(path, row, once=True)
            _tidy(execution, row)

    if not units:
        return []
    with ProgressLine(len(units), plain=_is_main_process()) as progress:
        if _world_size() > 1:
            return run_here(experiment, units, keep, progress, execution)
        if jobs is None:
            jobs = (os.cpu_count() or 1) if units[0].preset in ONE_THREAD else 1
        return run_in_processes(reference, units, keep, progress, jobs, execution)


def _tidy(execution: Execution, row: dict[str, Any]) -> None:
    """Of the checkpoints behind a row, keep the weights and give back the rest of the disk."""
    from unrolled.checkpoint import keep_weights_only

    if execution.checkpoint_folder is not None:
        of_unit = execution.of_unit(row["experiment"], row["config_hash"], row["seed"])
        keep_weights_only(of_unit.checkpoint_folder)


def _world_size() -> int:
    """Return the number of processes that `accelerate launch` started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def _is_main_process() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _say(text: str) -> None:
    if _is_main_process():
        print(text, flush=True)


def _report_failures(failures: Sequence[Failure]) -> int:
    for failure in failures:
        last = failure.error.strip().splitlines()[-1]
        print(f"failed: {failure.unit.label}: {last}", file=sys.stderr)
        print(f"  try it alone: {failure.unit.command}", file=sys.stderr)
    return 1 if failures else 0


@app.command()
def plan(
    name: Name,
    preset: Preset = "paper",
    seeds: Annotated[str | None, typer.Option(help="as in run")] = None,
    cases: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE[,VALUE]", help="only these cases; may be given again"),
    ] = None,
    overrides: Overrides = None,
    utilization: Annotated[
        float, typer.Option(help="share of the devices' peak rate that is reached")
    ] = 0.3,
) -> None:
    """Say what a run would cost: parameters, operations, memory, and hours on three machines."""
    from unrolled.catalog import load_experiment
    from unrolled.plan import plan as count
    from unrolled.settings import parse_assignments

    experiment = load_experiment(name)
    chosen = {
        key: text.split(",") for key, text in parse_assignments(cases or [], "--cases").items()
    }
    changed = parse_assignments(overrides or [], "--set")
    numbers = experiment.default_seeds(preset) if seeds is None else parse_seeds(seeds)
    units = experiment.units(preset, numbers, chosen or None, changed, reference=name)
    rows = count(experiment, units, utilization)
    for row in rows:
        facts = {key: "does not fit" if value is None else value for key, value in row.items()}
        _print_facts(f"{experiment.name}, preset {preset}: {facts.pop('case')}", facts)
    print(f"Hours are of training alone, at {utilization:.0%} of the peak rate of the devices.")


@app.command()
def compare(preset: Preset = "laptop") -> None:
    """Print what the papers claim beside what our committed rows say, with the verdicts."""
    from unrolled.catalog import EXPERIMENTS, load_experiment
    from unrolled.results import comparison_table

    for name in EXPERIMENTS:
        claims = load_experiment(name).claims
        if claims:
            _print_comparison(name, comparison_table(name, claims, preset=preset))


def _print_comparison(name: str, table: Sequence[dict[str, Any]]) -> None:
    scales = ", ".join(dict.fromkeys(row["scale"] for row in table))
    columns = ("claim", "paper_value", "ours", "verdict", "evidence")
    _print_table(f"{name} ({scales})", [{key: row[key] for key in columns} for row in table])


@app.command()
def bench(
    part: Annotated[str, typer.Argument(help="a part of the book, such as looped")],
    preset: Preset = "laptop",
    output: Annotated[
        Path | None, typer.Option(help="also write the rows there, in place of earlier ones")
    ] = None,
) -> None:
    """Run the benchmarks of a part: ratios of times and memory, measured side by side."""
    from unrolled.catalog import load_benchmark
    from unrolled.provenance import device, provenance
    from unrolled.results import append, remove

    rows = load_benchmark(part)(preset)
    _print_table(f"Benchmarks of {part}, preset {preset}", rows)
    if output is not None:
        name = f"{part}.bench"
        head = {"part": part, "experiment": name, "preset": preset}
        command = f"python -m unrolled bench {part} --preset {preset}"
        remove(output, lambda row: (row["experiment"], row["preset"]) == (name, preset))
        for row in rows:
            append(output, {**head, **row, "device": device(), **provenance(), "command": command})


# --- tables -----------------------------------------------------------------------------------


def _print_table(title: str, rows: Sequence[dict[str, Any]], *, header: bool = True) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=SIMPLE, show_header=header)
    filled = [key for row in rows for key, value in row.items() if value not in ("", None)]
    columns = list(dict.fromkeys(filled))
    for column in columns:
        table.add_column(column.replace("_", " "), overflow="fold")
    for row in rows:
        table.add_row(*(as_text(row.get(column, "")) for column in columns))
    Console(width=None if sys.stdout.isatty() else 120, markup=False).print(table)


def _print_facts(title: str, facts: dict[str, Any]) -> None:
    rows = [{"name": key, "value": as_text(value)} for key, value in facts.items()]
    _print_table(title, rows, header=False)


def as_text(value: Any) -> str:
    """Return a value for a table: large numbers grouped and with their size in words.

    Examples
    --------
    >>> as_text(127_101_312), as_text(1.5e18), as_text(0.123456), as_text([6, 9])
    ('127,101,312 (127.1 M)', '1.50e+18', '0.1235', '6, 9')
    """
    if isinstance(value, (list, tuple)):
        return ", ".join(as_text(item) for item in value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if abs(value) >= 1e15:
        return f"{value:.2e}"
    return f"{value:,}{_in_words(value)}" if isinstance(value, int) else f"{value:,.4g}"


def _in_words(value: int) -> str:
    for size, name in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if abs(value) >= size:
            return f" ({value / size:.1f} {name})"
    return ""


def main() -> None:
    """Run the command line; a wrong input is one line on stderr and exit code 2."""
    try:
        app()
    except BrokenPipeError:  # `unrolled list | head` is no error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()

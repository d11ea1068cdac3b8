"""Make every committed result row again, and say which of them differ.

    python book/tools/remake_results.py [--jobs 2] [FILE ...]

The new rows go to `_build/results`, into a folder of their own for each state of the sources, so
an interrupted run goes on where it stopped and never with rows of older code. A row counts as equal
when everything but its provenance (time, versions, commit) is.
"""

import argparse
import hashlib
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from unrolled import results

ROOT = Path(__file__).resolve().parents[2]
MADE = ROOT / "_build" / "results"


def remakable(folder: Path) -> list[Path]:
    """Return the files of a folder whose rows must come out the same: all but times."""
    return sorted(path for path in folder.glob("*.jsonl") if not path.stem.endswith("_bench"))


def state_of_sources() -> str:
    """Return a name for what the package's sources are now."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "src").rglob("*.py")):
        digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def commands(rows: Sequence[results.Row], output: Path, jobs: int) -> list[list[str]]:
    """Return the fewest commands that make these rows again.

    That is one per experiment and preset; a row with settings of its own has its own command.
    """
    runs: dict[tuple[str, str], set[int]] = {}
    apart = [row for row in rows if "--set" in row["command"]]
    for row in (row for row in rows if row not in apart):
        runs.setdefault((row["experiment"], row["preset"]), set()).add(row["seed"])
    tail = ["--jobs", str(jobs), "--output", str(output)]
    head = [sys.executable, "-m", "unrolled", "run"]
    together = [
        [*head, name, "--preset", preset, "--seeds", ",".join(map(str, sorted(seeds))), *tail]
        for (name, preset), seeds in runs.items()
    ]
    # The recorded command is `python -m unrolled run ...`.
    return together + [[sys.executable, *shlex.split(row["command"])[1:], *tail] for row in apart]


def evidence(row: results.Row) -> dict:
    """Return the columns of a row that must come out the same."""
    return {key: value for key, value in row.items() if key not in results.PROVENANCE}


def differences(committed: Sequence[results.Row], made: Sequence[results.Row]) -> list[str]:
    """Return one line per committed row that was not made again equally."""
    found = {results.unit_key(row): row for row in made}
    lines = []
    for row in committed:
        again = found.get(results.unit_key(row))
        if again is None:
            lines.append(f"not made again: {row['command']}")
        elif evidence(again) != evidence(row):
            keys = [k for k, v in evidence(row).items() if again.get(k) != v]
            lines.append(f"differs in {', '.join(keys)}: {row['command']}")
    return lines


def remake(path: Path, jobs: int) -> list[str]:
    """Make the rows of one file again and return what differs."""
    committed, output = results.read(path), MADE / state_of_sources() / path.name
    for command in commands(committed, output, jobs):
        subprocess.run(command, check=True, cwd=ROOT)
    lines = differences(committed, results.read(output))
    print(f"{path.name}: {len(committed) - len(lines)} of {len(committed)} rows came out the same")
    return lines


def main() -> int:
    """Remake the named files, or all; the exit code is 1 if a row differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, default=remakable(results.folder()))
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    lines = [line for path in arguments.files for line in remake(path, arguments.jobs)]
    print("\n".join(lines) or "Every committed row can be made again.")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())

"""The briefs for projects: each has all its parts, and its starting call is one that runs."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest

from unrolled.__main__ import parse_seeds
from unrolled.catalog import load_experiment
from unrolled.settings import parse_assignments

TEXT = (Path(__file__).parents[2] / "book" / "projects.md").read_text("utf8")
BRIEFS = re.split(r"^## (?=\d)", TEXT, flags=re.MULTILINE)[1:]
COMMANDS = re.findall(r"```bash\n(.*?)\n```", TEXT)
CODE = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def options(command: str, name: str) -> list[str]:
    words = shlex.split(command)
    return [value for flag, value in pairwise(words) if flag == name]


def test_there_are_eight_briefs_with_all_their_parts():
    assert len(BRIEFS) == 8
    for number, brief in enumerate(BRIEFS, start=1):
        assert brief.startswith(f"{number}. ")
        for part in ("**Question.**", "**Data.**", "```", "**A good answer shows**"):
            assert part in brief.replace("```bash", "```").replace("```python", "```")
    assert len(COMMANDS) + len(CODE) == 8


@pytest.mark.parametrize("command", COMMANDS)
def test_a_starting_call_names_an_experiment_its_cases_and_its_settings(command):
    assert command.startswith("python -m unrolled run ")
    experiment = load_experiment(shlex.split(command)[4])
    (preset,), (seeds,) = options(command, "--preset"), options(command, "--seeds")
    cases = parse_assignments(options(command, "--cases"), "--cases")
    chosen = {key: text.split(",") for key, text in cases.items()}
    changed = parse_assignments(options(command, "--set"), "--set")
    units = experiment.units(preset, parse_seeds(seeds), chosen or None, changed)
    assert len(units) >= 3


@pytest.mark.parametrize("code", CODE)
def test_starting_code_runs(code):
    exec(compile(code, "projects.md", "exec"), {})


def test_the_points_of_the_rubric_add_up():
    points = [int(n) for n in re.findall(r"^\| (\d+) \|", TEXT, re.MULTILINE)]
    assert sum(points) == 20

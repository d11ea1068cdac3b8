"""The workflows: what they call exists here, and no failure of the weekly one stays unsaid."""

import inspect
import re
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from unrolled.data.catalog import DATA_SETS, find

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
NOT_FETCHED = {"imagenet_1k", "shanghaitech"}  # gated; larger than the disk of a runner


def read(path):
    return yaml.safe_load(path.read_text())


def commands(workflow):
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    return "\n".join(step["run"] for step in steps if "run" in step)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_what_a_workflow_calls_exists(path):
    workflow = read(path)
    called = commands(workflow)
    targets = re.findall(r"^([\w.]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"^make (\w+)$", called, re.MULTILINE)) <= set(targets)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for named in re.findall(r'"\.\[([\w,]+)\]"', called):
        assert set(named.split(",")) <= extras.keys()
    for file in re.findall(r"(?:bash|pytest) (\.ci/\w+|tests/\w+)", called):
        assert (ROOT / file).exists()
    for name, job in workflow["jobs"].items():
        assert "timeout-minutes" in job or name == "deploy"


def test_a_job_of_the_week_that_fails_or_hangs_opens_an_issue():
    workflow = read(ROOT / ".github" / "workflows" / "weekly.yml")
    report = workflow["jobs"].pop("report")
    assert set(report["needs"]) == set(workflow["jobs"]) == {"newest", "colab", "links", "data"}
    for result in ("failure", "cancelled"):
        assert f"contains(needs.*.result, '{result}')" in report["if"]
    assert workflow["permissions"]["issues"] == "write"
    told = report["steps"][0]["env"]["RESULTS"]
    assert set(re.findall(r"needs\.(\w+)\.result", told)) == set(report["needs"])


def test_each_data_set_that_can_be_is_fetched_every_week():
    called = commands(read(ROOT / ".github" / "workflows" / "weekly.yml"))
    calls = re.findall(r"unrolled data get ([\w ]+?)( --.*)?$", called, re.MULTILINE)
    fetched = [name for names, _ in calls for name in names.split()]
    assert sorted([*fetched, *NOT_FETCHED]) == sorted(found.name for found in DATA_SETS)
    for names, options in calls:
        for name in names.split():
            module, _, loader = find(name).loader.partition(":")
            known = inspect.signature(getattr(import_module(module), loader)).parameters
            assert set(re.findall(r"--(\w+)", options)) <= known.keys()

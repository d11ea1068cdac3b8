"""Every notebook runs from top to bottom, keeps the house rules, and has its copies in step."""

from __future__ import annotations

import io
from pathlib import Path

import batch
import house_rules
import pytest
from index import read_notebook
from jobs import make_jobs
from toc import docname_of, notebook_sources

import notebooks

ROOT = Path(__file__).parents[2]
SOURCES = notebook_sources(ROOT)

each_notebook = pytest.mark.parametrize(
    "source",
    SOURCES,
    ids=[docname_of(source, ROOT).removeprefix("notebooks/") for source in SOURCES],
)


def test_there_are_notebooks():
    assert SOURCES


@each_notebook
def test_house_rules(source: Path):
    assert house_rules.problems(read_notebook(source)) == []


def test_generated_files_are_in_step():
    assert [*notebooks.stale(ROOT), *notebooks.orphans(ROOT)] == []


@pytest.mark.notebooks
@each_notebook
def test_runs_at_preset_smoke(source: Path):
    """Run as the book does; what has not changed since the last run is not run again."""
    jobs = make_jobs([source], {"PRESET": "smoke"}, ROOT / batch.RUNS / "smoke", ROOT)
    (state,) = batch.Batch(jobs, workers=1, log=io.StringIO()).run()
    assert state.status in ("done", "fresh"), state.error

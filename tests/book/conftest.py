"""Lets the tests import the book's tools, and gives them a small book to work on."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

collect_ignore = ["fixtures"]  # a small book, whose notebooks a search for doctests would run
REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY / "book" / "tools"))


@pytest.fixture(scope="session")
def mini() -> Path:
    """Return a small book whose notebook holds every construct that ours use."""
    return Path(__file__).parent / "fixtures" / "mini"


@pytest.fixture
def mini_copy(mini: Path, tmp_path: Path) -> Path:
    """Return a copy of the small book that a test may change."""
    return Path(shutil.copytree(mini, tmp_path / "a book"))

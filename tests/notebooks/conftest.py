"""Lets the tests of the notebooks import the book's tools."""

from __future__ import annotations

import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY / "book" / "tools"))

"""Provenance: where a row comes from - versions, commit, device, and the number of threads."""

from __future__ import annotations

import functools
import importlib.metadata
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import unrolled
from unrolled.results import checkout

__all__ = ["commit", "device", "provenance", "threads", "torch_version"]


def provenance() -> dict[str, Any]:
    """Return the versions behind a row: of torch, of the package, and the commit."""
    return {"torch": torch_version(), "version": unrolled.__version__, "commit": commit()}


def torch_version() -> str | None:
    """Return torch's version without importing it; None if it is not installed."""
    if "torch" in sys.modules:
        return str(sys.modules["torch"].__version__)
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


def device() -> str:
    """Return ``cpu``, or the name of the GPU if this process has used one."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.get_device_name()
    return "cpu"


@functools.cache
def commit() -> str | None:
    """Return the short hash of the checkout, ``-dirty`` if ``src/`` differs from it, or None.

    It is read once in a process, since a process keeps the code that it has imported.
    """
    root = checkout()
    if root is None or not (root / ".git").exists():
        return None
    head = _git(root, "rev-parse", "--short", "HEAD")
    changed = _git(root, "status", "--porcelain", "--", "src")
    return f"{head}-dirty" if head and changed else head


def _git(root: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


@contextmanager
def threads(number: int | None) -> Iterator[None]:
    """Let torch use this many threads inside; None, or a process without torch, leaves it be.

    One thread makes sums independent of the machine's cores, so that a row can be made again.
    """
    torch = sys.modules.get("torch")
    if torch is None or number is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)

"""A job is one notebook to run; its key says whether a finished run still holds."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from index import read_notebook
from parameters import NotebookError, check_values, declared
from project import ROOT
from toc import docname_of

TOOLS = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Job:
    """A notebook to run, with the parameters to override."""

    source: Path
    values: dict[str, Any]
    output: Path
    root: Path = ROOT

    @property
    def docname(self) -> str:
        """The name of the notebook's page."""
        return docname_of(self.source, self.root)

    @property
    def key_file(self) -> Path:
        """Where the key of the finished run is kept."""
        return self.output.with_suffix(".key")


def make_jobs(
    sources: Iterable[Path], values: dict[str, Any], folder: Path, root: Path = ROOT
) -> list[Job]:
    """Return the jobs; their outputs lie in a folder that mirrors the notebooks'."""
    return [
        Job(source, values, folder / f"{docname_of(source, root)}.ipynb", root)
        for source in sources
    ]


def check_jobs(jobs: list[Job]) -> None:
    """Raise before any kernel starts if a notebook lacks a parameter or has another type for it."""
    for job in jobs:
        try:
            check_values(job.values, declared(read_notebook(job.source)))
        except NotebookError as error:
            raise NotebookError(f"{job.docname}: {error}") from None


# --- What a run depends on ------------------------------------------------------------------


def key_of(job: Job) -> str:
    """Return a hash of all that decides what a notebook prints."""
    facts = [job.source.read_text("utf8"), json.dumps(job.values, sort_keys=True, default=repr)]
    return hashlib.sha256("\n".join([*facts, surroundings(job.root)]).encode()).hexdigest()


def surroundings(root: Path) -> str:
    """Return a hash of the package with its data, the results, the tools and the environment."""
    digest = hashlib.sha256()
    for path in dependencies(root):
        digest.update(f"{path.name}\n".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    digest.update(json.dumps(environment()).encode())
    return digest.hexdigest()


def dependencies(root: Path) -> Iterator[Path]:
    """Yield every file that a notebook's output may depend on."""
    for folder in ("src/unrolled", "book/results"):
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path
    files = (root / "requirements.lock", TOOLS / "execute.py", TOOLS / "parameters.py")
    yield from filter(Path.is_file, files)


def environment() -> dict[str, str]:
    """Return the versions that change outputs."""
    facts = {"python": sys.version.split()[0]}
    for name in ("torch", "numpy", "matplotlib", "pandas", "papermill", "ipykernel", "unrolled"):
        with contextlib.suppress(PackageNotFoundError):
            facts[name] = version(name)
    return facts


def is_fresh(job: Job, key: str) -> bool:
    """Tell whether a finished run of the same content is there."""
    return job.output.is_file() and job.key_file.is_file() and job.key_file.read_text() == key

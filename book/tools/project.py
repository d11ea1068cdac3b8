"""Where the project lives: its folders, and its addresses as ``pyproject.toml`` states them.

Every badge, set-up cell and link that the tools write is made from the two addresses in
``[project.urls]``, so a fork changes those two lines and nothing else.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
BRANCH = "main"
COLAB = "https://colab.research.google.com/github"
COLAB_BADGE = "https://colab.research.google.com/assets/colab-badge.svg"

# What Colab brings itself; the set-up cell must leave these two alone.
KEPT_ON_COLAB = ("torch", "numpy")


def pyproject(root: Path = ROOT) -> dict:
    """Read ``pyproject.toml``."""
    return tomllib.loads((root / "pyproject.toml").read_text("utf8"))


def project_urls(root: Path = ROOT) -> dict[str, str]:
    """Return ``{"repository": ..., "book": ...}``, each without a slash at its end."""
    urls = pyproject(root)["project"].get("urls", {})
    found = {name.lower(): url.rstrip("/") for name, url in urls.items()}
    missing = {"repository", "book"} - set(found)
    if missing:
        raise ValueError(f"pyproject.toml [project.urls] lacks {', '.join(sorted(missing))}")
    return found


def repository_slug(root: Path = ROOT) -> str:
    """Return ``owner/name`` of the repository."""
    return "/".join(project_urls(root)["repository"].split("/")[-2:])


def page_url(docname: str, root: Path = ROOT) -> str:
    """Return the address of a page of the online book."""
    return f"{project_urls(root)['book']}/{docname}.html"


def colab_url(docname: str, root: Path = ROOT) -> str:
    """Return the address that opens a notebook's copy in Colab."""
    return f"{COLAB}/{repository_slug(root)}/blob/{BRANCH}/{docname}.ipynb"


def blob_url(path: str, root: Path = ROOT) -> str:
    """Return the address where the repository shows one of its files."""
    return f"{project_urls(root)['repository']}/blob/{BRANCH}/{path}"


def raw_url(path: str, root: Path = ROOT) -> str:
    """Return the address of a file's bytes, for image tags."""
    address = f"https://raw.githubusercontent.com/{repository_slug(root)}/{BRANCH}/{path}"
    return f"{address}?sanitize=true" if path.endswith(".svg") else address


def light_requirements(root: Path = ROOT) -> list[str]:
    """Return the names of the package's dependencies which Colab may have to install."""
    names = [Requirement(line).name for line in pyproject(root)["project"]["dependencies"]]
    return [name for name in names if name not in KEPT_ON_COLAB]


def extra_requirements(packages: Iterable[str], root: Path = ROOT) -> list[str]:
    """Return the requirements, with their bounds, of optional packages which a chapter names."""
    optional = pyproject(root)["project"].get("optional-dependencies", {})
    lines = {Requirement(line).name: line for extra in optional.values() for line in extra}
    if unknown := sorted(set(packages) - set(lines)):
        allowed = ", ".join(sorted(lines))
        raise ValueError(
            f"packages: {unknown} are in no extra of pyproject.toml; allowed: {allowed}"
        )
    return [lines[name] for name in packages]

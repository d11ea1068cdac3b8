"""The table of contents: which pages the book has, in which order, and which parts count them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml
from project import ROOT

SUFFIXES = (".md", ".py", ".ipynb", ".rst")


@dataclass(frozen=True)
class Entry:
    """A page of ``_toc.yml`` with the pages below it."""

    docname: str
    numbered: bool = False
    children: tuple[Entry, ...] = ()

    def walk(self) -> Iterator[Entry]:
        """Yield this page and all below it, in reading order."""
        yield self
        for child in self.children:
            yield from child.walk()


def read_toc(root: Path = ROOT) -> Entry:
    """Read ``_toc.yml``: the root page, and below it the chapters of all parts."""
    toc = yaml.safe_load((root / "_toc.yml").read_text("utf8"))
    parts = toc.get("parts", [{"chapters": toc.get("chapters", [])}])
    entries = [entry for part in parts for entry in part_entries(part)]
    return Entry(toc["root"], children=tuple(entries))


def part_entries(part: dict) -> list[Entry]:
    """Return the chapters of one part."""
    numbered = bool(part.get("numbered", part.get("options", {}).get("numbered", False)))
    return [make_entry(item, numbered) for item in part.get("chapters", []) if "file" in item]


def make_entry(item: dict, numbered: bool) -> Entry:
    """Turn an item of ``_toc.yml`` and its sections into entries."""
    children = [make_entry(section, numbered) for section in item.get("sections", [])]
    return Entry(strip_suffix(item["file"]), numbered, tuple(children))


def strip_suffix(path: str) -> str:
    """Return the docname of a path."""
    suffix = Path(path).suffix
    return path.removesuffix(suffix) if suffix in SUFFIXES else path


def source_of(docname: str, root: Path = ROOT) -> Path | None:
    """Return the file that a page is written in; for a notebook, its ``.py``."""
    candidates = (root / f"{docname}{suffix}" for suffix in SUFFIXES)
    return next((path for path in candidates if path.is_file()), None)


def notebook_sources(root: Path = ROOT) -> list[Path]:
    """Return every notebook source below ``notebooks/``, in the order of the book, then by name."""
    order = {entry.docname: i for i, entry in enumerate(read_toc(root).walk())}
    paths = sorted((root / "notebooks").rglob("*.py"))
    return sorted(paths, key=lambda path: (order.get(docname_of(path, root), len(order)), path))


def docname_of(source: Path, root: Path = ROOT) -> str:
    """Return the docname of a source file: its path from the root, without suffix."""
    return source.relative_to(root).with_suffix("").as_posix()

"""The table of chapters in README and on the landing page, made from ``notebooks/chapters.yml``.

For each notebook, ``chapters.yml`` has an entry ``docname: {summary, live_seconds,
colab_minutes}``; title and order come from the notebooks and ``_toc.yml``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import project
import yaml
from index import Index
from project import ROOT
from toc import docname_of, notebook_sources, read_toc

START, END = "<!-- chapters:start -->", "<!-- chapters:end -->"
LOCAL_BADGE = "/book/assets/open-in-colab.svg"  # the site loads nothing from another host
REQUIRED = {"summary": str, "live_seconds": int, "colab_minutes": int}


class ChapterError(ValueError):
    """``chapters.yml`` or a page that shows it is wrong."""


@dataclass(frozen=True)
class Chapter:
    """A notebook as the tables show it."""

    docname: str
    title: str
    summary: str
    live_seconds: int
    colab_minutes: int


def read_chapters(index: Index, root: Path = ROOT) -> list[Chapter]:
    """Read ``notebooks/chapters.yml``: every notebook has one entry, and every entry a notebook."""
    entries = yaml.safe_load((root / "notebooks/chapters.yml").read_text("utf8")) or {}
    docnames = [docname_of(source, root) for source in notebook_sources(root)]
    for problem, names in (
        ("has no entry for", set(docnames) - set(entries)),
        ("names the unknown notebook", set(entries) - set(docnames)),
    ):
        if names:
            raise ChapterError(f"notebooks/chapters.yml {problem} {', '.join(sorted(names))}")
    return [make_chapter(name, entries[name], index) for name in docnames]


def make_chapter(docname: str, entry: dict, index: Index) -> Chapter:
    """Check one entry and make a chapter of it."""
    wrong = set(entry) ^ set(REQUIRED)
    wrong |= {key for key, kind in REQUIRED.items() if not isinstance(entry.get(key), kind)}
    if wrong:
        raise ChapterError(
            f"notebooks/chapters.yml, {docname}: {', '.join(sorted(wrong))} missing, unknown "
            f"or of the wrong type; an entry has summary (text), live_seconds and colab_minutes"
        )
    if docname not in index.pages:
        raise ChapterError(f"{docname} is not in _toc.yml")
    return Chapter(docname, index.pages[docname].title, **entry)


def readme_row(chapter: Chapter, root: Path) -> list[str]:
    """Return the cells of a row in README."""
    title = f"[{chapter.title}]({project.page_url(chapter.docname, root)})"
    return [title, *shared_cells(chapter, project.COLAB_BADGE, root)]


def landing_row(chapter: Chapter, root: Path) -> list[str]:
    """Return the cells of a row on the landing page."""
    return [f"{{doc}}`/{chapter.docname}`", *shared_cells(chapter, LOCAL_BADGE, root)]


def shared_cells(chapter: Chapter, picture: str, root: Path) -> list[str]:
    """Return what both tables show after the title."""
    badge = f"[![Open in Colab]({picture})]({project.colab_url(chapter.docname, root)})"
    live, colab = f"{chapter.live_seconds} s", f"{chapter.colab_minutes} min"
    return [chapter.summary, live, colab, badge]


Row = Callable[[Chapter, Path], list[str]]


def make_table(chapters: list[Chapter], row: Row, root: Path = ROOT) -> str:
    """Return a Markdown table with one row per chapter."""
    head = ["Chapter", "What you do", "Here, one core", "Colab GPU, estimated", ""]
    rows = [head, ["---"] * len(head), *(row(chapter, root) for chapter in chapters)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in rows)


def tables(chapters: list[Chapter], root: Path = ROOT) -> dict[Path, str]:
    """Return the pages that show the chapters, each with its table."""
    landing = root / f"{read_toc(root).docname}.md"
    return {
        root / "README.md": make_table(chapters, readme_row, root),
        landing: make_table(chapters, landing_row, root),
    }


def with_table(text: str, table: str, name: str) -> str:
    """Return a page's text with the table between the markers."""
    if text.count(START) != 1 or text.count(END) != 1 or text.index(START) > text.index(END):
        raise ChapterError(f"{name} needs one line {START} and below it one line {END}")
    before, after = text.split(START)[0], text.split(END)[1]
    return f"{before}{START}\n{table}\n{END}{after}"

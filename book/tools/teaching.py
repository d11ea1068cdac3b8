"""The parts of ``book/teaching.md`` that follow from the chapters.

    python book/tools/teaching.py          write them
    python book/tools/teaching.py check    fail if they are out of step

Learning goals are what each chapter promises under "After this you can", points are those of its
exercises, times those of ``notebooks/chapters.yml``, and the entry to cite is ``CITATION.cff``.
What to know beforehand stands in ``book/teaching.yml``: by chapter, chapters and topics of the
self-test on the page.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import nbformat
import yaml
from chapters import Chapter, read_chapters
from execute import write_atomically
from house_rules import exercises
from index import BookError, build_index, read_notebook
from nbgrader_cells import POINTS
from project import ROOT
from toc import source_of

PAGE, DATA = "book/teaching.md", "book/teaching.yml"
OPENING = "After this you can"
QUESTION = re.compile(r"^\*\*([A-Z])\. ", re.MULTILINE)


@dataclass(frozen=True)
class Needs:
    """What a reader should have read and should know before a chapter."""

    chapters: tuple[str, ...]
    topics: str


# --- Read from the chapters -----------------------------------------------------------------


def goals(notebook: nbformat.NotebookNode) -> list[str]:
    r"""Return what a chapter promises, goal by goal.

    >>> text = f"# Title\n\n{OPENING}\n\n- add;\n- say\n  why.\n\nMore."
    >>> goals(nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text)]))
    ['add', 'say why']
    """
    _, opening, rest = notebook.cells[0].source.partition(f"\n{OPENING}\n")
    if not opening:
        raise BookError(f"the first cell has no line {OPENING!r}")
    listed = re.match(r"\s*((?:- .*\n?(?:  .*\n?)*)+)", rest)
    items = re.split(r"^- ", listed[1], flags=re.MULTILINE)[1:] if listed else []
    return [" ".join(item.split()).rstrip(";.") for item in items]


def points(notebook: nbformat.NotebookNode) -> int:
    """Return what all exercises of a chapter are worth."""
    return sum(POINTS[item["title"].partition(":")[0]] for item in exercises(notebook))


def read_needs(root: Path = ROOT) -> dict[str, Needs]:
    """Read what each chapter asks for, by its page name."""
    data = yaml.safe_load((root / DATA).read_text("utf8"))
    return {
        f"notebooks/{name}": Needs(
            tuple(f"notebooks/{before}" for before in entry["after"]), "".join(entry["topics"])
        )
        for name, entry in data.items()
    }


# --- The blocks of the page -----------------------------------------------------------------


def needs_table(chapters: list[Chapter], root: Path = ROOT) -> str:
    """Return the table of what to know before each chapter."""
    needs = read_needs(root)
    rows = ["| chapter | after | topics of the self-test |", "|---|---|---|"]
    for chapter in chapters:
        need = needs[chapter.docname]
        before = ", ".join(map(page_link, need.chapters)) or "nothing"
        rows.append(f"| {page_link(chapter.docname)} | {before} | {', '.join(need.topics)} |")
    return "\n".join(rows)


def goals_list(chapters: list[Chapter], root: Path = ROOT) -> str:
    """Return the goals of all chapters."""
    blocks = []
    for chapter in chapters:
        found = goals(read_notebook(source_of(chapter.docname, root)))
        items = "\n".join(f"- {goal}" for goal in found)
        blocks.append(f"{page_link(chapter.docname)}. The student can\n\n{items}")
    return "\n\n".join(blocks)


def work_table(chapters: list[Chapter], root: Path = ROOT) -> str:
    """Return exercises, points and times by chapter."""
    rows = [
        "| chapter | exercises | points | a run here | a run on Colab |",
        "|---|---|---|---|---|",
    ]
    for chapter in chapters:
        notebook = read_notebook(source_of(chapter.docname, root))
        cells = (
            *(page_link(chapter.docname), len(exercises(notebook)), points(notebook)),
            *(f"{chapter.live_seconds} s", f"{chapter.colab_minutes} min"),
        )
        rows.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(rows)


def citation(_: list[Chapter], root: Path = ROOT) -> str:
    """Return the BibTeX entry of ``CITATION.cff``."""
    facts = yaml.safe_load((root / "CITATION.cff").read_text("utf8"))
    fields = {
        "author": " and ".join(f"{{{author['name']}}}" for author in facts["authors"]),
        "title": f"{{{facts['title']}}}",
        "year": str(facts["date-released"])[:4],
        "version": facts["version"],
        "url": facts["url"],
    }
    lines = [f"  {name:<7} = {{{value}}}," for name, value in fields.items()]
    return "\n".join(["```bibtex", "@software{unrolled,", *lines, "}", "```"])


def page_link(docname: str) -> str:
    """Return a link to a page that shows its title."""
    return f"{{doc}}`/{docname}`"


BLOCKS: dict[str, Callable[[list[Chapter], Path], str]] = {
    "needs": needs_table,
    "goals": goals_list,
    "work": work_table,
    "citation": citation,
}


# --- The page -------------------------------------------------------------------------------


def wanted_page(root: Path = ROOT) -> str:
    """Return the page as it should be."""
    chapters = read_chapters(build_index(root), root)
    check_needs({chapter.docname for chapter in chapters}, root)
    text = (root / PAGE).read_text("utf8")
    for name, block in BLOCKS.items():
        text = with_block(text, name, block(chapters, root))
    return text


def check_needs(docnames: set[str], root: Path = ROOT) -> None:
    """Raise unless every chapter has an entry, and every entry names what there is."""
    needs = read_needs(root)
    named = {before for need in needs.values() for before in need.chapters}
    topics = set(QUESTION.findall((root / PAGE).read_text("utf8")))
    asked = set("".join(need.topics for need in needs.values()))
    for problem, names in (
        ("has no entry for", docnames - set(needs)),
        ("names the unknown chapter", (set(needs) | named) - docnames),
        ("names a topic that the self-test lacks:", asked - topics),
        ("asks nobody for the topic", topics - asked),
    ):
        if names:
            raise BookError(f"{DATA} {problem} {', '.join(sorted(names))}")


def with_block(text: str, name: str, block: str) -> str:
    """Return a page with new text between the two marks of a name."""
    start, end = f"<!-- {name}:start -->", f"<!-- {name}:end -->"
    if text.count(start) != 1 or text.count(end) != 1 or text.index(start) > text.index(end):
        raise BookError(f"{PAGE} needs one line {start} and below it one line {end}")
    before, after = text.split(start)[0], text.split(end)[1]
    return f"{before}{start}\n{block}\n{end}{after}"


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Write or check the page and return the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments not in ([], ["check"]):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        text = wanted_page(root)
    except BookError as error:
        print(error, file=sys.stderr)
        return 1
    if (root / PAGE).read_text("utf8") == text:
        return 0
    if arguments == ["check"]:
        print(f"{PAGE} is out of step: run `python book/tools/teaching.py`", file=sys.stderr)
        return 1
    write_atomically(root / PAGE, text)
    print(f"wrote {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Makes the editions for a course: one source, three editions.

    python book/tools/editions.py student       stubs, checkers; no solutions
    python book/tools/editions.py instructor    open solutions, outputs, hints on usual mistakes

The book itself is the third: its solutions are folded. Each edition is a folder of notebooks
``_build/<edition>/<part>/<name>.ipynb`` and a zip of it. ``--nbgrader`` adds the metadata by which
nbgrader grades: the instructor's folder is then its ``source``, the student's its ``release``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import jupytext
import nbformat
import project
from answers import hints, marked_lines, stub_of, wanted, with_marks
from board import summary
from bundle import zip_bytes
from colab_copy import (
    add_badges,
    badges,
    convert_cell,
    notebook_metadata,
    with_ids,
    write_text,
)
from execute import write_atomically
from house_rules import SOLUTION_CODE, exercises
from index import BookError, Index, build_index, read_notebook, tags_of
from jobs import make_jobs
from myst import blocks
from nbgrader_cells import check_metadata, solution_metadata, with_metadata
from parameters import NotebookError
from plain_inline import Context
from project import ROOT
from toc import docname_of

from notebooks import PRESETS, quote, select

EDITIONS = ("student", "instructor")
ABOUT = {
    "student": "Student edition: the solutions are left out, the checkers are at work.",
    "instructor": "Instructor edition: open solutions, their outputs, and usual mistakes.",
}


@dataclass(frozen=True)
class Options:
    """Which edition is made, and for whom."""

    edition: str
    nbgrader: bool = False


@dataclass(frozen=True)
class Exercise:
    """An exercise with all that an edition shows of it."""

    label: str
    title: str
    stub: str
    check: str
    solution: str

    @property
    def checker(self) -> str:
        """The name of the checker."""
        return self.check.removeprefix("checks.").partition("(")[0]

    def answer(self, edition: str) -> str:
        """Return the cell with the answer, or with what is to do."""
        names = wanted(self.stub)
        lines = marked_lines(self.solution, names)
        return stub_of(lines, names) if edition == "student" else with_marks(lines)

    def test(self, nbgrader: bool) -> str:
        """Return the cell that checks; nbgrader gives the points unless it raises."""
        return f"result = {self.check}\nassert result, result\nresult" if nbgrader else self.check


def read_exercises(notebook: nbformat.NotebookNode) -> dict[int, Exercise]:
    """Return the exercises of a notebook by the position of their stub."""
    found = {}
    for item in exercises(notebook):
        stub, _, check = notebook.cells[item["stub"]].source.strip().rpartition("\n")
        found[item["stub"]] = Exercise(
            item["label"], item["title"], stub.strip(), check, item["solution"]
        )
    return found


# --- The cells of an edition ----------------------------------------------------------------


def edition_of(notebook: nbformat.NotebookNode, options: Options) -> nbformat.NotebookNode:
    """Return a chapter, still in MyST, as an edition shows it."""
    found = read_exercises(notebook)
    cells = []
    for position, cell in enumerate(notebook.cells):
        if position in found:
            cells += exercise_cells(found[position], options)
        elif directive := solution_of(cell):
            if options.edition == "instructor":
                exercise = next(e for e in found.values() if e.label == directive.argument)
                cells.append(nbformat.v4.new_markdown_cell(explained(directive.body, exercise)))
        else:
            cells.append(cell)
    return nbformat.v4.new_notebook(cells=cells, metadata=notebook.metadata)


def exercise_cells(exercise: Exercise, options: Options) -> list[nbformat.NotebookNode]:
    """Return the cell for the answer and the cell that checks it."""
    texts = {
        "answer": exercise.answer(options.edition),
        "check": exercise.test(options.nbgrader),
    }
    cells = []
    for role, text in texts.items():
        metadata = {"tags": ["exercise"], "exercise": exercise.label, "role": role}
        cells.append(nbformat.v4.new_code_cell(text, metadata=metadata))
    if options.nbgrader:
        with_metadata(cells[0], solution_metadata(exercise.label))
        with_metadata(cells[1], check_metadata(exercise.label, exercise.title))
    return cells


def solution_of(cell: nbformat.NotebookNode):
    """Return the directive of a cell that holds a solution; it must hold nothing else."""
    if cell.cell_type != "markdown" or "{solution}" not in cell.source:
        return None
    found = blocks(cell.source)
    directives = [block.directive for block in found if block.directive]
    if len(found) != 1 or directives[0].name != "solution":
        raise BookError("a solution needs a cell of its own")
    return directives[0]


def explained(body: str, exercise: Exercise) -> str:
    """Return the words of a solution, and what its checker says to usual mistakes."""
    from unrolled import checks  # late: the student edition needs no torch

    words = SOLUTION_CODE.sub("", body, count=1).strip()
    parts = [f"**Solution.** {words}".strip()]
    if found := hints(getattr(checks, exercise.checker)):
        listed = "\n".join(f"- {plain(hint)}" for hint in found)
        parts.append(f"**Usual mistakes**, as the checker names them:\n\n{listed}")
    return "\n\n".join(parts)


def plain(sentence: str) -> str:
    """Return a sentence in which Markdown finds nothing to set."""
    for mark in r"\`*_$<[|":
        sentence = sentence.replace(mark, f"\\{mark}")
    return sentence


# --- The notebook of an edition -------------------------------------------------------------


def finished(notebook: nbformat.NotebookNode, context: Context, options: Options):
    """Return an edition's notebook in plain Markdown, outputs kept, ready to be written."""
    cells = [new for cell in notebook.cells for new in finished_cell(cell, context)]
    add_badges(cells, context)
    badge = badges(context.docname, context.root)
    page = f"[Read this chapter online]({project.page_url(context.docname, context.root)})"
    cells[0].source = cells[0].source.replace(badge, f"*{ABOUT[options.edition]}* {page}.")
    return nbformat.v4.new_notebook(cells=with_ids(cells), metadata=notebook_metadata())


def finished_cell(cell: nbformat.NotebookNode, context: Context) -> list[nbformat.NotebookNode]:
    """Convert one cell; a code cell keeps its outputs and its part in the exercise."""
    cells = convert_cell(cell, context)
    for new in cells:
        if new.cell_type == cell.cell_type == "code" and new.source == cell.source:
            new.outputs, new.execution_count = cell.outputs, cell.execution_count
            kept = {key: cell.metadata[key] for key in ("nbgrader",) if key in cell.metadata}
            new.metadata.update(kept)
    return cells


def context_of(source: Path, index: Index, root: Path) -> Context:
    """Return where the text of a chapter stands."""
    docname = docname_of(source, root)
    if docname not in index.pages:
        raise BookError(f"{docname} is not in _toc.yml")
    return Context(index, docname, quote, root)


def student_text(source: Path, index: Index, options: Options, root: Path = ROOT) -> str:
    """Return the file of a chapter in the student edition."""
    notebook = edition_of(read_notebook(source), options)
    return write_text(finished(notebook, context_of(source, index, root), options))


def file_name(source: Path, root: Path) -> str:
    """Return a chapter's name in an edition: ``<part>/<name>.ipynb``."""
    return f"{docname_of(source, root).removeprefix('notebooks/')}.ipynb"


# --- The instructor edition is run ----------------------------------------------------------


def executed(
    sources: list[Path], options: Options, preset: str, workers: int, root: Path
) -> Iterator[nbformat.NotebookNode]:
    """Run the chapters with their solutions and yield them; what has not changed is kept."""
    import batch  # late: the student edition runs nothing

    folder = root / "_build/editions/sources"
    written = [write_source(source, options, folder, root) for source in sources]
    jobs = make_jobs(written, {"PRESET": preset}, root / batch.RUNS / f"instructor-{preset}", root)
    states = batch.Batch(jobs, workers).run()
    print(summary(states))
    if failed := [state.job.docname for state in states if state.status not in ("done", "fresh")]:
        raise NotebookError(f"these notebooks failed: {', '.join(failed)}")
    for state in states:
        yield nbformat.read(state.job.output, 4)


def write_source(source: Path, options: Options, folder: Path, root: Path) -> Path:
    """Write a chapter with open solutions, as a source that the tools can run."""
    notebook = edition_of(read_notebook(source), options)
    path = folder / f"{docname_of(source, root)}.py"
    text = jupytext.writes(notebook, fmt="py:percent")
    if not path.is_file() or path.read_text("utf8") != text:
        write_atomically(path, text)
    return path


def without_run_marks(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Drop the cell that told a run its preset."""
    notebook.cells = [c for c in notebook.cells if "injected-parameters" not in tags_of(c)]
    return notebook


# --- Writing --------------------------------------------------------------------------------


def readme(options: Options, root: Path = ROOT) -> str:
    """Return the text beside the notebooks."""
    urls = project.project_urls(root)
    return README.format(about=ABOUT[options.edition], **urls)


README = """\
# Unrolled: Transformers as Optimization

{about}

- Colab: *File*, *Upload notebook*, and run the cells from the top. The first one installs the
  package.
- Your own machine: `pip install "unrolled @ git+{repository}"`, then open the notebooks in
  Jupyter.

Below each exercise is a cell for the answer, and below that a call of its checker, which says
"Correct." or "Not yet:" and which mistake is likely. A checker needs no network.

The book: {book}/
How to teach with it: {book}/book/teaching.html
How to cite it: CITATION.cff, beside this file.
"""


def files_of(
    texts: Iterable[tuple[str, str]], options: Options, root: Path = ROOT
) -> dict[str, str]:
    """Return all files of an edition by name."""
    beside = {name: (root / name).read_text("utf8") for name in ("CITATION.cff", "LICENSE")}
    return {"README.md": readme(options, root), **beside, **dict(texts)}


def write_edition(files: dict[str, str], folder: Path) -> Path:
    """Write an edition's folder anew and its zip beside it; return the zip."""
    for path in folder.rglob("*.ipynb") if folder.is_dir() else ():
        if path.relative_to(folder).as_posix() not in files:
            path.unlink()
    for name, text in files.items():
        write_atomically(folder / name, text)
    archive = folder.with_name(f"unrolled-{folder.name}.zip")
    archive.write_bytes(zip_bytes({f"{folder.name}/{name}": text for name, text in files.items()}))
    return archive


def make_texts(
    sources: list[Path], options: Options, preset: str, workers: int, root: Path
) -> Iterator[tuple[str, str]]:
    """Yield the notebooks of an edition, by file name."""
    index = build_index(root)
    if options.edition == "student":
        for source in sources:
            yield file_name(source, root), student_text(source, index, options, root)
        return
    runs = executed(sources, options, preset, workers, root)
    for source, notebook in zip(sources, runs, strict=True):
        context = context_of(source, index, root)
        done = finished(without_run_marks(notebook), context, options)
        yield file_name(source, root), write_text(done)


def make_parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    parser = argparse.ArgumentParser(
        prog="editions.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("edition", choices=EDITIONS)
    parser.add_argument("names", nargs="*", metavar="NAME", help="looped/equations; default: all")
    parser.add_argument("--nbgrader", action="store_true", help="add nbgrader's cell metadata")
    parser.add_argument("--preset", choices=PRESETS, default="live", help="of the instructor's run")
    parser.add_argument("--jobs", type=int, default=2, help="notebooks at a time (default: 2)")
    return parser


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Make an edition and return the exit status."""
    given = make_parser().parse_args(arguments)
    options = Options(given.edition, given.nbgrader)
    try:
        sources = select(given.names, root)
        texts = make_texts(sources, options, given.preset, max(1, given.jobs), root)
        archive = write_edition(files_of(texts, options, root), root / "_build" / given.edition)
    except (BookError, NotebookError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{len(sources)} notebooks: {archive.relative_to(root)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

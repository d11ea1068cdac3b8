"""The Colab copy of a notebook: the same code, with MyST turned into plain Markdown.

Numbers are those of the online page; what cannot be shown in place becomes a link to it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import nbformat
import project
from index import BookError, Index, figure_of, read_notebook, tags_of
from plain_blocks import anchor, assert_plain, caption, convert_text
from plain_inline import Context
from project import ROOT
from toc import docname_of


def colab_copy(source: Path, index: Index, quote: Callable[[str], str], root: Path = ROOT):
    """Make the plain notebook of a source file."""
    context = Context(index, docname_of(source, root), quote, root)
    cells = []
    for number, cell in enumerate(read_notebook(source).cells):
        try:
            cells += convert_cell(cell, context)
        except BookError as error:
            raise BookError(f"{source.relative_to(root)}, cell {number + 1}: {error}") from error
    add_badges(cells, context)
    notebook = nbformat.v4.new_notebook(cells=with_ids(cells), metadata=notebook_metadata())
    nbformat.validate(notebook)
    return notebook


def convert_cell(cell: nbformat.NotebookNode, context: Context) -> list[nbformat.NotebookNode]:
    """Return the cells that stand for one cell of the source."""
    if cell.cell_type == "markdown":
        return [] if "remove-cell" in tags_of(cell) else [markdown(convert(cell.source, context))]
    cells = [code_cell(cell.source, tags_of(cell))]
    if "setup" in tags_of(cell):
        cells.insert(0, code_cell(setup_of(cell, context.root), ["colab-setup"]))
    if options := figure_of(cell):
        label = str(options.get("name", ""))
        text = caption("figure", label, str(options.get("caption", "")), context)
        below = "\n\n".join(filter(None, [anchor(label) if label else "", text]))
        cells += [markdown(below)] if below else []
    return cells


def convert(text: str, context: Context) -> str:
    """Convert a cell's text and make sure that nothing is left over."""
    plain = convert_text(text, context)
    assert_plain(plain)
    return plain


def markdown(text: str) -> nbformat.NotebookNode:
    """Return a Markdown cell."""
    return nbformat.v4.new_markdown_cell(text)


def code_cell(text: str, tags: list[str]) -> nbformat.NotebookNode:
    """Return a code cell; what the page folds, JupyterLab folds too."""
    metadata: dict = {"tags": tags} if tags else {}
    if {"hide-input", "hide-cell"} & set(tags):
        metadata["jupyter"] = {"source_hidden": True}
    return nbformat.v4.new_code_cell(text, metadata=metadata)


def add_badges(cells: list[nbformat.NotebookNode], context: Context) -> None:
    """Put the ways to Colab and to the online page below the title."""
    first = cells[0].source.split("\n") if cells else []
    title = next((i for i, line in enumerate(first) if line.startswith("# ")), None)
    if title is None:
        raise BookError(f"{context.docname}: the first cell has no title (# ...)")
    first[title + 1 : title + 1] = ["", badges(context.docname, context.root)]
    cells[0].source = "\n".join(first)


def badges(docname: str, root: Path = ROOT) -> str:
    """Return the line with the Colab badge and the link to the online page."""
    colab = f"[![Open in Colab]({project.COLAB_BADGE})]({project.colab_url(docname, root)})"
    return f"{colab} · [Read this page online]({project.page_url(docname, root)})"


def setup_of(cell: nbformat.NotebookNode, root: Path) -> str:
    """Return the Colab set-up of a chapter, with the packages that its own set-up cell names."""
    try:
        return setup_source(root, cell.metadata.get("packages", ()))
    except ValueError as error:
        raise BookError(str(error)) from error


def setup_source(root: Path = ROOT, packages: Iterable[str] = ()) -> str:
    """Return the cell that installs the package on Colab and tells what it runs on.

    ``packages`` are optional ones that a chapter needs. Its set-up cell names them:
    ``# %% tags=["setup"] packages=["transformers"]``.
    """
    repository = project.project_urls(root)["repository"]
    pinned = " ".join(f"\"{name}=={{version('{name}')}}\"" for name in project.KEPT_ON_COLAB)
    extra = [f'"{line}"' for line in project.extra_requirements(packages, root)]
    light = " ".join([*project.light_requirements(root), *extra])
    return SETUP.format(repository=repository, pinned=pinned, light=light)


SETUP = """\
# On Colab this installs the package, keeps Colab's own torch and numpy, and names the preset that
# suits the hardware; elsewhere it only prints the versions.
import sys
from importlib.metadata import version

if "google.colab" in sys.modules:
    %pip install --quiet --no-deps "unrolled @ git+{repository}"
    %pip install --quiet {pinned} {light}

from unrolled.hardware import found, recommended

versions = ", ".join(f"{{name}} {{version(name)}}" for name in ("unrolled", "torch", "numpy"))
print(f"{{versions}}; running on {{found()}}")
if "google.colab" in sys.modules:
    print(f"{{recommended()}}. The cell of parameters below has the last word.")"""


def notebook_metadata() -> dict:
    """Return the metadata every copy has."""
    return {
        "colab": {"provenance": [], "toc_visible": True},
        "kernelspec": {
            "display_name": "Python 3 (ipykernel)",
            "language": "python",
            "name": "python3",
        },
        "language_info": {"name": "python"},
    }


def with_ids(cells: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Give every cell an id that follows from its content."""
    seen: Counter[str] = Counter()
    for cell in cells:
        digest = hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:8]
        seen[digest] += 1
        cell["id"] = digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"
    return cells


def write_text(notebook: nbformat.NotebookNode) -> str:
    """Return the notebook's file."""
    return nbformat.writes(notebook).rstrip("\n") + "\n"

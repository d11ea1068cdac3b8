"""What the pages of the book define: titles, labels, and the numbers that Sphinx will give them.

The numbers follow Sphinx' own rule. Pages of a numbered part are counted through all parts; an
equation, figure, exercise or theorem is numbered ``chapter.n`` where *n* counts its kind from the
start of the chapter. A test compares the result with the built pages.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import jupytext
import nbformat
import yaml
from docutils.nodes import fully_normalize_name, make_id
from myst import Block, Directive, blocks, parser
from project import ROOT
from sphinx.util.nodes import _make_id
from toc import Entry, read_toc, source_of

# Directives whose body is no Markdown.
VERBATIM = {
    *("code", "code-block", "code-cell", "sourcecode", "literalinclude", "math", "raw"),
    *("eval-rst", "bibliography", "glossary", "toctree", "tableofcontents", "contents"),
    *("automodule", "autoclass", "autofunction", "list-table", "csv-table", "only"),
}
THEOREMS = (
    *("axiom", "theorem", "lemma", "algorithm", "definition", "remark", "conjecture"),
    *("corollary", "criterion", "example", "property", "observation", "proposition"),
    *("assumption", "notation"),
)
API = re.compile(r"auto(?:module|class|function|data|exception)(?:::|\})[ \t]+([\w.]+)")
Number = tuple[int, ...]


class BookError(ValueError):
    """The text says something that the book cannot resolve."""


@dataclass(frozen=True)
class Target:
    """Something that a label names: where it is, what it is, and its number."""

    label: str
    docname: str
    kind: str
    anchor: str
    number: Number = ()
    title: str = ""

    @property
    def number_text(self) -> str:
        """The number as printed, such as ``1.3``."""
        return ".".join(map(str, self.number))


@dataclass
class Index:
    """All that the pages define."""

    targets: dict[str, Target] = field(default_factory=dict)
    unlabelled: dict[tuple[str, str, int], Target] = field(default_factory=dict)
    pages: dict[str, Target] = field(default_factory=dict)
    terms: dict[str, Target] = field(default_factory=dict)
    objects: dict[str, str] = field(default_factory=dict)
    bibliography: str = ""
    config: dict = field(default_factory=dict)

    def add(self, target: Target) -> None:
        """Note a target; a label may be used once."""
        known = self.targets.setdefault(target.label, target)
        if known != target:
            raise BookError(f"label {target.label!r} in {target.docname} and {known.docname}")

    def target(self, label: str, *kinds: str) -> Target:
        """Return what a label names."""
        found = self.targets.get(label) or self.targets.get(fully_normalize_name(label))
        if found is None:
            raise BookError(f"nothing is labelled {label!r}")
        if kinds and found.kind not in kinds:
            raise BookError(f"{label!r} is the label of {found.kind} {found.number_text}".strip())
        return found


# --- Reading pages --------------------------------------------------------------------------


@dataclass(frozen=True)
class Piece:
    """A stretch of a page: Markdown, or the figure that a code cell draws."""

    text: str = ""
    figure: dict | None = None


def read_notebook(source: Path) -> nbformat.NotebookNode:
    """Read a notebook's source in the percent format."""
    return jupytext.read(source, fmt="py:percent")


def tags_of(cell: nbformat.NotebookNode) -> list[str]:
    """Return the tags of a cell."""
    return list(cell.metadata.get("tags", []))


def figure_of(cell: nbformat.NotebookNode) -> dict | None:
    """Return the figure options of a code cell whose picture the page shows."""
    hidden = {"remove-cell", "remove-output"} & set(tags_of(cell))
    figure = cell.metadata.get("mystnb", {}).get("figure")
    return None if hidden or not figure else dict(figure)


def read_pieces(source: Path) -> list[Piece]:
    """Return what the page shows, cell by cell for a notebook."""
    if source.suffix != ".py":
        return [Piece(source.read_text("utf8"))]
    pieces = []
    for cell in read_notebook(source).cells:
        if cell.cell_type == "markdown" and "remove-cell" not in tags_of(cell):
            pieces.append(Piece(cell.source))
        elif cell.cell_type == "code" and figure_of(cell):
            pieces.append(Piece(figure=figure_of(cell)))
    return pieces


def walk_blocks(text: str) -> Iterator[Block]:
    """Yield the blocks of a text, and after a directive those of its body."""
    for block in blocks(text):
        yield block
        if block.directive and block.directive.name not in VERBATIM:
            yield from walk_blocks(block.directive.body)


# --- Numbering ------------------------------------------------------------------------------


class Numbering:
    """Walks the pages in the order of the book and fills an index."""

    def __init__(self, root: Path = ROOT):
        self.root = root
        self.index = Index(config=yaml.safe_load((root / "_config.yml").read_text("utf8")))
        self.counts: Counter[tuple[str, Number]] = Counter()
        self.chapters = 0

    def run(self) -> Index:
        """Visit every page of ``_toc.yml``."""
        toc = read_toc(self.root)
        self.visit_page(toc.docname, ())
        for entry in toc.children:
            self.visit(entry, self.next_chapter() if entry.numbered else ())
        return self.index

    def next_chapter(self) -> Number:
        """Return the number of the next page at the top level of a numbered part."""
        self.chapters += 1
        return (self.chapters,)

    def visit(self, entry: Entry, number: Number) -> None:
        """Visit a page and those below it, whose numbers go on after its own sections."""
        sections = self.visit_page(entry.docname, number)
        for i, child in enumerate(entry.children, start=sections + 1):
            self.visit(child, (*number, i) if number else ())

    def visit_page(self, docname: str, number: Number) -> int:
        """Index one page and return how many sections it has."""
        source = source_of(docname, self.root)
        if source is None:
            raise BookError(f"_toc.yml names {docname}, but there is no such file")
        page = PageVisit(self, docname, number)
        for piece in read_pieces(source):
            page.visit_piece(piece)
        if source.suffix == ".md":
            self.note_reference_page(docname, source.read_text("utf8"))
        return page.sections

    def note_reference_page(self, docname: str, text: str) -> None:
        """Note the glossary's terms, documented objects and the bibliography on a page."""
        for name in API.findall(text):
            self.index.objects[name] = docname
        for term in glossary_terms(text):
            anchor = _make_id(f"term-{term}")
            self.index.terms[term.lower()] = Target(term, docname, "term", anchor, (), term)
        if "{bibliography}" in text:
            self.index.bibliography = docname

    def count(self, kind: str, page: Number) -> Number:
        """Return the next number of a kind in the chapter of a page."""
        chapter = page[:1]
        self.counts[kind, chapter] += 1
        return (*chapter, self.counts[kind, chapter])


class PageVisit:
    """Indexes the blocks of one page."""

    def __init__(self, numbering: Numbering, docname: str, number: Number):
        self.numbering, self.docname, self.number = numbering, docname, number
        self.pending: list[str] = []
        self.levels: list[int] = []
        self.section = number
        self.titled = False

    @property
    def index(self) -> Index:
        """The index that is being filled."""
        return self.numbering.index

    @property
    def sections(self) -> int:
        """The number of sections right below the page's title."""
        return self.levels[0] if self.levels else 0

    def visit_piece(self, piece: Piece) -> None:
        """Index a piece of the page."""
        if piece.figure is not None:
            self.add_figure(str(piece.figure.get("name", "")), str(piece.figure.get("caption", "")))
        for block in walk_blocks(piece.text):
            self.visit_block(block)

    def visit_block(self, block: Block) -> None:
        """Index a block; labels above it name it."""
        match block.kind:
            case "target":
                self.pending.append(block.label)
                return
            case "comment":
                return
            case "heading":
                self.add_heading(block)
            case "equation" if block.label:
                self.add_equation(block.label)
            case "directive":
                self.add_directive(block.directive)
        for label in self.pending:  # a label above plain text
            self.add(label, "text", make_id(label))
        self.pending = []

    def add(self, label: str, kind: str, anchor: str, number: Number = (), title: str = "") -> None:
        """Note a target on this page."""
        self.index.add(Target(label, self.docname, kind, anchor, number, title))

    def add_heading(self, block: Block) -> None:
        """Count a section; the first heading is the page's title."""
        if not self.titled:
            self.titled = True
            page = Target(self.docname, self.docname, "section", "", self.number, block.content)
            self.index.pages[self.docname] = page
        else:
            self.count_section(block.level)
        for label in self.pending:
            self.add(label, "section", make_id(label), self.section, block.content)
        self.pending = []

    def count_section(self, level: int) -> None:
        """Count a heading below the title."""
        depth = max(level - 2, 0)
        self.levels = (self.levels + [0] * (depth + 1))[: depth + 1]
        self.levels[depth] += 1
        self.section = (*self.number, *self.levels) if self.number else ()

    def add_equation(self, label: str) -> None:
        """Count a labelled equation."""
        number = self.numbering.count("equation", self.number)
        self.add(label, "equation", make_id(f"equation-{label}"), number)

    def add_figure(self, name: str, caption: str, kind: str = "figure") -> None:
        """Count a figure or table that has a caption."""
        number = self.numbering.count(kind, self.number) if caption else ()
        labels = [*self.pending, *([name] if name else [])]
        if not labels and number:
            self.add_unlabelled(kind, number)
        for label in labels:
            self.add(label, kind, make_id(fully_normalize_name(label)), number, caption)
        self.pending = []

    def add_unlabelled(self, kind: str, number: Number, title: str = "") -> None:
        """Note a numbered thing without label by its position among those of its page and kind."""
        known = sum(key[:2] == (self.docname, kind) for key in self.index.unlabelled)
        target = Target("", self.docname, kind, "", number, title)
        self.index.unlabelled[self.docname, kind, known] = target

    def add_directive(self, directive: Directive) -> None:
        """Count what a directive defines."""
        name, options = directive.name, directive.options
        family, _, theorem = name.partition(":")
        match family:
            case "math" if "label" in options:
                self.add_equation(options["label"])
            case "figure" | "image":
                self.add_figure(options.get("name", ""), directive.body.strip())
            case "table" | "list-table":
                self.add_figure(options.get("name", ""), directive.argument, "table")
            case "code-block" if "caption" in options:
                self.add_figure(options.get("name", ""), options["caption"], "code-block")
            case "exercise":
                self.add_counted("exercise", directive)
            case "solution" if "label" in options:
                self.add(options["label"], "solution", options["label"], (), directive.argument)
            case "prf" if theorem in THEOREMS:
                self.add_counted(theorem, directive)

    def add_counted(self, kind: str, directive: Directive) -> None:
        """Count an exercise or a theorem."""
        options, number = directive.options, ()
        if "nonumber" not in options:
            number = self.numbering.count(kind, self.number)
        if label := options.get("label"):
            self.add(label, kind, label, number, directive.argument)
        else:
            self.add_unlabelled(kind, number, directive.argument)


def glossary_terms(text: str) -> list[str]:
    """Return the terms of a ``{glossary}`` directive or of a list marked ``{.glossary}``."""
    terms = []
    for block in blocks(text):
        if block.directive and block.directive.name == "glossary":
            lines = block.directive.body.split("\n")
            heads = [line for line in lines if line.strip() and not line[0].isspace()]
            terms += [line.split(" : ")[0].strip() for line in heads if line[0] != ":"]
    tokens = parser().parse(text) if ".glossary}" in text else []
    for before, token in pairwise(tokens):
        if before.type == "dt_open":
            terms.append(token.content)
    return terms


def build_index(root: Path = ROOT) -> Index:
    """Index the whole book."""
    return Numbering(root).run()

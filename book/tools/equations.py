"""The equation map: for each labelled equation its code, its test and its figure.

Three ends are read, and none is typed twice: the label from the page, the code from docstrings that
refer to the label, the test from its marker ``@pytest.mark.equation("eq-...")``. An equation that
no docstring names is a step of a derivation and has no code of its own.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from index import Index, Piece, build_index, read_pieces, walk_blocks
from project import ROOT
from toc import source_of

LABEL = re.compile(r"\beq-[a-z0-9-]+")
IN_DOCSTRING = re.compile(r":eq:`(eq-[a-z0-9-]+)`")
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class MarkedTest:
    """A test that names an equation."""

    path: str
    name: str
    line: int


@dataclass(frozen=True)
class Row:
    """One equation and what leads to and from it; the figure is the next one of its page."""

    label: str
    docname: str
    number: str
    section: str
    figure: str
    code: tuple[str, ...] = ()
    tests: tuple[MarkedTest, ...] = ()


# --- The code -------------------------------------------------------------------------------


def definitions(node: ast.AST, name: str) -> Iterator[tuple[str, ast.AST]]:
    """Yield a module, and every public class and function in it, with their full names."""
    yield name, node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition) and not child.name.startswith("_"):
            yield from definitions(child, f"{name}.{child.name}")


def code_of_equations(root: Path = ROOT) -> dict[str, list[str]]:
    """Return, by label, the names whose docstrings refer to it; a module only if nothing else."""
    found: dict[str, list[tuple[bool, str]]] = {}
    for path in sorted((root / "src" / "unrolled").rglob("*.py")):
        parts = path.relative_to(root / "src").with_suffix("").parts
        if "checks" in parts:  # checkers belong to exercises
            continue
        module = ".".join(part for part in parts if part != "__init__")
        for name, node in definitions(ast.parse(path.read_text("utf8")), module):
            for label in dict.fromkeys(IN_DOCSTRING.findall(ast.get_docstring(node) or "")):
                found.setdefault(label, []).append((name == module, name))
    return {label: preferred(names) for label, names in found.items()}


def preferred(names: list[tuple[bool, str]]) -> list[str]:
    """Return the classes and functions among (is a module, name), or the modules."""
    objects = [name for is_module, name in names if not is_module]
    return objects or [name for _, name in names]


# --- The tests ------------------------------------------------------------------------------


def marks_of_equations(root: Path = ROOT) -> dict[str, list[MarkedTest]]:
    """Return, by label, the tests that are marked with it."""
    found: dict[str, list[MarkedTest]] = {}
    for path in sorted((root / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf8"))):
            if isinstance(node, ast.FunctionDef):
                test = MarkedTest(path.relative_to(root).as_posix(), node.name, node.lineno)
                for label in marked(node):
                    found.setdefault(label, []).append(test)
    return found


def marked(node: ast.FunctionDef) -> list[str]:
    """Return the labels in the decorators ``@pytest.mark.equation(...)`` of a test."""
    return [
        argument.value
        for call in node.decorator_list
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.equation"
        for argument in call.args
        if isinstance(argument, ast.Constant)
    ]


# --- The pages ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """A section of a page: its title, the equations it defines, the figures it draws."""

    title: str
    labels: tuple[str, ...] = ()
    figures: tuple[tuple[str, str], ...] = ()  # (name, caption)


def places(pieces: list[Piece]) -> list[Place]:
    """Cut a page into its sections."""
    found = [Place("")]
    for piece in pieces:
        if piece.figure and piece.figure.get("name"):
            figure = (str(piece.figure["name"]), str(piece.figure.get("caption", "")))
            found[-1] = replace(found[-1], figures=(*found[-1].figures, figure))
        for block in walk_blocks(piece.text):
            if block.kind == "heading":
                found.append(Place(block.content))
            elif block.kind == "equation" and block.label:
                found[-1] = replace(found[-1], labels=(*found[-1].labels, block.label))
    return found


def rows_of_page(docname: str, index: Index, root: Path = ROOT) -> list[Row]:
    """Return a row for each labelled equation of a page, in its order."""
    found = places(read_pieces(source_of(docname, root)))
    return [
        Row(label, docname, index.targets[label].number_text, place.title, figure_of(label, rest))
        for rest in (found[start:] for start in range(len(found)))
        for place in rest[:1]
        for label in place.labels
    ]


def figure_of(label: str, rest: list[Place]) -> str:
    """Return the first figure from a section on whose caption names the label, or the first."""
    figures = [figure for place in rest for figure in place.figures]
    named = [name for name, caption in figures if label in LABEL.findall(caption)]
    return next(iter([*named, *(name for name, _ in figures)]), "")


# --- The map --------------------------------------------------------------------------------


def equation_map(root: Path = ROOT) -> list[Row]:
    """Return every labelled equation of the book, in its order."""
    index = build_index(root)
    code, tests = code_of_equations(root), marks_of_equations(root)
    rows = [row for docname in index.pages for row in rows_of_page(docname, index, root)]
    return [
        replace(row, code=tuple(code.get(row.label, ())), tests=tuple(tests.get(row.label, ())))
        for row in rows
    ]


def problems(root: Path = ROOT) -> list[str]:
    """Return every end that is missing."""
    rows = {row.label: row for row in equation_map(root)}
    found = [
        f"{row.docname}: {label} has code ({', '.join(row.code)}) and no test; mark one with "
        f'@pytest.mark.equation("{label}")'
        for label, row in rows.items()
        if row.code and not row.tests
    ]
    for label, names in code_of_equations(root).items():
        if label not in rows:
            found.append(f"{names[0]}: no page has the equation {label}")
    for label, tests in marks_of_equations(root).items():
        if label not in rows:
            found.append(f"{tests[0].path}: {tests[0].name}: no page has the equation {label}")
    return found

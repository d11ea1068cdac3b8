"""The parameters of a notebook: one cell of plain literals, each of which the notebook reads."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable
from typing import Any

import nbformat
from index import tags_of
from IPython.core.inputtransformer2 import TransformerManager


class NotebookError(ValueError):
    """A notebook, or what it is asked to run with, is wrong."""


def code_cells(notebook: nbformat.NotebookNode, *tags: str) -> list[nbformat.NotebookNode]:
    """Return the code cells, or those which carry one of the tags."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [cell for cell in cells if not tags or set(tags) & set(tags_of(cell))]


def parse(source: str) -> ast.Module:
    """Parse a cell, IPython's own syntax included."""
    return ast.parse(TransformerManager().transform_cell(source))


def declared(notebook: nbformat.NotebookNode) -> dict[str, Any]:
    """Return the parameters and their defaults.

    >>> cell = nbformat.v4.new_code_cell("SEED = 0", metadata={"tags": ["parameters"]})
    >>> declared(nbformat.v4.new_notebook(cells=[cell]))
    {'SEED': 0}
    """
    cells = code_cells(notebook, "parameters")
    if len(cells) != 1:
        raise NotebookError(f"{len(cells)} cells are tagged parameters; there must be one")
    return dict(literal(statement) for statement in parse(cells[0].source).body)


def literal(statement: ast.stmt) -> tuple[str, Any]:
    """Return the name and value of ``NAME = literal``."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            try:
                return name, ast.literal_eval(value)
            except ValueError:
                pass
    raise NotebookError(f"parameters cell: `{ast.unparse(statement)}` is not NAME = literal")


def check_values(values: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Raise unless every value has a parameter to go to, and that parameter's type."""
    for name, value in values.items():
        if name not in defaults:
            known = ", ".join(defaults)
            raise NotebookError(f"unknown parameter {name!r}; the notebook declares {known}")
        expected = type(defaults[name])
        if defaults[name] is not None and type(value) is not expected:
            given = f"{value!r} ({type(value).__name__})"
            raise NotebookError(f"parameter {name} is a {expected.__name__}, not {given}")


def check_reads(notebook: nbformat.NotebookNode, names: Iterable[str]) -> None:
    """Raise if a parameter is never read, or is overwritten so that its value is lost."""
    cells = [cell for cell in code_cells(notebook) if not {"parameters"} & set(tags_of(cell))]
    trees = [parse(cell.source) for cell in cells]
    read = {name for tree in trees for name in names_read(tree)}
    written = {name for tree in trees for name in names_written(tree.body)}
    for name in names:
        if name not in read:
            raise NotebookError(f"parameter {name} is declared, but no cell reads it")
        if name in written:
            raise NotebookError(f"parameter {name} is assigned again outside the parameters cell")


def names_read(tree: ast.AST) -> set[str]:
    """Return the names whose values a piece of code uses."""
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Name))
    return {node.id for node in nodes if isinstance(node.ctx, ast.Load)}


def names_written(statements: list[ast.stmt]) -> set[str]:
    """Return the names that code assigns outside functions and classes."""
    scopes = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
    comprehensions = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
    found, nodes = set(), list(statements)
    while nodes:
        node = nodes.pop()
        if isinstance(node, scopes + comprehensions):
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        nodes += ast.iter_child_nodes(node)
    return found


def injected_source(values: dict[str, Any]) -> str:
    """Return the cell that overrides the defaults, readable on the page."""
    lines = [f"{name} = {as_code(value)}" for name, value in values.items()]
    return "\n".join(["# This page was run with:", *lines])


def as_code(value: Any) -> str:
    """Return a literal, with the quotes of this project's style."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)

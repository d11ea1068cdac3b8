"""Stubs, marked solutions and hints, made from what a chapter has once.

An exercise has a stub, a checker and a hidden solution. What a student must find follows by a rule
from the solution: of a function that the stub names, the lines below its signature and docstring;
outside such functions, everything. These lines are *marked*. The instructor's cell shows them
between two comments; the student's cell has a line with ``TODO`` in their place.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby

from index import BookError

BEGIN, END, TODO = "### BEGIN SOLUTION", "### END SOLUTION", "# TODO"


# --- Stub and marked solution ---------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """A line of a solution, and whether the student must find it."""

    text: str
    marked: bool


def wanted(stub: str) -> dict[str, str]:
    """Return the names that a stub leaves open, each with its comment.

    >>> wanted("def width(gamma, scale): ...  # the largest change")
    {'width': 'the largest change'}
    """
    comments = comments_of(stub)
    names = {name: node.end_lineno for node in ast.parse(stub).body for name in names_of(node)}
    return {name: comments.get(line, "your code") for name, line in names.items()}


def names_of(node: ast.stmt) -> list[str]:
    """Return what a statement at the top level defines."""
    match node:
        case ast.FunctionDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
    return []


def comments_of(code: str) -> dict[int, str]:
    """Return the comments by line."""
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    found = (token for token in tokens if token.type == tokenize.COMMENT)
    return {token.start[0]: token.string.lstrip("# ") for token in found}


def marked_lines(solution: str, names: dict[str, str]) -> list[Line]:
    r"""Return a solution line by line; what the rule leaves to the student is marked.

    >>> [line.marked for line in marked_lines("def f(x):\n    return x", {"f": "x again"})]
    [False, True]
    """
    lines = solution.strip("\n").split("\n")
    tree = ast.parse("\n".join(lines))
    if missing := set(names) - {name for node in tree.body for name in names_of(node)}:
        raise BookError(f"the solution does not define {', '.join(sorted(missing))}")
    open_lines = {number for node in tree.body for number in signature(node, names)}
    between = set(range(1, len(lines) + 1)) - {n for node in tree.body for n in span(node)}
    kept = open_lines | {number for number in between if not lines[number - 1].strip()}
    return [Line(text, number not in kept) for number, text in enumerate(lines, start=1)]


def span(node: ast.stmt) -> range:
    """Return the numbers of a statement's lines."""
    return range(node.lineno, node.end_lineno + 1)


def signature(node: ast.stmt, names: dict[str, str]) -> range:
    """Return the lines of a wanted function down to its docstring; nothing for all else."""
    if not isinstance(node, ast.FunctionDef) or node.name not in names:
        return range(0)
    first, *rest = node.body
    if ast.get_docstring(node) is not None and rest:
        first = rest[0]
    if first.lineno == node.lineno:
        raise BookError(f"{node.name}: write the body below the signature")
    return range(node.lineno, first.lineno)


def runs(lines: list[Line]) -> Iterator[tuple[bool, list[str]]]:
    """Yield lines that follow each other with the same mark, together."""
    for marked, group in groupby(lines, key=lambda line: line.marked):
        yield marked, [line.text for line in group]


def indent_of(texts: list[str]) -> str:
    """Return the white space before the first line that is not blank."""
    line = next(text for text in texts if text.strip())
    return line[: len(line) - len(line.lstrip())]


def with_marks(lines: list[Line]) -> str:
    """Return a solution with its marked lines between two comments."""
    output = []
    for marked, texts in runs(lines):
        space = indent_of(texts) if marked else ""
        output += [f"{space}{BEGIN}", *texts, f"{space}{END}"] if marked else texts
    return "\n".join(output)


def without_marks(code: str) -> str:
    """Return what is left of a marked solution when the marked lines are taken out."""
    left, inside = [], False
    for line in code.split("\n"):
        inside = inside or line.strip() == BEGIN
        left += [] if inside else [line]
        inside = inside and line.strip() != END
    return "\n".join(left).strip("\n")


def stub_of(lines: list[Line], names: dict[str, str]) -> str:
    r"""Return the student's cell: the lines that are not marked, and what is to do.

    >>> names = {"f": "x again"}
    >>> print(stub_of(marked_lines("def f(x):\n    return x", names), names))
    def f(x):
        ...  # TODO: x again
    """
    output, name = [], ""
    for marked, texts in runs(lines):
        if not marked:
            output += texts
            name = next(iter(functions(texts)), name)
        elif space := indent_of(texts):
            output.append(f"{space}...  {TODO}: {names[name]}")
        else:
            found = (n for node in ast.parse("\n".join(texts)).body for n in names_of(node))
            output += [
                f"{n} = None  {TODO}: {names[n]}" for n in dict.fromkeys(found) if n in names
            ]
    return "\n".join(output).strip("\n")


def functions(texts: list[str]) -> list[str]:
    """Return the functions whose signature starts in these lines, the last first."""
    heads = [text for text in texts if text.startswith("def ")]
    return [head.removeprefix("def ").partition("(")[0] for head in reversed(heads)]


# --- Hints ----------------------------------------------------------------------------------

# What a checker says of a type, a shape or an error is no hint.
PLAIN = re.compile(r"^[^;?]{0,50}(is|are) asked for|the shape|raised |there is no answer yet")


def hints(check: Callable) -> list[str]:
    """Return the sentences with which a checker names usual mistakes, in its own order.

    They are read from the checker's source and from what it uses in its own module; what a
    sentence fills in at run time is shown as "…".
    """
    function = inspect.unwrap(check)
    module = ast.parse(inspect.getsource(inspect.getmodule(function)))
    definitions = {name: node for node in module.body for name in names_of(node)}
    found, waiting, seen = [], [function.__name__], set()
    while waiting:
        name = waiting.pop(0)
        if name in seen or name not in definitions:
            continue
        seen.add(name)
        node = definitions[name]
        found += sentences(node, is_checker=name == function.__name__)
        waiting += [item.id for item in ast.walk(node) if isinstance(item, ast.Name)]
    return list(dict.fromkeys(text for text in found if not PLAIN.search(text)))


def sentences(node: ast.stmt, is_checker: bool) -> Iterator[str]:
    """Yield what a definition says: of a checker all but its praise, of a helper its texts."""
    body = node.body if isinstance(node, ast.FunctionDef) else [node]
    roots = [item for item in body if not is_docstring(item)]
    for root in roots:
        yield from filter(is_sentence, texts_of(root, skip_returns=is_checker))


def is_sentence(text: str) -> bool:
    """Tell a sentence from a name or a key."""
    return text.count(" ") >= (3 if text.endswith((".", "?", "…")) else 5)


def is_docstring(node: ast.stmt) -> bool:
    """Tell whether a statement is nothing but a text."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def texts_of(node: ast.AST, skip_returns: bool) -> Iterator[str]:
    """Yield the whole texts in a piece of code, in the order in which they stand."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        parts = (p.value if isinstance(p, ast.Constant) else "…" for p in node.values)
        yield "".join(parts)
    elif not (skip_returns and isinstance(node, ast.Return)):
        for child in ast.iter_child_nodes(node):
            yield from texts_of(child, skip_returns)

"""Directives, equations and labels turned into plain Markdown.

A construct that has no plain form raises :class:`index.BookError`, so nothing arrives as raw text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from html import escape

from index import BookError
from myst import Block, Directive, Role, blocks, split_inline
from plain_inline import Context, convert_inline, image_url, numfig_format

ADMONITIONS = {
    *("admonition", "attention", "caution", "danger", "error", "hint", "important", "note"),
    *("seealso", "tip", "warning", "margin", "sidebar"),
}
SILENT = {"contents", "tableofcontents"}
RESIDUE = re.compile(r"^\s*:::|\{\{|\[\^[\w-]+\]|\)\{[.#\w]", re.MULTILINE)
LABEL = re.compile(r"\s*\([\w:-]+\)")


def convert_text(text: str, context: Context) -> str:
    """Turn the Markdown of a cell, or the body of a directive, into plain Markdown."""
    lines, output, position = text.split("\n"), Lines(), 0
    for block in blocks(text):
        output.copy(lines[position : block.start])
        source = lines[block.start : block.stop]
        position = max(block.stop, position)
        if block.kind in ("text", "table", "heading"):
            output.copy(convert_inline("\n".join(source), context).split("\n"))
        else:
            output.insert(convert_block(block, context), indent_of(source[0]))
    output.copy(lines[position:])
    return output.text()


def convert_block(block: Block, context: Context) -> str:
    """Turn a block that is not plain text into plain Markdown."""
    match block.kind:
        case "equation":
            return equation(block.content, block.label, context)
        case "target":
            return anchor(block.label)
        case "comment":
            return ""
        case "directive":
            return convert_directive(block.directive, context)
    raise BookError(f"unsupported: {block.content}")


class Lines:
    """Lines of output; an inserted block stands alone between blank lines."""

    def __init__(self):
        self.lines: list[str] = []
        self.separate = False

    def copy(self, lines: list[str]) -> None:
        """Add lines as they are."""
        for line in lines:
            if self.separate and line.strip():
                self.blank()
            self.separate = self.separate and not line.strip()
            if line.strip() or not self.separate:
                self.lines.append(line)

    def insert(self, text: str, indent: str) -> None:
        """Add a block; an empty one leaves no trace."""
        if text:
            self.blank()
            self.lines += [f"{indent}{line}" if line else "" for line in text.split("\n")]
        self.separate = True

    def blank(self) -> None:
        """End the paragraph above."""
        if self.lines and self.lines[-1].strip():
            self.lines.append("")

    def text(self) -> str:
        """Return all, without blank lines at the ends."""
        return "\n".join(self.lines).strip("\n")


def indent_of(line: str) -> str:
    """Return the white space at the start of a line."""
    return line[: len(line) - len(line.lstrip())]


def anchor(label: str) -> str:
    """Return what a link to a label arrives at."""
    return f'<a id="{label}"></a>'


def equation(tex: str, label: str, context: Context) -> str:
    """Return a display equation with the number of the online page."""
    lines = [line.rstrip() for line in tex.split("\n") if line.strip()]
    if label:
        lines.append(rf"\tag{{{context.index.target(label, 'equation').number_text}}}")
    if context.quoted:  # one line: a quote's marks would become part of a longer equation
        math = "$$" + " ".join(line.strip() for line in lines) + "$$"
    else:
        math = "\n".join(["$$", *lines, "$$"])
    return f"{anchor(label)}\n\n{math}" if label else math


def quote_lines(text: str) -> str:
    """Return a block quote."""
    return "\n".join(f"> {line}".rstrip() for line in text.split("\n"))


def details(summary: str, body: str) -> str:
    """Return text that unfolds."""
    return f"<details>\n<summary>{summary}</summary>\n\n{body}\n\n</details>"


def convert_directive(directive: Directive, context: Context) -> str:
    """Turn a directive into plain Markdown."""
    family, _, kind = directive.name.partition(":")
    if family == "prf":
        return proof(directive, kind, context)
    if family in ADMONITIONS:
        return admonition(directive, context)
    if family in SILENT:
        return ""
    if directive.name not in DIRECTIVES:
        raise BookError(f"directive {{{directive.name}}} has no plain form")
    return DIRECTIVES[directive.name](directive, context)


def classes(directive: Directive) -> list[str]:
    """Return the classes of a directive."""
    return directive.options.get("class", "").split()


def admonition(directive: Directive, context: Context) -> str:
    """Return a block quote with a bold title; a dropdown unfolds instead."""
    named = directive.name in ("admonition", "sidebar", "margin")
    title = (
        directive.argument if named else directive.name.replace("seealso", "see also").capitalize()
    )
    text = (
        directive.body if named else "\n".join(filter(None, [directive.argument, directive.body]))
    )
    if "dropdown" in classes(directive):
        return details(html_inline(title, context), convert_text(text, context))
    body = convert_text(text, context.inside_quote())
    head = f"**{convert_inline(title, context)}**" if title else ""
    return quote_lines("\n\n".join(filter(None, [head, body])))


def proof(directive: Directive, kind: str, context: Context) -> str:
    """Return a theorem or proof: a block quote that starts with its bold name and number."""
    inner = context if "dropdown" in classes(directive) else context.inside_quote()
    if kind == "proof":
        head, label = "**Proof.**", ""
    else:
        head, label = heading(kind, directive, context), directive.options.get("label", "")
    body = convert_text(directive.body, inner)
    if inner is context:
        text = details(re.sub(r"\*\*(.*?)\*\*", r"<b>\1</b>", head), body)
    else:
        text = quote_lines(f"{head}\n\n{body}")
    return f"{anchor(label)}\n\n{text}" if label else text


def heading(kind: str, directive: Directive, context: Context) -> str:
    """Return "**Exercise 1.2** (Title)" with the online number."""
    label = directive.options.get("label")
    target = context.index.target(label, kind) if label else context.next_unlabelled(kind)
    name = f"**{f'{kind.title()} {target.number_text}'.strip()}**"
    title = directive.argument
    return f"{name} ({convert_inline(title, context)})" if title else name


def exercise(directive: Directive, context: Context) -> str:
    """Return an exercise: its bold name and number, its title, its text."""
    head = heading("exercise", directive, context)
    body = convert_text(directive.body, context)
    label = directive.options.get("label", "")
    return "\n\n".join(filter(None, [anchor(label) if label else "", head, body]))


def solution(directive: Directive, context: Context) -> str:
    """Return a solution that unfolds."""
    context.index.target(directive.argument, "exercise")
    return details("Solution", convert_text(directive.body, context))


def dropdown(directive: Directive, context: Context) -> str:
    """Return text that unfolds."""
    return details(html_inline(directive.argument, context), convert_text(directive.body, context))


def html_inline(text: str, context: Context) -> str:
    """Return a title for an HTML element, where Markdown is not read."""
    plain = re.sub(r"\[([^\[\]]*)\]\([^()]*\)", r"\1", convert_inline(text, context))
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", plain)


def figure(directive: Directive, context: Context) -> str:
    """Return an image tag with an absolute address, and the caption below in italics."""
    options = directive.options
    attributes = {"src": image_url(directive.argument, context), "alt": options.get("alt", "")}
    attributes |= {key: options[key] for key in ("width", "height") if key in options}
    tag = "<img " + " ".join(f'{key}="{escape(value)}"' for key, value in attributes.items()) + ">"
    text = caption("figure", options.get("name", ""), directive.body.strip(), context)
    parts = [anchor(options["name"]) if "name" in options else "", tag, text]
    return "\n\n".join(filter(None, parts))


def caption(kind: str, label: str, text: str, context: Context) -> str:
    """Return "*Fig. 1.2: text*" with the online number."""
    if not text:
        return ""
    target = context.index.target(label, kind) if label else context.next_unlabelled(kind)
    number = numfig_format(kind, context) % target.number_text
    first, *legend = convert_text(text, context).split("\n\n")
    mark = "_" if "*" in first else "*"
    return "\n\n".join([f"{mark}{number}: {' '.join(first.split())}{mark}", *legend])


def table(directive: Directive, context: Context) -> str:
    """Return a Markdown table below its caption."""
    label = directive.options.get("name", "")
    head = caption("table", label, directive.argument, context)
    body = convert_text(directive.body, context)
    return "\n\n".join(filter(None, [anchor(label) if label else "", head, body]))


def code(directive: Directive, _: Context) -> str:
    """Return a code block."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", directive.body)), default=0))
    return f"{fence}{directive.argument}\n{directive.body}\n{fence}"


def math_block(directive: Directive, context: Context) -> str:
    """Return the equation of a ``{math}`` directive."""
    return equation(directive.body, directive.options.get("label", ""), context)


DIRECTIVES: dict[str, Callable[[Directive, Context], str]] = {
    "exercise": exercise,
    "solution": solution,
    "dropdown": dropdown,
    "figure": figure,
    "image": figure,
    "table": table,
    "math": math_block,
    "code": code,
    "code-block": code,
}


def residue(text: str) -> str:
    """Return what a line still holds that only the book understands."""
    before = ""
    for piece in split_inline(text):
        if isinstance(piece, Role):
            return piece.name
        label = LABEL.match(piece) if before.startswith("$$") else None
        if label or (piece[0] not in "`$" and RESIDUE.search(piece)):
            return before + piece
        before = piece
    return ""


def assert_plain(text: str) -> None:
    """Raise if a converted text still holds a construct which only the book understands."""
    for block in blocks(text):
        if block.kind in ("directive", "target", "unsupported") or block.label:
            raise BookError(f"not converted: {block}")
        if block.kind not in ("text", "table", "heading"):
            continue
        if left := residue(block.content):
            raise BookError(f"not converted: {left}")

"""MyST Markdown taken apart: blocks with their lines, directives, and the inside of a line.

Blocks are found by the parser that renders the book (myst-parser with the extensions of
``_config.yml``), so both see the same structure. Inside a line, :func:`split_inline` tells roles
and code spans from the text around them.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path

import yaml
from markdown_it.renderer import RendererHTML
from myst_parser.config.main import MdParserConfig
from myst_parser.parsers.mdit import create_md_parser
from project import ROOT

DIRECTIVE = re.compile(r"^\{(?P<name>[^}]+)\}[ \t]*(?P<argument>.*)$", re.DOTALL)
OPTION = re.compile(r"^:(?P<key>[\w-]+):(?:[ \t]+(?P<value>.*))?$")
ROLE_NAME = re.compile(r"\{([a-zA-Z][\w:.+-]*)\}$")
TITLED = re.compile(r"^(?P<title>.*?)\s*<(?P<target>[^<>]+)>$", re.DOTALL)


@dataclass(frozen=True)
class Directive:
    """A directive: ``:::{name} argument``, its options and its body."""

    name: str
    argument: str
    options: dict[str, str] = field(default_factory=dict)
    body: str = ""


@dataclass(frozen=True)
class Block:
    """A piece of Markdown that covers the lines ``start`` to ``stop`` (exclusive) of a text.

    ``kind`` is ``directive``, ``equation``, ``target``, ``comment``, ``heading``, ``text``,
    ``table`` (one row of it) or ``unsupported``.
    """

    kind: str
    start: int
    stop: int
    content: str = ""
    label: str = ""
    level: int = 0
    directive: Directive | None = None


@dataclass(frozen=True)
class Role:
    """A role: ``{name}`content```, with ``title <target>`` taken apart where it is written so."""

    name: str
    content: str

    @property
    def title(self) -> str:
        """The text before ``<target>``, or nothing."""
        match = TITLED.match(self.content)
        return match["title"].strip() if match else ""

    @property
    def target(self) -> str:
        """What the role points at."""
        match = TITLED.match(self.content)
        return (match["target"] if match else self.content).strip()


@cache
def parser(root: Path = ROOT):
    """Make the Markdown parser of the book."""
    config = yaml.safe_load((root / "_config.yml").read_text("utf8"))
    extensions = set(config.get("parse", {}).get("myst_enable_extensions", []))
    return create_md_parser(MdParserConfig(enable_extensions=extensions), RendererHTML)


# --- Blocks ---------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def blocks(text: str) -> tuple[Block, ...]:
    """Return the blocks of a text which the tools must know about, in order."""
    found = []
    tokens = parser().parse(text)
    in_table = False
    for before, token in zip([None, *tokens], tokens, strict=False):
        if token.type in ("table_open", "table_close"):
            in_table = token.type == "table_open"
        block = to_block(token, before, in_table)
        if block and (not found or (block.start, block.stop) != (found[-1].start, found[-1].stop)):
            found.append(block)
    return tuple(found)


def to_block(token, before, in_table: bool) -> Block | None:
    """Turn a token of the parser into a block, or into nothing if it may stay as it is."""
    start, stop = token.map or (0, 0)
    match token.type:
        case "colon_fence" | "fence" if token.info.startswith("{"):
            directive = parse_directive(token.info, token.content)
            return Block("directive", start, stop, directive=directive)
        case "colon_fence":
            return Block("unsupported", start, stop, f"::: {token.info.strip()} without braces")
        case "math_block":
            return Block("equation", start, stop, token.content)
        case "math_block_label":
            return Block("equation", start, stop, token.content, label=token.info)
        case "myst_target":
            return Block("target", start, stop, label=token.content)
        case "myst_line_comment" | "myst_block_break":
            return Block("comment", start, stop)
        case "inline" if before is not None and before.type == "heading_open":
            return Block("heading", start, stop, token.content, level=int(before.tag[1:]))
        case "inline":
            return Block("table" if in_table else "text", start, stop, token.content)
        case "amsmath" if not token.meta["numbered"]:
            return Block("unsupported", start, stop, "a bare \\begin{...}: write $$ ... $$ (label)")
        case "dl_open":
            return Block("unsupported", start, stop, "a definition list: write a bullet list")
        case "footnote_reference_open":
            return Block("unsupported", start, stop, "a footnote: write it into the text")
    return None


def parse_directive(info: str, content: str) -> Directive:
    """Take a directive's first line and body apart."""
    match = DIRECTIVE.match(info.strip())
    if match is None:
        raise ValueError(f"not a directive: {info!r}")
    options, body = split_options(textwrap.dedent(content))
    return Directive(match["name"].strip(), match["argument"].strip(), options, body.strip("\n"))


def split_options(content: str) -> tuple[dict[str, str], str]:
    """Split ``:key: value`` lines (or a ``---`` block of YAML) from the body below them."""
    lines = content.split("\n")
    if lines and lines[0].strip() == "---" and "---" in [line.strip() for line in lines[1:]]:
        stop = [line.strip() for line in lines].index("---", 1)
        values = yaml.safe_load("\n".join(lines[1:stop])) or {}
        return {str(k): str(v) for k, v in values.items()}, "\n".join(lines[stop + 1 :])
    options = {}
    while lines and (match := OPTION.match(lines[0].strip())):
        options[match["key"]] = (match["value"] or "").strip()
        lines = lines[1:]
    return options, "\n".join(lines)


# --- Inside a line --------------------------------------------------------------------------


def split_inline(text: str) -> Iterator[str | Role]:
    """Split text into roles and all else; code spans and math are part of all else.

    >>> list(split_inline("see {eq}`eq-a`, not `{eq}`"))
    ['see ', Role(name='eq', content='eq-a'), ', not ', '`{eq}`']
    """
    plain, position = "", 0
    while position < len(text):
        stop = end_of_verbatim(text, position)
        name = ROLE_NAME.search(plain) if text[position] == "`" else None
        if stop is None:
            plain, position = plain + text[position], position + 1
        elif name is None:
            yield from filter(None, (plain, text[position:stop]))
            plain, position = "", stop
        else:
            if head := plain[: name.start()]:
                yield head
            yield Role(name[1], " ".join(text[position:stop].strip("`").split()))
            plain, position = "", stop
    if plain:
        yield plain


def end_of_verbatim(text: str, start: int) -> int | None:
    """Return where the code span or inline math that starts here ends, or ``None``."""
    if text[start] not in "`$" or (start and text[start - 1] == "\\"):
        return None
    mark = re.match(r"`+|\$\$?", text[start:])[0]
    pattern = rf"(?<!`){mark}(?!`)" if mark[0] == "`" else rf"(?<!\\){re.escape(mark)}"
    match = re.compile(pattern).search(text, start + len(mark))
    return match.end() if match else None

"""The Colab copy of a notebook: MyST turned into the plain Markdown that Colab and GitHub show.

Numbers are those of the online page; what cannot be shown in place becomes a link to it. A
construct that has no plain form raises :class:`index.BookError`, so nothing arrives as raw text.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from posixpath import normpath

import nbformat
import project
import references
from index import THEOREMS, BookError, Index, Target, figure_of, read_notebook, tags_of
from myst import Block, Directive, Role, blocks, split_inline
from project import ROOT
from toc import docname_of, strip_suffix

ADMONITIONS = {
    *("admonition", "attention", "caution", "danger", "error", "hint", "important", "note"),
    *("seealso", "tip", "warning", "margin", "sidebar"),
}
SILENT = {"contents", "tableofcontents"}
NUMFIG = {"section": "Section %s", "figure": "Fig. %s", "table": "Table %s"} | {
    "code-block": "Listing %s",
    "exercise": "Exercise %s",
}
LINK = re.compile(r"(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\[\]]*\])*)\]\((?P<to>[^()\s]+)\)")
RESIDUE = re.compile(r"^\s*:::|\{\{|\[\^[\w-]+\]|\)\{[.#\w]|\$\$\s*\([\w:-]+\)", re.MULTILINE)


@dataclass
class Context:
    """Where a text stands: its page, the book around it, and whether it is inside a quote."""

    index: Index
    docname: str
    quote: Callable[[str], str]
    root: Path = ROOT
    quoted: bool = False
    seen: Counter = field(default_factory=Counter)

    def inside_quote(self) -> Context:
        """Return this context for the body of a block quote."""
        return Context(self.index, self.docname, self.quote, self.root, True, self.seen)

    def next_unlabelled(self, kind: str) -> Target:
        """Return the next numbered thing of this page that has no label."""
        position = self.seen[kind]
        self.seen[kind] += 1
        return self.index.unlabelled[self.docname, kind, position]

    def url(self, target: Target) -> str:
        """Return the address of a target: an anchor on this page, or a page of the online book."""
        here = target.docname == self.docname
        if here and target.anchor and target.kind not in ("text", "term"):
            return f"#{target.label}"
        address = project.page_url(target.docname, self.root)
        return f"{address}#{target.anchor}" if target.anchor else address


# --- Inside a line --------------------------------------------------------------------------


def convert_inline(text: str, context: Context) -> str:
    """Turn roles and links into plain Markdown."""
    kept: list[str] = []

    def keep(piece: str) -> str:
        kept.append(piece)
        return f"\0{len(kept) - 1}\0"

    parts = []
    for piece in split_inline(text):
        if isinstance(piece, Role):
            parts.append(keep(convert_role(piece, context)))
        elif piece[0] in "`$":
            parts.append(keep(piece.replace("\n", " ")))
        else:
            parts.append(piece)
    linked = LINK.sub(lambda match: convert_link(match, context), "".join(parts))
    return re.sub(r"\0(\d+)\0", lambda match: kept[int(match[1])], linked)


def convert_role(role: Role, context: Context) -> str:
    """Turn one role into plain Markdown."""
    family, _, kind = role.name.partition(":")
    if family == "py":
        return python_link(role, kind, context)
    if family == "cite":
        return citation(role, kind or "p", context)
    if role.name not in ROLES:
        raise BookError(f"role {{{role.name}}} has no plain form (`{role.content}`)")
    return ROLES[role.name](role, context)


def equation_link(role: Role, context: Context) -> str:
    """``{eq}``: the number as the page prints it."""
    target = context.index.target(role.target, "equation")
    form = sphinx_option(context, "math_eqref_format", "({number})")
    return f"[{form.format(number=target.number_text)}]({context.url(target)})"


def numbered_link(role: Role, context: Context) -> str:
    """``{numref}``: "Fig. 1.2", "Exercise 1.1", ..."""
    target = context.index.target(role.target)
    if not target.number:
        raise BookError(f"{{numref}} to {role.target!r}, which has no number")
    form = role.title or numfig_format(target.kind, context)
    form = form.replace("%s", target.number_text).replace("{number}", target.number_text)
    return f"[{form.replace('{name}', target.title)}]({context.url(target)})"


def plain_link(role: Role, context: Context) -> str:
    """``{ref}``: the given text, or the target's own name."""
    target = context.index.target(role.target)
    text = role.title or name_of(target, context)
    if not text:
        raise BookError(f"{{ref}} to {role.target!r} needs a text: it has no title")
    return f"[{convert_inline(text, context)}]({context.url(target)})"


def name_of(target: Target, context: Context) -> str:
    """Return how a reference without text names its target."""
    if target.kind in THEOREMS or target.kind == "exercise":
        return f"{target.kind.title()} {target.number_text}".strip()
    if target.kind == "solution":
        return f"Solution to {name_of(context.index.target(target.title, 'exercise'), context)}"
    return target.title


def page_link(role: Role, context: Context) -> str:
    """``{doc}``: the title of a page."""
    docname = resolve_path(role.target, context)
    page = context.index.pages.get(docname)
    if page is None:
        raise BookError(f"{{doc}} to {role.target!r}: the book has no page {docname}")
    text = convert_inline(role.title or page.title, context)
    return f"[{text}]({project.page_url(docname, context.root)})"


def term_link(role: Role, context: Context) -> str:
    """``{term}``: a link to the glossary."""
    target = context.index.terms.get(role.target.lower())
    if target is None:
        raise BookError(f"{{term}} {role.target!r} is not in the glossary")
    return f"[{role.title or role.target}]({context.url(target)})"


def python_link(role: Role, kind: str, context: Context) -> str:
    """``{py:func}`` and its like: code that links to the API page, or to the source."""
    path = role.target.lstrip("~!")
    name = role.title or (path.split(".")[-1] if role.target[0] == "~" else path)
    if kind in ("func", "meth") and not role.title:
        name = f"{name.removesuffix('()')}()"
    url = object_url(path.removesuffix("()"), kind, context)
    return f"[`{name}`]({url})" if url else f"`{name}`"


def object_url(path: str, kind: str, context: Context) -> str:
    """Return where a Python object is documented; nothing for other libraries' objects."""
    prefix = path
    while prefix and prefix not in context.index.objects:
        prefix = prefix.rpartition(".")[0]
    if prefix:
        anchor = f"module-{path}" if kind == "mod" else path
        return f"{project.page_url(context.index.objects[prefix], context.root)}#{anchor}"
    return source_url(path, context) if path.split(".")[0] == "unrolled" else ""


def source_url(path: str, context: Context) -> str:
    """Return the address of the module that holds an object of the package."""
    while path:
        base = f"src/{path.replace('.', '/')}"
        for file in (f"{base}.py", f"{base}/__init__.py"):
            if (context.root / file).is_file():
                return project.blob_url(file, context.root)
        path = path.rpartition(".")[0]
    raise BookError("the package has no such module")


def citation(role: Role, kind: str, context: Context) -> str:
    """``{cite:t}`` and ``{cite:p}``: author and year, linked to the bibliography."""
    if not context.index.bibliography:
        raise BookError("a citation, but no page holds a {bibliography}")
    url = project.page_url(context.index.bibliography, context.root)
    form = {"t": "{0} ({1})", "p": "{0}, {1}", "author": "{0}", "year": "{1}"}.get(kind)
    if form is None:
        raise BookError(f"role {{cite:{kind}}} has no plain form")
    keys = [key.strip() for key in role.content.split(",")]
    facts = [
        (references.authors(key, context.root), references.year(key, context.root)) for key in keys
    ]
    links = [f"[{form.format(*fact)}]({url})" for fact in facts]
    return f"({'; '.join(links)})" if kind == "p" else ", ".join(links)


def result(role: Role, context: Context) -> str:
    """Return the number of ``{result}`` from the committed rows."""
    try:
        return context.quote(role.content.replace("\\|", "|"))
    except Exception as error:
        raise BookError(f"{{result}}`{role.content}`: {error}") from error


def download_link(role: Role, context: Context) -> str:
    """``{download}``: a link to the file in the repository."""
    url = project.blob_url(resolve_path(role.target, context, strip=False), context.root)
    return f"[{role.title or role.target}]({url})"


ROLES: dict[str, Callable[[Role, Context], str]] = {
    "eq": equation_link,
    "numref": numbered_link,
    "ref": plain_link,
    "prf:ref": plain_link,
    "doc": page_link,
    "term": term_link,
    "result": result,
    "download": download_link,
    "cite": lambda role, context: citation(role, "p", context),
    "math": lambda role, _: f"${role.content}$",
    "code": lambda role, _: f"`{role.content}`",
    "kbd": lambda role, _: f"<kbd>{role.content}</kbd>",
    "sub": lambda role, _: f"<sub>{role.content}</sub>",
    "sup": lambda role, _: f"<sup>{role.content}</sup>",
}


def convert_link(match: re.Match, context: Context) -> str:
    """Turn the destination of ``[text](to)`` or ``![alt](to)`` into an absolute address."""
    to = match["to"]
    if match["image"]:
        return f"![{match['text']}]({image_url(to, context)})"
    if to.startswith("#"):
        target = context.index.target(to[1:])
        return f"[{match['text'] or name_of(target, context)}]({context.url(target)})"
    return f"[{match['text']}]({link_url(to, context)})"


def link_url(to: str, context: Context) -> str:
    """Return the absolute address of a link."""
    if re.match(r"[a-z][a-z0-9+.-]*:", to):
        return to
    path, _, fragment = to.partition("#")
    docname = resolve_path(path, context)
    if docname in context.index.pages:
        address = project.page_url(docname, context.root)
        return f"{address}#{fragment}" if fragment else address
    file = resolve_path(path, context, strip=False)
    if not (context.root / file).exists():
        raise BookError(f"a link to {to}, which is neither a page nor a file")
    return project.blob_url(file, context.root)


def image_url(to: str, context: Context) -> str:
    """Return the absolute address of an image."""
    if re.match(r"https?:", to):
        return to
    file = resolve_path(to, context, strip=False)
    if not (context.root / file).is_file():
        raise BookError(f"an image {to}, but there is no file {file}")
    return project.raw_url(file, context.root)


def resolve_path(path: str, context: Context, strip: bool = True) -> str:
    """Return a path from the project's root; a relative one starts at the page."""
    folder = "" if path.startswith("/") else context.docname.rpartition("/")[0]
    full = normpath(f"{folder}/{path.lstrip('/')}".lstrip("/"))
    return strip_suffix(full) if strip else full


def sphinx_option(context: Context, name: str, default):
    """Return an option from the ``sphinx: config:`` section of ``_config.yml``."""
    return context.index.config.get("sphinx", {}).get("config", {}).get(name, default)


def numfig_format(kind: str, context: Context) -> str:
    """Return how a reference prints the number of a kind of target."""
    given = sphinx_option(context, "numfig_format", {})
    return (NUMFIG | given).get(kind, f"{kind.title()} %s")


# --- Blocks ---------------------------------------------------------------------------------


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
    tag = "<img " + " ".join(f'{key}="{value}"' for key, value in attributes.items()) + ">"
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


def assert_plain(text: str) -> None:
    """Raise if a converted text still holds a construct which only the book understands."""
    for block in blocks(text):
        if block.kind in ("directive", "target", "unsupported") or block.label:
            raise BookError(f"not converted: {block}")
        if block.kind not in ("text", "table", "heading"):
            continue
        for piece in split_inline(block.content):
            left = isinstance(piece, Role) or (piece[0] not in "`$" and RESIDUE.search(piece))
            if left:
                raise BookError(f"not converted: {piece}")


# --- The notebook ---------------------------------------------------------------------------


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
        cells.insert(0, code_cell(setup_source(context.root), ["colab-setup"]))
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


def setup_source(root: Path = ROOT) -> str:
    """Return the cell that installs the package on Colab and tells what it runs on."""
    repository = project.project_urls(root)["repository"]
    pinned = " ".join(f"\"{name}=={{version('{name}')}}\"" for name in project.KEPT_ON_COLAB)
    light = " ".join(project.light_requirements(root))
    return SETUP.format(repository=repository, pinned=pinned, light=light)


SETUP = """\
# On Colab this installs the package and keeps Colab's own torch and numpy; elsewhere it only
# prints the versions.
import sys
from importlib.metadata import version

if "google.colab" in sys.modules:
    %pip install --quiet --no-deps "unrolled @ git+{repository}"
    %pip install --quiet {pinned} {light}

import torch

device = "GPU" if torch.cuda.is_available() else "CPU"
versions = ", ".join(f"{{name}} {{version(name)}}" for name in ("unrolled", "torch", "numpy"))
print(f"{{versions}}; running on a {{device}}")"""


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

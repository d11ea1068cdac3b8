"""Roles and links turned into plain Markdown, with the numbers and addresses of the online book."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from posixpath import normpath

import project
import references
from index import THEOREMS, BookError, Index, Target
from myst import Role, split_inline
from project import ROOT
from toc import strip_suffix

NUMFIG = {"section": "Section %s", "figure": "Fig. %s", "table": "Table %s"} | {
    "code-block": "Listing %s",
    "exercise": "Exercise %s",
}
# What {ref} and {numref} find; equations have {eq}, theorems have {prf:ref}.
REFERABLE = ("section", "figure", "table", "code-block", "exercise", "solution", "text")
LINK = re.compile(r"(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\[\]]*\])*)\]\((?P<to>[^()\s]+)\)")


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
    target = context.index.target(role.target, *REFERABLE)
    if not target.number:
        raise BookError(f"{{numref}} to {role.target!r}, which has no number")
    is_chapter = target.kind == "section" and "." not in target.number_text
    form = role.title or ("Chapter %s" if is_chapter else numfig_format(target.kind, context))
    form = form.replace("%s", target.number_text).replace("{number}", target.number_text)
    return f"[{form.replace('{name}', target.title)}]({context.url(target)})"


def plain_link(role: Role, context: Context) -> str:
    """``{ref}`` and, for theorems, ``{prf:ref}``: the given text, or the target's own name."""
    kinds = THEOREMS if role.name == "prf:ref" else REFERABLE
    target = context.index.target(role.target, *kinds)
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

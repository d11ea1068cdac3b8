"""The pages of the package: each object has one entry, and every path to it finds that entry."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sphinx.util.nodes import make_refnode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from docutils import nodes
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment


def documented_as(target: str, documented: Iterable[str]) -> str | None:
    """Return the one documented name that a public path means, or None.

    ``unrolled.results.quote`` is documented where it is defined, ``unrolled.results.quotes.quote``;
    a short name such as ``Row`` means the one object of that name.
    """
    parts = target.split(".")
    for cut in range(len(parts) - 1, -1, -1):
        start, end = ".".join([*parts[:cut], ""]), "." + ".".join(parts[cut:])
        found = [name for name in documented if name.startswith(start) and name.endswith(end)]
        if len(found) == 1:
            return found[0]
    return None


def resolve_python_name(
    app: Sphinx, env: BuildEnvironment, node: nodes.Element, contnode: nodes.Node
) -> nodes.Node | None:
    """Resolve public paths; leave types of docstrings that have no page as plain words.

    A reference that an author wrote as a role stays strict; a single backtick links if it can.
    """
    if node.get("refdomain") != "py":
        return None
    objects, target = env.get_domain("py").objects, node["reftarget"]
    if name := documented_as(target, objects):
        entry = objects[name]
        return make_refnode(
            app.builder, node["refdoc"], entry.docname, entry.node_id, contnode, name
        )
    is_private = target.rpartition(".")[2].startswith("_")
    is_role = ":`" in node.rawsource
    is_ours = target.startswith("unrolled.") and not is_private
    return None if is_role or is_ours else contnode


def skip_member(
    app: Sphinx, what: str, name: str, member: Any, skip: bool, options: Any
) -> bool | None:
    """Leave out what a module only re-exports, and fields of named tuples that have no text.

    Each object so has one entry, where it is defined; `documented_as` finds it by any path.
    """
    if str(getattr(member, "__doc__", "")).startswith("Alias for field number"):
        return True
    here, home = app.env.temp_data.get("autodoc:module"), getattr(member, "__module__", None)
    is_ours = isinstance(home, str) and home.startswith("unrolled.")
    return True if what == "module" and is_ours and home != here else None


def refresh_source_pages(app: Sphinx, env: BuildEnvironment, docnames: list[str]) -> None:
    """Remake the pages of source code when a page of the package changes.

    Sphinx makes them again only when the *code* is newer, and then they link to old anchors.
    """
    if any(docname.startswith("book/api/") for docname in docnames):
        shutil.rmtree(Path(app.outdir, "_modules"), ignore_errors=True)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the above to Sphinx."""
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("autodoc-skip-member", skip_member)
    app.connect("env-before-read-docs", refresh_source_pages)
    app.connect("missing-reference", resolve_python_name)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}

"""What the book asks of Sphinx beyond its stock extensions.

Addresses
    The repository's and the site's address are read from ``pyproject.toml`` and handed to the
    theme, the social cards and the sitemap, so that they stand in one place.
Executed copies
    A notebook page shows ``executed/<docname>.ipynb``, which lies beside the ``html`` folder; the
    page's source stays the clean notebook, which the download and Colab buttons lead to.
Results
    The role ``{result}`` prints a number that is read from the committed rows.
"""

from __future__ import annotations

import logging as std_logging
import os
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from docutils import nodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxRole

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.config import Config
    from sphinx.environment import BuildEnvironment

logger = logging.getLogger(__name__)

HERE = Path(__file__).resolve().parent

sys.path.append(str(HERE.parent / "tools"))
import project  # noqa: E402 - the book's tools are scripts beside this folder

# --- Addresses ------------------------------------------------------------------------------


def set_addresses(app: Sphinx, config: Config) -> None:
    """Give every extension that writes a link the project's addresses."""
    urls = project.project_urls(Path(app.srcdir))
    config.html_baseurl = config.ogp_site_url = urls["book"] + "/"
    config.html_theme_options |= {
        "repository_url": urls["repository"],
        "repository_branch": project.BRANCH,
        "launch_buttons": {"colab_url": "https://colab.research.google.com"},
    }


def ways_out(docname: str, root: Path) -> dict[str, str]:
    """Return the three ways out of a notebook page: Colab, the notebook and its source."""
    return {
        "Open in Colab": project.colab_url(docname, root),
        "Notebook": project.blob_url(f"{docname}.ipynb", root),
        "Source": project.blob_url(f"{docname}.py", root),
    }


# --- Notebook pages -------------------------------------------------------------------------


def is_notebook(env: BuildEnvironment, docname: str) -> bool:
    """Tell whether a page comes from a notebook."""
    return docname in env.found_docs and str(env.doc2path(docname)).endswith(".ipynb")


def show_executed_copy(app: Sphinx, docname: str, source: list[str]) -> None:
    """Replace the text of a clean notebook by that of its executed copy."""
    if not is_notebook(app.env, docname):
        return
    copy = Path(app.outdir).parent / "executed" / f"{docname}.ipynb"
    app.env.note_dependency(str(copy))  # noted even if it is missing: its arrival rebuilds the page
    if copy.exists():
        source[0] = copy.read_text("utf8")
    else:
        logger.warning(
            "no executed copy of this notebook (expected %s); run the notebooks first",
            os.path.relpath(copy, app.srcdir),
            location=docname,
            type="unrolled",
            subtype="unexecuted",
        )


def add_ways_out(app: Sphinx, doctree: nodes.document) -> None:
    """Put the links to Colab, the notebook and its source below the title of a notebook page."""
    docname = app.env.docname
    title = next(doctree.findall(nodes.title), None)
    if title is None or not is_notebook(app.env, docname):
        return
    links = "".join(
        f'<a href="{escape(url)}">{text}</a>'
        for text, url in ways_out(docname, Path(app.srcdir)).items()
    )  # raw, so that neither the search nor the summaries of a page begin with it
    row = nodes.raw("", f'<p class="ways-out noprint">{links}</p>', format="html")
    title.parent.insert(title.parent.index(title) + 1, row)


def point_edit_buttons_at_source(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any
) -> None:
    """Send the edit button of a notebook page to the ``.py`` that the notebook is made from."""
    if not is_notebook(app.env, pagename):
        return
    for group in context.get("header_buttons", []):
        for button in group.get("buttons", []):
            if button.get("label") in ("source-edit-button", "source-file-button"):
                button["url"] = button["url"].replace(".ipynb", ".py")


# --- Results --------------------------------------------------------------------------------


class ResultRole(SphinxRole):
    """``{result}`FILE | STAT METRIC | key=value ... | FORMAT```: a number read from the rows."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Return the number, or a problem that fails the build."""
        from unrolled import results  # late: the pages without numbers need not import it

        file, _, query = self.text.partition("|")
        try:
            rows = results.file_of(file.strip())
            self.env.note_dependency(str(rows))  # changed rows rebuild the page
            number = results.quote(self.text)
        except ValueError as error:
            message = self.inliner.reporter.error(str(error), line=self.lineno)
            return [self.inliner.problematic(self.rawtext, self.rawtext, message)], [message]
        origin = f"{' '.join(query.rpartition('|')[0].split())} ({rows.name})"
        return [nodes.abbreviation(number, number, explanation=origin, classes=["result"])], []


# --- The whole site -------------------------------------------------------------------------


def write_sitemap(app: Sphinx, exception: Exception | None) -> None:
    """List every page in ``sitemap.xml``, also those that an incremental build left alone."""
    if exception or app.builder.name != "html":
        return
    pages = (app.config.html_baseurl + app.builder.get_target_uri(d) for d in app.env.found_docs)
    entries = "\n".join(f"  <url><loc>{escape(page)}</loc></url>" for page in sorted(pages))
    Path(app.outdir, "sitemap.xml").write_text(
        '<?xml version="1.0" encoding="utf-8"?>\n'
        '<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n'
        f"{entries}\n</urlset>\n",
        encoding="utf8",
    )


def fingerprint() -> int:
    """Return a number that changes with the book's extensions."""
    return zlib.crc32(b"".join(path.read_bytes() for path in sorted(HERE.glob("*.py"))))


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the above to Sphinx."""
    std_logging.getLogger("matplotlib.font_manager").setLevel(std_logging.ERROR)  # social cards
    app.add_config_value("comments_config", {}, "")  # Jupyter Book sets it for an absent extension
    app.setup_extension("typography")
    app.setup_extension("package_pages")
    app.add_role("result", ResultRole())
    app.connect("config-inited", set_addresses, priority=100)
    app.connect("source-read", show_executed_copy)
    app.connect("doctree-read", add_ways_out)
    app.connect("html-page-context", point_edit_buttons_at_source, priority=900)
    app.connect("build-finished", write_sitemap)
    return {
        "version": "1",
        "env_version": fingerprint(),  # a change of an extension re-reads all pages
        "parallel_read_safe": True,
        "parallel_write_safe": True,
    }

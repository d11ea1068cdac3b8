"""Print the built book into one PDF: every page of the table of contents through Chromium.

    python book/tools/print_book.py _build/html _build/unrolled.pdf

Sphinx's own PDF routes do not know sphinx-proof's blocks; a browser prints what readers see.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright
from pypdf import PdfWriter
from sphinx_external_toc.parsing import parse_toc_yaml

ROOT = Path(__file__).resolve().parents[2]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
MARGIN = {"top": "18mm", "bottom": "18mm", "left": "16mm", "right": "16mm"}


def find_browser() -> str:
    """Return the path of an installed Chromium, or stop with what to install."""
    found = os.environ.get("UNROLLED_CHROMIUM") or next(
        filter(None, map(shutil.which, BROWSERS)), None
    )
    if not found:
        sys.exit("Printing needs Chromium: install it (on Debian: apt install chromium).")
    return found


def documents() -> list[str]:
    """Return the pages of the book in reading order."""
    sitemap = parse_toc_yaml(ROOT / "_toc.yml")
    ordered, stack = [], [sitemap.root.docname]
    while stack:
        name = stack.pop()
        ordered.append(name)
        children = [child for tree in sitemap[name].subtrees for child in tree.items]
        stack.extend(str(child) for child in reversed(children) if str(child) in sitemap)
    return ordered


def print_page(browser: Browser, page: Path, target: Path) -> None:
    """Print one page, once its mathematics is set."""
    tab = browser.new_page()
    tab.goto(page.as_uri())
    tab.evaluate("() => window.MathJax?.startup?.promise")
    tab.pdf(path=str(target), format="A4", margin=MARGIN, print_background=True)
    tab.close()


def print_book(site: Path, target: Path) -> int:
    """Print all pages and join them under one outline; return how many pages were printed."""
    names = documents()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=["--no-sandbox"])
        writer = PdfWriter()
        for number, name in enumerate(names):
            part = Path(folder, f"{number}.pdf")
            print_page(browser, site / f"{name}.html", part)
            writer.append(part, outline_item=name)
        browser.close()
        writer.write(target)
    return len(names)


if __name__ == "__main__":
    site, target = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    print(f"Printed {print_book(site, target)} pages of the book into {sys.argv[2]}")

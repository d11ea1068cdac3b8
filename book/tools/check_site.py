"""Check a built site without a browser: links and anchors lead somewhere, nothing comes from afar.

``python book/tools/check_site.py [_build/html]`` prints what is wrong and fails if anything is:

- a link, image, script or style sheet of the site that does not exist;
- an anchor that no element of its page has;
- anything that a page *loads* from another host (links that a reader clicks may lead away);
- a style sheet that loads from another host or names a file that is not there.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: Attributes that make the browser load something by itself.
LOADING = {
    "audio": ("src",),
    "embed": ("src",),
    "iframe": ("src",),
    "image": ("href", "xlink:href"),
    "img": ("src", "srcset"),
    "object": ("data",),
    "script": ("src",),
    "source": ("src", "srcset"),
    "video": ("src", "poster"),
}
#: Relations of ``<link>`` that load; the others, such as ``canonical``, only name an address.
LOADING_RELATIONS = {"stylesheet", "icon", "preload", "prefetch", "modulepreload", "manifest"}
CSS_ADDRESS = re.compile(r"""url\(\s*['"]?([^'")]+)['"]?\s*\)|@import\s+['"]([^'"]+)['"]""")


@dataclass
class Page:
    """What one HTML file refers to, and the anchors that it offers."""

    path: Path
    anchors: set[str] = field(default_factory=set)
    links: set[str] = field(default_factory=set)
    loaded: set[str] = field(default_factory=set)


class Reader(HTMLParser):
    """Collect the references and anchors of a page."""

    def __init__(self, page: Page) -> None:
        super().__init__()
        self.page = page
        self.in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the anchors and addresses of one element."""
        values = {name: value for name, value in attrs if value}
        self.in_style = tag == "style"
        self.page.anchors |= {values[name] for name in ("id", "name") if name in values}
        self.page.loaded |= set(css_addresses(values.get("style", "")))
        for name in LOADING.get(tag, ()):
            self.page.loaded |= set(addresses_in(name, values.get(name, "")))
        if tag == "link" and "href" in values:
            loads = set(values.get("rel", "").lower().split()) & LOADING_RELATIONS
            (self.page.loaded if loads else self.page.links).add(values["href"])
        elif tag in ("a", "area") and "href" in values:
            self.page.links.add(values["href"])

    def handle_data(self, data: str) -> None:
        """Note the addresses in a ``<style>`` element."""
        if self.in_style:
            self.page.loaded |= set(css_addresses(data))

    def handle_endtag(self, tag: str) -> None:
        """Leave a ``<style>`` element."""
        self.in_style = self.in_style and tag != "style"


def addresses_in(name: str, value: str) -> Iterator[str]:
    """Return the address of an attribute, or the several ones of a ``srcset``."""
    candidates = value.split(",") if name == "srcset" else [value]
    yield from (candidate.split()[0] for candidate in candidates if candidate.strip())


def css_addresses(text: str) -> Iterator[str]:
    """Return the addresses that a style sheet loads."""
    yield from (match[0] or match[1] for match in CSS_ADDRESS.findall(text))


def read_page(path: Path) -> Page:
    """Parse one HTML file."""
    page = Page(path)
    Reader(page).feed(path.read_text("utf8"))
    return page


def read_site(root: Path) -> dict[Path, Page]:
    """Parse every page; the templates of themes below ``_static`` are none."""
    paths = sorted(p for p in root.rglob("*.html") if "_static" not in p.relative_to(root).parts)
    return {path.resolve(): read_page(path.resolve()) for path in paths}


def is_remote(address: str) -> bool:
    """Tell whether an address names a host."""
    parts = urlsplit(address)
    return parts.scheme in ("http", "https", "ftp") or bool(parts.netloc)


def page_problems(page: Page, pages: dict[Path, Page], root: Path) -> Iterator[str]:
    """Return what is wrong with the references of one page."""
    for address in sorted(page.loaded):
        if is_remote(address):
            yield f"loads {address}"
    for address in sorted(page.links | page.loaded):
        if not is_remote(address) and not urlsplit(address).scheme:
            yield from target_problems(address, page, pages, root)


def target_problems(address: str, page: Page, pages: dict[Path, Page], root: Path) -> Iterator[str]:
    """Return what is wrong with one local reference."""
    parts = urlsplit(address)
    target = (page.path.parent / unquote(parts.path)).resolve() if parts.path else page.path
    target = target / "index.html" if target.is_dir() else target
    if not target.is_relative_to(root) or not target.exists():
        yield f"no {address}"
    elif parts.fragment and target in pages and not has_anchor(pages[target], parts.fragment):
        yield f"no anchor #{parts.fragment} in {target.relative_to(root)}"


def has_anchor(page: Page, fragment: str) -> bool:
    """Tell whether a page has an element of that name."""
    return fragment in page.anchors or unquote(fragment) in page.anchors


def style_problems(sheet: Path, root: Path) -> Iterator[str]:
    """Return what is wrong with the addresses of one style sheet."""
    for address in sorted(set(css_addresses(sheet.read_text("utf8")))):
        parts = urlsplit(address)
        if is_remote(address):
            yield f"loads {address}"
        elif not parts.scheme and parts.path and not (sheet.parent / unquote(parts.path)).exists():
            yield f"no {address}"


def site_problems(root: Path) -> list[str]:
    """Return everything that is wrong with a site, one line each."""
    root = root.resolve()
    pages = read_site(root)
    if not pages:
        return [f"no pages in {root}"]
    problems = [
        f"{path.relative_to(root)}: {problem}"
        for path, page in pages.items()
        for problem in page_problems(page, pages, root)
    ]
    for sheet in sorted(root.rglob("*.css")):
        problems += [f"{sheet.relative_to(root)}: {p}" for p in style_problems(sheet, root)]
    return problems


def main(arguments: list[str] | None = None) -> int:
    """Check the site that the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("site", nargs="?", type=Path, default=Path("_build/html"))
    site = parser.parse_args(arguments).site
    problems = site_problems(site)
    print("\n".join(problems) or f"{site}: every link and asset is there, nothing comes from afar")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())

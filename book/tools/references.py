"""Citations as text: ``Author (year)`` from the book's BibTeX files."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import yaml
from index import BookError
from project import ROOT
from pybtex.database import BibliographyData, Entry, parse_file
from pybtex.richtext import Text


@cache
def bibliography(root: Path = ROOT) -> dict[str, Entry]:
    """Read every BibTeX file that ``_config.yml`` names."""
    config = yaml.safe_load((root / "_config.yml").read_text("utf8"))
    files = config.get("bibtex_bibfiles") or config["sphinx"]["config"]["bibtex_bibfiles"]
    entries = BibliographyData()
    for file in files:
        entries.add_entries(parse_file(root / file).entries.items())
    return dict(entries.entries.items())


def entry_of(key: str, root: Path = ROOT) -> Entry:
    """Return one entry."""
    try:
        return bibliography(root)[key]
    except KeyError:
        raise BookError(f"no bibliography entry {key!r}") from None


def authors(key: str, root: Path = ROOT) -> str:
    """Return one name, ``A and B``, or ``A et al.``."""
    entry = entry_of(key, root)
    names = [last_name(person) for person in entry.persons.get("author", [])]
    names = names or [str(Text.from_latex(entry.fields.get("title", key)))]
    if len(names) > 2:
        return f"{names[0]} et al."
    return " and ".join(names)


def last_name(person) -> str:
    """Return a person's last name with its particle, in Unicode."""
    parts = [*person.prelast_names, *person.last_names]
    return str(Text.from_latex(" ".join(parts)))


def year(key: str, root: Path = ROOT) -> str:
    """Return the year of an entry."""
    return str(Text.from_latex(entry_of(key, root).fields.get("year", "n.d.")))

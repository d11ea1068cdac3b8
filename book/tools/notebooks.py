"""The notebooks' way from source to book.

    python book/tools/notebooks.py sync     write every Colab copy and the tables of chapters
    python book/tools/notebooks.py check    fail if one is out of step, or breaks a house rule
    python book/tools/notebooks.py run      execute what has changed, for the book

A notebook is written as ``notebooks/<part>/<name>.py`` (percent format, MyST). ``sync`` makes the
``.ipynb`` beside it, which is what Colab opens: the same code, plain Markdown.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from board import summary
from chapters import ChapterError, read_chapters, tables, with_table
from colab_copy import colab_copy, write_text
from execute import write_atomically
from house_rules import problems
from index import BookError, Index, build_index, read_notebook
from jobs import check_jobs, make_jobs
from parameters import NotebookError
from project import ROOT
from toc import docname_of, notebook_sources, strip_suffix

SYNC = "python book/tools/notebooks.py sync"
PRESETS = ("smoke", "live")


def quote(query: str) -> str:
    """Return a number from the committed rows."""
    from unrolled import results  # late: `run` needs no rows

    return results.quote(query)


# --- sync and check -------------------------------------------------------------------------


def wanted_files(root: Path = ROOT) -> Iterator[tuple[Path, str | Exception]]:
    """Yield every generated file with the text it should have, or with what is wrong."""
    try:
        index = build_index(root)
    except BookError as error:
        yield root / "_toc.yml", error
        return
    for source in notebook_sources(root):
        yield source.with_suffix(".ipynb"), copy_text(source, index, root)
    yield from table_files(index, root)


def copy_text(source: Path, index: Index, root: Path) -> str | Exception:
    """Return the Colab copy of a notebook."""
    if docname_of(source, root) not in index.pages:
        return BookError("this notebook is not in _toc.yml")
    try:
        return write_text(colab_copy(source, index, quote, root))
    except BookError as error:
        return error


def table_files(index: Index, root: Path) -> Iterator[tuple[Path, str | Exception]]:
    """Yield the pages with a table of chapters."""
    try:
        pages = tables(read_chapters(index, root), root)
    except (ChapterError, FileNotFoundError) as error:
        yield root / "notebooks/chapters.yml", error
        return
    for path, table in pages.items():
        try:
            yield path, with_table(path.read_text("utf8"), table, path.name)
        except ChapterError as error:
            yield path, error


def sync(root: Path = ROOT) -> int:
    """Write what is out of step."""
    failures = 0
    for path, text in wanted_files(root):
        name = path.relative_to(root)
        if isinstance(text, Exception):
            failures += 1
            print(f"{name}: {text}", file=sys.stderr)
        elif not path.is_file() or path.read_text("utf8") != text:
            write_atomically(path, text)
            print(f"wrote {name}")
    return int(failures > 0)


def check(root: Path = ROOT) -> int:
    """Report what is out of step or breaks a rule."""
    found = [*stale(root), *orphans(root), *rule_breaks(root)]
    for problem in found:
        print(problem, file=sys.stderr)
    return int(bool(found))


def stale(root: Path) -> Iterator[str]:
    """Yield the generated files which are not what they should be."""
    for path, text in wanted_files(root):
        name = path.relative_to(root)
        if isinstance(text, Exception):
            yield f"{name}: {text}"
        elif not path.is_file() or path.read_text("utf8") != text:
            yield f"{name} is out of step with its source: run `{SYNC}`"


def orphans(root: Path) -> Iterator[str]:
    """Yield the notebooks which have no source."""
    for path in sorted((root / "notebooks").rglob("*.ipynb")):
        checkpoint = ".ipynb_checkpoints" in path.parts
        if not checkpoint and not path.with_suffix(".py").is_file():
            yield f"{path.relative_to(root)} has no source beside it: delete it"


def rule_breaks(root: Path) -> Iterator[str]:
    """Yield the house rules that notebooks break."""
    for source in notebook_sources(root):
        for problem in problems(read_notebook(source)):
            yield f"{source.relative_to(root)}: {problem}"


# --- run ------------------------------------------------------------------------------------


def run(
    names: list[str],
    preset: str | None,
    values: dict[str, Any],
    workers: int,
    root: Path = ROOT,
    executed: str = "_build/executed",
) -> int:
    """Execute notebooks and put them where the book takes them from."""
    import batch  # late: it is not needed to sync

    try:
        sources = select(names, root)
        values = ({"PRESET": preset} if preset else {}) | values
        folder = root / batch.RUNS / folder_name(values)
        jobs = make_jobs(sources, values, folder, root)
        check_jobs(jobs)
    except NotebookError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{len(jobs)} notebooks, {workers} at a time", flush=True)
    runner = batch.Batch(jobs, workers)
    try:
        states = runner.run()
    except KeyboardInterrupt:
        print("Interrupted. Finished notebooks are kept; the same command goes on with the rest.")
        return batch.INTERRUPTED
    batch.install(states, root / executed)
    print(summary(states))
    return int(any(state.status == "failed" for state in states))


def folder_name(values: dict[str, Any]) -> str:
    """Return where runs with these values are kept: one place per preset."""
    rest = {name: value for name, value in values.items() if name != "PRESET"}
    preset = str(values.get("PRESET", "live"))
    return "-".join([preset, *(f"{name}={value}" for name, value in sorted(rest.items()))])


def select(names: list[str], root: Path = ROOT) -> list[Path]:
    """Return the notebooks with these names: ``equations``, ``looped/equations`` or a path."""
    sources = notebook_sources(root)
    if not names:
        return sources
    chosen = []
    for name in names:
        wanted = strip_suffix(name).removeprefix("notebooks/")
        matches = [s for s in sources if f"/{docname_of(s, root)}".endswith(f"/{wanted}")]
        if not matches:
            known = ", ".join(docname_of(s, root).removeprefix("notebooks/") for s in sources)
            raise NotebookError(f"no notebook {name!r}; there are {known}")
        chosen += matches
    return chosen


def assignment(text: str) -> tuple[str, Any]:
    """Read ``NAME=VALUE``; a value that is no Python literal is a string."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    try:
        return name, ast.literal_eval(value)
    except (SyntaxError, ValueError):
        return name, value


# --- Command line ---------------------------------------------------------------------------


def make_parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    parser = argparse.ArgumentParser(
        prog="notebooks.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("sync", help="write every Colab copy and the tables of chapters")
    commands.add_parser("check", help="fail if a copy is out of step or a rule is broken")
    runs = commands.add_parser("run", help="execute what has changed, for the book")
    runs.add_argument("names", nargs="*", metavar="NAME", help="looped/equations; default: all")
    runs.add_argument("--preset", choices=PRESETS, help="override PRESET (default: live)")
    runs.add_argument("--jobs", type=int, default=2, help="notebooks at a time (default: 2)")
    runs.add_argument(
        "--executed",
        default="_build/executed",
        metavar="FOLDER",
        help="where the book takes them from, beside its html (default: _build/executed)",
    )
    runs.add_argument("--set", type=assignment, action="append", default=[], metavar="NAME=VALUE")
    return parser


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Run a command and return its exit status."""
    options = make_parser().parse_args(arguments)
    if options.command == "run":
        values, workers = dict(options.set), max(1, options.jobs)
        return run(options.names, options.preset, values, workers, root, options.executed)
    return {"sync": sync, "check": check}[options.command](root)


if __name__ == "__main__":
    sys.exit(main())

"""The equation map: no end is missing, and a missing end is found."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import equations
import pytest
from index import Piece

ROOT = Path(__file__).parents[2]
PAGE = """# Page
## One
$$ a $$ (eq-part-one)
## Two
$$ b $$ (eq-part-two)
"""


@pytest.fixture(scope="module")
def book():
    return equations.equation_map(ROOT)


def test_no_end_is_missing():
    assert equations.problems(ROOT) == []


def test_every_equation_of_the_book_has_one_row(book):
    texts = [path.read_text("utf8") for path in (ROOT / "notebooks").rglob("*.py")]
    labels = re.findall(r"\$\$ \((eq-[a-z0-9-]+)\)", "\n".join(texts))
    assert sorted(row.label for row in book) == sorted(labels)


def test_code_and_tests_of_the_map_exist(book):
    for row in book:
        for name in row.code:
            module = next(part for part in prefixes(name) if source(part))
            assert name == module or name.removeprefix(f"{module}.").split(".")[0] in source(module)
        for test in row.tests:
            line = (ROOT / test.path).read_text("utf8").splitlines()[test.line - 1]
            assert line.startswith(f"def {test.name}(")


def prefixes(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:cut]) for cut in range(len(parts), 0, -1)]


def source(module: str) -> str:
    path = ROOT / "src" / Path(*module.split("."))
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file.read_text("utf8") for file in files if file.exists()), "")


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Return a project with two equations, of which the second lacks its test."""
    for folder in ("src/unrolled", "tests"):
        (tmp_path / folder).mkdir(parents=True)
    code = '"""Both: :eq:`eq-part-one`."""\ndef f():\n    """Return :eq:`eq-part-two`."""\n'
    (tmp_path / "src/unrolled/noun.py").write_text(code)
    test = '@pytest.mark.equation("eq-part-one")\ndef test_one():\n    pass\n'
    (tmp_path / "tests/test_noun.py").write_text(test)
    rows = [equations.Row(f"eq-part-{name}", "page", "1.1", "", "") for name in ("one", "two")]
    monkeypatch.setattr(equations, "build_index", lambda root: Fake(rows))
    monkeypatch.setattr(equations, "rows_of_page", lambda page, index, root: rows)
    return tmp_path


class Fake:
    def __init__(self, rows):
        self.pages = {"page": rows}


def test_an_equation_without_test_is_found(small):
    (problem,) = equations.problems(small)
    assert "eq-part-two" in problem
    assert "unrolled.noun.f" in problem


def test_a_label_that_no_page_has_is_found_at_both_ends(small):
    test = small / "tests/test_noun.py"
    test.write_text(test.read_text().replace("part-one", "part-three"))
    noun = small / "src/unrolled/noun.py"
    noun.write_text(noun.read_text().replace("part-two", "part-four"))
    found = "\n".join(equations.problems(small))
    assert "test_one: no page has the equation eq-part-three" in found
    assert "unrolled.noun.f: no page has the equation eq-part-four" in found


def test_a_module_stands_for_what_no_function_names():
    names = [(True, "a"), (False, "a.f")]
    assert equations.preferred(names) == ["a.f"]
    assert equations.preferred(names[:1]) == ["a"]


def test_markers_are_read_with_all_their_labels():
    code = '@pytest.mark.equation("eq-a", "eq-b")\n@pytest.mark.slow\ndef test_x(): pass'
    assert equations.marked(ast.parse(code).body[0]) == ["eq-a", "eq-b"]


def test_the_figure_is_the_one_that_names_the_equation_or_the_next():
    first, second = (
        {"name": f"fig-{n}", "caption": c} for n, c in (("a", "x"), ("b", "eq-part-one"))
    )
    found = equations.places([Piece(PAGE), Piece(figure=first), Piece(figure=second)])
    assert [place.labels for place in found] == [(), (), ("eq-part-one",), ("eq-part-two",)]
    assert equations.figure_of("eq-part-one", found) == "fig-b"
    assert equations.figure_of("eq-part-two", found) == "fig-a"
    assert equations.figure_of("eq-part-two", []) == ""


def test_the_page_has_a_table_for_each_chapter_with_links_both_ways(book):
    sys.path.append(str(ROOT / "book" / "_ext"))
    import equation_map

    lines = equation_map.lines_of(book, ROOT)
    chapters = {row.docname for row in book}
    assert sum(line.startswith("**{doc}") for line in lines) == len(chapters)
    (line,) = (line for line in lines if "`eq-looped-bptt`" in line)
    assert "#map-eq-looped-bptt" in line
    assert "{py:obj}`~unrolled.looped.theory.loop_gradients`" in line
    assert "tests/looped/test_theory.py#L" in line

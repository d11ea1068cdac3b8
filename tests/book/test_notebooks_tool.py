"""The command `notebooks.py`: what it generates, what it refuses, and the house rules."""

from __future__ import annotations

import re
from pathlib import Path

import chapters
import house_rules
import nbformat
import pytest
import yaml
from index import build_index, read_notebook
from parameters import NotebookError
from toc import notebook_sources

import notebooks


@pytest.fixture
def book(mini_copy: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a small book without committed rows: a number is asked of this function instead."""
    monkeypatch.setattr(notebooks, "quote", lambda query: "1.23")
    return mini_copy


def problems(book: Path) -> list[str]:
    return [*notebooks.stale(book), *notebooks.orphans(book)]


# --- sync and check -------------------------------------------------------------------------


def test_check_fails_until_sync_has_run(book: Path):
    command = "run `python book/tools/notebooks.py sync`"
    assert problems(book) == [
        f"{name} is out of step with its source: {command}"
        for name in (
            *("notebooks/part/everything.ipynb", "notebooks/part/second.ipynb"),
            *("README.md", "book/index.md"),
        )
    ]
    assert notebooks.sync(book) == 0
    assert problems(book) == []


def test_sync_twice_changes_nothing(book: Path, capsys):
    notebooks.sync(book)
    before = {path: path.read_bytes() for path in book.rglob("*") if path.is_file()}
    capsys.readouterr()
    notebooks.sync(book)
    assert capsys.readouterr().out == ""
    assert {path: path.read_bytes() for path in book.rglob("*") if path.is_file()} == before


STALE = {
    "notebooks/part/second.py": ("math.pi", "math.e", "notebooks/part/second.ipynb"),
    "README.md": ("Every construct, once.", "Something else.", "README.md"),
    "book/index.md": ("3 s", "4 s", "book/index.md"),
    "notebooks/chapters.yml": ("Another chapter.", "A chapter.", "README.md"),
    "notebooks/part/everything.py": ("Everything with", "All with", "README.md"),
    "pyproject.toml": ("someone/mini", "else/mini", "notebooks/part/everything.ipynb"),
}


@pytest.mark.parametrize("name", STALE)
def test_check_notices_every_change(book: Path, name: str):
    notebooks.sync(book)
    old, new, file = STALE[name]
    text = (book / name).read_text()
    assert old in text
    (book / name).write_text(text.replace(old, new))
    assert any(problem.startswith(f"{file} is out of step") for problem in problems(book))


def test_equation_added_before_a_notebook_changes_its_numbers(book: Path):
    notebooks.sync(book)
    page = book / "notebooks/part/second.py"
    page.write_text(page.read_text().replace("# $$\n# z", "# $$\n# a\n# $$ (eq-new)\n#\n# $$\n# z"))
    notebooks.sync(book)
    assert r"z = 1\n\\tag{3.2}" in page.with_suffix(".ipynb").read_text().replace('",\n    "', "")


def test_check_reports_everything_and_exits_with_1(book: Path, capsys):
    assert notebooks.main(["check"], book) == 1
    errors = capsys.readouterr().err
    assert "second.ipynb is out of step" in errors
    assert "notebooks/part/second.py: 0 exercises, at least 5" in errors


def test_notebook_without_source_is_reported(book: Path):
    notebooks.sync(book)
    (book / "notebooks/part/old.ipynb").write_text("{}")
    assert problems(book) == ["notebooks/part/old.ipynb has no source beside it: delete it"]


def test_one_wrong_notebook_does_not_keep_the_others_from_being_written(book: Path, capsys):
    source = book / "notebooks/part/second.py"
    source.write_text(source.read_text().replace("{eq}`eq-everything`", "{eq}`eq-lost`"))
    assert notebooks.sync(book) == 1
    assert "second.py, cell 1" in capsys.readouterr().err
    assert (book / "notebooks/part/everything.ipynb").is_file()
    assert not (book / "notebooks/part/second.ipynb").exists()


def test_notebook_that_no_page_shows_is_an_error(book: Path):
    (book / "notebooks/part/lost.py").write_text("# %% [markdown]\n# (l)=\n# # Lost\n")
    assert any(
        problem == "notebooks/part/lost.ipynb: this notebook is not in _toc.yml"
        for problem in problems(book)
    )


# --- Tables ---------------------------------------------------------------------------------


def test_tables_show_title_times_and_links(book: Path):
    notebooks.sync(book)
    readme = (book / "README.md").read_text()
    row = next(line for line in readme.split("\n") if "Every construct" in line)
    assert row.startswith("| [Everything with $x$](https://someone.github.io/mini/notebooks/part/")
    assert "| Every construct, once. | 3 s | 1 min | [![Open in Colab](" in row
    assert readme.startswith("# Mini\n")
    assert readme.endswith("\nThe end.\n")
    landing = (book / "book/index.md").read_text()
    assert "| {doc}`/notebooks/part/everything` |" in landing
    assert not re.search(r"!\[[^\]]*\]\(https?:", landing)  # the site loads nothing from elsewhere


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"notebooks/part/second": None}, "has no entry for notebooks/part/second"),
        ({"notebooks/part/none": {}}, "names the unknown notebook notebooks/part/none"),
        ({"notebooks/part/second": {"summary": "x"}}, "colab_minutes, live_seconds"),
    ],
)
def test_chapters_and_notebooks_agree(book: Path, change: dict, message: str):
    file = book / "notebooks/chapters.yml"
    entries = yaml.safe_load(file.read_text()) | change
    kept = {name: entry for name, entry in entries.items() if entry is not None}
    file.write_text(yaml.safe_dump(kept))
    with pytest.raises(chapters.ChapterError, match=message):
        chapters.read_chapters(build_index(book), book)


@pytest.mark.parametrize("text", ["no marker", "<!-- chapters:end --> <!-- chapters:start -->"])
def test_page_without_markers_is_an_error(text: str):
    with pytest.raises(chapters.ChapterError, match=r"README\.md needs one line"):
        chapters.with_table(text, "table", "README.md")


# --- run ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["second", "part/second", "notebooks/part/second", "notebooks/part/second.ipynb"]
)
def test_notebook_is_chosen_by_any_form_of_its_name(book: Path, name: str):
    assert notebooks.select([name], book) == [book / "notebooks/part/second.py"]


def test_unknown_name_is_an_error(book: Path):
    with pytest.raises(NotebookError, match=r"no notebook 'cond'; there are part/everything"):
        notebooks.select(["cond"], book)


def test_notebooks_come_in_the_order_of_the_book(book: Path):
    assert [path.stem for path in notebook_sources(book)] == ["everything", "second"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "STEP=1"], "unknown parameter 'STEP'"),
        (["--set", "STEPS=1"], "notebooks/part/second: unknown parameter 'STEPS'"),
        (["everything", "--set", "STEPS=many"], "STEPS is a int, not 'many'"),
        (["nothing"], "no notebook 'nothing'"),
    ],
)
def test_wrong_arguments_end_a_run_before_it_starts(book: Path, capsys, arguments, message):
    assert notebooks.main(["run", *arguments], book) == 1
    assert message in capsys.readouterr().err
    assert not (book / "_build").exists()


@pytest.mark.parametrize("arguments", [["--preset", "huge"], ["--set", "X"], ["--set", "1=2"]])
def test_wrong_options_are_refused(arguments: list[str], capsys):
    with pytest.raises(SystemExit):
        notebooks.main(["run", *arguments])
    assert "run: error" in capsys.readouterr().err


# --- House rules ----------------------------------------------------------------------------


EXERCISE = """\
# %% [markdown]
# :::{{exercise}} {kind}: a question
# :label: ex-{number}
#
# Say it.
# :::

# %% tags=["exercise"]
answer = None
checks.question(answer)

# %% [markdown]
# :::{{solution}} ex-{number}
# :class: dropdown
#
# ```python
# answer = {number}
# ```
# :::
"""
GOOD = """\
# %% [markdown]
# (good)=
# # Good

# %% tags=["setup"]
from unrolled import checks

# %% tags=["parameters"]
PRESET = "live"
SEED = 0

# %%
print(PRESET, SEED)

""" + "\n".join(
    EXERCISE.format(kind=kind, number=number)
    for number, kind in enumerate(["Predict", "Derive", "Implement", "Extend", "Derive"])
)


def rules(tmp_path: Path, text: str) -> list[str]:
    source = tmp_path / "n.py"
    source.write_text(text)
    return house_rules.problems(read_notebook(source))


def test_good_notebook_breaks_no_rule(tmp_path: Path):
    assert rules(tmp_path, GOOD) == []


BREAKS = {
    "title": ("# (good)=\n", "", "must start with (label)="),
    "setup": ('tags=["setup"]', "", "0 cells are tagged setup"),
    "tag": ('tags=["setup"]', 'tags=["setup", "hide"]', "unknown tag hide"),
    "parameters": ('tags=["parameters"]', "", "0 cells are tagged parameters"),
    "literal": ("SEED = 0", "SEED = int(0)", "is not NAME = literal"),
    "seed": ("SEED = 0", "SEED = 1", "must set SEED = 0"),
    "preset": ('PRESET = "live"', 'PRESET = "smoke"', "must set PRESET = 'live'"),
    "unread": ("print(PRESET, SEED)", "print(PRESET)", "SEED is declared, but no cell reads it"),
    "long cell": ("print(PRESET, SEED)", "print(PRESET, SEED)\n" * 16, "16 lines of code, at most"),
    "few": (EXERCISE.format(kind="Predict", number=0), "", "4 exercises, at least 5"),
    "kind": ("Extend:", "Enjoy:", "must start with one of Predict"),
    "missing kind": ("Extend:", "Derive:", 'no exercise with a title that starts with "Extend:"'),
    "label": (":label: ex-0", ":nonumber:", "has no :label:"),
    "stub": ('tags=["exercise"]', "", "no code cell tagged exercise"),
    "check": ("checks.question(answer)", "answer", "must call a function of `checks`"),
    "solution": ("```python", "```text", "no solution with a ```python block"),
    "hidden": ("# :class: dropdown\n", "", "needs :class: dropdown"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_broken_rule_is_reported(tmp_path: Path, name: str):
    old, new, message = BREAKS[name]
    assert old in GOOD
    found = rules(tmp_path, GOOD.replace(old, new))
    assert any(message in problem for problem in found), found


def test_code_of_all_cells_is_counted(tmp_path: Path):
    cells = "\n".join("# %%\n" + "x = 1\n# why\n\n" * 15 for _ in range(17))
    assert any(
        "lines of code in all, at most 250" in p for p in rules(tmp_path, f"{GOOD}\n{cells}")
    )


def test_outputs_are_reported():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1", execution_count=1)])
    assert "cell 1: has outputs" in house_rules.problems(notebook)


def test_exercises_are_found(tmp_path: Path):
    source = tmp_path / "n.py"
    source.write_text(GOOD)
    notebook = read_notebook(source)
    found = house_rules.exercises(notebook)
    assert [item["label"] for item in found] == [f"ex-{number}" for number in range(5)]
    assert found[3]["solution"] == "answer = 3\n"
    assert notebook.cells[found[3]["stub"]].source.startswith("answer = None")

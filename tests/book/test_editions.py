"""The editions for a course: stubs follow from solutions, and both meet their checkers."""

from __future__ import annotations

import ast
import io
import re
import zipfile
from functools import cache
from pathlib import Path

import answers
import bundle
import editions
import nbformat
import nbgrader_cells
import pytest
import teaching
from answers import BEGIN, END, TODO, marked_lines, stub_of, wanted, with_marks, without_marks
from colab_copy import write_text
from editions import Options, edition_of, read_exercises
from exercise_cells import ROOT, each_exercise, each_source, names_after, verdict
from house_rules import KINDS
from index import BookError, build_index, read_notebook, tags_of
from jupytext import reads, writes
from myst import blocks, split_inline
from parameters import code_cells, declared

import notebooks
from unrolled import checks

index = cache(lambda: build_index(ROOT))


def without_todo(stub: str) -> str:
    return "\n".join(line for line in stub.split("\n") if TODO not in line).strip("\n")


# --- Every exercise of the book -------------------------------------------------------------


@each_exercise
def test_stub_is_the_solution_without_its_marked_lines(source: Path, exercise: editions.Exercise):
    student, instructor = exercise.answer("student"), exercise.answer("instructor")
    assert without_todo(student) == without_marks(instructor)
    assert TODO in student
    assert instructor.count(BEGIN) == instructor.count(END) >= 1
    unmarked = [line for line in instructor.split("\n") if line.strip() not in (BEGIN, END)]
    assert "\n".join(unmarked) == exercise.solution.strip("\n")


@each_exercise
def test_stub_has_the_signatures_of_the_page(source: Path, exercise: editions.Exercise):
    assert signatures(exercise.answer("student")) == signatures(exercise.stub)


def signatures(code: str) -> dict[str, str]:
    """Return what a cell defines, with the arguments of functions."""
    found = {}
    for node in ast.parse(code).body:
        for name in answers.names_of(node):
            found[name] = ast.unparse(node.args) if isinstance(node, ast.FunctionDef) else ""
    return found


@each_exercise
def test_stub_fails_with_a_helpful_sentence(source: Path, exercise: editions.Exercise):
    result = verdict(exercise, names_after(source, exercise.answer("student")))
    assert result.passed is False
    assert "there is no answer yet" in result.message


@each_exercise
def test_instructors_cell_passes(source: Path, exercise: editions.Exercise):
    result = verdict(exercise, names_after(source, exercise.answer("instructor")))
    assert result.passed is True, result


@each_exercise
def test_a_solution_has_nothing_to_find_outside_its_functions(
    source: Path, exercise: editions.Exercise
):
    """nbgrader puts an error in the place of marked lines, which must not stop the definition."""
    lines = marked_lines(exercise.solution, wanted(exercise.stub))
    functions = any(line.text.startswith("def ") for line in lines)
    outside = [line.text for line in lines if line.marked and line.text[:1].strip()]
    assert not (functions and outside)


@each_exercise
def test_the_example_of_a_checker_is_among_its_hints(source: Path, exercise: editions.Exercise):
    check = getattr(checks, exercise.checker)
    hints = answers.hints(check)
    assert hints
    for said in re.findall(r"Not yet: (.*?)(?:\.\.\.)?$", check.__doc__ or "", re.MULTILINE):
        general = bool(answers.PLAIN.search(said))
        assert general or any(begins_alike(hint, said) for hint in hints), said


def begins_alike(hint: str, said: str) -> bool:
    start = hint.split("…")[0]  # what follows is filled in when it is said
    return start in said or start.startswith(said)


@each_source
@pytest.mark.parametrize("edition", editions.EDITIONS)
def test_edition_has_the_chapter_and_only_its_own_answers(source: Path, edition: str):
    chapter = read_notebook(source)
    made = edition_of(chapter, Options(edition))
    exercises = read_exercises(chapter).values()
    text = "\n".join(cell.source for cell in made.cells)
    assert (BEGIN in text) == (edition == "instructor")
    assert (TODO in text) == (edition == "student")
    assert "{solution}" not in text
    assert text.count("**Solution.**") == (len(exercises) if edition == "instructor" else 0)
    kept = [c.source for c in chapter.cells if "exercise" not in tags_of(c)]
    kept = [source for source in kept if "{solution}" not in source]
    assert set(kept) <= {cell.source for cell in made.cells}
    assert all(exercise.check in text for exercise in exercises)


@each_source
def test_student_file_is_valid_and_graded(source: Path):
    text = editions.student_text(source, index(), Options("student", True))
    notebook = nbformat.reads(text, 4)
    nbformat.validate(notebook)
    assert declared(notebook)["PRESET"] == "live"
    assert "Student edition" in notebook.cells[0].source
    assert "google.colab" in code_cells(notebook)[0].source
    assert nbgrader_cells.problems(notebook) == []
    total = sum(
        nbgrader_cells.POINTS[exercise.title.partition(":")[0]]
        for exercise in read_exercises(read_notebook(source)).values()
    )
    points = [cell.metadata.get("nbgrader", {}).get("points", 0) for cell in notebook.cells]
    assert sum(points) == total >= len(KINDS)


@each_source
def test_instructors_source_survives_the_way_to_a_file(source: Path):
    """The run reads what `write_source` writes; cells, tags and grading must arrive."""
    made = edition_of(read_notebook(source), Options("instructor", True))
    back = reads(writes(made, fmt="py:percent"), fmt="py:percent")
    assert [(c.cell_type, c.source, tags_of(c)) for c in back.cells] == [
        (c.cell_type, c.source, tags_of(c)) for c in made.cells
    ]
    assert [dict(c.metadata.get("nbgrader", {})) for c in back.cells] == [
        dict(c.metadata.get("nbgrader", {})) for c in made.cells
    ]


# --- What a chapter owes its reader ---------------------------------------------------------


@each_source
def test_chapter_opens_with_what_you_can_do_after_it(source: Path):
    assert 4 <= len(teaching.goals(read_notebook(source))) <= 8


@each_source
def test_chapter_closes_with_five_questions_whose_answers_are_folded(source: Path):
    cells = read_notebook(source).cells
    places = [i for i, cell in enumerate(cells) if "## Check yourself" in cell.source]
    assert len(places) == 1
    assert re.match("## (Where this came from|Provenance)", cells[places[0] + 1].source)
    text = cells[places[0]].source
    assert re.findall(r"^\*\*(\d)\.\*\*", text, re.MULTILINE) == list("12345")
    folded = [block.directive for block in blocks(text) if block.directive]
    assert [(d.name, d.argument) for d in folded] == [("dropdown", "Answer")] * 5
    assert all(len(directive.body) > 20 for directive in folded)


# --- The rule -------------------------------------------------------------------------------


def test_docstrings_and_long_signatures_stay():
    solution = 'def f(\n    x,\n    y,\n):\n    """Add."""\n    z = y\n\n    return x + z\n'
    names = {"f": "their sum"}
    lines = marked_lines(solution, names)
    stub = 'def f(\n    x,\n    y,\n):\n    """Add."""\n    ...  # TODO: their sum'
    assert stub_of(lines, names) == stub
    assert with_marks(lines).split("\n")[5:] == [
        *(f"    {BEGIN}", "    z = y", "", "    return x + z", f"    {END}"),
    ]


def test_what_a_stub_does_not_name_is_left_out():
    solution = "import os\n\n\ndef helper():\n    return 1\n\n\ndef f():\n    return helper()\n"
    names = {"f": "one"}
    assert stub_of(marked_lines(solution, names), names) == "def f():\n    ...  # TODO: one"


def test_values_are_asked_for_one_by_one():
    names = wanted("a = None  # first\nb = None")
    assert names == {"a": "first", "b": "your code"}
    stub = stub_of(marked_lines("c = 1\na = c + 1\nb = a\nb += 1", names), names)
    assert stub == "a = None  # TODO: first\nb = None  # TODO: your code"


@pytest.mark.parametrize(
    ("solution", "words"),
    [("def g(): ...", "does not define f"), ("def f(): return 1", "below the signature")],
)
def test_a_solution_that_has_no_stub_is_refused(solution: str, words: str):
    with pytest.raises(BookError, match=words):
        marked_lines(solution, {"f": "one"})


def test_a_solution_needs_a_cell_of_its_own():
    text = ":::{solution} ex\n:class: dropdown\n```python\na = 1\n```\n:::\n\nAnd more."
    with pytest.raises(BookError, match="a cell of its own"):
        editions.solution_of(nbformat.v4.new_markdown_cell(text))


def test_hints_of_a_checker_are_its_own_sentences():
    assert answers.hints(checks.descent_uniform_width)[1] == (
        "did you give the whole width? Asked for is the half, from 0 to the edge."
    )
    assert not any("function is asked for" in hint for hint in answers.hints(checks.looped_bptt))


def test_a_hint_is_shown_as_it_is_said():
    text = editions.plain("a_1 * b * c | d, `x` and $5 $6 [a](b)")
    assert list(split_inline(text)) == [text]


# --- nbgrader -------------------------------------------------------------------------------


def cell_with(**fields):
    return nbgrader_cells.metadata("ex-a", grade=True) | {"points": 1} | fields


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (cell_with(schema_version=2), "schema_version is not 3"),
        (cell_with(grade_id="a b"), "grade_id"),
        (cell_with(grade_id=""), "grade_id"),
        (cell_with(points=-1), "points are negative"),
        (cell_with(points=True), "points is of the wrong type"),
        (cell_with(locked=1), "locked is of the wrong type"),
        (cell_with(extra=1), "extra is unknown"),
        (cell_with(task=True), "a task is a Markdown cell"),
        (nbgrader_cells.metadata("ex-a", grade=True), "points are missing"),
        ({"schema_version": 3, "grade": True, "solution": False}, "locked is missing"),
    ],
)
def test_metadata_that_nbgrader_rejects_is_found(fields: dict, problem: str):
    assert nbgrader_cells.cell_problems("code", fields) == [problem]
    with pytest.raises(BookError, match="nbgrader"):
        nbgrader_cells.with_metadata(nbformat.v4.new_code_cell(""), fields)


def test_a_name_is_used_once():
    fields = nbgrader_cells.solution_metadata("ex-a")
    cells = [nbformat.v4.new_code_cell("", metadata={"nbgrader": fields}) for _ in range(2)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    assert nbgrader_cells.problems(notebook) == ["cell 2: duplicate grade_id ex-a"]


def test_a_markdown_cell_is_graded_and_solution_or_neither():
    fields = nbgrader_cells.solution_metadata("ex-a")
    assert nbgrader_cells.cell_problems("markdown", fields)[0].startswith("a Markdown cell")


@pytest.mark.parametrize(("answer", "raises"), [("math.sqrt(2)", False), ("1.0", True)])
def test_a_graded_cell_raises_unless_the_answer_is_right(answer: str, raises: bool):
    exercise = editions.Exercise("ex", "Predict: x", "answer = None", CHECK, "answer = 1")
    names = {"answer": 2**0.5 if answer.startswith("math") else 1.0, "checks": checks}
    if raises:
        with pytest.raises(AssertionError, match="Not yet: did you"):
            exec(exercise.test(True), names)
    else:
        exec(exercise.test(True), names)


CHECK = "checks.descent_random_text(answer)"


# --- The archive and the command ------------------------------------------------------------


def test_archive_has_the_same_bytes_each_time_and_no_date():
    files = {"b/x.ipynb": "{}", "a.md": "é"}
    data = bundle.zip_bytes(files)
    assert data == bundle.zip_bytes(dict(reversed(files.items())))
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.namelist() == ["a.md", "b/x.ipynb"]
        assert {info.date_time for info in archive.infolist()} == {bundle.EPOCH}
        assert archive.read("a.md").decode() == "é"


@pytest.fixture
def course(mini_copy: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a small book with what an edition takes along."""
    for module in (notebooks, editions):
        monkeypatch.setattr(module, "quote", lambda query: "1.23")
    for name in ("CITATION.cff", "LICENSE"):
        (mini_copy / name).write_text(f"{name}\n")
    return mini_copy


def test_command_writes_a_folder_and_its_zip(course: Path, capsys):
    old = course / "_build/student/part/old.ipynb"
    old.parent.mkdir(parents=True)
    old.write_text("{}")
    assert editions.main(["student", "second"], course) == 0
    assert "1 notebooks: _build/unrolled-student.zip" in capsys.readouterr().out
    assert not old.exists()
    folder = course / "_build/student"
    names = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    assert names == ["CITATION.cff", "LICENSE", "README.md", "part/second.ipynb"]
    with zipfile.ZipFile(course / "_build/unrolled-student.zip") as archive:
        assert archive.namelist() == [f"student/{name}" for name in names]
        for name in names:
            assert archive.read(f"student/{name}").decode() == (folder / name).read_text()
    first = (course / "_build/unrolled-student.zip").read_bytes()
    assert editions.main(["student", "second"], course) == 0
    assert (course / "_build/unrolled-student.zip").read_bytes() == first


def test_command_names_what_it_does_not_know(course: Path, capsys):
    assert editions.main(["student", "lost"], course) == 1
    assert "no notebook 'lost'" in capsys.readouterr().err


def test_outputs_of_a_run_are_kept(course: Path):
    source = course / "notebooks/part/second.py"
    notebook = edition_of(read_notebook(source), Options("instructor"))
    output = nbformat.v4.new_output("stream", text="Correct.\n")
    for number, cell in enumerate(code_cells(notebook), start=1):
        cell.update(outputs=[output], execution_count=number)
    context = editions.context_of(source, build_index(course), course)
    done = editions.finished(notebook, context, Options("instructor"))
    nbformat.validate(nbformat.reads(write_text(done), 4))
    ran = [cell for cell in code_cells(done) if "colab-setup" not in tags_of(cell)]
    assert [cell.outputs for cell in ran] == [[output]] * len(code_cells(notebook))

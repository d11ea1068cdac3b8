"""The page for teachers: what it gathers is in step, and its plan leaves out no chapter."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import teaching
import yaml
from chapters import read_chapters
from index import BookError, build_index, read_notebook
from myst import blocks
from toc import source_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / teaching.PAGE).read_text("utf8")
CHAPTERS = read_chapters(build_index(ROOT), ROOT)


def test_page_is_in_step_with_the_chapters(capsys):
    assert teaching.main(["check"]) == 0, capsys.readouterr().err


def test_every_goal_of_every_chapter_is_on_the_page():
    for chapter in CHAPTERS:
        found = teaching.goals(read_notebook(source_of(chapter.docname, ROOT)))
        assert len(found) >= 4
        assert all(f"- {goal}\n" in PAGE for goal in found)


def test_plan_has_every_chapter_in_a_week():
    plan = PAGE.split("## Six weeks")[1].split("*Shorter.*")[0]
    assert re.findall(r"^\| (\d) \|", plan, re.MULTILINE) == list("123456")
    of_papers = [c.docname for c in CHAPTERS if not c.docname.startswith("notebooks/together/")]
    assert [name for name in of_papers if f"`/{name}`" not in plan] == []


def test_chapters_that_come_first_do_come_first():
    order = [chapter.docname for chapter in CHAPTERS]
    for name, need in teaching.read_needs().items():
        assert all(order.index(before) < order.index(name) for before in need.chapters)


def test_every_question_of_the_self_test_has_a_folded_answer():
    text = PAGE.split("## The self-test")[1].split("(teaching-goals)=")[0]
    questions = teaching.QUESTION.findall(text)
    assert questions == [chr(ord("A") + i) for i in range(len(questions))]
    answers = [block.directive for block in blocks(text) if block.directive]
    assert [answer.name for answer in answers] == ["dropdown"] * len(questions)


def test_points_by_kind_are_those_of_the_metadata():
    said = ", ".join(f"{kind} {points}" for kind, points in teaching.POINTS.items())
    assert f"Points by kind: {said}." in PAGE


def test_entry_to_cite_is_that_of_the_citation_file():
    facts = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf8"))
    entry = teaching.citation([], ROOT)
    assert f"{{{facts['title']}}}" in entry
    assert facts["url"] in entry
    assert facts["version"] in entry
    assert entry in PAGE


def test_commands_of_the_page_are_there():
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf8"), re.MULTILINE)
    assert set(re.findall(r"make ([a-z]+)", PAGE.split("(teaching-editions)=")[1])) <= set(targets)
    command = [sys.executable, str(ROOT / "book/tools/editions.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "--nbgrader" in done.stdout


# --- The tool -------------------------------------------------------------------------------


def notebook(text: str) -> nbformat.NotebookNode:
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text)])


def test_goals_end_where_their_list_ends():
    text = "# T\n\nAfter this you can\n\n- a *b*;\n- c\n  d.\n\n| x | y |\n- no goal\n"
    assert teaching.goals(notebook(text)) == ["a *b*", "c d"]


def test_a_chapter_without_goals_is_an_error():
    with pytest.raises(BookError, match="After this you can"):
        teaching.goals(notebook("# T\n\nWelcome."))


@pytest.mark.parametrize("text", ["", "<!-- a:end --><!-- a:start -->", "<!-- a:start -->"])
def test_marks_must_be_there_once_and_in_order(text: str):
    with pytest.raises(BookError, match="needs one line"):
        teaching.with_block(text, "a", "new")


@pytest.fixture
def course(mini_copy: Path) -> Path:
    """Return a small book with a page for teachers."""
    names = [c.docname for c in read_chapters(build_index(mini_copy), mini_copy)]
    needs = {n.removeprefix("notebooks/"): {"after": [], "topics": ["A"]} for n in names}
    (mini_copy / teaching.DATA).write_text(yaml.safe_dump(needs))
    (mini_copy / teaching.PAGE).write_text("**A. Sums.** What is 1 + 1?\n")
    return mini_copy


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda needs: needs.popitem(), "has no entry for"),
        (lambda needs: needs.update(lost={"after": [], "topics": []}), "unknown chapter"),
        (lambda needs: next(iter(needs.values()))["topics"].append("Z"), "lacks: Z"),
        (lambda needs: [need["topics"].clear() for need in needs.values()], "asks nobody"),
    ],
)
def test_what_does_not_fit_together_is_named(course: Path, change, words: str):
    docnames = {c.docname for c in read_chapters(build_index(course), course)}
    teaching.check_needs(docnames, course)
    needs = yaml.safe_load((course / teaching.DATA).read_text())
    change(needs)
    (course / teaching.DATA).write_text(yaml.safe_dump(needs))
    with pytest.raises(BookError, match=words):
        teaching.check_needs(docnames, course)

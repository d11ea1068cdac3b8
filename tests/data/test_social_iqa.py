"""Social IQa: what is in the file, and that lines of another form are refused."""

import json
from collections import Counter

import pytest

from unrolled.data.fetch import FetchError
from unrolled.data.social_iqa import SOCIAL_IQA, parse_question, social_iqa

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def questions():
    """The questions; skip without a network at first, but fail on wrong bytes."""
    try:
        return social_iqa()
    except FetchError as error:
        if any("SHA" in str(failure).upper() for failure in error.failures.values()):
            raise
        pytest.skip(f"not cached, and cannot be fetched: {error}")


def test_every_question_has_three_answers_and_comes_once(questions):
    assert len(questions) == len(set(questions)) == 2_203
    assert all(q.text.endswith("?") for q in questions)
    assert all(len(q.choices) == 3 and all(map(str.strip, q.choices)) for q in questions)


def test_no_answer_is_favoured(questions):
    assert Counter(q.answer for q in questions) == {0: 717, 1: 746, 2: 740}


def test_the_first_question_is_the_one_in_the_file(questions):
    assert questions[0].text.startswith("bailey was a nice person so she called the family")
    assert questions[0].choices == ("talk to the family", "hate bailey", "thank bailey")
    assert questions[0].answer == 2


def test_all_sources_promise_the_same_file():
    assert len(SOCIAL_IQA.sources) == 2
    assert SOCIAL_IQA.sources[1].sha256 == SOCIAL_IQA.sha256


@pytest.mark.parametrize(
    ("content", "ideal"),
    [("No answers?", "A"), ("Two? A: one; B: two.", "A"), ("Why? A: x; B: y; C: z.", "D")],
)
def test_another_form_is_refused(content, ideal):
    line = json.dumps({"input": [{"role": "user", "content": content}], "ideal": ideal})
    with pytest.raises(ValueError, match="must have a question and answers A, B and C"):
        parse_question(line)


def test_an_answer_may_hold_stops_and_semicolons():
    content = "Ann ran. Why? A: to win. Or not; B: fun; really; C: the U.S."
    line = json.dumps({"input": [{"role": "user", "content": content}], "ideal": "A"})
    assert parse_question(line).choices == ("to win. Or not", "fun; really", "the U.S")

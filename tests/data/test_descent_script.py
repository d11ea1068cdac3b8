"""The script that fetches and checks what part descent needs."""

import importlib.util
from pathlib import Path

import pytest

from unrolled.data import reviews

FOLDER = Path(__file__).parents[2] / "data_scripts"


def load(name):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SCRIPT = load("descent")


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("UNROLLED_CACHE", str(tmp_path))
    monkeypatch.setenv("UNROLLED_OFFLINE", "1")


def test_what_succeeds_is_printed_though_something_fails(monkeypatch, capsys):
    monkeypatch.setitem(SCRIPT.CHECKS, "reviews", lambda: ["one", "two"])
    assert SCRIPT.main(["minilm", "reviews", "--check"]) == 1
    printed = capsys.readouterr()
    assert printed.out.splitlines()[1:] == ["one", "two"]
    assert "config.json is not in the cache and UNROLLED_OFFLINE is set" in printed.err
    assert SCRIPT.main(["reviews"]) == 0


def test_other_texts_are_told(monkeypatch):
    other = reviews.LabelledTexts("movie_reviews", ("rotten", "fresh"), ())
    monkeypatch.setattr(reviews, "movie_reviews", lambda: other)
    with pytest.raises(
        ValueError, match=f"movie_reviews has the content hash {other.content_hash}"
    ):
        SCRIPT.check_reviews()


def test_an_unknown_name_is_told(capsys):
    with pytest.raises(SystemExit):
        SCRIPT.main(["tv"])
    assert "there are only reviews, video, minilm, smollm2" in capsys.readouterr().err


def test_the_readme_has_every_content_hash():
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert all(found in readme for found in SCRIPT.CONTENT_HASHES.values())

"""Tables of the hub: real clients against a hub on localhost, and against copies in folders."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import datasets
import fake_hub
import huggingface_hub
import pytest
import tiny_repositories

from unrolled.data import classification, command, corpora, hub
from unrolled.data.catalog import DATA_SETS
from unrolled.data.fetch import FetchError, OfflineError
from unrolled.data.hub import HubTable, lock_file, recorded, stream, table

TINY = HubTable("owner/tiny", "plain_text", ("text", "label"))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("UNROLLED_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("UNROLLED_OFFLINE", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def copy(tmp_path):
    return tiny_repositories.imdb(tmp_path / "copy")


@pytest.fixture
def server(copy):
    server = fake_hub.start({"owner/tiny": copy})
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def hub_here(server, tmp_path, monkeypatch):
    """Let the clients in this process ask the server; they read its address when imported."""
    constants = huggingface_hub.constants
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, server.endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "ENDPOINT", server.endpoint)
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", server.endpoint)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "files of the hub"))
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 2)
    monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
    monkeypatch.chdir(tmp_path)
    return server


# From a hub

PROCESS = """
from unrolled.data.hub import HubTable, table
print(table(HubTable("owner/tiny", "plain_text", ("text", "label")), "train")[199])
"""


def test_another_process_is_led_to_the_hub_by_its_address(server, tmp_path):
    places = {"HF_ENDPOINT": server.endpoint, "HF_HOME": str(tmp_path / "home")}
    result = subprocess.run(
        [sys.executable, "-c", PROCESS],
        env={**os.environ, **places, "TQDM_DISABLE": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert "{'text': 'no heart at all, train 199', 'label': 1}" in result.stdout, result.stderr
    assert recorded("owner/tiny")["revision"] == server.commit


def test_a_table_is_loaded_once_and_recorded(hub_here, monkeypatch):
    assert len(table(TINY, "train")) == 200
    assert any("train-00000" in line for line in hub_here.asked)
    entry = recorded("owner/tiny")
    assert entry["revision"] == hub_here.commit
    facts = entry["tables"]["plain_text/train"]
    assert facts["rows"] == 200
    assert len(facts["sha256"]) == 64
    hub_here.asked.clear()
    monkeypatch.setenv("UNROLLED_OFFLINE", "1")
    assert table(TINY, "train")[199] == {"text": "no heart at all, train 199", "label": 1}
    assert hub_here.asked == []


def test_the_recorded_commit_is_loaded_though_there_is_a_newer_one(hub_here):
    table(TINY, "train")
    first, hub_here.commit = hub_here.commit, "d" * 40
    hub_here.asked.clear()
    assert len(table(TINY, "test")) == 40
    assert hub_here.asked
    assert all(hub_here.commit not in line for line in hub_here.asked)
    assert recorded("owner/tiny")["revision"] == first
    assert set(recorded("owner/tiny")["tables"]) == {"plain_text/train", "plain_text/test"}


def test_a_pinned_commit_is_loaded_and_recorded_though_there_is_a_newer_one(hub_here):
    pinned = replace(TINY, revision="a" * 40)
    assert len(table(pinned, "train")) == 200
    assert recorded("owner/tiny")["revision"] == "a" * 40
    assert any("a" * 40 in line for line in hub_here.asked)
    assert "GET api/datasets/owner/tiny" not in hub_here.asked  # which commit is the newest?
    hub_here.asked.clear()
    table(TINY, "test")  # the recorded commit, now
    assert "GET api/datasets/owner/tiny" not in hub_here.asked


def test_the_command_says_which_commit_is_recorded_and_where(cache):
    assert command._commit("imdb") == command._commit("moby_dick") == []
    cache.mkdir()
    revision = classification.IMDB.revision
    lock_file().write_text(json.dumps({"stanfordnlp/imdb": {"revision": revision, "tables": {}}}))
    (told,) = command._commit("imdb")
    assert told == f"  commit {revision} of stanfordnlp/imdb, in {lock_file()}"
    assert command._commit("mnli") == []


@pytest.mark.parametrize("source", [classification.IMDB, classification.MNLI, corpora.WIKITEXT2])
def test_what_says_that_its_commit_is_pinned_has_one(source):
    sets = [found for found in DATA_SETS if found.source == f"hub:{source.repository}"]
    assert sets
    assert all(("commit pinned" in found.checksum) == bool(source.revision) for found in sets)


def test_another_content_at_the_same_commit_is_refused(hub_here, tmp_path, cache, copy):
    table(TINY, "train")
    shutil.rmtree(cache / "hub")
    shutil.rmtree(tmp_path / "files of the hub")
    tiny_repositories.imdb(copy, train=198)
    with pytest.raises(FetchError, match="is not what was loaded first") as caught:
        table(TINY, "train")
    assert str(lock_file()) in str(caught.value)
    assert not list((cache / "hub").rglob("*.arrow"))


@pytest.mark.usefixtures("hub_here")
def test_another_number_of_rows_than_published_is_refused():
    with pytest.raises(FetchError, match=r"has 200 rows at .* but 25,000 were published"):
        table(replace(TINY, rows={"train": 25_000}), "train")
    assert not lock_file().exists()


def test_a_stream_reads_what_is_asked_for(hub_here):
    rows, commit = stream(TINY, "train")
    assert next(iter(rows)) == {"text": "a film of rare grace, train 0", "label": 0}
    assert recorded("owner/tiny") == {"revision": commit, "tables": {}}
    assert commit == hub_here.commit


@pytest.mark.parametrize(
    ("refusal", "advice"),
    [
        ((403, "GatedRepo"), "accept the terms at https://huggingface.co/datasets/owner/tiny"),
        ((401, "GatedRepo"), "run `hf auth login`"),
        ((404, "RepoNotFound"), "look at https://huggingface.co/datasets/owner/tiny"),
    ],
)
@pytest.mark.parametrize("known", [False, True])
def test_a_refusal_says_what_to_do(hub_here, cache, refusal, advice, known):
    hub_here.refusal = refusal
    with pytest.raises(FetchError) as caught:
        table(TINY, "train", revision="c" * 40 if known else None)
    assert str(caught.value).startswith("owner/tiny could not be loaded from http://127.0.0.1")
    assert advice in str(caught.value)
    assert not list(cache.rglob("*.arrow"))


def test_a_hub_that_is_away_is_told(hub_here):
    hub_here.shutdown()
    hub_here.server_close()
    with pytest.raises(FetchError, match="check the network"):
        table(TINY, "train")


# From a copy


def test_a_copy_takes_the_place_of_the_hub(copy):
    found = table(TINY, "test", mirror=copy)
    assert found.column_names == ["text", "label"]
    assert found[0] == {"text": "a film of rare grace, test 0", "label": 0}
    assert not lock_file().exists()
    rows, revision = stream(TINY, "test", mirror=copy)
    assert next(iter(rows)) == found[0]
    assert revision.startswith("mirror-")


def test_a_changed_copy_is_another_table(copy):
    assert len(table(TINY, "train", mirror=copy)) == 200
    tiny_repositories.imdb(copy, train=100)
    assert len(table(TINY, "train", mirror=copy)) == 100


def test_a_damaged_table_is_loaded_anew(copy, cache):
    table(TINY, "test", mirror=copy)
    (arrow,) = cache.rglob("*.arrow")
    arrow.write_bytes(arrow.read_bytes()[:-100] + bytes(100))
    assert len(table(TINY, "test", mirror=copy)) == 40


def test_nothing_is_left_of_a_table_that_could_not_be_loaded(copy, cache, tmp_path):
    with pytest.raises(FetchError, match="copy all files of the repository"):
        table(HubTable("owner/tiny", "other", ("text",)), "train", mirror=copy)
    with pytest.raises(FetchError, match="could not be loaded"):
        table(HubTable("owner/tiny", "plain_text", ("review",)), "train", mirror=copy)
    (copy / "plain_text" / "test-00000-of-00001.parquet").write_bytes(b"no parquet")
    with pytest.raises(FetchError, match="could not be loaded"):
        table(TINY, "test", mirror=copy)
    assert not list(cache.rglob("*.arrow"))
    with pytest.raises(ValueError, match=r"mirror is .*, but must be a folder"):
        table(TINY, "test", mirror=tmp_path / "nowhere")


# Offline, and what is recorded


def test_offline_asks_no_hub(monkeypatch):
    monkeypatch.setenv("UNROLLED_OFFLINE", "1")
    for act in (table, stream):
        with pytest.raises(OfflineError, match=r"UNROLLED_OFFLINE is set(.|\n)*--mirror"):
            act(TINY, "train")
        with pytest.raises(OfflineError):
            act(TINY, "train", revision="e" * 40)


def test_a_full_disk_is_told_before_anything_is_loaded(monkeypatch, copy, cache):
    with pytest.raises(OSError, match="are needed in"):
        table(replace(TINY, num_bytes=10**18), "train", mirror=copy)
    assert not list(cache.rglob("*.arrow"))


def test_a_damaged_record_is_told(cache):
    cache.mkdir()
    for damaged in ("{", "[]"):
        lock_file().write_text(damaged)
        with pytest.raises(ValueError, match=r"data\.lock\.json is damaged"):
            recorded("owner/tiny")


def test_the_first_commit_stays_recorded(cache):
    hub._record("owner/tiny", "a" * 40, {"x": {"rows": 1}})
    hub._record("owner/tiny", "b" * 40, {"x": {"rows": 2}})
    hub._record("owner/tiny", "a" * 40, {"y": {"rows": 3}})
    hub._record("owner/other", "b" * 40)
    assert json.loads(lock_file().read_text()) == {
        "owner/tiny": {"revision": "a" * 40, "tables": {"x": {"rows": 1}, "y": {"rows": 3}}},
        "owner/other": {"revision": "b" * 40, "tables": {}},
    }


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HubTable("tiny", None, ("text",)), "repository is 'tiny'"),
        (lambda: HubTable("a/b", None, ()), "columns is empty"),
        (lambda: HubTable("a/b", None, ("text",), revision="main"), "revision is 'main'"),
        (lambda: table(TINY, "train", revision="main"), "revision is 'main'"),
    ],
)
def test_wrong_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_clients_are_only_needed_when_they_are_used(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ModuleNotFoundError, match=r"loading from the hub needs .* datasets"):
        table(TINY, "train")


# The labelled texts


def test_imdb_keeps_the_published_test_split(tmp_path):
    texts = classification.imdb(mirror=tiny_repositories.imdb(tmp_path / "imdb"))
    assert texts.classes == ("negative", "positive")
    counts = {split: count["examples"] for split, count in texts.counts().items()}
    assert counts["test"] == 40
    assert counts["train"] + counts["validation"] == 200
    assert 8 <= counts["validation"] <= 35
    assert texts.counts()["test"]["negative"] == 20
    assert {text.split(", ")[1].split()[0] for text in texts.texts("validation")} == {"train"}


def test_a_subset_is_spread_over_both_labels(tmp_path):
    copy = tiny_repositories.imdb(tmp_path / "imdb")
    small = classification.imdb(10, mirror=copy)
    assert {split: len(small.texts(split)) for split in small.splits} == dict.fromkeys(
        ("train", "validation", "test"), 10
    )
    for split in ("train", "test"):
        assert small.labels(split).float().mean() == pytest.approx(0.5, abs=0.1)
    whole = classification.imdb(mirror=copy)
    assert set(small.texts("train")) < set(whole.texts("train"))
    assert set(small.texts("validation")) <= set(whole.texts("validation"))


def test_copies_of_a_review_are_on_one_side():
    places = classification._by_place(["a b", "c", "a  b\n", *map(str, range(200))], 0.1)
    sides = {number: split for split, numbers in places.items() for number in numbers}
    assert sides[0] == sides[2]
    # 203 places in [0, 1), below 0.1 with probability 0.1
    assert 5 < len(places["validation"]) < 40


@pytest.mark.parametrize("evaluation", ["matched", "mismatched"])
def test_mnli_is_tested_where_labels_are_known(tmp_path, evaluation):
    texts = classification.mnli(evaluation, mirror=tiny_repositories.mnli(tmp_path / "glue"))
    assert texts.classes == ("entailment", "neutral", "contradiction")
    assert texts.texts("test") == [f"premise {evaluation} {i // 3}" for i in range(9)]
    assert texts.seconds("test")[:3] == ["hypothesis 0", "hypothesis 1", "hypothesis 2"]
    assert texts.labels("test").tolist() == [0, 1, 2] * 3
    assert texts.name == {"matched": "mnli", "mismatched": "mnli_mismatched"}[evaluation]
    premises = {split: set(texts.texts(split)) for split in texts.splits}
    assert not premises["train"] & premises["validation"]
    assert texts.to_dataset("test").features["label"].names == list(texts.classes)


def test_an_unknown_evaluation_and_a_wrong_subset_are_told():
    with pytest.raises(ValueError, match="evaluation is 'both'"):
        classification.mnli("both")
    with pytest.raises(ValueError, match="subset is 0"):
        classification.spread(5, 0)


def test_repositories_and_rows_are_those_that_were_published():
    assert classification.IMDB.rows == {"train": 25_000, "test": 25_000}
    assert sum(classification.MNLI.rows.values()) == 392_702 + 9_815 + 9_832
    assert Path(__file__).parent.name == "data"

"""Corpora in files: the same tokens with and without interruptions, at any place."""

import itertools
import multiprocessing
import os
import random
import signal
import time

import numpy as np
import pytest
import tiny_repositories
import torch
from datasets import Dataset
from hypothesis import example, given, settings
from hypothesis import strategies as st

from unrolled.data import corpora, tokens
from unrolled.data.fetch import FetchError, OfflineError
from unrolled.data.text import TokenBatches, evaluation_windows
from unrolled.data.tokens import TokenFiles, existing, tokenise

TEXTS = [f"document {i} " + "word " * (i % 7) for i in range(600)]
ALL = np.array([byte for text in TEXTS for byte in [*text.encode(), 0]])


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)  # slow, and no power fails here
    monkeypatch.setenv("UNROLLED_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("UNROLLED_OFFLINE", raising=False)
    return tmp_path / "cache"


def documents():
    return Dataset.from_dict({"text": TEXTS}).to_iterable_dataset(num_shards=3)


def encode(texts):
    return [list(text.encode()) for text in texts]


def run(folder, num_tokens, source=None, encode=encode, **changes):
    facts = {"vocab_size": 256, "end": 0, "recipe": "tiny bytes", "shard_tokens": 1000}
    arguments = {**facts, "num_tokens": num_tokens, **changes}
    return tokenise(source or documents(), encode, folder, **arguments)


def on_disk(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.bin"))}


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(tokens, "BATCH", 16)


@pytest.mark.usefixtures("few")
def test_all_documents_are_written_in_order(tmp_path):
    files = run(tmp_path / "t", 10**6)
    assert np.array_equal(files[:].numpy(), ALL)
    assert files.documents == 600
    assert [len(shard) for shard in files.shards[:-1]] == [1000] * (len(ALL) // 1000)
    assert files.shards[0].dtype == np.uint16


@pytest.mark.usefixtures("few")
def test_exactly_as_many_tokens_as_asked_for(tmp_path):
    for count in (1, 999, 1000, 1001, 5432):
        assert len(run(tmp_path / str(count), count)) == count


@settings(max_examples=8, deadline=None)
@given(stops=st.lists(st.integers(1, len(ALL)), min_size=1, max_size=6))
@example(stops=[7284, 7285])  # both in one batch of documents
def test_asking_for_more_and_more_gives_the_same_files(tmp_path_factory, stops):
    folder = tmp_path_factory.mktemp("tokens") / "t"
    for stop in sorted(stops):
        assert len(run(folder, stop)) == stop
    assert np.array_equal(run(folder, len(ALL))[:].numpy(), ALL)


class Power(BaseException):
    """It goes off at a random moment: no code can catch it as an error."""


@pytest.mark.usefixtures("few")
def test_the_files_survive_interruptions_at_each_step(tmp_path, monkeypatch):
    """Stop before and after each write of tokens and state, then go on: 20 stops."""
    whole = tmp_path / "whole"
    run(whole, len(ALL))
    stops = 0
    for name in ("_append", "_write_state"):
        real = getattr(tokens, name)
        for number, is_late in itertools.product(range(0, 40, 8), (False, True)):
            folder = tmp_path / f"{name}{number}{is_late}"
            calls = itertools.count()

            def off(*arguments, number=number, calls=calls, is_late=is_late, real=real):
                here = next(calls) == number
                if here and not is_late:
                    raise Power
                real(*arguments)
                if here:
                    raise Power

            monkeypatch.setattr(tokens, name, off)
            with pytest.raises(Power):
                run(folder, len(ALL))
            stops += 1
            monkeypatch.setattr(tokens, name, real)
            run(folder, len(ALL))
            assert on_disk(folder) == on_disk(whole)
    assert stops == 20


def slowly(texts):
    time.sleep(0.01)
    return encode(texts)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here")
def test_killed_processes_leave_what_the_next_can_go_on_from(tmp_path, monkeypatch):
    """Kill 20 processes at random moments; in the end the files are those of one process."""
    monkeypatch.setattr(tokens, "BATCH", 2)  # 300 batches of 10 ms and more
    folder, random_moment = tmp_path / "t", random.Random(0)
    run(tmp_path / "whole", 10**6)
    kills = 0
    for _ in range(20):
        process = multiprocessing.get_context("fork").Process(
            target=run, args=(folder, 10**6), kwargs={"encode": slowly}
        )
        process.start()
        time.sleep(random_moment.uniform(0.02, 0.2))
        process.kill()
        process.join()
        kills += process.exitcode == -signal.SIGKILL
    assert kills == 20
    assert 0 < len(TokenFiles.open(folder)) < len(ALL)
    run(folder, 10**6)
    assert on_disk(folder) == on_disk(tmp_path / "whole")


@pytest.mark.usefixtures("few")
def test_half_a_write_is_taken_back(tmp_path):
    folder = tmp_path / "t"
    run(folder, 2500)
    with (folder / "tokens-00002.bin").open("ab") as stream:
        stream.write(b"half a tok")
    (folder / "tokens-00003.bin").write_bytes(b"and a file that no state knows of")
    assert np.array_equal(run(folder, 10**6)[:].numpy(), ALL)


def test_large_vocabularies_take_four_bytes(tmp_path):
    big = run(tmp_path / "t", 50, encode=lambda texts: [[70_000]] * len(texts), vocab_size=70_001)
    assert big.shards[0].dtype == np.uint32
    assert big[:4].tolist() == [70_000, 0, 70_000, 0]


def test_other_recipes_and_wrong_ids_are_refused(tmp_path):
    folder = tmp_path / "t"
    run(folder, 100)
    with pytest.raises(ValueError, match=r"recipe is 'other', but the tokens in .* 'tiny bytes'"):
        run(folder, 200, recipe="other")
    with pytest.raises(ValueError, match="shard_tokens is 999"):
        run(folder, 200, shard_tokens=999)
    with pytest.raises(ValueError, match=r"ids are .* to 119, but vocab_size is 100"):
        run(tmp_path / "u", 100, vocab_size=100)
    with pytest.raises(ValueError, match="end is 256"):
        run(folder, 200, end=256)
    with pytest.raises(ValueError, match="num_tokens is 0"):
        run(folder, 0)


def test_damage_is_told(tmp_path):
    folder = tmp_path / "t"
    with pytest.raises(FetchError, match="there are no tokens"):
        TokenFiles.open(folder)
    run(folder, 2500)
    assert TokenFiles.open(folder).check_sums() == 2
    path = folder / "tokens-00001.bin"
    content = path.read_bytes()
    path.write_bytes(b"xx" + content[2:])
    with pytest.raises(FetchError, match=r"tokens-00001\.bin was changed"):
        TokenFiles.open(folder).check_sums()
    path.write_bytes(content[:-2])
    with pytest.raises(FetchError, match="has 1,998 bytes instead of 2,000"):
        TokenFiles.open(folder)
    path.unlink()
    with pytest.raises(FetchError, match="is missing"):
        TokenFiles.open(folder)
    (folder / "state.json").write_text("{")
    with pytest.raises(ValueError, match=r"state\.json is damaged"):
        TokenFiles.open(folder)


def test_a_full_disk_is_told_first(tmp_path):
    with pytest.raises(OSError, match="are needed in"):
        run(tmp_path / "t", 10**18)


def test_files_take_the_place_of_a_tensor(tmp_path):
    files, row = run(tmp_path / "t", 5000), torch.from_numpy(ALL[:5000])
    assert len(files) == 5000
    assert files.shape == row.shape
    for step in range(5):
        ours = TokenBatches(files, batch_size=3, length=40, seed=1)(step)
        theirs = TokenBatches(row, batch_size=3, length=40, seed=1)(step)
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    for ours, theirs in zip(
        evaluation_windows(files, 64, 5), evaluation_windows(row, 64, 5), strict=True
    ):
        assert torch.equal(ours, theirs)
    with pytest.raises(IndexError):
        files[torch.tensor([5000])]
    with pytest.raises(IndexError):
        files[::2]


def test_what_is_there_is_known(tmp_path):
    assert existing(tmp_path / "nowhere", 5) is None
    run(tmp_path / "t", 500)
    assert existing(tmp_path / "t", 501) is None
    assert len(existing(tmp_path / "t", 400)) == 500
    run(tmp_path / "t", 10**6)
    assert len(existing(tmp_path / "t", 10**6)) == len(ALL)


# The corpora


@pytest.fixture
def web(tmp_path, monkeypatch):
    monkeypatch.setattr(corpora, "VALIDATION_DOCUMENTS", 50)
    return tiny_repositories.corpus(tmp_path / "web", TEXTS, config="sample-100BT", score=3)


def test_fineweb_holds_out_its_first_documents(web, monkeypatch, cache):
    corpus = corpora.fineweb_edu(6000, tokenizer="bytes", mirror=web)
    held_out = sum(len(text) + 1 for text in TEXTS[:50])
    assert bytes(corpus.tokens["validation"][:].tolist()) == bytes(ALL[:600].tolist())
    assert np.array_equal(corpus.tokens["train"][:].numpy(), ALL[held_out : held_out + 6000])
    assert corpus.vocab_size == 256
    more = corpora.fineweb_edu(7000, tokenizer="bytes", mirror=web)
    assert np.array_equal(more.tokens["train"][:].numpy(), ALL[held_out : held_out + 7000])
    monkeypatch.setenv("UNROLLED_OFFLINE", "1")
    monkeypatch.setattr(corpora, "stream", None)  # not opened, when all is there
    assert len(corpora.fineweb_edu(6000, tokenizer="bytes", mirror=web).tokens["train"]) == 7000
    with pytest.raises(OfflineError):
        corpora.fineweb_edu(6000, tokenizer="bytes")


def test_slimpajama_has_the_published_splits(tmp_path):
    copy = tiny_repositories.corpus(
        tmp_path / "slim", TEXTS, ("train", "validation", "test"), meta="x"
    )
    corpus = corpora.slimpajama(2000, tokenizer="bytes", mirror=copy)
    assert {split: len(part) for split, part in corpus.tokens.items()} == {
        "train": 2000,
        "validation": 200,
        "test": 200,
    }
    assert bytes(corpus.tokens["test"][:12].tolist()) == b"document 2 w"
    with pytest.raises(ValueError, match="subset is 0"):
        corpora.slimpajama(0, tokenizer="bytes", mirror=copy)


def test_a_tokenizer_of_transformers_is_used(tmp_path, web):
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"document": 0, "word": 1, "<end>": 2, "?": 3}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")
    fast.save_pretrained(str(tmp_path / "tokenizer"))
    corpus = corpora.fineweb_edu(50, tokenizer=str(tmp_path / "tokenizer"), mirror=web)
    assert corpus.tokens["train"][:6].tolist() == [0, 3, 1, 2, 0, 3]  # document 50 has one word
    assert corpus.vocab_size == 4
    with pytest.raises(FetchError, match=r"the tokenizer .* could not be loaded(.|\n)*--tokenizer"):
        corpora.fineweb_edu(50, tokenizer=str(tmp_path / "nowhere"), mirror=web)


LINES = ["", " = One = \n", "", " A line . \n", " = = Part = = \n", " More . \n", ""]
LINES += [" = Two = \n", " B \n"]


def test_wikitext_is_cut_into_articles(tmp_path):
    from datasets import Dataset as Table

    splits = {split: Table.from_dict({"text": LINES}) for split in ("train", "validation", "test")}
    copy = tiny_repositories.write(tmp_path / "wiki", splits, "wikitext-2-raw-v1")
    corpus = corpora.wikitext2(mirror=copy)
    assert [document.title for document in corpus.select("test")] == ["One", "Two"]
    published = "".join(line or " \n" for line in LINES)
    assert " \n" + corpus.text("test") + "\n" == published
    assert corpora.wikitext2(1, mirror=copy).counts()["train"]["documents"] == 1

"""Corpora, tokenizers, batches and units."""

import hashlib
import math
import pickle
import re
import subprocess
import sys
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import unrolled.data
from unrolled.data import (
    BpeTokenizer,
    ByteTokenizer,
    Document,
    TextCorpus,
    TokenBatches,
    bits_per_byte,
    evaluation_windows,
    moby_dick,
    perplexity,
    state_of_the_union,
    wikipedia_leads,
)
from unrolled.data.fetch import FetchError, OfflineError
from unrolled.data.text import split_of_address

CONTENT_HASH = "9699359fa7e3a42f1c4c6d39a19bbd510c846a5ce80a248cc5cda7cf973b9fe1"
SAMPLE = (
    "Fellow citizens of the Senate: peace, order and good government. Señor “Ünïcödé” 🗽\n" * 40
)
TOKENIZER = BpeTokenizer.learn([SAMPLE], vocab_size=300)


# The corpus


def test_the_shipped_text_is_the_one_that_results_were_made_with():
    corpus = state_of_the_union()
    assert corpus.content_hash == CONTENT_HASH
    assert {split: count["documents"] for split, count in corpus.counts().items()} == {
        "train": 187,
        "validation": 23,
        "test": 23,
    }
    assert sum(document.num_bytes for document in corpus.documents) == 10_761_413


def test_bytes_of_a_split_are_the_bytes_of_its_documents_and_line_breaks():
    corpus = state_of_the_union()
    for split in corpus.splits:
        documents = corpus.select(split)
        expected = sum(document.num_bytes for document in documents) + len(documents) - 1
        assert corpus.num_bytes(split) == expected


def test_each_address_is_in_one_split_and_no_text_is_in_two():
    corpus = state_of_the_union()
    titles = [d.title for split in corpus.splits for d in corpus.select(split)]
    assert sorted(titles) == sorted({document.title for document in corpus.documents})
    assert len({document.text.strip() for document in corpus.documents}) == 233


def test_held_out_addresses_hardly_repeat_the_training_text():
    corpus = state_of_the_union()
    train = corpus.text("train")
    for split in ("validation", "test"):
        text = corpus.text(split)
        pieces = [text[start : start + 100] for start in range(0, len(text) - 100, 10_000)]
        assert sum(piece in train for piece in pieces) <= 0.01 * len(pieces)


def test_all_eras_are_in_each_split():
    corpus = state_of_the_union()
    years = [document.year for document in corpus.documents]
    assert years == sorted(years)
    for split in corpus.splits:
        eras = {document.year // 20 * 20 for document in corpus.select(split)}
        assert eras >= set(range(1800, 2020, 20))


def test_the_split_depends_on_the_position_alone():
    corpus = state_of_the_union()
    assert [d.split for d in corpus.documents] == [split_of_address(i) for i in range(233)]
    assert Counter(split_of_address(i) for i in range(10, 20)) == {
        "train": 8,
        "validation": 1,
        "test": 1,
    }


def test_blemishes_of_the_source_are_kept_and_known():
    text = "\n".join(document.text for document in state_of_the_union().documents)
    assert "\ufffd" not in text
    assert not re.search("Ã.|â€", text)  # UTF-8 read as Latin-1
    assert Counter(re.findall("[\x00-\x09\x0b-\x1f]|&quot;|tax[?]cut", text)) == {
        "\x02": 1,
        "&quot;": 14,
        "tax?cut": 1,
    }


def test_importing_the_package_needs_no_network_and_no_optional_library():
    code = (
        "import socket, sys\n"
        "def refuse(*_): raise AssertionError('network')\n"
        "socket.socket.connect = refuse\n"
        "import unrolled.data.fetch\n"
        "assert 'torch' not in sys.modules, 'fetching needs no torch'\n"
        "import unrolled.data.text\n"
        "assert not {'pooch', 'tokenizers', 'requests'} & set(sys.modules), 'imported early'\n"
        "assert len(unrolled.data.text.state_of_the_union().documents) == 233\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_package_has_the_names_that_it_promises():
    assert set(unrolled.data.__all__) <= set(dir(unrolled.data))
    for name in unrolled.data.__all__:
        assert getattr(unrolled.data, name) is getattr(unrolled.data.text, name)
    with pytest.raises(AttributeError, match="no attribute 'corpus'"):
        unrolled.data.corpus  # noqa: B018


def test_a_wrong_split_is_named_with_those_that_there_are():
    with pytest.raises(ValueError, match=r"split is 'valid'.*validation"):
        state_of_the_union().text("valid")
    with pytest.raises(ValueError, match="split is 'dev'"):
        Document("a", 1, "b", "dev")


def test_the_hash_sees_a_moved_letter_and_a_moved_split():
    def corpus(*documents):
        return TextCorpus("c", tuple(Document("t", 1, text, split) for text, split in documents))

    hashes = {
        corpus(("ab", "train"), ("c", "train")).content_hash,
        corpus(("a", "train"), ("bc", "train")).content_hash,
        corpus(("ab", "train"), ("c", "test")).content_hash,
    }
    assert len(hashes) == 3


# Text out of domain: fetched once, then from the cache


def fetched(load):
    """Return a corpus that needs the network; skip without one, but fail on wrong bytes."""
    try:
        return load()
    except OfflineError as error:
        pytest.skip(f"UNROLLED_OFFLINE is set: {error}")
    except FetchError as error:
        wrong = any("SHA" in str(failure).upper() for failure in error.failures.values())
        if wrong:
            raise
        pytest.skip(f"no network, or no client: {error}")


def test_moby_dick_is_the_whole_novel():
    corpus = fetched(moby_dick)
    assert corpus.splits == ("test",)
    assert corpus.num_bytes("test") == 1_204_997
    text = corpus.text("test")
    assert len(re.findall(r"^CHAPTER \d+\.", text, re.MULTILINE)) == 135
    assert "Call me Ishmael." in text
    assert "\r" not in text


def test_wikipedia_leads_are_many_articles_with_attribution():
    corpus = fetched(wikipedia_leads)
    assert corpus.splits == ("test",)
    assert len(corpus.documents) == 10_033
    assert sum(document.num_bytes for document in corpus.documents) == 4_885_535
    assert "CC BY-SA 4.0" in corpus.attribution
    assert "Wikipedia contributors" in corpus.attribution


# Tokenizers


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), TOKENIZER], ids=["bytes", "bpe"])
class TestTokenizer:
    @given(text=st.text(max_size=200))
    @settings(max_examples=200, deadline=None)
    def test_any_text_comes_back(self, tokenizer, text):
        tokens = tokenizer.encode(text)
        assert tokens.dtype == torch.long
        assert tokenizer.decode(tokens) == text
        assert tokenizer.num_bytes(tokens) == len(text.encode())

    def test_real_text_comes_back(self, tokenizer):
        text = state_of_the_union().documents[-1].text
        tokens = tokenizer.encode(text)
        assert tokenizer.decode(tokens) == text
        assert tokens.max() < tokenizer.vocab_size
        assert tokenizer.num_bytes(tokens.view(1, -1)) == len(text.encode())

    def test_all_bytes_are_tokens(self, tokenizer):
        """Half a character decodes to U+FFFD: a model may generate it."""
        half = tokenizer.encode("é")[:1]
        half = half if tokenizer.num_bytes(half) == 1 else tokenizer.encode("\x80")[:1]
        assert tokenizer.decode(half) == "\ufffd"

    def test_a_lone_surrogate_is_refused(self, tokenizer):
        with pytest.raises(ValueError, match="lone surrogate at 1"):
            tokenizer.encode("a\ud800")

    @pytest.mark.parametrize("tokens", [[-1], [0, 100_000]])
    def test_an_unknown_token_is_refused(self, tokenizer, tokens):
        with pytest.raises(ValueError, match="tokens must be in"):
            tokenizer.decode(torch.tensor(tokens))

    def test_it_travels_to_another_process(self, tokenizer):
        copy = pickle.loads(pickle.dumps(tokenizer))
        assert torch.equal(copy.encode(SAMPLE), tokenizer.encode(SAMPLE))


def test_a_byte_is_its_own_token():
    assert ByteTokenizer().encode("A\n").tolist() == [65, 10]


def test_bpe_makes_text_shorter_and_fills_its_vocabulary():
    assert TOKENIZER.vocab_size == 300
    assert len(TOKENIZER.encode(SAMPLE)) < len(SAMPLE.encode()) / 2
    assert "".join(TOKENIZER.pieces(TOKENIZER.encode("order and good"))) == "order and good"


def test_bpe_needs_room_for_all_bytes():
    with pytest.raises(ValueError, match="vocab_size is 255"):
        BpeTokenizer.learn(["a"], 255)


def two_splits(train, other):
    documents = (Document("a", 1, train, "train"), Document("b", 2, other, "validation"))
    return TextCorpus("pair", documents)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("UNROLLED_CACHE", str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("cache")
def test_bpe_learns_from_the_training_split_alone():
    first = BpeTokenizer.train(two_splits(SAMPLE, "zebra " * 500), 300)
    second = BpeTokenizer.learn([SAMPLE], 300)
    assert first.to_json() == second.to_json()
    other = BpeTokenizer.train(two_splits("zebra " * 500, SAMPLE), 300)
    assert other.to_json() != first.to_json()


def test_bpe_learns_the_same_in_another_process():
    code = (
        "import hashlib, sys\n"
        "from unrolled.data import BpeTokenizer, state_of_the_union\n"
        "texts = [state_of_the_union().documents[i].text for i in (0, 100, 200)]\n"
        "json = BpeTokenizer.learn(texts, 600).to_json()\n"
        "print(hashlib.sha256(json.encode()).hexdigest())\n"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    texts = [state_of_the_union().documents[i].text for i in (0, 100, 200)]
    here = BpeTokenizer.learn(texts, 600).to_json()
    assert found.stdout.strip() == hashlib.sha256(here.encode()).hexdigest()


def test_bpe_is_learnt_once(cache, monkeypatch):
    corpus = two_splits(SAMPLE, "")
    first = BpeTokenizer.train(corpus, 300)
    (cached,) = (cache / "tokenizers").iterdir()
    with monkeypatch.context() as patch:
        patch.setattr(BpeTokenizer, "learn", None)
        assert BpeTokenizer.train(corpus, 300).to_json() == first.to_json()
    assert BpeTokenizer.train(corpus, 310).vocab_size == 310
    assert len(list((cache / "tokenizers").iterdir())) == 2
    for damage in (b"", cached.read_bytes()[:-10], b"x" + cached.read_bytes(), b"\xff\xfe"):
        cached.write_bytes(damage)
        assert BpeTokenizer.train(corpus, 300).to_json() == first.to_json()
    assert cached.read_bytes().partition(b"\n")[2].decode() == first.to_json()


def test_bpe_works_without_a_cache(tmp_path, monkeypatch):
    blocked = tmp_path / "a file"
    blocked.write_text("")
    monkeypatch.setenv("UNROLLED_CACHE", str(blocked))
    with pytest.warns(UserWarning, match="could not be cached"):
        assert BpeTokenizer.train(two_splits(SAMPLE, ""), 300).vocab_size == 300


# Batches


TOKENS = torch.arange(1000) * 7


def test_a_batch_depends_on_seed_and_step_alone():
    batches = TokenBatches(TOKENS, batch_size=8, length=16, seed=3)
    forwards = [batches(step)[0] for step in range(5)]
    again = TokenBatches(TOKENS, batch_size=8, length=16, seed=3)
    backwards = [again(step)[0] for step in reversed(range(5))][::-1]
    assert all(torch.equal(a, b) for a, b in zip(forwards, backwards, strict=True))
    flat = [batch.flatten().tolist() for batch in forwards]
    flat.append(TokenBatches(TOKENS, batch_size=8, length=16, seed=4)(0)[0].flatten().tolist())
    assert len({tuple(batch) for batch in flat}) == 6


def test_the_order_of_batches_never_changes():
    """These offsets are part of every committed result."""
    batches = TokenBatches(torch.arange(8_715_287), batch_size=4, length=128, seed=0)
    assert batches.offsets(0).tolist() == [5703296, 4005995, 6943482, 2247024]
    assert batches.offsets(1000).tolist() == [7173401, 7747521, 4821999, 267384]


def test_targets_are_the_next_tokens():
    inputs, targets = TokenBatches(TOKENS, batch_size=4, length=16, seed=0)(5)
    assert inputs.shape == targets.shape == (4, 16)
    assert inputs.dtype == targets.dtype == torch.long
    assert torch.equal(targets, inputs + 7)


def test_each_offset_is_equally_likely():
    batches = TokenBatches(torch.arange(14), batch_size=100, length=4, seed=1)
    starts = torch.cat([batches(step)[0][:, 0] for step in range(100)])
    counts = torch.bincount(starts, minlength=10)
    assert len(counts) == 10  # offsets 0..9: the last sequence ends at the last token
    # 10,000 draws: chi-square with 9 degrees of freedom is above 27.9 once in a thousand seeds
    assert ((counts - 1000) ** 2 / 1000).sum() < 27.9


def test_long_runs_have_batches():
    batches = TokenBatches(TOKENS, batch_size=2, length=4, seed=2**40)
    assert not torch.equal(batches(10**12)[0], batches(10**12 + 1)[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"length": 1000}, "tokens has 1000 ids, but length 1000 needs 1001"),
        ({"length": 0}, "length is 0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"tokens": TOKENS.view(10, 100)}, r"tokens has shape \(10, 100\)"),
    ],
)
def test_wrong_batches_are_refused(change, message):
    arguments = {"tokens": TOKENS, "batch_size": 4, "length": 16, "seed": 0} | change
    with pytest.raises(ValueError, match=message):
        TokenBatches(**arguments)


def test_a_negative_step_is_refused():
    with pytest.raises(ValueError, match="step is -1"):
        TokenBatches(TOKENS, 1, 1, 0)(-1)


@given(count=st.integers(2, 300), length=st.integers(1, 50))
@settings(max_examples=100, deadline=None)
def test_windows_predict_each_token_once(count, length):
    tokens = torch.arange(count)
    if count <= length:
        with pytest.raises(ValueError, match="needs"):
            evaluation_windows(tokens, length)
        return
    inputs, targets = evaluation_windows(tokens, length)
    assert torch.equal(targets, inputs + 1)
    predicted = targets.flatten()
    assert torch.equal(predicted, torch.arange(1, len(predicted) + 1))
    assert count - 1 - len(predicted) < length


def test_few_windows_are_spread_over_the_split():
    inputs, _ = evaluation_windows(torch.arange(1001), length=10, max_windows=5)
    assert inputs[:, 0].tolist() == [0, 250, 500, 740, 990]
    all_inputs, _ = evaluation_windows(torch.arange(1001), length=10)
    assert torch.equal(evaluation_windows(torch.arange(1001), 10, max_windows=500)[0], all_inputs)
    with pytest.raises(ValueError, match="max_windows is 0"):
        evaluation_windows(torch.arange(1001), length=10, max_windows=0)


# Units


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), TOKENIZER], ids=["bytes", "bpe"])
def test_a_uniform_model_over_bytes_has_eight_bits_whatever_the_tokenizer(tokenizer):
    """P(text) = 256^-bytes, so a token of n bytes costs n ln 256 nats."""
    targets = tokenizer.encode(SAMPLE)
    nats = torch.tensor([tokenizer.num_bytes(token) * math.log(256) for token in targets])
    loss = nats.mean().item()
    bits = bits_per_byte(loss, len(targets), tokenizer.num_bytes(targets))
    assert bits == pytest.approx(8)
    per_byte = perplexity(loss, len(targets), tokenizer.num_bytes(targets))
    assert per_byte == pytest.approx(256)


def test_a_uniform_model_over_tokens_has_the_size_of_its_vocabulary():
    targets = TOKENIZER.encode(SAMPLE)
    logits = torch.zeros(len(targets), TOKENIZER.vocab_size)
    loss = torch.nn.functional.cross_entropy(logits, targets).item()
    assert perplexity(loss) == pytest.approx(TOKENIZER.vocab_size, rel=1e-4)
    num_bytes = TOKENIZER.num_bytes(targets)
    expected = math.log2(TOKENIZER.vocab_size) * len(targets) / num_bytes
    assert bits_per_byte(loss, len(targets), num_bytes) == pytest.approx(expected, rel=1e-4)
    assert 2**expected == pytest.approx(perplexity(loss, len(targets), num_bytes), rel=1e-4)


def test_units_need_counts():
    with pytest.raises(ValueError, match="num_bytes is 0"):
        bits_per_byte(1.0, 10, 0)
    with pytest.raises(ValueError, match="num_tokens is 0"):
        perplexity(1.0, 0)

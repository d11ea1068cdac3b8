"""Likelihoods against a loop by hand and another adapter; a task from end to end; generation."""

import importlib.util
import sys
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("lm_eval")
pytest.importorskip("transformers")

import transformers
from lm_eval.evaluator import evaluate
from lm_eval.models.huggingface import HFLM
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from unrolled.data.social_iqa import SocialQuestion
from unrolled.data.text import ByteTokenizer
from unrolled.looped import evaluation
from unrolled.looped.evaluation import LoopedLM, log_likelihoods, social_iqa_task
from unrolled.looped.model import LoopedTransformer
from unrolled.transformer import Transformer, TransformerConfig, generate

QUESTIONS = [
    SocialQuestion("Kim lost her keys. What will Kim do next?", ("look", "sing loudly", "eat"), 0),
    SocialQuestion("Al fell. How does Al feel?", ("fine", "hurt", "as tall as a tree"), 1),
    SocialQuestion("Jo gave Max a cake. Why did Jo do this?", ("to be kind", "to fly", "no"), 0),
    SocialQuestion("Sam won. How would you describe Sam?", ("sad", "a loser", "proud"), 2),
]


def make_looped(injection="flt", num_loops=3, max_length=128, **options):
    torch.manual_seed(0)
    shape = {"num_layers": 2, "hidden_size": 16, "num_heads": 2, "zero_output": False}
    config = TransformerConfig(vocab_size=256, max_length=max_length, **shape, **options)
    model = LoopedTransformer(config, num_loops, injection)
    torch.nn.init.normal_(model.head.weight)
    return model.eval()


def make_tokenizer():
    """A byte-level tokenizer of the library transformers with tokens for begin and end."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator([q.text for q in QUESTIONS], trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )


@pytest.fixture(scope="module")
def llama():
    torch.manual_seed(0)
    tokenizer = make_tokenizer()
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        initializer_range=0.3,
        bos_token_id=0,
        eos_token_id=1,
    )
    return transformers.LlamaForCausalLM(config).eval(), tokenizer


def pairs_of():
    encode = ByteTokenizer().encode
    return [
        (encode(q.text).tolist(), encode(choice).tolist())
        for q in QUESTIONS
        for choice in q.choices
    ]


def by_hand(model, context, continuation, **options):
    """Read one text token by token, each time from the start."""
    total = 0.0
    for i, token in enumerate(continuation):
        tokens = torch.tensor([[*context, *continuation[:i]]])
        with torch.no_grad():
            total += model(tokens, **options).logits[0, -1].log_softmax(dim=-1)[token].item()
    return total


def requests(*arguments):
    return [SimpleNamespace(args=args) for args in arguments]


# --- likelihoods --------------------------------------------------------------------------------


@pytest.mark.parametrize(("injection", "loops"), [("flt", 1), ("flt", 5), ("original", None)])
def test_likelihoods_are_those_of_one_token_after_the_other(injection, loops):
    model, pairs = make_looped(injection), pairs_of()[:4]
    options = {} if loops is None else {"num_loops": loops}
    expected = [by_hand(model, *pair, **options) for pair in pairs]
    for batch_size in (1, 3):
        found = log_likelihoods(model, pairs, num_loops=loops, batch_size=batch_size)
        assert [score for score, _ in found] == pytest.approx(expected, abs=1e-5, rel=1e-6)


def test_the_greedy_continuation_is_known_as_such():
    model, prompt = make_looped(), torch.tensor([72, 105])
    greedy = generate(model, prompt, 5, temperature=0)[2:].tolist()
    other = [*greedy[:-1], (greedy[-1] + 1) % 256]
    found = log_likelihoods(model, [(prompt.tolist(), greedy), (prompt.tolist(), other)])
    assert [flag for _, flag in found] == [True, False]
    assert found[0][0] > found[1][0]


def test_of_a_context_that_is_too_long_the_end_is_read():
    model, (context, continuation) = make_looped(max_length=24), pairs_of()[0]
    kept = context[-(24 + 1 - len(continuation)) :]
    found = log_likelihoods(model, [(context, continuation)])[0][0]
    assert found == pytest.approx(by_hand(model, kept, continuation), abs=1e-5)
    shorter = log_likelihoods(model, [(context, continuation)], max_length=8)[0][0]
    assert shorter == pytest.approx(by_hand(model, context[-5:], continuation), abs=1e-5)


def test_the_mode_of_the_model_is_kept():
    model = make_looped().train()
    log_likelihoods(model, [([1], [2])])
    assert model.training


@pytest.mark.parametrize(
    ("pairs", "options", "match"),
    [
        ([([], [1])], {}, "pairs must be of at least one token each"),
        ([([1], [])], {}, "pairs must be of at least one token each"),
        ([([1], [2] * 9)], {"max_length": 8}, "the continuation of at most 8"),
        ([], {"num_loops": 0}, "num_loops must be an integer >= 1"),
        ([], {"batch_size": 0}, "batch_size must be an integer >= 1"),
    ],
)
def test_what_cannot_be_scored_is_named(pairs, options, match):
    with pytest.raises(ValueError, match=match):
        log_likelihoods(make_looped(), pairs, **options)


def test_a_model_without_loops_takes_none():
    plain = Transformer(TransformerConfig(num_layers=1, hidden_size=8, num_heads=1))
    with pytest.raises(ValueError, match="num_loops must be None for a model without loops"):
        LoopedLM(plain, ByteTokenizer(), num_loops=2)


# --- the adapter --------------------------------------------------------------------------------


def test_social_iqa_is_scored_through_lm_eval_with_any_number_of_loops():
    model, task = make_looped(), {"social_iqa": social_iqa_task(QUESTIONS)}
    seen = []
    for loops in (1, 6):
        lm = LoopedLM(model, ByteTokenizer(), num_loops=loops, batch_size=5)
        output = evaluate(lm=lm, task_dict=task, bootstrap_iters=0)
        right = 0
        for q, sample in zip(QUESTIONS, output["samples"]["social_iqa"], strict=True):
            context, encode = f"Q: {q.text}\nA:", ByteTokenizer().encode
            expected = [
                by_hand(model, encode(context).tolist(), encode(f" {c}").tolist(), num_loops=loops)
                for c in q.choices
            ]
            found = [float(response[0][0]) for response in sample["resps"]]
            assert found == pytest.approx(expected, abs=1e-5, rel=1e-6)
            right += expected.index(max(expected)) == q.answer
            seen.append(found)
        assert output["results"]["social_iqa"]["acc,none"] == right / len(QUESTIONS)
    assert seen[0] != seen[len(QUESTIONS)]


def test_a_llama_gets_the_numbers_of_its_own_adapter(llama):
    model, tokenizer = llama
    ours = LoopedLM(model, tokenizer, batch_size=4)
    theirs = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=4, max_length=64)
    asked = requests(
        *((q.text, f" {choice}") for q in QUESTIONS for choice in q.choices),
        ("", "no context"),
        ("spaces at the end  ", "of it"),
        ("too long " * 30, "to read all"),
    )
    found, expected = (lm.loglikelihood(asked, disable_tqdm=True) for lm in (ours, theirs))
    assert [score for score, _ in found] == pytest.approx([score for score, _ in expected], 1e-5)
    assert [flag for _, flag in found] == [bool(flag) for _, flag in expected]
    texts = requests(("A text of some length. " * 12,), ("short",))
    rolled, wanted = (lm.loglikelihood_rolling(texts, disable_tqdm=True) for lm in (ours, theirs))
    assert rolled == pytest.approx(wanted, rel=1e-5)


def test_a_rolling_likelihood_counts_every_token_once():
    model, text = make_looped(max_length=16), "A text that is longer than one window of sixteen."
    lm = LoopedLM(model, ByteTokenizer(), prefix_token=10)
    (found,) = lm.loglikelihood_rolling(requests((text,)), disable_tqdm=True)
    tokens, total = [10, *text.encode()], 0.0
    for start in range(0, len(tokens) - 1, 16):
        stop = min(start + 16, len(tokens) - 1)
        # the last window is filled up with context that was counted before
        first = min(start, max(0, stop - 16))
        total += by_hand(model, tokens[first : start + 1], tokens[start + 1 : stop + 1])
    assert found == pytest.approx(total, abs=1e-4)
    with pytest.raises(ValueError, match="prefix_token must be given"):
        LoopedLM(model, ByteTokenizer()).loglikelihood_rolling(requests((text,)), disable_tqdm=True)


def test_generation_stops_at_the_first_stop_that_comes():
    model = make_looped()
    lm = LoopedLM(model, ByteTokenizer(), num_loops=2)
    whole = generate(model, torch.tensor(list(b"Hello")), 70, temperature=0, num_loops=2)[5:]
    text = ByteTokenizer().decode(whole)
    late = text[40:42]  # in the second piece that is generated, unless it comes earlier
    for until in ([late], [text[3], late], []):
        options = {"until": until, "max_gen_toks": 70}
        (found,) = lm.generate_until(requests(("Hello", options)), disable_tqdm=True)
        expected = text[: min([text.find(stop) for stop in until], default=None)]
        assert found == expected


def test_generation_stops_at_the_token_that_ends_a_text():
    model = make_looped()
    new = generate(model, torch.tensor([72]), 6, temperature=0)[1:].tolist()
    tokenizer = ByteTokenizer()
    tokenizer.eos_token_id, place = new[4], new.index(new[4])
    (found,) = LoopedLM(model, tokenizer).generate_until(
        requests(("H", {"max_gen_toks": 6})), disable_tqdm=True
    )
    assert found == tokenizer.decode(new[:place])


def test_sampling_follows_the_generator_and_the_temperature():
    lm = LoopedLM(make_looped(), ByteTokenizer())
    options = {"do_sample": True, "temperature": 5.0, "max_gen_toks": 12}
    torch.manual_seed(3)
    drawn = lm.generate_until(requests(("H", options), ("H", options)), disable_tqdm=True)
    torch.manual_seed(3)
    again = lm.generate_until(requests(("H", options)), disable_tqdm=True)
    assert drawn[0] == again[0] != drawn[1]


def test_what_cannot_be_generated_is_named(llama):
    lm = LoopedLM(make_looped(max_length=16), ByteTokenizer())
    for options, match in (
        ({"max_gen_toks": 16}, "max_gen_toks must be below max_length = 16"),
        ({"max_gen_toks": 4, "num_beams": 2}, r"gen_kwargs must be some of .* got \['num_beams'\]"),
    ):
        with pytest.raises(ValueError, match=match):
            lm.generate_until(requests(("H", options)), disable_tqdm=True)
    with pytest.raises(TypeError, match="model must be one of the book to generate"):
        LoopedLM(*llama).generate_until(requests(("H", {})), disable_tqdm=True)
    with pytest.raises(ValueError, match="options must be none"):
        lm.tok_encode("H", truncate=3)


def test_without_the_library_its_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    spec = importlib.util.spec_from_file_location("again", evaluation.__file__)
    with pytest.raises(ModuleNotFoundError, match=r"extra scale .* needs the library lm_eval"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))

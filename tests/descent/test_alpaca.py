"""AlpacaEval: the files, the command, the verdicts; and the answers of a tiny chat model."""

import json
import shlex

import pandas as pd
import pytest
import torch

pytest.importorskip("transformers")

import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from unrolled.descent.alpaca import alpaca_command, judged_win_rate, respond, write_outputs

INSTRUCTIONS = ["Name a colour.", "Say “hello” in French."]
TEMPLATE = (
    "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.fixture(scope="module")
def chat():
    """A random Llama on bytes, with the template of a chat."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"</s>": 0} | {letter: i for i, letter in enumerate(letters, start=1)}
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="</s>", pad_token="</s>", chat_template=TEMPLATE
    )
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=257,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        initializer_range=0.5,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=0,
    )
    return transformers.LlamaForCausalLM(config).eval(), tokenizer


def greedy_by_hand(model, tokenizer, instruction, count):
    tokens = tokenizer.encode(f"[user]{instruction}[assistant]")
    start = len(tokens)
    while len(tokens) < start + count and (len(tokens) == start or tokens[-1] != 0):
        with torch.no_grad():
            tokens.append(model(torch.tensor([tokens])).logits[0, -1].argmax().item())
    return tokenizer.decode(tokens[start:], skip_special_tokens=True)


def test_answers_are_greedy_and_follow_the_template(chat):
    answers = respond(*chat, INSTRUCTIONS, max_new_tokens=12)
    assert answers == [greedy_by_hand(*chat, text, 12) for text in INSTRUCTIONS]


def test_noise_changes_the_answers_and_is_the_same_again(chat):
    clean, noisy, again, other = (
        respond(*chat, INSTRUCTIONS, gamma=gamma, seed=seed, max_new_tokens=12)
        for gamma, seed in ((0.0, 0), (3.0, 0), (3.0, 0), (3.0, 7))
    )
    assert noisy == again
    assert noisy not in (clean, other)
    assert respond(*chat, INSTRUCTIONS[1:], gamma=3.0, seed=1, max_new_tokens=12) == noisy[1:]


def test_a_file_is_a_list_of_records_that_pandas_reads(tmp_path):
    answers = ["Blue\nor “green”.", "Bonjour 👋"]
    path = write_outputs(tmp_path / "a.json", INSTRUCTIONS, answers, generator="exact")
    rows = json.loads(path.read_text(encoding="utf-8"))
    assert [sorted(row) for row in rows] == [["dataset", "generator", "instruction", "output"]] * 2
    table = pd.read_json(path)  # this is how the tool reads it
    assert table["instruction"].tolist() == INSTRUCTIONS
    assert table["output"].tolist() == answers
    assert table["generator"].unique().tolist() == ["exact"]


def test_the_command_keeps_paths_with_spaces_whole(tmp_path):
    command = alpaca_command("my model.json", tmp_path / "erm.json", "out")
    assert shlex.split(command) == [
        "alpaca_eval",
        *("--model_outputs", "my model.json"),
        *("--reference_outputs", str(tmp_path / "erm.json")),
        *("--annotators_config", "weighted_alpaca_eval_gpt4_turbo"),
        *("--output_path", "out"),
    ]


def test_verdicts_are_counted_as_the_tool_counts_them(tmp_path):
    path = tmp_path / "annotations.json"

    def write(*preferences):
        path.write_text(json.dumps([{"preference": p} for p in preferences]))
        return path

    assert judged_win_rate(write(2, 1, 2, 2)) == 0.75
    assert judged_win_rate(write(1.5, 0, None)) == 0.5
    assert judged_win_rate(write(1.25, 1.75, 2.0)) == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="path must be a file with at least one verdict"):
        judged_win_rate(write(None))
    with pytest.raises(ValueError, match="preference must be 0 or from 1 to 2, got 3"):
        judged_win_rate(write(3))


def test_what_is_outside_its_range_is_named(chat, tmp_path):
    for answers, generator, match in (
        (["one"], "a", "answers must be 2"),
        (["one", "two"], "", "generator must be the name"),
    ):
        with pytest.raises(ValueError, match=match):
            write_outputs(tmp_path / "a.json", INSTRUCTIONS, answers, generator=generator)
    with pytest.raises(ValueError, match="instructions must be all different"):
        write_outputs(tmp_path / "a.json", ["one", "one"], ["a", "b"], generator="a")
    with pytest.raises(ValueError, match="max_new_tokens must be an integer >= 1"):
        respond(*chat, INSTRUCTIONS, max_new_tokens=0)
    with pytest.raises(ValueError, match="model must be in evaluation mode"):
        respond(torch.nn.Linear(1, 1), chat[1], INSTRUCTIONS)

r"""Evaluation by other people's tasks: `lm-eval` scores a looped model, with any number of loops.

A language model answers a question with choices by the likelihood of each, given the question:

.. math:: \log p(b \mid a) = \sum_{i=1}^{n} \log p(b_i \mid a, b_1, \dots, b_{i-1})

for the tokens b of a continuation after the tokens a of its context. `log_likelihoods` computes it
for any causal model; `LoopedLM` is the adapter with which the evaluation harness of EleutherAI
asks for it:

.. code-block:: python

    from lm_eval.evaluator import evaluate

    lm = LoopedLM(model, tokenizer, num_loops=12)
    tasks = {"social_iqa": social_iqa_task()}
    accuracy = evaluate(lm=lm, task_dict=tasks, limit=200)["results"]["social_iqa"]["acc,none"]

The library ``lm-eval`` is in the extra ``scale``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from unrolled.data._extra import need
from unrolled.data.social_iqa import SocialQuestion, social_iqa
from unrolled.optimization import require
from unrolled.transformer import Transformer, generate, require_count

need("lm_eval", "unrolled.looped.evaluation (the extra scale of the package)")

from lm_eval.api.model import TemplateLM  # noqa: E402 - after the clear error
from lm_eval.api.task import ConfigurableTask  # noqa: E402
from lm_eval.models.utils import normalize_gen_kwargs  # noqa: E402
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window  # noqa: E402

__all__ = ["LoopedLM", "Score", "log_likelihoods", "social_iqa_task"]

Score = tuple[float, bool]
"""A log-likelihood in nats, and whether the continuation is what greedy decoding says."""

Pair = tuple[Sequence[int], Sequence[int]]
PIECE = 32  # tokens that are generated before it is looked whether to stop
OPTIONS = ("until", "max_gen_toks", "do_sample", "temperature", "top_k")


# --- likelihoods --------------------------------------------------------------------------------


@torch.no_grad()
def log_likelihoods(
    model: nn.Module,
    pairs: Sequence[Pair],
    *,
    num_loops: int | None = None,
    batch_size: int = 8,
    max_length: int | None = None,
) -> list[Score]:
    r"""Return the log-likelihood of each continuation after its context.

    .. math:: \log p(b \mid a) = \sum_i \log p(b_i \mid a, b_{<i})

    Parameters
    ----------
    model : Module
        A causal model whose call returns ``logits`` (B, N, V): `Transformer`,
        `unrolled.looped.model.LoopedTransformer`, or a causal language model of ``transformers``.
        It is put into evaluation mode, and back into its mode at the end.
    pairs : sequence
        Context and continuation, each a sequence of at least one token id.
    num_loops : int, optional
        Loops of a looped model; by default its own.
    batch_size : int
        Pairs that are read at once, sorted by length and padded on the right.
    max_length : int, optional
        Longest input; by default that of the model. Of a longer context the end is read.

    Returns
    -------
    list of (float, bool)
        Nats, and whether each token of the continuation is the likeliest at its place.

    Raises
    ------
    ValueError
        If a context or continuation is empty, a continuation is longer than `max_length`, or an
        argument is outside its range.

    Examples
    --------
    >>> from unrolled.transformer import TransformerConfig
    >>> model = Transformer(TransformerConfig(num_layers=1, hidden_size=8, num_heads=1))
    >>> _ = torch.nn.init.zeros_(model.head.weight)          # all of 256 tokens are as likely
    >>> log_likelihoods(model, [([1], [2, 3])])
    [(-11.09, False)]
    """
    limit = _longest_input(model) if max_length is None else max_length
    _check_scoring(model, pairs, num_loops, batch_size, limit)
    options = {} if num_loops is None else {"num_loops": num_loops}
    order = sorted(range(len(pairs)), key=lambda i: -sum(map(len, pairs[i])))
    found: list[Score | None] = [None] * len(pairs)
    with _evaluating(model):
        for start in range(0, len(order), batch_size):
            some = order[start : start + batch_size]
            scores = _score_batch(model, [pairs[i] for i in some], limit, options)
            for i, score in zip(some, scores, strict=True):
                found[i] = score
    return found


def _score_batch(
    model: nn.Module, pairs: Sequence[Pair], limit: int, options: dict[str, int]
) -> list[Score]:
    """Score pairs in one pass. They are padded on the right, where no token looks."""
    rows = [[*context, *continuation][-(limit + 1) :] for context, continuation in pairs]
    tokens = torch.zeros(len(rows), max(map(len, rows)) - 1, dtype=torch.long)
    for row, ids in zip(tokens, rows, strict=True):
        row[: len(ids) - 1] = torch.tensor(ids[:-1])
    logits = model(tokens.to(_device(model)), **options).logits  # (B, N, V)
    return [
        _score(logits[i, : len(ids) - 1], ids[-len(pairs[i][1]) :]) for i, ids in enumerate(rows)
    ]


def _score(logits: Tensor, continuation: Sequence[int]) -> Score:
    """Score a continuation, which the last of the logits (n, V) predict."""
    n, b = len(continuation), torch.tensor(continuation, device=logits.device)
    z = logits[-n:].to(torch.promote_types(logits.dtype, torch.float32))
    # log p = sum_i log softmax(z_i)[b_i]
    chosen = torch.log_softmax(z, dim=-1).gather(1, b[:, None])
    return chosen.sum().item(), bool((z.argmax(dim=-1) == b).all())


def _check_scoring(
    model: nn.Module, pairs: Sequence[Pair], num_loops: int | None, batch_size: int, limit: int
) -> None:
    require_count(batch_size, "batch_size")
    require_count(limit, "max_length")
    if num_loops is not None:
        require_count(num_loops, "num_loops")
        looped = hasattr(model, "num_loops")
        require(looped, "num_loops", num_loops, "None for a model without loops")
    for context, continuation in pairs:
        sizes = (len(context), len(continuation))
        fits = sizes[0] >= 1 and 1 <= sizes[1] <= limit
        allowed = f"of at least one token each, the continuation of at most {limit}"
        require(fits, "pairs", f"one of {sizes} tokens", allowed)


def _longest_input(model: nn.Module) -> int:
    own = isinstance(model, Transformer)
    return model.config.max_length if own else model.config.max_position_embeddings


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


# --- the adapter --------------------------------------------------------------------------------


class LoopedLM(TemplateLM):
    """A model of the book as a language model of ``lm-eval``.

    Parameters
    ----------
    model : Module
        As in `log_likelihoods`; to generate, one of the book.
    tokenizer
        `unrolled.data.text.ByteTokenizer`, `unrolled.data.text.BpeTokenizer`, or a tokenizer of
        ``transformers``.
    num_loops : int, optional
        Loops of a looped model; by default its own.
    batch_size, max_length
        As in `log_likelihoods`.
    prefix_token : int, optional
        What stands before a text that has no context. By default the tokenizer's token for the
        begin or else the end of a text; the tokenizers of the book have none.
    max_new_tokens : int
        How many tokens are generated where a task does not say.

    Raises
    ------
    ValueError
        If an argument is outside its range; later, if a text has no context and there is no
        `prefix_token`, or a task asks for an unknown way to generate.

    Examples
    --------
    >>> from unrolled.data.text import ByteTokenizer
    >>> from unrolled.looped.model import LoopedTransformer
    >>> from unrolled.transformer import TransformerConfig
    >>> config = TransformerConfig(num_layers=1, hidden_size=8, num_heads=1)
    >>> lm = LoopedLM(LoopedTransformer(config, 2, "flt"), ByteTokenizer(), num_loops=4)
    >>> lm.tok_encode("Hi")
    [72, 105]
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any,
        *,
        num_loops: int | None = None,
        batch_size: int = 8,
        max_length: int | None = None,
        prefix_token: int | None = None,
        max_new_tokens: int = 256,
    ) -> None:
        super().__init__()
        self.max_length = _longest_input(model) if max_length is None else max_length
        _check_scoring(model, [], num_loops, batch_size, self.max_length)
        require_count(max_new_tokens, "max_new_tokens")
        if prefix_token is not None:
            require_count(prefix_token, "prefix_token", least=0)
        self.model, self.tokenizer, self.num_loops = model, tokenizer, num_loops
        self.batch_size, self.max_new_tokens = batch_size, max_new_tokens
        self._prefix_token = prefix_token

    @property
    def tokenizer_name(self) -> str:
        """Name of the tokenizer, for the cache of ``lm-eval``."""
        return getattr(self.tokenizer, "name_or_path", "") or type(self.tokenizer).__name__

    @property
    def eot_token_id(self) -> int | None:
        """The token that ends a text, if the tokenizer has one."""
        return getattr(self.tokenizer, "eos_token_id", None)

    @property
    def prefix_token_id(self) -> int:
        """The token that stands before a text without context."""
        begin = getattr(self.tokenizer, "bos_token_id", None)
        known = [
            token for token in (self._prefix_token, begin, self.eot_token_id) if token is not None
        ]
        require(bool(known), "prefix_token", None, "given: the tokenizer has no token for it")
        return known[0]

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **options: Any
    ) -> list[int]:
        """Return the token ids of a text; only tokenizers of others have special ones to add."""
        require(not options, "options", options, "none")
        own = not hasattr(self.tokenizer, "bos_token_id")
        chosen = (
            {} if own or add_special_tokens is None else {"add_special_tokens": add_special_tokens}
        )
        return [int(token) for token in self.tokenizer.encode(string, **chosen)]

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **options: Any
    ) -> list[Score]:
        pairs = [(context, continuation) for _, context, continuation in requests]
        scores = self._scores(pairs)
        for (texts, *_), score in zip(requests, scores, strict=True):
            self.cache_hook.add_partial("loglikelihood", texts, score)
        return scores

    def _scores(self, pairs: Sequence[Pair]) -> list[Score]:
        return log_likelihoods(
            self.model,
            pairs,
            num_loops=self.num_loops,
            batch_size=self.batch_size,
            max_length=self.max_length,
        )

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Return the log-likelihood of whole texts, each token once, in windows of `max_length`."""
        found = []
        for request in tqdm(requests, disable=disable_tqdm, desc="texts"):
            (text,) = request.args
            windows = get_rolling_token_windows(
                self.tok_encode(text), self.prefix_token_id, self.max_length, context_len=1
            )
            total = sum(score for score, _ in self._scores([*map(make_disjoint_window, windows)]))
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), total)
            found.append(total)
        return found

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Continue each context up to one of the texts at which its task stops."""
        if not isinstance(self.model, Transformer):
            raise TypeError(f"model must be one of the book to generate, got {type(self.model)}")
        found = []
        for request in tqdm(requests, disable=disable_tqdm, desc="contexts"):
            context, options = request.args
            text = self._continue(context, options)
            self.cache_hook.add_partial("generate_until", request.args, text)
            found.append(text)
        return found

    def _continue(self, context: str, options: dict[str, Any]) -> str:
        chosen = normalize_gen_kwargs(options, self.max_new_tokens)
        unknown = sorted(set(chosen) - set(OPTIONS))
        require(not unknown, "gen_kwargs", unknown, f"some of {OPTIONS}")
        count = chosen["max_gen_toks"]
        allowed = f"below max_length = {self.max_length}"
        require(count < self.max_length, "max_gen_toks", count, allowed)
        prompt = self.tok_encode(context)[-(self.max_length - count) :] or [self.prefix_token_id]
        tokens, end = torch.tensor(prompt, device=_device(self.model)), self.eot_token_id
        while True:
            new = min(PIECE, len(prompt) + count - len(tokens))
            tokens = self._add(tokens, new, chosen)
            text, stopped = self._cut(tokens[len(prompt) :].tolist(), end, chosen["until"])
            if stopped or len(tokens) == len(prompt) + count:
                return text

    def _add(self, tokens: Tensor, count: int, chosen: dict[str, Any]) -> Tensor:
        # Where a task says neither, the likeliest token is taken.
        warmth = chosen.get("temperature", 1.0) if chosen.get("do_sample") else 0.0
        with _evaluating(self.model):
            return generate(
                self.model,
                tokens,
                count,
                temperature=warmth,
                top_k=chosen.get("top_k"),
                num_loops=self.num_loops,
            )

    def _cut(self, new: list[int], end: int | None, until: Sequence[str]) -> tuple[str, bool]:
        """Return the text of new tokens up to where it stops, and whether it does."""
        ended = end in new
        text = self.tokenizer.decode(new[: new.index(end)] if ended else new)
        places = [text.find(stop) for stop in until if stop and stop in text]
        return text[: min(places)] if places else text, ended or bool(places)


# --- a task from a file -------------------------------------------------------------------------


def social_iqa_task(questions: Sequence[SocialQuestion] | None = None) -> ConfigurableTask:
    """Return Social IQa as a task of ``lm-eval``, from the file that a package ships.

    The prompt, the choices and the metric are those of the task ``social_iqa`` of ``lm-eval``
    (that of the original hub has other questions: the validation split).

    Parameters
    ----------
    questions : sequence of SocialQuestion, optional
        By default all of `unrolled.data.social_iqa.social_iqa`.

    Returns
    -------
    lm_eval.api.task.ConfigurableTask

    Raises
    ------
    unrolled.data.fetch.FetchError
        The file is not cached and cannot be fetched; the message says why and what to do.

    Examples
    --------
    >>> question = SocialQuestion("Al fell. How does Al feel?", ("fine", "hurt", "shy"), 1)
    >>> task = social_iqa_task([question])
    >>> print(task.doc_to_text(task.test_docs()[0]))
    Q: Al fell. How does Al feel?
    A:
    """
    chosen = social_iqa() if questions is None else questions
    rows = [{"text": q.text, "choices": list(q.choices), "answer": q.answer} for q in chosen]

    def load(**_: Any) -> dict[str, Any]:
        from datasets import Dataset

        return {"test": Dataset.from_list(rows)}

    return ConfigurableTask(
        config={
            "task": "social_iqa",
            "custom_dataset": load,
            "output_type": "multiple_choice",
            "test_split": "test",
            "doc_to_text": "Q: {{text}}\nA:",
            "doc_to_choice": "choices",
            "doc_to_target": "answer",
            "target_delimiter": " ",
            "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
            "metadata": {"version": 0.0},
        }
    )

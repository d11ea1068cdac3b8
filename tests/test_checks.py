import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from unrolled import checks
from unrolled.checks import looped_equations
from unrolled.checks.result import CheckResult
from unrolled.looped.model import INJECTIONS, SMALL, LoopedTransformer
from unrolled.transformer import TransformerConfig, flops_per_token

CHECKERS = [getattr(checks, name) for name in checks.__all__ if name != "CheckResult"]
EQUATIONS = [
    checks.looped_attention_only,
    checks.looped_bptt,
    checks.looped_first_gradient,
    checks.looped_flops_factor,
    checks.looped_gain,
    checks.looped_position_zero,
    checks.looped_stable_rate,
]


def stub(*arguments): ...


def broken(*arguments):
    raise RuntimeError("boom")


def passes(result):
    assert isinstance(result, CheckResult)
    assert result.passed, result
    assert repr(result).startswith("Correct. ")


def fails(result, words):
    assert isinstance(result, CheckResult)
    assert not result.passed, result
    assert repr(result).startswith("Not yet: ")
    assert words in result.message, result


# --- all checkers -------------------------------------------------------------------------------


WRONG_ANSWERS = [
    broken,
    lambda *_: "text",
    lambda *_: torch.tensor([]),
    lambda *_: torch.full((2, 2), math.nan),
    lambda *_: [1, [2, 3]],
    "text",
    b"bytes",
    3.5j,
    object(),
    {"a": {}},
    [[1], [2, 3]],
    np.array(["a"]),
    math.inf,
    -1,
]
each_checker = pytest.mark.parametrize("check", CHECKERS, ids=lambda check: check.__name__)


@each_checker
def test_an_untouched_stub_fails(check):
    assert not any(check(untouched).passed for untouched in (None, ..., stub))


@each_checker
def test_a_wrong_answer_never_raises(check):
    for answer in WRONG_ANSWERS:
        result = check(answer)
        assert isinstance(result, CheckResult), answer
        assert not result.passed, answer
        assert result.message, answer


@pytest.mark.parametrize("check", EQUATIONS, ids=lambda check: check.__name__)
def test_a_docstring_says_what_is_checked(check):
    assert check.__doc__.startswith("Check ")


def test_an_answer_cannot_spoil_the_cases():
    def loop_terms(W, e, y, num_loops):
        terms = looped_equations._bptt(W, e, y, num_loops)
        W.zero_(), e.zero_(), y.zero_()
        return terms

    passes(checks.looped_bptt(loop_terms))


def test_an_error_in_the_answer_is_quoted():
    fails(checks.looped_stable_rate(broken), "RuntimeError: boom")


# --- position zero ------------------------------------------------------------------------------


def test_the_frozen_injections_are_those_of_the_model():
    tokens = torch.randint(0, 11, (3, 6), generator=torch.Generator().manual_seed(0))
    config = TransformerConfig(
        vocab_size=11, num_layers=3, hidden_size=16, num_heads=2, max_length=6, zero_output=False
    )
    frozen = set()
    for name in INJECTIONS:
        torch.manual_seed(0)
        model = LoopedTransformer(config, 4, name)
        change = model(tokens).logits - model(tokens, num_loops=1).logits
        if change[:, 0].abs().max() == 0:
            frozen.add(name)
    assert frozen == looped_equations.FROZEN
    passes(checks.looped_position_zero(frozen))
    passes(checks.looped_position_zero(sorted(frozen)))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"flt"}, 'forget "attention"'),
        ("flt", 'forget "attention"'),
        ({"attention"}, 'forget "flt"'),
        (set(), 'forget "flt"'),
        ({"flt", "attention", "fla"}, "every block adds the old state"),
        ({"flt", "input"}, "added to the embedding"),
        ({"flt", "original"}, "where the next loop starts"),
        ({"FLT"}, "FLT is no injection"),
        (set(INJECTIONS), "did you follow the stream"),
    ],
)
def test_position_zero_names_the_mistake(answer, words):
    fails(checks.looped_position_zero(answer), words)


# --- FLOPs --------------------------------------------------------------------------------------


def test_the_flops_factor_is_that_of_the_package():
    factor = flops_per_token(SMALL, 12, 1024) / flops_per_token(SMALL, 1, 1024)
    passes(checks.looped_flops_factor(factor))
    passes(checks.looped_flops_factor(torch.tensor(factor)))
    parts = looped_equations.forward_flops(SMALL, 12, 1024)
    assert sum(parts.values()) == flops_per_token(SMALL, 12, 1024)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (12, "forget the head"),
        (1, "count parameters"),
        (2.69, "forget the attention itself"),
        (0.304, "wrong way round"),
        (7, "d = 384"),
        ([3.29, 3.29], "one number"),
    ],
)
def test_flops_factor_names_the_mistake(answer, words):
    fails(checks.looped_flops_factor(answer), words)


# --- first gradient -----------------------------------------------------------------------------


def count(ratio, num_loops):
    return sum(ratio**k for k in range(num_loops))


def test_first_gradient_accepts_the_formula():
    passes(checks.looped_first_gradient(lambda L, K: count(1 - 2.0**-L, K)))
    passes(checks.looped_first_gradient(lambda L, K: 2**L * (1 - (1 - 2**-L) ** K)))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda L, K: K, "is that LT?"),
        (lambda L, K: count(0.5, K), "is that LT_i?"),
        (lambda L, K: 1, "is that FLT?"),
        (lambda L, K: count(2.0**-L, K), "did you follow the stream alone?"),
        (lambda L, K: 2**L, "limit of many loops"),
        (lambda L, K: count(1 - 2.0**-L, K + 1), "one loop too many"),
        (lambda L, K: count(1 - 2.0**-L, K + 1) - 1, "the last loop's term"),
        (lambda L, K: count(1 - 2.0**-K, L), "off by"),
    ],
)
def test_first_gradient_names_the_mistake(answer, words):
    fails(checks.looped_first_gradient(answer), words)


# --- stable rate --------------------------------------------------------------------------------


def rate(K, y):
    return 2 / (K * y ** ((K - 1) / K)) ** 2


def test_the_stable_rate_is_where_gradient_descent_turns():
    for share, settles in ((0.95, True), (1.05, False)):
        w = 2.0 ** (1 / 5) * 1.0001
        for _ in range(2000):
            w -= share * rate(5, 2.0) * (w**5 - 2.0) * 5 * w**4
        assert (abs(w**5 - 2.0) < 1e-6) is settles
    passes(checks.looped_stable_rate(rate))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda K, y: rate(K, y) / 2, "1 / curvature"),
        (lambda K, y: 2 / rate(K, y), "is that the curvature?"),
        (lambda K, y: rate(K, y) * K, "K weights"),
        (lambda K, y: 2 / (K * y ** ((K - 1) / K)), "the slope of w^K"),
        (lambda K, y: 2 / K**2, "take w = 1"),
        (lambda K, y: rate(K, y) * y, "off by"),
    ],
)
def test_stable_rate_names_the_mistake(answer, words):
    fails(checks.looped_stable_rate(answer), words)


# --- backpropagation ----------------------------------------------------------------------------


def autograd_terms(W, e, y, num_loops):
    copies = [W.clone().requires_grad_() for _ in range(num_loops)]
    h = torch.zeros_like(e)
    for copy in copies:
        h = torch.tanh(copy @ h + e)
    return torch.stack(torch.autograd.grad(0.5 * (h - y).square().sum(), copies))


def test_the_terms_are_those_of_autograd():
    passes(checks.looped_bptt(autograd_terms))
    passes(checks.looped_bptt(lambda *case: list(autograd_terms(*case))))


@pytest.mark.parametrize("name", looped_equations.BPTT_MISTAKES)
def test_bptt_names_the_mistake(name):
    answer = lambda *case: looped_equations._bptt(*case, name)  # noqa: E731
    fails(checks.looped_bptt(answer), looped_equations.BPTT_MISTAKES[name])


def test_bptt_reports_a_wrong_shape():
    fails(checks.looped_bptt(lambda W, e, y, K: torch.zeros(K, 3)), "the shape is (2, 3)")


# --- attention only -----------------------------------------------------------------------------


def loop(start, query):
    def attention_only(blocks, e, h):
        x = e if h is None else start(e, h)
        for index, block in enumerate(blocks):
            x = block(x, query=query(index, e, h))
        return x

    return attention_only


def test_attention_only_accepts_the_loop():
    passes(checks.looped_attention_only(loop(lambda e, h: h, lambda i, e, h: h)))


@pytest.mark.parametrize(
    ("start", "query", "words"),
    [
        (lambda e, h: e, lambda i, e, h: h, "That is FLT"),
        (lambda e, h: h, lambda i, e, h: None, "original LT"),
        (lambda e, h: h, lambda i, e, h: h if i == 0 else None, "to the first only"),
        (
            lambda e, h: F.rms_norm(e + h, e.shape[-1:]),
            lambda i, e, h: h,
            "add h to the embedding",
        ),
        (lambda e, h: h, lambda i, e, h: e, "ask with e"),
    ],
)
def test_attention_only_names_the_mistake(start, query, words):
    fails(checks.looped_attention_only(loop(start, query)), words)


def test_attention_only_needs_its_first_loop():
    def forgets_loop_one(blocks, e, h):
        for block in blocks:
            h = block(h, query=h)
        return h

    def from_h(blocks, e, h):
        x = h
        for block in blocks:
            x = block(x, query=h)
        return x

    assert not checks.looped_attention_only(forgets_loop_one).passed
    fails(checks.looped_attention_only(from_h), "in loop 1 there is no h")


# --- gain ---------------------------------------------------------------------------------------


def gain(F, h, steps=100):
    torch.manual_seed(0)
    v = torch.randn_like(h)
    for _ in range(steps):
        v = v / v.norm()
        _, Jv = torch.autograd.functional.jvp(F, h, v)
        _, v = torch.autograd.functional.vjp(F, h, Jv)
    return Jv.norm()


def jacobian(F, h):
    return torch.autograd.functional.jacobian(F, h).reshape(h.numel(), h.numel())


def test_gain_accepts_the_power_iteration_and_the_whole_jacobian():
    passes(checks.looped_gain(gain))
    passes(checks.looped_gain(lambda F, h: torch.linalg.svdvals(jacobian(F, h))[0]))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda F, h: gain(F, h) ** 2, "square root"),
        (lambda F, h: torch.linalg.eigvals(jacobian(F, h)).abs().max(), "eigenvalue"),
        (lambda F, h: jacobian(F, h).norm(), "Frobenius"),
        (lambda F, h: gain(F, h, steps=1), "too low"),
        (lambda F, h: gain(F, h, steps=2) * 0.9, "too low"),
        (lambda F, h: 30.0, "off by"),
    ],
)
def test_gain_names_the_mistake(answer, words):
    fails(checks.looped_gain(answer), words)


def test_the_checkers_leave_the_random_numbers_alone():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    checks.looped_attention_only(loop(lambda e, h: h, lambda i, e, h: h))
    checks.looped_bptt(autograd_terms)
    assert torch.rand(1) == expected

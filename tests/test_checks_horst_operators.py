"""The checkers of the chapter *Operators*: right answers pass, mistakes are named."""

import math

import pytest
import torch
from scipy.integrate import quad

from unrolled import checks
from unrolled.horst import operators as op


def passes(result):
    assert result.passed, result


def fails(result, words):
    assert not result.passed, result
    assert words in result.message, result


def test_one_step():
    check = checks.horst_one_step
    start, gradient = torch.tensor([0.5]), torch.tensor([-3.0])
    moved, _ = op.horst(start, gradient, lr=0.01, alpha=20.0)
    passes(check(moved))
    passes(check(0.623))
    fails(check(0.51), "AdamW")
    fails(check(0.51 * math.exp(-0.2)), "sign")
    fails(check(0.5 * math.exp(0.2)), "forget the addition")
    fails(check(0.5 * math.exp(0.2) + 0.01), "old weight")
    fails(check(0.5 + 0.01 * 11), "first order")
    fails(check(0.51 * math.exp(0.6)), "HAM")
    fails(check(0.53 * math.exp(0.6)), "for Adam's direction")
    fails(check(0.51 * math.exp(20)), "rate")
    fails(check(7.0), "at the first step")


OPERATORS = {
    "gradient": op.gradient(),
    "sign": op.sign(),
    "scale": op.scale(0.1),
    "decay": op.decay(0.1),
    "metric": op.metric(3.0),
    "metric 1": op.metric(3.0),
    "metric 2": op.metric(0.5),
    "steepest 2": op.steepest(2),
}
PAIRS = (
    *("gradient, sign", "scale, metric", "scale, sign", "decay, metric"),
    *("metric, sign", "steepest 2, sign", "metric 1, metric 2"),
)


def commute(pair):
    torch.manual_seed(0)
    one, other = (OPERATORS[name] for name in pair.split(", "))
    return op.commutator(one, other, torch.randn(6), torch.randn(6)).abs().max() < 1e-6


def test_commuting_is_what_operators_do():
    right = {pair for pair in PAIRS if commute(pair)}
    passes(checks.horst_commuting(right))
    passes(checks.horst_commuting(sorted(right)))
    for pair in PAIRS:
        fails(checks.horst_commuting(right ^ {pair}), pair)
    fails(checks.horst_commuting({"sign, decay"}), "no pair")
    fails(checks.horst_commuting("gradient, sign"), "scale, metric")
    fails(checks.horst_commuting(3), "set of names")


# phi(x) = int_0^x (x - s) / (1 + alpha s) ds
def potential(theta, alpha):
    sizes = theta.abs().tolist()
    return torch.tensor(
        [quad(lambda s, x=x: (x - s) / (1 + alpha * s), 0, x)[0] for x in sizes],
        dtype=torch.float64,
    )


def test_potential():
    check = checks.horst_potential
    passes(check(potential))
    fails(check(lambda t, a: t.square() / 2 + a * t.abs() ** 3 / 6), "one over")
    fails(check(lambda t, a: t.sign() * torch.log1p(a * t.abs()) / a), "Integrate once more")
    fails(check(lambda t, a: potential(t, a) * t.sign()), "negative weights")
    fails(check(lambda t, a: potential(t, a) + 1 / a**2), "constant")
    fails(check(lambda t, a: potential(t, a) + t.abs() / a), "linear")
    fails(check(lambda t, a: potential(t, a) * a), "lose an alpha")
    fails(check(lambda t, a: potential(t, a).sum()), "sum")

    def entropy(t, a):
        b = 1 / a
        return b * (t * torch.asinh(t / b) - (t**2 + b**2).sqrt() + b)

    fails(check(entropy), "hyperbolic entropy")


# Small steps along the metric, dtheta = -(1 + alpha |theta|) du
def mirror_step(theta, u, alpha, steps=4000):
    def slope(x):
        return -(1 + alpha * x.abs()) * u / steps

    for _ in range(steps):  # the midpoint rule
        theta = theta + slope(theta + slope(theta) / 2)
    return theta


def exact(theta, u, alpha):
    z = theta.sign() * torch.log1p(alpha * theta.abs()) / alpha - u
    return z.sign() * torch.expm1(alpha * z.abs()) / alpha


def test_mirror_step():
    check = checks.horst_mirror_step
    passes(check(mirror_step))
    passes(check(exact))
    fails(check(lambda t, u, a: t - exact(t, u, a)), "new ones")
    fails(check(lambda t, u, a: exact(t, -u, a)), "subtracts")
    fails(check(lambda t, u, a: t - (1 + a * t.abs()) * u), "first order")
    fails(check(lambda t, u, a: t - op.exponential(a)(t, u, None)[0]), "addition")
    fails(check(lambda t, u, a: t.sign() * exact(t, u, a).abs()), "new coordinate")
    fails(check(lambda t, u, a: t.sign() * torch.log1p(a * t.abs()) / a - u), "Come back")

    def branch(t, u, a):
        s = t.sign()
        return (t + s / a) * (-a * s * u).exp() - s / a

    fails(check(branch), "other branch")
    fails(check(lambda t, u, a: exact(t, u, a) + exact(t, u, a).sign() / a), "-1")


def total_decay(lr, weight_decay, beta):
    start, zero = torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    moved, _ = op.horst(start, zero, lr=lr, alpha=0.0, beta=beta, weight_decay=weight_decay)
    return (1 - moved.item()) / lr


def test_total_decay():
    check = checks.horst_total_decay
    passes(check(total_decay))
    fails(check(lambda lr, w, b: w + b), "first order")
    fails(check(lambda lr, w, b: 1 - lr * total_decay(lr, w, b)), "leaves")
    fails(check(lambda lr, w, b: lr * total_decay(lr, w, b)), "divide")
    fails(check(lambda lr, w, b: w + (1 - math.exp(-lr * b)) / lr), "add the two")
    fails(check(lambda lr, w, b: (1 - (1 - lr * w) * math.exp(-b)) / lr), "lr * beta")
    fails(check(lambda lr, w, b: w + b - lr * w * b), "1 - x")


# Follow the flow until it rests, or is beyond any bound.
def largest_weight(alpha, beta, weight_decay):
    theta = 0.0
    for _ in range(20_000):
        theta += 0.02 * ((1 + alpha * theta) - (weight_decay + beta) * theta)
        if theta > 1e3:
            return math.inf
    return math.inf if theta > 300 else theta


def test_largest_weight():
    check = checks.horst_largest_weight
    passes(check(largest_weight))
    fails(check(lambda a, b, w: 1 / (w + b - a) if w + b != a else math.inf), "infinity")
    fails(check(lambda a, b, w: 1 / (w + b)), "forget the mirror")
    fails(check(lambda a, b, w: 1 / (w - a) if w > a else math.inf), "beta")
    fails(check(lambda a, b, w: 1 / w), "AdamW")
    fails(check(lambda a, b, w: 1 / (w + b + a)), "sign of alpha")
    fails(check(lambda a, b, w: math.nan), "NaN")


# The operators themselves, in small steps.
def end_point(a, alpha, mirror_last=True, rate=2e-6):
    first, second = a, 0.0
    while 2 * first + second < 2:
        first += rate * (1 + alpha * first if mirror_last else 1)
        second += rate * (1 + alpha * second if mirror_last else 1)
    return first, second


def closed(a, alpha):
    y = 2 * (1 - a) / (3 + 2 * alpha * a)
    return a + (1 + alpha * a) * y, y


def test_end_point():
    check = checks.horst_end_point
    assert closed(0.3, 20.0) == pytest.approx(end_point(0.3, 20.0), rel=1e-3)
    passes(check(closed))
    fails(check(lambda a, alpha: closed(a, alpha)[::-1]), "swap")
    fails(check(lambda a, alpha: end_point(a, alpha, mirror_last=False)), "sign descent ends")
    fails(check(lambda a, alpha: (1.0, 0.0)), "limit")

    def ratio(a, alpha):
        y = 2 / (1 + 2 * (1 + alpha * a))
        return (1 + alpha * a) * y, y

    fails(check(ratio), "theta_1 / theta_2")

    def driven(a, alpha):
        # 2 x + y = 2 with 1 + alpha x = c (1 + alpha y)^2: a quadratic equation for y
        c = 1 + alpha * a
        square, linear, constant = 2 * c * alpha, 4 * c + 1, 2 * (c - 1) / alpha - 2
        y = (-linear + math.sqrt(linear**2 - 4 * square * constant)) / (2 * square)
        return (2 - y) / 2, y

    fails(check(driven), "one speed")


NAMES = (
    *("one_step", "commuting", "potential", "mirror_step"),
    *("total_decay", "largest_weight", "end_point"),
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("wrong", [math.nan, [1.0, 2.0], "text", lambda *_: "text", lambda: 1])
def test_nonsense_never_raises(name, wrong):
    assert not getattr(checks, f"horst_{name}")(wrong).passed


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stub", [None, ..., lambda *_: None])
def test_a_stub_is_told_so(name, stub):
    assert not getattr(checks, f"horst_{name}")(stub).passed

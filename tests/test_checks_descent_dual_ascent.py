"""The checkers of the chapter *Dual ascent*: right answers pass, mistakes are named."""

import torch

from unrolled import checks
from unrolled.descent.constraints import AnchoredConstraint, CumulativeConstraint
from unrolled.descent.primal_dual import dual_step


def passes(result):
    assert result.passed, result


def fails(result, words):
    assert not result.passed, result
    assert words in result.message, result


def test_price():
    passes(checks.descent_price(1.0))
    passes(checks.descent_price(torch.tensor([1.0])))
    fails(checks.descent_price(2.0), "norm of v")
    fails(checks.descent_price(4.0), "forget to divide")
    fails(checks.descent_price(-1.0), "never negative")
    fails(checks.descent_price(0.0), "feasible")
    fails(checks.descent_price(7.0), "put x")
    fails(checks.descent_price((1.0, 2.0)), "one number")


def test_adam_agrees_with_the_optimizer():
    prices = torch.zeros(2, requires_grad=True)
    prices.grad = torch.tensor([0.02, 2.0])
    torch.optim.Adam([prices], lr=0.1, maximize=True).step()
    passes(checks.descent_adam(tuple(prices.tolist())))
    fails(checks.descent_adam((0.002, 0.2)), "plain dual ascent")
    fails(checks.descent_adam((-0.1, -0.1)), "sign")
    fails(checks.descent_adam((1.0, 1.0)), "equal is right")
    fails(checks.descent_adam((0.1, 0.3)), "divides each")
    fails(checks.descent_adam(0.1), "two numbers")


def discriminant(tau, N, eta):
    v = N**0.5
    matrix = torch.tensor([[1 - tau, -tau * v], [eta * v, 1.0]], dtype=torch.float64)
    return matrix.trace() ** 2 - 4 * torch.linalg.det(matrix)


def test_calm_step():
    def bisect(tau, N):
        low, high = 0.0, 1 / N
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if discriminant(tau, N, middle) >= 0 else (low, middle)
        return low

    passes(checks.descent_calm_step(bisect))
    fails(checks.descent_calm_step(lambda tau, N: 1 / N), "convergence")
    fails(checks.descent_calm_step(lambda tau, N: tau / N), "forget the 4")
    fails(checks.descent_calm_step(lambda tau, N: tau / (4 * N**0.5)), "squared norm")
    alternating = lambda tau, N: (1 - (1 - tau) ** 0.5) ** 2 / (tau * N)  # noqa: E731
    fails(checks.descent_calm_step(alternating), "alternating")


def anchored(prices, shares):
    return AnchoredConstraint(tuple(shares.tolist()), anchor=1.0).weights(prices)


def exact_weights(prices, shares):
    w = torch.cat((torch.zeros(1), prices)).double()
    w[:-1] -= (1 - shares) * prices
    w[-1] += 1
    return w


def test_anchored_weights():
    passes(checks.descent_anchored_weights(anchored))
    fails(checks.descent_anchored_weights(exact_weights), "exact form")
    no_objective = lambda p, s: anchored(p, s) - torch.eye(len(p) + 1)[-1]  # noqa: E731
    fails(checks.descent_anchored_weights(no_objective), "objective")
    fails(checks.descent_anchored_weights(lambda p, s: anchored(p, s * 0)), "forget the shares")
    shifted = lambda p, s: anchored(p, torch.cat((s[:1], s[:-1])))  # noqa: E731
    fails(checks.descent_anchored_weights(shifted), "which share")


def test_leaky_step():
    passes(checks.descent_leaky_step(dual_step))
    plain = lambda p, g, eta, c: dual_step(p, g, eta)  # noqa: E731
    fails(checks.descent_leaky_step(plain), "leak?")
    free = lambda p, g, eta, c: p + eta * (g - p / c)  # noqa: E731
    fails(checks.descent_leaky_step(free), "projection")
    times = lambda p, g, eta, c: dual_step(p, g, eta, 1 / c)  # noqa: E731
    fails(checks.descent_leaky_step(times), "divide")
    outside = lambda p, g, eta, c: dual_step(p, g, eta, eta * c)  # noqa: E731
    fails(checks.descent_leaky_step(outside), "step size multiplies")
    fails(checks.descent_leaky_step(lambda p, g, e, c: dual_step(p, g, e, -c)), "lowers")


def cumulative(losses, shares):
    return CumulativeConstraint(tuple(shares.tolist())).slacks(losses)


def test_cumulative_slacks():
    passes(checks.descent_cumulative_slacks(cumulative))
    with_gradient = lambda f, s: f[1:] - (1 - s).cumprod(0) * f[0]  # noqa: E731
    fails(checks.descent_cumulative_slacks(with_gradient), "detach")
    frozen = lambda f, s: cumulative(f.detach(), s)  # noqa: E731
    fails(checks.descent_cumulative_slacks(frozen), "too much detached")
    fails(checks.descent_cumulative_slacks(lambda f, s: f[1:] - (1 - s) * f[:-1]), "exact form")
    fails(checks.descent_cumulative_slacks(lambda f, s: f[1:] - (1 - s) * f[0]), "product?")
    fails(checks.descent_cumulative_slacks(lambda f, s: f[1:] - s.cumprod(0) * f[0]), "leave")
    fails(checks.descent_cumulative_slacks(lambda f, s: -cumulative(f, s)), "sign")


def augmented(f, g, p, beta):
    ahead = (p + beta * g).clamp_min(0)
    return f + (ahead.square() - p.square()).sum() / (2 * beta)


def test_augmented():
    passes(checks.descent_augmented(augmented))
    fails(checks.descent_augmented(lambda f, g, p, b: f + (p * g).sum()), "plain Lagrangian")
    penalty = lambda f, g, p, b: f + (p * g + b / 2 * g.square()).sum()  # noqa: E731
    fails(checks.descent_augmented(penalty), "fined")
    shifted = lambda f, g, p, b: augmented(f, g, p, b) + p.square().sum() / (2 * b)  # noqa: E731
    fails(checks.descent_augmented(shifted), "subtract")
    double = lambda f, g, p, b: 2 * augmented(f, g, p, b) - f  # noqa: E731
    fails(checks.descent_augmented(double), "the 2")
    fails(checks.descent_augmented(lambda f, g, p, b: augmented(f, g.detach(), p, b)), "detached")


def test_stubs_are_named():
    for name in ("price", "adam", "calm_step", "anchored_weights", "leaky_step", "augmented"):
        fails(getattr(checks, f"descent_{name}")(None), "no answer")
    fails(checks.descent_cumulative_slacks(lambda f, s: ...), "no answer")

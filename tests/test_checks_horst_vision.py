"""The checkers of the chapter *Vision*: right answers pass, mistakes are named."""

import math

import pytest
import torch
from scipy.integrate import quad

from unrolled import checks
from unrolled.checks import horst_vision
from unrolled.horst import AcdcSchedule, group_masks, magnitude_masks, prunable_weights
from unrolled.horst import operators as op
from unrolled.horst.sparsity import norm_ratio
from unrolled.horst.vit import ViT, ViTConfig


def passes(result):
    assert result.passed, result


def fails(result, words):
    assert not result.passed, result
    assert words in result.message, result


def test_sparse_steps():
    check = checks.horst_sparse_steps
    schedule = AcdcSchedule(400)
    passes(check(sum(schedule.is_sparse(step) for step in range(400))))
    fails(check(60), "last phase alone")
    fails(check(140), "forget the end")
    fails(check(180), "thirteen phases")
    fails(check(190), "more than half")
    fails(check(220), "eighth")
    fails(check(240), "last dense phase")
    fails(check(320), "Count the phases")
    fails(check(0.5), "share")
    fails(check(7), "draw the phases")


def prunable(channels, patch, layers, width, classes):
    config = ViTConfig(
        image_size=3 * patch, patch_size=patch, num_channels=channels, num_layers=layers,
        hidden_size=width, num_heads=1, num_classes=classes,
    )  # fmt: skip
    with torch.device("meta"):
        return sum(weight.numel() for weight in prunable_weights(ViT(config)).values())


def test_prunable():
    check = checks.horst_prunable
    passes(check(prunable))
    fails(check(lambda c, p, n, d, v: 12 * n * d**2), "blocks alone")
    fails(check(lambda c, p, n, d, v: 12 * n * d**2 + d * v), "forget the patches")
    fails(check(lambda c, p, n, d, v: prunable(c, p, n, d, v) - d * v), "forget the head")
    fails(check(lambda c, p, n, d, v: prunable(1, p, n, d, v)), "channels")
    fails(check(lambda c, p, n, d, v: c * p * d + 12 * n * d**2 + d * v), "patch x patch")
    fails(check(lambda c, p, n, d, v: prunable(c, p, n, d, v) - n * d**2), "four maps")
    fails(check(lambda c, p, n, d, v: prunable(c, p, n, d, v) - 6 * n * d**2), "four times")
    with_biases = horst_vision._with_biases
    fails(check(with_biases), "biases")
    fails(check(lambda *_: 205_066), "off by")


def grown(steps, lr, alpha):  # many steps along the metric, a thousand for each
    operator, theta = op.compose(op.scale(lr / 1000), op.metric(alpha)), torch.zeros(1).double()
    push = -torch.ones(1).double()
    for _ in range(1000 * steps):
        theta, _ = op.descend(operator, theta, push)
    return theta


def test_grown():
    check = checks.horst_grown
    exact = horst_vision._grown
    for case in ((20, 2e-3, 30.0), (5, 1e-2, 0.0)):
        assert exact(*case) == pytest.approx(grown(*case).item(), rel=1e-3)
    passes(check(exact))
    fails(check(lambda t, lr, a: lr * t), "AdamW")
    fails(check(lambda t, lr, a: math.log1p(a * lr * t) / a if a else lr * t), "wrong side")
    fails(check(lambda t, lr, a: exact(t, lr, a) + (1 / a if a else 0)), "-1")
    fails(check(lambda t, lr, a: exact(t, lr, a) * (a or 1)), "divide by alpha")
    fails(check(lambda t, lr, a: lr * t * math.exp(a * lr * t)), "last weight")
    fails(check(lambda t, lr, a: lr * t * (1 + a * lr * t)), "at the end")
    fails(check(lambda t, lr, a: math.expm1(a * lr * t) / a), "ZeroDivisionError")
    fails(check(lambda t, lr, a: 2 * exact(t, lr, a)), "off by 100%")


def gaussian_loss(s):  # by integration
    q = torch.special.ndtri(torch.tensor((1 + s) / 2, dtype=torch.float64)).item()
    density = 1 / math.sqrt(2 * math.pi)
    return math.sqrt(quad(lambda x: x**2 * density * math.exp(-(x**2) / 2), -q, q)[0])


def test_gaussian_loss():
    check = checks.horst_gaussian_loss
    passes(check(gaussian_loss))
    weights = torch.randn(1_000_000, generator=torch.Generator().manual_seed(0))
    kept = weights * magnitude_masks({"": weights}, 0.9)[""]
    assert (weights - kept).norm() / weights.norm() == pytest.approx(gaussian_loss(0.9), rel=3e-3)
    fails(check(lambda s: gaussian_loss(s) ** 2), "squared norm")
    fails(check(lambda s: math.sqrt(1 - gaussian_loss(s) ** 2)), "what stays")
    fails(check(lambda s: math.sqrt(s)), "at random")
    fails(check(horst_vision._one_sided), "both ends")
    fails(check(horst_vision._wrong_quantile), "quantile")
    fails(check(lambda s: 0.749), "off by")


def longest(beta1, beta2):  # with Adam's own two moments
    m = v = best = 0.0
    for _ in range(2_000):
        m, v = beta1 * m + 1 - beta1, beta2 * v + 1 - beta2
        best = max(best, m / math.sqrt(v))
    return best


def test_longest_step():
    check = checks.horst_longest_step
    passes(check(longest))
    assert longest(0.9, 0.999) == pytest.approx(6.57, abs=0.01)
    fails(check(lambda a, b: (1 - a) / math.sqrt(1 - b)), "first step")
    fails(check(lambda a, b: (1 - a) / math.sqrt((1 - b) * (1 - a * a / b))), "any gradients")
    fails(check(horst_vision._place), "at which it happens")
    fails(check(lambda a, b: (1 - a) / (1 - b)), "root of v")
    fails(check(lambda a, b: 6.57), "off by")


def group_mask(weight, kept, group):
    return group_masks({"": weight}, kept, group)[""]


def columns(weight, kept, group):
    if len(weight) % group:
        return group_mask(weight, kept, group)
    return group_mask(weight.mT.contiguous(), kept, group).mT


def threshold(weight, kept, group):
    groups = weight.abs().reshape(-1, group)
    limit = groups.sort(dim=1, descending=True).values[:, kept - 1 : kept]
    return (groups >= limit).view(weight.shape)


def test_group_mask():
    check = checks.horst_group_mask
    passes(check(group_mask))
    passes(check(lambda w, n, m: group_mask(w, n, m).float()))
    passes(check(lambda w, n, m: group_mask(w, n, m).tolist()))
    fails(check(threshold), "equal weights")
    fails(check(lambda w, n, m: ~group_mask(w, n, m)), "True dropped")
    fails(check(lambda w, n, m: magnitude_masks({"": w}, 1 - n / m)[""]), "it should keep 2")
    fails(check(lambda w, n, m: group_mask(w.exp(), n, m)), "take sizes")
    fails(check(lambda w, n, m: w * group_mask(w, n, m)), "True and False")
    fails(check(lambda w, n, m: group_mask(w, n, m).flatten()), "the shape is (96,)")
    fails(check(lambda w, n, m: torch.ones_like(w).bool()), "keeps 4 weights")


def test_groups_run_along_the_inputs():
    weight = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
    with pytest.raises(horst_vision.WrongAnswerError, match="down the columns"):
        horst_vision._check_groups(columns(weight, 1, 2), weight, 1, 2)


def worst(n, k):
    return (torch.arange(n) < 2 * k).double()


def test_worst_weights():
    check = checks.horst_worst_weights
    passes(check(worst))
    passes(check(lambda n, k: -3e-5 * worst(n, k).flip(0)))
    theta = worst(100, 10)
    kept = theta * magnitude_masks({"": theta}, 0.9)[""]
    removed = ((theta - kept).norm() / theta.norm()).item()
    assert removed == pytest.approx(norm_ratio(theta) / (2 * math.sqrt(0.1)))
    fails(check(lambda n, k: torch.ones(n)), "the bound is 1.29")
    fails(check(lambda n, k: (torch.arange(n) < k).double()), "removes nothing")
    fails(check(lambda n, k: torch.randn(n)), "the bound is")
    fails(check(lambda n, k: torch.zeros(n)), "not all of them zero")
    fails(check(lambda n, k: torch.ones(k)), "the shape is (3,)")

"""Compositions: which optimizer a name builds, for which parameters, and what its step is."""

import pytest
import torch
from torch import nn

from unrolled.horst import Ham, Horst, operators
from unrolled.horst.compositions import (
    COMPOSITIONS,
    OPTIMIZERS,
    Tuned,
    build_optimizer,
    composition,
)
from unrolled.horst.optimizers import Composition
from unrolled.horst.sparsity import prunable_weights
from unrolled.horst.vit import ViT, ViTConfig


@pytest.mark.parametrize("name", [*OPTIMIZERS, *COMPOSITIONS])
def test_only_matrices_are_mirrored_and_decayed(name):
    model = ViT(ViTConfig(num_layers=1))
    optimizer = build_optimizer(name, Tuned(0.3, 0.2, 7.0, 0.5), model, rest_rate=0.004)
    kind = {"adamw": torch.optim.AdamW, "ham": Ham, "horst": Horst}.get(name, Composition)
    assert type(optimizer) is kind
    matrices, rest = optimizer.param_groups
    assert {id(p) for p in matrices["params"]} == {id(w) for w in prunable_weights(model).values()}
    assert (matrices["lr"], matrices["weight_decay"]) == (0.3, 0.2)
    assert (rest["lr"], rest["weight_decay"]) == (0.004, 0.0)
    if name in ("ham", "horst"):
        assert (matrices["alpha"], matrices["beta"], rest["alpha"], rest["beta"]) == (7, 0.5, 0, 0)


def test_each_composition_is_its_formula_for_a_small_step():
    torch.manual_seed(0)
    theta, g = torch.randn(2, 7, dtype=torch.float64)
    tuned, lr = Tuned(alpha=3.0, beta=0.5), 1e-7
    expected = {
        "mirror": (theta**2 + 9).sqrt() * g,
        "sgd": (1 + 3 * theta.abs()) * g + 0.5 * theta,
        "sign": (1 + 3 * theta.abs()) * g.sign() + 0.5 * theta,
        "mirror_first": g.sign(),
    }
    assert expected.keys() == set(COMPOSITIONS)
    for name, direction in expected.items():
        found, _ = composition(name, tuned)(lr)(theta, g, None)
        torch.testing.assert_close(found / lr, direction, rtol=1e-5, atol=1e-5)


def test_what_is_excluded_follows_adam():
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    optimizer = build_optimizer("sign", Tuned(), model, 0.01, exclude=["1"])
    start = model[1].weight.detach().clone()
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    step, _ = operators.adam()(start, model[1].weight.grad, None)
    torch.testing.assert_close(model[1].weight.data, start - 0.01 * step)


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match=r"name must be one of .*'adagrad'"):
        build_optimizer("adagrad", Tuned(), nn.Linear(2, 2), 0.1)

"""What every optimizer must do, AdamW, HORST and HAM alike; then what is their own."""

import copy
import math
import pickle
import random

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import GradientState
from torch import nn

from unrolled.checkpoint import Checkpoint, load_latest_checkpoint, save_checkpoint
from unrolled.horst import Ham, Horst, operators, optimizers, parameter_groups
from unrolled.horst.optimizers import Composition

OPTIMIZERS = {
    "adamw": lambda params, lr, **options: torch.optim.AdamW(params, lr, **options),
    "horst": lambda params, lr, **options: Horst(params, lr, alpha=5.0, beta=0.01, **options),
    "horst one by one": lambda params, lr, **options: Horst(
        params, lr, alpha=5.0, beta=0.01, foreach=False, **options
    ),
    # its exponent has the size of the gradient, which is a thousand on Rosenbrock's walls
    "ham": lambda params, lr, **options: Ham(params, lr, alpha=0.01, beta=0.01, **options),
    "ham one by one": lambda params, lr, **options: Ham(
        params, lr, alpha=0.01, beta=0.01, foreach=False, **options
    ),
}
OURS = {"horst": Horst, "ham": Ham}


@pytest.fixture(params=OPTIMIZERS, ids=lambda name: name.replace(" ", "-"))
def build(request):
    return OPTIMIZERS[request.param]


@pytest.fixture(params=OURS)
def ours(request):
    return OURS[request.param]


def matrices(*shapes, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype))
        for shape in shapes
    ]


def walk(params, optimizer, steps, first=0):
    """Take steps on gradients that depend on the step alone."""
    for step in range(first, first + steps):
        for k, param in enumerate(params):
            generator = torch.Generator().manual_seed(1_000 * step + k)
            grad = torch.randn(param.shape, generator=generator, dtype=torch.float64)
            param.grad = grad.to(param.dtype).to(param.device)
        optimizer.step()


# --- shared: minima -----------------------------------------------------------------------------


def minimise(loss_of, start, build, lr, steps):
    theta = nn.Parameter(torch.tensor(start, dtype=torch.float64))
    optimizer = build([theta], lr, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(theta).backward()
        optimizer.step()
        schedule.step()
    return theta.detach()


def test_finds_the_minimum_of_a_quadratic(build):
    found = minimise(lambda x: (x - 1.5).square().sum(), [3.0, -2.0], build, 0.05, 600)
    torch.testing.assert_close(found, torch.full_like(found, 1.5), atol=0.02, rtol=0)


def test_goes_down_the_valley_of_rosenbrock(build):
    def rosenbrock(x):
        return (1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2

    found = minimise(rosenbrock, [-1.0, 1.5], build, 0.02, 3_000)
    assert rosenbrock(found) < 0.02


def test_fits_a_matrix(build):
    target = torch.tensor([[1.0, -2.0], [0.5, 3.0]], dtype=torch.float64)
    inputs = torch.randn(50, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    start = [[0.1, 0.1], [0.1, -0.1]]
    found = minimise(lambda W: (inputs @ (W - target)).square().mean(), start, build, 0.05, 800)
    torch.testing.assert_close(found, target, atol=0.05, rtol=0)


# --- shared: state, groups, gradients -------------------------------------------------------------


def test_resumes_where_it_stopped(build):
    whole, first = matrices((3, 4), (5,)), matrices((3, 4), (5,))
    walk(whole, build(whole, 0.01), 10)
    optimizer = build(first, 0.01)
    walk(first, optimizer, 4)
    second = [nn.Parameter(p.detach().clone()) for p in first]
    resumed = build(second, 0.01)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    walk(second, resumed, 6, first=4)
    for expected, found in zip(whole, second, strict=True):
        assert torch.equal(expected, found)


def test_state_survives_a_checkpoint_file(build, tmp_path):
    params = matrices((3, 4))
    optimizer = build(params, 0.01)
    walk(params, optimizer, 3)
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt", weights_only=True)
    other = build(matrices((3, 4)), 0.5)
    other.load_state_dict(loaded)
    assert other.param_groups[0]["lr"] == 0.01
    old, new = (next(iter(o.state.values())) for o in (optimizer, other))
    assert all(torch.equal(old[name], new[name]) for name in ("step", "exp_avg", "exp_avg_sq"))


def test_groups_have_values_of_their_own(build):
    fast, slow = matrices((2, 2), (2, 2))
    start = [p.detach().clone() for p in (fast, slow)]
    groups = [{"params": [fast]}, {"params": [slow], "lr": 0.0}]
    walk([fast, slow], build(groups, 0.01), 2)
    assert not torch.equal(fast, start[0])
    assert torch.equal(slow, start[1])


def test_parameters_without_gradient_stay_and_start_later(build):
    one, two = matrices((2, 2), (2, 2))
    optimizer, start = build([one, two], 0.01), two.detach().clone()
    walk([one], optimizer, 3)
    assert torch.equal(two, start)
    two.grad = torch.ones_like(two)
    optimizer.step()
    assert optimizer.state[two]["step"] == 1
    assert optimizer.state[one]["step"] == 4
    alone = nn.Parameter(start.clone())
    alone.grad = torch.ones_like(alone)
    build([alone], 0.01).step()
    assert torch.equal(alone, two)  # its bias correction is that of a first step


def test_no_gradient_at_all_is_no_step(build):
    (param,) = matrices((2, 2))
    optimizer, start = build([param], 0.01), param.detach().clone()
    optimizer.step()
    assert torch.equal(param, start)


def test_closure_is_evaluated_once_with_gradients(build):
    (param,) = matrices((3,))
    optimizer, calls = build([param], 0.01), []

    def closure():
        optimizer.zero_grad()
        loss = param.square().sum()
        loss.backward()
        calls.append(loss.item())
        return loss

    assert optimizer.step(closure).item() == calls[0]
    assert len(calls) == 1


def test_maximize_goes_the_other_way(build):
    up, down = matrices((3, 3)), matrices((3, 3))
    for params, sign, maximize in ((up, -1, True), (down, 1, False)):
        optimizer = build(params, 0.01, maximize=maximize)
        for step in range(3):
            params[0].grad = sign * torch.full_like(params[0], 1.0 + step)
            optimizer.step()
    assert torch.equal(up[0], down[0])


def test_the_gradient_is_not_changed(build):
    (param,) = matrices((3, 3))
    param.grad = torch.ones_like(param)
    build([param], 0.01, maximize=True).step()
    assert torch.equal(param.grad, torch.ones_like(param))


def test_schedulers_and_a_copy_of_the_optimizer_work(build):
    params = matrices((2, 2))
    optimizer = build(params, 0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
    walk(params, optimizer, 1)
    schedule.step()
    assert optimizer.param_groups[0]["lr"] < 0.1
    again = pickle.loads(pickle.dumps(optimizer))
    assert again.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
    assert len(again.state) == 1


def test_a_scaler_skips_the_step_when_a_gradient_overflows(build):
    (param,) = matrices((3, 3), dtype=torch.float32)
    optimizer, start = build([param], 0.01), param.detach().clone()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for factor, moved in ((float("inf"), False), (1.0, True)):
        optimizer.zero_grad()
        scaler.scale((factor * param).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(param, start) is not moved
    expected = nn.Parameter(start.clone())
    expected.grad = torch.ones_like(expected)
    build([expected], 0.01).step()
    torch.testing.assert_close(param, expected)  # the gradient was unscaled


def test_accelerate_takes_it_and_accumulates(build):
    GradientState._reset_state()  # another test may have left its own number of steps
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    plain = copy.deepcopy(model)
    data = torch.randn(4, 3, dtype=torch.float64)
    wrapped, optimizer = accelerator.prepare(model, build(model.parameters(), 0.01))
    for row in data:
        with accelerator.accumulate(wrapped):
            accelerator.backward(wrapped(row).square().sum())
            optimizer.step()
            optimizer.zero_grad()
    reference = build(plain.parameters(), 0.01)
    for pair in data.split(2):
        reference.zero_grad()
        (plain(pair).square().sum() / 2).backward()
        reference.step()
    torch.testing.assert_close(model.weight, plain.weight)


# --- HORST and HAM --------------------------------------------------------------------------------


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("reference_foreach", [True, False])
def test_without_mirror_it_is_adamw_to_the_last_bit(ours, monkeypatch, foreach, reference_foreach):
    monkeypatch.setitem(optimizers.CHUNK, "cpu", 2_048)
    shapes = (7, 5), (11,), (50, 91)  # the last is cut into pieces
    found, expected = matrices(*shapes), matrices(*shapes)
    options = {"lr": 0.01, "betas": (0.9, 0.95), "weight_decay": 0.1}
    mine = ours(found, alpha=0.0, beta=0.0, foreach=foreach, **options)
    adamw = torch.optim.AdamW(expected, foreach=reference_foreach, **options)
    walk(found, mine, 100)
    walk(expected, adamw, 100)
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)


def plain_step(theta, g, m, v, t, values, driver):
    """The step written down without any care for its speed; theta, m and v change in place."""
    (b1, b2), lr, clamp = values["betas"], values["lr"], values["clamp"]
    m.lerp_(g, 1 - b1)
    v.mul_(b2).addcmul_(g, g, value=1 - b2)
    size = lr / (1 - b1**t)
    denominator = v.sqrt() / math.sqrt(1 - b2**t) + values["eps"]
    theta.mul_(1 - lr * values["weight_decay"]).addcdiv_(m, denominator, value=-size)
    if driver == "update":
        exponent = theta.sign() * m / denominator * (-values["alpha"] * size)
    else:
        exponent = theta.sign() * g * (-values["alpha"] * lr)
    exponent = (exponent - lr * values["beta"]).clamp_min(-clamp).clamp_max(clamp)
    theta.mul_(exponent.exp())


def random_values(seed):
    generator = random.Random(seed)
    return {
        "lr": 10 ** generator.uniform(-4, -1),
        "betas": (generator.choice([0.0, 0.8, 0.9]), generator.choice([0.95, 0.999])),
        "eps": generator.choice([1e-8, 1e-3]),
        "weight_decay": generator.choice([0.0, 0.1]),
        "alpha": generator.choice([0.0, 1.0, 20.0, 300.0]),
        "beta": generator.choice([0.0, 0.0, 0.3]),
        "clamp": generator.choice([0.01, 5.0]),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_no_shortcut_changes_a_bit(ours, monkeypatch, dtype, foreach, seed):
    monkeypatch.setitem(optimizers.CHUNK, "cpu", 512)
    values, shapes = random_values(seed), ((3, 5), (7,), (16, 32), (41, 53), (512,), (30, 90))
    found = matrices(*shapes, dtype=dtype)
    for param in (found[-1], found[0]):
        param.data = param.data.T  # not contiguous
    with torch.no_grad():
        found[3][0] = 0.0
    state = torch.float64 if dtype == torch.float64 else torch.float32
    plain = [p.detach().clone() for p in found]
    moments = [[torch.zeros_like(p, dtype=state) for _ in range(2)] for p in plain]
    optimizer = ours(found, foreach=foreach, **values)
    for t in range(1, 5):
        walk(found, optimizer, 1, first=t)
        for theta, param, (m, v) in zip(plain, found, moments, strict=True):
            wide = theta.to(state)
            plain_step(wide, param.grad.to(state), m, v, t, values, ours.driver)
            theta.copy_(wide)
    for a, b in zip(plain, found, strict=True):
        assert torch.equal(a, b)


def test_foreach_and_one_by_one_agree(ours, monkeypatch):
    monkeypatch.setitem(optimizers.CHUNK, "cpu", 2_048)
    shapes = (3, 4), (5,), (50, 91), (5_000,), (80, 40)
    runs = []
    for foreach in (True, False):
        params = matrices(*shapes)
        params[-1].data = params[-1].data.T  # not contiguous
        walk(params, ours(params, 0.01, alpha=8.0, beta=0.1, foreach=foreach), 3)
        runs.append(params)
    for a, b in zip(*runs, strict=True):
        assert torch.equal(a, b)


@pytest.mark.equation("eq-horst-update")
@pytest.mark.parametrize("foreach", [True, False])
def test_horst_is_the_composition_of_operators(foreach):
    values = {"lr": 0.02, "alpha": 9.0, "beta": 0.2, "weight_decay": 0.1, "betas": (0.8, 0.9)}
    (param,) = matrices((6, 5))
    theta, state = param.detach().clone(), None
    optimizer = Horst([param], foreach=foreach, **values)
    for step in range(6):
        walk([param], optimizer, 1, first=step)
        theta, state = operators.horst(theta, param.grad, state, **values)
        torch.testing.assert_close(param.detach(), theta)


@pytest.mark.equation("eq-horst-ham")
@pytest.mark.parametrize("foreach", [True, False])
def test_ham_is_its_formula_behind_adamw(foreach):
    values = {"lr": 0.02, "weight_decay": 0.1}
    (param,), (plain,) = matrices((6, 5)), matrices((6, 5))
    g = torch.full_like(param, 0.3)
    param.grad = plain.grad = g
    Ham([param], alpha=9.0, beta=0.2, foreach=foreach, **values).step()
    torch.optim.AdamW([plain], **values).step()
    half = plain.detach()
    expected = half * torch.exp(-0.02 * (9.0 * half.sign() * g + 0.2))
    torch.testing.assert_close(param.detach(), expected)


def test_horst_does_not_see_the_size_of_the_gradient_and_ham_does():
    runs = {}
    for build in (Horst, Ham):
        for factor in (1.0, 1e6):
            (param,) = matrices((4, 4))
            optimizer = build([param], 0.01, eps=0.0, alpha=10.0)
            param.grad = factor * torch.linspace(-1, 1, 16, dtype=torch.float64).view(4, 4)
            optimizer.step()
            runs[build, factor] = param.detach()
    torch.testing.assert_close(runs[Horst, 1.0], runs[Horst, 1e6])
    assert not torch.allclose(runs[Ham, 1.0], runs[Ham, 1e6])


def test_beta_alone_is_a_second_decay():
    (param,), (plain,) = matrices((4, 4)), matrices((4, 4))
    walk([param], Horst([param], 0.01, alpha=0.0, beta=0.5, weight_decay=0.1), 1)
    walk([plain], torch.optim.AdamW([plain], 0.01, weight_decay=0.1), 1)
    torch.testing.assert_close(param.detach(), plain.detach() * torch.exp(torch.tensor(-0.005)))


def test_the_exponent_is_clamped(ours):
    (param,) = matrices((4, 4))
    start = param.detach().clone()
    param.grad = 1e6 * torch.ones_like(param)
    ours([param], 1e-6, alpha=1e9, clamp=2.0).step()
    grown = (param / start).abs().log()
    torch.testing.assert_close(grown.abs(), torch.full_like(grown, 2.0), atol=1e-4, rtol=0)


def test_zeros_stay_where_the_gradient_is_zero(ours):
    (param,) = matrices((4, 4))
    with torch.no_grad():
        param[0] = 0.0
    for _ in range(3):
        param.grad = torch.ones_like(param)
        param.grad[0] = 0.0
        ours([param], 0.01, alpha=10.0, beta=0.1, weight_decay=0.1).step()
    assert torch.equal(param[0], torch.zeros_like(param[0]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_parameters_have_moments_in_float32(ours, dtype):
    half = matrices((8, 8), dtype=dtype)
    full = [nn.Parameter(p.detach().float()) for p in half]
    optimizer = ours(half, 0.05, alpha=5.0)
    walk(half, optimizer, 1)
    walk(full, ours(full, 0.05, alpha=5.0), 1)
    state = optimizer.state[half[0]]
    assert state["exp_avg"].dtype == state["exp_avg_sq"].dtype == torch.float32
    assert half[0].dtype == dtype
    rounding = torch.finfo(dtype).eps
    torch.testing.assert_close(half[0].float(), full[0].detach(), rtol=2 * rounding, atol=rounding)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_a_state_can_be_loaded_beside_parameters_of_another_dtype(ours, dtype):
    params = matrices((4, 4), dtype=torch.float32)
    optimizer = ours(params, 0.01)
    walk(params, optimizer, 3)
    others = [nn.Parameter(p.detach().to(dtype)) for p in params]
    loaded = ours(others, 0.01)
    loaded.load_state_dict(optimizer.state_dict())
    moment = loaded.state[others[0]]["exp_avg"]
    assert moment.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert torch.equal(moment.float(), optimizer.state[params[0]]["exp_avg"])
    walk(others, loaded, 1, first=3)


def test_a_loaded_state_is_a_copy(ours):
    params = matrices((3, 4))
    optimizer = ours(params, 0.01)
    walk(params, optimizer, 1)
    other = ours(matrices((3, 4)), 0.01)
    other.load_state_dict(optimizer.state_dict())
    walk(params, optimizer, 1, first=1)
    old, new = (next(iter(o.state.values())) for o in (optimizer, other))
    assert not any(torch.equal(old[name], new[name]) for name in old)


def test_a_sparse_gradient_is_refused_before_anything_moves(ours):
    table, plain = nn.Embedding(5, 3, sparse=True), nn.Parameter(torch.ones(2))
    (table(torch.tensor([1])).sum() + plain.sum()).backward()
    with pytest.raises(RuntimeError, match="shape \\(5, 3\\) is sparse"):
        ours([plain, *table.parameters()], 0.01).step()
    assert torch.equal(plain.data, torch.ones(2))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lr", -1.0),
        ("lr", float("nan")),
        ("betas", (0.9, 1.0)),
        ("betas", 0.9),
        ("eps", -1e-8),
        ("weight_decay", -0.1),
        ("alpha", float("inf")),
        ("beta", -1.0),
        ("clamp", 0.0),
        ("maximize", 1),
        ("foreach", "yes"),
    ],
)
def test_bad_values_are_named(ours, name, value):
    with pytest.raises(ValueError, match=f"^{name} must be"):
        ours([nn.Parameter(torch.ones(2))], **{name: value})
    with pytest.raises(ValueError, match=f"^{name} must be"):
        ours([{"params": [nn.Parameter(torch.ones(2))], name: value}])


def test_unknown_names_are_refused(ours):
    with pytest.raises(TypeError):
        ours([nn.Parameter(torch.ones(2))], momentum=0.9)
    with pytest.raises(ValueError, match="gamma"):
        ours([{"params": [nn.Parameter(torch.ones(2))], "gamma": 1.0}])
    with pytest.raises(ValueError, match="complex64"):
        ours([nn.Parameter(torch.ones(2, dtype=torch.complex64))])


def test_compiled_steps_are_the_same(ours):
    plain, compiled = matrices((6, 5), (4,)), matrices((6, 5), (4,))
    options = {"lr": 0.02, "alpha": 6.0, "beta": 0.3, "weight_decay": 0.1}
    reference, optimizer = ours(plain, **options), ours(compiled, **options)
    optimizer.step = torch.compile(optimizer.step, backend="eager")
    for step in range(4):
        for one in (reference, optimizer):
            one.param_groups[0]["lr"] = 0.02 / (1 + step)
        walk(plain, reference, 1, first=step)
        walk(compiled, optimizer, 1, first=step)
    for a, b in zip(plain, compiled, strict=True):
        torch.testing.assert_close(a, b)
    assert optimizer.state[compiled[0]]["step"] == 4


def test_the_bias_corrections_of_compiled_steps_are_exact():
    steps = [torch.tensor(float(t)) for t in (1, 7, 40_000)]
    found = optimizers._bias_corrections(steps, 0.9, 0.999).tolist()
    expected = [[1 - b ** int(t) for b in (0.9, 0.999)] for t in steps]
    assert found == [pytest.approx(pair, rel=1e-15) for pair in expected]


def test_a_compiled_step_takes_its_powers_once_for_all_tensors(ours):
    graphs = []

    def note(graph, _):
        graphs.append(graph)
        return graph.forward

    params = matrices((6, 5), (4,), (3, 3))
    for param in params:
        param.grad = torch.ones_like(param)
    torch.compile(ours(params, 0.01).step, backend=note)()
    names = [str(node.target) for graph in graphs for node in graph.graph.nodes]
    assert sum("bias_corrections" in name for name in names) == 1
    assert not any("pow" in name for name in names)


def test_a_composition_of_operators_is_horst():
    (expected,), (found,), (rest,) = matrices((4, 4)), matrices((4, 4)), matrices((2,))

    def horst(lr):
        step = operators.compose(operators.scale(lr), operators.adam())
        return operators.compose(operators.exponential(6.0, 0.5 * lr), step)

    groups = [{"params": [found]}, {"params": [rest], "operator": operators.scale, "lr": 0.5}]
    optimizer = Composition(groups, 0.02, horst, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=5)
    reference = Horst([expected], 0.02, alpha=6.0, beta=0.5, weight_decay=0.1)
    follow = torch.optim.lr_scheduler.LinearLR(reference, 1.0, 0.1, total_iters=5)
    start = rest.detach().clone()
    for step in range(5):
        walk([expected], reference, 1, first=step)
        walk([found, rest], optimizer, 1, first=step)
        if step == 0:  # its own operator and rate
            torch.testing.assert_close(rest.data, start * (1 - 0.5 * 0.1) - 0.5 * rest.grad)
        schedule.step()
        follow.step()
    torch.testing.assert_close(found, expected)


def test_a_composition_goes_on_from_a_checkpoint(tmp_path):
    def horst(lr):
        step = operators.compose(operators.scale(lr), operators.adam())
        return operators.compose(operators.exponential(6.0, 0.5 * lr), step)

    (whole,), (again,) = matrices((4, 4)), matrices((4, 4))
    optimizer, other = Composition([whole], 0.02, horst), Composition([again], 0.5, horst)
    walk([whole], optimizer, 3)
    save_checkpoint(tmp_path, Checkpoint(3, {"w": whole.data}, optimizer.state_dict()))
    kept = load_latest_checkpoint(tmp_path)
    again.data.copy_(kept.weights["w"])
    other.load_state_dict(kept.state)
    for each, its in ((whole, optimizer), (again, other)):
        walk([each], its, 3, first=3)
    assert torch.equal(whole, again)


# --- which parameters -----------------------------------------------------------------------------


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 4)
        self.first = nn.Parameter(torch.zeros(1, 4))
        self.conv = nn.Conv1d(4, 4, 3)
        self.attend = nn.MultiheadAttention(4, 2)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 9)
        self.head.weight = self.embed.weight
        self.out = nn.Linear(4, 2)


def test_matrices_are_the_weights_of_linear_maps_and_convolutions():
    model = Classifier()
    matrices, rest = parameter_groups(model)
    named = {id(p): name for name, p in model.named_parameters()}
    assert [named[id(p)] for p in matrices["params"]] == [
        "conv.weight", "attend.in_proj_weight", "attend.out_proj.weight", "out.weight"
    ]  # fmt: skip
    count = len(matrices["params"]) + len(rest["params"])
    assert count == len(list(model.parameters()))
    assert rest["alpha"] == rest["beta"] == rest["weight_decay"] == 0
    left = parameter_groups(model, exclude=["out", "attend"])[0]["params"]
    assert [named[id(p)] for p in left] == ["conv.weight", "attend.out_proj.weight"]


def test_groups_go_into_the_optimizer_and_frozen_parameters_do_not(ours):
    model = Classifier()
    model.conv.requires_grad_(False)
    optimizer = ours(parameter_groups(model), alpha=7.0)
    assert [group["alpha"] for group in optimizer.param_groups] == [7.0, 0.0]
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert id(model.conv.weight) not in held
    with pytest.raises(ValueError, match="exclude must be names of modules, got \\['neck'\\]"):
        parameter_groups(model, exclude=["neck"])

import math

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from unrolled.looped import theory
from unrolled.looped.model import INJECTIONS, LoopedTransformer
from unrolled.transformer import Block, TransformerConfig

SMALL = {"vocab_size": 17, "num_layers": 2, "hidden_size": 16, "num_heads": 2, "max_length": 12}
NORMED = [name for name in INJECTIONS if name != "original_no_norm"]


def make(injection, num_loops=4, **options):
    torch.manual_seed(0)
    config = TransformerConfig(**{**SMALL, "zero_output": False, **options})
    return LoopedTransformer(config, num_loops, injection)


@pytest.fixture
def batch():
    tokens = torch.randint(0, 17, (3, 13), generator=torch.Generator().manual_seed(1))
    return tokens[:, :-1], tokens[:, 1:]


@pytest.mark.equation("eq-looped-growth")
def test_linear_states_grow_at_the_rate_of_the_spectral_radius():
    M = torch.randn(6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    M = M @ M.T  # real eigenvalues, so that the norm settles on the rate
    states = theory.linear_states(M, torch.ones(6, dtype=torch.float64), 60)
    assert_close(states[-1].norm() / states[-2].norm(), torch.linalg.eigvalsh(M).max())


@pytest.mark.equation("eq-looped-norm", "eq-looped-power")
def test_normed_linear_states_are_the_power_iteration():
    M = torch.diag(torch.tensor([3.0, 1.0, 0.5]))
    states = theory.linear_states(M, torch.ones(3), 20, normed=True)
    assert_close(states.norm(dim=1), torch.full((20,), math.sqrt(3)))
    assert_close(states[-1], torch.tensor([math.sqrt(3), 0.0, 0.0]), atol=1e-6, rtol=0)
    # what is left of the second direction falls as |lambda_2 / lambda_1|^k
    assert_close(states[9, 1] / states[9, 0], torch.tensor(3.0**-10))


@pytest.mark.equation("eq-looped-paths")
@pytest.mark.parametrize("shared", [True, False])
def test_path_sum_is_the_expected_norm_of_the_walk(shared):
    generator = torch.Generator().manual_seed(3)
    walks = [theory.linear_walk(0.2, 20, shared=shared, generator=generator) for _ in range(12)]
    mean_square = torch.tensor(walks).square().mean(0)
    expected = torch.tensor([theory.path_sum(0.2, n, shared=shared) ** 2 for n in range(21)])
    assert_close(mean_square, expected, rtol=0.25, atol=0)


@pytest.mark.equation("eq-looped-paths")
def test_path_sums_have_their_closed_form_and_rate():
    assert theory.path_sum(0.3, 50, shared=False) == pytest.approx((1 + 0.09) ** 25)
    growth = theory.path_sum(0.3, 401, shared=True) / theory.path_sum(0.3, 400, shared=True)
    assert growth == pytest.approx(1.3, rel=2e-3)


@pytest.mark.equation("eq-looped-bound")
@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_no_stream_gets_more_from_a_block_than_its_bound(scale):
    torch.manual_seed(0)
    block = Block(TransformerConfig(**SMALL, zero_output=False))
    bound = theory.block_bound(block)
    x, h = scale * torch.randn(2, 200, 12, 16)
    for query in (None, h):
        assert (block(x, query=query) - x).norm(dim=-1).max() <= bound


@pytest.mark.equation("eq-looped-bound")
@torch.no_grad()
def test_the_bound_is_attained():
    block = Block(TransformerConfig(**{**SMALL, "num_heads": 1}))
    x = torch.randn(1, 1, 16, generator=torch.Generator().manual_seed(0))
    # One token mixes nothing: the attention adds W_O W_V norm(x), of length 2 * 3 * sqrt(d).
    block.attention.value.weight.copy_(2 * torch.eye(16))
    block.attention.output.weight.copy_(3 * torch.eye(16))
    block.mlp.output.weight.zero_()
    assert theory.block_bound(block) == pytest.approx((block(x) - x).norm().item(), rel=1e-4)
    # One hidden unit that looks along x, and one direction that it writes to.
    block.attention.output.weight.zero_()
    block.mlp.hidden.weight.zero_()[0] = 2 * x[0, 0] / x.norm()
    block.mlp.output.weight[:, 0] = 1.5
    assert theory.block_bound(block) == pytest.approx((block(x) - x).norm().item(), rel=1e-4)


def test_the_bound_scales_with_the_output_projections():
    block = Block(TransformerConfig(**SMALL, zero_output=False))
    before = theory.block_bound(block)
    with torch.no_grad():
        block.attention.output.weight.mul_(3)
        block.mlp.output.weight.mul_(3)
    assert theory.block_bound(block) == pytest.approx(3 * before)


def test_the_bound_refuses_blocks_that_it_does_not_cover():
    with pytest.raises(ValueError, match="norm='rms'"):
        theory.block_bound(Block(TransformerConfig(**SMALL, activation="gelu")))


@pytest.mark.parametrize("name", NORMED)
def test_the_state_of_every_loop_stays_within_the_bound(name, batch):
    model = make(name, num_loops=9)
    limit = 4.0 + sum(theory.block_bound(block) for block in model.blocks)  # sqrt(16) = 4
    for state in model(batch[0], loop_states=True).loop_states:
        assert state.norm(dim=-1).max() <= limit


@pytest.mark.equation("eq-looped-covariance", "eq-looped-softmax")
def test_query_jacobian_is_that_of_autograd():
    generator = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(s, generator=generator).double() for s in ((6,), (9, 6), (9, 6)))
    output = lambda q: F.softmax(k @ q / 6**0.5, dim=-1) @ v  # noqa: E731
    assert_close(theory.query_jacobian(q, k, v), torch.autograd.functional.jacobian(output, q))


def test_alikeness_of_equal_and_of_fresh_states(batch):
    between, own = theory.alikeness(make("flt", zero_output=True), batch[0])
    assert own == pytest.approx([1.0] * 4)  # every state is the embedding
    same = torch.zeros_like(batch[0])
    between, _ = theory.alikeness(make("flt", zero_output=True), same)
    assert between == pytest.approx([1.0] * 4)


@pytest.mark.equation("eq-looped-alikeness")
def test_alikeness_is_the_mean_cosine_over_pairs(batch):
    model = make("original")
    state = model(batch[0], loop_states=True).loop_states[1].flatten(0, 1)
    cosines = F.cosine_similarity(state[:, None], state[None], dim=-1)
    between, _ = theory.alikeness(model, batch[0])
    assert between[1] == pytest.approx(cosines.mean().item(), abs=1e-5)


@pytest.mark.equation("eq-looped-bptt")
@pytest.mark.parametrize("name", INJECTIONS)
def test_loop_gradients_sum_to_the_gradient_of_autograd(name, batch):
    model = make(name)
    blocks = model.blocks
    terms = theory.loop_gradients(model, *batch)
    weights = list(model.blocks.parameters())
    whole = torch.autograd.grad(model.loss(*batch), weights)
    assert_close(terms.sum(0), torch.cat([g.flatten() for g in whole]), rtol=1e-3, atol=1e-6)
    assert model.blocks is blocks
    assert terms.shape == (4, sum(w.numel() for w in weights))


def test_the_last_loop_gradient_is_that_of_a_detached_state(batch):
    model = make("input")
    states = model(batch[0], loop_states=True).loop_states
    state = model.loop(model.embed(batch[0]), states[-2].detach())[-1]
    loss = F.cross_entropy(model.logits_from(state).flatten(0, 1), batch[1].flatten())
    last = torch.autograd.grad(loss, list(model.blocks.parameters()))
    expected = torch.cat([g.flatten() for g in last])
    assert_close(theory.loop_gradients(model, *batch)[-1], expected, rtol=1e-3, atol=1e-7)


@pytest.mark.equation("eq-looped-count")
@pytest.mark.parametrize("name", INJECTIONS)
@pytest.mark.parametrize("num_layers", [1, 3])
def test_gradient_count_is_that_of_autograd(name, num_layers, batch):
    def gradient(num_loops):
        model = make(name, num_loops, zero_output=True, num_layers=num_layers)
        last = model.blocks[-1]
        weights = [last.attention.output.weight, last.mlp.output.weight]
        gradients = torch.autograd.grad(model.loss(*batch), weights)
        return torch.cat([g.flatten() for g in gradients])

    once = gradient(1)
    counted = theory.gradient_count(name, 5, num_layers)
    assert_close(gradient(5), counted * once, rtol=1e-3, atol=1e-7)


@pytest.mark.equation("eq-looped-memory")
def test_checkpointed_loops_save_one_state_each(batch):
    inputs = batch[0]
    state = inputs.numel() * 16 * 4  # bytes of a (B, N, d) tensor of float32

    def cost(num_loops, checkpoint_loops):
        config = TransformerConfig(**SMALL)
        model = LoopedTransformer(config, num_loops, "flt", checkpoint_loops=checkpoint_loops)
        return theory.saved_bytes(model, *batch)

    assert cost(9, True) - cost(4, True) == 5 * state
    graph = (cost(9, False) - cost(4, False)) / 5
    assert graph > 10 * state
    assert cost(4, False) - cost(2, False) == pytest.approx(2 * graph)


@pytest.mark.equation("eq-looped-sharpness")
@pytest.mark.parametrize("num_loops", [3, 8])
@pytest.mark.parametrize("shared", [True, False])
def test_scalar_sharpness_is_the_top_curvature(num_loops, shared):
    def loss(w):
        product = w[0] ** num_loops if shared else w.prod()
        return 0.5 * (product - 1) ** 2

    w = torch.ones(1 if shared else num_loops, dtype=torch.float64)
    hessian = torch.autograd.functional.hessian(loss, w)
    top = torch.linalg.eigvalsh(hessian).max().item()
    assert theory.scalar_sharpness(num_loops, shared=shared) == pytest.approx(top)


@pytest.mark.parametrize("num_loops", [3, 12])
@pytest.mark.parametrize(("share", "settles"), [(0.9, True), (1.1, False)])
def test_gradient_descent_is_stable_below_two_over_the_sharpness(num_loops, share, settles):
    w, rate = 1.001, share * 2 / theory.scalar_sharpness(num_loops)
    for _ in range(400):
        w -= rate * num_loops * w ** (num_loops - 1) * (w**num_loops - 1)
    assert (abs(w - 1) < 1e-6) is settles


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="injection"):
        theory.gradient_count("none", 3, 2)
    with pytest.raises(ValueError, match="num_loops must be an integer >= 1, got 0"):
        theory.linear_states(torch.eye(2), torch.ones(2), 0)

import itertools
import math
import re

import numpy as np
import pytest
import torch
from scipy import fft, optimize
from torch.testing import assert_close

from unrolled.descent import networks
from unrolled.descent.networks import DUST, LISTA, UT, DUSTLayer, UTLayer
from unrolled.transformer import count_parameters

SMALL_DUST = {"num_pixels": 16, "num_atoms": 25, "projection_size": 5, "num_frames": 6}
SMALL_UT = {"num_pixels": 16, "hidden_size": 32, "projection_size": 8, "num_frames": 6}
MODELS = {"dust": lambda **o: DUST(**SMALL_DUST, **o), "ut": lambda **o: UT(**SMALL_UT, **o)}


def normal(*shape, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(*shape, generator=generator, dtype=torch.float64)


def make(name, seed=0, **options):
    torch.manual_seed(seed)
    return MODELS[name](**options).double()


@torch.no_grad()
def shaken(name, seed=0, scale=0.3, **options):
    """Return a model with every weight moved, as training would."""
    model = make(name, seed, **options)
    for weight in model.parameters():
        weight.add_(scale * weight.abs().mean().clamp(min=0.1) * torch.randn_like(weight))
    return model


@pytest.fixture
def frames():
    return normal(7, 6, 16, seed=1)


@pytest.fixture
def sparse_problem():
    D = normal(10, 16, seed=2)
    return D / D.norm(dim=0), normal(1, 3, 10, seed=3), 0.2


# --- the plain iterations ---------------------------------------------------------------------


def test_unroll_returns_the_start_and_every_state():
    states = networks.unroll(lambda h: 2 * h + 1, torch.tensor(1.0), 3)
    assert [state.item() for state in states] == [1.0, 3.0, 7.0, 15.0]


@pytest.mark.equation("eq-descent-soft-threshold")
@pytest.mark.parametrize("x", [-2.0, -0.3, 0.0, 0.4, 0.5, 3.0])
def test_soft_threshold_is_the_proximal_operator_of_the_l1_norm(x):
    found = optimize.minimize_scalar(lambda h: 0.5 * (h - x) ** 2 + 0.5 * abs(h), tol=1e-12)
    value = networks.soft_threshold(torch.tensor(x, dtype=torch.float64), 0.5)
    assert value.item() == pytest.approx(found.x, abs=1e-6)


@pytest.mark.equation("eq-descent-gradient-layer")
def test_gradient_layer_is_a_step_against_the_gradient_of_autograd(sparse_problem):
    D, y, _ = sparse_problem
    h = normal(1, 3, 16, seed=4).requires_grad_()
    (gradient,) = torch.autograd.grad(networks.lasso_objective(h, y, D, 0.0).sum(), h)
    assert_close(networks.gradient_layer(h, y, D, 0.1), h - 0.1 * gradient)


@pytest.mark.equation("eq-descent-lasso")
def test_lasso_objective_takes_one_threshold_for_each_atom():
    h, y, D = torch.tensor([[[1.0, -2.0]]]), torch.tensor([[[0.0, 1.0]]]), torch.eye(2)
    # 1/2 (1 + 9) + 3 * 1 + 5 * 2
    assert networks.lasso_objective(h, y, D, torch.tensor([3.0, 5.0])).item() == 18.0


def solve_lasso(y, D, threshold):
    """Solve for h = p - q with p, q >= 0: a smooth problem with bounds."""
    D, y = D.numpy(), y.numpy()

    def objective(pq):
        p, q = np.split(pq, 2)
        error = D @ (p - q) - y
        slope = D.T @ error
        value = 0.5 * error @ error + threshold * pq.sum()
        return value, np.concatenate([slope + threshold, -slope + threshold])

    size = 2 * D.shape[1]
    options = {"ftol": 1e-16, "gtol": 1e-11, "maxiter": 10_000}
    found = optimize.minimize(
        objective, np.zeros(size), jac=True, method="L-BFGS-B", bounds=[(0, None)] * size,
        options=options,
    )  # fmt: skip
    return np.subtract(*np.split(found.x, 2))


def ista(y, D, threshold, num_layers):
    step = 1 / torch.linalg.matrix_norm(D, 2).item() ** 2
    start = y.new_zeros(*y.shape[:2], D.shape[1])
    layer = lambda h: networks.ista_layer(h, y, D, step, threshold)  # noqa: E731
    return networks.unroll(layer, start, num_layers)


def test_ista_reaches_the_solution_of_an_independent_solver(sparse_problem):
    D, y, threshold = sparse_problem
    expected = torch.tensor(np.stack([solve_lasso(frame, D, threshold) for frame in y[0]]))
    found = ista(y, D, threshold, 3000)[-1][0]
    assert_close(found, expected, atol=1e-5, rtol=0)
    assert (found == 0).sum() > 5  # sparse


@pytest.mark.equation("eq-descent-ista")
def test_ista_is_done_in_one_layer_when_the_dictionary_is_orthogonal():
    D = torch.linalg.qr(normal(8, 8))[0]
    y = normal(2, 3, 8, seed=1)
    states = ista(y, D, 0.3, 2)
    assert_close(states[1], networks.soft_threshold(y @ D, 0.3))
    assert_close(states[2], states[1])


@pytest.mark.equation("eq-descent-ista")
def test_ista_never_raises_its_objective(sparse_problem):
    D, y, threshold = sparse_problem
    values = [networks.lasso_objective(h, y, D, threshold) for h in ista(y, D, threshold, 50)]
    assert all(b <= a + 1e-12 for a, b in itertools.pairwise(values))


@pytest.mark.equation("eq-descent-lista")
@pytest.mark.parametrize("tied", [True, False])
def test_lista_with_its_starting_weights_is_ista(sparse_problem, tied):
    D, y, threshold = sparse_problem
    output = LISTA(D, 6, threshold=threshold, tied=tied)(y)
    expected = ista(y, D, threshold, 6)
    assert_close(output.states, expected, rtol=0, atol=1e-13)
    assert_close(output.readouts, [h @ D.T for h in expected], rtol=0, atol=1e-13)


def test_lista_has_the_weights_of_one_layer_or_of_all(sparse_problem):
    D = sparse_problem[0]
    layer = 16 * 10 + 16 * 16 + 16
    for tied, count in ((True, 1), (False, 6)):
        assert count_parameters(LISTA(D, 6, threshold=0.1, tied=tied)) == count * layer + 160


# --- the coupling of the frames ---------------------------------------------------------------

SCALES = [1.0, 0.3, torch.tensor([0.2, 1.0, 3.0])]


def distances(H, V):
    return torch.cdist(H @ V.T, H @ V.T).square()


def column(scale):
    return torch.as_tensor(scale, dtype=torch.float64).view(-1, 1, 1)


@pytest.mark.equation("eq-descent-attention-weights", "eq-descent-coupling")
@pytest.mark.parametrize("scale", SCALES)
def test_attention_weights_and_energies_are_those_of_their_definition(scale):
    H, V, beta = normal(3, 5, 8), normal(4, 8, seed=1, scale=0.3), column(scale)
    kernel = torch.exp(-beta / 2 * distances(H, V))
    expected = kernel / kernel.sum(-1, keepdim=True)
    assert_close(networks.attention_weights(H, V, scale), expected)
    energy = -kernel.sum(-1).log().sum(-1) / beta.flatten()
    assert_close(networks.coupling_energy(H, V, scale), energy)
    assert_close(networks.kernel_energy(H, V, scale), -kernel.sum((1, 2)) / beta.flatten())


def test_attention_does_not_see_what_all_frames_share():
    H, V = normal(3, 5, 8), normal(4, 8, seed=1)
    shifted = H + 1e4 * normal(3, 1, 8, seed=2)
    assert_close(
        networks.attention_weights(shifted, V), networks.attention_weights(H, V),
        rtol=0, atol=1e-8,
    )  # fmt: skip


@pytest.mark.parametrize("spread", [0.01, 0.3, 3.0, 30.0])
def test_no_frame_weighs_more_in_a_row_than_the_row_itself(spread):
    a = networks.attention_weights(normal(50, 6, 8, scale=spread), normal(4, 8, seed=1))
    own = a.diagonal(dim1=1, dim2=2)
    assert (own.unsqueeze(-1) >= a).all()
    assert (own >= 1 / 6 - 1e-12).all()


@pytest.mark.equation("eq-descent-coupling-gradient")
@pytest.mark.parametrize("scale", SCALES)
def test_coupling_gradient_is_that_of_autograd(scale):
    H, V = normal(3, 5, 8).requires_grad_(), normal(4, 8, seed=1, scale=0.3)
    (expected,) = torch.autograd.grad(networks.coupling_energy(H, V, scale).sum(), H)
    assert_close(networks.coupling_gradient(H, V, scale), expected, rtol=0, atol=1e-14)


@pytest.mark.equation("eq-descent-majoriser")
@pytest.mark.parametrize("scale", SCALES)
def test_the_majoriser_touches_with_the_same_slope(scale):
    H, V = normal(3, 5, 8).requires_grad_(), normal(4, 8, seed=1, scale=0.3)
    value = networks.coupling_majoriser(H, H.detach(), V, scale)
    assert_close(value, networks.coupling_energy(H, V, scale))
    (slope,) = torch.autograd.grad(value.sum(), H)
    assert_close(slope, networks.coupling_gradient(H, V, scale))


@pytest.mark.equation("eq-descent-majoriser")
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("move", [0.01, 0.5, 5.0])
def test_the_majoriser_lies_above(scale, move):
    V = normal(4, 8, seed=1, scale=0.3)
    for seed in range(20):
        anchor, H = normal(3, 5, 8, seed=seed), normal(3, 5, 8, seed=100 + seed, scale=move)
        H = anchor + H
        above = networks.coupling_majoriser(H, anchor, V, scale)
        assert (above >= networks.coupling_energy(H, V, scale) - 1e-12).all()


@pytest.mark.equation("eq-descent-coupling-bound")
@pytest.mark.parametrize("num_frames", [2, 3, 8])
@pytest.mark.parametrize("spread", [0.1, 0.5, 1.0, 2.0])
def test_the_curvature_of_the_coupling_keeps_its_bound(num_frames, spread):
    a = networks.attention_weights(normal(200, num_frames, 3, scale=spread), torch.eye(3).double())
    w = a + a.mT
    curvature = torch.linalg.eigvalsh(torch.diag_embed(w.sum(-1)) - w)[:, -1]
    assert curvature.max() <= networks.coupling_bound(num_frames)


@pytest.mark.equation("eq-descent-coupling-bound")
def test_two_equal_frames_attain_the_bound():
    # The energy of two frames at distance z is -2 log(1 + exp(-z^2/2)): curvature 1 in z at 0,
    # and z = sqrt(2) x along the unit vector (1, -1) / sqrt(2).
    H, V = torch.zeros(1, 2, 1, dtype=torch.float64), torch.eye(1, dtype=torch.float64)
    energy = lambda H: networks.coupling_energy(H.view(1, 2, 1), V).sum()  # noqa: E731
    hessian = torch.autograd.functional.hessian(energy, H.flatten())
    top = torch.linalg.eigvalsh(hessian)[-1].item()
    assert top == pytest.approx(networks.coupling_bound(2)) == 2.0


@pytest.mark.equation("eq-descent-kernel")
@pytest.mark.parametrize("num_frames", [2, 3, 6])
@pytest.mark.parametrize("scale", [1.0, 0.2])
def test_averaging_by_attention_never_raises_the_kernel_energy(num_frames, scale):
    V = normal(3, 4, seed=1)  # blind in one direction
    for seed, spread in itertools.product(range(5), (0.2, 1.0, 3.0)):
        H = normal(100, num_frames, 4, seed=seed, scale=spread)
        averaged = networks.attention_weights(H, V, scale) @ H
        before, after = (networks.kernel_energy(S, V, scale) for S in (H, averaged))
        assert (after <= before + 1e-12).all()


@pytest.mark.equation("eq-descent-cooling")
def test_cooling_undoes_a_change_of_scale_exactly():
    H, V = normal(3, 5, 8), normal(4, 8, seed=1)
    scale = networks.cooling(0.5, 2.0)
    assert scale == 1 / 16
    hot = networks.attention_weights(4 * H, V, scale)
    assert_close(hot, networks.attention_weights(H, V))
    per_sequence = networks.cooling(0.5, torch.tensor([0.25, 0.5, 2.0]))
    assert per_sequence.tolist() == [4.0, 1.0, 1 / 16]


def test_noise_adds_to_squared_distances_what_the_docstring_says():
    V, noise = normal(4, 8, seed=1), 0.7 * normal(4000, 2, 8, seed=2)
    measured = distances(noise, V)[:, 0, 1].mean().item()
    assert measured == pytest.approx(2 * 0.49 * V.square().sum().item(), rel=0.05)


# --- what the networks share --------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_every_layer_has_a_state_and_a_readout(name, frames):
    model = shaken(name, num_layers=4)
    output = model(frames)
    assert len(output.states) == len(output.readouts) == 5
    assert output.energies is None
    assert output.self_weights is None
    for state, readout in zip(output.states[1:], output.readouts[1:], strict=True):
        assert readout.shape == frames.shape
        assert_close(readout, model.readout(state))


@pytest.mark.parametrize("name", MODELS)
def test_the_first_readout_does_not_depend_on_the_weights(name, frames):
    first = shaken(name)(frames).readouts[0]
    assert_close(first, torch.zeros_like(frames) if name == "dust" else frames, rtol=0, atol=0)
    assert not first.requires_grad


@pytest.mark.parametrize("name", MODELS)
def test_a_trainable_start_can_be_changed_by_the_weights(name, frames):
    model = shaken(name, trainable_start=True)
    output = model(frames)
    assert_close(output.readouts[0], model.readout(output.states[0]))
    output.readouts[0].square().mean().backward()
    assert any(w.grad is not None and w.grad.abs().max() > 0 for w in model.parameters())


def test_dust_with_a_trainable_start_begins_with_the_adjoint(frames):
    model = make("dust", trainable_start=True)
    assert_close(model(frames).states[0], frames @ model.dictionary)


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_tied_and_untied_layers_of_equal_weights_agree(name, frames):
    tied, untied = shaken(name, num_layers=5, tied=True), make(name, num_layers=5, tied=False)
    weights = tied.state_dict()
    first = {key: re.sub(r"^layers\.\d+", "layers.0", key) for key in untied.state_dict()}
    untied.load_state_dict({key: weights[source] for key, source in first.items()})
    ours, theirs = tied(frames, energies=True), untied(frames, energies=True)
    assert_close(ours.readouts, theirs.readouts, rtol=0, atol=0)
    assert_close(ours.energies, theirs.energies, rtol=0, atol=0)
    # tied, the end of one layer is the start of the next
    assert_close(ours.energies[:-1, 1], ours.energies[1:, 0], rtol=0, atol=0)


@pytest.mark.parametrize("name", MODELS)
def test_energies_are_those_of_each_layer_before_and_after_it(name, frames):
    model = shaken(name, num_layers=3, tied=False)
    output = model(frames, energies=True, logit_scale=0.4)
    assert output.energies.shape == (3, 2, 7)
    assert not output.energies.requires_grad
    context = model.context(frames)
    for index, layer in enumerate(model.layers):
        for end in (0, 1):
            expected = model.energy(layer, output.states[index + end], context, 0.4)
            assert_close(output.energies[index, end], expected)


@pytest.mark.parametrize("name", MODELS)
def test_self_weights_are_the_diagonal_of_attention(name, frames):
    model = shaken(name, num_layers=3, tied=False)
    output = model(frames, self_weights=True)
    for weights, layer, state in zip(
        output.self_weights, model.layers, output.states[:-1], strict=True
    ):
        a = networks.attention_weights(state, layer.projection)
        assert_close(weights, torch.einsum("btt->bt", a))


@pytest.mark.parametrize("name", MODELS)
def test_attention_collapses_on_loud_noise_and_cooling_undoes_it(name, frames):
    model = make(name, num_layers=4)
    own = lambda **o: model(20 * frames, self_weights=True, **o).self_weights[-1].mean()  # noqa: E731
    assert own() > 0.9
    assert own(logit_scale=networks.cooling(1.0, 20.0)) < 0.5


@pytest.mark.parametrize("name", MODELS)
def test_the_logit_scale_of_one_changes_nothing(name, frames):
    model = shaken(name)
    plain = model(frames, energies=True, self_weights=True)
    scaled = model(frames, energies=True, self_weights=True, logit_scale=torch.ones(7))
    for ours, theirs in zip(plain, scaled, strict=True):
        assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.parametrize("name", MODELS)
def test_a_logit_scale_for_each_sequence_is_that_of_separate_calls(name, frames):
    model, scale = shaken(name), torch.linspace(0.1, 2, 7)
    together = model(frames, logit_scale=scale, energies=True)
    for b in range(7):
        alone = model(frames[b : b + 1], logit_scale=scale[b].item(), energies=True)
        assert_close(together.readouts[-1][b : b + 1], alone.readouts[-1])
        assert_close(together.energies[..., b : b + 1], alone.energies)


@pytest.mark.parametrize("name", MODELS)
def test_sequences_do_not_see_each_other_and_may_be_shorter(name, frames):
    model = shaken(name)
    whole = model(frames).readouts[-1]
    assert_close(model(frames[2:3]).readouts[-1], whole[2:3])
    assert model(frames[:, :4]).readouts[-1].shape == (7, 4, 16)


@pytest.mark.parametrize("name", MODELS)
def test_every_weight_gets_a_gradient(name, frames):
    model = shaken(name, num_layers=3)
    model(frames).readouts[-1].square().mean().backward()
    silent = [key for key, w in model.named_parameters() if w.grad is None or not w.grad.any()]
    # all codes are 0 before the first layer of DUST, and there is nothing to couple
    expected = ["layers.0.projection", "layers.0.coupling"] if name == "dust" else []
    assert silent == expected


@pytest.mark.equation("eq-descent-dust", "eq-descent-ut")
def test_the_published_sizes():
    assert count_parameters(DUST()) == 91_144
    assert count_parameters(UT()) == 37_888
    assert count_parameters(UT(tied=False)) == 181_248
    assert count_parameters(DUST(tied=True)) == 8_192 + 10_369


def test_cosine_dictionary_is_the_discrete_cosine_transform_by_frequency():
    E = networks.cosine_dictionary(16, 16).double()
    assert_close(E.T @ E, torch.eye(16).double(), atol=1e-6, rtol=0)
    patch = normal(4, 4)
    expected = torch.tensor(fft.dctn(patch.numpy(), norm="ortho"))
    order = torch.argsort((torch.arange(4)[:, None] + torch.arange(4)).flatten(), stable=True)
    assert_close(patch.flatten() @ E, expected.flatten()[order], atol=1e-6, rtol=0)


@pytest.mark.parametrize("num_atoms", [5, 25, 40])
def test_cosine_dictionary_has_unit_atoms_and_misses_no_image(num_atoms):
    D = networks.cosine_dictionary(16, num_atoms)
    assert_close(D.norm(dim=0), torch.ones(num_atoms))
    assert torch.linalg.matrix_rank(D) == min(16, num_atoms)


# --- DUST ---------------------------------------------------------------------------------------


@torch.no_grad()
def test_dust_without_coupling_is_ista(frames):
    model = make("dust", coupling=0.0, tied=True, num_layers=5)
    layer = model.layers[0]
    D = normal(16, 25, seed=5)
    model.dictionary.copy_(D)
    layer.encoder.copy_(D.T)
    layer.threshold.copy_(normal(25, seed=6).abs())
    h, step = torch.zeros(7, 6, 25).double(), layer.step
    for state in model(frames).states:
        assert_close(state, h, rtol=0, atol=1e-13)
        inner = h - step * torch.einsum(
            "pn,btp->btn", D, torch.einsum("pn,btn->btp", D, h) - frames
        )
        h = torch.sign(inner) * torch.relu(inner.abs() - step * layer.threshold)


@torch.no_grad()
def test_dust_without_coupling_is_unrolled_with_any_encoder(frames):
    model = shaken("dust", num_layers=3)
    h = torch.zeros(7, 6, 25).double()
    for layer in model.layers:
        layer.coupling.zero_()
    for layer, state in zip(model.layers, model(frames).states[1:], strict=True):
        inner = h - layer.step * ((h @ model.dictionary.T - frames) @ layer.encoder.T)
        h = torch.sign(inner) * torch.relu(inner.abs() - layer.step * layer.threshold.clamp(min=0))
        assert_close(state, h, rtol=0, atol=1e-13)


@pytest.mark.equation("eq-descent-dust-layer")
@torch.no_grad()
def test_dust_layer_is_its_formula_frame_by_frame(frames):
    model = shaken("dust")
    layer, D, h = model.layers[2], model.dictionary, normal(7, 6, 25, seed=3)
    V, mu, step = layer.projection, layer.coupling, layer.step
    after = layer(h, frames, D, 0.5)
    a = torch.stack([networks.attention_weights(s[None], V, 0.5)[0] for s in h])
    for b, t in itertools.product(range(2), range(6)):
        # every pair pulls twice: t looks at s, and s looks at t
        pull = sum((a[b, t, s] + a[b, s, t]) * V.T @ V @ (h[b, t] - h[b, s]) for s in range(6))
        x = h[b, t] - step * (layer.encoder @ (D @ h[b, t] - frames[b, t]) + mu * pull)
        shrunk = torch.sign(x) * torch.relu(x.abs() - step * layer.threshold.clamp(min=0))
        assert_close(after[b, t], shrunk)


@torch.no_grad()
def test_dust_starts_with_distances_between_slow_waves_of_the_patch():
    model, h = make("dust"), normal(2, 6, 25)
    slow = networks.cosine_dictionary(16, 16)[:, :5].double()
    for layer in model.layers:
        assert_close(h @ layer.projection.T, 0.5 * model.readout(h) @ slow, atol=1e-6, rtol=0)


@pytest.mark.parametrize("coupling", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("scale", [1.0, 0.05, torch.linspace(0.1, 4, 7)])
def test_untrained_dust_lowers_its_objective_in_every_layer(frames, coupling, scale):
    model = make("dust", coupling=coupling)
    output = model(frames, energies=True, logit_scale=scale)
    assert (output.energies[:, 1] < output.energies[:, 0]).all()


@pytest.mark.equation("eq-descent-dust-objective")
@torch.no_grad()
def test_dust_lowers_its_objective_from_any_codes_with_any_weights_and_the_safe_step(frames):
    for seed in range(20):
        D, V, h = normal(16, 25, seed=seed), normal(5, 25, seed=seed + 50), normal(7, 6, 25, seed=9)
        layer = DUSTLayer(D, V, threshold=0.3, coupling=2.0, num_frames=6).double()
        h = h * 2.0 ** (seed % 5 - 2)
        before = layer.objective(h, frames, D)
        assert (layer.objective(layer(h, frames, D), frames, D) < before).all()


@torch.no_grad()
def test_dust_may_rise_with_a_step_far_above_the_safe_one(frames):
    model = make("dust", num_layers=3)
    for layer in model.layers:
        layer.step.mul_(30)
    energies = model(frames, energies=True).energies
    assert (energies[:, 1] > energies[:, 0]).any()


@torch.no_grad()
def test_negative_thresholds_and_couplings_count_as_zero(frames):
    model, zero = shaken("dust"), shaken("dust")
    for layer, other in zip(model.layers, zero.layers, strict=True):
        layer.threshold.fill_(-1.0)
        layer.coupling.fill_(-1.0)
        other.threshold.zero_()
        other.coupling.zero_()
    ours, theirs = model(frames, energies=True), zero(frames, energies=True)
    assert_close(ours.readouts, theirs.readouts)
    assert_close(ours.energies, theirs.energies)


@pytest.mark.equation("eq-descent-safe-step")
def test_safe_step_is_that_of_ista_without_coupling():
    D, V = normal(16, 25), normal(5, 25)
    expected = 1 / torch.linalg.matrix_norm(D, 2).item() ** 2
    assert networks.safe_step(D, V, 0.0, 8) == pytest.approx(expected)
    assert networks.safe_step(D, V, 3.0, 1) == pytest.approx(expected)


# --- UT -----------------------------------------------------------------------------------------


def matched(feedforward, *, symmetric_attention=False):
    """Return a layer with V'V = -W/2."""
    values, vectors = torch.linalg.eigh(-0.5 * feedforward)
    V = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
    return UTLayer(V, feedforward, symmetric_attention=symmetric_attention)


def negative_weights(size, seed, low=-0.95, high=0.0):
    """Return a random symmetric matrix with eigenvalues between two numbers."""
    Q = torch.linalg.qr(normal(size, size, seed=seed))[0]
    values = low + (high - low) * torch.rand(size, generator=torch.Generator().manual_seed(seed))
    return (Q * values.double()) @ Q.T


@torch.no_grad()
def energies_along(layer, inputs, num_layers=12):
    states = networks.unroll(lambda Y: layer(Y, inputs), torch.relu(inputs), num_layers)
    return states, torch.stack([layer.energy(Y, inputs) for Y in states])  # (L + 1, B)


def never_rises(energies):
    return bool((energies[1:] <= energies[:-1] + 1e-10).all())


@pytest.mark.equation("eq-descent-ut-layer")
@pytest.mark.parametrize("symmetric_attention", [False, True])
@torch.no_grad()
def test_ut_layer_is_its_formula_frame_by_frame(frames, symmetric_attention):
    model = shaken("ut", symmetric_attention=symmetric_attention)
    layer, Y = model.layers[0], normal(7, 6, 32, seed=3).abs()
    B = frames @ model.embedding + model.positions
    assert_close(model.context(frames), B)
    after, a = layer(Y, B), networks.attention_weights(Y, layer.projection)
    W = (layer.feedforward + layer.feedforward.T) / 2
    for b, t in itertools.product(range(2), range(6)):
        z = sum(a[b, t, s] * Y[b, s] for s in range(6))
        if symmetric_attention:
            pull = sum((a[b, t, s] + a[b, s, t]) * (Y[b, t] - Y[b, s]) for s in range(6))
            z = Y[b, t] - pull / 2
        assert_close(after[b, t], torch.relu(B[b, t] - W @ z))


@pytest.mark.equation("eq-descent-orthant")
def test_the_feed_forward_part_is_a_proximal_gradient_step_of_size_one(frames):
    W, B = negative_weights(8, 1, high=0.9), normal(5, 6, 8, seed=2)
    Z = normal(5, 6, 8, seed=3).abs().requires_grad_()
    (gradient,) = torch.autograd.grad(networks.orthant_energy(Z, B, W).sum(), Z)
    assert_close(torch.relu(B - Z @ W), torch.relu(Z - gradient))


@torch.no_grad()
@pytest.mark.parametrize("seed", range(5))
def test_the_feed_forward_part_never_raises_its_energy_below_eigenvalue_one(seed):
    W, B = negative_weights(8, seed, low=-2.0, high=1.0), normal(50, 6, 8, seed=2)
    Z = normal(50, 6, 8, seed=seed).abs()
    before, after = (networks.orthant_energy(Y, B, W) for Y in (Z, torch.relu(B - Z @ W)))
    assert (after <= before + 1e-12).all()


def test_the_feed_forward_part_can_raise_its_energy_above_eigenvalue_one():
    W, B, Z = 1.5 * torch.eye(1), torch.full((1, 1, 1), 1.0), torch.full((1, 1, 1), 0.5)
    after = torch.relu(B - Z @ W)  # 1/4, beyond the minimum at 2/5: nearer than 1/2 was
    assert networks.orthant_energy(after, B, W) > networks.orthant_energy(Z, B, W)


def test_the_orthant_is_all_there_is():
    energy = networks.orthant_energy(torch.tensor([[[1.0]], [[-1e-6]]]), torch.zeros(2, 1, 1),
                                     torch.zeros(1, 1))  # fmt: skip
    assert energy.tolist() == [0.5, math.inf]


@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("seed", range(4))
def test_ut_energy_never_rises_for_two_frames_with_the_matched_metric(seed, scale):
    layer = matched(negative_weights(8, seed))
    states, energies = energies_along(layer, normal(50, 2, 8, seed=seed, scale=scale))
    assert never_rises(energies)
    # the gradient is the right one: what is missing to a positive margin is rounding
    margin = networks.descent_margin(layer, states[0], states[1])
    assert (margin > -1e-12).all()


@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
@pytest.mark.parametrize(("num_frames", "low"), [(2, -1.0), (3, -1.0), (6, -0.42)])
def test_ut_energy_never_rises_with_symmetric_attention_and_the_matched_metric(
    num_frames, low, scale
):
    assert -low * (networks.coupling_bound(num_frames) / 2 - 1) <= 1
    for seed in range(4):
        layer = matched(negative_weights(8, seed, low=low), symmetric_attention=True)
        inputs = normal(50, num_frames, 8, seed=seed, scale=scale)
        assert never_rises(energies_along(layer, inputs)[1])


def test_ut_energy_never_rises_for_one_frame():
    layer = UTLayer(normal(8, 8), negative_weights(8, 0, high=0.95))
    assert never_rises(energies_along(layer, normal(50, 1, 8, seed=1))[1])


def count_rises(layer, inputs):
    """Return how many layers the margin declares safe, and how many of the others rise."""
    inside = outside = 0
    states, energies = energies_along(layer, inputs)
    for rise, before, after in zip(energies.diff(dim=0), states[:-1], states[1:], strict=True):
        safe = networks.descent_margin(layer, before, after) >= 0
        assert (rise[safe] <= 1e-12).all()
        inside += safe.sum().item()
        outside += (rise[~safe] > 1e-9).sum().item()
    return inside, outside


@pytest.mark.equation("eq-descent-ut-regime")
@pytest.mark.parametrize("seed", range(3))
def test_ut_energy_never_rises_where_the_margin_is_positive(seed):
    W = negative_weights(8, seed, low=-0.6)
    inputs = normal(40, 1, 8, seed=seed) + 0.3 * normal(40, 5, 8, seed=9 + seed)
    # common attention: the promise is not empty, and without it the energy may rise
    inside, outside = count_rises(matched(W), inputs)
    assert inside > 100
    assert outside > 10
    # symmetric attention: the promise holds in all 12 layers of all 40 sequences
    assert count_rises(matched(W, symmetric_attention=True), inputs) == (480, 0)
    # a metric of its own
    inside, outside = count_rises(UTLayer(normal(4, 8, seed=seed, scale=0.1), W), inputs)
    assert inside > 0
    assert outside > 10


def test_the_error_of_the_margin_is_that_of_the_gradient():
    layer, Y = UTLayer(normal(4, 8, scale=0.3), negative_weights(8, 0)), normal(3, 5, 8).abs()
    B = normal(3, 5, 8, seed=2)
    Y.requires_grad_()
    (gradient,) = torch.autograd.grad(layer.energy(Y, B).sum(), Y)
    G = Y - (B - layer.mix(Y) @ layer.symmetric())
    # no move leaves the error alone
    still = networks.descent_margin(layer, Y, Y)
    assert_close(still, -(gradient - G).flatten(1).norm(dim=1))


@torch.no_grad()
def test_the_margin_knows_the_curvature_of_the_majoriser():
    W = negative_weights(8, 0)
    layer, Y = matched(W, symmetric_attention=True), normal(20, 5, 8).abs()
    a = networks.attention_weights(Y, layer.projection)
    w = (a + a.mT).numpy()
    pull = np.linalg.eigvalsh(np.stack([np.diag(x.sum(0)) - x for x in w]))[:, -1]
    top = np.linalg.eigvalsh(layer.projection.T @ layer.projection)[-1]
    curvature = torch.tensor(1 + np.linalg.eigvalsh(W)[-1] + top * pull)
    # no error here: the margin is what the curvature leaves of the move, of length sqrt(40)
    margin = networks.descent_margin(layer, Y, Y + 1)
    assert_close(margin, (1 - curvature / 2) * math.sqrt(40))


def test_ut_starts_as_a_network_that_keeps_what_does_not_change():
    model = make("ut", num_layers=40)
    still = normal(3, 1, 16).expand(3, 6, 16)
    assert_close(model(still).readouts[-1], still, atol=1e-6, rtol=0)


def test_ut_starts_as_a_smoother_over_the_frames():
    noise = 0.5 * normal(50, 6, 16)
    error = [readout.square().mean().item() for readout in make("ut")(noise).readouts]
    assert error[-1] < 0.5 * error[0]


@torch.no_grad()
def test_clipping_gives_the_nearest_symmetric_matrix_of_that_norm():
    F = normal(8, 8, scale=2.0)
    clipped = networks.clip_eigenvalues(F, 0.95)
    assert_close(clipped, clipped.T)
    assert torch.linalg.matrix_norm(clipped, 2) <= 0.95 + 1e-12
    S = (F + F.T) / 2
    # nearest: the rest is normal to the ball at the clipped matrix
    for seed in range(20):
        other = networks.clip_eigenvalues(normal(8, 8, seed=seed + 1, scale=2.0), 0.95)
        assert ((S - clipped) * (other - clipped)).sum() <= 1e-12
    assert_close(networks.clip_eigenvalues(0.1 * S), 0.1 * S)


@torch.no_grad()
def test_ut_clips_every_layer_and_may_be_clipped_twice():
    model = make("ut", tied=False, num_layers=3)
    for layer in model.layers:
        layer.feedforward.copy_(normal(32, 32))
    model.clip(0.5)
    once = [layer.feedforward.clone() for layer in model.layers]
    assert all(torch.linalg.eigvalsh(W).abs().max() <= 0.5 + 1e-12 for W in once)
    model.clip(0.5)
    assert_close([layer.feedforward for layer in model.layers], once)


def test_a_small_ut_keeps_the_slow_waves():
    model = UT(num_pixels=16, hidden_size=8, num_frames=2)
    assert model.embedding.shape == (16, 8)
    slow = networks.cosine_dictionary(16, 16)[:, :4]
    assert_close(model.embedding @ model.output, slow @ slow.T)


def test_a_random_ut_may_have_any_size(frames):
    model = UT(num_pixels=16, hidden_size=45, num_frames=6, initialisation="random").double()
    assert model(frames).readouts[-1].shape == frames.shape


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: UT(num_layers=0), "num_layers must be an integer >= 1, got 0"),
        (lambda: UT(hidden_size=45), "hidden_size must be even and at most 128, got 45"),
        (lambda: UT(hidden_size=130), "hidden_size must be even and at most 128, got 130"),
        (lambda: UT(num_pixels=63), "num_pixels must be a square, got 63"),
        (lambda: UT(initialisation="zero"), "initialisation must be one of"),
        (lambda: UT(projection_size=0), "projection_size must be an integer >= 1"),
        (lambda: DUST(projection_size=65), "projection_size must be at most num_pixels = 64"),
        (lambda: DUST(num_frames=0), "num_frames must be an integer >= 1"),
        (lambda: DUST(num_atoms=2.5), "num_atoms must be an integer >= 1, got 2.5"),
        (lambda: DUST(threshold=-0.1), "threshold must be at least 0 and finite, got -0.1"),
        (lambda: DUST(coupling=math.inf), "coupling must be at least 0 and finite, got inf"),
        (lambda: LISTA(torch.eye(2), 0, threshold=0.1), "num_layers must be an integer >= 1"),
        (lambda: LISTA(torch.ones(2), 1, threshold=0.1), "shape of dictionary must be"),
        (lambda: LISTA(torch.eye(2), 1, threshold=-1.0), "threshold must be at least 0"),
        (lambda: networks.unroll(torch.relu, torch.ones(1), 0), "num_layers must be"),
        (lambda: networks.coupling_bound(0), "num_frames must be an integer >= 1"),
        (lambda: networks.cooling(0.0, 1.0), "gamma_train must be above 0 and finite, got 0.0"),
        (lambda: networks.cooling(1.0, -1.0), "gamma must be above 0 and finite, got -1.0"),
        (lambda: networks.clip_eigenvalues(torch.eye(2), 0.0), "limit must be above 0"),
    ],
)
def test_bad_arguments_are_refused_by_name(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((6, 16), None), ((2, 6, 15), None), ((2, 7, 16), None), ((2, 0, 16), None),
     ((2, 6, 16), torch.int64)],
)  # fmt: skip
def test_bad_frames_are_refused_by_name(name, shape, dtype):
    with pytest.raises(ValueError, match="of frames must be"):
        make(name)(torch.zeros(shape, dtype=dtype or torch.float64))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf, torch.ones(3), torch.ones(7, 1)])
def test_bad_logit_scales_are_refused_by_name(name, scale, frames):
    with pytest.raises(ValueError, match="logit_scale must be"):
        make(name)(frames, logit_scale=scale)


def test_what_is_not_a_tensor_is_refused_by_name():
    with pytest.raises(TypeError, match="frames must be a tensor, got list"):
        make("ut")([1.0])
    with pytest.raises(TypeError, match="frames must be a tensor"):
        LISTA(torch.eye(2), 1, threshold=0.1)(None)
    with pytest.raises(TypeError, match="logit_scale must be a number or a tensor, got NoneType"):
        make("dust")(torch.zeros(1, 2, 16).double(), logit_scale=None)
    with pytest.raises(TypeError, match="dictionary must be a tensor, got list"):
        LISTA([[1.0]], 1, threshold=0.1)

"""Noise by its moments, seeds and hooks; its privacy against integration and Monte Carlo."""

import math

import pytest
import torch
from scipy import integrate, stats
from torch import nn
from torch.testing import assert_close

from unrolled.descent import perturb
from unrolled.descent.perturb import (
    NOISES,
    Perturbation,
    classical_epsilon,
    clip_embeddings,
    embedding_layer,
    embedding_privacy,
    embedding_scale,
    gaussian_delta,
    gaussian_epsilon,
    noise_level,
    perturb_embeddings,
    perturb_tokens,
    replacement_probability,
)
from unrolled.training import TrainingConfig, fit
from unrolled.transformer import Transformer, TransformerConfig


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


# --- noise ------------------------------------------------------------------------------------


@pytest.mark.equation("eq-descent-noise")
@pytest.mark.parametrize("kind", ["gaussian", "uniform"])
def test_noise_has_the_standard_deviation_of_its_level(kind):
    e = torch.full((200, 500), 3.0)
    noise = perturb_embeddings(e, 0.5, kind=kind, scale=2.0, generator=rng()) - e
    assert noise.mean().item() == pytest.approx(0.0, abs=0.01)
    assert noise.std().item() == pytest.approx(0.5 * 2.0, rel=0.01)
    kurtosis = (noise**4).mean() / noise.var() ** 2  # 3 for a Gaussian, 9/5 for a uniform variable
    assert kurtosis.item() == pytest.approx(3.0 if kind == "gaussian" else 1.8, rel=0.02)


def test_uniform_noise_is_bounded():
    noise = perturb_embeddings(torch.zeros(1000), 1.0, kind="uniform", scale=1.0, generator=rng())
    assert noise.abs().max() <= math.sqrt(3)


@pytest.mark.parametrize("kind", NOISES)
@pytest.mark.parametrize("gamma", [0.4, 1.0])
def test_all_kinds_have_the_same_mean_square(kind, gamma):
    vocab, d = 500, 20
    table = nn.Embedding(vocab, d)
    table.weight.data.normal_(std=0.3, generator=rng())
    tokens = torch.randint(vocab, (300, 200), generator=rng(1))
    with Perturbation(table, gamma, kind=kind, generator=rng(2)):
        noisy = table(tokens)
    measured = (noisy - table(tokens)).square().sum(dim=-1).mean().item()
    assert measured == pytest.approx(gamma**2 * 0.3**2 * d, rel=0.05)


@pytest.mark.parametrize("part", [700, 10**6])
def test_the_scale_is_that_of_all_entries(part, monkeypatch):
    monkeypatch.setattr(perturb, "PART", part)
    e = torch.randn(50, 60, generator=rng()) * 0.7 + torch.arange(50.0)[:, None]
    assert embedding_scale(e) == pytest.approx(e.double().std(correction=0).item())
    clean = torch.zeros(4, 5)
    noisy = perturb_embeddings(e, 1.0, generator=rng(1)) - e
    again = perturb_embeddings(clean.new_zeros(50, 60), 1.0, scale=1.0, generator=rng(1))
    assert_close(noisy, embedding_scale(e) * again, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["gaussian", "uniform"])
def test_a_seed_gives_the_same_noise_and_level_zero_none(kind):
    e = torch.randn(3, 4, generator=rng())
    options = {"kind": kind, "scale": 1.0}
    one, two = (perturb_embeddings(e, 0.5, generator=rng(1), **options) for _ in range(2))
    assert torch.equal(one, two)
    assert not torch.equal(one, perturb_embeddings(e, 0.5, generator=rng(2), **options))
    assert torch.equal(perturb_embeddings(e, 0.0, **options), e)


def test_noise_lets_the_gradient_through_and_keeps_the_type():
    e = torch.ones(2, 3, dtype=torch.bfloat16, requires_grad=True)
    noisy = perturb_embeddings(e, 1.0, scale=1.0)
    assert noisy.dtype == torch.bfloat16
    noisy.sum().backward()
    assert_close(e.grad, torch.ones_like(e))


@pytest.mark.equation("eq-descent-noise")
def test_tokens_are_replaced_as_often_as_the_level_says():
    tokens = torch.zeros(100_000, dtype=torch.long)
    noisy = perturb_tokens(tokens, 0.8, 1000, generator=rng())
    # One replaced token in a thousand is drawn as itself.
    expected = replacement_probability(0.8) * 0.999
    assert (noisy != tokens).float().mean().item() == pytest.approx(expected, abs=0.005)
    assert noisy.dtype == torch.long
    assert noisy.unique().numel() == 1000


def test_from_root_two_on_every_token_is_random():
    assert replacement_probability(math.sqrt(2)) == pytest.approx(1.0)
    assert replacement_probability(5.0) == 1.0


def test_kept_tokens_are_neither_replaced_nor_drawn():
    tokens = torch.arange(6).repeat(500)
    noisy = perturb_tokens(tokens, 2.0, 6, keep=(0, 5), generator=rng())
    kept = (tokens == 0) | (tokens == 5)
    assert torch.equal(noisy[kept], tokens[kept])
    assert set(noisy[~kept].tolist()) == {1, 2, 3, 4}
    with pytest.raises(ValueError, match="keep must be fewer tokens"):
        perturb_tokens(tokens, 2.0, 2, keep=(0, 1))


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: perturb_embeddings(torch.ones(2), -0.1), "gamma"),
        (lambda: perturb_embeddings(torch.ones(2), 0.1, kind="discrete"), "kind"),
        (lambda: Perturbation(nn.Embedding(2, 2), 0.1, kind="salt"), "kind"),
        (lambda: Perturbation(nn.Embedding(2, 2), 0.1, when="test"), "when"),
        (lambda: clip_embeddings(torch.ones(2), 0.0), "clip_norm"),
        (lambda: gaussian_epsilon(1.0, 1.0, 1.0), "delta"),
        (lambda: gaussian_delta(-1.0, 1.0, 1.0), "epsilon"),
        (lambda: classical_epsilon(0.0, 1.0, 0.1), "noise_std"),
        (lambda: embedding_privacy(0.0, 1.0, 1.0), "gamma"),
        (lambda: embedding_privacy(1.0, 1.0, 1.0, num_tokens=0), "num_tokens"),
        (lambda: noise_level(0.0, 1.0, 1.0), "epsilon"),
    ],
)
def test_arguments_outside_their_range_are_named(call, name):
    with pytest.raises(ValueError, match=f"{name} must be"):
        call()


# --- in a model -------------------------------------------------------------------------------

CONFIG = TransformerConfig(vocab_size=40, num_layers=1, hidden_size=8, num_heads=2, max_length=16)
TOKENS = torch.randint(40, (2, 6), generator=rng(3))


def make_model():
    torch.manual_seed(0)
    model = Transformer(CONFIG)
    nn.init.normal_(model.head.weight)
    return model


@pytest.mark.parametrize("kind", NOISES)
def test_the_context_disturbs_the_embedding_and_nothing_after_it_ends(kind):
    model = make_model()
    clean = model(TOKENS).logits
    with Perturbation(model, 1.0, kind=kind, generator=rng(1)):
        noisy = model(TOKENS).logits
    assert not torch.allclose(noisy, clean)
    assert torch.equal(model(TOKENS).logits, clean)


def test_the_hook_adds_what_the_function_adds():
    model = make_model()
    scale = embedding_scale(model.embedding.weight)
    with Perturbation(model, 0.7, generator=rng(1)):
        noisy = model.embedding(TOKENS)
    by_function = perturb_embeddings(model.embedding(TOKENS), 0.7, scale=scale, generator=rng(1))
    assert torch.equal(noisy, by_function)


@pytest.mark.parametrize(("when", "training"), [("training", True), ("evaluation", False)])
def test_noise_can_be_kept_to_one_phase(when, training):
    model = make_model()
    with Perturbation(model, 1.0, when=when):
        for mode in (True, False):
            model.train(mode)
            disturbed = not torch.equal(model.embedding(TOKENS), model.embedding.weight[TOKENS])
            assert disturbed == (mode == training)


def test_level_zero_is_no_noise_and_the_level_can_change():
    model = make_model()
    with Perturbation(model, 0.0) as noise:
        assert torch.equal(model.embedding(TOKENS), model.embedding.weight[TOKENS])
        noise.gamma = 1.0
        assert not torch.equal(model.embedding(TOKENS), model.embedding.weight[TOKENS])
        with pytest.raises(RuntimeError, match="already open"), noise:
            pass


def test_the_embedding_of_any_model_is_found():
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8}
    bert = BertModel(BertConfig(vocab_size=40, num_hidden_layers=1, **sizes)).eval()
    assert embedding_layer(bert) is bert.embeddings.word_embeddings
    model, table = make_model(), nn.Embedding(3, 2)
    assert embedding_layer(model) is model.embedding
    assert embedding_layer(table) is table
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Embedding or have one"):
        embedding_layer(nn.Linear(2, 2))
    clean = bert(TOKENS).last_hidden_state
    with Perturbation(bert, 1.0, generator=rng(1)):
        assert not torch.allclose(bert(TOKENS).last_hidden_state, clean)


def test_a_seeded_training_noise_resumes_with_its_run(tmp_path):
    class KilledError(Exception):
        pass

    def train(kill_at=None, **settings):
        model = make_model()

        def batch_at(step):
            if step == kill_at:
                raise KilledError
            return torch.randint(40, (2, 6), generator=rng(step))

        with Perturbation(model, 0.5, when="training", generator=rng(7)) as noise:
            fit(
                model,
                batch_at,
                lambda model, tokens: model.loss(tokens[:, :-1], tokens[:, 1:]),
                TrainingConfig(steps=4, batch_size=2, seed=0, **settings),
                [torch.optim.SGD(model.parameters(), lr=0.1)],
                stateful={"noise": noise},
            )
        return model

    kept = {"checkpoint_folder": tmp_path, "checkpoint_every": 2}
    expected = train()
    with pytest.raises(KilledError):
        train(kill_at=3, **kept)
    for one, two in zip(expected.parameters(), train(**kept).parameters(), strict=True):
        assert torch.equal(one, two)


# --- privacy ----------------------------------------------------------------------------------


@pytest.mark.equation("eq-descent-privacy")
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0, 3.0])
@pytest.mark.parametrize("ratio", [0.3, 1.0, 2.0])
def test_delta_is_the_hockey_stick_divergence_of_two_gaussians(epsilon, ratio):
    noise_std = 0.5

    def excess(x):
        p, q = (stats.norm.pdf(x, mean, noise_std) for mean in (ratio * noise_std, 0.0))
        return max(p - math.exp(epsilon) * q, 0.0)

    # The densities cross where log p/q = epsilon; integrate on the side where p wins.
    crossing = noise_std * (epsilon / ratio + ratio / 2)
    integral, _ = integrate.quad(excess, crossing, crossing + 10, epsabs=1e-13)
    assert gaussian_delta(epsilon, noise_std, ratio * noise_std) == pytest.approx(
        integral, abs=1e-10
    )


@pytest.mark.parametrize("ratio", [0.05, 0.5, 2.0, 40.0, 1000.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 0.01])
def test_epsilon_solves_for_its_delta_even_where_exp_overflows(ratio, delta):
    epsilon = gaussian_epsilon(2.0, 2.0 * ratio, delta)
    assert gaussian_delta(epsilon, 2.0, 2.0 * ratio) == pytest.approx(delta, rel=1e-5)


def test_noise_that_hides_all_but_delta_costs_nothing():
    assert gaussian_epsilon(1e6, 1.0, 1e-5) == 0.0


def test_epsilon_falls_with_the_noise():
    epsilons = [gaussian_epsilon(noise, 1.0, 1e-5) for noise in (0.1, 0.3, 1.0, 3.0, 10.0)]
    assert epsilons == sorted(epsilons, reverse=True)


@pytest.mark.equation("eq-descent-privacy")
@pytest.mark.parametrize("delta", [1e-6, 1e-3])
@pytest.mark.parametrize("noise", [6.0, 20.0, 100.0])
def test_the_exact_epsilon_is_below_the_classical_bound(noise, delta):
    assert gaussian_epsilon(noise, 1.0, delta) < classical_epsilon(noise, 1.0, delta) < 1


def test_the_classical_bound_proves_nothing_above_one():
    assert classical_epsilon(1.0, 1.0, 1e-5) == math.inf


def test_level_and_epsilon_are_inverse():
    options = {"scale": 0.05, "clip_norm": 1.2, "num_tokens": 10, "delta": 1e-6}
    for epsilon in (0.5, 8.0, 500.0):
        gamma = noise_level(epsilon, **options)
        assert embedding_privacy(gamma, **options).epsilon == pytest.approx(epsilon, rel=1e-6)


def test_more_tokens_need_more_noise_by_their_root():
    one = noise_level(8.0, 0.05, 1.0)
    assert noise_level(8.0, 0.05, 1.0, num_tokens=25) == pytest.approx(5 * one)


@pytest.mark.equation("eq-descent-clip")
def test_clipped_texts_are_within_the_sensitivity():
    report = embedding_privacy(2.0, 0.5, 1.5, num_tokens=6)
    assert report.noise_std == 1.0
    e = clip_embeddings(10 * torch.randn(50, 6, 8, generator=rng()), 1.5)
    assert e.norm(dim=-1).max() <= 1.5 + 1e-5
    assert torch.cdist(e.flatten(1), e.flatten(1)).max() <= report.sensitivity
    # Two opposite texts are exactly so far apart.
    ends = torch.stack((torch.full((6, 8), 9.0), torch.full((6, 8), -9.0)))
    opposite = clip_embeddings(ends, 1.5)
    assert (opposite[0] - opposite[1]).norm().item() == pytest.approx(report.sensitivity)


@pytest.mark.equation("eq-descent-clip")
def test_short_vectors_are_not_clipped():
    e = torch.tensor([[0.1, 0.2], [0.0, 0.0]])
    assert torch.equal(clip_embeddings(e, 1.0), e)

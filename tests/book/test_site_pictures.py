"""The pictures of the landing page show what they say, and are what the computation gives."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pictures
import pytest


def test_committed_pictures_are_up_to_date() -> None:
    assert pictures.stale_pictures() == []


def test_pictures_are_well_formed_and_described() -> None:
    for name, svg in pictures.all_pictures().items():
        root = ElementTree.fromstring(svg)
        if name.startswith("pictures/"):
            assert root.get("role") == "img"
            assert len(root.get("aria-label")) > 40


def test_a_changed_word_or_number_is_noticed() -> None:
    svg = pictures.draw_descent(pictures.compute_descent())
    assert pictures.same_picture(svg, svg)
    assert not pictures.same_picture(svg, svg.replace("layer", "lawyer"))
    moved = pictures.compute_descent() | {"last_clean": pictures.compute_descent()["every_clean"]}
    assert not pictures.same_picture(svg, pictures.draw_descent(moved))


# --- descent ----------------------------------------------------------------------------------


def test_expected_losses_are_the_mean_over_noise() -> None:
    eigenvalues, steps = np.array([0.2, 1.0]), np.array([0.7, 1.9, 0.4])
    noise = np.random.default_rng(0).standard_normal((200_000, len(steps), 2)) * 0.3
    x = np.ones((len(noise), 2))
    sampled = [np.mean(x**2 @ eigenvalues / 2)]
    for layer, step in enumerate(steps):
        x = x - step * eigenvalues * x + noise[:, layer]
        sampled.append(np.mean(x**2 @ eigenvalues / 2))
    exact = pictures.expected_losses(steps, eigenvalues, 0.3)
    np.testing.assert_allclose(sampled, exact, rtol=0.02)


def test_chebyshev_steps_are_the_best_for_the_worst_last_loss() -> None:
    steps = pictures.chebyshev_steps(0.1, 1.0, 4)
    eigenvalues = np.linspace(0.1, 1.0, 2001)

    def worst(sizes: np.ndarray) -> float:
        return np.abs(np.prod(1 - np.outer(sizes, eigenvalues), axis=0)).max()

    best = worst(steps)
    for i in range(4):
        for factor in (0.98, 1.02):
            assert worst(np.where(np.arange(4) == i, steps * factor, steps)) > best


def test_descent_picture_tells_its_story() -> None:
    data = pictures.compute_descent()
    assert (np.diff(data["every_clean"]) < 0).all()
    assert (np.diff(data["last_clean"]) > 0).any()
    assert data["last_clean"][-1] < data["every_clean"][-1]
    assert data["last_noisy"][-1] > 10 * data["every_noisy"][-1]


# --- looped -----------------------------------------------------------------------------------


def test_attention_is_causal_and_position_zero_ignores_the_query() -> None:
    generator = np.random.default_rng(1)
    weights = pictures.random_block(generator, 8)
    x, query = generator.standard_normal((2, 5, 8))
    out = pictures.attention(x, x, weights)
    changed = x.copy()
    changed[3:] += 1.0
    np.testing.assert_allclose(pictures.attention(x, changed, weights)[:3], out[:3])
    np.testing.assert_allclose(pictures.attention(query, x, weights)[0], out[0])


def test_looped_picture_tells_its_story() -> None:
    data = pictures.compute_looped()
    assert data["carried"][0] == pytest.approx(data["restarted"][0])
    assert (np.diff(data["carried"]) > 5).all()
    assert np.ptp(data["restarted"]) < 0.5


# --- horst ------------------------------------------------------------------------------------


def test_each_rule_reaches_the_solution_of_its_geometry() -> None:
    data = {name: path[-1] for name, path in pictures.compute_horst().items()}
    for end in data.values():
        assert pictures.SLOPE @ end == pytest.approx(pictures.TARGET, abs=0.1)
    np.testing.assert_allclose(data["sign"], [2 / 3, 2 / 3], atol=0.01)  # smallest largest weight
    np.testing.assert_allclose(data["gradient"], [0.8, 0.4], atol=0.01)  # shortest
    sums = {name: np.abs(end).sum() for name, end in data.items()}
    assert sums["mirror"] < sums["gradient"] < sums["sign"]
    assert data["mirror"][1] < 0.2

"""What an interaction can tell: how surely it is seen, and on which scale gains add up."""

import math

import numpy as np
import pytest
from scipy import integrate
from scipy.stats import norm

from unrolled.results import mean_ci
from unrolled.together.interaction import chance_to_see, interaction_of_margins, margin


@pytest.mark.equation("eq-together-chance")
def test_the_chance_is_how_often_the_interval_lies_above_zero():
    sigma, n, effect = 0.5, 5, 1.0
    runs = np.random.default_rng(0).normal(0, sigma, (2_000, n, 4))
    both, second, first, neither = np.moveaxis(runs, 2, 0)
    found = [mean_ci(row).low > 0 for row in effect + both - second - first + neither]
    spread = math.sqrt(len(found)) / 2 / len(found)
    assert np.mean(found) == pytest.approx(chance_to_see(effect, sigma, n), abs=4 * spread)


def test_the_chance_grows_with_effect_and_seeds():
    assert chance_to_see(0.0, 1.0, 5) == pytest.approx(0.025)
    chances = [chance_to_see(effect, 1.0, n) for effect, n in ((1, 5), (2, 5), (2, 10), (4, 10))]
    assert chances == sorted(chances)
    assert chance_to_see(2.0, 1.0, 5) == chance_to_see(4.0, 2.0, 5)


@pytest.mark.parametrize(
    ("arguments", "name"), [((1, 0, 5), "spread"), ((1, 1, 1), "n"), ((1, 1, 5, 1.0), "level")]
)
def test_a_chance_that_makes_no_sense_is_refused(arguments, name):
    with pytest.raises(ValueError, match=name):
        chance_to_see(*arguments)


@pytest.mark.equation("eq-together-margin")
def test_a_margin_is_the_quantile_of_its_accuracy():
    assert norm.cdf(margin(0.8, 1_000)) == pytest.approx(0.8)
    assert margin(0.5, 1) == 0
    for accuracy, edge in ((1.0, 1 - 1 / 400), (0.0, 1 / 400)):
        assert margin(accuracy, 200) == pytest.approx(norm.ppf(edge))
    for accuracy, count in ((1.1, 5), (0.5, 0)):
        with pytest.raises(ValueError, match="accuracy" if count else "count"):
            margin(accuracy, count)


@pytest.mark.equation("eq-together-ceiling")
def test_gains_that_add_up_in_margins_do_not_add_up_in_accuracy():
    base, first, second = 0.4, 0.3, 0.5
    area, _ = integrate.dblquad(
        lambda v, u: -(base + u + v) * norm.pdf(base + u + v), 0, first, 0, second
    )
    found = interaction_of_margins(base, first, second)
    assert found == pytest.approx(area, abs=1e-9)
    assert found < 0 < interaction_of_margins(-base - first - second, first, second)
    assert interaction_of_margins(base, first, 0.0) == pytest.approx(0.0, abs=1e-15)

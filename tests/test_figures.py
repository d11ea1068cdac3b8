"""Figures: every variant stays apart, every axis says what it shows, and no number is invented."""

import itertools
import re

import matplotlib.colors
import matplotlib.pyplot as plt
import numpy as np
import pytest

from unrolled import figures
from unrolled.results import Interval, ResultError, mean_ci, paired_difference, select

plt.switch_backend("agg")

# Severe colour blindness in linear RGB: Machado, Oliveira and Fernandes (2009), table 1.
SIGHT = {
    "full": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}


def rows(variants=("original", "flt"), loops=(6, 12), seeds=(0, 1, 2)):
    """Rows whose numbers are known: 2 + .1 loops + .01 seed (+ 1 for the original)."""
    return [
        {
            "variant": variant,
            "num_loops": k,
            "seed": seed,
            "loss": 2 + 0.1 * k + 0.01 * seed + (variant == "original"),
            "loss_curve": [5.0 - seed, 4.0, 3.0 + seed],
            "step_curve": [10, 20, 30],
            "residual_norm_by_loop": [float(2**i) for i in range(k)],
        }
        for variant, k, seed in itertools.product(variants, loops, seeds)
    ]


@pytest.fixture
def ax():
    before = plt.get_fignums()  # what other tests of this process may have left
    figures.use_style()
    figure, axes = plt.subplots()
    yield axes
    figure.canvas.draw()
    plt.close(figure)
    assert plt.get_fignums() == before, "a plot opened a figure of its own"


def seen_colour(colour: str, sight: np.ndarray) -> np.ndarray:
    """The colour in CIELAB (D65) as an eye with this sight receives it."""
    rgb = np.array(matplotlib.colors.to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    xyz = to_xyz @ np.clip(sight @ linear, 0, 1) / np.array([0.9505, 1, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


LOOKS = {
    "variants": figures.STYLES,
    "methods": figures.METHODS,
    "optimizers": figures.OPTIMIZERS,
}


@pytest.mark.parametrize("looks", LOOKS.values(), ids=LOOKS)
@pytest.mark.parametrize("sight", SIGHT)
def test_colours_stay_apart_for_every_eye(sight, looks):
    seen = {name: seen_colour(s.colour, SIGHT[sight]) for name, s in looks.items()}
    for (a, left), (b, right) in itertools.combinations(seen.items(), 2):
        assert np.linalg.norm(left - right) > 15, f"{a} and {b} look alike with {sight}"


def test_the_distance_would_notice_a_confusing_pair():
    """Red and green of equal lightness: far apart for most eyes, close with deuteranopia."""
    red, green = "#C06000", "#808000"
    apart = [
        np.linalg.norm(seen_colour(red, SIGHT[s]) - seen_colour(green, SIGHT[s]))
        for s in ("full", "deuteranopia")
    ]
    assert apart[0] > 30 > 15 > apart[1]


@pytest.mark.parametrize("looks", LOOKS.values(), ids=LOOKS)
def test_variants_stay_apart_without_colour(looks):
    looks = list(looks.values())
    for field in ("marker", "dash", "label"):
        assert len({str(getattr(look, field)) for look in looks}) == len(looks)


def test_labels_are_those_of_the_looped_model():
    from unrolled.looped.model import LABELS

    plain = {name: re.sub(r"[${}]", "", figures.label_of(name)) for name in LABELS}
    assert plain == LABELS


def test_methods_have_their_look_and_order_in_every_plot(ax):
    from unrolled.descent import text, video
    from unrolled.horst.compositions import COMPOSITIONS, OPTIMIZERS

    assert {*text.METHODS, *video.METHODS} <= set(figures.METHODS)
    assert set(figures.OPTIMIZERS) == {*OPTIMIZERS, *COMPOSITIONS}
    looks = [name for looks in LOOKS.values() for name in looks]
    assert len(set(looks)) == len(looks)
    data = [{"method": m, "seed": 0, "loss_curve": [2.0, 1.0]} for m in ("proxy", "deep", "erm")]
    figures.curves(ax, data, "loss_curve", by="method")
    found = [(line.get_label(), line.get_color()) for line in ax.lines]
    looks = [figures.METHODS[m] for m in ("erm", "deep", "proxy")]
    assert found == [(look.label, look.colour) for look in looks]


def test_unknown_variant_names_the_known_ones():
    with pytest.raises(ValueError, match=r"'flat' has no style; allowed: original, .*flt"):
        figures.colour_of("flat")


def contrast(one: str, other: str) -> float:
    """WCAG contrast of two colours."""

    def luminance(colour):
        rgb = np.array(matplotlib.colors.to_rgb(colour))
        linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        return linear @ [0.2126, 0.7152, 0.0722]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_style_is_dark_ink_on_an_opaque_white_card(ax):
    assert contrast(plt.rcParams["text.color"], plt.rcParams["figure.facecolor"]) > 7
    assert contrast(plt.rcParams["axes.labelcolor"], plt.rcParams["axes.facecolor"]) > 7
    assert matplotlib.colors.to_rgba(plt.rcParams["savefig.facecolor"]) == (1, 1, 1, 1)


def labelled(ax):
    return bool(ax.get_xlabel()) and bool(ax.get_ylabel())


def test_curves_draw_each_seed_and_their_mean(ax):
    assert figures.curves(ax, select(rows(), num_loops=6), "loss_curve", x="step_curve") is ax
    assert labelled(ax)
    assert ax.get_xlabel() == "training step"
    assert ax.get_ylabel() == "training loss (nats per token)"
    assert len(ax.lines) == 2 * (3 + 1)
    (mean,) = [line for line in ax.lines if line.get_label() == "FLT"]
    np.testing.assert_allclose(mean.get_xdata(), [10, 20, 30])
    np.testing.assert_allclose(mean.get_ydata(), [4, 4, 4])
    assert mean.get_color() == figures.colour_of("flt")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["LT", "FLT"]


def test_one_seed_is_one_line_without_a_fake_mean(ax):
    figures.curves(ax, rows(["flt"], [6], [0]), "loss_curve", legend=False)
    (line,) = ax.lines
    np.testing.assert_allclose(line.get_xdata(), [1, 2, 3])
    assert ax.get_legend() is None


def test_the_mean_has_a_gap_where_a_seed_has_one(ax):
    data = rows(["flt"], [6], [0, 1])
    data[0]["loss_curve"] = [5.0, None]  # stopped early, not finite at its end
    figures.curves(ax, data, "loss_curve")
    np.testing.assert_allclose(ax.lines[-1].get_ydata(), [4.5, np.nan, np.nan])


def test_curves_need_lists_of_fitting_length(ax):
    with pytest.raises(ResultError, match="no list 'loss'"):
        figures.curves(ax, rows(), "loss")
    with pytest.raises(ValueError, match="x has 2 values, but a curve has 3"):
        figures.curves(ax, rows(), "loss_curve", x=[1, 2])
    with pytest.raises(ValueError, match="nothing to draw"):
        figures.curves(ax, [], "loss_curve")
    with pytest.raises(ResultError, match="no row has the column 'colour'"):
        figures.curves(ax, rows(), "loss_curve", by="colour")


@pytest.mark.parametrize(
    "draw",
    [
        lambda ax, data: figures.curves(ax, data, "loss_curve"),
        lambda ax, data: figures.mean_with_interval(ax, data, "num_loops", "loss"),
        lambda ax, data: figures.heat_map(ax, data, "num_loops", "variant", "loss"),
    ],
)
def test_a_mean_over_different_settings_is_refused(ax, draw):
    data = [{**row, "config_hash": f"{row['variant']}"} for row in rows(loops=[6])]
    draw(ax, data)
    data[0] |= {"learning_rate": 0.1, "config_hash": "other"}
    with pytest.raises(ResultError, match="mixed; they differ in learning_rate"):
        draw(ax, data)


def test_norm_by_loop_is_logarithmic_over_all_loops(ax):
    assert figures.norm_by_loop(ax, rows(loops=[12])) is ax
    assert labelled(ax)
    assert ax.get_yscale() == "log"
    assert list(ax.lines[-1].get_xdata()) == list(range(1, 13))
    assert all(float(tick).is_integer() for tick in ax.get_xticks())


def test_mean_with_interval_shows_student_t(ax):
    assert figures.mean_with_interval(ax, rows(), "num_loops", "loss") is ax
    assert labelled(ax)
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["6", "12"]
    container = {c.get_label(): c for c in ax.containers}["FLT"]
    expected = mean_ci([row["loss"] for row in select(rows(), variant="flt", num_loops=12)])
    assert container.lines[0].get_ydata()[1] == pytest.approx(expected.mean)
    (bars,) = container.lines[2]
    assert bars.get_segments()[1][:, 1] == pytest.approx([expected.low, expected.high])


def test_intervals_of_variants_do_not_cover_each_other(ax):
    figures.mean_with_interval(ax, rows(list(figures.STYLES)), "num_loops", "loss")
    places = [float(c.lines[0].get_xdata()[0]) for c in ax.containers]
    assert len(set(places)) == len(figures.STYLES)
    assert max(places) - min(places) < 0.5


def test_a_seed_without_a_value_is_a_cross_not_a_mean_of_survivors(ax):
    data = rows(["original"], [6, 12])
    data[-1]["loss"] = None
    figures.mean_with_interval(ax, data, "num_loops", "loss")
    assert np.isnan(ax.containers[0].lines[0].get_ydata()[1])
    (cross,) = [line for line in ax.lines if line.get_marker() == "x"]
    assert list(cross.get_xdata()) == [1.0]


def test_heat_map_writes_every_number_readably(ax):
    assert figures.heat_map(ax, rows(), "num_loops", "variant", "loss", spec=".3f") is ax
    assert labelled(ax)
    assert [text.get_text() for text in ax.texts] == ["3.610", "4.210", "2.610", "3.210"]
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["LT", "FLT"]
    image = ax.images[0]
    for text, number in zip(ax.texts, image.get_array().ravel(), strict=True):
        assert contrast(text.get_color(), image.cmap(image.norm(number))) > 3
    assert ax.figure.axes[-1].get_ylabel() == "training loss (nats per token)"


def test_heat_map_marks_empty_cells(ax):
    data = rows()
    figures.heat_map(ax, data[:-3], "num_loops", "variant", "loss", log=True)
    assert [text.get_text() for text in ax.texts].count("×") == 1


def test_forest_lists_differences_from_the_top(ax):
    data = select(rows(), num_loops=12)
    pair = select(data, variant="original"), select(data, variant="flt")
    intervals = {
        "original": paired_difference(*pair, "loss"),
        "one seed": Interval(0.5, float("nan"), 1),
    }
    assert figures.forest(ax, intervals, xlabel="minus FLT (nats per token)") is ax
    assert ax.get_xlabel()
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["LT", "one seed"]
    assert ax.yaxis_inverted()
    assert ax.lines[0].get_xdata() == [0.0, 0.0]
    assert [c.lines[0].get_xdata()[0] for c in ax.containers] == pytest.approx([1.0, 0.5])
    with pytest.raises(ValueError, match="nothing to draw"):
        figures.forest(ax, {}, xlabel="x")


def test_groups_without_a_style_get_distinct_looks(ax):
    figures.curves(ax, rows(["flt"], [3, 6, 9, 12], [0]), "loss_curve", by="num_loops")
    assert len({line.get_color() for line in ax.lines}) == 4
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert texts[0] == "number of loops $K$ = 3"


def test_the_same_figure_gives_the_same_svg(tmp_path):
    figures.use_style()
    contents = []
    for name in ("a.svg", "b.svg"):
        figure, ax = plt.subplots()
        figures.norm_by_loop(ax, rows())
        figure.savefig(tmp_path / name, metadata={"Date": None})
        plt.close(figure)
        contents.append((tmp_path / name).read_bytes())
    assert contents[0] == contents[1]

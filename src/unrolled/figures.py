"""Figures: one style, one look per variant, and the plots that several chapters share.

Each function takes rows or arrays and an Axes, labels the axes with their units, and returns the
Axes; none trains, reads a file or opens a figure. The colours are those of Okabe and Ito (2008),
which stay apart for colour-blind readers; variants also differ in marker and line style, so that
they stay apart without colour. Figures are dark ink on a white card, in the book's light and dark
mode alike.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from unrolled.results import (
    Interval,
    ResultError,
    Row,
    check_one_configuration,
    mean_ci,
    metric_of,
    select,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

__all__ = [
    "AXIS_LABELS",
    "METHODS",
    "OPTIMIZERS",
    "STYLES",
    "Style",
    "axis_label",
    "colour_of",
    "curves",
    "forest",
    "heat_map",
    "label_of",
    "mean_with_interval",
    "norm_by_loop",
    "style_of",
    "use_style",
]

INK = "#222222"
CARD = "#FFFFFF"


@dataclass(frozen=True)
class Style:
    """How a variant looks in every figure of the book."""

    label: str
    colour: str
    marker: str
    dash: str | tuple

    def line(self) -> dict[str, Any]:
        """Return the keyword arguments of a line: colour and line style."""
        return {"color": self.colour, "linestyle": self.dash}


#: The look of each variant, fixed for the whole book. A new part adds its own entries here.
STYLES: dict[str, Style] = {
    "original": Style("LT", "#D55E00", "s", "--"),
    "input": Style("LT$_i$", "#E69F00", "^", "-."),
    "attention": Style("LT$_{ia}$", "#56B4E9", "v", ":"),
    "fla": Style("FLA", "#009E73", "D", (0, (5, 1, 1, 1, 1, 1))),
    "flt": Style("FLT", "#0072B2", "o", "-"),
    "original_no_norm": Style("LT, no norm", "#CC79A7", "X", (0, (1, 2))),
    "plain": Style("plain Transformer", "#000000", "P", (0, (8, 2))),
}

#: The look of each way to train, in the part on descent: ERM in black, the
#: constrained in colours of their own. A method never shares a plot with a variant.
METHODS: dict[str, Style] = {
    "erm": Style("ERM", "#000000", "o", "-"),
    "early": Style("ERM, stopped early", "#56B4E9", "v", ":"),
    "short": Style("ERM, fewer steps", "#9000F0", "<", (0, (1, 2))),
    "many": Style("ERM, many levels", "#CC79A7", "X", (0, (8, 2))),
    "deep": Style("deep supervision", "#E69F00", "s", "--"),
    "deep_weighted": Style("deep, small weight", "#603000", "P", (0, (3, 1, 1, 1))),
    "exact": Style("constrained, exact", "#0072B2", "D", "-."),
    "proxy": Style("constrained, proxy", "#D55E00", "^", (0, (5, 1, 1, 1, 1, 1))),
    "cumulative": Style("constrained, cumulative", "#009E73", ">", (0, (4, 4))),
    "anchored": Style("constrained, anchored", "#000090", "h", (0, (6, 1, 1, 1))),
    "ratio": Style("constrained, ratio", "#900060", "*", (0, (2, 1))),
    "none": Style("not trained", "#406040", "x", (0, (1, 1))),
}

#: The look of each optimizer and of each composition that is compared with them.
OPTIMIZERS: dict[str, Style] = {
    "adamw": Style("AdamW", "#000000", "o", "-"),
    "ham": Style("HAM", "#E69F00", "s", "--"),
    "horst": Style("HORST", "#0072B2", "D", "-."),
    "mirror": Style("mirror alone", "#56B4E9", "v", ":"),
    "sgd": Style("mirror on SGD", "#009E73", "^", (0, (5, 1, 1, 1, 1, 1))),
    "sign": Style("mirror on sign", "#D55E00", "P", (0, (4, 4))),
    "mirror_first": Style("mirror first", "#CC79A7", "X", (0, (8, 2))),
}

#: What the axes say for a column of the rows, with the unit.
AXIS_LABELS: dict[str, str] = {
    "collapsed": "collapsed (share of seeds)",
    "gradient_cosine": "cosine of successive gradients",
    "gradient_norm": "gradient norm",
    "gradient_oscillation": "gradient oscillation (std / mean of the norm)",
    "inference_loops": "loops at inference $k$",
    "learning_rate": "learning rate",
    "loop": "loop",
    "loss": "training loss (nats per token)",
    "num_layers": "number of layers $L$",
    "num_loops": "number of loops $K$",
    "residual_norm": "mean token norm of the state",
    "seconds": "time (s)",
    "sparsity": "sparsity $s$",
    "step": "training step",
    "train_loss": "training loss (nats per token)",
    "trained_loops": "loops in training $K$",
    "val_bits_per_byte": "validation loss (bits per byte)",
    "val_loss": "validation loss (nats per token)",
    "val_perplexity": "validation perplexity (per token)",
}


# --- style ------------------------------------------------------------------------------------


def use_style() -> None:
    """Set the book's style for all figures made after this call; sharp SVG in a notebook."""
    import matplotlib as mpl
    import seaborn

    seaborn.set_theme(context="notebook", style="ticks", palette=_palette(), rc=_rc())
    mpl.rcParams["axes.prop_cycle"] = mpl.cycler(color=_palette())
    if "ipykernel" in sys.modules:
        _use_svg_in_notebooks()


def _palette() -> list[str]:
    return [style.colour for style in STYLES.values()]


def _rc() -> dict[str, Any]:
    ink = dict.fromkeys(
        ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK
    )
    card = dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), CARD)
    return {
        **ink,
        **card,
        "axes.grid": True,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlesize": 12,
        "axes.titleweight": "bold",
        "figure.constrained_layout.use": True,
        "figure.dpi": 110,
        "figure.figsize": (6.4, 3.8),
        "grid.color": "#DDDDDD",
        "legend.frameon": False,
        "lines.linewidth": 1.8,
        "savefig.dpi": 220,
        "svg.hashsalt": "unrolled",  # the same figure gives the same bytes
    }


def _use_svg_in_notebooks() -> None:
    from matplotlib_inline.backend_inline import set_matplotlib_formats

    set_matplotlib_formats("svg", metadata={"Date": None})


def style_of(variant: str) -> Style:
    """Return the fixed look of a variant or a method.

    Raises
    ------
    ValueError
        If the variant has none; names those that have.

    Examples
    --------
    >>> style_of("flt").marker
    'o'
    """
    look = _fixed_look(variant)
    if look is None:
        allowed = ", ".join([*STYLES, *METHODS, *OPTIMIZERS])
        raise ValueError(f"variant {variant!r} has no style; allowed: {allowed}")
    return look


def _fixed_look(value: Any) -> Style | None:
    """Return the look that a value has in every figure, if it has one."""
    return (STYLES | METHODS | OPTIMIZERS).get(value) if isinstance(value, str) else None


def colour_of(variant: str) -> str:
    """Return the fixed colour of a variant or a method."""
    return style_of(variant).colour


def label_of(variant: str) -> str:
    """Return the short name of a variant or a method for legends."""
    return style_of(variant).label


def axis_label(column: str) -> str:
    """Return the axis label of a column, with its unit.

    Examples
    --------
    >>> axis_label("val_bits_per_byte"), axis_label("my_metric")
    ('validation loss (bits per byte)', 'my metric')
    """
    return AXIS_LABELS.get(column, column.replace("_", " "))


# --- groups of rows ---------------------------------------------------------------------------


def _groups(rows: Iterable[Row], by: str) -> dict[Any, list[Row]]:
    """Return the rows by the value of a column, in the order of the styles."""
    rows = list(rows)
    if not rows:
        raise ValueError("rows is empty; there is nothing to draw")
    select(rows, **{by: None})  # raises if no row has the column
    values = sorted({row[by] for row in rows}, key=_order)
    return {value: [row for row in rows if row[by] == value] for value in values}


def _order(value: Any) -> tuple:
    names = [*STYLES, *METHODS, *OPTIMIZERS]
    known = _fixed_look(value) is not None
    return (0, names.index(value), "") if known else (1, _as_number(value), str(value))


def _as_number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def _look(value: Any, by: str, index: int, count: int) -> Style:
    """Return the look of a group: its fixed style, or a shade by its order."""
    if look := _fixed_look(value):
        return look
    markers, dashes = "osD^vPX", ("-", "--", "-.", ":")
    label = f"{axis_label(by)} = {value}"
    return Style(label, _shade(index, count), markers[index % 7], dashes[index % 4])


def _shade(index: int, count: int) -> str:
    import matplotlib as mpl

    part = 0.15 + 0.7 * index / max(1, count - 1)
    return mpl.colors.to_hex(mpl.colormaps["viridis"](part))


def _label(ax: Axes, x: str, y: str) -> None:
    ax.set_xlabel(x)
    ax.set_ylabel(y)


def _legend(ax: Axes) -> None:
    """Set the legend beside the axes, where it covers no data."""
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), handlelength=2.6)


# --- plots ------------------------------------------------------------------------------------


def curves(
    ax: Axes,
    rows: Iterable[Row],
    y: str,
    *,
    x: str | Sequence[float] | None = None,
    by: str = "variant",
    log: bool = False,
    xlabel: str | None = None,
    ylabel: str | None = None,
    legend: bool = True,
) -> Axes:
    """Draw a list-valued column over steps: a thin line per seed, a thick one for their mean.

    Parameters
    ----------
    ax
        Where to draw.
    rows
        One per seed and group; rows of a group that differ in more than the seed are refused.
    y
        A column with a list of numbers (``loss_curve``); a value that was not finite leaves a
        gap, and the mean has a gap wherever a seed has.
    x
        A column with as many numbers, or the numbers themselves; None counts from 1.
    by
        The column that makes the groups, which share a colour.
    log
        Use a logarithmic y axis.
    xlabel, ylabel
        Axis labels; from `AXIS_LABELS` if None.
    legend
        Name the groups beside the axes.

    Returns
    -------
    Axes
    """
    groups = _groups(rows, by)
    for i, (value, members) in enumerate(groups.items()):
        check_one_configuration(members)
        look = _look(value, by, i, len(groups))
        series = [_series(row, y) for row in members]
        steps = _steps(members[0], x, max(map(len, series)))
        if len(series) > 1:
            for numbers in series:
                ax.plot(steps[: len(numbers)], numbers, **look.line(), linewidth=0.7, alpha=0.4)
        ax.plot(steps, _mean_curve(series), **look.line(), label=look.label, zorder=3)
    if log:
        ax.set_yscale("log")
    _label(ax, xlabel or axis_label("step"), ylabel or axis_label(y.removesuffix("_curve")))
    if legend:
        _legend(ax)
    return ax


def _series(row: Row, column: str) -> np.ndarray:
    if not isinstance(row.get(column), (list, tuple, np.ndarray)):
        raise ResultError(f"a row has no list {column!r}; it has: {', '.join(sorted(row))}")
    return np.array(row[column], dtype=float)  # None becomes NaN


def _steps(row: Row, x: str | Sequence[float] | None, length: int) -> np.ndarray:
    if x is None:
        return np.arange(1, length + 1)
    steps = _series(row, x) if isinstance(x, str) else np.asarray(x, dtype=float)
    if len(steps) < length:
        raise ValueError(f"x has {len(steps)} values, but a curve has {length}")
    return steps[:length]


def _mean_curve(series: Sequence[np.ndarray]) -> np.ndarray:
    """Return the mean over seeds, NaN where a seed has no value: a mean of survivors misleads."""
    length = max(map(len, series))
    padded = [np.pad(s, (0, length - len(s)), constant_values=np.nan) for s in series]
    return np.mean(padded, axis=0)


def norm_by_loop(
    ax: Axes,
    rows: Iterable[Row],
    y: str = "residual_norm_by_loop",
    *,
    by: str = "variant",
    ylabel: str | None = None,
    legend: bool = True,
) -> Axes:
    """Draw the norm of the state after each loop on a logarithmic axis.

    Each row's column ``y`` holds K numbers, one per loop. Growth by a constant factor per loop
    is a straight line here.
    """
    rows = list(rows)
    label = ylabel or axis_label(y.removesuffix("_by_loop"))
    curves(ax, rows, y, by=by, log=True, xlabel=axis_label("loop"), ylabel=label, legend=legend)
    ax.xaxis.get_major_locator().set_params(integer=True)
    return ax


def mean_with_interval(
    ax: Axes,
    rows: Iterable[Row],
    x: str,
    y: str,
    *,
    by: str = "variant",
    level: float = 0.95,
    xlabel: str | None = None,
    ylabel: str | None = None,
    legend: bool = True,
) -> Axes:
    """Draw the mean over seeds with its Student-t interval, over a numeric column, per group.

    Parameters
    ----------
    ax
        Where to draw.
    rows
        One per seed, group and value of ``x``.
    x
        A numeric column (``num_loops``), which stands at equal distances.
    y
        The metric; ``name[i]`` takes one entry of a list. Where a seed has no finite value, a
        cross at the upper edge stands in place of the point.
    by
        The column that makes the groups.
    level
        Level of the interval; one seed has none.
    xlabel, ylabel
        Axis labels; from `AXIS_LABELS` if None.
    legend
        Name the groups beside the axes.
    """
    rows = list(rows)
    groups = _groups(rows, by)
    places = {value: i for i, value in enumerate(_groups(rows, x))}
    for i, (value, members) in enumerate(groups.items()):
        shift = 0.3 * ((i + 0.5) / len(groups) - 0.5)  # intervals side by side
        look = _look(value, by, i, len(groups))
        _interval_line(ax, members, x, y, places, shift, look, level)
    ax.set_xticks(list(places.values()), [str(place) for place in places])
    _label(ax, xlabel or axis_label(x), ylabel or axis_label(y))
    if legend:
        _legend(ax)
    return ax


def _interval_line(
    ax: Axes,
    rows: list[Row],
    x: str,
    y: str,
    places: Mapping[Any, int],
    shift: float,
    look: Style,
    level: float,
) -> None:
    intervals = {value: _interval(members, y, level) for value, members in _groups(rows, x).items()}
    at = [places[value] + shift for value in intervals]
    means = [math.nan if i is None else i.mean for i in intervals.values()]
    widths = [0.0 if i is None or i.n == 1 else i.half_width for i in intervals.values()]
    look_of_line = {**look.line(), "marker": look.marker, "label": look.label}
    ax.errorbar(at, means, yerr=widths, capsize=3, **look_of_line)
    missing = [place for place, mean in zip(at, means, strict=True) if math.isnan(mean)]
    edge = ax.get_xaxis_transform()  # x in data units, y as a share of the axes
    ax.plot(missing, [0.98] * len(missing), "x", color=look.colour, transform=edge)


def _interval(rows: list[Row], metric: str, level: float) -> Interval | None:
    check_one_configuration(rows)
    name = metric.partition("[")[0]
    if any(name in row and row[name] is None for row in rows):
        return None
    return mean_ci([metric_of(row, metric) for row in rows], level)


def heat_map(
    ax: Axes,
    rows: Iterable[Row],
    x: str,
    y: str,
    value: str,
    *,
    spec: str = ".2f",
    label: str | None = None,
    log: bool = False,
) -> Axes:
    """Draw the mean of a metric over two columns, with the number in each cell.

    Parameters
    ----------
    ax
        Where to draw; a colour bar is set beside it.
    rows
        One or more (seeds) per cell; a cell without a finite value stays white with a cross.
    x, y
        The columns across and downwards.
    value
        The metric of the cells.
    spec
        Format of the numbers.
    label
        What the colour bar says; from `AXIS_LABELS` if None.
    log
        Colour by the logarithm.
    """
    import matplotlib as mpl

    rows = list(rows)
    across, down = list(_groups(rows, x)), list(_groups(rows, y))
    cells = np.array([[_cell(rows, {x: a, y: d}, value) for a in across] for d in down])
    norm = mpl.colors.LogNorm() if log else mpl.colors.Normalize()
    image = ax.imshow(cells, cmap="cividis", norm=norm, aspect="auto", origin="upper")
    for (i, j), number in np.ndenumerate(cells):
        text = "×" if math.isnan(number) else format(number, spec)
        ax.text(j, i, text, ha="center", va="center", color=_ink_on(image, number))
    ax.set_xticks(range(len(across)), [_tick(a) for a in across])
    ax.set_yticks(range(len(down)), [_tick(d) for d in down])
    ax.grid(False)
    _label(ax, axis_label(x), axis_label(y))
    ax.figure.colorbar(image, ax=ax, label=label or axis_label(value))
    return ax


def _cell(rows: list[Row], place: Mapping[str, Any], metric: str) -> float:
    members = select(rows, **place)
    interval = _interval(members, metric, 0.95) if members else None
    return math.nan if interval is None else interval.mean


def _tick(value: Any) -> str:
    if look := _fixed_look(value):
        return look.label
    return f"{value:g}" if isinstance(value, float) else str(value)


def _ink_on(image: Any, number: float) -> str:
    """Return the ink, dark or white, that stands out from the colour of a cell."""
    if math.isnan(number):
        return INK
    red, green, blue, _ = image.cmap(image.norm(number))
    return INK if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else CARD


def forest(
    ax: Axes,
    intervals: Mapping[str, Interval],
    *,
    xlabel: str,
    reference: float = 0.0,
) -> Axes:
    """Draw differences with their intervals, one below the other, beside a line at zero.

    Parameters
    ----------
    ax
        Where to draw.
    intervals
        Label to `unrolled.results.Interval`, for example from
        `unrolled.results.paired_difference`; the first stands on top. The name of a variant or a
        method gets its colour and label.
    xlabel
        What is compared, with its unit and direction (``LT minus FLT (bits per byte)``).
    reference
        Where the line of no difference stands.
    """
    if not intervals:
        raise ValueError("intervals is empty; there is nothing to draw")
    ax.axvline(reference, color=INK, linewidth=1, linestyle=":")
    for place, (name, interval) in enumerate(intervals.items()):
        _forest_line(ax, place, interval, _fixed_look(name))
    looks = [_fixed_look(name) for name in intervals]
    names = [look.label if look else name for look, name in zip(looks, intervals, strict=True)]
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_xlabel(xlabel)
    ax.grid(False, axis="y")
    return ax


def _forest_line(ax: Axes, place: int, interval: Interval, look: Style | None) -> Line2D:
    width = 0 if math.isnan(interval.half_width) else interval.half_width
    (line, *_) = ax.errorbar(
        interval.mean,
        place,
        xerr=width,
        marker=look.marker if look else "o",
        color=look.colour if look else INK,
        capsize=3,
    )
    return line

"""Draw the three pictures of the landing page, and the logo, from small real computations.

``python book/tools/pictures.py`` writes ``book/assets/pictures/*.svg`` and the logo;
``--check`` fails when a committed picture is not what the computation gives.
Each picture is one function that computes (returns arrays) and one that draws (returns SVG).
Colours are CSS variables of ``book.css``, so that the pictures follow the light and dark theme.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

ASSETS = Path(__file__).resolve().parents[1] / "assets"
INK = "var(--un-ink, #4a5464)"
FAINT = "var(--un-rule, #c9d1db)"
BLUE = "var(--un-blue, #2a6bb3)"
ORANGE = "var(--un-orange, #cc6a1b)"
GREEN = "var(--un-green, #2f8a63)"


# --- descent: the best last layer, and descent at every layer -------------------------------


def chebyshev_steps(smallest: float, largest: float, num_layers: int) -> np.ndarray:
    """Return the step sizes that minimise the worst loss after the last layer, small to large."""
    roots = np.cos(np.pi * (2 * np.arange(num_layers) + 1) / (2 * num_layers))
    return np.sort(2 / (largest + smallest - (largest - smallest) * roots))


def expected_losses(steps: np.ndarray, eigenvalues: np.ndarray, noise: float) -> np.ndarray:
    r"""Return E f(x_l) for x_{l+1} = x_l - s_l grad f(x_l) + noise, f = sum_i lambda_i x_i^2 / 2.

    The second moment m_i = E x_i^2 obeys m_i <- (1 - s lambda_i)^2 m_i + noise^2 exactly.
    """
    moment = np.ones_like(eigenvalues)
    losses = [float(eigenvalues @ moment) / 2]
    for step in steps:
        moment = (1 - step * eigenvalues) ** 2 * moment + noise**2
        losses.append(float(eigenvalues @ moment) / 2)
    return np.array(losses)


def compute_descent(num_layers: int = 8, noise: float = 0.05) -> dict[str, np.ndarray]:
    """Losses by layer of two unrolled descents, each without and with noise in every layer.

    ``last``: Chebyshev's steps, the best for the last layer, in one of their orders.
    ``every``: the constant step 1 / lambda_max, which lowers the loss at every layer.
    """
    eigenvalues = np.linspace(0.06, 1.0, 20)
    best_last = chebyshev_steps(eigenvalues[0], eigenvalues[-1], num_layers)
    steps = {
        "last": best_last[[0, 1, 6, 2, 3, 7, 5, 4]],
        "every": np.full(num_layers, 1 / eigenvalues[-1]),
    }
    return {
        f"{name}_{kind}": expected_losses(sizes, eigenvalues, level)
        for name, sizes in steps.items()
        for kind, level in (("clean", 0.0), ("noisy", noise))
    }


# --- looped: a random block, looped twelve times --------------------------------------------


def rms_norm(x: np.ndarray) -> np.ndarray:
    """Scale each token to root mean square one."""
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def random_block(generator: np.random.Generator, width: int) -> list[np.ndarray]:
    """Return W_Q, W_K, W_V, W_O, and the two matrices of the MLP."""
    shapes = [(width, width)] * 4 + [(width, 4 * width), (4 * width, width)]
    return [generator.standard_normal(shape) / np.sqrt(width) for shape in shapes]


def attention(queries: np.ndarray, keys: np.ndarray, weights: list[np.ndarray]) -> np.ndarray:
    """Causal attention of one head, with normalised queries and keys."""
    q, k, v = rms_norm(queries @ weights[0]), rms_norm(keys @ weights[1]), keys @ weights[2]
    scores = np.where(np.tri(len(q), dtype=bool), q @ k.T / np.sqrt(q.shape[-1]), -np.inf)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    return scores / scores.sum(-1, keepdims=True) @ v @ weights[3]


def run_blocks(x: np.ndarray, blocks: list, query: np.ndarray | None = None) -> np.ndarray:
    """Apply x <- x + Attn(q = query or norm(x), k = v = norm(x)); x <- x + MLP(norm(x))."""
    for weights in blocks:
        x = x + attention(rms_norm(x) if query is None else query, rms_norm(x), weights)
        x = x + np.maximum(rms_norm(x) @ weights[4], 0) ** 2 @ weights[5] / 2
    return x


def mean_norm(x: np.ndarray) -> float:
    """Return the mean L2 norm of the tokens."""
    return float(np.linalg.norm(x, axis=-1).mean())


def compute_looped(num_loops: int = 12) -> dict[str, np.ndarray]:
    """State norm after each loop: the state carried on, and a restart that asks with it."""
    generator = np.random.default_rng(0)
    blocks = [random_block(generator, 32) for _ in range(2)]
    embedding = rms_norm(generator.standard_normal((16, 32)))  # (N, D)
    carried, restarted, query = embedding, embedding, None
    norms: dict[str, list[float]] = {"carried": [], "restarted": []}
    for _ in range(num_loops):
        carried = run_blocks(carried, blocks)
        restarted = run_blocks(embedding, blocks, query)
        query = rms_norm(restarted)
        norms["carried"].append(mean_norm(carried))
        norms["restarted"].append(mean_norm(restarted))
    return {name: np.array(values) for name, values in norms.items()}


# --- horst: three geometries, three solutions of one equation -------------------------------

SLOPE, TARGET = np.array([2.0, 1.0]), 2.0  # the solutions are the line 2 x + y = 2


def path_to_solution(direction: Callable, mirror: float, step: float = 0.002) -> np.ndarray:
    """Follow theta <- theta - u, theta <- theta exp(-mirror sign(theta) u) to the solutions."""
    theta, path = np.zeros(2), [np.zeros(2)]
    while SLOPE @ theta < TARGET:
        update = step * direction((SLOPE @ theta - TARGET) * SLOPE)
        theta = theta - update
        theta = theta * np.exp(-mirror * np.sign(theta) * update)
        path.append(theta)
    return np.array(path)


def compute_horst() -> dict[str, np.ndarray]:
    """Three paths from zero to a solution: sign step, normalised step, and that with a mirror."""
    return {
        "sign": path_to_solution(np.sign, mirror=0.0),
        "gradient": path_to_solution(lambda g: g / np.linalg.norm(g), mirror=0.0),
        "mirror": path_to_solution(lambda g: g / np.linalg.norm(g), mirror=24.0),
    }


# --- a very small plotting language ---------------------------------------------------------


@dataclass
class Plot:
    """An SVG plot with one linear or logarithmic scale per axis."""

    x_range: tuple[float, float]
    y_range: tuple[float, float]
    title: str
    log_y: bool = False
    size: tuple[int, int] = (320, 220)
    margin: tuple[int, int, int, int] = (16, 14, 36, 30)  # top, right, bottom, left
    parts: list[str] = field(default_factory=list)

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return the place of a data point on the sheet."""
        top, right, bottom, left = self.margin
        low, high = self.y_range
        if self.log_y:
            low, high, y = np.log10([low, high, y])
        across = (x - self.x_range[0]) / (self.x_range[1] - self.x_range[0])
        up = (y - low) / (high - low)
        return (
            round(left + across * (self.size[0] - left - right), 1),
            round(self.size[1] - bottom - up * (self.size[1] - top - bottom), 1),
        )

    def line(self, xs: Iterable, ys: Iterable, colour: str, *, width=2.4, dash="") -> None:
        """Join points by a line."""
        points = " ".join(f"{x},{y}" for x, y in map(self.at, xs, ys))
        dashes = f";stroke-dasharray:{dash}" if dash else ""
        self.parts.append(
            f'<polyline points="{points}" style="fill:none;stroke:{colour};stroke-width:{width};'
            f'stroke-linejoin:round;stroke-linecap:round{dashes}"/>'
        )

    def dots(self, xs: Iterable, ys: Iterable, colour: str, radius: float = 3) -> None:
        """Draw points."""
        for x, y in map(self.at, xs, ys):
            self.parts.append(f'<circle cx="{x}" cy="{y}" r="{radius}" style="fill:{colour}"/>')

    def text(self, x: float, y: float, words: str, colour: str = INK, **style: str) -> None:
        """Write words, the anchor at a data point."""
        left, top = self.at(x, y)
        more = "".join(f";{key.replace('_', '-')}:{value}" for key, value in style.items())
        self.parts.append(f'<text x="{left}" y="{top}" style="fill:{colour}{more}">{words}</text>')

    def axes(self, x_label: str, y_label: str) -> None:
        """Draw the two axes with their names."""
        (x0, x1), (y0, y1) = self.x_range, self.y_range
        self.line([x0, x0, x1], [y1, y0, y0], FAINT, width=1.2)
        width, height = self.size
        across = self.margin[3] + (width - self.margin[1] - self.margin[3]) / 2
        up = self.margin[0] + (height - self.margin[0] - self.margin[2]) / 2
        self.parts.append(
            f'<text x="{across}" y="{height - 6}" style="fill:{INK};text-anchor:middle">'
            f"{x_label}</text>"
            f'<text x="14" y="{up}" transform="rotate(-90 14 {up})" '
            f'style="fill:{INK};text-anchor:middle">{y_label}</text>'
        )

    def svg(self, description: str) -> str:
        """Return the whole picture, with a title and a description for screen readers."""
        width, height = self.size
        body = "\n".join(self.parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
            f'aria-label="{self.title}. {description}" class="un-picture" '
            'style="font-family:var(--un-sans, sans-serif);font-size:12.5px">\n'
            f"{body}\n</svg>\n"
        )


def draw_descent(data: dict[str, np.ndarray]) -> str:
    """Loss by layer on a logarithmic scale."""
    plot = Plot((0, 8), (2.5e-3, 25), "Loss after each layer", log_y=True)
    plot.axes("layer", "loss (log scale)")
    layers = np.arange(9)
    for name, colour in (("last", ORANGE), ("every", BLUE)):
        plot.line(layers, data[f"{name}_noisy"], colour, width=1.6, dash="2 5")
        plot.line(layers, data[f"{name}_clean"], colour)
        plot.dots(layers, data[f"{name}_clean"], colour)
    plot.text(5.6, 8, "best last layer", ORANGE, font_weight="600", text_anchor="end")
    plot.text(4.7, 0.012, "descent at every layer", BLUE, font_weight="600", text_anchor="end")
    plot.text(7.9, 3.6, "noise", ORANGE, font_style="italic", text_anchor="end")
    return plot.svg(
        "Steps that are best for the last layer climb in between and amplify noise; "
        "steps that descend at every layer end a little higher and stay there under noise."
    )


def draw_looped(data: dict[str, np.ndarray]) -> str:
    """State norm by loop."""
    plot = Plot((1, 12), (0, 125), "Size of the state after each loop")
    plot.axes("loop", "mean state norm")
    loops = np.arange(1, 13)
    for name, colour in (("carried", ORANGE), ("restarted", BLUE)):
        plot.line(loops, data[name], colour)
        plot.dots(loops, data[name], colour)
    plot.text(7.6, 87, "state carried on", ORANGE, font_weight="600", text_anchor="end")
    plot.text(
        11.8, 22, "restart, and ask with the state", BLUE, font_weight="600", text_anchor="end"
    )
    return plot.svg("Carrying the state on makes it grow with every loop; a restart does not.")


def draw_horst(data: dict[str, np.ndarray]) -> str:
    """Paths of two weights to the line of solutions."""
    plot = Plot((0, 1.42), (0, 0.88), "Two weights on their way to a solution")
    plot.axes("first weight", "second weight")
    plot.line([0.56, 1.0], [0.88, 0.0], FAINT, width=5)
    plot.text(0.65, 0.82, "all solutions", INK, font_style="italic")
    names = {"sign": "sign step", "gradient": "gradient step", "mirror": "step, then mirror"}
    for (name, words), colour in zip(names.items(), (ORANGE, GREEN, BLUE), strict=True):
        path = data[name]
        plot.line(path[:, 0], path[:, 1], colour)
        plot.dots(path[-1:, 0], path[-1:, 1], colour, radius=4)
        plot.text(path[-1, 0] + 0.035, path[-1, 1] - 0.005, words, colour, font_weight="600")
    return plot.svg("Each step rule reaches another solution; the mirrored step the sparsest.")


# --- the logo -------------------------------------------------------------------------------


def logo_curve() -> np.ndarray:
    """Return a spiral that unrolls into a curve of descent, as points with y upwards."""
    angle = np.linspace(-3.0 * np.pi, 0.0, 80)  # ends at the top, moving right
    radius = 1 + 0.84 * angle / (3.0 * np.pi)
    spiral = np.stack([radius * np.sin(angle), radius * np.cos(angle)], 1)
    x = np.linspace(0, 3.0, 60)[1:]
    fall = np.stack([x, -1 + 2 / (1 + (x / 1.3) ** 3)], 1)
    return np.concatenate([spiral, fall])


def draw_logo(ink: str, dot: str) -> str:
    """Return the logo in one ink, with the layers as dots on the descent."""
    curve = np.round(logo_curve() * 20, 1)
    points = " ".join(f"{x},{-y}" for x, y in curve)
    dots = "".join(
        f'<circle cx="{x}" cy="{-y}" r="4.2" fill="{dot}"/>' for x, y in curve[[96, 109, 138]]
    )
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="-23 -24 90 48">\n'
        f'<polyline points="{points}" fill="none" stroke="{ink}" stroke-width="3.6" '
        f'stroke-linecap="round" stroke-linejoin="round"/>\n{dots}\n</svg>\n'
    )


def draw_favicon() -> str:
    """Return the spiral with its first steps down, square."""
    curve = np.round(logo_curve()[:112] * 20, 1)
    points = " ".join(f"{x},{-y}" for x, y in curve)
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="-24 -29 62 58">\n'
        f'<polyline points="{points}" fill="none" stroke="#2a6bb3" stroke-width="6" '
        'stroke-linecap="round" stroke-linejoin="round"/>\n'
        f'<circle cx="{curve[-1, 0]}" cy="{-curve[-1, 1]}" r="7.5" fill="#cc6a1b"/>\n</svg>\n'
    )


def write_card_logo(path: Path) -> None:
    """Write the logo as a PNG; the social cards take no SVG."""
    from matplotlib.figure import Figure  # only this needs it

    curve = logo_curve()
    axes = (figure := Figure((4.5, 2.4))).add_axes((0, 0, 1, 1))
    axes.set(aspect="equal", xlim=(-1.2, 3.3), ylim=(-1.2, 1.2))
    axes.axis("off")
    axes.plot(*curve.T, color="#2a6bb3", linewidth=13, solid_capstyle="round")
    axes.plot(*curve[[96, 109, 138]].T, "o", color="#cc6a1b", markersize=30)
    figure.savefig(path, dpi=100, transparent=True)


# --- writing and checking -------------------------------------------------------------------


def all_pictures() -> dict[str, str]:
    """Compute and draw everything; names are paths below ``book/assets``."""
    return {
        "pictures/descent.svg": draw_descent(compute_descent()),
        "pictures/looped.svg": draw_looped(compute_looped()),
        "pictures/horst.svg": draw_horst(compute_horst()),
        "logo.svg": draw_logo("#2a6bb3", "#cc6a1b"),
        "logo-dark.svg": draw_logo("#7db4ee", "#f0a35e"),
        "favicon.svg": draw_favicon(),
    }


def same_picture(one: str, other: str, tolerance: float = 0.3) -> bool:
    """Compare two drawings: the same words, and numbers within a third of a point."""
    number = re.compile(r"-?\d+(?:\.\d+)?")
    if number.sub("#", one) != number.sub("#", other):
        return False
    pairs = zip(number.findall(one), number.findall(other), strict=True)
    return all(abs(float(a) - float(b)) <= tolerance for a, b in pairs)


def stale_pictures() -> list[str]:
    """Return the committed pictures that differ from what is computed now."""
    return [
        name
        for name, svg in all_pictures().items()
        if not (ASSETS / name).exists() or not same_picture((ASSETS / name).read_text("utf8"), svg)
    ]


def main(arguments: list[str] | None = None) -> int:
    """Write the pictures, or check them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail when a picture is out of date")
    if parser.parse_args(arguments).check:
        stale = stale_pictures()
        print("\n".join(f"{name} is out of date" for name in stale) or "pictures are up to date")
        return int(bool(stale))
    (ASSETS / "pictures").mkdir(parents=True, exist_ok=True)
    for name, svg in all_pictures().items():
        (ASSETS / name).write_text(svg, encoding="utf8")
    write_card_logo(ASSETS / "card.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())

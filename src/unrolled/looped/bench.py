"""Benchmark of the looped models: what a training step costs, as ratios measured side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from unrolled.benchmark import compare_times
from unrolled.looped.model import LoopedTransformer
from unrolled.provenance import threads
from unrolled.results import Row
from unrolled.transformer import Transformer, TransformerConfig

__all__ = ["BENCHMARK", "PRESETS", "BenchmarkSettings", "run"]


@dataclass(frozen=True)
class BenchmarkSettings:
    """The size of the training step that is timed.

    Parameters
    ----------
    num_layers, hidden_size, num_heads
        Size of the looped core; the vocabulary is bytes.
    num_loops
        K of every looped model.
    batch_size, length
        Sequences and tokens per step.
    rounds
        How often the two sides are timed in turn.
    """

    num_layers: int = 2
    hidden_size: int = 128
    num_heads: int = 2
    num_loops: int = 6
    batch_size: int = 4
    length: int = 128
    rounds: int = 16

    @property
    def config(self) -> TransformerConfig:
        """The Transformer that is looped."""
        return TransformerConfig(
            num_layers=self.num_layers,
            hidden_size=self.hidden_size,
            num_heads=self.num_heads,
            max_length=self.length,
        )


PRESETS = {
    "smoke": BenchmarkSettings(1, 16, 1, 2, 1, 8, rounds=2),
    "laptop": BenchmarkSettings(),
    "colab": BenchmarkSettings(6, 384, 3, 12, 16, 256),
}


def run(preset: str = "laptop") -> list[Row]:
    """Return a row per comparison: ratio of times with its 95 % interval.

    Compared are one training step (loss and gradients) of FLT and of LT at the same K; of FLT
    and of a plain Transformer with as many block applications; and of FLT with loop-wise
    checkpointing and without.

    Parameters
    ----------
    preset
        A key of `PRESETS`; ``colab`` wants a GPU, the others run on one thread.

    Raises
    ------
    ValueError
        If there is no such preset.
    """
    if preset not in PRESETS:
        raise ValueError(f"unknown preset {preset!r}; allowed: {', '.join(PRESETS)}")
    settings = PRESETS[preset]
    with threads(None if preset == "colab" else 1):
        return _compare_all(settings)


def _compare_all(settings: BenchmarkSettings) -> list[Row]:
    K = settings.num_loops
    depth = replace(settings.config, num_layers=settings.num_layers * K)
    flt, lt = (_step(_looped(settings, name), settings) for name in ("flt", "original"))
    plain = _step(Transformer(depth), settings)
    kept = _step(_looped(settings, "flt", checkpoint_loops=True), settings)
    compared = {
        "FLT / LT": (flt, lt),
        "FLT / plain Transformer of the same depth": (flt, plain),
        "FLT with loop checkpointing / without": (kept, flt),
    }
    return [
        {**compare_times(name, *pair, rounds=settings.rounds), "num_loops": K}
        for name, pair in compared.items()
    ]


def _looped(settings: BenchmarkSettings, injection: str, **options: bool) -> LoopedTransformer:
    return LoopedTransformer(settings.config, settings.num_loops, injection, **options)


def _step(model: torch.nn.Module, settings: BenchmarkSettings) -> Callable[[], None]:
    """Return one training step of the model without the optimizer's part."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model.to(device)
    tokens = torch.randint(0, 256, (2, settings.batch_size, settings.length), device=device)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        model.loss(tokens[0], tokens[1]).backward()

    return step


BENCHMARK = run

"""Benchmark of the looped models: what a training step costs in time and memory, as ratios."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from unrolled.benchmark import compare_memory, compare_times, prepared
from unrolled.looped.model import LoopedTransformer, build
from unrolled.results import Row
from unrolled.transformer import TransformerConfig

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
    compiled
        Whether to compare with compiled blocks too; on a CPU that takes a C++ compiler.
    """

    num_layers: int = 2
    hidden_size: int = 128
    num_heads: int = 2
    num_loops: int = 6
    batch_size: int = 4
    length: int = 128
    rounds: int = 16
    compiled: bool = True

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
    "smoke": BenchmarkSettings(1, 16, 1, 2, 1, 8, rounds=2, compiled=False),
    "laptop": BenchmarkSettings(),
    "colab": BenchmarkSettings(6, 384, 3, 12, 16, 256),
}


def run(preset: str = "laptop") -> list[Row]:
    """Return a row per comparison: ratio of times with its 95 % interval, or of peak memories.

    Compared is one training step (loss and gradients) of FLT

    - with LT at the same K, in time;
    - with a plain Transformer of as many block applications, in time and memory;
    - with and without loop checkpointing, in time and memory;
    - with and without `torch.compile` of its blocks, in time.

    Parameters
    ----------
    preset
        A key of `PRESETS`; ``colab`` wants a GPU, the others run on one thread.

    Raises
    ------
    ValueError
        If there is no such preset.
    """
    with prepared(PRESETS, preset) as settings:
        rows = [*_times(settings), *_memories(settings)]
    return [{**row, "num_loops": settings.num_loops} for row in rows]


def _times(settings: BenchmarkSettings) -> list[Row]:
    flt, lt, plain = (
        _step(build(settings.config, variant, settings.num_loops), settings)
        for variant in ("flt", "original", "plain")
    )
    compared = {
        "time: FLT / LT": (flt, lt),
        "time: FLT / plain Transformer of the same depth": (flt, plain),
        "time: FLT with loop checkpointing / without": (_step(_kept(settings), settings), flt),
    }
    if settings.compiled:
        compared["time: FLT compiled / not"] = _step(_compiled(settings), settings), flt
    return [compare_times(name, *pair, rounds=settings.rounds) for name, pair in compared.items()]


def _memories(settings: BenchmarkSettings) -> list[Row]:
    flt, plain = (
        _step(build(settings.config, variant, settings.num_loops), settings)
        for variant in ("flt", "plain")
    )
    kept = _step(_kept(settings), settings)
    return [
        compare_memory("memory: FLT / plain Transformer of the same depth", flt, plain),
        compare_memory("memory: FLT with loop checkpointing / without", kept, flt),
    ]


def _kept(settings: BenchmarkSettings) -> LoopedTransformer:
    return LoopedTransformer(settings.config, settings.num_loops, "flt", checkpoint_loops=True)


def _compiled(settings: BenchmarkSettings) -> LoopedTransformer:
    model = build(settings.config, "flt", settings.num_loops)
    for block in model.blocks:  # each is compiled once and used in every loop
        block.compile()
    return model


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

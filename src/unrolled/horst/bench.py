"""Benchmark of the optimizers: what a step costs in time and memory, as ratios."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from unrolled.benchmark import compare_memory, compare_times, prepared
from unrolled.horst import language
from unrolled.horst.compositions import Tuned, build_optimizer
from unrolled.horst.language import LanguageSettings
from unrolled.horst.optimizers import CHUNK, Ham, Horst
from unrolled.horst.vit import ViT, ViTConfig
from unrolled.results import Row

__all__ = ["BENCHMARK", "PRESETS", "BenchmarkSettings", "run"]

Work = Callable[[], None]
SIDE = 1_024  # the matrices that are stepped have at least so many rows and columns
MOST = 24  # and there are at most so many of them: a compiler takes long for more
LARGE = 50_000_000  # from so many parameters on, a step is long enough to time it half as often
VALUES = {"lr": 1e-3, "weight_decay": 0.1}
FOREACH, FUSED = "AdamW foreach", "AdamW fused"
REFERENCES: dict[str, Callable[..., Optimizer]] = {
    FOREACH: partial(AdamW, foreach=True),
    FUSED: partial(AdamW, fused=True),
    "HAM": Ham,
}


@dataclass(frozen=True)
class BenchmarkSettings:
    """The size of the steps that are timed.

    Parameters
    ----------
    sizes
        Parameters of the optimizers that step alone, in square matrices.
    side
        Their rows and columns; doubled until no more than 24 matrices are needed.
    vit, batch_size
        The network and the images of an end-to-end step.
    language
        Model and batch of the other one, whose tokens are random.
    rounds
        How often the two sides are timed in turn; half as often for more than 50 M parameters.
    compiled
        Whether to compare compiled steps, too; on a CPU that takes a C++ compiler.
    """

    sizes: tuple[int, ...] = (1_000_000, 10_000_000, 100_000_000)
    side: int = SIDE
    vit: ViTConfig = field(default_factory=ViTConfig)
    batch_size: int = 64
    language: LanguageSettings = field(default_factory=LanguageSettings)
    rounds: int = 16
    compiled: bool = True


PRESETS = {
    "smoke": BenchmarkSettings(
        sizes=(1_000,),
        side=16,
        vit=ViTConfig(num_layers=1, hidden_size=16),
        batch_size=2,
        language=language.EXPERIMENT.presets["smoke"],
        rounds=2,
        compiled=False,
    ),
    "laptop": BenchmarkSettings(),
    "colab": BenchmarkSettings(
        vit=ViTConfig(num_layers=12, hidden_size=192, num_heads=3),
        language=language.EXPERIMENT.presets["colab"],
    ),
}


def run(preset: str = "laptop") -> list[Row]:
    """Return a row per comparison: ratio of times with its 95 % interval, or of peak memories.

    Compared is one step of `Horst`, for each size,

    - with AdamW ``foreach``, in memory: with the state, which the first step makes, and beside it;
    - with `torch.optim.AdamW`, ``foreach`` and ``fused``, and with `Ham`, in time;
    - compiled with the same three, in time; ``fused``, compiled beforehand, stays as it is;

    beside them the exponential of as many numbers with AdamW ``foreach``, in time: what every way
    to write HORST adds to AdamW at least, without a compiler;

    and one training step of a ViT and of a GPT (forward, backward, step) with that under AdamW as
    torch chooses to run it, in time.

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
        rows = [row for size in settings.sizes for row in _steps(settings, size)]
        return [*rows, *_end_to_end(settings)]


def _steps(settings: BenchmarkSettings, size: int) -> list[Row]:
    rows = [*_memories(settings, size), *_times(settings, size, compiled=False)]
    if settings.compiled:
        rows += _times(settings, size, compiled=True)
    return [{**row, "parameters": size} for row in rows]


def _memories(settings: BenchmarkSettings, size: int) -> list[Row]:
    pair = _horst(settings, size), _optimizer(settings, size, REFERENCES[FOREACH])
    words = "HORST / AdamW foreach"
    # the first step makes the state, the second one finds it
    return [
        compare_memory(f"memory with the state: {words}", *(one.step for one in pair)),
        compare_memory(f"memory beside the state: {words}", *(one.step for one in pair)),
    ]


def _times(settings: BenchmarkSettings, size: int, *, compiled: bool) -> list[Row]:
    torch.compiler.reset()  # it compiles a function for so many optimizers only, then gives up
    ours, rows = _work(_horst(settings, size), compiled), []
    compare = partial(compare_times, rounds=_rounds(settings, size))
    for name, build in REFERENCES.items():
        # built one after the other: two of 100 M parameters are large enough
        theirs = _work(_optimizer(settings, size, build), compiled and name != FUSED)
        words = f"HORST / {name}, compiled" if compiled else f"HORST / {name}"
        rows.append(compare(f"time: {words}", ours, theirs))
        if name == FOREACH and not compiled:
            floor = _exponential(settings, size)
            rows.append(compare(f"time: the exponential alone / {name}", floor, theirs))
            del floor
        del theirs
    return rows


def _rounds(settings: BenchmarkSettings, size: int) -> int:
    return settings.rounds if size < LARGE else settings.rounds // 2


def _exponential(settings: BenchmarkSettings, size: int) -> Work:
    """Return the work of an exponential of each weight, in pieces that fit the cache."""
    count, side = _matrices(settings, size)
    numbers = torch.linspace(-0.1, 0.1, count * side**2, device=_device())
    pieces = numbers.split(CHUNK.get(_device(), numbers.numel()))
    room = torch.empty_like(pieces[0])

    def work() -> None:
        for piece in pieces:
            torch.exp(piece, out=room[: piece.numel()])

    return work


def _work(optimizer: Optimizer, compiled: bool) -> Work:
    return torch.compile(optimizer.step) if compiled else optimizer.step


def _horst(settings: BenchmarkSettings, size: int) -> Optimizer:
    return _optimizer(settings, size, partial(Horst, alpha=20.0))


def _optimizer(
    settings: BenchmarkSettings, size: int, build: Callable[..., Optimizer]
) -> Optimizer:
    """Return an optimizer of matrices with gradients."""
    count, side = _matrices(settings, size)
    params = [nn.Parameter(0.05 * torch.randn(side, side, device=_device())) for _ in range(count)]
    for param in params:
        param.grad = 0.01 * torch.randn_like(param)
    return build(params, **VALUES)


def _matrices(settings: BenchmarkSettings, size: int) -> tuple[int, int]:
    """Return how many square matrices have about `size` weights together, and their rows."""
    side = settings.side
    while size / side**2 > MOST:
        side *= 2
    return max(1, round(size / side**2)), side


def _end_to_end(settings: BenchmarkSettings) -> list[Row]:
    rows = []
    for words, loss_of in (("a ViT", _vit_loss), ("a GPT", _gpt_loss)):
        pair = (_training_step(*loss_of(settings), name) for name in ("horst", "adamw"))
        name = f"time: training step of {words}, HORST / AdamW"
        rows.append(compare_times(name, *pair, rounds=settings.rounds))
    return rows


def _vit_loss(settings: BenchmarkSettings) -> tuple[nn.Module, Callable[[], Tensor]]:
    """Return a network, and its loss on noise."""
    model = ViT(settings.vit).to(_device())
    config, count = settings.vit, settings.batch_size
    shape = (count, config.num_channels, config.image_size, config.image_size)
    images = torch.randn(shape, device=_device())
    labels = torch.arange(count, device=_device()) % config.num_classes
    return model, lambda: F.cross_entropy(model(images), labels)


def _gpt_loss(settings: BenchmarkSettings) -> tuple[nn.Module, Callable[[], Tensor]]:
    """Return a language model, and its loss on random tokens."""
    values = settings.language
    model = language.build_model(values.config).to(_device())
    shape = values.batch_size, values.length + 1
    tokens = torch.randint(model.config.vocab_size, shape, device=_device())
    return model, lambda: language.token_loss(model, (tokens[:, :-1], tokens[:, 1:]))


def _training_step(model: nn.Module, loss: Callable[[], Tensor], name: str) -> Work:
    optimizer = build_optimizer(name, Tuned(alpha=20.0), model, rest_rate=1e-3)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss().backward()
        optimizer.step()

    return step


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


BENCHMARK = run

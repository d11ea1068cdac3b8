"""Benchmark of constrained training: what a step costs in time and memory, as ratios."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unrolled.benchmark import compare_memory, compare_times, prepared
from unrolled.descent import language, text, video
from unrolled.descent.language import LanguageSettings
from unrolled.descent.primal_dual import PrimalDual
from unrolled.descent.readout import layer_readouts
from unrolled.descent.text import TextSettings
from unrolled.descent.video import VideoSettings
from unrolled.results import Row

__all__ = ["BENCHMARK", "PRESETS", "BenchmarkSettings", "run"]

Work = Callable[[], None]


@dataclass(frozen=True)
class BenchmarkSettings:
    """The size of the steps that are timed.

    Parameters
    ----------
    text, video, language
        Settings of the experiments whose steps are taken.
    networks
        Networks of the video.
    rounds, language_rounds
        How often the two sides are timed in turn; those of the language model are slow.
    """

    text: TextSettings = field(default_factory=TextSettings)
    video: VideoSettings = field(default_factory=VideoSettings)
    language: LanguageSettings = field(default_factory=LanguageSettings)
    networks: tuple[str, ...] = ("ut_untied", "dust")
    rounds: int = 16
    language_rounds: int = 4


PRESETS = {
    "smoke": BenchmarkSettings(
        text=text.SMOKE,
        video=video.EXPERIMENT.presets["smoke"],
        language=language.EXPERIMENT.presets["smoke"],
        networks=("dust",),
        rounds=2,
        language_rounds=2,
    ),
    "laptop": BenchmarkSettings(),
    "colab": BenchmarkSettings(
        text=TextSettings(batch_size=128, length=128),
        language=replace(language.EXPERIMENT.presets["colab"], mixed_precision="no"),
        language_rounds=16,
    ),
}


def run(preset: str = "laptop") -> list[Row]:
    """Return a row per comparison: ratio of times with its 95 % interval, or of peak memories.

    Compared is one training step (loss, gradients, and the dual step where there is one) under the
    exact constraint

    - of the text encoder, with ERM and with deep supervision, in time and memory;
    - of UT and DUST on video, with ERM, in time;
    - of the language model, with ERM, in time and memory.

    A step of ERM reads the last layer alone; only UT and DUST read every layer as they go.

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
        return [*_on_text(settings), *_on_video(settings), *_on_language(settings)]


def _on_text(settings: BenchmarkSettings) -> list[Row]:
    steps = text_steps(settings.text)
    rows = []
    for reference, name in (("erm", "ERM"), ("deep", "deep supervision")):
        pair, words = (steps["exact"], steps[reference]), f"constrained / {name}, text encoder"
        rows.append(compare_times(f"time: {words}", *pair, rounds=settings.rounds))
        rows.append(compare_memory(f"memory: {words}", *pair))
    return rows


def _on_video(settings: BenchmarkSettings) -> list[Row]:
    rows = []
    for network in settings.networks:
        steps = video_steps(settings.video, network)
        name = f"time: constrained / ERM, {network} on video"
        rows.append(compare_times(name, steps["exact"], steps["erm"], rounds=settings.rounds))
    return rows


def _on_language(settings: BenchmarkSettings) -> list[Row]:
    steps = language_steps(settings.language)
    pair, words = (steps["exact"], steps["erm"]), "constrained / ERM, language model"
    return [
        compare_times(f"time: {words}", *pair, rounds=settings.language_rounds),
        compare_memory(f"memory: {words}", *pair),
    ]


# --- steps ----------------------------------------------------------------------------------------


def text_steps(settings: TextSettings) -> dict[str, Work]:
    """Return a step of the encoder by each method; the tokens are random."""
    model = _on_device(text.build_classifier(settings.task, settings.head, settings.dropout))
    shape, device = (settings.batch_size, settings.length), next(model.parameters()).device
    tokens = torch.randint(3, model.config.vocab_size, shape, device=device)
    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    labels = torch.arange(len(tokens), device=device) % 2

    def losses() -> Tensor:
        return text.layer_losses(model, inputs | {"labels": labels}, "mean")

    def last() -> Tensor:
        state, read = layer_readouts(model, inputs, pooling="mean")[-1]
        return F.cross_entropy(read(state), labels)

    constraint = text.build_constraint("exact", settings.alpha, model.config.num_hidden_layers)
    dual = PrimalDual(constraint, settings.dual_step).to(device)
    return _steps(model, losses, last, dual)


def video_steps(settings: VideoSettings, network: str) -> dict[str, Work]:
    """Return a step of UT or DUST by each method; the frames are noise."""
    model = _on_device(video.build_network(settings, network))
    device = next(model.parameters()).device
    clean, noise = torch.randn(2, settings.batch_size, 8, 64, device=device)

    def losses() -> Tensor:
        return video.layer_losses(model, (clean, clean + noise))

    constraint = text.build_constraint("exact", 0.05, settings.num_layers)
    dual = PrimalDual(constraint, settings.exact_dual_step).to(device)
    return _steps(model, losses, lambda: losses()[-1].mean(), dual)


def language_steps(settings: LanguageSettings) -> dict[str, Work]:
    """Return a step of the language model by each method, on random tokens."""
    model = _on_device(language.build_model(settings))
    shape = settings.batch_size, settings.length + 1
    device = next(model.parameters()).device
    tokens = torch.randint(language.shape_of(settings)["vocab_size"], shape, device=device)
    erm = replace(settings, layers=settings.layers[-1:])
    dual = PrimalDual(language.constraint_of(settings, "exact"), settings.dual_step).to(device)
    return _steps(
        model,
        lambda: language.layer_losses(model, tokens, settings),
        lambda: language.layer_losses(model, tokens, erm).mean(),
        dual,
    )


def _on_device(model: nn.Module) -> nn.Module:
    return model.to("cuda" if torch.cuda.is_available() else "cpu").train()


def _steps(
    model: nn.Module, losses: Callable[[], Tensor], last: Callable[[], Tensor], dual: PrimalDual
) -> dict[str, Work]:
    """Return one step by each method, without the optimizer's part, which is the same for all."""

    def descend(loss: Tensor) -> None:
        model.zero_grad(set_to_none=True)
        loss.backward()

    def exact() -> None:
        f = losses()
        descend(dual.lagrangian(f))
        dual.update(f)

    return {
        "erm": lambda: descend(last()),
        "deep": lambda: descend(losses().mean()),
        "exact": exact,
    }


BENCHMARK = run

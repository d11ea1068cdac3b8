"""Looped Transformers: depth by recurrence, and what keeps it stable."""

from unrolled.looped.diagnostics import (
    CollapseReport,
    GradientCosine,
    GradientProbe,
    gradient_oscillation,
    has_collapsed,
    layer_residual_norms,
    residual_norms,
    unigram_loss,
)
from unrolled.looped.model import (
    BASE,
    INJECTIONS,
    LABELS,
    SMALL,
    LoopedOutput,
    LoopedTransformer,
)

__all__ = [
    "BASE",
    "INJECTIONS",
    "LABELS",
    "SMALL",
    "CollapseReport",
    "GradientCosine",
    "GradientProbe",
    "LoopedOutput",
    "LoopedTransformer",
    "gradient_oscillation",
    "has_collapsed",
    "layer_residual_norms",
    "residual_norms",
    "unigram_loss",
]

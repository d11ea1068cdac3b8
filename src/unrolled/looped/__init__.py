"""Looped Transformers: depth by recurrence, and what keeps it stable."""

from unrolled.looped.model import (
    BASE,
    INJECTIONS,
    LABELS,
    SMALL,
    LoopedOutput,
    LoopedTransformer,
)

__all__ = ["BASE", "INJECTIONS", "LABELS", "SMALL", "LoopedOutput", "LoopedTransformer"]

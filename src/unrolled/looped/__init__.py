"""Looped Transformers: depth by recurrence, and what keeps it stable."""

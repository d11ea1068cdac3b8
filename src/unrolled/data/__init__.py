"""Data sets: shipped with the package, or fetched, verified and cached.

`unrolled.data.text` has the corpora and what a language model needs to read them;
`unrolled.data.fetch` brings files here. Importing either fetches nothing. The names of
`unrolled.data.text` can be imported from here too; they are looked up on first use, so that
whoever only fetches does not wait for torch.
"""

from importlib import import_module

__all__ = [
    "BpeTokenizer",
    "ByteTokenizer",
    "Document",
    "TextCorpus",
    "TokenBatches",
    "bits_per_byte",
    "evaluation_windows",
    "moby_dick",
    "perplexity",
    "state_of_the_union",
    "wikipedia_leads",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("unrolled.data.text"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

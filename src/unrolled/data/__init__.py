"""Data sets: shipped with the package, or fetched, verified and cached.

`unrolled.data.text` has the corpora and what a language model needs to read them;
`unrolled.data.fetch` brings files here. Importing either fetches nothing.
"""

from unrolled.data.text import (
    ByteTokenizer,
    Document,
    TextCorpus,
    TokenBatches,
    bits_per_byte,
    evaluation_windows,
    perplexity,
    state_of_the_union,
)

__all__ = [
    "ByteTokenizer",
    "Document",
    "TextCorpus",
    "TokenBatches",
    "bits_per_byte",
    "evaluation_windows",
    "perplexity",
    "state_of_the_union",
]

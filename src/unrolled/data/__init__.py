"""Data sets: shipped with the package, or fetched, verified and cached.

`unrolled.data.text` has the corpora and what a language model needs to read them;
`unrolled.data.fetch` brings files here. Importing either fetches nothing.
"""

from unrolled.data.text import (
    BpeTokenizer,
    ByteTokenizer,
    Document,
    TextCorpus,
    TokenBatches,
    bits_per_byte,
    evaluation_windows,
    moby_dick,
    perplexity,
    state_of_the_union,
    wikipedia_leads,
)

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

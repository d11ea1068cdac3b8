"""Transformers as optimization: the package of the book *Unrolled*.

The parts are `unrolled.looped` and, as the book grows, `unrolled.descent`, `unrolled.horst`
and `unrolled.together`. The shared rooms are `unrolled.transformer`, `unrolled.training`,
`unrolled.data`, `unrolled.experiment`, `unrolled.results` and `unrolled.figures`.
Importing the package fetches nothing and starts nothing.
"""

__version__ = "0.1.0"

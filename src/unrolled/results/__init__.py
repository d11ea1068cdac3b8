"""Results: rows of evidence, their statistics, and the numbers that prose quotes from them.

One *row* is one unit of work: an experiment, a case and a seed, with its metrics and its
provenance, as one JSON object on one line with flat keys. Rows are only ever appended. Every
table, figure and number of the book is read from rows through this package:

- `unrolled.results.rows`: read, append and select rows;
- `unrolled.results.intervals`: means over seeds and paired differences, with Student's t;
- `unrolled.results.quotes`: one number for a sentence;
- `unrolled.results.claims`: what the papers say, and the verdict of the rows.
"""

from unrolled.results.claims import (
    Claim,
    Verdict,
    comparison_table,
    judge_cost,
    judge_difference,
    judge_pairs,
    judge_share,
)
from unrolled.results.intervals import Interval, mean_ci, paired_difference
from unrolled.results.quotes import quote
from unrolled.results.rows import (
    PROVENANCE,
    ResultError,
    Row,
    append,
    check_one_configuration,
    checkout,
    committed,
    file_of,
    folder,
    frame,
    metric_of,
    plain_row,
    read,
    remove,
    select,
    thin,
    unit_key,
)

__all__ = [
    "PROVENANCE",
    "Claim",
    "Interval",
    "ResultError",
    "Row",
    "Verdict",
    "append",
    "check_one_configuration",
    "checkout",
    "committed",
    "comparison_table",
    "file_of",
    "folder",
    "frame",
    "judge_cost",
    "judge_difference",
    "judge_pairs",
    "judge_share",
    "mean_ci",
    "metric_of",
    "paired_difference",
    "plain_row",
    "quote",
    "read",
    "remove",
    "select",
    "thin",
    "unit_key",
]

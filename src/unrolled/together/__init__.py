"""Together: what none of the three papers did, by parts that fit into each other.

- `unrolled.together.descending_loops`: each loop of a looped Transformer as a layer of the part on
  descent, so that more loops never make it worse;
- `unrolled.together.sparse_loops`: composed optimizers and alternating compression on weights that
  are used in every loop (`unrolled.together.sparse_search` finds their values);
- `unrolled.together.robust_sparse`: constraints of descent and composed optimizers on one text
  classifier, sparse and under noise (`unrolled.together.robust_search` finds the optimizers'
  values).

What they share has the names of the theory: `unrolled.together.loops` (losses and states after
every loop), `unrolled.together.exits` (when a token stops looping), `unrolled.together.compression`
(masks inside a training) and `unrolled.together.interaction` (whether two gains add up). This is
the only part that knows others.
"""

from unrolled.together.compression import Compression, count_weights
from unrolled.together.exits import fixed_losses, frontier, read_with_exits
from unrolled.together.interaction import gains, judge_interaction
from unrolled.together.loops import loop_losses, read_loops

__all__ = [
    "Compression",
    "count_weights",
    "fixed_losses",
    "frontier",
    "gains",
    "judge_interaction",
    "loop_losses",
    "read_loops",
    "read_with_exits",
]

"""Descent across layers: constraints that make each layer of a Transformer lower the loss.

A loss at every layer (`unrolled.descent.readout`), an inequality between neighbours
(`unrolled.descent.constraints`), a price for each inequality that training raises while it is
violated (`unrolled.descent.primal_dual`), and noise on the embeddings to test what it is good for
(`unrolled.descent.perturb`):

.. code-block:: python

    def layer_losses(model, batch):
        return classification_losses(model, batch["inputs"], batch["labels"], pooling="mean")

    dual = PrimalDual(ExactConstraint(constant_alphas(0.05, 6)), step_size=0.1)
    fit(model, batch_at, training=training, optimizer=optimizer, **dual.hooks(layer_losses))
"""

from unrolled.descent.constraints import (
    FORMS,
    AnchoredConstraint,
    Constraint,
    CumulativeConstraint,
    ExactConstraint,
    ProxyConstraint,
    RatioConstraint,
    SabotageReport,
    ViolationReport,
    constant_alphas,
    cumulative_factors,
    detect_sabotage,
    geometric_alphas,
    linear_alphas,
    stack_losses,
    violations,
)
from unrolled.descent.perturb import (
    Perturbation,
    embedding_privacy,
    embedding_scale,
    perturb_embeddings,
    perturb_tokens,
)
from unrolled.descent.primal_dual import (
    DualCurves,
    DualReport,
    Multipliers,
    PrimalDual,
    dual_curves,
)
from unrolled.descent.readout import (
    classification_losses,
    collect_losses,
    layer_logits,
    squared_losses,
    token_losses,
)

__all__ = [
    "FORMS",
    "AnchoredConstraint",
    "Constraint",
    "CumulativeConstraint",
    "DualCurves",
    "DualReport",
    "ExactConstraint",
    "Multipliers",
    "Perturbation",
    "PrimalDual",
    "ProxyConstraint",
    "RatioConstraint",
    "SabotageReport",
    "ViolationReport",
    "classification_losses",
    "collect_losses",
    "constant_alphas",
    "cumulative_factors",
    "detect_sabotage",
    "dual_curves",
    "embedding_privacy",
    "embedding_scale",
    "geometric_alphas",
    "layer_logits",
    "linear_alphas",
    "perturb_embeddings",
    "perturb_tokens",
    "squared_losses",
    "stack_losses",
    "token_losses",
    "violations",
]

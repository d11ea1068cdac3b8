r"""Descent constraints for people who live in `transformers`: a ``Trainer``, and LoRA.

`DescentTrainer` is the ``Trainer`` of that library with another loss. Its primal step descends the
Lagrangian of a `unrolled.descent.primal_dual.PrimalDual`, its dual step raises the prices of the
layers that do not descend,

.. math::
    \theta \leftarrow \text{optimizer}\Bigl(\theta,\;
        \nabla_\theta \bigl[f_L + \textstyle\sum_l \lambda_l g_l\bigr]\Bigr), \qquad
    \lambda \leftarrow [\lambda + \eta\, \bar g]_+ ,

:eq:`eq-descent-dual-ascent`, with :math:`\bar g` the mean of the slacks over the micro-batches of
an optimizer step, over all processes, and over ``every`` steps. What else a ``Trainer`` does
(devices, precision, accumulation, checkpoints, evaluation, callbacks) is left as it is:

.. code-block:: python

    dual = PrimalDual(ExactConstraint(constant_alphas(0.05, 6)), step_size=0.1)
    trainer = DescentTrainer(model, arguments, train_dataset=texts, dual=dual)
    trainer.train()

The library ``transformers`` is in the extra ``data``, ``peft`` in the extra ``scale``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from unrolled.data._extra import need
from unrolled.descent.constraints import stack_losses
from unrolled.descent.primal_dual import PrimalDual
from unrolled.descent.readout import state_losses, state_readouts
from unrolled.optimization import require
from unrolled.transformer import Transformer, require_count

need("transformers", "unrolled.descent.trainer (the extra data of the package)")

from transformers import Trainer, TrainerCallback, TrainerState  # noqa: E402 - after the clear error

__all__ = ["DescentTrainer", "with_lora"]

STATE = "unrolled.descent"  # the place of the multipliers in the state of a Trainer
TARGETS = {"distilbert": ("q_lin", "v_lin")}  # for a family that peft has no default for
HEADS = ("classifier", "pre_classifier", "pooler", "score")  # what of a classifier starts afresh


class DescentTrainer(Trainer):
    r"""A ``Trainer`` under constraints of descent across the layers.

    Parameters
    ----------
    model, args
        As a ``Trainer`` takes them. The model is one of those that
        `unrolled.descent.readout.layer_readouts` reads, with adapters of ``peft`` or without.
    dual : PrimalDual
        The constraint, its multipliers and how they move. One dual step follows every
        ``dual.dual.every`` optimizer steps.
    pooling : {"cls", "mean", "last"}, optional
        What represents a text that is classified; by default what the model itself looks at.
    layers : sequence of L + 1 int, optional
        The layers that are read, 0 for the embedding; the last is the model's last. By default
        all. A language model with a large vocabulary is dear to read.
    recompute : bool
        Hold the logits of one layer at a time; see `unrolled.descent.readout.token_losses`.
    options
        Other arguments of a ``Trainer``, by name.

    Raises
    ------
    TypeError
        If `dual` is no `PrimalDual`, the model cannot be read, or an option is unknown.
    ValueError
        If an argument is outside its range; if there are not as many constraints as layers after
        the first; if a loss of your own or label smoothing is asked for, which the constraints do
        not see; from ``train``, if a checkpoint has no multipliers or those of other settings.
    FloatingPointError
        From ``train``, if a slack is NaN or infinite.

    Attributes
    ----------
    dual : PrimalDual
        On the CPU, the same in all processes.

    Notes
    -----
    A batch is a mapping with ``labels``: one class per text, or for a causal language model the
    tokens of the text, -100 where they do not count (the shift is made here). The loss of a text
    is the mean over its tokens, and each text counts alike.

    The log of a training step holds ``loss_0`` to ``loss_L`` and ``slack_1`` to ``slack_L``, means
    over the steps since the last log, and the present ``multiplier_1`` to ``multiplier_L``; its
    ``loss`` is the Lagrangian. Evaluation is that of a ``Trainer``, with the model's own loss. The
    multipliers travel in ``trainer_state.json`` of each checkpoint, exactly.

    With several processes the states pass through the wrapped model, and the readouts through its
    parts: this is tested with data-parallel processes, not with shards.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        args: Any = None,
        *,
        dual: PrimalDual,
        pooling: str | None = None,
        layers: Sequence[int] | None = None,
        recompute: bool = False,
        **options: Any,
    ) -> None:
        if not isinstance(dual, PrimalDual):
            raise TypeError(f"dual must be a PrimalDual, got {type(dual).__name__}")
        if isinstance(model, Transformer):
            raise TypeError("model must be one of transformers; unrolled.training.fit trains ours")
        super().__init__(model, args, **options)
        self.dual, self.pooling, self.recompute = dual, pooling, recompute
        self.layers = self._check_model(layers)
        # The loss is a mean over the micro-batch, so the Trainer divides by their number.
        self.model_accepts_loss_kwargs = False
        self._pieces: list[Tensor] = []  # losses and slacks of the micro-batches of a step
        self._steps: list[Tensor] = []  # their means, of the steps since the last log
        self.add_callback(_DualSteps(self))

    def _check_model(self, layers: Sequence[int] | None) -> tuple[int, ...]:
        """Return the layers to read, or say what cannot be trained here."""
        own_loss, smoothing = self.compute_loss_func, self.args.label_smoothing_factor
        require(own_loss is None, "compute_loss_func", own_loss, "None: the loss is the Lagrangian")
        require(smoothing == 0, "label_smoothing_factor", smoothing, "0 under constraints")
        nothing = torch.empty(1, 0, dtype=torch.long)
        state_readouts(self.model, [nothing], {"input_ids": nothing}, pooling=self.pooling)
        classes = self.model.config.num_labels if self._classifies else 2
        require(classes >= 2, "num_labels", classes, "at least 2: regression is not supported")
        return _checked_layers(layers, self.model.config.num_hidden_layers, self.dual)

    @property
    def _classifies(self) -> bool:
        model = self.accelerator.unwrap_model(self.model)
        model = model.get_base_model() if hasattr(model, "get_base_model") else model
        return type(model).__name__.endswith("ForSequenceClassification")

    def layer_losses(self, model: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return the loss of each text at every layer that is read: overwrite it for another loss.

        Parameters
        ----------
        model : Module
            As the ``Trainer`` has wrapped it; its forward pass must be called, so that processes
            share their gradients.
        inputs : mapping
            A batch with its ``labels``.

        Returns
        -------
        Tensor
            (L + 1, B), in nats.
        """
        inputs = dict(inputs)
        targets, classifies = inputs.pop("labels"), self._classifies
        # A language model need not compute logits that are not used.
        options = {} if classifies else {"logits_to_keep": 1, "use_cache": False}
        output = model(**inputs, **options, output_hidden_states=True, return_dict=True)
        own = self.accelerator.unwrap_model(model)
        readouts = state_readouts(own, output.hidden_states, inputs, pooling=self.pooling)
        chosen = [readouts[layer] for layer in self.layers]
        if not classifies:
            chosen = [(state[:, :-1], read) for state, read in chosen]
            targets = targets[:, 1:]
        return state_losses(chosen, targets, recompute=self.recompute)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Return the Lagrangian of a micro-batch; in evaluation, what a ``Trainer`` returns."""
        if not model.training:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        f = stack_losses(self.layer_losses(model, inputs))
        with torch.no_grad():
            means = f if f.ndim == 1 else f.mean(dim=1)
            self._pieces.append(torch.cat((means, self.dual.constraint.slacks(f))))
        return self.dual.lagrangian(f)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log, and with the loss of training also losses and slacks by layer, and multipliers."""
        if "loss" in logs and self._steps:
            logs = {**logs, **self._columns()}
            self._steps = []
        super().log(logs, start_time)

    def _columns(self) -> dict[str, float]:
        means, L = torch.stack(self._steps).mean(dim=0).tolist(), self.dual.multipliers.numel()
        names = [f"loss_{layer}" for layer in range(L + 1)]
        names += [f"slack_{layer}" for layer in range(1, L + 1)]
        names += [f"multiplier_{layer}" for layer in range(1, L + 1)]
        return dict(zip(names, means + self.dual.multipliers.tolist(), strict=True))

    def _restore_multipliers(self, state: TrainerState) -> None:
        """Take the multipliers of the checkpoint that training continues from, if it does."""
        self._pieces, self._steps = [], []
        saved = state.stateful_callbacks.get(STATE)
        if saved is not None:
            self.dual.load_state_dict(_as_tensors(saved, self.dual.state_dict()))
        resumed, place = state.global_step > 0, self.args.output_dir
        found = saved is not None or not resumed
        require(found, "resume_from_checkpoint", place, "a checkpoint of a DescentTrainer")

    def _end_step(self, state: TrainerState) -> None:
        """Make the dual step of an optimizer step, and leave the multipliers in the state."""
        mean = torch.stack(self._pieces).mean(dim=0)  # (2L + 1,)
        self._pieces = []
        # An fp16 step that was skipped for an overflow moves neither weights nor prices.
        if not self.accelerator.optimizer_step_was_skipped:
            mean = self.accelerator.reduce(mean, "mean").cpu()
            self._steps.append(mean)
            self.dual.dual.update(mean[-self.dual.constraint.num_constraints :])
        state.stateful_callbacks[STATE] = _as_plain(self.dual.state_dict())


class _DualSteps(TrainerCallback):
    """Tell a `DescentTrainer` when training starts and when an optimizer step has ended."""

    def __init__(self, trainer: DescentTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **seen: Any) -> None:
        self.trainer._restore_multipliers(state)

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **seen: Any) -> None:
        self.trainer._end_step(state)


def _checked_layers(layers: Sequence[int] | None, last: int, dual: PrimalDual) -> tuple[int, ...]:
    chosen = tuple(range(last + 1)) if layers is None else tuple(layers)
    rising = chosen == tuple(sorted(set(chosen))) and len(chosen) >= 2
    allowed = f"at least two whole numbers that rise from 0 or more to the last layer, {last}"
    require(rising and chosen[0] >= 0 and chosen[-1] == last, "layers", layers, allowed)
    count, expected = dual.constraint.num_constraints, len(chosen) - 1
    require(count == expected, "dual", f"one of {count} constraints", f"one of {expected}")
    return chosen


def _as_plain(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state dict in plain values, which JSON holds exactly."""
    return {
        name: value.tolist() if isinstance(value, Tensor) else value
        for name, value in state.items()
    }


def _as_tensors(plain: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain values as the state dict that they were."""
    return {
        name: torch.tensor(value, dtype=like[name].dtype)
        if isinstance(like.get(name), Tensor)
        else value
        for name, value in plain.items()
    }


# --- LoRA ---------------------------------------------------------------------------------------


def with_lora(
    model: nn.Module,
    rank: int = 8,
    *,
    scale: float = 1.0,
    targets: Sequence[str] | None = None,
    dropout: float = 0.0,
) -> nn.Module:
    r"""Freeze a model of ``transformers`` and give it adapters of low rank, by ``peft``.

    .. math:: y = W x + s B A x, \qquad A \in \mathbb{R}^{r \times d_{\text{in}}},\;
              B \in \mathbb{R}^{d_{\text{out}} \times r},\; B = 0 \text{ at the start}

    :eq:`eq-descent-adapter`. The head of a model that classifies is new, so it trains in full.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Changed in place.
    rank : int
        r.
    scale : float
        s, positive; :math:`\alpha / r` in the words of the paper of LoRA.
    targets : sequence of str, optional
        Names of the linear maps; by default those that ``peft`` knows for the family, mostly the
        maps of queries and values.
    dropout : float
        Share of the entries of x that the adapters do not see in training, in [0, 1).

    Returns
    -------
    peft.PeftModel
        `DescentTrainer` and `unrolled.descent.readout.layer_readouts` take it.

    Raises
    ------
    ModuleNotFoundError
        If ``peft`` is not installed; the message says how to get it.
    ValueError
        If an argument is outside its range, or no map has such a name.

    References
    ----------
    E. Hu et al. (2022), "LoRA: Low-Rank Adaptation of Large Language Models", ICLR.
    """
    require_count(rank, "rank")
    require(0 < scale < math.inf, "scale", scale, "a positive finite number")
    require(0 <= dropout < 1, "dropout", dropout, "in [0, 1)")
    peft = need("peft", "LoRA (the extra scale of the package)")
    classifies = type(model).__name__.endswith("ForSequenceClassification")
    heads = [name for name in HEADS if classifies and hasattr(model, name)]
    chosen = TARGETS.get(model.config.model_type) if targets is None else targets
    config = peft.LoraConfig(
        r=rank,
        lora_alpha=scale * rank,
        target_modules=None if chosen is None else list(chosen),
        lora_dropout=dropout,
        task_type="SEQ_CLS" if classifies else "CAUSAL_LM",
        modules_to_save=heads or None,
    )
    return peft.get_peft_model(model, config)

"""fit against hand-written loops, killed and resumed, in one process and in two."""

import io
import json
import math
import os
import pickle
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import AutocastKwargs
from torch import nn
from training_worker import (
    BATCH,
    SMOOTH,
    STEPS,
    Multiplier,
    TinyModel,
    batch_at,
    digest,
    loss_fn,
    stop_at,
    train,
)

from unrolled.descent.constraints import ExactConstraint
from unrolled.descent.primal_dual import PrimalDual
from unrolled.horst.optimizers import Horst
from unrolled.looped.model import LoopedTransformer
from unrolled.training import (
    CheckpointError,
    CheckpointWarning,
    NonFiniteError,
    OptimizerConfig,
    TrainingConfig,
    after_step,
    fit,
)
from unrolled.transformer import TransformerConfig

WORKER = Path(__file__).with_name("training_worker.py")
ADAMW = OptimizerConfig(learning_rate=0.01)


def fit_tiny(model=None, optimizer=ADAMW, loss=loss_fn, batches=batch_at, hooks=None, **settings):
    model = model or TinyModel(dropout=0.0)
    training = TrainingConfig(**({"steps": 6, "batch_size": BATCH} | settings))
    return model, fit(model, batches, loss, training, optimizer, **(hooks or {}))


def assert_same_weights(first, second, **tolerance):
    for (name, one), two in zip(first.named_parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(one, two, msg=name, **(tolerance or {"rtol": 0, "atol": 0}))


# Against loops written by hand -----------------------------------------------------------------


@pytest.mark.parametrize("clip", [None, 0.5])
def test_adamw_equals_a_hand_written_loop_bit_for_bit(clip):
    model, by_hand = TinyModel(), TinyModel()
    config = OptimizerConfig(learning_rate=0.02, weight_decay=0.1, betas=(0.8, 0.9))
    torch.manual_seed(0)
    _, result = fit_tiny(model, config, clip_norm=clip, schedule="linear", warmup_steps=2)
    torch.manual_seed(0)
    decayed = [p for p in by_hand.parameters() if p.ndim > 1]
    gains = {"params": [by_hand.hidden.bias], "weight_decay": 0.0}
    optimizer = torch.optim.AdamW(
        [{"params": decayed}, gains], lr=0.02, weight_decay=0.1, betas=(0.8, 0.9)
    )
    losses, norms = [], []
    for step, factor in enumerate([0.5, 1.0, 1.0, 0.75, 0.5, 0.25]):
        for group in optimizer.param_groups:
            group["lr"] = 0.02 * factor
        loss, _ = loss_fn(by_hand, batch_at(step))
        loss.backward()
        norms.append(nn.utils.clip_grad_norm_(by_hand.parameters(), clip or math.inf).item())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert (result.losses, result.gradient_norms) == (losses, norms)
    assert_same_weights(model, by_hand)


def test_muon_with_rising_momentum_equals_a_hand_written_loop_bit_for_bit():
    model, by_hand = TinyModel(dropout=0.0), TinyModel(dropout=0.0)
    config = OptimizerConfig(name="muon", learning_rate=0.05, momentum_warmup=3)
    fit_tiny(model, config, steps=4, clip_norm=None)
    muon = torch.optim.Muon([by_hand.hidden.weight], lr=0.05, weight_decay=0.0)
    scale = math.sqrt(768 / 8)
    adamw = torch.optim.AdamW(
        [
            {"params": [by_hand.embedding.weight], "lr": 0.2 * scale},
            {"params": [by_hand.head.weight, by_hand.hidden.bias], "lr": 0.004 * scale},
        ],
        betas=(0.9, 0.95),
        weight_decay=0.0,
    )
    for step, momentum in enumerate([0.85, 0.85 * 2 / 3 + 0.95 / 3, 0.85 / 3 + 0.95 * 2 / 3, 0.95]):
        muon.param_groups[0]["momentum"] = momentum
        loss_fn(by_hand, batch_at(step))[0].backward()
        muon.step()
        adamw.step()
        by_hand.zero_grad()
    assert_same_weights(model, by_hand, rtol=1e-6, atol=1e-7)


def test_accumulation_equals_the_big_batch():
    small, small_result = fit_tiny(micro_batch_size=2)
    big, big_result = fit_tiny()
    assert small_result.losses == pytest.approx(big_result.losses, rel=1e-6)
    assert small_result.gradient_norms == pytest.approx(big_result.gradient_norms, rel=1e-5)
    assert small_result.losses[-1] != small_result.losses[0]
    assert_same_weights(small, big, rtol=1e-4, atol=1e-6)


def test_ready_optimizers_are_taken_and_keep_their_rates():
    model, config = TinyModel(dropout=0.0), TinyModel(dropout=0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.9, 0.95), weight_decay=0)
    fit_tiny(model, [optimizer], schedule="cosine")
    fit_tiny(config, ADAMW, schedule="cosine")
    assert_same_weights(model, config)
    assert optimizer.param_groups[0]["lr"] == 0.01


def test_a_looped_transformer_learns():
    config = TransformerConfig(
        vocab_size=11, num_layers=1, hidden_size=12, num_heads=3, max_length=8
    )
    torch.manual_seed(0)
    model = LoopedTransformer(config, 2, "flt")
    _, result = fit_tiny(
        model,
        OptimizerConfig(name="muon", learning_rate=0.02),
        lambda model, batch: model.loss(*batch),
        lambda step: batch_at(0),
        steps=12,
    )
    assert result.losses[-1] < 0.7 * result.losses[0]


# What fit leaves alone, and what it gives ------------------------------------------------------


def test_nothing_is_seeded_unless_asked():
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    fit_tiny()
    assert torch.equal(torch.rand(3), expected)
    draws = []
    for _ in range(2):
        _, result = fit_tiny(TinyModel(dropout=0.5), seed=11)
        draws.append((result.losses, torch.rand(3).tolist(), np.random.rand()))
    assert draws[0] == draws[1]


def test_hooks_see_the_whole_gradient_before_clipping_and_fill_the_diagnostics():
    seen = {}

    def on_gradients(step, model):
        assert isinstance(model, TinyModel)
        flat = torch.cat([p.grad.flatten() for p in model.parameters()])
        seen[step] = flat.norm()
        return {"norm": flat.norm(), "by_layer": torch.ones(2), "label": "x"}

    reports = []
    hooks = {"on_gradients": on_gradients, "on_step": reports.append}
    _, result = fit_tiny(micro_batch_size=2, clip_norm=1e-3, hooks=hooks)
    assert result.diagnostics["norm"] == pytest.approx(result.gradient_norms)
    assert min(result.gradient_norms) > 1e-3
    assert result.diagnostics["by_layer"] == [[1.0, 1.0]] * 6
    assert result.diagnostics["perplexity"] == pytest.approx(
        [math.exp(loss) for loss in result.losses], rel=1e-2
    )
    assert [report.step for report in reports] == list(range(6))
    assert [report.loss for report in reports] == result.losses
    assert result.steps == 6
    assert result.seconds > 0
    assert result.resumed_from is None


def test_a_gradient_hook_may_change_the_gradient():
    def zero_head(step, model):
        model.head.weight.grad.zero_()

    before = TinyModel(dropout=0.0)
    model, _ = fit_tiny(hooks={"on_gradients": zero_head})
    assert torch.equal(model.head.weight, before.head.weight)
    assert not torch.equal(model.hidden.weight, before.hidden.weight)


def test_what_on_step_returns_is_kept_with_its_own_length():
    def on_step(report):
        return {"checked": report.step} if report.step % 2 else None

    _, result = fit_tiny(hooks={"on_step": on_step})
    assert result.diagnostics["checked"] == [1, 3, 5]


@pytest.mark.parametrize("value", [{"a": object()}, 3])
def test_a_hook_that_returns_nonsense_is_named(value):
    with pytest.raises(TypeError, match="on_gradients"):
        fit_tiny(hooks={"on_gradients": lambda step, model: value})


def test_the_learning_rate_follows_the_schedule():
    rates = []
    hooks = {"on_step": lambda report: rates.append(report.learning_rate)}
    fit_tiny(hooks=hooks, schedule="trapezoid", decay_fraction=0.5, warmup_steps=2)
    assert rates == pytest.approx([0.005, 0.01, 0.01, 0.01, 0.01 * 2 / 3, 0.01 / 3])


# Batches ---------------------------------------------------------------------------------------


def test_each_row_is_used_once():
    seen = []

    def loss(model, rows):
        seen.append(rows.flatten().tolist())
        return model(rows).mean()

    rows = torch.arange(12.0)[:, None]
    fit_tiny(
        nn.Linear(1, 1),
        loss=loss,
        batches=lambda t: rows,
        batch_size=12,
        micro_batch_size=4,
        steps=1,
    )
    assert seen == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


@pytest.mark.parametrize(
    ("batch", "told"),
    [
        (torch.ones(7, 1), r"batch_at\(0\).*batch_size=8 rows, got tensors with \[7\]"),
        ((torch.ones(8, 1), {"y": torch.ones(9)}), r"\[8, 9\]"),
        (torch.tensor(1.0), r"\[0\]"),
        (["text"], r"\[\]"),
    ],
)
def test_a_batch_of_another_size_is_refused(batch, told):
    with pytest.raises(ValueError, match=told):
        fit_tiny(nn.Linear(1, 1), loss=lambda m, b: m(b).mean(), batches=lambda step: batch)


def test_accumulation_set_by_the_launcher_does_not_change_the_batch(monkeypatch):
    expected, _ = fit_tiny(micro_batch_size=4)
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4")
    model, _ = fit_tiny(micro_batch_size=4)
    assert_same_weights(model, expected)


def test_a_fit_inside_a_hook_does_not_change_the_outer_run():
    def on_step(report):
        fit_tiny(TinyModel(seed=9, dropout=0.0), micro_batch_size=1, steps=1)

    expected, _ = fit_tiny(micro_batch_size=4)
    model, _ = fit_tiny(micro_batch_size=4, hooks={"on_step": on_step})
    assert_same_weights(model, expected)


@pytest.mark.parametrize(
    "loss", [lambda m, b: 1.0, lambda m, b: m(b[0]), lambda m, b: torch.ones(())]
)
def test_a_loss_that_is_no_scalar_with_a_gradient_is_refused(loss):
    with pytest.raises(TypeError, match="loss_fn must return a scalar tensor with a gradient"):
        fit_tiny(loss=loss)


def test_a_metric_that_is_no_number_is_named():
    with pytest.raises(TypeError, match="metric 'by_loop' must be one number, got Tensor"):
        fit_tiny(loss=lambda m, b: (m.loss(*b), {"by_loop": torch.ones(3)}))


# Arguments -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("steps", 0),
        ("steps", 1.5),
        ("batch_size", True),
        ("micro_batch_size", 3),
        ("micro_batch_size", 16),
        ("schedule", "step"),
        ("warmup_steps", 7),
        ("decay_fraction", 0),
        ("clip_norm", 0.0),
        ("mixed_precision", "fp8"),
        ("checkpoint_every", 2),
        ("keep_checkpoints", 0),
        ("resume", "always"),
        ("log_every", -1),
        ("seed", 0.5),
    ],
)
def test_the_training_config_names_the_bad_value(field, value):
    with pytest.raises(ValueError, match=rf"^{field} must be .* got {re.escape(repr(value))}"):
        TrainingConfig(**({"steps": 6, "batch_size": 8} | {field: value}))


def test_warm_up_and_decay_must_fit():
    TrainingConfig(steps=10, batch_size=1, schedule="trapezoid", warmup_steps=8)
    with pytest.raises(ValueError, match="at most 8"):
        TrainingConfig(steps=10, batch_size=1, schedule="trapezoid", warmup_steps=9)


def test_after_a_step_it_reports_then_acts_in_turn_and_puts_together_what_was_found():
    told, steps = [], []

    def clip(step):
        steps.append(step.step)

    def look(step):
        return {"seen": float(step.step), "last": 1.0}

    def look_again(step):
        return {"last": 2.0}

    hook = after_step(lambda *at: told.append(at), None, clip, look, look_again)
    _, run = fit_tiny(hooks={"on_step": hook}, steps=3)
    assert (told, steps) == ([(1, 3), (2, 3), (3, 3)], [0, 1, 2])
    assert run.diagnostics["seen"] == [0.0, 1.0, 2.0]
    assert run.diagnostics["last"] == [2.0] * 3


def test_wrong_kinds_of_arguments_are_named():
    model, training = nn.Linear(1, 1), TrainingConfig(steps=1, batch_size=1)
    with pytest.raises(TypeError, match="model must be"):
        fit("model", batch_at, loss_fn, training, ADAMW)
    with pytest.raises(TypeError, match="training must be"):
        fit(model, batch_at, loss_fn, {"steps": 1}, ADAMW)
    for optimizer in ([], ["adamw"], torch.optim.AdamW(model.parameters())):
        with pytest.raises(TypeError, match="optimizer must be"):
            fit(model, batch_at, loss_fn, training, optimizer)


def test_ready_optimizers_must_hold_the_trainable_parameters():
    model = TinyModel()
    some = torch.optim.SGD([model.head.weight], lr=0.1)
    with pytest.raises(ValueError, match=r"misses .*embedding.weight.*requires_grad_\(False\)"):
        fit_tiny(model, [some])
    stranger = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    with pytest.raises(ValueError, match="not trainable in the model"):
        fit_tiny(model, [torch.optim.SGD(model.parameters(), lr=0.1), stranger])


# Precision -------------------------------------------------------------------------------------


def test_runs_of_different_precision_follow_each_other_in_one_process():
    expected, first = fit_tiny()
    dtypes = []

    def loss(model, batch):
        dtypes.append(model(batch[0]).dtype)
        return loss_fn(model, batch)

    for precision, dtype in (("bf16", torch.bfloat16), ("no", torch.float32)):
        model, result = fit_tiny(loss=loss, mixed_precision=precision)
        assert dtypes.pop() == dtype
        assert all(p.dtype == torch.float32 for p in model.parameters())
        assert "forward" not in vars(model)
        assert model(batch_at(0)[0]).dtype == torch.float32
        assert result.losses == pytest.approx(first.losses, rel=0.02)
    assert result.losses == first.losses
    assert_same_weights(model, expected)


def test_an_accelerator_of_the_caller_does_not_disturb():
    AcceleratorState._reset_state()
    Accelerator(mixed_precision="bf16", gradient_accumulation_steps=4)
    model, _ = fit_tiny()
    expected, _ = fit_tiny()
    assert_same_weights(model, expected)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_fp16_without_a_gpu_is_refused():
    with pytest.raises(ValueError, match="'fp16' needs a GPU"):
        fit_tiny(mixed_precision="fp16")
    fit_tiny()


@pytest.fixture
def loss_scale(monkeypatch):
    """Give runs the loss scale that fp16 has on a GPU; on a CPU it works as well."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=10_000)
    create = Accelerator.__init__

    def with_scaler(self, *args, **kwargs):
        create(self, *args, **kwargs)
        self.scaler, self.native_amp = scaler, True
        self.autocast_handler = AutocastKwargs(enabled=False)
        type(self).mixed_precision = property(lambda self: "fp16")

    original = Accelerator.mixed_precision
    monkeypatch.setattr(Accelerator, "__init__", with_scaler)
    yield scaler
    Accelerator.mixed_precision = original


def test_a_loss_scale_changes_nothing_also_with_two_optimizers(loss_scale, monkeypatch):
    muon = OptimizerConfig(name="muon", eps=1e-3)  # a large eps shows a gradient of wrong scale
    norms = []
    hooks = {"on_gradients": lambda step, model: norms.append(model.head.weight.grad.norm().item())}
    scaled, result = fit_tiny(optimizer=muon, hooks=hooks)
    monkeypatch.undo()
    expected, expected_result = fit_tiny(optimizer=muon, hooks=hooks)
    assert loss_scale.get_scale() == 2.0**16
    assert norms[:6] == pytest.approx(norms[6:], rel=1e-6)
    assert result.gradient_norms == pytest.approx(expected_result.gradient_norms, rel=1e-6)
    assert_same_weights(scaled, expected, rtol=1e-5, atol=1e-6)


def test_an_overflow_under_a_loss_scale_skips_the_step_in_all_optimizers(loss_scale):
    weights = []

    def overflow(step, model):
        weights.append([p.detach().clone() for p in model.parameters()])
        if step == 2:
            loss_scale._found_inf_per_device(optimizers[0])[torch.device("cpu")] += 1
            model.head.weight.grad[0, 0] = math.inf

    model = TinyModel(dropout=0.0)
    optimizers = [
        torch.optim.SGD([model.head.weight], lr=0.1),
        torch.optim.SGD([p for n, p in model.named_parameters() if n != "head.weight"], lr=0.1),
    ]
    _, result = fit_tiny(model, optimizers, hooks={"on_gradients": overflow})
    same = [all(map(torch.equal, weights[t], weights[t + 1])) for t in range(5)]
    assert same == [False, False, True, False, False]
    assert result.diagnostics["skipped_step"] == [2]
    assert loss_scale.get_scale() == 2.0**15


def layer_losses_in(half):
    """Return layer losses, computed in float16 as autocast does on a GPU, or in float32."""

    def layer_losses(model, batch):
        tokens, targets = batch
        with torch.autocast("cpu", torch.float16, enabled=half):
            first = model.embedding(tokens)
            logits = [model.head(h) for h in (first, torch.tanh(model.hidden(first)))]
        assert logits[0].dtype == (torch.float16 if half else torch.float32)
        losses = [nn.functional.cross_entropy(z.float().mT, targets) for z in logits]
        return torch.stack(losses)

    return layer_losses


def test_fp16_with_a_loss_scale_takes_horst_and_multipliers(loss_scale, monkeypatch):
    def run(half):
        model, dual = TinyModel(dropout=0.0), PrimalDual(ExactConstraint((0.3,)), step_size=0.2)
        horst = Horst(model.parameters(), lr=0.02, alpha=5.0, eps=1e-3)
        training = TrainingConfig(steps=20, batch_size=BATCH, micro_batch_size=4)
        hooks = dual.hooks(layer_losses_in(half))
        result = fit(model, batch_at, training=training, optimizer=[horst], **hooks)
        return result.losses, torch.tensor(result.diagnostics["multipliers"])

    loss_scale._init_scale = 2.0**8
    losses, multipliers = run(half=True)
    assert loss_scale.get_scale() == 2.0**8, "a step was skipped"
    monkeypatch.undo()
    expected, expected_multipliers = run(half=False)
    assert losses == pytest.approx(expected, rel=2e-3)
    assert losses != expected
    torch.testing.assert_close(multipliers, expected_multipliers, rtol=0.02, atol=1e-3)
    assert expected_multipliers[-1] > 0.1


# Not finite ------------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_stops_with_the_step():
    def loss(model, batch):
        return loss_fn(model, batch)[0] * (math.nan if loss.calls == 3 else 1)

    def counted(model, batch):
        value = loss(model, batch)
        loss.calls += 1
        return value

    loss.calls = 0
    model = TinyModel(dropout=0.0)
    with pytest.raises(NonFiniteError, match=r"step 3: loss is not finite \(nan\)") as caught:
        fit_tiny(model, loss=counted)
    assert (caught.value.step, caught.value.tensor) == (3, "loss")
    expected, result = fit_tiny(steps=3)
    assert caught.value.result.losses == result.losses
    assert_same_weights(model, expected)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_stops_with_the_parameter(bad):
    def spoil(step, model):
        if step == 1:
            model.hidden.weight.grad[2, 3] = bad

    told = r"step 1: gradient of hidden.weight is not finite \(1 of 64 entries\)"
    with pytest.raises(NonFiniteError, match=told) as caught:
        fit_tiny(hooks={"on_gradients": spoil})
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.step, copy.tensor) == (str(caught.value), 1, caught.value.tensor)


def test_rates_are_back_after_a_stop():
    model = TinyModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(KeyboardInterrupt):
        fit_tiny(model, [optimizer], schedule="linear", hooks={"on_step": stop_at(3)})
    assert optimizer.param_groups[0]["lr"] == 0.1


# Progress and log ------------------------------------------------------------------------------


def shown_on(terminal, **settings):
    """What a run writes to a stderr that is, or is not, a terminal."""
    screen = io.StringIO()
    screen.isatty = lambda: terminal
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", screen)
        fit_tiny(**settings)
    return screen.getvalue()


def test_a_terminal_shows_one_line(monkeypatch):
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    shown = shown_on(True)
    assert "0/6" in shown
    assert "\n" not in shown


def test_no_bar_elsewhere_or_when_disabled(monkeypatch):
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    assert shown_on(True, progress=False) == ""
    assert shown_on(False) == ""
    assert shown_on(False, progress=True) != ""
    monkeypatch.setenv("TQDM_DISABLE", "1")
    assert shown_on(True) == ""
    assert shown_on(True, progress=True) == ""


def test_every_so_many_steps_a_line_is_logged(caplog):
    with caplog.at_level("INFO", "unrolled.training"):
        fit_tiny(log_every=3)
    assert [record.args[0] for record in caplog.records] == [2, 5]


# Resuming --------------------------------------------------------------------------------------


def kept(folder, **settings):
    return {"checkpoint_folder": folder, "checkpoint_every": 2} | settings


@pytest.mark.parametrize("stop", [0, 5, 12, STEPS - 1])
def test_a_stopped_run_resumes_bit_for_bit(tmp_path, stop):
    whole = TinyModel()
    expected = digest(whole, train(whole, seed=3, micro_batch_size=4))
    settings = kept(tmp_path / "run", seed=3, micro_batch_size=4)
    with pytest.raises(KeyboardInterrupt):
        train(TinyModel(), on_step=stop_at(stop), **settings)
    again = TinyModel(seed=1)  # other weights: those of the checkpoint must come
    result = train(again, **settings)
    if stop > 1:
        assert result.resumed_from == stop // 2 * 2
        assert digest(again, result) == expected
    else:
        assert result.resumed_from is None
    assert len(result.losses) == result.steps == STEPS


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_a_run_killed_again_and_again_equals_one_never_killed(tmp_path, seed):
    report = run_worker([sys.executable, WORKER, "killed", tmp_path / "run", str(seed)])
    report = json.loads(report)
    assert report["kills"] >= 2
    assert report["from"] != ["None"]
    assert report["broken"] == report["whole"]


def test_a_finished_run_gives_its_result_again(tmp_path):
    model, result = fit_tiny(**kept(tmp_path))
    again, same = fit_tiny(TinyModel(seed=4, dropout=0.0), **kept(tmp_path))
    assert (same.losses, same.diagnostics) == (result.losses, result.diagnostics)
    assert same.resumed_from == 6
    assert_same_weights(again, model)


def test_a_checkpoint_comes_at_the_end_also_without_an_interval(tmp_path):
    fit_tiny(checkpoint_folder=tmp_path)
    assert [path.name for path in tmp_path.glob("step_*")] == ["step_00000006"]


def test_a_damaged_checkpoint_is_passed_over_and_the_run_ends_the_same(tmp_path):
    expected, _ = fit_tiny()
    with pytest.raises(KeyboardInterrupt):
        fit_tiny(hooks={"on_step": stop_at(4)}, **kept(tmp_path))
    file = tmp_path / "step_00000004" / "state.safetensors"
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.warns(CheckpointWarning, match=r"step_00000004 is damaged.*step_00000002"):
        model, result = fit_tiny(TinyModel(seed=1, dropout=0.0), **kept(tmp_path))
    assert result.resumed_from == 2
    assert_same_weights(model, expected)


def test_when_every_checkpoint_is_damaged_nothing_starts(tmp_path):
    fit_tiny(**kept(tmp_path))
    for file in tmp_path.glob("*/manifest.json"):
        file.write_text("{}")
    with pytest.raises(CheckpointError, match="no whole checkpoint is left"):
        fit_tiny(**kept(tmp_path))


def test_a_disk_that_is_full_costs_the_checkpoint_and_not_the_run(tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("unrolled.checkpoint._flush", full)
    with pytest.warns(CheckpointWarning, match="no checkpoint at step 6: .*No space left"):
        _, result = fit_tiny(**kept(tmp_path, checkpoint_every=6))
    assert result.steps == 6
    assert list(tmp_path.glob("step_*")) == []


def test_a_folder_that_cannot_be_made_stops_before_the_first_step(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        fit_tiny(checkpoint_folder=tmp_path / "file" / "run", loss=None)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"steps": 7}, "training.steps was 6 and is 7"),
        ({"schedule": "cosine"}, "training.schedule was 'constant' and is 'cosine'"),
        ({"clip_norm": None}, "training.clip_norm was 1.0 and is None"),
        ({"micro_batch_size": 4}, "training.micro_batch_size was None and is 4"),
        ({"optimizer": replace(ADAMW, learning_rate=0.02)}, r"optimizer.0.groups.0.lr was 0.01"),
        ({"optimizer": OptimizerConfig(name="muon")}, "optimizer.0.class was 'AdamW'"),
        ({"model": TinyModel(dropout=0.1)}, r"model.modules.dropout was 'Dropout\(p=0.0"),
        ({"model": nn.Sequential(nn.Linear(3, 3))}, "model.class was 'TinyModel'"),
        ({"batches": lambda step: batch_at(step + 1)}, "data.first_batch was"),
        ({"hooks": {"stateful": {"dual": Multiplier()}}}, r"stateful was \[\] and is \['dual'\]"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_the_checkpoint_of_another_run_is_refused(tmp_path, change, told):
    fit_tiny(**kept(tmp_path))
    with pytest.raises(ValueError, match=told):
        fit_tiny(**(kept(tmp_path) | change))


def test_what_may_change_between_parts_of_a_run(tmp_path):
    fit_tiny(**kept(tmp_path))
    _, result = fit_tiny(
        **kept(tmp_path, checkpoint_every=3, keep_checkpoints=5, log_every=2, progress=False)
    )
    assert result.resumed_from == 6


def test_never_resume_refuses_a_folder_with_checkpoints(tmp_path):
    _, result = fit_tiny(**kept(tmp_path, resume="never"))
    assert result.resumed_from is None
    with pytest.raises(ValueError, match=r"resume='never' but .* up to step 6"):
        fit_tiny(**kept(tmp_path, resume="never"))


def test_state_that_cannot_be_saved_is_refused_at_the_start(tmp_path):
    multiplier = Multiplier()
    multiplier.history = {1, 2}
    with pytest.raises(TypeError, match=r"stateful\.dual\.history is a set"):
        fit_tiny(hooks={"stateful": {"dual": multiplier}}, loss=None, **kept(tmp_path))


def test_two_runs_do_not_share_a_folder_and_the_second_takes_no_step(tmp_path):
    told = []

    def second(report):
        with pytest.raises(CheckpointError, match=f"another run .* in {tmp_path}") as refused:
            fit_tiny(loss=None, **kept(tmp_path))
        told.append(refused)

    _, result = fit_tiny(hooks={"on_step": second}, **kept(tmp_path))
    assert len(told) == result.steps == 6
    assert fit_tiny(**kept(tmp_path))[1].resumed_from == 6  # the end of a run frees its folder


# Several processes -----------------------------------------------------------------------------


def run_worker(command):
    environment = os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, env=environment, timeout=240
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_two_processes_equal_one_with_the_same_batch(tmp_path):
    # what `accelerate launch` starts on a machine with GPUs; --standalone takes a free port
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    run_worker([*launch, WORKER, "processes", tmp_path])
    first, second = (json.loads((tmp_path / f"rank_{r}.json").read_text()) for r in (0, 1))
    model = TinyModel(dropout=0.0)
    result = train(model, optimizer=SMOOTH, micro_batch_size=2)
    assert first["losses"] == pytest.approx(result.losses, rel=1e-5)
    assert first["perplexity"] == pytest.approx(result.diagnostics["perplexity"], rel=1e-3)
    for name, parameter in model.named_parameters():
        expected = torch.tensor(first["weights"][name])
        torch.testing.assert_close(parameter.detach(), expected, rtol=1e-4, atol=1e-5)
    assert first["weights"] == second["weights"]
    for report in (first, second):
        assert report["resumed_from"] == 8
        assert report["whole"] == report["resumed"]
        assert "2 process(es) x micro_batch_size=8 x 1 accumulation" in report["error"]

"""The plan's closed forms against torch's own counter, and its table against arithmetic."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from unrolled.catalog import EXPERIMENTS, load_experiment
from unrolled.horst.vit import ViT, ViTConfig
from unrolled.looped.model import LoopedTransformer
from unrolled.plan import MACHINES, Blocks, Machine, Workload, plan
from unrolled.transformer import Transformer, TransformerConfig, flops_per_token
from unrolled.workloads import (
    WORKLOADS,
    blocks_of,
    counted_flops,
    decoder_blocks,
    encoder_blocks,
    kept_bytes,
    workload_of,
)

LENGTH = 24
GPT = TransformerConfig(vocab_size=50, num_layers=2, hidden_size=32, num_heads=4, max_length=LENGTH)


def text(rows=1):
    return torch.zeros(rows, LENGTH, dtype=torch.long)


# Closed forms ----------------------------------------------------------------------------------


def bert():
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=30,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=80,
    )
    return BertModel(config, add_pooling_layer=False).eval(), encoder_blocks(config, LENGTH).flops


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {
        "vocab_size": 30,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 80,
    }
    head = 2 * 32 * LENGTH * 30
    return LlamaForCausalLM(LlamaConfig(**shape)), decoder_blocks(shape, LENGTH).flops + head


def looped():
    head = 2 * 32 * LENGTH * 50
    return LoopedTransformer(GPT, 3, "flt"), blocks_of(GPT, 3).flops + head


def gpt():
    return Transformer(GPT), blocks_of(GPT).flops + 2 * 32 * LENGTH * 50


def vit():
    config = ViTConfig(image_size=16, patch_size=4, num_layers=2, hidden_size=32, num_heads=4)
    patches, head = 2 * 16 * 16 * 32, 2 * 32 * 10
    return ViT(config), blocks_of(config.block, length=17).flops + patches + head


@pytest.mark.parametrize("build", [looped, gpt, vit, bert, llama])
def test_the_closed_form_is_what_torch_counts(build):
    model, expected = build()
    row = torch.zeros(1, 1, 16, 16) if build is vit else text()
    assert counted_flops(model, row) == expected


def test_the_backward_pass_costs_two_forward_passes():
    model, forward = looped()
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model.loss(text(), text()).backward()
    assert counter.get_total_flops() == pytest.approx(3 * forward, rel=0.01)


def test_blocks_agree_with_the_count_of_the_transformer():
    per_token = blocks_of(GPT, 5).flops // LENGTH + 2 * GPT.hidden_size * GPT.vocab_size
    assert per_token == flops_per_token(GPT, 5)


def test_a_window_and_shared_keys_make_blocks_cheaper():
    full = Blocks(layers=2, width=32, length=100, hidden=64)
    assert full.flops - replace(full, window=10).flops == 2 * 100 * 4 * 90 * 32
    assert full.flops - replace(full, key_width=8).flops == 2 * 100 * 4 * 32 * 24
    assert replace(full, window=1_000).flops == full.flops
    assert replace(full, applications=3).flops == 3 * full.flops


@pytest.mark.parametrize("build", [looped, gpt])
def test_what_a_row_keeps_is_estimated_to_a_factor_of_two(build):
    model, _ = build()
    row = text()
    kept = kept_bytes(model, row) - 4 * LENGTH * GPT.vocab_size  # without the logits
    estimate = 4 * blocks_of(GPT, getattr(model, "num_loops", 1)).kept
    assert 0.5 < estimate / kept < 2


def test_what_is_kept_is_counted_once_and_without_weights():
    layer = nn.Linear(8, 8)
    x = torch.ones(5, 8, requires_grad=True)
    assert kept_bytes(layer, x) == 4 * 5 * 8  # its input; its weight is no activation


# The table -------------------------------------------------------------------------------------

LOAD = Workload(
    parameters=1_000,
    trainable=1_000,
    flops=1e9,
    tokens=10,
    kept=1e9,
    batch_size=12,
    steps=100,
    precision="bf16",
    state_bytes=8_000,
)
SMALL = Machine("2 x toy", 2, 4.5e9, {"no": 1e12, "fp16": 3e12})


def test_hours_are_operations_over_the_rate_that_is_reached():
    # 3 x 1e9 operations x 1200 rows at half of 2 x 3e12 a second: 1.2 s
    assert LOAD.hours(SMALL, 0.5) == pytest.approx(1.2 / 3600)
    assert replace(LOAD, precision="no").hours(SMALL, 0.5) == pytest.approx(3.6 / 3600)
    assert replace(LOAD, backward=1.0).hours(SMALL, 0.5) == pytest.approx(0.8 / 3600)


def test_a_micro_batch_fits_the_memory_and_divides_the_share():
    assert LOAD.micro_batch(SMALL) == 3  # of a share of 6 rows; 4 would fit and do not divide
    assert replace(LOAD, kept=1e6).micro_batch(SMALL) == 6
    assert replace(LOAD, kept=5e9).micro_batch(SMALL) is None
    assert replace(LOAD, state_bytes=5e9).micro_batch(SMALL) is None


def test_bytes_of_weights_gradients_and_moments():
    assert LOAD.fixed_bytes == 1_000 * (4 + 2) + 4_000 + 8_000
    assert replace(LOAD, precision="no").fixed_bytes == 1_000 * 4 + 4_000 + 8_000
    assert replace(LOAD, weight_bytes=2).fixed_bytes == 1_000 * 2 + 4_000 + 8_000


def paper():
    experiment = load_experiment("looped.pretraining")
    units = experiment.units("paper", [0], {"variant": ["flt", "original", "plain"]})
    return plan(experiment, units)


def test_the_plan_of_the_paper_has_its_published_numbers():
    rows = paper()
    assert [row["units"] for row in rows] == [1, 2, 2, 2, 2, 9]  # two variants at each K > 1
    twelve = rows[-2]
    assert twelve["case"] == "num_loops=12"
    assert twelve["parameters"] == pytest.approx(127.1e6, rel=1e-3)
    assert twelve["tokens"] == pytest.approx(2.54e9, rel=1e-3)
    assert rows[-1]["tokens"] == 9 * twelve["tokens"]
    for machine in MACHINES:
        key = f"{machine.name}: hours"
        assert rows[-1][key] == pytest.approx(sum(row["units"] * row[key] for row in rows[:-1]))


def test_where_one_device_is_too_small_there_are_no_hours():
    experiment = load_experiment("descent.language")
    one, total = plan(experiment, experiment.units("paper", [0], {"method": "exact"}))
    assert one["1 x T4: micro-batch"] == "does not fit"  # 8 B weights in 2 bytes each
    assert one["1 x T4: hours"] is total["1 x T4: hours"] is None
    assert one["8 x H100: hours"] == total["8 x H100: hours"] > 0
    assert one["trainable"] < 0.01 * one["parameters"]


def test_a_utilization_out_of_its_range_is_refused():
    experiment = load_experiment("looped.pretraining")
    with pytest.raises(ValueError, match=r"utilization must be in \(0, 1\], got 1.5"):
        plan(experiment, experiment.units("smoke", [0]), 1.5)


def test_an_experiment_without_a_workload_is_named():
    experiment = load_experiment("horst.bias")
    with pytest.raises(ValueError, match=r"horst\.bias cannot be planned; allowed: descent"):
        plan(experiment, experiment.units("smoke", [0]))


def test_every_experiment_for_a_gpu_can_be_planned():
    large = {
        name for name in EXPERIMENTS if {"colab", "paper"} & set(load_experiment(name).presets)
    }
    assert sorted(large - WORKLOADS.keys()) == []


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_reads_the_settings_of_its_experiment(name):
    experiment = load_experiment(name)
    settings = experiment.presets["smoke"]
    loads = [workload_of(experiment, settings, case) for case in experiment.cases(settings)]
    loads = [load for load in loads if load is not None]
    assert loads
    for load in loads:
        assert 0 < load.trainable <= load.parameters
        assert min(load.flops, load.kept, load.tokens, load.steps, load.batch_size) > 0
        assert load.precision in ("no", "bf16", "fp16")


@pytest.mark.slow
def test_the_command_prints_the_table():
    command = [sys.executable, "-m", "unrolled", "plan", "looped.pretraining"]
    command += ["--set", "num_loops=12", "--utilization", "0.4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    for word in ("127.1 M", "8 x H100: hours", "1 x T4: micro-batch", "at 40% of the peak rate"):
        assert word in done.stdout

"""Checkpoints: what goes in comes out, and no crash or damage loses the one before."""

import json
import random
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from torch import nn

from unrolled.checkpoint import (
    LOCK,
    Checkpoint,
    CheckpointError,
    CheckpointWarning,
    check_same_settings,
    describe_model,
    exclusive,
    keep_weights_only,
    load_latest_checkpoint,
    pack,
    random_state,
    save_checkpoint,
    set_random_state,
    unpack,
)
from unrolled.looped.model import LoopedTransformer
from unrolled.transformer import TransformerConfig

WORKER = Path(__file__).with_name("training_worker.py")


def write(folder, step, keep=2):
    weights = {"w": torch.full((3, 2), float(step))}
    return save_checkpoint(folder, Checkpoint(step, weights, {"n": step}), keep)


# Nested state ----------------------------------------------------------------------------------

plain = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text())
keys = st.one_of(st.text(), st.integers(), st.booleans(), st.none())
nested = st.recursive(
    plain,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(keys, inner, max_size=3),
    ),
)


@settings(deadline=None)
@given(nested)
def test_any_nested_state_survives_json(value):
    tensors = {}
    back = unpack(json.loads(json.dumps(pack(value, tensors))), tensors)
    assert repr(back) == repr(value)  # repr: nan, -0.0, 1 and True, list and tuple are told apart
    assert tensors == {}


def test_tensors_survive_in_place_and_none_hides_another():
    state = {"a.b": torch.ones(2), "a": {"b": torch.zeros(2)}, 0: [torch.tensor(1)], "0": ()}
    tensors = {}
    back = unpack(json.loads(json.dumps(pack(state, tensors))), tensors)
    assert len(tensors) == 3
    assert torch.equal(back["a.b"], torch.ones(2))
    assert torch.equal(back["a"]["b"], torch.zeros(2))
    assert torch.equal(back[0][0], torch.tensor(1))
    assert back["0"] == ()


@pytest.mark.parametrize("value", [{1, 2}, object(), np.float64(1), lambda: None, b"x"])
def test_what_cannot_be_held_is_named_with_its_place(value):
    with pytest.raises(TypeError, match=r"state\.probe\.1 is a"):
        pack({"probe": [0, value]}, {})


def test_the_state_of_every_optimizer_survives(tmp_path):
    weight = nn.Parameter(torch.randn(4, 3))
    for kind in (torch.optim.AdamW, torch.optim.SGD, torch.optim.Muon, torch.optim.RMSprop):
        optimizer = kind([weight], lr=0.1)
        for _ in range(2):
            weight.grad = torch.randn(4, 3)
            optimizer.step()
        save_checkpoint(tmp_path / kind.__name__, Checkpoint(1, {}, optimizer.state_dict()))
        saved = load_latest_checkpoint(tmp_path / kind.__name__).state
        again = kind([weight], lr=0.5)
        again.load_state_dict(saved)
        assert again.param_groups == optimizer.param_groups
        for name, value in optimizer.state[weight].items():
            torch.testing.assert_close(again.state[weight][name], value, rtol=0, atol=0)


# Files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64])
def test_weights_come_back_bit_for_bit(tmp_path, dtype):
    shared = torch.arange(12).to(dtype)
    weights = {
        "whole": shared,
        "same": shared,
        "view": shared[2:6],
        "part": torch.arange(9).to(dtype)[3:5],
        "turned": torch.arange(6).to(dtype).view(2, 3).T,
        "scalar": torch.tensor(3).to(dtype),
        "empty": torch.empty(0, 4).to(dtype),
    }
    save_checkpoint(tmp_path, Checkpoint(3, weights, {}))
    back = load_latest_checkpoint(tmp_path)
    assert back.step == 3
    assert back.weights.keys() == weights.keys()
    assert all(torch.equal(back.weights[name], weights[name]) for name in weights)
    assert all(back.weights[name].dtype == dtype for name in weights)


def test_weights_are_a_plain_safetensors_file_and_nothing_is_a_pickle(tmp_path):
    path = write(tmp_path, 1)
    assert {p.name for p in path.iterdir()} == {
        "model.safetensors",
        "state.safetensors",
        "state.json",
        "manifest.json",
    }
    with safe_open(path / "model.safetensors", "pt") as file:
        assert list(file.keys()) == ["w"]


def test_only_the_newest_are_kept(tmp_path):
    for step in (5, 10, 15, 100_000_000):
        write(tmp_path, step, keep=2)
    assert {p.name for p in tmp_path.iterdir()} == {"step_00000015", "step_100000000"}
    assert load_latest_checkpoint(tmp_path).step == 100_000_000


def test_nothing_there_is_no_checkpoint(tmp_path):
    (tmp_path / "step_00000001.partial").mkdir()
    (tmp_path / "step_notes").mkdir()
    assert load_latest_checkpoint(tmp_path) is None
    assert load_latest_checkpoint(tmp_path / "absent") is None


# Damage ----------------------------------------------------------------------------------------


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGE = {
    "flipped": flip_a_bit,
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "empty": lambda path: path.write_bytes(b""),
    "gone": Path.unlink,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize(
    "name", ["model.safetensors", "state.safetensors", "state.json", "manifest.json"]
)
def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path, name, damage):
    write(tmp_path, 4)
    damage(write(tmp_path, 8) / name)
    with pytest.warns(CheckpointWarning, match=r"step_00000008 is damaged.*back to step_00000004"):
        checkpoint = load_latest_checkpoint(tmp_path)
    assert checkpoint.state == {"n": 4}
    assert torch.equal(checkpoint.weights["w"], torch.full((3, 2), 4.0))


def test_when_all_are_damaged_it_says_so(tmp_path):
    for step in (4, 8):
        flip_a_bit(write(tmp_path, step) / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"step_00000008 .*step_00000004 .*remove"):
        load_latest_checkpoint(tmp_path)


def test_the_next_checkpoint_replaces_damaged_ones(tmp_path):
    write(tmp_path, 4)
    for step in (8, 12):
        flip_a_bit(write(tmp_path, step, keep=3) / "state.json")
    write(tmp_path, 8)
    assert {p.name for p in tmp_path.iterdir()} == {"step_00000004", "step_00000008"}
    assert load_latest_checkpoint(tmp_path).step == 8


def test_a_foreign_format_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("unrolled.checkpoint.FORMAT", "something else")
    write(tmp_path, 1)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="'something else'"):
        load_latest_checkpoint(tmp_path)


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path):
    write(tmp_path, 1)
    big = Checkpoint(2, {"w": torch.zeros(100_000)}, {"n": 2})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(OSError, match=r"large|os error"):
            save_checkpoint(tmp_path, big)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [p.name for p in tmp_path.iterdir()] == ["step_00000001"]
    assert load_latest_checkpoint(tmp_path).state == {"n": 1}
    save_checkpoint(tmp_path, big)
    assert load_latest_checkpoint(tmp_path).state == {"n": 2}


@pytest.mark.slow
def test_a_crash_at_any_flush_leaves_a_whole_checkpoint(tmp_path):
    output = subprocess.run(
        [sys.executable, WORKER, "crashed", tmp_path], capture_output=True, text=True, check=True
    )
    report = json.loads(output.stdout)
    # before the rename the old one is found, after it the new one
    assert report["found"][:3] == [1, 1, 1]
    assert report["found"] == sorted(report["found"])
    assert report["found"][-1] == 2
    assert report["left"] == ["step_00000001", "step_00000002"]


# One run at a time -----------------------------------------------------------------------------

HOLD = """
import sys, filelock
lock = filelock.FileLock(sys.argv[1]).acquire()
print("held", flush=True)
input()
"""


def test_a_killed_process_leaves_its_lock_to_the_next_and_a_living_one_does_not(tmp_path):
    command = [sys.executable, "-c", HOLD, tmp_path / LOCK]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()  # it holds the lock
        told = f"{tmp_path}.*wait for its end or stop it, or choose another checkpoint_folder"
        with pytest.raises(CheckpointError, match=told), exclusive(tmp_path):
            pass
        other.kill()
        other.wait()
        with exclusive(tmp_path):
            assert (tmp_path / LOCK).exists()


def test_a_lock_ends_with_its_block_also_by_an_error(tmp_path):
    with pytest.raises(KeyboardInterrupt), exclusive(tmp_path):
        raise KeyboardInterrupt
    with exclusive(tmp_path), exclusive_elsewhere(tmp_path):
        pass


def exclusive_elsewhere(folder):
    (folder / "other").mkdir()
    return exclusive(folder / "other")


def test_a_folder_that_cannot_be_locked_is_named(tmp_path):
    (tmp_path / LOCK).mkdir()
    with pytest.raises(CheckpointError, match=f"{tmp_path} cannot hold"), exclusive(tmp_path):
        pass


def test_a_run_that_is_over_leaves_no_lock(tmp_path):
    with exclusive(tmp_path):
        write(tmp_path, 1)
    keep_weights_only(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


# What belongs to a run -------------------------------------------------------------------------


def test_random_states_are_restored_through_the_files(tmp_path):
    save_checkpoint(tmp_path, Checkpoint(1, {}, random_state()))
    draws = [(random.gauss(0, 1), np.random.randn(3).tolist(), torch.randn(3).tolist())]
    set_random_state(load_latest_checkpoint(tmp_path).state)
    draws += [(random.gauss(0, 1), np.random.randn(3).tolist(), torch.randn(3).tolist())]
    assert draws[0] == draws[1]


def test_variants_with_equal_shapes_are_told_apart():
    config = TransformerConfig(vocab_size=8, num_layers=1, hidden_size=8, num_heads=1, max_length=4)
    first = describe_model(LoopedTransformer(config, 3, "flt"))
    second = describe_model(LoopedTransformer(config, 4, "original"))
    assert first["tensors"] == second["tensors"]
    with pytest.raises(ValueError, match=r"injection was 'flt' and is 'original'.*num_loops was 3"):
        check_same_settings(first, second, "here")


def test_the_differing_setting_is_named():
    check_same_settings({"a": {"b": (1, 2)}}, {"a": {"b": [1, 2]}}, "here")
    with pytest.raises(ValueError, match=r"in here .* a\.b was 1 and is 'absent'"):
        check_same_settings({"a": {"b": 1}}, {"a": {}}, "here")
    many = {str(index): index for index in range(9)}
    with pytest.raises(ValueError, match="and 4 more"):
        check_same_settings(many, {}, "here")

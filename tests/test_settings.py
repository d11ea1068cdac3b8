"""Settings: only known fields take values of their type, and the hash names exactly them."""

import hashlib
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unrolled.settings import added, as_dict, config_hash, parse_assignments, replace


@dataclass(frozen=True)
class Inner:
    steps: int = 5
    rate: float = 0.5


@dataclass(frozen=True)
class Toy:
    steps: int = 3
    rate: float = 0.1
    name: str = "toy"
    big: bool = False
    clip: float | None = 1.0
    loops: tuple[int, ...] = (6, 12)
    pair: tuple[int, str] = (1, "a")
    names: list[str] = field(default_factory=lambda: ["a"])
    mode: Literal["fast", "slow"] = "fast"
    inner: Inner = Inner()


@pytest.mark.parametrize(
    ("name", "given_value", "kept"),
    [
        ("steps", 4, 4),
        ("steps", "4", 4),
        ("steps", 4.0, 4),
        ("rate", "3e-3", 0.003),
        ("rate", 1, 1.0),
        ("name", "12", "12"),
        ("big", True, True),
        ("big", "true", True),
        ("big", "False", False),
        ("clip", None, None),
        ("clip", "none", None),
        ("clip", "2", 2.0),
        ("loops", "3,6", (3, 6)),
        ("loops", [3], (3,)),
        ("loops", "", ()),
        ("pair", "2,b", (2, "b")),
        ("names", "b,c", ["b", "c"]),
        ("mode", "slow", "slow"),
    ],
)
def test_replace_takes_values_of_the_fields_type(name, given_value, kept):
    changed = replace(Toy(), {name: given_value})
    value = getattr(changed, name)
    assert (value, type(value)) == (kept, type(kept))
    assert replace(changed, {name: getattr(Toy(), name)}) == Toy()


def test_replace_reaches_nested_settings():
    changed = replace(Toy(), {"inner.rate": "2", "inner.steps": 1})
    assert changed == Toy(inner=Inner(1, 2.0))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"step": 1}, "unknown setting 'step' of Toy; allowed: steps, rate, name"),
        ({"inner.step": 1}, "unknown setting 'inner.step' of Inner; allowed: steps, rate"),
        ({"steps.x": 1}, "'steps' has no parts"),
        ({"steps": "many"}, "steps = 'many' is not a whole number"),
        ({"steps": 1.5}, "steps = 1.5 is not a whole number"),
        ({"steps": True}, "steps = True is not a whole number"),
        ({"steps": None}, "steps = None is not a whole number"),
        ({"rate": "fast"}, "rate = 'fast' is not a number"),
        ({"rate": False}, "rate = False is not a number"),
        ({"name": 3}, "name = 3 is not text"),
        ({"big": "yes"}, "big = 'yes' is not a boolean; allowed: true, false"),
        ({"big": 1}, "big = 1 is not a boolean"),
        ({"clip": "x"}, "clip = 'x' is not a number"),
        ({"loops": 3}, "loops = 3 must be a sequence"),
        ({"loops": "3,x"}, "loops = 'x' is not a whole number"),
        ({"pair": "1"}, "must have 2 entries"),
        ({"mode": "slower"}, "mode = 'slower' is not allowed; allowed: fast, slow"),
        ({"inner": 3}, "inner = 3 is not a Inner"),
    ],
)
def test_replace_refuses(overrides, message):
    with pytest.raises(ValueError, match=message):
        replace(Toy(), overrides)


def test_every_override_changes_the_hash_and_the_case_too():
    changes = {"steps": 4, "rate": 0.2, "name": "b", "big": True, "clip": None, "loops": (6,)}
    hashes = {config_hash(replace(Toy(), {k: v}), {"k": 1}) for k, v in changes.items()}
    hashes |= {config_hash(Toy(), case) for case in ({"k": 1}, {"k": 2}, {"j": 1}, {"k": "1"}, {})}
    hashes.add(config_hash(replace(Toy(), {"inner.steps": 6}), {"k": 1}))
    assert len(hashes) == len(changes) + 5 + 1
    assert all(len(h) == 12 and int(h, 16) >= 0 for h in hashes)


@given(st.dictionaries(st.text(max_size=3), st.integers(), min_size=2, max_size=4))
def test_the_order_of_a_case_does_not_matter(case):
    assert config_hash(Toy(), case) == config_hash(Toy(), dict(reversed(case.items())))


def test_the_hash_is_the_same_in_every_process():
    """A fixed value: rows of other machines must match ours."""
    text = b'{"case": {"num_loops": 12, "variant": "flt"}, "settings": {"rate": 0.5, "steps": 5}}'
    wanted = hashlib.sha256(text).hexdigest()[:12]
    assert config_hash(Inner(), {"variant": "flt", "num_loops": 12}) == wanted
    assert config_hash(pickle.loads(pickle.dumps(Toy())), {}) == config_hash(Toy(), {})


def test_an_added_field_counts_only_away_from_its_default_also_when_nested():
    @dataclass(frozen=True)
    class Before:
        steps: int = 1

    @dataclass(frozen=True)
    class After(Before):
        warmup: int = added(0)

    @dataclass(frozen=True)
    class Outer:
        inner: Before

    assert config_hash(Outer(After()), {}) == config_hash(Outer(Before()), {})
    assert config_hash(Outer(After(warmup=2)), {}) != config_hash(Outer(Before()), {})
    assert as_dict(After()) == {"steps": 1, "warmup": 0}


def test_settings_must_be_writable_as_json():
    @dataclass(frozen=True)
    class Bad:
        path: Path = Path("x")

    with pytest.raises(TypeError, match="not JSON serializable"):
        as_dict(Bad())
    with pytest.raises(TypeError, match="must be a dataclass instance"):
        as_dict({"steps": 1})
    with pytest.raises(TypeError, match="must be a dataclass instance"):
        as_dict(Toy)


@pytest.mark.parametrize("texts", [["steps"], ["=3"], ["a=1", "a=2"]])
def test_parse_assignments_refuses(texts):
    with pytest.raises(ValueError, match="--set"):
        parse_assignments(texts, "--set")


def test_parse_assignments_keeps_later_equal_signs():
    assert parse_assignments(["a=b=c", "d="], "--set") == {"a": "b=c", "d": ""}

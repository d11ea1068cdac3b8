"""Settings: the frozen dataclass that fixes an experiment, its overrides and its hash.

A settings object is the whole description of a run apart from the seed. Overrides come from a
notebook (``{"steps": 10}``) or from the command line (``--set steps=10``); both are checked
against the fields and their types before any work starts. Nested settings are reached with a
dotted name (``training.steps``).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Union

__all__ = ["added", "as_dict", "config_hash", "parse_assignments", "replace"]

NOTHING = type(None)


def replace(settings: Any, overrides: Mapping[str, Any] | None) -> Any:
    """Return a copy of the settings with some fields changed, each checked against its type.

    Parameters
    ----------
    settings
        A dataclass instance; its fields may again be dataclasses.
    overrides
        New values by field name, dotted for nested settings. Text is read as the field's type.

    Returns
    -------
    dataclass instance
        Of the same class; ``settings`` itself is left as it is.

    Raises
    ------
    ValueError
        For an unknown field or a value that the field's type does not allow.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Toy:
    ...     steps: int = 3
    ...     rate: float = 0.1
    >>> replace(Toy(), {"steps": "12", "rate": 1})
    Toy(steps=12, rate=1.0)
    >>> replace(Toy(), {"step": 12})
    Traceback (most recent call last):
    ...
    ValueError: unknown setting 'step' of Toy; allowed: steps, rate
    """
    for name, value in (overrides or {}).items():
        settings = _replace_one(settings, name, value, name)
    return settings


def _replace_one(settings: Any, name: str, value: Any, full_name: str) -> Any:
    head, _, rest = name.partition(".")
    fields = field_types(settings)
    if head not in fields:
        raise ValueError(
            f"unknown setting {full_name!r} of {type(settings).__name__}; "
            f"allowed: {', '.join(fields)}"
        )
    old = getattr(settings, head)
    if rest:
        if not dataclasses.is_dataclass(old):
            raise ValueError(f"setting {head!r} has no parts, so {full_name!r} names nothing")
        return dataclasses.replace(settings, **{head: _replace_one(old, rest, value, full_name)})
    return dataclasses.replace(settings, **{head: convert(value, fields[head], full_name)})


def field_types(settings: Any) -> dict[str, Any]:
    """Return the type of every field of a settings object, by name."""
    if not dataclasses.is_dataclass(settings) or isinstance(settings, type):
        raise TypeError(f"settings must be a dataclass instance, not {settings!r}")
    hints = typing.get_type_hints(type(settings))
    return {field.name: hints[field.name] for field in dataclasses.fields(settings) if field.init}


def convert(value: Any, kind: Any, name: str) -> Any:
    """Return ``value`` as the type ``kind``; text is parsed; raise ValueError if it cannot be.

    Examples
    --------
    >>> convert("1,2", tuple[int, ...], "loops"), convert("none", float | None, "clip")
    ((1, 2), None)
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        return _convert_union(value, arguments, name)
    if origin is Literal:
        return _convert_literal(value, arguments, name)
    if origin in (tuple, list):
        return _convert_sequence(value, origin, arguments, name)
    if kind is Any:
        return value
    return _convert_scalar(value, kind, name)


def _convert_union(value: Any, kinds: tuple, name: str) -> Any:
    if NOTHING in kinds and (value is None or str(value).lower() == "none"):
        return None
    errors = []
    for kind in kinds:
        if kind is not NOTHING:
            try:
                return convert(value, kind, name)
            except ValueError as error:
                errors.append(str(error))
    raise ValueError(errors[0] if len(errors) == 1 else f"{name} = {value!r} is not one of {kinds}")


def _convert_literal(value: Any, allowed: tuple, name: str) -> Any:
    for choice in allowed:
        if value == choice or (isinstance(value, str) and value == str(choice)):
            return choice
    raise ValueError(f"{name} = {value!r} is not allowed; allowed: {', '.join(map(str, allowed))}")


def _convert_sequence(value: Any, origin: type, kinds: tuple, name: str) -> Any:
    if isinstance(value, str):
        value = [part.strip() for part in value.strip("()[]").split(",") if part.strip()]
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{name} = {value!r} must be a sequence (on the command line: a,b,c)")
    if origin is tuple and kinds and Ellipsis not in kinds:
        if len(value) != len(kinds):
            raise ValueError(f"{name} = {value!r} must have {len(kinds)} entries")
        return tuple(convert(item, kind, name) for item, kind in zip(value, kinds, strict=True))
    kind = kinds[0] if kinds else Any
    return origin(convert(item, kind, name) for item in value)


def _convert_scalar(value: Any, kind: Any, name: str) -> Any:
    wrong = ValueError(f"{name} = {value!r} is not {_article(kind)}")
    if kind is bool:
        choice = {"true": True, "false": False}.get(str(value).lower())
        if choice is None:
            raise ValueError(f"{wrong}; allowed: true, false")
        return choice
    if isinstance(value, bool) and kind in (int, float):
        raise wrong
    if kind in (int, float):
        return _convert_number(value, kind, wrong)
    if isinstance(kind, type) and isinstance(value, kind):
        return value
    raise wrong


def _convert_number(value: Any, kind: type, wrong: ValueError) -> Any:
    if not isinstance(value, (int, float, str)):
        raise wrong
    try:
        number = float(value) if kind is float or isinstance(value, float) else int(value)
    except ValueError:
        raise wrong from None
    if kind is int and number != int(number):
        raise wrong
    return kind(number)


def _article(kind: Any) -> str:
    name = getattr(kind, "__name__", str(kind))
    return {"int": "a whole number", "float": "a number", "str": "text", "bool": "a boolean"}.get(
        name, f"a {name}"
    )


def parse_assignments(texts: Iterable[str], option: str) -> dict[str, str]:
    """Split ``key=value`` texts of the command line; raise ValueError naming the option.

    Examples
    --------
    >>> parse_assignments(["steps=10", "variant=flt"], "--set")
    {'steps': '10', 'variant': 'flt'}
    """
    pairs: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ValueError(f"{option} {text!r} must have the form KEY=VALUE")
        if key in pairs:
            raise ValueError(f"{option} gives {key!r} twice")
        pairs[key] = value
    return pairs


def added(default: Any) -> Any:
    """Return a field that came to a settings class when rows of the class existed already.

    At its default it does not count in `config_hash`, so that these rows keep their name.

    Parameters
    ----------
    default
        With it the class must do what it did without the field.

    Examples
    --------
    >>> from dataclasses import make_dataclass
    >>> before = make_dataclass("Toy", [("steps", int, 3)])
    >>> after = make_dataclass("Toy", [("steps", int, 3), ("warmup", int, added(0))])
    >>> config_hash(before(), {}) == config_hash(after(), {})
    True
    >>> config_hash(before(), {}) == config_hash(after(warmup=1), {})
    False
    """
    return dataclasses.field(default=default, metadata={"added": True})


def as_dict(settings: Any) -> dict[str, Any]:
    """Return the settings as a plain, JSON-ready dictionary (tuples become lists).

    Raises
    ------
    TypeError
        If a value cannot be written as JSON; such settings could not be hashed.
    """
    field_types(settings)
    return json.loads(json.dumps(dataclasses.asdict(settings)))


def config_hash(settings: Any, case: Mapping[str, Any]) -> str:
    """Return 12 hex digits that name the settings and the case, and not the seed.

    Two rows may be averaged over seeds exactly if their hashes agree.

    Parameters
    ----------
    settings
        A dataclass instance.
    case
        What this unit of work varies, for example ``{"variant": "flt", "num_loops": 12}``.
    """
    described = _without_added(settings, as_dict(settings))
    text = json.dumps({"settings": described, "case": dict(case)}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _without_added(settings: Any, described: dict[str, Any]) -> dict[str, Any]:
    """Leave the fields out, also of nested settings, that were `added` and are at their default."""
    kept = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if field.metadata.get("added") and value == field.default:
            continue
        inner = described[field.name]
        nested = dataclasses.is_dataclass(value)
        kept[field.name] = _without_added(value, inner) if nested else inner
    return kept

"""Libraries that only some data sets need."""

from importlib import import_module
from types import ModuleType


def need(name: str, purpose: str) -> ModuleType:
    """Import a library of the extra ``data``, or say for what it is needed and how to get it."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:  # it is there, but a library that it needs is not
            raise
        raise ModuleNotFoundError(
            f"{purpose} needs the library {name}, which is not installed. "
            f"What you can do: python -m pip install {name}",
            name=name,
        ) from error

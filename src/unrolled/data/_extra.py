"""Libraries that only some data sets, models and tasks need."""

from importlib import import_module
from types import ModuleType


def need(name: str, purpose: str) -> ModuleType:
    """Import a library of an extra, or say for what it is needed and how to get it."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        library = name.partition(".")[0]
        if error.name not in (name, library):  # it is there, but a library that it needs is not
            raise
        raise ModuleNotFoundError(
            f"{purpose} needs the library {library}, which is not installed. "
            f"What you can do: python -m pip install {library}",
            name=library,
        ) from error

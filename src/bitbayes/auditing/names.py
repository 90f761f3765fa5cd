"""The names that the user gives to classes and features, checked against the model and the data."""

from collections.abc import Iterable, Mapping
from typing import Any

from bitbayes.auditing.words import printable
from bitbayes.errors import ArgumentError


def read_names(given: Any, what: str) -> list[str]:
    """Return names as one-line texts, or none for None. `what` is the name of the argument.

    >>> read_names(["cat", "dog"], "classes"), read_names(None, "classes")
    (['cat', 'dog'], [])
    >>> read_names(["cat", "cat"], "classes")
    Traceback (most recent call last):
    ...
    bitbayes.errors.ArgumentError: classes has 'cat' twice: give different names
    """
    if given is None:
        return []
    if isinstance(given, (str, Mapping)) or not isinstance(given, Iterable):
        raise ArgumentError(f"{what} is a {type(given).__name__}: give a list of texts, in their order")
    names = [printable(each) for each in given]
    if not names or not all(names):
        raise ArgumentError(f"{what}={names}: give a text for each")
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise ArgumentError(f"{what} has {repeated!r} twice: give different names")
    return names


def name_classes(given: list[str], classes: int) -> list[str]:
    """Return a name for each class: those that were given, or "class 0", "class 1", …"""
    if given and len(given) != classes:
        raise ArgumentError(f"classes has {_count(given)}, and the model has {classes} classes")
    return given or [f"class {label}" for label in range(classes)]


def check_features(given: list[str], size: int) -> None:
    """Raise unless there is a name for each number of an input, or none at all."""
    if given and len(given) != size:
        raise ArgumentError(f"features has {_count(given)}, and an input has {size:,} numbers")


def _count(names: list[str]) -> str:
    return f"{len(names)} name{'s' if len(names) > 1 else ''}"

"""The library's own errors: each says what was given and what to do, and leaves the object as it was."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


class BitbayesError(Exception):
    """The parent of every error that bitbayes raises on purpose."""


class ArgumentError(BitbayesError, ValueError):
    """An argument has a value that does not exist or does not fit; the message lists those that do."""


class ModelError(BitbayesError):
    """The network is not one that bitbayes can work on as asked."""


class NotEnoughMemoryError(ModelError, MemoryError):
    """What was asked for would not fit into memory; raised before any of it is allocated."""


class DataError(BitbayesError):
    """A loader, a batch or an input is empty, of the wrong kind, or not finite."""


class EmptyLoaderError(DataError):
    """A loader has no points. Where several processes share the data, some of them may have none."""


class NotFittedError(BitbayesError):
    """Something was asked that needs `fit` first."""


class FileError(BitbayesError):
    """A file is damaged, not one of ours, or belongs to another model."""


class MissingFileError(FileError):
    """There is no such file; the message says where to get it."""


class MissingPackageError(BitbayesError, ImportError):
    """An optional package is not installed; the message says which."""


class ProcessError(BitbayesError):
    """Another process of the group failed, does not take part, or was asked for something else."""


class EdgeWarning(UserWarning):
    """The best value of a search lies on the edge of the searched range."""


class UntunedWarning(UserWarning):
    """A prediction is made with a prior variance that nobody chose."""


class SketchWarning(UserWarning):
    """Too much may be lost of the moments of which the structure "lowrank" keeps a sketch."""


class UncheckedWarning(UserWarning):
    """A file of an older version is used, which has no digest by which damage would be noticed."""


@contextmanager
def naming(subject: str) -> Iterator[None]:
    """Say what an error in this block is about."""
    try:
        yield
    except BitbayesError as error:
        raise type(error)(f"{subject}: {error}") from error


def level_of_the_caller() -> int:
    """The `stacklevel` with which a warning points at the first line outside this package and torch."""
    level, frame = 0, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in ("bitbayes", "torch"):
        level, frame = level + 1, frame.f_back
    return level + 1


def one_of(name: str, value: object, allowed: tuple[str, ...]) -> str:
    """Return `value` if it is one of `allowed`; otherwise raise and list them.

    >>> one_of("structure", "kron", ("full", "kron"))
    'kron'
    >>> one_of("structure", "kfac", ("full", "kron"))
    Traceback (most recent call last):
    ...
    bitbayes.errors.ArgumentError: structure='kfac' is not known: choose one of 'full', 'kron'
    """
    if not isinstance(value, str) or value not in allowed:
        choices = ", ".join(repr(a) for a in allowed)
        raise ArgumentError(f"{name}={value!r} is not known: choose one of {choices}")
    return value

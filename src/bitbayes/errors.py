"""The library's own errors. Each message says what was given and what to do.

A call that raises one of them leaves the object as it was.
"""

import difflib
import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = [
    "ArgumentError",
    "BitbayesError",
    "DataError",
    "EdgeWarning",
    "EmptyLoaderError",
    "FewPointsWarning",
    "FileError",
    "KeptDtypeWarning",
    "MissingFileError",
    "MissingPackageError",
    "ModelError",
    "NormalisationWarning",
    "NotEnoughMemoryError",
    "NotFittedError",
    "ProcessError",
    "RandomModelWarning",
    "SketchWarning",
    "StateDictWarning",
    "UncheckedWarning",
    "UnknownAttributeError",
    "UntunedWarning",
    "UnusedDataWarning",
]


class BitbayesError(Exception):
    """The parent of every error that bitbayes raises on purpose."""


class ArgumentError(BitbayesError, ValueError):
    """An argument has a wrong value. The message lists the right ones."""


class ModelError(BitbayesError):
    """The network cannot be used in the requested way."""


class NotEnoughMemoryError(ModelError, MemoryError):
    """There is too little memory. It is raised before any memory is allocated."""


class DataError(BitbayesError):
    """A loader, a batch or an input is empty, of the wrong kind, or not finite."""


class EmptyLoaderError(DataError):
    """A loader has no points. If several processes share the data, one of them may have none."""


class NotFittedError(BitbayesError):
    """`fit` must be called first."""


class FileError(BitbayesError):
    """A file is damaged, was not written by bitbayes, or belongs to another model."""


class MissingFileError(FileError):
    """There is no such file. The message says where to get it."""


class UnknownAttributeError(BitbayesError, AttributeError):
    """There is no such attribute to set. The message names the nearest one."""


class MissingPackageError(BitbayesError, ImportError):
    """An optional package is not installed. The message names it."""


class ProcessError(BitbayesError):
    """Another process failed, did not take part, or was called differently."""


class EdgeWarning(UserWarning):
    """The best value of a search lies on the edge of the searched range."""


class FewPointsWarning(UserWarning):
    """There are hardly any validation points, so that a weak prior has decided, or none of a label."""


class UntunedWarning(UserWarning):
    """A prediction uses a prior variance that was neither tuned nor set, or a callback cannot tune."""


class KeptDtypeWarning(UserWarning):
    """A `Laplace` was to be converted to another dtype, and its model keeps its own."""


class NormalisationWarning(UserWarning):
    """A model is trained by its evidence, and normalises: the size of some weights means nothing."""


class RandomModelWarning(UserWarning):
    """Two runs of the model on the same inputs give different outputs, in eval mode."""


class SketchWarning(UserWarning):
    """The sketch of the structure "lowrank" may have lost too much of the curvature."""


class StateDictWarning(UserWarning):
    """A state dict has no posterior for this `Laplace`, which is not fitted now."""


class UncheckedWarning(UserWarning):
    """A file of an older version has no digest, so damage to it cannot be noticed."""


class UnusedDataWarning(UserWarning):
    """Parts of a loader's batches are left out, because the model does not take them."""


@contextmanager
def naming(subject: str) -> Iterator[None]:
    """Put `subject` before the message of every `BitbayesError` that the block raises."""
    try:
        yield
    except BitbayesError as error:
        raise type(error)(f"{subject}: {error}") from error


def level_of_the_caller() -> int:
    """Return the `stacklevel` of the first line outside this package and torch, for warnings."""
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
    >>> one_of("layers", "alll", ("last", "all"))
    Traceback (most recent call last):
    ...
    bitbayes.errors.ArgumentError: layers='alll' is not known, did you mean 'all'? Choose one of 'last', 'all'
    """
    if not isinstance(value, str) or value not in allowed:
        choices = ", ".join(repr(a) for a in allowed)
        near = difflib.get_close_matches(value, allowed, n=1) if isinstance(value, str) else []
        advice = f", did you mean {near[0]!r}? Choose" if near else ": choose"
        raise ArgumentError(f"{name}={value!r} is not known{advice} one of {choices}")
    return value

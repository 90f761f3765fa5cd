"""The library's own errors. Each message says what was given and what to do. The object stays as it was."""

import difflib


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


class UncheckedWarning(UserWarning):
    """A file of an older version is used, which has no digest by which damage would be noticed."""


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

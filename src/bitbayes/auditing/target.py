"""What to audit: the user's `package.module:function`, or the embedded digits."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from bitbayes.errors import ArgumentError, DataError, ModelError
from bitbayes.reproduction.data import digits, digits_lenet, validation_split

REQUIRED = ("model", "train", "validation", "test")
KEYS = (*REQUIRED, "outliers")


@dataclass(frozen=True)
class Target:
    """A model, its loaders of (x, y), and inputs that belong to none of its classes, by name."""

    subject: str
    model: nn.Module
    train: Iterable[Any]
    validation: Iterable[Any]
    test: Iterable[Any]
    outliers: Mapping[str, Iterable[Any] | Tensor] = field(default_factory=dict)


def embedded_target(seed: int) -> Target:
    """The embedded digits and their LeNet; the test digits are split by `seed` into validation and test."""
    data = digits()
    validation, test = validation_split(data.test_images, data.test_labels, 1000, seed)
    return Target(
        subject="LeNet on the embedded MNIST digits",
        model=digits_lenet(),
        train=_loader(data.train_images, data.train_labels),
        validation=_loader(*validation),
        test=_loader(*test),
        outliers={"Fashion-MNIST": data.fashion_images, "Letters (A–Z)": data.letters_images},
    )


def load_target(name: str) -> Target:
    """Import `package.module:function`, from the current directory too, call it, and check what it returns.

    >>> load_target("math:sqrt")
    Traceback (most recent call last):
    ...
    bitbayes.errors.DataError: math:sqrt raised TypeError: ...
    """
    function = _find(name)
    try:
        returned = function()
    except Exception as error:
        raise DataError(f"{name} raised {_describe(error)}") from error
    return _checked(name, returned)


def _find(name: str) -> Callable[[], Any]:
    module_name, colon, function_name = name.partition(":")
    if not (module_name and colon and function_name):
        raise ArgumentError(f"{name!r} is no target: write package.module:function, such as digits:audit")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()  # the file may be younger than this process
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name + ".").startswith(error.name + "."):
            raise ArgumentError(
                f"no module {module_name!r} in {here} or among the installed packages: "
                f"{name!r} must be package.module:function"
            ) from error
        raise ArgumentError(f"importing {module_name!r} raised {_describe(error)}") from error
    except Exception as error:
        raise ArgumentError(f"importing {module_name!r} raised {_describe(error)}") from error
    function = getattr(module, function_name, None)
    if function is None:
        raise ArgumentError(f"module {module_name!r} ({module.__file__}) has no function {function_name!r}")
    if not callable(function):
        raise ArgumentError(f"{name} is a {type(function).__name__}: it must be a function without arguments")
    return function  # type: ignore[no-any-return]


def _checked(name: str, returned: Any) -> Target:
    if not isinstance(returned, Mapping):
        raise DataError(
            f"{name} returned a {type(returned).__name__}: it must return a dict with the keys {_list(KEYS)}"
        )
    if missing := [key for key in REQUIRED if key not in returned]:
        raise DataError(f"{name} returned a dict without {_list(missing)}: it has {_list(returned)}")
    if unknown := [key for key in returned if key not in KEYS]:
        raise DataError(
            f"{name} returned a dict with {_list(unknown)}: the keys that mean something are {_list(KEYS)}"
        )
    if not isinstance(returned["model"], nn.Module):
        kind = type(returned["model"]).__name__
        raise ModelError(f'{name}: "model" is a {kind}: it must be a torch.nn.Module that returns logits')
    outliers = returned.get("outliers", {})
    if not isinstance(outliers, Mapping):
        raise DataError(
            f'{name}: "outliers" is a {type(outliers).__name__}: '
            "it must be a dict from a name to a tensor of inputs or a loader"
        )
    return Target(name, **{key: returned[key] for key in REQUIRED}, outliers=outliers)


def _describe(error: Exception) -> str:
    """The error's kind and text, and the last line of code it passed that is not a library's."""
    frames = traceback.extract_tb(error.__traceback__)[1:]
    own = [
        frame
        for frame in frames
        if not any(part in frame.filename for part in ("site-packages", "importlib"))
    ]
    where = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {error}{where}"


def _list(names: Iterable[Any]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _loader(images: Tensor, labels: Tensor) -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(TensorDataset(images, labels), batch_size=250)

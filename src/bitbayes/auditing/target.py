"""The model and data to audit: those that a function of the user returns, or the embedded digits."""

import importlib
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from bitbayes.errors import ArgumentError, DataError, ModelError
from bitbayes.toys import digits, digits_lenet, validation_split
from bitbayes.toys.images import FASHION_NAMES

REQUIRED_KEYS = ("model", "train", "validation", "test")
# What `audit` takes as it is.
WORDS = ("name", "classes", "features", "segment")
ALLOWED_KEYS = (*REQUIRED_KEYS, "models", "outliers", *WORDS)


@dataclass(frozen=True)
class Target:
    """Predictors, labelled data, and outliers: inputs by name that belong to none of the classes.

    models: a network, or predictors by name.
    train, validation: None if they were not given.
    name: of the audit; classes, features, segment: as `audit` takes them.
    """

    models: Any
    train: Any
    validation: Any
    test: Any
    outliers: Mapping[str, Any]
    name: str
    classes: Any = None
    features: Any = None
    segment: Any = None


def embedded_target(seed: int) -> Target:
    """Return the embedded digits and their LeNet. `seed` splits the test digits into validation and test."""
    data = digits()
    validation, test = validation_split(data.test_images, data.test_labels, 1000, seed)
    return Target(
        models=digits_lenet(),
        train=_make_loader(data.train_images, data.train_labels),
        validation=_make_loader(*validation),
        test=_make_loader(*test),
        name="LeNet on the embedded MNIST digits",
        outliers={
            "Fashion-MNIST": (data.fashion_images, [FASHION_NAMES[y] for y in data.fashion_labels.tolist()]),
            "Letters (A–Z)": (
                data.letters_images,
                [f"letter {ascii_uppercase[y]}" for y in data.letters_labels.tolist()],
            ),
        },
        classes=[f"digit {digit}" for digit in range(10)],
    )


def load_target(name: str) -> Target:
    """Import `package.module:function`, call it, and check what it returns.

    The module may lie in the current directory.

    >>> load_target("math:sqrt")
    Traceback (most recent call last):
    ...
    bitbayes.errors.DataError: math:sqrt raised TypeError: ...
    """
    function = _find_function(name)
    try:
        returned = function()
    except (Exception, SystemExit) as error:
        raise DataError(f"{name} raised {_describe(error)}") from error
    return _check_returned(name, returned)


def _find_function(name: str) -> Callable[[], Any]:
    module_name, colon, function_name = name.partition(":")
    if not (module_name and colon and function_name):
        raise ArgumentError(f"{name!r} is no target: write package.module:function, such as digits:audit")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()  # the file may be newer than this process
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name + ".").startswith(error.name + "."):
            raise ArgumentError(
                f"no module {module_name!r} in {here} or among the installed packages: "
                f"{name!r} must be package.module:function"
            ) from error
        raise ArgumentError(f"importing {module_name!r} raised {_describe(error)}") from error
    except (Exception, SystemExit) as error:  # a script that ends in sys.exit, for example
        raise ArgumentError(f"importing {module_name!r} raised {_describe(error)}") from error
    try:
        function = getattr(module, function_name, None)
    except Exception as error:  # a module may have a `__getattr__` of its own
        raise ArgumentError(f"looking for {name} raised {_describe(error)}") from error
    if function is None:
        where = getattr(module, "__file__", None) or "built in"
        raise ArgumentError(f"module {module_name!r} ({where}) has no function {function_name!r}")
    if not callable(function):
        raise ArgumentError(f"{name} is a {type(function).__name__}: it must be a function without arguments")
    return function  # type: ignore[no-any-return]


def _check_returned(name: str, returned: Any) -> Target:
    allowed = _quote(ALLOWED_KEYS)
    if not isinstance(returned, Mapping):
        kind = type(returned).__name__
        raise DataError(f"{name} returned a {kind}: it must return a dict with the keys {allowed}")
    if "model" in returned and "models" in returned:
        raise DataError(f'{name} returned a dict with "model" and "models": give one of them')
    several = "models" in returned
    required = ("models", "test") if several else REQUIRED_KEYS
    if missing := [key for key in required if key not in returned]:
        raise DataError(f"{name} returned a dict without {_quote(missing)}: it has {_quote(returned)}")
    if unknown := [key for key in returned if key not in ALLOWED_KEYS]:
        keys = "keys" if len(unknown) > 1 else "key"
        raise DataError(
            f"{name} returned a dict with the unknown {keys} {_quote(unknown)}; expected {allowed}"
        )
    if several and not isinstance(returned["models"], Mapping):
        kind = type(returned["models"]).__name__
        raise DataError(f'{name}: "models" is a {kind}: it must be a dict from a name to a predictor')
    if not several and not isinstance(returned["model"], nn.Module):
        kind = type(returned["model"]).__name__
        raise ModelError(f'{name}: "model" is a {kind}: it must be a torch.nn.Module that returns logits')
    outliers = returned.get("outliers", {})
    if not isinstance(outliers, Mapping):
        raise DataError(
            f'{name}: "outliers" is a {type(outliers).__name__}: '
            "it must be a dict from a name to a tensor of inputs or a loader"
        )
    models = returned["models"] if several else returned["model"]
    data = {key: returned.get(key) for key in ("train", "validation", "test")}
    title, classes, features, segment = (returned.get(key) for key in WORDS)
    if not isinstance(title, str | None):
        raise DataError(f'{name}: "name" is a {type(title).__name__}: it must be a text')
    return Target(
        models,
        **data,
        outliers=outliers,
        name=title or name,
        classes=classes,
        features=features,
        segment=segment,
    )


def _describe(error: BaseException) -> str:
    """Return the type and text of an error, and the last line of the user's own code that it came from."""
    frames = traceback.extract_tb(error.__traceback__)[1:]
    libraries = ("site-packages", "importlib")
    own = [frame for frame in frames if not any(name in frame.filename for name in libraries)]
    where = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    try:
        text = f": {error}"
    except Exception:  # from a `__str__` of the user's
        text = ""
    return f"{type(error).__name__}{text}{where}"


def _quote(names: Iterable[Any]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _make_loader(images: Tensor, labels: Tensor) -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(TensorDataset(images, labels), batch_size=250)

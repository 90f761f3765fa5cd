"""Every public module lists its public names in `__all__`, and each of them is documented."""

import inspect
from importlib import import_module
from types import ModuleType

import pytest

from bitbayes.errors import MissingPackageError

MODULES = (
    "auditing",
    "baselines",
    "baselines.detectors",
    "errors",
    "lightning",
    "likelihoods",
    "metrics",
    "openood",
    "outliers",
    "palette",
    "plots",
    "sklearn",
    "structures",
    "toys",
    "transformers",
    "uncertainty",
)
# Functions and classes without an underscore that are not public, with the reason.
NOT_PUBLIC = {
    "errors": {
        "level_of_the_caller": "computes the stacklevel of the library's warnings",
        "naming": "adds a subject to the library's error messages",
        "one_of": "checks the library's string arguments",
    },
    "metrics": {
        "check_share": "checks the argument `accept` of `threshold`, also for `Laplace.threshold`",
    },
    "outliers": {
        "Ascent": "the state of `ascend`",
        "ascend": "a step of `pgd_confident`, also for the training objective ACET",
        "noise_between": "the noise of `uniform_noise`, also for tuning, which draws it in parts",
        "start_ascent": "the start of `pgd_confident`, also for the training objective ACET",
    },
}


def imported(name: str) -> ModuleType:
    try:
        return import_module(f"bitbayes.{name}")
    except MissingPackageError as error:
        return pytest.skip(str(error))


def defined_names(module: ModuleType) -> set[str]:
    """The functions and classes without an underscore that the module, or a part of the package, defines."""
    inside = (module.__name__, f"{module.__name__}.")
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isfunction(value) or inspect.isclass(value))
        and (value.__module__ == inside[0] or value.__module__.startswith(inside[1]))
    }


def is_documented(value: object) -> bool:
    """Whether a docstring was written: not inherited, and not the signature that a dataclass gets."""
    text = (vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__) or ""
    return bool(text.strip()) and not text.startswith(f"{getattr(value, '__name__', '')}(")


@pytest.mark.parametrize("name", MODULES)
def test_the_names_of_a_module_exist_once_and_are_documented(name: str) -> None:
    module = imported(name)
    assert module.__all__ and len(set(module.__all__)) == len(module.__all__)
    for public in module.__all__:
        value = getattr(module, public)
        if inspect.isfunction(value) or inspect.isclass(value) or inspect.ismodule(value):
            assert is_documented(value), f"{name}.{public} has no docstring"
        else:  # a constant, which cannot have a docstring
            assert not callable(value), f"{name}.{public} is a {type(value).__name__}"
    assert is_documented(module)


@pytest.mark.parametrize("name", MODULES)
def test_every_public_function_and_class_of_a_module_is_listed(name: str) -> None:
    module = imported(name)
    not_public = NOT_PUBLIC.get(name, {})
    assert defined_names(module) - set(module.__all__) == set(not_public)
    assert all(not_public.values())


def test_the_metrics_are_offered_without_the_names_that_they_import() -> None:
    names: dict[str, object] = {}
    exec("from bitbayes.metrics import *", names)
    assert {"accuracy", "auroc", "ece", "nll", "reliability"} <= names.keys()
    assert names.keys().isdisjoint({"Tensor", "torch", "math", "check_share"})


def test_all_errors_and_warnings_are_public() -> None:
    errors = imported("errors")
    raised = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, (BaseException, Warning))
    }
    assert raised == set(errors.__all__)


def test_every_public_module_of_the_package_is_checked() -> None:
    import bitbayes

    modules = {name for name in bitbayes.__all__ if inspect.ismodule(getattr(bitbayes, name, None))}
    assert modules <= set(MODULES)

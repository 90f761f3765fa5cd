"""What was asked for: the options of a `Laplace`, checked together and never changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Generic, Literal, Never, Protocol, Self, TypedDict, TypeVar, overload

from torch import Tensor, nn

from bitbayes.errors import ArgumentError, FileError, one_of
from bitbayes.predictive import closed_forms
from bitbayes.prior import positive
from bitbayes.structures import CURVATURES, LAYER_STRUCTURES

# The values of options, for editors and type checkers. The tests compare them with what is checked below.
Layers = Literal["last", "all"]
Structure = Literal["auto", "full", "kron", "lowrank", "diag", "isotropic"]
Method = Literal["probit", "pairwise", "meanfield", "bridge", "quadrature", "mc", "weights"]
Predictive = Literal["auto", Method]
CurvatureName = Literal["exact", "fisher", "paper"]
ResidualOption = bool | Literal["auto"] | tuple[str, ...] | list[str]
Objective = Literal["calibrated", "ood", "nll", "evidence"]
Penalty = Literal["entropy", "uniform"]
BoundForm = Literal["tight", "theorem"]

ESTIMATES = ("exact", "fisher", "paper")
AUTO: Literal["auto"] = "auto"
# Options of earlier versions, and what to write instead.
RENAMED = {
    "estimate": "it is called curvature= now: curvature='fisher', or curvature=bb.Fisher(draws=…)",
    "variant": "it is called curvature= now: curvature='paper'",
    "draws": "it belongs to the curvature now: Laplace(model, curvature=bb.Fisher(draws=…))",
    "generator": "it belongs to the curvature now: Laplace(model, curvature=bb.Fisher(seed=…))",
    "likelihood": "leave it out: the number of the model's outputs decides",
}


@dataclass(frozen=True)
class Fisher:
    """Estimate the curvature with labels that are drawn from the model, for `Laplace(curvature=…)`.

    It takes one backward pass for each draw. The exact curvature takes k − 1.

    Args:
        draws: the number of labels for each point.
        seed: of the draws.

    >>> import bitbayes as bb
    >>> bayes = bb.Laplace(nn.Linear(4, 10), layers="all", curvature=bb.Fisher(draws=3))
    """

    draws: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if type(self.draws) is not int or self.draws < 1 or type(self.seed) is not int:
            raise ArgumentError(f"{self}: expected a positive number of draws, and a whole number as seed")


class LaplaceOptions(TypedDict, total=False):
    """The options of `Laplace` as keyword arguments, for callbacks that pass them on."""

    layers: Layers
    structure: Structure
    prior_variance: float | Mapping[str, float] | None
    predictive: Predictive
    head: str | None
    curvature: CurvatureName | Fisher
    residual: ResidualOption
    output: str | Callable[..., Tensor] | None


@dataclass(frozen=True)
class Options:
    """Every option but those that can be set at any time: prior variance, temperature, residual's numbers.

    `curvature`: "exact", "paper", or a `Fisher`. `residual`: whether there is one, "auto" (where the inputs
    allow it), or the names of the hidden layers at whose inputs it looks too. `output`: where the logits are
    in what the model returns.
    """

    layers: Layers = "last"
    structure: Structure = "auto"
    predictive: Predictive = "auto"
    head: str | None = None
    curvature: CurvatureName | Fisher = "exact"
    residual: bool | Literal["auto"] | tuple[str, ...] = AUTO
    output: str | Callable[..., Tensor] | None = None

    @classmethod
    def checked(cls, model: nn.Module, curvature: Any, residual: object, **given: Any) -> Options:
        """The options as given; raises on values that do not exist, or do not go together."""
        return cls(**given, curvature=curvature, residual=_residual_layers(model, residual)).check()

    def check(self) -> Options:
        """Return the options, short forms written out; raise on values that do not exist or go together."""
        if self.curvature == "fisher":
            return replace(self, curvature=Fisher()).check()
        every_layer = one_of("layers", self.layers, ("last", "all")) == "all"
        structures = LAYER_STRUCTURES if every_layer else tuple(CURVATURES)
        methods = (*closed_forms(), "mc", "weights") if every_layer else (*closed_forms(), "mc")
        one_of("structure", self.structure, ("auto", *structures))
        one_of("predictive", self.predictive, ("auto", *methods))
        if not isinstance(self.curvature, Fisher):
            one_of("curvature", self.curvature, ESTIMATES)
        elif not every_layer:
            raise ArgumentError(
                "curvature='fisher' estimates derivatives over all layers: the last layer's curvature is "
                "exact at the price of a forward pass. Use curvature='exact', or layers='all'"
            )
        if self.residual_asked and self.predictive == "weights":
            raise ArgumentError(
                "residual=True adds a variance to the logits, and predictive='weights' does not use it: "
                "choose another"
            )
        return self

    @property
    def paper(self) -> bool:
        """Whether the paper's own formulas are asked for."""
        return self.curvature == "paper"

    @property
    def fisher(self) -> Fisher | None:
        """How labels are drawn; None where the curvature is exact. The paper draws one for each point."""
        if self.layers == "all" and self.paper:
            return Fisher()
        return self.curvature if isinstance(self.curvature, Fisher) else None

    @property
    def residual_asked(self) -> bool:
        """Whether a residual was asked for, and not only allowed ("auto")."""
        return self.residual not in (False, AUTO)

    @property
    def residual_layers(self) -> tuple[str, ...]:
        """The hidden layers at whose inputs the residual looks."""
        return self.residual if isinstance(self.residual, tuple) else ()

    def as_json(self) -> dict[str, Any]:
        """The options as JSON holds them; of a function that picks the logits only that there is one."""
        function = callable(self.output)
        return {**asdict(replace(self, output=None if function else self.output)), "function": function}

    @staticmethod
    def from_json(saved: dict[str, Any], output: Any = None) -> dict[str, Any]:
        """The arguments of `Laplace`, from `as_json`; `output`: the function that it cannot hold, if any."""
        saved = dict(saved)
        if saved.pop("function"):
            if not callable(output):
                raise FileError(
                    "it was fitted with output=, a function, which no file holds: give it again, "
                    "Laplace.load(path, model, output=…)"
                )
            saved["output"] = output
        elif output not in (None, saved["output"]):
            raise FileError(f"it was fitted with output={saved['output']!r}, and not {output!r}")
        curvature = saved["curvature"]
        return {**saved, "curvature": Fisher(**curvature) if isinstance(curvature, dict) else curvature}


T = TypeVar("T")


class HasOptions(Protocol):
    """What a `Laplace` is for its attributes."""

    options: Options


class FrozenOption(Generic[T]):
    """An option as an attribute of a `Laplace`: it can be read, and not be changed."""

    def __init__(self, doc: str) -> None:
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, laplace: None, owner: type) -> Self: ...
    @overload
    def __get__(self, laplace: HasOptions, owner: type) -> T: ...
    def __get__(self, laplace: HasOptions | None, owner: type) -> T | Self:
        return self if laplace is None else getattr(laplace.options, self.name)

    def __set__(self, laplace: HasOptions, value: T) -> Never:
        raise ArgumentError(
            f"{self.name}={value!r}: an option cannot be changed, because what was fitted depends on it. "
            f"Make another one, Laplace(model, {self.name}={value!r}), and fit it"
        )


class PositiveNumber:
    """A positive number as an attribute of a `Laplace`, which can be set at any time; `zero`: 0 too."""

    def __init__(self, doc: str, *, zero: bool = False) -> None:
        self.__doc__, self.zero = doc, zero

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, laplace: None, owner: type) -> Self: ...
    @overload
    def __get__(self, laplace: object, owner: type) -> float: ...
    def __get__(self, laplace: object | None, owner: type) -> float | Self:
        return self if laplace is None else getattr(laplace, f"_{self.name}")

    def __set__(self, laplace: object, value: float | Tensor) -> None:
        setattr(laplace, f"_{self.name}", positive(value, self.name, zero=self.zero))


def refuse_renamed(given: Mapping[str, object]) -> None:
    """Raise on what is no option, and say how the options of earlier versions are written now."""
    for name, value in given.items():
        if name in RENAMED:
            raise ArgumentError(f"{name}={value!r} is no option any more: {RENAMED[name]}")
        raise TypeError(f"unexpected argument {name}={value!r}")


def _residual_layers(model: nn.Module, residual: object) -> bool | Literal["auto"] | tuple[str, ...]:
    if isinstance(residual, bool):
        return residual
    if residual == AUTO:
        return AUTO
    known = [name for name, _ in model.named_modules() if name]
    names = tuple(residual) if isinstance(residual, Sequence) and not isinstance(residual, str) else ()
    if not names or any(name not in known for name in names) or len(set(names)) < len(names):
        raise ArgumentError(
            f"residual={residual!r}: expected 'auto', True, False, or a tuple of names of layers, each "
            f"once: {known}"
        )
    return names

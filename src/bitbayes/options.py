"""What was asked for: the options of a `Laplace`, checked together and never changed."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Generic, Literal, Never, Protocol, Self, TypedDict, TypeVar, overload

from torch import Tensor, nn

from bitbayes.closed_forms import FEW_CLASSES
from bitbayes.errors import ArgumentError, FileError, UnknownAttributeError, one_of
from bitbayes.likelihoods import LIKELIHOODS, SAMPLED_LOGITS, closed_form_names
from bitbayes.prior import check_noise_variance
from bitbayes.structures import CURVATURES
from bitbayes.structures.full import NETWORK_ROWS

# The values of options, for editors and type checkers. The tests compare them with what is checked below.
LayerKind = Literal["last", "all"]
Layers = LayerKind | tuple[str, ...] | list[str]
Structure = Literal["auto", "full", "kron", "lowrank", "diag", "isotropic"]
Method = Literal["probit", "pairwise", "meanfield", "bridge", "quadrature", "mean", "mc", "sampled_networks"]
PredictiveName = Literal["auto", Method]
CurvatureName = Literal["auto", "exact", "fisher"]
CovarianceName = Literal["auto", "exact", "draws"]
LikelihoodName = Literal[
    "auto", "categorical", "bernoulli", "gaussian", "heteroscedastic", "multilabel", "preference"
]
ResidualOption = bool | Literal["auto"] | tuple[str, ...] | list[str]
Objective = Literal["calibrated", "ood", "nll", "evidence"]
Penalty = Literal["entropy", "uniform"]
BoundForm = Literal["tight", "theorem"]

ESTIMATES = ("auto", "exact", "fisher")
COVARIANCES = ("auto", "exact", "draws")
AUTO: Literal["auto"] = "auto"
SAMPLED_NETWORKS: Literal["sampled_networks"] = "sampled_networks"
# Seeds of torch's generators have 64 bits.
LARGEST_SEED = 2**40
# What laplace-torch calls its options and likelihoods, and what to write here instead.
LAPLACE_TORCH = {
    "classification": "leave it out, the number of the model's outputs decides",
    "regression": "likelihood='gaussian'",
    "reward_modeling": "likelihood='preference'",
    "subset_of_weights": "layers='last', layers='all', names of layers, layers=('fc1', 'fc2'), or "
    "layers='all', subnetwork=n",
    "hessian_structure": "structure='kron', 'diag', 'full' or 'lowrank'",
    "prior_precision": "prior_variance=1/prior_precision; in regression 1/(prior_precision·sigma_noise²)",
    "prior_mean": "leave it out: the prior has mean 0, and only the evidence depends on it",
    "sigma_noise": "likelihood='gaussian', noise_variance=sigma_noise**2; classifiers have none",
    "temperature": "set it afterwards, bayes.temperature = …; it divides the logits, not the Hessian",
    "enable_backprop": "leave it out: bayes(x) is differentiable",
    "dict_key_x": "leave it out: all of a mapping but its labels goes to the model",
    "dict_key_y": "leave it out: mappings have a key 'labels'",
    "backend": "leave it out; curvature='fisher' draws labels",
    "backend_kwargs": "leave it out; curvature=bb.Fisher(draws=…) draws labels",
    "last_layer_name": "head='NAME'",
    "asdl_fisher_kwargs": "leave it out; curvature=bb.Fisher(draws=…) draws labels",
    "subnetwork_indices": "layers='all', subnetwork=len(subnetwork_indices), which chooses the weights "
    "itself; or names of layers, layers=('fc1', 'fc2')",
    "damping": "leave it out: the curvature has none",
    "feature_reduction": "leave it out: the features are what goes into the last linear layer",
    "functional_approximation": "leave it out: there is no functional form",
    "n_subset": "leave it out: there is no functional form",
    "independent_outputs": "leave it out: there is no functional form",
    # of its `marglik_training`
    "n_epochs": "bb.train_by_evidence(epochs=…)",
    "n_epochs_burnin": "bb.train_by_evidence(burn_in=…)",
    "marglik_frequency": "bb.train_by_evidence(every=…)",
    "n_hypersteps": "bb.train_by_evidence(steps=…)",
    "lr_hyp": "bb.train_by_evidence(learning_rate=…)",
    "prior_structure": "bb.train_by_evidence(each_layer=…), True or False",
    "prior_prec_init": "bb.train_by_evidence(prior_variance=1/prior_prec_init)",
    "optimizer_cls": "bb.train_by_evidence(model, loader, optimizer), the optimizer itself",
    "optimizer_kwargs": "bb.train_by_evidence(model, loader, optimizer), the optimizer itself",
    "scheduler_cls": "bb.train_by_evidence(scheduler=…), the scheduler itself, which steps after each epoch",
    "scheduler_kwargs": "bb.train_by_evidence(scheduler=…), the scheduler itself",
    "progress_bar": "the argument `progress` of each function, such as bb.train_by_evidence(progress=…)",
}
# The values of its options, and the line to write here.
LINES = {
    "last_layer": "layers='last'",
    "all": "layers='all'",
    "subnetwork": "layers='all', subnetwork=n",
    "full": "structure='full'",
    "kron": "structure='kron'",
    "diag": "structure='diag'",
    "lowrank": "structure='kron'; 'lowrank' is something else here, for many classes",
    "gp": "layers='all'; there is no functional form",
    "classification": "leave it out",
    "regression": "likelihood='gaussian'",
    "reward_modeling": "likelihood='preference'",
}

# Attributes of earlier versions, and what there is in their place.
EARLIER = {
    "residual_variance": "'near_variance', and 'beyond_variance'",
    "residual_threshold": "'settings', with `thresholds`",
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


@dataclass(frozen=True)
class Draws:
    """Estimate the covariance of the logits by draws of the weights, for `Laplace(covariance=…)`.

    A prediction takes about two forward passes for each draw, whatever the number of classes. The exact
    covariance takes k − 1 backward passes, and the products of these derivatives.

    With S draws the standard error of an estimated variance is √(2/S) of it: 32% for 20 draws. That of a
    mean of variances is smaller. All points share the draws.

    Args:
        draws: the number S.
        seed: of the draws.

    >>> import bitbayes as bb
    >>> bayes = bb.Laplace(nn.Linear(4, 10), layers="all", covariance=bb.Draws(50))
    """

    draws: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        numbers = type(self.draws) is int and type(self.seed) is int
        if not numbers or self.draws < 1 or not 0 <= self.seed < LARGEST_SEED:
            raise ArgumentError(
                f"{self}: expected a positive number of draws, and a whole number from 0 to "
                f"{LARGEST_SEED - 1:,} as seed"
            )


class LaplaceOptions(TypedDict, total=False):
    """The options of `Laplace` as keyword arguments, for callbacks that pass them on."""

    layers: Layers
    structure: Structure
    prior_variance: float | Mapping[str, float] | None
    predictive: PredictiveName
    likelihood: LikelihoodName
    head: str | None
    curvature: CurvatureName | Fisher
    covariance: CovarianceName | Draws
    subnetwork: int | None
    residual: ResidualOption
    noise_variance: float | Sequence[float] | None
    output: str | Callable[..., Tensor] | None
    adapt: Callable[..., object] | None


@dataclass(frozen=True)
class Options:
    """Every option but the `Settings`, which can be set at any time.

    curvature: "auto", "exact" or a `Fisher`.
    covariance: "auto", "exact" or a `Draws`.
    subnetwork: how many weights have a Gaussian, those of the largest variance; None is all of the layers'.
    residual: whether there is one, "auto" (where the inputs allow it), or the layers whose inputs enter the
        kernel.
    noise_variance: that of the targets, if it was given: `tune` then keeps it.
    output: where the logits are in what the model returns.
    adapt: what makes (inputs, labels) of a loader's batch.
    """

    layers: LayerKind | tuple[str, ...] = "last"
    structure: Structure = "auto"
    predictive: PredictiveName = "auto"
    likelihood: str = AUTO
    head: str | None = None
    curvature: CurvatureName | Fisher = AUTO
    covariance: CovarianceName | Draws = AUTO
    subnetwork: int | None = None
    residual: bool | Literal["auto"] | tuple[str, ...] = AUTO
    noise_variance: float | tuple[float, ...] | None = None
    output: str | Callable[..., Tensor] | None = None
    adapt: Callable[..., object] | None = None

    @classmethod
    def checked(cls, model: nn.Module, curvature: Any, residual: object, **given: Any) -> Options:
        """The options as given; raises on unknown values and on contradictions."""
        given["layers"] = _layers(model, given.get("layers", "last"))
        options = cls(**given, curvature=curvature, residual=_residual_layers(model, residual)).check()
        if options.subnetwork is not None:  # those that are frozen are not counted before `fit`
            options.check_subnetwork(_size(model, options.layer_names))
        return options

    def check(self) -> Options:
        """Return the options with short forms written out; raise on unknown values and on contradictions."""
        if self.curvature == "fisher":
            return replace(self, curvature=Fisher()).check()
        if self.covariance == "draws":
            return replace(self, covariance=Draws()).check()
        if not isinstance(self.layers, tuple):
            one_of("layers", self.layers, ("last", "all"))
        every_layer = self.over_all_layers
        structures = [name for name, kind in CURVATURES.items() if kind.over_all_layers or not every_layer]
        methods = (*closed_form_names(), SAMPLED_LOGITS, *([SAMPLED_NETWORKS] if every_layer else []))
        one_of("structure", self.structure, (AUTO, *structures))
        one_of("predictive", self.predictive, (AUTO, *methods))
        if self.subnetwork is not None:
            if type(self.subnetwork) is not int or self.subnetwork < 1:
                raise ArgumentError(f"subnetwork={self.subnetwork!r}: expected a positive number of weights")
            if not every_layer:
                raise ArgumentError(
                    f"subnetwork={self.subnetwork} chooses among the weights of several layers: use "
                    "layers='all', or names of layers"
                )
            if self.structure == AUTO:
                return replace(self, structure="full").check()
            if self.structure != "full":
                raise ArgumentError(
                    f"structure={self.structure!r}: the weights of a subnetwork have their full covariance, "
                    f"structure='full'. Leave out subnetwork={self.subnetwork}, or the structure"
                )
            if self.subnetwork > NETWORK_ROWS:
                raise ArgumentError(
                    f"subnetwork={self.subnetwork:,} would need a matrix of "
                    f"{8 * self.subnetwork**2 / 1e9:,.1f} GB: choose at most {NETWORK_ROWS:,} weights"
                )
        if self.likelihood in LAPLACE_TORCH:
            raise ArgumentError(
                f"likelihood={self.likelihood!r} is laplace-torch's. Here: {LAPLACE_TORCH[self.likelihood]}"
            )
        one_of("likelihood", self.likelihood, (AUTO, *LIKELIHOODS))
        if self.of_pairs and every_layer:
            raise ArgumentError(
                f"layers='all': likelihood={self.likelihood!r} is for the last layer, whose features of two "
                "inputs have a difference: use layers='last'"
            )
        values = self.likelihood in LIKELIHOODS and not LIKELIHOODS[self.likelihood].classifies
        if values and self.predictive not in (AUTO, *LIKELIHOODS[self.likelihood].closed_forms):
            raise ArgumentError(
                f"predictive={self.predictive!r}: likelihood={self.likelihood!r} predicts values, so leave "
                "it out"
            )
        if self.noise_variance is not None:
            known = LIKELIHOODS.get(self.likelihood)
            if known is None or not known.has_noise:
                raise ArgumentError(
                    f"noise_variance={self.noise_variance!r}: likelihood={self.likelihood!r} has no noise "
                    "variance; for regression give likelihood='gaussian'"
                )
            checked = check_noise_variance(self.noise_variance)
            if type(checked) is not type(self.noise_variance) or checked != self.noise_variance:
                return replace(self, noise_variance=checked).check()
        if not isinstance(self.curvature, Fisher):
            one_of("curvature", self.curvature, ESTIMATES)
        elif not every_layer:
            raise ArgumentError(
                "curvature='fisher' estimates derivatives over all layers: the last layer's curvature is "
                "exact at the price of a forward pass. Use curvature='exact', or layers='all'"
            )
        if not isinstance(self.covariance, Draws):
            one_of("covariance", self.covariance, COVARIANCES)
        elif not every_layer:
            raise ArgumentError(
                "covariance='draws' estimates the covariance of the logits over all layers: the last layer's "
                "is exact at the price of a forward pass. Use covariance='exact', or layers='all'"
            )
        if self.residual_asked and self.predictive == SAMPLED_NETWORKS:
            raise ArgumentError(
                "residual=True adds a variance to the logits, and predictive='sampled_networks' does not use "
                "it: choose another"
            )
        return self

    def check_subnetwork(self, weights: int) -> None:
        """Raise if there are fewer weights than are to be chosen."""
        if self.subnetwork is not None and self.subnetwork > weights:
            raise ArgumentError(
                f"subnetwork={self.subnetwork:,}: layers={self.layers!r} has {weights:,} weights: choose at "
                "most so many"
            )

    @property
    def over_all_layers(self) -> bool:
        """Whether the Gaussian is over all layers, or over some of them by name."""
        return self.layers != "last"

    @property
    def layer_names(self) -> tuple[str, ...]:
        """The names of the layers, if they were given."""
        return self.layers if isinstance(self.layers, tuple) else ()

    def fisher(self, outputs: int) -> Fisher | None:
        """How labels are drawn for a network with this many outputs; None if the curvature is exact.

        >>> Options(layers="all").fisher(64), Options(layers="all").fisher(65)
        (None, Fisher(draws=1, seed=0))
        """
        if self.curvature == AUTO:
            return Fisher() if self.over_all_layers and outputs > FEW_CLASSES else None
        return self.curvature if isinstance(self.curvature, Fisher) else None

    def draws(self, outputs: int) -> Draws | None:
        """How weights are drawn for a network with this many outputs; None if the covariance is exact.

        >>> Options(layers="all").draws(64), Options(layers="all").draws(65)
        (None, Draws(draws=20, seed=0))
        """
        if self.covariance == AUTO:
            return Draws() if self.over_all_layers and outputs > FEW_CLASSES else None
        return self.covariance if isinstance(self.covariance, Draws) else None

    @property
    def of_pairs(self) -> bool:
        """Whether a point is a pair of inputs."""
        return self.likelihood in LIKELIHOODS and LIKELIHOODS[self.likelihood].of_pairs

    @property
    def residual_asked(self) -> bool:
        """Whether a residual was asked for, and not only allowed ("auto")."""
        return self.residual not in (False, AUTO)

    @property
    def residual_layers(self) -> tuple[str, ...]:
        """Layers whose inputs enter the kernel."""
        return self.residual if isinstance(self.residual, tuple) else ()

    def as_json(self) -> dict[str, Any]:
        """The options for a JSON file. A function, `output` or `adapt`, is saved only as a flag."""
        function = callable(self.output)
        plain = asdict(replace(self, output=None if function else self.output, adapt=None))
        return {**plain, "function": function, "adapt": self.adapt is not None}

    @staticmethod
    def from_json(saved: dict[str, Any], output: Any = None, adapt: Any = None) -> dict[str, Any]:
        """The arguments of `Laplace`, from `as_json`; functions must be given again."""
        saved = dict(saved)
        if saved["curvature"] == "paper":
            raise FileError(
                "it was fitted with the paper's own formulas, which are in the folder paper/ of a checkout "
                "and not in the library: fit again"
            )
        if saved["predictive"] == "weights":  # its earlier name
            saved["predictive"] = SAMPLED_NETWORKS
        if saved.pop("function"):
            if not callable(output):
                raise FileError(
                    "it was fitted with output=, a function, which no file holds: give it again, "
                    "Laplace.load(path, model, output=…)"
                )
            saved["output"] = output
        elif output not in (None, saved["output"]):
            raise FileError(f"it was fitted with output={saved['output']!r}, and not {output!r}")
        if saved.pop("adapt", False) and adapt is None:
            raise FileError(
                "it was fitted with adapt=, a function, which no file holds: give it again, "
                "Laplace.load(path, model, adapt=…)"
            )
        saved["adapt"], curvature = adapt, saved["curvature"]
        covariance = saved.get("covariance", "exact")  # files of earlier versions have none
        return {
            **saved,
            "curvature": Fisher(**curvature) if isinstance(curvature, dict) else curvature,
            "covariance": Draws(**covariance) if isinstance(covariance, dict) else covariance,
        }


T = TypeVar("T")


class HasOptions(Protocol):
    """What `FrozenOption` needs of a `Laplace`."""

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


def refuse_unknown(given: Mapping[str, object], known: Iterable[str]) -> None:
    """Raise on unknown options, and say how laplace-torch's options are written here.

    Args:
        given: the arguments that are no options.
        known: the names of all options.
    """
    for name, value in given.items():
        if name in LAPLACE_TORCH:
            raise ArgumentError(f"{name}={value!r} is an option of laplace-torch. Here: {_line(name, value)}")
        near = difflib.get_close_matches(name, known, n=1)
        hint = f", did you mean {near[0]!r}?" if near else ""
        raise TypeError(f"unexpected argument {name}={value!r}{hint}")


def refuse_places(given: Sequence[object]) -> None:
    """Raise on options that were given by their place, as laplace-torch takes them.

    Args:
        given: the arguments behind the model.
    """
    if not given:
        return
    names = ("likelihood", "subset_of_weights", "hessian_structure")
    lines = [_line(name, value) for name, value in zip(names, given, strict=False)]
    known = all(isinstance(each, str) and each in LINES for each in given) and len(given) <= len(names)
    parts = [each.partition("; ") for each in lines if each != LINES["classification"]]
    options = {code.partition("=")[0]: code for code, _, _ in parts}  # a later one replaces an earlier one
    notes = "".join(f"; {note}" for _, _, note in parts if note)
    line = f"write Laplace({', '.join(['model', *options.values()])}){notes}"
    line = line if known else "give each by its name, as in Laplace(model, structure='kron')"
    raise ArgumentError(
        f"options have no places here, and {', '.join(map(repr, given))} came without a name: {line}"
    )


def _line(name: str, value: object) -> str:
    """What to write here in the place of an option of laplace-torch."""
    if name == "prior_precision" and isinstance(value, (int, float)) and value > 0:
        return f"prior_variance={1 / value:.6g}; in regression prior_variance={1 / value:.6g}/noise_variance"
    if name == "sigma_noise" and isinstance(value, (int, float)) and value > 0:
        return f"likelihood='gaussian', noise_variance={value**2:.6g}; classifiers have none"
    known = LAPLACE_TORCH.get(name, "")
    return LINES.get(value, known) if isinstance(value, str) else known


def refuse_attribute(name: str, value: object, known: Iterable[str]) -> Never:
    """Raise that there is no attribute of this name to set.

    Args:
        name: of the attribute.
        value: that it was to get.
        known: the names of all attributes that can be set.
    """
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(map(repr, known))}"
    hint = f"in this version there is {EARLIER[name]}" if name in EARLIER else hint
    raise UnknownAttributeError(
        f"a Laplace has no attribute {name!r} to set to {value!r}: {hint} (Names of your own begin with an "
        "underscore.)"
    )


def _layers(model: nn.Module, layers: object) -> Any:
    """The layers as an option: names of the model's modules as a tuple; anything else as it is."""
    if isinstance(layers, str) or not isinstance(layers, Sequence):
        return layers
    known = [name for name, _ in model.named_modules() if name]
    names = tuple(layers)
    if not names or any(name not in known for name in names) or len(set(names)) < len(names):
        raise ArgumentError(
            f"layers={layers!r}: expected 'last', 'all', or names of modules, each once: {known}"
        )
    return names


def _size(model: nn.Module, names: tuple[str, ...]) -> int:
    """The number of weights of these modules; () is the whole model."""
    prefixes = tuple(f"{name}." for name in names) or ("",)
    return sum(each.numel() for name, each in model.named_parameters() if name.startswith(prefixes))


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

"""What is audited: networks, fitted objects of this library, and any function that gives probabilities."""

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from bitbayes.auditing.findings import ADDED, PAPER
from bitbayes.auditing.predictions import Method, Rated, SharedPass, arguments_for, by_confidence, by_score
from bitbayes.auditing.reading import Form, as_tensors, copied
from bitbayes.auditing.regression import refuse_regression
from bitbayes.auditing.words import printable
from bitbayes.baselines import TemperatureScaling
from bitbayes.errors import ArgumentError, DataError, ModelError, naming, one_of
from bitbayes.laplace import Laplace
from bitbayes.model import Inputs, row_count

Output = Literal["probabilities", "logits"]
OUTPUTS = ("probabilities", "logits")
# The columns that an audit adds to a network's own: the last needs training and validation data, the
# temperature needs validation data.
TEMPERATURE, ENERGY, BITBAYES = ADDED
# How far the probabilities of a row may be from a sum of one: in half precision they are rounded.
SUM_TOLERANCE, HALF_SUM_TOLERANCE = 1e-3, 2e-2


@dataclass(frozen=True)
class Predictor:
    """A function that gives class probabilities or logits, to be audited with `audit`.

    It is called with the inputs of each batch as the test data give them: a tensor, an array of numpy, a
    mapping without the labels, or a tuple of several inputs. So `clf.predict_proba` of scikit-learn works if
    the data are arrays.

    Args:
        call: takes inputs and returns one row for each: (n, k), a tensor or an array. One logit for each of
            two classes may be (n,) or (n, 1).
        output: what it returns: "probabilities", whose rows sum to one, or "logits".
        score: takes inputs and returns one number for each, (n,), larger for those that are more like the
            data. By it outliers are told from the data. Without it the confidence is.

    >>> import bitbayes as bb
    >>> linear = torch.nn.Linear(2, 3)
    >>> bb.Predictor(linear.forward, output="logits").output
    'logits'
    """

    call: Callable[..., object]
    _: KW_ONLY
    output: Output = "probabilities"
    score: Callable[..., object] | None = None

    def __post_init__(self) -> None:
        for name in ("call", "score"):
            value = getattr(self, name)
            if not callable(value) and not (name == "score" and value is None):
                hint = ": give clf.predict_proba" if hasattr(value, "predict_proba") else ""
                raise ArgumentError(f"{name} is a {type(value).__name__}, which cannot be called{hint}")
        one_of("output", self.output, OUTPUTS)

    def _probabilities(self, output: Tensor, n: int) -> Tensor:
        """Return what `call` gave as probabilities (n, k)."""
        if self.output == "logits" and output.shape in ((n,), (n, 1)):
            output = torch.stack([-output.reshape(n) / 2, output.reshape(n) / 2], dim=1)
        if output.dim() != 2 or len(output) != n or output.shape[1] < 2:
            raise DataError(
                f"it returned shape {tuple(output.shape)} for {n} inputs: expected one row of {self.output} "
                "for each, (n, k), with a column for each class"
            )
        half = output.dtype in (torch.float16, torch.bfloat16)
        output = output.float() if half else output  # in which rows sum to one
        if self.output == "logits":
            return output.softmax(1)
        sums = output.sum(1)  # (n,)
        off = (sums.double() - 1).abs()
        if bool((off > (HALF_SUM_TOLERANCE if half else SUM_TOLERANCE)).any()) or bool((output < 0).any()):
            worst = int(off.nan_to_num(-1.0).argmax())
            found = "holds negative numbers" if bool((output < 0).any()) else f"sums to {sums[worst]:.4g}"
            raise DataError(
                f"a row that it returned {found}, so these are no probabilities: if they are logits, give "
                'bb.Predictor(call, output="logits")'
            )
        return output / sums[:, None]


def rated_by(predictor: Predictor, form: Form) -> Method:
    """The function that rates inputs, which the predictor gets in this form."""

    def rate(x: Inputs) -> Rated:
        returned = predictor.call(form.restore(copied(x)))
        probs = predictor._probabilities(_numbers(returned, "it"), row_count(x))
        if predictor.score is None:
            return Rated(probs, probs.amax(1))
        scores = _numbers(predictor.score(form.restore(copied(x))), "its score")
        if scores.shape not in ((len(probs),), (len(probs), 1)):
            raise DataError(f"its score has shape {tuple(scores.shape)}: expected {(len(probs),)}")
        return Rated(probs, scores.reshape(-1))

    return rate


class Columns(NamedTuple):
    """The predictors of an audit by the names of their columns.

    network: the first network, or None. The audit adds columns of its own to it.
    name: of the network's column.
    others: all others, as they were given.
    """

    network: nn.Module | None
    name: str
    others: dict[str, Any]

    @property
    def base(self) -> str:
        """The first column."""
        return self.name if self.network is not None else next(iter(self.others))

    def names(self, *, train: bool, validation: bool) -> list[str]:
        """The names of all columns, by the data that are given, and of those in the details."""
        if self.network is None:
            return [*self.others]
        added = [*([TEMPERATURE] if validation else []), ENERGY]
        added += [BITBAYES] if train and validation else []
        hidden = [PAPER] if train and validation else []
        return [self.name, *added, *self.others, *hidden]

    def methods(self, form: Form) -> tuple[dict[str, Method], dict[str, str]]:
        """The others as functions that rate inputs, and by what each ranks."""
        methods, ranked_by = {}, {}
        for name, predictor in self.others.items():
            with naming(f"{name!r}"):
                methods[name], ranked_by[name] = _method(predictor, form)
        return methods, ranked_by


def name_columns(models: Any) -> Columns:
    """Return the predictors by name; raises if one cannot be audited.

    A network alone is "plain". Of a mapping the first network is the base, with the audit's own columns.
    """
    if not isinstance(models, Mapping):
        models = {"plain" if _is_network(models) else "predictor": models}
    if not models:
        raise ArgumentError("models is empty: give a network, or predictors by name")
    named: dict[str, Any] = {}
    for name, predictor in models.items():
        shown = printable(name)
        if not isinstance(name, str) or not shown:
            raise ArgumentError(f"models has the name {name!r}: give texts as names")
        if shown in named:
            raise ArgumentError(f"models has two predictors that are called {shown!r}: choose other names")
        with naming(f"models[{name!r}]"):
            check_predictor(predictor)
        named[shown] = predictor
    first = next((name for name, each in named.items() if _is_network(each)), None)
    if first is None:
        return Columns(None, "", named)
    for name in (TEMPERATURE, ENERGY, BITBAYES, PAPER):
        if name in named:
            raise ArgumentError(
                f"models has a predictor that is called {name!r}, as one that the audit adds to the network "
                f"{first!r}: choose another name"
            )
    return Columns(named.pop(first), first, named)


def check_predictor(predictor: Any) -> None:
    """Raise unless this is something that can be audited."""
    if isinstance(predictor, Laplace):
        refuse_regression(predictor, None)
        likelihood = predictor.posterior.likelihood  # raises if it is not fitted
        if not likelihood.one_label or likelihood.of_pairs:
            raise ArgumentError(
                f"likelihood={likelihood.name!r}: an audit is of classifiers with one label for each input. "
                "Use `Laplace.evaluate`"
            )
    elif isinstance(predictor, TemperatureScaling):
        if predictor.likelihood == "multilabel":
            raise ArgumentError("an audit is of classifiers with one label for each input")
        predictor.extra_repr()
    elif not isinstance(predictor, (nn.Module, Predictor)) and not callable(predictor):
        if hasattr(predictor, "predict_proba"):
            raise ArgumentError(
                f"a {type(predictor).__name__} cannot be called: give bb.Predictor(clf.predict_proba)"
            )
        raise ModelError(
            f"a {type(predictor).__name__} is no predictor: give a torch.nn.Module, a fitted Laplace or "
            "TemperatureScaling, a bb.Predictor, or a function of inputs that returns probabilities"
        )


def _is_network(predictor: Any) -> bool:
    return isinstance(predictor, nn.Module) and not isinstance(predictor, (Laplace, TemperatureScaling))


def _method(predictor: Any, form: Form) -> tuple[Method, str]:
    if isinstance(predictor, Laplace):
        return by_score(predictor), "score"
    if isinstance(predictor, TemperatureScaling):
        arguments = arguments_for(predictor.model)
        return by_confidence(lambda x: predictor.predict_proba(arguments(copied(x)))), "confidence"
    if isinstance(predictor, nn.Module):
        return by_confidence(SharedPass(predictor).probabilities), "confidence"
    if not isinstance(predictor, Predictor):
        predictor = Predictor(predictor)
    return rated_by(predictor, form), "confidence" if predictor.score is None else "score"


def _numbers(returned: Any, what: str) -> Tensor:
    """Return what a function gave as a floating-point tensor on the CPU."""
    try:
        found = torch.as_tensor(as_tensors(returned)).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{what} returned a {type(returned).__name__}: expected a tensor or an array"
        ) from error
    return found if found.is_floating_point() else found.double()

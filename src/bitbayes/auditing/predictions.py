"""Run the audited methods on inputs."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bitbayes.auditing.generated import first_rows, is_scalable
from bitbayes.auditing.reading import copied
from bitbayes.errors import BitbayesError, DataError, ModelError
from bitbayes.laplace import Laplace
from bitbayes.likelihoods import likelihood_for
from bitbayes.model import Batch, Inputs, as_logits, call, private_copy, row_count
from bitbayes.model.loaders.arguments import as_arguments
from bitbayes.precision import prediction_dtype


class Rated(NamedTuple):
    """Probabilities (n, k), and scores (n,) that rank the inputs: larger means more like the data."""

    probs: Tensor
    scores: Tensor


class Ranked(NamedTuple):
    """The confidence and the score of outliers, (m,) each. Their other probabilities are not needed."""

    confidence: Tensor
    scores: Tensor


Method = Callable[[Inputs], Rated]
Methods = dict[str, Method]  # by name
Predictions = dict[str, Rated]  # by method
# Called with the inputs of a batch, its labels if there are any, and the predictions of all methods.
BatchCallback = Callable[[Inputs, Tensor | None, Predictions], None]


def arguments_for(model: nn.Module) -> Callable[[Inputs], Inputs]:
    """Return a function of inputs that gives what the network takes of them, on its device."""
    return lambda x: as_arguments(x, model, number=-1)  # a number above 0: without warnings


def plain_logits(model: nn.Module, x: Inputs) -> Tensor:
    """Return the network's own logits, (n, k)."""
    with torch.no_grad():
        output = call(private_copy(model), x)
    logits = as_logits(output, row_count(x))
    if logits.dim() != 2:
        raise ModelError(f"the model's output has shape {tuple(output.shape)}: expected (n, k) or (n,)")
    return logits.to(prediction_dtype(logits.dtype))


class SharedPass:
    """The network's logits, cached for the last batch: several methods use the same forward pass."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.inputs: Inputs | None = None
        self.logits: Tensor | None = None

    def probabilities(self, x: Inputs, temperature: float = 1.0) -> Tensor:
        """Return the probabilities (n, k) of the logits divided by a temperature; one logit gives (n, 2)."""
        logits = self._run(x)
        likelihood = likelihood_for(logits.shape[1])
        # Without the shift: division by a small T could overflow.
        return likelihood.log_probabilities(likelihood.remove_shift(logits) / temperature).exp()

    def by_energy(self, x: Inputs) -> Rated:
        """Return the network's probabilities, ranked by log Σᵢ exp fᵢ. One logit f counts as ∓f/2."""
        logits = self._run(x)
        if logits.shape[1] == 1:
            logits = torch.cat([-logits / 2, logits / 2], dim=1)
        return Rated(self.probabilities(x), logits.logsumexp(1))

    def _run(self, x: Inputs) -> Tensor:
        if self.logits is None or self.inputs is not x:
            self.logits, self.inputs = plain_logits(self.model, arguments_for(self.model)(copied(x))), x
        return self.logits


def by_confidence(predict_proba: Callable[[Inputs], Tensor]) -> Method:
    """Return a method whose score is its confidence."""

    def rate(x: Inputs) -> Rated:
        probs = predict_proba(x)
        return Rated(probs, probs.amax(1))

    return rate


def by_score(bayes: Laplace) -> Method:
    """Return the method of `bayes.predict_proba` and `bayes.score`, both from one forward pass."""
    arguments = arguments_for(bayes.model)
    return lambda x: Rated(*bayes.predict_and_score(arguments(copied(x))))


def predict(methods: Methods, batch: Batch) -> Predictions:
    """Return the predictions of every method on one batch, on the CPU.

    All methods see a batch before the next batch is loaded. So their rows match even if the loader shuffles.
    """
    predicted: Predictions = {}
    for name, rate in methods.items():
        where = f"{batch.name}: {name!r}"
        try:
            with torch.no_grad():
                rated = Rated(*(part.cpu() for part in rate(batch.inputs)))
        except BitbayesError as error:
            raise type(error)(f"{where}: {error}") from error
        except Exception as error:  # a network and a function can raise anything
            raise DataError(
                f"{where} raised {type(error).__name__} on inputs of {_shape(batch.inputs)}: {error}"
            ) from error
        if not all(bool(part.isfinite().all()) for part in rated):
            holds = " The inputs hold NaN or infinity." if not _is_finite(batch.inputs) else ""
            raise DataError(f"{where} gives NaN or infinity.{holds}")
        classes = {each: other.probs.shape[1] for each, other in predicted.items()}
        for other, k in classes.items():
            if rated.probs.shape[1] != k:
                raise DataError(
                    f"{where} gives {rated.probs.shape[1]} probabilities for each input, and {other!r} {k}"
                )
        predicted[name] = rated
    return predicted


def predict_outliers(
    methods: Methods, data: Iterable[Batch], on_batch: BatchCallback | None = None
) -> dict[str, Ranked]:
    """Return the confidences and scores of all inputs, by method."""
    parts: dict[str, list[Ranked]] = {name: [] for name in methods}
    for number, batch in enumerate(data):
        predicted = predict(methods, replace(batch, name=f"batch {number}"))
        if on_batch:
            on_batch(batch.inputs, None, predicted)
        for name, (probs, scores) in predicted.items():
            parts[name].append(Ranked(probs.amax(1), scores))
    found = {name: Ranked(*map(torch.cat, zip(*part, strict=True))) for name, part in parts.items()}
    if any(not len(each.scores) for each in found.values()):
        raise DataError("there are no inputs: each batch has 0 rows")
    return found


def predict_labelled(
    methods: Methods, batches: Iterable[Batch], on_batch: BatchCallback | None = None
) -> tuple[Predictions, Tensor]:
    """Run every method on labelled batches. Returns the predictions, and the labels (n,)."""
    labels: list[Tensor] = []
    parts: dict[str, list[Rated]] = {name: [] for name in methods}
    for batch in batches:
        assert batch.labels is not None
        predicted = predict(methods, batch)
        for name, rated in predicted.items():
            if (largest := int(batch.labels.max())) >= rated.probs.shape[1]:
                raise DataError(
                    f"{batch.name}: a label is {largest}, and {name!r} gives {rated.probs.shape[1]} "
                    "probabilities for each input"
                )
            parts[name].append(rated)
        labels.append(batch.labels)
        if on_batch:
            on_batch(batch.inputs, batch.labels, predicted)
    predictions = {name: Rated(*map(torch.cat, zip(*part, strict=True))) for name, part in parts.items()}
    return predictions, torch.cat(labels)


class FirstInputs:
    """Keeps the first inputs that can be scaled, up to a number of them."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.parts: list[Inputs] = []

    def add(self, inputs: Inputs) -> None:
        """Keep those of a batch, if there is room."""
        if is_scalable(inputs) and sum(map(row_count, self.parts)) < self.most:
            self.parts.append(_on_cpu(inputs))

    def inputs(self) -> Inputs | None:
        """All that were kept, or None."""
        return first_rows(self.parts, self.most) if self.parts else None


def _shape(inputs: Inputs) -> str:
    if isinstance(inputs, Tensor):
        return f"shape {tuple(inputs.shape)}"
    shapes = {name: tuple(each.shape) for name, each in inputs.items() if isinstance(each, Tensor)}
    return f"shapes {shapes}"


def _is_finite(inputs: Inputs) -> bool:
    parts = [inputs] if isinstance(inputs, Tensor) else inputs.values()
    return all(bool(each.isfinite().all()) for each in parts if isinstance(each, Tensor))


def _on_cpu(inputs: Inputs) -> Inputs:
    if isinstance(inputs, Tensor):
        return inputs.cpu()
    return {name: each.cpu() if isinstance(each, Tensor) else each for name, each in inputs.items()}

"""Run the audited methods on inputs."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bitbayes.auditing.generated import first_rows, is_scalable, pieces
from bitbayes.laplace import Laplace
from bitbayes.likelihoods import likelihood_for
from bitbayes.model import Inputs, call, input_batches, labelled_batches, private_copy, row_count
from bitbayes.precision import prediction_dtype

ROWS_PER_PREDICTION = 256


class Rated(NamedTuple):
    """Probabilities (n, k), and scores (n,) that rank the inputs: larger means more like the data."""

    probs: Tensor
    scores: Tensor


class Ranked(NamedTuple):
    """The confidence and the score of outliers, (m,) each. Their other probabilities are not needed."""

    confidence: Tensor
    scores: Tensor


Methods = dict[str, Callable[[Inputs], Rated]]  # by name
Predictions = dict[str, Rated]  # by method
# Called with the inputs of a batch, its labels if there are any, and the predictions of all methods.
BatchCallback = Callable[[Inputs, Tensor | None, Predictions], None]


def plain_logits(model: nn.Module, x: Inputs) -> Tensor:
    """Return the network's own logits, (n, k)."""
    with torch.no_grad():
        output = call(private_copy(model), x)
    return output.reshape(row_count(x), -1).to(prediction_dtype(output.dtype))


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
            self.logits, self.inputs = plain_logits(self.model, x), x
        return self.logits


def by_confidence(predict_proba: Callable[[Inputs], Tensor]) -> Callable[[Inputs], Rated]:
    """Return a method whose score is its confidence."""

    def rate(x: Inputs) -> Rated:
        probs = predict_proba(x)
        return Rated(probs, probs.amax(1))

    return rate


def by_score(bayes: Laplace) -> Callable[[Inputs], Rated]:
    """Return the method of `bayes.predict_proba` and `bayes.score`, both from one forward pass."""

    return lambda x: Rated(*bayes.predict_and_score(x))


def predict(methods: Methods, x: Inputs) -> Predictions:
    """Return the predictions of every method on one batch, on the CPU.

    All methods see a batch before the next batch is loaded. So their rows match even if the loader shuffles.
    """
    return {name: Rated(*(part.cpu() for part in rate(x))) for name, rate in methods.items()}


def in_parts(data: Iterable[Any] | Inputs) -> Iterable[Any]:
    """Return inputs in parts that are small enough to predict at once, and a loader unchanged."""
    return pieces(data, ROWS_PER_PREDICTION) if isinstance(data, (Tensor, Mapping)) else data


def predict_outliers(
    methods: Methods,
    data: Iterable[Any] | Inputs,
    model: nn.Module,
    on_batch: BatchCallback | None = None,
) -> dict[str, Ranked]:
    """Return the confidences and scores of a tensor, a mapping, or the inputs of a loader, by method."""
    parts: dict[str, list[Ranked]] = {name: [] for name in methods}
    for batch in input_batches(in_parts(data), model):
        predicted = predict(methods, batch.inputs)
        if on_batch:
            on_batch(batch.inputs, None, predicted)
        for name, (probs, scores) in predicted.items():
            parts[name].append(Ranked(probs.amax(1), scores))
    return {name: Ranked(*map(torch.cat, zip(*part, strict=True))) for name, part in parts.items()}


def predict_test(
    methods: Methods, loader: Iterable[Any], model: nn.Module, most_inputs: int, on_batch: BatchCallback
) -> tuple[Predictions, Tensor, Inputs | None]:
    """Run every method on the test data.

    Returns the predictions, the labels (n,), and the first `most_inputs` inputs (None if these cannot be
    scaled).
    """
    labels: list[Tensor] = []
    first_inputs: list[Inputs] = []
    parts: dict[str, list[Rated]] = {name: [] for name in methods}
    for inputs, batch_labels in _labelled(loader, model):
        labels.append(batch_labels)
        if is_scalable(inputs) and sum(map(row_count, first_inputs)) < most_inputs:
            first_inputs.append(_on_cpu(inputs))
        predicted = predict(methods, inputs)
        on_batch(inputs, batch_labels, predicted)
        for name, rated in predicted.items():
            parts[name].append(rated)
    predictions = {name: Rated(*map(torch.cat, zip(*part, strict=True))) for name, part in parts.items()}
    return predictions, torch.cat(labels), first_rows(first_inputs, most_inputs) if first_inputs else None


def _on_cpu(inputs: Inputs) -> Inputs:
    if isinstance(inputs, Tensor):
        return inputs.cpu()
    return {name: each.cpu() if isinstance(each, Tensor) else each for name, each in inputs.items()}


def _labelled(loader: Iterable[Any], model: nn.Module) -> Iterator[tuple[Inputs, Tensor]]:
    for batch in labelled_batches(loader, model):
        assert batch.labels is not None
        yield batch.inputs, batch.labels.reshape(-1).long().cpu()

"""Run the audited methods on inputs, and measure the time that each of them takes."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor, nn

from bitbayes import predictive, uncertainty
from bitbayes.laplace import Laplace
from bitbayes.likelihood import likelihood_for
from bitbayes.model import Inputs, call, input_batches, labelled_batches, private_copy, row_count
from bitbayes.precision import working

ROWS_PER_PREDICTION = 256


class Rated(NamedTuple):
    """Probabilities (n, k) and what ranks the inputs: scores (n,), larger for what is more like the data."""

    probs: Tensor
    scores: Tensor


Methods = dict[str, Callable[[Inputs], Rated]]  # by name
Predictions = dict[str, Rated]  # by method


def is_scalable(x: Inputs) -> TypeGuard[Tensor]:
    """Return whether δ·x is a valid input. Token ids and mappings cannot be scaled."""
    return isinstance(x, Tensor) and x.is_floating_point()


def plain_probabilities(model: nn.Module, x: Inputs) -> Tensor:
    """Return the network's own probabilities, (n, k). A network with one logit gives (n, 2)."""
    with torch.no_grad():
        output = call(private_copy(model), x)
    logits = output.reshape(row_count(x), -1).to(working(output.dtype))  # (n, k)
    return likelihood_for(logits.shape[1]).log_probabilities(logits).exp()


def by_confidence(predict_proba: Callable[[Inputs], Tensor]) -> Callable[[Inputs], Rated]:
    """Return a method whose score is its confidence."""

    def rate(x: Inputs) -> Rated:
        probs = predict_proba(x)
        return Rated(probs, probs.amax(1))

    return rate


def by_score(bayes: Laplace) -> Callable[[Inputs], Rated]:
    """Return the method of `bayes.predict_proba` and `bayes.score`, both from one forward pass."""

    def rate(x: Inputs) -> Rated:
        gaussian = bayes.logits(x)
        k = gaussian.mean.shape[1]
        logits = predictive.predict(gaussian, predictive.method_for(bayes.predictive, k))
        return Rated(likelihood_for(k).log_probabilities(logits).exp(), uncertainty.score(gaussian))

    return rate


def predict(
    methods: Methods, inputs: Iterable[Inputs], seconds: dict[str, float] | None = None
) -> Predictions:
    """Return the predictions of every method on all inputs.

    All methods see a batch before the next batch is loaded. So their rows match even if the loader shuffles.

    Args:
        methods: the methods by name.
        inputs: batches of inputs, on the model's device.
        seconds: the time of each method is added here, if given.
    """
    parts: dict[str, list[Rated]] = {name: [] for name in methods}
    for x in inputs:
        for name, rate in methods.items():
            begun = time.perf_counter()
            probs, scores = rate(x)
            parts[name].append(Rated(probs.cpu(), scores.cpu()))
            if seconds is not None:
                seconds[name] += time.perf_counter() - begun
    return {name: Rated(*map(torch.cat, zip(*part, strict=True))) for name, part in parts.items()}


def predict_outliers(methods: Methods, data: Iterable[Any] | Tensor, device: torch.device) -> Predictions:
    """Return the predictions of every method on a tensor, in pieces, or on the inputs of a loader."""
    pieces = list(torch.split(data, ROWS_PER_PREDICTION)) if isinstance(data, Tensor) else data
    return predict(methods, (batch.inputs for batch in input_batches(pieces, device)))


def predict_test(
    methods: Methods, loader: Iterable[Any], device: torch.device, most_kept: int
) -> tuple[Predictions, Tensor, Tensor | None, dict[str, float]]:
    """Run every method on the test data.

    Returns the predictions, the labels (n,), the first `most_kept` inputs (None if they cannot be scaled),
    and the seconds that each method took.
    """
    labels: list[Tensor] = []
    kept: list[Tensor] = []
    seconds = dict.fromkeys(methods, 0.0)

    def inputs() -> Iterator[Inputs]:
        for batch in labelled_batches(loader, device):
            assert batch.labels is not None
            labels.append(batch.labels.reshape(-1).long().cpu())
            if is_scalable(batch.inputs) and sum(map(len, kept)) < most_kept:
                kept.append(batch.inputs.cpu())
            yield batch.inputs

    found = predict(methods, inputs(), seconds)
    return found, torch.cat(labels), torch.cat(kept)[:most_kept] if kept else None, seconds

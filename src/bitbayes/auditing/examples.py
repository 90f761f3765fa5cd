"""Six inputs to look at. They are chosen by the first column alone, so that they do not flatter bitbayes."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bitbayes.auditing.findings import KEPT_SHARES, Example, Ranking
from bitbayes.auditing.generated import has_rows
from bitbayes.auditing.images import as_image, first_values
from bitbayes.auditing.predictions import Predictions
from bitbayes.model import Inputs

COUNT = 6


class Candidate(NamedTuple):
    """An input that may be shown, its priority, and its probabilities and scores by method."""

    priority: float
    row: Any
    label: int | None
    probs: dict[str, Tensor]
    scores: dict[str, float]


class Shortlist:
    """The `COUNT` inputs with the highest priority among all batches so far."""

    def __init__(self) -> None:
        self.best: list[Candidate] = []

    def add(self, inputs: Inputs, priority: Tensor, labels: Tensor | None, predicted: Predictions) -> None:
        """Consider the inputs of a batch. `priority` (n,) is −∞ for inputs that are never shown."""
        for i in priority.topk(min(COUNT, len(priority))).indices.tolist():
            if priority[i] > -torch.inf:
                self.best.append(
                    Candidate(
                        float(priority[i]),
                        _row(inputs, i),
                        None if labels is None else int(labels[i]),
                        {method: rated.probs[i] for method, rated in predicted.items()},
                        {method: float(rated.scores[i]) for method, rated in predicted.items()},
                    )
                )
        self.best = sorted(self.best, key=lambda each: -each.priority)[:COUNT]


class TestExamples:
    """Test inputs that the first column gets right, in their order, and wrong, the surest first."""

    __test__ = False  # pytest would take this class for a test because of its name

    def __init__(self, base: str) -> None:
        self.base = base
        self.right, self.wrong, self.seen = Shortlist(), Shortlist(), 0

    def __call__(self, inputs: Inputs, labels: Tensor | None, predicted: Predictions) -> None:
        """Consider the inputs of a batch."""
        assert labels is not None
        confidence, answers = predicted[self.base].probs.double().max(1)
        order = -torch.arange(self.seen, self.seen + len(labels), dtype=torch.float64)
        self.seen += len(labels)
        right = answers == labels
        self.right.add(inputs, order.masked_fill(~right, -torch.inf), labels, predicted)
        self.wrong.add(inputs, confidence.masked_fill(right, -torch.inf), labels, predicted)


class SurestOutliers:
    """The outliers of one set that the first column is surest of."""

    def __init__(self, base: str) -> None:
        self.base, self.list = base, Shortlist()

    def __call__(self, inputs: Inputs, labels: Tensor | None, predicted: Predictions) -> None:
        """Consider the inputs of a batch."""
        self.list.add(inputs, predicted[self.base].probs.double().amax(1), None, predicted)


def choose_examples(
    test: TestExamples, sets: list[tuple[str, str, SurestOutliers]], rankings: dict[str, Ranking]
) -> list[Example]:
    """Return up to `COUNT` examples: one right and one wrong test input, then each set's in turn.

    Args:
        test: the candidates of the test data.
        sets: the name, the kind and the candidates of each set of outliers.
        rankings: of the methods, for the thresholds.
    """
    queues = [("Test data", "test", list(test.right.best)), ("Test data", "test", list(test.wrong.best))]
    queues += [(name, kind, list(surest.list.best)) for name, kind, surest in _sets_to_show(sets)]
    chosen: list[tuple[int, str, str, Candidate]] = []
    while len(chosen) < COUNT and any(queue for *_, queue in queues):
        # One right and one wrong test input are enough, if there are any outliers.
        others = any(queue for *_, queue in queues[2:])
        for number, (name, kind, queue) in enumerate(queues):
            if queue and len(chosen) < COUNT and not (number < 2 and chosen[2:] and others):
                chosen.append((number, name, kind, queue.pop(0)))
    chosen.sort(key=lambda each: each[0])
    return [_describe(name, kind, candidate, rankings) for _, name, kind, candidate in chosen]


def _sets_to_show(sets: list[tuple[str, str, SurestOutliers]]) -> list[tuple[str, str, SurestOutliers]]:
    """Return the first given sets, as many as there is room for, the noise, and the last far set."""
    given = [each for each in sets if each[1] == "given"]
    noise = [each for each in sets if each[1] == "noise"]
    far = [each for each in sets if each[1] == "far"][-1:]
    return [*given[: COUNT - 2 - len(noise) - len(far)], *noise, *far]


def _describe(source: str, kind: str, candidate: Candidate, rankings: dict[str, Ranking]) -> Example:
    image = as_image(candidate.row)
    values, size = first_values(candidate.row)
    return Example(
        source=source,
        kind=kind,
        label=candidate.label,
        image=image,
        values=[] if image else values,
        size=size,
        predicted={method: int(probs.argmax()) for method, probs in candidate.probs.items()},
        confidence={method: float(probs.max()) for method, probs in candidate.probs.items()},
        kept_from={method: _kept_from(candidate.scores[method], each) for method, each in rankings.items()},
    )


def _kept_from(score: float, ranking: Ranking) -> float | None:
    """Return the smallest kept share whose threshold lets the score through."""
    shares = zip(KEPT_SHARES, ranking.threshold, strict=True)
    return next((share for share, threshold in shares if score >= threshold), None)


def _row(inputs: Inputs, i: int) -> Any:
    if isinstance(inputs, Mapping):
        return {name: value[i].cpu() for name, value in inputs.items() if has_rows(value, inputs)}
    return inputs[i].cpu()

"""Three inputs of each set to look at, chosen by the first column alone: they do not flatter bitbayes."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bitbayes.auditing.findings import KEPT_SHARES, Example, Ranking
from bitbayes.auditing.generated import has_rows
from bitbayes.auditing.images import as_image, first_values
from bitbayes.auditing.predictions import Predictions
from bitbayes.model import Inputs

COUNT = 3  # of each set
MOST_SETS = 5


class Candidate(NamedTuple):
    """An input that may be shown, its place in its set, and its probabilities and scores by method."""

    priority: float
    place: int
    row: Any
    label: int | None
    probs: dict[str, Tensor]
    scores: dict[str, float]


class Shortlist:
    """The `COUNT` inputs with the highest priority among all batches so far."""

    def __init__(self) -> None:
        self.best: list[Candidate] = []
        self.seen = 0

    def add(self, inputs: Inputs, priority: Tensor, labels: Tensor | None, predicted: Predictions) -> None:
        """Consider the inputs of a batch. `priority` (n,) is −∞ for inputs that are never shown."""
        for i in priority.topk(min(COUNT, len(priority))).indices.tolist():
            if priority[i] > -torch.inf:
                self.best.append(
                    Candidate(
                        float(priority[i]),
                        self.seen + i,
                        _row(inputs, i),
                        None if labels is None else int(labels[i]),
                        {method: rated.probs[i] for method, rated in predicted.items()},
                        {method: float(rated.scores[i]) for method, rated in predicted.items()},
                    )
                )
        self.seen += len(priority)
        self.best = sorted(self.best, key=lambda each: -each.priority)[:COUNT]


class TestExamples:
    """Test inputs that the first column gets right, in their order, and wrong, the surest first."""

    __test__ = False  # pytest would take this class for a test because of its name

    def __init__(self, base: str) -> None:
        self.base = base
        self.right, self.wrong = Shortlist(), Shortlist()

    def __call__(self, inputs: Inputs, labels: Tensor | None, predicted: Predictions) -> None:
        """Consider the inputs of a batch."""
        assert labels is not None
        confidence, answers = predicted[self.base].probs.double().max(1)
        seen = self.right.seen
        order = -torch.arange(seen, seen + len(labels), dtype=torch.float64)
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
    test: TestExamples,
    sets: list[tuple[str, str, SurestOutliers, list[str | None]]],
    rankings: dict[str, Ranking],
    class_names: list[str],
) -> list[Example]:
    """Return up to `COUNT` examples of the test data, at most one of them right, and of each set to show.

    Args:
        test: the candidates of the test data.
        sets: the name, the kind, the candidates and the names of all inputs of each set of outliers.
        rankings: of the methods, for the thresholds.
        class_names: of the classes.
    """
    right, wrong = test.right.best, test.wrong.best
    right = right[: max(1, COUNT - len(wrong))]
    chosen = [*right, *wrong][:COUNT]
    found = [_describe("Test data", "test", each, rankings, class_names[each.label or 0]) for each in chosen]
    for source, kind, surest, names in _sets_to_show(sets):
        told = len(set(names)) > 1  # one label for all says nothing
        for each in surest.list.best:
            name = names[each.place] if told else None
            found.append(_describe(source, kind, each, rankings, name))
    return found


def _sets_to_show(sets: list[Any]) -> list[Any]:
    """Return the first given sets. If there are none, the noise, and the last far set."""
    given = [each for each in sets if each[1] == "given"]
    noise = [each for each in sets if each[1] == "noise"]
    far = [each for each in sets if each[1] == "far"][-1:]
    return given[:MOST_SETS] or [*noise, *far]


def _describe(
    source: str, kind: str, candidate: Candidate, rankings: dict[str, Ranking], name: str | None
) -> Example:
    image = as_image(candidate.row)
    values, size = first_values(candidate.row)
    return Example(
        source=source,
        kind=kind,
        name=name,
        image=image,
        values=[] if image else values,
        size=size,
        predicted={method: int(probs.argmax()) for method, probs in candidate.probs.items()},
        confidence={method: float(probs.max()) for method, probs in candidate.probs.items()},
        kept_from={method: _kept_from(candidate.scores[method], each) for method, each in rankings.items()},
    )


def example_size(inputs: Inputs) -> int:
    """Return how many numbers an example of these inputs shows a part of."""
    return first_values(_row(inputs, 0))[1]


def _kept_from(score: float, ranking: Ranking) -> float | None:
    """Return the smallest kept share whose threshold lets the score through."""
    shares = zip(KEPT_SHARES, ranking.threshold, strict=True)
    return next((share for share, threshold in shares if score >= threshold), None)


def _row(inputs: Inputs, i: int) -> Any:
    if isinstance(inputs, Mapping):
        return {name: value[i].cpu() for name, value in inputs.items() if has_rows(value, inputs)}
    return inputs[i].cpu()

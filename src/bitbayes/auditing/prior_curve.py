"""The scores of each prior variance, at a temperature of 1 and without a residual: the trade-off."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from bitbayes import metrics
from bitbayes.auditing.findings import PriorCurve
from bitbayes.auditing.predictions import Rated
from bitbayes.auditing.progress import ReportProgress
from bitbayes.auditing.reading import copied
from bitbayes.laplace import Laplace
from bitbayes.model import Batch, input_batches, labelled_batches
from bitbayes.predicting import Predictor
from bitbayes.prior import Prior

PRIOR_VARIANCES = [10.0**exponent for exponent in range(-4, 6)]
# More inputs would not visibly move a point of the curve.
MOST_INPUTS = 2000


@torch.no_grad()
def measure_prior_curve(
    bayes: Laplace,
    test: Iterable[Any],
    sets: Sequence[tuple[str, Iterable[Any]]],
    report: ReportProgress,
) -> PriorCurve:
    """Score every prior variance on the first inputs of the test data and of each set, in one pass.

    Args:
        bayes: a fitted `Laplace`. It is not changed.
        test: a loader of (x, y).
        sets: the name and the inputs of each set of outliers.
        report: called with the progress.
    """
    stage, steps = "Settings", 1 + len(sets)
    report(stage, 0, steps)
    labels: list[Tensor] = []

    def test_batches() -> Iterator[Batch]:
        for batch in _first(labelled_batches(test, bayes.model)):
            assert batch.labels is not None
            labels.append(batch.labels.reshape(-1).long().cpu())
            yield batch

    inside = _rate(bayes, test_batches())
    truth = torch.cat(labels)
    auroc, fpr95 = [], []  # of each set, by prior variance
    for number, (_, data) in enumerate(sets):
        report(stage, 1 + number, steps)
        outside = _rate(bayes, _first(input_batches(map(copied, data), bayes.model)))
        pairs = [(of_data.scores, of_set.scores) for of_data, of_set in zip(inside, outside, strict=True)]
        auroc.append([metrics.auroc(*pair) for pair in pairs])
        fpr95.append([metrics.fpr95(*pair) for pair in pairs])
    report(stage, steps, steps)
    return PriorCurve(
        sets=[name for name, _ in sets],
        prior_variance=list(PRIOR_VARIANCES),
        ece=[metrics.ece(rated.probs, truth) for rated in inside],
        auroc=[sum(each) / len(sets) for each in zip(*auroc, strict=True)],
        fpr95=[sum(each) / len(sets) for each in zip(*fpr95, strict=True)],
    )


def _first(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Yield batches until `MOST_INPUTS` inputs are reached."""
    seen = 0
    for batch in batches:
        yield batch
        seen += len(batch)
        if seen >= MOST_INPUTS:
            return


def _rate(bayes: Laplace, batches: Iterator[Batch]) -> list[Rated]:
    """Return the predictions for each prior variance. The network runs once for all of them."""
    posterior, likelihood = bayes.posterior, bayes.posterior.likelihood
    method = Predictor(posterior, None, bayes.settings).predictive(bayes.predictive).name
    parts: list[list[Rated]] = [[] for _ in PRIOR_VARIANCES]
    for _, by_prior in posterior.logits_by_prior(batches):
        for part, variance in zip(parts, PRIOR_VARIANCES, strict=True):
            gaussian = by_prior.at(Prior(variance))
            probs = likelihood.log_probabilities(likelihood.predict(gaussian, method)).exp()
            part.append(Rated(probs.cpu(), likelihood.score(gaussian).cpu()))
    return [Rated(*map(torch.cat, zip(*part, strict=True))) for part in parts]

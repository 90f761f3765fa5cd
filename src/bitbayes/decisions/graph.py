"""What becomes of a fitted model in an exported graph: its outputs, and the module that computes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from bitbayes.decisions.conformal_interval import ConformalInterval
from bitbayes.decisions.exported import ACCEPT, INTERVAL, SETS, Decisions
from bitbayes.decisions.prediction_sets import PredictionSets
from bitbayes.errors import ArgumentError, one_of
from bitbayes.io.export import DEVIATIONS, LOGITS, REWARDS, VALUES, Graph, check_classes
from bitbayes.likelihoods import closed_form_names
from bitbayes.likelihoods.preference import Reward
from bitbayes.predicting import CONFIDENCE, RANKS, SCORE, Predictive, Predictor, Rank
from bitbayes.regression import Prediction


@dataclass(frozen=True)
class GraphRequest:
    """What a graph is asked for beside its predictions; the arguments are those of `Laplace.export`."""

    score: bool | Rank
    threshold: float | None
    sets: PredictionSets | ConformalInterval | None
    classes: Sequence[str] | None


def make_graph(predictor: Predictor, predictive: Predictive, request: GraphRequest) -> Graph:
    """Return what `io.export.write` writes; raise, before any work, if it cannot be a graph."""
    posterior, likelihood = predictor.posterior, predictive.likelihood
    if not predictive.in_closed_form:
        raise ArgumentError(
            f"predictive={predictive.name!r}: only a predictive in closed form "
            f"({', '.join(closed_form_names())}) becomes a graph"
        )
    if not (likelihood.has_drop_in or likelihood.of_pairs):
        raise ArgumentError(f"likelihood={likelihood.name!r} has no drop-in logits, which a graph returns")
    decided = request.threshold is not None or request.sets is not None or request.classes is not None
    if likelihood.of_pairs and (request.score or decided):
        raise ArgumentError(
            "the graph of a reward model takes single inputs, and returns their rewards and deviations: "
            "score, threshold, sets and classes are about pairs; leave them out"
        )
    posterior.check_graph()
    if not isinstance(request.score, bool):
        one_of("score", request.score, RANKS)
    rank = SCORE if request.score is True else request.score or None
    if rank == CONFIDENCE:
        likelihood.require_classes()
    decisions = Decisions.checked(request.threshold, request.sets, predictor, predictive)
    about = {"likelihood": likelihood.name, **decisions.about()}
    if request.classes is not None:
        likelihood.require_classes()
        about["classes"] = check_classes(request.classes, likelihood.classes(posterior.outputs))
    first = (REWARDS, DEVIATIONS) if likelihood.of_pairs else (LOGITS,)
    first = first if likelihood.classifies else (VALUES, DEVIATIONS)
    names = (*first, *(() if rank is None else (rank,)), *decisions.outputs)
    module = GraphOutputs(predictor, predictive, names, decisions)
    return Graph(module, names, differentiates=posterior.over_all_layers, about=about)


class GraphOutputs(nn.Module):
    """Returns drop-in logits, values and deviations, or rewards and deviations; then ranks and decisions.

    One output is returned by itself, and several as a tuple.
    """

    def __init__(
        self, predictor: Predictor, predictive: Predictive, names: tuple[str, ...], decisions: Decisions
    ) -> None:
        super().__init__()
        self.model = predictor.posterior.model  # the graph has its parameters, under these names
        self.predictor, self.predictive = predictor, predictive
        self.names, self.decisions = names, decisions

    def forward(self, x: Any) -> Tensor | tuple[Tensor, ...]:
        if REWARDS in self.names:
            return tuple(Reward.joined([self.predictor.forward(x).gaussian]))
        logits, passed = self.predictor.drop_in(x, self.predictive)
        assert passed is not None  # of a closed form
        posterior, settings, decisions = self.predictor.posterior, self.predictor.settings, self.decisions
        likelihood, layout = posterior.likelihood, posterior.layout
        found: dict[str, Tensor] = {LOGITS: logits}
        scores = confidences = None
        if SCORE in self.names or decisions.by_score:
            energy = likelihood.score(settings.without_bias(passed.gaussian))
            scores = settings.score(energy, passed.distances)
        if likelihood.classifies:
            rows = layout.flatten(logits, passed.gaussian.scale.shape[0], posterior.outputs)
            probabilities = likelihood.log_probabilities(rows).exp()
            confidences = likelihood.confidence(probabilities)
            if SETS in self.names:
                found[SETS] = decisions.sets_of(probabilities, scores)
        else:
            predicted = Prediction.of(passed.gaussian, likelihood, settings)
            values = (predicted.mean, predicted.deviation)
            same = logits.numel() == predicted.mean.numel()  # a model may return (n,)
            shaped = [each.reshape(logits.shape) if same else each for each in values]
            found[VALUES], found[DEVIATIONS] = shaped
            if INTERVAL in self.names:
                found[INTERVAL] = decisions.intervals_of(*values)
        accepted = decisions.accept(scores, confidences) if ACCEPT in self.names else None
        for name, ranks in ((SCORE, scores), (CONFIDENCE, confidences), (ACCEPT, accepted)):
            if ranks is not None:
                found[name] = layout.assemble([(layout.position_sizes(tuple(logits.shape)), ranks)])
        return found[self.names[0]] if len(self.names) == 1 else tuple(found[name] for name in self.names)

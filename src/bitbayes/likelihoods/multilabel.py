"""Several labels for each input: k independent Bernoullis, pᵢ = σ(fᵢ), Λ = diag(p(1 − p))."""

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from bitbayes.closed_forms import probit, quadrature, safe_log
from bitbayes.likelihoods.base import ClosedForm, Likelihood
from bitbayes.likelihoods.bernoulli import drawn_gradients
from bitbayes.logits import LogitGaussian
from bitbayes.uncertainty import Uncertainty, uncertainty_of_draws


class Multilabel(Likelihood):
    """k ≥ 1 labels, each of which an input has or has not. A label is a row of k numbers, 0 and 1.

    Its probabilities (n, k) are those of each label: a row does not sum to one. Given the logits, the labels
    are independent.
    """

    name = "multilabel"
    closed_forms: ClassVar[dict[str, ClosedForm]] = {"probit": probit, "quadrature": quadrature}
    with_bounds: ClassVar[tuple[str, ...]] = ("probit", "quadrature")
    logits_in_a_margin = 1
    one_label = False
    has_positions = False

    def takes(self, outputs: int) -> bool:
        return True

    # ---- labels and loss

    def valid_labels(self, labels: Tensor, k: int) -> tuple[Tensor, Tensor | bool, str]:
        """0 and 1; integers, booleans and floats are accepted."""
        expected = "likelihood='multilabel' needs 0 and 1"
        if labels.is_complex():
            return labels.real.long(), False, expected
        return labels.long().clamp(0, 1), ((labels == 0) | (labels == 1)).all(), expected

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The sum over all labels."""
        return functional.softplus((1 - 2 * labels) * outputs).sum(1)

    # ---- the curvature of the loss at the outputs

    def differences(self, k: int, device: torch.device | None = None) -> Tensor:
        return torch.eye(k, dtype=torch.float64, device=device)

    def curvature(self, outputs: Tensor) -> Tensor:
        """Λₙ (n, k, k), diagonal."""
        return torch.diag_embed(self.diagonal(outputs))

    def total_curvature(self, outputs: Tensor, weights: Tensor | None = None) -> Tensor:
        each = self.diagonal(outputs)
        return torch.diag(each.sum(0) if weights is None else weights @ each)

    def diagonal(self, outputs: Tensor) -> Tensor:
        """σ(f)σ(−f), (n, k): not by 1 − p, which rounds to 0 too early."""
        return outputs.sigmoid() * (-outputs).sigmoid()

    def root(self, outputs: Tensor) -> Tensor:
        return torch.diag_embed(self.diagonal(outputs).sqrt())

    def draw(self, outputs: Tensor, generator: torch.Generator | None) -> Tensor:
        return drawn_gradients(outputs, generator)

    # ---- predictions

    def default_predictive(self, outputs: int, has_cross_covariance: bool) -> str:
        return "probit"

    def log_probabilities(self, drop_in: Tensor) -> Tensor:
        return functional.logsigmoid(drop_in)

    def log_decisions(self, drop_in: Tensor) -> Tensor:
        """One decision for each label, (n, k, 2): log(1 − p) and log p."""
        return torch.stack([functional.logsigmoid(-drop_in), functional.logsigmoid(drop_in)], dim=2)

    def probabilities(self, outputs: Tensor) -> Tensor:
        return outputs.sigmoid()

    def drop_in(self, probabilities: Tensor) -> Tensor:
        return safe_log(probabilities) - safe_log(1 - probabilities)

    def confidence(self, probabilities: Tensor) -> Tensor:
        """The probability that all labels are predicted right, Πᵢ max(pᵢ, 1 − pᵢ)."""
        return torch.maximum(probabilities, 1 - probabilities).log().sum(1).exp()

    # ---- scores

    def score(self, gaussian: LogitGaussian) -> Tensor:
        """The sum over all labels of log Σ exp of the two logits ±z/2, z that of "probit"."""
        z = self.predict(gaussian, "probit")
        return (torch.stack([-z, z], dim=2) / 2).logsumexp(2).sum(1)

    def uncertainty(self, probabilities: Tensor) -> Uncertainty:
        """Sums over the labels, of each label's two classes; the variance is that of each label, (n, k)."""
        s, n, k = probabilities.shape
        p = probabilities.reshape(s, n * k)
        entropy, expected, information, variance = uncertainty_of_draws(torch.stack([1 - p, p], dim=2))
        return Uncertainty(
            entropy=entropy.reshape(n, k).sum(1),
            expected_entropy=expected.reshape(n, k).sum(1),
            mutual_information=information.reshape(n, k).sum(1),
            variance=variance[:, 1].reshape(n, k),
        )

    # ---- what tuning measures

    def margins(self, mean: Tensor) -> Tensor:
        """The size of a logit, whose sign decides: the median over the labels."""
        return mean.abs().median(1).values

    def scaled_margin_variance(self, gaussian: LogitGaussian) -> Tensor:
        """That of a logit: the median over the labels."""
        return gaussian.scaled_variances().median(1).values

    # ---- far from the data

    def far_confidence(self, outputs: int) -> float:
        """That of each label."""
        return 1 / 2

    def far_labels(self, mean: Tensor) -> Tensor:
        """Of each label, (n, k)."""
        return (mean > 0).long()

    def centre(self, values: Tensor) -> Tensor:
        return values

    def scaled_centred(self, gaussian: LogitGaussian) -> tuple[Tensor, Tensor]:
        return gaussian.scaled_mean, gaussian.scaled_variances()

    def largest_probability(self, low: Tensor, high: Tensor) -> Tensor:
        """The largest max(p, 1 − p) of any label."""
        return torch.maximum(high, -low).amax(1).sigmoid()

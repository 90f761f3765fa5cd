"""One logit f: p = σ(f), Λ = p(1 − p)."""

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from bitbayes.closed_forms import probit, quadrature, safe_log
from bitbayes.likelihoods.base import ClosedForm, Likelihood
from bitbayes.logits import LogitGaussian


def drawn_gradients(outputs: Tensor, generator: torch.Generator | None) -> Tensor:
    """y − p for labels drawn from the model, one for each logit: (n, k) as the logits."""
    p = outputs.sigmoid()
    drawn = torch.rand(p.shape, generator=generator, dtype=p.dtype, device=p.device) < p
    return torch.where(drawn, (-outputs).sigmoid(), -p)


class Bernoulli(Likelihood):
    """Two classes by one logit. Its probabilities are those of both classes, (n, 2)."""

    name = "bernoulli"
    closed_forms: ClassVar[dict[str, ClosedForm]] = {"probit": probit, "quadrature": quadrature}
    with_bounds: ClassVar[tuple[str, ...]] = ("probit", "quadrature")
    logits_in_a_margin = 1
    labels_are_classes = True

    def takes(self, outputs: int) -> bool:
        return outputs == 1

    def classes(self, outputs: int) -> int:
        return 2

    # ---- labels and loss

    def valid_labels(self, labels: Tensor, k: int) -> tuple[Tensor, Tensor | bool, str]:
        """0 and 1; integers, booleans and floats are accepted."""
        expected = "a network with one logit needs 0 and 1"
        if labels.is_complex():
            return labels.real.long(), False, expected
        # On a GPU an index outside would crash the program.
        return labels.long().clamp(0, 1), ((labels == 0) | (labels == 1)).all(), expected

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return functional.softplus((1 - 2 * labels) * outputs[:, 0])

    # ---- the curvature of the loss at the outputs

    def differences(self, k: int, device: torch.device | None = None) -> Tensor:
        return torch.ones(1, 1, dtype=torch.float64, device=device)

    def curvature(self, outputs: Tensor) -> Tensor:
        """Λₙ (n, 1, 1) = σ(f)σ(−f): not by 1 − p, which rounds to 0 too early."""
        return (outputs.sigmoid() * (-outputs).sigmoid())[:, :, None]

    def diagonal(self, outputs: Tensor) -> Tensor:
        return self.curvature(outputs)[:, :, 0]

    def root(self, outputs: Tensor) -> Tensor:
        return self.curvature(outputs).sqrt()

    def draw(self, outputs: Tensor, generator: torch.Generator | None) -> Tensor:
        return drawn_gradients(outputs, generator)

    # ---- predictions

    def default_predictive(self, outputs: int, has_cross_covariance: bool) -> str:
        return "probit"

    def log_probabilities(self, drop_in: Tensor) -> Tensor:
        return torch.cat([functional.logsigmoid(-drop_in), functional.logsigmoid(drop_in)], dim=1)

    def probabilities(self, outputs: Tensor) -> Tensor:
        return torch.cat([(-outputs).sigmoid(), outputs.sigmoid()], dim=-1)

    def drop_in(self, probabilities: Tensor) -> Tensor:
        log_p = safe_log(probabilities)
        return log_p[:, 1:] - log_p[:, :1]

    # ---- scores

    def score(self, gaussian: LogitGaussian) -> Tensor:
        """log Σ exp of the two logits ±z/2, z that of "probit"."""
        z = self.predict(gaussian, "probit")
        return (torch.cat([-z, z], dim=1) / 2).logsumexp(1)

    # ---- what tuning measures

    def margins(self, mean: Tensor) -> Tensor:
        """The size of the logit, whose sign decides."""
        return mean[:, 0].abs()

    def scaled_margin_variance(self, gaussian: LogitGaussian) -> Tensor:
        return gaussian.scaled_variances()[:, 0]

    # ---- far from the data

    def far_confidence(self, outputs: int) -> float:
        return 1 / 2

    def far_labels(self, mean: Tensor) -> Tensor:
        return (mean[:, 0] > 0).long()

    def centre(self, values: Tensor) -> Tensor:
        return values

    def scaled_centred(self, gaussian: LogitGaussian) -> tuple[Tensor, Tensor]:
        return gaussian.scaled_mean, gaussian.scaled_variances()

    def largest_probability(self, low: Tensor, high: Tensor) -> Tensor:
        """The two scores are z and 0.

        >>> low, high = torch.tensor([[-2.0]]), torch.tensor([[1.0]])
        >>> Bernoulli().largest_probability(low, high) == torch.tensor(2.0).sigmoid()
        tensor([True])
        """
        return torch.maximum(high, -low)[:, 0].sigmoid()

"""Virtual-logit matching (Wang et al. 2022): the energy minus the part of a feature off the main axes."""

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from bitbayes.baselines.detectors.base import steps
from bitbayes.baselines.detectors.by_logits import LogitDetector
from bitbayes.errors import DataError


@dataclass(frozen=True)
class ViM(LogitDetector):
    """log Σᵢ exp fᵢ − α‖Rᵀ(φ − o)‖, with the `origin` o = −W⁺b, where the logits are closest to 0.

    The columns of R (d, d − D), `off_axis`, are the eigenvectors of Σₙ (φₙ − o)(φₙ − o)ᵀ, without those of
    the D largest eigenvalues. α = Σₙ maxᵢ fᵢ / Σₙ ‖Rᵀ(φₙ − o)‖ over the training data.
    """

    origin: Tensor
    off_axis: Tensor
    alpha: Tensor

    title: ClassVar[str] = "ViM"

    @classmethod
    def _fit(cls, features: Tensor, labels: Tensor, weight: Tensor, bias: Tensor) -> Self:
        d = features.shape[1]
        origin = -torch.linalg.pinv(weight) @ bias
        moment = weight.new_zeros(d, d)
        for _, rows in steps(features):
            rows = rows - origin
            moment += rows.T @ rows
        vectors = torch.linalg.eigh(moment).eigenvectors  # with ascending eigenvalues
        detector = cls(weight, bias, origin, vectors[:, : d - principal_dimension(d)], weight.new_ones(()))
        logits, residuals, lengths = (weight.new_zeros(()) for _ in range(3))
        for _, rows in steps(features):
            logits += detector.logits(rows).amax(1).sum()
            residuals += detector.residual(rows).sum()
            lengths += _lengths(rows - origin).sum()
        # If all features lie on the main axes, the residuals are rounding errors, and α has no scale.
        if bool(residuals <= torch.finfo(lengths.dtype).eps ** 0.5 * lengths):
            raise DataError(
                f"the training features span no more than {principal_dimension(d)} of {d} dimensions, and "
                "ViM needs what is off these: give more training points, or choose another detector"
            )
        return replace(detector, alpha=logits / residuals)

    def residual(self, features: Tensor) -> Tensor:
        """Return ‖Rᵀ(φ − o)‖, (n,)."""
        return _lengths((features - self.origin) @ self.off_axis)

    def _score(self, features: Tensor) -> Tensor:
        return self.logits(features).logsumexp(1) - self.alpha * self.residual(features)


def _lengths(rows: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return lengths


def principal_dimension(d: int) -> int:
    """Return D for features of width d: 1000 from 2048 on, 512 from 768 on, and d/2 below.

    The authors use 512 for all widths below 2048. For 512 features, as in a ResNet-18, R would be empty.

    >>> [principal_dimension(d) for d in (84, 512, 768, 2048)]
    [42, 256, 512, 1000]
    """
    if d >= 768:
        return 1000 if d >= 2048 else 512
    return d // 2

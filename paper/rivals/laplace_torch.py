"""laplace-torch's last layer as its documentation shows it: Kronecker, prior by the evidence, probit."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from paper.methods.base import BatchLoader
from paper.rivals.base import Predicted


class LaplaceTorch:
    """Fitted, and tuned by `optimize_prior_precision`; after that a `Predictor`."""

    def __init__(self, network: nn.Module, images: Tensor, labels: Tensor) -> None:
        loader: Any = BatchLoader(images, labels)
        loader.dataset = images  # asked for the number of its points
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import laplace
            from laplace.curvature import CurvlinopsGGN

            self.other: Any = laplace.Laplace(
                copy.deepcopy(network),  # it takes the gradients of all other layers away
                "classification",
                subset_of_weights="last_layer",
                hessian_structure="kron",
                backend=CurvlinopsGGN,
            )
            self.other.fit(loader)
            self.other.optimize_prior_precision(pred_type="glm", method="marglik")

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Predicted:
        probs = self.other(x, link_approx="probit")
        return Predicted(probs, probs.amax(1))

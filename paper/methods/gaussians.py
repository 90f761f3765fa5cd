"""A fitted Laplace that keeps the Gaussians over the logits of each set, for any prior.

So a set passes the network once, and not once for each trial.
"""

import torch
from torch import Tensor

import bitbayes as bb
from bitbayes import predictive, uncertainty
from bitbayes.tuning.calibrated import calibrate
from bitbayes.tuning.points import Candidate, Points
from bitbayes.tuning.tune import validation_points
from paper.methods.base import (
    BatchLoader,
    Hyperparameters,
    Rated,
    rate_by_probabilities,
)


class Gaussians:
    """A fitted Laplace and, for each set of images, the Gaussians over their logits.

    Args:
        bayes: fitted.
    """

    def __init__(self, bayes: bb.Laplace) -> None:
        self.bayes = bayes

    def of(self, images: Tensor, labels: Tensor | None = None) -> Points:
        """Pass the images. Only those that `choose` will look at need labels."""
        if labels is None:
            labels = torch.zeros(1, dtype=torch.long, device=images.device).expand(len(images))
        loader = BatchLoader(images, labels)
        parts = validation_points(self.bayes._fitted_posterior(), self.bayes._known_residual(), loader, False)
        return Points.joined(parts)

    def choose(self, points: Points) -> Hyperparameters:
        """Return the numbers that `tune` chooses on these points."""
        posterior = self.bayes._fitted_posterior()
        likelihood, grid = posterior.fitted.likelihood, posterior.candidates()
        return dict(calibrate([points], self.bayes._method(None), likelihood, grid)._asdict())

    def rate(self, points: Points, chosen: Hyperparameters) -> Rated:
        """Rate the points with these numbers."""
        (gaussian,) = points.gaussians([Candidate(**chosen)])
        likelihood = self.bayes._fitted_posterior().fitted.likelihood
        logits = predictive.predict(gaussian, self.bayes._method(None))
        probs = likelihood.log_probabilities(logits).exp()
        return rate_by_probabilities(probs, score=uncertainty.score(gaussian))

"""The Gaussian over logits."""

import torch

from ray_cases import laplace


def test_an_independent_variance_is_added_to_the_diagonal():
    bayes, x = laplace("mlp", 3, structure="diag")
    gaussian = bayes.logits(x)
    wide = gaussian.plus_independent(torch.full((len(x),), 1.5**0.5, dtype=torch.float64))
    more = (wide.covariance - gaussian.covariance).diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(more, torch.full_like(more, 1.5))

"""The last layer as the paper's code has it: for two classes its curvature is that of one batch."""

import math

import pytest
import torch
from torch import nn

from paper.methods import Network, Points
from paper.methods.entries import BINARY


# 500 points are three batches of 128 and one of 116: 0.05·(0.95³·128 + 0.95²·128 + 0.95·128 + 116).
@pytest.mark.parametrize(("key", "counted"), [("llla", None), ("llla-code-curvature", 23.1432)])
def test_the_curvature_counts_as_many_points(key, counted):
    torch.manual_seed(0)
    head = nn.Linear(4, 1).double()
    network = Network(nn.Sequential(nn.Identity(), head))
    x, y = torch.randn(500, 4, dtype=torch.float64), torch.arange(500) % 2
    method = BINARY[key].make(10)
    method.fit(network, x, Points(x, x), y)
    new, prior_variance = 3 * torch.randn(20, 4, dtype=torch.float64), 7.0
    probs = method.rate(Points(new, new), {"prior_variance": prior_variance}, 0).probs

    with torch.no_grad():
        wide = torch.cat([x, x.new_ones(500, 1)], dim=1)  # (n, d + 1)
        p = head(x)[:, 0].sigmoid()
        hessian = wide.T @ (wide * (p * (1 - p))[:, None])
        hessian = hessian * (1.0 if counted is None else counted / 500)
        covariance = torch.linalg.inv(hessian + torch.eye(5, dtype=torch.float64) / prior_variance)
        at_new = torch.cat([new, new.new_ones(20, 1)], dim=1)
        variance = (at_new @ covariance * at_new).sum(1)
        expected = (head(new)[:, 0] / (1 + math.pi / 8 * variance).sqrt()).sigmoid()
    assert probs is not None
    # The weight of a point is rounded to float32.
    torch.testing.assert_close(probs[:, 1], expected, rtol=2**-23 if counted else 1e-9, atol=0)

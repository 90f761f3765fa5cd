"""Predictions over all layers far from the data and with extreme prior variances."""

import pytest
import torch
from torch import nn

import bitbayes as bb
import dense
from bitbayes.errors import DataError
from dense import close, loader

STRUCTURES = ["diag", "kron", "full"]


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", ["pairwise", "mc", "weights"])
def test_prior_variances_from_1e_minus_300_to_1e300_give_finite_predictions(structure, dtype, method):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).to(dtype)
    x, y = torch.randn(12, 4, dtype=dtype), torch.arange(12) % 3
    seen = x.clone()
    seen[:, :2] = 0  # no data about the weights of these inputs, nor about those of a dead unit
    model[0].bias.data[0] = -100
    bayes = bb.Laplace(model, layers="all", structure=structure).fit([(seen, y)])
    for exponent in (-300, -160, -40, -20, 14, 20, 30, 40, 80, 160, 300):
        bayes.prior_variance = 10.0**exponent
        p = bayes.predict_proba(torch.cat([x, 1e10 * x]), method=method)
        close(p.sum(1), torch.ones(24, dtype=dtype), 1e-6)
        if exponent < -15:  # no variance: the network's own prediction
            close(p[:12], model(x).softmax(1).to(p), 1e-5)


@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
@pytest.mark.parametrize("method", ["probit", "pairwise", "mc"])
def test_predictions_at_1e30_times_the_inputs_are_finite(structure, method):
    model, x, y = dense.case("mlp", dtype=torch.float32)
    model[1] = nn.ReLU()
    bayes = bb.Laplace(model, layers="all", structure=structure, prior_variance=10.0).fit(loader(x, y))
    far = []
    for size in (1e8, 1e30):
        generator = torch.Generator().manual_seed(0)
        far.append(bayes.predict_proba(size * x, method=method, generator=generator))
    assert bool(far[1].isfinite().all())
    # ReLU networks are homogeneous far away: the limit has been reached long before 1e30.
    assert float((far[0] - far[1]).abs().max()) < 1e-3


@pytest.mark.parametrize(
    "dtype, size", [(torch.float32, 1e20), (torch.float32, 1e30), (torch.float64, 1e160)]
)
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_training_data_whose_squares_overflow_raise_at_fit(structure, k, dtype, size):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, k)).to(dtype)
    x, y = torch.randn(20, 3, dtype=dtype), torch.arange(20) % max(k, 2)
    bayes = bb.Laplace(model, layers="all", structure=structure, prior_variance=1.0).fit([(x, y)])
    before, weight = bayes.predict_proba(x), model[2].weight.clone()
    with torch.no_grad():
        model[2].weight /= size  # the network's own logits stay small
    what = "the network" if structure == "full" else "the layer '0'"
    with pytest.raises(DataError, match=f"at {what} overflow {dtype}.*scale its inputs down"):
        bayes.fit([(x, y), (size * x, y)])
    with torch.no_grad():
        model[2].weight.copy_(weight)
    close(bayes.predict_proba(x), before, 1e-5)


def test_a_residual_wins_far_away_also_over_a_logit_that_is_zero():
    """Its variance is kept in units of the largest logit: in those of the smallest it would be cut off."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    with torch.no_grad():
        model[2].weight[0], model[2].bias[0] = 0, 0
    x, y = torch.randn(12, 4), torch.arange(12) % 3
    bayes = bb.Laplace(model, layers="all", residual=True).fit(loader(x, y))
    close(bayes.predict_proba(1e13 * x), torch.full((12, 3), 1 / 3), 1e-5)

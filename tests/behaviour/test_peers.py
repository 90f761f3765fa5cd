"""Covariances and evidence are those of laplace-torch, wherever both libraries compute them."""

import copy
import warnings

import pytest
import torch

import bitbayes as bb
import reference

with warnings.catch_warnings():
    # Its own dependencies use deprecated parts of torch when they are imported.
    warnings.simplefilter("ignore")
    laplace = pytest.importorskip("laplace", reason="laplace-torch is not installed: `make test` installs it")

pytestmark = pytest.mark.filterwarnings("ignore")  # of its code at work: it is not ours to mend


def both(structure, k, bias, prior_variance):
    model, (x, y) = reference.network(k, bias), reference.data(k)
    ours = bb.Laplace(model, structure=structure, prior_variance=prior_variance).fit([(x, y)])
    theirs = laplace.Laplace(
        copy.deepcopy(model),  # which its backend extends for good
        "classification",
        subset_of_weights="last_layer",
        hessian_structure=structure,
        # Its default backend goes through a float32 identity and keeps seven digits of the full Hessian.
        backend=laplace.curvature.BackPackGGN,
        prior_precision=torch.tensor(1 / prior_variance, dtype=torch.float64),
    )
    theirs.fit(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=10))
    return ours, theirs, x


# It has no likelihood for a network with one logit.
@pytest.mark.parametrize("prior_variance", [0.3, 50.0])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("k", [2, 3, 10])
@pytest.mark.parametrize("structure", ["full", "diag"])
def test_covariance_and_evidence_are_those_of_laplace_torch(structure, k, bias, prior_variance):
    ours, theirs, x = both(structure, k, bias, prior_variance)
    mean, covariance = theirs._glm_predictive_distribution(x)
    gaussian = ours.logits(x)
    torch.testing.assert_close(gaussian.mean, mean.detach(), rtol=0, atol=1e-12)
    torch.testing.assert_close(gaussian.covariance, covariance.detach(), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(
        ours.log_evidence(), theirs.log_marginal_likelihood().detach().reshape(()), rtol=1e-8, atol=1e-8
    )


class Pairs(torch.nn.Module):
    """A reward model as laplace-torch takes it: pairs (n, 2, d) → (n, 2), single inputs (n, d) → (n, 1)."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x)[..., 0] if x.dim() == 3 else self.model(x)


# Its other backends take one row of the head for each label, or keep seven digits.
@pytest.mark.parametrize(
    "structure, backend", [("diag", "CurvlinopsGGN"), ("full", "GGNInterface"), ("full", "CurvlinopsGGN")]
)
@pytest.mark.parametrize("prior_variance", [0.3, 50.0])
def test_rewards_are_those_of_laplace_torch(structure, backend, prior_variance):
    """It counts the bias as uncertain, too, which no pair shows. So the head has none."""
    model, y = reference.network(1, bias=False), torch.arange(30) % 2
    a, b, x = (2 * torch.randn(30, 3, dtype=torch.float64) for _ in range(3))
    options = {"likelihood": "preference", "structure": structure, "prior_variance": prior_variance}
    ours = bb.Laplace(model, **options).fit([((a, b), y)])
    rewards = Pairs(copy.deepcopy(model))
    rewards.model.hidden.requires_grad_(False)
    theirs = laplace.Laplace(
        rewards,
        "reward_modeling",
        subset_of_weights="all",  # that require a gradient
        hessian_structure=structure,
        backend=getattr(laplace.curvature, backend),
        prior_precision=torch.tensor(1 / prior_variance, dtype=torch.float64),
    )
    pairs = torch.stack([b, a], dim=1)  # the label 1 is for a here, and for the second there
    theirs.fit(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(pairs, y), batch_size=10))
    mean, variance = theirs(x)
    torch.testing.assert_close(ours.reward(x).mean, mean[:, 0].detach(), rtol=0, atol=1e-12)
    torch.testing.assert_close(ours.reward(x).deviation ** 2, variance.flatten().detach(), rtol=1e-6, atol=0)
    expected = theirs.log_marginal_likelihood().detach().reshape(())
    torch.testing.assert_close(ours.log_evidence(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("k", [2, 3])
def test_kron_without_a_bias_is_that_of_laplace_torch(k):
    """With a bias they differ, because laplace-torch treats the bias as a layer of its own."""
    ours, theirs, x = both("kron", k, False, 2.0)
    _, covariance = theirs._glm_predictive_distribution(x)
    torch.testing.assert_close(ours.logits(x).covariance, covariance.detach(), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(
        ours.log_evidence(), theirs.log_marginal_likelihood().detach().reshape(()), rtol=1e-8, atol=1e-8
    )


@pytest.mark.parametrize("k", [2, 3])
def test_evidence_at_other_priors_is_that_of_laplace_torch(k):
    ours, theirs, _ = both("full", k, True, 1.0)
    for prior_variance in (0.01, 0.4, 3.0, 1000.0):
        expected = theirs.log_marginal_likelihood(torch.tensor(1 / prior_variance, dtype=torch.float64))
        torch.testing.assert_close(
            ours.log_evidence(prior_variance), expected.detach().reshape(()), rtol=1e-8, atol=1e-8
        )

"""Wide priors in float32 against float64: rounding must not become variance where data have no curvature."""

import pytest
import torch
from torch import nn

import bitbayes as bb
from reference import KAPPA

# Fewer points than features, so that most directions of the weights have no curvature at all.
POINTS, FEATURES = 40, 120


def squared_components(rows, test):
    """Eigenvalues of rowsᵀrows, and squared components of test rows in its eigenbasis; in float64.

    By singular values, since the product of two matrices would lose half of the digits.
    """
    _, sizes, vectors = torch.linalg.svd(rows, full_matrices=True)
    values = torch.cat([sizes.square(), sizes.new_zeros(rows.shape[1] - len(sizes))])
    return values, (test @ vectors.T).square()


def expected(structure, features, logits, test, test_logits, prior_variance):
    """Probabilities by probit (one logit) or pairwise, from features with the bias's 1, all in float64."""
    k = logits.shape[1]
    if k == 1:
        root = (logits.sigmoid() * (-logits).sigmoid()).sqrt()
        values, squares = squared_components(root * features, test)
        variance = (squares / (values + 1 / prior_variance)).sum(1, keepdim=True)
        z = test_logits / (1 + KAPPA * variance).sqrt()
        return torch.cat([(-z).sigmoid(), z.sigmoid()], 1)
    p = logits.softmax(1)
    if structure == "kron":
        outputs, vectors = torch.linalg.eigh(torch.diag(p.sum(0)) - p.T @ p)
        values, squares = squared_components(features, test)
        products = outputs.clamp_min(0)[:, None] * values / len(features)
        weights = squares @ (1 / (products + 1 / prior_variance)).T  # (n, k)
        pairs = torch.einsum("nr,ijr->nij", weights, (vectors[:, None] - vectors[None]).square())
    else:
        # diag(p) − ppᵀ = R Rᵀ with R = diag(√p)(I − √p√pᵀ); rows: points and columns of R, classes, features.
        root = p.sqrt()[:, :, None] * (torch.eye(k) - p.sqrt()[:, :, None] * p.sqrt()[:, None, :])
        rows = torch.einsum("nir,nd->nrid", root, features).flatten(0, 1)
        _, sizes, vectors = torch.linalg.svd(rows.flatten(1), full_matrices=True)
        values = torch.cat([sizes.square(), sizes.new_zeros(len(vectors))])[: len(vectors)]
        components = torch.einsum("nd,rid->nir", test, vectors.reshape(-1, *rows.shape[1:]))
        gaps = components[:, :, None] - components[:, None]  # (n, k, k, r)
        pairs = (gaps.square() / (values + 1 / prior_variance)).sum(3)
    z = (test_logits[:, :, None] - test_logits[:, None, :]) / (1 + KAPPA * pairs).sqrt()
    return (-torch.logsumexp(-z, 2)).softmax(1)


@pytest.mark.parametrize("prior_variance", [1e4, 1.1e4, 1e8, 1e10, 1e12])
@pytest.mark.parametrize("structure, k", [("full", 1), ("kron", 3), ("kron", 10), ("full", 3)])
def test_wide_priors_in_float32_give_the_probabilities_of_float64(structure, k, prior_variance):
    torch.manual_seed(k)
    model = nn.Linear(FEATURES, k)
    with torch.no_grad():
        model.weight *= 3
    x, y = torch.randn(POINTS, FEATURES), torch.arange(POINTS) % max(k, 2)
    bayes = bb.Laplace(model, structure=structure, prior_variance=prior_variance, residual=False)
    bayes.fit([(x, y)])
    # What was seen; almost that, so that the rest has a variance of about 1; multiples of it; and all else.
    almost = x + 3 * torch.randn_like(x) / (prior_variance * FEATURES) ** 0.5
    test = torch.cat([x, almost, 3 * x, torch.randn(POINTS, FEATURES)])
    with torch.no_grad():
        logits, test_logits = model(x).double(), model(test).double()
    features, test_features = (torch.cat([each, torch.ones(len(each), 1)], 1).double() for each in (x, test))
    wanted = expected(structure, features, logits, test_features, test_logits, prior_variance)
    found = bayes.predict_proba(test).double()
    # The network's logits, some tens, are good to 1e-6 in float32, and squares and sums to a few times 6e-8.
    # Eigenvalues that are 0 come out as eps of the largest, times Λ ≤ 1/4, beside 1/σ₀²; a relative error of
    # the variance moves a probability by at most 0.12 times as much.
    largest = float(torch.linalg.matrix_norm(features, 2)) ** 2
    rounding = 2e-6 + 0.03 * torch.finfo(torch.float64).eps * largest * prior_variance
    assert float((found - wanted).abs().max()) < rounding
    for method in (bayes, lambda inputs: bayes.predict_proba([inputs])):  # the drop-in, and a loader
        with torch.no_grad():
            again = method(test).double()
        if method is bayes:
            again = again.softmax(1) if k > 1 else torch.cat([(-again).sigmoid(), again.sigmoid()], 1)
        assert float((again - wanted).abs().max()) < rounding

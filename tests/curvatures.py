"""Points for curvatures, and what a structure makes of them."""

import pytest
import torch

import reference
from bitbayes.likelihoods import likelihood_for
from bitbayes.structures import CURVATURES, LowRankCurvature, lowrank


def points(k):
    """Features (50, 6) and logits (50, k) in float32, and Λ (50, k, k) by autograd in float64."""
    torch.manual_seed(k)
    features, logits = torch.randn(50, 6), torch.randn(50, k)
    return features, logits, reference.logit_hessians(logits.double(), torch.zeros(50).long())


def sums(structure, features, logits):
    """The tensors of the curvature."""
    return CURVATURES[structure].of_features(features, logits, likelihood_for(logits.shape[1])).tensors()


def probabilities(n, k, gain=1.0, seed=0):
    """p (n, k) of made logits; the larger the gain, the more confident."""
    generator = torch.Generator().manual_seed(seed)
    return (gain * torch.randn(n, k, generator=generator, dtype=torch.float64)).softmax(1)


def of_probabilities(p, rank, block=20):
    """What is kept of points with these probabilities, which come in blocks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lowrank, "RANK", rank)
        features = torch.ones(len(p), 1, dtype=torch.float64)
        total, *others = (
            LowRankCurvature.of_features(features[: len(part)], part.log(), likelihood_for(p.shape[1]))
            for part in torch.split(p, block)
        )
        return sum(others, total)


def smallest_eigenvalue(matrix):
    return float(torch.linalg.eigvalsh(matrix)[0])

"""Points for curvatures, and what a structure makes of them."""

import torch

import reference
from bitbayes.likelihoods import likelihood_for
from bitbayes.structures import CURVATURES


def points(k):
    """Features (50, 6) and logits (50, k) in float32, and Λ (50, k, k) by autograd in float64."""
    torch.manual_seed(k)
    features, logits = torch.randn(50, 6), torch.randn(50, k)
    return features, logits, reference.logit_hessians(logits.double(), torch.zeros(50).long())


def sums(structure, features, logits):
    """The tensors of the curvature."""
    return CURVATURES[structure].of_features(features, logits, likelihood_for(logits.shape[1])).tensors()

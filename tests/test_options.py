"""Options that do not exist or do not go together, and numbers that can be set at any time."""

import math

import numpy
import pytest
import torch

import bitbayes as bb
import dense
from bitbayes.errors import ArgumentError, ModelError, NotFittedError
from classifiers import relu_mlp
from dense import loader


def test_options_that_do_not_go_together_raise():
    model, x, y = dense.case("mlp")
    with pytest.raises(ArgumentError, match="isotropic"):
        bb.Laplace(model, layers="all", structure="isotropic")
    with pytest.raises(ArgumentError, match="fisher"):
        bb.Laplace(model, curvature="fisher")
    with pytest.raises(ArgumentError, match="weights"):
        bb.Laplace(model, predictive="weights")
    with pytest.raises(ArgumentError, match="weights"):
        bb.Laplace(model).fit(loader(x, y)).predict_proba(x, method="weights")
    with pytest.raises(NotFittedError):
        bb.Laplace(model, layers="all").predict_proba(x)
    with pytest.raises(ModelError, match="no parameter of the model requires a gradient"):
        bb.Laplace(model.requires_grad_(False), layers="all").fit(loader(x, y))


def test_residual_thresholds_below_zero_infinite_or_not_scalar_raise():
    bayes = bb.Laplace(relu_mlp(), residual=True)
    for bad in (torch.zeros(2), -1.0, math.inf):
        with pytest.raises(ArgumentError, match="residual_threshold"):
            bayes.residual_threshold = bad
    for zero in (0, 0.0, numpy.float32(0), torch.tensor(0.0)):
        bayes.residual_threshold = zero
        assert bayes.residual_threshold == 0.0

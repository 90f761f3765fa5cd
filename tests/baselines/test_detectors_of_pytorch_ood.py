"""Scores are those of pytorch-ood, up to the sign and the constant factors that its pages name."""

import importlib
import sys
from importlib.util import find_spec, module_from_spec

import pytest
import torch

from bitbayes.baselines.detectors import DETECTORS

if find_spec("pytorch_ood") is None:
    pytest.skip("pytorch-ood is not installed: `make test` installs it", allow_module_level=True)


def imported_detectors():
    """Its detectors alone: the package imports torchvision, which no CPU build of torch can load."""
    sys.modules["pytorch_ood"] = module_from_spec(find_spec("pytorch_ood"))  # with its folder, and not run
    return importlib.import_module("pytorch_ood.detector")


theirs = imported_detectors()
K, D, N = 5, 12, 300


@pytest.fixture
def training():
    labels = torch.arange(N) % K
    features = torch.randn(K, D, dtype=torch.float64)[labels] + torch.randn(N, D, dtype=torch.float64)
    return features, labels, 0.3 * torch.randn(K, D, dtype=torch.float64), torch.randn(K, dtype=torch.float64)


@pytest.fixture
def points():
    return 2 * torch.randn(40, D, dtype=torch.float64)


@pytest.mark.parametrize(
    "name, their_score",
    [
        ("max-logit", lambda logits: theirs.MaxLogit(None).predict_logits(logits)),
        ("energy", lambda logits: theirs.EnergyBased(None).predict_logits(logits)),
        # It takes the mean of the terms, not the sum.
        ("gen", lambda logits: K * theirs.GEN(None, M=100).predict_logits(logits)),
    ],
)
def test_scores_of_logits(name, their_score, training, points):
    _, _, weight, bias = training
    logits = points @ weight.T + bias
    # It looks at no probability beyond 1e-7 and 1 − 1e-7: none of these is.
    assert logits.softmax(1).min() > 1e-6 and logits.softmax(1).max() < 1 - 1e-6
    ours = DETECTORS[name].fit(*training).score(points)
    torch.testing.assert_close(ours, -their_score(logits), rtol=1e-12, atol=0)


def test_neighbours(training, points):
    features, labels, *_ = training
    expected = -theirs.KNN(None, k=50).fit_features(features, labels).predict_features(points)
    torch.testing.assert_close(DETECTORS["knn"].fit(*training).score(points), expected, rtol=1e-12, atol=0)


def test_mahalanobis_distances(training, points):
    """Its covariance is a sum over the data, its distance is halved, and it computes in float32."""
    features, labels, *_ = training
    detector = theirs.Mahalanobis(None).fit_features(features.float(), labels)
    expected = -2 * N * detector.predict_features(points.float()).double()
    found = DETECTORS["mahalanobis"].fit(*training).score(points)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=0)


def test_relative_mahalanobis_distances(training, points):
    """Its covariances are sums over the data, and it computes in float32."""
    features, labels, *_ = training
    detector = theirs.RMD(None).fit_features(features.float(), labels)
    expected = -N * detector.predict_features(points.float()).double()
    distances = DETECTORS["mahalanobis"].fit(*training).score(points).abs()
    found = DETECTORS["relative-mahalanobis"].fit(*training).score(points)
    # A difference of two distances of about this size.
    assert bool(((found - expected).abs() <= 1e-4 * distances).all())
    assert float((found.abs() / distances).min()) > 1e-3


def test_virtual_logits(training, points):
    """In float32, as it computes; D is half of the width here as there."""
    features, labels, weight, bias = training
    detector = theirs.ViM(None, d=D // 2, w=weight, b=bias).fit_features(features, labels)
    ours = DETECTORS["vim"].fit(*training)
    assert float(ours.alpha) == pytest.approx(detector.alpha, rel=1e-4)
    expected = -detector.predict_features(points).double()
    torch.testing.assert_close(ours.score(points), expected, rtol=1e-4, atol=1e-4)

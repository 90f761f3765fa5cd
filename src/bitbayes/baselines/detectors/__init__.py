"""Detectors of outliers to compare with: scores of the last layer's features and logits.

Each detector is fitted on the features and labels of the training data and on the last layer. It gives each
row of features (n, d) a score, which is larger for rows that are more like the data.

>>> import torch
>>> from bitbayes.baselines.detectors import DETECTORS
>>> _ = torch.manual_seed(0)
>>> features, labels, layer = torch.randn(200, 8), torch.arange(200) % 3, torch.nn.Linear(8, 3)
>>> detector = DETECTORS["mahalanobis"].fit(features, labels, layer.weight, layer.bias)
>>> scores = detector.score(torch.stack([features[0], 100 * features[0]]))
>>> detector.title, bool(scores[0] > scores[1])
('Mahalanobis', True)
"""

from bitbayes.baselines.detectors.base import Detector
from bitbayes.baselines.detectors.by_logits import GEN, Energy, MaxLogit
from bitbayes.baselines.detectors.knn import KNN
from bitbayes.baselines.detectors.mahalanobis import Mahalanobis
from bitbayes.baselines.detectors.relative_mahalanobis import RelativeMahalanobis
from bitbayes.baselines.detectors.vim import ViM

DETECTORS: dict[str, type[Detector]] = {
    "max-logit": MaxLogit,
    "energy": Energy,
    "gen": GEN,
    "mahalanobis": Mahalanobis,
    "relative-mahalanobis": RelativeMahalanobis,
    "knn": KNN,
    "vim": ViM,
}

__all__ = [
    "DETECTORS",
    "GEN",
    "KNN",
    "Detector",
    "Energy",
    "Mahalanobis",
    "MaxLogit",
    "RelativeMahalanobis",
    "ViM",
]

"""scikit-learn estimators: a network, trained here or before, with a Gaussian over its weights."""

from bitbayes.sklearn.classifier import LaplaceClassifier
from bitbayes.sklearn.regressor import LaplaceRegressor

__all__ = ["LaplaceClassifier", "LaplaceRegressor"]

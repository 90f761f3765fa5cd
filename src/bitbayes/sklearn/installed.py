"""What is used of scikit-learn, which has no types and need not be installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bitbayes.errors import MissingPackageError

if TYPE_CHECKING:

    class BaseEstimator:
        """The part of scikit-learn's class that mypy needs."""

        def __sklearn_tags__(self) -> Any: ...

    class ClassifierMixin: ...

    class RegressorMixin: ...

    class MultiOutputMixin: ...

    check_random_state: Any
    train_test_split: Any
    check_is_fitted: Any
    check_classification_targets: Any
    validate_data: Any
else:
    try:
        from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
        from sklearn.model_selection import train_test_split
        from sklearn.utils import check_random_state
        from sklearn.utils.multiclass import check_classification_targets
        from sklearn.utils.validation import check_is_fitted, validate_data
    except ImportError as error:
        raise MissingPackageError(
            "bitbayes.sklearn needs scikit-learn: install bitbayes with its extra 'sklearn'"
        ) from error

__all__ = [
    "BaseEstimator",
    "ClassifierMixin",
    "MultiOutputMixin",
    "RegressorMixin",
    "check_classification_targets",
    "check_is_fitted",
    "check_random_state",
    "train_test_split",
    "validate_data",
]

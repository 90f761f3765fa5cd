"""The prior N(0, σ₀²) over the weights: one variance for all layers, or one for each."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bitbayes.errors import ArgumentError

# So far apart that an optimum at the edge means that the data do not determine a variance.
SMALLEST_VARIANCE, LARGEST_VARIANCE = 1e-6, 1e10

# A tensor if the evidence is differentiated in it.
Variance = float | Tensor
LayerNames = Callable[[], tuple[str, ...] | None]


@dataclass(frozen=True)
class Prior:
    """`variance` σ₀²: a number, or one for each layer by name; None is 1, until one is chosen."""

    variance: Variance | Mapping[str, Variance] | None

    def of(self, layer: str) -> Variance:
        """The layer's own σ₀².

        >>> Prior(2.0).of("fc"), Prior({"conv": 1.0, "fc": 3.0}).of("fc")
        (2.0, 3.0)
        """
        if isinstance(self.variance, Mapping):
            return self.variance[layer]
        return 1.0 if self.variance is None else self.variance

    def precision(self, layer: str, dtype: torch.dtype) -> float:
        """τ = 1/σ₀² of a layer, large enough that no variance overflows the dtype."""
        return max(1 / float(self.of(layer)), smallest_precision(dtype))


def smallest_precision(dtype: torch.dtype) -> float:
    """The smallest precision 1/variance that is used in a dtype: variances above its inverse would overflow.

    In float32 it is about 4e-29. Predictions reach their limit for wide priors long before.
    """
    return float(torch.finfo(dtype).tiny ** 0.75)


def variance_grid(
    count: int, smallest: float = SMALLEST_VARIANCE, largest: float = LARGEST_VARIANCE
) -> list[float]:
    """Candidates for a variance, evenly spaced in the logarithm.

    >>> [f"{value:.0e}" for value in variance_grid(3)]
    ['1e-06', '1e+02', '1e+10']
    """
    low, high = math.log(smallest), math.log(largest)
    return [math.exp(low + (high - low) * i / (count - 1)) for i in range(count)]


def positive(value: object, name: str, *, zero: bool = False) -> float:
    """Return the value as a float; raise unless it is a positive, finite number.

    Args:
        value: what the user gave.
        name: of the option, for the message.
        zero: whether 0 is allowed too.
    """
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, RuntimeError):
        number = math.nan
    if not (math.isfinite(number) and (number > 0 or (zero and number == 0))):
        raise ArgumentError(f"{name}={value!r}: expected a positive, finite number{', or 0' if zero else ''}")
    return number


def check_variance(value: object, layer_names: LayerNames) -> float | dict[str, float]:
    """Return a prior variance as a float, or as a dict of floats; raise if it is neither, or not positive.

    Args:
        value: what the user gave.
        layer_names: returns the names that a mapping must have, or None if only one number is allowed.
    """
    if not isinstance(value, Mapping):
        return positive(value, "prior_variance")
    names = _check_names(value, layer_names())
    return {name: positive(value[name], "prior_variance") for name in names}


def differentiable(value: object, layer_names: LayerNames) -> Prior:
    """The prior with variances as float64 scalars. Those given as tensors keep their autograd graph."""
    if not isinstance(value, Mapping):
        return Prior(_scalar(value))
    return Prior({name: _scalar(value[name]) for name in _check_names(value, layer_names())})


def _check_names(values: Mapping[str, object], names: tuple[str, ...] | None) -> tuple[str, ...]:
    if names is None:
        raise ArgumentError(
            f"prior_variance={dict(values)!r}: a variance for each layer needs layers='all' and "
            "structure='kron' or 'diag'; give one number"
        )
    missing, unknown = [n for n in names if n not in values], [n for n in values if n not in names]
    if missing or unknown:
        wrong = [f"names {unknown}, which are no layers"] if unknown else []
        wrong += [f"lacks {missing}"] if missing else []
        raise ArgumentError(f"prior_variance {' and '.join(wrong)}: give each of {list(names)}")
    return names


def _scalar(value: object) -> Tensor:
    if not isinstance(value, Tensor):
        return torch.tensor(positive(value, "prior_variance"), dtype=torch.float64)
    if value.numel() != 1 or not bool((value > 0) & value.isfinite()):
        raise ArgumentError(f"prior_variance={value!r}: expected one positive number")
    return value.double().reshape(())


def check_noise_variance(value: object) -> float | tuple[float, ...]:
    """Return a noise variance as a float, or as floats, one for each output; raise if one is not positive.

    >>> check_noise_variance(1), check_noise_variance([1, 2])
    (1.0, (1.0, 2.0))
    """
    given = value
    if hasattr(value, "tolist"):  # a tensor, or an array
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        if not value:
            raise ArgumentError(f"noise_variance={given!r}: expected one number, or one for each output")
        return tuple(positive(each, "noise_variance") for each in value)
    return positive(value, "noise_variance")

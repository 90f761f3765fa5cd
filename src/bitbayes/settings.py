"""What was chosen: the numbers of a `Laplace` that can be set at any time, as one frozen value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol, Self, overload

import torch
from torch import Tensor

from bitbayes.logits import LogitGaussian
from bitbayes.prior import positive


@dataclass(frozen=True)
class Settings:
    """The numbers that `tune` chooses, predictions use, and files hold. Changing them needs no new fit.

    prior_variance: σ₀² of the weights, one number or one for each layer by name. It is None until one is
        chosen; predictions then use 1.
    temperature: the mean logits are divided by it before the average is taken. Their variance is not.
    residual_variance, residual_threshold: the residual adds
        residual_variance·max(0, k(x) − residual_threshold) to the variance of every logit.

    >>> Settings(prior_variance=2, temperature=0.5)
    Settings(prior_variance=2.0, temperature=0.5, residual_variance=0.0, residual_threshold=0.0)
    """

    prior_variance: float | dict[str, float] | None = None
    temperature: float = 1.0
    residual_variance: float = 0.0
    residual_threshold: float = 0.0

    def __post_init__(self) -> None:
        checked: dict[str, Any] = {"temperature": positive(self.temperature, "temperature")}
        for name in ("residual_variance", "residual_threshold"):
            checked[name] = positive(getattr(self, name), name, zero=True)
        prior = self.prior_variance
        if isinstance(prior, Mapping):
            checked["prior_variance"] = {
                name: positive(each, "prior_variance") for name, each in prior.items()
            }
        elif prior is not None:
            checked["prior_variance"] = positive(prior, "prior_variance")
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def complete(self, gaussian: LogitGaussian, root_kernel: Tensor | None) -> LogitGaussian:
        """The Gaussian with the temperature and the residual applied.

        Args:
            gaussian: over the logits at n points, from the weights alone.
            root_kernel: √k(x) (n,) of the residual; None without one.
        """
        if root_kernel is None or not self.residual_variance:
            return gaussian.at_temperature(self.temperature)
        deviations = self.residual_deviations(root_kernel)
        return gaussian.at_temperature(self.temperature).plus_independent(deviations)

    def residual_deviations(self, root_kernel: Tensor) -> Tensor:
        """√(σ²·max(0, k − threshold)), (n,), from √k (n,)."""
        # The floor is for the derivative of the root, which is infinite at 0.
        beyond = root_kernel.square() - self.residual_threshold
        beyond = beyond.clamp_min(torch.finfo(root_kernel.dtype).tiny)
        return beyond.sqrt() * math.sqrt(self.residual_variance)

    def as_json(self) -> dict[str, float | dict[str, float] | None]:
        """The numbers for a JSON file."""
        return asdict(self)


class HasSettings(Protocol):
    """What `SettingAttribute` needs of a `Laplace`."""

    settings: Settings


class SettingAttribute:
    """One of the settings as an attribute of a `Laplace`: setting it replaces the settings as a whole."""

    def __init__(self, doc: str) -> None:
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, laplace: None, owner: type) -> Self: ...
    @overload
    def __get__(self, laplace: HasSettings, owner: type) -> float: ...
    def __get__(self, laplace: HasSettings | None, owner: type) -> float | Self:
        if laplace is None:
            return self
        value: float = getattr(laplace.settings, self.name)
        return value

    def __set__(self, laplace: HasSettings, value: float | Tensor) -> None:
        changed: dict[str, Any] = {self.name: value}
        laplace.settings = replace(laplace.settings, **changed)

"""What was chosen: the numbers of a `Laplace` that can be set at any time, as one frozen value."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol, Self, overload

import torch
from torch import Tensor

from bitbayes.errors import ArgumentError
from bitbayes.logits import LogitGaussian
from bitbayes.prior import check_noise_variance, positive

# How much the distance counts in the score, and how quickly the score saturates: see `Settings.score`.
DISTANCE_WEIGHT, SATURATION = 4.0, 2.0
# The largest distance, and the largest cube of one in units of the edge, that the score tells from smaller
# ones: the cube of the distance is finite times any weight, and so is the square of that cube.
LARGEST_DISTANCE, LARGEST_CUBE = 1e80, 1e150
# The distance from the classes counts up to so many deviations. What is further from all classes is further
# from all data, too, and the score takes the logarithm of that.
MOST_UNUSUAL = 10.0


@dataclass(frozen=True)
class Settings:
    """The numbers that `tune` chooses, predictions use, and files hold. Changing them needs no new fit.

    The residual adds v(x) to the variance of every logit, from the distances dₗ of x at the levels l:
    v(x) = near_variance·K(x) + beyond_variance·Σₗ max(0, (dₗ/thresholdₗ)³ − 1), with K(x) = Σₗ levelₗ·dₗ³.

    prior_variance: σ₀² of the weights, one number or one for each layer by name. It is None until one is
        chosen; predictions then use 1.
    temperature: the mean logits are divided by it before the average is taken. Their variance is not.
    class_bias: bᵢ, one number for each logit, added to the mean logits before they are divided by the
        temperature, as if the last layer had another bias: (fᵢ + bᵢ)/T. None is 0. The score and the residual
        do not see it: neither how often a class occurs nor what a mistake costs makes an input a stranger.
    near_variance: that of a logit at the edge of the data, where K = 1.
    beyond_variance: that of the steep term.
    levels: the weight of each level in K, by its name. Without any, all have the same.
    thresholds: the distance at which the steep term begins, by the name of the level.
    score_centre, score_spread: the median and the deviation of the energy on the validation data, for
        `score`; None until they are chosen.
    score_edge: the largest levelₗ·dₗ³ of a point at the edge of the data, for `score`.
    noise_variance: σ² of the targets in regression, one number or one for each output. It is None until one
        is chosen; predictions then use the mean squared error on the training data. The prior variance of a
        weight is then σ₀²σ².
    class_centre, class_spread: the median and the deviation of the distance from the classes on the
        validation data, for `score`. It is the last of the levels. None if there is no such distance.

    >>> Settings(prior_variance=2, temperature=0.5).temperature
    0.5
    """

    prior_variance: float | dict[str, float] | None = None
    temperature: float = 1.0
    near_variance: float = 0.0
    beyond_variance: float = 0.0
    levels: dict[str, float] = field(default_factory=dict)
    thresholds: dict[str, float] = field(default_factory=dict)
    score_centre: float | None = None
    score_spread: float | None = None
    score_edge: float = 1.0
    class_centre: float | None = None
    class_spread: float | None = None
    noise_variance: float | tuple[float, ...] | None = None
    class_bias: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        checked: dict[str, Any] = {"temperature": positive(self.temperature, "temperature")}
        for name in ("near_variance", "beyond_variance"):
            checked[name] = positive(getattr(self, name), name, zero=True)
        checked["levels"] = _numbers(self.levels, "levels", zero=True)
        checked["thresholds"] = _numbers(self.thresholds, "thresholds")
        checked["score_edge"] = positive(self.score_edge, "score_edge")
        for kind in ("score", "class"):
            centre, spread = (getattr(self, f"{kind}_{name}") for name in ("centre", "spread"))
            if spread is not None:
                checked[f"{kind}_spread"] = positive(spread, f"{kind}_spread")
                checked[f"{kind}_centre"] = 0.0
            if centre is not None:
                checked[f"{kind}_centre"] = _finite(centre, f"{kind}_centre")
        if self.noise_variance is not None:
            checked["noise_variance"] = check_noise_variance(self.noise_variance)
        if self.class_bias is not None:
            checked["class_bias"] = _bias(self.class_bias)
        prior = self.prior_variance
        if isinstance(prior, Mapping):
            checked["prior_variance"] = _numbers(prior, "prior_variance")
        elif prior is not None:
            checked["prior_variance"] = positive(prior, "prior_variance")
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def has_residual(self) -> bool:
        """Whether the residual adds anything."""
        return self.near_variance > 0 or self.beyond_variance > 0

    def complete(self, gaussian: LogitGaussian, distances: Tensor | None) -> LogitGaussian:
        """The Gaussian with the class bias, the temperature and the residual applied.

        Args:
            gaussian: over the logits at n points, from the weights alone; in units of the noise, if there is
                a noise variance.
            distances: (n, levels) in float64, in the order of `levels`, or (n, 2, levels) of pairs; None
                without a residual.
        """
        gaussian = gaussian.at_temperature(self.temperature, self.bias_like(gaussian.scaled_mean))
        if distances is not None and self.has_residual:
            # The floor is for the derivative of the root, which is infinite at 0.
            variances = self.residual_variances(distances).clamp_min(torch.finfo(distances.dtype).tiny)
            gaussian = gaussian.plus_independent(variances.sqrt())
        if self.noise_variance is None:
            return gaussian
        k = gaussian.scaled_mean.shape[1]
        noise = self.noise_variances(gaussian.scaled_mean)
        units = noise if len(noise) == k else torch.cat([noise, noise.new_ones(k - len(noise))])
        return gaussian.at_noise(units.sqrt(), len(noise))

    def bias_like(self, like: Tensor) -> Tensor | None:
        """The class bias, (k,), like a tensor; None without one."""
        return None if self.class_bias is None else _column(self.class_bias, like)

    def without_bias(self, gaussian: LogitGaussian) -> LogitGaussian:
        """What `complete` gives, less the class bias: the Gaussian that the score sees."""
        bias = self.bias_like(gaussian.scaled_mean)
        return gaussian if bias is None else gaussian.at_temperature(1.0, -bias / self.temperature)

    def noise_variances(self, like: Tensor) -> Tensor:
        """The noise variance of each output that has one, (m,), like a tensor (n, k)."""
        value = 1.0 if self.noise_variance is None else self.noise_variance
        several = value if isinstance(value, tuple) else (value,) * like.shape[1]
        return _column(several, like)

    def residual_variances(self, distances: Tensor) -> Tensor:
        """v(x), (n,), from distances (n, levels); v(a) + v(b) from those of pairs, (n, 2, levels)."""
        return self.variances_of_cubes(distances.pow(3))

    def variances_of_cubes(self, cubes: Tensor, one: Tensor | float = 1.0) -> Tensor:
        """v, (n,), from the cubes of the distances (n, levels), in units in which 1 is `one`.

        It grows with each of the cubes.
        """
        return self._shares_of_cubes(cubes, one).flatten(1).sum(1)

    def residual_shares(self, distances: Tensor) -> Tensor:
        """Each level's part of v(x), or of v(a) + v(b), (n, levels)."""
        shares = self._shares_of_cubes(distances.pow(3))
        return shares.sum(1) if shares.dim() == 3 else shares

    def _shares_of_cubes(self, cubes: Tensor, one: Tensor | float = 1.0) -> Tensor:
        shares = self.near_variance * self.weights(cubes) * cubes
        if self.beyond_variance and self.thresholds:
            unit = one[:, None] if isinstance(one, Tensor) else one
            beyond = cubes * _row(self.thresholds, cubes).pow(-3) - unit
            shares = shares + self.beyond_variance * beyond.clamp_min(0)
        return shares

    def weights(self, like: Tensor) -> Tensor:
        """The weights of the levels in K, (levels,), like a tensor (…, levels)."""
        if self.levels:
            return _row(self.levels, like)
        return like.new_full((like.shape[-1],), 1 / like.shape[-1])

    def counting(self, levels: int) -> list[bool]:
        """Whether each of so many levels adds to v(x) anywhere."""
        weights = [*self.levels.values()] or [1.0] * levels
        beyond = self.beyond_variance > 0 and bool(self.thresholds)
        return [beyond or (self.near_variance > 0 and each > 0) for each in weights]

    def score(self, energy: Tensor, distances: Tensor | None) -> Tensor:
        """−½ log(1 + e^(−2a)) − ½ log(1 + e^(2b)) − 4 log(1 + c²).

        a = (energy − centre)/spread is the energy, and b ≤ 10 the distance from the classes in the same way.
        c = maxₗ levelₗ·dₗ³/edge is the cube of the distance at the other level at which x is furthest. It is
        1 at the edge of the data. More energy than that of a typical point does not count: a stranger has it,
        too, if its logits are large. What counts is less of it, and more distance. c is squared, because
        within the data (c < 1) it says little: some strangers are nearer than most of the data. Without
        chosen numbers the score is the energy itself. Of a pair, the input that is further away counts.

        Args:
            energy: log Σ exp of the logits of "probit", (n,).
            distances: (n, levels), (n, 2, levels) of pairs, or None.
        """
        if self.score_spread is None or self.score_centre is None or distances is None:
            return energy
        typical = SATURATION * (energy - self.score_centre) / self.score_spread
        furthest = self.furthest(distances) / self.score_edge
        # In float64, in which it does not saturate: what is further away has the smaller score.
        penalty = DISTANCE_WEIGHT * furthest.clamp_max(LARGEST_CUBE).square().log1p()
        if self.class_spread is not None and self.class_centre is not None:
            unusual = (distances[:, -1] - self.class_centre) / self.class_spread
            unusual = SATURATION * unusual.clamp_max(MOST_UNUSUAL)
            # log(1 + e^x), in a form that does not overflow in exported graphs either.
            penalty = penalty + (unusual.clamp_min(0) + (-unusual.abs()).exp().log1p()) / SATURATION
        # log σ(x), in such a form, too: ONNX takes the logarithm of what has rounded to 0.
        known = typical.clamp_max(0) - (-typical.abs()).exp().log1p()
        return known / SATURATION - penalty.to(energy)

    def furthest(self, distances: Tensor) -> Tensor:
        """maxₗ levelₗ·dₗ³, (n,), from distances (n, …, levels), over all levels but the classes."""
        cubes = distances.clamp_max(LARGEST_DISTANCE).pow(3) * self.weights(distances)
        if self.class_spread is not None and cubes.shape[1] > 1:
            cubes = cubes[:, :-1]
        return cubes.flatten(1).amax(1)

    def in_order_of(self, names: tuple[str, ...]) -> Settings:
        """The settings with their levels in this order; raises a `KeyError` if they have others."""
        for value in (self.levels, self.thresholds):
            if value and (others := value.keys() ^ set(names)):
                raise KeyError(min(others))
        parts = {
            key: {name: value[name] for name in names}
            for key, value in (("levels", self.levels), ("thresholds", self.thresholds))
            if value
        }
        return replace(self, **parts)  # type: ignore[arg-type]

    def as_json(self) -> dict[str, float | tuple[float, ...] | dict[str, float] | None]:
        """The numbers for a JSON file."""
        return asdict(self)


def _finite(value: float, name: str) -> float:
    """The value as a float; raises unless it is a finite number."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        number = math.nan
    if not math.isfinite(number):
        raise ArgumentError(f"{name}={value!r}: expected a finite number")
    return number


def _row(values: Mapping[str, float], like: Tensor) -> Tensor:
    """The values of a mapping as a tensor."""
    return _column(values.values(), like)


def _column(values: Iterable[float], like: Tensor) -> Tensor:
    """The values as a tensor, without waiting for the device, as `new_tensor` does."""
    return torch.stack([like.new_full((), each) for each in values])


def _bias(values: Sequence[float] | Tensor) -> tuple[float, ...]:
    """One finite number for each logit; raises if these are none."""
    if isinstance(values, Tensor):
        values = values.tolist() if values.dim() == 1 else []
    if not isinstance(values, Sequence) or isinstance(values, str) or not values:
        raise ArgumentError(f"class_bias={values!r}: expected a number for each logit, in their order")
    return tuple(_finite(each, "class_bias") for each in values)


def _numbers(values: Mapping[str, float], name: str, *, zero: bool = False) -> dict[str, float]:
    if not isinstance(values, Mapping):
        raise ArgumentError(f"{name}={values!r}: expected a number for each name")
    return {key: positive(each, name, zero=zero) for key, each in values.items()}


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

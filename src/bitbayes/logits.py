"""A Gaussian over logits in factored form: what every posterior gives and every predictive takes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from bitbayes.errors import ArgumentError

NO_CROSS_COVARIANCE = (
    "structure='lowrank' knows the variances of the logits, and not how two of them vary together. Choose "
    "'meanfield', 'probit' or 'bridge' to predict, and `score` to reject; or use structure='kron' or 'diag'"
)


class CovarianceFactors(NamedTuple):
    """The covariance of logits in factors: C = Q diag(w) Qᵀ + shift · 11ᵀ + independent · I.

    weights: w (n, r), never negative.
    factor: Q, (k, r) shared by all points, (n, k, r) one for each, or None for the identity (r = k).
    shift: (n,), the variance of a common shift of all logits, which changes no softmax.
    independent: (n,), the variance of independent noise on every logit, or None.
    table: (k, r), if only variances are known: those of the centred logits are w tableᵀ, and the common
        shift is independent of them. `factor` is then None.
    """

    weights: Tensor
    factor: Tensor | None
    shift: Tensor
    independent: Tensor | None = None
    table: Tensor | None = None


@dataclass(frozen=True)
class LogitGaussian:
    """The Gaussian over the logits at n points: its mean (n, k) and its covariance (n, k, k).

    `mean`, `covariance`, `variances()` and `draw()` are computed when they are used. The covariance is dense:
    for many classes `variances()` needs less memory.

    Inside, everything is in units of `scale` (n,): `scaled_mean` is mean/scale, and `factors` give
    covariance/scale². So no variance is too large for a float, and large entries are never subtracted. Names
    that begin with `scaled_` are in these units.

    >>> import bitbayes as bb
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> x, y = torch.randn(20, 4), torch.arange(20) % 3
    >>> bayes = bb.Laplace(torch.nn.Linear(4, 3)).fit(DataLoader(TensorDataset(x, y), batch_size=10))
    >>> gaussian = bayes.logits(x)
    >>> tuple(gaussian.mean.shape), tuple(gaussian.covariance.shape)
    ((20, 3), (20, 3, 3))
    >>> tuple(gaussian.draw(100, torch.Generator().manual_seed(0)).shape)
    (100, 20, 3)
    """

    scaled_mean: Tensor
    factors: CovarianceFactors
    scale: Tensor

    @classmethod
    def stacked(cls, gaussians: list[LogitGaussian]) -> LogitGaussian:
        """The points of all Gaussians, stacked. A factor that points share must be the same in all."""
        factors = [each.factors for each in gaussians]
        factor, table = factors[0].factor, factors[0].table
        if factor is not None and factor.dim() == 3:
            factor = torch.cat([each.factor for each in factors if each.factor is not None])
        weights, shift = (
            torch.cat(each) for each in zip(*((f.weights, f.shift) for f in factors), strict=True)
        )
        independent = None
        if any(each.independent is not None for each in factors):
            own = (
                f.shift.new_zeros(()).expand_as(f.shift) if f.independent is None else f.independent
                for f in factors
            )
            independent = torch.cat([*own])
        mean, scale = (
            torch.cat(each) for each in zip(*((g.scaled_mean, g.scale) for g in gaussians), strict=True)
        )
        return cls(mean, CovarianceFactors(weights, factor, shift, independent, table), scale)

    @classmethod
    def of_pair(cls, variance: Tensor, scale: Tensor) -> LogitGaussian:
        """Two logits at n points, ½ and −½, whose difference has this variance; all in units of scale."""
        half = torch.full_like(variance, 0.5)
        weights = (variance / 2)[:, None].expand(-1, 2)
        factors = CovarianceFactors(weights, None, torch.zeros_like(variance))
        return cls(torch.stack([half, -half], dim=1), factors, scale)

    @property
    def covariance(self) -> Tensor:
        """The covariance of the logits at each point, (n, k, k)."""
        weights, _, shift, independent, _ = self.factors
        factor = self._dense_factor()
        covariance = (factor * weights[:, None, :]) @ factor.mT + shift[:, None, None]
        if independent is not None:
            covariance.diagonal(dim1=1, dim2=2).add_(independent[:, None])
        return covariance * self.scale.square()[:, None, None]

    @property
    def mean(self) -> Tensor:
        """The mean of the logits at each point, (n, k)."""
        return self.scaled_mean * self.scale[:, None]

    def variances(self) -> Tensor:
        """Return the variances of the logits, (n, k): the diagonal of the covariance."""
        return (self.scaled_variances() + self.factors.shift[:, None]) * self.scale.square()[:, None]

    def deviations(self) -> Tensor:
        """Return the standard deviations of the logits, (n, k), also where their squares overflow."""
        scaled = (self.scaled_variances() + self.factors.shift[:, None]).clamp_min(
            torch.finfo(self.scale.dtype).tiny
        )
        largest = torch.finfo(self.scale.dtype).max / 4
        return (scaled.sqrt() * self.scale[:, None]).clamp_max(largest)

    def draw(self, samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Return draws of the logits, (samples, n, k), independent for each point.

        Args:
            samples: the number of draws.
            generator: of the random numbers.
        """
        drawn = self.scaled_draws(samples, generator)
        shift = _noise(self.factors.shift[:, None], samples, generator)  # (samples, n, 1)
        return (drawn + shift) * self.scale[:, None]

    @property
    def floor(self) -> Tensor:
        """1 / scale², (n,): the 1 of 1 + π/8·v, in the units of v; never 0, which v may be."""
        return self.scale.reciprocal().square().clamp_min(torch.finfo(self.scale.dtype).tiny)

    def at_temperature(self, temperature: float, class_bias: Tensor | None = None) -> LogitGaussian:
        """The Gaussian with the mean (m + b)/T and the same covariance.

        Args:
            temperature: T.
            class_bias: b (k,); None is 0.
        """
        mean = self.scaled_mean
        if class_bias is not None:  # a constant, which vanishes beside what is large
            mean = mean + class_bias.to(mean) / self.scale[:, None]
        elif temperature == 1:
            return self
        largest = torch.finfo(mean.dtype).max / 2
        return replace(self, scaled_mean=(mean / temperature).clamp(-largest, largest))

    def at_noise(self, deviations: Tensor, values: int) -> LogitGaussian:
        """The Gaussian with the same mean, and each covariance Cᵢⱼ multiplied by sᵢsⱼ.

        Args:
            deviations: s (k,), the standard deviations of the noise that the covariance is in units of. There
                is no common shift of the outputs then.
            values: of how many of the first outputs the independent variance is. Others have none of it.
        """
        weights, factor, shift, independent, _ = self.factors
        deviations = deviations.to(weights)
        counts = (torch.arange(len(deviations), device=weights.device) < values).to(weights)
        own = torch.diag(deviations * counts)
        if factor is None:
            weights = weights if independent is None else weights + independent[:, None] * counts
            return replace(self, factors=CovarianceFactors(weights * deviations.square(), None, shift))
        factor = deviations[:, None] * factor
        if independent is not None:  # a column of its own for each output
            weights = torch.cat([weights, independent[:, None].expand(-1, len(own))], dim=1)
            # Not `len`, which a trace would take as fixed.
            own = own if factor.dim() == 2 else own.expand(factor.shape[0], -1, -1)
            factor = torch.cat([factor, own], dim=-1)
        return replace(self, factors=CovarianceFactors(weights, factor, shift))

    def plus_independent(self, deviations: Tensor) -> LogitGaussian:
        """The Gaussian with a variance added to every logit, independent of all else.

        Args:
            deviations: the square root of that variance at each point, (n,), in float64. A root, because the
                variance itself may overflow.
        """
        weights, independent = self.factors.weights, self.factors.independent
        extra = (deviations / self.scale.to(deviations.device)).square()
        # Beyond this, every mean is negligible: means are a few units of scale.
        extra = extra.clamp_max(torch.finfo(weights.dtype).max ** 0.75).to(weights)
        extra = extra if independent is None else extra + independent
        return replace(self, factors=self.factors._replace(independent=extra))

    def scaled_centred(self) -> tuple[Tensor, Tensor]:
        """The logits less their average, P = I − 11ᵀ/k: Pm and the diagonal of PCP, (n, k) each.

        In units of scale and of scale².
        """
        weights, factor, _, independent, table = self.factors
        k = self.scaled_mean.shape[1]
        if table is not None:
            variances = weights @ table.to(weights).T
        elif factor is None:  # the diagonal of P diag(w) P
            variances = weights * (1 - 2 / k) + weights.sum(1, keepdim=True) / k**2
        else:
            variances = _diagonal(weights, factor - factor.mean(-2, keepdim=True))
        if independent is not None:  # the diagonal of P·I·P = P
            variances = variances + (1 - 1 / k) * independent[:, None]
        return centred(self.scaled_mean), variances

    def _dense_factor(self) -> Tensor:
        weights, factor, *_ = self._known_covariance()
        if factor is not None:
            return factor
        return torch.eye(weights.shape[1], dtype=weights.dtype, device=weights.device)

    def _known_covariance(self) -> CovarianceFactors:
        """The factors; raises where only variances are known."""
        if self.factors.table is None:
            return self.factors
        raise ArgumentError(NO_CROSS_COVARIANCE)

    def scaled_variances(self) -> Tensor:
        """The diagonal of the covariance, (n, k), in units of scale², without the common shift's part."""
        weights, factor, _, independent, table = self.factors
        if table is not None:
            variances = weights @ table.to(weights).T
        else:
            variances = weights if factor is None else _diagonal(weights, factor)
        return variances if independent is None else variances + independent[:, None]

    def of_output(self, number: int) -> LogitGaussian:
        """The Gaussian over one of the logits, without the common shift's part."""
        variance = self.scaled_variances()[:, number, None]
        factors = CovarianceFactors(variance, None, torch.zeros_like(self.scale))
        return LogitGaussian(self.scaled_mean[:, number, None], factors, self.scale)

    def scaled_pair_variances(self, first: Tensor | slice, second: Tensor | slice) -> Tensor:
        """Var(fᵢ − fⱼ) for the classes i in `first` and j in `second`, (n, pairs…), in units of scale².

        Both are indices of one shape, or slices, one of them of a single class. No class may be paired with
        itself: it would get the independent variance of two logits, and not 0.

        Σ_b w_b (Q_ib − Q_jb)²: never Cᵢᵢ + Cⱼⱼ − 2Cᵢⱼ, which loses all digits at large prior variances.
        """
        weights, factor, _, independent, _ = self._known_covariance()
        if factor is None:
            variances = weights[:, first] + weights[:, second]
        else:
            gaps = (factor[..., first, :] - factor[..., second, :]).square()  # (…, pairs…, r)
            if factor.dim() == 2:
                variances = (weights @ gaps.flatten(0, -2).T).reshape(-1, *gaps.shape[:-1])
            else:
                variances = torch.einsum("n...r,nr->n...", gaps, weights)
        if independent is not None:
            # Not `add(…, alpha=2)`: behind a product, torch.compile (2.13) loses that factor.
            variances = variances + 2 * independent.reshape(-1, *[1] * (variances.dim() - 1))
        return variances

    def scaled_mean_pair_variance(self) -> Tensor:
        """The mean of Var(fᵢ − fⱼ) over all pairs i ≠ j, (n,), in units of scale²: 2·tr(PCP)/(k − 1).

        With one logit it is the variance of that logit.
        """
        weights, factor, _, independent, table = self.factors
        k = self.scaled_mean.shape[1]
        if k == 1:
            return self.scaled_variances()[:, 0]
        if table is not None:
            mean = weights @ table.sum(0).to(weights) * (2 / (k - 1))
        elif factor is None:
            mean = 2 * weights.mean(1)
        else:
            sizes = (factor - factor.mean(-2, keepdim=True)).square().sum(-2) * (2 / (k - 1))  # (…, r)
            mean = weights @ sizes if factor.dim() == 2 else (weights * sizes).sum(1)
        return mean if independent is None else mean + 2 * independent

    def scaled_block_variances(self, first: slice, second: slice) -> Tensor:
        """Var(fᵢ − fⱼ) of every class i in `first` with every j in `second`, (n, first, second), for a graph.

        In an exported graph the gaps of `scaled_pair_variances` would be k²·r constants. So this is
        Cᵢᵢ + Cⱼⱼ − 2Cᵢⱼ, in float64 and without the common shift, which is what makes these entries large.
        Only classes that are strongly correlated lose digits, 1e-16 of their variances.
        """
        weights, factor = self.factors.weights.double(), self._dense_factor().double()
        own = (factor.square() @ weights[:, :, None])[:, :, 0]  # (n, k)
        both = (factor[..., first, :] * weights[:, None, :]) @ factor[..., second, :].mT
        variances = own[:, first, None] + own[:, None, second] - 2 * both
        variances = variances.clamp_min(0).to(self.scale.dtype)
        if (independent := self.factors.independent) is None:
            return variances
        classes = torch.arange(own.shape[1], device=own.device)
        apart = classes[first, None] != classes[None, second]
        return variances + 2 * independent[:, None, None] * apart

    def scaled_draws(
        self, samples: int, generator: torch.Generator | None, *, shared: bool = False
    ) -> Tensor:
        """Draws of f/scale without the common shift, (samples, n, k), independent for each point.

        Args:
            samples: the number of draws.
            generator: of the random numbers.
            shared: whether all points use the same random numbers instead, so that the draws for one point do
                not depend on the others.
        """
        weights, factor, _, independent, _ = self._known_covariance()
        drawn = _noise(weights, samples, generator, shared=shared)
        if factor is not None:
            drawn = drawn @ factor.mT if factor.dim() == 2 else torch.einsum("snr,nkr->snk", drawn, factor)
        if independent is not None:
            own = independent[:, None].expand_as(self.scaled_mean)
            drawn = drawn + _noise(own, samples, generator, shared=shared)
        return self.scaled_mean + drawn


def centred(mean: Tensor) -> Tensor:
    """Means (n, k) less their average."""
    # Divided before they are summed: the sum of ten logits of 1e38 would overflow.
    return mean - (mean / mean.shape[1]).sum(1, keepdim=True)


def _noise(
    variances: Tensor, samples: int, generator: torch.Generator | None, *, shared: bool = False
) -> Tensor:
    """Normal noise (samples, n, r) of these variances (n, r); see `scaled_draws`."""
    n, r = variances.shape
    shape = samples, 1 if shared else n, r
    normal = torch.randn(shape, generator=generator, dtype=variances.dtype, device=variances.device)
    # The floor is for the gradient of the root, which is infinite at 0.
    return normal * variances.clamp_min(torch.finfo(variances.dtype).tiny).sqrt()


def _diagonal(weights: Tensor, factor: Tensor) -> Tensor:
    """The diagonal of Q diag(w) Qᵀ, (n, k)."""
    if factor.dim() == 2:
        return weights @ factor.square().T
    return (factor.square() @ weights[:, :, None])[:, :, 0]


def rescale(features: Tensor, bias: bool) -> tuple[Tensor, Tensor]:
    """φ̃ / scale (n, D) and scale (n,) ≥ 1, so that no entry exceeds 2.

    Squares of features overflow float32 from 1e19 on; squares of these cannot. The scale is a power of two,
    so that the division is exact: rounding would add components that the features do not have.
    """
    largest = features.detach().abs().amax(1).clamp(1.0, torch.finfo(features.dtype).max / 2)
    scale = largest.log2().floor().exp2()
    features = features / scale[:, None]
    if bias:
        features = torch.cat([features, scale.reciprocal()[:, None]], dim=1)
    return features, scale

"""Laplace: ties the rooms together, network → curvature → posterior → predictive; holds no mathematics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from os import PathLike
from typing import Any, Self

import torch
from torch import Tensor, nn

from bitbayes import files, predictive, prior
from bitbayes.curvature import STRUCTURES, Curvature
from bitbayes.errors import ArgumentError, ModelError, NotFittedError, one_of
from bitbayes.files import Fitted
from bitbayes.likelihood import NAMES as LIKELIHOODS
from bitbayes.likelihood import likelihood_for
from bitbayes.logits import LogitGaussian, rescale, with_bias
from bitbayes.network import (
    Inputs,
    Peeked,
    a_loader,
    evaluating,
    find_head,
    fingerprint,
    forward,
    grouped,
    model_device,
    observe,
    observe_inputs,
)
from bitbayes.posterior import Posterior, posterior_of
from bitbayes.precision import working
from bitbayes.predictive import METHODS
from bitbayes.progress import track

# Features wait until they are worth one matrix product. Bytes, not batches, so that memory is bounded.
FIT_BYTES, TUNE_BYTES = 2**25, 2**21
# Numbers that a chunk of a prediction may hold.
CHUNK = 2**24
SEED = 0
OPTIONS = ("layers", "structure", "prior_variance", "predictive", "likelihood", "head", "variant")


class Laplace(nn.Module):
    """A trained classifier with a Gaussian over the weights of its last layer.

    p(y | x) = ∫ softmax(W φ̃(x)) N(W | W*, Σ) dW, with Σ = (H + I/σ₀²)⁻¹, where H = Σₙ Λₙ ⊗ φ̃ₙφ̃ₙᵀ is the
    curvature of the loss at the trained weights W*, and φ̃ the last layer's input with a 1 for the bias.

    Args:
        model: a trained network whose output is one linear layer. It is never changed.
        layers: "last".
        structure: of H: "full" (exact), "kron", "diag", "isotropic" (no curvature: the paper's
            non-Bayesian baseline), or "auto": full for one logit, kron for k.
        prior_variance: σ₀² > 0; can be set at any time, and `tune` chooses it.
        predictive: the default `method` of `predict_proba`, and that of the drop-in; "auto": probit for
            one logit, pairwise for k.
        likelihood: "categorical" (k outputs), "bernoulli" (one), or "auto".
        head: the name of the last linear layer; found by itself if None.
        variant: "exact", or "paper" for the paper's own formula where it differs (kron).

    Constructing computes nothing.

    >>> import bitbayes as bb
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> _ = torch.manual_seed(0)
    >>> x = torch.randn(40, 2)
    >>> loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=20)
    >>> bayes = bb.Laplace(nn.Linear(2, 2), prior_variance=10.0).fit(loader)
    >>> probs = bayes.predict_proba(1000 * x)
    >>> tuple(probs.shape), bool(probs.max() < 0.99)
    ((40, 2), True)
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        layers: str = "last",
        structure: str = "auto",
        prior_variance: float = 1.0,
        predictive: str = "auto",
        likelihood: str = "auto",
        head: str | None = None,
        variant: str = "exact",
    ) -> None:
        super().__init__()
        if not isinstance(model, nn.Module):
            raise ArgumentError(f"model is a {type(model).__name__}: expected a torch.nn.Module")
        self.model = model
        self.layers = one_of("layers", layers, ("last",))
        self.structure = one_of("structure", structure, ("auto", *STRUCTURES))
        self.predictive = one_of("predictive", predictive, ("auto", *METHODS))
        self.likelihood = one_of("likelihood", likelihood, LIKELIHOODS)
        self.head = head
        self.variant = one_of("variant", variant, ("exact", "paper"))
        self.prior_variance = prior_variance
        self._fitted: Fitted | None = None
        self._decomposed: Posterior | None = None
        self._working: tuple[torch.device, torch.dtype, Posterior] | None = None

    @property
    def prior_variance(self) -> float:
        """σ₀²: can be set at any time; no data pass follows."""
        return self._prior_variance

    @prior_variance.setter
    def prior_variance(self, value: float) -> None:
        self._prior_variance = _positive(value)

    # ---- learning

    def fit(self, loader: Iterable[Any], *, progress: bool | None = None) -> Self:
        """One forward pass over the training data, without gradients. Fitting again starts afresh.

        Args:
            loader: yields (x, y), or mappings of tensors with a key "labels".
            progress: True, False, or None for a bar on terminals.
        """
        self._accept(self._pass(loader, progress))
        return self

    def update(self, loader: Iterable[Any], *, progress: bool | None = None) -> Self:
        """Add more data to what was fitted: the same result as one `fit` on both."""
        before = self._need_fit()
        more = self._pass(loader, progress)
        if more.fingerprint != before.fingerprint:
            raise ModelError("the model has changed since `fit`: call `fit` again, on all the data")
        self._accept(
            replace(
                before,
                curvature=before.curvature + more.curvature,  # type: ignore[operator]
                count=before.count + more.count,
                loss=before.loss + more.loss,
            )
        )
        return self

    def tune(
        self,
        val_loader: Iterable[Any] | None = None,
        *,
        outliers: Iterable[Any] | Inputs | None = None,
        objective: str = "ood",
        weight: float = 0.25,
        penalty: str = "entropy",
        progress: bool | None = None,
    ) -> Self:
        """Choose the prior variance, with one forward pass over validation data and outliers.

        Args:
            val_loader: validation data, as for `fit`; "evidence" needs none.
            outliers: a tensor or a loader; by default uniform noise over the range of the validation
                inputs, as many.
            objective: "ood", the paper's: mean NLL − `weight` × mean entropy on outliers; "nll": its first
                term; "evidence": minus the log marginal likelihood of the fitted data.
            weight: of the outliers' term.
            penalty: "entropy", or "uniform": + `weight` × mean cross-entropy to the uniform vector instead.

        Warns (`EdgeWarning`) if the best candidate is the first or the last of those tried.
        """
        self._need_fit()
        one_of("objective", objective, prior.OBJECTIVES)
        one_of("penalty", penalty, prior.PENALTIES)
        if not isinstance(weight, (int, float)) or not math.isfinite(weight) or weight < 0:
            raise ArgumentError(f"weight={weight!r}: expected a number that is not negative")
        grid = prior.candidates()
        if objective == "evidence":
            costs = torch.stack([-self.log_evidence(value) for value in grid])
        elif val_loader is None:
            raise ArgumentError(f"objective={objective!r} needs validation data: tune(val_loader)")
        else:
            noise = prior.UniformNoise(SEED)
            see = noise.see if objective == "ood" and outliers is None else _ignore
            costs = self._validation_costs(val_loader, grid, see, progress)
            if objective == "ood" and weight > 0:
                data = noise if outliers is None else outliers
                costs = costs + weight * self._outlier_costs(data, grid, penalty, progress)
        self.prior_variance = prior.best(grid, costs)
        return self

    # ---- predicting

    def forward(self, x: Any) -> Tensor:
        """Drop-in logits, of the shape of the model's own: their softmax (sigmoid) is `predict_proba`."""
        fitted = self._need_fit()
        with evaluating(self.model):
            features, logits, shape = forward(self.model, fitted.head, x)
        gaussian = self._gaussian(features, logits)(self.prior_variance)
        return predictive.predict(gaussian, self._method(None)).reshape(shape)

    @torch.no_grad()
    def logits(self, x: Inputs) -> LogitGaussian:
        """The Gaussian over the network's outputs at x: mean (n, k), covariance (n, k, k)."""
        fitted = self._need_fit()
        ((features, logits),) = observe_inputs(self.model, fitted.head, x)
        return self._gaussian(features, logits)(self.prior_variance)

    @torch.no_grad()
    def predict_proba(
        self,
        x: Inputs | Iterable[Any],
        *,
        method: str | None = None,
        samples: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Probabilities (n, k), rows sum to one; (n, 2) for a network with one logit.

        Args:
            x: inputs, or a loader of them.
            method: "probit", "pairwise", "bridge", "mc" or "quadrature"; by default `predictive`.
            samples: of the logits, for "mc"; 100 by default.
            generator: for "mc".
        """
        fitted = self._need_fit()
        method = self._method(method)
        if samples is not None and (method != "mc" or not isinstance(samples, int) or samples < 1):
            raise ArgumentError(
                f"samples={samples!r}, method={method!r}: expected a positive number, and 'mc'"
            )
        outputs = fitted.head.outputs
        per_point = outputs * max(outputs, samples or predictive.SAMPLES)
        probabilities = []
        for features, logits in observe_inputs(self.model, fitted.head, x):
            rows = max(1, CHUNK // per_point)
            for part in zip(torch.split(features, rows), torch.split(logits, rows), strict=True):
                gaussian = self._gaussian(*part)(self.prior_variance)
                drop_in = predictive.predict(gaussian, method, samples=samples, generator=generator)
                probabilities.append(fitted.likelihood.log_probabilities(drop_in).exp())
        return torch.cat(probabilities)

    @torch.no_grad()
    def sample(self, n: int, *, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """n draws of the head's weights, stacked, under the model's own parameter names.

        As `torch.func.functional_call` takes them, under `torch.vmap`.
        """
        head = self._need_fit().head
        if not isinstance(n, int) or n < 1:
            raise ArgumentError(f"n={n!r}: expected a positive number of draws")
        module = head.module(self.model)
        posterior = self._posterior(module.weight.device, working(module.weight.dtype))
        noise = posterior.draw(n, self.prior_variance, generator).to(module.weight.dtype)  # (n, k, D)
        draws = [module.weight + noise[:, :, : head.inputs]]
        if head.bias:
            draws.append(module.bias + noise[:, :, -1])
        return dict(zip(head.parameter_names(), draws, strict=True))

    def log_evidence(self, prior_variance: float | Tensor | None = None) -> Tensor:
        """log p(D) ≈ log p(D | W*) − ½[τ‖W*‖² − P log τ + log det(H + τI)], τ = 1/σ₀², P weights.

        A scalar in float64; given a tensor, differentiable in it.
        """
        fitted = self._need_fit()
        value = self.prior_variance if prior_variance is None else prior_variance
        if not isinstance(value, Tensor):
            value = torch.tensor(_positive(value), dtype=torch.float64)
        elif value.numel() != 1 or not bool((value > 0) & value.isfinite()):
            raise ArgumentError(f"prior_variance={value!r}: expected one positive number")
        posterior = self._decompose(fitted)
        value = value.double().reshape(())
        weights = fitted.head.outputs * fitted.head.width
        occam = fitted.squared_norm / value + weights * value.log() + posterior.log_determinant(value)
        return -fitted.loss - occam / 2

    # ---- files

    def save(self, path: str | PathLike[str]) -> None:
        """Write everything but the model to a safetensors file."""
        files.write(path, {name: getattr(self, name) for name in OPTIONS}, self._need_fit())

    @classmethod
    def load(cls, path: str | PathLike[str], model: nn.Module) -> Self:
        """Read what `save` wrote, for the same model, wherever that now lives."""
        options, fitted = files.read(path, fingerprint(model), model_device(model))
        bayes = cls(model, **options)
        bayes._accept(fitted)
        return bayes

    def extra_repr(self) -> str:
        state = f"fitted on {self._fitted.count:,} points" if self._fitted else "not fitted"
        return f"structure={self.structure!r}, prior_variance={self.prior_variance:.4g}, {state}"

    # ---- inside

    def _need_fit(self) -> Fitted:
        if self._fitted is None:
            raise NotFittedError("this Laplace is not fitted yet: call `fit(train_loader)` first")
        return self._fitted

    def _accept(self, fitted: Fitted) -> None:
        self._fitted, self._decomposed, self._working = fitted, None, None

    def _method(self, method: str | None) -> str:
        return predictive.method_for(method or self.predictive, self._need_fit().head.outputs)

    @torch.no_grad()
    def _pass(self, loader: Iterable[Any], progress: bool | None) -> Fitted:
        """One forward pass → what that data alone gives. Changes nothing."""
        loader = Peeked(loader, model_device(self.model))
        with evaluating(self.model):
            head = find_head(self.model, loader.few, self.head)
        likelihood = likelihood_for(self.likelihood, head.outputs)
        predictive.method_for(self.predictive, head.outputs)  # raises now rather than after the pass
        auto = "full" if head.outputs == 1 else "kron"
        structure = STRUCTURES[auto if self.structure == "auto" else self.structure]
        curvature: Curvature | None = None
        count, loss = 0, 0.0
        points = observe(self.model, head, track(loader, "fitting", progress), likelihood.check)
        for features, logits, labels in grouped(points, FIT_BYTES):
            count += len(labels)
            loss += float(likelihood.losses(logits.double(), labels).sum())
            features = with_bias(features.to(working(features.dtype)), head.bias)
            more = structure.of(features, logits, likelihood)
            curvature = more if curvature is None else curvature + more  # type: ignore[operator]
        assert curvature is not None  # `Peeked` raises on an empty loader
        parameters = head.module(self.model).parameters(recurse=False)
        squared_norm = sum(float(parameter.double().square().sum()) for parameter in parameters)
        return Fitted(head, likelihood, curvature, count, loss, squared_norm, fingerprint(self.model))

    def _decompose(self, fitted: Fitted) -> Posterior:
        """The posterior in float64; made once for each curvature."""
        if self._decomposed is None:
            self._decomposed = posterior_of(
                fitted.curvature,
                fitted.likelihood.contrasts(fitted.head.outputs),
                bias=fitted.head.bias,
                paper=self.variant == "paper",
            )
        return self._decomposed

    def _posterior(self, device: torch.device, dtype: torch.dtype) -> Posterior:
        """The posterior where and in the precision that predictions are made."""
        if self._working is None or self._working[:2] != (device, dtype):
            self._working = (device, dtype, self._decompose(self._need_fit()).to(device, dtype))
        return self._working[2]

    def _gaussian(self, features: Tensor, logits: Tensor) -> Callable[[float], LogitGaussian]:
        """The Gaussian over logits as a function of the prior variance."""
        dtype = working(features.dtype)
        posterior = self._posterior(features.device, dtype)
        scaled, scale = rescale(features.to(dtype), self._need_fit().head.bias)
        coordinates, mean = posterior.coordinates(scaled), logits.to(dtype)
        return lambda variance: LogitGaussian(mean, posterior.spread(coordinates, variance), scale)

    def _predict_alike(self, gaussian: LogitGaussian) -> Tensor:
        """Drop-in logits with the same random numbers at each call, so that candidates can be compared."""
        generator = torch.Generator(gaussian.mean.device).manual_seed(SEED)
        return predictive.predict(gaussian, self._method(None), generator=generator)

    @torch.no_grad()
    def _validation_costs(
        self, loader: Iterable[Any], grid: list[float], see: Callable[[Inputs], None], progress: bool | None
    ) -> Tensor:
        """Mean negative log-likelihood of each candidate, (c,)."""
        fitted = self._need_fit()
        steps = track(a_loader(loader), "tuning: validation data", progress)
        points = observe(self.model, fitted.head, steps, fitted.likelihood.check, see)
        prepared = ((self._gaussian(f, m), labels) for f, m, labels in grouped(points, TUNE_BYTES))
        cost = prior.negative_log_likelihood(fitted.likelihood)
        return prior.mean_costs(prepared, grid, self._predict_alike, cost)

    @torch.no_grad()
    def _outlier_costs(
        self, data: Iterable[Any] | Inputs, grid: list[float], penalty: str, progress: bool | None
    ) -> Tensor:
        """Mean overconfidence of each candidate, (c,)."""
        fitted = self._need_fit()
        steps = data if isinstance(data, (Tensor, Mapping)) else track(data, "tuning: outliers", progress)
        points = observe_inputs(self.model, fitted.head, steps)
        prepared = ((self._gaussian(f, m), None) for f, m in grouped(points, TUNE_BYTES))
        cost = prior.overconfidence(fitted.likelihood, penalty)
        return prior.mean_costs(prepared, grid, self._predict_alike, cost)


def _positive(value: float) -> float:
    """The value as a float; raises unless it is a positive, finite number."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not (number > 0 and math.isfinite(number)):
        raise ArgumentError(f"prior_variance={value!r}: expected a positive, finite number")
    return number


def _ignore(_: Inputs) -> None:
    """For passes that nobody watches."""

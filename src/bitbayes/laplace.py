"""Laplace: ties the rooms together, network → curvature → posterior → predictive; holds no mathematics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from os import PathLike
from typing import Any, Self

import torch
from torch import Tensor, nn

from bitbayes import predictive, prior
from bitbayes import rays as infinity
from bitbayes.all_layers import AllLayers
from bitbayes.curvature import NETWORK_STRUCTURES, STRUCTURES
from bitbayes.errors import ArgumentError, FileError, ModelError, NotFittedError, one_of
from bitbayes.fitting import Fitted, fit_all_layers, fit_last_layer
from bitbayes.io import export
from bitbayes.io import posterior_file as files
from bitbayes.last_layer import LastLayer
from bitbayes.likelihood import NAMES as LIKELIHOODS
from bitbayes.logits import LogitGaussian
from bitbayes.model import (
    Inputs,
    call,
    check_loader,
    eval_mode,
    find_layers,
    fingerprint,
    items,
    model_device,
    unwrapped,
)
from bitbayes.predictive import METHODS
from bitbayes.rays import Certificate, Limit, RayGaussian, Residual
from bitbayes.residual.kernel import MomentsSum, Roots, Watched, shown, widened
from bitbayes.tuning import Tuning, by_evidence

# Numbers that a chunk of a prediction may hold.
CHUNK = 2**24
NETWORKS = 20
OPTIONS = ("layers", "structure", "prior_variance", "predictive", "likelihood", "head", "estimate", "variant")
RESIDUAL = ("residual_variance", "residual_threshold")


class Laplace(nn.Module):
    """A trained classifier with a Gaussian over the weights of its last layer, or of all layers.

    p(y | x) = ∫ softmax(W φ̃(x)) N(W | W*, Σ) dW, with Σ = (H + I/σ₀²)⁻¹, where H = Σₙ Λₙ ⊗ φ̃ₙφ̃ₙᵀ is the
    curvature of the loss at the trained weights W*, and φ̃ the last layer's input with a 1 for the bias. Over
    all layers H = Σₙ JₙᵀΛₙJₙ, J the derivatives of the logits in the parameters, in which the network is
    taken to be linear: f(x) + J(x)(θ − θ*).

    Args:
        model: a trained network; for "last" one whose output is one linear layer. It is never changed. Of a
            compiled one (`torch.compile`) the network inside is taken, whose layers can be watched.
        layers: "last", or "all": every parameter that requires a gradient; freeze those that should not be.
        structure: of H: "full" (exact), "kron", "diag", for the last layer also "isotropic" (no curvature:
            the paper's non-Bayesian baseline), or "auto": kron, but full for one logit of the last layer.
        prior_variance: σ₀² > 0; can be set at any time, and `tune` chooses it. Over all layers also a
            mapping from the name of each layer to its own.
        predictive: the default `method` of `predict_proba`, and that of the drop-in; "auto": probit for
            one logit, pairwise for k.
        likelihood: "categorical" (k outputs), "bernoulli" (one), or "auto".
        head: the name of the last linear layer; found by itself if None.
        estimate: of H over all layers: "exact" (as many passes back as classes but one), or "fisher" (one
            for each label drawn from the model).
        variant: "exact", or "paper" for the paper's own formula where it differs: kron, and the diagonal
            over all layers, whose labels are drawn.
        residual: add to every logit the variance of infinitely many ReLU features at the input, which grows
            faster than any mean: far away the confidence goes to exactly 1/k. For inputs that are tensors of
            floating-point numbers; `tune` chooses its two numbers. Names of layers: those at the inputs of
            these layers too, at the price of another forward pass.

    Constructing computes nothing.

    >>> import bitbayes as bb
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> _ = torch.manual_seed(0)
    >>> x = torch.randn(40, 2)
    >>> loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=20)
    >>> model = nn.Linear(2, 2)
    >>> bayes = bb.Laplace(model, prior_variance=10.0).fit(loader)
    >>> probs, plain = bayes.predict_proba(1000 * x), model(1000 * x).softmax(1)
    >>> print(f"{plain.amax(1).mean():.2f} {probs.amax(1).mean():.2f}")
    1.00 0.91
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        layers: str = "last",
        structure: str = "auto",
        prior_variance: float | Mapping[str, float] = 1.0,
        predictive: str = "auto",
        likelihood: str = "auto",
        head: str | None = None,
        estimate: str = "exact",
        variant: str = "exact",
        residual: bool | Sequence[str] = False,
    ) -> None:
        super().__init__()
        if not isinstance(model, nn.Module):
            raise ArgumentError(f"model is a {type(model).__name__}: expected a torch.nn.Module")
        self.model = unwrapped(model)
        self.layers = one_of("layers", layers, ("last", "all"))
        known = NETWORK_STRUCTURES if layers == "all" else tuple(STRUCTURES)
        self.structure = one_of("structure", structure, ("auto", *known))
        methods = (*METHODS, "weights") if layers == "all" else METHODS
        self.predictive = one_of("predictive", predictive, ("auto", *methods))
        self.likelihood = one_of("likelihood", likelihood, LIKELIHOODS)
        self.head = head
        self.estimate = one_of("estimate", estimate, ("exact", "fisher") if layers == "all" else ("exact",))
        self.variant = one_of("variant", variant, ("exact", "paper"))
        self._part: LastLayer | AllLayers | None = None
        self.prior_variance = prior_variance
        self.residual = infinity.checked_levels(self.model, residual)
        self.residual_variance, self.residual_threshold = 1.0, 0.0
        if residual and predictive == "weights":
            raise ArgumentError(
                "residual=True widens the Gaussian over logits, which predictive='weights' never sees: "
                "choose another"
            )

    @property
    def residual_variance(self) -> float:
        """σ² of the residual, σ²·max(0, k(x) − `residual_threshold`): can be set at any time."""
        return self._residual_variance

    @residual_variance.setter
    def residual_variance(self, value: float) -> None:
        self._residual_variance = prior.positive(value, "residual_variance")

    @property
    def residual_threshold(self) -> float:
        """What the kernel k(x) must exceed before anything is added; 0 until `tune` chooses it."""
        return self._residual_threshold

    @residual_threshold.setter
    def residual_threshold(self, value: float) -> None:
        self._residual_threshold = prior.positive(value, "residual_threshold", zero=True)

    @property
    def prior_variance(self) -> Any:
        """σ₀², or a dict of each layer's if one was set: can be set at any time; no data pass follows."""
        return self._prior_variance

    @prior_variance.setter
    def prior_variance(self, value: float | Mapping[str, float]) -> None:
        if not isinstance(value, Mapping):
            self._prior_variance: float | dict[str, float] = prior.positive(value)
            return
        if self.layers == "last" or self.structure == "full":
            raise ArgumentError(
                f"prior_variance={dict(value)!r}: a variance for each layer needs layers='all' and "
                "structure='kron' or 'diag'; give one number"
            )
        self._prior_variance = prior.each_layers(value, self._layer_names())

    # ---- learning

    def fit(
        self,
        loader: Iterable[Any],
        *,
        progress: bool | None = None,
        draws: int = 1,
        generator: torch.Generator | None = None,
    ) -> Self:
        """One forward pass over the training data; no gradients for the last layer. Again starts afresh.

        Args:
            loader: yields (x, y), or mappings of tensors with a key "labels".
            progress: True, False, or None for a bar on terminals.
            draws: labels drawn from the model for each point, for `estimate="fisher"`.
            generator: of those labels; seeded if None.
        """
        self._accept(self._pass(loader, progress, draws, generator))
        return self

    def update(
        self,
        loader: Iterable[Any],
        *,
        progress: bool | None = None,
        draws: int = 1,
        generator: torch.Generator | None = None,
    ) -> Self:
        """Add more data to what was fitted: the same result as one `fit` on both (drawn labels aside)."""
        before = self._need_fit().fitted
        more = self._pass(loader, progress, draws, generator)
        if more.fingerprint != before.fingerprint or more.part != before.part:
            raise ModelError(
                "the model, or what of it is frozen, has changed since `fit`: call `fit` again, on all data"
            )
        self._accept(before + more)
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
        """Choose the prior variance, with one pass over validation data and outliers.

        For each layer its own, by "evidence" alone, where `prior_variance` is a mapping. Over all layers the
        candidates are compared with deviations interpolated between 18 priors (to 0.6 %, near the ends of
        the range 2 %), and by the closed form also where the predictive is "weights".

        Args:
            val_loader: validation data, as for `fit`; "evidence" needs none.
            outliers: a tensor or a loader; by default uniform noise over the range of the validation
                inputs, as many.
            objective: "ood", the paper's: mean NLL − `weight` × mean entropy on outliers; "nll": its first
                term; "evidence": minus the log marginal likelihood of the fitted data.
            weight: of the outliers' term.
            penalty: "entropy", or "uniform": + `weight` × mean cross-entropy to the uniform vector instead.

        With `residual=True` the residual's threshold becomes the 99 % quantile of its kernel on the
        validation data. Its variance is chosen by "ood" jointly with the prior's; by "nll" it is the largest
        candidate (1e-6 to 1e10, seven a decade) that leaves the validation NLL, at the prior chosen without
        it, within half a percent. That keeps the features of all these data in memory. "evidence" knows
        nothing of the residual and leaves it alone.

        Warns (`EdgeWarning`) if the best candidate is the first or the last of those tried.
        """
        part = self._need_fit()
        one_of("objective", objective, prior.OBJECTIVES)
        one_of("penalty", penalty, prior.PENALTIES)
        if not isinstance(weight, Real) or not math.isfinite(weight) or weight < 0:
            raise ArgumentError(f"weight={weight!r}: expected a number that is not negative")
        each_layer = isinstance(self.prior_variance, dict)
        if objective == "evidence":
            self.prior_variance = by_evidence(part, self.log_evidence, each_layer=each_layer)
            prior.warn_at_the_edge(part.candidates(), self.prior_variance, stacklevel=2)
            return self
        if val_loader is None:
            raise ArgumentError(f"objective={objective!r} needs validation data: tune(val_loader)")
        if each_layer:
            raise ArgumentError(
                f"objective={objective!r} chooses one prior variance for all layers, and prior_variance "
                "holds one for each: choose objective='evidence', or set a number first"
            )
        method = self._method("auto" if self.predictive == "weights" else None)
        outliers_weight = weight if objective == "ood" else None
        tuning = Tuning(part, method, val_loader, outliers, outliers_weight, penalty, progress)
        if self.residual:
            chosen = tuning.with_residual(self._residual().moments)
            self.prior_variance, self.residual_variance, self.residual_threshold = chosen
        else:
            self.prior_variance = tuning.prior_variance()
        prior.warn_at_the_edge(part.candidates(), self.prior_variance, stacklevel=2)
        return self

    # ---- predicting

    def forward(self, x: Any) -> Tensor:
        """Drop-in logits, of the shape of the model's own: their softmax (sigmoid) is `predict_proba`.

        Differentiable in x; over all layers only through the mean of the logits, not through their variance.
        """
        part = self._need_fit()
        method = self._method(None)
        with eval_mode(self.model):
            if isinstance(part, AllLayers) and method == "weights":
                (logits,) = part.sampled_logits(x, NETWORKS, self._priors(), None)
                return logits.reshape(call(self.model, x).shape)
            gaussian, shape = part.forward(x, self._priors())
        if self.residual:
            gaussian = self._residual().join(gaussian, x)
        return predictive.predict(gaussian, method).reshape(shape)

    @torch.no_grad()
    def logits(self, x: Inputs | Iterable[Any]) -> LogitGaussian:
        """The Gaussian over the network's outputs at x (or a loader): mean (n, k), covariance (n, k, k)."""
        if not isinstance(x, (Tensor, Mapping)):
            parts = [self.logits(each) for each in items(x, model_device(self.model))]
            return LogitGaussian.stacked(parts)
        gaussian = self._need_fit().logits(x, self._priors())
        return self._residual().join(gaussian, x) if self.residual else gaussian

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
            method: "probit", "pairwise", "bridge", "mc", "quadrature" or, over all layers, "weights": the
                average over drawn networks, the same ones for all batches; by default `predictive`.
            samples: of the logits, for "mc", 100 by default; of the network, for "weights", 20.
            generator: for "mc" and "weights".
        """
        part = self._need_fit()
        method = self._method(method)
        if method == "weights" and self.residual:
            raise ArgumentError("method='weights' never sees the residual: choose another, or residual=False")
        drawn = method in ("mc", "weights")
        if samples is not None and (not drawn or type(samples) is not int or samples < 1):
            raise ArgumentError(
                f"samples={samples!r}, method={method!r}: expected a positive number, and 'mc'"
                + (" or 'weights'" if self.layers == "all" else "")
            )
        if isinstance(part, AllLayers) and method == "weights":
            logits = part.sampled_logits(x, samples or NETWORKS, self._priors(), generator)
        else:
            outputs = part.fitted.part.outputs
            rows = max(1, CHUNK // (outputs * max(predictive.FEW, samples or predictive.SAMPLES)))
            logits = (
                predictive.predict(gaussian, method, samples=samples, generator=generator)
                for gaussian in self._gaussians(x, rows)
            )
        return torch.cat([part.fitted.likelihood.log_probabilities(each).exp() for each in logits])

    @torch.no_grad()
    def sample(self, n: int, *, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """n draws of the weights (the head's, or all layers'), stacked, under the model's own names.

        As `torch.func.functional_call` takes them, under `torch.vmap`; with `tie_weights=False` where the
        head shares its weight with another layer, which is not drawn. No weights hold the residual.
        """
        part = self._need_fit()
        if not isinstance(n, int) or n < 1:
            raise ArgumentError(f"n={n!r}: expected a positive number of draws")
        return part.sample(n, self._priors(), generator)

    def log_evidence(
        self, prior_variance: float | Tensor | Mapping[str, float | Tensor] | None = None
    ) -> Tensor:
        """log p(D) ≈ log p(D | W*) − ½[τ‖W*‖² − P log τ + log det(H + τI)], τ = 1/σ₀², P weights.

        A scalar in float64; given a tensor, differentiable in it. Over all layers a sum over layers, each
        with its own τ if `prior_variance` is a mapping.
        """
        part = self._need_fit()
        value = self.prior_variance if prior_variance is None else prior_variance
        if isinstance(part, LastLayer):
            return part.log_evidence(prior.scalar(value))
        if not isinstance(value, Mapping):
            return part.log_evidence(dict.fromkeys(part.network.names, prior.scalar(value)))
        if set(value) != set(part.network.names) or part.curvature.structure == "full":
            raise ArgumentError(
                f"prior_variance={dict(value)!r}: expected a number for each of {list(part.network.names)}, "
                "and structure 'kron' or 'diag'"
            )
        return part.log_evidence({name: prior.scalar(each) for name, each in value.items()})

    # ---- at infinity

    def limit(self, x: Tensor, *, tolerance: float = 0.0) -> Limit:
        """The confidence that `predict_proba(δ·x)` tends to as δ → ∞, and the class it goes to: (n,) each.

        One logit: σ(|μᵀs|/√(π/8·sᵀΣs)), s the slope of the features along the ray; where s = 0 the features
        stop growing, and it is the prediction there. In float64, computed in one pass and not sampled at a
        large δ. For predictives in closed form, and networks that are affine piece by piece. With
        `residual=True` it is 1/k. For `tolerance` see `certify`.

        >>> import bitbayes as bb
        >>> _ = torch.manual_seed(0)
        >>> x, y = torch.randn(40, 2), torch.arange(40) % 3
        >>> model = nn.Sequential(nn.Linear(2, 10), nn.ReLU(), nn.Linear(10, 3))
        >>> bayes = bb.Laplace(model, prior_variance=10.0).fit([(x, y)])
        >>> limit = bayes.limit(x)
        >>> far = bayes.predict_proba(1e6 * x).max(dim=1)
        >>> bool((limit.confidence - far.values).abs().max() < 1e-4), bool((limit.label == far.indices).all())
        (True, True)
        """
        x, _ = infinity.unit_rays(x)
        found = infinity.limit(self._rays(x, find_alpha=False, tolerance=tolerance), self._method(None))
        return infinity.ApproximateLimit(*found) if tolerance else found

    def bound(self, x: Tensor | None = None) -> Tensor:
        """The theorems' bound on the limit, a confidence: one number for all x; over all layers one per row.

        One logit: σ(‖μ‖/√(π/8·λ_min(Σ))), weights and bias together. Over all layers
        σ(‖u‖/(s_min(J)·√(π/8·λ_min(Σ)))), u the logit's gradient in x in the ray's final region, J = ∂u/∂θ; 1
        where s_min(J) is 0, as it is behind max pooling, or x is 0. k logits: see `bitbayes.rays`. With
        `residual=True` it is 1/k, for x ≠ 0. In float64. The work over all layers grows with the cube of the
        input's size: it is meant for some hundred numbers at most.

        >>> import bitbayes as bb
        >>> _ = torch.manual_seed(0)
        >>> x, y = torch.randn(40, 2), torch.arange(40) % 2
        >>> model = nn.Sequential(nn.Linear(2, 10), nn.ReLU(), nn.Linear(10, 1))
        >>> bayes = bb.Laplace(model, structure="isotropic", prior_variance=10.0).fit([(x, y)])
        >>> bool(bayes.limit(x).confidence.max() <= bayes.bound() < 0.75)
        True
        """
        part = self._need_fit()
        found = part.bound(x, self._priors(), self._method(None))
        if not self.residual:
            return found
        moves = torch.ones_like(found, dtype=torch.bool)
        if x is not None and found.dim():
            moves = x.flatten(1).any(1).to(found.device)
        return torch.where(moves, 1 / max(2, part.fitted.part.outputs), found)

    def certify(self, x: Tensor, *, tolerance: float = 0.0) -> Certificate:
        """For each ray δ·x: alpha, the limit, and a confidence never exceeded for δ ≥ alpha; (n,) each.

        From alpha on no unit of the network changes its mind. One logit: the exact maximum of z(δ) =
        (aδ + c)/√(1 + π/8·(q₂δ² + 2q₁δ + q₀)) beyond alpha ("quadrature": within 5e-5); k logits: within
        1e-3 above the largest confidence. In float64: predictions in float32 may differ by their rounding.

        Args:
            x: one ray for each row.
            tolerance: above 0 approximate, which the type of what is returned says: units whose slope is less
                than that, relative to their layer's largest, count as settled where they are. A few such
                units make alpha huge where hardly anything changes any more.

        >>> import bitbayes as bb
        >>> _ = torch.manual_seed(0)
        >>> x, y = torch.randn(40, 2), torch.arange(40) % 2
        >>> model = nn.Sequential(nn.Linear(2, 10), nn.ReLU(), nn.Linear(10, 1))
        >>> bayes = bb.Laplace(model, structure="isotropic", prior_variance=10.0).fit([(x, y)])
        >>> certificate = bayes.certify(x)
        >>> beyond = bayes.predict_proba(x * (5 * certificate.alpha[:, None]).float()).amax(dim=1)
        >>> bool((beyond <= certificate.confidence).all())
        True
        """
        x, size = infinity.unit_rays(x)
        found = infinity.certify(self._rays(x, find_alpha=True, tolerance=tolerance), self._method(None))
        kind = infinity.ApproximateCertificate if tolerance else Certificate
        return kind(found.alpha / size.to(found.alpha.device), found.limit, found.confidence)

    # ---- files

    def save(self, path: str | PathLike[str]) -> None:
        """Write everything but the model to a safetensors file."""
        if fingerprint(self.model) != self._need_fit().fitted.fingerprint:
            raise ModelError(
                "the model has changed since `fit`, so no model would fit the file: call `fit` again"
            )
        names = (*OPTIONS, "residual", *RESIDUAL) if self.residual else OPTIONS
        files.write(path, {name: getattr(self, name) for name in names}, self._need_fit().fitted)

    @classmethod
    def load(cls, path: str | PathLike[str], model: nn.Module) -> Self:
        """Read what `save` wrote, for the same model, wherever that now lives."""
        model = unwrapped(model)
        options, fitted = files.read(path, fingerprint(model), model_device(model))
        # Once it is fitted: the layers that a mapping names are those of the file, whatever is frozen now.
        numbers = {name: options.pop(name) for name in ("prior_variance", *RESIDUAL) if name in options}
        try:
            bayes = cls(model, **options)
            bayes._accept(fitted)
            for name, number in numbers.items():
                setattr(bayes, name, number)
        except (ArgumentError, TypeError) as error:
            raise FileError(f"{path} has a damaged header: {error}") from error
        return bayes

    def export(self, path: str | PathLike[str], example: Inputs) -> None:
        """Write the drop-in, model and posterior together, as a graph that runs without bitbayes.

        Its output has the shape of the model's own, for any number of rows; its softmax (sigmoid) is
        `predict_proba`, by the `predictive` and with the prior variance of now. It checks no input: where
        the network overflows, so does the graph. For the last layer and predictives in closed form.

        Args:
            path: ends in ".onnx" (needs the extra `onnx`), or ".pt2" for `torch.export.load`.
            example: inputs as the model takes them, one row or more; the input's names in ONNX are a
                mapping's keys, or "x".

        >>> import os, tempfile
        >>> import bitbayes as bb
        >>> x, y = torch.randn(40, 4), torch.arange(40) % 3
        >>> bayes = bb.Laplace(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))).fit([(x, y)])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     bayes.export(os.path.join(folder, "bayes.pt2"), x[:2])
        ...     graph = torch.export.load(os.path.join(folder, "bayes.pt2")).module()
        >>> bool((graph(x).softmax(1) - bayes.predict_proba(x)).abs().max() < 1e-6)
        True
        """
        if self.layers == "all" or self._method(None) not in predictive.CLOSED:
            raise ArgumentError(
                f"layers={self.layers!r}, predictive={self._method(None)!r}: only layers='last' with a "
                f"predictive in closed form ({', '.join(predictive.CLOSED)}) becomes a graph"
            )
        export.write(self, export.check_path(path), example)

    def extra_repr(self) -> str:
        state = f"fitted on {self._fitted.count:,} points" if self._fitted else "not fitted"
        value = self.prior_variance
        shown = f"{value:.4g}" if isinstance(value, float) else f"{len(value)} layers' own"
        return f"layers={self.layers!r}, structure={self.structure!r}, prior_variance={shown}, {state}"

    # ---- inside

    def _rays(self, x: Tensor, *, find_alpha: bool, tolerance: float) -> Iterator[RayGaussian]:
        part = self._need_fit()
        if not isinstance(tolerance, (int, float)) or not 0 <= tolerance < 1:
            raise ArgumentError(f"tolerance={tolerance!r}: expected a number from 0 (exact) to below 1")
        rays = part.rays(x, self._priors(), find_alpha=find_alpha, tolerance=tolerance)
        return infinity.with_residual(rays, x, self._residual()) if self.residual else rays

    def _see(self, moments: MomentsSum) -> Callable[[Inputs], None]:
        """Shows moments what the residual looks at."""
        if not isinstance(self.residual, tuple):
            return moments.see
        levels = infinity.Levels(self.model, self.residual)
        return torch.no_grad()(lambda inputs: moments.see(levels.joined(inputs)))

    def _residual(self) -> Residual:
        moments = self._need_fit().fitted.inputs
        assert moments is not None
        if isinstance(self.residual, tuple):
            moments = infinity.LevelMoments.bind(moments, infinity.Levels(self.model, self.residual))
        return Residual(moments, self.residual_variance, self.residual_threshold)

    def _gaussians(self, x: Inputs | Iterable[Any], rows: int) -> Iterator[LogitGaussian]:
        """The Gaussian over the logits of each batch, at most `rows` points at a time."""
        part = self._need_fit()
        if not self.residual:
            yield from part.gaussians(x, self._priors(), rows)
            return
        moments, *numbers = self._residual()
        roots = Roots(moments)
        for gaussian in part.gaussians(shown(x, roots.see), self._priors(), rows):
            yield widened(gaussian, roots.take(len(gaussian.mean)), *numbers)

    def _need_fit(self) -> LastLayer | AllLayers:
        if self._part is None:
            raise NotFittedError("this Laplace is not fitted yet: call `fit(train_loader)` first")
        return self._part

    @property
    def _fitted(self) -> Fitted | None:
        return self._part.fitted if self._part else None

    def _accept(self, fitted: Fitted) -> None:
        kind = AllLayers if self.layers == "all" else LastLayer
        part = kind(self.model, fitted, paper=self.variant == "paper")
        if isinstance(part, AllLayers) and isinstance(self.prior_variance, dict):
            prior.each_layers(self.prior_variance, list(part.network.names))  # raises, with nothing changed
        self._part = part

    def _layer_names(self) -> list[str]:
        if isinstance(self._part, AllLayers):
            return list(self._part.network.names)
        return [layer.name for layer in find_layers(self.model)]

    def _priors(self) -> Any:
        """The prior variance as `_part` takes it: a number, or (all layers) one for each layer."""
        if not isinstance(self._part, AllLayers) or isinstance(self.prior_variance, dict):
            return self.prior_variance
        return dict.fromkeys(self._part.network.names, self.prior_variance)

    def _method(self, method: str | None) -> str:
        method = method or self.predictive
        if method == "weights" and self.layers == "all":
            return method
        return predictive.method_for(method, self._need_fit().fitted.part.outputs)

    def _pass(
        self, loader: Iterable[Any], progress: bool | None, draws: int, generator: torch.Generator | None
    ) -> Fitted:
        """One pass over data → what that data alone gives. Changes nothing."""
        fisher = self.estimate == "fisher" or (self.structure == "diag" and self.variant == "paper")
        if not isinstance(draws, int) or draws < 1 or (draws > 1 and not (fisher and self.layers == "all")):
            raise ArgumentError(
                f"draws={draws!r}: expected a positive number, and layers='all' with estimate='fisher'"
            )
        moments = MomentsSum()
        if self.residual:
            loader = Watched(check_loader(loader), self._see(moments))
        same = {"structure": self.structure, "likelihood": self.likelihood, "predictive": self.predictive}
        if self.layers == "last":
            fitted = fit_last_layer(self.model, loader, head=self.head, progress=progress, **same)
        else:
            same["structure"] = "kron" if self.structure == "auto" else self.structure
            fitted = fit_all_layers(
                self.model, loader, fisher=fisher, draws=draws, generator=generator, progress=progress, **same
            )
        return replace(fitted, inputs=moments.total()) if self.residual else fitted

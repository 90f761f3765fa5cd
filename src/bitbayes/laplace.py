"""Laplace: the public face. It ties the rooms together and holds no mathematics."""

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import Any, Never, Self

import torch
from torch import Tensor, nn

from bitbayes import metrics, predictive, rays, uncertainty
from bitbayes.all_layers import AllLayers
from bitbayes.errors import (
    ArgumentError,
    BitbayesError,
    FileError,
    ModelError,
    NotFittedError,
    UntunedWarning,
    one_of,
)
from bitbayes.fitting import Fitted, fit_all_layers, fit_last_layer
from bitbayes.io import export, posterior_file
from bitbayes.io.checkpoint import kept_in
from bitbayes.joint_fit import fit_together
from bitbayes.last_layer import LastLayer
from bitbayes.logits import LogitGaussian
from bitbayes.model import (
    Batch,
    Data,
    LateChecks,
    Loader,
    NamedInputs,
    Selector,
    check_data,
    check_loader,
    find_layers,
    fingerprint,
    input_batches,
    labelled_batches,
    model_device,
    selected,
    unwrapped,
)
from bitbayes.options import (
    AUTO,
    BoundForm,
    CurvatureName,
    Fisher,
    FrozenOption,
    Layers,
    Objective,
    Options,
    Penalty,
    PositiveNumber,
    Predictive,
    ResidualOption,
    Structure,
    refuse_renamed,
)
from bitbayes.posterior import WeightPosterior
from bitbayes.prior import Prior, check_variance, differentiable
from bitbayes.processes import together
from bitbayes.progress import track
from bitbayes.rays import Certificate, Limit, RayGaussian
from bitbayes.residual import Residual
from bitbayes.tuning import (
    CALIBRATED,
    EVIDENCE,
    Candidate,
    check_objective,
    objective_for,
    tune_by_evidence,
    tune_calibrated,
    tune_on_data,
    warn_at_the_edge,
)
from bitbayes.uncertainty import Uncertainty

# Numbers that one step of a prediction may hold.
NUMBERS_PER_PREDICTION = 2**24
NETWORKS = 20
UNCERTAINTY_SEED = 0
FIT = {"last": fit_last_layer, "all": fit_all_layers}
POSTERIOR: dict[str, type[WeightPosterior]] = {"last": LastLayer, "all": AllLayers}
# What can be set at any time, and is saved beside the options.
NUMBERS = ("prior_variance", "temperature", "residual_variance", "residual_threshold")


class Laplace(nn.Module):
    """A trained classifier with a Gaussian over the weights of its last layer, or of all layers.

    p(y | x) = ∫ softmax(W φ̃(x)) N(W | W*, Σ) dW, with Σ = (H + I/σ₀²)⁻¹. H = Σₙ Λₙ ⊗ φ̃ₙφ̃ₙᵀ is the curvature
    of the loss at the trained weights W*, and φ̃ is the last layer's input with a 1 for the bias. Over all
    layers H = Σₙ JₙᵀΛₙJₙ, where J is the derivative of the logits in the parameters, and the network is taken
    to be linear in these: f(x) + J(x)(θ − θ*).

    Args:
        model: a trained network; for "last" one whose logits are a linear map of features, one row for each
            input or for each position of it (docs/models.md). It is never changed. The network inside
            `torch.compile`, `DataParallel` or `DistributedDataParallel` is taken, and a plain copy of one
            that FSDP has spread over processes.
        layers: "last", or "all": every parameter that requires a gradient. Freeze those that are certain.
        structure: what is kept of H: "full" (everything), "kron", "diag", for the last layer also "lowrank"
            (kron for many classes) and "isotropic" (nothing: the paper's non-Bayesian baseline), or "auto":
            kron, but for the last layer full for one logit, and lowrank for more than 4,096.
        prior_variance: σ₀² > 0. It can be set at any time, and `tune` chooses it. Over all layers it may be a
            mapping from the name of each layer to its own. None is 1, and the first prediction warns if
            nothing was chosen until then.
        predictive: the default `method` of `predict_proba`, and the one of the drop-in. "auto" is probit for
            one logit, pairwise for up to 64 and meanfield for more. It can be set at any time.
        head: the name of the last linear layer; found by itself if None.
        curvature: of all layers: "exact" (k − 1 passes back for each batch), or "fisher", which is short for
            `bb.Fisher(draws=1)` (one pass back for each label drawn from the model). "paper": the paper's own
            formulas where they differ, for tables that compare (kron, and over all layers labels are drawn).
        residual: whether to add to every logit the variance of infinitely many ReLU features at the input. It
            grows faster than any mean, so that far away the confidence goes to exactly 1/k. "auto": where the
            inputs are floating-point numbers (or images in uint8) of one size, from the moment when
            `tune(objective="calibrated")` has chosen its two numbers. Names of layers: at the inputs of these
            layers too, at the price of another forward pass.
        output: where the logits are in what the model returns, if that is neither a tensor nor has `logits`:
            the name of an entry or attribute, or a function that takes what the model returns.

    Constructing computes nothing. What `fit` depends on cannot be changed afterwards.

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

    layers = FrozenOption[Layers]()
    structure = FrozenOption[Structure]()
    head = FrozenOption[str | None]()
    curvature = FrozenOption[CurvatureName | Fisher]()
    residual = FrozenOption[ResidualOption]()
    output = FrozenOption[Selector | None]()
    # Every mean of a logit is divided by it before the average is taken; no variance is.
    temperature = PositiveNumber()
    # The residual adds residual_variance·max(0, k(x) − residual_threshold) to every logit's variance.
    residual_variance = PositiveNumber(zero=True)
    residual_threshold = PositiveNumber(zero=True)
    # `private_copy` need not copy it: it runs a copy of its model itself.
    _runs_privately = True
    # Of what was fitted; it keeps its kernel where predictions are made.
    _kept_residual: Residual | None = None

    def __init__(
        self,
        model: nn.Module,
        *,
        layers: Layers = "last",
        structure: Structure = "auto",
        prior_variance: float | Mapping[str, float] | None = None,
        predictive: Predictive = "auto",
        head: str | None = None,
        curvature: CurvatureName | Fisher = "exact",
        residual: ResidualOption = AUTO,
        output: Selector | None = None,
        **renamed: Never,  # so that type checkers take no misspelt name
    ) -> None:
        super().__init__()
        refuse_renamed(renamed)
        if not isinstance(model, nn.Module):
            raise ArgumentError(f"model is a {type(model).__name__}: expected a torch.nn.Module")
        self.model = selected(unwrapped(model), output)
        given: dict[str, Any] = {"layers": layers, "structure": structure, "predictive": predictive}
        given |= {"head": head, "output": output}
        self.options = Options.checked(self.model, curvature, residual, **given)
        self._posterior: WeightPosterior | None = None
        self.prior_variance = 1.0 if prior_variance is None else prior_variance
        self._chosen = prior_variance is not None
        self.temperature, self.residual_threshold = 1.0, 0.0
        self.residual_variance = 1.0 if self.options.residual_asked else 0.0

    # ---- numbers that can be set at any time; no data pass follows

    @property
    def prior_variance(self) -> float | dict[str, float]:
        """σ₀²: a float, or a dict with one for each layer if such was set."""
        return self._prior_variance

    @prior_variance.setter
    def prior_variance(self, value: float | Mapping[str, float]) -> None:
        self._prior_variance = check_variance(value, self._layer_names)
        self._prior, self._chosen = Prior(self._prior_variance), True

    @property
    def predictive(self) -> Predictive:
        """The default `method` of `predict_proba`, and the one of the drop-in."""
        return self.options.predictive

    @predictive.setter
    def predictive(self, value: Predictive) -> None:
        self.options = replace(self.options, predictive=value).check()

    # ---- learning

    def fit(
        self,
        loader: Loader,
        *,
        checkpoint: str | PathLike[str] | None = None,
        progress: bool | None = None,
        **renamed: Never,
    ) -> Self:
        """One forward pass over the training data; no gradients for the last layer. Again starts afresh.

        Where a process group of torch.distributed is initialised, each process's loader has its own share of
        the data, and all end with the same posterior. So it is with `update` and `tune`.

        Args:
            loader: yields (x, y), ((x1, x2), y), or mappings of tensors with a key "labels". Where the output
                has positions, so have the labels; -100 does not count.
            checkpoint: a folder. The sums are written to it twice a minute, and a fit that was interrupted
                goes on from there. The loader must give the same batches in the same order again.
            progress: True, False, or None for a bar on terminals.
        """
        refuse_renamed(renamed)
        fit = partial(FIT[self.layers], self.model, loader, self.options, together().shown(progress))
        with kept_in(checkpoint, self.model, self.options) as keeper:
            self._set_posterior(fit_together("fit", self.model, self.options, partial(fit, keeper=keeper)))
        return self

    def update(self, loader: Loader, *, progress: bool | None = None, **renamed: Never) -> Self:
        """Add more data to what was fitted: one `fit` on both gives the same (apart from drawn labels).

        Args:
            loader: the new data, as for `fit`.
            progress: True, False, or None for a bar on terminals.
        """
        refuse_renamed(renamed)
        before, shown = self._current_posterior().fitted, together().shown(progress)
        fit = partial(FIT[self.layers], self.model, loader, self.options, shown, before.count)
        self._set_posterior(before + fit_together("update", self.model, self.options, fit))
        return self

    def tune(
        self,
        val_loader: Loader | None = None,
        *,
        outliers: Data | None = None,
        objective: Objective = "calibrated",
        weight: float = 0.25,
        penalty: Penalty = "entropy",
        progress: bool | None = None,
    ) -> Self:
        """Choose the prior variance, and by default temperature and residual, in one pass over the data.

        Args:
            val_loader: validation data, as for `fit`; "evidence" needs none.
            outliers: for "ood", a tensor or a loader; by default uniform noise over the range of the
                validation inputs, as many.
            objective: what is minimised.
                "calibrated": the NLL of the validation data, in prior variance and temperature. Then the
                residual, if there is one, gets a threshold beyond the validation data and a variance that
                takes over from there.
                "ood", the paper's: mean NLL − `weight` × mean entropy on outliers. It makes predictions less
                confident on outliers, and on the data too.
                "nll": its first term. Predictions far away are hardly less confident than the network's own.
                "evidence": minus the log marginal likelihood of the fitted data, which needs no other data.
                Its predictions can be far from calibrated.
            weight: of the outliers' term of "ood".
            penalty: of "ood": "entropy", or "uniform": + `weight` × mean cross-entropy to the uniform vector
                instead.
            progress: True, False, or None for a bar on terminals.

        "ood", "nll" and "evidence" keep the temperature. They also keep the residual, unless it was asked for
        (`residual=True`): "ood" then chooses its variance jointly with the prior's, and "nll" the largest
        that raises the validation NLL by at most half a percent.

        Where `prior_variance` is a mapping, each layer gets its own, by "evidence" alone. Over all layers the
        candidates are compared with deviations interpolated between 18 priors (to 0.6 %, near the ends of the
        range 2 %), and by the closed form also where the predictive is "weights".

        Warns (`EdgeWarning`) if the best candidate of "ood", "nll" or "evidence" is the first or the last.
        """
        posterior = self._current_posterior()
        check_objective(objective, weight, penalty)
        each_layer = isinstance(self.prior_variance, dict)
        if objective == EVIDENCE:
            self.prior_variance = tune_by_evidence(posterior, each_layer=each_layer)
            warn_at_the_edge(posterior.candidates(), self.prior_variance, stacklevel=2)
            return self
        if val_loader is None:
            raise ArgumentError(f"objective={objective!r} needs validation data: tune(val_loader)")
        if each_layer:
            raise ArgumentError(
                f"objective={objective!r} chooses one prior variance for all layers, and prior_variance "
                "holds one for each: choose objective='evidence', or set a number first"
            )
        if outliers is not None and objective == CALIBRATED:
            raise ArgumentError(
                "objective='calibrated' looks at no outliers: leave them out, or choose objective='ood'"
            )
        method = self._method("auto" if self.predictive == "weights" else None)
        if objective == CALIBRATED:
            residual = None if self.predictive == "weights" else self._known_residual()  # no weights hold it
            found = tune_calibrated(posterior, residual, method, val_loader, progress)
        else:
            cost = objective_for(objective, posterior.fitted.likelihood, weight, penalty)
            asked = self.options.residual_asked
            residual = self._known_residual() if asked else self._residual()
            data = val_loader, outliers, progress
            found = tune_on_data(
                posterior, residual, self._numbers(), method, cost, *data, choose_residual=asked
            )
        before = self._numbers()
        try:
            self._set_numbers(found)
        except BaseException:  # a number that is not finite, or Ctrl-C: all stay as they were
            self._set_numbers(before)
            raise
        if objective != CALIBRATED:
            warn_at_the_edge(posterior.candidates(), self.prior_variance, stacklevel=2)
        return self

    # ---- predicting

    def forward(self, x: object = None, /, *args: object, **kwargs: object) -> Tensor:
        """Drop-in logits, of the shape of the model's own: their softmax (sigmoid) is `predict_proba`.

        It takes what the model takes, or all of it in one mapping. Differentiable in x; over all layers only
        through the mean of the logits, not through their variance.
        """
        self._warn_if_untuned()
        if args or kwargs:
            x = dict([*enumerate([*([] if x is None else [x]), *args]), *kwargs.items()])
        if torch.compiler.is_compiling():  # a trace has other tensors in place of the model's
            return self._drop_in_logits(x)
        with LateChecks() as checks:
            self._fitted_posterior().check_unchanged(self.model, checks)
            checks.end_batch()  # its outcome is on its way before the network runs
            return self._drop_in_logits(x)

    def _drop_in_logits(self, x: Any) -> Tensor:
        posterior, method = self._fitted_posterior(), self._method(None)
        if method == "weights":
            (batch,) = input_batches(x, model_device(self.model))
            draws = posterior.sample(NETWORKS, self._prior, None)
            logits, model_shape = posterior.average_networks(batch, draws, self.temperature)
            return logits.reshape(model_shape)
        return self._logits_and_gaussian(x)[0]

    def _logits_and_gaussian(self, x: Any) -> tuple[Tensor, LogitGaussian]:
        """Drop-in logits by a closed form, and the Gaussian that they are of."""
        residual = self._residual()
        root = None if residual is None else residual.root_kernel(x)
        posterior = self._fitted_posterior()
        gaussian, shape = posterior.forward(x, self._prior)
        gaussian = self._complete(gaussian, root)
        return posterior.layout.output(predictive.predict(gaussian, self._method(None)), shape), gaussian

    @torch.no_grad()
    def logits(self, x: Data) -> LogitGaussian:
        """The Gaussian over the network's outputs at x (or a loader): mean (n, k), covariance (n, k, k).

        Where the output has positions, n counts them all, one input's after the other's.
        """
        self._warn_if_untuned()
        posterior = self._current_posterior()
        parts = ((posterior.logits(each.inputs, self._prior), each.root_kernel) for each in self._batches(x))
        return LogitGaussian.stacked([self._complete(*part) for part in parts])

    @torch.no_grad()
    def predict_proba(
        self,
        x: Data,
        *,
        method: Predictive | None = None,
        samples: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Probabilities (n, k), rows sum to one; (n, 2) for a network with one logit.

        Where the output has positions they are of its shape, (n, t, k) or (n, k, h, w).

        Args:
            x: inputs, or a loader of them.
            method: "probit", "pairwise", "meanfield", "bridge", "mc", "quadrature" or, over all layers,
                "weights": the average over drawn networks, the same ones for all batches; by default
                `predictive`.
            samples: of the logits, for "mc", 100 by default; of the network, for "weights", 20.
            generator: for "mc" and "weights".
        """
        self._warn_if_untuned()
        posterior, chosen = self._current_posterior(), self._method(method)
        if chosen == "weights" and self.options.residual_asked:
            raise ArgumentError("method='weights' never sees the residual: choose another, or residual=False")
        drawn = chosen in ("mc", "weights")
        if samples is not None and (not drawn or type(samples) is not int or samples < 1):
            raise ArgumentError(
                f"samples={samples!r}, method={chosen!r}: expected a positive number, and 'mc'"
                + (" or 'weights'" if self.layers == "all" else "")
            )
        if chosen == "weights":
            draws = posterior.sample(samples or NETWORKS, self._prior, generator)
            batches = input_batches(x, model_device(self.model))  # no weights hold the residual
            parts = ((each, posterior.average_networks(each, draws, self.temperature)[0]) for each in batches)
        else:
            predict = partial(predictive.predict, method=chosen, samples=samples, generator=generator)
            gaussians = self._gaussians(self._batches(x), samples)
            parts = ((batch, predict(each)) for batch, each in gaussians)
        log_probabilities = posterior.fitted.likelihood.log_probabilities
        found = ((batch.positions, log_probabilities(each).exp()) for batch, each in parts)
        return posterior.layout.together(found)

    @torch.no_grad()
    def sample(self, n: int, *, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """n draws of the weights (the head's, or all layers'), stacked, under the model's own names.

        As `torch.func.functional_call` takes them, under `torch.vmap`; with `tie_weights=False` where the
        head shares its weight with another layer, which is not drawn. No weights hold the residual.

        Args:
            n: the number of draws.
            generator: of the random numbers.
        """
        posterior = self._current_posterior()
        if not isinstance(n, int) or n < 1:
            raise ArgumentError(f"n={n!r}: expected a positive number of draws")
        return posterior.sample(n, self._prior, generator)

    # ---- deciding

    @torch.no_grad()
    def score(self, x: Data) -> Tensor:
        """log Σᵢ exp(m̃ᵢ/√(1 + π/8·c̃ᵢᵢ)), (n,), m̃ and c̃ the centred logits' means and variances.

        One number a row, larger = more like the data, for ranking and rejecting: `bayes.score(x) >= t`, with
        t from `threshold`. Where the output has positions, one for each: (n, t) or (n, h, w). It is of the
        Gaussian over the logits, whatever the predictive is; for one logit
        z = m/√(1 + π/8·v) it is that of the two logits ±z/2.

        Args:
            x: inputs, or a loader of them.
        """
        self._warn_if_untuned()
        layout = self._current_posterior().layout
        gaussians = self._gaussians(self._batches(x))
        return layout.together((batch.positions, uncertainty.score(each)) for batch, each in gaussians)

    @torch.no_grad()
    def threshold(self, val_loader: Data, *, accept: float = 0.95) -> float:
        """The largest t for which at least that share of the data has `score` ≥ t.

        Accept what is like the data by `bayes.score(x) >= t`.

        Args:
            val_loader: inputs that were not trained on, or a loader of them; labels are not looked at, but
                that positions with the label -100 are left out.
            accept: the share, above 0 and at most 1.

        >>> import bitbayes as bb
        >>> _ = torch.manual_seed(0)
        >>> x, y = torch.randn(40, 2), torch.arange(40) % 2
        >>> bayes = bb.Laplace(nn.Linear(2, 2)).fit([(x, y)])
        >>> t = bayes.threshold(x, accept=0.75)
        >>> int((bayes.score(x) >= t).sum())
        30
        """
        metrics.check_share(accept)
        self._warn_if_untuned()
        self._current_posterior()
        gaussians = self._gaussians(self._batches(val_loader, keep_labels=True))
        return metrics.threshold(torch.cat([uncertainty.score(each) for _, each in gaussians]), accept=accept)

    @torch.no_grad()
    def uncertainty(
        self, x: Data, *, samples: int | None = None, generator: torch.Generator | None = None
    ) -> Uncertainty:
        """H[E p] = E H[p] + E KL(p ‖ E p), (n,) each in nats, and the variance of p (n, k), by draws of p.

        The first part is noise in the labels, the second, the mutual information of label and weights, is
        what more data could take away. With `predictive="weights"` p is that of drawn networks, otherwise the
        softmax of drawn logits. All rows share their random numbers, and without a generator every call
        does: what is returned for a row depends on no other row.

        Args:
            x: inputs, or a loader of them.
            samples: the number of draws, 100 by default; 20 networks for "weights".
            generator: of the random numbers; by default a new one with a fixed seed.
        """
        self._warn_if_untuned()
        posterior, method = self._current_posterior(), self._method(None)
        if samples is not None and (type(samples) is not int or samples < 1):
            raise ArgumentError(f"samples={samples!r}: expected a positive number of draws")
        if generator is None:
            generator = torch.Generator(model_device(self.model)).manual_seed(UNCERTAINTY_SEED)
        parts = []
        if method == "weights":
            draws = posterior.sample(samples or NETWORKS, self._prior, generator)
            for batch in input_batches(x, model_device(self.model)):
                outputs, _ = posterior.network_logits(batch, draws, self.temperature)
                parts.append(
                    (batch.positions, uncertainty.of_draws(predictive.network_probabilities(outputs)))
                )
        else:
            state = generator.get_state()
            for batch, gaussian in self._gaussians(self._batches(x), samples):
                generator.set_state(state)
                found = uncertainty.of_gaussian(gaussian, samples or predictive.SAMPLES, generator)
                parts.append((batch.positions, found))
        together, sizes = posterior.layout.together, [each for each, _ in parts]
        columns = zip(*(found for _, found in parts), strict=True)
        return Uncertainty(*(together(zip(sizes, each, strict=True)) for each in columns))

    @torch.no_grad()
    def evaluate(
        self,
        loader: Loader,
        *,
        outliers: Mapping[str, Data] | None = None,
        progress: bool | None = None,
    ) -> dict[str, float]:
        """The `metrics` of the predictions on labelled data, and of `score` on outliers, in one pass.

        "accuracy", "nll", "ece", "brier", "mmc" and, in the order of `score`, "aurc"; for each set of
        outliers "NAME/auroc" and "NAME/fpr95", which tell it from the data by `score`, and "NAME/mmc". All
        are floats, and MLflow and Weights & Biases take all keys as they are: in NAME whatever is no letter,
        digit or underscore becomes an underscore (`metrics.log_names`).

        Args:
            loader: test data, as for `fit`.
            outliers: a tensor or a loader for each name; their labels are not looked at.
            progress: True, False, or None for a bar on terminals.
        """
        self._current_posterior()
        self._warn_if_untuned()
        if outliers is not None and not isinstance(outliers, Mapping):
            raise ArgumentError(
                f"outliers is a {type(outliers).__name__}: expected a mapping from the name of each set to a "
                "tensor or a loader"
            )
        sets = dict(outliers or {})
        for name, data in sets.items():
            with _naming(name):
                check_data(data)
        steps = track(check_loader(loader), "evaluating", progress)
        batches = self._with_kernel(labelled_batches(steps, model_device(self.model)))
        labels, probs, scores = map(torch.cat, zip(*self._predictions(batches), strict=True))
        found = {
            "accuracy": metrics.accuracy(probs, labels),
            "nll": metrics.nll(probs, labels),
            "ece": metrics.ece(probs, labels),
            "brier": metrics.brier(probs, labels),
            "mmc": metrics.mmc(probs),
            "aurc": metrics.aurc(scores, probs.argmax(1) == labels),
        }
        for (name, data), key in zip(sets.items(), metrics.log_names(sets), strict=True):
            with _naming(name):
                if not isinstance(data, (Tensor, Mapping)):
                    data = track(data, f"evaluating: {name}", progress)
                _, *predictions = zip(*self._predictions(self._batches(data)), strict=True)
                probs_out, scores_out = map(torch.cat, predictions)
                found[f"{key}/auroc"] = metrics.auroc(scores, scores_out)
                found[f"{key}/fpr95"] = metrics.fpr95(scores, scores_out)
                found[f"{key}/mmc"] = metrics.mmc(probs_out)
        return found

    def log_evidence(
        self, prior_variance: float | Tensor | Mapping[str, float | Tensor] | None = None
    ) -> Tensor:
        """log p(D) ≈ log p(D | W*) − ½[τ‖W*‖² − P log τ + log det(H + τI)], τ = 1/σ₀², P weights.

        A scalar in float64; given a tensor, differentiable in it. Over all layers a sum over layers, each
        with its own τ if `prior_variance` is a mapping.
        """
        value = self.prior_variance if prior_variance is None else prior_variance
        return self._current_posterior().log_evidence(differentiable(value, self._layer_names))

    # ---- far from the data

    def limit(self, x: Tensor, *, tolerance: float = 0.0) -> Limit:
        """The confidence that `predict_proba(δ·x)` tends to as δ → ∞, and the class it goes to: (n,) each.

        One logit: σ(|μᵀs|/√(π/8·sᵀΣs)), s the slope of the features along the ray. Where s = 0 the features
        stop growing, and it is the prediction there. In float64, computed in one pass and not sampled at a
        large δ. For predictives in closed form, and networks that are affine piece by piece. With
        the residual it is 1/k.

        Args:
            x: one ray for each row.
            tolerance: see `certify`.

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
        x, _ = rays.unit_rays(x)
        found = rays.limit(self._rays(x, find_alpha=False, tolerance=tolerance), self._method(None))
        return rays.ApproximateLimit(*found) if tolerance else found

    def bound(self, x: Tensor | None = None, *, form: BoundForm = "tight") -> Tensor:
        """A confidence that no limit exceeds: one number for all x; over all layers one for each row of x.

        For the last layer without the residual no prediction exceeds it either, near or far. One logit:
        σ(√(μᵀΣ⁻¹μ/κ)), κ = π/8, weights and bias together. No smaller number holds for all features: the
        confidence tends to it along t·Σ⁻¹μ. k logits: each difference of two (for "probit" each logit less
        the mean of all) has its own μ and Σ, and its own bound. Each μ is divided by the temperature. With
        the residual it is 1/k, for x ≠ 0. In float64; for "probit", "quadrature", "pairwise" and "meanfield".

        Over all layers σ(√(uᵀ(JΣJᵀ)⁻¹u/κ)), where u is the logit's gradient in x in the ray's final region,
        and J = ∂u/∂θ. Or the bound of the last layer given all others, if that is smaller, if J is too large
        to form, or if JΣJᵀ is singular, as it is behind max pooling. The work grows with the cube of the
        input's size.

        Args:
            x: one ray for each row; needed over all layers.
            form: "tight", or "theorem": the paper's, which is never smaller. One logit:
                σ(‖μ‖/√(κ λ_min(Σ))). k logits: "pairwise" bounds each |zᵢⱼ| by ‖μᵢ − μⱼ‖/√(2κ λ_min(Σ)),
                "probit" each |zᵢ| by ‖μᵢ − μ̄‖/√(κ(1 − 1/k) λ_min(Σ)), and "meanfield" by
                ‖μᵢ − μ̄‖/√(2κ λ_min(Σ)). Over all layers σ(‖u‖/(s_min(J)·√(κ λ_min(Σ)))), which is 1 where x
                or s_min(J) is 0. For the last layer "tight" gives this too where there are too many logits:
                from about 200 for "pairwise", and from about 4,000 for the others.

        >>> import bitbayes as bb
        >>> _ = torch.manual_seed(0)
        >>> x, y = torch.randn(40, 2), torch.arange(40) % 2
        >>> model = nn.Sequential(nn.Linear(2, 10), nn.ReLU(), nn.Linear(10, 1))
        >>> bayes = bb.Laplace(model, structure="isotropic", prior_variance=10.0).fit([(x, y)])
        >>> bool(bayes.limit(x).confidence.max() <= bayes.bound() < 0.75)
        True
        """
        one_of("form", form, rays.FORMS)
        posterior = self._current_posterior()
        found = posterior.bound(x, self._prior, self.temperature, self._method(None), form)
        return rays.bound_with_residual(found, x, posterior.outputs) if self._residual() else found

    def certify(self, x: Tensor, *, tolerance: float = 0.0) -> Certificate:
        """For each ray δ·x: alpha, the limit, and a confidence never exceeded for δ ≥ alpha; (n,) each.

        From alpha on every unit of the network keeps its state: no ReLU switches, no max pooling changes its
        choice. One logit: the exact maximum of z(δ) = (aδ + c)/√(1 + π/8·(q₂δ² + 2q₁δ + q₀)) beyond alpha
        ("quadrature": within 5e-5); k logits: within 1e-3 above the largest confidence. In float64:
        predictions in float32 may differ by their rounding.

        Args:
            x: one ray for each row.
            tolerance: above 0 the result is approximate, which its type says: units whose slope is less than
                that, relative to their layer's largest, count as settled where they are. A few such units
                make alpha huge where hardly anything changes any more.

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
        x, size = rays.unit_rays(x)
        found = rays.certify(self._rays(x, find_alpha=True, tolerance=tolerance), self._method(None))
        kind = rays.ApproximateCertificate if tolerance else Certificate
        return kind(found.alpha / size.to(found.alpha.device), found.limit, found.confidence)

    # ---- files

    def save(self, path: str | PathLike[str]) -> None:
        """Write everything but the model to a safetensors file."""
        fitted = self._fitted_posterior().fitted
        if fingerprint(self.model) != fitted.fingerprint:
            raise ModelError(
                "the model has changed since `fit`, so no model would fit the file: call `fit` again"
            )
        posterior_file.write(path, self.options.as_json(), self._numbers()._asdict(), fitted)

    @classmethod
    def load(
        cls, path: str | PathLike[str], model: nn.Module, *, output: Callable[..., Tensor] | None = None
    ) -> Self:
        """Read what `save` wrote, for the same model, wherever that now lives.

        Args:
            path: the file.
            model: the network that was fitted, with the weights it had then.
            output: the function that picks the logits, if it was fitted with one.
        """
        model = unwrapped(model)
        options, numbers, fitted = posterior_file.read(path, fingerprint(model), model_device(model))
        try:
            bayes = cls(model, **Options.from_json(options, output))
            bayes._set_posterior(fitted)
            for name in NUMBERS:
                setattr(bayes, name, numbers[name])
        except (ArgumentError, TypeError, KeyError) as error:
            raise FileError(f"{path} has a damaged header: {error}") from error
        return bayes

    def export(
        self,
        path: str | PathLike[str],
        example: Tensor | NamedInputs,
        *,
        dynamic_shapes: export.DynamicShapes | None = None,
        score: bool = False,
        metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Write the drop-in, model and posterior together, as a graph that runs without bitbayes.

        Its output has the shape of the model's own, for any number of rows; its softmax (sigmoid) is
        `predict_proba`, by the `predictive` and with the numbers of now (prior variance, temperature,
        residual). It checks no input: where the network overflows, so does the graph. For predictives in
        closed form.

        Args:
            path: ends in ".onnx" (last layer; needs the extra `onnx`), or ".pt2" for `torch.export.load`.
            example: inputs as the model takes them, one row or more; the input's names in ONNX are a
                mapping's keys, or "x".
            dynamic_shapes: sizes beside the number of rows that are free, {1: "length"}, or by input if these
                are a mapping: {"input_ids": {1: "length"}, "attention_mask": {1: "length"}}. A name is one
                size; in the place of a name may be a `torch.export.Dim` with bounds.
            score: whether the graph has a second output, "score": `score(x)` (n,), for a threshold.
            metadata: what the file tells about the graph, texts or what JSON can hold; versions are added.

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
        self._current_posterior()
        if self._method(None) not in predictive.closed_forms():
            raise ArgumentError(
                f"predictive={self._method(None)!r}: only a predictive in closed form "
                f"({', '.join(predictive.closed_forms())}) becomes a graph"
            )
        target, every = export.check_path(path), self.layers == "all"
        if every and target.suffix == ".onnx":
            raise ArgumentError(
                "layers='all' needs derivatives, which ONNX has not: export to '.pt2' instead"
            )
        export.write(
            _WithScore(self) if score else self,
            target,
            example,
            dynamic_shapes=dynamic_shapes,
            metadata=metadata,
            outputs=(export.LOGITS, export.SCORE) if score else (export.LOGITS,),
            differentiates=every,
        )

    def extra_repr(self) -> str:
        state = f"fitted on {self._posterior.fitted.count:,} points" if self._posterior else "not fitted"
        value = self.prior_variance
        shown = f"{value:.4g}" if isinstance(value, float) else f"{len(value)} layers' own"
        residual = f"{self.residual_variance:.4g}" if self._posterior and self._residual() else "none"
        return (
            f"layers={self.layers!r}, structure={self.structure!r}, predictive={self.predictive!r}, "
            f"prior_variance={shown}, temperature={self.temperature:.4g}, residual variance={residual}, "
            f"{state}"
        )

    # ---- inside

    def _fitted_posterior(self) -> WeightPosterior:
        if self._posterior is None:
            raise NotFittedError("this Laplace is not fitted yet: call `fit(train_loader)` first")
        return self._posterior

    def _current_posterior(self) -> WeightPosterior:
        """What was fitted; raises if the model has changed since."""
        posterior = self._fitted_posterior()
        if not torch.compiler.is_compiling():  # a trace has other tensors in place of the model's
            posterior.check_unchanged(self.model)
        return posterior

    def _set_posterior(self, fitted: Fitted) -> None:
        """Predict with this from now on. Raises, and changes nothing, if the prior does not fit it."""
        posterior = POSTERIOR[self.layers](self.model, fitted, paper=self.options.paper)
        if isinstance(self.prior_variance, dict):
            check_variance(self.prior_variance, lambda: posterior.names)
        self._posterior = posterior
        moments, layers = fitted.input_moments, self.options.residual_layers
        self._kept_residual = None if moments is None else Residual(self.model, layers, moments)

    def _layer_names(self) -> tuple[str, ...] | None:
        """The layers that may have a prior variance of their own; None where there is one for all weights."""
        if self.layers == "last" or self.structure == "full":
            return None
        if self._posterior is not None:
            return self._posterior.names
        return tuple(layer.name for layer in find_layers(self.model))

    def _method(self, method: str | None) -> str:
        method = method or self.predictive
        if method == "weights" and self.layers == "all":
            return method
        posterior = self._fitted_posterior()
        return predictive.method_for(method, posterior.outputs, pairs=posterior.knows_pairs)

    def _warn_if_untuned(self) -> None:
        """Say once that a prediction is made with a prior variance that nobody chose."""
        if self._chosen or self._posterior is None or torch.compiler.is_compiling():
            return
        warnings.warn(
            f"nothing was tuned: the prior variance is {self.prior_variance:g}, and predictions may be far "
            "from calibrated. Call `tune(val_loader)` first, or set `prior_variance` yourself",
            UntunedWarning,
            stacklevel=_level_of_the_caller(),
        )
        self._chosen = True

    def _known_residual(self) -> Residual | None:
        """The residual that `fit` learned, if any, whether it is in use or not."""
        self._fitted_posterior()
        return self._kept_residual

    def _residual(self) -> Residual | None:
        """The residual, if there is one in use."""
        return self._known_residual() if self.residual_variance > 0 else None

    def _batches(self, x: Data, *, keep_labels: bool = False) -> Iterator[Batch]:
        """The batches of x, with the residual's kernel if there is a residual.

        `keep_labels`: where the output has positions, of which they say whether these count.
        """
        positions = self._fitted_posterior().layout.positions
        keep = keep_labels and positions
        batches = input_batches(x, model_device(self.model), positions=positions, keep_labels=keep)
        return self._with_kernel(batches)

    def _with_kernel(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        residual = self._residual()
        return batches if residual is None else residual.attached_to(batches)

    def _gaussians(
        self, batches: Iterator[Batch], samples: int | None = None
    ) -> Iterator[tuple[Batch, LogitGaussian]]:
        """The points of each batch, as many at a time as may be drawn at once, and their Gaussian."""
        posterior = self._fitted_posterior()
        numbers = posterior.outputs * max(predictive.FEW_CLASSES, samples or predictive.SAMPLES)
        rows = max(1, NUMBERS_PER_PREDICTION // numbers)
        for batch, gaussian in posterior.gaussians(batches, self._prior, rows):
            yield batch, self._complete(gaussian, batch.root_kernel)

    def _predictions(self, batches: Iterator[Batch]) -> Iterator[tuple[Tensor | None, Tensor, Tensor]]:
        """Labels (n,), if there are any, probabilities (n, k) and scores (n,), on the CPU."""
        posterior, method = self._fitted_posterior(), self._method(None)
        draws = posterior.sample(NETWORKS, self._prior, None) if method == "weights" else None
        for batch, gaussian in self._gaussians(batches):
            if draws is None:
                logits = predictive.predict(gaussian, method)
            else:
                logits, _ = posterior.average_networks(batch, draws, self.temperature)
            probs = posterior.fitted.likelihood.log_probabilities(logits).exp()
            labels = None if batch.labels is None else batch.labels.cpu()
            yield labels, probs.cpu(), uncertainty.score(gaussian).cpu()

    def _complete(self, gaussian: LogitGaussian, root_kernel: Tensor | None) -> LogitGaussian:
        if root_kernel is not None:  # it is the same for all positions of an input
            root_kernel = self._fitted_posterior().layout.for_points(root_kernel, gaussian.scale.shape[0])
        return self._numbers().complete(gaussian, root_kernel)

    def _numbers(self) -> Candidate:
        return Candidate(**{name: getattr(self, name) for name in NUMBERS})

    def _set_numbers(self, numbers: Candidate) -> None:
        for name, value in numbers._asdict().items():
            if value is not None:
                setattr(self, name, value)

    def _rays(self, x: Tensor, *, find_alpha: bool, tolerance: float) -> Iterator[RayGaussian]:
        posterior, residual = self._current_posterior(), self._residual()
        if not isinstance(tolerance, (int, float)) or not 0 <= tolerance < 1:
            raise ArgumentError(f"tolerance={tolerance!r}: expected a number from 0 (exact) to below 1")
        found = posterior.rays(x, self._prior, find_alpha=find_alpha, tolerance=tolerance)
        found = (ray.at_temperature(self.temperature) for ray in found)
        if residual is None:
            return found
        return rays.with_residual(found, x, residual, self.residual_variance, self.residual_threshold)


class _WithScore(nn.Module):
    """The drop-in logits and the score, for a graph that has both."""

    def __init__(self, bayes: Laplace) -> None:
        super().__init__()
        self.bayes = bayes

    def forward(self, x: Any) -> tuple[Tensor, Tensor]:
        logits, gaussian = self.bayes._logits_and_gaussian(x)
        return logits, uncertainty.score(gaussian)


def _level_of_the_caller() -> int:
    """The `stacklevel` with which a warning points at the first line outside this package and torch."""
    level, frame = 0, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in ("bitbayes", "torch"):
        level, frame = level + 1, frame.f_back
    return level + 1


@contextmanager
def _naming(outliers: str) -> Iterator[None]:
    """Say which set of outliers an error is about."""
    try:
        yield
    except BitbayesError as error:
        raise type(error)(f"outliers {outliers!r}: {error}") from error

"""Laplace: the public face. It ties the packages together and holds no mathematics."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Never, Self, overload

import torch
from torch import Tensor, nn

from bitbayes import hub, metrics, rays
from bitbayes.card import Evaluated
from bitbayes.decisions.conformal_interval import ConformalInterval
from bitbayes.decisions.graph import GraphRequest, make_graph
from bitbayes.decisions.prediction_sets import Groups, PredictionSets, SetMethod
from bitbayes.decisions.risk_threshold import LossMatrix, RiskThreshold
from bitbayes.decisions.shift_test import ShiftTest
from bitbayes.errors import (
    ArgumentError,
    FileError,
    ModelError,
    NotFittedError,
    UntunedWarning,
    level_of_the_caller,
    naming,
    one_of,
)
from bitbayes.fitted import Fitted
from bitbayes.fitting import FitRequest, fit_jointly
from bitbayes.io import export, posterior_file
from bitbayes.io.atomic_write import check_writable
from bitbayes.io.checkpoint import checkpointing
from bitbayes.io.strict_json import as_parsed
from bitbayes.likelihoods import LIKELIHOODS, Likelihood
from bitbayes.likelihoods.preference import Reward
from bitbayes.logits import LogitGaussian
from bitbayes.metrics.several_labels import threshold_choice
from bitbayes.model import (
    Adapter,
    Batch,
    Data,
    DeferredChecks,
    Loader,
    ModelWrapper,
    NamedInputs,
    PairAdapter,
    Selector,
    check_data,
    check_loader,
    find_layers,
    fingerprint,
    labelled_batches,
    model_device,
    selected,
    unselected,
    unwrapped,
    without_labels,
)
from bitbayes.options import (
    AUTO,
    SAMPLED_NETWORKS,
    BoundForm,
    CovarianceName,
    CurvatureName,
    Draws,
    Fisher,
    FrozenOption,
    LaplaceOptions,
    Layers,
    LikelihoodName,
    Objective,
    Options,
    Penalty,
    PredictiveName,
    ResidualOption,
    Structure,
    refuse_attribute,
    refuse_places,
    refuse_unknown,
)
from bitbayes.posteriors import WeightPosterior, posterior_of
from bitbayes.posteriors.base import Passed
from bitbayes.predicting import RANKS, SCORE, Predictive, Predictor, Rank
from bitbayes.prior import Prior, check_noise_variance, check_variance, differentiable, positive
from bitbayes.processes import current_processes
from bitbayes.progress import track
from bitbayes.rays import BoundRequest, Certificate, Limit, RayGaussian, ValueCertificate, ValueLimit
from bitbayes.regression import Prediction
from bitbayes.residual import Residual
from bitbayes.settings import SettingAttribute, Settings
from bitbayes.summary import Known, summary
from bitbayes.tuned import TunedData, seen_data
from bitbayes.tuning import (
    CALIBRATED,
    EVIDENCE,
    TuningRequest,
    check_objective,
    objective_for,
    tune_by_evidence,
    tune_calibrated,
    tune_calibrated_regression,
    tune_on_data,
    warn_at_the_edge,
)
from bitbayes.uncertainty import Uncertainty

# alpha, limit, confidence or ratio, and `beyond`.
CertifiedValues = tuple[Tensor, Tensor, Tensor, Tensor | None]
UNCERTAINTY_SEED = 0
# What a user may set, and the public attributes that `__init__` sets.
SETTABLE = (
    "settings",
    "temperature",
    "prior_variance",
    "near_variance",
    "beyond_variance",
    "noise_variance",
    "predictive",
    "covariance",
)
ATTRIBUTES = ("model", "options")


class Laplace(ModelWrapper):
    """A trained classifier with honest confidence: its predictions are averages over a Gaussian of weights.

    Make one from your model, `fit` it on the training data, and `tune` it on validation data. Then use it in
    the place of the model. The model itself is never changed. Making a `Laplace` computes nothing yet.

    It is an `nn.Module`: `to(device)` moves the model, and the state dict carries what was fitted and chosen.
    Only the dtype stays: `half()`, `double()` and `to(dtype)` warn and convert nothing.

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

    Args:
        model: a trained network that returns logits. For `layers="last"` these are a linear map of features,
            one row for each input or for each position in it (docs/models.md). A network inside
            `torch.compile`, `DataParallel` or `DistributedDataParallel` is taken out of it. Of an FSDP model
            a plain copy is taken.
        layers: the layers that get a Gaussian: "last", or "all", which is every parameter that requires a
            gradient. Names of layers, or of modules that hold them, are some of these. What is said of
            `layers="all"` holds for them, too.
        structure: what is kept of the curvature. "full" is everything. "kron" and "diag" are cheaper. For the
            last layer there are also "lowrank" (as kron, for many classes) and "isotropic" (none: the paper's
            baseline). "auto" is kron, and full for a `subnetwork`; for the last layer it is full for one
            logit, and lowrank for more than 4,096.
        prior_variance: the variance σ₀² > 0 of the weights before data. `tune` chooses it, and it can be set
            at any time. With `layers="all"` it may be a mapping from each layer's name to its own. None is 1,
            with a warning at the first prediction if nothing was chosen by then.
        predictive: how the average is computed: the default `method` of `predict_proba`. "auto" is probit for
            one logit, pairwise for up to 64 and meanfield for more. It can be set at any time.
        likelihood: of the labels. "auto" is "bernoulli" for one output and "categorical" for more. "gaussian"
            is for regression, with `predict` and `interval` (docs/regression.md). "multilabel" is for several
            labels of each input (docs/multilabel.md). "preference" is for reward models, with `reward`
            (docs/preferences.md).
        head: the name of the last linear layer. It is found automatically if None.
        curvature: with `layers="all"`, "exact" takes k − 1 backward passes for each batch; "fisher", or
            `bb.Fisher(draws=1)`, takes one for each label that is drawn from the model. "auto" is exact for
            up to 64 outputs, and "fisher" for more.
        covariance: of the logits, with `layers="all"`. "exact" takes k − 1 backward passes for each batch;
            "draws", or `bb.Draws(20)`, estimates it by draws of the weights, and takes about two forward
            passes for each. "auto" is exact for up to 64 outputs, and "draws" for more. It can be set at any
            time.
        subnetwork: with `layers="all"`, how many weights get a Gaussian: those of the largest variance under
            the diagonal approximation, with their full covariance. All others stay at their trained values.
            None is all weights. `fit` takes a pass more to choose them.
        residual: whether to add a variance that grows with the distance from the training data, near them and
            beyond. "auto" measures it at the head's input, at up to three levels before it, and at the input
            of the model if that is of floating-point numbers (or uint8) of one size, once `tune` has chosen
            its numbers. Names of layers choose the levels before the head; True uses it before `tune`, too.
        noise_variance: σ² of the targets in regression, one number or one for each output, if it is known.
            Otherwise `tune` chooses it.
        output: where the logits are in what the model returns: a key, an attribute, or a function. It is not
            needed if the model returns a tensor, or something with `logits`.
        adapt: a function of a loader's batch that returns (inputs, labels), for loaders whose batches have
            another form than `fit` takes.

    Note:
        p(y | x) = ∫ softmax(W φ̃(x)) N(W | W*, Σ) dW, with Σ = (H + I/σ₀²)⁻¹. W* are the trained weights, φ̃ is
        the last layer's input with a 1 for the bias, and H = Σₙ Λₙ ⊗ φ̃ₙφ̃ₙᵀ is the curvature of the loss. With
        `layers="all"`, H = Σₙ JₙᵀΛₙJₙ, where J is the derivative of the logits with respect to the
        parameters, and the network is treated as linear in these: f(x) + J(x)(θ − θ*).
    """

    layers = FrozenOption[Layers]("The layers that have a Gaussian.")
    structure = FrozenOption[Structure]("What is kept of the curvature, as it was asked for.")
    head = FrozenOption[str | None]("The name of the last linear layer, if it was given.")
    curvature = FrozenOption[CurvatureName | Fisher]("How the curvature is computed.")
    residual = FrozenOption[ResidualOption]("The residual, as it was asked for.")
    subnetwork = FrozenOption[int | None]("How many weights have a Gaussian; None is all of the layers'.")
    output = FrozenOption[Selector | None]("Where the logits are in what the model returns.")
    adapt = FrozenOption[Adapter | None]("What makes (inputs, labels) of a loader's batch.")
    likelihood = FrozenOption[str]("The likelihood of the labels, as it was asked for.")
    temperature = SettingAttribute(
        "The mean logits are divided by it before the average is taken. Their variance is not."
    )
    near_variance = SettingAttribute(
        "The variance that the residual adds to every logit at the edge of the data; see `Settings`."
    )
    beyond_variance = SettingAttribute("That of the residual's steep term beyond the data; see `Settings`.")
    # `private_copy` need not copy it: it runs a copy of its model itself.
    _runs_privately = True

    def __init__(
        self,
        model: nn.Module,
        *places: Never,  # laplace-torch takes options by their place
        layers: Layers = "last",
        structure: Structure = "auto",
        prior_variance: float | Mapping[str, float] | None = None,
        predictive: PredictiveName = "auto",
        likelihood: LikelihoodName = "auto",
        head: str | None = None,
        curvature: CurvatureName | Fisher = AUTO,
        covariance: CovarianceName | Draws = AUTO,
        subnetwork: int | None = None,
        residual: ResidualOption = AUTO,
        noise_variance: float | Sequence[float] | None = None,
        output: Selector | None = None,
        adapt: Adapter | None = None,
        **unknown: Never,  # a misspelt name gets a helpful error, and type checkers accept none
    ) -> None:
        super().__init__()
        refuse_places(places)
        refuse_unknown(unknown, LaplaceOptions.__annotations__)
        if not isinstance(model, nn.Module):
            raise ArgumentError(f"model is a {type(model).__name__}: expected a torch.nn.Module")
        self.model = selected(unwrapped(model), output, adapt)
        if likelihood in LIKELIHOODS and LIKELIHOODS[likelihood].of_pairs:
            self.model = selected(unselected(self.model), output, PairAdapter(adapt))
        given: dict[str, Any] = {"layers": layers, "structure": structure, "predictive": predictive}
        given |= {"likelihood": likelihood, "head": head, "output": output, "adapt": adapt}
        given |= {"noise_variance": noise_variance, "covariance": covariance, "subnetwork": subnetwork}
        self.options = Options.checked(self.model, curvature, residual, **given)
        self._posterior: WeightPosterior | None = None
        self._residual: Residual | None = None
        self._tuned: TunedData | None = None
        self._warned = False
        self.settings = Settings(
            None if prior_variance is None else check_variance(prior_variance, self._layer_names),
            noise_variance=self.options.noise_variance,
            **self._untuned_residual,
        )

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute. An unknown public name raises: `bayes.tempature = 3` would change nothing.

        Frameworks set names with an underscore. A subclass may have attributes of its own.
        """
        known = name.startswith("_") or name in ATTRIBUTES or name in dir(self)
        if not known and type(self) is Laplace:
            refuse_attribute(name, value, SETTABLE)
        super().__setattr__(name, value)

    # ---- numbers that can be set at any time; no data pass follows

    @property
    def settings(self) -> Settings:
        """The numbers that `tune` chooses, as one frozen value."""
        return self._settings

    @settings.setter
    def settings(self, value: Settings) -> None:
        if isinstance(value.prior_variance, dict):
            check_variance(value.prior_variance, self._layer_names)
        self._check_settings(value, self._posterior)
        if self._residual is not None:
            try:
                value = value.in_order_of(self._residual.names)
            except KeyError as error:
                raise ArgumentError(
                    f"the settings lack the level {error}, or have one too many: expected one for each of "
                    f"{list(self._residual.names)}"
                ) from error
        self._settings = value

    @property
    def prior_variance(self) -> float | dict[str, float]:
        """The prior variance σ₀² of the weights: one number, or a dict with one for each layer."""
        value = self.settings.prior_variance
        return 1.0 if value is None else value

    @prior_variance.setter
    def prior_variance(self, value: float | Mapping[str, float]) -> None:
        self.settings = replace(self.settings, prior_variance=check_variance(value, self._layer_names))

    @property
    def noise_variance(self) -> float | tuple[float, ...]:
        """The variance σ² of the targets around the function: one number, or one for each output.

        Until one is chosen, it is the mean squared error on the training data. Only regression has it.
        """
        likelihood = self._known_likelihood(self._posterior)
        if likelihood is not None and not likelihood.has_noise:
            raise ArgumentError(f"likelihood={likelihood.name!r} has no noise variance: only regression has")
        value = self.settings.noise_variance
        return self._fitted_posterior().noise_variance if value is None else value

    @noise_variance.setter
    def noise_variance(self, value: float | Sequence[float]) -> None:
        self.settings = replace(self.settings, noise_variance=check_noise_variance(value))

    @property
    def predictive(self) -> PredictiveName:
        """How the average is computed: the default `method` of `predict_proba`, and that of `bayes(x)`."""
        return self.options.predictive

    @predictive.setter
    def predictive(self, value: PredictiveName) -> None:
        self.options = replace(self.options, predictive=value).check()

    @property
    def covariance(self) -> CovarianceName | Draws:
        """How the covariance of the logits is computed over all layers. After a change, tune again."""
        return self.options.covariance

    @covariance.setter
    def covariance(self, value: CovarianceName | Draws) -> None:
        options, posterior = replace(self.options, covariance=value).check(), self._posterior
        if posterior is not None:
            made = posterior_of(self.model, posterior.fitted, options)
            self._posterior = made.share_decomposition(posterior)
        self.options = options

    # ---- learning

    def fit(
        self,
        loader: Loader,
        *,
        weighted: bool = False,
        checkpoint: str | PathLike[str] | None = None,
        progress: bool | None = None,
    ) -> Self:
        """Learn the Gaussian from the training data, in one forward pass.

        The last layer needs no gradients. A second `fit` starts again from nothing.

        If torch.distributed is initialised, each process has a loader with its own share of the data. All of
        them end with the same posterior. The same holds for `update` and `tune`.

        Args:
            loader: yields (x, y), ((x1, x2), y), or mappings of tensors with a key "labels". If the output
                has positions, the labels have them too, and those with the label -100 do not count. What the
                model does not take, such as the paths of files, is left out, with an `UnusedDataWarning`.
            weighted: whether it yields (x, y, weights), or mappings with a key "weight": numbers from 0 on,
                (n,). A point with the weight w counts w times, and one without weight not at all. If the
                output has positions, all of an input have its weight (docs/weights.md).
            checkpoint: a folder. What was summed up is written there twice a minute, and a fit that was
                interrupted continues from it. The loader must then give the same batches in the same order.
            progress: True or False to show a progress bar or not. None shows one on terminals and in
                notebooks.

        Returns:
            The `Laplace` itself.
        """
        shown = current_processes().shown(progress)
        request = FitRequest(self.model, loader, self.options, shown, weighted=weighted)
        with nullcontext() if checkpoint is None else checkpointing(checkpoint, request) as checkpointer:
            fitted = fit_jointly("fit", replace(request, checkpointer=checkpointer))
            self._set_jointly("the end of fit", lambda: fitted)
        return self

    def update(self, loader: Loader, *, weighted: bool = False, progress: bool | None = None) -> Self:
        """Add more data to what was fitted.

        One `fit` on all data gives the same result (apart from labels that are drawn).

        Args:
            loader: the new data, as for `fit`.
            weighted, progress: as for `fit`.
        """
        processes = current_processes()
        with processes.propagate_errors():
            self.posterior.check_outputs()
            before = self.posterior.fitted
        shown, seen = processes.shown(progress), before.count
        request = FitRequest(
            self.model, loader, self.options, shown, seen, weighted=weighted, chosen=before.chosen
        )
        more = fit_jointly(f"update of {before.summary()}", request)
        self._set_jointly("the end of update", lambda: before + more)
        return self

    def tune(
        self,
        val_loader: Loader | None = None,
        *,
        outliers: Data | None = None,
        objective: Objective = "calibrated",
        weight: float = 0.25,
        penalty: Penalty = "entropy",
        weighted: bool = False,
        class_bias: bool = False,
        progress: bool | None = None,
    ) -> Self:
        """Choose the prior variance, and by default temperature and residual, in one pass over the data.

        Args:
            val_loader: validation data, as for `fit`. "evidence" needs none.
            outliers: for "ood": a tensor or a loader. By default uniform noise over the range of the
                validation inputs, as many as there are of these.
            objective: what to minimise.
                "calibrated": the NLL of the validation data, by prior variance and temperature. A residual
                then gets the widest variance near the data that raises the NLL by at most 1.5 per cent, and
                a steep one beyond them. A weak prior decides where the data cannot.
                "ood": the paper's, mean NLL − `weight` × mean entropy on outliers. Predictions become less
                confident on outliers, and on the data too.
                "nll": the first term alone. Far from the data, predictions are then hardly less confident
                than the network's own.
                "evidence": minus the log marginal likelihood of the fitted data. Its predictions can be far
                from calibrated.
            weight: of the outliers' term of "ood".
            penalty: of "ood". "entropy" as above. "uniform" adds `weight` × mean cross-entropy to the uniform
                distribution instead.
            weighted: whether `val_loader` yields weights of its points, as for `fit`. In all means, medians
                and quantiles a point counts w times.
            class_bias: whether "calibrated" also chooses one bias for each class, which is added to the mean
                logits: for a network that was trained with class weights, a focal loss, or on classes of
                other frequencies than those of the validation data. Together with the temperature it
                minimises the NLL. Each bias β, in log odds at the median point, has the prior N(0, ¼²): it
                costs 8β² nats, shared by all points. So with few points the biases stay near 0. It is
                `settings.class_bias`, and None if it was not asked for. Several labels for each input get one
                each.
            progress: as for `fit`.

        Returns:
            The `Laplace` itself.

        "ood", "nll" and "evidence" choose the prior variance alone, and keep temperature, class bias and
        residual.

        If `prior_variance` is a mapping, each layer gets its own, which only "evidence" can choose. With
        `layers="all"`, candidates are compared with standard deviations that are interpolated between 18
        priors (to 0.6%, near the ends of the range 2%). With `covariance="draws"` these are 12 priors
        (3.5% and 10%), on at most 1,500 points, which are chosen at random. Candidates are compared by the
        closed form even if the predictive is "sampled_networks".

        Warns (`EdgeWarning`) if the chosen prior variance is the first or the last candidate, and
        (`FewPointsWarning`) if there are hardly any validation points.
        """
        processes = current_processes()
        shown = processes.shown(progress)
        with processes.propagate_errors():
            posterior = self.posterior
            check_objective(objective, weight, penalty)
            self._check_tuning(objective, val_loader, outliers)
            if class_bias:
                posterior.likelihood.require_class_bias()
                if objective != CALIBRATED:
                    raise ArgumentError(
                        f"objective={objective!r} chooses the prior variance alone: class_bias=True needs "
                        "objective='calibrated'"
                    )
        if objective == EVIDENCE:
            each_layer, fixed = isinstance(self.prior_variance, dict), self.options.noise_variance
            choose = partial(tune_by_evidence, posterior, self.settings, each_layer=each_layer, fixed=fixed)
            task = f"tune({objective!r}) of {posterior.fitted.summary()}"
            self.settings, _ = processes.agree(task, choose, lambda _: None)
        else:
            assert val_loader is not None
            networks = self.predictive == SAMPLED_NETWORKS
            with processes.propagate_errors():
                posterior.check_outputs()
                method = self._predictive(AUTO if networks else None).name  # networks: by the closed form
            # Drawn networks have no residual. "calibrated" chooses it, and the others keep it.
            used = objective == CALIBRATED or self.settings.has_residual
            residual = self._residual if used and not networks else None
            request = TuningRequest(
                posterior, residual, self.settings, method, val_loader, shown, weighted, class_bias
            )
            if posterior.likelihood.has_noise:
                self.settings, tuned = tune_calibrated_regression(request, self.options.noise_variance)
            elif objective == CALIBRATED:
                self.settings, tuned = tune_calibrated(request)
            else:
                cost = objective_for(objective, posterior.likelihood, weight, penalty)
                self.settings, tuned = tune_on_data(request, cost, outliers)
            # "calibrated" chooses all settings again, and the others keep what earlier data have chosen.
            before = self._tuned.entries if self._tuned and objective != CALIBRATED else ()
            self._tuned = replace(tuned, entries=tuple(dict.fromkeys([*before, *tuned.entries])))
        warn_at_the_edge(posterior.candidates(), self.prior_variance, stacklevel=2)
        return self

    def _check_tuning(self, objective: str, val_loader: Loader | None, outliers: Data | None) -> None:
        """Raise if the arguments of `tune` contradict each other."""
        if objective == EVIDENCE:
            return
        if val_loader is None:
            raise ArgumentError(f"objective={objective!r} needs validation data: tune(val_loader)")
        if isinstance(self.prior_variance, dict):
            raise ArgumentError(
                f"objective={objective!r} chooses one prior variance for all layers, and prior_variance "
                "holds one for each: choose objective='evidence', or set a number first"
            )
        likelihood = self.posterior.likelihood
        if objective != CALIBRATED and not likelihood.classifies:
            raise ArgumentError(
                f"objective={objective!r} is for classifiers: choose 'calibrated' or 'evidence' for "
                f"likelihood={likelihood.name!r}"
            )
        if outliers is not None and objective == CALIBRATED:
            raise ArgumentError(
                "objective='calibrated' looks at no outliers: leave them out, or choose objective='ood'"
            )

    # ---- predicting

    def forward(self, x: object = None, /, *args: object, **kwargs: object) -> Tensor:
        """Return logits in the shape of the model's own, whose softmax (or sigmoid) is `predict_proba`.

        So `bayes(x)` can take the place of `model(x)`. It takes the arguments of the model, or all of them in
        one mapping; labels are left out. The result is differentiable in x; with `layers="all"` only through
        the mean of the logits, not through their variance.
        """
        self._warn_if_untuned()
        if args or kwargs:
            first = [] if x is None and not args else [x]
            x = dict([*enumerate([*first, *args]), *kwargs.items()])
        x = without_labels(x)
        if torch.compiler.is_compiling():  # a trace has other tensors in place of the model's
            return self._drop_in(x)[0]
        with DeferredChecks() as checks:
            self._fitted_posterior().check_unchanged(self.model, checks)
            checks.end_batch()  # its outcome is copied while the network runs
            return self._drop_in(x)[0]

    def _drop_in(self, x: Any) -> tuple[Tensor, Passed | None]:
        predictor = self._predictor()
        return predictor.drop_in(x, predictor.predictive(self.predictive))

    @torch.no_grad()
    def logits(self, x: Data) -> LogitGaussian:
        """Return the Gaussian over the logits at x: its mean (n, k) and covariance (n, k, k).

        If the output has positions, n counts them all, input by input.

        Args:
            x: inputs, or a loader of them.
        """
        self._warn_if_untuned()
        return self._current_predictor().logits(x)

    @torch.no_grad()
    def predict_proba(
        self,
        x: Data,
        *,
        method: PredictiveName | None = None,
        samples: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return class probabilities (n, k). Each row sums to one. A network with one logit gives (n, 2).

        With likelihood="multilabel" they are those of each label, and rows do not sum to one.

        If the output has positions, the result has its shape, (n, t, k) or (n, k, h, w).

        Args:
            x: inputs, or a loader of them.
            method: "probit", "pairwise", "meanfield", "bridge", "mc", "quadrature", or with `layers="all"`
                "sampled_networks": the average over networks that are drawn once for all batches. By default
                `predictive`.
            samples: the number of draws: of logits for "mc", 100 by default, and of networks for
                "sampled_networks", 20 by default.
            generator: of the random numbers for "mc" and "sampled_networks".
        """
        self._warn_if_untuned()
        predictor = self._current_predictor()
        predictive = predictor.predictive(method or self.predictive, samples, generator)
        if samples is not None and predictive.in_closed_form:
            networks = " or 'sampled_networks'" if self.options.over_all_layers else ""
            raise ArgumentError(
                f"samples={samples!r}, method={predictive.name!r}: expected a positive number, and "
                f"'mc'{networks}"
            )
        predictive.likelihood.require_classes()
        if not predictive.of_gaussian and self.options.residual_asked:
            raise ArgumentError(
                f"method={predictive.name!r} does not use the residual: choose another, or residual=False"
            )
        return predictor.assemble(predictor.predict(predictor.batches(x), predictive))

    def predict(self, x: Data, *, joint: bool = False) -> Prediction:
        """Return the values that are predicted in regression: mean, variance and noise variance, (n, k).

        y is N(mean, variance + noise_variance). `variance` is that of the function: of the weights, and of
        the distance from the data. The result is differentiable in x, if x requires a gradient.

        Args:
            x: inputs, or a loader of them.
            joint: whether to return the covariance of the function between the points, too: `covariance`,
                (k, n, n). x must then be one batch.

        >>> import bitbayes as bb
        >>> _ = torch.manual_seed(0)
        >>> x = torch.rand(200, 1)
        >>> y = 3 * x[:, 0] + 0.1 * torch.randn(200)
        >>> model = nn.Linear(1, 1)
        >>> with torch.no_grad():
        ...     _ = model.weight.fill_(3.0), model.bias.fill_(0.0)
        >>> bayes = bb.Laplace(model, likelihood="gaussian").fit([(x[:150], y[:150])])
        >>> bayes = bayes.tune([(x[150:], y[150:])])
        >>> near, far = bayes.predict(torch.tensor([[0.5], [50.0]])).deviation.flatten()
        >>> bool(near < 0.12), bool(far > 1)
        (True, True)
        """
        self._warn_if_untuned()
        predictor = self._current_predictor()
        if joint:
            if not isinstance(x, (Tensor, Mapping)):
                raise ArgumentError(f"joint=True needs one batch of inputs, not a {type(x).__name__}")
            with torch.set_grad_enabled(_requires_grad(x)):
                return predictor.joint_values(without_labels(x))
        if _requires_grad(x):
            return predictor.differentiable_values(without_labels(x))
        with torch.no_grad():
            return Prediction.joined(found for _, found in predictor.values(predictor.batches(x)))

    def interval(self, x: Data, *, coverage: float = 0.9) -> Tensor:
        """Return the interval that y lies in with this probability, (n, k, 2): its lower and upper ends.

        Args:
            x: inputs, or a loader of them.
            coverage: the probability, between 0 and 1.
        """
        return self.predict(x).interval(coverage)

    @torch.no_grad()
    def reward(self, x: Data, other: Tensor | NamedInputs | None = None) -> Reward:
        """Return the rewards of inputs, or how much larger they are than those of others: mean and deviation.

        r(x) = w·φ(x)/T has the variance φ(x)ᵀΣφ(x) + v(x), where φ(x) is the input of the last layer, T the
        temperature, and v the residual, if it is in use. In a difference v(x) + v(other) is added. Rewards
        are known up to a constant: here it is the one for which φ = 0 has the reward 0, without the bias. Two
        rewards are correlated. So the deviation of a difference is not the root of two variances, and what
        several answers are compared with should be given as `other`: `predict_proba((x, other))` is the
        average of σ(r(x) − r(other)) over the same Gaussian.

        Args:
            x: inputs, or a loader of them; or a pair (x, other).
            other: as many inputs, whose rewards are subtracted.

        >>> import bitbayes as bb
        >>> _ = torch.manual_seed(0)
        >>> a, b = torch.randn(100, 2), torch.randn(100, 2)
        >>> preferred = (a[:, 0] > b[:, 0]).long()
        >>> model = nn.Linear(2, 1)
        >>> with torch.no_grad():
        ...     _ = model.weight.copy_(torch.tensor([[2.0, 0.0]]))
        >>> bayes = bb.Laplace(model, likelihood="preference", prior_variance=10.0)
        >>> bayes = bayes.fit([((a, b), preferred)])
        >>> x = torch.tensor([[1.0, 0.0], [100.0, 0.0]])
        >>> [round(each, 1) for each in bayes.reward(x).mean.tolist()]
        [2.0, 200.0]
        >>> near, far = bayes.reward(x, torch.zeros(2, 2)).deviation
        >>> bool(near < 1), bool(far > 10)
        (True, True)
        """
        self._warn_if_untuned()
        predictor = self._current_predictor()
        likelihood = predictor.posterior.likelihood
        if not likelihood.of_pairs:
            raise ArgumentError(
                "`reward` is for preferences (likelihood='preference'), and not for "
                f"likelihood={likelihood.name!r}"
            )
        return predictor.rewards(x if other is None else (x, other))

    @torch.no_grad()
    def predict_and_score(self, x: Data) -> tuple[Tensor, Tensor]:
        """Return class probabilities (n, k) and scores (n,) of one forward pass, both on the CPU.

        They are those of `predict_proba` and `score`. If the output has positions, n counts them all.

        Args:
            x: inputs, or a loader of them.
        """
        self._warn_if_untuned()
        predictor = self._current_predictor()
        rated = predictor.rate(predictor.batches(x), predictor.predictive(self.predictive))
        return rated.probabilities, rated.scores

    @torch.no_grad()
    def sample(self, n: int, *, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Draw n networks: weights of the head, or of all layers, stacked, under the model's own names.

        They are in the form that `torch.func.functional_call` takes under `torch.vmap`. Use
        `tie_weights=False` if the head shares its weight with another layer, which is not drawn.

        The mean of the head's weights is W*/T, where T is the temperature; a class bias is added to their
        bias first. So the average over many draws is `predict_proba(method="mc")` if there is no residual.
        The residual is a variance of the logits that grows with the distance from the data: no draw of
        weights has it, and averages over draws are more confident far away.

        With `layers="all"` the mean is θ* at any temperature, because no other weights give f*/T, the model's
        own logits f* divided by T. From a drawn network's logits f compute (f* + b)/T + (f − f*), b the class
        bias or 0, as `predict_proba(method="sampled_networks")` does.

        Args:
            n: the number of draws.
            generator: of the random numbers.
        """
        posterior = self.posterior
        if not isinstance(n, int) or n < 1:
            raise ArgumentError(f"n={n!r}: expected a positive number of draws")
        settings = self._predictor().settings
        prior, noise = Prior(settings.prior_variance), settings.noise_variance
        bias = settings.bias_like(torch.zeros((), dtype=torch.float64))
        return posterior.sample(n, prior, generator, settings.temperature, noise, bias)

    # ---- deciding

    @torch.no_grad()
    def score(self, x: Data) -> Tensor:
        """Return one number for each row, (n,), that is larger for inputs that are more like the data.

        It is for strangers: accept an input if `bayes.score(x) >= t`, with t from `threshold`. To find
        mistakes among inputs that are like the data, use `confidence`. If the output has positions, each has
        its own: (n, t) or (n, h, w).

        The energy is log Σᵢ exp(m̃ᵢ/√(1 + π/8·c̃ᵢᵢ)), where m̃ and c̃ are the means and variances of the centred
        logits. For one logit z = m/√(1 + π/8·v) it is that of the two logits ±z/2, and for several labels of
        an input the sum over these. The score is
        −½ log(1 + e^(−2a)) − ½ log(1 + e^(2b)) − 4 log(1 + c²). a is the energy, in deviations from the
        median of the validation data, without a class bias. b ≤ 10 is the residual's distance from the
        classes, in the same way; if it is not measured, the term is left out. c is the cube of the distance
        at the other level at which x is furthest, and 1 at the edge of the data (`Settings`). Without a
        residual that was tuned, the score is the energy. It does not depend on the predictive.

        Args:
            x: inputs, or a loader of them.
        """
        return self._rank(x, "score")

    @torch.no_grad()
    def confidence(self, x: Data) -> Tensor:
        """Return the probability of the most probable class for each row, (n,).

        With several labels for each input it is the probability that all of them are predicted right,
        Πᵢ max(pᵢ, 1 − pᵢ).

        It is for mistakes: the less confident a prediction, the more often it is wrong. Strangers are told by
        `score`. If the output has positions, each has its own: (n, t) or (n, h, w).

        Args:
            x: inputs, or a loader of them.
        """
        return self._rank(x, "confidence")

    @overload
    def threshold(self, loader: Data, *, accept: float | None = None, by: Rank | None = None) -> float: ...
    @overload
    def threshold(
        self,
        loader: Loader,
        *,
        risk: float,
        level: float = 0.95,
        by: Literal["confidence"] | None = None,
        loss: LossMatrix | None = None,
        score_threshold: float | None = None,
        progress: bool | None = None,
    ) -> RiskThreshold: ...
    @torch.no_grad()
    def threshold(
        self,
        loader: Data,
        *,
        accept: float | None = None,
        risk: float | None = None,
        level: float | None = None,
        by: Rank | None = None,
        loss: LossMatrix | None = None,
        score_threshold: float | None = None,
        progress: bool | None = None,
    ) -> float:
        """Return where to cut: by the share of the data that is accepted, or by the risk among these.

        With `accept`, the largest t for which at least this share of the data has a score ≥ t. Then
        `bayes.score(x) >= t` accepts what is like the data.

        With `risk`, the lowest t at which, with probability `level` over the draw of the calibration data, at
        most the share `risk` of the inputs with `bayes.confidence(x) >= t` is predicted wrong. Each threshold
        that is tested has the p-value P(Bin(n, risk) ≤ errors) of the n points that it accepts. They are
        tested in a fixed order, from strict to loose, until one fails (p > 1 − level); the last that has
        passed is returned. Nothing is asymptotic, and nothing is assumed but that new inputs are drawn as the
        calibration data were. Without errors, ⌈ln(1 − level)/ln(1 − risk)⌉ accepted points suffice: 59 for
        5% at 0.95. A `DataError` says so where no threshold can promise the risk.

        The thresholds tested are quantiles of the confidences of the data of `tune`, and begin at the
        strictest that these let expect to pass. If nothing was tuned, or with `loss`, they are 19 fixed ones,
        which share 1 − level, and it takes about twice as many points (`bitbayes.decisions.risk_threshold`).

        Args:
            loader: with `accept`, inputs that were not trained on, or a loader of them. Labels are ignored,
                except that positions with the label -100 are left out. With `risk`, calibration data,
                labelled as for `fit`, that neither `fit` nor `tune` has seen.
            accept: the share, above 0 and at most 1. It is 0.95 if there is no `risk`.
            risk: the largest error rate, between 0 and 1; with `loss` the largest mean cost, in its units.
            level: for `risk`: the probability of the promise, between 0 and 1. It is 0.95 if it is not given.
            by: "score", to reject strangers, or "confidence", to reject likely mistakes. With `accept` the
                default is the score. With `risk` it is the confidence, because the score does not rank
                mistakes.
            loss: for `risk`: what each action costs in each class, (classes, actions), of numbers ≥ 0. The
                prediction is then the action of the least expected cost, the confidence is minus this cost,
                and p-values are those of Hoeffding and Bentkus. `decide` of the result gives both.
            score_threshold: for `risk`: the promise is about inputs that also have this score, so that
                strangers can be refused, too. Give the number that `threshold(val_loader, accept=0.95)`
                returns for other data than these, such as those of `tune`.
            progress: with `risk`, as for `fit`.

        >>> import bitbayes as bb
        >>> _ = torch.manual_seed(0)
        >>> x = torch.randn(600, 2)
        >>> y = (x[:, 0] + 0.3 * torch.randn(600) > 0).long()
        >>> model = nn.Linear(2, 2)
        >>> with torch.no_grad():
        ...     _ = model.weight.copy_(torch.tensor([[-3.0, 0.0], [3.0, 0.0]])), model.bias.zero_()
        >>> bayes = bb.Laplace(model).fit([(x[:200], y[:200])]).tune([(x[200:300], y[200:300])])
        >>> t = bayes.threshold(x, accept=0.75)
        >>> int((bayes.score(x) >= t).sum())
        450
        >>> t = bayes.threshold([(x[300:], y[300:])], risk=0.05)
        >>> accepted = bayes.confidence(x) >= t
        >>> bool((bayes.predict_proba(x).argmax(1) != y)[accepted].float().mean() < 0.05)
        True
        """
        if risk is not None:
            if accept is not None:
                raise ArgumentError(
                    f"accept={accept!r}, risk={risk!r}: one threshold cannot have both; give one of them"
                )
            self._warn_if_untuned()
            predictor = self._current_predictor()
            predictor.posterior.check_outputs()
            options: dict[str, Any] = {"risk": risk, "by": by, "loss": loss}
            options |= {"level": 0.95 if level is None else level}
            options |= {"score_threshold": score_threshold}
            options |= {"tuned": self._tuned, "seen": self._seen(), "progress": progress}
            predictive = predictor.predictive(self.predictive)
            return RiskThreshold.calibrated(predictor, predictive, loader, **options)
        if level is not None:
            raise ArgumentError("level= is of a risk: give risk=, the largest error rate")
        if loss is not None:
            raise ArgumentError("loss= is of a risk: give risk=, the largest mean cost, in its units")
        if score_threshold is not None:
            raise ArgumentError("score_threshold= is of a risk: give risk=, the largest error rate")
        accept = 0.95 if accept is None else accept
        metrics.check_share(accept)
        rank = SCORE if by is None else one_of("by", by, RANKS)
        self._warn_if_untuned()
        predictor = self._current_predictor()
        batches = predictor.batches(loader, keep_labels=True)
        ranks = predictor.rank(batches, rank, predictor.predictive(self.predictive))
        return metrics.threshold(torch.cat([each.cpu() for _, each in ranks]), accept=accept)

    @torch.no_grad()
    def sets(
        self,
        loader: Loader,
        coverage: float = 0.95,
        method: SetMethod = "lac",
        within: Literal["class"] | Groups | None = None,
        *,
        threshold: float | None = None,
        progress: bool | None = None,
    ) -> PredictionSets:
        """Calibrate prediction sets, which hold the true class with a probability of at least `coverage`.

        {y : c(x, y) ≥ q}, with the conformity c of the method; q is the ⌊(n + 1)(1 − coverage)⌋-th smallest
        c(xᵢ, yᵢ) of n calibration points (split conformal prediction). If new points are drawn as these were,
        the true class is in the set with a probability of at least `coverage`, over the draw of both,
        whatever the model. It is at most 1/(n + 1) more if no two c are equal. An input whose score is below
        the threshold gets the full set. This only makes sets larger, so the promise stays.

        A set is empty if no class agrees well enough. It is an answer, too: the input is one of the least
        certain. Where the model is right more often than `coverage`, some sets must be empty; "aps" and
        "raps" have no others.

        With several labels for each input, a point's share of true labels that are not in its set is at most
        1 − coverage on average (conformal risk control). `within="class"` then promises for each label that
        an input with the label has it in its set.

        Args:
            loader: calibration data, labelled as for `fit`, that neither `fit` nor `tune` has seen: those
                are refused.
            coverage: between 0 and 1. It takes at least ⌈1/(1 − coverage)⌉ − 1 points: 19 for 0.95.
            method: "lac": c is the probability, which gives the smallest sets on average. "aps": c is the
                probability of y and all less probable classes together, so that hard inputs get larger sets.
                "raps": "aps" with a penalty of 0.1 for each rank behind the second, against the longest sets.
            within: "class": the coverage is that in each class, with a quantile of its own. Labels of groups,
                one for each point in the order of the loader: the same in each group, and the result is
                called with `groups=`. Each class or group needs the least number of points.
            threshold: the score below which an input gets the full set. By default 99% of the calibration
                data have a score that is at least as large. With -math.inf no input is refused.
            progress: as for `fit`.

        >>> import bitbayes as bb
        >>> _ = torch.manual_seed(0)
        >>> x, y = torch.randn(60, 4), torch.arange(60) % 3
        >>> bayes = bb.Laplace(nn.Linear(4, 3), prior_variance=1.0).fit([(x, y)])
        >>> sets = bayes.sets([(torch.randn(100, 4), torch.arange(100) % 3)])
        >>> bool(sets(x)[torch.arange(60), y].float().mean() > 0.9)
        True
        """
        self._warn_if_untuned()
        predictor = self._current_predictor()
        predictor.posterior.check_outputs()
        options: dict[str, Any] = {"coverage": coverage, "method": method, "within": within}
        options |= {"threshold": threshold, "seen": self._seen(), "progress": progress}
        return PredictionSets.calibrated(predictor, predictor.predictive(self.predictive), loader, **options)

    @torch.no_grad()
    def conformal_interval(
        self, loader: Loader, coverage: float = 0.9, *, progress: bool | None = None
    ) -> ConformalInterval:
        """Calibrate intervals m(x) ± q·s(x), which hold y with a probability of at least `coverage`.

        m and s are the mean and deviation of `predict`. q is the ⌈(n + 1)·coverage⌉-th smallest |y − m|/s of
        n calibration points. If new points are drawn as these were, the probability is at most 1/(n + 1)
        above `coverage`, whatever the model and the noise. `interval` needs its Gaussian to be right.

        Args:
            loader: calibration data, labelled as for `fit`, that neither `fit` nor `tune` has seen: those
                are refused.
            coverage: of each output by itself, between 0 and 1. It takes at least ⌈1/(1 − coverage)⌉ − 1
                points: 9 for 0.9.
            progress: as for `fit`.

        >>> import bitbayes as bb
        >>> _ = torch.manual_seed(0)
        >>> x = torch.randn(100, 4)
        >>> y = x[:, :1] + torch.randn(100, 1)
        >>> bayes = bb.Laplace(nn.Linear(4, 1), likelihood="gaussian", prior_variance=1.0).fit([(x, y)])
        >>> interval = bayes.conformal_interval([(torch.randn(100, 4), torch.randn(100, 1))])
        >>> interval(x).shape
        torch.Size([100, 1, 2])
        """
        self._warn_if_untuned()
        predictor = self._current_predictor()
        predictor.posterior.check_outputs()
        options: dict[str, Any] = {"seen": self._seen(), "progress": progress}
        return ConformalInterval.calibrated(predictor, loader, coverage=coverage, **options)

    @torch.no_grad()
    def shift_test(self, loader: Data) -> ShiftTest:
        """Keep the scores of calibration data, to test later batches: are they like these data?

        U = Σ [cᵢ ≤ sⱼ] over the n scores c of the calibration data and the m scores s of a batch, and
        p = P(U' ≤ U), where U' is U of m + n points in random order (Mann–Whitney). If the batch is drawn as
        the calibration data were, p ≤ 0.05 has a probability of at most 5%, whatever the model and also for
        few points; for many, `ShiftTest` takes the normal law. It is the mean over calibration sets: many
        batches that are compared with one small set may have more alarms, or fewer. Of one input, p is
        (1 + #{c ≤ s})/(n + 1).

        The test is one-sided: it looks for lower scores, of inputs that are less like the data. If they are
        more like the data, `auroc` is below ½, and there is no alarm.

        Args:
            loader: inputs that neither `fit` nor `tune` has seen, or a loader of them. Labels are ignored.
                Seen data have larger scores, and new batches would look shifted.

        >>> import bitbayes as bb
        >>> _ = torch.manual_seed(0)
        >>> x, y = torch.randn(60, 2), torch.arange(60) % 2
        >>> bayes = bb.Laplace(nn.Linear(2, 2)).fit([(x, y)]).tune([(torch.randn(60, 2), y)])
        >>> test = bayes.shift_test(torch.randn(200, 2))  # once
        >>> test(torch.randn(20, 2)).p_value > 0.05, test(5 * torch.randn(20, 2)).p_value < 0.001
        (True, True)
        """
        self._warn_if_untuned()
        predictor = self._current_predictor()
        predictor.posterior.check_outputs()
        return ShiftTest.calibrated(predictor, loader)

    @torch.no_grad()
    def label_thresholds(
        self,
        val_loader: Loader,
        *,
        maximise: Literal["f1"] = "f1",
        precision: float | None = None,
        recall: float | None = None,
        progress: bool | None = None,
    ) -> Tensor:
        """Return for each label the probability from which to give it, (k,): likelihood="multilabel" alone.

        Then `bayes.predict_proba(x) >= t` are the labels of x. A label that no validation point has gets 0.5,
        with a `FewPointsWarning`.

        Args:
            val_loader: validation data, as for `tune`.
            maximise: what is maximised, the F1 of each label.
            precision: in its place, the least share of the given labels that must be true, at the largest
                recall.
            recall: in its place, the least share of the true labels that must be given, at the largest
                threshold.
            progress: as for `fit`.

        >>> import bitbayes as bb
        >>> _ = torch.manual_seed(0)
        >>> x = torch.randn(80, 4)
        >>> y = x[:, :2] + x[:, 2:] > 0
        >>> bayes = bb.Laplace(nn.Linear(4, 2), likelihood="multilabel", prior_variance=1.0).fit([(x, y)])
        >>> t = bayes.label_thresholds([(x, y)])
        >>> bb.metrics.f1(bayes.predict_proba(x), y, thresholds=t) >= bb.metrics.f1(bayes.predict_proba(x), y)
        True
        """
        predictor = self._current_predictor()
        likelihood = predictor.posterior.likelihood
        if likelihood.one_label or not likelihood.classifies:
            raise ArgumentError(
                f"likelihood={likelihood.name!r} has no labels that each need a threshold: this is for "
                "likelihood='multilabel', and `threshold` for scores"
            )
        threshold_choice(maximise, precision, recall)  # raises now, not after the pass
        predictor.posterior.check_outputs()
        self._warn_if_untuned()
        steps = track(check_loader(val_loader), "label thresholds", progress)
        rated = predictor.rate(labelled_batches(steps, self.model), predictor.predictive(self.predictive))
        assert rated.labels is not None
        return metrics.label_thresholds(
            rated.probabilities, rated.labels, maximise=maximise, precision=precision, recall=recall
        )

    @torch.no_grad()
    def explain(self, x: Data) -> dict[str, Tensor]:
        """Return how far each input is from the training data, and where: (n,) for each level.

        By the name of the level, each one's part of the residual's variance. All parts of an input add up to
        v, the variance that the residual adds to each of its logits (`Settings`). A level is the input, the
        features at the input of a layer, or "classes", the last of these by their distance from the classes.
        Of a pair it is the sum of both inputs'. In regression it is in units of the noise variance: the
        residual adds v·σ² to the variance of an output.

        Args:
            x: inputs, or a loader of them. For preferences, single inputs or pairs.
        """
        predictor = self._current_predictor()
        if self._residual is None or predictor.residual is None:
            raise ArgumentError(
                "there is no residual to explain: it is off (residual=False), or nothing was tuned yet"
            )
        rows = [self._residual.distances(batch.inputs) for batch in predictor.batches_to_measure(x)]
        shares = self.settings.residual_shares(torch.cat(rows))
        return dict(zip(self._residual.names, shares.unbind(1), strict=True))

    @torch.no_grad()
    def uncertainty(
        self, x: Data, *, samples: int | None = None, generator: torch.Generator | None = None
    ) -> Uncertainty:
        """Return where the uncertainty comes from: noise in the labels, or too little data.

        The entropy of the prediction is a sum, H[E p] = E H[p] + E KL(p ‖ E p), (n,) each, in nats. The first
        part is noise in the labels. The second is the mutual information of label and weights, which more
        data would reduce. The result also has the variance of p, (n, k).

        The expectations are means over draws of p: with `predictive="sampled_networks"` of drawn networks,
        otherwise the softmax of drawn logits. All rows use the same random numbers, so the result for a row
        does not depend on other rows. Without a generator all calls use the same ones too.

        Args:
            x: inputs, or a loader of them.
            samples: the number of draws, 100 by default; for "sampled_networks" 20 networks.
            generator: of the random numbers. By default a new one with a fixed seed.
        """
        self._warn_if_untuned()
        predictor = self._current_predictor()
        if generator is None:
            generator = torch.Generator(model_device(self.model)).manual_seed(UNCERTAINTY_SEED)
        predictive = predictor.predictive(self.predictive, samples, generator)
        parts = [
            (batch, predictive.likelihood.uncertainty(draws))
            for batch, draws in predictor.draw(predictor.batches(x), predictive)
        ]
        batches, columns = [each for each, _ in parts], zip(*(found for _, found in parts), strict=True)
        return Uncertainty(*(predictor.assemble(zip(batches, each, strict=True)) for each in columns))

    @torch.no_grad()
    def evaluate(
        self,
        loader: Loader,
        *,
        outliers: Mapping[str, Data] | None = None,
        by: Rank = "score",
        weighted: bool = False,
        progress: bool | None = None,
    ) -> dict[str, float]:
        """Measure the predictions on test data, and how well outliers are detected, in one pass.

        The result has the keys "accuracy", "nll", "ece", "brier", "mmc" and "aurc" (in the order of the
        confidence). For each set of outliers it has "NAME/auroc" and "NAME/fpr95", which compare the scores
        with those of the test data, and "NAME/mmc". `bb.metrics` defines them. All values are floats. MLflow
        and Weights & Biases take the keys as they are, if the names are made of letters, digits and
        underscores (`metrics.log_names`).

        In regression the keys are "rmse", "nll", "crps", "coverage90" and "width90" (of 90% intervals) and
        "quantile_error". Outliers have "NAME/widening" in the place of "NAME/mmc": the mean deviation there,
        relative to that on the data.

        With several labels for each input the keys are "accuracy" (the share of points all of whose labels
        are right), "hamming" (the share of wrong labels), "f1_micro", "f1_macro", "map" (the mean average
        precision), "nll" and "brier" (sums over the labels), "ece" and "mmc" (of the labels' probabilities),
        and "aurc". A label counts as given from a probability of 0.5 on.

        Args:
            loader: test data, as for `fit`.
            outliers: a tensor or a loader for each name. Labels are ignored.
            by: the number by which outliers are told: "score" or "confidence".
            weighted: whether `loader` yields weights of its points, as for `fit`, which then count w times.
                It needs one class for each input.
            progress: as for `fit`.
        """
        one_of("by", by, RANKS)
        predictor = self._current_predictor()
        predictor.posterior.check_outputs()
        self._warn_if_untuned()
        if outliers is not None and not isinstance(outliers, Mapping):
            raise ArgumentError(
                f"outliers is a {type(outliers).__name__}: expected a mapping from the name of each set to a "
                "tensor or a loader"
            )
        sets = dict(outliers or {})
        for name, data in sets.items():
            with naming(f"outliers {name!r}"):
                check_data(data)
        predictive = predictor.predictive(self.predictive)
        if by != SCORE and not predictive.likelihood.classifies:
            raise ArgumentError(f"by={by!r}: values have no confidence, choose by='score'")
        if weighted and not (predictive.likelihood.classifies and predictive.likelihood.one_label):
            raise ArgumentError(
                f"weighted=True, likelihood={predictive.likelihood.name!r}: only the measures of classes "
                "have weights; leave it out, or repeat rows"
            )
        steps = track(check_loader(loader), "evaluating", progress)
        rate: Callable[[Iterator[Batch]], Any] = partial(predictor.rate, predictive=predictive)
        if not predictive.likelihood.classifies:
            rate = predictor.rate_values
        inside = rate(labelled_batches(steps, self.model, weighted=weighted))
        found: dict[str, float] = inside.measures()
        for name, data in sets.items():
            with naming(f"outliers {name!r}"):
                if not isinstance(data, (Tensor, Mapping)):
                    data = track(data, f"evaluating: {name}", progress)
                measured = rate(predictor.batches(data)).measures_of_outliers(inside, by)
                found |= {f"{name}/{measure}": value for measure, value in measured.items()}
        return found

    def log_evidence(
        self, prior_variance: float | Tensor | Mapping[str, float | Tensor] | None = None
    ) -> Tensor:
        """Return the log marginal likelihood of the fitted data, a scalar in float64.

        log p(D) ≈ log p(D | W*) − ½[τ‖W*‖² − P log τ + log det(H + τI)], with τ = 1/σ₀² and P weights. With
        `layers="all"` it is a sum over layers, each with its own τ if `prior_variance` is a mapping.

        Args:
            prior_variance: in the place of the present one. The result is differentiable in a tensor.
        """
        value = self.prior_variance if prior_variance is None else prior_variance
        posterior, noise = self.posterior, self._predictor().settings.noise_variance
        return posterior.log_evidence(differentiable(value, self._layer_names), noise)

    # ---- far from the data

    def limit(self, x: Tensor, *, tolerance: float = 0.0) -> Limit:
        """Return the limit of the confidence of `predict_proba(δ·x)` as δ → ∞, and its class: (n,) each.

        The limit is computed in one pass, in float64, and not sampled at a large δ. With the residual it is
        1/k. For one logit it is σ(|μᵀs|/√(π/8·sᵀΣs)), where s is the slope of the features along the ray. If
        s = 0 the features stop growing, and the limit is the prediction there. With several labels for each
        input both are (n, k), one for each label. It needs a predictive in closed form, and a network that is
        piecewise affine, such as a ReLU network. Regression has `value_limit`.

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
        likelihood = self._likelihood_of_rays(values=False, instead="value_limit")
        along, _, _ = self._rays(x, tolerance, find_alpha=False)
        found = rays.limit(along, likelihood, self._predictive().name)
        return rays.ApproximateLimit(*found) if tolerance else found

    def value_limit(self, x: Tensor, *, tolerance: float = 0.0) -> ValueLimit:
        """Return how the values of `predict(δ·x)` behave as δ → ∞, in regression: (n, k) each.

        `ratio` is the limit of |mean|/deviation, |μᵀs|/√(sᵀΣs), and 0 with the residual. `mean_slope` and
        `deviation_slope` are the limits of mean/δ and deviation/δ. Where the ratio is below 1.64, intervals
        of 90% hold 0 from some δ on.

        Args:
            x: one ray for each row.
            tolerance: see `certify`.

        >>> import bitbayes as bb
        >>> _ = torch.manual_seed(0)
        >>> x = torch.randn(40, 2)
        >>> bayes = bb.Laplace(nn.Linear(2, 1), likelihood="gaussian", prior_variance=1.0)
        >>> far = bayes.fit([(x, x[:, :1])]).predict(1e6 * x)
        >>> ratio = bayes.value_limit(x).ratio
        >>> torch.allclose(ratio, (far.mean.abs() / far.deviation).double(), rtol=1e-3)
        True
        """
        self._likelihood_of_rays(values=True, instead="limit")
        along, _, size = self._rays(x, tolerance, find_alpha=False)
        found = rays.value_limit(along, size, self._predictor().noise_deviations)
        return rays.ApproximateValueLimit(*found) if tolerance else found

    def bound(self, x: Tensor | None = None, *, form: BoundForm = "tight") -> Tensor:
        """Return a confidence that no `limit` exceeds, in float64.

        For the last layer it is one number for all x. Without the residual, no prediction exceeds it either,
        near or far. With `layers="all"` there is one for each row of x. With the residual at the input it is
        1/k, for x ≠ 0, and says nothing of where the confidence is near that: see `certify`. There is a bound
        for "probit", "quadrature", "pairwise" and "meanfield". With several labels there is one for each,
        (k,) or (n, k). In regression it bounds |mean|/deviation in the place of a confidence, (k,) or (n, k).

        Last layer, one logit: σ(√(μᵀΣ⁻¹μ/κ)), with κ = π/8, and weights and bias together. No smaller number
        holds for all features: the confidence tends to it along t·Σ⁻¹μ. With k logits, each difference of two
        (for "probit", each logit minus the mean of all) has its own μ and Σ, and its own bound. A class bias
        is added to each μ, which the temperature then divides.

        All layers: σ(√(uᵀ(JΣJᵀ)⁻¹u/κ)), where u is the gradient of the logit with respect to x in the ray's
        final region, and J = ∂u/∂θ. The bound of the last layer, with all others fixed, is taken if it is
        smaller, if J is too large to form, or if JΣJᵀ is singular, as it is behind max pooling. The work
        grows with the cube of the input's size.

        Args:
            x: one ray for each row. Only `layers="all"` needs it.
            form: "tight", or "theorem": the paper's, which is never smaller. One logit:
                σ(‖μ‖/√(κ λ_min(Σ))). k logits: "pairwise" bounds each |zᵢⱼ| by ‖μᵢ − μⱼ‖/√(2κ λ_min(Σ)),
                "probit" each |zᵢ| by ‖μᵢ − μ̄‖/√(κ(1 − 1/k) λ_min(Σ)), and "meanfield" by
                ‖μᵢ − μ̄‖/√(2κ λ_min(Σ)). All layers: σ(‖u‖/(s_min(J)·√(κ λ_min(Σ)))), which is 1 if x or
                s_min(J) is 0. For the last layer, "tight" gives this too if there are too many logits: from
                about 200 for "pairwise", and from about 4,000 for the others.

        >>> import bitbayes as bb
        >>> _ = torch.manual_seed(0)
        >>> x, y = torch.randn(40, 2), torch.arange(40) % 2
        >>> model = nn.Sequential(nn.Linear(2, 10), nn.ReLU(), nn.Linear(10, 1))
        >>> bayes = bb.Laplace(model, structure="isotropic", prior_variance=10.0).fit([(x, y)])
        >>> bool(bayes.limit(x).confidence.max() <= bayes.bound() < 0.75)
        True
        """
        one_of("form", form, rays.FORMS)
        self._fitted_posterior().likelihood.require_rays()
        predictor, predictive = self._current_predictor(), self._predictive()
        posterior, settings, likelihood = predictor.posterior, self.settings, predictive.likelihood
        bias = settings.bias_like(torch.zeros((), dtype=torch.float64))
        units = predictor.noise_deviations[:, None] if likelihood.has_noise else settings.temperature
        request = BoundRequest(likelihood, predictive.name, form, units, bias)
        found = posterior.bound(x, predictor.prior, request)
        residual = predictor.residual
        if residual is None or not residual.measures_input or not settings.counting(len(residual.names))[0]:
            return found
        far, every = likelihood.far_confidence(posterior.outputs), posterior.over_all_layers
        return rays.bound_with_residual(found, x, far, for_each_ray=every)

    def certify(self, x: Tensor, *, at_most: float | None = None, tolerance: float = 0.0) -> Certificate:
        """Return a certificate for each ray δ·x: alpha, the limit, a confidence, and `beyond`; (n,) each.

        The confidence of `predict_proba(δ·x)` exceeds the certified one for no δ ≥ alpha. Beyond alpha every
        unit of the network keeps its state: no ReLU switches, and no max pooling changes its choice.

        With `at_most` the certificate has a δ, `beyond`, from which on the confidence is at most that number
        for every larger δ. With the residual it may be far below alpha. It is mostly within one per cent of
        the smallest such δ for a posterior over the last layer, and less close over all layers. It is
        infinite if the limit is above the number. Each ray is swept from infinity towards 0 in at most 300
        cells beyond alpha and 300 below it, where each cell takes about three forward passes in float64. If
        this does not suffice, `beyond` is larger than need be.

        For one logit the certified confidence is the exact maximum of
        z(δ) = (aδ + c)/√(1 + π/8·(q₂δ² + 2q₁δ + q₀)) beyond alpha ("quadrature": within 5e-5). For k logits
        it is at most 1e-3 above the largest confidence. All is computed in float64; predictions in float32
        may differ by their rounding.

        With several labels each one has its own, (n, k), and takes its own sweep. Regression has
        `certify_values`.

        Args:
            x: one ray for each row.
            at_most: a confidence, for `beyond`, which is None otherwise.
            tolerance: above 0 the result is approximate, and its type says so. Units whose slope is smaller
                than this, relative to the largest of their layer, are then taken as settled. A few such units
                can make alpha very large, although hardly anything changes there.

        >>> import bitbayes as bb
        >>> _ = torch.manual_seed(0)
        >>> x, y = torch.randn(40, 2), torch.arange(40) % 2
        >>> model = nn.Sequential(nn.Linear(2, 10), nn.ReLU(), nn.Linear(10, 1))
        >>> bayes = bb.Laplace(model, structure="isotropic", prior_variance=10.0).fit([(x, y)])
        >>> certificate = bayes.certify(x)
        >>> beyond = bayes.predict_proba(x * (5 * certificate.alpha[:, None]).float()).amax(dim=1)
        >>> bool((beyond <= certificate.confidence).all())
        True
        >>> bayes = bb.Laplace(model, residual=True, prior_variance=10.0).fit([(x, y)])
        >>> certificate = bayes.certify(x, at_most=0.6)
        >>> for factor in (1.0, 2.0, 10.0):
        ...     further = bayes.predict_proba(x * (factor * certificate.beyond[:, None]).float())
        ...     assert further.max() <= 0.6001
        >>> bool((certificate.beyond < certificate.alpha).any())
        True
        """
        self._likelihood_of_rays(values=False, instead="certify_values")
        values = self._certified(x, at_most, tolerance)
        return (rays.ApproximateCertificate if tolerance else Certificate)(*values)

    def certify_values(
        self, x: Tensor, *, at_most: float | None = None, tolerance: float = 0.0
    ) -> ValueCertificate:
        """Return a certificate of |mean|/deviation for each ray δ·x, in regression: (n, k) each, alpha (n,).

        |mean|/deviation exceeds `ratio` for no δ ≥ alpha. With `at_most`, `beyond` is a δ from which on it is
        at most that number: from `beyond` of at_most=1.64 on, intervals of 90% hold 0. See `certify`.

        Args:
            x: one ray for each row.
            at_most: a ratio, for `beyond`, which is None otherwise.
            tolerance: see `certify`.

        >>> import bitbayes as bb
        >>> _ = torch.manual_seed(0)
        >>> x = torch.randn(40, 2)
        >>> bayes = bb.Laplace(nn.Linear(2, 1), likelihood="gaussian", residual=True, prior_variance=1.0)
        >>> bayes = bayes.fit([(x, x[:, :1])])
        >>> beyond = bayes.certify_values(x, at_most=1.64).beyond  # (40, 1)
        >>> ends = bayes.interval(2 * beyond.float() * x)
        >>> bool((ends[..., 0] < 0).all() and (ends[..., 1] > 0).all())
        True
        """
        self._likelihood_of_rays(values=True, instead="certify")
        values = self._certified(x, at_most, tolerance)
        return (rays.ApproximateValueCertificate if tolerance else ValueCertificate)(*values)

    # ---- files

    def save(self, path: str | PathLike[str]) -> None:
        """Write what was fitted and chosen to a safetensors file. The model itself is not part of it.

        Nor are thresholds and prediction sets, which `export` writes.
        """
        check_writable(Path(path))
        fitted = self._fitted_posterior().fitted
        if fingerprint(self.model) != fitted.fingerprint:
            raise ModelError(
                "the model has changed since `fit`, so no model would fit the file: call `fit` again"
            )
        chosen = self.options.as_json(), self.settings.as_json()
        posterior_file.write(path, *chosen, fitted, self._tuned)

    @classmethod
    def load(
        cls,
        path: str | PathLike[str],
        model: nn.Module,
        *,
        output: Callable[..., Tensor] | None = None,
        adapt: Adapter | None = None,
    ) -> Self:
        """Read what `save` wrote. The result is on the model's device.

        Args:
            path: the file.
            model: the network that was fitted, with the weights it had then.
            output: the function that picks the logits, if there was one.
            adapt: the function that makes (inputs, labels) of a loader's batch, if there was one.
        """
        model = unwrapped(model)
        content = posterior_file.read(path, fingerprint(model), model_device(model))
        try:
            bayes = cls(model, **Options.from_json(content.options, output, adapt))
            bayes.set_fitted(content.fitted)
            bayes.settings, bayes._tuned = Settings(**content.settings), content.tuned
        except (ArgumentError, TypeError, KeyError) as error:
            raise FileError(f"{path} has a damaged header: {error}") from error
        bayes.posterior.check_outputs()
        return bayes

    def save_pretrained(self, folder: str | PathLike[str], *, evaluated: Evaluated | None = None) -> Path:
        """Write a folder to share: what `save` writes, its numbers in JSON, and a card for people.

        The card is README.md. A README.md that bitbayes did not write, or that was edited, stays as it is,
        and the card is README-bitbayes.md. The model is not part of it, but may be in the same folder.

        Args:
            folder: it is made if it does not exist.
            evaluated: for the card, what `evaluate` returned, or that by the names of several sets of data:
                {"test": bayes.evaluate(test, outliers={"SVHN": svhn}), "blurred": bayes.evaluate(blurred)}.

        Returns:
            The path of the card.
        """
        return hub.save(self, folder, evaluated)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        evaluated: Evaluated | None = None,
        private: bool | None = None,
        token: str | bool | None = None,
    ) -> str:
        """Upload what `save_pretrained` writes to the Hugging Face Hub, in one commit. Needs the extra `hub`.

        Sums over the training data become public with the posterior, unless the repository is private.

        Args:
            repo_id: "owner/name". It is made if it does not exist. It may be the model's own.
            evaluated: as for `save_pretrained`.
            private: whether a new repository is private; None is what the Hub does by default.
            token: of the Hub; None is that of `hf auth login`.

        Returns:
            The commit's id, for `from_pretrained(…, revision=…)`.
        """
        return hub.push(self, repo_id, evaluated, private=private, token=token)

    @classmethod
    def from_pretrained(
        cls,
        source: str | PathLike[str],
        model: nn.Module,
        *,
        output: Callable[..., Tensor] | None = None,
        adapt: Adapter | None = None,
        revision: str | None = None,
        token: str | bool | None = None,
    ) -> Self:
        """Read what `save_pretrained` or `push_to_hub` wrote; as `load`, of a folder or a repository.

        Args:
            source: a folder, or "owner/name" on the Hugging Face Hub, which needs the extra `hub`.
            model: as for `load`: the network that was fitted, with the weights it had then.
            output: as for `load`.
            adapt: as for `load`.
            revision: of a repository: a commit's id, a branch or a tag.
            token: as for `push_to_hub`.
        """
        return cls.load(hub.find(source, revision=revision, token=token), model, output=output, adapt=adapt)

    def export(
        self,
        path: str | PathLike[str],
        example: Tensor | NamedInputs,
        *,
        dynamic_shapes: export.DynamicShapes | None = None,
        score: bool | Rank = False,
        threshold: float | None = None,
        sets: PredictionSets | ConformalInterval | None = None,
        classes: Sequence[str] | None = None,
        metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Write model and posterior as one graph that runs without bitbayes.

        The graph's output has the shape of the model's own, for any number of rows. Its softmax (or sigmoid)
        is `predict_proba`, with the present predictive, prior variance, temperature and residual. In
        regression it has two outputs, "values" and "deviations" (of y), and for preferences "rewards" and
        "deviations" of single inputs, as `reward(x)`. The graph does not check its inputs: if the network
        overflows, so does the graph, and it accepts nothing. The predictive must be one in closed form.
        docs/deploy.md lists all outputs and what the metadata say.

        Args:
            path: ends in ".onnx" (last layer only; needs the extra `onnx`), or in ".pt2" for
                `torch.export.load`.
            example: inputs as the model takes them, one row or more. In ONNX the inputs have the names of the
                mapping's keys, or "x".
            dynamic_shapes: sizes other than the number of rows that may vary: {1: "length"}, or for each
                input of a mapping: {"input_ids": {1: "length"}, "attention_mask": {1: "length"}}. Equal names
                are equal sizes. A `torch.export.Dim` in the place of a name gives bounds.
            score: whether the graph has a second output for a threshold: True or "score" for `score(x)`,
                "confidence" for `confidence(x)`; the output has that name.
            threshold: adds the output "accept" (n,). A score, as `threshold(loader)` returns it, accepts what
                reaches it. A `RiskThreshold` is a confidence, and accepts what reaches it and its
                `score_threshold`, if it has one: the risk is guaranteed among the accepted. A threshold does
                not know its settings: make it after the last change.
            sets: what `sets` has returned, with the present settings: adds the output "sets" (n, k), which is
                `sets(x)`. In regression, what `conformal_interval` has returned: adds "interval"
                (n, outputs, 2).
            classes: the names of the classes, in their order, for the metadata.
            metadata: what else to write into the file: texts, or what JSON can hold.

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
        target, posterior = export.check_path(path), self.posterior
        posterior.check_outputs()
        request = GraphRequest(score, threshold, sets, classes)
        graph = make_graph(self._predictor(), self._predictive(), request)
        if graph.differentiates and target.suffix == ".onnx":
            raise ArgumentError("layers='all' needs derivatives, and ONNX has none: export to '.pt2' instead")
        export.write(graph, target, example, dynamic_shapes=dynamic_shapes, metadata=metadata)

    def __repr__(self) -> str:
        """Return what was asked for and what was chosen. Of the model only the name is shown."""
        known = Known(self.options, self._posterior, self._residual, self.settings)
        return f"{type(self).__name__}({summary(type(self.model).__name__, known)})"

    # ---- state dicts

    def _knowledge(self) -> bytes:
        if self._posterior is None:
            return b""
        chosen = self.options.as_json(), self.settings.as_json()
        return posterior_file.to_bytes(*chosen, self._posterior.fitted, self._tuned)

    def _forget(self) -> None:
        self._posterior, self._residual, self._tuned = None, None, None

    def _learn(self, content: bytes) -> None:
        model = fingerprint(self.model), model_device(self.model)
        options, numbers, fitted, tuned = posterior_file.from_bytes(content, *model)
        own = as_parsed(self.options.as_json())
        free: tuple[str, ...] = ("predictive", "covariance")  # these can be set at any time
        saved, outputs = Options.from_json(options, self.output, self.adapt), fitted.weights.outputs
        theirs = replace(self.options, curvature=saved["curvature"])
        if theirs.fisher(outputs) == self.options.fisher(outputs):  # "exact" and "auto" may be the same
            free = (*free, "curvature")
        if differ := [name for name in own if name not in free and options.get(name) != own[name]]:
            raise FileError(f"it was fitted with other options ({', '.join(differ)})")
        before = self._settings
        try:
            self._settings = Settings(**self._untuned_residual)  # the present ones may be for other layers
            self.set_fitted(fitted)
            self.posterior.check_outputs()
            self.predictive, self.settings = options["predictive"], Settings(**numbers)
            self.covariance = saved["covariance"]
            self._tuned = tuned
        except Exception:
            self._settings = before
            raise

    # ---- what was fitted

    @property
    def posterior(self) -> WeightPosterior:
        """The Gaussian over the weights. Raises if there is none yet, or if the model has changed since."""
        posterior = self._fitted_posterior()
        if not torch.compiler.is_compiling():  # a trace has other tensors in place of the model's
            posterior.check_unchanged(self.model)
        return posterior

    @property
    def known_residual(self) -> Residual | None:
        """The residual that `fit` has learned, in use or not; None if there is none."""
        return self._residual

    def set_fitted(self, fitted: Fitted) -> None:
        """Predict with these sums from now on. Raises, and changes nothing, if the prior does not fit."""
        self._use(self._posterior_of(fitted))

    # ---- inside

    def _rank(self, x: Data, by: Rank) -> Tensor:
        self._warn_if_untuned()
        predictor = self._current_predictor()
        ranks = predictor.rank(predictor.batches(x), by, predictor.predictive(self.predictive))
        return predictor.assemble(ranks)

    def _seen(self) -> dict[int, str]:
        """By their digests, the data on which nothing can be promised, and what has seen them."""
        return seen_data(self._fitted_posterior().fitted.entries, self._tuned)

    def _likelihood_of_rays(self, *, values: bool, instead: str) -> Likelihood:
        """The likelihood; raises if it has no rays, or predicts classes where values are needed."""
        likelihood = self._fitted_posterior().likelihood
        likelihood.require_rays()
        if likelihood.classifies == values:
            what = "classes" if likelihood.classifies else "values"
            raise ArgumentError(f"likelihood={likelihood.name!r} predicts {what}: use `{instead}`")
        return likelihood

    def _rays(
        self, x: Tensor, tolerance: float, *, find_alpha: bool
    ) -> tuple[list[RayGaussian], Tensor, Tensor]:
        """The Gaussians along the rays of the rows of x, x with numbers near 1, and what divided it, (n,)."""
        x, size = rays.unit_rays(x)
        along = self._current_predictor().rays(x, find_alpha=find_alpha, tolerance=tolerance)
        return list(along), x, size

    def _certified(self, x: Tensor, at_most: float | None, tolerance: float) -> CertifiedValues:
        """The fields of a certificate."""
        at_most = None if at_most is None else positive(at_most, "at_most")
        along, x, size = self._rays(x, tolerance, find_alpha=True)
        predictive, beyond = self._predictive(), None
        found = rays.certify(along, predictive.likelihood, predictive.name)
        if at_most is not None:
            request = self._predictor().residual, predictive.likelihood, predictive.name, at_most
            beyond = rays.beyond(along, x, *request)
            beyond = beyond / size.to(beyond).reshape(-1, *[1] * (beyond.dim() - 1))
        return found.alpha / size.to(found.alpha.device), found.limit, found.confidence, beyond

    def _check_settings(self, value: Settings, posterior: WeightPosterior | None) -> None:
        """Raise on settings that the likelihood, or the number of outputs, does not allow."""
        likelihood = self._known_likelihood(posterior)
        if likelihood is not None:
            outputs = None if posterior is None else posterior.outputs
            likelihood.check_settings(value, outputs, over_all_layers=self.options.over_all_layers)

    def _fitted_posterior(self) -> WeightPosterior:
        if self._posterior is None:
            raise NotFittedError("this Laplace is not fitted yet: call `fit(train_loader)` first")
        return self._posterior

    @property
    def _untuned_residual(self) -> dict[str, Any]:
        """The settings of a residual before `tune`: it is used only if it was asked for."""
        near = 1.0 if self.options.residual_asked else 0.0
        return {
            "near_variance": near,
            "beyond_variance": 0.0,
            "levels": {},
            "thresholds": {},
            "score_centre": None,
            "score_spread": None,
            "score_edge": 1.0,
            "class_centre": None,
            "class_spread": None,
        }

    def _posterior_of(self, fitted: Fitted) -> WeightPosterior:
        """The posterior of these sums; raises if the prior variances are for other layers."""
        posterior = posterior_of(self.model, fitted, self.options)
        if isinstance(self._settings.prior_variance, dict):
            check_variance(self._settings.prior_variance, lambda: posterior.names)
        self._check_settings(self._settings, posterior)
        return posterior

    def _set_jointly(self, task: str, fitted: Callable[[], Fitted]) -> None:
        """Use these sums in all processes, or in none if one of them fails."""
        posterior, _ = current_processes().agree(task, lambda: self._posterior_of(fitted()), lambda _: None)
        self._use(posterior)

    def _use(self, posterior: WeightPosterior) -> None:
        fitted = posterior.fitted
        self._posterior = posterior
        self._residual = None
        if fitted.level_sums:
            self._residual = Residual(self.model, fitted.levels, fitted.level_sums, fitted.side_effects)
        if self._residual is not None:
            try:
                self._settings = self._settings.in_order_of(self._residual.names)
            except KeyError:  # they were chosen for other levels, after an earlier fit
                self._settings = replace(self._settings, **self._untuned_residual)

    def _layer_names(self) -> tuple[str, ...] | None:
        """The layers that may have their own prior variance; None if there is one for all weights."""
        if not self.options.over_all_layers or self.options.structure == "full":
            return None
        if self._posterior is not None:
            return self._posterior.names
        return tuple(layer.name for layer in find_layers(self.model, self.options.layer_names))

    def _known_likelihood(self, posterior: WeightPosterior | None) -> Likelihood | None:
        """The likelihood of a posterior. Without one, it is None if it is "auto"."""
        return posterior.likelihood if posterior else LIKELIHOODS.get(self.options.likelihood)

    def _predictor(self) -> Predictor:
        posterior, settings = self._fitted_posterior(), self.settings
        if posterior.likelihood.has_noise:
            noise = posterior.noise_of(settings.noise_variance)
            settings = replace(settings, noise_variance=noise)
        return Predictor(posterior, self._residual if settings.has_residual else None, settings)

    def _current_predictor(self) -> Predictor:
        """The predictor; raises if the model has changed since it was fitted."""
        self._fitted_posterior().check_unchanged(self.model)
        return self._predictor()

    def _predictive(self, name: str | None = None) -> Predictive:
        """The predictive of that name; None is the current one."""
        return self._predictor().predictive(name or self.predictive)

    def _warn_if_untuned(self) -> None:
        """Warn once if a prediction uses a prior variance that nobody chose."""
        chosen = self._settings.prior_variance is not None
        if chosen or self._warned or self._posterior is None or torch.compiler.is_compiling():
            return
        warnings.warn(
            f"nothing was tuned: the prior variance is {self.prior_variance:g}, and predictions may be far "
            "from calibrated. Call `tune(val_loader)` first, or set `prior_variance` yourself",
            UntunedWarning,
            stacklevel=level_of_the_caller(),
        )
        self._warned = True


def _requires_grad(x: Any) -> bool:
    """Whether one of these inputs wants a gradient."""
    parts = x.values() if isinstance(x, Mapping) else [x]
    wanted = any(isinstance(each, Tensor) and each.requires_grad for each in parts)
    return wanted and torch.is_grad_enabled()

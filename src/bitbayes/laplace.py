"""Laplace: the public face. It ties the rooms together and holds no mathematics."""

import warnings
from collections.abc import Callable, Iterator, Mapping
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
    FileError,
    ModelError,
    NotFittedError,
    UntunedWarning,
    level_of_the_caller,
    naming,
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
    without_labels,
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
from bitbayes.short_help import ShortHelp
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


class Laplace(ShortHelp):
    """A trained classifier with honest confidence: its predictions are averages over a Gaussian of weights.

    Make one from your model, `fit` it on the training data, and `tune` it on validation data. Then use it in
    the place of the model. The model itself is never changed. Making a `Laplace` computes nothing yet.

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
            gradient. Freeze those that are certain.
        structure: what is kept of the curvature. "full" is everything. "kron" and "diag" are cheaper. For the
            last layer there are also "lowrank" (as kron, for many classes) and "isotropic" (none: the paper's
            baseline). "auto" is kron; for the last layer it is full for one logit, and lowrank for more than
            4,096.
        prior_variance: the variance σ₀² > 0 of the weights before data. `tune` chooses it, and it can be set
            at any time. With `layers="all"` it may be a mapping from each layer's name to its own. None is 1,
            with a warning at the first prediction if nothing was chosen by then.
        predictive: how the average is computed: the default `method` of `predict_proba`. "auto" is probit for
            one logit, pairwise for up to 64 and meanfield for more. It can be set at any time.
        head: the name of the last linear layer. It is found automatically if None.
        curvature: "exact". With `layers="all"` this takes k − 1 backward passes for each batch; "fisher", or
            `bb.Fisher(draws=1)`, takes one for each label that is drawn from the model. "paper" uses the
            paper's own formulas where they differ (kron; with all layers, drawn labels), to compare with its
            tables.
        residual: whether to add a variance that grows with the distance from the data, so that far away the
            confidence goes to 1/k. "auto" adds it where the inputs are floating-point numbers (or images in
            uint8) of one size, once `tune` has chosen its numbers. Names of layers add the variance at the
            inputs of these layers too, which costs another forward pass.
        output: where the logits are in what the model returns: a key, an attribute, or a function. It is not
            needed if the model returns a tensor, or something with `logits`.

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
    output = FrozenOption[Selector | None]("Where the logits are in what the model returns.")
    temperature = PositiveNumber(
        "The mean logits are divided by it before the average is taken. Their variance is not."
    )
    residual_variance = PositiveNumber(
        "The residual adds residual_variance·max(0, k(x) − residual_threshold) to every logit's variance.",
        zero=True,
    )
    residual_threshold = PositiveNumber("See `residual_variance`.", zero=True)
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
        self._chosen, self._warned = prior_variance is not None, False
        self.temperature, self.residual_threshold = 1.0, 0.0
        self.residual_variance = 1.0 if self.options.residual_asked else 0.0

    # ---- numbers that can be set at any time; no data pass follows

    @property
    def prior_variance(self) -> float | dict[str, float]:
        """The prior variance σ₀² of the weights: one number, or a dict with one for each layer."""
        return self._prior_variance

    @prior_variance.setter
    def prior_variance(self, value: float | Mapping[str, float]) -> None:
        self._prior_variance = check_variance(value, self._layer_names)
        self._prior, self._chosen = Prior(self._prior_variance), True

    @property
    def predictive(self) -> Predictive:
        """How the average is computed: the default `method` of `predict_proba`, and that of `bayes(x)`."""
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
        """Learn the Gaussian from the training data, in one forward pass.

        The last layer needs no gradients. A second `fit` starts again from nothing.

        If torch.distributed is initialised, each process has a loader with its own share of the data. All of
        them end with the same posterior. The same holds for `update` and `tune`.

        Args:
            loader: yields (x, y), ((x1, x2), y), or mappings of tensors with a key "labels". If the output
                has positions, the labels have them too, and those with the label -100 do not count.
            checkpoint: a folder. What was summed up is written there twice a minute, and a fit that was
                interrupted continues from it. The loader must then give the same batches in the same order.
            progress: True or False to show a progress bar or not. None shows one on terminals and in
                notebooks.

        Returns:
            The `Laplace` itself.
        """
        refuse_renamed(renamed)
        fit = partial(FIT[self.layers], self.model, loader, self.options, together().shown(progress))
        with kept_in(checkpoint, self.model, self.options) as keeper:
            fitted = fit_together("fit", self.model, self.options, partial(fit, keeper=keeper))
            self._set_together("the end of fit", lambda: fitted)
        return self

    def update(self, loader: Loader, *, progress: bool | None = None, **renamed: Never) -> Self:
        """Add more data to what was fitted.

        One `fit` on all data gives the same result (apart from labels that are drawn).

        Args:
            loader: the new data, as for `fit`.
            progress: as for `fit`.
        """
        refuse_renamed(renamed)
        processes = together()
        with processes.telling():
            before = self._current_posterior().fitted
        shown = processes.shown(progress)
        fit = partial(FIT[self.layers], self.model, loader, self.options, shown, before.count)
        more = fit_together(f"update of {before.told()}", self.model, self.options, fit)
        self._set_together("the end of update", lambda: before + more)
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
            val_loader: validation data, as for `fit`. "evidence" needs none.
            outliers: for "ood": a tensor or a loader. By default uniform noise over the range of the
                validation inputs, as many as there are of these.
            objective: what to minimise.
                "calibrated": the NLL of the validation data, by prior variance and temperature. If there is a
                residual, it then gets a threshold beyond the validation data, and a variance that lowers the
                confidence from there on.
                "ood": the paper's, mean NLL − `weight` × mean entropy on outliers. Predictions become less
                confident on outliers, and on the data too.
                "nll": the first term alone. Far from the data, predictions are then hardly less confident
                than the network's own.
                "evidence": minus the log marginal likelihood of the fitted data. Its predictions can be far
                from calibrated.
            weight: of the outliers' term of "ood".
            penalty: of "ood". "entropy" as above. "uniform" adds `weight` × mean cross-entropy to the uniform
                distribution instead.
            progress: as for `fit`.

        Returns:
            The `Laplace` itself.

        "ood", "nll" and "evidence" keep the temperature. They also keep the residual, unless it was asked for
        with `residual=True`. Then "ood" chooses its variance together with the prior's, and "nll" takes the
        largest that raises the validation NLL by at most half a percent.

        If `prior_variance` is a mapping, each layer gets its own, which only "evidence" can choose. With
        `layers="all"`, candidates are compared with standard deviations that are interpolated between 18
        priors (to 0.6 %, near the ends of the range 2 %). They are compared by the closed form even if the
        predictive is "weights".

        Warns (`EdgeWarning`) if the best candidate of "ood", "nll" or "evidence" is the first or the last.
        """
        processes = together()
        with processes.telling():
            posterior = self._current_posterior()
            check_objective(objective, weight, penalty)
        each_layer = isinstance(self.prior_variance, dict)
        if objective == EVIDENCE:
            choose = partial(tune_by_evidence, posterior, each_layer=each_layer)
            task = f"tune({objective!r}) of {posterior.fitted.told()}"
            self.prior_variance, _ = processes.agree(task, choose, lambda _: None)
            warn_at_the_edge(posterior.candidates(), self.prior_variance, stacklevel=2)
            return self
        with processes.telling():
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
        """Return the Gaussian over the logits at x: its mean (n, k) and covariance (n, k, k).

        If the output has positions, n counts them all, input by input.

        Args:
            x: inputs, or a loader of them.
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
        """Return class probabilities (n, k). Each row sums to one. A network with one logit gives (n, 2).

        If the output has positions, the result has its shape, (n, t, k) or (n, k, h, w).

        Args:
            x: inputs, or a loader of them.
            method: "probit", "pairwise", "meanfield", "bridge", "mc", "quadrature", or with `layers="all"`
                "weights": the average over networks that are drawn once for all batches. By default
                `predictive`.
            samples: the number of draws: of logits for "mc", 100 by default, and of networks for "weights",
                20 by default.
            generator: of the random numbers for "mc" and "weights".
        """
        self._warn_if_untuned()
        posterior, chosen = self._current_posterior(), self._method(method)
        if chosen == "weights" and self.options.residual_asked:
            raise ArgumentError(
                "method='weights' does not use the residual: choose another, or residual=False"
            )
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
        """Draw n networks: weights of the head, or of all layers, stacked, under the model's own names.

        They are in the form that `torch.func.functional_call` takes under `torch.vmap`. Use
        `tie_weights=False` if the head shares its weight with another layer, which is not drawn. The residual
        is not part of them.

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
        """Return one number for each row, (n,), that is larger for inputs that are more like the data.

        Use it to rank or to reject: accept an input if `bayes.score(x) >= t`, with t from `threshold`. If the
        output has positions, each has its own: (n, t) or (n, h, w).

        The score is log Σᵢ exp(m̃ᵢ/√(1 + π/8·c̃ᵢᵢ)), where m̃ and c̃ are the means and variances of the centred
        logits. For one logit z = m/√(1 + π/8·v) it is that of the two logits ±z/2. It does not depend on the
        predictive.

        Args:
            x: inputs, or a loader of them.
        """
        self._warn_if_untuned()
        layout = self._current_posterior().layout
        gaussians = self._gaussians(self._batches(x))
        return layout.together((batch.positions, uncertainty.score(each)) for batch, each in gaussians)

    @torch.no_grad()
    def threshold(self, val_loader: Data, *, accept: float = 0.95) -> float:
        """Return the largest t for which at least the share `accept` of the data has `score` ≥ t.

        Then `bayes.score(x) >= t` accepts what is like the data.

        Args:
            val_loader: inputs that were not trained on, or a loader of them. Labels are ignored, except that
                positions with the label -100 are left out.
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
        """Return where the uncertainty comes from: noise in the labels, or too little data.

        The entropy of the prediction is a sum, H[E p] = E H[p] + E KL(p ‖ E p), (n,) each, in nats. The first
        part is noise in the labels. The second is the mutual information of label and weights, which more
        data would reduce. The result also has the variance of p, (n, k).

        The expectations are means over draws of p: with `predictive="weights"` of drawn networks, otherwise
        the softmax of drawn logits. All rows use the same random numbers, so the result for a row does not
        depend on other rows. Without a generator all calls use the same ones too.

        Args:
            x: inputs, or a loader of them.
            samples: the number of draws, 100 by default; for "weights" 20 networks.
            generator: of the random numbers. By default a new one with a fixed seed.
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
        """Measure the predictions on test data, and how well `score` detects outliers, in one pass.

        The result has the keys "accuracy", "nll", "ece", "brier", "mmc" and "aurc" (in the order of `score`).
        For each set of outliers it has "NAME/auroc" and "NAME/fpr95", which compare the scores with those of
        the test data, and "NAME/mmc". `bb.metrics` defines them. All values are floats. MLflow and
        Weights & Biases take the keys as they are: in NAME, everything but letters, digits and underscores
        becomes an underscore (`metrics.log_names`).

        Args:
            loader: test data, as for `fit`.
            outliers: a tensor or a loader for each name. Labels are ignored.
            progress: as for `fit`.
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
            with naming(f"outliers {name!r}"):
                check_data(data)
        steps = track(check_loader(loader), "evaluating", progress)
        batches = self._with_kernel(labelled_batches(steps, model_device(self.model)))
        labels, probs, scores = map(torch.cat, zip(*self._predictions(batches), strict=True))
        found = metrics.of_predictions(probs, labels, scores)
        for (name, data), key in zip(sets.items(), metrics.log_names(sets), strict=True):
            with naming(f"outliers {name!r}"):
                if not isinstance(data, (Tensor, Mapping)):
                    data = track(data, f"evaluating: {name}", progress)
                _, *predictions = zip(*self._predictions(self._batches(data)), strict=True)
                probs_out, scores_out = map(torch.cat, predictions)
                told = metrics.of_outliers(probs_out, scores_out, scores)
                found |= {f"{key}/{measure}": value for measure, value in told.items()}
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
        return self._current_posterior().log_evidence(differentiable(value, self._layer_names))

    # ---- far from the data

    def limit(self, x: Tensor, *, tolerance: float = 0.0) -> Limit:
        """Return the limit of the confidence of `predict_proba(δ·x)` as δ → ∞, and its class: (n,) each.

        The limit is computed in one pass, in float64, and not sampled at a large δ. With the residual it is
        1/k. For one logit it is σ(|μᵀs|/√(π/8·sᵀΣs)), where s is the slope of the features along the ray. If
        s = 0 the features stop growing, and the limit is the prediction there. It needs a predictive in
        closed form, and a network that is piecewise affine, such as a ReLU network.

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
        """Return a confidence that no `limit` exceeds, in float64.

        For the last layer it is one number for all x. Without the residual, no prediction exceeds it either,
        near or far. With `layers="all"` there is one for each row of x. With the residual it is 1/k, for
        x ≠ 0. There is a bound for "probit", "quadrature", "pairwise" and "meanfield".

        Last layer, one logit: σ(√(μᵀΣ⁻¹μ/κ)), with κ = π/8, and weights and bias together. No smaller number
        holds for all features: the confidence tends to it along t·Σ⁻¹μ. With k logits, each difference of two
        (for "probit", each logit minus the mean of all) has its own μ and Σ, and its own bound. Each μ is
        divided by the temperature.

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
        posterior = self._current_posterior()
        found = posterior.bound(x, self._prior, self.temperature, self._method(None), form)
        return rays.bound_with_residual(found, x, posterior.outputs) if self._residual() else found

    def certify(self, x: Tensor, *, tolerance: float = 0.0) -> Certificate:
        """Return a certificate for each ray δ·x: alpha, the limit, and a confidence; (n,) each.

        The confidence of `predict_proba(δ·x)` exceeds the certified one for no δ ≥ alpha. Beyond alpha every
        unit of the network keeps its state: no ReLU switches, and no max pooling changes its choice.

        For one logit the certified confidence is the exact maximum of
        z(δ) = (aδ + c)/√(1 + π/8·(q₂δ² + 2q₁δ + q₀)) beyond alpha ("quadrature": within 5e-5). For k logits
        it is at most 1e-3 above the largest confidence. All is computed in float64; predictions in float32
        may differ by their rounding.

        Args:
            x: one ray for each row.
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
        """
        x, size = rays.unit_rays(x)
        found = rays.certify(self._rays(x, find_alpha=True, tolerance=tolerance), self._method(None))
        kind = rays.ApproximateCertificate if tolerance else Certificate
        return kind(found.alpha / size.to(found.alpha.device), found.limit, found.confidence)

    # ---- files

    def save(self, path: str | PathLike[str]) -> None:
        """Write what was fitted and chosen to a safetensors file. The model itself is not part of it."""
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
        """Read what `save` wrote. The result is on the model's device.

        Args:
            path: the file.
            model: the network that was fitted, with the weights it had then.
            output: the function that picks the logits, if there was one.
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
        """Write model and posterior as one graph that runs without bitbayes.

        The graph's output has the shape of the model's own, for any number of rows. Its softmax (or sigmoid)
        is `predict_proba`, with the present predictive, prior variance, temperature and residual. The graph
        does not check its inputs: if the network overflows, so does the graph. The predictive must be one in
        closed form.

        Args:
            path: ends in ".onnx" (last layer only; needs the extra `onnx`), or in ".pt2" for
                `torch.export.load`.
            example: inputs as the model takes them, one row or more. In ONNX the inputs have the names of the
                mapping's keys, or "x".
            dynamic_shapes: sizes other than the number of rows that may vary: {1: "length"}, or for each
                input of a mapping: {"input_ids": {1: "length"}, "attention_mask": {1: "length"}}. Equal names
                are equal sizes. A `torch.export.Dim` in the place of a name gives bounds.
            score: whether the graph has a second output, "score": `score(x)`, for a threshold.
            metadata: what to write into the file about the graph: texts, or what JSON can hold. Versions are
                added.

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
            raise ArgumentError("layers='all' needs derivatives, and ONNX has none: export to '.pt2' instead")
        export.write(
            _WithScore(self) if score else self,
            target,
            example,
            dynamic_shapes=dynamic_shapes,
            metadata=metadata,
            outputs=(export.LOGITS, export.SCORE) if score else (export.LOGITS,),
            differentiates=every,
        )

    def __repr__(self) -> str:
        """Return what was asked for and what was chosen. Of the model only the name is shown."""
        rows = [
            f"model={type(self.model).__name__}, layers={self.layers!r}, "
            f"structure={self._shown_structure()}, predictive={self._shown_predictive()}",
            f"prior_variance={self._shown_prior()}, temperature={self.temperature:.4g}, "
            f"residual={self._shown_residual()}",
            "not fitted",
        ]
        if self._posterior is not None:
            points, classes = self._posterior.fitted.count, max(2, self._posterior.outputs)
            rows[-1] = f"fitted on {points:,} points, {classes:,} classes"
        return f"{type(self).__name__}(\n  " + ",\n  ".join(rows) + "\n)"

    def _shown_structure(self) -> str:
        if self.structure != AUTO or self._posterior is None:
            return repr(self.structure)
        curvature = self._posterior.fitted.curvature
        found = "kron" if self.layers == "all" else next(iter(curvature.values())).structure
        return f"{found!r} (auto)"

    def _shown_predictive(self) -> str:
        if self.predictive != AUTO or self._posterior is None:
            return repr(self.predictive)
        return f"{self._method(None)!r} (auto)"

    def _shown_prior(self) -> str:
        value = self.prior_variance
        if isinstance(value, dict):
            return f"one for each of {len(value)} layers"
        return f"{value:.4g}" if self._chosen else f"{value:.4g} (not tuned)"

    def _shown_residual(self) -> str:
        if self._posterior is None:
            return repr(self.residual)
        if self._residual() is None:
            waits = self.residual == AUTO and self._known_residual() is not None and not self._chosen
            return "off until tuned" if waits else "off"
        return f"on (variance {self.residual_variance:.4g}, threshold {self.residual_threshold:.4g})"

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

    def _posterior_of(self, fitted: Fitted) -> WeightPosterior:
        """What predictions are made with; raises if the prior does not fit it."""
        posterior = POSTERIOR[self.layers](self.model, fitted, paper=self.options.paper)
        if isinstance(self.prior_variance, dict):
            check_variance(self.prior_variance, lambda: posterior.names)
        return posterior

    def _set_posterior(self, fitted: Fitted) -> None:
        """Predict with this from now on. Raises, and changes nothing, if the prior does not fit it."""
        self._predict_with(self._posterior_of(fitted))

    def _set_together(self, task: str, fitted: Callable[[], Fitted]) -> None:
        """The same in all processes, or in none if one of them fails."""
        posterior, _ = together().agree(task, lambda: self._posterior_of(fitted()), lambda _: None)
        self._predict_with(posterior)

    def _predict_with(self, posterior: WeightPosterior) -> None:
        self._posterior = posterior
        moments, layers = posterior.fitted.input_moments, self.options.residual_layers
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
        if self._chosen or self._warned or self._posterior is None or torch.compiler.is_compiling():
            return
        warnings.warn(
            f"nothing was tuned: the prior variance is {self.prior_variance:g}, and predictions may be far "
            "from calibrated. Call `tune(val_loader)` first, or set `prior_variance` yourself",
            UntunedWarning,
            stacklevel=level_of_the_caller(),
        )
        self._warned = True

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
        layout = self.bayes._fitted_posterior().layout
        sizes = layout.position_sizes(tuple(logits.shape))
        return logits, layout.together([(sizes, uncertainty.score(gaussian))])

"""Deep kernel learning: a Gaussian process of each feature, mixed into logits, trained with the network."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from bitbayes.errors import ArgumentError, DataError, ModelError, NotFittedError
from bitbayes.likelihood import Categorical
from bitbayes.model import Head, Inputs, check_loader, eval_mode, find_head, forward, model_device
from bitbayes.model.batches import batches
from bitbayes.model.forward_passes import observe_inputs
from bitbayes.precision import working
from bitbayes.progress import track
from bitbayes.reproduction.training import MNIST, Recipe, checkpoint
from bitbayes.reproduction.training.step import Step

GRID, BOUND = 64, 10.0  # grid points of each process, over (−BOUND, BOUND)
MARGIN = 0.95  # features are scaled to this part of the grid's range
JITTER = 1e-3  # GPyTorch's, on the prior over grid values
TRAIN_SAMPLES, TEST_SAMPLES = 10, 20
SLOW = 0.01  # the kernel's and the mean's learning rate, as a part of everything else's
ROWS = 500  # points predicted at once


class DeepKernel(nn.Module):
    """p(y | x) = E softmax(W h), hⱼ = aⱼ(x)ᵀuⱼ a Gaussian process of the network's j-th feature alone.

    uⱼ are the process's values on a grid of 64 points, aⱼ(x) cubic interpolation at the feature, scaled into
    the grid and clamped to the range that features had in the last batch of training. With
    q(uⱼ) = N(mⱼ, LⱼLⱼᵀ), `fit` raises

        Σₙ E_q log softmax(W h(xₙ))_yₙ − Σⱼ KL(q(uⱼ) ‖ p(uⱼ)) + log p(lengthscale)

    in everything: q, W, the kernel, and **the network's own weights, in place**. The last linear layer is
    left out; it only says which features there are (its input) and how many classes. The processes, their
    kernel and the mixing weights W are GPyTorch's (`gp`, `softmax`; the extra `dkl`).

    Args:
        model: gives k ≥ 2 logits (n, k) by a linear layer.
        head: that layer's name; by default the last linear layer that the model lists.

    >>> _ = torch.manual_seed(0)
    >>> x = torch.rand(256, 2)
    >>> y = (x[:, 0] > x[:, 1]).long()
    >>> network = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> recipe = Recipe(epochs=150, learning_rate=0.05)
    >>> bayes = DeepKernel(network).fit([(x, y)], recipe=recipe)
    >>> probs = bayes.predict_proba(x)
    >>> probs.shape, bool((probs.argmax(1) == y).float().mean() > 0.9)
    (torch.Size([256, 2]), True)
    """

    def __init__(self, model: nn.Module, *, head: str | None = None) -> None:
        super().__init__()
        if not isinstance(model, nn.Module):
            raise ArgumentError(f"model is a {type(model).__name__}: expected a torch.nn.Module")
        gpytorch = _gpytorch()
        self.model, self.head = model, _head(model, head)
        weight = self.head.module(model).weight
        self.gp: Any = _processes(gpytorch, self.head.inputs)
        self.softmax: Any = gpytorch.likelihoods.SoftmaxLikelihood(
            num_features=self.head.inputs, num_classes=self.head.outputs
        )
        # The features' smallest and largest value in the last training batch; NaN: not fitted.
        self.register_buffer("bounds", torch.full((2,), torch.nan))
        for part in (self.gp, self.softmax):
            part.to(weight.device, working(weight.dtype))
        self.bounds: Tensor = self.bounds.to(weight.device, working(weight.dtype))

    def fit(
        self,
        train_loader: Iterable[Any],
        *,
        recipe: Recipe = MNIST,
        seed: int = 0,
        part: Path | None = None,
        progress: bool | None = None,
    ) -> Self:
        """Train processes and network by the recipe's schedule; weight decay is on the network alone.

        The loader is gone through once to be counted and checked, and once per epoch; one that has
        `set_epoch` is told the number. `part`: a file to which the run is saved on its way, and from which it
        goes on. The losses of all epochs are in `losses`. On a GPU the network runs in bfloat16.
        Fitting again goes on from the weights as they are.
        """
        loader = check_loader(train_loader)
        sizes = self._survey(loader)
        optimizer = self._optimizer(recipe)
        begun = checkpoint.begun(part)
        self.losses = checkpoint.resume(part, self, optimizer)
        step = Step(self, optimizer, lambda _, *batch: self.loss(*batch))
        step.recordable = len(set(sizes)) == 1
        modes = [(module, module.training) for module in self.model.modules()]
        self.model.train()
        rate = None
        try:
            with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
                epochs = range(len(self.losses), recipe.epochs)
                for epoch in track(epochs, "deep kernel learning", progress):
                    if rate != recipe.rate(epoch):
                        rate = recipe.rate(epoch)
                        step.begin(rate, 1 / sum(sizes))
                        optimizer.param_groups[-1]["lr"] = SLOW * rate
                    self.losses.append(self._epoch(step, loader, seed, epoch))
                    if math.isnan(self.losses[-1]):
                        raise DataError(f"the loss became NaN in epoch {epoch}: lower the learning rate")
                    checkpoint.keep(part, self, optimizer, self.losses, begun)
        finally:
            for module, mode in modes:
                module.training = mode
        return self

    def forward(self, x: Any) -> Tensor:
        """Drop-in logits: the logarithm of the probabilities (n, k), averaged over 20 draws."""
        self._need_fit()
        return self.probabilities(self.features(x), self.bounds, TEST_SAMPLES, None).log()

    @torch.no_grad()
    def predict_proba(
        self,
        x: Inputs | Iterable[Any],
        *,
        samples: int = TEST_SAMPLES,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Probabilities (n, k), averaged over draws of the processes; rows sum to one. x may be a loader."""
        self._need_fit()
        if samples < 1:
            raise ArgumentError(f"samples={samples}: draw at least one")
        parts = [
            self.probabilities(rows, self.bounds, samples, generator)
            for features, _ in observe_inputs(self.model, self.head, x)
            for rows in torch.split(features, ROWS)
        ]
        return torch.cat(parts)

    def features(self, x: Inputs) -> Tensor:
        """What the last linear layer would see, (n, d)."""
        with eval_mode(self.model):
            return forward(self.model, self.head, x)[0]

    def probabilities(
        self, features: Tensor, bounds: Tensor, samples: int, generator: torch.Generator | None
    ) -> Tensor:
        """(n, k) of features (n, d) whose range is `bounds`."""
        mean, variance = self.marginals(features, bounds)  # (n, d) each
        shape = samples, *mean.shape
        noise = torch.randn(shape, generator=generator, dtype=mean.dtype, device=mean.device)
        return self._logits(mean, variance, noise).softmax(2).mean(0)

    def marginals(self, features: Tensor, bounds: Tensor) -> tuple[Tensor, Tensor]:
        """Mean aⱼᵀmⱼ and variance ‖Lⱼᵀaⱼ‖² of each hⱼ(xₙ), (n, d) each."""
        low, high = bounds
        features = features.to(bounds.dtype).clamp(low, high)
        unit = (features - low) / (high - low).clamp_min(1e-12)  # equal features: all at the lower end
        weights = _interpolation(BOUND * MARGIN * (2 * unit - 1), self._grid)  # (d, n, g)
        means, roots = self._values()  # (d, g), (d, g, g)
        mean = (weights @ means[:, :, None])[:, :, 0]  # (d, n)
        variance = (weights @ roots).square().sum(2)
        return mean.T, variance.T

    def loss(self, x: Tensor, y: Tensor, noise: Tensor, weight: float) -> Tensor:
        """−ELBO / N of a batch x, y of the N = 1 / `weight` points; noise (s, n, d) is standard normal.

        No value is fetched from the device, so that on a GPU this can be recorded and replayed.
        """
        features, _, _ = forward(self.model, self.head, x)
        with torch.autocast(x.device.type, enabled=False):
            features = features.to(self.bounds.dtype)
            bounds = torch.stack([features.amin(), features.amax()])
            self.bounds.copy_(bounds.detach())
            logits = self._logits(*self.marginals(features, bounds), noise)  # (s, n, k)
            expected = functional.cross_entropy(logits.flatten(0, 1), y.repeat(len(noise)))
            return expected + weight * (self.kl() - self._log_prior())

    def kl(self) -> Tensor:
        """Σⱼ KL(q(uⱼ) ‖ p(uⱼ)), p(uⱼ) = N(c, K) for every j, over g grid points, with K = RRᵀ:

        ½[Σⱼ ‖R⁻¹Lⱼ‖² + ‖R⁻¹(mⱼ − c)‖² + d·log|K| − d·g] − Σⱼ log|diag Lⱼ|.
        """
        means, roots = self._values()
        d, g = means.shape
        root, inverse = self._prior_root()
        centred = means - self.gp.mean_module.constant
        squares = (inverse @ roots).square().sum() + (centred @ inverse.T).square().sum()
        logs = root.diagonal().log().sum() * d - roots.diagonal(dim1=1, dim2=2).abs().log().sum()
        divergence: Tensor = (squares - d * g) / 2 + logs
        return divergence

    def _prior_root(self) -> tuple[Tensor, Tensor]:
        """R and R⁻¹, (g, g). Factored in float64: K's condition number is near 1e5."""
        kernel, grid = self.gp.covar_module, self._grid.double()
        scaled = (grid[:, None] - grid) / kernel.base_kernel.lengthscale.double()
        covariance = kernel.outputscale.double() * (-scaled.square() / 2).exp()
        eye = torch.eye(len(grid), dtype=grid.dtype, device=grid.device)
        root, _ = torch.linalg.cholesky_ex(covariance + JITTER * eye)  # it asks nothing of the device
        inverse = torch.linalg.solve_triangular(root, eye, upper=False)
        return root.to(self.bounds.dtype), inverse.to(self.bounds.dtype)

    @property
    def _grid(self) -> Tensor:
        """The grid points (g,)."""
        grid: Tensor = self.gp.variational_strategy.base_variational_strategy.grid
        return grid[:, 0]

    def _values(self) -> tuple[Tensor, Tensor]:
        """m (d, g) and L (d, g, g) of q."""
        q = self.gp.variational_strategy.base_variational_strategy._variational_distribution
        return q.variational_mean, q.chol_variational_covar.tril()

    def _logits(self, mean: Tensor, variance: Tensor, noise: Tensor) -> Tensor:
        """W h for draws h, (s, n, k)."""
        mixing: Tensor = self.softmax.mixing_weights  # (k, d)
        return (mean + variance.sqrt() * noise) @ mixing.T

    def _log_prior(self) -> Tensor:
        kernel = self.gp.covar_module.base_kernel
        density: Tensor = kernel.lengthscale_prior.log_prob(kernel.lengthscale)
        return density.sum()

    def _optimizer(self, recipe: Recipe) -> torch.optim.Optimizer:
        """The recipe's, in three groups; the kernel and the mean, which are slower, come last."""
        head = list(self.head.module(self.model).parameters())
        network = [p for p in self.model.parameters() if all(p is not each for each in head)]
        optimizer = recipe.make_optimizer(self)
        (everything,) = optimizer.param_groups
        fast = [*self.gp.variational_parameters(), *self.softmax.parameters()]
        undecayed = everything | {"weight_decay": 0.0}
        optimizer.param_groups = [
            everything | {"params": network},
            undecayed | {"params": fast},
            undecayed | {"params": list(self.gp.hyperparameters())},
        ]
        return optimizer

    @torch.no_grad()
    def _survey(self, loader: Iterable[Any]) -> list[int]:
        """The sizes of the batches, once their labels fit and the head gives the model's output."""
        sizes = []
        for number, (x, y) in enumerate(batches(loader, model_device(self.model))):
            if not isinstance(x, Tensor):
                raise DataError(f"batch {number}: deep kernel learning takes tensors, not {type(x).__name__}")
            if number == 0:
                with eval_mode(self.model):
                    find_head(self.model, x[:2], self.head.name)
            if not bool(x.isfinite().all()):
                raise DataError(f"batch {number} holds NaN or infinity")
            Categorical().check(y, x.new_empty(len(x), self.head.outputs), number)
            sizes.append(len(x))
        return sizes

    def _epoch(self, step: Step, loader: Iterable[Any], seed: int, epoch: int) -> float:
        """One pass over the loader; the mean loss of its batches."""
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(epoch)
        # A generator for each epoch, so that a run that goes on draws what it would have drawn.
        generator = torch.Generator(self.bounds.device).manual_seed(1_000_003 * seed + 500_000 + epoch)
        total, count = torch.zeros((), device=self.bounds.device), 0
        for x, y in batches(loader, self.bounds.device):
            assert isinstance(x, Tensor)
            shape = TRAIN_SAMPLES, len(x), self.head.inputs
            noise = torch.randn(
                shape, generator=generator, dtype=self.bounds.dtype, device=self.bounds.device
            )
            total += step(x, y.reshape(-1).long(), noise)
            count += 1
        return float(total) / count

    def _need_fit(self) -> None:
        if bool(self.bounds.isnan().any()):
            raise NotFittedError("this DeepKernel is not fitted yet: call `fit(train_loader)` first")


def _gpytorch() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit, which it still uses
            return import_module("gpytorch")
    except ImportError as error:
        raise ArgumentError(
            "deep kernel learning needs GPyTorch: install bitbayes with its extra 'dkl'"
        ) from error


def _head(model: nn.Module, name: str | None) -> Head:
    layers = {key: each for key, each in model.named_modules() if isinstance(each, nn.Linear)}
    if name is not None and name not in layers:
        found = ", ".join(map(repr, layers)) or "none"
        raise ModelError(f"head={name!r} is no linear layer of the model: its linear layers are {found}")
    if not layers:
        raise ModelError("the model has no linear layer, so nothing says which its features are")
    name = list(layers)[-1] if name is None else name
    layer = layers[name]
    if layer.out_features < 2:
        raise ModelError(f"the head {name!r} gives one logit: deep kernel learning here needs two or more")
    return Head(name, layer.in_features, layer.out_features, layer.bias is not None)


def _processes(gpytorch: Any, count: int) -> Any:
    """`count` processes with one kernel and mean between them; q at the prior."""

    class Processes(gpytorch.models.ApproximateGP):  # type: ignore[misc]
        def __init__(self) -> None:
            v = gpytorch.variational
            q = v.CholeskyVariationalDistribution(GRID, batch_shape=torch.Size([count]))
            on_grid = v.GridInterpolationVariationalStrategy(self, GRID, [(-BOUND, BOUND)], q)
            super().__init__(v.IndependentMultitaskVariationalStrategy(on_grid, num_tasks=count))
            prior = gpytorch.priors.SmoothedBoxPrior(math.exp(-1), math.exp(1), sigma=0.1)
            kernel = gpytorch.kernels.RBFKernel(lengthscale_prior=prior)
            self.covar_module = gpytorch.kernels.ScaleKernel(kernel)
            self.mean_module = gpytorch.means.ConstantMean()
            q.initialize_variational_distribution(on_grid.prior_distribution)
            on_grid.variational_params_initialized.fill_(1)
            on_grid._clear_cache()  # a prior that was computed from the kernel as it is now

        def forward(self, x: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    return Processes()


def _interpolation(x: Tensor, grid: Tensor) -> Tensor:
    """Keys' cubic weights of the grid points (g,) at each of x (n, d): (d, n, g), four of them not zero."""
    # A number that is none has no place on the grid; it comes out as NaN at any.
    position = (x.T - grid[0]) / (grid[1] - grid[0])
    left = position.detach().floor()
    t = position - left
    near = [(1.5 * u - 2.5) * u * u + 1 for u in (t, 1 - t)]
    far = [((2.5 - 0.5 * u) * u - 4) * u + 2 for u in (1 + t, 2 - t)]
    weights = torch.stack([far[0], near[0], near[1], far[1]], 2)  # (d, n, 4)
    points = left.nan_to_num(1).long()[:, :, None] + torch.arange(-1, 3, device=x.device)
    # Each point is set once, so that neither this nor its gradient adds in an order of the device's choice.
    return x.new_zeros(*weights.shape[:2], len(grid)).scatter(2, points, weights)

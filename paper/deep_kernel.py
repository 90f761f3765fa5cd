"""Deep kernel learning: one Gaussian process on each feature, mixed into logits, trained with the network."""

import math
import warnings
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from bitbayes.errors import ArgumentError, NotFittedError
from paper.training import MNIST, Recipe
from paper.training.eval_mode import eval_mode
from paper.training.step import Batch, TrainingStep
from paper.training.train import train_epochs

GRID_POINTS = 64  # of each process
GRID_LIMIT = 10.0  # the grid spans (−GRID_LIMIT, GRID_LIMIT)
FEATURE_LIMIT = 0.95 * GRID_LIMIT  # features are scaled to (−FEATURE_LIMIT, FEATURE_LIMIT)
JITTER = 1e-3  # GPyTorch's, added to the variances of the prior over grid values
TRAINING_DRAWS, PREDICTION_DRAWS = 10, 20  # draws of the processes, over which an average is taken
KERNEL_LEARNING_RATE_FACTOR = 0.01  # times the learning rate, for the kernel and the mean
FEATURES_PER_BATCH = 500  # feature vectors predicted at once


class DeepKernel(nn.Module):
    """p(y | x) = E softmax(W h), where hⱼ = aⱼ(x)ᵀuⱼ is a Gaussian process on the network's j-th feature.

    The vector uⱼ holds the values of the process on a grid of 64 points. The weights aⱼ(x) are those of cubic
    interpolation at the feature. The feature is first clamped to the range of the features in the last batch
    of training, and scaled into the grid. With q(uⱼ) = N(mⱼ, LⱼLⱼᵀ), `fit` maximises

        Σₙ E_q log softmax(W h(xₙ))_yₙ − Σⱼ KL(q(uⱼ) ‖ p(uⱼ)) + log p(lengthscale)

    over q, W, the kernel, and **the network's own weights, in place**. The last linear layer is not used: its
    input gives the features, and its output gives the number of classes. The processes, their kernel and the
    mixing weights W are GPyTorch's (`gp` and `softmax`), which comes with the extra `paper`.

    Args:
        model: a sequential network that ends in a linear layer with k ≥ 2 outputs.

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

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        assert isinstance(model, nn.Sequential)
        head = model[-1]
        assert isinstance(head, nn.Linear) and head.out_features > 1
        gpytorch = _import_gpytorch()
        self.model, self.feature_count = model, head.in_features
        self.gp: Any = _make_processes(gpytorch, head.in_features)
        self.softmax: Any = gpytorch.likelihoods.SoftmaxLikelihood(
            num_features=head.in_features, num_classes=head.out_features
        )
        # The smallest and the largest feature in the last training batch. NaN before `fit`.
        self.register_buffer("bounds", torch.full((2,), torch.nan))
        for part in (self.gp, self.softmax):
            part.to(head.weight)
        self.bounds: Tensor = self.bounds.to(head.weight)

    def fit(
        self,
        train_loader: Iterable[tuple[Tensor, Tensor]],
        *,
        recipe: Recipe = MNIST,
        seed: int = 0,
        checkpoint_file: Path | None = None,
        progress: bool | None = None,
    ) -> Self:
        """Train the processes and the network. Weight decay acts on the network alone.

        The losses of all epochs are in `losses` afterwards. The network runs in bfloat16 where `train` does.
        A second call continues from the current weights.

        Args:
            train_loader: yields (x, y). It is iterated once to count the points, and once in each epoch. If
                it has a method `set_epoch`, that is called with the number of the epoch.
            recipe: optimizer and schedule.
            seed: determines the draws of the processes.
            checkpoint_file: the run is saved to this file from time to time, and resumed from it if it
                exists.
            progress: True or False to show a progress bar or not; None shows it on terminals.
        """
        sizes = [len(x) for x, _ in train_loader]

        def draw_batches(epoch: int) -> Iterator[Batch]:
            if hasattr(train_loader, "set_epoch"):
                train_loader.set_epoch(epoch)
            kind: Any = {"dtype": self.bounds.dtype, "device": self.bounds.device}
            generator = torch.Generator(self.bounds.device).manual_seed(1_000_003 * seed + 500_000 + epoch)
            for x, y in train_loader:
                noise = torch.randn(TRAINING_DRAWS, len(x), self.feature_count, generator=generator, **kind)
                yield x.to(self.bounds.device), y.to(self.bounds.device), noise

        weight = 1 / sum(sizes)

        def loss(_: nn.Module, x: Tensor, y: Tensor, noise: Tensor) -> Tensor:
            return self.loss(x, y, noise, weight)

        step = TrainingStep(self, self._optimizer(recipe), loss)
        step.capturable = len(set(sizes)) == 1
        modes = [(module, module.training) for module in self.model.modules()]
        self.model.train()
        try:
            self.losses = train_epochs(
                step,
                recipe,
                draw_batches,
                checkpoint_file,
                "deep kernel learning",
                progress,
            )
        finally:
            for module, mode in modes:
                module.training = mode
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Return log p (n, k), which serve as logits. p is the average over 20 draws of the processes."""
        self._check_fitted()
        return self.probabilities(self.features(x), self.bounds, PREDICTION_DRAWS, None).log()

    @torch.no_grad()
    def predict_proba(
        self,
        x: Tensor | Iterable[Tensor],
        *,
        samples: int = PREDICTION_DRAWS,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return probabilities (n, k): the average over draws of the processes.

        Args:
            x: inputs, or batches of them.
            samples: the number of draws.
            generator: for the draws, on the model's device.
        """
        self._check_fitted()
        parts = [
            self.probabilities(rows, self.bounds, samples, generator)
            for batch in ([x] if isinstance(x, Tensor) else x)
            for rows in torch.split(self.features(batch), FEATURES_PER_BATCH)
        ]
        return torch.cat(parts)

    def features(self, x: Tensor) -> Tensor:
        """Return the input of the last linear layer, (n, d), in eval mode."""
        with eval_mode(self.model):
            features: Tensor = self._backbone(x.to(self.bounds.device))
            return features

    def probabilities(
        self, features: Tensor, bounds: Tensor, samples: int, generator: torch.Generator | None
    ) -> Tensor:
        """Return probabilities (n, k) of features (n, d), which are clamped to `bounds` (low, high)."""
        mean, variance = self.marginals(features, bounds)  # (n, d) each
        shape = samples, *mean.shape
        noise = torch.randn(shape, generator=generator, dtype=mean.dtype, device=mean.device)
        return self._logits(mean, variance, noise).softmax(2).mean(0)

    def marginals(self, features: Tensor, bounds: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean aⱼᵀmⱼ and the variance ‖Lⱼᵀaⱼ‖² of each hⱼ(xₙ), (n, d) each."""
        low, high = bounds
        features = features.to(bounds.dtype).clamp(low, high)
        unit = (features - low) / (high - low).clamp_min(
            1e-12
        )  # if all features are equal, they lie at the lower end
        weights = _interpolation_weights(FEATURE_LIMIT * (2 * unit - 1), self._grid)  # (d, n, g)
        means, roots = self._variational_parameters()  # (d, g), (d, g, g)
        mean = (weights @ means[:, :, None])[:, :, 0]  # (d, n)
        variance = (weights @ roots).square().sum(2)
        return mean.T, variance.T

    def loss(self, x: Tensor, y: Tensor, noise: Tensor, weight: float) -> Tensor:
        """Return −ELBO / N, estimated from a batch x, y of the N = 1 / `weight` points.

        `noise` (s, n, d) is standard normal. No value is copied from a GPU to the CPU, so that a CUDA graph
        can be captured.
        """
        features = self._backbone(x)
        with torch.autocast(x.device.type, enabled=False):
            features = features.to(self.bounds.dtype)
            bounds = torch.stack([features.amin(), features.amax()])
            self.bounds.copy_(bounds.detach())
            logits = self._logits(*self.marginals(features, bounds), noise)  # (s, n, k)
            expected = functional.cross_entropy(logits.flatten(0, 1), y.repeat(len(noise)))
            return expected + weight * (self.kl() - self._log_prior())

    def kl(self) -> Tensor:
        """Return Σⱼ KL(q(uⱼ) ‖ p(uⱼ)), where p(uⱼ) = N(c, K) on g grid points, with K = RRᵀ. It is

        ½[Σⱼ ‖R⁻¹Lⱼ‖² + ‖R⁻¹(mⱼ − c)‖² + d·log|K| − d·g] − Σⱼ log|diag Lⱼ|.
        """
        means, roots = self._variational_parameters()
        d, g = means.shape
        root, inverse = self._prior_root()
        centred = means - self.gp.mean_module.constant
        squares = (inverse @ roots).square().sum() + (centred @ inverse.T).square().sum()
        logs = root.diagonal().log().sum() * d - roots.diagonal(dim1=1, dim2=2).abs().log().sum()
        divergence: Tensor = (squares - d * g) / 2 + logs
        return divergence

    def _prior_root(self) -> tuple[Tensor, Tensor]:
        """Return R and R⁻¹, (g, g), computed in float64 because the condition number of K is near 1e5."""
        kernel, grid = self.gp.covar_module, self._grid.double()
        scaled = (grid[:, None] - grid) / kernel.base_kernel.lengthscale.double()
        covariance = kernel.outputscale.double() * (-scaled.square() / 2).exp()
        eye = torch.eye(len(grid), dtype=grid.dtype, device=grid.device)
        root, _ = torch.linalg.cholesky_ex(covariance + JITTER * eye)  # `cholesky` would wait for the GPU
        inverse = torch.linalg.solve_triangular(root, eye, upper=False)
        return root.to(self.bounds.dtype), inverse.to(self.bounds.dtype)

    @property
    def _backbone(self) -> nn.Sequential:
        """The network without its last layer; no part of the module, whose weights would have two names."""
        return nn.Sequential(*list(self.model)[:-1])

    @property
    def _grid(self) -> Tensor:
        """The grid points (g,)."""
        grid: Tensor = self.gp.variational_strategy.base_variational_strategy.grid
        return grid[:, 0]

    def _variational_parameters(self) -> tuple[Tensor, Tensor]:
        """Return m (d, g) and L (d, g, g) of q."""
        q = self.gp.variational_strategy.base_variational_strategy._variational_distribution
        return q.variational_mean, q.chol_variational_covar.tril()

    def _logits(self, mean: Tensor, variance: Tensor, noise: Tensor) -> Tensor:
        """Return W h for draws h, (s, n, k)."""
        mixing: Tensor = self.softmax.mixing_weights  # (k, d)
        return (mean + variance.sqrt() * noise) @ mixing.T

    def _log_prior(self) -> Tensor:
        kernel = self.gp.covar_module.base_kernel
        density: Tensor = kernel.lengthscale_prior.log_prob(kernel.lengthscale)
        return density.sum()

    def _optimizer(self, recipe: Recipe) -> torch.optim.Optimizer:
        """Return the recipe's optimizer. Its last group, kernel and mean, has a smaller learning rate."""
        network = list(self._backbone.parameters())
        optimizer = recipe.make_optimizer(self)
        (everything,) = optimizer.param_groups
        fast = [*self.gp.variational_parameters(), *self.softmax.parameters()]
        undecayed = everything | {"weight_decay": 0.0}
        optimizer.param_groups = [
            everything | {"params": network},
            undecayed | {"params": fast},
            undecayed
            | {
                "params": list(self.gp.hyperparameters()),
                "learning_rate_factor": KERNEL_LEARNING_RATE_FACTOR,
            },
        ]
        return optimizer

    def _check_fitted(self) -> None:
        if bool(self.bounds.isnan().any()):
            raise NotFittedError("this DeepKernel is not fitted yet: call `fit(train_loader)` first")


def _import_gpytorch() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # from torch.jit, which GPyTorch still uses
            return import_module("gpytorch")
    except ImportError as error:
        raise ArgumentError(
            "deep kernel learning needs GPyTorch: install bitbayes with its extra 'paper'"
        ) from error


def _make_processes(gpytorch: Any, count: int) -> Any:
    """Return `count` processes that share one kernel and one mean. Their q starts at the prior."""

    class Processes(gpytorch.models.ApproximateGP):  # type: ignore[misc]
        def __init__(self) -> None:
            v = gpytorch.variational
            q = v.CholeskyVariationalDistribution(GRID_POINTS, batch_shape=torch.Size([count]))
            on_grid = v.GridInterpolationVariationalStrategy(
                self, GRID_POINTS, [(-GRID_LIMIT, GRID_LIMIT)], q
            )
            super().__init__(v.IndependentMultitaskVariationalStrategy(on_grid, num_tasks=count))
            prior = gpytorch.priors.SmoothedBoxPrior(math.exp(-1), math.exp(1), sigma=0.1)
            kernel = gpytorch.kernels.RBFKernel(lengthscale_prior=prior)
            self.covar_module = gpytorch.kernels.ScaleKernel(kernel)
            self.mean_module = gpytorch.means.ConstantMean()
            q.initialize_variational_distribution(on_grid.prior_distribution)
            on_grid.variational_params_initialized.fill_(1)
            on_grid._clear_cache()  # the cached prior depends on the kernel, which training changes

        def forward(self, x: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    return Processes()


def _interpolation_weights(x: Tensor, grid: Tensor) -> Tensor:
    """Return Keys' cubic interpolation weights (d, n, g) of the grid points (g,) at x (n, d).

    Four of the g weights of each point are not zero.
    """
    position = (x.T - grid[0]) / (grid[1] - grid[0])
    left = position.detach().floor()
    t = position - left
    near = [(1.5 * u - 2.5) * u * u + 1 for u in (t, 1 - t)]
    far = [((2.5 - 0.5 * u) * u - 4) * u + 2 for u in (1 + t, 2 - t)]
    weights = torch.stack([far[0], near[0], near[1], far[1]], 2)  # (d, n, 4)
    # NaN may take any place on the grid: its weights are NaN.
    points = left.nan_to_num(1).long()[:, :, None] + torch.arange(-1, 3, device=x.device)
    # `scatter` sets each entry once. Sums on a GPU would depend on the order of their terms.
    return x.new_zeros(*weights.shape[:2], len(grid)).scatter(2, points, weights)

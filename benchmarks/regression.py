"""Regression on eight tables: the default beside a constant noise, laplace-torch and an ensemble.

    python benchmarks/regression.py [--splits 10] [--epochs 200] [--tables diabetes wine …]
    python benchmarks/regression.py --time [--points 10000] [--batch 128]
    python benchmarks/regression.py --time --resnet --device cuda

The tables are those that scikit-learn ships or makes, and two that are made here. They were chosen before any
result was seen: two real ones (diabetes; the alcohol of wine from its other columns), Friedman's three, a
linear function of eight of twenty columns, a sine with a gap, and noise that grows with x. The constants of
`tune` were varied on diabetes, friedman1 and the sine; the other five are held out.

Each split has 60% of the rows to train, 20% to tune and 20% to test. Inputs and targets are standardised
by the training rows, so the NLL, the CRPS, widths and errors are in units of the targets' deviation. One
network for each split, two hidden layers of 64 units, is trained by 200 epochs of Adam and given to all
methods; the ensemble has four more. The methods:

- constant: the network, and its mean squared error on the validation rows as the noise variance.
- bitbayes: `bb.Laplace(model, likelihood="gaussian").fit(train).tune(validation)`.
- bitbayes, evidence: the same, with `tune(objective="evidence")`. It looks at no validation rows.
- laplace-torch: last layer, full Hessian, prior precision and noise by its marginal likelihood (1,000 steps
  of Adam, as in its regression example). It looks at no validation rows.
- laplace-torch, validation: the same fit, with the noise of least NLL on the validation rows, for each of
  which its grid search chooses the prior precision by the same NLL. Its documentation has no such loop.
- ensemble: the mean and the variance of five networks, and a noise variance of least NLL on the validation
  rows.

Off the data: the test rows with each column shuffled by itself, and the test rows × 5 (after
standardisation). Printed is how much wider intervals are there than on the test rows: the ratio of the mean
and of the median widths. Where columns are independent (in all tables but diabetes and wine), shuffled rows
are like the data, and the ratio should be 1.
"""

import argparse
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.utils.data import DataLoader, TensorDataset

import bitbayes as bb
from bitbayes import metrics
from timing import Batches, plain, ratio

sys.path.insert(0, str(Path(__file__).parents[1]))  # the checkout, for `paper`
from paper.resnet import resnet18

ROWS, MEMBERS = 600, 5
BATCH, RATE, DECAY = 32, 1e-3, 1e-4
HIDDEN = (64, 64)
NOISES = torch.logspace(-2, 0.5, 26)
COLUMNS = ("nll", "crps", "coverage90", "width90", "rmse")
SETS = ("shuffled", "× 5")
OURS = "bitbayes"

Part = tuple[Tensor, Tensor]
Predict = Callable[[Tensor], bb.Prediction]


@dataclass(frozen=True)
class Split:
    """The rows of one split and the networks trained on them."""

    train: Part
    validation: Part
    test: Part
    shuffled: Tensor
    networks: list[nn.Module]


# ---- tables


def tables() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    from sklearn import datasets  # here, because times need none

    wine = datasets.load_wine().data
    informative = {"n_samples": ROWS, "n_features": 20, "n_informative": 8}
    return {
        "diabetes": datasets.load_diabetes(return_X_y=True),
        "friedman1": datasets.make_friedman1(ROWS, noise=1.0, random_state=0),
        "friedman2": datasets.make_friedman2(ROWS, noise=125.0, random_state=0),
        "friedman3": datasets.make_friedman3(ROWS, noise=0.1, random_state=0),
        "noise grows": heteroscedastic(),
        "linear, 8 of 20": datasets.make_regression(**informative, noise=50.0, random_state=0),
        "sine with a gap": sine_with_a_gap(),
        "wine": (wine[:, 1:], wine[:, 0]),
    }


def heteroscedastic() -> tuple[np.ndarray, np.ndarray]:
    """Four columns in [−1, 1]; the deviation of the noise goes from 0.05 to 0.65 along the first."""
    random = np.random.RandomState(0)
    x = random.uniform(-1, 1, (ROWS, 4))
    y = np.sin(3 * x[:, 0]) + x[:, 1] * x[:, 2]
    return x, y + (0.35 + 0.3 * x[:, 0]) * random.randn(ROWS)


def sine_with_a_gap() -> tuple[np.ndarray, np.ndarray]:
    """x in [−4, −1] and [1, 4], the deviation of the noise is 0.1."""
    random = np.random.RandomState(0)
    x = random.uniform(1, 4, (300, 1)) * random.choice([-1, 1], (300, 1))
    return x, np.sin(2 * x[:, 0]) + 0.1 * random.randn(300)


def splits_of(x: np.ndarray, y: np.ndarray, count: int, epochs: int) -> list[Split]:
    """The splits of one table. All their networks are trained side by side."""
    parts = []
    for seed in range(count):
        order = np.random.RandomState(seed).permutation(len(x))
        train, validation, test = np.split(order, [int(0.6 * len(x)), int(0.8 * len(x))])
        rows = torch.tensor((x - x[train].mean(0)) / x[train].std(0)).float()
        targets = torch.tensor((y - y[train].mean()) / y[train].std()).float()[:, None]
        parts.append([(rows[each], targets[each]) for each in (train, validation, test)])
    networks = trained([part[0] for part in parts for _ in range(MEMBERS)], epochs)
    found = []
    for seed, (train, validation, test) in enumerate(parts):
        generator = torch.Generator().manual_seed(seed)
        columns = [column[torch.randperm(len(column), generator=generator)] for column in test[0].T]
        own = networks[seed * MEMBERS : (seed + 1) * MEMBERS]
        found.append(Split(train, validation, test, torch.stack(columns, 1), own))
    return found


def trained(parts: list[Part], epochs: int) -> list[nn.Module]:
    """One network for each part, trained on it alone: each has its own weights and its own batches."""
    torch.manual_seed(0)
    sizes = (parts[0][0].shape[1], *HIDDEN, 1)
    networks: list[nn.Module] = [bb.toys.MLP(sizes) for _ in parts]
    weights, _ = stack_module_state(networks)
    x, y = (torch.stack(column) for column in zip(*parts, strict=True))  # (m, n, d), (m, n, 1)

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.mse_loss(functional_call(networks[0], weights, (x,)), y)

    optimiser = torch.optim.Adam(weights.values(), lr=RATE, weight_decay=DECAY)
    each = torch.arange(len(parts))[:, None]
    for _ in range(epochs):
        order = torch.rand(x.shape[:2]).argsort(1)  # (m, n)
        for rows in order.split(BATCH, dim=1):
            optimiser.zero_grad()
            vmap(loss)(weights, x[each, rows], y[each, rows]).sum().backward()
            optimiser.step()
    for number, network in enumerate(networks):
        network.load_state_dict({name: value[number].detach() for name, value in weights.items()})
        network.eval()
    return networks


# ---- methods


def constant(split: Split) -> Predict:
    model, (x, y) = split.networks[0], split.validation
    noise = (model(x) - y).square().mean()
    return lambda x: with_noise(model(x), torch.zeros(len(x), 1), noise)


def default(split: Split) -> Predict:
    return (
        bb.Laplace(split.networks[0], likelihood="gaussian")
        .fit([split.train])
        .tune([split.validation])
        .predict
    )


def by_evidence(split: Split) -> Predict:
    bayes = bb.Laplace(split.networks[0], likelihood="gaussian").fit([split.train])
    return bayes.tune(objective="evidence").predict


def laplace_torch(split: Split) -> Predict:
    other = fitted_laplace_torch(split.networks[0], split.train)
    log_prior, log_noise = (torch.ones(1, requires_grad=True) for _ in range(2))
    optimiser = torch.optim.Adam([log_prior, log_noise], lr=0.1)
    for _ in range(1000):
        optimiser.zero_grad()
        (-other.log_marginal_likelihood(log_prior.exp(), log_noise.exp())).backward()
        optimiser.step()
    other.prior_precision, other.sigma_noise = log_prior.exp().detach(), log_noise.exp().detach()
    return predictions_of(other)


def laplace_torch_by_validation(split: Split) -> Predict:
    other = fitted_laplace_torch(split.networks[0], split.train)
    loader = DataLoader(TensorDataset(*split.validation), batch_size=len(split.validation[0]))

    def loss(mean: Tensor, variance: Tensor, targets: Tensor) -> Tensor:
        deviation = (variance.flatten(1) + other.sigma_noise**2).sqrt()
        return torch.tensor(metrics.gaussian_nll(mean, deviation, targets))

    best = (float("inf"), 1.0, 1.0)
    for noise in NOISES:
        other.sigma_noise = noise
        other.optimize_prior_precision(method="gridsearch", val_loader=loader, loss=loss, grid_size=25)
        mean, variance = other(split.validation[0])
        own = loss(mean, variance, split.validation[1]).item()
        best = min(best, (own, float(noise), float(other.prior_precision)))
    _, other.sigma_noise, other.prior_precision = best
    return predictions_of(other)


def fitted_laplace_torch(model: nn.Module, train: Part) -> Any:
    import laplace
    from laplace.curvature import CurvlinopsGGN

    options = {"subset_of_weights": "last_layer", "hessian_structure": "full", "backend": CurvlinopsGGN}
    other = laplace.Laplace(model, "regression", **options)
    other.fit(DataLoader(TensorDataset(*train), batch_size=128))
    return other


def predictions_of(other: Any) -> Predict:
    def predict(x: Tensor) -> bb.Prediction:
        mean, variance = other(x)
        return with_noise(mean, variance.flatten(1), other.sigma_noise**2)

    return predict


def ensemble(split: Split) -> Predict:
    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        values = torch.stack([network(x) for network in split.networks])
        return values.mean(0), values.var(0, correction=0)

    x, y = split.validation
    mean, variance = both(x)
    fine = torch.logspace(-4, 1, 501)
    losses = [metrics.gaussian_nll(mean, (variance + noise).sqrt(), y) for noise in fine]
    noise = fine[int(np.argmin(losses))]
    return lambda x: with_noise(*both(x), noise)


def with_noise(mean: Tensor, variance: Tensor, noise: Tensor) -> bb.Prediction:
    return bb.Prediction(mean, variance, noise.expand_as(mean))


METHODS: dict[str, Callable[[Split], Predict]] = {
    "constant": constant,
    OURS: default,
    "bitbayes, evidence": by_evidence,
    "laplace-torch": laplace_torch,
    "laplace-torch, validation": laplace_torch_by_validation,
    "ensemble of five": ensemble,
}


# ---- measures


def measure(predict: Predict, split: Split) -> list[float]:
    """The numbers of COLUMNS, and the ratios of the mean and median widths for each of SETS."""
    with torch.no_grad():
        x, y = split.test
        inside = predict(x)
        found = metrics.of_values(inside.mean, inside.deviation, inside.interval(0.9), y)
        row = [found[name] for name in COLUMNS]
        for far in (split.shuffled, 5 * x):
            outside = predict(far).deviation
            row += [float(outside.mean() / inside.deviation.mean())]
            row += [float(outside.median() / inside.deviation.median())]
    return row


def print_tables(chosen: list[str], splits: int, epochs: int) -> None:
    means: dict[str, dict[str, np.ndarray]] = {}
    given = tables()
    for name, (x, y) in ((name, given[name]) for name in chosen or given):
        every = splits_of(x, y, splits, epochs)
        means[name] = {}
        print(f"\n{name}: {len(x)} rows, {x.shape[1]} columns\n")
        print("| | NLL | CRPS | coverage, % | width | RMSE | " + " | ".join(SETS) + " |")
        print("|---|" + "--:|" * (len(COLUMNS) + len(SETS)))
        for method, make in METHODS.items():
            own = np.mean([measure(make(split), split) for split in every], 0)
            means[name][method] = own
            nll, crps, coverage, width, rmse, *ratios = own
            cells = [f"{nll:.3f}", f"{crps:.3f}", f"{100 * coverage:.1f}", f"{width:.2f}", f"{rmse:.3f}"]
            cells += [f"{ratios[i]:.2f} / {ratios[i + 1]:.2f}" for i in range(0, len(ratios), 2)]
            print(f"| {method} | {' | '.join(cells)} |", flush=True)
    print_counts(means)


def print_counts(means: dict[str, dict[str, np.ndarray]]) -> None:
    """How often bitbayes is at most each of the others, its coverage, and how much intervals widen."""
    ours = np.array([each[OURS] for each in means.values()])
    print(f"\nof {len(means)} tables, {OURS} is at most")
    for other in [each for each in METHODS if each != OURS]:
        theirs = np.array([each[other] for each in means.values()])
        for place, name in ((0, "NLL"), (1, "CRPS")):
            print(f"- {other}, {name}: on {int((ours[:, place] <= theirs[:, place]).sum())}")
    print(f"\ncoverage of 90% intervals: {', '.join(f'{100 * each:.1f}' for each in ours[:, 2])}")
    for i, name in enumerate(SETS):
        for place, kind in ((0, "mean"), (1, "median")):
            ratios = ours[:, len(COLUMNS) + 2 * i + place]
            print(f"{name}, ratio of {kind} widths: {', '.join(f'{each:.2f}' for each in ratios)}")


# ---- time


def print_times(options: argparse.Namespace) -> None:
    """Fit, tune and predict as ratios to a plain pass over the same data, laplace-torch beside it."""
    torch.manual_seed(0)
    if options.resnet:
        model, shape = resnet18(classes=1), (3, 32, 32)
    else:
        model, shape = bb.toys.MLP((10, *HIDDEN, 1)), (10,)
    model = model.eval().to(options.device)
    x = torch.randn(options.points, *shape, device=options.device)
    data = Batches(x, torch.randn(options.points, 1, device=options.device), options.batch)
    data.dataset = x  # laplace-torch asks a loader for the number of its points in this way
    blocks = [data] * options.repeats
    bayes = bb.Laplace(model, likelihood="gaussian")
    rows = {"bitbayes: fit": ratio(model, blocks, bayes.fit)}
    rows["bitbayes: tune"] = ratio(model, blocks, bayes.tune)
    rows["bitbayes: predict"] = ratio(model, blocks, bayes.predict)
    without = bb.Laplace(model, likelihood="gaussian", prior_variance=1.0, residual=False)
    rows["bitbayes, residual=False: fit"] = ratio(model, blocks, without.fit)
    rows["bitbayes, residual=False: predict"] = ratio(model, blocks, without.predict)

    import laplace
    from laplace.curvature import CurvlinopsGGN

    # laplace-torch 0.3 builds its full matrix on the CPU, and fails on a GPU.
    for structure in ("full", "kron") if options.device == "cpu" else ("kron",):
        names = {"subset_of_weights": "last_layer", "hessian_structure": structure}
        other = laplace.Laplace(model, "regression", **names, backend=CurvlinopsGGN)
        rows[f"laplace-torch {structure}: fit"] = ratio(model, blocks, other.fit)

        def predict(batches: Batches, other: Any = other) -> None:
            for inputs, _ in batches:
                other(inputs)

        rows[f"laplace-torch {structure}: predict"] = ratio(model, blocks, predict)
    plain(model, data)
    for name, value in rows.items():
        print(f"{name:<40} {value:8.2f} x", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=200, help="of the training; fewer fit the noise less")
    parser.add_argument("--tables", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--time", action="store_true", help="times in the place of the tables")
    parser.add_argument("--points", type=int, default=10_000)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--resnet", action="store_true", help="a ResNet-18 and images of 3 × 32 × 32")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.time:
        print_times(options)
    else:
        print_tables(options.tables, options.splits, options.epochs)


if __name__ == "__main__":
    main()

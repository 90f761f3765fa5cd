"""The objective "calibrated", against a brute-force search over prior variances and temperatures."""

import itertools
import math
import statistics
import warnings
from dataclasses import replace

import numpy
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from torch import nn
from torch.nn import functional

import bitbayes as bb
import dense
import reference
from bitbayes.errors import ArgumentError, FewPointsWarning
from bitbayes.likelihoods import Categorical, likelihood_for
from bitbayes.toys import digits, digits_lenet, two_moons, validation_split
from bitbayes.tuning import calibrated
from bitbayes.tuning.search import COARSE_NATS, stride
from classifiers import drawn, points, relu_mlp, trained
from reference import KAPPA

# The steep term begins at so many times the 99% quantile of the distances, and further out for few points.
# Where its kernel has doubled, the deviation of a difference of logits is so many times the median margin.
BEYOND, DEVIATIONS = 2.0, 4.0
LOG_TEMPERATURES = torch.arange(-14.0, 4.0, 0.05, dtype=torch.float64)


def losses(means, covariances, labels, method, log_temperature):
    """−log p(y) for each T, (T, n): means (n, k) are divided by T, covariances (n, k, k) are not."""
    k, temperatures = means.shape[1], log_temperature.exp()[:, None, None]
    variances = covariances.diagonal(dim1=1, dim2=2)
    pairs = variances[:, :, None] + variances[:, None, :] - 2 * covariances
    if k == 1:
        z = (means / (1 + KAPPA * variances).sqrt() / temperatures)[..., 0]
        log_p = nn.functional.logsigmoid(torch.stack([-z, z], 2))
    elif method == "pairwise":
        z = (means[:, :, None] - means[:, None, :]) / (1 + KAPPA * pairs.clamp_min(0)).sqrt()
        log_p = (-(-z / temperatures[..., None]).logsumexp(3)).log_softmax(2)
    else:
        variance = pairs.sum((1, 2)) / (k * (k - 1))
        log_p = (means / (1 + KAPPA * variance).sqrt()[:, None] / temperatures).log_softmax(2)
    return -log_p[:, torch.arange(len(labels)), labels]


def weak_prior(log_ratio, log_shrinkage):
    """−log p of T/T₀ and of the shrinkage r, up to a constant."""
    width = torch.where(torch.as_tensor(log_ratio) < 0, 0.15, 0.35)
    return (log_ratio / width) ** 2 / 2 + (log_shrinkage - math.log(1.2)) ** 2 / (2 * 0.1**2)


class BruteForce:
    """For each candidate the best T, and then the candidate of least cost.

    covariances(candidate) gives (n, k, k). T is the best of a grid, and then within 1e-9 of the least nearby.
    The costs include the weak prior, and the losses do not.
    """

    def __init__(self, grid, means, covariances, labels, method):
        self.grid, self.costs, self.losses, self.best = grid, [], [], []
        for value in grid:
            gaussian = means, covariances(value), labels, method
            neutral = -self.log_shrinkage(gaussian[1])

            def cost(log_temperature, gaussian=gaussian, neutral=neutral):
                weak = weak_prior(log_temperature - neutral, -neutral) / len(means)
                return losses(*gaussian, log_temperature).mean(1) + weak

            place = int(cost(LOG_TEMPERATURES).argmin())
            assert 0 < place < len(LOG_TEMPERATURES) - 1
            around = LOG_TEMPERATURES[place - 1], LOG_TEMPERATURES[place + 1]
            best = minimize_scalar(
                lambda t, cost=cost: float(cost(torch.tensor([t], dtype=torch.float64))),
                bounds=tuple(map(float, around)),
                method="bounded",
                options={"xatol": 1e-9},
            )
            self.costs.append(best.fun)
            self.losses.append(float(losses(*gaussian, torch.tensor([best.x]).double()).mean()))
            self.best.append(best.x)
        self.lowest, self.count = self.costs.index(min(self.costs)), len(means)

    @staticmethod
    def log_shrinkage(covariance):
        """log √(1 + κ·mean Var(fᵢ − fⱼ)), or that of one logit's variance, of the median point."""
        k = covariance.shape[1]
        variances = covariance.diagonal(dim1=1, dim2=2)
        spread = variances[:, 0]
        if k > 1:
            spread = (variances[:, :, None] + variances[:, None, :] - 2 * covariance).sum((1, 2)) / (
                k * (k - 1)
            )
        return statistics.median(math.log(1 + KAPPA * each) / 2 for each in spread.tolist())

    def agrees(self, bayes):
        """Assert that what was chosen is the brute-force choice.

        The temperature is the vertex of a parabola through costs a quarter apart in log T, which is within
        0.05 of the least of a cost that is smooth on that scale. A cost is then within 0.1% of the least,
        and where costs of prior variances differ by less, any of them may be chosen. Costs that differ by
        less than a hundredth of a nat over all points are equal.
        """
        place = self.grid.index(bayes.prior_variance)
        assert abs(math.log(bayes.temperature) - self.best[place]) < 0.05
        assert self.costs[place] <= min(self.costs) * 1.001 + 0.01 / self.count
        if self.costs[self.lowest] < 0.998 * min(self.costs[0], self.costs[-1]):  # not flat to an end
            assert abs(place - self.lowest) <= stride(self.grid, COARSE_NATS)


@pytest.mark.parametrize(
    "k, structure, method",
    [
        (1, "full", "probit"),
        (3, "kron", "pairwise"),
        (3, "diag", "pairwise"),
        (3, "kron", "meanfield"),
        (70, "kron", "meanfield"),
    ],
)
def test_prior_variance_and_temperature_are_those_of_a_brute_force_search(k, structure, method):
    bayes, (x, y) = trained(
        k, n=61, residual=False, structure=structure, predictive="auto" if k > 64 else method
    )
    model = bayes.model
    weights = torch.cat([model[2].weight, model[2].bias[:, None]], 1).detach()
    train, labels = training_points(k)
    features, inside = (torch.cat([model[1](model[0](z)), torch.ones(len(z), 1)], 1) for z in (x, train))
    features, inside = features.detach().double(), inside.detach().double()

    curvature = reference.precision(structure, weights, inside, labels, math.inf)

    def covariances(value):
        sigma = torch.linalg.inv(curvature + torch.eye(len(curvature)) / value)
        return torch.einsum("nd,idje,ne->nij", features, sigma.reshape(k, 3, k, 3), features)

    expected = BruteForce(
        bayes.posterior.candidates(), model(x).detach(), covariances, y, method if k > 1 else "probit"
    )
    assert bayes.tune(reference.loader(x, y)) is bayes
    expected.agrees(bayes)


def training_points(k):
    """The four points that `trained` fits to."""
    torch.manual_seed(k)
    bayes, _ = trained(k, n=1)
    torch.manual_seed(k)
    nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, k))  # takes the same random numbers
    return drawn(bayes.model, 4)


@pytest.mark.parametrize("structure", ["diag", "full"])
def test_over_all_layers_the_choice_is_that_of_exact_covariances(structure):
    """Deviations are interpolated between priors to 2%, which moves log T by no more, and costs by less."""
    model, x, _ = dense.case("mlp", 41)
    model[4].weight.data *= 8
    labels = torch.where(torch.arange(41) % 4 == 0, torch.arange(41) % 3, model(x).argmax(1))
    bayes = bb.Laplace(model, layers="all", structure=structure, residual=False)
    bayes.fit(reference.loader(x, labels))
    curvature, jacobians = dense.ggn(model, x, labels), dense.jacobians(model, x)
    curvature = torch.diag(curvature.diagonal()) if structure == "diag" else curvature

    def covariances(value):
        sigma = torch.linalg.inv(curvature + torch.eye(len(curvature)) / value)
        return jacobians @ sigma @ jacobians.mT

    grid = bayes.posterior.candidates()
    expected = BruteForce(grid, model(x).detach(), covariances, labels, "pairwise")
    bayes.tune(reference.loader(x, labels))
    place = grid.index(bayes.prior_variance)
    assert abs(math.log(bayes.temperature) - expected.best[place]) < 0.07
    assert expected.costs[place] <= min(expected.costs) * 1.002


@pytest.mark.parametrize("residual", [False, "auto"])
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("layers", ["last", "all"])
def test_the_loss_is_at_most_that_of_temperature_scaling(k, layers, residual):
    """At a tiny prior variance it is temperature scaling, and the choice costs no more.

    A cost is the loss and the weak prior on T and on the shrinkage r, whose T₀ and r are 1 at a tiny prior
    variance. A residual may cost 1.5 percent. Half a percent is for the search in T and, over all layers, for
    interpolated deviations.
    """
    bayes, (x, y) = trained(k, n=200, layers=layers, residual=residual)
    bayes.tune([(x, y)])
    scaled = bb.TemperatureScaling(bayes.model).fit([(x, y)])
    theirs = bb.metrics.nll(scaled.predict_proba(x), y)
    weak = (float(weak_prior(math.log(scaled.temperature), 0.0)) + 0.01) / len(x)
    assert bb.metrics.nll(bayes.predict_proba(x), y) <= 1.005 * (1.015 if residual else 1) * (theirs + weak)


@pytest.mark.parametrize("residual", [False, "auto"])
@pytest.mark.parametrize("k", [1, 2])
def test_validation_data_that_are_all_right_do_not_make_predictions_certain(k, residual):
    """The likelihood alone would have T → 0. The weak prior on T, narrow below T₀, holds it."""
    x, y = two_moons(200)
    validation = two_moons(51, noise=0.05, seed=1)
    model = nn.Sequential(nn.Linear(2, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, k))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(120):
        optimizer.zero_grad()
        logits = model(x)
        reference.total_loss(logits, y).backward()
        optimizer.step()
    bayes = bb.Laplace(model.eval(), residual=residual).fit([(x, y)]).tune([validation])
    probabilities = bayes.predict_proba(validation[0])
    assert bb.metrics.accuracy(probabilities, validation[1]) == 1.0, "the test needs separable data"
    chosen = bayes.temperature
    neutral = -BruteForce.log_shrinkage(bayes.logits(validation[0]).covariance)
    # (log(T/T₀)/0.15)²/2n is at most the loss that a smaller T could still save, which is that at T₀; and
    # 0.02 is for the search in T.
    bayes.temperature = math.exp(neutral)
    at_neutral = bb.metrics.nll(bayes.predict_proba(validation[0]), validation[1])
    assert at_neutral > 1e-4, "the test needs predictions that could be more certain"
    assert math.log(chosen) >= neutral - 0.15 * math.sqrt(2 * 51 * at_neutral) - 0.02


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("layers", ["last", "all"])
@pytest.mark.parametrize("residual", [False, True])
def test_tuning_is_one_pass_over_the_data(k, layers, residual):
    bayes, (x, y) = trained(k, layers=layers, residual=residual)
    bayes.predict_proba(x)  # over all layers it looks at the memory it needs, once
    seen = []
    bayes.model[0].register_forward_hook(lambda module, args, output: seen.append(len(args[0])))
    once = (batch for batch in reference.loader(x, y, 25))
    bayes.tune(once)
    # Over all layers the levels take a run of their own, without derivatives. Three inputs are made up.
    runs = 2 if residual and layers == "all" else 1
    assert seen == [3, *(size for size in (25, 25, 10) for _ in range(runs))]


def numbers(settings):
    """All numbers of the settings that there are, by name."""
    found = {}
    for name, value in settings.as_json().items():
        parts = value if isinstance(value, dict) else {"": value}
        found |= {f"{name}/{key}".rstrip("/"): each for key, each in parts.items() if each is not None}
    return found


# Costs differ by the rounding of their sums, 1e-16, and a vertex by as much over the curvature.
ROUNDED = 1e-9


def test_batch_sizes_do_not_change_the_choice(monkeypatch):
    bayes, (x, y) = trained(3)
    whole = numbers(bayes.tune([(x, y)]).settings)
    assert {"near_variance", "levels/head", "thresholds/input", "score_spread"} <= whole.keys()
    monkeypatch.setattr("bitbayes.posteriors.last_layer.STEP_NUMBERS", 3 * 10)
    assert numbers(bayes.tune(reference.loader(x, y, 7)).settings) == pytest.approx(whole, rel=ROUNDED)


@given(seed=st.integers(0, 1000))
@pytest.mark.parametrize("k, layers", [(1, "last"), (3, "last"), (3, "all")])
def test_the_order_of_the_points_does_not_change_the_choice(k, layers, seed):
    bayes, (x, y) = trained(k, n=53, layers=layers)
    here = numbers(bayes.tune([(x, y)]).settings)
    order = torch.randperm(53, generator=torch.Generator().manual_seed(seed))
    assert numbers(bayes.tune([(x[order], y[order])]).settings) == pytest.approx(here, rel=ROUNDED)


INPUTS = {
    "any": lambda x, rows: x,
    "a constant column": lambda x, rows: x.index_fill(1, torch.tensor(1), 0.1),
    "one input": lambda x, rows: x[:1].expand_as(x),
    "duplicates": lambda x, rows: x[rows % 3],
    "zeros": lambda x, rows: torch.zeros_like(x),
}
LABELS = {
    "right": lambda best, rows: best,
    "wrong": lambda best, rows: best + 1,
    "one wrong": lambda best, rows: best + (rows == 0),
    "any": lambda best, rows: rows * 7 // 2,
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@example(seed=0, n=23, k=1, size=1e-3, inputs="duplicates", labels="any", residual=False)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(2, 30),
    k=st.sampled_from([1, 2, 3, 5]),
    size=st.sampled_from([1e-3, 1.0, 30.0, 1e3, 1e6]),
    inputs=st.sampled_from(sorted(INPUTS)),
    labels=st.sampled_from(sorted(LABELS)),
    residual=st.booleans(),
)
def test_the_order_of_a_few_strange_points_does_not_change_the_choice(
    dtype, seed, n, k, size, inputs, labels, residual
):
    """All right, all wrong, the same again and again, logits of any size: rounding must decide nothing."""
    torch.manual_seed(seed)
    model, rows = relu_mlp(k, dtype), torch.arange(n)
    with torch.no_grad():
        model[-1].weight *= size
    bayes = bb.Laplace(model, residual=residual).fit(
        [(torch.randn(60, 4, dtype=dtype), torch.arange(60) % max(2, k))]
    )
    x = INPUTS[inputs](torch.randn(n, 4, dtype=dtype), rows)
    logits = model(x).detach()
    best = logits.argmax(1) if k > 1 else (logits[:, 0] > 0).long()
    y, order = LABELS[labels](best, rows) % max(2, k), torch.randperm(n)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewPointsWarning)
        here, there = (numbers(bayes.tune([(x[each], y[each])]).settings) for each in (rows, order))
    # The features of float32 may be rounded in another way in another row.
    assert there == pytest.approx(here, rel=1e-6 if dtype == torch.float64 else 1e-3)


def test_energies_that_only_rounding_tells_apart_have_the_same_spread(monkeypatch):
    """One input again and again: in another batch a network of float32 may round it otherwise."""
    bayes, (x, y) = trained(3, n=20, dtype=torch.float32)
    score, eps = Categorical.score, torch.finfo(torch.float32).eps

    def spread(noise):
        errors = 1 + noise * eps * (torch.arange(60) % 5 - 2)
        monkeypatch.setattr(Categorical, "score", lambda self, gaussian: score(self, gaussian) * errors)
        return bayes.tune([(x[:1].expand(60, -1), y[:1].expand(60))]).settings.score_spread

    assert spread(2) == pytest.approx(spread(0), rel=1e-4) and 0 < spread(0) < 1e-4


@pytest.mark.parametrize("k, layers", [(1, "last"), (3, "last"), (70, "last"), (1, "all"), (3, "all")])
def test_one_point_and_one_class_give_finite_numbers(k, layers):
    bayes, (x, y) = trained(k, layers=layers)
    for points_of in ((x[:1], y[:1]), (x, torch.zeros_like(y)), (x, torch.ones_like(y))):
        bayes.tune([points_of])
        assert 1e-6 <= bayes.temperature <= 1e6 and bayes.prior_variance in bayes.posterior.candidates()
        assert bool(bayes.predict_proba(100 * x).isfinite().all())
        found = numbers(bayes.settings)
        assert all(map(math.isfinite, found.values())) and found["thresholds/input"] > 0


def test_monte_carlo_and_drawn_networks_are_tuned_too():
    bayes, (x, y) = trained(3, predictive="mc")
    first = bayes.tune([(x, y)]).temperature
    assert bayes.tune([(x, y)]).temperature == first  # the same random numbers for every candidate
    bayes, (x, y) = trained(3, layers="all", predictive="sampled_networks")
    bayes.tune([(x, y)])
    assert not bayes.settings.has_residual and bayes.temperature != 1.0
    assert bool(bayes.predict_proba(x).isfinite().all())


def test_outliers_are_refused_and_nothing_changes():
    bayes, (x, y) = trained(3)
    with pytest.raises(ArgumentError, match=r"'calibrated' looks at no outliers.*objective='ood'"):
        bayes.tune([(x, y)], outliers=3 * x)
    assert bayes.settings == bb.Settings()


def test_a_prior_variance_for_each_layer_is_refused():
    x, y = points()
    bayes = bb.Laplace(relu_mlp(), layers="all", prior_variance={"0": 1.0, "2": 2.0}).fit([(x, y)])
    with pytest.raises(ArgumentError, match=r"'calibrated' chooses one prior variance for all layers"):
        bayes.tune([(x, y)])
    assert bayes.prior_variance == {"0": 1.0, "2": 2.0} and bayes.temperature == 1.0


# ---- the residual's numbers


def tuned_with_residual(k, layers="last", residual="auto", n=101):
    """A `Laplace` of columns of different sizes, tuned on n points; labels are drawn from the model."""
    model, size = relu_mlp(k, torch.float64), torch.tensor([1.0, 5.0, 0.2, 30.0], dtype=torch.float64)
    train, x = torch.randn(80, 4) * size, 1.2 * torch.randn(n, 4) * size
    p = [likelihood_for(k).probabilities(model(z).detach()) for z in (train, x)]
    labels = [torch.multinomial(each, 1)[:, 0] for each in p]
    bayes = bb.Laplace(model, layers=layers, residual=residual).fit([(train, labels[0])])
    return bayes.tune([(x, labels[1])]), x, labels[1]


@pytest.mark.filterwarnings("ignore::bitbayes.errors.EdgeWarning")
@pytest.mark.parametrize("residual", ["auto", True])
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("layers", ["last", "all"])
def test_the_residuals_numbers_are_those_of_plain_formulas(k, layers, residual):
    bayes, x, _ = tuned_with_residual(k, layers, residual)
    distances, found = bayes.known_residual.distances(x).detach(), bayes.settings
    names = bayes.known_residual.names
    assert names == ("input", "head", "classes")
    edges = [max(1.0, float(each.quantile(0.99))) for each in distances.T]
    # The distances are computed in float64: 1e-15 for each of few operations.
    further = BEYOND * (1 + 4 / math.sqrt(len(x)))
    thresholds = {name: further * edge for name, edge in zip(names, edges, strict=True)}
    assert found.thresholds == pytest.approx(thresholds, rel=1e-12)
    # Equal weights in units of the edges, and K is 1 at the edge of the data.
    kernel = sum((each / edge) ** 3 for each, edge in zip(distances.T, edges, strict=True))
    edge_of_all = float(kernel.quantile(0.99))
    weights = {name: 1 / (edge**3 * edge_of_all) for name, edge in zip(names, edges, strict=True)}
    assert found.levels == pytest.approx(weights, rel=1e-12)
    means = (bayes.model(x).detach() / bayes.temperature).tolist()
    margins = [sorted(row)[-1] - sorted(row)[-2] if k > 1 else abs(row[0]) for row in means]
    # The deviation of a difference of two logits, or of one, where the steep kernel is 1.
    margin = max(DEVIATIONS * statistics.median(margins), 1.0)
    assert found.beyond_variance == pytest.approx(margin**2 / (2 if k > 1 else 1), rel=1e-12)
    # Of the levels but the classes, the one at which a point is furthest, at the edge of the data.
    cubes = [each**3 * weights[name] for name, each in zip(names[:-1], distances.T[:-1], strict=True)]
    assert found.score_edge == pytest.approx(float(torch.stack(cubes).amax(0).quantile(0.99)), rel=1e-12)
    from_classes = distances[:, -1].tolist()
    assert found.class_centre == pytest.approx(statistics.median_low(from_classes), rel=1e-12)
    assert found.class_spread == pytest.approx(max(0.1, statistics.pstdev(from_classes)), rel=1e-9)
    assert 0 < sum(each > 0 for each in from_classes) < len(x)
    energy = bayes.posterior.likelihood.score(bayes.logits(x))
    # Over all layers the deviations of candidates are interpolated, to 2%.
    assert found.score_centre == pytest.approx(
        statistics.median_low(energy.tolist()), rel=1e-12 if layers == "last" else 0.02
    )
    assert found.score_spread == pytest.approx(
        statistics.pstdev(energy.tolist()), rel=1e-9 if layers == "last" else 0.02
    )


def last_within(grid, costs, limit):
    """Where costs that are linear between candidates are within the limit for the last time."""
    fine = [a + (b - a) * i / 1000 for a, b in itertools.pairwise(grid) for i in range(1001)]
    return max(each for each in fine if numpy.interp(each, grid, costs) <= limit)


@pytest.mark.filterwarnings("ignore::bitbayes.errors.EdgeWarning")
@pytest.mark.parametrize("k, n, cut", [(1, 101, False), (1, 800, True), (3, 600, True)])
def test_the_variance_near_the_data_is_the_widest_that_costs_a_percent_and_a_half(k, n, cut):
    bayes, (x, y) = trained(k, n=n)
    bayes.tune([(x, y)])
    chosen, distances = bayes.settings, bayes.known_residual.distances(x).detach()
    kernel = distances**3 @ torch.tensor([*chosen.levels.values()]).double()
    # At the edge, where K = 1, the logits are shrunk by a factor of 3; less for fewer than 1,333 points.
    largest = (9 - 1) / KAPPA / (2 if k > 1 else 1) * min(1, n / 1333)
    grid = [0.0, *(largest * math.exp(-4 + 0.5 * i) for i in range(9))]
    bayes.settings = bb.Settings(chosen.prior_variance)
    gaussian = bayes.logits(x)

    def covariances(near):
        return gaussian.covariance + near * kernel[:, None, None] * torch.eye(k)

    method = "pairwise" if k > 1 else "probit"
    expected = BruteForce(grid, gaussian.mean, covariances, y, method)
    limit = 1.015 * min(expected.losses)
    # The search in T leaves a loss within half a percent of that at the best T.
    low, high = (last_within(grid, expected.losses, limit * each) for each in (0.995, 1.005))
    assert low <= chosen.near_variance * (1 + 1e-12) and chosen.near_variance <= high * (1 + 1e-12)
    there = BruteForce([chosen.near_variance], gaussian.mean, covariances, y, method)
    assert abs(math.log(chosen.temperature) - there.best[0]) < 0.05
    assert there.losses[0] <= limit * 1.005
    decided = chosen.near_variance < grid[-1] * (1 - 1e-12)
    assert cut == decided, "the test needs data that decide, and others that do not"
    bayes.settings = replace(chosen, beyond_variance=0.0)
    assert bb.metrics.nll(bayes.predict_proba(x), y) <= 1.005 * limit


@pytest.mark.filterwarnings("ignore::bitbayes.errors.EdgeWarning")
@pytest.mark.parametrize("pixels", [False, True])
def test_the_smallest_threshold_is_positive(pixels):
    """Distances with correlations have a mean square of 1 on the data, so that 1 is the least of them."""
    x, y = torch.zeros(12, 1, 4) if pixels else torch.zeros(12, 4), torch.arange(12) % 3
    bayes = bb.Laplace(nn.Sequential(nn.Flatten(), *relu_mlp())).fit([(x, y)]).tune([(x, y)])
    least = {"input": 1e-6 if pixels else 1.0, "head": 1.0, "classes": 1.0}
    smallest = {name: BEYOND * (1 + 4 / math.sqrt(12)) * edge for name, edge in least.items()}
    assert bayes.settings.thresholds == pytest.approx(smallest, rel=1e-12) and bayes.beyond_variance > 0
    # All points are at the mean of their class: the numbers of the score have floors, too.
    assert (bayes.settings.class_centre, bayes.settings.class_spread) == (0.0, 0.1)
    assert bayes.settings.score_edge == pytest.approx(1e-18)
    assert bool(bayes.score(1e30 * torch.ones_like(x[:3])).isfinite().all())
    assert bool(bayes.predict_proba(1e30 * torch.ones_like(x[:3])).isfinite().all())


# ---- few points


@pytest.mark.filterwarnings("default::bitbayes.errors.FewPointsWarning")
def test_few_points_warn_with_their_number_and_errors():
    bayes, (x, y) = trained(3, n=50)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FewPointsWarning)
        bayes.tune([(x, y)])
    wrong = int((bayes.model(x[:49]).argmax(1) != y[:49]).sum())
    with pytest.warns(FewPointsWarning, match=f"49 validation points, of which {wrong} are") as heard:
        bayes.tune(reference.loader(x[:49], y[:49]))
    assert {each.filename for each in heard} == {__file__} and len(heard) == 1
    assert wrong > 0, "the test needs errors"


@pytest.mark.parametrize("count", [10, 20])
def test_few_points_hardly_raise_the_loss_on_others(embedded, count):
    """By at most 2% above the plain network's on average, over draws of the points."""
    bayes, _, (images, labels) = embedded
    passed, n = bb.PassedPoints.of(bayes, [(images, labels)]), len(labels)
    with torch.no_grad():
        plain = functional.cross_entropy(bayes.model(images), labels, reduction="none")
    ratios = []
    for seed in range(30):
        order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
        probabilities, _ = passed.predict(passed.select(order[:count]).tune())
        others = order[count:]
        loss = bb.metrics.nll(probabilities[others], labels[others])
        ratios.append(loss / float(plain[others].mean()))
    assert statistics.mean(ratios) <= 1.02
    assert max(ratios) > min(ratios)  # the points matter


@pytest.mark.parametrize("right", [True, False])
def test_one_point_moves_the_temperature_by_no_more_than_its_loss(right):
    """(log(T/T₀)/s)²/2 is at most the loss at T₀, which is all that another T could save."""
    bayes, (x, _) = trained(3, residual=False)
    y = bayes.model(x[:1]).argmax(1) if right else bayes.model(x[:1]).argmin(1)
    chosen = bayes.tune([(x[:1], y)]).temperature
    neutral = -BruteForce.log_shrinkage(bayes.logits(x[:1]).covariance)
    bayes.temperature = math.exp(neutral)
    most = math.sqrt(2 * bb.metrics.nll(bayes.predict_proba(x[:1]), y))
    # It moves towards what is right, and 0.02 is for the search in T.
    moved = (neutral - math.log(chosen)) if right else (math.log(chosen) - neutral)
    assert -1e-9 <= moved <= (0.15 if right else 0.35) * most + 0.02
    assert right or moved > 0.02


@pytest.fixture(scope="module")
def embedded():
    data = digits()
    validation, test = validation_split(data.test_images, data.test_labels, 1000, 0)
    bayes = bb.Laplace(digits_lenet()).fit([(data.train_images, data.train_labels)]).tune([validation])
    return bayes, validation, test


@pytest.mark.slow
def test_on_the_embedded_digits_the_default_keeps_what_the_network_knows(embedded):
    bayes, validation, (images, labels) = embedded
    scaled = bb.TemperatureScaling(bayes.model).fit([validation])
    ours, theirs = bayes.predict_proba(images), scaled.predict_proba(images)
    assert abs(bb.metrics.accuracy(ours, labels) - bb.metrics.accuracy(theirs, labels)) <= 0.002
    assert bb.metrics.nll(ours, labels) <= 1.02 * bb.metrics.nll(theirs, labels)
    assert bb.metrics.mmc(theirs) - 0.02 < bb.metrics.mmc(ours) < bb.metrics.mmc(theirs) + 0.02


@pytest.mark.slow
def test_on_the_embedded_digits_confidence_far_away_is_that_of_chance(embedded):
    bayes, _, (images, _) = embedded
    assert bayes.near_variance > 0 and bayes.beyond_variance > 0
    assert abs(bb.metrics.mmc(bayes.predict_proba(2000 * images)) - 0.1) < 0.02
    kept, bayes.settings = bayes.settings, replace(bayes.settings, near_variance=0.0, beyond_variance=0.0)
    without = bb.metrics.mmc(bayes.predict_proba(2000 * images))
    bayes.settings = kept
    assert without > 0.12, "the test needs a residual that matters"


@pytest.mark.filterwarnings("ignore::bitbayes.errors.EdgeWarning")
@pytest.mark.parametrize("factor", [1e-4, 1e4])
def test_logits_of_any_size_have_their_temperature(factor):
    """Where logits are far from 1 the likelihood is flat in T, and a search that starts at 1 stays there."""
    torch.manual_seed(0)
    x, w = torch.randn(4200, 4), torch.randn(4, 3)
    y = (x @ w + 0.5 * torch.randn(4200, 3)).argmax(1)
    plain, model = nn.Linear(4, 3), nn.Linear(4, 3)
    for each, size in ((plain, 3), (model, 3 * factor)):
        with torch.no_grad():
            each.weight.copy_(size * w.T)
            each.bias.zero_()
    bayes = bb.Laplace(model).fit([(x[:200], y[:200])]).tune([(x[200:], y[200:])])
    scaled = bb.TemperatureScaling(plain).fit([(x[200:], y[200:])])
    theirs, ours = (bb.metrics.nll(each.predict_proba(x[200:]), y[200:]) for each in (scaled, bayes))
    # At a tiny prior variance T₀ = r = 1, and the choice costs no more. The residual may cost one percent.
    weak = float(weak_prior(math.log(scaled.temperature * factor), 0.0)) / 4000
    assert theirs + weak < 0.8 < math.log(3)  # which it is at T = 1, or thousands
    assert ours <= 1.01 * 1.005 * (theirs + weak)


def test_a_number_that_is_not_finite_leaves_all_as_they_were(monkeypatch):
    x, y = points()
    bayes = bb.Laplace(relu_mlp()).fit([(x, y)])
    monkeypatch.setattr("bitbayes.tuning.calibrated._wanted_deviation", lambda *_: math.nan)
    with pytest.raises(ArgumentError, match="beyond_variance=nan"):
        bayes.tune([(x, y)])
    assert bayes.settings == bb.Settings()


@pytest.mark.parametrize("place", [-2.1, -0.3, 0.0, 0.1, 1.9])
def test_a_descent_finds_its_minimum_on_either_side(place):
    descent = calibrated._Descent(0.0)
    for _ in range(calibrated.MAX_STEPS):
        for t in descent.wanted():
            descent.seen[t] = (t - place) ** 2
    # The vertex of a parabola is exact, and is left alone where it is nearer than the smallest step.
    assert descent.best() == pytest.approx(place, abs=calibrated.SMALLEST_STEP)

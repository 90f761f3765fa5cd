"""The objective "calibrated", against a brute-force search over prior variances and temperatures."""

import math
import statistics

import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import nn

import bitbayes as bb
import dense
import reference
from bitbayes.errors import ArgumentError
from bitbayes.toys import digits, digits_lenet, two_moons, validation_split
from bitbayes.tuning import calibrated
from bitbayes.tuning.search import COARSE_NATS, stride
from classifiers import drawn, points, relu_mlp, trained
from reference import KAPPA

# The residual begins at so many times the 99 % quantile of its kernel; at twice that, the deviation of a
# difference of two logits is so many times the median margin.
BEYOND, DEVIATIONS = 4.0, 4.0
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


class BruteForce:
    """For each prior variance the best T, and then the prior variance of least cost.

    covariances(σ₀²) gives (n, k, k). T is the best of a grid, and then within 1e-9 of the least nearby.
    """

    def __init__(self, grid, means, covariances, labels, method):
        self.grid, self.costs, self.best = grid, [], []
        for value in grid:
            gaussian = means, covariances(value), labels, method
            neutral = -self.log_shrinkage(gaussian[1])

            def cost(log_temperature, gaussian=gaussian, neutral=neutral):
                shrinkage = (-neutral - math.log(3)) / 0.5
                weak = ((log_temperature - neutral) ** 2 + shrinkage**2) / (2 * len(means))
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
            self.best.append(best.x)
        self.lowest = self.costs.index(min(self.costs))

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
        0.05 of the least of a cost that is smooth on that scale. A cost is then within 0.1 % of the least,
        and where costs of prior variances differ by less, any of them may be chosen.
        """
        place = self.grid.index(bayes.prior_variance)
        assert abs(math.log(bayes.temperature) - self.best[place]) < 0.05
        assert self.costs[place] <= min(self.costs) * 1.001
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
    bayes, (x, y) = trained(k, n=61, structure=structure, predictive="auto" if k > 64 else method)
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
    """Deviations are interpolated between priors to 2 %, which moves log T by no more, and costs by less."""
    model, x, _ = dense.case("mlp", 41)
    model[4].weight.data *= 8
    labels = torch.where(torch.arange(41) % 4 == 0, torch.arange(41) % 3, model(x).argmax(1))
    bayes = bb.Laplace(model, layers="all", structure=structure).fit(reference.loader(x, labels))
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


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("layers", ["last", "all"])
def test_the_loss_is_at_most_that_of_temperature_scaling(k, layers):
    """At a tiny prior variance it is temperature scaling, and the choice costs no more.

    A cost is the loss and the weak prior on T and on the shrinkage r, whose T₀ and r are 1 at a tiny prior
    variance. Half a percent is for the search in T and, over all layers, for interpolated deviations.
    """
    bayes, (x, y) = trained(k, n=200, layers=layers)
    bayes.tune([(x, y)])
    scaled = bb.TemperatureScaling(bayes.model).fit([(x, y)])
    theirs = bb.metrics.nll(scaled.predict_proba(x), y)
    weak = (math.log(scaled.temperature) ** 2 + (math.log(3) / 0.5) ** 2) / (2 * len(x))
    assert bb.metrics.nll(bayes.predict_proba(x), y) <= 1.005 * (theirs + weak)


@pytest.mark.parametrize("k", [1, 2])
def test_validation_data_that_are_all_right_give_a_sensible_temperature(k):
    """The likelihood alone would have T → 0. The weak prior of one point in n holds it."""
    x, y = two_moons(200)
    validation = two_moons(51, noise=0.05, seed=1)
    model = nn.Sequential(nn.Linear(2, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, k))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(200):
        optimizer.zero_grad()
        logits = model(x)
        reference.total_loss(logits, y).backward()
        optimizer.step()
    bayes = bb.Laplace(model.eval()).fit([(x, y)]).tune([validation])
    probabilities = bayes.predict_proba(validation[0])
    assert bb.metrics.accuracy(probabilities, validation[1]) == 1.0, "the test needs separable data"
    assert bb.metrics.nll(probabilities, validation[1]) < 0.02
    gaussian = bayes.logits(validation[0])
    if k == 2:
        contrast = torch.tensor([1.0, -1.0])
        variances = (gaussian.covariance @ contrast) @ contrast
    else:
        variances = gaussian.covariance[:, 0, 0]
    neutral = -float((1 + KAPPA * variances).median().log()) / 2
    # log² (T/T₀)/2n is at most the loss that a smaller T could still save, which is that at T₀.
    bayes.temperature = math.exp(neutral)
    at_neutral = bb.metrics.nll(bayes.predict_proba(validation[0]), validation[1])
    bayes.tune([validation])
    assert (math.log(bayes.temperature) - neutral) ** 2 / (2 * 51) <= at_neutral + 1e-4
    assert 1e-3 < bayes.temperature < 10


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
    assert seen == [25, 25, 10]


def test_batch_sizes_do_not_change_the_choice(monkeypatch):
    bayes, (x, y) = trained(3)
    numbers = ("prior_variance", "temperature", "residual_variance", "residual_threshold")
    bayes.tune([(x, y)])
    whole = [getattr(bayes, name) for name in numbers]
    monkeypatch.setattr("bitbayes.posteriors.last_layer.STEP_NUMBERS", 3 * 10)
    bayes.tune(reference.loader(x, y, 7))
    # Costs differ by the rounding of their sums, 1e-16, and a vertex by as much over the curvature.
    assert [getattr(bayes, name) for name in numbers] == pytest.approx(whole, rel=1e-9)


@pytest.mark.parametrize("k, layers", [(1, "last"), (3, "last"), (70, "last"), (1, "all"), (3, "all")])
def test_one_point_and_one_class_give_finite_numbers(k, layers):
    bayes, (x, y) = trained(k, layers=layers)
    for points_of in ((x[:1], y[:1]), (x, torch.zeros_like(y)), (x, torch.ones_like(y))):
        bayes.tune([points_of])
        assert 1e-6 <= bayes.temperature <= 1e6 and bayes.prior_variance in bayes.posterior.candidates()
        assert bool(bayes.predict_proba(100 * x).isfinite().all())
        assert math.isfinite(bayes.residual_variance) and bayes.residual_threshold > 0


def test_monte_carlo_and_drawn_networks_are_tuned_too():
    bayes, (x, y) = trained(3, predictive="mc")
    first = bayes.tune([(x, y)]).temperature
    assert bayes.tune([(x, y)]).temperature == first  # the same random numbers for every candidate
    bayes, (x, y) = trained(3, layers="all", predictive="sampled_networks")
    bayes.tune([(x, y)])
    assert bayes.residual_variance == 0.0 and bayes.temperature != 1.0
    assert bool(bayes.predict_proba(x).isfinite().all())


def test_outliers_are_refused_and_nothing_changes():
    bayes, (x, y) = trained(3)
    with pytest.raises(ArgumentError, match=r"'calibrated' looks at no outliers.*objective='ood'"):
        bayes.tune([(x, y)], outliers=3 * x)
    assert (bayes.prior_variance, bayes.temperature, bayes.residual_variance) == (1.0, 1.0, 0.0)


def test_a_prior_variance_for_each_layer_is_refused():
    x, y = points()
    bayes = bb.Laplace(relu_mlp(), layers="all", prior_variance={"0": 1.0, "2": 2.0}).fit([(x, y)])
    with pytest.raises(ArgumentError, match=r"'calibrated' chooses one prior variance for all layers"):
        bayes.tune([(x, y)])
    assert bayes.prior_variance == {"0": 1.0, "2": 2.0} and bayes.temperature == 1.0


# ---- the residual's numbers


@pytest.mark.parametrize("residual", ["auto", True])
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("layers", ["last", "all"])
def test_the_residuals_numbers_are_those_of_plain_formulas(k, layers, residual):
    torch.manual_seed(0)
    train = torch.randn(80, 4, dtype=torch.float64) * torch.tensor([1.0, 5.0, 0.2, 30.0])
    x = 1.2 * torch.randn(101, 4, dtype=torch.float64) * torch.tensor([1.0, 5.0, 0.2, 30.0])
    model = relu_mlp(k, torch.float64)
    y = torch.arange(101) % max(k, 2)
    bayes = bb.Laplace(model, layers=layers, residual=residual).fit([(train, y[:80])]).tune([(x, y)])
    kernel = reference.residual_kernel(x, train)
    threshold = BEYOND * float(kernel.quantile(0.99))
    # √k is computed without float64's cubes: 1e-15 for each of few operations.
    assert bayes.residual_threshold == pytest.approx(threshold, rel=1e-12)
    means = (model(x).detach() / bayes.temperature).tolist()
    margins = [sorted(row)[-1] - sorted(row)[-2] if k > 1 else abs(row[0]) for row in means]
    margin = max(DEVIATIONS * statistics.median(margins), 1.0)
    # The deviation of a difference of two logits, or of one, at twice the threshold.
    expected = margin**2 / ((2 if k > 1 else 1) * threshold)
    assert bayes.residual_variance == pytest.approx(expected, rel=1e-12)


def test_the_smallest_threshold_is_positive():
    x, y = torch.zeros(12, 4), torch.arange(12) % 3
    bayes = bb.Laplace(relu_mlp()).fit([(x, y)]).tune([(x, y)])
    assert bayes.residual_threshold == 1e-3 and bayes.residual_variance > 0


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
    assert bayes.residual_variance > 0
    assert abs(bb.metrics.mmc(bayes.predict_proba(2000 * images)) - 0.1) < 0.02
    bayes.residual_variance, kept = 0.0, bayes.residual_variance
    without = bb.metrics.mmc(bayes.predict_proba(2000 * images))
    bayes.residual_variance = kept
    assert without > 0.12, "the test needs a residual that matters"


@pytest.mark.parametrize("factor", [1e-4, 1e4])
def test_logits_of_any_size_have_their_temperature(factor):
    """Where logits are far from 1 the likelihood is flat in T, and a search that starts at 1 stays there."""
    torch.manual_seed(0)
    x, w = torch.randn(400, 4), torch.randn(4, 3)
    y = (x @ w + 0.5 * torch.randn(400, 3)).argmax(1)
    plain, model = nn.Linear(4, 3), nn.Linear(4, 3)
    for each, size in ((plain, 3), (model, 3 * factor)):
        with torch.no_grad():
            each.weight.copy_(size * w.T)
            each.bias.zero_()
    bayes = bb.Laplace(model).fit([(x[:200], y[:200])]).tune([(x[200:], y[200:])])
    scaled = bb.TemperatureScaling(plain).fit([(x[200:], y[200:])])
    theirs, ours = (bb.metrics.nll(each.predict_proba(x[200:]), y[200:]) for each in (scaled, bayes))
    # The weak prior, ½log²(T/T₀)/n with T/T₀ up to 1e4, and log²(r/3) of r = 1, are worth this much.
    assert ours <= theirs + (math.log(1e4) ** 2 + (math.log(3) / 0.5) ** 2) / (2 * 200)


def test_a_number_that_is_not_finite_leaves_all_as_they_were(monkeypatch):
    x, y = points()
    bayes = bb.Laplace(relu_mlp()).fit([(x, y)])
    monkeypatch.setattr("bitbayes.tuning.calibrated._wanted_deviation", lambda *_: math.nan)
    with pytest.raises(ArgumentError, match="residual_variance=nan"):
        bayes.tune([(x, y)])
    assert (bayes.prior_variance, bayes.temperature, bayes.residual_variance) == (1.0, 1.0, 0.0)


@pytest.mark.parametrize("place", [-2.1, -0.3, 0.0, 0.1, 1.9])
def test_a_descent_finds_its_minimum_on_either_side(place):
    descent = calibrated._Descent(0.0)
    for _ in range(calibrated.MAX_STEPS):
        for t in descent.wanted():
            descent.seen[t] = (t - place) ** 2
    # The vertex of a parabola is exact, and is left alone where it is nearer than the smallest step.
    assert descent.best() == pytest.approx(place, abs=calibrated.SMALLEST_STEP)

"""Each detector against plain computations in float64, far from the data, and on features of any kind."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import bitbayes as bb
from bitbayes.baselines.detectors import (
    DETECTORS,
    GEN,
    KNN,
    Mahalanobis,
    MaxLogit,
    RelativeMahalanobis,
    ViM,
    base,
)
from bitbayes.baselines.detectors.vim import principal_dimension
from bitbayes.errors import DataError

# What products of some hundred numbers may lose, and what a condition number of 1e3 makes of it.
ROUNDING, CONDITIONED = 1e-13, 1e-10


def case(k=3, d=6, n=90, seed=0, dtype=torch.float64):
    """Features (n, d) with correlated columns and a mean for each class, labels, weight and bias."""
    generator = torch.Generator().manual_seed(seed)
    classes = max(k, 2)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    labels = torch.randint(classes, (n,), generator=generator)
    features = 2 * normal(classes, d)[labels] + normal(n, d) @ (torch.eye(d) + 0.3 * normal(d, d)) + 1
    return features.to(dtype), labels, normal(k, d).to(dtype), normal(k).to(dtype)


def new_features(d=6, n=25, seed=7, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(n, d, generator=generator, dtype=torch.float64).to(dtype)


# ---- references: one point at a time, by the formula as it is written


def max_logit(point, features, labels, weight, bias):
    return max(float(row @ point + b) for row, b in zip(weight, bias, strict=True))


def energy(point, features, labels, weight, bias):
    return math.log(sum(math.exp(row @ point + b) for row, b in zip(weight, bias, strict=True)))


def gen(point, features, labels, weight, bias):
    p = [math.exp(row @ point + b) for row, b in zip(weight, bias, strict=True)]
    p = sorted((each / sum(p) for each in p), reverse=True)
    rest = [sum(p[:i] + p[i + 1 :]) for i in range(len(p))]  # 1 − p, which a difference loses where p is 1
    return -sum(a**0.1 * b**0.1 for a, b in list(zip(p, rest, strict=True))[:100])


def mahalanobis(point, features, labels, weight, bias):
    means = {int(c): features[labels == c].mean(0) for c in labels.unique()}
    within = torch.stack([row - means[int(c)] for row, c in zip(features, labels, strict=True)])
    precision = torch.linalg.inv(within.T @ within / len(within))
    return -min(float((point - mean) @ precision @ (point - mean)) for mean in means.values())


def relative_mahalanobis(point, features, labels, weight, bias):
    mean = sum(features) / len(features)
    covariance = sum(torch.outer(row - mean, row - mean) for row in features) / len(features)
    whole = float((point - mean) @ torch.linalg.solve(covariance, point - mean))
    return mahalanobis(point, features, labels, weight, bias) + whole


def knn(point, features, labels, weight, bias):
    direction = point / point.norm()
    return -sorted(float((direction - row / row.norm()).norm()) for row in features)[49]


def vim(point, features, labels, weight, bias):
    origin = torch.linalg.lstsq(weight, -bias, driver="gelsd").solution
    centred = features - origin
    axes = torch.linalg.svd(centred).Vh[: features.shape[1] // 2]  # the main ones, as rows

    def residual(row):
        return (row - axes.T @ (axes @ row)).norm()

    largest = sum(max_logit(row, features, labels, weight, bias) for row in features)
    alpha = largest / sum(float(residual(row)) for row in centred)
    return energy(point, features, labels, weight, bias) - alpha * float(residual(point - origin))


REFERENCES = {
    "max-logit": max_logit,
    "energy": energy,
    "gen": gen,
    "mahalanobis": mahalanobis,
    "relative-mahalanobis": relative_mahalanobis,
    "knn": knn,
    "vim": vim,
}


def test_every_detector_has_a_reference_and_a_title():
    assert list(DETECTORS) == list(REFERENCES)
    titles = [each.title for each in DETECTORS.values()]
    distances = ["Mahalanobis", "Relative Mahalanobis", "KNN (k = 50)"]
    assert titles == ["Maximum logit", "Energy", "GEN", *distances, "ViM"]
    assert bb.baselines.detectors.DETECTORS is DETECTORS


@pytest.mark.parametrize("name", DETECTORS)
@given(st.integers(0, 10_000), st.sampled_from([2, 3, 10]), st.sampled_from([4, 7]))
def test_scores_are_those_of_the_formula(name, seed, k, d):
    training, points = case(k, d, seed=seed), new_features(d, 5, seed)
    scores = DETECTORS[name].fit(*training).score(points)
    expected = torch.tensor([REFERENCES[name](point, *training) for point in points], dtype=torch.float64)
    assert scores.shape == (5,)
    torch.testing.assert_close(scores, expected, rtol=CONDITIONED, atol=CONDITIONED)


@pytest.mark.parametrize("name", DETECTORS)
def test_without_a_bias_it_is_zero(name):
    features, labels, weight, bias = case()
    without = DETECTORS[name].fit(features, labels, weight)
    zeros = DETECTORS[name].fit(features, labels, weight, torch.zeros_like(bias))
    assert torch.equal(without.score(features), zeros.score(features))


@pytest.mark.parametrize("name", DETECTORS)
def test_one_logit_counts_as_two(name):
    """Those of ∓f/2, whose softmax is (1 − σ(f), σ(f))."""
    features, labels, weight, bias = case(1)
    found = DETECTORS[name].fit(features, labels, weight, bias).score(features)
    two = torch.cat([-weight / 2, weight / 2]), torch.cat([-bias / 2, bias / 2])
    assert torch.equal(found, DETECTORS[name].fit(features, labels, *two).score(features))
    expected = [REFERENCES[name](row, features, labels, *two) for row in features[:9]]
    expected = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(found[:9], expected, rtol=CONDITIONED, atol=CONDITIONED)


# ---- what is like the data, and what is far away


@pytest.mark.parametrize("name", ["mahalanobis", "knn", "vim"])
def test_features_are_more_like_the_data_than_noise(name):
    """Features on a plane of six dimensions, and noise in all six."""
    features, labels, _, bias = case()
    features[:, 3:] *= 0.01
    weight = torch.stack([features[labels == c].mean(0) for c in range(3)])  # a layer that knows the classes
    detector = DETECTORS[name].fit(features, labels, weight, bias)
    assert bb.metrics.auroc(detector.score(features), detector.score(new_features(n=90))) > 0.9


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", DETECTORS)
def test_far_away_scores_are_finite_and_those_of_float64(name, dtype):
    """A dead unit, a doubled one, and features a million times larger than the training data's."""
    features, labels, weight, bias = case(10, 8, 200, dtype=dtype)
    features = features.relu()
    features[:, 0], features[:, 1] = 0, features[:, 2]
    far = 1e6 * new_features(8, dtype=dtype).relu()
    scores = DETECTORS[name].fit(features, labels, weight, bias).score(far)
    assert scores.dtype == torch.float64 and bool(scores.isfinite().all())
    doubled = [each.double() for each in (features, weight, bias)]
    precise = DETECTORS[name].fit(doubled[0], labels, *doubled[1:]).score(far.double())
    torch.testing.assert_close(scores, precise, rtol=0, atol=0)
    assert scores.float().isfinite().all()


def test_the_distance_grows_as_the_square_far_away():
    """Of the Mahalanobis distance the part with the means is lost in the end, and nothing else."""
    training, points = case(dtype=torch.float32), new_features(dtype=torch.float32)
    detector = Mahalanobis.fit(*training)
    ratio = detector.score(1e12 * points) / detector.score(1e6 * points)
    torch.testing.assert_close(ratio, torch.full_like(ratio, 1e12), rtol=1e-4, atol=0)


def test_directions_in_which_all_data_vary_do_not_count_twice():
    """One class: the distance to it is that to all data, so that nothing is left, however far a point is."""
    features, labels, weight, bias = case()
    detector = RelativeMahalanobis.fit(features, 0 * labels, weight, bias)
    nearest = Mahalanobis.fit(features, 0 * labels, weight, bias).score(1e3 * new_features())
    found = detector.score(1e3 * new_features())
    assert bool((found.abs() <= CONDITIONED * nearest.abs()).all()) and float(nearest.max()) < -1e4


def test_a_point_far_along_what_tells_classes_apart_is_the_less_like_them():
    """Classes at ±10 along one axis: there the data vary 101 times as much as a class, elsewhere as much."""
    labels = torch.arange(2000) % 2
    features = torch.randn(2000, 2, dtype=torch.float64)
    features[:, 0] += 20 * labels - 10
    detector = RelativeMahalanobis.fit(features, labels, torch.eye(2))
    beyond = torch.tensor([[60.0, 0.0], [10.0, 50.0]])
    along, across = detector.score(beyond).tolist()
    # 50² − 60²/101 = 2464, and 50² − 50² − 10²/101 = −1, up to what 2,000 points know of variances.
    assert along == pytest.approx(-2464, rel=0.1) and abs(across) < 100


def test_gen_of_a_sure_network_is_not_lost_in_rounding():
    """Two logits ±g/2: −2·(p(1 − p))^γ = −2·exp(−γ(g + 2·log(1 + e⁻ᵍ))), where 1 − p is 0 in float64."""
    gaps = torch.tensor([1.0, 10.0, 40.0, 100.0, 1000.0], dtype=torch.float64)
    detector = GEN.fit(torch.ones(2, 1), torch.tensor([0, 1]), torch.tensor([[0.5], [-0.5]]))
    expected = -2 * (-0.1 * (gaps + 2 * (-gaps).exp().log1p())).exp()
    torch.testing.assert_close(detector.score(gaps[:, None]), expected, rtol=ROUNDING, atol=0)


def test_gen_looks_at_the_hundred_largest():
    """150 classes of one probability: each of the hundred terms is (1/150·149/150)^γ."""
    detector = GEN.fit(torch.ones(2, 3), torch.tensor([0, 1]), torch.zeros(150, 3))
    expected = torch.tensor([-100 * (149 / 150**2) ** 0.1], dtype=torch.float64)
    torch.testing.assert_close(detector.score(torch.ones(1, 3)), expected, rtol=ROUNDING, atol=0)


# ---- training data as they may be


def test_directions_without_variance_do_not_count():
    """As if the constant feature were not there, whatever a new point has in it."""
    features, labels, weight, bias = case()
    constant = torch.full((len(features), 1), 5.0, dtype=torch.float64)
    wider = Mahalanobis.fit(torch.cat([features, constant], 1), labels, torch.cat([weight, weight[:, :1]], 1))
    points = new_features()
    odd = torch.cat([points, 100 * torch.ones(len(points), 1)], 1)
    expected = Mahalanobis.fit(features, labels, weight, bias).score(points)
    torch.testing.assert_close(wider.score(odd), expected, rtol=CONDITIONED, atol=0)


def test_features_that_depend_on_each_other_have_a_pseudo_inverse():
    """Eigenvalues that are zero but for rounding, of either sign, do not count."""
    features, labels, weight, _ = case()
    mixed = torch.randn(6, 10, dtype=torch.float64)
    features, weight, points = features @ mixed, weight @ mixed, new_features(10)
    means = torch.stack([features[labels == c].mean(0) for c in range(3)])
    within = features - means[labels]
    covariance = within.T @ within / len(within)
    precision = torch.linalg.pinv(covariance, rtol=1e-10, hermitian=True)
    gaps = points[:, None] - means  # (n, k, d)
    expected = -torch.einsum("nkd, de, nke -> nk", gaps, precision, gaps).amin(1)
    found = Mahalanobis.fit(features, labels, weight).score(points)
    torch.testing.assert_close(found, expected, rtol=CONDITIONED, atol=0)


def test_classes_without_a_training_point_do_not_count():
    """Nor does their mean, which is none: points at 0 are not nearer to anything."""
    features, labels, weight, _ = case(3)
    more, points = torch.cat([weight, weight]), 0.01 * new_features()
    expected = Mahalanobis.fit(features, labels, weight).score(points)
    torch.testing.assert_close(Mahalanobis.fit(features, labels, more).score(points), expected)
    torch.testing.assert_close(Mahalanobis.fit(features, 2 * labels + 1, more).score(points), expected)


def test_a_feature_of_zeros_is_at_distance_one():
    """As far from every direction as the centre of a ball from its surface."""
    features, labels, weight, bias = case()
    detector = KNN.fit(features, labels, weight, bias)
    zeros = torch.zeros(1, features.shape[1], dtype=torch.float64)
    torch.testing.assert_close(detector.score(zeros), torch.tensor([-1.0], dtype=torch.float64))
    assert bool((detector.score(1e-9 * features) - detector.score(features)).abs().max() < 1e-7)


def test_the_first_neighbour_of_a_training_feature_is_itself(monkeypatch):
    monkeypatch.setattr(KNN, "k", 1)
    features, *rest = case()
    scores = KNN.fit(features, *rest).score(features)
    assert bool((scores <= 0).all()) and bool((scores > -1e-7).all())  # √eps, of a difference of squares


def test_the_main_axes_of_vim():
    assert [principal_dimension(d) for d in (1, 2, 767, 768, 2047, 2048)] == [0, 1, 383, 512, 512, 1000]
    detector = ViM.fit(*case(d=7))
    assert detector.off_axis.shape == (7, 4)
    torch.testing.assert_close(detector.off_axis.T @ detector.off_axis, torch.eye(4, dtype=torch.float64))


@pytest.mark.parametrize("name", DETECTORS)
def test_steps_change_nothing(name, monkeypatch):
    training, points = case(), new_features()
    whole = DETECTORS[name].fit(*training).score(points)
    monkeypatch.setattr(base, "STEP_NUMBERS", 20)
    torch.testing.assert_close(DETECTORS[name].fit(*training).score(points), whole)


def test_no_step_is_larger_than_allowed(monkeypatch):
    """Neighbours take a row of N numbers for each point: 50,000 × 10,000 of them would be 4 GB."""
    training, points = case(), new_features()
    detector, seen = KNN.fit(*training), []
    score = KNN._score
    monkeypatch.setattr(KNN, "_score", lambda self, part: seen.append(len(part)) or score(self, part))
    monkeypatch.setattr(base, "STEP_NUMBERS", 900)
    detector.score(points)
    assert seen == [10, 10, 5]  # rows of 90 numbers


@pytest.mark.parametrize("name", DETECTORS)
def test_nothing_is_scored_as_nothing(name):
    detector = DETECTORS[name].fit(*case())
    assert detector.score(torch.zeros(0, 6)).shape == (0,)


@pytest.mark.parametrize("name", DETECTORS)
def test_a_layer_that_requires_gradients_leaves_none(name):
    features, labels, *_ = case(dtype=torch.float32)
    layer = torch.nn.Linear(6, 3)
    scores = DETECTORS[name].fit(features, labels, layer.weight, layer.bias).score(features)
    assert not scores.requires_grad and layer.weight.grad is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("name", DETECTORS)
def test_a_gpu_gives_the_same_scores(name):
    training, points = case(dtype=torch.float32), new_features(dtype=torch.float32)
    there = DETECTORS[name].fit(*(each.cuda() for each in training))
    assert there.score(points.cuda()).device.type == "cuda"
    expected = DETECTORS[name].fit(*training).score(points)
    for features in (points, points.cuda()):
        torch.testing.assert_close(there.score(features).cpu(), expected, rtol=CONDITIONED, atol=1e-9)
    # The layer may be elsewhere than the features.
    apart = DETECTORS[name].fit(training[0].cuda(), *training[1:])
    torch.testing.assert_close(
        apart.to(torch.device("cpu")).score(points), expected, rtol=CONDITIONED, atol=1e-9
    )


# ---- mistakes


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"features": torch.ones(90)}, r"the training features are a tensor of float32, \(90,\)"),
        ({"features": torch.ones(90, 6, dtype=torch.long)}, "the training features are a tensor of int64"),
        ({"features": [[1.0]]}, "the training features are a list"),
        ({"features": torch.full((90, 6), math.inf)}, "the training features are not finite"),
        ({"features": torch.ones(0, 6), "labels": torch.ones(0).long()}, "there are no training features"),
        (
            {"labels": torch.ones(89).long()},
            r"the labels are a tensor of int64, \(89,\): expected integers, \(90,\)",
        ),
        ({"labels": torch.ones(90)}, "the labels are a tensor of float32"),
        ({"labels": torch.full((90,), 3)}, "the labels go from 3 to 3: expected 0 to 2"),
        ({"labels": torch.full((90,), -1)}, "the labels go from -1 to -1"),
        ({"weight": torch.ones(3, 5)}, r"the weight is a tensor of float32, \(3, 5\): expected \(k, 6\)"),
        ({"bias": torch.ones(2)}, r"the bias is a tensor of float32, \(2,\): expected \(3,\)"),
    ],
)
def test_what_does_not_fit_is_refused(changes, message):
    given = dict(zip(("features", "labels", "weight", "bias"), case(), strict=True))
    with pytest.raises(DataError, match=message):
        MaxLogit.fit(**{**given, **changes})


def test_features_to_score_are_checked():
    detector = MaxLogit.fit(*case())
    with pytest.raises(DataError, match=r"the features are a tensor of float32, \(6,\)"):
        detector.score(torch.ones(6))
    with pytest.raises(DataError, match="the features are not finite"):
        detector.score(torch.full((2, 6), math.nan))
    with pytest.raises(DataError, match=r"\(2, 5\): expected .*, \(n, 6\)"):
        detector.score(torch.ones(2, 5))


def test_too_little_training_data_is_refused():
    features, labels, weight, bias = case(n=49)
    with pytest.raises(DataError, match="there are 49 training features: KNN needs 50 or more"):
        KNN.fit(features, labels, weight, bias)
    with pytest.raises(DataError, match="no training feature varies within a class"):
        Mahalanobis.fit(features[:3], torch.arange(3), weight, bias)
    flat = features[:, :2] @ torch.randn(2, 6, dtype=torch.float64)
    with pytest.raises(DataError, match="span no more than 3 of 6 dimensions"):
        ViM.fit(flat, labels, weight)

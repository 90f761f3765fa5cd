"""What the pictures show: the data of what is drawn, not the pixels."""

import matplotlib
import numpy
import pytest
import torch
from matplotlib import pyplot
from matplotlib.contour import ContourSet
from torch import nn

import bitbayes as bb
from bitbayes import metrics, plots
from bitbayes.errors import ArgumentError, DataError
from bitbayes.palette import OTHERS, map_colour
from bitbayes.plots.toy_map import view_extent

matplotlib.use("agg")


@pytest.fixture(autouse=True)
def _closed():
    yield
    pyplot.close("all")


@pytest.fixture
def ax():
    return pyplot.subplots()[1]


def labels(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def xy(line):
    return numpy.asarray(line.get_xdata()), numpy.asarray(line.get_ydata())


def band(ax, place=0):
    """The corners of a band, by x: its lowest and highest y."""
    corners = ax.collections[place].get_paths()[0].vertices
    return {
        x: (corners[corners[:, 0] == x, 1].min(), corners[corners[:, 0] == x, 1].max()) for x in corners[:, 0]
    }


def predictions(n=600, k=3):
    """Probabilities, and labels that are drawn from them: calibrated but for chance."""
    probs = (2 * torch.randn(n, k)).softmax(1)
    return probs, torch.multinomial(probs, 1)[:, 0]


def trained(k=2, **options):
    x = torch.randn(60, 2) + 3 * torch.nn.functional.one_hot(torch.arange(60) % 2, 2)
    model = nn.Sequential(nn.Linear(2, 12), nn.ReLU(), nn.Linear(12, k))
    return bb.Laplace(model, **options).fit([(x, torch.arange(60) % 2)]), x


def test_reliability_draws_the_bins_of_the_metric(ax):
    probs, y = predictions()
    assert plots.reliability(probs, y, bins=8, ax=ax) is ax
    found = metrics.reliability(probs, y, 8)
    filled = found.count > 0
    x, height = xy(ax.lines[1])
    assert numpy.allclose(x, 100 * found.confidence[filled]) and numpy.allclose(
        height, 100 * found.accuracy[filled]
    )
    (steps,) = ax.child_axes[-1].patches
    assert (steps.get_data().values == found.count.numpy()).all()
    assert labels(ax) == [f"bitbayes: ECE {100 * metrics.ece(probs, y, 8):.1f}%"]
    assert ax.lines[1].get_color() == plots.COLOURS["bitbayes"]


def test_the_band_is_that_of_bootstrap_samples(ax):
    probs, y = predictions()
    plots.reliability(probs, y, bins=4, resamples=4000, ax=ax)
    drawn = []
    for _ in range(1000):
        rows = torch.randint(len(y), (len(y),))
        drawn.append(100 * metrics.reliability(probs[rows], y[rows], 4).accuracy)
    low, high = (torch.stack(drawn).nanquantile(q, dim=0) for q in (0.025, 0.975))
    found = metrics.reliability(probs, y, 4)
    for b, (x, (bottom, top)) in zip(torch.nonzero(found.count)[:, 0], sorted(band(ax).items()), strict=True):
        assert x == pytest.approx(100 * found.confidence[b].item())
        assert bottom == pytest.approx(low[b].item(), abs=2) and top == pytest.approx(high[b].item(), abs=2)


def test_reliability_of_several_methods_and_without_bands(ax):
    probs, y = predictions()
    plots.reliability({"plain": probs, "mine": probs}, y, resamples=0, ax=ax)
    assert not ax.collections
    assert [line.get_color() for line in ax.lines[1:]] == [plots.COLOURS["plain"], OTHERS[0].light]
    with pytest.raises(ArgumentError, match="resamples=-1"):
        plots.reliability(probs, y, resamples=-1)


def test_reliability_is_the_same_for_the_same_seed():
    probs, y = predictions()
    first, again, other = (band(plots.reliability(probs, y, seed=seed)) for seed in (3, 3, 4))
    assert first == again != other


def test_risk_coverage_draws_the_curve_of_the_metric(ax):
    scores, correct = torch.randn(50), torch.rand(50) > 0.3
    assert plots.risk_coverage({"plain": scores, "bitbayes": -scores}, correct, ax=ax) is ax
    for line, each in zip(ax.lines, (scores, -scores), strict=True):
        found = metrics.risk_coverage(each, correct)
        x, y = xy(line)
        assert numpy.allclose(x, 100 * found.coverage) and numpy.allclose(y, 100 * found.risk)
    assert labels(ax)[0] == f"plain: mean {100 * metrics.aurc(scores, correct):.2f}%"
    with pytest.raises(ArgumentError, match=r"\['a'\] and correct has \['b'\]"):
        plots.risk_coverage({"a": scores}, {"b": correct})


def test_histograms_show_both_sets_and_the_threshold(ax):
    inside, outside = torch.randn(400) + 2, torch.randn(300)
    assert plots.histograms(inside, {"letters": outside}, bins=20, accept=0.9, ax=ax) is ax
    t = metrics.threshold(inside, accept=0.9)
    assert xy(ax.lines[0])[0].tolist() == [t, t]
    through = round(100 * (outside >= t).double().mean().item())
    assert labels(ax) == [
        "data",
        f"letters: {through} of 100 get through",
        "threshold: accepts 90% of the data",
    ]
    areas = []
    for patch in ax.patches:  # the outline of steps: each height is there twice, at both ends of its bin
        corners = patch.get_xy()
        areas.append(abs(numpy.trapezoid(corners[:, 1], corners[:, 0])))
    assert numpy.allclose(areas[:2], 1) and numpy.allclose(areas[2:], 1)


def test_histograms_of_probabilities_are_of_the_confidence(ax):
    probs, _ = predictions()
    plots.histograms(probs, probs[:50], ax=ax)
    assert ax.get_xlabel() == "Confidence"
    assert xy(ax.lines[0])[0][0] == metrics.threshold(probs.double().amax(1))
    with pytest.raises(DataError, match="NaN"):
        plots.histograms(probs, torch.tensor([0.5, torch.nan]))


def test_an_outlier_far_below_all_others_does_not_stretch_the_axis(ax):
    inside = torch.linspace(0, 1, 500)
    plots.histograms(inside, torch.cat([inside[:200], torch.tensor([-1e6])]), ax=ax)
    assert ax.get_xlim()[0] > -1


def test_rays_have_the_confidences_of_both_the_limit_and_the_certificate(ax):
    bayes, x = trained(residual=False, prior_variance=1.0)
    deltas = torch.tensor([1.0, 10.0, 1000.0, 1e6])
    assert plots.confidence_along_rays(bayes, x[:5], deltas=deltas, ax=ax) is ax
    ours, plain, limit, certificate, guess = ax.lines
    assert [ours.get_color(), plain.get_color()] == [plots.COLOURS["bitbayes"], plots.COLOURS["plain"]]
    for line, predict in ((ours, bayes.predict_proba), (plain, lambda x: bayes.model(x).softmax(1))):
        expected = [100 * predict(delta * x[:5]).amax(1).mean().item() for delta in deltas]
        assert xy(line)[0].tolist() == deltas.tolist() and numpy.allclose(xy(line)[1], expected, atol=1e-3)
    assert numpy.allclose(xy(limit)[1], 100 * bayes.limit(x[:5]).confidence.mean())
    found = bayes.certify(x[:5])
    assert numpy.allclose(xy(certificate)[0], [found.alpha.max(), 1e6])
    assert numpy.allclose(xy(certificate)[1], 100 * found.confidence.mean())
    beyond = xy(ours)[0] >= found.alpha.max().item()
    assert beyond.any() and (xy(ours)[1][beyond] <= xy(certificate)[1][0] + 1e-3).all()
    assert xy(guess)[1].tolist() == [50, 50]
    low, high = band(ax)[1.0]
    confidence = 100 * bayes.predict_proba(x[:5]).amax(1).double()
    assert [low, high] == pytest.approx([confidence.quantile(q).item() for q in (0.1, 0.9)], abs=1e-3)


def test_rays_with_the_residual_go_to_a_blind_guess(ax):
    bayes, x = trained()
    bayes.tune([(x, torch.arange(60) % 2)])
    plots.confidence_along_rays(bayes, x[:1], plain=False, certificate=False, ax=ax)
    ours, limit, _ = ax.lines
    assert not ax.collections and len(ours.get_xdata()) == 41
    assert xy(limit)[1].tolist() == [50, 50] and xy(ours)[1][-1] < 52 < xy(ours)[1][0]


def test_rays_beyond_the_axis_are_named_in_the_legend_alone(ax):
    bayes, x = trained(residual=False, prior_variance=1.0)
    plots.confidence_along_rays(bayes, x[:5], deltas=torch.tensor([1e-3, 2e-3]), ax=ax)
    assert len(ax.lines[3].get_xdata()) == 0 and "from δ =" in labels(ax)[3]
    with pytest.raises(DataError, match="int64"):
        plots.confidence_along_rays(bayes, torch.zeros(1, 2, dtype=torch.long))


@pytest.mark.parametrize("k", [2, 4])
def test_a_map_has_the_confidence_at_its_pixels_and_the_data(ax, k):
    x, y = 3 * torch.randn(80, 2), torch.arange(80) % k
    model = nn.Linear(2, k)
    assert plots.toy_map(lambda x: model(x).softmax(1), x, y, zoom=2, side=31, ax=ax) is ax
    left, right, bottom, top = ax.images[0].get_extent()
    assert (left, right, bottom, top) == view_extent(x, 2)
    assert right - left == pytest.approx(3 * (x.amax(0) - x.amin(0)).amax().item(), rel=1e-5)
    corners = torch.tensor([[left, bottom], [right, top]])
    with torch.no_grad():
        confidences, labels = model(corners).softmax(1).max(1)
    expected = [map_colour(c, p, k) for c, p in zip(labels.tolist(), confidences.tolist(), strict=True)]
    shown = ax.images[0].get_array()
    assert numpy.allclose([shown[0, 0], shown[-1, -1]], expected, atol=0.5 / 255 + 1e-6)
    drawn = [each for each in ax.collections if len(each.get_offsets()) > 1]
    assert [len(each.get_offsets()) for each in drawn] == [80 // k] * k
    with pytest.raises(DataError, match=r"\(80, 3\)"):
        plots.toy_map(model, torch.zeros(80, 3), y)


def test_the_boundary_is_where_the_class_changes(ax):
    model = nn.Linear(2, 2, bias=False)
    model.weight.data = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])  # the boundary is x = 0
    x, y = torch.tensor([[-1.0, -1.0], [1.0, 1.0]]), torch.tensor([1, 0])
    plots.toy_map(lambda x: model(x).softmax(1), x, y, ax=ax)
    (line,) = (each for each in ax.collections if isinstance(each, ContourSet))
    assert numpy.abs(line.get_paths()[0].vertices[:, 0]).max() < 1e-6


def test_the_trade_off_is_that_of_evaluate_and_changes_nothing(ax):
    bayes, x = trained()
    data, far = [(x, torch.arange(60) % 2)], 5 * torch.randn(40, 2)
    bayes.tune(data)
    before = repr(bayes)
    assert plots.trade_off(bayes, data, far, prior_variances=[0.1, 10.0], ax=ax) is ax
    curve, star = ax.lines
    found = bayes.evaluate(data, outliers={"far": far})
    assert [each[0] for each in xy(star)] == pytest.approx([100 * found["far/auroc"], 100 * found["ece"]])
    other = bb.Laplace(bayes.model, residual=False, prior_variance=10.0).fit(data)
    found = other.evaluate(data, outliers={"far": far})
    assert [each[1] for each in xy(curve)] == pytest.approx(
        [100 * found["far/auroc"], 100 * found["ece"]], rel=1e-4
    )
    assert repr(bayes) == before
    with pytest.raises(ArgumentError, match="empty"):
        plots.trade_off(bayes, data, far, prior_variances=[])


def test_a_trade_off_along_an_array(ax):
    bayes, x = trained()
    data = [(x, torch.arange(60) % 2)]
    plots.trade_off(bayes.tune(data), data, 10 * x, prior_variances=numpy.logspace(-1, 1, 3), ax=ax)
    assert len(ax.lines[0].get_xdata()) == 3


@pytest.mark.parametrize("seed", range(6))  # some of the samples leave the single point of a bin out
def test_a_bin_that_no_bootstrap_sample_meets_has_a_band_of_no_width(ax, seed):
    probs = torch.tensor([[0.95, 0.05]]).repeat(50, 1)
    probs[0] = torch.tensor([0.55, 0.45])
    plots.reliability(probs, torch.zeros(50, dtype=torch.long), resamples=1, seed=seed, ax=ax)
    assert list(band(ax).values()) == [(100, 100), (100, 100)]


def test_without_axes_there_is_a_new_figure_and_other_axes_raise():
    probs, y = predictions()
    first, second = plots.reliability(probs, y), plots.reliability(probs, y)
    assert first.figure is not second.figure
    with pytest.raises(ArgumentError, match="ax is a Figure"):
        plots.reliability(probs, y, ax=first.figure)


def test_names_with_dollars_are_no_formulas(ax):
    plots.risk_coverage({"$a$": torch.randn(5)}, torch.ones(5).bool(), ax=ax)
    ax.figure.canvas.draw()
    assert labels(ax)[0].startswith(r"\$a\$")


def values(n=400, k=2):
    """A prediction that is calibrated but for chance, and its targets (n, k)."""
    mean, variance, noise = torch.randn(n, k), torch.rand(n, k), torch.full((n, k), 0.5)
    return bb.Prediction(mean, variance, noise), mean + (variance + noise).sqrt() * torch.randn(n, k)


@pytest.mark.parametrize("output", [0, 1])
def test_intervals_are_those_of_the_prediction_and_of_the_function_alone(ax, output):
    prediction, y = values(50)
    assert plots.intervals(prediction, y, coverage=0.8, output=output, ax=ax) is ax
    order = prediction.mean[:, output].argsort()
    line, points = ax.lines
    assert numpy.allclose(xy(line)[1], prediction.mean[order, output])
    assert xy(points)[0].tolist() == list(range(50)) and numpy.allclose(xy(points)[1], y[order, output])
    whole = prediction.interval(0.8)[order, output]
    half = 1.2815515655 * prediction.variance[order, output].sqrt()  # the quantile of 90%
    own = torch.stack([prediction.mean[order, output] - half, prediction.mean[order, output] + half], 1)
    for place, expected in enumerate((whole, own)):
        drawn = [ends for _, ends in sorted(band(ax, place).items())]
        assert numpy.allclose(drawn, expected, atol=1e-5)
    assert labels(ax) == ["80% of targets", "the function alone", "mean", "targets"]


def test_intervals_along_an_input_are_in_its_order_and_need_no_targets(ax):
    prediction, _ = values(30, k=1)
    x = torch.randn(30, 1)
    plots.intervals(prediction, x=x, ax=ax)
    (line,) = ax.lines
    assert numpy.allclose(xy(line)[0], x[:, 0].sort().values)
    assert numpy.allclose(xy(line)[1], prediction.mean[x[:, 0].argsort(), 0])


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"output": 2}, ArgumentError, "output=2: the prediction has 2 outputs"),
        ({"coverage": 90}, ArgumentError, "coverage=90"),
        ({"x": torch.zeros(50, 3)}, DataError, r"x has shape \(50, 3\): expected 50 numbers"),
        ({"targets": torch.zeros(49, 2)}, DataError, r"targets has shape \(49,\)"),
    ],
)
def test_intervals_of_what_does_not_fit_raise(given, error, message):
    with pytest.raises(error, match=message):
        plots.intervals(values(50)[0], **given)
    assert not pyplot.get_fignums()


def test_the_coverage_curve_is_the_share_of_targets_inside(ax):
    prediction, y = values()
    sure = bb.Prediction(prediction.mean, prediction.variance / 9, prediction.noise_variance / 9)
    assert plots.coverage_curve({"bitbayes": prediction, "plain": sure}, y, ax=ax) is ax
    _, ours, plain = ax.lines
    assert [ours.get_color(), plain.get_color()] == [plots.COLOURS["bitbayes"], plots.COLOURS["plain"]]
    for line, each in ((ours, prediction), (plain, sure)):
        x, shares = xy(line)
        # The smallest interval that holds a target has the coverage P(|z| ≤ |(y − m)/s|).
        needed = 2 * torch.special.ndtr(((y - each.mean) / each.deviation).abs().double()) - 1
        expected = [100 * (needed <= level / 100).double().mean().item() for level in x]
        assert numpy.allclose(shares, expected, atol=100 / y.numel())  # one target at the end, by rounding
    assert (numpy.diff(xy(ours)[1]) >= 0).all() and numpy.abs(xy(ours)[0] - xy(ours)[1]).max() < 8
    assert (xy(plain)[1] < xy(plain)[0]).all()
    inside = 100 * metrics.interval_coverage(sure.interval(0.9), y)
    assert labels(ax)[1] == f"plain: {inside:.0f}% in intervals of 90%"
    with pytest.raises(ArgumentError, match="shapes"):
        plots.coverage_curve(prediction, y[:, :1])

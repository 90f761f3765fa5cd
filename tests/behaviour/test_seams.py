"""Where likelihoods meet what else there is: graphs, files, other settings, inputs far away."""

import math

import numpy
import pytest
import torch
from torch import nn

import bitbayes as bb
from bitbayes.errors import ArgumentError

pytestmark = pytest.mark.filterwarnings("ignore::bitbayes.errors.EdgeWarning")


def regression(k=3, n=160, **options):
    """A fitted and tuned regression in float32, its inputs and targets."""
    torch.manual_seed(0)
    x, model = torch.randn(n, 3), nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, k))
    y = model(x).detach() + 0.1 * torch.randn(n, k)
    y = y[:, :1] if options.get("likelihood") == "heteroscedastic" else y
    bayes = bb.Laplace(model, **{"likelihood": "gaussian", **options}).fit([(x[:80], y[:80])])
    return bayes.tune([(x[80:], y[80:])]), x, y


@pytest.mark.parametrize(
    "options",
    [
        {"layers": "all"},
        {"structure": "full"},
        {"layers": "all", "k": 1},
        {"likelihood": "heteroscedastic", "structure": "full", "k": 2},
    ],
)
def test_graphs_of_posteriors_with_a_factor_for_each_point_take_any_number_of_rows(tmp_path, options):
    bayes, x, _ = regression(**options)
    bayes.export(tmp_path / "bayes.pt2", x[:2])
    values, deviations = torch.export.load(tmp_path / "bayes.pt2").module()(x[:7])
    predicted = bayes.predict(x[:7])
    torch.testing.assert_close(values, predicted.mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(deviations, predicted.deviation, rtol=1e-4, atol=1e-6)


def test_graphs_in_onnx_have_finite_scores_far_away(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    bayes, x, _ = regression(1)
    bayes.export(tmp_path / "bayes.onnx", x[:2], score=True)
    session = runtime.InferenceSession(str(tmp_path / "bayes.onnx"))
    for size in (1, 10, 30, 1000):
        far = size * x
        (found,) = session.run(["score"], {"x": far.numpy()})
        torch.testing.assert_close(torch.tensor(found), bayes.score(far), rtol=1e-3, atol=1e-3)


def test_a_noise_variance_of_a_classifier_is_refused_by_fit():
    x, y = torch.randn(30, 3), torch.arange(30) % 3
    bayes = bb.Laplace(nn.Linear(3, 3), prior_variance=1.0)
    bayes.noise_variance = 4.0  # what the labels are is not known yet
    with pytest.raises(ArgumentError, match="likelihood='categorical' has none"):
        bayes.fit([(x, y)])
    known = bb.Laplace(nn.Linear(3, 3), prior_variance=1.0).fit([(x, y)])
    with pytest.raises(ArgumentError, match="only regression has"):
        known.noise_variance  # noqa: B018


@pytest.mark.parametrize(
    "likelihood, k, noise", [("gaussian", 3, (1.0, 2.0)), ("heteroscedastic", 2, (1, 2))]
)
def test_noise_variances_of_another_number_are_refused_by_fit(likelihood, k, noise):
    bayes = bb.Laplace(nn.Linear(3, k), likelihood=likelihood, noise_variance=noise)
    y = torch.randn(30, k) if likelihood == "gaussian" else torch.randn(30)
    with pytest.raises(ArgumentError, match=r"one for each of . target"):
        bayes.fit([(torch.randn(30, 3), y)])
    with pytest.raises(ArgumentError, match="expected one number"):
        bb.Laplace(nn.Linear(3, k), likelihood=likelihood, noise_variance=())


def test_arrays_are_noise_variances():
    bayes = bb.Laplace(nn.Linear(3, 2), likelihood="gaussian", noise_variance=numpy.array([1.0, 2.0]))
    assert bayes.noise_variance == (1.0, 2.0)


@pytest.mark.parametrize("likelihood, k", [("gaussian", 3), ("heteroscedastic", 2)])
def test_the_evidence_is_the_largest_at_a_noise_variance_that_was_given(likelihood, k):
    bayes, _, _ = regression(k, likelihood=likelihood, noise_variance=0.3, residual=False)
    bayes.tune(objective="evidence")
    candidates = bayes.posterior.candidates()
    evidences = [float(bayes.log_evidence(each)) for each in candidates]
    assert bayes.prior_variance == candidates[evidences.index(max(evidences))]
    assert bayes.settings.noise_variance == 0.3


def test_the_noise_within_the_data_stays_near_the_models_own():
    """However wide the prior that the validation data allow."""
    bayes, x, _ = regression(2, likelihood="heteroscedastic", n=600)
    bayes.prior_variance = 1e8
    own = bayes.noise_variance[0] * bayes.model(x)[:, 1].detach().exp()
    ratio = bayes.predict(x).noise_variance[:, 0] / own
    assert float(ratio.min()) >= 1 - 1e-5 and float(ratio.max()) <= math.exp(0.5) * (1 + 1e-5)


def test_predictives_that_draw_do_not_fit_values():
    for name in ("sampled_networks", "mc", "pairwise"):
        with pytest.raises(ArgumentError, match="predicts values"):
            bb.Laplace(nn.Linear(3, 2), likelihood="gaussian", layers="all", predictive=name)


def test_state_dicts_of_exact_curvature_are_those_of_auto():
    x, y = torch.randn(30, 3), torch.arange(30) % 3
    for layers in ("last", "all"):
        model = nn.Linear(3, 3)
        before = bb.Laplace(model, layers=layers, curvature="exact", prior_variance=1.0).fit([(x, y)])
        now = bb.Laplace(model, layers=layers)
        now.load_state_dict(before.state_dict())
        assert torch.equal(now.predict_proba(x), before.predict_proba(x))


def test_points_that_count_zero_times_take_no_places_of_others():
    x, y, weights = torch.randn(3000, 3), torch.arange(3000) % 3, torch.zeros(3000)
    weights[[1, 2, 3, 7, 11]] = 1.0
    model = nn.Linear(3, 3)
    found = [bb.Laplace(model, layers="all", covariance="draws").fit([(x, y)]) for _ in range(2)]
    with pytest.warns(bb.errors.FewPointsWarning):
        found[0].tune([(x, y, weights)], weighted=True)
    chosen = weights > 0
    with pytest.warns(bb.errors.FewPointsWarning):
        found[1].tune([(x[chosen], y[chosen])])
    assert found[0].settings.prior_variance == pytest.approx(found[1].settings.prior_variance)


def test_deviations_far_away_are_not_cut_off_with_their_squares():
    bayes, x, _ = regression(1)
    for size in (1e20, 1e24):
        predicted = bayes.predict(size * x)
        assert bool(predicted.deviation.isfinite().all())
        assert bool((predicted.deviation > predicted.mean.abs()).all())
    pairs = bb.Laplace(nn.Linear(3, 1), likelihood="preference", prior_variance=1.0).fit([(x[:40], x[40:80])])
    reward = pairs.reward(1e20 * x)
    assert bool(reward.deviation.isfinite().all())
    expected = 1e20 * pairs.reward(x).deviation.double()
    torch.testing.assert_close(reward.deviation.double(), expected, rtol=1e-4, atol=0)


@pytest.mark.parametrize("likelihood, k", [("heteroscedastic", 2), ("preference", 1)])
def test_likelihoods_of_the_last_layer_are_refused_where_all_are_trained(likelihood, k):
    model = nn.Linear(3, k)
    adam = torch.optim.Adam(model.parameters())
    with pytest.raises(ArgumentError, match="for the last layer alone"):
        bb.train_by_evidence(
            model, [(torch.randn(9, 3), torch.randn(9))], adam, epochs=20, likelihood=likelihood
        )


def test_other_numbers_of_outputs_are_named():
    for likelihood, says in (("heteroscedastic", "it needs two"), ("preference", "a reward model has one")):
        with pytest.raises(ArgumentError, match=says):
            bb.likelihoods.likelihood_for(3, likelihood)


def test_regression_is_evaluated_by_the_score_alone():
    bayes, x, y = regression(1)
    with pytest.raises(ArgumentError, match="by='score'"):
        bayes.evaluate([(x, y)], by="confidence")

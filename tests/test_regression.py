"""Regression against dense float64 computations: mean, both parts of the variance, evidence, draws, files."""

import copy
import math
import warnings

import pytest
import torch
from scipy import stats
from torch import nn
from torch.func import functional_call, jacrev

import bitbayes as bb
import reference
import several
from bitbayes.errors import ArgumentError, DataError, FewPointsWarning, ModelError

STRUCTURES = ("full", "kron", "diag", "isotropic")
# Relative: sums over 30 points, an inverse of a matrix with a condition below 1e4, in float64.
DIGITS = {"rtol": 1e-9, "atol": 1e-11}


def targets(k, n=30):
    """(n, k) in units that differ by a factor of 1,000."""
    return torch.randn(n, k, dtype=torch.float64) * 10.0 ** torch.arange(k)


def case(k=2, n=30, dtype=torch.float64, **options):
    """A fitted regression with a head named 'head', its inputs and its targets."""
    model = reference.network(k, dtype=dtype)
    x, y = reference.data(k, n, dtype=dtype)[0], targets(k, n).to(dtype)
    options = {"likelihood": "gaussian", "residual": False, **options}
    return bb.Laplace(model, **options).fit(reference.loader(x, y)), x, y


def numbers(values):
    return torch.tensor(values, dtype=torch.float64)


def dense_covariances(structure, features, prior_variance, noise):
    """Σ_c (D, D) of the weights of each output: (ΦᵀΦ/σ² + I/(σ₀²σ²))⁻¹, as the structure approximates ΦᵀΦ."""
    h = features.T @ features
    h = {"diag": torch.diag(torch.diag(h)), "isotropic": torch.zeros_like(h)}.get(structure, h)
    eye = torch.eye(len(h), dtype=h.dtype)
    return [torch.linalg.inv(h / own + eye / (prior_variance * own)) for own in noise]


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("k", [1, 3])
def test_mean_and_variance_are_those_of_dense_matrices(structure, k):
    noise = tuple(0.5 * 100.0**c for c in range(k))
    bayes, x, _ = case(k, structure=structure, prior_variance=0.7, noise_variance=noise)
    features = reference.head_features(bayes.model, x)
    predicted = bayes.predict(x, joint=True)
    assert torch.equal(predicted.mean, bayes.model(x))
    for c, sigma in enumerate(dense_covariances(structure, features, 0.7, noise)):
        joint = features @ sigma @ features.T
        torch.testing.assert_close(predicted.covariance[c], joint, rtol=1e-9, atol=1e-9 * noise[c])
        torch.testing.assert_close(predicted.variance[:, c], joint.diagonal(), **DIGITS)
        assert bool((predicted.noise_variance[:, c] == noise[c]).all())
        covariance = bayes.logits(x).covariance[:, c, c]
        torch.testing.assert_close(covariance, joint.diagonal(), **DIGITS)
    torch.testing.assert_close(bayes.predict(x).variance, predicted.variance, **DIGITS)


@pytest.mark.parametrize("structure", STRUCTURES[:3])
@pytest.mark.parametrize("k", [1, 3])
def test_the_evidence_is_that_of_dense_matrices(structure, k):
    noise = tuple(0.5 * 100.0**c for c in range(k))
    bayes, x, y = case(k, structure=structure, prior_variance=0.7, noise_variance=noise)
    features, weights = reference.head_features(bayes.model, x), reference.head_weights(bayes.model)
    expected = 0.0
    for c, sigma in enumerate(dense_covariances(structure, features, 0.7, noise)):
        own, mean = weights[c], features @ weights[c]
        expected += stats.norm.logpdf(y[:, c], mean, math.sqrt(noise[c])).sum()
        expected += stats.norm.logpdf(own, 0, math.sqrt(0.7 * noise[c])).sum()
        expected += len(own) / 2 * math.log(2 * math.pi) + float(torch.linalg.slogdet(sigma)[1]) / 2
    assert float(bayes.log_evidence()) == pytest.approx(expected, rel=1e-9)


def test_the_evidence_of_a_linear_model_is_the_marginal_likelihood():
    """At the posterior mean Laplace's approximation is exact: log N(y | 0, σ²(I + σ₀²ΦΦᵀ))."""
    x, y = torch.randn(20, 3).double(), torch.randn(20, 1).double()
    noise, prior = 0.3, 2.5
    features = torch.cat([x, torch.ones(20, 1)], 1)
    eye = torch.eye(4, dtype=torch.float64)
    best = torch.linalg.solve(features.T @ features + eye / prior, features.T @ y)[:, 0]
    model = nn.Linear(3, 1).double()
    with torch.no_grad():
        model.weight.copy_(best[None, :3])
        model.bias.copy_(best[3:])
    options = {"likelihood": "gaussian", "noise_variance": noise, "prior_variance": prior}
    bayes = bb.Laplace(model, **options).fit([(x, y)])
    marginal = noise * (torch.eye(20) + prior * features @ features.T)
    expected = stats.multivariate_normal.logpdf(y[:, 0], torch.zeros(20), marginal)
    assert float(bayes.log_evidence()) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("structure", ["full", "kron", "diag"])
def test_over_all_layers_the_variance_is_that_of_the_whole_jacobian(structure):
    bayes, x, _ = case(2, layers="all", structure=structure, prior_variance=0.2, noise_variance=0.4, n=12)
    model = bayes.model
    parameters = dict(model.named_parameters())
    flat = torch.cat([each.detach().flatten() for each in parameters.values()])

    def outputs(vector):
        parts = torch.split(vector, [each.numel() for each in parameters.values()])
        named = {n: p.reshape(t.shape) for (n, t), p in zip(parameters.items(), parts, strict=True)}
        return functional_call(model, named, (x,))

    jacobian = jacrev(outputs)(flat)  # (n, k, P)
    h = torch.einsum("nkp,nkq->pq", jacobian, jacobian)
    if structure == "diag":
        h = torch.diag(torch.diag(h))
    if structure == "kron":
        pytest.skip("its factors are compared with a dense reference in tests/posteriors")
    sigma = torch.linalg.inv(h / 0.4 + torch.eye(len(h)) / (0.2 * 0.4))
    expected = torch.einsum("nkp,pq,nkq->nk", jacobian, sigma, jacobian)
    torch.testing.assert_close(bayes.predict(x).variance, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("structure", ["full", "diag"])
@pytest.mark.filterwarnings("ignore")  # of its code at work: it is not ours to mend
def test_variance_and_evidence_are_those_of_laplace_torch(structure):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        laplace = pytest.importorskip("laplace", reason="laplace-torch is not installed")
    precision, noise = 3.0, 0.25
    bayes, x, y = case(2, structure=structure, noise_variance=noise, prior_variance=1 / (precision * noise))
    theirs = laplace.Laplace(
        copy.deepcopy(bayes.model),
        "regression",
        subset_of_weights="last_layer",
        hessian_structure=structure,
        backend=laplace.curvature.BackPackGGN,
        prior_precision=torch.tensor(precision).double(),
        sigma_noise=torch.tensor(noise).double().sqrt(),
    )
    theirs.fit(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=10))
    mean, covariance = theirs._glm_predictive_distribution(x)
    predicted = bayes.predict(x)
    torch.testing.assert_close(predicted.mean, mean.detach(), rtol=0, atol=1e-12)
    variances = covariance.diagonal(dim1=1, dim2=2).detach()
    torch.testing.assert_close(predicted.variance, variances, rtol=1e-6, atol=1e-9)
    expected = theirs.log_marginal_likelihood().detach().reshape(())
    torch.testing.assert_close(bayes.log_evidence(), expected, rtol=1e-6, atol=1e-6)


# ---- units


@pytest.mark.parametrize("objective", ["calibrated", "evidence"])
def test_predictions_follow_the_units_of_the_targets(objective):
    """The head's weights times 1,000, the targets times 1,000: all deviations times 1,000."""
    x, y = torch.randn(120, 3).double(), torch.randn(120, 1).double()
    found = []
    for unit in (1.0, 1000.0):
        torch.manual_seed(0)
        model = reference.network(1)
        with torch.no_grad():
            model.head.weight *= unit
            model.head.bias *= unit
        bayes = bb.Laplace(model, likelihood="gaussian").fit([(x[:80], y[:80] * unit)])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a prior variance at the edge
            bayes.tune([(x[80:], y[80:] * unit)], objective=objective)
        found.append(bayes.predict(3 * x).deviation / unit)
    torch.testing.assert_close(*found, rtol=1e-9, atol=0)


def test_until_one_is_chosen_the_noise_variance_is_the_mean_squared_error():
    bayes, x, y = case(2)
    expected = (y - bayes.model(x).detach()).square().mean(0)
    torch.testing.assert_close(numbers(bayes.noise_variance), expected, rtol=1e-12, atol=0)
    with pytest.warns(bb.errors.UntunedWarning):
        assert torch.equal(bayes.predict(x[:1]).noise_variance[0], numbers(bayes.noise_variance))


# ---- what is done with sums


def test_updates_merges_and_what_is_taken_out_have_the_errors_of_all_points(tmp_path):
    bayes, x, y = case(2, n=40)
    parts = [(x[:15], y[:15]), (x[15:], y[15:])]
    options = {"likelihood": "gaussian", "residual": False}
    updated = bb.Laplace(bayes.model, **options).fit(parts[:1]).update(parts[1:])
    one, other = (bb.Laplace(bayes.model, **options).fit([part]) for part in parts)
    merged = bb.merge([one, other])
    for each in (updated, merged):
        torch.testing.assert_close(
            numbers(each.noise_variance), numbers(bayes.noise_variance), rtol=1e-12, atol=0
        )
        each.prior_variance = bayes.prior_variance = 1.0
        torch.testing.assert_close(each.predict(x).variance, bayes.predict(x).variance, rtol=1e-10, atol=0)
    left = bb.merge([merged], without=[other])
    torch.testing.assert_close(numbers(left.noise_variance), numbers(one.noise_variance), rtol=1e-10, atol=0)


def _fit_and_tune(rank, size):
    torch.manual_seed(0)
    model, x, y = reference.network(2), torch.randn(80, 3).double(), torch.randn(80, 2).double()
    bayes = bb.Laplace(model, likelihood="gaussian").fit([(x[rank:60:size], y[rank:60:size])])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bayes.tune([(x[60 + rank :: size], y[60 + rank :: size])])
    return bayes.settings.as_json(), bayes.predict(x).deviation


def test_processes_find_what_one_finds():
    (alone,) = several.run(1, _fit_and_tune)
    for settings, deviations in several.run(2, _fit_and_tune):
        assert settings["noise_variance"] == pytest.approx(alone[0]["noise_variance"], rel=1e-9)
        assert settings["near_variance"] == pytest.approx(alone[0]["near_variance"], rel=1e-6)
        torch.testing.assert_close(deviations, alone[1], rtol=1e-6, atol=0)


def test_files_state_dicts_and_checkpoints_keep_everything(tmp_path):
    bayes, x, y = case(2, residual="auto", n=120)
    bayes.tune([(x[80:], y[80:])])
    bayes.save(tmp_path / "bayes.safetensors")
    loaded = bb.Laplace.load(tmp_path / "bayes.safetensors", bayes.model)
    assert loaded.settings == bayes.settings
    assert torch.equal(loaded.predict(x).deviation, bayes.predict(x).deviation)
    again = bb.Laplace(bayes.model, likelihood="gaussian")
    again.load_state_dict(bayes.state_dict())
    assert torch.equal(again.predict(x).deviation, bayes.predict(x).deviation)
    resumed = bb.Laplace(bayes.model, likelihood="gaussian").fit([(x, y)], checkpoint=tmp_path / "sums")
    assert resumed.posterior.fitted.squared_errors == pytest.approx(bayes.posterior.fitted.squared_errors)


# ---- draws, gradients, graphs


def test_drawn_weights_have_the_variance_of_the_prediction():
    bayes, x, _ = case(2, prior_variance=0.5, noise_variance=(0.5, 200.0))
    draws = bayes.sample(40_000, generator=torch.Generator().manual_seed(0))
    features = bayes.model.activation(bayes.model.hidden(x[:5])).detach()
    values = torch.einsum("skd,nd->snk", draws["head.weight"].double(), features)
    values = values + draws["head.bias"].double()[:, None]
    ratio = values.var(0) / bayes.predict(x[:5]).variance
    # The relative deviation of a sample variance is √(2/n); five of them.
    assert float((ratio - 1).abs().max()) < 5 * math.sqrt(2 / 40_000)


def test_all_of_a_prediction_is_differentiable_in_x():
    bayes, x, y = case(2, residual="auto", n=120)
    bayes.tune([(x[80:], y[80:])])

    def everything(point):
        predicted = bayes.predict(point, joint=True)
        return torch.cat(
            [predicted.mean.flatten(), predicted.variance.flatten(), predicted.covariance.flatten()]
        )

    # Beyond the data, where the steep term has a slope, too.
    point = (4 * x[:2]).requires_grad_()
    assert torch.autograd.gradcheck(everything, point, eps=1e-6, atol=1e-4, rtol=1e-4)
    assert not bayes.predict(x[:2]).variance.requires_grad


def test_the_covariance_is_positive_and_its_diagonal_is_the_variance():
    bayes, x, y = case(2, residual="auto", n=120)
    bayes.tune([(x[80:], y[80:])])
    predicted = bayes.predict(3 * x, joint=True)
    diagonal = predicted.covariance.diagonal(dim1=1, dim2=2).T
    torch.testing.assert_close(diagonal, predicted.variance, rtol=1e-12, atol=0)
    smallest = torch.linalg.eigvalsh(predicted.covariance)[:, 0]
    assert bool((smallest > -1e-12 * diagonal.amax(0)).all())


def test_the_joint_covariance_takes_one_pass():
    passes = []

    class Counted(nn.Sequential):
        def forward(self, x):
            passes.append(len(x))
            return super().forward(x)

    model = Counted(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    x, y = torch.randn(20, 3).double(), torch.randn(20, 2).double()
    bayes = bb.Laplace(model, likelihood="gaussian", prior_variance=1.0, residual=True).fit([(x, y)])
    passes.clear()
    bayes.predict(x[:7], joint=True)
    assert passes == [7]


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_graphs_return_values_deviations_and_scores(tmp_path, suffix):
    bayes, x, y = case(2, residual="auto", n=120, dtype=torch.float32)
    bayes.tune([(x[80:], y[80:])])
    path = tmp_path / f"bayes{suffix}"
    bayes.export(path, x[:2], score=True)
    if suffix == ".onnx":
        runtime = pytest.importorskip("onnxruntime")
        session = runtime.InferenceSession(str(path))
        assert [each.name for each in session.get_outputs()] == ["values", "deviations", "score"]
        found = [torch.tensor(each) for each in session.run(None, {"x": x.numpy()})]
    else:
        found = torch.export.load(path).module()(x)
    predicted = bayes.predict(x)
    for ours, theirs in zip((predicted.mean, predicted.deviation, bayes.score(x)), found, strict=True):
        torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-5)
    with pytest.raises(ArgumentError, match="values"):
        bayes.export(path, x[:2], score="confidence")


# ---- what it measures and decides


def test_intervals_have_the_quantiles_of_the_normal_distribution():
    one = torch.ones(1, 2, dtype=torch.float64)
    prediction = bb.Prediction(one, 3 * one, one)
    low, high = prediction.interval(0.9)[0, 0].tolist()
    assert (low, high) == pytest.approx(stats.norm.interval(0.9, 1, 2), rel=1e-12)
    for wrong in (0, 1, 90, "0.9", None):
        with pytest.raises(ArgumentError, match="coverage="):
            prediction.interval(wrong)


def test_evaluate_measures_values_and_what_outliers_do_to_them():
    bayes, x, y = case(2, residual="auto", n=300)
    bayes.tune([(x[80:200], y[80:200])])
    found = bayes.evaluate([(x[200:], y[200:])], outliers={"far": 5 * x[200:]})
    predicted = bayes.predict(x[200:])
    assert found["rmse"] == bb.metrics.rmse(predicted.mean, y[200:])
    assert found["nll"] == pytest.approx(
        -stats.norm.logpdf(y[200:], predicted.mean, predicted.deviation).mean()
    )
    assert found["far/widening"] > 3 and found["far/auroc"] > 0.9
    assert found["coverage90"] == bb.metrics.interval_coverage(predicted.interval(0.9), y[200:])
    with pytest.raises(ArgumentError, match="by='score'"):
        bayes.evaluate([(x, y)], outliers={"far": 5 * x}, by="confidence")


def test_loaders_of_pairs_are_taken_by_all_calls():
    bayes, x, y = case(2, residual="auto", n=120)
    loader = reference.loader(x, y)
    bayes.tune(loader)
    assert torch.allclose(bayes.predict(loader).mean, bayes.model(x))
    assert bayes.score(loader).shape == (120,)
    threshold = bayes.threshold(loader, accept=0.9)
    assert int((bayes.score(x) >= threshold).sum()) == 108


# ---- errors


def test_what_does_not_fit_is_refused_and_nothing_changes():
    bayes, x, y = case(2)
    before = bayes.settings
    for name, value in (("temperature", 2.0), ("noise_variance", (1.0, 2.0, 3.0)), ("noise_variance", -1.0)):
        with pytest.raises(ArgumentError):
            setattr(bayes, name, value)
    for objective in ("nll", "ood"):
        with pytest.raises(ArgumentError, match="'calibrated' or 'evidence'"):
            bayes.tune([(x, y)], objective=objective)
    for wrong in ([(x, y[:, :1])], [(x, y * math.nan)], [(x, y[:, 0])]):
        with pytest.raises(DataError):
            bayes.tune(wrong)
        with pytest.raises(DataError):
            bayes.update(wrong)
    with pytest.raises(DataError, match="exactly"):
        bayes.tune([(x, bayes.model(x).detach())])
    assert bayes.settings == before


@pytest.mark.parametrize("call", ["predict_proba", "confidence", "uncertainty", "predict_and_score"])
def test_what_is_for_classifiers_says_so(call):
    bayes, x, _ = case(1, prior_variance=1.0)
    with pytest.raises(ArgumentError):
        getattr(bayes, call)(x)


def test_classifiers_have_no_values():
    bayes, x, _ = reference.fitted(prior_variance=1.0)
    for call in (bayes.predict, bayes.interval):
        with pytest.raises(ArgumentError, match="`predict_proba`"):
            call(x)
    with pytest.raises(ArgumentError, match="likelihood='categorical' has none"):
        bayes.noise_variance = 1.0


@pytest.mark.parametrize(
    "options, says",
    [
        ({"likelihood": "auto", "noise_variance": 1.0}, "likelihood='gaussian'"),
        ({"noise_variance": 0.0}, "noise_variance=0.0"),
        ({"noise_variance": "auto"}, "noise_variance='auto'"),
        ({"likelihood": "regression"}, "likelihood='gaussian'"),
        ({"sigma_noise": 0.5}, "noise_variance=0.25"),
    ],
)
def test_options_that_do_not_fit_name_the_line_to_write(options, says):
    with pytest.raises(ArgumentError, match=says):
        bb.Laplace(nn.Linear(2, 1), **{"likelihood": "gaussian", **options})


def test_models_and_structures_that_do_not_fit_are_refused():
    x = torch.randn(4, 5, 3)
    with pytest.raises(ModelError, match="positions"):
        bb.Laplace(nn.Linear(3, 2), likelihood="gaussian").fit([(x, torch.randn(4, 5, 2))])
    with pytest.raises(ArgumentError, match="'kron'"):
        bb.Laplace(nn.Linear(3, 2), likelihood="gaussian", structure="lowrank").fit(
            [(x[0], torch.randn(5, 2))]
        )
    every = {"likelihood": "gaussian", "layers": "all"}
    with pytest.raises(ArgumentError, match="one number"):
        bb.Laplace(nn.Linear(3, 2), noise_variance=(1.0, 2.0), **every)
    bayes = bb.Laplace(nn.Linear(3, 2), prior_variance=1.0, **every).fit([(x[0], torch.randn(5, 2))])
    with pytest.raises(ArgumentError, match="layers='last'"):
        bayes.predict(x[0], joint=True)
    with pytest.raises(ArgumentError, match="one batch"):
        bayes.predict([x[0]], joint=True)


@pytest.mark.filterwarnings("ignore::bitbayes.errors.EdgeWarning")
def test_one_training_point_and_few_validation_points_give_finite_numbers():
    model, x, y = reference.network(1), torch.randn(8, 3).double(), torch.randn(8, 1).double()
    bayes = bb.Laplace(model, likelihood="gaussian").fit([(x[:1], y[:1])])
    with pytest.warns(FewPointsWarning, match="there are 2 validation points"):
        bayes.tune([(x[1:3], y[1:3])])
    assert bool(bayes.predict(1e20 * x).deviation.isfinite().all())

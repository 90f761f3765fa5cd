"""What the tables rest on: splits, methods on features, sampled networks, the confused pair."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import bitbayes as bb
from bitbayes.baselines.detectors import DETECTORS
from bitbayes.errors import ArgumentError
from paper.experiments import adversarial, ood
from paper.experiments.ece import paper_code_ece
from paper.methods import (
    BINARY,
    LINEARISED,
    MULTICLASS,
    BatchLoader,
    Default,
    Detector,
    LastLayer,
    Linearised,
    MethodEntry,
    Points,
    SampledNetworks,
    Temperature,
)
from paper.methods.all_layers import minimise_on_grid
from paper.session import Session, most_confused_classes
from paper.study import Study, choice_notes
from paper.training import Recipe


@pytest.fixture
def study(problem, network):
    return Study(problem, network, trials=3, progress=False)


def test_validation_and_test_points_are_disjoint_and_change_with_the_trial(study):
    splits = [study.split(trial) for trial in range(3)]
    for validation, test in splits:
        assert len(validation) == 30
        assert torch.cat([validation, test]).sort().values.equal(torch.arange(90))
    assert not splits[0][0].equal(splits[1][0])
    assert study.split(0)[0].equal(splits[0][0])


def test_noise_is_uniform_and_other_in_each_trial(study):
    noise = study.draw_noise(0)
    assert noise.shape == (30, 1, 4, 4) and noise.min() >= 0 and noise.max() <= 1
    assert noise.equal(study.draw_noise(0)) and not noise.equal(study.draw_noise(1))


@pytest.mark.parametrize("options", [{}, {"structure": "paper-kron"}, {"structure": "full"}])
def test_the_last_layer_on_features_is_that_of_the_whole_network(study, network, options):
    problem = study.problem
    method = LastLayer(**options)
    method.fit(
        network, problem.train.images, network.extract_features(problem.train.images), problem.train.labels
    )
    whole = bb.Laplace(network.whole, **options)
    whole.fit(BatchLoader(problem.train.images, problem.train.labels), progress=False)
    whole.prior_variance = 3.0
    points = network.extract_features(problem.test.images)
    # Sums in another order differ by the rounding of float32.
    expected = whole.predict_proba(points.images)
    chosen = {"prior_variance": 3.0}
    assert torch.allclose(method.rate(points, chosen, 0).probs, expected, atol=1e-5)
    assert torch.allclose(method.as_module(chosen)(points.images).softmax(1), expected, atol=1e-5)


def fit(method, study):
    problem, network = study.problem, study.network
    train = network.extract_features(problem.train.images)
    method.fit(network, problem.train.images, train, problem.train.labels)
    return method


def test_each_trial_has_the_numbers_that_the_default_chose_in_it(study, network):
    problem, method = study.problem, fit(Default(), study)
    expected = bb.Laplace(network.whole)
    expected.fit(BatchLoader(problem.train.images, problem.train.labels), progress=False)
    rows, _ = study.split(0)
    first = method.tune(study.test, rows, study.tuning_noise)
    method.tune(study.test, study.split(1)[0], study.tuning_noise)  # whose numbers are not used
    expected.tune([(study.test.images[rows], problem.test.labels[rows])], progress=False)
    found = method.rate(study.test, first, 0)
    assert torch.allclose(found.probs, expected.predict_proba(study.test.images), atol=1e-4)
    assert torch.allclose(found.own_score, expected.score(study.test.images), atol=1e-3)
    logits = method.as_module(first)(study.test.images)
    assert torch.allclose(logits.softmax(1), found.probs, atol=1e-5)


@pytest.mark.parametrize("objective", ["ood", "calibrated"])
@pytest.mark.filterwarnings("ignore::bitbayes.errors.EdgeWarning")
def test_the_linearised_network_is_that_of_the_public_api(study, network, objective):
    problem, method = study.problem, fit(Linearised(objective, structure="kron", residual=False), study)
    expected = bb.Laplace(network.whole, layers="all", structure="kron", residual=False)
    expected.fit(BatchLoader(problem.train.images, problem.train.labels), progress=False)
    rows, _ = study.split(0)
    chosen = method.tune(study.test, rows, study.tuning_noise)
    validation = [(study.test.images[rows], problem.test.labels[rows])]
    outliers = study.tuning_noise.images if objective == "ood" else None
    expected.tune(validation, objective=objective, outliers=outliers, progress=False)
    assert chosen["prior_variance"] == expected.prior_variance
    # Sums of float32 in another order move the vertex of a parabola by 1e-4 at most.
    assert chosen["temperature"] == pytest.approx(expected.temperature, rel=1e-3)
    expected.temperature = chosen["temperature"]
    found = method.rate(study.test, chosen, 0)
    assert torch.allclose(found.probs, expected.predict_proba(study.test.images), atol=1e-4)
    own = expected.score(study.test.images) if objective == "calibrated" else found.probs.amax(1)
    assert torch.allclose(found.own_score, own, atol=1e-3)


def test_posteriors_over_all_layers_are_shared(study):
    options = {"structure": "diag", "curvature": bb.Fisher()}
    sampled, linear = SampledNetworks(20, **options), Linearised("ood", residual=False, **options)
    assert fit(sampled, study).bayes is fit(linear, study).bayes


def test_methods_that_are_tuned_once_have_the_first_trials_numbers_and_are_rated_once(study, monkeypatch):
    study.entries = {key: MULTICLASS[key] for key in ("plain", "ours", "dla", "knn")}
    splits, rated = [], []
    for key, method in study.methods.items():
        monkeypatch.setattr(
            method, "tune", lambda test, rows, noise, key=key: splits.append(key) or {"by": rows}
        )
        monkeypatch.setattr(method, "rate", lambda points, chosen, seed, key=key: rated.append((key, seed)))
    assert [trial["ours"]["by"].tolist() for trial in study.chosen] == [
        study.split(trial)[0].tolist() for trial in range(3)
    ]
    assert all(trial["dla"] is study.chosen[0]["dla"] for trial in study.chosen)
    assert [splits.count(key) for key in ("plain", "ours", "dla", "knn")] == [3, 3, 1, 1]
    for trial in range(3):
        for key in ("ours", "dla"):
            study.rate(key, study.test, trial)
    assert rated == [("ours", 0), ("dla", 0), ("ours", 1), ("ours", 2)]


def test_a_detector_sees_the_training_features(study, network):
    method, train = fit(Detector("knn"), study), network.extract_features(study.problem.train.images)
    found = method.rate(study.test, {}, 0)
    labels = study.problem.train.labels
    knn = DETECTORS["knn"].fit(train.features, labels, network.head.weight, network.head.bias)
    assert found.probs is None and found.own_score.equal(knn.score(study.test.features))


def test_temperature_is_that_of_the_library(study, network):
    method, points, everything = fit(Temperature(), study), study.test, torch.arange(90)
    scaled = bb.TemperatureScaling(network.whole).fit([(points.images, points.labels)], progress=False)
    chosen = method.tune(points, everything, points)
    assert chosen == {"temperature": pytest.approx(scaled.temperature, rel=1e-4)}
    expected = scaled.predict_proba(points.images)
    assert torch.allclose(method.rate(points, chosen, 0).probs, expected, atol=1e-5)


def test_sampled_networks_are_averaged(study, network, fresh):
    method = fit(SampledNetworks(20, structure="diag"), study)
    chosen = method.tune(study.test, torch.arange(30), study.tuning_noise)
    assert 1e-9 < chosen["prior_variance"] < 1e3
    found = method.rate(study.test, chosen, seed=4).probs
    method.bayes.prior_variance = chosen["prior_variance"]
    draws = method.bayes.sample(20, generator=torch.Generator().manual_seed(4))
    total = torch.zeros(90, 3)
    for i in range(20):
        copy = fresh(3)
        copy.load_state_dict({name: values[i] for name, values in draws.items()})
        with torch.no_grad():
            total += copy(study.test.images).softmax(1) / 20
    assert torch.allclose(found, total, atol=1e-6)
    assert not torch.equal(found, method.rate(study.test, chosen, seed=5).probs)
    images = study.test.images[:7].requires_grad_()
    attacked = method.as_module(chosen)(images)
    expected = method.rate(Points(images.detach(), images.detach()), chosen, seed=0).probs
    assert torch.allclose(attacked.exp(), expected, atol=1e-6)
    attacked.amax().backward()
    assert images.grad.abs().sum() > 0


def break_ours(study, error):
    def make(points):
        raise error

    study.entries = {"plain": MULTICLASS["plain"], "ours": MethodEntry("Broken", None, make)}


def test_a_method_that_does_not_fit_is_named_and_does_not_stop_the_others(study):
    break_ours(study, ArgumentError("not today"))
    assert list(study.methods) == ["plain"] and study.not_run == {"ours": "not today"}


def test_a_mistake_in_a_method_is_not_hidden(study):
    break_ours(study, TypeError("an unexpected keyword argument"))
    with pytest.raises(TypeError, match="unexpected keyword"):
        _ = study.methods


def test_what_was_chosen_stands_below_the_table():
    methods = {key: {"title": key.title()} for key in ("plain", "ours", "both", "dkl")}
    chosen = [
        {
            "plain": {},
            "ours": {"prior_variance": 1e10},
            "both": {"prior_variance": v, "residual_variance": 2.0},
        }
        for v in (1e-6, 3.0)
    ]
    told, missing = choice_notes({"methods": methods, "chosen": chosen, "not_run": {"dkl": "no GPyTorch"}})
    assert told == (
        "Chosen over the trials: Ours: prior variance 1e+10 (the largest tried); "
        "Both: prior variance 1e-06 to 3, residual variance 2."
    )
    assert missing == "Not run: Dkl (no GPyTorch)."


def test_the_most_confused_pair(problem):
    class Fixed(nn.Module):
        def forward(self, features):
            return features

    study = Study(problem, type("N", (), {"head": Fixed(), "device": torch.device("cpu")})(), 1)
    predicted = problem.test.labels.clone()
    twos = torch.nonzero(predicted == 2)[:, 0]
    predicted[twos[:4]] = 0
    predicted[torch.nonzero(problem.test.labels == 1)[:3, 0]] = 2
    features = nn.functional.one_hot(predicted, 3).float()
    study.__dict__["test"] = type("S", (), {"features": features})()
    assert most_confused_classes(study) == (0, 2)


def test_a_pair_of_classes_is_a_binary_problem(problem):
    pair = problem.binary(0, 2)
    assert pair.classes == 1 and pair.paper_name == "Binary-MNIST"
    assert len(pair.train.images) == 64 and set(pair.train.labels.tolist()) == {0, 1}
    twos = problem.train.images[problem.train.labels == 2]
    assert pair.train.images[pair.train.labels == 1].equal(twos)


def test_the_papers_ece_forgets_confident_points():
    probs = torch.tensor([[0.999, 0.001]] * 98 + [[0.6, 0.4]] * 2)
    labels = torch.zeros(100, dtype=torch.long)
    assert paper_code_ece(probs, labels) == pytest.approx(0.4, abs=1e-6)
    assert bb.metrics.ece(probs, labels) == pytest.approx(0.98 * 0.001 + 0.02 * 0.4, abs=1e-6)
    assert paper_code_ece(probs[:98], labels[:98]) == 0.0


def test_minimise_on_grid_finds_the_minimum_to_the_last_half_step():
    assert minimise_on_grid(lambda x: abs(x + 3.2), [-8.0, -6.0, -4.0, -2.0]) == -3.0
    assert minimise_on_grid(lambda x: x, [-8.0, -6.0, -4.0]) == -8.0  # and never leaves the grid


def test_the_papers_five_methods_are_there():
    assert [e.paper_column for e in MULTICLASS.values() if e.paper_column] == [
        "MAP",
        "Temp",
        "LLLA",
        "DLA",
        "KFLA",
    ]
    assert [e.paper_column for e in BINARY.values() if e.paper_column] == ["MAP", "Temp", "LLLA"]


def test_methods_are_not_tuned_on_the_noise_of_the_tables(study):
    tables = ood.noise_set(study, 2000)["Noise × 2000"].points.images / 2000
    assert not torch.allclose(tables, study.tuning_noise.images)
    wide = Study(study.problem, study.network, 1, False, tuning_noise_scale=10.0)
    assert torch.allclose(wide.tuning_noise.images, 10 * study.tuning_noise.images)


def test_linearised_networks_rate_the_first_thousand_outliers_and_all_labelled_points(study, monkeypatch):
    monkeypatch.setattr("paper.methods.all_layers.LINEARISED_POINTS", 7)
    method = fit(Linearised("calibrated", structure="diag", residual=False), study)
    chosen = method.tune(study.test, torch.arange(30), study.tuning_noise)
    outliers = study.outliers["Fashion-MNIST"]
    assert len(method.rate(outliers, chosen, 0).probs) == 7 < len(outliers)
    assert len(method.rate(study.test, chosen, 0).probs) == len(study.test)


def test_networks_of_other_objectives_and_seeds(options, monkeypatch):
    """Which study a network gets, and what it is trained with."""
    asked = []

    def trained(folder, name, make, images, labels, **how):
        asked.append((name, how))
        return make()

    monkeypatch.setattr("paper.session.trained", trained)
    session = Session(options)
    further = Recipe(epochs=4)
    session.__dict__["problem"] = replace(
        session.problem, fine_tuning={"acet": further, "oe": further}, attack_ramp=2.0
    )
    plain, oe, acet = (session.study(each) for each in ("plain", "oe", "acet"))
    assert (plain.tuning_noise_scale, oe.tuning_noise_scale, acet.tuning_noise_scale) == (1.0, 10.0, 1.0)
    assert set(LINEARISED) < set(plain.entries) and not set(LINEARISED) & (
        set(oe.entries) | set(acet.entries)
    )
    how = dict(asked)
    assert how["tiny-plain-20-0"]["start"] is None and how["tiny-plain-20-0"]["attack_ramp"] == 0
    assert how["tiny-oe-4-0"]["start"] is plain.network.whole and how["tiny-oe-4-0"]["attack_ramp"] == 0
    assert how["tiny-acet-4-0"]["start"] is plain.network.whole and how["tiny-acet-4-0"]["attack_ramp"] == 2.0
    assert how["tiny-acet-4-0"]["recipe"] is further
    other = Session(replace(options, seed=1)).study("plain")
    assert not set(LINEARISED) & set(other.entries)


def test_the_number_of_attacked_points(study, monkeypatch):
    seen = []
    monkeypatch.setattr(adversarial, "pgd_confident", lambda module, x, bounds: seen.append(len(x)) or x)
    monkeypatch.setattr(adversarial, "ADAPTIVE_POINTS", 11)
    monkeypatch.setattr(adversarial, "ADAPTIVE_POINTS_OF_AVERAGES", 4)
    study.entries = {key: MULTICLASS[key] for key in ("plain", "dla", "dla-linear", "knn")}
    adversarial.attacked_sets(study)
    assert seen == [30, 30]
    seen.clear()
    found = adversarial.evaluate_adaptive_attacks(study)
    assert seen == [11, 11, 4, 4] and all(set(each) == {"plain", "dla"} for each in found.values())

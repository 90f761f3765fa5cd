"""The table of the default: its numbers are those of the public API, and it says what falls short."""

import copy

import pytest
import torch

import bitbayes as bb
from bitbayes import metrics
from bitbayes.toys import scale_pixels
from paper.experiments import default
from paper.methods import BatchLoader
from paper.options import Options
from paper.report import Report

TABLE = default
NUMBERS = ("prior_variance", "temperature", "near_variance", "beyond_variance")


def by_hand(values, session, key, **options):
    """Assert that a row's numbers are those of `Laplace.fit` and `tune` on the same splits."""
    study = session.study("plain")
    problem, network = study.problem, study.network.whole
    bayes = bb.Laplace(network, **options).fit(BatchLoader(*problem.train), progress=False)
    test_images, noise = scale_pixels(problem.test.images), study.draw_noise(0)
    for trial, found in enumerate(values["trials"]):
        validation, test = study.split(trial)
        bayes.tune(BatchLoader(test_images[validation], problem.test.labels[validation]), progress=False)
        chosen = found["chosen"][key]
        # Sums of float32 in another order: the grid's value is the same, a vertex moves by 1e-4 at most.
        assert chosen["prior_variance"] == bayes.prior_variance
        for name in NUMBERS[1:]:
            assert chosen[name] == pytest.approx(getattr(bayes.settings, name), rel=1e-3), name
        row, labels = found["methods"][key], problem.test.labels[test]
        probabilities, inside = bayes.predict_proba(test_images[test]), bayes.score(test_images[test])
        assert row["accuracy"] == metrics.accuracy(probabilities, labels)
        for name in ("nll", "ece", "brier"):
            assert row[name] == pytest.approx(getattr(metrics, name)(probabilities, labels), abs=1e-3), name
        assert row["mmc"] == pytest.approx(metrics.mmc(probabilities), abs=1e-4)
        outliers = {
            "Fashion-MNIST": scale_pixels(problem.outliers["Fashion-MNIST"].images),
            "Noise": noise,
            "Noise × 2000": 2000 * noise,
            "Test × 2000": 2000 * test_images[test[test < problem.noise_points]],
        }
        assert set(row["outliers"]) == set(outliers) == set(values["sets"])
        for name, inputs in outliers.items():
            numbers, scores = row["outliers"][name], bayes.score(inputs)
            assert numbers["mmc"] == pytest.approx(metrics.mmc(bayes.predict_proba(inputs)), abs=1e-3)
            # A pair of points may change places by rounding.
            assert numbers["auroc"]["score"] == pytest.approx(metrics.auroc(inside, scores), abs=2e-3)
            assert numbers["fpr95"]["score"] == pytest.approx(metrics.fpr95(inside, scores), abs=0.04)


def test_the_last_layers_row_is_that_of_the_public_api(values, made):
    by_hand(values, made["session"], "default")


def test_the_row_of_all_layers_is_that_of_the_public_api(values, made):
    by_hand(values, made["session"], "default-all", layers="all")


def test_a_row_by_draws_is_tuned_once_and_tested_on_all_points(session):
    problem, network = session.problem, session.study("plain").network.whole
    train, (images, labels) = BatchLoader(*problem.train), problem.test

    def fitted():
        made = bb.Laplace(network, layers="all", covariance=bb.Draws(5))
        return made.fit(train, progress=False)

    sets = default.DrawnSets(fitted(), {"test": images, "Noise": images[:7]}, labels)
    rows = torch.arange(30)
    chosen = sets.tune(rows)
    assert sets.tune(rows + 30) == chosen
    bayes = fitted().tune(BatchLoader(images[rows], labels[rows]), progress=False)
    rest = torch.arange(30, 90)
    rated = sets.rate("test", chosen, rest)
    torch.testing.assert_close(rated.probs, bayes.predict_proba(scale_pixels(images[rest])))
    torch.testing.assert_close(rated.own_score, bayes.score(scale_pixels(images[rest])))
    assert len(sets.rate("Noise", chosen, rest - 28).probs) == 5


def test_the_other_rows_are_those_of_the_public_api(values, made):
    study = made["session"].study("plain")
    problem, network = study.problem, study.network.whole
    images = scale_pixels(problem.test.images)
    for trial, found in enumerate(values["trials"]):
        validation, test = study.split(trial)
        labels = problem.test.labels[test]
        scaled = bb.TemperatureScaling(network)
        scaled.fit([(images[validation], problem.test.labels[validation])])
        for key, probabilities in (
            ("plain", network(images[test]).detach().softmax(1)),
            ("temperature", scaled.predict_proba(images[test])),
        ):
            assert found["methods"][key]["nll"] == pytest.approx(metrics.nll(probabilities, labels), rel=1e-4)
            assert found["methods"][key]["ece"] == pytest.approx(metrics.ece(probabilities, labels), abs=1e-4)
        noise, plain = study.draw_noise(0), found["methods"]["plain"]["outliers"]["Noise"]["auroc"]
        energies = [network(each).detach().logsumexp(1) for each in (images[test], noise)]
        assert plain["energy"] == pytest.approx(metrics.auroc(*energies), abs=2e-3)


def test_far_away_the_default_is_at_chance_and_says_so(values):
    """The promises about far away hold on any problem; the others are about large test sets."""
    for trial in values["trials"]:
        for key in ("default", "default-all"):
            for name in ("Noise × 2000", "Test × 2000"):
                found = trial["methods"][key]["outliers"][name]
                assert abs(found["mmc"] - 1 / 3) < 0.02
                assert found["auroc"]["score"] > 0.999
    assert not [each for each in default.misses(values) if "× 2000" in each]


# ---- what falls short, on made-up numbers


def made_up(trials=3):
    """Values that keep every promise, with as little as possible to spare."""

    def method(nll, ece, score_names, auroc):
        return {
            "accuracy": 0.9,
            "nll": nll,
            "ece": ece,
            "brier": 0.1,
            "mmc": 0.9,
            "outliers": {
                name: {
                    "mmc": 0.1,
                    "auroc": dict.fromkeys(score_names, 1.0 if "×" in name else auroc),
                    "fpr95": dict.fromkeys(score_names, 0.2),
                }
                for name in ("Letters", "Noise", "Noise × 2000")
            },
        }

    plain = method(0.5, 0.03, default.SCORES["plain"], 0.95)
    methods = {
        "plain": plain,
        "temperature": method(0.4, 0.01, default.SCORES["temperature"], 0.95),
        "ours": method(0.4, 0.01, default.SCORES["ours"], 0.95),
        "default": method(0.4, 0.01, default.SCORES["default"], 0.95),
    }
    chosen = {"temperature": {"temperature": 1.5}, "default": dict.fromkeys(NUMBERS, 1.0)}
    return {
        "problem": "Made up",
        "classes": 10,
        "near": ["Letters"],
        "far": ["Noise × 2000"],
        "sets": ["Letters", "Noise", "Noise × 2000"],
        "all_layers_points": 2000,
        "not_run": {"default-all": "made up"},
        "trials": [copy.deepcopy({"chosen": chosen, "methods": methods}) for _ in range(trials)],
    }


def change(values, path, *numbers):
    """Set a number of the default in each trial."""
    *places, last = path
    for trial, number in zip(values["trials"], numbers, strict=True):
        there = trial["methods"]["default"]
        for place in places:
            there = there[place]
        there[last] = number


def test_what_keeps_all_promises_misses_nothing():
    assert default.misses(made_up()) == []


AUROC = ("outliers", "Letters", "auroc", "score")
FALLS_SHORT = [
    (("accuracy",), 0.8979, 0.8981, "accuracy 89.79 against 90.00"),
    (("accuracy",), 0.9021, 0.9019, "accuracy 90.21 against 90.00"),
    (("nll",), 0.4081, 0.4079, "NLL 0.4081 against 0.4000"),
    (("ece",), 0.0111, 0.0109, "ECE 1.11 against 1.00"),
    (AUROC, 0.9479, 0.9481, "Letters: AUROC 94.8 against 95.0 by the largest probability"),
    (("outliers", "Noise", "auroc", "score"), 0.9479, 0.9481, "Noise: AUROC 94.8 against 95.0"),
    (("outliers", "Noise × 2000", "auroc", "score"), 0.9989, 0.9991, "Noise × 2000: AUROC 99.9"),
    (("outliers", "Noise × 2000", "mmc"), 0.121, 0.119, "confidence 12.1 against 10.0"),
    (("outliers", "Noise × 2000", "mmc"), 0.079, 0.081, "confidence 7.9 against 10.0"),
]


@pytest.mark.parametrize("path, wrong, right, says", FALLS_SHORT)
def test_each_promise_is_held_to_its_number(path, wrong, right, says):
    values = made_up()
    change(values, path, right, right, right)
    assert default.misses(values) == []
    change(values, path, wrong, wrong, wrong)
    (missed,) = default.misses(values)
    assert missed.startswith("bitbayes (default)") and says in missed


def test_the_energy_counts_on_other_images_alone():
    values = made_up()
    for trial in values["trials"]:
        for name in ("Letters", "Noise"):
            trial["methods"]["plain"]["outliers"][name]["auroc"]["energy"] = 0.96
    (missed,) = default.misses(values)
    assert "Letters: AUROC 95.0 against 96.0 by the energy" in missed
    change(values, AUROC, 0.9551, 0.9551, 0.9551)
    assert default.misses(values) == []


def test_a_likelihood_within_one_standard_error_of_the_difference_is_kept():
    values = made_up()
    change(values, ("nll",), 0.4, 0.42, 0.43)  # gaps of 0, 0.02, 0.03: mean 0.0167, standard error 0.0088
    assert len(default.misses(values)) == 1
    change(values, ("nll",), 0.36, 0.42, 0.46)  # mean 0.0133, standard error 0.0291
    assert default.misses(values) == []


def test_both_kinds_of_layers_are_judged():
    values = made_up()
    for trial in values["trials"]:
        trial["methods"]["default-all"] = {**trial["methods"]["default"], "accuracy": 0.5}
    (missed,) = default.misses(values)
    assert missed.startswith("bitbayes, all layers: accuracy 50.00")


@pytest.mark.parametrize(
    "accuracy, says", [(0.9, " All of it holds."), (0.8, "What does not hold: bitbayes")]
)
def test_the_table_says_whether_all_of_it_holds(accuracy, says, tmp_path):
    values = made_up()
    change(values, ("accuracy",), accuracy, accuracy, accuracy)
    report = Report("default", "made-up", Options(train="digits", output=tmp_path, progress=False))
    values = report.write_numbers(values)
    default.show(values, report)
    (text,) = [path.read_text() for path in report.written if path.suffix == ".md"]
    assert says in text and "Not run: bitbayes, all layers (made up)." in text and "nan" not in text
    assert "Temperature scaling: temperature 1.5" in text

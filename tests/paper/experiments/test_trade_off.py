"""The trade-off: its numbers are those of dense matrices and of the public API, and all of it is drawn."""

import copy
import json
import math
import statistics

import pytest
import torch
from scipy import optimize

import bitbayes as bb
import reference
from bitbayes import metrics
from bitbayes.toys import scale_pixels
from paper.experiments import trade_off
from paper.methods import ignore_edge_warnings
from paper.options import Options
from paper.report import Report

TABLE = trade_off
NEAR = "Fashion-MNIST"
# Of float32 predictions. The ECE of 60 points and the AUROC of 60 × 40 pairs may jump where two numbers are
# equal up to rounding: one point changes its bin, or one pair its order.
NLL, CONFIDENCE, ECE, AUROC = 1e-4, 1e-4, 1e-4, 2 / (60 * 40)


@pytest.fixture
def study(values, made):
    return made["session"].study("plain")


class Dense:
    """The last layer in float64, with a dense covariance."""

    def __init__(self, study):
        self.study, problem, head = study, study.problem, study.network.head
        self.weights = torch.cat([head.weight, head.bias[:, None]], 1).detach().double()
        self.train, self.labels = self.features(problem.train.images), problem.train.labels
        self.sets = {
            "test": self.features(problem.test.images),
            NEAR: self.features(problem.outliers[NEAR].images),
            "far": self.features(2000 * study.draw_noise(0)),
        }

    def features(self, images):
        with torch.no_grad():
            found = self.study.network.backbone(scale_pixels(images)).double()
        return torch.cat([found, torch.ones_like(found[:, :1])], 1)

    def logits(self, name):
        return self.sets[name] @ self.weights.T

    def predict(self, name, prior_variance):
        """Probabilities (n, k) and scores (n,)."""
        k = len(self.weights)
        sigma = reference.covariance("kron", self.weights, self.train, self.labels, prior_variance)
        means, covariances = self.logits(name), reference.logits_covariance(sigma, self.sets[name], k)
        variances = covariances.diagonal(dim1=1, dim2=2)  # (n, k)
        spreads = variances[:, :, None] + variances[:, None] - 2 * covariances  # (n, k, k), of differences
        z = (means[:, :, None] - means[:, None]) / (1 + math.pi / 8 * spreads).sqrt()
        probs = z.neg().logsumexp(2).neg().softmax(1)
        centre = torch.eye(k, dtype=torch.float64) - 1 / k
        variances = (centre @ covariances @ centre).diagonal(dim1=1, dim2=2)
        return probs, (means @ centre / (1 + math.pi / 8 * variances).sqrt()).logsumexp(1)

    def quantities(self, prior_variance, rows):
        (probs, inside), (_, outside), (far, _) = (
            self.predict(name, prior_variance) for name in ("test", NEAR, "far")
        )
        return _quantities(probs[rows], self.study.problem.test.labels[rows], far, inside[rows], outside)


def _quantities(probs, labels, far, inside, outside):
    return {
        "nll": metrics.nll(probs, labels),
        "ece": metrics.ece(probs, labels),
        "far": metrics.mmc(far),
        "auroc": metrics.auroc(inside, outside),
    }


def check(found, expected):
    assert found["nll"] == pytest.approx(expected["nll"], rel=NLL)
    assert found["ece"] == pytest.approx(expected["ece"], abs=ECE)
    assert found["far"] == pytest.approx(expected["far"], abs=CONFIDENCE)
    assert found["auroc"] == {NEAR: pytest.approx(expected["auroc"], abs=AUROC)}


@pytest.mark.parametrize("place", [0, 10, 15, 20])
def test_the_curve_is_that_of_dense_matrices(place, values, study):
    found = values["curve"][place]
    assert found["prior_variance"] == pytest.approx(10 ** (-6 + 0.4 * place))
    assert found["temperature"] == 1
    dense = Dense(study)
    trials = [dense.quantities(found["prior_variance"], study.split(trial)[1]) for trial in range(2)]
    assert trials[0] != trials[1]  # each has test points of its own
    check(found, {name: statistics.fmean(each[name] for each in trials) for name in trials[0]})


def test_the_curve_covers_all_candidates(values):
    variances = [each["prior_variance"] for each in values["curve"]]
    assert len(variances) == 41
    assert (variances[0], variances[-1]) == (pytest.approx(1e-6), pytest.approx(1e10))


@pytest.mark.parametrize("objective", ["nll", "evidence", "ood"])
def test_choices_of_the_prior_variance_lie_on_the_curve(objective, values, study):
    """Each is what `tune` chooses on the trial's validation points and noise, measured on its test points."""
    dense, problem = Dense(study), study.problem
    bayes = bb.Laplace(study.network.head, residual=False)
    bayes.fit([(dense.train[:, :-1].float(), problem.train.labels)], progress=False)
    for trial, found in enumerate(values["trials"]):
        validation, test = study.split(trial)
        noise = dense.features(study.draw_noise(500 + trial))[:, :-1].float()
        with ignore_edge_warnings():
            bayes.tune(
                [(dense.sets["test"][validation, :-1].float(), problem.test.labels[validation])],
                outliers=noise if objective == "ood" else None,
                objective=objective,
                progress=False,
            )
        assert found[objective]["prior_variance"] == bayes.prior_variance
        assert found[objective]["temperature"] == 1
        check(found[objective], dense.quantities(bayes.prior_variance, test))


def test_the_evidence_is_largest_among_the_candidates(values, study):
    dense = Dense(study)

    def evidence(variance):
        return float(reference.log_evidence("kron", dense.weights, dense.train, dense.labels, variance))

    chosen = values["trials"][0]["evidence"]["prior_variance"]
    step = 10 ** (16 / 99)  # of the grid of 100 candidates
    assert evidence(chosen) > max(evidence(chosen * step), evidence(chosen / step))


@pytest.mark.parametrize("method", ["plain", "temperature"])
def test_networks_with_a_temperature(method, values, study):
    dense, labels = Dense(study), study.problem.test.labels
    for trial, found in enumerate(values["trials"]):
        validation, test = study.split(trial)

        def loss(log_temperature, rows=validation):
            probs = (dense.logits("test")[rows] / math.exp(log_temperature)).softmax(1)
            weak = (
                log_temperature / (0.15 if log_temperature < 0 else 0.35)
            ) ** 2 / 2  # of `TemperatureScaling`
            return metrics.nll(probs, labels[rows]) + weak / len(rows)

        best = optimize.minimize_scalar(loss, bounds=(-3, 3), method="bounded", options={"xatol": 1e-7}).x
        temperature = math.exp(best) if method == "temperature" else 1.0
        # A minimum is known to the root of the precision of its value.
        assert found[method]["temperature"] == pytest.approx(temperature, rel=1e-4)
        assert found[method]["prior_variance"] is None
        probs, outside, far = (
            (dense.logits(name) / temperature).softmax(1) for name in ("test", NEAR, "far")
        )
        inside = probs[test]
        check(found[method], _quantities(inside, labels[test], far, inside.amax(1), outside.amax(1)))


def test_the_default_is_that_of_the_public_api(values, study):
    problem = study.problem
    bayes = bb.Laplace(study.network.whole)
    bayes.fit([(scale_pixels(problem.train.images), problem.train.labels)], progress=False)
    images = scale_pixels(problem.test.images)
    outside, far = scale_pixels(problem.outliers[NEAR].images), 2000 * study.draw_noise(0)
    for trial, found in enumerate(values["trials"]):
        validation, test = study.split(trial)
        bayes.tune([(images[validation], problem.test.labels[validation])], progress=False)
        assert found["default"]["prior_variance"] == bayes.prior_variance
        # Sums of float32 in another order move the best temperature by 1e-3 at most.
        assert found["default"]["temperature"] == pytest.approx(bayes.temperature, rel=1e-3)
        probs, labels = bayes.predict_proba(images[test]), problem.test.labels[test]
        scores = bayes.score(images[test]), bayes.score(outside)
        expected = _quantities(probs, labels, bayes.predict_proba(far), *scores)
        check(found["default"], expected)
        assert found["default"]["far"] == pytest.approx(1 / 3, abs=0.02)  # that of a blind guess


# ---- the files


def show(values, tmp_path, stem="digits", train="digits", **options):
    report = Report("trade-off", stem, Options(train=train, output=tmp_path, progress=False, **options))
    trade_off.show(report.write_numbers(copy.deepcopy(values)), report)
    return report


def test_the_table_has_a_row_for_each_choice(values, tmp_path):
    report = show(values, tmp_path)
    lines = (report.folder / "digits.md").read_text().splitlines()
    rows = {line.split(" | ")[0].strip("| *"): line for line in lines if line.startswith("| ")}
    assert list(rows)[2:] == list(trade_off.TITLES.values())
    temperature = rows["Temperature scaling"].strip("| ").split(" | ")
    found = [trial["temperature"] for trial in values["trials"]]
    assert temperature[1] == "–"
    assert temperature[2] == " to ".join(f"{each:.3g}" for each in sorted(t["temperature"] for t in found))
    mean, deviation = (pick(t["nll"] for t in found) for pick in (statistics.fmean, statistics.stdev))
    assert temperature[3] == f"{mean:.4f} ± {deviation:.4f}"
    mean, deviation = (
        pick(100 * t["auroc"][NEAR] for t in found) for pick in (statistics.fmean, statistics.stdev)
    )
    assert temperature[6] == f"{mean:.1f} ± {deviation:.1f}"


def test_one_picture_shows_all_data_sets_that_were_measured(values, tmp_path, monkeypatch):
    drawn = []

    def draw_all(measured):
        drawn.append([each["problem"] for each in measured])
        return original(measured)

    original = trade_off.draw_all
    monkeypatch.setattr(trade_off, "draw_all", draw_all)
    for stem in ("svhn", "cifar10", "digits"):
        report = show({**values, "problem": stem.upper()}, tmp_path, stem, stem)
    assert drawn == [["SVHN"], ["CIFAR10", "SVHN"], ["DIGITS", "CIFAR10", "SVHN"]]
    assert {path.name for path in report.written} == {
        *(f"digits.{suffix}" for suffix in ("json", "md", "png", "pdf")),
        *("all.png", "all.pdf"),
    }
    assert all(path.stat().st_size > 1000 for path in report.written)


def test_runs_with_other_settings_are_not_in_that_picture(values, tmp_path):
    report = show(values, tmp_path, "digits-seed1", seed=1)
    assert {path.suffix for path in report.written} == {".json", ".md", ".png", ".pdf"}
    assert not (report.folder / "all.png").exists()
    show({**values, "problem": "Digits"}, tmp_path)
    (other,) = trade_off.read_measured(report)
    assert other["problem"] == "Digits"


def test_the_pictures_show_each_choice_where_its_numbers_are(values, tmp_path):
    read = json.loads((show(values, tmp_path).folder / "digits.json").read_text())
    second = {**read, "problem": "Second"}
    figure = trade_off.draw_all([read, second])
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["Tiny", "Second", "", ""]
    (legend,) = figure.legends
    assert legend.get_texts()[0].get_text() == "bitbayes (default)"
    expected = {
        trade_off.NAMES[key]: (
            100 * statistics.fmean(trial[key]["far"] for trial in read["trials"]),
            100 * statistics.fmean(trial[key]["ece"] for trial in read["trials"]),
        )
        for key in trade_off.TITLES
    }
    for axes in (figure.axes[1], trade_off.draw(read).axes[0]):
        lines = {line.get_label(): line.get_xydata() for line in axes.lines}
        for name, point in expected.items():
            assert lines[name].tolist() == [pytest.approx(point)]


@pytest.mark.parametrize("sets", [1, 2, 5])
def test_no_text_is_cut_off(sets, values):
    for figure in (trade_off.draw(values), trade_off.draw_all([values] * sets)):
        figure.draw_without_rendering()
        used, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
        assert used.x0 >= 0 and used.y0 >= 0 and used.x1 <= width and used.y1 <= height


def test_a_perfect_calibration_can_be_drawn(values):
    perfect = copy.deepcopy(values)
    for trial in perfect["trials"]:
        trial["default"]["ece"] = 0.0
    trade_off.draw(perfect).draw_without_rendering()

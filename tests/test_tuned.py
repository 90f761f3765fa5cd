"""What is kept of the data of `tune`: against plain loops, and through copies, files and state dicts."""

import copy
import json
import math
import pickle
from dataclasses import asdict

import pytest
import torch

import bitbayes as bb
import classifiers
import reference
from bitbayes.errors import FileError
from bitbayes.fitted import DataEntry
from bitbayes.model import Batch, DataDigest
from bitbayes.tuned import QUANTILES, TunedData, seen_data

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.mark.parametrize("n, distinct", [(1, 1), (7, 3), (200, 200), (1000, 40), (1001, 1001)])
def test_quantiles_and_counts_are_those_of_a_loop(n, distinct):
    torch.manual_seed(n)
    values = torch.rand(distinct)[torch.randint(distinct, (n,))]
    wrong = torch.rand(n) < 0.3
    found = TunedData.of((), values, wrong.double())
    ordered = sorted(values.tolist(), reverse=True)
    expected = sorted(
        {ordered[math.ceil(i * n / QUANTILES) - 1] for i in range(1, QUANTILES + 1)}, reverse=True
    )
    assert list(found.confidences) == expected and found.points == n
    for place, t in enumerate(found.confidences):
        kept = [i for i in range(n) if values[i].item() >= t]
        assert found.accepted[place] == len(kept)
        assert found.errors[place] == sum(bool(wrong[i]) for i in kept)
    assert found.accepted[-1] == n


@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("objective", ["calibrated", "nll"])
@pytest.mark.parametrize("options", [{}, {"predictive": "meanfield"}, {"layers": "all"}])
def test_tune_keeps_the_confidences_of_its_final_predictions(k, objective, options):
    if k == 1 and "predictive" in options:
        return
    bayes, (x, y) = classifiers.trained(k, n=90, **options)
    bayes.tune(reference.loader(x, y, 20), objective=objective, progress=False)
    tuned, probabilities = bayes._tuned, bayes.predict_proba(x)
    wrong = probabilities.argmax(1) != y
    expected = TunedData.of((), probabilities.amax(1), wrong)
    # Over all layers, tuning interpolates deviations between priors, to 2%.
    tolerance = 0.02 if bayes.layers == "all" else 1e-9
    assert tuned.points == 90
    if bayes.layers == "last":
        assert tuned.accepted == expected.accepted and tuned.errors == expected.errors
    torch.testing.assert_close(
        torch.tensor(tuned.confidences), torch.tensor(expected.confidences), rtol=0, atol=tolerance
    )
    digest = DataDigest()
    digest.add(Batch(x, y, "all"))
    assert tuned.entries == (DataEntry.of(90, int(digest)),)


def test_in_single_precision_a_quantile_is_a_number_of_that_precision():
    """So that `confidence(x) >= t`, which torch compares in that precision, rounds no t."""
    bayes, (x, y) = classifiers.trained(3, dtype=torch.float32, n=90)
    bayes.tune([(x, y)], progress=False)
    found = torch.tensor(bayes._tuned.confidences, dtype=torch.float64)
    assert torch.equal(found.float().double(), found) and len(found) > 80


def test_several_labels_and_values():
    torch.manual_seed(0)
    x = torch.randn(60, 4)
    y = (x[:, :2] > 0).long()
    bayes = bb.Laplace(torch.nn.Linear(4, 2), likelihood="multilabel").fit([(x[:20], y[:20])])
    bayes.tune([(x[20:], y[20:])], progress=False)
    wrong = ((bayes.predict_proba(x[20:]) > 0.5).long() != y[20:]).any(1)
    assert bayes._tuned.errors[-1] == int(wrong.sum()) and bayes._tuned.points == 40
    values = bb.Laplace(torch.nn.Linear(4, 1), likelihood="gaussian").fit([(x[:20], x[:20, :1])])
    values.tune([(x[20:], x[20:, :1] + 0.1)], progress=False)
    assert values._tuned.confidences == () and values._tuned.entries[0].count == 40


def test_the_evidence_looks_at_no_data():
    bayes, _ = classifiers.trained(3)
    bayes.tune(objective="evidence")
    assert bayes._tuned is None


def test_it_comes_back_from_copies_files_and_state_dicts(tmp_path):
    bayes, (x, y) = classifiers.trained(3, n=90)
    bayes.tune([(x, y)], progress=False)
    bayes.save(tmp_path / "b")
    other = bb.Laplace(copy.deepcopy(bayes.model))
    other.load_state_dict(bayes.state_dict())
    every = [copy.copy(bayes), copy.deepcopy(bayes), pickle.loads(pickle.dumps(bayes)), other]
    every.append(bb.Laplace.load(tmp_path / "b", bayes.model))
    every.append(bb.merge(bayes))
    assert all(each._tuned == bayes._tuned for each in every)
    assert bayes._tuned.points == 90
    untuned = bb.Laplace(copy.deepcopy(bayes.model), prior_variance=1.0).fit([(x, y)])
    other.load_state_dict(untuned.state_dict())
    assert other._tuned is None


def test_read_refuses_what_does_not_fit():
    bayes, (x, y) = classifiers.trained(3, n=90)
    bayes.tune([(x, y)], progress=False)
    values = json.loads(json.dumps(asdict(bayes._tuned)))
    assert TunedData.read(values) == bayes._tuned
    with pytest.raises(ValueError, match="counts"):
        TunedData.read({**values, "errors": values["errors"][1:]})


def test_a_damaged_part_of_a_file_is_a_file_error(tmp_path):
    from bitbayes.io.tensor_file import read_tensors, write_tensors

    bayes, (x, y) = classifiers.trained(3, n=90)
    bayes.tune([(x, y)], progress=False)
    bayes.save(tmp_path / "b")
    file = read_tensors(tmp_path / "b", "save again")
    header = json.loads(file.metadata["bitbayes"])
    header["tuned"]["accepted"] = ["many"]
    write_tensors(tmp_path / "c", file.tensors, {"bitbayes": json.dumps(header)})
    with pytest.raises(FileError, match="damaged header"):
        bb.Laplace.load(tmp_path / "c", bayes.model)


def test_seen_data_are_each_and_all_together():
    first, second, third = (DataEntry.of(1, digest) for digest in (5, 2**63, 2**63))
    tuned = TunedData((third,))
    found = seen_data([first, second], tuned)
    # The sum of all is 5 modulo 2⁶⁴, which the first is, too.
    assert found == {5: "`fit`", 2**63 + 5: "`fit`", 2**63: "`tune`"}
    assert seen_data([first], TunedData((DataEntry.of(2, 7),)))[12] == "`fit` and `tune`"
    assert seen_data([first], None)[5] == "`fit`"

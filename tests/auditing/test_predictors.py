"""What can be audited, and what is said about what cannot."""

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bitbayes as bb
from bitbayes.auditing.predictors import Columns, Predictor, name_columns, rated_by
from bitbayes.auditing.reading import Form
from bitbayes.errors import ArgumentError, BitbayesError, DataError, ModelError, NotFittedError

X = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
NET = nn.Linear(3, 4)


def rate(predictor: Predictor, form: Form | None = None) -> Any:
    return rated_by(predictor, form or Form())(X)


def softmax(x: Tensor) -> Tensor:
    return x.softmax(1)


def test_the_first_network_comes_first_and_gets_columns_of_its_own() -> None:
    other = nn.Linear(3, 4)
    columns = name_columns({"call": softmax, "net": NET, "other": other})
    assert (columns.network, columns.base, list(columns.others)) == (NET, "net", ["call", "other"])
    added = ["temperature", "energy", "bitbayes"]
    assert columns.names(train=True, validation=True) == ["net", *added, "call", "other", "paper"]
    assert columns.names(train=False, validation=True) == ["net", "temperature", "energy", "call", "other"]
    assert columns.names(train=True, validation=False) == ["net", "energy", "call", "other"]
    assert name_columns(NET) == Columns(NET, "plain", {})


def test_without_a_network_all_are_taken_as_they_are() -> None:
    columns = name_columns({"temperature": softmax, "b": softmax})
    assert columns.names(train=True, validation=True) == ["temperature", "b"]
    assert columns.base == "temperature"
    assert name_columns(softmax).base == "predictor"


def test_probabilities_and_logits_give_the_same() -> None:
    probs, by = rate(Predictor(softmax))
    torch.testing.assert_close(probs, X.softmax(1))
    assert torch.equal(by, probs.amax(1))
    torch.testing.assert_close(rate(Predictor(lambda x: x, output="logits")).probs, X.softmax(1))
    one = rate(Predictor(lambda x: x[:, 0], output="logits")).probs  # p₁ = σ(f)
    torch.testing.assert_close(one[:, 1], X[:, 0].sigmoid())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("output", ["probabilities", "logits"])
def test_half_precision_is_measured_as_probabilities(dtype: torch.dtype, output: Any) -> None:
    call = Predictor(lambda x: (x.softmax(1) if output == "probabilities" else x).to(dtype), output=output)
    probs = rate(call).probs
    torch.testing.assert_close(probs, X.softmax(1), atol=0.02, rtol=0)
    assert bb.metrics.nll(probs.double(), torch.zeros(6, dtype=torch.int64)) > 0


def test_a_function_gets_the_inputs_in_the_form_of_the_data() -> None:
    seen: list[Any] = []

    def call(x: Any) -> Any:
        seen.append(x)
        return np.full((6, 2), 0.5)

    rate(Predictor(call), Form(arrays=True))
    rate(Predictor(call, score=lambda x: x[:, 0]))
    rated_by(Predictor(call), Form(arrays=True, places=True))({0: X, 1: X})
    rated_by(Predictor(call), Form())({"a": X, "b": "text"})
    assert isinstance(seen[0], np.ndarray) and np.array_equal(seen[0], X.numpy())
    assert isinstance(seen[1], Tensor) and torch.equal(seen[1], X)
    assert isinstance(seen[2], tuple) and isinstance(seen[2][1], np.ndarray)
    assert torch.equal(seen[3]["a"], X) and seen[3]["b"] == "text"


def test_a_score_ranks() -> None:
    rated = rate(Predictor(softmax, score=lambda x: np.arange(6)))
    assert rated.scores.tolist() == [0, 1, 2, 3, 4, 5]
    columns = name_columns({"a": Predictor(softmax, score=softmax), "b": softmax})
    assert columns.methods(Form())[1] == {"a": "score", "b": "confidence"}


@pytest.mark.parametrize(
    "predictor, message",
    [
        (Predictor(lambda x: 3 * x.softmax(1)), r"sums to 3, so .* bb.Predictor\(call, output=\"logits\"\)"),
        (Predictor(lambda x: torch.tensor([[2.0, -1.0]] * 6)), r"holds negative numbers"),
        (Predictor(lambda x: x[:, 0]), r"shape \(6,\) for 6 inputs: expected one row of probabilities"),
        (Predictor(lambda x: x[:2].softmax(1)), r"shape \(2, 3\) for 6 inputs"),
        (Predictor(lambda x: x[:, :1], output="probabilities"), r"shape \(6, 1\)"),
        (Predictor(lambda x: x[None], output="logits"), r"shape \(1, 6, 3\) for 6 inputs"),
        (Predictor(lambda x: "yes"), r"it returned a str: expected a tensor or an array"),
        (Predictor(softmax, score=lambda x: x), r"its score has shape \(6, 3\): expected \(6,\)"),
    ],
)
def test_what_a_function_returns_is_checked(predictor: Predictor, message: str) -> None:
    with pytest.raises(DataError, match=message):
        rate(predictor)


class Classifier:
    predict_proba = staticmethod(softmax)


@pytest.mark.parametrize(
    "models, kind, message",
    [
        ({}, ArgumentError, "models is empty"),
        (3, ModelError, r"models\['predictor'\]: a int is no predictor: give a torch.nn.Module"),
        ({"a": Classifier()}, ArgumentError, r"models\['a'\]: .* give bb.Predictor\(clf.predict_proba\)"),
        ({1: softmax}, ArgumentError, "models has the name 1: give texts"),
        ({" ": softmax}, ArgumentError, "models has the name ' '"),
        ({"a b": softmax, "a  b": softmax}, ArgumentError, "two predictors that are called 'a b'"),
        ({"energy": softmax, "net": NET}, ArgumentError, "'energy', as one that the audit adds .* 'net'"),
        ({"paper": NET}, ArgumentError, "'paper', as one that the audit adds"),
        ({"a": bb.Laplace(NET)}, NotFittedError, r"models\['a'\]: "),
    ],
)
def test_what_cannot_be_audited_is_said(models: Any, kind: type[BitbayesError], message: str) -> None:
    with pytest.raises(kind, match=message):
        name_columns(models)


def test_regression_and_several_labels_are_referred_to_evaluate_and_plots() -> None:
    data = [(X, torch.randn(6, 4))]
    values = bb.Laplace(NET, likelihood="gaussian").fit(data)
    with pytest.raises(ArgumentError, match=r"likelihood='gaussian', and the audit .*`evaluate.*`bb.plots"):
        name_columns(values)
    several = bb.Laplace(NET, likelihood="multilabel").fit([(X, torch.ones(6, 4))])
    with pytest.raises(ArgumentError, match=r"one label for each input. Use `Laplace.evaluate`"):
        name_columns({"several": several})


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"call": 3}, "call is a int, which cannot be called"),
        ({"call": Classifier()}, "give clf.predict_proba"),
        ({"call": softmax, "score": 1}, "score is a int"),
        ({"call": softmax, "output": "logit"}, "output='logit' is not known, did you mean 'logits'"),
    ],
)
def test_a_predictor_is_checked_when_it_is_made(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        Predictor(**arguments)

"""State dicts carry what was fitted and chosen, and conversions do not reach the model."""

import io
import warnings

import pytest
import torch
from safetensors.torch import load, save
from torch import nn

import bitbayes as bb
from bitbayes.errors import KeptDtypeWarning, NotFittedError, StateDictWarning
from bitbayes.model.running.wrapper import ModelWrapper
from classifiers import points, relu_mlp


def fitted(**options):
    x, y = points()
    bayes = bb.Laplace(relu_mlp(), **options).fit([(x, y)])
    bayes.prior_variance, bayes.temperature = 3.0, 1.5
    return bayes, x


def through_torch(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def through_safetensors(state):
    return load(save(dict(state)))


@pytest.mark.parametrize("through", [through_torch, through_safetensors])
@pytest.mark.parametrize("layers", ["last", "all"])
def test_a_state_dict_keeps_what_was_fitted_and_chosen(layers, through):
    bayes, x = fitted(layers=layers, predictive="meanfield", residual=True)
    torch.manual_seed(9)
    other = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    again = bb.Laplace(other, layers=layers, residual=True)
    assert str(again.load_state_dict(through(bayes.state_dict()))) == "<All keys matched successfully>"
    assert again.settings == bayes.settings and again.predictive == "meanfield"
    assert torch.equal(again.predict_proba(x), bayes.predict_proba(x))
    assert torch.equal(again.score(x), bayes.score(x))


def test_inside_of_a_module():
    (bayes, x), (other, _) = fitted(), fitted()
    outer = nn.ModuleDict({"body": nn.Linear(2, 2), "bayes": bayes})
    assert "bayes._extra_state" in outer.state_dict()
    other.prior_variance = 77.0
    nn.ModuleDict({"body": nn.Linear(2, 2), "bayes": other}).load_state_dict(outer.state_dict())
    assert other.prior_variance == 3.0 and torch.equal(other.predict_proba(x), bayes.predict_proba(x))


def test_options_that_are_functions():
    x, y = points()
    options = {"output": lambda out: out, "prior_variance": 1.0}
    bayes = bb.Laplace(relu_mlp(), **options).fit([(x, y)])
    again = bb.Laplace(relu_mlp(), **options)
    again.load_state_dict(bayes.state_dict())
    assert torch.equal(again.predict_proba(x), bayes.predict_proba(x))


def test_a_state_dict_of_nothing_fitted_leaves_nothing_fitted():
    bayes, x = fitted()
    bayes.load_state_dict(bb.Laplace(relu_mlp()).state_dict())
    with pytest.raises(NotFittedError):
        bayes.predict_proba(x)


def test_a_state_dict_without_a_posterior_is_no_error():
    bayes, x = fitted()
    expected = bayes.predict_proba(x)
    old = {name: each for name, each in bayes.state_dict().items() if name != "_extra_state"}
    for each in (bayes, bb.Laplace(relu_mlp())):
        with pytest.warns(StateDictWarning, match="it has none"):
            assert each.load_state_dict(old).missing_keys == []
    assert torch.equal(bayes.predict_proba(x), expected)


def test_missing_and_unexpected_weights_are_errors_as_ever():
    bayes, _ = fitted()
    state = bayes.state_dict()
    del state["model.0.weight"]
    with pytest.raises(RuntimeError, match=r"Missing key.*model\.0\.weight"):
        bayes.load_state_dict(state)
    with pytest.raises(RuntimeError, match="Unexpected key"):
        bayes.load_state_dict({**bayes.state_dict(), "more": torch.zeros(1)})


def spoilt(state):
    state["_extra_state"][-1] += 1
    return state


UNFIT = {
    "other weights": lambda state: {**state, "model.2.bias": state["model.2.bias"] + 1},
    "damaged": spoilt,
    "no bytes": lambda state: {**state, "_extra_state": torch.ones(5)},
    "no tensor": lambda state: {**state, "_extra_state": {"a": 1}},
}


@pytest.mark.parametrize("name", UNFIT)
def test_a_posterior_that_does_not_fit_is_warned_of(name):
    bayes, x = fitted()
    settings = bayes.settings
    with pytest.warns(StateDictWarning, match="nothing fitted was taken"):
        bayes.load_state_dict(UNFIT[name](bayes.state_dict()))
    with pytest.raises(NotFittedError):
        bayes.predict_proba(x)
    assert bayes.settings == settings


def test_a_posterior_of_other_options_is_warned_of():
    bayes, _ = fitted()
    with pytest.warns(StateDictWarning, match=r"other options \(structure\)"):
        bb.Laplace(relu_mlp(), structure="diag").load_state_dict(bayes.state_dict())


CONVERSIONS = {
    "half": lambda module: module.half(),
    "double": lambda module: module.double(),
    "bfloat16": lambda module: module.bfloat16(),
    "type": lambda module: module.type(torch.float64),
    "to": lambda module: module.to(torch.float64),
    "to both": lambda module: module.to("cpu", torch.float64),
}


@pytest.mark.parametrize("name", CONVERSIONS)
def test_conversions_do_not_reach_the_model(name):
    bayes, x = fitted()
    expected = bayes.predict_proba(x)
    before = {key: each.clone() for key, each in bayes.model.state_dict().items()}
    outer = nn.Sequential(nn.Linear(2, 2), bayes)
    for module in (bayes, outer):
        with pytest.warns(KeptDtypeWarning, match="its model keeps its own"):
            assert CONVERSIONS[name](module) is module
    assert outer[0].weight.dtype != torch.float32
    for key, each in bayes.model.state_dict().items():
        assert each.dtype == torch.float32 and torch.equal(each, before[key])
    assert torch.equal(bayes.predict_proba(x), expected)


def test_devices_are_changed_and_the_dtype_stays():
    bayes, _ = fitted()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bayes.to("cpu") is bayes and bayes.float() is bayes
        bayes.to("meta")
    assert {each.device.type for each in bayes.model.parameters()} == {"meta"}
    bayes, _ = fitted()
    with pytest.warns(KeptDtypeWarning):
        bayes.to("meta", torch.float64)
    assert {(each.device.type, each.dtype) for each in bayes.model.parameters()} == {("meta", torch.float32)}


class Words(ModelWrapper):
    """It knows some bytes, and learns no more than the first half of those that end with a dot."""

    def __init__(self, known=b""):
        super().__init__()
        self.model, self.known = nn.Linear(1, 1), known

    def _knowledge(self):
        return self.known

    def _forget(self):
        self.known = b""

    def _learn(self, content):
        self.known = content
        if content.endswith(b"."):
            self.known = content[: len(content) // 2]
            raise ValueError("no more")


def test_what_was_learned_in_part_is_forgotten():
    words = Words(b"old")
    words.load_state_dict(Words(b"new").state_dict())
    assert words.known == b"new"
    with pytest.warns(StateDictWarning, match="no more"):
        words.load_state_dict(Words(b"newer.").state_dict())
    assert words.known == b""

"""The post-processor, called as OpenOOD's evaluator (version 1.5) calls it, which itself is not needed."""

import copy
import importlib.util
import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import bitbayes as bb
from bitbayes.errors import ArgumentError, DataError, ModelError, NotFittedError
from bitbayes.openood import LaplacePostprocessor
from classifiers import points, relu_mlp

# Of sums in another order, in float64. The numbers that `tune` finds are the same function of such sums.
ROUNDING = 1e-7


class Images(Dataset):
    """Items as OpenOOD's data sets give them: mappings, with more in them than is needed."""

    def __init__(self, data, label):
        self.data, self.label = data, label

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        item = {"data": self.data[index], "label": self.label[index], "index": index}
        return {**item, "image_name": f"{index}.png", "data_aux": 0 * self.data[index]}


class Evaluator:
    """What OpenOOD's `Evaluator` asks of a post-processor, and in which order.

    When it is made: `setup` with the loaders of the data and of the outliers; then, if `APS_mode` is set and
    `hyperparam_search_done` is not, a search that scores outliers. In `eval_ood`: the network is set to eval
    mode, and `inference(net, loader, progress)` is called for the test data and for every set of outliers.
    Their labels are replaced by −1, and the arrays are joined.
    """

    def __init__(self, net, loaders, postprocessor):
        postprocessor.setup(net, loaders["id"], loaders["ood"])
        assert not postprocessor.APS_mode or postprocessor.hyperparam_search_done
        self.net, self.loaders, self.postprocessor = net, loaders, postprocessor

    def eval_ood(self, progress=False):
        self.net.eval()
        data = self.postprocessor.inference(self.net, self.loaders["id"]["test"], progress)
        near = self.postprocessor.inference(self.net, self.loaders["ood"]["near"]["noise"], progress)
        near = near[0], near[1], -1 * np.ones_like(near[2])
        return [np.concatenate(pair) for pair in zip(data, near, strict=True)]


def loader(x, y):
    return DataLoader(Images(x, y), batch_size=16)


def case(k=3):
    """A network, loaders as OpenOOD has them, and their tensors by name."""
    x, y = points(160, k=k, dtype=torch.float64)
    noise = 10 * torch.randn(30, 4, dtype=torch.float64)
    sets = {"train": (x[:80], y[:80]), "val": (x[80:120], y[80:120]), "test": (x[120:], y[120:])}
    loaders = {"id": {name: loader(*each) for name, each in sets.items()}}
    loaders["ood"] = {"val": Refusing(), "near": {"noise": loader(noise, -torch.ones(30).long())}}
    return relu_mlp(k, torch.float64), loaders, {**sets, "noise": (noise, None)}


class Refusing:
    """Outliers to choose by, which nobody may look at."""

    def __iter__(self):
        raise AssertionError("the post-processor looked at outliers before the test")


def by_hand(net, sets, **options):
    return bb.Laplace(net, **options).fit([sets["train"]]).tune([sets["val"]])


@pytest.mark.parametrize(
    "k, options",
    [(3, {}), (1, {}), (70, {}), (3, {"predictive": "probit", "structure": "full"}), (3, {"layers": "all"})],
)
def test_the_evaluator_gets_scores_and_predictions_of_laplace(k, options):
    net, loaders, sets = case(k)
    prediction, confidence, label = Evaluator(net, loaders, LaplacePostprocessor(**options)).eval_ood()
    bayes, x = by_hand(net, sets, **options), torch.cat([sets["test"][0], sets["noise"][0]])
    np.testing.assert_allclose(confidence, bayes.score(x).numpy(), rtol=ROUNDING)
    probabilities = bayes.predict_proba(x)
    # The label is that of the largest probability, but for ties.
    chosen = probabilities.gather(1, torch.from_numpy(prediction)[:, None])[:, 0]
    assert bool((chosen >= probabilities.amax(1) - ROUNDING).all())
    assert (prediction == probabilities.argmax(1).numpy()).mean() > 0.9
    assert confidence.dtype == np.float64 and prediction.dtype == label.dtype == np.int64
    assert label.tolist() == sets["test"][1].tolist() + 30 * [-1]


def test_labels_may_be_those_of_drawn_networks():
    net, loaders, sets = case()
    postprocessor = LaplacePostprocessor(layers="all", predictive="sampled_networks")
    postprocessor.setup(net, loaders["id"], loaders["ood"])
    x = sets["test"][0]
    torch.manual_seed(3)
    prediction, confidence = postprocessor.postprocess(net, x)
    torch.testing.assert_close(confidence, postprocessor.bayes.score(x))
    torch.manual_seed(3)
    assert torch.equal(prediction, postprocessor.bayes.predict_proba(x).argmax(1))


@pytest.mark.parametrize("layers", ["last", "all"])
def test_one_forward_pass_gives_both(layers):
    """Over all layers a pass differentiates too: as many calls as for the score alone."""
    net, loaders, sets = case()
    calls = []

    class Counting(nn.ReLU):
        def forward(self, x):
            calls.append(len(x))
            return super().forward(x)

    net[1] = Counting()
    postprocessor = LaplacePostprocessor(layers=layers, residual=False)
    postprocessor.setup(net, loaders["id"], loaders["ood"])
    calls.clear()
    postprocessor.bayes.score(sets["test"][0])
    alone = list(calls)
    calls.clear()
    postprocessor.postprocess(net, sets["test"][0])
    assert calls == alone and (layers == "all" or calls == [40])


def test_a_second_setup_of_the_same_network_changes_nothing():
    net, loaders, _ = case()
    postprocessor = LaplacePostprocessor()
    postprocessor.setup(net, loaders["id"], loaders["ood"])
    first = postprocessor.bayes
    postprocessor.setup(nn.DataParallel(net) if not torch.cuda.is_available() else net, {}, {})
    assert postprocessor.bayes is first
    other = copy.deepcopy(net)
    postprocessor.setup(other, loaders["id"], loaders["ood"])
    assert postprocessor.bayes is not first and postprocessor.bayes.model is other


class Named(nn.Module):
    """A network that returns its logits under a name."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return {"classes": self.net(x), "other": x}


def test_a_part_of_what_the_network_returns():
    net, loaders, sets = case()
    named, postprocessor = Named(net), LaplacePostprocessor(output="classes")
    postprocessor.setup(named, loaders["id"], loaders["ood"])
    first = postprocessor.bayes
    postprocessor.setup(named, {}, {})
    assert postprocessor.bayes is first
    _, score = postprocessor.postprocess(named, sets["test"][0])
    torch.testing.assert_close(score, by_hand(net, sets).score(sets["test"][0]), rtol=ROUNDING, atol=0)


def test_a_network_that_was_trained_further_is_fitted_again():
    net, loaders, sets = case()
    postprocessor = LaplacePostprocessor()
    postprocessor.setup(net, loaders["id"], loaders["ood"])
    with torch.no_grad():
        net[2].weight.mul_(2)
    with pytest.raises(ModelError, match="the model has changed since it was fitted"):
        postprocessor.postprocess(net, sets["test"][0])
    postprocessor.setup(net, loaders["id"], loaders["ood"])
    _, confidence = postprocessor.postprocess(net, sets["test"][0])
    torch.testing.assert_close(confidence, by_hand(net, sets).score(sets["test"][0]), rtol=ROUNDING, atol=0)


def test_the_network_and_its_mode_stay_as_they_are():
    net, loaders, sets = case()
    before = copy.deepcopy(net.state_dict())
    net.train()
    postprocessor = LaplacePostprocessor()
    postprocessor.setup(net, loaders["id"], loaders["ood"])
    postprocessor.postprocess(net, sets["test"][0])
    assert net.training and all(torch.equal(before[name], value) for name, value in net.state_dict().items())


def test_hyperparameters_are_the_numbers_of_laplace():
    net, loaders, sets = case()
    postprocessor = LaplacePostprocessor(config := object())
    assert postprocessor.config is config
    postprocessor.setup(net, loaders["id"], loaders["ood"])
    bayes = postprocessor.bayes
    chosen = postprocessor.get_hyperparam()
    assert chosen[:4] == [bayes.prior_variance, bayes.temperature, bayes.near_variance, bayes.beyond_variance]
    settings, (_, before) = bayes.settings, postprocessor.postprocess(net, sets["test"][0])
    postprocessor.set_hyperparam([2.0, 3.0])
    assert postprocessor.get_hyperparam() == [2.0, 3.0, 0.0, 0.0, {}, {}, None, None, 1.0, *[None] * 4]
    expected = bb.Laplace(net, prior_variance=2.0).fit([sets["train"]])
    expected.temperature = 3.0
    _, confidence = postprocessor.postprocess(net, sets["test"][0])
    torch.testing.assert_close(confidence, expected.score(sets["test"][0]), rtol=ROUNDING, atol=0)
    postprocessor.set_hyperparam(chosen)
    assert bayes.settings == settings
    assert torch.equal(postprocessor.postprocess(net, sets["test"][0])[1], before)


def test_other_names_of_the_training_data():
    net, loaders, _ = case()
    loaders["id"]["main_train"] = loaders["id"].pop("train")
    postprocessor = LaplacePostprocessor()
    postprocessor.setup(net, loaders["id"], loaders["ood"])
    assert "fitted on 80 points" in repr(postprocessor.bayes)


# ---- mistakes


def test_before_setup_it_says_what_to_do():
    net, loaders, sets = case()
    postprocessor = LaplacePostprocessor()
    for call in (
        lambda: postprocessor.postprocess(net, sets["test"][0]),
        lambda: postprocessor.inference(net, loaders["id"]["test"], False),
        postprocessor.get_hyperparam,
        lambda: postprocessor.set_hyperparam([1.0, 1.0, 0.0, 0.0]),
    ):
        with pytest.raises(NotFittedError, match="not set up yet: call `setup` first"):
            call()
    postprocessor.setup(net, loaders["id"], loaders["ood"])
    with pytest.raises(ModelError, match="set up for another network"):
        postprocessor.postprocess(relu_mlp(), sets["test"][0])


def test_loaders_that_do_not_fit_are_refused():
    net, loaders, sets = case()
    postprocessor = LaplacePostprocessor()
    with pytest.raises(DataError, match=r"has the keys \['test', 'val'\]: expected 'train' among them"):
        postprocessor.setup(net, {name: loaders["id"][name] for name in ("val", "test")}, {})
    with pytest.raises(DataError, match=r"has the keys \['train'\]: expected 'val' among them"):
        postprocessor.setup(net, {"train": loaders["id"]["train"]}, {})
    with pytest.raises(DataError, match=r"batch 0 is a tuple and no mapping: expected OpenOOD's \{'data'"):
        postprocessor.setup(net, {"train": [sets["train"]], "val": [sets["val"]]}, {})
    with pytest.raises(DataError, match=r"batch 0 is a dict with the keys \['x'\]"):
        postprocessor.setup(net, {"train": [{"x": 1}], "val": []}, {})
    with pytest.raises(ArgumentError, match="model is a dict"):
        postprocessor.setup({"backbone": net}, loaders["id"], {})
    assert postprocessor.bayes is None
    postprocessor.setup(net, loaders["id"], {})
    with pytest.raises(DataError, match="the loader is empty"):
        postprocessor.inference(net, [], False)


# ---- beside OpenOOD


def imported_beside(monkeypatch, package):
    """The module, imported afresh where `openood.postprocessors` is this module, or None: not installed."""
    monkeypatch.setitem(sys.modules, "openood", package and ModuleType("openood"))
    monkeypatch.setitem(sys.modules, "openood.postprocessors", package)
    spec = importlib.util.find_spec("bitbayes.openood")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_is_one_of_openoods_where_that_is_installed(monkeypatch):
    """The evaluator raises on what is no `BasePostprocessor`."""

    class BasePostprocessor:
        def __init__(self, config):
            raise AssertionError("some versions look into the config, which may be None here")

    package = ModuleType("openood.postprocessors")
    package.BasePostprocessor = BasePostprocessor
    assert isinstance(imported_beside(monkeypatch, package).LaplacePostprocessor(), BasePostprocessor)
    alone = imported_beside(monkeypatch, None).LaplacePostprocessor
    assert alone.__bases__ == (object,)


def test_it_is_reachable():
    assert bb.openood.LaplacePostprocessor is LaplacePostprocessor

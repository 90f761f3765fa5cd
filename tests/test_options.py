"""Options that do not exist or do not go together, and numbers that can be set at any time."""

import json
import math

import numpy
import pytest
import torch

import bitbayes as bb
import dense
from bitbayes.errors import ArgumentError, FileError, ModelError, NotFittedError
from bitbayes.options import Fisher, Options
from classifiers import relu_mlp
from dense import loader

NETWORKS = {"layers": "all", "predictive": "sampled_networks"}


def test_options_that_do_not_go_together_raise():
    model, x, y = dense.case("mlp")
    with pytest.raises(ArgumentError, match="isotropic"):
        bb.Laplace(model, layers="all", structure="isotropic")
    with pytest.raises(ArgumentError, match="fisher"):
        bb.Laplace(model, curvature="fisher")
    with pytest.raises(ArgumentError, match="sampled_networks"):
        bb.Laplace(model, predictive="sampled_networks")
    with pytest.raises(ArgumentError, match="sampled_networks"):
        bb.Laplace(model).fit(loader(x, y)).predict_proba(x, method="sampled_networks")
    with pytest.raises(NotFittedError):
        bb.Laplace(model, layers="all").predict_proba(x)
    with pytest.raises(ModelError, match="no parameter of the model requires a gradient"):
        bb.Laplace(model.requires_grad_(False), layers="all").fit(loader(x, y))


def test_variances_of_the_residual_below_zero_infinite_or_not_scalar_raise():
    bayes = bb.Laplace(relu_mlp(), residual=True)
    for bad in (torch.zeros(2), -1.0, math.inf):
        with pytest.raises(ArgumentError, match="near_variance"):
            bayes.near_variance = bad
    for zero in (0, 0.0, numpy.float32(0), torch.tensor(0.0)):
        bayes.near_variance = zero
        assert bayes.near_variance == 0.0


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"structure": "isotropic"},
        {"structure": "kron", "predictive": "bridge", "likelihood": "categorical"},
        {"layers": "all", "structure": "full"},
        {"layers": "all", "curvature": Fisher(3), "structure": "diag"},
        {"layers": "all", "predictive": "sampled_networks"},
        {"layers": "all", "predictive": "mc", "residual": ("fc",)},
        {"predictive": "quadrature", "residual": True, "head": "fc"},
    ],
    ids=str,
)
def test_options_that_go_together_are_returned_as_they_are(given):
    options = Options(**given)
    assert options.check() is options
    assert all(getattr(options, name) == value for name, value in given.items())


@pytest.mark.parametrize(
    "given, says",
    [
        ({"layers": "first"}, "layers='first'.*'last', 'all'"),
        ({"structure": "block"}, "structure='block'.*'full', 'kron', 'diag', 'isotropic'"),
        (
            {"layers": "all", "structure": "isotropic"},
            "structure='isotropic'.*'auto', 'full', 'kron', 'diag'",
        ),
        ({"predictive": "sampled_networks"}, "predictive='sampled_networks'.*'mc'$"),
        ({"layers": "all", "predictive": "sum"}, "predictive='sum'.*'mc', 'sampled_networks'$"),
        ({"curvature": "ggn"}, "curvature='ggn'.*'exact', 'fisher'$"),
        ({"layers": "all", "curvature": 2}, "curvature=2.*'exact', 'fisher'$"),
        ({"curvature": Fisher()}, "curvature='fisher'.*layers='all'"),
        ({**NETWORKS, "residual": True}, "residual.*'sampled_networks'.*choose another"),
        ({**NETWORKS, "residual": ("fc",)}, "residual.*'sampled_networks'"),
        (
            {"likelihood": "poisson"},
            "likelihood='poisson'.*'auto', 'categorical', .*'multilabel', 'preference'$",
        ),
    ],
    ids=str,
)
def test_options_that_do_not_exist_or_do_not_go_together_fail_the_check(given, says):
    with pytest.raises(ArgumentError, match=says):
        Options(**given).check()


@pytest.mark.parametrize("curvature", ["fisher", Fisher(2, seed=5)])
def test_a_laplace_checks_its_options_when_it_is_made(curvature):
    with pytest.raises(ArgumentError, match="layers='all'"):
        bb.Laplace(relu_mlp(), curvature=curvature)
    options = bb.Laplace(relu_mlp(), layers="all", curvature=curvature).options
    assert options.fisher(3) == (Fisher() if curvature == "fisher" else curvature)


def test_options_come_back_from_json():
    given = {"layers": "all", "structure": "diag", "curvature": Fisher(2, seed=5), "residual": ("0", "2")}
    given["output"] = "logits"
    saved = json.loads(json.dumps(Options(**given).as_json()))
    options = Options.checked(relu_mlp(), **Options.from_json(saved))
    assert options == Options(**given)


def test_options_of_earlier_files_are_translated_or_refused():
    saved = Options(layers="all").as_json()
    assert Options.from_json({**saved, "predictive": "weights"})["predictive"] == "sampled_networks"
    with pytest.raises(FileError, match=r"paper's own formulas.*fit again"):
        Options.from_json({**saved, "curvature": "paper"})


def test_a_function_that_picks_the_logits_is_given_again():
    saved = Options(output=len).as_json()
    assert saved["output"] is None and Options.from_json(saved, len)["output"] is len
    with pytest.raises(FileError, match=r"give it again, Laplace.load\(path, model, output=…\)"):
        Options.from_json(saved)
    with pytest.raises(FileError, match="fitted with output='logits', and not 'other'"):
        Options.from_json(Options(output="logits").as_json(), "other")


@pytest.mark.parametrize("name, way_out", [("classification", "leave it out"), ("regression", "'gaussian'")])
def test_likelihoods_of_laplace_torch_are_recognised(name, way_out):
    with pytest.raises(ArgumentError, match=f"likelihood='{name}' is laplace-torch's. Here: .*{way_out}"):
        bb.Laplace(torch.nn.Linear(2, 2), likelihood=name)

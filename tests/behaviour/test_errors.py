"""Bad inputs raise the library's own errors, which say what was given and what to do, and change nothing."""

import copy
import math
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import nn

import bitbayes as bb
import reference
from bitbayes.errors import (
    ArgumentError,
    BitbayesError,
    DataError,
    FileError,
    ModelError,
    NotFittedError,
    one_of,
)
from bitbayes.options import LAPLACE_TORCH


def is_fitted(bayes):
    return "fitted on" in repr(bayes)


@contextmanager
def refused(bayes, x, error, match):
    """Assert that the block raises and that predictions, evidence and the model's mode stay as they were."""
    modes = [module.training for module in bayes.model.modules()]
    fitted = is_fitted(bayes)
    before = ask(bayes, x) if fitted else None
    with pytest.raises(error, match=match) as caught:
        yield
    assert isinstance(caught.value, BitbayesError)
    assert [module.training for module in bayes.model.modules()] == modes
    if not fitted:
        with pytest.raises(NotFittedError):
            bayes.predict_proba(x)
    else:
        assert all(torch.equal(a, b) for a, b in zip(ask(bayes, x), before, strict=True))


def ask(bayes, x):
    gaussian = bayes.logits(x)
    evidence = bayes.log_evidence()
    return (
        bayes.predict_proba(x),
        gaussian.mean,
        gaussian.covariance,
        evidence,
        torch.tensor(bayes.prior_variance),
    )


@pytest.fixture(params=[True, False], ids=["fitted", "new"])
def three(request):
    """A Laplace of three logits, fitted or new, with inputs and labels."""
    x, y = reference.data(3)
    bayes = bb.Laplace(reference.network(3).train(), prior_variance=2.5)
    return (bayes.fit(reference.loader(x, y)) if request.param else bayes), x, y


@pytest.fixture
def fitted():
    return reference.fitted()


def test_every_error_has_one_parent():
    for error in (ArgumentError, DataError, FileError, ModelError, NotFittedError):
        assert issubclass(error, BitbayesError)
    assert bb.BitbayesError is BitbayesError


# ---- loaders


def test_fitting_an_empty_loader_raises(three):
    bayes, x, _ = three
    for empty in ([], iter([]), torch.utils.data.DataLoader([])):
        with refused(bayes, x, DataError, "empty"):
            bayes.fit(empty)


@pytest.mark.parametrize("use", ["update", "tune", "predict_proba"])
def test_an_empty_loader_after_fitting_raises(fitted, use):
    bayes, x, y = fitted
    with refused(bayes, x, DataError, "empty"):
        getattr(bayes, use)([])
    with refused(bayes, x, DataError, "empty"):
        bayes.tune(reference.loader(x, y), objective="ood", outliers=[])


def test_a_loader_of_empty_batches_raises(three):
    bayes, x, y = three
    with refused(bayes, x, DataError, "empty"):
        bayes.fit([(x[:0], y[:0])])


@pytest.mark.parametrize(
    "loader, says",
    [
        (torch.zeros(4, 3), "Tensor.*DataLoader"),
        ({"x": torch.zeros(4, 3)}, "dict.*DataLoader"),
        (3, "int.*DataLoader"),
        (None, "NoneType.*DataLoader"),
        ("train", "str.*DataLoader"),
        ([torch.zeros(4, 3)], r"batch 0 is a Tensor.*\(inputs, labels\)"),
        ((torch.zeros(4, 3), torch.zeros(4)), r"batch 0 is a Tensor.*one batch\? Then give \[\(inputs"),
        ([(torch.zeros(4, 3),)], r"batch 0 is a tuple of \(Tensor [^)]*\) float32\).*\(inputs, labels\)"),
        ([(torch.zeros(4, 3), ["a", "b", "c", "a"])], r"batch 0 is a tuple of \(Tensor .*, list\)"),
        ([(torch.zeros(4, 3), None, torch.zeros(4))], r"batch 0.*NoneType, Tensor .*\(x1, x2\).*adapt="),
        ([(np.zeros((4, 3)), np.zeros(4))], r"batch 0.*\(ndarray, ndarray\)"),
        ([{"x": torch.zeros(4, 3)}], r"batch 0.*\['x'\].*'labels' is missing.*adapt="),
    ],
)
def test_loaders_that_do_not_yield_pairs_raise(three, loader, says):
    bayes, x, _ = three
    with refused(bayes, x, DataError, says):
        bayes.fit(loader)


@pytest.mark.parametrize(
    "data, says",
    [(3, "int"), ([3], "int"), ([None], "None"), (["a"], "str"), (np.zeros((4, 3)), "from_numpy")],
)
def test_inputs_of_other_types_raise(fitted, data, says):
    bayes, x, _ = fitted
    with refused(bayes, x, DataError, f"expected.*{says}|{says}.*expected"):
        bayes.predict_proba(data)


# ---- labels


@pytest.mark.parametrize(
    "labels, says",
    [
        (torch.tensor([0, 1, 3]), r"batch 1: .*\[0, 1, 3\].*3 logits.*from 0 to 2"),
        (torch.tensor([0, -1, 2]), r"batch 1: .*\[-1, 0, 2\].*from 0 to 2"),
        (torch.tensor([0.0, 1.0, 2.0]), r"batch 1: .*torch.float32.*integers from 0 to 2"),
        (torch.tensor([True, False, True]), r"batch 1: .*torch.bool.*integers from 0 to 2"),
        (torch.tensor([0, 1]), r"batch 1: .*shape \(2,\).*expected \(3,\)"),
        (torch.eye(3).long(), r"batch 1: .*shape \(3, 3\).*expected \(3,\)"),
    ],
)
def test_wrong_labels_of_three_logits_raise(three, labels, says):
    bayes, x, y = three
    loader = [(x[:5], y[:5]), (x[:3], labels)]
    with refused(bayes, x, DataError, says):
        bayes.fit(loader)
    if is_fitted(bayes):
        with refused(bayes, x, DataError, says):
            bayes.update(loader)
        with refused(bayes, x, DataError, says):
            bayes.tune(loader)


@pytest.mark.parametrize(
    "labels, says",
    [
        (torch.tensor([0, 1, 2]), r"batch 0: .*\[0, 1, 2\].*one logit needs 0 and 1"),
        (torch.tensor([-1, 1, 1]), r"batch 0: .*\[-1, 1\].*0 and 1"),
        (torch.tensor([0.0, 0.5, 1.0]), r"batch 0: .*0\.5.*0 and 1"),
        (torch.tensor([0.0, math.nan, 1.0]), r"batch 0: .*nan.*0 and 1"),
        (torch.tensor([0, 1]), r"batch 0: .*shape \(2,\).*expected \(3,\)"),
    ],
)
def test_wrong_labels_of_one_logit_raise(labels, says):
    x, _ = reference.data(1)
    bayes = bb.Laplace(reference.network(1))
    with refused(bayes, x, DataError, says):
        bayes.fit([(x[:3], labels)])


# ---- models


@pytest.mark.parametrize("model", [None, "resnet", lambda x: x, nn.Linear])
def test_models_that_are_no_modules_raise(model):
    with pytest.raises(ArgumentError, match=r"torch\.nn\.Module"):
        bb.Laplace(model)


def fit_raises(model, says, error=ModelError, x=None, **options):
    x = torch.randn(6, 3) if x is None else x
    bayes = bb.Laplace(model, **options)
    with refused(bayes, x, error, says):
        bayes.fit([(x, torch.arange(len(x)) % 2)])


def test_a_model_without_a_linear_layer_raises_and_lists_its_layers():
    model = nn.Sequential(nn.Conv1d(1, 2, 3), nn.ReLU(), nn.Flatten())
    fit_raises(model, "no linear layer.*Conv1d.*ReLU.*Flatten", x=torch.randn(6, 1, 3))


@pytest.mark.parametrize(
    "last", [nn.Softmax(1), nn.LogSoftmax(1), nn.Sigmoid(), nn.Tanh(), nn.BatchNorm1d(2)]
)
def test_a_head_that_is_not_the_output_raises(last):
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2), last)
    if isinstance(last, nn.BatchNorm1d):
        last.running_mean += 1
    fit_raises(model, "is not the output of any.*'2'.*plain logits")


@pytest.mark.parametrize("last", [nn.ReLU(), nn.Hardtanh(-20, 20)])
def test_a_head_that_is_the_output_of_the_first_inputs_only_raises(last):
    model = nn.Sequential(nn.Linear(3, 2), last)
    with torch.no_grad():
        model[0].bias += 10
    x = torch.randn(6, 3)
    x[2:] *= 1e3  # beyond both kinks
    fit_raises(model, "not the output", x=x)


def test_a_named_head_that_does_not_exist_raises_and_lists_the_names():
    fit_raises(reference.network(2, dtype=torch.float32), "head='fc'.*'hidden', 'head'", head="fc")


def test_a_named_head_that_is_not_the_output_raises():
    fit_raises(reference.network(2, dtype=torch.float32), "is not the output of.*'hidden'", head="hidden")


def test_a_named_head_that_is_not_linear_raises():
    fit_raises(reference.network(2, dtype=torch.float32), "head='activation'.*'hidden'", head="activation")


def test_labels_of_inputs_for_logits_of_every_token_raise():
    fit_raises(nn.Linear(3, 2), r"shape \(6,\); expected \(6, 5\)", DataError, x=torch.randn(6, 5, 3))


def test_an_axis_that_was_not_there_at_fit_raises():
    bayes, x, _ = reference.fitted(2)
    with pytest.raises(ModelError, match=r"sees features of shape \(30, 1, 4\): expected \(n, d\)"):
        bayes.predict_proba(x[:, None])


def test_a_model_that_returns_a_tuple_raises():
    class Pair(nn.Linear):
        def forward(self, x):
            return super().forward(x), x

    fit_raises(Pair(3, 2), "returned tuple.*logits")


@pytest.mark.parametrize(
    "name, value", [("hidden.weight", math.nan), ("head.weight", math.nan), ("head.bias", math.inf)]
)
def test_weights_that_are_not_finite_raise_and_are_named(name, value):
    model = reference.network(2, dtype=torch.float32)
    with torch.no_grad():
        model.get_parameter(name).view(-1)[0] = value
    fit_raises(model, rf"weights.*NaN.*{name}", DataError)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("use", ["fit", "update", "tune"])
def test_inputs_that_are_not_finite_raise_with_the_batchs_number(fitted, use, value):
    bayes, x, y = fitted
    bad = x.clone()
    bad[9, 0] = value
    with refused(bayes, x, DataError, "batch 1 .*NaN or infinity"):
        getattr(bayes, use)(reference.loader(bad, y))
    with refused(bayes, x, DataError, "batch 1 .*NaN or infinity"):
        bayes.tune(reference.loader(x, y), objective="ood", outliers=list(bad.split(7)))


def test_features_that_are_not_finite_raise_with_the_batchs_number():
    class Log(nn.Module):
        def forward(self, x):
            return x.log()  # NaN for negative numbers

    x = torch.rand(9, 3) + 0.1
    x[7] = -1
    model = nn.Sequential(Log(), nn.Linear(3, 2))
    bayes = bb.Laplace(model)
    with refused(bayes, x, DataError, "batch 2.*not finite"):
        bayes.fit(reference.loader(x, torch.zeros(9).long(), 3))


def test_a_full_structure_too_large_for_memory_raises():
    says = r"full.*27,009 × 27,009.*10 outputs and 3,001 features.*5\.8 GB.*'kron' or 'diag'"
    fit_raises(nn.Linear(3000, 10), says, x=torch.randn(6, 3000), structure="full")


@pytest.mark.parametrize(
    "model, structure",
    [(nn.Linear(2, 30_000), structure) for structure in ("kron", "full")]
    + [(nn.Linear(30_000, 2, bias=False), structure) for structure in ("auto", "kron", "full", "lowrank")],
)
def test_a_head_too_large_for_its_matrix_raises_before_anything_is_allocated(model, structure, monkeypatch):
    """A matrix of 30,000 × 30,000 numbers would be 7.2 GB: nothing that could make one is called."""

    def never(*_):
        raise AssertionError("a curvature was computed")

    for kind in ("FullCurvature", "KronCurvature"):
        monkeypatch.setattr(f"bitbayes.structures.{kind}.of_features", never)
    x = torch.randn(6, model.in_features)
    side = r"(30,000|59,998|89,997)"  # of kron, and of full
    others = r"('lowrank' or )?'diag'$"
    says = rf"matrix of {side} × {side}.*(30,000 outputs|30,000 features).*GB.*structure={others}"
    fit_raises(model, says, x=x, structure=structure)


def test_a_head_too_large_for_a_matrix_works_with_its_diagonal():
    torch.manual_seed(0)
    x, y = torch.randn(4, 2), torch.tensor([0, 1, 29_999, 5])
    bayes = bb.Laplace(nn.Linear(2, 30_000), structure="diag", prior_variance=1.0).fit([(x, y)])
    probabilities = bayes.tune([(x, y)]).predict_proba(x)
    assert probabilities.shape == (4, 30_000) and bool(probabilities.isfinite().all())
    torch.testing.assert_close(probabilities.sum(1), torch.ones(4), rtol=0, atol=1e-4)


# ---- names


@pytest.mark.parametrize(
    "option, right",
    [
        ("layers", ["last"]),
        ("structure", ["auto", "full", "kron", "diag", "isotropic"]),
        ("predictive", ["auto", "probit", "pairwise", "meanfield", "bridge", "mc", "quadrature"]),
        ("curvature", ["exact", "fisher"]),
        ("likelihood", ["auto", "categorical", "bernoulli"]),
    ],
)
@pytest.mark.parametrize("wrong", ["lsat", None, 3])
def test_wrong_names_in_the_constructor_list_the_right_ones(option, right, wrong):
    with pytest.raises(ArgumentError) as caught:
        bb.Laplace(nn.Linear(2, 2), **{option: wrong})
    message = str(caught.value)
    assert f"{option}={wrong!r}" in message
    assert all(repr(name) in message for name in right)


@pytest.mark.parametrize(
    "wrong, meant",
    [("structur", "structure"), ("prior_variances", "prior_variance"), ("layer", "layers"), ("colour", None)],
)
def test_unknown_options_are_refused(wrong, meant):
    with pytest.raises(TypeError, match=f"unexpected argument {wrong}='x'") as caught:
        bb.Laplace(nn.Linear(2, 2), **{wrong: "x"})
    assert str(caught.value).endswith(f", did you mean {meant!r}?" if meant else "='x'")


@pytest.mark.parametrize("name", LAPLACE_TORCH)
def test_options_of_laplace_torch_are_told_in_words_of_here(name):
    with pytest.raises(ArgumentError, match=f"{name}=None is an option of laplace-torch. Here: ") as caught:
        bb.Laplace(nn.Linear(2, 2), **{name: None})
    assert str(caught.value).endswith(LAPLACE_TORCH[name])


@pytest.mark.parametrize(
    "given, line",
    [
        ({"prior_precision": 4.0}, "prior_variance=0.25; in regression"),
        ({"sigma_noise": 0.5}, "likelihood='gaussian', noise_variance=0.25"),
        ({"hessian_structure": "diag"}, "structure='diag'"),
        ({"hessian_structure": "lowrank"}, "structure='kron'"),
        ({"subset_of_weights": "all"}, "layers='all'"),
        ({"subset_of_weights": "last_layer"}, "layers='last'"),
        ({"likelihood": "regression"}, "likelihood='gaussian'"),
        ({"likelihood": "classification"}, "leave it out"),
        ({"feature_reduction": "pick_last"}, "leave it out: the features"),
        ({"damping": True}, "leave it out: the curvature has none"),
        ({"n_subset": 3}, "leave it out: there is no functional form"),
        ({"independent_outputs": True}, "leave it out: there is no functional form"),
        ({"functional_approximation": "sod"}, "leave it out: there is no functional form"),
    ],
)
def test_values_of_laplace_torch_are_written_as_lines_of_here(given, line):
    with pytest.raises(ArgumentError, match=f"Here: {line}"):
        bb.Laplace(nn.Linear(2, 2), **given)


@pytest.mark.parametrize(
    "places, says",
    [
        (("classification",), r"'classification' came without a name: write Laplace\(model\)$"),
        (
            ("regression", "last_layer", "full"),
            r"write Laplace\(model, likelihood='gaussian', layers='last', structure='full'\)$",
        ),
        (("classification", "all"), r"write Laplace\(model, layers='all'\)$"),
        (
            ("classification", "last_layer", "lowrank"),
            r"write Laplace\(model, layers='last', structure='kron'\); 'lowrank' is something else here",
        ),
        (
            ("classification", "last_layer", "gp"),
            r"write Laplace\(model, layers='all'\); there is no functional form$",
        ),
        (("last",), "give each by its name"),
        ((3, "kron"), "give each by its name"),
        (("classification", "all", "kron", 1.0), "give each by its name"),
    ],
)
def test_options_by_their_place_give_the_line_to_write(places, says):
    with pytest.raises(ArgumentError, match=says):
        bb.Laplace(nn.Linear(2, 2), *places)


@pytest.mark.parametrize("learn", ["fit", "update"])
def test_arguments_that_do_not_exist_are_refused(fitted, learn):
    bayes, x, y = fitted
    with pytest.raises(TypeError, match="draws"):
        getattr(bayes, learn)([(x, y)], draws=2)


@pytest.mark.parametrize(
    "option, value",
    [
        ("layers", "all"),
        ("structure", "full"),
        ("residual", True),
        ("head", "head"),
        ("curvature", "fisher"),
        ("likelihood", "categorical"),
    ],
)
def test_options_that_a_fit_depends_on_cannot_be_changed(fitted, option, value):
    bayes, x, _ = fitted
    before = (getattr(bayes, option), repr(bayes))
    with refused(bayes, x, ArgumentError, rf"{option}=.*cannot be changed.*Laplace\(model, {option}="):
        setattr(bayes, option, value)
    assert (getattr(bayes, option), repr(bayes)) == before


@pytest.mark.parametrize(
    "name, says",
    [
        ("tempature", "did you mean 'temperature'"),
        ("prior_varience", "did you mean 'prior_variance'"),
        ("Settings", "did you mean 'settings'"),
        ("residual_variance", "in this version there is 'near_variance', and 'beyond_variance'"),
        ("residual_threshold", "in this version there is 'settings'"),
        ("colour", "there are 'settings', 'temperature', .*begin with an underscore"),
    ],
)
def test_an_attribute_that_is_not_there_cannot_be_set(fitted, name, says):
    bayes, x, _ = fitted
    for value in (3.0, nn.Linear(1, 1), torch.ones(1)):
        with refused(bayes, x, AttributeError, f"no attribute '{name}'.*{says}"):
            setattr(bayes, name, value)
    assert not hasattr(bayes, name)


def test_modules_go_on_working_and_subclasses_have_attributes_of_their_own(fitted):
    bayes, _, _ = fitted
    bayes._of_a_framework = 3
    bayes.train().requires_grad_(False).register_buffer("mean", torch.ones(1))
    bayes.mean = torch.zeros(1)
    bayes.forward = bayes.forward  # as Accelerate does
    copied = copy.deepcopy(bayes)
    assert copied._of_a_framework == 3 and float(copied.mean) == 0

    class Named(bb.Laplace):
        def __init__(self, model, name):
            super().__init__(model)
            self.name = name

    assert Named(bayes.model, "network").name == "network"


def test_the_predictive_can_be_changed_after_fitting(fitted):
    bayes, x, _ = fitted
    expected = bayes.predict_proba(x, method="bridge" if bayes.logits(x).mean.shape[1] > 1 else "quadrature")
    bayes.predictive = "bridge" if bayes.logits(x).mean.shape[1] > 1 else "quadrature"
    assert torch.equal(bayes.predict_proba(x), expected)
    with refused(bayes, x, ArgumentError, "predictive='sampled_networks'"):
        bayes.predictive = "sampled_networks"


def test_wrong_names_after_fitting_list_the_right_ones(fitted):
    bayes, x, y = fitted
    for wrong in ("probits", "sampled_networks", 3):
        with refused(bayes, x, ArgumentError, f"method={wrong!r}.*'probit', 'pairwise', 'meanfield', .*'mc'"):
            bayes.predict_proba(x, method=wrong)
    with refused(bayes, x, ArgumentError, "objective='loss'.*'calibrated', 'ood', 'nll', 'evidence'"):
        bayes.tune([(x, y)], objective="loss")
    with refused(bayes, x, ArgumentError, "penalty='l2'.*'entropy', 'uniform'"):
        bayes.tune([(x, y)], penalty="l2")


def test_one_of_lists_the_known_names():
    assert one_of("a", "b", ("b", "c")) == "b"
    with pytest.raises(ArgumentError, match="a='d' is not known: choose one of 'b', 'c'"):
        one_of("a", "d", ("b", "c"))


# ---- before fitting


@pytest.mark.parametrize(
    "use",
    [
        lambda bayes, x, y: bayes(x),
        lambda bayes, x, y: bayes.predict_proba(x),
        lambda bayes, x, y: bayes.logits(x),
        lambda bayes, x, y: bayes.sample(2),
        lambda bayes, x, y: bayes.log_evidence(),
        lambda bayes, x, y: bayes.tune([(x, y)]),
        lambda bayes, x, y: bayes.tune(objective="evidence"),
        lambda bayes, x, y: bayes.update([(x, y)]),
        lambda bayes, x, y: bayes.save("never"),
    ],
    ids=[
        "forward",
        "predict_proba",
        "logits",
        "sample",
        "log_evidence",
        "tune",
        "evidence",
        "update",
        "save",
    ],
)
def test_every_method_before_fitting_asks_for_fit(use):
    x, y = reference.data(3)
    bayes = bb.Laplace(reference.network(3))
    with refused(bayes, x, NotFittedError, r"not fitted.*fit\("):
        use(bayes, x, y)


# ---- numbers


@pytest.mark.parametrize("value", [0, 0.0, -1.0, math.nan, math.inf, -math.inf, None, "wide", [1.0, 2.0]])
def test_a_prior_variance_that_is_not_positive_raises(fitted, value):
    bayes, x, _ = fitted
    says = "prior_variance=.*positive"
    if value is not None:  # which means: none was chosen
        with pytest.raises(ArgumentError, match=says):
            bb.Laplace(nn.Linear(2, 2), prior_variance=value)
    with refused(bayes, x, ArgumentError, says):
        bayes.prior_variance = value
    if value is not None:  # which means: the one that is set
        with refused(bayes, x, ArgumentError, says):
            bayes.log_evidence(value)


@pytest.mark.parametrize("value", [[0.0], [-1.0], [math.nan], [math.inf], [1.0, 2.0]])
def test_a_tensor_that_is_not_one_positive_prior_variance_raises(fitted, value):
    bayes, x, _ = fitted
    with refused(bayes, x, ArgumentError, "prior_variance=.*positive"):
        bayes.log_evidence(torch.tensor(value))


def test_the_message_shows_the_wrong_prior_variance():
    with pytest.raises(ArgumentError, match=r"prior_variance=-3\.5"):
        bb.Laplace(nn.Linear(2, 2), prior_variance=-3.5)


@pytest.mark.parametrize("weight", [-0.1, math.nan, math.inf, "much", None])
def test_a_weight_of_outliers_that_is_negative_or_no_number_raises(fitted, weight):
    bayes, x, y = fitted
    with refused(bayes, x, ArgumentError, "weight="):
        bayes.tune([(x, y)], weight=weight)


@pytest.mark.parametrize("samples", [0, -1, 2.5, "many"])
def test_numbers_of_samples_that_are_not_positive_raise(fitted, samples):
    bayes, x, _ = fitted
    with refused(bayes, x, ArgumentError, "samples=.*positive"):
        bayes.predict_proba(x, method="mc", samples=samples)
    with refused(bayes, x, ArgumentError, "n=.*positive"):
        bayes.sample(samples)


def test_samples_without_monte_carlo_raise(fitted):
    bayes, x, _ = fitted
    with refused(bayes, x, ArgumentError, "samples=10.*'mc'"):
        bayes.predict_proba(x, samples=10)


@pytest.mark.parametrize("objective", ["calibrated", "ood", "nll"])
def test_tuning_without_validation_data_raises(fitted, objective):
    bayes, x, _ = fitted
    with refused(bayes, x, ArgumentError, f"{objective}.*val_loader"):
        bayes.tune(objective=objective)


def test_tuning_the_isotropic_structure_by_evidence_raises():
    x, y = reference.data(3)
    bayes = bb.Laplace(reference.network(3), structure="isotropic").fit([(x, y)])
    with pytest.raises(ArgumentError, match=r"isotropic.*evidence"):
        bayes.tune(objective="evidence")
    assert bayes.prior_variance == 1.0

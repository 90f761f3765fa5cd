"""What `repr` and `help` tell a person."""

import pydoc
import re
from abc import ABC
from unittest.mock import create_autospec

import pytest
import torch
from torch import nn

import bitbayes as bb
from classifiers import relu_mlp

X, Y = torch.randn(48, 4, generator=torch.Generator().manual_seed(0)), torch.arange(48) % 3


def test_repr_before_fit_says_what_was_asked_for():
    assert repr(bb.Laplace(relu_mlp(), structure="diag", prior_variance=0.25)) == (
        "Laplace(\n"
        "  model=Sequential, layers='last', structure='diag', predictive='auto',\n"
        "  prior_variance=0.25, temperature=1, residual='auto',\n"
        "  not fitted\n"
        ")"
    )


def test_repr_says_what_was_chosen():
    bayes = bb.Laplace(relu_mlp()).fit([(X, Y)])
    assert "structure='kron' (auto), predictive='pairwise' (auto)" in repr(bayes)
    assert "prior_variance=1 (not tuned), temperature=1, residual=off until tuned" in repr(bayes)
    assert "fitted on 48 points, 3 classes" in repr(bayes)
    with pytest.warns(bb.errors.UntunedWarning):
        bayes.predict_proba(X)
    assert "(not tuned)" in repr(bayes)  # it was said, and is still true
    bayes.tune([(X, Y)])
    assert "residual=on (at input, head, classes)" in repr(bayes)
    assert f"prior_variance={bayes.prior_variance:.4g}, temperature={bayes.temperature:.4g}," in repr(bayes)
    bayes.near_variance = 0.0
    assert "residual=on" in repr(bayes)  # beyond the data
    bayes.beyond_variance = 0.0
    assert "residual=off,\n" in repr(bayes)


def test_repr_names_the_structure_and_the_predictive_that_auto_became():
    one = bb.Laplace(nn.Linear(4, 1)).fit([(X, Y % 2)])
    assert "structure='full' (auto), predictive='probit' (auto)" in repr(one) and "2 classes" in repr(one)
    every = bb.Laplace(relu_mlp(), layers="all", residual=False).fit([(X, Y)])
    assert "layers='all', structure='kron' (auto)" in repr(every) and "residual=off," in repr(every)
    asked = bb.Laplace(relu_mlp(), structure="kron", predictive="mc").fit([(X, Y)])
    assert "structure='kron', predictive='mc'," in repr(asked)
    asked.predictive = "quadrature"  # for one logit alone: predictions raise, repr does not
    assert "predictive='quadrature'," in repr(asked)


def test_repr_of_priors_by_layer():
    bayes = bb.Laplace(relu_mlp(), layers="all").fit([(X, Y)])
    bayes.prior_variance = dict.fromkeys(bayes.posterior.names, 2.0)
    assert f"prior_variance=one for each of {len(bayes.posterior.names)} layers" in repr(bayes)


def test_repr_of_a_temperature():
    scaled = bb.TemperatureScaling(relu_mlp())
    assert "temperature=1 (not fitted)" in repr(scaled)
    scaled.temperature = 2.5
    assert "temperature=2.5\n" in repr(scaled)


@pytest.mark.parametrize("kind", [bb.Laplace, bb.TemperatureScaling])
def test_help_shows_everything_public(kind):
    shown = pydoc.plain(pydoc.render_doc(kind))
    assert all(name in shown for name in vars(kind) if not name.startswith("_"))


def test_a_laplace_can_be_mocked_with_its_own_signatures():
    mocked = create_autospec(bb.Laplace)
    instance = mocked(nn.Linear(2, 2), prior_variance=1.0)
    instance.fit([(X, Y)], progress=False)
    instance.fit.assert_called_once_with([(X, Y)], progress=False)
    instance.predict_proba(X, method="probit")
    for wrong in (
        lambda: mocked(),
        lambda: instance.fit([(X, Y)], draws=2),
        lambda: instance.predict_proba(X, "probit"),
    ):
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(AttributeError):
        instance.predict_probabilities(X)


def test_a_subclass_may_be_abstract():
    class Abstract(bb.Laplace, ABC):
        pass

    assert isinstance(Abstract(relu_mlp()), bb.Laplace)


def test_the_class_docstring_has_summary_example_and_every_parameter():
    doc = bb.Laplace.__doc__
    assert len(doc.splitlines()[0]) < 110 and doc.index(">>>") < doc.index("Args:")
    named = set(re.findall(r"^        (\w+): ", doc, re.MULTILINE))
    assert named == {*bb.options.LaplaceOptions.__annotations__, "model"}

"""The warning that nothing was tuned: once, at the first prediction, and only where nobody chose."""

import warnings

import pytest
import torch

import bitbayes as bb
from bitbayes.errors import NotFittedError, UntunedWarning
from classifiers import points, relu_mlp

pytestmark = pytest.mark.filterwarnings("error::bitbayes.errors.UntunedWarning")

X, Y = points()
PREDICTIONS = {
    "forward": lambda bayes: bayes(X),
    "logits": lambda bayes: bayes.logits(X),
    "predict_proba": lambda bayes: bayes.predict_proba(X),
    "score": lambda bayes: bayes.score(X),
    "threshold": lambda bayes: bayes.threshold([(X, Y)]),
    "uncertainty": lambda bayes: bayes.uncertainty(X),
    "evaluate": lambda bayes: bayes.evaluate([(X, Y)]),
}


def fitted(**options):
    return bb.Laplace(relu_mlp(), **options).fit([(X, Y)])


def heard(use, *arguments):
    """The warnings that a call gives."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        use(*arguments)
    return found


@pytest.mark.parametrize("layers", ["last", "all"])
@pytest.mark.parametrize("name", PREDICTIONS)
def test_the_first_prediction_of_each_kind_warns_once_at_the_callers_line(name, layers):
    bayes = fitted(layers=layers)
    (found,) = heard(PREDICTIONS[name], bayes)
    assert found.category is UntunedWarning and issubclass(UntunedWarning, UserWarning)
    assert "prior variance is 1," in str(found.message) and "tune(val_loader)" in str(found.message)
    assert found.filename == __file__
    for again in PREDICTIONS.values():
        again(bayes)
    bayes.fit([(X, Y)])
    bayes.predict_proba(X)


def use_all(bayes):
    for each in PREDICTIONS.values():
        each(bayes)


def test_a_prior_variance_that_was_given_or_set_is_chosen():
    use_all(fitted(prior_variance=1.0))
    bayes = fitted()
    bayes.prior_variance = 1.0
    use_all(bayes)
    use_all(fitted(layers="all", prior_variance={"0": 1.0, "2": 2.0}))


@pytest.mark.parametrize("objective", ["calibrated", "nll", "ood", "evidence"])
@pytest.mark.filterwarnings("ignore::bitbayes.errors.EdgeWarning")
def test_a_prior_variance_that_was_tuned_is_chosen(objective):
    use_all(fitted().tune([(X, Y)], objective=objective))


def test_a_prior_variance_from_a_file_is_chosen_if_it_was_chosen_before(tmp_path):
    bayes = fitted(prior_variance=1.0)
    bayes.save(tmp_path / "bayes.safetensors")
    use_all(bb.Laplace.load(tmp_path / "bayes.safetensors", bayes.model))
    untuned = fitted()
    untuned.save(tmp_path / "bayes.safetensors")
    again = bb.Laplace.load(tmp_path / "bayes.safetensors", untuned.model)
    with pytest.warns(UntunedWarning):
        again.predict_proba(X)


def test_what_is_no_prediction_does_not_warn(tmp_path):
    bayes = fitted()
    bayes.limit(X)
    bayes.certify(X)
    bayes.bound()
    bayes.sample(2)
    bayes.log_evidence()
    repr(bayes)
    bayes.update([(X, Y)])
    bayes.save(tmp_path / "bayes.safetensors")
    assert len(heard(bayes.predict_proba, X)) == 1  # and the first prediction still does


def test_a_temperature_alone_is_no_choice():
    bayes = fitted()
    bayes.temperature = 2.0
    with pytest.warns(UntunedWarning):
        bayes.predict_proba(X)


def test_before_fitting_there_is_an_error_and_the_warning_is_kept():
    bayes = bb.Laplace(relu_mlp())
    for predict in PREDICTIONS.values():
        with pytest.raises(NotFittedError):
            predict(bayes)
    with pytest.warns(UntunedWarning):
        bayes.fit([(X, Y)]).predict_proba(X)


def test_the_warning_changes_no_prediction():
    bayes, given = fitted(), fitted(prior_variance=1.0)
    with pytest.warns(UntunedWarning):
        found = bayes.predict_proba(X)
    assert torch.equal(found, given.predict_proba(X))

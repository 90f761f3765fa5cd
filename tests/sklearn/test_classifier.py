"""The classifier, as scikit-learn's own tools and checks use it."""

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_iris, make_moons
from sklearn.exceptions import NotFittedError
from sklearn.metrics import get_scorer, log_loss, roc_auc_score
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

import bitbayes as bb
from bitbayes.errors import ArgumentError
from bitbayes.sklearn import LaplaceClassifier


# All checks of scikit-learn apply. Two skip themselves: the one of array-API inputs where SCIPY_ARRAY_API is
# not set, and those of data frames where pandas is not installed. One fails: training in random batches is
# not the same for weights as for repeated rows. Without training it is, and a test below says so.
@parametrize_with_checks(
    [LaplaceClassifier(epochs=30)],
    expected_failed_checks=lambda _: {
        "check_sample_weight_equivalence_on_dense_data": "trained in random batches"
    },
)
def test_checks_of_scikit_learn(estimator, check):
    check(estimator)


def iris():
    X, y = load_iris(return_X_y=True)
    return train_test_split(X, np.array(["setosa", "versicolor", "virginica"])[y], random_state=0)


def classifier(**options):
    return LaplaceClassifier(**{"epochs": 30, "random_state": 0, **options})


def moons_network(outputs=2):
    """A trained network, and data that it was not trained on."""
    X, y = make_moons(600, noise=0.2, random_state=0)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 20), nn.ReLU(), nn.Linear(20, outputs))
    optimiser = torch.optim.Adam(network.parameters(), lr=0.02)
    x, labels = torch.tensor(X[:300], dtype=torch.float32), torch.tensor(y[:300])
    for _ in range(150):
        optimiser.zero_grad()
        logits = network(x)
        if outputs == 1:
            nn.functional.binary_cross_entropy_with_logits(logits[:, 0], labels.float()).backward()
        else:
            nn.functional.cross_entropy(logits, labels).backward()
        optimiser.step()
    return network, X[300:450], y[300:450], X[450:], y[450:]


def unsorted_iris():
    """A classifier of a trained network whose outputs are "x", "z" and "a", and data that it has not seen."""
    X, y = load_iris(return_X_y=True)
    X, X_val, y, y_val = train_test_split((X - X.mean(0)) / X.std(0), y, random_state=0, stratify=y)
    network, names = classifier(module=nn.Linear, learning_rate=0.1).fit(X, y).module_, ["x", "z", "a"]
    model = LaplaceClassifier(network, classes=names, random_state=0).fit(X, np.array(names)[y])
    return model, np.array(names), X_val, np.array(names)[y_val]


def test_labels_may_be_texts():
    X, X_test, y, y_test = iris()
    model = make_pipeline(StandardScaler(), classifier()).fit(X, y)
    assert model.classes_.tolist() == ["setosa", "versicolor", "virginica"]
    assert model.score(X_test, y_test) > 0.9
    probabilities = model.predict_proba(X_test)
    assert probabilities.shape == (len(X_test), 3) and np.allclose(probabilities.sum(1), 1)
    assert (model.classes_[probabilities.argmax(1)] == model.predict(X_test)).all()


def test_tools_of_scikit_learn_take_it():
    X, X_test, y, y_test = iris()
    pipeline = make_pipeline(StandardScaler(), classifier(epochs=15))
    assert cross_val_score(pipeline, X, y, cv=3).mean() > 0.85
    search = GridSearchCV(pipeline, {"laplaceclassifier__structure": ["diag", "kron"]}, cv=2).fit(X, y)
    assert search.score(X_test, y_test) > 0.85
    calibrated = CalibratedClassifierCV(pipeline, cv=2).fit(X, y)
    assert calibrated.score(X_test, y_test) > 0.85


def test_it_is_far_from_sure_far_away():
    X, y = make_moons(300, noise=0.2, random_state=0)
    model = classifier(epochs=60).fit(X, y)
    assert model.score(X, y) > 0.9
    assert model.predict_proba(1e4 * X).max(1).mean() < 0.6
    assert model.score_samples(1e4 * X).mean() < model.score_samples(X).mean()


def test_it_gives_what_laplace_gives():
    """A trained network with validation data of its own: nothing is trained, and nothing set aside."""
    network, X, y, X_val, y_val = moons_network()
    before = copy.deepcopy(network.state_dict())
    model = LaplaceClassifier(network, structure="diag").fit(X, y, validation=(X_val, y_val))
    assert model.module_ is network and network.training
    assert all(torch.equal(each, before[name]) for name, each in network.state_dict().items())

    def batch(X, y):
        return [(torch.tensor(X, dtype=torch.float32), torch.tensor(y))]

    by_hand = bb.Laplace(network, structure="diag").fit(batch(X, y)).tune(batch(X_val, y_val))
    (x, _), *_ = batch(X_val, y_val)
    np.testing.assert_array_equal(model.predict_proba(X_val), by_hand.predict_proba(x).numpy())
    np.testing.assert_array_equal(model.score_samples(X_val), by_hand.score(x).numpy())


def test_a_prior_variance_that_is_set_is_not_tuned():
    network, X, y, X_val, _ = moons_network()
    model = LaplaceClassifier(network, prior_variance=3.0).fit(X, y)
    by_hand = bb.Laplace(network, prior_variance=3.0)
    by_hand.fit([(torch.tensor(X, dtype=torch.float32), torch.tensor(y))])
    expected = by_hand.predict_proba(torch.tensor(X_val, dtype=torch.float32)).numpy()
    np.testing.assert_allclose(model.predict_proba(X_val), expected, rtol=1e-5)
    assert model.laplace_.temperature == 1


def test_one_logit_is_two_classes():
    network, X, y, X_val, y_val = moons_network(1)
    model = LaplaceClassifier(network).fit(X, np.array(["no", "yes"])[y])
    assert model.predict_proba(X_val).shape == (150, 2)
    assert (model.predict(X_val) == np.array(["no", "yes"])[y_val]).mean() > 0.9
    new = classifier(module=lambda features, classes: nn.Linear(features, 1)).fit(X, y)
    assert new.score(X_val, y_val) > 0.75


@pytest.mark.parametrize("outputs", [1, 2])
def test_classes_of_a_trained_network_are_given_in_its_order(outputs):
    network, X, y, X_val, y_val = moons_network(outputs)
    names = np.array(["upper", "lower"])  # not in the order of the alphabet
    model = LaplaceClassifier(network, classes=names).fit(X, names[y])
    assert (model.predict(X_val) == names[y_val]).mean() > 0.9
    assert model.score(X_val, names[y_val]) > 0.9


def test_columns_of_probabilities_are_sorted_whatever_the_order_of_the_network():
    """`Laplace` keeps the network's order; scikit-learn takes columns for sorted."""
    model, names, X_val, _ = unsorted_iris()
    assert names.tolist() == ["x", "z", "a"] and model.classes_.tolist() == ["a", "x", "z"]
    x = torch.tensor(X_val, dtype=torch.float32)
    expected = model.laplace_.predict_proba(x).numpy()[:, [2, 0, 1]]
    np.testing.assert_allclose(model.predict_proba(X_val), expected, rtol=1e-6)
    assert (model.predict(X_val) == model.classes_[expected.argmax(1)]).all()
    np.testing.assert_array_equal(
        pickle.loads(pickle.dumps(model)).predict_proba(X_val), model.predict_proba(X_val)
    )


def test_a_clone_keeps_the_order_of_the_network():
    model, _, X_val, labels = unsorted_iris()
    again = clone(model)
    assert again.classes == ["x", "z", "a"]
    again.fit(X_val, labels)
    assert again.classes_.tolist() == ["a", "x", "z"] and again.score(X_val, labels) > 0.9


def test_scorers_of_scikit_learn_are_right_for_classes_in_any_order():
    """A renaming of the classes changes no score."""
    model, names, X_val, labels = unsorted_iris()
    of_the_network = model.laplace_.predict_proba(torch.tensor(X_val, dtype=torch.float32)).numpy()
    y_val = np.array([names.tolist().index(label) for label in labels])
    found = {
        name: get_scorer(name)(model, X_val, labels) for name in ("neg_log_loss", "roc_auc_ovr", "accuracy")
    }
    assert found["neg_log_loss"] == pytest.approx(-log_loss(y_val, of_the_network), rel=1e-5)
    assert found["roc_auc_ovr"] == pytest.approx(roc_auc_score(y_val, of_the_network, multi_class="ovr"))
    assert found["accuracy"] == (of_the_network.argmax(1) == y_val).mean()


def test_a_search_finds_the_same_for_classes_in_any_order():
    model, names, X_val, labels = unsorted_iris()
    y_val = np.array([names.tolist().index(label) for label in labels])
    options = {"prior_variance": [0.1, 10.0]}
    for scoring in ("neg_log_loss", "roc_auc_ovr"):
        found, expected = (
            GridSearchCV(each, options, scoring=scoring, cv=3).fit(X_val, y)
            for each, y in ((model, labels), (LaplaceClassifier(model.module), y_val))
        )
        np.testing.assert_allclose(
            found.cv_results_["mean_test_score"], expected.cv_results_["mean_test_score"], rtol=1e-5
        )
        assert found.best_params_ == expected.best_params_


def test_tools_that_number_the_labels_are_told_apart_from_wrong_classes():
    """Several of scikit-learn's tools hand `fit` numbers; which outputs those are cannot be known there."""
    model, names, X_val, labels = unsorted_iris()
    with pytest.raises(ArgumentError, match=r"cross_val_predict.*numbers of its outputs, 0 to 2"):
        cross_val_predict(model, X_val, labels, method="predict_proba", cv=3)
    for y in (labels == "x", np.char.add(labels, "!")):  # no tool made these
        with pytest.raises(ArgumentError, match=r"and all of y: \[.*\]$"):
            clone(model).fit(X_val, y)
    y_val = np.array([names.tolist().index(label) for label in labels])
    as_told = cross_val_predict(LaplaceClassifier(model.module), X_val, y_val, method="predict_proba", cv=3)
    assert (as_told.argmax(1) == y_val).mean() > 0.9


@pytest.mark.parametrize("outputs", [1, 2])
def test_the_second_of_two_sorted_classes_is_the_positive_one(outputs):
    network, X, y, X_val, y_val = moons_network(outputs)
    names = np.array(["upper", "lower"])
    model = LaplaceClassifier(network, classes=names).fit(X, names[y])
    assert model.classes_.tolist() == ["lower", "upper"]
    of_the_first = model.laplace_.predict_proba(torch.tensor(X_val, dtype=torch.float32))[:, 0].numpy()
    expected = roc_auc_score(y_val == 0, of_the_first)
    assert expected > 0.9 and get_scorer("roc_auc")(model, X_val, names[y_val]) == pytest.approx(expected)


def test_a_fold_may_lack_a_class_that_the_network_has():
    network, X, y, X_val, _ = moons_network()
    names = np.array(["upper", "lower"])
    few = y == 0
    with pytest.raises(ArgumentError, match="two or more classes"):
        LaplaceClassifier(network).fit(X[few], names[y[few]])
    assert LaplaceClassifier(network, classes=names).fit(X[few], names[y[few]]).predict(X_val).shape == (150,)


@pytest.mark.parametrize("outputs", [1, 2])
def test_weights_are_repeated_rows_for_a_trained_network(outputs):
    network, X, y, X_val, y_val = moons_network(outputs)
    weights = np.arange(150) % 3
    # Quantiles, which the residual needs, have no weights, and are interpolated.
    found = LaplaceClassifier(network, residual=False)
    found.fit(X, y, weights, validation=(X_val, y_val, np.full(150, 2)))
    wanted = LaplaceClassifier(network, residual=False).fit(
        np.repeat(X, weights, axis=0),
        np.repeat(y, weights),
        validation=(np.repeat(X_val, 2, axis=0), np.repeat(y_val, 2)),
    )
    np.testing.assert_allclose(found.predict_proba(X), wanted.predict_proba(X), rtol=1e-3)
    assert found.laplace_.posterior.fitted.total_weight == weights.sum()


def test_weights_of_classes_are_weights_of_their_rows():
    network, X, y, X_val, y_val = moons_network()
    names = np.array(["upper", "lower"])
    options = {"classes": names}
    X, y = X[y[: len(X)].argsort()][:100], np.sort(y)[:100]  # the second class is rare
    counts = np.bincount(y)
    assert counts[0] > 2 * counts[1] > 0
    by_rows = 100 / (2 * counts)[y]
    validation = X_val, names[y_val]
    wanted = LaplaceClassifier(network, **options)
    wanted.fit(X, names[y], by_rows, validation=(*validation, (100 / (2 * counts))[y_val]))
    as_dict = {"upper": 100 / (2 * counts[0]), "lower": 100 / (2 * counts[1])}
    for class_weight in ("balanced", as_dict):
        found = LaplaceClassifier(network, class_weight=class_weight, **options)
        found.fit(X, names[y], validation=validation)
        np.testing.assert_array_equal(found.predict_proba(X), wanted.predict_proba(X))
    both = LaplaceClassifier(network, class_weight={"lower": 2.0}, prior_variance=1.0, **options)
    both.fit(X, names[y], np.full(100, 3.0))
    assert both.laplace_.posterior.fitted.total_weight == 3 * (counts[0] + 2 * counts[1])


def test_training_counts_weights():
    """Of two labels for the same rows, the one of more weight is learned."""
    X = np.random.default_rng(0).normal(size=(200, 2))
    y = np.arange(200) % 2
    X = np.repeat(X[:100], 2, axis=0)
    for heavy in (0, 1):
        weights = np.where(y == heavy, 5.0, 1.0)
        assert (classifier(epochs=20).fit(X, y, weights).predict(X) == heavy).mean() > 0.9
        by_class = classifier(epochs=20, class_weight={heavy: 5.0}).fit(X, y)
        assert (by_class.predict(X) == heavy).mean() > 0.9


class Small(nn.Module):
    """Batch norm and dropout, for images of any size."""

    def __init__(self, channels, classes):
        super().__init__()
        self.inside, self.norm = nn.Conv2d(channels, 6, 3), nn.BatchNorm2d(6)
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(6, classes)

    def forward(self, x):
        return self.head(self.drop(self.norm(self.inside(x)).relu().mean((2, 3))))


def test_a_function_makes_the_network():
    """Images, a class as the function, and a last batch of one row, which no batch norm could take."""
    random = np.random.default_rng(0)
    y = np.arange(82) % 2
    X = random.normal(size=(82, 1, 6, 6)) * (1 + 2 * y)[:, None, None, None]
    model = classifier(module=Small, batch_size=13).fit(X, y)
    assert isinstance(model.module_, Small) and not model.module_.training
    assert model.score(X, y) > 0.9
    assert next(model.module_.parameters()).dtype == torch.float32


def test_batches_of_one_row_train_too():
    X, _, y, _ = iris()
    once, twice = (classifier(batch_size=1, hidden=(4,), epochs=each).fit(X[:20], y[:20]) for each in (1, 2))
    assert not torch.equal(once.module_[1].weight, twice.module_[1].weight)


def test_random_state_decides_and_global_numbers_stay():
    X, X_test, y, _ = iris()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first, second, third = (classifier(epochs=3, random_state=seed).fit(X, y) for seed in (0, 0, 1))
    assert torch.equal(torch.rand(3), expected)
    np.testing.assert_array_equal(first.predict_proba(X_test), second.predict_proba(X_test))
    assert abs(first.predict_proba(X_test) - third.predict_proba(X_test)).max() > 1e-3


def test_it_is_cloned_and_pickled():
    network, X, y, X_val, _ = moons_network()
    model = LaplaceClassifier(network).fit(X, y)
    copied = clone(model)
    assert copied.module is not network and not hasattr(copied, "laplace_")
    np.testing.assert_array_equal(
        pickle.loads(pickle.dumps(model)).predict_proba(X_val), model.predict_proba(X_val)
    )


def test_mistakes_are_told():
    _, X, y, *_ = moons_network()
    with pytest.raises(NotFittedError):
        LaplaceClassifier().predict(X)
    wrong = {
        "epochs": 0,
        "batch_size": 2.5,
        "learning_rate": -1.0,
        "weight_decay": float("nan"),
        "validation_fraction": 1.0,
        "module": "mlp",
        "structure": "kfac",
        "classes": ["a", "b"],
    }
    for name, value in wrong.items():
        with pytest.raises(ArgumentError, match=name):
            classifier(**{name: value, "epochs": value if name == "epochs" else 1}).fit(X, y)
    for module in (nn.Linear(2, 5), lambda features, classes: nn.Linear(features, 5)):
        with pytest.raises(ArgumentError, match="5 outputs and there are 2 classes"):
            classifier(module=module).fit(X, y)
    with pytest.raises(ArgumentError, match=r"expected an nn\.Module"):
        classifier(module=lambda features, classes: None).fit(X, y)
    for weights in (np.ones((len(X), 1)), np.full(len(X), -1.0), np.full(len(X), np.nan), np.zeros(len(X))):
        with pytest.raises(ArgumentError, match="sample_weight"):
            classifier(epochs=1).fit(X, y, weights)
    for class_weight in ("equal", {7: 1.0}, {0: 0.0}, {0: np.inf}):
        with pytest.raises(ArgumentError, match="class_weight"):
            classifier(epochs=1, class_weight=class_weight).fit(X, y)
    for validation in (X, (X, y + 5)):
        with pytest.raises(ArgumentError, match="validation"):
            classifier(epochs=1).fit(X, y, validation=validation)


def test_a_fraction_that_leaves_nothing_to_train_on_is_told_with_the_rows():
    X, y = np.eye(3), np.array([0, 1, 1])
    with pytest.raises(ArgumentError, match=r"validation_fraction=0\.999 .* all 3 rows"):
        classifier(validation_fraction=0.999).fit(X, y)
    assert classifier(validation_fraction=0.999, prior_variance=1.0).fit(X, y).predict(X).shape == (3,)
    assert classifier(validation_fraction=0.5, epochs=1).fit(X, y).predict(X).shape == (3,)


def test_missing_libraries_are_named():
    code = """
import sys
sys.modules.update(dict.fromkeys(("sklearn", "lightning", "pytorch_lightning", "transformers")))
import bitbayes as bb
uses = (
    lambda: bb.sklearn,
    lambda: bb.lightning.LaplaceCallback(),
    lambda: bb.transformers.LaplaceCallback(),
)
for use in uses:
    try:
        use()
    except ImportError as error:
        assert isinstance(error, bb.BitbayesError)
        print(error)
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    lines = shown.stdout.splitlines()
    assert len(lines) == 3 and all("install" in line for line in lines), shown.stderr
    for line, package in zip(lines, ("scikit-learn", "lightning", "transformers"), strict=True):
        assert package in line

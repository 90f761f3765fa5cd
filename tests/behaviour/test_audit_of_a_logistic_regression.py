"""A classifier that is calibrated already, and hardly any validation points: the audit says so.

scikit-learn's logistic regression on its table of breast cancers, as one linear layer with the same weights.
There is nothing to gain on the normal inputs, and 40 points could not show it.
"""

import re

import pytest
import torch

import bitbayes as bb
from bitbayes.auditing import render_page

sklearn = pytest.importorskip("sklearn", reason="scikit-learn is not installed")

VALIDATION = 40


@pytest.fixture(scope="module")
def audited():
    from sklearn.datasets import load_breast_cancer
    from sklearn.linear_model import LogisticRegression

    table = load_breast_cancer()
    order = torch.randperm(len(table.data), generator=torch.Generator().manual_seed(0))
    rows, y = torch.tensor(table.data).float()[order], torch.tensor(table.target)[order]
    n = 264
    x = (rows - rows[:n].mean(0)) / rows[:n].std(0)
    clf = LogisticRegression(max_iter=1000).fit(x[:n].numpy(), y[:n].numpy())
    linear = torch.nn.Linear(x.shape[1], 1)
    with torch.no_grad():
        linear.weight.copy_(torch.tensor(clf.coef_))
        linear.bias.copy_(torch.tensor(clf.intercept_))
    ends = (n, n + VALIDATION)
    parts = zip(x.tensor_split(ends), y.tensor_split(ends), strict=True)
    models = {"plain": linear, "scikit-learn": lambda x: torch.tensor(clf.predict_proba(x.numpy()))}
    return bb.audit(models, *parts, name="Breast cancer")


def test_the_layer_is_the_logistic_regression(audited):
    """The column of scikit-learn's own probabilities has the same numbers."""
    for measure in ("accuracy", "nll", "ece", "brier"):
        values = [getattr(audited.test[name], measure) for name in ("plain", "scikit-learn")]
        assert values[0] == pytest.approx(values[1], rel=1e-4, abs=1e-6)


def test_the_verdict_says_that_it_does_not_help_and_why(audited):
    opening, reasons = re.split(r" Likely reasons?: ", audited.verdict)
    assert opening.startswith("bitbayes does not help here")
    assert "accuracy and calibration stay" in opening
    wrong = audited.errors["validation"]
    assert f"only {VALIDATION} validation points, {wrong or 'none'} of them wrong" in reasons
    assert "the network is calibrated already (ECE " in reasons


def test_what_the_audit_made_up_is_named_as_that(audited):
    """Noise and far-away inputs are stopped, and do not turn the verdict."""
    assert audited.groups["far"].scores["bitbayes"].fpr95 < 0.05
    assert "except on inputs that the audit made up (noise and far-away)" in audited.verdict


def test_the_page_begins_with_it_and_says_what_to_do(audited):
    page = render_page(audited)
    heading = re.search(r"<h1[^>]*>(.*?)</h1>", page, re.DOTALL)
    assert heading and audited.verdict.startswith(heading[1])
    reasons = audited.verdict.removeprefix(heading[1]).strip()
    assert reasons.startswith("Likely reason") and page.index(heading[1]) < page.index(reasons)
    text = str(audited)
    for shown in (page, text):
        assert "Keep the plain network" in shown
        assert "some hundred validation inputs" in " ".join(shown.split())

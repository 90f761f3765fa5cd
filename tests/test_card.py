"""The card of a posterior: its header, its table, what it explains, and how it knows itself."""

import re

import pytest

from bitbayes.card import COLUMNS, NOT_SHOWN, Described, card, check_evaluated, is_untouched
from bitbayes.errors import ArgumentError
from bitbayes.likelihoods import LIKELIHOODS

TEST = {"accuracy": 0.9666, "nll": 0.1234, "ece": 0.012, "brier": 0.1, "mmc": 0.97, "aurc": 0.01}
FAR = {"far/auroc": 0.998, "far/fpr95": 0.004, "far/mmc": 0.5}


def described(likelihood="categorical"):
    return Described("ConvNet", LIKELIHOODS[likelihood], "Laplace(…)", "bayes.safetensors", "owner/name")


def text(evaluated=None, **options):
    return card(described(**options), check_evaluated(evaluated))


def table(found):
    rows = [line.strip("|").split("|") for line in found.splitlines() if line.startswith("|")]
    names, _, *others = [[cell.strip() for cell in row] for row in rows]
    return [dict(zip(names, row, strict=True)) for row in others]


def test_the_header_is_what_the_hub_reads():
    yaml = pytest.importorskip("yaml", reason="pyyaml is not installed: `make test` installs it")
    _, header, rest = text().split("---\n", 2)
    assert yaml.safe_load(header) == {
        "library_name": "bitbayes",
        "tags": ["bitbayes", "uncertainty", "calibration"],
    }
    assert rest.lstrip().startswith("# Confidence for a trained ConvNet\n")


def test_calibration_shift_and_refusal_are_in_one_table():
    found = text({"test": TEST | FAR, "blurred": TEST | {"accuracy": 0.5, "ece": 0.2}})
    first, far, blurred = table(found)
    numbers = {"accuracy, %": "96.7", "confidence, %": "97.0", "ECE, %": "1.2", "NLL": "0.123"}
    assert first == {"data": "test", **numbers, "AUROC, %": "–", "let through, %": "–"}
    assert far["data"] == "far, beside test" and far["ECE, %"] == "–"
    assert (far["AUROC, %"], far["let through, %"], far["confidence, %"]) == ("99.8", "0.4", "50.0")
    assert (blurred["data"], blurred["accuracy, %"], blurred["ECE, %"]) == ("blurred", "50.0", "20.0")


def test_each_column_is_explained_and_no_other():
    found = text(TEST | FAR)
    columns = [name for name in table(found)[0] if name != "data"]
    assert re.findall(r"^- \*\*(.*?)\*\*: ", found, re.MULTILINE) == columns
    assert table(found)[0]["data"] == "test data"


def test_without_numbers_the_card_says_so():
    assert "Nothing was measured" in text() == text({}) and "|" not in text()


def test_numbers_that_are_not_shown_make_no_empty_table():
    assert "Nothing was measured" in text({"test": {"aurc": 0.1}})


@pytest.mark.parametrize(
    "likelihood, call",
    [
        ("categorical", "bayes.predict_proba(x)"),
        ("multilabel", "bayes.predict_proba(x)"),
        ("gaussian", "bayes.predict(x)"),
        ("preference", "bayes.reward(x)"),
    ],
)
def test_three_lines_load_it(likelihood, call):
    (code,) = re.findall(r"```python\n(.*?)```", text(likelihood=likelihood), re.DOTALL)
    first, second, third = code.splitlines()
    assert first == "import bitbayes as bb" and third.endswith(call)
    assert second == 'bayes = bb.Laplace.from_pretrained("owner/name", model)'


def test_every_measure_of_evaluate_is_known():
    """Those that the docstring of `evaluate` names."""
    from bitbayes import Laplace

    named = set(re.findall(r'"(?:NAME/)?(\w+)"', Laplace.evaluate.__doc__.partition("Args:")[0]))
    assert named == {*COLUMNS, *NOT_SHOWN}


@pytest.mark.parametrize(
    "evaluated, message",
    [
        ([0.5], "evaluated is a list"),
        ({"test": TEST, "accuracy": 0.5}, "'accuracy': expected the names of sets"),
        ({" ": TEST}, "' ': expected the names"),
        ({1: TEST}, "1: expected the names"),
        ({"colour": 0.5}, "'colour', which `evaluate` does not return"),
        ({"test": {"far/colour": 0.5}}, "'far/colour'"),
        ({"accuracy": float("nan")}, "'accuracy': nan: expected a finite"),
        ({"accuracy": "0.5"}, "'accuracy': '0.5'"),
    ],
)
def test_what_evaluate_does_not_return_is_refused(evaluated, message):
    with pytest.raises(ArgumentError, match=message):
        check_evaluated(evaluated)


def test_names_do_not_break_the_table():
    (row,) = table(text({"a | b\n<script>": {"accuracy": 0.5}}).replace("\\|", "¦"))
    assert row == {"data": "a ¦ b \\<script>", "accuracy, %": "50.0"}


def test_a_card_knows_whether_it_was_edited():
    found = text(TEST).encode()
    assert is_untouched(found) and is_untouched(found.replace(b"\n", b"\r\n"))
    assert not is_untouched(found.replace(b"96.7", b"99.7"))
    assert not is_untouched(found + b"My own words.\n")
    assert not is_untouched(b"# A model\n") and not is_untouched(b"") and not is_untouched(b"\xff\xfe")

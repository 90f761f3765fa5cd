from dataclasses import replace

import pytest

from bitbayes.auditing import summarise
from bitbayes.auditing.findings import Audit, TestScores
from bitbayes.auditing.sentences import calibration_gap


def test_three_sentences_written_from_the_numbers(audit: Audit) -> None:
    assert summarise(audit) == [
        "On 400 test inputs of the kind it was trained for, the plain network is right 90.0 % of the time "
        "and claims to be 99.0 % sure on average: it is overconfident by 9.0 percentage points.",
        # The mean of the given sets, 80 and 90, and 40 and 50; the noise is not among them.
        "Shown things that belong to none of its classes (cars and <ships>), the plain network still claims "
        "to be 85.0 % sure on average; bitbayes brings that down to 45.0 %, where a blind guess among 4 "
        "classes would be 25.0 % sure.",
        "On the test inputs bitbayes changes 3 of 400 answers, is right 89.5 % of the time and claims to be "
        "90.0 % sure: its confidence fits its record better than before "
        "(calibration error 1.0 % after, 9.0 % before).",
    ]


def test_they_say_so_when_bitbayes_is_worse(worse: Audit) -> None:
    familiar, unfamiliar, change = summarise(worse)
    assert familiar.endswith("that is as sure as it deserves to be.")
    assert "bitbayes makes that worse, 70.0 %" in unfamiliar
    assert "changes none of 400 answers, is right 80.0 %" in change
    assert "less well than before (calibration error 30.0 % after, 1.0 % before)" in change


def test_without_given_outliers_the_made_ones_count(audit: Audit) -> None:
    noise_only = replace(audit, outliers=audit.outliers[2:])
    assert "(Uniform noise), the plain network still claims to be 100.0 %" in summarise(noise_only)[1]
    assert "no unfamiliar inputs" in summarise(replace(audit, outliers=[]))[1]


@pytest.mark.parametrize(
    "accuracy, confidence, n, expected",
    [
        (0.90, 0.95, 10_000, 0.05),  # two standard errors are 0.006
        (0.90, 0.85, 10_000, -0.05),
        (0.90, 0.95, 100, 0.0),  # and here 0.06
        (1.00, 0.996, 1_000, 0.0),  # no error at all, but half a point is nothing to speak of
        (1.00, 0.99, 1_000, -0.01),
    ],
)
def test_a_gap_counts_only_where_the_data_show_it(
    audit: Audit, accuracy: float, confidence: float, n: int, expected: float
) -> None:
    scores: TestScores = replace(audit.test["plain"], accuracy=accuracy, confidence=confidence)
    assert calibration_gap(scores, n) == pytest.approx(expected)

"""Names of classes and features: as they are given, and refused if they do not fit."""

from typing import Any

import pytest

from bitbayes.auditing.names import check_features, name_classes, read_names
from bitbayes.errors import ArgumentError


def test_names_are_texts_on_one_line() -> None:
    assert read_names(("a\x1b", " b  c "), "classes") == ["a\\x1b", "b c"]
    assert read_names(range(2), "classes") == ["0", "1"]
    assert name_classes([], 2) == ["class 0", "class 1"]
    check_features([], 784)


@pytest.mark.parametrize(
    "given, message",
    [
        ("cat", "classes is a str: give a list of texts"),
        ({0: "cat"}, "classes is a dict: give a list of texts"),
        (3, "classes is a int"),
        ([], r"classes=\[\]: give a text for each"),
        (["cat", ""], "give a text for each"),
        (["cat", "dog", "cat"], "classes has 'cat' twice"),
    ],
)
def test_what_are_no_names_is_refused(given: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        read_names(given, "classes")


def test_a_wrong_number_is_refused() -> None:
    with pytest.raises(ArgumentError, match="classes has 9 names, and the model has 10 classes"):
        name_classes([str(i) for i in range(9)], 10)
    with pytest.raises(ArgumentError, match="features has 1 name, and an input has 2 numbers"):
        check_features(["age"], 2)

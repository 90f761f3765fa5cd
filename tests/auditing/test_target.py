from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from bitbayes.auditing.target import embedded_target, load_target
from bitbayes.errors import ArgumentError, BitbayesError, DataError, ModelError

MODULE = """
import torch
GOOD = {"model": torch.nn.Linear(2, 2), "train": [1], "validation": [2], "test": [3]}
number = 3
def good(): return GOOD
def with_outliers(): return {**GOOD, "outliers": {"noise": torch.zeros(3, 2)}}
def several(): return {"models": {"a": torch.relu}, "test": [3]}
def both(): return {**GOOD, "models": {}}
def a_model_list(): return {"models": [1], "test": [3]}
def no_test_of_several(): return {"models": {}, "train": [1]}
def a_list(): return [1]
def no_test(): return {"model": 1, "train": 2, "valid": 3}
def misspelt(): return {**GOOD, "outlier": {}}
def no_module(): return {**GOOD, "model": "net.pt"}
def one_set(): return {**GOOD, "outliers": torch.zeros(3, 2)}
def raises():
    raise ValueError("the disk is full")
def named(): return {**GOOD, "name": "Pets", "classes": ["cat", "dog"], "segment": "site"}
def no_text(): return {**GOOD, "name": 3}
def needs(argument): return GOOD
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # and undone afterwards, with what `load_target` adds
    Path("audited.py").write_text(MODULE)
    Path("broken.py").write_text("import torch\nimport a_missing_package\n")
    Path("wrong.py").write_text("x = 1 / 0\n")
    for name in ("audited", "broken", "wrong"):
        monkeypatch.delitem(__import__("sys").modules, name, raising=False)


def test_a_function_in_the_current_directory() -> None:
    target = load_target("audited:good")
    assert target.name == "audited:good"
    assert isinstance(target.models, nn.Linear)
    assert (target.train, target.validation, target.test) == ([1], [2], [3])
    assert target.outliers == {}
    assert load_target("audited:with_outliers").outliers.keys() == {"noise"}
    named = load_target("audited:named")
    assert (named.name, named.classes, named.features, named.segment) == (
        "Pets",
        ["cat", "dog"],
        None,
        "site",
    )
    several = load_target("audited:several")
    assert several.models == {"a": torch.relu}
    assert (several.train, several.validation, several.test) == (None, None, [3])


@pytest.mark.parametrize(
    "name, kind, message",
    [
        ("audited", ArgumentError, r"'audited' is no target: write package.module:function"),
        (":good", ArgumentError, r"':good' is no target"),
        ("audited:", ArgumentError, r"'audited:' is no target"),
        ("nowhere:good", ArgumentError, r"no module 'nowhere' in .* or among the installed packages"),
        (
            "audited.deeper:good",
            ArgumentError,
            r"importing 'audited.deeper' raised ModuleNotFoundError|no module",
        ),
        (
            "broken:good",
            ArgumentError,
            r"importing 'broken' raised ModuleNotFoundError: .*a_missing_package.* \(broken.py, line 2\)",
        ),
        ("wrong:good", ArgumentError, r"importing 'wrong' raised ZeroDivisionError: .* \(wrong.py, line 1\)"),
        ("audited:god", ArgumentError, r"module 'audited' \(.*audited.py\) has no function 'god'"),
        ("audited:number", ArgumentError, r"audited:number is a int: it must be a function"),
        (
            "audited:raises",
            DataError,
            r"audited:raises raised ValueError: the disk is full \(audited.py, line 17\)",
        ),
        ("audited:needs", DataError, r"audited:needs raised TypeError: .*argument"),
        (
            "audited:a_list",
            DataError,
            r'returned a list: it must return a dict with the keys "model", "train"',
        ),
        (
            "audited:no_test",
            DataError,
            r'a dict without "validation", "test": it has "model", "train", "valid"',
        ),
        ("audited:misspelt", DataError, r'a dict with the unknown key "outlier"; expected "model"'),
        ("audited:both", DataError, r'a dict with "model" and "models": give one of them'),
        ("audited:a_model_list", DataError, r'"models" is a list: it must be a dict from a name'),
        ("audited:no_test_of_several", DataError, r'a dict without "test": it has "models", "train"'),
        ("audited:no_module", ModelError, r'"model" is a str: it must be a torch.nn.Module'),
        ("audited:no_text", DataError, r'"name" is a int: it must be a text'),
        ("audited:one_set", DataError, r'"outliers" is a Tensor: it must be a dict from a name'),
    ],
)
def test_what_is_wrong_is_said(name: str, kind: type[BitbayesError], message: str) -> None:
    with pytest.raises(kind, match=message):
        load_target(name)


def test_the_embedded_digits_are_split_by_the_seed() -> None:
    def images(part: Any) -> torch.Tensor:
        return torch.cat([x for x, _ in part])

    one, again, other = (embedded_target(seed) for seed in (0, 0, 1))
    assert images(one.train).shape == (5000, 1, 28, 28)
    assert len(images(one.validation)) == len(images(one.test)) == 1000
    assert torch.equal(images(one.test), images(again.test))
    assert not torch.equal(images(one.test), images(other.test))
    assert list(one.outliers) == ["Fashion-MNIST", "Letters (A–Z)"]

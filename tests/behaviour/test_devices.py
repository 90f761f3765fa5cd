"""Sums that were fitted on one device are added on another."""

from dataclasses import replace

import pytest
import torch

import bitbayes as bb
from classifiers import points, relu_mlp


@pytest.mark.parametrize("layers, structure", [("last", "kron"), ("last", "full"), ("all", "kron")])
def test_sums_follow_the_model_to_another_device(layers, structure):
    """The device "meta" stands for another one: its tensors hold no numbers, but have a device."""
    x, y = points()
    bayes = bb.Laplace(relu_mlp(), layers=layers, structure=structure, residual=True).fit([(x, y)])
    fitted = bayes.posterior.fitted
    meta = torch.device("meta")
    away = {name: each.to(meta) for name, each in fitted.curvature.items()}
    levels = {name: each.to(meta) for name, each in fitted.level_sums.items()}
    assert [*levels] == ["input", "head"]
    both = fitted + replace(fitted, curvature=away, level_sums=levels)
    bundles = [*both.curvature.values(), *both.level_sums.values()]
    found = [tensor for each in bundles for tensor in each.tensors().values()]
    assert {value.device.type for value in found} == {"meta"}

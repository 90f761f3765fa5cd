"""Which structure memory allows, and which "auto" takes."""

import pytest
import torch
from torch import nn

import bitbayes as bb
import reference
from bitbayes.errors import NotEnoughMemoryError
from bitbayes.fitting import affordable


def curvature_of(bayes):
    (curvature,) = bayes.posterior.fitted.curvature.values()
    return curvature


def test_auto_takes_it_for_many_classes(monkeypatch):
    def chosen(k, **options):
        bayes, _, _ = reference.fitted(k, **options)
        return curvature_of(bayes).structure

    monkeypatch.setattr(affordable, "MANY_CLASSES", 8)
    assert [chosen(k) for k in (1, 2, 8, 9)] == ["full", "kron", "kron", "lowrank"]


def test_memory_that_does_not_suffice_is_said_before_the_first_batch(monkeypatch):
    monkeypatch.setattr(affordable, "free_bytes", lambda device: 10**6)
    model = nn.Sequential(nn.Linear(2, 20), nn.ReLU(), nn.Linear(20, 3000))
    seen = []
    model[0].register_forward_hook(lambda *_: seen.append(1))
    bayes = bb.Laplace(model, structure="lowrank")
    with pytest.raises(
        NotEnoughMemoryError, match=r"0\.4 GB.*3,000 outputs and 21 features.*0\.0 GB are free"
    ):
        bayes.fit([(torch.randn(4, 2), torch.arange(4))])
    assert isinstance(NotEnoughMemoryError(), MemoryError)
    with pytest.raises(bb.errors.NotFittedError):
        bayes.score(torch.randn(4, 2))

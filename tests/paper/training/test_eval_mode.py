"""The context that puts a model in eval mode."""

import pytest
from torch import nn

from paper.training.eval_mode import eval_mode


def test_eval_mode_gives_every_module_its_mode_back():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout()).train()
    model[1].eval()
    with eval_mode(model):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model] == [True, False, True] and model.training
    with pytest.raises(ZeroDivisionError), eval_mode(model):
        raise ZeroDivisionError
    assert [module.training for module in model] == [True, False, True] and model.training

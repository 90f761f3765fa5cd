"""How many points a pass takes at once, and that cutting batches changes nothing."""

import torch
from torch import nn

import bitbayes as bb
from bitbayes.model import find_layers, points_at_once
from bitbayes.model.jacobians import memory
from dense import close, fitted


def test_memory_counts_modules_with_keyword_inputs_and_tuple_outputs(monkeypatch):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside = nn.Linear(3, 3)

        def forward(self, *, states):
            return self.inside(states), None

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.block, self.head = Block(), nn.Linear(3, 2)

        def forward(self, x):
            return self.head(self.block(states=x)[0])

    model = Model()
    numbers = (2 + 4) * 3 + (2 + 4) * 2 + 2 * 2  # inside, head, and the model itself
    monkeypatch.setattr(memory, "CPU_PASS_BYTES", 10 * 4 * numbers)
    assert points_at_once(model, find_layers(model), torch.randn(5, 3), directions=4) == 10


def test_batches_cut_for_memory_give_the_same_covariance(monkeypatch):
    bayes, model, x, y = fitted("convnet", "kron")
    whole = bayes.logits(x).covariance
    monkeypatch.setattr("bitbayes.model.jacobians.memory.CPU_PASS_BYTES", 1)
    cut = bb.Laplace(model, layers="all", structure="kron").fit([(x, y)])
    sizes = []
    handle = model[0].register_forward_hook(lambda _, args, __: sizes.append(len(args[0])))
    close(cut.logits(x).covariance, whole, 1e-12)
    handle.remove()
    assert set(sizes) == {1}

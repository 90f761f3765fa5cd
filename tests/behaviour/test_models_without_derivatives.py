"""Models without a graph of derivatives: scripted, checkpointed, and without gradients."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import bitbayes as bb
from bitbayes.errors import ModelError
from classifiers import points, relu_mlp
from dense import close

STRUCTURES = ["diag", "kron", "full"]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("how", ["scripted", "traced", "inside"])
def test_scripted_models_are_refused(structure, how):
    x, y = points(6, dtype=torch.float64)
    model = relu_mlp(dtype=torch.float64)
    made = torch.jit.trace(model, x) if how == "traced" else torch.jit.script(model)
    if how == "inside":
        made = nn.Sequential(made, nn.Linear(3, 3).double())
    with pytest.raises(ModelError, match=r"torch\.jit.*layer by layer: give the nn\.Module itself"):
        bb.Laplace(made, layers="all", structure=structure).fit([(x, y)])


class Graphless(nn.Module):
    """A network whose middle layer is called without a graph, or with checkpointing."""

    def __init__(self, how):
        super().__init__()
        self.first, self.body, self.head, self.how = nn.Linear(4, 5), nn.Linear(5, 5), nn.Linear(5, 3), how

    def forward(self, x):
        x = self.first(x).tanh()
        if self.how == "no_grad":
            with torch.no_grad():
                x = self.body(x)
        elif self.how == "plain":
            x = self.body(x)
        else:
            x = checkpoint(self.body, x, use_reentrant=self.how == "reentrant")
        return self.head(x.tanh())


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("how", ["no_grad", "reentrant"])
def test_a_layer_that_is_called_without_a_graph_is_named(structure, how):
    with pytest.raises(ModelError, match=r"'body' is called without a graph.*use_reentrant=False"):
        bb.Laplace(Graphless(how).double(), layers="all", structure=structure).fit(
            [points(6, dtype=torch.float64)]
        )


@pytest.mark.parametrize("structure", STRUCTURES)
def test_checkpointing_that_is_not_reentrant_gives_the_same_covariance(structure):
    model = Graphless("checkpoint").double()
    x, y = points(6, dtype=torch.float64)
    found = bb.Laplace(model, layers="all", structure=structure).fit([(x, y)]).logits(x).covariance
    model.how = "plain"
    close(
        found, bb.Laplace(model, layers="all", structure=structure).fit([(x, y)]).logits(x).covariance, 1e-12
    )


def test_a_model_that_switches_gradients_off_is_refused():
    class Off(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside = relu_mlp(dtype=torch.float64)

        @torch.no_grad()
        def forward(self, x):
            return self.inside(x)

    with pytest.raises(ModelError, match="no derivatives: does it switch gradients off"):
        bb.Laplace(Off(), layers="all").fit([points(6, dtype=torch.float64)])

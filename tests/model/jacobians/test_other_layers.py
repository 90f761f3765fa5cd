"""Layers of other kinds, differentiated by autograd: recurrent, attention, embeddings, bare parameters."""

import pytest
import torch
from torch import nn

import bitbayes as bb
import dense
from classifiers import points
from dense import TextModel, autograd_jacobian, close, library_jacobian


class RecurrentLayers(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.inside, self.head = kind(3, 4, batch_first=True, **options), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.inside(x)[0][:, -1, :4])


class Product(nn.Module):
    """A bilinear layer that takes its input twice, and an activation with a learned slope."""

    def __init__(self):
        super().__init__()
        self.product, self.slope, self.head = nn.Bilinear(4, 4, 5), nn.PReLU(5), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.slope(self.product(x, x)))


WITHOUT_VMAP = {
    "gru": (lambda: RecurrentLayers(nn.GRU), (5, 3)),
    "rnn": (lambda: RecurrentLayers(nn.RNN), (5, 3)),
    "lstm": (lambda: RecurrentLayers(nn.LSTM), (5, 3)),
    "deep": (lambda: RecurrentLayers(nn.GRU, num_layers=2, bidirectional=True), (5, 3)),
    "bilinear": (Product, (4,)),
}


@pytest.mark.parametrize("name", WITHOUT_VMAP)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_derivatives_of_layers_without_vmap_are_those_of_autograd(name, dtype):
    make, shape = WITHOUT_VMAP[name]
    model = make().to(dtype).eval()
    x, _ = points(6, *shape, dtype=dtype)
    close(library_jacobian(model, x), autograd_jacobian(model, x.split(1)), 100 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("structure", ["diag", "full"])
@pytest.mark.parametrize("name", WITHOUT_VMAP)
def test_covariances_of_layers_without_vmap_are_the_dense_ones(name, structure):
    make, shape = WITHOUT_VMAP[name]
    model = make().double()
    x, y = points(6, *shape, dtype=torch.float64)
    bayes = bb.Laplace(model, layers="all", structure=structure, prior_variance=0.5).fit(
        [(x[:4], y[:4]), (x[4:], y[4:])]
    )
    j = autograd_jacobian(model, x.split(1))
    p = model(x).softmax(1).detach()
    h = torch.einsum("nkp,nkl,nlq->pq", j, torch.diag_embed(p) - p[:, :, None] * p[:, None], j)
    h = torch.diag(torch.diag(h)) if structure == "diag" else h
    sigma = torch.linalg.inv(h + 2 * torch.eye(len(h), dtype=h.dtype))
    close(bayes.logits(x).covariance, j @ sigma @ j.mT)
    assert bayes.predict_proba(x[:0]).shape == (0, 3)


@pytest.mark.parametrize("structure", ["diag", "full"])
def test_embeddings_and_bare_parameters_have_the_dense_covariance(structure):
    model = TextModel().double()
    x, y = torch.randint(0, 10, (6, 3)), torch.arange(6) % 2
    bayes = bb.Laplace(model, layers="all", structure=structure).fit([(x, y)])
    sigma = dense.covariance(structure, model, x, y, 1.0)
    close(bayes.logits(x).covariance, dense.logits_covariance(model, sigma, x))


class RecurrentCell(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(3, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        state = x.new_zeros(len(x), 4)
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.head(state)


class AttentionModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.MultiheadAttention(4, 2, batch_first=True)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        mixed, _ = self.mix(x, x, x)
        return self.head(self.norm(x + mixed).mean(1))


@pytest.mark.parametrize("structure", ["diag", "full"])
@pytest.mark.parametrize("kind, width", [(RecurrentCell, 3), (AttentionModel, 4)])
def test_recurrent_and_attention_layers_have_the_dense_covariance(kind, width, structure):
    torch.manual_seed(0)
    model = kind().double().eval()
    x, y = torch.randn(7, 5, width, dtype=torch.float64), torch.arange(7) % 3
    bayes = bb.Laplace(model, layers="all", structure=structure).fit([(x, y)])
    sigma = dense.covariance(structure, model, x, y, 1.0)
    close(bayes.logits(x).covariance, dense.logits_covariance(model, sigma, x))


class LearnedGain(nn.Module):
    """A network with a parameter of shape ()."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(1.5))
        self.inside, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(torch.relu(self.inside(x)) * self.gain)


@pytest.mark.parametrize("structure", ["diag", "full"])
def test_a_parameter_of_one_number_has_the_dense_covariance(structure):
    torch.manual_seed(0)
    model = LearnedGain().double()
    x, y = torch.randn(9, 4, dtype=torch.float64), torch.arange(9) % 3
    bayes = bb.Laplace(model, layers="all", structure=structure).fit([(x, y)])
    sigma = dense.covariance(structure, model, x, y, 1.0)
    close(bayes.logits(x).covariance, dense.logits_covariance(model, sigma, x))
    assert bayes.sample(3)["gain"].shape == (3,)
    assert bool((bayes.bound(x) >= bayes.limit(x).confidence).all())

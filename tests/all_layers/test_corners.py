"""What users bring: NaN, empty batches, scalar parameters, frozen later, inference mode, odd groups."""

import pytest
import torch
from torch import nn

import bitbayes as bb
import dense
from bitbayes.errors import ArgumentError, DataError, ModelError
from dense import close, loader

STRUCTURES = ["diag", "kron", "full"]


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize(
    "bad, message",
    [(float("nan"), "NaN or infinity"), (float("inf"), "NaN or infinity"), (1e308, "overflows")],
)
def test_sampled_networks_refuse_what_the_network_cannot_take(structure, bad, message):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    x, y = torch.randn(12, 4, dtype=torch.float64), torch.arange(12) % 3
    bayes = bb.Laplace(model, layers="all", structure=structure).fit([(x, y)])
    model[2].weight.data *= 1e10
    x[1] = bad
    with pytest.raises(DataError, match=message):
        bayes.predict_proba(x, method="weights")


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("curvature", ["exact", "paper"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", ["pairwise", "mc", "weights"])
def test_prior_variances_from_next_to_nothing_to_beyond_the_range_of_float32(
    structure, curvature, dtype, method
):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).to(dtype)
    x, y = torch.randn(12, 4, dtype=dtype), torch.arange(12) % 3
    seen = x.clone()
    seen[:, :2] = 0  # nothing is learned of these inputs, nor of the unit that is dead
    model[0].bias.data[0] = -100
    bayes = bb.Laplace(model, layers="all", structure=structure, curvature=curvature).fit([(seen, y)])
    for exponent in (-300, -160, -40, -20, 14, 20, 30, 40, 80, 160, 300):
        bayes.prior_variance = 10.0**exponent
        p = bayes.predict_proba(torch.cat([x, 1e10 * x]), method=method)
        close(p.sum(1), torch.ones(24, dtype=dtype), 1e-6)
        if exponent < -15:  # no variance: the network's own prediction
            close(p[:12], model(x).softmax(1).to(p), 1e-5)


def test_sampled_networks_never_see_the_residual():
    model, x, y = dense.case("mlp")
    bayes = bb.Laplace(model, layers="all", residual=True).fit(loader(x, y))
    with pytest.raises(ArgumentError, match="never sees the residual"):
        bayes.predict_proba(x, method="weights")


class Gain(nn.Module):
    """A parameter that is one number."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(1.5))
        self.inside, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(torch.relu(self.inside(x)) * self.gain)


@pytest.mark.parametrize("structure", ["diag", "full"])
def test_a_parameter_may_be_one_number(structure):
    torch.manual_seed(0)
    model = Gain().double()
    x, y = torch.randn(9, 4, dtype=torch.float64), torch.arange(9) % 3
    bayes = bb.Laplace(model, layers="all", structure=structure).fit([(x, y)])
    sigma = dense.covariance(structure, model, x, y, 1.0)
    close(bayes.logits(x).covariance, dense.logits_covariance(model, sigma, x))
    assert bayes.sample(3)["gain"].shape == (3,)
    assert bool((bayes.bound(x) >= bayes.limit(x).confidence).all())


@pytest.mark.parametrize("structure", ["diag", "kron"])
@pytest.mark.parametrize("first", [True, False])
def test_what_is_frozen_may_not_change_between_fit_and_update(structure, first):
    model, x, y = dense.case("mlp")
    model[0].requires_grad_(first)
    bayes = bb.Laplace(model, layers="all", structure=structure).fit([(x, y)])
    before = bayes.logits(x).covariance
    model[0].requires_grad_(not first)
    with pytest.raises(ModelError, match="frozen"):
        bayes.update([(x, y)])
    assert torch.equal(bayes.logits(x).covariance, before)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("residual", [False, True, ("2",)])
def test_no_points_give_no_predictions(structure, residual):
    model, x, y = dense.case("mlp")
    bayes = bb.Laplace(model, layers="all", structure=structure, residual=residual).fit([(x, y)])
    none = x[:0]
    assert bayes.predict_proba(none).shape == (0, 3)
    assert bayes(none).shape == (0, 3)
    assert bayes.logits(none).mean.shape == (0, 3)
    assert bayes.predict_proba(x).shape == (12, 3)  # and some afterwards as many as there are
    for method in (bayes.limit, bayes.certify, bayes.bound):
        with pytest.raises(DataError, match="empty"):
            method(none)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_everything_works_in_inference_mode(structure):
    _, x, y = dense.case("mlp")
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    outside = bb.Laplace(model, layers="all", structure=structure).fit([(x, y)])
    with torch.inference_mode():
        inside = bb.Laplace(model, layers="all", structure=structure).fit([(x + 0, y)])
        close(inside.predict_proba(x + 0), outside.predict_proba(x), 1e-12)
        close(inside.limit(x + 0).confidence, outside.limit(x).confidence, 1e-12)
        close(inside.certify(x + 0).confidence, outside.certify(x).confidence, 1e-12)


class TwoGroups(nn.Module):
    """Two groups of a convolution that never meet before the head."""

    def __init__(self):
        super().__init__()
        self.groups = nn.Conv1d(2, 2, 1, groups=2, bias=False)
        self.head = nn.Linear(2, 2, bias=False)

    def forward(self, x):
        return self.head(self.groups(x[:, :, None]).flatten(1))


def test_groups_of_very_different_size_are_both_seen():
    torch.manual_seed(0)
    model = TwoGroups()
    x, y = torch.randn(30, 2), torch.arange(30) % 2
    model.groups.weight.data[0] /= 1e16
    x[:, 0] *= 1e16
    single = bb.Laplace(model, layers="all").fit([(x, y)]).logits(x).covariance
    double = bb.Laplace(model.double(), layers="all").fit([(x.double(), y)]).logits(x.double()).covariance
    close(single.double(), double, 1e-5)


def test_a_layer_that_works_in_place_does_not_change_what_the_residual_sees():
    torch.manual_seed(0)
    layers = [nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)]
    x, y = torch.randn(20, 4), torch.arange(20) % 3
    found = []
    for inplace in (False, True):
        layers[1] = nn.ReLU(inplace)
        bayes = bb.Laplace(nn.Sequential(*layers), residual=("1",)).fit([(x, y)])
        found.append(bayes.predict_proba(x))
    assert torch.equal(*found)

"""Fisher estimates, the paper's variants, a prior for each layer, tuning, and what is refused."""

import math

import pytest
import torch
from torch import nn

import bitbayes as bb
import dense
from bitbayes.all_layers import NODES, interpolation
from bitbayes.errors import ArgumentError, DataError, EdgeWarning, ModelError, NotFittedError
from dense import close, fitted, loader

# ---- the Fisher estimate


@pytest.mark.parametrize("draws", [1, 3])
@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
@pytest.mark.parametrize("name", ["convnet", "one logit"])
def test_the_fisher_estimate_is_that_of_the_labels_it_drew(name, structure, draws, monkeypatch):
    """V with columns (e_y − p)/√draws stands where the root of Λ stood; that these average to Λ, see
    test_derivatives."""
    exact, model, x, y = fitted(name, structure)
    likelihood = exact._posterior.fitted.likelihood
    drawn = []

    def draw(self, logits, generator):
        drawn.append(plain_draw(self, logits, generator))
        return drawn[-1]

    plain_draw = type(likelihood).draw
    monkeypatch.setattr(type(likelihood), "draw", draw)
    bayes = bb.Laplace(model, layers="all", structure=structure, curvature=bb.Fisher(draws)).fit([(x, y)])
    assert len(drawn) == draws
    columns = torch.stack(drawn, 2) / math.sqrt(draws)  # (n, k, draws)
    monkeypatch.setattr(type(likelihood), "root", lambda *_: columns)
    expected = bb.Laplace(model, layers="all", structure=structure).fit([(x, y)])
    for layer, sums in expected._posterior.fitted.curvature.items():
        for name, value in sums.tensors().items():
            close(bayes._posterior.fitted.curvature[layer].tensors()[name], value, 1e-12)
    if structure != "kron":  # and in the plainest way
        jacobians = dense.jacobians(model, x)
        along = torch.einsum("nkp,nkd->ndp", jacobians, columns).flatten(0, 1)
        hessian = along.T @ along if structure == "full" else along.square().sum(0).diag()
        sigma = torch.linalg.inv(hessian + torch.eye(len(hessian)))
        close(bayes.logits(x).covariance, jacobians @ sigma @ jacobians.mT)


def test_the_fisher_estimate_is_seeded():
    model, x, y = dense.case("mlp")

    def covariance(curvature):
        return bb.Laplace(model, layers="all", curvature=curvature).fit(loader(x, y)).logits(x).covariance

    plain = covariance("fisher")
    assert torch.equal(plain, covariance(bb.Fisher())) and torch.equal(plain, covariance(bb.Fisher(1, 0)))
    one, two = (covariance(bb.Fisher(seed=7)) for _ in range(2))
    assert torch.equal(one, two) and not torch.equal(one, plain)
    for wrong in ({"draws": 0}, {"draws": 1.5}, {"seed": "7"}):
        with pytest.raises(ArgumentError, match=r"Fisher\(.*positive number of draws"):
            bb.Fisher(**wrong)


# ---- the paper's variants


def test_the_papers_kronecker_factors_are_damped_one_by_one():
    bayes, model, x, _ = fitted("mlp", "kron", prior_variance=0.2, curvature="paper")
    curvature, total = bayes._posterior.fitted.curvature, 0
    derivatives, place = dense.jacobians(model, x), 0
    for layer in bayes._posterior.layers:
        outputs, inputs, positions = curvature[layer.name].tensors().values()
        width, root = layer.shapes[0][1], positions.sqrt()
        left = torch.linalg.inv(outputs[0] / root + torch.eye(len(outputs[0])) / 0.2)
        right = torch.linalg.inv(inputs[0, :width, :width] / root + torch.eye(width) / 0.2)
        blocks = [torch.kron(left, right)]
        if layer.has_bias:
            blocks.append(torch.linalg.inv(outputs[0] + torch.eye(len(outputs[0])) / 0.2))
        part = derivatives[:, :, place : place + layer.size]
        total, place = total + part @ torch.block_diag(*blocks) @ part.mT, place + layer.size
    close(bayes.logits(x).covariance, total, 1e-9)


def test_the_papers_diagonal_is_a_fisher_estimate():
    model, x, y = dense.case("mlp")
    paper = bb.Laplace(model, layers="all", structure="diag", curvature="paper").fit(loader(x, y))
    fisher = bb.Laplace(model, layers="all", structure="diag", curvature="fisher").fit(loader(x, y))
    assert torch.equal(paper.logits(x).covariance, fisher.logits(x).covariance)


# ---- a prior for each layer


@pytest.mark.parametrize("structure", ["diag", "kron"])
def test_a_prior_for_each_layer(structure):
    bayes, model, x, _ = fitted("convnet", structure)
    names = bayes._posterior.names
    together = bayes.logits(x).covariance
    bayes.prior_variance = dict.fromkeys(names, 1.0)
    assert torch.equal(bayes.logits(x).covariance, together)
    assert float(bayes.log_evidence()) == float(bayes.log_evidence(1.0))
    # With all but one layer's prior closed, the one that is left is all there is.
    bayes.prior_variance = dict.fromkeys(names, 1e-14) | {"8": 1.0}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith("8."))
    alone = bb.Laplace(model, layers="all", structure=structure).fit([(x, torch.arange(12) % 3)])
    close(bayes.logits(x).covariance, alone.logits(x).covariance, 1e-9)


@pytest.mark.parametrize("structure", ["diag", "kron"])
def test_the_evidence_tunes_each_layers_prior(structure, tmp_path):
    bayes, model, x, _ = fitted("mlp", structure, n=40)
    bayes.prior_variance = dict.fromkeys(bayes._posterior.names, 1.0)
    bayes.tune(objective="evidence")
    best = float(bayes.log_evidence())
    for name, value in bayes.prior_variance.items():
        for factor in (0.6, 1.7):  # a candidate further
            assert float(bayes.log_evidence({**bayes.prior_variance, name: factor * value})) < best
    bayes.save(tmp_path / "each.safetensors")
    again = bb.Laplace.load(tmp_path / "each.safetensors", model)
    assert again.prior_variance == bayes.prior_variance
    assert torch.equal(again.predict_proba(x), bayes.predict_proba(x))


def test_priors_that_do_not_fit():
    bayes, model, x, y = fitted("mlp", "kron")
    with pytest.raises(ArgumentError, match=r"\['nine'\].*lacks \['0', '2', '4'\]"):
        bayes.prior_variance = {"nine": 1.0}
    with pytest.raises(ArgumentError, match="positive"):
        bayes.prior_variance = {"0": 1.0, "2": -1.0, "4": 1.0}
    assert bayes.prior_variance == 1.0
    with pytest.raises(ArgumentError, match="one number"):
        bb.Laplace(model, layers="all", structure="full", prior_variance={"0": 1.0, "2": 1.0, "4": 1.0})
    with pytest.raises(ArgumentError, match="one number"):
        bb.Laplace(model, prior_variance={"4": 1.0})
    bayes.prior_variance = {"0": 1.0, "2": 1.0, "4": 1.0}
    with pytest.raises(ArgumentError, match="one prior variance for all layers"):
        bayes.tune(loader(x, y), objective="nll")


# ---- tuning


def test_the_interpolation_is_as_good_as_it_says():
    nodes = tuple(math.log(1e-8) + i * math.log(1e12) / (NODES - 1) for i in range(NODES))
    h = torch.logspace(-6, 11, 200, dtype=torch.float64)
    at_nodes = torch.stack([(h + math.exp(-node)).rsqrt() for node in nodes])  # (q, h)
    worst = []
    for step in range(400):
        at = nodes[0] + (nodes[-1] - nodes[0]) * step / 399
        exact = (h + math.exp(-at)).rsqrt()
        worst.append(float((interpolation(nodes, at) @ at_nodes / exact - 1).abs().max()))
    assert max(worst) < 0.02 and max(worst[50:-50]) < 0.006


@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
@pytest.mark.parametrize("objective", ["nll", "ood"])
def test_tuning_finds_the_optimum_that_exact_covariances_have(structure, objective):
    model, x, _ = dense.case("mlp", 60)
    model[4].weight.data *= 80  # sure of itself, and wrong in a quarter of the cases
    labels = torch.where(torch.arange(60) % 4 == 0, torch.arange(60) % 3, model(x).argmax(1))
    bayes = bb.Laplace(model, layers="all", structure=structure).fit(loader(x, labels))
    outliers = torch.randn(20, 4, dtype=torch.float64)
    bayes.tune(loader(x, labels), objective=objective, outliers=outliers, weight=0.25)

    def cost(value):
        bayes.prior_variance = value
        loss = bb.metrics.nll(bayes.predict_proba(x), labels)
        p = bayes.predict_proba(outliers)
        entropy = -(p * p.log()).sum(1).mean()
        return float(loss - (0.25 * entropy if objective == "ood" else 0))

    chosen = bayes.prior_variance
    grid = bayes._posterior.candidates()
    costs = [cost(value) for value in grid]
    spread = max(costs) - min(costs)
    assert 1 < costs.index(min(costs)) < len(costs) - 1
    assert cost(chosen) <= min(costs) + 1e-3 * spread


def test_tuning_by_evidence_and_by_closed_form_for_weights():
    bayes, _, x, _ = fitted("mlp", "kron", n=40, predictive="weights")
    bayes.tune(objective="evidence")
    best = bayes.prior_variance
    assert float(bayes.log_evidence(best)) > max(float(bayes.log_evidence(best * f)) for f in (0.6, 1.7))
    with pytest.warns(EdgeWarning):  # the labels are the network's own: the more certain the better
        bayes.tune(loader(x, bayes.model(x).argmax(1)), objective="nll")
    assert bayes(x).shape == (40, 3) and bool(bayes.predict_proba(x).isfinite().all())


@pytest.mark.filterwarnings("ignore::bitbayes.errors.EdgeWarning")
def test_tuning_goes_through_the_data_once():
    bayes, model, x, _ = fitted("mlp", "kron", n=20)
    calls = []
    handle = model[0].register_forward_hook(lambda *_: calls.append(1))
    bayes.predict_proba(x)  # looks at the memory it needs, once
    calls.clear()
    bayes.tune([(x, torch.randint(0, 3, (20,)))], outliers=x)
    handle.remove()
    assert len(calls) == 2


# ---- what is refused, before any pass


class Once:
    """A loader that tells how many batches were taken."""

    def __init__(self, x, y):
        self.x, self.y, self.taken = x, y, 0

    def __iter__(self):
        for _ in range(5):
            self.taken += 1
            yield self.x, self.y


class Text(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(10, 4)
        self.scale = nn.Parameter(torch.ones(4))
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head((self.words(x) * self.scale).mean(1).tanh())


def test_layers_without_factors_are_named_before_any_pass():
    model = Text().double()
    x, y = torch.randint(0, 10, (6, 3)), torch.arange(6) % 2
    data = Once(x, y)
    with pytest.raises(ModelError, match=r"'' \(Text\).*requires_grad_\(False\).*structure='diag'"):
        bb.Laplace(model, layers="all").fit(data)
    model.scale.requires_grad_(False)
    with pytest.raises(ModelError, match=r"'words' \(Embedding\)"):
        bb.Laplace(model, layers="all").fit(data)
    assert data.taken <= 2  # the one that is looked at
    model.words.requires_grad_(False)
    bb.Laplace(model, layers="all").fit([(x, y)])


@pytest.mark.parametrize("structure", ["diag", "full"])
def test_other_layers_have_a_diagonal(structure):
    model = Text().double()
    x, y = torch.randint(0, 10, (6, 3)), torch.arange(6) % 2
    bayes = bb.Laplace(model, layers="all", structure=structure).fit([(x, y)])
    sigma = dense.covariance(structure, model, x, y, 1.0)
    close(bayes.logits(x).covariance, dense.logits_covariance(model, sigma, x))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(3, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        state = x.new_zeros(len(x), 4)
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.head(state)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.MultiheadAttention(4, 2, batch_first=True)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        mixed, _ = self.mix(x, x, x)
        return self.head(self.norm(x + mixed).mean(1))


@pytest.mark.parametrize("structure", ["diag", "full"])
@pytest.mark.parametrize("kind, width", [(Recurrent, 3), (Attention, 4)])
def test_recurrent_and_attention_layers_are_differentiated_one_by_one(kind, width, structure):
    torch.manual_seed(0)
    model = kind().double().eval()
    x, y = torch.randn(7, 5, width, dtype=torch.float64), torch.arange(7) % 3
    bayes = bb.Laplace(model, layers="all", structure=structure).fit([(x, y)])
    sigma = dense.covariance(structure, model, x, y, 1.0)
    close(bayes.logits(x).covariance, dense.logits_covariance(model, sigma, x))


def test_tied_weights_are_named():
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Linear(3, 2))
    model[2].weight = model[0].weight
    with pytest.raises(ModelError, match=r"'0' .*shares parameters with '2.weight'"):
        bb.Laplace(model, layers="all").fit([(torch.randn(4, 3), torch.arange(4) % 2)])


def test_a_dense_matrix_has_its_limits():
    model = nn.Sequential(nn.Linear(200, 200), nn.Linear(200, 2))
    with pytest.raises(ModelError, match=r"40,602 parameters.*13.2 GB"):
        bb.Laplace(model, layers="all", structure="full").fit([(torch.randn(4, 200), torch.arange(4) % 2)])


def test_options_that_do_not_fit():
    model, x, y = dense.case("mlp")
    with pytest.raises(ArgumentError, match="isotropic"):
        bb.Laplace(model, layers="all", structure="isotropic")
    with pytest.raises(ArgumentError, match="fisher"):
        bb.Laplace(model, curvature="fisher")
    with pytest.raises(ArgumentError, match="weights"):
        bb.Laplace(model, predictive="weights")
    with pytest.raises(ArgumentError, match="weights"):
        bb.Laplace(model).fit(loader(x, y)).predict_proba(x, method="weights")
    with pytest.raises(NotFittedError):
        bb.Laplace(model, layers="all").predict_proba(x)
    with pytest.raises(ModelError, match="no parameter of the model requires a gradient"):
        bb.Laplace(model.requires_grad_(False), layers="all").fit(loader(x, y))


def test_bad_data():
    bayes, model, x, y = fitted("mlp", "kron")
    before = bayes.predict_proba(x)
    with pytest.raises(DataError, match="batch 1: the labels"):
        bayes.fit([(x, y), (x, y + 5)])
    with pytest.raises(DataError, match="batch 0: the labels have shape"):
        bayes.fit([(x, y[:5])])
    with pytest.raises(DataError, match="NaN"):
        bayes.predict_proba(x * math.nan)
    with pytest.raises(DataError, match="batch 1 holds NaN"):
        bayes.fit([(x, y), (x * math.inf, y)])
    model[0].weight.data += 1
    with pytest.raises(ModelError, match="has changed"):
        bayes.update([(x, y)])
    model[0].weight.data -= 1
    close(bayes.predict_proba(x), before, 1e-9)


def test_memory_cuts_batches_and_changes_nothing(monkeypatch):
    bayes, model, x, y = fitted("convnet", "kron")
    whole = bayes.logits(x).covariance
    monkeypatch.setattr("bitbayes.model.memory.CPU_PASS_BYTES", 1)
    cut = bb.Laplace(model, layers="all", structure="kron").fit([(x, y)])
    sizes = []
    handle = model[0].register_forward_hook(lambda _, args, __: sizes.append(len(args[0])))
    close(cut.logits(x).covariance, whole, 1e-12)
    handle.remove()
    assert set(sizes) == {1}

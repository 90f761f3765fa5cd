"""The covariance of the logits by draws of the weights, against dense matrices and the exact covariance."""

import copy
import math

import pytest
import torch
from torch import nn

import bitbayes as bb
import dense
from bitbayes.errors import ArgumentError, DataError, ModelError
from bitbayes.model import Batch
from bitbayes.posteriors import AllLayers, DrawnLayers
from bitbayes.prior import Prior
from dense import close, fitted, loader

STRUCTURES = ["diag", "kron", "full"]
FEW = bb.Draws(7, seed=3)


def drawn_weights(bayes, prior_variance):
    """The draws δ (S, P) that the library makes, in the order of the parameters."""
    ((_, (weights,)),) = bayes.posterior._drawn([Prior(prior_variance)])
    return torch.cat([weights[name].flatten(1) for name in dense.parameters(bayes.model)], dim=1)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("name", dense.NETWORKS)
def test_the_covariance_is_that_of_the_dense_jacobian_times_the_draws(name, structure):
    bayes, model, x, _ = fitted(name, structure, prior_variance=0.3, covariance=FEW)
    new = torch.randn(4, *x.shape[1:], dtype=x.dtype)
    deviations = dense.jacobians(model, new) @ drawn_weights(bayes, 0.3).T  # (n, k, S)
    gaussian = bayes.logits(new)
    close(gaussian.mean, model(new).detach(), 1e-12)
    close(gaussian.covariance, deviations @ deviations.mT / 7, 1e-10)
    # Predictions leave out the common shift of all logits.
    ((_, gaussian),) = bayes.posterior.gaussians([Batch(new, None, "")], Prior(0.3), 100)
    if deviations.shape[1] > 1:
        deviations = deviations - deviations.mean(1, keepdim=True)
    close(gaussian.covariance, deviations @ deviations.mT / 7, 1e-10)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_draw_is_the_fixed_noise_scaled_by_the_structures_precisions(structure):
    """So one draw moves along with the prior, and its size is σ₀ where there are no data."""
    bayes, *_ = fitted("mlp", structure, covariance=FEW)
    noise = drawn_weights(bayes, 1e-12) / 1e-6  # all precisions are 1e12
    assert noise.abs().max() < 6 and abs(float(noise.square().mean()) - 1) < 0.2
    for variance in (0.01, 1.0):
        gaussian = bayes.posterior.decomposed()
        sizes = drawn_weights(bayes, variance).square().sum()
        largest = max(float((1 / each.precisions(1 / variance)).max()) for each in gaussian.values())
        assert 0 < float(sizes) <= largest * float(noise.square().sum()) * (1 + 1e-6)


@pytest.mark.parametrize("structure", ["diag", "full"])
def test_the_estimate_converges_to_the_dense_covariance(structure):
    """S·Ĉ has a Wishart distribution: Var Ĉᵢⱼ = (CᵢᵢCⱼⱼ + Cᵢⱼ²)/S. Five deviations bound all entries."""
    for draws in (50, 2000):
        bayes, model, x, y = fitted("mlp", structure, prior_variance=0.5, covariance=bb.Draws(draws))
        exact = dense.logits_covariance(model, dense.covariance(structure, model, x, y, 0.5), x)
        own = exact.diagonal(dim1=1, dim2=2)
        error = ((own[:, :, None] * own[:, None, :] + exact.square()) / draws).sqrt()
        ratio = (bayes.logits(x).covariance - exact) / error
        # Entries are correlated: their mean square is 1 on average, and widely spread.
        assert float(ratio.abs().max()) < 5 and 0.02 < float(ratio.square().mean()) < 6


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("method", ["pairwise", "probit", "meanfield", "bridge", "mc"])
def test_predictions_by_many_draws_are_near_the_exact_ones(structure, method):
    drawn, model, x, y = fitted("convnet", structure, prior_variance=0.3, covariance=bb.Draws(400))
    exact = bb.Laplace(model, layers="all", structure=structure, prior_variance=0.3).fit([(x, y)])
    probabilities = []
    for bayes in (drawn, exact):
        seeded = {"samples": 4000, "generator": torch.Generator().manual_seed(0)} if method == "mc" else {}
        probabilities.append(bayes.predict_proba(x, method=method, **seeded))
    # Variances are within 5·√(2/400) = 35%, so that √(1 + π/8·v) is within 17%: for a logit of one,
    # that changes a probability by at most 4%. Means over 4,000 draws are within 5·0.5/√4000 = 4%.
    assert float((probabilities[0] - probabilities[1]).abs().max()) < 0.1


def test_predictions_do_not_depend_on_batches_calls_or_memory(monkeypatch):
    bayes, _, x, _ = fitted("residual", "kron", prior_variance=0.3, covariance=FEW)
    whole, scores = bayes.predict_proba(x), bayes.score(x)
    assert torch.equal(bayes.predict_proba(x), whole)
    close(bayes.predict_proba(list(x.split(5))), whole, 1e-12)
    close(bayes(x).softmax(1), whole, 1e-12)
    close(torch.cat([bayes.score(each[None]) for each in x]), scores, 1e-12)
    # One draw at a time, one direction at a time, one point at a time.
    monkeypatch.setattr("bitbayes.posteriors.drawn_layers.pass_bytes", lambda _: 1)
    monkeypatch.setattr("bitbayes.posteriors.drawn_layers.directions_at_once", lambda *_: 1)
    again = copy.deepcopy(bayes)
    again.posterior._rows_by_shape[x.shape[1:]] = 1
    assert again.posterior._kept is None
    close(again.predict_proba(x), whole, 1e-12)
    assert again.posterior._kept is None


def test_files_and_state_dicts_keep_the_predictions(tmp_path):
    bayes, model, x, _ = fitted("convnet", "kron", prior_variance=0.3, covariance=FEW)
    expected = bayes.predict_proba(x)
    bayes.save(tmp_path / "bayes.safetensors")
    loaded = bb.Laplace.load(tmp_path / "bayes.safetensors", model)
    assert loaded.covariance == FEW and isinstance(loaded.posterior, DrawnLayers)
    close(loaded.predict_proba(x), expected, 1e-12)
    fresh = bb.Laplace(model, layers="all", structure="kron")
    fresh.load_state_dict(bayes.state_dict())
    assert fresh.covariance == FEW
    close(fresh.predict_proba(x), expected, 1e-12)
    close(copy.deepcopy(bayes).predict_proba(x), expected, 1e-12)


def test_another_seed_makes_other_draws():
    bayes, _, x, _ = fitted("mlp", "kron", covariance=bb.Draws(7, seed=3))
    first = bayes.predict_proba(x)
    bayes.covariance = bb.Draws(7, seed=4)
    assert not torch.equal(bayes.predict_proba(x), first)
    bayes.covariance = FEW
    close(bayes.predict_proba(x), first, 1e-12)


def test_float32_predicts_as_float64_by_the_same_draws():
    bayes, model, x, y = fitted("residual", "kron", prior_variance=0.3, covariance=FEW)
    expected = bayes.predict_proba(x)
    single = bb.Laplace(
        copy.deepcopy(model).float(), layers="all", structure="kron", prior_variance=0.3, covariance=FEW
    )
    found = single.fit([(x.float(), y)]).predict_proba(x.float())
    assert found.dtype == torch.float32
    close(found.double(), expected, 1e-4)


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right, self.head = nn.Linear(3, 4), nn.Linear(2, 4), nn.Linear(4, 3)

    def forward(self, left, right):
        return self.head(torch.tanh(self.left(left) + self.right(right)))


@pytest.mark.filterwarnings("ignore::bitbayes.errors.EdgeWarning")  # the labels are random
def test_several_inputs():
    model = TwoInputs().double()
    x, y = {"left": torch.randn(9, 3).double(), "right": torch.randn(9, 2).double()}, torch.arange(9) % 3
    bayes = bb.Laplace(model, layers="all", structure="full", covariance=FEW, residual=False)
    bayes.fit([{**x, "labels": y}])
    rows = [{"left": x["left"][i : i + 1], "right": x["right"][i : i + 1]} for i in range(9)]
    jacobian = dense.autograd_jacobian(model, rows)
    deviations = jacobian @ drawn_weights(bayes, 1.0).T
    close(bayes.logits(x).covariance, deviations @ deviations.mT / 7, 1e-10)
    bayes.tune([{**x, "labels": y}], objective="nll")
    close(bayes.predict_proba(rows), bayes.predict_proba(x), 1e-12)


class Counting(nn.Module):
    """A network whose buffers change when it runs."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(4, 5), nn.Linear(5, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.head(self.first(x).relu())


def test_a_model_whose_buffers_change_when_it_runs():
    model, x, y = Counting().double(), torch.randn(9, 4).double(), torch.arange(9) % 3
    bayes = bb.Laplace(model, layers="all", structure="full", covariance=FEW).fit([(x, y)])
    deviations = dense.autograd_jacobian(model, x[:, None]) @ drawn_weights(bayes, 1.0).T
    before = float(model.calls)
    close(bayes.logits(x).covariance, deviations @ deviations.mT / 7, 1e-10)
    assert float(model.calls) == before


# ---- settings


def test_temperature_divides_the_mean_and_the_residual_adds_to_the_variances():
    bayes, _, x, _ = fitted("mlp", "kron", prior_variance=0.3, covariance=FEW, residual=True)
    plain = bayes.logits(x)
    bayes.temperature = 2.0
    hotter = bayes.logits(x)
    close(hotter.mean, plain.mean / 2, 1e-12)
    close(hotter.covariance, plain.covariance, 1e-12)
    bayes.near_variance = 0.0
    without = bayes.logits(x).covariance
    added = plain.covariance - without
    sizes = added.diagonal(dim1=1, dim2=2)
    assert bool((sizes > 0).all())
    close(added, torch.diag_embed(sizes), 1e-10)
    close(sizes, sizes[:, :1].expand_as(sizes), 1e-10)


@pytest.mark.filterwarnings("ignore::bitbayes.errors.EdgeWarning")  # the labels are random
@pytest.mark.parametrize("objective", ["calibrated", "ood", "nll"])
def test_tuning_finds_nearly_what_it_finds_with_the_exact_covariance(objective):
    torch.manual_seed(0)
    drawn, model, x, y = fitted("mlp", "kron", n=80, covariance=bb.Draws(400))
    exact = bb.Laplace(model, layers="all", structure="kron").fit([(x, y)])
    new = torch.randn(80, 4, dtype=x.dtype), torch.arange(80) % 3
    for bayes in (drawn, exact):
        bayes.tune(loader(*new), objective=objective)
    assert abs(math.log(drawn.prior_variance / exact.prior_variance)) < 2.5  # five steps of the grid
    close(drawn.predict_proba(x), exact.predict_proba(x), 0.1)


def test_interpolated_logits_are_those_of_each_prior():
    bayes, _, x, _ = fitted("mlp", "diag", covariance=FEW)
    ((_, by_prior),) = bayes.posterior.logits_by_prior([Batch(x, None, "")])
    for variance in (1e-8, 1e4):  # at the nodes
        ((_, exact),) = bayes.posterior.gaussians([Batch(x, None, "")], Prior(variance), 100)
        close(by_prior.at(Prior(variance)).covariance, exact.covariance, 1e-9)
    for variance in torch.logspace(-6, 2, 9).tolist():  # between them
        ((_, exact),) = bayes.posterior.gaussians([Batch(x, None, "")], Prior(variance), 100)
        close(by_prior.at(Prior(variance)).covariance, exact.covariance, 0.1)


@pytest.mark.filterwarnings("ignore::bitbayes.errors.EdgeWarning")  # the labels are random
def test_tuning_keeps_some_of_many_points(monkeypatch):
    monkeypatch.setattr("bitbayes.posteriors.drawn_layers.POINTS", 20)
    bayes, _, x, y = fitted("mlp", "kron", n=90, covariance=FEW)
    found = list(bayes.posterior.logits_by_prior(Batch(*each, "") for each in loader(x, y)))
    kept = torch.cat([batch.inputs for batch, _ in found])
    labels = torch.cat([batch.labels for batch, _ in found])
    assert len(kept) == sum(len(each.scale) for _, each in found) == 20
    places = [int((x == row).all(1).nonzero()) for row in kept]
    assert torch.equal(y[places], labels) and max(places) > 60
    bayes.tune(loader(x, y), objective="nll")


def test_each_layer_can_have_a_prior_of_its_own():
    bayes, _, x, _ = fitted("mlp", "kron", covariance=FEW)
    one = bayes.logits(x).covariance
    bayes.prior_variance = dict.fromkeys(bayes.posterior.names, 1.0)
    close(bayes.logits(x).covariance, one, 1e-12)


# ---- far away


@pytest.mark.parametrize("structure", STRUCTURES)
def test_predictions_whose_variances_overflow_float32_are_those_of_float64(structure):
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    x, y = torch.randn(12, 4, dtype=torch.float64), torch.arange(12) % 3
    far = torch.cat([x, 1e25 * x, 1e36 * x])
    options = {"layers": "all", "structure": structure, "covariance": FEW, "residual": False}
    options["prior_variance"] = 100.0
    expected = bb.Laplace(model, **options).fit([(x, y)]).predict_proba(far)
    found = bb.Laplace(model.float(), **options).fit([(x.float(), y)]).predict_proba(far.float())
    assert bool(found.isfinite().all())
    if structure != "full":  # whose eigenvectors of equal values, and so its draws, depend on rounding
        close(found.double(), expected, 1e-4)


def test_inputs_that_are_not_finite_are_refused():
    bayes, _, x, _ = fitted("mlp", "kron", covariance=FEW)
    with pytest.raises(DataError, match="NaN"):
        bayes.predict_proba(x * math.nan)


def test_limits_bounds_certificates_and_graphs_need_the_exact_covariance(tmp_path):
    bayes, _, x, _ = fitted("mlp", "kron", covariance=FEW, residual=False)
    for task in (bayes.limit, bayes.bound, bayes.certify):
        with pytest.raises(ArgumentError, match=r"exact covariance.*Draws\(draws=7, seed=3\).*'exact'"):
            task(x)
    with pytest.raises(ArgumentError, match=r"graphs are for the exact covariance.*Draws\(draws=7, seed=3\)"):
        bayes.export(tmp_path / "bayes.pt2", x)
    bayes.covariance = "exact"
    assert type(bayes.posterior) is AllLayers


# ---- what is chosen


def test_auto_is_exact_for_up_to_64_outputs():
    x = torch.randn(70, 3)
    for k, kind in ((64, AllLayers), (65, DrawnLayers)):
        bayes = bb.Laplace(nn.Linear(3, k), layers="all").fit([(x, torch.arange(70) % k)])
        assert type(bayes.posterior) is kind
        assert ("Draws(draws=20, seed=0) (auto)" in repr(bayes)) == (k == 65)
        drawn = bb.Laplace(bayes.model, layers="all", curvature="fisher").fit([(x, torch.arange(70) % k)])
        found, theirs = (each.posterior.fitted.curvature[""].outputs for each in (bayes, drawn))
        assert torch.equal(found, theirs) == (k == 65)
        assert bayes.predict_proba(x).shape == (70, k)


def test_the_covariance_can_be_set_and_wrong_ones_are_refused():
    bayes, model, x, _ = fitted("mlp", "kron")
    exact = bayes.predict_proba(x)
    bayes.covariance = "draws"
    assert bayes.covariance == bb.Draws(20, 0)
    drawn = bayes.predict_proba(x)
    assert not torch.equal(drawn, exact)
    other = copy.copy(bayes)
    other.covariance = "exact"
    close(other.predict_proba(x), exact, 1e-12)
    close(bayes.predict_proba(x), drawn, 1e-12)
    for wrong in ("drawn", 20, None):
        with pytest.raises(ArgumentError, match=r"covariance=.*'auto', 'exact', 'draws'"):
            bayes.covariance = wrong
    assert bayes.covariance == bb.Draws(20, 0)
    with pytest.raises(ArgumentError, match=r"covariance='draws'.*layers='all'"):
        bb.Laplace(model, covariance=bb.Draws())
    for wrong in ({"draws": 0}, {"draws": 2.5}, {"seed": "1"}, {"seed": -1}, {"draws": True}):
        with pytest.raises(ArgumentError, match=r"Draws\(.*positive number of draws"):
            bb.Draws(**wrong)


def test_files_of_earlier_versions_keep_the_exact_covariance():
    saved = bb.Laplace(nn.Linear(3, 100), layers="all").options.as_json()
    del saved["covariance"]
    assert bb.options.Options.from_json(saved)["covariance"] == "exact"


def test_outputs_with_positions_are_refused_as_for_the_exact_covariance():
    model, x = nn.Linear(3, 4), torch.randn(6, 5, 3)
    with pytest.raises(ModelError, match="positions need layers='last'"):
        bb.Laplace(model, layers="all", covariance=FEW).fit([(x, torch.arange(30).reshape(6, 5) % 4)])

"""Subnetworks: the weights of the largest variance have their full covariance, and all others have none."""

import copy
import math
import warnings

import pytest
import torch
from torch import nn
from torch.func import functional_call

import bitbayes as bb
import dense
import several
import several_tasks
from bitbayes.errors import ArgumentError, DataError, ModelError, NotFittedError
from classifiers import relu_mlp
from dense import close, loader

LIKELIHOODS = {"mlp": "categorical", "one logit": "bernoulli", "gaussian": "gaussian"}


def case(name, n=20):
    """A network, inputs and labels; "gaussian" has values of two outputs.

    It has no ReLUs: of a unit that is off at all points, the weights have variance and the logits have none.
    """
    model, x, y = dense.case("mlp" if name == "gaussian" else name, n)
    for parent in list(model.modules()):
        for key, module in parent.named_children():
            if isinstance(module, nn.ReLU):
                setattr(parent, key, nn.Tanh())
    if name != "gaussian":
        return model, x, y
    model[-1] = nn.Linear(4, 2).double()
    return model, x, torch.stack([x.sum(1).sin(), x[:, 0]], dim=1)


def plain_jacobian(model, point):
    """(k, P) in the order of the parameters."""
    own = dense.parameters(model)

    def logits(*values):
        return functional_call(model, dict(zip(own, values, strict=True)), (point[None],))[0]

    parts = torch.autograd.functional.jacobian(logits, tuple(own.values()))
    return torch.cat([each.flatten(1) for each in parts], dim=1)


def plain_ggn(model, x, likelihood):
    """Σₙ Jₙᵀ Λₙ Jₙ (P, P), by a loop over the points."""
    total = 0
    for point in x:
        j, f = plain_jacobian(model, point), model(point[None])[0].detach()
        if likelihood == "gaussian":
            middle = torch.eye(len(f), dtype=f.dtype)
        elif likelihood == "bernoulli":
            middle = (f.sigmoid() * (1 - f.sigmoid()))[:, None]
        else:
            middle = f.softmax(0).diag() - torch.outer(f.softmax(0), f.softmax(0))
        total = total + j.T @ middle @ j
    return total


def chosen(bayes):
    """Which weights were chosen, (P,) in the order of the parameters."""
    masks = bayes.posterior.chosen
    own = dense.parameters(bayes.model)
    return torch.cat([masks.get(name, torch.zeros_like(each)).flatten() for name, each in own.items()]).bool()


def smallest(values, count):
    """The mask of the `count` smallest values."""
    mask = torch.zeros(len(values), dtype=torch.bool)
    mask[values.argsort(stable=True)[:count]] = True
    return mask


@pytest.mark.parametrize("name", ["mlp", "one logit", "gaussian", "convnet", "residual", "sequence"])
@pytest.mark.parametrize("share", [0.1, 0.5])
def test_weights_covariance_and_evidence_are_those_of_dense_matrices(name, share):
    model, x, y = case(name)
    likelihood, prior = LIKELIHOODS.get(name, "categorical"), 0.3
    h = plain_ggn(model, x, likelihood)
    count = int(share * len(h))
    options = {"likelihood": likelihood, "subnetwork": count, "prior_variance": prior}
    if likelihood == "gaussian":
        options["noise_variance"] = 1.0
    bayes = bb.Laplace(model, layers="all", **options).fit(loader(x, y))
    # By the variance under the diagonal approximation, 1/(h + τ); that of h below rounding is the prior's.
    mask = smallest(-1 / (h.diagonal() + 1 / prior), count)
    assert torch.equal(chosen(bayes), mask)
    precision = h[mask][:, mask] + torch.eye(count, dtype=h.dtype) / prior
    sigma = torch.linalg.inv(precision)
    j = torch.stack([plain_jacobian(model, point) for point in x])[:, :, mask]
    gaussian = bayes.logits(x)
    close(gaussian.covariance, j @ sigma @ j.mT, 1e-8)
    torch.testing.assert_close(gaussian.mean, model(x).detach(), rtol=1e-12, atol=1e-12)
    theta = torch.cat([each.detach().flatten() for each in model.parameters()])[mask]
    penalty = theta @ theta / prior + count * math.log(prior) + torch.logdet(precision)
    with torch.no_grad():
        if likelihood == "gaussian":
            loss = -torch.distributions.Normal(model(x), 1.0).log_prob(y).sum()
        else:
            loss = dense.reference.total_loss(model(x), y)
    torch.testing.assert_close(bayes.log_evidence(), -loss - penalty / 2, rtol=1e-8, atol=0)


@pytest.mark.parametrize("name", dense.NETWORKS)
def test_all_weights_are_the_full_structure(name):
    model, x, y = case(name, 20)
    every = sum(each.numel() for each in model.parameters())
    full = bb.Laplace(model, layers="all", structure="full", prior_variance=2.0).fit(loader(x, y))
    bayes = bb.Laplace(model, layers="all", subnetwork=every, prior_variance=2.0).fit(loader(x, y))
    assert bool(chosen(bayes).all())
    close(bayes.logits(x).covariance, full.logits(x).covariance, 1e-10)
    close(bayes.log_evidence(), full.log_evidence(), 1e-10)
    draws = [each.sample(2, generator=torch.Generator().manual_seed(3)) for each in (bayes, full)]
    for parameter, values in draws[0].items():
        close(values, draws[1][parameter], 1e-6)


def test_layers_by_name_are_those_that_weights_are_chosen_from():
    model, x, y = case("mlp", 20)
    named = bb.Laplace(model, layers=("0", "4"), subnetwork=9, prior_variance=1.0).fit(loader(x, y))
    names = [name for name in dense.parameters(model) if not name.startswith("2.")]
    h = plain_ggn(model, x, "categorical").diagonal()
    mask = torch.cat([torch.full((each.numel(),), name in names) for name, each in model.named_parameters()])
    assert torch.equal(chosen(named), smallest(h.masked_fill(~mask, torch.inf), 9))


def test_equal_variances_go_to_the_first_and_hidden_units_that_are_off_count():
    """A unit that no point reaches has no curvature in its weights: they have the largest variance."""
    model = relu_mlp().double()
    first = next(each for each in model if isinstance(each, nn.Linear))
    with torch.no_grad():
        first.bias[2], first.bias[5] = -1e3, -1e3
    x, y = torch.randn(20, first.in_features, dtype=torch.float64), torch.arange(20) % 2
    count = first.in_features + 1
    bayes = bb.Laplace(model, layers="all", subnetwork=count, prior_variance=1.0).fit([(x, y)])
    masks = bayes.posterior.chosen
    assert sum(int(mask.sum()) for mask in masks.values()) == count
    assert all(bool(each[2].all()) for each in masks.values())


def test_the_choice_does_not_depend_on_the_prior_and_another_prior_needs_no_fit():
    model, x, y = case("mlp", 20)
    wide = bb.Laplace(model, layers="all", subnetwork=7, prior_variance=1e4).fit(loader(x, y))
    narrow = bb.Laplace(model, layers="all", subnetwork=7, prior_variance=1e-4).fit(loader(x, y))
    assert torch.equal(chosen(wide), chosen(narrow))
    wide.prior_variance = 1e-4
    close(wide.logits(x).covariance, narrow.logits(x).covariance, 1e-12)


@pytest.mark.parametrize("covariance", ["exact", bb.Draws(5)])
def test_draws_vary_in_the_chosen_weights_alone(covariance):
    model, x, y = case("convnet", 20)
    bayes = bb.Laplace(model, layers="all", subnetwork=40, covariance=covariance, prior_variance=0.5)
    draws, own = bayes.fit(loader(x, y)).sample(3), dense.parameters(model)
    varies = torch.cat([(draws.get(name, each[None]) != each).any(0).flatten() for name, each in own.items()])
    assert torch.equal(varies, chosen(bayes))
    assert bayes.predict_proba(x, method="sampled_networks").shape == (20, 3)


def test_draws_of_the_weights_estimate_the_exact_covariance():
    model, x, y = case("mlp", 20)
    bayes = bb.Laplace(model, layers="all", subnetwork=12, prior_variance=1.0).fit(loader(x, y))
    exact = bayes.logits(x).covariance
    bayes.covariance = bb.Draws(4000)
    close(bayes.logits(x).covariance, exact, 0.15)


def test_update_adds_to_the_weights_that_fit_chose():
    model, x, y = case("convnet", 24)
    bayes = bb.Laplace(model, layers="all", subnetwork=30, prior_variance=1.0).fit(loader(x[:14], y[:14]))
    mask = chosen(bayes)
    bayes.update(loader(x[14:], y[14:]))
    assert torch.equal(chosen(bayes), mask)
    h = plain_ggn(model, x, "categorical")[mask][:, mask]
    j = torch.stack([plain_jacobian(model, point) for point in x])[:, :, mask]
    sigma = torch.linalg.inv(h + torch.eye(30, dtype=h.dtype))
    close(bayes.logits(x).covariance, j @ sigma @ j.mT, 1e-8)


def test_fits_of_the_same_weights_are_merged_and_others_raise():
    model, x, y = case("mlp", 24)
    every = sum(each.numel() for each in model.parameters())
    parts = [
        bb.Laplace(model, layers="all", subnetwork=every, prior_variance=1.0).fit([(x[rows], y[rows])])
        for rows in (slice(10), slice(10, 24))
    ]
    whole = bb.Laplace(model, layers="all", structure="full", prior_variance=1.0).fit([(x, y)])
    merged = bb.merge(parts)
    close(merged.logits(x).covariance, whole.logits(x).covariance, 1e-10)
    few = [
        bb.Laplace(model, layers="all", subnetwork=8).fit([(x[rows], y[rows])])
        for rows in (slice(5), slice(5, 24))
    ]
    assert not torch.equal(chosen(few[0]), chosen(few[1]))
    with pytest.raises(ModelError, match=r"subnetworks of other weights.*`update` it with the other data"):
        bb.merge(few)
    with pytest.raises(ArgumentError, match="their options differ"):
        bb.merge([few[0], parts[1]])


@pytest.mark.filterwarnings("ignore::bitbayes.errors.EdgeWarning")  # the labels are random
@pytest.mark.parametrize("name", ["mlp", "convnet"])
def test_it_is_tuned_saved_and_loaded(name, tmp_path):
    model, x, y = case(name, 30)
    bayes = bb.Laplace(model, layers="all", subnetwork=25).fit(loader(x, y)).tune(loader(x, y))
    assert "subnetwork=25" in repr(bayes) and bayes.subnetwork == 25
    bayes.save(tmp_path / "bayes.safetensors")
    frozen = copy.deepcopy(model).requires_grad_(False)
    loaded = bb.Laplace.load(tmp_path / "bayes.safetensors", frozen)
    assert torch.equal(loaded.predict_proba(x), bayes.predict_proba(x))
    again = bb.Laplace(model, layers="all", subnetwork=25)
    again.load_state_dict(bayes.state_dict())
    assert torch.equal(again.predict_proba(x), bayes.predict_proba(x))
    assert loaded.posterior.fitted.weights == again.posterior.fitted.weights == bayes.posterior.fitted.weights
    bayes.tune(objective="evidence")
    best = float(bayes.log_evidence())
    assert all(float(bayes.log_evidence(bayes.prior_variance * ratio)) <= best for ratio in (0.5, 2))


def test_an_exported_graph_predicts_the_same(tmp_path):
    model, x, y = case("convnet", 20)
    bayes = bb.Laplace(model, layers="all", subnetwork=25, prior_variance=1.0, residual=False)
    bayes.fit(loader(x, y)).export(tmp_path / "bayes.pt2", x[:3])
    graph = torch.export.load(tmp_path / "bayes.pt2").module()
    close(graph(x), bayes(x), 1e-10)


def rays(count):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    x = torch.randn(40, 2, dtype=torch.float64)
    bayes = bb.Laplace(model, layers="all", subnetwork=count, prior_variance=1.0, residual=False)
    return bayes.fit([(x, torch.arange(40) % 3)]), x[:5]


@pytest.mark.parametrize("count", [20, 60, 99])
def test_limits_are_reached_far_away_and_bounds_and_certificates_hold(count):
    bayes, x = rays(count)
    limit = bayes.limit(x)
    far = bayes.predict_proba(1e9 * x).amax(1)
    torch.testing.assert_close(limit.confidence, far, rtol=1e-6, atol=1e-9)
    for form in ("tight", "theorem"):
        assert bool((bayes.bound(x, form=form) >= limit.confidence - 1e-9).all())
    certificate = bayes.certify(x)
    for factor in (1.0, 3.0, 30.0):
        delta = factor * certificate.alpha.clamp_min(1e-3)[:, None]
        assert bool((bayes.predict_proba(delta * x).amax(1) <= certificate.confidence + 1e-9).all())


def test_what_cannot_work_raises_at_construction():
    model, _, _ = case("mlp")  # 60 weights
    says = {
        "expected a positive number of weights": [{"subnetwork": each} for each in (0, -3, 2.0, True, "9")],
        "use layers='all', or names of layers": [{"layers": "last", "subnetwork": 5}],
        "structure='full'": [{"subnetwork": 5, "structure": each} for each in ("kron", "diag")],
        "subnetwork=61: layers='all' has 60 weights": [{"subnetwork": 61}],
        r"subnetwork=26: layers=\('0',\) has 25 weights": [{"layers": ("0",), "subnetwork": 26}],
        "subnetwork=40,000 would need a matrix of 12.8 GB: choose at most 10,000": [{"subnetwork": 40_000}],
    }
    for message, every in says.items():
        for options in every:
            with pytest.raises(ArgumentError, match=message):
                bb.Laplace(model, **{"layers": "all", **options})
    with pytest.raises(ArgumentError, match=r"subset_of_weights='subnetwork'.*layers='all', subnetwork=n"):
        bb.Laplace(model, subset_of_weights="subnetwork")
    with pytest.raises(
        ArgumentError, match=r"Laplace\(model, layers='all', subnetwork=n, structure='full'\)"
    ):
        bb.Laplace(model, "classification", "subnetwork", "full")


def test_what_cannot_work_raises_before_any_pass(tmp_path):
    model, x, y = case("mlp")
    bayes = bb.Laplace(model, layers="all", subnetwork=30)
    with pytest.raises(NotFittedError):
        bayes.update([(x, y)])
    with pytest.raises(DataError, match="takes two passes over the data, and a generator"):
        bayes.fit((x, y) for _ in range(3))
    with pytest.raises(ArgumentError, match="a checkpoint is of one pass, and subnetwork=30 takes two"):
        bayes.fit([(x, y)], checkpoint=tmp_path)
    model[0].requires_grad_(False)
    model[2].requires_grad_(False)
    with pytest.raises(ArgumentError, match="subnetwork=30: layers='all' has 15 weights"):
        bayes.fit([(x, y)])
    with pytest.raises(ArgumentError, match="subnetwork=3: all weights that are trained"):
        bb.train_by_evidence(
            model, [(x, y)], torch.optim.SGD(model.parameters(), 0.1), epochs=20, layers="all", subnetwork=3
        )


def test_weights_of_points_count_in_both_passes():
    model, x, y = case("mlp", 20)
    weights = torch.arange(20.0) % 3
    counted = torch.arange(20).repeat_interleave(weights.long())
    options = {"layers": "all", "subnetwork": 20, "prior_variance": 1.0}
    bayes = bb.Laplace(model, **options).fit([(x, y, weights)], weighted=True)
    expected = bb.Laplace(model, **options).fit([(x[counted], y[counted])])
    assert torch.equal(chosen(bayes), chosen(expected))
    close(bayes.logits(x).covariance, expected.logits(x).covariance, 1e-10)


def test_several_processes_choose_the_same_weights():
    (alone,) = several.run(1, several_tasks.subnetwork)
    for masks, covariance in several.run(2, several_tasks.subnetwork):
        assert masks.keys() == alone[0].keys()
        assert all(torch.equal(masks[name], mask) for name, mask in alone[0].items())
        close(covariance, alone[1], 1e-9)


@pytest.mark.filterwarnings("ignore")  # of its code at work: it is not ours to mend
@pytest.mark.parametrize("likelihood", ["classification", "regression"])
@pytest.mark.parametrize("count", [5, 30])
def test_it_is_that_of_laplace_torch(likelihood, count):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        laplace = pytest.importorskip("laplace", reason="laplace-torch is not installed")
    regression, prior = likelihood == "regression", 0.4
    model, x, y = case("gaussian" if regression else "mlp")
    options = {"likelihood": "gaussian", "noise_variance": 1.0} if regression else {}
    ours = bb.Laplace(model, layers="all", subnetwork=count, prior_variance=prior, **options).fit([(x, y)])
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=10)
    backend, precision = laplace.curvature.BackPackGGN, torch.tensor(1 / prior, dtype=torch.float64)
    other = copy.deepcopy(model)  # which its backend extends for good
    diagonal = laplace.DiagLaplace(other, likelihood, backend=backend, prior_precision=precision)
    mask = laplace.utils.LargestVarianceDiagLaplaceSubnetMask(other, count, diagonal)
    indices = mask.select(data)
    assert torch.equal(chosen(ours).nonzero()[:, 0], indices)
    theirs = laplace.Laplace(
        other,
        likelihood,
        subset_of_weights="subnetwork",
        hessian_structure="full",
        subnetwork_indices=indices,
        backend=backend,
        prior_precision=precision,
    )
    theirs.fit(data)
    mean, covariance = theirs._glm_predictive_distribution(x)
    gaussian = ours.logits(x)
    torch.testing.assert_close(gaussian.mean, mean.detach(), rtol=0, atol=1e-12)
    close(gaussian.covariance, covariance, 1e-6)
    expected = theirs.log_marginal_likelihood().detach().reshape(())
    torch.testing.assert_close(ours.log_evidence(), expected, rtol=1e-6, atol=0)

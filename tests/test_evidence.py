"""Training by the evidence: written-out losses, dense float64 evidences, and laplace-torch's own training."""

import copy
import math
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import bitbayes as bb
import dense
import several
import several_tasks
from bitbayes.errors import (
    ArgumentError,
    BitbayesError,
    DataError,
    EmptyLoaderError,
    ModelError,
    NormalisationWarning,
)
from bitbayes.evidence import Hyperparameters, Schedule

POINTS, FEW = 48, {"epochs": 6, "burn_in": 2, "every": 2, "steps": 5, "residual": False}


def network(k=3):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, k)).double()


def data(k=3, n=POINTS):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(n, 4, generator=generator, dtype=torch.float64)
    noise = torch.randn(n, generator=generator, dtype=torch.float64)
    return x, ((x[:, 0] + 0.3 * noise) * 1.5 + 1).round().long().clamp(0, max(k, 2) - 1)


def loader(k=3, batch_size=20, **options):
    """Batches of 20, 20 and 8 points."""
    return DataLoader(TensorDataset(*data(k)), batch_size, **options)


def adam(model, **options):
    return torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.02, **options)


# ---- the penalty


def written_out(model, x, y, variances, count):
    """The loss of a batch: the mean of −log p, and half of Σ τ‖θ‖² over the number of all points."""
    penalty = sum(
        parameter.square().sum() / variances[name.split(".")[0]]
        for name, parameter in model.named_parameters()
    )
    return functional.cross_entropy(model(x), y) + penalty / 2 / count


@pytest.mark.parametrize("variances", [{"0": 0.3, "2": 5.0}, {"0": 1.0, "2": 1.0}])
def test_the_gradient_of_the_penalty_is_that_of_the_written_out_loss(variances):
    model, (x, y) = network(), data()
    own = {name: [*model.get_submodule(name).parameters()] for name in variances}
    hyperparameters = Hyperparameters(own, variances, Schedule(1, 1, 1, 0.1, True))
    plain = functional.cross_entropy(model(x), y)
    plain.backward()
    total = plain + hyperparameters.add_penalty_gradient(7)
    expected = written_out(model, x, y, variances, 7)
    for found, each in zip(
        model.parameters(), torch.autograd.grad(expected, [*model.parameters()]), strict=True
    ):
        torch.testing.assert_close(found.grad, each, rtol=1e-13, atol=1e-15)
    assert float(total.detach()) == pytest.approx(float(expected.detach()), rel=1e-14)


def test_the_penalty_of_some_parameters_alone():
    model = network()
    hyperparameters = Hyperparameters({"*": [*model.parameters()]}, 2.0, Schedule(1, 1, 1, 0.1, False))
    hyperparameters.add_penalty_gradient(5, {id(model[2].weight)})
    assert [each.grad is None for each in model.parameters()] == [True, True, False, True]
    torch.testing.assert_close(model[2].weight.grad, model[2].weight.detach() / 10)


def trained_by_hand(model, optimizer, loader, variances, epochs):
    losses = []
    for _ in range(epochs):
        total = 0.0
        for x, y in loader:
            optimizer.zero_grad()
            loss = written_out(model, x, y, variances, POINTS)
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(x)
        losses.append(total / POINTS)
    return losses


def test_the_first_epochs_are_those_of_the_written_out_loss():
    """Until the prior changes. Batches have several sizes."""
    model, ours = network(), network()
    variances = {"0": 0.5, "2": 3.0}
    expected = trained_by_hand(model, torch.optim.SGD(model.parameters(), lr=0.1), loader(), variances, 3)
    sgd = torch.optim.SGD(ours.parameters(), lr=0.1)
    found = bb.train_by_evidence(ours, loader(), sgd, epochs=3, burn_in=3, prior_variance=variances)
    assert found.losses == pytest.approx(expected, rel=1e-12)
    for mine, theirs in zip(ours.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-14)


def test_optimizers_that_call_their_closure_several_times():
    model, x_and_y = network(), data()
    lbfgs = torch.optim.LBFGS(model.parameters(), max_iter=200, line_search_fn="strong_wolfe")
    bb.train_by_evidence(model, [x_and_y], lbfgs, epochs=1, burn_in=1, steps=1, prior_variance=2.0)
    variances = {"0": 2.0, "2": 2.0}
    loss = written_out(model, *x_and_y, variances, POINTS)
    for gradient in torch.autograd.grad(loss, [*model.parameters()]):
        assert float(gradient.abs().max()) < 1e-5  # the maximum a posteriori


# ---- the evidence


def dense_evidence(model, x, y, log_precisions, structure):
    """log p(D | θ) − ½ Σ [τ‖θ‖² − P log τ + log det(H + τI)], with one τ for each parameter."""
    h = dense.ggn(model, x, y)
    h = torch.diag(torch.diag(h)) if structure == "diag" else h
    theta = torch.cat([each.detach().flatten() for each in model.parameters()])
    fit = -functional.cross_entropy(model(x), y, reduction="sum").detach()
    tau = log_precisions.exp()
    return fit - ((tau * theta**2).sum() - log_precisions.sum() + torch.logdet(h + torch.diag(tau))) / 2


@pytest.mark.parametrize("structure, each_layer", [("diag", True), ("diag", False), ("full", True)])
def test_the_evidence_is_ascended_by_its_dense_gradient(structure, each_layer):
    """Adam's steps on the evidence that is written out for all weights, from the same start."""
    model, (x, y) = network(), data()
    own = {"epochs": 1, "burn_in": 1, "steps": 7, "structure": structure, "each_layer": each_layer}
    found = bb.train_by_evidence(model, loader(), adam(model), prior_variance=0.4, **own)
    single = structure == "full" or not each_layer
    places = [0 if single else layer for layer, p in ((0, 24), (0, 6), (1, 18), (1, 3)) for _ in range(p)]
    logs = torch.full((1 if single else 2,), -math.log(0.4), dtype=torch.float64, requires_grad=True)
    reference = torch.optim.Adam([logs], lr=0.1)
    for _ in range(7):
        reference.zero_grad()
        (-dense_evidence(model, x, y, logs[places], structure)).backward()
        reference.step()
    expected = (-logs.detach()).exp().tolist()
    variance = found.prior_variance
    assert ([variance] if single else [*variance.values()]) == pytest.approx(expected, rel=1e-9)
    evidence = float(dense_evidence(model, x, y, logs.detach()[places], structure))
    assert found.evidence == pytest.approx(evidence, rel=1e-10)
    assert found.laplace.prior_variance == variance
    assert float(found.laplace.log_evidence()) == pytest.approx(evidence, rel=1e-10)


def test_precisions_stay_in_the_range_of_the_library():
    model, every = network(), {"epochs": 1, "burn_in": 1, "steps": 9, "learning_rate": 1e3}
    found = bb.train_by_evidence(model, loader(), adam(model), **every)
    assert all(1e-6 * 0.999 <= value <= 1e10 * 1.001 for value in found.prior_variance.values())
    assert math.isfinite(found.evidence)


# ---- the whole training


def test_the_evidence_is_larger_than_at_the_start_and_than_with_the_first_prior():
    model, options = network(), {"epochs": 60, "burn_in": 5}
    start = float(bb.Laplace(copy.deepcopy(model), layers="all").fit(loader()).log_evidence())
    fixed = copy.deepcopy(model)
    trained_by_hand(fixed, adam(fixed), loader(), {"0": 1.0, "2": 1.0}, 60)
    plain = float(bb.Laplace(fixed, layers="all").fit(loader()).log_evidence())
    found = bb.train_by_evidence(model, loader(), adam(model), **options)
    assert found.evidence > plain > start
    assert found.evidence == max(found.evidences.values()) == found.evidences[found.epoch]
    assert [*found.evidences] == [*found.prior_variances] == [*range(5, 61, 5)] and len(found.losses) == 60


class Branches(nn.Module):
    """Two layers for two halves of the inputs."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(2, 6, bias=False), nn.Linear(2, 6, bias=False)
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.first(x[:, :2]) + self.second(x[:, 2:])))


def test_a_layer_of_inputs_that_mean_nothing_gets_a_narrow_prior():
    model, x = Branches(), torch.randn(150, 4)
    y = (x[:, 0] + x[:, 1] > 0.3 * torch.randn(150)).long()
    batches = [*zip(x.split(30), y.split(30), strict=True)]
    found = bb.train_by_evidence(model, batches, adam(model), epochs=40, residual=False)
    assert found.prior_variance["second"] < 0.02 * found.prior_variance["first"]
    assert model.second.weight.norm() < 0.1 * model.first.weight.norm()


def test_the_weights_with_the_largest_evidence_are_returned():
    """They are not the last: the scheduler makes the last epochs spoil the network."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 if epoch < 24 else 40)
    found = bb.train_by_evidence(model, loader(), optimizer, epochs=30, scheduler=scheduler)
    assert found.epoch in (10, 15, 20) and found.evidences[30] < found.evidence
    assert scheduler.last_epoch == 30
    assert float(found.laplace.log_evidence()) == pytest.approx(found.evidence, rel=1e-12)
    again = bb.Laplace(model, layers="all", prior_variance=found.prior_variance).fit(loader())
    x, _ = data()
    assert torch.equal(found.laplace.predict_proba(x), again.predict_proba(x))
    assert float(again.log_evidence()) == pytest.approx(found.evidence, rel=1e-12)
    assert found.laplace.model is model


def test_a_scheduler_that_looks_at_the_loss():
    model = network()
    optimizer = adam(model)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.9)
    found = bb.train_by_evidence(model, loader(), optimizer, scheduler=scheduler, **FEW)
    assert scheduler.best == found.losses[0] and scheduler.get_last_lr()[0] < 0.02


def test_a_seed_decides_everything():
    found = []
    for seed in (0, 0, 1):
        model = network()
        model.insert(1, nn.Dropout(0.2))
        torch.manual_seed(seed)
        found.append(bb.train_by_evidence(model, loader(shuffle=True), adam(model), **FEW))
    first, second, third = ([each.losses, each.evidences, each.prior_variances] for each in found)
    assert first == second != third


@pytest.mark.parametrize("curvature", ["fisher", bb.Fisher(draws=2, seed=3)])
def test_drawn_labels(curvature):
    model = network()
    found = bb.train_by_evidence(model, loader(), adam(model), curvature=curvature, **FEW)
    exact = bb.train_by_evidence(again := network(), loader(), adam(again), **FEW)
    assert found.evidence != exact.evidence == pytest.approx(found.evidence, rel=0.1)


def test_one_logit():
    model, (x, y) = network(1), data(1)
    found = bb.train_by_evidence(model, [(x, y)], adam(model), **FEW)
    assert found.laplace.posterior.likelihood.name == "bernoulli"
    expected = functional.binary_cross_entropy_with_logits(model(x)[:, 0], y.double())
    assert found.losses[-1] > float(expected.detach()) > 0
    assert found.laplace.predict_proba(x).shape == (POINTS, 2)


class Two(nn.Module):
    """Takes two inputs, and returns two things."""

    def __init__(self):
        super().__init__()
        self.net = network()

    def forward(self, left, right):
        return {"twice": 2 * left, "classes": self.net(torch.cat([left, right], 1))}


@pytest.mark.parametrize("form", ["mapping", "adapted"])
def test_batches_and_outputs_of_other_forms(form):
    model, (x, y) = Two(), data()
    batches = [
        {"left": x[i : i + 20, :2], "right": x[i : i + 20, 2:], "labels": y[i : i + 20]} for i in (0, 20)
    ]
    options = {"output": "classes"}
    if form == "adapted":
        batches = [[*batch.values()] for batch in batches]
        options["adapt"] = lambda batch: ({"left": batch[0], "right": batch[1]}, batch[2])
    found = bb.train_by_evidence(model, batches, adam(model), **FEW, **options)
    plain = network()
    expected = bb.train_by_evidence(plain, [(x[:20], y[:20]), (x[20:40], y[20:40])], adam(plain), **FEW)
    assert found.losses == pytest.approx(expected.losses, rel=1e-12)
    assert found.evidence == pytest.approx(expected.evidence, rel=1e-10)


def test_frozen_parameters_stay_and_have_no_prior():
    model = network()
    model[0].requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    found = bb.train_by_evidence(model, loader(), optimizer, **FEW)
    assert [*found.prior_variance] == ["2"]
    same = [torch.equal(each, before[name]) for name, each in model.state_dict().items()]
    assert same == [True, True, False, False]
    assert model[0].weight.grad is None


class Mode(nn.Module):
    """Remembers in which modes it was called with gradients."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def forward(self, x):
        if torch.is_grad_enabled():
            self.seen.add(self.training)
        return x


def test_modules_train_in_train_mode_and_get_their_own_mode_again():
    model = network()
    model.insert(1, mode := Mode())
    model.eval()
    model[0].train()
    modes = [module.training for module in model.modules()]
    with torch.no_grad():  # as a user might call it
        bb.train_by_evidence(model, loader(), adam(model), **FEW)
    assert [module.training for module in model.modules()] == modes
    assert True in mode.seen


def test_a_sampler_is_told_the_epoch():
    sampler = DistributedSampler(TensorDataset(*data()), num_replicas=1, rank=0)
    model = network()
    bb.train_by_evidence(model, loader(sampler=sampler), adam(model), **FEW)
    assert sampler.epoch == FEW["epochs"] - 1


def test_a_model_in_bfloat16():
    model = network().to(torch.bfloat16)
    x, y = data()
    found = bb.train_by_evidence(model, [(x.to(torch.bfloat16), y)], adam(model), **FEW)
    assert math.isfinite(found.evidence) and model[0].weight.dtype == torch.bfloat16


def test_normalisation_warns():
    for norm, warned in ((nn.BatchNorm1d(6), True), (nn.GroupNorm(2, 6), True), (nn.LayerNorm(6), False)):
        model = network()
        model.insert(1, norm.double())
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            bb.train_by_evidence(model, loader(), adam(model), **FEW)
        found = [each for each in caught if each.category is NormalisationWarning]
        assert len(found) == warned
        assert all("at '1'" in str(each.message) and each.filename == __file__ for each in found)


# ---- errors


def refused(error, match, make=adam, model=None, batches=None, **options):
    """Assert that training raises, and that model and optimiser stay as they were."""
    model = network() if model is None else model
    model[0].eval()
    optimizer = make(model)
    before = copy.deepcopy([model.state_dict(), [each.training for each in model.modules()]])
    state = copy.deepcopy(optimizer.state_dict()) if hasattr(optimizer, "state_dict") else None
    with pytest.raises(error, match=match) as caught:
        bb.train_by_evidence(model, loader() if batches is None else batches, optimizer, **{**FEW, **options})
    assert isinstance(caught.value, BitbayesError) or error is TypeError
    assert [each.training for each in model.modules()] == before[1]
    assert all(torch.equal(each, before[0][name]) for name, each in model.state_dict().items())
    if state is not None:
        assert repr(optimizer.state_dict()) == repr(state)


@pytest.mark.parametrize(
    "make, match",
    [
        (
            lambda model: adam(model, weight_decay=0.1),
            r"weight_decay=0.1 in parameter group 0.*weight_decay=0 ",
        ),
        (
            lambda model: torch.optim.AdamW(model.parameters()),
            r"weight_decay=0.01 in parameter group 0.*AdamW",
        ),
        (
            lambda model: torch.optim.SGD(
                [{"params": model[0].parameters()}, {"params": model[2].parameters(), "weight_decay": 1e-4}]
            ),
            "weight_decay=0.0001 in parameter group 1",
        ),
        (
            lambda model: torch.optim.SGD(model[2].parameters()),
            r"does not train '0.weight', '0.bias': .*freeze",
        ),
        (lambda model: torch.optim.SGD(network().parameters()), "and 1 more"),
        (lambda model: [*model.parameters()], "optimizer is a list: expected a torch.optim.Optimizer"),
    ],
)
def test_optimizers_that_do_not_fit(make, match):
    refused(ArgumentError, match, make)


@pytest.mark.parametrize(
    "options, match",
    [
        ({"layers": "last"}, "layers='last': all weights.*freeze"),
        ({"burn_in": 7}, "burn_in=7, epochs=6: .*smaller burn_in"),
        ({"burn_in": -1}, "burn_in=-1: expected a whole number, at least 0"),
        ({"epochs": 0}, "epochs=0: expected a whole number, at least 1"),
        ({"every": 2.5}, "every=2.5"),
        ({"steps": True}, "steps=True"),
        ({"learning_rate": 0.0}, "learning_rate=0.0: expected a positive"),
        ({"prior_variance": -1.0}, "prior_variance=-1.0"),
        ({"prior_variance": {"0": 1.0}}, r"lacks \['2'\]"),
        ({"prior_variance": {"0": 1.0, "2": 1.0}, "each_layer": False}, "one number"),
        ({"structure": "full", "prior_variance": {"0": 1.0, "2": 1.0}}, "one number"),
        ({"structure": "lowrank"}, "structure='lowrank'"),
        ({"likelihood": "bernoulli"}, "likelihood='bernoulli'"),
    ],
)
def test_options_that_do_not_fit(options, match):
    refused(ArgumentError, match, **options)


def test_names_of_laplace_torch_are_told():
    refused(ArgumentError, "prior_precision=2.0 is an option of laplace-torch", prior_precision=2.0)
    refused(ArgumentError, r"n_epochs=3 .*laplace-torch.*train_by_evidence\(epochs=", n_epochs=3)
    refused(TypeError, "unexpected argument structur='full', did you mean 'structure'", structur="full")


def test_data_that_do_not_fit():
    x, y = data()
    refused(DataError, "a generator, can be iterated over only once", batches=(each for each in loader()))
    refused(DataError, "expected a loader", batches=x)
    refused(EmptyLoaderError, "empty", batches=[])
    refused(DataError, r"labels are \[1, 2, 3\]", batches=[(x, y + 1)])
    refused(
        ModelError, "'1' .Embedding.*structure='diag'", model=nn.Sequential(network()[0], nn.Embedding(2, 2))
    )


class Once:
    """Can be iterated over once, and does not show it."""

    def __init__(self):
        self.left = [data()]

    def __iter__(self):
        while self.left:
            yield self.left.pop()


def test_a_loader_that_is_empty_the_second_time():
    refused(EmptyLoaderError, "the loader is empty", batches=Once())


def test_a_training_that_diverges_names_the_epoch_and_changes_nothing():
    def make(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        schedulers.append(torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 if n < 3 else 1e200))
        return optimizer

    schedulers = []
    model = network()
    optimizer = make(model)
    before = copy.deepcopy([model.state_dict(), optimizer.state_dict(), schedulers[0].state_dict()])
    with pytest.raises(ModelError, match=r"loss of epoch 4 is (nan|inf).*smaller learning rate.*over N is"):
        bb.train_by_evidence(model, loader(), optimizer, scheduler=schedulers[0], **FEW)
    assert all(torch.equal(each, before[0][name]) for name, each in model.state_dict().items())
    assert repr(optimizer.state_dict()) == repr(before[1]) and schedulers[0].state_dict() == before[2]
    refused(
        ModelError,
        "after epoch 1: the evidence is -inf.*prior precision over N is 0.0208",
        lambda model: torch.optim.SGD(model.parameters(), lr=1e300),
        batches=[data()],
        burn_in=1,
        every=1,
    )


# ---- others


@pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="this torch has no Gloo")
def test_two_processes_find_what_one_finds():
    (alone,) = several.run(1, several_tasks.train_by_evidence)
    first, second = several.run(2, several_tasks.train_by_evidence)
    assert first[:2] == second[:2]
    assert first[0] == pytest.approx(alone[0], rel=1e-9)
    for name, value in alone[1].items():
        assert first[1][name] == pytest.approx(value, rel=1e-9)


@pytest.mark.filterwarnings("ignore")  # of its code at work: it is not ours to mend
def test_it_is_the_training_of_laplace_torch():
    """Without biases, for which it has priors of their own. Weights, losses and evidences, to rounding."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("laplace", reason="laplace-torch is not installed")
        from laplace.curvature import CurvlinopsGGN
        from laplace.marglik_training import marglik_training
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 6, bias=False), nn.Tanh(), nn.Linear(6, 3, bias=False)).double()
    theirs = copy.deepcopy(model)
    found = bb.train_by_evidence(model, loader(), adam(model), **FEW)
    schedule = {"n_epochs": 6, "n_epochs_burnin": 2, "marglik_frequency": 2, "n_hypersteps": 5}
    own = {"hessian_structure": "kron", "backend": CurvlinopsGGN, "optimizer_kwargs": {"lr": 0.02}}
    _, theirs, evidences, losses = marglik_training(theirs, loader(), "classification", **own, **schedule)
    assert found.epoch == 6
    assert found.losses == pytest.approx(losses, rel=1e-9)
    for mine, other in zip(model.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-7, atol=1e-9)
    # It keeps the evidence before the last step.
    lower, upper = ([-value for value in evidences[start::5]] for start in (3, 4))
    for (epoch, mine), before, last in zip(found.evidences.items(), lower, upper, strict=True):
        assert mine == pytest.approx(last, abs=1.5 * abs(last - before)), epoch


def test_in_regression_the_noise_is_chosen_too():
    """Fewer inputs matter than there are: the noise is found, without validation data."""
    torch.manual_seed(0)
    x = torch.randn(300, 3, dtype=torch.float64)
    y = 5 * x[:, :1] + 0.5 * torch.randn(300, 1).double()
    model = bb.toys.MLP((3, 10, 1)).double()
    adam = torch.optim.Adam(model.parameters(), lr=0.02)
    found = bb.train_by_evidence(model, [(x, y)], adam, epochs=600, burn_in=300, likelihood="gaussian")
    noise = found.laplace.noise_variance
    # The relative deviation of a variance of 300 points is √(2/300); four of them.
    assert noise == pytest.approx(0.25, rel=0.33)
    best = float(found.laplace.log_evidence())
    assert best == pytest.approx(found.evidence, rel=1e-12)
    for factor in (0.97, 1.03):
        found.laplace.noise_variance = factor * noise
        assert float(found.laplace.log_evidence()) < best


def test_a_noise_variance_that_was_given_stays():
    x = torch.randn(30, 3)
    model = bb.toys.MLP((3, 5, 1))
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    options = {"likelihood": "gaussian", "noise_variance": 0.2}
    found = bb.train_by_evidence(model, [(x, x[:, :1])], adam, epochs=12, **options)
    assert found.laplace.noise_variance == 0.2

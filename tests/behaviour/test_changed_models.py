"""A posterior whose model has changed since the fit is noticed, and one whose model has not is used."""

import copy
import pickle

import pytest
import torch
from torch import nn

import bitbayes as bb
from bitbayes.errors import FileError, ModelError, NotFittedError, StateDictWarning
from classifiers import points


class Net(nn.Module):
    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.body, self.norm = nn.Linear(4, 6), nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 3)
        self.register_buffer("gain", torch.ones(()), persistent=False)
        self.to(dtype)

    def forward(self, x):
        return self.head(self.gain * torch.relu(self.norm(self.body(x))))


def fitted(layers="last", **options):
    torch.manual_seed(0)
    x, y = points()
    return bb.Laplace(Net().eval(), layers=layers, prior_variance=1.0, **options).fit([(x, y)]), x, y


def step(model, optimiser):
    x, y = points()
    nn.functional.cross_entropy(model(x), y).backward()
    optimiser.step()


def by_fused_adam(bayes):
    step(bayes.model, torch.optim.Adam(bayes.model.parameters(), lr=0.1, fused=True))


def by_training(bayes):
    step(bayes.model, torch.optim.SGD(bayes.model.parameters(), lr=0.1))


def by_data(bayes):
    bayes.model.body.weight.data.mul_(1.5)


def by_statistics(bayes):
    with torch.no_grad():
        bayes.model.train()(points()[0])
    bayes.model.eval()


def by_loading(bayes):
    torch.manual_seed(1)
    bayes.model.load_state_dict(Net().state_dict())


def by_a_new_head(bayes):
    bayes.model.head = nn.Linear(6, 3)


def by_a_new_parameter(bayes):
    bayes.model.head.bias = nn.Parameter(torch.ones(3))


def by_a_new_model(bayes):
    bayes.model = Net().eval()


def by_a_buffer_that_is_not_saved(bayes):
    bayes.model.gain.fill_(3.0)


def by_data_of_one_entry(bayes):
    bayes.model.head.weight.data = bayes.model.head.weight.data.clone()
    bayes.model.head.weight.data[1, 1] += 1  # an entry that is not looked at each time


CHANGES = [
    by_training,
    by_fused_adam,
    by_data,
    by_statistics,
    by_loading,
    by_a_new_head,
    by_a_new_parameter,
    by_a_new_model,
    by_a_buffer_that_is_not_saved,
    by_data_of_one_entry,
]
USES = {
    "predict_proba": lambda bayes, x, y, path: bayes.predict_proba(x),
    "forward": lambda bayes, x, y, path: bayes(x),
    "logits": lambda bayes, x, y, path: bayes.logits(x),
    "score": lambda bayes, x, y, path: bayes.score(x),
    "uncertainty": lambda bayes, x, y, path: bayes.uncertainty(x),
    "threshold": lambda bayes, x, y, path: bayes.threshold(x),
    "evaluate": lambda bayes, x, y, path: bayes.evaluate([(x, y)]),
    "sample": lambda bayes, x, y, path: bayes.sample(2),
    "log_evidence": lambda bayes, x, y, path: bayes.log_evidence(),
    "tune": lambda bayes, x, y, path: bayes.tune([(x, y)]),
    "evidence": lambda bayes, x, y, path: bayes.tune(objective="evidence"),
    "update": lambda bayes, x, y, path: bayes.update([(x, y)]),
    "limit": lambda bayes, x, y, path: bayes.limit(x),
    "certify": lambda bayes, x, y, path: bayes.certify(x),
    "bound": lambda bayes, x, y, path: bayes.bound(x[:2]),
    "save": lambda bayes, x, y, path: bayes.save(path / "posterior.safetensors"),
    "export": lambda bayes, x, y, path: bayes.export(path / "graph.pt2", x),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("layers", ["last", "all"])
def test_a_changed_model_is_noticed(layers, change):
    bayes, x, _ = fitted(layers)
    bayes.predict_proba(x)
    change(bayes)
    for _ in range(2):
        with pytest.raises(ModelError, match=r"fit|new Laplace"):
            bayes.predict_proba(x)


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("layers", ["last", "all"])
def test_every_use_of_a_changed_model_raises(layers, use, tmp_path):
    if (layers, use) == ("all", "export"):
        pytest.skip("not exported")
    bayes, x, y = fitted(layers)
    by_data(bayes)
    with pytest.raises(ModelError, match=r"changed since.*fit"):
        USES[use](bayes, x, y, tmp_path)
    bayes.fit([(x, y)])
    USES[use](bayes, x, y, tmp_path)


def loaded_with_its_own(bayes):
    bayes.model.load_state_dict(copy.deepcopy(bayes.model.state_dict()))
    return bayes


def frozen(bayes):
    bayes.model.requires_grad_(False)
    return bayes


def in_training_mode(bayes):
    bayes.model.train()
    return bayes


def unpickled(bayes):
    return pickle.loads(pickle.dumps(bayes))


def in_another_layout(bayes):
    bayes.model.body.weight.data = bayes.model.body.weight.data.t().contiguous().t()
    return bayes


KEPT = [copy.deepcopy, unpickled, loaded_with_its_own, frozen, in_training_mode, in_another_layout]


@pytest.mark.parametrize("keep", KEPT)
@pytest.mark.parametrize("layers", ["last", "all"])
def test_what_does_not_change_the_weights_changes_no_prediction(layers, keep):
    bayes, x, _ = fitted(layers)
    expected = bayes.predict_proba(x)
    again = keep(bayes)
    torch.testing.assert_close(again.predict_proba(x), expected, rtol=0, atol=1e-6)
    by_data(again)
    with pytest.raises(ModelError, match="fit"):
        again.predict_proba(x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("layers", ["last", "all"])
def test_a_converted_model_is_another_one(layers, dtype):
    bayes, x, y = fitted(layers)
    expected = bayes.predict_proba(x)
    bayes.model.to(dtype)
    for _ in range(2):
        with pytest.raises(ModelError, match=r"'body\.weight'.*fit"):
            bayes.predict_proba(x.to(dtype))
    if dtype == torch.float64:  # which keeps all digits: back again it is the same
        bayes.model.float()
        assert torch.equal(bayes.predict_proba(x), expected)
    bayes.model.to(dtype)
    found = bayes.fit([(x.to(dtype), y)]).predict_proba(x.to(dtype))
    torch.testing.assert_close(found.to(expected), expected, rtol=0, atol=0.05)


def test_models_of_inference_tensors_are_watched():
    x, y = points()
    with torch.inference_mode():
        model = Net().eval()
        bayes = bb.Laplace(model, prior_variance=1.0).fit([(x, y)])
        bayes.predict_proba(x)
        by_data(bayes)
    with pytest.raises(ModelError, match="fit"):
        bayes.predict_proba(x)


class Counting(nn.Module):
    """It counts its calls in a buffer, also in eval mode."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.head(x)


@pytest.mark.parametrize("layers", ["last", "all"])
def test_buffers_that_predictions_change_are_no_change(layers):
    x, y = points()
    bayes = bb.Laplace(Counting(), layers=layers, prior_variance=1.0).fit([(x, y)])
    assert torch.equal(bayes.predict_proba(x), bayes.predict_proba(x))
    bayes.model.head.weight.data *= 2
    with pytest.raises(ModelError, match="fit"):
        bayes.predict_proba(x)


def test_a_model_that_is_trained_while_it_is_fitted_is_refused():
    x, y = points()
    model = Net().eval()

    def batches():
        yield x, y
        model.head.weight.data += 1
        yield x, y

    bayes = bb.Laplace(model)
    with pytest.raises(ModelError, match="changed while it was fitted"):
        bayes.fit(batches())
    with pytest.raises(NotFittedError):
        _ = bayes.posterior


@pytest.mark.parametrize("layers", ["last", "all"])
def test_a_copy_watches_its_own_model(layers):
    bayes, x, _ = fitted(layers)
    again = copy.deepcopy(bayes)
    assert again.posterior._detector.model is again.model and again.posterior._detector.unchanged()
    by_data(bayes)
    again.predict_proba(x)


class Noting(nn.Module):
    """It notes something in one entry of a buffer that is not saved; another of its buffers is sparse."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.register_buffer("notes", torch.zeros(1000), persistent=False)
        self.register_buffer("graph", torch.eye(4).to_sparse(), persistent=False)
        self.unused = nn.Parameter(torch.full((3,), torch.nan), requires_grad=False)

    def forward(self, x):
        self.notes[7] += len(x)
        return self.head(x @ self.graph)


@pytest.mark.parametrize("layers", ["last", "all"])
def test_buffers_that_live_are_known_after_loading(layers, tmp_path):
    x, y = points()
    model = Noting()
    bayes = bb.Laplace(model, layers=layers, prior_variance=1.0, structure="diag").fit([(x, y)])
    bayes.save(tmp_path / "bayes.safetensors")
    again = bb.Laplace.load(tmp_path / "bayes.safetensors", model)
    for each in (bayes, again):
        assert torch.equal(each.predict_proba(x), each.predict_proba(x))
    model.head.weight.data *= 2
    with pytest.raises(ModelError, match="fit"):
        again.predict_proba(x)


def by_entries_between(bayes):
    bayes.model.body.weight.data = bayes.model.body.weight.data.clone()
    weight = bayes.model.body.weight.data.view(-1)
    weight[17] = 7.0  # the first 16 of 24 entries are looked at


def by_a_buffer_between(bayes):
    bayes.model.mask[1:6] = 5.0


@pytest.mark.parametrize("change", [by_entries_between, by_a_buffer_between])
def test_changes_between_the_entries_that_are_looked_at_are_noticed(change):
    torch.manual_seed(0)
    x, y = points()
    model = Net().eval()
    model.body = nn.Linear(4, 6)
    model.register_buffer("mask", torch.zeros(100), persistent=False)
    bayes = bb.Laplace(model, prior_variance=1.0).fit([(x, y)])
    change(bayes)
    with pytest.raises(ModelError, match="changed since"):
        bayes.predict_proba(x)


def test_a_conversion_between_dtypes_of_one_size_is_a_change():
    x, y = points()
    model = nn.Linear(4, 3).half()
    bayes = bb.Laplace(model, prior_variance=1.0).fit([(x.half(), y)])
    model.bfloat16()
    with pytest.raises(ModelError, match="'weight', 'bias'"):
        bayes.predict_proba(x.bfloat16())


# ---- changes of what the model computes that change none of its tensors


class Adapted(nn.Module):
    """A network whose forward reads more than its parameters and buffers."""

    def __init__(self):
        super().__init__()
        self.body, self.norm, self.act = nn.Linear(4, 60), nn.BatchNorm1d(60), nn.LeakyReLU(0.1)
        self.head, self.scaling, self.shift = nn.Linear(60, 3), {"default": 0.5}, torch.zeros(60)

    def forward(self, x):
        return self.head(self.act(self.norm(self.body(x) + self.scaling["default"] * self.shift.cos())))


class Other(Adapted):
    def forward(self, x):
        return super().forward(2 * x)


def through_numpy(model):
    model.body.weight.detach().numpy().reshape(-1)[1:15] += 1.0


def another_class(model):
    model.__class__ = Other


HIDDEN_CHANGES = {
    "the scaling of an adapter": lambda model: model.scaling.update(default=2.5),
    "a hook": lambda model: model.act.register_forward_hook(lambda module, args, output: 1.5 * output),
    "negative slope": lambda model: setattr(model.act, "negative_slope", 0.5),
    "an unregistered tensor": lambda model: setattr(model, "shift", torch.ones(60)),
    "numpy": through_numpy,
    "eps": lambda model: setattr(model.norm, "eps", 0.1),
    "a replaced forward": lambda model: setattr(model.act, "forward", torch.tanh),
    "another class": another_class,
}
RARE_USES = ("tune", "evaluate", "export", "update")


@pytest.mark.parametrize("layers", ["last", "all"])
@pytest.mark.parametrize("name", HIDDEN_CHANGES)
def test_a_change_that_no_tensor_shows_is_noticed(name, layers, tmp_path):
    torch.manual_seed(0)
    x, y = points()
    bayes = bb.Laplace(Adapted().eval(), layers=layers, prior_variance=1.0).fit([(x, y)])
    bayes.save(tmp_path / "posterior.safetensors")
    bb.Laplace.load(tmp_path / "posterior.safetensors", bayes.model)
    HIDDEN_CHANGES[name](bayes.model)
    for use in RARE_USES:
        with pytest.raises(ModelError, match="has changed since it was fitted"):
            USES[use](bayes, x, y, tmp_path)
    kinds = (ModelError, FileError)  # the file's fingerprint knows classes, and bytes that numpy wrote
    with pytest.raises(kinds, match=r"has changed since it was fitted|fitted on a model"):
        bb.Laplace.load(tmp_path / "posterior.safetensors", bayes.model)
    bayes.fit([(x, y)]).evaluate([(x, y)])


@pytest.mark.parametrize("layers", ["last", "all"])
def test_updates_and_merges_still_know_the_outputs(layers):
    torch.manual_seed(0)
    x, y = points()
    first, second = (
        bb.Laplace(model, layers=layers, prior_variance=1.0).fit([(x[rows], y[rows])])
        for model in [Adapted().eval()]
        for rows in (slice(20), slice(20, 40))
    )
    for bayes in (bb.merge([first, second]), first.update([(x[20:] + 1, y[20:])])):
        bayes.evaluate([(x, y)])
        bayes.model.act.negative_slope = 0.5
        with pytest.raises(ModelError, match="outputs differ"):
            bayes.evaluate([(x, y)])
        bayes.model.act.negative_slope = 0.1


def test_posteriors_of_models_with_other_outputs_are_neither_merged_nor_taken_over():
    torch.manual_seed(0)
    x, y = points()
    model, other = Adapted().eval(), Adapted().eval()
    other.load_state_dict(model.state_dict())
    other.act.negative_slope = 0.5
    first, second = (
        bb.Laplace(each, prior_variance=1.0).fit([(x[rows], y[rows])])
        for each, rows in ((model, slice(20)), (other, slice(20, 40)))
    )
    with pytest.raises(ModelError, match="outputs differ"):
        bb.merge([first, second])
    with pytest.warns(StateDictWarning, match="outputs differ"):
        second.load_state_dict(first.state_dict())

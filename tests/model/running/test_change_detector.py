"""Fingerprints of models: architecture and weights."""

import pytest
import torch
from torch import nn

import bitbayes as bb
from bitbayes.errors import ModelError
from bitbayes.model import ChangeDetector, SideEffects, detect_changes, fingerprint, private_copy
from bitbayes.model.running import change_detector
from classifiers import points


def test_a_fingerprint_sees_modules_shapes_and_values():
    def make(seed, activation=nn.ReLU, width=4):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, width), activation(), nn.BatchNorm1d(width), nn.Linear(width, 2))

    same, again = fingerprint(make(0)), fingerprint(make(0))
    assert same == again
    assert fingerprint(make(1)).architecture == same.architecture
    assert fingerprint(make(1)).weights != same.weights
    assert fingerprint(make(0, nn.Tanh)).architecture != same.architecture
    assert fingerprint(make(0, width=5)).architecture != same.architecture
    counted = make(0)
    counted[2].running_var += 1
    assert fingerprint(counted).weights != same.weights
    assert fingerprint(make(0).bfloat16()).architecture != same.architecture


class Counting(nn.Linear):
    """A layer whose state holds a dictionary."""

    def get_extra_state(self):
        return {"calls": 3}

    def set_extra_state(self, state):
        pass


def test_a_model_whose_state_holds_more_than_tensors():
    x, y = points()
    bayes = bb.Laplace(nn.Sequential(Counting(4, 8), nn.ReLU(), nn.Linear(8, 3))).fit([(x, y)])
    assert bool(bayes.predict_proba(x).isfinite().all())


@pytest.mark.parametrize("limit", [2**28, 0])
def test_a_fingerprint_made_beside_other_work_is_that_of_the_model_afterwards(monkeypatch, limit):
    monkeypatch.setattr(change_detector, "MAX_BYTES_ASIDE", limit)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).eval()
    before = fingerprint(model)
    with detect_changes(model, model) as run:
        model(torch.randn(5, 3))
    assert run.fingerprint == before and run.side_effects.buffers == ()
    with detect_changes(model, model) as run:
        model[1].running_mean += 1
    assert run.fingerprint == fingerprint(model) != before
    assert run.side_effects.buffers == ("1.running_mean",)


def test_a_fit_whose_model_counts_its_calls_has_the_fingerprint_of_afterwards():
    class Counter(nn.Linear):
        def __init__(self):
            super().__init__(4, 8)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return super().forward(x)

    x, y = points()
    model = nn.Sequential(Counter(), nn.ReLU(), nn.Linear(8, 3))
    bayes = bb.Laplace(model).fit([(x, y)])
    assert bayes.posterior.fitted.fingerprint == fingerprint(model)


# ---- the detector


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).eval()


def detector(model, mutable_buffers=()):
    return ChangeDetector(model, fingerprint(model), mutable_buffers)


def add_in_place(model):
    with torch.no_grad():
        model[0].weight += 1


CHANGES = {
    "in place": add_in_place,
    "behind the version counter": lambda model: model[2].weight.data.add_(1),
    "a buffer": lambda model: model[1].running_mean.add_(1),
    "another tensor": lambda model: setattr(model[0], "weight", nn.Parameter(torch.zeros(4, 3))),
    "another module": lambda model: model.__setitem__(2, nn.Linear(4, 2)),
    "one more module": lambda model: model.append(nn.Identity()),
    "another dtype": lambda model: model.double(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_noticed_and_named(name):
    model = network()
    known = detector(model)
    assert bool(known.unchanged())
    CHANGES[name](model)
    assert not bool(known.unchanged())
    with pytest.raises(ModelError, match="has changed since it was fitted"):
        known.renewed()


def test_a_change_of_a_single_number_is_noticed_where_the_tensor_was_written_to():
    model = nn.Sequential(nn.Linear(300, 300))
    known = detector(model)
    with torch.no_grad():
        model[0].weight[0, 1] += 1  # not one of the entries that are compared each time
    assert known.unchanged() is False  # and no tensor: no values had to be looked at
    with pytest.raises(ModelError, match="in entries other than those that are compared"):
        known.renewed()


@pytest.mark.parametrize("part", range(4))
def test_entries_all_over_a_tensor_are_compared_each_time(part):
    model = nn.Sequential(nn.Linear(64, 64))
    known = detector(model)
    model[0].weight.data[16 * part : 16 * part + 16] += 1  # behind the version counter
    assert not bool(known.unchanged())


def test_the_names_of_what_has_changed_are_told():
    model = network()
    known = detector(model)
    add_in_place(model)
    with pytest.raises(ModelError, match=r"\('0\.weight'\)"):
        known.renewed()
    for parameter in model.parameters():
        parameter.data += 1
    with pytest.raises(ModelError, match=r"\('0\.weight', '0\.bias', '1\.weight' and 3 more\)"):
        known.renewed()


def test_the_same_weights_in_another_place_are_no_change():
    model = network()
    known = detector(model)
    model.load_state_dict({name: each.clone() for name, each in model.state_dict().items()})
    model[2].bias = nn.Parameter(model[2].bias.detach().clone())
    assert not bool(known.unchanged())
    again = known.renewed()
    assert bool(again.unchanged()) and again.fingerprint == known.fingerprint


def test_mutable_buffers_are_not_compared():
    model = network()
    known = detector(model, ("1.running_mean",))
    model[1].running_mean.data += 1
    assert known._samples.tensors.keys() == {
        *dict(model.named_parameters()),
        *dict(model.named_buffers()),
    } - {"1.running_mean"}
    assert bool(known.unchanged())


def test_a_buffer_that_is_not_saved_is_compared_too():
    model = network()
    model[0].register_buffer("mask", torch.ones(100), persistent=False)
    known = detector(model)
    model[0].mask[1] = 0
    with pytest.raises(ModelError, match=r"0\.mask"):
        known.renewed()


def test_training_while_the_model_is_only_run_is_refused():
    model = network()
    with (
        pytest.raises(ModelError, match=r"'0\.weight' has changed while it was fitted"),
        detect_changes(model, model),
    ):
        model[0].weight.data += 1


class Counts(nn.Module):
    """It writes to a buffer: a number of calls, in place or in a new tensor, or what is there already."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.register_buffer("calls", torch.zeros(2))
        self.register_buffer("scale", torch.full((2,), torch.nan))

    def forward(self, x):
        if self.how == "in a new tensor":
            self.calls = self.calls + 1
        else:
            self.calls += 1 if self.how == "in place" else 0
        return x


@pytest.mark.parametrize("how", ["in place", "in a new tensor", "the same"])
def test_buffers_that_a_copy_writes_to_or_replaces_are_side_effects(how):
    model = Counts(how)
    copy = private_copy(model, SideEffects(("calls", "scale")))
    with detect_changes(model, copy) as run:
        pass
    assert run.side_effects.buffers == ()
    with detect_changes(model, copy) as run:
        copy(torch.zeros(1))
    assert run.side_effects.buffers == ("calls",) and not model.calls.any()

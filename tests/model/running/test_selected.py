"""`output=`: which part of what a model returns are its logits."""

import copy
import pickle
from typing import NamedTuple

import pytest
import torch
from torch import nn

import bitbayes as bb
from bitbayes.errors import ArgumentError, FileError, ModelError
from bitbayes.model import fingerprint, selected
from classifiers import points

X, Y = points()


class Outputs(NamedTuple):
    coarse: torch.Tensor
    fine: torch.Tensor


class TwoHeads(nn.Module):
    """Two heads on one body; `kind` is what they are returned in."""

    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(1)
        self.body, self.coarse, self.fine, self.kind = nn.Linear(4, 6), nn.Linear(6, 2), nn.Linear(6, 3), kind

    def forward(self, x):
        features = self.body(x).tanh()
        found = self.coarse(features), self.fine(features)
        if self.kind is dict:
            return {"coarse": found[0], "fine": found[1]}
        return found if self.kind is tuple else Outputs(*found)


def second(returned):
    return returned[1]


CASES = [(dict, "fine"), (Outputs, "fine"), (tuple, second), (Outputs, second)]


def plain(model):
    """The model that returns the logits alone."""
    return nn.Sequential(model.body, nn.Tanh(), model.fine)


@pytest.mark.parametrize("layers", ["last", "all"])
@pytest.mark.parametrize("kind, output", CASES)
def test_it_is_the_model_that_returns_these_logits_alone(kind, output, layers, tmp_path):
    model = TwoHeads(kind)
    model.coarse.requires_grad_(False)  # the logits have no derivatives in it
    # Without a residual: the layer of the other logits is a level of it, too.
    options = {"layers": layers, "structure": "diag", "residual": False}
    bayes = bb.Laplace(model, output=output, **options).fit([(X, Y)]).tune([(X, Y)])
    other = bb.Laplace(plain(model), **options).fit([(X, Y)]).tune([(X, Y)])
    torch.testing.assert_close(bayes.predict_proba(X), other.predict_proba(X), rtol=0, atol=1e-6)
    torch.testing.assert_close(bayes(X), other(X), rtol=0, atol=1e-5)
    names = {"body.weight", "body.bias", "fine.weight", "fine.bias"} if layers == "all" else None
    assert set(bayes.sample(1)) == (names or {"fine.weight", "fine.bias"})
    bayes.save(tmp_path / "two.safetensors")
    function = output if callable(output) else None
    again = bb.Laplace.load(tmp_path / "two.safetensors", model, output=function)
    assert torch.equal(again.predict_proba(X), bayes.predict_proba(X))


def test_a_file_names_the_function_that_it_cannot_hold(tmp_path):
    model, path = TwoHeads(tuple), tmp_path / "two.safetensors"
    bb.Laplace(model, output=second).fit([(X, Y)]).save(path)
    with pytest.raises(FileError, match=r"a function.*Laplace.load\(path, model, output=…\)"):
        bb.Laplace.load(path, model)
    bb.Laplace(plain(model)).fit([(X, Y)]).save(path)
    with pytest.raises(FileError, match="fitted with output=None"):
        bb.Laplace.load(path, plain(model), output=second)


def test_the_model_keeps_its_names_modes_and_outputs():
    model = TwoHeads(dict).train()
    bayes = bb.Laplace(model, output="fine").fit([(X, Y)])
    assert set(model(X)) == {"coarse", "fine"} and model.training and type(model) is TwoHeads
    assert list(bayes.model.state_dict()) == list(model.state_dict())
    assert fingerprint(bayes.model) == fingerprint(model)
    bayes.eval()
    assert not model.training  # as of every other module inside another
    with torch.no_grad():
        model.fine.weight += 1
    with pytest.raises(ModelError, match="has changed since"):
        bayes.predict_proba(X)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_copies_select_too(copied):
    bayes = bb.Laplace(TwoHeads(dict), output="fine", prior_variance=1.0).fit([(X, Y)])
    other = copied(bayes)
    assert torch.equal(other.predict_proba(X), bayes.predict_proba(X))
    assert other.model.fine.weight is not bayes.model.fine.weight


def test_two_laplaces_of_one_model_may_select_differently():
    model = TwoHeads(dict)
    fine = bb.Laplace(model, output="fine", prior_variance=1.0).fit([(X, Y)])
    coarse = bb.Laplace(model, output="coarse", prior_variance=1.0).fit([(X, Y % 2)])
    assert fine.predict_proba(X).shape == (40, 3) and coarse.predict_proba(X).shape == (40, 2)


def test_what_cannot_be_selected_is_refused():
    with pytest.raises(ArgumentError, match=r"output=3: expected the name"):
        bb.Laplace(TwoHeads(dict), output=3)
    with pytest.raises(
        ModelError, match=r"'logits': what the model returns has no such.*\['coarse', 'fine'\]"
    ):
        bb.Laplace(TwoHeads(dict), output="logits").fit([(X, Y)])
    with pytest.raises(ModelError, match=r"returned tuple.*output='NAME'"):
        bb.Laplace(TwoHeads(tuple)).fit([(X, Y)])
    with pytest.raises(ModelError, match="returned NoneType"):
        bb.Laplace(TwoHeads(tuple), output=lambda returned: None).fit([(X, Y)])


def test_nothing_selected_is_the_model_itself():
    model = TwoHeads(dict)
    assert selected(model, None) is model


def named_otherwise(batch):
    return batch["pixels"] - 1, batch["truth"]


def test_adapt_makes_pairs_of_the_batches_of_every_loader(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    strange, pairs = [{"pixels": X + 1, "truth": Y, "weight": Y}], [((X + 1) - 1, Y)]
    bayes = bb.Laplace(model, adapt=named_otherwise).fit(strange).tune(strange)
    other = bb.Laplace(model).fit(pairs).tune(pairs)
    assert bayes.adapt is named_otherwise and bayes.settings == other.settings
    assert bayes.evaluate(strange, outliers={"same": strange}) == other.evaluate(
        pairs, outliers={"same": pairs}
    )
    assert torch.equal(bayes.predict_proba(strange), other.predict_proba(pairs))
    assert torch.equal(bayes.predict_proba(X), other.predict_proba(X))  # inputs as the model takes them
    assert bayes.threshold(strange) == other.threshold(pairs)
    bayes.update(strange)
    bayes.save(tmp_path / "adapted.safetensors")
    with pytest.raises(FileError, match=r"adapt=, a function.*Laplace.load\(path, model, adapt=…\)"):
        bb.Laplace.load(tmp_path / "adapted.safetensors", model)
    again = bb.Laplace.load(tmp_path / "adapted.safetensors", model, adapt=named_otherwise)
    for each in (again, copy.deepcopy(bayes), pickle.loads(pickle.dumps(bayes))):
        assert torch.equal(each.predict_proba(strange), bayes.predict_proba(strange))


def test_adapt_goes_with_output_and_leaves_the_model_alone():
    model = TwoHeads(dict)
    bayes = bb.Laplace(model, output="fine", adapt=named_otherwise)
    bayes.fit([{"pixels": X + 1, "truth": Y}])
    assert type(model) is TwoHeads and set(model(X)) == {"coarse", "fine"}
    assert bayes.predict_proba(X).shape == (len(X), 3)


def test_adapt_must_be_a_function():
    with pytest.raises(ArgumentError, match="adapt='image': expected a function of a batch"):
        bb.Laplace(nn.Linear(4, 3), adapt="image")

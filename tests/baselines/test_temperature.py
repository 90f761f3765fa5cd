"""Temperature scaling against brute-force minimisation of the same loss."""

import copy
import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from scipy import optimize
from torch import nn

import bitbayes as bb
import reference
from bitbayes.errors import ArgumentError, BitbayesError, DataError, EdgeWarning, FileError, NotFittedError


def overconfident(k, factor, seed=0, n=150, dtype=torch.float64):
    """A network whose logits are `factor` times what its labels were drawn from."""
    torch.manual_seed(seed)
    model = nn.Linear(3, k).to(dtype)
    x = 2 * torch.randn(n, 3, dtype=dtype)
    with torch.no_grad():
        logits = model(x)
        p = logits.softmax(1) if k > 1 else torch.cat([(-logits).sigmoid(), logits.sigmoid()], 1)
        y = torch.multinomial(p.float(), 1)[:, 0]
        for parameter in model.parameters():
            parameter *= factor
    return model, x, y


def summed_loss(model, x, y, log_temperature):
    logits = model(x).detach().double()
    return float(reference.total_loss(logits * math.exp(-log_temperature), y))


def weak_prior(log_temperature):
    """½(log T/s)², with s = 0.15 for T < 1, and 0.35 above."""
    return (log_temperature / (0.15 if log_temperature < 0 else 0.35)) ** 2 / 2


def brute_force(model, x, y):
    """log T by Brent's method on the summed loss with the weak prior."""

    def cost(log_temperature):
        return summed_loss(model, x, y, log_temperature) + weak_prior(log_temperature)

    grid = torch.linspace(math.log(1e-3), math.log(1e3), 200).tolist()
    start = min(grid, key=cost)
    return optimize.minimize_scalar(cost, bracket=(start - 0.1, start, start + 0.1), tol=1e-10).x, cost


@given(st.integers(0, 10_000), st.floats(-1.5, 2), st.sampled_from([1, 2, 3, 10]))
def test_the_temperature_is_the_brute_force_optimum(seed, log_factor, k):
    model, x, y = overconfident(k, 10**log_factor, seed)
    expected, cost = brute_force(model, x, y)
    scaled = bb.TemperatureScaling(model).fit(reference.loader(x, y, 40))
    assert scaled.temperature > 0
    # A minimiser sees the cost to 1e-14 and its bend of 8 or more: the minimum to √1e-15 of its size.
    assert abs(math.log(scaled.temperature) - expected) < 1e-6
    assert cost(math.log(scaled.temperature)) <= cost(expected) * (1 + 1e-13) + 1e-10


@pytest.mark.parametrize("k", [1, 3])
def test_probabilities_are_those_of_the_scaled_logits(k):
    model, x, y = overconfident(k, 5.0)
    scaled = bb.TemperatureScaling(model)
    assert scaled.fit([(x, y)]) is scaled
    assert isinstance(scaled, nn.Module) and isinstance(scaled.temperature, float)
    logits = model(x).detach() / scaled.temperature
    torch.testing.assert_close(scaled(x).detach(), logits, rtol=1e-14, atol=0)
    p = logits.softmax(1) if k > 1 else torch.cat([1 - logits.sigmoid(), logits.sigmoid()], 1)
    torch.testing.assert_close(scaled.predict_proba(x), p, rtol=0, atol=1e-14)
    torch.testing.assert_close(scaled.predict_proba(reference.loader(x, y)), p, rtol=0, atol=1e-14)
    assert 2 < scaled.temperature < 12


@pytest.mark.parametrize("k", [1, 3])
def test_a_temperature_changes_no_label(k):
    model, x, y = overconfident(k, 20.0)
    scaled = bb.TemperatureScaling(model).fit([(x, y)])
    plain = model(x).argmax(1) if k > 1 else (model(x)[:, 0] > 0).long()
    assert torch.equal(scaled.predict_proba(x).argmax(1), plain)


@pytest.mark.parametrize("flat", [True, False])
def test_one_logit_may_have_shape_n_or_n_1(flat):
    model, x, y = overconfident(1, 5.0)
    shaped = nn.Sequential(model, nn.Flatten(0)) if flat else model
    scaled = bb.TemperatureScaling(shaped).fit(reference.loader(x, y.double()))
    assert scaled.temperature == bb.TemperatureScaling(model).fit([(x, y)]).temperature
    assert scaled(x).shape == shaped(x).shape and scaled.predict_proba(x).shape == (len(x), 2)


def test_batch_sizes_do_not_change_the_temperature():
    model, x, y = overconfident(3, 5.0)
    temperatures = {
        bb.TemperatureScaling(model).fit(reference.loader(x, y, n)).temperature for n in (1, 40, 200)
    }
    assert max(temperatures) - min(temperatures) < 1e-12


def test_the_model_is_used_in_eval_mode_and_given_its_mode_back():
    torch.manual_seed(0)
    linear, x, y = overconfident(3, 5.0)
    model = nn.Sequential(linear, nn.Dropout(0.5)).train()
    model[0].eval()
    scaled = bb.TemperatureScaling(model).fit(reference.loader(x, y))
    p = scaled.predict_proba(x)
    assert scaled.temperature == bb.TemperatureScaling(linear).fit(reference.loader(x, y)).temperature
    assert torch.equal(p, bb.TemperatureScaling(linear).fit(reference.loader(x, y)).predict_proba(x))
    assert torch.equal(scaled(x), scaled(x))
    assert model.training and model[1].training and not model[0].training


def test_modes_come_back_after_an_error():
    linear, x, y = overconfident(3, 5.0)
    model = nn.Sequential(linear, nn.Dropout(0.5)).train()
    scaled = bb.TemperatureScaling(model).fit([(x, y)])
    before = scaled.temperature
    with pytest.raises(DataError, match=r"batch 1: .*labels"):
        scaled.fit([(x, y), (x, y + 1)])
    assert model.training and model[1].training and scaled.temperature == before


@pytest.mark.parametrize("n", [1, 10, 150])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_labels_that_are_all_right_or_all_wrong_do_not_decide_alone(k, n):
    """The weak prior costs no more than the loss that it lowers: ½(log T/s)² ≤ loss at T = 1."""
    model, x, _ = overconfident(k, 1.0, n=n)
    logits = model(x).detach()
    right = logits.argmax(1) if k > 1 else (logits[:, 0] > 0).long()
    wrong = logits.argmin(1) if k > 1 else 1 - right
    for labels, side in ((right, -1), (wrong, 1)):
        log_t = math.log(bb.TemperatureScaling(model).fit([(x, labels)]).temperature)
        assert side * log_t > 0 and weak_prior(log_t) < summed_loss(model, x, labels, 0.0)


def test_the_weak_prior_hardly_matters_for_many_points():
    """At 10,000 points the loss bends by some thousand: the best T moves by log T/0.35² of that."""
    model, x, y = overconfident(3, 2.0, n=10_000)
    log_t = math.log(bb.TemperatureScaling(model).fit([(x, y)]).temperature)
    plain = optimize.minimize_scalar(lambda t: summed_loss(model, x, y, t), bracket=(0.3, 0.7, 1.1)).x
    assert 0 < plain - log_t < 0.01


@pytest.mark.parametrize("k", [1, 3])
def test_a_temperature_beyond_what_is_searched_warns(k):
    """Logits of 1e9 that are all wrong."""
    model, x, _ = overconfident(k, 1e9)
    wrong = model(x).argmin(1) if k > 1 else (model(x)[:, 0] < 0).long()
    with pytest.warns(EdgeWarning, match="edge"):
        scaled = bb.TemperatureScaling(model).fit([(x, wrong)])
    assert scaled.temperature == pytest.approx(1e3)


@pytest.mark.parametrize("k", [1, 3])
def test_logits_that_say_nothing_leave_the_temperature_at_one(k):
    """150 of them, of 1e-9: the loss falls by less than 1e-6 with log T, and the prior bends by 8 or more."""
    model, x, y = overconfident(k, 1e-9)
    assert bb.TemperatureScaling(model).fit([(x, y)]).temperature == pytest.approx(1, abs=1e-6 / 8)


@pytest.mark.parametrize("k", [1, 3])
def test_huge_logits_stay_finite(k):
    model, x, y = overconfident(k, 1.0, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 1e30
    with pytest.warns(EdgeWarning):
        scaled = bb.TemperatureScaling(model).fit([(x, y)])
    p = scaled.predict_proba(x)
    assert bool(p.isfinite().all())
    torch.testing.assert_close(p.sum(1), torch.ones(len(x)), rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype, result", [(torch.bfloat16, torch.float32), (torch.float64, torch.float64)])
def test_results_are_at_least_float32(dtype, result):
    model, x, y = overconfident(3, 5.0, dtype=dtype)
    assert bb.TemperatureScaling(model).fit([(x, y)]).predict_proba(x).dtype == result


def test_models_with_keyword_inputs_and_logits_in_an_object():
    class Model(nn.Module):
        def __init__(self, linear):
            super().__init__()
            self.linear = linear

        def forward(self, values):
            return SimpleNamespace(logits=self.linear(values))

    linear, x, y = overconfident(3, 5.0)
    scaled = bb.TemperatureScaling(Model(linear)).fit([{"values": x, "labels": y}])
    assert scaled.temperature == bb.TemperatureScaling(linear).fit([(x, y)]).temperature
    assert scaled({"values": x}).shape == (len(x), 3)


def test_bad_batches_and_models_raise():
    model, x, y = overconfident(3, 5.0)
    scaled = bb.TemperatureScaling(model)
    with pytest.raises(NotFittedError, match="fit"):
        scaled.predict_proba(x)
    for loader, says in (
        ([], "empty"),
        (x, "Tensor"),
        ([(x, y + 3)], "from 0 to 2"),
        ([(x, y.float())], "float32"),
    ):
        with pytest.raises(DataError, match=says):
            scaled.fit(loader)
    with pytest.raises(DataError, match=r"batch 0.*finite"):
        scaled.fit([(x * math.nan, y)])
    scaled.fit([(x, y)])
    with pytest.raises(BitbayesError, match=r"the input.*finite"):
        scaled.predict_proba(x * math.inf)


@pytest.mark.parametrize("model", [None, "resnet"])
def test_models_that_are_no_modules_raise(model):
    with pytest.raises(BitbayesError, match=r"torch\.nn\.Module"):
        bb.TemperatureScaling(model)


@pytest.mark.parametrize("k", [1, 3])
def test_a_state_dict_holds_the_temperature(k, tmp_path):
    model, x, y = overconfident(k, 5.0)
    scaled = bb.TemperatureScaling(model).fit([(x, y)])
    torch.save(scaled.state_dict(), tmp_path / "scaled.pt")
    other = bb.TemperatureScaling(nn.Linear(3, k).double())
    other.load_state_dict(torch.load(tmp_path / "scaled.pt", weights_only=True))
    assert other.temperature == scaled.temperature != 1
    assert torch.equal(other(x), scaled(x)) and torch.equal(other.predict_proba(x), scaled.predict_proba(x))
    # Safetensors hold nothing but tensors.
    save_file(scaled.state_dict(), tmp_path / "scaled.safetensors")
    other = bb.TemperatureScaling(nn.Linear(3, k).double())
    other.load_state_dict(load_file(tmp_path / "scaled.safetensors"))
    assert other.temperature == scaled.temperature


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_temperature_is_not_rounded_with_the_model(dtype):
    model, x, y = overconfident(3, 5.0)
    scaled = bb.TemperatureScaling(model).fit([(x, y)])
    before = scaled.temperature
    assert scaled.to(dtype).temperature == before == float(scaled.state_dict()["_extra_state"])


def test_a_state_dict_without_a_temperature_is_refused():
    model, x, y = overconfident(3, 5.0)
    scaled = bb.TemperatureScaling(model).fit([(x, y)])
    before = scaled.temperature
    old = {name: value for name, value in scaled.state_dict().items() if name.startswith("model.")}
    with pytest.raises(RuntimeError, match="Missing key"):
        scaled.load_state_dict(old)
    assert scaled.temperature == before


def test_what_is_not_fitted_is_not_fitted_after_a_round_trip():
    model, x, _ = overconfident(3, 5.0)
    other = bb.TemperatureScaling(model)
    other.load_state_dict(bb.TemperatureScaling(model).state_dict())
    assert other.temperature == 1.0 and torch.equal(other(x), model(x))
    with pytest.raises(NotFittedError, match="fit"):
        other.predict_proba(x)


def test_a_temperature_may_be_set():
    model, x, _ = overconfident(3, 5.0)
    scaled = bb.TemperatureScaling(model)
    scaled.temperature = 2
    assert scaled.temperature == 2.0 and isinstance(scaled.temperature, float)
    torch.testing.assert_close(scaled.predict_proba(x), (model(x) / 2).softmax(1).detach())
    for wrong in (0, -1.0, math.nan, math.inf, "hot", None):
        with pytest.raises(ArgumentError, match="temperature="):
            scaled.temperature = wrong
    assert scaled.temperature == 2.0


def test_what_is_saved_is_loaded(tmp_path):
    (model, x, y), path = overconfident(3, 2.0), tmp_path / "temperature.safetensors"
    scaled = bb.TemperatureScaling(model).fit([(x, y)])
    scaled.save(path)
    again = bb.TemperatureScaling.load(path, copy.deepcopy(model))
    assert again.temperature == scaled.temperature != 1
    assert torch.equal(again.predict_proba(x), scaled.predict_proba(x))


def test_files_of_other_models_and_other_files_are_refused(tmp_path):
    (model, x, y), path = overconfident(3, 2.0), tmp_path / "temperature.safetensors"
    with pytest.raises(NotFittedError, match="not fitted"):
        bb.TemperatureScaling(model).save(path)
    bb.TemperatureScaling(model).fit([(x, y)]).save(path)
    other = copy.deepcopy(model)
    other.weight.data += 1
    with pytest.raises(FileError, match="another model"):
        bb.TemperatureScaling.load(path, other)
    for place in range(path.stat().st_size):
        content = bytearray(path.read_bytes())
        content[place] ^= 1
        (tmp_path / "damaged").write_bytes(content)
        with pytest.raises(FileError):
            bb.TemperatureScaling.load(tmp_path / "damaged", model)
    bb.Laplace(model, prior_variance=1.0).fit([(x, y)]).save(path)
    with pytest.raises(FileError, match=r"not written by `TemperatureScaling\.save`"):
        bb.TemperatureScaling.load(path, model)


@given(st.integers(0, 10_000), st.floats(-1.5, 2), st.integers(1, 4))
def test_several_labels_share_the_temperature_of_least_loss(seed, log_factor, k):
    torch.manual_seed(seed)
    model, x = nn.Linear(3, k).double(), 2 * torch.randn(60, 3).double()
    with torch.no_grad():
        y = (torch.rand(60, k) < model(x).sigmoid()).long()
        for parameter in model.parameters():
            parameter *= 10**log_factor
        logits = model(x)

    def cost(log_temperature):
        scaled = logits * math.exp(-log_temperature)
        loss = nn.functional.binary_cross_entropy_with_logits(scaled, y.double(), reduction="sum")
        return float(loss) + weak_prior(log_temperature)

    start = min(torch.linspace(math.log(1e-3), math.log(1e3), 200).tolist(), key=cost)
    expected = optimize.minimize_scalar(cost, bracket=(start - 0.1, start, start + 0.1), tol=1e-10).x
    scaled = bb.TemperatureScaling(model, likelihood="multilabel").fit([(x[:50], y[:50]), (x[50:], y[50:])])
    # Brent's method compares costs: it knows the place of the least one to about the root of their rounding.
    assert math.log(scaled.temperature) == pytest.approx(expected, abs=1e-5)
    assert torch.equal(scaled.predict_proba(x), nn.functional.logsigmoid(logits / scaled.temperature).exp())
    assert torch.equal(scaled(x), model(x) / scaled.temperature)


def test_a_file_keeps_that_there_are_several_labels(tmp_path):
    model, x = nn.Linear(3, 2).double(), torch.randn(40, 3).double()
    y = (x[:, :2] > 0).long()
    scaled = bb.TemperatureScaling(model, likelihood="multilabel").fit([(x, y)])
    scaled.save(tmp_path / "scaled.safetensors")
    loaded = bb.TemperatureScaling.load(tmp_path / "scaled.safetensors", model)
    assert loaded.likelihood == "multilabel" and loaded.temperature == scaled.temperature
    assert torch.equal(loaded.predict_proba(x), scaled.predict_proba(x))


def test_likelihoods_without_a_temperature_and_wrong_labels_raise():
    model, x, y = overconfident(3, 5.0)
    for name in ("gaussian", "preference", "multi"):
        with pytest.raises(ArgumentError, match=f"likelihood='{name}' is not known.*'multilabel'"):
            bb.TemperatureScaling(model, likelihood=name)
    with pytest.raises(DataError, match=r"shape \(150,\); expected \(150, 3\)"):
        bb.TemperatureScaling(model, likelihood="multilabel").fit([(x, y)])

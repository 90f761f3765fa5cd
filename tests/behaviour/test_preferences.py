"""Preferences against dense float64 computations with loops over pairs; forms of data, files, processes."""

import copy
import math
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.utils.data import DataLoader, TensorDataset

import bitbayes as bb
import reference
import several
from bitbayes.errors import (
    ArgumentError,
    DataError,
    FewPointsWarning,
    ModelError,
    UnusedDataWarning,
)

STRUCTURES = ("full", "diag", "isotropic")
# Relative: sums over 30 pairs, an inverse of a matrix with a condition below 1e4, in float64.
DIGITS = {"rtol": 1e-9, "atol": 1e-11}


def data(n=30, dtype=torch.float64):
    """Inputs a and b of n pairs, and labels: 1 where a is preferred."""
    return 2 * torch.randn(n, 3, dtype=dtype), 2 * torch.randn(n, 3, dtype=dtype), torch.arange(n) % 2


def loader(a, b, y, batch=7):
    return [((a[i : i + batch], b[i : i + batch]), y[i : i + batch]) for i in range(0, len(y), batch)]


def laplace(model, **options):
    return bb.Laplace(model, likelihood="preference", **{"prior_variance": 0.7, **options})


def case(bias=True, n=30, dtype=torch.float64, **options):
    model, pairs = reference.network(1, bias, dtype), data(n, dtype)
    return laplace(model, **options).fit(loader(*pairs)), *pairs


class Dense:
    """The same by loops over pairs, with dense matrices."""

    def __init__(self, model, a, b, y, structure="full", prior_variance=0.7):
        self.model, self.weight = model, model.head.weight.detach()[0]
        d = len(self.weight)
        h, self.loss = torch.zeros(d, d, dtype=torch.float64), 0.0
        for first, second, label in zip(a, b, y, strict=True):
            psi = self.features(first) - self.features(second)
            p = 1 / (1 + math.exp(-float(psi @ self.weight)))
            h += p * (1 - p) * torch.outer(psi, psi)
            self.loss -= math.log(p if label else 1 - p)
        h = {"diag": torch.diag(torch.diag(h)), "isotropic": torch.zeros_like(h)}.get(structure, h)
        self.precision = h + torch.eye(d, dtype=h.dtype) / prior_variance
        self.covariance, self.prior_variance = torch.linalg.inv(self.precision), prior_variance

    def features(self, x):
        with torch.no_grad():
            return self.model.activation(self.model.hidden(x))

    def reward(self, vectors):
        """Mean and deviation of w·v for some features v."""
        means = [float(v @ self.weight) for v in vectors]
        deviations = [math.sqrt(v @ self.covariance @ v) for v in vectors]
        return torch.tensor([means, deviations], dtype=torch.float64)

    def evidence(self):
        d, tau = len(self.weight), 1 / self.prior_variance
        penalty = tau * self.weight.square().sum() - d * math.log(tau) + torch.logdet(self.precision)
        return -self.loss - float(penalty) / 2


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("bias", [True, False])
def test_rewards_differences_and_evidence_are_those_of_dense_matrices(structure, bias):
    bayes, a, b, y = case(bias, structure=structure)
    dense = Dense(bayes.model, a, b, y, structure)
    single = bayes.reward(a)
    for found, expected in zip(single, dense.reward(dense.features(a)), strict=True):
        torch.testing.assert_close(found, expected, **DIGITS)
    psi = dense.features(a) - dense.features(b)
    for pair in (bayes.reward(a, b), bayes.reward((a, b))):
        for found, expected in zip(pair, dense.reward(psi), strict=True):
            torch.testing.assert_close(found, expected, **DIGITS)
    gaussian = bayes.logits((a, b))
    torch.testing.assert_close(gaussian.covariance[:, 0, 0].sqrt(), pair.deviation, **DIGITS)
    if structure != "isotropic":  # which has none
        assert float(bayes.log_evidence()) == pytest.approx(dense.evidence(), rel=1e-10)


def test_kron_is_the_product_of_the_sums_divided_by_the_number_of_pairs():
    bayes, a, b, y = case(structure="kron")
    dense = Dense(bayes.model, a, b, y)
    psi = dense.features(a) - dense.features(b)
    p = torch.sigmoid(psi @ dense.weight)
    h = (p * (1 - p)).sum() * psi.T @ psi / len(psi)
    dense.covariance = torch.linalg.inv(h + torch.eye(4).double() / 0.7)
    torch.testing.assert_close(bayes.reward(a, b).deviation, dense.reward(psi)[1], **DIGITS)


def test_the_probability_is_that_of_the_difference_and_its_columns_are_the_labels():
    bayes, a, b, _ = case()
    mean, deviation = bayes.reward(a, b)
    z = mean / (1 + reference.KAPPA * deviation**2).sqrt()
    probabilities = bayes.predict_proba((a, b))
    torch.testing.assert_close(probabilities, torch.stack([(-z).sigmoid(), z.sigmoid()], 1), **DIGITS)
    bayes.temperature = 2.0
    torch.testing.assert_close(bayes.reward(a, b).mean, mean / 2, **DIGITS)
    torch.testing.assert_close(bayes.reward(a).mean - bayes.reward(b).mean, mean / 2, **DIGITS)
    assert torch.equal(bayes.reward(a, b).deviation, deviation)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_both_orders_give_the_same_with_the_columns_exchanged(dtype):
    bayes, a, b, _ = case(dtype=dtype)
    assert torch.equal(bayes.predict_proba((a, b)), bayes.predict_proba((b, a)).flip(1))
    assert torch.equal(bayes.reward(a, b).mean, -bayes.reward(b, a).mean)
    assert torch.equal(bayes.reward(a, b).deviation, bayes.reward(b, a).deviation)
    same = bayes.predict_proba((a, a))
    assert bool((same == 0.5).all())


@pytest.mark.parametrize("constant", [3.0, 1e6])
def test_a_constant_added_to_all_rewards_changes_nothing(constant):
    """In float32, where 1e6 leaves the model's own rewards one digit behind the point."""
    model, (a, b, y) = reference.network(1, dtype=torch.float32), data(dtype=torch.float32)
    shifted = copy.deepcopy(model)
    with torch.no_grad():
        shifted.head.bias += constant
    one, other = (laplace(each).fit(loader(a, b, y)) for each in (model, shifted))
    assert torch.equal(one.predict_proba((a, b)), other.predict_proba((a, b)))
    assert torch.equal(one.reward(a).mean, other.reward(a).mean)
    assert torch.equal(one.log_evidence(), other.log_evidence())


def test_two_rewards_are_correlated():
    bayes, a, _, _ = case()
    near = a + 1e-3
    apart = (bayes.reward(a).deviation ** 2 + bayes.reward(near).deviation ** 2).sqrt()
    assert bool((bayes.reward(a, near).deviation < apart / 100).all())


# ---- forms of data


def shapes_of_pairs(a, b, y):
    """The same pairs in every form that loaders give them."""
    ones = y == 1
    chosen = torch.where(ones[:, None], a, b), torch.where(ones[:, None], b, a)
    return {
        "pairs": [((a, b), y)],
        "lists": [[[a, b], y.tolist()]],
        "three": [(a, b, y)],
        "floats": [((a, b), y.double())],
        "booleans": [((a, b), ones)],
        "data set": DataLoader(TensorDataset(a, b, y), batch_size=8),
        "chosen": [chosen],
        "data set of chosen": DataLoader(TensorDataset(*chosen), batch_size=8),
        "mapping": [{"x_chosen": chosen[0], "x_rejected": chosen[1]}],
        "mapping with labels": [{"input_chosen": a, "input_rejected": b, "labels": y}],
        "mapping and labels": [({"chosen": a, "rejected": b}, y)],
        "mappings": [({"input": chosen[0]}, {"input": chosen[1]})],
        "nested": [{"chosen": {"input": chosen[0]}, "rejected": {"input": chosen[1]}}],
        "places": [((chosen[0],), (chosen[1],))],
    }


@pytest.mark.parametrize("form", shapes_of_pairs(*data(4)))
def test_pairs_come_in_many_forms(form):
    bayes, a, b, y = case()
    again = laplace(bayes.model).fit(shapes_of_pairs(a, b, y)[form])
    torch.testing.assert_close(again.reward(a, b).deviation, bayes.reward(a, b).deviation, **DIGITS)
    assert float(again.log_evidence()) == pytest.approx(float(bayes.log_evidence()), rel=1e-12)
    expected = bayes.predict_proba((a, b))
    for pairs in ((a, b), [(a, b)], {"input_chosen": a, "input_rejected": b}, [((a, b), y)], loader(a, b, y)):
        torch.testing.assert_close(again.predict_proba(pairs), expected, **DIGITS)
    for inputs in (a, [a], {"input": a}, [a[:5], a[5:]]):
        torch.testing.assert_close(again.reward(inputs).mean, bayes.reward(a).mean, **DIGITS)


def test_adapt_may_give_any_of_these_forms():
    bayes, a, b, y = case()
    batches = [{"first": a, "second": b, "winner": y}]
    again = laplace(bayes.model, adapt=lambda each: ((each["first"], each["second"]), each["winner"]))
    assert torch.equal(
        again.fit(batches).predict_proba(batches),
        laplace(bayes.model).fit([((a, b), y)]).predict_proba((a, b)),
    )


class Tokens(nn.Module):
    """A reward model of tokens, whose head is called at each position: the last one counts."""

    def __init__(self, bias):
        super().__init__()
        self.embedding, self.score = nn.Embedding(20, 5), nn.Linear(5, 1, bias=bias)

    def features(self, input_ids, attention_mask):
        weights = attention_mask.to(self.embedding.weight)
        return (self.embedding(input_ids) * weights[:, :, None]).cumsum(1) / weights.cumsum(1)[:, :, None]

    def forward(self, input_ids, attention_mask):
        rewards = self.score(self.features(input_ids, attention_mask).tanh())  # (n, t, 1)
        last = attention_mask.sum(1) - 1
        return {"logits": rewards[torch.arange(len(last)), last]}


def texts(n, length, seed):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, length + 1, (n,), generator=generator)
    lengths[0] = length
    mask = (torch.arange(length) < lengths[:, None]).long()
    return {
        "input_ids": torch.randint(20, (n, length), generator=generator) * mask,
        "attention_mask": mask,
    }


@pytest.mark.parametrize("bias", [True, False])
def test_tokens_of_two_lengths_and_a_head_that_is_called_at_each_position(bias):
    torch.manual_seed(0)
    model = Tokens(bias).double()
    first, second, y = texts(24, 9, 0), texts(24, 5, 1), torch.arange(24) % 2
    named = {f"{name}_chosen": each for name, each in first.items()}
    named |= {f"{name}_rejected": each for name, each in second.items()}
    bayes = laplace(model).fit([((first, second), y)])
    again = laplace(model).fit([{**named, "labels": y}])

    def features(text):
        last = text["attention_mask"].sum(1) - 1
        return model.features(**text).tanh()[torch.arange(24), last].detach()

    psi, weight = features(first) - features(second), model.score.weight.detach()[0]
    p = (psi @ weight).sigmoid()
    covariance = torch.linalg.inv((psi.T * (p * (1 - p))) @ psi + torch.eye(5).double() / 0.7)
    for each in (bayes, again):
        found = each.reward(first, second)
        torch.testing.assert_close(found.mean, psi @ weight, **DIGITS)
        torch.testing.assert_close(found.deviation**2, (psi @ covariance * psi).sum(1), **DIGITS)
        phi = features(first)
        torch.testing.assert_close(
            each.reward(first).deviation ** 2, (phi @ covariance * phi).sum(1), **DIGITS
        )
        torch.testing.assert_close(each.reward(first).mean, phi @ weight, **DIGITS)
    assert torch.equal(bayes.predict_proba((first, second)), again.predict_proba(named))


def test_other_columns_of_trl_are_left_out_with_a_warning():
    bayes, a, b, _ = case()
    with pytest.warns(UnusedDataWarning, match=r"\['margin'\] belong to neither.*every pair counts alike"):
        laplace(bayes.model).fit([{"x_chosen": a, "x_rejected": b, "margin": torch.ones(30)}])


class Squeezed(nn.Sequential):
    def forward(self, x):
        return super().forward(x)[:, 0]


def test_a_model_may_return_rewards_without_their_axis():
    bayes, a, b, y = case()
    model = Squeezed(*bayes.model).double()
    again = laplace(model).fit(loader(a, b, y))
    assert torch.equal(again.predict_proba((a, b)), bayes.predict_proba((a, b)))


def test_several_positional_inputs_are_tuples():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden, self.head = nn.Linear(3, 4), nn.Linear(4, 1)

        def forward(self, question, answer):
            return self.head(torch.tanh(self.hidden(question) * answer))

    torch.manual_seed(0)
    model, question = Two().double(), torch.randn(20, 3).double()
    first, second = torch.randn(20, 4).double(), torch.randn(20, 4).double()
    bayes = laplace(model).fit([((question, first), (question, second))])
    with torch.no_grad():
        own = model(question, first) - model(question, second)
    found = bayes.reward(({0: question, 1: first}, {0: question, 1: second}))
    torch.testing.assert_close(found.mean, own[:, 0], **DIGITS)


# ---- the rest of a Laplace


def test_updates_merges_files_and_copies_keep_everything(tmp_path):
    bayes, a, b, y = case(n=40)
    parts = [((a[:15], b[:15]), y[:15])], [((a[15:], b[15:]), y[15:])]
    updated = laplace(bayes.model).fit(parts[0]).update(parts[1])
    one, other = (laplace(bayes.model).fit(each) for each in parts)
    merged = bb.merge([one, other])
    left = bb.merge(merged, without=other)
    for found, expected in ((updated, bayes), (merged, bayes), (left, one)):
        torch.testing.assert_close(found.predict_proba((a, b)), expected.predict_proba((a, b)), **DIGITS)
    with pytest.warns(FewPointsWarning):
        bayes.tune([((a, b), y)])
    bayes.save(tmp_path / "bayes.safetensors")
    loaded = bb.Laplace.load(tmp_path / "bayes.safetensors", bayes.model)
    again = laplace(bayes.model)
    again.load_state_dict(bayes.state_dict())
    copied, pickled = copy.deepcopy(bayes), pickle.loads(pickle.dumps(bayes))
    for each in (loaded, again, copied, pickled):
        assert each.settings == bayes.settings
        assert torch.equal(each.predict_proba((a, b)), bayes.predict_proba((a, b)))
        assert torch.equal(each.reward(a).deviation, bayes.reward(a).deviation)
    files = [tmp_path / f"{name}.safetensors" for name in ("one", "other")]
    for each, path in zip((one, other), files, strict=True):
        each.save(path)
    assert torch.equal(bb.merge(files, model=bayes.model).reward(a).mean, merged.reward(a).mean)


def test_a_fit_with_a_checkpoint_is_the_same(tmp_path):
    bayes, a, b, y = case()
    again = laplace(bayes.model).fit(loader(a, b, y), checkpoint=tmp_path)
    assert torch.equal(again.predict_proba((a, b)), bayes.predict_proba((a, b)))


def _fit_and_tune(rank, size):
    torch.manual_seed(0)
    model, (a, b, y) = reference.network(1), data(80)
    bayes = laplace(model).fit([((a[rank:60:size], b[rank:60:size]), y[rank:60:size])])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bayes.tune([((a[60 + rank :: size], b[60 + rank :: size]), y[60 + rank :: size])])
    return bayes.settings.prior_variance, bayes.predict_proba((a, b))


def test_processes_find_what_one_finds():
    (alone,) = several.run(1, _fit_and_tune)
    for prior_variance, probabilities in several.run(2, _fit_and_tune):
        assert prior_variance == alone[0]
        torch.testing.assert_close(probabilities, alone[1], rtol=1e-6, atol=0)


def test_measures_draws_thresholds_and_draws_of_networks():
    torch.manual_seed(0)
    bayes, a, b, _ = case(n=400)
    with torch.no_grad():
        y = (bayes.model(a) - bayes.model(b) > 0)[:, 0].long()
    bayes = laplace(bayes.model).fit(loader(a[:200], b[:200], y[:200]))
    bayes.tune(loader(a[200:], b[200:], y[200:]))
    plain = 1 - bayes.predict_proba((a, b)).amax(1)
    assert bool((plain > 0).all())
    measures = bayes.evaluate(loader(a[200:], b[200:], y[200:]), outliers={"far": [(9 * a, 9 * b)]})
    assert measures["accuracy"] == 1 and measures["nll"] < 0.5 and "far/auroc" in measures
    threshold = bayes.threshold([(a, b)], accept=0.75, by="confidence")
    assert int((bayes.confidence((a, b)) >= threshold).sum()) == 300
    assert bayes.score((a, b)).shape == (400,)
    parts = bayes.uncertainty((a, b))
    torch.testing.assert_close(parts.entropy, parts.expected_entropy + parts.mutual_information)
    drawn = bayes.predict_proba((a, b), method="mc", samples=20_000)
    torch.testing.assert_close(drawn, bayes.predict_proba((a, b), method="quadrature"), rtol=0, atol=0.02)
    bayes.temperature, bayes.near_variance, bayes.beyond_variance = 1.0, 0, 0  # no draw has a residual
    draws = bayes.sample(20_000, generator=torch.Generator().manual_seed(0))
    assert bool((draws["head.bias"] == bayes.model.head.bias).all())
    run = torch.vmap(lambda each, x: functional_call(bayes.model, each, x), (0, None))
    rewards = run(draws, a[:5])[..., 0] - run(draws, b[:5])[..., 0]  # (s, 5)
    expected = bayes.reward(a[:5], b[:5])
    # Five standard errors of a deviation from 20,000 draws.
    torch.testing.assert_close(rewards.std(0), expected.deviation, rtol=5 / math.sqrt(40_000), atol=0)


def test_points_that_were_passed_once_are_tuned_as_by_tune():
    bayes, a, b, y = case(n=200)
    bayes.tune(loader(a, b, y))
    passed = bb.PassedPoints.of(bayes, loader(a, b, y))
    assert passed.tune() == bayes.settings
    probabilities, _ = passed.predict(bayes.settings)
    torch.testing.assert_close(probabilities, bayes.predict_proba((a, b)), **DIGITS)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_has_differences_in_float32(dtype):
    model, (a, b, y) = reference.network(1, dtype=torch.float32), data(dtype=torch.float32)
    exact = laplace(model).fit([((a, b), y)]).reward(a, b)
    half = laplace(copy.deepcopy(model).to(dtype)).fit([((a.to(dtype), b.to(dtype)), y)])
    found = half.reward(a.to(dtype), b.to(dtype))
    assert found.mean.dtype == torch.float32
    # Three roundings of 2⁻⁹, of numbers up to about 4.
    torch.testing.assert_close(found.mean, exact.mean, rtol=0.05, atol=0.05)
    torch.testing.assert_close(found.deviation, exact.deviation, rtol=0.05, atol=0.05)


def test_the_model_is_neither_changed_nor_copied_and_its_changes_are_noticed():
    model, (a, b, y) = reference.network(1).train(), data()
    before, expected = copy.deepcopy(model.state_dict()), model(a)
    bayes = laplace(model).fit(loader(a, b, y))
    bayes.predict_proba((a, b))
    assert type(model) is nn.Sequential and model.training and torch.equal(model(a), expected)
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    assert bayes.model.head.weight is model.head.weight
    assert torch.equal(bayes.model(a), expected)
    with torch.no_grad():
        model.hidden.weight += 1
    with pytest.raises(ModelError, match=r"changed since it was fitted \('hidden.weight'\)"):
        bayes.reward(a)


def test_hooks_that_change_the_rewards_are_noticed():
    bayes, a, b, y = case()
    bayes.model.activation.register_forward_hook(lambda module, inputs, output: 2 * output)
    with pytest.raises(ModelError, match="has changed since it was fitted"):
        bayes.evaluate(loader(a, b, y))


# ---- graphs


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("suffix", [".pt2", ".onnx"])
def test_a_graph_gives_the_rewards_of_single_inputs(suffix, residual, tmp_path):
    bayes, a, b, y = case(dtype=torch.float32, residual="auto" if residual else False)
    if residual:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of few points
            bayes.tune(loader(b, a, 1 - y))
    path = tmp_path / f"reward{suffix}"
    bayes.export(path, a[:2])
    x = torch.cat([a[:5], 1000 * a[:5]])
    if suffix == ".pt2":
        found = torch.export.load(path).module()(x)
    else:
        onnxruntime = pytest.importorskip("onnxruntime")
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        assert [each.name for each in session.get_outputs()] == ["rewards", "deviations"]
        found = [torch.from_numpy(each) for each in session.run(None, {"x": x.numpy()})]
    for ours, expected in zip(found, bayes.reward(x), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


# ---- errors


@pytest.mark.parametrize(
    "batch, says",
    [
        (lambda a, b, y: ((a, b[:20]), y), "first inputs .* have 30 rows, and the second have 20"),
        (lambda a, b, y: (a[:29], b), "first inputs .* have 29 rows, and the second have 30"),
        (lambda a, b, y: ({"x": a}, {"x": b[:3]}), "have 30 rows, and the second have 3"),
        (lambda a, b, y: (a, y), "inputs and labels of a classifier, and a preference is between two inputs"),
        (lambda a, b, y: ((a, b), y / 2), r"labels are \[0.0, 0.5\]; expected 1 .*leave ties out"),
        (lambda a, b, y: ((a, b), y[:9]), r"shape \(9,\); expected \(30,\)"),
        (lambda a, b, y: ((a, b), y + 1), r"\[1, 2\]; expected 1 \(the first"),
        (lambda a, b, y: ((a, b), "yes"), "expected two inputs, .chosen, rejected."),
        (lambda a, b, y: a, "batch is a Tensor: expected two inputs"),
        (lambda a, b, y: {"x_chosen": a}, r"keys \['x_chosen'\]: expected two inputs"),
        (lambda a, b, y: {"x_chosen": a, "z_rejected": b}, r"'z_rejected'\]: expected two inputs"),
        (lambda a, b, y: {"x": a, "labels": y}, r"keys \['labels', 'x'\]: expected two inputs"),
        (lambda a, b, y: (a, {"x": b}), "expected two inputs"),
        (lambda a, b, y: (a * math.nan, b), "NaN or infinity in 'chosen'"),
    ],
)
def test_wrong_batches_raise_and_change_nothing(batch, says):
    bayes, a, b, y = case()
    before = bayes.predict_proba((a, b))
    for learn in (bayes.fit, bayes.update, bayes.tune):
        with pytest.raises(DataError, match=says):
            learn([batch(a, b, y)])
        assert bayes.posterior.fitted.count == 30
        assert torch.equal(bayes.predict_proba((a, b)), before)


def test_what_makes_no_sense_raises():
    bayes, a, b, y = case()
    with pytest.raises(DataError, match=r"one tensor .*between two: give \(a, b\), or call `reward`"):
        bayes.predict_proba(a)
    with pytest.raises(DataError, match="30 rows, and the second have 4"):
        bayes.reward(a, b[:4])
    for call in (lambda: bayes(a), lambda: bayes(a, b)):
        with pytest.raises(ArgumentError, match="likelihood='preference' has no drop-in logits"):
            call()
    for wrong in ({"score": True}, {"threshold": 0.5}, {"classes": ["good", "bad"]}):
        with pytest.raises(ArgumentError, match="graph of a reward model takes single inputs"):
            bayes.export("x.pt2", a, **wrong)
    for call in (bayes.limit, bayes.certify, bayes.bound):
        with pytest.raises(ArgumentError, match="limits, bounds and certificates are about one input"):
            call(a)
    with pytest.raises(ArgumentError, match="are for regression"):
        bayes.predict((a, b))
    with pytest.raises(ArgumentError, match="`reward` is for preferences"):
        reference.fitted(1)[0].reward(a)
    with pytest.raises(ArgumentError, match="layers='all': likelihood='preference' is for the last layer"):
        laplace(bayes.model, layers="all")
    with pytest.raises(ArgumentError, match="does not fit a model with 3 output"):
        laplace(reference.network(3)).fit([((a, b), y)])
    with pytest.raises(ArgumentError, match="uniform noise means nothing"):
        bayes.tune([((a, b), y)], objective="ood")


def test_a_bias_that_does_not_cancel_raises():
    class Summed(Tokens):
        def forward(self, input_ids, attention_mask):
            rewards = self.score(self.embedding(input_ids))
            return (rewards * attention_mask[:, :, None]).sum(1)

    for bias in (True, False):
        bayes = laplace(Summed(bias).double())
        pairs = [(texts(24, 9, 0), texts(24, 5, 1))]
        if bias:
            with pytest.raises(ModelError, match="does not cancel in the difference"):
                bayes.fit(pairs)
        else:
            assert bayes.fit(pairs).predict_proba(pairs).shape == (24, 2)


def test_outputs_with_positions_raise():
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 1))
    with pytest.raises(ModelError, match="one row of outputs for each input"):
        laplace(model).fit([(torch.randint(9, (8, 5)), torch.randint(9, (8, 5)))])

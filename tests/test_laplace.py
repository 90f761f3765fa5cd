"""Laplace: what fit, update and predictions do to data, model and dtype."""

import copy
import dataclasses
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bitbayes as bb
import ray_cases
import reference
from bitbayes.errors import ArgumentError, EdgeWarning, ModelError
from bitbayes.model import fingerprint
from classifiers import points, relu_mlp
from reference import STRUCTURES


@pytest.fixture(params=[1, 3], ids=["one-logit", "three-logits"])
def k(request):
    return request.param


def count_calls(model):
    """A list that collects the number of rows of every forward call of `model` from now on."""
    rows = []
    model.register_forward_hook(
        lambda module, args, kwargs, output: rows.append(
            len(args[0] if args else next(iter(kwargs.values())))
        ),
        with_kwargs=True,
    )
    return rows


def assert_equal(first, second, x, atol=1e-12):
    """Assert that two posteriors have equal means, covariances and evidence."""
    a, b = first.logits(x), second.logits(x)
    torch.testing.assert_close(a.mean, b.mean, rtol=0, atol=0)
    torch.testing.assert_close(a.covariance, b.covariance, rtol=atol, atol=atol)
    if first.structure != "isotropic":
        torch.testing.assert_close(first.log_evidence(), second.log_evidence(), rtol=atol, atol=atol)


# ---- fit


def test_constructing_computes_nothing(k):
    model = reference.network(k)
    calls = count_calls(model)
    bb.Laplace(model)
    assert calls == []


@pytest.mark.parametrize("residual, looks", [(False, 7), ("auto", 8)])
def test_fit_is_one_forward_call_a_batch_and_tiny_ones(k, residual, looks):
    """They find the head and, if there is a residual, its levels. Six of them check that rows do not mix.

    The last one is at inputs that are made up.
    """
    model = reference.network(k)
    calls = count_calls(model)
    x, y = reference.data(k)
    bb.Laplace(model, residual=residual).fit(reference.loader(x, y, 8))
    tiny, batches = calls[:looks], calls[looks:]
    assert max(tiny) <= 4 and batches == [8, 8, 8, 6, 3]


def test_fit_needs_no_gradient(k):
    model = reference.network(k)
    with_gradient = []
    model.register_forward_hook(lambda module, args, output: with_gradient.append(output.requires_grad))
    x, y = reference.data(k)
    bb.Laplace(model).fit(reference.loader(x, y))
    assert with_gradient and not any(with_gradient)


def test_fit_returns_self_and_the_repr_shows_it(k):
    bayes = bb.Laplace(reference.network(k))
    assert "not fitted" in repr(bayes)
    assert bayes.fit(reference.loader(*reference.data(k))) is bayes
    assert "30 points" in repr(bayes)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_fit_and_update_give_the_posterior_of_one_fit(k, structure):
    model, (x, y) = reference.network(k), reference.data(k)
    first, second = reference.loader(x[:11], y[:11]), reference.loader(x[11:], y[11:])
    both = bb.Laplace(model, structure=structure).fit(first + second)
    updated = bb.Laplace(model, structure=structure).fit(first)
    assert updated.update(second) is updated
    assert_equal(updated, both, x)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_fitting_again_starts_afresh(k, structure):
    model, (x, y) = reference.network(k), reference.data(k)
    again = bb.Laplace(model, structure=structure).fit(reference.loader(x[:9], y[:9]))
    again.predict_proba(x)  # what is kept between predictions must be dropped by the second fit
    again.fit(reference.loader(x, y))
    assert_equal(again, bb.Laplace(model, structure=structure).fit(reference.loader(x, y)), x, atol=0)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_batch_size_and_order_do_not_matter(k, structure, monkeypatch):
    # A fit gathers rows into pieces of this size; with a small one there are many pieces.
    monkeypatch.setattr("bitbayes.fitting.last_layer.FIT_BYTES", 10 * 4 * 8)
    model, (x, y) = reference.network(k), reference.data(k)
    whole = bb.Laplace(model, structure=structure).fit([(x, y)])
    order = torch.randperm(len(x))
    for batch in (1, 7, 30):
        shuffled = bb.Laplace(model, structure=structure).fit(reference.loader(x[order], y[order], batch))
        assert_equal(shuffled, whole, x)


def test_fit_takes_lists_iterators_generators_and_data_loaders(k):
    model, (x, y) = reference.network(k), reference.data(k)
    expected = bb.Laplace(model).fit([(x, y)])
    batches = reference.loader(x, y)
    dataset = DataLoader(TensorDataset(x, y), batch_size=7)
    for loader in (batches, iter(batches), (batch for batch in batches), dataset, [[*b] for b in batches]):
        assert_equal(bb.Laplace(model).fit(loader), expected, x)


def test_labels_may_be_a_column_and_of_any_integer_type(k):
    model, (x, y) = reference.network(k), reference.data(k)
    expected = bb.Laplace(model).fit([(x, y)])
    for labels in (y[:, None], y.int(), y.to(torch.uint8)):
        assert_equal(bb.Laplace(model).fit([(x, labels)]), expected, x, atol=0)


def test_one_logit_takes_float_and_bool_labels():
    model, (x, y) = reference.network(1), reference.data(1)
    expected = bb.Laplace(model).fit([(x, y)])
    for labels in (y.float(), y.double()[:, None], y.bool()):
        assert_equal(bb.Laplace(model).fit([(x, labels)]), expected, x, atol=0)


# ---- the model stays as it was


class DropoutAndNorm(nn.Module):
    """A network with dropout and batch norm, which behaves differently in train mode."""

    def __init__(self, k, dtype=torch.float64):
        super().__init__()
        self.hidden = nn.Linear(3, 6)
        self.norm = nn.BatchNorm1d(6)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(6, k)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2)
        self.to(dtype)

    def forward(self, x):
        return self.head(self.drop(self.norm(self.hidden(x)).relu()))


def call_everything(bayes, x, y, k):
    """Call every method that runs the model."""
    loader = reference.loader(x, y)
    bayes.fit(loader)
    bayes.update(loader)
    bayes.tune(loader)
    bayes.tune(loader, objective="ood", outliers=10 * x)
    bayes(x)
    bayes.logits(x)
    bayes.predict_proba(x)
    bayes.predict_proba(x, method="mc")
    bayes.score(x)
    bayes.uncertainty(x)
    bayes.threshold(loader)
    bayes.evaluate(loader, outliers={"far": 10 * x})
    bayes.sample(3)
    bayes.log_evidence()


@pytest.mark.filterwarnings("ignore::bitbayes.errors.EdgeWarning")
def test_modes_weights_and_gradients_stay_as_they_were(k):
    model, (x, y) = DropoutAndNorm(k), reference.data(k)
    model.train()
    model.norm.eval()  # as somebody does who fine-tunes
    model.hidden.requires_grad_(False)
    model(x).sum().backward()
    state = copy.deepcopy(model.state_dict())
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    copies = copy.deepcopy(gradients)
    wanted = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    modes = {name: module.training for name, module in model.named_modules()}

    call_everything(bb.Laplace(model), x, y, k)

    assert {name: module.training for name, module in model.named_modules()} == modes
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad == wanted[name]
        assert parameter.grad is gradients[name]
        assert copies[name] is None or torch.equal(parameter.grad, copies[name])
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    assert sum(hooks) == 0


def test_a_model_in_train_mode_is_used_in_eval_mode(k):
    model, (x, y) = DropoutAndNorm(k), reference.data(k)
    trained = bb.Laplace(model.train()).fit(reference.loader(x, y))
    in_training = trained.predict_proba(x), trained(x).detach(), trained.logits(x).covariance
    model.eval()
    plain = bb.Laplace(model).fit(reference.loader(x, y))
    in_eval = plain.predict_proba(x), plain(x).detach(), plain.logits(x).covariance
    assert all(torch.equal(a, b) for a, b in zip(in_training, in_eval, strict=True))


def broken_loader(batches):
    """A loader that raises after its first batch."""
    yield batches[0]
    raise RuntimeError("the disk is gone")


USES = (
    "fit",
    "update",
    "tune",
    "tune-outliers",
    "predict_proba",
    "score",
    "uncertainty",
    "threshold",
    "evaluate",
)


@pytest.mark.parametrize("what", USES)
def test_modes_come_back_after_an_exception(k, what):
    model, (x, y) = DropoutAndNorm(k), reference.data(k)
    bayes, batches = bb.Laplace(model).fit(reference.loader(x, y)), reference.loader(x, y)
    model.train()
    model.norm.eval()
    before = bayes.predict_proba(x), bayes.prior_variance
    use = getattr(bayes, what.removesuffix("-outliers"))
    arguments = (batches,) if what == "tune-outliers" else (broken_loader(batches),)
    options = {"objective": "ood", "outliers": broken_loader(batches)} if what == "tune-outliers" else {}
    with pytest.raises(RuntimeError, match="the disk is gone") as held:  # noqa: F841
        use(*arguments, **options)
    assert [m.training for m in (model, model.hidden, model.norm, model.drop)] == [True, True, False, True]
    assert torch.equal(bayes.predict_proba(x), before[0]) and bayes.prior_variance == before[1]


def test_modes_come_back_when_the_model_itself_raises(k):
    model, (x, y) = DropoutAndNorm(k).train(), reference.data(k)
    bayes = bb.Laplace(model).fit(reference.loader(x, y))
    for use in (bayes, bayes.logits, bayes.predict_proba, lambda x: bayes.fit([(x, y)])):
        with pytest.raises(RuntimeError, match="shape"):
            use(x[:, :2])
        assert model.training and model.drop.training


def test_modes_come_back_while_an_error_of_the_curvature_is_held(monkeypatch):
    # The error is raised amid the pass, but not by it: the pass must end before the caller sees the error.
    def fail(*_):
        raise ModelError("no memory")

    monkeypatch.setattr("bitbayes.fitting.last_layer.FIT_BYTES", 1)
    monkeypatch.setattr("bitbayes.structures.FullCurvature.of_features", fail)
    model = nn.Sequential(nn.Dropout(), nn.Linear(3, 1)).train()
    with pytest.raises(ModelError, match="no memory") as held:  # noqa: F841
        bb.Laplace(model, structure="full").fit([(torch.randn(2, 3), torch.tensor([0, 1]))])
    assert model.training and model[0].training


# ---- models of every form


class Backbone(nn.Module):
    """A network whose last layer has a name of the user's choice."""

    def __init__(self, name, k):
        super().__init__()
        self.name = name
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.unused = nn.Linear(4, k)
        setattr(self, name, nn.Linear(4, k))

    def forward(self, x):
        return getattr(self, self.name)(self.body(x))


def assert_head(model, x, y, weight, head):
    """Assert that the fitted head has this weight and that predictions are normalised."""
    bayes = bb.Laplace(model, head=head).fit([(x, y)])
    assert next(iter(bayes.sample(2))) == weight
    p = bayes.predict_proba(x)
    torch.testing.assert_close(p.sum(1), torch.ones_like(p[:, 0]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("name", ["fc", "head", "classifier", "score"])
def test_heads_are_found_under_every_usual_name(name, given, k):
    y = torch.arange(8) % max(k, 2)
    assert_head(Backbone(name, k), torch.randn(8, 1, 5, 5), y, f"{name}.weight", name if given else None)


@pytest.mark.parametrize(
    "wrap, weight",
    [
        (lambda head: head, "weight"),
        (lambda head: nn.Sequential(head), "0.weight"),
        (lambda head: nn.Sequential(nn.Linear(3, 3), nn.ReLU(), head, nn.Dropout()), "2.weight"),
        (
            lambda head: nn.Sequential(nn.Flatten(), nn.Sequential(nn.Identity(), head), nn.Identity()),
            "1.1.weight",
        ),
    ],
    ids=["alone", "sequential", "trailing-dropout", "nested"],
)
@pytest.mark.parametrize("bias", [True, False])
def test_heads_are_found_wherever_they_are_in_the_model(wrap, weight, bias, k):
    x, y = reference.data(k, dtype=torch.float32)
    assert_head(wrap(nn.Linear(3, k, bias=bias)), x, y, weight, None)


class Transformer(nn.Module):
    """A network as in Hugging Face: its inputs are keywords, and it returns an object with `.logits`."""

    def __init__(self, k, wrap):
        super().__init__()
        self.embedding = nn.Embedding(11, 5)
        self.dropout = nn.Dropout()
        self.classifier = nn.Linear(5, k)
        self.wrap = wrap

    def forward(self, input_ids, attention_mask, labels=None):
        assert labels is None
        hidden = self.embedding(input_ids) * attention_mask[:, :, None]
        return self.wrap(self.classifier(self.dropout(hidden.mean(1))))


@pytest.mark.parametrize(
    "wrap", [lambda logits: SimpleNamespace(loss=None, logits=logits), lambda logits: {"logits": logits}]
)
def test_models_with_keyword_inputs_and_logits_in_an_object(k, wrap):
    model = Transformer(k, wrap)
    ids, mask = torch.randint(11, (20, 6)), torch.ones(20, 6)
    y = torch.arange(20) % max(k, 2)
    batches = [
        {"input_ids": i, "attention_mask": m, "labels": labels}
        for i, m, labels in zip(ids.split(6), mask.split(6), y.split(6), strict=True)
    ]
    inputs = {"input_ids": ids, "attention_mask": mask}
    bayes = bb.Laplace(model).fit(batches)
    p = bayes.predict_proba(inputs)
    assert p.shape == (20, max(k, 2))
    torch.testing.assert_close(bayes.predict_proba(batches), p)
    logits = bayes(inputs).detach()
    torch.testing.assert_close(
        logits.softmax(1) if k > 1 else logits.sigmoid()[:, 0], p if k > 1 else p[:, 1]
    )
    plain = nn.Sequential(model.classifier)
    with torch.no_grad():
        features = (model.embedding(ids) * mask[:, :, None]).mean(1)
    expected = bb.Laplace(plain).fit([(features, y)]).predict_proba(features)
    torch.testing.assert_close(p, expected)


def test_a_head_may_be_called_with_a_keyword(k):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(3, k)

        def forward(self, x):
            return self.head(input=x)

    x, y = reference.data(k, dtype=torch.float32)
    assert_head(Model(), x, y, "head.weight", None)


# ---- options and the module itself


def test_the_prior_variance_can_be_set_without_data(k):
    model, (x, y) = reference.network(k), reference.data(k)
    bayes = bb.Laplace(model).fit([(x, y)])
    calls = count_calls(model)
    bayes.prior_variance = 17
    assert calls == [] and bayes.prior_variance == 17.0 and isinstance(bayes.prior_variance, float)
    assert_equal(bayes, bb.Laplace(model, prior_variance=17.0).fit([(x, y)]), x, atol=0)


def test_auto_is_full_for_one_logit_and_kron_for_more(k):
    model, (x, y) = reference.network(k), reference.data(k)
    expected = bb.Laplace(model, structure="full" if k == 1 else "kron").fit([(x, y)])
    assert_equal(bb.Laplace(model).fit([(x, y)]), expected, x, atol=0)


def test_a_laplace_is_a_module_that_holds_the_model(k):
    model = reference.network(k)
    bayes = bb.Laplace(model)
    assert isinstance(bayes, nn.Module) and bayes.model is model
    assert list(bayes.state_dict()) == ["_extra_state", *(f"model.{name}" for name in model.state_dict())]
    x, y = reference.data(k)
    bayes.fit([(x, y)])
    assert torch.equal(nn.Sequential(bayes)(x), bayes(x))
    assert torch.equal(copy.deepcopy(bayes)(x), bayes(x))


def test_updating_after_the_model_changed_raises_and_changes_nothing(k):
    model, (x, y) = reference.network(k), reference.data(k)
    bayes = bb.Laplace(model).fit([(x, y)])
    evidence, weights = bayes.log_evidence(), copy.deepcopy(model.state_dict())
    with torch.no_grad():
        model.head.weight += 1
    with pytest.raises(ModelError, match="changed since"):
        bayes.update([(x, y)])
    model.load_state_dict(weights)
    assert torch.equal(bayes.log_evidence(), evidence)


@pytest.mark.parametrize("structure", ["kron", "full", "diag"])
@pytest.mark.parametrize("layers", ["last", "all"])
@pytest.mark.parametrize("residual", [False, True])
def test_logits_of_a_loader_are_those_of_all_its_points(structure, layers, residual):
    x, y = points()
    bayes = bb.Laplace(relu_mlp(), structure=structure, layers=layers, residual=residual).fit([(x, y)])
    whole, parts = bayes.logits(x), bayes.logits([x[:15], x[15:]])
    torch.testing.assert_close(parts.mean, whole.mean)
    torch.testing.assert_close(parts.covariance, whole.covariance)


# ---- what the residual adds


class Positions(nn.Module):
    """One prediction for each position of a sequence, (n, t, k)."""

    def __init__(self, k):
        super().__init__()
        self.inside, self.head = nn.Linear(4, 6), nn.Linear(6, k)

    def forward(self, x):
        return self.head(self.inside(x).relu())


def tuned_case(k, kind="rows", **options):
    """A `Laplace` with a residual, tuned, and its points: rows of a table, images, or sequences."""
    torch.manual_seed(0)
    if kind == "rows":
        model, x = relu_mlp(k), torch.randn(80, 4)
    elif kind == "images":
        model, x = ray_cases.convnet(k).eval(), torch.randn(80, 1, 8, 8)
    else:
        model, x = Positions(k), torch.randn(80, 5, 4)
    y = torch.arange(80) % max(k, 2)
    y = y[:, None].expand(-1, 5) if kind == "positions" else y
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EdgeWarning)
        return bb.Laplace(model, **options).fit([(x, y)]).tune([(x, y)]), x, y


@pytest.mark.parametrize("kind", ["rows", "images", "positions"])
def test_the_confidence_is_the_largest_probability(k, kind):
    bayes, x, _ = tuned_case(k, kind)
    for predictive in ("auto", "probit"):
        bayes.predictive = predictive
        found, probabilities = bayes.confidence(x), bayes.predict_proba(x)
        assert torch.equal(found, probabilities.amax(-1)) and found.shape == probabilities.shape[:-1]
    torch.testing.assert_close(bayes.confidence([x[:30], x[30:]]), found)


@pytest.mark.parametrize("layers", ["last", "all"])
@pytest.mark.parametrize("kind", ["rows", "images"])
def test_explanations_add_up_to_the_variance_of_the_residual(k, kind, layers):
    bayes, x, _ = tuned_case(k, kind, layers=layers)
    x = torch.cat([x[:10], 4 * x[:10], x[:10] - 6]).double()
    bayes = laplace_of_double(bayes)
    parts = bayes.explain(x)
    assert tuple(parts) == bayes.known_residual.names and "input" in parts and "head" in parts
    assert all(each.shape == (30,) and bool((each >= 0).all()) for each in parts.values())
    total = sum(parts.values())
    kept = bayes.settings
    with_residual = bayes.logits(x).covariance
    bayes.settings = dataclasses.replace(kept, near_variance=0.0, beyond_variance=0.0)
    added = with_residual - bayes.logits(x).covariance
    # The same to every logit, and nothing between two of them: a difference of numbers of this size.
    scale = 1e-12 * with_residual.abs().amax((1, 2), keepdim=True)
    assert bool(((added - total[:, None, None] * torch.eye(k)).abs() <= scale).all())
    assert bool((total[10:20] > total[:10]).all())  # four times as far away
    with pytest.raises(ArgumentError, match="no residual to explain"):
        bayes.explain(x)
    bayes.settings = kept
    # A level by itself: the others count nowhere.
    for number, (name, part) in enumerate(parts.items()):
        alone = dict.fromkeys(parts, 0.0) | {name: kept.levels[name]}
        bayes.settings = dataclasses.replace(kept, levels=alone, beyond_variance=0.0)
        near = bayes.explain(x)
        assert all(float(each.max()) == 0 for other, each in near.items() if other != name)
        cubes = bayes.known_residual.distances(x)[:, number].detach() ** 3
        beyond = kept.beyond_variance * (cubes / kept.thresholds[name] ** 3 - 1).clamp_min(0)
        torch.testing.assert_close(near[name] + beyond, part)


def laplace_of_double(bayes):
    """The same in float64: the sums are, already."""
    model = copy.deepcopy(bayes.model).double()
    exact = bb.Laplace(model, layers=bayes.layers)
    exact.set_fitted(dataclasses.replace(bayes.posterior.fitted, fingerprint=fingerprint(model)))
    exact.settings = bayes.settings
    return exact


def test_a_loader_is_explained_as_its_points_are(k):
    bayes, x, y = tuned_case(k)
    whole = bayes.explain(x)
    for data in ([x[:30], x[30:]], DataLoader(TensorDataset(x, y), 17)):
        for name, part in bayes.explain(data).items():
            torch.testing.assert_close(part, whole[name])


@pytest.mark.parametrize("by", ["score", "confidence"])
@pytest.mark.parametrize("kind", ["rows", "positions"])
def test_thresholds_accept_the_share_that_was_asked_for(k, kind, by):
    bayes, x, y = tuned_case(k, kind)
    values = getattr(bayes, by)(x).flatten()
    for accept in (0.5, 0.95, 1.0):
        found = bayes.threshold(x, accept=accept, by=by)
        assert found == bb.metrics.threshold(values, accept=accept)
        assert float((values >= found).double().mean()) >= accept
    assert bayes.threshold([(x, y)], by=by) == bayes.threshold(x, by=by)
    assert bayes.threshold(x, by="score") != bayes.threshold(x, by="confidence")
    with pytest.raises(ArgumentError, match="by='energy'"):
        bayes.threshold(x, by="energy")


def test_outliers_are_told_by_the_score_or_by_the_confidence(k):
    bayes, x, y = tuned_case(k)
    sets = {"far": 5 * x, "noise": torch.rand(50, 4)}
    found = {by: bayes.evaluate([(x, y)], outliers=sets, by=by) for by in ("score", "confidence")}
    assert bayes.evaluate([(x, y)], outliers=sets) == found["score"]
    for by, numbers in found.items():
        ranks = getattr(bayes, by)
        for name, data in sets.items():
            # Ranks do not depend on rounding but for ties, and these inputs have none.
            assert numbers[f"{name}/auroc"] == pytest.approx(bb.metrics.auroc(ranks(x), ranks(data)))
            assert numbers[f"{name}/fpr95"] == pytest.approx(bb.metrics.fpr95(ranks(x), ranks(data)))
    assert found["score"]["aurc"] == found["confidence"]["aurc"]  # by the confidence in any case
    assert found["score"]["far/auroc"] != found["confidence"]["far/auroc"]
    with pytest.raises(ArgumentError, match="by='energy'"):
        bayes.evaluate([(x, y)], by="energy")


def test_the_variances_of_the_residual_can_be_set(k):
    bayes, x, _ = tuned_case(k)
    before, parts = bayes.settings, bayes.explain(3 * x)
    bayes.near_variance, bayes.beyond_variance = 2 * bayes.near_variance, 2 * bayes.beyond_variance
    twice = bayes.explain(3 * x)
    assert all(torch.equal(twice[name], 2 * part) for name, part in parts.items())
    expected = {"near_variance": 2 * before.near_variance, "beyond_variance": 2 * before.beyond_variance}
    assert bayes.settings == dataclasses.replace(before, **expected)


def test_settings_of_other_levels_are_refused(k):
    bayes, _, _ = tuned_case(k)
    before = bayes.settings
    with pytest.raises(ArgumentError, match=r"lack the level 'head'.*\['input', 'head', 'classes'\]"):
        bayes.settings = dataclasses.replace(before, levels={"input": 1.0, "classes": 1.0})
    assert bayes.settings is before
    swapped = dict(reversed(before.levels.items()))
    bayes.settings = dataclasses.replace(before, levels=swapped)
    assert [*bayes.settings.levels] == ["input", "head", "classes"] and bayes.settings == before


class Pooled(nn.Module):
    """It takes images of any size, also of integers, which have no distance."""

    def __init__(self):
        super().__init__()
        self.pool, self.inside, self.head = nn.AdaptiveAvgPool2d(3), nn.Linear(9, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.inside(self.pool(x.float()).flatten(1)).relu())


@pytest.mark.parametrize("residual, near", [("auto", 0.0), (True, 1.0)])
def test_a_new_fit_with_other_levels_forgets_what_was_chosen_for_the_old_ones(residual, near):
    torch.manual_seed(0)
    x, y = 9 * torch.randn(80, 1, 6, 6), torch.arange(80) % 3
    bayes = bb.Laplace(Pooled(), residual=residual).fit([(x, y)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EdgeWarning)
        chosen = bayes.tune([(x, y)]).settings
    assert tuple(chosen.levels) == ("input", "head", "classes") and chosen.class_spread is not None
    bayes.fit([(2 * x, y)])
    assert bayes.settings == chosen  # which is what a new fit leaves as it is
    bayes.fit([(x.long(), y)])
    assert "input" not in bayes.known_residual.names
    expected = bb.Settings(chosen.prior_variance, chosen.temperature, near_variance=near)
    assert bayes.settings == expected
    assert bool(bayes.predict_proba(x.long()).isfinite().all())

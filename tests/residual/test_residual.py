"""The residual of a fitted model: what it adds to predictions, at the input and at hidden levels; files."""

import pytest
import torch
from torch import nn

import bitbayes as bb
from bitbayes.errors import ArgumentError, DataError, ModelError
from bitbayes.residual import (
    LARGEST_WIDTH,
    ClassDistance,
    Distance,
    LevelSums,
    are_vectors,
    as_rows,
    measurable,
)
from bitbayes.settings import Settings
from bitbayes.toys import MLP, LeNet
from ray_cases import STRUCTURES, laplace, network, predicted_labels
from reference import class_distances, residual_distances, residual_kernel

CHOSEN = Settings(
    2.0,
    near_variance=0.7,
    beyond_variance=0.3,
    levels={"input": 0.5, "2": 0.2, "head": 0.0, "classes": 0.1},
    thresholds={"input": 1.1, "2": 1.5, "head": 1.5, "classes": 1.0},
)


def plain_distances(model, x, train):
    """(n, 4), of the MLP of `laplace`: at its input, before its second layer, before its last, and there
    from the classes that it predicts."""
    with torch.no_grad():
        before = [nn.Sequential(*list(model)[:count]) for count in (0, 2, 4)]
        found = [residual_distances(part(x), part(train), True) for part in before]
        classes = class_distances(before[2](x), before[2](train), predicted_labels(model, train))
        return torch.stack([*found, classes], 1)


def plain_variances(distances, settings):
    """v(x), level by level and point by point."""
    found = []
    for row in distances.tolist():
        near = sum(weight * d**3 for weight, d in zip(settings.levels.values(), row, strict=True))
        beyond = [max(0, (d / t) ** 3 - 1) for t, d in zip(settings.thresholds.values(), row, strict=True)]
        found.append(settings.near_variance * near + settings.beyond_variance * sum(beyond))
    return torch.tensor(found, dtype=torch.float64)


# ---- predictions


@pytest.mark.parametrize("layers", ["last", "all"])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-10), (torch.float32, 1e-4)])
def test_distances_are_those_of_the_features_at_each_level(layers, dtype, tolerance):
    bayes, x = laplace("mlp", 3, n=100, layers=layers, predicted=True)
    residual = bayes.known_residual
    assert residual.names == ("input", "2", "head", "classes")
    assert residual.measures_input and residual.measures_classes
    assert [level.layer for level in residual.levels] == ["2", "4"]
    expected = plain_distances(bayes.model, 3 * x, 2 * x)
    bayes.model.to(dtype)
    found = residual.distances((3 * x).to(dtype))
    assert found.shape == (100, 4) and found.dtype == torch.float64
    torch.testing.assert_close(found.detach(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "layers, structure",
    [*(("last", each) for each in STRUCTURES), *(("all", each) for each in ("full", "kron", "diag"))],
)
def test_it_adds_an_isotropic_part_to_the_covariance(layers, structure):
    options = {"n": 100, "layers": layers, "structure": structure, "predicted": True}
    plain, x = laplace("mlp", 3, prior_variance=2.0, residual=False, **options)
    bayes, _ = laplace("mlp", 3, **options)
    bayes.settings = CHOSEN
    distances = plain_distances(bayes.model, 3 * x, 2 * x)
    extra = plain_variances(distances, CHOSEN)
    beyond = distances > torch.tensor([*CHOSEN.thresholds.values()])
    assert bool(beyond.any(0).all()) and not bool(beyond.all(0).any())
    expected = plain.logits(3 * x).covariance + extra[:, None, None] * torch.eye(3)
    torch.testing.assert_close(bayes.logits(3 * x).covariance, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(bayes.logits(3 * x).mean, plain.logits(3 * x).mean)


def test_without_chosen_weights_all_levels_count_the_same():
    plain, x = laplace("mlp", 3, n=100, prior_variance=1.0, residual=False, predicted=True)
    bayes, _ = laplace("mlp", 3, n=100, prior_variance=1.0, residual=True, predicted=True)
    added = (bayes.logits(3 * x).covariance - plain.logits(3 * x).covariance).diagonal(dim1=1, dim2=2)
    expected = plain_distances(bayes.model, 3 * x, 2 * x).pow(3).mean(1)
    torch.testing.assert_close(added, expected[:, None].expand(-1, 3), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("layers", ["last", "all"])
@pytest.mark.parametrize("residual", [True, ("4",)])
def test_loaders_drop_in_and_samples_agree_with_the_prediction(layers, residual):
    bayes, x = laplace("mlp", 3, layers=layers, residual=residual)
    probs = bayes.predict_proba(2 * x)
    loader = [(part, torch.zeros(len(part))) for part in torch.split(2 * x, 7)]
    torch.testing.assert_close(bayes.predict_proba(loader), probs)
    torch.testing.assert_close(bayes(2 * x).softmax(1), probs)
    sampled = bayes.predict_proba(2 * x, method="mc", samples=20_000)
    torch.testing.assert_close(sampled, probs, rtol=0, atol=0.05)


def test_the_drop_in_is_differentiable_through_all_levels():
    bayes, x = laplace("mlp", 3, n=100, predicted=True)
    bayes.settings = CHOSEN
    far = bayes.known_residual.distances(3 * x)[:, -1] > 0.1
    x = (3 * x[far][:4]).requires_grad_()
    assert len(x) == 4
    assert torch.autograd.gradcheck(lambda x: bayes(x).softmax(1), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("layers", ["last", "all"])
def test_predictions_up_to_1e36_times_the_inputs_are_uniform(layers, dtype):
    model = MLP((2, 20, 3)).to(dtype)
    x = torch.randn(30, 2, dtype=dtype)
    bayes = bb.Laplace(model, layers=layers, residual=True).fit([(x, torch.arange(30) % 3)])
    bayes.near_variance = 1e8
    for delta in (1e10, 1e20, 1e30, 1e36):
        probs = bayes.predict_proba(delta * x)
        torch.testing.assert_close(probs, torch.full_like(probs, 1 / 3), rtol=0, atol=1e-5)


def test_distances_follow_the_precision_and_are_kept_outside_inference_mode():
    bayes, x = laplace("mlp", 3, residual=True)
    with torch.inference_mode():
        inside = bayes.predict_proba(3 * x)
    x = x.requires_grad_()
    (slope,) = torch.autograd.grad(bayes(3 * x).softmax(1)[:, 0].sum(), x)
    assert bool(slope.isfinite().all()) and bool(slope.any())
    torch.testing.assert_close(bayes.predict_proba(3 * x.detach()), inside, rtol=0, atol=1e-15)


def test_what_does_not_depend_on_the_inputs_is_computed_once(monkeypatch):
    bayes, x = laplace("mlp", 3, residual=True)
    before = bayes.predict_proba(x)
    monkeypatch.setattr("bitbayes.residual.residual.Distance.of", None)  # it cannot be called
    assert torch.equal(bayes.predict_proba(x), before)
    with pytest.raises(TypeError):
        bayes.known_residual.observer(x.float())  # another precision


# ---- the distance from the classes


def test_classes_are_the_last_name_and_repeat_the_head():
    bayes, x = laplace("mlp", 3, predicted=True)
    residual, hidden = bayes.known_residual, [torch.zeros(2, 12), torch.ones(2, 8)]
    assert [*residual.sums] == ["input", "2", "head"] and residual.names == (*residual.sums, "classes")
    found = residual.with_repeats(x[:2], hidden)
    assert [id(each) for each in found] == [id(each) for each in (*found[:1], *hidden, hidden[-1])]
    assert torch.equal(found[0], x[:2])
    for name, kind in (("input", Distance), ("2", Distance), ("head", Distance), ("classes", ClassDistance)):
        assert type(residual.distance(name, torch.device("cpu"), torch.float64)) is kind


class Sequences(nn.Module):
    """Logits at every position."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.first(x).relu()).transpose(1, 2)


X, Y = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3
WITHOUT_CLASSES = {
    "no level at the head": (nn.Linear(4, 3), X, Y, {}, ("input",)),
    "no residual": (MLP((4, 6, 3)), X, Y, {"residual": False}, None),
    # They have the last layer alone.
    "positions": (Sequences(), X[:, None].repeat(1, 5, 1), Y[:, None].repeat(1, 5), {}, None),
}


@pytest.mark.parametrize(
    "case, layers", [(case, each) for case in WITHOUT_CLASSES for each in ("last", "all")][:-1]
)
def test_where_classes_are_not_measured(case, layers):
    model, x, y, options, names = WITHOUT_CLASSES[case]
    bayes = bb.Laplace(model, layers=layers, **options).fit([(x, y)])
    sums = bayes.posterior.fitted.level_sums
    assert not any(each.has_classes for each in sums.values())
    residual = bayes.known_residual
    assert residual is None or (not residual.measures_classes and "classes" not in residual.names)
    assert names is None or residual.names == names


@pytest.mark.parametrize("layers", ["last", "all"])
def test_one_logit_has_two_classes(layers):
    model = MLP((4, 6, 1)).double()
    x = X.double()
    with torch.no_grad():
        model[2].bias -= model(x).median()
    y = predicted_labels(model, x)
    bayes = bb.Laplace(model, layers=layers).fit([(x, y[:, None].float())])
    with torch.no_grad():
        features = model[1](model[0](x))
        found = bayes.known_residual.distances(3 * x)
        expected = class_distances(model[1](model[0](3 * x)), features, y)
    assert bayes.known_residual.names == ("input", "head", "classes") and 20 < int(y.sum()) < 40
    assert 10 < int((expected > 0.1).sum()) < 60
    torch.testing.assert_close(found[:, -1], expected, rtol=1e-8, atol=1e-8)


@pytest.mark.filterwarnings("ignore::bitbayes.errors.EdgeWarning")
def test_layers_that_are_called_like_levels_have_other_names(tmp_path):
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.input, self.classes, self.head = (nn.Linear(4, 4), nn.Linear(4, 5), nn.Linear(5, 3))

        def forward(self, x):
            return self.head(self.classes(self.input(x).relu()).relu())

    bayes = bb.Laplace(Named()).fit([(X, Y)])
    assert bayes.known_residual.names == ("input", "classes (layer)", "head", "classes")
    assert [each.layer for each in bayes.known_residual.levels] == ["classes", "head"]
    bayes.tune([(X, Y)])
    assert [*bayes.settings.levels] == [*bayes.explain(X)] == [*bayes.known_residual.names]
    bayes.save(tmp_path / "bayes.safetensors")
    loaded = bb.Laplace.load(tmp_path / "bayes.safetensors", bayes.model)
    assert torch.equal(loaded.score(3 * X), bayes.score(3 * X))


def test_features_of_another_size_are_refused_by_the_distance_from_classes_too():
    bayes, x = laplace("mlp", 3)
    observer = bayes.known_residual.observer(x)
    with pytest.raises(DataError, match=r"'head' of 7 numbers.*have 8"):
        observer.look([torch.zeros(40, 12), torch.zeros(40, 7)])


@pytest.mark.parametrize("n, noise", [(500, 1.0), (2000, 0.1), (20_000, 0.01)])
def test_training_data_of_clear_classes_are_near_their_classes(n, noise):
    """Few points for the features, or features that hardly vary within a class: d² has a mean of about 0."""
    labels = torch.arange(n) % 10
    rows = torch.randn(10, 64).double()[labels] + noise * torch.randn(n, 64).double()
    sums = LevelSums.of(rows, correlated=True, labels=labels, classes=10)
    found = ClassDistance.of_classes(sums, torch.device("cpu"), torch.float64)(rows)
    assert float(found.mean()) < 1


# ---- learning and files


def test_update_gives_one_fit_and_files_keep_all_levels(tmp_path):
    model, x = network("mlp", 3, 40)
    y = torch.arange(40) % 3
    whole = bb.Laplace(model, residual=True).fit([(x, y)])
    parts = bb.Laplace(model, residual=True).fit([(x[:13], y[:13])]).update([(x[13:], y[13:])])
    torch.testing.assert_close(parts.predict_proba(5 * x), whole.predict_proba(5 * x))
    whole.settings = CHOSEN
    whole.save(tmp_path / "bayes.safetensors")
    loaded = bb.Laplace.load(tmp_path / "bayes.safetensors", model)
    assert loaded.settings == CHOSEN and loaded.known_residual.levels == whole.known_residual.levels
    torch.testing.assert_close(loaded.predict_proba(5 * x), whole.predict_proba(5 * x), rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore::bitbayes.errors.EdgeWarning")
def test_layers_that_are_named_are_the_levels_before_the_head(tmp_path):
    bayes, x = laplace("mlp", 3, residual=["3", "1"])
    assert bayes.residual == ("3", "1") and bayes.known_residual.names == (
        "input",
        "3",
        "1",
        "head",
        "classes",
    )
    bayes.tune([(2 * x, torch.arange(40) % 3)])
    names = ["input", "3", "1", "head", "classes"]
    assert [*bayes.settings.levels] == [*bayes.settings.thresholds] == names
    bayes.save(tmp_path / "bayes.safetensors")
    loaded = bb.Laplace.load(tmp_path / "bayes.safetensors", bayes.model)
    assert loaded.residual == ("3", "1")
    torch.testing.assert_close(loaded.predict_proba(5 * x), bayes.predict_proba(5 * x), rtol=0, atol=0)
    # The head's input is a level anyway.
    found = laplace("mlp", 3, residual=["4", "1"])[0].known_residual
    assert found.names == ("input", "1", "head", "classes") and [each.layer for each in found.levels] == [
        "1",
        "4",
    ]


def test_layers_that_cannot_be_levels_raise():
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    for bad in ((), ("5",), ("2", "2"), "2", 1.0, "yes"):
        with pytest.raises(ArgumentError, match="'auto', True, False, or a tuple of names of layers"):
            bb.Laplace(model, residual=bad)

    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)
            self.words, self.flat = nn.Embedding(3, 2), nn.Flatten(0)

        def forward(self, x):
            words = self.words(torch.zeros(len(x), dtype=torch.long))
            return self.used(x + words + 0 * self.flat(x[:, 0])[:, None])

    data = [(torch.ones(4, 2), torch.zeros(4).long())]
    with pytest.raises(ModelError, match="does not call"):
        bb.Laplace(Odd(), residual=("unused",)).fit(data)
    for name in ("words", "flat"):
        with pytest.raises(ModelError, match=f"'{name}' does not see one row of numbers for each input"):
            bb.Laplace(Odd(), residual=(name,)).fit(data)


def test_networks_that_are_drawn_have_no_residual():
    with pytest.raises(ArgumentError, match="sampled_networks"):
        bb.Laplace(nn.Linear(2, 2), layers="all", predictive="sampled_networks", residual=True)


# ---- inputs of all kinds


class Scaling(nn.Module):
    """Takes images as bytes, as keyword or not, and other tensors that it need not use."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(12, 3)

    def forward(self, pixels, extra=None, ids=None, shared=None):
        rows = pixels.flatten(1).float() / 255
        return self.head(rows if extra is None else rows + extra[:, None])


def pictures(n=40):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (n, 3, 2, 2), generator=generator).to(torch.uint8)
    return images, torch.arange(n) % 3


@pytest.mark.parametrize("layers", ["last", "all"])
def test_images_of_bytes_have_the_residual_of_their_numbers(layers):
    images, y = pictures()
    bayes = bb.Laplace(Scaling(), layers=layers, residual=True).fit([(images // 2, y)])
    plain = bb.Laplace(bayes.model, layers=layers, residual=False).fit([(images // 2, y)])
    assert bayes.known_residual.names == ("input",)  # the head sees nothing else
    extra = residual_kernel(images, images // 2)[:, None, None] * torch.eye(3)
    found = bayes.logits(images).covariance - plain.logits(images).covariance
    torch.testing.assert_close(found.double(), extra.double(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(bayes(images).softmax(1), bayes.predict_proba(images))


def test_mappings_have_the_residual_of_all_their_numbers():
    """In any order of the keys; neither token ids nor what all points share are measured."""
    images, y = pictures()
    extra, ids, shared = torch.randn(40), torch.arange(40)[:, None], torch.randn(7, 7)
    inputs = {"pixels": images, "ids": ids, "shared": shared, "extra": extra}
    bayes = bb.Laplace(Scaling(), residual=True).fit([{**inputs, "labels": y}])
    rows = torch.cat([extra[:, None], images.flatten(1)], dim=1)
    found = bayes.known_residual.distances(inputs)[:, 0].pow(3)
    torch.testing.assert_close(found, residual_kernel(rows, rows), rtol=3e-6, atol=0)
    turned = dict(reversed(inputs.items()))
    assert torch.equal(bayes.predict_proba(turned), bayes.predict_proba(inputs))
    torch.testing.assert_close(bayes(inputs).softmax(1), bayes.predict_proba(inputs))
    far = bayes.predict_proba({**inputs, "extra": 1e30 * extra})
    torch.testing.assert_close(far, torch.full_like(far, 1 / 3), rtol=0, atol=1e-5)
    with pytest.raises(DataError, match="an input of 12 numbers"):
        bayes.predict_proba({"pixels": images})


class Words(nn.Module):
    """An embedding, a layer over words, and a head over the mean of those that count."""

    def __init__(self):
        super().__init__()
        self.words, self.mix, self.head = nn.Embedding(50, 6), nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, input_ids, attention_mask):
        x = self.mix(self.words(input_ids)).tanh() * attention_mask[:, :, None]
        return self.head(x.sum(1) / attention_mask.sum(1, keepdim=True))


def sentences(words, n=40, longest=7, padding=0):
    """Of 1 to `longest` of the first words, and how many count."""
    ids = torch.randint(words, (n, longest), generator=torch.Generator().manual_seed(n))
    mask = (torch.arange(longest) <= torch.arange(n)[:, None] % longest).long()
    ids, mask = (nn.functional.pad(each, (0, padding)) for each in (ids, mask))
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("layers", ["last", "all"])
def test_token_ids_are_measured_inside_the_network(layers):
    """Words that no training sentence has are further away than those that all have; padding is not."""
    model = Words().double()
    model.words.requires_grad_(False)
    train = sentences(20)
    bayes = bb.Laplace(model, layers=layers, residual=True).fit([{**train, "labels": torch.arange(40) % 3}])
    residual = bayes.known_residual
    assert residual.names == ("mix", "head", "classes") and not residual.measures_input
    rows = [
        model.words(ids)[: int(count)].mean(0)
        for ids, count in zip(train["input_ids"], train["attention_mask"].sum(1), strict=True)
    ]
    expected = residual_distances(torch.stack(rows), torch.stack(rows), True)
    torch.testing.assert_close(residual.distances(train)[:, 0].detach(), expected, rtol=1e-9, atol=1e-9)
    longer = bayes.predict_proba(sentences(20, padding=9))
    torch.testing.assert_close(bayes.predict_proba(train), longer, rtol=0, atol=1e-12)
    other = {**train, "input_ids": train["input_ids"] + 20}
    assert bool((residual.distances(other).mean(0) > residual.distances(train).mean(0)).all())


def test_rays_of_bytes_and_mappings_are_refused():
    images, y = pictures()
    bayes = bb.Laplace(Scaling(), residual=True).fit([(images, y)])
    for ask in (bayes.limit, bayes.certify):
        with pytest.raises(ArgumentError, match=r"a ray .* floating-point numbers, got torch.uint8"):
            ask(images)
        with pytest.raises(ArgumentError, match=r"a ray .* floating-point numbers, got dict"):
            ask({"pixels": images})


def test_what_can_be_measured():
    pixels, tokens = torch.rand(4, 3), torch.ones(4, 5, dtype=torch.int64)
    for inputs in (pixels, pixels.half(), pixels.byte(), {"a": tokens, "b": pixels}, {"b": pixels.byte()}):
        assert measurable(inputs)
    for inputs in (tokens, tokens.bool(), {"ids": tokens}, {}, {"labels": pixels}, "text", torch.tensor(1.0)):
        assert not measurable(inputs)
    for inputs, kind in ((tokens, "of torch.int64"), ({"ids": tokens}, "a mapping without"), (3, "type int")):
        with pytest.raises(ArgumentError, match=rf"{kind}.*residual=False"):
            as_rows(inputs)


def test_numbers_that_all_points_of_a_mapping_share_are_not_measured():
    ids = torch.arange(10).reshape(2, 5)
    assert not measurable({"ids": ids, "scale": torch.rand(3)})
    assert measurable({"ids": ids, "scale": torch.rand(2)})


def test_tables_are_vectors_and_images_are_not():
    for table in (torch.zeros(2, LARGEST_WIDTH), {0: torch.zeros(2), 1: torch.zeros(2, 3)}):
        assert are_vectors(table)
    for other in (torch.zeros(2, LARGEST_WIDTH + 1), torch.zeros(2, 1, 3)):
        assert not are_vectors(other)


def test_the_input_has_correlations_if_it_is_a_vector():
    x, y = torch.randn(30, 1, 3, 4), torch.arange(30) % 3
    images = bb.Laplace(nn.Sequential(nn.Flatten(), nn.Linear(12, 3))).fit([(x, y)])
    rows = bb.Laplace(nn.Linear(12, 3)).fit([(x.flatten(1), y)])
    for bayes, inputs, correlated in ((images, x, False), (rows, x.flatten(1), True)):
        assert bayes.known_residual.sums["input"].correlated == correlated
        expected = residual_distances(x.flatten(1), x.flatten(1), correlated)
        found = bayes.known_residual.distances(inputs)[:, 0]
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)


def test_pixels_count_beyond_the_data_only_if_there_are_other_levels():
    x, y = torch.rand(20, 1, 28, 28), torch.arange(20) % 3
    images = bb.Laplace(LeNet(3, hidden=8)).fit([(x, y)]).known_residual
    assert images.names == ("input", "6", "head", "classes")
    assert images.near_names == ("6", "head", "classes")
    plain = bb.Laplace(nn.Sequential(nn.Flatten(), nn.Linear(784, 3))).fit([(x, y)]).known_residual
    assert plain.near_names == plain.names == ("input",)
    table = laplace("mlp", 3)[0].known_residual
    assert table.near_names == table.names == ("input", "2", "head", "classes")


@pytest.mark.parametrize("layers", ["last", "all"])
def test_inputs_of_another_size_or_kind_are_refused_before_the_model_runs(layers):
    x, y = torch.randn(30, 2), torch.arange(30) % 3
    bayes = bb.Laplace(nn.Linear(2, 3), layers=layers, residual=True).fit([(x, y)])

    def tune(outliers):
        bayes.tune([(x, y)], objective="ood", outliers=outliers)

    for ask in (bayes.predict_proba, bayes.logits, tune):
        with pytest.raises(DataError, match="an input of 5 numbers"):
            ask(torch.ones(4, 5))
        with pytest.raises(ArgumentError, match=r"int64.*residual=False"):
            ask(torch.ones(4, 2, dtype=torch.int64))


def test_features_of_another_size_are_refused_by_the_name_of_their_layer():
    bayes, x = laplace("mlp", 3)
    observer = bayes.known_residual.observer(x)
    with pytest.raises(DataError, match=r"an input of the layer '2' of 7 numbers.*have 12"):
        observer.look([torch.zeros(40, 7), torch.zeros(40, 8)])


# ---- models that work in place


class InPlace(nn.Module):
    """Changes its own input, as preprocessing inside a model may."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(2, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.first(x.mul_(0.5)).relu_())


def test_the_distance_is_that_of_the_input_before_the_model_changes_it():
    x, y = torch.randn(30, 2), torch.arange(30) % 3
    bayes = bb.Laplace(InPlace(), residual=True).fit([(x.clone(), y)])
    sums = bayes.posterior.fitted.level_sums
    torch.testing.assert_close(sums["input"].mean, x.double().mean(0), rtol=1e-12, atol=1e-12)
    features = bayes.model.first(x / 2).relu().detach()
    expected = [residual_distances(each, each, True) for each in (x, features)]
    expected.append(class_distances(features, features, y))
    found = bayes.known_residual.distances(x.clone()).detach()
    torch.testing.assert_close(found, torch.stack(expected, 1), rtol=1e-4, atol=1e-4)
    levels = {"input": 1.0, "head": 0.5, "classes": 2.0}
    bayes.settings = Settings(1.0, near_variance=3.0, levels=levels)
    plain = bb.Laplace(bayes.model, residual=False, prior_variance=1.0).fit([(x.clone(), y)])
    added = bayes.logits(x.clone()).covariance - plain.logits(x.clone()).covariance
    extra = 3 * (expected[0].pow(3) + expected[1].pow(3) / 2 + expected[2].pow(3) * 2)
    torch.testing.assert_close(added.double(), extra[:, None, None] * torch.eye(3), rtol=1e-3, atol=1e-4)


def test_an_activation_in_place_does_not_change_the_residual():
    layers = [nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)]
    x, y = torch.randn(20, 4), torch.arange(20) % 3
    found = []
    for inplace in (False, True):
        layers[1] = nn.ReLU(inplace)
        bayes = bb.Laplace(nn.Sequential(*layers), residual=("1",)).fit([(x, y)])
        found.append(bayes.predict_proba(x))
    assert torch.equal(*found)


# ---- hidden units that never vary


def with_constant_unit(value, dtype):
    """A Laplace whose last hidden unit is always `value`, and x; a dead one if it is 0."""
    model = MLP((3, 8, 6, 2)).to(dtype)
    with torch.no_grad():
        model[0].weight[-1] = 0
        model[0].bias[-1] = value or -1.0
    x = (3 * torch.randn(200, 3)).to(dtype)
    return bb.Laplace(model).fit([(x, torch.arange(200) % 2)]), x


def hidden_distances(bayes, x, bias):
    """At the second layer, with another bias of the unit."""
    before = bayes.model[0].bias.detach().clone()
    with torch.no_grad():
        bayes.model[0].bias[-1] = bias
        found = bayes.known_residual.distances(x)[:, 1]
        bayes.model[0].bias.copy_(before)
    return found


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("value", [0.1, 0.3, 7.3, 1 / 3, 1e6 + 0.1])
def test_a_hidden_unit_of_one_value_is_near_if_it_is_rounded_and_far_if_it_changes(value, dtype):
    bayes, x = with_constant_unit(value, dtype)
    same, rounded, changed = (hidden_distances(bayes, x, value * each) for each in (1, 1 + 2.0**-6, 2))
    assert float(rounded.mean()) < 1.3 * float(same.mean())
    assert bool((changed > 22).all()) and float(same.max()) < 6  # 64 deviations of one in eight: 64/√8


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_dead_unit_that_fires_counts_like_the_others(dtype):
    bayes, x = with_constant_unit(0.0, dtype)
    typical = float(bayes.posterior.fitted.level_sums["2"].deviations()[:-1].median())
    dead, little, much = (hidden_distances(bayes, x, each) for each in (-1.0, typical / 4, 64 * typical))
    assert torch.equal(hidden_distances(bayes, x, -100.0), dead)
    assert float(little.mean()) < 1.1 * float(dead.mean())
    assert bool((much > 22).all())


@pytest.mark.parametrize("pixels", [False, True], ids=["table", "image"])
def test_a_column_of_a_table_that_was_always_0_is_far_when_it_moves_and_a_dark_pixel_is_not(pixels):
    """It has a 64th of the median deviation there, as another constant has of its value."""
    x = torch.randn(200, 6, generator=torch.Generator().manual_seed(0)).double()
    x[:, 2] = 0
    moved = x + torch.eye(6, dtype=torch.float64)[2]  # by about one deviation of the others
    shape = (200, 1, 2, 3) if pixels else (200, 6)
    model = nn.Sequential(nn.Flatten(), *MLP((6, 8, 3))).double()
    bayes = bb.Laplace(model).fit([(x.reshape(shape), torch.arange(200) % 3)])
    with torch.no_grad():
        found = bayes.known_residual.distances(moved.reshape(shape))[:, 0]
        before = bayes.known_residual.distances(x.reshape(shape))[:, 0]
    expected = residual_distances(moved, x, not pixels, 1.0 if pixels else 2.0**-6)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=0)
    if pixels:
        assert float(found.mean()) < 1.5 * float(before.mean())
    else:  # 64 deviations of one column in six
        assert float(found.min()) > 0.8 * 64 / 6**0.5 and float(before.max()) < 3

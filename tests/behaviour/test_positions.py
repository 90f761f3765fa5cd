"""Outputs with positions: tokens (n, t, k) and pixels (n, k, h, w), each position a point."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import bitbayes as bb
import head_reference
from bitbayes.errors import DataError, ModelError, UnusedDataWarning
from bitbayes.posteriors import last_layer
from bitbayes.structures import CURVATURES


class Tokens(nn.Module):
    """A class for every token, (n, t, k); `squeezed`: (n, t) for one logit."""

    def __init__(self, k=3, squeezed=False):
        super().__init__()
        self.words, self.head, self.squeezed = nn.Embedding(11, 4), nn.Linear(4, k), squeezed

    def features(self, ids):
        return (self.words(ids) + self.words(ids.roll(1, 1))).tanh()

    def forward(self, ids):
        logits = self.head(self.features(ids))
        return logits.squeeze(-1) if self.squeezed else logits


class Pixels(nn.Module):
    """A class for every pixel, (n, k, h, w), by a 1×1 convolution; laid out in several ways."""

    def __init__(self, k=3, how="channels first"):
        super().__init__()
        self.body, self.head, self.how = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, k, 1), how

    def features(self, x):
        return self.body(x).tanh()

    def forward(self, x):
        logits = self.head(self.features(x))
        if self.how == "channels last":
            return logits.permute(0, 2, 3, 1)
        if self.how == "interpolated":
            return functional.interpolate(logits, scale_factor=2, mode="bilinear", align_corners=False)
        return logits.squeeze(1) if self.how == "squeezed" else logits


class Patches(nn.Module):
    """A class for every pixel by a linear layer, whose numbers get other axes afterwards."""

    def __init__(self, k, after):
        super().__init__()
        self.head, self.after = nn.Linear(2, k), after

    def forward(self, x):
        n, _, h, w = x.shape
        return self.after(self.head(x.movedim(1, -1).flatten(1, 2)), n, h, w)


def last(output):
    return output.reshape(-1, output.shape[-1])


def first(output):
    return output.movedim(1, -1).reshape(-1, output.shape[1])


def column(output):
    return output.reshape(-1, 1)


def labels_for(output, k):
    """Some labels, a third of which do not count."""
    places = output.shape[:2] if output.dim() == 3 and output.shape[2] == k else output.shape
    if output.dim() == 4:
        places = (len(output), *(output.shape[2:] if output.shape[1] == k else output.shape[1:3]))
    labels = torch.randint(max(k, 2), places)
    labels[torch.rand(places) < 1 / 3] = -100
    return labels


IDS, IMAGES = torch.arange(24).reshape(4, 6) % 11, torch.randn(3, 2, 4, 5, dtype=torch.float64)
CASES = {
    "tokens": (Tokens(3), IDS, last, 3),
    "tokens, one logit": (Tokens(1), IDS, last, 1),
    "tokens, squeezed": (Tokens(1, squeezed=True), IDS, column, 1),
    "pixels": (Pixels(3), IMAGES, first, 3),
    "pixels, one logit": (Pixels(1), IMAGES, first, 1),
    "pixels, squeezed": (Pixels(1, "squeezed"), IMAGES, column, 1),
    "channels last": (Pixels(3, "channels last"), IMAGES, last, 3),
    "interpolated": (Pixels(3, "interpolated"), IMAGES[:2, :, :3, :3], first, 3),
    "patches": (Patches(1, lambda z, n, h, w: z.mT.reshape(n, 1, h, w)), IMAGES, first, 1),
    "patches, channels last": (Patches(3, lambda z, n, h, w: z.reshape(n, h, w, 3)), IMAGES, last, 3),
    "patches, squeezed": (Patches(1, lambda z, n, h, w: z.reshape(n, h, w)), IMAGES, column, 1),
}
HEAD = ["head.weight", "head.bias"]


def problem(name):
    model, x, as_rows, k = CASES[name]
    model = copy.deepcopy(model).double()
    return model, x, labels_for(model(x), k), as_rows, k


@pytest.mark.parametrize("name", CASES)
def test_covariances_and_probabilities_are_those_of_dense_derivatives(name):
    model, x, y, as_rows, _ = problem(name)
    bayes = bb.Laplace(model, structure="full", prior_variance=2.0, residual=False).fit([(x, y)])
    assert bayes.posterior.fitted.count == int((y != -100).sum()) < y.numel()
    head_reference.check(bayes, HEAD, x, as_rows, counts=(y != -100).flatten())


@pytest.mark.parametrize("name", CASES)
def test_predictions_have_the_shape_of_the_models_output(name):
    model, x, y, as_rows, k = problem(name)
    bayes = bb.Laplace(model, prior_variance=1.0).fit([(x[:1], y[:1]), (x[1:], y[1:])])
    channels_last = name.startswith("tokens") or "channels last" in name or name == "patches, squeezed"
    output, axis = model(x), -1 if channels_last else 1
    shape = list(output.shape)
    if "squeezed" in name:
        shape.insert(len(shape) if axis == -1 else 1, 1)
    places = [size for place, size in enumerate(shape) if place != axis % len(shape)]
    shape[axis] = max(k, 2)
    probs = bayes.predict_proba(x)
    assert list(probs.shape) == shape == list(bayes.uncertainty(x).variance.shape)
    assert list(bayes.score(x).shape) == places == list(bayes.uncertainty(x).entropy.shape)
    torch.testing.assert_close(probs.sum(axis), torch.ones(places, dtype=torch.float64))
    logits = bayes(x)
    assert logits.shape == output.shape
    if k > 1:
        drop_in = logits.softmax(axis)
    else:  # the second class
        drop_in, probs = as_rows(logits).sigmoid()[:, 0], probs.select(axis, 1).flatten()
    torch.testing.assert_close(drop_in, probs, rtol=0, atol=1e-12)
    for some in ([x[:2], x[2:]], [(x, None)]):
        torch.testing.assert_close(bayes.score(some), bayes.score(x), rtol=0, atol=1e-12)


@pytest.fixture(params=["tokens", "pixels"])
def both(request):
    """A Laplace of a model with positions, and one of its head on the rows that count."""
    model, x, y, _, _ = problem(request.param)
    features = model.features(x).detach()
    rows = features.movedim(1, -1).reshape(-1, 4) if request.param == "pixels" else features.reshape(-1, 4)
    head = nn.Linear(4, 3).double()
    head.load_state_dict(
        {name: each.reshape(each.shape[:2]) for name, each in model.head.state_dict().items()}
    )
    counts = y.flatten() != -100
    point = (rows[counts], y.flatten()[counts])
    options = {"prior_variance": 1.0, "residual": False}
    return bb.Laplace(model, **options), (x, y), bb.Laplace(head, **options), point


def test_every_position_is_a_point(both):
    bayes, (x, y), plain, (rows, labels) = both
    bayes.fit([(x[:1], y[:1]), (x[1:], y[1:])])
    plain.fit([(rows, labels)])
    close = pytest.approx(float(plain.log_evidence()), abs=1e-9)
    assert float(bayes.log_evidence()) == close
    for one, data in ((bayes, [(x, y)]), (plain, [(rows, labels)])):
        one.tune(data)
    assert bayes.prior_variance == pytest.approx(plain.prior_variance, rel=1e-6)
    assert bayes.temperature == pytest.approx(plain.temperature, rel=1e-6)
    assert bayes.evaluate([(x, y)]) == pytest.approx(plain.evaluate([(rows, labels)]), abs=1e-6)
    for data in ([(x[:2], y[:2]), (x[2:], y[2:])], {0: x, "labels": y}):
        assert bayes.threshold(data) == pytest.approx(plain.threshold(rows), abs=1e-6)


def test_an_update_is_one_fit_on_both(both):
    bayes, (x, y), _, _ = both
    whole = copy.copy(bayes).fit([(x, y)])
    bayes.fit([(x[:2], y[:2])]).update([(x[2:], y[2:])])
    torch.testing.assert_close(bayes.predict_proba(x), whole.predict_proba(x), rtol=0, atol=1e-12)


def test_a_fit_in_small_chunks_is_the_same(both, monkeypatch):
    bayes, (x, y), _, _ = both
    whole = copy.copy(bayes).fit([(x, y)])
    sizes = []
    of_features = CURVATURES["kron"].of_features
    monkeypatch.setattr("bitbayes.fitting.last_layer.FIT_BYTES", 400)
    monkeypatch.setattr(
        CURVATURES["kron"],
        "of_features",
        lambda features, *rest: sizes.append(len(features)) or of_features(features, *rest),
    )
    bayes.fit([(x, y)])
    assert max(sizes) <= 2 * 400 // (8 * (4 + 3)) and sum(sizes) == int((y != -100).sum())
    torch.testing.assert_close(bayes.predict_proba(x), whole.predict_proba(x), rtol=0, atol=1e-12)


def test_tuning_keeps_some_of_very_many_positions(monkeypatch):
    """The standard error of log T from n points is some 1/√n; 1,500 of 6,000 are kept, or more."""
    model = Tokens(3).double()
    model.head.weight.data *= 3
    ids = torch.randint(11, (60, 100))
    labels = torch.distributions.Categorical(logits=model(ids) / 2).sample()
    bayes = bb.Laplace(model, prior_variance=1.0).fit([(ids, labels)])
    every = copy.copy(bayes).tune([(ids, labels)]).temperature
    kept = []
    select = last_layer.HeadLogitsByPrior.select
    monkeypatch.setattr(last_layer, "KEPT_BYTES", 3000 * 8 * 5)
    monkeypatch.setattr(
        last_layer.HeadLogitsByPrior,
        "select",
        lambda self, which: kept.append(len(which)) or select(self, which),
    )
    few = bayes.tune([(a, b) for a, b in zip(ids.split(6), labels.split(6), strict=True)]).temperature
    assert kept and few != every and few == pytest.approx(every, rel=0.2)


def test_sentences_of_several_lengths(tmp_path):
    model = Tokens().double()
    batches = [(IDS, torch.randint(3, (4, 6))), (IDS[:, :3], torch.randint(3, (4, 3)))]
    bayes = bb.Laplace(model, prior_variance=1.0).fit(batches)
    inputs = [x for x, _ in batches]
    assert isinstance(bayes.threshold(inputs), float) and bayes.evaluate(batches)["accuracy"] >= 0
    with pytest.raises(DataError, match=r"have \(6,\) and \(3,\) positions.*one batch at a time"):
        bayes.predict_proba(inputs)
    bayes.save(tmp_path / "tokens.safetensors")
    again = bb.Laplace.load(tmp_path / "tokens.safetensors", model)
    assert torch.equal(again.predict_proba(IDS), bayes.predict_proba(IDS))


def test_a_residual_is_the_same_at_all_positions_of_an_image():
    model, x, y, _, _ = problem("pixels")
    bayes = bb.Laplace(model, prior_variance=1.0, residual=True).fit([(x, y)])
    plain = copy.copy(bayes)
    plain.near_variance = 0.0
    added = bayes.logits(x).covariance - plain.logits(x).covariance
    variances = bayes.known_residual.distances(x).detach().pow(3).mean(1)
    expected = variances.repeat_interleave(20)[:, None, None] * torch.eye(3, dtype=torch.float64)
    torch.testing.assert_close(sum(bayes.explain(x).values()), variances)
    torch.testing.assert_close(added, expected, rtol=0, atol=1e-9 * float(expected.max()))
    torch.testing.assert_close(bayes(x).softmax(1), bayes.predict_proba(x), rtol=0, atol=1e-12)
    far = bayes.predict_proba(1e6 * x)
    torch.testing.assert_close(far, torch.full_like(far, 1 / 3), rtol=0, atol=1e-3)


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("second", ["score", "confidence"])
def test_an_exported_graph_has_the_models_shape(second, residual, tmp_path):
    model, x, y, _, _ = problem("pixels")
    bayes = bb.Laplace(model, prior_variance=1.0, residual=residual).fit([(x, y)])
    bayes.export(tmp_path / "pixels.pt2", x, score=second)
    graph = torch.export.load(tmp_path / "pixels.pt2").module()
    many = torch.cat([x, 2 * x])
    logits, found = graph(many)
    torch.testing.assert_close(logits.softmax(1), bayes.predict_proba(many), rtol=0, atol=1e-12)
    torch.testing.assert_close(found, getattr(bayes, second)(many), rtol=0, atol=1e-12)


def test_a_batch_without_any_label_is_skipped():
    model, x, y, _, _ = problem("tokens")
    nothing = torch.full_like(y, -100)
    bayes = bb.Laplace(model, prior_variance=1.0).fit([(x, nothing), (x, y), (x, nothing)])
    other = bb.Laplace(model, prior_variance=1.0).fit([(x, y)])
    assert torch.equal(bayes.predict_proba(x), other.predict_proba(x))
    for use in (bayes.fit, bayes.tune, bayes.evaluate):
        with pytest.raises(DataError, match="all labels are -100"):
            use([(x, nothing)])


@pytest.mark.parametrize(
    "labels, says",
    [
        (torch.zeros(4, dtype=torch.long), r"labels have shape \(4,\); expected \(4, 6\).*-100"),
        (torch.zeros(4, 5, dtype=torch.long), r"shape \(4, 5\); expected \(4, 6\)"),
        (torch.full((4, 6), 3), "must lie from 0 to 2"),
        (torch.full((4, 6), -1), "must lie from 0 to 2"),
        (IDS, "the labels are the token ids themselves.*shift them"),
        (torch.where(IDS > 4, IDS, -100), "the labels are the token ids themselves"),
    ],
)
def test_labels_that_do_not_fit_are_refused(labels, says):
    with pytest.raises(DataError, match=says):
        bb.Laplace(Tokens()).fit([(IDS, labels)])


def test_masks_as_files_have_them_are_labels():
    model, x, y, _, _ = problem("pixels")
    bayes, other = (bb.Laplace(model, prior_variance=1.0).fit([(x, each)]) for each in (y, y[:, None]))
    assert torch.equal(bayes.predict_proba(x), other.predict_proba(x))


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8])
def test_a_label_of_255_is_refused_with_what_to_write_for_it(dtype):
    model, x, y, _, _ = problem("pixels")
    masked = y.clamp_min(0).to(dtype)
    masked[:, 0] = 255
    with pytest.raises(DataError, match=r"255\]; .*from 0 to 2\. If 255 marks pixels to ignore") as error:
        bb.Laplace(model).fit([(x, masked)])
    names = {"torch": torch, "labels": masked}
    exec(str(error.value).partition("give ")[2], names)  # what the message says to write
    assert bb.Laplace(model).fit([(x, names["labels"])]).posterior.fitted.count == int((masked != 255).sum())


def test_bytes_have_no_label_that_does_not_count():
    """In uint8 -100 would be 156, which is a class."""
    y = torch.full((3, 4, 5), 156, dtype=torch.uint8)
    bayes = bb.Laplace(Pixels(160).double(), structure="diag", prior_variance=1.0).fit([(IMAGES, y)])
    assert bayes.posterior.fitted.count == y.numel()


@pytest.mark.filterwarnings("ignore::bitbayes.errors.EdgeWarning")
def test_predictions_take_the_loader_of_token_ids_and_labels_that_fit_takes(tmp_path):
    model, x, y, _, _ = problem("tokens")
    assert x.shape == y.shape and not x.is_floating_point()
    pairs, inputs = [(x[:2], y[:2]), (x[2:], y[2:])], [x[:2], x[2:]]
    bayes = bb.Laplace(model, prior_variance=1.0).fit(pairs).tune(pairs)
    bayes.save(tmp_path / "tokens.safetensors")
    for each in (bayes, bb.Laplace.load(tmp_path / "tokens.safetensors", model)):
        for name in ("predict_proba", "score", "confidence"):
            assert torch.equal(getattr(each, name)(pairs), getattr(each, name)(inputs))
        assert torch.equal(each.logits(pairs).mean, each.logits(inputs).mean)
        assert torch.equal(each.uncertainty(pairs).entropy, each.uncertainty(inputs).entropy)
        assert torch.equal(each.predict_and_score(pairs)[1], each.predict_and_score(inputs)[1])
        # Positions with the label -100 do not count.
        scores = each.score(x)[y != -100].sort().values
        assert each.threshold(pairs, accept=1.0) == pytest.approx(float(scores[0]))
        outside = each.evaluate(pairs, outliers={"same": pairs})
        assert outside == each.evaluate(pairs, outliers={"same": inputs})
    bayes.tune(pairs, objective="ood", outliers=pairs)


class MaskedTokens(Tokens):
    """A mask beside the ids."""

    def forward(self, ids, mask=None):
        return self.head(self.features(ids) * (1 if mask is None else mask[..., None]))


def test_a_mask_of_tokens_is_never_taken_for_labels():
    """After a fit with a mask, (ids, mask) lacks nothing but the labels; ((ids, mask), labels) has them."""
    y, mask = torch.randint(3, (4, 6)), torch.ones_like(IDS)
    for inputs in ({"ids": IDS, "mask": mask}, (IDS, mask)):
        bayes = bb.Laplace(MaskedTokens(), prior_variance=1.0).fit([(inputs, y)])
        for use in (bayes.predict_proba, bayes.score, bayes.threshold):
            with pytest.raises(DataError, match="the second cannot be labels"):
                use([(IDS, mask)])
        alone = {0: IDS, 1: mask} if isinstance(inputs, tuple) else inputs
        assert torch.equal(bayes.predict_proba([(inputs, y)]), bayes.predict_proba(alone))
    with pytest.warns(UnusedDataWarning, match=r"\['path'\] are left out"):
        bb.Laplace(Tokens()).fit([({"ids": IDS, "path": "a"}, y)])
    bayes = bb.Laplace(Tokens(), prior_variance=1.0).fit([({"ids": IDS}, y)])
    with pytest.warns(UnusedDataWarning, match=r"\['path'\] are left out"):
        assert torch.equal(bayes.score([({"ids": IDS, "path": "a"}, y)]), bayes.score({"ids": IDS}))


def test_what_needs_one_output_for_each_input_says_so():
    model, x, y, _, _ = problem("pixels")
    bayes = bb.Laplace(model, prior_variance=1.0).fit([(x, y)])
    for use in (bayes.limit, bayes.certify, bayes.bound):
        with pytest.raises(ModelError, match=r"one row of logits.*has positions"):
            use(x)
    with pytest.raises(ModelError, match=r"expected \(n, k\); outputs with positions need layers='last'"):
        bb.Laplace(model, layers="all", structure="diag").fit([(x, y)])
    with pytest.raises(DataError, match=r"shape \(2, 4, 5\), which is one row: use x\[None\]"):
        bayes.predict_proba(x[0])

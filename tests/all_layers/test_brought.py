"""Models that users bring: recurrent, squeezed, scripted, half precise, without a graph; and their inputs."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import bitbayes as bb
from bitbayes.errors import DataError, ModelError
from bitbayes.model import find_layers, verify_layers
from dense import close, found_jacobian

STRUCTURES = ["diag", "kron", "full"]


def data(n=6, *shape, dtype=torch.float64, k=3):
    return torch.randn(n, *(shape or (4,)), dtype=dtype), torch.arange(n) % max(2, k)


def mlp(k=3, dtype=torch.float64):
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, k)).to(dtype)


def ours(model, inputs):
    """The Jacobian (n, k, P) as the library finds it, in the order of the parameters."""
    _, layers = verify_layers(model, find_layers(model), inputs)
    return found_jacobian(model, layers, inputs)


def autograd(model, points):
    """The same with the model's own parameters, (n, k, P): one point and one logit at a time."""
    own = list(model.parameters())
    rows = []
    for point in points:
        logits = (model(**point) if isinstance(point, dict) else model(point)).reshape(-1)
        each = [torch.autograd.grad(f, own, retain_graph=True, materialize_grads=True) for f in logits]
        rows.append(torch.stack([torch.cat([g.flatten() for g in gradients]) for gradients in each]))
    return torch.stack(rows)


# ---- modules that cannot be mapped over points


class Recurrent(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.inside, self.head = kind(3, 4, batch_first=True, **options), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.inside(x)[0][:, -1, :4])


class Product(nn.Module):
    """Bilinear in its input and itself, and a slope that is learned."""

    def __init__(self):
        super().__init__()
        self.product, self.slope, self.head = nn.Bilinear(4, 4, 5), nn.PReLU(5), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.slope(self.product(x, x)))


UNMAPPED = {
    "gru": (lambda: Recurrent(nn.GRU), (5, 3)),
    "rnn": (lambda: Recurrent(nn.RNN), (5, 3)),
    "lstm": (lambda: Recurrent(nn.LSTM), (5, 3)),
    "deep": (lambda: Recurrent(nn.GRU, num_layers=2, bidirectional=True), (5, 3)),
    "bilinear": (Product, (4,)),
}


@pytest.mark.parametrize("name", UNMAPPED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_derivatives_of_what_cannot_be_mapped(name, dtype):
    make, shape = UNMAPPED[name]
    model = make().to(dtype).eval()
    x, _ = data(6, *shape, dtype=dtype)
    close(ours(model, x), autograd(model, x.split(1)), 100 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("structure", ["diag", "full"])
@pytest.mark.parametrize("name", UNMAPPED)
def test_predictions_of_what_cannot_be_mapped(name, structure):
    make, shape = UNMAPPED[name]
    model = make().double()
    x, y = data(6, *shape)
    bayes = bb.Laplace(model, layers="all", structure=structure, prior_variance=0.5).fit(
        [(x[:4], y[:4]), (x[4:], y[4:])]
    )
    j = autograd(model, x.split(1))
    p = model(x).softmax(1).detach()
    h = torch.einsum("nkp,nkl,nlq->pq", j, torch.diag_embed(p) - p[:, :, None] * p[:, None], j)
    h = torch.diag(torch.diag(h)) if structure == "diag" else h
    sigma = torch.linalg.inv(h + 2 * torch.eye(len(h), dtype=h.dtype))
    close(bayes.logits(x).covariance, j @ sigma @ j.mT)
    assert bayes.predict_proba(x[:0]).shape == (0, 3)


# ---- inputs


class Flagged(nn.Module):
    """Takes what tokenisers give and users add: ids, a mask for all of them, a flag, nothing."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(7, 4), nn.Linear(4, 3)

    def forward(self, flag, input_ids, weights, extra):
        assert flag is True and extra is None
        return self.head((self.embedding(input_ids) * weights[0, :, None]).tanh().mean(1))


@pytest.mark.parametrize("structure", ["diag", "full"])
def test_a_mapping_may_hold_flags_and_nothing(structure):
    model = Flagged().double()
    ids = torch.randint(7, (6, 5))
    inputs = {"flag": True, "input_ids": ids, "weights": torch.rand(1, 5, dtype=torch.float64), "extra": None}
    points = [{**inputs, "input_ids": ids[i : i + 1]} for i in range(6)]
    close(ours(model, inputs), autograd(model, points), 1e-13)
    bayes = bb.Laplace(model, layers="all", structure=structure).fit([(inputs, torch.arange(6) % 3)])
    separately = torch.cat([bayes.predict_proba(point) for point in points])
    close(bayes.predict_proba(inputs), separately, 1e-12)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("layers", ["last", "all"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("row", [0, 1, 5])
def test_what_is_not_finite_in_the_first_batch_is_said_to_be(structure, layers, bad, row):
    x, y = data()
    x[row] = bad
    with pytest.raises(DataError, match="batch 0 holds NaN or infinity"):
        bb.Laplace(mlp(), layers=layers, structure=structure).fit([(x, y)])


def test_weights_that_are_not_finite_are_named():
    model = mlp()
    model[2].bias.data[0] = float("nan")
    with pytest.raises(DataError, match=r"weights hold NaN or infinity: '2\.bias'"):
        bb.Laplace(model, layers="all").fit([data()])


# ---- outputs


class Squeezed(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.inside = mlp(k)
        self.slope = nn.PReLU(dtype=torch.float64)  # of kind "other"

    def forward(self, x):
        return self.inside(self.slope(x)).squeeze()


@pytest.mark.parametrize("structure", ["diag", "full"])
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("how", ["pairs", "mapping"])
def test_an_output_without_the_axes_of_length_one(k, structure, how):
    model = Squeezed(k)
    x, y = data(k=k)
    batches = [(x[:1], y[:1]), (x[1:], y[1:])]
    if how == "mapping":
        batches = [({"x": a}, b) for a, b in batches]
    bayes = bb.Laplace(model, layers="all", structure=structure).fit(batches)
    plain = bb.Laplace(nn.Sequential(model.slope, model.inside), layers="all", structure=structure).fit(
        [(x, y)]
    )
    whole, one = ({"x": x}, {"x": x[:1]}) if how == "mapping" else (x, x[:1])
    close(bayes.predict_proba(whole), plain.predict_proba(x), 1e-12)
    close(bayes.predict_proba(one), plain.predict_proba(x[:1]), 1e-12)
    every, first = (
        bayes.predict_proba(some, method="weights", generator=torch.Generator().manual_seed(0))
        for some in (whole, one)
    )
    close(first, every[:1], 1e-12)
    close(bayes.logits(x[:1]).covariance, plain.logits(x[:1]).covariance, 1e-12)
    assert bayes(x[:1]).shape == model(x[:1]).shape


def test_an_output_with_too_few_rows_is_refused():
    class Pooled(nn.Linear):
        def forward(self, x):
            return super().forward(x).mean(0, keepdim=True)

    with pytest.raises(ModelError, match=r"shape \(1, 3\) for 2 points: expected \(n, k\)"):
        bb.Laplace(Pooled(4, 3).double(), layers="all", structure="diag").fit([data()])


class Cast(nn.Module):
    """Casts to some precision before its head, and to another after it."""

    def __init__(self, before, after):
        super().__init__()
        self.inside, self.head, self.before, self.after = nn.Linear(4, 5), nn.Linear(5, 3), before, after

    def forward(self, x):
        return self.head(self.inside(x).relu().to(self.before)).to(self.after)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("after", [torch.float64, torch.bfloat16])
def test_an_output_of_another_precision(structure, after):
    model = Cast(torch.float32, after)
    x, y = data(dtype=torch.float32)
    bayes = bb.Laplace(model, layers="all", structure=structure).fit([(x, y)])
    found = bayes.predict_proba(x), bayes.logits(x).covariance, bayes(x)
    model.after = torch.float32
    plain = bb.Laplace(model, layers="all", structure=structure).fit([(x, y)])
    tolerance = 1e-5 if after == torch.float64 else 0.02
    for mine, theirs in zip(
        found, (plain.predict_proba(x), plain.logits(x).covariance, plain(x)), strict=True
    ):
        assert mine.dtype == torch.float32
        close(mine, theirs, tolerance)
    model.after = after
    close(bayes.predict_proba(x, method="weights").sum(1).float(), torch.ones(6), 1e-6)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_forward_that_insists_on_half_precision_is_refused(structure):
    model = Cast(torch.bfloat16, torch.float32).bfloat16()
    x, y = data(dtype=torch.bfloat16)
    with pytest.raises(ModelError, match=r"torch\.bfloat16 are taken in torch\.float32.*x\.to\(self\.weight"):
        bb.Laplace(model, layers="all", structure=structure).fit([(x, y)])


def test_an_error_of_the_model_itself_stays_its_own():
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        bb.Laplace(mlp(), layers="all").fit([data(6, 3)])


# ---- models without derivatives


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("how", ["scripted", "traced", "inside"])
def test_scripted_models_are_refused(structure, how):
    x, y = data()
    model = mlp()
    made = torch.jit.trace(model, x) if how == "traced" else torch.jit.script(model)
    if how == "inside":
        made = nn.Sequential(made, nn.Linear(3, 3).double())
    with pytest.raises(ModelError, match=r"torch\.jit.*layer by layer: give the nn\.Module itself"):
        bb.Laplace(made, layers="all", structure=structure).fit([(x, y)])


class Graphless(nn.Module):
    """Its body leaves no graph, or not at once."""

    def __init__(self, how):
        super().__init__()
        self.first, self.body, self.head, self.how = nn.Linear(4, 5), nn.Linear(5, 5), nn.Linear(5, 3), how

    def forward(self, x):
        x = self.first(x).tanh()
        if self.how == "no_grad":
            with torch.no_grad():
                x = self.body(x)
        elif self.how == "plain":
            x = self.body(x)
        else:
            x = checkpoint(self.body, x, use_reentrant=self.how == "reentrant")
        return self.head(x.tanh())


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("how", ["no_grad", "reentrant"])
def test_a_layer_without_a_graph_is_said_to_have_none(structure, how):
    with pytest.raises(ModelError, match=r"'body' is called without a graph.*use_reentrant=False"):
        bb.Laplace(Graphless(how).double(), layers="all", structure=structure).fit([data()])


@pytest.mark.parametrize("structure", STRUCTURES)
def test_checkpointing_that_is_not_reentrant_changes_nothing(structure):
    model = Graphless("checkpoint").double()
    x, y = data()
    found = bb.Laplace(model, layers="all", structure=structure).fit([(x, y)]).logits(x).covariance
    model.how = "plain"
    close(
        found, bb.Laplace(model, layers="all", structure=structure).fit([(x, y)]).logits(x).covariance, 1e-12
    )


def test_a_model_that_switches_gradients_off_altogether():
    class Off(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside = mlp()

        @torch.no_grad()
        def forward(self, x):
            return self.inside(x)

    with pytest.raises(ModelError, match="no derivatives: does it switch gradients off"):
        bb.Laplace(Off(), layers="all").fit([data()])


# ---- sums in float32


@pytest.mark.parametrize("seed", range(6))  # an eigenvalue that rounds to less than zero does no harm
@pytest.mark.parametrize("structure", ["kron", "full"])
def test_what_the_data_does_not_see_is_left_to_a_wide_prior(structure, seed):
    """One input is the sum of the others: of what that leaves open only the prior knows."""
    torch.manual_seed(seed)
    model = nn.Linear(4, 3)
    x, y = torch.randn(500, 4), torch.arange(500) % 3
    x[:, 3] = x[:, :3].sum(1)
    unseen, wide = torch.tensor([[1.0, 1.0, 1.0, -1.0]]), 1e7
    bayes = bb.Laplace(model, layers="all", structure=structure, prior_variance=wide).fit([(x, y)])
    contrast = torch.tensor([[1.0, -1.0, 0.0]])
    found = contrast @ bayes.logits(unseen).covariance[0] @ contrast.T
    # ‖unseen‖² = 4, ‖contrast‖² = 2. Rounding x leaves N·(6e-8)² ≪ 1/wide to be seen; the bias adds ≪ wide.
    close(found, torch.tensor([[8 * wide]]), 1e-3)

"""Kronecker factors of all layers, against sums over points and positions and against curvlinops."""

import pytest
import torch
from torch import nn

import bitbayes as bb
import dense
from bitbayes.likelihoods import likelihood_for
from bitbayes.model import DenseJacobian
from bitbayes.structures import DiagCurvature
from bitbayes.structures.kron import KronGaussian, squared_components
from curvatures import points, sums
from dense import close, fitted, loader
from reference import logit_hessians


def layer_inputs(model, name, x):
    """A layer's inputs and outputs in each of its calls for one point, and the network's output."""
    seen = []
    handle = model.get_submodule(name).register_forward_hook(lambda _, args, out: seen.append((args[0], out)))
    output = model(x)
    handle.remove()
    return seen, output


def rows(module, inputs, outputs):
    """a (T, i) with the bias's 1, by `nn.functional.unfold`; and how outputs become (T, o)."""
    if isinstance(module, nn.Linear):
        a = inputs.reshape(-1, inputs.shape[-1])
        flat = outputs.reshape(-1, outputs.shape[-1])
    else:
        assert module.groups == 1 and module.padding_mode == "zeros"
        options = {"padding": module.padding, "stride": module.stride, "dilation": module.dilation}
        a = nn.functional.unfold(inputs, module.kernel_size, **options)[0].T
        flat = outputs[0].flatten(1).T
    return (a if module.bias is None else torch.cat([a, torch.ones_like(a[:, :1])], 1)), flat


def kron_block(model, name, x, labels):
    """(Σₙₜ ggᵀ) ⊗ (Σₙₜ aaᵀ)/(N·T), with g along the eigenvectors of each Λₙ: [weight row, bias] by output."""
    module = model.get_submodule(name)
    inner = outer = 0
    count = 0
    for point, label in zip(x, labels, strict=True):
        (seen,), output = layer_inputs(model, name, point[None])
        a, _ = rows(module, *seen)
        inner, count = inner + a.T @ a, count + len(a)
        values, vectors = torch.linalg.eigh(logit_hessians(output.detach(), label[None])[0])
        for value, vector in zip(values.clamp_min(0), vectors.T, strict=True):
            (g,) = torch.autograd.grad((output[0] * vector * value.sqrt()).sum(), seen[1], retain_graph=True)
            _, g = rows(module, seen[0], g)
            outer = outer + g.T @ g
    return torch.kron(outer, inner).detach() / count


def plain_conv():
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1, stride=2),
        nn.Tanh(),
        nn.Conv2d(3, 2, 2, dilation=2),
        nn.Flatten(),
        nn.Linear(2 * 2 * 2, 3),
    ).double()


CASES = {
    "linear": (lambda: dense.mlp().double(), (4,)),
    "convolution": (plain_conv, (2, 7, 7)),
}


def joint(parts):
    """Rows of [weight, bias] by output, (P, P), from a curvature's factors."""
    return torch.kron(parts.outputs[0], parts.inputs[0]) / parts.count


def factors(bayes, name):
    return bayes.posterior.fitted.curvature[name]


@pytest.mark.parametrize("case", CASES)
def test_factors_are_sums_over_points_and_positions(case):
    make, shape = CASES[case]
    model = make()
    x, y = torch.randn(9, *shape, dtype=torch.float64), torch.arange(9) % 3
    bayes = bb.Laplace(model, layers="all", structure="kron").fit(loader(x, y))
    for name in bayes.posterior.names:
        close(joint(factors(bayes, name)), kron_block(model, name, x, y), 1e-10)


@pytest.mark.parametrize("case", CASES)
def test_factors_are_the_kfac_factors_of_curvlinops(case):
    curvlinops = pytest.importorskip("curvlinops")
    make, shape = CASES[case]
    model = make()
    x, y = torch.randn(9, *shape, dtype=torch.float64), torch.arange(9) % 3
    bayes = bb.Laplace(model, layers="all", structure="kron").fit(loader(x, y))
    theirs = curvlinops.KFACLinearOperator(
        model,
        nn.CrossEntropyLoss(reduction="sum"),
        list(model.parameters()),
        [(x, y)],
        fisher_type=curvlinops.FisherType.TYPE2,
        kfac_approx=curvlinops.KFACType.EXPAND,
        separate_weight_and_bias=False,
        check_deterministic=False,
    )
    matrix = theirs @ torch.eye(theirs.shape[1], dtype=torch.float64)
    start = 0
    for layer in bayes.posterior.layers:
        order = torch.arange(layer.size)[None]
        ours_at = torch.cat([part.flatten() for part in layer.split(order).values()])
        block = joint(factors(bayes, layer.name))[ours_at][:, ours_at]
        close(block, matrix[start : start + layer.size, start : start + layer.size], 1e-6)
        start += layer.size
    assert start == len(matrix)


def test_kron_is_exact_for_one_point_and_one_linear_layer():
    model = nn.Linear(4, 3).double()
    x, y = torch.randn(1, 4, dtype=torch.float64), torch.tensor([1])
    new = torch.randn(5, 4, dtype=torch.float64)
    gaussians = [
        bb.Laplace(model, layers="all", structure=structure).fit([(x, y)]).logits(new)
        for structure in ("kron", "full")
    ]
    close(gaussians[0].covariance, gaussians[1].covariance, 1e-10)


@pytest.mark.parametrize("name", ["mlp", "one logit", "convnet", "residual", "sequence"])
def test_logit_covariances_are_those_of_the_dense_kronecker_product(name):
    """The reference takes the library's factors: this checks eigenbasis, prior, groups and norm layers."""
    bayes, model, x, y = fitted(name, "kron", prior_variance=0.3)
    curvature = bayes.posterior.fitted.curvature
    total = 0
    own = dense.parameters(model)
    place, spans = 0, {}
    for key, value in own.items():
        spans[key] = torch.arange(place, place + value.numel())
        place += value.numel()
    j = dense.jacobians(model, x)
    for layer in bayes.posterior.layers:
        order = layer.split(torch.arange(layer.size)[None])
        ours_at = torch.cat([order[key].flatten() for key in layer.names])
        theirs_at = torch.cat([spans[key] for key in layer.names])
        parts = curvature[layer.name]
        if isinstance(parts, DiagCurvature):
            h = torch.diag(parts.diagonal)
        else:
            blocks = [torch.kron(b, a) for b, a in zip(parts.outputs, parts.inputs, strict=True)]
            h = torch.block_diag(*blocks) / parts.count
        sigma = torch.linalg.inv(h + torch.eye(len(h), dtype=h.dtype) / 0.3)[ours_at][:, ours_at]
        part = j[:, :, theirs_at]
        total = total + part @ sigma @ part.mT
    close(bayes.logits(x).covariance, total, 1e-9)
    # A norm's own parameters are the exact diagonal.
    exact = bb.Laplace(model, layers="all", structure="diag").fit(loader(x, y)).posterior.fitted.curvature
    for name, parts in curvature.items():
        if isinstance(parts, DiagCurvature):
            close(parts.diagonal, exact[name].diagonal, 1e-12)


def test_inputs_of_zeros_have_no_rounding_noise_to_flush():
    """Without biases they have no variance at all, and no smallest size among them."""
    model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 2, bias=False))
    x = torch.randn(20, 3)
    bayes = bb.Laplace(model, layers="all", structure="kron").fit([(x, torch.arange(20) % 2)])
    covariance = bayes.logits(torch.zeros(2, 3)).covariance
    # The Gram matrix is lifted by the smallest number, so that it has a root.
    assert float(covariance.abs().max()) < 1e-30


@pytest.mark.parametrize("second", [None, 1e-20])
def test_rounding_noise_of_a_dense_jacobian_is_flushed_by_the_size_of_its_groups(second):
    """Below eps² = 5e-32 of the smallest group's largest number, of both of its axes together."""
    groups = torch.tensor([[[1.0, 1e-30], [1e-33, 0.0]]], dtype=torch.float64)
    if second is not None:
        groups = torch.cat([groups, torch.full((1, 2, 2), second, dtype=torch.float64)])
    same = torch.eye(2, dtype=torch.float64).expand(len(groups), 2, 2)  # rotates nothing
    values = torch.ones(len(groups), 2, dtype=torch.float64)
    rotated = KronGaussian(values, same, values, same, False).rotate(DenseJacobian(groups.reshape(1, 1, -1)))
    expected = groups.clone()
    expected[0, 1, 0] = 0.0 if second is None else 1e-33
    assert torch.equal(rotated.dense().reshape(groups.shape), expected)


class TwoGroups(nn.Module):
    """A convolution with two groups, whose outputs only the head combines."""

    def __init__(self):
        super().__init__()
        self.groups = nn.Conv1d(2, 2, 1, groups=2, bias=False)
        self.head = nn.Linear(2, 2, bias=False)

    def forward(self, x):
        return self.head(self.groups(x[:, :, None]).flatten(1))


def test_groups_of_very_different_size_have_their_float64_covariance():
    torch.manual_seed(0)
    model = TwoGroups()
    x, y = torch.randn(30, 2), torch.arange(30) % 2
    model.groups.weight.data[0] /= 1e16
    x[:, 0] *= 1e16
    single = bb.Laplace(model, layers="all").fit([(x, y)]).logits(x).covariance
    double = bb.Laplace(model.double(), layers="all").fit([(x.double(), y)]).logits(x.double()).covariance
    close(single.double(), double, 1e-5)


@pytest.mark.parametrize("tau", [0.1, 30.0])
@pytest.mark.parametrize("case", CASES)
def test_a_layers_block_has_the_dense_largest_precision_and_covariance(case, tau):
    make, shape = CASES[case]
    model = make()
    x, y = torch.randn(9, *shape, dtype=torch.float64), torch.arange(9) % 3
    bayes = bb.Laplace(model, layers="all", structure="kron").fit(loader(x, y))
    for name, gaussian in bayes.posterior.decomposed().items():
        block = kron_block(model, name, x, y)
        dense_precision = block + tau * torch.eye(len(block), dtype=torch.float64)
        close(gaussian.largest_precision(tau), torch.linalg.eigvalsh(dense_precision)[-1], 1e-10)
        precisions = gaussian.precisions(tau)
        basis = torch.eye(len(block), dtype=torch.float64).reshape(len(block), *precisions.shape)
        roots = gaussian.to_weights(basis * precisions.rsqrt()).flatten(1)
        sigma = torch.linalg.inv(dense_precision)
        close(roots.T @ roots, sigma, 1e-9)
        draws = gaussian.draw(20_000, tau, torch.Generator().manual_seed(0)).flatten(1)
        variances = torch.diag(sigma)
        # Five standard errors of each entry of an empirical covariance.
        standard = ((torch.outer(variances, variances) + sigma.square()) / len(draws)).sqrt()
        assert float(((draws.T @ draws / len(draws) - sigma).abs() / standard).max()) < 5


# ---- the last layer


@pytest.mark.parametrize("k", [1, 3])
def test_the_curvature_of_float32_features_has_the_digits_of_float64(k):
    features, logits, hessians = points(k)
    t, wide = likelihood_for(k).differences(k), features.double()
    found = sums("kron", features, logits)
    expected = {
        "outputs": (t.T @ hessians @ t).sum(0),
        "inputs": wide.T @ wide,
        "count": torch.tensor(50.0).double(),
    }
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_squared_components_below_the_range_of_the_dtype_are_zero(dtype):
    """Denormal numbers would slow a product down."""
    half = torch.tensor([[0.6, 0.8], [-0.8, 0.6]], dtype=torch.float64)
    tiny = torch.finfo(dtype).tiny ** 0.5
    features = torch.tensor([[3.0, 4.0], [0.0, 5.0], [0.0, 0.0], [tiny, tiny]], dtype=dtype)
    found = squared_components(half, features)
    torch.testing.assert_close(found[:2], ((features[:2].double() @ half) ** 2).to(dtype))
    assert found.dtype == dtype and not found[2:].any()

"""The residual at the inputs: its kernel, moments, predictions and files."""

import sys

import pytest
import torch

import bitbayes as bb
from bitbayes.errors import ArgumentError, DataError
from bitbayes.precision import prediction_dtype
from bitbayes.residual import InputMoments, Kernel, as_rows, measurable
from bitbayes.toys import MLP
from ray_cases import laplace, network
from reference import residual_deviations, residual_kernel

CPU = torch.device("cpu")


def root_of(train, x):
    """√k(x) with the moments of the training data, in the working precision of x."""
    moments = InputMoments.of(as_rows(train).double())
    return Kernel.of(moments, CPU, prediction_dtype(x.dtype)).root(as_rows(x))


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-13), (torch.float32, 3e-6)])
def test_the_kernel_is_its_formula(dtype, tolerance):
    """Columns that vary, that never vary, and that vary in few points; in units far apart."""
    train = torch.randn(50, 2, 4) * torch.tensor([0.0, 1.0, 3e3, 1e-4]) + 5
    train[:46, :, 1] = 5
    x = (5 + 10 * torch.randn(7, 2, 4)).to(dtype)
    found = root_of(train, x).square()
    torch.testing.assert_close(found, residual_kernel(x, train), rtol=tolerance, atol=0)


def test_few_digits_are_lost_in_float32_where_the_mean_is_many_deviations():
    """Float32 holds these integers, but their mean only to 5e-4."""
    train = 10_000 + torch.randint(0, 3, (50, 20)).float()
    x = 10_000 + torch.randint(0, 3, (7, 20)).float()
    found = root_of(train, x).square()
    torch.testing.assert_close(found, residual_kernel(x, train), rtol=3e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16])
def test_numbers_of_few_bits_are_measured_in_float32(dtype):
    train, x = torch.randint(0, 256, (2, 40, 1, 4, 4))
    train, x = (100 + train // 8).to(dtype), x.to(dtype)
    found = root_of(train, x).square()
    torch.testing.assert_close(found, residual_kernel(x, train), rtol=3e-6, atol=0)


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e12, 1e13, 1e20, 1e36])
def test_no_cube_leaves_float32(size):
    """Inputs whose cubes are no numbers of float32; small deviations bring x̂ itself out of its range."""
    train = torch.randn(50, 6) * torch.tensor([1e-5, 1.0, 1.0, 1.0, 1.0, 1e3])
    x = size * torch.randn(9, 6)
    found = root_of(train, x).square()
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, residual_kernel(x, train), rtol=3e-6, atol=0)


def test_the_kernel_at_the_mean_is_zero_and_has_a_gradient():
    x = torch.zeros(2, 3, requires_grad=True)
    root = root_of(torch.cat([torch.ones(10, 3), -torch.ones(10, 3)]), x)
    root.sum().backward()
    assert float(root.detach().abs().max()) < 1e-50 and bool(x.grad.isfinite().all())


def test_deviations_do_not_depend_on_units():
    """Each column times its own factor; one of them is not 0 in 12 of 600 points."""
    train = torch.randn(600, 5, dtype=torch.float64)
    train[:, 4] = 0
    train[:12, 4] = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(6)
    units = torch.tensor([1e-8, 1.0, 1e3, 1e9, 1e-5], dtype=torch.float64)
    found = InputMoments.of(train * units).deviations()
    torch.testing.assert_close(found, InputMoments.of(train).deviations() * units, rtol=1e-12, atol=0)
    torch.testing.assert_close(found, residual_deviations(train * units), rtol=1e-12, atol=0)


def test_columns_that_hardly_vary_have_the_floor_of_all():
    train = torch.randn(600, 3, dtype=torch.float64)
    train[:, 1], train[3:, 2] = 7, 0
    train[:3, 2] = 1e-3  # three points are too few to know
    floor = train.var(0, correction=0).mean().sqrt()
    found = InputMoments.of(train).deviations()
    torch.testing.assert_close(found[1:], floor.expand(2), rtol=1e-12, atol=0)
    assert bool((InputMoments.of(torch.ones(4, 2).double()).deviations() == 1).all())


def sums(rows):
    """The count, the mean and the sums of central powers, from all rows at once."""
    gaps = rows - rows.mean(0)
    return [rows.mean(0), *(gaps.pow(power).sum(0) for power in (2, 3, 4))]


@pytest.mark.parametrize("sizes", [(20, 5), (1, 24), (24, 1), (1, 1, 1), (3, 1, 9, 2)])
@pytest.mark.parametrize("mean", [0.0, 3.0, 1e9])
def test_moments_add(mean, sizes):
    torch.manual_seed(0)
    parts = [mean + (1 + i) * torch.randn(n, 3, dtype=torch.float64) for i, n in enumerate(sizes)]
    first, *rest = (InputMoments.of(part) for part in parts)
    total = sum(rest, start=first)
    rows = torch.cat(parts)
    assert float(total.count) == len(rows)
    # A mean of 1e9 is known to 1e-7, and so is every difference from it.
    error = 1e-13 + 4e-16 * mean
    spread = (rows - rows.mean(0)).abs()
    for power, (found, wanted) in enumerate(
        zip(list(total.tensors().values())[1:], sums(rows), strict=True), 1
    ):
        size = spread.amax() ** (power - 1) * len(rows) if power > 1 else 1 + mean * 1e-9
        torch.testing.assert_close(found, wanted, rtol=1e-13, atol=float(4 * power * error * size))


@pytest.mark.parametrize("structure", ["full", "kron", "diag", "isotropic"])
def test_the_residual_adds_an_isotropic_part_to_the_covariance(structure):
    plain, x = laplace("mlp", 3, structure=structure, prior_variance=2.0)
    bayes, _ = laplace("mlp", 3, structure=structure, prior_variance=2.0, residual=True)
    bayes.residual_variance, bayes.residual_threshold = 0.7, 0.2
    x = 3 * x
    extra = 0.7 * (residual_kernel(x, x * 2 / 3) - 0.2).clamp_min(0)
    assert 0 < (extra > 0).sum() < len(x)
    expected = plain.logits(x).covariance + extra[:, None, None] * torch.eye(3)
    torch.testing.assert_close(bayes.logits(x).covariance, expected.to(x.dtype), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(bayes.logits(x).mean, plain.logits(x).mean)


@pytest.mark.parametrize("layers", ["last", "all"])
def test_loaders_drop_in_and_samples_agree_with_the_prediction(layers):
    bayes, x = laplace("mlp", 3, layers=layers, residual=True)
    probs = bayes.predict_proba(2 * x)
    loader = [(part, torch.zeros(len(part))) for part in torch.split(2 * x, 7)]
    torch.testing.assert_close(bayes.predict_proba(loader), probs)
    torch.testing.assert_close(bayes(2 * x).softmax(1), probs)
    sampled = bayes.predict_proba(2 * x, method="mc", samples=20_000)
    torch.testing.assert_close(sampled, probs, rtol=0, atol=0.05)


def test_the_drop_in_with_a_residual_is_differentiable():
    bayes, x = laplace("mlp", 3, residual=True)
    x = (3 * x[:4]).double().requires_grad_()
    bayes.model.double()
    bayes.residual_threshold = 0.1
    assert torch.autograd.gradcheck(lambda x: bayes(x).softmax(1), x, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("layers", ["last", "all"])
def test_predictions_up_to_1e36_times_the_inputs_are_uniform(layers, dtype):
    model = MLP((2, 20, 3)).to(dtype)
    x = torch.randn(30, 2, dtype=dtype)
    bayes = bb.Laplace(model, layers=layers, residual=True).fit([(x, torch.arange(30) % 3)])
    bayes.residual_variance = 1e8
    for delta in (1e10, 1e20, 1e30, 1e36):
        probs = bayes.predict_proba(delta * x)
        torch.testing.assert_close(probs, torch.full_like(probs, 1 / 3), rtol=0, atol=1e-5)


def test_fit_and_update_give_one_fit_and_files_keep_the_residual(tmp_path):
    model, x = network("mlp", 3, 40)
    y = torch.arange(40) % 3
    whole = bb.Laplace(model, residual=True).fit([(x, y)])
    parts = bb.Laplace(model, residual=True).fit([(x[:13], y[:13])]).update([(x[13:], y[13:])])
    torch.testing.assert_close(parts.predict_proba(5 * x), whole.predict_proba(5 * x))
    whole.residual_variance, whole.residual_threshold = 0.3, 2.0
    whole.save(tmp_path / "bayes.safetensors")
    loaded = bb.Laplace.load(tmp_path / "bayes.safetensors", model)
    assert (loaded.residual_variance, loaded.residual_threshold) == (0.3, 2.0)
    torch.testing.assert_close(loaded.predict_proba(5 * x), whole.predict_proba(5 * x), rtol=0, atol=0)


def test_inputs_and_options_without_a_residual_raise():
    bayes = bb.Laplace(torch.nn.Linear(2, 2), residual=True)
    with pytest.raises(ArgumentError, match="int64"):
        bayes.fit([(torch.ones(4, 2, dtype=torch.int64), torch.zeros(4).long())])
    with pytest.raises(ArgumentError, match=r"a mapping without.*residual=False"):
        bayes.fit([{"ids": torch.ones(4, 2).long(), "labels": torch.zeros(4).long()}])
    with pytest.raises(ArgumentError, match="sampled_networks"):
        bb.Laplace(torch.nn.Linear(2, 2), layers="all", predictive="sampled_networks", residual=True)
    with pytest.raises(ArgumentError, match="expected 'auto', True, False"):
        bb.Laplace(torch.nn.Linear(2, 2), residual="yes")
    with pytest.raises(DataError, match="one size"):
        InputMoments.of(torch.ones(3, 2)) + InputMoments.of(torch.ones(3, 4))


class Scaling(torch.nn.Module):
    """Takes images as bytes, as keyword or not, and other tensors that it need not use."""

    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(12, 3)

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
    plain = bb.Laplace(bayes.model, layers=layers).fit([(images // 2, y)])
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
    torch.testing.assert_close(
        bayes.known_residual.root_kernel(inputs).square(), residual_kernel(rows, rows), rtol=3e-6, atol=0
    )
    turned = dict(reversed(inputs.items()))
    assert torch.equal(bayes.predict_proba(turned), bayes.predict_proba(inputs))
    torch.testing.assert_close(bayes(inputs).softmax(1), bayes.predict_proba(inputs))
    far = bayes.predict_proba({**inputs, "extra": 1e30 * extra})
    torch.testing.assert_close(far, torch.full_like(far, 1 / 3), rtol=0, atol=1e-5)
    with pytest.raises(DataError, match="an input of 12 numbers"):
        bayes.predict_proba({"pixels": images})


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


def test_the_kernel_follows_the_inputs_and_is_kept_outside_inference_mode():
    bayes, x = laplace("mlp", 3, residual=True)
    with torch.inference_mode():
        inside = bayes.predict_proba(3 * x)
    x = x.requires_grad_()
    (slope,) = torch.autograd.grad(bayes(3 * x).softmax(1)[:, 0].sum(), x)
    assert bool(slope.isfinite().all()) and bool(slope.any())
    torch.testing.assert_close(bayes.predict_proba(3 * x.detach()), inside, rtol=0, atol=1e-15)
    single, double = (bayes.known_residual.root_kernel(each) for each in (3 * x.detach().float(), 3 * x))
    torch.testing.assert_close(single, double.detach(), rtol=3e-6, atol=0)


class InPlace(torch.nn.Module):
    """Changes its own input, as preprocessing inside a model may."""

    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(2, 3)

    def forward(self, x):
        return self.head(x.mul_(0.5))


def test_the_kernel_is_that_of_the_input_before_the_model_changes_it():
    x, y = torch.randn(30, 2), torch.arange(30) % 3
    bayes = bb.Laplace(InPlace(), residual=True)
    # The first rows are looked at before the pass: a batch of its own is not changed by that.
    bayes.fit([(x[:2].clone(), y[:2]), (x[2:].clone(), y[2:])])
    moments = bayes.posterior.fitted.input_moments
    expected = torch.cat([x[:2] / 2, x[2:]]).double().mean(0)
    torch.testing.assert_close(moments.mean, expected, rtol=1e-6, atol=1e-6)
    bayes.residual_variance = 3.0
    expected = Kernel.of(moments, CPU, x.dtype).root(as_rows(x)).square()
    more = bayes.logits(x.clone()).covariance
    bayes.residual_variance = 1e-30
    found = (more - bayes.logits(x.clone()).covariance).diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(found.double(), 3 * expected[:, None].expand(-1, 3), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layers", ["last", "all"])
def test_inputs_of_another_size_or_kind_are_refused_before_the_model_runs(layers):
    x, y = torch.randn(30, 2), torch.arange(30) % 3
    bayes = bb.Laplace(torch.nn.Linear(2, 3), layers=layers, residual=True).fit([(x, y)])

    def tune(outliers):
        bayes.tune([(x, y)], objective="ood", outliers=outliers)

    for ask in (bayes.predict_proba, bayes.logits, tune):
        with pytest.raises(DataError, match="an input of 5 numbers"):
            ask(torch.ones(4, 5))
        with pytest.raises(ArgumentError, match=r"int64.*residual=False"):
            ask(torch.ones(4, 2, dtype=torch.int64))


@pytest.mark.parametrize("size", [1.0, 1e10, 1e19, 1e25, 1e36])
def test_gradients_through_the_residual_are_finite_far_away(size):
    """Squares of inputs from 1e19 on leave float32."""
    torch.manual_seed(0)
    train = torch.randn(40, 4)
    kernel = Kernel.of(InputMoments.of(train.double()), torch.device("cpu"), torch.float32)
    x = (size * torch.randn(5, 4)).requires_grad_()
    kernel.root(x).log().sum().backward()
    # log √k of a direction is 1.5·log of its size: along x the derivative is 1.5, up to the mean.
    along = (x.grad * x.detach()).sum(1)
    assert bool(x.grad.isfinite().all())
    if size > 1e6:
        torch.testing.assert_close(along, torch.full_like(along, 1.5), rtol=1e-4, atol=0)


def test_numbers_that_all_points_of_a_mapping_share_are_not_measured():
    ids = torch.arange(10).reshape(2, 5)
    assert not measurable({"ids": ids, "scale": torch.rand(3)})
    assert measurable({"ids": ids, "scale": torch.rand(2)})


def test_moments_of_many_rows_are_those_of_few(monkeypatch):
    torch.manual_seed(0)
    x = 5 + torch.randn(37, 4)
    model = torch.nn.Linear(4, 3)
    whole = bb.Laplace(model).fit([(x, torch.arange(37) % 3)]).posterior.fitted.input_moments
    module = sys.modules["bitbayes.residual.levels"]  # its name is also that of a function
    monkeypatch.setattr(module, "MOMENT_NUMBERS", 20)  # five rows at a time
    parts = bb.Laplace(model).fit([(x, torch.arange(37) % 3)]).posterior.fitted.input_moments
    for name, value in whole.tensors().items():
        torch.testing.assert_close(parts.tensors()[name], value, rtol=1e-12, atol=1e-12)


def test_moments_without_a_part_are_those_of_the_rest():
    """One column never varies; another has a mean of many deviations."""
    torch.manual_seed(0)
    rows = torch.randn(60, 4).double() ** 3 * torch.tensor([1.0, 1e3, 0.0, 1.0]) + torch.tensor(
        [0, 5.0, 0.1, 1e3]
    )
    whole, part, rest = (InputMoments.of(each) for each in (rows, rows[:25], rows[25:]))
    left = whole.without(part, max_ratio=1e6)
    for name, expected in rest.tensors().items():
        torch.testing.assert_close(left.tensors()[name], expected, rtol=1e-8, atol=1e-9)
    with pytest.raises(DataError, match="cannot be taken out"):
        whole.without(InputMoments.of(2 * rows[:25]), max_ratio=1e6)
    with pytest.raises(DataError, match="cannot be taken out"):
        whole.without(InputMoments.of(rows[:59]), max_ratio=10)

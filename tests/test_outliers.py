"""Outliers: ranges and seeds of noise, what an attack changes, rotations against other code."""

import math

import pytest
import torch
from scipy import ndimage
from torch import nn

from bitbayes import outliers
from bitbayes.errors import ArgumentError, DataError, ModelError


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def images(n=4, c=2, h=9, w=9, dtype=torch.float64):
    return torch.rand(n, c, h, w, generator=seeded(), dtype=dtype)


# --- uniform noise -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_noise_has_the_items_shape_and_dtype_and_fills_the_range(dtype):
    like = torch.tensor([[-3.0, 0.0, 1.0], [0.0, 5.0, 2.0]], dtype=dtype)
    assert outliers.uniform_noise(like).shape == (2, 3)
    noise = outliers.uniform_noise(like, 4000, generator=seeded())
    assert noise.shape == (4000, 3) and noise.dtype == dtype
    assert noise.min() >= -3 and noise.max() <= 5
    # 12,000 draws: each tail of width 1/100 is empty with probability 0.99¹²⁰⁰⁰ < 1e-52.
    assert noise.min() < -2.9 and noise.max() > 4.9
    # The mean of 12,000 draws has standard deviation 8/√(12 · 12000) = 0.021; bfloat16 rounds by < 0.016.
    assert noise.double().mean().item() == pytest.approx(1.0, abs=0.1)


def test_noise_is_uniform():
    noise = outliers.uniform_noise(torch.tensor([[2.0, 4.0]]), 20_000, generator=seeded()).double().flatten()
    empirical = torch.linspace(0, 1, len(noise), dtype=torch.float64)
    distance = ((noise.sort().values - 2) / 2 - empirical).abs().max().item()
    assert distance < 1.95 / math.sqrt(len(noise))  # Kolmogorov-Smirnov: exceeded once in 1,000


def test_noise_follows_its_generator_alone():
    like = images()
    first, again = (outliers.uniform_noise(like, generator=seeded(1)) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, outliers.uniform_noise(like, generator=seeded(2)))
    state = torch.get_rng_state()
    outliers.uniform_noise(like, generator=seeded(1))
    assert torch.equal(state, torch.get_rng_state())


def test_noise_over_the_whole_range_of_float32_stays_finite():
    largest = torch.finfo(torch.float32).max
    noise = outliers.uniform_noise(torch.tensor([[-largest, largest]]), 1000, generator=seeded())
    assert noise.isfinite().all() and noise.min() < 0 < noise.max()


def test_noise_carries_no_gradient():
    assert not outliers.uniform_noise(images().requires_grad_()).requires_grad


@pytest.mark.parametrize(
    "like, message",
    [
        (torch.tensor([[1, 2]]), "int64.*indices mean nothing"),
        (torch.tensor(1.0), r"shape \(\)"),
        (torch.empty(0, 3), r"shape \(0, 3\)"),
        (torch.full((2, 3), 0.5), "every entry of the data is 0.5.*outliers of your own"),
        (torch.tensor([[0.0, math.nan]]), "NaN or infinity"),
        (torch.tensor([[0.0, math.inf]]), "NaN or infinity"),
    ],
)
def test_noise_over_data_without_a_range_raises(like, message):
    with pytest.raises(DataError, match=message):
        outliers.uniform_noise(like)


@pytest.mark.parametrize("n", [0, -1])
def test_no_noise_items_raise(n):
    with pytest.raises(ArgumentError, match=f"n={n}"):
        outliers.uniform_noise(images(), n)


def test_far_away_points_are_delta_times_x():
    x = images()
    assert torch.equal(outliers.far_away(x, 2000), 2000 * x)


# --- attack ------------------------------------------------------------------------------------------------


class OneFlatLogit(nn.Linear):
    """Logits of shape (n,)."""

    def forward(self, x):
        return super().forward(x).squeeze(-1)


def network(outputs=3):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        hidden = [nn.Linear(5, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout()]
        return nn.Sequential(*hidden, nn.Linear(16, outputs))


def log_confidence(model, x):
    model.eval()
    with torch.no_grad():
        logits = model(x)
        if logits.dim() == 1 or logits.shape[1] == 1:
            return nn.functional.logsigmoid(logits.view(len(x)).abs())
        return logits.log_softmax(-1).max(-1).values


@pytest.mark.parametrize("outputs", [1, 2, 3])
@pytest.mark.parametrize("bounds", [(0.0, 1.0), None])
def test_attack_is_more_confident_and_stays_in_ball_and_bounds(outputs, bounds):
    model, x = network(outputs), torch.rand(50, 5, generator=seeded())
    attacked = outliers.pgd_confident(model, x, epsilon=0.2, bounds=bounds)
    assert not attacked.requires_grad
    assert (attacked - x).abs().max() <= 0.2 + 2**-23  # one rounding of x ± ε near 1
    assert (attacked - x).abs().max() >= 0.2 - 2**-23
    if bounds is None:
        assert attacked.min() < 0 and attacked.max() > 1
    else:
        assert attacked.min() >= 0 and attacked.max() <= 1
    before, after = log_confidence(model, x), log_confidence(model, attacked)
    assert (after > before).all()


@pytest.mark.parametrize("layer", [nn.Linear, OneFlatLogit])
def test_attack_on_one_linear_logit_finds_the_corner(layer):
    """|w·x + b| over a box is largest at x + ε · sign(w) · sign(w·x + b)."""
    model = layer(5, 1).double()
    x = torch.randn(20, 5, generator=seeded(), dtype=torch.float64)
    # Steps of ε cannot leave the side they start on: moving outwards only makes |f| larger.
    attacked = outliers.pgd_confident(model, x, epsilon=0.25, steps=3, step_size=0.25, bounds=None)
    sign = model(x).detach().view(20, 1).sign()
    torch.testing.assert_close(attacked, x + 0.25 * model.weight.detach().sign() * sign, rtol=0, atol=1e-15)


def test_attack_leaves_a_tie_between_classes():
    model = nn.Linear(5, 1, bias=False)
    attacked = outliers.pgd_confident(model, torch.zeros(3, 5), bounds=None)
    assert (log_confidence(model, attacked) > math.log(0.5)).all()


class Wave(nn.Module):
    """A logit whose confidence peaks every π/40 = 0.079."""

    def forward(self, x):
        return torch.cos(40 * x).sum(-1, keepdim=True)


def test_attack_never_ends_below_its_start_even_when_its_steps_overshoot():
    model = Wave()
    x = 0.4 + 0.2 * torch.rand(200, 1, generator=seeded(), dtype=torch.float64)
    start = log_confidence(model, x)
    attacked = outliers.pgd_confident(model, x, epsilon=0.09, steps=5, step_size=0.09)
    assert (log_confidence(model, attacked) >= start).all()
    # Rows are kept one by one: a step of 0.09 passes the next peak and helps only those far from their own.
    moved = (attacked != x).any(-1)
    assert 0 < moved.sum() < len(x)


@pytest.mark.parametrize("adaptive", [False, True])
def test_steps_of_the_ascent_after_better_equal_and_worse_scores(adaptive):
    """The three rows have a better, an equal and a worse score."""
    state = outliers.start_ascent(torch.full((3, 2), 0.5), epsilon=0.4, step_size=0.2, bounds=(0.0, 0.8))
    start = state.current
    state = outliers.ascend(state, torch.tensor([[1.0, -1.0]] * 3), torch.zeros(3), adaptive=adaptive)
    assert torch.equal(state.best, start)  # any score is better than none
    moved = state.current
    size = 1.1 * 0.2 if adaptive else 0.2
    torch.testing.assert_close(moved, start + size * torch.tensor([1.0, -1.0]))
    state = outliers.ascend(state, torch.ones(3, 2), torch.tensor([1.0, 0.0, -1.0]), adaptive=adaptive)
    improved = [0, 1] if adaptive else [0]
    expected_best, expected = start.clone(), moved + size
    expected_best[improved] = moved[improved]
    if adaptive:
        expected = moved + 1.1 * size
        expected[2] = start[2] + size / 2 * torch.tensor([1.0, -1.0])
    assert torch.equal(state.best, expected_best)
    torch.testing.assert_close(state.current, expected.clamp(0.1, 0.8))


def test_attack_with_no_steps_or_no_room_gives_x():
    x = torch.rand(3, 5, generator=seeded())
    assert torch.equal(outliers.pgd_confident(network(), x, steps=0), x)
    assert torch.equal(outliers.pgd_confident(network(), x, epsilon=0.0), x)


def test_attack_leaves_modes_parameters_gradients_and_buffers_alone():
    model = network().train()
    model[1].eval()
    model[0].weight.requires_grad_(False)
    model[4].weight.grad = torch.full_like(model[4].weight, 7.0)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    x = torch.rand(4, 5, generator=seeded())
    kept = x.clone()
    outliers.pgd_confident(model, x)
    assert [m.training for m in model.modules()] == [True, True, False, True, True, True]
    assert [p.requires_grad for p in model.parameters()] == [False, True, True, True, True, True]
    assert [p.grad is None for p in model.parameters()] == [True, True, True, True, False, True]
    assert (model[4].weight.grad == 7).all()
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert torch.equal(x, kept) and not x.requires_grad and x.grad is None


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_attack_works_where_gradients_are_off(context):
    model, x = network(), torch.rand(4, 5, generator=seeded())
    expected = outliers.pgd_confident(model, x)
    with context():
        assert torch.equal(outliers.pgd_confident(model, x + 0), expected)


def test_attack_takes_images():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2 * 4 * 4, 3))
    x = torch.rand(5, 1, 6, 6, generator=seeded())
    attacked = outliers.pgd_confident(model, x, steps=5)
    assert attacked.shape == x.shape
    assert (log_confidence(model, attacked) > log_confidence(model, x)).all()


class Broken(nn.Module):
    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def forward(self, x):
        return self.answer(x)


@pytest.mark.parametrize(
    "answer, message",
    [
        (lambda x: x[:, None], r"\(3, 1, 5\)"),
        (lambda x: x.sum(), r"\(\)"),
        (lambda x: x.detach(), "no gradient"),
    ],
)
def test_attack_on_something_that_gives_no_logits_raises_and_restores_the_mode(answer, message):
    model = Broken(answer).train()
    with pytest.raises(ModelError, match=message):
        outliers.pgd_confident(model, torch.rand(3, 5))
    assert model.training


@pytest.mark.parametrize(
    "x, message",
    [
        (torch.tensor([[1, 0]]), "int64"),
        (torch.tensor(0.5), r"shape \(\)"),
        (torch.tensor([[0.0, 2.0]]), r"0 to 2, outside bounds=\(0.0, 1.0\).*bounds=None"),
        (torch.tensor([[0.0, math.nan]]), "outside bounds"),
    ],
)
def test_attack_on_bad_input_raises(x, message):
    with pytest.raises(DataError, match=message):
        outliers.pgd_confident(nn.Linear(2, 2), x)


@pytest.mark.parametrize(
    "name, value", [("epsilon", -0.1), ("epsilon", math.nan), ("steps", -1), ("step_size", 0.0)]
)
def test_attack_with_bad_numbers_raises(name, value):
    with pytest.raises(ArgumentError, match=f"{name}={value}"):
        outliers.pgd_confident(network(), torch.rand(2, 5), **{name: value})


# --- rotation ----------------------------------------------------------------------------------------------

# Coordinates within an image of side s carry a few roundings of size s · ε, and bilinear interpolation turns
# a shift by t pixels into a change of at most 2 t for pixels in [0, 1].


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("side", [2, 9, 28])
@pytest.mark.parametrize("turns", [-1, 0, 1, 2, 3, 4])
def test_quarter_turns_are_rot90(dtype, side, turns):
    x = images(h=side, w=side, dtype=dtype)
    turned = outliers.rotate(x, 90 * turns)
    assert turned.dtype == dtype
    torch.testing.assert_close(
        turned, torch.rot90(x, turns, dims=(2, 3)), rtol=0, atol=8 * side * torch.finfo(dtype).eps
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_loses_one_rounding(dtype):
    x = images(h=28, w=28, dtype=dtype)
    expected = torch.rot90(x, 1, dims=(2, 3))
    torch.testing.assert_close(outliers.rotate(x, 90), expected, rtol=torch.finfo(dtype).eps, atol=1e-5)


@pytest.mark.parametrize("degrees", [0, 17, 45, -30, 180, 200, 90])
@pytest.mark.parametrize("shape", [(9, 9), (8, 8), (7, 12), (12, 7)])
def test_any_angle_and_oblong_images_agree_with_scipy(degrees, shape):
    x = images(n=2, c=2, h=shape[0], w=shape[1])
    expected = ndimage.rotate(
        x.numpy(), degrees, axes=(3, 2), reshape=False, order=1, mode="grid-constant", cval=0.0
    )
    torch.testing.assert_close(
        outliers.rotate(x, degrees), torch.from_numpy(expected), rtol=0, atol=16 * max(shape) * 2**-52
    )


def test_a_point_right_of_the_centre_goes_up():
    x = torch.zeros(1, 1, 5, 5)
    x[0, 0, 2, 4] = 1
    assert outliers.rotate(x, 90)[0, 0].round().nonzero().tolist() == [[0, 2]]


@pytest.mark.parametrize("x", [torch.rand(3, 5, 5), torch.ones(1, 1, 5, 5, dtype=torch.uint8)])
def test_rotating_something_else_raises(x):
    with pytest.raises(DataError, match=r"\(n, c, h, w\)"):
        outliers.rotate(x, 10)

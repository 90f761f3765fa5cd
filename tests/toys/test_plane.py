import numpy as np
import pytest
import torch
from sklearn.datasets import make_blobs, make_moons

from bitbayes.errors import ArgumentError
from bitbayes.toys import gaussians, two_moons

ROUNDING = {"rtol": 2**-23, "atol": 1e-7}  # float64 points rounded to float32


def close(found, expected):
    np.testing.assert_allclose(found.numpy(), expected, **ROUNDING)


@pytest.mark.parametrize("n", [2, 3, 90, 91])
def test_moons_without_noise_have_scikit_learns_geometry(n):
    x, y = two_moons(n, noise=0.0)
    expected_x, expected_y = make_moons(n, shuffle=False, noise=None)
    assert x.dtype == torch.float32 and y.dtype == torch.int64
    close(x, expected_x)
    assert y.tolist() == expected_y.tolist()


@pytest.mark.parametrize("n, noise, seed", [(90, 0.1, 66), (200, 0.05, 1), (7, 0.3, 5)])
def test_moons_are_the_papers_points(n, noise, seed):
    x, y = two_moons(n, noise=noise, seed=seed)
    expected_x, expected_y = make_moons(n, noise=noise, random_state=seed)
    order = np.random.RandomState(seed).permutation(n)
    close(x[order], expected_x)
    assert y[order].tolist() == expected_y.tolist()


def test_the_default_moons_are_the_papers_training_set():
    for found, expected in zip(two_moons(), two_moons(90, noise=0.1, seed=66), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize(
    "n, classes, std, box, seed",
    [(90, 2, 0.7, (4.0, 7.5), 62), (500, 4, 1.2, (-10.0, 10.0), 37), (10, 4, 1.0, (0.0, 1.0), 0)],
)
def test_gaussians_are_the_papers_points(n, classes, std, box, seed):
    x, y = gaussians(n, classes=classes, std=std, box=box, seed=seed)
    expected_x, expected_y = make_blobs(
        n, centers=classes, cluster_std=std, center_box=box, random_state=seed, shuffle=False
    )
    assert x.dtype == torch.float32 and y.dtype == torch.int64
    close(x, expected_x)
    assert y.tolist() == expected_y.tolist()


def test_the_default_gaussians_are_the_papers_binary_set():
    defaults = gaussians(90, classes=2, std=0.7, box=(4.0, 7.5), seed=62)
    for found, expected in zip(gaussians(), defaults, strict=True):
        assert torch.equal(found, expected)


def test_gaussians_without_spread_are_their_centres_in_the_box():
    x, y = gaussians(30, classes=3, std=0.0, box=(-1.0, 2.0), seed=4)
    for label in range(3):
        assert len(x[y == label].unique(dim=0)) == 1
    assert x.min() >= -1 and x.max() <= 2


@pytest.mark.parametrize("toy", [two_moons, gaussians])
def test_toys_depend_on_the_seed_alone(toy):
    torch.manual_seed(0)
    np.random.seed(0)
    first, _ = toy(seed=1)
    torch.manual_seed(1)
    np.random.seed(1)
    again, _ = toy(seed=1)
    other, _ = toy(seed=2)
    assert torch.equal(first, again) and not torch.equal(first, other)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: two_moons(1), "n=1 "),
        (lambda: two_moons(noise=-0.1), "noise=-0.1 "),
        (lambda: two_moons(noise=float("nan")), "noise=nan "),
        (lambda: gaussians(3, classes=4), "classes=4"),
        (lambda: gaussians(classes=0), "classes=0"),
        (lambda: gaussians(std=-1.0), "std=-1.0 "),
        (lambda: gaussians(box=(1.0, 0.0)), r"box=\(1.0, 0.0\) "),
    ],
)
def test_impossible_toys_say_what_was_given(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()

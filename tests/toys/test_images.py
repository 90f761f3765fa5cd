import dataclasses

import pytest
import torch

from bitbayes.errors import ArgumentError
from bitbayes.toys import digits, validation_split
from bitbayes.toys.images import FASHION_NAMES

IMAGES = {"train_images": 5000, "test_images": 2000, "fashion_images": 1000, "letters_images": 1000}


@pytest.fixture(scope="module")
def data():
    return digits()


@pytest.mark.parametrize("name, count", IMAGES.items())
def test_images_are_float32_between_zero_and_one(data, name, count):
    images = getattr(data, name)
    assert images.shape == (count, 1, 28, 28)
    assert images.dtype == torch.float32
    assert images.min() == 0 and images.max() == 1
    # A byte divided by 255 in float32 is off by at most half a unit in the last place, 2⁻²⁴ of 255.
    torch.testing.assert_close(images * 255, (images * 255).round(), rtol=0, atol=255 * 2**-24)


@pytest.mark.parametrize("part, per_class", [("train", 500), ("test", 200)])
def test_labels_are_balanced_and_in_random_order(data, part, per_class):
    labels = getattr(data, f"{part}_labels")
    assert labels.dtype == torch.int64
    assert labels.bincount().tolist() == [per_class] * 10
    # In random order the first 100 labels miss a given digit with probability below 0.9¹⁰⁰ = 3e-5.
    assert len(labels[:100].unique()) == 10


def test_images_carry_their_labels(data):
    means = torch.stack([data.train_images[data.train_labels == label].mean(dim=0) for label in range(10)])
    nearest = torch.cdist(data.test_images.flatten(1), means.flatten(1)).argmin(dim=1)
    # The nearest class mean is right on about 80% of MNIST; shuffled labels would give 10%.
    assert (nearest == data.test_labels).float().mean() > 0.7


@pytest.mark.parametrize("name, classes", [("fashion", len(FASHION_NAMES)), ("letters", 26)])
def test_images_that_are_no_digits_carry_labels_of_their_own(data, name, classes):
    images, labels = (getattr(data, f"{name}_{part}") for part in ("images", "labels"))
    assert labels.dtype == torch.int64 and sorted(set(labels.tolist())) == list(range(classes))
    flat = images.flatten(1)
    means = torch.stack([flat[labels == label].mean(0) for label in range(classes)])
    right = torch.cdist(flat, means).argmin(1) == labels
    assert right.float().mean() > 0.5  # shuffled labels would give one in `classes`


def test_no_image_comes_twice(data):
    images = torch.cat([getattr(data, name) for name in IMAGES]).flatten(1)
    assert len({image.numpy().tobytes() for image in images}) == sum(IMAGES.values())


def test_the_digits_cannot_be_replaced_but_each_call_gives_its_own(data):
    with pytest.raises(dataclasses.FrozenInstanceError):
        data.train_images = data.test_images
    other = digits()
    other.train_images.zero_()
    assert data.train_images.sum() > 0 and digits().train_images.sum() > 0


def test_validation_split_parts_the_points():
    images, labels = torch.arange(20.0)[:, None], torch.arange(20)
    (first, first_labels), (rest, rest_labels) = validation_split(images, labels, 5, seed=3)
    assert len(first) == len(first_labels) == 5 and len(rest) == len(rest_labels) == 15
    assert torch.equal(first[:, 0].long(), first_labels) and torch.equal(rest[:, 0].long(), rest_labels)
    assert torch.equal(torch.cat([first_labels, rest_labels]).sort().values, labels)
    assert not torch.equal(first_labels, labels[:5])


def test_validation_split_depends_on_the_seed_alone():
    points = torch.arange(100)
    torch.manual_seed(0)
    (first, _), _ = validation_split(points, points, 50, seed=1)
    torch.manual_seed(1)
    (again, _), _ = validation_split(points, points, 50, seed=1)
    (other, _), _ = validation_split(points, points, 50, seed=2)
    assert torch.equal(first, again) and not torch.equal(first, other)


@pytest.mark.parametrize("n", [-1, 0, 4, 5])
def test_validation_split_refuses_an_empty_part(n):
    with pytest.raises(ArgumentError, match=f"n={n} .* 1 to 3"):
        validation_split(torch.zeros(4, 2), torch.zeros(4), n, seed=0)


def test_validation_split_refuses_labels_of_another_number():
    with pytest.raises(ArgumentError, match="4 images with 3 labels"):
        validation_split(torch.zeros(4, 2), torch.zeros(3), 1, seed=0)

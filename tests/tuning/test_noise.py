"""The uniform noise that tuning uses when it is given no outliers."""

import math

import pytest
import torch
from torch import nn

import bitbayes as bb
from bitbayes.errors import ArgumentError, DataError
from bitbayes.tuning.noise import NoiseLike


class WordModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(9, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, ids):
        return self.head(self.embedding(ids).mean(1))


@pytest.fixture(params=[True, False], ids=["mapping", "tensor"])
def words(request):
    """A Laplace fitted to words, its loader, and their inputs: in a mapping, or as they are."""
    ids, y = torch.randint(9, (30, 5)), torch.arange(30) % 3
    loader = [{"ids": ids, "labels": y}] if request.param else [(ids, y)]
    return bb.Laplace(WordModel()).fit(loader), loader, {"ids": ids} if request.param else ids


def test_tuning_on_integer_inputs_and_mappings_asks_for_outliers(words):
    bayes, loader, inputs = words
    before = bayes.predict_proba(inputs)
    with pytest.raises(ArgumentError, match="outliers"):
        bayes.tune(loader, objective="ood")
    assert bayes.prior_variance == 1.0
    assert torch.equal(bayes.predict_proba(inputs), before)


@pytest.mark.filterwarnings("ignore::bitbayes.errors.EdgeWarning")
def test_integer_inputs_and_mappings_are_tuned_with_outliers_or_without(words):
    bayes, loader, inputs = words
    outliers = inputs[:7] if isinstance(inputs, torch.Tensor) else [{"ids": inputs["ids"][:7]}]
    bayes.tune(loader, objective="ood", outliers=outliers)
    bayes.tune(loader, objective="nll")
    bayes.tune(loader)
    assert bayes.known_residual.names == ("head", "classes")  # ids have no distance
    assert bayes.near_variance > 0


def test_noise_has_the_shapes_and_dtype_of_the_batches_and_the_range_of_all():
    batches = torch.rand(40, 3, 5), 4 + torch.rand(7, 3, 5), torch.rand(1, 3, 5) - 2
    noise = NoiseLike()
    for batch in batches:
        noise += NoiseLike.of(batch)
    drawn = list(noise)
    assert len(noise) == len(drawn) == 3
    assert [each.shape for each in drawn] == [each.shape for each in batches]
    assert {each.dtype for each in drawn} == {torch.float32}
    low, high = (float(f(torch.cat(batches))) for f in (torch.min, torch.max))
    # Over the range of all batches in each of them, wherever its own values lie.
    for each in drawn:
        unit = ((each - low) / (high - low)).flatten()
        assert float(unit.min()) >= 0 and float(unit.max()) <= 1
        # The mean of n uniform numbers, within five standard errors.
        assert abs(float(unit.mean()) - 0.5) < 5 * math.sqrt(1 / 12 / len(unit))
        assert float(unit.min()) < 0.35 and float(unit.max()) > 0.65
    assert not torch.equal(drawn[0][:7], drawn[1])


def test_noise_is_seeded_and_leaves_the_global_random_state_alone():
    x = torch.randn(9, 4, dtype=torch.float64)
    before = torch.get_rng_state()
    first = list(NoiseLike.of(x) + NoiseLike.of(3 * x))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(123)
    noise = NoiseLike.of(x) + NoiseLike.of(3 * x)
    for again in (list(noise), list(noise)):
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_noise_does_not_depend_on_the_order_of_sums():
    x, y, z = (torch.randn(4, 2) for _ in range(3))
    left = (NoiseLike.of(x) + NoiseLike.of(y)) + NoiseLike.of(z)
    right = NoiseLike.of(x) + (NoiseLike.of(y) + NoiseLike.of(z))
    assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def test_noise_like_constant_data_raises():
    constant = NoiseLike.of(torch.full((5, 2), 0.25)) + NoiseLike.of(torch.full((3, 2), 0.25))
    with pytest.raises(DataError, match=r"every entry of the data is 0\.25"):
        list(constant)
    # Two constants have a range between them.
    (first, _) = NoiseLike.of(torch.zeros(50, 2)) + NoiseLike.of(torch.ones(3, 2))
    assert 0 <= float(first.min()) < 0.2 and 0.8 < float(first.max()) <= 1


@pytest.mark.parametrize(
    "inputs, kind",
    [
        (torch.arange(6).reshape(3, 2), "torch.int64"),
        (torch.zeros(3, 2, dtype=torch.uint8), "torch.uint8"),
        (torch.zeros(3, 2, dtype=torch.bool), "torch.bool"),
        ({"x": torch.randn(3, 2)}, "dict"),
    ],
)
def test_noise_like_integers_and_mappings_raises(inputs, kind):
    with pytest.raises(ArgumentError, match=f"{kind}.*pass `outliers`"):
        NoiseLike.of(inputs)


def test_tuning_on_constant_inputs_asks_for_outliers():
    x, y = torch.ones(12, 4), torch.arange(12) % 3
    bayes = bb.Laplace(nn.Linear(4, 3)).fit([(x, y)])
    with pytest.raises(DataError, match="outliers of your own"):
        bayes.tune([(x, y)], objective="ood")
    assert bayes.prior_variance == 1.0


def test_noise_moves_to_another_device_and_keeps_its_shapes():
    noise = NoiseLike.of(torch.randn(4, 2)) + NoiseLike.of(torch.randn(3, 2))
    moved = noise.to(torch.device("meta"))
    assert [each.device.type for each in moved.range] == ["meta", "meta"]
    assert moved.shapes == noise.shapes == (torch.Size([4, 2]), torch.Size([3, 2]))


def test_several_processes_draw_the_noise_of_one_alone():
    every = [NoiseLike.of(torch.randn(4, 2)), NoiseLike(), NoiseLike.of(torch.randn(3, 2))]
    alone = [*(every[0] + every[2])]
    shares = [each for rank in range(3) for each in NoiseLike.share(every, rank)]
    assert len(shares) == 2 and all(torch.equal(a, b) for a, b in zip(alone, shares, strict=True))

"""Networks that change their inputs in place, and loaders that fill the same tensors again."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bitbayes as bb

Arrays = tuple[Tensor, Tensor]


class Standardised(nn.Module):
    """A linear layer on (x − 1)/2, which may be computed in the tensor x itself."""

    def __init__(self, *, in_place: bool) -> None:
        super().__init__()
        self.head, self.in_place = nn.Linear(2, 2), in_place
        with torch.no_grad():
            self.head.weight.copy_(torch.tensor([[1.0, 0.0], [-1.0, 0.5]]))
            self.head.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(x.sub_(1.0).div_(2.0) if self.in_place else (x - 1.0) / 2.0)
        return logits


class OneBuffer:
    """A loader whose batches are all in the same two tensors."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __iter__(self) -> Iterator[list[Tensor]]:
        x, y = torch.empty(20, 2), torch.empty(20, dtype=torch.int64)
        for start in range(0, len(self.x), 20):
            yield [x.copy_(self.x[start : start + 20]), y.copy_(self.y[start : start + 20])]


@pytest.fixture(autouse=True)
def _short_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bitbayes.auditing.costs.ENOUGH_SECONDS", 0.01)


def points(seed: int) -> Arrays:
    y = torch.arange(60) % 2
    x = 1 + torch.randn(60, 2, generator=torch.Generator().manual_seed(seed))
    return x + torch.tensor([[2.0, 0.0], [-2.0, 0.0]])[y], y


def measured(model: nn.Module, sets: list[Any], outliers: Tensor) -> Any:
    train, validation, test = sets
    models: dict[str, Any] = {"net": model, "call": lambda x: model(x).softmax(1)}
    found = bb.audit(models, train, validation, test, {"o": outliers})
    return found.test, found.outliers, found.chosen, found.validation_nll, found.prior_curve, found.checks


def test_a_network_that_changes_its_inputs_has_the_same_audit_and_changes_no_data() -> None:
    sets = [points(seed) for seed in range(3)]
    outliers = 5 * torch.randn(30, 2, generator=torch.Generator().manual_seed(9))
    expected = measured(Standardised(in_place=False), [*sets], outliers)
    given = [(x.clone(), y.clone()) for x, y in sets]
    mine = outliers.clone()
    assert measured(Standardised(in_place=True), [*given], mine) == expected
    assert torch.equal(mine, outliers)
    assert all(torch.equal(own[0], x) for own, (x, _) in zip(given, sets, strict=True))


def test_a_loader_that_fills_the_same_tensors_again_has_the_same_audit() -> None:
    sets, model = [points(seed) for seed in range(3)], Standardised(in_place=False)
    lists = [[(x[i : i + 20], y[i : i + 20]) for i in range(0, 60, 20)] for x, y in sets]
    outliers = torch.zeros(30, 2)
    expected = measured(model, [*lists], outliers)
    assert measured(model, [OneBuffer(*each) for each in sets], outliers) == expected

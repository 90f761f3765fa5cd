"""Outputs with squeezed axes, with too few rows, or replaced; and recorded inputs."""

import pytest
import torch
from torch import nn

import bitbayes as bb
from bitbayes.errors import ModelError
from bitbayes.model.running.calls import recorded_inputs, replaced_outputs
from classifiers import points, relu_mlp
from dense import close


class Squeezed(nn.Module):
    """A network whose output has no axes of length one."""

    def __init__(self, k):
        super().__init__()
        self.inside = relu_mlp(k, torch.float64)
        self.slope = nn.PReLU(dtype=torch.float64)  # of kind "other"

    def forward(self, x):
        return self.inside(self.slope(x)).squeeze()


@pytest.mark.parametrize("structure", ["diag", "full"])
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("how", ["pairs", "mapping"])
def test_an_output_whose_axes_of_length_one_are_squeezed_away(k, structure, how):
    model = Squeezed(k)
    x, y = points(6, k=k, dtype=torch.float64)
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
        bayes.predict_proba(some, method="sampled_networks", generator=torch.Generator().manual_seed(0))
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
        bb.Laplace(Pooled(4, 3).double(), layers="all", structure="diag").fit(
            [points(6, dtype=torch.float64)]
        )


def test_replaced_outputs_are_made_of_the_modules_input_and_output():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x):
            return self.second(input=self.first(x))

    model, x, seen = Twice(), torch.randn(3, 2), []

    def replace(name, given, output):
        seen.append((name, given, output))
        return 10 * given + output

    plain = model(x)
    with replaced_outputs({"first": model.first, "second": model.second}, replace):
        found = model(x)
    (_, first_input, first), (_, second_input, second) = seen
    assert [name for name, _, _ in seen] == ["first", "second"]
    torch.testing.assert_close(first_input, x)
    torch.testing.assert_close(first, model.first(x))
    torch.testing.assert_close(second_input, 10 * x + model.first(x))
    torch.testing.assert_close(second, model.second(second_input))
    torch.testing.assert_close(found, 10 * second_input + second)
    assert torch.equal(model(x), plain)  # only inside of the block


def test_recorded_inputs_are_those_before_each_call():
    layer = nn.Linear(2, 2)
    model, x = nn.Sequential(layer, nn.ReLU(inplace=True), layer, nn.Linear(2, 1)), torch.randn(3, 2)
    with recorded_inputs(model, ["0", "1"], lambda value: value.detach().clone()) as recorded:
        model(x)
    first = layer(x)
    assert recorded.keys() == {"0", "1"}
    # The shared layer is called twice, and what works in place is shown as it was before.
    torch.testing.assert_close(torch.stack(recorded["0"]), torch.stack([x, first.relu()]))
    torch.testing.assert_close(torch.stack(recorded["1"]), first[None])
    model(x)
    assert len(recorded["0"]) == 2

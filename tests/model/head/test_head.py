"""Finding the head, its features and its logits."""

import pytest
import torch
from torch import nn

from bitbayes.errors import ModelError
from bitbayes.model import Head, Layout, find_head, forward


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_the_head_has_a_name_sizes_and_parameters(k, bias):
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, k, bias=bias))
    head = find_head(model, torch.randn(2, 3))
    assert head == Head("2", inputs=4, outputs=k, bias=bias)
    assert head.width == 4 + bias
    draws = head.draws(model, torch.zeros(2, k, 4 + bias))
    assert list(draws) == ["2.weight", "2.bias"][: 1 + bias]
    assert all(torch.equal(each[1], model.get_parameter(name)) for name, each in draws.items())


def test_a_linear_layer_alone_has_no_name():
    model = nn.Linear(3, 2)
    head = find_head(model, torch.randn(2, 3))
    assert head.name == "" and list(head.draws(model, torch.zeros(1, 2, 4))) == ["weight", "bias"]


class CalledInReverse(nn.Module):
    """Linear layers of the same shape, which are called in another order than they are defined in."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(3, 3)
        self.first = nn.Linear(3, 3)
        self.idle = nn.Linear(3, 3)

    def forward(self, x):
        return self.last(self.first(x))


def test_order_of_calls_counts_and_not_of_definition():
    assert find_head(CalledInReverse(), torch.randn(2, 3)).name == "last"


def test_a_layer_whose_weights_agree_with_the_heads_is_not_the_head():
    model = CalledInReverse()
    model.idle.load_state_dict(model.last.state_dict())
    assert find_head(model, torch.randn(2, 3)).name == "last"


def test_one_input_whose_batch_dimension_is_squeezed_away():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(3, 1)

        def forward(self, x):
            return self.head(x).squeeze()

    head = find_head(Model(), torch.randn(1, 3))
    assert head.name == "head"


def test_hooks_are_taken_off_also_after_an_error():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    head = find_head(model, torch.randn(2, 3))
    forward(model, head, torch.randn(2, 3))
    for use in (lambda x: find_head(model, x), lambda x: forward(model, head, x)):
        with pytest.raises(RuntimeError):
            use(torch.randn(2, 5))
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())


def test_errors_list_the_layers_that_were_called():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2), nn.Softmax(1))
    called = r"\('0' -> \(2, 4\), '2' -> \(2, 2\)\)"
    with pytest.raises(ModelError, match=f"not the output of any of the model's linear layers {called}"):
        find_head(model, torch.randn(2, 3))
    with pytest.raises(ModelError, match=f"not the output of the linear layer '0' {called}"):
        find_head(model, torch.randn(2, 3), "0")
    deep = nn.Sequential(*(nn.Linear(2, 2) for _ in range(300)), nn.Softmax(1))
    with pytest.raises(ModelError, match=r"\(294 others, '294' -> \(2, 2\), .*'299' -> \(2, 2\)\)") as caught:
        find_head(deep, torch.randn(2, 2))
    assert len(str(caught.value)) < 450
    with pytest.raises(ModelError, match=r"its linear layers are 294 others, '294', .*'299'$"):
        find_head(deep, torch.randn(2, 2), "fc")
    many = nn.Sequential(*(nn.ReLU() for _ in range(30)))
    with pytest.raises(ModelError, match=r"ReLU.*and 18 more"):
        find_head(many, torch.randn(2, 3))


def test_what_to_do_without_a_linear_head_depends_on_whether_there_are_positions():
    model = nn.Sequential(nn.Linear(3, 2), nn.Softmax(-1))
    plain, positions = "If its head is not linear, ", "With positions in the output the head must be linear"
    for x, told, other in (
        (torch.randn(2, 3), plain, positions),
        (torch.randn(2, 5, 3), positions, plain),
    ):
        with pytest.raises(ModelError, match=told) as error:
            find_head(model, x)
        assert other not in str(error.value)


class Doubled(nn.Linear):
    """A linear layer that computes something else."""

    def forward(self, x):
        return 2 * super().forward(x)


def test_a_head_that_does_not_compute_its_own_weights_is_refused():
    with pytest.raises(ModelError, match=r"the head '1' \(Doubled\) does not compute W·x \+ b"):
        find_head(nn.Sequential(nn.Linear(3, 4), Doubled(4, 2)), torch.randn(5, 3))


class Shaped(nn.Module):
    """A head whose output gets another shape."""

    def __init__(self, head, shape):
        super().__init__()
        self.head, self.shape = head, shape

    def forward(self, x):
        return self.shape(self.head(x))


@pytest.mark.parametrize(
    "head, x, shape, expected",
    [
        (nn.Linear(3, 2), torch.randn(4, 3), lambda f: f, Layout()),
        (nn.Linear(3, 1), torch.randn(4, 3), lambda f: f[:, 0], Layout()),
        (nn.Linear(3, 2), torch.randn(4, 5, 3), lambda f: f, Layout(positions=True, axis=-1)),
        (nn.Linear(3, 1), torch.randn(4, 5, 3), lambda f: f, Layout(positions=True, axis=-1)),
        (nn.Linear(3, 1), torch.randn(4, 5, 3), lambda f: f[..., 0], Layout(True, axis=-1, squeezed=True)),
        (nn.Linear(3, 1), torch.randn(4, 5, 3), lambda f: f.mT, Layout(positions=True, axis=1)),
        (nn.Conv2d(3, 2, 1), torch.randn(4, 3, 5, 6), lambda f: f, Layout(positions=True, axis=1)),
        (nn.Conv2d(3, 1, 1), torch.randn(4, 3, 5, 6), lambda f: f[:, 0], Layout(True, axis=1, squeezed=True)),
    ],
)
def test_the_layout_is_that_of_the_output(head, x, shape, expected):
    model = Shaped(head, shape).eval()
    found = find_head(model, x[:2])
    assert found.layout == expected
    features, logits, own = forward(model, found, x)
    output = model(x)
    assert own == output.shape and torch.equal(found.layout.output(logits, own), output)
    weight, bias = head.weight.flatten(1), head.bias
    torch.testing.assert_close(features @ weight.T + bias, logits)

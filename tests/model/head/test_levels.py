"""Levels: which layers of a network are chosen, and the rows of features that they see."""

import pytest
import torch
from torch import nn

import bitbayes as bb
from bitbayes.errors import ModelError
from bitbayes.model import find_levels, named_levels, private_copy, recorded_levels, run_levels
from bitbayes.model.head.levels import Level, averaged, level_axis
from bitbayes.toys import MLP, LeNet
from paper.resnet import resnet18


def levels(model, inputs, head=None, input_is_level=True):
    return find_levels(private_copy(model), inputs, head, input_is_level=input_is_level)


def layers(*given, **options):
    """The layers of the levels; the last one is the head, by its name."""
    found = levels(*given, **options)
    assert [each.name == "head" for each in found[-1:]] in ([True], [])
    return [each.layer for each in found]


class Tokens(nn.Module):
    """An embedding, three layers over tokens, and a head over their mean, for ids and a mask."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(11, 4)
        self.first, self.second, self.third = nn.Linear(4, 5), nn.Linear(5, 6), nn.Linear(6, 7)
        self.out = nn.Linear(7, 3)

    def forward(self, input_ids, attention_mask):
        x = self.words(input_ids)
        for layer in (self.first, self.second, self.third):
            x = layer(x).tanh()
        share = attention_mask / attention_mask.sum(1, keepdim=True)
        return self.out((x * share[:, :, None]).sum(1))


def sentences(length=6):
    """Three of them, of 2, 4 and 6 words; what follows is padding."""
    ids = torch.arange(3 * 6).reshape(3, 6) % 11
    mask = (torch.arange(6) < torch.tensor([[2], [4], [6]])).long()
    more = length - 6
    pad = torch.full((3, more), 9)
    return {"input_ids": torch.cat([ids, pad], 1), "attention_mask": torch.cat([mask, 0 * pad], 1)}


def test_without_levels_the_network_is_not_run():
    class Refusing(nn.Module):
        def forward(self, x):
            raise AssertionError("it was run")

    assert run_levels(Refusing(), (), torch.zeros(2, 3)) == []


# ---- which layers


@pytest.mark.parametrize(
    "hidden, found, without",
    [
        (0, [], ["0"]),
        (1, ["2"], ["0", "2"]),
        (2, ["2", "4"], ["0", "2", "4"]),
        (3, ["2", "4", "6"], ["2", "4", "6"]),
        (4, ["2", "4", "6", "8"], ["2", "4", "6", "8"]),
        (8, ["4", "8", "12", "16"], ["4", "8", "12", "16"]),
        (9, ["4", "8", "14", "18"], ["4", "8", "14", "18"]),
    ],
)
def test_they_are_at_the_quarters_of_an_mlp_and_at_its_head(hidden, found, without):
    """Nearest to M/4, M/2 and 3M/4; of two that are as near, the first. Every second module is a ReLU."""
    model, x = MLP((2, *[5] * hidden, 3)), torch.randn(2, 2)
    assert layers(model, x) == found
    assert layers(model, x, input_is_level=False) == without


def test_a_lenet_has_one_where_pixels_can_be_averaged():
    """It is before the flattening, and not after it, where 49 pixels stand side by side."""
    found = levels(LeNet(10, hidden=8), torch.rand(2, 1, 28, 28))
    assert found == [Level("6", "6", 1), Level("head", "9", -1)]


@pytest.mark.parametrize("make, size", [(nn.Conv1d, (6,)), (nn.Conv2d, (6, 6))])
@pytest.mark.parametrize(
    "count, found, without",
    [
        (1, [], ["0"]),
        (2, [], ["0", "1"]),
        (3, ["2"], ["1", "2"]),
        (4, ["2", "3"], ["1", "2", "3"]),
        (8, ["2", "4", "6"], ["2", "4", "6"]),
    ],
)
def test_the_second_layer_is_none_if_its_features_are_averaged(make, size, count, found, without):
    """What one convolution finds, averaged, is the brightness. If the input is no level, it is needed."""
    before = [make(1 if i == 0 else 2, 2, 1) for i in range(count)]
    x, head = torch.rand(2, 1, *size), str(count + 1)
    model = nn.Sequential(*before, nn.Flatten(), nn.Linear(2 * x[0].numel(), 3))
    assert layers(model, x) == [*found, head]
    assert layers(model, x, input_is_level=False) == [*without, head]


def test_the_second_layer_is_one_if_its_features_stand_side_by_side():
    """Behind a flattening they are averaged. Behind a reshaping they are not, as in a table."""

    class Reshaped(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.head = nn.Conv2d(1, 2, 3), nn.Linear(32, 8), nn.Linear(8, 3)

        def forward(self, x):
            return self.head(self.b(self.a(x).reshape(len(x), 32)))

    x = torch.rand(2, 1, 6, 6)
    flattened = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(32, 8), nn.Linear(8, 3))
    assert layers(flattened, x) == ["3"]
    assert layers(flattened, x, input_is_level=False) == ["0", "1", "3"]
    assert layers(Reshaped(), x) == ["b", "head"]


def test_a_resnet_has_them_where_its_stages_begin():
    """It has 20 convolutions before the head, shortcuts included."""
    found = levels(resnet18(width=4), torch.rand(2, 3, 16, 16), "head")
    stages = [f"stage{number}.0.residual.0" for number in (2, 3, 4)]
    assert found == [*(Level(name, name, 1) for name in stages), Level("head", "head", -1)]


def test_a_plain_linear_layer_has_none_but_its_input():
    assert levels(nn.Linear(4, 3), torch.randn(2, 4)) == []
    assert levels(nn.Linear(4, 3), torch.randn(2, 4), input_is_level=False) == [Level("head", "", -1)]


def test_an_embedding_is_no_layer_and_all_others_see_tokens():
    """Three layers before the head: nearest to 3/4, 6/4 and 9/4 are the second and the third."""
    assert layers(Tokens(), sentences(), "out", input_is_level=False) == ["second", "third", "out"]
    # Averaged over the tokens, what the second sees is left out if the input is a level.
    assert layers(Tokens(), sentences(), "out") == ["third", "out"]


def test_layers_that_are_called_twice_are_left_out():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.shared, self.b, self.head = (nn.Linear(3, 3) for _ in range(4))

        def forward(self, x):
            return self.head(self.b(self.shared(self.shared(self.a(x)))))

    assert layers(Twice(), torch.randn(2, 3)) == ["b", "head"]
    first, second, layer = (nn.Linear(3, 3) for _ in range(3))
    again = nn.Sequential(first, layer, second, layer)
    assert layers(again, torch.randn(2, 3), "1") == ["2", "1"]  # the head is its last call


def test_layers_without_a_row_for_each_input_are_left_out():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.tokens_first, self.single = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
            self.keyword = nn.MultiheadAttention(3, 1, batch_first=True)
            self.head = nn.Linear(3, 2)

        def forward(self, x):  # (n, t, 3)
            x = self.tokens_first(self.first(x).transpose(0, 1)).transpose(0, 1)
            x = self.keyword(query=x, key=x, value=x)[0]
            return self.head(x.mean(1) + self.single(torch.ones(3)))

    assert layers(Odd(), torch.randn(2, 5, 3)) == ["head"]


def test_what_comes_after_the_head_does_not_count():
    class Auxiliary(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c, self.head = (nn.Linear(3, 3) for _ in range(4))
            self.others = nn.Sequential(*(nn.Linear(3, 3) for _ in range(20)))

        def forward(self, x):
            logits = self.head(self.c(self.b(self.a(x))))
            self.others(x)
            return logits

    assert layers(Auxiliary(), torch.randn(2, 3), "head") == ["b", "c", "head"]


def test_a_flattening_that_is_called_twice_is_not_taken():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.flat = nn.Flatten()
            self.a, self.b = nn.Conv2d(1, 2, 3, padding=1), nn.Linear(32, 32)
            self.c, self.d, self.e = nn.Conv2d(2, 2, 3, padding=1), nn.Linear(32, 8), nn.Linear(8, 3)

        def forward(self, x):
            x = self.b(self.flat(self.a(x))).reshape(-1, 2, 4, 4)
            return self.e(self.d(self.flat(self.c(x))))

    assert layers(Twice(), torch.rand(2, 1, 4, 4)) == ["b", "c", "d", "e"]


def test_a_layer_of_the_users_own_is_a_layer():
    class Own(nn.Module):
        def __init__(self, channels_in, channels_out):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(channels_out, channels_in, 3, 3))

        def forward(self, x):
            return nn.functional.conv2d(x, self.weight, padding=1).relu()

    pool = nn.AdaptiveAvgPool2d(1)
    model = nn.Sequential(Own(1, 2), Own(2, 3), Own(3, 4), pool, nn.Flatten(), nn.Linear(4, 3))
    found = levels(model, torch.rand(2, 1, 6, 6), input_is_level=False)
    assert found == [Level("1", "1", 1), Level("2", "2", 1), Level("head", "5", -1)]
    assert levels(model, torch.rand(2, 1, 6, 6)) == found[1:]


def test_layers_that_are_called_like_a_level_have_another_name():
    model = nn.Sequential()
    for name in ("first", "input", "head", "last"):
        model.add_module(name, nn.Linear(3, 3))
    found = levels(model, torch.randn(2, 3))
    assert [each.name for each in found] == ["input (layer)", "head (layer)", "head"]
    assert [each.layer for each in found] == ["input", "head", "last"]
    assert named_levels(private_copy(model), ("input",), torch.randn(2, 3)) == found[:1]


def test_the_model_is_run_without_gradients_and_stays_as_it_is():
    model = MLP((2, 5, 5, 3))
    seen = []
    model[2].register_forward_hook(lambda *_: seen.append(torch.is_grad_enabled()))
    levels(model, torch.randn(2, 2, requires_grad=True))
    assert seen == [False]
    assert not any(each._forward_pre_hooks for each in model.modules()) and model.training


# ---- what they see


def test_the_axis_is_that_of_the_channels():
    second = [nn.Conv2d(1, 2, 1), nn.Conv1d(1, 2, 1), nn.BatchNorm2d(2), nn.MaxPool2d(2), nn.Flatten()]
    assert {level_axis(each, dims) for each in second for dims in (3, 4)} == {1}
    assert {level_axis(each, dims) for each in (nn.Linear(2, 2), nn.LayerNorm(2)) for dims in (3, 4)} == {-1}
    assert [level_axis(nn.ReLU(), dims) for dims in (2, 3, 4, 5)] == [-1, -1, 1, 1]
    adapted = nn.Module()
    adapted.base_layer = nn.Conv2d(1, 2, 1)
    assert level_axis(adapted, 3) == 1


def test_activations_that_are_named_have_the_channels_of_their_images():
    model = nn.Sequential(nn.Conv2d(1, 3, 1), nn.ReLU(), nn.Flatten(), nn.Linear(60, 2))
    x = torch.rand(2, 1, 4, 5)
    found = named_levels(private_copy(model), ("1", "3"), x)
    assert found == [Level("1", "1", 1), Level("3", "3", -1)]
    rows = run_levels(private_copy(model), tuple(found), x)
    assert [tuple(each.shape) for each in rows] == [(2, 3), (2, 60)]
    torch.testing.assert_close(rows[0], model[0](x).mean((2, 3)))


@pytest.mark.parametrize("shape, axis", [((4, 3), -1), ((4, 5, 3), -1), ((4, 3, 5), 1)])
def test_positions_are_averaged(shape, axis):
    value = torch.randn(*shape, dtype=torch.float64)
    found = averaged(value, axis)
    assert found.shape == (4, 3)
    for row, each in zip(found, value, strict=True):
        rows = each if each.dim() == 1 else each if axis == -1 else each.T
        expected = rows if rows.dim() == 1 else sum(rows) / len(rows)
        torch.testing.assert_close(row, expected, rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("axis", [1, -1])
def test_pixels_are_averaged(axis):
    value = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    rows = value if axis == -1 else value.permute(0, 2, 3, 1)
    expected = torch.stack([sum(pixel for line in image for pixel in line) for image in rows])
    torch.testing.assert_close(averaged(value, axis), expected / rows[0, :, :, 0].numel())


def test_tokens_that_the_mask_leaves_out_do_not_count():
    value, mask = torch.randn(3, 6, 4), sentences()["attention_mask"]
    expected = torch.stack([value[i, :length].mean(0) for i, length in enumerate((2, 4, 6))])
    torch.testing.assert_close(averaged(value, -1, mask), expected)
    torch.testing.assert_close(averaged(value, -1, mask.bool()), expected)
    assert averaged(value, -1, 0 * mask).tolist() == torch.zeros(3, 4).tolist()  # and not NaN
    # A mask of another shape belongs to something else.
    torch.testing.assert_close(averaged(value, -1, mask[:, :5]), value.mean(1))


def test_padding_changes_no_level():
    model = Tokens().double()
    found = tuple(levels(model, sentences(), "out", input_is_level=False))
    short, long = (run_levels(private_copy(model), found, sentences(length)) for length in (6, 40))
    for one, other in zip(short, long, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-15)
    with torch.no_grad():
        expected = model.first(model.words(sentences()["input_ids"])[1, :4]).tanh().mean(0)
    torch.testing.assert_close(short[0][1].detach(), expected)


def test_rows_are_the_averages_of_the_inputs_of_their_layers():
    model, x = resnet18(width=4).eval(), torch.rand(3, 3, 16, 16)
    found = tuple(levels(model, x, "head"))
    rows = run_levels(private_copy(model), found, x)
    assert [tuple(each.shape) for each in rows] == [(3, 4), (3, 8), (3, 16), (3, 32)]
    parts = dict(model.named_children())
    for name, row in zip(("stage1", "stage2", "stage3", "stage4"), rows, strict=True):
        value = x
        for part, module in parts.items():
            value = module(value)
            if part == name:
                break
        torch.testing.assert_close(row, value.mean((2, 3)), rtol=1e-5, atol=1e-6)


def test_rows_are_those_before_the_layer_works_in_place():
    model, x = nn.Sequential(nn.Linear(2, 3), nn.ReLU(inplace=True), nn.Linear(3, 2)), torch.randn(4, 2)
    (rows,) = run_levels(private_copy(model), (Level("1", "1", -1),), x)
    assert torch.equal(rows, model[0](x)) and bool((rows < 0).any())


def test_rows_are_those_of_the_last_run_and_can_be_differentiated():
    model, x = MLP((2, 5, 3)), torch.randn(4, 2)
    network, level = private_copy(model), (Level("2", "2", -1),)
    with recorded_levels(network, level, x) as recorded:
        network(x)
        network(2 * x)
    (rows,) = recorded()
    assert torch.equal(rows, model[1](model[0](2 * x))) and rows.requires_grad
    network(5 * x)  # after the block nothing is recorded
    assert torch.equal(recorded()[0], rows)


def test_layers_that_are_not_called_or_see_no_rows_are_named():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.head, self.unused, self.words = nn.Linear(2, 2), nn.Linear(2, 2), nn.Embedding(3, 2)
            self.flat, self.keyword = nn.Linear(2, 2), nn.MultiheadAttention(2, 1)

        def forward(self, x):
            words = self.words(torch.zeros(len(x), dtype=torch.long)) + self.flat(torch.ones(2))
            return self.head(x + words) + self.keyword(query=x, key=x, value=x)[0]

    model, x = Odd(), torch.randn(3, 2)
    with pytest.raises(ModelError, match=r"does not call \['unused'\]"):
        run_levels(private_copy(model), (Level("", "unused", -1),), x)
    for name in ("words", "flat", "keyword"):
        with pytest.raises(ModelError, match=f"'{name}' does not see one row of numbers for each input"):
            run_levels(private_copy(model), tuple(named_levels(private_copy(model), (name,), x)), x)


class Lora(nn.Module):
    """A low-rank change of a linear layer, with layers of its own, as in peft."""

    def __init__(self, base_layer, rank):
        super().__init__()
        self.base_layer = base_layer
        self.lora_A = nn.Linear(base_layer.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, base_layer.out_features, bias=False)

    def forward(self, x):
        return self.base_layer(x) + self.lora_B(self.lora_A(x))


def test_an_adapter_around_a_convolution_is_as_the_convolution():
    class Around(nn.Module):
        def __init__(self, base_layer):
            super().__init__()
            self.base_layer = base_layer
            self.lora_A = nn.Conv2d(base_layer.in_channels, 1, 5, padding=2, bias=False)
            self.lora_B = nn.Conv2d(1, base_layer.out_channels, 1, bias=False)

        def forward(self, x):
            return self.base_layer(x) + self.lora_B(self.lora_A(x))

    model, x = LeNet(10, hidden=8), torch.rand(2, 1, 28, 28)
    expected = levels(model, x), levels(model, x, input_is_level=False)
    model[0], model[3] = Around(model[0]), Around(model[3])
    assert (levels(model, x), levels(model, x, input_is_level=False)) == expected
    assert [each.layer for each in expected[1]] == ["3", "6", "9"]


@pytest.mark.parametrize("rank", [2, 5])
def test_what_is_inside_an_adapter_is_no_level(rank):
    """Also if its bottleneck is as wide as the features: the curvature would be that of the bottleneck."""
    model = MLP((4, 6, 5, 3)).double()
    model[4], model[2] = Lora(model[4], rank).double(), Lora(model[2], rank).double()
    x, y = torch.randn(30, 4).double(), torch.arange(30) % 3
    assert layers(model, x) == ["2", "4"]
    with_it, without = (
        bb.Laplace(model, residual=each).fit([(x, y)]).posterior.fitted for each in ("auto", False)
    )
    found, expected = (each.curvature["4"].inputs for each in (with_it, without))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    features = nn.Sequential(*list(model)[:4])(x).detach()
    torch.testing.assert_close(with_it.level_sums["head"].mean, features.mean(0), rtol=1e-12, atol=1e-12)

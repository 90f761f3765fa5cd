"""ACET's attack against a plain loop of its own, and what becomes of it where nothing can be compiled."""

from functools import partial

import pytest
import torch
from torch import nn

from paper.training import Recipe, confident_neighbours, objectives, train
from paper.training.compiled import CompiledOnFirstCall


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3)
    )


def point_by_point(net, x, steps):
    """The attack on one point after another, by ifs and elses."""
    found = []
    for start in x:
        best, best_score, direction, step, current = start, -float("inf"), None, 0.1 / 1.1, start
        for _ in range(steps + 1):
            current = current.clone().requires_grad_()
            score = net(current[None]).float().log_softmax(1).max()
            (gradient,) = torch.autograd.grad(score, current)
            if score.item() >= best_score:
                best, best_score, direction, step = (
                    current.detach(),
                    score.item(),
                    gradient.sign(),
                    1.1 * step,
                )
            else:
                step = step / 2
            current = (best + step * direction).clamp(start - 0.3, start + 0.3).clamp(0, 1)
        found.append(best)
    return torch.stack(found)


@pytest.mark.parametrize("steps", [0, 1, 12])
def test_it_is_what_a_loop_over_points_finds(steps):
    net, x = network().eval().double(), torch.rand(5, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    x = x.double()
    found = confident_neighbours(net, x, steps=steps)
    # Both follow signs of gradients, which rounding cannot turn here; points are sums of a few steps.
    torch.testing.assert_close(found, point_by_point(net, x, steps), rtol=0, atol=1e-6)


def test_weights_cast_weights_are_weights_cast_in_every_pass(monkeypatch):
    net, x = network().eval(), torch.rand(5, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    assert {weight.dtype for weight in objectives._cast_weights(net, "cpu").values()} == {torch.float32}
    with torch.autocast("cpu", torch.bfloat16):
        cast = objectives._cast_weights(net, "cpu")
        once = confident_neighbours(net, x, steps=5)
        monkeypatch.setattr(objectives, "_cast_weights", lambda net, device: dict(net.named_parameters()))
        always = confident_neighbours(net, x, steps=5)
    assert cast["0.weight"].dtype == torch.bfloat16 and cast["1.weight"].dtype == torch.float32
    assert torch.equal(once, always)


def test_modes_and_weights_are_left_as_they_were():
    net, x = network().train(), torch.rand(5, 1, 6, 6)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with torch.no_grad():
        found = confident_neighbours(net, x, steps=3)
    assert net.training and not found.requires_grad
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert all(each.grad is None for each in net.parameters())


def test_what_cannot_be_compiled_runs_as_it_is(monkeypatch):
    def compile_nothing(function, dynamic):
        def broken(*args):
            raise RuntimeError("no compiler")

        return broken

    monkeypatch.setattr(torch, "compile", compile_nothing)

    def double(x):
        return 2 * x

    compiled = CompiledOnFirstCall(double)
    with pytest.warns(UserWarning, match="double could not be compiled: no compiler"):
        assert compiled(3) == 6
    assert compiled(4) == 8  # without another warning


def test_training_against_the_attack_takes_hold(monkeypatch):
    # Fewer steps of the attack, for the time they take.
    monkeypatch.setattr(objectives, "confident_neighbours", partial(confident_neighbours, steps=4))
    x = torch.rand(400, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    x[::2, :, :2] *= 0.1  # two classes: the upper half dark, or the lower
    x[1::2, :, 2:] *= 0.1
    y = torch.arange(400) % 2
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))
    recipe = Recipe(epochs=5, batch_size=8, crop=0, learning_rate=0.01)
    train(net, x, y, recipe=recipe, objective="acet", progress=False)
    noise = torch.rand(100, 1, 4, 4, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        confidence = net(confident_neighbours(net, noise)).softmax(1).amax(1).mean()
        accuracy = (net(x).argmax(1) == y).double().mean()
    assert confidence < 0.75 and accuracy > 0.95, (confidence, accuracy)

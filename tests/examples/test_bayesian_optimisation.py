"""The example of Bayesian optimisation: its acquisition, its gradient, and that it gets better."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch

import bitbayes as bb

SCRIPT = Path(__file__).parents[2] / "examples" / "bayesian_optimisation.py"
SPEC = spec_from_file_location("bayesian_optimisation", SCRIPT)
example = module_from_spec(SPEC)
SPEC.loader.exec_module(example)


@pytest.fixture
def bayes():
    x = torch.rand(12, 2).double()
    model = torch.nn.Sequential(torch.nn.Linear(2, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1)).double()
    return bb.Laplace(model, likelihood="gaussian", noise_variance=0.1, prior_variance=5.0).fit(
        [(x, x.sum(1, keepdim=True))]
    )


def test_the_minima_of_the_function_are_those_in_books():
    at = torch.tensor([[-torch.pi, 12.275], [torch.pi, 2.275], [9.42478, 2.475]])
    values = example.branin((at + torch.tensor([5.0, 0.0])) / 15)
    torch.testing.assert_close(values, torch.full((3,), 0.397887), rtol=0, atol=1e-4)


def test_the_expected_improvement_is_that_of_draws(bayes):
    x, draws = torch.rand(5, 2).double(), 200_000
    found = bayes.predict(x)
    best = float(found.mean.mean())
    drawn = found.mean + found.variance.sqrt() * torch.randn(5, draws).double()
    improvement = (best - drawn).clamp_min(0)
    error = improvement.std(1) / draws**0.5
    gap = (example.expected_improvement(bayes, x, best) - improvement.mean(1)).abs()
    assert (gap <= 5 * error).all()


def test_its_gradient_is_that_of_finite_differences(bayes):
    x = torch.rand(3, 2).double().requires_grad_()
    best = float(bayes.predict(x.detach()).mean.mean())
    assert torch.autograd.gradcheck(lambda x: example.expected_improvement(bayes, x, best), x)


def test_both_ways_to_choose_stay_in_the_square():
    x = torch.rand(12, 2)
    bayes = bb.Laplace(torch.nn.Linear(2, 1), likelihood="gaussian", noise_variance=0.1, prior_variance=5.0)
    bayes.fit([(x, x.sum(1, keepdim=True))])
    for point in (example.best_improvement(bayes, 0.5), example.least_of_a_draw(bayes)):
        assert point.shape == (1, 2) and ((point >= 0) & (point <= 1)).all()


def test_a_few_rounds_find_a_better_point(capsys):
    point, value = example.optimise(rounds=5)
    lines = capsys.readouterr().out.splitlines()
    values = [float(line.split()[-1]) for line in lines]
    assert len(lines) == 5 and values == sorted(values, reverse=True)
    assert value == example.branin(point[None]).item() < values[0]

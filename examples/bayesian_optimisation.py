"""Find the minimum of a function with few calls: expected improvement with a network's last layer.

    python examples/bayesian_optimisation.py

The function is Branin's on the unit square; its minimum is 0.398. Each round trains a small network on all
calls so far, fits its last layer, and calls the function twice:

- where the expected improvement is largest, found by gradient steps in x through `bayes.predict(x)`;
- where a function that is drawn from the posterior is least, on random points, with their joint covariance.
"""

import math

import torch
from torch import Tensor, nn

import bitbayes as bb

FIRST, ROUNDS = 8, 14
TRAINING_STEPS, RATE = 300, 5e-3
STARTS, ASCENT_STEPS, ASCENT_RATE = 64, 30, 0.02
CANDIDATES = 500
# Branin's function has no noise: this is what a network that is trained so shortly does not fit.
NOISE_VARIANCE = 1e-2


def branin(x: Tensor) -> Tensor:
    """(n, 2) in the unit square → (n,)."""
    a, b = 15 * x[:, 0] - 5, 15 * x[:, 1]
    valley = b - 5.1 * a.square() / (4 * math.pi**2) + 5 * a / math.pi - 6
    return valley.square() + 10 * (1 - 1 / (8 * math.pi)) * a.cos() + 10


def trained(x: Tensor, y: Tensor) -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 50), nn.Tanh(), nn.Linear(50, 50), nn.Tanh(), nn.Linear(50, 1))
    optimiser = torch.optim.Adam(model.parameters(), lr=RATE)
    for _ in range(TRAINING_STEPS):
        optimiser.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimiser.step()
    return model.eval()


def expected_improvement(bayes: bb.Laplace, x: Tensor, best: float) -> Tensor:
    """E[max(0, best − f(x))] = s (z Φ(z) + φ(z)) with z = (best − m)/s, (n,). Differentiable in x."""
    prediction = bayes.predict(x)
    deviation = prediction.variance[:, 0].sqrt()
    z = (best - prediction.mean[:, 0]) / deviation
    return deviation * (z * torch.special.ndtr(z) + (-z.square() / 2).exp() / math.sqrt(2 * math.pi))


def best_improvement(bayes: bb.Laplace, best: float) -> Tensor:
    """The point of largest expected improvement, (1, 2), by Adam from many starts at once."""
    x = torch.rand(STARTS, 2, requires_grad=True)
    optimiser = torch.optim.Adam([x], lr=ASCENT_RATE, maximize=True)
    for _ in range(ASCENT_STEPS):
        optimiser.zero_grad()
        # The logarithm: where there is hardly any improvement, its gradient still leads somewhere.
        expected_improvement(bayes, x, best).clamp_min(1e-30).log().sum().backward()
        optimiser.step()
        with torch.no_grad():
            x.clamp_(0, 1)
    return x.detach()[expected_improvement(bayes, x, best).argmax()][None]


def least_of_a_draw(bayes: bb.Laplace) -> Tensor:
    """The point at which one function drawn from the posterior is least, (1, 2)."""
    x = torch.rand(CANDIDATES, 2)
    prediction = bayes.predict(x, joint=True)
    assert prediction.covariance is not None
    values, vectors = torch.linalg.eigh(prediction.covariance[0].double())  # (c, c), of low rank
    drawn = prediction.mean[:, 0] + vectors @ (values.clamp_min(0).sqrt() * torch.randn(CANDIDATES).double())
    return x[drawn.argmin()][None]


def optimise(rounds: int = ROUNDS, seed: int = 0) -> tuple[Tensor, float]:
    """The best point that was called, (2,), and its value."""
    torch.manual_seed(seed)
    x = torch.rand(FIRST, 2)
    y = branin(x)
    for _ in range(rounds):
        # The logarithm makes the walls of the function less steep; both are in units of one deviation.
        z = y.log()[:, None]
        z = (z - z.mean()) / z.std()
        bayes = bb.Laplace(trained(x, z), likelihood="gaussian", noise_variance=NOISE_VARIANCE)
        bayes.fit([(x, z)]).tune(objective="evidence")
        new = torch.cat([best_improvement(bayes, float(z.min())), least_of_a_draw(bayes)])
        x, y = torch.cat([x, new]), torch.cat([y, branin(new)])
        print(f"{len(y):3} calls, best value {y.min():.4f}")
    return x[y.argmin()], float(y.min())


if __name__ == "__main__":
    point, value = optimise()
    print(f"best value {value:.4f} at ({point[0]:.3f}, {point[1]:.3f}); the minimum is 0.3979")

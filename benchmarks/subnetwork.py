"""How much of the variance of the logits `subnetwork=n` keeps: its share of that of all weights.

    python benchmarks/subnetwork.py

A small ReLU network on two moons, the prior variance 1, in float64. Prints, for each n, the median of the
shares over the training points and over points drawn around them with four times their spread.
"""

import torch
from torch import nn

import bitbayes as bb

COUNTS = (100, 200, 300, 400, 500)
POINTS, SPREAD = 500, 4.0


def trained(x: torch.Tensor, y: torch.Tensor) -> nn.Module:
    model = bb.toys.MLP((2, 20, 20, 1)).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02, weight_decay=1e-4)
    for _ in range(200):
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y.double()).backward()
        optimizer.step()
    return model.eval()


def main() -> None:
    torch.manual_seed(0)
    x, y = bb.toys.two_moons()
    x = x.double()
    model = trained(x, y)
    points = torch.cat([x, SPREAD * torch.randn(POINTS, 2, dtype=x.dtype)])
    options = {"layers": "all", "prior_variance": 1.0, "residual": False}
    every = bb.Laplace(model, structure="full", **options).fit([(x, y)])
    variances = every.logits(points).covariance[:, 0, 0]
    weights = sum(parameter.numel() for parameter in model.parameters())
    print(f"{weights} weights\n{'n':>6} {'at the data':>14} {'around them':>14}")
    for count in (*COUNTS, weights):
        some = bb.Laplace(model, subnetwork=count, **options).fit([(x, y)])
        shares = some.logits(points).covariance[:, 0, 0] / variances
        inside, outside = shares[: len(x)].median(), shares[len(x) :].median()
        print(f"{count:>6} {100 * inside:>13.5f}% {100 * outside:>13.5f}%")


if __name__ == "__main__":
    main()

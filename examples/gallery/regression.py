"""Intervals that widen

90% intervals of a small network for a sine with a gap. Where there are no data, and beyond them, they
grow.
"""

import torch
from matplotlib import pyplot as plt

import bitbayes as bb

torch.manual_seed(0)
x = torch.cat([torch.rand(100, 1) * 2 - 4, torch.rand(100, 1) * 2 + 1])[torch.randperm(200)]
y = torch.sin(2 * x) + 0.1 * torch.randn(200, 1)
model = bb.toys.MLP((1, 64, 64, 1))
optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(300):
    optimiser.zero_grad()
    torch.nn.functional.mse_loss(model(x[:140]), y[:140]).backward()
    optimiser.step()
bayes = bb.Laplace(model, likelihood="gaussian").fit([(x[:140], y[:140])]).tune([(x[140:], y[140:])])

line = torch.linspace(-6, 5, 300)[:, None]
figure, ax = plt.subplots(figsize=(5.6, 3.4), layout="constrained")
bb.plots.intervals(bayes.predict(line), x=line[:, 0], ax=ax)
ax.scatter(x, y, s=6, color="#333333", zorder=3)
ax.set_ylim(-6, 6)
plt.show()

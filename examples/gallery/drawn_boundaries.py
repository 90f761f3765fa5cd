"""Thirty networks

Draws of the last layer's weights. Their boundaries agree at the data and fan out away from it: the
prediction is their average.
"""

import torch
from matplotlib import pyplot as plt

import bitbayes as bb

toy = bb.toys.TOY_PROBLEMS[0]()
model = bb.toys.train_toy(toy)
bayes = bb.Laplace(model, prior_variance=100.0).fit([(toy.x, toy.y)])
drawn = bayes.sample(30, generator=torch.Generator().manual_seed(0))

centre, half = toy.x.mean(0), 4.0
side = torch.linspace(-half, half, 150)
grid = torch.cartesian_prod(side, side).flip(1) + centre
figure, ax = plt.subplots(figsize=(4.6, 4), layout="constrained")
for i in range(30):
    weights = {name: each[i] for name, each in drawn.items()}
    with torch.no_grad():
        logits = torch.func.functional_call(model, weights, (grid,))
    margin = logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]
    across, up = side + centre[0], side + centre[1]
    ax.contour(across, up, margin.reshape(150, 150), levels=[0.0], colors="#1d63c0", linewidths=0.6)
for label, marker in ((0, "o"), (1, "^")):
    here = toy.x[toy.y == label]
    ax.scatter(here[:, 0], here[:, 1], s=12, marker=marker, color=("#e66101", "#5e3c99")[label])
ax.set(xticks=[], yticks=[], title="boundaries of 30 drawn networks")
plt.show()

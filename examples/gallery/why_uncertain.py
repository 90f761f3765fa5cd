"""Why is it uncertain?

The entropy of a prediction has two parts. What the labels leave open is large between overlapping
classes, and more data do not help. What the weights leave open is large away from the data.
"""

import torch
from matplotlib import pyplot as plt

import bitbayes as bb

toy = bb.toys.TOY_PROBLEMS[2]()
bayes = bb.Laplace(bb.toys.train_toy(toy), prior_variance=100.0).fit([(toy.x, toy.y)])

centre, half = toy.x.mean(0), 25.0
side = torch.linspace(-half, half, 120)
found = bayes.uncertainty(torch.cartesian_prod(side, side).flip(1) + centre)
parts = {"the labels": found.expected_entropy, "the weights": found.mutual_information}
figure, row = plt.subplots(1, 2, figsize=(5.8, 3), layout="constrained")
for ax, (name, values) in zip(row, parts.items(), strict=True):
    image = ax.imshow(values.reshape(120, 120), origin="lower", cmap="Greys", vmin=0, vmax=1.4)
    points = (toy.x - centre + half) * 120 / (2 * half)
    ax.scatter(points[:, 0], points[:, 1], s=2, color="#e66101")
    ax.set(title=f"left open by {name}", xticks=[], yticks=[])
figure.colorbar(image, ax=row, label="nats", shrink=0.8)
plt.show()

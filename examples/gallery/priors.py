"""Three priors

A wider prior over the last layer makes the network less sure, and near the data, too. `tune` chooses it.
"""

from matplotlib import pyplot as plt

import bitbayes as bb

toy = bb.toys.TOY_PROBLEMS[0]()
model = bb.toys.train_toy(toy)

figure, row = plt.subplots(1, 3, figsize=(5.8, 2.2), layout="constrained")
for ax, variance in zip(row, (0.1, 10.0, 1000.0), strict=True):
    bayes = bb.Laplace(model, prior_variance=variance, residual=False).fit([(toy.x, toy.y)])
    bb.plots.toy_map(bayes.predict_proba, toy.x, toy.y, zoom=4, side=120, ax=ax)
    ax.set(title=f"σ₀² = {variance:g}", xticks=[], yticks=[])
plt.show()

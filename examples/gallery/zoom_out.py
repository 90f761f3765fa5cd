"""Zoom out

Near the data the two networks agree. Zoomed out 20 times, the plain one is certain, and bitbayes goes to
white, a blind guess.
"""

from matplotlib import pyplot as plt

import bitbayes as bb

toy = bb.toys.TOY_PROBLEMS[0]()
model = bb.toys.train_toy(toy)
plain = bb.TemperatureScaling(model)
plain.temperature = 1.0  # the network itself
validation = [bb.toys.two_moons(200, noise=0.1, seed=1)]
bayes = bb.Laplace(model).fit([(toy.x, toy.y)]).tune(validation)

figure, rows = plt.subplots(2, 2, figsize=(5.6, 5.2), layout="constrained")
for zoom, row in zip((1, 20), rows, strict=True):
    for ax, (name, method) in zip(row, {"plain": plain, "bitbayes": bayes}.items(), strict=True):
        bb.plots.toy_map(method.predict_proba, toy.x, toy.y, zoom=zoom, side=120, ax=ax)
        ax.set(title=f"{name}, × {zoom}", xticks=[], yticks=[])
plt.show()

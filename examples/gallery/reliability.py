"""Is the confidence right?

Of the answers given with 90%, are 90% right? On overlapping moons a network that was trained for long is too
sure, and lies below the diagonal. Temperature scaling and bitbayes mend it. The bands are those of chance.
"""

import torch
from matplotlib import pyplot as plt

import bitbayes as bb

torch.manual_seed(0)
x, y = bb.toys.two_moons(200, noise=0.3, seed=0)
model = bb.toys.MLP((2, 50, 50, 2))
optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(500):
    optimiser.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimiser.step()
validation = [bb.toys.two_moons(300, noise=0.3, seed=1)]
scaled = bb.TemperatureScaling(model).fit(validation)
bayes = bb.Laplace(model).fit([(x, y)]).tune(validation)

x_test, y_test = bb.toys.two_moons(3000, noise=0.3, seed=2)
with torch.no_grad():
    probs = {"plain": model(x_test).softmax(1)}
probs |= {"temperature": scaled.predict_proba(x_test), "bitbayes": bayes.predict_proba(x_test)}
figure, ax = plt.subplots(figsize=(4.6, 3.8), layout="constrained")
bb.plots.reliability(probs, y_test, bins=8, ax=ax)
plt.show()

"""Turn a digit

A 4 that is turned by up to 180°. Both networks become less sure, and bitbayes more so.
"""

import torch
from matplotlib import pyplot as plt

import bitbayes as bb

data, model = bb.toys.digits(), bb.toys.digits_lenet()
validation, (x, y) = bb.toys.validation_split(data.test_images, data.test_labels, 1000, seed=0)
bayes = bb.Laplace(model).fit([(data.train_images, data.train_labels)]).tune([validation])

digit = x[y == 4][3]
angles = torch.linspace(0, 180, 37)
cos, sin, zero = angles.deg2rad().cos(), angles.deg2rad().sin(), torch.zeros(37)
turns = torch.stack([torch.stack([cos, -sin, zero], 1), torch.stack([sin, cos, zero], 1)], 1)
grid = torch.nn.functional.affine_grid(turns, (37, 1, 28, 28), align_corners=False)
turned = torch.nn.functional.grid_sample(digit.expand(37, 1, 28, 28), grid, align_corners=False)
with torch.no_grad():
    plain = model(turned).softmax(1)

figure, ax = plt.subplots(figsize=(5.6, 3.6), layout="constrained")
for name, probs in {"plain": plain, "bitbayes": bayes.predict_proba(turned)}.items():
    colour, _, marker = bb.palette.METHODS[name]
    ax.plot(angles, 100 * probs.amax(1), color=colour, marker=marker, markersize=4, label=name)
for i in range(0, 37, 6):
    inset = ax.inset_axes([angles[i] - 11, 103, 22, 24], transform=ax.transData)
    inset.imshow(turned[i, 0], cmap="Greys")
    inset.set(xticks=[], yticks=[])
ax.set(xlabel="turned by, °", ylabel="Confidence, %", ylim=(0, 130), yticks=range(0, 101, 25))
ax.legend(frameon=False, loc="lower left")
plt.show()

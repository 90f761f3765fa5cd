"""An alarm for shift

Batches of 50 digits that are turned more and more. Below the line there is an alarm; without a shift it
is false in 5% of batches.
"""

import torch
from matplotlib import pyplot as plt

import bitbayes as bb

data, model = bb.toys.digits(), bb.toys.digits_lenet()
validation, (x, _) = bb.toys.validation_split(data.test_images, data.test_labels, 500, seed=0)
bayes = bb.Laplace(model).fit([(data.train_images, data.train_labels)]).tune([validation])
test = bayes.shift_test(x[:1000])

angles = (0, 5, 10, 15, 20, 25, 30)
figure, ax = plt.subplots(figsize=(5.2, 3.4), layout="constrained")
for angle in angles:
    cos, sin = (getattr(torch.deg2rad(torch.tensor(float(angle))), name)() for name in ("cos", "sin"))
    turn = torch.tensor([[cos, -sin, 0.0], [sin, cos, 0.0]]).expand(500, 2, 3)
    grid = torch.nn.functional.affine_grid(turn, (500, 1, 28, 28), align_corners=False)
    turned = torch.nn.functional.grid_sample(x[1000:1500], grid, align_corners=False)
    p_values = [test(batch).p_value for batch in turned.split(50)]
    ax.scatter([angle] * 10, p_values, s=18, color=bb.palette.METHODS["bitbayes"].light)
ax.axhline(0.05, color="#8a8a8a", linestyle="--")
ax.set(yscale="log", ylim=(1e-12, 2), xlabel="turned by, °", ylabel="p-value of a batch")
plt.show()

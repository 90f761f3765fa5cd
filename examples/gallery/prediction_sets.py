"""Sets that hold the class

95% of the sets hold the true class of a digit that is not blurred. Digits that are too blurred are
refused, and get all ten classes.
"""

import torch
from matplotlib import pyplot as plt

import bitbayes as bb

data, model = bb.toys.digits(), bb.toys.digits_lenet()
validation, (x, y) = bb.toys.validation_split(data.test_images, data.test_labels, 1000, seed=0)
bayes = bb.Laplace(model).fit([(data.train_images, data.train_labels)]).tune([validation])
sets = bayes.sets([(x[:500], y[:500])], coverage=0.95)

figure, ax = plt.subplots(figsize=(5.2, 3.4), layout="constrained")
blurs, below = (1, 3, 5, 7, 9), torch.zeros(5)
shares = []
for blur in blurs:
    images = torch.nn.functional.avg_pool2d(x[500:], blur, stride=1, padding=blur // 2)
    sizes = sets(images).sum(1)
    kinds = (sizes == 0, sizes == 1, (sizes > 1) & (sizes < 10), sizes == 10)
    shares.append([100 * each.float().mean() for each in kinds])
shades = ("#bcd3f2", "#6fa0e0", "#1d63c0", "#0b2f66")
for name, share, shade in zip(
    ("none", "one", "2 to 9", "all ten"), torch.tensor(shares).T, shades, strict=True
):
    ax.bar([str(each) for each in blurs], share, bottom=below, color=shade, label=name)
    below = below + share
ax.set(xlabel="width of the blur, pixels", ylabel="sets, %", title="classes in a set")
ax.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()

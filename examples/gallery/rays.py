"""Along a ray

Digits that are multiplied by a growing δ. The plain network becomes certain, and bitbayes goes to 10%,
the blind guess of ten classes.
"""

from matplotlib import pyplot as plt

import bitbayes as bb

data, model = bb.toys.digits(), bb.toys.digits_lenet()
validation, test = bb.toys.validation_split(data.test_images, data.test_labels, 1000, seed=0)
bayes = bb.Laplace(model).fit([(data.train_images, data.train_labels)]).tune([validation])

figure, ax = plt.subplots(figsize=(5.2, 3.4), layout="constrained")
bb.plots.confidence_along_rays(bayes, test[0][:30], certificate=False, ax=ax)
plt.show()

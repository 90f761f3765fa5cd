"""Stop strangers

The scores of digits, letters and clothes, and the threshold above which 95% of the held-out digits lie.
"""

from matplotlib import pyplot as plt

import bitbayes as bb

data, model = bb.toys.digits(), bb.toys.digits_lenet()
validation, (x, _) = bb.toys.validation_split(data.test_images, data.test_labels, 1000, seed=0)
bayes = bb.Laplace(model).fit([(data.train_images, data.train_labels)]).tune([validation])

others = {"letters": data.letters_images, "clothes": data.fashion_images}
figure, ax = plt.subplots(figsize=(5.6, 3.6), layout="constrained")
bb.plots.histograms(bayes.score(x), {name: bayes.score(each) for name, each in others.items()}, ax=ax)
plt.show()

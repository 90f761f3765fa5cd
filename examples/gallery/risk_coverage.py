"""Answer fewer, be wrong less

Half of these images are letters, and every answer to a letter is wrong. If the least sure answers go to a
person, how many of the others are wrong?
"""

import torch
from matplotlib import pyplot as plt

import bitbayes as bb

data, model = bb.toys.digits(), bb.toys.digits_lenet()
validation, (x, y) = bb.toys.validation_split(data.test_images, data.test_labels, 1000, seed=0)
bayes = bb.Laplace(model).fit([(data.train_images, data.train_labels)]).tune([validation])

images = torch.cat([x, data.letters_images])
labels = torch.cat([y, torch.full((len(data.letters_images),), -1)])  # no class
with torch.no_grad():
    plain = model(images).softmax(1)
scores = {"plain": plain.amax(1), "bitbayes": bayes.score(images)}
answers = {"plain": plain.argmax(1), "bitbayes": bayes.predict_proba(images).argmax(1)}
correct = {name: answer == labels for name, answer in answers.items()}
figure, ax = plt.subplots(figsize=(5.2, 3.4), layout="constrained")
bb.plots.risk_coverage(scores, correct, ax=ax)
plt.show()

"""What the processes of a group do in the tests: functions of their rank and their number."""

import os
import signal
import warnings

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

import bitbayes as bb
from bitbayes.errors import EdgeWarning
from classifiers import relu_mlp

POINTS = 203


def dataset(k=3, n=POINTS, inputs=4):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(n, inputs, generator=generator, dtype=torch.float64)
    labels = torch.randint(max(k, 2), (n,), generator=generator)
    return TensorDataset(x, labels)


def loader(data, rank, size, split="sampler", batch_size=16):
    """A process's share: padded by a sampler, uneven, or all of it with the last process."""
    if split == "sampler":
        sampler = DistributedSampler(data, size, rank, shuffle=True, seed=5)
        return DataLoader(data, batch_size, sampler=sampler)
    cuts = {"uneven": [len(data) * (r * r) // (size * size) for r in range(size + 1)]}
    cuts["empty"] = [0] * size + [len(data)]
    cuts["few"] = cuts["uneven"]
    return DataLoader(Subset(data, range(cuts[split][rank], cuts[split][rank + 1])), batch_size)


def tensors_of(bayes):
    fitted = bayes._posterior.fitted
    found = {
        f"{name}/{field}": tensor
        for name, curvature in fitted.curvature.items()
        for field, tensor in curvature.tensors().items()
    }
    if fitted.input_moments is not None:
        found |= {f"inputs/{field}": tensor for field, tensor in fitted.input_moments.tensors().items()}
    return found


def numbers_of(bayes):
    return [bayes.prior_variance, bayes.temperature, bayes.residual_variance, bayes.residual_threshold]


def fit_update_tune(rank, size, cases):
    """The posterior, the numbers and some probabilities, for each case."""
    answers = []
    for options, tuning, split in cases:
        options = dict(options)
        k = options.pop("k", 3)
        train, more, validation = dataset(k), dataset(k, 50), dataset(k, 61)
        model = relu_mlp(k, torch.float64)
        bayes = bb.Laplace(model, **options).fit(loader(train, rank, size, split))
        bayes.update(loader(more, rank, size, split, 7))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EdgeWarning)
            bayes.tune(loader(validation, rank, size, split, 9), **tuning)
        fitted = bayes._posterior.fitted
        x = dataset(k, 20)[:][0] * 3
        answers.append(
            {
                "tensors": tensors_of(bayes),
                "sums": [fitted.count, fitted.loss],
                "numbers": numbers_of(bayes),
                "probabilities": bayes.predict_proba(x),
            }
        )
    return answers

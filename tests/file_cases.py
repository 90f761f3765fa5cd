"""The kept files of tests/io/files: what is in them. The command writes those of the present formats.

    PYTHONPATH=src python tests/file_cases.py

A file that is there stays: it holds what an earlier version wrote. After a new format number the command
makes a new folder beside the old ones.
"""

import json
import warnings
from contextlib import suppress
from pathlib import Path

import torch
from torch import nn

import bitbayes as bb
from bitbayes.fitting import last_layer
from bitbayes.io import checkpoint, posterior_file, temperature_file

FILES = Path(__file__).parent / "io" / "files"
# One near the data, one far away, and one further.
POINTS = torch.tensor([[0.25, -0.5], [4.0, 3.0], [-30.0, 11.0]], dtype=torch.float64)
POSTERIORS, TEMPERATURES, CHECKPOINTS = "posterior", "temperature", "checkpoint"
FORMATS = {
    POSTERIORS: posterior_file.FORMAT,
    TEMPERATURES: temperature_file.FORMAT,
    CHECKPOINTS: checkpoint.FORMAT,
}
# Of each case: the network's outputs, and the options of the `Laplace`.
CASES = {
    "tuned": (3, {}),
    "one_logit": (1, {"structure": "full"}),
    "all_layers": (3, {"layers": "all", "structure": "diag"}),
    "lowrank": (3, {"structure": "lowrank", "residual": False}),
    "several_labels": (3, {"likelihood": "multilabel"}),
    "values": (2, {"likelihood": "gaussian"}),
}
EARLY = ("early_tuned", "early_all_layers")  # the first version that had the format wrote them


def network(k):
    """A network whose weights are exact in float64."""
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, k)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_((torch.arange(parameter.numel()) * 5 % 7 - 3).reshape(parameter.shape) / 4)
    return model


def network_of(name):
    return network(CASES[name.removeprefix("early_")][0])


def data(name, n=60, shift=0):
    """Inputs and labels, without random numbers."""
    k, options = CASES[name.removeprefix("early_")]
    i = torch.arange(shift, shift + n)
    x = torch.stack([i * 37 % 101 - 50, i * 53 % 97 - 48], 1).double() / 25
    likelihood = options.get("likelihood")
    if likelihood == "gaussian":
        return x, torch.stack([x[:, 0] - x[:, 1], x[:, 0] * x[:, 1]], 1)
    if likelihood == "multilabel":
        return x, torch.stack([i % 2, i % 3 == 0, x[:, 0] > 0], 1).long()
    return x, ((3 * x[:, 0] + i % 4).floor().long() % max(k, 2))


def loader(name, n=60, shift=0):
    x, y = data(name, n, shift)
    return [(x[start : start + 20], y[start : start + 20]) for start in range(0, n, 20)]


def fitted(name):
    _, options = CASES[name.removeprefix("early_")]
    bayes = bb.Laplace(network_of(name), **options).fit(loader(name))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so few points leave much open
        return bayes.tune(loader(name, shift=60))


def measured(bayes):
    """What a file is to predict again."""
    found = {"scores": bayes.score(POINTS), "log_evidence": bayes.log_evidence()}
    if bayes.posterior.likelihood.classifies:
        found |= {"probabilities": bayes.predict_proba(POINTS), "limits": bayes.limit(POINTS).confidence}
    else:
        found |= {"means": bayes.predict(POINTS).mean, "intervals": bayes.interval(POINTS)}
    return {name: tensor.tolist() for name, tensor in found.items()}


class Interrupted(BaseException):
    """As Ctrl-C: nothing may catch it."""


class Batches(list):
    """Batches that interrupt in the place of the third, if they are told to."""

    def __init__(self, batches, *, stop=False):
        super().__init__(batches)
        self.stop = stop

    def __iter__(self):
        for number, batch in enumerate(super().__iter__()):
            if self.stop and number == 2:
                raise Interrupted
            yield batch


def folder(kind):
    return FILES / f"{kind}_{FORMATS[kind]}"


def write_posteriors(target):
    for name in CASES:
        path = target / f"{name}.safetensors"
        if not path.exists():
            bayes = fitted(name)
            bayes.save(path)
            keep(target, name, measured(bayes))


def write_temperatures(target):
    for name, likelihood in {"classes": "auto", "several_labels": "multilabel"}.items():
        path = target / f"{name}.safetensors"
        if not path.exists():
            case = "tuned" if name == "classes" else name
            scaled = bb.TemperatureScaling(network_of(case), likelihood=likelihood).fit(loader(case))
            scaled.save(path)
            keep(target, name, {"temperature": scaled.temperature, "likelihood": likelihood})


def write_checkpoint(target):
    if [*target.iterdir()]:
        return
    checkpoint.SECONDS, checkpoint.PAUSE, last_layer.FIT_BYTES = 0.0, 0, 1  # after each batch
    bayes = bb.Laplace(network_of("tuned"), prior_variance=2.0, residual=True)
    with suppress(Interrupted):
        bayes.fit(Batches(loader("tuned"), stop=True), checkpoint=target)
    (path,) = target.iterdir()
    keep(target, path.stem, measured(bayes.fit(loader("tuned"))))


def keep(target, name, values):
    """Add the numbers of a file to those of its folder."""
    path = target / "expected.json"
    expected = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(expected | {name: values}, indent=1) + "\n")


if __name__ == "__main__":
    writers = {POSTERIORS: write_posteriors, TEMPERATURES: write_temperatures, CHECKPOINTS: write_checkpoint}
    for kind, write in writers.items():
        folder(kind).mkdir(parents=True, exist_ok=True)
        write(folder(kind))

"""Predictions for every structure, predictive, dtype, prior and size of input: is each row a probability?

    python benchmarks/faults/probabilities.py [--rows 2000000] [--seed 0]

Settings are drawn at random: k = 1 to 30 logits, prior variances from 1e-12 to 1e12, inputs from 0 to 1e37,
temperatures from 1e-3 to 1e3, with and without a residual. A row is bad if an entry is not finite, or is
negative, or if the sum is off by more than 1e-5 (bfloat16 and float16 predict in float32). Networks may
overflow: an error of bitbayes counts as refused, and any other error as a failure.
"""

import argparse
import random
import warnings
from collections import Counter

import torch
from torch import nn

import bitbayes as bb

STRUCTURES = {"last": ["full", "kron", "diag", "isotropic"], "all": ["kron", "diag", "full"]}
METHODS = ["probit", "pairwise", "meanfield", "bridge", "mc", "quadrature"]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
POINTS = 300


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    warnings.simplefilter("ignore")
    chance, found = random.Random(options.seed), Counter()
    while found["rows"] < options.rows:
        layers = chance.choices(["last", "all"], [3, 1])[0]
        setting = {
            "layers": layers,
            "structure": chance.choice(STRUCTURES[layers]),
            "residual": chance.random() < 0.5,
        }
        k, dtype = chance.choice([1, 2, 3, 10, 30 if layers == "last" else 5]), chance.choice(DTYPES)
        try:
            trial(chance, found, setting, k, dtype)
        except bb.errors.BitbayesError:
            found["refused"] += 1
        except Exception as error:
            found["failed"] += 1
            print(f"{setting}, k={k}, {dtype}: {type(error).__name__}: {error}", flush=True)
    print(", ".join(f"{name} {found[name]:,}" for name in ("fits", "rows", "bad", "refused", "failed")))


def trial(chance: random.Random, found: Counter, setting: dict, k: int, dtype: torch.dtype) -> None:
    """One fit, and predictions with some priors, temperatures and sizes of input."""
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, k)).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 10 ** chance.uniform(-1, 1)
    x, y = torch.randn(50, 6).to(dtype), torch.arange(50) % max(k, 2)
    bayes = bb.Laplace(model, **setting).fit([(x, y)], progress=False)
    found["fits"] += 1
    points = POINTS if setting["layers"] == "last" else POINTS // 5
    for _ in range(6):
        bayes.prior_variance = 10 ** chance.uniform(-12, 12)
        bayes.temperature = 10 ** chance.uniform(-3, 3)
        size = chance.choice([0.0, 1.0, 10 ** chance.uniform(-30, 37)])
        inputs = (size * torch.randn(points, 6, dtype=torch.float64)).to(dtype)
        for method in METHODS:
            if (method == "quadrature") != (k == 1) and method not in ("probit", "mc"):
                continue
            try:
                probs = bayes.predict_proba(inputs, method=method).double()
            except bb.errors.BitbayesError:
                found["refused"] += 1
                continue
            good = probs.isfinite().all(1) & (probs >= 0).all(1) & ((probs.sum(1) - 1).abs() <= 1e-5)
            found["rows"] += len(probs)
            found["bad"] += int((~good).sum())


if __name__ == "__main__":
    main()

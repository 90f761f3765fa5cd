"""How far is each closed form from Monte Carlo with 100,000 samples? On the embedded digits, near and far.

    python benchmarks/predictives.py [--points 500] [--samples 100000]

Prints the table of docs/predictives.md: for each set of inputs the mean confidence, the mean and largest
distance in total variation from Monte Carlo, and the share of labels that differ from the plain network's.
"""

import argparse
import warnings

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import bitbayes as bb


def monte_carlo(bayes: bb.Laplace, x: Tensor, samples: int, at_once: int = 1000) -> Tensor:
    """The network runs once; only the draws of its logits go on."""
    generator, gaussian = torch.Generator().manual_seed(0), bayes.logits(x)
    at_once = min(samples, at_once)
    likelihood = bayes.posterior.likelihood
    draws = (
        likelihood.drawn_probabilities(gaussian, at_once, generator).double().mean(0)
        for _ in range(samples // at_once)
    )
    return sum(draws) / (samples // at_once)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--points", type=int, default=500)
    parser.add_argument("--samples", type=int, default=100_000)
    options = parser.parse_args()
    warnings.simplefilter("ignore")

    digits, model = bb.toys.digits(), bb.toys.digits_lenet()
    train = DataLoader(TensorDataset(digits.train_images, digits.train_labels), batch_size=250)
    validation = DataLoader(
        TensorDataset(digits.test_images[:1000], digits.test_labels[:1000]), batch_size=250
    )
    test = digits.test_images[1000 : 1000 + options.points]
    noise = bb.outliers.uniform_noise(test, generator=torch.Generator().manual_seed(1))
    inputs = {
        "test digits": test,
        "Fashion-MNIST": digits.fashion_images[: options.points],
        "noise": noise,
        "noise × 100": 100 * noise,
        "test digits × 100": 100 * test,
    }
    print("| structure | inputs | method | confidence % | distance, mean | largest | labels changed % |")
    print("|---|---|---|--:|--:|--:|--:|")
    for structure in ("kron", "diag"):
        bayes = bb.Laplace(model, structure=structure).fit(train).tune(validation, objective="ood")
        for name, x in inputs.items():
            with torch.no_grad():
                labels = model(x).argmax(1)
            sampled = monte_carlo(bayes, x, options.samples)
            closed = ("pairwise", "meanfield", "probit", "bridge")
            predictions = {m: bayes.predict_proba(x, method=m).double() for m in closed}
            predictions["mc, 100 samples"] = monte_carlo(bayes, x, 100)
            predictions[f"mc, {options.samples:,} samples"] = sampled
            for method, probabilities in predictions.items():
                distance = (probabilities - sampled).abs().sum(1) / 2
                changed = (probabilities.argmax(1) != labels).double().mean()
                print(
                    f"| {structure} | {name} | {method} | {100 * bb.metrics.mmc(probabilities):.1f} "
                    f"| {distance.mean():.3f} | {distance.max():.3f} | {100 * changed:.1f} |",
                    flush=True,
                )
        print(f"<!-- {structure}: prior variance {bayes.prior_variance:.3g} -->")


if __name__ == "__main__":
    main()

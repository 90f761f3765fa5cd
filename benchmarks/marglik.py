"""Training by the evidence: beside laplace-torch's, and beside a penalty that validation data choose.

    python benchmarks/marglik.py [--seeds N]

First the same networks, initial weights, batches and schedule in both libraries. The networks have no biases,
for which laplace-torch has priors of their own. Then small data sets, some with wrong labels: means over N
splits of the NLL on rows that were not trained on. Prints the tables of docs/evidence.md.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
import warnings
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import bitbayes as bb
from bitbayes import metrics
from bitbayes.toys import digits
from residual import tables

Part = tuple[Tensor, Tensor]
Predict = Callable[[Tensor], Tensor]
SCHEDULE = {"burn_in": 10, "every": 5, "steps": 20}
THEIR_SCHEDULE = {"n_epochs_burnin": 10, "marglik_frequency": 5, "n_hypersteps": 20}
EPOCHS, PEER_EPOCHS = 100, 50
DECAYS = (0.0, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1)
ROWS = 400


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    seeds = parser.parse_args().seeds
    warnings.simplefilter("ignore")
    print_peer()
    print_small(seeds)


# ---- beside laplace-torch


def print_peer() -> None:
    print("| network | | evidence | prior precisions | test NLL | seconds |")
    print("|---|---|--:|---|--:|--:|")
    for name, model, train, test in problems():
        for library, train_it in (("bitbayes", ours), ("laplace-torch", theirs)):
            begun = time.perf_counter()
            network, evidence, precisions = train_it(copy.deepcopy(model), train)
            seconds = time.perf_counter() - begun
            shown = ", ".join(f"{each:.2f}" for each in precisions)
            nll = nll_of(network, test)
            print(
                f"| {name} | {library} | {evidence:.1f} | {shown} | {nll:.3f} | {seconds:.1f} |", flush=True
            )
    print()


def problems() -> Iterator[tuple[str, nn.Module, Part, Part]]:
    x, y = (torch.as_tensor(each) for each in tables()["digits, 8 × 8"])
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = x[order].float() / 16, y[order]
    torch.manual_seed(0)
    mlp = bb.toys.MLP((64, 50, 10), bias=False, last_bias=False)
    yield "MLP, 500 digits of 8 × 8", mlp, (x[:500], y[:500]), (x[500:], y[500:])
    data = digits()
    cnn = nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2, bias=False), nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, bias=False), nn.ReLU(),
        nn.Flatten(), nn.Linear(400, 10, bias=False),
    )  # fmt: skip
    some = data.train_images[:1000], data.train_labels[:1000]
    yield "CNN, 1,000 embedded digits", cnn, some, (data.test_images, data.test_labels)


def ours(model: nn.Module, train: Part) -> tuple[nn.Module, float, list[float]]:
    adam = torch.optim.Adam(model.parameters(), lr=0.005)
    loader = DataLoader(TensorDataset(*train), 50)
    found = bb.train_by_evidence(model, loader, adam, epochs=PEER_EPOCHS, **SCHEDULE)
    return model, found.evidence, [1 / each for each in found.prior_variance.values()]


def theirs(model: nn.Module, train: Part) -> tuple[nn.Module, float, list[float]]:
    from laplace.curvature import CurvlinopsGGN
    from laplace.marglik_training import marglik_training

    own = {"hessian_structure": "kron", "backend": CurvlinopsGGN, "optimizer_kwargs": {"lr": 0.005}}
    loader = DataLoader(TensorDataset(*train), 50)
    la, model, _, _ = marglik_training(
        model, loader, "classification", n_epochs=PEER_EPOCHS, **own, **THEIR_SCHEDULE
    )
    return model, float(la.log_marginal_likelihood()), la.prior_precision.tolist()


# ---- beside a penalty that validation data choose


def print_small(seeds: int) -> None:
    ways = {
        "no penalty": lambda train, seed: softmax_of(plain(train, seed, 0.0)),
        "weight decay 1e-4": lambda train, seed: softmax_of(plain(train, seed, 1e-4)),
        "weight decay by a fifth of the rows": decayed_by_validation,
        "temperature by a fifth of the rows": scaled_by_validation,
        "evidence, the network": lambda train, seed: by_evidence(train, seed)[0],
        "evidence, its Laplace": lambda train, seed: by_evidence(train, seed)[1],
    }
    print("| NLL on other rows | " + " | ".join(small_sets()) + " | seconds |")
    print("|---|" + "--:|" * (len(small_sets()) + 1))
    for name, way in ways.items():
        cells, begun = [], time.perf_counter()
        for x, y in small_sets().values():
            found = []
            for seed in range(seeds):
                order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
                train, test = order[:ROWS], order[ROWS:]
                centre, spread = x[train].mean(0), x[train].std(0) + 1e-2
                rows = (x - centre) / spread
                predict = way((rows[train], y[train]), seed)
                found.append(metrics.nll(predict(rows[test]), y[test]))
            deviation = statistics.stdev(found) if seeds > 1 else 0.0
            cells.append(f"{statistics.mean(found):.3f} ± {deviation:.3f}")
        each = (time.perf_counter() - begun) / (len(cells) * seeds)
        print(f"| {name} | " + " | ".join(cells) + f" | {each:.1f} |", flush=True)


def small_sets() -> dict[str, Part]:
    found = {}
    for name in ("breast cancer", "20% of labels flipped", "30% of labels flipped"):
        x, y = tables()[name]
        found[name] = torch.tensor(x).float(), torch.tensor(y)
    x, y = (torch.as_tensor(each) for each in tables()["digits, 8 × 8"])
    generator = torch.Generator().manual_seed(0)
    wrong = torch.rand(len(y), generator=generator) < 0.2
    noisy = torch.where(wrong, torch.randint(0, 10, y.shape, generator=generator), y)
    found["digits"] = x.float(), y
    found["digits, a fifth at random"] = x.float(), noisy
    return found


def network(train: Part, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return bb.toys.MLP((train[0].shape[1], 50, 50, int(train[1].max()) + 1))


def loader(train: Part) -> DataLoader:
    return DataLoader(TensorDataset(*train), 50, shuffle=True)


def plain(train: Part, seed: int, decay: float) -> nn.Module:
    model = network(train, seed)
    adam = torch.optim.Adam(model.parameters(), lr=0.003, weight_decay=decay)
    batches = loader(train)
    for _ in range(EPOCHS):
        for x, y in batches:
            adam.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            adam.step()
    return model


def parts(train: Part) -> tuple[Part, Part]:
    cut = len(train[0]) * 4 // 5
    return tuple(each[:cut] for each in train), tuple(each[cut:] for each in train)


def decayed_by_validation(train: Part, seed: int) -> Predict:
    """The weight decay with the least NLL on a fifth of the rows, then trained again on all."""
    most, rest = parts(train)
    costs = {decay: nll_of(plain(most, seed, decay), rest) for decay in DECAYS}
    return softmax_of(plain(train, seed, min(costs, key=costs.__getitem__)))


def scaled_by_validation(train: Part, seed: int) -> Predict:
    """Trained on four fifths, and a temperature on the other."""
    most, rest = parts(train)
    scaled = bb.TemperatureScaling(plain(most, seed, 1e-4))
    return scaled.fit([rest], progress=False).predict_proba


def by_evidence(train: Part, seed: int) -> tuple[Predict, Predict]:
    """The network and its `Laplace`."""
    model = network(train, seed)
    adam = torch.optim.Adam(model.parameters(), lr=0.003)
    found = bb.train_by_evidence(model, loader(train), adam, epochs=EPOCHS, progress=False, **SCHEDULE)
    return softmax_of(model), found.laplace.predict_proba


def softmax_of(model: nn.Module) -> Predict:
    return torch.no_grad()(lambda x: model(x).softmax(1))


def nll_of(model: nn.Module, test: Part) -> float:
    return metrics.nll(softmax_of(model)(test[0]), test[1])


if __name__ == "__main__":
    main()

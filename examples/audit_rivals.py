"""One audit of a network and its rivals: laplace-torch, an ensemble of five networks, a random forest.

    python examples/audit_rivals.py       # takes seconds on one CPU core, and writes audit-rivals.html

All are trained on the two moons. The network gets the audit's own columns: temperature scaling, the energy,
and bitbayes. The others are taken as they are. laplace-torch and scikit-learn join in if they are installed.
Points on a ring around the moons belong to neither of them.
"""

import math
import sys
import warnings
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

import bitbayes as bb

Points = tuple[Tensor, Tensor]
NOISE = 0.25
MEMBERS = 5


def trained(points: Points, seed: int, steps: int) -> nn.Module:
    """A network that was trained on the points, from random weights of this seed."""
    torch.manual_seed(seed)
    net = bb.toys.MLP((2, 50, 50, 2))
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-2)
    x, y = points
    for _ in range(steps):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimiser.step()
    return net.eval()


def ring(n: int) -> Tensor:
    """Points (n, 2) on a circle around the moons."""
    angles = 2 * math.pi * torch.arange(n) / n
    return torch.stack([0.5 + 3 * angles.cos(), 0.25 + 3 * angles.sin()], dim=1)


def laplace_torch(net: nn.Module, train: Points) -> bb.Predictor:
    """Its last-layer Kronecker posterior with the probit predictive, tuned by the marginal likelihood."""
    from laplace import Laplace
    from torch.utils.data import DataLoader, TensorDataset

    la = Laplace(net, "classification", subset_of_weights="last_layer", hessian_structure="kron")
    la.fit(DataLoader(TensorDataset(*train), 250))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # it always says that its default is the probit
        la.optimize_prior_precision(method="marglik")
    return bb.Predictor(lambda x: la(x, link_approx="probit"))


def forest(train: Points) -> bb.Predictor:
    """A random forest of scikit-learn. It reads tensors, and returns an array of numpy."""
    from sklearn.ensemble import RandomForestClassifier

    clf = RandomForestClassifier(200, min_samples_leaf=5, random_state=0).fit(
        *(each.numpy() for each in train)
    )
    return bb.Predictor(clf.predict_proba)


def audit(points: int = 400, steps: int = 300) -> Any:
    """The report of all of them, each trained on so many points in so many steps."""
    train, validation, test = (bb.toys.two_moons(points, noise=NOISE, seed=seed) for seed in (1, 2, 3))
    net = trained(train, 0, steps)
    members = [net, *(trained(train, seed, steps) for seed in range(1, MEMBERS))]

    def ensemble(x: Tensor) -> Tensor:
        return torch.stack([member(x).softmax(1) for member in members]).mean(0)

    models: dict[str, Any] = {"net": net, f"{MEMBERS} networks": ensemble}
    if find_spec("laplace"):
        models["laplace-torch"] = laplace_torch(net, train)
    if find_spec("sklearn"):
        models["forest"] = forest(train)
    return bb.audit(models, train, validation, test, {"ring": ring(points)}, name="Two moons")


def main(path: str = "audit-rivals.html") -> None:
    report = audit()
    print(report)
    print(f"\n{'':14}{'log loss':>10}{'ECE, %':>10}{'AUROC, %':>10}   (the ring)")
    for name in report.methods:
        on_test, on_ring = report.test[name], report.outliers[0].scores[name]
        print(f"{name:14}{on_test.nll:10.3f}{100 * on_test.ece:10.1f}{100 * on_ring.auroc:10.1f}")
    report.save(path)
    print(f"\nThe whole report: {path}")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The methods of the figures in the plane, fitted to the toy problems."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

import bitbayes as bb
from bitbayes.toys import Toy
from paper.methods import Hyperparameters, ignore_edge_warnings, probabilities

TOY_OUTLIER_WEIGHT = 1.0  # λ of the toys, from the paper's code


class FittedMethod(NamedTuple):
    """A method fitted to a toy problem."""

    predict_proba: Callable[[Tensor], Tensor]  # maps points (n, 2) to probabilities (n, k)
    chosen: Hyperparameters


def fit_laplace(toy: Toy, network: nn.Module, **options: object) -> bb.Laplace:
    """Return a Laplace approximation, fitted to the training points and tuned by the paper's objective."""
    bayes = bb.Laplace(network, **options)  # type: ignore[arg-type]
    bayes.fit([(toy.x, toy.y)], progress=False)
    with ignore_edge_warnings():
        bayes.tune(
            [toy.validation],
            outliers=toy.draw_outliers(),
            objective="ood",
            weight=TOY_OUTLIER_WEIGHT,
            progress=False,
        )
    return bayes


def fit_laplace_with_residual(toy: Toy, network: nn.Module) -> bb.Laplace:
    """Return a Laplace approximation with the residual, tuned by the validation NLL alone."""
    bayes = bb.Laplace(network, structure="full").fit([(toy.x, toy.y)], progress=False)
    with ignore_edge_warnings():
        return bayes.tune([toy.validation], progress=False)


def fit_methods(toy: Toy, network: nn.Module) -> dict[str, FittedMethod]:
    """Return the fitted methods, by the names that the figure gives them."""
    scaled = bb.TemperatureScaling(network).fit([toy.validation], progress=False)

    @torch.no_grad()
    def plain(x: Tensor) -> Tensor:
        return probabilities(network(x))

    bayes = {
        "Last layer": fit_laplace(toy, network, structure="full"),
        "All layers": fit_laplace(toy, network, layers="all", structure="full"),
        "Isotropic": fit_laplace(toy, network, structure="isotropic"),
        "Residual": fit_laplace_with_residual(toy, network),
    }
    return {
        "Plain": FittedMethod(plain, {}),
        "Temperature": FittedMethod(scaled.predict_proba, {"temperature": scaled.temperature}),
        **{name: FittedMethod(each.predict_proba, _chosen(each)) for name, each in bayes.items()},
    }


def _chosen(bayes: bb.Laplace) -> Hyperparameters:
    """Return the numbers that were tuned."""
    if not bayes.settings.has_residual:
        return {"prior_variance": bayes.prior_variance}
    return bayes.settings.as_json()

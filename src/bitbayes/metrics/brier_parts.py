"""What a Brier score consists of: calibration and refinement."""

from typing import NamedTuple

import torch
from torch import Tensor

from bitbayes.metrics.checks import bin_numbers, check_labels, check_probs, weights_or_ones


class BrierParts(NamedTuple):
    """The parts of a Brier score, which is their sum. `brier_decomposition` computes them."""

    calibration: float  # 0 if the probabilities in each bin are right on average
    refinement: float  # 0 if all points of a bin have the same label
    within_bins: float  # what probabilities that differ within a bin add, or save if they know more


def brier_decomposition(
    probs: Tensor, labels: Tensor, bins: int = 15, *, weights: Tensor | None = None
) -> BrierParts:
    """Return the parts of `brier`: Σᵢ Σ_b count_b/n · [(p_b − y_b)² + y_b(1 − y_b) + v_b].

    They are the calibration (reliability), the refinement and the rest within bins. The sum is over the
    classes i, and for each over the bins b of the probability pₙᵢ, as in `ece_per_class`. p_b is the mean of
    the pₙᵢ in the bin, y_b the share of its points whose label is i, and v_b = Var_b(pₙᵢ) − 2 Cov_b(pₙᵢ,
    [yₙ = i]). So the parts add up exactly (Stephenson, Coelho and Jolliffe 2008). v_b is 0 if all
    probabilities of a bin are equal, and else small, often negative.

    The calibration of a perfectly calibrated model is not 0: on average it is about Σᵢ Σ_b y_b(1 − y_b)/n.

    Args:
        probs: probabilities (n, k).
        labels: class numbers (n,).
        bins: the number of bins.
        weights: how many times each point counts, (n,); once without them.

    >>> brier_decomposition(torch.tensor([[0.75, 0.25], [0.75, 0.25]]), torch.tensor([0, 1]))
    BrierParts(calibration=0.125, refinement=0.5, within_bins=0.0)
    """
    probs = check_probs(probs)
    labels = check_labels(labels, probs)
    w = weights_or_ones(weights, len(probs))
    totals = torch.zeros(3, dtype=torch.float64)
    for i, p in enumerate(probs.T):  # (n,)
        y, bin_of = (labels == i).double(), bin_numbers(p, bins)
        count = torch.bincount(bin_of, weights=w)  # (bins,), up to the last that has points
        # An empty bin, or one of points without weight, gives 0/0 = NaN, which nothing below asks for.
        mean_p, mean_y = (torch.bincount(bin_of, weights=w * each) / count for each in (p, y))
        own_p, own_y = mean_p[bin_of], mean_y[bin_of]  # (n,)
        parts = torch.stack(
            (
                (own_p - own_y).square(),
                own_y * (1 - own_y),
                (p - own_p).square() - 2 * (p - own_p) * (y - own_y),
            )
        )  # (3, n)
        totals += parts[:, w > 0] @ w[w > 0]
    return BrierParts(*(totals / w.sum()).tolist())

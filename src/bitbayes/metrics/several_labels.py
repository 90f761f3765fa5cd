"""Measures of the predictions of several labels for each point.

`probs` (n, k) are the probabilities of k labels, whose rows do not sum to one, and `labels` (n, k) are 0 and
1. A label is given to a point if its probability is at least its threshold: one number, or one for each
label, (k,). All sums are taken in float64 on the CPU.
"""

import warnings
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from bitbayes.errors import ArgumentError, DataError, FewPointsWarning, level_of_the_caller, one_of
from bitbayes.metrics.checks import bin_numbers

# How many labels without positives a warning shows.
SHOWN_LABELS = 10


def label_nll(probs: Tensor, labels: Tensor) -> float:
    """Return the negative log-likelihood in nats: −1/n Σₙ Σᵢ log p(yₙᵢ), the sum over all labels.

    The result is always finite: probabilities of 0 are taken as `nll` takes them.

    Args:
        probs: (n, k), the probabilities of the labels.
        labels: (n, k), 0 and 1.

    >>> round(label_nll(torch.tensor([[0.5, 0.75]]), torch.tensor([[1, 0]])), 4)  # log 2 + log 4
    2.0794
    """
    p, y = _checked(probs, labels)
    floor = torch.finfo(torch.promote_types(probs.dtype, torch.float32)).tiny
    return -torch.where(y, p, 1 - p).clamp(min=floor).log().sum(1).mean().item()


def label_brier(probs: Tensor, labels: Tensor) -> float:
    """Return the Brier score: 1/n Σₙ Σᵢ (pₙᵢ − yₙᵢ)², the sum over all labels.

    Args:
        probs: (n, k), the probabilities of the labels.
        labels: (n, k), 0 and 1.

    >>> label_brier(torch.tensor([[0.5, 0.75]]), torch.tensor([[1, 0]]))
    0.8125
    """
    p, y = _checked(probs, labels)
    return (p - y.double()).square().sum(1).mean().item()


def label_ece(probs: Tensor, labels: Tensor, bins: int = 15) -> float:
    """Return the expected calibration error of all n·k probabilities: Σ_b count_b/(nk) · |share_b − p_b|.

    Bin b holds the probabilities from b/bins to below (b+1)/bins, the last one also 1. p_b is their mean, and
    share_b the share of their labels that are 1.

    Args:
        probs: (n, k), the probabilities of the labels.
        labels: (n, k), 0 and 1.
        bins: the number of bins.

    >>> label_ece(torch.tensor([[0.75, 0.25], [0.75, 0.25]]), torch.tensor([[1, 0], [0, 0]]))
    0.25
    """
    p, y = (each.flatten().double() for each in _checked(probs, labels))
    gaps = torch.bincount(bin_numbers(p, bins), weights=y - p, minlength=bins)
    return (gaps.abs().sum() / len(p)).item()


def label_mmc(probs: Tensor) -> float:
    """Return the mean confidence in a single label, 1/(nk) Σ max(pₙᵢ, 1 − pₙᵢ), of `probs` (n, k).

    >>> label_mmc(torch.tensor([[0.5, 0.25]]))
    0.625
    """
    p = _check_probs(probs)
    return torch.maximum(p, 1 - p).mean().item()


def subset_accuracy(probs: Tensor, labels: Tensor, *, thresholds: float | Tensor = 0.5) -> float:
    """Return the share of points all of whose labels are predicted right.

    Args:
        probs: (n, k), the probabilities of the labels.
        labels: (n, k), 0 and 1.
        thresholds: from which a label is given, one number or (k,).

    >>> subset_accuracy(torch.tensor([[0.9, 0.1], [0.9, 0.9]]), torch.tensor([[1, 0], [1, 0]]))
    0.5
    """
    return all_right(probs, labels, thresholds).double().mean().item()


def all_right(probs: Tensor, labels: Tensor, thresholds: float | Tensor = 0.5) -> Tensor:
    """Return whether all labels of a point are predicted right, (n,) booleans."""
    p, y = _checked(probs, labels)
    return ((p >= _check_thresholds(thresholds, p)) == y).all(1)


def hamming(probs: Tensor, labels: Tensor, *, thresholds: float | Tensor = 0.5) -> float:
    """Return the share of the n·k labels that are predicted wrong.

    Args:
        probs: (n, k), the probabilities of the labels.
        labels: (n, k), 0 and 1.
        thresholds: from which a label is given, one number or (k,).

    >>> hamming(torch.tensor([[0.9, 0.1], [0.9, 0.9]]), torch.tensor([[1, 0], [1, 0]]))
    0.25
    """
    p, y = _checked(probs, labels)
    return ((p >= _check_thresholds(thresholds, p)) != y).double().mean().item()


def f1(
    probs: Tensor,
    labels: Tensor,
    *,
    thresholds: float | Tensor = 0.5,
    average: Literal["macro", "micro"] = "macro",
) -> float:
    """Return F1 = 2·right/(given + true): right are the labels that are given and true.

    Args:
        probs: (n, k), the probabilities of the labels.
        labels: (n, k), 0 and 1.
        thresholds: from which a label is given, one number or (k,).
        average: "macro", the mean of the F1 of each label, which is 0 for one that is neither given nor true;
            or "micro", the F1 of all labels together.

    >>> probs, labels = torch.tensor([[0.9, 0.1], [0.9, 0.9]]), torch.tensor([[1, 0], [1, 0]])
    >>> f1(probs, labels), f1(probs, labels, average="micro")
    (0.5, 0.8)
    """
    one_of("average", average, ("macro", "micro"))
    p, y = _checked(probs, labels)
    given = p >= _check_thresholds(thresholds, p)
    right, total = (given & y).double().sum(0), given.double().sum(0) + y.double().sum(0)  # (k,) each
    if average == "micro":
        right, total = right.sum(), total.sum()
    return (2 * right / total.clamp(min=1)).mean().item()


def mean_average_precision(probs: Tensor, labels: Tensor) -> float:
    """Return the mean of Σᵢ (recallᵢ − recallᵢ₋₁)·precisionᵢ over the labels that some points have.

    The sum is over all thresholds of a label, in descending order. It is NaN if no point has any label.

    Args:
        probs: (n, k), the probabilities of the labels.
        labels: (n, k), 0 and 1.

    >>> mean_average_precision(torch.tensor([[0.9], [0.8], [0.1]]), torch.tensor([[1], [0], [1]]))
    0.8333333333333333
    """
    p, y = _checked(probs, labels)
    found = []
    for own, true in zip(p.T, y.T, strict=True):
        if bool(true.any()):
            _, right, given = _at_thresholds(own, true)
            gains = torch.diff(right, prepend=right.new_zeros(1)) / right[-1]
            found.append((gains * right / given).sum())
    return torch.stack(found).mean().item() if found else float("nan")


def label_thresholds(
    probs: Tensor,
    labels: Tensor,
    *,
    maximise: Literal["f1"] = "f1",
    precision: float | None = None,
    recall: float | None = None,
) -> Tensor:
    """Return for each label the probability from which it is given, (k,) in float64.

    A threshold is halfway between two neighbouring probabilities of the points. Of equally good ones, the
    largest is taken. A label that no point has gets 0.5, with a `FewPointsWarning`.

    Args:
        probs: (n, k), the probabilities of the labels.
        labels: (n, k), 0 and 1.
        maximise: what is maximised, the F1 of each label.
        precision: in its place, the least share of the given labels that must be true. Of such thresholds the
            one of the largest recall is taken. If a label has none, it gets the one of the largest precision,
            with a warning.
        recall: in its place, the least share of the true labels that must be given. The largest such
            threshold is taken.

    >>> probs = torch.tensor([[0.9, 0.2], [0.5, 0.1], [0.2, 0.0]])
    >>> labels = torch.tensor([[1, 1], [0, 0], [0, 0]])
    >>> label_thresholds(probs, labels)
    tensor([0.7000, 0.1500], dtype=torch.float64)
    """
    choose = threshold_choice(maximise, precision, recall)
    p, y = _checked(probs, labels)
    absent = [number for number in range(p.shape[1]) if not bool(y[:, number].any())]
    found, missed = torch.full((p.shape[1],), 0.5, dtype=torch.float64), []
    for number in range(p.shape[1]):
        if number in absent:
            continue
        values, right, given = _at_thresholds(p[:, number], y[:, number])
        index, reached = choose(right, given)
        if not reached:
            missed.append(number)
        below = values[index + 1] if index + 1 < len(values) else values.new_zeros(())
        found[number] = (values[index] + below) / 2
    if absent:
        _warn(f"no point has {_shown(absent)}, whose threshold is 0.5: give more points")
    if missed:
        _warn(f"no threshold of {_shown(missed)} has a precision of {precision}: the best was taken")
    return found


# From right and given labels at each threshold, (m,), to the index of one, and whether it is good enough.
Choice = Callable[[Tensor, Tensor], tuple[int, bool]]


def threshold_choice(maximise: str, precision: float | None, recall: float | None) -> Choice:
    """Return how `label_thresholds` chooses; raises if its arguments are not valid."""
    one_of("maximise", maximise, ("f1",))
    if precision is not None and recall is not None:
        raise ArgumentError(f"precision={precision!r}, recall={recall!r}: give one of them")
    for name, share in (("precision", precision), ("recall", recall)):
        if share is not None and (not isinstance(share, (int, float)) or not 0 < share <= 1):
            raise ArgumentError(f"{name}={share!r}: give a share, above 0 and at most 1")

    def choose(right: Tensor, given: Tensor) -> tuple[int, bool]:
        if precision is not None:
            good = (right / given >= precision).nonzero()[:, 0]
            return (int(good[-1]), True) if len(good) else (int((right / given).argmax()), False)
        if recall is not None:
            return int((right / right[-1] >= recall).nonzero()[0, 0]), True
        return int((right / (given + right[-1])).argmax()), True

    return choose


def _at_thresholds(probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The distinct probabilities (m,) in descending order, and the right and given labels from each on."""
    values, of_value = torch.unique(-probs, return_inverse=True)
    right = torch.bincount(of_value, weights=labels.double()).cumsum(0)
    given = torch.bincount(of_value).cumsum(0).double()
    return -values, right, given


def _warn(message: str) -> None:
    warnings.warn(message, FewPointsWarning, stacklevel=level_of_the_caller())


def _shown(numbers: list[int]) -> str:
    more = ", …" if len(numbers) > SHOWN_LABELS else ""
    names = ", ".join(map(str, numbers[:SHOWN_LABELS]))
    return f"the label{'s' if len(numbers) > 1 else ''} {names}{more}"


def _checked(probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities in float64 and labels as booleans, on the CPU; raises if they do not fit."""
    p = _check_probs(probs)
    if not isinstance(labels, Tensor) or labels.shape != p.shape:
        given = tuple(labels.shape) if isinstance(labels, Tensor) else type(labels).__name__
        raise DataError(f"labels is {given}, but probs has shape {tuple(p.shape)}: give one 0 or 1 for each")
    y = labels.detach().cpu()
    if not bool(((y == 0) | (y == 1)).all()):
        raise DataError(f"labels holds {torch.unique(y).tolist()[:5]}: give 0 and 1")
    return p, y == 1


def _check_probs(probs: Tensor) -> Tensor:
    """Probabilities (n, k) in float64 on the CPU."""
    if not isinstance(probs, Tensor) or not probs.is_floating_point() or probs.dim() != 2 or not len(probs):
        given = f"{probs.dtype} {tuple(probs.shape)}" if isinstance(probs, Tensor) else type(probs).__name__
        raise DataError(f"probs is {given}: give floating-point probabilities (n, k), one for each label")
    p = probs.detach().to("cpu", torch.float64)
    if not bool(((p >= 0) & (p <= 1)).all()):
        raise DataError("probs holds numbers that are not from 0 to 1: give probabilities, not logits")
    return p


def _check_thresholds(thresholds: float | Tensor, probs: Tensor) -> Tensor:
    """Thresholds (k,) or () in float64 on the CPU."""
    found = torch.as_tensor(thresholds, dtype=torch.float64).detach().cpu()
    if found.shape not in ((), probs.shape[1:]) or not bool(found.isfinite().all()):
        raise ArgumentError(
            f"thresholds has shape {tuple(found.shape)}: give one finite number, or one for each of "
            f"{probs.shape[1]} labels"
        )
    return found

"""What may be wrong with the data of an audit: copies across sets, missing classes, shifted labels."""

from collections import Counter
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from bitbayes.auditing.findings import DataChecks, LabelShift
from bitbayes.model import DataDigest, Inputs

# A class with fewer points, or with a smaller share of them at another class, is not taken for a moved one.
ENOUGH_OF_A_CLASS, MOST_OF_A_CLASS = 10, 2 / 3
COPIES_WORTH_A_WORD = 0.01  # the share of a set
# How much the accuracy must gain by other labels before some of them, or all, are called shifted.
CLEAR_GAIN, LARGE_GAIN = 0.1, 0.3


class InputHashes:
    """The hashes of a set's inputs, one for each, collected batch by batch.

    >>> x = torch.arange(6.0).reshape(3, 2)
    >>> train, validation = InputHashes(), InputHashes()
    >>> train.add(x, 3)
    >>> validation.add(x[1:] + torch.tensor([[0.0], [1.0]]), 2)
    >>> count_copies(validation.parts, train.parts)
    1
    """

    def __init__(self) -> None:
        self.parts: list[Tensor] = []
        self._digest = DataDigest()

    def add(self, inputs: Inputs, n: int) -> None:
        """Add the n inputs of a batch."""
        self.parts.append(self._digest.hash_inputs(inputs, n).cpu())


def count_copies(hashes: Iterable[Tensor], among: Iterable[Tensor]) -> int:
    """Return how many of some hashes are also among the others. Both come in parts, (n,) each.

    >>> count_copies([torch.tensor([1, 2]), torch.tensor([2, 5])], [torch.tensor([2, 3])])
    2
    """
    hashes, among = list(hashes), list(among)
    if not hashes or not among:
        return 0
    return int(torch.isin(torch.cat(hashes), torch.cat(among)).sum())


def many_copies(checks: DataChecks, sizes: Mapping[str, int], name: str) -> bool:
    """Return whether so many inputs are copies, in sets such as "test in train", that it matters."""
    count = checks.copies.get(name, 0)
    return count > 0 and count >= COPIES_WORTH_A_WORD * sizes[name.split()[0]]


def find_shift(predicted: Tensor, labels: Tensor, classes: int) -> LabelShift | None:
    """Return how labels (n,) seem to be moved against the predicted classes (n,), or None.

    They seem so if the network would often be right with y + s modulo k, for one s, in place of each label y;
    or if it gives most points of some classes the number of another, each class another one.

    >>> y = torch.arange(40) % 4
    >>> find_shift(predicted=y, labels=(y - 1) % 4, classes=4)
    LabelShift(accuracy=0.0, other_accuracy=1.0, by=1, moved=[[0, 1], [1, 2], [2, 3], [3, 0]])
    """
    known = labels >= 0
    predicted, labels = predicted[known], labels[known]
    n = len(labels)
    if n < ENOUGH_OF_A_CLASS:
        return None
    right_by = ((predicted - labels) % classes).bincount(minlength=classes) / n  # (k,): accuracy with y + s
    accuracy, by = float(right_by[0]), int(right_by.argmax())
    present = sorted(set(labels.tolist()))
    if classes > 2 and right_by[by] >= accuracy + LARGE_GAIN and right_by[by] > 0.5:
        return LabelShift(accuracy, float(right_by[by]), by, [[y, (y + by) % classes] for y in present])
    answers = Counter(zip(labels.tolist(), predicted.tolist(), strict=True))
    totals = Counter(labels.tolist())
    goes_to = {y: y for y in present}
    for (y, other), count in answers.items():
        if totals[y] >= ENOUGH_OF_A_CLASS and count > MOST_OF_A_CLASS * totals[y]:
            goes_to[y] = other
    moved = [[y, other] for y, other in goes_to.items() if y != other]
    gain = sum(answers[y, other] - answers[y, y] for y, other in moved)
    is_permutation = len(set(goes_to.values())) == len(goes_to)
    if not is_permutation or gain < CLEAR_GAIN * n:
        return None
    return LabelShift(accuracy, accuracy + gain / n, None, moved)

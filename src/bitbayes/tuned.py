"""What is known of the data that `tune` has seen: their digest, and how confident predictions on them are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from bitbayes.fitted import DataEntry

# How many quantiles of the confidences are kept.
QUANTILES = 200


@dataclass(frozen=True)
class TunedData:
    """The data of `tune`, as a frozen value beside the `Settings`.

    entries: of the data that the settings were chosen on.
    points: how many of them have a confidence: 0 in regression.
    confidences: quantiles of their confidences, in descending order. Each is one of them.
    accepted: how many of them have at least that confidence.
    errors: how many of these are predicted wrong.

    >>> found = TunedData.of((), torch.tensor([0.9, 0.6, 0.9, 0.7]), torch.tensor([0, 1, 0, 0]))
    >>> found.accepted, found.errors
    ((2, 3, 4), (0, 0, 1))
    """

    entries: tuple[DataEntry, ...]
    points: int = 0
    confidences: tuple[float, ...] = ()
    accepted: tuple[int, ...] = ()
    errors: tuple[int, ...] = ()

    @classmethod
    def of(cls, entries: tuple[DataEntry, ...], confidences: Tensor, wrong: Tensor) -> Self:
        """From the confidences of all points, (n,), and whether they are predicted wrong, (n,)."""
        ordered, order = confidences.double().cpu().sort(descending=True)
        errors, n = wrong.cpu()[order].long().cumsum(0), len(ordered)
        places = -(-torch.arange(1, QUANTILES + 1) * n // QUANTILES) - 1  # ⌈i·n/200⌉ − 1
        values = torch.unique(ordered[places]).flip(0)
        # Points that share a confidence are accepted together.
        accepted = torch.searchsorted(-ordered, -values, right=True)
        found: tuple[list[float], list[int], list[int]]
        found = values.tolist(), accepted.tolist(), errors[accepted - 1].tolist()
        return cls(entries, n, *map(tuple, found))  # type: ignore[arg-type]

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Self:
        """From what `dataclasses.asdict` has made of one, as it comes back from JSON."""
        entries = tuple(
            DataEntry.of(int(each["count"]), int(each["digest"]), float(each["weight"]))
            for each in values["entries"]
        )
        confidences = tuple(float(each) for each in values["confidences"])
        accepted, errors = (tuple(int(each) for each in values[name]) for name in ("accepted", "errors"))
        if not len(confidences) == len(accepted) == len(errors):
            raise ValueError("the quantiles of the confidences have not as many counts")
        return cls(entries, int(values["points"]), confidences, accepted, errors)


def seen_data(fitted: Iterable[DataEntry], tuned: TunedData | None) -> dict[int, str]:
    """The digests of the data that nothing can be promised on: "fit" or "tune", or both, by their digest.

    These are the data of each `fit`, `update` and `tune`, those of all fits, and all of them together.
    """
    first, second = tuple(fitted), () if tuned is None else tuned.entries
    found = {DataEntry.joined([*first, *second]).digest: "`fit` and `tune`"}
    for entries, name in ((first, "`fit`"), (second, "`tune`")):
        found |= {each.digest: name for each in (*entries, DataEntry.joined(entries))}
    return found

"""The batches of calibration data, which neither `fit` nor `tune` may have seen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bitbayes.errors import DataError
from bitbayes.model import Batch, DataDigest, Loader, check_loader, labelled_batches
from bitbayes.predicting import Predictor
from bitbayes.progress import track


def calibration_batches(
    predictor: Predictor, loader: Loader, seen: Mapping[int, str], task: str, progress: bool | None
) -> Iterator[Batch]:
    """The labelled batches of a loader. After the last, raise a `DataError` if such data were seen before.

    A digest is that of all points together. So the data of a `fit`, an `update` or a `tune`, and those of all
    of them, are noticed in any order and batches. A part of them, or they with other points, are not.

    Args:
        predictor: for its model.
        loader: the calibration data.
        seen: what has seen data, by their digest (`seen_data`).
        task: for the progress bar.
        progress: whether to show one.
    """
    digest, count = DataDigest(), 0
    for batch in labelled_batches(track(check_loader(loader), task, progress), predictor.posterior.model):
        assert batch.labels is not None
        digest.add(batch)  # now: the model may change its inputs
        count += len(batch.labels)
        yield batch
    if (by := seen.get(int(digest) % 2**64)) is not None:
        raise DataError(
            f"{by} has seen these {count:,} points: predictions are better on them than on new ones, and "
            "nothing can be promised. Give labelled data that nothing was chosen on"
        )

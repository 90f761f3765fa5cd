"""The residual of a fitted model: the distances of inputs from the training data, at all levels."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from bitbayes.errors import ArgumentError, DataError
from bitbayes.model import Batch, Inputs, Level, Observer, SideEffects, private_copy, row_count, run_levels
from bitbayes.model.head.levels import CLASSES, HEAD, INPUT
from bitbayes.model.loaders.batches import LABELS
from bitbayes.model.loaders.sides import pair_for
from bitbayes.precision import prediction_dtype
from bitbayes.residual.distances import ClassDistance, Distance
from bitbayes.residual.sums import CONSTANT, LARGEST_WIDTH, LevelSums


@dataclass
class Residual:
    """Distances from the training data at the input, if it can be measured, and at the `levels`.

    If the head's sums have means of classes, the last distance is that of the head's features from these.

    sums: of the training data, by the name of the level; the input's is called "input" and comes first, the
        head's "head" and comes last.
    effects: what running the model does besides its output.
    """

    model: nn.Module
    levels: tuple[Level, ...]
    sums: dict[str, LevelSums]
    effects: SideEffects = field(default_factory=SideEffects)
    # By device and dtype.
    _distances: dict[tuple[torch.device, torch.dtype], dict[str, Distance]] = field(
        default_factory=dict, init=False, repr=False
    )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all levels, in the order of the columns of the distances."""
        return (*self.sums, CLASSES) if self.measures_classes else tuple(self.sums)

    @property
    def measures_classes(self) -> bool:
        """Whether the distance from the classes is measured."""
        return HEAD in self.sums and self.sums[HEAD].has_classes

    @property
    def measures_input(self) -> bool:
        """Whether the input itself is a level: it moves along every ray δ·x with x ≠ 0."""
        return INPUT in self.sums

    @property
    def near_names(self) -> tuple[str, ...]:
        """The levels that count near the data: all but the pixels of an image, if there are others.

        The distance of pixels says little of what an image shows. It counts beyond the data.
        """
        pixels = INPUT in self.sums and not self.sums[INPUT].correlated
        return self.names[1:] if pixels and len(self.names) > 1 else self.names

    def network(self) -> nn.Module:
        """A private copy of the model to run."""
        return private_copy(self.model, self.effects)

    def observer(self, inputs: Inputs) -> Observer:
        """What measures the levels of these inputs. Call it before the model runs, which may change them."""
        if INPUT not in self.sums:
            return Observer(self.levels, self._observe)
        sides = pair_for(self.model, inputs) or (inputs,)
        found = [self._measure(INPUT, as_rows(each)) for each in sides]
        return Observer(self.levels, self._observe, (_joined(found),))

    def _observe(self, seen: list[Tensor]) -> Tensor:
        """The distances (n, levels), from that of the input, if it has one, and the rows of the levels.

        Those of pairs are (n, 2, levels).
        """
        count = len(seen) - len(self.levels)
        found, rows = seen[:count], seen[count:]
        found += [self._measure(level.name, each) for level, each in zip(self.levels, rows, strict=True)]
        if self.measures_classes:
            found.append(self._measure(CLASSES, rows[-1]))
        return torch.stack([each.to(found[0].device) for each in found], -1)

    def attach(self, batch: Batch) -> Batch:
        """The batch with an observer that measures its distances."""
        return replace(batch, observer=self.observer(batch.inputs))

    def distances(self, inputs: Inputs) -> Tensor:
        """The distances (n, levels) of inputs, or (n, 2, levels) of pairs, by a run of the model."""
        observer = self.observer(inputs)
        rows = run_levels(self.network(), self.levels, inputs)
        found = observer.look(rows)
        assert found is not None
        return found

    def with_repeats(self, inputs: Tensor, hidden: list[Tensor]) -> list[Tensor]:
        """What each distance measures, in the order of `names`: inputs, `levels`, and the last once more."""
        found = [inputs, *hidden] if self.measures_input else list(hidden)
        return [*found, hidden[-1]] if self.measures_classes else found

    def _make_distance(self, name: str, device: torch.device, dtype: torch.dtype) -> Distance:
        """The distance that has this name.

        A column of a table that was always 0 is far if it is anything else. A dead unit or a dark pixel that
        lights up is only as far as any other.
        """
        if name == CLASSES:
            return ClassDistance.of_classes(self.sums[HEAD], device, dtype)
        sums = self.sums[name]
        return Distance.of(sums, device, dtype, CONSTANT if name == INPUT and sums.correlated else 1.0)

    def _measure(self, name: str, rows: Tensor) -> Tensor:
        """The distances (n,) of rows (n, d), or (n, 2) of those of pairs, (n, 2, d)."""
        if rows.dim() == 3:
            return _joined([self._measure(name, each) for each in rows.unbind(1)])
        sums = self.sums[HEAD if name == CLASSES else name]
        if rows.shape[1] != len(sums.mean):
            if rows.numel() == len(sums.mean):
                raise DataError(f"{rows.numel()} numbers are one row: use x[None]")
            what = "an input" if name == INPUT else f"an input of the layer {name!r}"
            raise DataError(
                f"{what} of {rows.shape[1]} numbers, but the training data's have {len(sums.mean)}: the "
                "residual needs all of one size. Use residual=False"
            )
        if rows.device.type == "mps":  # which has no float64
            rows = rows.cpu()
        return self.distance(name, rows.device, prediction_dtype(rows.dtype))(rows)

    def distance(self, name: str, device: torch.device, dtype: torch.dtype) -> Distance:
        """The distance that has this name, made once."""
        key = device, dtype
        made = self._distances.get(key, {})
        if name not in made:
            with torch.inference_mode(False):  # what is cached may be differentiated through later
                new = self._make_distance(name, device, dtype).refuse_traced()
            # Another thread may do this at the same time, so the cache is replaced, not changed.
            kept = {each: value for each, value in self._distances.items() if each[0] == device}
            self._distances = {**kept, key: {**self._distances.get(key, {}), name: new}}
            return new
        return made[name]


def _joined(distances: list[Tensor]) -> Tensor:
    """The distances of one input, (n,), or of both of a pair, (n, 2)."""
    return distances[0] if len(distances) == 1 else torch.stack(distances, 1)


def measurable(inputs: Any) -> bool:
    """Whether inputs have a distance: floating-point numbers or uint8, in a tensor or in a mapping.

    >>> tokens, pixels = torch.ones(2, 5, dtype=torch.int64), torch.rand(2, 3, 8, 8)
    >>> measurable(pixels), measurable({"pixel_values": pixels, "ids": tokens}), measurable(tokens)
    (True, True, False)
    """
    return bool(_measured(inputs))


def are_vectors(inputs: Inputs) -> bool:
    """Whether the inputs are rows of a table, and not images or sequences, whose columns are too many.

    >>> are_vectors(torch.zeros(2, 30)), are_vectors(torch.zeros(2, 1, 8, 8))
    (True, False)
    """
    parts = _measured(inputs)
    return all(each.dim() <= 2 for each in parts) and as_rows(inputs).shape[1] <= LARGEST_WIDTH


def as_rows(inputs: Inputs) -> Tensor:
    """(n, D): a tensor, or all that is measurable in a mapping side by side, in the order of its names.

    Raises on inputs for which a distance from the data means nothing, such as token ids.
    """
    parts = _measured(inputs)
    if not parts:
        kind = (
            f"of {inputs.dtype}"
            if isinstance(inputs, Tensor)
            else "in a mapping without floating-point numbers and without uint8"
            if isinstance(inputs, Mapping)
            else f"of type {type(inputs).__name__}"
        )
        raise ArgumentError(
            f"the residual measures how far an input lies from the data, which means nothing for inputs "
            f"{kind}: use residual=False"
        )
    flat = [each.flatten(1) if each.dim() > 1 else each[:, None] for each in parts]
    return flat[0] if len(flat) == 1 else torch.cat(flat, dim=1)


def _measured(inputs: Any) -> list[Tensor]:
    """The tensors that the residual uses: floating-point or uint8, with one row for each point."""
    if isinstance(inputs, Mapping):
        values = [inputs[name] for name in sorted(inputs, key=str) if name not in LABELS]
    else:
        values = [inputs]
    found = [each for each in values if isinstance(each, Tensor) and each.dim()]
    found = [each for each in found if each.is_floating_point() or each.dtype == torch.uint8]
    if isinstance(inputs, Mapping) and found:  # a tensor without a row for each point is the same for all
        # Not `len`, which a trace would take as fixed.
        found = [each for each in found if each.shape[0] == row_count(inputs)]
    return found

"""The sums over the training data at the levels of the residual, added up while the model runs."""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from bitbayes.model import (
    Batch,
    Inputs,
    Level,
    Observer,
    find_levels,
    named_levels,
    run_levels,
)
from bitbayes.model.head.levels import HEAD
from bitbayes.model.loaders.sides import pair_for
from bitbayes.options import Options
from bitbayes.residual import (
    GPU_STEP_NUMBERS,
    INPUT,
    LARGEST_CLASSES,
    LARGEST_WIDTH,
    STEP_NUMBERS,
    LevelSums,
    are_vectors,
    as_rows,
    measurable,
)


@dataclass
class LevelTotals:
    """Adds up the features of each batch, at the input and at the levels.

    They wait until `add_waiting`, so that one product serves many batches. Inputs, which are large, wait
    until there are `STEP_NUMBERS` of them. Both inputs of a pair count as points.

    network: a private copy of the model, or None without a residual.
    asked: whether the residual was asked for, and not only allowed. If not, inputs that cannot be measured,
        or are not of one size, have no level of their own, and features that are not of one size have none.
    sums: so far, by the name of the level.
    table: whether the inputs are rows of a table, whose correlations are kept.
    classes: of how many classes the head's features have means; 0 if labels are no classes.
    waiting_numbers: how many numbers the waiting inputs have, which are all of one width.
    """

    network: nn.Module | None = None
    levels: tuple[Level, ...] = ()
    asked: bool = False
    input_is_level: bool = False
    sums: dict[str, LevelSums] = field(default_factory=dict)
    waiting_inputs: list[Tensor] = field(default_factory=list)
    waiting: list[list[Tensor]] = field(default_factory=list)
    waiting_labels: list[Tensor] = field(default_factory=list)
    waiting_weights: list[Tensor] = field(default_factory=list)
    waiting_input_weights: list[Tensor] = field(default_factory=list)
    table: bool = False
    classes: int = 0
    waiting_numbers: int = 0

    @classmethod
    def of(
        cls,
        options: Options,
        network: nn.Module,
        preview: Inputs,
        head: str | None,
        sums: dict[str, LevelSums],
        *,
        resumed: bool = False,
    ) -> "LevelTotals":
        """The levels of a network.

        Args:
            options: say whether there is a residual, and where.
            network: a private copy of the model.
            preview: a few inputs.
            head: the name of the last layer; None is the last one that the network calls.
            sums: of an earlier pass that is resumed.
            resumed: whether there is one; it may have left out all levels.
        """
        if not options.residual:
            return cls()
        preview, *_ = pair_for(network, preview) or (preview,)
        asked, able = options.residual_asked, measurable(preview)
        levels = find_levels(network, preview, head, input_is_level=able)
        if names := options.residual_layers:
            last = [each for each in levels if each.name == HEAD]  # which is a level anyway
            names = tuple(name for name in names if name not in [each.layer for each in last])
            levels = [*named_levels(network, names, preview), *last]
        if asked and not able and not levels:
            as_rows(preview)  # raises, and says why there is no residual
        # What an earlier pass has left out stays so.
        new = not sums and not resumed
        levels = [each for each in levels if new or each.name in sums]
        return cls(network, tuple(levels), asked, able and (new or INPUT in sums), dict(sums))

    def attach(self, batch: Batch) -> Batch:
        """The batch with an observer of its levels. Its input is copied now: the model may change it."""
        self._add_input(batch.inputs, batch.weights)
        if not self.levels:
            return batch
        self._add_weights(batch)
        return replace(batch, observer=Observer(self.levels, self._wait))

    def expect_classes(self, classes: int) -> None:
        """Each batch will have labels of so many classes, given to `add_labels`."""
        self.classes = classes if classes <= LARGEST_CLASSES else 0

    def add_labels(self, labels: Tensor) -> None:
        """The labels (n,) of the batch that was run last."""
        if self.classes and self.levels:
            self.waiting_labels.append(labels)

    def add_run(self, batch: Batch, network: nn.Module, labels: Tensor) -> None:
        """Add the batch by a run of its own, without gradients."""
        with torch.no_grad():
            self._add_input(batch.inputs, batch.weights)
            if self.levels:
                self._add_weights(batch)
                self._wait(run_levels(network, self.levels, batch.inputs))
        self.add_labels(labels)
        self.add_waiting()

    def add_waiting(self) -> LevelSums | None:
        """Add what waits to the sums. The result are those of the head's features that waited, or None."""
        self._add_inputs()  # which come first in the sums
        added: LevelSums | None = None
        for level, parts in zip(self.levels, zip(*self.waiting, strict=True), strict=False):
            widths = {each.shape[1] for each in parts}
            if level.name in self.sums:
                widths.add(len(self.sums[level.name].mean))
            if len(widths) > 1 and not self.asked:
                self.levels = tuple(each for each in self.levels if each != level)
                self.sums.pop(level.name, None)
                continue
            labels = torch.cat(self.waiting_labels) if self.waiting_labels and level.name == HEAD else None
            if len(widths) == 1 < len(parts):
                parts = (torch.cat(parts),)
            counts: list[Tensor | None] = [*self.waiting_weights] or [None] * len(self.waiting)
            if len(parts) < len(counts):
                counts = [torch.cat(self.waiting_weights) if self.waiting_weights else None]
            for rows, own in zip(parts, counts, strict=True):  # it raises if they are not of one size
                correlated = rows.shape[1] <= LARGEST_WIDTH
                more = self._add(level.name, rows, correlated=correlated, labels=labels, weights=own)
                added = more if level.name == HEAD else None
        self.waiting, self.waiting_labels, self.waiting_weights = [], [], []
        return added

    def _add_weights(self, batch: Batch) -> None:
        if batch.weights is not None:
            self.waiting_weights.append(batch.weights)

    def _wait(self, rows: list[Tensor]) -> None:
        self.waiting.append([each.detach().flatten(0, -2) for each in rows])

    def _add_input(self, inputs: Inputs, weights: Tensor | None) -> None:
        if self.network is None or not self.input_is_level:
            return
        if (pair := pair_for(self.network, inputs)) is not None:
            for each in pair:
                self._add_input(each, weights)
            return
        if not self._fits(inputs):
            if not self.asked:
                self.input_is_level = False
                self._forget_inputs()
                self.sums.pop(INPUT, None)
                return
            self._add_inputs()  # so that these are compared with all before them
        if INPUT not in self.sums and not self.waiting_inputs:
            self.table = are_vectors(inputs)
        self.waiting_inputs.append(as_rows(inputs).clone())
        if weights is not None:
            self.waiting_input_weights.append(weights)
        self.waiting_numbers += self.waiting_inputs[-1].numel()
        if self.waiting_numbers >= (GPU_STEP_NUMBERS if self.waiting_inputs[0].is_cuda else STEP_NUMBERS):
            self._add_inputs()

    def _fits(self, inputs: Inputs) -> bool:
        """Whether the inputs can be measured, and are as wide as those before."""
        if not measurable(inputs):
            return False
        widths = {len(self.sums[INPUT].mean)} if INPUT in self.sums else set[int]()
        return widths | {each.shape[1] for each in self.waiting_inputs[:1]} <= {as_rows(inputs).shape[1]}

    def _add_inputs(self) -> None:
        if self.waiting_inputs:
            correlated = self.sums[INPUT].correlated if INPUT in self.sums else self.table
            weights = torch.cat(self.waiting_input_weights) if self.waiting_input_weights else None
            self._add(INPUT, torch.cat(self.waiting_inputs), correlated=correlated, weights=weights)
            self._forget_inputs()

    def _forget_inputs(self) -> None:
        self.waiting_inputs, self.waiting_input_weights, self.waiting_numbers = [], [], 0

    def _add(
        self,
        name: str,
        rows: Tensor,
        *,
        correlated: bool,
        labels: Tensor | None = None,
        weights: Tensor | None,
    ) -> LevelSums:
        classes = self.classes if correlated and labels is not None and len(labels) == len(rows) else 0
        more = LevelSums.of(rows, correlated=correlated, labels=labels, classes=classes, weights=weights)
        self.sums[name] = self.sums[name] + more if name in self.sums else more
        return more

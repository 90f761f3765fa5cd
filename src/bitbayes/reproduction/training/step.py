"""One step of training. On a GPU it is recorded once and then replayed, which spares the launching of its
hundreds of small kernels one by one: for a small network that is most of the time."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from bitbayes.reproduction.training.objectives import Loss

Batch = tuple[Tensor, Tensor, Tensor]
# Steps taken normally before one is recorded: libraries choose their kernels and the optimizer makes its
# state in the first ones.
WARM = 3


class Step:
    """`step(x, y, outliers)` moves the weights once and returns the loss, a tensor on the device.

    A recorded step has its learning rate and its loss's strength frozen in: `begin` a phase for other ones.
    """

    def __init__(self, network: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss) -> None:
        self.network, self.optimizer, self.loss = network, optimizer, loss
        self.device = next(network.parameters()).device
        self.recordable = True
        self.side: torch.cuda.Stream | None = None
        if self.device.type == "cuda":
            self.side = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    def begin(self, rate: float, strength: float) -> None:
        self.strength, self.taken = strength, 0
        self.graph: torch.cuda.CUDAGraph | None = None
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def __call__(self, x: Tensor, y: Tensor, outliers: Tensor) -> Tensor:
        batch = x, y, outliers
        if self.side is None or not self.recordable:
            return self._take(batch)
        if self.taken < WARM:
            self.taken += 1
            self.side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.side):
                loss = self._take(batch)
            torch.cuda.current_stream().wait_stream(self.side)
            return loss
        if self.graph is None and not self._record(batch):
            return self._take(batch)
        for place, value in zip(self.places, batch, strict=True):
            place.copy_(value)
        assert self.graph is not None
        self.graph.replay()
        return self.recorded_loss

    def _record(self, batch: Batch) -> bool:
        """Whether the step could be recorded; if not, training goes on without, only slower."""
        x, y, outliers = batch
        self.places = x.clone(), y.clone(), outliers.clone()
        self.optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=self.side):
                self.recorded_loss = self._take(self.places, fresh=False)
        except RuntimeError as error:
            warnings.warn(f"the training step could not be recorded: {error}", stacklevel=2)
            self.recordable = False
            return False
        self.graph = graph
        return True

    def _take(self, batch: Batch, fresh: bool = True) -> Tensor:
        if fresh:
            self.optimizer.zero_grad(set_to_none=True)
        # A cache of casted weights would outlive the recording that made it.
        with torch.autocast(self.device.type, torch.bfloat16, self.side is not None, cache_enabled=False):
            loss = self.loss(self.network, *batch, self.strength)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss.detach()

"""One step of training, captured as a CUDA graph on a GPU.

A step launches hundreds of small kernels. Replaying them as one graph is much faster than launching each of
them: for a small network, launching takes most of the time.
"""

import warnings

import torch
from torch import Tensor, nn

from paper.training.objectives import Loss

Batch = tuple[Tensor, ...]
# In the first steps, libraries choose their kernels and the optimizer creates its state.
STEPS_BEFORE_CAPTURE = 3


def computes_in_bfloat16(device: torch.device) -> bool:
    """Whether the device has instructions for bfloat16: every GPU is taken to have them, and some CPUs do."""
    if device.type != "cpu":
        return device.type == "cuda"
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


class TrainingStep:
    """`step(*batch)` updates the weights once and returns `loss(network, *batch)`, a tensor on the device.

    A captured step keeps its learning rate. Call `start_phase` to change it.
    """

    def __init__(self, network: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss) -> None:
        self.network, self.optimizer, self.loss = network, optimizer, loss
        self.device = next(network.parameters()).device
        self.in_bfloat16 = computes_in_bfloat16(self.device)
        self.capturable = True
        self.side_stream: torch.cuda.Stream | None = None
        if self.device.type == "cuda":
            self.side_stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    def start_phase(self, learning_rate: float) -> None:
        """Take the next steps with this learning rate.

        The optimizer's groups of parameters may have a `learning_rate_factor`.
        """
        self.steps_taken = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        for group in self.optimizer.param_groups:
            group["lr"] = group.get("learning_rate_factor", 1.0) * learning_rate

    def __call__(self, *batch: Tensor) -> Tensor:
        if self.side_stream is None or not self.capturable:
            return self._update(batch)
        if self.steps_taken < STEPS_BEFORE_CAPTURE:
            self.steps_taken += 1
            self.side_stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.side_stream):
                loss = self._update(batch)
            torch.cuda.current_stream().wait_stream(self.side_stream)
            return loss
        if self.graph is None and not self._capture(batch):
            return self._update(batch)
        for graph_input, value in zip(self.graph_inputs, batch, strict=True):
            graph_input.copy_(value)
        assert self.graph is not None
        self.graph.replay()
        return self.graph_loss

    def _capture(self, batch: Batch) -> bool:
        """Capture the step, and return whether that succeeded. Training without a graph is only slower."""
        self.graph_inputs = tuple(each.clone() for each in batch)
        self.optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=self.side_stream):
                self.graph_loss = self._update(self.graph_inputs, zero_grad=False)
        except RuntimeError as error:
            warnings.warn(f"the training step could not be recorded: {error}", stacklevel=2)
            self.capturable = False
            return False
        self.graph = graph
        return True

    def _update(self, batch: Batch, zero_grad: bool = True) -> Tensor:
        if zero_grad:
            self.optimizer.zero_grad(set_to_none=True)
        # Without a cache: cached casts of the weights would not be valid in a later replay.
        with torch.autocast(self.device.type, torch.bfloat16, self.in_bfloat16, cache_enabled=False):
            loss = self.loss(self.network, *batch)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss.detach()

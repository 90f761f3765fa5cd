"""Two points through the network before any pass over the data: are its layers what they seem?

A layer's weight may be used behind its back, its batch may not come first, it may never be called. So the
derivatives found layer by layer are compared with autograd's own, once.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from bitbayes.errors import ModelError
from bitbayes.model.batches import Inputs, row_count
from bitbayes.model.derivatives import (
    LayerRecord,
    as_logits,
    differentiate,
    substitutes,
    upcast,
    working_dtype,
)
from bitbayes.model.forward_passes import check_finite
from bitbayes.model.head import call
from bitbayes.model.hooks import call_hooks
from bitbayes.model.layers import Layer


def verify_layers(
    model: nn.Module, layers: tuple[Layer, ...], inputs: Inputs
) -> tuple[int, tuple[Layer, ...]]:
    """The number of outputs k, and the layers, those that do not bear looking at turned into "other".

    Raises if an output depends on the other points of its batch. The model should be in eval mode.
    """
    if isinstance(inputs, Tensor):
        inputs = torch.cat([inputs[:1], inputs[-1:]])
    inputs = upcast(inputs, working_dtype(model))
    called = _called(model, layers, inputs)
    logits, expected = _autograd(model, layers, inputs)
    check_finite("batch 0", inputs, logits, logits, model)
    _check_independent(model, layers, inputs, logits)
    _, recorded = differentiate(model, called, inputs, _first_point)
    sound = {each.layer.name for each in recorded if _agrees(each, expected, len(logits))}
    return logits.shape[1], tuple(
        layer if layer.name in sound else replace(layer, kind="other", groups=1) for layer in layers
    )


def _called(model: nn.Module, layers: tuple[Layer, ...], inputs: Inputs) -> tuple[Layer, ...]:
    """The matrix and norm layers that the network calls at all; raises if one of them leaves no graph."""
    graphs: dict[str, bool] = {}
    known = {layer.name: layer for layer in layers if layer.kind != "other"}

    def remember(name: str, _: Tensor, output: Tensor) -> None:
        graphs[name] = graphs.get(name, False) or output.requires_grad

    modules = {name: model.get_submodule(name) for name in known}
    with call_hooks(modules, remember), torch.inference_mode(False), torch.enable_grad():
        output = _first_call(model, layers, inputs)
    if not output.requires_grad:
        raise ModelError("the model's output has no derivatives: does it switch gradients off, or detach?")
    for name, graph in graphs.items():
        if not graph:
            raise ModelError(
                f"the layer {name!r} is called without a graph, so the output has no derivatives in it: look "
                "for torch.no_grad() in the model's forward, or for checkpointing with use_reentrant=True. "
                "Do without (use_reentrant=False), or freeze the layer (requires_grad_(False))"
            )
    return tuple(layer for name, layer in known.items() if name in graphs)


def _first_call(model: nn.Module, layers: tuple[Layer, ...], inputs: Inputs) -> Tensor:
    """The model's output; where the precision of derivatives is not its own, it may not like that."""
    dtype = working_dtype(model)
    own = {each.dtype for each in model.parameters() if each.is_floating_point()}
    try:
        return call(model, inputs, substitutes(model, layers))
    except RuntimeError as error:
        if own == {dtype}:
            raise
        raise ModelError(
            f"derivatives of a model in {', '.join(sorted(map(str, own)))} are taken in {dtype}, and there "
            f"its forward fails ({error}). Let it cast to the dtype of its weights, x.to(self.weight.dtype), "
            "and not to a fixed one; or give the model in one dtype, at least float32"
        ) from error


def _first_point(logits: Tensor) -> Tensor:
    """One direction, (n, k, 1): of the first point's logits some combination, of the others' nothing."""
    direction = torch.zeros_like(logits)[:, :, None]
    direction[0, :, 0] = torch.linspace(1, 2, logits.shape[1]).to(logits).cos()
    return direction


def _autograd(
    model: nn.Module, layers: tuple[Layer, ...], inputs: Inputs
) -> tuple[Tensor, dict[str, Tensor | None]]:
    """Logits (n, k), and the gradient of the first point's direction in every parameter."""
    names = [name for layer in layers for name in layer.names]
    with torch.inference_mode(False), torch.enable_grad():
        tensors = substitutes(model, layers)
        logits = as_logits(call(model, inputs, tensors), row_count(inputs)).to(working_dtype(model))
        wanted = [tensors[name] for name in names]
        along = (logits * _first_point(logits.detach())[:, :, 0]).sum()
        gradients = torch.autograd.grad(along, wanted, allow_unused=True)
    return logits.detach(), dict(zip(names, gradients, strict=True))


def _check_independent(model: nn.Module, layers: tuple[Layer, ...], inputs: Inputs, logits: Tensor) -> None:
    if not isinstance(inputs, Tensor):
        return
    with torch.no_grad():
        alone = as_logits(call(model, inputs[:1], substitutes(model, layers)), 1).to(logits)
    if not _close(alone, logits[:1]):
        raise ModelError(
            "the output for one point depends on the other points of its batch, so there are no derivatives "
            "for one point: look for a normalisation by batch statistics"
        )


def _agrees(recorded: LayerRecord, expected: dict[str, Tensor | None], n: int) -> bool:
    tensors = [*recorded.inputs, *recorded.gradients]
    if not tensors or any(each.dim() < 2 or len(each) != n for each in tensors):
        return False
    derivatives = recorded.jacobian().dense()[:, 0]  # (n, P)
    if bool((derivatives[1:] != 0).any()):
        return False
    own = recorded.layer.split(derivatives[:1])
    gradients = {name: expected[name] for name in own}
    return all(
        _close(own[name][0], torch.zeros_like(own[name][0]) if gradient is None else gradient)
        for name, gradient in gradients.items()
    )


def _close(a: Tensor, b: Tensor) -> bool:
    tolerance = 10 * torch.finfo(a.dtype).eps ** 0.5
    return bool(((a - b).abs() <= tolerance * (1e-30 + b.abs().amax())).all())

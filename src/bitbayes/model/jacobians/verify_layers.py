"""A check before any pass over the data: are the derivatives of each layer right?

They would be wrong if a weight were also used outside its layer, if the points were not the first axis of a
layer's input, or if a layer were never called. So they are compared with autograd's, once, for two points.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from bitbayes.errors import ModelError
from bitbayes.model.jacobians.derivatives import LayerRecord, differentiate
from bitbayes.model.jacobians.layers import Layer
from bitbayes.model.jacobians.working_precision import substitutes, upcast, working_dtype
from bitbayes.model.loaders.batches import Batch, Inputs, row_count
from bitbayes.model.running.calls import as_logits, call, call_hooks
from bitbayes.model.running.deferred_checks import check_finite


def verify_layers(
    model: nn.Module, layers: tuple[Layer, ...], inputs: Inputs
) -> tuple[int, tuple[Layer, ...]]:
    """The number of logits k, and the layers; a layer whose derivatives are wrong gets the kind "other".

    Raises if the output for one point depends on the other points. The model must be in eval mode.
    """
    if isinstance(inputs, Tensor):
        inputs = torch.cat([inputs[:1], inputs[-1:]])
    inputs = upcast(inputs, working_dtype(model))
    called = _called_layers(model, layers, inputs)
    logits, expected = _autograd_gradients(model, layers, inputs)
    check_finite(Batch(inputs, None, "batch 0"), logits, logits, model)
    _check_independent(model, layers, inputs, logits)
    _, records = differentiate(model, called, inputs, _first_point_direction)
    correct = {record.layer.name for record in records if _matches_autograd(record, expected, len(logits))}
    return logits.shape[1], tuple(
        layer if layer.name in correct else replace(layer, kind="other", groups=1) for layer in layers
    )


def _called_layers(model: nn.Module, layers: tuple[Layer, ...], inputs: Inputs) -> tuple[Layer, ...]:
    """The matrix and norm layers that the network calls. Raises if a layer is only called without a graph."""
    graphs: dict[str, bool] = {}
    known = {layer.name: layer for layer in layers if layer.kind != "other"}

    def record(name: str, _: Tensor, output: Tensor) -> None:
        graphs[name] = graphs.get(name, False) or output.requires_grad

    modules = {name: model.get_submodule(name) for name in known}
    with call_hooks(modules, record), torch.inference_mode(False), torch.enable_grad():
        output = _call_in_working_precision(model, layers, inputs)
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


def _call_in_working_precision(model: nn.Module, layers: tuple[Layer, ...], inputs: Inputs) -> Tensor:
    """The model's output; raises a `ModelError` if its forward fails in a dtype that is not its own."""
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


def _first_point_direction(logits: Tensor) -> Tensor:
    """One direction, (n, k, 1): different weights for the logits of the first point, zero for all others."""
    direction = torch.zeros_like(logits)[:, :, None]
    direction[0, :, 0] = torch.linspace(1, 2, logits.shape[1]).to(logits).cos()
    return direction


def _autograd_gradients(
    model: nn.Module, layers: tuple[Layer, ...], inputs: Inputs
) -> tuple[Tensor, dict[str, Tensor | None]]:
    """Logits f (n, k), and the gradient of vᵀf in every parameter, v = `_first_point_direction`."""
    names = [name for layer in layers for name in layer.names]
    with torch.inference_mode(False), torch.enable_grad():
        tensors = substitutes(model, layers)
        logits = as_logits(call(model, inputs, tensors), row_count(inputs)).to(working_dtype(model))
        wanted = [tensors[name] for name in names]
        along = (logits * _first_point_direction(logits.detach())[:, :, 0]).sum()
        gradients = torch.autograd.grad(along, wanted, allow_unused=True)
    return logits.detach(), dict(zip(names, gradients, strict=True))


def _check_independent(model: nn.Module, layers: tuple[Layer, ...], inputs: Inputs, logits: Tensor) -> None:
    """Raise if the first point alone does not have the logits that it has in the batch."""
    if not isinstance(inputs, Tensor):
        return  # a mapping is never cut
    with torch.no_grad():
        alone = as_logits(call(model, inputs[:1], substitutes(model, layers)), 1).to(logits)
    if not _close(alone, logits[:1]):
        raise ModelError(
            "the output for one point depends on the other points of its batch, so there are no derivatives "
            "for one point: look for a normalisation by batch statistics, or for dropout that is always on"
        )


def _matches_autograd(record: LayerRecord, expected: dict[str, Tensor | None], n: int) -> bool:
    """Whether the layer has n points on its first axis, and the expected gradients for the first of them."""
    tensors = [*record.inputs, *record.gradients]
    if not tensors or any(each.dim() < 2 or len(each) != n for each in tensors):
        return False
    derivatives = record.jacobian().dense()[:, 0]  # (n, P)
    if bool((derivatives[1:] != 0).any()):
        return False
    own = record.layer.split(derivatives[:1])
    gradients = {name: expected[name] for name in own}
    return all(
        _close(own[name][0], torch.zeros_like(own[name][0]) if gradient is None else gradient)
        for name, gradient in gradients.items()
    )


def _close(a: Tensor, b: Tensor) -> bool:
    tolerance = 10 * torch.finfo(a.dtype).eps ** 0.5
    return bool(((a - b).abs() <= tolerance * (1e-30 + b.abs().amax())).all())

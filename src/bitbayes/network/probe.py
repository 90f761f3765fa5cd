"""Two points through the network before any pass over the data: are its layers what they seem?

A layer's weight may be used behind its back, its batch may not come first, it may never be called. So the
derivatives found layer by layer are compared with autograd's own, once.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from bitbayes.errors import ModelError
from bitbayes.network.batches import Inputs
from bitbayes.network.derivatives import (
    Recorded,
    as_logits,
    differentiate,
    substitutes,
    upcast,
    working_dtype,
)
from bitbayes.network.head import call
from bitbayes.network.layers import Layer


def probed(model: nn.Module, layers: tuple[Layer, ...], inputs: Inputs) -> tuple[int, tuple[Layer, ...]]:
    """The number of outputs k, and the layers, those that do not bear looking at turned into "other".

    Raises if an output depends on the other points of its batch. The model should be in eval mode.
    """
    if isinstance(inputs, Tensor):
        inputs = torch.cat([inputs[:1], inputs[-1:]])
    inputs = upcast(inputs, working_dtype(model))
    logits, expected = _autograd(model, layers, inputs)
    _check_independent(model, layers, inputs, logits)
    _, recorded = differentiate(model, _called(model, layers, inputs), inputs, _first_point)
    sound = {each.layer.name for each in recorded if _agrees(each, expected, len(logits))}
    return logits.shape[1], tuple(
        layer if layer.name in sound else replace(layer, kind="other", groups=1) for layer in layers
    )


def _called(model: nn.Module, layers: tuple[Layer, ...], inputs: Inputs) -> tuple[Layer, ...]:
    """The matrix and norm layers that the network calls at all."""
    seen: set[str] = set()
    known = {layer.name: layer for layer in layers if layer.kind != "other"}
    handles = [
        model.get_submodule(name).register_forward_hook(lambda *_, name=name: seen.add(name))
        for name in known
    ]
    try:
        with torch.no_grad():
            call(model, inputs, substitutes(model, layers))
    finally:
        for handle in handles:
            handle.remove()
    return tuple(layer for name, layer in known.items() if name in seen)


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
        logits = as_logits(call(model, inputs, tensors))
        wanted = [tensors[name] for name in names]
        along = (logits * _first_point(logits.detach())[:, :, 0]).sum()
        if not along.requires_grad:
            raise ModelError(
                "the model's output has no derivatives: does it switch gradients off, or detach?"
            )
        gradients = torch.autograd.grad(along, wanted, allow_unused=True)
    return logits.detach(), dict(zip(names, gradients, strict=True))


def _check_independent(model: nn.Module, layers: tuple[Layer, ...], inputs: Inputs, logits: Tensor) -> None:
    if not isinstance(inputs, Tensor):
        return
    with torch.no_grad():
        alone = as_logits(call(model, inputs[:1], substitutes(model, layers)))
    if not _close(alone, logits[:1]):
        raise ModelError(
            "the output for one point depends on the other points of its batch, so there are no derivatives "
            "for one point: look for a normalisation by batch statistics"
        )


def _agrees(recorded: Recorded, expected: dict[str, Tensor | None], n: int) -> bool:
    tensors = [*recorded.inputs, *recorded.gradients]
    if not tensors or any(each.dim() < 2 or len(each) != n for each in tensors):
        return False
    derivatives = recorded.piece().jacobian()[:, 0]  # (n, P)
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

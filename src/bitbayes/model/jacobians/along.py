"""Derivatives of a network's logits along directions in its parameters: J δ for many δ at once.

Forward mode carries each direction through the network beside the values, at the cost of about two forward
passes for each δ, whatever the number of logits. All directions are carried at once, so the values themselves
are computed only once. Where a network does not allow that, Jᵀv is differentiated in v, backwards: it is
linear in v, and J δ is the derivative of δᵀJᵀv.
"""

import threading
import warnings
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor, nn
from torch.autograd.forward_ad import dual_level, make_dual
from torch.func import jvp
from torch.nn.attention import SDPBackend, sdpa_kernel

from bitbayes.errors import ModelError
from bitbayes.model.jacobians.working_precision import substitutes, upcast, working_dtype
from bitbayes.model.loaders.batches import Inputs, row_count
from bitbayes.model.running.calls import as_logits, call

# Directions δ: by the name of each parameter, (s, …).
Directions = dict[str, Tensor]
# From a private copy of the model, inputs and directions to J δ, (s, n, k).
Way = Callable[[nn.Module, Inputs, Directions], Tensor]
# torch chooses the kernels of attention for all threads.
ATTENTION = threading.Lock()


def forward_mode(model: nn.Module, inputs: Inputs, directions: Directions) -> Tensor:
    """J δ by forward mode, vectorised over the directions."""
    _load_forward_mode()
    with torch.inference_mode(False), torch.no_grad():
        tensors = dict(model.named_buffers()) | substitutes(model, ())
        dtype = working_dtype(model)
        inputs = upcast(inputs, dtype)
        buffers = {name: tensors[name] for name, _ in model.named_buffers()}
        own = {name: tensors[name] for name in directions}

        def logits(parameters: dict[str, Tensor]) -> Tensor:
            # Buffers that the model changes must be made in here: no others may be written to.
            fresh = {name: buffer.clone() for name, buffer in buffers.items()}
            output = call(model, inputs, {**tensors, **fresh, **parameters})
            return as_logits(output, row_count(inputs)).to(dtype)

        found: Tensor = torch.vmap(lambda each: jvp(logits, (own,), (each,))[1], randomness="same")(
            directions
        )
    return found


def forward_mode_plain_attention(model: nn.Module, inputs: Inputs, directions: Directions) -> Tensor:
    """The same with attention as plain products: torch's fused attention has no forward mode."""
    with ATTENTION, sdpa_kernel(SDPBackend.MATH):
        return forward_mode(model, inputs, directions)


def reverse_mode(model: nn.Module, inputs: Inputs, directions: Directions) -> Tensor:
    """J δ as the derivative of δᵀJᵀv in v: one backward pass through a backward pass for each direction."""
    with torch.inference_mode(False), torch.enable_grad(), ATTENTION, sdpa_kernel(SDPBackend.MATH):
        output, own = _with_graph(model, inputs, directions)
        v = torch.zeros_like(output, requires_grad=True)
        products = torch.autograd.grad(
            output, own, v, create_graph=True, allow_unused=True, materialize_grads=True
        )
        count, found = len(next(iter(directions.values()))), []
        for i in range(count):
            delta = [each[i] for each in directions.values()]
            (derivative,) = torch.autograd.grad(
                products, v, delta, retain_graph=i + 1 < count, allow_unused=True, materialize_grads=True
            )
            found.append(derivative.detach())
    return torch.stack(found)


# In the order of their speed.
WAYS: tuple[Way, ...] = (forward_mode, forward_mode_plain_attention, reverse_mode)


def working_way(network: Callable[[], nn.Module], inputs: Inputs, directions: Directions) -> Way:
    """The first way that works for a model, and agrees with a backward pass: vᵀ(J δ) = δᵀ(Jᵀv).

    Forward mode also differentiates what the model computes under `torch.no_grad()`; backward passes, which
    `fit` takes, do not.

    Args:
        network: makes a private copy of the model.
        inputs: of a few points.
        directions: to try.
    """
    failure: Exception | None = None
    one = {name: each[:1] for name, each in directions.items()}
    with torch.inference_mode(False), torch.enable_grad():
        output, own = _with_graph(network(), inputs, one)
        # Any direction will do that no symmetry of the logits makes zero.
        v = torch.arange(1, output.numel() + 1).to(output).cos().reshape(output.shape)
        gradients = torch.autograd.grad(output, own, v, allow_unused=True, materialize_grads=True)
    products = [(g * each[0]).double() for g, each in zip(gradients, one.values(), strict=True)]
    expected = sum(float(each.sum()) for each in products)
    size = sum(float(each.square().sum()) for each in products) ** 0.5
    for way in WAYS:
        try:
            found = float((v.detach() * way(network(), inputs, one)[0]).double().sum())
        except Exception as error:  # of many types: each operation fails with an error of its own
            failure = error
            continue
        if abs(found - expected) <= 10 * torch.finfo(v.dtype).eps ** 0.5 * size:
            return way
    raise ModelError(
        "the derivatives of this model along draws of its weights cannot be computed"
        f"{f' ({failure})' if failure else ''}: use covariance='exact'"
    ) from failure


@cache
def _load_forward_mode() -> None:
    """Let torch load what forward mode needs, which warns of how torch itself does that."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with dual_level():
            make_dual(torch.zeros(()), torch.zeros(()))  # type: ignore[no-untyped-call]


def _with_graph(model: nn.Module, inputs: Inputs, directions: Directions) -> tuple[Tensor, list[Tensor]]:
    """Logits (n, k) with a graph, and the parameters that have directions, in their order."""
    tensors = substitutes(model, ())
    own = {name: tensors[name].requires_grad_() for name in directions}
    output = call(model, upcast(inputs, working_dtype(model)), {**tensors, **own})
    return as_logits(output, row_count(inputs)).to(working_dtype(model)), list(own.values())

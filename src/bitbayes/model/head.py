"""What a model returns, and its head: the last linear layer and the features that go into it.

The head is found by running the model once and looking for the `nn.Linear` whose output *is* the model's
output. No naming convention is needed: `fc`, `head`, `classifier`, `score` and the last entry of a
`Sequential` are all found. A model whose output is something else, such as a softmax, is recognised.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from bitbayes.errors import ModelError
from bitbayes.model.batches import Inputs
from bitbayes.model.hooks import call_hooks
from bitbayes.model.late_checks import LateChecks
from bitbayes.precision import precise

# The error that W·x + b may have in bfloat16, where W, x and the sum are each off by up to 2⁻⁸.
LINEAR_RELATIVE_ERROR = 2.0**-6


@dataclass(frozen=True)
class Head:
    """The last linear layer: `outputs` logits from `inputs` features (and a bias)."""

    name: str
    inputs: int
    outputs: int
    bias: bool

    @property
    def width(self) -> int:
        """The number of features, including the constant feature 1 of the bias."""
        return self.inputs + self.bias

    def module(self, model: nn.Module) -> nn.Linear:
        module = model.get_submodule(self.name)
        assert isinstance(module, nn.Linear)
        return module

    def parameter_names(self) -> tuple[str, ...]:
        prefix = f"{self.name}." if self.name else ""
        return (f"{prefix}weight", f"{prefix}bias")[: 1 + self.bias]


def forward(
    model: nn.Module, head: Head, inputs: Inputs, checks: LateChecks | None = None
) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """One forward pass: features (n, d), logits (n, k), and the shape of the model's output.

    `checks`: these raise if the logits are not the output of the head. This depends on values, so it cannot
    be traced: leave it out in a module that is to be exported or compiled.
    """
    calls: list[tuple[Tensor, Tensor]] = []
    with call_hooks({head.name: head.module(model)}, lambda _, *call: calls.append(call)):
        output = call(model, inputs)
    if not calls:
        raise ModelError(f"the model did not call its linear layer {head.name!r} at this input")
    features, result = calls[-1]
    if features.dim() != 2:
        raise ModelError(
            f"the head {head.name!r} sees features of shape {tuple(features.shape)}: expected (n, d). Give "
            "the model a batch: one point is x[None]"
        )
    if checks is not None:
        checks.add(_equal_values(result, output), partial(_refuse_output, head))
    return features, output.reshape(features.shape[0], head.outputs), tuple(output.shape)


def _refuse_output(head: Head) -> None:
    raise ModelError(
        f"the model's output is not the output of its linear layer {head.name!r} at every input: what "
        "comes after that layer changes it. Give the part that returns plain logits"
    )


def call(model: nn.Module, inputs: Inputs, tensors: dict[str, Tensor] | None = None) -> Tensor:
    """The model's output tensor, or the `.logits` of the object that a Hugging Face model returns.

    `tensors`: parameters and buffers that replace the model's own in this call.
    """
    args, kwargs = ((), dict(inputs)) if isinstance(inputs, Mapping) else ((inputs,), {})
    output = model(*args, **kwargs) if tensors is None else functional_call(model, tensors, args, kwargs)
    if isinstance(output, Mapping) and "logits" in output:
        output = output["logits"]
    output = getattr(output, "logits", output)
    if not isinstance(output, Tensor):
        raise ModelError(
            f"the model returned {type(output).__name__}: expected a tensor of logits, or an object with "
            "`.logits`; wrap the model in a module that returns its logits"
        )
    return output


def as_logits(output: Tensor, rows: int | None = None) -> Tensor:
    """The model's output as (n, k), where n = `rows` if given.

    Some models return one logit as (n,), or one point as (k,) or ().

    >>> import torch
    >>> one, many = torch.zeros(3), torch.zeros(3, 2)
    >>> as_logits(one).shape, as_logits(one, 3).shape, as_logits(one, 1).shape, as_logits(many, 3).shape
    (torch.Size([3, 1]), torch.Size([3, 1]), torch.Size([1, 3]), torch.Size([3, 2]))
    """
    if rows == 1 and output.dim() < 2:
        return output.reshape(1, -1)
    if output.dim() == 1:
        output = output[:, None]
    if output.dim() != 2 or (rows is not None and output.shape[0] != rows):
        given = "" if rows is None else f" for {rows} points"
        raise ModelError(f"the model's output has shape {tuple(output.shape)}{given}: expected (n, k)")
    return output


def find_head(model: nn.Module, inputs: Inputs, name: str | None = None) -> Head:
    """The linear layer whose output is the model's output. If `name` is given, it must be that layer."""
    layers = {key: module for key, module in model.named_modules() if isinstance(module, nn.Linear)}
    if name is not None and name not in layers:
        found = _list_last([repr(key) for key in layers]) or "none"
        raise ModelError(f"head={name!r} is no linear layer of the model: its linear layers are {found}")
    if not layers:
        raise ModelError(
            f"the model has no linear layer to be Bayesian about: its modules are {_describe_modules(model)}"
        )

    calls: list[tuple[str, Tensor, Tensor]] = []
    with call_hooks(layers, lambda *call: calls.append(call)):
        output = call(model, inputs)
    for key, features, result in reversed(calls):
        if name in (None, key) and _equal_values(result, output):
            if features.dim() != 2:
                raise ModelError(
                    f"the head {key!r} sees features of shape {tuple(features.shape)}: expected "
                    "(n, d), one vector for each input"
                )
            layer = layers[key]
            _check_linear(key, layer, features, result)
            return Head(key, layer.in_features, layer.out_features, layer.bias is not None)

    subject = f"the linear layer {name!r}" if name is not None else "any of the model's linear layers"
    shapes = _list_last([f"{key!r} -> {tuple(result.shape)}" for key, _, result in calls])
    raise ModelError(
        f"the model's output, of shape {tuple(output.shape)}, is not the output of {subject} "
        f"({shapes or 'none was called'}). If the model ends in a softmax, a sigmoid or a scaling, give the "
        "part that returns plain logits"
    )


def _list_last(items: list[str], most: int = 6) -> str:
    """The last items, which are nearest to the output, and how many came before them."""
    rest = f"{len(items) - most} others, " if len(items) > most else ""
    return rest + ", ".join(items[-most:])


def _check_linear(name: str, layer: nn.Linear, features: Tensor, result: Tensor) -> None:
    """Raise if the layer does not compute W·x + b: a subclass or a hook may compute something else."""
    if not bool(result.isfinite().all()):
        return  # callers check this, and say what is not finite
    x, weight = precise(features.detach()), precise(layer.weight.detach())
    bias = precise(weight.new_zeros(len(weight)) if layer.bias is None else layer.bias.detach())
    gap = (precise(result.detach()) - functional.linear(x, weight, bias)).abs()
    # Relative to Σ |W||x| + |b|, because the terms may cancel. The tolerance is that of bfloat16 in every
    # precision: a GPU may multiply float32 numbers with 8 bits. A different formula is off by much more.
    size = functional.linear(x.abs(), weight.abs(), bias.abs())
    if bool((gap > LINEAR_RELATIVE_ERROR * size).any()):
        raise ModelError(
            f"the head {name!r} ({type(layer).__name__}) does not compute W·x + b of its own weights. Use "
            "layers='all', or give the model a plain nn.Linear"
        )


def _equal_values(result: Tensor, output: Tensor) -> bool | Tensor:
    """Whether both hold the same numbers in the same order, whatever their shapes.

    A tensor () where their values decide.
    """
    if result is output:
        return True
    if result.numel() != output.numel():
        return False
    a, b = result.detach().flatten(), output.detach().flatten()
    if a.data_ptr() == b.data_ptr() and a.dtype == b.dtype and a.stride() == b.stride():
        return True  # the same numbers in memory, in another shape
    return ((a == b) | (a.isnan() & b.isnan())).all()


def _describe_modules(model: nn.Module, most: int = 12) -> str:
    """The modules without children, at most `most` of them, for messages."""
    leaves = [
        f"{name or '(itself)'}: {type(module).__name__}"
        for name, module in model.named_modules()
        if not any(True for _ in module.children())
    ]
    rest = f", and {len(leaves) - most} more" if len(leaves) > most else ""
    return ", ".join(leaves[:most]) + rest

"""The last linear layer: which one it is, and what goes into it.

The head is found by running the model once and looking for the `nn.Linear` whose output *is* the model's
output. No naming convention is needed, so `fc`, `head`, `classifier`, `score` and the last entry of a
`Sequential` are all found, and a model whose output is something else (a softmax, say) is recognised.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from bitbayes.errors import ModelError
from bitbayes.model.batches import Inputs
from bitbayes.model.hooks import call_hooks
from bitbayes.precision import precise

COARSEST = 2.0**-6  # bfloat16's 2⁻⁸ twice over: of the factors, and of the sum


@dataclass(frozen=True)
class Head:
    """The last linear layer: `outputs` logits from `inputs` features (and a bias)."""

    name: str
    inputs: int
    outputs: int
    bias: bool

    @property
    def width(self) -> int:
        """The number of features, the bias's constant 1 included."""
        return self.inputs + self.bias

    def module(self, model: nn.Module) -> nn.Linear:
        module = model.get_submodule(self.name)
        assert isinstance(module, nn.Linear)
        return module

    def parameter_names(self) -> tuple[str, ...]:
        prefix = f"{self.name}." if self.name else ""
        return (f"{prefix}weight", f"{prefix}bias")[: 1 + self.bias]


def forward(
    model: nn.Module, head: Head, inputs: Inputs, *, check: bool = False
) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """One forward pass: features (n, d), logits (n, k), and the shape the model gave its output.

    `check` that the logits are the head's own; the drop-in does not, since it must trace.
    """
    seen: list[tuple[Tensor, Tensor]] = []
    with call_hooks({head.name: head.module(model)}, lambda _, *call: seen.append(call)):
        output = call(model, inputs)
    if not seen:
        raise ModelError(f"the model did not call its linear layer {head.name!r} at this input")
    features, result = seen[-1]
    if features.dim() != 2:
        raise ModelError(
            f"the head {head.name!r} sees features of shape {tuple(features.shape)}: expected (n, d). Give "
            "the model a batch: one point is x[None]"
        )
    if check and not _same(result, output):
        raise ModelError(
            f"the model's output is not the output of its linear layer {head.name!r} at every input: what "
            "comes after that layer changes it. Give the part that returns plain logits"
        )
    return features, output.reshape(features.shape[0], head.outputs), tuple(output.shape)


def call(model: nn.Module, inputs: Inputs, tensors: dict[str, Tensor] | None = None) -> Tensor:
    """The model's output tensor: as it is, or the `.logits` of what a Hugging Face model returns.

    `tensors`: parameters and buffers to be used in the place of the model's own.
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


def find_head(model: nn.Module, inputs: Inputs, name: str | None = None) -> Head:
    """The linear layer that gives the model's output; `name` if given, once it is checked to be that."""
    layers = {key: module for key, module in model.named_modules() if isinstance(module, nn.Linear)}
    if name is not None and name not in layers:
        found = ", ".join(repr(key) for key in layers) or "none"
        raise ModelError(f"head={name!r} is no linear layer of the model: its linear layers are {found}")
    if not layers:
        raise ModelError(
            f"the model has no linear layer to be Bayesian about: its modules are {_modules(model)}"
        )

    calls: list[tuple[str, Tensor, Tensor]] = []
    with call_hooks(layers, lambda *call: calls.append(call)):
        output = call(model, inputs)
    for key, features, result in reversed(calls):
        if name in (None, key) and _same(result, output):
            if features.dim() != 2:
                raise ModelError(
                    f"the head {key!r} sees features of shape {tuple(features.shape)}: expected "
                    "(n, d), one vector for each input"
                )
            layer = layers[key]
            _check_linear(key, layer, features, result)
            return Head(key, layer.in_features, layer.out_features, layer.bias is not None)

    subject = f"the linear layer {name!r}" if name is not None else "any of the model's linear layers"
    shapes = ", ".join(f"{key!r} -> {tuple(result.shape)}" for key, _, result in calls) or "none was called"
    raise ModelError(
        f"the model's output, of shape {tuple(output.shape)}, is not the output of {subject} ({shapes}). "
        "If the model ends in a softmax, a sigmoid or a scaling, give the part that returns plain logits"
    )


def _check_linear(name: str, layer: nn.Linear, features: Tensor, result: Tensor) -> None:
    """Raise on a layer that is called linear and does something else: cosines, a low-rank part, a hook."""
    if not bool(result.isfinite().all()):
        return  # others say what is wrong then
    x, weight = precise(features.detach()), precise(layer.weight.detach())
    bias = precise(weight.new_zeros(len(weight)) if layer.bias is None else layer.bias.detach())
    gap = (precise(result.detach()) - functional.linear(x, weight, bias)).abs()
    # Of the sum of all products' sizes, in the coarsest arithmetic there is: a matrix unit may multiply
    # float32 with 8 bits of precision. A layer that does something else is off by the whole of it.
    size = functional.linear(x.abs(), weight.abs(), bias.abs())
    if bool((gap > COARSEST * size).any()):
        raise ModelError(
            f"the head {name!r} ({type(layer).__name__}) does not compute W·x + b of its own weights. Use "
            "layers='all', or give the model a plain nn.Linear"
        )


def _same(result: Tensor, output: Tensor) -> bool:
    if result.numel() != output.numel():
        return False
    a, b = result.detach().flatten(), output.detach().flatten()
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


def _modules(model: nn.Module, most: int = 12) -> str:
    leaves = [
        f"{name or '(itself)'}: {type(module).__name__}"
        for name, module in model.named_modules()
        if not any(True for _ in module.children())
    ]
    rest = f", and {len(leaves) - most} more" if len(leaves) > most else ""
    return ", ".join(leaves[:most]) + rest

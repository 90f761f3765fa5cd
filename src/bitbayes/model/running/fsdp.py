"""Models whose parameters are sharded over several processes (FSDP): a plain copy with all parameters.

FSDP gathers each layer's parameters while that layer runs, which every process must do at the same time. A
plain copy needs no other process, so the shares of the data may be uneven.
"""

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from bitbayes.model.running.private_copy import private_copy

HOOK_TABLES = (
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
)
# The start of the attribute in which `fully_shard` stores a module's state.
STATE = "__composable_api"


def is_sharded(model: nn.Module) -> bool:
    """Whether FSDP, of either version, has sharded parameters of the model."""
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")  # if it was not imported, it was not used
    if fsdp is None:
        return False
    kinds = fsdp.FullyShardedDataParallel, fsdp.FSDPModule
    return any(isinstance(each, kinds) for each in model.modules())


@torch.no_grad()
def gather_fsdp(model: nn.Module) -> nn.Module:
    """A plain copy of a model that FSDP has sharded, with all of its parameters, in eval mode.

    All processes must call this. The model is not changed, and later changes of it do not affect the copy.
    """
    fsdp: Any = sys.modules["torch.distributed.fsdp"]
    for module in model.modules():
        if isinstance(module, fsdp.FSDPModule):  # it may still hold gathered parameters
            module.reshard()
    with _summoned(model):
        copy = _without_wrappers(private_copy(model))
        whole: dict[int, nn.Parameter] = {}  # keyed by id(local shard), so that ties survive
        for module in copy.modules():
            _make_plain(module)
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    if id(parameter) not in whole:
                        whole[id(parameter)] = _whole(parameter)
                    module._parameters[name] = whole[id(parameter)]
    return copy


def _summoned(model: nn.Module) -> AbstractContextManager[Any]:
    """A context in which all parameters of FSDP 1 are gathered in their modules."""
    fsdp: Any = sys.modules["torch.distributed.fsdp"].FullyShardedDataParallel
    if any(isinstance(each, fsdp) for each in model.modules()):
        return fsdp.summon_full_params(model, writeback=False)  # type: ignore[no-any-return]
    return nullcontext()


def _without_wrappers(module: nn.Module) -> nn.Module:
    """The module, with each wrapper of FSDP 1 replaced by the module inside it."""
    fsdp: Any = sys.modules["torch.distributed.fsdp"].FullyShardedDataParallel
    if isinstance(module, fsdp):
        return _without_wrappers(module.module)
    for name, child in module._modules.items():
        if child is not None:
            module._modules[name] = _without_wrappers(child)
    return module


def _make_plain(module: nn.Module) -> None:
    """Undo `fully_shard` on a module: its class, its hooks and its state."""
    fsdp: Any = sys.modules["torch.distributed.fsdp"]
    if isinstance(module, fsdp.FSDPModule):
        module.__class__ = next(
            kind for kind in type(module).__mro__ if not issubclass(kind, fsdp.FSDPModule)
        )
    for key in [name for name in module.__dict__ if name.startswith(STATE)]:
        del module.__dict__[key]
    hooks = {**module._forward_pre_hooks, **module._forward_hooks}
    for number, hook in hooks.items():
        if type(getattr(hook, "__self__", None)).__module__.startswith("torch.distributed."):
            for table in HOOK_TABLES:
                module.__dict__[table].pop(number, None)


def _whole(parameter: nn.Parameter) -> nn.Parameter:
    gather = getattr(parameter, "full_tensor", None)  # of a DTensor
    tensor = parameter if gather is None else gather()
    # A process that shares with nobody gathers a view of its own shard.
    return nn.Parameter(tensor.detach().clone(), requires_grad=parameter.requires_grad)

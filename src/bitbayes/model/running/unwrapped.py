"""The network inside wrappers that compile or distribute it."""

from torch import nn

from bitbayes.model.running.fsdp import gather_fsdp, is_sharded
from bitbayes.model.running.private_copy import WRAPPERS


def unwrapped(model: nn.Module) -> nn.Module:
    """The network inside `torch.compile`, `DataParallel` and `DistributedDataParallel`.

    A compiled graph may not call hooks, and data-parallel copies run in other threads or wait for other
    processes. A network that FSDP has sharded is replaced by a plain copy, which all processes must make.
    """
    inside = model.module if isinstance(model, WRAPPERS) else getattr(model, "_orig_mod", model)
    if isinstance(inside, nn.Module) and inside is not model:
        return unwrapped(inside)
    return gather_fsdp(model) if is_sharded(model) else model

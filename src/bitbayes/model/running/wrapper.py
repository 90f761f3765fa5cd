"""A module around a user's model, as trainers see it: its state dict, and conversions to another dtype."""

import warnings
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from bitbayes.errors import KeptDtypeWarning, StateDictWarning, level_of_the_caller


class ModelWrapper(nn.Module):
    """A module whose state dict carries what it knows of its model, and which does not convert that model.

    model: the user's.
    """

    model: nn.Module

    def __init__(self) -> None:
        super().__init__()
        self._loaded_state: Tensor | None = None
        # Called after the model has been loaded, to which the state belongs.
        self.register_load_state_dict_post_hook(_restore)  # type: ignore[no-untyped-call]

    @abstractmethod
    def _knowledge(self) -> bytes:
        """What is known, as bytes; none if nothing is."""

    @abstractmethod
    def _forget(self) -> None:
        """Know nothing from now on."""

    @abstractmethod
    def _learn(self, content: bytes) -> None:
        """Know what `_knowledge` returned; raises if it does not fit to the model."""

    def get_extra_state(self) -> Tensor:
        """Return what was fitted and chosen: bytes in an entry of the state dict, (0,) if nothing was."""
        content = self._knowledge()
        return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.zeros(0).byte()

    def set_extra_state(self, state: Tensor) -> None:
        """Keep that entry of a state dict until the model has been loaded, too."""
        self._loaded_state = state

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        """Load a state dict. One without that entry is no error: a trainer may have an older one."""
        super()._load_from_state_dict(state_dict, prefix, *args)
        _, _, missing, *_ = args
        if (key := f"{prefix}_extra_state") in missing:
            missing.remove(key)
            _warn("it has none")

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the model to a device. It keeps its dtype, because what was fitted belongs to its weights.

        `half()`, `double()` and `to(dtype)`, of this module or of one that it is part of, warn and leave the
        tensors as they are.
        """
        dtypes = {each.dtype for each in (*self.parameters(), *self.buffers())}
        if any(fn(torch.zeros(0, dtype=each)).dtype != each for each in dtypes):
            warnings.warn(
                f"a {type(self).__name__} was to be converted to another dtype: its model keeps its own, "
                "because what was fitted belongs to these weights. Convert the model first, and fit it",
                KeptDtypeWarning,
                stacklevel=level_of_the_caller(),
            )
            convert = fn

            def fn(each: Tensor) -> Tensor:
                return each.to(convert(each.new_empty(0)).device)

        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self


def _restore(module: ModelWrapper, _: object) -> None:
    """Use the state that was loaded. Where it does not fit nothing is known, and no checkpoint fails."""
    state, module._loaded_state = module._loaded_state, None
    if state is None:
        return
    module._forget()
    try:
        if len(state):
            module._learn(state.cpu().numpy().tobytes())
    except Exception as error:  # of any type: a state dict may hold anything
        module._forget()
        _warn(str(error))


def _warn(reason: str) -> None:
    warnings.warn(
        f"nothing fitted was taken from the state dict: {reason}. Call `fit`, or load what `save` wrote",
        StateDictWarning,
        stacklevel=level_of_the_caller(),
    )

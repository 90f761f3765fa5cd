"""`help` of a network class without what every `nn.Module` has."""

from abc import ABCMeta
from collections.abc import Iterable

from torch import nn


class _ListsItsOwn(ABCMeta):
    """A metaclass: `dir` of a class, by which `help` goes, lists its own members and not those of torch.

    That of abstract classes, so that a subclass can be one of these too.
    """

    def __dir__(cls) -> list[str]:
        own = (kind for kind in cls.__mro__ if kind.__module__.partition(".")[0] not in ("torch", "builtins"))
        return sorted({name for kind in own for name in vars(kind) if not name.startswith("__")})


class ShortHelp(nn.Module, metaclass=_ListsItsOwn):
    """An `nn.Module` whose subclasses have a short `help`.

    `help(Laplace)` would have 1,400 lines otherwise, most of them about `nn.Module`.
    """

    def __dir__(self) -> Iterable[str]:  # an instance lists everything
        return sorted(
            {
                *super().__dir__(),  # type: ignore[no-untyped-call]
                *type.__dir__(type(self)),
            }
        )

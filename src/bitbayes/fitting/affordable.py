"""Which structure a head gets, and whether memory and time allow it: known before anything is allocated."""

import torch

from bitbayes.errors import ModelError, NotEnoughMemoryError
from bitbayes.model import Head, free_bytes
from bitbayes.structures import CURVATURES, Curvature

# Up to so many classes "auto" keeps the whole Kronecker factor over the classes, at the price of their cube.
MANY_CLASSES = 4096
# The largest matrix that is decomposed, by its side: 3 GB, and some minutes on a good machine.
LARGEST_SIDE = 20_000


def structure_for(structure: str, head: Head) -> type[Curvature]:
    """The structure of that name; "auto" follows from the size of the head."""
    if structure == "lowrank" and head.outputs == 1:
        raise ModelError("structure='lowrank' is for many classes: use structure='full' for one logit")
    if structure == "auto":
        structure = "full" if head.outputs == 1 else "kron" if head.outputs <= MANY_CLASSES else "lowrank"
    return CURVATURES[structure]


def check_memory(kind: type[Curvature], head: Head, device: torch.device, more: int) -> None:
    """Raise, before anything is allocated, if the structure and so many bytes more would not fit."""
    needed, free = kind.bytes_needed(head.outputs, head.width) + more, free_bytes(device)
    if free is not None and needed > free:
        raise NotEnoughMemoryError(
            f"structure={kind.structure!r} needs about {needed / 1e9:,.1f} GB for this last layer of "
            f"{head.outputs:,} outputs and {head.width:,} features, and {free / 1e9:,.1f} GB are free on "
            f"{device}: {_smaller(head, free - more)}"
        )


def _alternatives(head: Head) -> tuple[str, str]:
    """Structures that need less than others for this head, the better one first."""
    return "lowrank" if head.outputs > MANY_CLASSES else "kron", "diag"


def _smaller(head: Head, free: int) -> str:
    """What to do instead."""
    fitting = [
        repr(name)
        for name in _alternatives(head)
        if CURVATURES[name].bytes_needed(head.outputs, head.width) <= free
    ]
    other = f"use structure={' or '.join(fitting)}, or " if fitting else ""
    return f"{other}free some, or use another device"


def check_size(kind: type[Curvature], head: Head) -> None:
    """Raise, before anything is allocated, if the structure needs a matrix that is too large to decompose."""
    if not _fits(kind, head):
        side = kind.largest_side(head.outputs, head.width)
        smaller = (each for each in _alternatives(head) if _fits(CURVATURES[each], head))
        raise ModelError(
            f"structure={kind.structure!r} needs a matrix of {side:,} × {side:,} for this last layer of "
            f"{head.outputs:,} outputs and {head.width:,} features, which takes {8 * side**2 / 1e9:,.1f} GB "
            f"and too long to decompose: use structure={' or '.join(map(repr, smaller))}"
        )


def _fits(kind: type[Curvature], head: Head) -> bool:
    """Whether the structure needs no matrix that is too large to decompose."""
    return kind.largest_side(head.outputs, head.width) <= LARGEST_SIDE

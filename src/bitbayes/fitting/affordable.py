"""Choose a head's structure, and check that memory and time allow it, before anything is allocated."""

from contextlib import suppress
from pathlib import Path

import torch

from bitbayes.errors import ModelError, NotEnoughMemoryError
from bitbayes.model import Head
from bitbayes.structures import CURVATURES, Curvature

# Up to this many classes "auto" keeps the whole Kronecker factor over the classes, at a cost of their cube.
MANY_CLASSES = 4096
# The largest matrix that is decomposed, by its side: 3 GB, and some minutes on a good machine.
LARGEST_SIDE = 20_000


def affordable_structure(name: str, head: Head, device: torch.device, more: int) -> type[Curvature]:
    """The structure of that name; "auto" follows from the size of the head.

    Raises if the structure needs a matrix that is too large to decompose, or more memory than is free.

    Args:
        name: as in `Laplace(structure=…)`.
        head: the last layer.
        device: where the sums are made.
        more: bytes that are needed in addition to the structure.
    """
    k, width = head.outputs, head.width
    if name == "lowrank" and k == 1:
        raise ModelError("structure='lowrank' is for many classes: use structure='full' for one logit")
    if name == "auto":
        name = "full" if k == 1 else "kron" if k <= MANY_CLASSES else "lowrank"
    kind, free = CURVATURES[name], free_bytes(device)
    side, needed = kind.largest_side(k, width), kind.bytes_needed(k, width) + more
    # Structures that may need less for this head, the better one first.
    smaller = [CURVATURES["lowrank" if k > MANY_CLASSES else "kron"], CURVATURES["diag"]]
    if side > LARGEST_SIDE:
        names = [repr(each.structure) for each in smaller if each.largest_side(k, width) <= LARGEST_SIDE]
        raise ModelError(
            f"structure={name!r} needs a matrix of {side:,} × {side:,} for this last layer of {k:,} outputs "
            f"and {width:,} features, which takes {8 * side**2 / 1e9:,.1f} GB and too long to decompose: use "
            f"structure={' or '.join(names)}"
        )
    if free is not None and needed > free:
        names = [repr(each.structure) for each in smaller if each.bytes_needed(k, width) + more <= free]
        other = f"use structure={' or '.join(names)}, or " if names else ""
        raise NotEnoughMemoryError(
            f"structure={name!r} needs about {needed / 1e9:,.1f} GB for this last layer of {k:,} outputs and "
            f"{width:,} features, and {free / 1e9:,.1f} GB are free on {device}: {other}free some, or use "
            "another device"
        )
    return kind


def free_bytes(device: torch.device) -> int | None:
    """The free memory of a device, in bytes; None if it is not known."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    with suppress(OSError, StopIteration, ValueError):  # Linux: what is free, or can be freed
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    return None

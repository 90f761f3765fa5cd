"""Sums over data as tensors called "curvature/LAYER/FIELD" and "inputs/FIELD", with a header to read them."""

from dataclasses import fields
from typing import Any

from torch import Tensor

from bitbayes.residual import InputMoments
from bitbayes.structures import CURVATURES, Curvature
from bitbayes.tensors import TensorBundle


def to_tensors(
    curvature: dict[str, Curvature], moments: InputMoments | None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors by name, and their description for a header."""
    tensors = {
        f"curvature/{layer}/{name}": tensor
        for layer, each in curvature.items()
        for name, tensor in each.tensors().items()
    }
    if moments is not None:
        tensors |= {f"inputs/{name}": tensor for name, tensor in moments.tensors().items()}
    structures = {layer: each.structure for layer, each in curvature.items()}
    return tensors, {"inputs": moments is not None, "structures": structures}


def names(header: dict[str, Any]) -> list[str]:
    """The names of the tensors that a header promises."""
    return [f"{part}/{field.name}" for part, kind in _parts(header).items() for field in fields(kind)]


def from_tensors(
    tensors: dict[str, Tensor], header: dict[str, Any]
) -> tuple[dict[str, Curvature], InputMoments | None]:
    """The curvature and the moments that `to_tensors` was given."""
    made: dict[str, Any] = {
        part: kind(*(tensors[f"{part}/{field.name}"] for field in fields(kind)))
        for part, kind in _parts(header).items()
    }
    return {layer: made[f"curvature/{layer}"] for layer in header["structures"]}, made.get("inputs")


def _parts(header: dict[str, Any]) -> dict[str, type[TensorBundle]]:
    """The type of each part: a layer's curvature or, with a residual, the moments of the inputs."""
    parts: dict[str, type[TensorBundle]] = {
        f"curvature/{layer}": CURVATURES[structure] for layer, structure in header["structures"].items()
    }
    return parts | ({"inputs": InputMoments} if header["inputs"] else {})

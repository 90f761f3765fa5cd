"""Sums over data as tensors, "curvature/LAYER/FIELD" and "level/NAME/FIELD", with a header to read them."""

from dataclasses import fields
from typing import Any

from torch import Tensor

from bitbayes.residual import LevelSums
from bitbayes.structures import CURVATURES, Curvature
from bitbayes.tensors import TensorBundle


def to_tensors(
    curvature: dict[str, Curvature], levels: dict[str, LevelSums]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors by name, and their description for a header."""
    bundles: dict[str, TensorBundle] = {f"curvature/{layer}": each for layer, each in curvature.items()}
    bundles |= {f"level/{name}": each for name, each in levels.items()}
    tensors = {
        f"{part}/{name}": tensor for part, each in bundles.items() for name, tensor in each.tensors().items()
    }
    structures = {layer: each.structure for layer, each in curvature.items()}
    return tensors, {"measured": [*levels], "structures": structures}


def names(header: dict[str, Any]) -> list[str]:
    """The names of the tensors that a header promises."""
    return [f"{part}/{field.name}" for part, kind in _parts(header).items() for field in fields(kind)]


def from_tensors(
    tensors: dict[str, Tensor], header: dict[str, Any]
) -> tuple[dict[str, Curvature], dict[str, LevelSums]]:
    """The curvature and the levels that `to_tensors` was given."""
    made: dict[str, Any] = {
        part: kind(*(tensors[f"{part}/{field.name}"] for field in fields(kind)))
        for part, kind in _parts(header).items()
    }
    curvature = {layer: made[f"curvature/{layer}"] for layer in header["structures"]}
    return curvature, {name: made[f"level/{name}"] for name in header["measured"]}


def _parts(header: dict[str, Any]) -> dict[str, type[TensorBundle]]:
    """The type of each part: a layer's curvature, or the sums of a level."""
    parts: dict[str, type[TensorBundle]] = {
        f"curvature/{layer}": CURVATURES[structure] for layer, structure in header["structures"].items()
    }
    return parts | {f"level/{name}": LevelSums for name in header["measured"]}

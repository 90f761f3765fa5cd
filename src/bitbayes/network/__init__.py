"""What the model is: its batches, its mode, its linear head, and the features that head sees."""

from bitbayes.network.batches import Inputs, Peeked, a_loader, items, model_device
from bitbayes.network.derivatives import (
    MatrixPiece,
    Piece,
    Recorded,
    VectorPiece,
    as_logits,
    differentiate,
    substitutes,
    upcast,
    working_dtype,
)
from bitbayes.network.fingerprint import Fingerprint, fingerprint
from bitbayes.network.head import Head, call, find_head, forward
from bitbayes.network.layers import Layer, find_layers, tied_to
from bitbayes.network.mode import evaluating
from bitbayes.network.observe import grouped, observe, observe_inputs
from bitbayes.network.probe import probed

__all__ = [
    "Fingerprint",
    "Head",
    "Inputs",
    "Layer",
    "MatrixPiece",
    "Peeked",
    "Piece",
    "Recorded",
    "VectorPiece",
    "a_loader",
    "as_logits",
    "call",
    "differentiate",
    "evaluating",
    "find_head",
    "find_layers",
    "fingerprint",
    "forward",
    "grouped",
    "items",
    "model_device",
    "observe",
    "observe_inputs",
    "probed",
    "substitutes",
    "tied_to",
    "upcast",
    "working_dtype",
]

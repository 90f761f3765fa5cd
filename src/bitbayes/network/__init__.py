"""What the model is: its batches, its mode, its linear head, and the features that head sees."""

from bitbayes.network.batches import Inputs, Peeked, a_loader, batches, cut, items, model_device, rows_of
from bitbayes.network.derivatives import (
    Recorded,
    as_logits,
    differentiate,
    points_at_once,
    substitutes,
    upcast,
    working_dtype,
)
from bitbayes.network.fingerprint import Fingerprint, fingerprint
from bitbayes.network.head import Head, call, find_head, forward
from bitbayes.network.layers import Layer, Network, find_layers, tied_to
from bitbayes.network.mode import evaluating, unwrapped
from bitbayes.network.observing import check_finite, finite, grouped, observe, observe_inputs
from bitbayes.network.pieces import MatrixPiece, Piece, VectorPiece, from_pairs
from bitbayes.network.probe import probed
from bitbayes.network.watch import entering

__all__ = [
    "Fingerprint",
    "Head",
    "Inputs",
    "Layer",
    "MatrixPiece",
    "Network",
    "Peeked",
    "Piece",
    "Recorded",
    "VectorPiece",
    "a_loader",
    "as_logits",
    "batches",
    "call",
    "check_finite",
    "cut",
    "differentiate",
    "entering",
    "evaluating",
    "find_head",
    "find_layers",
    "fingerprint",
    "finite",
    "forward",
    "from_pairs",
    "grouped",
    "items",
    "model_device",
    "observe",
    "observe_inputs",
    "points_at_once",
    "probed",
    "rows_of",
    "substitutes",
    "tied_to",
    "unwrapped",
    "upcast",
    "working_dtype",
]

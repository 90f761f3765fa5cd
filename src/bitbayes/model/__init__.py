"""What the model is: its batches, its mode, its linear head, and the features that head sees."""

from bitbayes.model.batches import (
    Inputs,
    PreviewedLoader,
    batches,
    check_loader,
    cut,
    items,
    model_device,
    row_count,
)
from bitbayes.model.derivatives import LayerRecord, differentiate
from bitbayes.model.eval_mode import eval_mode, unwrapped
from bitbayes.model.fingerprint import Fingerprint, fingerprint
from bitbayes.model.forward_passes import check_finite, finite, grouped, observe, observe_inputs
from bitbayes.model.head import Head, as_logits, call, find_head, forward
from bitbayes.model.hooks import input_hooks
from bitbayes.model.layer_jacobians import DenseJacobian, LayerJacobian, MatrixJacobian, from_pairs
from bitbayes.model.layers import Layer, Network, find_layers, tied_to
from bitbayes.model.memory import points_at_once
from bitbayes.model.verify_layers import verify_layers
from bitbayes.model.working_precision import substitutes, upcast, working_dtype

__all__ = [
    "DenseJacobian",
    "Fingerprint",
    "Head",
    "Inputs",
    "Layer",
    "LayerJacobian",
    "LayerRecord",
    "MatrixJacobian",
    "Network",
    "PreviewedLoader",
    "as_logits",
    "batches",
    "call",
    "check_finite",
    "check_loader",
    "cut",
    "differentiate",
    "eval_mode",
    "find_head",
    "find_layers",
    "fingerprint",
    "finite",
    "forward",
    "from_pairs",
    "grouped",
    "input_hooks",
    "items",
    "model_device",
    "observe",
    "observe_inputs",
    "points_at_once",
    "row_count",
    "substitutes",
    "tied_to",
    "unwrapped",
    "upcast",
    "verify_layers",
    "working_dtype",
]

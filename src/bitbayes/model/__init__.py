"""What the model is: its batches, its mode, its linear head, and the features that head sees."""

from bitbayes.model.batches import (
    Batch,
    Data,
    Inputs,
    Loader,
    NamedInputs,
    PreviewedLoader,
    check_data,
    check_loader,
    input_batches,
    labelled_batches,
    model_device,
    row_count,
    without_labels,
)
from bitbayes.model.derivatives import LayerRecord, differentiate
from bitbayes.model.fingerprint import Fingerprint, fingerprint, fingerprinted
from bitbayes.model.forward_passes import FeatureBatch, check_finite, finite, forward_passes, grouped
from bitbayes.model.head import Head, find_head, forward
from bitbayes.model.late_checks import LateChecks, require
from bitbayes.model.layer_jacobians import DenseJacobian, LayerJacobian, MatrixJacobian, from_pairs
from bitbayes.model.layers import Layer, TrainableLayers, find_layers, tied_to
from bitbayes.model.layout import IGNORED, Layout
from bitbayes.model.memory import free_bytes, points_at_once
from bitbayes.model.ordered import OrderedLoader
from bitbayes.model.output import as_logits, call
from bitbayes.model.private_copy import none_called, private_copy
from bitbayes.model.selected import Selector, selected
from bitbayes.model.shares import own_points, without_repeats
from bitbayes.model.unwrapped import unwrapped
from bitbayes.model.verify_layers import verify_layers
from bitbayes.model.watch import Watch, watched
from bitbayes.model.working_precision import working_dtype

__all__ = [
    "IGNORED",
    "Batch",
    "Data",
    "DenseJacobian",
    "FeatureBatch",
    "Fingerprint",
    "Head",
    "Inputs",
    "LateChecks",
    "Layer",
    "LayerJacobian",
    "LayerRecord",
    "Layout",
    "Loader",
    "MatrixJacobian",
    "NamedInputs",
    "OrderedLoader",
    "PreviewedLoader",
    "Selector",
    "TrainableLayers",
    "Watch",
    "as_logits",
    "call",
    "check_data",
    "check_finite",
    "check_loader",
    "differentiate",
    "find_head",
    "find_layers",
    "fingerprint",
    "fingerprinted",
    "finite",
    "forward",
    "forward_passes",
    "free_bytes",
    "from_pairs",
    "grouped",
    "input_batches",
    "labelled_batches",
    "model_device",
    "none_called",
    "own_points",
    "points_at_once",
    "private_copy",
    "require",
    "row_count",
    "selected",
    "tied_to",
    "unwrapped",
    "verify_layers",
    "watched",
    "without_labels",
    "without_repeats",
    "working_dtype",
]

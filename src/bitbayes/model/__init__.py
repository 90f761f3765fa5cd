"""The user's network, which is never changed: its loaders, runs, linear head and derivatives."""

from bitbayes.model.head.features import FeatureBatch, forward_passes, grouped
from bitbayes.model.head.head import Head, find_head, forward
from bitbayes.model.head.layout import IGNORED, Layout
from bitbayes.model.jacobians.derivatives import LayerRecord, differentiate
from bitbayes.model.jacobians.layer_jacobians import DenseJacobian, LayerJacobian, MatrixJacobian, from_pairs
from bitbayes.model.jacobians.layers import Layer, TrainableLayers, find_layers, tied_to
from bitbayes.model.jacobians.memory import free_bytes, points_at_once
from bitbayes.model.jacobians.verify_layers import verify_layers
from bitbayes.model.jacobians.working_precision import working_dtype
from bitbayes.model.loaders.batches import (
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
from bitbayes.model.loaders.ordered import OrderedLoader
from bitbayes.model.loaders.padding import own_points, without_repeats
from bitbayes.model.running.calls import as_logits, call
from bitbayes.model.running.change_detector import Watch, watched
from bitbayes.model.running.deferred_checks import LateChecks, require
from bitbayes.model.running.fingerprint import Fingerprint, fingerprint, fingerprinted
from bitbayes.model.running.finite import check_finite, finite
from bitbayes.model.running.private_copy import none_called, private_copy
from bitbayes.model.running.selected import Selector, selected
from bitbayes.model.running.unwrapped import unwrapped

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

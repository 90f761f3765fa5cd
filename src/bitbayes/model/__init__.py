"""The user's network, which is never changed: its loaders, runs, linear head and derivatives."""

from bitbayes.model.head.features import FeatureBatch, FeaturePasses, forward
from bitbayes.model.head.head import Head, find_head
from bitbayes.model.head.layout import IGNORED, Layout
from bitbayes.model.head.levels import Level, Observer, find_levels, named_levels, recorded_levels, run_levels
from bitbayes.model.jacobians.along import Way, working_way
from bitbayes.model.jacobians.derivatives import LayerRecord, differentiate
from bitbayes.model.jacobians.layer_jacobians import DenseJacobian, LayerJacobian, MatrixJacobian, from_pairs
from bitbayes.model.jacobians.layers import Layer, TrainableLayers, find_layers, tied_to
from bitbayes.model.jacobians.memory import directions_at_once, pass_bytes, points_at_once
from bitbayes.model.jacobians.verify_layers import verify_layers
from bitbayes.model.jacobians.working_precision import working_dtype
from bitbayes.model.loaders.arguments import model_device
from bitbayes.model.loaders.batches import (
    Batch,
    Data,
    InputForm,
    Inputs,
    Loader,
    NamedInputs,
    check_data,
    check_loader,
    input_batches,
    labelled_batch,
    labelled_batches,
    row_count,
    split_batch,
    without_labels,
)
from bitbayes.model.loaders.digests import DataDigest
from bitbayes.model.loaders.ordered import OrderedLoader
from bitbayes.model.loaders.padding import Unpadded, count_unpadded
from bitbayes.model.loaders.pairs import PairAdapter, is_pair, pair_data
from bitbayes.model.running.calls import as_logits, call
from bitbayes.model.running.change_detector import (
    ChangeDetector,
    Fingerprint,
    Run,
    detect_changes,
    fingerprint,
)
from bitbayes.model.running.deferred_checks import DeferredChecks, check_finite, finite
from bitbayes.model.running.known_outputs import InputKind, KnownOutputs, input_kinds
from bitbayes.model.running.private_copy import SideEffects, none_called, private_copy
from bitbayes.model.running.row_check import SomeRows, check_rows
from bitbayes.model.running.selected import Adapter, Selector, selected, unselected
from bitbayes.model.running.unwrapped import unwrapped
from bitbayes.model.running.wrapper import ModelWrapper

__all__ = [
    "IGNORED",
    "Adapter",
    "Batch",
    "ChangeDetector",
    "Data",
    "DataDigest",
    "DeferredChecks",
    "DenseJacobian",
    "FeatureBatch",
    "FeaturePasses",
    "Fingerprint",
    "Head",
    "InputForm",
    "InputKind",
    "Inputs",
    "KnownOutputs",
    "Layer",
    "LayerJacobian",
    "LayerRecord",
    "Layout",
    "Level",
    "Loader",
    "MatrixJacobian",
    "ModelWrapper",
    "NamedInputs",
    "Observer",
    "OrderedLoader",
    "PairAdapter",
    "Run",
    "Selector",
    "SideEffects",
    "SomeRows",
    "TrainableLayers",
    "Unpadded",
    "Way",
    "as_logits",
    "call",
    "check_data",
    "check_finite",
    "check_loader",
    "check_rows",
    "count_unpadded",
    "detect_changes",
    "differentiate",
    "directions_at_once",
    "find_head",
    "find_layers",
    "find_levels",
    "fingerprint",
    "finite",
    "forward",
    "from_pairs",
    "input_batches",
    "input_kinds",
    "is_pair",
    "labelled_batch",
    "labelled_batches",
    "model_device",
    "named_levels",
    "none_called",
    "pair_data",
    "pass_bytes",
    "points_at_once",
    "private_copy",
    "recorded_levels",
    "row_count",
    "run_levels",
    "selected",
    "split_batch",
    "tied_to",
    "unselected",
    "unwrapped",
    "verify_layers",
    "without_labels",
    "working_dtype",
    "working_way",
]

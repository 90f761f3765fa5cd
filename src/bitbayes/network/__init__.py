"""What the model is: its batches, its mode, its linear head, and the features that head sees."""

from bitbayes.network.batches import Inputs, Peeked, a_loader, items, model_device
from bitbayes.network.fingerprint import Fingerprint, fingerprint
from bitbayes.network.head import Head, call, find_head, forward
from bitbayes.network.mode import evaluating
from bitbayes.network.observe import grouped, observe, observe_inputs

__all__ = [
    "Fingerprint",
    "Head",
    "Inputs",
    "Peeked",
    "a_loader",
    "call",
    "evaluating",
    "find_head",
    "fingerprint",
    "forward",
    "grouped",
    "items",
    "model_device",
    "observe",
    "observe_inputs",
]

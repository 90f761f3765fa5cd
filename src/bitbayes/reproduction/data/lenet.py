"""The paper's LeNet, trained on the embedded digits."""

from __future__ import annotations

import torch
from safetensors.torch import load

from bitbayes.reproduction.data.files import read
from bitbayes.reproduction.networks import LeNet


def digits_lenet() -> LeNet:
    """Return the paper's LeNet as trained on the 5,000 embedded digits, in eval mode.

    Trained once, plainly, by `scripts/make_embedded.py`; its weights were then rounded to float16 and are
    float32 here. Its accuracy on the 2,000 embedded test digits is in `embedded/embedded.json`.

    Shapes: images (n, 1, 28, 28) in [0, 1] -> logits (n, 10).

    >>> from bitbayes.reproduction.data import digits
    >>> data = digits()
    >>> with torch.no_grad():
    ...     labels = digits_lenet()(data.test_images[:100]).argmax(dim=1)
    >>> (labels == data.test_labels[:100]).sum() >= 95
    tensor(True)
    """
    with torch.device("meta"):  # no weights are drawn: the caller's random numbers stay as they are
        network = LeNet()
    weights = {name: weight.float() for name, weight in load(read("lenet.safetensors")).items()}
    network.load_state_dict(weights, assign=True)
    return network.eval()

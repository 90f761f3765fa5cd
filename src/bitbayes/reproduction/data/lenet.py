"""The paper's LeNet, trained on the embedded digits."""

import torch
from safetensors.torch import load

from bitbayes.reproduction.data.files import read_embedded
from bitbayes.reproduction.networks import LeNet


def digits_lenet() -> LeNet:
    """Return the paper's LeNet as trained on the 5,000 embedded digits, in eval mode.

    It maps images (n, 1, 28, 28) in [0, 1] to logits (n, 10). `scripts/make_embedded.py` trained it with
    cross-entropy. Its weights were rounded to float16 and are float32 here. Its accuracy on the 2,000
    embedded test digits is in `embedded/embedded.json`.

    >>> from bitbayes.reproduction.data import digits
    >>> data = digits()
    >>> with torch.no_grad():
    ...     labels = digits_lenet()(data.test_images[:100]).argmax(dim=1)
    >>> (labels == data.test_labels[:100]).sum() >= 95
    tensor(True)
    """
    with torch.device("meta"):  # draws no weights, so the caller's random state does not change
        network = LeNet()
    weights = {name: weight.float() for name, weight in load(read_embedded("lenet.safetensors")).items()}
    network.load_state_dict(weights, assign=True)
    return network.eval()

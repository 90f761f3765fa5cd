"""The paper's LeNet, for grey images of 28 × 28 pixels."""

from torch import nn


class LeNet(nn.Sequential):
    """Two convolutions with ReLU and max pooling, then two linear layers: (n, 1, 28, 28) → (n, classes).

    There is no batch norm and no dropout.

    Args:
        classes: the number of logits. A binary problem takes 1 (sigmoid) or 2 (softmax).
        hidden: the number of features before the last layer.

    >>> sum(p.numel() for p in LeNet().parameters())
    3274634
    """

    def __init__(self, classes: int = 10, hidden: int = 1024) -> None:
        super().__init__(
            nn.Conv2d(1, 32, kernel_size=5, padding=2),  # (n, 32, 28, 28)
            nn.ReLU(),
            nn.MaxPool2d(2),  # (n, 32, 14, 14)
            nn.Conv2d(32, 64, kernel_size=5, padding=2),  # (n, 64, 14, 14)
            nn.ReLU(),
            nn.MaxPool2d(2),  # (n, 64, 7, 7)
            nn.Flatten(),
            nn.Linear(64 * 7 * 7, hidden),
            nn.ReLU(),
            nn.Linear(hidden, classes),
        )

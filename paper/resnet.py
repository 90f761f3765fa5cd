"""A residual network for small images, such as the 32 × 32 pixels of CIFAR and SVHN."""

from collections import OrderedDict

from torch import Tensor, nn


class BasicBlock(nn.Module):
    """relu(residual(x) + shortcut(x)): (n, channels_in, h, w) → (n, channels_out, h/stride, w/stride).

    The residual is two 3 × 3 convolutions, each with batch norm, and a ReLU between them. The shortcut is x
    itself, or a 1 × 1 convolution with batch norm if the shape changes.

    >>> sum(p.numel() for p in BasicBlock(64, 64, stride=1).parameters())
    73984
    """

    def __init__(self, channels_in: int, channels_out: int, *, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(channels_in, channels_out, kernel_size=3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
            nn.ReLU(),
            nn.Conv2d(channels_out, channels_out, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels_out, kernel_size=1, stride=stride, bias=False),
                nn.BatchNorm2d(channels_out),
            )
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """relu(residual(x) + shortcut(x))."""
        return self.relu(self.residual(x) + self.shortcut(x))  # type: ignore[no-any-return]


def resnet18(classes: int = 10, in_channels: int = 3, width: int = 64) -> nn.Sequential:
    """ResNet-18 for small images: (n, in_channels, h, w) → (n, classes).

    The first layer is a 3 × 3 convolution, without the stride and the max pooling used for larger images.
    Four stages of two `BasicBlock`s follow, with 1, 2, 4 and 8 times `width` channels. The last three stages
    halve the sides of the image. At the end come the average over the pixels and one linear layer.

    Args:
        classes: the number of logits. A binary problem takes 1 (sigmoid) or 2 (softmax).
        in_channels: the number of channels of the images.
        width: the number of channels in the first stage.

    >>> sum(p.numel() for p in resnet18().parameters())
    11173962
    """
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            stem=nn.Sequential(
                nn.Conv2d(in_channels, width, kernel_size=3, padding=1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(),
            ),
            stage1=_stage(width, width, stride=1),
            stage2=_stage(width, 2 * width, stride=2),
            stage3=_stage(2 * width, 4 * width, stride=2),
            stage4=_stage(4 * width, 8 * width, stride=2),
            pool=nn.AdaptiveAvgPool2d(1),  # (n, 8·width, 1, 1)
            flatten=nn.Flatten(),
            head=nn.Linear(8 * width, classes),
        )
    )


def _stage(channels_in: int, channels_out: int, *, stride: int) -> nn.Sequential:
    return nn.Sequential(
        BasicBlock(channels_in, channels_out, stride=stride), BasicBlock(channels_out, channels_out, stride=1)
    )

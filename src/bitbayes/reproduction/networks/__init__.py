"""The paper's networks. Each ends in an `nn.Linear` whose output is the network's output."""

from bitbayes.reproduction.networks.lenet import LeNet
from bitbayes.reproduction.networks.mlp import MLP
from bitbayes.reproduction.networks.resnet import resnet18

__all__ = ["MLP", "LeNet", "resnet18"]

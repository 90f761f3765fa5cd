"""Plain copies of sharded models, in a group of one process; `tests/test_processes.py` has groups of two."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, fully_shard

from bitbayes.model.running.fsdp import gather_fsdp, is_sharded

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:FSDP:UserWarning"),  # that one process has nobody to share with
]


@pytest.fixture(autouse=True)
def _group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Network(nn.Module):
    """A module that is sharded by itself, a frozen one, two that share their weights, and a hook."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(3, 4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.register_module("none", None)
        self.head = nn.Linear(4, 2, bias=False)
        self.stem.register_forward_hook(lambda module, args, output: 2 * output)

    def forward(self, x):
        return self.head(self.second(self.first(self.frozen(self.stem(x)).tanh()).tanh()))


def sharded(kind):
    """The network, the values that it has, and the same as FSDP has sharded it."""
    torch.manual_seed(0)
    model, x = Network(), torch.randn(5, 3)
    expected = model(x).detach()
    values = {name: value.detach().clone() for name, value in model.named_parameters()}
    if kind == "fsdp2":
        mesh = init_device_mesh("cpu", (1,))
        fully_shard(model.stem, mesh=mesh)
        return fully_shard(model, mesh=mesh), values, x, expected
    cpu = {"device_id": torch.device("cpu"), "use_orig_params": True}
    model.stem = FullyShardedDataParallel(model.stem, **cpu)
    return FullyShardedDataParallel(model, **cpu), values, x, expected


@pytest.mark.parametrize("kind", ["fsdp1", "fsdp2"])
def test_the_copy_is_the_plain_network_and_the_model_stays_sharded(kind):
    model, values, x, expected = sharded(kind)
    assert is_sharded(model)
    found = gather_fsdp(model)
    assert type(found) is Network and not is_sharded(found) and not found.training
    own = dict(found.named_parameters())
    assert own.keys() == values.keys()
    for name, value in values.items():
        assert type(own[name]) is nn.Parameter and torch.equal(own[name], value)
        assert own[name].requires_grad is not name.startswith("frozen")
    assert found.second.weight is found.first.weight
    assert not any(isinstance(each, FSDPModule | FullyShardedDataParallel) for each in found.modules())
    # The user's hook stays, and those of FSDP are gone.
    assert sum(len(each._forward_hooks) + len(each._forward_pre_hooks) for each in found.modules()) == 1
    torch.testing.assert_close(found(x), expected)
    assert is_sharded(model)
    torch.testing.assert_close(model(x), expected)


@pytest.mark.parametrize("kind", ["fsdp1", "fsdp2"])
def test_the_copy_shares_no_memory_with_the_model(kind):
    model, _, x, expected = sharded(kind)
    found = gather_fsdp(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    torch.testing.assert_close(found(x), expected)


def test_a_plain_network_is_not_sharded():
    assert not is_sharded(Network())

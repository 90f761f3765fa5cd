import json

import pytest
import torch

from bitbayes.toys import LeNet, digits, digits_lenet, files

ABOUT = json.loads((files.EMBEDDED_FOLDER / "embedded.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def network():
    return digits_lenet()


def test_accuracy_is_the_one_written_down(network):
    data = digits()
    with torch.no_grad():
        correct = (network(data.test_images).argmax(dim=1) == data.test_labels).sum().item()
    assert correct / len(data.test_labels) >= 0.97
    # Another order of float32 sums may tip an image that lies on the boundary, not more.
    assert abs(correct - ABOUT["lenet"]["test_correct"]) <= 2
    assert ABOUT["lenet"]["test_accuracy"] == ABOUT["lenet"]["test_correct"] / len(data.test_labels)


def test_it_is_the_papers_lenet_in_eval_mode(network):
    assert isinstance(network, LeNet)
    assert not any(module.training for module in network.modules())
    assert {name: weight.shape for name, weight in network.state_dict().items()} == {
        name: weight.shape for name, weight in LeNet().state_dict().items()
    }


def test_weights_are_float32_rounded_to_float16_and_trainable(network):
    for weight in network.parameters():
        assert weight.dtype == torch.float32 and weight.device.type == "cpu" and weight.requires_grad
        assert torch.equal(weight, weight.half().float())


def test_loading_draws_no_random_numbers():
    before = torch.get_rng_state()
    digits_lenet()
    assert torch.equal(before, torch.get_rng_state())

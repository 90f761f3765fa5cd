"""The packed toys: their networks and their points are those of the library."""

import torch

import bitbayes as bb
from bitbayes.explorer.toys import fold_batch_norms, network_of, pack_toy
from bitbayes.toys import TOY_PROBLEMS, train_toy


def test_folded_batch_norms_leave_the_network_as_it_is():
    """With batch norms whose statistics are not 0 and 1."""
    network = bb.toys.MLP((2, 5, 4, 3), batch_norm=True).double()
    network(torch.randn(50, 2).double() * 3 + 1)  # in train mode: they follow the data
    x = torch.randn(7, 2).double()
    *hidden, (weight, bias) = fold_batch_norms(network.eval())
    values = x
    for own_weight, own_bias in hidden:
        values = torch.relu(values @ own_weight.T + own_bias)
    torch.testing.assert_close(values @ weight.T + bias, network(x), rtol=1e-12, atol=1e-12)


def test_the_packed_network_is_the_network_to_six_digits():
    toy = TOY_PROBLEMS[1]()
    network = train_toy(toy, quick=True)
    packed = pack_toy(toy, network)
    x = 3 * torch.randn(20, 2)
    with torch.no_grad():
        found, expected = network_of(packed)(x.double()), network(x).double()
    # Some forty terms, each of a few roundings to six digits and some to float32, in two layers.
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(torch.tensor(packed["points"]), toy.x, rtol=1e-5, atol=0, check_dtype=False)

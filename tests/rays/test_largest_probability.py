"""The largest probability of any class, from ranges of scores: none exceeds it, and it is reached."""

import torch

from bitbayes.rays.largest_probability import largest_pairwise_probability, largest_softmax_probability


def ranges(n=200, k=4):
    """Antisymmetric z (n, k, k), and ranges around them."""
    torch.manual_seed(0)
    z = 2 * torch.randn(n, k, k).double()
    z = z - z.mT
    return z, z - torch.rand_like(z), z + torch.rand_like(z)


def test_no_scores_within_the_ranges_exceed_the_pairwise_bound():
    z, low, high = ranges()
    bound = largest_pairwise_probability(low, high)
    for _ in range(20):
        inside = low + (high - low) * torch.rand_like(z)
        p = (-torch.logsumexp(-inside, 2)).softmax(1)
        assert bool((p.amax(1) <= bound + 1e-12).all())
    exact = (-torch.logsumexp(-z, 2)).softmax(1).amax(1)
    torch.testing.assert_close(largest_pairwise_probability(z, z), exact)


def test_the_pairwise_bound_is_reached_where_one_class_is_high_and_all_others_low():
    _, low, high = ranges(n=1)
    found = []
    for i in range(4):
        z = low.clone()
        z[:, i] = high[:, i]
        found.append((-torch.logsumexp(-z, 2)).softmax(1)[0, i])
    torch.testing.assert_close(largest_pairwise_probability(low, high)[0], torch.stack(found).amax())


def test_no_differences_of_scores_exceed_the_softmax_bound():
    torch.manual_seed(0)
    s = 3 * torch.randn(200, 4).double()
    high = s[:, :, None] - s[:, None, :]
    torch.testing.assert_close(largest_softmax_probability(high), s.softmax(1).amax(1))
    assert bool((largest_softmax_probability(high + 0.5) >= s.softmax(1).amax(1)).all())

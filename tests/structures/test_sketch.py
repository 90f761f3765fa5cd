"""What a sketch of few rows loses."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bitbayes.structures.sketch import compress


@settings(deadline=None)
@given(n=st.integers(2, 30), k=st.integers(2, 12), rank=st.integers(1, 11), seed=st.integers(0, 1000))
def test_the_estimate_is_at_most_the_mean_of_what_must_be_lost(n, k, rank, seed):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(n, k, generator=generator, dtype=torch.float64)
    weights = torch.rand(k, generator=generator, dtype=torch.float64) + 0.1
    _, lost = compress(rows, weights, rank)
    values = torch.linalg.svdvals(rows / weights.sqrt()).square()
    for j in range(min(rank + 1, len(values))):  # the bound of Liberty (2013), for every j
        assert float(lost) <= float(values[j:].sum()) / (rank + 1 - j) * (1 + 1e-9) + 1e-12

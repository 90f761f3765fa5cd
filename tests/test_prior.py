"""Prior variances: one for all layers or one for each, and the grid of candidates."""

import torch

from bitbayes.prior import variance_grid


def test_candidates_are_spaced_evenly_in_the_logarithm():
    grid = torch.tensor(variance_grid(100), dtype=torch.float64).log()
    torch.testing.assert_close(grid.diff(), grid.diff()[:1].expand(len(grid) - 1), rtol=1e-9, atol=0)

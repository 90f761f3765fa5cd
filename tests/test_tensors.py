"""Sums of squares, in whatever parts they are computed."""

import pytest
import torch

from bitbayes import tensors


@pytest.mark.parametrize("width", [1, 7, 8, 9, 20])
def test_second_moments_are_those_of_all_rows(width, monkeypatch):
    monkeypatch.setattr(tensors, "COLUMNS_AT_ONCE", 8)
    rows = torch.randn(30, width, generator=torch.Generator().manual_seed(width))
    expected = torch.einsum("na,nb->ab", rows.double(), rows.double())
    found = tensors.second_moments(rows)
    assert found.dtype == torch.float64 and found.is_contiguous()
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)

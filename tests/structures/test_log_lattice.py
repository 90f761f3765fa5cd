"""Interpolation between points that are even in the logarithm."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from bitbayes.structures.log_lattice import interpolation, lattice


@settings(deadline=None)
@given(x=st.floats(-20, 20), scale=st.floats(-25, 25))
def test_interpolation_keeps_nine_digits(x, scale):
    points = lattice(-20.0, 20.0)
    at = torch.tensor(points, dtype=torch.float64)
    at_x = torch.tensor([x], dtype=torch.float64)
    weights = interpolation(at_x, points)
    falling = weights @ (-(at + scale)).sigmoid()
    torch.testing.assert_close(falling, (-(at_x + scale)).sigmoid(), rtol=1e-9, atol=0)
    rising = weights @ functional.softplus(at + scale)
    torch.testing.assert_close(rising, functional.softplus(at_x + scale), rtol=1e-9, atol=1e-9)

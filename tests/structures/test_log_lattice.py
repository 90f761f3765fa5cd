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


def test_at_a_point_of_the_lattice_the_weight_is_its_own_up_to_the_last():
    points = lattice(-2.0, 3.0)
    weights = interpolation(torch.tensor(points, dtype=torch.float64), points)
    torch.testing.assert_close(weights, torch.eye(len(points), dtype=torch.float64), rtol=0, atol=1e-12)
    ends = torch.tensor([points[0] - 5, points[-1] + 5], dtype=torch.float64)  # where it stays constant
    torch.testing.assert_close(interpolation(ends, points), weights[[0, -1]], rtol=0, atol=1e-12)

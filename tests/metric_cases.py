"""Probabilities and labels for the tests of the measures."""

import torch
from hypothesis import strategies as st

# n terms of size ≤ 10 summed in float64 lose at most n · 10 · 2⁻⁵³, which is 1e-12 for n = 1,000.
EXACT = 1e-12

# Lists of the confidences of two classes, with many ties.
confidences = st.lists(st.integers(8, 16).map(lambda i: i / 16), min_size=1, max_size=45)


def case(n=500, k=4, seed=0, sharpness=3.0):
    """Probabilities of an overconfident classifier: labels are drawn from flatter ones."""
    generator = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(n, k, generator=generator, dtype=torch.float64)
    labels = torch.multinomial((0.5 * logits).softmax(-1), 1, generator=generator)[:, 0]
    return logits.softmax(-1), labels


def scores(*confidences):
    """Two-class probabilities with these confidences."""
    top = torch.tensor(confidences, dtype=torch.float64)
    return torch.stack([top, 1 - top], -1)

"""Noise and far-away inputs, in tensors and in mappings."""

import torch

from bitbayes.auditing.generated import first_rows, is_scalable, noise_like, pieces, scaled

X, IDS = torch.rand(5, 2) + 3, torch.arange(10).reshape(5, 2)
BOTH = {"ids": IDS, "x": X, "flag": True, "shared": torch.ones(3)}


def test_what_holds_no_rows_of_floats_cannot_be_scaled():
    assert is_scalable(X) and is_scalable(BOTH)
    assert not is_scalable(IDS) and not is_scalable({"ids": IDS, "shared": torch.ones(3)})


def test_only_rows_of_floats_are_scaled():
    assert torch.equal(scaled(X, 7.0), 7 * X)
    far = scaled(BOTH, 7.0)
    assert torch.equal(far["x"], 7 * X) and all(far[name] is BOTH[name] for name in ("ids", "flag", "shared"))


def test_noise_has_the_range_of_its_own_tensor_and_rows_of_the_others_beside_it():
    noise = noise_like(BOTH, 12, torch.Generator().manual_seed(0))
    assert noise["x"].shape == (12, 2) and not torch.equal(noise["x"][:5], X)
    assert X.min() <= noise["x"].min() and noise["x"].max() <= X.max()
    assert torch.equal(noise["ids"], torch.cat([IDS, IDS, IDS])[:12])
    assert noise["flag"] is True and noise["shared"] is BOTH["shared"]


def test_the_first_rows_of_some_batches():
    assert torch.equal(first_rows([X, X + 1], 7), torch.cat([X, X + 1])[:7])
    first = first_rows([BOTH, BOTH], 7)
    assert torch.equal(first["ids"], torch.cat([IDS, IDS])[:7]) and len(first["shared"]) == 3
    assert [len(part["x"]) for part in pieces(first, 3)] == [3, 3, 1]

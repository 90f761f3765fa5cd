"""Networks that cast their values to another precision."""

import pytest
import torch
from torch import nn

import bitbayes as bb
from bitbayes.errors import ModelError
from classifiers import points
from dense import close

STRUCTURES = ["diag", "kron", "full"]


class CastsAroundHead(nn.Module):
    """Casts to some precision before its head, and to another after it."""

    def __init__(self, before, after):
        super().__init__()
        self.inside, self.head, self.before, self.after = nn.Linear(4, 5), nn.Linear(5, 3), before, after

    def forward(self, x):
        return self.head(self.inside(x).relu().to(self.before)).to(self.after)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("after", [torch.float64, torch.bfloat16])
def test_an_output_in_another_precision_than_the_parameters(structure, after):
    model = CastsAroundHead(torch.float32, after)
    x, y = points(6)
    bayes = bb.Laplace(model, layers="all", structure=structure).fit([(x, y)])
    found = bayes.predict_proba(x), bayes.logits(x).covariance, bayes(x)
    model.after = torch.float32
    plain = bb.Laplace(model, layers="all", structure=structure).fit([(x, y)])
    tolerance = 1e-5 if after == torch.float64 else 0.02
    for mine, theirs in zip(
        found, (plain.predict_proba(x), plain.logits(x).covariance, plain(x)), strict=True
    ):
        assert mine.dtype == torch.float32
        close(mine, theirs, tolerance)
    model.after = after
    close(bayes.predict_proba(x, method="sampled_networks").sum(1).float(), torch.ones(6), 1e-6)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_forward_that_casts_to_half_precision_is_refused(structure):
    model = CastsAroundHead(torch.bfloat16, torch.float32).bfloat16()
    x, y = points(6, dtype=torch.bfloat16)
    with pytest.raises(ModelError, match=r"torch\.bfloat16 are taken in torch\.float32.*x\.to\(self\.weight"):
        bb.Laplace(model, layers="all", structure=structure).fit([(x, y)])

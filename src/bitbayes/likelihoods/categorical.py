"""k ≥ 2 logits f: p = softmax(f), Λ = diag(p) − ppᵀ.

Λ is zero along a common shift of all logits: Λ·(1,…,1) = 0. So curvature is stored along *class
differences*, c = k − 1 orthonormal directions that all sum to zero (the columns of `differences(k)`). The
shift then never has to be subtracted.
"""

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from bitbayes.closed_forms import FEW_CLASSES, bridge, centred_probit, mean_field, pairwise, safe_log
from bitbayes.likelihoods.base import ClosedForm, Likelihood
from bitbayes.logits import LogitGaussian
from bitbayes.tensors import second_moments


class Categorical(Likelihood):
    """k ≥ 2 classes by one logit for each."""

    name = "categorical"
    closed_forms: ClassVar[dict[str, ClosedForm]] = {
        "probit": centred_probit,
        "pairwise": pairwise,
        "meanfield": mean_field,
        "bridge": bridge,
    }
    need_cross_covariance = ("pairwise", "mc")
    with_bounds = ("probit", "pairwise", "meanfield")
    logits_in_a_margin = 2
    labels_are_classes = True
    has_softmax = True

    def takes(self, outputs: int) -> bool:
        return outputs > 1

    # ---- labels and loss

    def valid_labels(self, labels: Tensor, k: int) -> tuple[Tensor, Tensor | bool, str]:
        """Class indices in 0 … k − 1. On a GPU an index outside would crash the program."""
        if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
            return labels, False, f"expected class indices, integers from 0 to {k - 1}"
        labels = labels.long()
        inside = labels.clamp(0, k - 1)
        expected = f"the network has {k} logits, so they must lie from 0 to {k - 1}"
        return inside, (inside == labels).all(), expected

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, labels, reduction="none")

    # ---- the curvature of the loss at the outputs

    def differences(self, k: int, device: torch.device | None = None) -> Tensor:
        """(k, k − 1), orthonormal columns that sum to zero: column j is (1, …, 1, −j, 0, …)/√(j(j+1)).

        >>> t = Categorical().differences(3)
        >>> bool(t.sum(0).abs().max() < 1e-15), torch.allclose(t.T @ t, torch.eye(2).double())
        (True, True)
        """
        j = torch.arange(1, k, dtype=torch.float64, device=device)
        columns = torch.ones(k, k - 1, dtype=torch.float64, device=device).triu() - torch.diag(j, -1)[:, :-1]
        return columns / (j * (j + 1)).sqrt()

    def curvature(self, outputs: Tensor) -> Tensor:
        """Λₙ along the class differences, (n, k − 1, k − 1)."""
        p = outputs.softmax(1)
        t = self.differences(outputs.shape[1]).to(p)
        mean = p @ t  # (n, k−1)
        return torch.einsum("ia,ni,ib->nab", t, p, t) - mean[:, :, None] * mean[:, None, :]

    def total_curvature(self, outputs: Tensor) -> Tensor:
        """Σₙ Λₙ along the class differences, (k − 1, k − 1), without a matrix for each point."""
        p = outputs.softmax(1)
        total = -second_moments(p)
        total.diagonal().add_(p.sum(0))
        return _in_class_differences(_in_class_differences(total).T)

    def diagonal(self, outputs: Tensor) -> Tensor:
        """The diagonal of each Λₙ in the logits, (n, k): p(1 − p)."""
        p = outputs.softmax(1)
        return p * (1 - p)

    def root(self, outputs: Tensor) -> Tensor:
        """V with V Vᵀ = Λₙ, (n, k, k − 1), in closed form and without a subtraction.

        Column j is √(pⱼ q₊/q) · (0, …, 0, 1, −pⱼ₊₁/q₊, …, −p_k/q₊), with q = Σ_{i ≥ j} pᵢ and q₊ = q − pⱼ:
        the Cholesky factor of diag(p) − ppᵀ, whose last column is zero.

        >>> logits = torch.randn(4, 3).double()
        >>> v, p = Categorical().root(logits), logits.softmax(1)
        >>> torch.allclose(v @ v.mT, torch.diag_embed(p) - p[:, :, None] * p[:, None, :])
        True
        """
        p = outputs.softmax(1)
        tails = p.flip(1).cumsum(1).flip(1)  # q (n, k)
        # Where every later class has probability 0, so has the column.
        rest = tails[:, 1:].clamp_min(torch.finfo(p.dtype).tiny)  # q₊ (n, k−1)
        heights = (p[:, :-1] * tails[:, 1:] / tails[:, :-1].clamp_min(torch.finfo(p.dtype).tiny)).sqrt()
        below = torch.tril(p[:, :, None] / rest[:, None, :], -1)  # (n, k, k−1)
        return (torch.eye(p.shape[1], dtype=p.dtype, device=p.device)[:, :-1] - below) * heights[:, None, :]

    def draw(self, outputs: Tensor, generator: torch.Generator | None) -> Tensor:
        """onehot(y) − p for a label drawn from the model, (n, k): v vᵀ is Λₙ on average."""
        p = outputs.softmax(1)
        labels = torch.multinomial(p, 1, generator=generator)[:, 0]
        return functional.one_hot(labels, p.shape[1]).to(p) - p

    # ---- predictions

    def default_predictive(self, outputs: int, has_cross_covariance: bool) -> str:
        """Pairwise for up to 64 classes: the work for all pairs grows with the cube of their number.

        >>> Categorical().default_predictive(10, True), Categorical().default_predictive(1000, True)
        ('pairwise', 'meanfield')
        """
        return "pairwise" if outputs <= FEW_CLASSES and has_cross_covariance else "meanfield"

    def log_probabilities(self, drop_in: Tensor) -> Tensor:
        return drop_in.log_softmax(1)

    def probabilities(self, outputs: Tensor) -> Tensor:
        return outputs.softmax(-1)

    def drop_in(self, probabilities: Tensor) -> Tensor:
        return safe_log(probabilities)

    def remove_shift(self, outputs: Tensor) -> Tensor:
        """The largest logit becomes 0, so that scaling can only send the others to −inf."""
        return outputs - outputs.amax(-1, keepdim=True)

    # ---- scores

    def score(self, gaussian: LogitGaussian) -> Tensor:
        """log Σᵢ exp zᵢ, z the logits of "probit": these keep the size that a softmax discards."""
        return self.predict(gaussian, "probit").logsumexp(1)

    # ---- what tuning measures

    def margins(self, mean: Tensor) -> Tensor:
        """By how much the largest logit exceeds the next."""
        first, second = mean.topk(2, dim=1).values.unbind(1)
        return first - second

    def scaled_margin_variance(self, gaussian: LogitGaussian) -> Tensor:
        """The mean of Var(fᵢ − fⱼ) over all pairs."""
        return gaussian.scaled_mean_pair_variance()

    # ---- far from the data

    def far_confidence(self, outputs: int) -> float:
        return 1 / outputs

    def far_labels(self, mean: Tensor) -> Tensor:
        return mean.argmax(1)

    def centre(self, values: Tensor) -> Tensor:
        return values - values.mean(1, keepdim=True)

    def scaled_centred(self, gaussian: LogitGaussian) -> tuple[Tensor, Tensor]:
        return gaussian.scaled_centred()

    def largest_probability(self, low: Tensor, high: Tensor) -> Tensor:
        return largest_softmax(low, high)


def _in_class_differences(rows: Tensor) -> Tensor:
    """rows (…, k) times `Categorical.differences(k)`, (…, k − 1), without that product."""
    j = torch.arange(1, rows.shape[-1], dtype=rows.dtype, device=rows.device)
    return (_sums_before(rows) - j * rows[..., 1:]) / (j * (j + 1)).sqrt()


def _sums_before(rows: Tensor) -> Tensor:
    """The sum of all entries before each one but the first, (…, k − 1)."""
    if rows.is_cuda and torch.are_deterministic_algorithms_enabled():  # which refuse `cumsum` there
        return rows[..., :-1] @ torch.ones_like(rows[0, :-1]).expand(rows.shape[-1] - 1, -1).triu()
    return rows.cumsum(-1)[..., :-1]


def largest_softmax(low: Tensor, high: Tensor) -> Tensor:
    """The largest softmax probability of any class, (n,), for ranges of the scores (n, k).

    pᵢ ≤ σ(highᵢ − log Σ_{l≠i} e^lowₗ).
    """
    # All before a class and all behind it, so that memory is that of the scores.
    edge = torch.full_like(low[:, :1], -torch.inf)
    before = torch.cat([edge, low.logcumsumexp(1)[:, :-1]], dim=1)
    behind = torch.cat([low.flip(1).logcumsumexp(1).flip(1)[:, 1:], edge], dim=1)
    others = torch.logaddexp(before, behind)  # (n, k)
    return (high - others).amax(1).sigmoid()

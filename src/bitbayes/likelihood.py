"""Bernoulli (one logit) and categorical (k logits): the loss, its curvature at the logits, probabilities.

Λ = diag(p) − ppᵀ is the Hessian of the categorical loss in the logits. It does not see a common shift of
all logits: Λ·(1,…,1) = 0. So curvature is kept in *contrasts*, c = k − 1 orthonormal directions that all
sum to zero (the columns of `contrasts(k)`), and nothing ever has to be subtracted to get rid of the shift.
One logit is its own contrast: k = c = 1, Λ = p(1 − p).
"""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from bitbayes.errors import DataError
from bitbayes.model import Batch, LateChecks, require
from bitbayes.tensors import second_moments


class Likelihood(Protocol):
    """What a likelihood offers, given logits f (n, k)."""

    @property
    def name(self) -> str: ...

    def check(
        self, labels: Tensor, shape: tuple[int, int], where: str, checks: LateChecks | None = None
    ) -> Tensor: ...
    def losses(self, logits: Tensor, labels: Tensor) -> Tensor: ...
    def contrasts(self, k: int, device: torch.device | None = None) -> Tensor: ...
    def curvature(self, logits: Tensor) -> Tensor: ...
    def total_curvature(self, logits: Tensor) -> Tensor: ...
    def diagonal(self, logits: Tensor) -> Tensor: ...
    def root(self, logits: Tensor) -> Tensor: ...
    def draw(self, logits: Tensor, generator: torch.Generator | None) -> Tensor: ...
    def log_probabilities(self, logits: Tensor) -> Tensor: ...


class Bernoulli:
    """One logit f: p = σ(f)."""

    name = "bernoulli"

    def check(
        self, labels: Tensor, shape: tuple[int, int], where: str, checks: LateChecks | None = None
    ) -> Tensor:
        """Labels as (n,) in {0, 1}; integers, booleans and floats are taken. `shape`: (n, 1).

        `checks`: their values are looked at late.
        """
        labels = _flat(labels, shape, where)

        def refuse() -> None:
            raise DataError(
                f"{where}: the labels are {_show(labels)}; a network with one logit needs 0 and 1"
            )

        require(not labels.is_complex() and ((labels == 0) | (labels == 1)).all(), refuse, checks)
        return labels.long()

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """−log p(yₙ | fₙ), (n,)."""
        return functional.softplus((1 - 2 * labels) * logits[:, 0])

    def contrasts(self, k: int, device: torch.device | None = None) -> Tensor:
        return torch.ones(1, 1, dtype=torch.float64, device=device)

    def curvature(self, logits: Tensor) -> Tensor:
        """Λₙ (n, 1, 1) = σ(f)σ(−f): no 1 − p, which is 0 long before it should be."""
        return (logits.sigmoid() * (-logits).sigmoid())[:, :, None]

    def total_curvature(self, logits: Tensor) -> Tensor:
        """Σₙ Λₙ (1, 1)."""
        return self.curvature(logits).sum(0)

    def diagonal(self, logits: Tensor) -> Tensor:
        """The diagonal of each Λₙ in the logits, (n, 1)."""
        return self.curvature(logits)[:, :, 0]

    def root(self, logits: Tensor) -> Tensor:
        """v with v vᵀ = Λₙ, (n, 1, 1)."""
        return self.curvature(logits).sqrt()

    def draw(self, logits: Tensor, generator: torch.Generator | None) -> Tensor:
        """y − p for a label drawn from the model, (n, 1): its square is Λₙ on average."""
        p = logits.sigmoid()
        drawn = torch.rand(p.shape, generator=generator, dtype=p.dtype, device=p.device) < p
        return torch.where(drawn, (-logits).sigmoid(), -p)

    def log_probabilities(self, logits: Tensor) -> Tensor:
        """log p of both classes, (n, 2), from drop-in logits (n, 1)."""
        return torch.cat([functional.logsigmoid(-logits), functional.logsigmoid(logits)], dim=1)


class Categorical:
    """k ≥ 2 logits: p = softmax(f)."""

    name = "categorical"

    def check(
        self, labels: Tensor, shape: tuple[int, int], where: str, checks: LateChecks | None = None
    ) -> Tensor:
        """Labels as (n,) class indices in 0 … k − 1. `shape`: (n, k).

        `checks`: their values are looked at late. What is returned lies in that range whatever was given: on
        a GPU an index outside of it would end the program.
        """
        k = shape[1]
        if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
            raise DataError(
                f"{where}: the labels are of type {labels.dtype}; expected class indices, "
                f"integers from 0 to {k - 1}"
            )
        labels = _flat(labels, shape, where).long()

        def refuse() -> None:
            raise DataError(
                f"{where}: the labels are {_show(labels)}; the network has {k} logits, so they must "
                f"lie from 0 to {k - 1}"
            )

        inside = labels.clamp(0, k - 1)
        require((inside == labels).all(), refuse, checks)
        return inside

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """−log p(yₙ | fₙ), (n,)."""
        return functional.cross_entropy(logits, labels, reduction="none")

    def contrasts(self, k: int, device: torch.device | None = None) -> Tensor:
        """(k, k − 1), orthonormal columns that sum to zero: column j is (1, …, 1, −j, 0, …)/√(j(j+1)).

        >>> t = Categorical().contrasts(3)
        >>> bool(t.sum(0).abs().max() < 1e-15), torch.allclose(t.T @ t, torch.eye(2).double())
        (True, True)
        """
        j = torch.arange(1, k, dtype=torch.float64, device=device)
        columns = torch.ones(k, k - 1, dtype=torch.float64, device=device).triu() - torch.diag(j, -1)[:, :-1]
        return columns / (j * (j + 1)).sqrt()

    def curvature(self, logits: Tensor) -> Tensor:
        """Λₙ in contrasts, (n, k − 1, k − 1)."""
        p = logits.softmax(1)
        t = self.contrasts(logits.shape[1]).to(p)
        mean = p @ t  # (n, k−1)
        return torch.einsum("ia,ni,ib->nab", t, p, t) - mean[:, :, None] * mean[:, None, :]

    def total_curvature(self, logits: Tensor) -> Tensor:
        """Σₙ Λₙ in contrasts, (k − 1, k − 1), without a matrix for each point; of logits in float64."""
        p = logits.softmax(1)
        total = -second_moments(p)
        total.diagonal().add_(p.sum(0))
        return _in_contrasts(_in_contrasts(total).T)

    def diagonal(self, logits: Tensor) -> Tensor:
        """The diagonal of each Λₙ in the logits, (n, k): p(1 − p)."""
        p = logits.softmax(1)
        return p * (1 - p)

    def root(self, logits: Tensor) -> Tensor:
        """V with V Vᵀ = Λₙ, (n, k, k − 1), in closed form and without a subtraction.

        Column j is √(pⱼ q₊/q) · (0, …, 0, 1, −pⱼ₊₁/q₊, …, −p_k/q₊), with q = Σ_{i ≥ j} pᵢ and q₊ = q − pⱼ:
        the Cholesky factor of diag(p) − ppᵀ, whose last column is zero.

        >>> logits = torch.randn(4, 3).double()
        >>> v, p = Categorical().root(logits), logits.softmax(1)
        >>> torch.allclose(v @ v.mT, torch.diag_embed(p) - p[:, :, None] * p[:, None, :])
        True
        """
        p = logits.softmax(1)
        tails = p.flip(1).cumsum(1).flip(1)  # q (n, k)
        # Where every later class has probability 0, so has the column.
        rest = tails[:, 1:].clamp_min(torch.finfo(p.dtype).tiny)  # q₊ (n, k−1)
        heights = (p[:, :-1] * tails[:, 1:] / tails[:, :-1].clamp_min(torch.finfo(p.dtype).tiny)).sqrt()
        below = torch.tril(p[:, :, None] / rest[:, None, :], -1)  # (n, k, k−1)
        return (torch.eye(p.shape[1], dtype=p.dtype, device=p.device)[:, :-1] - below) * heights[:, None, :]

    def draw(self, logits: Tensor, generator: torch.Generator | None) -> Tensor:
        """onehot(y) − p for a label drawn from the model, (n, k): v vᵀ is Λₙ on average."""
        p = logits.softmax(1)
        labels = torch.multinomial(p, 1, generator=generator)[:, 0]
        return functional.one_hot(labels, p.shape[1]).to(p) - p

    def log_probabilities(self, logits: Tensor) -> Tensor:
        """log p, (n, k), from drop-in logits (n, k)."""
        return logits.log_softmax(1)


def _in_contrasts(rows: Tensor) -> Tensor:
    """rows (…, k) times `Categorical.contrasts(k)`, (…, k − 1), without that matrix and a product with it."""
    j = torch.arange(1, rows.shape[-1], dtype=rows.dtype, device=rows.device)
    return (_sums_before(rows) - j * rows[..., 1:]) / (j * (j + 1)).sqrt()


def _sums_before(rows: Tensor) -> Tensor:
    """The sum of all entries before each one but the first, (…, k − 1)."""
    if rows.is_cuda and torch.are_deterministic_algorithms_enabled():  # which refuse `cumsum` there
        return rows[..., :-1] @ torch.ones_like(rows[0, :-1]).expand(rows.shape[-1] - 1, -1).triu()
    return rows.cumsum(-1)[..., :-1]


def likelihood_for(outputs: int) -> Likelihood:
    """The likelihood of a network with that many outputs.

    It follows from their number alone, so it is no option. A likelihood that does not (regression, several
    labels for a point) will have to be asked for.

    >>> likelihood_for(1).name, likelihood_for(10).name
    ('bernoulli', 'categorical')
    """
    return Bernoulli() if outputs == 1 else Categorical()


def checked_labels(
    batch: Batch, likelihood: Likelihood, outputs: int, checks: LateChecks | None = None
) -> Tensor:
    """The labels of a batch as the likelihood takes them, (n,); raises if they are not such.

    `checks`: their values are looked at late.
    """
    assert batch.labels is not None  # it comes from `labelled_batches`
    return likelihood.check(batch.labels, (len(batch), outputs), batch.name, checks)


def _flat(labels: Tensor, shape: tuple[int, int], where: str) -> Tensor:
    n = shape[0]
    if labels.shape not in ((n,), (n, 1)):
        raise DataError(
            f"{where}: the labels have shape {tuple(labels.shape)}; expected ({n},), one for each input"
        )
    return labels.reshape(n)


def _show(labels: Tensor) -> str:
    if labels.is_complex():
        return f"of type {labels.dtype}"
    values = torch.unique(labels).tolist()
    return f"{values[:5]}{' and more' if len(values) > 5 else ''}"

"""Products of derivatives, J diag(w) Jᵀ: the covariance of the logits, in a basis where Σ is diagonal."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from bitbayes.model import DenseJacobian, LayerJacobian, MatrixJacobian, from_pairs
from bitbayes.precision import to_float64


def gram(jacobian: LayerJacobian, weights: list[Tensor]) -> Tensor:
    """Return Σ_p J_mp w_p J_m'p for each of the q weights, (q, n, c, c)."""
    if isinstance(jacobian, DenseJacobian):
        flat = torch.stack([weight.flatten() for weight in weights], dim=1)  # (P, q)
        return torch.cat([_weighted(part.derivatives, flat) for part in jacobian.chunks()], dim=1)
    n, groups, c, o, positions = jacobian.gradients.shape
    many = torch.stack([weight.reshape(groups, o, -1) for weight in weights], dim=3)  # (groups, o, i, q)
    if positions == 1:
        return _gram_of_products(jacobian, many)
    if len(weights) == 1 and jacobian.few_positions:
        return torch.cat([_gram_of_pairs(part, many[..., 0]) for part in jacobian.pair_chunks()])[None]
    grams = jacobian.inputs.new_zeros(len(weights), n, c, c)
    for points, outputs in jacobian.chunks():
        dense = jacobian.part(points, outputs).dense()
        grams[:, points] += _weighted(dense, many[:, outputs].flatten(0, 2))
    return grams


def gram_root(matrix: Tensor, lift: float) -> Tensor:
    """Return L with L Lᵀ = matrix (…, c, c), in float64.

    Zero features have zero variance, and rounding can make it negative: then there is no Cholesky factor. So
    the diagonal is raised by `lift` times its mean.

    Where a matrix is not finite, L is NaN, and checks of inputs and features can say why: a factorisation
    would raise before they are read, and for all matrices.
    """
    matrix, eye = to_float64(matrix), torch.eye(matrix.shape[-1])
    mean = matrix.diagonal(dim1=-2, dim2=-1).mean(-1)
    lifts = (mean * lift + torch.finfo(matrix.dtype).tiny)[..., None, None]
    finite = matrix.isfinite().all(-1, keepdim=True).all(-2, keepdim=True)  # (…, 1, 1)
    root: Tensor = torch.linalg.cholesky(torch.where(finite, matrix + lifts * eye.to(matrix), eye.to(matrix)))
    return torch.where(finite, root, torch.nan)


def _gram_of_products(jacobian: MatrixJacobian, weights: Tensor) -> Tensor:
    """Return the gram for one position: J = g aᵀ, so that only Σᵢ aᵢ² w_oi is needed of the inputs."""
    groups, o, _, q = weights.shape
    inputs = jacobian.inputs[..., 0].square().transpose(0, 1)  # (groups, n, i)
    variances = inputs @ weights.transpose(1, 2).flatten(2)  # (groups, n, o·q)
    variances = variances.reshape(groups, -1, o, q).transpose(0, 1).flatten(1, 2)  # (n, groups·o, q)
    return _weighted(jacobian.gradients[..., 0].transpose(1, 2).flatten(2), variances)


def _gram_of_pairs(jacobian: MatrixJacobian, weights: Tensor) -> Tensor:
    """Few positions: Σ over o, t, t' of g_mot K_ott' g_m'ot' with K_ott' = Σᵢ aₜᵢ w_oi aₜ'ᵢ, (n, c, c)."""
    n, groups, _, o, positions = jacobian.gradients.shape
    kernel = (weights @ jacobian.input_pairs().flatten(2)).reshape(groups, o, n, -1)
    gradients = jacobian.gradients.permute(1, 3, 0, 4, 2)  # (groups, o, n, T, c)
    weighted = from_pairs(kernel, positions) @ gradients
    return torch.einsum("gontc,gontd->ncd", gradients, weighted)


def _weighted(roots: Tensor, weights: Tensor) -> Tensor:
    """Return Σ_p r_mp w_pq r_m'p, (q, n, c, c), from r (n, c, p) and w (p, q), or (n, p, q) by point."""
    # Numbers whose squares underflow become 0, because denormal numbers are slow.
    roots = functional.hardshrink(roots, math.sqrt(torch.finfo(roots.dtype).tiny))
    if weights.shape[-1] == 1:
        roots = roots * weights[..., 0].sqrt().reshape(-1, 1, weights.shape[-2])
        return (roots @ roots.mT)[None]
    # Many weights: each product of two derivatives is formed once.
    n, c, _ = roots.shape
    grams = roots.new_empty(weights.shape[-1], n, c, c)
    for m in range(c):
        column = ((roots[:, m:] * roots[:, m : m + 1]) @ weights).permute(2, 0, 1)  # (q, n, c − m)
        grams[:, :, m, m:] = grams[:, :, m:, m] = column
    return grams

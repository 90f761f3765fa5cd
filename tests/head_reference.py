"""The reference for heads of every kind: derivatives of the model's own output in the head's parameters.

They are taken by autograd, class by class and point by point, and nothing is known of features or layouts.
All matrices are dense and in float64.
"""

import torch
from torch.func import functional_call

import reference


def derivatives(model, names, inputs, as_rows):
    """Logits (N, k), and their derivatives in the named parameters, all in one vector, (N, k, P)."""
    args, kwargs = ((), inputs) if isinstance(inputs, dict) else ((inputs,), {})
    parameters = {name: model.get_parameter(name).detach().requires_grad_() for name in names}
    output = functional_call(model, parameters, args, kwargs, tie_weights=False)
    rows = as_rows(getattr(output, "logits", output))

    def gradient(logit):
        found = torch.autograd.grad(logit, list(parameters.values()), retain_graph=True)
        return torch.cat([each.flatten() for each in found])

    return rows.detach(), torch.stack([torch.stack([gradient(f) for f in row]) for row in rows])


def full_covariance(jacobians, logits, prior_variance):
    """(Σₙ JₙᵀΛₙJₙ + I/σ₀²)⁻¹, (P, P)."""
    labels = torch.zeros(len(logits), dtype=torch.long)  # the curvature does not depend on them
    curvatures = reference.logit_hessians(logits, labels)
    hessian = sum(j.T @ c @ j for j, c in zip(jacobians, curvatures, strict=True))
    return torch.linalg.inv(hessian + torch.eye(len(hessian), dtype=hessian.dtype) / prior_variance)


def logit_gaussian(model, names, inputs, as_rows, counts=None, prior_variance=1.0):
    """The mean (N, k) and the covariance (N, k, k) of the logits, fitted to the rows that count."""
    logits, jacobians = derivatives(model, names, inputs, as_rows)
    counts = torch.ones(len(logits), dtype=torch.bool) if counts is None else counts
    sigma = full_covariance(jacobians[counts], logits[counts], prior_variance)
    return logits, torch.stack([j @ sigma @ j.T for j in jacobians])


def probabilities(mean, covariance):
    """Those of the default predictive, (N, k), or (N, 2) for one logit."""
    predict = reference.probit if mean.shape[1] == 1 else reference.pairwise
    return torch.stack([predict(m, c) for m, c in zip(mean, covariance, strict=True)])


def check(bayes, names, inputs, as_rows, counts=None, tolerance=1e-9):
    """Means, covariances and probabilities of a Laplace with the full structure, fitted to these inputs."""
    mean, covariance = logit_gaussian(
        bayes.model.eval(), names, inputs, as_rows, counts, bayes.prior_variance
    )
    gaussian = bayes.logits(inputs)
    torch.testing.assert_close(gaussian.mean, mean, rtol=0, atol=tolerance)
    torch.testing.assert_close(gaussian.covariance, covariance, rtol=0, atol=tolerance)
    probs = bayes.predict_proba(inputs)
    rows = as_rows(probs) if mean.shape[1] > 1 else probs.movedim(bayes.posterior.layout.axis, -1)
    torch.testing.assert_close(
        rows.reshape(len(mean), -1), probabilities(mean, covariance), rtol=0, atol=tolerance
    )

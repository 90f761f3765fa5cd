"""The reference over all layers: `torch.func` Jacobians, dense float64 matrices and loops over points.

Parameters are one vector of P numbers in the order of `named_parameters`, without those that are frozen.
"""

from functools import partial

import torch
from torch import nn
from torch.func import functional_call, jacrev

import bitbayes as bb
import reference
from bitbayes.model import differentiate, find_layers, verify_layers


class Residual(nn.Module):
    """A residual network, x + f(x), with one convolution called twice and a ReLU in place."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 3, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(3)
        self.shared = nn.Conv2d(3, 3, 3, padding="same", groups=3, bias=False)
        self.relu = nn.ReLU(inplace=True)
        self.head = nn.Linear(3, 3)

    def forward(self, x):
        x = self.relu(self.norm(self.stem(x)))
        x = x + self.relu(self.shared(x))
        x = x + self.shared(x)
        return self.head(x.mean((2, 3)))


def mlp(k=3):
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4, bias=False), nn.ReLU(), nn.Linear(4, k))


def convnet(k=3):
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1, bias=False),
        nn.BatchNorm2d(3),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(3, 4, (2, 3), dilation=(2, 1), stride=(1, 2), padding=(1, 0), padding_mode="reflect"),
        nn.GroupNorm(2, 4),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(12, k),
    )


def sequence(k=3):
    """A network of a 1D convolution, a layer norm and a linear layer over tokens."""

    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv1d(2, 4, 3, stride=2, padding=1, padding_mode="circular", groups=2)
            self.norm = nn.LayerNorm(4)
            self.mix = nn.Linear(4, 4)
            self.head = nn.Linear(4, k)

        def forward(self, x):
            x = self.norm(self.conv(x).mT)
            return self.head((x + torch.tanh(self.mix(x))).mean(1))

    return Tokens()


class TextModel(nn.Module):
    """An embedding and a bare parameter, which are neither matrices nor norms."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(10, 4)
        self.scale = nn.Parameter(torch.ones(4))
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head((self.words(x) * self.scale).mean(1).tanh())


NETWORKS = {
    "mlp": (mlp, (4,)),
    "one logit": (lambda: mlp(1), (4,)),
    "convnet": (convnet, (1, 6, 6)),
    "residual": (Residual, (1, 6, 6)),
    "sequence": (sequence, (2, 7)),
}


def case(name, n=12, dtype=torch.float64):
    """A network in eval mode with random running statistics, inputs (n, …) and labels (n,)."""
    make, shape = NETWORKS[name]
    model = make().to(dtype).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
        if isinstance(module, (nn.BatchNorm2d, nn.GroupNorm, nn.LayerNorm)):
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
    x = torch.randn(n, *shape, dtype=dtype)
    classes = max(2, model(x).reshape(n, -1).shape[1])
    return model, x, torch.arange(n) % classes


def found_jacobian(model, layers, inputs):
    """The Jacobian (n, k, P) as the library computes it, in the order of the parameters."""
    _, recorded = differentiate(model, layers, inputs, lambda f: torch.eye(f.shape[1]).expand(len(f), -1, -1))
    parts = {}
    for each in recorded:
        j = each.jacobian().dense()
        split = each.layer.split(j.flatten(0, 1))
        parts.update({name: part.unflatten(0, j.shape[:2]).flatten(2) for name, part in split.items()})
    return torch.cat([parts[name] for name in parameters(model)], dim=2)


def library_jacobian(model, inputs):
    """The Jacobian (n, k, P) as the library computes it, in the order of the parameters."""
    _, layers = verify_layers(model, find_layers(model), inputs)
    return found_jacobian(model, layers, inputs)


def autograd_jacobian(model, points):
    """The Jacobian (n, k, P) by autograd, one point and one logit at a time."""
    own = list(model.parameters())
    rows = []
    for point in points:
        logits = (model(**point) if isinstance(point, dict) else model(point)).reshape(-1)
        each = [torch.autograd.grad(f, own, retain_graph=True, materialize_grads=True) for f in logits]
        rows.append(torch.stack([torch.cat([g.flatten() for g in gradients]) for gradients in each]))
    return torch.stack(rows)


def parameters(model):
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


def jacobians(model, x):
    """(n, k, P), one point at a time."""
    own = parameters(model)
    rows = []
    for point in x:
        parts = jacrev(lambda p, point=point: functional_call(model, p, (point[None],))[0])(own)
        rows.append(torch.cat([parts[name].reshape(len(parts[name]), -1) for name in own], dim=1))
    return torch.stack(rows)


def ggn(model, x, labels):
    """Σₙ Jₙᵀ Λₙ Jₙ, (P, P)."""
    j = jacobians(model, x)
    with torch.no_grad():
        hessians = reference.logit_hessians(model(x), labels)
    return sum(each.T @ middle @ each for each, middle in zip(j, hessians, strict=True))


def covariance(structure, model, x, labels, prior_variance):
    """(H + I/σ₀²)⁻¹, (P, P)."""
    h = ggn(model, x, labels)
    if structure == "diag":
        h = torch.diag(torch.diag(h))
    return torch.linalg.inv(h + torch.eye(len(h), dtype=h.dtype) / prior_variance)


def logits_covariance(model, sigma, x):
    """J Σ Jᵀ, (n, k, k)."""
    return torch.stack([j @ sigma @ j.T for j in jacobians(model, x)])


# ---- the library's

loader = partial(reference.loader, batch=5)


def fitted(name, structure, n=12, **options):
    model, x, y = case(name, n)
    bayes = bb.Laplace(model, layers="all", structure=structure, **options).fit(loader(x, y))
    return bayes, model, x, y


def close(ours, theirs, tolerance=1e-7):
    """Assert equality to `tolerance` of the largest entry."""
    assert ours.shape == theirs.shape
    ours, theirs = ours.detach(), theirs.detach()
    assert float((ours - theirs).abs().max()) <= tolerance * float(theirs.abs().max())


def plain_jacobian(jacobian):
    """The Jacobian (n, c, groups, o, i) by one einsum."""
    return torch.einsum("ngit,ngcot->ncgoi", jacobian.inputs, jacobian.gradients)

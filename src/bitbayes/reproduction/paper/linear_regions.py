"""Figure 2: a ray from the origin leaves all linear regions but one, from δ = α on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

import bitbayes as bb
from bitbayes.reproduction.paper.pictures import panels, styled
from bitbayes.reproduction.paper.report import Report
from bitbayes.reproduction.paper.session import Session
from bitbayes.reproduction.paper.toys import moons, train_toy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GRID, RAYS = 201, 5


def measure(session: Session) -> dict[str, Any]:
    toy = moons()
    network = train_toy(toy, session.options).double()
    angles = torch.arange(RAYS, dtype=torch.float64) * 2 * torch.pi / RAYS + 0.4
    directions = torch.stack([angles.cos(), angles.sin()], dim=1)  # (r, 2)
    walked = [walk(network, direction) for direction in directions]
    certified = certificates(network, toy.x.double(), toy.y, directions)
    half = 1.3 * max(max(crossings, default=1.0) for crossings in walked)
    line = torch.linspace(-half, half, GRID, dtype=torch.float64)
    patterns = torch.cartesian_prod(line, line).flip(1)
    _, region = torch.unique(signs(network, patterns), dim=0, return_inverse=True)
    return {
        "directions": directions.tolist(),
        "crossings": walked,
        "alpha": [max(crossings, default=0.0) for crossings in walked],
        "certified_alpha": certified,
        "half_width": half,
        "regions": int(region.max()) + 1,
        "region": region.tolist(),
    }


@torch.no_grad()
def signs(network: nn.Module, x: Tensor) -> Tensor:
    """Which hidden units are active at each point, (n, units)."""
    found = []
    for layer in network.children():
        if isinstance(layer, nn.ReLU):
            found.append(x > 0)
        x = layer(x)
    return torch.cat(found, dim=1)


@torch.no_grad()
def walk(network: nn.Module, direction: Tensor, limit: int = 1000) -> list[float]:
    """Every δ > 0 at which a hidden unit of a network of linear layers and ReLUs changes its mind along δ·x.

    From region to region: within one, each unit's input is a·δ + b, so the next crossing is known exactly.
    """
    crossings: list[float] = []
    delta = 0.0
    for _ in range(limit):
        # Just beyond the last crossing: the pattern of the region the ray is in now.
        step = max(delta * 1e-9, 1e-12)
        nearest = torch.inf
        slope, intercept = direction, torch.zeros_like(direction)  # the layer's input is slope·δ + intercept
        for layer in network.children():
            if isinstance(layer, nn.Linear):
                bias = torch.zeros(layer.out_features).to(slope) if layer.bias is None else layer.bias
                slope, intercept = layer.weight @ slope, layer.weight @ intercept + bias
            elif isinstance(layer, nn.ReLU):
                zeros = -intercept / slope
                ahead = zeros[(zeros > delta + step) & zeros.isfinite()]
                nearest = min(nearest, float(ahead.min()) if len(ahead) else torch.inf)
                active = slope * (delta + step) + intercept > 0
                slope, intercept = slope * active, intercept * active
        if nearest == torch.inf:
            break
        delta = nearest
        crossings.append(delta)
    return crossings


def certificates(network: nn.Module, x: Tensor, y: Tensor, directions: Tensor) -> list[float] | None:
    """α as `Laplace.certify` gives it; None in a version that cannot."""
    bayes = bb.Laplace(network).fit([(x, y)], progress=False)
    certify = getattr(bayes, "certify", None)
    return None if certify is None else certify(directions).alpha.tolist()


def show(values: dict[str, Any], report: Report) -> None:
    certified = values["certified_alpha"] or [None] * len(values["alpha"])
    rows = [
        (
            f"({x:.3f}, {y:.3f})",
            str(len(crossings)),
            f"{alpha:.6g}",
            "not run" if by_certificate is None else f"{by_certificate:.6g}",
        )
        for (x, y), crossings, alpha, by_certificate in zip(
            values["directions"], values["crossings"], values["alpha"], certified, strict=True
        )
    ]
    header = ("Direction x", "Crossings", "α, walking from region to region", "α by `certify`")
    note = (
        "α: from this δ on no unit of the network changes its mind along δ·x any more. "
        f"The pictured square shows {values['regions']} linear regions."
    )
    report.table("The ray that leaves the linear regions", header, rows, note)
    report.picture(lambda: picture(values))


@styled
def picture(values: dict[str, Any]) -> Figure:
    """Linear regions in shades of grey; rays with a dot at each crossing and a star at α."""
    figure, ((axes,),) = panels(1, 1, 4.6, 4.4)
    half = values["half_width"]
    region = torch.tensor(values["region"]).reshape(GRID, GRID)
    # Neighbouring regions get unlike shades, the same in every run.
    shade = torch.rand(values["regions"], generator=torch.Generator().manual_seed(3))[region]
    axes.imshow(
        shade.numpy(),
        extent=(-half, half, -half, half),
        origin="lower",
        cmap="Greys",
        vmin=-0.3,
        vmax=3.5,
        interpolation="nearest",
    )
    for (x, y), crossings in zip(values["directions"], values["crossings"], strict=True):
        end = 1.3 * half
        axes.plot([0, end * x], [0, end * y], color="#0072B2", linewidth=1.2)
        axes.plot([d * x for d in crossings], [d * y for d in crossings], ".", color="#0072B2", markersize=4)
        if crossings:
            alpha = max(crossings)
            axes.plot([alpha * x], [alpha * y], "*", color="#D55E00", markersize=11)
    axes.plot([], [], ".", color="#0072B2", label="a unit changes its mind")
    axes.plot([], [], "*", color="#D55E00", label="α: the last time")
    axes.set(xlim=(-half, half), ylim=(-half, half), xlabel="x₁", ylabel="x₂")
    figure.legend(loc="outside lower center", ncols=2)
    return figure

"""Figure 2: from δ = α on, a ray δ·x stays in one linear region of the network."""

from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import bitbayes as bb
from bitbayes.reproduction.paper.pictures import make_panels, styled
from bitbayes.reproduction.paper.report import Report
from bitbayes.reproduction.paper.session import Session
from bitbayes.reproduction.paper.toys import make_moons, train_toy

GRID_POINTS_PER_SIDE = 201
NUMBER_OF_RAYS = 5
MOST_CROSSINGS = 1000


def measure(session: Session) -> dict[str, Any]:
    toy = make_moons()
    network = train_toy(toy, session.options).double()
    angles = torch.arange(NUMBER_OF_RAYS, dtype=torch.float64) * 2 * torch.pi / NUMBER_OF_RAYS + 0.4
    directions = torch.stack([angles.cos(), angles.sin()], dim=1)  # (r, 2)
    crossings = [find_crossings(network, direction) for direction in directions]
    bayes = bb.Laplace(network).fit([(toy.x.double(), toy.y)], progress=False)
    half = 1.3 * max(max(each, default=1.0) for each in crossings)
    side = torch.linspace(-half, half, GRID_POINTS_PER_SIDE, dtype=torch.float64)
    grid = torch.cartesian_prod(side, side).flip(1)
    _, region = torch.unique(activation_pattern(network, grid), dim=0, return_inverse=True)
    return {
        "directions": directions.tolist(),
        "crossings": crossings,
        "alpha": [max(each, default=0.0) for each in crossings],
        "certified_alpha": bayes.certify(directions).alpha.tolist(),
        "half_width": half,
        "regions": int(region.max()) + 1,
        "region": region.tolist(),
    }


@torch.no_grad()
def activation_pattern(network: nn.Module, x: Tensor) -> Tensor:
    """Return which hidden units are active at each point, (n, units)."""
    active = []
    for layer in network.children():
        if isinstance(layer, nn.ReLU):
            active.append(x > 0)
        x = layer(x)
    return torch.cat(active, dim=1)


@torch.no_grad()
def find_crossings(network: nn.Module, direction: Tensor) -> list[float]:
    """Return every δ > 0 at which the ray δ·x crosses from one linear region to the next.

    The network consists of linear layers and ReLUs. Within a region each unit's input is a·δ + b, so the next
    crossing is known exactly.
    """
    crossings: list[float] = []
    delta = 0.0
    for _ in range(MOST_CROSSINGS):
        # Just beyond the last crossing the ray is inside the next region.
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


def show(values: dict[str, Any], report: Report) -> None:
    columns = (values[key] for key in ("directions", "crossings", "alpha", "certified_alpha"))
    rows = [
        (f"({x:.3f}, {y:.3f})", str(len(crossings)), f"{alpha:.6g}", f"{certified:.6g}")
        for (x, y), crossings, alpha, certified in zip(*columns, strict=True)
    ]
    header = ("Direction x", "Crossings", "α, walking from region to region", "α by `certify`")
    note = (
        "α: from this δ on no unit of the network changes its mind along δ·x any more. "
        f"The pictured square shows {values['regions']} linear regions."
    )
    report.write_table("The ray that leaves the linear regions", header, rows, note)
    report.write_picture(lambda: draw(values))


@styled
def draw(values: dict[str, Any]) -> Figure:
    """Draw the linear regions in shades of grey, and rays with a dot at each crossing and a star at α."""
    figure, ((axes,),) = make_panels(1, 1, 4.6, 4.4)
    half = values["half_width"]
    region = torch.tensor(values["region"]).reshape(GRID_POINTS_PER_SIDE, GRID_POINTS_PER_SIDE)
    # Random shades, which are the same in every run, set neighbouring regions apart.
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

"""Figure 2: from δ = α on, a ray δ·x stays in one linear region of the network."""

from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import bitbayes as bb
from bitbayes.toys import make_moons, train_toy
from paper.drawing.pictures import COLOURS, TEXT_COLOUR, make_panels, styled
from paper.report import Report
from paper.session import Session

GRID_POINTS_PER_SIDE = 201
NUMBER_OF_RAYS = 5
MOST_CROSSINGS = 1000
CROSSING: dict[str, Any] = {"color": TEXT_COLOUR, "marker": ".", "linestyle": "none", "markersize": 7}
LAST_CROSSING: dict[str, Any] = CROSSING | {"marker": "*", "markersize": 12}
CERTIFIED: dict[str, Any] = {
    "color": COLOURS["default"],
    "marker": "o",
    "linestyle": "none",
    "markersize": 15,
    "markerfacecolor": "none",
    "markeredgewidth": 1.8,
}
NUMBER_BOX: dict[str, Any] = {"boxstyle": "circle", "facecolor": "white", "edgecolor": TEXT_COLOUR}


def measure(session: Session) -> dict[str, Any]:
    toy = make_moons()
    network = train_toy(toy, seed=session.options.seed, quick=session.options.quick).double()
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
    """Draw the linear regions in shades of grey with the rays, and beside them the crossings of each ray."""
    figure, ((plane, along),) = make_panels(1, 2, 4.6, width_ratios=(1, 1.1))
    half = values["half_width"]
    region = torch.tensor(values["region"]).reshape(GRID_POINTS_PER_SIDE, GRID_POINTS_PER_SIDE)
    # Random shades, which are the same in every run, set neighbouring regions apart.
    shade = torch.rand(values["regions"], generator=torch.Generator().manual_seed(3))[region]
    plane.imshow(
        shade.numpy(),
        extent=(-half, half, -half, half),
        origin="lower",
        cmap="Greys",
        vmin=-0.3,
        vmax=3.5,
        interpolation="nearest",
    )
    columns = (values[key] for key in ("directions", "crossings", "alpha", "certified_alpha"))
    for number, ((x, y), crossings, alpha, certified) in enumerate(zip(*columns, strict=True), start=1):
        end, at = 2 * half, 0.9 * half / max(abs(x), abs(y))
        plane.plot([0, end * x], [0, end * y], color=TEXT_COLOUR, linewidth=1.2)
        plane.plot([alpha * x], [alpha * y], **LAST_CROSSING)
        plane.text(at * x, at * y, f"{number}", ha="center", va="center", bbox=NUMBER_BOX)
        start = crossings[0] / 2 if crossings else 1.0
        along.plot([start, end], [number] * 2, color=TEXT_COLOUR, linewidth=1)
        along.plot(crossings, [number] * len(crossings), **CROSSING)
        along.plot([alpha], [number], **LAST_CROSSING)
        along.plot([certified], [number], **CERTIFIED)
    for style, text in (
        (CROSSING, "a unit changes its mind"),
        (LAST_CROSSING, "α: the last time"),
        (CERTIFIED, "α by certify"),
    ):
        along.plot([], [], **style, label=text)
    plane.set(xlim=(-half, half), ylim=(-half, half), xlabel="x₁", ylabel="x₂", title="The plane")
    along.set(xscale="log", xlabel="δ", ylabel="Ray", title="Along each ray δ·x")
    along.set(yticks=range(1, len(values["directions"]) + 1), ylim=(len(values["directions"]) + 0.5, 0.5))
    figure.legend(loc="outside lower center", ncols=3)
    return figure

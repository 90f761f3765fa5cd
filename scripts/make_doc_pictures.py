"""Make the pictures of docs/understand.md, docs/index.md and docs/style.md, in docs/pictures/.

    python scripts/make_doc_pictures.py [--output FOLDER] [--quick]

All but style.svg show one network: the one that the first code block of docs/understand.md trains. `--quick`
draws coarse maps, to see that everything works. It takes ten seconds, and `--quick` three.
"""

import argparse
import io
from collections.abc import Callable
from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor, nn

import bitbayes as bb
from bitbayes.palette import CLASS_MARKERS, CLASSES, METHODS, OTHERS, map_colour
from bitbayes.plots.toy_map import draw_confidence, draw_key, draw_points, grid_points

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "pictures"
# In inches, of which 96 px are one. A phone shows a picture 360 px wide: 11 points are 9 px there.
WIDTH = 560 / 96
BLUE = METHODS["bitbayes"].light
COLOURS = {name: METHODS[name].light for name in ("plain", "temperature", "paper")}
CENTRE = (0.5, 0.25)  # of the two moons
NEAR, FAR = 2.2, 40.0  # half the width of a map
# Of the animation: its frames, how long one is shown, and the first and the last, in milliseconds.
FRAMES, SHOWN, HELD = 24, 100, 1500
BOX = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "boxstyle": "round,pad=0.25"}
DIRECTION = (-0.8, 0.6)  # of the ray in all pictures that have one
STYLE = {
    "font.size": 11,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#8a8a8a",
    "legend.frameon": False,
    "legend.fontsize": 10,
    "text.color": "#333333",
    "axes.labelcolor": "#333333",
    "svg.hashsalt": "bitbayes",  # the same file from the same numbers
}
points_per_side = 241


# ---- the network, and what it is made into


@cache
def trained() -> tuple[nn.Module, Tensor, Tensor]:
    """The network of docs/understand.md, and its training points."""
    torch.manual_seed(0)
    x, y = bb.toys.two_moons(200, noise=0.15, seed=1)
    model = bb.toys.MLP((2, 20, 20, 1))
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(200):
        optimiser.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y.float()).backward()
        optimiser.step()
    return model, x, y


def validation() -> list[tuple[Tensor, Tensor]]:
    return [bb.toys.two_moons(100, noise=0.15, seed=2)]


def plain(x: Tensor, temperature: float = 1.0) -> Tensor:
    """The network's own confidence."""
    with torch.no_grad():
        return (trained()[0](x)[:, 0] / temperature).abs().sigmoid()


def features_of(x: Tensor) -> Tensor:
    """What goes into the last layer."""
    return nn.Sequential(*list(trained()[0])[:-1])(x)


@cache
def fitted(prior_variance: float) -> bb.Laplace:
    model, x, y = trained()
    return bb.Laplace(model, prior_variance=prior_variance, residual=False).fit([(x, y)])


@cache
def default() -> bb.Laplace:
    model, x, y = trained()
    return bb.Laplace(model).fit([(x, y)]).tune(validation())


def plain_probabilities(x: Tensor) -> Tensor:
    with torch.no_grad():
        p = trained()[0](x).sigmoid()
    return torch.cat([1 - p, p], 1)


def confidence(bayes: bb.Laplace) -> Callable[[Tensor], Tensor]:
    return lambda x: bayes.predict_proba(x).amax(1)


# ---- parts of pictures


def show_map(axes: Axes, predict: Callable[[Tensor], Tensor], half: float, title: str) -> None:
    """The probabilities (n, 2) of a predictor as colours, the boundary as a line, and the data as points."""
    (x, y), (centre, middle) = trained()[1:], CENTRE
    extent = (centre - half, centre + half, middle - half, middle + half)
    confidence, label = predict(grid_points(extent, points_per_side)).max(1)
    shape = (points_per_side, points_per_side)
    draw_confidence(axes, confidence.reshape(shape).numpy(), label.reshape(shape).numpy(), extent, 2)
    # Points shrink as the view grows, and never to less than a dot.
    size = max(9 * (NEAR / half) ** 1.5, 1.5)
    draw_points(axes, x, y, 2, size, 0.4 * min(1.0, size / 9))
    axes.set(xticks=[], yticks=[], xlim=extent[:2], ylim=extent[2:], title=title)


def show_points(axes: Axes, size: float) -> None:
    _, x, y = trained()
    draw_points(axes, x, y, 2, size, 0.0)


def maps(columns: list[tuple[str, Callable[[Tensor], Tensor]]], halves: tuple[float, ...]) -> Figure:
    """A column for each predictor, a row for each view."""
    side = (WIDTH - 1.05) / len(columns)
    height = len(halves) * side + 0.35
    figure = Figure(figsize=(WIDTH, height))
    figure.set_layout_engine("constrained", rect=(0, 0, 0.845, 1))
    grid = figure.subplots(len(halves), len(columns), squeeze=False)
    for row, half in zip(grid, halves, strict=True):
        for axes, (title, predict) in zip(row, columns, strict=True):
            show_map(axes, predict, half, title if half == halves[0] else "")
        if len(halves) > 1:
            name = "near the data" if half == NEAR else f"zoomed out ×{half / NEAR:.0f}"
            row[0].set_ylabel(name)
    draw_key(figure.add_axes((0.885, 0.25, 0.03, 0.5)), 2)
    return figure


def lines(columns: int = 1, height: float = 3.2) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, list(figure.subplots(1, columns, squeeze=False)[0])


def border(half: float) -> Tensor:
    """200 points on the border of a view."""
    side = torch.linspace(-half, half, 50)
    ends = torch.full_like(side, half)
    parts = [(side, ends), (side, -ends), (ends, side), (-ends, side)]
    return torch.cat([torch.stack(part, 1) for part in parts]) + torch.tensor([CENTRE])


def ray(deltas: Tensor) -> Tensor:
    return deltas[:, None] * torch.tensor([DIRECTION])


def percent(axes: Axes, low: float = 0.48) -> None:
    axes.set(ylim=(low, 1.02), ylabel="confidence")
    axes.set_yticks([0.5, 0.6, 0.7, 0.8, 0.9, 1.0], labels=[f"{v}%" for v in range(50, 101, 10)])
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)


# ---- the pictures


def home() -> Figure:
    scaled = bb.TemperatureScaling(trained()[0]).fit(validation())
    columns = [
        ("plain network", plain_probabilities),
        ("temperature scaling", scaled.predict_proba),
        ("bitbayes", default().predict_proba),
    ]
    return maps(columns, (NEAR, FAR))


def why_sure() -> Figure:
    """The pieces on which the network is linear, with a ray, and logit and confidence along the ray."""
    figure = Figure(figsize=(WIDTH, 3.4), layout="constrained")
    spaces = figure.add_gridspec(2, 2)
    plane, above, below = (figure.add_subplot(each) for each in (spaces[:, 0], spaces[0, 1], spaces[1, 1]))
    model, half = trained()[0], 8.0
    side = torch.linspace(-half, half, 3 * points_per_side)
    grid = torch.cartesian_prod(side, side).flip(1)
    with torch.no_grad():
        first = model[0](grid)
        on = torch.cat([first, model[2](first.relu())], 1).reshape(len(side), len(side), -1) > 0
    # Two neighbours lie in one piece if the same units are on.
    edge = (on[1:, :-1] != on[:-1, :-1]).any(2) | (on[:-1, 1:] != on[:-1, :-1]).any(2)
    extent = (-half, half, -half, half)
    plane.imshow(1 - 0.45 * edge.float().numpy(), extent=extent, origin="lower", cmap="gray", vmin=0)
    show_points(plane, 3)
    end = half * np.array(DIRECTION) * 1.1
    plane.annotate("", end, (0, 0), arrowprops={"arrowstyle": "->", "color": BLUE, "linewidth": 2})
    plane.set(xticks=[], yticks=[], xlim=(-half, half), ylim=(-half, half), title="pieces of the network")
    deltas = torch.linspace(0, 12, 400)
    with torch.no_grad():
        above.plot(deltas, model(ray(deltas))[:, 0].abs(), color=BLUE)
    above.set(title="along the arrow", ylabel="|logit|", xlim=(0, 12), ylim=(0, None), xticks=[])
    below.plot(deltas, plain(ray(deltas)), color=COLOURS["plain"])
    below.set(xlabel="distance δ", xlim=(0, 12))
    percent(below)
    below.set_yticks([0.5, 0.75, 1.0], labels=["50%", "75%", "100%"])
    return figure


def laplace() -> Figure:
    """The loss along one direction of the last layer's weights, and boundaries of drawn networks."""
    figure, (loss, draws) = lines(2, 3.2)
    bayes = fitted(100.0)
    model, x, y = trained()
    with torch.no_grad():
        features = torch.cat([features_of(x), torch.ones(len(x), 1)], 1).double()
        head = torch.cat([model[-1].weight[0], model[-1].bias]).double()
    p = (features @ head).sigmoid()
    hessian = features.T @ (features * (p * (1 - p))[:, None]) + torch.eye(21) / bayes.prior_variance
    # The direction in which the weights are the least certain that still is one of the data's.
    values, vectors = torch.linalg.eigh(hessian)
    direction, curvature = vectors[:, -1], values[-1]
    deviation = curvature**-0.5
    steps = torch.linspace(-3.5, 3.5, 201).double() * deviation

    def cost(weights: Tensor) -> Tensor:
        logits = features @ weights
        data = nn.functional.binary_cross_entropy_with_logits(logits, y.double(), reduction="sum")
        return data + weights.square().sum() / (2 * bayes.prior_variance)

    costs = torch.stack([cost(head + step * direction) for step in steps])
    slope = (cost(head + 1e-4 * direction) - cost(head - 1e-4 * direction)) / 2e-4
    parabola = cost(head) + slope * steps + curvature * steps.square() / 2
    loss.plot(steps, costs, color="#333333", label="loss")
    loss.plot(steps, parabola, color=BLUE, linestyle="--", label="its parabola")
    loss.fill_between(
        steps,
        costs.min() - 2.0,
        costs.min() - 2.0 + 3.0 * torch.exp(-(steps**2) / (2 * deviation**2)),
        color=BLUE,
        alpha=0.25,
        label="the Gaussian",
        linewidth=0,
    )
    loss.set(title="one direction of the weights", xlabel="change of the weights", yticks=[], xticks=[0])
    loss.set_xticklabels(["trained"])
    loss.legend(loc="upper center", ncols=1)
    loss.set_ylim(float(costs.min()) - 2.0, None)

    half = 6.0
    side = torch.linspace(-half, half, points_per_side)
    grid = torch.cartesian_prod(side, side).flip(1) + torch.tensor([CENTRE])
    with torch.no_grad():
        hidden = features_of(grid)
        centre = model(grid)
    weights = bayes.sample(30, generator=torch.Generator().manual_seed(0))
    weight, bias = (weights[f"4.{name}"] for name in ("weight", "bias"))
    across, up = side + CENTRE[0], side + CENTRE[1]
    for each in range(30):
        logits = (hidden @ weight[each].T + bias[each]).reshape(len(side), -1).detach().numpy()
        draws.contour(across, up, logits, levels=[0.0], colors=BLUE, linewidths=0.6, alpha=0.5)
    draws.contour(
        across, up, centre.reshape(len(side), -1).numpy(), levels=[0.0], colors="black", linewidths=1.8
    )
    show_points(draws, 4)
    draws.set(xticks=[], yticks=[], aspect="equal", title="boundaries of 30 drawn networks")
    return figure


def prior() -> Figure:
    columns = [(f"σ₀² = {value:g}", fitted(value).predict_proba) for value in (0.01, 1.0, 100.0, 10000.0)]
    return maps(columns, (NEAR, FAR))


def temperature() -> Figure:
    figure, (axes,) = lines()
    deltas = torch.logspace(-1, 3, 400)
    for value, shade in ((1.0, 1.0), (10.0, 0.8), (100.0, 0.6), (1000.0, 0.45)):
        found = plain(ray(deltas), value)
        axes.plot(deltas, found, color=COLOURS["temperature"], alpha=shade)
        at = float(deltas[(found > 0.7).float().argmax()]) * 1.15
        place = {1.0: (0.11, 1.012), 10.0: (0.11, 0.755)}.get(value, (at, 0.68))
        axes.text(*place, f"T = {value:g}", color=COLOURS["temperature"], fontsize=10)
    bayes = fitted(100.0)
    axes.plot(deltas, confidence(bayes)(ray(deltas)), color=BLUE)
    last = float(confidence(bayes)(ray(deltas[-1:])))
    axes.text(900, last - 0.05, "last layer, σ₀² = 100", color=BLUE, ha="right", fontsize=10)
    axes.set(xscale="log", xlabel="distance δ along the ray", xlim=(0.1, 1000))
    percent(axes)
    axes.set_ylim(0.48, 1.06)
    return figure


def residual() -> Figure:
    figure, (axes,) = lines()
    deltas = torch.logspace(-1, 5, 500)
    without = default_without_residual()
    for name, colour, predict in (
        ("plain network", COLOURS["plain"], plain),
        ("without the residual", COLOURS["paper"], confidence(without)),
        ("with the residual", BLUE, confidence(default())),
    ):
        style = "--" if name.startswith("without") else "-"  # it lies on top of the plain network's
        axes.plot(deltas, predict(ray(deltas)), style, color=colour, label=name)
    axes.set(xscale="log", xlabel="distance δ along the ray", xlim=(0.1, 1e5))
    percent(axes)
    axes.legend(loc="center right", bbox_to_anchor=(1.0, 0.6))
    return figure


@cache
def default_without_residual() -> bb.Laplace:
    model, x, y = trained()
    return bb.Laplace(model, residual=False).fit([(x, y)]).tune(validation())


def certificate() -> Figure:
    figure, (axes,) = lines()
    bayes = fitted(100.0)
    found = bayes.certify(torch.tensor([DIRECTION]))
    alpha, limit, bound = (float(each) for each in found[:3])
    deltas = torch.linspace(0, 2.5 * alpha, 800)
    axes.axvspan(alpha, float(deltas[-1]), color=BLUE, alpha=0.08, linewidth=0)
    axes.plot(deltas, plain(ray(deltas)), color=COLOURS["plain"], label="plain")
    axes.plot(deltas, confidence(bayes)(ray(deltas)), color=BLUE, label="last layer, σ₀² = 100")
    axes.hlines(bound, alpha, float(deltas[-1]), color="#333333", linestyle="-", linewidth=1.2)
    axes.hlines(limit, 0, float(deltas[-1]), color="#333333", linestyle=":", linewidth=1.2)
    right = float(deltas[-1])
    axes.text(right, bound + 0.012, "certificate: never above this", ha="right", fontsize=10)
    axes.text(right, limit - 0.045, "limit", ha="right", fontsize=10)
    axes.axvline(alpha, color="#333333", linewidth=0.8)
    axes.text(alpha * 1.02, 0.5, f"α = {alpha:.1f}: no unit switches from here on", fontsize=10)
    axes.set(xlabel="distance δ along the ray", xlim=(0, right))
    percent(axes)
    axes.legend(loc="center left", bbox_to_anchor=(0.03, 0.4), handlelength=1)
    return figure


def zoom() -> list[Figure]:
    """The frames of the animation on the first page: plain and bitbayes, from near the data to far away."""
    columns = {"plain network": plain_probabilities, "bitbayes": default().predict_proba}
    frames = []
    for half in np.geomspace(NEAR, FAR, FRAMES):
        figure = Figure(figsize=(WIDTH, 3.1))
        for place, (title, predict) in enumerate(columns.items()):
            axes = figure.add_axes((0.01 + 0.5 * place, 0.02, 0.48, 0.88))
            show_map(axes, predict, float(half), title)
            mean = float(predict(border(float(half))).amax(1).mean())
            text = f"confidence at the border: {100 * mean:.0f}%"
            axes.text(0.03, 0.04, text, transform=axes.transAxes, bbox=BOX, fontsize=10)
        frames.append(figure)
    return frames


def style() -> Figure:
    """The styles of the methods on light and on dark, and the maps of four classes."""
    figure = Figure(figsize=(WIDTH, 4.8), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(2.2, 1))
    styles = METHODS | {f"another {i}": each for i, each in enumerate(OTHERS, 1)}
    for axes, mode, ground in zip(top.subplots(1, 2), ("light", "dark"), ("#ffffff", "#1e2129"), strict=True):
        axes.set(xlim=(-0.1, 3), ylim=(-0.7, len(styles) - 0.3), xticks=[], yticks=[], facecolor=ground)
        for place, (name, each) in enumerate(reversed(styles.items())):
            colour = getattr(each, mode)
            axes.plot([0.1, 0.5, 0.9], [place] * 3, color=colour, marker=each.marker, markersize=7)
            axes.text(1.1, place, f"{name}  {colour}", color=colour, va="center", fontsize=10)
    shares = np.linspace(0.25, 1, 64)
    for label, axes in enumerate(bottom.subplots(1, len(CLASSES))):
        colours = [[map_colour(label, value, len(CLASSES)) for value in shares]]
        axes.imshow(colours, extent=(25, 100, 0, 1), aspect="auto")
        axes.plot(40, 0.5, CLASS_MARKERS[label], color=CLASSES[label], markersize=8, markeredgecolor="white")
        axes.set(title=f"class {label}", yticks=[], xticks=[25, 100], xticklabels=["25%", "100%"])
    bottom.supxlabel("confidence of four classes: white is a blind guess", fontsize=10)
    return figure


PICTURES: dict[str, Callable[[], Figure]] = {
    "home.png": home,
    "why_sure.png": why_sure,
    "laplace.svg": laplace,
    "prior.png": prior,
    "temperature.svg": temperature,
    "residual.svg": residual,
    "certificate.svg": certificate,
    "style.svg": style,
}


def save_animation(figures: list[Figure], path: Path) -> None:
    """There and back again, without end."""
    frames = []
    for figure in figures:
        buffer = io.BytesIO()
        figure.savefig(buffer, dpi=120, format="png")
        frames.append(Image.open(buffer).convert("RGB"))
    times = [HELD, *[SHOWN] * (len(frames) - 2), HELD]
    frames += frames[-2:0:-1]
    times += times[-2:0:-1]
    frames[0].save(
        path, save_all=True, append_images=frames[1:], duration=times, loop=0, quality=70, method=6
    )


def main(arguments: list[str] | None = None) -> None:
    global points_per_side
    parser = argparse.ArgumentParser(description="Make the pictures of the documentation.")
    parser.add_argument("--output", type=Path, default=FOLDER)
    parser.add_argument("--quick", action="store_true", help="draw coarse maps")
    options = parser.parse_args(arguments)
    if options.quick:
        points_per_side = 21
    options.output.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(STYLE):
        for name, draw in PICTURES.items():
            path = options.output / name
            metadata = {"Date": None} if path.suffix == ".svg" else None
            draw().savefig(path, dpi=192, metadata=metadata)
            print(f"{path}: {path.stat().st_size / 1000:.0f} kB")
        path = options.output / "zoom.webp"
        save_animation(zoom(), path)
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()

"""The pictures of tables and figures can be read, show all dots, and have one colour for each method."""

import io
import itertools
import random

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from paper.drawing.curves import plot_band
from paper.drawing.dots import Block, Cell, Panel, draw_blocks
from paper.drawing.pictures import COLOURS, MARKERS, WITHDRAWN
from paper.experiments import (
    confidence_vs_scale,
    default,
    ece,
    histograms,
    ood,
    rotated_mnist,
    table3,
)
from paper.methods import BINARY, MULTICLASS

METHODS = {
    "plain": ("Plain network", "MAP"),
    "temperature": ("Temperature scaling", "Temp"),
    "llla": ("LLLA (paper's)", "LLLA"),
    "dla": ("DLA (paper's)", "DLA"),
    "dla-linear": ("DLA, linearised", None),
    "kfla": ("KFLA (paper's)", "KFLA"),
    "kfla-linear": ("KFLA, linearised", None),
    "ours": ("Last layer, paper's objective", None),
    "default": ("bitbayes (default)", None),
    "default-all": ("bitbayes, all layers", None),
}
DETECTORS = {
    "energy": ("Energy", None),
    "max-logit": ("Maximum logit", None),
    "gen": ("GEN", None),
    "mahalanobis": ("Mahalanobis", None),
    "knn": ("Nearest neighbours", None),
    "vim": ("ViM", None),
}


def described(methods):
    return {key: {"title": title, "paper": paper} for key, (title, paper) in methods.items()}


# ---- colours


def test_every_method_has_a_colour_and_a_marker_of_its_own():
    assert set(COLOURS) == set(MARKERS) >= {*MULTICLASS, *BINARY, *METHODS, *DETECTORS, "dkl", "dkl-batch"}
    styles = [(COLOURS[key], MARKERS[key]) for key in COLOURS if COLOURS[key] != WITHDRAWN]
    assert len(set(styles)) == len(styles)


# How colours look without red or green cones, by Machado, Oliveira and Fernandes (2009), on linear RGB.
SIGHTS = {
    "all": np.eye(3),
    "no red": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "no green": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}
RGB_TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def cielab(colour, sight):
    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    x, y, z = RGB_TO_XYZ @ np.clip(sight @ linear, 0, 1) / RGB_TO_XYZ.sum(1)
    x, y, z = (t ** (1 / 3) if t > 216 / 24389 else (24389 / 27 * t + 16) / 116 for t in (x, y, z))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("sight", SIGHTS)
def test_colour_blind_people_can_tell_the_colours_apart(sight):
    seen = {colour: cielab(colour, SIGHTS[sight]) for colour in set(COLOURS.values()) - {WITHDRAWN}}
    for one, other in itertools.combinations(seen, 2):
        assert np.linalg.norm(seen[one] - seen[other]) >= 10, (one, other)


# ---- bands


def test_bands_end_at_the_limits():
    axes = Figure().subplots()
    plot_band(axes, "default", [0, 1, 2], [0.5, 0.9, 0.7], [0.2, 0.3, 0.1], (0.5, 1.0))
    (band,) = (each for each in axes.collections if isinstance(each, PolyCollection))
    # Without limits they would be 0.3 and 0.7, 0.6 and 1.2, 0.6 and 0.8.
    heights = {round(float(y), 9) for _, y in band.get_paths()[0].vertices}
    assert heights == {0.5, 0.6, 0.7, 0.8, 1.0}


# ---- dots


def panel_of(figure):
    (axes,) = (each for each in all_axes(figure) if each.get_title(loc="left") == "Letters")
    return axes


def all_axes(figure):
    return [each for each in figure.findobj(Axes) if each.axison]


def draw_letters(cells, **options):
    titles = {key: title for key, (title, _) in METHODS.items()}
    return draw_blocks(titles, [Block("AUROC, %", [Panel("Letters", cells, **options)])])


@pytest.mark.parametrize("values", [[0.0, 100.0], [99.999, 100.0], [50.0], [0.0], [97.0, 98.0]])
def test_no_dot_is_cut_and_no_axis_shows_differences_that_mean_nothing(values):
    cells = {key: Cell([value]) for key, value in zip(METHODS, values, strict=False)}
    cells["kfla"] = Cell([], paper=values[0])
    low, high = panel_of(draw_letters(cells)).get_xlim()
    assert low < min(values) and max(values) < high
    assert high - low >= 2
    assert high - low <= 1.2 * max(2, max(values) - min(values))


def test_whiskers_end_at_the_limits():
    lines = panel_of(draw_letters({"plain": Cell([90.0, 110.0])})).lines
    whisker = next(line for line in lines if len(line.get_xdata()) == 2)
    assert list(whisker.get_xdata()) == [100 - 200**0.5, 100]  # ± the standard deviation of the sample


@pytest.mark.parametrize(
    "numbers, best, bold",
    [
        ([90.0, 95.0, 94.96], max, ["95.0", "95.0"]),
        ([90.0, 95.0, 94.94], max, ["95.0"]),
        ([90.0, 95.0, 94.94], min, ["90.0"]),
        ([90.0, 95.0], None, []),
        ([95.0, 95.01], max, []),
    ],
)
def test_the_best_numbers_are_bold_unless_all_are_equal(numbers, best, bold):
    cells = {key: Cell([number]) for key, number in zip(METHODS, numbers, strict=False)}
    axes = panel_of(draw_letters(cells, best=best))
    assert [text.get_text() for text in axes.texts if text.get_fontweight() == "bold"] == bold
    assert len(axes.texts) == len(numbers)


def test_rows_are_the_methods_with_numbers_of_ours_or_the_papers():
    cells = {"plain": Cell([90.0]), "dla": Cell([]), "kfla": Cell([], paper=80.0)}
    axes = panel_of(draw_letters(cells))
    assert [label.get_text() for label in axes.get_yticklabels()] == ["Plain network", "KFLA (paper's)"]
    assert axes.yaxis_inverted()


# ---- whole pictures


def made_up(seed, *shape):
    generator = random.Random(seed)
    if not shape:
        return generator.uniform(0, 1)
    return [made_up(generator.random(), *shape[1:]) for _ in range(shape[0])]


def table(sets):
    """Sixteen methods. One was not run, and detectors have no confidence."""
    names = ["CIFAR-100", *sets]
    scores = {name: {} for name in names}
    for key, name in itertools.product(METHODS | DETECTORS, names):
        found = scores[name].setdefault(key, {})
        if key == "kfla":
            continue
        for quantity in ("mmc",) if key in METHODS else ():
            found[quantity] = [100 * value for value in made_up(f"{key}{name}", 3)]
        if name != "CIFAR-100" or key in METHODS:
            quantity = "accuracy" if name == "CIFAR-100" else "auroc"
            found[quantity] = [99 + value for value in made_up(f"{name}{key}", 3)]
    return {
        "problem": "CIFAR-100",
        "paper_problem": "CIFAR100",
        "paper_rows": {name: name for name in sets},
        "methods": described(METHODS | DETECTORS),
        "scores_percent": scores,
    }


SETS = ["SVHN", "LSUN (packed scenes)", "Letters (substitute for EMNIST)", "Noise", "Noise × 2000"]


def outlier_table():
    return ood.draw_scores(table(SETS), lambda train, test, method: {"mmc": [50.0, 1.0], "aur": [99.0, 0.1]})


def small_outlier_table():
    return ood.draw_scores(table(["Noise × 100"]), lambda train, test, method: {})


def default_table(classes=100):
    outliers = {
        name: {"mmc": made_up(name), "auroc": dict.fromkeys(default.SCORES["plain"], 0.9)} for name in SETS
    }
    for found in outliers.values():
        found["auroc"] |= {"score": 1.0}
    methods = {key: {"outliers": outliers} for key in default.TITLES if key != "default-all"}
    return default.draw(
        {"problem": "CIFAR-100", "classes": classes, "sets": SETS, "trials": [{"methods": methods}] * 3}
    )


def calibration():
    scores = {key: {"ece": made_up(key, 3), "papers_ece": made_up(key, 3)} for key in METHODS if key != "dla"}
    network = {"methods": described(METHODS), "scores": scores}
    return ece.draw({"paper_problem": "MNIST", "networks": dict.fromkeys(ece.NETWORK_TITLES, network)})


def times():
    seconds = {key: {"inference": made_up(key), "prediction": made_up(key)} for key in METHODS}
    seconds["plain"]["inference"] = None
    return table3.draw({"paper_problem": "MNIST", "methods": described(METHODS), "seconds": seconds})


def confidence_histograms():
    def kind(low, keys):
        shares = {
            key: {"inside": [0.0] * 39 + [1.0], "far": [1.0] + [0.0] * 39, "auroc": 100.0} for key in keys
        }
        return {"problem": "MNIST", "delta": 9, "low": low, "methods": described(METHODS), "shares": shares}

    return histograms.draw({"multi-class": kind(0.01, METHODS), "binary": kind(0.5, ["plain", "default"])})


def scaled_confidence():
    def kind(classes, keys):
        curves = {key: {"mean": [50.0, 99.0, 60.0], "std": [1.0, 9.0, 30.0]} for key in keys}
        return {
            "paper_problem": "MNIST",
            "classes": classes,
            "methods": described(METHODS),
            "delta": [0, 10, 20],
            "confidence_percent": curves,
        }

    return confidence_vs_scale.draw(
        {"multi-class": kind(100, METHODS), "binary": kind(2, ["plain", "default", "llla"])}
    )


def rotated():
    return rotated_mnist.draw(
        {
            "angles": [0, 90, 180],
            "methods": described(METHODS),
            "brier": {key: [[0.1], [1.2], [0.9]] for key in METHODS},
        }
    )


PICTURES = [
    outlier_table,
    small_outlier_table,
    default_table,
    calibration,
    times,
    confidence_histograms,
    scaled_confidence,
    rotated,
]


def visible_texts(figure):
    """All texts with their boxes in pixels. Labels of ticks beyond the ends of an axis are not drawn."""
    figure.set_dpi(96)
    figure.savefig(io.BytesIO(), dpi=96)
    hidden = set()
    for axes in figure.findobj(Axes):
        for axis, (low, high) in (
            (axes.xaxis, sorted(axes.get_xlim())),
            (axes.yaxis, sorted(axes.get_ylim())),
        ):
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
                if not axes.axison or not low <= tick.get_loc() <= high or not tick.label1.get_visible():
                    hidden |= {tick.label1}
                hidden |= {tick.label2}
    texts = [
        text
        for text in figure.findobj(lambda each: hasattr(each, "get_fontsize") and hasattr(each, "get_text"))
        if text.get_text().strip() and text.get_visible() and text not in hidden
    ]
    return [(text, text.get_window_extent()) for text in texts]


@pytest.mark.parametrize("draw", PICTURES)
def test_pictures_can_be_read_at_the_width_of_a_page(draw):
    figure = draw()
    assert figure.get_size_inches()[0] == 900 / 96  # so that a point is a point of a screen
    texts = visible_texts(figure)
    assert len(texts) > 10
    for text, box in texts:
        assert text.get_fontsize() >= 8, text
        # To a pixel: a box has a border of that width around its letters.
        assert box.x0 >= -1 and box.x1 <= 901, text
    for (one, box), (other, place) in itertools.combinations(texts, 2):
        wide = min(box.x1, place.x1) - max(box.x0, place.x0)
        high = min(box.y1, place.y1) - max(box.y0, place.y0)
        assert wide <= 1 or high <= 1, (one, other)

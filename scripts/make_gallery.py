"""Make docs/gallery.md and its pictures, in docs/gallery/, of the scripts in examples/gallery/.

    python scripts/make_gallery.py [NAME…]     # such as zoom_out; all of them by default

A script's docstring has its title and what the picture shows. What it draws last is the picture.
"""

import argparse
import ast
import re
import runpy
import warnings
from io import BytesIO
from pathlib import Path

import matplotlib
from PIL import Image

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "examples" / "gallery"
PICTURES = ROOT / "docs" / "gallery"
PAGE = ROOT / "docs" / "gallery.md"
# In the order of the page.
NAMES = (
    "zoom_out",
    "strangers",
    "rotated_digit",
    "rays",
    "reliability",
    "risk_coverage",
    "prediction_sets",
    "shift_alarm",
    "priors",
    "drawn_boundaries",
    "why_uncertain",
    "regression",
)
DPI, COLOURS = 100, 256  # small files
START = """# Gallery

Twelve pictures, each with the script that draws it. They run in seconds on a CPU, on data that come with
bitbayes. `python scripts/make_gallery.py` makes this page.
"""


def draw(name: str, picture: Path) -> None:
    """Run a script, and save the figure that it would show."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.close("all")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="FigureCanvasAgg is non-interactive")
        runpy.run_path(str(SCRIPTS / f"{name}.py"))
    buffer = BytesIO()
    pyplot.gcf().savefig(buffer, dpi=DPI)
    Image.open(buffer).convert("RGB").quantize(COLOURS).save(picture, optimize=True)


def parts(name: str) -> tuple[str, str, str]:
    """Return a script's title, what it says of the picture, and its code."""
    source = (SCRIPTS / f"{name}.py").read_text("utf-8")
    title, _, text = (ast.get_docstring(ast.parse(source)) or "").partition("\n\n")
    return title, text, source.split('"""\n', 2)[-1].strip()


def page() -> str:
    """Return docs/gallery.md: the pictures side by side, and below each with its code."""
    thumbnails, sections = [], []
    for name in NAMES:
        title, text, code = parts(name)
        anchor = "-".join(re.findall(r"\w+", title.lower()))
        what = text.replace("\n", " ")
        picture = f"gallery/{name}.png"
        small = f'<img src="{picture}" alt="{what}" width="200">'
        thumbnails.append(f'<a href="#{anchor}">{small}<br>{title}</a>')
        picture = f"![{what}]({picture})"
        sections.append(f"## {title}\n\n{text}\n\n{picture}\n\n```python\n{code}\n```\n")
    return "\n".join([START, '<p class="gallery">', *thumbnails, "</p>\n", *sections])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=(*NAMES, []), metavar="NAME")
    given = parser.parse_args()
    PICTURES.mkdir(exist_ok=True)
    for name in given.names or NAMES:
        draw(name, PICTURES / f"{name}.png")
        print(f"{name}: {(PICTURES / f'{name}.png').stat().st_size / 1000:.0f} kB")
    PAGE.write_text(page(), "utf-8")


if __name__ == "__main__":
    main()

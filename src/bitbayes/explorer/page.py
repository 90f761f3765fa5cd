"""The explorer as one HTML file, with style, scripts and numbers inside. It loads no other file.

Nothing here imports torch: the command `bitbayes explore` should answer at once.
"""

import json
from importlib.resources import files

from jinja2 import Environment, StrictUndefined

from bitbayes._version import __version__
from bitbayes.explorer.numbers import Numbers, shipped_numbers
from bitbayes.palette import css_variables

# In the order in which they build on each other.
MATHEMATICS = tuple(
    f"mathematics/{name}.js"
    for name in ("linear_algebra", "distances", "posterior", "predictions", "rays", "digits")
)
PLANE = tuple(f"plane/{name}.js" for name in ("view", "map", "points", "steps", "scene"))
SCRIPTS = (
    "words.js",
    *MATHEMATICS,
    "state.js",
    "controls.js",
    "chart.js",
    *PLANE,
    "digits/scene.js",
    "start.js",
)


def render_explorer(numbers: Numbers | None = None) -> str:
    """Return the page as text.

    Args:
        numbers: what `train_numbers` returns. None: those that come with the package.
    """
    environment = Environment(autoescape=False, undefined=StrictUndefined)
    return environment.from_string(_read("page.html")).render(
        style=css_variables() + _read("style.css"),
        script=read_scripts(SCRIPTS),
        numbers=_as_script(shipped_numbers() if numbers is None else numbers),
        version=__version__,
    )


def read_scripts(names: tuple[str, ...]) -> str:
    """Return some of the page's scripts as one."""
    return "\n".join(_read(name) for name in names)


def _read(name: str) -> str:
    return files(__package__).joinpath("page", *name.split("/")).read_text("utf-8")


def _as_script(value: object) -> str:
    """Return JSON to put inside a <script>. Every "</", which would end the script, is escaped."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("</", "<\\/")

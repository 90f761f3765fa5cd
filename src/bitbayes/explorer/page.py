"""The explorer as one HTML file, with style, script and numbers inside. It loads no other file."""

import json
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined

from bitbayes._version import __version__
from bitbayes.explorer.toys import pack_toys


def render_explorer(toys: list[dict[str, Any]] | None = None) -> str:
    """Return the page as text.

    Args:
        toys: what `pack_toys` returns. None: train the paper's toys now, which takes some ten seconds.
    """
    environment = Environment(autoescape=False, undefined=StrictUndefined)
    return environment.from_string(_read("page.html")).render(
        style=_read("style.css"),
        mathematics=_read("mathematics.js"),
        script=_read("explorer.js"),
        toys=_as_script(pack_toys() if toys is None else toys),
        version=__version__,
    )


def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")


def _as_script(value: object) -> str:
    """Return JSON to put inside a <script>. Every "</", which would end the script, is escaped."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("</", "<\\/")

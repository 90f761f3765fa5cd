"""Docstrings as Markdown, for the API pages (mkdocs.yml names this file as an extension of griffe)."""

import re

import griffe


class PlainStars(griffe.Extension):
    """Keep the star of W*, which Markdown would take for emphasis, in all docstrings."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        if obj.docstring is not None:
            obj.docstring.value = with_plain_stars(obj.docstring.value)


def with_plain_stars(text: str) -> str:
    r"""Escape stars behind a letter, except in code: behind a prompt, or between backticks.

    >>> print(with_plain_stars("weights W*, `a*b`"))
    weights W\*, `a*b`
    """
    lines = text.splitlines()
    return "\n".join(line if line.lstrip().startswith((">>>", "...")) else escaped(line) for line in lines)


def escaped(line: str) -> str:
    parts = line.split("`")  # those at odd places are code
    parts[::2] = [re.sub(r"(?<=\w)\*(?!\*)", r"\\*", part) for part in parts[::2]]
    return "`".join(parts)

"""Docstrings as Markdown, for the API pages (mkdocs.yml names this file as an extension of griffe)."""

import re

import griffe
from site_examples import as_blocks


class DocstringsAsMarkdown(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    r"""Put examples into blocks of code, and keep the star of W*, which would be read as emphasis.

    >>> print(as_markdown("The weights W*."))
    The weights W\*.
    >>> as_markdown("Twice:\n\n>>> 2*a\n4")
    'Twice:\n\n```python\n2*a\n```\n\n```{.text .output .no-copy}\n4\n```'
    """
    paragraphs = re.split(r"\n\s*\n", text)
    return "\n\n".join(
        as_blocks(each, indent(each)) if each.lstrip().startswith(">>>") else escaped(each)
        for each in paragraphs
    )


def indent(example: str) -> str:
    return re.match(r"\n*( *)", example)[1]


def escaped(paragraph: str) -> str:
    """Escape stars behind a letter, except between backticks."""
    parts = paragraph.split("`")  # those at odd places are code
    parts[::2] = [re.sub(r"(?<=\w)\*(?!\*)", r"\\*", part) for part in parts[::2]]
    return "`".join(parts)

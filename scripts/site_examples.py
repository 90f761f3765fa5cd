"""Examples with prompts, which doctest runs, as code that can be copied and the output below it."""

import re

OUTPUT = "{.text .output .no-copy}"
BLOCK = re.compile(r"^( *)```py(?:thon|con)\n((?:(?! *```).*\n)*?)\1```$", re.MULTILINE)


def without_prompts(markdown: str) -> str:
    r"""Replace each block of Python with prompts by blocks of code and of output.

    >>> print(without_prompts("```python\n>>> for i in range(2):\n...     i\n0\n1\n>>> a = 3\n\n```"))
    ```python
    for i in range(2):
        i
    ```
    <BLANKLINE>
    ```{.text .output .no-copy}
    0
    1
    ```
    <BLANKLINE>
    ```python
    a = 3
    ```
    """
    return BLOCK.sub(lambda found: as_blocks(found[2], found[1]) if ">>>" in found[2] else found[0], markdown)


def as_blocks(example: str, indent: str = "") -> str:
    """Return the lines of a session as blocks that take turns. What doctest skips is an ellipsis."""
    parts: list[tuple[bool, list[str]]] = []
    for line in example.splitlines():
        line = line.removeprefix(indent)
        prompt = re.match(r"(>>>|\.\.\.)( |$)", line)
        is_code = prompt is not None
        if is_code:
            line = re.sub(r"  # doctest:.*", "", line[4:])
        elif not line.strip():
            continue
        else:
            line = "" if line == "<BLANKLINE>" else line.replace("...", "…")
        if parts and parts[-1][0] == is_code:
            parts[-1][1].append(line)
        else:
            parts.append((is_code, [line]))
    kinds = {True: "python", False: OUTPUT}
    blocks = [f"```{kinds[is_code]}\n" + "\n".join(lines) + "\n```" for is_code, lines in parts]
    return "\n".join(indent + line if line else "" for line in "\n\n".join(blocks).split("\n"))

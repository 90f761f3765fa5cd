"""Read JSON from files that may be damaged: whatever is wrong with the text is a `ValueError`."""

import json
import math
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Return what the text says. Raise `ValueError` if it is not JSON; NaN and infinity are not.

    >>> parse_json('{"loss": 0.5}')
    {'loss': 0.5}
    >>> parse_json("1e999")
    Traceback (most recent call last):
    ...
    ValueError: the number 1e999 is not finite
    """
    try:
        return json.loads(text, parse_float=_finite, parse_constant=_finite)
    except RecursionError as error:
        raise ValueError("the text is nested too deeply") from error


def as_parsed(value: Any) -> Any:
    """The value as it comes back from JSON.

    >>> as_parsed({"layers": ("a", "b")})
    {'layers': ['a', 'b']}
    """
    return parse_json(json.dumps(value))


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text} is not finite")
    return number

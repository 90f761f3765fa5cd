"""Numbers and names as people read them."""

from __future__ import annotations

NAMES = {"plain": "Plain", "temperature": "Temperature", "bayesian": "Bayesian"}


def percent(rate: float) -> str:
    """
    >>> percent(0.98251), percent(1.0)
    ('98.3', '100.0')
    """
    return f"{100 * rate:.1f}"


def listed(names: list[str]) -> str:
    """
    >>> listed(["noise"]), listed(["shoes", "letters", "noise"])
    ('noise', 'shoes, letters and noise')
    """
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)

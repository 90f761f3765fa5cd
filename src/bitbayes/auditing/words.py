"""Numbers and names as the report writes them."""

METHOD_TITLES = {"plain": "Plain", "temperature": "Temperature", "bayesian": "Bayesian"}


def percent(rate: float) -> str:
    """Write a fraction in per cent, with one digit after the point.

    >>> percent(0.98251), percent(1.0)
    ('98.3', '100.0')
    """
    return f"{100 * rate:.1f}"


def join_names(names: list[str]) -> str:
    """Write names as a list in a sentence.

    >>> join_names(["noise"]), join_names(["shoes", "letters", "noise"])
    ('noise', 'shoes, letters and noise')
    """
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)

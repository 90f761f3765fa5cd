"""The numbers of the trained networks: those that come with the package, and how they are made.

Making them needs torch and about a minute, and reading them neither.
`python scripts/make_explorer_numbers.py` keeps them in `numbers.json`.
"""

import json
from collections.abc import Callable
from importlib.resources import files
from typing import Any

Numbers = dict[str, Any]


def shipped_numbers() -> Numbers:
    """Return the numbers that come with the package."""
    numbers: Numbers = json.loads(files(__package__).joinpath("numbers.json").read_text("utf-8"))
    return numbers


def train_numbers(*, quick: bool = False, report: Callable[[str], object] = print) -> Numbers:
    """Train all networks anew, in one thread, and return the numbers that the page needs.

    Args:
        quick: train for few steps only. The page works, but its networks have learned little.
        report: is told what is trained.
    """
    import torch

    from bitbayes.explorer.digits import pack_digits, train_digits
    from bitbayes.explorer.toys import pack_toy
    from bitbayes.toys import TOY_PROBLEMS, train_toy

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # networks as small as these only lose time to a second one
    try:
        toys, networks = [], len(TOY_PROBLEMS) + 1
        for count, make in enumerate(TOY_PROBLEMS, 1):
            toy = make()
            report(f"Training network {count} of {networks}: {toy.title.lower()}")
            toys.append(pack_toy(toy, train_toy(toy, quick=quick)))
        report(f"Training network {networks} of {networks}: digits")
        return {"toys": toys, "digits": pack_digits(train_digits(quick=quick))}
    finally:
        torch.set_num_threads(threads)

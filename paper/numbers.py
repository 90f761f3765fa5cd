"""The paper's own numbers, as printed in its tables or read off its figures."""

import json
from functools import cache
from pathlib import Path
from typing import Any


@cache
def paper_numbers(table: str) -> Any:
    """Return all numbers of one table or figure of the paper.

    >>> paper_numbers("table2")["MNIST"]["FMNIST"]["LLLA"]
    {'mmc': [56.0, 1.8], 'aur': [98.2, 0.2]}
    """
    text = Path(__file__).with_name("numbers.json").read_text(encoding="utf-8")
    return json.loads(text)[table]


def paper_scores(table: str, train: str, test: str | None, method: str | None) -> dict[str, Any]:
    """Return MMC and AUROC of one method on one test set: mean and standard deviation, in %.

    The dictionary is empty if the paper prints no numbers.

    >>> paper_scores("table2", "MNIST", "FMNIST", "MAP")
    {'mmc': [66.3, 0.0], 'aur': [97.4, 0.0]}
    >>> paper_scores("table2", "MNIST", "FMNIST", "residual")
    {}
    """
    row = paper_numbers(table).get(train, {}).get(test, {})
    return dict(row.get(method) or {})

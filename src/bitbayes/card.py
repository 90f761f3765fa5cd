"""The card of a posterior that is shared: what was measured, how to load it, and what it is, in Markdown.

A card ends with a digest of itself. So one that somebody has edited is not taken for one of bitbayes.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from math import isfinite
from numbers import Real
from typing import Any, NamedTuple

from bitbayes._version import __version__
from bitbayes.errors import ArgumentError
from bitbayes.likelihoods import Likelihood

# What `Laplace.evaluate` returned, or that by the names of several sets of data.
Evaluated = Mapping[str, float] | Mapping[str, Mapping[str, float]]
# The same as it is kept: by the names, always.
EvaluatedSets = dict[str, dict[str, float]]

ONE_SET = "test data"
SIGNED = re.compile(r"(.*)<!-- bitbayes: ([0-9a-f]{64}) -->\n", re.DOTALL)


class Column(NamedTuple):
    """A column of the card's table."""

    title: str
    meaning: str
    percent: bool = True


COLUMNS = {
    "accuracy": Column("accuracy, %", "the share of right answers (of several labels: all of them right)"),
    "hamming": Column("wrong labels, %", "the share of labels that are predicted wrong"),
    "f1_micro": Column("F1, %", "the harmonic mean of precision and recall, over all labels together"),
    "map": Column("mAP, %", "the mean average precision of the labels"),
    "mmc": Column(
        "confidence, %",
        "its mean. It should be near the accuracy, and low on inputs that are unlike the data",
    ),
    "ece": Column(
        "ECE, %",
        "the expected calibration error: how far confidence and accuracy are apart, over 15 bins. Chance "
        "alone gives some, and more on fewer points",
    ),
    "rmse": Column("RMSE", "the root of the mean squared error", percent=False),
    "coverage90": Column("in the 90% interval, %", "the share of values in it. It should be 90"),
    "width90": Column("width of the 90% interval", "its mean", percent=False),
    "nll": Column("NLL", "the mean negative log-likelihood. Smaller is better", percent=False),
    "auroc": Column(
        "AUROC, %", "how well these inputs are told from the data: 100 is without a mistake, 50 is chance"
    ),
    "fpr95": Column("let through, %", "the share of these inputs that pass, if 95% of the data are to pass"),
    "widening": Column("widening", "the mean deviation, relative to that on the data", percent=False),
}
# What `evaluate` returns, too, and the card leaves out.
NOT_SHOWN = ("brier", "aurc", "f1_macro", "crps", "quantile_error")


class Described(NamedTuple):
    """What a card says of the posterior, beside numbers.

    model: the name of the network's class.
    likelihood: of the `Laplace`.
    settings: what it shows of itself.
    file: the name of the posterior's file.
    source: what `from_pretrained` takes.
    """

    model: str
    likelihood: Likelihood
    settings: str
    file: str
    source: str


def check_evaluated(evaluated: Evaluated | None) -> EvaluatedSets:
    """Return what `evaluate` returned, by the names of the sets of data; raise if it is something else.

    >>> check_evaluated({"accuracy": 0.5, "far/auroc": 1.0})
    {'test data': {'accuracy': 0.5, 'far/auroc': 1.0}}
    """
    given: Any = {} if evaluated is None else evaluated
    if not isinstance(given, Mapping):
        raise ArgumentError(f"evaluated is a {type(given).__name__}: expected what `evaluate` returns")
    if given and not any(isinstance(each, Mapping) for each in given.values()):
        given = {ONE_SET: given}
    for name, found in given.items():
        if not isinstance(name, str) or not name.strip() or not isinstance(found, Mapping):
            raise ArgumentError(
                f"evaluated has {name!r}: expected the names of sets of data, and for each what `evaluate` "
                "returned"
            )
        for key, value in found.items():
            measure = str(key).rpartition("/")[2]
            if measure not in COLUMNS and measure not in NOT_SHOWN:
                raise ArgumentError(f"evaluated has {key!r}, which `evaluate` does not return: leave it out")
            if not isinstance(value, Real) or not isfinite(value):
                raise ArgumentError(f"evaluated has {key!r}: {value!r}: expected a finite number")
    return {name: {key: float(value) for key, value in found.items()} for name, found in given.items()}


def is_untouched(content: bytes) -> bool:
    """Whether `card` made these bytes and nobody has edited them since. Line ends do not count."""
    found = SIGNED.fullmatch(content.decode("utf-8", errors="replace").replace("\r\n", "\n"))
    return found is not None and found[2] == _digest(found[1])


def card(described: Described, sets: EvaluatedSets) -> str:
    """The card, with the header that the Hub reads and the digest at its end."""
    likelihood = described.likelihood
    answer = "probs = bayes.predict_proba(x)" if likelihood.classifies else "prediction = bayes.predict(x)"
    if likelihood.name == "preference":
        answer = "reward = bayes.reward(x)"
    text = f"""---
library_name: bitbayes
tags:
- bitbayes
- uncertainty
- calibration
---

# Confidence for a trained {described.model}

`{described.file}` holds a Gaussian over the weights of a trained network, made by bitbayes {__version__}.
It does not hold the network itself: load that first, with the same weights. With others it is refused.

```python
import bitbayes as bb
bayes = bb.Laplace.from_pretrained("{described.source}", model)
{answer}
```

## Measured

{_measured(sets)}

## What it is

```text
{described.settings}
```

"""
    return f"{text}<!-- bitbayes: {_digest(text)} -->\n"


def _measured(sets: EvaluatedSets) -> str:
    """The table and what its columns mean."""
    rows = [row for data, found in sets.items() for row in _rows(data, found)]
    used = [name for name in COLUMNS if any(name in numbers for _, numbers in rows)]
    if not used:
        return (
            "Nothing was measured when this was saved. Measure with `bayes.evaluate` before you rely on it."
        )
    lines = [
        f"| data | {' | '.join(COLUMNS[name].title for name in used)} |",
        f"|---|{'--:|' * len(used)}",
        *(f"| {_cell(data)} | {' | '.join(_number(name, found) for name in used)} |" for data, found in rows),
        "",
        "Whoever saved this has measured these numbers, with `Laplace.evaluate`.",
        "",
        *(f"- **{COLUMNS[name].title}**: {COLUMNS[name].meaning}." for name in used),
    ]
    return "\n".join(lines)


def _rows(data: str, found: Mapping[str, float]) -> Iterator[tuple[str, dict[str, float]]]:
    """The row of a set of data, and those of the outliers that were compared with it."""
    rows: dict[str, dict[str, float]] = {}
    for key, value in found.items():
        outliers, _, measure = key.rpartition("/")
        rows.setdefault(f"{outliers}, beside {data}" if outliers else data, {})[measure] = value
    yield from rows.items()


def _cell(text: str) -> str:
    """A name in a table of Markdown."""
    return re.sub(r"([\\|<*_`\[\]])", r"\\\1", " ".join(text.split()))


def _number(name: str, found: Mapping[str, float]) -> str:
    if name not in found:
        return "–"
    return f"{100 * found[name]:.1f}" if COLUMNS[name].percent else f"{found[name]:.3g}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()

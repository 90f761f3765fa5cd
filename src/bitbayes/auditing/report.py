"""The result of `bitbayes.audit`: the findings, with methods to show and to save them."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any

from bitbayes.auditing.advice import advise
from bitbayes.auditing.alerts import Alert, find_alerts
from bitbayes.auditing.findings import Audit
from bitbayes.auditing.notebook import render_summary
from bitbayes.auditing.page import render_page
from bitbayes.auditing.terminal import write_summary
from bitbayes.auditing.verdict import compare, write_verdict
from bitbayes.io.atomic_write import check_writable, write_text

JSON_START = '{\n "schema":'  # how `to_json` begins


class AuditReport(Audit):
    """The results of an audit. A notebook shows the verdict and the main numbers.

    The numbers are in the attributes that `Audit` lists, such as `test["bitbayes"].ece` or
    `groups["unfamiliar"].scores["bitbayes"].auroc`. `save` writes the whole report.
    """

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        return write_verdict(self)

    @property
    def alerts(self) -> list[Alert]:
        """What makes the numbers less sure than they look: each has a `text` and a `remedy`."""
        return find_alerts(self)

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers, the verdict, what to do and the alerts, as dicts and lists for JSON.

        The key "schema" holds the version of the layout.
        """
        written: dict[str, Sequence[Any]] = {
            "comparisons": compare(self),
            "advice": advise(self),
            "alerts": find_alerts(self),
        }
        sentences = {name: [asdict(each) for each in parts] for name, parts in written.items()}
        return super().to_dict() | {"verdict": self.verdict, **sentences}

    def save(self, path: str | PathLike[str]) -> None:
        """Write the report as one HTML file. An existing file is replaced completely or not at all."""
        check_writable(Path(path))
        write_text(Path(path), render_page(self))

    def to_json(self) -> str:
        """Return all numbers as JSON."""
        return json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n"

    def __repr__(self) -> str:
        return write_summary(self)

    def _repr_html_(self) -> str:
        return render_summary(self)

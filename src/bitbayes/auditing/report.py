"""The result of `bitbayes.audit`: the findings, with methods to show and to save them."""

import json
from os import PathLike
from pathlib import Path

from bitbayes.auditing.findings import Audit
from bitbayes.auditing.notebook import render_summary
from bitbayes.auditing.page import render_page
from bitbayes.auditing.terminal import write_summary
from bitbayes.auditing.verdict import write_verdict
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

"""The audit in a notebook: the verdict, the main numbers and what to do, as HTML without script."""

from bitbayes.auditing.advice import advise
from bitbayes.auditing.alerts import find_alerts
from bitbayes.auditing.findings import Audit
from bitbayes.auditing.page import CHANGE_WORDS, render
from bitbayes.auditing.verdict import compare, write_verdict


def render_summary(audit: Audit) -> str:
    """Return the piece of HTML."""
    return render(
        "summary.html",
        {
            "audit": audit,
            "verdict": write_verdict(audit),
            "alerts": find_alerts(audit),
            "comparisons": compare(audit),
            "change_words": CHANGE_WORDS,
            "advice": advise(audit),
        },
    )

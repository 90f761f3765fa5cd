"""The report as one HTML file. It loads no other file, and is readable without scripts."""

import base64
import json
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from bitbayes.auditing import captions, charts
from bitbayes.auditing.advice import advise
from bitbayes.auditing.alerts import find_alerts
from bitbayes.auditing.bootstrap import RESAMPLES, SMOOTH_RESAMPLES
from bitbayes.auditing.findings import ADDED, KEPT_SHARES, USUAL_SHARE, Audit, ClassLimits
from bitbayes.auditing.table import ARROWS, detail_rows, table_sections, two_digits
from bitbayes.auditing.verdict import compare, write_headline, write_reasons
from bitbayes.auditing.words import join_names, per_hundred, percent, styles, title_of, write_chosen
from bitbayes.palette import css_variables

MOST_COLUMNS_ON_PHONES = 4  # with more, a table scrolls sideways
MOST_CLASSES_IN_TABLE = 20  # of limits at infinity
MOST_ROWS = 10  # of classes and segments, outside of the details
CHANGE_WORDS = {"better": "▲ better", "same": "= level", "worse": "▼ worse", "mixed": "± mixed"}
# This is in the page's head. By it `bitbayes audit` recognises a report, which it may replace.
GENERATOR = "bitbayes audit"


def render_page(audit: Audit) -> str:
    """Return the page as text."""
    return render("page.html", page_values(audit))


def render(name: str, values: dict[str, Any]) -> str:
    """Fill a template of this package."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(_read(name)).render(values)


def page_values(audit: Audit) -> dict[str, Any]:
    """Return the values that the templates use."""
    return {
        "audit": audit,
        "generator": GENERATOR,
        "stylesheet": Markup(css_variables() + _read("page.css")),
        "script": Markup(_read("page.js")),
        "headline": write_headline(audit),
        "reasons": write_reasons(audit),
        "alerts": find_alerts(audit),
        "comparisons": compare(audit),
        "change_words": CHANGE_WORDS,
        "advice": advise(audit),
        "sections": table_sections(audit),
        "arrows": ARROWS,
        "wide": len(audit.methods) > MOST_COLUMNS_ON_PHONES,
        "resamples": RESAMPLES,
        "smooth": SMOOTH_RESAMPLES,
        "others": join_names([m for m in audit.methods if m != audit.base and m not in ADDED] or [""]),
        "names": {method: title_of(method) for method in (*audit.methods, *audit.chosen)},
        "style_of": styles(audit.methods, audit.base),
        "side_by_side": audit.side_by_side,
        "details": {title_of(method): detail_rows(audit, method) for method in audit.details},
        "percent": percent,
        "percent2": two_digits,
        "per_hundred": per_hundred,
        "join_names": join_names,
        "write_chosen": write_chosen,
        "keys": {m: charts.draw_key(style) for m, style in styles(audit.methods, audit.base).items()},
        "trade_off": _picture(audit, charts.draw_trade_off, captions.caption_trade_off, audit.prior_curve),
        "reliability": _picture(audit, charts.draw_reliability, captions.caption_reliability, True),
        "rays": _picture(audit, charts.draw_rays, captions.caption_rays, audit.ray),
        "selective": _picture(audit, charts.draw_selective, captions.caption_selective, True),
        "promise": captions.caption_promise(audit.promise) if audit.promise else "",
        "shown": audit.ours or audit.base,
        "most_rows": MOST_ROWS,
        "rates": {method: captions.describe_rates(audit, method) for method in audit.own_probabilities},
        "examples": {e.source: [o for o in audit.examples if o.source == e.source] for e in audit.examples},
        "limits": captions.caption_limits(audit),
        "certified": captions.certificate(audit) is not None,
        "strips": {
            (outlier.name, method): charts.draw_strip(audit, outlier, method)
            for outlier in audit.outliers
            for method in audit.side_by_side
        },
        "kept": KEPT_SHARES,
        "usual": USUAL_SHARE,
        "now": KEPT_SHARES.index(USUAL_SHARE),
        "cost": captions.describe_cost(audit.cost, audit.sizes["train"]) if audit.cost else "",
        "class_limits": _largest_limits(audit),
        "json_link": _json_link(audit),
    }


def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")


def _picture(audit: Audit, draw: Any, write_caption: Any, available: object) -> tuple[Markup, str] | None:
    """Return a picture and its caption, which is also its text for screen readers."""
    if available is None:
        return None
    caption = write_caption(audit)
    return draw(audit, caption), caption


def _largest_limits(audit: Audit) -> list[ClassLimits]:
    """Return the limits of all classes, or of the classes with the largest limits if there are many.

    If all are blind guesses, as they are with the residual, there is nothing to list.
    """
    if all(abs(row.largest - 1 / audit.classes) < 1e-6 for row in audit.infinity):
        return []
    if len(audit.infinity) <= MOST_CLASSES_IN_TABLE:
        return audit.infinity
    return sorted(audit.infinity, key=lambda row: -row.largest)[:MOST_CLASSES_IN_TABLE]


def _json_link(audit: Audit) -> str:
    text = json.dumps(audit.to_dict(), allow_nan=False)
    return "data:application/json;base64," + base64.b64encode(text.encode()).decode()

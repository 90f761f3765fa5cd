"""The page: one HTML file that needs no network and no script."""

from __future__ import annotations

from importlib.resources import files

from jinja2 import Environment, StrictUndefined

from bitbayes.auditing import figures
from bitbayes.auditing.findings import METHODS, AtInfinity, Audit
from bitbayes.auditing.sentences import familiar_gap, sentences
from bitbayes.auditing.table import sections
from bitbayes.auditing.words import NAMES, percent

MOST_CLASSES = 20  # in the table of limits


def render_page(audit: Audit) -> str:
    """The whole page as text: sentences, table, pictures, what was run, and a glossary."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(files(__package__).joinpath("page.html").read_text("utf-8"))
    return template.render(
        audit=audit,
        sentences=sentences(audit),
        sections=sections(audit),
        methods=METHODS,
        names=NAMES,
        colours=figures.COLOURS,
        percent=percent,
        ray=_ray(audit),
        infinity=_largest_limits(audit),
        reliability=[_reliability(audit, method) for method in METHODS],
        histograms=[_histogram(audit, method) for method in METHODS],
    )


def _ray(audit: Audit) -> tuple[str, str] | None:
    """A picture and what it shows, for those who cannot see it."""
    if audit.ray is None:
        return None
    ends = ", ".join(
        f"{NAMES[m]} from {percent(audit.ray.mean[m][0])} to {percent(audit.ray.mean[m][-1])} %"
        for m in METHODS
    )
    return figures.ray_picture(audit), (
        f"Mean confidence as test inputs are multiplied by 1 to {audit.ray.delta[-1]:,.0f}: {ends}."
    )


def _largest_limits(audit: Audit) -> list[AtInfinity]:
    """The classes in their order; of many those whose limits are largest."""
    if len(audit.infinity) <= MOST_CLASSES:
        return audit.infinity
    return sorted(audit.infinity, key=lambda row: -row.largest)[:MOST_CLASSES]


def _reliability(audit: Audit, method: str) -> tuple[str, str, str]:
    scores = audit.test[method]
    gap = familiar_gap(scores, audit.sizes["test"])
    verdict = "fits" if gap == 0 else "overconfident" if gap > 0 else "underconfident"
    alt = (
        f"Reliability diagram, {NAMES[method]}: mean confidence {percent(scores.confidence)} %, "
        f"right {percent(scores.accuracy)} %."
    )
    return figures.reliability_picture(audit, method), alt, verdict


def _histogram(audit: Audit, method: str) -> tuple[str, str]:
    means = [("test data", audit.test[method].confidence)]
    means += [(outlier.name, outlier.scores[method].confidence) for outlier in audit.outliers]
    listing = ", ".join(f"{name} {percent(mean)} %" for name, mean in means)
    return (
        figures.histogram_picture(audit, method),
        f"Histograms of confidence, {NAMES[method]}; means: {listing}.",
    )

"""The report as one HTML file. It needs no internet connection and contains no script."""

from importlib.resources import files

from jinja2 import Environment, StrictUndefined

from bitbayes.auditing import figures
from bitbayes.auditing.findings import Audit, ClassLimits
from bitbayes.auditing.sentences import calibration_gap, summarise
from bitbayes.auditing.table import table_sections
from bitbayes.auditing.words import METHOD_TITLES, percent, write_chosen

MOST_CLASSES_IN_TABLE = 20  # of limits at infinity


def render_page(audit: Audit) -> str:
    """Return the page as text: sentences, a table, pictures, what was run, and a glossary."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(files(__package__).joinpath("page.html").read_text("utf-8"))
    return template.render(
        audit=audit,
        sentences=summarise(audit),
        sections=table_sections(audit),
        methods=audit.methods,
        names=METHOD_TITLES,
        colours=figures.METHOD_COLOURS,
        percent=percent,
        write_chosen=write_chosen,
        ray=_ray_picture(audit),
        infinity=_largest_limits(audit),
        all_are_guesses=_all_are_guesses(audit),
        reliability=[_reliability_picture(audit, method) for method in audit.methods],
        histograms=[_histogram_picture(audit, method) for method in audit.methods],
    )


def _ray_picture(audit: Audit) -> tuple[str, str] | None:
    """Return the picture and a text for readers who cannot see it."""
    if audit.ray is None:
        return None
    ends = ", ".join(
        f"{METHOD_TITLES[m]} from {percent(audit.ray.mean[m][0])} to {percent(audit.ray.mean[m][-1])} %"
        for m in audit.methods
    )
    return figures.draw_ray(audit.ray, audit.classes), (
        f"Mean confidence as test inputs are multiplied by 1 to {audit.ray.delta[-1]:,.0f}: {ends}."
    )


def _largest_limits(audit: Audit) -> list[ClassLimits]:
    """Return the limits of all classes, or of the classes with the largest limits if there are many."""
    if len(audit.infinity) <= MOST_CLASSES_IN_TABLE:
        return audit.infinity
    return sorted(audit.infinity, key=lambda row: -row.largest)[:MOST_CLASSES_IN_TABLE]


def _all_are_guesses(audit: Audit) -> bool:
    """Return whether the largest limit of every class is 1/k, as it is with the residual."""
    return all(abs(row.largest - 1 / audit.classes) < 1e-6 for row in audit.infinity)


def _reliability_picture(audit: Audit, method: str) -> tuple[str, str, str]:
    """Return the picture, a text for readers who cannot see it, and a verdict."""
    scores = audit.test[method]
    gap = calibration_gap(scores, audit.sizes["test"])
    verdict = "fits" if gap == 0 else "overconfident" if gap > 0 else "underconfident"
    text = (
        f"Reliability diagram, {METHOD_TITLES[method]}: mean confidence {percent(scores.confidence)} %, "
        f"right {percent(scores.accuracy)} %."
    )
    return figures.draw_reliability(audit, method), text, verdict


def _histogram_picture(audit: Audit, method: str) -> tuple[str, str]:
    """Return the picture and a text for readers who cannot see it."""
    means = [("test data", audit.test[method].confidence)]
    means += [(outlier.name, outlier.scores[method].confidence) for outlier in audit.outliers]
    listing = ", ".join(f"{name} {percent(mean)} %" for name, mean in means)
    text = f"Histograms of confidence, {METHOD_TITLES[method]}; means: {listing}."
    return figures.draw_histograms(audit, method), text

"""Every link of the pages leads to a file, and every anchor to a heading, on GitHub and in the site."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/*.md"),
    *ROOT.glob("results/**/README.md"),
    *ROOT.glob("results/*.md"),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    # Brackets before a parenthesis may also be code, such as model[0](x).
    files = [each.split("#")[0] for each in targets if "://" not in each and re.search(r"[./]", each)]
    missing = [each for each in files if each and not (page.parent / each).exists()]
    assert not missing


def on_github(title):
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def on_the_site(title):
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_anchors_lead_to_headings(page):
    for name, anchor in re.findall(r"\]\(([\w./-]*\.md)?#([^)\s]+)\)", page.read_text(encoding="utf-8")):
        target = page.parent / name if name else page
        titles = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
        for slug in (on_github, on_the_site):
            assert anchor in {slug(title) for title in titles}, f"{name}#{anchor} ({slug.__name__})"

"""Every link of the pages to a file leads to one."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("results/**/README.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    # Brackets before a parenthesis may also be code, such as model[0](x).
    files = [each.split("#")[0] for each in targets if "://" not in each and re.search(r"[./]", each)]
    missing = [each for each in files if each and not (page.parent / each).exists()]
    assert not missing

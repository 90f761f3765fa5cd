"""Build the documentation site: `make docs`.

    python scripts/build_site.py                    # with mkdocs in site/, with Zensical in build/zensical/
    python scripts/build_site.py --builder mkdocs   # with one of them

Both read the pages that `write_site_pages.py` writes into build/pages/, and mkdocs.yml. A link or an anchor
that leads nowhere is an error.
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

from write_site_pages import ROOT, write_pages

COMMANDS = {
    "mkdocs": ["mkdocs", "build", "--strict", "--quiet"],
    "zensical": ["zensical", "build", "--strict", "--clean"],
}


def build(builder: str, pages: Path, output: Path) -> None:
    """Run one builder on written pages. Raises if it fails."""
    environment = os.environ | {
        # Zensical takes none but relative ones.
        "SITE_PAGES": os.path.relpath(pages, ROOT),
        "SITE_OUTPUT": os.path.relpath(output, ROOT),
        "NO_MKDOCS_2_WARNING": "1",
        # Where griffe finds what site_docstrings.py imports.
        "PYTHONPATH": os.pathsep.join([str(ROOT / "scripts"), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    subprocess.run([sys.executable, "-m", *COMMANDS[builder]], cwd=ROOT, env=environment, check=True)
    for path in output.rglob("*.html"):
        if path.name != "live.html":
            path.write_text(mended(path.read_text("utf-8")), "utf-8")


def mended(html: str) -> str:
    """Mend what the theme leaves to readers who do not see the page."""
    # Icons are decoration: each stands beside or inside what names it.
    html = html.replace("<svg ", '<svg aria-hidden="true" ')
    html = html.replace('role="dialog"', 'role="dialog" aria-label="Search"')
    # The corner of a table is no header of anything.
    return re.sub(r"<th([^>]*)>\s*</th>", r"<td\1></td>", html)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--builder", choices=COMMANDS)
    parser.add_argument("--pages", type=Path, default=ROOT / "build" / "pages")
    parser.add_argument("--output", type=Path, help="the folder of the site, for one builder")
    given = parser.parse_args(arguments)
    outputs = {"mkdocs": ROOT / "site", "zensical": ROOT / "build" / "zensical"}
    write_pages(given.pages)
    for builder in [given.builder] if given.builder else COMMANDS:
        build(builder, given.pages, given.output or outputs[builder])


if __name__ == "__main__":
    main()

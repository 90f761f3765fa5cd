"""Take the screenshots in docs/screenshots/, and keep the report as docs/sample_report.html.

    bitbayes audit --output report.html
    python scripts/make_report_screenshots.py report.html [--output FOLDER]

FOLDER is that of docs. It needs Chromium and the extra `browser`.
"""

import argparse
import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright

FOLDER = Path(__file__).parents[1] / "docs"
# The name of the picture: the width and the height of the screen, and its colours.
SCREENS = {
    "report.png": (1100, 1000, "light"),
    "report_phone.png": (390, 844, "dark"),
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Take the screenshots of docs/audit.md.")
    parser.add_argument("report", type=Path)
    parser.add_argument("--output", type=Path, default=FOLDER)
    given = parser.parse_args(arguments)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--disable-gpu"])
        for name, (width, height, scheme) in SCREENS.items():
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
            page = context.new_page()
            page.goto(given.report.resolve().as_uri())
            page.screenshot(path=given.output / "screenshots" / name)
            context.close()
        browser.close()
    shutil.copyfile(given.report, given.output / "sample_report.html")


if __name__ == "__main__":
    main()

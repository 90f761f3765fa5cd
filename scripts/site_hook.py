"""What mkdocs does besides its own when it builds the site (mkdocs.yml names this file as a hook).

The pages of docs/ link to files outside of it, as GitHub needs it: `../results/README.md`, say. The site has
the results, the examples, CONTRIBUTING.md and CHANGELOG.md too, and this changes such links to lead to them.
It also puts the claims of results/paper.md on cards, and adds the explorer.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from bitbayes.explorer import render_explorer

ROOT = Path(__file__).parents[1]
# What the site has from outside docs/: pages, tables, and pictures that a page shows.
OUTSIDE = (
    "results/**/*.md",
    "results/**/*.png",
    "examples/*.py",
    "notebooks/*.ipynb",
    "benchmarks/faults/*.txt",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
)
CLAIMS, EXPLORER = "results/paper.md", "live.html"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for pattern in OUTSIDE:
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(path)))
    for folder in sorted(path for path in (ROOT / "results").iterdir() if path.is_dir()):
        if not (folder / "README.md").exists():  # GitHub lists a folder's files by itself
            name = f"results/{folder.name}/index.md"
            files.append(File.generated(config, name, content=list_of_tables(folder)))
    files.append(File.generated(config, EXPLORER, content=render_explorer()))
    return files


def list_of_tables(folder: Path) -> str:
    lines = [f"- [{path.stem}]({path.name})" for path in sorted(folder.glob("*.md"))]
    return "\n".join([f"# {folder.name}", "", *lines, ""])


def explorer_frame() -> str:
    link = f"[Open it on a page of its own]({EXPLORER}){{ .md-button }}"
    return f'{link}\n\n<iframe class="explorer" src="{EXPLORER}" title="The explorer"></iframe>'


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    name = page.file.src_uri
    if re.fullmatch(r"results/(?!promises/)[^/]+/(?!README).*", name):
        page.meta["search"] = {"exclude": True}  # a search should lead to pages, not to tables of numbers
    markdown = links_on_the_site(markdown, name).replace("<!-- explorer -->", explorer_frame())
    return with_cards(markdown) if name == CLAIMS else markdown


def on_post_page(output: str, **_: Any) -> str:
    """Mend what the theme leaves to readers who do not see the page."""
    # Icons are decoration: each stands beside or inside what names it.
    output = output.replace("<svg ", '<svg aria-hidden="true" ')
    output = output.replace('role="dialog"', 'role="dialog" aria-label="Search"')
    # The corner of a table is no header of anything.
    return re.sub(r"<th([^>]*)>\s*</th>", r"<td\1></td>", output)


# ---- links


def links_on_the_site(markdown: str, name: str) -> str:
    """Change the links of a page so that they lead to the same files in the site.

    In the site, what is in docs/ lies at the top, beside results/ and examples/.

    >>> links_on_the_site("[a](../results/README.md) and [b](prior.md)", "speed.md")
    '[a](results/README.md) and [b](prior.md)'
    >>> links_on_the_site("[c](../docs/prior.md)", "results/README.md")
    '[c](../prior.md)'
    >>> links_on_the_site("[d](docs/prior.md)", "CHANGELOG.md")
    '[d](prior.md)'
    """
    if name in (CLAIMS, "results/README.md"):  # their links to folders
        markdown = re.sub(r"\]\(([\w-]+)/?\)", r"](\1/index.md)", markdown)
    if "/" in name:
        return re.sub(r"(\]\((?:\.\./)+)docs/", r"\1", markdown)
    return re.sub(r"(\]\()(?:\.\./|docs/)", r"\1", markdown)


# ---- the cards of the claims


class Claim(NamedTuple):
    title: str
    anchor: str
    verdicts: dict[str, str]  # by data set; by "" where there is none
    picture: str | None


def claims(markdown: str) -> list[Claim]:
    """The rows of the table in results/paper.md under "Claim", with the picture of each section."""
    table = re.search(r"^\| Claim \|(.*)\|\n\|[-| :]+\|\n((?:\|.*\n)+)", markdown, re.MULTILINE)
    if table is None:
        raise ValueError(f"{CLAIMS} has no table whose first column is 'Claim'")
    sets = [cell.strip() for cell in table[1].split("|")]
    found = []
    for row in table[2].splitlines():
        first, *cells = (cell.strip() for cell in row.strip("|").split("|"))
        title, anchor = re.match(r"\[(.*)\]\(#(.*)\)", first).groups()
        verdicts = {name: cell for name, cell in zip(sets, cells, strict=True) if cell not in ("", "–")}
        if not any(cells[1:]):  # it is about no data set
            verdicts = {"": cells[0]}
        number = title.split(".")[0]
        section = re.search(rf"^### {number}\. .*\n((?:(?!^##).*\n?)*)", markdown, re.MULTILINE)
        picture = re.search(r"!\[.*?\]\((.*?)\)", section[1]) if section else None
        found.append(Claim(title, anchor, verdicts, picture[1] if picture else None))
    return found


def with_cards(markdown: str) -> str:
    """Put a card for each claim in the place of the table: its title, its verdicts and its picture."""
    cards = "\n".join(card(claim) for claim in claims(markdown))
    table = re.compile(r"^\| Claim \|.*\n\|[-| :]+\|\n(?:\|.*\n)+", re.MULTILINE)
    return table.sub(lambda _: f'<div class="claims" markdown>\n\n{cards}\n</div>\n', markdown)


def card(claim: Claim) -> str:
    chips = " ".join(
        f'<span class="verdict {word(verdict)}">{f"{name}: " if name else ""}{verdict}</span>'
        for name, verdict in claim.verdicts.items()
    )
    picture = f"![{claim.title}]({claim.picture})\n\n" if claim.picture else ""
    title = f"**[{claim.title}](#{claim.anchor})**"
    return f'<div class="claim" markdown>\n\n{title}\n\n{picture}{chips}\n\n</div>\n'


def word(verdict: str) -> str:
    """The verdict's first word, which the style sheet has a colour for.

    >>> word("holds, see below")
    'holds'
    """
    return re.split(r"\W", verdict, maxsplit=1)[0].lower()

"""Write the pages of the site as its builders read them: `scripts/build_site.py` calls this.

docs/ and the pages beside it are written for GitHub. The site has the results, the examples, the notebooks,
CONTRIBUTING.md and CHANGELOG.md at its top, beside what is in docs/. So links change, and on the way

- examples with prompts become code that can be copied, and its output,
- notebooks become pages,
- the claims of results/paper.md come on cards,
- tables of numbers leave the search, which should lead to pages,
- and the explorer is added.
"""

import json
import re
import shutil
from base64 import b64decode
from pathlib import Path
from typing import NamedTuple

from site_examples import OUTPUT, without_prompts

from bitbayes.explorer import render_explorer

ROOT = Path(__file__).parents[1]
# What the site has from outside docs/: pages, and what a page shows or links to.
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
TABLES_OF_NUMBERS = r"results/(?!promises/)[^/]+/(?!README).*"


def write_pages(folder: Path) -> None:
    """Write all pages and what they show into that folder, which is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    sources = {path.relative_to(ROOT / "docs").as_posix(): path for path in (ROOT / "docs").rglob("*.*")}
    sources |= {path.relative_to(ROOT).as_posix(): path for each in OUTSIDE for path in ROOT.glob(each)}
    for name, source in sorted(sources.items()):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.suffix == ".md":
            target.write_text(page(name, source.read_text("utf-8")), "utf-8")
        else:
            shutil.copyfile(source, target)
        if target.suffix == ".ipynb":
            write_notebook(target)
    for each in sorted(path for path in (ROOT / "results").iterdir() if path.is_dir()):
        if not (each / "README.md").exists():  # GitHub lists a folder's files by itself
            name = f"results/{each.name}/index.md"
            (folder / name).write_text(page(name, list_of_tables(each)), "utf-8")
    (folder / EXPLORER).write_text(render_explorer(), "utf-8")


def page(name: str, markdown: str) -> str:
    """Return what the site has in the place of a page of the repository."""
    markdown = links_on_the_site(markdown, name).replace("<!-- explorer -->", explorer_frame())
    markdown = without_prompts(with_cards(markdown) if name == CLAIMS else markdown)
    return (
        f"---\nsearch:\n  exclude: true\n---\n\n{markdown}"
        if re.fullmatch(TABLES_OF_NUMBERS, name)
        else markdown
    )


def list_of_tables(folder: Path) -> str:
    lines = [f"- [{path.stem}]({path.name})" for path in sorted(folder.glob("*.md"))]
    return "\n".join([f"# {folder.name}", "", *lines, ""])


def explorer_frame() -> str:
    link = f"[Open it on a page of its own]({EXPLORER}){{ .md-button }}"
    return f'<iframe class="explorer" src="{EXPLORER}" title="The explorer"></iframe>\n\n{link}'


# ---- notebooks


def write_notebook(path: Path) -> None:
    """Write a page with a notebook's cells and their stored outputs beside it. Its pictures become files."""
    blocks, heading, pictures = [], path.stem, 0
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            heading = (re.findall(r"^#+ (.*)$", source, re.MULTILINE) or [heading])[-1]
            blocks.append(source)
            continue
        blocks.append(f"```python\n{source}\n```")
        printed = ""
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                pictures += 1
                picture = path.with_name(f"{path.stem}_{pictures}.png")
                picture.write_bytes(b64decode(data["image/png"]))
                blocks.append(f"![What this code draws, under the heading: {heading}]({picture.name})")
            elif "text/html" not in data:  # a bar of progress
                printed += "".join(output.get("text") or data["text/plain"]).rstrip("\n") + "\n"
        if printed:
            blocks.append(f"```{OUTPUT}\n{printed}```")
    blocks.insert(1, f"[Download the notebook]({path.name}){{ .md-button }}")
    path.with_suffix(".md").write_text(page(f"notebooks/{path.stem}.md", "\n\n".join(blocks) + "\n"), "utf-8")


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

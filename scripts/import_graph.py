"""Which package imports which: the picture in docs/architecture.md, and the rule behind it.

    python scripts/import_graph.py           # writes docs/architecture.svg
    python scripts/import_graph.py --list    # prints every import from one package to another

A package here is a folder or a file of src/bitbayes. `PACKAGES` lists them from the bottom up. A package may
import those before it and no others. The test of the architecture checks that, and that `paper/` imports the
public names alone.
"""

import argparse
import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "bitbayes"

# Each row may import from the rows before it, and from its left-hand neighbours.
ROWS = (
    ("_version", "errors", "precision", "progress", "processes", "tensors"),
    ("model", "logits", "prior", "uncertainty", "metrics", "toys"),
    ("closed_forms", "settings", "residual", "outliers"),
    ("likelihoods", "regression"),
    ("structures",),
    ("rays", "options", "fitted", "tuned"),
    ("fitting", "posteriors"),
    ("io", "predicting", "tuning", "decisions"),
    ("summary", "card", "hub", "laplace", "baselines"),
    ("merging", "passed_points", "evidence", "callbacks", "openood", "sklearn", "lightning", "transformers"),
    ("palette", "plots"),
    ("bitbayes",),  # the package itself: its public names
    ("auditing", "explorer"),
    ("cli",),
    ("__main__",),
)
PACKAGES = tuple(package for row in ROWS for package in row)
ABOVE = PACKAGES[PACKAGES.index("bitbayes") + 1 :]


def imports(source: Path = SOURCE) -> dict[tuple[str, str], list[str]]:
    """From each package to each other that it imports: the places where it does, as file:line."""
    found = defaultdict(list)
    for path in sorted(source.rglob("*.py")):
        here = package_of(path.relative_to(source))
        # __init__.py imports each public name when somebody first uses it, and lists them for type checkers.
        # Those from the packages above it are left out here: nothing below depends on them.
        public = here == "bitbayes"
        for line, name in imported_modules(ast.parse(path.read_text(encoding="utf-8")), for_types=public):
            there = package_named(name, source)
            if there != here and not (public and there in ABOVE):
                found[here, there].append(f"{path.relative_to(source)}:{line}")
    return dict(found)


def package_of(path: Path) -> str:
    """The package that a file of src/bitbayes belongs to."""
    return (
        "bitbayes"
        if path.name == "__init__.py" and len(path.parts) == 1
        else path.parts[0].removesuffix(".py")
    )


def package_named(module: str, source: Path) -> str:
    """The package of an imported name, as `bitbayes.model.head`; "bitbayes" for its public names."""
    parts = module.split(".")
    if len(parts) == 1:
        return "bitbayes"
    there = source / parts[1]
    return parts[1] if there.is_dir() or there.with_suffix(".py").is_file() else "bitbayes"


def imported_modules(tree: ast.AST, *, for_types: bool = False) -> Iterator[tuple[int, str]]:
    """Every module of bitbayes that is imported when the code runs, with its line.

    `for_types`: also those that only type checkers import.
    """
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING" and not for_types:
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            module = node.module or ""
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "bitbayes" else [module]
        else:
            yield from imported_modules(node, for_types=for_types)
            continue
        yield from ((node.lineno, name) for name in names if name.split(".")[0] == "bitbayes")


def reaches_back(found: dict[tuple[str, str], list[str]]) -> dict[tuple[str, str], list[str]]:
    """The imports of a package that comes later in `PACKAGES`."""
    order = {package: number for number, package in enumerate(PACKAGES)}
    return {pair: places for pair, places in found.items() if order[pair[1]] > order[pair[0]]}


def without_detours(found: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """The imports that do not also go by way of a third package: what a picture has to show."""
    below = {package: {b for a, b in found if a == package} for package in PACKAGES}
    reach: dict[str, set[str]] = {}
    for package in PACKAGES:
        reach[package] = below[package].union(*(reach.get(each, set()) for each in below[package]))
    return {(a, b) for a, b in found if not any(b in reach[c] for c in below[a] if c != b and c in reach)}


# The picture, row by row from the top: the centre of each box, and the packages in it. What everybody may use
# (the first of `ROWS`) and small leaves (metrics, outliers, toys, uncertainty, callbacks) are left out.
AROUND = ("merging", "passed_points", "openood", "sklearn", "lightning", "transformers")
PICTURE = (
    {5: ("cli",)},
    {2: ("auditing",), 5: ("explorer",), 8: ("paper",)},
    {5: ("bitbayes",)},
    {2: ("baselines",), 8: ("plots",)},
    {6: AROUND},
    {5: ("laplace",)},
    {2: ("hub",)},
    {1: ("io",), 5: ("tuning",), 9: ("predicting",)},
    {1: ("fitting",), 7: ("posteriors",)},
    {1: ("options",), 5: ("fitted",), 8: ("rays",)},
    {3: ("structures",)},
    {2: ("likelihoods",)},
    {1: ("closed_forms",), 6: ("residual",), 9: ("settings",)},
    {1: ("logits",), 5: ("model",), 9: ("prior",)},
)


def draw(found: set[tuple[str, str]], target: Path) -> None:
    """The packages as boxes, with an arrow from each to those that it imports."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 10))
    boxes = {}
    for number, row in enumerate(PICTURE):
        for column, packages in row.items():
            folder = len(packages) == 1 and ((SOURCE / packages[0]).is_dir() or packages[0] == "paper")
            colours = {"edgecolor": "#34495e", "facecolor": "#dce8f4" if folder else "white"}
            box = {"boxstyle": "round,pad=0.45", **colours}
            label = f"{packages[0]}/" if folder else ", ".join(packages[:3])
            if len(packages) > 3:
                label += ",\n" + ", ".join(packages[3:])
            text = axes.text(
                column, -number, label, ha="center", va="center", fontsize=10, bbox=box, zorder=3
            )
            boxes |= dict.fromkeys(packages, ((column, -number), text))
    shown = {(a, b) for a, b in without_detours(found) if a in boxes and b in boxes} | {("paper", "bitbayes")}
    arrows = {(boxes[a][1], boxes[b][1]): (boxes[a][0], boxes[b][0]) for a, b in sorted(shown)}
    for (tail, head), (start, end) in arrows.items():
        arrow = {"arrowstyle": "-|>", "color": "#6b7f95", "shrinkA": 0, "shrinkB": 0}
        ends = {"patchA": tail.get_bbox_patch(), "patchB": head.get_bbox_patch()}
        axes.annotate("", xy=end, xytext=start, arrowprops={**arrow, **ends}, zorder=1)
    axes.set(xlim=(-0.2, 10.2), ylim=(-len(PICTURE) + 0.4, 0.6))
    axes.axis("off")
    figure.tight_layout()
    with matplotlib.rc_context({"svg.hashsalt": "bitbayes"}):
        figure.savefig(target, metadata={"Date": None, "Description": described(found)})


def described(found: set[tuple[str, str]]) -> str:
    """The imports that the picture shows, in words: for those who cannot see it, and for the test of it."""
    return "; ".join(f"{a} imports {b}" for a, b in sorted(without_detours(found)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="print the imports instead")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "architecture.svg")
    options = parser.parse_args()
    found = imports()
    if options.list:
        for (a, b), where in sorted(found.items(), key=lambda item: PACKAGES.index(item[0][0])):
            print(f"{a} → {b}: {', '.join(where)}")
        return
    draw(set(found), options.output)
    print(options.output)


if __name__ == "__main__":
    main()

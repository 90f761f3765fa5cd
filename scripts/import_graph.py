"""Which room imports which: the picture in docs/architecture.md, and the rule behind it.

    python scripts/import_graph.py           # writes docs/architecture.svg
    python scripts/import_graph.py --list    # prints every import from one room to another

A room is a folder or a file of src/bitbayes. `ROOMS` lists them from the bottom up. A room may import those
before it and no others; `tests/test_architecture.py` checks that.
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
    ("_version", "errors", "precision", "progress", "processes", "short_help", "tensors"),
    ("model",),
    ("likelihood", "logits", "prior"),
    ("predictive", "structures", "residual", "outliers", "toys"),
    ("rays", "options"),
    ("fitting",),
    ("joint_fit",),
    ("posterior",),
    ("uncertainty", "metrics", "last_layer", "all_layers", "tuning", "io"),
    ("laplace", "merging", "baselines", "callbacks", "openood", "sklearn", "lightning", "transformers"),
    ("plots",),
    ("bitbayes",),  # the package itself: its public names
    ("auditing", "explorer"),
    ("cli",),
    ("__main__",),
)
ROOMS = tuple(room for row in ROWS for room in row)
ABOVE = ROOMS[ROOMS.index("bitbayes") + 1 :]


def imports(source: Path = SOURCE) -> dict[tuple[str, str], list[str]]:
    """From each room to each other that it imports: the places where it does, as file:line."""
    found = defaultdict(list)
    for path in sorted(source.rglob("*.py")):
        here = room_of(path.relative_to(source))
        # The package's own file imports each public name when somebody first uses it, and lists them for type
        # checkers. Those from the rooms above it are left out here: nothing below depends on them.
        package = here == "bitbayes"
        for line, name in imported_modules(ast.parse(path.read_text(encoding="utf-8")), for_types=package):
            there = room_named(name, source)
            if there != here and not (package and there in ABOVE):
                found[here, there].append(f"{path.relative_to(source)}:{line}")
    return dict(found)


def room_of(path: Path) -> str:
    """The room that a file of the package belongs to."""
    return (
        "bitbayes"
        if path.name == "__init__.py" and len(path.parts) == 1
        else path.parts[0].removesuffix(".py")
    )


def room_named(module: str, source: Path) -> str:
    """The room of an imported name, as `bitbayes.model.batches`; the package itself for its public names."""
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
    """The imports of a room that comes later in `ROOMS`."""
    order = {room: number for number, room in enumerate(ROOMS)}
    return {pair: places for pair, places in found.items() if order[pair[1]] > order[pair[0]]}


def without_detours(found: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """The imports that do not also go by way of a third room: what a picture has to show."""
    below = {room: {b for a, b in found if a == room} for room in ROOMS}
    reach: dict[str, set[str]] = {}
    for room in ROOMS:
        reach[room] = below[room].union(*(reach.get(each, set()) for each in below[room]))
    return {(a, b) for a, b in found if not any(b in reach[c] for c in below[a] if c != b and c in reach)}


def draw(found: set[tuple[str, str]], target: Path) -> None:
    """The rooms as boxes, row by row, with an arrow from each to those that it imports."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    shown = ROWS[1:-1]  # the first row is everybody's: a picture of it would be all arrows
    figure, axes = pyplot.subplots(figsize=(9, 10))
    boxes = {}
    for number, row in enumerate(reversed(shown)):
        for column, room in enumerate(row):
            folder = (SOURCE / room).is_dir()
            colours = {"edgecolor": "#34495e", "facecolor": "#dce8f4" if folder else "white"}
            box = {"boxstyle": "round,pad=0.45", **colours}
            place = (column + 0.5) / len(row) * 10, -number
            label = f"{room}/" if folder else room
            text = axes.text(*place, label, ha="center", va="center", fontsize=10, bbox=box, zorder=3)
            boxes[room] = place, text
    for a, b in sorted(without_detours(found)):
        if a in boxes and b in boxes:
            (start, tail), (end, head) = boxes[a], boxes[b]
            arrow = {"arrowstyle": "-|>", "color": "#6b7f95", "shrinkA": 0, "shrinkB": 0}
            ends = {"patchA": tail.get_bbox_patch(), "patchB": head.get_bbox_patch()}
            axes.annotate("", xy=end, xytext=start, arrowprops={**arrow, **ends})
    axes.set(xlim=(-0.2, 10.2), ylim=(-len(shown) + 0.4, 0.6))
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
        for (a, b), where in sorted(found.items(), key=lambda item: ROOMS.index(item[0][0])):
            print(f"{a} → {b}: {', '.join(where)}")
        return
    draw(set(found), options.output)
    print(options.output)


if __name__ == "__main__":
    main()

"""The packages of the library: who may import whom, and that the pages about them are true."""

import ast
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPEC = spec_from_file_location("import_graph", ROOT / "scripts" / "import_graph.py")
graph = module_from_spec(SPEC)
SPEC.loader.exec_module(graph)


def package(folder, **files):
    """A package called bitbayes with these files."""
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_every_package_has_its_place():
    packages = {graph.package_of(path.relative_to(graph.SOURCE)) for path in graph.SOURCE.rglob("*.py")}
    assert packages == set(graph.PACKAGES) and len(graph.PACKAGES) == len(packages)


def test_no_package_reaches_back():
    assert graph.reaches_back(graph.imports()) == {}


@pytest.mark.parametrize(
    "text",
    [
        "from bitbayes.laplace import Laplace",
        "import bitbayes.laplace",
        "from bitbayes import laplace",
        "def later():\n    from bitbayes.laplace import Laplace",
    ],
)
def test_a_reach_back_is_found(tmp_path, text):
    source = package(tmp_path, laplace="", model__layers=text)
    assert graph.reaches_back(graph.imports(source)) == {
        ("model", "laplace"): [f"model/layers.py:{text.count(chr(10)) + 1}"]
    }
    allowed = package(
        tmp_path / "other", laplace="from bitbayes.model import x", model__layers="import torch"
    )
    assert graph.reaches_back(graph.imports(allowed)) == {}


def test_modules_do_not_import_each_other_in_a_circle():
    """Within a package too: module by module, imports inside functions left out."""
    modules = {
        ".".join(["bitbayes", *path.relative_to(graph.SOURCE).with_suffix("").parts]).removesuffix(
            ".__init__"
        ): path
        for path in graph.SOURCE.rglob("*.py")
    }
    below = {name: set() for name in modules}
    for name, path in modules.items():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            for _, target in graph.imported_modules(ast.Module([node], [])) if is_import(node) else ():
                below[name].add(target if target in modules else target.rpartition(".")[0])
    done, path = set(), []

    def visit(name):
        assert name not in path, f"{' → '.join([*path[path.index(name) :], name])}"
        if name in done or name not in below:
            return
        path.append(name)
        for each in below[name] - {name}:
            # A package's own __init__ gathers its modules: these may import each other, but not through it.
            if not (each.startswith(f"{name}.") or name.startswith(f"{each}.")):
                visit(each)
        path.pop()
        done.add(name)

    for name in modules:
        visit(name)


def is_import(node):
    return isinstance(node, (ast.Import, ast.ImportFrom))


def test_importing_bitbayes_leaves_alone_what_few_people_need():
    code = """
import sys
import bitbayes as bb
from bitbayes import Laplace, TemperatureScaling, merge, metrics, outliers, process_group
late = ("paper", "bitbayes.toys", "bitbayes.auditing", "bitbayes.openood", "bitbayes.plots")
late += ("matplotlib", "typer", "rich", "jinja2")
others = ("sklearn", "lightning", "transformers")
late += (*others, *(f"bitbayes.{name}" for name in others))
assert not [name for name in sys.modules if name.startswith(late)]
print(bb.toys.LeNet.__name__, bb.toys.digits.__name__)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.split() == ["LeNet", "digits"], result.stderr


def test_a_laplace_takes_no_packages_but_torch_and_safetensors():
    """Nor parts of torch that torch itself does without: they would take longer than all of bitbayes."""
    code = """
import sys
import torch
before = set(sys.modules)
from bitbayes import Laplace
new = set(sys.modules) - before
packages = {name.split(".")[0] for name in new} - sys.stdlib_module_names
print(sorted(packages), sorted(name for name in new if name.startswith("torch.")))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "['bitbayes', 'safetensors'] []"


def test_importing_bitbayes_alone_does_not_import_torch():
    code = "import sys; import bitbayes; print(bitbayes.__version__, 'torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split()[1] == "False"


def test_every_public_name_can_be_imported():
    import bitbayes

    optional = {"lightning", "openood", "sklearn", "transformers"}  # they need what not everybody has
    for name in set(bitbayes.__all__) - optional:
        assert getattr(bitbayes, name) is not None
    assert set(bitbayes.__all__) <= set(dir(bitbayes))
    with pytest.raises(AttributeError, match="no attribute 'Laplac'"):
        bitbayes.Laplac  # noqa: B018


def test_all_names_can_be_imported_without_what_not_everybody_has():
    code = """
import pydoc
import sys
for name in ("sklearn", "lightning", "transformers", "openood", "scipy"):
    sys.modules[name] = None
from bitbayes import *
import bitbayes as bb
assert "class Laplace" in pydoc.plain(pydoc.render_doc(bb))
try:
    bb.sklearn
except bb.errors.MissingPackageError:
    print(Laplace.__name__)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.split() == ["Laplace"], result.stderr


def test_the_picture_is_that_of_the_code(tmp_path):
    """By the description inside: another version of matplotlib draws the lines a little differently."""
    found = set(graph.imports())
    graph.draw(found, tmp_path / "now.svg")
    kept = (ROOT / "docs" / "architecture.svg").read_text()
    assert graph.described(found) in (tmp_path / "now.svg").read_text()
    assert graph.described(found) in kept, "make it again: python scripts/import_graph.py"


# The modules that everybody may use, with what is below them, beside the names in `bitbayes.__all__`.
PUBLIC = (
    "baselines",
    "errors",
    "likelihoods",
    "metrics",
    "outliers",
    "palette",
    "plots",
    "structures",
    "toys",
)


def test_paper_uses_only_the_public_face_of_the_library():
    import bitbayes

    found = {}
    for path in sorted((ROOT / "paper").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {
            name.split(".")[1] for _, name in graph.imported_modules(tree, for_types=True) if "." in name
        }
        inside = names - {*PUBLIC, *bitbayes.__all__}
        if inside:
            found[path.relative_to(ROOT).as_posix()] = inside
    assert found == {}


def test_the_library_does_not_import_paper():
    for path in graph.SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.split(".")[0] == "paper"], path

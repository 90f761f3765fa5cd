"""Do the tests notice? Small faults are put into the mathematics, one at a time, and its tests are run.

    python benchmarks/faults/mutants.py --count 400

The order of the faults follows from the seed and each fault's own line. So the first n are a fair sample, and
an edit of the sources leaves the others in their order. Each fault goes into a copy of the repository; tests
that fail or hang have noticed it: first those of the file and its folder, and if these pass, those in
tests/behaviour. Outcomes are kept in a file, one line for each fault, and the next run goes on from there
(`--again` repeats what was not noticed). Faults that change nothing that a test should see are named in
equivalent.txt, with the reason.
"""

import argparse
import ast
import copy
import gc
import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path("src/bitbayes")
EQUIVALENT = Path(__file__).with_name("equivalent.txt")
# Those of trained networks on real data take longest and see least.
SLOW = "not lenet and not embedded_digits and not half_a_percent"

# Tests across packages: pytest's arguments.
BEHAVIOUR = ("-m", "not slow", "tests/behaviour")

# Seconds after which a run hangs: several times what the slowest takes.
LIMIT = 150

# What is mutated: the mathematics, and what stands between a user's model and it.
MUTATED = (
    *(
        "closed_forms.py",
        "logits.py",
        "prior.py",
        "settings.py",
        "uncertainty.py",
        "predicting.py",
    ),
    *("likelihoods", "metrics", "model", "posteriors", "residual", "rays", "structures", "tuning"),
)

COMPARISONS = {
    ast.Lt: [ast.LtE, ast.Gt], ast.LtE: [ast.Lt, ast.GtE],
    ast.Gt: [ast.GtE, ast.Lt], ast.GtE: [ast.Gt, ast.LtE],
    ast.Eq: [ast.NotEq], ast.NotEq: [ast.Eq], ast.Is: [ast.IsNot], ast.IsNot: [ast.Is], ast.In: [ast.NotIn],
    ast.NotIn: [ast.In],
}  # fmt: skip
OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
NAMES = [
    ("min", "max"), ("amin", "amax"), ("minimum", "maximum"), ("argmin", "argmax"), ("sum", "mean"),
    ("any", "all"), ("clamp_min", "clamp_max"), ("float32", "float64"), ("double", "float"), ("log", "log1p"),
    ("sqrt", "square"), ("rsqrt", "reciprocal"), ("exp", "expm1"), ("triu", "tril"), ("floor", "ceil"),
]  # fmt: skip
# Arguments that are assertions, or of which a CPU has only one.
LEFT_ALONE = ("strict", "device")
SWAPS = {a: b for pair in NAMES for a, b in (pair, pair[::-1])} | {"abs": "neg", "to_float64": "Tensor.float"}


@dataclass(frozen=True)
class Mutant:
    """One fault: the file, the file's text with it, and a key that says where and what it is."""

    path: str
    text: str
    key: str


def faults(node: ast.AST) -> Iterator[ast.AST]:
    """What may stand in the place of a node."""

    def changed(**fields: object) -> ast.AST:
        other = copy.deepcopy(node)
        for name, value in fields.items():
            setattr(other, name, value)
        return other

    match node:
        case ast.Compare(ops=[first, *rest]):
            yield from (changed(ops=[other(), *rest]) for other in COMPARISONS[type(first)])
        case ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in OPERATORS:
            yield changed(op=OPERATORS[type(op)]())
        case ast.BoolOp(op=op):
            yield changed(op=ast.Or() if isinstance(op, ast.And) else ast.And())
        case ast.UnaryOp(operand=operand) if not isinstance(operand, ast.Constant):
            yield operand
        case ast.IfExp(test=test):
            yield changed(test=ast.UnaryOp(ast.Not(), test))
        case ast.Constant(value=bool() as value):
            yield changed(value=not value)
        case ast.Constant(value=int() as value):
            yield changed(value=value + 1)
        case ast.Constant(value=float() as value):
            yield changed(value=2 * value or 1.0)
        case ast.Name(id="min" | "max" | "any" | "all" | "to_float64" as name):
            yield changed(id=SWAPS[name])
        case ast.Attribute(value=ast.Name(id="math")):
            pass  # which has none of the others
        case ast.Attribute(attr=name) if name in SWAPS:
            yield changed(attr=SWAPS[name])
        case ast.Call(args=args, keywords=keywords):
            for each in keywords:
                if each.arg not in LEFT_ALONE:
                    yield changed(keywords=[other for other in keywords if other is not each])
            if len(args) > 1:
                yield changed(args=args[:-1])
        case ast.Return(value=value) if value is not None:
            yield changed(value=None)
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            yield ast.Pass()


def sites(tree: ast.AST, name: str = "") -> Iterator[tuple[str, ast.AST, ast.AST]]:
    """What may be changed: the function it is in, the node, and another; no types, messages or assertions."""
    for field, child in ast.iter_fields(tree):
        if field in ("annotation", "returns", "decorator_list", "bases"):
            continue
        for node in child if isinstance(child, list) else [child]:
            if not isinstance(node, ast.AST) or isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr):
                continue
            if isinstance(node, ast.keyword) and node.arg in LEFT_ALONE:
                continue
            value = getattr(node, "value", None)
            if not name and isinstance(node, ast.Assign) and isinstance(value, ast.BinOp | ast.Subscript):
                continue  # a type, A = B | C
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                yield from sites(node, f"{name}.{node.name}".strip("."))
                continue
            if isinstance(node, ast.If | ast.While):
                yield name, node.test, ast.UnaryOp(ast.Not(), node.test)
            yield from ((name, node, other) for other in faults(node))
            yield from sites(node, name)


def mutants_of(path: Path) -> Iterator[Mutant]:
    """All faults of one file."""
    source = (ROOT / path).read_bytes()
    starts = [0]  # of the lines; positions in a line count bytes
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    seen: Counter[str] = Counter()
    for name, node, other in sites(ast.parse(source)):
        text = ast.unparse(ast.fix_missing_locations(other))
        text = f"({text})" if isinstance(other, ast.expr) else text
        first, last = starts[node.lineno - 1], starts[node.end_lineno]
        end = starts[node.end_lineno - 1] + node.end_col_offset
        lines = source[first : first + node.col_offset] + text.encode() + source[end:last]
        old, new = (" ".join(part.decode().split()) for part in (source[first:last], lines))
        key = f"{path.relative_to(PACKAGE)} {name}: {old} → {new}"
        seen[key] += 1
        key += f" ({seen[key]})" if seen[key] > 1 else ""
        yield Mutant(str(path), (source[:first] + lines + source[last:]).decode(), key)


def drawn(count: int, seed: int) -> list[Mutant]:
    """The first faults in the order of the seed."""
    files = [ROOT / PACKAGE / name for name in MUTATED]
    paths = sorted({path for file in files for path in ([file] if file.suffix else file.rglob("*.py"))})
    every = [each for path in paths for each in mutants_of(path.relative_to(ROOT))]
    return sorted(every, key=lambda each: hashlib.sha256(f"{seed} {each.key}".encode()).digest())[:count]


def tests_of(path: str, tree: Path) -> list[str]:
    """The tests that answer for src/bitbayes/a/b.py: tests/a/test_b.py first, then the others in tests/a.

    Those of the copy `tree`, which stays as it is while others edit the repository.
    """
    part = Path(path).relative_to(PACKAGE)
    folder = Path("tests") / part.parent
    mirror = folder / f"test_{part.name}"
    found = [mirror] if (tree / mirror).exists() else []
    if len(part.parts) > 1:
        found += sorted(each.relative_to(tree) for each in (tree / folder).glob("test_*.py"))
    return list(dict.fromkeys(map(str, found)))


def group_of(path: str) -> str:
    """The files for which the same tests answer: those of its folder, or in the topmost the file alone."""
    folder = Path(path).parent
    return path if folder == PACKAGE else str(folder)


def run_tests(tree: Path, tests: Sequence[str]) -> str:
    """ "passed", "failed" or "hung": some tests, by pytest's arguments, in a copy of the repository.

    In a fork of this process, which has imported all that takes long.
    """
    child = os.fork()
    if child == 0:
        os.setsid()
        os.chdir(tree)
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1), os.dup2(silence, 2)
        os.environ |= {"PYTHONPATH": str(tree / "src"), "HYPOTHESIS_PROFILE": "faults"}
        sys.path.insert(0, str(tree / "src"))
        # Nobody reads the output, and what is left over goes with the process.
        options = ["-x", "-q", "--tb=no", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
        options += ["-p", "no:cacheprovider", "-p", "no:unraisableexception", "-k"]
        os._exit(int(pytest.main([*options, SLOW, *tests])))
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return "passed" if status == 0 else "failed"
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hung"


def work(mutants: list[Mutant], results: Path) -> None:
    """Run the tests for each of them, in a copy of the repository of its own."""

    def outcome(key: str, *stages: Sequence[str]) -> str:
        start, found = time.monotonic(), "passed"
        for tests in stages:
            if found == "passed":
                found = run_tests(tree, tests)
        line = {"key": key, "outcome": found, "seconds": round(time.monotonic() - start, 1)}
        with results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
        return found

    with tempfile.TemporaryDirectory() as folder:
        tree, original = Path(folder) / "copy", Path(folder) / "original"
        ignored = shutil.ignore_patterns(".*", "results", "__pycache__", "*.jsonl")
        shutil.copytree(ROOT, tree, ignore=ignored)
        known = outcomes(results)
        for number, mutant in enumerate(mutants):
            own = [mutant.path, *tests_of(mutant.path, tree)]
            for key, tests in ((group_of(mutant.path), own), (BEHAVIOUR[-1], BEHAVIOUR)):
                if known.get(key) != "passed":
                    known[key] = outcome(key, tests)
                    if known[key] != "passed":
                        raise SystemExit(f"the tests of {key} fail without any fault")
            path = tree / mutant.path
            shutil.copy2(path, original)
            path.write_text(mutant.text, encoding="utf-8")
            os.utime(path, (number, number))  # no compiled file is that of another fault
            outcome(mutant.key, own, BEHAVIOUR)
            shutil.copy2(original, path)


def equivalent() -> dict[str, str]:
    """Why each fault changes nothing: a line with its key, and below it, indented, the reason."""
    reasons: dict[str, str] = {}
    key = ""
    for line in EQUIVALENT.read_text(encoding="utf-8").splitlines() if EQUIVALENT.exists() else []:
        if line.startswith(" "):
            reasons[key] = f"{reasons.get(key, '')} {line.strip()}".strip()
        elif line and not line.startswith("#"):
            key = line
    return reasons


def outcomes(results: Path) -> dict[str, str]:
    """The last outcome of each fault in the file."""
    lines = results.read_text(encoding="utf-8").splitlines() if results.exists() else []
    return {each["key"]: each["outcome"] for each in map(json.loads, lines)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--results", type=Path, default=ROOT / "mutants.jsonl")
    parser.add_argument("--again", action="store_true", help="repeat those that nobody noticed")
    options = parser.parse_args()

    mutants = drawn(options.count, options.seed)
    known, reasons = outcomes(options.results), equivalent()
    finished = {key for key, outcome in known.items() if not (options.again and outcome == "passed")}
    rest = [each for each in mutants if each.key not in finished | reasons.keys()]
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=work, args=(rest[i :: options.processes], options.results))
        for i in range(options.processes)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()

    known = outcomes(options.results)
    keys = [each.key for each in mutants if each.key in known and each.key not in reasons]
    survivors = [key for key in keys if known[key] == "passed"]
    print(f"{len(keys) - len(survivors)} of {len(keys)} faults noticed; {len(mutants)} drawn,", end=" ")
    print(f"{sum(each.key in reasons for each in mutants)} of them change nothing. Not noticed:")
    print("\n".join(survivors))


if __name__ == "__main__":
    # Here and not in each run: they take longer than most tests.
    import gpytorch  # noqa: F401
    import pytest
    import scipy.stats  # noqa: F401
    import sklearn.metrics  # noqa: F401
    import torch
    import torchmetrics  # noqa: F401

    torch.set_num_threads(1)
    gc.freeze()  # a fork would otherwise look through all of it, again and again
    main()

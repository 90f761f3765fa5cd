"""How far a reader walks: the functions that one call goes through, their files, and the changes of file.

    python benchmarks/walk.py

Each call is traced on a small network (last layer, kron, two batches). Functions are taken in the order in
which they are first entered. A change of file is counted where the next new function is in another file than
the one before it. The last row is about a loader that fails: how many of the library's own frames its
traceback shows.
"""

import argparse
import sys
import traceback
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bitbayes as bb

SOURCE = str(Path(bb.__file__).parent)
# Parts of a function that the language makes a function of its own.
PARTS = ("<lambda>", "<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>", "<module>")


def walk(call: Callable[[], object]) -> list[CodeType]:
    """The library's functions that a call enters, each once, in the order of their first entry."""
    found: dict[CodeType, None] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(SOURCE) and code.co_name not in PARTS:
            found.setdefault(code)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return list(found)


def changes(codes: list[CodeType]) -> int:
    """How often the next new function is in another file."""
    return sum(a.co_filename != b.co_filename for a, b in pairwise(codes))


class FailingLoader:
    """A loader whose second batch cannot be read."""

    def __iter__(self):
        yield torch.randn(20, 4), torch.arange(20) % 3
        raise OSError("this file cannot be read")


def frames_above_a_failure(bayes: bb.Laplace) -> int:
    """The frames of the library in the traceback of a loader that fails."""
    try:
        bayes.fit(FailingLoader())
    except OSError as error:
        return sum(each.filename.startswith(SOURCE) for each in traceback.extract_tb(error.__traceback__))
    raise AssertionError("the loader did not fail")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="print the functions of each walk, too")
    options = parser.parse_args()
    torch.manual_seed(0)
    x = torch.randn(80, 4)
    loader = DataLoader(TensorDataset(x, torch.arange(80) % 3), batch_size=40)
    model = nn.Sequential(nn.Linear(4, 20), nn.ReLU(), nn.Linear(20, 3))
    bayes = bb.Laplace(model, structure="kron")
    calls = {
        "fit": lambda: bayes.fit(loader),
        "tune": lambda: bayes.tune(loader),
        "predict_proba": lambda: bayes.predict_proba(x),
        "certify": lambda: bayes.certify(x),
    }
    print(f"{'call':15}{'functions':>10}{'files':>7}{'changes of file':>17}")
    for name, call in calls.items():
        codes = walk(call)
        print(f"{name:15}{len(codes):10}{len({each.co_filename for each in codes}):7}{changes(codes):17}")
        for each in codes if options.list else ():
            print(f"    {each.co_filename.removeprefix(SOURCE)[1:]}: {each.co_qualname}")
    print(f"frames above a failing loader: {frames_above_a_failure(bb.Laplace(model))}")


if __name__ == "__main__":
    main()

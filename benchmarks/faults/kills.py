"""Is a file ever half written when the process that saves it is killed?

    python benchmarks/faults/kills.py --count 300 --seed 0

A process saves two posteriors in turn under one name and is killed (SIGKILL) at a random moment. After each
kill the file must be one of the two, whole, and after the next save nothing else may lie in the folder. The
exit status is 1 if it is not so.
"""

import argparse
import multiprocessing
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch
from torch import nn

import bitbayes as bb
from bitbayes.progress import track

# Long enough for a few saves, so that the kill may hit any part of one.
LONGEST_LIFE = 0.05


def save_in_turn(old: bb.Laplace, new: bb.Laplace, path: Path) -> None:
    while True:
        new.save(path)
        old.save(path)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=300, help="the number of kills")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    chance = random.Random(arguments.seed)
    model = nn.Linear(40, 10)
    x, y = torch.randn(100, 40), torch.arange(100) % 10
    old, new = (
        bb.Laplace(model, structure="full", prior_variance=value).fit([(x, y)]) for value in (1.0, 5.0)
    )
    found: Counter[str] = Counter(
        dict.fromkeys(["old", "new", "damaged", "with a stray file", "strays left"], 0)
    )
    fork = multiprocessing.get_context("fork")  # a new process in milliseconds
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bayes.safetensors"
        old.save(path)
        whole = {path.read_bytes(): "old"}
        new.save(path)
        whole[path.read_bytes()] = "new"
        for _ in track(range(arguments.count), "kills", True):
            writer = fork.Process(target=save_in_turn, args=(old, new, path))
            writer.start()
            time.sleep(chance.uniform(0, LONGEST_LIFE))
            writer.kill()
            writer.join()
            found[whole.get(path.read_bytes(), "damaged")] += 1
            bb.Laplace.load(path, model)
            found["with a stray file"] += len(list(path.parent.iterdir())) > 1
            chance.choice((old, new)).save(path)
            found["strays left"] += [each.name for each in path.parent.iterdir()] != [path.name]
    print(f"a file of {len(next(iter(whole))):,} bytes, {arguments.count:,} kills")
    for outcome, times in found.items():
        print(f"{outcome:>18}: {times:,}")
    return 1 if found["damaged"] or found["strays left"] else 0


if __name__ == "__main__":
    sys.exit(main())

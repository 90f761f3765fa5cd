"""Does a fit that is killed and resumed, again and again, give exactly what an uninterrupted one gives?

    python benchmarks/faults/killed_fits.py --count 100 --seed 0

A process fits with a checkpoint and is killed (SIGKILL) at a random moment; the next one goes on. Each life
is shorter than the whole fit, so each fit takes several of them. When one is complete, its sums must be those
of the uninterrupted fit to the last bit, and its folder must be empty. The exit status is 1 if it is not so.
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
from torch.utils.data import DataLoader, TensorDataset

import bitbayes as bb
from bitbayes.fitting import last_layer
from bitbayes.io import checkpoint

# The longest life of a process, as a part of the time that the whole fit takes.
LIFE = 0.4
CASES = (
    {},
    {"structure": "full"},
    {"structure": "lowrank"},
    {"layers": "all", "structure": "diag", "curvature": bb.Fisher(draws=2, seed=1)},
)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100, help="the number of kills")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    # Small parts, each of them kept: a kill may hit any step of the sums or of the file.
    last_layer.FIT_BYTES, checkpoint.SECONDS, checkpoint.PAUSE = 2**12, 0.0, 0
    chance, found = random.Random(arguments.seed), Counter[str]()
    for case in range(len(CASES)):
        share = (arguments.count + case) // len(CASES)
        found += kill(case, share, chance)
    print(f"{found['kills']:,} kills, after {found['resumed']:,} of them there were sums on the disk")
    print(f"{found['fits']:,} fits were completed, {found['different']:,} of them different")
    return 1 if found["different"] or not found["resumed"] else 0


def kill(case: int, count: int, chance: random.Random) -> Counter[str]:
    """Kill fits of this case so many times, and look at each that is completed."""
    found: Counter[str] = Counter()
    expected = sums(fit(case, None))
    fork = multiprocessing.get_context("fork")  # a new process in milliseconds
    with tempfile.TemporaryDirectory() as folder:
        kept, result = Path(folder) / "checkpoint", Path(folder) / "result"

        def start() -> multiprocessing.process.BaseProcess:
            process = fork.Process(target=fit_and_save, args=(case, kept, result))
            process.start()
            return process

        def look() -> None:
            found["fits"] += 1
            again = torch.load(result)
            same = all(torch.equal(again[name], each) for name, each in expected.items())
            found["different"] += not same or any(kept.iterdir())
            result.unlink()

        begun = time.monotonic()
        start().join()
        longest = (time.monotonic() - begun) * LIFE
        look()
        while found["kills"] < count:
            process = start()
            time.sleep(chance.uniform(0, longest))
            found["kills"] += process.is_alive()
            process.kill()
            process.join()
            found["resumed"] += kept.exists() and any(kept.glob("*.safetensors"))
            if result.exists():
                look()
        start().join()  # the last one may end
        look()
    return found


def fit(case: int, folder: Path | None) -> bb.Laplace:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 5))
    data = TensorDataset(torch.randn(3000, 12), torch.arange(3000) % 5)
    order = torch.Generator().manual_seed(2)
    loader = DataLoader(data, batch_size=10, shuffle=True, generator=order)
    return bb.Laplace(model, **CASES[case]).fit(loader, checkpoint=folder)


def fit_and_save(case: int, folder: Path, result: Path) -> None:
    part = result.with_suffix(".part")
    torch.save(sums(fit(case, folder)), part)
    part.rename(result)


def sums(bayes: bb.Laplace) -> dict[str, torch.Tensor]:
    fitted = bayes.posterior.fitted
    found = {
        f"{name}/{field}": tensor
        for name, curvature in fitted.curvature.items()
        for field, tensor in curvature.tensors().items()
    }
    for name, sums in fitted.level_sums.items():
        found |= {f"level/{name}/{field}": tensor for field, tensor in sums.tensors().items()}
    return found | {"loss": torch.tensor(fitted.loss), "count": torch.tensor(fitted.count)}


if __name__ == "__main__":
    sys.exit(main())

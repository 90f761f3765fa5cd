"""Fits by processes over NCCL, one for each GPU, beside the same fit without a process group.

    python benchmarks/nccl.py                               # as many processes as there are GPUs
    python benchmarks/nccl.py --backend gloo --processes 2  # the same without a GPU

One process must give the same numbers to the last bit, and several to 1e-9. A group of one has nothing to
send, so here it is told that it is not alone: all its sums go through NCCL as those of many would.
"""

import argparse
import json
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import Tensor, nn

import bitbayes as bb
from bitbayes.processes import Processes

WIDTH, POINTS, BATCH = 64, 2000, 128
CASES: dict[str, dict[str, Any]] = {
    "kron, 10 classes": {"classes": 10, "residual": False},
    "kron with a residual, 10 classes": {"classes": 10, "residual": True},
    "full, one logit": {"classes": 1},
    "diag, 10 classes": {"classes": 10, "structure": "diag"},
    "lowrank, 200 classes": {"classes": 200, "structure": "lowrank"},
    "all layers, 10 classes": {"classes": 10, "layers": "all"},
}


def learned(rank: int, size: int, device: str, classes: int, **options: Any) -> dict[str, Tensor]:
    """What a fit, an update and a tuning of this process's share give, and some probabilities."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, WIDTH), nn.ReLU(), nn.Linear(WIDTH, classes)).double().to(device)
    x = torch.randn(POINTS, 8, dtype=torch.float64)
    labels = torch.randint(0, max(2, classes), (POINTS,))

    def share(start: int, stop: int) -> list[tuple[Tensor, Tensor]]:
        own = range(start + rank, stop, size)
        return [(x[own[i : i + BATCH]], labels[own[i : i + BATCH]]) for i in range(0, len(own), BATCH)]

    bayes = bb.Laplace(model, **options)
    bayes.fit(share(0, 1000)).update(share(1000, 1500)).tune(share(1500, 2000))
    fitted = bayes.posterior.fitted
    found = {
        f"{layer}/{name}": tensor.cpu()
        for layer, curvature in fitted.curvature.items()
        for name, tensor in curvature.tensors().items()
    }
    numbers = [bayes.prior_variance, bayes.temperature, bayes.near_variance, bayes.beyond_variance]
    found["numbers"] = torch.tensor([fitted.count, fitted.loss, *numbers], dtype=torch.float64)
    found["probabilities"] = bayes.predict_proba(3 * x[:100]).cpu()
    return found


def work(rank: int, size: int, backend: str, folder: str) -> None:
    """One process: each case with the group, kept in a file."""
    warnings.simplefilter("ignore")
    device = f"cuda:{rank}" if backend == "nccl" else "cpu"
    if backend == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank, world_size=size)
    Processes.alone = property(lambda self: self.group is None)  # type: ignore[assignment, method-assign]
    found = {name: learned(rank, size, device, **case) for name, case in CASES.items()}
    torch.save(found, Path(folder) / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def difference(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """The largest difference, relative to the largest number of each tensor; 0 is equal to the last bit."""
    if all(torch.equal(each, theirs[name]) for name, each in ours.items()):
        return 0.0
    gaps = [(each - theirs[name]).abs().max() / theirs[name].abs().max() for name, each in ours.items()]
    return float(torch.stack(gaps).nan_to_num(0.0).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--backend", default="nccl", choices=("nccl", "gloo"))
    parser.add_argument("--processes", type=int, help="as many as there are GPUs, or 1")
    parser.add_argument("--output", type=Path, help="a JSON file for the differences")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    size = options.processes or max(1, torch.cuda.device_count())
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(work, (size, options.backend, folder), nprocs=size)
        ranks = [torch.load(Path(folder) / f"{rank}.pt") for rank in range(size)]
    device = "cuda" if options.backend == "nccl" else "cpu"
    found, failed = {}, False
    for name, case in CASES.items():
        alone = learned(0, 1, device, **case)
        found[name] = {
            "to no group": difference(ranks[0][name], alone),
            "between processes": max(difference(each[name], ranks[0][name]) for each in ranks),
        }
        # A sketch depends on the order of its points, so several processes need not agree with one.
        limit = 0.0 if size == 1 else 1e-9 if "lowrank" not in name else 1.0
        good = found[name]["to no group"] <= limit and found[name]["between processes"] == 0
        failed |= not good
        print(f"{name:<34} {found[name]} {'good' if good else 'NOT GOOD'}", flush=True)
    if options.output:
        about = {"backend": options.backend, "processes": size, "torch": torch.__version__}
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(
            json.dumps(about | {"largest relative differences": found}, indent=1) + "\n"
        )
    if failed:
        raise SystemExit("some differences are too large")


if __name__ == "__main__":
    main()

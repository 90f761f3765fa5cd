"""All layers of a ResNet-18 in seconds: fit on so many images, predict so many, as the paper's table 3.

    python benchmarks/seconds.py --device cuda [--train 50000] [--test 10000] [--output results/resnet18]

Random images of 32 × 32 pixels, 10 classes, batches of 128: time does not depend on what they show. On a GPU
everything is timed twice, with products of matrices in float32 and in TF32
(`torch.set_float32_matmul_precision`). With `--output` the table is kept there, in Markdown and JSON.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch

import bitbayes as bb
from timing import Batches, peak_megabytes, plain, seconds

sys.path.insert(0, str(Path(__file__).parents[1]))  # the checkout, for `paper`
from paper.resnet import resnet18

# Seconds in the paper (CIFAR-10, 50,000 and 10,000 images): one drawn label a point, 20 samples.
PAPER = {
    ("diag", "fit, Fisher"): 23,
    ("kron", "fit, Fisher"): 78,
    ("diag", "predict, 20 networks"): 100,
    ("kron", "predict, 20 networks"): 151,
}
JOBS = ("fit, Fisher", "fit, exact", "decomposition, once", "predict, 20 networks", "predict, linearised")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--train", type=int, default=50_000)
    parser.add_argument("--test", type=int, default=10_000)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    model = resnet18().to(options.device).eval()
    images = torch.rand(options.train, 3, 32, 32, device=options.device)
    train = Batches(images, torch.randint(0, 10, (options.train,), device=options.device))
    test = Batches(images[: options.test])
    plain(model, test)
    times: dict[str, float] = {}

    def time(name: str, job: Callable[[], object]) -> None:
        times[name] = seconds(job)
        print(f"{name:<50} {times[name]:8.2f} s", flush=True)

    time("plain pass, training images", lambda: plain(model, train))
    time("plain pass, test images", lambda: plain(model, test))
    for precision in ("highest", "high") if options.device == "cuda" else ("highest",):
        torch.set_float32_matmul_precision(precision)
        for structure in ("diag", "kron"):
            measure(
                model,
                train,
                test,
                structure,
                lambda job, run, s=structure, p=precision: time(f"{p} {s}: {job}", run),
            )
    memory = {"megabytes": round(peak_megabytes())}
    if options.device == "cuda":
        memory["megabytes on the device"] = torch.cuda.max_memory_allocated() // 2**20
    print(memory)
    if options.output is not None:
        keep(options, times, memory)


def measure(
    model: torch.nn.Module,
    train: Batches,
    test: Batches,
    structure: str,
    time: Callable[[str, Callable[[], object]], None],
) -> None:
    """Each job of JOBS once, on a GPU after a warm-up on two batches."""
    laplace = {
        curvature: bb.Laplace(
            model, layers="all", structure=structure, curvature=curvature, prior_variance=1e-4
        )
        for curvature in ("fisher", "exact")
    }
    few = Batches(train.images[:256], train.labels[:256])
    for each in laplace.values() if train.images.is_cuda else ():
        each.fit(few).predict_proba(few.images)
    exact = laplace["exact"]
    jobs: list[Callable[[], object]] = [
        lambda: laplace["fisher"].fit(train),
        lambda: exact.fit(train),
        lambda: exact.sample(1),
        lambda: exact.predict_proba(test, method="sampled_networks"),
        lambda: exact.predict_proba(test),
    ]
    for name, job in zip(JOBS, jobs, strict=True):
        time(name, job)


def keep(options: argparse.Namespace, times: dict[str, float], memory: dict[str, int]) -> None:
    """The table, beside the paper's seconds."""
    device = torch.cuda.get_device_name() if options.device == "cuda" else options.device
    command = f"python benchmarks/seconds.py --device {options.device} --train {options.train}"
    command += f" --test {options.test} --output {options.output}"
    about = {
        "command": command,
        "device": device,
        "torch": torch.__version__,
        "bitbayes": bb.__version__,
        **memory,
    }
    lines = [
        "# All layers of a ResNet-18, in seconds",
        "",
        f"    {command}",
        "",
        f"{device}, torch {torch.__version__}; random images, {options.train:,} to fit and {options.test:,} "
        "to predict; float32, beside it with products of matrices in TF32. A plain forward pass took "
        f"{times['plain pass, training images']:.2f} s and {times['plain pass, test images']:.2f} s. "
        + ", ".join(f"{value:,} {name}" for name, value in memory.items())
        + " at most. The paper's column is its table 3, on the GPU of its time.",
        "",
        "| structure | job | seconds | with TF32 | paper |",
        "|---|---|--:|--:|--:|",
    ]
    for structure in ("diag", "kron"):
        for job in JOBS:
            found = [times.get(f"{precision} {structure}: {job}") for precision in ("highest", "high")]
            shown = ["" if each is None else f"{each:.1f}" for each in found]
            lines.append(f"| {structure} | {job} | {' | '.join(shown)} | {PAPER.get((structure, job), '')} |")
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "times.json").write_text(json.dumps({**about, "seconds": times}, indent=2) + "\n")
    (options.output / "README.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

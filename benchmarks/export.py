"""What the exported graph costs in onnxruntime, beside the plain network exported in the same way.

    python benchmarks/export.py

The embedded digits' LeNet, and a small network with 1,000 classes. Medians of twenty runs on two threads,
alternating. Needs the extra `onnx`, and onnxruntime.
"""

import statistics
import tempfile
import time
from pathlib import Path

import onnxruntime
import torch
from torch import Tensor, nn

import bitbayes as bb
from bitbayes.io.export import Graph, write

REPEATS = 20


def session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    return onnxruntime.InferenceSession(path, options)


def measure(name: str, bayes: bb.Laplace, x: Tensor, folder: Path) -> None:
    plain, honest = folder / "plain.onnx", folder / "bayes.onnx"
    write(Graph(bayes.model), plain, x[:2])
    begun = time.perf_counter()
    bayes.export(honest, x[:2])
    seconds = time.perf_counter() - begun
    runs = [session(path) for path in (plain, honest)]
    times: list[list[float]] = [[], []]
    for _ in range(REPEATS):
        for run, found in zip(runs, times, strict=True):
            begun = time.perf_counter()
            run.run(None, {"x": x.numpy()})
            found.append(time.perf_counter() - begun)
    before, after = (statistics.median(found) for found in times)
    megabytes = [path.stat().st_size / 1e6 for path in (plain, honest)]
    print(
        f"{name:34} {1e3 * before:8.2f} ms plain, {after / before:6.2f} × with the posterior; exported in "
        f"{seconds:.0f} s; {megabytes[0]:.1f} MB plain, {megabytes[1]:.1f} MB"
    )


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(2)
    digits = torch.rand(100, 1, 28, 28)
    features = torch.randn(2000, 512).relu()
    with tempfile.TemporaryDirectory() as folder:
        lenet = bb.toys.digits_lenet()
        for name, options in {
            "pairwise": {},
            "probit": {"predictive": "probit"},
            "residual": {"residual": True},
        }.items():
            bayes = bb.Laplace(lenet, **options).fit([(digits, torch.arange(100) % 10)])
            measure(f"LeNet, 100 images, {name}", bayes, digits, Path(folder))
        wide = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1000))
        for method in ("probit", "pairwise"):
            bayes = bb.Laplace(wide, predictive=method).fit([(features, torch.arange(2000) % 1000)])
            measure(f"1,000 classes, 8 rows, {method}", bayes, features[:8], Path(folder))


if __name__ == "__main__":
    main()

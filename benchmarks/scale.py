"""Scale: time and memory of fit, tune and predict for 10 to 100,000 classes, and of fit for more points.

    python benchmarks/scale.py [--device cuda] [--classes 10 100 1000 10000 100000] [--points 1024]
    python benchmarks/scale.py --against-points [--classes 1000]     # fit's time against N, and the slope
    python benchmarks/scale.py --products --points 200000 --device cuda   # fit beside its matrix products
    python benchmarks/scale.py --accuracy         # "lowrank" beside "kron" where both are affordable
    … --output results/scale/NAME.json            # keeps the numbers, with command and device

A head of 2,048 features on made features. "Table" is the first prediction, which decomposes what was fitted.
The memory is what is held at most above the model's own. Each number of classes has a process of its own.
"""

import argparse
import json
import math
import platform
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import bitbayes as bb
from timing import peak_megabytes, seconds

WIDTH = 2048
BATCH = 256


class MadeFeatures:
    """Batches of features and labels, made when they are asked for: no data set is in memory."""

    def __init__(self, points: int, classes: int, device: str) -> None:
        self.points, self.classes, self.device = points, classes, device

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator(self.device).manual_seed(0)
        for start in range(0, self.points, BATCH):
            n = min(BATCH, self.points - start)
            features = torch.randn(n, WIDTH, generator=generator, device=self.device).relu_()
            yield features, torch.randint(0, self.classes, (n,), generator=generator, device=self.device)

    def __len__(self) -> int:
        return -(-self.points // BATCH)


def made_head(classes: int, device: str, gain: float = 4.0) -> nn.Linear:
    """A head whose logits have a deviation of about 0.7 × gain."""
    torch.manual_seed(0)
    with torch.device(device):
        head = nn.Linear(WIDTH, classes)
    nn.init.normal_(head.weight, std=gain / math.sqrt(WIDTH))
    return head.eval()


class Memory:
    """The most megabytes that were held above those of the beginning."""

    def __init__(self, device: str) -> None:
        self.cuda = device.startswith("cuda")
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
        self.floor = self._peak()

    def _peak(self) -> float:
        return torch.cuda.max_memory_allocated() / 2**20 if self.cuda else peak_megabytes()

    def above(self) -> float:
        return self._peak() - self.floor


@torch.no_grad()
def measure(classes: int, points: int, validation: int, structure: str, device: str) -> dict[str, Any]:
    """Seconds and megabytes of each step for one head."""
    head = made_head(classes, device)
    features, _ = next(iter(MadeFeatures(validation, classes, device)))
    head(features)  # what a plain pass needs is the floor
    plain = seconds(lambda: head(features))
    memory = Memory(device)
    bayes = bb.Laplace(head, structure=structure, residual=False)
    found: dict[str, Any] = {"classes": classes, "points": points, "plain": plain}
    train, val = MadeFeatures(points, classes, device), MadeFeatures(validation, classes, device)
    for name, job in (
        ("fit", lambda: bayes.fit(train)),
        ("table", lambda: bayes.predict_proba(features[:1])),
        ("predict", lambda: bayes.predict_proba(features)),
        ("score", lambda: bayes.score(features)),
        ("tune", lambda: bayes.tune(val)),
    ):
        begun = time.process_time()
        found[name] = seconds(job)
        found[f"{name} CPU"] = (
            time.process_time() - begun
        )  # of all threads; of use where others share the machine
        found[f"{name} MB"] = memory.above()
    (curvature,) = bayes._fitted_posterior().fitted.curvature.values()
    found["structure"] = curvature.structure
    found["error"] = getattr(curvature, "relative_error", 0.0)
    return found


def processor_seconds(function: Any) -> float:
    begun = time.process_time()
    function()
    return time.process_time() - begun


def against_points(classes: int, points: list[int], device: str) -> dict[str, Any]:
    """The time of fit for more and more points, and the slope of its logarithm; theory's is 1."""
    head = made_head(classes, device)
    bayes = bb.Laplace(head, residual=False).fit(MadeFeatures(BATCH, classes, device))
    # On a CPU its own time, which does not depend on who else is there.
    clock = seconds if device.startswith("cuda") else processor_seconds
    times = [clock(lambda n=n: bayes.fit(MadeFeatures(n, classes, device))) for n in points]
    x, y = (torch.tensor(each, dtype=torch.float64).log() for each in (points, times))
    x = x - x.mean()
    slope = float((x * (y - y.mean())).sum() / x.square().sum())
    return {"classes": classes, "points": points, "fit": times, "slope": slope, "theory": 1.0}


@torch.no_grad()
def products(classes: int, points: int, device: str) -> dict[str, Any]:
    """The time of fit beside that of its three matrix products alone, in the dtypes that it uses."""
    head = made_head(classes, device)
    data = MadeFeatures(points, classes, device)
    bayes = bb.Laplace(head, residual=False).fit(MadeFeatures(BATCH, classes, device))
    making = seconds(lambda: [None for _ in data])
    fit = seconds(lambda: bayes.fit(data)) - making
    rows = 4096  # as many as are put together in a fit
    features = torch.randn(rows, WIDTH, device=device)
    wide, probabilities = features.double(), torch.rand(rows, classes, device=device).double()
    steps = max(1, points // rows)

    def timed(job: Any) -> float:
        job()
        return seconds(lambda: [job() for _ in range(steps)]) * points / (steps * rows)

    parts = {
        "n·d·k": timed(lambda: head(features)),
        "n·d²": timed(lambda: wide.T @ wide),
        "n·k²": timed(lambda: probabilities.T @ probabilities),
    }
    return {"classes": classes, "points": points, "fit": fit, **parts, "ratio": fit / sum(parts.values())}


@torch.no_grad()
def accuracy(classes: int, points: int, gain: float, device: str) -> dict[str, Any]:
    """The largest relative difference of "lowrank" to "kron" in the variances of the logits."""
    head = made_head(classes, device, gain).double()
    data = [(features.double(), labels) for features, labels in MadeFeatures(points, classes, device)]
    pair = [bb.Laplace(head, structure=name, residual=False).fit(data) for name in ("lowrank", "kron")]
    (curvature,) = pair[0]._fitted_posterior().fitted.curvature.values()
    found: dict[str, Any] = {"classes": classes, "points": points, "gain": gain}
    found["confidence"] = float(head(data[0][0]).softmax(1).amax(1).mean())
    found["error"] = curvature.relative_error
    for variance in (1e-3, 1e-1, 1e1, 1e5):
        ours, kron = (replace_prior(bayes, variance).logits(data[0][0][:64]) for bayes in pair)
        one = (ours.scaled_centred()[1] / kron.scaled_centred()[1] - 1).abs().amax()
        mean = (ours.scaled_mean_pair_variance() / kron.scaled_mean_pair_variance() - 1).abs().amax()
        found[f"each logit, {variance:g}"], found[f"mean, {variance:g}"] = float(one), float(mean)
    return found


def replace_prior(bayes: bb.Laplace, variance: float) -> bb.Laplace:
    bayes.prior_variance = variance
    return bayes


def show(row: dict[str, Any]) -> None:
    cells = (
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in row.items()
    )
    print("  ".join(cells), flush=True)


def device_name(device: str) -> str:
    if device.startswith("cuda"):
        return torch.cuda.get_device_name()
    return f"{platform.machine()}, {torch.get_num_threads()} threads"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--classes", type=int, nargs="+", default=[10, 100, 1000, 10_000, 100_000])
    parser.add_argument("--points", type=int, default=1024, help="to fit")
    parser.add_argument("--validation", type=int, default=128, help="points to tune on and to predict")
    parser.add_argument("--structure", default="auto")
    parser.add_argument(
        "--against-points", action="store_true", help="fit's time against the number of points"
    )
    parser.add_argument(
        "--products", action="store_true", help="fit's time beside that of its matrix products"
    )
    parser.add_argument("--accuracy", action="store_true", help="'lowrank' beside 'kron'")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, help="a JSON file for the numbers")
    parser.add_argument("--alone", action="store_true", help="one number of classes, as one line of JSON")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    sizes = options.points, options.validation, options.structure, options.device
    if options.alone:
        print(json.dumps(measure(options.classes[0], *sizes)))
        return
    begun, rows = time.strftime("%Y-%m-%d"), []
    if options.against_points:
        points = [options.points * 2**i for i in range(5)]
        rows = [against_points(k, points, options.device) for k in options.classes]
    elif options.products:
        rows = [products(k, options.points, options.device) for k in options.classes]
    elif options.accuracy:
        gains = (0.5, 2.0, 4.0, 8.0)
        rows = [accuracy(k, options.points, gain, options.device) for k in options.classes for gain in gains]
    for k in options.classes if not rows else []:
        words = [sys.executable, __file__, "--alone", "--classes", str(k), "--points", str(options.points)]
        words += ["--validation", str(options.validation), "--structure", options.structure]
        words += ["--threads", str(options.threads)]
        made = subprocess.run(
            [*words, "--device", options.device], stdout=subprocess.PIPE, text=True, check=False
        )
        failed = {"classes": k, "failed": f"exit status {made.returncode}"}
        rows.append(failed if made.returncode else json.loads(made.stdout.splitlines()[-1]))
        show(rows[-1])
    for row in rows if options.against_points or options.products or options.accuracy else []:
        show(row)
    if options.output:
        command = " ".join(["python", "benchmarks/scale.py", *sys.argv[1:]])
        options.output.parent.mkdir(parents=True, exist_ok=True)
        found = {"command": command, "device": device_name(options.device), "date": begun, "rows": rows}
        options.output.write_text(json.dumps(found | {"torch": torch.__version__}, indent=1) + "\n")


if __name__ == "__main__":
    main()

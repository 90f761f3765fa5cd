"""Scale: time and memory of fit, tune and predict for 10 to 100,000 classes, and of fit for more points.

    python benchmarks/scale.py [--device cuda] [--classes 10 100 1000 10000 100000] [--points 1024]
    python benchmarks/scale.py --against-points [--classes 1000]     # fit's time against N, and the slope
    python benchmarks/scale.py --processes [--points 4096]           # fit by one process and by two
    python benchmarks/scale.py --products --points 200000 --device cuda   # fit beside its matrix products
    python benchmarks/scale.py --kernels --points 200000 --device cuda    # what a fit spends its time on
    python benchmarks/scale.py --accuracy         # "lowrank" beside "kron" where both are affordable
    … --output results/scale/NAME.json            # keeps the numbers, with command and device

A head of 2,048 features on made features. "Table" is the first prediction, which decomposes what was fitted.
The memory is what is held at most above the model's own. On a CPU each number of classes has a process of its
own. The numbers are printed and kept as they come.
"""

import argparse
import json
import math
import multiprocessing
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import bitbayes as bb
from timing import Batches, peak_megabytes, seconds

WIDTH = 2048
BATCH = 256
# Batches of features for `--products`: the smaller they are, the more Python there is for each point.
BATCHES = (256, 1024, 4096, 16384)
REPEATS = 3


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
        # Of all threads; of use where others share the machine.
        found[f"{name} CPU"] = time.process_time() - begun
        found[f"{name} MB"] = memory.above()
    (curvature,) = bayes.posterior.fitted.curvature.values()
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


def median_seconds(job: Callable[[], object]) -> float:
    """After one call that does not count: it allocates memory, and a GPU looks for its fastest kernels."""
    job()
    return statistics.median(seconds(job) for _ in range(REPEATS))


@torch.no_grad()
def products(classes: int, points: int, device: str) -> Iterator[dict[str, Any]]:
    """The time of fit beside that of its three matrix products alone, in the dtypes that it uses.

    All features are on the device before. "Plain" is the head alone over the same batches.
    """
    head = made_head(classes, device)
    generator = torch.Generator(device).manual_seed(0)
    features = torch.randn(points, WIDTH, generator=generator, device=device).relu_()
    labels = torch.randint(0, classes, (points,), generator=generator, device=device)
    parts = product_times(head, features)
    yield {"classes": classes, "points": points, **parts}
    needed = sum(parts[name] for name in ("n·d·k", "n·d²", "n·k²"))
    for batch in BATCHES:
        data = Batches(features, labels, batch)
        bayes = bb.Laplace(head, residual=False)
        row: dict[str, Any] = {"classes": classes, "points": points, "batch": batch}
        row["plain"] = median_seconds(lambda data=data: [head(x) for x, _ in data])
        row["fit"] = median_seconds(lambda data=data, bayes=bayes: bayes.fit(data))
        yield row | {"products": needed, "ratio": row["fit"] / needed}


def product_times(head: nn.Linear, features: Tensor) -> dict[str, float]:
    """Seconds of each product over all points, as many rows at once as are put together in a fit.

    Beside them other ways to make n·d²: with a column for the bias, with columns up to a multiple of 8, and
    without the half that is the other's mirror image.
    """
    rows = min(len(features), 16384 if features.is_cuda else 4096)
    some = features[:rows]
    wide, probabilities = some.double(), head(some).double().softmax(1)
    odd, aligned = (nn.functional.pad(wide, (0, more)) for more in (1, 8))

    def half(columns: int) -> list[Tensor]:
        return [wide[:, i : i + columns].T @ wide[:, i:] for i in range(0, WIDTH, columns)]

    jobs: dict[str, Callable[[], object]] = {
        "n·d·k": lambda: head(some),
        "n·d²": lambda: wide.T @ wide,
        "n·k²": lambda: probabilities.T @ probabilities,
        f"n·d², {WIDTH + 1} columns": lambda: odd.T @ odd,
        f"n·d², {WIDTH + 8} columns": lambda: aligned.T @ aligned,
        "n·d², half of it by 1024": lambda: half(1024),
        "n·d², half of it by 512": lambda: half(512),
    }
    steps = max(1, len(features) // rows)
    scale = len(features) / (steps * rows)
    return {
        name: scale * median_seconds(lambda job=job: [job() for _ in range(steps)])
        for name, job in jobs.items()
    }


def kernels(classes: int, points: int, device: str) -> Iterator[dict[str, Any]]:
    """What one fit spends its time on, the largest parts first."""
    head = made_head(classes, device)
    features = torch.randn(points, WIDTH, device=device).relu_()
    data = Batches(features, torch.zeros(points, dtype=torch.long, device=device), BATCHES[-1])
    bayes = bb.Laplace(head, residual=False).fit(data)
    activities = [torch.profiler.ProfilerActivity.CPU]
    activities += [torch.profiler.ProfilerActivity.CUDA] if device.startswith("cuda") else []
    with torch.profiler.profile(activities=activities) as profile:
        seconds(lambda: bayes.fit(data))
    name = "self_device_time_total" if device.startswith("cuda") else "self_cpu_time_total"
    found = sorted(
        ((getattr(each, name), each.count, each.key) for each in profile.key_averages()), reverse=True
    )
    for microseconds, count, key in found[:20]:
        yield {"seconds": microseconds / 1e6, "calls": count, "kernel": key[:80]}


def by_processes(classes: int, points: int, counts: tuple[int, ...] = (1, 2)) -> Iterator[dict[str, Any]]:
    """The time of a fit by one process, and by several with a share each; one thread each, over Gloo."""
    context = multiprocessing.get_context("spawn")
    for size in counts:
        with tempfile.TemporaryDirectory() as folder:
            answers = context.Queue()
            arguments = (size, f"file://{folder}/store", classes, points, answers)
            workers = [context.Process(target=fit_share, args=(rank, *arguments)) for rank in range(size)]
            for worker in workers:
                worker.start()
            times = [answers.get(timeout=600) for _ in workers]
            for worker in workers:
                worker.join()
        clock, processor = (max(each) for each in zip(*times, strict=True))
        yield {"processes": size, "classes": classes, "points": points, "fit": clock, "fit CPU": processor}


def fit_share(rank: int, size: int, store: str, classes: int, points: int, answers: Any) -> None:
    """Fit one process's share; the seconds on the clock and of the processor, in the better of two runs."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
    head = made_head(classes, "cpu")
    torch.manual_seed(rank)  # each has other points
    share = len(range(rank, points, size))
    data = Batches(torch.randn(share, WIDTH).relu_(), torch.randint(0, classes, (share,)), BATCH)
    times = []
    for _ in range(2):
        dist.barrier()
        begun, processor = time.perf_counter(), time.process_time()
        bb.Laplace(head, residual=False).fit(data)
        times.append((time.perf_counter() - begun, time.process_time() - processor))
    answers.put(min(times))
    dist.barrier()
    dist.destroy_process_group()


@torch.no_grad()
def accuracy(classes: int, points: int, gain: float, device: str) -> dict[str, Any]:
    """The largest relative difference of "lowrank" to "kron" in the variances of the logits."""
    head = made_head(classes, device, gain).double()
    data = [(features.double(), labels) for features, labels in MadeFeatures(points, classes, device)]
    pair = [bb.Laplace(head, structure=name, residual=False).fit(data) for name in ("lowrank", "kron")]
    (curvature,) = pair[0].posterior.fitted.curvature.values()
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


def by_classes(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Time and memory for each number of classes; on a CPU, whose memory never falls, in its own process."""
    if options.device.startswith("cuda"):
        sizes = options.points, options.validation, options.structure, options.device
        measure(10, *sizes)  # the first use of everything takes seconds
        for k in options.classes:
            try:
                yield measure(k, *sizes)
            except (RuntimeError, bb.BitbayesError) as error:  # out of memory, say: the next may fit
                yield {"classes": k, "failed": f"{type(error).__name__}: {error}"[:300]}
            torch.cuda.empty_cache()
        return
    for k in options.classes:
        words = [sys.executable, __file__, "--alone", "--classes", str(k), "--points", str(options.points)]
        words += ["--validation", str(options.validation), "--structure", options.structure]
        words += ["--threads", str(options.threads)]
        made = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
        failed = {"classes": k, "failed": f"exit status {made.returncode}"}
        yield failed if made.returncode else json.loads(made.stdout.splitlines()[-1])


def rows_of(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What was asked for, each row as soon as it is measured."""
    if options.against_points:
        points = [options.points * 2**i for i in range(5)]
        yield from (against_points(k, points, options.device) for k in options.classes)
    elif options.products:
        for k in options.classes:
            yield from products(k, options.points, options.device)
    elif options.kernels:
        for k in options.classes:
            yield from kernels(k, options.points, options.device)
    elif options.processes:
        for k in options.classes:
            yield from by_processes(k, options.points)
    elif options.accuracy:
        gains = (0.5, 2.0, 4.0, 8.0)
        yield from (accuracy(k, options.points, g, options.device) for k in options.classes for g in gains)
    else:
        yield from by_classes(options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--classes", type=int, nargs="+", help="10 … 100000; 1000 where one is enough")
    parser.add_argument("--points", type=int, default=1024, help="to fit")
    parser.add_argument("--validation", type=int, default=128, help="points to tune on and to predict")
    parser.add_argument("--structure", default="auto")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument(
        "--against-points", action="store_true", help="fit's time against the number of points"
    )
    kinds.add_argument("--products", action="store_true", help="fit's time beside that of its products")
    kinds.add_argument("--kernels", action="store_true", help="what a fit spends its time on")
    kinds.add_argument("--processes", action="store_true", help="fit by one process and by two")
    kinds.add_argument("--accuracy", action="store_true", help="'lowrank' beside 'kron'")
    kinds.add_argument("--alone", action="store_true", help="one number of classes, as one line of JSON")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, help="a JSON file for the numbers")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    one = options.against_points or options.products or options.kernels or options.processes
    default = [1000] if one else [500] if options.accuracy else [10, 100, 1000, 10_000, 100_000]
    options.classes = options.classes or default
    if options.alone:
        sizes = options.points, options.validation, options.structure, options.device
        print(json.dumps(measure(options.classes[0], *sizes)))
        return
    command = " ".join(["python", "benchmarks/scale.py", *sys.argv[1:]])
    about = {"command": command, "device": device_name(options.device), "date": time.strftime("%Y-%m-%d")}
    rows = []
    for row in rows_of(options):
        show(row)
        rows.append(row)
        if options.output:
            options.output.parent.mkdir(parents=True, exist_ok=True)
            found = about | {"rows": rows, "torch": torch.__version__}
            options.output.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()

"""What the processes of a group do in the tests: functions of their rank and their number."""

import os
import signal
import time
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

import bitbayes as bb
from bitbayes.errors import EdgeWarning, FewPointsWarning
from bitbayes.fitting import last_layer as fitting_last_layer
from bitbayes.io import checkpoint
from bitbayes.posteriors import last_layer
from bitbayes.settings import Settings
from bitbayes.structures import lowrank
from bitbayes.tuning.noise import NoiseLike
from bitbayes.tuning.points import kept_points, shared_points
from bitbayes.tuning.request import TuningRequest
from classifiers import drawn

POINTS = 203


def network(k=3):
    """A slightly overconfident network in float64."""
    torch.manual_seed(k)
    model = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, k)).double()
    with torch.no_grad():
        model[2].weight *= 6
    return model


def dataset(k=3, n=POINTS):
    torch.manual_seed(n)
    return TensorDataset(*drawn(network(k), n))


def loader(data, rank, size, split="sampler", batch_size=16):
    """A process's share: padded by a sampler, uneven, or all of it with the last process."""
    if split == "sampler":
        sampler = DistributedSampler(data, size, rank, shuffle=True, seed=5)
        return DataLoader(data, batch_size, sampler=sampler)
    cuts = [len(data) * (r * r) // (size * size) for r in range(size + 1)]
    if split == "empty":
        cuts = [0] * size + [len(data)]
    return DataLoader(Subset(data, range(cuts[rank], cuts[rank + 1])), batch_size)


def described(bayes, x=None):
    """All that was learned, and some predictions, by default at points without positions."""
    fitted = bayes.posterior.fitted
    x = dataset(fitted.weights.outputs, 20)[:][0] * 3 if x is None else x
    tensors = {
        f"{name}/{field}": tensor
        for name, curvature in fitted.curvature.items()
        for field, tensor in curvature.tensors().items()
    }
    tensors |= {
        f"level {name}/{field}": tensor
        for name, sums in fitted.level_sums.items()
        for field, tensor in sums.tensors().items()
    }
    chosen = bayes.settings
    numbers = [bayes.prior_variance, bayes.temperature, bayes.near_variance, bayes.beyond_variance]
    numbers += [*chosen.levels.values(), *chosen.thresholds.values()]
    numbers += [chosen.score_centre or 0.0, chosen.score_spread or 0.0]
    return {
        "tensors": tensors,
        "sums": torch.tensor([fitted.count, fitted.loss], dtype=torch.float64),
        "entries": fitted.entries,
        "tuned": bayes._tuned and bayes._tuned.entries,
        "numbers": torch.tensor(numbers, dtype=torch.float64),
        "probabilities": bayes.predict_proba(x),
    }


def fit_update_tune(rank, size, cases):
    """What is learned in each case: options of the Laplace, options of `tune`, and how data are shared."""
    answers = []
    for options, tuning, split in cases:
        options = dict(options)
        k = options.pop("k", 3)
        bayes = bb.Laplace(network(k), **options)
        bayes.fit(loader(dataset(k), rank, size, split)).update(loader(dataset(k, 50), rank, size, split, 7))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EdgeWarning)
            warnings.simplefilter("ignore", FewPointsWarning)
            bayes.tune(loader(dataset(k, 61), rank, size, split, 9), **tuning)
        answers.append(described(bayes))
    return answers


def one_fails(rank, size):
    """The second process's third batch is not finite."""
    x, y = dataset()[:]
    if rank == 1:
        x = x.clone()
        x[2 * size + 1, 1] = torch.nan
    share = [(x[i + rank : i + rank + 1], y[i + rank : i + rank + 1]) for i in range(0, 10 * size, size)]
    bayes = bb.Laplace(network()).fit(loader(dataset(), rank, size))
    before = described(bayes)
    try:
        bayes.fit(share)
    except bb.BitbayesError as error:
        same = all(torch.equal(a, b) for a, b in zip(*map(_tensors, (before, described(bayes))), strict=True))
        return type(error).__name__, str(error), same
    return None


def _tensors(answer):
    return [*answer["tensors"].values(), *(answer[name] for name in ("sums", "numbers", "probabilities"))]


def one_is_killed(rank, size):
    def batches():
        for batch in loader(dataset(), rank, size):
            if rank == size - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    return _error(lambda: bb.Laplace(network()).fit(batches()))


def one_does_not_take_part(rank, size):
    if rank == 1:
        time.sleep(4)
        return "slept"
    return _error(lambda: bb.Laplace(network()).fit(loader(dataset(), rank, size)))


def different_tasks(rank, size):
    """Errors of processes that hold other models, other options, other tasks, or the same data."""
    share = loader(dataset(), rank, size)
    model = network()
    if rank == 1:
        with torch.no_grad():
            model[0].bias += 1
    structures = ("kron", "diag")[rank % 2]
    bayes = bb.Laplace(network()).fit(share)
    unshared = DataLoader(dataset(), 16, shuffle=True)
    with bb.process_group(None):
        alone = bb.Laplace(network()).fit(share)
    return [
        _error(lambda: bb.Laplace(model).fit(share)),
        _error(lambda: bb.Laplace(network(), structure=structures).fit(share)),
        _error(lambda: bayes.tune(share) if rank else bayes.update(share)),
        _error(lambda: bb.Laplace(network()).fit(unshared)),
        _error(lambda: bb.Laplace(network()).fit([])),
        _error(lambda: bayes.tune([])),
        _error(lambda: alone.update(share)),
        _error(lambda: alone.tune(share)),
        _error(lambda: alone.tune(share, objective="nll")),
    ]


def _error(call):
    begun = time.monotonic()
    try:
        call()
    except bb.BitbayesError as error:
        return type(error).__name__, str(error), time.monotonic() - begun
    return None


def one_fails_in_a_check(rank, size, folder):
    """Errors of calls that are wrong in the second process only, by what is wrong."""
    second = rank == 1
    share = loader(dataset(), rank, size)
    noise = torch.randn(10, 2).double()

    def fitted(**options):
        return bb.Laplace(network(), layers="all", **options).fit(share)

    changed = fitted()
    if second:
        with torch.no_grad():
            changed.model[0].bias += 1
    mapping = {"0": 1.0, "2": 2.0} if second else 1.0
    frozen = bb.Laplace(network(), layers="all", prior_variance=mapping)
    frozen.model[0].requires_grad_(False)
    several = fitted(prior_variance=mapping)
    bayes = fitted()
    unfitted = bb.Laplace(network()) if second else bayes
    outliers = noise.numpy() if second else noise
    calls = {
        "changed, tune": lambda: changed.tune(share),
        "changed, tune by the evidence": lambda: changed.tune(objective="evidence"),
        "changed, update": lambda: changed.update(share),
        "not fitted": lambda: unfitted.update(share),
        "objective": lambda: bayes.tune(share, objective="nil" if second else "nll"),
        "no data": lambda: bayes.tune(None if second else share),
        "outliers of calibrated": lambda: bayes.tune(share, outliers=outliers if second else None),
        "outliers": lambda: bayes.tune(share, objective="ood", outliers=outliers),
        "a mapping, tune": lambda: several.tune(share),
        "a mapping, fit": lambda: frozen.fit(share),
        "checkpoint": lambda: bayes.fit(share, checkpoint=3 if second else folder),
    }
    found = {what: _error(call) for what, call in calls.items()}
    return found, "not fitted" in repr(frozen), bayes.tune(share).prior_variance


def alone_and_in_pairs(rank, size):
    """Of four processes: each by itself, then two and two."""
    data = dataset()
    share = loader(data, rank, size)
    with bb.process_group(None):
        alone = bb.Laplace(network()).fit(share).tune(share)
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    with bb.process_group(groups[rank // 2]):
        pair = bb.Laplace(network()).fit(share)
    return described(alone), described(pair), alone.posterior.fitted.count


def wrapped(rank, size, kind, folder):
    """A wrapped model: what it learns, and what its file gives on the plain model."""
    model = network()
    share = loader(dataset(), rank, size, "uneven")
    if kind == "ddp":
        outer = nn.parallel.DistributedDataParallel(model)
    elif kind == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (size,))
        fully_shard(model[0], mesh=mesh)
        outer = fully_shard(model, mesh=mesh)
        outer(torch.zeros(2, 2).double())  # it keeps what it gathered for this
    else:
        from torch.distributed.fsdp import FullyShardedDataParallel

        cpu = {"device_id": torch.device("cpu"), "use_orig_params": kind == "fsdp1, own parameters"}
        model[0] = FullyShardedDataParallel(model[0], **cpu)
        outer = FullyShardedDataParallel(model, **cpu)
    bayes = bb.Laplace(outer).fit(share).tune(share)
    path = folder / f"{kind}-{rank}.safetensors"
    bayes.save(path)
    plain = bb.Laplace.load(path, network())
    again = bb.Laplace.load(path, outer)
    # The model still works as FSDP has made it.
    same = torch.allclose(outer(torch.ones(2, 2).double()), network()(torch.ones(2, 2).double()))
    return described(bayes), described(plain), described(again), same, path.read_bytes()


def interrupted_and_resumed(rank, size, folder, k=3, **options):
    """A fit with a checkpoint in which one process is interrupted, and then again."""
    checkpoint.SECONDS, checkpoint.PAUSE = 0.0, 0
    fitting_last_layer.FIT_BYTES = 2**10
    share = loader(dataset(k), rank, size, "uneven", batch_size=5)
    expected = described(bb.Laplace(network(k), **options).fit(share))

    class Stopping:
        def __iter__(self):
            for number, batch in enumerate(share):
                if rank == 1 and number == 20:
                    raise OSError("the disk is gone")
                yield batch

    failed = None
    try:
        bb.Laplace(network(k), **options).fit(Stopping(), checkpoint=folder)
    except Exception as error:
        failed = type(error).__name__
    kept = sorted(each.name for each in folder.iterdir())
    dist.barrier()
    bayes = bb.Laplace(network(k), **options).fit(list(share), checkpoint=folder)
    dist.barrier()
    return expected, described(bayes), failed, kept, list(folder.iterdir())


def sketches(rank, size, folder):
    """Sketches that lose something: by all processes, resumed, and merged of files of each one alone."""
    lowrank.RANK, lowrank.POINTS_AT_ONCE = 4, 8
    (folder / "checkpoints").mkdir(exist_ok=True)
    dist.barrier()
    options = {"k": 12, "structure": "lowrank"}
    together, resumed, *_ = interrupted_and_resumed(rank, size, folder / "checkpoints", **options)
    with bb.process_group(None):
        share = loader(dataset(12), rank, size, "uneven", batch_size=5)
        bb.Laplace(network(12), structure="lowrank").fit(share).save(folder / f"{rank}.safetensors")
    dist.barrier()
    files = [folder / f"{each}.safetensors" for each in range(size)]
    merged = bb.merge(files, model=network(12))
    (curvature,) = merged.posterior.fitted.curvature.values()
    return together, resumed, described(merged), curvature.relative_error


def sketches_of_the_same_points(rank, size):
    """Each process reads all points, in an order of its own."""
    lowrank.RANK, lowrank.POINTS_AT_ONCE = 4, 8
    own_order = torch.Generator().manual_seed(rank)
    unshared = DataLoader(dataset(12), 16, shuffle=True, generator=own_order)
    bayes = bb.Laplace(network(12), structure="lowrank")
    with bb.process_group(None):
        (curvature,) = bayes.fit(unshared)._posterior.fitted.curvature.values()
    return curvature.directions, _error(lambda: bayes.fit(unshared))


def images_of_two_sizes(rank, size, residual, others):
    """Images of two sizes: the last process has the other one, in all of its batches or in the last."""
    torch.manual_seed(0)
    first, second = nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(2, 3, 3, padding=1)
    model = nn.Sequential(first, nn.ReLU(), second, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 3))
    model = model.double()
    torch.manual_seed(rank)
    sides = [4] * (3 - others) + [5] * others if rank == size - 1 else [4] * 3
    batches = [(torch.rand(6, 1, side, side).double(), torch.arange(6) % 3) for side in sides]
    bayes = bb.Laplace(model, residual=residual)
    if error := _error(lambda: bayes.fit(batches)):
        return error[:2]
    with bb.process_group(None):
        return list(bayes.posterior.fitted.level_sums), described(bayes, torch.ones(2, 1, 4, 4).double())


def positions(rank, size):
    """The last process's share has no label at any position."""
    x = torch.randn(12, 5, 2, generator=torch.Generator().manual_seed(0)).double()
    y = torch.arange(60).reshape(12, 5) % 3
    y[-6:] = -100
    share = slice(12 * rank // size, 12 * (rank + 1) // size)
    batches = [(x[share], y[share])]
    return described(bb.Laplace(network(), residual=False).fit(batches).tune(batches), x)


def positions_of_uneven_shares(rank, size):
    """How many positions each process keeps for tuning, of 40,000 and of 2,000."""
    last_layer.KEPT_POSITIONS = 4096
    x = torch.zeros((40, 2)[rank], 1000, 2).double()
    y = torch.zeros(x.shape[:2], dtype=torch.long)
    posterior = bb.Laplace(network(), residual=False).fit([(x, y)])._posterior
    batches = list(zip(x.split(2), y.split(2), strict=True))
    request = TuningRequest(posterior, None, Settings(), "auto", batches, progress=False)
    points, _ = shared_points(
        lambda: "tune", lambda: kept_points(posterior, request.validation_batches()), NoiseLike
    )
    return sum(len(each.by_prior.scale) for each in points), {each.share for each in points}


class Named(nn.Sequential):
    """A model whose logits are an entry of what it returns."""

    def forward(self, x):
        return {"logits of mine": super().forward(x)}


def picked_by_a_function(rank, size):
    """A function's text is another one in each process, as that with an address is."""

    class Pick:
        def __call__(self, returned):
            return returned["logits of mine"]

        def __repr__(self):
            return f"<function at {rank}>"

    return described(bb.Laplace(Named(*network()), output=Pick()).fit(loader(dataset(), rank, size)))


def drawn_labels(rank, size):
    """Where labels are drawn, each process has other random numbers."""
    data = TensorDataset(*dataset()[:40])
    bayes = bb.Laplace(network(), layers="all", structure="diag", curvature=bb.Fisher(draws=1))
    with bb.process_group(None):
        alone = described(bayes.fit(DataLoader(data, 40)))
    try:
        bayes.fit(DataLoader(data, 40))
    except bb.BitbayesError:  # the same points with the same draws would be noticed
        return alone, None
    return alone, described(bayes)


def plain(rank, size):
    """What one process learns without a wrapper."""
    data = DataLoader(dataset(), 16)
    return described(bb.Laplace(network()).fit(data).tune(data))


def several_labels(rank, size):
    """What was fitted and tuned on several labels for each point, by processes with shares of the data."""
    x, _ = dataset()[:]
    generator = torch.Generator().manual_seed(0)
    y = torch.rand(len(x), 3, generator=generator).double() < network()(x).detach().sigmoid()
    data = TensorDataset(x, y)
    bayes = bb.Laplace(network(), likelihood="multilabel").fit(loader(data, rank, size))
    bayes.tune(loader(data, rank, size))
    found = described(bayes, x)
    return [*found["tensors"].values(), found["sums"], found["numbers"], found["probabilities"]]


def train_by_evidence(rank, size):
    """What the evidence has chosen, in a network that is trained on each process's share of each batch."""
    data = dataset(3, 96)
    sampler = DistributedSampler(data, size, rank, shuffle=False)
    model = network()
    if size > 1:
        model = nn.parallel.DistributedDataParallel(model)
    found = bb.train_by_evidence(
        model,
        DataLoader(data, 32 // size, sampler=sampler),
        torch.optim.Adam(model.parameters(), lr=0.02),
        epochs=4,
        burn_in=2,
        every=1,
        steps=5,
        residual=False,
    )
    return found.evidence, found.prior_variance


def subnetwork(rank, size):
    """The weights that processes with shares of the data choose, and the covariance of the logits."""
    data = dataset()
    bayes = bb.Laplace(network(), layers="all", subnetwork=10, prior_variance=1.0)
    bayes.fit(loader(data, rank, size))
    return bayes.posterior.chosen, bayes.logits(data[:][0]).covariance

"""Nothing is read back from the device for each batch: a GPU would wait for the CPU, and the CPU for it.

On a CPU nobody waits. So the operations that would wait on a GPU are counted.
"""

import warnings
from collections import Counter

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import bitbayes as bb
from bitbayes.settings import Settings
from bitbayes.tuning import Costs, TuningRequest, kept_points
from paper.resnet import resnet18

# Operations that read a value back, or need one to know the size of what they return.
READS = {"_local_scalar_dense", "equal", "is_nonzero", "item", "nonzero", "masked_select", "unique_dim"}
READS |= {"_unique", "_unique2", "unique_consecutive"}
# A value of Python's that becomes a tensor is sent to the device, for which the CPU waits too.
SENDS = {"lift_fresh", "lift_fresh_copy"}
# What moves no numbers, or only asks for a dtype.
FREE = {"alias", "as_strided", "detach", "expand", "permute", "promote_types", "select", "slice", "split"}
FREE |= {"split_with_sizes", "squeeze", "t", "transpose", "unbind", "unsqueeze", "view", "_unsafe_view"}


class Operations(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.counts[operation.overloadpacket.__name__] += 1
        if operation.overloadpacket.__name__ == "index" and any(
            each is not None and each.dtype == torch.bool for each in args[1]
        ):
            self.counts["nonzero"] += 1  # a mask: on a GPU its true entries are counted first
        return operation(*args, **(kwargs or {}))


class Copies(TorchFunctionMode):
    """Copies to the CPU, which are no operations where all tensors are there already."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        # Not `to(device)`, which is the CPU only here.
        if name in ("cpu", "numpy") or (name == "to" and args[1:2] == ("cpu",)):
            self.counts["cpu"] += 1
        return function(*args, **(kwargs or {}))


def count(job, data):
    with Operations() as operations, Copies() as copies:
        job(data)
    return operations.counts + copies.counts


def per_batch(job, data):
    """How often each operation is called for one batch more; `data` has five batches."""
    few, many = count(job, data[:2]), count(job, data)
    return {name: (many[name] - few[name]) / 3 for name in many if many[name] != few[name]}


def waits(counts):
    return {name: number for name, number in counts.items() if name in {*READS, *SENDS, "cpu"}}


def prepared(k, residual, device="cpu"):
    """A Laplace with all its numbers set, and five batches."""
    torch.manual_seed(0)
    model = resnet18(classes=k, width=8).eval().to(device)
    x, y = torch.rand(5, 4, 3, 32, 32, device=device), torch.arange(20, device=device).reshape(5, 4)
    data = list(zip(x, y % max(k, 2), strict=True))
    bayes = bb.Laplace(model, prior_variance=10.0, residual=residual).fit(data)
    bayes.temperature = 0.8
    if residual:
        names = bayes.known_residual.names
        assert len(names) == 6 and names[-1] == "classes"
        levels, thresholds = dict.fromkeys(names, 0.3), dict.fromkeys(names, 0.1)
        bayes.settings = Settings(10.0, 0.8, 1.0, 2.0, levels, thresholds, 1.0, 0.5, 2.0, 0.3, 0.2)
    bayes.predict_proba(data[:1])  # what is made once is made now
    return bayes, data


def validation_points(posterior, residual, data):
    request = TuningRequest(posterior, residual, Settings(), "auto", data, progress=False)
    return kept_points(posterior, request.validation_batches())


def tuning_pass(bayes, data):
    with torch.no_grad():
        validation_points(bayes.posterior, bayes.known_residual, data)


JOBS = {
    "fit": lambda bayes, data: bb.Laplace(bayes.model, residual=bayes.residual).fit(data),
    "the pass of tune": tuning_pass,
    "predict_proba": lambda bayes, data: bayes.predict_proba(data),
    "score": lambda bayes, data: bayes.score(data),
    "the drop-in": lambda bayes, data: [bayes(x) for x, _ in data],
}


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("k, residual", [(10, "auto"), (100, "auto"), (1, "auto"), (10, False)])
def test_nothing_is_read_back_for_each_batch(k, residual, job):
    bayes, data = prepared(k, residual)
    counts = per_batch(lambda some: JOBS[job](bayes, some), data)
    assert counts["convolution"] >= 20  # the network's own: batches were counted
    assert waits(counts) == {}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch tells of waiting on a GPU alone")
@pytest.mark.parametrize("job", JOBS)
def test_a_gpu_is_waited_for_as_often_for_many_batches_as_for_few(job):
    bayes, data = prepared(10, "auto", "cuda")

    def summary(some):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")  # which warns that it is a prototype
            try:
                JOBS[job](bayes, some)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        messages = [str(each.message).lower() for each in caught]
        return sum("synchroniz" in message and "prototype" not in message for message in messages)

    assert summary(data[:2]) == summary(data)


# The numbers of now: they may fall.
MOST = {"fit": 20, "the pass of tune": 24, "predict_proba": 19, "score": 19, "the drop-in": 140}


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("k", [10, 100])
def test_operations_for_each_batch_stay_few(k, job):
    bayes, data = prepared(k, "auto")
    with torch.no_grad():
        own = count(bayes.model, data[0][0])
    counts = per_batch(lambda some: JOBS[job](bayes, some), data)
    more = {name: number - own[name] for name, number in counts.items() if name not in FREE}
    assert 0 < sum(more.values()) <= MOST[job]


def test_a_tuning_reads_back_as_often_for_many_batches_as_for_few(monkeypatch):
    """Costs are read back once for all groups of points, however many there are."""
    bayes, data = prepared(10, "auto")
    monkeypatch.setattr(type(bayes.posterior), "rows_per_step", 4)  # a group for each batch
    candidates, likelihood = [Settings(1.0), Settings(10.0)], bayes.posterior.likelihood

    def job(some):
        with torch.no_grad():
            found = validation_points(bayes.posterior, None, some)
            assert len(found) == len(some)
            Costs(found, likelihood, "pairwise").mean(candidates, likelihood.prediction_losses)

    assert waits(per_batch(job, data)) == {}


def test_half_precision_is_summed_in_float32():
    """Images of 3,072 numbers near 20 have a sum beyond the largest of float16, 65,504."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 8), nn.ReLU(), nn.Linear(8, 3)).half()
    with torch.no_grad():
        model[1].weight /= 100
    data = [(torch.rand(4, 3, 32, 32).half() + 20, torch.arange(4) % 3) for _ in range(5)]
    bayes = bb.Laplace(model, prior_variance=1.0).fit(data)
    bayes.predict_proba(data[:1])
    assert waits(per_batch(bayes.predict_proba, data)) == {}


@pytest.mark.parametrize(
    "read", [lambda t: bool(t.sum() > 0), lambda t: t.nonzero(), lambda t: t[t > 0], lambda t: t.cpu()]
)
def test_what_is_read_back_is_counted(read):
    data = [torch.randn(3) for _ in range(5)]
    assert sum(waits(per_batch(lambda some: [read(each) for each in some], data)).values()) >= 1

"""Fits that are interrupted and resumed: to the last bit what an uninterrupted one gives."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    TensorDataset,
)

import bitbayes as bb
import ray_cases
from bitbayes.errors import ArgumentError, DataError, FileError
from bitbayes.fitting import Totals, last_layer
from bitbayes.fitting.data import TrainingData
from bitbayes.io import checkpoint
from classifiers import points, relu_mlp

BATCHES = 12
CASES = [
    {},
    {"structure": "full"},
    {"structure": "diag", "residual": False},
    {"structure": "isotropic"},
    {"layers": "all"},
    {"layers": "all", "structure": "diag", "curvature": bb.Fisher(draws=2, seed=3)},
]


class Interrupted(BaseException):
    """As Ctrl-C: nothing may catch it."""


class Counted(Dataset):
    """Points that count how often they are read, and that interrupt when one of them is read."""

    def __init__(self, stop=None, n=10 * BATCHES):
        (self.x, self.y), self.stop, self.read = points(n), stop, []

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        self.read.append(index)
        if len(self.read) - 1 == self.stop:
            raise Interrupted
        return self.x[index], self.y[index]


@pytest.fixture(autouse=True)
def _each_batch_is_kept(monkeypatch):
    """Sums are written as often as can be: after each batch over all layers, else after every third."""
    monkeypatch.setattr(checkpoint, "SECONDS", 0.0)
    monkeypatch.setattr(checkpoint, "PAUSE", 0)
    monkeypatch.setattr(last_layer, "FIT_BYTES", 3 * 10 * 8 * 4)


def fit(loader, folder=None, **options):
    return bb.Laplace(relu_mlp(), **options).fit(loader, checkpoint=folder)


def sums(bayes):
    fitted = bayes.posterior.fitted
    bundles = {**fitted.curvature, **{f"level/{name}": each for name, each in fitted.level_sums.items()}}
    tensors = {
        f"{name}/{field}": tensor.clone()
        for name, each in bundles.items()
        for field, tensor in each.tensors().items()
    }
    (entry,) = fitted.entries
    numbers = {"count": entry.count, "digest": entry.digest - 2**63, "loss": fitted.loss}
    return tensors | {name: torch.tensor(each) for name, each in numbers.items()}


def assert_equal(found, expected):
    found, expected = sums(found), sums(expected)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], each) for name, each in expected.items())


@pytest.mark.parametrize("options", CASES, ids=str)
def test_a_resumed_fit_is_the_uninterrupted_one_to_the_last_bit(options, tmp_path):
    expected = fit(DataLoader(Counted(), 10), **options)
    lives = 0
    for stop in (5, 47, 61, 85, 40, 10**9):  # points until the interruption, counted in each life
        data = Counted(stop)
        lives += 1
        try:
            found = fit(DataLoader(data, 10), tmp_path, **options)
            break
        except Interrupted:
            found = None
    assert found is not None and lives == 4
    # The first batch is looked at; what was summed up is not read again.
    first = 90 if options.get("layers") == "all" else 60
    assert data.read[:10] == list(range(10)) and data.read[10:] == list(range(first, 120))
    assert_equal(found, expected)
    assert list(tmp_path.iterdir()) == []
    levels = () if options.get("residual") is False else ("input", "head")
    assert tuple(found.posterior.fitted.level_sums) == levels
    assert not levels or found.posterior.fitted.level_sums["head"].class_counts.tolist() == [40.0] * 3


def test_an_interruption_at_any_batch(tmp_path):
    expected = fit(DataLoader(Counted(), 10))
    for stop in range(0, 10 * BATCHES, 10):
        folder = tmp_path / str(stop)
        with pytest.raises(Interrupted):
            fit(DataLoader(Counted(stop), 10), folder)
        assert_equal(fit(DataLoader(Counted(), 10), folder), expected)


def test_an_interruption_after_the_last_batch(tmp_path, monkeypatch):
    check = Totals.check_overflow
    monkeypatch.setattr(Totals, "check_overflow", interrupt)
    with pytest.raises(Interrupted):
        fit(DataLoader(Counted(), 10), tmp_path)
    monkeypatch.setattr(Totals, "check_overflow", check)
    data = Counted()
    assert_equal(fit(DataLoader(data, 10), tmp_path), fit(DataLoader(Counted(), 10)))
    assert data.read == list(range(10))


def interrupt(*_):
    raise Interrupted


@pytest.mark.parametrize("step", ["write_tensors", "os.replace", "os.fsync"])
def test_an_interruption_while_the_file_is_written(step, tmp_path, monkeypatch):
    expected = fit(DataLoader(Counted(), 10))
    calls = []
    where = "bitbayes.io.checkpoint.write_tensors" if step == "write_tensors" else step
    original = checkpoint.write_tensors if step == "write_tensors" else getattr(os, step.split(".")[1])

    def second(*args):
        calls.append(args)
        return interrupt() if len(calls) == 3 else original(*args)

    monkeypatch.setattr(where, second)
    with pytest.raises(Interrupted):
        fit(DataLoader(Counted(), 10), tmp_path)
    monkeypatch.setattr(where, original)
    assert_equal(fit(DataLoader(Counted(), 10), tmp_path), expected)
    assert list(tmp_path.iterdir()) == []


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import torch
torch.set_num_threads(1)
from torch.utils.data import DataLoader
from bitbayes.fitting import last_layer
from bitbayes.io import checkpoint
import classifiers, bitbayes as bb
checkpoint.SECONDS, checkpoint.PAUSE, last_layer.FIT_BYTES = 0.0, 0, 3 * 10 * 8 * 4
x, y = classifiers.points(120)
class Killing:
    def __iter__(self):
        for number, rows in enumerate(torch.arange(120).split(10)):
            if number == 8:
                os.kill(os.getpid(), signal.SIGKILL)
            yield x[rows], y[rows]
bb.Laplace(classifiers.relu_mlp()).fit(Killing(), checkpoint=sys.argv[2])
"""


def test_a_killed_process(tmp_path):
    tests = str(Path(__file__).parents[1])
    ended = subprocess.run([sys.executable, "-c", KILLED, tests, str(tmp_path)], capture_output=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["fit-0-of-1.safetensors"]
    x, y = points(120)
    batches = [(x[rows], y[rows]) for rows in torch.arange(120).split(10)]
    assert_equal(fit(batches, tmp_path), fit(batches))


def seeded(data):
    return DataLoader(data, 10, shuffle=True, generator=torch.Generator().manual_seed(1))


class Stream(IterableDataset):
    def __init__(self, data):
        self.data = data

    def __iter__(self):
        return (self.data[index] for index in range(len(self.data)))


@pytest.mark.parametrize(
    "loader",
    [
        seeded,
        lambda data: DataLoader(data, 10, sampler=RandomSampler(data, generator=torch.Generator())),
        lambda data: DataLoader(Stream(data), 10),
        lambda data: DataLoader(data, batch_size=10, num_workers=0, drop_last=True),
    ],
)
def test_loaders_of_a_fixed_order(loader, tmp_path):
    with pytest.raises(Interrupted):
        fit(loader(Counted(77)), tmp_path)
    data = Counted()
    assert_equal(fit(loader(data), tmp_path), fit(loader(Counted())))


def test_workers(tmp_path):
    """A worker reads ahead, and what it has read is not taken for summed up."""
    loader = lambda data: DataLoader(data, 10, num_workers=1)  # noqa: E731
    before = fit(DataLoader(Counted(), 10))
    with pytest.raises(Interrupted):
        stop_after(loader(Counted()), 7, tmp_path)
    assert_equal(fit(loader(Counted()), tmp_path), before)


def stop_after(loader, batches, folder):
    """Interrupt a fit when so many batches were read from a loader, which is not wrapped."""
    read = TrainingData.__iter__

    def counted(self):
        for batch in read(self):
            if self.totals.batches > batches:
                raise Interrupted
            yield batch

    TrainingData.__iter__ = counted
    try:
        fit(loader, folder)
    finally:
        TrainingData.__iter__ = read


def test_another_order_is_noticed(tmp_path):
    with pytest.raises(Interrupted):
        fit(seeded(Counted(77)), tmp_path)
    with pytest.raises(DataError, match="are not those that were summed up before the interruption"):
        fit(DataLoader(Counted(), 10), tmp_path)
    with pytest.raises(DataError, match="are not those"):
        fit(DataLoader(Counted(n=20), 10), tmp_path)
    assert_equal(fit(seeded(Counted()), tmp_path), fit(seeded(Counted())))


def test_other_data_of_a_loader_without_indices_are_noticed(tmp_path):
    x, y = points(120)
    batches = [(x[rows], y[rows]) for rows in torch.arange(120).split(10)]

    class Stopping(list):
        def __iter__(self):
            yield from self[:7]
            raise Interrupted

    with pytest.raises(Interrupted):
        fit(Stopping(batches), tmp_path)
    with pytest.raises(DataError, match="are not those"):
        fit([batches[1], batches[0], *batches[2:]], tmp_path)
    assert_equal(fit(batches, tmp_path), fit(batches))


class Named(Counted):
    """Points as mappings."""

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return {"input": x, "labels": y}


@pytest.mark.parametrize("kind", [Counted, Named])
@pytest.mark.parametrize("workers", [0, 1])
def test_other_data_of_the_same_order_are_noticed_by_the_first_labels(kind, workers, tmp_path):
    loader = lambda data: DataLoader(data, 10, num_workers=workers)  # noqa: E731
    with pytest.raises(Interrupted):
        stop_after(loader(kind()), 7, tmp_path)
    other = kind()
    other.y = other.y.roll(1)
    with pytest.raises(DataError, match="are not those"):
        fit(loader(other), tmp_path)
    with pytest.raises(DataError, match="are not those"):
        fit(loader(kind(n=110)), tmp_path)
    assert_equal(fit(loader(kind()), tmp_path), fit(loader(kind())))


def test_inputs_that_are_augmented_at_random_are_resumed(tmp_path):
    class Augmented(Counted):
        def __getitem__(self, index):
            x, y = super().__getitem__(index)
            return x + torch.randn(x.shape), y

    with pytest.raises(Interrupted):
        fit(DataLoader(Augmented(77), 10), tmp_path)
    assert fit(DataLoader(Augmented(), 10), tmp_path).posterior.fitted.count == 10 * BATCHES


def test_labels_of_positions_that_are_augmented_at_random_are_resumed(tmp_path):
    class Turned(Tokens):
        def __getitem__(self, index):
            x, y = super().__getitem__(index)
            turns = int(torch.randint(1, 60, ()))
            return x.roll(turns, 0), y.roll(turns)

    with pytest.raises(Interrupted):
        fit(DataLoader(Turned(13), 2), tmp_path)
    assert fit(DataLoader(Turned(), 2), tmp_path).posterior.fitted.count == 24 * 50


def test_other_texts_of_a_loader_without_indices_are_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(last_layer, "FIT_BYTES", 16)

    class OfTexts(torch.nn.Module):
        """It takes texts, of which only their lengths matter."""

        def __init__(self):
            super().__init__()
            self.head = torch.nn.Linear(1, 3)

        def forward(self, rows, texts):
            return self.head(rows + torch.tensor([[len(each)] for each in texts]))

    def batches(letter):
        return [
            {"rows": torch.zeros(4, 1), "texts": [letter * (i + j) for j in range(4)], "labels": y}
            for i, y in enumerate(torch.arange(48).remainder(3).split(4))
        ]

    class Stopping(list):
        def __iter__(self):
            yield from self[:7]
            raise Interrupted

    bayes = bb.Laplace(OfTexts(), residual=False)
    with pytest.raises(Interrupted):
        bayes.fit(Stopping(batches("a")), checkpoint=tmp_path)
    with pytest.raises(DataError, match="are not those"):
        bayes.fit(batches("b"), checkpoint=tmp_path)
    assert bayes.fit(batches("a"), checkpoint=tmp_path).posterior.fitted.count == 48


def test_loaders_that_cannot_be_resumed_are_refused_at_once(tmp_path):
    data = TensorDataset(*points())
    with pytest.raises(ArgumentError, match="the loader shuffles, in another order each time"):
        fit(DataLoader(data, 10, shuffle=True), tmp_path)
    with pytest.raises(ArgumentError, match="in_order=False"):
        fit(DataLoader(data, 10, num_workers=1, in_order=False), tmp_path)
    with pytest.raises(ArgumentError, match="a generator, which can be gone through only once"):
        fit((each for each in [points()]), tmp_path)
    with pytest.raises(ArgumentError, match="checkpoint=3: expected the path of a folder"):
        fit([points()], 3)
    with pytest.raises(DataError, match="expected a loader"):
        fit(points()[0], tmp_path)


def test_the_checkpoint_of_another_fit_is_refused(tmp_path):
    with pytest.raises(Interrupted):
        fit(DataLoader(Counted(77), 10), tmp_path)
    with pytest.raises(FileError, match="with other options; give another folder, or remove it"):
        fit(DataLoader(Counted(), 10), tmp_path, structure="diag")
    model = relu_mlp()
    with torch.no_grad():
        model[0].bias += 1
    with pytest.raises(FileError, match="another model, or with other weights"):
        bb.Laplace(model).fit(DataLoader(Counted(), 10), checkpoint=tmp_path)
    (file,) = tmp_path.iterdir()
    (tmp_path / "fit-1-of-4.safetensors").write_bytes(file.read_bytes())
    with pytest.raises(FileError, match="another number of processes than 1"):
        fit(DataLoader(Counted(), 10), tmp_path)
    (tmp_path / "fit-1-of-4.safetensors").unlink()
    damaged = bytearray(file.read_bytes())
    damaged[-3] ^= 1
    file.write_bytes(damaged)
    with pytest.raises(FileError, match="damaged"):
        fit(DataLoader(Counted(), 10), tmp_path)
    bb.Laplace(relu_mlp()).fit([points()]).save(file)
    with pytest.raises(FileError, match="is no checkpoint that `fit` wrote"):
        fit(DataLoader(Counted(), 10), tmp_path)


def test_a_batch_that_is_not_finite_is_not_kept(tmp_path):
    data = Counted()
    data.x[85, 0] = torch.nan
    with pytest.raises(DataError, match="batch 8 holds NaN"):
        fit(DataLoader(data, 10), tmp_path)
    # After the interruption, too, it is called by its number.
    with pytest.raises(DataError, match="batch 8 holds NaN"):
        fit(DataLoader(data, 10), tmp_path)
    data.x[85, 0] = Counted().x[85, 0]
    assert_equal(fit(DataLoader(data, 10), tmp_path), fit(DataLoader(Counted(), 10)))


def test_inputs_that_are_no_level_stay_so(tmp_path):
    """One batch of another size before the interruption: their size is none after it either."""
    pool = torch.nn.Sequential(torch.nn.AdaptiveAvgPool1d(4), torch.nn.Flatten(), torch.nn.Linear(4, 3))
    batches = [(torch.randn(10, 1, 4 if i != 2 else 8), torch.arange(10) % 3) for i in range(BATCHES)]

    class Stopping(list):
        def __iter__(self):
            yield from self[:7]
            raise Interrupted

    with pytest.raises(Interrupted):
        bb.Laplace(pool).fit(Stopping(batches), checkpoint=tmp_path)
    resumed = bb.Laplace(pool).fit(batches, checkpoint=tmp_path)
    assert_equal(resumed, bb.Laplace(pool).fit(batches))
    assert resumed.posterior.fitted.level_sums == {}  # the head's input is that of the network


@pytest.mark.parametrize("layers", ["last", "all"])
@pytest.mark.parametrize("residual", ["auto", ("2", "0")])
def test_hidden_levels(residual, layers, tmp_path):
    """Levels of images: those of the resumed fit have the same sums, and give the same predictions."""
    model, x = ray_cases.network("convnet", 3, 120)
    x, y = x.float(), torch.arange(120) % 3
    options = {"layers": layers, "residual": residual}

    def made(stop=None, folder=None):
        data = Counted(stop)
        data.x, data.y = x, y
        return bb.Laplace(model.float(), **options).fit(DataLoader(data, 10), checkpoint=folder)

    with pytest.raises(Interrupted):
        made(77, tmp_path)
    resumed, expected = made(None, tmp_path), made()
    assert len(expected.posterior.fitted.level_sums) == (2 if residual == "auto" else 4)
    assert resumed.posterior.fitted.levels == expected.posterior.fitted.levels
    assert_equal(resumed, expected)
    resumed.near_variance = expected.near_variance = 0.3
    assert torch.equal(resumed.predict_proba(3 * x), expected.predict_proba(3 * x))


class Tokens(Counted):
    """Points with 60 positions each, of which 10 have no label; more than are summed up at once."""

    def __init__(self, stop=None, n=24):
        super().__init__(stop, n)
        self.x, self.y = torch.randn(n, 60, 4), torch.arange(60).remainder(3).repeat(n, 1)
        self.y[:, ::6] = -100


def test_positions(tmp_path):
    """A batch is kept as a whole, although its positions are summed up in parts."""
    expected = fit(DataLoader(Tokens(), 2))
    assert expected.posterior.fitted.count == 24 * 50
    for stop in range(0, 24, 2):
        folder = tmp_path / str(stop)
        with pytest.raises(Interrupted):
            fit(DataLoader(Tokens(stop), 2), folder)
        assert_equal(fit(DataLoader(Tokens(), 2), folder), expected)


def test_positions_without_any_label_after_the_interruption(tmp_path):
    def tokens(stop=None):
        data = Tokens(stop)
        data.y[12:] = -100
        return DataLoader(data, 2)

    with pytest.raises(Interrupted):
        fit(tokens(14), tmp_path)
    assert_equal(fit(tokens(), tmp_path), fit(tokens()))


def test_positions_of_a_padded_share(tmp_path):
    """What a sampler repeats are inputs, and not positions."""
    loader = lambda data: DataLoader(data, 1, sampler=DistributedSampler(data, 5, 4, shuffle=False))  # noqa: E731
    expected = fit(loader(Tokens()))
    assert expected.posterior.fitted.count == 4 * 50
    with pytest.raises(Interrupted):
        fit(loader(Tokens(2)), tmp_path)
    assert_equal(fit(loader(Tokens()), tmp_path), expected)


def test_logits_that_a_function_picks(tmp_path):
    options = {"output": lambda returned: 2 * returned}
    with pytest.raises(Interrupted):
        fit(DataLoader(Counted(77), 10), tmp_path, **options)
    resumed = fit(DataLoader(Counted(), 10), tmp_path, **options)
    assert_equal(resumed, fit(DataLoader(Counted(), 10), **options))


def test_sums_are_written_when_they_are_due(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "SECONDS", 30.0)
    monkeypatch.setattr(checkpoint, "PAUSE", 20)
    now = [0.0]
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: now[0])
    written = []
    keeper = checkpoint.Checkpoint(
        tmp_path, relu_mlp(), bb.Laplace(relu_mlp()).options, checkpoint.current_processes()
    )
    monkeypatch.setattr(
        keeper, "_write", lambda totals: (written.append(now[0]), now.append(now.pop() + 4.0))
    )
    keeper.begin([points()], torch.device("cpu"))
    for moment in (10.0, 29.0, 31.0, 40.0, 100.0, 114.0, 116.0):
        now[0] = moment
        keeper.write_if_due(Totals(), lambda: None)
    # Writing takes four seconds, so the pause is eighty.
    assert written == [31.0, 116.0]

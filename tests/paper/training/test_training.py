"""Recipes, augmentation, the three losses, resuming and the cache, on small problems."""

import json
import math
import random
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from bitbayes.errors import ArgumentError, DataError, FileError, UncheckedWarning
from interrupted import interrupted
from paper.training import (
    CIFAR,
    MNIST,
    OBJECTIVES,
    Recipe,
    augmented,
    checkpoint,
    confident_neighbours,
    train,
    trained,
)
from paper.training.objectives import acet, outlier_exposure, plain

SHORT = Recipe(epochs=4, batch_size=16, crop=1, learning_rate=0.01)


def problem(n=64, classes=3):
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(n, 1, 4, 4, generator=generator)
    return x, (x.mean((1, 2, 3)) * 100).long() % classes


def network(classes=3):
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, classes))


def test_the_rate_is_divided_by_ten_at_50_75_and_95_percent():
    rates = [MNIST.learning_rate_at(epoch) for epoch in (0, 49, 50, 74, 75, 94, 95, 99)]
    assert rates == [1e-3, 1e-3, 1e-4, 1e-4, 1e-5, 1e-5, 1e-6, 1e-6]
    assert CIFAR.learning_rate_at(50) == 0.01


def test_about_half_of_the_images_are_moved_and_no_pixel_is_invented():
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(2000, 2, 6, 6, generator=generator)
    moved = augmented(images, Recipe(crop=2), generator)
    same = (moved == images).flatten(1).all(1)
    # Half are left alone, and one in 25 of the others is moved by nothing: 0.52, standard error 0.011.
    assert abs(same.double().mean() - 0.52) < 0.045
    # Each output is one of the 25 windows of the padded image.
    padded = functional.pad(images, (2, 2, 2, 2))
    windows = padded.unfold(2, 6, 1).unfold(3, 6, 1)  # (n, c, 5, 5, 6, 6)
    hit = (windows == moved[:, :, None, None]).all(-1).all(-1).all(1)  # (n, 5, 5)
    assert hit.flatten(1).any(1).all()


def test_a_crop_shifts_about_half_of_the_images_by_up_to_two_pixels():
    images = torch.zeros(4000, 1, 28, 28)
    images[:, 0, 10, 12] = 1
    cropped = augmented(images, Recipe(crop=2), torch.Generator().manual_seed(0))
    assert cropped.shape == images.shape
    places = cropped.flatten(1).argmax(dim=1)
    shifts = torch.stack([places // 28 - 10, places % 28 - 12], dim=1)  # (n, 2)
    counts = torch.zeros(5, 5).index_put(
        (shifts[:, 0] + 2, shifts[:, 1] + 2), torch.ones(4000), accumulate=True
    )
    # Each shift has probability 1/50, and no shift 1/2 + 1/50; five standard deviations to each side.
    probability = torch.full((5, 5), 1 / 50)
    probability[2, 2] += 1 / 2
    deviation = (4000 * probability * (1 - probability)).sqrt()
    assert ((counts - 4000 * probability).abs() < 5 * deviation).all()
    assert counts.sum() == 4000


def test_flips_mirror_a_quarter_of_the_images():
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(2000, 1, 5, 5, generator=generator)
    moved = augmented(images, Recipe(crop=0, flip=True), generator)
    mirrored = (moved == images.flip(3)).flatten(1).all(1)
    assert abs(mirrored.double().mean() - 0.25) < 0.04  # four standard errors
    assert (mirrored | (moved == images).flatten(1).all(1)).all()


def test_losses_are_their_formulas():
    torch.manual_seed(0)
    net, (x, y) = network().double(), problem()
    x, outliers = x.double(), torch.rand(10, 1, 4, 4).double()
    log_p, outside = net(x).log_softmax(1), net(outliers).log_softmax(1)
    nll = -log_p[torch.arange(len(y)), y].mean()
    assert math.isclose(plain(net, x, y, outliers[:0]).item(), nll.item(), rel_tol=1e-6)
    expected = nll - 0.5 * outside.mean(1).mean()
    found = outlier_exposure(net, x, y, outliers, strength=0.5)
    assert math.isclose(found.item(), expected.item(), rel_tol=1e-6)
    attacked = net(confident_neighbours(net, outliers, epsilon=0.2)).log_softmax(1).max(1).values.mean()
    expected = (nll + 2 * attacked) / 3
    found = acet(net, x, y, outliers, torch.tensor(0.2), strength=2.0)
    assert math.isclose(found.item(), expected.item(), rel_tol=1e-6)


def test_an_attack_grows_to_its_radius(monkeypatch):
    seen = []

    def attack(network, x, *, epsilon):
        seen.append(float(epsilon))
        return x

    monkeypatch.setattr("paper.training.objectives.confident_neighbours", attack)
    x, y = problem()
    recipe = Recipe(epochs=3, batch_size=len(x) // 2, crop=0)  # two steps an epoch
    train(network(), x, y, recipe=recipe, objective="acet", attack_ramp=2, progress=False)
    assert seen == pytest.approx([0.075, 0.15, 0.225, 0.3, 0.3, 0.3])
    seen.clear()
    train(network(), x, y, recipe=recipe, objective="acet", progress=False)
    assert seen == pytest.approx([0.3] * 6)


def test_one_logit_is_two_classes():
    net, (x, y) = network(1), problem(classes=2)
    f = net(x)[:, 0]
    expected = functional.softplus((1 - 2 * y) * f).mean()
    assert torch.allclose(plain(net, x, y, x[:0]), expected)


def test_the_attack_raises_confidence_and_stays_near():
    torch.manual_seed(0)
    net, x = network(), torch.rand(50, 1, 4, 4)
    attacked = confident_neighbours(net, x, epsilon=0.2)
    before, after = (net(each).softmax(1).max(1).values for each in (x, attacked))
    assert (after >= before).all() and (after > before + 1e-4).any()
    assert (attacked - x).abs().max() <= 0.2 + 1e-6
    assert attacked.min() >= 0 and attacked.max() <= 1
    assert all(parameter.grad is None for parameter in net.parameters())


def test_the_attack_reaches_the_corner_of_a_linear_network():
    line = nn.Sequential(nn.Flatten(), nn.Linear(4, 1, bias=False))
    nn.init.ones_(line[1].weight)
    x = torch.full((1, 1, 2, 2), 0.5)
    assert torch.allclose(confident_neighbours(line, x, epsilon=0.3), torch.full_like(x, 0.8))


@pytest.mark.parametrize("objective", sorted(OBJECTIVES))
def test_the_same_seed_gives_the_same_network(objective):
    x, y = problem()
    outliers = torch.randint(0, 256, (20, 1, 4, 4), dtype=torch.uint8)
    nets = []
    for seed in (0, 0, 1):
        torch.manual_seed(0)
        net = network()
        losses = train(net, x, y, recipe=SHORT, objective=objective, outliers=outliers, seed=seed)
        assert len(losses) == 4 and not net.training
        nets.append(net(x))
    assert torch.equal(nets[0], nets[1])
    assert not torch.equal(nets[0], nets[2])


def test_exposure_lowers_the_confidence_on_outliers():
    x, y = problem(classes=2)
    outliers = torch.rand(50, 1, 4, 4) * 0.2
    recipe = Recipe(epochs=30, batch_size=16, crop=0, learning_rate=0.01)
    confidence = {}
    for objective in ("plain", "oe", "acet"):
        torch.manual_seed(0)
        net = network(2)
        train(net, x, y, recipe=recipe, objective=objective, outliers=outliers)
        noise = confident_neighbours(net, torch.rand(50, 1, 4, 4)) if objective != "oe" else outliers
        confidence[objective] = net(noise).softmax(1).max(1).values.mean()
        if objective == "plain":
            confidence["outliers"] = net(outliers).softmax(1).max(1).values.mean()
    assert confidence["oe"] < confidence["outliers"]
    assert confidence["acet"] < confidence["plain"]


def convolutions(classes=3):
    """Their weights have several input channels: the layout of weights and of momenta counts."""
    layers = [nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Conv2d(3, 5, 2), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(5, classes))


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("make", [network, convolutions])
def test_a_stopped_run_goes_on_where_it_stopped(make, optimizer, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    x, y = problem()
    part, recipe = tmp_path / "net.part", replace(SHORT, optimizer=optimizer)

    def start():
        torch.manual_seed(0)
        return make()

    whole = start()
    expected = train(whole, x, y, recipe=recipe)

    with interrupted(monkeypatch, after=2):
        train(start(), x, y, recipe=recipe, checkpoint_file=part)
    assert part.exists()
    again = start()
    losses = train(again, x, y, recipe=recipe, checkpoint_file=part)
    assert losses == expected
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), whole.parameters(), strict=True))


def test_training_begins_at_given_weights(tmp_path):
    x, y = problem()
    start, still = network(), Recipe(epochs=1, learning_rate=0.0, weight_decay=0.0, crop=0)
    found = trained(tmp_path, "net", network, x, y, recipe=still, start=start, seed=5)
    assert all(torch.equal(each, start.state_dict()[name]) for name, each in found.state_dict().items())
    assert found is not start
    with pytest.raises(FileError, match="start="):  # another beginning is another training
        trained(tmp_path, "net", network, x, y, recipe=still, start=network(), seed=5)


def test_the_cache_trains_once(tmp_path, monkeypatch):
    x, y = problem()
    first = trained(tmp_path, "net", network, x, y, recipe=SHORT)
    story = json.loads((tmp_path / "net.json").read_text())
    assert story["recipe"]["epochs"] == 4 and len(story["losses"]) == 4
    monkeypatch.setattr("paper.training.cache.train", lambda *args, **kwargs: pytest.fail("trained again"))
    second = trained(tmp_path, "net", network, x, y, recipe=SHORT)
    assert torch.equal(first(x), second(x)) and not second.training
    with pytest.raises(FileError, match="seed=0, but 1"):
        trained(tmp_path, "net", network, x, y, recipe=SHORT, seed=1)
    with pytest.raises(FileError, match="does not hold this network"):
        trained(tmp_path, "net", lambda: network(5), x, y, recipe=SHORT)
    (tmp_path / "net.json").write_text("{")
    with pytest.raises(FileError, match="damaged"):
        trained(tmp_path, "net", network, x, y, recipe=SHORT)


def test_what_is_wrong_is_said():
    x, y = problem()
    with pytest.raises(ArgumentError, match="needs `outliers`"):
        train(network(), x, y, objective="oe")
    with pytest.raises(ArgumentError, match="choose one of"):
        train(network(), x, y, objective="ccu")
    with pytest.raises(DataError, match="64 images with 3 labels"):
        train(network(), x, y[:3])
    broken = network()
    nn.init.constant_(broken[1].weight, torch.nan)
    with pytest.raises(DataError, match="became NaN"):
        train(broken, x, y, recipe=SHORT)


def test_an_unfinished_run_goes_on_only_with_the_same_settings(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    x, y = problem()
    with interrupted(monkeypatch, after=1):
        trained(tmp_path, "net", network, x, y, recipe=SHORT)
    other = trained(tmp_path / "apart", "net", network, x, y, recipe=SHORT, seed=1)
    beside = trained(tmp_path, "net", network, x, y, recipe=SHORT, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(beside.parameters(), other.parameters(), strict=True))


def test_the_seconds_of_all_sittings_count(tmp_path, monkeypatch):
    x, y = problem()
    with interrupted(monkeypatch, after=2):
        trained(tmp_path, "net", network, x, y, recipe=SHORT)
    (part,) = tmp_path.glob("net.*.part")
    run = checkpoint._read(part)
    assert 0 < run.seconds < 60
    monkeypatch.setattr(checkpoint, "_read", lambda _: run._replace(seconds=1000.0))
    trained(tmp_path, "net", network, x, y, recipe=SHORT)
    assert 1000 <= json.loads((tmp_path / "net.json").read_text())["seconds"] < 1060


def test_a_network_is_not_lost_if_it_cannot_be_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    x, y = problem()

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr("paper.training.cache.write_bytes", full)
    with pytest.raises(OSError, match="no space"):
        trained(tmp_path, "net", network, x, y, recipe=SHORT)
    (part,) = tmp_path.glob("net.*.part")
    monkeypatch.undo()
    monkeypatch.setattr("paper.training.step.TrainingStep.__call__", lambda *_: pytest.fail("trained again"))
    trained(tmp_path, "net", network, x, y, recipe=SHORT)
    assert not part.exists()


def test_the_cache_knows_its_data(tmp_path):
    x, y = problem()
    trained(tmp_path, "net", network, x, y, recipe=SHORT)
    with pytest.raises(FileError, match="data="):
        trained(tmp_path, "net", network, x.flip(0), y, recipe=SHORT)


@pytest.fixture
def cached(tmp_path):
    """A function that gets a small network from the cache, where it is trained already, and its two files."""
    x, y = problem()

    def get():
        return trained(tmp_path, "net", network, x, y, recipe=SHORT)

    get()
    return get, tmp_path / "net.safetensors", tmp_path / "net.json"


def flip_bit(path, position, generator):
    raw = bytearray(path.read_bytes())
    raw[position] ^= 1 << generator.randrange(8)
    path.write_bytes(raw)


def test_a_changed_bit_of_a_cached_network_is_noticed(cached):
    get, weights, _ = cached
    raw, generator = weights.read_bytes(), random.Random(0)
    for _ in range(150):
        flip_bit(weights, generator.randrange(len(raw)), generator)
        with pytest.raises(FileError, match=r"net\.safetensors.* delete it and its record"):
            get()
        weights.write_bytes(raw)
    get()


def test_a_changed_record_of_a_cached_network_is_noticed(cached):
    get, _, record = cached
    text = record.read_text()
    digest = json.loads(text)["weights_sha256"]
    for changed in (text.replace(digest, digest[::-1]), "[" * 100_000, "[1, 2]", "17", ""):
        record.write_text(changed)
        with pytest.raises(FileError, match=r"net\.json.* delete it"):
            get()
    record.write_text(text)
    get()


def test_weights_of_another_training_are_noticed(cached, tmp_path):
    get, weights, _ = cached
    x, y = problem()
    trained(tmp_path / "apart", "net", network, x, y, recipe=SHORT, seed=1)
    weights.write_bytes((tmp_path / "apart" / "net.safetensors").read_bytes())
    with pytest.raises(FileError, match="of two trainings; delete it"):
        get()


@pytest.mark.parametrize("readable_only", [False, True])
def test_a_cached_network_of_an_older_version_is_used_with_a_warning_and_gets_a_digest(
    cached, monkeypatch, readable_only
):
    get, weights, record = cached
    told = json.loads(record.read_text())
    del told["weights_sha256"]
    record.write_text(json.dumps(told))
    if readable_only:
        monkeypatch.setattr("paper.training.cache.write_text", refused)
    x, _ = problem()
    with pytest.warns(UncheckedWarning, match=r"net.safetensors has no digest.*delete it to train again"):
        expected = get()(x)
    if readable_only:
        assert json.loads(record.read_text()) == told
        return
    assert torch.equal(get()(x), expected)
    flip_bit(weights, weights.stat().st_size - 1, random.Random(0))
    with pytest.raises(FileError, match="is damaged"):
        get()


def refused(*_):
    raise FileError("the folder is only read")


@pytest.fixture
def unfinished(tmp_path, monkeypatch):
    """A function that goes on with a training that was interrupted, its network, and the file of the run."""
    x, y = problem()
    part = tmp_path / "net.part"
    with interrupted(monkeypatch, after=2):
        train(network(), x, y, recipe=SHORT, checkpoint_file=part)
    net = network()
    return lambda: train(net, x, y, recipe=SHORT, checkpoint_file=part), net, part


def assert_refused(unfinished, match):
    go_on, net, _ = unfinished
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with pytest.raises(FileError, match=rf"net\.part .*{match}.*; delete it"):
        go_on()
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_a_changed_bit_of_an_unfinished_run_is_noticed(unfinished):
    _, _, part = unfinished
    raw, generator = part.read_bytes(), random.Random(0)
    for _ in range(100):
        flip_bit(part, generator.randrange(len(raw)), generator)
        assert_refused(unfinished, "")
        part.write_bytes(raw)
    for size in (0, 7, 100, len(raw) - 1):
        part.write_bytes(raw[:size])
        assert_refused(unfinished, "is damaged")


def test_a_run_of_another_network_is_refused(unfinished):
    _, _, part = unfinished
    other, recipe = network(5), SHORT
    checkpoint.save_if_due(part, other, recipe.make_optimizer(other), [0.5], 0.0)
    assert_refused(unfinished, "another network")


def test_a_folder_that_cannot_be_written_to_is_refused_before_the_training(tmp_path, monkeypatch):
    x, y = problem()
    (tmp_path / "file").touch()
    monkeypatch.setattr("paper.training.step.TrainingStep.__call__", lambda *_: pytest.fail("trained"))
    with pytest.raises(FileError, match="cannot make the folder"):
        trained(tmp_path / "file", "net", network, x, y, recipe=SHORT)
    with pytest.raises(FileError, match="cannot make the folder"):
        train(network(), x, y, recipe=SHORT, checkpoint_file=tmp_path / "file" / "part")

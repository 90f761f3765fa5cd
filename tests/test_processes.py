"""Several processes: the posterior, the numbers and the predictions of one process with all the data."""

import pytest
import torch
import torch.distributed as dist

import several
import several_tasks
from bitbayes import processes
from bitbayes.errors import ArgumentError
from bitbayes.fitted import DataEntry
from bitbayes.tuning.noise import NoiseLike

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="this torch has no Gloo"
)
CLOSE = 1e-9
CASES = [({}, {}, split) for split in ("sampler", "uneven", "empty")]
MORE = [
    ({"k": 1, "residual": True}, {"objective": "ood"}, "uneven"),
    ({"k": 1}, {}, "empty"),
    ({"structure": "full"}, {"objective": "nll"}, "sampler"),
    ({"structure": "diag", "residual": True}, {"objective": "nll"}, "empty"),
    ({"structure": "isotropic"}, {"objective": "ood"}, "sampler"),
    ({"layers": "all"}, {}, "uneven"),
    ({"layers": "all", "structure": "diag"}, {"objective": "evidence"}, "empty"),
]


def assert_same(found, expected, close):
    """To `close`, relative to the largest number of each tensor; 0: to the last bit."""
    assert found["tensors"].keys() == expected["tensors"].keys()
    assert DataEntry.joined(found["entries"]) == DataEntry.joined(expected["entries"])
    assert found["tuned"] == expected["tuned"]
    pairs = [(found["tensors"][name], each) for name, each in expected["tensors"].items()]
    pairs += [(found[name], expected[name]) for name in ("sums", "probabilities")]
    pairs += list(zip(found["numbers"], expected["numbers"], strict=True))
    for ours, theirs in pairs:
        assert ours.shape == theirs.shape
        if theirs.numel():  # an input has no classes
            assert float((ours - theirs).abs().max()) <= close * float(theirs.abs().max())


def check(size, cases):
    (expected,) = several.run(1, several_tasks.fit_update_tune, cases)
    answers = several.run(size, several_tasks.fit_update_tune, cases)
    for case, alone in enumerate(expected):
        assert alone["sums"][0] == several_tasks.POINTS + 50
        # One entry for `fit` and one for `update`, by however many processes.
        assert answers[0][case]["entries"] == alone["entries"] and len(alone["entries"]) == 2
        assert_same(answers[0][case], alone, CLOSE)
        for other in answers[1:]:
            assert_same(other[case], answers[0][case], 0)


@pytest.mark.parametrize("size", [2, 4])
def test_some_processes_find_what_one_finds(size):
    check(size, CASES)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3, 4])
def test_some_processes_find_what_one_finds_whatever_is_asked_for(size):
    check(size, CASES + MORE)


def test_one_that_fails_makes_all_fail():
    answers = several.run(3, several_tasks.one_fails)
    assert [kind for kind, _, _ in answers] == ["ProcessError", "DataError", "ProcessError"]
    for kind, message, unchanged in answers:
        assert "batch 2 holds NaN or infinity" in message and unchanged
        assert kind == "DataError" or "process 1: DataError" in message


def test_one_that_fails_in_a_check_is_heard_at_once(tmp_path):
    first, second = several.run(2, several_tasks.one_fails_in_a_check, tmp_path)
    for what, (kind, message, _) in second[0].items():
        theirs, heard, _ = first[0][what]
        assert kind in ("ModelError", "NotFittedError", "ArgumentError", "DataError"), what
        assert theirs == "ProcessError" and f"process 1: {kind}: {message}" in heard, what
    # All stay as they were, and go on together.
    assert first[1] and second[1] and first[2] == second[2]


def test_one_that_is_killed_makes_the_others_fail():
    first, second, last = several.run_all(3, several_tasks.one_is_killed)
    assert last is None
    for kind, message, seconds in (first, second):
        assert kind == "ProcessError" and "timed out waiting" in message and seconds < several.TIMEOUT


def test_one_that_does_not_take_part_is_not_waited_for_longer_than_the_time_out():
    (kind, message, seconds), _ = several.run(2, several_tasks.one_does_not_take_part, timeout=2)
    assert kind == "ProcessError" and "process_group(None)" in message and seconds < 4


def test_processes_that_do_not_agree():
    for answers in several.run(2, several_tasks.different_tasks):
        kinds, messages, _ = zip(*answers, strict=True)
        assert kinds[:6] == ("ProcessError",) * 3 + ("DataError",) + ("EmptyLoaderError",) * 2
        assert kinds[6:] == ("ProcessError",) * 3
        assert "hold different models" in messages[0]
        assert "structure='diag'" in messages[1] and "structure='kron'" in messages[1]
        assert "update of 203 points" in messages[2] and "tune('calibrated'" in messages[2]
        assert "have read the same 203 points" in messages[3]
        assert "the loaders of all processes are empty" in messages[4] == messages[5]
        # Each has fitted its own share by itself.
        assert all("of 102 points" in each and "of 101 points" in each for each in messages[6:])


def test_a_process_alone_and_groups_of_some():
    answers = several.run(4, several_tasks.alone_and_in_pairs)
    counts = [count for _, _, count in answers]
    assert counts == [51, 51, 51, 50]  # no point of the padded shares twice
    pairs = [int(pair["sums"][0]) for _, pair, _ in answers]
    assert pairs == [102, 102, 101, 101]
    assert_same(answers[1][1], answers[0][1], 0)
    assert answers[0][0]["numbers"][1] != answers[1][0]["numbers"][1]


def test_a_group_is_a_group():
    with (
        pytest.raises(ArgumentError, match="process_group\\('gloo'\\): expected a group"),
        processes.process_group("gloo"),
    ):
        pass


@pytest.fixture(scope="module")
def plain():
    return several.run(1, several_tasks.plain)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", ["ddp", "fsdp1", "fsdp1, own parameters", "fsdp2"])
def test_wrapped_models(kind, plain, tmp_path):
    (expected,) = plain
    answers = several.run(2, several_tasks.wrapped, kind, tmp_path)
    for found, loaded, again, unchanged, content in answers:
        assert unchanged
        assert_same(found, expected, CLOSE)
        assert_same(loaded, found, 0)
        assert_same(again, found, 0)
        assert content == answers[0][4]  # one posterior, to the last bit of its file


def test_a_checkpoint_of_each_process(tmp_path):
    answers = several.run(2, several_tasks.interrupted_and_resumed, tmp_path)
    for expected, found, _, kept, left in answers:
        assert kept == ["fit-0-of-2.safetensors", "fit-1-of-2.safetensors"] and left == []
        assert_same(found, expected, 0)
    assert [failed for _, _, failed, _, _ in answers] == ["ProcessError", "OSError"]


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_sketches_of_many_classes(size, tmp_path):
    """By all processes, resumed, and merged of files: the same bits everywhere."""
    answers = several.run(size, several_tasks.sketches, tmp_path)
    for together, resumed, merged, error in answers:
        assert error > 0  # the rank does not suffice
        for each in (together, resumed, merged):
            assert_same(each, answers[0][0], 0)


def test_the_same_points_are_noticed_by_sketches_that_differ():
    (first, error), (second, same) = several.run(2, several_tasks.sketches_of_the_same_points)
    assert not torch.allclose(first.abs().sum(), second.abs().sum(), rtol=1e-6)
    assert error[:2] == same[:2] and error[0] == "DataError"
    assert "have read the same 203 points" in error[1]


def test_a_share_without_any_label_is_an_empty_one():
    (expected,) = several.run(1, several_tasks.positions)
    for found in several.run(2, several_tasks.positions):
        assert_same(found, expected, CLOSE)


def test_positions_of_a_small_share_weigh_no_more():
    """Where one process drops most of its positions, so do the others."""
    (many, shares), (few, same) = several.run(2, several_tasks.positions_of_uneven_shares)
    (share,) = shares
    assert shares == same and share <= 1 / 8
    # Up to five standard deviations of a binomial number.
    for found, count in ((many, 40_000), (few, 2000)):
        assert abs(found - share * count) < 5 * (count * share * (1 - share)) ** 0.5


@pytest.mark.parametrize("others", [1, 3])
def test_inputs_that_are_of_another_size_in_one_process_are_no_level_in_any(others):
    first, second = several.run(2, several_tasks.images_of_two_sizes, "auto", others)
    assert first[0] == second[0] == ["head"]
    assert first[1]["sums"][0] == 36 and first[1]["tensors"]["level head/count"] == 36
    assert_same(second[1], first[1], 0)


def test_inputs_that_are_of_another_size_in_one_process_are_refused_if_the_residual_was_asked_for():
    for kind, message in several.run(2, several_tasks.images_of_two_sizes, True, 3):
        assert kind == "DataError" and "inputs of 16 and of 25 numbers" in message


def test_logits_that_a_function_picks():
    (expected,) = several.run(1, several_tasks.picked_by_a_function)
    for found in several.run(2, several_tasks.picked_by_a_function):
        assert_same(found, expected, CLOSE)


def test_drawn_labels_are_other_ones_in_each_process():
    (first, both), (second, _) = several.run(2, several_tasks.drawn_labels)
    differ = [not torch.equal(first["tensors"][name], each) for name, each in second["tensors"].items()]
    assert not any(differ)  # alone, each draws the same
    total = {name: first["tensors"][name] + each for name, each in second["tensors"].items()}
    assert any(not torch.equal(total[name], each) for name, each in both["tensors"].items())


def test_shares_of_noise_are_the_noise_of_one_process():
    x = torch.rand(30, 2, 3)
    every = [
        NoiseLike.of(x[:5]),
        NoiseLike.of(x[5:7]) + NoiseLike.of(x[7:8]),
        NoiseLike(),
        NoiseLike.of(x[8:]),
    ]
    shares = [list(NoiseLike.share(every, rank)) for rank in range(4)]
    (whole,) = NoiseLike.of(x)
    assert [len(each) for each in shares] == [1, 2, 0, 1]
    assert torch.equal(torch.cat([batch for share in shares for batch in share]), whole)


def test_noise_that_others_draw_is_left_out_in_parts(monkeypatch):
    monkeypatch.setattr("bitbayes.tuning.noise.SKIPPED_AT_ONCE", 7)
    x = torch.rand(30, 2, 3)
    (share,) = NoiseLike.share([NoiseLike.of(x[:11]), NoiseLike.of(x[11:])], 1)
    (whole,) = NoiseLike.of(x)
    assert torch.equal(share, whole[11:])


@pytest.mark.parametrize(
    "backends, device, expected",
    [
        ("cpu:gloo,cuda:gloo", "cpu", "cpu"),
        ("cpu:gloo,cuda:gloo", "meta", "cpu"),
        ("cpu:gloo,cuda:nccl", "cpu", "cpu"),
        ("cuda:nccl", "cpu", "cuda:1"),
        ("meta:other", "meta", "meta"),
    ],
)
def test_tensors_are_sent_from_where_the_group_can(backends, device, expected, monkeypatch):
    """A device without a GPU can only say where it would send from."""
    monkeypatch.setattr(dist, "get_backend_config", lambda group: backends)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    moved = []
    monkeypatch.setattr(torch.Tensor, "to", lambda self, place: moved.append(str(place)) or self)
    tensor = torch.zeros(3, device=device)
    processes.Processes(None, 0, 2)._sendable(tensor)
    assert (moved or [device])[0] == expected

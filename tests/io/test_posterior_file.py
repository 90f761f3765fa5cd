"""Posteriors come back bit for bit; files that are damaged, foreign or of another model are refused."""

import copy
import errno
import json
import os
import struct
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import bitbayes as bb
import dense
import ray_cases
import reference
from bitbayes.errors import DataError, EdgeWarning, FileError, ModelError, NotFittedError
from bitbayes.io import posterior_file
from bitbayes.io.tensor_file import write_tensors
from classifiers import points, relu_mlp
from reference import fitted


@pytest.fixture
def saved(tmp_path):
    """A fitted Laplace, its inputs, and its file."""
    bayes, x, _ = fitted()
    bayes.save(tmp_path / "bayes.safetensors")
    return bayes, x, tmp_path / "bayes.safetensors"


def header(path):
    """The JSON that safetensors keeps before its tensors."""
    raw = path.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + size])


@pytest.mark.parametrize(
    "structure, k, dtype",
    [
        ("full", 1, torch.float32),
        ("full", 3, torch.float64),
        ("kron", 3, torch.float32),
        ("diag", 1, torch.float64),
        ("isotropic", 3, torch.float32),
        ("auto", 1, torch.bfloat16),
        ("auto", 3, torch.float64),
    ],
)
def test_round_trip_is_bit_for_bit(tmp_path, structure, k, dtype):
    bayes, x, y = fitted(k, dtype=dtype, structure=structure, prior_variance=7.3, predictive="probit")
    bayes.save(str(tmp_path / "bayes"))
    again = bb.Laplace.load(str(tmp_path / "bayes"), copy.deepcopy(bayes.model))
    assert torch.equal(again.predict_proba(x), bayes.predict_proba(x))
    assert torch.equal(again(x), bayes(x))
    assert torch.equal(again.logits(x).covariance, bayes.logits(x).covariance)
    assert again.prior_variance == 7.3
    generators = [torch.Generator().manual_seed(0) for _ in range(2)]
    first, second = bayes.sample(2, generator=generators[0]), again.sample(2, generator=generators[1])
    assert all(torch.equal(first[name], second[name]) for name in first)
    if structure != "isotropic":
        assert torch.equal(again.log_evidence(), bayes.log_evidence())
    # It goes on from there: more data, another prior.
    bayes.update([(x, y)]).prior_variance = 2.0
    again.update([(x, y)]).prior_variance = 2.0
    assert torch.equal(again.predict_proba(x), bayes.predict_proba(x))


@pytest.mark.filterwarnings("ignore::bitbayes.errors.EdgeWarning")
@pytest.mark.parametrize("layers", ["last", "all"])
@pytest.mark.parametrize("k", [1, 3])
def test_the_classes_come_back_from_a_file(tmp_path, k, layers):
    """Their counts and means, the numbers of the score, and so every distance; and they go on adding."""
    bayes, x = ray_cases.laplace("mlp", k, n=100, predicted=True, layers=layers)
    y = ray_cases.predicted_labels(bayes.model, 2 * x)
    bayes.tune([(2 * x, y.roll(1))])
    assert bayes.settings.class_spread is not None and bayes.settings.score_edge != 1.0
    bayes.save(tmp_path / "bayes")
    again = bb.Laplace.load(tmp_path / "bayes", copy.deepcopy(bayes.model))
    assert again.settings == bayes.settings and again.known_residual.names == bayes.known_residual.names
    for _ in range(2):
        sums = [each.posterior.fitted.level_sums for each in (again, bayes)]
        assert [*sums[0]] == [*sums[1]] and sums[0]["head"].has_classes and not sums[0]["2"].has_classes
        for name, each in sums[1].items():
            assert all(torch.equal(sums[0][name].tensors()[field], t) for field, t in each.tensors().items())
        assert torch.equal(again.known_residual.distances(5 * x), bayes.known_residual.distances(5 * x))
        assert torch.equal(again.score(5 * x), bayes.score(5 * x))
        for each in (again, bayes):
            each.update([(x, y)])


@pytest.mark.parametrize("bias", [True, False])
def test_options_come_back_from_a_file(tmp_path, bias):
    options = {
        "structure": "kron",
        "predictive": "bridge",
        "head": "head",
        "prior_variance": 0.1,
    }
    bayes, x, _ = fitted(bias=bias, **options)
    bayes.save(tmp_path / "b")
    again = bb.Laplace.load(tmp_path / "b", bayes.model)
    assert {name: getattr(again, name) for name in options} == options
    assert torch.equal(again.predict_proba(x), bayes.predict_proba(x))


def test_the_file_is_safetensors_with_a_json_header(saved):
    _, _, path = saved
    tensors = load_file(path)  # as any other program would
    assert tensors and all(tensor.isfinite().all() for tensor in tensors.values())
    told = json.loads(header(path)["__metadata__"]["bitbayes"])
    assert told["structures"] == {"head": "kron"}
    assert "fingerprint" in told and "format" in told
    raw = path.read_bytes()
    assert b"pickle" not in raw and raw[:2] not in (b"PK", b"\x80\x04", b"\x80\x05")
    names = set(header(path)) - {"__metadata__"}
    assert names == set(tensors)


def test_neither_the_data_nor_the_models_weights_are_in_the_file(saved):
    bayes, x, path = saved
    raw = path.read_bytes()
    for tensor in (x, x[:1], *(parameter.detach()[:1] for parameter in bayes.model.parameters())):
        assert tensor.contiguous().numpy().tobytes() not in raw


def test_saving_twice_replaces_the_file(saved):
    bayes, _, path = saved
    bayes.prior_variance = 5.0
    bayes.save(path)
    assert bb.Laplace.load(path, bayes.model).prior_variance == 5.0
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def refuses(path, model, match):
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(FileError, match=match):
        bb.Laplace.load(path, model)
    assert before is None or path.read_bytes() == before


def test_a_damaged_header_is_refused(saved):
    bayes, _, path = saved
    raw = bytearray(path.read_bytes())
    raw[20] = 0xFF
    path.write_bytes(bytes(raw))
    refuses(path, bayes.model, "damaged")


def rewrite(path, change, write=write_tensors):
    """Write the file again with its tensors under a changed header, and with a digest that is right."""
    told = json.loads(header(path)["__metadata__"]["bitbayes"])
    tensors = load_file(path)
    change(told, tensors)
    write(path, tensors, {"bitbayes": json.dumps(told)})


def without_digest(path, tensors, metadata):
    """Write a file as earlier versions did."""
    save_file(tensors, path, metadata)


@pytest.mark.parametrize(
    "change",
    [
        lambda told, tensors: told.pop("fingerprint"),
        lambda told, tensors: told.pop("head"),
        lambda told, tensors: told.pop("options"),
        lambda told, tensors: told.update(structures={"head": "kfac"}),
        lambda told, tensors: told.update(head="head"),
        lambda told, tensors: told["options"].update(colour="blue"),
        lambda told, tensors: told["options"].update(structure="kfac"),
        lambda told, tensors: told["numbers"].update(prior_variance=-1.0),
        lambda told, tensors: told["numbers"].update(prior_variance=float("nan")),
        lambda told, tensors: told["numbers"].update(temperature=float("inf")),
        lambda told, tensors: told.update(loss=float("inf")),
        lambda told, tensors: told.pop("entries"),
        lambda told, tensors: told["entries"][0].update(digest="some"),
        lambda told, tensors: told.update(loss=10**400),
        lambda told, tensors: tensors.pop("curvature/head/inputs"),
        lambda told, tensors: tensors.update(extra=torch.zeros(2)),
    ],
)
def test_headers_that_make_no_sense_are_refused(saved, change):
    bayes, _, path = saved
    rewrite(path, change)
    refuses(path, bayes.model, "bayes.safetensors")


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "{" * 100_000, '{"format": 1e999}', '{"format": NaN}', "9" * 5000]
)
def test_texts_that_are_no_json_are_refused(saved, text):
    bayes, _, path = saved
    write_tensors(path, load_file(path), {"bitbayes": text})
    refuses(path, bayes.model, "damaged header")


@pytest.mark.parametrize("write", [write_tensors, without_digest])
@pytest.mark.parametrize(
    "number, todo",
    [(1, "fit again and save again"), (6, "fit again and save again"), (99, "the version that wrote it")],
)
def test_another_format_is_refused_and_named(saved, number, todo, write):
    bayes, _, path = saved
    rewrite(path, lambda told, tensors: told.update(format=number), write)
    refuses(path, bayes.model, f"format {number}.*{todo}")


OVERWRITTEN = """
import os, sys, torch
import bitbayes as bb
x, y = torch.randn(50, 64).double(), torch.arange(50) % 10
model = torch.nn.Linear(64, 10).double()
path = sys.argv[1]
bb.Laplace(model, structure="full").fit([(x, y)]).save(path)
bayes = bb.Laplace.load(path, model)
size = os.path.getsize(path)
assert size > 2_000_000  # several pages
fitted = bayes.posterior.fitted
before = [tensor.clone() for tensor in fitted.curvature[""].tensors().values()]
with open(path, "r+b") as file:
    file.seek(size // 2)
    file.write(bytes(size // 2))
    file.truncate(file.tell() - 100_000)
after = fitted.curvature[""].tensors().values()
assert all(map(torch.equal, before, after))
"""


def test_a_loaded_posterior_does_not_depend_on_its_file_any_more(tmp_path):
    """In a process of its own, because it would be killed if the tensors were a map of the file."""
    command = [sys.executable, "-c", OVERWRITTEN, str(tmp_path / "bayes.safetensors")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr or run.returncode


REPLACING = """
import os, shutil, sys
old, new, path = sys.argv[1:]
while True:
    for source in (old, new):
        shutil.copyfile(source, path + ".part")
        os.replace(path + ".part", path)
"""


def test_loading_while_another_process_saves_gives_the_old_or_the_new_posterior(saved):
    bayes, x, path = saved
    paths = [str(path.with_name(name)) for name in ("old", "new", path.name)]
    bayes.save(paths[0])
    other = bb.Laplace(bayes.model, prior_variance=5.0).fit([(2 * x, torch.arange(len(x)) % 3)])
    other.save(paths[1])
    expected = {each.prior_variance: each.log_evidence().item() for each in (bayes, other)}
    found = {}
    with subprocess.Popen([sys.executable, "-c", REPLACING, *paths]) as writer:
        try:
            for _ in range(400):
                again = bb.Laplace.load(path, bayes.model)
                found[again.prior_variance] = again.log_evidence().item()
        finally:
            writer.kill()
    assert found == expected


def test_numbers_that_are_not_finite_are_not_saved(saved):
    bayes, _, path = saved
    before = path.read_bytes()
    fitted = replace(bayes.posterior.fitted, loss=float("inf"))
    with pytest.raises(FileError, match="not finite"):
        posterior_file.write(path, {}, {}, fitted, None)
    assert path.read_bytes() == before


def test_a_foreign_safetensors_file_is_refused(tmp_path):
    model = reference.network(3)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    refuses(tmp_path / "model.safetensors", model, "not written by bitbayes")


@pytest.mark.parametrize("content", ["", "hello", '{"a": 1}', "x" * 5000])
def test_a_text_file_is_refused(tmp_path, content):
    (tmp_path / "notes.txt").write_text(content)
    refuses(tmp_path / "notes.txt", reference.network(3), "notes.txt.*no safetensors file")


def test_a_pickle_is_refused_and_not_opened(tmp_path):
    torch.save({"a": 1}, tmp_path / "model.pt")
    refuses(tmp_path / "model.pt", reference.network(3), "no safetensors file")


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    refuses(tmp_path / "nowhere.safetensors", reference.network(3), "no file .*nowhere")
    refuses(tmp_path, reference.network(3), str(tmp_path.name))


@pytest.mark.parametrize(
    "other",
    [
        lambda model: reference.network(4),
        lambda model: reference.network(3, bias=False),
        lambda model: reference.network(3, width=5),
        lambda model: reference.network(3, dtype=torch.float32),
        lambda model: nn.Sequential(copy.deepcopy(model)),
        lambda model: nn.Linear(3, 3),
    ],
    ids=["classes", "bias", "width", "dtype", "nested", "linear"],
)
def test_another_architecture_is_refused(saved, other):
    bayes, _, path = saved
    refuses(path, other(bayes.model), "another architecture")


@pytest.mark.parametrize("name", ["hidden.weight", "head.bias"])
def test_other_weights_are_refused(saved, name):
    bayes, _, path = saved
    model = copy.deepcopy(bayes.model)
    with torch.no_grad():
        model.get_parameter(name).view(-1)[0] += 1e-9
    refuses(path, model, "other weights")


def test_other_running_statistics_are_refused(tmp_path):
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3)).eval()
    x, y = reference.data(3, dtype=torch.float32)
    bb.Laplace(model).fit([(x, y)]).save(tmp_path / "b")
    model[0].running_mean += 1
    refuses(tmp_path / "b", model, "other weights")


def test_saving_before_fitting_leaves_no_file(tmp_path):
    with pytest.raises(NotFittedError, match="fit"):
        bb.Laplace(reference.network(3)).save(tmp_path / "b")
    assert list(tmp_path.iterdir()) == []


def test_saving_into_no_folder_is_refused(tmp_path):
    bayes, _, _ = fitted()
    with pytest.raises(FileError, match="no folder"):
        bayes.save(tmp_path / "missing" / "b")
    assert list(tmp_path.iterdir()) == []


def test_saving_onto_a_folder_is_refused(tmp_path):
    bayes, _, _ = fitted()
    (tmp_path / "b").mkdir()
    with pytest.raises(FileError, match="cannot write"):
        bayes.save(tmp_path / "b")
    assert [entry.name for entry in tmp_path.iterdir()] == ["b"] and (tmp_path / "b").is_dir()


def test_a_save_that_fails_keeps_the_old_file_and_no_other(saved, monkeypatch):
    bayes, _, path = saved
    before = path.read_bytes()

    def full_disk(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(FileError, match="No space left on device; make room"):
        bayes.save(path)
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_loading_leaves_the_model_alone(saved):
    bayes, _, path = saved
    model = copy.deepcopy(bayes.model).train()
    state = copy.deepcopy(model.state_dict())
    bb.Laplace.load(path, model)
    assert model.training and all(
        torch.equal(value, state[name]) for name, value in model.state_dict().items()
    )


def test_a_model_that_changed_since_the_fit_is_not_saved(tmp_path):
    x, y = points()
    model = relu_mlp()
    bayes = bb.Laplace(model).fit([(x, y)])
    model[2].weight.data += 1
    with pytest.raises(ModelError, match="has changed since"):
        bayes.save(tmp_path / "bayes.safetensors")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
def test_a_posterior_over_all_layers_comes_back_bit_for_bit(structure, tmp_path):
    bayes, model, x, _ = dense.fitted("residual", structure, prior_variance=0.3)
    bayes.save(tmp_path / "all.safetensors")
    again = bb.Laplace.load(tmp_path / "all.safetensors", copy.deepcopy(model))
    assert torch.equal(again.predict_proba(x), bayes.predict_proba(x))
    assert torch.equal(again.log_evidence(), bayes.log_evidence())
    frozen = copy.deepcopy(model).requires_grad_(False)
    assert torch.equal(
        bb.Laplace.load(tmp_path / "all.safetensors", frozen).predict_proba(x), bayes.predict_proba(x)
    )
    with pytest.raises(FileError, match="other weights"):
        bb.Laplace.load(tmp_path / "all.safetensors", dense.case("residual")[0])


# ---- files of format 5, which commit 8edae78 wrote: one kernel at the input

FORMAT_5 = Path(__file__).parent / "files" / "posterior_5"
EXPECTED = json.loads((FORMAT_5 / "expected.json").read_text())
# Far and near points; not those that were fitted.
POINTS = torch.tensor([[0.25, -0.5], [4.0, 3.0], [-30.0, 11.0]], dtype=torch.float64)


def network_of_format_5(k):
    """The network of the files: its weights are exact in float64."""
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, k)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_((torch.arange(parameter.numel()) * 5 % 7 - 3).reshape(parameter.shape) / 4)
    return model


def of_format_5(name):
    model = network_of_format_5(1 if name == "one_logit" else 3)
    return bb.Laplace.load(FORMAT_5 / f"{name}.safetensors", model)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_file_of_format_5_predicts_what_it_did(name, tmp_path):
    bayes = of_format_5(name)
    bayes.save(tmp_path / "b")
    for each in (bayes, bb.Laplace.load(tmp_path / "b", bayes.model)):
        found = {
            "probabilities": each.predict_proba(POINTS),
            "scores": each.score(POINTS),
            "limits": each.limit(POINTS).confidence,
            "log_evidence": each.log_evidence(),
        }
        assert found.keys() == EXPECTED[name].keys()
        for key, values in EXPECTED[name].items():
            expected = torch.tensor(values, dtype=torch.float64)
            torch.testing.assert_close(found[key], expected, rtol=1e-12, atol=1e-12)


def test_a_file_of_format_5_has_all_its_data_in_one_entry(tmp_path):
    """It holds no digest of its data. So the same file is refused twice, and can be taken out again."""
    one = of_format_5("untuned")
    (entry,) = one.posterior.fitted.entries
    assert entry.count == one.posterior.fitted.count > 0
    one.save(tmp_path / "b")
    files = FORMAT_5 / "untuned.safetensors", tmp_path / "b"
    for other in files:
        with pytest.raises(DataError, match="are in part 1 and again in part 2"):
            bb.merge([one, other])
    plain = of_format_5("plain")
    more = bb.Laplace(plain.model, structure="diag", residual=False).fit([(POINTS, torch.arange(3))])
    left = bb.merge(bb.merge([more, plain]), without=FORMAT_5 / "plain.safetensors")
    assert left.posterior.fitted.entries == more.posterior.fitted.entries


def test_the_residual_of_format_5_is_at_the_input_alone():
    without = {"plain": (), "hidden": ()}
    for name in EXPECTED:
        residual = of_format_5(name).known_residual
        assert (() if residual is None else residual.names) == without.get(name, ("input",))
    used = {name: of_format_5(name).settings for name in EXPECTED}
    assert [name for name, each in used.items() if each.near_variance] == ["asked"]
    assert [name for name, each in used.items() if each.beyond_variance] == [
        "tuned",
        "one_logit",
        "all_layers",
    ]


def test_a_file_of_format_5_with_hidden_levels_is_refused():
    refuses(
        FORMAT_5 / "hidden.safetensors", network_of_format_5(3), "hidden layers.*fit again and save again"
    )


@pytest.mark.filterwarnings("ignore::bitbayes.errors.EdgeWarning")
def test_a_posterior_of_format_5_is_tuned_anew():
    bayes = of_format_5("tuned")
    x, y = torch.randn(60, 2, dtype=torch.float64), torch.arange(60) % 3
    bayes.tune([(x, y)])
    assert bayes.near_variance > 0 and [*bayes.settings.levels] == [*bayes.settings.thresholds] == ["input"]
    assert bool(bayes.predict_proba(x).isfinite().all())


# ---- hidden levels


@pytest.mark.filterwarnings("ignore::bitbayes.errors.EdgeWarning")
@pytest.mark.parametrize("layers", ["last", "all"])
@pytest.mark.parametrize("residual", ["auto", True, ("0", "4")])
def test_the_levels_of_the_residual_come_back_bit_for_bit(tmp_path, residual, layers):
    bayes, x = ray_cases.laplace("convnet", 3, n=60, residual=residual, layers=layers)
    bayes.tune([(2 * x, torch.arange(60) % 3)])
    assert len(bayes.known_residual.names) >= 3
    bayes.save(tmp_path / "b")
    again = bb.Laplace.load(tmp_path / "b", copy.deepcopy(bayes.model))
    assert again.settings == bayes.settings and again.residual == bayes.residual
    assert again.posterior.fitted.levels == bayes.posterior.fitted.levels
    assert torch.equal(again.predict_proba(x), bayes.predict_proba(x))
    assert torch.equal(again.score(3 * x), bayes.score(3 * x))
    assert again.explain(x).keys() == bayes.explain(x).keys()
    assert all(torch.equal(again.explain(x)[name], part) for name, part in bayes.explain(x).items())
    more = [(x, torch.arange(60) % 3)]
    assert torch.equal(again.update(more).predict_proba(x), bayes.update(more).predict_proba(x))


@pytest.mark.parametrize(
    "change",
    [
        lambda told, tensors: told["numbers"]["levels"].pop("head"),
        lambda told, tensors: told["numbers"]["thresholds"].update(head=-1.0),
        lambda told, tensors: told["numbers"].update(near_variance=-1.0),
        lambda told, tensors: told["numbers"].update(residual_variance=1.0),
        lambda told, tensors: told["measured"].remove("head"),
        lambda told, tensors: told["levels"].append({"name": "x", "layer": "y", "axis": 1}),
        lambda told, tensors: tensors.pop("level/head/products"),
    ],
)
def test_levels_that_make_no_sense_are_refused(tmp_path, change):
    bayes, x, y = fitted(n=60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EdgeWarning)
        bayes.tune([(x, y)])
    path = tmp_path / "bayes.safetensors"
    bayes.save(path)
    rewrite(path, change)
    refuses(path, bayes.model, "bayes.safetensors")

"""Posteriors come back bit for bit; files that are damaged, foreign or of another model are refused."""

import copy
import json
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import bitbayes as bb
import dense
import reference
from bitbayes.errors import FileError, ModelError, NotFittedError
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("structure", ["full", "kron", "diag", "isotropic", "auto"])
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


@pytest.mark.parametrize("bias", [True, False])
def test_options_come_back_from_a_file(tmp_path, bias):
    options = {
        "structure": "kron",
        "curvature": "paper",
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
    assert told["shapes"] == {name: list(tensor.shape) for name, tensor in tensors.items()}
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


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 9, 100, -1, -8])
def test_truncated_files_are_refused(saved, keep):
    bayes, _, path = saved
    path.write_bytes(path.read_bytes()[:keep])
    refuses(path, bayes.model, "damaged, truncated or no safetensors file")


def test_a_longer_file_is_refused(saved):
    bayes, _, path = saved
    path.write_bytes(path.read_bytes() + b"more")
    refuses(path, bayes.model, "damaged")


@pytest.mark.parametrize("place", [0.3, 0.6, 0.9])
def test_a_damaged_tensor_is_noticed(saved, place):
    bayes, _, path = saved
    raw = bytearray(path.read_bytes())
    (size,) = struct.unpack("<Q", raw[:8])
    position = 8 + size + int(place * (len(raw) - 8 - size))
    raw[position] ^= 0xFF
    path.write_bytes(bytes(raw))
    refuses(path, bayes.model, "damaged")


def test_a_damaged_header_is_refused(saved):
    bayes, _, path = saved
    raw = bytearray(path.read_bytes())
    raw[20] = 0xFF
    path.write_bytes(bytes(raw))
    refuses(path, bayes.model, "damaged")


def rewrite(path, change):
    """Write the file again with its tensors under a changed header."""
    told = json.loads(header(path)["__metadata__"]["bitbayes"])
    tensors = load_file(path)
    change(told, tensors)
    save_file(tensors, path, metadata={"bitbayes": json.dumps(told)})


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
        lambda told, tensors: tensors.pop("curvature/head/inputs"),
        lambda told, tensors: tensors.update({"curvature/head/inputs": tensors["curvature/head/inputs"][:2]}),
        lambda told, tensors: tensors.update(extra=torch.zeros(2)),
    ],
)
def test_headers_that_make_no_sense_are_refused(saved, change):
    bayes, _, path = saved
    rewrite(path, change)
    refuses(path, bayes.model, "bayes.safetensors")


@pytest.mark.parametrize("number, todo", [(1, "fit again and save again"), (99, "the version that wrote it")])
def test_another_format_is_refused_and_named(saved, number, todo):
    bayes, _, path = saved
    rewrite(path, lambda told, tensors: told.update(format=number))
    refuses(path, bayes.model, f"format {number}.*{todo}")


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

    def full_disk(tensors, name, metadata):
        with open(name, "wb") as file:
            file.write(b"half")
        raise OSError("no space left")

    monkeypatch.setattr("bitbayes.io.whole_file.save_file", full_disk)
    with pytest.raises((OSError, FileError), match="no space left"):
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

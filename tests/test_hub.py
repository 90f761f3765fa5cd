"""Posteriors in folders to share, and on a Hub that is a folder here: what is written, kept and refused."""

import copy
import inspect
import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import bitbayes as bb
from bitbayes import hub
from bitbayes.errors import (
    ArgumentError,
    FileError,
    MissingPackageError,
    ModelError,
    NotFittedError,
)
from classifiers import points, relu_mlp

NAMES = ["README.md", "bayes.safetensors", "bitbayes.json"]
OWN = "# My model\n\nWords about it.\n"


def fitted():
    x, y = points()
    return bb.Laplace(relu_mlp(), prior_variance=2.0).fit([(x, y)]), x, y


def names(folder):
    return sorted(path.name for path in folder.iterdir())


class FakeHub:
    """What `hub` uses of `huggingface_hub.HfApi`. A repository is a folder, whose commits are counted."""

    def __init__(self, root):
        self.root, self.calls, self.commits = root, [], 0

    def __call__(self, *, token, library_name, library_version):
        self.calls.append(("token", token))
        assert (library_name, library_version) == ("bitbayes", bb.__version__)
        return self

    def create_repo(self, repo_id, *, private, exist_ok):
        self.calls.append(("create_repo", repo_id, private))
        (self.root / repo_id).mkdir(parents=True, exist_ok=exist_ok)

    def file_exists(self, repo_id, filename):
        return (self.root / repo_id / filename).exists()

    def hf_hub_download(self, repo_id, filename, *, revision=None):
        self.calls.append(("hf_hub_download", repo_id, filename, revision))
        if not (self.root / repo_id / filename).exists():
            raise LookupError(f"404: no {filename}")
        return str(self.root / repo_id / filename)

    def upload_folder(self, *, repo_id, folder_path, allow_patterns, commit_message):
        assert {*allow_patterns} <= {*names(Path(folder_path))} and bb.__version__ in commit_message
        for name in allow_patterns:
            shutil.copyfile(Path(folder_path) / name, self.root / repo_id / name)
        self.commits += 1
        return SimpleNamespace(oid=f"commit{self.commits}")


@pytest.fixture
def fake(tmp_path, monkeypatch):
    found = FakeHub(tmp_path / "hub")
    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(HfApi=found))
    return found


# ---- folders


def test_a_folder_comes_back_bit_for_bit(tmp_path):
    bayes, x, y = fitted()
    folder = tmp_path / "new" / "folder"
    found = bayes.evaluate([(x, y)], outliers={"far": 100 * x})
    assert bayes.save_pretrained(folder, evaluated=found) == folder / "README.md"
    assert names(folder) == NAMES
    for source in (folder, str(folder)):
        again = bb.Laplace.from_pretrained(source, copy.deepcopy(bayes.model))
        assert torch.equal(again.predict_proba(x), bayes.predict_proba(x))
    told = json.loads((folder / "bitbayes.json").read_text())
    assert told["evaluated"] == {"test data": found} and told["points"] == len(x)
    assert told["settings"]["prior_variance"] == 2.0 and told["schema"] == hub.SCHEMA
    card = (folder / "README.md").read_text()
    assert f"{100 * found['accuracy']:.1f}" in card and f"{100 * found['far/auroc']:.1f}" in card
    assert repr(bayes) in card


def test_an_own_card_is_replaced(tmp_path):
    bayes, x, y = fitted()
    bayes.save_pretrained(tmp_path)
    assert "Nothing was measured" in (tmp_path / "README.md").read_text()
    bayes.save_pretrained(tmp_path, evaluated=bayes.evaluate([(x, y)]))
    assert "accuracy" in (tmp_path / "README.md").read_text() and names(tmp_path) == NAMES


@pytest.mark.parametrize("edited", [False, True])
def test_the_readme_of_somebody_else_stays(tmp_path, edited):
    bayes, x, _ = fitted()
    readme = tmp_path / "README.md"
    if edited:
        bayes.save_pretrained(tmp_path)
    kept = (readme.read_text() if edited else "") + OWN
    readme.write_text(kept)
    for _ in range(2):  # the second card is replaced, too
        assert bayes.save_pretrained(tmp_path) == tmp_path / "README-bitbayes.md"
        assert readme.read_text() == kept
        assert names(tmp_path) == ["README-bitbayes.md", *NAMES]
    again = bb.Laplace.from_pretrained(tmp_path, bayes.model)
    assert torch.equal(again.predict_proba(x), bayes.predict_proba(x))
    (tmp_path / "README-bitbayes.md").write_text(OWN)
    (tmp_path / "bayes.safetensors").unlink()
    with pytest.raises(FileError, match="rename one of them"):
        bayes.save_pretrained(tmp_path)
    assert names(tmp_path) == ["README-bitbayes.md", "README.md", "bitbayes.json"]


def test_wrong_numbers_are_refused_before_anything_is_written(tmp_path):
    bayes, _, _ = fitted()
    with pytest.raises(ArgumentError, match="does not return"):
        bayes.save_pretrained(tmp_path / "new", evaluated={"loss": 1.0})
    assert not (tmp_path / "new").exists()


def test_what_cannot_be_saved_leaves_no_card(tmp_path):
    with pytest.raises(NotFittedError, match="fit"):
        bb.Laplace(relu_mlp()).save_pretrained(tmp_path)
    bayes, _, _ = fitted()
    bayes.model[2].weight.data += 1
    with pytest.raises(ModelError, match="has changed since"):
        bayes.save_pretrained(tmp_path)
    assert names(tmp_path) == []


def test_a_folder_without_the_file_is_refused(tmp_path):
    with pytest.raises(FileError, match=r"has no bayes\.safetensors"):
        bb.Laplace.from_pretrained(tmp_path, relu_mlp())
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match=r"give its folder, or use `Laplace\.load`"):
        bb.Laplace.from_pretrained(tmp_path / "file", relu_mlp())


@pytest.mark.parametrize("source", ["./nowhere", "/nowhere/at/all", "a/b/c", "", Path("owner/name")])
def test_what_is_neither_a_folder_nor_a_repository_is_refused(source, fake, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileError, match=r"there is no folder|has no bayes\.safetensors"):
        bb.Laplace.from_pretrained(source, relu_mlp())
    assert fake.calls == []


def test_another_model_is_refused(tmp_path):
    bayes, _, _ = fitted()
    bayes.save_pretrained(tmp_path)
    other = copy.deepcopy(bayes.model)
    other[0].weight.data[0, 0] += 1e-3
    with pytest.raises(FileError, match="other weights"):
        bb.Laplace.from_pretrained(tmp_path, other)


def test_a_folder_has_no_revision(tmp_path):
    bayes, _, _ = fitted()
    bayes.save_pretrained(tmp_path)
    with pytest.raises(ArgumentError, match="only repositories have one"):
        bb.Laplace.from_pretrained(tmp_path, bayes.model, revision="main")


def test_the_functions_of_a_file_can_be_given(tmp_path):
    x, y = points()
    network = relu_mlp()
    bayes = bb.Laplace(network, output=lambda found: found, prior_variance=1.0).fit([(x, y)])
    bayes.save_pretrained(tmp_path)
    again = bb.Laplace.from_pretrained(tmp_path, network, output=lambda found: found)
    assert torch.equal(again.predict_proba(x), bayes.predict_proba(x))


# ---- the Hub


def test_what_is_pushed_comes_back(fake):
    bayes, x, y = fitted()
    found = {"test": bayes.evaluate([(x, y)]), "far": bayes.evaluate([(9 * x, y)])}
    commit = bayes.push_to_hub("owner/name", evaluated=found, private=True, token="secret")
    assert commit == "commit1" and names(fake.root / "owner/name") == NAMES
    assert fake.calls[:2] == [("token", "secret"), ("create_repo", "owner/name", True)]
    card = (fake.root / "owner/name" / "README.md").read_text()
    assert 'from_pretrained("owner/name", model)' in card and "secret" not in card
    again = bb.Laplace.from_pretrained("owner/name", bayes.model, revision=commit, token="secret")
    assert fake.calls[-1] == ("hf_hub_download", "owner/name", "bayes.safetensors", "commit1")
    assert torch.equal(again.predict_proba(x), bayes.predict_proba(x))
    bayes.push_to_hub("owner/name")
    assert names(fake.root / "owner/name") == NAMES


def test_the_readme_of_the_models_own_repository_stays(fake):
    bayes, _, _ = fitted()
    repository = fake.root / "owner/name"
    repository.mkdir(parents=True)
    (repository / "README.md").write_text(OWN)
    (repository / "model.safetensors").write_bytes(b"weights")
    for _ in range(2):
        bayes.push_to_hub("owner/name")
        assert (repository / "README.md").read_text() == OWN
        assert names(repository) == sorted(["README-bitbayes.md", "model.safetensors", *NAMES])
        assert (repository / "model.safetensors").read_bytes() == b"weights"


def test_what_cannot_be_pushed_makes_no_repository(fake):
    with pytest.raises(NotFittedError, match="fit"):
        bb.Laplace(relu_mlp()).push_to_hub("owner/name")
    bayes, _, _ = fitted()
    with pytest.raises(ArgumentError, match="does not return"):
        bayes.push_to_hub("owner/name", evaluated={"loss": 1.0})
    for name in ("", "a/b/c", "../name", Path("owner/name")):
        with pytest.raises(ArgumentError, match="'owner/name'"):
            bayes.push_to_hub(name)
    assert not fake.root.exists()


def test_errors_of_the_hub_are_file_errors(fake, monkeypatch):
    bayes, _, _ = fitted()
    with pytest.raises(FileError, match=r"cannot read bayes\.safetensors of the repository 'owner/no': 404"):
        bb.Laplace.from_pretrained("owner/no", bayes.model)

    def refuse(*_, **__):
        raise OSError("401: no rights")

    monkeypatch.setattr(fake, "upload_folder", refuse)
    with pytest.raises(FileError, match="cannot write to the repository 'owner/name': 401: no rights"):
        bayes.push_to_hub("owner/name")


def test_without_the_package_the_error_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    bayes, x, _ = fitted()
    with pytest.raises(MissingPackageError, match=r"push_to_hub needs huggingface_hub: .* extra 'hub'"):
        bayes.push_to_hub("owner/name")
    with pytest.raises(
        MissingPackageError, match=r"no folder owner/name, and from_pretrained .* extra 'hub'"
    ):
        bb.Laplace.from_pretrained("owner/name", bayes.model)
    bayes.save_pretrained(tmp_path)  # a folder needs no package
    assert torch.equal(
        bb.Laplace.from_pretrained(tmp_path, bayes.model).predict_proba(x), bayes.predict_proba(x)
    )


def test_the_real_interface_takes_these_calls():
    """The fake one is as narrow as what is used; the real one must have at least that."""
    real = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed").HfApi
    for name in ("__call__", "create_repo", "file_exists", "hf_hub_download", "upload_folder"):
        theirs = inspect.signature(real.__init__ if name == "__call__" else getattr(real, name)).parameters
        ours = inspect.signature(getattr(FakeHub, name)).parameters
        assert ours.keys() <= theirs.keys(), name
        positional = [each for each in ours.values() if each.kind is each.POSITIONAL_OR_KEYWORD]
        assert [each.name for each in positional] == [*theirs][: len(positional)], name
    assert real(token="t", library_name="bitbayes", library_version="0").token == "t"


def test_the_real_card_reader_reads_the_card(tmp_path):
    module = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    bayes, _, _ = fitted()
    card = module.ModelCard.load(bayes.save_pretrained(tmp_path))
    assert card.data.library_name == "bitbayes" and "calibration" in card.data.tags

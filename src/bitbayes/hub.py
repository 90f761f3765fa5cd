"""A posterior in a folder, with its numbers and a card, and the same on the Hugging Face Hub.

The folder holds the file of `Laplace.save`, bitbayes.json for programs, and the card for people. The card
is README.md, or README-bitbayes.md if README.md is not bitbayes's own: that of the model, or an edited card.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitbayes._version import __version__
from bitbayes.card import Described, Evaluated, EvaluatedSets, card, check_evaluated, is_untouched
from bitbayes.errors import ArgumentError, FileError, MissingPackageError
from bitbayes.io.atomic_write import check_writable, make_folder, read_bytes, write_text

if TYPE_CHECKING:
    from bitbayes.laplace import Laplace

POSTERIOR, NUMBERS = "bayes.safetensors", "bitbayes.json"
CARDS = ("README.md", "README-bitbayes.md")
# What the keys of bitbayes.json mean. It changes if one of them gets another meaning.
SCHEMA = 1
REPOSITORY = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


def save(bayes: Laplace, folder: str | PathLike[str], evaluated: Evaluated | None) -> Path:
    """Write posterior, numbers and card, and return the path of the card."""
    sets, folder = check_evaluated(evaluated), Path(folder)
    make_folder(folder)
    path = _card_path(folder)
    for each in (folder / NUMBERS, path):
        check_writable(each)
    bayes.save(folder / POSTERIOR)
    _write_texts(bayes, path, sets, source="path/of/this/folder")
    return path


def push(
    bayes: Laplace,
    repo_id: str,
    evaluated: Evaluated | None,
    *,
    private: bool | None,
    token: str | bool | None,
) -> str:
    """Upload what `save` writes, as one commit, and return its id."""
    sets = check_evaluated(evaluated)
    if not isinstance(repo_id, str) or not REPOSITORY.fullmatch(repo_id):
        raise ArgumentError(f"repo_id={repo_id!r}: expected the name of a repository, as 'owner/name'")
    api, task = _api("push_to_hub", token), f"write to the repository {repo_id!r}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bayes.save(folder / POSTERIOR)  # where this raises, no repository has been made yet
        with _as_file_error(task):
            api.create_repo(repo_id, private=private, exist_ok=True)
            for each in CARDS:
                if api.file_exists(repo_id, each):
                    (folder / each).write_bytes(Path(api.hf_hub_download(repo_id, each)).read_bytes())
        path = _card_path(folder)
        _write_texts(bayes, path, sets, source=repo_id)
        with _as_file_error(task):
            commit = api.upload_folder(
                repo_id=repo_id,
                folder_path=folder,
                allow_patterns=[POSTERIOR, NUMBERS, path.name],
                commit_message=f"A posterior of bitbayes {__version__}",
            )
    return str(commit.oid)


def find(source: str | PathLike[str], *, revision: str | None, token: str | bool | None) -> Path:
    """Return the posterior's file in a folder; that of a repository is downloaded first."""
    folder = Path(source)
    if folder.is_dir():
        if revision is not None:
            raise ArgumentError(
                f"revision={revision!r}: {source} is a folder, and only repositories have one"
            )
        if not (folder / POSTERIOR).is_file():
            raise FileError(
                f"the folder {folder} has no {POSTERIOR}: give one that `save_pretrained` has written"
            )
        return folder / POSTERIOR
    if folder.is_file():
        raise FileError(f"{source} is a file: give its folder, or use `Laplace.load`")
    if not isinstance(source, str) or not REPOSITORY.fullmatch(source):
        raise FileError(f"there is no folder {source}: give one, or the name of a repository as 'owner/name'")
    api = _api(f"there is no folder {source}, and from_pretrained with the name of a repository", token)
    with _as_file_error(f"read {POSTERIOR} of the repository {source!r}"):
        return Path(api.hf_hub_download(source, POSTERIOR, revision=revision))


def _card_path(folder: Path) -> Path:
    """The first name that is free, or whose file is a card that nobody has edited."""
    for name in CARDS:
        path = folder / name
        if not path.exists() or is_untouched(read_bytes(path)):
            return path
    raise FileError(
        f"bitbayes did not write {' and '.join(CARDS)} of {folder}, or they were edited: rename one of them"
    )


def _write_texts(bayes: Laplace, path: Path, sets: EvaluatedSets, *, source: str) -> None:
    """Write the card at `path`, and the numbers beside it."""
    fitted, model = bayes.posterior.fitted, type(bayes.model).__name__
    numbers = {
        "schema": SCHEMA,
        "bitbayes_version": __version__,
        "model": {"class": model, **asdict(fitted.fingerprint)},
        "likelihood": fitted.likelihood.name,
        "points": fitted.count,
        "options": bayes.options.as_json(),
        "settings": bayes.settings.as_json(),
        "evaluated": sets,
    }
    write_text(path.with_name(NUMBERS), json.dumps(numbers, indent=1, allow_nan=False) + "\n")
    write_text(path, card(Described(model, fitted.likelihood, repr(bayes), POSTERIOR, source), sets))


def _api(task: str, token: str | bool | None) -> Any:
    """The interface of the Hub."""
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        raise MissingPackageError(
            f"{task} needs huggingface_hub: install bitbayes with its extra 'hub'"
        ) from error
    return HfApi(token=token, library_name="bitbayes", library_version=__version__)


@contextmanager
def _as_file_error(task: str) -> Iterator[None]:
    """Turn whatever goes wrong on the Hub into a `FileError`."""
    try:
        yield
    except Exception as error:  # of several libraries: no network, no such repository, no rights, no login
        raise FileError(f"cannot {task}: {error}") from error

"""The documentation: its code runs, its numbers are those of results/, a command makes its pictures."""

import contextlib
import doctest
import importlib
import inspect
import re
import sys
import zlib
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bitbayes as bb

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def script(name):
    return importlib.import_module(name)  # pyproject.toml has scripts/ on the path of the tests


def text(name):
    return (DOCS / name).read_text("utf-8")


# ---- code: blocks with prompts are doctests, which pytest runs; all others run here or in the tests named


def blocks_without_prompts(name):
    found = [code for language, code in BLOCK.findall(text(name)) if language == "python"]
    return [code for code in found if ">>>" not in code]


def points(seed=0, n=60):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 2, generator=generator), torch.arange(n) % 3


def loader(seed=0):
    return DataLoader(TensorDataset(*points(seed)), batch_size=20)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))


def plain_session():
    names = {"bb": bb, "model": network(), "x": points()[0], "outliers": 3 * points(5)[0]}
    return names | {"train_loader": loader(), "val_loader": loader(1), "test_loader": loader(2)}


def sessions_of_other_libraries():
    """What each block of docs/ecosystem.md needs, in its order."""
    yield hugging_face_model
    yield hugging_face_trainer
    yield lightning
    yield trackers


def sentences(seed, rows=24):
    ids = torch.randint(30, (rows, 6), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones(6, dtype=torch.long)
    return [
        {"input_ids": row, "attention_mask": mask, "labels": number % 3} for number, row in enumerate(ids)
    ]


def collated(rows):
    return {name: torch.stack([torch.as_tensor(row[name]) for row in rows]) for name in rows[0]}


def small_bert():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=30, max_position_embeddings=12, num_labels=3, **sizes)
    return transformers.BertForSequenceClassification(config)


def hugging_face_model(folder, _):
    small_bert().save_pretrained(folder / "bert")
    batch = collated(sentences(3))
    names = {"train_loader": [collated(sentences(1))], "val_loader": [collated(sentences(2))]}
    return names | {"path": folder / "bert", "ids": batch["input_ids"], "mask": batch["attention_mask"]}


def hugging_face_trainer(folder, monkeypatch):
    pytest.importorskip("accelerate", reason="accelerate, which the Trainer needs, is not installed")
    model, batch = small_bert(), collated(sentences(3))
    del batch["labels"]
    return {"model": model, "train": sentences(1), "val": sentences(2), "batch": batch}


def lightning(folder, monkeypatch):
    pl = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed", exc_type=ImportError)

    class Classifier(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = network()

        def training_step(self, batch, _):
            return nn.functional.cross_entropy(self.model(batch[0]), batch[1])

        def validation_step(self, batch, _):
            self.log("loss", nn.functional.cross_entropy(self.model(batch[0]), batch[1]))

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.01)

    return {"module": Classifier(), "train_loader": loader(), "val_loader": loader(1)}


def trackers(folder, _):
    bayes = bb.Laplace(network()).fit(loader()).tune(loader(1))
    log = SimpleNamespace(log_metrics=check_floats, log=check_floats)
    far = {"svhn": 5 * points(3)[0], "far": 1000 * points(4)[0]}
    return {"bayes": bayes, "test_loader": loader(2), "mlflow": log, "wandb": log, **far}


def check_floats(found):
    assert found and all(type(value) is float for value in found.values())


# Blocks that another test runs, by page.
ELSEWHERE = {
    "mistakes.md": "test_mistakes.py",
    "laplace_torch.md": "test_laplace_torch.py",
    "gallery.md": "test_gallery.py",
}
HERE = {"index.md", "choose.md", "ecosystem.md", "deploy.md", "evidence.md", "openood.md", "many_machines.md"}


def test_every_block_of_code_runs_somewhere():
    with_blocks = {page.name for page in PAGES if blocks_without_prompts(page.name)}
    assert with_blocks <= HERE | set(ELSEWHERE)
    for page in PAGES:
        # Indented blocks are read as code by Markdown, and run by nobody.
        outside = BLOCK.sub("", page.read_text("utf-8"))
        assert not re.findall(r"^\n    \w.*[=(]", outside, re.MULTILINE), page.name
        languages = {language for language, _ in BLOCK.findall(page.read_text("utf-8"))}
        assert languages <= {"python", "sh", "text"}, page.name


@pytest.mark.filterwarnings("ignore::bitbayes.errors.EdgeWarning")
@pytest.mark.parametrize("name", ["index.md", "choose.md"])
def test_lines_to_copy_run(name):
    for code in blocks_without_prompts(name):
        names = plain_session()
        exec(code, names)
        assert names.keys() & {"probs", "bayes", "scaled"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", range(4), ids=["model", "trainer", "lightning", "trackers"])
def test_lines_for_other_libraries_run(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code = blocks_without_prompts("ecosystem.md")
    assert len(code) == 4
    names = {"bb": bb} | list(sessions_of_other_libraries())[number](tmp_path, monkeypatch)
    with contextlib.redirect_stdout(None):
        exec(code[number], names)
    if number < 2:
        assert names["probs"].shape == (24, 3)
    if number == 2:
        assert (tmp_path / "bayes.safetensors").exists()


class Texts(nn.Module):
    """A classifier of texts of any length."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(30, 8), nn.Linear(8, 3)

    def forward(self, input_ids, attention_mask):
        mask = attention_mask[..., None]
        return self.head((self.words(input_ids) * mask).sum(1) / mask.sum(1))


@pytest.mark.slow
def test_lines_of_deploy_run(tmp_path, monkeypatch):
    onnxruntime = pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    x, _ = points()
    bayes = bb.Laplace(network(), prior_variance=1.0).fit(loader())
    names = {"bayes": bayes, "x": x, "images": x.numpy(), "onnxruntime": onnxruntime}
    onnx, lengths = blocks_without_prompts("deploy.md")
    exec(onnx, names)
    found = torch.from_numpy(names["logits"]).softmax(1)
    torch.testing.assert_close(found, bayes.predict_proba(x), rtol=1e-4, atol=1e-5)
    batch = collated(sentences(3))
    del batch["labels"]
    texts = bb.Laplace(Texts(), prior_variance=1.0).fit([collated(sentences(1))])
    exec(lengths, {"bayes": texts, "batch": batch})
    session = onnxruntime.InferenceSession("texts.onnx")
    short = {name: value[:3, :4].numpy() for name, value in batch.items()}
    assert session.run(None, short)[0].shape == (3, 3)


def test_lines_of_openood_run(monkeypatch):
    """With an evaluator that makes OpenOOD's calls; tests/test_openood.py has the rest."""
    x, y = points()
    batches = [{"data": x, "label": y}]

    class Evaluator:
        def __init__(self, net, id_name, postprocessor):
            postprocessor.setup(net, {"train": batches, "val": batches, "test": batches}, {})
            self.net, self.postprocessor = net, postprocessor

        def eval_ood(self):
            return self.postprocessor.inference(self.net, batches, progress=False)

    package, api = ModuleType("openood"), ModuleType("openood.evaluation_api")
    api.Evaluator = Evaluator
    monkeypatch.setitem(sys.modules, "openood", package)
    monkeypatch.setitem(sys.modules, "openood.evaluation_api", api)
    (code,) = blocks_without_prompts("openood.md")
    names = {"net": network()}
    exec(code, names)
    assert np.isfinite(names["table"][1]).all()


def test_lines_of_many_machines_run(tmp_path, monkeypatch):
    """In one process; tests/test_processes.py has several."""
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
        "RANK": "0",
        "WORLD_SIZE": "1",
    }.items():
        monkeypatch.setenv(name, value)
    (code,) = blocks_without_prompts("many_machines.md")
    images = TensorDataset(*points())
    names = {"bb": bb, "model": network(), "images": images, "validation_loader": loader(1)}
    code = code.replace('"nccl"', '"gloo"')
    exec(code, names)
    torch.distributed.destroy_process_group()
    assert (tmp_path / "bayes.safetensors").exists()


@pytest.mark.filterwarnings("ignore")
def test_lines_of_evidence_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (code,) = blocks_without_prompts("evidence.md")
    names = {"bb": bb} | lightning(tmp_path, monkeypatch)
    exec(code.replace("max_epochs=60", "max_epochs=12"), names)
    assert [*names["callback"].result.evidences] == [10, 12]
    assert (tmp_path / "bayes.safetensors").exists()


# ---- numbers and pictures


def test_the_numbers_are_those_of_the_results():
    numbers = script("make_doc_numbers")
    pages = [page for page in PAGES if "<!-- numbers:" in page.read_text("utf-8")]
    assert len(pages) >= 2
    for page in pages:
        written = page.read_text("utf-8")
        assert numbers.with_numbers(written) == written, "write them: python scripts/make_doc_numbers.py"


def test_the_pictures_are_made_by_the_script(tmp_path):
    pictures = script("make_doc_pictures")
    pictures.main(["--quick", "--output", str(tmp_path)])
    made = {path.name for path in tmp_path.iterdir()}
    kept = {path.name for path in (DOCS / "pictures").iterdir()}
    shown = set(
        re.findall(r"""[("]pictures/([\w.]+)[)"]""", "".join(page.read_text("utf-8") for page in PAGES))
    )
    assert made == kept == shown
    assert sum(path.stat().st_size for path in (DOCS / "pictures").iterdir()) < 1.6e6


def test_the_pictures_show_the_network_of_the_page():
    pictures = script("make_doc_pictures")
    (code,) = [code for _, code in BLOCK.findall(text("understand.md")) if "two_moons(200" in code]
    names = {}
    exec(re.sub(r"^(>>>|\.\.\.) ?", "", code, flags=re.MULTILINE), names)
    x = points()[0]
    assert torch.equal(names["model"](x), pictures.trained()[0](x))


def test_every_picture_says_what_it_shows():
    for page in PAGES:
        pictures = re.findall(r"!\[(.*?)\]\(|<img[^>]* alt=\"(.*?)\"", page.read_text("utf-8"))
        for words in map("".join, pictures):
            assert len(words) > 10, page.name
        assert len(pictures) == len(re.findall(r"!\[|<img", page.read_text("utf-8"))), page.name


# ---- the site


def test_every_public_name_has_a_place_in_the_api():
    pages = "".join(text(page.name) for page in PAGES if page.name.startswith("api"))
    documented = set(re.findall(r"^::: bitbayes\.([\w.]+)$", pages, re.MULTILINE))
    assert set(bb.__all__) - documented <= {"__version__"}


def test_the_claims_of_the_results_become_cards():
    pages = script("write_site_pages")
    markdown = (ROOT / "results" / "paper.md").read_text("utf-8")
    claims = pages.claims(markdown)
    assert len(claims) >= 14
    assert sum(claim.picture is not None for claim in claims) >= 10
    assert all(claim.verdicts for claim in claims)
    anchors = {slug(title) for title in re.findall(r"^#+ (.*)$", markdown, re.MULTILINE)}
    assert {claim.anchor for claim in claims} <= anchors
    assert pages.with_cards(markdown).count('<div class="claim"') == len(claims)


def test_the_examples_of_the_scripts_run():
    pytest.importorskip("griffe", reason="mkdocstrings is not installed: `make docs` installs it")
    for name in ("write_site_pages", "site_docstrings", "site_examples"):
        found = doctest.testmod(script(name))
        assert found.attempted >= 1
        assert found.failed == 0


def slug(title):
    return re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-")


@pytest.mark.slow
def test_the_site_builds(tmp_path):
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: `make docs` installs it")
    pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed: `make docs` installs it")
    script("build_site").main(
        ["--builder", "mkdocs", "--pages", f"{tmp_path}/pages", "--output", f"{tmp_path}/site"]
    )
    site = tmp_path / "site"
    # Every public name can be found in the reference, by others' sites too.
    *_, packed = (site / "objects.inv").read_bytes().split(b"\n", 4)
    names = {line.split(" ")[0] for line in zlib.decompress(packed).decode().splitlines()}
    assert {f"bitbayes.{name}" for name in bb.__all__} - names <= {"bitbayes.__version__"}
    assert {f"bitbayes.Laplace.{name}" for name in ("fit", "tune", "predict_proba", "certify")} <= names
    shown = {name.rpartition(".")[2] for name in names}
    for module in (getattr(bb, name) for name in bb.__all__):
        public = [each for each in getattr(module, "__all__", ()) if inspect.isroutine(getattr(module, each))]
        assert set(public) <= shown, f"{module.__name__} in docs/api_*.md"
    # Nothing is loaded from other servers.
    for page in site.rglob("*.html"):
        loaded = re.findall(r'<(?:script|img|iframe)[^>]*src="?([^" >]+)', page.read_text("utf-8"))
        loaded += re.findall(
            r'<link[^>]*rel="?(?:stylesheet|preconnect)[^>]*href="?([^" >]+)', page.read_text("utf-8")
        )
        assert not [each for each in loaded if "//" in each and not each.startswith("data:")], page.name


def test_the_papers_items_have_every_table_and_figure_that_is_rerun():
    from paper.names import NAMES

    page = (ROOT / "results" / "paper.md").read_text("utf-8")
    items = re.search(r"## The paper's items\n(.*?)\n## ", page, re.DOTALL)[1]
    past_the_paper = {"default", "shift", "drift", "promises", "held-out", "trade-off"}
    past_the_paper |= {"openood", "openood-trainings"}
    assert {*re.findall(r"python -m paper ([\w-]+)", items)} == {*NAMES} - past_the_paper
    for row in items.splitlines():
        assert not row.startswith("| ") or len(row.split(" | ")) == 4

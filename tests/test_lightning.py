"""The callback, run by Lightning's own trainer."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import bitbayes as bb
from bitbayes.errors import ArgumentError, DataError

pl = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed", exc_type=ImportError)

# Of the trainer itself: few workers, few steps, deprecations of what it is built on.
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.filterwarnings("error::bitbayes.errors.UntunedWarning"),
]


class Classifier(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))

    def forward(self, x):
        return self.model(x)

    def training_step(self, batch, _):
        return functional.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch, _, dataloader_idx=0):
        self.log("loss", functional.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


def loader(seed, points=48, **options):
    x = torch.randn(points, 2, generator=torch.Generator().manual_seed(seed))
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    return DataLoader(TensorDataset(x, y), batch_size=16, **options)


def trained(callback, folder, module, *loaders, **options):
    torch.manual_seed(0)
    trainer = pl.Trainer(
        max_epochs=2,
        callbacks=[callback],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **options,
    )
    trainer.fit(module, *loaders)
    return module


@pytest.mark.parametrize("network", [None, "model"])
def test_it_fits_and_tunes_when_training_ends(network, tmp_path):
    train, val = loader(1, shuffle=True), loader(2)
    callback = bb.lightning.LaplaceCallback(network=network, structure="diag")
    module = trained(callback, tmp_path, Classifier(), train, val)
    by_hand = bb.Laplace(module.model, structure="diag").fit(train).tune(val)
    x, _ = next(iter(val))
    torch.testing.assert_close(
        callback.bayes.predict_proba(x), by_hand.predict_proba(x), rtol=1e-4, atol=1e-5
    )
    assert callback.bayes.prior_variance == pytest.approx(by_hand.prior_variance, rel=1e-3)
    assert callback.bayes.model is (module if network is None else module.model)


def test_without_validation_data_it_only_fits(tmp_path):
    callback = bb.lightning.LaplaceCallback(network="model", prior_variance=3.0)
    module = trained(callback, tmp_path, Classifier(), loader(1))
    by_hand = bb.Laplace(module.model, prior_variance=3.0).fit(loader(1))
    x, _ = next(iter(loader(2)))
    torch.testing.assert_close(callback.bayes.predict_proba(x), by_hand.predict_proba(x))


class Stream(IterableDataset):
    """Data whose number is not known."""

    def __iter__(self):
        return iter(loader(1).dataset)


def test_loaders_without_a_length(tmp_path):
    train, val = DataLoader(Stream(), batch_size=16), DataLoader(Stream(), batch_size=8)
    callback = bb.lightning.LaplaceCallback(network="model")
    module = trained(callback, tmp_path, Classifier(), train, val)
    by_hand = bb.Laplace(module.model).fit(train).tune(val)
    x, _ = next(iter(val))
    torch.testing.assert_close(callback.bayes.predict_proba(x), by_hand.predict_proba(x))


def test_other_loaders_can_be_given(tmp_path):
    other, val = loader(3), loader(4)
    callback = bb.lightning.LaplaceCallback(network="model", train_loader=other, val_loader=val)
    module = trained(callback, tmp_path, Classifier(), loader(1), [loader(5), loader(6)])
    by_hand = bb.Laplace(module.model).fit(other).tune(val)
    x, _ = next(iter(val))
    torch.testing.assert_close(callback.bayes.predict_proba(x), by_hand.predict_proba(x))


PRECISIONS = {"64-true": torch.float64, "bf16-true": torch.bfloat16}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", ["pairs", "mappings"])
def test_inputs_have_the_precision_of_the_training(precision, kind, tmp_path):
    """The trainer converts each batch that it trains on; the loaders give float32."""
    train, val = loader(1), loader(2)
    given = {}
    if kind == "mappings":
        given = {"train_loader": [{"input": x, "labels": y} for x, y in train]}
    callback = bb.lightning.LaplaceCallback(network="model", **given)
    module = trained(callback, tmp_path, Classifier(), train, val, precision=precision)
    dtype = PRECISIONS[precision]
    assert next(module.parameters()).dtype == dtype
    train, val = ([(x.to(dtype), y) for x, y in each] for each in (train, val))
    by_hand = bb.Laplace(module.model).fit(train).tune(val)
    x, _ = val[0]
    torch.testing.assert_close(callback.bayes.predict_proba(x), by_hand.predict_proba(x))


def test_mistakes_are_told_before_training(tmp_path):
    module, before = Classifier(), None
    before = {name: each.clone() for name, each in module.state_dict().items()}
    for options in ({"network": "net"}, {"structure": "kfac"}):
        with pytest.raises(ArgumentError, match=next(iter(options))):
            trained(bb.lightning.LaplaceCallback(**options), tmp_path, module, loader(1))
    for loaders in ([loader(1), [loader(2), loader(3)]], [[loader(1), loader(2)]]):
        with pytest.raises(DataError, match="2 loaders"):
            trained(bb.lightning.LaplaceCallback(), tmp_path, module, *loaders)
    assert all(torch.equal(each, before[name]) for name, each in module.state_dict().items())


def test_data_that_are_no_loader_are_told(tmp_path):
    x, _ = next(iter(loader(1)))
    for given in ({"train_loader": x}, {"val_loader": x}):
        with pytest.raises(DataError, match="expected a loader"):
            trained(bb.lightning.LaplaceCallback(**given), tmp_path, Classifier(), loader(1))

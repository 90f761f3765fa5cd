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


# ---- training by the evidence


def evidence_trained(folder, module, *, epochs=5, train=None, other=(), network="model", **options):
    callback = bb.lightning.EvidenceCallback(network=network, burn_in=2, every=2, steps=5, **options)
    torch.manual_seed(0)
    trainer = pl.Trainer(
        max_epochs=epochs,
        callbacks=[callback, *other],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(module, loader(1) if train is None else train)
    return callback


class Plain(Classifier):
    """Without dropout, whose random numbers the trainer may draw in another order."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 3))


@pytest.mark.parametrize("network", [None, "model"])
def test_the_trainer_trains_by_the_evidence_as_the_function_does(network, tmp_path):
    module, by_hand = Plain(), Plain()
    callback = evidence_trained(tmp_path, module, network=network)
    optimizer = torch.optim.Adam(by_hand.parameters(), lr=0.01)
    expected = bb.train_by_evidence(
        by_hand.model, loader(1), optimizer, epochs=5, burn_in=2, every=2, steps=5
    )
    found = callback.result
    assert found.evidences == expected.evidences and [*found.evidences] == [2, 4, 5]
    assert [*found.prior_variance.values()] == [*expected.prior_variance.values()]
    assert found.epoch == expected.epoch and found.losses == ()
    for mine, theirs in zip(module.parameters(), by_hand.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    x, _ = next(iter(loader(2)))
    assert torch.equal(found.laplace.predict_proba(x), expected.laplace.predict_proba(x))


class SeveralOptimizers(Plain):
    """By hand, and one optimiser for each layer."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, _):
        for optimizer in (optimizers := self.optimizers()):
            optimizer.zero_grad()
        self.manual_backward(functional.cross_entropy(self(batch[0]), batch[1]))
        for optimizer in optimizers:
            optimizer.step()

    def configure_optimizers(self):
        return [torch.optim.Adam(self.model[i].parameters(), lr=0.01) for i in (0, 2)]


def test_each_optimizer_gets_the_penalty_of_its_own_parameters(tmp_path):
    one, several = Plain(), SeveralOptimizers()
    expected, found = (evidence_trained(tmp_path, each).result for each in (one, several))
    assert found.evidences == expected.evidences


def test_after_it_the_other_callback_tunes_the_best_weights(tmp_path):
    train, val = loader(1), loader(2)
    other = bb.lightning.LaplaceCallback(network="model", train_loader=train, val_loader=val)
    callback = evidence_trained(tmp_path, Plain(), other=[other])
    assert other.bayes.model is callback.result.laplace.model
    callback.result.laplace.prior_variance = 1.0  # one for all layers, which validation data can choose
    callback.result.laplace.tune(val)


def test_what_does_not_fit_the_evidence_is_told_before_training(tmp_path):
    class Decayed(Plain):
        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    for module, options, match in (
        (Plain(), {"network": "net"}, "network='net'"),
        (Plain(), {"structure": "kfac"}, "structure='kfac'"),
        (Decayed(), {}, "weight_decay=0.01"),
    ):
        before = {name: each.clone() for name, each in module.state_dict().items()}
        with pytest.raises(ArgumentError, match=match):
            evidence_trained(tmp_path, module, **options)
        assert all(torch.equal(each, before[name]) for name, each in module.state_dict().items())
    with pytest.raises(ArgumentError, match="learning_rate"):
        bb.lightning.EvidenceCallback(learning_rate=-1.0)
    with pytest.raises(DataError, match=r"2 loaders.*train_loader="):
        evidence_trained(tmp_path, Plain(), train=[loader(1), loader(2)])


def test_other_data_for_the_evidence(tmp_path):
    callback = evidence_trained(tmp_path, Plain(), train_loader=loader(1, points=40))
    assert callback.result.laplace.posterior.fitted.count == 40

"""The callback, run by Hugging Face's own `Trainer`, on a small BERT with random weights."""

import pytest
import torch

import bitbayes as bb
from bitbayes.errors import ArgumentError, UntunedWarning

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate, which the Trainer needs, is not installed")

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.filterwarnings("error::bitbayes.errors.UntunedWarning"),
]


def model():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=30, max_position_embeddings=12, num_labels=3, **sizes)
    return transformers.BertForSequenceClassification(config)


def sentences(seed, rows=24):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(30, (rows, 6), generator=generator)
    mask = torch.ones(6, dtype=torch.long)
    return [
        {"input_ids": row, "attention_mask": mask, "labels": int(number % 3)}
        for number, row in enumerate(ids)
    ]


def trainer(callback, folder, data=None, **options):
    arguments = transformers.TrainingArguments(
        str(folder),
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        **{"num_train_epochs": 1, **options},
    )
    data = data or {"train_dataset": sentences(1), "eval_dataset": sentences(2)}
    return transformers.Trainer(model(), arguments, callbacks=[callback], **data)


def inputs_of(rows):
    return {
        "input_ids": torch.stack([row["input_ids"] for row in rows]),
        "attention_mask": torch.stack([row["attention_mask"] for row in rows]),
    }


def batches(rows):
    labels = torch.tensor([row["labels"] for row in rows])
    return [{**inputs_of(rows), "labels": labels}]


def test_it_fits_and_tunes_when_training_ends(tmp_path):
    callback = bb.transformers.LaplaceCallback(structure="diag")
    run = trainer(callback, tmp_path, eval_strategy="epoch")
    run.train()
    by_hand = bb.Laplace(run.model, structure="diag").fit(batches(sentences(1))).tune(batches(sentences(2)))
    x = inputs_of(sentences(3))
    torch.testing.assert_close(
        callback.bayes.predict_proba(x), by_hand.predict_proba(x), rtol=1e-4, atol=1e-5
    )
    assert callback.bayes.prior_variance == pytest.approx(by_hand.prior_variance, rel=1e-3)
    assert callback.bayes.model is run.model


def test_without_evaluation_it_only_fits(tmp_path):
    callback = bb.transformers.LaplaceCallback(prior_variance=3.0)
    run = trainer(callback, tmp_path)
    run.train()
    by_hand = bb.Laplace(run.model, prior_variance=3.0).fit(batches(sentences(1)))
    x = inputs_of(sentences(3))
    torch.testing.assert_close(
        callback.bayes.predict_proba(x), by_hand.predict_proba(x), rtol=1e-4, atol=1e-5
    )


SEVERAL = {
    "train_dataset": sentences(1),
    "eval_dataset": {"first": sentences(2), "second": sentences(4), "third": sentences(5)},
}


def test_of_several_evaluation_sets_none_is_taken_by_chance(tmp_path):
    """The trainer does not show them before it evaluates; what was trained is not lost."""
    callback = bb.transformers.LaplaceCallback(structure="diag")
    run = trainer(callback, tmp_path, SEVERAL, eval_strategy="epoch", num_train_epochs=2)
    with pytest.warns(UntunedWarning, match=r"'eval_first' and 'eval_second'.*get_eval_dataloader") as warned:
        run.train()
    assert sum(each.category is UntunedWarning for each in warned) == 1
    expected = bb.Laplace(run.model, structure="diag").fit(batches(sentences(1)))
    assert callback.bayes.prior_variance == expected.prior_variance
    callback.bayes.tune(run.get_eval_dataloader("first"))  # as the message says
    expected.tune(batches(sentences(2)))
    assert callback.bayes.prior_variance == pytest.approx(expected.prior_variance, rel=1e-3)


def test_one_of_several_evaluation_sets_can_be_chosen(tmp_path):
    run = trainer(transformers.TrainerCallback(), tmp_path, SEVERAL, eval_strategy="epoch")
    callback = bb.transformers.LaplaceCallback(val_loader=run.get_eval_dataloader("first"), structure="diag")
    run.add_callback(callback)
    run.train()
    by_hand = bb.Laplace(run.model, structure="diag").fit(batches(sentences(1))).tune(batches(sentences(2)))
    assert callback.bayes.prior_variance == pytest.approx(by_hand.prior_variance, rel=1e-3)


@pytest.mark.parametrize("use", ["evaluate", "predict"])
def test_data_that_were_read_before_the_training_tune_nothing(use, tmp_path):
    callback = bb.transformers.LaplaceCallback()
    run = trainer(callback, tmp_path)
    getattr(run, use)(sentences(3))
    run.train()
    expected = bb.Laplace(run.model).fit(batches(sentences(1)))
    assert callback.bayes.prior_variance == expected.prior_variance
    assert callback.bayes.temperature == expected.temperature


def test_a_single_evaluation_set_may_have_a_name(tmp_path):
    callback = bb.transformers.LaplaceCallback(structure="diag")
    data = {"train_dataset": sentences(1), "eval_dataset": {"only": sentences(2)}}
    run = trainer(callback, tmp_path, data, eval_strategy="epoch", num_train_epochs=2)
    run.train()
    by_hand = bb.Laplace(run.model, structure="diag").fit(batches(sentences(1))).tune(batches(sentences(2)))
    assert callback.bayes.prior_variance == pytest.approx(by_hand.prior_variance, rel=1e-3)
    run.evaluate(sentences(3), metric_key_prefix="test")  # after training it decides nothing


def test_wrong_options_are_told_before_training(tmp_path):
    run = trainer(bb.transformers.LaplaceCallback(structure="kfac"), tmp_path)
    with pytest.raises(ArgumentError, match="kfac"):
        run.train()
    assert run.state.global_step == 0


@pytest.mark.slow
def test_a_trained_text_model_is_exported_for_any_length(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    network = model()
    bayes = bb.Laplace(network, prior_variance=3.0).fit(batches(sentences(1)))
    free = {1: torch.export.Dim("length", max=12)}
    lengths = {"input_ids": free, "attention_mask": free}
    bayes.export(tmp_path / "bayes.onnx", inputs_of(sentences(2)), dynamic_shapes=lengths)
    session = runtime.InferenceSession(tmp_path / "bayes.onnx")
    for length in (3, 6, 11):
        ids = torch.randint(30, (5, length))
        x = {"input_ids": ids, "attention_mask": (torch.arange(length) < 1 + torch.arange(5)[:, None]).long()}
        (found,) = session.run(None, {name: each.numpy() for name, each in x.items()})
        with torch.no_grad():
            torch.testing.assert_close(torch.from_numpy(found), bayes(x), rtol=1e-4, atol=1e-5)

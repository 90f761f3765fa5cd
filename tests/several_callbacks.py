"""Trainings by several processes, with a callback that fits when they end."""

import os
import warnings

import torch

import bitbayes as bb

POINTS, VALIDATION = 45, 21  # which two processes cannot share evenly


def as_torchrun_does(rank, size):
    """What Lightning and Accelerate look for."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
    os.environ |= {"LOCAL_WORLD_SIZE": str(size), "GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "tests"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}  # in no use: the group is there
    warnings.simplefilter("ignore")


def summary(bayes, by_hand, x):
    """What was found, and what one process finds with all the data."""
    numbers = [bayes.posterior.fitted.count, bayes.prior_variance, bayes.temperature]
    (curvature,) = bayes.posterior.fitted.curvature.values()
    return {
        "numbers": numbers,
        "probabilities": bayes.predict_proba(x),
        "expected": by_hand.predict_proba(x),
        **curvature.tensors(),
    }


def lightning(rank, size, folder):
    as_torchrun_does(rank, size)
    import lightning.pytorch as pl

    from test_lightning import Classifier, loader

    torch.manual_seed(0)
    train, val = loader(1, shuffle=True, points=POINTS), loader(2, points=VALIDATION)
    callback = bb.lightning.LaplaceCallback(network="model", structure="diag")
    trainer = pl.Trainer(
        max_epochs=1,
        callbacks=[callback],
        accelerator="cpu",
        devices=size,
        strategy="ddp",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    module = Classifier()
    trainer.fit(module, train, val)
    with bb.process_group(None):
        by_hand = bb.Laplace(module.model, structure="diag").fit(train).tune(val)
    return summary(callback.bayes, by_hand, torch.randn(20, 2))


def transformers(rank, size, folder):
    as_torchrun_does(rank, size)
    from test_transformers import batches, inputs_of, sentences, trainer

    callback = bb.transformers.LaplaceCallback(structure="diag")
    data = {"train_dataset": sentences(1, POINTS), "eval_dataset": sentences(2, VALIDATION)}
    run = trainer(callback, folder, eval_strategy="epoch", data=data)
    run.train()
    with bb.process_group(None):
        by_hand = bb.Laplace(run.model, structure="diag").fit(batches(data["train_dataset"]))
        by_hand.tune(batches(data["eval_dataset"]))
    return summary(callback.bayes, by_hand, inputs_of(sentences(3)))

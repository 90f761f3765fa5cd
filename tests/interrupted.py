"""Interrupt a training run as a user does with Ctrl-C."""

from contextlib import contextmanager

import pytest

from paper.training import checkpoint


@contextmanager
def interrupted(monkeypatch, after):
    """Interrupt the training inside this block once `after` epochs are saved."""
    monkeypatch.setattr(checkpoint, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    save = checkpoint.save_if_due

    def stop(*args):
        save(*args)
        if len(args[3]) == after:
            raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "save_if_due", stop)
    with pytest.raises(KeyboardInterrupt):
        yield
    monkeypatch.setattr(checkpoint, "save_if_due", save)

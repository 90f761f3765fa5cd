"""A training that is stopped by its user."""

from contextlib import contextmanager

import pytest

from bitbayes.reproduction.training import checkpoint


@contextmanager
def interrupted(monkeypatch, after):
    """What is trained inside is stopped once so many epochs are saved."""
    monkeypatch.setattr(checkpoint, "SECONDS", 0.0)
    keep = checkpoint.keep

    def stop(*args):
        keep(*args)
        if len(args[3]) == after:
            raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "keep", stop)
    with pytest.raises(KeyboardInterrupt):
        yield
    monkeypatch.setattr(checkpoint, "keep", keep)

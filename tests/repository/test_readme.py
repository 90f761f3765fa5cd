"""The README's lines of Python run in a session that has a model and its loaders."""

import re
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import bitbayes as bb

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.filterwarnings("ignore::bitbayes.errors.EdgeWarning")
def test_the_readmes_lines_run():
    (lines,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    torch.manual_seed(0)
    x, y = bb.toys.two_moons(60)
    loader = DataLoader(TensorDataset(x, y), batch_size=20)
    session = {"model": bb.toys.MLP((2, 8, 2)), "train_loader": loader, "val_loader": loader, "x": x}
    exec(lines, session)
    probs = session["probs"]
    assert probs.shape == (60, 2)
    # They are those of the object that the lines made, in float32.
    torch.testing.assert_close(session["bayes"](x).softmax(1), probs, atol=1e-6, rtol=1e-5)

"""The rows of docs/laplace_torch.md: every right-hand side runs, and numbers that are "same" agree."""

import re
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bitbayes as bb

PAGE = (Path(__file__).parents[2] / "docs" / "laplace_torch.md").read_text("utf-8")
ROWS = re.findall(r"^\| `(.+?)` \| `(.+?)` \| (.*?) ?\|$", PAGE, re.MULTILINE)
PREAMBLE = "".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
pytestmark = pytest.mark.filterwarnings("ignore")  # of its code at work: it is not ours to mend
# Its default backend goes through a float32 identity and keeps seven digits of the full Hessian.
DIGITS = {"rtol": 1e-5, "atol": 1e-6}
DRAWS = 20_000


def test_every_row_of_the_page_is_found():
    tables = [line for line in PAGE.splitlines() if line.startswith("| `")]
    assert len(ROWS) == len(tables) >= 16


def session(names):
    torch.manual_seed(0)
    names |= {"torch": torch, "nn": nn, "DataLoader": DataLoader, "TensorDataset": TensorDataset, "bb": bb}
    exec(re.sub(r"from laplace.*\n", "", PREAMBLE), names)
    return names


def test_the_rows_of_bitbayes_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = session({})
    for _, ours, _ in ROWS:
        exec(ours, names)
    assert names["bayes"].prior_variance == 1 / 4.0


def test_the_rows_give_the_same_numbers(tmp_path, monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        laplace = pytest.importorskip("laplace", reason="laplace-torch is not installed")
    monkeypatch.chdir(tmp_path)
    names = session({"Laplace": laplace.Laplace, "marglik_training": laplace.marglik_training})
    names["LargestVarianceDiagLaplaceSubnetMask"] = laplace.utils.LargestVarianceDiagLaplaceSubnetMask
    names["DiagLaplace"] = laplace.DiagLaplace
    names["CurvlinopsGGN"] = laplace.curvature.CurvlinopsGGN
    compared = 0
    for theirs, ours, numbers in ROWS:
        if not numbers.startswith("same"):
            exec(theirs, names)
            exec(ours, names)
            if numbers == "the same maximum":  # up to the grid of `tune`
                best = names["la"].log_marginal_likelihood().item()
                assert names["bayes"].log_evidence().item() > best - 0.1
            continue
        if "draws" in numbers:
            theirs, ours = (re.sub(r"100?\b", str(DRAWS), code) for code in (theirs, ours))
        left, right = eval(theirs, names), eval(ours, names)
        if "draws" in numbers:  # five standard errors of the difference of two means
            deviation = 0.5 if left.dim() == 2 else float(right.std(0).max())
            left, right = (each if each.dim() == 2 else each.mean(0) for each in (left, right))
            torch.testing.assert_close(right, left, rtol=0, atol=5 * deviation * (2 / DRAWS) ** 0.5)
        else:
            torch.testing.assert_close(right, left.detach().reshape(right.shape), **DIGITS)
        compared += 1
    assert compared >= 6

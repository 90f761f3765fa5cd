"""Where several processes train together, they also fit together: each the share that its trainer gave it."""

import pytest
import torch

import several
import several_callbacks


@pytest.mark.slow
@pytest.mark.parametrize("library", ["lightning", "transformers"])
def test_processes_that_train_together_fit_together(library, tmp_path):
    pytest.importorskip(library, reason=f"{library} is not installed", exc_type=ImportError)
    first, second = several.run(2, getattr(several_callbacks, library), str(tmp_path))
    assert first["numbers"] == second["numbers"] and first["numbers"][0] == several_callbacks.POINTS
    assert all(torch.equal(each, second[name]) for name, each in first.items() if name != "numbers")
    torch.testing.assert_close(first["probabilities"], first["expected"], rtol=1e-4, atol=1e-5)

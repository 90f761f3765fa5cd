"""The example of best-of-n with a reward model: the promise of a lower quantile is kept more often."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

SCRIPT = Path(__file__).parents[2] / "examples" / "best_of_n.py"
SPEC = spec_from_file_location("best_of_n", SCRIPT)
example = module_from_spec(SPEC)
SPEC.loader.exec_module(example)


@pytest.mark.slow
def test_a_quantile_promises_less_and_keeps_it_more_often(capsys):
    example.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and "by the mean" in lines[2] and "by the 10% quantile" in lines[3]
    # The columns: promised, given, kept, worse.
    mean, quantile = ([float(each.rstrip("%")) for each in line.split()[-4:]] for line in lines[2:])
    assert quantile[0] < mean[0] and quantile[2] > mean[2] + 5
    assert min(mean[1], quantile[1]) > 1 and max(mean[3], quantile[3]) < 30


def test_a_choice_is_the_largest_of_each_row():
    by, truth = torch.tensor([[1.0, 2.0], [4.0, 3.0]]), torch.tensor([[9.0, 1.0], [5.0, -1.0]])
    assert example.Choice.of(by, truth) == (3.0, 3.0, 0.5, 0.0)


def test_a_few_steps_of_training_give_a_model_that_can_be_fitted():
    world = example.World(0)
    pairs = world.preferences(40)
    bayes = example.bb.Laplace(example.trained(*pairs, epochs=1), likelihood="preference", prior_variance=1.0)
    assert bayes.fit([pairs]).reward(pairs[0][0]).deviation.shape == (40,)

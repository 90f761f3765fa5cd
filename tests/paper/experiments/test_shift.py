"""The table of corrupted and other images, and the corruptions themselves."""

from dataclasses import replace

import pytest
import torch

from paper.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from paper.experiments import shift
from paper.names import SLOW
from paper.report import Report, numbers_of_most_epochs
from paper.session import Session


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corruption_is_reproducible_and_stays_in_the_range_of_pixels(name):
    images = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    for severity in SEVERITIES:
        made = corrupt(images, name, severity)
        assert made.shape == images.shape and float(made.min()) >= 0 and float(made.max()) <= 1
        assert torch.equal(made, corrupt(images, name, severity))
        assert not torch.equal(made, images)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_the_last_severity_changes_more_than_the_first(name):
    images = torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    first, last = ((corrupt(images, name, each) - images).abs().mean() for each in (1, 5))
    assert last > first


def test_gaussian_noise_and_contrast_have_their_parameters():
    gray = torch.full((4, 3, 32, 32), 0.5)
    assert float(corrupt(gray, "gaussian noise", 5).std()) == pytest.approx(0.1, rel=0.05)
    ramp = torch.linspace(0, 1, 32).expand(1, 3, 32, 32)
    torch.testing.assert_close(corrupt(ramp, "contrast", 4), (ramp - 0.5) * 0.3 + 0.5)


def test_the_table_of_a_tiny_problem(session, options):
    values = shift.measure(session)
    assert len(values["methods"]["default"]) == options.trials and len(values["methods"]["ensemble"]) == 1
    for each in values["methods"]["temperature"]:
        assert each["corrupted"]["nll"] > 0 and set(each["severities"]) == {"1", "2", "3", "4", "5"}
    every = [each["severities"][str(s)]["nll"] for each in values["methods"]["plain"] for s in SEVERITIES]
    whole = [each["corrupted"]["nll"] for each in values["methods"]["plain"]]
    assert sum(whole) / len(whole) == pytest.approx(sum(every) / len(every), rel=1e-6)
    report = Report("shift", "tiny", options)
    shift.show(report.write_numbers(values), report)
    text = (options.output / "shift/tiny.md").read_text()
    assert "| Ensemble, with temperature |" in text and "| Detector: Energy |" in text
    assert (options.output / "shift/tiny.png").stat().st_size > 5_000


def test_what_is_left_out_is_said(options):
    options = replace(options, without=SLOW)
    report = Report("shift", "tiny", options)
    values = report.write_numbers(shift.measure(Session(options)))
    shift.show(values, report)
    assert not {*SLOW} & {*values["methods"]} and {*values["not_run"]} == {*SLOW}
    text = (options.output / "shift/tiny.md").read_text("utf-8")
    assert "Not run: laplace-torch, last layer (left out of this run)." in text
    assert values["about"]["command"].endswith("--without dropout --without swag")


def test_numbers_are_those_of_the_most_epochs_and_of_no_quick_run(tmp_path):
    assert numbers_of_most_epochs(tmp_path, "tiny") is None
    for stem in ("tiny", "tiny-9-epochs", "tiny-40-epochs", "tiny-quick-50-epochs", "tiny-60-epochs-seed1"):
        (tmp_path / f"{stem}.json").write_text(f'"{stem}"')
    assert numbers_of_most_epochs(tmp_path, "tiny") == "tiny-40-epochs"

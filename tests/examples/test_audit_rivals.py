"""The example that audits a network beside its rivals."""

import warnings
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from bitbayes.auditing import render_page

SCRIPT = Path(__file__).parents[2] / "examples" / "audit_rivals.py"
SPEC = spec_from_file_location("audit_rivals", SCRIPT)
example = module_from_spec(SPEC)
SPEC.loader.exec_module(example)


def test_all_rivals_are_in_one_report(monkeypatch):
    monkeypatch.setattr(example, "MEMBERS", 2)
    monkeypatch.setattr("bitbayes.auditing.costs.ENOUGH_SECONDS", 0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of laplace-torch at work
        report = example.audit(points=80, steps=20)
    rivals = ["2 networks"]
    rivals += [
        name for name, package in (("laplace-torch", "laplace"), ("forest", "sklearn")) if find_spec(package)
    ]
    assert report.methods == ("net", "temperature", "energy", "bitbayes", *rivals)
    assert report.base == "net" and report.ours == "bitbayes"
    assert all(0 <= report.outliers[0].scores[name].auroc <= 1 for name in report.methods)
    page = render_page(report)
    assert all(name in page for name in rivals)


def test_the_ring_is_around_the_moons():
    points = example.ring(50)
    assert points.shape == (50, 2)
    radius = (points - points.mean(0)).norm(dim=1)
    assert radius.tolist() == pytest.approx([3.0] * 50, abs=1e-4)

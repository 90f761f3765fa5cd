"""What `bb.audit` returns."""

import json
from pathlib import Path

import bitbayes as bb
from bitbayes.auditing import AuditReport, advise, render_page, write_verdict
from bitbayes.auditing.findings import SCHEMA_VERSION


def test_it_is_in_the_public_face() -> None:
    from bitbayes.auditing import audit

    assert bb.audit is audit
    assert "audit" in dir(bb) and "audit" in bb.__all__


def test_repr_is_the_conclusion(audit: AuditReport) -> None:
    lines = repr(audit).splitlines()
    assert lines[0] == "Audit of zoo:animals (4 classes, 400 test inputs)"
    assert " ".join(lines[2:5]) == audit.verdict == write_verdict(audit)
    assert "  Unfamiliar inputs    40 → 10  better  of 100 get through" in lines
    assert "    accepted = bayes.score(x) >= t" in lines
    assert max(map(len, lines)) <= 80


def test_a_notebook_shows_verdict_numbers_and_advice(audit: AuditReport) -> None:
    html = audit._repr_html_()
    assert audit.verdict in html
    assert "<td>40</td><td><b>10</b></td>" in html
    assert all(each.text in html for each in advise(audit))
    assert "<script" not in html and "<style" not in html  # a notebook has its own


def test_it_is_saved_as_a_page(audit: AuditReport, tmp_path: Path) -> None:
    audit.save(tmp_path / "report.html")
    audit.save(str(tmp_path / "report.html"))
    assert (tmp_path / "report.html").read_text("utf-8") == render_page(audit)


def test_json_holds_everything(audit: AuditReport) -> None:
    found = json.loads(audit.to_json())
    assert found == audit.to_dict()
    assert found["schema"] == SCHEMA_VERSION
    assert found["groups"]["unfamiliar"]["scores"]["bitbayes"]["auroc"] == 0.9

"""What `bb.audit` returns."""

import json
from dataclasses import replace
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
    assert " ".join(lines[2 : lines.index("", 2)]) == audit.verdict == write_verdict(audit)
    assert "  cars                   60 → 90  better  of 100 are stopped" in lines
    assert "  Normal inputs        9.0 → 1.0  level   calibration error (ECE), %" in lines
    assert "  (plain → bitbayes; better and worse are against the best of all others)" in lines
    assert "    accepted = bayes.score(x) >= t" in lines
    assert max(map(len, lines)) <= 80


def test_a_notebook_shows_verdict_numbers_and_advice(audit: AuditReport) -> None:
    html = audit._repr_html_()
    assert audit.verdict in html
    assert "<td>60</td><td><b>90</b></td>" in html and "(best other: energy, 80)" in html
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
    assert found["verdict"] == audit.verdict
    assert found["alerts"] == []
    assert [each["change"] for each in found["comparisons"]] == ["same", *["better"] * 4]
    assert found["advice"][0]["code"].startswith("import bitbayes")
    assert found["groups"]["unfamiliar"]["scores"]["bitbayes"]["auroc"] == 0.9


def test_alerts_are_shown_everywhere(audit: AuditReport) -> None:
    few = replace(audit, sizes=audit.sizes | {"validation": 40})
    (alert,) = few.alerts
    assert alert.text == "Only 40 validation points, 30 of them wrong: what is tuned on them is uncertain."
    assert f"! {alert.text[:60]}" in repr(few)
    assert alert.text in few._repr_html_() and alert.remedy in few._repr_html_()
    assert few.to_dict()["alerts"] == [
        {"kind": "validation", "text": alert.text, "remedy": "Give some hundred."}
    ]
    page = render_page(few)
    assert page.index("</h1>") < page.index(alert.text) < page.index('class="cards"')
    assert 'aria-label="Alerts"' in page and 'aria-label="Alerts"' not in render_page(audit)

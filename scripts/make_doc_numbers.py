"""Write the measured numbers of results/*.json into the README and the pages of docs/ that show them.

    python scripts/make_doc_numbers.py

A page has `<!-- numbers: NAME -->` before each table and `<!-- end -->` after it. What is between them is
replaced. tests/repository/test_docs.py fails if a page does not have the numbers of now.
"""

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS, DOCS = ROOT / "results", ROOT / "docs"
DATA_SETS = ("digits", "mnist", "cifar10", "cifar100", "svhn")
FAR = "Noise × 2000"
BLOCK = re.compile(r"(<!-- numbers: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def mean(values: Iterable[float]) -> float:
    values = list(values)
    return sum(values) / len(values)


def read(name: str, data_set: str) -> Any:
    return json.loads((RESULTS / name / f"{data_set}.json").read_text(encoding="utf-8"))


def measured(data_set: str, method: str) -> dict[str, float] | None:
    """Means over the splits: NLL, ECE, confidence far away, and AUROC over the sets of other images."""
    if method != "default-all":
        trials = [trial[method] for trial in read("trade-off", data_set)["trials"]]
        found = {name: mean(trial[name] for trial in trials) for name in ("nll", "ece", "far")}
        return found | {"auroc": mean(mean(trial["auroc"].values()) for trial in trials)}
    values = read("default", data_set)
    trials = [trial["methods"].get(method) for trial in values["trials"]]
    if None in trials:
        return None
    found = {name: mean(trial[name] for trial in trials) for name in ("nll", "ece")}
    near = [[trial["outliers"][name]["auroc"]["score"] for name in values["near"]] for trial in trials]
    far = mean(trial["outliers"][FAR]["mmc"] for trial in trials)
    return found | {"far": far, "auroc": mean(map(mean, near))}


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    header = list(header)
    # A cell of numbers stays on one line.
    whole = [[name, *(cell.replace(" ", "\N{NO-BREAK SPACE}") for cell in cells)] for name, *cells in rows]
    lines = [header, ["---", *["--:"] * (len(header) - 1)], *whole]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def title(data_set: str) -> str:
    return str(read("trade-off", data_set)["problem"])


def of_setting(method: str) -> str:
    """What one setting gives on each data set, with the plain network's values before an arrow."""
    rows = []
    for data_set in DATA_SETS:
        plain, ours = measured(data_set, "plain"), measured(data_set, method)
        if plain is None or ours is None:
            continue
        percent = [f"{100 * plain[name]:.1f} → {100 * ours[name]:.1f}" for name in ("ece", "far", "auroc")]
        rows.append((title(data_set), f"{plain['nll']:.3f} → {ours['nll']:.3f}", *percent))
    header = ("plain → this setting", "NLL", "ECE, %", "confidence far away, %", "AUROC, other images, %")
    return table(header, rows)


def in_shift(values: Any, method: str) -> list[float]:
    """Means over trainings: NLL, ECE, ECE under corruption, confidence far away, AUROC of other images."""
    runs, names = values["methods"][method], [*values["near"], *values["far"]]
    return [
        mean(each["test"]["nll"] for each in runs),
        mean(each["test"]["ece"] for each in runs),
        mean(each["corrupted"]["ece"] for each in runs),
        mean(each["sets"]["Test × 2000"]["mmc"] for each in runs),
        mean(mean(each["sets"][name]["auroc"] for name in names) for each in runs),
    ]


def over_trainings(method: str) -> str:
    """What one setting gives on each data set over trainings, with the plain network's before an arrow."""
    rows = []
    for data_set in DATA_SETS:
        stem = data_set if data_set == "digits" else f"{data_set}-40-epochs"
        if not (RESULTS / "shift" / f"{stem}.json").exists():
            continue
        values = read("shift", stem)
        nll, *shares = zip(in_shift(values, "plain"), in_shift(values, method), strict=True)
        percent = [f"{100 * plain:.1f} → {100 * ours:.1f}" for plain, ours in shares]
        rows.append((values["problem"], f"{nll[0]:.3f} → {nll[1]:.3f}", *percent))
    shown = ("NLL", "ECE, %", "ECE under shift, %", "confidence far away, %", "AUROC, other images, %")
    return table(("plain → this setting", *shown), rows)


def rounded(passes: float) -> str:
    return f"{passes:.0f}" if passes >= 10 else f"{passes:.1f}"


def matrix(data_set: str = "cifar10") -> str:
    """All settings side by side on one data set. A dash is what was not measured.

    "*": one training, and the first images alone. "†": an earlier training, over splits.
    """
    values = read("shift", f"{data_set}-40-epochs")
    strangers = [*values["near"], *values["far"]]
    settings = {
        "plain": "plain network",
        "default": "[the default](#the-default)",
        "temperature": "[only temperature](#only-temperature)",
        "evidence": "[no validation data](#no-validation-data) †",
        "ood": "[known outliers](#low-confidence-on-known-outliers) †",
        "default-all": "[all layers](#all-layers)",
    }
    rows = []
    for key, name in settings.items():
        trained = values["methods"].get(key)
        if trained is None:
            found = measured(data_set, key)
            assert found is not None
            numbers = (
                f"{100 * found['ece']:.1f}",
                "–",
                f"{100 * found['auroc']:.1f}",
                f"{100 * found['far']:.0f}",
            )
            rows.append((name, *numbers, "–"))
            continue
        mark = " *" if len(trained) == 1 else ""
        ece, shifted = (f"{100 * mean(each[kind]['ece'] for each in trained):.1f}" for kind in kinds(trained))
        auroc = mean(mean(each["sets"][other]["auroc"] for other in strangers) for each in trained)
        far = mean(each["sets"]["Test × 2000"]["mmc"] for each in trained)
        cells = [ece + mark, shifted + mark, f"{100 * auroc:.1f}{mark}", f"{100 * far:.0f}"]
        rows.append((name, *cells, rounded(mean(each["passes"] for each in trained))))
    return table(("setting", "calibration", "under shift", "strangers", "far away", "cost"), rows)


def kinds(trained: list[Any]) -> tuple[str, str]:
    """Test and corrupted images: all of them, or the first ones alone."""
    return ("test", "corrupted") if len(trained) > 1 else ("test_few", "corrupted_few")


def first() -> str:
    """Near the data, under corruption, and on strangers: CIFAR-10, one number a cell, means of trainings."""
    values = read("shift", "cifar10-40-epochs")
    columns = ("plain", "temperature", "energy", "default")

    def row(title: str, of: Callable[[Any], float], digits: int) -> tuple[str, ...]:
        found = [values["methods"].get(key) for key in columns]
        return title, *(f"{100 * mean(map(of, each)):.{digits}f}" if each else "–" for each in found)

    def auroc(title: str, name: str) -> tuple[str, ...]:
        energy = mean(values["detectors"]["energy"][name])
        ours = mean(each["sets"][name]["auroc"] for each in values["methods"]["default"])
        short = name.split(" (")[0]
        return f"{title} ({short}) told apart: AUROC, %", "–", "–", f"{100 * energy:.1f}", f"{100 * ours:.1f}"

    rows = [
        row("**Near**: calibration error on test images, %", lambda each: each["test"]["ece"], 1),
        row("**Shift**: calibration error on corrupted images, %", lambda each: each["corrupted"]["ece"], 1),
        *(auroc("**Strangers, near**", name) for name in values["near"]),
        *(auroc("**Strangers, further**", name) for name in values["far"]),
        row("**Far**: confidence on noise, % (a guess: 10)", lambda each: each["sets"]["Noise"]["mmc"], 0),
        row(
            "**Far**: confidence on test images × 2,000, % (a guess: 10)",
            lambda each: each["sets"]["Test × 2000"]["mmc"],
            0,
        ),
    ]
    return table(("", "plain", "temperature scaling", "energy", "bitbayes"), rows)


TABLES: dict[str, Callable[[], str]] = {
    "matrix": matrix,
    "first": first,
    "default": lambda: over_trainings("default"),
    "temperature": lambda: over_trainings("temperature"),
    "evidence": lambda: of_setting("evidence"),
    "ood": lambda: of_setting("ood"),
    "all-layers": lambda: of_setting("default-all"),
}


def with_numbers(text: str) -> str:
    return BLOCK.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n{found[3]}", text)


def main() -> None:
    for path in (ROOT / "README.md", *sorted(DOCS.glob("*.md"))):
        text = path.read_text(encoding="utf-8")
        if with_numbers(text) != text:
            path.write_text(with_numbers(text), encoding="utf-8")
            print(f"{path.relative_to(ROOT)}: written")


if __name__ == "__main__":
    main()

"""Writing results: numbers as JSON with their circumstances, tables as Markdown, pictures as PNG and PDF."""

from __future__ import annotations

import json
import math
import platform
import statistics
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib.figure import Figure

from bitbayes.paper.options import Options


class Report:
    """The files of one table or figure, in OUTPUT/NAME/."""

    def __init__(self, name: str, options: Options) -> None:
        self.name, self.options = name, options
        self.folder = options.output / name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.begun = time.perf_counter()
        self.written: list[Path] = []

    def numbers(self, stem: str, values: dict[str, Any]) -> None:
        """STEM.json: the values, with what they were made with."""
        about = {
            "name": self.name,
            "command": command(self.name, self.options),
            "trials": self.options.trials,
            "seed": self.options.seed,
            "quick": self.options.quick,
            "seconds": round(time.perf_counter() - self.begun, 1),
            "device": device_name(self.options.device),
            "versions": versions(),
        }
        text = json.dumps({"about": about, **rounded(values)}, indent=1, allow_nan=False)
        self._write(f"{stem}.json", text + "\n")

    def table(
        self, stem: str, title: str, header: Sequence[str], rows: Iterable[Sequence[str]], *notes: str
    ) -> None:
        """STEM.md: a Markdown table with the command that made it, and notes below."""
        lines = [f"# {title}", "", f"Made by `{command(self.name, self.options)}`.", ""]
        if self.options.quick:
            lines += ["**A quick run: these numbers show that the code runs, and nothing else.**", ""]
        lines += [line(header), line(["---"] * len(header)), *map(line, rows)]
        lines += [text for note in notes for text in ("", note)]
        self._write(f"{stem}.md", "\n".join(lines) + "\n")

    def picture(self, stem: str, figure: Figure) -> None:
        """STEM.png and STEM.pdf."""
        with matplotlib.rc_context({"pdf.fonttype": 42}):
            for ending, metadata in (("png", {"Software": None}), ("pdf", {"CreationDate": None})):
                path = self.folder / f"{stem}.{ending}"
                figure.savefig(path, dpi=160, metadata=metadata)
                self.written.append(path)

    def _write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        self.written.append(path)


def command(name: str, options: Options) -> str:
    """What to type for the same results (with one's own data folder)."""
    words = ["bitbayes reproduce", name, "--train", options.train, "--trials", str(options.trials)]
    if options.device.type != "cpu":
        words += ["--device", str(options.device)]
    if options.epochs is not None:
        words += ["--epochs", str(options.epochs)]
    return " ".join(words + (["--quick"] if options.quick else []))


def versions() -> dict[str, str]:
    from bitbayes import __version__

    return {"bitbayes": __version__, "torch": torch.__version__, "python": platform.python_version()}


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def mean_std(values: Sequence[float], digits: int = 1) -> str:
    """Mean ± standard deviation over trials; the mean alone of a single one.

    >>> mean_std([98.0, 99.0]), mean_std([98.04])
    ('98.5 ± 0.7', '98.0')
    """
    if not values:
        return "–"
    mean = f"{statistics.fmean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.{digits}f}"


def as_printed(pair: Sequence[float] | None, digits: int = 1) -> str:
    """A mean and standard deviation as the paper prints them; a dash where it prints none.

    >>> as_printed([98.2, 0.2]), as_printed(None)
    ('98.2 ± 0.2', '–')
    """
    return "–" if pair is None else f"{pair[0]:.{digits}f} ± {pair[1]:.{digits}f}"


def rounded(values: Any) -> Any:
    """The same with floats to 6 significant digits, and None for those that are not finite."""
    if isinstance(values, dict):
        return {str(key): rounded(value) for key, value in values.items()}
    if isinstance(values, (list, tuple)):
        return [rounded(value) for value in values]
    if isinstance(values, float):
        return float(f"{values:.6g}") if math.isfinite(values) else None
    return values

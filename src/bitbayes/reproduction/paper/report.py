"""Writing results: numbers as JSON with their circumstances, tables as Markdown, pictures as PNG and PDF."""

from __future__ import annotations

import json
import math
import platform
import re
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bitbayes._version import __version__
from bitbayes.errors import FileError
from bitbayes.reproduction.paper.options import Options

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Those that are made without a data set.
TOYS = ("toy", "linear-regions", "bounded-logit")


class Report:
    """The files of one table or figure: OUTPUT/NAME/STEM.json, .md, .png and .pdf.

    `extra` names a second table or picture: STEM-EXTRA.
    """

    def __init__(self, name: str, stem: str, options: Options) -> None:
        self.name, self.stem, self.options = name, stem, options
        self.folder = options.output / name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.begun = time.perf_counter()
        self.written: list[Path] = []

    def numbers(self, values: dict[str, Any]) -> dict[str, Any]:
        """Write the values, with what they were made with; return them as they will be read again."""
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
        text = json.dumps(rounded({"about": about, **values}), indent=1, allow_nan=False)
        # One list of numbers, one line.
        text = re.sub(r"\[\s+([^\[\]{}\"]*?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text)
        self._write("json", text + "\n")
        return self.read()

    def read(self) -> dict[str, Any]:
        """The numbers as they were written."""
        path = self.folder / f"{self.stem}.json"
        try:
            values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise FileError(f"no numbers in {path}: make them first, without --redraw") from error
        self.about = values["about"]
        return values

    def table(
        self, title: str, header: Sequence[str], rows: Iterable[Sequence[str]], *notes: str, extra: str = ""
    ) -> None:
        """A Markdown table with the command that made it, and notes below."""
        lines = [f"# {title}", "", f"Made by `{self.about['command']}` on {self.about['device']}.", ""]
        if self.about["quick"]:
            lines += ["**A quick run: these numbers show that the code runs, and nothing else.**", ""]
        lines += [line(header), line(["---"] * len(header)), *map(line, rows)]
        lines += [text for note in notes for text in ("", note)]
        self._write("md", "\n".join(lines) + "\n", extra)

    def picture(self, draw: Callable[[], Figure], extra: str = "") -> None:
        """PNG and PDF of what `draw` draws; nothing where there is no matplotlib."""
        try:
            import matplotlib
        except ImportError:
            return
        with matplotlib.rc_context({"pdf.fonttype": 42}):
            figure = draw()
            for ending, metadata in (("png", {"Software": None}), ("pdf", {"CreationDate": None})):
                path = self._path(ending, extra)
                figure.savefig(path, dpi=160, metadata=metadata)
                self.written.append(path)

    def _path(self, ending: str, extra: str = "") -> Path:
        return self.folder / f"{self.stem}{extra and '-'}{extra}.{ending}"

    def _write(self, ending: str, text: str, extra: str = "") -> None:
        path = self._path(ending, extra)
        path.write_text(text, encoding="utf-8")
        self.written.append(path)


def command(name: str, options: Options) -> str:
    """What to type for the same results (with one's own data folder)."""
    words = ["bitbayes reproduce", name]
    if name not in TOYS:
        words += ["--train", options.train, "--trials", str(options.trials)]
    if options.device.type != "cpu":
        words += ["--device", str(options.device)]
    if options.epochs is not None:
        words += ["--epochs", str(options.epochs)]
    if options.seed:
        words += ["--seed", str(options.seed)]
    return " ".join(words + (["--quick"] if options.quick else []))


def versions() -> dict[str, str]:
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

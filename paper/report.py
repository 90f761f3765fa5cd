"""Write results: numbers as JSON, tables as Markdown, pictures as PNG and PDF."""

from __future__ import annotations

import csv
import io
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

from bitbayes import __version__
from bitbayes.errors import FileError
from paper.files import make_folder, write_bytes, write_text
from paper.options import Options
from paper.training.cache import device_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The figures that need no data set.
TOY_FIGURES = ("toy", "linear-regions", "bounded-logit")
# Those that are not about the data set of `--train`, and the stem of their files.
STEMS = {
    **dict.fromkeys(TOY_FIGURES, "toy"),
    **dict.fromkeys(("promises", "openood-trainings"), "images"),
    "held-out": "sets",
    "drift": "tables",
}


class Report:
    """The files of one table or figure: OUTPUT/NAME/STEM.json, .md, .png and .pdf.

    A second table or picture has the name STEM-EXTRA, with the `extra` given to `write_table` or
    `write_picture`.
    """

    def __init__(self, name: str, stem: str, options: Options) -> None:
        self.name, self.stem, self.options = name, stem, options
        self.folder = options.output / name
        make_folder(self.folder)
        self.started = time.perf_counter()
        self.written: list[Path] = []

    def write_numbers(self, values: dict[str, Any]) -> dict[str, Any]:
        """Write the values and how they were made. Return them as `read_numbers` will read them."""
        about = {
            "name": self.name,
            "command": command(self.name, self.options),
            "trials": self.options.trials,
            "seed": self.options.seed,
            "quick": self.options.quick,
            "seconds": round(time.perf_counter() - self.started, 1),
            "device": device_name(self.options.device),
            "versions": {
                "bitbayes": __version__,
                "torch": torch.__version__,
                "python": platform.python_version(),
            },
        }
        text = json.dumps(round_floats({"about": about, **values}), indent=1, allow_nan=False)
        # Each list of numbers goes on one line.
        text = re.sub(r"\[\s+([^\[\]{}\"]*?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text)
        self._write_text("json", text + "\n")
        return self.read_numbers()

    def read_numbers(self) -> dict[str, Any]:
        """Read the numbers that were written before."""
        path = self._path("json")
        try:
            values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            self.about = dict(values["about"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise FileError(f"no numbers in {path}: make them first, without --redraw") from error
        return values

    def write_table(
        self, title: str, header: Sequence[str], rows: Iterable[Sequence[str]], *notes: str, extra: str = ""
    ) -> None:
        """Write a Markdown table, with the command that made it above and the notes below."""
        self.write_page(
            title,
            *markdown_table(header, rows),
            *(text for note in notes for text in ("", note)),
            extra=extra,
        )

    def write_page(self, title: str, *lines: str, extra: str = "") -> None:
        """Write a page of Markdown, with the command that made it below its title."""
        made = f"Made by `{self.about['command']}`"
        if self.about["seconds"] >= 1:  # what takes less has been put together from other numbers
            made += f" on {self.about['device']}, in {self.about['seconds']:.0f} s"
        made += "."
        head = [f"# {title}", "", made, ""]
        if self.about["quick"]:
            head += ["**A quick run: these numbers show that the code runs, and nothing else.**", ""]
        self._write_text("md", "\n".join([*head, *lines]) + "\n", extra)

    def write_csv(self, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Write rows of numbers for other programs."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([header, *rows])
        self._write_text("csv", text.getvalue())

    def write_picture(self, draw: Callable[[], Figure], extra: str = "") -> None:
        """Write the figure that `draw` returns as PNG and PDF."""
        import matplotlib  # here, because it is slow to import

        with matplotlib.rc_context({"pdf.fonttype": 42}):
            figure = draw()
            for suffix, metadata in (("png", {"Software": None}), ("pdf", {"CreationDate": None})):
                path = self._path(suffix, extra)
                picture = io.BytesIO()
                figure.savefig(picture, format=suffix, dpi=160, metadata=metadata)
                write_bytes(path, picture.getvalue())
                self.written.append(path)

    def _path(self, suffix: str, extra: str = "") -> Path:
        return self.folder / f"{self.stem}{extra and '-'}{extra}.{suffix}"

    def _write_text(self, suffix: str, text: str, extra: str = "") -> None:
        path = self._path(suffix, extra)
        write_text(path, text)
        self.written.append(path)


def numbers_of_most_epochs(folder: Path, stem: str) -> dict[str, Any] | None:
    """The numbers that were written for a data set, of the network with the most epochs; None without any.

    Networks whose epochs were given come before those of the paper's own number of epochs.
    """
    given = {path: re.fullmatch(rf"{stem}-(\d+)-epochs", path.stem) for path in folder.glob(f"{stem}*.json")}
    epochs = {path: int(found[1]) for path, found in given.items() if found}
    path = max(epochs, key=epochs.__getitem__, default=folder / f"{stem}.json")
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table.

    >>> markdown_table(["a", "b"], [["1", "2"]])
    ['| a | b |', '| --- | --- |', '| 1 | 2 |']
    """
    return [f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows)]


def command(name: str, options: Options) -> str:
    """Return the command that makes the results again. The user adds the data folder."""
    words = ["python -m paper", name]
    if name not in STEMS:
        words += ["--train", options.train, "--trials", str(options.trials)]
    if options.device.type != "cpu":
        words += ["--device", str(options.device)]
    if options.epochs is not None:
        words += ["--epochs", str(options.epochs)]
    if options.seed:
        words += ["--seed", str(options.seed)]
    if name == "shift":
        words += [word for each in options.without for word in ("--without", each)]
    return " ".join(words + (["--quick"] if options.quick else []))


def format_mean_std(values: Sequence[float], digits: int = 1) -> str:
    """Return mean ± standard deviation over trials, only the value of a single trial, or a dash for none.

    >>> format_mean_std([98.0, 99.0]), format_mean_std([98.04])
    ('98.5 ± 0.7', '98.0')
    """
    if not values:
        return "–"
    mean = f"{statistics.fmean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.{digits}f}"


def format_range(values: Sequence[float]) -> str:
    """Return the smallest and the largest value: variances are not spread evenly around a mean.

    >>> format_range([0.5, 2.0]), format_range([1.0, 1.0])
    ('0.5 to 2', '1')
    """
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{low} to {high}"


def format_paper(pair: Sequence[float] | None) -> str:
    """Return the paper's mean ± standard deviation, or a dash if it prints none.

    >>> format_paper([98.2, 0.2]), format_paper(None)
    ('98.2 ± 0.2', '–')
    """
    return "–" if pair is None else f"{pair[0]:.1f} ± {pair[1]:.1f}"


def round_floats(values: Any) -> Any:
    """Round all floats in `values` to 6 significant digits. Those that are not finite become None."""
    if isinstance(values, dict):
        return {str(key): round_floats(value) for key, value in values.items()}
    if isinstance(values, (list, tuple)):
        return [round_floats(value) for value in values]
    if isinstance(values, float):
        return float(f"{values:.6g}") if math.isfinite(values) else None
    return values

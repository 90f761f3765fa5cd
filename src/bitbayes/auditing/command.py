"""The command `bitbayes audit`: what it prints, which files it writes, and its exit code."""

import os
import shlex
import sys
import webbrowser
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from bitbayes.auditing.conditions import Condition, check_columns, check_conditions, parse_condition
from bitbayes.auditing.measure import audit
from bitbayes.auditing.page import GENERATOR
from bitbayes.auditing.predictors import name_columns
from bitbayes.auditing.progress import ProgressBars
from bitbayes.auditing.report import JSON_START, AuditReport
from bitbayes.auditing.target import embedded_target, load_target
from bitbayes.auditing.terminal import terminal_table, write_conclusion
from bitbayes.auditing.words import printable, title_of, write_chosen
from bitbayes.errors import ArgumentError, FileError
from bitbayes.io.atomic_write import check_writable, write_text

# Exit codes. Errors are raised, and end with 1.
SUCCESS, CONDITION_HOLDS, INTERRUPTED = 0, 3, 130


@dataclass(frozen=True)
class Request:
    """The arguments and options of the command."""

    target: str | None
    output: Path
    json_file: Path | None
    open_page: bool
    fail_if: list[str]
    force: bool
    seed: int
    device: torch.device | None
    name: str | None = None
    classes: list[str] | None = None
    features: list[str] | None = None
    segment: str | None = None

    @property
    def files(self) -> list[Path]:
        """The files to write, in this order."""
        return [path for path in (self.json_file, self.output) if path]

    @property
    def command(self) -> str:
        """The command that repeats the audit."""
        parts = ["bitbayes", "audit", *([self.target] if self.target else []), "--seed", str(self.seed)]
        parts += ["--device", str(self.device)] if self.device else []
        for option in ("name", "classes", "features", "segment"):
            given = getattr(self, option)
            if given is not None:
                parts += [f"--{option}", ",".join(given) if isinstance(given, list) else given]
        return shlex.join(parts)


def run_audit_command(request: Request) -> int:
    """Audit, write the files, print the conclusion, and return the exit code.

    A mistake in the request raises before any work is done.
    """
    conditions = [parse_condition(text) for text in request.fail_if]
    if request.json_file and os.path.realpath(request.json_file) == os.path.realpath(request.output):
        raise ArgumentError(f"--output and --json are the same file, {request.output}: give two names")
    for path in request.files:
        check_writable(path)
    replaced = [path for path in request.files if _will_replace(path, request.force)]
    bars, written = ProgressBars(), list[Path]()
    try:
        report = _run(request, bars, conditions)
        # Before anything is printed, so that the files exist even if the terminal goes away.
        if request.json_file:
            write_text(request.json_file, report.to_json())
            written.append(request.json_file)
        report.save(request.output)
    except KeyboardInterrupt:
        outcome = f"only {written[0]} was written" if written else "nothing was written"
        _print_error(f"interrupted during “{bars.stage or 'Loading'}”; {outcome}")
        return INTERRUPTED
    _print_report(report, request, replaced)
    if request.open_page and not webbrowser.open(request.output.resolve().as_uri()):
        _print_error(f"no browser was found; open {request.output} yourself")
    failures = check_conditions(report, conditions)
    for line in failures:
        _print_error(f"failed: {line}")
    return CONDITION_HOLDS if failures else SUCCESS


def _run(request: Request, bars: ProgressBars, conditions: list[Condition]) -> AuditReport:
    torch.manual_seed(request.seed)
    target = load_target(request.target) if request.target else embedded_target(request.seed)
    columns = name_columns(target.models)
    given = {"train": target.train is not None, "validation": target.validation is not None}
    check_columns(conditions, columns.names(**given))
    models = target.models
    if request.device is not None:
        models = _moved(models, request.device)
    with bars:
        return audit(
            models,
            target.train,
            target.validation,
            target.test,
            target.outliers,
            name=request.name or target.name,
            classes=request.classes or target.classes,
            features=request.features or target.features,
            segment=request.segment or target.segment,
            seed=request.seed,
            command=request.command,
            progress=bars,
        )


def _moved(models: Any, device: torch.device) -> Any:
    """Return the models with their networks on a device. Functions stay where they are."""
    if isinstance(models, Mapping):
        return {name: _moved(each, device) for name, each in models.items()}
    return models.to(device) if isinstance(models, nn.Module) else models


def _print_report(report: AuditReport, request: Request, replaced: list[Path]) -> None:
    console = Console(highlight=False, emoji=False)
    console.print(write_conclusion(report), markup=False)
    console.print()
    console.print(terminal_table(report))
    for method, numbers in report.chosen.items():
        console.print(f"Chosen for {title_of(method)}: {write_chosen(numbers)}.", markup=False)
    for note in report.notes:
        console.print(f"Note: {note}", markup=False)
    for path in request.files:
        title = "Report" if path == request.output else "Numbers"
        old = " (replaced the old one)" if path in replaced else ""
        console.print(f"{title}: {path}{old}", markup=False, soft_wrap=True)


def _will_replace(path: Path, force: bool) -> bool:
    """Return whether an existing file will be replaced. Raise if it is not a report, unless forced."""
    if not path.exists():
        return False
    with path.open("rb") as file:
        start = file.read(1000).decode("utf-8", "replace")
    ours = f'name="generator" content="{GENERATOR}"' in start or start.startswith(JSON_START)
    if not force and not ours:
        raise FileError(
            f"{path} exists and is no report of bitbayes: choose another name, or replace it with --force"
        )
    return True


def _print_error(text: str) -> None:
    print(f"bitbayes: {printable(text)}", file=sys.stderr)

"""The command line: `bitbayes audit` and `bitbayes reproduce`."""

import io
import shlex
import sys
import webbrowser
from pathlib import Path
from typing import Annotated, Any, TextIO

import torch
import typer
from rich.console import Console
from typer.core import TyperGroup

from bitbayes._version import __version__
from bitbayes.auditing import (
    GENERATOR,
    ProgressBars,
    check_conditions,
    embedded_target,
    load_target,
    parse_condition,
    terminal_table,
    write_conclusion,
)
from bitbayes.auditing import audit as run_audit
from bitbayes.auditing.words import METHOD_TITLES, printable, write_chosen
from bitbayes.errors import BitbayesError, FileError
from bitbayes.io.whole_file import check_writable, write_text
from bitbayes.reproduction.paper import Options, all_names
from bitbayes.reproduction.paper import reproduce as run_reproduce

LARGEST_SEED = 2**32 - 1  # the largest that numpy takes; torch takes larger ones


class _CommandGroup(TyperGroup):
    """A group of commands that print an error of bitbayes as one line on stderr and exit with 1."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BitbayesError as error:
            typer.echo(f"bitbayes: {printable(error)}", err=True)
            raise typer.Exit(1) from error


app = typer.Typer(
    cls=_CommandGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
)


def main() -> None:
    """Run the `bitbayes` command."""
    sys.stdout, sys.stderr = _outliving_reader(sys.stdout), _outliving_reader(sys.stderr)
    app(prog_name="bitbayes")


class _PipeEnd(io.FileIO):
    """Where a process writes to a pipe. Without a reader, as in `bitbayes audit | true`, text is dropped."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except BrokenPipeError:
            return memoryview(data).nbytes


def _outliving_reader(stream: TextIO) -> TextIO:
    """Return the stream such that the work goes on, and its files are written, when nobody reads any more."""
    if stream is None or stream.isatty():  # None: closed from the beginning
        return stream
    raw = _PipeEnd(stream.fileno(), "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw), stream.encoding, stream.errors, write_through=stream is sys.stderr
    )


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"bitbayes {__version__}")
        raise typer.Exit


@app.callback()
def bitbayes(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Honest confidence for any trained PyTorch classifier, after training."""


FAILED_CONDITION = 3  # the exit code if a condition of --fail-if holds


@app.command()
def audit(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET", help="package.module:function. Default: embedded digits.", show_default=False
        ),
    ] = None,
    output: Annotated[Path, typer.Option(help="The report to write.")] = Path("bitbayes-report.html"),
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write all numbers here too.", show_default=False),
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Show the report in a browser.")] = False,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CONDITION",
            help='Exit with 3 if this holds: "ece>0.05". May be repeated.',
            show_default=False,
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace files that are no reports of bitbayes, too.")
    ] = False,
    seed: Annotated[
        int,
        typer.Option(
            min=0, max=LARGEST_SEED, help="For noise, and for the split of the embedded digits.", metavar="N"
        ),
    ] = 0,
    device: Annotated[
        str | None,
        typer.Option(help="cpu, cuda, cuda:1, … Default: where the model is.", show_default=False),
    ] = None,
) -> None:
    """How overconfident is this classifier, and does bitbayes help?

    Prints a verdict and a table, and writes a report as one HTML file. They
    compare the plain network, temperature scaling, bitbayes (the default)
    and the paper's objective.

    TARGET names a function of yours. It takes no arguments and returns a dict:

      [bold]model[/bold]        a torch.nn.Module that returns logits
      [bold]train[/bold]        a loader of (x, y): what the model was trained on
      [bold]validation[/bold]   a loader of (x, y): chooses prior variance, temperature and residual
      [bold]test[/bold]         a loader of (x, y): what is scored
      [bold]outliers[/bold]     optional: a dict from a name to a loader or a tensor of inputs
                   that belong to none of the classes

    For example, with this in mnist.py, run [bold]bitbayes audit mnist:classifier[/bold]

      def classifier():
          return {"model": net, "train": train_loader,
                  "validation": validation_loader, "test": test_loader,
                  "outliers": {"letters": letter_images}}

    The module is looked for in the current directory too. Without TARGET the
    embedded digits and their LeNet are audited, with Fashion-MNIST and letters
    as outliers.

    Conditions of --fail-if name accuracy, confidence, ece, nll or brier (test
    data), auroc or fpr95 (the worst of the unfamiliar sets), far-auroc,
    far-fpr95 or far-confidence. They are about bitbayes; write plain.ece for
    another method. Values are numbers, percentages or names: "auroc<90%",
    "ece>plain.ece".

    Exit codes: 0 success, 1 an error, 2 wrong usage, 3 a condition of --fail-if
    holds, 130 interrupted.
    """
    conditions = [parse_condition(text) for text in fail_if or []]
    files = [path for path in (json_file, output) if path]
    for path in files:
        check_writable(path)
    replaced = [path for path in files if _may_replace(path, force)]
    torch.manual_seed(seed)
    where = _parse_device(device) if device is not None else None
    bars, written = ProgressBars(), list[Path]()
    try:
        chosen = load_target(target) if target else embedded_target(seed)
        model = chosen.model.to(where) if where is not None else chosen.model
        with bars:
            found = run_audit(
                model,
                chosen.train,
                chosen.validation,
                chosen.test,
                chosen.outliers,
                subject=chosen.subject,
                seed=seed,
                command=_command_to_repeat(target, seed, device),
                progress=bars,
            )
        # Before anything is printed: whatever happens to the terminal, the files are there.
        if json_file:
            write_text(json_file, found.to_json())
            written.append(json_file)
        found.save(output)
    except KeyboardInterrupt:
        kept = f"only {written[0]} was written" if written else "nothing was written"
        typer.echo(f"bitbayes: interrupted during “{bars.stage or 'Loading'}”; {kept}", err=True)
        raise typer.Exit(130) from None
    console = Console(highlight=False)
    console.print(write_conclusion(found), markup=False)
    console.print()
    console.print(terminal_table(found))
    for method, numbers in found.chosen.items():
        console.print(f"Chosen for {METHOD_TITLES[method]}: {write_chosen(numbers)}.")
    for note in found.notes:
        console.print(f"Note: {note}", markup=False)
    for path in files:
        title = "Report" if path == output else "Numbers"
        old = " (replaced the old one)" if path in replaced else ""
        console.print(f"{title}: {path}{old}", markup=False, soft_wrap=True)
    if open_page:
        _open_in_browser(output)
    if failures := check_conditions(found, conditions):
        for line in failures:
            typer.echo(f"bitbayes: failed: {printable(line)}", err=True)
        raise typer.Exit(FAILED_CONDITION)


def _may_replace(path: Path, force: bool) -> bool:
    """Return whether there is a file that will be replaced. Raise if it is none of ours, unless forced."""
    if not path.exists():
        return False
    if not force:
        with path.open("rb") as file:
            start = file.read(1000)
        if GENERATOR.encode() not in start and not start.startswith(b'{\n "schema":'):
            raise FileError(
                f"{path} exists and is no report of bitbayes: choose another name, or replace it by --force"
            )
    return True


def _command_to_repeat(target: str | None, seed: int, device: str | None) -> str:
    parts = ["bitbayes", "audit", *([target] if target else []), "--seed", str(seed)]
    return shlex.join([*parts, *(["--device", device] if device else [])])


def _open_in_browser(page: Path) -> None:
    if not webbrowser.open(page.resolve().as_uri()):
        typer.echo(f"bitbayes: no browser was found; open {page} yourself", err=True)


@app.command()
def reproduce(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="Tables and figures, or all.", show_default=False)
    ],
    train: Annotated[
        str, typer.Option(help="What the network is trained on: digits, mnist, cifar10, cifar100 or svhn.")
    ] = "mnist",
    data: Annotated[Path, typer.Option(help="The folder with the data sets' files.")] = Path("data"),
    trials: Annotated[int, typer.Option(min=1, help="Splits into validation and test points.")] = 10,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …")] = "cpu",
    output: Annotated[Path, typer.Option(help="The folder for the results.")] = Path("results"),
    cache: Annotated[Path, typer.Option(help="The folder for trained networks.")] = Path("networks"),
    epochs: Annotated[
        int | None,
        typer.Option(min=1, help="Of training. Default: the paper's 100; digits 30.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=LARGEST_SEED, help="For the training.", metavar="N")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few points and epochs: does it run at all?")
    ] = False,
    redraw: Annotated[
        bool, typer.Option("--redraw", help="Only tables and pictures, from the numbers in OUTPUT.")
    ] = False,
) -> None:
    """Make tables and figures of the paper from data, with the paper's numbers beside them.

    NAME is one of toy, linear-regions, bounded-logit, default, table1, table2, table3,
    openood, trade-off, confidence-vs-scale, rotated-mnist, adversarial, histograms, ece,
    acet, oe, dkl, or all. The toys and --train digits need no data folder.

    Each writes numbers (JSON), a table (Markdown) and a picture (PNG, PDF) to
    OUTPUT/NAME. Networks are trained once and kept in the cache; a stopped
    training goes on where it stopped.
    """
    where = _parse_device(device)
    options = Options(train, data, trials, where, output, cache, quick, redraw, epochs, seed)
    chosen = all_names(train) if "all" in names else names

    def print_files(name: str, files: list[Path]) -> None:
        for file in files:
            typer.echo(f"{name}: {file}")

    try:
        run_reproduce(chosen, options, print_files)
    except KeyboardInterrupt:
        typer.echo(
            f"bitbayes: stopped; what was trained is in {cache}, and the same command goes on", err=True
        )
        raise typer.Exit(130) from None


def _parse_device(name: str) -> torch.device:
    try:
        one = torch.ones(1, device=name)
        one.add(1).item()  # raises on a device that holds no numbers, such as meta
    except Exception as error:  # torch raises many kinds of errors for devices that this machine lacks
        reason = printable(str(error).split(". ")[0].split("\n")[0])
        raise typer.BadParameter(
            f"{name!r} cannot compute here: {reason}. Give cpu, cuda, cuda:1, …", param_hint="--device"
        ) from error
    return one.device

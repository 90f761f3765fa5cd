"""The command line: `bitbayes audit` and `bitbayes explore`.

Each command imports what it needs when it runs. So `--version`, `--help` and shell completion do without
torch, which takes seconds to import.
"""

import io
import sys
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from typer.core import TyperGroup

from bitbayes._version import __version__
from bitbayes.errors import BitbayesError, FileError

if TYPE_CHECKING:
    import torch

LARGEST_SEED = 2**32 - 1  # the largest that numpy takes; torch takes larger ones


class _CommandGroup(TyperGroup):
    """A group of commands that print an error of bitbayes as one line on stderr and exit with 1."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BitbayesError as error:
            from bitbayes.auditing.words import printable

            typer.echo(f"bitbayes: {printable(error)}", err=True)
            raise typer.Exit(1) from error


app = typer.Typer(
    cls=_CommandGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
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
    """Return the stream such that the work goes on, and its files are written, when nobody reads any more.

    What its encoding cannot write, such as → in a pipe on Windows, becomes a question mark.
    """
    if stream is None:  # closed from the beginning
        return stream
    errors = "replace" if stream.errors == "strict" else stream.errors
    if stream.isatty():
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)
        return stream
    raw = _PipeEnd(stream.fileno(), "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw), stream.encoding, errors, write_through=stream is sys.stderr
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
    name: Annotated[str | None, typer.Option(help="The title of the report.", show_default=False)] = None,
    classes: Annotated[
        str | None,
        typer.Option(metavar="A,B,…", help="The names of the classes, in their order.", show_default=False),
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(metavar="A,B,…", help="The names of the numbers of an input.", show_default=False),
    ] = None,
    segment: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="Score the test data by this column of theirs, too.", show_default=False
        ),
    ] = None,
) -> None:
    """How overconfident is this classifier, and does bitbayes help?

    Prints a verdict and a table, and writes a report as one HTML file. They
    compare the plain network, temperature scaling, the energy and bitbayes.

    TARGET names a function of yours. It takes no arguments and returns a dict:

      [bold]model[/bold]        a torch.nn.Module that returns logits
      [bold]models[/bold]       in its place: a dict from a name to a predictor. That is a torch
                   module, a fitted bb.Laplace, a bb.Predictor, or a function of
                   inputs that returns probabilities
      [bold]train[/bold]        a loader of (x, y), or arrays: what the model was trained on
      [bold]validation[/bold]   the same: chooses prior variance, temperature and residual.
                   With models, train and validation are optional
      [bold]test[/bold]         the same: what is scored
      [bold]outliers[/bold]     optional: a dict from a name to a loader or a tensor of inputs
                   that belong to none of the classes
      [bold]name, classes, features, segment[/bold]   optional, as the options below:
                   a text, two lists of names, and the name of a column

    For example, with this in mnist.py, run [bold]bitbayes audit mnist:classifier[/bold]

      def classifier():
          return {"model": net, "train": train_loader,
                  "validation": validation_loader, "test": test_loader,
                  "outliers": {"letters": letter_images}}

    The module is looked for in the current directory too. Without TARGET the
    embedded digits and their LeNet are audited, with Fashion-MNIST and letters
    as outliers.

    Conditions of --fail-if name accuracy, confidence, nll, brier,
    brier-calibration, brier-refinement, ece, floor, smooth-ece,
    debiased-rmsce, classwise-ece, aurc or augrc (test data), auroc or fpr95
    (the worst of the unfamiliar sets), far-auroc, far-fpr95 or
    far-confidence. They are about bitbayes, or the first column if there is
    no bitbayes; write plain.ece for another column, and paper.ece for the
    paper's objective. Values are numbers, percentages or names: "auroc<90%",
    "ece>plain.ece".

    Exit codes: 0 success, 1 an error, 2 wrong usage, 3 a condition of --fail-if
    holds, 130 interrupted.
    """
    from bitbayes.auditing.command import Request, run_audit_command

    where = None if device is None else _parse_device(device)
    request = Request(
        target,
        output,
        json_file,
        open_page,
        fail_if or [],
        force,
        seed,
        where,
        name,
        _split(classes),
        _split(features),
        segment,
    )
    raise typer.Exit(run_audit_command(request))


@app.command()
def explore(
    output: Annotated[Path, typer.Option(help="The page to write.")] = Path("bitbayes-explorer.html"),
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Train the page's networks anew, in about a minute.")
    ] = False,
) -> None:
    """Write a page to play with: a plain network beside bitbayes, on the paper's toys and on digits.

    The page is one file that computes everything itself. It needs no internet connection.
    Five steps show why a network is too sure far from its data, and what helps.
    """
    from bitbayes.explorer import render_explorer, train_numbers
    from bitbayes.io.atomic_write import check_writable, write_text

    check_writable(output)
    if output.exists() and b'name="generator" content="bitbayes ' not in output.read_bytes()[:1000]:
        raise FileError(f"{output} exists and is no page of bitbayes: choose another name, or delete it")
    numbers = None
    if rebuild:
        from rich.console import Console

        with Console(stderr=True).status("Importing torch") as status:
            numbers = train_numbers(report=status.update)
    write_text(output, render_explorer(numbers))
    typer.echo(f"Page: {output}")
    if open_page and not webbrowser.open(output.resolve().as_uri()):
        typer.echo(f"bitbayes: no browser was found; open {output} yourself", err=True)


@app.command(context_settings={"ignore_unknown_options": True})
def reproduce(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME...", show_default=False)] = None,
) -> None:
    """Where the paper's tables and figures are made: not here, but by python -m paper in a checkout."""
    command = " ".join(["python -m paper", *(names or ["NAME …"])])
    typer.echo(f"bitbayes: the paper is run from a checkout of the repository now: {command}", err=True)
    raise typer.Exit(1)


def _split(names: str | None) -> list[str] | None:
    return None if names is None else [name.strip() for name in names.split(",")]


def _parse_device(name: str) -> "torch.device":
    import torch

    from bitbayes.auditing.words import printable

    try:
        one = torch.ones(1, device=name)
        one.add(1).item()  # raises on a device that holds no numbers, such as meta
    except Exception as error:  # torch raises many kinds of errors for devices that this machine lacks
        reason = printable(str(error).split(". ")[0].split("\n")[0])
        raise typer.BadParameter(
            f"{name!r} cannot compute here: {reason}. Give cpu, cuda, cuda:1, …", param_hint="--device"
        ) from error
    return one.device

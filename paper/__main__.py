"""The command `python -m paper NAME …`: make tables and figures of the paper.

Torch takes seconds to import, so `--help` and misspelt names do without it.
"""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bitbayes.errors import BitbayesError, one_of
from paper.names import NAMES, SLOW, all_names

if TYPE_CHECKING:
    import torch

LARGEST_SEED = 2**32 - 1  # the largest that numpy takes; torch takes larger ones

# Shells complete the words behind a command, and not those behind `python -m`.
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def main() -> None:
    """Run the command."""
    app(prog_name="python -m paper")


@app.command(no_args_is_help=True)
def reproduce(
    names: Annotated[
        list[str],
        typer.Argument(metavar="NAME", help="Tables and figures, or all.", show_default=False),
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
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="METHOD", help="Leave a slow method out of shift.", show_default=False),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few points and epochs: does it run at all?")
    ] = False,
    redraw: Annotated[
        bool, typer.Option("--redraw", help="Only tables and pictures, from the numbers in OUTPUT.")
    ] = False,
) -> None:
    """Make tables and figures of the paper from data, with the paper's numbers beside them.

    NAME is one of toy, linear-regions, bounded-logit, default, shift, drift, promises, table1,
    table1-pair, table2, table3, openood, openood-trainings, trade-off, confidence-vs-scale,
    rotated-mnist, adversarial, histograms, ece, acet, oe, dkl, held-out, or all. The toys and --train digits
    need no data folder; drift and held-out fetch their own by pip and apt-get, and are not part
    of all.

    Each writes numbers (JSON), a table (Markdown) and a picture (PNG, PDF) to
    OUTPUT/NAME. Networks are trained once and kept in the cache; a stopped
    training goes on where it stopped.
    """
    chosen, done = names, list[str]()

    def print_files(name: str, files: list[Path]) -> None:
        for file in files:
            _print(f"{name}: {file}")
        done.append(name)

    try:
        for name in names:
            one_of("NAME", name, (*NAMES, "all"))
        left_out = tuple(one_of("--without", name, SLOW) for name in without or ())
        if "all" in names:
            chosen = all_names(train)
        from paper import registry
        from paper.options import Options

        where = _parse_device(device)
        options = Options(train, data, trials, where, output, cache, quick, redraw, epochs, seed, left_out)
        registry.reproduce(chosen, options, print_files)
    except BitbayesError as error:
        typer.echo(f"paper: {error}", err=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        typer.echo(f"paper: {_interrupted(chosen, done, output, cache)}", err=True)
        raise typer.Exit(130) from None


def _print(text: str) -> None:
    """Print a line. Without a reader, as behind `| head`, the work goes on and its files are written."""
    try:
        typer.echo(text)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _interrupted(chosen: list[str], done: list[str], output: Path, cache: Path) -> str:
    """Return what to say after Ctrl-C: what was under way, what is kept, and how to go on.

    >>> print(_interrupted(["toy", "table1", "table2"], ["toy"], Path("results"), Path("networks")))
    interrupted while making table1 (2 of 3). Kept: the results of toy in results, and trained networks in
    networks. A training that was under way is kept there too: the same command continues it.
    """
    kept = f"the results of {', '.join(done)} in {output}, and trained networks in {cache}"
    if not done:
        kept = f"trained networks in {cache}"
    place = min(len(done), len(chosen) - 1)
    return (
        f"interrupted while making {chosen[place]} ({place + 1} of {len(chosen)}). Kept: {kept}. A training "
        "that was under way is kept there too: the same command continues it."
    )


def _parse_device(name: str) -> "torch.device":
    import torch

    try:
        one = torch.ones(1, device=name)
        one.add(1).item()  # raises on a device that holds no numbers, such as meta
    except Exception as error:  # torch raises many kinds of errors for devices that this machine lacks
        reason = str(error).split(". ")[0].split("\n")[0]
        raise typer.BadParameter(
            f"{name!r} cannot compute here: {reason}. Give cpu, cuda, cuda:1, …", param_hint="--device"
        ) from error
    return one.device


if __name__ == "__main__":
    main()

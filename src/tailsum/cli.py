"""The command line: `tailsum demo` and `tailsum reproduce`."""

import sys
from enum import StrEnum
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

try:
    import typer
    from rich.console import Console
except ImportError:  # pragma: no cover
    sys.exit("The command line needs two more packages: pip install 'tailsum[cli,plot]'")


def _need_matplotlib() -> None:
    """Say at the start of a long run, not at its end, that its pictures cannot be drawn."""
    if find_spec("matplotlib") is None:
        sys.exit("Pictures need one more package: pip install 'tailsum[cli,plot]'")


app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode="markdown")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(version("tailsum"))
        raise typer.Exit


@app.callback()
def tailsum(
    _: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Structured inference with very many latent states: exact where affordable, randomized where not."""


@app.command()
def demo(
    states: Annotated[int, typer.Option(min=10, help="How many states the chains have.")] = 10_000,
    length: Annotated[int, typer.Option(min=1, help="How many positions the chains have.")] = 10,
    repeats: Annotated[int, typer.Option(min=2, help="How often each random estimator runs.")] = 12,
    seed: Annotated[int, typer.Option(help="The seed of everything random.")] = 0,
    output: Annotated[Path, typer.Option(file_okay=False, help="The folder for the picture.")] = Path("tailsum-demo"),
) -> None:
    """Compare estimators on two large chains: exact, TopK, the paper's, and tailsum's at 1% and 10% of the states.

    Prints a table of errors, times and memory, and writes a picture of the error distributions. Takes about a minute.
    """
    _need_matplotlib()
    from tailsum.demo import demo_picture, demo_table, run_demo  # noqa: PLC0415  (torch is slow to load: not for --help)

    console = Console()
    rows = run_demo(states, length, seed, repeats, console)
    console.print(demo_table(rows, states, length))
    picture = output / "errors.png"
    demo_picture(rows, picture)
    console.print(f"Picture of the error distributions: {picture.resolve()}", soft_wrap=True)


class Table(StrEnum):
    """What can be run."""

    table2 = "table2"
    table3 = "table3"
    table4 = "table4"
    hard = "hard"
    theory = "theory"
    all = "all"


def _numbers(text: str) -> tuple[int, ...]:
    try:
        found = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise typer.BadParameter(
            f"must be numbers with commas between them, such as 2000,10000: got {text!r}"
        ) from None
    if min(found) < 100:
        raise typer.BadParameter(f"must be at least 100 each, so that 1% of them is a state: got {text!r}")
    return found


@app.command()
def reproduce(
    table: Annotated[Table, typer.Argument(help="What to run.")],
    states: Annotated[str, typer.Option(help="How many states the models have.")] = "2000,10000",
    repeats: Annotated[int, typer.Option(min=2, help="How often each random estimator runs.")] = 100,
    seed: Annotated[int, typer.Option(help="The seed of everything random.")] = 0,
    output: Annotated[Path, typer.Option(file_okay=False, help="The folder for the results.")] = Path("tailsum-paper"),
    data: Annotated[
        Path | None,
        typer.Option(
            exists=True, help="Text to train on: a folder of MSCOCO captions, or a file. Default: Python's own."
        ),
    ] = None,
) -> None:
    """Run the paper's experiments, and harder ones: its figures, its method here, and ours, side by side.

    **table2**: log Z of chains and hypertrees, entropy of chains. **table3**: bias and variance. **table4**: proposals.
    **hard**: peaked chains, models trained on text, gradients. **theory**: what is proved, measured. **all**: everything,
    in less than an hour on two cores.

    What is finished is kept: run the same command again to go on where it was interrupted. Writes CSV files with every
    replicate, tables in Markdown, pictures, and one page, `index.html`, that shows it all.
    """
    _need_matplotlib()
    from tailsum.paper.reproduce import Settings  # noqa: PLC0415  (torch is slow to load: not for --help)
    from tailsum.paper.reproduce import reproduce as run  # noqa: PLC0415

    console = Console()
    settings = Settings(table.value, _numbers(states), repeats, seed, output, data)
    try:
        page = run(settings, console)
    except KeyboardInterrupt:
        console.print(f"Stopped. Finished cells are kept in {output}: the same command goes on from there.")
        raise
    except ValueError as error:
        console.print(f"Error: {error}", style="red", soft_wrap=True)
        raise typer.Exit(1) from None
    console.print(f"The results on one page: {page.resolve()}", soft_wrap=True)


def main() -> None:
    """Run the command line; Ctrl-C ends it without a traceback."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()

"""The command line: `tailsum demo`."""

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

try:
    import typer
    from rich.console import Console
except ImportError:  # pragma: no cover
    sys.exit("The command line needs two more packages: pip install 'tailsum[cli,plot]'")

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
    from tailsum.demo import demo_picture, demo_table, run_demo  # noqa: PLC0415  (torch is slow to load: not for --help)

    console = Console()
    rows = run_demo(states, length, seed, repeats, console)
    console.print(demo_table(rows, states, length))
    picture = output / "errors.png"
    demo_picture(rows, picture)
    console.print(f"Picture of the error distributions: {picture.resolve()}", soft_wrap=True)


def main() -> None:
    """Run the command line; Ctrl-C ends it without a traceback."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()

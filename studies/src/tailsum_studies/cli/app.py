"""All commands together, and what `tailsum` itself answers: its help, its version, and completion for shells."""

from typing import Annotated

import typer

import tailsum
from tailsum_studies.cli import bench, demo, evaluate, explore, gaps, reproduce, train

app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(tailsum.__version__)
        raise typer.Exit


@app.callback()
def about(
    _: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Structured inference with very many latent states: exact where affordable, randomized where not."""


COMMANDS = (
    *(demo.demo, bench.bench, reproduce.reproduce, gaps.gaps),
    *(train.train, evaluate.evaluate, explore.explore),
)
for command in COMMANDS:
    app.command()(command)
